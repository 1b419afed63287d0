/*
 * What the host hands to the head's kernels: one plain structure per kernel, the same to the C compiler and to nvcc (or
 * NVRTC, which has no <stdint.h>: hence long long). Addresses are device addresses, strides are in bytes, types are
 * those of cuda/types.h.
 */
#ifndef ONEP_HEAD_ARGS_H
#define ONEP_HEAD_ARGS_H

#include "cuda/matrix.h"

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
    onep_matrix in[ONEP_HEAD_VALUES], out[ONEP_HEAD_RESULTS];
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
    onep_matrix y;
    long long split_rows; /* rows of a block, a multiple of the chunk */
    int strips, splits;   /* the grid is strips x splits, strips fastest */
    double *partial;      /* splits x columns x (mean, sum of squared deviations); only if splits > 1 */
    unsigned *tickets;    /* one for all strips, then one per strip if splits > 1; 0 before and after */
} onep_head_stats_args;

/* output = softmax over a row of slope y + offset, in base 2. */
typedef struct onep_head_softmax_args {
    onep_matrix y, output;
    const void *slope, *offset;
    long long rows, columns, block_rows;
} onep_head_softmax_args;

/*
 * Gradients. With P the output and g its gradient, r = sum over the row of g P, dz = P (g - r):
 *   part sums   s0 = sum of dz, s1 = sum of dz (q - mean), over the rows of a part
 *   dy = slope (dz - s0 / B - (q - mean) rstd^2 s1 / B), slope = scale gamma rstd; without the sums if `running`
 */
typedef struct onep_head_grad_args {
    onep_matrix grad_output, output, product;
    onep_matrix in[ONEP_HEAD_VALUES], out[ONEP_HEAD_RESULTS]; /* no bias is read */
    onep_matrix one_scale;    /* the gradient of a scale that is one value for all; out has none then */
    onep_matrix grad_product; /* dy; absent: not wanted */
    void *dots;               /* r, one per row, in the computed type */
    void *partial;            /* parts x 2 x columns, in the computed type */
    double *scale_partial;    /* a strip's share of the gradient of one scale */
    double per_row;           /* 1 / rows */
    unsigned *ticket;
    long long rows, columns, part_rows, split_rows;
    int parts, strips, splits;
    int running;
} onep_head_grad_args;

#endif
