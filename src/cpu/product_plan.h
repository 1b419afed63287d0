/*
 * How a matrix product is cut into tiles for the CPU, and what each thread needs beside the operands. Everything here
 * depends on the shape alone (the workspace also on the number of threads), so the same call gives the same bits on any
 * number of threads.
 */
#ifndef ONEP_PRODUCT_PLAN_H
#define ONEP_PRODUCT_PLAN_H

#include "core/tensor.h"
#include "core/threads.h"

enum {
    ONEP_TILE_ROWS = 264,     /* of the result; a multiple of every level's strip of rows, 6 or 12 */
    ONEP_TILE_COLUMNS = 256,  /* a multiple of every level's panel of columns, 2 to 32 */
    ONEP_LEAST_COLUMNS = 64,  /* a tile is made narrower than that only if the result is */
    ONEP_WANTED_TILES = 16,   /* ... to have so many */
    ONEP_STRIP_MULTIPLE = 12, /* rows of a tile */
    ONEP_PANEL_MULTIPLE = 32, /* columns of a tile */
    ONEP_DEPTH_BYTES = 1024,  /* of a row of either operand that are multiplied before the next: a tile's share of both
                                 operands and its results stay in the second-level cache */
    ONEP_CHAIN = 64,          /* products added up before their sum is added to the result; divides every depth block */
    ONEP_FEW = 4,             /* up to so many rows or columns are multiplied by dot products, */
    ONEP_FEW_DEPTH = 16,      /* rows from this depth on, */
    ONEP_THIN_DEPTH = 64,     /* columns from this one: adding up the lanes is most of the work before */
    ONEP_BLAS_ROWS = 64,      /* from so many on BLAS multiplies: for fewer its own packing costs more than it gains */
    ONEP_LINE = 64,           /* bytes of a cache line, which every buffer begins at */
    ONEP_STAGGER = 16,        /* elements between rows of a buffer, so that they do not all fall on the same lines */
    ONEP_SEGMENT_ROWS = 16,   /* rows that are transposed at a time, or more */
};

typedef struct onep_product_plan {
    int64_t row_tiles, column_tiles;
    int64_t tile_rows, tile_columns; /* of all but the last */
    int64_t depth_block;
    int64_t a_stride, c_stride; /* elements between rows of the left operand's block and of the tile */
    size_t element;             /* bytes */
} onep_product_plan;

onep_product_plan onep_product_plan_of(int64_t rows, int64_t columns, size_t element);

/* What one thread works in: a block of the left operand, panels of the right one, the tile, rows on their way. */
typedef struct onep_slot {
    char *a, *b, *c, *segments;
} onep_slot;

enum { ONEP_SEGMENT_LENGTH = 288 /* elements: the most of a tile's rows, columns and depth, and a vector */ };

/*
 * The caller's workspace: slots of work space that threads take and give back, and whatever else an operator keeps. It
 * is handed out from the front, which lies at a cache line; with a NULL base `used` tells what is needed.
 */
typedef struct onep_arena {
    char *base;
    size_t used;
} onep_arena;

void *onep_arena_take(onep_arena *arena, size_t bytes); /* whole cache lines; NULL if the base is */

typedef struct onep_slots {
    char *taken; /* one byte per slot, atomically */
    char *memory;
    size_t bytes; /* of one */
    int32_t count;
    onep_product_plan plan;
} onep_slots;

/* No more threads than tiles. */
int32_t onep_useful_threads(const onep_product_plan *plan, int32_t threads);

/* `extra` bytes are added to each slot, after what the plan needs. Memory is given, not touched. */
onep_slots onep_slots_take(onep_arena *arena, const onep_product_plan *plan, int32_t threads, size_t extra);

/* Marks every slot as free, before the first one is taken. */
void onep_slots_open(const onep_slots *slots);

/* Bytes of the slots of one product. */
size_t onep_product_bytes(int64_t rows, int64_t columns, size_t element, int32_t threads);

/* A free slot: there are as many as threads, so there is one. */
int32_t onep_slot_enter(const onep_slots *slots);
void onep_slot_leave(const onep_slots *slots, int32_t index);
onep_slot onep_slot_of(const onep_slots *slots, int32_t index);
char *onep_slot_extra(const onep_slots *slots, int32_t index);

/* The rows lie at equal distances: *stride is that distance in bytes (0 for a single row). */
int onep_rows_even(const onep_operand *operand, const onep_rows *rows, int64_t *stride);

static inline int64_t onep_round_up(int64_t x, int64_t multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

#endif
