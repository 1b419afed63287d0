/* What the operators' functions share: many tensors read at once, and the memory a call works in. */
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

#endif
