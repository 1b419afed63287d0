/*
 * The fp32 product on tensor cores (split_product.h) without a GPU, against exact sums: every variant on every family
 * of inputs stays within the bound of docs/numerics.md, element by element, and within what is expected of the family;
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

enum { DEEPEST = 8192, ROWS = 8, COLUMNS = ROWS };

enum { FIRST, RESCALED, APART, CHUNKED, CHUNKED_RESCALED, AMPERE_FIRST, AMPERE_APART, VARIANTS };
enum { LISTED = AMPERE_FIRST }; /* those before it are tried at the full depth, too */

static const split_scheme schemes[VARIANTS] = {
    [FIRST] = {.name = "corrections first", .core = &tensor_core_hopper, .promote = 64},
    [RESCALED] = {.name = "corrections first, lo scaled", .core = &tensor_core_hopper, .lo_scaled = 1, .promote = 64},
    [APART] = {.name = "corrections apart, lo scaled",
               .core = &tensor_core_hopper,
               .lo_scaled = 1,
               .corrections = SPLIT_APART,
               .promote = 64},
    [CHUNKED] =
        {.name = "weight by chunks", .core = &tensor_core_hopper, .promote = 64, .chunk_scaled = 1, .weight_first = 1},
    [CHUNKED_RESCALED] = {.name = "weight by chunks, lo scaled",
                          .core = &tensor_core_hopper,
                          .lo_scaled = 1,
                          .promote = 64,
                          .chunk_scaled = 1,
                          .weight_first = 1},
    [AMPERE_FIRST] = {.name = "A100, corrections first", .core = &tensor_core_ampere, .promote = 64},
    [AMPERE_APART] = {.name = "A100, corrections apart, lo scaled",
                      .core = &tensor_core_ampere,
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
    ALTERNATING,
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
    "uniform",           "gaussian",      "lognormal(3)",    "alternating",       "cancelling", "subnormal rows",
    "subnormal results", "largest float", "largest weights", "fp16 numbers only", "odd split"};

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
            case ALTERNATING: /* huge terms of alternating sign, whose sum is small beside them */
                x = (weight ? 1 : k % 2 ? -0x1p30 : 0x1p30) * (1 + 0.125 * x);
                break;
            case CANCELLING: /* neighbours cancel to a few units in the last place */
                if (k % 2 == 1)
                    x = weight ? -(double)to[k - 1] * (1 + ldexp((double)test_random_below(random, 9) - 4, -23))
                               : (double)to[k - 1];
                break;
            case SUBNORMAL:
                x = weight ? ldexp(x, 60) : ldexp(x, -130);
                break;
            case SUBNORMAL_RESULT:
                x = ldexp(x, weight ? -80 : -58);
                break;
            case LARGEST:
                x = weight ? ldexp(x, -90) : (x < 0 ? -1 : 1) * (double)FLT_MAX * test_random_between(random, 0.25, 1);
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

/* One element of a row as the tensor core sees it, in the units of the row itself. */
typedef struct part {
    double size, hi, lo;
    double hi_aligned, lo_aligned; /* a subnormal half has the exponent of 2^-14 */
    double lost;                   /* at most this is neither in hi nor in lo */
} part;

typedef struct split_store {
    uint16_t hi[DEEPEST], lo[DEEPEST];
    int exponents[DEEPEST / SPLIT_CHUNK];
    split_row row;
    part parts[DEEPEST];
    double largest, sum; /* of the magnitudes */
    int narrow;          /* what lo cannot hold is no more than 2^-23 of any element */
} split_store;

static split_store input_rows[ROWS], weight_rows[COLUMNS];

static void take_apart(const split_scheme *scheme, int weight, const float *x, int64_t depth, split_store *store)
{
    store->narrow = 1;
    store->largest = store->sum = 0;
    for (int64_t k = 0; k < depth; k++) {
        int exponent = store->exponents[weight && scheme->chunk_scaled ? k / SPLIT_CHUNK : 0];
        double unit = ldexp(1, -exponent), lo_unit = scheme->lo_scaled ? 0x1p-11 * unit : unit;
        part p = {.size = fabs((double)x[k]),
                  .hi = fabs((double)onep_f16_to_f32(store->hi[k])) * unit,
                  .lo = fabs((double)onep_f16_to_f32(store->lo[k])) * lo_unit};
        p.hi_aligned = p.hi != 0 ? fmax(p.hi, 0x1p-14 * unit) : 0;
        p.lo_aligned = p.lo != 0 ? fmax(p.lo, 0x1p-14 * lo_unit) : 0;
        p.lost = p.size != 0 ? fmax(0x1p-23 * p.size, 0x1p-25 * lo_unit) : 0;
        if (p.size != 0 && 0x1p-23 * p.size < 0x1p-25 * lo_unit)
            store->narrow = 0;
        store->largest = fmax(store->largest, p.size);
        store->sum += p.size;
        store->parts[k] = p;
    }
}

/* Bound of |y - exact|, from sums over k. */
static double bound_of(const split_scheme *scheme, const split_store *x, const split_store *w, int64_t depth, double y)
{
    double split = 0, size = 0, main_size = 0, correction_size = 0;
    for (int64_t k = 0; k < depth; k++) {
        part a = x->parts[k], b = w->parts[k];
        split += a.lo * b.lo + a.lost * b.size + a.size * b.lost + a.lost * b.lost;
        size += a.hi * b.hi + a.hi * b.lo + a.lo * b.hi;
        main_size += a.hi_aligned * b.hi_aligned;
        correction_size += a.hi_aligned * b.lo_aligned + a.lo_aligned * b.hi_aligned;
    }
    /* A step of the tensor core loses at most `step` of the magnitudes it adds. */
    double width = scheme->core->width, step = 0x1p-23 * (ldexp(width, -scheme->core->extra_bits) + 1);
    double run = fmin(scheme->promote ? scheme->promote : (double)depth, ceil((double)depth / 64) * 64);
    double promotions = ceil((double)depth / run), sum;
    if (scheme->corrections == SPLIT_APART) {
        sum = step * (run / width * main_size + ceil((double)depth / 16) * 2 * (16 / width) * correction_size);
        promotions++; /* the last one adds the corrections */
    } else {
        sum = step * (run / width * (main_size + correction_size) + 2 * run / width * correction_size);
    }
    sum += 0x1p-24 * (promotions - 1) * size;
    if (scheme->chunk_scaled)
        sum += ldexp(promotions, -91 - split_base(&w->row) - x->exponents[0]); /* chunks that are too small for a sum */
    return (split + sum) * (1 + 0x1p-12) + 0x1p-24 * fabs(y) + 0x1p-150;
}

/* The same in two lines: `short_bound` of the sum of |x| |w|, and `wide_bound` of max |x| sum |w| + max |w| sum |x|. */
static double short_bound(const split_scheme *scheme, int64_t depth)
{
    if (scheme->promote != 64)
        return INFINITY;
    double chunks = ceil((double)depth / 64), steps = 64.0 / scheme->core->width;
    double units = 4 + 5 * steps + (chunks - 1) / 2 + 0.5;
    if (scheme->corrections == SPLIT_APART)
        units += 0.5 + chunks * 10 * steps * 0x1p-10;
    return 0x1p-23 * units * (1 + 0x1p-7);
}

static double wide_bound(const split_scheme *scheme)
{
    return scheme->lo_scaled ? 0x1p-45 : 0x1p-38;
}

/* ---- families against exact sums --------------------------------------------------------------------------------- */

typedef struct errors {
    double frobenius, elementwise; /* norm of e relative to that of y, and E: the largest |e| / sum of |x| |w| */
    double typical;                /* root of the mean square of what E is the largest of */
    double share;                  /* largest error relative to its bound */
    int flags;                     /* of all rows */
} errors;

static exact_sum sums[ROWS][COLUMNS];
static double sizes[ROWS][COLUMNS], got_errors[ROWS][COLUMNS];
static float outputs[ROWS][COLUMNS];

static void prepare(int64_t depth)
{
    memset(sums, 0, sizeof sums);
    memset(sizes, 0, sizeof sizes);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            for (int64_t k = 0; k < depth; k++) {
                exact_add(&sums[i][j], inputs[i][k], weights[j][k]);
                sizes[i][j] += fabs((double)inputs[i][k]) * fabs((double)weights[j][k]);
            }
}

static double error_of(int i, int j, float y)
{
    exact_sum sum = sums[i][j];
    exact_add(&sum, y, -1);
    return fabs(exact_value(&sum));
}

/* Of what is in got_errors. */
static errors summary(void)
{
    errors e = {0};
    double above = 0, below = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            double y = exact_value(&sums[i][j]);
            above += got_errors[i][j] * got_errors[i][j];
            below += y * y;
            if (sizes[i][j] > 0) {
                double share = got_errors[i][j] / sizes[i][j];
                e.elementwise = fmax(e.elementwise, share);
                e.typical += share * share / (ROWS * COLUMNS);
            }
        }
    e.frobenius = above > 0 ? sqrt(above / below) : 0;
    e.typical = sqrt(e.typical);
    return e;
}

static float chain(const float *x, const float *w, int64_t depth)
{
    float y = 0;
    for (int64_t k = 0; k < depth; k++)
        y = fmaf(x[k], w[k], y);
    return y;
}

static errors run_chain(int64_t depth)
{
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            got_errors[i][j] = error_of(i, j, chain(inputs[i], weights[j], depth));
    return summary();
}

static void multiply(const split_scheme *scheme, int64_t depth)
{
    for (int i = 0; i < ROWS + COLUMNS; i++) {
        split_store *store = i < ROWS ? &input_rows[i] : &weight_rows[i - ROWS];
        memset(store, 0xff, sizeof *store); /* NaN in both planes */
        store->row = (split_row){.hi = store->hi, .lo = store->lo, .exponents = store->exponents};
        split_make(scheme, i >= ROWS, i < ROWS ? inputs[i] : weights[i - ROWS], depth, &store->row);
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            outputs[i][j] =
                split_product(scheme, inputs[i], &input_rows[i].row, weights[j], &weight_rows[j].row, depth);
}

/* Every element against its bound. */
static errors run_scheme(const split_scheme *scheme, int64_t depth)
{
    multiply(scheme, depth);
    for (int i = 0; i < ROWS; i++)
        take_apart(scheme, 0, inputs[i], depth, &input_rows[i]);
    for (int j = 0; j < COLUMNS; j++)
        take_apart(scheme, 1, weights[j], depth, &weight_rows[j]);
    double share = 0;
    int flags = 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            const split_store *x = &input_rows[i], *w = &weight_rows[j];
            float y = outputs[i][j];
            flags |= x->row.flags | w->row.flags;
            got_errors[i][j] = INFINITY;
            if (!CHECK(isfinite(y), "element %d, %d is %g", i, j, (double)y))
                continue;
            double error = got_errors[i][j] = error_of(i, j, y);
            if (w->row.flags & SPLIT_RANGE) {
                CHECK(bits_of(y) == bits_of(chain(inputs[i], weights[j], depth)), "not the chain of fma");
                continue;
            }
            double bound = bound_of(scheme, x, w, depth, (double)y);
            CHECK(error <= bound, "element %d, %d: %a is off by %g, bound %g", i, j, (double)y, error, bound);
            share = fmax(share, error > 0 ? error / bound : 0);
            bound = short_bound(scheme, depth) * sizes[i][j] + 0x1p-150;
            if (!x->narrow || !w->narrow)
                bound += wide_bound(scheme) * (x->largest * w->sum + w->largest * x->sum);
            CHECK(error <= bound, "element %d, %d: off by %g, bound in short %g", i, j, error, bound);
        }
    errors e = summary();
    e.share = share;
    e.flags = flags;
    return e;
}

/* lo unscaled is off from where elements of ordinary size meet fp16's subnormals; the errors to expect, relative. */
static double expected_outlier(const split_scheme *scheme, family f)
{
    if (f < LADDER || f >= LADDER_END)
        return f == WEIGHT_LADDER && !scheme->lo_scaled && !scheme->chunk_scaled ? 1.1e-6 : 0;
    switch (outliers[f - LADDER]) {
    case 20:
        return scheme->lo_scaled ? 0 : 1.1e-6;
    case 24:
        return scheme->lo_scaled ? 0 : 1.7e-5;
    case 28:
        return scheme->lo_scaled ? 0 : 2.8e-4;
    case 31:
        return scheme->lo_scaled ? 1.2e-6 : 2.2e-3;
    default:
        return 0;
    }
}

static void check_family(const split_scheme *scheme, family f, int64_t depth, errors e, errors plain)
{
    double outlier = expected_outlier(scheme, f);
    if (e.flags & SPLIT_RANGE)
        return; /* the chain itself */
    if (outlier > 0) {
        CHECK(e.frobenius > outlier / 3 && e.frobenius < outlier * 3, "error %g, expected about %g", e.frobenius,
              outlier);
        CHECK(e.flags & SPLIT_SMALL, "small elements are not flagged");
        return;
    }
    /* An error under 3e-8 would mean that something was compared with itself. Lognormal norms are those of an element
     * or two, so there E has to tell. */
    double telling = f == LOGNORMAL ? e.elementwise : e.frobenius;
    CHECK(telling > 3e-8, "error %g, E %g: too good", e.frobenius, e.elementwise);
    CHECK(e.elementwise < 0x1p-19, "E is 2^%.1f", log2(e.elementwise));
    if ((f == UNIFORM || f == GAUSSIAN) && depth >= 4096) {
        CHECK(e.elementwise < 0x1p-24, "E is 2^%.1f", log2(e.elementwise));
        CHECK(e.frobenius < 5e-7, "error %g", e.frobenius);
    }
    /* Where neighbours cancel, the sums of a chain stay small, and what the split loses of huge terms weighs more. */
    if (f == CANCELLING || (f == ALTERNATING && depth < 4096)) {
        CHECK(e.typical < 6 * plain.typical, "%g, a chain of fma %g", e.typical, plain.typical);
        CHECK(e.elementwise < 0x1p-24, "E is 2^%.1f", log2(e.elementwise));
        return;
    }
    CHECK(e.typical < plain.typical, "|e| / sum of |x| |w| is %g, that of a chain of fma %g", e.typical, plain.typical);
    if (f != LOGNORMAL && depth >= 4096) /* elsewhere the norm is a matter of a few elements */
        CHECK(e.frobenius < plain.frobenius, "error %g, that of a chain of fma %g", e.frobenius, plain.frobenius);
}

static void test_families(void)
{
    static const int64_t depths[] = {1024, 8192};
    test_random random = test_random_stream(1);
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
        int64_t depth = depths[d];
        if (test_quick() && depth > 1024)
            break;
        printf("depth %" PRId64 ": Frobenius error, log2 of E and of its root mean square, share of the bound\n",
               depth);
        for (int f = 0; f < FAMILIES; f++) {
            fill(&random, (family)f, depth);
            prepare(depth);
            errors plain = run_chain(depth);
            printf("  %-37s %.2e %5.1f %5.1f\n", name_of((family)f), plain.frobenius, log2(plain.elementwise),
                   log2(plain.typical));
            for (int v = 0; v < (depth > 1024 ? LISTED : VARIANTS); v++) {
                test_context("%s, %s, depth %" PRId64, schemes[v].name, name_of((family)f), depth);
                errors e = run_scheme(&schemes[v], depth);
                check_family(&schemes[v], (family)f, depth, e, plain);
                printf("    %-35s %.2e %5.1f %5.1f  %.3f\n", schemes[v].name, e.frobenius, log2(e.elementwise),
                       log2(e.typical), e.share);
            }
        }
    }
}

/* One large term and others of which the tensor core keeps nothing: more than half of the bound is reached. */
static void test_worst(void)
{
    for (int v = 0; v < VARIANTS; v++) {
        for (int i = 0; i < ROWS; i++)
            for (int k = 0; k < SPLIT_CHUNK; k++) {
                inputs[i][k] = k == 0 ? 1 : 0x1.ffcp-13f;
                weights[i][k] = k == 0 ? 1 : ldexpf(1, -11 - schemes[v].core->extra_bits);
            }
        prepare(SPLIT_CHUNK);
        test_context("%s, terms that vanish", schemes[v].name);
        errors e = run_scheme(&schemes[v], SPLIT_CHUNK);
        double bound = short_bound(&schemes[v], SPLIT_CHUNK);
        CHECK(e.elementwise > bound / 2, "E is %g, bound %g", e.elementwise, bound);
    }
}

/* ---- depths ------------------------------------------------------------------------------------------------------ */

/* Around steps and chunks; and what is beyond the end does not matter: zeros there give the same bits. */
static void test_depths(void)
{
    static const int64_t depths[] = {1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 1000};
    static const family families[] = {UNIFORM, GAUSSIAN, LOGNORMAL, ODD, SUBNORMAL_RESULT};
    test_random random = test_random_stream(2);
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
        for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
            int64_t depth = depths[d], padded = (depth + SPLIT_CHUNK - 1) / SPLIT_CHUNK * SPLIT_CHUNK;
            fill(&random, families[f], depth);
            for (int i = 0; i < ROWS + COLUMNS; i++)
                for (int64_t k = depth; k < padded; k++)
                    *(i < ROWS ? &inputs[i][k] : &weights[i - ROWS][k]) = 0;
            prepare(depth);
            for (int v = 0; v < VARIANTS; v++) {
                test_context("%s, %s, depth %" PRId64, schemes[v].name, name_of(families[f]), depth);
                errors e = run_scheme(&schemes[v], depth);
                float before[ROWS][COLUMNS];
                memcpy(before, outputs, sizeof before);
                if (depth >= 63 && families[f] == ODD)
                    CHECK(e.frobenius > 3e-8, "error %g: too good", e.frobenius);
                multiply(&schemes[v], padded);
                CHECK(memcmp(before, outputs, sizeof before) == 0, "zeros after the end change bits");
            }
        }
}

/* ---- the split --------------------------------------------------------------------------------------------------- */

static void test_split(void)
{
    enum { COUNT = 100 };
    test_random random = test_random_stream(3);
    for (int scaled = 0; scaled < 2; scaled++)
        for (int run = 0; run < 400; run++) {
            /* Any exponent for the largest, and elements from there down to 2^-40 of it. */
            float x[COUNT];
            int top = (int)test_random_below(&random, 277) - 148, spread = run % 2 ? 40 : 12, exponent;
            double largest = 0;
            for (int k = 0; k < COUNT; k++) {
                double size =
                    ldexp(test_random_between(&random, 0.5, 1), top - (int)test_random_below(&random, spread));
                x[k] = k == 0        ? ldexpf(1, top - 1)
                       : k % 10 == 9 ? odd_number(&random) * ldexpf(1, top - 3)
                                     : (float)size;
                if (!isfinite(x[k]))
                    x[k] = -FLT_MAX;
                largest = fmax(largest, fabs((double)x[k]));
            }
            uint16_t hi[COUNT], lo[COUNT];
            int flags = split_run(x, COUNT, scaled, hi, lo, &exponent), small = 0;
            test_context("split, lo %s, largest %a", scaled ? "scaled" : "unscaled", largest);
            double scaled_largest = ldexp(largest, exponent);
            CHECK((scaled_largest >= 0x1p14 || exponent == 126) && scaled_largest < 0x1p15, "scaled to %a",
                  scaled_largest);
            for (int k = 0; k < COUNT; k++) {
                double wanted = ldexp((double)x[k], exponent), unit = scaled ? 0x1p-11 : 1;
                double h = (double)onep_f16_to_f32(hi[k]), l = (double)onep_f16_to_f32(lo[k]) * unit;
                CHECK(fabs(wanted - h) <= fmax(0x1p-11 * fabs(wanted), 0x1p-25), "%a: hi %a", wanted, h);
                CHECK(fabs(wanted - h - l) <= fmax(0x1p-23 * fabs(wanted), 0x1p-25 * unit), "%a: hi %a, lo %a", wanted,
                      h, l);
                small |= fabs((double)x[k]) < largest * (scaled ? 0x1p-29 : 0x1p-18) && x[k] != 0;
            }
            CHECK(flags == (small ? SPLIT_SMALL : 0), "flags %d", flags);
        }

    /* The unit a split may be off by: exactly one, where k is odd and over 2^11; none where k is even or small. */
    for (int run = 0; run < 1000; run++) {
        float x[2] = {4, odd_number(&random)}; /* a largest one, for a fixed exponent */
        float even = nextafterf(x[1], 0);
        uint16_t hi[2], lo[2];
        int exponent;
        for (int i = 0; i < 2; i++) {
            x[1] = i ? even : x[1];
            split_run(x, 2, 1, hi, lo, &exponent);
            double wanted = ldexp((double)x[1], exponent);
            double lost = wanted - (double)onep_f16_to_f32(hi[1]) - 0x1p-11 * (double)onep_f16_to_f32(lo[1]);
            CHECK(fabs(lost) == (i ? 0 : ldexp(1, ilogb(wanted) - 23)), "%a loses %a", wanted, lost);
        }
    }

    /* Rows that are not like others. */
    static const struct {
        const char *what;
        float x[3];
        int exponent, flags;
        uint16_t hi[3];
    } rows[] = {
        {"zeros", {0, 0, 0}, 126, 0, {0, 0, 0}},
        {"negative zeros", {-0.0f, 0, -0.0f}, 126, 0, {0x8000, 0, 0x8000}},
        {"smallest float", {0x1p-149f, 0, -0x1p-149f}, 126, 0, {0x0002, 0, 0x8002}},
        {"largest float", {FLT_MAX, 0, -0x1p127f}, -113, 0, {0x7800, 0, 0xf400}},
        {"infinity", {1, INFINITY, -INFINITY}, 14, SPLIT_SPECIAL, {0x7400, 0x7c00, 0xfc00}},
        {"infinity alone", {0, INFINITY, 0}, 126, SPLIT_SPECIAL, {0, 0x7c00, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint16_t hi[3], lo[3];
        int exponent;
        test_context("split of %s", rows[i].what);
        int flags = split_run(rows[i].x, 3, 1, hi, lo, &exponent);
        CHECK(flags == rows[i].flags && exponent == rows[i].exponent, "flags %d, exponent %d", flags, exponent);
        for (int k = 0; k < 3; k++)
            CHECK(hi[k] == rows[i].hi[k] && (k == 0 || (lo[k] & 0x7fff) == 0), "hi 0x%04x, lo 0x%04x", hi[k], lo[k]);
    }
    float nan_row[2] = {NAN, 2};
    uint16_t hi[2], lo[2];
    int exponent;
    CHECK(split_run(nan_row, 2, 0, hi, lo, &exponent) == SPLIT_SPECIAL && isnan(onep_f16_to_f32(hi[0])) && lo[0] == 0 &&
              exponent == 13,
          "NaN: hi 0x%04x, lo 0x%04x, exponent %d", hi[0], lo[0], exponent);
}

/* One rounding, whatever the exponent. */
static void test_rescale(void)
{
    test_random random = test_random_stream(4);
    for (int run = 0; run < 100000; run++) {
        float x = (float)ldexp(test_random_between(&random, -1, 1), (int)test_random_below(&random, 140) - 90);
        int exponent = (int)test_random_below(&random, 552) - 330;
        float got = split_rescale(x, exponent), expected = (float)ldexp((double)x, exponent);
        CHECK(bits_of(got) == bits_of(expected), "%a 2^%d: got %a, expected %a", (double)x, exponent, (double)got,
              (double)expected);
    }
}

/* ---- zeros, infinities, NaN -------------------------------------------------------------------------------------- */

static void test_special(void)
{
    enum { DEPTH = 130 };
    test_random random = test_random_stream(5);
    for (int v = 0; v < VARIANTS; v++) {
        fill(&random, GAUSSIAN, DEPTH);
        multiply(&schemes[v], DEPTH);
        float before[ROWS][COLUMNS];
        memcpy(before, outputs, sizeof before);
        for (int k = 0; k < DEPTH; k++) {
            inputs[1][k] = k % 2 ? 0 : -0.0f;
            inputs[2][k] = k == 70 ? INFINITY : inputs[2][k];
            inputs[3][k] = k == 129 ? NAN : inputs[3][k];
            weights[4][k] = k == 70 ? 0.5f : weights[4][k]; /* lo = 0: the parts alone would give inf 0 = NaN */
            weights[5][k] = k == 70 ? 0 : weights[5][k];
            weights[6][k] = k == 3 ? -INFINITY : weights[6][k];
        }
        multiply(&schemes[v], DEPTH);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++) {
                float got = outputs[i][j], plain = chain(inputs[i], weights[j], DEPTH);
                test_context("%s, special values, element %d, %d", schemes[v].name, i, j);
                if (i == 2 || i == 3 || j == 6)
                    CHECK(isnan(plain) ? isnan(got) : isinf(plain) && got == plain, "got %g, a chain of fma %g",
                          (double)got, (double)plain);
                else if (i == 1)
                    CHECK(got == 0, "zeros give %g", (double)got);
                else if (j != 4 && j != 5)
                    CHECK(bits_of(got) == bits_of(before[i][j]), "another row's special value changed it: %g, %g",
                          (double)got, (double)before[i][j]);
            }
    }
}

/* ---- the bits depend on every detail ----------------------------------------------------------------------------- */

/* Some elements of some gaussian inputs have other bits by another scheme. */
static void check_differs(int like, const split_scheme *other)
{
    enum { DEPTH = 512, RUNS = 4, COUNT = RUNS * ROWS * COLUMNS };
    test_random random = test_random_stream(6);
    int different = 0;
    for (int run = 0; run < RUNS; run++) {
        float usual[ROWS][COLUMNS];
        fill(&random, GAUSSIAN, DEPTH);
        multiply(&schemes[like], DEPTH);
        memcpy(usual, outputs, sizeof usual);
        multiply(other, DEPTH);
        for (int e = 0; e < ROWS * COLUMNS; e++)
            different += usual[e / COLUMNS][e % COLUMNS] != outputs[e / COLUMNS][e % COLUMNS];
    }
    test_context("%s instead of %s", other->name, schemes[like].name);
    CHECK(different > 0, "no element of %d has other bits", (int)COUNT);
    printf("%s instead of %s: %d of %d elements have other bits\n", other->name, schemes[like].name, different,
           (int)COUNT);
}

/* A kernel is held to these bits, so inputs must be able to tell one way of computing from another. */
static void test_details(void)
{
    static const struct {
        const char *name;
        tensor_core core;
    } cores[] = {
        {"3 extra bits", {.width = 16, .extra_bits = 3, .lowest = -133}},
        {"8 wide", {.width = 8, .extra_bits = 2, .lowest = -133}},
        {"rounded terms", {.width = 16, .extra_bits = 2, .lowest = -133, .slip = TENSOR_CORE_ROUNDED_TERMS}},
        {"rounded sums", {.width = 16, .extra_bits = 2, .lowest = -133, .slip = TENSOR_CORE_ROUNDED_SUM}},
        {"normalised products", {.width = 16, .extra_bits = 2, .lowest = -133, .slip = TENSOR_CORE_NORMAL_PRODUCT}},
    };
    for (size_t i = 0; i < sizeof cores / sizeof cores[0]; i++) {
        split_scheme other = schemes[FIRST];
        other.name = cores[i].name;
        other.core = &cores[i].core;
        check_differs(FIRST, &other);
    }
    split_scheme apart = schemes[FIRST], seldom = schemes[APART], never = schemes[APART];
    apart.name = "corrections apart";
    apart.corrections = SPLIT_APART;
    check_differs(FIRST, &apart);
    seldom.name = "promoted every 128";
    seldom.promote = 128;
    check_differs(APART, &seldom);
    never.name = "never promoted";
    never.promote = 0;
    check_differs(APART, &never);

    /* Promotion is what makes it accurate. */
    test_random random = test_random_stream(7);
    fill(&random, GAUSSIAN, 2048);
    prepare(2048);
    test_context("never promoted");
    double without = run_scheme(&never, 2048).frobenius, with = run_scheme(&schemes[APART], 2048).frobenius;
    CHECK(without > 4 * with, "error %g, promoted every 64 %g", without, with);
}

int main(void)
{
    test_begin("test_split_product");
    test_split();
    test_rescale();
    test_special();
    test_details();
    test_worst();
    test_depths();
    test_families();
    return test_end();
}
