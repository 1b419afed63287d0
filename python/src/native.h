/*
 * What the files of the extension share. The extension is thin: it turns Python's tensors into views, finds the handle
 * of their device and stream, calls the library and turns a failure into an exception. It computes nothing, and knows
 * the library by its public header alone.
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
    int wants_stream;
    void *stream;                  /* CUDA: the stream its owner is working on now, if it is wanted */
    int64_t room[2 * NATIVE_ROOM]; /* shape and strides, where the owner lends none */
    int64_t *more;                 /* the same, for more dimensions; NULL: not used */
    dlpack_managed *managed;       /* what to give back after the call; NULL: nothing */
    dlpack_versioned *versioned;
} native_tensor;

/* Fills `tensor` from an object: by the exchange API of its type, by torch's attributes, or by __dlpack__. 0, or -1
 * with an exception set; native_release is right after either. */
int native_read(PyObject *object, const char *name, int wants_stream, native_tensor *tensor);
/* The same for memory: contiguous uint8 of one dimension, on that device. */
int native_read_bytes(PyObject *object, const char *name, onepass_device device, native_tensor *tensor);
void native_release(native_tensor *tensor);

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

/*
 * The stream is a GPU's; `threads` counts on the CPU alone, `products` on a GPU alone. The caller holds the GIL, and on
 * a GPU keeps it until it puts the lease back. NULL with an exception set.
 */
native_lease *native_take(onepass_device device, void *stream, int32_t threads, int32_t products);
void native_put_back(native_lease *lease);

enum { NATIVE_MOST_KEPT = 1 << 25 }; /* bytes of the largest workspace that a lease keeps */

/*
 * The address of at least `bytes` of workspace; allocate(like, bytes) makes a tensor of them. Calls with a lease follow
 * each other and share one. A call that is being captured gets its own, which belongs to the graph; one that needs much
 * gets its own, too, so that nobody keeps it. NULL with an exception set.
 */
void *native_workspace(native_lease *lease, size_t bytes, PyObject *like, PyObject *allocate);

/* ---- errors and numbers (module.c) ------------------------------------------------------------------------------- */

/* Sets the exception of a failed call; returns NULL. */
PyObject *native_raise(onepass_status status);

/* A number of 32 bits. 0, or -1 with an exception set; `name` says whose it is: "threads". */
int native_integer(PyObject *object, const char *name, int32_t *number);

/* ---- operators (call.c) ------------------------------------------------------------------------------------------ */

/* Reads the library's descriptions, once. 0, or -1 with an exception set. */
int native_describe_operators(void);

/* operators(): {name: (index, names of the tensors, names of the options)} */
PyObject *native_operators(PyObject *module, PyObject *nothing);

/*
 * call(index, *tensors, *options, products, threads, workspace): onepass_call with a handle of the first tensor's
 * device and current stream; a tensor that is None is not given. The workspace is a function, allocate(tensor, bytes),
 * which is called if more is needed than is kept; or the memory itself, a tensor of bytes; or None.
 */
PyObject *native_call(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/*
 * call of an operator that has `count` tensors and no options, with views on the CPU that have been read: NULL where
 * there is no tensor. None, or NULL with an exception set.
 */
PyObject *native_call_on_cpu(PyObject *index, PyObject *like, const onepass_tensor *const *views, int count,
                             int32_t threads, PyObject *allocate);

/* workspace_size(index, *tensors, *options, products, threads): onepass_call_workspace_size */
PyObject *native_workspace_size(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* ---- plain tensors (plain.c) ------------------------------------------------------------------------------------- */

/*
 * register_plain(Tensor, Parameter, guards, is_grad_enabled, is_neg, empty, threads, workspace): what the two below
 * ask. Not called for a PyTorch whose tensors are read by their attributes, where a crossing saves nothing: nothing is
 * plain then.
 */
PyObject *native_register_plain(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* are_plain(tensors): True if all of a tuple that are not None are plain tensors on one device, a CPU or a GPU. The
 * guards are not asked. */
PyObject *native_are_plain(PyObject *module, PyObject *tensors);

/* linear(index, input, weight, bias): the output; True if a gradient is wanted, and there is no output; None if the
 * call is not a plain one on the CPU. The index is that of the operator "linear". */
PyObject *native_linear(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

/* ---- the floor (call.c) ------------------------------------------------------------------------------------------ */

/* read_probe(data, sink): onepass_read_probe of a contiguous tensor's memory */
PyObject *native_read_probe(PyObject *module, PyObject *const *arguments, Py_ssize_t count);

#endif
