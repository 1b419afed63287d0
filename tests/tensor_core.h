/*
 * What a tensor core computes, bit for bit, for fp16 or bf16 operands and an fp32 accumulator c: c + sum of a[k] b[k].
 *
 * The products are taken `width` at a time, in order. One step adds `width` exact products and c:
 *
 * 1. The exponent of a product is the SUM of its operands' exponents, whether or not the product of the significands
 *    reaches 2. A subnormal operand has the exponent of the smallest normal number, and no leading 1. The exponent of c
 *    is its own. E is the largest exponent of all that are not zero, and at least `lowest`.
 * 2. Every product and c is cut toward zero to a multiple of 2^(E - 23 - extra_bits).
 * 3. These are added exactly, and the sum is cut toward zero to fp32: to 24 bits, or to a multiple of 2^-149. A sum of
 *    2^128 or more is infinite. A sum of nothing but zeros is +0.
 * 4. A NaN among operands and c, 0 times an infinity, or infinities of both signs give the NaN 0x7fffffff; otherwise an
 *    infinity gives that infinity.
 *
 * Held against hardware: an H200, wgmma, 128 x 128 x 64, fp16 and bf16, gaussian, uniform, lognormal, cancelling,
 * subnormal and outlying values and random bit patterns, with and without c: 1,179,648 results of 1,179,648 have these
 * bits. The 30,000 results of wmma (mma.sync) on A100, H100 and H200, fp16 and bf16, that are published with the models
 * of Khattak and Mikaitis (arXiv 2512.07004) have them, too.
 *
 * Those inputs leave open: the exponent of a subnormal operand where it is the largest of a step (here as in that work
 * and in MMA-Sim, arXiv 2511.10909); overflow and NaN (as in MMA-Sim); `lowest`, which touches sums of bf16 products
 * under 2^-100 alone (as in the former; the latter has -126); the sign of a zero.
 */
#ifndef ONEPASS_TEST_TENSOR_CORE_H
#define ONEPASS_TEST_TENSOR_CORE_H

#include "core/types.h"

/* Ways to get the above wrong. A test of a product is worth something only if its inputs tell these from the truth. */
typedef enum tensor_core_slip {
    TENSOR_CORE_TRUE,
    TENSOR_CORE_ROUNDED_TERMS,    /* 2: to nearest */
    TENSOR_CORE_FLOORED_TERMS,    /* 2: toward minus infinity, as an arithmetic shift would */
    TENSOR_CORE_ROUNDED_SUM,      /* 3: to nearest, ties to even */
    TENSOR_CORE_NORMAL_PRODUCT,   /* 1: the exponent of the product itself */
    TENSOR_CORE_NORMAL_SUBNORMAL, /* 1: a subnormal operand has the exponent of its leading bit */
    TENSOR_CORE_C_APART,          /* the products are summed to fp32, and then added to c, cut toward zero */
    TENSOR_CORE_SLIPS,
} tensor_core_slip;

typedef struct tensor_core {
    int width;      /* products a step, at most TENSOR_CORE_WIDEST */
    int extra_bits; /* below the last place of an fp32 number with the largest exponent */
    int lowest;     /* no step has a largest exponent under this */
    tensor_core_slip slip;
} tensor_core;

enum { TENSOR_CORE_WIDEST = 32 };

extern const tensor_core tensor_core_hopper; /* 16 wide, 2 extra bits: wgmma, and mma.sync on Hopper */
extern const tensor_core tensor_core_ampere; /* 8 wide, 1 extra bit: A100 */

/* c + a[0] b[0] + ... + a[count-1] b[count-1]; type is ONEP_F16 or ONEP_BF16. A last step that is not full is filled
 * with zeros. */
float tensor_core_dot(const tensor_core *core, onep_type type, float c, const uint16_t *a, const uint16_t *b,
                      int64_t count);

#endif
