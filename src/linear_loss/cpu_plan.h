/*
 * Where a loss from hidden states keeps a chunk in the caller's workspace, and how rows are cut into chunks.
 *
 * Rows that take part are counted first. Their products are cut into tiles by that number, as the product of all of
 * them would be, and a chunk is whole tiles: so the bits of logits and grad_input do not depend on the chunk. Values
 * are added up row by row in double, and so are the elements of grad_bias. grad_weight is added up chunk by chunk in
 * the type that is computed in.
 */
#ifndef ONEP_LINEAR_LOSS_PLAN_H
#define ONEP_LINEAR_LOSS_PLAN_H

#include "cpu/product_plan.h"
#include "linear_loss/linear_loss.h"

typedef struct onep_linear_loss_layout {
    int64_t capacity;            /* rows of a chunk at most: a tile of rows, or more */
    onep_logits_problem *chunk;  /* the loss of a chunk's rows */
    onep_operand logits, hidden; /* of a chunk: row after row, in the type that is computed in */
    /* of a teacher; its hidden states make room for the student's once they are multiplied */
    onep_operand target_logits, target_hidden;
    int64_t *rows;            /* of a chunk: which of all rows they are; */
    int64_t *labels, *argmax; /* what there is one of per row, */
    double *weights, *upstream;
    double *value, *lse, *entropy, *log_prob;
    double *target_lse, *target_entropy; /* NULL: there is no teacher */
    double *grad_bias;                   /* its sums; NULL: it is not made */
    onep_operand grad_weight;            /* its sums: the caller's own if that can hold them; absent: it is not made */
    onep_arena rest;                     /* for the slots of the products, which follow each other */
} onep_linear_loss_layout;

/* `bytes` receives what the workspace must hold; the workspace, NULL if only its size is asked for, is not touched. */
onep_linear_loss_layout onep_linear_loss_layout_of(const onep_linear_loss_problem *problem, onep_type computed,
                                                   int32_t threads, char *workspace, size_t *bytes);

#endif
