/* What a handle owns: its device, the level whose kernels it runs, and what calls on that device need to know. */
#ifndef ONEP_HANDLE_H
#define ONEP_HANDLE_H

#include "core/level.h"
#include "core/strict_math.h"
#include "onepass.h"

/* What a device other than the processor adds to a handle. */
typedef struct onep_device_class {
    /* Refuses an address that the device's kernels could not follow. */
    onepass_status (*check_address)(const onepass_handle *handle, const char *operator_name, const char *argument,
                                    const void *address);
    int (*is_capturing)(const onepass_handle *handle);
    void (*close)(onepass_handle *handle);

    /* The GEMM library, "cublaslt" or "none"; a text that names it or says why there is none, cut to the size. */
    const char *(*gemm_library)(onepass_handle *handle, char *text, size_t size);

    /* Memory of the device. `bytes` is never 0, no address NULL. A copy is done when it returns; a fill is queued. */
    onepass_status (*allocate)(const onepass_handle *handle, size_t bytes, void **memory);
    onepass_status (*release)(const onepass_handle *handle, void *memory);
    onepass_status (*copy)(const onepass_handle *handle, void *to, const void *from, size_t bytes);
    onepass_status (*fill)(const onepass_handle *handle, void *to, unsigned char value, size_t bytes);
    onepass_status (*wait)(const onepass_handle *handle);

    /* Points in the device's time, recorded in order with its work; elapsed waits for the later one. */
    onepass_status (*event_create)(const onepass_handle *handle, void **event);
    void (*event_destroy)(const onepass_handle *handle, void *event);
    onepass_status (*event_record)(const onepass_handle *handle, void *event);
    onepass_status (*event_elapsed)(const onepass_handle *handle, void *begin, void *end, double *seconds);

    onepass_status (*read_probe)(const onepass_handle *handle, const void *data, size_t bytes, void *sink);
} onep_device_class;

struct onepass_handle {
    onepass_device device;
    onep_level level;
    const onep_device_class *device_class; /* NULL: the processor */
    void *device_state;                    /* what the device's own code keeps there */
    int32_t threads;                       /* 0 on a GPU */
    int32_t blas;                          /* onep_blas_choice of cpu/blas.h */
    onepass_fp32_products fp32_products;   /* on a GPU */
    onepass_progress progress;
    void *progress_context;
};

#endif
