/*
 * What device code computes with and C++ has no words for: bits, roundings, and the PTX instructions that kernels write
 * out themselves, which emulated_sources.py turns into calls of functions with their names. They do what the PTX manual
 * says; where it allows an error, the result is the exact one rounded, unless said otherwise.
 */
#ifndef ONEPASS_TEST_EMULATED_MATH_HPP
#define ONEPASS_TEST_EMULATED_MATH_HPP

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include "core/types.h"
}

template <class TO, class FROM> static inline TO same_bits_as(FROM from)
{
    TO to;
    static_assert(sizeof to == sizeof from, "as many bits");
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __int_as_float(int x)
{
    return same_bits_as<float>(x);
}
/* The high word of a product; the words of `high:low` shifted right, the low one. */
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline int __float_as_int(float x)
{
    return same_bits_as<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return same_bits_as<float>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return same_bits_as<unsigned>(x);
}
static inline double __longlong_as_double(long long x)
{
    return same_bits_as<double>(x);
}
static inline long long __double_as_longlong(double x)
{
    return same_bits_as<long long>(x);
}
static inline int __double2hiint(double x)
{
    return (int)(same_bits_as<long long>(x) >> 32);
}
static inline int __double2loint(double x)
{
    return (int)same_bits_as<long long>(x);
}
static inline double __hiloint2double(int high, int low)
{
    return same_bits_as<double>((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(unsigned x)
{
    return __builtin_ffs((int)x);
}
static inline int __clz(unsigned x)
{
    return x ? __builtin_clz(x) : 32;
}
static inline unsigned __vmaxu2(unsigned x, unsigned y)
{
    unsigned low = (x & 0xffff) > (y & 0xffff) ? x & 0xffff : y & 0xffff;
    return low | ((x >> 16) > (y >> 16) ? x >> 16 : y >> 16) << 16;
}

/* The one of two that C++ leaves to templates; of mixed types as C would promote them. */
template <class A, class B> static inline auto min(A a, B b) -> decltype(a + b)
{
    return b < a ? b : a;
}
template <class A, class B> static inline auto max(A a, B b) -> decltype(a + b)
{
    return a < b ? b : a;
}

/* Never fused with what comes next: nothing here is (-ffp-contract=off). */
static inline float __fadd_rn(float x, float y)
{
    return x + y;
}
static inline float __fmul_rn(float x, float y)
{
    return x * y;
}
static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
static inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline double __dadd_rn(double x, double y)
{
    return x + y;
}
static inline double __dmul_rn(double x, double y)
{
    return x * y;
}
static inline double __fma_rn(double x, double y, double z)
{
    return fma(x, y, z);
}
static inline float rsqrtf(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}

/* Toward zero. */
static inline float __double2float_rz(double x)
{
    float y = (float)x;
    if (fabs((double)y) > fabs(x)) /* an infinity from a finite number, too */
        y = nextafterf(y, 0.0f);
    return y;
}
static inline float __double2float_rn(double x)
{
    return (float)x;
}
static inline int __float2int_rn(float x)
{
    return (int)rintf(x);
}
static inline int __double2int_rn(double x)
{
    return (int)rint(x);
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

/* ptx::NAME(operands in the order in which the instruction names them), results first. */
namespace ptx
{

static const uint16_t HALF_NAN = 0x7fff;

static inline float flushed(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}
static inline double flushed(double x)
{
    return fabs(x) < DBL_MIN ? copysign(0.0, x) : x;
}

static inline uint16_t f16_of(float x)
{
    return x == x ? onep_f16_from_f64((double)x) : HALF_NAN;
}
static inline uint16_t bf16_of(float x)
{
    return x == x ? onep_bf16_from_f64((double)x) : HALF_NAN;
}

static inline void cvt_f32_f16(float &to, uint16_t x)
{
    to = onep_f16_to_f32(x);
}
static inline void cvt_rn_f16_f32(uint16_t &to, float x)
{
    to = f16_of(x);
}
static inline void cvt_rn_bf16_f32(uint16_t &to, float x)
{
    to = bf16_of(x);
}
/* The first operand becomes the upper half. */
static inline void cvt_rn_f16x2_f32(unsigned &to, float upper, float lower)
{
    to = (unsigned)f16_of(upper) << 16 | f16_of(lower);
}
static inline void cvt_rn_bf16x2_f32(unsigned &to, float upper, float lower)
{
    to = (unsigned)bf16_of(upper) << 16 | bf16_of(lower);
}
/* A word taken apart into two halves, each of them widened. */
static inline void mov_b32__cvt_f32_f16__cvt_f32_f16(unsigned word, float &lower, float &upper)
{
    lower = onep_f16_to_f32((uint16_t)word);
    upper = onep_f16_to_f32((uint16_t)(word >> 16));
}

/* Each half by itself; NaN if either is NaN, and -0 below +0. */
template <class WIDEN> static inline uint16_t half_extreme(uint16_t a, uint16_t b, bool most, WIDEN widen)
{
    const float x = widen(a), y = widen(b);
    if (x != x || y != y)
        return HALF_NAN;
    const bool below = x < y || (x == y && signbit(x) && !signbit(y));
    return below == most ? b : a;
}
template <class WIDEN> static inline unsigned halves_extreme(unsigned a, unsigned b, bool most, WIDEN widen)
{
    return (unsigned)half_extreme((uint16_t)(a >> 16), (uint16_t)(b >> 16), most, widen) << 16 |
           half_extreme((uint16_t)a, (uint16_t)b, most, widen);
}
static inline void min_NaN_f16x2(unsigned &to, unsigned a, unsigned b)
{
    to = halves_extreme(a, b, false, onep_f16_to_f32);
}
static inline void max_NaN_f16x2(unsigned &to, unsigned a, unsigned b)
{
    to = halves_extreme(a, b, true, onep_f16_to_f32);
}
static inline void min_NaN_bf16x2(unsigned &to, unsigned a, unsigned b)
{
    to = halves_extreme(a, b, false, onep_bf16_to_f32);
}
static inline void max_NaN_bf16x2(unsigned &to, unsigned a, unsigned b)
{
    to = halves_extreme(a, b, true, onep_bf16_to_f32);
}

/* NaN if either is. */
static inline void max_NaN_f32(float &to, float x, float y)
{
    to = x != x || y != y ? same_bits_as<float>(0x7fffffffu) : x < y ? y : x;
}

/* "setp.eq.f32 p, a, b; @p add.s32 count, count, 1; @!p add.f32 sum, sum, x;" */
static inline void setp_eq_f32___p___p(float a, float b, int &count, float &sum, float x)
{
    if (a == b)
        count++;
    else
        sum += x;
}

static inline void rcp_approx_ftz_f32(float &to, float x)
{
    to = flushed(1.0f / flushed(x));
}
/* Only the upper half of the bits: the caller must refine it. */
static inline void rcp_approx_ftz_f64(double &to, double x)
{
    const double r = flushed(1.0 / flushed(x));
    to = r != r ? r : same_bits_as<double>(same_bits_as<unsigned long long>(r) & 0xffffffff00000000ull);
}
static inline void ex2_approx_ftz_f32(float &to, float x)
{
    to = flushed(exp2f(flushed(x)));
}
static inline void lg2_approx_ftz_f32(float &to, float x)
{
    to = flushed(log2f(flushed(x)));
}
static inline void rsqrt_approx_ftz_f32(float &to, float x)
{
    to = flushed((float)(1.0 / sqrt((double)flushed(x))));
}
static inline void tanh_approx_f32(float &to, float x)
{
    to = tanhf(x);
}
static inline void griddepcontrol_wait() {}
static inline void griddepcontrol_launch_dependents() {}

} // namespace ptx

#endif
