/* See number.h. */
#include "cases/number.h"

#include <math.h>
#include <string.h>

/* ---- types ------------------------------------------------------------------------------------------------------- */

const onepass_dtype case_f16 = ONEPASS_F16, case_bf16 = ONEPASS_BF16, case_f32 = ONEPASS_F32, case_f64 = ONEPASS_F64,
                    case_i32 = ONEPASS_I32, case_i64 = ONEPASS_I64, case_u8 = ONEPASS_U8, case_b8 = ONEPASS_B8;

/* A floating-point format: significant bits, exponent of the smallest subnormal, first power of two that overflows. */
typedef struct number_format {
    int digits, lowest, beyond;
} number_format;

static number_format format_of(onepass_dtype type)
{
    if (type.code == ONEPASS_BFLOAT)
        return (number_format){8, -133, 128};
    return type.bits == 16   ? (number_format){11, -24, 16}
           : type.bits == 32 ? (number_format){24, -149, 128}
                             : (number_format){53, -1074, 1024};
}

int case_same_type(onepass_dtype a, onepass_dtype b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

int case_is_float(onepass_dtype type)
{
    return type.code == ONEPASS_FLOAT || type.code == ONEPASS_BFLOAT;
}

size_t case_size(onepass_dtype type)
{
    return type.bits / 8;
}

const char *case_type_name(onepass_dtype type)
{
    switch (type.code) {
    case ONEPASS_BFLOAT:
        return "bfloat16";
    case ONEPASS_FLOAT:
        return type.bits == 16 ? "float16" : type.bits == 32 ? "float32" : "float64";
    case ONEPASS_INT:
        return type.bits == 32 ? "int32" : "int64";
    default:
        return type.code == ONEPASS_BOOL ? "bool" : "uint8";
    }
}

onepass_dtype case_promote(onepass_dtype a, onepass_dtype b)
{
    if (a.bits != b.bits)
        return a.bits > b.bits ? a : b;
    return a.code == b.code ? a : case_f32;
}

onepass_dtype case_computed(onepass_dtype promoted)
{
    return promoted.bits == 64 ? case_f64 : case_f32;
}

int case_holds(onepass_dtype type, onepass_dtype other)
{
    return case_same_type(case_promote(type, other), type);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static double load_half(number_format format, uint16_t bits)
{
    int fraction_bits = format.digits - 1, largest = 2 * format.beyond - 1;
    int exponent = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude = exponent == largest ? (fraction ? (double)NAN : (double)INFINITY)
                       : exponent == 0     ? ldexp(fraction, format.lowest)
                                           : ldexp(fraction + (1 << fraction_bits), format.lowest + exponent - 1);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static uint16_t store_half(number_format format, double x)
{
    int fraction_bits = format.digits - 1;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)((2 * format.beyond - 1) << fraction_bits);
    if (isnan(x))
        return (uint16_t)(sign | infinity | 1 << (fraction_bits - 1));
    if (isinf(x))
        return (uint16_t)(sign | infinity);
    if (x == 0)
        return sign; /* which has no exponent: frexp says 0, that of 0.5 */
    int exponent;
    frexp(x, &exponent);
    int unit = exponent - format.digits > format.lowest ? exponent - format.digits : format.lowest;
    double units = nearbyint(ldexp(fabs(x), -unit));
    /* A carry out of the fraction moves the exponent up by itself, and past the last one to infinity. */
    int64_t bits = (int64_t)units + ((int64_t)(unit - format.lowest) << fraction_bits);
    return (uint16_t)(sign | (bits < infinity ? (uint16_t)bits : infinity));
}

double case_load(onepass_dtype type, const void *from)
{
    uint16_t half;
    float single;
    double x;
    int64_t whole;
    int32_t narrow;
    switch (type.code) {
    case ONEPASS_FLOAT:
    case ONEPASS_BFLOAT:
        if (type.bits == 16) {
            memcpy(&half, from, sizeof half);
            return load_half(format_of(type), half);
        }
        if (type.bits == 32) {
            memcpy(&single, from, sizeof single);
            return (double)single;
        }
        memcpy(&x, from, sizeof x);
        return x;
    case ONEPASS_INT:
        if (type.bits == 32) {
            memcpy(&narrow, from, sizeof narrow);
            return narrow;
        }
        memcpy(&whole, from, sizeof whole);
        return (double)whole;
    default:
        return *(const unsigned char *)from;
    }
}

void case_store(onepass_dtype type, void *to, double x)
{
    uint16_t half;
    float single;
    int64_t whole;
    int32_t narrow;
    switch (type.code) {
    case ONEPASS_FLOAT:
    case ONEPASS_BFLOAT:
        half = type.bits == 16 ? store_half(format_of(type), x) : 0;
        single = (float)x;
        memcpy(to, type.bits == 16 ? (void *)&half : type.bits == 32 ? (void *)&single : (void *)&x, type.bits / 8);
        break;
    case ONEPASS_INT:
        whole = (int64_t)x;
        narrow = (int32_t)whole;
        memcpy(to, type.bits == 32 ? (void *)&narrow : (void *)&whole, type.bits / 8);
        break;
    default:
        *(unsigned char *)to = (unsigned char)(int64_t)x; /* of a negative number the byte, too */
        break;
    }
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

int case_close(double got, long double expected, long double allowed)
{
    if (isnan(expected))
        return isnan(got);
    if (isinf(expected))
        return isinf(got) && (got > 0) == (expected > 0);
    return fabsl((long double)got - expected) <= allowed; /* false for a NaN */
}

long double case_half_unit(onepass_dtype type, long double x)
{
    number_format format = format_of(type);
    int exponent;
    frexpl(x, &exponent);
    int unit = exponent - format.digits;
    if (unit < format.lowest || x == 0)
        unit = format.lowest;
    return ldexpl(0.5L, unit);
}

int case_close_in(onepass_dtype type, double got, long double expected, long double allowed)
{
    if (!case_is_float(type) || !isfinite(expected) || isnan(got))
        return case_close(got, expected, allowed);
    allowed += case_half_unit(type, fabsl(expected) + allowed);
    if (!isinf(got))
        return case_close(got, expected, allowed);
    /* Rounded up beyond the largest number: right if the true value may lie there. */
    return (got > 0) == (expected > 0) && fabsl(expected) + allowed >= ldexpl(1, format_of(type).beyond);
}

double case_share(onepass_dtype type, double got, long double expected, long double allowed)
{
    if (!case_close_in(type, got, expected, allowed) && !(isfinite(got) && isfinite(expected) && allowed > 0))
        return (double)INFINITY;
    if (!isfinite(got) || !isfinite(expected) || !(allowed > 0) ||
        !case_is_float(type)) /* an integer is right or not */
        return 0;
    long double beyond = fabsl((long double)got - expected) - case_half_unit(type, fabsl(expected) + allowed);
    return beyond > 0 ? (double)(beyond / allowed) : 0;
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

case_random case_random_stream(uint64_t seed, uint64_t stream)
{
    case_random random = {seed ^ (stream * 0xd1342543de82ef95u)};
    case_random_bits(&random);
    return random;
}

uint64_t case_random_bits(case_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double case_random_unit(case_random *random)
{
    return ((double)(case_random_bits(random) >> 12) + 0.5) * 0x1p-52;
}

double case_random_between(case_random *random, double low, double high)
{
    return low + (high - low) * case_random_unit(random);
}

int64_t case_random_below(case_random *random, int64_t limit)
{
    return (int64_t)(case_random_bits(random) % (uint64_t)limit);
}

double case_random_normal(case_random *random)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += case_random_unit(random);
    return sum - 6;
}
