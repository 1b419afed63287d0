/* A sum that remembers what rounding took from it (Neumaier), so that its error does not grow with the addends. */
#ifndef ONEP_SUM_H
#define ONEP_SUM_H

#include <math.h>

typedef struct onep_sum {
    double sum, lost;
} onep_sum;

static inline void onep_sum_add(onep_sum *to, double x)
{
    double next = to->sum + x;
    to->lost += fabs(to->sum) >= fabs(x) ? (to->sum - next) + x : (x - next) + to->sum;
    to->sum = next;
}

/* An infinite or NaN sum makes `lost` NaN: it is left out then. */
static inline double onep_sum_value(onep_sum s)
{
    return isfinite(s.lost) ? s.sum + s.lost : s.sum;
}

#endif
