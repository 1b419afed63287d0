/*
 * Token log-probabilities, forward and backward. Results have the errors of softmax.h; the gradient
 *
 *   sum of g_k ([i = index_k] - P_i) - g_entropy P_i (log P_i + H) + g_lse P_i
 *
 * is here (1 - P_i) - (all - here) P_i and so on, with `here` the sum of the column's g_k: |here| e(1 - P)
 * + |all - here| e(P)
 * + |g_entropy| (e(P) |log P + H| + P (e(log P) + e(H) + 2u (|log P| + H))) + |g_lse| e(P), and 4u of every term. An
 * index that comes n times has a sum of n numbers, which may cancel: kl_sum_error(n) of their sizes more. Then the
 * temperature and the slope of the softcap, as in exact_logits.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/kl.h"
#include "cases/logits.h"

#define SCALE_ERROR 8 /* u: temperature and slope, combined and applied */

static int is_backward(const op_case *c)
{
    return strstr(c->name, "_backward") != NULL;
}

static int64_t index_count(const op_case *c)
{
    return c->argument[TOKEN_INDICES].given ? case_extent(c, 'K') : 0;
}

static int is_ignored(const op_case *c, double index)
{
    return index == logits_ignored(c, TOKEN_HAS_IGNORE_INDEX, TOKEN_IGNORE_INDEX);
}

/* ---- what is expected -------------------------------------------------------------------------------------------- */

/* A row that takes part in nothing, or has nothing. */
static void fill(op_case *c, int64_t row, int64_t columns, long double x)
{
    int64_t count = index_count(c), width = case_extent(c, 'C');
    if (is_backward(c)) {
        for (int64_t k = 0; k < width; k++)
            case_expected(c, TOKEN_GRAD_LOGITS, row * width + k, k < columns ? x : 0, 0);
        return;
    }
    for (int64_t k = 0; k < count; k++)
        case_expected(c, TOKEN_LOG_PROB, row * count + k, x, 0);
    case_expected(c, TOKEN_ENTROPY, row, x, 0);
    case_expected(c, TOKEN_LSE, row, x, 0);
}

static void expect_forward(op_case *c, int64_t row, const exact_softmax *s)
{
    int64_t count = index_count(c);
    long double undefined = (int)c->options[TOKEN_SEMANTICS] == ONEPASS_FINITE ? 0 : (long double)NAN;
    for (int64_t k = 0; k < count; k++) {
        double index = case_was(c, TOKEN_INDICES, row * count + k);
        softmax_column at = {.log_p = NAN};
        if (is_ignored(c, index))
            at.log_p = 0;
        else if (index >= 0 && index < (double)s->row.columns)
            at = exact_column_of(s, (int64_t)index);
        if (s->has_no_mass && !is_ignored(c, index) && index >= 0 && index < (double)s->row.columns)
            at = (softmax_column){.log_p = undefined};
        case_expected(c, TOKEN_LOG_PROB, row * count + k, at.log_p, at.log_p_error);
    }
    case_expected(c, TOKEN_ENTROPY, row, s->has_no_mass ? undefined : s->entropy,
                  s->has_no_mass ? 0 : s->entropy_error);
    case_expected(c, TOKEN_LSE, row, s->lse, s->lse_error);
}

static void expect_backward(op_case *c, int64_t row, const exact_softmax *s)
{
    int64_t count = c->argument[TOKEN_LOG_PROB].given ? index_count(c) : 0, width = case_extent(c, 'C');
    long double g_entropy = case_was_or(c, TOKEN_ENTROPY, row, 0), g_lse = case_was_or(c, TOKEN_LSE, row, 0);
    long double u = s->precision.u, temperature = s->row.temperature, all = 0, size = 0;
    long double adding = kl_sum_error(count);
    for (int64_t i = 0; i < count; i++) {
        double index = case_was(c, TOKEN_INDICES, row * count + i), g = case_was(c, TOKEN_LOG_PROB, row * count + i);
        int is_outside = index < 0 || index >= (double)s->row.columns;
        if (!is_ignored(c, index)) {
            all += is_outside ? (long double)NAN : (long double)g;
            size += fabsl((long double)g);
        }
    }
    for (int64_t k = 0; k < s->row.columns; k++) {
        softmax_column p = exact_column_of(s, k);
        long double here = 0, here_size = 0, slope = softcap_slope(&s->row, k), rest, x, error;
        for (int64_t i = 0; i < count; i++)
            if (case_was(c, TOKEN_INDICES, row * count + i) == (double)k && !is_ignored(c, (double)k)) {
                long double g = case_was(c, TOKEN_LOG_PROB, row * count + i);
                here += g;
                here_size += fabsl(g);
            }
        rest = all - here;
        x = here * p.less - rest * p.p + g_lse * p.p;
        error = fabsl(here) * p.less_error + (fabsl(rest) + fabsl(g_lse)) * p.p_error +
                (4 * u + adding) * (here_size * p.less + (size + fabsl(g_lse)) * p.p);
        if (g_entropy != 0 && p.p != 0) {
            x -= g_entropy * p.p * (p.log_p + s->entropy);
            error +=
                fabsl(g_entropy) * (p.p_error * fabsl(p.log_p + s->entropy) +
                                    p.p * (p.log_p_error + s->entropy_error + 4 * u * (fabsl(p.log_p) + s->entropy)));
        }
        error = (error * slope + (s->row.cap > 0 ? 8 * u * fabsl(x) : 0)) / temperature;
        x *= slope / temperature;
        case_expected(c, TOKEN_GRAD_LOGITS, row * width + k, x,
                      error + SCALE_ERROR * u * fabsl(x) + s->precision.least);
    }
}

static int exact(op_case *c, case_arithmetic arithmetic)
{
    double *x = malloc(((size_t)case_extent(c, 'C') + 1) * sizeof *x);
    double temperature = c->options[TOKEN_TEMPERATURE] != 0 ? c->options[TOKEN_TEMPERATURE] : 1;
    int64_t columns = logits_columns(c, TOKEN_COLUMNS);
    for (int64_t row = 0; x && row < case_rows(c); row++) {
        fill(c, row, columns, 0);
        if (case_was_or(c, TOKEN_MASK, row, 1) == 0)
            continue;
        softmax_load_row(c, TOKEN_LOGITS, row, x);
        exact_softmax s = exact_softmax_of((softmax_row){x, columns, c->options[TOKEN_SOFTCAP], temperature},
                                           softmax_precision_of(arithmetic, c->argument[TOKEN_LOGITS].dtype));
        if (!is_backward(c))
            expect_forward(c, row, &s);
        else if (s.has_no_mass)
            fill(c, row, columns, (int)c->options[TOKEN_SEMANTICS] == ONEPASS_FINITE ? 0 : (long double)NAN);
        else
            expect_backward(c, row, &s);
    }
    free(x);
    return x != NULL;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* One thing that is unlike the rest, in the special family. */
static void make_special(double *x, int64_t columns, case_random *random)
{
    static const double specials[] = {NAN, INFINITY, -INFINITY, -INFINITY};
    int kind = (int)case_random_below(random, 6);
    int64_t at = columns > 0 ? case_random_below(random, columns) : 0;
    for (int64_t k = 0; k < columns && kind < 4; k++)
        if (k == at || kind == 3)
            x[k] = specials[kind];
}

static double draw_index(op_case *c, const double *x, int64_t columns, case_random *random)
{
    static const double bad[] = {-1, 1e9, -2147483647.0};
    int64_t index = columns > 0 ? case_random_below(random, columns) : 0;
    for (int64_t k = 0; k < columns && case_random_below(random, 2); k++) /* rather a large one */
        index = x[k] > x[index] ? k : index;
    if (case_random_below(random, 6) == 0)
        return logits_ignored(c, TOKEN_HAS_IGNORE_INDEX, TOKEN_IGNORE_INDEX);
    if (c->family == LOGITS_SPECIAL && case_random_below(random, 6) == 0)
        return case_random_below(random, 2) ? (double)columns : logits_choice(random, bad, 3);
    return (double)index;
}

static void generate(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    int64_t width = case_extent(c, 'C'), columns = logits_columns(c, TOKEN_COLUMNS), count = index_count(c);
    double *x = malloc(((size_t)width + 1) * sizeof *x);
    for (int64_t row = 0; x && row < case_rows(c); row++) {
        logits_draw_row(c->family, x, width, &random);
        if (c->family == LOGITS_SPECIAL)
            make_special(x, width, &random);
        for (int64_t k = 0; k < width; k++)
            case_put(c, TOKEN_LOGITS, row * width + k, x[k]);
        for (int64_t k = 0; k < count; k++)
            case_put(c, TOKEN_INDICES, row * count + k, draw_index(c, x, columns, &random));
        int is_masked = c->amount == 1 || case_random_below(&random, 4) == 0;
        if (c->argument[TOKEN_MASK].given)
            case_put(c, TOKEN_MASK, row, is_masked ? 0 : c->argument[TOKEN_MASK].dtype.code == ONEPASS_BOOL ? 1 : 128);
    }
    free(x);
    for (int i = TOKEN_LOG_PROB; is_backward(c) && i <= TOKEN_LSE; i++)
        for (int64_t k = 0; c->argument[i].given && k < c->argument[i].count; k++)
            case_put(c, i, k, case_random_between(&random, -4, 4));
    static const int spoiled[] = {TOKEN_LOGITS, TOKEN_LOG_PROB, TOKEN_ENTROPY, TOKEN_LSE};
    for (int64_t row = 0; row < case_rows(c) && c->argument[TOKEN_MASK].given; row++)
        for (int i = 0; i < (is_backward(c) ? 4 : 1) && case_get(c, TOKEN_MASK, row) == 0; i++)
            logits_spoil(c, spoiled[i], row, &random);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

void token_settle_options(op_case *c)
{
    static const double temperatures[] = {0, 1, 2, 0.7}, caps[] = {0, 0, 30, 8}, indices[] = {0, -1, 2, 5};
    case_random random = case_random_stream(c->seed, 2);
    int64_t width = case_extent(c, 'C');
    if (c->amount != 0) {
        c->options[TOKEN_TEMPERATURE] = logits_choice(&random, temperatures, 4);
        c->options[TOKEN_SOFTCAP] = logits_choice(&random, caps, 4);
        c->options[TOKEN_IGNORE_INDEX] = logits_choice(&random, indices, 4);
        if (width > 1 && case_random_below(&random, 3) == 0)
            c->options[TOKEN_COLUMNS] = (double)(1 + case_random_below(&random, width));
    }
    if (c->options[TOKEN_HAS_IGNORE_INDEX] == 0)
        c->options[TOKEN_IGNORE_INDEX] = 0;
    if (!c->argument[TOKEN_INDICES].given)
        c->argument[TOKEN_LOG_PROB].given = 0;
}

void token_settle_results(op_case *c, onepass_dtype promoted)
{
    int is_any = 0;
    for (int i = TOKEN_LOG_PROB; i <= TOKEN_LSE; i++) {
        if (!case_holds(c->argument[i].dtype, promoted))
            c->argument[i].dtype = promoted;
        is_any |= c->argument[i].given;
    }
    if (!is_any)
        c->argument[TOKEN_ENTROPY].given = 1;
}

static void settle(op_case *c)
{
    token_settle_options(c);
    if (is_backward(c))
        c->argument[TOKEN_GRAD_LOGITS].dtype = c->argument[TOKEN_LOGITS].dtype;
    else
        token_settle_results(c, c->argument[TOKEN_LOGITS].dtype);
}

static void begin(op_case *c)
{
    c->leading_rank = 1;
    c->leading[0] = 3;
    c->extents['C' - 'A'] = 7;
    c->extents['K' - 'A'] = 2;
    c->argument[TOKEN_MASK].dtype = case_u8;
    c->argument[TOKEN_INDICES].dtype = case_i64;
    c->argument[TOKEN_INDICES].given = c->argument[TOKEN_LOG_PROB].given = 1;
}

static const char *const names[] = {"token_log_probs", "token_log_probs_backward", NULL};

const case_definition case_token = {.names = names,
                                    .families = LOGITS_SPECIAL + 1,
                                    .begin = begin,
                                    .settle = settle,
                                    .generate = generate,
                                    .exact = exact};
