/* What the operators' functions share: many tensors read at once, the memory a call works in, a prepared weight. */
#ifndef ONEPASS_PYTHON_ARGUMENTS_H
#define ONEPASS_PYTHON_ARGUMENTS_H

#include "native.h"

/* Reads `count` tensors, arguments[0] and on. The number of those to release; *failed is 1 with an exception set. */
static inline int native_read_all(PyObject *const *arguments, const char *const *names, int count,
                                  native_tensor *tensors, int *failed)
{
    int read = 0;
    *failed = 0;
    while (read < count && !*failed) {
        *failed = native_read(arguments[read], names[read], &tensors[read]) != 0;
        read++;
    }
    return read;
}

static inline void native_release_all(native_tensor *tensors, int count)
{
    while (count > 0)
        native_release(&tensors[--count]);
}

/* 0 if the first `required` tensors are there, -1 with an exception set. */
static inline int native_require(const char *operator_name, const native_tensor *tensors, const char *const *names,
                                 int required)
{
    for (int i = 0; i < required; i++)
        if (!tensors[i].present) {
            PyErr_Format(PyExc_TypeError, "%s: %s: None; it is required", operator_name, names[i]);
            return -1;
        }
    return 0;
}

/* What a call needs besides its tensors, read from the end of its arguments: products, threads, allocate. */
typedef struct native_place {
    PyObject *like, *allocate; /* borrowed: allocate(like, bytes) makes the workspace */
    int32_t products, threads;
} native_place;

static inline native_place native_read_place(PyObject *like, PyObject *const *last)
{
    return (native_place){.like = like,
                          .allocate = last[2],
                          .products = native_integer(last[0], "products"),
                          .threads = native_integer(last[1], "threads")};
}

/*
 * Ends the question for a workspace's size: 0 with *workspace set (NULL if none is needed), -1 with an exception set if
 * the question or the allocation failed.
 */
static inline int native_give_workspace(native_lease *lease, const native_place *place, onepass_status asked,
                                        size_t bytes, void **workspace)
{
    *workspace = NULL;
    if (asked != ONEPASS_OK) {
        native_raise(asked);
        return -1;
    }
    if (bytes == 0)
        return 0;
    *workspace = native_workspace(lease, bytes, place->like, place->allocate);
    return *workspace ? 0 : -1;
}

/*
 * The address of a weight in the form that onepass_prepare_weight gives it, in a tensor of bytes; the library knows
 * only addresses, so here is seen that the tensor is large enough and where the weight is. 0 with *address set (NULL if
 * the tensor is absent), -1 with an exception set.
 */
static inline int native_prepared(native_lease *lease, const char *operator_name, const native_tensor *weight,
                                  const native_tensor *prepared, void **address)
{
    *address = NULL;
    if (!prepared->present)
        return 0;
    size_t needed = 0;
    onepass_status status = onepass_prepare_weight_size(lease->handle, native_view(weight), &needed);
    if (status != ONEPASS_OK) {
        native_raise(status);
        return -1;
    }
    const onepass_tensor *view = &prepared->view;
    int is_bytes = view->dtype.code == ONEPASS_UINT && view->dtype.bits == 8 && view->dtype.lanes == 1;
    if (!is_bytes || view->ndim != 1 || (view->strides && view->shape[0] > 1 && view->strides[0] != 1)) {
        PyErr_Format(PyExc_ValueError,
                     "%s: prepared: %d dimensions, elements of %d bits; it must be contiguous uint8 of "
                     "one dimension",
                     operator_name, (int)view->ndim, (int)view->dtype.bits);
        return -1;
    }
    if (view->device.type != weight->view.device.type || view->device.id != weight->view.device.id) {
        PyErr_Format(PyExc_ValueError, "%s: prepared: on device %d:%d; it must be on the weight's, %d:%d",
                     operator_name, (int)view->device.type, (int)view->device.id, (int)weight->view.device.type,
                     (int)weight->view.device.id);
        return -1;
    }
    if ((uint64_t)view->shape[0] < needed) {
        PyErr_Format(PyExc_ValueError, "%s: prepared: %lld bytes; a weight of this shape needs %zu", operator_name,
                     (long long)view->shape[0], needed);
        return -1;
    }
    *address = (char *)view->data + view->byte_offset;
    return 0;
}

/* The end of a call: the lease goes back, and None, or NULL with the exception that was set (not ready) or the status.
 */
static inline PyObject *native_finish(native_lease *lease, int ready, onepass_status status)
{
    native_put_back(lease);
    if (!ready)
        return NULL;
    if (status != ONEPASS_OK)
        return native_raise(status);
    Py_RETURN_NONE;
}

#endif
