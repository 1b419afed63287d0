/*
 * The part of DLPack 1.x that tensors come in by, declared from its specification: a consumer needs no header of anyone
 * else. onepass_tensor has the layout of a DLTensor already.
 */
#ifndef ONEPASS_PYTHON_DLPACK_H
#define ONEPASS_PYTHON_DLPACK_H

#include "onepass.h"

enum {
    DLPACK_MAJOR = 1,
    DLPACK_CPU = 1,
    DLPACK_CUDA = 2,
    DLPACK_CUDA_HOST = 3,     /* pinned memory of the host */
    DLPACK_CUDA_MANAGED = 13, /* managed memory */
};

/* What a capsule named "dltensor" points to. */
typedef struct dlpack_managed {
    onepass_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *self);
} dlpack_managed;

typedef struct dlpack_version {
    uint32_t major, minor;
} dlpack_version;

/* What a capsule named "dltensor_versioned" points to. */
typedef struct dlpack_versioned {
    dlpack_version version;
    void *context;
    void (*deleter)(struct dlpack_versioned *self);
    uint64_t flags;
    onepass_tensor tensor;
} dlpack_versioned;

/* What the capsule type(x).__dlpack_c_exchange_api__, named "dlpack_exchange_api", points to (DLPack 1.3). */
typedef struct dlpack_exchange {
    dlpack_version version;
    struct dlpack_exchange *older; /* the table of an older major version; NULL: none */
    int (*allocate)(onepass_tensor *prototype, dlpack_versioned **out, void *error_context,
                    void (*set_error)(void *error_context, const char *kind, const char *message));
    int (*managed_from_object)(void *object, dlpack_versioned **out);
    int (*managed_to_object)(dlpack_versioned *tensor, void **out);
    int (*tensor_from_object)(void *object, onepass_tensor *out); /* borrowed: valid while the object lives unchanged */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} dlpack_exchange;

_Static_assert(sizeof(onepass_tensor) == 48 && offsetof(onepass_tensor, byte_offset) == 40,
               "onepass_tensor has DLTensor's layout");
_Static_assert(offsetof(dlpack_versioned, tensor) == 32, "DLManagedTensorVersioned's layout");
_Static_assert(offsetof(dlpack_exchange, current_stream) == 48, "DLPackExchangeAPI's layout");

#endif
