/* The linear layer on a CUDA device: what the head's plan shares with it. */
#ifndef ONEP_LINEAR_CUDA_H
#define ONEP_LINEAR_CUDA_H

#include "cuda/product.h"

/* How the handle wants fp32 matrices multiplied. */
static inline onep_product_math onep_math_of(const onepass_handle *handle)
{
    static const onep_product_math math[] = {[ONEPASS_FP32_FULL] = ONEP_MATH_BEST,
                                             [ONEPASS_FP32_TF32] = ONEP_MATH_TF32,
                                             [ONEPASS_FP32_SPLIT] = ONEP_MATH_SPLIT,
                                             [ONEPASS_FP32_VENDOR] = ONEP_MATH_PLAIN};
    return math[handle->fp32_products];
}

#endif
