/*
 * One softmax for the cases of losses from logits: exact in long double, with what each number of it may be off by in a
 * kernel that computes with the unit roundoff u.
 *
 * The error model. z = v / temperature is off by e(z) = 2u |z|, under a softcap by 4u |z| + u cap / temperature more,
 * and not at all if there is neither. With m the largest z, everything is made of d = m - z >= 0:
 *
 *   d                             e(d) = u d + e(z) + e(m); 0 where z = m
 *   others = sum of exp(-d)       sum of exp(-d) (4u + e(d)), and 4u of the sum: partial sums may be in the type
 *     over all columns but one that has m
 *   L = log1p(others)             e(others) / (1 + others) + 3u L
 *   lse = m + L                   e(m) + e(L) + u |lse|
 *   -log p = d + L                e(d) + e(L) + u (d + L): relative wherever it is small
 *   p                             p (6u + e(log p))
 *   1 - p                         e(others) / (1 + others)^2 + 3u (1 - p) where z = m, else e(p) + 2u (1 - p)
 *   entropy = L + sum of p d      e(L) + sum of (e(p) d + p e(d) + 2u p d) + 2u entropy
 *
 * Sums of n numbers in double add kl_sum_error(n) of their magnitudes. Numbers below the normal ones may be 0.
 */
#ifndef CASES_SOFTMAX_H
#define CASES_SOFTMAX_H

#include "cases/case.h"

/* What kernels of this kind compute with. */
typedef struct softmax_precision {
    long double u, least; /* unit roundoff, and the smallest normal number */
} softmax_precision;

softmax_precision softmax_precision_of(case_arithmetic arithmetic, onepass_dtype promoted);

/* A row of logits as it was passed; -inf stays -inf under a softcap. */
typedef struct softmax_row {
    const double *logits;
    int64_t columns;
    double cap, temperature; /* cap 0: none */
} softmax_row;

/* One column of a softmax. */
typedef struct softmax_column {
    long double d, d_error;
    long double log_p, log_p_error;
    long double p, p_error;
    long double less, less_error; /* 1 - p */
} softmax_column;

typedef struct exact_softmax {
    softmax_row row;
    softmax_precision precision;
    long double max, max_error, others, others_error, log_sum, log_sum_error;
    long double lse, lse_error, entropy, entropy_error;
    int64_t first, last; /* between them lie all columns that may pass for the largest; 0 if there are none */
    int has_no_mass;     /* there are columns, and all are -inf */
    int is_undefined;    /* NaN or +inf among them: everything is NaN */
} exact_softmax;

exact_softmax exact_softmax_of(softmax_row row, softmax_precision precision);

softmax_column exact_column_of(const exact_softmax *s, int64_t column);

/* The derivative of the softcap at a column: 1 without one, off by 8u. */
long double softcap_slope(const softmax_row *row, int64_t column);

/* The logits of a row of an argument, into `to`. */
void softmax_load_row(const op_case *c, int argument, int64_t row, double *to);

#endif
