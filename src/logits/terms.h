/* The terms of a KL divergence in double, in the form that is never negative: what ref.c and top_k.c add up. */
#ifndef ONEP_LOGITS_TERMS_H
#define ONEP_LOGITS_TERMS_H

#include <math.h>

/* delta - 1 + exp(-delta) >= 0. Below 1/32 as a series: 9 terms leave 1e-17 of it. */
static inline double onep_h(double delta)
{
    if (fabs(delta) >= 1.0 / 32)
        return delta + expm1(-delta);
    double sum = 0;
    for (int k = 10; k >= 2; k--) /* sum of (-delta)^k / k! from k = 2, by Horner's rule */
        sum = (sum * -delta + 1) / k;
    return sum * delta * delta;
}

/* x log(x / m) - x + m >= 0 with log_x_m = log(x / m): m where x is 0, and no overflow where x is next to nothing. */
static inline double onep_relative_entropy(double x, double log_x_m, double m)
{
    if (x == 0)
        return m;
    return log_x_m < -1 ? x * (log_x_m - 1) + m : x * onep_h(log_x_m);
}

#endif
