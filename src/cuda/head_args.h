/*
 * What the host hands to the kernels of the head and of matrix products: one plain structure a kernel, the same to the
 * C compiler and to nvcc (or NVRTC, which has no <stdint.h>: hence long long). Addresses are device addresses, strides
 * are in bytes, types are those of kl_args.h.
 */
#ifndef ONEP_HEAD_ARGS_H
#define ONEP_HEAD_ARGS_H

#include "kl_args.h"

/* Rows by columns; what there is one of a feature has row_stride 0. data NULL: absent. */
typedef struct onep_head_matrix {
    char *data;
    long long row_stride, col_stride;
    int type;
} onep_head_matrix;

/* How the work is cut: by the shape alone, so that the bits of a result are the same on every device. */
enum {
    ONEP_HEAD_STRIP = 128,    /* columns a block takes statistics of, */
    ONEP_HEAD_CHUNK = 128,    /* and rows it takes them of at a time, packed elements; */
    ONEP_HEAD_CHUNK_ANY = 64, /* with any strides */
    ONEP_HEAD_STATS_THREADS = 256,
    ONEP_HEAD_MAX_SPLITS = 64,      /* blocks that share a strip of columns, and */
    ONEP_HEAD_MAX_SHARED = 256,     /* strips that may be shared: each of them has a ticket */
    ONEP_HEAD_ROW_COLUMNS = 8192,   /* longest row that 1024 threads hold in 8 registers each, */
    ONEP_HEAD_WIDE_COLUMNS = 16384, /* and in 16 */
    ONEP_HEAD_ANY_THREADS = 256,
    ONEP_HEAD_MAX_PARTS = 128, /* blocks, each with rows of its own, of the backward row pass */
    ONEP_HEAD_GRAD_STRIP = 64, /* columns of a block of the backward column pass */
    ONEP_HEAD_GRAD_THREADS = 1024,
    ONEP_HEAD_MAX_GRAD_BLOCKS = 128, /* blocks wanted of it; strips are shared until there are so many */
};

/* What features (columns) have, in this order; absent: 0, 1, 0, 1, 0, 1. */
enum {
    ONEP_HEAD_BIAS,
    ONEP_HEAD_GAMMA,
    ONEP_HEAD_BETA,
    ONEP_HEAD_SCALE,
    ONEP_HEAD_MEAN, /* forward: the running ones; backward: mean and rstd */
    ONEP_HEAD_SPREAD,
    ONEP_HEAD_VALUES,
};

/* What becomes of them: forward mean, rstd and the running ones; backward gradients. Absent: not wanted. */
enum {
    ONEP_HEAD_TO_MEAN,
    ONEP_HEAD_TO_RSTD,
    ONEP_HEAD_TO_RUNNING_MEAN,
    ONEP_HEAD_TO_RUNNING_VAR,
    ONEP_HEAD_RESULTS,
};
enum { ONEP_HEAD_TO_BIAS, ONEP_HEAD_TO_GAMMA, ONEP_HEAD_TO_BETA, ONEP_HEAD_TO_SCALE };

typedef struct onep_head_features {
    onep_head_matrix in[ONEP_HEAD_VALUES], out[ONEP_HEAD_RESULTS];
    void *slope, *offset; /* workspace, in the computed type: log2(e) z = slope y + offset */
    long long *batches;   /* counted up by 1 if not NULL and the statistics are the batch's */
    double eps, momentum;
    double per_row, per_free_row; /* 1 / rows, 1 / (rows - 1) */
    long long rows, columns;
    int cumulative; /* the factor is 1 / batches, counted with this one, instead of momentum */
    int running;    /* normalise by the running statistics, which are only read then */
} onep_head_features;

/* Column statistics of y. */
typedef struct onep_head_stats_args {
    onep_head_features features;
    onep_head_matrix y;
    long long split_rows; /* rows of a block, a multiple of the chunk */
    int strips, splits;   /* the grid is strips x splits, strips fastest */
    double *partial;      /* splits x columns x (mean, sum of squared deviations); only if splits > 1 */
    unsigned *tickets;    /* one for all strips, then one a strip if splits > 1; 0 before and after */
} onep_head_stats_args;

/* output = softmax over a row of slope y + offset, in base 2. */
typedef struct onep_head_softmax_args {
    onep_head_matrix y, output;
    const void *slope, *offset;
    long long rows, columns, block_rows;
} onep_head_softmax_args;

/*
 * Gradients. With P the output and g its gradient, r = sum over the row of g P, dz = P (g - r):
 *   part sums   s0 = sum of dz, s1 = sum of dz (q - mean), over the rows of a part
 *   dy = slope (dz - s0 / B - (q - mean) rstd^2 s1 / B), slope = scale gamma rstd; without the sums if `running`
 */
typedef struct onep_head_grad_args {
    onep_head_matrix grad_output, output, product;
    onep_head_matrix in[ONEP_HEAD_VALUES], out[ONEP_HEAD_RESULTS]; /* no bias is read */
    onep_head_matrix one_scale;    /* the gradient of a scale that is one value for all; out has none then */
    onep_head_matrix grad_product; /* dy; absent: not wanted */
    void *dots;                    /* r, one a row, in the computed type */
    void *partial;                 /* parts x 2 x columns, in the computed type */
    double *scale_partial;         /* a strip's share of the gradient of one scale */
    double per_row;                /* 1 / rows */
    unsigned *ticket;
    long long rows, columns, part_rows, split_rows;
    int parts, strips, splits;
    int running;
} onep_head_grad_args;

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* An operand with rows of any rank. Swapped, the product runs along its rows instead of its columns. */
typedef struct onep_product_side {
    char *data;
    long long col_stride;
    long long extent[ONEP_CUDA_MAX_RANK], row_stride[ONEP_CUDA_MAX_RANK];
    int rank, type, swapped;
} onep_product_side;

/* c[m][n] = sum over k of a(m, k) b(n, k) + bias[n] */
typedef struct onep_product_args {
    onep_product_side a, b, c;
    onep_head_matrix bias;
    long long m, n, k, n_tiles;
} onep_product_args;

/* Column sums: out[j] = sum over rows of x[i][j]. */
typedef struct onep_column_sums_args {
    onep_product_side x;
    onep_head_matrix out;
    long long rows, columns;
} onep_column_sums_args;

enum { ONEP_PRODUCT_TILE = 64, ONEP_PRODUCT_THREADS = 256, ONEP_COLUMN_SUMS_THREADS = 1024 };

#endif
