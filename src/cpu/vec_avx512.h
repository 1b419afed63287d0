/* The vector contract (vec.h) on AVX-512 F, BW, DQ and VL: 16 floats or 8 doubles. */
#ifndef ONEP_VEC_AVX512_H
#define ONEP_VEC_AVX512_H

#include <immintrin.h>

#include "cpu/vec.h"

enum { VF_LANES = 16, VD_LANES = 8, V_REGISTERS = 32 };

typedef __m512 vf;
typedef __m512d vd;
typedef struct vfi {
    __m512i v;
} vfi;
typedef struct vdi {
    __m512i v;
} vdi;
typedef struct vfm {
    __mmask16 v;
} vfm;
typedef struct vdm {
    __mmask8 v;
} vdm;
typedef struct vf_acc {
    __m512d low, high;
} vf_acc;
typedef struct vd_acc {
    __m512d sum;
} vd_acc;

V_INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
V_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
V_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
V_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
V_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
V_INLINE vfm vf_eq(vf a, vf b)
{
    return (vfm){_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)};
}
V_INLINE vfm vf_lt(vf a, vf b)
{
    return (vfm){_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)};
}
V_INLINE vfm vf_ge(vf a, vf b)
{
    return (vfm){_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ)};
}
V_INLINE vfm vf_both(vfm m, vfm n)
{
    return (vfm){(__mmask16)(m.v & n.v)};
}
V_INLINE vfm vf_either(vfm m, vfm n)
{
    return (vfm){(__mmask16)(m.v | n.v)};
}
V_INLINE int vf_all(vfm m)
{
    return m.v == 0xffff;
}
V_INLINE vf vf_select(vfm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m.v, b, a);
}
V_INLINE vfi vf_bits(vf a)
{
    return (vfi){_mm512_castps_si512(a)};
}
V_INLINE vf vf_from_bits(vfi a)
{
    return _mm512_castsi512_ps(a.v);
}
V_INLINE vfi vf_set1_bits(int32_t x)
{
    return (vfi){_mm512_set1_epi32(x)};
}
V_INLINE vfi vf_bits_add(vfi a, vfi b)
{
    return (vfi){_mm512_add_epi32(a.v, b.v)};
}
V_INLINE vfi vf_bits_sub(vfi a, vfi b)
{
    return (vfi){_mm512_sub_epi32(a.v, b.v)};
}
V_INLINE vfi vf_bits_and(vfi a, vfi b)
{
    return (vfi){_mm512_and_si512(a.v, b.v)};
}
V_INLINE vfi vf_bits_shl(vfi a, int n)
{
    return (vfi){_mm512_slli_epi32(a.v, (unsigned)n)};
}
V_INLINE vd vd_set1(double x)
{
    return _mm512_set1_pd(x);
}
V_INLINE vd vd_add(vd a, vd b)
{
    return _mm512_add_pd(a, b);
}
V_INLINE vd vd_sub(vd a, vd b)
{
    return _mm512_sub_pd(a, b);
}
V_INLINE vd vd_mul(vd a, vd b)
{
    return _mm512_mul_pd(a, b);
}
V_INLINE vd vd_div(vd a, vd b)
{
    return _mm512_div_pd(a, b);
}
V_INLINE vd vd_min(vd a, vd b)
{
    return _mm512_min_pd(a, b);
}
V_INLINE vd vd_max(vd a, vd b)
{
    return _mm512_max_pd(a, b);
}
V_INLINE vd vd_fma(vd a, vd b, vd c)
{
    return _mm512_fmadd_pd(a, b, c);
}
V_INLINE vdm vd_eq(vd a, vd b)
{
    return (vdm){_mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ)};
}
V_INLINE vdm vd_lt(vd a, vd b)
{
    return (vdm){_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ)};
}
V_INLINE vdm vd_ge(vd a, vd b)
{
    return (vdm){_mm512_cmp_pd_mask(a, b, _CMP_GE_OQ)};
}
V_INLINE vdm vd_both(vdm m, vdm n)
{
    return (vdm){(__mmask8)(m.v & n.v)};
}
V_INLINE vdm vd_either(vdm m, vdm n)
{
    return (vdm){(__mmask8)(m.v | n.v)};
}
V_INLINE int vd_all(vdm m)
{
    return m.v == 0xff;
}
V_INLINE vd vd_select(vdm m, vd a, vd b)
{
    return _mm512_mask_blend_pd(m.v, b, a);
}
V_INLINE vdi vd_bits(vd a)
{
    return (vdi){_mm512_castpd_si512(a)};
}
V_INLINE vd vd_from_bits(vdi a)
{
    return _mm512_castsi512_pd(a.v);
}
V_INLINE vdi vd_set1_bits(int64_t x)
{
    return (vdi){_mm512_set1_epi64(x)};
}
V_INLINE vdi vd_bits_add(vdi a, vdi b)
{
    return (vdi){_mm512_add_epi64(a.v, b.v)};
}
V_INLINE vdi vd_bits_sub(vdi a, vdi b)
{
    return (vdi){_mm512_sub_epi64(a.v, b.v)};
}
V_INLINE vdi vd_bits_and(vdi a, vdi b)
{
    return (vdi){_mm512_and_si512(a.v, b.v)};
}
V_INLINE vdi vd_bits_shl(vdi a, int n)
{
    return (vdi){_mm512_slli_epi64(a.v, (unsigned)n)};
}
V_INLINE vfi vf_watch(vfi seen, vfi a, vfi b, int32_t limit)
{
    (void)limit; /* the largest is kept, and compared at the end */
    return (vfi){_mm512_max_epu32(seen.v, _mm512_max_epu32(a.v, b.v))};
}
V_INLINE int vf_all_below(vfi seen, int32_t limit)
{
    return _mm512_cmplt_epu32_mask(seen.v, _mm512_set1_epi32(limit)) == 0xffff;
}
V_INLINE vdi vd_watch(vdi seen, vdi a, vdi b, int64_t limit)
{
    (void)limit; /* the largest is kept, and compared at the end */
    return (vdi){_mm512_max_epu64(seen.v, _mm512_max_epu64(a.v, b.v))};
}
V_INLINE int vd_all_below(vdi seen, int64_t limit)
{
    return _mm512_cmplt_epu64_mask(seen.v, _mm512_set1_epi64(limit)) == 0xff;
}
V_INLINE vf vf_exponent_times(vfi k, float c)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(k.v), _mm512_set1_ps(c * 0x1p-23f));
}
V_INLINE vd vd_exponent_times(vdi k, double c)
{
    return _mm512_mul_pd(_mm512_cvtepi64_pd(k.v), _mm512_set1_pd(c * 0x1p-52));
}
V_INLINE __m512d vf_low_half(vf x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}
V_INLINE __m512d vf_high_half(vf x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}
V_INLINE vf_acc vf_acc_zero(void)
{
    return (vf_acc){_mm512_setzero_pd(), _mm512_setzero_pd()};
}
V_INLINE vf_acc vf_acc_add(vf_acc acc, vf x)
{
    return (vf_acc){_mm512_add_pd(acc.low, vf_low_half(x)), _mm512_add_pd(acc.high, vf_high_half(x))};
}
V_INLINE vd_acc vd_acc_zero(void)
{
    return (vd_acc){_mm512_setzero_pd()};
}
V_INLINE vd_acc vd_acc_add(vd_acc acc, vd x)
{
    return (vd_acc){_mm512_add_pd(acc.sum, x)};
}
V_INLINE double vd_acc_sum(vd_acc acc)
{
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(acc.sum), _mm512_extractf64x4_pd(acc.sum, 1));
    __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}
V_INLINE double vf_acc_sum(vf_acc acc)
{
    return vd_acc_sum((vd_acc){_mm512_add_pd(acc.low, acc.high)});
}
V_INLINE void vd_acc_store(double *to, vd_acc acc)
{
    _mm512_storeu_pd(to, acc.sum);
}
V_INLINE void vf_acc_store(double *to, vf_acc acc)
{
    _mm512_storeu_pd(to, acc.low);
    _mm512_storeu_pd(to + 8, acc.high);
}

/* Pairs, then fours: u[4 g + c] holds, in its 128-bit part p, column 4 p + c of rows 4 g to 4 g + 3. */
V_INLINE void vf_transpose(vf *rows)
{
    vf t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int c = 0; c < 4; c++) { /* even parts, odd parts; then of each the first and the second */
        vf even_low = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88),
           even_high = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
        vf odd_low = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd),
           odd_high = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
        rows[c] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        rows[4 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        rows[8 + c] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
        rows[12 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
}
V_INLINE void vd_transpose(vd *rows)
{
    vd t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(rows[i], rows[i + 1]);
    }
    for (int c = 0; c < 2; c++) {
        vd even_low = _mm512_shuffle_f64x2(t[c], t[2 + c], 0x88),
           even_high = _mm512_shuffle_f64x2(t[4 + c], t[6 + c], 0x88);
        vd odd_low = _mm512_shuffle_f64x2(t[c], t[2 + c], 0xdd),
           odd_high = _mm512_shuffle_f64x2(t[4 + c], t[6 + c], 0xdd);
        rows[c] = _mm512_shuffle_f64x2(even_low, even_high, 0x88);
        rows[2 + c] = _mm512_shuffle_f64x2(odd_low, odd_high, 0x88);
        rows[4 + c] = _mm512_shuffle_f64x2(even_low, even_high, 0xdd);
        rows[6 + c] = _mm512_shuffle_f64x2(odd_low, odd_high, 0xdd);
    }
}
V_INLINE vf vf_load_f32(const void *from)
{
    return _mm512_loadu_ps((const float *)from);
}
V_INLINE vf vf_load_f16(const void *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
V_INLINE vf vf_load_bf16(const void *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16));
}
V_INLINE vd vd_load_f64(const void *from)
{
    return _mm512_loadu_pd((const double *)from);
}
V_INLINE void vf_store_f32(void *to, vf x)
{
    _mm512_storeu_ps((float *)to, x);
}
/* All lanes, by a mask: without optimisation gcc's form without one is a macro that converts the sign of a constant. */
V_INLINE __m256i vf_to_f16(vf x)
{
    return _mm512_maskz_cvtps_ph((__mmask16)0xffff, x, _MM_FROUND_TO_NEAREST_INT);
}
V_INLINE void vf_store_f16(void *to, vf x)
{
    _mm256_storeu_si256((__m256i *)to, vf_to_f16(x));
}
V_INLINE __m256i vf_to_bf16(vf x)
{
    /* Ties to even: add 0x7fff and the last kept bit, then cut. A NaN would carry into infinity: it gets its quiet bit.
     * vcvtneps2bf16 would do it in one instruction, but flushes subnormal numbers to zero. */
    __m512i bits = _mm512_castps_si512(x);
    __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
V_INLINE void vf_store_bf16(void *to, vf x)
{
    _mm256_storeu_si256((__m256i *)to, vf_to_bf16(x));
}
V_INLINE void vd_store_f64(void *to, vd x)
{
    _mm512_storeu_pd((double *)to, x);
}
V_INLINE void vf_stream_f32(void *to, vf x)
{
    _mm512_stream_ps((float *)to, x);
}
V_INLINE void vf_stream_f16(void *to, vf x)
{
    _mm256_stream_si256((__m256i *)to, vf_to_f16(x));
}
V_INLINE void vf_stream_bf16(void *to, vf x)
{
    _mm256_stream_si256((__m256i *)to, vf_to_bf16(x));
}
V_INLINE void vd_stream_f64(void *to, vd x)
{
    _mm512_stream_pd((double *)to, x);
}
V_INLINE void v_stream_end(void)
{
    _mm_sfence();
}

#endif
