/*
 * What device code and the C compiler share of element types: the values of onep_type, for code that cannot include
 * core/types.h (NVRTC has no <stdint.h>), and how many dimensions a kernel's rows may have.
 */
#ifndef ONEP_CUDA_TYPES_H
#define ONEP_CUDA_TYPES_H

enum { ONEP_CUDA_F16, ONEP_CUDA_BF16, ONEP_CUDA_F32, ONEP_CUDA_F64 };

enum { ONEP_CUDA_MAX_RANK = 32 };

#endif
