/*
 * Losses from hidden states below their entry points: the checked problem that kernels compute. entry.c makes it;
 * ref.c is the definition; cpu.inc computes the same faster.
 *
 *   logits = input weight^T + bias       value = the loss of logits/logits.h       G = its derivative to the logits
 *   grad_input = G weight       grad_weight = G^T input       grad_bias = column sums of G
 *
 * A divergence has a teacher, whose logits are made in the same way from hidden states and a weight of its own, and to
 * which there is no gradient. Token log-probabilities (logits/logits.h) are such a loss with results of its own in the
 * place of a value. Logits and G never exist as a whole: chunks of rows are multiplied, become G in place,
 * and are multiplied again. A row that takes no part is not read: it has no logits, its results and its gradient are 0.
 */
#ifndef ONEP_LINEAR_LOSS_H
#define ONEP_LINEAR_LOSS_H

#include "logits/logits.h"

/* What logits are made of. */
typedef struct onep_linear_side {
    onep_operand input, weight, bias; /* bias absent: 0 */
    onep_rows weight_rows;            /* the columns of the logits */
    int64_t depth;                    /* columns of the hidden states */
} onep_linear_side;

/* One of `loss` and `token` is NULL. */
typedef struct onep_linear_loss_problem {
    const onep_logits_problem *loss;   /* of all rows; its logits, targets and gradients are absent */
    const onep_token_problem *token;   /* of all rows; its logits and their gradient are absent */
    onep_rows rows;                    /* of the hidden states */
    int64_t width;                     /* columns of the logits */
    onep_linear_side student, teacher; /* the teacher: of a divergence */
    int64_t chunk_bytes;
    onep_operand grad_input, grad_weight, grad_bias; /* of the student; those that are absent are not made */
} onep_linear_loss_problem;

static inline int onep_linear_loss_has_teacher(const onep_linear_loss_problem *p)
{
    return p->loss && p->loss->form != ONEP_NO_TARGET;
}

/* False of a row that is masked or whose label is ignored; *label is as of onep_logits_takes_part. */
static inline int onep_linear_loss_takes_part(const onep_linear_loss_problem *p, int64_t row, int64_t *label)
{
    *label = -1;
    return p->token ? onep_token_takes_part(p->token, row) : onep_logits_takes_part(p->loss, row, label);
}

/* Token log-probabilities of one row, from its logits; their gradient, if any is made, takes their place. */
onep_token_problem onep_linear_token_row(const onep_linear_loss_problem *problem, int64_t row,
                                         const onep_operand *logits);

/* Any of the three. */
static inline int onep_linear_loss_makes_gradients(const onep_linear_loss_problem *p)
{
    return p->grad_input.data || p->grad_weight.data || p->grad_bias.data;
}

enum { ONEP_LINEAR_LOSS_CHUNK_BYTES = 1 << 29 /* unless the caller says otherwise */ };

#endif
