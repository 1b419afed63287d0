/*
 * The divergence of one column, value and derivatives: ref.c's arithmetic in float or double. Nothing is read or stored.
 */
#ifndef ONEP_LOGITS_COLUMN_CUH
#define ONEP_LOGITS_COLUMN_CUH

#include "logits/cuda_row.cuh"

enum { TARGET_LOGITS, TARGET_PROBS, TARGET_LOG_PROBS, NO_TARGET }; /* onep_target_form */

/* d - 1 + exp(-d) >= 0; as a series near 0. */
template <class R> __device__ __forceinline__ R excess(R d)
{
    const bool is_double = sizeof(R) == sizeof(double);
    if (magnitude(d) >= (R)(is_double ? 1.0 / 32 : 0.25))
        return d + expm1_of(-d);
    /* The sum of (-d)^k / k! from k = 2; the first term left out is under u of the first. */
    R sum = (R)(1.0 / 3628800);
    sum = multiply_add(sum, -d, (R)(1.0 / 362880));
    sum = multiply_add(sum, -d, (R)(1.0 / 40320));
    sum = multiply_add(sum, -d, (R)(1.0 / 5040));
    sum = multiply_add(sum, -d, (R)(1.0 / 720));
    sum = multiply_add(sum, -d, (R)(1.0 / 120));
    sum = multiply_add(sum, -d, (R)(1.0 / 24));
    sum = multiply_add(sum, -d, (R)(1.0 / 6));
    sum = multiply_add(sum, -d, (R)0.5);
    return sum * d * d;
}

/* x log(x / m) - x + m >= 0 with log_x_m = log(x / m): m where x is 0, and no overflow where x is next to nothing. */
template <class R> __device__ __forceinline__ R relative_entropy(R x, R log_x_m, R m)
{
    if (x == 0)
        return m;
    return log_x_m < -1 ? multiply_add(x, log_x_m - 1, m) : x * excess(log_x_m);
}

/* x y, and 0 where x is: what is switched off does not see an infinity. */
template <class R> __device__ __forceinline__ R times(R x, R y)
{
    return x == 0 ? (R)0 : x * y;
}

/* log(q + (1-q) exp(x)) */
template <class R> __device__ __forceinline__ R log_mixture(R q, R x)
{
    if (q == 0)
        return x;
    if (q == 1)
        return 0;
    const R large = sizeof(R) == sizeof(double) ? (R)700 : (R)80; /* exp(x) is finite up to there */
    return x > large ? x + log1p_of(-q) : log1p_of((1 - q) * expm1_of(x));
}

template <class R> struct column_terms {
    R value, s_phi, t_psi, psi;
};

/* ref.c's divergence_terms: S and T of a column, and delta = log(S / T), which is of no matter where both are 0. */
template <class R>
__device__ __forceinline__ column_terms<R> divergence_of(const onep_logits_loss_args &k, R s, R t, R delta)
{
    const R a = (R)k.a, b = (R)k.b, q = (R)k.q, one_less_q = (R)(1 - k.q);
    column_terms<R> e = {0, 0, 0, 0};
    if (s == 0 && t == 0)
        delta = 0;
    if (k.is_total_variation) {
        R difference = magnitude(delta) <= 1 ? t * expm1_of(delta) : s - t;
        R half_sign = difference > 0 ? (R)0.5 : difference < 0 ? (R)-0.5 : difference;
        e.value = (R)0.5 * magnitude(difference);
        e.s_phi = s * half_sign;
        e.t_psi = -t * half_sign;
        e.psi = -half_sign;
        return e;
    }
    R log_s_m = -log_mixture(one_less_q, -delta), log_t_m = -log_mixture(q, delta);
    R s_m = exp_of(log_s_m), t_m = exp_of(log_t_m), m = multiply_add(q, t, one_less_q * s);
    if (a != 0)
        e.value += a * relative_entropy(t, log_t_m, m);
    if (b != 0)
        e.value += b * relative_entropy(s, log_s_m, m);
    if (a != 0 && t != 0) {
        R slope = a * (log_t_m + 1 - times(q, t_m));
        e.s_phi -= a * one_less_q * t * s_m;
        e.t_psi += t * slope;
        e.psi += slope;
    }
    if (b != 0 && s != 0) {
        e.s_phi += b * s * (log_s_m + 1 - times(one_less_q, s_m));
        e.t_psi -= b * q * s * t_m;
    }
    if (b != 0)
        e.psi -= b * q * s_m;
    if (t == 0 && (a != 0 || s == 0))
        e.psi = k.finite ? (R)0 : (R)not_a_number();
    return e;
}

/* ---- KL in float ------------------------------------------------------------------------------------------------- */

/* exp(x) for x <= 0, or not far above. The product's rounding is u x, as x's own. */
__device__ __forceinline__ float fast_exp(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmul_rn(x, 1.44269504f)));
    return y;
}

/* exp(d) - 1 - d >= 0 for |d| < 1/2: the first term left out is 4e-8 of it. */
__device__ __forceinline__ float small_excess(float d)
{
    float sum = 1.0f / 40320;
    sum = fmaf(sum, d, 1.0f / 5040);
    sum = fmaf(sum, d, 1.0f / 720);
    sum = fmaf(sum, d, 1.0f / 120);
    sum = fmaf(sum, d, 1.0f / 24);
    sum = fmaf(sum, d, 1.0f / 6);
    sum = fmaf(sum, d, 0.5f);
    return sum * d * d;
}

/* S - T of a column whose sides may be near each other, and its value T h(-delta) = S - T - T delta >= 0. */
__device__ __forceinline__ float near_kl_slope(float s, float t, float delta, float &value)
{
    if (t == 0) {
        value = s;
        return s;
    }
    if (magnitude(delta) < 0.5f) {
        const float h = small_excess(delta);
        value = t * h;
        return t * (h + delta);
    }
    value = delta > 1 ? fmaf(t, -1 - delta, s) : t * (fast_exp(delta) - 1 - delta);
    return s - t;
}

#endif
