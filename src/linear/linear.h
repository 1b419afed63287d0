/*
 * The linear layer below its entry points: the checked problems that kernels compute. entry.c makes them; ref.c,
 * cpu.inc and cuda.c compute them.
 */
#ifndef ONEP_LINEAR_H
#define ONEP_LINEAR_H

#include "core/operator.h"

/* output[i][j] = sum over k of input[i][k] weight[j][k] + bias[j]; rows of the input may have any rank. */
typedef struct onep_linear_problem {
    onep_rows rows, weight_rows; /* B, N */
    int64_t depth, columns;      /* K, N */
    onep_operand input, weight;
    const void *prepared; /* onepass_prepare_weight's; NULL: none */
    onep_operand bias;    /* N columns; absent: 0 */
    onep_operand output;
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
} onep_linear_backward_problem;

/*
 * Bytes of workspace on the CPU for either problem of B rows, in the type `computed`, on so many threads: the largest
 * of the three products of one layer, which follow each other in the same memory.
 */
size_t onep_linear_cpu_bytes(int64_t rows, int64_t depth, int64_t columns, onep_type computed, int32_t threads);

typedef struct onep_prepare_weight_problem {
    onep_rows weight_rows;
    int64_t depth;
    onep_operand weight;
} onep_prepare_weight_problem;

/*
 * For operators that take a prepared weight: the caller's address as a tensor of as many bytes as this weight needs
 * (`bytes` holds its shape), and the rules about argument `prepared`, which belongs to argument `weight`.
 */
onepass_tensor onep_prepared_tensor(onepass_handle *handle, const onepass_tensor *weight, const void *prepared,
                                    int64_t *bytes);
onepass_status onep_prepared_check(const onep_call *call, int prepared, int weight);

#endif
