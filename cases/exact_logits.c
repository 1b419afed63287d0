/*
 * See exact_logits.h. With S, T and P from softmax.h (and their e(p), e(log p)), M = q T + (1-q) S and
 *
 *   D = sum of a T log(T/M) + b S log(S/M)
 *
 * the errors of what a kernel computes in the unit roundoff u are, column by column, with delta = log S - log T,
 * e = e(log S) + e(log T) + u |delta| + 4u |lse(S) - lse(T)|, s = (1-q) S / M, t = q T / M (s + t = 1); the last term
 * of e is for logits on both sides, whose difference may be formed before that of the normalisers:
 *
 *   log(T/M)      s e + 3u |1 - T/M| + 2u |log(T/M)|, the middle term for 0 < q < 1 only     =: l
 *   S/M           S/M (t e + 4u)
 *   value         plain:  sum of a [e(T) |log(T/M)| + T (l + 2u (1 + |log(T/M)|))], and the same with b, S
 *                 with h: sum of a [e(T) h + T (|1 - M/T| l + l^2) + 4u T h], h = log(T/M) - 1 + M/T
 *                         (below log(T/M) = -1: e(T) (1 + |log(T/M)|) + T l + e(M))
 *                 The second wherever |D| < 2^-8: there the error is a share of D. Above either form will do.
 *   S dD/dS       a [e(T) (1-q) S/M + T s (t e + 4u)] + b [e(S) |..| + S (l + s (t e + 4u) + 2u (2 + |log(S/M)|))],
 *                 for 0 < q < 1 with 4u a (1-q) S (1 + S/M + T/M): T S/M may be S (T/M - 1) and a multiple of S
 *   dD/dz         own - S (sum of own): e(own) + e(S) |sum| + S e(sum) + 2u (|own| + S |sum|)
 *
 * T dD/dT likewise with S and T exchanged. Total variation: (e(S) + e(T)) / 2 a column; where |S - T| is no more than
 * e(S) + e(T) its sign is anything. Targets that are probabilities are exact, their logarithms off by 3u |log T|; of
 * log-probabilities the exponential is off by 4u T. The label terms:
 *
 *   NLL           class weight (e(log P) + 2u |log P|), and likewise for every column of the smoothing
 *   z_loss lse^2  2 |lse| e(lse) + 2u lse^2
 *   its slopes    e(1 - P) at the label, e(P) elsewhere; 2 |z_loss| (|lse| e(P) + P e(lse));
 *                 |bonus| (e(P) |log P + H| + P (e(log P) + e(H) + 2u (|log P| + H)))
 *
 * Row weight, upstream gradient, divisor, temperature and the slope of the softcap (8u, absolute) are applied after
 * that: 8u of the result.
 */
#include "cases/exact_row.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/kl.h"

int exact_logits_form(const op_case *c)
{
    static const char *const ends[] = {"_logits_logits", "_logits_probs", "_logits_log_probs", "_logits_top_k"};
    size_t length = strlen(c->name);
    if (strcmp(c->name, "linear_divergence") == 0)
        return EXACT_TARGET_LOGITS;
    if (strcmp(c->name, "shard_loss") == 0)
        return c->argument[LOGITS_TARGETS].given ? EXACT_TARGET_LOGITS : EXACT_NO_TARGET;
    for (int form = 0; form < EXACT_NO_TARGET; form++)
        if (length > strlen(ends[form]) && strcmp(c->name + length - strlen(ends[form]), ends[form]) == 0)
            return form;
    return EXACT_NO_TARGET;
}

static double or_default(double x, double otherwise)
{
    return x != 0 ? x : otherwise;
}

exact_logits *exact_logits_begin(op_case *c, case_arithmetic arithmetic)
{
    int64_t width = case_extent(c, 'C');
    exact_logits *e = calloc(1, sizeof *e + 2 * (size_t)width * sizeof(double));
    if (!e)
        return NULL;
    const double *o = c->options;
    e->c = c;
    e->form = exact_logits_form(c);
    e->is_finite = (int)o[LOGITS_SEMANTICS] == ONEPASS_FINITE;
    e->width = width;
    e->columns = logits_columns(c, LOGITS_COLUMNS);
    e->x = e->numbers;
    e->y = e->numbers + width;
    e->temperature = or_default(o[LOGITS_TEMPERATURE], 1);
    e->smoothing = o[LOGITS_SMOOTHING];
    e->z_loss = o[LOGITS_Z_LOSS];
    e->bonus = o[LOGITS_ENTROPY_BONUS];
    onepass_dtype promoted = c->argument[LOGITS_PREDICTIONS].dtype;
    if (e->form == EXACT_NO_TARGET) {
        e->label_weight = or_default(o[LOGITS_LABEL_WEIGHT], 1);
        e->label_temperature = e->temperature;
        e->precision = softmax_precision_of(arithmetic, promoted);
        return e;
    }
    promoted = case_promote(promoted, c->argument[LOGITS_TARGETS].dtype);
    e->precision = softmax_precision_of(arithmetic, promoted);
    e->is_single = promoted.bits < 64;
    e->label_weight = o[LOGITS_LABEL_WEIGHT];
    e->label_temperature = or_default(o[LOGITS_LABEL_TEMPERATURE], 1);
    e->target_temperature = or_default(o[LOGITS_TARGET_TEMPERATURE], e->temperature);
    e->weight = or_default(o[LOGITS_DIVERGENCE_WEIGHT], 1);
    int divergence = (int)o[LOGITS_DIVERGENCE];
    long double mixture = o[LOGITS_MIXTURE];
    e->is_total_variation = divergence == ONEPASS_TOTAL_VARIATION;
    e->a = divergence == ONEPASS_KL || divergence == ONEPASS_SKEW_KL ? 1 : divergence == ONEPASS_JS ? mixture : 0;
    e->b = divergence == ONEPASS_REVERSE_KL || divergence == ONEPASS_SKEW_REVERSE_KL ? 1
           : divergence == ONEPASS_JS                                                ? 1 - mixture
                                                                                     : 0;
    e->q = divergence == ONEPASS_REVERSE_KL                            ? 1
           : divergence == ONEPASS_SKEW_REVERSE_KL                     ? 1 - mixture
           : divergence == ONEPASS_JS || divergence == ONEPASS_SKEW_KL ? mixture
                                                                       : 0;
    if (e->form == EXACT_TARGET_TOP_K) {
        e->top = exact_top_k_begin(e, arithmetic);
        if (!e->top) {
            free(e);
            return NULL;
        }
    }
    return e;
}

void exact_logits_end(exact_logits *e)
{
    if (e)
        exact_top_k_end(e->top);
    free(e);
}

/* ---- the divergence of a column ---------------------------------------------------------------------------------- */

static long double h(long double x)
{
    if (fabsl(x) > 0.25L)
        return x + expm1l(-x);
    long double term = x * x / 2, sum = 0;
    for (int k = 3; term != 0 && k < 40; k++) {
        sum += term;
        term *= -x / k;
    }
    return sum;
}

/* What is 0 in float has no mass where that is the type computed in, also for the reference. */
static void flush(const exact_logits *e, softmax_column *one)
{
    if (e->is_single && (float)one->p == 0)
        one->p = 0;
}

static softmax_column target_of(const exact_logits *e, int64_t column)
{
    long double u = e->precision.u, y = e->y[column];
    if (e->form == EXACT_TARGET_LOGITS)
        return exact_column_of(&e->t, column);
    softmax_column one = {0};
    if (e->form == EXACT_TARGET_PROBS) {
        one.p = y >= 0 && y < INFINITY ? y : (long double)NAN;
        one.log_p = logl(one.p);
        one.log_p_error = one.p > 0 ? LOG_ERROR * u * fabsl(one.log_p) : 0;
    } else {
        one.log_p = y < INFINITY ? y : (long double)NAN;
        one.p = expl(one.log_p);
        one.p_error = one.p > 0 ? EXP_ERROR * u * one.p + e->precision.least : 0;
    }
    return one;
}

static addend addend_of(long double u, softmax_column x, long double log_ratio, long double log_error, long double m,
                        long double m_error)
{
    long double size = fabsl(log_ratio);
    if (x.p == 0)
        return (addend){0, m, isinf(log_ratio) ? 0 : x.p_error * size, m_error};
    addend add = {.plain = x.p * log_ratio};
    if (isinf(log_ratio)) {
        add.with_h = add.plain;
        return add;
    }
    add.plain_error = x.p_error * size + x.p * (log_error + 2 * u * (1 + size));
    if (log_ratio < -1) {
        add.with_h = x.p * (log_ratio - 1) + m;
        add.h_error = x.p_error * (size + 1) + x.p * (log_error + 2 * u * size) + m_error;
    } else {
        add.with_h = x.p * h(log_ratio);
        add.h_error = x.p_error * h(log_ratio) + 4 * u * add.with_h +
                      x.p * (fabsl(expm1l(-log_ratio)) * log_error + log_error * log_error);
    }
    return add;
}

static void total_variation_terms(const exact_logits *e, column_terms *to)
{
    long double difference = to->s.p - to->t.p, unsure = to->s.p_error + to->t.p_error, u = e->precision.u;
    long double sign = difference > 0 ? 0.5L : difference < 0 ? -0.5L : difference; /* NaN stays NaN */
    int is_unsure = fabsl(difference) <= unsure && unsure > 0;
    to->value.plain = to->value.with_h = fabsl(difference) / 2;
    to->value.plain_error = to->value.h_error = unsure / 2 + u * fabsl(difference);
    to->s_own = (bounded){to->s.p * sign, to->s.p_error / 2 + (is_unsure ? to->s.p : 0)};
    to->t_own = (bounded){-to->t.p * sign, to->t.p_error / 2 + (is_unsure ? to->t.p : 0)};
    to->psi = (bounded){-sign, is_unsure ? 1 : 0};
}

static long double log_mixture(long double q, long double log_t, long double log_s)
{
    long double t = logl(q) + log_t, s = logl(1 - q) + log_s, largest = t > s ? t : s;
    if (isnan(t) || isnan(s))
        return t + s;
    return isinf(largest) ? largest : largest + logl(expl(t - largest) + expl(s - largest));
}

static void add_to(bounded *sum, long double x, long double error)
{
    sum->x += x;
    sum->error += isinf(x) ? 0 : error;
}

void exact_mixed_terms(const exact_logits *e, column_terms *to)
{
    const softmax_column s = to->s, t = to->t;
    long double u = e->precision.u, q = e->q, a = e->a, b = e->b;
    int is_inside = q > 0 && q < 1;
    long double delta = s.log_p - t.log_p, error = s.log_p_error + t.log_p_error + u * fabsl(delta);
    if (e->form == EXACT_TARGET_LOGITS)
        error += 4 * u * fabsl(e->s.lse - e->t.lse);
    error += 4 * LDBL_EPSILON * (1 + fabsl(s.log_p) + fabsl(t.log_p)); /* what is exact here is rounded too */
    error = isfinite(delta) ? error : 0;
    long double log_m = q == 0 ? s.log_p : q == 1 ? t.log_p : log_mixture(q, t.log_p, s.log_p);
    long double log_s_m = q == 0 ? 0 : s.log_p - log_m, log_t_m = q == 1 ? 0 : t.log_p - log_m;
    long double s_m = expl(log_s_m), t_m = expl(log_t_m); /* S/M, T/M */
    long double s_share = q == 0 ? 1 : q == 1 ? 0 : (1 - q) * s_m, t_share = q == 0 ? 0 : q == 1 ? 1 : q * t_m;
    long double s_error = t_share * error + (is_inside ? 3 * u * fabsl(1 - s_m) : 0) + 2 * u * fabsl(log_s_m);
    long double t_error = s_share * error + (is_inside ? 3 * u * fabsl(1 - t_m) : 0) + 2 * u * fabsl(log_t_m);
    long double s_m_error = s_m * (t_share * error + EXP_ERROR * u),
                t_m_error = t_m * (s_share * error + EXP_ERROR * u);
    long double m = q * t.p + (1 - q) * s.p, m_error = q * t.p_error + (1 - q) * s.p_error + 2 * u * m;
    if (a != 0) {
        addend add = addend_of(u, t, log_t_m, t_error, m, m_error);
        to->value = (addend){a * add.plain, a * add.with_h, a * add.plain_error, a * add.h_error};
    }
    if (b != 0) {
        addend add = addend_of(u, s, log_s_m, s_error, m, m_error);
        to->value.plain += b * add.plain;
        to->value.with_h += b * add.with_h;
        to->value.plain_error += b * add.plain_error;
        to->value.h_error += b * add.h_error;
    }
    if (a != 0 && t.p != 0) {
        long double slope = log_t_m + 1 - t_share;
        long double slope_error = t_error + (q > 0 ? q * t_m_error : 0) + 2 * u * (2 + fabsl(log_t_m));
        add_to(&to->s_own, -a * (1 - q) * t.p * s_m, a * (1 - q) * (t.p_error * s_m + t.p * s_m_error));
        add_to(&to->t_own, a * t.p * slope, a * (t.p_error * fabsl(slope) + t.p * slope_error));
        add_to(&to->psi, a * slope, a * slope_error);
    }
    if (b != 0 && s.p != 0) {
        long double slope = log_s_m + 1 - s_share;
        long double slope_error = s_error + (q < 1 ? (1 - q) * s_m_error : 0) + 2 * u * (2 + fabsl(log_s_m));
        add_to(&to->s_own, b * s.p * slope, b * (s.p_error * fabsl(slope) + s.p * slope_error));
        add_to(&to->t_own, -b * q * s.p * t_m, b * q * (s.p_error * t_m + s.p * t_m_error));
    }
    if (b != 0) /* S/M is no less than it is where S is 0 in float */
        add_to(&to->psi, -b * q * s_m, b * q * s_m_error);
    if (is_inside &&
        !isnan(s_m + t_m)) { /* T S/M may be computed as S (T/M - 1), and what the softmax takes out again */
        long double cancelling = 4 * u * (1 + s_m + t_m);
        to->s_own.error += a * (1 - q) * s.p * cancelling;
        to->t_own.error += b * q * t.p * cancelling;
        to->psi.error += b * q * cancelling;
    }
    if (t.p == 0 && (a != 0 || s.p == 0)) /* log 0, or 0/0 */
        to->psi = (bounded){e->is_finite ? 0 : (long double)NAN, 0};
}

static column_terms terms_of(const exact_logits *e, int64_t column)
{
    column_terms to = {.s = exact_column_of(&e->s, column), .t = target_of(e, column)};
    flush(e, &to.s);
    flush(e, &to.t);
    int is_empty = to.s.p == 0 && to.t.p == 0;
    if (is_empty)
        to.psi = (bounded){e->is_finite || e->is_total_variation ? 0 : (long double)NAN, 0};
    else if (e->is_total_variation)
        total_variation_terms(e, &to);
    else
        exact_mixed_terms(e, &to);
    return to;
}

/* D of the row; *entropy is that of targets that are no logits. */
static bounded divergence_of(exact_logits *e, bounded *entropy)
{
    addend sum = {0, 0, 0, 0};
    long double mass = 0, mass_error = 0, size = 0, s_size = 0, t_size = 0, entropy_size = 0, u = e->precision.u;
    e->s_sum = e->t_sum = *entropy = (bounded){0, 0};
    for (int64_t k = 0; k < e->columns; k++) {
        column_terms one = terms_of(e, k);
        sum.plain += one.value.plain;
        sum.with_h += one.value.with_h;
        sum.plain_error += one.value.plain_error;
        sum.h_error += one.value.h_error;
        size += fabsl(one.value.plain) + fabsl(one.value.with_h);
        mass += one.t.p;
        mass_error += one.t.p_error;
        add_to(&e->s_sum, one.s_own.x, one.s_own.error);
        add_to(&e->t_sum, one.t_own.x, one.t_own.error);
        s_size += fabsl(one.s_own.x);
        t_size += fabsl(one.t_own.x);
        if (one.t.p != 0) {
            add_to(entropy, -one.t.p * one.t.log_p,
                   one.t.p_error * fabsl(one.t.log_p) + one.t.p * (one.t.log_p_error + 2 * u * fabsl(one.t.log_p)));
            entropy_size += fabsl(one.t.p * one.t.log_p);
        }
    }
    long double adding = kl_sum_error(e->columns) + 2 * u * (e->precision.least > DBL_MIN);
    e->s_sum.error += adding * s_size;
    e->t_sum.error += adding * t_size;
    entropy->error += adding * entropy_size + 2 * u * fabsl(entropy->x);
    if (!e->is_total_variation && e->form != EXACT_TARGET_LOGITS && e->columns > 0) {
        /* the terms h have T - M and S - M added, which adds up to nothing only if T adds up to 1 */
        long double share = e->a * (1 - e->q) - e->b * e->q;
        sum.with_h += share * (mass - 1);
        sum.h_error += fabsl(share) * (mass_error + adding * (mass + 1));
    }
    int is_small = fabsl(sum.plain) < 0x1p-8L && !e->is_total_variation;
    int takes_h = fabsl(sum.plain) < 0x1p-10L && !e->is_total_variation;
    long double error = is_small || sum.h_error > sum.plain_error ? sum.h_error : sum.plain_error;
    /* A target that is no number counts even where S is 0. */
    long double x = takes_h || isnan(sum.with_h) ? sum.with_h : sum.plain;
    return (bounded){x, error + kl_sum_error(e->columns) * (is_small ? fabsl(x) : size) + 4 * u * fabsl(x)};
}

/* ---- the label terms --------------------------------------------------------------------------------------------- */

static long double class_weight(const exact_logits *e, int64_t column)
{
    return case_was_or(e->c, LOGITS_CLASS_WEIGHTS, column, 1);
}

/* -log P of a column, times a class weight. */
static bounded weighted_nll(const exact_logits *e, int64_t column)
{
    softmax_column p = exact_column_of(&e->p, column);
    long double w = class_weight(e, column), u = e->precision.u;
    if (w == 0)
        return (bounded){0, 0};
    return (bounded){-w * p.log_p, isinf(p.log_p) ? 0 : fabsl(w) * (p.log_p_error + 2 * u * fabsl(p.log_p))};
}

static bounded label_terms(exact_logits *e)
{
    long double u = e->precision.u, size = 0;
    bounded sum = {0, 0}, all = {0, 0};
    e->class_weight_sum = 0;
    if (e->has_label && e->label_weight != 0) {
        for (int64_t k = 0; k < e->columns && e->smoothing != 0; k++) {
            bounded one = weighted_nll(e, k);
            add_to(&all, one.x, one.error);
            e->class_weight_sum += class_weight(e, k);
        }
        bounded own = weighted_nll(e, e->label);
        long double share = e->label_weight * (1 - e->smoothing), rest = 0;
        if (share != 0)
            add_to(&sum, share * own.x, fabsl(share) * own.error);
        if (e->smoothing != 0) {
            rest = e->label_weight * e->smoothing / (long double)e->columns;
            add_to(&sum, rest * all.x, fabsl(rest) * (all.error + (4 * u + kl_sum_error(e->columns)) * fabsl(all.x)));
        }
        size += (share != 0 ? fabsl(share * own.x) : 0) + fabsl(rest != 0 ? rest * all.x : 0);
    }
    if (e->z_loss != 0) {
        long double lse = e->p.lse, square = e->z_loss * lse * lse;
        add_to(&sum, square, fabsl(e->z_loss) * (2 * fabsl(lse) * e->p.lse_error + 2 * u * lse * lse));
        size += fabsl(square);
    }
    if (e->bonus != 0) {
        add_to(&sum, -e->bonus * e->p.entropy, fabsl(e->bonus) * e->p.entropy_error);
        size += fabsl(e->bonus * e->p.entropy);
    }
    sum.error += isinf(size) ? 0 : 4 * u * size;
    return sum;
}

/* The derivative of the label terms to z of a column. */
static bounded label_slope(const exact_logits *e, int64_t column)
{
    softmax_column p = exact_column_of(&e->p, column);
    long double u = e->precision.u;
    bounded sum = {0, 0};
    if (e->has_label && e->label_weight != 0) {
        int is_label = column == e->label;
        long double share = e->label_weight * (1 - e->smoothing) * class_weight(e, e->label);
        add_to(&sum, share * (is_label ? -p.less : p.p), fabsl(share) * (is_label ? p.less_error : p.p_error));
        if (e->smoothing != 0) {
            long double rest = e->label_weight * e->smoothing / (long double)e->columns;
            long double all = e->class_weight_sum, own = class_weight(e, column);
            add_to(&sum, rest * (all * p.p - own), fabsl(rest) * (all * p.p_error + 4 * u * (all * p.p + own)));
        }
    }
    if (e->z_loss != 0)
        add_to(&sum, 2 * e->z_loss * e->p.lse * p.p,
               2 * fabsl(e->z_loss) * (fabsl(e->p.lse) * (p.p_error + 2 * u * p.p) + p.p * e->p.lse_error));
    if (e->bonus != 0 && p.p != 0)
        add_to(&sum, e->bonus * p.p * (p.log_p + e->p.entropy),
               fabsl(e->bonus) *
                   (p.p_error * fabsl(p.log_p + e->p.entropy) +
                    p.p * (p.log_p_error + e->p.entropy_error + 2 * u * (fabsl(p.log_p) + e->p.entropy))));
    if (isnan(p.p))
        sum.x = NAN;
    sum.error += 2 * u * fabsl(sum.x);
    return sum;
}

/* ---- a row ------------------------------------------------------------------------------------------------------- */

static bounded through_softmax(const exact_logits *e, bounded own, softmax_column p, bounded sum)
{
    if (p.p == 0)
        return own;
    long double u = e->precision.u, x = own.x - p.p * sum.x;
    if (!isfinite(x))
        return (bounded){x, 0};
    return (bounded){x, own.error + p.p_error * fabsl(sum.x) + p.p * sum.error +
                            2 * u * (fabsl(own.x) + fabsl(p.p * sum.x))};
}

/* Times a slope, a temperature and the scale of the gradients. */
static void expect_gradient(exact_logits *e, int argument, int64_t column, bounded d, long double slope, int has_cap,
                            long double scale)
{
    long double u = e->precision.u, x = d.x * slope * scale;
    long double error = fabsl(scale) * (d.error * slope + (has_cap ? 8 * u * fabsl(d.x) : 0)) +
                        SCALE_ERROR * u * fabsl(x) + e->precision.least;
    case_expected(e->c, argument, e->row * e->width + column, x, error);
}

static void expect_gradients(exact_logits *e, long double scale)
{
    int has_cap = e->s.row.cap > 0, has_target_cap = e->form == EXACT_TARGET_LOGITS && e->t.row.cap > 0;
    for (int64_t k = 0; k < e->columns; k++) {
        bounded own = label_slope(e, k),
                d = {own.x / (long double)e->label_temperature, own.error / (long double)e->label_temperature};
        long double factor = e->weight / (long double)e->temperature;
        if (e->top) {
            bounded slope = exact_top_k_slope(e, k);
            add_to(&d, factor * slope.x, fabsl(factor) * slope.error);
        } else if (e->form != EXACT_NO_TARGET) {
            column_terms one = terms_of(e, k);
            bounded through = through_softmax(e, one.s_own, one.s, e->s_sum);
            add_to(&d, factor * through.x, fabsl(factor) * through.error);
            bounded target = e->form == EXACT_TARGET_PROBS ? one.psi : one.t_own;
            long double target_scale = e->weight * scale, target_slope = 1;
            if (e->form == EXACT_TARGET_LOGITS) {
                target = through_softmax(e, one.t_own, one.t, e->t_sum);
                target_scale /= (long double)e->target_temperature;
                target_slope = softcap_slope(&e->t.row, k);
            }
            expect_gradient(e, LOGITS_GRAD_TARGETS, k, target, target_slope, has_target_cap, target_scale);
        }
        expect_gradient(e, LOGITS_GRAD_PREDICTIONS, k, d, softcap_slope(&e->p.row, k), has_cap, scale);
    }
}

static void expect_row(exact_logits *e, int argument, long double x, long double error)
{
    if (argument < e->c->arguments)
        case_expected(e->c, argument, e->row, x, error);
}

/* All results of the row but the value; columns that take no part have gradients of 0. */
static void fill(exact_logits *e, long double x)
{
    static const int results[] = {LOGITS_LSE, LOGITS_ENTROPY, LOGITS_LOG_PROB, LOGITS_TARGET_LSE,
                                  LOGITS_TARGET_ENTROPY};
    for (int i = 0; i < 5; i++)
        expect_row(e, results[i], x, 0);
    expect_row(e, LOGITS_ARGMAX, 0, 0);
    for (int64_t k = 0; k < e->width; k++) {
        case_expected(e->c, LOGITS_GRAD_PREDICTIONS, e->row * e->width + k, k < e->columns ? x : 0, 0);
        if (e->form < EXACT_TARGET_TOP_K)
            case_expected(e->c, LOGITS_GRAD_TARGETS, e->row * e->width + k, k < e->columns ? x : 0, 0);
    }
}

static void load_row(exact_logits *e)
{
    op_case *c = e->c;
    double cap = c->options[LOGITS_SOFTCAP];
    softmax_load_row(c, LOGITS_PREDICTIONS, e->row, e->x);
    e->p = exact_softmax_of((softmax_row){e->x, e->columns, cap, e->label_temperature}, e->precision);
    if (e->form == EXACT_NO_TARGET) {
        e->s = e->p;
        return;
    }
    if (!e->top)
        softmax_load_row(c, LOGITS_TARGETS, e->row, e->y);
    e->s = exact_softmax_of((softmax_row){e->x, e->columns, cap, e->temperature}, e->precision);
    if (e->form == EXACT_TARGET_LOGITS)
        e->t = exact_softmax_of(
            (softmax_row){e->y, e->columns, c->options[LOGITS_TARGET_SOFTCAP], e->target_temperature}, e->precision);
}

static void expect_results(exact_logits *e, bounded target_entropy)
{
    int is_inside = e->has_label && e->label >= 0 && e->label < e->columns;
    softmax_column at = {.log_p = NAN};
    if (is_inside)
        at = exact_column_of(&e->p, e->label);
    expect_row(e, LOGITS_LSE, e->p.lse, e->p.lse_error);
    expect_row(e, LOGITS_ENTROPY, e->p.entropy, e->p.entropy_error);
    expect_row(e, LOGITS_LOG_PROB, at.log_p, at.log_p_error);
    if (e->form == EXACT_TARGET_LOGITS) {
        expect_row(e, LOGITS_TARGET_LSE, e->t.lse, e->t.lse_error);
        target_entropy = (bounded){e->t.entropy, e->t.entropy_error};
    }
    expect_row(e, LOGITS_TARGET_ENTROPY, target_entropy.x, target_entropy.error);
}

bounded exact_logits_row(exact_logits *e, int64_t row, double divisor)
{
    op_case *c = e->c;
    long double weight = case_was_or(c, LOGITS_WEIGHTS, row, 1), u = e->precision.u;
    int per_row = (int)c->options[LOGITS_REDUCTION] == ONEPASS_ROWS;
    long double upstream = case_was_or(c, LOGITS_UPSTREAM, per_row ? row : 0, 1);
    double label = case_was_or(c, LOGITS_LABELS, row, -1);
    e->row = row;
    e->has_label = c->argument[LOGITS_LABELS].given;
    e->label = (int64_t)label;
    fill(e, 0);
    if (case_was_or(c, LOGITS_MASK, row, 1) == 0 ||
        (e->has_label && label == logits_ignored(c, LOGITS_HAS_IGNORE_INDEX, LOGITS_IGNORE_INDEX)))
        return (bounded){0, 0};
    load_row(e);
    int lacks_mass = e->p.has_no_mass || (e->form == EXACT_TARGET_LOGITS && e->t.has_no_mass);
    int is_bad = e->has_label && (e->label < 0 || e->label >= e->columns) && e->label_weight != 0;
    int has_bad_index = 0;
    if (e->top && !lacks_mass) {
        has_bad_index = !exact_top_k_load(e);
        lacks_mass = !has_bad_index && exact_top_k_lacks_mass(e);
        is_bad |= has_bad_index;
    }
    bounded value = {0, 0}, entropy = {0, 0};
    if (lacks_mass) {
        fill(e, e->is_finite ? 0 : (long double)NAN);
        expect_row(e, LOGITS_LSE, e->p.lse, e->p.lse_error);
        if (e->form == EXACT_TARGET_LOGITS)
            expect_row(e, LOGITS_TARGET_LSE, e->t.lse, e->t.lse_error);
        value.x = e->is_finite ? 0 : (long double)NAN;
    } else {
        if (e->form != EXACT_NO_TARGET && !has_bad_index) {
            value = e->top ? exact_top_k_divergence(e) : divergence_of(e, &entropy);
            value = (bounded){e->weight * value.x, fabsl(e->weight) * value.error};
        }
        if (is_bad) {
            fill(e, NAN);
            value.x = NAN;
        } else {
            bounded more = label_terms(e);
            value.error += more.error + 2 * u * (fabsl(value.x) + fabsl(more.x));
            value.x += more.x;
            expect_gradients(e, weight * upstream / (long double)divisor);
        }
        expect_results(e, entropy);
    }
    /* between the first and the last column that may pass for the largest */
    expect_row(e, LOGITS_ARGMAX, (long double)(e->p.first + e->p.last) / 2, (long double)(e->p.last - e->p.first) / 2);
    return (bounded){weight * value.x, fabsl(weight) * value.error + 2 * u * fabsl(weight * value.x)};
}
