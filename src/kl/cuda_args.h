/*
 * What the host hands to the KL kernels: one plain structure per kernel, the same to the C compiler and to nvcc (or
 * NVRTC, which has no <stdint.h>: hence long long). Addresses are device addresses, strides are in bytes.
 */
#ifndef ONEP_KL_ARGS_H
#define ONEP_KL_ARGS_H

#include "cuda/types.h"

/* What is to be made, as bits. */
enum {
    ONEP_CUDA_SUM = 1,   /* one value from all elements, or one per row */
    ONEP_CUDA_VALUE = 2, /* one value per element */
    ONEP_CUDA_GRAD_PREDICTIONS = 4,
    ONEP_CUDA_GRAD_TARGETS = 8,
};

/*
 * Threads of a block, and elements of a chunk for elements of `size` bytes: 32 KiB of each input, four 16-byte accesses
 * per thread. Partial sums, and so the bits of the result, depend on these alone.
 */
enum { ONEP_CUDA_THREADS = 512 };
#define ONEP_CUDA_CHUNK(size) (32768 / (size))

/* Common to both shapes of kernel. */
typedef struct onep_kl_common {
    double value_scale;       /* of the sum: 1 / divisor */
    double grad_scale;        /* of the gradients, before the upstream gradient: 1 / divisor */
    double *partial;          /* workspace: one sum per chunk, tile or strip */
    unsigned *ticket;         /* counts the blocks that are done; 0 before and after */
    const void *upstream_one; /* the upstream gradient of a value of one element; NULL: 1 */
    const void *made_for;     /* see onepass_kl_options.grad_made_for; NULL: none */
    void *value;              /* the one value; NULL: not asked for */
    int upstream_one_type, made_for_type, value_type;
    int outputs, finite;
} onep_kl_common;

/* All elements of each tensor one after the other. */
typedef struct onep_kl_flat_args {
    onep_kl_common common;
    long long count, chunks;
    const void *predictions, *targets;
    const void *upstream; /* one per element, of the computed type; NULL: none */
    void *value;          /* one per element, of the computed type */
    void *grad_predictions, *grad_targets;
} onep_kl_flat_args;

typedef struct onep_kl_strided {
    char *data; /* NULL: absent */
    long long col_stride;
    long long row_stride[ONEP_CUDA_MAX_RANK];
    int type;
} onep_kl_strided;

/* Rows by columns with any strides; what has one element per row has col_stride 0. */
typedef struct onep_kl_rows_args {
    onep_kl_common common;
    long long rows, columns;
    long long strip;  /* columns of a strip, the work of one warp */
    long long strips; /* of all rows */
    long long tiles;  /* groups of tile_strips consecutive strips, the work of one block */
    long long parts;  /* strips of a row */
    int rank;
    int tile_strips;
    int per_row;    /* one value per row */
    int group;      /* narrow rows only: threads that add up a row */
    unsigned magic; /* narrow rows only: 2^32 / columns, rounded up */
    int by_block;   /* lines only: a strip is the work of a block, not of a warp */
    long long extent[ONEP_CUDA_MAX_RANK];
    onep_kl_strided predictions, targets, value, grad_predictions, grad_targets, upstream, weights, mask;
} onep_kl_rows_args;

/* Threads of a block of the rows kernels. The rest bounds how much workspace partial sums take. */
enum {
    ONEP_CUDA_ROWS_THREADS = 128,
    ONEP_CUDA_LINES_THREADS = 128,
    ONEP_CUDA_NARROW_THREADS = 128,
    ONEP_CUDA_NARROW = 1024,      /* elements at a time, of whole rows */
    ONEP_CUDA_NARROW_LINES = 128, /* columns that are narrow where rows lie one after the other */
    ONEP_CUDA_WARP_STRIP = 2048,  /* columns that a warp may have to itself */
    ONEP_CUDA_CROSS = 64,         /* side of a tile where two layouts meet */
    ONEP_CUDA_CROSS_THREADS = 256,
    ONEP_CUDA_MANY_ROWS = 1024,
    ONEP_CUDA_MAX_STRIP = 1 << 28,
    ONEP_CUDA_MAX_TILES = 8192,
    ONEP_CUDA_STRIP = 1024,       /* columns of a strip, or more to have at most: */
    ONEP_CUDA_MAX_STRIPS = 65536, /* strips, where each has a partial sum of its own */
};

#endif
