/*
 * What a handle owns: the device, the level with its kernels, and for the CPU the number of threads, the BLAS and the
 * progress callback, for a GPU what device.h keeps of it.
 */
#ifndef ONEP_HANDLE_H
#define ONEP_HANDLE_H

#include "blas.h"
#include "device.h"
#include "kernels.h"

struct onepass_handle {
    onepass_device device;
    onep_level level;
    const onep_kernels *kernels;
    onep_cuda *cuda; /* NULL: the CPU */
    int32_t threads; /* 0 on a GPU */
    onep_blas_choice blas;
    onepass_fp32_products fp32_products; /* on a GPU */
    onepass_progress progress;
    void *progress_context;
};

#endif
