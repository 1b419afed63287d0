/* Element types and their conversions. See element.h. */
#include "element.h"

#include <math.h>
#include <string.h>

const element_info element_infos[ELEMENT_TYPES] = {
    [ELEMENT_F16] = {"f16", "<f2", 2, ONEPASS_F16},  [ELEMENT_BF16] = {"bf16", "|V2", 2, ONEPASS_BF16},
    [ELEMENT_F32] = {"f32", "<f4", 4, ONEPASS_F32},  [ELEMENT_F64] = {"f64", "<f8", 8, ONEPASS_F64},
    [ELEMENT_BOOL] = {"bool", "|b1", 1, ONEPASS_B8}, [ELEMENT_U8] = {"u8", "|u1", 1, ONEPASS_U8},
    [ELEMENT_I32] = {"i32", "<i4", 4, ONEPASS_I32},  [ELEMENT_I64] = {"i64", "<i8", 8, ONEPASS_I64},
};

/* Bits of the significand after the point, and the exponent of 1. */
typedef struct half_format {
    int fraction_bits, bias;
} half_format;

static const half_format half_formats[] = {[ELEMENT_F16] = {10, 15}, [ELEMENT_BF16] = {7, 127}};

double element_epsilon(element_type type)
{
    static const double epsilons[ELEMENT_FLOATS] = {0x1p-10, 0x1p-7, 0x1p-23, 0x1p-52};
    return epsilons[type];
}

static double half_to_double(half_format format, uint16_t bits)
{
    int exponent = (bits & 0x7fff) >> format.fraction_bits;
    int fraction = bits & ((1 << format.fraction_bits) - 1);
    int largest = 2 * format.bias + 1;
    double magnitude;
    if (exponent == largest) {
        magnitude = fraction ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        magnitude = ldexp(fraction, 1 - format.bias - format.fraction_bits);
    } else { /* the same bits in the places of a double */
        uint64_t wide = (uint64_t)(exponent - format.bias + 1023) << 52 | (uint64_t)fraction
                                                                              << (52 - format.fraction_bits);
        memcpy(&magnitude, &wide, sizeof magnitude);
    }
    return bits & 0x8000 ? -magnitude : magnitude;
}

static uint16_t half_from_double(half_format format, double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    int largest = 2 * format.bias + 1;
    uint16_t infinity = (uint16_t)(largest << format.fraction_bits);
    if (isnan(value))
        return (uint16_t)(infinity | (1 << (format.fraction_bits - 1)));
    double magnitude = fabs(value);
    if (isinf(value))
        return (uint16_t)(sign | infinity);
    int exponent;
    frexp(magnitude, &exponent); /* magnitude is in [2^(exponent-1), 2^exponent) */
    int scale = exponent - 1 > 1 - format.bias ? exponent - 1 : 1 - format.bias;
    double units = nearbyint(ldexp(magnitude, format.fraction_bits - scale));
    /* A carry out of the fraction moves the exponent up by itself, and past the last one to infinity. */
    int64_t bits = (int64_t)units + ((int64_t)(scale + format.bias - 1) << format.fraction_bits);
    return (uint16_t)(sign | (bits < infinity ? (uint16_t)bits : infinity));
}

double element_load(element_type type, const void *base, size_t index)
{
    const unsigned char *at = (const unsigned char *)base + index * element_infos[type].size;
    uint16_t half;
    float single;
    double value;
    switch (type) {
    case ELEMENT_F16:
    case ELEMENT_BF16:
        memcpy(&half, at, sizeof half);
        return half_to_double(half_formats[type], half);
    case ELEMENT_F32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case ELEMENT_F64:
        memcpy(&value, at, sizeof value);
        return value;
    default:
        return *at;
    }
}

void element_store(element_type type, void *base, size_t index, double value)
{
    unsigned char *at = (unsigned char *)base + index * element_infos[type].size;
    uint16_t half;
    float single;
    switch (type) {
    case ELEMENT_F16:
    case ELEMENT_BF16:
        half = half_from_double(half_formats[type], value);
        memcpy(at, &half, sizeof half);
        break;
    case ELEMENT_F32:
        single = (float)value;
        memcpy(at, &single, sizeof single);
        break;
    case ELEMENT_F64:
        memcpy(at, &value, sizeof value);
        break;
    default:
        *at = value != 0;
        break;
    }
}
