/* See softmax.h. */
#include "cases/softmax.h"

#include <float.h>
#include <math.h>

#include "cases/kl.h"

#define EXP_ERROR     4 /* u: relative error of an exponential */
#define SUM_ERROR     4 /* u: of partial sums in the type computed in */
#define LOG_ERROR     3 /* u: relative error of log1p */
#define SCALE_ERROR   2 /* u: of a division by the temperature */
#define SOFTCAP_ERROR 4 /* u: of a softcap, beside u of the cap */

softmax_precision softmax_precision_of(case_arithmetic arithmetic, onepass_dtype promoted)
{
    int wide = arithmetic == CASE_REFERENCE || promoted.bits == 64;
    long double u = wide ? 0x1p-53L : 0x1p-24L;
    if (arithmetic == CASE_CUDA) /* whose exponential is within two units in the last place, not within one */
        u *= 2;
    return (softmax_precision){u, wide ? (long double)DBL_MIN : (long double)FLT_MIN};
}

static long double z_of(const softmax_row *r, int64_t column)
{
    long double x = r->logits[column], cap = r->cap;
    if (r->cap > 0 && x != -INFINITY)
        x = cap * tanhl(x / cap);
    return x / (long double)r->temperature;
}

static long double z_error(const softmax_row *r, long double u, long double z)
{
    if (isinf(z))
        return 0;
    long double error = r->temperature != 1 ? SCALE_ERROR * u * fabsl(z) : 0;
    if (r->cap > 0)
        error += SOFTCAP_ERROR * u * fabsl(z) + u * (long double)(r->cap / r->temperature);
    return error;
}

long double softcap_slope(const softmax_row *r, int64_t column)
{
    if (!(r->cap > 0))
        return 1;
    long double c = coshl((long double)r->logits[column] / (long double)r->cap);
    return 1 / (c * c);
}

/* The largest z, and between which columns it lies. */
static void find_largest(exact_softmax *s)
{
    const softmax_row *r = &s->row;
    int64_t undefined = -1;
    s->max = -INFINITY;
    for (int64_t c = 0; c < r->columns; c++) {
        double x = r->logits[c];
        s->is_undefined |= isnan(x) || (x == INFINITY && !(r->cap > 0));
        if (isnan(x) && undefined < 0)
            undefined = c;
        s->max = z_of(r, c) > s->max ? z_of(r, c) : s->max;
    }
    s->has_no_mass = r->columns > 0 && s->max == -INFINITY && !s->is_undefined;
    s->max_error = z_error(r, s->precision.u, s->max);
    /* Ties of what was passed are ties of z. Other columns may look like one where z is rounded: any of them will do.
     */
    int64_t first = -1, last = -1;
    int is_ambiguous = 0;
    for (int64_t c = 0; c < r->columns; c++) {
        long double z = z_of(r, c);
        int may_be = z == s->max;
        if (isfinite(z) && (r->cap > 0 || r->temperature != 1))
            may_be |= s->max - z <= z_error(r, s->precision.u, z) + s->max_error;
        if (!may_be)
            continue;
        first = first < 0 ? c : first;
        last = c;
        is_ambiguous |= r->logits[c] != r->logits[first];
    }
    s->first = undefined >= 0 ? undefined : first < 0 ? 0 : first;
    s->last = is_ambiguous && undefined < 0 ? last : s->first;
}

/* d of a column and its error. */
static void distance_of(const exact_softmax *s, int64_t column, softmax_column *to)
{
    long double z = z_of(&s->row, column), u = s->precision.u;
    to->d = s->max - z;
    to->d_error = u * to->d + z_error(&s->row, u, z) + s->max_error;
    if (isinf(z) || (to->d == 0 && !(s->row.cap > 0)))
        to->d_error = 0;
}

exact_softmax exact_softmax_of(softmax_row row, softmax_precision precision)
{
    exact_softmax s = {.row = row, .precision = precision};
    long double u = precision.u;
    find_largest(&s);
    int64_t left_out = -1;
    for (int64_t c = 0; c < row.columns && !s.has_no_mass && !s.is_undefined; c++) {
        softmax_column one;
        distance_of(&s, c, &one);
        if (one.d == 0 && left_out < 0) {
            left_out = c;
            continue;
        }
        long double e = expl(-one.d);
        s.others += e;
        s.others_error += e > 0 ? e * (EXP_ERROR * u + one.d_error) + precision.least : 0;
    }
    s.others_error += s.others * (SUM_ERROR * u + kl_sum_error(row.columns));
    s.log_sum = s.is_undefined ? (long double)NAN : log1pl(s.others);
    s.log_sum_error = s.others_error / (1 + s.others) + LOG_ERROR * u * s.log_sum;
    s.lse = s.max + s.log_sum;
    s.lse_error = isinf(s.lse) ? 0 : s.max_error + s.log_sum_error + u * fabsl(s.lse);
    s.entropy = s.log_sum;
    s.entropy_error = s.log_sum_error;
    for (int64_t c = 0; c < row.columns && !s.has_no_mass; c++) {
        softmax_column one = exact_column_of(&s, c);
        if (one.p == 0)
            continue;
        s.entropy += one.p * one.d;
        s.entropy_error += one.p_error * one.d + one.p * one.d_error + 2 * u * one.p * one.d;
    }
    s.entropy_error += s.entropy * (2 * u + kl_sum_error(row.columns));
    return s;
}

softmax_column exact_column_of(const exact_softmax *s, int64_t column)
{
    softmax_column one = {0};
    long double u = s->precision.u;
    if (s->is_undefined)
        return (softmax_column){.d = NAN, .log_p = NAN, .p = NAN, .less = NAN};
    distance_of(s, column, &one);
    one.log_p = -(one.d + s->log_sum);
    one.log_p_error = isinf(one.d) ? 0 : one.d_error + s->log_sum_error + u * -one.log_p;
    one.p = expl(one.log_p);
    one.p_error = isinf(one.d) ? 0 : one.p * ((EXP_ERROR + 2) * u + one.log_p_error) + s->precision.least;
    if (one.d == 0) {
        one.less = s->others / (1 + s->others);
        one.less_error = s->others_error / ((1 + s->others) * (1 + s->others)) + 3 * u * one.less;
    } else {
        one.less = 1 - one.p;
        one.less_error = one.p_error + 2 * u * one.less;
    }
    return one;
}

void softmax_load_row(const op_case *c, int argument, int64_t row, double *to)
{
    int64_t columns = case_extent(c, 'C');
    for (int64_t k = 0; k < columns; k++)
        to[k] = case_was(c, argument, row * columns + k);
}
