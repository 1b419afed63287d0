/*
 * Special values of the losses from logits, written down: -inf as a mask on one side, on the other and on both, rows
 * without any mass, +inf and NaN, labels that are ignored or out of range, ties of total variation, probabilities of 0
 * and such that are none, rows and columns that are not there; and the rules that only these operators have. Every
 * other logit is 0, so that all results are simple. Each special value is tried at every lane of a vector and on both
 * sides of every slice of a long row, at all levels and in all types.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/logits.h"
#include "harness.h"

#define INF INFINITY
#define ANY 12345.0 /* an expectation that is none */

/* One more than a power of two, so that a probability of 1/(n-1) is exact in every type. */
enum { SHORT = 33, LONG = 16385 };

static onepass_handle *handles[ONEP_LEVELS];

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* What a row of n zeros on both sides has at column k, and what is asked. */
typedef struct special_row {
    const char *name;
    double prediction, target; /* at k */
    int all_predictions, all_targets;
    int divergence; /* -1: cross-entropy */
    double label;   /* ANY: none; label_at_k: k itself */
    double label_weight;
    int form; /* of targets: 0 logits, 1 probabilities, 2 their logarithms */
    double softcap;
} special_row;

static const double label_at_k = -7777;

/* Expected results; gradients at column k and at every other one. */
typedef struct outcome {
    double value, to_prediction, to_predictions, to_target, to_targets;
    double lse, entropy, log_prob, argmax;
} outcome;

static struct {
    char x[LONG * 8], y[LONG * 8], to_x[LONG * 8], to_y[LONG * 8];
} memory;

static onepass_tensor tensor_of(onepass_dtype type, void *data, int ndim, int64_t *shape)
{
    return (onepass_tensor){.data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = type, .shape = shape};
}

/* What the rounding of log(n-1) to the type costs where targets are logarithms, as a share of T. */
static long double slack;

/* The results are those of softmaxes of equal numbers: a few roundings of each. `size` is that of what they are made
 * of.
 */
static void check(onep_type type, double got, double expected, long double size, const char *what)
{
    if (expected == ANY)
        return;
    /* Not of a NaN or an infinity: x87 takes a hundred times as long for those. */
    long double unit = type == ONEP_F64 ? 0x1p-53L : 0x1p-24L, allowed = 0;
    if (isfinite(expected))
        allowed = 32 * unit * (size + fabsl((long double)expected)) + 4 * slack * (1 + fabsl((long double)expected));
    CHECK(test_close_in(type, got, expected, allowed), "%s is %.9g, expected %.9g", what, got, expected);
}

static double target_number(const special_row *r, int64_t n, double logit)
{
    if (r->form == 0)
        return logit;
    double lse = r->all_targets || !isfinite(r->target) ? log((double)(n - 1)) : log((double)n);
    if (isnan(logit) || logit == INF)
        return logit;
    return r->form == 1 ? exp(logit - lse) : logit - lse;
}

static void run_row(const special_row *r, onepass_handle *handle, onep_type type, int64_t n, int64_t k,
                    onepass_semantics semantics, const outcome *expected)
{
    size_t size = onep_type_size(type);
    onepass_dtype dtype = test_dtype(type);
    for (int64_t i = 0; i < n; i++) {
        onep_store(type, memory.x + (size_t)i * size, i == k || r->all_predictions ? r->prediction : 0);
        onep_store(type, memory.y + (size_t)i * size, target_number(r, n, i == k || r->all_targets ? r->target : 0));
    }
    slack = r->form == 2 ? case_half_unit(dtype, logl((long double)n)) : 0;
    memset(memory.to_x, 0x55, (size_t)n * size);
    memset(memory.to_y, 0x55, (size_t)n * size);
    int64_t shape[] = {1, n}, label = r->label == label_at_k ? k : (int64_t)r->label, argmax = -5;
    double value = ANY, lse = ANY, entropy = ANY, log_prob = ANY;
    onepass_tensor x = tensor_of(dtype, memory.x, 2, shape), y = tensor_of(dtype, memory.y, 2, shape);
    onepass_tensor to_x = tensor_of(dtype, memory.to_x, 2, shape), to_y = tensor_of(dtype, memory.to_y, 2, shape);
    onepass_tensor l = tensor_of(case_i64, &label, 1, shape), a = tensor_of(case_i64, &argmax, 1, shape);
    onepass_tensor v = tensor_of(case_f64, &value, 1, shape), s = tensor_of(case_f64, &lse, 1, shape);
    onepass_tensor e = tensor_of(case_f64, &entropy, 1, shape), p = tensor_of(case_f64, &log_prob, 1, shape);
    int has_label = r->label != ANY;
    onepass_logits_options o = {.size = sizeof o,
                                .reduction = ONEPASS_ROWS,
                                .semantics = semantics,
                                .softcap = r->softcap,
                                .label_weight = r->label_weight,
                                .lse = &s,
                                .entropy = &e,
                                .argmax = &a,
                                .log_prob = has_label ? &p : NULL};
    onepass_status status;
    if (r->divergence < 0) {
        status = onepass_cross_entropy_logits_labels(handle, &x, &l, &o, &v, &to_x);
    } else {
        o.divergence = (onepass_divergence)r->divergence;
        o.mixture = o.divergence >= ONEPASS_JS && o.divergence < ONEPASS_TOTAL_VARIATION ? 0.5 : 0;
        o.labels = has_label ? &l : NULL;
        status = (r->form == 0   ? onepass_divergence_logits_logits
                  : r->form == 1 ? onepass_divergence_logits_probs
                                 : onepass_divergence_logits_log_probs)(handle, &x, &y, &o, &v, &to_x, &to_y);
    }
    test_context("level %s, %s, %s, divergence %d, form %d, column %" PRId64 " of %" PRId64 ", semantics %d",
                 onepass_isa(handle), onep_type_name(type), r->name, r->divergence, r->form, k, n, (int)semantics);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    onep_type computed = type == ONEP_F64 ? ONEP_F64 : ONEP_F32;
    long double share = 1 / (long double)n;
    check(computed, value, expected->value, 1, "value");
    check(computed, lse, expected->lse, 0, "lse");
    check(computed, entropy, expected->entropy, 0, "entropy");
    if (has_label)
        check(computed, log_prob, expected->log_prob, 0, "log_prob");
    if (expected->argmax != ANY)
        CHECK(argmax == (int64_t)expected->argmax, "argmax is %" PRId64 ", expected %g", argmax, expected->argmax);
    for (int64_t i = 0; i < n; i++) {
        check(type, onep_load(type, memory.to_x + (size_t)i * size),
              i == k ? expected->to_prediction : expected->to_predictions, share, "grad_predictions");
        if (r->divergence >= 0)
            check(type, onep_load(type, memory.to_y + (size_t)i * size),
                  i == k ? expected->to_target : expected->to_targets, share, "grad_targets");
    }
}

/* At every column of a short row and around the slices of a long one. */
static void run_everywhere(const special_row *r,
                           outcome (*expect)(const special_row *r, double n, double k, int finite))
{
    static const int64_t around[] = {0, 1, 8190, 8191, 8192, 8193, 12345, 16383, LONG - 1};
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (int type = 0; type < ONEP_FLOAT_TYPES && handles[level]; type++)
            for (int semantics = 0; semantics < 2; semantics++) {
                for (int64_t k = 0; k < SHORT; k++) {
                    if (test_quick() && (k + type + level) % 3 != 0)
                        continue;
                    outcome expected = expect(r, SHORT, (double)k, semantics);
                    run_row(r, handles[level], (onep_type)type, SHORT, k, (onepass_semantics)semantics, &expected);
                }
                int is_long =
                    semantics == 0 && (test_quick() ? type == ONEP_F32 && level != ONEP_REF : type % 2 == level % 2);
                for (int i = 0; is_long && i < 9; i++) {
                    if ((i + level) % (test_quick() ? 4 : 2) != 0)
                        continue;
                    outcome expected = expect(r, LONG, (double)around[i], semantics);
                    run_row(r, handles[level], (onep_type)type, LONG, around[i], (onepass_semantics)semantics,
                            &expected);
                }
            }
}

/* ---- what comes of it -------------------------------------------------------------------------------------------- */

static const outcome anything = {ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY};

/* NaN in a prediction, or +inf: the whole row. */
static outcome undefined_row(const special_row *r, double n, double k, int finite)
{
    (void)n, (void)finite, (void)r;
    return (outcome){NAN, NAN, NAN, ANY, ANY, NAN, NAN, NAN, k};
}

/* The same in a target: lse and entropy are those of the predictions. */
static outcome undefined_target(const special_row *r, double n, double k, int finite)
{
    (void)k, (void)finite, (void)r;
    return (outcome){NAN, NAN, NAN, ANY, ANY, log(n), log(n), ANY, 0};
}

static outcome no_mass(const special_row *r, double n, double k, int finite)
{
    (void)n, (void)k;
    double x = finite ? 0 : NAN;
    return (outcome){x, x, x, x, x, r->all_predictions ? -INF : log(n), x, x, 0};
}

/* The predictions lack column k, which the targets, logits, have: S = 1/(n-1), T = 1/n. */
static outcome masked_prediction(const special_row *r, double n, double k, int finite)
{
    (void)finite;
    outcome o = anything;
    double s = 1 / (n - 1), t = 1 / n, m = (s + t) / 2;
    double js = 0.5 * ((n - 1) * t * log(t / m) + t * log(2.0) + (n - 1) * s * log(s / m));
    o.lse = o.entropy = log(n - 1);
    o.argmax = k == 0 ? 1 : 0;
    switch (r->divergence) {
    case ONEPASS_KL:
        o.value = INF;
        o.to_prediction = -t;
        o.to_predictions = s - t;
        o.to_target = NAN; /* T (log T/S - KL), both infinite */
        o.to_targets = -INF;
        break;
    case ONEPASS_REVERSE_KL:
        o.value = log(n / (n - 1));
        o.to_prediction = o.to_predictions = 0;
        o.to_target = t;
        o.to_targets = t - s;
        break;
    case ONEPASS_JS:
        o.value = js;
        o.to_prediction = o.to_predictions = 0;
        break;
    case ONEPASS_SKEW_KL:
        o.value = (n - 1) * t * log(t / m) + t * log(2.0);
        break;
    case ONEPASS_SKEW_REVERSE_KL:
        o.value = (n - 1) * s * log(s / m);
        o.to_prediction = o.to_predictions = 0;
        break;
    default:
        o.value = t;
        o.to_prediction = o.to_predictions = 0; /* S (1/2 - 1/2) */
        o.to_target = t * (1 - t);              /* -T sign/2 - T sum: T (1/2 + (n-1) T/2 - T/2) */
        o.to_targets = -t * t;
        break;
    }
    return o;
}

/* The targets lack column k, which the predictions have: S = 1/n, T = 1/(n-1). */
static outcome masked_target(const special_row *r, double n, double k, int finite)
{
    (void)k;
    outcome o = anything;
    double s = 1 / n, t = 1 / (n - 1), m = (s + t) / 2;
    o.lse = o.entropy = log(n);
    o.argmax = 0;
    switch (r->divergence) {
    case ONEPASS_KL:
        o.value = log(n / (n - 1));
        o.to_prediction = s;
        o.to_predictions = s - t;
        o.to_target = r->form == 1 ? (finite ? 0 : NAN) : 0;
        o.to_targets = r->form == 0 ? 0 : ANY;
        break;
    case ONEPASS_REVERSE_KL:
        o.value = INF;
        o.to_prediction = NAN; /* S (log S/T - KL), both infinite */
        o.to_predictions = -INF;
        o.to_target = r->form == 1 ? -INF : -s;
        o.to_targets = r->form == 1 ? -s / t : r->form == 2 ? -s : t - s;
        break;
    case ONEPASS_JS:
        o.value = 0.5 * ((n - 1) * t * log(t / m) + s * log(2.0) + (n - 1) * s * log(s / m));
        break;
    case ONEPASS_SKEW_KL:
        o.value = (n - 1) * t * log(t / m);
        break;
    case ONEPASS_SKEW_REVERSE_KL:
        o.value = (n - 1) * s * log(s / m) + s * log(2.0);
        break;
    default:
        o.value = s;
        o.to_prediction = s * (1 - s);
        o.to_predictions = -s * s;
        break;
    }
    return o;
}

/* Neither has column k: there is no divergence. */
static outcome masked_both(const special_row *r, double n, double k, int finite)
{
    outcome o = {0, 0, 0, ANY, ANY, log(n - 1), log(n - 1), ANY, k == 0 ? 1 : 0};
    if (r->form == 0)
        o.to_target = o.to_targets = 0;
    else
        o.to_target = r->form == 1 && r->divergence != ONEPASS_TOTAL_VARIATION ? (finite ? 0 : NAN) : 0;
    if (r->divergence == ONEPASS_TOTAL_VARIATION && r->form != 0) /* 1/(n-1) may be rounded to either side */
        o.value = o.to_prediction = o.to_predictions = o.to_target = ANY;
    else if (r->form != 0)
        o.value = o.to_prediction = o.to_predictions = ANY; /* stored targets are rounded */
    return o;
}

static outcome ignored_label(const special_row *r, double n, double k, int finite)
{
    (void)r, (void)n, (void)k, (void)finite;
    return (outcome){0, 0, 0, 0, 0, 0, 0, 0, 0};
}

static outcome bad_label(const special_row *r, double n, double k, int finite)
{
    (void)k, (void)finite;
    outcome o = {NAN, NAN, NAN, NAN, NAN, log(n), log(n), NAN, 0};
    if (r->divergence >= 0 && r->label_weight == 0) /* it only says that the row takes part */
        o.value = o.to_prediction = o.to_predictions = o.to_target = o.to_targets = 0;
    return o;
}

/* The label's own logit is -inf. */
static outcome masked_label(const special_row *r, double n, double k, int finite)
{
    (void)r, (void)finite;
    return (outcome){INF, -1, 1 / (n - 1), ANY, ANY, log(n - 1), log(n - 1), -INF, k == 0 ? 1 : 0};
}

/* +inf under a softcap is the cap: exp(cap) beside n - 1 ones. */
static outcome capped(const special_row *r, double n, double k, int finite)
{
    (void)finite;
    double lse = log(n - 1 + exp(r->softcap));
    return (outcome){lse - r->softcap, 0, exp(-lse), ANY, ANY, lse, ANY, r->softcap - lse, k};
}

static void test_table(void)
{
    for (int divergence = 0; divergence <= ONEPASS_TOTAL_VARIATION; divergence++)
        for (int form = 0; form < 3; form++) {
            if (test_quick() && (divergence + form) % 2 && divergence > ONEPASS_REVERSE_KL)
                continue;
            special_row r = {.divergence = divergence, .label = ANY, .form = form};
            r.name = "NaN prediction", r.prediction = NAN;
            run_everywhere(&r, undefined_row);
            r.name = "+inf prediction", r.prediction = INF;
            run_everywhere(&r, undefined_row);
            r.name = "NaN target", r.prediction = 0, r.target = NAN;
            run_everywhere(&r, undefined_target);
            r.name = "+inf target", r.target = INF;
            run_everywhere(&r, undefined_target);
            r.name = "-inf target", r.target = -INF;
            run_everywhere(&r, masked_target);
            r.name = "-inf on both sides", r.prediction = -INF;
            run_everywhere(&r, masked_both);
            if (form == 0) {
                r.name = "-inf prediction", r.target = 0;
                run_everywhere(&r, masked_prediction);
                r.name = "all targets -inf", r.prediction = 0, r.target = -INF, r.all_targets = 1;
                run_everywhere(&r, no_mass);
            }
            r.name = "all predictions -inf", r.prediction = -INF, r.all_predictions = 1;
            run_everywhere(&r, no_mass);
        }
}

static void test_labels(void)
{
    static const double bad[] = {-1, SHORT * 1000.0, -99, 0x1p40, -0x1p62};
    for (int divergence = -1; divergence <= 0; divergence++) {
        special_row r = {.divergence = divergence, .label = -100, .label_weight = divergence < 0 ? 0 : 1};
        r.name = "ignored label", r.prediction = NAN;
        run_everywhere(&r, ignored_label);
        r.prediction = 0;
        for (int i = 0; i < 5; i++) {
            r.name = "bad label", r.label = bad[i], r.label_weight = divergence < 0 ? 0 : 1;
            if (test_quick() && i > 1 && divergence == 0)
                continue;
            run_everywhere(&r, bad_label);
            r.label_weight = 0;
            if (divergence >= 0)
                run_everywhere(&r, bad_label);
        }
    }
    special_row r = {.name = "label at -inf", .divergence = -1, .label = label_at_k, .prediction = -INF};
    run_everywhere(&r, masked_label);
    r.name = "+inf under a softcap", r.prediction = INF, r.softcap = 3;
    run_everywhere(&r, capped);
    r.name = "no mass", r.prediction = -INF, r.softcap = 0, r.all_predictions = 1;
    run_everywhere(&r, no_mass);
}

/* ---- ties, tokens, nothing --------------------------------------------------------------------------------------- */

/* Where S = T total variation has no slope: S = (1/2, 1/2, 0), T = (1/2, 0, 1/2). */
static void test_ties(void)
{
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        float x[] = {0, 0, -INF}, y[] = {0, -INF, 0}, to_x[3], to_y[3];
        double value = NAN;
        int64_t shape[] = {1, 3};
        onepass_tensor p = tensor_of(case_f32, x, 2, shape), t = tensor_of(case_f32, y, 2, shape);
        onepass_tensor gp = tensor_of(case_f32, to_x, 2, shape), gt = tensor_of(case_f32, to_y, 2, shape);
        onepass_tensor v = tensor_of(case_f64, &value, 0, NULL);
        onepass_logits_options o = {.size = sizeof o, .reduction = ONEPASS_SUM, .divergence = ONEPASS_TOTAL_VARIATION};
        test_context("level %s, a tie of total variation", onep_level_name((onep_level)level));
        CHECK(onepass_divergence_logits_logits(handles[level], &p, &t, &o, &v, &gp, &gt) == ONEPASS_OK, "%s",
              onepass_last_error());
        CHECK(test_close(value, 0.5, 1e-7L), "value %.9g", value);
        static const double expected[] = {-0.125, 0.125, 0}, back[] = {-0.125, 0, 0.125};
        for (int i = 0; i < 3; i++) {
            CHECK(test_close((double)to_x[i], expected[i], 1e-7L), "grad_predictions[%d] is %g", i, (double)to_x[i]);
            CHECK(test_close((double)to_y[i], back[i], 1e-7L), "grad_targets[%d] is %g", i, (double)to_y[i]);
        }
    }
}

/* Indices that are ignored, out of range and right, in rows that are ordinary, masked and without mass. */
static void test_tokens(void)
{
    enum { ROWS = 4, COLUMNS = 5, COUNT = 3 };
    double x[ROWS][COLUMNS] = {
        {0, 0, 0, 0, 0}, {NAN, INF, 0, 0, 0}, {-INF, -INF, -INF, -INF, -INF}, {0, -INF, 0, 0, NAN}};
    int32_t indices[ROWS][COUNT] = {{-100, 5, 3}, {0, 1, 99}, {-100, 0, 7}, {0, 1, 2}};
    unsigned char mask[ROWS] = {1, 0, 1, 1};
    int64_t shape[] = {ROWS, COLUMNS}, index_shape[] = {ROWS, COUNT};
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (int finite = 0; finite < 2 && handles[level]; finite++) {
            double log_prob[ROWS][COUNT], entropy[ROWS], lse[ROWS], gradient[ROWS][COLUMNS];
            double g[ROWS][COUNT] = {{1, 0, 2}, {NAN, NAN, NAN}, {1, 1, 1}, {1, 1, 1}};
            onepass_tensor l = tensor_of(case_f64, x, 2, shape), i = tensor_of(case_i32, indices, 2, index_shape);
            onepass_tensor p = tensor_of(case_f64, log_prob, 2, index_shape),
                           e = tensor_of(case_f64, entropy, 1, shape);
            onepass_tensor s = tensor_of(case_f64, lse, 1, shape), m = tensor_of(case_u8, mask, 1, shape);
            onepass_tensor up = tensor_of(case_f64, g, 2, index_shape), to = tensor_of(case_f64, gradient, 2, shape);
            onepass_token_options o = {
                .size = sizeof o, .semantics = (onepass_semantics)finite, .columns = 4, .row_mask = &m};
            test_context("level %s, tokens, semantics %d", onep_level_name((onep_level)level), finite);
            CHECK(onepass_token_log_probs(handles[level], &l, &i, &o, &p, &e, &s) == ONEPASS_OK, "%s",
                  onepass_last_error());
            double none = finite ? 0 : NAN;
            const double expected[ROWS][COUNT] = {
                {0, NAN, -log(4)}, {0, 0, 0}, {0, none, NAN}, {-log(3), -INF, -log(3)}};
            const double entropies[ROWS] = {log(4), 0, none, log(3)}, lses[ROWS] = {log(4), 0, -INF, log(3)};
            for (int row = 0; row < ROWS; row++) {
                for (int k = 0; k < COUNT; k++)
                    CHECK(test_close(log_prob[row][k], expected[row][k], 1e-15L), "log_prob[%d][%d] is %g", row, k,
                          log_prob[row][k]);
                CHECK(test_close(entropy[row], entropies[row], 1e-15L), "entropy[%d] is %g", row, entropy[row]);
                CHECK(test_close(lse[row], lses[row], 1e-15L), "lse[%d] is %g", row, lse[row]);
            }
            for (int bad = 0; bad < 2; bad++) { /* first as it is, then with the one out of range made good */
                indices[0][1] = bad ? 2 : 5;
                CHECK(onepass_token_log_probs_backward(handles[level], &l, &i, &up, NULL, NULL, &o, &to) == ONEPASS_OK,
                      "%s", onepass_last_error());
                const double slopes[ROWS][COLUMNS] = {
                    {-0.5, -0.5, -0.5, 1.5, 0}, {0, 0, 0, 0, 0}, {none, none, none, none, 0}, {0, 1, 0, -1, 0}};
                for (int row = 0; row < ROWS; row++)
                    for (int c = 0; c < COLUMNS; c++) {
                        double slope = row == 0 && !bad && c < 4 ? (double)NAN : slopes[row][c];
                        CHECK(test_close(gradient[row][c], slope, 1e-15L), "grad_logits[%d][%d] is %g, expected %g",
                              row, c, gradient[row][c], slope);
                    }
            }
            indices[0][1] = 5;
        }
}

static void test_empty(void)
{
    static const struct {
        int64_t rows, columns;
        onepass_reduction reduction;
        double strict, finite, cross_entropy;
    } lines[] = {
        {0, 5, ONEPASS_SUM, 0, 0, 0},
        {0, 5, ONEPASS_MEAN, NAN, NAN, NAN},
        {0, 5, ONEPASS_BATCHMEAN, NAN, NAN, NAN},
        {0, 5, ONEPASS_VALID, NAN, 0, NAN},
        {3, 0, ONEPASS_SUM, 0, 0, NAN},
        {3, 0, ONEPASS_MEAN, NAN, NAN, NAN},
        {3, 0, ONEPASS_BATCHMEAN, 0, 0, NAN},
        {3, 0, ONEPASS_VALID, 0, 0, NAN},
        {3, 0, ONEPASS_ROWS, 0, 0, NAN},
    };
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (size_t i = 0; i < sizeof lines / sizeof lines[0] && handles[level]; i++)
            for (int finite = 0; finite < 2; finite++) {
                int64_t shape[] = {lines[i].rows, lines[i].columns}, labels[3] = {0, 0, 0}, argmax[3] = {9, 9, 9};
                double value[3] = {5, 5, 5}, lse[3] = {5, 5, 5}, entropy[3] = {5, 5, 5};
                int is_rows = lines[i].reduction == ONEPASS_ROWS;
                onepass_tensor none = tensor_of(case_f32, NULL, 2, shape);
                onepass_tensor v = tensor_of(case_f64, value, is_rows, shape),
                               a = tensor_of(case_i64, argmax, 1, shape);
                onepass_tensor s = tensor_of(case_f64, lse, 1, shape), e = tensor_of(case_f64, entropy, 1, shape);
                onepass_tensor l = tensor_of(case_i64, labels, 1, shape);
                onepass_logits_options o = {.size = sizeof o,
                                            .reduction = lines[i].reduction,
                                            .semantics = (onepass_semantics)finite,
                                            .lse = &s,
                                            .entropy = &e,
                                            .argmax = &a};
                test_context("level %s, %" PRId64 " x %" PRId64 ", reduction %d, semantics %d",
                             onep_level_name((onep_level)level), shape[0], shape[1], (int)lines[i].reduction, finite);
                for (int divergence = 0; divergence <= ONEPASS_TOTAL_VARIATION; divergence++) {
                    o.divergence = (onepass_divergence)divergence;
                    o.mixture = divergence >= ONEPASS_JS && divergence < ONEPASS_TOTAL_VARIATION ? 0.5 : 0;
                    CHECK(onepass_divergence_logits_logits(handles[level], &none, &none, &o, &v, NULL, NULL) ==
                              ONEPASS_OK,
                          "%s", onepass_last_error());
                    double expected = finite ? lines[i].finite : lines[i].strict;
                    for (int row = 0; row < (is_rows ? 3 : 1); row++)
                        CHECK(test_close(value[row], expected, 0), "divergence %d: %g, expected %g", divergence,
                              value[row], expected);
                }
                for (int row = 0; row < lines[i].rows; row++)
                    CHECK(lse[row] == -INF && entropy[row] == 0 && argmax[row] == 0, "lse %g, entropy %g, argmax %d",
                          lse[row], entropy[row], (int)argmax[row]);
                o.divergence = (onepass_divergence)0;
                o.mixture = 0;
                CHECK(onepass_cross_entropy_logits_labels(handles[level], &none, &l, &o, &v, NULL) == ONEPASS_OK, "%s",
                      onepass_last_error());
                double expected =
                    finite && lines[i].rows == 0 && lines[i].reduction == ONEPASS_VALID ? 0 : lines[i].cross_entropy;
                CHECK(test_close(value[0], expected, 0), "cross-entropy: %g, expected %g", value[0], expected);
            }
}

/* ---- rules of their own ------------------------------------------------------------------------------------------ */

static op_case legal;

static void begin_legal(const char *name)
{
    case_begin(&legal, name);
    legal.seed = 3;
    case_settle(&legal);
}

/* The call as it is now is refused, nothing is written, and the message has all these words. */
static void refused(onepass_status expected, const char *argument, const char *rule)
{
    onepass_status status;
    CHECK(case_make(&legal), "no memory");
    case_call(&legal, handles[ONEP_REF], 0x55, &test_judge, &status);
    const char *message = onepass_last_error();
    test_context("%s, rules", legal.name);
    CHECK(status == expected, "got %s, expected %s for %s: %s", onepass_status_name(status),
          onepass_status_name(expected), argument, message);
    CHECK(strstr(message, argument) && strstr(message, rule) && strstr(message, legal.name),
          "the message lacks \"%s\" or \"%s\": %s", argument, rule, message);
}

static void refuse_option(const char *name, int option, double x, const char *rule)
{
    begin_legal(name);
    legal.options[option] = x;
    refused(ONEPASS_INVALID_ARGUMENT, onepass_operator_option(legal.op, option)->name, rule);
}

static void test_rules(void)
{
    static const char *const all[] = {"divergence_logits_logits", "divergence_logits_probs",
                                      "divergence_logits_log_probs", "cross_entropy_logits_labels"};
    static const double wrong_temperatures[] = {-1, NAN, INF};
    for (int i = 0; i < 4; i++) {
        const char *name = all[i];
        begin_legal(name);
        legal.options[LOGITS_REDUCTION] = ONEPASS_NONE;
        refused(ONEPASS_UNSUPPORTED, "options.reduction", "ONEPASS_ROWS");
        for (int k = 0; k < 3; k++) {
            refuse_option(name, LOGITS_TEMPERATURE, wrong_temperatures[k], "finite and above 0");
            refuse_option(name, LOGITS_SOFTCAP, wrong_temperatures[k], "finite and above 0");
        }
        refuse_option(name, LOGITS_Z_LOSS, NAN, "finite");
        refuse_option(name, LOGITS_ENTROPY_BONUS, INF, "finite");
        refuse_option(name, LOGITS_SMOOTHING, 1.5, "between 0 and 1");
        refuse_option(name, LOGITS_SMOOTHING, NAN, "between 0 and 1");
        refuse_option(name, LOGITS_COLUMNS, 8, "number of columns");
        refuse_option(name, LOGITS_COLUMNS, -1, "number of columns");
        refuse_option(name, LOGITS_COLUMNS, 2.5, "whole number");
        refuse_option(name, LOGITS_IGNORE_INDEX, 5, "has_ignore_index");
        refuse_option(name, LOGITS_IGNORE_INDEX, 0.5, "whole number");
        refuse_option(name, LOGITS_DIVISOR, 3, "");
        begin_legal(name);
        legal.options[LOGITS_REDUCTION] = ONEPASS_DIVISOR;
        refused(ONEPASS_INVALID_ARGUMENT, "options.divisor", "not 0");
        legal.options[LOGITS_DIVISOR] = 2;
        legal.argument[LOGITS_DIVISOR_TENSOR].given = 1;
        refused(ONEPASS_INVALID_ARGUMENT, "options.divisor", "divisor_tensor");
        begin_legal(name);
        legal.argument[LOGITS_DIVISOR_TENSOR].given = 1;
        refused(ONEPASS_INVALID_ARGUMENT, "options.divisor_tensor", "ONEPASS_DIVISOR");
        begin_legal(name);
        legal.argument[LOGITS_MADE_FOR].given = 1;
        refused(ONEPASS_INVALID_ARGUMENT, "options.grad_made_for", "value");
        legal.argument[LOGITS_VALUE].given = 0;
        legal.argument[LOGITS_LSE].given = 1;
        refused(ONEPASS_INVALID_ARGUMENT, "options.grad_made_for", "options.lse");
        legal.argument[LOGITS_LSE].given = 0;
        legal.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
        refused(ONEPASS_UNSUPPORTED, "options.grad_made_for", "one value");
        if (i == 3)
            continue;
        static const double mixtures[] = {0, 1, -0.5, NAN};
        for (int k = 0; k < 4; k++) {
            begin_legal(name);
            legal.options[LOGITS_DIVERGENCE] = ONEPASS_JS;
            legal.options[LOGITS_MIXTURE] = mixtures[k];
            refused(ONEPASS_INVALID_ARGUMENT, "options.mixture", "0");
        }
        refuse_option(name, LOGITS_MIXTURE, 0.5, "0");
        refuse_option(name, LOGITS_LABEL_WEIGHT, 1, "options.labels");
        refuse_option(name, LOGITS_SMOOTHING, 0.1, "options.labels");
        begin_legal(name);
        legal.argument[LOGITS_CLASS_WEIGHTS].given = 1;
        refused(ONEPASS_INVALID_ARGUMENT, "options.class_weights", "options.labels");
        begin_legal(name);
        legal.argument[LOGITS_LOG_PROB].given = 1;
        refused(ONEPASS_INVALID_ARGUMENT, "options.log_prob", "options.labels");
        if (i == 0)
            continue;
        refuse_option(name, LOGITS_TARGET_TEMPERATURE, 2, "not logits");
        refuse_option(name, LOGITS_TARGET_SOFTCAP, 2, "not logits");
        begin_legal(name);
        legal.argument[LOGITS_TARGET_LSE].given = 1;
        refused(ONEPASS_UNSUPPORTED, "options.target_lse", "logits");
    }
    begin_legal("token_log_probs");
    legal.argument[TOKEN_INDICES].given = 0;
    refused(ONEPASS_INVALID_ARGUMENT, "indices", "log_prob");
    begin_legal("token_log_probs_backward");
    legal.argument[TOKEN_INDICES].given = 0;
    refused(ONEPASS_INVALID_ARGUMENT, "indices", "grad_log_prob");
    refuse_option("token_log_probs", TOKEN_TEMPERATURE, -1, "finite and above 0");
    refuse_option("token_log_probs", TOKEN_COLUMNS, 8, "number of columns");
    refuse_option("token_log_probs", TOKEN_IGNORE_INDEX, 1, "has_ignore_index");
}

/* What is for divergences alone has no place in the options of a cross-entropy. */
static void test_cross_entropy_options(void)
{
    float x[] = {1, 2}, value = 7;
    int64_t label = 0, shape[] = {1, 2};
    onepass_tensor p = tensor_of(case_f32, x, 2, shape), l = tensor_of(case_i64, &label, 1, shape);
    onepass_tensor v = tensor_of(case_f32, &value, 0, NULL);
    static const char *const names[] = {
        "divergence",     "mixture", "divergence_weight", "target_temperature", "label_temperature",
        "target_softcap", "labels",  "target_lse",        "target_entropy"};
    for (int i = 0; i < 9; i++) {
        onepass_logits_options o = {.size = sizeof o};
        o.divergence = i == 0 ? ONEPASS_JS : ONEPASS_KL;
        o.mixture = i == 1;
        o.divergence_weight = i == 2;
        o.target_temperature = i == 3;
        o.label_temperature = i == 4;
        o.target_softcap = i == 5;
        o.labels = i == 6 ? &l : NULL;
        o.target_lse = i == 7 ? &v : NULL;
        o.target_entropy = i == 8 ? &v : NULL;
        test_context("cross-entropy with options.%s", names[i]);
        CHECK(onepass_cross_entropy_logits_labels(handles[ONEP_REF], &p, &l, &o, &v, NULL) == ONEPASS_INVALID_ARGUMENT,
              "it was accepted");
        CHECK(strstr(onepass_last_error(), names[i]) && value == 7, "%s; value %g", onepass_last_error(),
              (double)value);
    }
}

int main(void)
{
    test_begin("test_logits_special");
    test_print_levels();
    for (int level = 0; level < ONEP_LEVELS; level++)
        handles[level] = onep_level_runs((onep_level)level) ? test_handle((onep_level)level, 1) : NULL;
    test_rules();
    test_cross_entropy_options();
    test_ties();
    test_tokens();
    test_empty();
    test_labels();
    test_table();
    for (int level = 0; level < ONEP_LEVELS; level++)
        onepass_destroy(handles[level]);
    return test_end();
}
