/*
 * Python objects as tensors. Three ways in, the fastest first:
 *  1. the DLPack exchange API of the object's type (torch 2.10 and later): a C call, no Python object is made;
 *  2. for torch.Tensor without it, its own attributes;
 *  3. __dlpack__, which NumPy, CuPy, JAX and others have.
 * None of them copies or waits.
 */
#include "native.h"

/* ---- 1. the exchange API ----------------------------------------------------------------------------------------- */

enum { KNOWN_TYPES = 8 };

/* Types met before. A type without the exchange API is remembered too, with NULL. */
static struct {
    PyTypeObject *type;
    const dlpack_exchange *exchange;
} known[KNOWN_TYPES];

/* The exchange API a type carries, NULL if none that we understand; never an exception. */
static const dlpack_exchange *find_exchange(PyTypeObject *type)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const dlpack_exchange *exchange = NULL;
    if (capsule && PyCapsule_CheckExact(capsule)) /* an early draft had an integer here: not accepted */
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule); /* the table behind it lives as long as the process */
    while (exchange && exchange->version.major > DLPACK_MAJOR)
        exchange = exchange->older;
    if (exchange && (exchange->version.major != DLPACK_MAJOR || !exchange->tensor_from_object))
        exchange = NULL;
    return exchange;
}

static const dlpack_exchange *exchange_of(PyTypeObject *type)
{
    for (int i = 0; i < KNOWN_TYPES && known[i].type; i++)
        if (known[i].type == type)
            return known[i].exchange;
    const dlpack_exchange *exchange = find_exchange(type);
    for (int i = 0; i < KNOWN_TYPES; i++)
        if (!known[i].type) {
            Py_INCREF(type); /* or another type might be made at its address */
            known[i].type = type;
            known[i].exchange = exchange;
            break;
        }
    return exchange;
}

static int read_exchange(PyObject *object, const dlpack_exchange *exchange, native_tensor *tensor)
{
    if (exchange->tensor_from_object(object, &tensor->view) != 0)
        return -1;
    if (tensor->wants_stream && tensor->view.device.type == DLPACK_CUDA && exchange->current_stream)
        return exchange->current_stream(DLPACK_CUDA, tensor->view.device.id, &tensor->stream);
    return 0;
}

/* ---- 2. torch's attributes --------------------------------------------------------------------------------------- */

static struct {
    PyObject *type;     /* torch.Tensor; NULL: torch has not been imported by onepass */
    PyObject *dtypes;   /* {torch.float32: (code, bits), ...} */
    PyObject *cpu;      /* torch.device("cpu") */
    PyObject *stream;   /* torch._C._cuda_getCurrentRawStream, or None */
    PyObject *names[5]; /* interned */
} torch;

enum { DATA_PTR, SHAPE, STRIDE, DTYPE, DEVICE };

PyObject *native_register_torch(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    static const char *const names[] = {"data_ptr", "shape", "stride", "dtype", "device"};
    (void)module;
    if (count != 4 || !PyType_Check(arguments[0]) || !PyDict_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "register_torch(Tensor, dtypes, cpu, current_raw_stream)");
        return NULL;
    }
    for (int i = 0; i < 5; i++)
        if (!torch.names[i] && !(torch.names[i] = PyUnicode_InternFromString(names[i])))
            return NULL;
    PyObject **const kept[] = {&torch.type, &torch.dtypes, &torch.cpu, &torch.stream};
    for (int i = 0; i < 4; i++) {
        PyObject *before = *kept[i];
        Py_INCREF(arguments[i]);
        *kept[i] = arguments[i];
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

/* Room for shape and strides of `ndim` dimensions. */
static int64_t *dimensions(native_tensor *tensor, Py_ssize_t ndim)
{
    if (ndim <= NATIVE_ROOM)
        return tensor->room;
    tensor->more = PyMem_Malloc((size_t)ndim * 2 * sizeof(int64_t));
    if (!tensor->more)
        PyErr_NoMemory();
    return tensor->more;
}

/* A tuple of integers; takes the reference. */
static int read_integers(PyObject *tuple, Py_ssize_t count, int64_t *into)
{
    int result = tuple && PyTuple_Check(tuple) && PyTuple_Size(tuple) == count ? 0 : -1;
    if (tuple && result != 0)
        PyErr_Format(PyExc_TypeError, "a tensor's shape or stride is %R, not %zd integers", tuple, count);
    for (Py_ssize_t i = 0; i < count && result == 0; i++) {
        into[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        result = into[i] == -1 && PyErr_Occurred() ? -1 : 0;
    }
    Py_XDECREF(tuple);
    return result;
}

static int read_torch_dtype(PyObject *object, onepass_dtype *dtype)
{
    PyObject *given = PyObject_GetAttr(object, torch.names[DTYPE]);
    PyObject *pair = given ? PyDict_GetItem(torch.dtypes, given) : NULL; /* borrowed */
    int64_t code_bits[2] = {0, 0};
    Py_XINCREF(pair);
    int result = given && pair ? read_integers(pair, 2, code_bits) : -1;
    if (given && !pair)
        PyErr_Format(PyExc_TypeError, "onepass does not know %R", given);
    Py_XDECREF(given);
    *dtype = (onepass_dtype){(uint8_t)code_bits[0], (uint8_t)code_bits[1], 1};
    return result;
}

static int read_torch_cuda(PyObject *device, native_tensor *tensor)
{
    PyObject *index = PyObject_GetAttrString(device, "index"), *stream = NULL;
    if (index)
        tensor->view.device = (onepass_device){ONEPASS_CUDA, (int32_t)PyLong_AsLong(index)};
    if (index && tensor->wants_stream && !PyErr_Occurred())
        stream = PyObject_CallFunctionObjArgs(torch.stream, index, NULL);
    if (stream)
        tensor->stream = PyLong_AsVoidPtr(stream);
    Py_XDECREF(stream);
    Py_XDECREF(index);
    return PyErr_Occurred() ? -1 : 0;
}

/* The CPU is told by comparing devices: device.type makes a new string, which costs as much as all the rest here. */
static int read_torch_device(PyObject *object, native_tensor *tensor)
{
    PyObject *device = PyObject_GetAttr(object, torch.names[DEVICE]);
    int is_cpu = device ? PyObject_RichCompareBool(device, torch.cpu, Py_EQ) : -1;
    int result = is_cpu == 1 ? 0 : -1;
    tensor->view.device.type = ONEPASS_CPU;
    if (is_cpu == 0) {
        PyObject *type = PyObject_GetAttrString(device, "type");
        if (type && PyUnicode_CompareWithASCIIString(type, "cuda") == 0)
            result = read_torch_cuda(device, tensor);
        else if (type)
            PyErr_Format(PyExc_TypeError, "onepass works on the CPU and on CUDA devices, this is %S", device);
        Py_XDECREF(type);
    }
    Py_XDECREF(device);
    return result;
}

static int read_torch(PyObject *object, native_tensor *tensor)
{
    PyObject *shape = PyObject_GetAttr(object, torch.names[SHAPE]);
    if (!shape)
        return -1;
    Py_ssize_t ndim = PyTuple_Check(shape) ? PyTuple_Size(shape) : -1;
    if (ndim < 0)
        PyErr_Format(PyExc_TypeError, "a tensor's shape is %R, not a tuple", shape);
    int64_t *room = ndim < 0 ? NULL : dimensions(tensor, ndim);
    if (!room) {
        Py_DECREF(shape);
        return -1;
    }
    tensor->view.ndim = (int32_t)ndim;
    tensor->view.shape = room;
    tensor->view.strides = room + ndim;
    if (read_integers(shape, ndim, room) != 0 ||
        read_integers(PyObject_CallMethodObjArgs(object, torch.names[STRIDE], NULL), ndim, room + ndim) != 0)
        return -1;
    PyObject *address = PyObject_CallMethodObjArgs(object, torch.names[DATA_PTR], NULL);
    if (!address)
        return -1;
    tensor->view.data = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    if (PyErr_Occurred() || read_torch_dtype(object, &tensor->view.dtype) != 0)
        return -1;
    return read_torch_device(object, tensor);
}

/* ---- 3. __dlpack__ ----------------------------------------------------------------------------------------------- */

/* object.__dlpack__(**keywords), NULL with an exception. `keywords` may be NULL. */
static PyObject *call_dlpack(PyObject *object, PyObject *keywords)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *nothing = method ? PyTuple_New(0) : NULL;
    PyObject *capsule = nothing ? PyObject_Call(method, nothing, keywords) : NULL;
    Py_XDECREF(nothing);
    Py_XDECREF(method);
    return capsule;
}

/* The capsule. A producer of today wants to be told that we know versions (NumPy gives a read-only array only then),
 * one of yesterday does not know the keyword. A CUDA producer makes its data ready for the legacy stream, number 1. */
static PyObject *dlpack_capsule(PyObject *object, int device_type)
{
    PyObject *keywords = device_type == DLPACK_CUDA ? Py_BuildValue("{s:(ii),s:i}", "max_version", 1, 0, "stream", 1)
                                                    : Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
    PyObject *capsule = keywords ? call_dlpack(object, keywords) : NULL;
    if (!capsule && keywords && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        if (PyDict_DelItemString(keywords, "max_version") == 0)
            capsule = call_dlpack(object, PyDict_Size(keywords) ? keywords : NULL);
    }
    Py_XDECREF(keywords);
    return capsule;
}

static int read_dlpack(PyObject *object, native_tensor *tensor)
{
    PyObject *pair = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    PyObject *type = pair && PyTuple_Check(pair) ? PyTuple_GetItem(pair, 0) : NULL; /* borrowed */
    long device_type = type ? PyLong_AsLong(type) : -1;
    Py_XDECREF(pair);
    if (PyErr_Occurred())
        return -1;
    PyObject *capsule = dlpack_capsule(object, (int)device_type);
    if (!capsule)
        return -1;
    /* Renamed, a capsule no longer frees what it points to: that is ours to give back now. */
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        dlpack_versioned *versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (versioned->version.major == DLPACK_MAJOR && PyCapsule_SetName(capsule, "used_dltensor_versioned") == 0) {
            tensor->versioned = versioned;
            tensor->view = versioned->tensor;
        }
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
        if (PyCapsule_SetName(capsule, "used_dltensor") == 0) {
            tensor->managed = managed;
            tensor->view = managed->tensor;
        }
    }
    Py_DECREF(capsule);
    if (!tensor->versioned && !tensor->managed && !PyErr_Occurred())
        PyErr_Format(PyExc_BufferError, "%R gave no DLPack capsule that onepass understands", Py_TYPE(object));
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static int read_any(PyObject *object, const char *name, native_tensor *tensor)
{
    const dlpack_exchange *exchange = exchange_of(Py_TYPE(object));
    if (exchange)
        return read_exchange(object, exchange, tensor);
    int is_torch = torch.type ? PyObject_IsInstance(object, torch.type) : 0;
    if (is_torch != 0)
        return is_torch < 0 ? -1 : read_torch(object, tensor);
    if (PyObject_HasAttrString(object, "__dlpack__"))
        return read_dlpack(object, tensor);
    PyErr_Format(PyExc_TypeError, "%s: %R is not a tensor: it has no __dlpack__", name, Py_TYPE(object));
    return -1;
}

int native_read(PyObject *object, const char *name, int wants_stream, native_tensor *tensor)
{
    tensor->wants_stream = wants_stream;
    tensor->stream = NULL;
    tensor->more = NULL;
    tensor->managed = NULL;
    tensor->versioned = NULL;
    tensor->view = (onepass_tensor){0};
    if (read_any(object, name, tensor) != 0)
        return -1;
    if (tensor->view.device.type == DLPACK_CUDA_HOST)
        tensor->view.device = (onepass_device){ONEPASS_CPU, 0};
    if (tensor->view.device.type == DLPACK_CUDA_MANAGED)
        tensor->view.device.type = ONEPASS_CUDA;
    return 0;
}

int native_read_bytes(PyObject *object, const char *name, onepass_device device, native_tensor *tensor)
{
    if (native_read(object, name, 0, tensor) != 0)
        return -1;
    const onepass_tensor *view = &tensor->view;
    int is_bytes = view->dtype.code == ONEPASS_UINT && view->dtype.bits == 8 && view->dtype.lanes == 1;
    if (!is_bytes || view->ndim != 1 || (view->strides && view->shape[0] > 1 && view->strides[0] != 1)) {
        PyErr_Format(PyExc_ValueError,
                     "%s: %d dimensions, elements of %d bits; it must be contiguous uint8 of one dimension", name,
                     (int)view->ndim, (int)view->dtype.bits);
        return -1;
    }
    if (view->device.type != device.type || view->device.id != device.id) {
        PyErr_Format(PyExc_ValueError, "%s: on device %d:%d; it must be on that of the call, %d:%d", name,
                     (int)view->device.type, (int)view->device.id, (int)device.type, (int)device.id);
        return -1;
    }
    return 0;
}

void native_release(native_tensor *tensor)
{
    PyMem_Free(tensor->more);
    if (!tensor->managed && !tensor->versioned)
        return;
    /* The owner may run Python code now, which must not meet the exception of a failed call. */
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (tensor->managed && tensor->managed->deleter)
        tensor->managed->deleter(tensor->managed);
    if (tensor->versioned && tensor->versioned->deleter)
        tensor->versioned->deleter(tensor->versioned);
    PyErr_Restore(type, value, traceback);
}
