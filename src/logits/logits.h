/*
 * Losses from logits below their entry points: the checked problems every kernel computes. entry.c and token.c make
 * them; ref.c is the definition; cpu.inc and cuda.c compute the same faster. docs/numerics.md has the words.
 *
 * Over the first `columns` columns of a row, with v = x, or cap tanh(x / cap) under a softcap, and Z(v) a softmax:
 *
 *   S = Z(v / temperature)    T = Z(y's v / target_temperature), or as it was passed    P = Z(v / label_temperature)
 *   M = q T + (1-q) S
 *   D = a KL(T || M) + b KL(S || M), or half the sum of |S - T|; with a teacher of k columns see top_k.h
 *   row = weight D + label_weight NLL(P) + z_loss lse(P)^2 - entropy_bonus H(P)
 */
#ifndef ONEP_LOGITS_H
#define ONEP_LOGITS_H

#include "core/operator.h"

typedef enum onep_target_form {
    ONEP_TARGET_LOGITS,
    ONEP_TARGET_PROBS,
    ONEP_TARGET_LOG_PROBS,
    ONEP_NO_TARGET,       /* no divergence: cross-entropy */
    ONEP_TARGET_TOP_K,    /* `targets` has k columns, whose places are top_indices: see top_k.h */
    ONEP_TARGET_OPTIONAL, /* of an operator, never of a problem: logits, or none if there are no targets */
} onep_target_form;

typedef struct onep_divergence_terms {
    double weight, a, b, q;
    int is_total_variation;
} onep_divergence_terms;

typedef struct onep_label_terms {
    double weight, smoothing, z_loss, entropy_bonus;
    int64_t ignore_index;
} onep_label_terms;

/*
 * With u the upstream gradient (grad_value), w the row's weight, d the divisor, a row's value is w row, the total the
 * sum of them / d, and gradients are u w row' / d (d is 1 for `rows`). A row that is masked or whose label is ignored
 * is not read; all its results are 0. Gradients beyond `columns` are 0.
 */
typedef struct onep_logits_problem {
    onep_target_form form;
    onepass_semantics semantics;
    onepass_reduction reduction;
    double divisor; /* as onep_kl_problem's; of `valid` and of a divisor in memory, onep_logits_divisor knows it */
    onep_divergence_terms divergence;
    onep_label_terms label;
    double temperature, target_temperature, label_temperature;
    double softcap, target_softcap; /* 0: none */
    onep_rows rows;
    int64_t columns, width; /* those that take part, and all */
    /* Of a shard: which columns of the whole row these are, and what is known of all (shard.h). Otherwise 0, `columns`
     * and NULL. */
    int64_t first_column, total_columns;
    const onep_operand *statistics;
    onep_operand predictions, targets;
    onep_operand top_indices; /* these four: of ONEP_TARGET_TOP_K */
    onepass_top_values top_values;
    onepass_outside outside;
    int top_k;
    onep_operand labels, class_weights, weights, mask;    /* absent: none, 1, 1, 1 */
    onep_operand grad_value, grad_made_for, divisor_from; /* absent: 1, always made, `divisor` */
    onep_operand value, grad_predictions, grad_targets;
    onep_operand lse, entropy, log_prob, argmax, target_lse, target_entropy; /* one per row */
} onep_logits_problem;

/* What the sum of the rows is divided by: read or counted on the processor. */
double onep_logits_divisor(const onep_logits_problem *problem);

/* True on the processor if the gradients in memory are those asked for: see onepass_kl_options.grad_made_for. */
int onep_logits_is_made(const onep_logits_problem *problem);

/* True if the row is neither masked nor has an ignored label; *label is its label, -1 if there are none. */
int onep_logits_takes_part(const onep_logits_problem *problem, int64_t row, int64_t *label);

/* Stores the sum of all rows / divisor, unless a value is stored per row. */
void onep_logits_store_total(const onep_logits_problem *problem, double sum, double divisor);

/* One row by the definition, in double: writes its gradients, times its weight, upstream gradient and 1 / divisor, and
 * its results per row; returns its weighted value. */
double onep_logits_row(const onep_logits_problem *problem, int64_t row, double divisor);

/* Token log-probabilities: indices, log_prob and its gradient have `count` columns. The backward call has grad_logits
 * and the gradients alone, the forward call the results alone. */
typedef struct onep_token_problem {
    onepass_semantics semantics;
    double temperature, softcap;
    int64_t ignore_index;
    onep_rows rows;
    int64_t columns, width, count;
    int64_t first_column, total_columns; /* these three as in onep_logits_problem */
    const onep_operand *statistics;
    onep_operand logits, indices, mask;
    onep_operand log_prob, entropy, lse;
    onep_operand grad_log_prob, grad_entropy, grad_lse, grad_logits;
} onep_token_problem;

/* True unless the row is masked. */
int onep_token_takes_part(const onep_token_problem *problem, int64_t row);

/* One row by the definition, in double. */
void onep_token_row(const onep_token_problem *problem, int64_t row);

#endif
