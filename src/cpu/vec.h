/*
 * The vector contract: what an instruction set must provide for the kernels of src/cpu to run on it. One header a level
 * (vec_scalar.h, vec_avx2.h, vec_avx512.h, vec_neon.h) fulfils it with thin wrappers and no arithmetic of its own;
 * the including level_*.c picks the header. Arithmetic is written once, over these names.
 *
 * Two families: vf holds VF_LANES floats, vd holds VD_LANES doubles. Each has an integer type of the same width (vfi,
 * vdi) and a mask type (vfm, vdm). Written vf_ below, every function exists as vd_ as well:
 *
 *   vf  vf_set1(float)                       all lanes alike
 *   vf  vf_load_f32(const void *)            VF_LANES elements, any alignment; also vf_load_f16, vf_load_bf16
 *   void vf_store_f32(void *, vf)            likewise; half types round to nearest even, NaN stays NaN
 *                                            (vd has vd_load_f64 and vd_store_f64 only)
 *   void vf_stream_f32(void *, vf)           the same to an address aligned to the vector, past the caches where the
 *                                            machine can: a line is not read before it is overwritten
 *   void v_stream_end(void)                  orders streamed stores before whatever the thread does next
 *   vf  vf_add, vf_sub, vf_mul, vf_div       IEEE, correctly rounded
 *   vf  vf_fma(a, b, c)                      a * b + c, rounded once
 *   vf  vf_min(a, b), vf_max(a, b)           a or b; which one when either is NaN is not promised
 *   vfm vf_eq, vf_lt, vf_ge                  false where an operand is NaN
 *   vfm vf_both(m, n), vf_either(m, n)       and, or
 *   int vf_all(m)                            1 if the mask is set in every lane
 *   vf  vf_select(m, a, b)                   a where m is set, else b
 *   vfi vf_bits(vf), vf vf_from_bits(vfi)    the same bits
 *   vfi vf_set1_bits(int32_t)                all lanes alike (vd: int64_t)
 *   vfi vf_bits_add, _sub, _and              lane by lane, wrapping
 *   vfi vf_bits_shl(a, n)                    shift left by a constant
 *   vfi vf_watch(seen, a, b, limit)          remembers in `seen` whether a or b, as unsigned numbers, reached limit > 0
 *   int vf_all_below(seen, limit)            1 if none ever did, in any lane; `seen` starts as zero bits
 *   vf  vf_exponent_times(vfi k, float c)    k holds e in the exponent field's place (e * 2^23; vd: e * 2^52): e * c,
 *                                            rounded once, for a constant c
 *
 *   void vf_transpose(vf *rows)              VF_LANES vectors as a square matrix, rows and columns exchanged
 *
 * V_REGISTERS is how many vectors the registers hold, 16 or 32: the tile of the matrix product depends on it.
 *
 * Sums are kept in double, whatever the family, in a vf_acc of as many double lanes as vf has floats:
 *
 *   vf_acc vf_acc_zero(void)
 *   vf_acc vf_acc_add(acc, x)                adds each lane
 *   double vf_acc_sum(acc)                   the lanes in a fixed order
 *   void vf_acc_store(double *, acc)         each lane by itself, VF_LANES of them
 *
 * The v_ names below choose the family by the type of the first argument. C++ has overloaded functions for that:
 * C++ code that includes this file defines the v_ names so (python/onepass/export does).
 */
#ifndef ONEP_VEC_H
#define ONEP_VEC_H

#include <stdint.h>
#include <string.h>

#define V_INLINE static inline __attribute__((always_inline, unused))

#define V_JOIN_(a, b) a##_##b
#define V_JOIN(a, b)  V_JOIN_(a, b)

#ifndef __cplusplus
#define V_PICK(name, a)        _Generic((a), vf : vf_##name, vd : vd_##name)
#define v_add(a, b)            V_PICK(add, a)(a, b)
#define v_sub(a, b)            V_PICK(sub, a)(a, b)
#define v_mul(a, b)            V_PICK(mul, a)(a, b)
#define v_div(a, b)            V_PICK(div, a)(a, b)
#define v_fma(a, b, c)         V_PICK(fma, a)(a, b, c)
#define v_min(a, b)            V_PICK(min, a)(a, b)
#define v_max(a, b)            V_PICK(max, a)(a, b)
#define v_eq(a, b)             V_PICK(eq, a)(a, b)
#define v_lt(a, b)             V_PICK(lt, a)(a, b)
#define v_ge(a, b)             V_PICK(ge, a)(a, b)
#define v_bits(a)              V_PICK(bits, a)(a)
#define v_select(m, a, b)      V_PICK(select, a)(m, a, b)
#define v_both(m, n)           _Generic((m), vfm : vf_both, vdm : vd_both)(m, n)
#define v_either(m, n)         _Generic((m), vfm : vf_either, vdm : vd_either)(m, n)
#define v_all(m)               _Generic((m), vfm : vf_all, vdm : vd_all)(m)
#define V_PICK_BITS(name, a)   _Generic((a), vfi : vf_##name, vdi : vd_##name)
#define v_from_bits(a)         V_PICK_BITS(from_bits, a)(a)
#define v_bits_add(a, b)       V_PICK_BITS(bits_add, a)(a, b)
#define v_bits_sub(a, b)       V_PICK_BITS(bits_sub, a)(a, b)
#define v_bits_and(a, b)       V_PICK_BITS(bits_and, a)(a, b)
#define v_bits_shl(a, n)       V_PICK_BITS(bits_shl, a)(a, n)
#define v_watch(seen, a, b, n) V_PICK_BITS(watch, a)(seen, a, b, n)
#define v_all_below(seen, n)   V_PICK_BITS(all_below, seen)(seen, n)
#define v_exponent_times(k, c) V_PICK_BITS(exponent_times, k)(k, c)
#define V_PICK_ACC(name, acc)  _Generic((acc), vf_acc : vf_acc_##name, vd_acc : vd_acc_##name)
#define v_acc_add(acc, x)      V_PICK_ACC(add, acc)(acc, x)
#define v_acc_sum(acc)         V_PICK_ACC(sum, acc)(acc)
#define v_acc_store(to, acc)   V_PICK_ACC(store, acc)(to, acc)
#endif

#endif
