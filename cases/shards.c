/*
 * Cases of losses over several ranks: what one rank computes. States are those of rows of one slice, by definition;
 * what is merged is drawn; loss and token log-probabilities are those of a rank that has all columns, so the bounds of
 * logits.c and token.c hold, with statistics that level "ref" makes of the case's own numbers. Rows over several ranks
 * are test_logits_shards.c's. The errors of states: of a sum of exponentials and of the spread, what softmax.h says of
 * each column; of KL, what exact_logits.h says; of a softcap 8u. The merge is in double: 1e-13 of the sum of sizes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/exact_logits.h"

/* The layout of states and statistics: see src/logits/shard.h. */
enum { COLUMNS, KIND, INDICES, SLICES, BITS, SCALES };
enum { FIRST, BEST, DIVERGENCE, BARE, BELOW, WEIGHTS, SIDES };
enum { ALL_COLUMNS, ALL_KIND, ALL_INDICES, ALL_FIRST, ALL_DIVERGENCE, SUM_S, SUM_T, ALL_BELOW, ALL_WEIGHTS, ALL_SIDES };
enum { MAX, OTHERS, SPREAD, SIDE };
enum { NO_DIVERGENCE, FORWARD_KL, REVERSE_KL };
enum { PICK = 3, SLICE = 8192 };

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

static void settle_statistics(op_case *c, int argument, int64_t indices, int has_targets)
{
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

/* The statistics of a rank that has all columns, into an argument of the case. */
static void put_statistics(op_case *c, int argument, const onepass_tensor *logits, const onepass_tensor *targets,
                           const onepass_tensor *indices, const onepass_logits_options *options)
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
    if (onepass_shard_states(handle, logits, targets, indices, options, &to) == ONEPASS_OK &&
        onepass_shard_merge(handle, &gathered, &result) == ONEPASS_OK)
        for (int64_t i = 0; i < rows * merged; i++)
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
                                      .target_temperature = o[LOGITS_TARGET_TEMPERATURE],
                                      .label_temperature = o[LOGITS_LABEL_TEMPERATURE],
                                      .target_softcap = o[LOGITS_TARGET_SOFTCAP],
                                      .labels = given(c, LOGITS_LABELS),
                                      .class_weights = given(c, LOGITS_CLASS_WEIGHTS),
                                      .row_mask = given(c, LOGITS_MASK),
                                      .total_columns = logits_columns(c, LOGITS_COLUMNS)};
    put_statistics(c, LOSS_STATISTICS, given(c, LOGITS_PREDICTIONS), given(c, LOGITS_TARGETS), NULL, &options);
}

static void settle_loss(op_case *c)
{
    case_argument *a = c->argument;
    forget_columns(c, LOGITS_COLUMNS);
    if (!a[LOGITS_TARGETS].given) {
        a[LOGITS_LABELS].given = 1;
        a[LOGITS_GRAD_TARGETS].given = a[LOGITS_TARGET_LSE].given = a[LOGITS_TARGET_ENTROPY].given = 0;
    }
    c->options[LOGITS_DIVERGENCE] = (double)((int)c->options[LOGITS_DIVERGENCE] % 2); /* what one exchange is for */
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
    put_statistics(c, token_statistics(c), given(c, TOKEN_LOGITS), NULL, given(c, TOKEN_INDICES), &options);
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
    int is_reverse = (int)c->options[LOGITS_DIVERGENCE] == ONEPASS_REVERSE_KL;
    return !c->argument[STATES_TARGETS].given ? NO_DIVERGENCE : is_reverse ? REVERSE_KL : FORWARD_KL;
}

static void settle_states(op_case *c)
{
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
    c->options[LOGITS_DIVERGENCE] = has_targets ? (double)((int)c->options[LOGITS_DIVERGENCE] % 2) : 0;
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

/* KL of the rows, by the exact loss of logits that are all here. */
static op_case whole;

static int expect_divergence(const op_case *c, case_arithmetic arithmetic)
{
    static const int same[] = {LOGITS_TEMPERATURE, LOGITS_SOFTCAP, LOGITS_DIVERGENCE, LOGITS_TARGET_TEMPERATURE,
                               LOGITS_TARGET_SOFTCAP};
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

/* ---- merge ------------------------------------------------------------------------------------------------------- */

enum { GATHERED, MERGED };

typedef struct drawn {
    int kind, sides, indices;
    int64_t slices_at;
    int slice;
} drawn;

/* What the states of this case are of: its family. */
static drawn drawn_of(const op_case *c)
{
    drawn d = {.kind = c->family % 3, .indices = c->family / 3 % 3};
    d.sides = d.kind == NO_DIVERGENCE ? 1 : 3;
    d.slices_at = SCALES + d.sides + PICK * d.indices;
    d.slice = SIDES + SIDE * d.sides;
    return d;
}

static void settle_merge(op_case *c)
{
    drawn d = drawn_of(c);
    case_argument *a = c->argument;
    if (case_extent(c, 'R') == 0)
        c->extents['R' - 'A'] = 1;
    a[GATHERED].dtype = a[MERGED].dtype = case_f64;
    a[GATHERED].layout = a[GATHERED].layout >= CASE_REPEATED_ROWS ? CASE_COMPACT : a[GATHERED].layout;
    c->extents['W' - 'A'] = onepass_shard_states_width(2 * SLICE, d.indices, d.sides > 1);
    c->extents['F' - 'A'] = onepass_shard_statistics_width(d.indices, d.sides > 1);
}

static void begin_merge(op_case *c)
{
    c->extents['R' - 'A'] = 3;
    c->extents['N' - 'A'] = 2;
    settle_merge(c);
}

static double sent(const op_case *c, int64_t rank, int64_t row, int64_t place)
{
    return case_was(c, GATHERED, (rank * case_extent(c, 'N') + row) * case_extent(c, 'W') + place);
}

static void generate_merge(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    drawn d = drawn_of(c);
    int64_t ranks = case_extent(c, 'R'), rows = case_extent(c, 'N'), width = case_extent(c, 'W');
    for (int64_t rank = 0; rank < ranks; rank++) {
        int64_t slices = case_random_below(&random, 3), columns = slices * SLICE - (slices > 0 ? 17 : 0);
        for (int64_t row = 0; row < rows; row++) {
            int64_t at = (rank * rows + row) * width;
            double head[] = {(double)columns, d.kind, d.indices, (double)slices, 64, 1, 0.5, 2};
            for (int64_t k = 0; k < width; k++)
                case_put(c, GATHERED, at + k, k < SCALES + d.sides ? head[k] : 0);
            for (int i = 0; i < d.indices && (row + i) % ranks == rank; i++) {
                case_put(c, GATHERED, at + SCALES + d.sides + PICK * i, 1);
                case_put(c, GATHERED, at + SCALES + d.sides + PICK * i + 1, case_random_normal(&random));
                case_put(c, GATHERED, at + SCALES + d.sides + PICK * i + 2, case_random_unit(&random));
            }
            for (int64_t s = 0; s < slices; s++) {
                int64_t place = at + d.slices_at + s * d.slice;
                for (int side = 0; side < d.sides; side++) {
                    double max = 3 * case_random_normal(&random);
                    case_put(c, GATHERED, place + SIDES + SIDE * side + MAX, max);
                    case_put(c, GATHERED, place + SIDES + SIDE * side + OTHERS, 20 * case_random_unit(&random));
                    case_put(c, GATHERED, place + SIDES + SIDE * side + SPREAD, 30 * case_random_unit(&random));
                    if (side == 0)
                        case_put(c, GATHERED, place + BEST, max);
                }
                case_put(c, GATHERED, place + FIRST, (double)(s * SLICE + case_random_below(&random, SLICE - 17)));
                case_put(c, GATHERED, place + DIVERGENCE, d.kind ? case_random_unit(&random) : 0);
                case_put(c, GATHERED, place + BARE, (double)-INFINITY);
                case_put(c, GATHERED, place + BELOW, 5 * case_random_unit(&random));
                case_put(c, GATHERED, place + WEIGHTS, 9 * case_random_unit(&random));
            }
        }
    }
}

/* The numbers of one slice of a row. */
typedef struct slice_walk {
    int64_t rank, slice;
    double columns; /* of the ranks before */
    double of[SIDES + 3 * SIDE];
} slice_walk;

static int next_slice(const op_case *c, int64_t row, const drawn *d, slice_walk *w)
{
    int64_t ranks = case_extent(c, 'R');
    while (w->rank < ranks && w->slice >= (int64_t)sent(c, w->rank, row, SLICES)) {
        w->columns += sent(c, w->rank++, row, COLUMNS);
        w->slice = 0;
    }
    for (int k = 0; k < d->slice && w->rank < ranks; k++)
        w->of[k] = sent(c, w->rank, row, d->slices_at + w->slice * d->slice + k);
    w->slice++;
    return w->rank < ranks;
}

static void put_merged(op_case *c, int64_t row, int64_t place, long double x, long double size)
{
    case_expected(c, MERGED, row * case_extent(c, 'F') + place, x, 1e-13L * size);
}

static void expect_merged(op_case *c, int64_t row, const drawn *d)
{
    static const long double scale[] = {1, 0.5L, 2};
    long double max[3], total[3], most_below = 0, weights = 0;
    double first = -1, best = -INFINITY;
    slice_walk w = {0};
    for (int side = 0; side < 3; side++)
        max[side] = -INFINITY, total[side] = 0;
    while (next_slice(c, row, d, &w)) {
        for (int side = 0; side < d->sides; side++)
            max[side] = fmaxl(max[side], w.of[SIDES + SIDE * side]);
        if (first < 0 || w.of[BEST] > best) {
            best = w.of[BEST];
            first = w.columns + w.of[FIRST];
        }
    }
    put_merged(c, row, ALL_COLUMNS, w.columns, 0);
    put_merged(c, row, ALL_KIND, d->kind, 0);
    put_merged(c, row, ALL_INDICES, d->indices, 0);
    put_merged(c, row, ALL_FIRST, first, 0);
    for (int side = 0; side < d->sides; side++) {
        long double spread = 0;
        for (w = (slice_walk){0}; next_slice(c, row, d, &w);) {
            const double *own = &w.of[SIDES + SIDE * side];
            long double apart = (max[side] - own[MAX]) * scale[side], factor = expl(-apart);
            total[side] += factor * (1 + (long double)own[OTHERS]);
            spread += factor * (own[SPREAD] + apart * (1 + (long double)own[OTHERS]));
        }
        put_merged(c, row, ALL_SIDES + SIDE * side + MAX, max[side], 0);
        put_merged(c, row, ALL_SIDES + SIDE * side + OTHERS, total[side] > 0 ? total[side] - 1 : 0, total[side]);
        put_merged(c, row, ALL_SIDES + SIDE * side + SPREAD, spread, spread);
    }
    long double divergence = 0;
    int a = d->kind == REVERSE_KL ? 1 : 2, b = 3 - a;
    for (w = (slice_walk){0}; next_slice(c, row, d, &w);) {
        most_below += w.of[BELOW] + (max[0] - w.of[SIDES + MAX]) * w.of[WEIGHTS];
        weights += w.of[WEIGHTS];
        if (d->sides == 1)
            continue;
        const double *of_a = &w.of[SIDES + SIDE * a], *of_b = &w.of[SIDES + SIDE * b];
        long double mass_a = expl((of_a[MAX] - max[a]) * scale[a]) * (1 + of_a[OTHERS]) / total[a];
        long double mass_b = expl((of_b[MAX] - max[b]) * scale[b]) * (1 + of_b[OTHERS]) / total[b];
        divergence += mass_a * (w.of[DIVERGENCE] + logl(mass_a / mass_b));
    }
    int has_any = d->kind != NO_DIVERGENCE;
    put_merged(c, row, ALL_BELOW, most_below, most_below);
    put_merged(c, row, ALL_WEIGHTS, weights, weights);
    put_merged(c, row, ALL_DIVERGENCE, divergence, 1 + divergence);
    put_merged(c, row, SUM_S, has_any ? (a == 1 ? divergence : -1) : 0, 1 + divergence);
    put_merged(c, row, SUM_T, has_any ? (a == 1 ? -1 : divergence) : 0, 1 + divergence);
    for (int i = 0; i < d->indices; i++)
        for (int k = 0; k < PICK; k++)
            put_merged(c, row, ALL_SIDES + SIDE * d->sides + PICK * i + k,
                       sent(c, (row + i) % case_extent(c, 'R'), row, SCALES + d->sides + PICK * i + k), 0);
}

static int exact_merge(op_case *c, case_arithmetic arithmetic)
{
    (void)arithmetic; /* in double, whatever level */
    drawn d = drawn_of(c);
    for (int64_t row = 0; row < case_extent(c, 'N'); row++)
        expect_merged(c, row, &d);
    return 1;
}

static const char *const merge_names[] = {"shard_merge", NULL};
const case_definition case_shard_merge = {.names = merge_names,
                                          .families = 9,
                                          .begin = begin_merge,
                                          .settle = settle_merge,
                                          .generate = generate_merge,
                                          .exact = exact_merge};
