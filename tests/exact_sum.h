/*
 * Sums of products of floats without any rounding: a fixed-point number from 2^-352 to 2^320, which holds every product
 * of two finite floats (2^-298 to 2^256) and 2^30 of them.
 */
#ifndef ONEPASS_TEST_EXACT_SUM_H
#define ONEPASS_TEST_EXACT_SUM_H

#include <stdint.h>

enum { EXACT_DIGITS = 21 };

typedef struct exact_sum {
    int64_t digits[EXACT_DIGITS]; /* digit i counts 2^(32 i - 352); carries wait until the value is asked for */
} exact_sum;

/* sum += a b; both finite. */
void exact_add(exact_sum *sum, float a, float b);

/* The sum, cut to its leading 64 bits or more and rounded to double: relative error under 2^-52. */
double exact_value(const exact_sum *sum);

#endif
