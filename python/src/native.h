/*
 * What the files of the extension share. The extension is a thin door: it turns Python's tensors into views, finds the
 * handle of their device and stream, calls the library and turns a failure into an exception. It computes nothing.
 *
 * Built for the limited API of Python 3.8, so that one binary serves every later Python too.
 */
#ifndef ONEPASS_PYTHON_NATIVE_H
#define ONEPASS_PYTHON_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>

#include "dlpack.h"

/*
 * The headers hide METH_FASTCALL from limited-API modules below 3.10, where it became part of the stable ABI. 3.8 and
 * 3.9 call such functions in the very same way, and will not change any more.
 */
#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif
typedef PyObject *native_function(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* ---- tensors (tensor.c) ------------------------------------------------------------------------------------------ */

enum { NATIVE_ROOM = 8 }; /* dimensions that need no memory of their own */

/* A Python object seen as a tensor, for the length of one call. */
typedef struct native_tensor {
    onepass_tensor view;
    int present;                   /* 0: None was passed */
    void *stream;                  /* CUDA: the stream its owner is working on now */
    int64_t room[2 * NATIVE_ROOM]; /* shape and strides, where the owner lends none */
    int64_t *more;                 /* the same, for more dimensions; NULL: not used */
    dlpack_managed *managed;       /* what to give back after the call; NULL: nothing */
    dlpack_versioned *versioned;
} native_tensor;

/* Fills `tensor` from an object: by the exchange API of its type, by torch's attributes, or by __dlpack__. None is
 * absent. 0, or -1 with an exception set; native_release is right after either. */
int native_read(PyObject *object, const char *name, native_tensor *tensor);
void native_release(native_tensor *tensor);

/* The address for the library: NULL if absent. */
static inline const onepass_tensor *native_view(const native_tensor *tensor)
{
    return tensor->present ? &tensor->view : NULL;
}

/* register_torch(Tensor, {dtype: (code, bits)}, torch.device("cpu"), current_raw_stream) */
PyObject *native_register_torch(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* ---- handles (handles.c) ----------------------------------------------------------------------------------------- */

/* A handle for the length of one call, and the workspace that goes with it. */
typedef struct native_lease {
    struct native_lease *next;
    onepass_handle *handle;
    onepass_device device;
    void *stream;     /* CUDA */
    int32_t threads;  /* CPU: as asked for */
    int32_t products; /* CUDA: onepass_fp32_products */
    int taken;
    PyObject *workspace; /* a tensor; NULL: none yet */
    void *workspace_data;
    size_t workspace_size;
    PyObject *own; /* the workspace of this one call, which is being captured or needs much; NULL: none */
} native_lease;

/* The caller holds the GIL, and on a GPU keeps it until it puts the lease back. NULL with an exception set. */
native_lease *native_take(const native_tensor *tensor, int32_t threads);
/* The same for a call that multiplies matrices; on the CPU `products` is not looked at. */
native_lease *native_take_products(const native_tensor *tensor, int32_t threads, int32_t products);
void native_put_back(native_lease *lease);

/*
 * The address of at least `bytes` of workspace; allocate(like, bytes) makes a tensor of them. Calls with a lease follow
 * each other and share one. A call that is being captured gets its own, which belongs to the graph; one that needs much
 * gets its own, too, so that nobody keeps it. NULL with an exception set.
 */
void *native_workspace(native_lease *lease, size_t bytes, PyObject *like, PyObject *allocate);

/* ---- errors and numbers (module.c) ------------------------------------------------------------------------------- */

/* Sets the exception of a failed call; returns NULL. */
PyObject *native_raise(onepass_status status);

/* A number of 32 bits, of no meaning if an exception is set now. `name` says whose it is: "kl: threads". */
int32_t native_integer(PyObject *object, const char *name);

/* ---- operators --------------------------------------------------------------------------------------------------- */

PyObject *native_kl(PyObject *module, PyObject *const *arguments, Py_ssize_t count);     /* kl.c */
PyObject *native_linear(PyObject *module, PyObject *const *arguments, Py_ssize_t count); /* linear.c */
PyObject *native_linear_backward(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *native_prepare_weight(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *native_prepare_weight_size(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *native_head(PyObject *module, PyObject *const *arguments, Py_ssize_t count); /* head.c */
PyObject *native_head_backward(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

#endif
