/*
 * What the host hands to the kernels of losses from logits: one plain structure per kernel, the same to the C compiler
 * and to nvcc (or NVRTC, which has no <stdint.h>: hence long long). Addresses are device addresses, strides in bytes.
 */
#ifndef ONEP_LOGITS_ARGS_H
#define ONEP_LOGITS_ARGS_H

#include "cuda/types.h"

/* Rows have at most as many dimensions, after those that follow each other in memory have become one. */
enum { ONEP_LOGITS_MAX_RANK = 8 };

/* Rows of at most so many columns are a warp's work, wider ones a block's. The bits of a row depend on its width alone.
 */
enum { ONEP_LOGITS_WARP_COLUMNS = 1024, ONEP_LOGITS_WARPS = 4, ONEP_LOGITS_THREADS = 256 };

/*
 * Kernels that have slices of a row in shared memory: rows of few columns are the work of eight lanes, others of a
 * block of up to so many warps, one for every ONEP_LOGITS_WARP_COLUMNS columns. The slices of both operands take at
 * most ONEP_LOGITS_SLOT bytes: with what blocks need beside them, a multiprocessor of compute capability 9.0 has room
 * for three, of 8.0 for two, of 8.6 for one.
 */
enum {
    ONEP_LOGITS_OCTET_COLUMNS = 128,
    ONEP_LOGITS_OCTETS = 16, /* per block */
    ONEP_LOGITS_MAX_WARPS = 8,
    ONEP_LOGITS_SLOT = 72 << 10,
    ONEP_LOGITS_MAX_COLUMNS = 1 << 24,
};

/* Kernels that have a row of so many bytes in the registers of 4 to 32 lanes; threads of a block; chunks. */
enum { ONEP_LOGITS_NARROW_BYTES = 4096, ONEP_LOGITS_NARROW_THREADS = 128, ONEP_LOGITS_NARROW_CHUNKS = 4096 };

/* Rows of a block that counts the divisor, while there are no more than so many blocks. */
enum { ONEP_LOGITS_COUNTED_ROWS = 2048, ONEP_LOGITS_COUNTING_BLOCKS = 1024 };

/*
 * Kernels that have a row in the registers of a cluster of blocks (Hopper): a warp has a slice of so many bytes, a
 * block up to ONEP_LOGITS_MAX_WARPS of them, a cluster up to so many blocks.
 */
enum {
    ONEP_LOGITS_SLICE_BYTES = 4096,
    ONEP_LOGITS_SLOT_BYTES = ONEP_LOGITS_SLICE_BYTES + 32, /* in shared memory, wherever it begins */
    ONEP_LOGITS_MAX_BLOCKS = 16,
    ONEP_LOGITS_CLUSTER_BLOCKS = 2, /* per multiprocessor */
};

/* Chunks of consecutive rows, one partial sum each: the workspace is bounded by it. */
enum { ONEP_LOGITS_MAX_CHUNKS = 32768 };

/* Element types of integers, beside those of cuda/types.h; onep_type's own numbers. */
enum { ONEP_CUDA_I32 = 5, ONEP_CUDA_I64 = 6 };

typedef struct onep_logits_operand {
    char *data; /* NULL: absent */
    long long col_stride;
    long long row_stride[ONEP_LOGITS_MAX_RANK];
    int type;
} onep_logits_operand;

typedef struct onep_logits_rows {
    long long count;
    long long chunk; /* rows of a chunk, the work of one warp or block */
    long long chunks;
    long long extent[ONEP_LOGITS_MAX_RANK];
    int rank;
} onep_logits_rows;

/*
 * What kernels of narrow rows would have to find out in every block, all of it side by side: such rows take less time
 * than a few divisions in double, than the instructions of what is hardly ever asked for, or than reading arguments
 * from many places.
 */
enum {
    ONEP_LOGITS_SCALED = 1,   /* upstream gradient or divisor are in memory */
    ONEP_LOGITS_BY_ROW = 2,   /* masks, weights or upstream gradients per row */
    ONEP_LOGITS_RESULTS = 4,  /* results beside value and gradients; gradients beyond the columns */
    ONEP_LOGITS_RANKS = 8,    /* rows of more than one dimension */
    ONEP_LOGITS_CLASSES = 16, /* class weights */
    ONEP_LOGITS_TOTAL = 32    /* a value, of all rows */
};
typedef struct onep_logits_narrow {
    int flags;
    int unit;                       /* columns that can be read and written at once: 4, 2 or 1 */
    float over_s, over_t, k_s, k_t; /* 1 / temperature of both sides; times log2(e) */
    float at_label, z_slope;        /* label_weight; 2 z_loss */
    double to_s, to_t; /* what gradients are multiplied by, beside what is in memory; of cross-entropy to_s alone */
    /* Of rows of one dimension: where they are, NULL if absent. */
    char *predictions, *targets, *labels, *gradients;
    long long predictions_stride, targets_stride, labels_stride, gradients_stride;
    int label_type;
} onep_logits_narrow;

/* See onep_logits_problem, whose members these are. */
typedef struct onep_logits_loss_args {
    onep_logits_narrow narrow;
    int finite, per_row;
    long long columns, width;
    double *counted;  /* workspace: the divisor, where it is counted; NULL: `divisor` */
    double *partial;  /* workspace: one sum per chunk */
    unsigned *ticket; /* two words, 0 before and after: blocks that are done; chunks claimed by clusters */
    long long ignore_index;
    double weight, a, b, q; /* of the divergence */
    onep_logits_rows rows;
    double label_weight, smoothing, z_loss, entropy_bonus;
    double temperature, target_temperature, label_temperature;
    double softcap, target_softcap;
    double divisor;
    int form; /* onep_target_form */
    int is_total_variation;
    int has_label_terms; /* P is needed */
    int shares_softmax;  /* P is S */
    int needs_sums;      /* a sweep for sums before the one for gradients */
    onep_logits_operand predictions, targets, labels, class_weights, weights, mask;
    onep_logits_operand grad_value, made_for, divisor_from;
    onep_logits_operand value, grad_predictions, grad_targets;
    onep_logits_operand lse, entropy, log_prob, argmax, target_lse, target_entropy;
} onep_logits_loss_args;

/* See onep_token_problem. */
typedef struct onep_logits_token_args {
    onep_logits_rows rows;
    long long columns, width, count;
    double temperature, softcap;
    long long ignore_index;
    int finite, is_backward;
    unsigned *ticket; /* as above; of the kernels of clusters */
    onep_logits_operand logits, indices, mask, log_prob, entropy, lse;
    onep_logits_operand grad_log_prob, grad_entropy, grad_lse, grad_logits;
} onep_logits_token_args;

#endif
