/* What exact_logits.c and exact_top_k.c share of a row. */
#ifndef CASES_EXACT_ROW_H
#define CASES_EXACT_ROW_H

#include "cases/exact_logits.h"

#define LOG_ERROR   3 /* u: relative, of a logarithm */
#define EXP_ERROR   4 /* u: relative, of an exponential, and of a quotient */
#define SCALE_ERROR 8 /* u: weight, upstream gradient, divisor, temperature, combined and applied */

typedef struct exact_top_k exact_top_k;

struct exact_logits {
    op_case *c;
    softmax_precision precision;
    int form, is_finite, is_single, is_total_variation;
    long double weight, a, b, q; /* of the divergence */
    long double label_weight, smoothing, z_loss, bonus;
    double temperature, target_temperature, label_temperature;
    int64_t width, columns;
    /* of the row at hand */
    int64_t row, label;
    int has_label;
    exact_softmax s, t, p;
    bounded s_sum, t_sum; /* of S dD/dS and T dD/dT */
    long double class_weight_sum;
    exact_top_k *top; /* of a teacher of k columns */
    double *x, *y;
    double numbers[]; /* where x and y lie */
};

/* What one side adds to D: x log(x/m), with the errors of both forms. */
typedef struct addend {
    long double plain, with_h, plain_error, h_error;
} addend;

/* A column's part of D, and of its derivatives: S dD/dS, T dD/dT, dD/dT. */
typedef struct column_terms {
    addend value;
    softmax_column s, t;
    bounded s_own, t_own, psi;
} column_terms;

/* The terms of a column whose s and t are known and not both 0; not of total variation. */
void exact_mixed_terms(const exact_logits *e, column_terms *to);

/* ---- a teacher of k columns: exact_top_k.c ----------------------------------------------------------------------- */

/* Room for the rows of this case; NULL: no memory. Freed by exact_top_k_end. */
exact_top_k *exact_top_k_begin(const exact_logits *e, case_arithmetic arithmetic);
void exact_top_k_end(exact_top_k *top);

/* The row at hand, once e->s is known. 0: an index is no column. */
int exact_top_k_load(exact_logits *e);

/* T, or S in a subset, has no mass. */
int exact_top_k_lacks_mass(const exact_logits *e);

bounded exact_top_k_divergence(exact_logits *e);

/* dD/dz of a column. */
bounded exact_top_k_slope(const exact_logits *e, int64_t column);

#endif
