/* What every kernel of the head does once a feature, in double. See head.h. */
#include "head.h"

#include <math.h>
#include <string.h>

double onep_feature(const onep_operand *operand, int64_t j, double otherwise)
{
    return operand->data ? onep_load(operand->type, operand->data + j * operand->col_stride) : otherwise;
}

void onep_feature_store(const onep_operand *operand, int64_t j, double x)
{
    if (operand->data)
        onep_store(operand->type, operand->data + j * operand->col_stride, x);
}

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

onep_norm onep_head_norm(const onep_head_problem *p, int64_t j, double batch_mean, double batch_m2, double factor)
{
    double bias = onep_feature(&p->bias, j, 0);
    double rows = (double)p->rows.count;
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
