/*
 * KL divergence below its entry points: the checked problem every kernel computes, the definition of one element, and
 * the names of the four pairs of forms. entry.c makes a problem; ref.c, cpu.inc and cuda.c compute it.
 */
#ifndef ONEP_KL_H
#define ONEP_KL_H

#include "core/operator.h"
#include "kl/define.h"

/* What is passed: bit 0 for the predictions, bit 1 for the targets; set means logarithms. */
typedef enum onep_kl_form {
    ONEP_KL_PROBS_PROBS = 0,
    ONEP_KL_LOG_PROBS_PROBS = 1,
    ONEP_KL_PROBS_LOG_PROBS = 2,
    ONEP_KL_LOG_PROBS_LOG_PROBS = 3,
    ONEP_KL_FORMS,
} onep_kl_form;

#define ONEP_KL_LOG_PREDICTIONS(form) (((form)&1) != 0)
#define ONEP_KL_LOG_TARGETS(form)     (((form)&2) != 0)

/*
 * With u the upstream gradient (grad_value), w the row's weight, d the divisor:
 *   element value  w v(t, p); row value  w sum v; total  sum of row values / d
 *   gradients      u w v'(t, p) / d          (d is 1 for `rows` and `none`)
 * A masked row is not read; all its results are 0.
 */
typedef struct onep_kl_problem {
    onep_kl_form form;
    onepass_semantics semantics;
    onepass_reduction reduction;
    double divisor; /* of the total; 1 for `rows` and `none`; 0 for the mean of an empty tensor, which is then NaN */
    onep_rows rows;
    int64_t columns;
    onep_operand predictions, targets;
    onep_operand value;                          /* one, one per row or one per element, as reduction says */
    onep_operand grad_predictions, grad_targets; /* one per element */
    onep_operand grad_value;                     /* shaped as value; absent: 1 */
    onep_operand grad_made_for;                  /* one; absent: gradients are always made */
    onep_operand weights, mask;                  /* one per row; absent: 1 */
} onep_kl_problem;

/* True on the CPU if the gradients in memory are those asked for: see onepass_kl_options.grad_made_for. */
int onep_kl_is_made(const onep_kl_problem *problem);

/*
 * The definition, in double, special values included (docs/numerics.md has the tables). `computed` is the type a
 * kernel computes in, ONEP_F32 or ONEP_F64: where exp(y) of a target would be 0 or infinite in it, it is so here.
 */
onep_kl_element onep_kl_define(onep_kl_form form, onepass_semantics semantics, double prediction, double target,
                               onep_type computed);

/*
 * Rewrites the problem as fewer, longer rows without changing its results: dimensions that follow each other in the
 * memory of every operand become one, and where nothing is asked for per row, dimensions are first put in order of the
 * predictions' strides and reversed ones turned round, so that a transposed tensor is walked as it lies.
 */
void onep_kl_collapse(onep_kl_problem *problem);

#endif
