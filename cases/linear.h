/* Cases of the linear layer, forward and backward, and of prepared weights; sums of products for these and the head. */
#ifndef CASES_LINEAR_H
#define CASES_LINEAR_H

#include <math.h>

#include "cases/case.h"

/* The arguments of the descriptions, in their order. */
enum { LINEAR_INPUT, LINEAR_WEIGHT, LINEAR_BIAS, LINEAR_PREPARED, LINEAR_OUTPUT };
enum {
    LINEAR_B_INPUT,
    LINEAR_B_WEIGHT,
    LINEAR_GRAD_OUTPUT,
    LINEAR_GRAD_INPUT,
    LINEAR_GRAD_WEIGHT,
    LINEAR_GRAD_BIAS,
};

/* What the numbers are like: the family of a case. */
typedef enum linear_data {
    LINEAR_UNIFORM,    /* in (-2, 2) */
    LINEAR_CANCELLING, /* neighbours along the depth nearly cancel */
    LINEAR_TINY,       /* products are the smallest normal numbers of float32 */
    LINEAR_WIDE,       /* both signs, 2^-12 to 2^12 */
    LINEAR_DATA_KINDS,
} linear_data;

/* A sum of n products in long double, with what its error bound is made of. Most of the time of all tests of products
 * goes by here. */
typedef struct case_product {
    long double value, size; /* of the sum; of the magnitudes of its terms */
    double most_a, most_b, sum_a, sum_b;
    int64_t n;
} case_product;

static inline void case_product_add(case_product *sum, long double a, long double b)
{
    long double term = a * b;
    double size_a = fabs((double)a), size_b = fabs((double)b);
    sum->value += term;
    sum->size += fabsl(term);
    sum->most_a = size_a > sum->most_a ? size_a : sum->most_a;
    sum->most_b = size_b > sum->most_b ? size_b : sum->most_b;
    sum->sum_a += size_a;
    sum->sum_b += size_b;
    sum->n++;
}

/*
 * How far a product computed in the type of these operands may be off before it is rounded for storing: u (8 + 4
 * sqrt(n)) of the magnitudes of its terms; on CUDA in fp32 what the split on tensor cores may be off by, if that is
 * more (docs/numerics.md, "The fp32 product on tensor cores", for any architecture).
 */
long double case_product_error(const case_product *sum, case_arithmetic arithmetic, onepass_dtype promoted);

/* Unit roundoff of the type computed in, and its smallest number. */
long double case_roundoff(onepass_dtype promoted);
long double case_smallest(onepass_dtype promoted);

#endif
