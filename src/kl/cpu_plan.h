/*
 * How a KL problem is cut into blocks for the CPU, and how the blocks' sums are put together. Everything here depends
 * on the shape and layout alone, never on threads or vector level, so the same call gives the same bits on any number
 * of threads.
 */
#ifndef ONEP_KL_PLAN_H
#define ONEP_KL_PLAN_H

#include "core/sum.h"
#include "core/threads.h"
#include "cpu/strided.h"
#include "kl/kl.h"

enum {
    ONEP_KL_MAX_BLOCKS = 512,       /* partial sums stay on the caller's stack: 8 KiB */
    ONEP_KL_BLOCK_ELEMENTS = 32768, /* a block is worth handing to a thread from about here */
    ONEP_KL_SEGMENT = 2048,         /* elements a kernel sums before the sum is folded into the block's */
    ONEP_KL_RUN = 8,                /* vectors added up in the kernel's own type before double takes over */
    ONEP_KL_SHORT_ROW = 48,         /* columns up to which rows share a tile */
    ONEP_KL_WHOLE_VECTORS = 16,     /* elements: whole vectors at every level */
    ONEP_KL_TALL_ROWS = 128,        /* rows worth a run of the kernel where columns are contiguous */
    ONEP_KL_TALL_BLOCKS = 32,       /* blocks worth having before runs get longer than that */
    ONEP_KL_TILE_SIDE = 16,         /* columns of a tile whose operands lie different ways */
    ONEP_KL_STREAM_BYTES = 1 << 25, /* gradients from this size on are written past the caches */
};

/* What a kernel is asked to make of a run of elements. */
enum {
    ONEP_KL_SUM = 1,
    ONEP_KL_VALUE = 2, /* each element's */
    ONEP_KL_GRAD_PREDICTIONS = 4,
    ONEP_KL_GRAD_TARGETS = 8,
    ONEP_KL_TERMS = 16, /* each element's, for tiles */
};

/*
 * Either whole rows, rows_per_block at a time (parts = 1), or each row in `parts` pieces of columns_per_part. Whole
 * rows are worked on one by one, or in tiles if tile_rows is not 0.
 */
typedef struct onep_kl_plan {
    int64_t blocks, rows_per_block, parts, columns_per_part;
    int64_t tile_rows, tile_columns; /* at most ONEP_STRIP elements */
    int by_columns;                  /* a tile is stored column after column */
} onep_kl_plan;

/* Where a row, or a tile of rows, of each operand begins; NULL for an operand that is absent. */
typedef struct onep_kl_row {
    char *predictions, *targets, *upstream, *value, *grad_predictions, *grad_targets, *weights, *mask;
} onep_kl_row;

onep_kl_row onep_kl_row_at(const onep_kl_problem *problem, int64_t index);
onep_kl_row onep_kl_row_below(const onep_kl_problem *problem, const onep_kl_row *row, int64_t rows);
onep_kl_row onep_kl_row_from(const onep_kl_problem *problem, const onep_kl_row *row, int64_t column);

/* From one row of a tile to the next. */
int64_t onep_kl_row_stride(const onep_kl_problem *problem, const onep_operand *operand);

/* Is a whole tile of that operand one contiguous run? */
int onep_kl_tile_is_contiguous(const onep_kl_problem *problem, const onep_kl_plan *plan, const onep_operand *operand);

onep_kl_plan onep_kl_plan_of(const onep_kl_problem *problem);

/* Stores the value from the blocks' weighted sums, if it was asked for and the blocks have not stored it themselves. */
void onep_kl_finish(const onep_kl_problem *problem, const onep_kl_plan *plan, const onep_sum *partial);

#endif
