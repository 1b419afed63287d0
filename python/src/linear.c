/* The linear layer for Python: output and gradients, and a weight prepared for many calls. */
#include "arguments.h"

enum { INPUT, WEIGHT, BIAS, OUTPUT, PREPARED, FORWARD_TENSORS };

static const char *const forward_names[FORWARD_TENSORS] = {"input", "weight", "bias", "output", "prepared"};

static PyObject *forward(const native_tensor *t, const native_place *place)
{
    native_lease *lease = native_take_products(&t[INPUT], place->threads, place->products);
    if (!lease)
        return NULL;
    size_t bytes = 0;
    void *workspace = NULL, *prepared = NULL;
    const onepass_tensor *input = native_view(&t[INPUT]), *weight = native_view(&t[WEIGHT]),
                         *bias = native_view(&t[BIAS]), *output = native_view(&t[OUTPUT]);
    onepass_status status = onepass_linear_workspace_size(lease->handle, input, weight, &bytes);
    int ready = native_give_workspace(lease, place, status, bytes, &workspace) == 0 &&
                native_prepared(lease, "linear", &t[WEIGHT], &t[PREPARED], &prepared) == 0;
    if (ready) {
        /* A launch is shorter than giving the GIL away; work on the CPU is not. */
        PyThreadState *state = input->device.type == ONEPASS_CUDA ? NULL : PyEval_SaveThread();
        status = prepared
                     ? onepass_linear_prepared(lease->handle, input, weight, prepared, bias, output, workspace, bytes)
                     : onepass_linear(lease->handle, input, weight, bias, output, workspace, bytes);
        if (state)
            PyEval_RestoreThread(state);
    }
    return native_finish(lease, ready, status);
}

/* linear(input, weight, bias, output, prepared, products, threads, allocate): as in onepass.h; None is NULL. */
PyObject *native_linear(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != FORWARD_TENSORS + 3) {
        PyErr_Format(PyExc_TypeError, "linear takes %d arguments, not %zd", FORWARD_TENSORS + 3, count);
        return NULL;
    }
    native_place place = native_read_place(arguments[INPUT], arguments + FORWARD_TENSORS);
    if (PyErr_Occurred())
        return NULL;
    native_tensor tensors[FORWARD_TENSORS];
    int failed, read = native_read_all(arguments, forward_names, FORWARD_TENSORS, tensors, &failed);
    PyObject *result = NULL;
    if (!failed && native_require("linear", tensors, forward_names, 2) == 0)
        result = forward(tensors, &place);
    native_release_all(tensors, read);
    return result;
}

enum { GRAD_OUTPUT, B_INPUT, B_WEIGHT, GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS, BACKWARD_TENSORS };

static const char *const backward_names[BACKWARD_TENSORS] = {"grad_output", "input",       "weight",
                                                             "grad_input",  "grad_weight", "grad_bias"};

static PyObject *backward(const native_tensor *t, const native_place *place)
{
    native_lease *lease = native_take_products(&t[B_INPUT], place->threads, place->products);
    if (!lease)
        return NULL;
    size_t bytes = 0;
    void *workspace = NULL;
    onepass_status status =
        onepass_linear_workspace_size(lease->handle, native_view(&t[B_INPUT]), native_view(&t[B_WEIGHT]), &bytes);
    int ready = native_give_workspace(lease, place, status, bytes, &workspace) == 0;
    if (ready) {
        PyThreadState *state = t[B_INPUT].view.device.type == ONEPASS_CUDA ? NULL : PyEval_SaveThread();
        status = onepass_linear_backward(lease->handle, native_view(&t[GRAD_OUTPUT]), native_view(&t[B_INPUT]),
                                         native_view(&t[B_WEIGHT]), native_view(&t[GRAD_INPUT]),
                                         native_view(&t[GRAD_WEIGHT]), native_view(&t[GRAD_BIAS]), workspace, bytes);
        if (state)
            PyEval_RestoreThread(state);
    }
    return native_finish(lease, ready, status);
}

/* linear_backward(grad_output, input, weight, grad_input, grad_weight, grad_bias, products, threads, allocate) */
PyObject *native_linear_backward(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != BACKWARD_TENSORS + 3) {
        PyErr_Format(PyExc_TypeError, "linear_backward takes %d arguments, not %zd", BACKWARD_TENSORS + 3, count);
        return NULL;
    }
    native_place place = native_read_place(arguments[B_INPUT], arguments + BACKWARD_TENSORS);
    if (PyErr_Occurred())
        return NULL;
    native_tensor tensors[BACKWARD_TENSORS];
    int failed, read = native_read_all(arguments, backward_names, BACKWARD_TENSORS, tensors, &failed);
    PyObject *result = NULL;
    if (!failed && native_require("linear_backward", tensors, backward_names, 3) == 0)
        result = backward(tensors, &place);
    native_release_all(tensors, read);
    return result;
}

/* ---- prepared weights -------------------------------------------------------------------------------------------- */

enum { P_WEIGHT, P_PREPARED, PREPARE_TENSORS };

static const char *const prepare_names[PREPARE_TENSORS] = {"weight", "prepared"};

static PyObject *prepare(const native_tensor *t, int32_t products)
{
    native_lease *lease = native_take_products(&t[P_WEIGHT], 0, products);
    if (!lease)
        return NULL;
    void *prepared = NULL;
    int ready = native_prepared(lease, "prepare_weight", &t[P_WEIGHT], &t[P_PREPARED], &prepared) == 0;
    onepass_status status = ONEPASS_OK;
    if (ready)
        status = onepass_prepare_weight(lease->handle, native_view(&t[P_WEIGHT]), prepared,
                                        (size_t)t[P_PREPARED].view.shape[0]);
    return native_finish(lease, ready, status);
}

/* prepare_weight(weight, prepared, products): as in onepass.h, into a tensor of bytes. */
PyObject *native_prepare_weight(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != PREPARE_TENSORS + 1) {
        PyErr_Format(PyExc_TypeError, "prepare_weight takes %d arguments, not %zd", PREPARE_TENSORS + 1, count);
        return NULL;
    }
    int32_t products = native_integer(arguments[PREPARE_TENSORS], "products");
    if (PyErr_Occurred())
        return NULL;
    native_tensor tensors[PREPARE_TENSORS];
    int failed, read = native_read_all(arguments, prepare_names, PREPARE_TENSORS, tensors, &failed);
    PyObject *result = NULL;
    if (!failed && native_require("prepare_weight", tensors, prepare_names, PREPARE_TENSORS) == 0)
        result = prepare(tensors, products);
    native_release_all(tensors, read);
    return result;
}

static PyObject *size_of_prepared(const native_tensor *weight, int32_t products)
{
    native_lease *lease = native_take_products(weight, 0, products);
    if (!lease)
        return NULL;
    size_t bytes = 0;
    onepass_status status = onepass_prepare_weight_size(lease->handle, native_view(weight), &bytes);
    native_put_back(lease);
    return status == ONEPASS_OK ? PyLong_FromSize_t(bytes) : native_raise(status);
}

/* prepare_weight_size(weight, products): the bytes that prepare_weight needs. */
PyObject *native_prepare_weight_size(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "prepare_weight_size takes 2 arguments, not %zd", count);
        return NULL;
    }
    int32_t products = native_integer(arguments[1], "products");
    if (PyErr_Occurred())
        return NULL;
    native_tensor weight;
    PyObject *result = NULL;
    if (native_read(arguments[0], "weight", &weight) == 0 &&
        native_require("prepare_weight_size", &weight, prepare_names, 1) == 0)
        result = size_of_prepared(&weight, products);
    native_release(&weight);
    return result;
}
