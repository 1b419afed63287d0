/*
 * Divergence from a teacher of k columns: every level against the exact results of cases/ with every kind of values,
 * every rule for what is outside and both directions; gradients against finite differences; the dense divergence as
 * another answer to the same question; rows whose results are known by heart, in every place of a vector; values that
 * are never negative; entries whose order, padding and repetition change nothing; the same bits in place, of other
 * layouts and with other threads; and what is refused.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/logits.h"
#include "entry_points.h"
#include "level_cases.h"

enum { FORMS = ONEPASS_TOP_LOGITS + 1, OUTSIDES = ONEPASS_OUTSIDE_SUBSET + 1, MOST_ENTRIES = 4096 };

/* ---- against exact results --------------------------------------------------------------------------------------- */

static void begin_case(op_case *c, onepass_dtype type, int64_t rows, int64_t columns, int64_t entries, int family,
                       int amount, uint64_t seed)
{
    case_begin(c, "divergence_logits_top_k");
    c->leading[0] = rows;
    c->extents['C' - 'A'] = columns;
    c->extents['K' - 'A'] = entries;
    c->family = family;
    c->amount = amount;
    c->seed = seed;
    for (int i = 0; i < c->arguments; i++) {
        c->argument[i].given = i != LOGITS_MADE_FOR;
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = type;
    }
    c->argument[LOGITS_TOP_INDICES].dtype = seed % 2 ? case_i32 : case_i64;
    c->options[LOGITS_REDUCTION] = (double)(seed / 43 % 7);
}

static onepass_dtype type_at(int64_t i)
{
    const onepass_dtype types[] = {case_f32, case_bf16, case_f64, case_f16};
    return types[i % 4];
}

/* Every kind of values with every rule, both directions and every family. */
static void test_rules(test_random *random)
{
    static op_case c;
    int turn = 0;
    for (int form = 0; form < FORMS; form++)
        for (int outside = 0; outside < OUTSIDES; outside++)
            for (int reverse = 0; reverse < 2; reverse++)
                for (int family = 0; family <= LOGITS_SPECIAL; family++, turn++) {
                    if (test_quick() && turn % 2)
                        continue;
                    begin_case(&c, type_at(test_random_below(random, 4)), 7, 37, 1 + test_random_below(random, 20),
                               family, turn % 3 ? 50 : 0, test_random_bits(random));
                    c.options[LOGITS_DIVERGENCE] = reverse;
                    c.options[LOGITS_TOP_FORM] = form;
                    c.options[LOGITS_OUTSIDE] = outside;
                    if (turn % 2)
                        c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
                    case_settle(&c);
                    check_everywhere(&c);
                }
}

/* Rows around every vector and strip with no entries, one, some, all of their columns, and more entries than those. */
static void test_sizes(test_random *random)
{
    static const int64_t long_ones[] = {127, 255, 256, 257, 511, 513, 1025, 5000};
    static op_case c;
    for (int i = 0; i < 40 + 8; i++) {
        int64_t columns = i < 40 ? i : long_ones[i - 40];
        int64_t entries[] = {0, 1, columns / 3, columns < MOST_ENTRIES ? columns : MOST_ENTRIES, columns + 2};
        for (int k = 0; k < 5; k++) {
            if ((test_quick() && (i + k) % 3) || entries[k] > MOST_ENTRIES)
                continue;
            begin_case(&c, type_at(test_random_below(random, 4)), 2, columns, entries[k],
                       (int)test_random_below(random, LOGITS_DATA_KINDS), 50, test_random_bits(random));
            for (int a = 0; a < c.arguments; a++)
                c.argument[a].guard = k % 2 ? CASE_PAGE_AFTER : CASE_PAGE_BEFORE;
            case_settle(&c);
            check_everywhere(&c);
        }
    }
}

/* Any layout, alignment and mixture of types. */
static void test_layouts(test_random *random)
{
    static op_case c;
    for (int i = 0; i < (test_quick() ? 40 : 120); i++) {
        begin_case(&c, case_f32, 4, 1 + test_random_below(random, 300), 1 + test_random_below(random, 12),
                   (int)test_random_below(random, LOGITS_SPECIAL + 1), 50, test_random_bits(random));
        case_shuffle(&c, random);
        c.argument[LOGITS_MADE_FOR].given = 0;
        c.options[LOGITS_DIVERGENCE] = i % 2;
        c.options[LOGITS_SEMANTICS] = i / 2 % 2;
        case_settle(&c);
        check_everywhere(&c);
    }
}

/* The same bits over the predictions as beside them, of strided tensors, int32 indices and any number of threads. */
static void test_bits(test_random *random)
{
    static op_case c, other;
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (int i = 0; handles[level] && i < 12; i++) {
            begin_case(&c, type_at(i), 5, 1 + test_random_below(random, 600), 1 + test_random_below(random, 12),
                       (int)test_random_below(random, LOGITS_DATA_KINDS), 50, test_random_bits(random));
            c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
            c.argument[LOGITS_TOP_INDICES].dtype = case_i64;
            case_settle(&c);
            begin_case(&other, type_at(i), 5, case_extent(&c, 'C'), case_extent(&c, 'K'), c.family, 0, c.seed);
            memcpy(other.options, c.options, sizeof other.options);
            for (int a = 0; a < c.arguments; a++)
                other.argument[a].layout = i % 2 ? CASE_COLUMN_STEP : CASE_COMPACT;
            other.argument[LOGITS_TOP_INDICES].dtype = case_i32;
            other.argument[LOGITS_GRAD_PREDICTIONS].over = 1 + LOGITS_PREDICTIONS;
            for (int a = 0; a < c.arguments; a++)
                other.argument[a].given = c.argument[a].given;
            CHECK(case_make(&c) && case_make(&other), "no memory");
            test_context("level %s, bits, case %d", onep_level_name((onep_level)level), i);
            onepass_handle *handle = test_handle((onep_level)level, 1 + i % 3);
            onepass_status first, second;
            case_call(&c, handles[level], 0xff, &test_judge, &first);
            case_call(&other, handle, 0x55, &test_judge, &second);
            CHECK(first == ONEPASS_OK && second == ONEPASS_OK, "%s", onepass_last_error());
            onepass_destroy(handle);
            for (int a = 0; a < c.arguments; a++)
                for (int64_t k = 0; c.argument[a].given && case_is_written(&c, a) && k < c.argument[a].count; k++) {
                    double x = case_get(&c, a, k), y = case_get(&other, a, k);
                    if (!CHECK(x == y || (isnan(x) && isnan(y)), "%s[%" PRId64 "]: %.17g and %.17g",
                               c.argument[a].info->name, k, x, y))
                        break;
                }
        }
}

/* ---- one row at a time ------------------------------------------------------------------------------------------- */

enum { MOST_COLUMNS = 600 };

typedef struct one_row {
    onepass_top_values form;
    onepass_outside outside;
    onepass_divergence divergence;
    onepass_semantics semantics;
    double temperature;
    int64_t columns, entries;
    double x[MOST_COLUMNS], y[MOST_COLUMNS];
    int64_t indices[MOST_COLUMNS];
    double value, gradient[MOST_COLUMNS]; /* what comes out */
} one_row;

static onepass_tensor tensor_of(void *data, onepass_dtype type, int32_t ndim, int64_t *shape)
{
    return (onepass_tensor){.data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = type, .shape = shape};
}

static onepass_status run_one(one_row *r, onepass_handle *handle)
{
    int64_t columns[] = {1, r->columns}, entries[] = {1, r->entries};
    onepass_tensor x = tensor_of(r->x, case_f64, 2, columns), y = tensor_of(r->y, case_f64, 2, entries);
    onepass_tensor indices = tensor_of(r->indices, case_i64, 2, entries);
    onepass_tensor value = tensor_of(&r->value, case_f64, 0, NULL), g = tensor_of(r->gradient, case_f64, 2, columns);
    onepass_logits_options o = {.size = sizeof o,
                                .reduction = ONEPASS_SUM,
                                .semantics = r->semantics,
                                .divergence = r->divergence,
                                .temperature = r->temperature,
                                .top_values = r->form,
                                .outside = r->outside};
    return onepass_divergence_logits_top_k(handle, &x, &y, &indices, &o, &value, &g);
}

/* Logits, and a teacher whose probabilities add up to `mass` over `entries` different columns in any order. */
static void draw_one(one_row *r, int64_t columns, int64_t entries, double mass, test_random *random)
{
    double sum = 0;
    r->columns = columns;
    r->entries = entries;
    for (int64_t i = 0; i < columns; i++)
        r->x[i] = test_random_between(random, -4, 4);
    for (int64_t i = 0; i < entries; i++) {
        int is_new = 0;
        while (!is_new) {
            r->indices[i] = test_random_below(random, columns);
            is_new = 1;
            for (int64_t j = 0; j < i; j++)
                is_new &= r->indices[j] != r->indices[i];
        }
        r->y[i] = test_random_between(random, 0.1, 1);
        sum += r->y[i];
    }
    for (int64_t i = 0; i < entries; i++) {
        double p = r->y[i] / sum * mass;
        r->y[i] = r->form == ONEPASS_TOP_PROBS ? p : log(p);
    }
}

/* Every form with every rest, for KL and then for reverse KL. */
enum { CHOICES = FORMS * OUTSIDES * 2 };

static one_row choice_of(int i)
{
    return (one_row){.form = (onepass_top_values)(i % FORMS),
                     .outside = (onepass_outside)(i / FORMS % OUTSIDES),
                     .divergence = i / FORMS / OUTSIDES ? ONEPASS_REVERSE_KL : ONEPASS_KL};
}

static void run_well(one_row *r, int level)
{
    test_context("level %s, values %d, outside %d, divergence %d, %" PRId64 " columns, %" PRId64 " entries",
                 onep_level_name((onep_level)level), (int)r->form, (int)r->outside, (int)r->divergence, r->columns,
                 r->entries);
    CHECK(run_one(r, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
}

static void test_finite_differences(test_random *random)
{
    static one_row r, moved;
    for (int i = 0; i < CHOICES; i++)
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            r = choice_of(i);
            r.temperature = 1.7;
            int has_rest = r.form != ONEPASS_TOP_LOGITS && r.outside == ONEPASS_OUTSIDE_TAIL;
            int needs_all = r.divergence == ONEPASS_REVERSE_KL && !has_rest && r.outside != ONEPASS_OUTSIDE_SUBSET;
            draw_one(&r, 9, needs_all ? 9 : 4, 0.8, random);
            run_well(&r, level);
            for (int64_t k = 0; k < r.columns; k++) {
                /* Truncation is below step^2 = 1e-10 of third derivatives below 10, rounding 1e-15 / step. */
                const double step = 1e-5;
                double values[2];
                for (int side = 0; side < 2; side++) {
                    moved = r;
                    moved.x[k] += side ? step : -step;
                    CHECK(run_one(&moved, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
                    values[side] = moved.value;
                }
                double slope = (values[1] - values[0]) / (2 * step);
                CHECK(test_close(r.gradient[k], slope, 2e-9L), "column %" PRId64 " is %.12g, differences give %.12g", k,
                      r.gradient[k], slope);
            }
        }
}

/* Every column named: what the divergence from probabilities of all columns says. And named or not: ZERO is a target
 * that is 0 elsewhere. */
static void test_against_dense(test_random *random)
{
    static one_row r;
    static double dense[MOST_COLUMNS], gradient[MOST_COLUMNS];
    for (int i = 0; i < 24; i++)
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            int64_t columns = 1 + test_random_below(random, 300);
            int names_all = i % 2, reverse = names_all && i / 2 % 2;
            r = (one_row){.form = i % 3 ? ONEPASS_TOP_PROBS : ONEPASS_TOP_LOG_PROBS,
                          .outside = names_all ? (onepass_outside)(i / 4 % 2) : ONEPASS_OUTSIDE_ZERO,
                          .divergence = reverse ? ONEPASS_REVERSE_KL : ONEPASS_KL,
                          .temperature = 0.8};
            draw_one(&r, columns, names_all ? columns : 1 + columns / 4, i % 5 ? 1 : 1.5, random);
            run_well(&r, level);
            memset(dense, 0, sizeof dense);
            for (int64_t k = 0; k < r.entries; k++)
                dense[r.indices[k]] = r.form == ONEPASS_TOP_PROBS ? r.y[k] : exp(r.y[k]);
            int64_t shape[] = {1, columns};
            double value;
            onepass_tensor x = tensor_of(r.x, case_f64, 2, shape), y = tensor_of(dense, case_f64, 2, shape);
            onepass_tensor v = tensor_of(&value, case_f64, 0, NULL), g = tensor_of(gradient, case_f64, 2, shape);
            onepass_logits_options o = {
                .size = sizeof o, .reduction = ONEPASS_SUM, .divergence = r.divergence, .temperature = r.temperature};
            CHECK(onepass_divergence_logits_probs(handles[level], &x, &y, &o, &v, &g, NULL) == ONEPASS_OK, "%s",
                  onepass_last_error());
            CHECK(test_close(r.value, value, 1e-13L), "%.17g, all columns give %.17g", r.value, value);
            for (int64_t k = 0; k < columns; k++)
                CHECK(test_close(r.gradient[k], gradient[k], 1e-14L), "column %" PRId64 ": %.17g, not %.17g", k,
                      r.gradient[k], gradient[k]);
        }
}

/* T that is S: nothing, whichever columns are named (all of them are a target as it was passed). T near it or far away:
 * never less than nothing. */
static void test_never_negative(test_random *random)
{
    static const double distances[] = {0, 1e-9, 1e-6, 1e-3, 1};
    static one_row r;
    for (int i = 0; i < 60; i++)
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            int64_t columns = 2 + test_random_below(random, 500), entries = 1 + test_random_below(random, columns - 1);
            double distance = distances[i % 5], sum = 0;
            r = (one_row){.form = i / 5 % 2 ? ONEPASS_TOP_LOGITS : ONEPASS_TOP_LOG_PROBS,
                          .divergence = i / 10 % 2 ? ONEPASS_REVERSE_KL : ONEPASS_KL,
                          .temperature = 1};
            r.outside = r.form == ONEPASS_TOP_LOGITS ? ONEPASS_OUTSIDE_SUBSET : ONEPASS_OUTSIDE_TAIL;
            draw_one(&r, columns, entries, 1, random);
            for (int64_t k = 0; k < columns; k++)
                sum += exp(r.x[k]);
            double shift = r.form == ONEPASS_TOP_LOGITS ? -3 : log(sum);
            for (int64_t k = 0; k < entries; k++)
                r.y[k] = r.x[r.indices[k]] - shift - distance * test_random_unit(random);
            run_well(&r, level);
            CHECK(r.value >= 0, "%g", r.value);
            /* The sum of up to 501 numbers is off by 501u = 6e-14 at most; D is about the square of that. */
            CHECK(distance != 0 || r.value < 1e-26, "%g where both are alike", r.value);
        }
}

/* Order, padding and a column named twice change nothing but the last digits. */
static void test_entries(test_random *random)
{
    static one_row r, other;
    for (int i = 0; i < CHOICES; i++)
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            r = choice_of(i);
            draw_one(&r, 300, 20, 0.7, random);
            run_well(&r, level);
            other = r;
            for (int64_t k = 0; k < 20; k++) { /* backwards, each in two halves, with padding between them */
                double y = r.y[19 - k], half = r.form == ONEPASS_TOP_PROBS ? y / 2 : y - log(2);
                for (int part = 0; part < 3; part++) {
                    other.y[3 * k + part] = part == 2 ? (double)NAN : half;
                    other.indices[3 * k + part] = part == 2 ? -1 - k : r.indices[19 - k];
                }
            }
            other.entries = 60;
            run_well(&other, level);
            CHECK(r.value == other.value || test_close(r.value, other.value, 1e-13L), "%.17g, not %.17g", other.value,
                  r.value);
            for (int64_t k = 0; k < 300; k++)
                CHECK((isnan(r.gradient[k]) && isnan(other.gradient[k])) || r.gradient[k] == other.gradient[k] ||
                          test_close(r.gradient[k], other.gradient[k], 1e-13L),
                      "column %" PRId64 ": %.17g, not %.17g", k, other.gradient[k], r.gradient[k]);
        }
}

/* ---- special values ---------------------------------------------------------------------------------------------- */

static int is_like(double x, double expected)
{
    return isnan(expected) ? isnan(x) : isinf(expected) ? x == expected : test_close(x, expected, 1e-14L);
}

/* Two columns are named, `at` and the one after it; all others are outside. */
static void special(one_row *r, int level, int64_t at, double value, double named, double outside)
{
    run_well(r, level);
    CHECK(is_like(r->value, value), "value %g, not %g", r->value, value);
    for (int64_t k = 0; k < r->columns; k++) {
        double expected = k == at || k == at + 1 ? named : outside;
        CHECK(is_like(r->gradient[k], expected), "gradient of column %" PRId64 ": %g, not %g", k, r->gradient[k],
              expected);
    }
}

/* Six columns alike; what the rest of this file cannot know by an independent sum is written out here. */
static void special_rows(int level, int64_t at)
{
    const double nan = (double)NAN, inf = (double)INFINITY;
    one_row r = {.form = ONEPASS_TOP_PROBS, .columns = 6, .entries = 2, .y = {0.2, 0.2}, .indices = {at + 1, at}};
    /* S is 1/6 each: KL = 0.4 log(6/5) + 0.6 log(0.6 / (2/3)) */
    special(&r, level, at, 0.4 * log(1.2) + 0.6 * log(0.9), 1.0 / 6 - 0.2, 0.1 / 6);
    r.outside = ONEPASS_OUTSIDE_ZERO;
    special(&r, level, at, 0.4 * log(1.2), 0.4 / 6 - 0.2, 0.4 / 6);
    r.outside = ONEPASS_OUTSIDE_RENORMALISED;
    special(&r, level, at, log(3), 1.0 / 6 - 0.5, 1.0 / 6);
    r.outside = ONEPASS_OUTSIDE_SUBSET;
    special(&r, level, at, 0, 0, 0);
    r.divergence = ONEPASS_REVERSE_KL;
    special(&r, level, at, 0, 0, 0);
    r.outside = ONEPASS_OUTSIDE_TAIL;
    double d = log(5.0 / 6) / 3 + 2 * log(1 / 0.9) / 3;
    special(&r, level, at, d, (log(5.0 / 6) - d) / 6, (log(1 / 0.9) - d) / 6);
    r.outside = ONEPASS_OUTSIDE_ZERO; /* S has mass where T has none */
    special(&r, level, at, inf, -inf, nan);
    r.outside = ONEPASS_OUTSIDE_RENORMALISED;
    special(&r, level, at, inf, -inf, nan);
    r.outside = ONEPASS_OUTSIDE_TAIL; /* T adds up to 1 or more: so too */
    r.y[0] = r.y[1] = 0.5;
    special(&r, level, at, inf, -inf, nan);
    r.y[0] = r.y[1] = 0.75; /* W = 1.5 */
    r.divergence = ONEPASS_KL;
    special(&r, level, at, 1.5 * log(4.5), 1.5 / 6 - 0.75, 1.5 / 6);

    /* nothing outside has mass */
    r.y[0] = r.y[1] = 0.2;
    for (int64_t k = 0; k < 6; k++)
        r.x[k] = k == at || k == at + 1 ? 0 : -inf;
    special(&r, level, at, inf, 0.5 - 0.2, 0);
    r.divergence = ONEPASS_REVERSE_KL;
    special(&r, level, at, log(2.5), 0, 0);
    r.outside = ONEPASS_OUTSIDE_ZERO;
    special(&r, level, at, log(2.5), 0, 0);
    /* and nothing in the set */
    for (int64_t k = 0; k < 6; k++)
        r.x[k] = k == at || k == at + 1 ? -inf : 0;
    r.outside = ONEPASS_OUTSIDE_TAIL;
    special(&r, level, at, log(1 / 0.6), 0, 0);
    r.divergence = ONEPASS_KL;
    special(&r, level, at, inf, -0.2, 0.25 - 0.6 / 4);
    for (int finite = 0; finite < 2; finite++) {
        r.semantics = finite ? ONEPASS_FINITE : ONEPASS_STRICT;
        r.outside = ONEPASS_OUTSIDE_SUBSET;
        special(&r, level, at, finite ? 0 : nan, finite ? 0 : nan, finite ? 0 : nan);
    }

    /* a set that is empty: two ways of padding */
    memset(r.x, 0, sizeof r.x);
    for (int64_t i = 0; i < 2; i++)
        r.indices[i] = -1 - 99 * i;
    for (int finite = 0; finite < 2; finite++) {
        double none = finite ? 0 : nan;
        r.semantics = finite ? ONEPASS_FINITE : ONEPASS_STRICT;
        r.divergence = ONEPASS_KL;
        r.outside = ONEPASS_OUTSIDE_TAIL;
        special(&r, level, at, 0, 0, 0);
        r.outside = ONEPASS_OUTSIDE_ZERO;
        special(&r, level, at, 0, 0, 0);
        r.outside = ONEPASS_OUTSIDE_RENORMALISED;
        special(&r, level, at, none, none, none);
        r.outside = ONEPASS_OUTSIDE_SUBSET;
        special(&r, level, at, none, none, none);
        r.divergence = ONEPASS_REVERSE_KL;
        r.outside = ONEPASS_OUTSIDE_TAIL;
        special(&r, level, at, 0, 0, 0);
        r.outside = ONEPASS_OUTSIDE_ZERO;
        special(&r, level, at, inf, nan, nan);
        r.form = ONEPASS_TOP_LOGITS;
        special(&r, level, at, none, none, none);
        r.form = ONEPASS_TOP_PROBS;
    }

    /* values and logits that are no numbers, and an index that is no column */
    static const double bad_values[] = {-0.1, NAN, INFINITY};
    r.outside = ONEPASS_OUTSIDE_TAIL;
    r.divergence = ONEPASS_KL;
    for (int i = 0; i < 3; i++) {
        r.indices[0] = at;
        r.indices[1] = at + 1;
        r.y[1] = bad_values[i];
        special(&r, level, at, nan, nan, nan);
        r.y[1] = 0.2;
        if (i > 0) {
            r.x[(at + 3) % 6] = bad_values[i];
            special(&r, level, at, nan, nan, nan);
            r.outside = ONEPASS_OUTSIDE_SUBSET;
            special(&r, level, at, nan, nan, nan);
            r.outside = ONEPASS_OUTSIDE_TAIL;
            r.x[(at + 3) % 6] = 0;
        }
        r.indices[1] = i == 0 ? 6 : i == 1 ? 7 : INT64_C(1) << 40;
        special(&r, level, at, nan, nan, nan);
    }
}

/* A tail of 1e-30 in fp32 that is a sum over many columns: its digits, and those of what follows from it. */
static void test_small_tail(void)
{
    enum { COLUMNS = 1000 };
    static float x[COLUMNS], gradient[COLUMNS];
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        double y[] = {0.5, 0.25}, value;
        int32_t indices[] = {900, 17};
        for (int k = 0; k < COLUMNS; k++)
            x[k] = k == 17 || k == 900 ? 0 : -69;
        int64_t shape[] = {COLUMNS}, entries[] = {2};
        onepass_tensor p = tensor_of(x, case_f32, 1, shape), t = tensor_of(y, case_f64, 1, entries);
        onepass_tensor i = tensor_of(indices, case_i32, 1, entries), v = tensor_of(&value, case_f64, 0, NULL);
        onepass_tensor g = tensor_of(gradient, case_f32, 1, shape);
        onepass_logits_options o = {.size = sizeof o,
                                    .reduction = ONEPASS_SUM,
                                    .divergence = ONEPASS_REVERSE_KL,
                                    .top_values = ONEPASS_TOP_PROBS};
        test_context("level %s, a small tail", onep_level_name((onep_level)level));
        CHECK(onepass_divergence_logits_top_k(handles[level], &p, &t, &i, &o, &v, &g) == ONEPASS_OK, "%s",
              onepass_last_error());
        double rest = 998 * exp(-69) / 2, d = -0.5 * log(0.5); /* 0.5 log(1) + 0.5 log(2) */
        double expected = exp(-69) / 2 * (log(rest / 0.25) - d);
        CHECK(test_close(value, d, 1e-14L), "%.17g, not %.17g", value, d);
        for (int k = 0; k < COLUMNS; k++)
            if (k != 17 && k != 900 &&
                !CHECK(test_close(gradient[k], expected, 4e-7L * fabsl((long double)expected)),
                       "column %d: %.9g, not %.9g", k, (double)gradient[k], expected))
                break;
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void test_refusals(void)
{
    onepass_handle *handle = handles[ONEP_REF];
    static double y[MOST_ENTRIES + 1];
    static int64_t indices[MOST_ENTRIES + 1];
    double x[3] = {0, 1, 2}, value = 5;
    for (int64_t i = 0; i <= MOST_ENTRIES; i++) {
        y[i] = 1.0 / MOST_ENTRIES / 2;
        indices[i] = i % 3;
    }
    int64_t columns[] = {3}, entries[] = {MOST_ENTRIES + 1};
    onepass_tensor p = tensor_of(x, case_f64, 1, columns), t = tensor_of(y, case_f64, 1, entries);
    onepass_tensor i = tensor_of(indices, case_i64, 1, entries), v = tensor_of(&value, case_f64, 0, NULL);
    onepass_logits_options o = {.size = sizeof o, .reduction = ONEPASS_SUM, .top_values = ONEPASS_TOP_PROBS};
    test_context("refusals");
    CHECK(onepass_divergence_logits_top_k(handle, &p, &t, &i, &o, &v, NULL) == ONEPASS_UNSUPPORTED && value == 5 &&
              strstr(onepass_last_error(), "4097") && strstr(onepass_last_error(), "at most 4096"),
          "%s", onepass_last_error());
    entries[0] = MOST_ENTRIES; /* as many as there may be: 1/6 for each column, with repetitions */
    CHECK(onepass_divergence_logits_top_k(handle, &p, &t, &i, &o, &v, NULL) == ONEPASS_OK, "%s", onepass_last_error());
    double sum = 1 + exp(-1) + exp(-2), expected = 0;
    for (int k = 0; k < 3; k++) {
        double mass = (k == 0 ? 1366 : 1365) * y[0];
        expected += mass * log(mass / (exp(k - 2) / sum));
    }
    CHECK(test_close(value, expected, 1e-13L), "%.17g, not %.17g", value, expected);
    static const struct {
        const char *field;
        onepass_logits_options options;
    } wrong[] = {
        {"options.divergence", {.divergence = ONEPASS_JS, .mixture = 0.5}},
        {"options.mixture", {.mixture = 0.5}},
        {"options.target_temperature", {.target_temperature = 2, .top_values = ONEPASS_TOP_PROBS}},
        {"options.target_softcap", {.target_softcap = 2}},
        {"options.top_values", {.top_values = (onepass_top_values)3}},
        {"options.outside", {.outside = (onepass_outside)4}},
        {"options.label_weight", {.label_weight = 1}},
    };
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
        onepass_logits_options bad = wrong[w].options;
        bad.size = sizeof bad;
        bad.reduction = ONEPASS_SUM;
        value = 5;
        onepass_status status = onepass_divergence_logits_top_k(handle, &p, &t, &i, &bad, &v, NULL);
        CHECK(status != ONEPASS_OK && value == 5 && strstr(onepass_last_error(), wrong[w].field), "%s: %s",
              wrong[w].field, onepass_last_error());
    }
    onepass_logits_options bad = {.size = sizeof bad, .reduction = ONEPASS_SUM, .target_lse = &v};
    CHECK(onepass_divergence_logits_top_k(handle, &p, &t, &i, &bad, &v, NULL) == ONEPASS_UNSUPPORTED,
          "target_lse is taken");
    bad = (onepass_logits_options){.size = sizeof bad, .reduction = ONEPASS_SUM, .outside = ONEPASS_OUTSIDE_ZERO};
    CHECK(onepass_divergence_logits_logits(handle, &p, &p, &bad, &v, NULL, NULL) == ONEPASS_INVALID_ARGUMENT &&
              strstr(onepass_last_error(), "options.outside"),
          "%s", onepass_last_error());
    size_t bytes = 1;
    CHECK(onepass_logits_workspace_size(handle, &p, &bad, &bytes) == ONEPASS_OK && bytes == 0, "%s",
          onepass_last_error());
}

int main(void)
{
    test_begin("test_top_k");
    test_print_levels();
    test_random random = test_random_stream(0);
    open_levels();
    test_refusals();
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (int64_t at = 0; handles[level] && at < 5; at++)
            special_rows(level, at);
    test_small_tail();
    test_never_negative(&random);
    test_entries(&random);
    test_against_dense(&random);
    test_finite_differences(&random);
    test_rules(&random);
    test_sizes(&random);
    test_layouts(&random);
    test_bits(&random);
    close_levels("test_top_k");
    return test_end();
}
