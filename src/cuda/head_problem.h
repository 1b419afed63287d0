/*
 * The checked problems of the head and of the linear layer, as src/core/head.h and src/core/linear.h will have them.
 * This file goes when those are here: head_cuda.h then includes "kernels.h" instead.
 */
#ifndef ONEP_HEAD_PROBLEM_H
#define ONEP_HEAD_PROBLEM_H

#include "tensor.h"

typedef enum onepass_statistics {
    ONEPASS_BATCH_STATISTICS = 0,
    ONEPASS_RUNNING_STATISTICS = 1,
} onepass_statistics;

typedef struct onep_head_problem {
    onep_rows rows, weight_rows; /* B, N */
    int64_t depth, columns;      /* K, N */
    onepass_statistics statistics;
    int cumulative;
    double eps, momentum;
    onep_operand input, weight;
    onep_operand bias, gamma, beta, scale;  /* N columns; scale may repeat one value; absent: 0, 1, 0, 1 */
    onep_operand running_mean, running_var; /* N columns; absent: batch statistics are not kept */
    onep_operand batches_tracked;           /* one int64; absent: not counted */
    onep_operand output;
    onep_operand product, mean, rstd; /* q (type computed) and N columns each; absent: not kept */
    void *workspace;
} onep_head_problem;

typedef struct onep_head_backward_problem {
    onep_rows rows, weight_rows;
    int64_t depth, columns;
    onepass_statistics statistics;
    onep_operand grad_output, output, input, weight, product, mean, rstd;
    onep_operand gamma, beta, scale;
    onep_operand grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, grad_scale;
    int scale_is_one_value; /* grad_scale then is the sum over features */
    void *workspace;
} onep_head_backward_problem;

typedef struct onep_linear_problem {
    onep_rows rows, weight_rows; /* B, N */
    int64_t depth, columns;      /* K, N */
    onep_operand input, weight;
    onep_operand bias; /* N columns; absent: 0 */
    onep_operand output;
    void *workspace;
} onep_linear_problem;

typedef struct onep_linear_backward_problem {
    onep_rows rows, weight_rows;
    int64_t depth, columns;
    onep_operand grad_output, input, weight;
    onep_operand grad_input, grad_weight, grad_bias;
    void *workspace;
} onep_linear_backward_problem;

#endif
