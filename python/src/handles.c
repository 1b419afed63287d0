/*
 * The handles calls are made with. A handle serves one call at a time. One of the CPU is taken for the length of the
 * call and put back, so that threads which call at the same time have one each; one of a GPU belongs to a device and a
 * stream (and to a way of multiplying fp32 matrices), and is used by one call at a time because that call holds the GIL
 * (a launch is short). None is destroyed while the process lives: a graph that was captured with it may be replayed at
 * any time.
 */
#include <stdlib.h>

#include "native.h"

enum { LEAST_WORKSPACE = 1 << 16 }; /* bytes */

static native_lease *leases;

static native_lease *find(onepass_device device, void *stream, int32_t threads, int32_t products)
{
    for (native_lease *l = leases; l; l = l->next)
        if (!l->taken && l->device.type == device.type && l->device.id == device.id && l->stream == stream &&
            l->threads == threads && l->products == products)
            return l;
    return NULL;
}

static native_lease *create(onepass_device device, void *stream, int32_t threads, int32_t products)
{
    native_lease *l = calloc(1, sizeof *l);
    if (!l) {
        PyErr_NoMemory();
        return NULL;
    }
    onepass_config config = {.size = sizeof config, .device = device, .stream = stream, .threads = threads};
    config.fp32_products = products;
    config.trust_addresses = device.type == ONEPASS_CUDA; /* 1: skip the pointer check; the tensor says where it is */
    onepass_status status = onepass_create(&config, &l->handle);
    if (status != ONEPASS_OK) {
        free(l);
        native_raise(status);
        return NULL;
    }
    l->device = device;
    l->stream = stream;
    l->threads = threads;
    l->products = products;
    l->next = leases;
    leases = l;
    return l;
}

native_lease *native_take(onepass_device device, void *stream, int32_t threads, int32_t products)
{
    if (device.type == ONEPASS_CUDA) {
        threads = 0;
    } else {
        stream = NULL;
        products = 0;
    }
    native_lease *l = find(device, stream, threads, products);
    if (!l)
        l = create(device, stream, threads, products);
    if (l)
        l->taken = 1;
    return l;
}

void native_put_back(native_lease *lease)
{
    PyObject *own = lease->own;
    lease->own = NULL;
    lease->taken = 0;
    Py_XDECREF(own);
}

/*
 * allocate(like, bytes), and where its memory is; NULL with an exception set. A tuple of one tensor is for this call
 * alone, and *keep becomes 0.
 */
static PyObject *new_workspace(size_t bytes, PyObject *like, PyObject *allocate, void **data, int *keep)
{
    PyObject *size = PyLong_FromSize_t(bytes);
    PyObject *object = size ? PyObject_CallFunctionObjArgs(allocate, like, size, NULL) : NULL;
    Py_XDECREF(size);
    if (!object)
        return NULL;
    PyObject *tensor = object;
    if (PyTuple_Check(object)) {
        *keep = 0;
        tensor = PyTuple_GetItem(object, 0);
    }
    if (tensor == Py_None)
        PyErr_SetString(PyExc_TypeError, "workspace: None; it must be a tensor");
    if (!tensor || tensor == Py_None) {
        Py_DECREF(object);
        return NULL;
    }
    native_tensor seen;
    int failed = native_read(tensor, "workspace", 0, &seen) != 0;
    if (!failed)
        *data = (char *)seen.view.data + seen.view.byte_offset;
    native_release(&seen);
    if (failed)
        Py_CLEAR(object);
    return object;
}

void *native_workspace(native_lease *lease, size_t bytes, PyObject *like, PyObject *allocate)
{
    void *data = NULL;
    int keep = bytes <= NATIVE_MOST_KEPT && !onepass_is_capturing(lease->handle);
    if (keep && bytes <= lease->workspace_size)
        return lease->workspace_data;
    size_t size = keep && bytes < LEAST_WORKSPACE ? LEAST_WORKSPACE : bytes;
    PyObject *made = new_workspace(size, like, allocate, &data, &keep);
    if (!made)
        return NULL;
    if (!keep) {
        lease->own = made;
        return data;
    }
    Py_XDECREF(lease->workspace);
    lease->workspace = made;
    lease->workspace_data = data;
    lease->workspace_size = size;
    return data;
}
