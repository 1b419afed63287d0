/*
 * Plain tensors: strided memory of torch.Tensor's or torch.nn.Parameter's own class. Whether tensors are, for the
 * router; and a linear layer of such tensors on the CPU in one crossing: whether the call is one, whether it wants
 * gradients, its output, its product. Neither ever refuses a call: for any other the answer is no, nothing has
 * happened, and Python, which knows every way a call may go, begins.
 */
#include "native.h"

enum { TYPES = 2 };
enum { INPUT, WEIGHT, BIAS, TENSORS };

static struct {
    PyObject *types[TYPES];    /* torch.Tensor, torch.nn.Parameter; NULL: nothing is registered, no call is plain */
    PyObject *guards;          /* a tuple of functions; if one of them gives something true, somebody looks on */
    PyObject *is_grad_enabled; /* torch.is_grad_enabled */
    PyObject *is_neg;          /* torch.Tensor.is_neg */
    PyObject *empty;           /* empty(size, stride, dtype) */
    PyObject *threads;         /* torch.get_num_threads */
    PyObject *workspace;       /* allocate(tensor, bytes) */
    PyObject *requires_grad, *dtype; /* interned */
} plain;

PyObject *native_register_plain(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    PyObject **const kept[] = {&plain.types[0], &plain.types[1], &plain.guards,  &plain.is_grad_enabled,
                               &plain.is_neg,   &plain.empty,    &plain.threads, &plain.workspace};
    (void)module;
    if (count != sizeof kept / sizeof kept[0] || !PyTuple_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "register_plain(Tensor, Parameter, guards, is_grad_enabled, is_neg, empty, "
                                         "threads, workspace)");
        return NULL;
    }
    if (!plain.requires_grad && !(plain.requires_grad = PyUnicode_InternFromString("requires_grad")))
        return NULL;
    if (!plain.dtype && !(plain.dtype = PyUnicode_InternFromString("dtype")))
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *before = *kept[i];
        Py_INCREF(arguments[i]);
        *kept[i] = arguments[i];
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

/* 1 if the object is true, 0 if not, -1 with an exception set; takes the reference. */
static int is_true(PyObject *object)
{
    int result = object ? PyObject_IsTrue(object) : -1;
    Py_XDECREF(object);
    return result;
}

/* The same of three questions. */
static int is_watched(void)
{
    int result = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(plain.guards) && result == 0; i++)
        result = is_true(PyObject_CallObject(PyTuple_GetItem(plain.guards, i), NULL));
    return result;
}

static int wants_gradients(PyObject *const *tensors)
{
    int result = is_true(PyObject_CallObject(plain.is_grad_enabled, NULL));
    if (result != 1)
        return result;
    result = 0;
    for (int i = 0; i < TENSORS && result == 0; i++)
        if (tensors[i] != Py_None)
            result = is_true(PyObject_GetAttr(tensors[i], plain.requires_grad));
    return result;
}

/* The imaginary part of a conjugate is in memory without its sign. */
static int is_negated(PyObject *tensor)
{
    return is_true(PyObject_CallFunctionObjArgs(plain.is_neg, tensor, NULL));
}

static int has_plain_type(PyObject *object)
{
    for (int i = 0; i < TYPES; i++)
        if ((PyObject *)Py_TYPE(object) == plain.types[i])
            return 1;
    return 0;
}

/* ---- are tensors plain ------------------------------------------------------------------------------------------- */

/* 1 or 0, or -1 with an exception set. *device is that of the tensors so far; its type is 0 before the first one. */
static int is_plain(PyObject *object, onepass_device *device)
{
    native_tensor seen;
    if (!has_plain_type(object))
        return 0;
    int is_one = native_read(object, "plain", 0, &seen) == 0;
    onepass_device found = seen.view.device;
    PyErr_Clear(); /* no strided memory */
    native_release(&seen);
    if (device->type == 0)
        *device = found;
    if (!is_one || found.type != device->type || found.id != device->id ||
        (found.type != ONEPASS_CPU && found.type != ONEPASS_CUDA))
        return 0;
    int is_other = is_negated(object);
    return is_other < 0 ? -1 : !is_other;
}

PyObject *native_are_plain(PyObject *module, PyObject *tensors)
{
    (void)module;
    if (!PyTuple_Check(tensors)) {
        PyErr_SetString(PyExc_TypeError, "are_plain takes a tuple");
        return NULL;
    }
    onepass_device device = {0, 0};
    int result = plain.types[0] != NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(tensors) && result == 1; i++) {
        PyObject *tensor = PyTuple_GetItem(tensors, i);
        if (tensor != Py_None)
            result = is_plain(tensor, &device);
    }
    return result < 0 ? NULL : PyBool_FromLong(result);
}

/* ---- does a linear layer fit ------------------------------------------------------------------------------------- */

static int is_float(onepass_dtype type)
{
    int bits = type.bits;
    return type.lanes == 1 && ((type.code == ONEPASS_FLOAT && (bits == 16 || bits == 32 || bits == 64)) ||
                               (type.code == ONEPASS_BFLOAT && bits == 16));
}

static int same_type(onepass_dtype a, onepass_dtype b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/* True of tensors [..., K], [N, K] and [N], or no third one, of one floating-point type. */
static int fits(const onepass_tensor *input, const onepass_tensor *weight, const onepass_tensor *bias)
{
    if (!is_float(input->dtype) || !same_type(input->dtype, weight->dtype) || input->ndim < 1 ||
        input->ndim > NATIVE_ROOM || weight->ndim != 2 || input->shape[input->ndim - 1] != weight->shape[1])
        return 0;
    return !bias || (same_type(bias->dtype, input->dtype) && bias->ndim == 1 && bias->shape[0] == weight->shape[0]);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* A tuple of integers. */
static PyObject *tuple_of(const int64_t *numbers, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (!number || PyTuple_SetItem(tuple, i, number) != 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* A contiguous tensor [..., N] of the input's type. */
static PyObject *new_output(PyObject *like, const onepass_tensor *input, int64_t columns)
{
    int64_t shape[NATIVE_ROOM], strides[NATIVE_ROOM], step = 1;
    for (int d = input->ndim - 1; d >= 0; d--) {
        shape[d] = d == input->ndim - 1 ? columns : input->shape[d];
        strides[d] = step;
        step *= shape[d] > 1 ? shape[d] : 1; /* as PyTorch counts where an extent is 0 */
    }
    PyObject *size = tuple_of(shape, input->ndim), *stride = tuple_of(strides, input->ndim);
    PyObject *dtype = PyObject_GetAttr(like, plain.dtype);
    PyObject *output =
        size && stride && dtype ? PyObject_CallFunctionObjArgs(plain.empty, size, stride, dtype, NULL) : NULL;
    Py_XDECREF(dtype);
    Py_XDECREF(stride);
    Py_XDECREF(size);
    return output;
}

/* The product of tensors that fit into a new output. */
static PyObject *multiply(PyObject *index, PyObject *like, const onepass_tensor *const *views)
{
    PyObject *output = new_output(like, views[INPUT], views[WEIGHT]->shape[0]);
    PyObject *threads = output ? PyObject_CallObject(plain.threads, NULL) : NULL, *done = NULL;
    native_tensor seen;
    int32_t count;
    if (threads && native_integer(threads, "threads", &count) == 0) {
        if (native_read(output, "output", 0, &seen) == 0) {
            const onepass_tensor *all[] = {views[INPUT], views[WEIGHT], views[BIAS], NULL, &seen.view};
            done = native_call_on_cpu(index, like, all, sizeof all / sizeof all[0], count, plain.workspace);
        }
        native_release(&seen);
    }
    Py_XDECREF(threads);
    if (!done)
        Py_CLEAR(output);
    Py_XDECREF(done);
    return output;
}

/* 1 if nobody but the library and autograd needs to see a call with these tensors, 0 if somebody does, -1 with an
 * exception set. */
static int is_unseen(PyObject *const *tensors)
{
    int is_seen = is_watched();
    for (int i = 0; i < TENSORS && is_seen == 0; i++)
        if (tensors[i] != Py_None)
            is_seen = is_negated(tensors[i]);
    return is_seen < 0 ? -1 : !is_seen;
}

/* The output, or True if a gradient is wanted. The guards have been asked: a mode sees attributes that are, too. */
static PyObject *output_or_true(PyObject *index, PyObject *const *tensors, const onepass_tensor *const *views)
{
    int wants = wants_gradients(tensors);
    if (wants != 0)
        return wants < 0 ? NULL : PyBool_FromLong(1);
    return multiply(index, tensors[INPUT], views);
}

PyObject *native_linear(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 1 + TENSORS) {
        PyErr_SetString(PyExc_TypeError, "linear(index, input, weight, bias)");
        return NULL;
    }
    PyObject *const *tensors = arguments + 1;
    int given = tensors[BIAS] == Py_None ? BIAS : TENSORS, read = 0, is_one = plain.types[0] != NULL;
    for (int i = 0; i < given && is_one; i++)
        is_one = has_plain_type(tensors[i]);
    native_tensor seen[TENSORS];
    const onepass_tensor *views[TENSORS] = {NULL};
    while (read < given && is_one) { /* before all else: a GPU's call goes on at once */
        native_tensor *tensor = &seen[read];
        views[read] = &tensor->view;
        is_one = native_read(tensors[read++], "linear", 0, tensor) == 0 && tensor->view.device.type == ONEPASS_CPU;
    }
    PyErr_Clear(); /* sparse, meta, of a type that is nobody's: Python asks again, and says so */
    if (is_one && fits(views[INPUT], views[WEIGHT], views[BIAS]))
        is_one = is_unseen(tensors);
    else
        is_one = 0;
    PyObject *output = is_one > 0 ? output_or_true(arguments[0], tensors, views) : NULL;
    while (read > 0)
        native_release(&seen[--read]);
    if (is_one != 0)
        return output;
    Py_RETURN_NONE;
}
