/* The module onepass._native: its functions, its constants, and how a failure of the library becomes an exception. */
#include "native.h"

static PyObject *errors; /* {status: exception class}; onepass/errors.py has them */

PyObject *native_raise(onepass_status status)
{
    PyObject *number = PyLong_FromLong((long)status);
    PyObject *error = number && errors ? PyDict_GetItem(errors, number) : NULL; /* borrowed */
    PyErr_SetString(error ? error : PyExc_RuntimeError, onepass_last_error());
    Py_XDECREF(number);
    return NULL;
}

int native_integer(PyObject *object, const char *name, int32_t *number)
{
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred())
        return -1;
    *number = (int32_t)value;
    if (value == *number)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: %ld; it must fit 32 bits", name, value);
    return -1;
}

static PyObject *set_errors(PyObject *module, PyObject *given)
{
    (void)module;
    if (!PyDict_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "set_errors takes a dictionary");
        return NULL;
    }
    Py_INCREF(given);
    Py_XDECREF(errors);
    errors = given;
    Py_RETURN_NONE;
}

/* info(device_type, device_id): {"level": ..., "threads": ...} of a handle on it; an exception if there is none. */
static PyObject *info(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "info(device_type, device_id)");
        return NULL;
    }
    onepass_device device;
    if (native_integer(arguments[0], "info: device_type", &device.type) != 0 ||
        native_integer(arguments[1], "info: device_id", &device.id) != 0)
        return NULL;
    native_lease *lease = native_take(device, NULL, 0, ONEPASS_FP32_FULL);
    if (!lease)
        return NULL;
    PyObject *result =
        Py_BuildValue("{s:s,s:i}", "level", onepass_isa(lease->handle), "threads", (int)onepass_threads(lease->handle));
    native_put_back(lease);
    return result;
}

/* The stable ABI declares one kind of function and the flags say which it is: hence the cast through void. */
#define FASTCALL(function) ((PyCFunction)(void (*)(void))(native_function *)(function)), METH_FASTCALL

static PyMethodDef functions[] = {
    {"call", FASTCALL(native_call), "call(index, *tensors, *options, products, threads, workspace): see native.h."},
    {"workspace_size", FASTCALL(native_workspace_size), "workspace_size(index, *tensors, *options, products, threads)"},
    {"linear", FASTCALL(native_linear), "linear(index, input, weight, bias): the output, True or None: see native.h."},
    {"are_plain", native_are_plain, METH_O, "True if all tensors of a tuple are plain: see native.h."},
    {"register_plain", FASTCALL(native_register_plain), "What are_plain and linear ask: see native.h."},
    {"operators", native_operators, METH_NOARGS, "{name: (index, names of the tensors, names of the options)}"},
    {"read_probe", FASTCALL(native_read_probe), "read_probe(data, sink): reads memory and does nothing else."},
    {"info", FASTCALL(info), "The level and the threads of a handle on a device."},
    {"register_torch", FASTCALL(native_register_torch), "Makes torch's tensors known by their attributes."},
    {"set_errors", set_errors, METH_O, "The exception class of each status."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "_native",
    "The C library onepass, for the package of that name.",
    -1,
    functions,
    NULL,
    NULL,
    NULL,
    NULL,
};

/* Python 3.8's headers give the function no visibility of its own, and everything here is hidden. */
__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void)
{
    static const struct {
        const char *name;
        int value;
    } constants[] = {
        {"BATCHMEAN", ONEPASS_BATCHMEAN},
        {"MEAN", ONEPASS_MEAN},
        {"SUM", ONEPASS_SUM},
        {"ROWS", ONEPASS_ROWS},
        {"NONE", ONEPASS_NONE},
        {"DIVISOR", ONEPASS_DIVISOR},
        {"VALID", ONEPASS_VALID},
        {"KL", ONEPASS_KL},
        {"REVERSE_KL", ONEPASS_REVERSE_KL},
        {"JS", ONEPASS_JS},
        {"SKEW_KL", ONEPASS_SKEW_KL},
        {"SKEW_REVERSE_KL", ONEPASS_SKEW_REVERSE_KL},
        {"TOTAL_VARIATION", ONEPASS_TOTAL_VARIATION},
        {"TOP_LOG_PROBS", ONEPASS_TOP_LOG_PROBS},
        {"TOP_PROBS", ONEPASS_TOP_PROBS},
        {"TOP_LOGITS", ONEPASS_TOP_LOGITS},
        {"OUTSIDE_TAIL", ONEPASS_OUTSIDE_TAIL},
        {"OUTSIDE_ZERO", ONEPASS_OUTSIDE_ZERO},
        {"OUTSIDE_RENORMALISED", ONEPASS_OUTSIDE_RENORMALISED},
        {"OUTSIDE_SUBSET", ONEPASS_OUTSIDE_SUBSET},
        {"STRICT", ONEPASS_STRICT},
        {"FINITE", ONEPASS_FINITE},
        {"CPU", ONEPASS_CPU},
        {"CUDA", ONEPASS_CUDA},
        {"INT", ONEPASS_INT},
        {"UINT", ONEPASS_UINT},
        {"FLOAT", ONEPASS_FLOAT},
        {"BFLOAT", ONEPASS_BFLOAT},
        {"BOOL", ONEPASS_BOOL},
        {"BATCH_STATISTICS", ONEPASS_BATCH_STATISTICS},
        {"RUNNING_STATISTICS", ONEPASS_RUNNING_STATISTICS},
        {"FP32_FULL", ONEPASS_FP32_FULL},
        {"FP32_TF32", ONEPASS_FP32_TF32},
        {"FP32_SPLIT", ONEPASS_FP32_SPLIT},
        {"FP32_VENDOR", ONEPASS_FP32_VENDOR},
    };
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    int failed = PyModule_AddStringConstant(module, "version", onepass_version());
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        failed |= PyModule_AddIntConstant(module, constants[i].name, constants[i].value);
    if (failed || native_describe_operators() != 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
