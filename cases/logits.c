/*
 * Calls of losses from logits: numbers, legal options, and the rows' results put together. exact_logits.c has the exact
 * answer of one row.
 */
#include "cases/exact_logits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/kl.h"

int64_t logits_columns(const op_case *c, int option)
{
    int total = case_option_named(c, "total_columns"); /* of a shard, and in these cases all of them are here */
    if (total >= 0 && c->options[total] != 0 && c->options[option] == 0)
        return (int64_t)c->options[total];
    return c->options[option] != 0 ? (int64_t)c->options[option] : case_extent(c, 'C');
}

double logits_ignored(const op_case *c, int has_option, int index_option)
{
    return c->options[has_option] != 0 ? c->options[index_option] : -100;
}

/* ---- what is expected -------------------------------------------------------------------------------------------- */

double logits_divisor(const op_case *c)
{
    int64_t rows = case_rows(c), columns = logits_columns(c, LOGITS_COLUMNS);
    double ignored = logits_ignored(c, LOGITS_HAS_IGNORE_INDEX, LOGITS_IGNORE_INDEX);
    double sum = 0;
    switch ((onepass_reduction)c->options[LOGITS_REDUCTION]) {
    case ONEPASS_BATCHMEAN: /* the first dimension is that of the columns if it is the only one; a shard has not all */
        return (double)(c->leading_rank                              ? c->leading[0]
                        : case_option_named(c, "total_columns") >= 0 ? columns
                                                                     : case_extent(c, 'C'));
    case ONEPASS_MEAN:
        return (double)(rows * columns);
    case ONEPASS_DIVISOR:
        return case_was_or(c, LOGITS_DIVISOR_TENSOR, 0, c->options[LOGITS_DIVISOR]);
    case ONEPASS_VALID:
        for (int64_t row = 0; row < rows; row++) {
            double label = case_was_or(c, LOGITS_LABELS, row, -1);
            if (case_was_or(c, LOGITS_MASK, row, 1) == 0 || (c->argument[LOGITS_LABELS].given && label == ignored))
                continue;
            int is_weighted = label >= 0 && label < (double)columns;
            sum += is_weighted ? case_was_or(c, LOGITS_CLASS_WEIGHTS, (int64_t)label, 1) : 1;
        }
        return sum;
    default:
        return 1;
    }
}

static int exact(op_case *c, case_arithmetic arithmetic)
{
    int64_t rows = case_rows(c);
    int reduction = (int)c->options[LOGITS_REDUCTION], finite = (int)c->options[LOGITS_SEMANTICS] == ONEPASS_FINITE;
    double divisor = logits_divisor(c);
    exact_logits *e = exact_logits_begin(c, arithmetic);
    long double sum = 0, size = 0, error = 0;
    for (int64_t row = 0; row < rows && e; row++) {
        bounded value = exact_logits_row(e, row, divisor);
        if (reduction == ONEPASS_ROWS)
            case_expected(c, LOGITS_VALUE, row, value.x, value.error);
        sum += value.x;
        size += fabsl(value.x);
        error += value.error;
    }
    if (e && reduction != ONEPASS_ROWS) {
        int none = reduction == ONEPASS_VALID && finite && divisor == 0;
        case_expected(c, LOGITS_VALUE, 0, none ? 0 : sum / (long double)divisor,
                      none ? 0 : (error + kl_sum_error(rows) * size) / fabsl((long double)divisor));
    }
    int has_memory = e != NULL;
    exact_logits_end(e);
    return has_memory;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static double draw_gaussian(case_random *random)
{
    return 2 * case_random_normal(random);
}

void logits_gaussian_row(onepass_dtype type, void *to, int64_t columns, uint64_t seed, int64_t row)
{
    case_random random = case_random_stream(seed, (uint64_t)row);
    for (int64_t k = 0; k < columns; k++)
        case_store(type, (char *)to + (size_t)k * case_size(type), draw_gaussian(&random));
}

void logits_draw_row(int family, double *to, int64_t columns, case_random *random)
{
    enum { SLICE = 8192 };
    int64_t tower = columns > 0 ? case_random_below(random, columns) : 0;
    double height = case_random_between(random, 5, 20);
    double offset = family == LOGITS_UNNORMALISED ? case_random_between(random, -300, 300) : 0;
    int64_t leading = columns > SLICE ? SLICE * (1 + case_random_below(random, (columns - 1) / SLICE)) : columns / 3;
    leading = case_random_below(random, 3) ? leading : 0;
    for (int64_t k = 0; k < columns; k++) {
        double x = draw_gaussian(random);
        if (family == LOGITS_WIDE)
            x = case_random_between(random, -80, 80);
        if (family == LOGITS_SHARP)
            x = k == tower ? height : x / 4;
        if (family == LOGITS_MASKED && (k < leading || case_random_below(random, 4) == 0) && k != columns - 1)
            x = -INFINITY;
        to[k] = x + offset;
    }
}

double logits_choice(case_random *random, const double *from, int count)
{
    return from[case_random_below(random, count)];
}

void logits_spoil(op_case *c, int argument, int64_t row, case_random *random)
{
    const case_argument *a = &c->argument[argument];
    const char *shape = case_shape_of(c, argument);
    int has_columns = *shape == '*' && shape[1];
    if (!a->given || *shape != '*' || a->layout == CASE_REPEATED_ALL || a->layout == CASE_REPEATED_ROWS ||
        (!has_columns && a->layout >= CASE_REPEATED_ROWS))
        return;
    int64_t columns = has_columns ? case_extent(c, shape[1]) : 1;
    for (int64_t k = 0; k < columns; k++)
        case_put(c, argument, row * columns + k, case_random_below(random, 2) ? (double)NAN : (double)-INFINITY);
}

/* What is unlike the rest in a row of the special family. */
enum {
    ORDINARY,
    NAN_PREDICTION,
    INFINITE_PREDICTION,
    NO_MASS,
    NAN_TARGET,
    NO_TARGET_MASS,
    INFINITE_TARGET,
    SPARSE,
    BAD_LABEL,
    SPECIALS,
};

static void make_special(int kind, int has_target_logits, double *x, double *y, int64_t columns, case_random *random)
{
    int64_t at = columns > 0 ? case_random_below(random, columns) : 0;
    for (int64_t k = 0; k < columns; k++) {
        x[k] = kind == NAN_PREDICTION && k == at        ? (double)NAN
               : kind == INFINITE_PREDICTION && k == at ? (double)INFINITY
               : kind == NO_MASS                        ? (double)-INFINITY
                                                        : x[k];
        y[k] = kind == NAN_TARGET && k == at                               ? (double)NAN
               : kind == INFINITE_TARGET && k == at                        ? (double)INFINITY
               : kind == NO_TARGET_MASS                                    ? (double)-INFINITY
               : kind == SPARSE && case_random_below(random, 2)            ? (double)-INFINITY
               : kind == NO_MASS && has_target_logits && (at & 1) && k < 2 ? (double)-INFINITY
                                                                           : y[k];
        if (kind == SPARSE && case_random_below(random, 2) && k + 1 < columns)
            x[k] = -INFINITY;
    }
}

/* The targets of a row from their logits. */
static void put_targets(op_case *c, int64_t row, double *y, int64_t columns, double factor)
{
    int form = exact_logits_form(c);
    double largest = -INFINITY, sum = 0;
    for (int64_t k = 0; k < columns; k++)
        largest = y[k] > largest ? y[k] : largest;
    largest = isfinite(largest) ? largest : 0;
    for (int64_t k = 0; k < columns; k++)
        sum += isfinite(y[k]) ? exp(y[k] - largest) : 0;
    double lse = largest + log(sum > 0 ? sum / factor : 1);
    for (int64_t k = 0; k < columns; k++)
        case_put(c, LOGITS_TARGETS, row * columns + k,
                 form == EXACT_TARGET_LOGITS  ? y[k]
                 : form == EXACT_TARGET_PROBS ? exp(y[k] - lse)
                                              : y[k] - lse);
}

/*
 * The entries of a teacher of k columns from its logits y: any columns in any order, some twice, some none. What they
 * add up to is nowhere near 1 unless they were meant to: whether the rest has mass must not be a near thing.
 */
static void put_top_k(op_case *c, int64_t row, const double *y, int kind, double factor, case_random *random)
{
    int64_t entries = case_extent(c, 'K'), columns = logits_columns(c, LOGITS_COLUMNS);
    int form = (int)c->options[LOGITS_TOP_FORM];
    double largest = -INFINITY, sum = 0;
    for (int64_t k = 0; k < columns; k++)
        largest = y[k] > largest && y[k] < INFINITY ? y[k] : largest;
    largest = isfinite(largest) ? largest : 0;
    for (int64_t k = 0; k < columns; k++)
        sum += isfinite(y[k]) ? exp(y[k] - largest) : 0;
    double lse = largest + log(sum > 0 ? sum / factor : 1);
    int64_t start = columns > 0 ? case_random_below(random, columns) : 0, step = 1;
    for (int64_t candidate = columns / 2 + 1; candidate < columns && step == 1; candidate++)
        step = columns % candidate != 0 && (columns % 2 || candidate % 2) ? candidate : step;
    int repeats = case_random_below(random, 4) == 0;
    for (int64_t i = 0; i < entries; i++) {
        int64_t column = columns > 0 ? (start + i * step) % columns : -1;
        if (repeats && columns > 0 && case_random_below(random, 4) == 0)
            column = case_random_below(random, columns);
        int is_padding = columns == 0 || i >= columns || case_random_below(random, 8) == 0 || kind == NO_TARGET_MASS;
        double value = column < 0 ? 0 : form == ONEPASS_TOP_LOGITS ? y[column] : y[column] - lse;
        if (form == ONEPASS_TOP_PROBS)
            value = kind == INFINITE_TARGET && (row & 1) && column >= 0 && y[column] == INFINITY ? -0.5 : exp(value);
        int64_t index = is_padding ? -1 - case_random_below(random, 100) : column;
        if (kind == BAD_LABEL && i == entries / 2)
            index = case_random_below(random, 2) ? columns : 2000000000;
        case_put(c, LOGITS_TOP_VALUES, row * entries + i, is_padding && (row & 1) ? (double)NAN : value);
        case_put(c, LOGITS_TOP_INDICES, row * entries + i, (double)index);
    }
}

/* z of a prediction as it is stored, so that targets lie near it. */
static double near_prediction(const op_case *c, int64_t index, double noise, case_random *random)
{
    double x = case_get(c, LOGITS_PREDICTIONS, index), cap = c->options[LOGITS_SOFTCAP];
    double temperature = c->options[LOGITS_TEMPERATURE] != 0 ? c->options[LOGITS_TEMPERATURE] : 1;
    if (exact_logits_form(c) != EXACT_TARGET_LOGITS)
        x = (cap > 0 ? cap * tanh(x / cap) : x) / temperature;
    return x + noise * case_random_normal(random);
}

static void put_rows(op_case *c, case_random *random, double *x, double *y)
{
    int64_t rows = case_rows(c), columns = case_extent(c, 'C'), used = logits_columns(c, LOGITS_COLUMNS);
    int form = exact_logits_form(c);
    double ignored = logits_ignored(c, LOGITS_HAS_IGNORE_INDEX, LOGITS_IGNORE_INDEX);
    for (int64_t row = 0; row < rows; row++) {
        int kind = c->family == LOGITS_SPECIAL ? (int)case_random_below(random, SPECIALS) : ORDINARY;
        double factor = c->family == LOGITS_UNNORMALISED ? exp(case_random_between(random, -2, 4)) : 1;
        logits_draw_row(c->family, x, columns, random);
        logits_draw_row(c->family, y, columns, random);
        /* Whether a probability is 0 decides what the derivative to a probability of 0 is: it must not be a near thing.
         */
        for (int64_t k = 0; k < columns && form == EXACT_TARGET_PROBS && c->family == LOGITS_WIDE; k++) {
            x[k] *= 0.3;
            y[k] *= 0.3;
        }
        make_special(kind, form == EXACT_TARGET_LOGITS, x, y, columns, random);
        for (int64_t k = 0; k < columns; k++)
            case_put(c, LOGITS_PREDICTIONS, row * columns + k, x[k]);
        for (int64_t k = 0; k < columns && (c->family == LOGITS_NEAR_3 || c->family == LOGITS_NEAR_4); k++)
            y[k] = near_prediction(c, row * columns + k, c->family == LOGITS_NEAR_3 ? 1e-3 : 1e-4, random);
        if (form == EXACT_TARGET_TOP_K) {
            int is_near = c->family == LOGITS_NEAR_3 || c->family == LOGITS_NEAR_4;
            put_top_k(c, row, y, kind, is_near ? 1 : 0.9 * factor, random);
        } else if (form != EXACT_NO_TARGET) {
            put_targets(c, row, y, columns, factor);
        }
        if (!c->argument[LOGITS_LABELS].given)
            continue;
        double label = used > 0 ? (double)case_random_below(random, used) : 0;
        for (int64_t k = 0; k < used; k++) /* the largest, half of the time and where others may be -inf */
            if ((c->family == LOGITS_MASKED || (row & 1)) && x[k] > x[(int64_t)label])
                label = (double)k;
        static const double bad[] = {-1, 1e9, -2147483647.0};
        if (kind == BAD_LABEL)
            label = row & 1 ? (double)used : logits_choice(random, bad, 3);
        case_put(c, LOGITS_LABELS, row, case_random_below(random, 6) == 0 ? ignored : label);
    }
}

void logits_put_row_options(op_case *c, case_random *random)
{
    static const double weights[] = {1, 0, -1.5, 0.3, 2.75, 1e-3};
    int skips_zero = c->family == LOGITS_SPECIAL; /* 0 times an infinity tells nothing */
    for (int64_t row = 0; row < case_rows(c); row++) {
        double weight = logits_choice(random, weights, 6);
        if (c->argument[LOGITS_WEIGHTS].given)
            case_put(c, LOGITS_WEIGHTS, row, skips_zero && weight == 0 ? 1 : weight);
        int is_masked = c->amount == 1 || case_random_below(random, 4) == 0;
        if (c->argument[LOGITS_MASK].given)
            case_put(c, LOGITS_MASK, row,
                     is_masked                                             ? 0
                     : c->argument[LOGITS_MASK].dtype.code == ONEPASS_BOOL ? 1
                                                                           : 128);
    }
    for (int64_t i = 0; c->argument[LOGITS_UPSTREAM].given && i < c->argument[LOGITS_UPSTREAM].count; i++)
        case_put(c, LOGITS_UPSTREAM, i, case_random_between(random, -4, 4));
    if (c->argument[LOGITS_MADE_FOR].given) /* what no upstream gradient is: everything is made */
        case_put(c, LOGITS_MADE_FOR, 0, 100);
    if (c->argument[LOGITS_DIVISOR_TENSOR].given)
        case_put(c, LOGITS_DIVISOR_TENSOR, 0, -3.5);
    for (int64_t k = 0; c->argument[LOGITS_CLASS_WEIGHTS].given && k < case_extent(c, 'C'); k++)
        case_put(c, LOGITS_CLASS_WEIGHTS, k, case_random_between(random, 0.25, 2));
}

/* c->amount 1 masks every row, if there is a mask. A row that takes no part holds what must not be read. */
static void generate(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    size_t bytes = ((size_t)case_extent(c, 'C') + 1) * sizeof(double);
    double *x = malloc(bytes), *y = malloc(bytes);
    if (x && y)
        put_rows(c, &random, x, y);
    free(x);
    free(y);
    logits_put_row_options(c, &random);
    double ignored = logits_ignored(c, LOGITS_HAS_IGNORE_INDEX, LOGITS_IGNORE_INDEX);
    static const int spoiled[] = {LOGITS_PREDICTIONS, LOGITS_TARGETS, LOGITS_WEIGHTS, LOGITS_UPSTREAM};
    for (int64_t row = 0; row < case_rows(c); row++) {
        int is_out = (c->argument[LOGITS_MASK].given && case_get(c, LOGITS_MASK, row) == 0) ||
                     (c->argument[LOGITS_LABELS].given && case_get(c, LOGITS_LABELS, row) == ignored);
        for (int i = 0; is_out && i < 4; i++)
            if (spoiled[i] < c->arguments)
                logits_spoil(c, spoiled[i], row, &random);
    }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static const char *shape(const op_case *c, int argument)
{
    (void)argument; /* value and grad_value: one value, or one per row */
    return (int)c->options[LOGITS_REDUCTION] == ONEPASS_ROWS ? "*" : "";
}

/* Options that are still 0, at random, where c->amount asks for it. */
static void choose_options(op_case *c)
{
    static const double choices[LOGITS_TOP_K_OPTIONS][4] = {
        [LOGITS_TEMPERATURE] = {0, 1, 2, 0.7},        [LOGITS_SOFTCAP] = {0, 0, 30, 8},
        [LOGITS_IGNORE_INDEX] = {0, -1, 2, 5},        [LOGITS_LABEL_WEIGHT] = {0, 1, 0.5, -2},
        [LOGITS_SMOOTHING] = {0, 0, 0.1, 1},          [LOGITS_Z_LOSS] = {0, 0, 1e-2, -0.5},
        [LOGITS_ENTROPY_BONUS] = {0, 0, 0.3, -1},     [LOGITS_DIVERGENCE_WEIGHT] = {0, 1, 4, -0.5},
        [LOGITS_TARGET_TEMPERATURE] = {0, 0, 1, 1.5}, [LOGITS_LABEL_TEMPERATURE] = {0, 0, 1, 1.3},
        [LOGITS_TARGET_SOFTCAP] = {0, 0, 0, 20},
    };
    case_random random = case_random_stream(c->seed, 2);
    for (int i = 0; i < c->option_count; i++) {
        double choice = logits_choice(&random, choices[i], 4);
        if (c->options[i] == 0)
            c->options[i] = choice;
    }
    int64_t width = case_extent(c, 'C');
    if (c->options[LOGITS_COLUMNS] == 0 && width > 1 && case_random_below(&random, 3) == 0)
        c->options[LOGITS_COLUMNS] = (double)(1 + case_random_below(&random, width));
}

static void settle_labels(op_case *c)
{
    if (c->argument[LOGITS_LABELS].given)
        return;
    c->options[LOGITS_LABEL_WEIGHT] = c->options[LOGITS_SMOOTHING] = 0;
    c->argument[LOGITS_CLASS_WEIGHTS].given = c->argument[LOGITS_LOG_PROB].given = 0;
}

static void settle_top_k(op_case *c)
{
    int is_near = c->family == LOGITS_NEAR_3 || c->family == LOGITS_NEAR_4;
    c->options[LOGITS_DIVERGENCE] = (double)((int)c->options[LOGITS_DIVERGENCE] % 2);
    if (c->amount != 0 && c->options[LOGITS_TOP_FORM] == 0)
        c->options[LOGITS_TOP_FORM] = (double)(c->seed / 5 % 3);
    if (c->amount != 0 && c->options[LOGITS_OUTSIDE] == 0)
        c->options[LOGITS_OUTSIDE] = (double)(c->seed / 17 % 4);
    c->options[LOGITS_MIXTURE] = c->options[LOGITS_TARGET_SOFTCAP] = 0;
    if ((int)c->options[LOGITS_TOP_FORM] != ONEPASS_TOP_LOGITS || is_near)
        c->options[LOGITS_TARGET_TEMPERATURE] = 0;
    settle_labels(c);
}

static void settle_divergence(op_case *c)
{
    int divergence = (int)c->options[LOGITS_DIVERGENCE], form = exact_logits_form(c);
    int mixes = divergence == ONEPASS_JS || divergence == ONEPASS_SKEW_KL || divergence == ONEPASS_SKEW_REVERSE_KL;
    static const double mixtures[] = {0.5, 0.1, 0.9, 0.3};
    if (!mixes)
        c->options[LOGITS_MIXTURE] = 0;
    else if (c->options[LOGITS_MIXTURE] == 0)
        c->options[LOGITS_MIXTURE] = mixtures[c->seed % 4];
    if (form != EXACT_TARGET_LOGITS) {
        c->options[LOGITS_TARGET_TEMPERATURE] = c->options[LOGITS_TARGET_SOFTCAP] = 0;
        c->argument[LOGITS_TARGET_LSE].given = 0;
    } else if (c->family == LOGITS_NEAR_3 || c->family == LOGITS_NEAR_4) {
        c->options[LOGITS_TARGET_TEMPERATURE] = 0;
        c->options[LOGITS_TARGET_SOFTCAP] = c->options[LOGITS_SOFTCAP];
    }
    settle_labels(c);
    /* In float64, with targets that are no logits, logarithms of hundreds nearly cancel in these families: by more than
     * the bounds of exact_logits.c are for. */
    int is_double = case_same_type(c->argument[LOGITS_PREDICTIONS].dtype, case_f64) ||
                    case_same_type(c->argument[LOGITS_TARGETS].dtype, case_f64);
    int cancels = c->family == LOGITS_SHARP || c->family == LOGITS_WIDE || c->family == LOGITS_UNNORMALISED;
    if (is_double && form != EXACT_TARGET_LOGITS && cancels)
        c->family = LOGITS_GAUSSIAN;
    c->argument[LOGITS_GRAD_TARGETS].dtype = c->argument[LOGITS_TARGETS].dtype;
}

static void settle(op_case *c)
{
    static const int results[] = {LOGITS_VALUE,  LOGITS_LSE,        LOGITS_ENTROPY,       LOGITS_LOG_PROB,
                                  LOGITS_ARGMAX, LOGITS_TARGET_LSE, LOGITS_TARGET_ENTROPY};
    int has_targets = exact_logits_form(c) != EXACT_NO_TARGET, is_any = 0;
    int is_top_k = exact_logits_form(c) == EXACT_TARGET_TOP_K;
    onepass_dtype promoted = c->argument[LOGITS_PREDICTIONS].dtype;
    if (has_targets)
        promoted = case_promote(promoted, c->argument[LOGITS_TARGETS].dtype);
    if ((int)c->options[LOGITS_REDUCTION] == ONEPASS_NONE)
        c->options[LOGITS_REDUCTION] = ONEPASS_VALID;
    if (c->amount != 0)
        choose_options(c);
    if (c->options[LOGITS_HAS_IGNORE_INDEX] == 0)
        c->options[LOGITS_IGNORE_INDEX] = 0;
    if (is_top_k)
        settle_top_k(c);
    else if (has_targets)
        settle_divergence(c);
    c->argument[LOGITS_GRAD_PREDICTIONS].dtype = c->argument[LOGITS_PREDICTIONS].dtype;
    if (*shape(c, LOGITS_VALUE)) /* grad_made_for goes with one value, and with gradients alone */
        c->argument[LOGITS_MADE_FOR].given = 0;
    for (int i = 0; i < 7; i++) {
        if (results[i] >= c->arguments)
            continue;
        case_argument *a = &c->argument[results[i]];
        if (results[i] != LOGITS_ARGMAX && !case_holds(a->dtype, promoted))
            a->dtype = promoted;
        if (c->argument[LOGITS_MADE_FOR].given)
            a->given = 0;
        is_any |= a->given;
    }
    if (!is_any && !(has_targets && !is_top_k && c->argument[LOGITS_GRAD_TARGETS].given))
        c->argument[LOGITS_GRAD_PREDICTIONS].given = 1;
    if ((int)c->options[LOGITS_REDUCTION] != ONEPASS_DIVISOR) {
        c->options[LOGITS_DIVISOR] = 0;
        c->argument[LOGITS_DIVISOR_TENSOR].given = 0;
    } else {
        c->options[LOGITS_DIVISOR] = c->argument[LOGITS_DIVISOR_TENSOR].given ? 0 : -2.5;
    }
}

static void begin(op_case *c)
{
    c->leading_rank = 1;
    c->leading[0] = 3;
    c->extents['C' - 'A'] = 7;
    c->argument[LOGITS_MASK].dtype = case_u8;
    c->argument[LOGITS_LABELS].dtype = c->argument[LOGITS_ARGMAX].dtype = case_i64;
    c->argument[LOGITS_VALUE].given = c->argument[LOGITS_GRAD_PREDICTIONS].given = 1;
    if (exact_logits_form(c) == EXACT_TARGET_TOP_K) {
        c->extents['K' - 'A'] = 3;
        c->argument[LOGITS_TOP_INDICES].dtype = case_i64;
    } else if (exact_logits_form(c) != EXACT_NO_TARGET) {
        c->argument[LOGITS_GRAD_TARGETS].given = 1;
    }
}

static const char *const names[] = {"divergence_logits_logits",    "divergence_logits_probs",
                                    "divergence_logits_log_probs", "divergence_logits_top_k",
                                    "cross_entropy_logits_labels", NULL};

const case_definition case_logits = {.names = names,
                                     .families = LOGITS_SPECIAL + 1,
                                     .begin = begin,
                                     .shape = shape,
                                     .settle = settle,
                                     .generate = generate,
                                     .exact = exact};
