/*
 * See exact_row.h. A teacher of k columns: the divergence over the categories, which are the columns A that were named
 * and, unless both sides are normalised over A, the rest. With u2 the unit roundoff of double, in which everything but
 * the exponentials of the columns outside is computed, S of a column from softmax.h and Z that of the columns outside:
 *
 *   log S_rest    = lse(Z) - lse(S): e(max Z) + e(max S) + e(log_sum Z) + e(log_sum S) + 4 u2 (1 + |log S_rest|)
 *   T of entries  as softmax.h's in u2 where T is a softmax of values; EXP_ERROR u2 T for log-probabilities; 0 for
 *                 probabilities, 4 u2 T if they are divided by their sum. Of several entries the errors add up, with u2
 * T T_rest        the sum of e(T), and 2 u2 T_rest; its logarithm e(T_rest) / T_rest + 4 u2 (1 + |log T_rest|) D the
 * sum of the errors of h in exact_logits.c, of e(W), and of 4 u2 of the terms dD/dz in A    KL: e(S) W + S e(W) + e(T)
 * + 4 u2 (S W + T) reverse KL, with L = log(S/T): e(S) |L - D| + S (e(log S) + e(log T) + e(D) + 4 u2 (|L| + |D|))
 *   outside       Z c: e(Z) |c| + Z e(c), with c = S_rest W - T_rest or S_rest (L_rest - D), of which e(c) is as in A
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/exact_row.h"
#include "cases/kl.h"

/* A column of A. */
typedef struct category {
    int64_t column;
    softmax_column s, t;
} category;

struct exact_top_k {
    softmax_precision precision; /* of what belongs to A */
    int form, outside, is_reverse;
    int64_t entries; /* K */
    /* of the row at hand */
    int64_t count; /* of A */
    int lacks_mass, has_rest;
    exact_softmax outside_softmax;
    category rest;
    bounded mass, value; /* W, D */
    long double surplus; /* W - 1 */
    double *others;      /* logits outside, in order; of A where S is normalised over it */
    double *values;      /* of the entries that count */
    int64_t *columns;    /* theirs */
    category *set;       /* by column */
};

exact_top_k *exact_top_k_begin(const exact_logits *e, case_arithmetic arithmetic)
{
    exact_top_k *top = calloc(1, sizeof *top);
    if (!top)
        return NULL;
    size_t entries = (size_t)case_extent(e->c, 'K');
    top->precision = softmax_precision_of(arithmetic, case_f64);
    top->form = (int)e->c->options[LOGITS_TOP_FORM];
    top->outside = (int)e->c->options[LOGITS_OUTSIDE];
    top->is_reverse = e->b != 0;
    top->entries = (int64_t)entries;
    top->others = calloc((size_t)e->width + entries + 1, sizeof(double));
    top->values = calloc(entries + 1, sizeof(double));
    top->columns = calloc(entries + 1, sizeof(int64_t));
    top->set = calloc(entries + 1, sizeof(category));
    if (top->others && top->values && top->columns && top->set)
        return top;
    exact_top_k_end(top);
    return NULL;
}

void exact_top_k_end(exact_top_k *top)
{
    if (!top)
        return;
    free(top->others);
    free(top->values);
    free(top->columns);
    free(top->set);
    free(top);
}

/* ---- the teacher ------------------------------------------------------------------------------------------------- */

static int by_column(const void *a, const void *b)
{
    int64_t x = ((const category *)a)->column, y = ((const category *)b)->column;
    return (x > y) - (x < y);
}

static int is_normalised(const exact_top_k *top)
{
    return top->form == ONEPASS_TOP_LOGITS || top->outside >= ONEPASS_OUTSIDE_RENORMALISED;
}

/* One entry's mass. `softmax` is that of the values, `sum` that of probabilities. */
static softmax_column mass_of(const exact_top_k *top, const exact_softmax *softmax, long double sum, int64_t i)
{
    long double u = top->precision.u, y = top->values[i];
    softmax_column one = {0};
    if (top->form == ONEPASS_TOP_PROBS) {
        one.p = y / sum;
        one.p_error = is_normalised(top) ? 4 * u * one.p : 0;
        one.log_p = logl(one.p);
        one.log_p_error = one.p > 0 ? u * (4 * fabsl(logl(y)) + 4 * fabsl(logl(sum)) + 4) : 0;
        return one;
    }
    if (is_normalised(top))
        return exact_column_of(softmax, i);
    one.log_p = y;
    one.p = expl(y);
    one.p_error = EXP_ERROR * u * one.p;
    return one;
}

/* Adds an entry to the column it names. */
static void add_mass(exact_top_k *top, int64_t column, softmax_column mass)
{
    long double u = top->precision.u;
    for (int64_t i = 0; i < top->count; i++) {
        softmax_column *t = &top->set[i].t;
        if (top->set[i].column != column)
            continue;
        t->p += mass.p;
        t->p_error += mass.p_error + u * t->p;
        t->log_p = logl(t->p);
        long double larger = t->log_p_error > mass.log_p_error ? t->log_p_error : mass.log_p_error;
        t->log_p_error = t->p > 0 ? larger + 4 * u * (1 + fabsl(t->log_p)) : 0;
        return;
    }
    top->set[top->count++] = (category){.column = column, .t = mass};
}

/* T of the columns of A, and W. */
static void load_teacher(exact_logits *e, int64_t count)
{
    exact_top_k *top = e->top;
    long double sum = 0, largest = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        sum += top->values[i];
        largest = top->values[i] > largest ? top->values[i] : largest;
    }
    int is_undefined = 0;
    for (int64_t i = 0; i < count; i++)
        is_undefined |= isnan(top->values[i]);
    int is_probs = top->form == ONEPASS_TOP_PROBS;
    top->lacks_mass = is_normalised(top) && !is_undefined && largest <= (is_probs ? 0 : (long double)-INFINITY) &&
                      (!is_probs || sum == 0) && e->columns > 0;
    double temperature = top->form == ONEPASS_TOP_LOGITS ? e->target_temperature : 1;
    exact_softmax softmax = exact_softmax_of((softmax_row){top->values, count, 0, temperature}, top->precision);
    for (int64_t i = 0; i < count; i++)
        add_mass(top, top->columns[i], mass_of(top, &softmax, is_normalised(top) ? sum : 1, i));
    qsort(top->set, (size_t)top->count, sizeof top->set[0], by_column);
    top->mass = (bounded){1, 0};
    top->surplus = 0;
    if (is_normalised(top))
        return;
    top->mass.x = 0;
    top->surplus = -1;
    for (int64_t i = 0; i < top->count; i++) {
        top->mass.x += top->set[i].t.p;
        top->mass.error += top->set[i].t.p_error;
        top->surplus += top->set[i].t.p;
    }
}

/* ---- the student ------------------------------------------------------------------------------------------------- */

static int64_t place_of(const exact_top_k *top, int64_t column)
{
    category key = {.column = column};
    const category *found = bsearch(&key, top->set, (size_t)top->count, sizeof key, by_column);
    return found ? found - top->set : -1;
}

static void load_student(exact_logits *e)
{
    exact_top_k *top = e->top;
    softmax_row row = e->s.row;
    int is_subset = top->outside == ONEPASS_OUTSIDE_SUBSET;
    int64_t others = 0;
    for (int64_t k = 0; k < e->columns; k++)
        if (place_of(top, k) < 0)
            top->others[others++] = e->x[k];
    row.logits = top->others;
    row.columns = others;
    top->has_rest = !is_subset && others > 0;
    top->outside_softmax = exact_softmax_of(row, e->precision);
    double *of_set = top->others + others;
    for (int64_t i = 0; i < top->count; i++)
        of_set[i] = e->x[top->set[i].column];
    row.logits = of_set;
    row.columns = top->count;
    exact_softmax subset = exact_softmax_of(row, top->precision);
    top->lacks_mass |= is_subset && subset.has_no_mass;
    for (int64_t i = 0; i < top->count; i++)
        top->set[i].s = is_subset ? exact_column_of(&subset, i) : exact_column_of(&e->s, top->set[i].column);
}

static void load_rest(exact_logits *e)
{
    exact_top_k *top = e->top;
    const exact_softmax *z = &top->outside_softmax;
    long double u = top->precision.u, t = -top->surplus;
    softmax_column none = {.log_p = -INFINITY};
    top->rest = (category){.column = -1, .s = none, .t = none};
    if (top->has_rest && !z->has_no_mass) {
        softmax_column *s = &top->rest.s;
        s->log_p = (z->max - e->s.max) + z->log_sum - e->s.log_sum;
        s->log_p_error =
            z->max_error + e->s.max_error + z->log_sum_error + e->s.log_sum_error + 4 * u * (1 + fabsl(s->log_p));
        s->p = expl(s->log_p);
        s->p_error = s->p * (EXP_ERROR * u + s->log_p_error);
    }
    if (top->has_rest && top->outside == ONEPASS_OUTSIDE_TAIL && !is_normalised(top) && t > 0) {
        long double error = top->mass.error + 2 * u * t;
        top->rest.t = (softmax_column){
            .p = t, .p_error = error, .log_p = logl(t), .log_p_error = error / t + 4 * u * (1 + fabsl(logl(t)))};
        top->mass = (bounded){1, 0};
        top->surplus = 0;
    }
}

int exact_top_k_load(exact_logits *e)
{
    exact_top_k *top = e->top;
    int64_t count = 0;
    top->count = 0;
    for (int64_t i = 0; i < top->entries; i++) {
        double index = case_was(e->c, LOGITS_TOP_INDICES, e->row * top->entries + i);
        if (index >= (double)e->columns)
            return 0;
        if (index < 0)
            continue;
        double y = case_was(e->c, LOGITS_TOP_VALUES, e->row * top->entries + i);
        int is_legal = y < INFINITY && (y >= 0 || top->form != ONEPASS_TOP_PROBS);
        top->columns[count] = (int64_t)index;
        top->values[count++] = is_legal ? y : (double)NAN;
    }
    load_teacher(e, count);
    load_student(e);
    load_rest(e);
    return 1;
}

int exact_top_k_lacks_mass(const exact_logits *e)
{
    return e->top->lacks_mass;
}

/* ---- the divergence ---------------------------------------------------------------------------------------------- */

static void add_category(exact_logits *e, const category *from, bounded *sum, long double *size)
{
    column_terms one = {.s = from->s, .t = from->t};
    if (one.s.p == 0 && one.t.p == 0)
        return;
    softmax_precision kept = e->precision;
    e->precision = e->top->precision;
    exact_mixed_terms(e, &one);
    e->precision = kept;
    sum->x += one.value.with_h;
    sum->error += isinf(one.value.with_h) ? 0 : one.value.h_error;
    *size += fabsl(one.value.with_h);
}

bounded exact_top_k_divergence(exact_logits *e)
{
    exact_top_k *top = e->top;
    bounded sum = {0, 0};
    long double size = fabsl(top->surplus), u = top->precision.u;
    for (int64_t i = 0; i < top->count; i++)
        add_category(e, &top->set[i], &sum, &size);
    if (top->has_rest)
        add_category(e, &top->rest, &sum, &size);
    sum.x += top->is_reverse ? -top->surplus : top->surplus;
    sum.error += top->mass.error + (kl_sum_error(top->count + 2) + 4 * u) * size;
    if (e->s.is_undefined)
        sum.x = NAN;
    if (e->columns == 0)
        sum = (bounded){0, 0};
    top->value = sum;
    return sum;
}

/* S W - T, or S (log(S/T) - D), of a category. */
static bounded slope_of(const exact_top_k *top, const category *c)
{
    long double u = top->precision.u, ratio = c->s.log_p - c->t.log_p;
    bounded d = {0, 0};
    if (!top->is_reverse) {
        d.x = c->s.p * top->mass.x - c->t.p;
        d.error = c->s.p_error * top->mass.x + c->s.p * top->mass.error + c->t.p_error +
                  4 * u * (c->s.p * top->mass.x + c->t.p);
    } else if (c->s.p != 0) {
        d.x = c->s.p * (ratio - top->value.x);
        d.error = c->s.p_error * fabsl(ratio - top->value.x) +
                  c->s.p * (c->s.log_p_error + c->t.log_p_error + top->value.error +
                            4 * u * (fabsl(ratio) + fabsl(top->value.x)));
    }
    return isfinite(d.x) ? d : (bounded){d.x, 0};
}

bounded exact_top_k_slope(const exact_logits *e, int64_t column)
{
    const exact_top_k *top = e->top;
    int64_t place = place_of(top, column);
    if (place >= 0)
        return slope_of(top, &top->set[place]);
    if (!top->has_rest || top->rest.s.p == 0)
        return (bounded){0, 0};
    int64_t before = 0;
    while (before < top->count && top->set[before].column < column)
        before++;
    softmax_column z = exact_column_of(&top->outside_softmax, column - before);
    bounded c = slope_of(top, &top->rest);
    if (z.p == 0)
        return (bounded){0, 0};
    if (!isfinite(c.x))
        return (bounded){c.x * z.p, 0};
    return (bounded){c.x * z.p, z.p_error * fabsl(c.x) + z.p * c.error};
}
