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

size_t onep_linear_cuda_workspace(onep_cuda *cuda, const onep_linear_problem *problem, onep_product_math math)
{
    (void)cuda, (void)problem, (void)math;
    return 0;
}
