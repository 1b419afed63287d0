/*
 * Cases of losses over several ranks: what one rank computes. States are those of rows of one slice, by definition;
 * what is merged is drawn; loss and token log-probabilities are those of a rank that has all columns, so the bounds of
 * logits.c and token.c hold, with statistics that level "ref" makes of the case's own numbers. Rows over several ranks
 * are test_logits_shards.c's; merges are shard_merge.c's. The errors of states: of a sum of exponentials and of the
 * spread, what softmax.h says of each column; of KL and of sums, what exact_logits.h says; of a softcap 8u.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/exact_row.h"
#include "cases/shards.h"

enum { STATES_PREDICTIONS, STATES_TARGETS, STATES_LABELS, STATES_INDICES, STATES_CLASS_WEIGHTS, STATES_MASK, STATES };

static double or_default(double x, double otherwise)
{
    return x != 0 ? x : otherwise;
}

/* A rank that has all columns, of which some may be padding. `chosen` is the option of the unsharded call. */
static void settle_columns(op_case *c, int chosen)
{
    int first = case_option_named(c, "first_column"), total = case_option_named(c, "total_columns");
    c->options[first] = 0;
    c->options[total] = or_default(c->options[chosen], (double)case_extent(c, 'C'));
    c->options[chosen] = 0;
}

/* settle may be called again, after the number of columns has changed. */
static void forget_columns(op_case *c, int chosen)
{
    c->options[chosen] = c->options[case_option_named(c, "total_columns")] = 0;
}

/* Level "ref" passes through a softcap in double, so its largest logit is not that of another level, which a column
 * that has nearly all mass sees at once. With statistics of the same level they are in test_logits_shards.c. */
static void settle_statistics(op_case *c, int argument, int64_t indices, int has_targets)
{
    for (int i = 0; i < c->option_count; i++)
        if (strstr(onepass_operator_option(c->op, i)->name, "softcap"))
            c->options[i] = 0;
    case_argument *a = &c->argument[argument];
    a->dtype = case_f64;
    a->given = 1;
    a->layout = a->layout >= CASE_REPEATED_ROWS ? CASE_COMPACT : a->layout; /* every row has its own */
    c->extents['F' - 'A'] = onepass_shard_statistics_width(indices, has_targets);
}

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

enum { LOSS_STATISTICS = LOGITS_ARGUMENTS };

static const onepass_tensor *given(const op_case *c, int argument)
{
    return argument < c->arguments && c->argument[argument].given ? &c->argument[argument].tensor : NULL;
}

/* The statistics of a rank that has all columns, into an argument of the case; with the sums of those that have any. */
static void put_statistics(op_case *c, int argument, const onepass_tensor *logits, const onepass_tensor *targets,
                           const onepass_tensor *indices, const onepass_logits_options *options, int adds_sums)
{
    int64_t rows = case_rows(c), count = options->labels ? 1 : indices ? case_extent(c, 'K') : 0;
    int64_t width = onepass_shard_states_width(case_extent(c, 'C'), count, targets != NULL);
    int64_t merged = case_extent(c, 'F');
    double *states = calloc((size_t)(rows * (width + merged)) + 1, sizeof *states), *statistics = states + rows * width;
    onepass_config config = {.size = sizeof config, .isa = "ref", .threads = 1};
    onepass_handle *handle = NULL;
    if (!states || onepass_create(&config, &handle) != ONEPASS_OK) {
        free(states);
        return;
    }
    int64_t shape[CASE_MAX_RANK], sent[3] = {1, rows, width}, all[2] = {rows, merged};
    for (int d = 0; d < c->leading_rank; d++)
        shape[d] = c->leading[d];
    shape[c->leading_rank] = width;
    onepass_tensor to = {
        .data = states, .device = {ONEPASS_CPU, 0}, .ndim = c->leading_rank + 1, .dtype = case_f64, .shape = shape};
    onepass_tensor gathered = to, result = to;
    gathered.ndim = 3;
    gathered.shape = sent;
    result.data = statistics;
    result.ndim = 2;
    result.shape = all;
    int is_good = onepass_shard_states(handle, logits, targets, indices, options, &to) == ONEPASS_OK &&
                  onepass_shard_merge(handle, &gathered, &result) == ONEPASS_OK;
    if (is_good && adds_sums && targets && options->divergence >= ONEPASS_JS) {
        shape[c->leading_rank] = sent[2] = onepass_shard_sums_width(case_extent(c, 'C')); /* fewer than of states */
        onepass_tensor of_rows = result;
        int64_t as_logits[CASE_MAX_RANK];
        memcpy(as_logits, shape, sizeof as_logits);
        as_logits[c->leading_rank] = merged;
        of_rows.ndim = to.ndim;
        of_rows.shape = as_logits;
        is_good = onepass_shard_sums(handle, logits, targets, &of_rows, options, &to) == ONEPASS_OK &&
                  onepass_shard_merge_sums(handle, &result, &gathered, &result) == ONEPASS_OK;
    }
    for (int64_t i = 0; is_good && i < rows * merged; i++)
        case_put(c, argument, i, statistics[i]);
    onepass_destroy(handle);
    free(states);
}

static void generate_loss(op_case *c)
{
    case_logits.generate(c);
    const double *o = c->options;
    onepass_logits_options options = {.size = sizeof options,
                                      .temperature = o[LOGITS_TEMPERATURE],
                                      .softcap = o[LOGITS_SOFTCAP],
                                      .has_ignore_index = (int32_t)o[LOGITS_HAS_IGNORE_INDEX],
                                      .ignore_index = (int64_t)o[LOGITS_IGNORE_INDEX],
                                      .label_smoothing = o[LOGITS_SMOOTHING],
                                      .divergence = (onepass_divergence)(int)o[LOGITS_DIVERGENCE],
                                      .mixture = o[LOGITS_MIXTURE],
                                      .target_temperature = o[LOGITS_TARGET_TEMPERATURE],
                                      .label_temperature = o[LOGITS_LABEL_TEMPERATURE],
                                      .target_softcap = o[LOGITS_TARGET_SOFTCAP],
                                      .labels = given(c, LOGITS_LABELS),
                                      .class_weights = given(c, LOGITS_CLASS_WEIGHTS),
                                      .row_mask = given(c, LOGITS_MASK),
                                      .total_columns = logits_columns(c, LOGITS_COLUMNS)};
    put_statistics(c, LOSS_STATISTICS, given(c, LOGITS_PREDICTIONS), given(c, LOGITS_TARGETS), NULL, &options, 1);
}

static void settle_loss(op_case *c)
{
    case_argument *a = c->argument;
    forget_columns(c, LOGITS_COLUMNS);
    if (!a[LOGITS_TARGETS].given) {
        a[LOGITS_LABELS].given = 1;
        a[LOGITS_GRAD_TARGETS].given = a[LOGITS_TARGET_LSE].given = a[LOGITS_TARGET_ENTROPY].given = 0;
    }
    case_logits.settle(c);
    for (int i = LOGITS_DIVERGENCE; i < LOGITS_OPTIONS && !a[LOGITS_TARGETS].given; i++)
        c->options[i] = 0;
    a[LOGITS_GRAD_TARGETS].dtype = a[LOGITS_TARGETS].dtype;
    settle_columns(c, LOGITS_COLUMNS);
    settle_statistics(c, LOSS_STATISTICS, a[LOGITS_LABELS].given, a[LOGITS_TARGETS].given);
}

static void begin_loss(op_case *c)
{
    case_logits.begin(c);
    c->argument[LOGITS_LABELS].given = 1;
    settle_loss(c);
}

static int exact_loss(op_case *c, case_arithmetic arithmetic)
{
    return case_logits.exact(c, arithmetic);
}

static const char *loss_shape(const op_case *c, int argument)
{
    return case_logits.shape(c, argument);
}

static const char *const loss_names[] = {"shard_loss", NULL};
const case_definition case_shard_loss = {.names = loss_names,
                                         .families = LOGITS_SPECIAL + 1,
                                         .begin = begin_loss,
                                         .shape = loss_shape,
                                         .settle = settle_loss,
                                         .generate = generate_loss,
                                         .exact = exact_loss};

/* ---- token log-probabilities ------------------------------------------------------------------------------------- */

static int token_statistics(const op_case *c)
{
    return case_argument_named(c, "statistics");
}

static void settle_token(op_case *c)
{
    forget_columns(c, TOKEN_COLUMNS);
    case_token.settle(c);
    settle_columns(c, TOKEN_COLUMNS);
    settle_statistics(c, token_statistics(c), c->argument[TOKEN_INDICES].given ? case_extent(c, 'K') : 0, 0);
}

static void begin_token(op_case *c)
{
    case_token.begin(c);
    settle_token(c);
}

static void generate_token(op_case *c)
{
    case_token.generate(c);
    onepass_logits_options options = {.size = sizeof options,
                                      .temperature = c->options[TOKEN_TEMPERATURE],
                                      .softcap = c->options[TOKEN_SOFTCAP],
                                      .row_mask = given(c, TOKEN_MASK),
                                      .total_columns = logits_columns(c, TOKEN_COLUMNS)};
    put_statistics(c, token_statistics(c), given(c, TOKEN_LOGITS), NULL, given(c, TOKEN_INDICES), &options, 0);
}

static int exact_token(op_case *c, case_arithmetic arithmetic)
{
    return case_token.exact(c, arithmetic);
}

static const char *const token_names[] = {"shard_token_log_probs", "shard_token_log_probs_backward", NULL};
const case_definition case_shard_token = {.names = token_names,
                                          .families = LOGITS_SPECIAL + 1,
                                          .begin = begin_token,
                                          .settle = settle_token,
                                          .generate = generate_token,
                                          .exact = exact_token};

/* ---- states ------------------------------------------------------------------------------------------------------ */

static int64_t states_indices(const op_case *c)
{
    return c->argument[STATES_LABELS].given ? 1 : c->argument[STATES_INDICES].given ? case_extent(c, 'K') : 0;
}

static int states_kind(const op_case *c)
{
    return c->argument[STATES_TARGETS].given ? FORWARD_KL + (int)c->options[LOGITS_DIVERGENCE] : NO_DIVERGENCE;
}

/* The mixture that goes with the divergence; without targets there is neither. */
static void settle_mixture(op_case *c, int has_targets)
{
    static const double mixtures[] = {0.5, 0.1, 0.9, 0.3};
    int divergence = has_targets ? (int)c->options[LOGITS_DIVERGENCE] : ONEPASS_KL;
    int mixes = divergence >= ONEPASS_JS && divergence != ONEPASS_TOTAL_VARIATION;
    c->options[LOGITS_DIVERGENCE] = divergence;
    c->options[LOGITS_MIXTURE] = mixes ? mixtures[c->seed % 4] : 0;
}

/* What is exchanged is known of one slice. */
static void settle_slice(op_case *c)
{
    if (case_extent(c, 'C') > SLICE)
        c->extents['C' - 'A'] = SLICE;
}

static void settle_states(op_case *c)
{
    settle_slice(c);
    static const double temperatures[] = {0, 1, 2, 0.7}, caps[] = {0, 0, 30, 8};
    case_argument *a = c->argument;
    case_random random = case_random_stream(c->seed, 3);
    if (a[STATES_LABELS].given)
        a[STATES_INDICES].given = 0;
    int has_targets = a[STATES_TARGETS].given;
    int64_t width = case_extent(c, 'C');
    for (int i = 0; i < c->option_count; i++)
        if (i != LOGITS_DIVERGENCE)
            c->options[i] = 0;
    c->options[case_option_named(c, "total_columns")] =
        (double)(c->amount != 0 && width > 0 ? width - case_random_below(&random, width < 3 ? width : 3) : width);
    settle_mixture(c, has_targets);
    if (c->amount != 0) {
        c->options[LOGITS_TEMPERATURE] = logits_choice(&random, temperatures, 4);
        c->options[LOGITS_SOFTCAP] = logits_choice(&random, caps, 4);
        if (has_targets)
            c->options[LOGITS_LABEL_TEMPERATURE] = logits_choice(&random, temperatures, 4);
        if (a[STATES_LABELS].given)
            c->options[LOGITS_SMOOTHING] = case_random_below(&random, 2) ? 0.1 : 0;
    }
    if (has_targets && !a[STATES_LABELS].given)
        a[STATES_CLASS_WEIGHTS].given = 0;
    if (has_targets && (c->family == LOGITS_MASKED || c->family == LOGITS_SPECIAL)) /* KL within a slice is finite */
        c->family = LOGITS_GAUSSIAN;
    a[STATES].dtype = case_f64;
    c->extents['W' - 'A'] =
        onepass_shard_states_width(case_extent(c, 'C'), states_indices(c), has_targets) + (int64_t)(c->seed % 3);
}

static void begin_states(op_case *c)
{
    c->leading_rank = 1;
    c->leading[0] = 3;
    c->extents['C' - 'A'] = 7;
    c->extents['K' - 'A'] = 2;
    c->argument[STATES_MASK].dtype = case_u8;
    c->argument[STATES_LABELS].dtype = c->argument[STATES_INDICES].dtype = case_i64;
    settle_states(c);
}

static void generate_states(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    int64_t width = case_extent(c, 'C'), total = (int64_t)c->options[case_option_named(c, "total_columns")];
    double *x = malloc(((size_t)width + 1) * sizeof *x);
    for (int64_t row = 0; x && row < case_rows(c); row++) {
        for (int side = STATES_PREDICTIONS; side <= STATES_TARGETS; side++) {
            logits_draw_row(c->family, x, width, &random);
            if (c->family == LOGITS_SPECIAL && width > 0 && (row & 1))
                x[case_random_below(&random, width)] = case_random_below(&random, 2) ? (double)NAN : (double)INFINITY;
            for (int64_t k = 0; k < width && c->argument[side].given; k++)
                case_put(c, side, row * width + k, x[k]);
        }
        if (c->argument[STATES_MASK].given)
            case_put(c, STATES_MASK, row, (double)(case_random_below(&random, 4) != 0));
        for (int64_t k = 0; k < states_indices(c); k++) {
            int64_t index = case_random_below(&random, 5) == 0 ? -100 : case_random_below(&random, total + 2);
            if (c->argument[STATES_LABELS].given)
                case_put(c, STATES_LABELS, row, (double)index);
            else
                case_put(c, STATES_INDICES, row * states_indices(c) + k, (double)index);
        }
    }
    for (int64_t k = 0; k < width && c->argument[STATES_CLASS_WEIGHTS].given; k++)
        case_put(c, STATES_CLASS_WEIGHTS, k, case_random_between(&random, 0.25, 2));
    free(x);
}

/* A number of a row of states. */
static void put_state(op_case *c, int64_t row, int64_t place, long double x, long double error)
{
    case_expected(c, STATES, row * case_extent(c, 'W') + place, x, error);
}

static double capped(double x, double cap)
{
    return cap > 0 && x != -INFINITY ? cap * tanh(x / cap) : x;
}

/* max, others and spread of one side, from `place` on; the row's largest v is returned. */
static double put_side(op_case *c, int64_t row, int64_t place, softmax_row of, softmax_precision precision,
                       exact_softmax *s)
{
    long double spread = 0, error = 0;
    double most = -INFINITY;
    *s = exact_softmax_of(of, precision);
    for (int64_t k = 0; k < of.columns && !isnan(most); k++) {
        double v = capped(of.logits[k], of.cap);
        most = v > most || isnan(v) ? v : most;
        softmax_column one = exact_column_of(s, k);
        long double whole = 1 + s->others;
        if (one.p > 0) {
            spread += whole * one.p * one.d;
            error += whole * (one.p_error * fabsl(one.d) + one.p * (one.d_error + 4 * precision.u * fabsl(one.d)));
        }
    }
    int is_none = s->has_no_mass, is_undefined = isnan(most) || most == INFINITY;
    put_state(c, row, place + MAX, most, of.cap > 0 ? 8 * precision.u * fabs(most) : 0);
    put_state(c, row, place + OTHERS, is_undefined ? NAN : is_none ? 0 : s->others, s->others_error);
    put_state(c, row, place + SPREAD,
              is_undefined ? NAN
              : is_none    ? 0
                           : spread,
              error + (double)of.columns * precision.least);
    return most;
}

/* The divergence of the rows, by the exact loss of logits that are all here. */
static op_case whole;

static int expect_divergence(const op_case *c, case_arithmetic arithmetic)
{
    static const int same[] = {LOGITS_TEMPERATURE,        LOGITS_SOFTCAP,       LOGITS_DIVERGENCE, LOGITS_MIXTURE,
                               LOGITS_TARGET_TEMPERATURE, LOGITS_TARGET_SOFTCAP};
    int64_t width = case_extent(c, 'C');
    case_begin(&whole, "divergence_logits_logits");
    whole.leading_rank = c->leading_rank;
    memcpy(whole.leading, c->leading, sizeof whole.leading);
    whole.extents['C' - 'A'] = width;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        whole.options[same[i]] = c->options[same[i]];
    whole.options[LOGITS_COLUMNS] = c->options[case_option_named(c, "total_columns")];
    whole.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
    whole.argument[LOGITS_PREDICTIONS].dtype = c->argument[STATES_PREDICTIONS].dtype;
    whole.argument[LOGITS_TARGETS].dtype = c->argument[STATES_TARGETS].dtype;
    whole.argument[LOGITS_GRAD_PREDICTIONS].given = whole.argument[LOGITS_GRAD_TARGETS].given = 0;
    case_settle(&whole);
    if (!case_place(&whole))
        return 0;
    for (int64_t i = 0; i < case_rows(c) * width; i++) {
        case_put(&whole, LOGITS_PREDICTIONS, i, case_was(c, STATES_PREDICTIONS, i));
        case_put(&whole, LOGITS_TARGETS, i, case_was(c, STATES_TARGETS, i));
    }
    case_remember(&whole);
    return case_expect(&whole, arithmetic);
}

static void expect_slice(op_case *c, int64_t row, int64_t place, const double *x, const double *y,
                         case_arithmetic arithmetic)
{
    const double *o = c->options;
    int has_targets = c->argument[STATES_TARGETS].given;
    int64_t columns = (int64_t)o[case_option_named(c, "total_columns")];
    double temperature = or_default(o[LOGITS_TEMPERATURE], 1), cap = o[LOGITS_SOFTCAP];
    double of_labels = has_targets ? or_default(o[LOGITS_LABEL_TEMPERATURE], 1) : temperature;
    onepass_dtype promoted = c->argument[STATES_PREDICTIONS].dtype;
    if (has_targets)
        promoted = case_promote(promoted, c->argument[STATES_TARGETS].dtype);
    softmax_precision precision = softmax_precision_of(arithmetic, promoted);
    exact_softmax p, other;
    double best = put_side(c, row, place + SIDES, (softmax_row){x, columns, cap, of_labels}, precision, &p);
    put_state(c, row, place + FIRST, (long double)(p.first + p.last) / 2, (long double)(p.last - p.first) / 2);
    put_state(c, row, place + BEST, best, 8 * precision.u * fabs(best) * (cap > 0));
    put_state(c, row, place + BARE, -INFINITY, 0);
    if (has_targets) {
        put_side(c, row, place + SIDES + SIDE, (softmax_row){x, columns, cap, temperature}, precision, &other);
        put_side(c, row, place + SIDES + 2 * SIDE, (softmax_row){y, columns, 0, temperature}, precision, &other);
        if (states_kind(c) < FIRST_WITH_SUMS)
            put_state(c, row, place + DIVERGENCE, whole.argument[LOGITS_VALUE].expected[row],
                      whole.argument[LOGITS_VALUE].allowed[row]);
    }
    long double below = 0, error = 0, weights = 0;
    for (int64_t k = 0; k < columns && o[LOGITS_SMOOTHING] != 0; k++) {
        long double w = case_was_or(c, STATES_CLASS_WEIGHTS, k, 1), v = capped(x[k], cap);
        long double apart = p.has_no_mass ? INFINITY : (long double)best - v;
        below += w * apart;
        error +=
            isfinite(apart) ? w * precision.u * (4 * fabsl(apart) + (cap > 0 ? 8 * (fabs(best) + fabsl(v)) : 0)) : 0;
        weights += w;
    }
    put_state(c, row, place + BELOW, below, error);
    put_state(c, row, place + WEIGHTS, weights, 2 * precision.u * weights);
}

static int exact_states(op_case *c, case_arithmetic arithmetic)
{
    const double *o = c->options;
    int64_t width = case_extent(c, 'C'), columns = (int64_t)o[case_option_named(c, "total_columns")];
    int has_targets = c->argument[STATES_TARGETS].given, sides = has_targets ? 3 : 1;
    double *x = malloc((2 * (size_t)width + 1) * sizeof *x), *y = x + width;
    double temperature = or_default(o[LOGITS_TEMPERATURE], 1), cap = o[LOGITS_SOFTCAP];
    onepass_dtype promoted = c->argument[STATES_PREDICTIONS].dtype;
    if (has_targets)
        promoted = case_promote(promoted, c->argument[STATES_TARGETS].dtype);
    long double u = softmax_precision_of(arithmetic, promoted).u;
    if (!x || (has_targets && !expect_divergence(c, arithmetic))) {
        free(x);
        return 0;
    }
    for (int64_t row = 0; row < case_rows(c); row++) {
        for (int64_t k = 0; k < case_extent(c, 'W'); k++)
            put_state(c, row, k, 0, 0);
        put_state(c, row, COLUMNS, columns, 0);
        put_state(c, row, KIND, states_kind(c), 0);
        put_state(c, row, INDICES, states_indices(c), 0);
        put_state(c, row, SLICES, columns > 0, 0);
        put_state(c, row, BITS, promoted.bits == 64 ? 64 : 32, 0);
        double scales[] = {1 / (has_targets ? or_default(o[LOGITS_LABEL_TEMPERATURE], 1) : temperature),
                           1 / temperature, 1 / temperature};
        for (int side = 0; side < sides; side++)
            put_state(c, row, SCALES + side, scales[side], 0);
        if (case_was_or(c, STATES_MASK, row, 1) == 0 ||
            (c->argument[STATES_LABELS].given && case_was(c, STATES_LABELS, row) == -100))
            continue;
        softmax_load_row(c, STATES_PREDICTIONS, row, x);
        if (has_targets)
            softmax_load_row(c, STATES_TARGETS, row, y);
        int64_t place = SCALES + sides, count = states_indices(c);
        for (int64_t k = 0; k < count; k++, place += PICK) {
            double index = c->argument[STATES_LABELS].given ? case_was(c, STATES_LABELS, row)
                                                            : case_was(c, STATES_INDICES, row * count + k);
            if (!(index >= 0 && index < (double)columns))
                continue;
            double v = capped(x[(int64_t)index], cap);
            put_state(c, row, place, 1, 0);
            put_state(c, row, place + 1, v, cap > 0 && isfinite(v) ? 8 * u * fabs(v) : 0);
            put_state(c, row, place + 2, case_was_or(c, STATES_CLASS_WEIGHTS, (int64_t)index, 1), 0);
        }
        if (columns > 0)
            expect_slice(c, row, place, x, y, arithmetic);
    }
    free(x);
    return 1;
}

static const char *const states_names[] = {"shard_states", NULL};
const case_definition case_shard_states = {.names = states_names,
                                           .families = LOGITS_SPECIAL + 1,
                                           .begin = begin_states,
                                           .settle = settle_states,
                                           .generate = generate_states,
                                           .exact = exact_states};

/* ---- sums -------------------------------------------------------------------------------------------------------- */

enum { SUMS_PREDICTIONS, SUMS_TARGETS, SUMS_LABELS, SUMS_MASK, SUMS_STATISTICS, SUMS_OUT };

static void settle_sums(op_case *c)
{
    settle_slice(c);
    static const double temperatures[] = {0, 1, 2, 0.7};
    case_random random = case_random_stream(c->seed, 3);
    int64_t width = case_extent(c, 'C');
    for (int i = 0; i < c->option_count; i++)
        if (i != LOGITS_DIVERGENCE)
            c->options[i] = 0;
    if (c->options[LOGITS_DIVERGENCE] < ONEPASS_JS)
        c->options[LOGITS_DIVERGENCE] = (double)(ONEPASS_JS + c->seed / 4 % 4);
    settle_mixture(c, 1);
    c->options[case_option_named(c, "total_columns")] =
        (double)(c->amount != 0 && width > 0 ? width - case_random_below(&random, width < 3 ? width : 3) : width);
    if (c->amount != 0)
        c->options[LOGITS_TEMPERATURE] = logits_choice(&random, temperatures, 4);
    if (c->family == LOGITS_SPECIAL) /* whose sums are nothing in particular: the loss looks at the maxima first */
        c->family = LOGITS_GAUSSIAN;
    c->argument[SUMS_OUT].dtype = case_f64;
    c->extents['W' - 'A'] = onepass_shard_sums_width(width) + (int64_t)(c->seed % 3);
    settle_statistics(c, SUMS_STATISTICS, c->argument[SUMS_LABELS].given, 1);
}

static void begin_sums(op_case *c)
{
    c->leading_rank = 1;
    c->leading[0] = 3;
    c->extents['C' - 'A'] = 7;
    c->argument[SUMS_MASK].dtype = case_u8;
    c->argument[SUMS_LABELS].dtype = case_i64;
    settle_sums(c);
}

static void generate_sums(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    const double *o = c->options;
    int64_t width = case_extent(c, 'C');
    double *x = malloc(((size_t)width + 1) * sizeof *x);
    for (int64_t row = 0; x && row < case_rows(c); row++) {
        for (int side = SUMS_PREDICTIONS; side <= SUMS_TARGETS; side++) {
            logits_draw_row(c->family, x, width, &random);
            for (int64_t k = 0; k < width; k++)
                case_put(c, side, row * width + k, x[k]);
        }
        if (c->argument[SUMS_MASK].given)
            case_put(c, SUMS_MASK, row, (double)(case_random_below(&random, 4) != 0));
        if (c->argument[SUMS_LABELS].given)
            case_put(c, SUMS_LABELS, row, case_random_below(&random, 5) == 0 ? -100 : 0);
    }
    free(x);
    onepass_logits_options options = {.size = sizeof options,
                                      .temperature = o[LOGITS_TEMPERATURE],
                                      .divergence = (onepass_divergence)(int)o[LOGITS_DIVERGENCE],
                                      .mixture = o[LOGITS_MIXTURE],
                                      .labels = given(c, SUMS_LABELS),
                                      .row_mask = given(c, SUMS_MASK),
                                      .total_columns = logits_columns(c, LOGITS_COLUMNS)};
    put_statistics(c, SUMS_STATISTICS, given(c, SUMS_PREDICTIONS), given(c, SUMS_TARGETS), NULL, &options, 0);
}

/* What kernels add up of S dD/dS has a multiple of S more, and of T dD/dT as much of T less, each of which adds up to 1
 * and is off as its columns are. */
static bounded without_multiple(const exact_logits *e, bounded sum, const exact_softmax *of, long double multiple)
{
    long double error = sum.error;
    for (int64_t k = 0; k < e->columns; k++) {
        softmax_column one = exact_column_of(of, k);
        error += fabsl(multiple) * (one.p_error + 8 * e->precision.u * one.p);
    }
    return (bounded){sum.x + multiple, error};
}

static int exact_sums(op_case *c, case_arithmetic arithmetic)
{
    int64_t columns = logits_columns(c, LOGITS_COLUMNS), width = case_extent(c, 'W');
    exact_logits *e = expect_divergence(c, arithmetic) ? exact_logits_begin(&whole, arithmetic) : NULL;
    for (int64_t row = 0; e && row < case_rows(c); row++) {
        double head[SUMS_BEGIN] = {(double)columns, FORWARD_KL + c->options[LOGITS_DIVERGENCE],
                                   c->options[LOGITS_MIXTURE], columns > 0};
        for (int64_t k = 0; k < width; k++)
            case_expected(c, SUMS_OUT, row * width + k, k < SUMS_BEGIN ? head[k] : 0, 0);
        if (columns == 0 || case_was_or(c, SUMS_MASK, row, 1) == 0 ||
            (c->argument[SUMS_LABELS].given && case_was(c, SUMS_LABELS, row) == -100))
            continue;
        exact_logits_row(e, row, 1);
        long double multiple = e->a * (1 - e->q) - e->b * e->q;
        int lacks_mass = e->s.has_no_mass || e->t.has_no_mass; /* nothing is defined then */
        bounded nothing = {NAN, 0};
        bounded sum_s = lacks_mass ? nothing : without_multiple(e, e->s_sum, &e->s, multiple);
        bounded sum_t = lacks_mass ? nothing : without_multiple(e, e->t_sum, &e->t, -multiple);
        case_expected(c, SUMS_OUT, row * width + SUMS_BEGIN, whole.argument[LOGITS_VALUE].expected[row],
                      whole.argument[LOGITS_VALUE].allowed[row]);
        case_expected(c, SUMS_OUT, row * width + SUMS_BEGIN + 1, sum_s.x, sum_s.error);
        case_expected(c, SUMS_OUT, row * width + SUMS_BEGIN + 2, sum_t.x, sum_t.error);
    }
    exact_logits_end(e);
    return e != NULL;
}

static const char *const sums_names[] = {"shard_sums", NULL};
const case_definition case_shard_sums = {.names = sums_names,
                                         .families = LOGITS_SPECIAL + 1,
                                         .begin = begin_sums,
                                         .settle = settle_sums,
                                         .generate = generate_sums,
                                         .exact = exact_sums};
