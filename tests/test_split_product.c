/*
 * The fp32 product on tensor cores (split_product.h) without a GPU, against exact sums: every variant on every family of
 * inputs stays within the bound of docs/numerics.md, element by element, and within what is expected of the family;
 * beside it, on the same inputs, a chain of fp32 fma. Also the split itself, range, special values and odd depths.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exact_sum.h"
#include "harness.h"
#include "split_product.h"

enum { DEEPEST = 8192, ROWS = 12, COLUMNS = 12 };

#define HOPPER {.width = 16, .extra_bits = 2}
#define AMPERE {.width = 8, .extra_bits = 1}

enum { FIRST, RESCALED, APART, CHUNKED, CHUNKED_RESCALED, AMPERE_FIRST, AMPERE_APART, VARIANTS };

static const split_scheme schemes[VARIANTS] = {
    [FIRST] = {.name = "corrections first", .core = HOPPER, .promote = 64},
    [RESCALED] = {.name = "corrections first, lo scaled", .core = HOPPER, .lo_scaled = 1, .promote = 64},
    [APART] = {.name = "corrections apart, lo scaled",
               .core = HOPPER,
               .lo_scaled = 1,
               .corrections = SPLIT_APART,
               .promote = 64},
    [CHUNKED] = {.name = "weight by chunks", .core = HOPPER, .promote = 64, .chunk_scaled = 1, .weight_first = 1},
    [CHUNKED_RESCALED] = {.name = "weight by chunks, lo scaled",
                          .core = HOPPER,
                          .lo_scaled = 1,
                          .promote = 64,
                          .chunk_scaled = 1,
                          .weight_first = 1},
    [AMPERE_FIRST] = {.name = "A100, corrections first", .core = AMPERE, .promote = 64},
    [AMPERE_APART] = {.name = "A100, corrections apart, lo scaled",
                      .core = AMPERE,
                      .lo_scaled = 1,
                      .corrections = SPLIT_APART,
                      .promote = 64},
};

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static float inputs[ROWS][DEEPEST], weights[COLUMNS][DEEPEST];

typedef enum family {
    UNIFORM,
    GAUSSIAN,
    LOGNORMAL,
    CANCELLING,
    SUBNORMAL,
    SUBNORMAL_RESULT,
    LARGEST,
    LARGEST_WEIGHT,
    HALVES,
    ODD,
    LADDER, /* and up: an outlier of 2^8, 2^14, 2^17, 2^20, 2^24, 2^28, 2^31 in each row of the input */
    LADDER_END = LADDER + 7,
    WEIGHT_LADDER = LADDER_END, /* the same of 2^20 in the weight */
    FAMILIES,
} family;

static const int outliers[] = {8, 14, 17, 20, 24, 28, 31};
static const char *const family_names[LADDER] = {
    "uniform",       "gaussian",        "lognormal(3)",      "cancelling", "subnormal rows", "subnormal results",
    "largest float", "largest weights", "fp16 numbers only", "odd split"};

static const char *name_of(family f)
{
    static char text[32];
    if (f < LADDER)
        return family_names[f];
    if (f == WEIGHT_LADDER)
        return "outlier 2^20, weight";
    snprintf(text, sizeof text, "outlier 2^%d", outliers[f - LADDER]);
    return text;
}

static double gaussian(test_random *random)
{
    double radius = sqrt(-2 * log(test_random_unit(random)));
    return radius * cos(6.283185307179586 * test_random_unit(random));
}

/* A number whose residual after hi is k 2^(e-23), k odd and over 2^11 in magnitude: lo is one unit off. */
static float odd_number(test_random *random)
{
    uint32_t rest = 0x800u + 1 + 2 * (uint32_t)test_random_below(random, 0x3ff); /* under half a unit of hi: 2^12 */
    uint32_t fraction = (uint32_t)test_random_below(random, 1024) << 13 | rest;
    return ldexpf((float)(0x800000u | fraction), (int)test_random_below(random, 4) - 25) *
           (test_random_below(random, 2) ? 1.0f : -1.0f);
}

static void fill(test_random *random, family f, int64_t depth)
{
    int64_t outlier = test_random_below(random, depth);
    for (int row = 0; row < ROWS + COLUMNS; row++) {
        int weight = row >= ROWS;
        float *to = weight ? weights[row - ROWS] : inputs[row];
        for (int64_t k = 0; k < depth; k++) {
            double x = gaussian(random);
            switch (f) {
            case UNIFORM:
                x = weight ? test_random_between(random, -1, 1) / sqrt((double)depth) : test_random_unit(random);
                break;
            case LOGNORMAL:
                x *= exp(3 * gaussian(random));
                break;
            case CANCELLING: /* three pairs of four are huge and cancel to a few units in the last place */
                if (k % 8 < 6 && k % 2 == 1)
                    x = weight ? -(double)to[k - 1] * (1 + ldexp((double)test_random_below(random, 9) - 4, -23))
                               : (double)to[k - 1];
                else if (k % 8 < 6 && !weight)
                    x = ldexp(x, 12);
                break;
            case SUBNORMAL:
                x = weight ? ldexp(x, 60) : ldexp(x, -130);
                break;
            case SUBNORMAL_RESULT:
                x = ldexp(x, weight ? -80 : -58);
                break;
            case LARGEST:
                x = weight ? ldexp(x, -110) : (x < 0 ? -1 : 1) * (double)FLT_MAX * test_random_between(random, 0.25, 1);
                if (k == 0 && !weight)
                    x = row % 2 ? -(double)FLT_MAX : (double)FLT_MAX;
                break;
            case LARGEST_WEIGHT:
                x = !weight ? ldexp(x, -110)
                            : (x < 0 ? -1 : 1) * (double)FLT_MAX * test_random_between(random, 0.25, 1);
                break;
            case HALVES:
                x = (double)onep_f16_to_f32(onep_f16_from_f64(x));
                break;
            case ODD:
                x = (double)odd_number(random);
                break;
            default:
                break;
            }
            to[k] = (float)x;
        }
        if (f >= LADDER && f < LADDER_END)
            to[outlier] = weight ? 0 : ldexpf(1, outliers[f - LADDER]);
        if (f == WEIGHT_LADDER)
            to[outlier] = weight ? 0x1p20f : 0;
    }
}

/* ---- the bound of docs/numerics.md ------------------------------------------------------------------------------- */

typedef struct split_store {
    uint16_t hi[DEEPEST], lo[DEEPEST];
    int exponents[DEEPEST / SPLIT_CHUNK];
    split_row row;
} split_store;

static split_store input_rows[ROWS], weight_rows[COLUMNS];

/* One element of a row as the tensor core sees it, in the units of the row itself. */
typedef struct part {
    double size, hi, lo, hi_at_least, lo_at_least, lost;
} part;

static part part_of(const split_scheme *scheme, int weight, const float *x, const split_row *row, int64_t k)
{
    int exponent = row->exponents[weight && scheme->chunk_scaled ? k / SPLIT_CHUNK : 0];
    double unit = ldexp(1, -exponent), lo_unit = scheme->lo_scaled ? 0x1p-11 * unit : unit;
    part p = {.size = fabs((double)x[k]),
              .hi = fabs((double)onep_f16_to_f32(row->hi[k])) * unit,
              .lo = fabs((double)onep_f16_to_f32(row->lo[k])) * lo_unit};
    p.hi_at_least = p.hi != 0 ? fmax(p.hi, 0x1p-14 * unit) : 0;
    p.lo_at_least = p.lo != 0 ? fmax(p.lo, 0x1p-14 * lo_unit) : 0;
    p.lost = p.size != 0 ? fmax(0x1p-23 * p.size, 0x1p-25 * lo_unit) : 0;
    return p;
}

/* Bound of |y - exact|, from sums over k. */
static double bound_of(const split_scheme *scheme, const float *x, const split_row *x_row, const float *w,
                       const split_row *w_row, int64_t depth, double y)
{
    double split = 0, main_size = 0, correction_size = 0;
    for (int64_t k = 0; k < depth; k++) {
        part a = part_of(scheme, 0, x, x_row, k), b = part_of(scheme, 1, w, w_row, k);
        split += a.lo * b.lo + a.lost * b.size + a.size * b.lost + a.lost * b.lost;
        main_size += a.hi_at_least * b.hi_at_least;
        correction_size += a.hi_at_least * b.lo_at_least + a.lo_at_least * b.hi_at_least;
    }
    /* A step of the tensor core loses at most `step` of the magnitudes it adds. */
    double width = scheme->core.width, step = 0x1p-23 * (ldexp(width, -scheme->core.extra_bits) + 1);
    double run = fmin(scheme->promote ? scheme->promote : (double)depth, ceil((double)depth / 64) * 64);
    double promotions = ceil((double)depth / run), sum;
    if (scheme->corrections == SPLIT_APART)
        sum = step * (run / width * main_size + ceil((double)depth / 16) * 2 * (16 / width) * correction_size) +
              0x1p-24 * ((promotions - 1) * main_size + main_size + correction_size);
    else
        sum = step * (run / width * (main_size + correction_size) + 2 * run / width * correction_size) +
              0x1p-24 * (promotions - 1) * (main_size + correction_size);
    if (scheme->chunk_scaled)
        sum += ldexp(promotions, -150 - x_row->exponents[0]);
    return (split + sum) * (1 + 0x1p-12) + 0x1p-24 * fabs(y) + 0x1p-150;
}

/* The same in a line, for rows without small elements: E, the error relative to the sum of |x| |w|. */
static double short_bound(const split_scheme *scheme, int64_t depth)
{
    double chunks = ceil((double)depth / 64), steps = 64.0 / scheme->core.width;
    double units = 4 + 5 * steps + (chunks - 1) / 2 + 0.5;
    if (scheme->corrections == SPLIT_APART)
        units += 0.5 + chunks * 5 * 2 * steps * 0x1p-10;
    return 0x1p-23 * units * (1 + 0x1p-7);
}

/* ---- families against exact sums --------------------------------------------------------------------------------- */

typedef struct errors {
    double frobenius, elementwise; /* |e| / |y| in the Frobenius norm, and E */
    double share;                  /* largest error relative to its bound */
    int small, range;              /* some row is flagged */
} errors;

static double exact_errors[ROWS][COLUMNS], exact_values[ROWS][COLUMNS], sizes[ROWS][COLUMNS];

static double error_of(const float *x, const float *w, int64_t depth, float y)
{
    exact_sum sum = {{0}};
    for (int64_t k = 0; k < depth; k++)
        exact_add(&sum, x[k], w[k]);
    exact_add(&sum, y, -1);
    return exact_value(&sum);
}

static void prepare(int64_t depth)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            exact_values[i][j] = error_of(inputs[i], weights[j], depth, 0);
            sizes[i][j] = 0;
            for (int64_t k = 0; k < depth; k++)
                sizes[i][j] += fabs((double)inputs[i][k]) * fabs((double)weights[j][k]);
        }
}

/* norm(e) / norm(y) and the largest |e| / size of what is in exact_errors. */
static errors summary(void)
{
    errors e = {0};
    double above = 0, below = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            above += exact_errors[i][j] * exact_errors[i][j];
            below += exact_values[i][j] * exact_values[i][j];
            if (sizes[i][j] > 0)
                e.elementwise = fmax(e.elementwise, fabs(exact_errors[i][j]) / sizes[i][j]);
        }
    e.frobenius = sqrt(above / below);
    return e;
}

static errors run_chain(int64_t depth)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            float y = 0;
            for (int64_t k = 0; k < depth; k++)
                y = fmaf(inputs[i][k], weights[j][k], y);
            exact_errors[i][j] = exact_values[i][j] - (double)y;
        }
    return summary();
}

static void split_rows(const split_scheme *scheme, int64_t depth)
{
    for (int i = 0; i < ROWS + COLUMNS; i++) {
        split_store *store = i < ROWS ? &input_rows[i] : &weight_rows[i - ROWS];
        memset(store, 0xff, sizeof *store); /* NaN in both planes */
        store->row = (split_row){.hi = store->hi, .lo = store->lo, .exponents = store->exponents};
        split_make(scheme, i >= ROWS, i < ROWS ? inputs[i] : weights[i - ROWS], depth, &store->row);
    }
}

static errors run_scheme(const split_scheme *scheme, int64_t depth)
{
    split_rows(scheme, depth);
    double share = 0;
    int flags = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            const split_row *x_row = &input_rows[i].row, *w_row = &weight_rows[j].row;
            flags |= x_row->flags | w_row->flags;
            float y = split_product(scheme, inputs[i], x_row, weights[j], w_row, depth);
            if (!CHECK(isfinite(y), "element %d, %d is %g", i, j, (double)y))
                y = 0;
            double error = fabs(error_of(inputs[i], weights[j], depth, y));
            exact_errors[i][j] = error;
            if ((x_row->flags | w_row->flags) & SPLIT_RANGE)
                continue; /* a chain of fma */
            double bound = bound_of(scheme, inputs[i], x_row, weights[j], w_row, depth, (double)y);
            CHECK(error <= bound, "element %d, %d: %a is off by %g, bound %g", i, j, (double)y, error, bound);
            share = fmax(share, error / bound);
        }
    errors e = summary();
    e.share = share;
    e.small = (flags & SPLIT_SMALL) != 0;
    e.range = (flags & SPLIT_RANGE) != 0;
    return e;
}

static void test_families(void)
{
    test_random random = test_random_stream(1);
    static const int64_t depths[] = {1024, 8192};
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
        int64_t depth = depths[d];
        if (test_quick() && depth > 1024)
            break;
        printf("depth %" PRId64 ": Frobenius error, log2 E, share of the bound\n", depth);
        for (int f = 0; f < FAMILIES; f++) {
            fill(&random, (family)f, depth);
            prepare(depth);
            errors chain = run_chain(depth);
            printf("%-20s fma chain %.2e %5.1f\n", name_of((family)f), chain.frobenius, log2(chain.elementwise));
            for (int v = 0; v < VARIANTS; v++) {
                test_context("%s, %s, depth %" PRId64, schemes[v].name, name_of((family)f), depth);
                errors e = run_scheme(&schemes[v], depth);
                printf("    %-36s %.2e %5.1f  %.3f%s%s\n", schemes[v].name, e.frobenius, log2(e.elementwise), e.share,
                       e.small ? " small" : "", e.range ? " range" : "");
            }
        }
    }
}

int main(void)
{
    test_begin("test_split_product");
    test_families();
    (void)short_bound;
    (void)bits_of;
    return test_end();
}
