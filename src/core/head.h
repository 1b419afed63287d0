/*
 * Linear -> batch normalisation -> scale -> softmax below its door: the checked problems that kernels compute, and what
 * all of them do once a feature. src/ops/head.c makes a problem; src/ref/head.c and src/cpu/head.inc compute it.
 */
#ifndef ONEP_HEAD_H
#define ONEP_HEAD_H

#include "tensor.h"

/*
 * With q = input weight^T: output = softmax over a row of scale (gamma (q + bias - mu) rstd + beta), where mu and
 * 1 / rstd^2 - eps are mean and biased variance of q + bias over the batch, or running_mean and running_var.
 * The bias cancels against its own share of mu, so q is stored and normalised without it: by mean = mu - bias.
 */
typedef struct onep_head_problem {
    onep_rows rows, weight_rows; /* B, N */
    int64_t depth, columns;      /* K, N */
    onepass_statistics statistics;
    int cumulative;
    double eps, momentum;
    onep_operand input, weight;
    const void *prepared;                   /* onepass_prepare_weight's; NULL: none */
    onep_operand bias, gamma, beta, scale;  /* N columns; scale may repeat one value; absent: 0, 1, 0, 1 */
    onep_operand running_mean, running_var; /* N columns; absent: batch statistics are not kept */
    onep_operand batches_tracked;           /* one int64; absent: not counted */
    onep_operand output;
    onep_operand product, mean, rstd; /* q (type computed) and N columns each; absent: not kept */
    void *workspace;
} onep_head_problem;

/* P = output, g = grad_output; the rest as in the forward problem. src/cpu/head_backward.inc has the formulas. */
typedef struct onep_head_backward_problem {
    onep_rows rows, weight_rows;
    int64_t depth, columns;
    onepass_statistics statistics;
    onep_operand grad_output, output, input, weight, product, mean, rstd;
    onep_operand gamma, beta, scale;
    onep_operand grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, grad_scale;
    int scale_is_one_value; /* grad_scale then is the sum over features */
    void *workspace;
} onep_head_backward_problem;

/* Element j of an operand of N columns; `otherwise` if it is absent. */
double onep_feature(const onep_operand *operand, int64_t j, double otherwise);
void onep_feature_store(const onep_operand *operand, int64_t j, double x); /* does nothing if it is absent */

/* What normalises one feature of q: (q - mean) * rstd. */
typedef struct onep_norm {
    double mean, rstd;
} onep_norm;

/*
 * The weight this batch gets in the running statistics; counts the batch if a counter is there. To be called once, with
 * batch statistics only.
 */
double onep_head_factor(const onep_head_problem *problem);

/*
 * Mean and rstd of feature j, from the batch's own mean and sum of squared deviations of q, or from the running
 * statistics. Updates the latter with `factor`, and keeps mean and rstd where the problem wants them.
 */
onep_norm onep_head_norm(const onep_head_problem *problem, int64_t j, double batch_mean, double batch_m2,
                         double factor);

/* The gradients of one feature, from s0 = sum of dz and s1 = sum of dz xh over the batch; see head_backward.inc. */
void onep_head_feature_gradients(const onep_head_backward_problem *problem, int64_t j, double s0, double s1);

/* What feature j adds to the gradient of a scale that is one value for all. */
double onep_head_scale_gradient(const onep_head_backward_problem *problem, int64_t j, double s0, double s1);

/* Bytes of workspace; `computed` is the type everything is computed in. */
size_t onep_head_workspace_ref(const onep_head_problem *problem);
size_t onep_head_workspace_cpu(const onep_head_problem *problem, onep_type computed, int32_t threads);
size_t onep_head_backward_workspace_ref(const onep_head_backward_problem *problem);
size_t onep_head_backward_workspace_cpu(const onep_head_backward_problem *problem, onep_type computed, int32_t threads);

#endif
