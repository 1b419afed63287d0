/* KL divergence for Python: the four entry points behind one function. */
#include "arguments.h"

typedef onepass_status entry(onepass_handle *, const onepass_tensor *, const onepass_tensor *,
                             const onepass_kl_options *, const onepass_tensor *, const onepass_tensor *,
                             const onepass_tensor *);

/* By form: bit 0, the predictions are logarithms; bit 1, the targets are. */
static entry *const entries[] = {onepass_kl_probs_probs, onepass_kl_log_probs_probs, onepass_kl_probs_log_probs,
                                 onepass_kl_log_probs_log_probs};

enum {
    PREDICTIONS,
    TARGETS,
    ROW_WEIGHTS,
    ROW_MASK,
    GRAD_VALUE,
    GRAD_MADE_FOR,
    VALUE,
    GRAD_PREDICTIONS,
    GRAD_TARGETS,
    TENSORS
};

static const char *const names[TENSORS] = {"predictions",   "targets", "row_weights",      "row_mask",    "grad_value",
                                           "grad_made_for", "value",   "grad_predictions", "grad_targets"};

/* Gives a GPU the workspace it needs. 0, or -1 with an exception. */
static int give_workspace(native_lease *lease, const native_tensor *predictions, PyObject *const *arguments,
                          onepass_kl_options *options)
{
    onepass_status status =
        onepass_kl_workspace_size(lease->handle, &predictions->view, options, &options->workspace_size);
    if (status != ONEPASS_OK) {
        native_raise(status);
        return -1;
    }
    if (options->workspace_size == 0)
        return 0;
    options->workspace = native_workspace(lease, options->workspace_size, arguments[1], arguments[14]);
    return options->workspace ? 0 : -1;
}

static PyObject *call(entry *function, const native_tensor *t, onepass_kl_options *options, int32_t threads,
                      PyObject *const *arguments)
{
    native_lease *lease = native_take(&t[PREDICTIONS], threads);
    if (!lease)
        return NULL;
    int is_cuda = t[PREDICTIONS].view.device.type == ONEPASS_CUDA;
    int ready = !is_cuda || give_workspace(lease, &t[PREDICTIONS], arguments, options) == 0;
    onepass_status status = ONEPASS_OK;
    if (ready) {
        /* A launch is shorter than giving the GIL away; work on the CPU is not. */
        PyThreadState *state = is_cuda ? NULL : PyEval_SaveThread();
        status = function(lease->handle, native_view(&t[PREDICTIONS]), native_view(&t[TARGETS]), options,
                          native_view(&t[VALUE]), native_view(&t[GRAD_PREDICTIONS]), native_view(&t[GRAD_TARGETS]));
        if (state)
            PyEval_RestoreThread(state);
    }
    return native_finish(lease, ready, status);
}

/*
 * kl(form, predictions, targets, reduction, semantics, divisor, row_weights, row_mask, grad_value, grad_made_for,
 * value, grad_predictions, grad_targets, threads, allocate): as in onepass.h; None is NULL.
 */
PyObject *native_kl(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    static const int places[TENSORS] = {1, 2, 6, 7, 8, 9, 10, 11, 12};
    (void)module;
    if (count != 15) {
        PyErr_Format(PyExc_TypeError, "kl takes 15 arguments, not %zd", count);
        return NULL;
    }
    onepass_kl_options options = {.size = sizeof options, .divisor = PyFloat_AsDouble(arguments[5])};
    int32_t form = native_integer(arguments[0], "kl: form");
    options.reduction = (onepass_reduction)native_integer(arguments[3], "kl: reduction");
    options.semantics = (onepass_semantics)native_integer(arguments[4], "kl: semantics");
    int32_t threads = native_integer(arguments[13], "kl: threads");
    if (PyErr_Occurred())
        return NULL;
    if (form < 0 || form > 3) {
        PyErr_Format(PyExc_ValueError, "kl: form: %d; it must be from 0 to 3", (int)form);
        return NULL;
    }

    native_tensor tensors[TENSORS];
    int read = 0, failed = 0;
    while (read < TENSORS && !failed) {
        failed = native_read(arguments[places[read]], names[read], &tensors[read]) != 0;
        read++;
    }
    PyObject *result = NULL;
    if (!failed && !tensors[PREDICTIONS].present) {
        PyErr_SetString(PyExc_TypeError, "kl: predictions: None; they are required");
    } else if (!failed) {
        options.row_weights = native_view(&tensors[ROW_WEIGHTS]);
        options.row_mask = native_view(&tensors[ROW_MASK]);
        options.grad_value = native_view(&tensors[GRAD_VALUE]);
        options.grad_made_for = native_view(&tensors[GRAD_MADE_FOR]);
        result = call(entries[form], tensors, &options, threads, arguments);
    }
    while (read > 0)
        native_release(&tensors[--read]);
    return result;
}
