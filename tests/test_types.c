/*
 * Half types are exact: all 65536 patterns of float16 and bfloat16 decode to the number their definition gives and come
 * back unchanged; stores round to nearest, ties to even, at every boundary between neighbours; overflow, subnormals,
 * infinities and NaN keep their meaning; names, sizes, promotion and the DLPack codes are what PyTorch's are.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "harness.h"

typedef struct half_format {
    const char *name;
    onep_type type;
    int fraction_bits, bias, exponents; /* number of exponent patterns */
    float (*decode)(uint16_t);
    uint16_t (*encode)(double);
} half_format;

static const half_format half_formats[] = {
    {"float16", ONEP_F16, 10, 15, 32, onep_f16_to_f32, onep_f16_from_f64},
    {"bfloat16", ONEP_BF16, 7, 127, 256, onep_bf16_to_f32, onep_bf16_from_f64},
};

static unsigned fraction_of(const half_format *f, unsigned bits)
{
    return bits & ((1u << f->fraction_bits) - 1);
}

static unsigned exponent_of(const half_format *f, unsigned bits)
{
    return (bits & 0x7fffu) >> f->fraction_bits;
}

/* The number a pattern stands for, from the definition of the format. */
static double meaning(const half_format *f, unsigned bits)
{
    unsigned fraction = fraction_of(f, bits);
    int exponent = (int)exponent_of(f, bits);
    double magnitude;
    if (exponent == f->exponents - 1)
        magnitude = fraction ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(fraction, 1 - f->bias - f->fraction_bits);
    else
        magnitude = ldexp((1u << f->fraction_bits) + fraction, exponent - f->bias - f->fraction_bits);
    return bits & 0x8000u ? -magnitude : magnitude;
}

static void test_all_patterns(const half_format *f)
{
    test_context("%s, all patterns", f->name);
    for (unsigned bits = 0; bits < 0x10000u; bits++) {
        double expected = meaning(f, bits);
        double decoded = (double)f->decode((uint16_t)bits);
        uint16_t stored = (uint16_t)bits;
        double loaded = onep_load(f->type, &stored);
        if (isnan(expected)) {
            CHECK(isnan(decoded) && isnan(loaded), "pattern %04x: got %g and %g, expected NaN", bits, decoded, loaded);
            uint16_t back = f->encode(decoded);
            CHECK(isnan(meaning(f, back)), "pattern %04x: NaN is stored as %04x", bits, (unsigned)back);
            continue;
        }
        CHECK(decoded == expected && signbit(decoded) == signbit(expected), "pattern %04x: got %g, expected %g", bits,
              decoded, expected);
        CHECK(loaded == expected, "pattern %04x: loaded as %g, expected %g", bits, loaded, expected);
        uint16_t back = f->encode(expected);
        CHECK(back == bits, "pattern %04x: comes back as %04x", bits, (unsigned)back);
        stored = 0xdead;
        onep_store(f->type, &stored, expected);
        CHECK(stored == bits, "pattern %04x: stored as %04x", bits, (unsigned)stored);
    }
}

/* Between every two neighbours: just under the middle, the middle, just over it; both signs. */
static void test_rounding(const half_format *f)
{
    test_context("%s, rounding", f->name);
    unsigned infinity = (unsigned)(f->exponents - 1) << f->fraction_bits;
    for (unsigned bits = 0; bits < infinity; bits++) {
        double low = meaning(f, bits);
        /* The number after the largest would be the next power of two; from the middle on it is infinity. */
        double high = bits + 1 < infinity ? meaning(f, bits + 1) : ldexp(1, f->exponents - 1 - f->bias);
        double middle = 0.5 * (low + high); /* exact in double */
        unsigned even = bits & 1 ? bits + 1 : bits;
        double points[] = {nextafter(middle, 0), middle, nextafter(middle, INFINITY)};
        unsigned expected[] = {bits, even, bits + 1};
        for (int i = 0; i < 3; i++) {
            uint16_t plus = f->encode(points[i]);
            uint16_t minus = f->encode(-points[i]);
            CHECK(plus == expected[i], "%.17g: got %04x, expected %04x", points[i], (unsigned)plus, expected[i]);
            CHECK(minus == (expected[i] | 0x8000u), "%.17g: got %04x, expected %04x", -points[i], (unsigned)minus,
                  expected[i] | 0x8000u);
        }
    }
}

static void test_extremes(const half_format *f)
{
    test_context("%s, extremes", f->name);
    unsigned infinity = (unsigned)(f->exponents - 1) << f->fraction_bits;
    static const double huge[] = {1e39, 1e300, DBL_MAX, INFINITY};
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        CHECK(f->encode(huge[i]) == infinity, "%g: got %04x", huge[i], (unsigned)f->encode(huge[i]));
        CHECK(f->encode(-huge[i]) == (infinity | 0x8000u), "%g: got %04x", -huge[i], (unsigned)f->encode(-huge[i]));
    }
    static const double tiny[] = {0, 1e-300, DBL_TRUE_MIN, 1e-46};
    for (size_t i = 0; i < sizeof tiny / sizeof tiny[0]; i++) {
        CHECK(f->encode(tiny[i]) == 0, "%g: got %04x", tiny[i], (unsigned)f->encode(tiny[i]));
        CHECK(f->encode(-tiny[i]) == 0x8000u, "%g: got %04x", -tiny[i], (unsigned)f->encode(-tiny[i]));
    }
    /* NaN stays NaN, whichever bits of its payload are set. */
    static const uint64_t payloads[] = {1, 0x0008000000000000u, 0x0007ffffffffffffu, 0x0000000020000000u};
    for (size_t i = 0; i < sizeof payloads / sizeof payloads[0]; i++)
        for (uint64_t sign = 0; sign < 2; sign++) {
            uint64_t bits = (sign << 63) | 0x7ff0000000000000u | payloads[i];
            double nan;
            memcpy(&nan, &bits, sizeof nan);
            uint16_t got = f->encode(nan);
            CHECK(isnan(meaning(f, got)), "NaN of payload %llx: got %04x", (unsigned long long)payloads[i],
                  (unsigned)got);
        }
}

static void test_wide_types(void)
{
    test_context("float32 and float64");
    char memory[16]; /* no alignment is promised */
    static const double exact[] = {0, 1, -2.5, FLT_MAX, FLT_TRUE_MIN, 0x1.fffffep-1, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        for (int offset = 0; offset < 3; offset++) {
            onep_store(ONEP_F32, memory + offset, exact[i]);
            CHECK(onep_load(ONEP_F32, memory + offset) == exact[i], "float32 %g at offset %d", exact[i], offset);
            onep_store(ONEP_F64, memory + offset, exact[i] / 3);
            CHECK(onep_load(ONEP_F64, memory + offset) == exact[i] / 3, "float64 %g at offset %d", exact[i], offset);
        }
    onep_store(ONEP_F32, memory, 1 + 0x1p-24);
    CHECK(onep_load(ONEP_F32, memory) == 1, "a tie of float32 goes to the even neighbour");
    onep_store(ONEP_F32, memory, 1 + 3 * 0x1p-24);
    CHECK(onep_load(ONEP_F32, memory) == 1 + 0x1p-22, "upwards too");
    onep_store(ONEP_F32, memory, 0x1p-150);
    CHECK(onep_load(ONEP_F32, memory) == 0, "half the smallest float32 is a tie, and 0 is even");
    onep_store(ONEP_F32, memory, 1e39);
    CHECK(isinf(onep_load(ONEP_F32, memory)), "1e39 overflows float32");
    onep_store(ONEP_F32, memory, NAN);
    CHECK(isnan(onep_load(ONEP_F32, memory)), "NaN");
    for (int byte = 0; byte < 256; byte++) {
        memory[1] = (char)byte;
        CHECK(onep_load(ONEP_BYTE, memory + 1) == byte, "byte %d: got %g", byte, onep_load(ONEP_BYTE, memory + 1));
    }
}

static void test_tables(void)
{
    test_context("tables");
    static const struct {
        onepass_dtype dtype;
        onep_type type;
    } codes[] = {
        {ONEPASS_F16, ONEP_F16},    {ONEPASS_BF16, ONEP_BF16},     {ONEPASS_F32, ONEP_F32},
        {ONEPASS_F64, ONEP_F64},    {ONEPASS_U8, ONEP_BYTE},       {ONEPASS_B8, ONEP_BYTE},
        {{2, 16, 1}, ONEP_F16},     {{4, 16, 1}, ONEP_BF16},       {{1, 8, 1}, ONEP_BYTE},
        {{6, 8, 1}, ONEP_BYTE},     {{2, 8, 1}, ONEP_NO_TYPE},     {{2, 128, 1}, ONEP_NO_TYPE},
        {{2, 0, 1}, ONEP_NO_TYPE},  {{2, 32, 2}, ONEP_NO_TYPE},    {{2, 32, 0}, ONEP_NO_TYPE},
        {{0, 8, 1}, ONEP_NO_TYPE},  {{0, 16, 1}, ONEP_NO_TYPE},    {{1, 16, 1}, ONEP_NO_TYPE},
        {{6, 1, 1}, ONEP_NO_TYPE},  {{4, 32, 1}, ONEP_NO_TYPE},    {{4, 8, 1}, ONEP_NO_TYPE},
        {{3, 64, 1}, ONEP_NO_TYPE}, {{5, 64, 1}, ONEP_NO_TYPE},    {{5, 32, 1}, ONEP_NO_TYPE},
        {{10, 8, 1}, ONEP_NO_TYPE}, {{255, 255, 1}, ONEP_NO_TYPE}, {{0, 0, 0}, ONEP_NO_TYPE},
        {ONEPASS_I64, ONEP_I64},    {{0, 64, 1}, ONEP_I64},        {{1, 64, 1}, ONEP_NO_TYPE},
        {ONEPASS_I32, ONEP_I32},    {{0, 32, 1}, ONEP_I32},        {{1, 32, 1}, ONEP_NO_TYPE},
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        onep_type got = onep_type_of(codes[i].dtype);
        CHECK(got == codes[i].type, "code %d, %d bits, %d lanes: got %d, expected %d", codes[i].dtype.code,
              codes[i].dtype.bits, codes[i].dtype.lanes, (int)got, (int)codes[i].type);
    }

    static const struct {
        size_t size;
        const char *name;
    } facts[] = {{2, "float16"}, {2, "bfloat16"}, {4, "float32"}, {8, "float64"},
                 {1, "uint8"},   {4, "int32"},    {8, "int64"}};
    for (int type = 0; type <= ONEP_I64; type++) {
        CHECK(onep_type_size((onep_type)type) == facts[type].size, "size of type %d", type);
        CHECK(strcmp(onep_type_name((onep_type)type), facts[type].name) == 0, "name of type %d", type);
    }

    static const int64_t integers[] = {0, -1, 100, INT32_MAX, INT32_MIN};
    for (int type = ONEP_I32; type <= ONEP_I64; type++)
        for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
            char memory[1 + 8] = {0}; /* at an odd address */
            onep_store_integer((onep_type)type, memory + 1, integers[i]);
            CHECK(onep_load_integer((onep_type)type, memory + 1) == integers[i], "type %d, integer %zu", type, i);
        }

    /* torch.promote_types */
    enum { H = ONEP_F16, B = ONEP_BF16, S = ONEP_F32, D = ONEP_F64 };
    static const int promoted[4][4] = {
        [H] = {[H] = H, [B] = S, [S] = S, [D] = D},
        [B] = {[H] = S, [B] = B, [S] = S, [D] = D},
        [S] = {[H] = S, [B] = S, [S] = S, [D] = D},
        [D] = {[H] = D, [B] = D, [S] = D, [D] = D},
    };
    /* Every float16 is a float32; no half type holds the other. */
    static const int holds[4][4] = {
        [H] = {[H] = 1, [B] = 0, [S] = 0, [D] = 0},
        [B] = {[H] = 0, [B] = 1, [S] = 0, [D] = 0},
        [S] = {[H] = 1, [B] = 1, [S] = 1, [D] = 0},
        [D] = {[H] = 1, [B] = 1, [S] = 1, [D] = 1},
    };
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            CHECK((int)onep_promote((onep_type)a, (onep_type)b) == promoted[a][b], "promotion of %s and %s",
                  facts[a].name, facts[b].name);
            CHECK(!!onep_type_holds((onep_type)a, (onep_type)b) == holds[a][b], "%s holds %s", facts[a].name,
                  facts[b].name);
        }
}

int main(void)
{
    test_begin("test_types");
    for (size_t i = 0; i < sizeof half_formats / sizeof half_formats[0]; i++) {
        test_all_patterns(&half_formats[i]);
        test_rounding(&half_formats[i]);
        test_extremes(&half_formats[i]);
    }
    test_wide_types();
    test_tables();
    return test_end();
}
