/*
 * The definition of KL divergence for one element, in double, special values included (docs/numerics.md has the
 * tables). It is the reference itself (ref.c), and what every kernel falls back on where its own arithmetic does not
 * reach; written once for C and CUDA, with nothing but log, log1p, exp and fabs behind it.
 */
#ifndef ONEP_KL_DEFINE_H
#define ONEP_KL_DEFINE_H

#ifdef __CUDACC__
#define ONEP_KL_FUNCTION __device__ inline
#define ONEP_KL_INFINITY __longlong_as_double(0x7ff0000000000000)
#define ONEP_KL_NAN      __longlong_as_double(0x7ff8000000000000)
#else
#include <math.h>
#define ONEP_KL_FUNCTION static inline
#define ONEP_KL_INFINITY ((double)INFINITY)
#define ONEP_KL_NAN      ((double)NAN)
#endif

/* One element: its value, and the derivatives to what was passed for the prediction and for the target. */
typedef struct onep_kl_element {
    double value, d_prediction, d_target;
} onep_kl_element;

ONEP_KL_FUNCTION int onep_kl_is_finite(double x)
{
    return fabs(x) < ONEP_KL_INFINITY;
}

/* log(t / p) for 0 < t, p < inf. t - p is exact near t = p, so small divergences keep their digits. */
ONEP_KL_FUNCTION double onep_kl_log_ratio(double t, double p)
{
    if (t > 0.5 * p && t < 2 * p)
        return log1p((t - p) / p);
    double ratio = t / p;
    return ratio >= 0x1p-1022 && onep_kl_is_finite(ratio) ? log(ratio) : log(t) - log(p);
}

/* Targets are probabilities: v = xlogy(t, t) - t x with x = log p. */
ONEP_KL_FUNCTION onep_kl_element onep_kl_define_probs(int log_predictions, int finite, double prediction, double t)
{
    onep_kl_element e;
    double p = prediction;
    double x = log_predictions ? prediction : log(p);
    e.d_prediction = log_predictions ? -t : -t / p;
    if (t == 0) {
        int limit = finite && (onep_kl_is_finite(x) || x == -ONEP_KL_INFINITY);
        e.value = limit ? 0 : 0 * x; /* NaN unless x is finite */
        e.d_target = limit ? 0 : ONEP_KL_NAN;
        if (limit && !log_predictions && p == 0)
            e.d_prediction = 0;
    } else if (!log_predictions && t > 0 && p > 0 && onep_kl_is_finite(t) && onep_kl_is_finite(p)) {
        double log_ratio = onep_kl_log_ratio(t, p);
        e.value = t * log_ratio;
        e.d_target = log_ratio + 1;
    } else if (onep_kl_is_finite(t)) { /* log t is NaN for a negative t */
        e.value = t * (log(t) - x);
        e.d_target = log(t) - x + 1;
    } else { /* inf log(inf) - inf x: infinite or NaN by the sign of x; its derivative has a term inf / inf */
        e.value = t * log(t) - t * x;
        e.d_target = ONEP_KL_NAN;
    }
    return e;
}

/*
 * Targets are log-probabilities: v = exp(y) (y - x). Where exp(y) is 0 or infinite in the type a kernel computes in,
 * float unless `in_double`, it is so here.
 */
ONEP_KL_FUNCTION onep_kl_element onep_kl_define_log_probs(int log_predictions, int finite, double prediction, double y,
                                                          int in_double)
{
    onep_kl_element e;
    double x = log_predictions ? prediction : log(prediction);
    double t = exp(y);
    if (!in_double && ((float)t == 0 || !onep_kl_is_finite((double)(float)t)))
        t = (double)(float)t;
    e.d_prediction = log_predictions ? -t : -t / prediction;
    if (finite && t == 0 && (onep_kl_is_finite(x) || x == -ONEP_KL_INFINITY)) {
        e.value = 0;
        e.d_target = 0;
        if (!log_predictions && prediction == 0)
            e.d_prediction = 0;
    } else {
        e.value = t * (y - x);
        e.d_target = e.value + t;
    }
    return e;
}

ONEP_KL_FUNCTION onep_kl_element onep_kl_define_element(int log_predictions, int log_targets, int finite,
                                                        double prediction, double target, int in_double)
{
    if (log_targets)
        return onep_kl_define_log_probs(log_predictions, finite, prediction, target, in_double);
    return onep_kl_define_probs(log_predictions, finite, prediction, target);
}

#endif
