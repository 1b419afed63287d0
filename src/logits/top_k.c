/* See top_k.h. */
#include "logits/top_k.h"

#include <math.h>

#include "logits/softmax.h"
#include "logits/terms.h"

/* ---- entries by column ------------------------------------------------------------------------------------------- */

static int64_t index_of(const onep_top_k_row *r, int place)
{
    const onep_operand *indices = &r->problem->top_indices;
    return onep_load_integer(indices->type, r->indices + place * indices->col_stride);
}

/* By column, entries of the same one in the order they were given. */
static int comes_before(const onep_top_k_row *r, uint16_t a, uint16_t b)
{
    int64_t column_a = index_of(r, a), column_b = index_of(r, b);
    return column_a != column_b ? column_a < column_b : a < b;
}

/* Lets the entry at `root` sink in a heap of `count` whose largest is first. */
static void sink(onep_top_k_row *r, int root, int count)
{
    uint16_t sinking = r->order[root];
    for (int child = 2 * root + 1; child < count; child = 2 * root + 1) {
        if (child + 1 < count && comes_before(r, r->order[child], r->order[child + 1]))
            child++;
        if (!comes_before(r, sinking, r->order[child]))
            break;
        r->order[root] = r->order[child];
        root = child;
    }
    r->order[root] = sinking;
}

static void sort(onep_top_k_row *r)
{
    for (int root = r->count / 2 - 1; root >= 0; root--)
        sink(r, root, r->count);
    for (int last = r->count - 1; last > 0; last--) {
        uint16_t largest = r->order[0];
        r->order[0] = r->order[last];
        r->order[last] = largest;
        sink(r, 0, last);
    }
}

int64_t onep_top_k_column(const onep_top_k_row *r, int at)
{
    return at < r->count ? index_of(r, r->order[at]) : INT64_MAX;
}

int onep_top_k_next(const onep_top_k_row *r, int at)
{
    int64_t column = onep_top_k_column(r, at);
    while (at < r->count && onep_top_k_column(r, at) == column)
        at++;
    return at;
}

void onep_top_k_begin(onep_top_k_row *r, const onep_logits_problem *k, int64_t index)
{
    r->problem = k;
    r->predictions = onep_row_address(&k->predictions, &k->rows, index);
    r->values = onep_row_address(&k->targets, &k->rows, index);
    r->indices = onep_row_address(&k->top_indices, &k->rows, index);
    r->count = r->has_bad_index = r->columns_in_set = r->lacks_mass = 0;
    r->value = (double)NAN;
    for (int place = 0; place < k->top_k; place++) {
        int64_t column = index_of(r, place);
        r->has_bad_index |= column >= k->columns;
        if (column >= 0)
            r->order[r->count++] = (uint16_t)place;
    }
    if (r->has_bad_index)
        return;
    sort(r);
    for (int at = 0; at < r->count; at = onep_top_k_next(r, at))
        r->columns_in_set++;
}

/* ---- the teacher ------------------------------------------------------------------------------------------------- */

/* Values whose softmax is T: logits, and log-probabilities that are renormalised. */
static int is_softmax(const onep_logits_problem *k)
{
    return k->top_values == ONEPASS_TOP_LOGITS ||
           (k->top_values == ONEPASS_TOP_LOG_PROBS && k->outside >= ONEPASS_OUTSIDE_RENORMALISED);
}

static int is_normalised(const onep_logits_problem *k)
{
    return k->top_values == ONEPASS_TOP_LOGITS || k->outside >= ONEPASS_OUTSIDE_RENORMALISED;
}

/* A value as it was passed, logits over their temperature; NaN where it is none. */
static double value_of(const onep_top_k_row *r, int at)
{
    const onep_logits_problem *k = r->problem;
    double y = onep_load(k->targets.type, r->values + r->order[at] * k->targets.col_stride);
    int is_legal = k->top_values == ONEPASS_TOP_PROBS ? y >= 0 && y < INFINITY : y < INFINITY;
    if (!is_legal)
        return (double)NAN;
    return k->top_values == ONEPASS_TOP_LOGITS ? y / k->target_temperature : y;
}

/* T of the column that entry `at` begins: the masses of its entries add up. */
static onep_mass target_of(const onep_top_k_row *r, int at)
{
    int end = onep_top_k_next(r, at);
    onep_sum sum = {0, 0};
    if (r->problem->top_values == ONEPASS_TOP_PROBS) {
        for (int i = at; i < end; i++)
            onep_sum_add(&sum, value_of(r, i));
        double x = onep_sum_value(sum);
        return (onep_mass){x / r->t_sum, log(x) - r->t_log_sum};
    }
    /* T = exp(largest) (sum of exp(y - largest)) / t_sum: of one entry that was passed, exp(y) and y. */
    double largest = -INFINITY;
    for (int i = at; i < end; i++) {
        double y = value_of(r, i);
        largest = y > largest || isnan(y) ? y : largest;
        if (isnan(largest))
            break;
    }
    double below = largest - r->t_max;
    if (!isfinite(largest)) /* no mass, or none that is defined */
        return (onep_mass){exp(below), below};
    for (int i = at; i < end; i++)
        onep_sum_add(&sum, exp(value_of(r, i) - largest));
    double together = onep_sum_value(sum);
    return (onep_mass){exp(below) * together / r->t_sum, (below + log(together)) - r->t_log_sum};
}

/* What T is normalised by; W. */
static void normalise_target(onep_top_k_row *r)
{
    const onep_logits_problem *k = r->problem;
    onep_sum sum = {0, 0}, surplus = {-1, 0};
    r->t_max = r->t_log_sum = r->t_short = 0;
    r->t_sum = r->mass = 1;
    if (!is_normalised(k)) {
        for (int at = 0; at < r->count; at = onep_top_k_next(r, at)) {
            double t = target_of(r, at).x;
            onep_sum_add(&sum, t);
            onep_sum_add(&surplus, t);
        }
        r->mass = onep_sum_value(sum);
        r->t_short = -onep_sum_value(surplus);
        return;
    }
    double largest = -INFINITY;
    for (int at = 0; at < r->count && !isnan(largest); at++) {
        double y = value_of(r, at);
        largest = y > largest || isnan(y) ? y : largest;
    }
    /* Of probabilities the largest has no mass if it is 0, of logarithms if it is -inf. */
    if (largest == (is_softmax(k) ? (double)-INFINITY : 0) || r->count == 0) {
        r->lacks_mass = 1;
        return;
    }
    if (!is_softmax(k)) {
        for (int at = 0; at < r->count; at++)
            onep_sum_add(&sum, value_of(r, at));
        r->t_sum = onep_sum_value(sum);
        r->t_log_sum = log(r->t_sum);
        return;
    }
    int left_out = 0; /* the largest is left out of the sum, as in softmax.h */
    for (int at = 0; at < r->count; at++) {
        double y = value_of(r, at);
        if (y == largest && !left_out)
            left_out = 1;
        else
            onep_sum_add(&sum, exp(y - largest));
    }
    r->t_max = largest;
    r->t_sum = 1 + onep_sum_value(sum);
    r->t_log_sum = log1p(onep_sum_value(sum));
}

/* ---- the student ------------------------------------------------------------------------------------------------- */

static double z_at(const onep_top_k_row *r, int64_t column)
{
    const onep_logits_problem *k = r->problem;
    logit_row s = {.at = r->predictions,
                   .type = k->predictions.type,
                   .stride = k->predictions.col_stride,
                   .columns = k->columns,
                   .cap = k->softcap,
                   .temperature = k->temperature};
    return z_of(&s, column);
}

/* S over all columns, or over A for `subset`. */
static void normalise_student(onep_top_k_row *r, const onep_top_k_tail *tail)
{
    double largest = -INFINITY;
    int64_t first = -1;
    for (int at = 0; at < r->count && !isnan(largest); at = onep_top_k_next(r, at)) {
        int64_t column = onep_top_k_column(r, at);
        double z = z_at(r, column);
        if (first < 0 || z > largest || isnan(z)) {
            largest = z;
            first = column;
        }
    }
    int tail_is_larger = tail->first >= 0 && tail->max > largest;
    double max = tail_is_larger ? tail->max : largest;
    onep_sum others = {0, 0}, in_set = {0, 0};
    for (int at = 0; at < r->count; at = onep_top_k_next(r, at)) {
        int64_t column = onep_top_k_column(r, at);
        if (column != first || max != largest)
            onep_sum_add(&others, exp(z_at(r, column) - max));
        if (column != first)
            onep_sum_add(&in_set, exp(z_at(r, column) - largest));
    }
    if (tail->first >= 0)
        onep_sum_add(&others, tail_is_larger ? tail->others : exp(tail->max - max) * (1 + tail->others));
    int is_undefined = isnan(max) || max == INFINITY || isnan(tail->max) || tail->max == INFINITY;
    r->all_max = max;
    r->all_others = is_undefined ? (double)NAN : onep_sum_value(others);
    int tail_is_first = tail->first >= 0 && tail->max == largest && tail->first < first;
    r->first = tail_is_larger || tail_is_first ? tail->first : first;
    r->s_max = max;
    r->s_log_sum = log1p(r->all_others);
    if (r->problem->outside != ONEPASS_OUTSIDE_SUBSET)
        return;
    r->lacks_mass |= r->count > 0 && largest == -INFINITY;
    r->s_max = largest;
    r->s_log_sum = is_undefined ? (double)NAN : log1p(onep_sum_value(in_set));
}

static onep_mass student_of(const onep_top_k_row *r, int at)
{
    double log_s = (z_at(r, onep_top_k_column(r, at)) - r->s_max) - r->s_log_sum;
    return (onep_mass){exp(log_s), log_s};
}

/* ---- the divergence ---------------------------------------------------------------------------------------------- */

static int is_reverse(const onep_logits_problem *k)
{
    return k->divergence.b != 0;
}

/* T log(T/S) - T + S, or S log(S/T) - S + T. A column without either adds nothing. */
static double term_of(const onep_logits_problem *k, onep_mass s, onep_mass t)
{
    if (s.x == 0 && t.x == 0)
        return 0;
    return is_reverse(k) ? onep_relative_entropy(s.x, s.log - t.log, t.x)
                         : onep_relative_entropy(t.x, t.log - s.log, s.x);
}

void onep_top_k_finish(onep_top_k_row *r, const onep_top_k_tail *tail)
{
    const onep_logits_problem *k = r->problem;
    r->lacks_mass = 0;
    r->value = r->tail_slope = 0;
    normalise_target(r);
    normalise_student(r, tail);
    if (k->columns == 0) {
        r->lacks_mass = 0;
        return;
    }
    int has_rest = k->outside != ONEPASS_OUTSIDE_SUBSET && r->columns_in_set < k->columns;
    onep_mass s_rest = {0, -INFINITY}, t_rest = {0, -INFINITY};
    if (has_rest && tail->first >= 0) {
        s_rest.log = ((tail->max - r->s_max) + log1p(tail->others)) - r->s_log_sum;
        s_rest.x = exp(s_rest.log);
    }
    double surplus = is_normalised(k) ? 0 : -r->t_short; /* W - 1 */
    if (has_rest && k->outside == ONEPASS_OUTSIDE_TAIL && r->t_short > 0) {
        t_rest = (onep_mass){r->t_short, log(r->t_short)};
        r->mass = 1;
        surplus = 0;
    }
    onep_sum value = {0, 0};
    for (int at = 0; at < r->count; at = onep_top_k_next(r, at))
        onep_sum_add(&value, term_of(k, student_of(r, at), target_of(r, at)));
    if (has_rest)
        onep_sum_add(&value, term_of(k, s_rest, t_rest));
    /* The terms add W - 1, or 1 - W, to what they stand for. */
    onep_sum_add(&value, is_reverse(k) ? -surplus : surplus);
    r->value = onep_sum_value(value);
    if (isnan(r->all_others))
        r->value = (double)NAN;
    if (s_rest.x == 0) /* no column outside has mass to move */
        return;
    double slope = is_reverse(k) ? s_rest.x * ((s_rest.log - t_rest.log) - r->value) : s_rest.x * r->mass - t_rest.x;
    r->tail_slope = slope / (1 + tail->others);
}

double onep_top_k_slope(const onep_top_k_row *r, int at)
{
    onep_mass s = student_of(r, at), t = target_of(r, at);
    if (!is_reverse(r->problem))
        return s.x * r->mass - t.x;
    return s.x == 0 ? 0 : s.x * ((s.log - t.log) - r->value);
}
