/*
 * The library's kernels by number: ONEP_KERNEL_ID(onep_split_merge) for the kernel of that name. The build lists what
 * the CUDA compiler made (cmake/fatbin.cmake), so a kernel that does not exist does not compile. Where CUDA is older
 * than 12.0 there are none of *_sm90a.cu, and ONEPASS_HAVE_SM90A is not defined.
 */
#ifndef ONEP_KERNELS_H
#define ONEP_KERNELS_H

#define ONEP_KERNEL_ID(name) name##_id

typedef enum onep_kernel_id {
#define KERNEL(name, image) ONEP_KERNEL_ID(name),
#include "fatbin_kernels.inc"
#undef KERNEL
    ONEP_CUDA_KERNEL_COUNT,
} onep_kernel_id;

#endif
