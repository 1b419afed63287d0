/* What the host hands to the kernels of product.cu, the same to the C compiler and to nvcc (or NVRTC). */
#ifndef ONEP_PRODUCT_ARGS_H
#define ONEP_PRODUCT_ARGS_H

#include "cuda/matrix.h"

/* An operand with rows of any rank. Swapped, the product runs along its rows instead of its columns. */
typedef struct onep_product_side {
    char *data;
    long long col_stride;
    long long extent[ONEP_CUDA_MAX_RANK], row_stride[ONEP_CUDA_MAX_RANK];
    int rank, type, swapped;
} onep_product_side;

/* c[m][n] = sum over k of a(m, k) b(n, k) + bias[n], or that added to c */
typedef struct onep_product_args {
    onep_product_side a, b, c;
    onep_matrix bias;
    long long m, n, k, n_tiles;
    int accumulates;
} onep_product_args;

/* Column sums: out[j] = before[j] + sum over rows of x[i][j]. */
typedef struct onep_column_sums_args {
    onep_product_side x;
    onep_matrix before, out; /* before absent: 0; may be out */
    long long rows, columns;
} onep_column_sums_args;

enum { ONEP_PRODUCT_TILE = 64, ONEP_PRODUCT_THREADS = 256, ONEP_COLUMN_SUMS_THREADS = 1024 };

#endif
