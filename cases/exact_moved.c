/*
 * See exact_moved.h. With r_s = exp(2 s_off) - 1 and r_t likewise, S and T move by shares r_s and r_t of themselves,
 * and log(S/T) by e = 2 s_off + 2 t_off. With s = (1-q) S/M and t = q T/M, which add up to 1 and move by a factor
 * exp(e) at most, log(T/M) moves by x = e s exp(e), and log(S/M) by y = e t exp(e), s exp(e) and t exp(e) being no more
 * than 1.
 *
 * Both sides add up to 1, so D is the sum of a T h(log(T/M)) + b S h(log(S/M)) with h(u) = u - 1 + exp(-u), whose
 * derivative is 1 - exp(-u) and whose second one is exp(-u). Hence, column by column,
 *
 *   D             a [r_t T h + (1 + r_t) (|T - M| x + M exp(x) x^2 / 2)], and with b, S, y likewise; a r_s (1-q) S
 * where T is 0, b r_t q T where S is. It is small wherever S and T are near each other. S dD/dS       a (1-q) T S/M
 * (exp(2 t_off + y) - 1)
 *                 + b [r_s S |log(S/M) + 1 - s| + (1 + r_s) S (y + e s exp(e) t exp(e))]        =: own
 *   dD/dz         own + r_s S |sum| + (1 + r_s) S (the sum of own), the sum being that of S dD/dS
 *
 * Total variation: (r_s S + r_t T) / 2 a column; S dD/dS moves by r_s S / 2, and by S more where the sign of S - T may
 * become another one.
 */
#include "cases/exact_moved.h"

#include <math.h>

#include "cases/logits.h"

moved_terms moved_terms_of(const op_case *c)
{
    long double mixture = c->options[LOGITS_MIXTURE];
    switch ((int)c->options[LOGITS_DIVERGENCE]) {
    case ONEPASS_KL:
        return (moved_terms){1, 0, 0, 0};
    case ONEPASS_REVERSE_KL:
        return (moved_terms){0, 1, 1, 0};
    case ONEPASS_JS:
        return (moved_terms){mixture, 1 - mixture, mixture, 0};
    case ONEPASS_SKEW_KL:
        return (moved_terms){1, 0, mixture, 0};
    case ONEPASS_SKEW_REVERSE_KL:
        return (moved_terms){0, 1, 1 - mixture, 0};
    default:
        return (moved_terms){0, 0, 0, 1};
    }
}

/* What is known of all columns. */
typedef struct moves {
    const moved_terms *terms;
    long double s_share, t_share, apart; /* r_s, r_t, e */
    long double t_off;
} moves;

typedef struct column {
    long double value;      /* what D moves by */
    long double own, moved; /* S dD/dS, and what that moves by */
} column;

/* What x h(log(x/m)) moves by: x by its share, the logarithm by `by`. */
static long double addend_moves(long double x, long double log_ratio, long double m, long double share, long double by)
{
    long double h = log_ratio + expm1l(-log_ratio);
    return share * x * h + (1 + share) * (fabsl(x - m) * by + m * expl(by) * by * by / 2);
}

static column total_variation(const moves *k, long double s, long double t)
{
    column to = {.value = (k->s_share * s + k->t_share * t) / 2};
    int is_unsure = fabsl(s - t) <= k->s_share * s + k->t_share * t;
    to.own = s > t ? s / 2 : s < t ? -s / 2 : 0;
    to.moved = k->s_share * s / 2 + (is_unsure ? (1 + k->s_share) * s : 0);
    return to;
}

static column column_of(const moves *k, const softmax_column *at_s, const softmax_column *at_t)
{
    const moved_terms *d = k->terms;
    long double s = at_s->p, t = at_t->p, m = d->q * t + (1 - d->q) * s, log_m = m > 0 ? logl(m) : -INFINITY;
    column to = {0, 0, 0};
    if (s == 0 && t == 0)
        return to;
    if (d->is_total_variation)
        return total_variation(k, s, t);
    long double share = d->q == 0 ? 1 : d->q == 1 ? 0 : (1 - d->q) * s / m, grown = expl(k->apart);
    long double of_s = fminl(1, share * grown), of_t = fminl(1, (1 - share) * grown);
    long double x = k->apart * of_s, y = k->apart * of_t;
    if (d->a != 0 && t > 0 && m > 0)
        to.value += d->a * addend_moves(t, at_t->log_p - log_m, m, k->t_share, x);
    if (d->a != 0 && t == 0)
        to.value += d->a * k->s_share * m;
    if (d->b != 0 && s > 0 && m > 0)
        to.value += d->b * addend_moves(s, at_s->log_p - log_m, m, k->s_share, y);
    if (d->b != 0 && s == 0)
        to.value += d->b * k->t_share * m;
    if (d->a != 0 && t > 0) {
        long double through = (d->q == 0 ? 1 : (1 - d->q) * s / m) * t;
        to.own -= d->a * through;
        to.moved += d->a * through * expm1l(2 * k->t_off + y);
    }
    if (d->b != 0 && s > 0 && m > 0) {
        long double slope = at_s->log_p - log_m + 1 - share;
        to.own += d->b * s * slope;
        to.moved += d->b * s * (k->s_share * fabsl(slope) + (1 + k->s_share) * (y + x * of_t));
    }
    return to;
}

static long double finite_or_0(long double x)
{
    return isfinite(x) ? x : 0;
}

long double moved_divergence(const moved_terms *terms, const exact_softmax *s, const exact_softmax *t,
                             long double s_off, long double t_off, moved_slope *slopes)
{
    moves k = {.terms = terms,
               .s_share = expm1l(2 * s_off),
               .t_share = expm1l(2 * t_off),
               .apart = 2 * s_off + 2 * t_off,
               .t_off = t_off};
    long double value = 0, sum = 0, sum_moved = 0;
    for (int64_t i = 0; i < s->row.columns; i++) {
        softmax_column at_s = exact_column_of(s, i), at_t = exact_column_of(t, i);
        column one = column_of(&k, &at_s, &at_t);
        value += one.value;
        sum += one.own;
        sum_moved += one.moved;
        slopes[i] = (moved_slope){fabsl(one.own), one.moved};
    }
    for (int64_t i = 0; i < s->row.columns; i++) {
        long double p = exact_column_of(s, i).p;
        slopes[i].size = finite_or_0(slopes[i].size + p * fabsl(sum));
        slopes[i].moved = finite_or_0(slopes[i].moved + p * (k.s_share * fabsl(sum) + (1 + k.s_share) * sum_moved));
    }
    return finite_or_0(value);
}
