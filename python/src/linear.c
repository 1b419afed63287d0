/* The linear layer for Python: output and gradients. */
#include "arguments.h"

enum { INPUT, WEIGHT, BIAS, OUTPUT, FORWARD_TENSORS };

static const char *const forward_names[FORWARD_TENSORS] = {"input", "weight", "bias", "output"};

static PyObject *forward(const native_tensor *t, const native_place *place)
{
    native_lease *lease = native_take_products(&t[INPUT], place->threads, place->products);
    if (!lease)
        return NULL;
    size_t bytes = 0;
    void *workspace = NULL;
    onepass_status status =
        onepass_linear_workspace_size(lease->handle, native_view(&t[INPUT]), native_view(&t[WEIGHT]), &bytes);
    int ready = native_give_workspace(lease, place, status, bytes, &workspace) == 0;
    if (ready) {
        /* A launch is shorter than giving the GIL away; work on the CPU is not. */
        PyThreadState *state = t[INPUT].view.device.type == ONEPASS_CUDA ? NULL : PyEval_SaveThread();
        status = onepass_linear(lease->handle, native_view(&t[INPUT]), native_view(&t[WEIGHT]), native_view(&t[BIAS]),
                                native_view(&t[OUTPUT]), workspace, bytes);
        if (state)
            PyEval_RestoreThread(state);
    }
    native_put_back(lease);
    if (!ready)
        return NULL;
    if (status != ONEPASS_OK)
        return native_raise(status);
    Py_RETURN_NONE;
}

/* linear(input, weight, bias, output, products, threads, allocate): as in onepass.h; None is NULL. */
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
    native_put_back(lease);
    if (!ready)
        return NULL;
    if (status != ONEPASS_OK)
        return native_raise(status);
    Py_RETURN_NONE;
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
