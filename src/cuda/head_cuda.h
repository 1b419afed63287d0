/*
 * The head and the linear layer on a CUDA device, below their doors: workspace and launches for checked problems. A
 * call allocates, copies and waits for nothing; the bits of everything but the products (cuBLASLt's) depend on shape
 * and layout alone.
 */
#ifndef ONEP_HEAD_CUDA_H
#define ONEP_HEAD_CUDA_H

#include "handle.h"
#include "product.h"

/* How the handle wants fp32 matrices multiplied. */
static inline onep_product_math onep_math_of(const onepass_handle *handle)
{
    static const onep_product_math math[] = {[ONEPASS_FP32_FULL] = ONEP_MATH_BEST,
                                             [ONEPASS_FP32_TF32] = ONEP_MATH_TF32,
                                             [ONEPASS_FP32_SPLIT] = ONEP_MATH_SPLIT,
                                             [ONEPASS_FP32_VENDOR] = ONEP_MATH_PLAIN};
    return math[handle->fp32_products];
}

/* Parts of a call, as bits; tools time them one by one. */
typedef enum onep_head_stage {
    ONEP_HEAD_PRODUCT = 1,    /* y = input weight^T; backward: gradients of input and weight */
    ONEP_HEAD_STATISTICS = 2, /* slope and offset of every feature; backward: the pass over rows */
    ONEP_HEAD_SOFTMAX = 4,    /* the output; backward: the pass over columns */
    ONEP_HEAD_ALL = 7,
} onep_head_stage;

/*
 * The product is built where the problem keeps it, else in the output, if that has the computed type and its rows are
 * contiguous, else in the workspace. A batch without rows is counted and nothing else is done.
 */
size_t onep_head_cuda_workspace(onep_cuda *cuda, const onep_head_problem *problem, onep_product_math math);
onepass_status onep_head_cuda_run(onep_cuda *cuda, const onep_head_problem *problem, onep_product_math math,
                                  int stages);

/* Of the problem only rows, depth, columns, and types and strides of input and weight matter for the size. */
size_t onep_head_backward_cuda_workspace(onep_cuda *cuda, const onep_head_backward_problem *problem,
                                         onep_product_math math);
onepass_status onep_head_backward_cuda_run(onep_cuda *cuda, const onep_head_backward_problem *problem,
                                           onep_product_math math, int stages);

/* A weight in the form that ONEP_MATH_SPLIT multiplies; at a multiple of 256. */
size_t onep_weight_cuda_bytes(int64_t columns, int64_t depth);
onepass_status onep_weight_cuda_prepare(onep_cuda *cuda, const onep_operand *weight, int64_t columns, int64_t depth,
                                        void *prepared);

/* One size for both directions, by shape, types and strides of input and weight. */
size_t onep_linear_cuda_workspace(onep_cuda *cuda, const onep_linear_problem *problem, onep_product_math math);
onepass_status onep_linear_cuda_run(onep_cuda *cuda, const onep_linear_problem *problem, onep_product_math math);
onepass_status onep_linear_backward_cuda_run(onep_cuda *cuda, const onep_linear_backward_problem *problem,
                                             onep_product_math math);

#endif
