/*
 * Token log-probabilities from hidden states, forward and backward. The exact answer is that of a case of token
 * log-probabilities from the exact logits; a kernel's are off by E in a row (linear_side.h), which with
 * E' = E / temperature and r = exp(2 E') - 1 moves
 *
 *   log P        2 E'
 *   lse          E'
 *   entropy H    r (H + 2 E') + 2 E'                                                                     =: e(H)
 *   gradient     r (|here| (1 - P) + (|all - here| + |g_lse|) P + |g_entropy| P |log P + H|)
 *                + (1 + r) |g_entropy| P (2 E' + e(H)), over the temperature
 *   slope of a softcap   0.77 E / cap
 *
 * with `here` the sum of the upstream gradients at a column and `all` that of all (token.c). What a gradient is off by
 * goes through the products.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/linear_loss.h"
#include "cases/linear_side.h"

typedef struct exact_token {
    op_case *c, *token; /* the case, and that of token log-probabilities from its logits */
    linear_types types;
    softmax_precision precision;
    linear_side side;
    int64_t rows, width, columns, count;
    double temperature;
    long double *slack; /* of each logit's gradient */
    double *z;          /* a row of logits */
} exact_token;

static int is_backward(const op_case *c)
{
    return strcmp(c->name, "linear_token_log_probs_backward") == 0;
}

static int takes_part(const op_case *c, int64_t row)
{
    return case_was_or(c, TOKEN_MASK, row, 1) != 0;
}

static onepass_dtype promoted_of(const op_case *c)
{
    linear_side s = linear_side_of(c);
    return case_promote(c->argument[s.input].dtype, c->argument[s.weight].dtype);
}

/* ---- what is expected -------------------------------------------------------------------------------------------- */

/* Everything of the forward and upstream gradients of the backward call, in the same places. 0: no memory. */
static int make_token(const exact_token *e)
{
    op_case *c = e->c, *token = e->token;
    case_begin(token, is_backward(c) ? "token_log_probs_backward" : "token_log_probs");
    token->leading_rank = c->leading_rank;
    for (int d = 0; d < c->leading_rank; d++)
        token->leading[d] = c->leading[d];
    token->extents['C' - 'A'] = e->width;
    token->extents['K' - 'A'] = case_extent(c, 'K');
    for (int i = 0; i < token->option_count; i++)
        token->options[i] = c->options[i];
    for (int i = TOKEN_INDICES; i <= TOKEN_LSE; i++) {
        token->argument[i].given = c->argument[i].given;
        token->argument[i].dtype = case_is_float(c->argument[i].dtype) ? case_f64 : c->argument[i].dtype;
    }
    token->argument[TOKEN_LOGITS].dtype = e->types.computed;
    if (is_backward(c))
        token->argument[TOKEN_GRAD_LOGITS].dtype = e->types.computed;
    if (!case_place(token))
        return 0;
    for (int i = TOKEN_INDICES; i <= TOKEN_LSE; i++)
        for (int64_t k = 0; k < token->argument[i].count && token->argument[i].given; k++)
            if (token->argument[i].info->role == ONEPASS_READ)
                case_put(token, i, k, case_was(c, i, k));
    return 1;
}

/* Expects what the case of logits does, and `more` of what it may be off by. */
static void expect(exact_token *e, int argument, int64_t index, long double more)
{
    const case_argument *a = &e->token->argument[argument];
    if (a->given)
        case_expected(e->c, argument, index, a->expected[index], a->allowed[index] + more);
}

static void expect_row(exact_token *e, int64_t row, long double off, long double entropy_off)
{
    for (int64_t k = 0; k < e->count; k++)
        expect(e, TOKEN_LOG_PROB, row * e->count + k, 2 * off);
    expect(e, TOKEN_ENTROPY, row, entropy_off);
    expect(e, TOKEN_LSE, row, off);
}

/* What the gradient of a row's logits moves by. */
static void move_row(exact_token *e, int64_t row, const exact_softmax *s, long double unsure, long double entropy_off)
{
    const op_case *c = e->c;
    int64_t count = c->argument[TOKEN_LOG_PROB].given ? e->count : 0;
    long double temperature = e->temperature, off = unsure / temperature, r = expm1l(2 * off);
    long double cap = c->options[TOKEN_SOFTCAP], g_lse = fabsl((long double)case_was_or(c, TOKEN_LSE, row, 0));
    long double g_entropy = fabsl((long double)case_was_or(c, TOKEN_ENTROPY, row, 0));
    double ignored = logits_ignored(c, TOKEN_HAS_IGNORE_INDEX, TOKEN_IGNORE_INDEX);
    for (int64_t k = 0; k < e->columns; k++) {
        softmax_column p = exact_column_of(s, k);
        long double here = 0, others = 0;
        for (int64_t i = 0; i < count; i++) {
            double index = case_was(c, TOKEN_INDICES, row * count + i);
            long double g = case_was(c, TOKEN_LOG_PROB, row * count + i);
            if (index == ignored)
                continue;
            if (index == (double)k)
                here += fabsl(g);
            else
                others += fabsl(g);
        }
        long double surprise = p.p > 0 ? fabsl(p.log_p + s->entropy) : 0;
        long double size = here * p.less + (others + g_lse) * p.p + g_entropy * p.p * surprise;
        long double moved = r * size + (1 + r) * g_entropy * p.p * (2 * off + entropy_off);
        e->slack[row * e->width + k] = (moved + (cap > 0 ? 0.77L * unsure / cap * (size + moved) : 0)) / temperature;
    }
}

static int exact_rows(exact_token *e)
{
    if (!make_token(e))
        return 0;
    long double *unsure = calloc((size_t)e->rows + 1, sizeof *unsure);
    for (int64_t i = 0; unsure && i < e->rows; i++)
        unsure[i] = linear_side_put_logits(e->c, &e->side, e->types, i, e->columns, e->token, TOKEN_LOGITS);
    case_remember(e->token);
    e->token->expected_for = 0;
    int has_memory = unsure && case_expect(e->token, e->types.arithmetic);
    for (int64_t i = 0; has_memory && i < e->rows; i++) {
        long double off = 0, entropy_off = 0;
        softmax_load_row(e->token, TOKEN_LOGITS, i, e->z);
        exact_softmax s = exact_softmax_of(
            (softmax_row){e->z, e->columns, e->c->options[TOKEN_SOFTCAP], e->temperature}, e->precision);
        int is_known = takes_part(e->c, i) && e->columns > 0 && !s.has_no_mass && !s.is_undefined;
        if (is_known) {
            off = unsure[i] / (long double)e->temperature;
            entropy_off = expm1l(2 * off) * (s.entropy + 2 * off) + 2 * off;
        }
        if (!is_backward(e->c))
            expect_row(e, i, off, entropy_off);
        else if (is_known)
            move_row(e, i, &s, unsure[i], entropy_off);
    }
    free(unsure);
    return has_memory;
}

static int exact(op_case *c, case_arithmetic arithmetic)
{
    static op_case token;
    onepass_dtype promoted = promoted_of(c);
    exact_token e = {.c = c,
                     .token = &token,
                     .types = linear_types_of(arithmetic, promoted),
                     .precision = softmax_precision_of(arithmetic, promoted),
                     .side = linear_side_of(c),
                     .rows = case_rows(c),
                     .width = case_extent(c, 'C'),
                     .columns = logits_columns(c, TOKEN_COLUMNS),
                     .count = c->argument[TOKEN_INDICES].given ? case_extent(c, 'K') : 0,
                     .temperature = c->options[TOKEN_TEMPERATURE] != 0 ? c->options[TOKEN_TEMPERATURE] : 1};
    e.slack = calloc((size_t)(e.rows * e.width) + 1, sizeof *e.slack);
    e.z = calloc((size_t)e.width + 1, sizeof *e.z);
    int has_memory = e.slack && e.z && exact_rows(&e);
    if (has_memory && is_backward(c)) {
        linear_gradient g = {.types = e.types,
                             .rows = e.rows,
                             .width = e.width,
                             .of_logits = &token.argument[TOKEN_GRAD_LOGITS],
                             .slack = e.slack,
                             .takes_part = takes_part};
        linear_side_expect_gradients(c, &e.side, LINEAR_TOKEN_GRAD_INPUT, &g);
    }
    free(e.slack);
    free(e.z);
    return has_memory;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static double draw_index(op_case *c, int64_t columns, case_random *random)
{
    double index = columns > 0 ? (double)case_random_below(random, columns) : 0;
    int kind = (int)case_random_below(random, 6);
    if (kind == 0)
        return logits_ignored(c, TOKEN_HAS_IGNORE_INDEX, TOKEN_IGNORE_INDEX);
    return kind == 1 && c->family == LINEAR_LOSS_SPECIAL ? (double)columns : index;
}

static void put_row(op_case *c, const linear_side *side, int64_t row, case_random *random)
{
    int64_t used = logits_columns(c, TOKEN_COLUMNS), count = c->argument[TOKEN_INDICES].given ? case_extent(c, 'K') : 0;
    for (int64_t k = 0; k < side->depth; k++)
        case_put(c, side->input, row * side->depth + k, case_random_normal(random));
    int64_t column = used > 0 ? case_random_below(random, used) : 0;
    if (c->family == LINEAR_LOSS_SHARP && used > 0)
        linear_side_put_towering_row(c, side, row, column, case_random_between(random, 5, 20));
    for (int64_t k = 0; k < count; k++) /* the towering one among them */
        case_put(c, TOKEN_INDICES, row * count + k,
                 k == 0 && row % 2 && used > 0 ? (double)column : draw_index(c, used, random));
    int is_special = c->family == LINEAR_LOSS_SPECIAL && case_random_below(random, 3) == 0;
    if (is_special && side->depth > 0)
        case_put(c, side->input, row * side->depth, row & 1 ? (double)NAN : (double)INFINITY);
    int is_masked = c->amount == 1 || case_random_below(random, 4) == 0;
    if (c->argument[TOKEN_MASK].given)
        case_put(c, TOKEN_MASK, row, is_masked ? 0 : 1);
}

static void generate(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    linear_side side = linear_side_of(c);
    int64_t width = case_extent(c, 'C');
    linear_side_put_weight(c, &side, c->family == LINEAR_LOSS_SHARP ? 0.5 : 2, &random);
    int has_no_mass = c->family == LINEAR_LOSS_SPECIAL && case_random_below(&random, 6) == 0;
    for (int64_t j = 0; j < width && c->argument[side.bias].given; j++) {
        int is_masked = c->family == LINEAR_LOSS_MASKED && (j < width / 3 || case_random_below(&random, 4) == 0);
        case_put(c, side.bias, j, has_no_mass || is_masked ? (double)-INFINITY : case_random_normal(&random) / 2);
    }
    for (int64_t row = 0; row < case_rows(c); row++)
        put_row(c, &side, row, &random);
    for (int i = TOKEN_LOG_PROB; is_backward(c) && i <= TOKEN_LSE; i++)
        for (int64_t k = 0; c->argument[i].given && k < c->argument[i].count; k++)
            case_put(c, i, k, case_random_between(&random, -4, 4));
    static const int spoiled[] = {LINEAR_LOSS_INPUT, TOKEN_LOG_PROB, TOKEN_ENTROPY, TOKEN_LSE};
    for (int64_t row = 0; row < case_rows(c) && c->argument[TOKEN_MASK].given; row++)
        for (int i = 0; i < (is_backward(c) ? 4 : 1) && case_get(c, TOKEN_MASK, row) == 0; i++)
            logits_spoil(c, spoiled[i], row, &random);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static void settle(op_case *c)
{
    const char *const gradients[] = {"grad_input", "grad_weight", "grad_bias"};
    int chunk_bytes = case_option_named(c, "chunk_bytes"), is_any = 0;
    token_settle_options(c);
    if (is_backward(c)) {
        for (int i = 0; i < 3; i++)
            is_any |= c->argument[case_argument_named(c, gradients[i])].given;
        c->argument[LINEAR_TOKEN_GRAD_INPUT].given |= !is_any;
    } else {
        token_settle_results(c, promoted_of(c));
    }
    if (c->family == LINEAR_LOSS_MASKED)
        c->argument[case_argument_named(c, "bias")].given = 1;
    if (c->amount != 0 && c->options[chunk_bytes] == 0)
        c->options[chunk_bytes] = (double)(c->seed / 7 % 2); /* tile by tile */
}

static void begin(op_case *c)
{
    c->leading_rank = 1;
    c->leading[0] = 3;
    c->extents['C' - 'A'] = 7;
    c->extents['D' - 'A'] = 5;
    c->extents['K' - 'A'] = 2;
    c->argument[TOKEN_MASK].dtype = case_u8;
    c->argument[TOKEN_INDICES].dtype = case_i64;
    const char *const given[] = {"indices", "bias", is_backward(c) ? "grad_log_prob" : "log_prob"};
    const char *const gradients[] = {"grad_input", "grad_weight", "grad_bias"};
    for (int i = 0; i < 3; i++)
        c->argument[case_argument_named(c, given[i])].given = 1;
    for (int i = 0; i < 3 && is_backward(c); i++)
        c->argument[case_argument_named(c, gradients[i])].given = 1;
}

static const char *const names[] = {"linear_token_log_probs", "linear_token_log_probs_backward", NULL};

const case_definition case_linear_token = {.names = names,
                                           .families = LINEAR_LOSS_SPECIAL + 1,
                                           .begin = begin,
                                           .settle = settle,
                                           .generate = generate,
                                           .exact = exact};
