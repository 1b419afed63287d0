/* Element types: sizes, names, promotion, and exact scalar conversions written without any hardware support. */
#include "core/types.h"

#include <math.h>
#include <string.h>

static const struct {
    size_t size;
    const char *name;
} type_table[] = {
    [ONEP_F16] = {2, "float16"}, [ONEP_BF16] = {2, "bfloat16"},   [ONEP_F32] = {4, "float32"},
    [ONEP_F64] = {8, "float64"}, [ONEP_BYTE] = {1, "uint8"},      [ONEP_I32] = {4, "int32"},
    [ONEP_I64] = {8, "int64"},   [ONEP_NO_TYPE] = {0, "unknown"},
};

onep_type onep_type_of(onepass_dtype dtype)
{
    if (dtype.lanes != 1)
        return ONEP_NO_TYPE;
    switch (dtype.code) {
    case ONEPASS_FLOAT:
        return dtype.bits == 16 ? ONEP_F16 : dtype.bits == 32 ? ONEP_F32 : dtype.bits == 64 ? ONEP_F64 : ONEP_NO_TYPE;
    case ONEPASS_BFLOAT:
        return dtype.bits == 16 ? ONEP_BF16 : ONEP_NO_TYPE;
    case ONEPASS_INT:
        return dtype.bits == 64 ? ONEP_I64 : dtype.bits == 32 ? ONEP_I32 : ONEP_NO_TYPE;
    case ONEPASS_UINT:
    case ONEPASS_BOOL:
        return dtype.bits == 8 ? ONEP_BYTE : ONEP_NO_TYPE;
    default:
        return ONEP_NO_TYPE;
    }
}

size_t onep_type_size(onep_type type)
{
    return type_table[type].size;
}

const char *onep_type_name(onep_type type)
{
    return type_table[type].name;
}

onep_type onep_promote(onep_type a, onep_type b)
{
    if (a == b)
        return a;
    if (a == ONEP_F64 || b == ONEP_F64)
        return ONEP_F64;
    return ONEP_F32;
}

int onep_type_holds(onep_type wide, onep_type narrow)
{
    return onep_promote(wide, narrow) == wide;
}

/*
 * Rounds x to the nearest multiple of its last bit in a format with `digits` significant bits and smallest exponent
 * `lowest` (of the unit in the last place of a subnormal). Exact in double: no format here has more than 24 digits.
 */
static double round_to_format(double x, int digits, int lowest)
{
    int exponent;
    frexp(x, &exponent); /* |x| in [2^(exponent-1), 2^exponent) */
    int unit = exponent - digits;
    if (unit < lowest)
        unit = lowest;
    return ldexp(nearbyint(ldexp(x, -unit)), unit);
}

float onep_f16_to_f32(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    int fraction = bits & 1023;
    float magnitude;
    if (exponent == 31)
        magnitude = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexpf((float)fraction, -24);
    else
        magnitude = ldexpf((float)(fraction | 1024), exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

uint16_t onep_f16_from_f64(double x)
{
    unsigned sign = signbit(x) ? 0x8000u : 0u;
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00u);
    double magnitude = round_to_format(fabs(x), 11, -24);
    if (magnitude >= 65536.0)
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x1p-14) /* subnormal, or zero: the fraction counts units of 2^-24 */
        return (uint16_t)(sign | (unsigned)ldexp(magnitude, 24));
    int exponent;
    double fraction = frexp(magnitude, &exponent); /* in [1/2, 1) */
    return (uint16_t)(sign | (((unsigned)(exponent + 14) << 10) + ((unsigned)ldexp(fraction, 11) & 1023u)));
}

float onep_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

uint16_t onep_bf16_from_f64(double x)
{
    if (isnan(x))
        return signbit(x) ? 0xffc0 : 0x7fc0;
    /* After rounding to 8 digits the value is a float whose low half is zero, or overflows to infinity as it should. */
    float rounded = isinf(x) ? (float)x : (float)round_to_format(x, 8, -133);
    uint32_t wide;
    memcpy(&wide, &rounded, sizeof wide);
    return (uint16_t)(wide >> 16);
}

double onep_load(onep_type type, const void *from)
{
    uint16_t half;
    float single;
    double wide;
    switch (type) {
    case ONEP_F16:
        memcpy(&half, from, sizeof half);
        return (double)onep_f16_to_f32(half);
    case ONEP_BF16:
        memcpy(&half, from, sizeof half);
        return (double)onep_bf16_to_f32(half);
    case ONEP_F32:
        memcpy(&single, from, sizeof single);
        return (double)single;
    case ONEP_F64:
        memcpy(&wide, from, sizeof wide);
        return wide;
    default:
        return (double)*(const unsigned char *)from;
    }
}

void onep_store(onep_type type, void *to, double x)
{
    uint16_t half;
    float single;
    switch (type) {
    case ONEP_F16:
        half = onep_f16_from_f64(x);
        memcpy(to, &half, sizeof half);
        break;
    case ONEP_BF16:
        half = onep_bf16_from_f64(x);
        memcpy(to, &half, sizeof half);
        break;
    case ONEP_F32:
        single = (float)x;
        memcpy(to, &single, sizeof single);
        break;
    case ONEP_F64:
        memcpy(to, &x, sizeof x);
        break;
    default: /* bytes are only ever read: no operator has a mask as its result */
        break;
    }
}

int64_t onep_load_integer(onep_type type, const void *from)
{
    int32_t narrow;
    int64_t wide;
    if (type == ONEP_I64) {
        memcpy(&wide, from, sizeof wide);
        return wide;
    }
    memcpy(&narrow, from, sizeof narrow);
    return narrow;
}

void onep_store_integer(onep_type type, void *to, int64_t x)
{
    int32_t narrow = (int32_t)x;
    memcpy(to, type == ONEP_I64 ? (const void *)&x : (const void *)&narrow, onep_type_size(type));
}
