/*
 * Losses from logits: every level against the exact results of cases/ around every vector and slice, with the options
 * of each operator; gradients against finite differences; KL that is 0 where both sides are alike and never negative;
 * digits of small losses; the same bits of a row whatever stands beside it, whoever computes it, wherever it lies and
 * whatever else is asked for; in place; fewer columns than there are; what a divisor and an earlier gradient do.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/logits.h"
#include "entry_points.h"

enum { OPERATORS = 6, DIVERGENCES = ONEPASS_TOTAL_VARIATION + 1 };

static const char *const operators[OPERATORS] = {
    "divergence_logits_logits",    "divergence_logits_probs", "divergence_logits_log_probs",
    "cross_entropy_logits_labels", "token_log_probs",         "token_log_probs_backward"};

static onepass_handle *handles[ONEP_LEVELS]; /* of two threads; NULL: does not run here */
static long cases;

static onepass_dtype type_at(int i)
{
    const onepass_dtype types[] = {case_f32, case_bf16, case_f64, case_f16};
    return types[i % 4];
}

static int is_divergence(const op_case *c)
{
    return c->definition == &case_logits && c->arguments > LOGITS_TARGETS;
}

/* ---- against exact results --------------------------------------------------------------------------------------- */

/* A compact case of one type with everything given that goes together; `amount` 50 chooses options at random. */
static void begin_case(op_case *c, int which, onepass_dtype type, int64_t rows, int64_t columns, int family, int amount,
                       uint64_t seed)
{
    case_begin(c, operators[which]);
    c->leading[0] = rows;
    c->extents['C' - 'A'] = columns;
    c->family = family;
    c->amount = amount;
    c->seed = seed;
    for (int i = 0; i < c->arguments; i++) {
        c->argument[i].given = 1;
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = type;
    }
    if (c->definition == &case_logits)
        c->argument[LOGITS_MADE_FOR].given = 0;
    if (is_divergence(c))
        c->options[LOGITS_DIVERGENCE] = (double)(seed / 7 % DIVERGENCES);
    if (c->definition == &case_logits)
        c->options[LOGITS_REDUCTION] = (double)(seed / 43 % 7);
}

/* The largest share of what is allowed that was seen, of each operator's results. */
static struct {
    double share;
    const char *result;
} worst[OPERATORS][ONEP_LEVELS];

static void note_worst(const op_case *c, int level)
{
    int which = 0;
    while (strcmp(operators[which], c->name) != 0)
        which++;
    for (int i = 0; i < c->arguments; i++)
        if (c->argument[i].given && case_is_written(c, i) && c->argument[i].worst > worst[which][level].share) {
            worst[which][level].share = c->argument[i].worst;
            worst[which][level].result = c->argument[i].info->name;
        }
}

static void print_worst(void)
{
    for (int which = 0; which < OPERATORS; which++)
        for (int level = 0; level < ONEP_LEVELS; level++)
            if (handles[level])
                printf("test_logits: %s, %s: at most %.2f of what is allowed, %s\n", operators[which],
                       onep_level_name((onep_level)level), worst[which][level].share, worst[which][level].result);
}

static void check_everywhere(op_case *c)
{
    char text[1800];
    CHECK(case_make(c), "no memory");
    cases++;
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        test_context("level %s: %s", onep_level_name((onep_level)level), case_describe(c, text, sizeof text));
        for (int i = 0; i < c->arguments; i++)
            c->argument[i].worst = 0;
        case_check(c, handles[level], &test_judge);
        note_worst(c, level);
    }
}

/* Tails of every vector, both sides of a slice, families and divergences. */
static void test_sizes(test_random *random)
{
    static const int64_t long_ones[] = {127, 255, 257, 1000, 1025, 8191, 8192, 8193, 16385};
    static op_case c;
    int count = 66 + (int)(sizeof long_ones / sizeof long_ones[0]);
    for (int i = 0; i < count; i++)
        for (int which = 0; which < OPERATORS; which++) {
            int64_t columns = i < 66 ? i + 1 : long_ones[i - 66];
            if (i < 66 && (i + which) % test_one_in(3) != 0)
                continue;
            if (columns > 2000 && (i + which) % test_one_in(2) != 0)
                continue;
            uint64_t seed = test_random_bits(random);
            begin_case(&c, which, type_at((int)test_random_below(random, 4)), columns > 2000 ? 1 : 2, columns,
                       (int)test_random_below(random, LOGITS_DATA_KINDS), test_random_below(random, 3) ? 50 : 0, seed);
            for (int k = 0; k < c.arguments; k++)
                c.argument[k].guard = i % 2 ? CASE_PAGE_AFTER : CASE_PAGE_BEFORE;
            case_settle(&c);
            check_everywhere(&c);
        }
}

/* Every family with every divergence, form and type. */
static void test_families(test_random *random)
{
    static op_case c;
    for (int which = 0; which < OPERATORS; which++)
        for (int family = 0; family <= LOGITS_SPECIAL; family++)
            for (int divergence = 0; divergence < (which < 3 ? DIVERGENCES : 1); divergence++)
                for (int type = 0; type < 4; type++) {
                    if ((family + divergence + type + which) % test_one_in(2) != 0)
                        continue;
                    begin_case(&c, which, type_at(type), 6, 37, family, type % 2 ? 50 : 0, test_random_bits(random));
                    if (which < 3) {
                        c.options[LOGITS_DIVERGENCE] = divergence;
                        c.options[LOGITS_REDUCTION] = type < 2 ? ONEPASS_ROWS : c.options[LOGITS_REDUCTION];
                    }
                    case_settle(&c);
                    check_everywhere(&c);
                }
}

/* Whole slices of -inf at the beginning of a row, of one side, of the other and of both. */
static void test_masked_slices(void)
{
    enum { COLUMNS = 20000, SLICE = 8192 };
    static op_case c;
    for (int which = 0; which < OPERATORS; which++)
        for (int sides = 1; sides < (which < 3 ? 4 : 2); sides++)
            for (int slices = 1; slices <= 2; slices++) {
                if (test_quick() && (which + sides + slices) % 2)
                    continue;
                begin_case(&c, which, case_f32, 1, COLUMNS, LOGITS_GAUSSIAN, 0, (uint64_t)(7 * which + slices));
                if (which < 3) {
                    c.options[LOGITS_DIVERGENCE] = ONEPASS_JS; /* finite wherever either side has nothing */
                    c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
                }
                for (int i = 0; i < c.arguments; i++)
                    c.argument[i].given &= c.argument[i].info->is_required || c.argument[i].info->role != ONEPASS_READ;
                case_settle(&c);
                CHECK(case_place(&c), "no memory");
                c.definition->generate(&c);
                for (int64_t k = 0; k < slices * SLICE; k++) {
                    if (sides & 1)
                        case_put(&c, 0, k, -INFINITY);
                    if (sides & 2)
                        case_put(&c, LOGITS_TARGETS, k, which == 1 ? 0 : (double)-INFINITY);
                }
                case_remember(&c);
                for (int level = 0; level < ONEP_LEVELS; level++) {
                    test_context("level %s, %s, %d slices of -inf, sides %d", onep_level_name((onep_level)level),
                                 c.name, slices, sides);
                    if (handles[level])
                        case_check(&c, handles[level], &test_judge);
                }
            }
}

/* ---- finite differences ------------------------------------------------------------------------------------------ */

/* A row that takes no part has a result of 0, and may have anything as upstream gradient. */
static double product(double result, double upstream)
{
    return result == 0 ? 0 : result * upstream;
}

/* What the gradients are those of: the value times its upstream gradient, or the results times theirs. */
static double loss_of(op_case *c, op_case *backward, onepass_handle *handle)
{
    onepass_status status;
    case_call(c, handle, 0xff, &test_judge, &status);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    double sum = 0;
    if (!backward) {
        for (int64_t i = 0; i < c->argument[LOGITS_VALUE].count; i++)
            sum += product(case_get(c, LOGITS_VALUE, i), case_was_or(c, LOGITS_UPSTREAM, i, 1));
        return sum;
    }
    for (int result = TOKEN_LOG_PROB; result <= TOKEN_LSE; result++)
        for (int64_t i = 0; i < c->argument[result].count; i++)
            sum += product(case_get(c, result, i), case_was(backward, result, i));
    return sum;
}

static void check_differences(op_case *c, op_case *backward, int input, op_case *of, int gradient,
                              onepass_handle *handle)
{
    /* Truncation is 2e-11 of third derivatives, which are below 300; rounding 1e-16 / step of a loss below 1000. */
    const double step = 1e-5;
    const long double tolerance = 1e-7L;
    for (int64_t i = 0; i < c->argument[input].count; i++) {
        double kept = case_was(c, input, i), width = step;
        if (!isfinite(kept))
            continue;
        if (is_divergence(c) && input == LOGITS_TARGETS && strstr(c->name, "_logits_probs"))
            width *= kept;
        case_put(c, input, i, kept + width);
        case_remember(c);
        double above = loss_of(c, backward, handle);
        case_put(c, input, i, kept - width);
        case_remember(c);
        double below = loss_of(c, backward, handle);
        case_put(c, input, i, kept);
        case_remember(c);
        double slope = (above - below) / (2 * width), got = case_get(of, gradient, i);
        long double allowed = tolerance * (1 + fabsl((long double)slope)) * (1 + (long double)(step / width) / 50);
        CHECK(test_close(got, slope, allowed), "%s[%" PRId64 "] is %.12g, differences give %.12g",
              of->argument[gradient].info->name, i, got, slope);
    }
}

static void test_finite_differences(test_random *random)
{
    static op_case c, back, again;
    char text[1800];
    for (int which = 0; which < 5; which++)
        for (int divergence = 0; divergence < (which < 3 ? DIVERGENCES : 3); divergence++)
            for (int level = 0; level < ONEP_LEVELS; level++) {
                if (!handles[level] || (test_quick() && (which + divergence + level) % 2 && level != ONEP_REF))
                    continue;
                /* Always the same numbers for total variation: no step may cross one of its kinks. */
                uint64_t bits = test_random_bits(random);
                uint64_t seed = divergence == ONEPASS_TOTAL_VARIATION ? (uint64_t)(100 + which) : bits;
                begin_case(&c, which, case_f64, 3, 9, LOGITS_GAUSSIAN, 50, seed);
                if (which < 3)
                    c.options[LOGITS_DIVERGENCE] = divergence;
                case_settle(&c);
                CHECK(case_make(&c), "no memory");
                test_context("level %s, finite differences: %s", onep_level_name((onep_level)level),
                             case_describe(&c, text, sizeof text));
                onepass_handle *handle = handles[level];
                if (which < 4) {
                    begin_case(&again, which, case_f64, 3, 9, LOGITS_GAUSSIAN, 50, seed);
                    if (which < 3)
                        again.options[LOGITS_DIVERGENCE] = divergence;
                    case_settle(&again);
                    CHECK(case_make(&again), "no memory");
                    loss_of(&again, NULL, handle);
                    check_differences(&c, NULL, LOGITS_PREDICTIONS, &again, LOGITS_GRAD_PREDICTIONS, handle);
                    if (which < 3)
                        check_differences(&c, NULL, LOGITS_TARGETS, &again, LOGITS_GRAD_TARGETS, handle);
                    continue;
                }
                begin_case(&back, 5, case_f64, 3, 9, LOGITS_GAUSSIAN, 50, seed);
                case_settle(&back);
                CHECK(case_make(&back), "no memory");
                for (int i = TOKEN_LOGITS; i <= TOKEN_MASK; i++)
                    for (int64_t k = 0; k < c.argument[i].count; k++)
                        case_put(&c, i, k, case_was(&back, i, k));
                case_remember(&c);
                onepass_status status;
                case_call(&back, handle, 0xff, &test_judge, &status);
                CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
                check_differences(&c, &back, TOKEN_LOGITS, &back, TOKEN_GRAD_LOGITS, handle);
            }
}

/* ---- alike, and nearly alike ------------------------------------------------------------------------------------- */

/* Targets that are the predictions: exactly 0. Targets near them: not below it. */
static void test_equal_sides(test_random *random)
{
    static const double distances[] = {0, 1e-7, 1e-5, 1e-3, 0.03};
    static op_case c;
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (int divergence = 0; divergence < DIVERGENCES; divergence++)
            for (int type = 0; type < 4 && handles[level]; type++)
                for (int k = 0; k < 5; k++) {
                    int64_t columns = test_quick() || k ? 1 + test_random_below(random, 300) : 9000;
                    begin_case(&c, 0, type_at(type), 3, columns, LOGITS_GAUSSIAN, 0, test_random_bits(random));
                    c.options[LOGITS_DIVERGENCE] = divergence;
                    c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
                    c.options[LOGITS_TEMPERATURE] = c.seed % 2 ? 1.7 : 0;
                    for (int i = 0; i < c.arguments; i++)
                        c.argument[i].given = c.argument[i].info->is_required || i == LOGITS_VALUE;
                    case_settle(&c);
                    CHECK(case_make(&c), "no memory");
                    for (int64_t i = 0; i < c.argument[LOGITS_TARGETS].count; i++)
                        case_put(&c, LOGITS_TARGETS, i,
                                 case_was(&c, LOGITS_PREDICTIONS, i) +
                                     distances[k] * test_random_between(random, -1, 1));
                    case_remember(&c);
                    onepass_status status;
                    case_call(&c, handles[level], 0xff, &test_judge, &status);
                    test_context("level %s, %s, divergence %d, %" PRId64 " columns, %g apart",
                                 onep_level_name((onep_level)level), case_type_name(type_at(type)), divergence, columns,
                                 distances[k]);
                    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
                    for (int64_t row = 0; row < 3; row++) {
                        double value = case_get(&c, LOGITS_VALUE, row);
                        CHECK(distances[k] == 0 ? value == 0 : value >= 0, "row %" PRId64 " is %g", row, value);
                    }
                }
}

/* ---- digits of small losses -------------------------------------------------------------------------------------- */

static double worst_nll[ONEP_LEVELS], worst_slope[ONEP_LEVELS], worst_kl[ONEP_LEVELS];

static void note(double *largest, double got, long double exact)
{
    double error = (double)(fabsl((long double)got - exact) / fabsl(exact));
    *largest = error > *largest || isnan(error) ? error : *largest;
}

/* One logit towers: NLL from 1 down to 1e-8 in fp32, value, log-probability and the gradient at the label. */
static void test_small_nll(test_random *random)
{
    enum { COLUMNS = 1500 };
    const double allowed = 6e-7; /* 10 u */
    static float x[COLUMNS], gradient[COLUMNS];
    for (double height = 7; height < 27; height += 1.7) {
        int64_t label = test_random_below(random, COLUMNS), shape[] = {1, COLUMNS};
        for (int k = 0; k < COLUMNS; k++)
            x[k] = (float)test_random_between(random, -0.5, 0.5);
        x[label] = (float)height;
        long double others = 0;
        for (int k = 0; k < COLUMNS; k++)
            others += k == label ? 0 : expl((long double)x[k] - (long double)x[label]);
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            float value = NAN, log_prob = NAN;
            onepass_tensor p = {.data = x, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = case_f32, .shape = shape};
            onepass_tensor g = p, l = p, v = p, lp = p;
            g.data = gradient;
            l.data = &label;
            l.dtype = case_i64;
            l.ndim = lp.ndim = 1;
            v.data = &value;
            v.ndim = 0;
            lp.data = &log_prob;
            onepass_logits_options options = {.size = sizeof options, .reduction = ONEPASS_SUM, .log_prob = &lp};
            test_context("level %s, NLL %.2Le", onep_level_name((onep_level)level), log1pl(others));
            CHECK(onepass_cross_entropy_logits_labels(handles[level], &p, &l, &options, &v, &g) == ONEPASS_OK, "%s",
                  onepass_last_error());
            note(&worst_nll[level], (double)value, log1pl(others));
            note(&worst_nll[level], -(double)log_prob, log1pl(others));
            note(&worst_slope[level], -(double)gradient[label], others / (1 + others));
            CHECK(worst_nll[level] < allowed, "relative error %g of the value, allowed %g", worst_nll[level], allowed);
            CHECK(worst_slope[level] < allowed, "relative error %g of the gradient, allowed %g", worst_slope[level],
                  allowed);
        }
    }
}

/* KL of targets near the predictions, from 1e-2 down to 1e-7 in fp32. */
static void test_small_kl(test_random *random)
{
    enum { COLUMNS = 4000 };
    static const double distances[] = {0.15, 3e-2, 5e-3, 4.5e-4};
    const double allowed = 2e-3; /* an error of delta, 1e-6 in the worst case, is this of delta = 4e-4 twice over */
    static float x[COLUMNS], y[COLUMNS];
    for (int k = 0; k < 4; k++) {
        long double s = 0, t = 0, exact = 0;
        for (int i = 0; i < COLUMNS; i++) {
            x[i] = (float)(2 * case_random_normal(random));
            y[i] = (float)((double)x[i] + distances[k] * case_random_normal(random));
            s += expl((long double)x[i]);
            t += expl((long double)y[i]);
        }
        for (int i = 0; i < COLUMNS; i++)
            exact += expl((long double)y[i]) / t *
                     (((long double)y[i] - (long double)x[i]) - (logl(t) - logl(s))); /* 1e-18 of 1e-7 is lost */
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            float value = NAN;
            int64_t shape[] = {1, COLUMNS};
            onepass_tensor p = {.data = x, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = case_f32, .shape = shape};
            onepass_tensor q = p, v = p;
            q.data = y;
            v.data = &value;
            v.ndim = 0;
            test_context("level %s, KL %.2Le", onep_level_name((onep_level)level), exact);
            CHECK(onepass_divergence_logits_logits(handles[level], &p, &q, NULL, &v, NULL, NULL) == ONEPASS_OK, "%s",
                  onepass_last_error());
            note(&worst_kl[level], (double)value, exact);
            CHECK(worst_kl[level] < allowed, "relative error %g, allowed %g", worst_kl[level], allowed);
        }
    }
    for (int level = 0; level < ONEP_LEVELS; level++)
        if (handles[level])
            printf("test_logits: %s in fp32: relative error of small NLL %.1e, its gradient %.1e, small KL %.1e\n",
                   onep_level_name((onep_level)level), worst_nll[level], worst_slope[level], worst_kl[level]);
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

/* The bits of each result, in index order, wherever it lies; NaN is NaN. */
typedef struct result_bits {
    uint64_t of[CASE_MAX_ARGUMENTS];
    int given[CASE_MAX_ARGUMENTS];
} result_bits;

static result_bits bits_of(op_case *c, onepass_handle *handle)
{
    result_bits bits = {{0}, {0}};
    onepass_status status;
    case_call(c, handle, 0xff, &test_judge, &status);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    for (int i = 0; i < c->arguments; i++) {
        bits.given[i] = c->argument[i].given && case_is_written(c, i);
        bits.of[i] = 0xcbf29ce484222325u;
        for (int64_t k = 0; bits.given[i] && k < c->argument[i].count; k++) {
            double x = case_get(c, i, k);
            uint64_t word = UINT64_MAX;
            if (!isnan(x))
                memcpy(&word, &x, sizeof word);
            bits.of[i] = (bits.of[i] ^ word) * 0x100000001b3u;
        }
    }
    return bits;
}

static void same_bits(const op_case *c, const result_bits *a, const result_bits *b, const char *what)
{
    for (int i = 0; i < c->arguments; i++)
        if (a->given[i] && b->given[i])
            CHECK(a->of[i] == b->of[i], "%s: the bits of %s differ", what, c->argument[i].info->name);
}

static double load(const case_argument *a, const char *memory, int64_t index)
{
    return case_load(a->dtype, memory + (size_t)index * case_size(a->dtype));
}

/* Rows [first, first + count) of a compact case in a call of their own; each result must be that of the whole call. */
static void check_rows_alone(op_case *c, onepass_handle *handle, int64_t first, int64_t count, uint64_t wanted)
{
    onepass_tensor tensor[CASE_MAX_ARGUMENTS];
    const onepass_tensor *given[CASE_MAX_ARGUMENTS] = {NULL};
    int64_t shapes[CASE_MAX_ARGUMENTS][2], columns[CASE_MAX_ARGUMENTS];
    char *memory[CASE_MAX_ARGUMENTS] = {NULL};
    int results = 0;
    for (int i = 0; i < c->arguments; i++) {
        const case_argument *a = &c->argument[i];
        int is_result = case_is_written(c, i), has_rows = *case_shape_of(c, i) == '*';
        if (!a->given || (is_result && !a->info->is_required && !(wanted >> i & 1)))
            continue;
        tensor[i] = a->tensor;
        given[i] = &tensor[i];
        columns[i] = has_rows && a->tensor.ndim == 2 ? a->shape[1] : 1;
        shapes[i][0] = has_rows ? count : a->shape[0];
        shapes[i][1] = columns[i];
        tensor[i].shape = shapes[i];
        size_t size = case_size(a->dtype);
        if (has_rows && !is_result)
            tensor[i].byte_offset += (uint64_t)(first * columns[i]) * size;
        if (is_result) {
            results++;
            tensor[i].data = memory[i] = malloc((size_t)(count * columns[i]) * size);
            tensor[i].byte_offset = 0;
        }
    }
    if (results > 0) {
        CHECK(onepass_call(handle, c->op, given, c->options, NULL, 0) == ONEPASS_OK, "%s", onepass_last_error());
        for (int i = 0; i < c->arguments; i++) {
            int64_t differ = 0;
            for (int64_t k = 0; memory[i] && k < count * columns[i]; k++) {
                double x = load(&c->argument[i], memory[i], k), y = case_get(c, i, first * columns[i] + k);
                differ += !((x == y && signbit(x) == signbit(y)) || (isnan(x) && isnan(y)));
            }
            CHECK(differ == 0, "rows %" PRId64 " to %" PRId64 " alone: %" PRId64 " elements of %s differ", first,
                  first + count - 1, differ, c->argument[i].info->name);
        }
    }
    for (int i = 0; i < c->arguments; i++)
        free(memory[i]);
}

/* The layout whose bits are excepted from the promise (docs/numerics.md): rows of cross-entropy that are neighbours in
 * memory, and wider than 512 bytes in the type computed in. */
static int is_excepted(const op_case *c, int argument, case_layout layout)
{
    int64_t row_bytes = case_extent(c, 'C') * (int64_t)case_size(case_computed(c->argument[argument].dtype));
    return layout == CASE_FORTRAN && argument == LOGITS_PREDICTIONS && row_bytes > 512 &&
           strcmp(c->name, "cross_entropy_logits_labels") == 0;
}

/* The same numbers again, laid out otherwise, in place, with other index types, and through the C entry point. */
static void check_variants(op_case *c, onepass_handle *handle, const result_bits *expected, test_random *random)
{
    static op_case other;
    for (int variant = 0; variant < 6; variant++) {
        static const char *const what[] = {"strided", "backwards", "in place", "int32", "entry point", "shifted"};
        case_begin(&other, c->name);
        other.leading[0] = c->leading[0];
        memcpy(other.extents, c->extents, sizeof other.extents);
        memcpy(other.options, c->options, sizeof other.options);
        other.family = c->family;
        other.amount = 0;
        other.seed = c->seed;
        int in_place = 0;
        for (int i = 0; i < c->arguments; i++) {
            case_argument *a = &other.argument[i];
            a->given = c->argument[i].given;
            a->dtype = c->argument[i].dtype;
            if (variant == 0)
                a->layout = test_random_below(random, 2) ? CASE_COLUMN_STEP : CASE_PADDED;
            if (variant == 1)
                a->layout = test_random_below(random, 2) ? CASE_NEGATIVE_ALL : CASE_FORTRAN;
            if (is_excepted(c, i, a->layout))
                a->layout = CASE_NEGATIVE_ALL;
            if (variant == 3 && a->dtype.code == ONEPASS_INT && a->info->role == ONEPASS_READ)
                a->dtype = case_i32;
            if (variant == 5)
                a->shift = 1 + (size_t)test_random_below(random, 60);
        }
        if (variant == 2 && c->definition == &case_logits) {
            other.argument[LOGITS_GRAD_PREDICTIONS].over = 1 + LOGITS_PREDICTIONS;
            if (is_divergence(c))
                other.argument[LOGITS_GRAD_TARGETS].over = 1 + LOGITS_TARGETS;
            in_place = 1;
        } else if (variant == 2 && c->arguments > TOKEN_GRAD_LOGITS) {
            other.argument[TOKEN_GRAD_LOGITS].over = 1 + TOKEN_LOGITS;
            in_place = 1;
        }
        if (variant == 2 && !in_place)
            continue;
        if (variant == 4)
            other.entry = entry_point;
        CHECK(case_make(&other), "no memory");
        result_bits bits = bits_of(&other, handle);
        same_bits(c, &bits, expected, what[variant]);
    }
}

static void check_bits(op_case *c, int level, test_random *random)
{
    static const int32_t threads[] = {1, 3, 7};
    char text[1800];
    int64_t rows = c->leading[0];
    test_context("level %s, bits: %s", onep_level_name((onep_level)level), case_describe(c, text, sizeof text));
    for (int i = 0; i < 3; i++) {
        onepass_handle *handle = test_handle((onep_level)level, threads[i]);
        result_bits bits = bits_of(c, handle), expected = bits_of(c, handles[level]);
        same_bits(c, &bits, &expected, "threads");
        onepass_destroy(handle);
    }
    result_bits expected = bits_of(c, handles[level]);
    for (int64_t row = 0; row < rows; row++)
        check_rows_alone(c, handles[level], row, 1, row ? test_random_bits(random) : UINT64_MAX);
    check_rows_alone(c, handles[level], rows / 3, rows - rows / 3, UINT64_MAX);
    for (int i = 0; i < c->arguments; i++) /* one result by itself */
        if (case_is_written(c, i))
            check_rows_alone(c, handles[level], 0, rows, UINT64_C(1) << i);
    check_variants(c, handles[level], &expected, random);
}

static void test_bits(test_random *random)
{
    static op_case c;
    int number = 0;
    for (int which = 0; which < OPERATORS; which++)
        for (int divergence = 0; divergence < (which < 3 ? DIVERGENCES : 2); divergence++)
            for (int size = 0; size < 2; size++)
                for (int level = 0; level < ONEP_LEVELS; level++) {
                    if (!handles[level] || !test_covers((onep_level)level))
                        continue;
                    if ((test_quick() || level == ONEP_REF) && (number++ % 3 != 0 || (size && number % 2)))
                        continue;
                    begin_case(&c, which, type_at((int)test_random_below(random, 4)), size ? 2 : 5,
                               size ? 8192 + test_random_below(random, 4000) : 1 + test_random_below(random, 300),
                               (int)test_random_below(random, LOGITS_DATA_KINDS), 50, test_random_bits(random));
                    if (which < 3)
                        c.options[LOGITS_DIVERGENCE] = divergence;
                    if (which < 4)
                        c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
                    case_settle(&c);
                    CHECK(case_make(&c), "no memory");
                    check_bits(&c, level, random);
                }
}

/* ---- columns, divisors, earlier gradients ------------------------------------------------------------------------ */

/* A problem of few columns inside of wider tensors, which hold NaN beyond: the same bits, and gradients of 0 there. */
static void test_columns(test_random *random)
{
    static op_case narrow, wide;
    for (int which = 0; which < OPERATORS; which++)
        for (int level = 0; level < ONEP_LEVELS; level++)
            for (int round = 0; round < (test_quick() ? 1 : 4) && handles[level]; round++) {
                int64_t columns = round ? 1 + test_random_below(random, 200) : 77, extra = 1 + round * 13;
                uint64_t seed = test_random_bits(random);
                op_case *both[] = {&narrow, &wide};
                for (int k = 0; k < 2; k++) {
                    begin_case(both[k], which, case_f32, 3, columns + k * extra, LOGITS_GAUSSIAN, 0, seed);
                    if (which < 4)
                        both[k]->options[LOGITS_REDUCTION] = ONEPASS_ROWS;
                    both[k]->options[which < 4 ? (int)LOGITS_COLUMNS : (int)TOKEN_COLUMNS] = (double)columns;
                    case_settle(both[k]);
                    CHECK(case_make(both[k]), "no memory");
                }
                for (int i = 0; i < narrow.arguments; i++) {
                    const char *shape = narrow.argument[i].info->shape;
                    if (!narrow.argument[i].given || case_is_written(&narrow, i))
                        continue;
                    int has_columns = shape && strchr(shape, 'C') != NULL;
                    for (int64_t k = 0; k < wide.argument[i].count; k++) {
                        int64_t width = has_columns ? columns + extra : 1, column = k % width, row = k / width;
                        double x = column < columns || !has_columns
                                       ? case_was(&narrow, i, has_columns ? row * columns + column : k)
                                       : (double)NAN;
                        case_put(&wide, i, k, x);
                    }
                }
                case_remember(&wide);
                test_context("level %s, %s, %" PRId64 " of %" PRId64 " columns", onep_level_name((onep_level)level),
                             narrow.name, columns, columns + extra);
                bits_of(&narrow, handles[level]);
                bits_of(&wide, handles[level]);
                for (int i = 0; i < narrow.arguments; i++) {
                    const char *shape = narrow.argument[i].info->shape;
                    int has_columns = shape && strchr(shape, 'C') != NULL;
                    if (!narrow.argument[i].given || !case_is_written(&narrow, i))
                        continue;
                    for (int64_t k = 0; k < wide.argument[i].count; k++) {
                        int64_t width = has_columns ? columns + extra : 1, column = k % width, row = k / width;
                        double got = case_get(&wide, i, k), expected = 0;
                        if (column < columns || !has_columns)
                            expected = case_get(&narrow, i, has_columns ? row * columns + column : k);
                        CHECK(got == expected || (isnan(got) && isnan(expected)), "%s[%" PRId64 "] is %g, not %g",
                              narrow.argument[i].info->name, k, got, expected);
                    }
                }
            }
}

/* Gradients that were made for this very grad_value are left alone; any other, NaN among them, has them made again. */
static void test_made_for(void)
{
    static const double upstream[] = {1.5, 1.5, -2, NAN, 0}, made_for[] = {1.5, 1.25, 2, NAN, -0.0};
    static const int is_made[] = {1, 0, 0, 0, 1};
    static op_case c;
    for (int which = 0; which < 4; which++)
        for (int level = 0; level < ONEP_LEVELS; level++)
            for (int k = 0; k < 5 && handles[level]; k++) {
                begin_case(&c, which, case_f32, 3, 40, LOGITS_GAUSSIAN, 0, 11);
                c.options[LOGITS_REDUCTION] = ONEPASS_SUM;
                for (int i = 0; i < c.arguments; i++)
                    c.argument[i].given = c.argument[i].info->is_required || i == LOGITS_GRAD_PREDICTIONS;
                c.argument[LOGITS_UPSTREAM].given = c.argument[LOGITS_MADE_FOR].given = 1;
                case_settle(&c);
                CHECK(case_make(&c), "no memory");
                case_put(&c, LOGITS_UPSTREAM, 0, upstream[k]);
                case_put(&c, LOGITS_MADE_FOR, 0, made_for[k]);
                case_remember(&c);
                onepass_status status;
                case_call(&c, handles[level], 0x41, &test_judge, &status);
                test_context("level %s, %s, grad_value %g, made for %g", onep_level_name((onep_level)level), c.name,
                             upstream[k], made_for[k]);
                CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
                int64_t kept = 0, count = c.argument[LOGITS_GRAD_PREDICTIONS].count;
                for (int64_t i = 0; i < count; i++)
                    kept += case_get(&c, LOGITS_GRAD_PREDICTIONS, i) == 12.078431129455566; /* 0x41 four times */
                CHECK(kept == (is_made[k] ? count : 0), "%" PRId64 " of %" PRId64 " gradients are as they were", kept,
                      count);
            }
}

/* One division for all: by a number, by the same number in memory, and by the rows that take part. */
static void test_divisors(void)
{
    enum { ROWS = 5, COLUMNS = 6 };
    static const float x[ROWS * COLUMNS] = {1, 2,  3, 0, -1, 2, 0, 1, 0, 2,  5, 1, 3, 1, -2,
                                            0, -4, 1, 2, 2,  2, 1, 1, 1, -1, 0, 4, 2, 1, 0};
    static const float class_weights[COLUMNS] = {1, 0.5F, 2, 0.25F, 4, 1};
    static const int64_t all_ignored[ROWS] = {-100, -100, -100, -100, -100};
    static const int64_t some[ROWS] = {2, -100, 4, 3, -100};
    int64_t shape[] = {ROWS, COLUMNS}, class_shape[] = {COLUMNS};
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        double rows[ROWS], value, other, divisor = 6.25;
        float gradient[ROWS * COLUMNS], first[ROWS * COLUMNS];
        onepass_tensor p = {
            .data = (void *)(uintptr_t)x, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = case_f32, .shape = shape};
        onepass_tensor l = p, v = p, r = p, g = p, w = p, d = p;
        l.data = (void *)(uintptr_t)some;
        l.dtype = case_i64;
        l.ndim = r.ndim = w.ndim = 1;
        v.data = &value;
        r.data = rows;
        v.dtype = r.dtype = d.dtype = case_f64;
        v.ndim = d.ndim = 0;
        d.data = &divisor;
        g.data = gradient;
        w.data = (void *)(uintptr_t)class_weights;
        w.shape = class_shape;
        onepass_logits_options o = {.size = sizeof o, .reduction = ONEPASS_ROWS, .class_weights = &w};
        test_context("level %s, divisors", onep_level_name((onep_level)level));
        CHECK(onepass_cross_entropy_logits_labels(handles[level], &p, &l, &o, &r, &g) == ONEPASS_OK, "%s",
              onepass_last_error());
        double sum = rows[0] + rows[1] + rows[2] + rows[3] + rows[4];
        CHECK(rows[1] == 0 && rows[4] == 0 && rows[0] > 0 && rows[2] > 0 && rows[3] > 0, "rows that take part");
        /* valid: the weights of the labels 2, 4 and 3 */
        o.reduction = ONEPASS_VALID;
        CHECK(onepass_cross_entropy_logits_labels(handles[level], &p, &l, &o, &v, &g) == ONEPASS_OK, "%s",
              onepass_last_error());
        CHECK(test_close(value, sum / 6.25, 1e-14L), "valid: %.17g, not %.17g", value, sum / 6.25);
        memcpy(first, gradient, sizeof first);
        o.reduction = ONEPASS_DIVISOR;
        for (int from_memory = 0; from_memory < 2; from_memory++) {
            v.data = &other;
            o.divisor = from_memory ? 0 : divisor;
            o.divisor_tensor = from_memory ? &d : NULL;
            memset(gradient, 0xff, sizeof gradient);
            CHECK(onepass_cross_entropy_logits_labels(handles[level], &p, &l, &o, &v, &g) == ONEPASS_OK, "%s",
                  onepass_last_error());
            CHECK(other == value && memcmp(first, gradient, sizeof first) == 0, "divisor %d: %.17g, not %.17g",
                  from_memory, other, value);
        }
        /* without class weights: three rows; with all of them ignored: nothing */
        o = (onepass_logits_options){.size = sizeof o, .reduction = ONEPASS_VALID};
        CHECK(onepass_cross_entropy_logits_labels(handles[level], &p, &l, &o, &v, NULL) == ONEPASS_OK, "%s",
              onepass_last_error());
        o.reduction = ONEPASS_ROWS;
        CHECK(onepass_cross_entropy_logits_labels(handles[level], &p, &l, &o, &r, NULL) == ONEPASS_OK, "%s",
              onepass_last_error());
        CHECK(test_close(other, (rows[0] + rows[2] + rows[3]) / 3, 1e-15L), "valid without class weights");
        l.data = (void *)(uintptr_t)all_ignored;
        o.reduction = ONEPASS_VALID;
        v.data = &value;
        for (int semantics = 0; semantics < 2; semantics++) {
            o.semantics = (onepass_semantics)semantics;
            value = 5;
            memset(gradient, 0xff, sizeof gradient);
            CHECK(onepass_cross_entropy_logits_labels(handles[level], &p, &l, &o, &v, &g) == ONEPASS_OK, "%s",
                  onepass_last_error());
            CHECK(semantics == ONEPASS_FINITE ? value == 0 : isnan(value), "all ignored: %g", value);
            for (int i = 0; i < ROWS * COLUMNS; i++)
                CHECK(gradient[i] == 0, "the gradient of an ignored row is %g", (double)gradient[i]);
        }
    }
}

int main(void)
{
    test_begin("test_logits");
    test_print_levels();
    test_random random = test_random_stream(0);
    for (int level = 0; level < ONEP_LEVELS; level++)
        handles[level] = onep_level_runs((onep_level)level) ? test_handle((onep_level)level, 2) : NULL;
    test_divisors();
    test_made_for();
    test_equal_sides(&random);
    test_small_nll(&random);
    test_small_kl(&random);
    test_finite_differences(&random);
    test_columns(&random);
    test_masked_slices();
    test_families(&random);
    test_sizes(&random);
    test_bits(&random);
    print_worst();
    printf("test_logits: %ld random cases at each level\n", cases);
    for (int level = 0; level < ONEP_LEVELS; level++)
        onepass_destroy(handles[level]);
    return test_end();
}
