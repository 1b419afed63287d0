/* The head (linear, batch normalisation, scale, softmax) for Python: output and gradients. */
#include "arguments.h"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

enum {
    INPUT,
    WEIGHT,
    OUTPUT,
    BIAS,
    GAMMA,
    BETA,
    SCALE,
    RUNNING_MEAN,
    RUNNING_VAR,
    BATCHES_TRACKED,
    PRODUCT,
    MEAN,
    RSTD,
    PREPARED,
    FORWARD_TENSORS
};

static const char *const forward_names[FORWARD_TENSORS] = {
    "input",        "weight",      "output",          "bias",    "gamma", "beta", "scale",
    "running_mean", "running_var", "batches_tracked", "product", "mean",  "rstd", "prepared"};

static PyObject *forward(const native_tensor *t, onepass_head_options *options, const native_place *place)
{
    options->bias = native_view(&t[BIAS]);
    options->gamma = native_view(&t[GAMMA]);
    options->beta = native_view(&t[BETA]);
    options->scale = native_view(&t[SCALE]);
    options->running_mean = native_view(&t[RUNNING_MEAN]);
    options->running_var = native_view(&t[RUNNING_VAR]);
    options->batches_tracked = native_view(&t[BATCHES_TRACKED]);
    const onepass_tensor *input = native_view(&t[INPUT]), *weight = native_view(&t[WEIGHT]),
                         *output = native_view(&t[OUTPUT]), *product = native_view(&t[PRODUCT]);
    native_lease *lease = native_take_products(&t[INPUT], place->threads, place->products);
    if (!lease)
        return NULL;
    onepass_status status =
        onepass_head_workspace_size(lease->handle, input, weight, options, output, product, &options->workspace_size);
    void *prepared = NULL;
    int ready = native_give_workspace(lease, place, status, options->workspace_size, &options->workspace) == 0 &&
                native_prepared(lease, "head", &t[WEIGHT], &t[PREPARED], &prepared) == 0;
    options->prepared_weight = prepared;
    if (ready) {
        /* A launch is shorter than giving the GIL away; work on the CPU is not. */
        PyThreadState *state = input->device.type == ONEPASS_CUDA ? NULL : PyEval_SaveThread();
        status = onepass_head(lease->handle, input, weight, options, output, product, native_view(&t[MEAN]),
                              native_view(&t[RSTD]));
        if (state)
            PyEval_RestoreThread(state);
    }
    return native_finish(lease, ready, status);
}

/*
 * head(input, weight, output, bias, gamma, beta, scale, running_mean, running_var, batches_tracked, product, mean,
 * rstd, prepared, statistics, cumulative, eps, momentum, products, threads, allocate): as in onepass.h; None is NULL.
 */
PyObject *native_head(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != FORWARD_TENSORS + 7) {
        PyErr_Format(PyExc_TypeError, "head takes %d arguments, not %zd", FORWARD_TENSORS + 7, count);
        return NULL;
    }
    PyObject *const *rest = arguments + FORWARD_TENSORS;
    onepass_head_options options = {.size = sizeof options};
    options.statistics = (onepass_statistics)native_integer(rest[0], "statistics");
    options.cumulative = native_integer(rest[1], "cumulative");
    options.eps = PyErr_Occurred() ? 0 : PyFloat_AsDouble(rest[2]);
    options.momentum = PyErr_Occurred() ? 0 : PyFloat_AsDouble(rest[3]);
    native_place place = native_read_place(arguments[INPUT], rest + 4);
    if (PyErr_Occurred())
        return NULL;
    native_tensor tensors[FORWARD_TENSORS];
    int failed, read = native_read_all(arguments, forward_names, FORWARD_TENSORS, tensors, &failed);
    PyObject *result = NULL;
    if (!failed && native_require("head", tensors, forward_names, 3) == 0)
        result = forward(tensors, &options, &place);
    native_release_all(tensors, read);
    return result;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

enum {
    GRAD_OUTPUT,
    B_OUTPUT,
    B_INPUT,
    B_WEIGHT,
    B_PRODUCT,
    B_MEAN,
    B_RSTD,
    B_BIAS,
    B_GAMMA,
    B_BETA,
    B_SCALE,
    GRAD_INPUT,
    GRAD_WEIGHT,
    GRAD_BIAS,
    GRAD_GAMMA,
    GRAD_BETA,
    GRAD_SCALE,
    BACKWARD_TENSORS
};

static const char *const backward_names[BACKWARD_TENSORS] = {
    "grad_output", "output", "input",      "weight",      "product",   "mean",       "rstd",      "bias",      "gamma",
    "beta",        "scale",  "grad_input", "grad_weight", "grad_bias", "grad_gamma", "grad_beta", "grad_scale"};

static PyObject *backward(const native_tensor *t, onepass_head_options *options, const native_place *place)
{
    options->bias = native_view(&t[B_BIAS]);
    options->gamma = native_view(&t[B_GAMMA]);
    options->beta = native_view(&t[B_BETA]);
    options->scale = native_view(&t[B_SCALE]);
    onepass_head_gradients gradients = {
        .size = sizeof gradients,
        .input = native_view(&t[GRAD_INPUT]),
        .weight = native_view(&t[GRAD_WEIGHT]),
        .bias = native_view(&t[GRAD_BIAS]),
        .gamma = native_view(&t[GRAD_GAMMA]),
        .beta = native_view(&t[GRAD_BETA]),
        .scale = native_view(&t[GRAD_SCALE]),
    };
    const onepass_tensor *input = native_view(&t[B_INPUT]), *weight = native_view(&t[B_WEIGHT]);
    native_lease *lease = native_take_products(&t[B_INPUT], place->threads, place->products);
    if (!lease)
        return NULL;
    onepass_status status =
        onepass_head_backward_workspace_size(lease->handle, input, weight, options, &options->workspace_size);
    int ready = native_give_workspace(lease, place, status, options->workspace_size, &options->workspace) == 0;
    if (ready) {
        PyThreadState *state = input->device.type == ONEPASS_CUDA ? NULL : PyEval_SaveThread();
        status = onepass_head_backward(lease->handle, native_view(&t[GRAD_OUTPUT]), native_view(&t[B_OUTPUT]), input,
                                       weight, native_view(&t[B_PRODUCT]), native_view(&t[B_MEAN]),
                                       native_view(&t[B_RSTD]), options, &gradients);
        if (state)
            PyEval_RestoreThread(state);
    }
    return native_finish(lease, ready, status);
}

/*
 * head_backward(grad_output, output, input, weight, product, mean, rstd, bias, gamma, beta, scale, grad_input,
 * grad_weight, grad_bias, grad_gamma, grad_beta, grad_scale, statistics, products, threads, allocate)
 */
PyObject *native_head_backward(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != BACKWARD_TENSORS + 4) {
        PyErr_Format(PyExc_TypeError, "head_backward takes %d arguments, not %zd", BACKWARD_TENSORS + 4, count);
        return NULL;
    }
    PyObject *const *rest = arguments + BACKWARD_TENSORS;
    onepass_head_options options = {.size = sizeof options};
    options.statistics = (onepass_statistics)native_integer(rest[0], "statistics");
    native_place place = native_read_place(arguments[B_INPUT], rest + 1);
    if (PyErr_Occurred())
        return NULL;
    native_tensor tensors[BACKWARD_TENSORS];
    int failed, read = native_read_all(arguments, backward_names, BACKWARD_TENSORS, tensors, &failed);
    PyObject *result = NULL;
    if (!failed && native_require("head_backward", tensors, backward_names, 7) == 0)
        result = backward(tensors, &options, &place);
    native_release_all(tensors, read);
    return result;
}
