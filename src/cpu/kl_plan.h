/*
 * How a KL problem is cut into blocks for the CPU, and how the blocks' sums are put together. Everything here depends
 * on the shape and layout alone, never on threads or vector level, so the same call gives the same bits on any number
 * of threads.
 */
#ifndef ONEP_KL_PLAN_H
#define ONEP_KL_PLAN_H

#include "handle.h"
#include "sum.h"
#include "threads.h"

enum {
    ONEP_KL_MAX_BLOCKS = 512,       /* partial sums stay on the caller's stack: 8 KiB */
    ONEP_KL_BLOCK_ELEMENTS = 32768, /* a block is worth handing to a thread from about here */
    ONEP_KL_SEGMENT = 2048,         /* elements a kernel sums before the sum is folded into the block's */
    ONEP_KL_RUN = 8,                /* vectors added up in the kernel's own type before double takes over */
    ONEP_KL_STREAM_BYTES = 1 << 25, /* gradients from this size on are written past the caches */
    ONEP_KL_STRIP = 256,            /* elements gathered at a time when an operand is not contiguous */
};

/* What a kernel is asked to make of a run of elements. */
enum {
    ONEP_KL_SUM = 1,
    ONEP_KL_VALUE = 2, /* each element's */
    ONEP_KL_GRAD_PREDICTIONS = 4,
    ONEP_KL_GRAD_TARGETS = 8,
};

/* Either whole rows, rows_per_block at a time (parts = 1), or each row in `parts` pieces of columns_per_part. */
typedef struct onep_kl_plan {
    int64_t blocks, rows_per_block, parts, columns_per_part;
} onep_kl_plan;

onep_kl_plan onep_kl_plan_of(const onep_kl_problem *problem);

/* Stores the value from the blocks' weighted sums, if it was asked for and the blocks have not stored it themselves. */
void onep_kl_finish(const onep_kl_problem *problem, const onep_kl_plan *plan, const onep_sum *partial);

/* Elements of 2, 4 or 8 bytes between a strided place and a compact one. */
void onep_collect(void *to, const char *from, int64_t stride, size_t size, int64_t count);
void onep_spread(char *to, int64_t stride, const void *from, size_t size, int64_t count);

#endif
