/*
 * The arithmetic of KL divergence for one element on the device. With e the nearest whole log2(t/p), p' = 2^e p,
 * E = t - p' (exact) and s = E / (t + p'), |s| < 0.201:
 *
 *   t log(t/p) = E  +  s (E + t s^2 (2/3 + 2/5 s^2 + ...))  +  (t e) log 2
 *
 * in three sums: the linear terms, which cancel over a row; the rest, of second order near t = p; and t e, to which the
 * factor log 2 is applied once, in double. t = p gives exactly 0. One approximate reciprocal per element, no logarithm:
 * lg2.approx is biased by up to 1.6e-7, which no averaging removes.
 *
 * Elements outside the ordinary range go to the definition (kl_define.h); zeros among the targets are ordinary.
 */
#ifndef ONEP_KL_TERMS_CUH
#define ONEP_KL_TERMS_CUH

#include "cuda/elem.cuh"
#include "kl/define.h"

/* Constants of a computed type; those of float are explained in src/kl/cpu_ranges.h and src/cpu/vec_math.h. */
template <class R> struct math;

template <> struct math<float> {
    typedef int bits;
    typedef unsigned unsigned_bits;
    static __device__ __forceinline__ int as_bits(float x)
    {
        return __float_as_int(x);
    }
    static __device__ __forceinline__ float from_bits(int x)
    {
        return __int_as_float(x);
    }
    static __device__ __forceinline__ int target_origin()
    {
        return 0x01000000;
    }
    static __device__ __forceinline__ int prediction_origin()
    {
        return 0x01400000;
    }
    static __device__ __forceinline__ unsigned span() /* up to 2^64: t times e 2^23 stays finite */
    {
        return 0x5e800000;
    }
    static __device__ __forceinline__ int above_fraction()
    {
        return -0x800000;
    }
    static __device__ __forceinline__ int two_thirds()
    {
        return 0x3f2aaaab;
    }
    static __device__ __forceinline__ float low()
    {
        return 0x1p-125f;
    }
    static __device__ __forceinline__ float high()
    {
        return 0x1p64f;
    }
    /* e where it stands in k, as a number: e 2^23, one conversion and no shift */
    static __device__ __forceinline__ float binades(int k)
    {
        return (float)k;
    }
    static __device__ __forceinline__ float one_binade()
    {
        return 0x1p-23f;
    }
    static __device__ __forceinline__ double ln2_of_binade()
    {
        return 0x1.62e42fefa39efp-24;
    }
    static __device__ __forceinline__ float exp_high()
    {
        return 88.0f;
    }
    static __device__ __forceinline__ float ln2_high()
    {
        return 0x1.62e4p-1f;
    }
    static __device__ __forceinline__ float ln2_low()
    {
        return 0x1.7f7d1cp-20f;
    }
    /* 1/x, error 1 ulp */
    static __device__ __forceinline__ float reciprocal(float x)
    {
        float r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
        return r;
    }
    /* t/p, error under 1 ulp for ordinary p */
    static __device__ __forceinline__ float quotient(float t, float p)
    {
        float r = reciprocal(p);
        r = fmaf(fmaf(-p, r, 1.0f), r, r);
        return t * r;
    }
    static __device__ __forceinline__ float multiply_add(float a, float b, float c)
    {
        return fmaf(a, b, c);
    }
    static __device__ __forceinline__ float exponential(float x)
    {
        return expf(x);
    }
    /* 2 + 2/3 w + 2/5 w^2 + ..., relative error 3.2e-7 */
    static __device__ __forceinline__ float coarse_series(float w)
    {
        return fmaf(fmaf(0x1.ac138ap-2f, w, 0x1.5530e2p-1f), w, 0x1.000006p+1f);
    }
    /* 2/3 + 2/5 w + ... for w <= 0.0405, error 5e-7 */
    static __device__ __forceinline__ float series(float w)
    {
        return fmaf(fmaf(0x1.32f896p-2f, w, 0x1.9960c0p-2f), w, 0x1.555566p-1f);
    }
};

template <> struct math<double> {
    typedef long long bits;
    typedef unsigned long long unsigned_bits;
    static __device__ __forceinline__ long long as_bits(double x)
    {
        return __double_as_longlong(x);
    }
    static __device__ __forceinline__ double from_bits(long long x)
    {
        return __longlong_as_double(x);
    }
    static __device__ __forceinline__ long long target_origin()
    {
        return 0x0020000000000000;
    }
    static __device__ __forceinline__ long long prediction_origin()
    {
        return 0x0028000000000000;
    }
    static __device__ __forceinline__ unsigned long long span()
    {
        return 0x7fa0000000000000;
    }
    static __device__ __forceinline__ long long above_fraction()
    {
        return -0x10000000000000;
    }
    static __device__ __forceinline__ long long two_thirds()
    {
        return 0x3fe5555555555555;
    }
    static __device__ __forceinline__ double low()
    {
        return 0x1p-1021;
    }
    static __device__ __forceinline__ double high()
    {
        return 0x1p1021;
    }
    static __device__ __forceinline__ double binades(long long k)
    {
        return (double)(int)(k >> 52);
    }
    static __device__ __forceinline__ double one_binade()
    {
        return 1;
    }
    static __device__ __forceinline__ double ln2_of_binade()
    {
        return 0x1.62e42fefa39efp-1;
    }
    static __device__ __forceinline__ double exp_high()
    {
        return 709.0;
    }
    static __device__ __forceinline__ double ln2_high()
    {
        return 0x1.62e42fefa38p-1;
    }
    static __device__ __forceinline__ double ln2_low()
    {
        return 0x1.ef35793c76730p-45;
    }
    /* 1/x from 20 bits by two Newton steps, error 1 ulp; x between 2^-1021 and 2^1022 */
    static __device__ __forceinline__ double reciprocal(double x)
    {
        double r;
        asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(x));
        r = fma(fma(-x, r, 1.0), r, r);
        return fma(fma(-x, r, 1.0), r, r);
    }
    /* t/p, error little more than 1 ulp for ordinary p */
    static __device__ __forceinline__ double quotient(double t, double p)
    {
        return t * reciprocal(p);
    }
    static __device__ __forceinline__ double multiply_add(double a, double b, double c)
    {
        return fma(a, b, c);
    }
    static __device__ __forceinline__ double exponential(double x)
    {
        return exp(x);
    }
    static __device__ __forceinline__ double coarse_series(double w)
    {
        return 2 + w * series(w);
    }
    /* error 2.8e-17 */
    static __device__ __forceinline__ double series(double w)
    {
        double y = fma(0x1.172c250ac45f7p-3, w, 0x1.0e7962b7d28c7p-3);
        y = fma(y, w, 0x1.3b2ac9f54771dp-3);
        y = fma(y, w, 0x1.745ca5ed94e3fp-3);
        y = fma(y, w, 0x1.c71c72f45688fp-3);
        y = fma(y, w, 0x1.24924923ce009p-2);
        y = fma(y, w, 0x1.9999999999fb0p-2);
        return fma(y, w, 0x1.5555555555555p-1);
    }
};

/* value = linear + rest + binades ln2_of_binade(); derivatives to what was passed, unscaled */
template <class R> struct kl_terms {
    R linear, rest, binades;
    R d_prediction, d_target;
    bool ordinary; /* if not, nothing else here is meaningful */

    __device__ __forceinline__ R value() const
    {
        return math<R>::multiply_add(binades, (R)math<R>::ln2_of_binade(), rest) + linear;
    }
};

template <class R> __device__ __forceinline__ bool within(R x, R low, R high)
{
    return x >= low && x < high;
}

/* log(t) - x for ordinary t: see src/cpu/vec_math.inc. */
template <class R> __device__ __forceinline__ R log_minus(R t, R x)
{
    typedef math<R> M;
    typename M::bits k = (M::as_bits(t) - M::two_thirds()) & M::above_fraction();
    R e = M::binades(k) * M::one_binade();
    R f = M::from_bits(M::as_bits(t) - k) - 1;
    R s = f * M::reciprocal(f + 2);
    R w = s * s;
    R half_square = (R)0.5 * f * f;
    R low = M::multiply_add(s, M::multiply_add(w, M::series(w), half_square), e * M::ln2_low()) - half_square;
    R high = M::multiply_add(e, M::ln2_high(), -x);
    return high + (f + low);
}

/*
 * COARSE, for half types, whose ratios are 1 or at least 2^-11 away from it: the linear term is not kept apart and the
 * series is shorter, error 3e-7 of an element's value. Two instructions fewer where instructions are what limits.
 */
template <class R, bool ZEROS, bool COARSE>
__device__ __forceinline__ kl_terms<R> probs_probs(R p, R t, R d_target_at_zero)
{
    typedef math<R> M;
    kl_terms<R> terms;
    bool zero = ZEROS && t == 0;
    R u = zero ? p : t; /* t = 0 is computed as t = p, whose value is 0 too */
    typename M::bits a = M::as_bits(u) - M::target_origin();
    typename M::bits b = M::as_bits(p) - M::prediction_origin();
    terms.ordinary = (typename M::unsigned_bits)a < M::span() && (typename M::unsigned_bits)b < M::span();
    typename M::bits k = (a - b) & M::above_fraction();
    R near = M::from_bits(M::as_bits(p) + k);
    R difference = u - near;
    R s = difference * M::reciprocal(u + near);
    R w = s * s;
    R series = M::series(w);
    terms.linear = COARSE ? (R)0 : difference;
    terms.rest = COARSE ? t * s * M::coarse_series(w) : s * M::multiply_add(t * w, series, difference);
    terms.binades = t * M::binades(k);
    terms.d_prediction = -M::quotient(t, p);
    R log_ratio = M::multiply_add(M::binades(k), (R)M::ln2_of_binade(), M::multiply_add(s * w, series, s + s));
    terms.d_target = zero ? d_target_at_zero : log_ratio + 1;
    return terms;
}

template <class R, bool ZEROS> __device__ __forceinline__ kl_terms<R> log_probs_probs(R x, R t, R d_target_at_zero)
{
    typedef math<R> M;
    kl_terms<R> terms;
    bool zero = ZEROS && t == 0;
    R u = zero ? (R)1 : t;
    terms.ordinary = within(u, M::low(), M::high()) && within(x, -M::high(), M::high());
    R delta = log_minus(u, x);
    terms.linear = terms.binades = 0;
    terms.rest = t * delta;
    terms.d_prediction = -t;
    terms.d_target = zero ? d_target_at_zero : delta + 1;
    return terms;
}

template <class R> __device__ __forceinline__ kl_terms<R> probs_log_probs(R p, R y)
{
    typedef math<R> M;
    kl_terms<R> terms;
    terms.ordinary = within(p, M::low(), M::high()) && within(y, -M::high(), M::exp_high());
    R t = M::exponential(y);
    R delta = -log_minus(p, y);
    terms.linear = terms.binades = 0;
    terms.rest = t * delta;
    terms.d_prediction = -M::quotient(t, p);
    terms.d_target = M::multiply_add(t, delta, t);
    return terms;
}

template <class R> __device__ __forceinline__ kl_terms<R> log_probs_log_probs(R x, R y)
{
    typedef math<R> M;
    kl_terms<R> terms;
    terms.ordinary = within(x, -M::high(), M::high()) && within(y, -M::high(), M::exp_high());
    R t = M::exponential(y);
    R delta = y - x;
    terms.linear = terms.binades = 0;
    terms.rest = t * delta;
    terms.d_prediction = -t;
    terms.d_target = M::multiply_add(t, delta, t);
    return terms;
}

/*
 * FORM: bit 0 set, predictions are logarithms; bit 1, targets are (onep_kl_form). Without ZEROS a target of 0 is not
 * ordinary, and two instructions per element are saved.
 */
template <int FORM, bool ZEROS, bool COARSE, class R>
__device__ __forceinline__ kl_terms<R> terms_of(R prediction, R target, R d_target_at_zero)
{
    if (FORM == 0)
        return probs_probs<R, ZEROS, COARSE>(prediction, target, d_target_at_zero);
    if (FORM == 1)
        return log_probs_probs<R, ZEROS>(prediction, target, d_target_at_zero);
    if (FORM == 2)
        return probs_log_probs(prediction, target);
    return log_probs_log_probs(prediction, target);
}

/* An element by the definition, in double. Instantiated once per kernel, in a loop that ordinary elements never enter.
 */
template <int FORM, class R>
__device__ __forceinline__ onep_kl_element by_definition(R prediction, R target, int finite)
{
    return onep_kl_define_element(FORM & 1, FORM & 2, finite, (double)prediction, (double)target,
                                  sizeof(R) == sizeof(double));
}

/* The upstream gradient of a value of one element. */
__device__ __forceinline__ double upstream_of(const onep_kl_common &common)
{
    return common.upstream_one ? load_any<double>(common.upstream_one_type, common.upstream_one) : 1.0;
}

/* True if the gradients in memory are the ones asked for. */
__device__ __forceinline__ bool already_made(const onep_kl_common &common)
{
    return common.made_for && upstream_of(common) == load_any<double>(common.made_for_type, common.made_for);
}

/* The running sums of a thread. */
template <class R> struct kl_sums {
    R linear, rest, binades;
    double special;

    __device__ __forceinline__ void clear()
    {
        linear = rest = binades = 0;
        special = 0;
    }
    /* What was added in the computed type goes on in double. */
    __device__ __forceinline__ void fold()
    {
        special = total();
        linear = rest = binades = 0;
    }
    __device__ __forceinline__ double total() const
    {
        return ((double)linear + ((double)rest + (double)binades * math<R>::ln2_of_binade())) + special;
    }
};

#endif
