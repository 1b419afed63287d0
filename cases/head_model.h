/* What the cases of the head (head.c) and those of its synchronised form (head_synchronised.c) share: the model of the
 * exact results and of their errors. */
#ifndef CASES_HEAD_MODEL_H
#define CASES_HEAD_MODEL_H

#include "cases/head.h"

typedef struct head_model {
    const op_case *c;
    int64_t rows, depth, columns;
    long double u;
    long double batch_rows; /* that statistics are over */
    long double *memory;
    long double *q, *q_error;                                             /* rows x columns */
    long double *mean, *mean_error, *rstd, *rstd_error, *var, *var_error; /* columns */
    long double *z, *z_error;                                             /* one row */
} head_model;

int head_model_begin(head_model *m, const op_case *c);
void head_model_product(head_model *m, case_arithmetic arithmetic);

/* Mean and variance of a column over the batch; *m2 and its error are what the running variance is made of. */
void head_model_batch(head_model *m, int64_t j, long double *m2, long double *m2_error);
void head_model_rstd(head_model *m, int64_t j, double eps);

/* z of a row, and the softmax of it into `output` with its error. */
void head_model_row(head_model *m, int64_t i, long double *output, long double *output_error);

/* The gradient to z, then to y, and its error. */
typedef struct head_slope {
    long double *dz, *error; /* rows x columns */
} head_slope;

void head_exact_dz(const op_case *c, int grad_output, int output, head_slope *s);

/* s0 and s1 of a column of dz. */
typedef struct head_sums {
    long double s0, s1, s0_error, s1_error;
} head_sums;

head_sums head_exact_sums(const op_case *c, const head_slope *s, int product, int mean_at, int rstd_at, int64_t j);

/* The argument of this case that the forward call knows under that number; -1: it has none. */
int head_at(const op_case *c, int forward);
int head_at_synchronised(const op_case *c, int forward);

void head_expect(op_case *c, int argument, int64_t index, long double expected, long double allowed);
void head_expect_running(op_case *c, const head_model *m, int64_t j, long double m2, long double m2_error);

/* The same seed gives a tensor of the forward call the same numbers in every call. */
void head_fill(op_case *c, int argument, int forward);
void head_hold(op_case *c, int argument, onepass_dtype least);

/* What ranks send: the first has the rows of the case, some of the others none. */
void head_fill_ranks(op_case *c, int counts, int first, int second);
void head_settle_ranks(op_case *c, int first, int last);

#endif
