/* What every kernel of the head does once per feature, in double. See head.h. */
#include "head/head.h"

#include <math.h>
#include <string.h>

#include "core/sum.h"

double onep_head_factor(const onep_head_problem *p)
{
    int64_t count = 0;
    if (p->batches_tracked.data) {
        memcpy(&count, p->batches_tracked.data, sizeof count);
        count = (int64_t)((uint64_t)count + 1);
        memcpy(p->batches_tracked.data, &count, sizeof count);
    }
    return p->cumulative ? 1 / (double)count : p->momentum;
}

void onep_head_count(const onep_head_problem *p)
{
    int running = p->statistics == ONEPASS_RUNNING_STATISTICS;
    if (!running)
        onep_head_factor(p);
    for (int64_t j = 0; j < p->columns; j++) {
        double mean = running ? onep_feature(&p->running_mean, j, 0) - onep_feature(&p->bias, j, 0) : (double)NAN;
        double var = running ? onep_feature(&p->running_var, j, 1) : (double)NAN;
        onep_feature_store(&p->mean, j, mean);
        onep_feature_store(&p->rstd, j, 1 / sqrt(var + p->eps));
    }
}

onep_norm onep_head_norm(const onep_head_problem *p, int64_t j, double batch_mean, double batch_m2, double factor)
{
    double bias = onep_feature(&p->bias, j, 0);
    double rows = p->batch_rows;
    onep_norm norm;
    if (p->statistics == ONEPASS_RUNNING_STATISTICS) {
        norm.mean = onep_feature(&p->running_mean, j, 0) - bias;
        norm.rstd = 1 / sqrt(onep_feature(&p->running_var, j, 1) + p->eps);
    } else {
        norm.mean = batch_mean + (bias - bias); /* a bias that is not finite does not cancel: NaN, as inf - inf is */
        norm.rstd = 1 / sqrt(batch_m2 / rows + p->eps);
        if (p->running_mean.data) {
            double kept_mean = onep_feature(&p->running_mean, j, 0);
            double kept_var = onep_feature(&p->running_var, j, 1);
            onep_feature_store(&p->running_mean, j, (1 - factor) * kept_mean + factor * (batch_mean + bias));
            onep_feature_store(&p->running_var, j, (1 - factor) * kept_var + factor * (batch_m2 / (rows - 1)));
        }
    }
    onep_feature_store(&p->mean, j, norm.mean);
    onep_feature_store(&p->rstd, j, norm.rstd);
    return norm;
}

/* ---- several ranks ----------------------------------------------------------------------------------------------- */

static double gathered(const onep_gathered *of, int64_t rank, int64_t j)
{
    return onep_load(ONEP_F64, of->data + rank * of->rank_stride + j * of->column_stride);
}

double onep_head_rows_of(const onep_head_ranks *ranks, int64_t rank)
{
    return gathered(&ranks->rows, rank, 0);
}

/*
 * mean = sum of (rows / all rows) its mean, M2 = sum of (its M2 + rows (its mean - mean)^2): a single rank's are its
 * own to the bit.
 */
void onep_head_merge_statistics(const onep_head_ranks *ranks, int64_t j, double *mean, double *m2)
{
    onep_sum sum = {0, 0}, squares = {0, 0};
    for (int64_t rank = 0; rank < ranks->count; rank++) {
        double rows = onep_head_rows_of(ranks, rank);
        if (rows > 0)
            onep_sum_add(&sum, rows / ranks->batch_rows * gathered(&ranks->first, rank, j));
    }
    *mean = onep_sum_value(sum);
    for (int64_t rank = 0; rank < ranks->count; rank++) {
        double rows = onep_head_rows_of(ranks, rank);
        double off = gathered(&ranks->first, rank, j) - *mean;
        if (rows > 0)
            onep_sum_add(&squares, gathered(&ranks->second, rank, j) + rows * off * off);
    }
    *m2 = onep_sum_value(squares);
}

void onep_head_merge_sums(const onep_head_ranks *ranks, int64_t j, double *s0, double *s1)
{
    onep_sum sum0 = {0, 0}, sum1 = {0, 0};
    for (int64_t rank = 0; rank < ranks->count; rank++) {
        onep_sum_add(&sum0, gathered(&ranks->first, rank, j));
        onep_sum_add(&sum1, gathered(&ranks->second, rank, j));
    }
    *s0 = onep_sum_value(sum0);
    *s1 = onep_sum_value(sum1);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* du = scale dz, so dbeta = sum du = scale s0 and dgamma = sum du xh = scale s1. */
void onep_head_feature_gradients(const onep_head_backward_problem *p, int64_t j, double s0, double s1)
{
    double scale = onep_feature(&p->scale, j, 1);
    onep_feature_store(&p->grad_beta, j, scale * s0);
    onep_feature_store(&p->grad_gamma, j, scale * s1);
    if (!p->scale_is_one_value)
        onep_feature_store(&p->grad_scale, j, onep_head_scale_gradient(p, j, s0, s1));
    /* dbias = sum of dy: with batch statistics dy has no mean. */
    double slope = onep_feature(&p->gamma, j, 1) * onep_feature(&p->rstd, j, 1) * scale;
    onep_feature_store(&p->grad_bias, j, p->statistics == ONEPASS_BATCH_STATISTICS ? 0 : slope * s0);
}

/* sum of dz u with u = gamma xh + beta */
double onep_head_scale_gradient(const onep_head_backward_problem *p, int64_t j, double s0, double s1)
{
    return onep_feature(&p->gamma, j, 1) * s1 + onep_feature(&p->beta, j, 0) * s0;
}

void onep_head_backward_without_features(const onep_head_backward_problem *p)
{
    for (int64_t i = 0; i < p->rows.count && p->grad_input.data; i++) {
        char *row = onep_row_address(&p->grad_input, &p->rows, i);
        for (int64_t k = 0; k < p->depth; k++)
            onep_store(p->grad_input.type, row + k * p->grad_input.col_stride, 0);
    }
    if (p->scale_is_one_value)
        onep_feature_store(&p->grad_scale, 0, 0);
}
