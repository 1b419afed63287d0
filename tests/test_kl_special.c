/*
 * Every line of the special-value tables: zeros of both signs, infinities, NaN with payloads, negative, subnormal and
 * huge numbers, logarithms whose exponential underflows. The strict columns are what PyTorch 2.15 printed for
 * F.kl_div(log(p) or x, t or y, log_target) and its autograd in float32 and float64; the finite columns are the limits.
 * Each line is tried at every lane position of a vector among ordinary elements, which must stay as they are, in all
 * types that can hold its numbers, at all levels, contiguous and strided, for value and both gradients.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kl_cases.h"

#define INF   INFINITY
#define LN2   0.69314718055994530942
#define E1    0.36787944117144232160    /* exp(-1) */
#define E100  3.7200759760208359630e-44 /* exp(-100) */
#define E110  1.6889118802245324e-48    /* exp(-110) */
#define E80   5.5406223843935100526e+34 /* exp(80) */
#define EP100 2.6881171418161354484e43  /* exp(100) */
#define BIG   0x1.fffffep127            /* the largest float, and its logarithm */
#define LBIG  88.722839052068352

/* Value, derivative to the prediction as passed, derivative to the target as passed. */
typedef struct triple {
    double value, d_prediction, d_target;
} triple;

typedef enum precision { ANY, IN_F32, IN_F64 } precision;

typedef struct special {
    double prediction, target;
    triple strict, finite;
    precision computed; /* the type of the arithmetic this line is about */
    double slack;       /* smallest numbers of that type the result may be off by: it comes from a subnormal exp */
} special;

#define ZEROS                                                                                                          \
    {                                                                                                                  \
        0, 0, 0                                                                                                        \
    }
#define NANS                                                                                                           \
    {                                                                                                                  \
        NAN, NAN, NAN                                                                                                  \
    }
#define BOTH(value, d_prediction, d_target)                                                                            \
    {value, d_prediction, d_target},                                                                                   \
    {                                                                                                                  \
        value, d_prediction, d_target                                                                                  \
    }

/* clang-format off */
static const special probs_probs[] = {
    /* p              t              value, d/dp, d/dt */
    {0.25,            0.5,           BOTH(0.5 * LN2, -2, 1 + LN2), ANY, 0},
    {0.5,             0.25,          BOTH(-0.25 * LN2, -0.5, 1 - LN2), ANY, 0},
    {0.5,             0.5,           BOTH(0, -1, 1), ANY, 0},
    {2,               4,             BOTH(4 * LN2, -2, 1 + LN2), ANY, 0},
    {0x1.8p0,         0x1.8p1,       BOTH(3 * LN2, -2, 1 + LN2), ANY, 0},
    /* zeros */
    {0,               0.5,           BOTH(INF, -INF, INF), ANY, 0},
    {-0.0,            0.5,           BOTH(INF, INF, INF), ANY, 0},
    {0.5,             0,             {0, 0, NAN}, ZEROS, ANY, 0},
    {0.5,             -0.0,          {0, 0, NAN}, ZEROS, ANY, 0},
    {0,               0,             NANS, ZEROS, ANY, 0},
    {-0.0,            0,             NANS, ZEROS, ANY, 0},
    {0,               -0.0,          NANS, ZEROS, ANY, 0},
    {-0.0,            -0.0,          NANS, ZEROS, ANY, 0},
    {0x1p-140,        0,             {0, 0, NAN}, ZEROS, ANY, 0},
    {0x1p-20,         0,             {0, 0, NAN}, ZEROS, ANY, 0},
    {0x1p100,         0,             {0, 0, NAN}, ZEROS, ANY, 0},
    {BIG,             0,             {0, 0, NAN}, ZEROS, ANY, 0},
    /* negative */
    {-1,              0.5,           BOTH(NAN, 0.5, NAN), ANY, 0},
    {-1,              0,             BOTH(NAN, 0, NAN), ANY, 0},
    {-0x1p-140,       0,             BOTH(NAN, 0, NAN), ANY, 0},
    {0.5,             -0.5,          BOTH(NAN, 1, NAN), ANY, 0},
    {0,               -0.5,          BOTH(NAN, INF, NAN), ANY, 0},
    {-1,              -0.5,          BOTH(NAN, -0.5, NAN), ANY, 0},
    {0.5,             -0x1p-140,     BOTH(NAN, 0x1p-139, NAN), ANY, 0},
    /* infinite */
    {INF,             0.5,           BOTH(-INF, 0, -INF), ANY, 0},
    {INF,             0,             BOTH(NAN, 0, NAN), ANY, 0},
    {-INF,            0.5,           BOTH(NAN, 0, NAN), ANY, 0},
    {-INF,            0,             BOTH(NAN, 0, NAN), ANY, 0},
    {0.5,             INF,           BOTH(INF, -INF, NAN), ANY, 0},
    {1,               INF,           BOTH(NAN, -INF, NAN), ANY, 0},
    {2,               INF,           BOTH(NAN, -INF, NAN), ANY, 0},
    {0,               INF,           BOTH(INF, -INF, NAN), ANY, 0},
    {INF,             INF,           BOTH(NAN, NAN, NAN), ANY, 0},
    {-1,              INF,           BOTH(NAN, INF, NAN), ANY, 0},
    {0.5,             -INF,          BOTH(NAN, INF, NAN), ANY, 0},
    /* NaN */
    {NAN,             0.5,           BOTH(NAN, NAN, NAN), ANY, 0},
    {NAN,             0,             BOTH(NAN, NAN, NAN), ANY, 0},
    {0.5,             NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
    {0,               NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
    {NAN,             NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
    {INF,             NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
    /* tiny and huge: true values, nothing flushed */
    {0x1p-20,         0x1p-20,       BOTH(0, -1, 1), ANY, 0},
    {0x1p-24,         0x1p-23,       BOTH(0x1p-23 * LN2, -2, 1 + LN2), ANY, 0},
    {0x1p-140,        0x1p-140,      BOTH(0, -1, 1), ANY, 0},
    {0x1p-149,        0x1p-148,      BOTH(0x1p-148 * LN2, -2, 1 + LN2), ANY, 0},
    {0x1p-130,        0.5,           BOTH(0.5 * 129 * LN2, -0x1p129, 1 + 129 * LN2), ANY, 0},
    {0x1p-140,        0.5,           BOTH(0.5 * 139 * LN2, -0x1p139, 1 + 139 * LN2), ANY, 0},
    {0.5,             0x1p-130,      BOTH(-0x1p-130 * 129 * LN2, -0x1p-129, 1 - 129 * LN2), ANY, 0},
    {0.5,             0x1p-140,      BOTH(-0x1p-140 * 139 * LN2, -0x1p-139, 1 - 139 * LN2), ANY, 0},
    {0x1p-126,        0x1p-127,      BOTH(-0x1p-127 * LN2, -0.5, 1 - LN2), ANY, 0},
    {0x1p-100,        0x1p100,       BOTH(0x1p100 * 200 * LN2, -0x1p200, 1 + 200 * LN2), ANY, 0},
    {0x1p100,         0x1p-100,      BOTH(-0x1p-100 * 200 * LN2, -0x1p-200, 1 - 200 * LN2), ANY, 0},
    {0x1p100,         0x1p101,       BOTH(0x1p101 * LN2, -2, 1 + LN2), ANY, 0},
    {BIG,             BIG,           BOTH(0, -1, 1), ANY, 0}, /* PyTorch: NaN, by an overflow on the way */
    {1,               BIG,           BOTH(BIG * LBIG, -BIG, 1 + LBIG), ANY, 0},
    {BIG,             1,             BOTH(-LBIG, -1 / BIG, 1 - LBIG), ANY, 0},
    {0x1p-1060,       0.5,           BOTH(0.5 * 1059 * LN2, -INF, 1 + 1059 * LN2), ANY, 0},
    {0.5,             0x1p-1060,     BOTH(-0x1p-1060 * 1059 * LN2, -0x1p-1059, 1 - 1059 * LN2), ANY, 0},
    {0x1p-1060,       0x1p-1060,     BOTH(0, -1, 1), ANY, 0},
    {DBL_MAX,         DBL_MAX,       BOTH(0, -1, 1), ANY, 0}, /* likewise */
    {DBL_MAX,         1,             BOTH(-1024 * LN2, -1 / DBL_MAX, 1 - 1024 * LN2), ANY, 0},
};

static const special log_probs_probs[] = {
    /* x              t */
    {-1,              0.5,           BOTH(0.5 * (1 - LN2), -0.5, 2 - LN2), ANY, 0},
    {0,               1,             BOTH(0, -1, 1), ANY, 0},
    {-0.0,            1,             BOTH(0, -1, 1), ANY, 0},
    {0.5,             1,             BOTH(-0.5, -1, 0.5), ANY, 0},
    {-100,            0.5,           BOTH(0.5 * (100 - LN2), -0.5, 101 - LN2), ANY, 0},
    {-0x1p100,        0.5,           BOTH(0x1p99, -0.5, 0x1p100), ANY, 0},
    {-BIG,            2,             BOTH(2 * BIG, -2, BIG), ANY, 0},
    {-DBL_MAX,        2,             BOTH(INF, -2, DBL_MAX), ANY, 0},
    {0,               0x1p100,       BOTH(0x1p100 * 100 * LN2, -0x1p100, 1 + 100 * LN2), ANY, 0},
    {-1,              0x1p-140,      BOTH(0x1p-140 * (1 - 140 * LN2), -0x1p-140, 2 - 140 * LN2), ANY, 0},
    {-1,              0x1p-1060,     BOTH(0x1p-1060 * (1 - 1060 * LN2), -0x1p-1060, 2 - 1060 * LN2), ANY, 0},
    {0x1p-140,        1,             BOTH(-0x1p-140, -1, 1), ANY, 0},
    /* zeros */
    {-INF,            0.5,           BOTH(INF, -0.5, INF), ANY, 0},
    {-1,              0,             {0, 0, NAN}, ZEROS, ANY, 0},
    {-1,              -0.0,          {0, 0, NAN}, ZEROS, ANY, 0},
    {-BIG,            0,             {0, 0, NAN}, ZEROS, ANY, 0},
    {-INF,            0,             {NAN, 0, NAN}, ZEROS, ANY, 0},
    {-INF,            -0.0,          {NAN, 0, NAN}, ZEROS, ANY, 0},
    {INF,             0,             BOTH(NAN, 0, NAN), ANY, 0},
    {NAN,             0,             BOTH(NAN, 0, NAN), ANY, 0},
    /* negative, infinite, NaN */
    {-1,              -0.5,          BOTH(NAN, 0.5, NAN), ANY, 0},
    {-INF,            -0.5,          BOTH(NAN, 0.5, NAN), ANY, 0},
    {INF,             0.5,           BOTH(-INF, -0.5, -INF), ANY, 0},
    {-1,              INF,           BOTH(INF, -INF, NAN), ANY, 0},
    {0,               INF,           BOTH(NAN, -INF, NAN), ANY, 0},
    {1,               INF,           BOTH(NAN, -INF, NAN), ANY, 0},
    {-INF,            INF,           BOTH(INF, -INF, NAN), ANY, 0},
    {INF,             INF,           BOTH(NAN, -INF, NAN), ANY, 0},
    {-1,              -INF,          BOTH(NAN, INF, NAN), ANY, 0},
    {NAN,             0.5,           BOTH(NAN, -0.5, NAN), ANY, 0},
    {-1,              NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
    {-INF,            NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
};

static const special probs_log_probs[] = {
    /* p              y              value, d/dp, d/dy */
    {0.5,             0,             BOTH(LN2, -2, 1 + LN2), ANY, 0},
    {0.5,             -1,            BOTH(E1 * (LN2 - 1), -2 * E1, E1 * LN2), ANY, 0},
    {1,               -1,            BOTH(-E1, -E1, 0), ANY, 0},
    {2,               0,             BOTH(-LN2, -0.5, 1 - LN2), ANY, 0},
    {0x1p-20,         0,             BOTH(20 * LN2, -0x1p20, 1 + 20 * LN2), ANY, 0},
    {0x1p-140,        0,             BOTH(140 * LN2, -0x1p140, 1 + 140 * LN2), ANY, 0},
    {0x1p-1060,       0,             BOTH(1060 * LN2, -INF, 1 + 1060 * LN2), ANY, 0},
    {0x1p100,         0,             BOTH(-100 * LN2, -0x1p-100, 1 - 100 * LN2), ANY, 0},
    {1,               80,            BOTH(80 * E80, -E80, 81 * E80), ANY, 0},
    {0.5,             -100,          BOTH(E100 * (LN2 - 100), -2 * E100, E100 * (LN2 - 99)), ANY, 128},
    /* zeros: y = -inf, and y whose exponential is 0 in the type of the arithmetic */
    {0,               0,             BOTH(INF, -INF, INF), ANY, 0},
    {-0.0,            0,             BOTH(INF, INF, INF), ANY, 0},
    {0,               -INF,          NANS, ZEROS, ANY, 0},
    {-0.0,            -INF,          NANS, ZEROS, ANY, 0},
    {0.5,             -INF,          {NAN, 0, NAN}, ZEROS, ANY, 0},
    {0x1p-140,        -INF,          {NAN, 0, NAN}, ZEROS, ANY, 0},
    {BIG,             -INF,          {NAN, 0, NAN}, ZEROS, ANY, 0},
    {0.5,             -110,          BOTH(0, 0, 0), IN_F32, 0},
    {0,               -110,          NANS, ZEROS, IN_F32, 0},
    {0.5,             -110,          BOTH(E110 * (LN2 - 110), -2 * E110, E110 * (LN2 - 109)), IN_F64, 0},
    {0,               -110,          BOTH(INF, -INF, INF), IN_F64, 0},
    {0.5,             -800,          BOTH(0, 0, 0), ANY, 0},
    {0,               -800,          NANS, ZEROS, ANY, 0},
    {0.5,             -0x1p100,      BOTH(0, 0, 0), ANY, 0},
    /* negative, infinite, NaN */
    {-1,              0,             BOTH(NAN, 1, NAN), ANY, 0},
    {-1,              -INF,          BOTH(NAN, 0, NAN), ANY, 0},
    {-1,              -800,          BOTH(NAN, 0, NAN), ANY, 0},
    {INF,             0,             BOTH(-INF, 0, -INF), ANY, 0},
    {INF,             -INF,          BOTH(NAN, 0, NAN), ANY, 0},
    {INF,             -800,          BOTH(NAN, 0, NAN), ANY, 0},
    {-INF,            0,             BOTH(NAN, 0, NAN), ANY, 0},
    {0.5,             INF,           BOTH(INF, -INF, INF), ANY, 0},
    {0,               INF,           BOTH(INF, -INF, INF), ANY, 0},
    {INF,             INF,           BOTH(NAN, NAN, NAN), ANY, 0},
    {-1,              INF,           BOTH(NAN, INF, NAN), ANY, 0},
    /* exp(y) is infinite in the type of the arithmetic */
    {0.5,             100,           BOTH(INF, -INF, INF), IN_F32, 0},
    {0,               100,           BOTH(INF, -INF, INF), ANY, 0},
    {0x1p100,         100,           BOTH(INF, -INF, INF), IN_F32, 0},
    {INF,             100,           BOTH(-INF, NAN, NAN), IN_F32, 0},
    {-1,              100,           BOTH(NAN, INF, NAN), IN_F32, 0},
    {1,               100,           BOTH(100 * EP100, -EP100, 101 * EP100), IN_F64, 0},
    {INF,             100,           BOTH(-INF, 0, -INF), IN_F64, 0},
    {0.5,             800,           BOTH(INF, -INF, INF), ANY, 0},
    {INF,             800,           BOTH(-INF, NAN, NAN), ANY, 0},
    {NAN,             0,             BOTH(NAN, NAN, NAN), ANY, 0},
    {NAN,             -INF,          BOTH(NAN, NAN, NAN), ANY, 0},
    {0.5,             NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
    {0,               NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
};

static const special log_probs_log_probs[] = {
    /* x              y */
    {-2,              -1,            BOTH(E1, -E1, 2 * E1), ANY, 0},
    {-1,              -1,            BOTH(0, -E1, E1), ANY, 0},
    {0,               0,             BOTH(0, -1, 1), ANY, 0},
    {-0.0,            0,             BOTH(0, -1, 1), ANY, 0},
    {1,               0,             BOTH(-1, -1, 0), ANY, 0},
    {100,             0,             BOTH(-100, -1, -99), ANY, 0},
    {0,               80,            BOTH(80 * E80, -E80, 81 * E80), ANY, 0},
    {80,              80,            BOTH(0, -E80, E80), ANY, 0},
    {-100,            -100,          BOTH(0, -E100, E100), ANY, 128},
    {-90,             -100,          BOTH(-10 * E100, -E100, -9 * E100), ANY, 128},
    {-0x1p100,        0,             BOTH(0x1p100, -1, 0x1p100), ANY, 0},
    {-BIG,            0,             BOTH(BIG, -1, BIG), ANY, 0},
    /* zeros */
    {-INF,            0,             BOTH(INF, -1, INF), ANY, 0},
    {-1,              -INF,          {NAN, 0, NAN}, ZEROS, ANY, 0},
    {-INF,            -INF,          {NAN, 0, NAN}, ZEROS, ANY, 0},
    {-1,              -110,          BOTH(0, 0, 0), IN_F32, 0},
    {-INF,            -110,          {NAN, 0, NAN}, ZEROS, IN_F32, 0},
    {-1,              -110,          BOTH(-109 * E110, -E110, -108 * E110), IN_F64, 0},
    {-INF,            -110,          BOTH(INF, -E110, INF), IN_F64, 0},
    {-1,              -800,          BOTH(0, 0, 0), ANY, 0},
    {-INF,            -800,          {NAN, 0, NAN}, ZEROS, ANY, 0},
    {-1,              -BIG,          BOTH(0, 0, 0), ANY, 0},
    {INF,             -INF,          BOTH(NAN, 0, NAN), ANY, 0},
    {INF,             -800,          BOTH(NAN, 0, NAN), ANY, 0},
    {NAN,             -INF,          BOTH(NAN, 0, NAN), ANY, 0},
    /* infinite, NaN */
    {INF,             0,             BOTH(-INF, -1, -INF), ANY, 0},
    {0,               INF,           BOTH(INF, -INF, INF), ANY, 0},
    {-INF,            INF,           BOTH(INF, -INF, INF), ANY, 0},
    {INF,             INF,           BOTH(NAN, -INF, NAN), ANY, 0},
    {0,               100,           BOTH(INF, -INF, INF), IN_F32, 0},
    {100,             100,           BOTH(NAN, -INF, NAN), IN_F32, 0},
    {800,             100,           BOTH(-INF, -INF, NAN), IN_F32, 0},
    {-INF,            100,           BOTH(INF, -INF, INF), IN_F32, 0},
    {INF,             100,           BOTH(-INF, -INF, NAN), IN_F32, 0},
    {100,             100,           BOTH(0, -EP100, EP100), IN_F64, 0},
    {800,             100,           BOTH(-700 * EP100, -EP100, -699 * EP100), IN_F64, 0},
    {800,             800,           BOTH(NAN, -INF, NAN), ANY, 0},
    {0,               800,           BOTH(INF, -INF, INF), ANY, 0},
    {NAN,             0,             BOTH(NAN, -1, NAN), ANY, 0},
    {-1,              NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
    {-INF,            NAN,           BOTH(NAN, NAN, NAN), ANY, 0},
};
/* clang-format on */

#define LINES(table) table, sizeof table / sizeof table[0]

static const struct {
    const special *lines;
    size_t count;
    double prediction, target; /* the ordinary elements around the special one */
    triple ordinary;
} tables[ONEP_KL_FORMS] = {
    [ONEP_KL_PROBS_PROBS] = {LINES(probs_probs), 0.5, 0.25, {-0.25 * LN2, -0.5, 1 - LN2}},
    [ONEP_KL_LOG_PROBS_PROBS] = {LINES(log_probs_probs), -1, 0.5, {0.5 * (1 - LN2), -0.5, 2 - LN2}},
    [ONEP_KL_PROBS_LOG_PROBS] = {LINES(probs_log_probs), 0.5, -1, {E1 * (LN2 - 1), -2 * E1, E1 *LN2}},
    [ONEP_KL_LOG_PROBS_LOG_PROBS] = {LINES(log_probs_log_probs), -2, -1, {E1, -E1, 2 * E1}},
};

/* ---- one line at one place --------------------------------------------------------------------------------------- */

enum { POSITIONS = 41, COLUMNS = 45, ROWS = 3, STEP = 2 };

typedef union number_memory {
    double align;
    char bytes[ROWS * COLUMNS * STEP * sizeof(double)];
} number_memory;

/* NaN with a payload, quiet or signalling, of either sign: `variant` chooses. */
static void store_nan(onep_type type, char *to, int variant)
{
    static const uint16_t f16[] = {0x7e00, 0x7c01, 0xfe55}, bf16[] = {0x7fc0, 0x7f81, 0xffd5};
    static const uint32_t f32[] = {0x7fc00000, 0x7f800001, 0xffc12345};
    static const uint64_t f64[] = {0x7ff8000000000000, 0x7ff0000000000001, 0xfff8000000012345};
    switch (type) {
    case ONEP_F16:
        memcpy(to, &f16[variant], sizeof f16[0]);
        break;
    case ONEP_BF16:
        memcpy(to, &bf16[variant], sizeof bf16[0]);
        break;
    case ONEP_F32:
        memcpy(to, &f32[variant], sizeof f32[0]);
        break;
    default:
        memcpy(to, &f64[variant], sizeof f64[0]);
        break;
    }
}

static int can_hold(onep_type type, double x)
{
    char memory[8];
    onep_store(type, memory, x);
    double back = onep_load(type, memory);
    return isnan(x) || (back == x && isinf(back) == isinf(x));
}

/* One combination to try. */
typedef struct trial {
    onep_kl_form form;
    const special *line;
    onepass_semantics semantics;
    onep_type prediction_type, target_type;
    onep_level level;
    onepass_handle *handle;
    int position;
} trial;

static long long lines_run, lines_without_type;

/* `size` is what the number's error is relative to. */
static int check_number(const trial *r, const char *what, int index, onep_type type, double got, double expected,
                        double size)
{
    onep_type computed = onep_promote(r->prediction_type, r->target_type);
    /* Most numbers are ordinary and right: a quick look in double settles them. */
    double small = computed == ONEP_F64 ? 0x1p-50 : 0x1p-21;
    if (isfinite(expected) && fabs(got - expected) <= small * fabs(expected))
        return CHECK(1, "close");
    long double u = computed == ONEP_F64 ? 0x1p-53L : 0x1p-24L;
    long double s = computed == ONEP_F64 ? (long double)DBL_TRUE_MIN : (long double)FLT_TRUE_MIN;
    long double allowed = 16 * u * (long double)size + r->line->slack * s;
    return CHECK(
        test_close_in(type, got, expected, isfinite(size) ? allowed : 0),
        "level %s, %s, %s, %s and %s, prediction %g, target %g at %d: %s[%d] is %.17g, expected %.17g, allowed %.3Lg",
        onep_level_name(r->level), kl_form_name(r->form), r->semantics == ONEPASS_FINITE ? "finite" : "strict",
        onep_type_name(r->prediction_type), onep_type_name(r->target_type), r->line->prediction, r->line->target,
        r->position, what, index, got, expected, allowed);
}

/* Fills rows x COLUMNS elements with ordinary numbers and puts the special one into the middle row. */
static void fill(const trial *r, int rows, int step, number_memory *predictions, number_memory *targets)
{
    size_t p_size = onep_type_size(r->prediction_type) * (size_t)step;
    size_t t_size = onep_type_size(r->target_type) * (size_t)step;
    for (int i = 0; i < rows * COLUMNS; i++) {
        onep_store(r->prediction_type, predictions->bytes + (size_t)i * p_size, tables[r->form].prediction);
        onep_store(r->target_type, targets->bytes + (size_t)i * t_size, tables[r->form].target);
    }
    size_t at = (size_t)(rows / 2 * COLUMNS + r->position);
    onep_store(r->prediction_type, predictions->bytes + at * p_size, r->line->prediction);
    onep_store(r->target_type, targets->bytes + at * t_size, r->line->target);
    if (isnan(r->line->prediction))
        store_nan(r->prediction_type, predictions->bytes + at * p_size, r->position % 3);
    if (isnan(r->line->target))
        store_nan(r->target_type, targets->bytes + at * t_size, r->position % 3);
}

/* Element by element (rows = 1), or a value a row with the special element in the middle one of three. */
static int try_line(const trial *r, onepass_reduction reduction)
{
    static number_memory predictions, targets, value, grad_predictions, grad_targets;
    int rows = reduction == ONEPASS_NONE ? 1 : ROWS;
    int step = r->position % 2 ? STEP : 1;
    fill(r, rows, step, &predictions, &targets);

    int64_t shape[] = {rows, COLUMNS};
    int64_t strides[] = {COLUMNS * step, step};
    onep_type value_type = onep_promote(r->prediction_type, r->target_type);
    int value_rank = reduction == ONEPASS_NONE ? 2 : reduction == ONEPASS_ROWS ? 1 : 0;
    onepass_tensor p = kl_tensor(r->prediction_type, predictions.bytes, 2, shape);
    onepass_tensor t = kl_tensor(r->target_type, targets.bytes, 2, shape);
    onepass_tensor v = kl_tensor(value_type, value.bytes, value_rank, shape);
    onepass_tensor gp = kl_tensor(r->prediction_type, grad_predictions.bytes, 2, shape);
    onepass_tensor gt = kl_tensor(r->target_type, grad_targets.bytes, 2, shape);
    p.strides = t.strides = strides;
    onepass_kl_options options = {.size = sizeof options, .reduction = reduction, .semantics = r->semantics};
    onepass_status status = kl_entry_of(r->form)(r->handle, &p, &t, &options, &v, &gp, &gt);
    int good = CHECK(status == ONEPASS_OK, "%s", onepass_last_error());

    const triple *ordinary = &tables[r->form].ordinary;
    const triple *expected = r->semantics == ONEPASS_FINITE ? &r->line->finite : &r->line->strict;
    size_t v_size = onep_type_size(value_type);
    size_t p_size = onep_type_size(r->prediction_type);
    size_t t_size = onep_type_size(r->target_type);
    for (int i = 0; i < rows * COLUMNS; i++) {
        int here = i == rows / 2 * COLUMNS + r->position;
        const triple *e = here ? expected : ordinary;
        good &= check_number(r, "grad_predictions", i, r->prediction_type,
                             onep_load(r->prediction_type, grad_predictions.bytes + (size_t)i * p_size),
                             e->d_prediction, fabs(e->d_prediction));
        good &= check_number(r, "grad_targets", i, r->target_type,
                             onep_load(r->target_type, grad_targets.bytes + (size_t)i * t_size), e->d_target,
                             fabs(e->d_target));
        if (reduction == ONEPASS_NONE)
            good &= check_number(r, "value", i, value_type, onep_load(value_type, value.bytes + (size_t)i * v_size),
                                 e->value, fabs(e->value));
    }
    /* Equal addends round alike, so their sum may be off by half a unit each. */
    double sizes = rows * COLUMNS * fabs(ordinary->value) + fabs(expected->value);
    sizes += sizes * rows * COLUMNS / 16;
    double plain = COLUMNS * ordinary->value;
    double mixed = (COLUMNS - 1) * ordinary->value + expected->value;
    for (int row = 0; reduction == ONEPASS_ROWS && row < rows; row++)
        good &= check_number(r, "row value", row, value_type, onep_load(value_type, value.bytes + (size_t)row * v_size),
                             row == rows / 2 ? mixed : plain, sizes);
    if (reduction == ONEPASS_SUM)
        good &= check_number(r, "sum", 0, value_type, onep_load(value_type, value.bytes), (ROWS - 1) * plain + mixed,
                             sizes);
    return good;
}

/*
 * All places of one line with one pair of types, up to the first failure; mixed pairs, which share the arithmetic, are
 * sampled.
 */
static void try_places(trial *r, test_random *random)
{
    int good = 1;
    int mixed = r->prediction_type != r->target_type;
    int step = test_quick() ? (mixed ? 32 : 8) : (mixed ? 16 : 1);
    int offset = (int)test_random_below(random, step);
    for (r->position = 0; good && r->position < POSITIONS; r->position++) {
        if (r->position % step != offset)
            continue;
        for (int semantics = 0; semantics <= ONEPASS_FINITE; semantics++) {
            r->semantics = (onepass_semantics)semantics;
            good &= try_line(r, ONEPASS_NONE) && try_line(r, ONEPASS_ROWS) && try_line(r, ONEPASS_SUM);
        }
    }
}

static void test_tables(onep_level level, test_random *random)
{
    trial r = {.level = level, .handle = test_handle(level, 1)};
    for (int form = 0; form < ONEP_KL_FORMS; form++)
        for (size_t i = 0; i < tables[form].count; i++) {
            r.form = (onep_kl_form)form;
            r.line = &tables[form].lines[i];
            int ran = 0;
            for (int pair = 0; pair < ONEP_FLOAT_TYPES * ONEP_FLOAT_TYPES; pair++) {
                r.prediction_type = (onep_type)(pair / ONEP_FLOAT_TYPES);
                r.target_type = (onep_type)(pair % ONEP_FLOAT_TYPES);
                precision computed = onep_promote(r.prediction_type, r.target_type) == ONEP_F64 ? IN_F64 : IN_F32;
                if ((r.line->computed != ANY && r.line->computed != computed) ||
                    !can_hold(r.prediction_type, r.line->prediction) || !can_hold(r.target_type, r.line->target))
                    continue;
                try_places(&r, random);
                ran = 1;
            }
            lines_run += ran;
            lines_without_type += !ran;
        }
    onepass_destroy(r.handle);
}

int main(void)
{
    test_begin("test_kl_special");
    test_print_levels();
    test_random random = test_random_stream(1);
    for (int level = 0; level < ONEP_LEVELS; level++)
        if (onep_level_runs((onep_level)level))
            test_tables((onep_level)level, &random);
    test_context("the tables");
    CHECK(lines_without_type == 0, "%lld lines fit no type", lines_without_type);
    printf("test_kl_special: %lld lines, over all levels\n", lines_run);
    return test_end();
}
