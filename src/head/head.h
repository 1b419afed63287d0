/*
 * Linear -> batch normalisation -> scale -> softmax below its entry points: the checked problems that kernels compute,
 * and what all of them do once per feature. entry.c makes a problem; ref.c, cpu.inc and cuda.c compute it.
 */
#ifndef ONEP_HEAD_H
#define ONEP_HEAD_H

#include "core/operator.h"

/* One double per rank and feature, of tensors that all ranks have sent each other. */
typedef struct onep_gathered {
    const char *data; /* strides in bytes */
    int64_t rank_stride, column_stride;
} onep_gathered;

/* What the ranks of a synchronised head know of each other: rows, and two numbers per feature (mean and M2; in backward
 * s0 and s1). A head by itself has a count of 0. */
typedef struct onep_head_ranks {
    int64_t count;
    double batch_rows; /* of all of them */
    onep_gathered rows, first, second;
} onep_head_ranks;

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

    /* Not on a device. */
    double batch_rows;     /* that batch statistics are over: B, or all ranks' */
    onep_head_ranks ranks; /* head_synchronised: the product is there, and so are all ranks' statistics of it */
    onep_operand m2;       /* head_statistics: the product, its means and these are all that is made */
} onep_head_problem;

/* P = output, g = grad_output; the rest as in the forward problem. src/head/cpu_backward.inc has the formulas. */
typedef struct onep_head_backward_problem {
    onep_rows rows, weight_rows;
    int64_t depth, columns;
    onepass_statistics statistics;
    onep_operand grad_output, output, input, weight, product, mean, rstd;
    onep_operand gamma, beta, scale;
    onep_operand grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, grad_scale;
    int scale_is_one_value; /* grad_scale then is the sum over features */

    /* Not on a device. */
    double batch_rows;     /* as in the forward problem */
    onep_head_ranks ranks; /* head_backward_synchronised: all ranks' sums, for dy */
    onep_operand s0, s1;   /* head_backward_sums: they are all that is made */
} onep_head_backward_problem;

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

/* Mean and M2 of feature j over all ranks, in the order of the ranks; those without rows have none. */
void onep_head_merge_statistics(const onep_head_ranks *ranks, int64_t j, double *mean, double *m2);

/* s0 and s1 of feature j over all ranks, in their order. */
void onep_head_merge_sums(const onep_head_ranks *ranks, int64_t j, double *s0, double *s1);

/* The rows of one rank. */
double onep_head_rows_of(const onep_head_ranks *ranks, int64_t rank);

/* The gradients of one feature, from s0 = sum of dz and s1 = sum of dz xh over the batch; see head_backward.inc. */
void onep_head_feature_gradients(const onep_head_backward_problem *problem, int64_t j, double s0, double s1);

/* What feature j adds to the gradient of a scale that is one value for all. */
double onep_head_scale_gradient(const onep_head_backward_problem *problem, int64_t j, double s0, double s1);

/* The gradients of a head without features (N = 0): sums over nothing. It takes no workspace. */
void onep_head_backward_without_features(const onep_head_backward_problem *problem);

/* True of a batch without rows or features: it is counted, and leaves the running statistics as they are. */
static inline int onep_head_is_empty(const onep_head_problem *problem)
{
    return problem->rows.count == 0 || problem->columns == 0;
}

/* What a batch without rows does: it is counted, and its mean and rstd are the running ones, or NaN. */
void onep_head_count(const onep_head_problem *problem);

#endif
