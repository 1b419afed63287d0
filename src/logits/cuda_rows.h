/* The rows of a problem with its operands, in the words of the kernels of losses from logits (cuda_args.h). */
#ifndef ONEP_LOGITS_CUDA_ROWS_H
#define ONEP_LOGITS_CUDA_ROWS_H

#include "core/operator.h"
#include "logits/cuda_args.h"

enum { ONEP_LOGITS_MAX_OPERANDS = 24 };

typedef struct onep_row_plan {
    const onep_rows *rows;
    const onep_operand *from[ONEP_LOGITS_MAX_OPERANDS];
    onep_logits_operand *to[ONEP_LOGITS_MAX_OPERANDS];
    int count;
} onep_row_plan;

static inline void onep_row_plan_add(onep_row_plan *plan, onep_logits_operand *to, const onep_operand *from)
{
    plan->from[plan->count] = from;
    plan->to[plan->count++] = to;
}

/* Dimension d follows dimension d - 1 in the memory of every operand. */
static inline int onep_row_plan_follows(const onep_row_plan *plan, int d)
{
    for (int i = 0; i < plan->count; i++) {
        const onep_operand *o = plan->from[i];
        if (o->data && o->row_stride[d - 1] != o->row_stride[d] * plan->rows->extent[d])
            return 0;
    }
    return 1;
}

/* Copies rows and operands, dimensions that follow each other as one, and cuts the rows into chunks. 0: there are too
 * many dimensions. */
static inline int onep_row_plan_finish(const onep_row_plan *plan, onep_logits_rows *rows)
{
    const onep_rows *from = plan->rows;
    rows->count = from->count;
    rows->rank = 0;
    for (int d = 0; d < from->rank; d++) {
        int joins = d > 0 && onep_row_plan_follows(plan, d);
        if (!joins && rows->rank == ONEP_LOGITS_MAX_RANK)
            return 0;
        int at = joins ? rows->rank - 1 : rows->rank++;
        rows->extent[at] = joins ? rows->extent[at] * from->extent[d] : from->extent[d];
        for (int i = 0; i < plan->count; i++)
            plan->to[i]->row_stride[at] = plan->from[i]->row_stride[d];
    }
    for (int i = 0; i < plan->count; i++) {
        plan->to[i]->data = plan->from[i]->data;
        plan->to[i]->col_stride = plan->from[i]->col_stride;
        plan->to[i]->type = (int)plan->from[i]->type;
    }
    rows->chunk = rows->count > ONEP_LOGITS_MAX_CHUNKS ? (rows->count - 1) / ONEP_LOGITS_MAX_CHUNKS + 1 : 1;
    rows->chunks = rows->count / rows->chunk + (rows->count % rows->chunk != 0);
    return 1;
}

#endif
