/*
 * What the host hands to the kernels of the fp32 product on tensor cores (split.h), the same to the C compiler and to
 * nvcc. An operand's element, times a power of two, becomes the sum of two fp16:
 *
 *   x 2^(141 - e) = high + low        e: the biased exponent of the largest |x| it is scaled with, at least 15
 *
 * so that the largest of them lies in [2^14, 2^15). Exponents are kept as bytes; 255: there is an infinity.
 */
#ifndef ONEP_SPLIT_ARGS_H
#define ONEP_SPLIT_ARGS_H

#include "cuda/matrix.h"

enum {
    ONEP_SPLIT_CHUNK = 64,         /* of the depth: what tensor cores add up before it is added to the sum in fp32 */
    ONEP_SPLIT_TOP = 141,          /* 127 + 14 */
    ONEP_SPLIT_LEAST = 15,         /* of e: 2^(141 - 15) is the largest power of two that is a float */
    ONEP_SPLIT_INFINITE = 255,     /* as an exponent */
    ONEP_SPLIT_THREADS = 256,      /* of the kernels that split, */
    ONEP_SPLIT_HELD_THREADS = 512, /* of the one that holds the longest rows, */
    ONEP_SPLIT_STRIP = 32,         /* rows of a block where they lie side by side, */
    ONEP_SPLIT_ITEMS = 16,         /* and chunks of a block where chunks are contiguous */
};

/* An fp32 operand: element (i, k) of row i and depth k lies at data + i row_stride + k depth_stride. */
typedef struct onep_split_side {
    const char *data;
    long long row_stride, depth_stride; /* bytes */
} onep_split_side;

/*
 * Splits it into planes of `pitch` fp16 per row; pitch: the depth rounded up to whole chunks, and what was not there is
 * 0. exponents: one per row, or one per chunk and row, [chunk][row], if chunks are scaled.
 */
typedef struct onep_split_args {
    onep_split_side x;
    unsigned short *high, *low;
    unsigned char *exponents;
    long long rows, depth, pitch;
} onep_split_args;

/* A tensor map: the driver's description of a matrix for TMA. */
typedef struct onep_tensor_map {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        unsigned long long opaque[16];
} onep_tensor_map;

/* The tiles of the product. */
enum {
    ONEP_SPLIT_LEFT = 128,                /* rows of the left operand of a tile */
    ONEP_SPLIT_STAGE_BYTES = 32768,       /* of shared memory copied at a time: 128 rows of one chunk */
    ONEP_SPLIT_STAGES = 7,                /* of them */
    ONEP_SPLIT_SHARED = 7 * 32768 + 1024, /* bytes; TMA wants them at a multiple of 1024 */
    ONEP_SPLIT_PRODUCT_THREADS = 384,     /* 128 that copy, 256 that multiply */
    ONEP_SPLIT_AMPERE_LEFT = 64,          /* without TMA: rows of a tile, */
    ONEP_SPLIT_AMPERE_RIGHT = 128,
    ONEP_SPLIT_AMPERE_SHARED = 2 * 2 * 64 * 2 * (64 + 128), /* two chunks of both planes of both, */
    ONEP_SPLIT_AMPERE_THREADS = 256,
};

/*
 * c(i, j) = sum over k of left(i, k) right(j, k) + bias[i], or bias[j], for rows i of the left and j of the right
 * operand. The right operand is split and scaled by rows, the left one by chunks of rows: in planes, or as it is, then
 * tile by tile on the way into the tensor cores.
 */
typedef struct onep_split_product_args {
    onep_tensor_map left[2], right[2]; /* high and low; left: only the first if it is not split */
    const unsigned short *left_high, *left_low, *right_high, *right_low; /* the planes, without TMA */
    const unsigned char *left_exponents, *right_exponents;
    onep_split_side left_side, right_side; /* for rows with an infinity */
    char *c;
    long long c_left_stride, c_right_stride; /* bytes */
    onep_matrix bias;
    long long left_rows, right_rows, depth, pitch;
    int bias_right; /* the bias is there, and belongs to right rows; only with TMA */
    int left_tiles, right_tiles, chunks;
    int splits, split_chunks; /* few tiles: the depth is cut into so many parts of so many chunks, */
    long long split_stride;   /* and each part makes a c of its own, so many bytes on */
    int blocks;               /* of a cluster: 1 or 2 */
    int stages;               /* of shared memory in use, 3 or more */
    double *partial; /* [right tile][left row] (mean, sum of squared deviations) over the tile's right rows; or NULL */
} onep_split_product_args;

/* c[i][j] = sum of its parts in their order + bias[j] */
typedef struct onep_split_merge_args {
    const float *parts; /* splits x m x n */
    char *c;
    long long c_row_stride, c_col_stride; /* bytes */
    onep_matrix bias;
    long long m, n;
    int splits;
} onep_split_merge_args;

#endif
