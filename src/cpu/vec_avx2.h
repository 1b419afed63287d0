/* The vector contract (vec.h) on AVX2 with FMA and F16C: 8 floats or 4 doubles. */
#ifndef ONEP_VEC_AVX2_H
#define ONEP_VEC_AVX2_H

#include <immintrin.h>

#include "cpu/vec.h"

enum { VF_LANES = 8, VD_LANES = 4, V_REGISTERS = 16 };

typedef __m256 vf;
typedef __m256d vd;
typedef struct vfi {
    __m256i v;
} vfi;
typedef struct vdi {
    __m256i v;
} vdi;
typedef struct vfm {
    __m256 v;
} vfm;
typedef struct vdm {
    __m256d v;
} vdm;
typedef struct vf_acc {
    __m256d low, high;
} vf_acc;
typedef struct vd_acc {
    __m256d sum;
} vd_acc;

V_INLINE vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
V_INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
V_INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
V_INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
V_INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
V_INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
V_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
V_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
V_INLINE vfm vf_eq(vf a, vf b)
{
    return (vfm){_mm256_cmp_ps(a, b, _CMP_EQ_OQ)};
}
V_INLINE vfm vf_lt(vf a, vf b)
{
    return (vfm){_mm256_cmp_ps(a, b, _CMP_LT_OQ)};
}
V_INLINE vfm vf_ge(vf a, vf b)
{
    return (vfm){_mm256_cmp_ps(a, b, _CMP_GE_OQ)};
}
V_INLINE vfm vf_both(vfm m, vfm n)
{
    return (vfm){_mm256_and_ps(m.v, n.v)};
}
V_INLINE vfm vf_either(vfm m, vfm n)
{
    return (vfm){_mm256_or_ps(m.v, n.v)};
}
V_INLINE int vf_all(vfm m)
{
    return _mm256_movemask_ps(m.v) == 0xff;
}
V_INLINE vf vf_select(vfm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m.v);
}
V_INLINE vfi vf_bits(vf a)
{
    return (vfi){_mm256_castps_si256(a)};
}
V_INLINE vf vf_from_bits(vfi a)
{
    return _mm256_castsi256_ps(a.v);
}
V_INLINE vfi vf_set1_bits(int32_t x)
{
    return (vfi){_mm256_set1_epi32(x)};
}
V_INLINE vfi vf_bits_add(vfi a, vfi b)
{
    return (vfi){_mm256_add_epi32(a.v, b.v)};
}
V_INLINE vfi vf_bits_sub(vfi a, vfi b)
{
    return (vfi){_mm256_sub_epi32(a.v, b.v)};
}
V_INLINE vfi vf_bits_and(vfi a, vfi b)
{
    return (vfi){_mm256_and_si256(a.v, b.v)};
}
V_INLINE vfi vf_bits_shl(vfi a, int n)
{
    return (vfi){_mm256_slli_epi32(a.v, n)};
}
V_INLINE vd vd_set1(double x)
{
    return _mm256_set1_pd(x);
}
V_INLINE vd vd_add(vd a, vd b)
{
    return _mm256_add_pd(a, b);
}
V_INLINE vd vd_sub(vd a, vd b)
{
    return _mm256_sub_pd(a, b);
}
V_INLINE vd vd_mul(vd a, vd b)
{
    return _mm256_mul_pd(a, b);
}
V_INLINE vd vd_div(vd a, vd b)
{
    return _mm256_div_pd(a, b);
}
V_INLINE vd vd_min(vd a, vd b)
{
    return _mm256_min_pd(a, b);
}
V_INLINE vd vd_max(vd a, vd b)
{
    return _mm256_max_pd(a, b);
}
V_INLINE vd vd_fma(vd a, vd b, vd c)
{
    return _mm256_fmadd_pd(a, b, c);
}
V_INLINE vdm vd_eq(vd a, vd b)
{
    return (vdm){_mm256_cmp_pd(a, b, _CMP_EQ_OQ)};
}
V_INLINE vdm vd_lt(vd a, vd b)
{
    return (vdm){_mm256_cmp_pd(a, b, _CMP_LT_OQ)};
}
V_INLINE vdm vd_ge(vd a, vd b)
{
    return (vdm){_mm256_cmp_pd(a, b, _CMP_GE_OQ)};
}
V_INLINE vdm vd_both(vdm m, vdm n)
{
    return (vdm){_mm256_and_pd(m.v, n.v)};
}
V_INLINE vdm vd_either(vdm m, vdm n)
{
    return (vdm){_mm256_or_pd(m.v, n.v)};
}
V_INLINE int vd_all(vdm m)
{
    return _mm256_movemask_pd(m.v) == 0xf;
}
V_INLINE vd vd_select(vdm m, vd a, vd b)
{
    return _mm256_blendv_pd(b, a, m.v);
}
V_INLINE vdi vd_bits(vd a)
{
    return (vdi){_mm256_castpd_si256(a)};
}
V_INLINE vd vd_from_bits(vdi a)
{
    return _mm256_castsi256_pd(a.v);
}
V_INLINE vdi vd_set1_bits(int64_t x)
{
    return (vdi){_mm256_set1_epi64x(x)};
}
V_INLINE vdi vd_bits_add(vdi a, vdi b)
{
    return (vdi){_mm256_add_epi64(a.v, b.v)};
}
V_INLINE vdi vd_bits_sub(vdi a, vdi b)
{
    return (vdi){_mm256_sub_epi64(a.v, b.v)};
}
V_INLINE vdi vd_bits_and(vdi a, vdi b)
{
    return (vdi){_mm256_and_si256(a.v, b.v)};
}
V_INLINE vdi vd_bits_shl(vdi a, int n)
{
    return (vdi){_mm256_slli_epi64(a.v, n)};
}
V_INLINE vfi vf_watch(vfi seen, vfi a, vfi b, int32_t limit)
{
    (void)limit; /* the largest is kept, and compared at the end */
    return (vfi){_mm256_max_epu32(seen.v, _mm256_max_epu32(a.v, b.v))};
}
V_INLINE int vf_all_below(vfi seen, int32_t limit)
{
    __m256i below = _mm256_cmpeq_epi32(_mm256_min_epu32(seen.v, _mm256_set1_epi32(limit - 1)), seen.v);
    return _mm256_movemask_ps(_mm256_castsi256_ps(below)) == 0xff;
}
V_INLINE vdi vd_watch(vdi seen, vdi a, vdi b, int64_t limit)
{
    /* No unsigned 64-bit comparison here: a number is below if neither it nor limit - 1 - it has its sign bit set. */
    __m256i last = _mm256_set1_epi64x(limit - 1);
    __m256i signs = _mm256_or_si256(_mm256_or_si256(a.v, b.v),
                                    _mm256_or_si256(_mm256_sub_epi64(last, a.v), _mm256_sub_epi64(last, b.v)));
    return (vdi){_mm256_or_si256(seen.v, signs)};
}
V_INLINE int vd_all_below(vdi seen, int64_t limit)
{
    (void)limit;
    return _mm256_movemask_pd(_mm256_castsi256_pd(seen.v)) == 0;
}
V_INLINE vf vf_exponent_times(vfi k, float c)
{
    return _mm256_mul_ps(_mm256_cvtepi32_ps(k.v), _mm256_set1_ps(c * 0x1p-23f));
}
V_INLINE vd vd_exponent_times(vdi k, double c)
{
    /* e stands in the upper halves: gather those, and shift the rest of the field away. */
    __m256i upper = _mm256_permutevar8x32_epi32(k.v, _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7));
    __m256d e = _mm256_cvtepi32_pd(_mm_srai_epi32(_mm256_castsi256_si128(upper), 20));
    return _mm256_mul_pd(e, _mm256_set1_pd(c));
}
V_INLINE __m256d vf_low_half(vf x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}
V_INLINE __m256d vf_high_half(vf x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}
V_INLINE vf_acc vf_acc_zero(void)
{
    return (vf_acc){_mm256_setzero_pd(), _mm256_setzero_pd()};
}
V_INLINE vf_acc vf_acc_add(vf_acc acc, vf x)
{
    return (vf_acc){_mm256_add_pd(acc.low, vf_low_half(x)), _mm256_add_pd(acc.high, vf_high_half(x))};
}
V_INLINE vd_acc vd_acc_zero(void)
{
    return (vd_acc){_mm256_setzero_pd()};
}
V_INLINE vd_acc vd_acc_add(vd_acc acc, vd x)
{
    return (vd_acc){_mm256_add_pd(acc.sum, x)};
}
V_INLINE double vd_acc_sum(vd_acc acc)
{
    __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(acc.sum), _mm256_extractf128_pd(acc.sum, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}
V_INLINE double vf_acc_sum(vf_acc acc)
{
    return vd_acc_sum((vd_acc){_mm256_add_pd(acc.low, acc.high)});
}
V_INLINE void vd_acc_store(double *to, vd_acc acc)
{
    _mm256_storeu_pd(to, acc.sum);
}
V_INLINE void vf_acc_store(double *to, vf_acc acc)
{
    _mm256_storeu_pd(to, acc.low);
    _mm256_storeu_pd(to + 4, acc.high);
}

/* Pairs, then fours: u[4 g + c] holds, in its 128-bit part p, column 4 p + c of rows 4 g to 4 g + 3. */
V_INLINE void vf_transpose(vf *rows)
{
    vf t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int c = 0; c < 4; c++) {
        rows[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
        rows[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
    }
}
V_INLINE void vd_transpose(vd *rows)
{
    vd t[4];
    for (int i = 0; i < 4; i += 2) {
        t[i] = _mm256_unpacklo_pd(rows[i], rows[i + 1]);
        t[i + 1] = _mm256_unpackhi_pd(rows[i], rows[i + 1]);
    }
    for (int c = 0; c < 2; c++) {
        rows[c] = _mm256_permute2f128_pd(t[c], t[2 + c], 0x20);
        rows[2 + c] = _mm256_permute2f128_pd(t[c], t[2 + c], 0x31);
    }
}
V_INLINE vf vf_load_f32(const void *from)
{
    return _mm256_loadu_ps((const float *)from);
}
V_INLINE vf vf_load_f16(const void *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
V_INLINE vf vf_load_bf16(const void *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16));
}
V_INLINE vd vd_load_f64(const void *from)
{
    return _mm256_loadu_pd((const double *)from);
}
V_INLINE void vf_store_f32(void *to, vf x)
{
    _mm256_storeu_ps((float *)to, x);
}
V_INLINE void vf_store_f16(void *to, vf x)
{
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE __m128i vf_to_bf16(vf x)
{
    /* Ties to even: add 0x7fff and the last kept bit, then cut. A NaN would carry into infinity: it gets its quiet bit.
     */
    __m256i bits = _mm256_castps_si256(x);
    __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256i kept = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan)), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0x08);
    return _mm256_castsi256_si128(packed);
}
V_INLINE void vf_store_bf16(void *to, vf x)
{
    _mm_storeu_si128((__m128i *)to, vf_to_bf16(x));
}
V_INLINE void vd_store_f64(void *to, vd x)
{
    _mm256_storeu_pd((double *)to, x);
}
V_INLINE void vf_stream_f32(void *to, vf x)
{
    _mm256_stream_ps((float *)to, x);
}
V_INLINE void vf_stream_f16(void *to, vf x)
{
    _mm_stream_si128((__m128i *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE void vf_stream_bf16(void *to, vf x)
{
    _mm_stream_si128((__m128i *)to, vf_to_bf16(x));
}
V_INLINE void vd_stream_f64(void *to, vd x)
{
    _mm256_stream_pd((double *)to, x);
}
V_INLINE void v_stream_end(void)
{
    _mm_sfence();
}

#endif
