/*
 * Token log-probabilities in plain C and double: the definition, the oracle and the fallback.
 *
 *   log_prob_k = log P[index_k]     entropy = -sum of P log P     lse = log of the sum of exp(z)
 *   d loss / d z_i = sum over k of g_k ([i = index_k] - P_i) - g_entropy P_i (log P_i + entropy) + g_lse P_i
 */
#include "logits/shard.h"
#include "logits/softmax.h"

int onep_token_takes_part(const onep_token_problem *k, int64_t row)
{
    return !k->mask.data || *onep_row_address(&k->mask, &k->rows, row) != 0;
}

static int64_t index_of(const onep_token_problem *k, int64_t row, int64_t i)
{
    const char *at = onep_row_address(&k->indices, &k->rows, row) + i * k->indices.col_stride;
    return onep_load_integer(k->indices.type, at);
}

static int is_outside(const onep_token_problem *k, int64_t index)
{
    return index < 0 || index >= k->total_columns;
}

/* z at index i of the row, which is the column `index` of all. */
static double z_at(const onep_token_problem *k, int64_t row, const logit_row *r, int64_t index, int64_t i)
{
    if (!k->statistics)
        return z_of(r, index);
    onep_pick pick = onep_statistics_pick(k->statistics, &k->rows, row, i);
    return pick.has != 0 ? pick.v / k->temperature : (double)NAN;
}

static double whole_entropy(const onep_token_problem *k, int64_t row, const logit_row *r, const softmax_state *s)
{
    if (!k->statistics)
        return entropy_of(r, s);
    onep_row_statistics all;
    onep_statistics_load(k->statistics, &k->rows, row, &all);
    return s->log_sum + all.side[ONEP_SIDE_P].spread / (1 + s->others);
}

static softmax_state whole_softmax(const onep_token_problem *k, int64_t row, const logit_row *r)
{
    if (!k->statistics)
        return softmax_of(r);
    onep_row_statistics all;
    onep_statistics_load(k->statistics, &k->rows, row, &all);
    const onep_side_state *side = &all.side[ONEP_SIDE_P];
    return (softmax_state){.max = side->max / k->temperature,
                           .others = side->others,
                           .log_sum = log1p(side->others),
                           .first = (int64_t)all.first,
                           .no_mass = all.columns > 0 && side->max == -INFINITY};
}

static void forward(const onep_token_problem *k, int64_t row, const logit_row *r, const softmax_state *s)
{
    double undefined = k->semantics == ONEPASS_FINITE ? 0 : (double)NAN;
    char *log_prob = onep_row_address(&k->log_prob, &k->rows, row);
    for (int64_t i = 0; i < k->count && k->log_prob.data; i++) {
        int64_t index = index_of(k, row, i);
        double x = index == k->ignore_index ? 0
                   : is_outside(k, index)   ? (double)NAN
                   : s->no_mass             ? undefined
                                            : log_probability(s, z_at(k, row, r, index, i));
        onep_store(k->log_prob.type, log_prob + i * k->log_prob.col_stride, x);
    }
    if (k->entropy.data)
        store_row(&k->entropy, &k->rows, row, s->no_mass ? undefined : whole_entropy(k, row, r, s));
    store_row(&k->lse, &k->rows, row, s->max + s->log_sum);
}

/* The sum of the g_k of one column; *others receives that of all, NaN if an index is outside. */
static double upstream_at(const onep_token_problem *k, int64_t row, int64_t column, double *all)
{
    const char *g = onep_row_address(&k->grad_log_prob, &k->rows, row);
    double here = 0;
    onep_sum sum = {0, 0};
    for (int64_t i = 0; i < k->count && k->grad_log_prob.data; i++) {
        int64_t index = index_of(k, row, i);
        if (index == k->ignore_index)
            continue;
        double x = onep_load(k->grad_log_prob.type, g + i * k->grad_log_prob.col_stride);
        here += index == column ? x : 0;
        onep_sum_add(&sum, is_outside(k, index) ? (double)NAN : x);
    }
    *all = onep_sum_value(sum);
    return here;
}

static void backward(const onep_token_problem *k, int64_t row, const logit_row *r, const softmax_state *s)
{
    double g_entropy = load_or(&k->grad_entropy, onep_row_address(&k->grad_entropy, &k->rows, row), 0);
    double g_lse = load_or(&k->grad_lse, onep_row_address(&k->grad_lse, &k->rows, row), 0);
    double entropy = g_entropy != 0 && !s->no_mass ? whole_entropy(k, row, r, s) : 0;
    char *to = onep_row_address(&k->grad_logits, &k->rows, row);
    for (int64_t c = 0; c < k->width; c++) {
        double x = 0;
        if (c < k->columns && s->no_mass)
            x = k->semantics == ONEPASS_FINITE ? 0 : (double)NAN;
        else if (c < k->columns) {
            double z = z_of(r, c), log_p = log_probability(s, z), p = exp(log_p), all;
            double here = upstream_at(k, row, k->first_column + c, &all);
            /* here (1 - P) - (all - here) P: without cancellation where P is nearly 1 */
            x = -here * less_one(s, z) - (all - here) * p + g_lse * p;
            if (g_entropy != 0 && p != 0)
                x -= g_entropy * p * (log_p + entropy);
            x *= slope_of(r, c) / k->temperature;
        }
        store_column(&k->grad_logits, to, c, x);
    }
}

/* A masked row: it is not read, its results are 0. */
static void clear(const onep_token_problem *k, int64_t row)
{
    char *log_prob = onep_row_address(&k->log_prob, &k->rows, row);
    for (int64_t i = 0; i < k->count; i++)
        store_column(&k->log_prob, log_prob, i, 0);
    store_row(&k->entropy, &k->rows, row, 0);
    store_row(&k->lse, &k->rows, row, 0);
    char *to = onep_row_address(&k->grad_logits, &k->rows, row);
    for (int64_t c = 0; c < k->width; c++)
        store_column(&k->grad_logits, to, c, 0);
}

void onep_token_row(const onep_token_problem *k, int64_t row)
{
    if (!onep_token_takes_part(k, row)) {
        clear(k, row);
        return;
    }
    logit_row r = logit_row_of(&k->logits, &k->rows, row, k->columns, k->softcap, k->temperature);
    softmax_state s = whole_softmax(k, row, &r);
    if (k->grad_logits.data)
        backward(k, row, &r, &s);
    else
        forward(k, row, &r, &s);
}

static onepass_status run_token(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_token_problem *k = (const onep_token_problem *)problem;
    (void)handle, (void)plan;
    for (int64_t row = 0; row < k->rows.count; row++)
        onep_token_row(k, row);
    return ONEPASS_OK;
}

const onep_kernel onep_token_ref[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {NULL, run_token},
                                                      [ONEP_BF16] = {NULL, run_token},
                                                      [ONEP_F32] = {NULL, run_token},
                                                      [ONEP_F64] = {NULL, run_token}};
