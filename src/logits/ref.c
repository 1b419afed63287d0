/*
 * Losses from logits in plain C and double: the definition, the oracle of every test, and the fallback where no faster
 * kernel exists. Any strides, one thread, nothing stored besides the results; a row is read once for its maximum, once
 * for its sums and once for its gradients. docs/numerics.md has the tables this follows.
 */
#include <math.h>

#include "core/sum.h"
#include "logits/shard.h"
#include "logits/softmax.h"
#include "logits/terms.h"
#include "logits/top_k.h"

/* x times y, and 0 where x is: a term that is switched off does not see an infinity. */
static double times(double x, double y)
{
    return x == 0 ? 0 : x * y;
}

/* ---- the divergence of one element ------------------------------------------------------------------------------- */

/* log(q + (1-q) exp(x)) for 0 <= q <= 1. */
static double log_mixture(double q, double x)
{
    if (q == 0)
        return x;
    if (q == 1)
        return 0;
    return x > 700 ? x + log1p(-q) : log1p((1 - q) * expm1(x));
}

/* One column: T and S with their logarithms, and what D and its derivatives are made of. */
typedef struct element {
    double log_s, s, log_t, t;
    double value;
    double s_phi, t_psi, psi; /* S dD/dS, T dD/dT, dD/dT */
} element;

/* What is 0 in the type that kernels compute in has no mass here either. */
static double flushed(double p, onep_type computed)
{
    return computed == ONEP_F32 && (float)p == 0 ? 0 : p;
}

/* S/M and T/M follow from delta alone, so that neither underflows with S and T. A column without either adds nothing.
 */
static void divergence_terms(element *e, const onep_divergence_terms *d, onepass_semantics semantics)
{
    int is_empty = e->s == 0 && e->t == 0;
    double delta = is_empty ? 0 : e->log_s - e->log_t, q = d->q;
    if (d->is_total_variation) {
        double difference = fabs(delta) <= 1 ? e->t * expm1(delta) : e->s - e->t; /* S - T */
        double half_sign = difference > 0 ? 0.5 : difference < 0 ? -0.5 : difference;
        *e = (element){.log_s = e->log_s,
                       .s = e->s,
                       .log_t = e->log_t,
                       .t = e->t,
                       .value = 0.5 * fabs(difference),
                       .s_phi = e->s * half_sign,
                       .t_psi = -e->t * half_sign,
                       .psi = -half_sign};
        return;
    }
    double log_s_m = -log_mixture(1 - q, -delta), log_t_m = -log_mixture(q, delta); /* log(S/M), log(T/M) */
    double s_m = exp(log_s_m), t_m = exp(log_t_m), m = q * e->t + (1 - q) * e->s;
    e->value = e->s_phi = e->t_psi = e->psi = 0;
    if (d->a != 0)
        e->value += d->a * onep_relative_entropy(e->t, log_t_m, m);
    if (d->b != 0)
        e->value += d->b * onep_relative_entropy(e->s, log_s_m, m);
    if (d->a != 0 && e->t != 0) {
        e->s_phi -= d->a * (1 - q) * e->t * s_m;
        e->t_psi += d->a * e->t * (log_t_m + 1 - times(q, t_m));
        e->psi += d->a * (log_t_m + 1 - times(q, t_m));
    }
    if (d->b != 0 && e->s != 0) {
        e->s_phi += d->b * e->s * (log_s_m + 1 - times(1 - q, s_m));
        e->t_psi -= d->b * q * e->s * t_m;
    }
    if (d->b != 0) /* also where S is 0 in float, as T may nearly be */
        e->psi -= d->b * q * s_m;
    if (e->t == 0 && (d->a != 0 || e->s == 0)) /* log 0, or 0/0 */
        e->psi = semantics == ONEPASS_FINITE ? 0 : (double)NAN;
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* What is known of a row before its gradients. */
typedef struct row_state {
    const onep_logits_problem *problem;
    int64_t row, label;            /* -1: no labels */
    int64_t columns;               /* that are here */
    int64_t place;                 /* the label's among them */
    double at_label, label_weight; /* z there, and the weight of its class */
    double smoothed;               /* the sum over all columns of w (-log P) */
    onep_type computed;
    logit_row s, t, p;
    softmax_state s_state, t_state, p_state;
    double s_phi_sum, t_psi_sum; /* of the divergence */
    double entropy, weight_sum;  /* of P; of the class weights */
    const char *target_row, *class_weights;
    onep_top_k_row *top; /* of a teacher of k columns; NULL: another one, or none */
    onep_top_k_tail tail;
} row_state;

static element element_of(const row_state *r, int64_t column)
{
    const onep_logits_problem *k = r->problem;
    element e = {.log_s = log_probability(&r->s_state, z_of(&r->s, column))};
    e.s = flushed(exp(e.log_s), r->computed);
    double y = 0;
    switch (k->form) {
    case ONEP_TARGET_LOGITS:
        e.log_t = log_probability(&r->t_state, z_of(&r->t, column));
        e.t = exp(e.log_t);
        break;
    case ONEP_TARGET_PROBS:
        y = onep_load(k->targets.type, r->target_row + column * k->targets.col_stride);
        e.t = y >= 0 && y < INFINITY ? y : (double)NAN;
        e.log_t = log(e.t);
        break;
    default:
        y = onep_load(k->targets.type, r->target_row + column * k->targets.col_stride);
        e.log_t = y < INFINITY ? y : (double)NAN;
        e.t = exp(e.log_t);
        break;
    }
    e.t = flushed(e.t, r->computed);
    divergence_terms(&e, &k->divergence, k->semantics);
    return e;
}

static double class_weight(const row_state *r, int64_t column)
{
    const onep_operand *w = &r->problem->class_weights;
    return w->data ? onep_load(w->type, r->class_weights + column * w->col_stride) : 1;
}

/* D; *target_entropy is that of T, of targets that are no logits. */
static double divergence_of(row_state *r, double *target_entropy)
{
    const onep_divergence_terms *d = &r->problem->divergence;
    onep_sum value = {0, 0}, s_phi = {0, 0}, t_psi = {0, 0}, entropy = {0, 0}, surplus = {-1, 0};
    for (int64_t c = 0; c < r->columns; c++) {
        element e = element_of(r, c);
        onep_sum_add(&value, e.value);
        onep_sum_add(&s_phi, e.s_phi);
        onep_sum_add(&t_psi, e.t_psi);
        onep_sum_add(&surplus, e.t);
        if (e.t != 0)
            onep_sum_add(&entropy, -e.t * e.log_t);
    }
    r->s_phi_sum = onep_sum_value(s_phi);
    r->t_psi_sum = onep_sum_value(t_psi);
    *target_entropy = onep_sum_value(entropy);
    /* The terms h add T - M and S - M to what they stand for; the sums of those are 0 if T adds up to 1. */
    if (r->problem->form != ONEP_TARGET_LOGITS && !d->is_total_variation && r->columns > 0)
        onep_sum_add(&value, (d->a * (1 - d->q) - d->b * d->q) * onep_sum_value(surplus));
    return onep_sum_value(value);
}

/* The columns that a teacher of k did not name: their largest z and what their exponentials add up to. */
static onep_top_k_tail tail_of(const row_state *r)
{
    onep_top_k_tail tail = {.max = -INFINITY, .first = -1};
    int at = 0;
    for (int64_t c = 0; c < r->s.columns && !isnan(tail.max); c++) {
        double z = z_of(&r->s, c);
        if (c == onep_top_k_column(r->top, at))
            at = onep_top_k_next(r->top, at);
        else if (z > tail.max || isnan(z)) {
            tail.max = z;
            tail.first = c;
        }
    }
    onep_sum others = {0, 0};
    at = 0;
    for (int64_t c = 0; c < r->s.columns && tail.first >= 0; c++)
        if (c == onep_top_k_column(r->top, at))
            at = onep_top_k_next(r->top, at);
        else if (c != tail.first)
            onep_sum_add(&others, exp(z_of(&r->s, c) - tail.max));
    tail.others = onep_sum_value(others);
    return tail;
}

/* dD/dz of a column beside a teacher of k; *at is the next entry in their order. */
static double top_k_slope(const row_state *r, int64_t column, int *at)
{
    if (column != onep_top_k_column(r->top, *at))
        return r->tail.first < 0 ? 0 : times(exp(z_of(&r->s, column) - r->tail.max), r->top->tail_slope);
    double slope = onep_top_k_slope(r->top, *at);
    *at = onep_top_k_next(r->top, *at);
    return slope;
}

/* What smoothing needs of the columns that are here. */
static void smoothing_of(row_state *r)
{
    onep_sum all = {0, 0}, weights = {0, 0};
    for (int64_t c = 0; c < r->columns; c++) {
        onep_sum_add(&all, times(class_weight(r, c), -log_probability(&r->p_state, z_of(&r->p, c))));
        onep_sum_add(&weights, class_weight(r, c));
    }
    r->smoothed = onep_sum_value(all);
    r->weight_sum = onep_sum_value(weights);
}

/* label_weight NLL + z_loss lse^2 - entropy_bonus H. */
static double label_terms(row_state *r)
{
    const onep_logits_problem *k = r->problem;
    const onep_label_terms *l = &k->label;
    const softmax_state *p = &r->p_state;
    double lse = p->max + p->log_sum, nll = 0;
    if (r->label >= 0 && l->weight != 0) {
        double of_label = r->label_weight * -log_probability(p, r->at_label);
        if (l->smoothing != 0 && !k->statistics)
            smoothing_of(r);
        nll = times(1 - l->smoothing, of_label) + l->smoothing * r->smoothed / (double)k->total_columns;
    }
    return times(l->weight, nll) + times(l->z_loss, lse * lse) - times(l->entropy_bonus, r->entropy);
}

/* The derivative of the label terms to z of a column. */
static double label_slope(const row_state *r, int64_t column)
{
    const onep_label_terms *l = &r->problem->label;
    const softmax_state *s = &r->p_state;
    double z = z_of(&r->p, column), log_p = log_probability(s, z), p = exp(log_p), slope = 0;
    if (r->label >= 0 && l->weight != 0) {
        double at_label = column == r->place ? less_one(s, z) : p;
        slope = l->weight * (1 - l->smoothing) * r->label_weight * at_label;
        if (l->smoothing != 0)
            slope += l->weight * l->smoothing / (double)r->problem->total_columns *
                     (r->weight_sum * p - class_weight(r, column));
    }
    slope += times(2 * l->z_loss * (s->max + s->log_sum), p);
    return slope + (p != 0 ? l->entropy_bonus * p * (log_p + r->entropy) : p);
}

/* What reaches z of a column: p dL/dp less p times the sum of that over all columns. */
static double through_softmax(double own, double p, double sum)
{
    return own - times(p, sum);
}

static void write_gradients(const row_state *r, double scale)
{
    const onep_logits_problem *k = r->problem;
    char *to_predictions = onep_row_address(&k->grad_predictions, &k->rows, r->row);
    char *to_targets = onep_row_address(&k->grad_targets, &k->rows, r->row);
    int has_targets = k->form < ONEP_NO_TARGET, at = 0;
    for (int64_t c = 0; c < k->width; c++) {
        double d_prediction = 0, d_target = 0;
        if (c < k->columns) {
            element e = has_targets ? element_of(r, c) : (element){0};
            if (r->top)
                d_prediction = k->divergence.weight * top_k_slope(r, c, &at) / k->temperature;
            else if (has_targets)
                d_prediction = k->divergence.weight * through_softmax(e.s_phi, e.s, r->s_phi_sum) / k->temperature;
            d_prediction = (d_prediction + label_slope(r, c) / k->label_temperature) * slope_of(&r->p, c) * scale;
            if (k->form == ONEP_TARGET_LOGITS)
                d_target = through_softmax(e.t_psi, e.t, r->t_psi_sum) / k->target_temperature * slope_of(&r->t, c);
            else
                d_target = k->form == ONEP_TARGET_PROBS ? e.psi : e.t_psi;
            d_target *= k->divergence.weight * scale;
        }
        store_column(&k->grad_predictions, to_predictions, c, d_prediction);
        store_column(&k->grad_targets, to_targets, c, d_target);
    }
}

/* Every result of a row the same number; columns that take no part have gradients of 0. */
static void fill_row(const onep_logits_problem *k, int64_t row, double x, double beyond)
{
    const onep_operand *gradients[] = {&k->grad_predictions, &k->grad_targets};
    for (int i = 0; i < 2; i++) {
        char *to = onep_row_address(gradients[i], &k->rows, row);
        for (int64_t c = 0; c < k->width; c++)
            store_column(gradients[i], to, c, c < k->columns ? x : beyond);
    }
    const onep_operand *results[] = {&k->lse, &k->entropy, &k->log_prob, &k->target_lse, &k->target_entropy};
    for (int i = 0; i < 5; i++)
        store_row(results[i], &k->rows, row, x);
}

int onep_logits_takes_part(const onep_logits_problem *k, int64_t row, int64_t *label)
{
    *label = -1;
    if (k->mask.data && *onep_row_address(&k->mask, &k->rows, row) == 0)
        return 0;
    if (!k->labels.data)
        return 1;
    *label = onep_load_integer(k->labels.type, onep_row_address(&k->labels, &k->rows, row));
    return *label != k->label.ignore_index;
}

/* Results of a row without any mass, of which nothing is defined but its LSE. */
static double no_mass_row(const row_state *r)
{
    const onep_logits_problem *k = r->problem;
    double x = k->semantics == ONEPASS_FINITE ? 0 : (double)NAN;
    fill_row(k, r->row, x, 0);
    store_row(&k->lse, &k->rows, r->row, r->p_state.max + r->p_state.log_sum);
    store_row(&k->target_lse, &k->rows, r->row, r->t_state.max + r->t_state.log_sum);
    char *argmax = onep_row_address(&k->argmax, &k->rows, r->row);
    if (argmax)
        onep_store_integer(k->argmax.type, argmax, r->p_state.first);
    return x;
}

/* ---- a shard: what is known of all columns ---------------------------------------------------------------------- */

static softmax_state state_of(const onep_row_statistics *all, const onep_side_state *side, double temperature)
{
    return (softmax_state){.max = side->max / temperature,
                           .others = side->others,
                           .log_sum = log1p(side->others),
                           .first = (int64_t)all->first,
                           .no_mass = all->columns > 0 && side->max == -INFINITY};
}

static double entropy_from(const onep_side_state *side)
{
    return log1p(side->others) + side->spread / (1 + side->others);
}

/* The weight of the label's class, and z there. */
static double label_of(row_state *r)
{
    const onep_logits_problem *k = r->problem;
    if (!k->statistics) {
        r->label_weight = class_weight(r, r->label);
        return z_of(&r->p, r->label);
    }
    onep_pick pick = onep_statistics_pick(k->statistics, &k->rows, r->row, 0);
    r->label_weight = pick.weight;
    return pick.has != 0 ? pick.v / k->label_temperature : (double)NAN;
}

/* cpu_terms.inc has that many S more in S dD/dS of a mixture, and as many T less in T dD/dT: the softmax takes both out
 * again. */
static double left_out_of(const onep_divergence_terms *d)
{
    return d->a * (1 - d->q) - d->b * d->q;
}

/* Everything that row_of would find by reading the whole row. D is returned. */
static double row_from_statistics(row_state *r, double *target_entropy)
{
    const onep_logits_problem *k = r->problem;
    onep_row_statistics all;
    onep_statistics_load(k->statistics, &k->rows, r->row, &all);
    r->p_state = r->s_state = state_of(&all, &all.side[ONEP_SIDE_P], k->label_temperature);
    r->entropy = entropy_from(&all.side[ONEP_SIDE_P]);
    r->weight_sum = all.weights;
    r->smoothed = all.below / k->label_temperature + times(all.weights, r->p_state.log_sum);
    if (k->form == ONEP_NO_TARGET)
        return 0;
    r->s_state = state_of(&all, &all.side[ONEP_SIDE_S], k->temperature);
    r->t_state = state_of(&all, &all.side[ONEP_SIDE_T], k->target_temperature);
    *target_entropy = entropy_from(&all.side[ONEP_SIDE_T]);
    int is_reverse = (int)all.kind == ONEP_SHARD_REVERSE_KL; /* cpu_terms.inc leaves out S, or T, which adds up to 1 */
    int has_sums = onep_shard_has_sums((onep_shard_kind)(int)all.kind);
    r->s_phi_sum = all.sum_s + (has_sums ? -left_out_of(&k->divergence) : is_reverse);
    r->t_psi_sum = all.sum_t + (has_sums ? left_out_of(&k->divergence) : !is_reverse);
    return all.divergence;
}

/* `top` is room for a teacher of k columns; NULL: there is none. */
static double row_of(const onep_logits_problem *k, int64_t row, double divisor, onep_top_k_row *top)
{
    row_state r = {.problem = k, .row = row, .columns = k->columns, .class_weights = k->class_weights.data, .top = top};
    char *argmax = onep_row_address(&k->argmax, &k->rows, row);
    if (!onep_logits_takes_part(k, row, &r.label)) {
        fill_row(k, row, 0, 0);
        if (argmax)
            onep_store_integer(k->argmax.type, argmax, 0);
        return 0;
    }
    int has_targets = k->form != ONEP_NO_TARGET, has_target_logits = k->form == ONEP_TARGET_LOGITS;
    int is_shard = k->statistics != NULL;
    r.place = r.label - k->first_column;
    double weight = load_or(&k->weights, onep_row_address(&k->weights, &k->rows, row), 1);
    double upstream = load_or(&k->grad_value, onep_row_address(&k->grad_value, &k->rows, row), 1);
    onep_type promoted = has_targets ? onep_promote(k->predictions.type, k->targets.type) : k->predictions.type;
    r.computed = onep_computed(promoted);
    r.target_row = onep_row_address(&k->targets, &k->rows, row);
    r.p = r.s = logit_row_of(&k->predictions, &k->rows, row, k->columns, k->softcap, k->label_temperature);
    r.s.temperature = k->temperature;
    double divergence = 0, target_entropy = 0;
    if (has_target_logits)
        r.t = logit_row_of(&k->targets, &k->rows, row, k->columns, k->target_softcap, k->target_temperature);
    if (is_shard) {
        divergence = row_from_statistics(&r, &target_entropy);
    } else {
        r.p_state = softmax_of(&r.p);
        r.s_state = has_targets ? softmax_of(&r.s) : r.p_state;
        if (has_target_logits)
            r.t_state = softmax_of(&r.t);
    }

    if (r.p_state.no_mass || r.t_state.no_mass)
        return weight * no_mass_row(&r);
    if (top)
        onep_top_k_begin(top, k, row);
    if (top && !top->has_bad_index) {
        r.tail = tail_of(&r);
        onep_top_k_finish(top, &r.tail);
        if (top->lacks_mass)
            return weight * no_mass_row(&r);
    }

    /* Everything that reads the row comes before the gradients, which may be written over it. */
    int has_bad_label = k->labels.data && (r.label < 0 || r.label >= k->total_columns);
    double log_prob = (double)NAN;
    if (r.label >= 0 && !has_bad_label) {
        r.at_label = label_of(&r);
        log_prob = log_probability(&r.p_state, r.at_label);
    }
    if (!is_shard) {
        divergence = top ? top->value : has_targets ? divergence_of(&r, &target_entropy) : 0;
        r.entropy = entropy_of(&r.p, &r.p_state);
        if (has_target_logits)
            target_entropy = entropy_of(&r.t, &r.t_state);
    }
    double value = has_targets ? k->divergence.weight * divergence : 0;
    if ((has_bad_label && k->label.weight != 0) || (top && top->has_bad_index)) {
        fill_row(k, row, (double)NAN, 0);
        value = (double)NAN;
    } else {
        value += label_terms(&r);
        write_gradients(&r, weight * upstream / divisor);
    }
    store_row(&k->lse, &k->rows, row, r.p_state.max + r.p_state.log_sum);
    store_row(&k->entropy, &k->rows, row, r.entropy);
    store_row(&k->target_lse, &k->rows, row, r.t_state.max + r.t_state.log_sum);
    store_row(&k->target_entropy, &k->rows, row, target_entropy);
    store_row(&k->log_prob, &k->rows, row, log_prob);
    if (argmax)
        onep_store_integer(k->argmax.type, argmax, r.p_state.first < 0 ? 0 : r.p_state.first);
    return weight * value;
}

/* Apart, so that its room is taken for such rows alone. */
static __attribute__((noinline)) double top_k_row_of(const onep_logits_problem *k, int64_t row, double divisor)
{
    onep_top_k_row top;
    return row_of(k, row, divisor, &top);
}

double onep_logits_row(const onep_logits_problem *k, int64_t row, double divisor)
{
    return k->form == ONEP_TARGET_TOP_K ? top_k_row_of(k, row, divisor) : row_of(k, row, divisor, NULL);
}

/* ---- a shard: what is sent of its columns ------------------------------------------------------------------------ */

/* The softmax of a row or slice, and what travels of it. */
static onep_side_state side_of(const logit_row *r, softmax_state *s)
{
    logit_row v = *r;
    v.temperature = 1;
    *s = softmax_of(r);
    onep_sum spread = {0, 0};
    for (int64_t c = 0; c < r->columns && !s->no_mass; c++) {
        double z = z_of(r, c), e = exp(z - s->max);
        if (e != 0)
            onep_sum_add(&spread, e * (s->max - z));
    }
    return (onep_side_state){.max = z_of(&v, s->first), .others = s->others, .spread = onep_sum_value(spread)};
}

/* KL and reverse KL within a slice. Columns in which only the side that is averaged over has mass make D infinite,
 * unless that is no mass in the whole row: merging decides. */
static void slice_divergence(const row_state *r, onep_shard_kind kind, onep_slice_state *to)
{
    int is_reverse = kind == ONEP_SHARD_REVERSE_KL;
    logit_row v = is_reverse ? r->s : r->t;
    v.temperature = 1;
    if (isnan(r->s_state.others + r->t_state.others)) {
        to->divergence = (double)NAN;
        return;
    }
    if (is_reverse ? r->s_state.no_mass : r->t_state.no_mass)
        return;
    if (is_reverse ? r->t_state.no_mass : r->s_state.no_mass) {
        to->bare = to->side[is_reverse ? ONEP_SIDE_S : ONEP_SIDE_T].max;
        return;
    }
    onep_sum sum = {0, 0};
    for (int64_t c = 0; c < r->columns; c++) {
        element e = element_of(r, c);
        if (e.value != INFINITY)
            onep_sum_add(&sum, e.value);
        else if (z_of(&v, c) > to->bare)
            to->bare = z_of(&v, c);
    }
    to->divergence = onep_sum_value(sum);
}

void onep_shard_slice(const onep_shard_problem *p, int64_t row, int64_t slice, onep_slice_state *to)
{
    const onep_logits_problem *k = &p->loss;
    const onep_operand *w = &k->class_weights;
    int64_t begin = slice * ONEP_SHARD_SLICE, rest = k->columns - begin;
    int64_t count = rest < ONEP_SHARD_SLICE ? rest : ONEP_SHARD_SLICE;
    row_state r = {.problem = k, .row = row, .columns = count, .computed = p->computed};
    r.class_weights = w->data ? w->data + begin * w->col_stride : NULL;
    r.p = logit_row_of(&k->predictions, &k->rows, row, count, k->softcap, k->label_temperature);
    r.p.at += begin * r.p.stride;
    *to = (onep_slice_state){.side[ONEP_SIDE_P] = side_of(&r.p, &r.p_state), .bare = -INFINITY};
    to->first = (double)(begin + r.p_state.first);
    to->best = to->side[ONEP_SIDE_P].max;
    if (k->label.smoothing != 0) {
        logit_row v = r.p;
        v.temperature = 1;
        onep_sum below = {0, 0}, weights = {0, 0};
        for (int64_t c = 0; c < count; c++) {
            double apart = r.p_state.no_mass ? INFINITY : to->side[ONEP_SIDE_P].max - z_of(&v, c);
            onep_sum_add(&below, times(class_weight(&r, c), apart));
            onep_sum_add(&weights, class_weight(&r, c));
        }
        to->below = onep_sum_value(below);
        to->weights = onep_sum_value(weights);
    }
    if (k->form == ONEP_NO_TARGET)
        return;
    r.s = r.p;
    r.s.temperature = k->temperature;
    r.t = logit_row_of(&k->targets, &k->rows, row, count, k->target_softcap, k->target_temperature);
    r.t.at += begin * r.t.stride;
    to->side[ONEP_SIDE_S] = side_of(&r.s, &r.s_state);
    to->side[ONEP_SIDE_T] = side_of(&r.t, &r.t_state);
    if (!onep_shard_has_sums(p->kind))
        slice_divergence(&r, p->kind, to);
}

void onep_shard_slice_sums(const onep_shard_problem *p, int64_t row, int64_t slice, onep_slice_sums *to)
{
    const onep_logits_problem *k = &p->loss;
    int64_t begin = slice * ONEP_SHARD_SLICE, rest = k->columns - begin;
    row_state r = {.problem = k, .row = row, .computed = p->computed};
    r.columns = rest < ONEP_SHARD_SLICE ? rest : ONEP_SHARD_SLICE;
    r.s = logit_row_of(&k->predictions, &k->rows, row, r.columns, k->softcap, k->temperature);
    r.s.at += begin * r.s.stride;
    r.t = logit_row_of(&k->targets, &k->rows, row, r.columns, k->target_softcap, k->target_temperature);
    r.t.at += begin * r.t.stride;
    onep_row_statistics all;
    onep_statistics_load(k->statistics, &k->rows, row, &all);
    r.s_state = state_of(&all, &all.side[ONEP_SIDE_S], k->temperature);
    r.t_state = state_of(&all, &all.side[ONEP_SIDE_T], k->target_temperature);
    double left_out = left_out_of(&k->divergence);
    onep_sum value = {0, 0}, s_phi = {0, 0}, t_psi = {0, 0};
    for (int64_t c = 0; c < r.columns; c++) {
        element e = element_of(&r, c);
        onep_sum_add(&value, e.value);
        onep_sum_add(&s_phi, e.s_phi + left_out * e.s);
        onep_sum_add(&t_psi, e.t_psi - left_out * e.t);
    }
    *to = (onep_slice_sums){onep_sum_value(value), onep_sum_value(s_phi), onep_sum_value(t_psi)};
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

double onep_logits_divisor(const onep_logits_problem *k)
{
    if (k->divisor_from.data)
        return onep_load(k->divisor_from.type, k->divisor_from.data);
    if (k->reduction != ONEPASS_VALID)
        return k->divisor;
    onep_sum sum = {0, 0};
    for (int64_t row = 0; row < k->rows.count; row++) {
        int64_t label;
        if (!onep_logits_takes_part(k, row, &label))
            continue;
        double weight = 1;
        if (k->class_weights.data && label >= 0 && label < k->total_columns)
            weight = k->statistics ? onep_statistics_pick(k->statistics, &k->rows, row, 0).weight
                                   : onep_load(k->class_weights.type,
                                               k->class_weights.data + label * k->class_weights.col_stride);
        onep_sum_add(&sum, weight);
    }
    return onep_sum_value(sum);
}

int onep_logits_is_made(const onep_logits_problem *k)
{
    return k->grad_made_for.data &&
           load_or(&k->grad_value, k->grad_value.data, 1) == onep_load(k->grad_made_for.type, k->grad_made_for.data);
}

void onep_logits_store_total(const onep_logits_problem *k, double sum, double divisor)
{
    if (k->reduction == ONEPASS_ROWS || !k->value.data)
        return;
    int none = k->reduction == ONEPASS_VALID && k->semantics == ONEPASS_FINITE && divisor == 0;
    onep_store(k->value.type, k->value.data, none ? 0 : sum / divisor);
}

static onepass_status run_logits(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_logits_problem *k = (const onep_logits_problem *)problem;
    (void)handle, (void)plan;
    if (onep_logits_is_made(k))
        return ONEPASS_OK;
    double divisor = onep_logits_divisor(k);
    onep_sum total = {0, 0};
    for (int64_t row = 0; row < k->rows.count; row++) {
        double value = onep_logits_row(k, row, divisor);
        if (k->reduction == ONEPASS_ROWS)
            store_row(&k->value, &k->rows, row, value);
        onep_sum_add(&total, value);
    }
    onep_logits_store_total(k, onep_sum_value(total), divisor);
    return ONEPASS_OK;
}

const onep_kernel onep_logits_ref[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {NULL, run_logits},
                                                       [ONEP_BF16] = {NULL, run_logits},
                                                       [ONEP_F32] = {NULL, run_logits},
                                                       [ONEP_F64] = {NULL, run_logits}};
