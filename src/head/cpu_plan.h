/*
 * Where the head keeps what it needs in the caller's workspace, forward and backward. As everything in product_plan.h
 * it depends on the shape, and on the number of threads only in how much room there is.
 */
#ifndef ONEP_HEAD_PLAN_H
#define ONEP_HEAD_PLAN_H

#include "cpu/product_plan.h"
#include "head/head.h"

enum {
    ONEP_HEAD_PANEL_ROWS = 4 * ONEP_TILE_ROWS, /* rows at a time where the product has no place of its own */
    ONEP_HEAD_BLOCK_ELEMENTS = 32768,          /* rows are handed to a thread by about so many elements */
    ONEP_HEAD_SUM_ROWS = 64,                   /* rows of a block of column sums, or more: ... */
    ONEP_HEAD_SUM_BLOCKS = 64,                 /* ... there are at most so many blocks */
    ONEP_HEAD_GROUP = 4,                       /* rows added up in the kernel's own type before double takes over */
    ONEP_HEAD_PADDING = 32,                    /* elements behind an array of features: whole vectors are read */
};

typedef struct onep_head_layout {
    onep_product_plan plan;
    onep_slots slots;           /* each with room for two rows of the result */
    int64_t panel_rows;         /* rows multiplied before they are normalised */
    int64_t block_rows;         /* rows normalised at a time by one thread */
    int64_t room;               /* elements of a row in a slot */
    char *slope, *shift, *lift; /* one element per feature: z = slope (q - shift) + lift */
    double *partial;            /* [row tile][sum, M2][feature]; batch statistics only */
    onep_operand product;       /* where q is built: the caller's product, the output, or the workspace */
} onep_head_layout;

/* `bytes` receives what the workspace must hold; the workspace, NULL if only its size is asked for, is not touched. */
onep_head_layout onep_head_layout_of(const onep_head_problem *problem, onep_type computed, int32_t threads,
                                     char *workspace, size_t *bytes);

/* The same of head_synchronised, whose product is there. */
onep_head_layout onep_head_softmax_layout_of(const onep_head_problem *problem, onep_type computed, int32_t threads,
                                             char *workspace, size_t *bytes);

typedef struct onep_head_backward_layout {
    onep_arena rest;        /* for the slots of the products */
    onep_product_plan plan; /* of no product: gives slots for the sums */
    onep_slots slots;
    int64_t block_rows, blocks;                /* of the column sums */
    char *mean, *rstd, *slope, *s0, *s1, *dot; /* one element per feature; dot: per row */
    double *partial;                           /* [block][s0, s1][feature] */
} onep_head_backward_layout;

onep_head_backward_layout onep_head_backward_layout_of(const onep_head_backward_problem *problem, onep_type computed,
                                                       int32_t threads, char *workspace, size_t *bytes);

/* Without the products: for the sums alone. */
onep_head_backward_layout onep_head_sums_layout_of(const onep_head_backward_problem *problem, onep_type computed,
                                                   int32_t threads, char *workspace, size_t *bytes);

#endif
