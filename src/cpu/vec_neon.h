/* The vector contract (vec.h) on 64-bit Arm (Advanced SIMD): 4 floats or 2 doubles. */
#ifndef ONEP_VEC_NEON_H
#define ONEP_VEC_NEON_H

#include <arm_neon.h>

#include "cpu/vec.h"

enum { VF_LANES = 4, VD_LANES = 2, V_REGISTERS = 32 };

typedef float32x4_t vf;
typedef float64x2_t vd;
typedef int32x4_t vfi;
typedef int64x2_t vdi;
typedef uint32x4_t vfm;
typedef uint64x2_t vdm;
typedef struct vf_acc {
    float64x2_t low, high;
} vf_acc;
typedef struct vd_acc {
    float64x2_t sum;
} vd_acc;

V_INLINE vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
V_INLINE vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
V_INLINE vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
V_INLINE vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
V_INLINE vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
V_INLINE vf vf_min(vf a, vf b)
{
    return vminq_f32(a, b);
}
V_INLINE vf vf_max(vf a, vf b)
{
    return vmaxq_f32(a, b);
}
V_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
V_INLINE vfm vf_eq(vf a, vf b)
{
    return vceqq_f32(a, b);
}
V_INLINE vfm vf_lt(vf a, vf b)
{
    return vcltq_f32(a, b);
}
V_INLINE vfm vf_ge(vf a, vf b)
{
    return vcgeq_f32(a, b);
}
V_INLINE vfm vf_both(vfm m, vfm n)
{
    return vandq_u32(m, n);
}
V_INLINE vfm vf_either(vfm m, vfm n)
{
    return vorrq_u32(m, n);
}
V_INLINE int vf_all(vfm m)
{
    return vminvq_u32(m) != 0;
}
V_INLINE vf vf_select(vfm m, vf a, vf b)
{
    return vbslq_f32(m, a, b);
}
V_INLINE vfi vf_bits(vf a)
{
    return vreinterpretq_s32_f32(a);
}
V_INLINE vf vf_from_bits(vfi a)
{
    return vreinterpretq_f32_s32(a);
}
V_INLINE vfi vf_set1_bits(int32_t x)
{
    return vdupq_n_s32(x);
}
V_INLINE vfi vf_bits_add(vfi a, vfi b)
{
    return vaddq_s32(a, b);
}
V_INLINE vfi vf_bits_sub(vfi a, vfi b)
{
    return vsubq_s32(a, b);
}
V_INLINE vfi vf_bits_and(vfi a, vfi b)
{
    return vandq_s32(a, b);
}
V_INLINE vfi vf_bits_shl(vfi a, int n)
{
    return vshlq_s32(a, vdupq_n_s32(n));
}
V_INLINE vd vd_set1(double x)
{
    return vdupq_n_f64(x);
}
V_INLINE vd vd_add(vd a, vd b)
{
    return vaddq_f64(a, b);
}
V_INLINE vd vd_sub(vd a, vd b)
{
    return vsubq_f64(a, b);
}
V_INLINE vd vd_mul(vd a, vd b)
{
    return vmulq_f64(a, b);
}
V_INLINE vd vd_div(vd a, vd b)
{
    return vdivq_f64(a, b);
}
V_INLINE vd vd_min(vd a, vd b)
{
    return vminq_f64(a, b);
}
V_INLINE vd vd_max(vd a, vd b)
{
    return vmaxq_f64(a, b);
}
V_INLINE vd vd_fma(vd a, vd b, vd c)
{
    return vfmaq_f64(c, a, b);
}
V_INLINE vdm vd_eq(vd a, vd b)
{
    return vceqq_f64(a, b);
}
V_INLINE vdm vd_lt(vd a, vd b)
{
    return vcltq_f64(a, b);
}
V_INLINE vdm vd_ge(vd a, vd b)
{
    return vcgeq_f64(a, b);
}
V_INLINE vdm vd_both(vdm m, vdm n)
{
    return vandq_u64(m, n);
}
V_INLINE vdm vd_either(vdm m, vdm n)
{
    return vorrq_u64(m, n);
}
V_INLINE int vd_all(vdm m)
{
    return vminvq_u32(vreinterpretq_u32_u64(m)) != 0;
}
V_INLINE vd vd_select(vdm m, vd a, vd b)
{
    return vbslq_f64(m, a, b);
}
V_INLINE vdi vd_bits(vd a)
{
    return vreinterpretq_s64_f64(a);
}
V_INLINE vd vd_from_bits(vdi a)
{
    return vreinterpretq_f64_s64(a);
}
V_INLINE vdi vd_set1_bits(int64_t x)
{
    return vdupq_n_s64(x);
}
V_INLINE vdi vd_bits_add(vdi a, vdi b)
{
    return vaddq_s64(a, b);
}
V_INLINE vdi vd_bits_sub(vdi a, vdi b)
{
    return vsubq_s64(a, b);
}
V_INLINE vdi vd_bits_and(vdi a, vdi b)
{
    return vandq_s64(a, b);
}
V_INLINE vdi vd_bits_shl(vdi a, int n)
{
    return vshlq_s64(a, vdupq_n_s64(n));
}
V_INLINE vfi vf_watch(vfi seen, vfi a, vfi b, int32_t limit)
{
    (void)limit; /* the largest is kept, and compared at the end */
    uint32x4_t larger = vmaxq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b));
    return vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(seen), larger));
}
V_INLINE int vf_all_below(vfi seen, int32_t limit)
{
    return vmaxvq_u32(vreinterpretq_u32_s32(seen)) < (uint32_t)limit;
}
V_INLINE vdi vd_watch(vdi seen, vdi a, vdi b, int64_t limit)
{
    uint64x2_t bound = vdupq_n_u64((uint64_t)limit);
    uint64x2_t reached =
        vorrq_u64(vcgeq_u64(vreinterpretq_u64_s64(a), bound), vcgeq_u64(vreinterpretq_u64_s64(b), bound));
    return vorrq_s64(seen, vreinterpretq_s64_u64(reached));
}
V_INLINE int vd_all_below(vdi seen, int64_t limit)
{
    (void)limit;
    return vmaxvq_u32(vreinterpretq_u32_s64(seen)) == 0;
}
V_INLINE vf vf_exponent_times(vfi k, float c)
{
    return vmulq_n_f32(vcvtq_f32_s32(k), c * 0x1p-23f);
}
V_INLINE vd vd_exponent_times(vdi k, double c)
{
    return vmulq_n_f64(vcvtq_f64_s64(k), c * 0x1p-52);
}
V_INLINE vf_acc vf_acc_zero(void)
{
    return (vf_acc){vdupq_n_f64(0), vdupq_n_f64(0)};
}
V_INLINE vf_acc vf_acc_add(vf_acc acc, vf x)
{
    return (vf_acc){vaddq_f64(acc.low, vcvt_f64_f32(vget_low_f32(x))), vaddq_f64(acc.high, vcvt_high_f64_f32(x))};
}
V_INLINE vd_acc vd_acc_zero(void)
{
    return (vd_acc){vdupq_n_f64(0)};
}
V_INLINE vd_acc vd_acc_add(vd_acc acc, vd x)
{
    return (vd_acc){vaddq_f64(acc.sum, x)};
}
V_INLINE double vd_acc_sum(vd_acc acc)
{
    return vaddvq_f64(acc.sum);
}
V_INLINE double vf_acc_sum(vf_acc acc)
{
    return vaddvq_f64(vaddq_f64(acc.low, acc.high));
}
V_INLINE void vd_acc_store(double *to, vd_acc acc)
{
    memcpy(to, &acc.sum, sizeof acc.sum);
}
V_INLINE void vf_acc_store(double *to, vf_acc acc)
{
    memcpy(to, &acc.low, sizeof acc.low);
    memcpy(to + 2, &acc.high, sizeof acc.high);
}
V_INLINE void vd_transpose(vd *rows)
{
    vd first = vtrn1q_f64(rows[0], rows[1]);
    rows[1] = vtrn2q_f64(rows[0], rows[1]);
    rows[0] = first;
}
V_INLINE void vf_transpose(vf *rows)
{
    float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(rows[0], rows[1]));
    float64x2_t t1 = vreinterpretq_f64_f32(vtrn2q_f32(rows[0], rows[1]));
    float64x2_t t2 = vreinterpretq_f64_f32(vtrn1q_f32(rows[2], rows[3]));
    float64x2_t t3 = vreinterpretq_f64_f32(vtrn2q_f32(rows[2], rows[3]));
    rows[0] = vreinterpretq_f32_f64(vtrn1q_f64(t0, t2));
    rows[1] = vreinterpretq_f32_f64(vtrn1q_f64(t1, t3));
    rows[2] = vreinterpretq_f32_f64(vtrn2q_f64(t0, t2));
    rows[3] = vreinterpretq_f32_f64(vtrn2q_f64(t1, t3));
}

/* Loads and stores go through memcpy of the register: the compiler makes one instruction of it, of any alignment. */
V_INLINE vf vf_load_f32(const void *from)
{
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}
V_INLINE vf vf_load_f16(const void *from)
{
    float16x4_t half;
    memcpy(&half, from, sizeof half);
    return vcvt_f32_f16(half);
}
V_INLINE vf vf_load_bf16(const void *from)
{
    uint16x4_t half;
    memcpy(&half, from, sizeof half);
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}
V_INLINE vd vd_load_f64(const void *from)
{
    vd x;
    memcpy(&x, from, sizeof x);
    return x;
}
V_INLINE void vf_store_f32(void *to, vf x)
{
    memcpy(to, &x, sizeof x);
}
V_INLINE void vf_store_f16(void *to, vf x)
{
    float16x4_t half = vcvt_f16_f32(x);
    memcpy(to, &half, sizeof half);
}
V_INLINE void vf_store_bf16(void *to, vf x)
{
    /* Ties to even: add 0x7fff and the last kept bit, then cut. A NaN would carry into infinity: it gets its quiet bit.
     */
    uint32x4_t bits = vreinterpretq_u32_f32(x);
    uint32x4_t last = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(last, vdupq_n_u32(0x7fff)));
    uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    uint16x4_t half = vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
    memcpy(to, &half, sizeof half);
}
V_INLINE void vd_store_f64(void *to, vd x)
{
    memcpy(to, &x, sizeof x);
}
V_INLINE void vf_stream_f32(void *to, vf x)
{
    vf_store_f32(to, x);
}
V_INLINE void vf_stream_f16(void *to, vf x)
{
    vf_store_f16(to, x);
}
V_INLINE void vf_stream_bf16(void *to, vf x)
{
    vf_store_bf16(to, x);
}
V_INLINE void vd_stream_f64(void *to, vd x)
{
    vd_store_f64(to, x);
}
V_INLINE void v_stream_end(void)
{
    /* nothing was streamed */
}

#endif
