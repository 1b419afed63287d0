/* Stands in for the products and the head's plan in a build without CUDA kernels, as absent.c does for the rest. */
#include <stdio.h>

#include "head_cuda.h"

int onep_products_describe(char *text, size_t size)
{
    snprintf(text, size, "this library was built without CUDA kernels");
    return 0;
}

onep_products *onep_cuda_products(onep_cuda *cuda)
{
    (void)cuda;
    return NULL;
}

size_t onep_head_cuda_workspace(onep_cuda *cuda, const onep_head_problem *problem, onep_product_math math)
{
    (void)cuda, (void)problem, (void)math;
    return 0;
}

size_t onep_head_backward_cuda_workspace(onep_cuda *cuda, const onep_head_backward_problem *problem,
                                         onep_product_math math)
{
    (void)cuda, (void)problem, (void)math;
    return 0;
}

size_t onep_weight_cuda_bytes(int64_t columns, int64_t depth)
{
    (void)columns, (void)depth;
    return 0;
}

onepass_status onep_weight_cuda_prepare(onep_cuda *cuda, const onep_operand *weight, int64_t columns, int64_t depth,
                                        void *prepared)
{
    (void)cuda, (void)weight, (void)columns, (void)depth, (void)prepared;
    return ONEPASS_NO_DEVICE; /* no handle of this build comes here */
}

size_t onep_linear_cuda_workspace(onep_cuda *cuda, const onep_linear_problem *problem, onep_product_math math)
{
    (void)cuda, (void)problem, (void)math;
    return 0;
}
