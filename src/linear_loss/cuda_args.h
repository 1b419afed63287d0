/*
 * What the host hands to the kernels around the products of losses from hidden states, the same to the C compiler and
 * to nvcc (or NVRTC). Addresses are device addresses, strides in bytes.
 */
#ifndef ONEP_LINEAR_LOSS_ARGS_H
#define ONEP_LINEAR_LOSS_ARGS_H

#include "cuda/matrix.h"

/* Rows of a chunk, one stride apart: which of them take part. Both absent: all of them. */
typedef struct onep_linear_loss_rows {
    long long count;
    onep_matrix mask, labels; /* one per row; labels are integers */
    long long ignore_index;
} onep_linear_loss_rows;

/* to = from in the rows that take part, and 0 in the others; or 0 in the others alone, if `from` is absent. */
typedef struct onep_linear_loss_copy_args {
    onep_linear_loss_rows rows;
    onep_matrix from, to;
    long long columns;
    long long vectors; /* of 16 bytes that a row is made of; 0: it is not, or types differ */
} onep_linear_loss_copy_args;

/* to += from, which is compact */
typedef struct onep_linear_loss_add_args {
    const float *from;
    onep_matrix to;
    long long rows, columns;
} onep_linear_loss_add_args;

/* to = sum of values / divisor; 0 if nothing was counted and results are to be finite. */
typedef struct onep_linear_loss_total_args {
    const double *values;
    long long count;
    double divisor;
    const double *counted;    /* the divisor, where it was counted; NULL: not */
    onep_matrix divisor_from; /* the divisor, where it is in memory; absent: not */
    int finite;
    onep_matrix to;
} onep_linear_loss_total_args;

enum { ONEP_LINEAR_LOSS_THREADS = 256, ONEP_LINEAR_LOSS_TOTAL_THREADS = 1024 };

#endif
