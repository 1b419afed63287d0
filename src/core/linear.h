/*
 * The linear layer below its door: the checked problems that kernels compute. src/ops/linear.c makes them;
 * src/ref/linear.c and src/cpu/linear.inc compute them.
 */
#ifndef ONEP_LINEAR_H
#define ONEP_LINEAR_H

#include "tensor.h"

/* output[i][j] = sum over k of input[i][k] weight[j][k] + bias[j]; rows of the input may have any rank. */
typedef struct onep_linear_problem {
    onep_rows rows, weight_rows; /* B, N */
    int64_t depth, columns;      /* K, N */
    onep_operand input, weight;
    const void *prepared; /* onepass_prepare_weight's; NULL: none */
    onep_operand bias;    /* N columns; absent: 0 */
    onep_operand output;
    void *workspace; /* the caller's, at least what the level asks for */
} onep_linear_problem;

/*
 * grad_input = grad_output weight, grad_weight = grad_output^T input, grad_bias = column sums of grad_output; those
 * that are absent are not made.
 */
typedef struct onep_linear_backward_problem {
    onep_rows rows, weight_rows;
    int64_t depth, columns;
    onep_operand grad_output, input, weight;
    onep_operand grad_input, grad_weight, grad_bias;
    void *workspace;
} onep_linear_backward_problem;

/* Bytes of workspace for either problem of B rows, in the type `computed`, on so many threads. */
size_t onep_linear_workspace_cpu(int64_t rows, int64_t depth, int64_t columns, onep_type computed, int32_t threads);

#endif
