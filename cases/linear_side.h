/*
 * What the cases of losses from hidden states share: logits = input weight^T + bias of one side, exactly and with how
 * far a kernel's may be off, and the products of the logits' gradient, which are the results.
 */
#ifndef CASES_LINEAR_SIDE_H
#define CASES_LINEAR_SIDE_H

#include "cases/case.h"

/* Arguments of one side, by index. */
typedef struct linear_side {
    int input, weight, bias;
    int64_t depth;
} linear_side;

/* That of the student; that of the teacher. */
linear_side linear_side_of(const op_case *c);
linear_side linear_side_of_teacher(const op_case *c);

/* The type computed in, and the one that a kernel keeps logits and their gradient in: on CUDA what the inputs promote
 * to, elsewhere the type computed in. */
typedef struct linear_types {
    case_arithmetic arithmetic;
    onepass_dtype computed, kept;
} linear_types;

linear_types linear_types_of(case_arithmetic arithmetic, onepass_dtype promoted);

/* Row `row` of the exact logits into argument `to_argument` of case `to`. Returns E, which a kernel's logits are off by
 * at most in the first `columns`: the bound of a product (linear.h) and the rounding of what is stored. */
long double linear_side_put_logits(const op_case *c, const linear_side *side, linear_types types, int64_t row,
                                   int64_t columns, op_case *to, int to_argument);

/* The gradient of the logits as it is expected of a case of the loss from logits, [rows, width], and what a kernel's
 * may be off by besides, element by element, because its logits are off. */
typedef struct linear_gradient {
    linear_types types;
    int64_t rows, width;
    const case_argument *of_logits;
    const long double *slack;
    int (*takes_part)(const op_case *c, int64_t row);
} linear_gradient;

/* grad_input (its index is passed), grad_weight and grad_bias: the products of that gradient, with their own errors. */
void linear_side_expect_gradients(op_case *c, const linear_side *student, int grad_input, const linear_gradient *g);

/* Weights of so many deviations per root of the depth. */
void linear_side_put_weight(op_case *c, const linear_side *side, double size, case_random *random);

/* A row along the weight of a column, whose logit becomes `height`; of one of no length, as it comes. */
void linear_side_put_towering_row(op_case *c, const linear_side *side, int64_t row, int64_t column, double height);

#endif
