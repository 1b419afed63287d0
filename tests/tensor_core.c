/* The tensor core in integers: exponents, shifts and one sum a step. No floating-point operation but the last. */
#include "tensor_core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const tensor_core tensor_core_hopper = {.width = 16, .extra_bits = 2, .lowest = -133};
const tensor_core tensor_core_ampere = {.width = 8, .extra_bits = 1, .lowest = -132};

/* significand 2^(exponent - fraction bits of its format), or a special value. */
typedef struct number {
    int64_t significand; /* with the sign */
    int exponent;
    int infinite, nan;
} number;

/* The parts of a format with `fraction` bits of fraction and `wide` bits of exponent. */
static number unpack(uint32_t bits, int fraction, int wide, int normal_subnormal)
{
    int highest = (1 << wide) - 1, bias = highest >> 1;
    int field = (int)(bits >> fraction) & highest;
    int64_t significand = bits & ((1u << fraction) - 1);
    number x = {.infinite = field == highest && significand == 0, .nan = field == highest && significand != 0};
    if (field != 0)
        significand |= INT64_C(1) << fraction;
    x.exponent = (field != 0 ? field : 1) - bias;
    while (normal_subnormal && significand != 0 && significand >> fraction == 0) {
        significand *= 2;
        x.exponent--;
    }
    x.significand = bits >> (fraction + wide) & 1 ? -significand : significand;
    return x;
}

static int bit_length(uint64_t x)
{
    int length = 0;
    for (; x != 0; x >>= 1)
        length++;
    return length;
}

/* x 2^shift as an integer, cut toward zero unless the slip says otherwise. */
static int64_t aligned(int64_t x, int shift, tensor_core_slip slip)
{
    if (x == 0)
        return 0;
    if (shift >= 0)
        return x * (INT64_C(1) << shift);
    int64_t magnitude = x < 0 ? -x : x;
    int down = -shift < 62 ? -shift : 62;
    int64_t kept = magnitude >> down, lost = magnitude - (kept << down);
    if (slip == TENSOR_CORE_ROUNDED_TERMS && lost >= INT64_C(1) << (down - 1))
        kept++;
    if (slip == TENSOR_CORE_FLOORED_TERMS && x < 0 && lost != 0)
        kept++;
    return x < 0 ? -kept : kept;
}

/* sum 2^unit, cut toward zero to fp32. */
static float to_fp32(int64_t sum, int unit, tensor_core_slip slip)
{
    uint64_t magnitude = (uint64_t)(sum < 0 ? -sum : sum);
    int last = unit + bit_length(magnitude) - 24; /* exponent of the last bit that stays */
    if (last < -149)
        last = -149;
    int down = last - unit;
    if (down > 0) {
        uint64_t kept = magnitude >> down, lost = magnitude - (kept << down), half = UINT64_C(1) << (down - 1);
        if (slip == TENSOR_CORE_ROUNDED_SUM && (lost > half || (lost == half && (kept & 1))))
            kept++;
        magnitude = kept;
        unit = last;
    }
    float result = ldexpf((float)magnitude, unit); /* at most 24 bits: exact, or infinite */
    return sum < 0 ? -result : result;
}

static float canonical_nan(void)
{
    uint32_t bits = 0x7fffffff;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* One step. */
static float step(const tensor_core *core, onep_type type, float c, const uint16_t *a, const uint16_t *b, int count)
{
    int fraction = type == ONEP_F16 ? 10 : 7, wide = type == ONEP_F16 ? 5 : 8;
    int normal_subnormal = core->slip == TENSOR_CORE_NORMAL_SUBNORMAL;
    uint32_t c_bits;
    memcpy(&c_bits, &c, sizeof c_bits);
    number addend = unpack(c_bits, 23, 8, 0);
    int nan = addend.nan, positive = 0, negative = 0; /* infinities */
    if (addend.infinite)
        *(addend.significand < 0 ? &negative : &positive) = 1;

    /* 1. Exact products, and the largest exponent. */
    int64_t products[TENSOR_CORE_WIDEST];
    int exponents[TENSOR_CORE_WIDEST], largest = core->lowest;
    for (int k = 0; k < count; k++) {
        number x = unpack(a[k], fraction, wide, normal_subnormal), y = unpack(b[k], fraction, wide, normal_subnormal);
        products[k] = x.significand * y.significand;
        exponents[k] = x.exponent + y.exponent;
        if (x.nan || y.nan || ((x.infinite || y.infinite) && products[k] == 0))
            nan = 1;
        else if (x.infinite || y.infinite)
            *(products[k] < 0 ? &negative : &positive) = 1;
        int exponent = exponents[k];
        if (core->slip == TENSOR_CORE_NORMAL_PRODUCT && llabs(products[k]) >> (2 * fraction + 1) != 0)
            exponent++;
        if (products[k] != 0 && exponent > largest)
            largest = exponent;
    }
    if (nan || (positive && negative))
        return canonical_nan();
    if (positive || negative)
        return positive ? INFINITY : -INFINITY;
    int apart = core->slip == TENSOR_CORE_C_APART;
    if (addend.significand != 0 && addend.exponent > largest && !apart)
        largest = addend.exponent;

    /* 2. and 3. All in units of 2^unit. A term is at most 2^5 (fp16) or 2^11 (bf16) times its significand here. */
    int unit = largest - 23 - core->extra_bits;
    int64_t sum = 0;
    for (int k = 0; k < count; k++)
        sum += aligned(products[k], exponents[k] - 2 * fraction - unit, core->slip);
    if (apart) { /* the exact sum of two fp32 numbers within reach of each other; tests use no others with this slip */
        double total = (double)c + (double)to_fp32(sum, unit, core->slip);
        float nearest = (float)total;
        return fabs((double)nearest) > fabs(total) ? nextafterf(nearest, 0) : nearest;
    }
    sum += aligned(addend.significand, addend.exponent - 23 - unit, core->slip);
    return to_fp32(sum, unit, core->slip);
}

float tensor_core_dot(const tensor_core *core, onep_type type, float c, const uint16_t *a, const uint16_t *b,
                      int64_t count)
{
    for (int64_t k = 0; k < count; k += core->width) {
        int64_t left = count - k;
        c = step(core, type, c, a + k, b + k, left < core->width ? (int)left : core->width);
    }
    return c;
}
