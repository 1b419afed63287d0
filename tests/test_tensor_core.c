/*
 * The model of a tensor core (tensor_core.h): each of its conventions on numbers worked out by hand, random inputs
 * against a second formulation in double and against exact sums, and inputs that tell every way of getting it wrong
 * from the truth. No GPU takes part.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "exact_sum.h"
#include "harness.h"
#include "tensor_core.h"

enum { LONGEST = 64 };

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint16_t pack(onep_type type, double x)
{
    return type == ONEP_F16 ? onep_f16_from_f64(x) : onep_bf16_from_f64(x);
}

static float widen(onep_type type, uint16_t bits)
{
    return type == ONEP_F16 ? onep_f16_to_f32(bits) : onep_bf16_to_f32(bits);
}

/* ---- by hand ----------------------------------------------------------------------------------------------------- */

typedef struct worked {
    const char *what;
    onep_type type;
    const tensor_core *core;
    float c;
    struct {
        int at; /* index of a product; all others are 0 */
        double a, b;
    } products[9]; /* ends with a = 0 and b = 0 */
    float expected;
} worked;

static const tensor_core *const hopper = &tensor_core_hopper;

/* 1 and -1 cancel, so that what is left shows which bits of the other terms were kept. */
static const worked table[] = {
    {"two extra bits", ONEP_F16, &tensor_core_hopper, 0, {{0, 1, 1}, {1, -1, 1}, {2, 0x1p-12, 0x1p-13}}, 0x1p-25f},
    {"no third one", ONEP_F16, &tensor_core_hopper, 0, {{0, 1, 1}, {1, -1, 1}, {2, 0x1p-13, 0x1p-13}}, 0},
    {"bf16 alike", ONEP_BF16, &tensor_core_hopper, 0, {{0, 1, 1}, {1, -1, 1}, {2, 0x1p-12, 0x1p-13}}, 0x1p-25f},
    {"bf16, no third one", ONEP_BF16, &tensor_core_hopper, 0, {{0, 1, 1}, {1, -1, 1}, {2, 0x1p-13, 0x1p-13}}, 0},
    {"A100: one", ONEP_F16, &tensor_core_ampere, 0, {{0, 1, 1}, {1, -1, 1}, {2, 0x1p-12, 0x1p-12}}, 0x1p-24f},
    {"A100: no second one", ONEP_F16, &tensor_core_ampere, 0, {{0, 1, 1}, {1, -1, 1}, {2, 0x1p-12, 0x1p-13}}, 0},
    /* 1.5 * 1.5 = 2.25 has the exponent 0 + 0, so 2^-25 is kept. */
    {"exponents add",
     ONEP_F16,
     &tensor_core_hopper,
     0,
     {{0, 1.5, 1.5}, {1, -1.5, 1.5}, {2, 0x1p-12, 0x1p-13}},
     0x1p-25f},
    {"a term is cut, not rounded",
     ONEP_F16,
     &tensor_core_hopper,
     0,
     {{0, 1, 1}, {1, -1, 1}, {2, 0x1.8p-12, 0x1p-13}},
     0x1p-25f},
    {"toward zero", ONEP_F16, &tensor_core_hopper, 0, {{0, 1, 1}, {1, -1, 1}, {2, -0x1.8p-12, 0x1p-13}}, -0x1p-25f},
    /* Each of the three is lost, though their sum is not small enough to be. */
    {"terms are cut one by one",
     ONEP_F16,
     &tensor_core_hopper,
     0,
     {{0, 1, 1}, {1, -1, 1}, {2, 0x1p-13, 0x1p-13}, {3, 0x1p-13, 0x1p-13}, {4, 0x1p-13, 0x1p-13}},
     0},
    {"c takes part in the alignment",
     ONEP_F16,
     &tensor_core_hopper,
     0x1p10f,
     {{0, -0x1p5, 0x1p5}, {1, 0x1p-8, 0x1p-8}},
     0},
    {"c sets the unit", ONEP_F16, &tensor_core_hopper, 0x1p10f, {{0, -0x1p5, 0x1p5}, {1, 0x1p-7, 0x1p-8}}, 0x1p-15f},
    {"c is cut as well", ONEP_F16, &tensor_core_hopper, -0x1.8p-25f, {{0, 1, 1}, {1, -1, 1}}, -0x1p-25f},
    {"c alone", ONEP_F16, &tensor_core_hopper, 0x1.fffffep-120f, {{0, 0, 0}}, 0x1.fffffep-120f},
    {"subnormal c", ONEP_F16, &tensor_core_hopper, -0x1p-149f, {{0, 0, 0}}, -0x1p-149f},
    {"the sum is cut", ONEP_F16, &tensor_core_hopper, 1, {{0, 0x1.8p-12, 0x1p-12}}, 1},
    {"toward zero, too", ONEP_F16, &tensor_core_hopper, -1, {{0, -0x1.8p-12, 0x1p-12}}, -1},
    {"and to a number under it", ONEP_F16, &tensor_core_hopper, 1, {{0, -0x1p-12, 0x1p-13}}, 0x1.fffffep-1f},
    {"16 products are one step",
     ONEP_F16,
     &tensor_core_hopper,
     0,
     {{0, 1, 1}, {1, 0x1p-12, 0x1p-13}, {15, -1, 1}},
     0x1p-25f},
    {"the 17th is in the next one",
     ONEP_F16,
     &tensor_core_hopper,
     0,
     {{0, 1, 1}, {1, 0x1p-12, 0x1p-13}, {16, -1, 1}},
     0},
    {"A100: 8 are", ONEP_F16, &tensor_core_ampere, 0, {{0, 1, 1}, {1, 0x1p-12, 0x1p-12}, {7, -1, 1}}, 0x1p-24f},
    {"A100: 9 are not", ONEP_F16, &tensor_core_ampere, 0, {{0, 1, 1}, {1, 0x1p-12, 0x1p-12}, {8, -1, 1}}, 0},
    /* 2^-24 2^15: the exponent is -14 + 15, so the unit is 2^-24; the exponent of 2^-9 would have kept 2^-25. */
    {"a subnormal operand", ONEP_F16, &tensor_core_hopper, 0, {{0, 0x1p-24, 0x1p15}, {1, 0x1p-12, 0x1p-13}}, 0x1p-9f},
    /* A zero times 2^15 has no exponent: 2^-48 is kept. */
    {"a zero product", ONEP_F16, &tensor_core_hopper, 0, {{0, 0, 0x1p15}, {1, 0x1p-24, 0x1p-24}}, 0x1p-48f},
    {"the farthest apart",
     ONEP_F16,
     &tensor_core_hopper,
     0,
     {{0, 65504, 65504}, {1, 0x1p-24, 0x1p-24}},
     0x1.ff8008p31f},
    {"largest fp16 sum", ONEP_F16, &tensor_core_hopper, 0x1.fffffep127f, {{0, 65504, 65504}}, 0x1.fffffep127f},
    {"overflow", ONEP_BF16, &tensor_core_hopper, 0, {{0, 0x1p64, 0x1p63}, {1, 0x1p64, 0x1p63}}, INFINITY},
    {"overflow of one product", ONEP_BF16, &tensor_core_hopper, 0, {{0, -0x1p64, 0x1p64}}, -INFINITY},
    {"it comes back", ONEP_BF16, &tensor_core_hopper, 0, {{0, 0x1p64, 0x1p64}, {1, -0x1p64, 0x1.8p63}}, 0x1p126f},
    {"cut at the largest", ONEP_BF16, &tensor_core_hopper, 0x1.fffffep127f, {{0, 0x1p60, 0x1.8p43}}, 0x1.fffffep127f},
    {"a subnormal result", ONEP_BF16, &tensor_core_hopper, 0, {{0, 0x1p-75, 0x1.8p-74}}, 0x1p-149f},
    {"two make one", ONEP_BF16, &tensor_core_hopper, 0, {{0, 0x1p-75, 0x1p-75}, {1, 0x1p-75, 0x1p-75}}, 0x1p-149f},
    /* E is -133, not -152, and not -126: 2^-152 is a multiple of 2^-158. */
    {"small products are kept",
     ONEP_BF16,
     &tensor_core_hopper,
     0,
     {{0, 0x1p-76, 0x1p-76},
      {1, 0x1p-76, 0x1p-76},
      {2, 0x1p-76, 0x1p-76},
      {3, 0x1p-76, 0x1p-76},
      {4, 0x1p-76, 0x1p-76},
      {5, 0x1p-76, 0x1p-76},
      {6, 0x1p-76, 0x1p-76},
      {7, 0x1p-76, 0x1p-76}},
     0x1p-149f},
    {"unless c is there",
     ONEP_BF16,
     &tensor_core_hopper,
     0x1p-126f,
     {{0, 0x1p-76, 0x1p-76},
      {1, 0x1p-76, 0x1p-76},
      {2, 0x1p-76, 0x1p-76},
      {3, 0x1p-76, 0x1p-76},
      {4, 0x1p-76, 0x1p-76},
      {5, 0x1p-76, 0x1p-76},
      {6, 0x1p-76, 0x1p-76},
      {7, 0x1p-76, 0x1p-76}},
     0x1p-126f},
    {"infinity", ONEP_F16, &tensor_core_hopper, 3, {{0, INFINITY, -2}, {1, 1, 1}}, -INFINITY},
    {"infinite c", ONEP_F16, &tensor_core_hopper, INFINITY, {{0, 2, -2}}, INFINITY},
    {"inf - inf", ONEP_F16, &tensor_core_hopper, INFINITY, {{0, INFINITY, -2}}, NAN},
    {"inf - inf, products", ONEP_BF16, &tensor_core_hopper, 0, {{0, INFINITY, 1}, {5, INFINITY, -1}}, NAN},
    {"0 inf", ONEP_F16, &tensor_core_hopper, 0, {{0, INFINITY, 0}}, NAN},
    {"0 inf, other operand", ONEP_F16, &tensor_core_hopper, 0, {{0, 0, -INFINITY}}, NAN},
    {"NaN", ONEP_BF16, &tensor_core_hopper, 0, {{3, NAN, 1}}, NAN},
    {"NaN c", ONEP_F16, &tensor_core_hopper, NAN, {{0, 1, 1}}, NAN},
    {"NaN is not undone", ONEP_F16, &tensor_core_hopper, 0, {{0, NAN, 1}, {20, 1, 1}}, NAN},
};

static float run_worked(const worked *w, const tensor_core *core)
{
    uint16_t a[LONGEST] = {0}, b[LONGEST] = {0};
    for (int i = 0; i < 9; i++) {
        if (w->products[i].a == 0 && w->products[i].b == 0)
            break;
        a[w->products[i].at] = pack(w->type, w->products[i].a);
        b[w->products[i].at] = pack(w->type, w->products[i].b);
    }
    return tensor_core_dot(core, w->type, w->c, a, b, 32);
}

static void test_worked(void)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        test_context("by hand: %s", table[i].what);
        float got = run_worked(&table[i], table[i].core);
        uint32_t expected = isnan(table[i].expected) ? 0x7fffffff : bits_of(table[i].expected);
        CHECK(bits_of(got) == expected, "got %a (0x%08" PRIx32 "), expected %a", (double)got, bits_of(got),
              (double)table[i].expected);
    }
}

/* ---- random inputs ----------------------------------------------------------------------------------------------- */

static double gaussian(test_random *random)
{
    double radius = sqrt(-2 * log(test_random_unit(random)));
    return radius * cos(6.283185307179586 * test_random_unit(random));
}

enum { GAUSSIAN, LOGNORMAL, PATTERNS, CANCELLING, SMALL, FAMILIES };
static const char *const family_names[FAMILIES] = {"gaussian", "lognormal", "bit patterns", "cancelling", "small"};

static void fill(test_random *random, int family, onep_type type, float *c, uint16_t *a, uint16_t *b)
{
    *c = 0;
    for (int k = 0; k < LONGEST; k++) {
        double x = gaussian(random), y = gaussian(random);
        if (family == LOGNORMAL) {
            x = fmin(fmax(x * exp(3 * gaussian(random)), -6e4), 6e4);
            y = fmin(fmax(y * exp(3 * gaussian(random)), -6e4), 6e4);
        } else if (family == SMALL) { /* normal and subnormal ones */
            x *= type == ONEP_F16 ? 0x1p-14 : 0x1p-70;
            y *= type == ONEP_F16 ? 0x1p-13 : 0x1p-66;
        }
        a[k] = pack(type, x);
        b[k] = pack(type, y);
        if (family == PATTERNS) /* all finite ones of fp16; of bf16 those whose products are within fp32 */
            for (int i = 0; i < 2; i++) {
                uint16_t *to = i ? &b[k] : &a[k];
                do
                    *to = (uint16_t)test_random_bits(random);
                while (type == ONEP_F16 ? (*to >> 10 & 31) == 31 : (*to >> 7 & 255) > 180 || (*to >> 7 & 255) < 60);
            }
        if (family == CANCELLING && k % 2 == 1) {
            a[k] = (uint16_t)(a[k - 1] ^ 0x8000);
            b[k] = (uint16_t)(b[k - 1] + test_random_below(random, 3));
        }
    }
    if (test_random_below(random, 2))
        *c = (float)(8 * gaussian(random) * (family == LOGNORMAL ? exp(3 * gaussian(random)) : 1));
    if (family == SMALL)
        *c *= type == ONEP_F16 ? 0x1p-27f : 0x1p-136f;
}

static int exponent_of(double x, int lowest)
{
    return x == 0 || ilogb(x) < lowest ? lowest : ilogb(x);
}

/* The rule of tensor_core.h again, in double, for finite inputs: a product of halves is exact there, and so is a sum of
 * 17 terms that are multiples of 2^unit below 2^(unit+29). */
static float in_double(const tensor_core *core, onep_type type, float c, const uint16_t *a, const uint16_t *b,
                       int count)
{
    int lowest = type == ONEP_F16 ? -14 : -126;
    for (int k = 0; k < count; k += core->width) {
        int largest = c == 0 ? core->lowest : exponent_of((double)c, -126);
        for (int i = k; i < k + core->width; i++) {
            double x = (double)widen(type, a[i]), y = (double)widen(type, b[i]);
            int exponent = exponent_of(x, lowest) + exponent_of(y, lowest);
            if (x * y != 0 && exponent > largest)
                largest = exponent;
        }
        int unit = largest - 23 - core->extra_bits;
        double sum = trunc(ldexp((double)c, -unit));
        for (int i = k; i < k + core->width; i++)
            sum += trunc(ldexp((double)widen(type, a[i]) * (double)widen(type, b[i]), -unit));
        sum = ldexp(sum, unit);
        int last = exponent_of(sum, -126) - 23;
        c = (float)ldexp(trunc(ldexp(sum, -last)), last);
    }
    return c;
}

/* How far the sum may be from the exact one: a step loses less than 2^E 2^-(23+extra) a product (or c instead of the
 * largest one), and 2^-23 of the sum. 2^E is no more than the sum of magnitudes, subnormal operands counted as 2^-14.
 */
static double step_bound(const tensor_core *core, onep_type type, float c, const uint16_t *a, const uint16_t *b)
{
    double size = fabs((double)c), floor_of_type = type == ONEP_F16 ? 0x1p-14 : 0x1p-126;
    for (int k = 0; k < LONGEST; k++) {
        double x = fabs((double)widen(type, a[k])), y = fabs((double)widen(type, b[k]));
        if (x * y != 0)
            size += fmax(x, floor_of_type) * fmax(y, floor_of_type);
    }
    double steps = LONGEST / core->width;
    return 0x1p-23 * (core->width * ldexp(1, -core->extra_bits) + 1) * (steps * size * (1 + 0x1p-16)) +
           steps * (core->width + 1) * 0x1p-149; /* where E is `lowest`, or the sum is subnormal */
}

static const tensor_core variants[] = {{.width = 16, .extra_bits = 2, .lowest = -133},
                                       {.width = 8, .extra_bits = 1, .lowest = -132}};

static void test_random_inputs(void)
{
    test_random random = test_random_stream(1);
    int runs = test_quick() ? 2000 : 10000;
    for (int half = 0; half < 2; half++)
        for (int family = 0; family < FAMILIES; family++)
            for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
                onep_type type = half ? ONEP_BF16 : ONEP_F16;
                double worst = 0;
                for (int run = 0; run < runs; run++) {
                    uint16_t a[LONGEST], b[LONGEST];
                    float c;
                    fill(&random, family, type, &c, a, b);
                    float got = tensor_core_dot(&variants[v], type, c, a, b, LONGEST);
                    float again = in_double(&variants[v], type, c, a, b, LONGEST);
                    test_context("%s, %s, %d wide, run %d", onep_type_name(type), family_names[family],
                                 variants[v].width, run);
                    CHECK(bits_of(got) == bits_of(again) || (got == 0 && again == 0), "got %a, in double %a",
                          (double)got, (double)again);
                    exact_sum sum = {{0}};
                    exact_add(&sum, c, 1);
                    exact_add(&sum, got, -1);
                    for (int k = 0; k < LONGEST; k++)
                        exact_add(&sum, widen(type, a[k]), widen(type, b[k]));
                    double error = fabs(exact_value(&sum)), bound = step_bound(&variants[v], type, c, a, b);
                    CHECK(error <= bound, "error %g, bound %g", error, bound);
                    worst = fmax(worst, bound > 0 ? error / bound : 0);
                }
                CHECK(worst > 0.001, "%s, %s: the largest error is %g of its bound: nothing was cut",
                      onep_type_name(type), family_names[family], worst);
            }
}

/* Products of which nothing is kept, beside c: four fifths of the bound (two thirds on an A100) are reached. */
static void test_worst(void)
{
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        uint16_t a[LONGEST], b[LONGEST];
        exact_sum sum = {{0}};
        for (int k = 0; k < LONGEST; k++) {
            a[k] = pack(ONEP_F16, 0x1.ffcp-13);
            b[k] = pack(ONEP_F16, ldexp(1, -11 - variants[v].extra_bits));
            exact_add(&sum, widen(ONEP_F16, a[k]), widen(ONEP_F16, b[k]));
        }
        test_context("products of which nothing is kept, %d wide", variants[v].width);
        float got = tensor_core_dot(&variants[v], ONEP_F16, 1, a, b, LONGEST);
        double error = exact_value(&sum), bound = step_bound(&variants[v], ONEP_F16, 1, a, b);
        CHECK(got == 1, "got %a", (double)got);
        CHECK(error > 0.6 * bound && error <= bound, "error %g, bound %g", error, bound);
    }
}

/* Whole numbers whose sums stay under 2^24, and the same shifted: nothing is cut, the sum is exact. */
static void test_exact_inputs(void)
{
    test_random random = test_random_stream(2);
    for (int run = 0; run < 2000; run++) {
        onep_type type = run % 2 ? ONEP_BF16 : ONEP_F16;
        int shift = (int)test_random_below(&random, 20) - 10;
        uint16_t a[LONGEST], b[LONGEST];
        int64_t sum = test_random_below(&random, 2001) - 1000;
        float c = ldexpf((float)sum, 2 * shift);
        int count = 1 + (int)test_random_below(&random, LONGEST);
        for (int k = 0; k < count; k++) {
            int64_t x = test_random_below(&random, 255) - 127, y = test_random_below(&random, 255) - 127;
            a[k] = pack(type, ldexp((double)x, shift));
            b[k] = pack(type, ldexp((double)y, shift));
            sum += x * y;
        }
        test_context("whole numbers, %s, %d products, times 2^%d", onep_type_name(type), count, 2 * shift);
        for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
            float got = tensor_core_dot(&variants[v], type, c, a, b, count);
            CHECK(got == ldexpf((float)sum, 2 * shift), "got %a, expected %" PRId64 " 2^%d", (double)got, sum,
                  2 * shift);
        }
    }
}

/* ---- every slip is seen ------------------------------------------------------------------------------------------ */

static void test_slips(void)
{
    static const struct {
        const char *what;
        tensor_core core;
        int by_random; /* random inputs must show it, not only those by hand */
    } wrong[] = {
        {"3 extra bits", {16, 3, -133, TENSOR_CORE_TRUE}, 1},
        {"1 extra bit", {16, 1, -133, TENSOR_CORE_TRUE}, 1},
        {"no extra bits", {16, 0, -133, TENSOR_CORE_TRUE}, 1},
        {"8 wide", {8, 2, -133, TENSOR_CORE_TRUE}, 1},
        {"4 wide", {4, 2, -133, TENSOR_CORE_TRUE}, 1},
        {"32 wide", {32, 2, -133, TENSOR_CORE_TRUE}, 1},
        {"rounded terms", {16, 2, -133, TENSOR_CORE_ROUNDED_TERMS}, 1},
        {"terms cut toward minus infinity", {16, 2, -133, TENSOR_CORE_FLOORED_TERMS}, 1},
        {"rounded sum", {16, 2, -133, TENSOR_CORE_ROUNDED_SUM}, 1},
        {"exponent of the product", {16, 2, -133, TENSOR_CORE_NORMAL_PRODUCT}, 1},
        {"exponent of a subnormal operand", {16, 2, -133, TENSOR_CORE_NORMAL_SUBNORMAL}, 0},
        {"c added apart", {16, 2, -133, TENSOR_CORE_C_APART}, 1},
    };
    enum { RUNS = 2000 };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        test_context("a slip: %s", wrong[i].what);
        int seen = 0;
        for (size_t t = 0; t < sizeof table / sizeof table[0]; t++)
            if (table[t].core == hopper)
                seen += bits_of(run_worked(&table[t], &wrong[i].core)) != bits_of(run_worked(&table[t], hopper));
        CHECK(seen > 0, "no input worked out by hand shows it");
        test_random random = test_random_stream(3);
        int different = 0;
        for (int run = 0; run < RUNS; run++) {
            uint16_t a[LONGEST], b[LONGEST];
            float c;
            fill(&random, GAUSSIAN, ONEP_F16, &c, a, b);
            different += tensor_core_dot(&wrong[i].core, ONEP_F16, c, a, b, LONGEST) !=
                         tensor_core_dot(hopper, ONEP_F16, c, a, b, LONGEST);
        }
        printf("%s: %d of %d gaussian sums have other bits\n", wrong[i].what, different, (int)RUNS);
        CHECK(different >= (wrong[i].by_random ? RUNS / 100 : 0), "%d of %d differ", different, (int)RUNS);
    }
}

int main(void)
{
    test_begin("test_tensor_core");
    test_worked();
    test_random_inputs();
    test_worst();
    test_exact_inputs();
    test_slips();
    return test_end();
}
