/*
 * One softmax by its definition, in double: what ref.c and token_ref.c are built on. Nothing is stored; logits are read
 * again wherever they are needed.
 */
#ifndef ONEP_LOGITS_SOFTMAX_H
#define ONEP_LOGITS_SOFTMAX_H

#include <math.h>

#include "core/sum.h"
#include "logits/logits.h"

static inline double load_or(const onep_operand *operand, const char *address, double otherwise)
{
    return operand->data ? onep_load(operand->type, address) : otherwise;
}

static inline void store_if(const onep_operand *operand, char *address, double x)
{
    if (operand->data)
        onep_store(operand->type, address, x);
}

static inline void store_row(const onep_operand *operand, const onep_rows *rows, int64_t row, double x)
{
    store_if(operand, onep_row_address(operand, rows, row), x);
}

/* A column of the row at that address, which is NULL if the operand is absent: no offset is added to it then. */
static inline void store_column(const onep_operand *operand, char *row, int64_t column, double x)
{
    if (operand->data)
        onep_store(operand->type, row + column * operand->col_stride, x);
}

/* A row of logits; z is what the softmax is taken of. */
typedef struct logit_row {
    const char *at;
    onep_type type;
    int64_t stride, columns;
    double cap, temperature;
} logit_row;

static inline logit_row logit_row_of(const onep_operand *operand, const onep_rows *rows, int64_t row, int64_t columns,
                                     double cap, double temperature)
{
    return (logit_row){.at = onep_row_address(operand, rows, row),
                       .type = operand->type,
                       .stride = operand->col_stride,
                       .columns = columns,
                       .cap = cap,
                       .temperature = temperature};
}

/* A logit of -inf is a mask, no number: it stays -inf under a softcap. */
static inline double z_of(const logit_row *r, int64_t column)
{
    double x = onep_load(r->type, r->at + column * r->stride);
    if (r->cap > 0 && x != -INFINITY)
        x = r->cap * tanh(x / r->cap);
    return x / r->temperature;
}

/* d v / d x of the softcap: 1 - tanh^2(u) = 4 e / (1 + e)^2 with e = exp(-2 |u|); 1 without one. */
static inline double slope_of(const logit_row *r, int64_t column)
{
    if (!(r->cap > 0))
        return 1;
    double e = exp(-2 * fabs(onep_load(r->type, r->at + column * r->stride) / r->cap));
    return 4 * e / ((1 + e) * (1 + e));
}

/*
 * The maximum is left out of the sum: sum of exp(z - max) = 1 + others. So log_sum = log1p(others) keeps its digits
 * where one logit towers above the rest. A NaN is the maximum; a maximum of NaN or +inf makes `others` NaN,
 * in a row of one column too.
 */
typedef struct softmax_state {
    double max, others, log_sum;
    int64_t first; /* the first column with the maximum; -1: there are no columns */
    int no_mass;   /* there are columns, and all are -inf */
} softmax_state;

static inline softmax_state softmax_of(const logit_row *r)
{
    softmax_state s = {.max = -INFINITY, .first = -1};
    for (int64_t c = 0; c < r->columns && !isnan(s.max); c++) {
        double z = z_of(r, c);
        if (s.first < 0 || z > s.max || isnan(z)) {
            s.max = z;
            s.first = c;
        }
    }
    s.no_mass = r->columns > 0 && s.max == -INFINITY;
    onep_sum others = {0, 0};
    for (int64_t c = 0; c < r->columns && !s.no_mass; c++)
        if (c != s.first)
            onep_sum_add(&others, exp(z_of(r, c) - s.max));
    int is_undefined = r->columns > 0 && !s.no_mass && !isfinite(s.max);
    s.others = is_undefined ? (double)NAN : onep_sum_value(others);
    s.log_sum = log1p(s.others);
    return s;
}

static inline double log_probability(const softmax_state *s, double z)
{
    return (z - s->max) - s->log_sum;
}

/* p - 1 of the column with this z, without cancellation where it is the maximum. */
static inline double less_one(const softmax_state *s, double z)
{
    return z == s->max ? -s->others / (1 + s->others) : exp(log_probability(s, z)) - 1;
}

/* -sum of p log p. Every term of log_sum + sum of p (max - z) is positive. */
static inline double entropy_of(const logit_row *r, const softmax_state *s)
{
    onep_sum sum = {0, 0};
    for (int64_t c = 0; c < r->columns; c++) {
        double z = z_of(r, c), p = exp(log_probability(s, z));
        if (p != 0)
            onep_sum_add(&sum, p * (s->max - z));
    }
    return s->log_sum + onep_sum_value(sum);
}

#endif
