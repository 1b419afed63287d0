/*
 * One CUDA device below a handle: its primary context (the one PyTorch and the CUDA runtime use too), the library's
 * kernels, loaded and looked up when the device is opened, the stream, a few words of memory for kernels to count in. A
 * launch allocates, copies and waits for nothing, so it can be captured into a graph; all that could be lazy is done
 * when the handle is made.
 */
#ifndef ONEP_DEVICE_H
#define ONEP_DEVICE_H

#include "core/handle.h"

typedef struct onep_cuda onep_cuda;

struct onep_products; /* product.h */

/* Words of a page of tickets, and the most that one launch may ask for. */
enum { ONEP_CUDA_TICKETS = 1024, ONEP_CUDA_LAUNCH_TICKETS = 257 };

/*
 * Makes a device ready and the handle one of it. ONEPASS_NO_DEVICE where that is impossible on this machine. Destroying
 * the handle closes it; the kernels stay loaded until the process ends.
 */
onepass_status onep_cuda_open(onepass_handle *handle, int32_t device, void *stream, int trust_addresses);

/* What a CUDA handle owns. */
static inline onep_cuda *onep_cuda_of(const onepass_handle *handle)
{
    return (onep_cuda *)handle->device_state;
}

/* One launch, as plans keep it. */
typedef struct onep_launch {
    int kernel;            /* onep_kernel_id of cuda/kernels.h */
    unsigned grid, block;  /* blocks, threads per block */
    unsigned shared_bytes; /* beside what the kernel declares; may be all that a multiprocessor has */
    unsigned cluster;      /* blocks per cluster; 0: no clusters */
    int programmatic; /* programmatic dependent launch, where device and driver have it: the kernel itself waits for
                         the one in front of it (pdl.cuh) */
} onep_launch;

/*
 * Puts one kernel on the stream, with one structure as its only argument. A failure is ONEPASS_DEVICE_ERROR in the
 * driver's own words; one of an earlier kernel may show here too.
 */
onepass_status onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                const void *args);

/* True if the device can run this kernel: some are for one generation of devices alone. */
int onep_cuda_has_kernel(const onep_cuda *cuda, int kernel);

/* True if device and driver have TMA and can launch clusters. */
int onep_cuda_has_tma(const onep_cuda *cuda);

/*
 * The tensor map of a matrix of `rows` rows of `columns` elements of 2 (fp16) or 4 bytes (fp32), `stride` bytes apart,
 * for TMA loads of boxes of 128 bytes by `box_rows` rows in the 128-byte swizzle; `map` has 128 bytes, aligned to 64.
 * Address and stride: multiples of 16.
 */
onepass_status onep_cuda_tensor_map(const onep_cuda *cuda, const char *operator_name, void *map, const void *address,
                                    int element_size, int64_t rows, int64_t columns, int64_t stride, int box_rows);

/*
 * Makes the device's context current for a library that launches kernels of its own, and undoes it. What that library
 * may have to load or to allocate in between does not end a capture.
 */
onepass_status onep_cuda_enter(const onep_cuda *cuda, const char *operator_name, int *mode);
void onep_cuda_leave(const onep_cuda *cuda, int mode);
void *onep_cuda_stream(const onep_cuda *cuda);

/* ONEPASS_OK for 0; otherwise the driver's error in its own words: "operator: what: CUDA_ERROR_...". */
onepass_status onep_cuda_status(const char *operator_name, const char *what, int error);

/* The device's GEMM libraries; opened at the first call, NULL if there is no memory for it. */
struct onep_products *onep_cuda_products(onep_cuda *cuda);

/* True in the middle of a capture of the stream. */
int onep_cuda_is_capturing(const onep_cuda *cuda);

int onep_cuda_multiprocessors(const onep_cuda *cuda);

/* Compute capability, 90 for 9.0; bytes of the second-level cache. */
int onep_cuda_capability(const onep_cuda *cuda);
int64_t onep_cuda_l2_bytes(const onep_cuda *cuda);

/*
 * The word of device memory that the blocks of the next launch count in; a kernel finds it 0 and leaves it 0. Launches
 * follow each other on the stream and share a word. One that is being captured gets a word of its own, for as long as
 * the handle lives: its graph may run on another stream, beside launches of this one and beside other graphs.
 */
onepass_status onep_cuda_ticket(onep_cuda *cuda, const char *operator_name, unsigned **ticket);

/* The same for `count` words one after the other, at most ONEP_CUDA_LAUNCH_TICKETS. */
onepass_status onep_cuda_tickets_of(onep_cuda *cuda, const char *operator_name, int count, unsigned **tickets);

/* For tests: the device address of the first ONEP_CUDA_TICKETS words. */
void *onep_cuda_tickets(const onep_cuda *cuda);

/* ---- before there is a handle ------------------------------------------------------------------------------------ */

/* The number of devices, 0 if there is none or this build has no kernels; then *why (if not NULL) says which. */
int onep_cuda_devices(const char **why);

typedef struct onep_cuda_info {
    char name[96];
    int major, minor; /* compute capability */
    int multiprocessors;
    int clock_khz;
    int64_t l2_bytes;
    size_t memory_bytes;
    int driver_version; /* 13000 for CUDA 13.0 */
    int has_tma;        /* as onep_cuda_has_tma says */
} onep_cuda_info;

/* False if there is no such device. */
int onep_cuda_describe(int32_t device, onep_cuda_info *info);

#endif
