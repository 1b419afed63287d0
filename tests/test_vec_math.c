/*
 * exp, log and their relatives over the vector contract keep the bounds that src/cpu/vec_math.inc states, at every
 * level that runs here: on a dense sample of all float patterns (all 2^32 with ONEPASS_TEST_EXHAUSTIVE=1) and a random
 * one in double, with every pattern near the cut-offs. Half types are converted as the plain C of src/core/types.c does
 * it, all patterns and all ties. The logarithm is for positive normal numbers only: the kernels' guard must send every
 * other one elsewhere.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/detect.h"
#include "kl_cases.h"
#include "vec_math_probe.inc"

/* The bounds of vec_math.inc. */
#define EXP_ULPS_F32 1.05
#define EXP_ULPS_F64 1.05
#define LOG_ULPS     0.85
#define NEAR_F32     0x1p-25
#define NEAR_F64     0x1p-54
enum { BLOCK = 4096 };
_Static_assert(BLOCK % PROBE_BLOCK == 0, "blocks are made of whole vectors");

static const vec_math_probe *const probes[] = {
    &vec_math_probe_scalar,
#ifdef ONEPASS_HAVE_AVX2
    &vec_math_probe_avx2,
#endif
#ifdef ONEPASS_HAVE_AVX512
    &vec_math_probe_avx512,
#endif
#ifdef ONEPASS_HAVE_NEON
    &vec_math_probe_neon,
#endif
};
enum { PROBES = sizeof probes / sizeof probes[0] };

static int probe_runs(int i)
{
    return onep_cpu_has(probes[i]->level);
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* The largest error seen, where, and how many results were not even of the right kind. */
typedef struct record {
    long double worst;
    double at;
    long long tried, wrong;
    double wrong_at;
} record;

/* The spacing of a type at y, |y| below 2^beyond. */
static long double spacing(long double y, int digits, int lowest)
{
    int exponent;
    frexpl(y, &exponent);
    exponent -= digits;
    return ldexpl(1, exponent < lowest ? lowest : exponent);
}

/* Error of `got` in units of the last place of the exact result y. An infinite result stands for the power after the
 * largest number; a y beyond that must give infinity. */
static void note(record *r, double at, double got, long double y, int digits, int lowest, int beyond)
{
    long double limit = ldexpl(1, beyond);
    r->tried++;
    if (isnan(y) || isnan(got) || fabsl(y) >= limit || y == 0) {
        int right = isnan(y) ? isnan(got) : y == 0 ? got == 0 : isinf(got) && (got > 0) == (y > 0);
        if (!right) {
            r->wrong++;
            r->wrong_at = at;
        }
        return;
    }
    long double stands_for = isinf(got) ? copysignl(limit, got) : (long double)got;
    long double error = fabsl(stands_for - y) / spacing(y, digits, lowest);
    if (error > r->worst) {
        r->worst = error;
        r->at = at;
    }
}

static void note_f32(record *r, double at, float got, long double y)
{
    note(r, at, (double)got, y, FLT_MANT_DIG, -149, 128);
}

static void note_f64(record *r, double at, double got, long double y)
{
    note(r, at, got, y, DBL_MANT_DIG, -1074, 1024);
}

/* True values in float are taken from double functions, whose own error is below 1e-8 of a float's last place. */
static void check_record(const char *what, onep_level level, const record *r, double bound)
{
    printf("test_vec_math: %-7s %-22s %.4Lf ulp at %.9g, %lld arguments\n", onep_level_name(level), what, r->worst,
           r->at, r->tried);
    test_context("level %s, %s", onep_level_name(level), what);
    CHECK(r->tried > 0, "nothing was tried");
    CHECK(r->wrong == 0, "%lld results of the wrong kind, one at %.17g", r->wrong, r->wrong_at);
    CHECK(r->worst <= bound, "%.4Lf ulp at %.17g (%a), allowed %g", r->worst, r->at, r->at, bound);
}

/* ---- float ------------------------------------------------------------------------------------------------------- */

static record exp_records[PROBES], log_records[PROBES];

/* exp of every pattern in the block, log of those that are positive and normal. */
static void try_floats(const float *x)
{
    static float t[BLOCK], zero[BLOCK], got[BLOCK];
    static double exp_true[BLOCK], log_true[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        t[i] = x[i] >= FLT_MIN && x[i] <= FLT_MAX ? x[i] : 1;
        exp_true[i] = exp((double)x[i]);
        log_true[i] = log((double)t[i]);
    }
    for (int k = 0; k < PROBES; k++) {
        if (!probe_runs(k))
            continue;
        probes[k]->exp_f32(got, x, BLOCK);
        for (int i = 0; i < BLOCK; i++)
            note_f32(&exp_records[k], (double)x[i], got[i], (long double)exp_true[i]);
        probes[k]->log_minus_f32(got, t, zero, BLOCK);
        for (int i = 0; i < BLOCK; i++)
            note_f32(&log_records[k], (double)t[i], got[i], (long double)log_true[i]);
    }
}

static void test_floats(void)
{
    const char *text = getenv("ONEPASS_TEST_EXHAUSTIVE");
    int exhaustive = text && *text && strcmp(text, "0") != 0;
    /* Prime steps, so that no bit of the pattern stays as it is. */
    uint64_t step = exhaustive ? 1 : test_quick() ? 9973 : 251;
    test_random random = test_random_stream(1);
    uint64_t pattern = exhaustive ? 0 : (uint64_t)test_random_below(&random, (int64_t)step);
    static float x[BLOCK];
    while (pattern < (UINT64_C(1) << 32)) {
        for (int i = 0; i < BLOCK; i++, pattern += step)
            x[i] = float_of((uint32_t)pattern);
        try_floats(x);
    }
    /* Every pattern near a cut-off: where exp overflows, turns subnormal and vanishes, where its argument is reduced by
     * another multiple of log 2, around 1 and 0, and where the logarithm's mantissa is halved. */
    static const float edges[] = {
        88.7228394f, 88.0f,          -87.3365479f,    -103.278931f, -103.972084f, 104.5f,    -104.5f,
        0.34657359f, -0.34657359f,   0.693147182f,    1.0f,         0.0f,         -0.0f,     0.666666687f,
        1.33333337f, 1.1754943e-38f, 3.40282347e+38f, INFINITY,     -INFINITY,    0x1p-125f, 0x1p126f};
    for (size_t k = 0; k < sizeof edges / sizeof edges[0]; k++) {
        uint32_t bits;
        memcpy(&bits, &edges[k], sizeof bits);
        for (int i = 0; i < BLOCK; i++)
            x[i] = float_of(bits + (uint32_t)(i - BLOCK / 2));
        try_floats(x);
    }
    for (int k = 0; k < PROBES; k++)
        if (probe_runs(k)) {
            check_record("exp, float", probes[k]->level, &exp_records[k], EXP_ULPS_F32);
            check_record("log, float", probes[k]->level, &log_records[k], LOG_ULPS);
        }
}

/* ---- double ------------------------------------------------------------------------------------------------------ */

static void try_doubles(const double *x, record *exp_record, record *log_record)
{
    static double t[BLOCK], zero[BLOCK], got[BLOCK];
    static long double exp_true[BLOCK], log_true[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        t[i] = x[i] >= DBL_MIN && x[i] <= DBL_MAX ? x[i] : 1;
        exp_true[i] = expl((long double)x[i]);
        log_true[i] = logl((long double)t[i]);
    }
    for (int k = 0; k < PROBES; k++) {
        if (!probe_runs(k))
            continue;
        probes[k]->exp_f64(got, x, BLOCK);
        for (int i = 0; i < BLOCK; i++)
            note_f64(&exp_record[k], x[i], got[i], exp_true[i]);
        probes[k]->log_minus_f64(got, t, zero, BLOCK);
        for (int i = 0; i < BLOCK; i++)
            note_f64(&log_record[k], t[i], got[i], log_true[i]);
    }
}

static void test_doubles(void)
{
    record exp_record[PROBES] = {{0}};
    record log_record[PROBES] = {{0}};
    static double x[BLOCK];
    test_random random = test_random_stream(2);
    for (int round = 0; round < (test_quick() ? 24 : 240); round++) {
        for (int i = 0; i < BLOCK; i++) {
            uint64_t bits = test_random_bits(&random);
            /* Any pattern; arguments exp has results for; numbers near 1; reduced mantissas of any exponent. */
            x[i] = round % 4 == 0   ? double_of(bits)
                   : round % 4 == 1 ? test_random_between(&random, -746, 711)
                   : round % 4 == 2 ? test_random_between(&random, 0.5, 1.5)
                                    : ldexp(test_random_between(&random, 0.6, 1.4), (int)(bits % 2046) - 1022);
        }
        try_doubles(x, exp_record, log_record);
    }
    static const double edges[] = {709.78271289338397,
                                   709.0,
                                   -708.39641853226408,
                                   -745.13321910194122,
                                   746.0,
                                   -746.0,
                                   0.34657359027997264,
                                   1.0,
                                   0.0,
                                   -0.0,
                                   0.66666666666666663,
                                   1.3333333333333333,
                                   DBL_MIN,
                                   DBL_MAX,
                                   INFINITY,
                                   -INFINITY,
                                   0x1p-1021,
                                   0x1p1022};
    for (size_t k = 0; k < sizeof edges / sizeof edges[0]; k++) {
        uint64_t bits;
        memcpy(&bits, &edges[k], sizeof bits);
        for (int i = 0; i < BLOCK; i++)
            x[i] = double_of(bits + (uint64_t)(int64_t)(i - BLOCK / 2));
        try_doubles(x, exp_record, log_record);
    }
    for (int k = 0; k < PROBES; k++)
        if (probe_runs(k)) {
            check_record("exp, double", probes[k]->level, &exp_record[k], EXP_ULPS_F64);
            check_record("log, double", probes[k]->level, &log_record[k], LOG_ULPS);
        }
}

/* ---- the relatives: functions of one argument ---------------------------------------------------------------------
 */

static long double exp_rest(long double x)
{
    if (fabsl(x) > 0.25L)
        return expm1l(x) - x;
    long double sum = 0;
    for (int k = 24; k >= 2; k--) /* sum of x^k / k! from k = 2, by Horner's rule */
        sum = (sum * x + 1) / k;
    return sum * x * x;
}

static long double log1p_rest(long double u)
{
    if (fabsl(u) > 0.25L)
        return u - log1pl(u);
    long double sum = 0;
    for (int k = 40; k >= 2; k--) /* sum of -(-u)^k / k from k = 2 */
        sum = sum * -u + 1.0L / k;
    return sum * u * u;
}

typedef struct relative {
    const char *name;
    long double (*exact)(long double x);
    double low, high; /* of the arguments it is for, in float; the double one's low end where that is another */
    double low_double, ulps;
} relative;

static const relative relatives[PROBE_FUNCTION_COUNT] = {
    [PROBE_exp_below] = {"exp below 0", expl, -110, 0, -760, 1.05},
    [PROBE_expm1] = {"exp - 1", expm1l, -110, 64, -760, 2.5},
    [PROBE_exp_rest] = {"exp(x) - 1 - x", exp_rest, -0.5, 0.5, -0.5, 3},
    [PROBE_log1p] = {"log(1 + x)", log1pl, -0.9999, 1, -0.9999, 2},
    [PROBE_log1p_rest] = {"x - log(1 + x)", log1p_rest, -1 / 3.0, 1 / 3.0, -1 / 3.0, 3.5},
    [PROBE_tanh] = {"tanh", tanhl, -30, 30, -30, 3.5},
};

/* Arguments of either sign and every size down to 2^-40 of the range, and its ends. */
static double relative_argument(test_random *random, const relative *f, double low, int i)
{
    if (i < 4)
        return i == 0 ? low : i == 1 ? f->high : i == 2 ? 0 : low / 2;
    double end = i % 2 ? low : f->high;
    double x = end * test_random_between(random, 0, 1);
    return i % 3 == 0 ? ldexp(x, -(int)test_random_below(random, 40)) : x;
}

static void try_relative(int which, int k, test_random *random, record *singles, record *doubles)
{
    const relative *f = &relatives[which];
    static float x[BLOCK], got[BLOCK];
    static double xd[BLOCK], gotd[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        x[i] = (float)relative_argument(random, f, f->low, i);
        x[i] = fabs((double)x[i]) > fabs((double)(x[i] < 0 ? f->low : f->high)) ? 0 : x[i]; /* rounding went beyond */
        xd[i] = relative_argument(random, f, f->low_double, i);
    }
    probes[k]->f32[which](got, x, BLOCK);
    probes[k]->f64[which](gotd, xd, BLOCK);
    for (int i = 0; i < BLOCK; i++) {
        note_f32(singles, (double)x[i], got[i], f->exact((long double)x[i]));
        note_f64(doubles, xd[i], gotd[i], f->exact((long double)xd[i]));
    }
}

static void test_relatives(void)
{
    for (int which = 0; which < PROBE_FUNCTION_COUNT; which++)
        for (int k = 0; k < PROBES; k++) {
            if (!probe_runs(k))
                continue;
            test_random random = test_random_stream(6);
            record singles = {0}, doubles = {0};
            for (int round = 0; round < (test_quick() ? 12 : 120); round++)
                try_relative(which, k, &random, &singles, &doubles);
            char what[64];
            snprintf(what, sizeof what, "%s, float", relatives[which].name);
            check_record(what, probes[k]->level, &singles, relatives[which].ulps);
            snprintf(what, sizeof what, "%s, double", relatives[which].name);
            check_record(what, probes[k]->level, &doubles, relatives[which].ulps);
        }
}

/* NaN stays NaN, and a mask of -inf is 0, where kernels rely on it. */
static void test_relatives_of_specials(void)
{
    static float x[PROBE_BLOCK], got[PROBE_BLOCK];
    static double xd[PROBE_BLOCK], gotd[PROBE_BLOCK];
    for (int i = 0; i < PROBE_BLOCK; i++) {
        x[i] = i % 2 ? -INFINITY : NAN;
        xd[i] = (double)x[i];
    }
    for (int k = 0; k < PROBES; k++) {
        if (!probe_runs(k))
            continue;
        for (int which = 0; which < PROBE_FUNCTION_COUNT; which++) {
            if (which != PROBE_exp_below && which != PROBE_expm1 && which != PROBE_tanh)
                continue;
            double at_infinity = which == PROBE_exp_below ? 0 : -1;
            probes[k]->f32[which](got, x, PROBE_BLOCK);
            probes[k]->f64[which](gotd, xd, PROBE_BLOCK);
            test_context("level %s, %s", onep_level_name(probes[k]->level), relatives[which].name);
            for (int i = 0; i < PROBE_BLOCK; i++) {
                CHECK(i % 2 ? (double)got[i] == at_infinity : isnan(got[i]), "float: %g becomes %g", (double)x[i],
                      (double)got[i]);
                CHECK(i % 2 ? gotd[i] == at_infinity : isnan(gotd[i]), "double: %g becomes %g", xd[i], gotd[i]);
            }
        }
    }
}

/* ---- log(t) - x near x = log t ----------------------------------------------------------------------------------- */

static void test_near(void)
{
    static float t[BLOCK], x[BLOCK], got[BLOCK];
    static double td[BLOCK], xd[BLOCK], gotd[BLOCK];
    test_random random = test_random_stream(3);
    for (int k = 0; k < PROBES; k++) {
        if (!probe_runs(k))
            continue;
        long double worst = 0;
        long double worst_double = 0;
        for (int round = 0; round < (test_quick() ? 16 : 160); round++) {
            for (int i = 0; i < BLOCK; i++) {
                t[i] = ldexpf((float)test_random_between(&random, 1, 2), (int)test_random_below(&random, 253) - 126);
                x[i] = (float)log((double)t[i]) + ldexpf((float)test_random_between(&random, -1, 1), -14);
                td[i] = ldexp(test_random_between(&random, 1, 2), (int)test_random_below(&random, 2045) - 1022);
                xd[i] = (double)logl((long double)td[i]) + ldexp(test_random_between(&random, -1, 1), -40);
            }
            probes[k]->log_minus_f32(got, t, x, BLOCK);
            probes[k]->log_minus_f64(gotd, td, xd, BLOCK);
            for (int i = 0; i < BLOCK; i++) {
                long double exact = logl((long double)t[i]) - (long double)x[i];
                long double exact_double = logl((long double)td[i]) - (long double)xd[i];
                /* logl itself is good to 2^-64 of its value, 2^-54 at the far end: a bound below that cannot be held */
                long double of_logl = fabsl(logl((long double)td[i])) * 0x1p-63L;
                worst = fmaxl(worst, fabsl((long double)got[i] - exact));
                worst_double = fmaxl(worst_double, fabsl((long double)gotd[i] - exact_double) - of_logl);
            }
        }
        test_context("level %s, log(t) - x near x = log t", onep_level_name(probes[k]->level));
        printf("test_vec_math: %-7s log(t) - x near log t  2^%.2Lf float, 2^%.2Lf double\n",
               onep_level_name(probes[k]->level), log2l(worst), log2l(worst_double));
        CHECK(worst <= NEAR_F32, "float: off by %.3Lg, allowed %.3g", worst, NEAR_F32);
        CHECK(worst_double <= NEAR_F64, "double: off by %.3Lg, allowed %.3g", worst_double, NEAR_F64);
    }
}

/* ---- half types -------------------------------------------------------------------------------------------------- */

static int same_float(float a, float b)
{
    return isnan(b) ? isnan(a) : memcmp(&a, &b, sizeof a) == 0;
}

/* Narrowing: the level's result must be that of the plain C, a NaN any NaN. */
static void try_narrowing(const vec_math_probe *probe, const float *x)
{
    static uint16_t half[BLOCK];
    long long wrong = 0;
    float at = 0;
    for (int which = 0; which < 2; which++) {
        (which ? probe->to_bf16 : probe->to_f16)(half, x, BLOCK);
        for (int i = 0; i < BLOCK; i++) {
            uint16_t expected = which ? onep_bf16_from_f64((double)x[i]) : onep_f16_from_f64((double)x[i]);
            float back = which ? onep_bf16_to_f32(half[i]) : onep_f16_to_f32(half[i]);
            if (isnan(x[i]) ? !isnan(back) : half[i] != expected) {
                wrong++;
                at = x[i];
            }
        }
        CHECK(wrong == 0, "%lld floats become another %s than in plain C, one is %a", wrong,
              which ? "bfloat16" : "float16", (double)at);
    }
}

static void test_halves(void)
{
    static uint16_t half[65536];
    static float wide[65536], x[BLOCK];
    for (int i = 0; i < 65536; i++)
        half[i] = (uint16_t)i;
    test_random random = test_random_stream(4);
    for (int k = 0; k < PROBES; k++) {
        if (!probe_runs(k))
            continue;
        test_context("level %s, half types", onep_level_name(probes[k]->level));
        probes[k]->from_f16(wide, half, 65536);
        for (unsigned i = 0; i < 65536; i++)
            CHECK(same_float(wide[i], onep_f16_to_f32(half[i])), "float16 %04x becomes %a", i, (double)wide[i]);
        probes[k]->from_bf16(wide, half, 65536);
        for (unsigned i = 0; i < 65536; i++)
            CHECK(same_float(wide[i], onep_bf16_to_f32(half[i])), "bfloat16 %04x becomes %a", i, (double)wide[i]);

        /* The middle between neighbours and the floats beside it: a tie of a half type in every upper pattern. */
        for (uint32_t bits = 0; bits < 0x10000u; bits += BLOCK / 4)
            for (unsigned tie = 0; tie < 4; tie++) { /* bfloat16; float16, normal and two depths of subnormal */
                static const uint32_t middles[] = {0x8000, 0x1000, 0x4000, 0x20000};
                for (unsigned i = 0; i < BLOCK; i++)
                    x[i] = float_of(((bits + i / 4) << 16) + middles[tie] * (tie == 1 ? 2 * (i / 4 % 8) + 1 : 1) +
                                    i % 4 - 1);
                try_narrowing(probes[k], x);
            }
        for (int round = 0; round < (test_quick() ? 20 : 200); round++) {
            for (int i = 0; i < BLOCK; i++)
                x[i] = round % 2 ? float_of((uint32_t)test_random_bits(&random))
                                 : (float)ldexp(test_random_between(&random, -1, 1),
                                                (int)test_random_below(&random, 48) - 30);
            try_narrowing(probes[k], x);
        }
    }
}

/* ---- the guard --------------------------------------------------------------------------------------------------- */

/*
 * Whatever a target or prediction holds, a kernel gives the defined value: what exp and log are not made for never
 * reaches them. One operand takes every kind of pattern, the other one is ordinary.
 */
static void test_unfit_numbers(void)
{
    const kl_precision precision = kl_precision_of(CASE_VECTOR, case_f32);
    static float swept[BLOCK], fixed[BLOCK], value[BLOCK];
    static const uint32_t edges[] = {0x00000000, 0x00400000, 0x00800000, 0x01000000, 0x01400000,
                                     0x3f800000, 0x42b00000, 0x42b17218, 0x42d00000, 0x7e800000,
                                     0x7ec00000, 0x7f000000, 0x7f800000, 0x7fc00000};
    test_random random = test_random_stream(5);
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!onep_level_runs((onep_level)level))
            continue;
        onepass_handle *handle = test_handle((onep_level)level, 1);
        for (int round = 0; round < (test_quick() ? 40 : 120); round++)
            for (int form = 0; form < ONEP_KL_FORMS; form++)
                for (int sweep_targets = 0; sweep_targets < 2; sweep_targets++) {
                    uint32_t edge = edges[(size_t)round / 2 % (sizeof edges / sizeof edges[0])] | (uint32_t)round % 2
                                                                                                      << 31;
                    int other_is_log = sweep_targets ? ONEP_KL_LOG_PREDICTIONS(form) : ONEP_KL_LOG_TARGETS(form);
                    for (int i = 0; i < BLOCK; i++) {
                        swept[i] = float_of(round < 28 ? edge + (uint32_t)(i - BLOCK / 2)
                                                       : (uint32_t)test_random_bits(&random));
                        fixed[i] = other_is_log ? -1.25f : 0.375f;
                    }
                    int64_t shape[] = {BLOCK};
                    onepass_tensor p = kl_tensor(ONEP_F32, sweep_targets ? fixed : swept, 1, shape);
                    onepass_tensor t = kl_tensor(ONEP_F32, sweep_targets ? swept : fixed, 1, shape);
                    onepass_tensor v = kl_tensor(ONEP_F32, value, 1, shape);
                    onepass_kl_options options = {.size = sizeof options, .reduction = ONEPASS_NONE};
                    onepass_status status = kl_entry_of((onep_kl_form)form)(handle, &p, &t, &options, &v, NULL, NULL);
                    test_context("level %s, %s, patterns near %08x in the %s", onep_level_name((onep_level)level),
                                 kl_form_name((onep_kl_form)form), (unsigned)edge,
                                 sweep_targets ? "targets" : "predictions");
                    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
                    for (int i = 0; i < BLOCK; i++) {
                        double prediction = (double)(sweep_targets ? fixed : swept)[i];
                        double target = (double)(sweep_targets ? swept : fixed)[i];
                        kl_form passed = {ONEP_KL_LOG_PREDICTIONS(form), ONEP_KL_LOG_TARGETS(form)};
                        kl_exact e = kl_exact_element(passed, ONEPASS_STRICT, &precision, prediction, target);
                        CHECK(test_close_in(ONEP_F32, (double)value[i], e.value, e.value_error),
                              "prediction %a, target %a: got %.9g, expected %.9Lg, allowed %.3Lg", prediction, target,
                              (double)value[i], e.value, e.value_error);
                    }
                }
        onepass_destroy(handle);
    }
}

int main(void)
{
    test_begin("test_vec_math");
    test_print_levels();
    test_floats();
    test_doubles();
    test_relatives();
    test_relatives_of_specials();
    test_near();
    test_halves();
    test_unfit_numbers();
    return test_end();
}
