/* Cases of losses from logits: divergences and cross-entropy; token log-probabilities are in token.c. */
#ifndef CASES_LOGITS_H
#define CASES_LOGITS_H

#include "cases/softmax.h"

/* The arguments and options of the descriptions, in their order. Cross-entropy has the first of them. */
enum {
    LOGITS_PREDICTIONS,
    LOGITS_LABELS,
    LOGITS_CLASS_WEIGHTS,
    LOGITS_WEIGHTS, /* of the rows */
    LOGITS_MASK,
    LOGITS_UPSTREAM, /* grad_value */
    LOGITS_MADE_FOR,
    LOGITS_DIVISOR_TENSOR,
    LOGITS_VALUE,
    LOGITS_GRAD_PREDICTIONS,
    LOGITS_LSE,
    LOGITS_ENTROPY,
    LOGITS_LOG_PROB,
    LOGITS_ARGMAX,
    LOGITS_TARGETS,
    LOGITS_GRAD_TARGETS,
    LOGITS_TARGET_LSE,
    LOGITS_TARGET_ENTROPY,
    LOGITS_ARGUMENTS,
    /* a teacher of k columns has these in place of targets and what follows them */
    LOGITS_TOP_VALUES = LOGITS_TARGETS,
    LOGITS_TOP_INDICES,
};
enum {
    LOGITS_REDUCTION,
    LOGITS_SEMANTICS,
    LOGITS_DIVISOR,
    LOGITS_TEMPERATURE,
    LOGITS_SOFTCAP,
    LOGITS_COLUMNS,
    LOGITS_HAS_IGNORE_INDEX,
    LOGITS_IGNORE_INDEX,
    LOGITS_LABEL_WEIGHT,
    LOGITS_SMOOTHING,
    LOGITS_Z_LOSS,
    LOGITS_ENTROPY_BONUS,
    LOGITS_DIVERGENCE,
    LOGITS_MIXTURE,
    LOGITS_DIVERGENCE_WEIGHT,
    LOGITS_TARGET_TEMPERATURE,
    LOGITS_LABEL_TEMPERATURE,
    LOGITS_TARGET_SOFTCAP,
    LOGITS_OPTIONS,
    LOGITS_TOP_FORM = LOGITS_OPTIONS, /* onepass_top_values */
    LOGITS_OUTSIDE,
    LOGITS_TOP_K_OPTIONS,
};
enum {
    TOKEN_LOGITS,
    TOKEN_INDICES,
    TOKEN_MASK,
    TOKEN_LOG_PROB, /* of the backward call: their gradients */
    TOKEN_ENTROPY,
    TOKEN_LSE,
    TOKEN_GRAD_LOGITS,
};
enum { TOKEN_SEMANTICS, TOKEN_TEMPERATURE, TOKEN_SOFTCAP, TOKEN_COLUMNS, TOKEN_HAS_IGNORE_INDEX, TOKEN_IGNORE_INDEX };

/* What the numbers are like: the family of a case. */
typedef enum logits_data {
    LOGITS_GAUSSIAN,
    LOGITS_SHARP,        /* one logit towers by up to 20: NLL and entropy down to 1e-8 */
    LOGITS_NEAR_3,       /* targets 1e-3 away from predictions */
    LOGITS_NEAR_4,       /* 1e-4 */
    LOGITS_MASKED,       /* -inf among them, on either side, and at the beginning of rows */
    LOGITS_WIDE,         /* -80 to 80 */
    LOGITS_UNNORMALISED, /* targets that add up to anything; logits far from 0 */
    LOGITS_DATA_KINDS,
    LOGITS_SPECIAL = LOGITS_DATA_KINDS, /* NaN, +inf, rows without mass, labels out of range among ordinary rows */
} logits_data;

/* The columns that take part. */
int64_t logits_columns(const op_case *c, int option);

/* A row of logits of a family, into `to`. */
void logits_draw_row(int family, double *to, int64_t columns, case_random *random);

/* A row of LOGITS_GAUSSIAN into compact memory. It depends on seed and row alone. */
void logits_gaussian_row(onepass_dtype type, void *to, int64_t columns, uint64_t seed, int64_t row);

/* The index that is ignored. */
double logits_ignored(const op_case *c, int has_option, int index_option);

/* What the sum of the rows is divided by. */
double logits_divisor(const op_case *c);

/* Weights, mask, upstream gradients and divisor, where they are given; c->amount 1 masks every row. */
void logits_put_row_options(op_case *c, case_random *random);

/* Of token log-probabilities, from logits and from hidden states: options at random and within the rules; types of the
 * results, of which there is at least one. */
void token_settle_options(op_case *c);
void token_settle_results(op_case *c, onepass_dtype promoted);

/* One of what settle chooses from; 0 is among it. */
double logits_choice(case_random *random, const double *from, int count);

/* NaN and infinities into row `row` of an argument that has rows, unless it shares memory with another row. */
void logits_spoil(op_case *c, int argument, int64_t row, case_random *random);

#endif
