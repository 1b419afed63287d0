/* Cases of KL divergence: what the numbers are like, and the exact answer of one element. */
#ifndef CASES_KL_H
#define CASES_KL_H

#include "cases/case.h"

/* The arguments and options of the description, in its order. */
enum {
    KL_PREDICTIONS,
    KL_TARGETS,
    KL_WEIGHTS,
    KL_MASK,
    KL_UPSTREAM, /* grad_value */
    KL_MADE_FOR,
    KL_VALUE,
    KL_GRAD_PREDICTIONS,
    KL_GRAD_TARGETS,
    KL_ARGUMENTS,
};
enum { KL_REDUCTION, KL_SEMANTICS, KL_DIVISOR };

/* What the numbers are like: the family of a case. */
typedef enum kl_data {
    KL_SOFTMAX,      /* rows of a softmax, temperature 1 */
    KL_SHARP,        /* the same, logits ten times as large */
    KL_ONE_HOT,      /* all of a target's weight on one column */
    KL_ZEROS,        /* zeros among the targets; under finite semantics among the predictions too */
    KL_NEAR_3,       /* targets 1e-3 away from predictions, relatively */
    KL_NEAR_6,       /* 1e-6 */
    KL_WIDE,         /* 1e-30 to 1, as far as the type goes */
    KL_UNNORMALISED, /* 0.1 to 50 */
    KL_DEEP,         /* logarithms uniform from -100 to 0 */
    KL_DATA_KINDS,
    KL_SPECIAL = KL_DATA_KINDS, /* zeros, subnormal numbers, infinities, NaN and negative numbers among ordinary ones */
} kl_data;

/* What is passed: log-probabilities, or probabilities. */
typedef struct kl_form {
    int log_predictions, log_targets;
} kl_form;

kl_form kl_form_of(const char *operator_name);

/* Twice half a unit of a type, relative to 1, and its smallest number: what kernels of this kind compute with. */
typedef struct kl_precision {
    case_arithmetic arithmetic;
    onepass_dtype promoted; /* of predictions and targets */
    long double u, s;
} kl_precision;

kl_precision kl_precision_of(case_arithmetic arithmetic, onepass_dtype promoted);

/* The exact answer for one element in long double, by the naive formula, and how far a kernel may be from it. */
typedef struct kl_exact {
    long double value, d_prediction, d_target;
    long double value_error, d_prediction_error, d_target_error;
} kl_exact;

kl_exact kl_exact_element(kl_form form, onepass_semantics semantics, const kl_precision *precision, double prediction,
                          double target);

/* How far a gradient may be off: a derivative times a scale, which is rounded too. */
long double kl_gradient_error(const kl_precision *precision, long double derivative, long double derivative_error,
                              long double scale);

/* What adding up n elements may cost, as a share of the sum of their magnitudes. */
long double kl_sum_error(int64_t n);

/* One row of the founding problem: softmax(scale * rand), or its logarithm, into compact memory. It depends on seed and
 * row alone. */
void kl_softmax_row(onepass_dtype type, void *to, int64_t columns, double scale, int logarithms, uint64_t seed,
                    int64_t row);

#endif
