/* The vector contract (vec.h), one lane wide, in plain C: runs anywhere. fma() is the library's where hardware has
 * none. */
#ifndef ONEP_VEC_SCALAR_H
#define ONEP_VEC_SCALAR_H

#include <math.h>

#include "core/types.h"
#include "cpu/vec.h"

enum { VF_LANES = 1, VD_LANES = 1, V_REGISTERS = 16 };

typedef float vf;
typedef double vd;
typedef int32_t vfi;
typedef int64_t vdi;
typedef struct vfm {
    int set;
} vfm;
typedef struct vdm {
    int set;
} vdm;
typedef struct vf_acc {
    double sum;
} vf_acc;
typedef struct vd_acc {
    double sum;
} vd_acc;

V_INLINE vf vf_set1(float x)
{
    return x;
}
V_INLINE vf vf_add(vf a, vf b)
{
    return a + b;
}
V_INLINE vf vf_sub(vf a, vf b)
{
    return a - b;
}
V_INLINE vf vf_mul(vf a, vf b)
{
    return a * b;
}
V_INLINE vf vf_div(vf a, vf b)
{
    return a / b;
}
V_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return fmaf(a, b, c);
}
V_INLINE vf vf_min(vf a, vf b)
{
    return a < b ? a : b;
}
V_INLINE vf vf_max(vf a, vf b)
{
    return a > b ? a : b;
}
V_INLINE vfm vf_eq(vf a, vf b)
{
    return (vfm){a == b};
}
V_INLINE vfm vf_lt(vf a, vf b)
{
    return (vfm){a < b};
}
V_INLINE vfm vf_ge(vf a, vf b)
{
    return (vfm){a >= b};
}
V_INLINE vfm vf_both(vfm m, vfm n)
{
    return (vfm){m.set & n.set};
}
V_INLINE vfm vf_either(vfm m, vfm n)
{
    return (vfm){m.set | n.set};
}
V_INLINE int vf_all(vfm m)
{
    return m.set;
}
V_INLINE vf vf_select(vfm m, vf a, vf b)
{
    return m.set ? a : b;
}
V_INLINE vfi vf_bits(vf a)
{
    vfi bits;
    memcpy(&bits, &a, sizeof bits);
    return bits;
}
V_INLINE vf vf_from_bits(vfi bits)
{
    vf a;
    memcpy(&a, &bits, sizeof a);
    return a;
}
V_INLINE vfi vf_set1_bits(vfi x)
{
    return x;
}
V_INLINE vfi vf_bits_add(vfi a, vfi b)
{
    return (vfi)((uint32_t)a + (uint32_t)b);
}
V_INLINE vfi vf_bits_sub(vfi a, vfi b)
{
    return (vfi)((uint32_t)a - (uint32_t)b);
}
V_INLINE vfi vf_bits_and(vfi a, vfi b)
{
    return a & b;
}
V_INLINE vfi vf_bits_shl(vfi a, int n)
{
    return (vfi)((uint32_t)a << n);
}
V_INLINE vfi vf_watch(vfi seen, vfi a, vfi b, int32_t limit)
{
    return seen | ((uint32_t)a >= (uint32_t)limit) | ((uint32_t)b >= (uint32_t)limit);
}
V_INLINE int vf_all_below(vfi seen, int32_t limit)
{
    (void)limit;
    return seen == 0;
}
V_INLINE vf vf_exponent_times(vfi k, float c)
{
    return (vf)k * (c * 0x1p-23f);
}
V_INLINE vf_acc vf_acc_zero(void)
{
    return (vf_acc){0};
}
V_INLINE vf_acc vf_acc_add(vf_acc acc, vf x)
{
    return (vf_acc){acc.sum + (double)x};
}
V_INLINE double vf_acc_sum(vf_acc acc)
{
    return acc.sum;
}

V_INLINE vd vd_set1(double x)
{
    return x;
}
V_INLINE vd vd_add(vd a, vd b)
{
    return a + b;
}
V_INLINE vd vd_sub(vd a, vd b)
{
    return a - b;
}
V_INLINE vd vd_mul(vd a, vd b)
{
    return a * b;
}
V_INLINE vd vd_div(vd a, vd b)
{
    return a / b;
}
V_INLINE vd vd_fma(vd a, vd b, vd c)
{
    return fma(a, b, c);
}
V_INLINE vd vd_min(vd a, vd b)
{
    return a < b ? a : b;
}
V_INLINE vd vd_max(vd a, vd b)
{
    return a > b ? a : b;
}
V_INLINE vdm vd_eq(vd a, vd b)
{
    return (vdm){a == b};
}
V_INLINE vdm vd_lt(vd a, vd b)
{
    return (vdm){a < b};
}
V_INLINE vdm vd_ge(vd a, vd b)
{
    return (vdm){a >= b};
}
V_INLINE vdm vd_both(vdm m, vdm n)
{
    return (vdm){m.set & n.set};
}
V_INLINE vdm vd_either(vdm m, vdm n)
{
    return (vdm){m.set | n.set};
}
V_INLINE int vd_all(vdm m)
{
    return m.set;
}
V_INLINE vd vd_select(vdm m, vd a, vd b)
{
    return m.set ? a : b;
}
V_INLINE vdi vd_bits(vd a)
{
    vdi bits;
    memcpy(&bits, &a, sizeof bits);
    return bits;
}
V_INLINE vd vd_from_bits(vdi bits)
{
    vd a;
    memcpy(&a, &bits, sizeof a);
    return a;
}
V_INLINE vdi vd_set1_bits(vdi x)
{
    return x;
}
V_INLINE vdi vd_bits_add(vdi a, vdi b)
{
    return (vdi)((uint64_t)a + (uint64_t)b);
}
V_INLINE vdi vd_bits_sub(vdi a, vdi b)
{
    return (vdi)((uint64_t)a - (uint64_t)b);
}
V_INLINE vdi vd_bits_and(vdi a, vdi b)
{
    return a & b;
}
V_INLINE vdi vd_bits_shl(vdi a, int n)
{
    return (vdi)((uint64_t)a << n);
}
V_INLINE vdi vd_watch(vdi seen, vdi a, vdi b, int64_t limit)
{
    return seen | ((uint64_t)a >= (uint64_t)limit) | ((uint64_t)b >= (uint64_t)limit);
}
V_INLINE int vd_all_below(vdi seen, int64_t limit)
{
    (void)limit;
    return seen == 0;
}
V_INLINE vd vd_exponent_times(vdi k, double c)
{
    return (vd)k * (c * 0x1p-52);
}
V_INLINE vd_acc vd_acc_zero(void)
{
    return (vd_acc){0};
}
V_INLINE vd_acc vd_acc_add(vd_acc acc, vd x)
{
    return (vd_acc){acc.sum + (double)x};
}
V_INLINE double vd_acc_sum(vd_acc acc)
{
    return acc.sum;
}

V_INLINE void vf_acc_store(double *to, vf_acc acc)
{
    *to = acc.sum;
}
V_INLINE void vd_acc_store(double *to, vd_acc acc)
{
    *to = acc.sum;
}
V_INLINE void vf_transpose(vf *rows)
{
    (void)rows; /* one by one */
}
V_INLINE void vd_transpose(vd *rows)
{
    (void)rows;
}
V_INLINE vf vf_load_f32(const void *from)
{
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}
V_INLINE vf vf_load_f16(const void *from)
{
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    return onep_f16_to_f32(bits);
}
V_INLINE vf vf_load_bf16(const void *from)
{
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    return onep_bf16_to_f32(bits);
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
    onep_store(ONEP_F16, to, (double)x);
}
V_INLINE void vf_store_bf16(void *to, vf x)
{
    onep_store(ONEP_BF16, to, (double)x);
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
