/*
 * Every operator of the library for Python, by one function that the library's own descriptions drive: how many tensors
 * and options an operator has, what they are called, which are required. A new operator needs nothing here.
 *
 * Arguments are flat and positional. Parsing keywords would take longer than a small call; operators() says what stands
 * where, and onepass/library.py holds the package to it.
 */
#include <stdlib.h>
#include <string.h>

#include "native.h"

enum { MOST_TENSORS = 32, MOST_OPTIONS = 24 };

/* ---- the operators ----------------------------------------------------------------------------------------------- */

typedef struct description {
    const onepass_operator *op;
    int tensor_count, option_count;
    uint32_t required; /* bit i: tensor i is */
    int asks_first; /* 1: the last call's workspace was larger than what is kept, so the next call's size is asked for
                     */
    const char *name;
    const char *names[MOST_TENSORS];
} description;

static description *operators;
static int operator_count;

static int describe(description *d, const onepass_operator *op)
{
    const onepass_argument_info *tensor;
    d->op = op;
    d->name = onepass_operator_name(op);
    while ((tensor = onepass_operator_argument(op, d->tensor_count)) && d->tensor_count < MOST_TENSORS) {
        d->required |= (uint32_t)(tensor->is_required != 0) << d->tensor_count;
        d->names[d->tensor_count++] = tensor->name;
    }
    while (onepass_operator_option(op, d->option_count))
        d->option_count++;
    /* The first tensor says where the call runs. */
    if (!tensor && d->option_count <= MOST_OPTIONS && d->required & 1)
        return 0;
    PyErr_Format(PyExc_ImportError,
                 "%s: %d tensors, %d options; the extension takes up to %d and %d, the first tensor required", d->name,
                 d->tensor_count, d->option_count, MOST_TENSORS, MOST_OPTIONS);
    return -1;
}

int native_describe_operators(void)
{
    while (onepass_operator_at(operator_count))
        operator_count++;
    operators = calloc((size_t)operator_count, sizeof *operators);
    if (!operators) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < operator_count; i++)
        if (describe(&operators[i], onepass_operator_at(i)) != 0)
            return -1;
    return 0;
}

/* A tuple of the names of an operator's tensors, or of its options. */
static PyObject *names_of(const description *d, int is_options)
{
    int count = is_options ? d->option_count : d->tensor_count;
    PyObject *names = PyTuple_New(count);
    for (int i = 0; names && i < count; i++) {
        const char *name = is_options ? onepass_operator_option(d->op, i)->name : d->names[i];
        PyObject *text = PyUnicode_FromString(name);
        if (!text || PyTuple_SetItem(names, i, text) != 0)
            Py_CLEAR(names);
    }
    return names;
}

PyObject *native_operators(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
    PyObject *all = PyDict_New();
    for (int i = 0; all && i < operator_count; i++) {
        PyObject *tensors = names_of(&operators[i], 0), *options = names_of(&operators[i], 1);
        PyObject *entry = tensors && options ? Py_BuildValue("(iOO)", i, tensors, options) : NULL;
        if (!entry || PyDict_SetItemString(all, operators[i].name, entry) != 0)
            Py_CLEAR(all);
        Py_XDECREF(entry);
        Py_XDECREF(options);
        Py_XDECREF(tensors);
    }
    return all;
}

/* ---- what is passed ---------------------------------------------------------------------------------------------- */

typedef struct request {
    description *d;
    PyObject *like; /* borrowed: the first tensor */
    const onepass_tensor *views[MOST_TENSORS];
    double options[MOST_OPTIONS];
    int32_t products, threads;
    int seen_count; /* tensors to release */
    native_tensor seen[MOST_TENSORS];
} request;

/* The operator that arguments[0] names by its index, given `more` arguments after products and threads. */
static description *operator_of(PyObject *const *arguments, Py_ssize_t count, const char *function, int more)
{
    if (count < 1) {
        PyErr_Format(PyExc_TypeError, "%s takes the index of an operator", function);
        return NULL;
    }
    int32_t index;
    if (native_integer(arguments[0], "operator", &index) != 0)
        return NULL;
    if (index < 0 || index >= operator_count) {
        PyErr_Format(PyExc_ValueError, "%s: operator: %d; it must be from 0 to %d", function, (int)index,
                     operator_count - 1);
        return NULL;
    }
    description *d = &operators[index];
    int wanted = 1 + d->tensor_count + d->option_count + 2 + more;
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%s of %s takes %d arguments, not %zd", function, d->name, wanted, count);
        return NULL;
    }
    return d;
}

static double number(PyObject *object)
{
    return PyLong_Check(object) ? PyLong_AsDouble(object) : PyFloat_AsDouble(object);
}

/*
 * Reads tensors, options, products and threads, which begin at arguments[0]; `required` has the tensors that must be
 * there. 0, or -1 with an exception set; release is right after either.
 */
static int read_request(request *r, description *d, PyObject *const *arguments, uint32_t required)
{
    r->d = d;
    r->like = arguments[0];
    r->seen_count = 0;
    for (int i = 0; i < d->tensor_count; i++) {
        r->views[i] = NULL;
        if (arguments[i] != Py_None) {
            native_tensor *seen = &r->seen[r->seen_count++];
            r->views[i] = &seen->view;
            if (native_read(arguments[i], d->names[i], i == 0, seen) != 0)
                return -1;
        } else if (required >> i & 1) {
            PyErr_Format(PyExc_TypeError, "%s: %s: None; it is required", d->name, d->names[i]);
            return -1;
        }
    }
    PyObject *const *rest = arguments + d->tensor_count;
    for (int i = 0; i < d->option_count; i++) {
        r->options[i] = number(rest[i]);
        if (r->options[i] == -1 && PyErr_Occurred())
            return -1;
    }
    rest += d->option_count;
    return native_integer(rest[0], "products", &r->products) != 0 ||
                   native_integer(rest[1], "threads", &r->threads) != 0
               ? -1
               : 0;
}

static void release(request *r)
{
    while (r->seen_count > 0)
        native_release(&r->seen[--r->seen_count]);
}

static native_lease *take(const request *r, void *stream)
{
    return native_take(r->views[0]->device, stream, r->threads, r->products);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static onepass_status attempt(const native_lease *lease, const request *r, void *workspace, size_t size)
{
    /* A launch is shorter than giving the GIL away; work on the CPU is not. */
    PyThreadState *state = lease->device.type == ONEPASS_CUDA ? NULL : PyEval_SaveThread();
    onepass_status status = onepass_call(lease->handle, r->d->op, r->views, r->options, workspace, size);
    if (state)
        PyEval_RestoreThread(state);
    return status;
}

static PyObject *finish(native_lease *lease, onepass_status status)
{
    native_put_back(lease);
    if (status != ONEPASS_OK)
        return native_raise(status);
    Py_RETURN_NONE;
}

/* With a workspace that the caller owns: a tensor, or None. */
static PyObject *call_in(native_lease *lease, const request *r, PyObject *workspace)
{
    native_tensor memory;
    onepass_status status = ONEPASS_OK;
    int ready = workspace == Py_None || native_read_bytes(workspace, "workspace", lease->device, &memory) == 0;
    if (ready && workspace == Py_None)
        status = attempt(lease, r, NULL, 0);
    else if (ready)
        status = attempt(lease, r, (char *)memory.view.data + memory.view.byte_offset, (size_t)memory.view.shape[0]);
    if (workspace != Py_None)
        native_release(&memory);
    PyObject *result = finish(lease, status);
    if (!ready)
        Py_CLEAR(result);
    return result;
}

/*
 * With the lease's workspace. It is usually large enough, so the call is simply tried: one that fails for the lack of a
 * workspace has written nothing, and then its size is asked for. (To ask first is to check and plan each call twice.)
 */
static PyObject *call_with(native_lease *lease, request *r, PyObject *allocate)
{
    if (!r->d->asks_first) {
        int has = lease->workspace && !onepass_is_capturing(lease->handle);
        onepass_status status = attempt(lease, r, has ? lease->workspace_data : NULL, has ? lease->workspace_size : 0);
        if (status != ONEPASS_WORKSPACE)
            return finish(lease, status);
    }
    size_t bytes = 0;
    void *workspace = NULL;
    onepass_status status = onepass_call_workspace_size(lease->handle, r->d->op, r->views, r->options, &bytes);
    if (status == ONEPASS_OK && bytes) {
        workspace = native_workspace(lease, bytes, r->like, allocate);
        if (!workspace) {
            native_put_back(lease);
            return NULL;
        }
    }
    r->d->asks_first = bytes > NATIVE_MOST_KEPT;
    return finish(lease, status == ONEPASS_OK ? attempt(lease, r, workspace, bytes) : status);
}

PyObject *native_call(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    description *d = operator_of(arguments, count, "call", 1);
    if (!d)
        return NULL;
    request r;
    PyObject *result = NULL, *last = arguments[count - 1];
    native_lease *lease = read_request(&r, d, arguments + 1, d->required) == 0 ? take(&r, r.seen[0].stream) : NULL;
    if (lease)
        result = PyCallable_Check(last) ? call_with(lease, &r, last) : call_in(lease, &r, last);
    release(&r);
    return result;
}

PyObject *native_call_on_cpu(PyObject *index, PyObject *like, const onepass_tensor *const *views, int count,
                             int32_t threads, PyObject *allocate)
{
    request r; /* not zeroed, which takes longer than the rest here */
    int32_t number;
    if (native_integer(index, "operator", &number) != 0)
        return NULL;
    if (number < 0 || number >= operator_count || operators[number].tensor_count != count ||
        operators[number].option_count) {
        PyErr_Format(PyExc_ValueError, "operator: %d; it must be one of %d tensors and no options", (int)number, count);
        return NULL;
    }
    r.d = &operators[number];
    r.like = like;
    r.threads = threads;
    r.products = ONEPASS_FP32_FULL;
    r.seen_count = 0;
    memcpy(r.views, views, (size_t)count * sizeof *views);
    native_lease *lease = take(&r, NULL);
    return lease ? call_with(lease, &r, allocate) : NULL;
}

PyObject *native_workspace_size(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    description *d = operator_of(arguments, count, "workspace_size", 0);
    if (!d)
        return NULL;
    request r;
    PyObject *result = NULL;
    native_lease *lease = read_request(&r, d, arguments + 1, 1) == 0 ? take(&r, r.seen[0].stream) : NULL;
    if (lease) {
        size_t bytes = 0;
        onepass_status status = onepass_call_workspace_size(lease->handle, d->op, r.views, r.options, &bytes);
        native_put_back(lease);
        result = status == ONEPASS_OK ? PyLong_FromSize_t(bytes) : native_raise(status);
    }
    release(&r);
    return result;
}

/* ---- the floor --------------------------------------------------------------------------------------------------- */

static int is_contiguous(const onepass_tensor *t)
{
    int64_t expected = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->strides && t->shape[d] != 1 && t->strides[d] != expected)
            return 0;
        expected *= t->shape[d];
    }
    return 1;
}

static PyObject *probe(const native_tensor *data, const native_tensor *sink)
{
    const onepass_tensor *view = &data->view;
    size_t bytes = view->dtype.bits / 8u;
    for (int d = 0; d < view->ndim; d++)
        bytes *= (size_t)view->shape[d];
    if (!is_contiguous(view)) {
        PyErr_SetString(PyExc_ValueError, "read_probe: data: strided; it must be contiguous");
        return NULL;
    }
    native_lease *lease = native_take(view->device, data->stream, 0, ONEPASS_FP32_FULL);
    if (!lease)
        return NULL;
    return finish(lease, onepass_read_probe(lease->handle, (char *)view->data + view->byte_offset, bytes,
                                            (char *)sink->view.data + sink->view.byte_offset));
}

PyObject *native_read_probe(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || arguments[0] == Py_None || arguments[1] == Py_None) {
        PyErr_SetString(PyExc_TypeError, "read_probe(data, sink)");
        return NULL;
    }
    native_tensor data, sink;
    PyObject *result = NULL;
    if (native_read(arguments[0], "data", 1, &data) == 0) {
        if (native_read(arguments[1], "sink", 0, &sink) == 0)
            result = probe(&data, &sink);
        native_release(&sink);
    }
    native_release(&data);
    return result;
}
