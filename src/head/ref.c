/*
 * Linear -> batch normalisation -> scale -> softmax in plain C and double: the definition, the oracle of every test,
 * and the fallback where no faster kernel exists. Any strides, one thread, sums in index order. The product is held in
 * the workspace in double; what backward is given is what forward stored, rounded to the type computed in.
 */
#include <math.h>
#include <stdint.h>

#include "head/head.h"

static double element(const onep_operand *operand, const onep_rows *rows, int64_t row, int64_t column)
{
    return onep_load(operand->type, onep_row_address(operand, rows, row) + column * operand->col_stride);
}

static void store(const onep_operand *operand, const onep_rows *rows, int64_t row, int64_t column, double x)
{
    if (operand->data)
        onep_store(operand->type, onep_row_address(operand, rows, row) + column * operand->col_stride, x);
}

/* The plan: one double per element of the product, in the workspace. */
typedef struct ref_plan {
    double *product;
} ref_plan;

_Static_assert(sizeof(ref_plan) <= sizeof(onep_cpu_plan), "a plan holds it");

static size_t place(int64_t rows, int64_t columns, char *workspace, onep_plan *plan)
{
    ((ref_plan *)(void *)plan)->product = (double *)(void *)workspace;
    return (size_t)rows * (size_t)columns * sizeof(double);
}

static double *product_of(onep_plan *plan)
{
    return ((ref_plan *)(void *)plan)->product;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static onepass_status plan_forward(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *plan,
                                   size_t *bytes)
{
    const onep_head_problem *p = (const onep_head_problem *)problem;
    (void)handle;
    *bytes = place(p->rows.count, p->columns, workspace, plan);
    return ONEPASS_OK;
}

/* The product, without the bias. */
static void multiply(const onep_head_problem *p, double *q)
{
    for (int64_t i = 0; i < p->rows.count; i++)
        for (int64_t j = 0; j < p->columns; j++) {
            const char *x = onep_row_address(&p->input, &p->rows, i);
            const char *w = onep_row_address(&p->weight, &p->weight_rows, j);
            double sum = 0;
            for (int64_t k = 0; k < p->depth; k++)
                sum += onep_load(p->input.type, x + k * p->input.col_stride) *
                       onep_load(p->weight.type, w + k * p->weight.col_stride);
            q[i * p->columns + j] = sum;
            store(&p->product, &p->rows, i, j, sum);
        }
}

/* Mean and sum of squared deviations of column j of q. */
static void column_statistics(const onep_head_problem *p, const double *q, int64_t j, double *mean, double *m2)
{
    int64_t n = p->columns;
    *mean = *m2 = 0;
    for (int64_t i = 0; i < p->rows.count; i++)
        *mean += q[i * n + j];
    *mean /= (double)p->rows.count;
    for (int64_t i = 0; i < p->rows.count; i++)
        *m2 += (q[i * n + j] - *mean) * (q[i * n + j] - *mean);
}

/* Column j of q becomes z = scale (gamma (q - mean) rstd + beta). */
static void normalise(const onep_head_problem *p, double *q, int64_t j, double factor)
{
    int64_t n = p->columns;
    double mean, m2;
    if (p->ranks.count)
        onep_head_merge_statistics(&p->ranks, j, &mean, &m2);
    else
        column_statistics(p, q, j, &mean, &m2);
    onep_norm norm = onep_head_norm(p, j, mean, m2, factor);
    double gamma = onep_feature(&p->gamma, j, 1), beta = onep_feature(&p->beta, j, 0);
    double scale = onep_feature(&p->scale, j, 1);
    for (int64_t i = 0; i < p->rows.count; i++)
        q[i * n + j] = scale * (gamma * ((q[i * n + j] - norm.mean) * norm.rstd) + beta);
}

static void softmax(const onep_head_problem *p, double *z, int64_t i)
{
    double most = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < p->columns; j++)
        most = z[j] > most ? z[j] : most;
    for (int64_t j = 0; j < p->columns; j++) {
        z[j] = exp(z[j] - most); /* NaN if an element is NaN, or the largest infinite; the sum then is NaN as well */
        sum += z[j];
    }
    for (int64_t j = 0; j < p->columns; j++)
        store(&p->output, &p->rows, i, j, z[j] / sum);
}

/* What comes after the product. */
static void normalise_all(const onep_head_problem *p, double *q)
{
    double factor = p->statistics == ONEPASS_BATCH_STATISTICS ? onep_head_factor(p) : 0;
    for (int64_t j = 0; j < p->columns; j++)
        normalise(p, q, j, factor);
    for (int64_t i = 0; i < p->rows.count; i++)
        softmax(p, q + i * p->columns, i);
}

static onepass_status run_forward(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_head_problem *p = (const onep_head_problem *)problem;
    (void)handle;
    if (onep_head_is_empty(p)) {
        onep_head_count(p);
        return ONEPASS_OK;
    }
    multiply(p, product_of(plan));
    normalise_all(p, product_of(plan));
    return ONEPASS_OK;
}

static onepass_status run_statistics(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_head_problem *p = (const onep_head_problem *)problem;
    (void)handle;
    multiply(p, product_of(plan));
    for (int64_t j = 0; j < p->columns; j++) {
        double mean = 0, m2 = 0;
        if (p->rows.count > 0)
            column_statistics(p, product_of(plan), j, &mean, &m2);
        onep_feature_store(&p->mean, j, mean);
        onep_feature_store(&p->m2, j, m2);
    }
    return ONEPASS_OK;
}

static onepass_status run_synchronised(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_head_problem *p = (const onep_head_problem *)problem;
    double *q = product_of(plan);
    (void)handle;
    if (p->batch_rows == 0 || p->columns == 0) {
        onep_head_count(p);
        return ONEPASS_OK;
    }
    for (int64_t i = 0; i < p->rows.count; i++)
        for (int64_t j = 0; j < p->columns; j++)
            q[i * p->columns + j] = element(&p->product, &p->rows, i, j);
    normalise_all(p, q);
    return ONEPASS_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static onepass_status plan_backward(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *plan,
                                    size_t *bytes)
{
    const onep_head_backward_problem *p = (const onep_head_backward_problem *)problem;
    (void)handle;
    *bytes = place(p->rows.count, p->columns, workspace, plan);
    return ONEPASS_OK;
}

/* Row i of dz: P (g - r) with r = sum of g P. */
static void softmax_gradient(const onep_head_backward_problem *p, double *dz, int64_t i)
{
    double r = 0;
    for (int64_t j = 0; j < p->columns; j++)
        r += element(&p->grad_output, &p->rows, i, j) * element(&p->output, &p->rows, i, j);
    for (int64_t j = 0; j < p->columns; j++)
        dz[j] = element(&p->output, &p->rows, i, j) * (element(&p->grad_output, &p->rows, i, j) - r);
}

/* s0 and s1 of column j of dz. */
static void column_sums(const onep_head_backward_problem *p, const double *dz, int64_t j, double *s0, double *s1)
{
    int64_t n = p->columns;
    double mean = onep_feature(&p->mean, j, 0), rstd = onep_feature(&p->rstd, j, 1);
    *s0 = *s1 = 0;
    for (int64_t i = 0; i < p->rows.count; i++) {
        *s0 += dz[i * n + j];
        *s1 += dz[i * n + j] * ((element(&p->product, &p->rows, i, j) - mean) * rstd);
    }
}

/* Column j of dz becomes dy = slope (dz - s0 / B - xh s1 / B), slope = gamma rstd scale; returns its part of dscale. */
static double column_gradient(const onep_head_backward_problem *p, double *dz, int64_t j)
{
    int64_t n = p->columns;
    double mean = onep_feature(&p->mean, j, 0), rstd = onep_feature(&p->rstd, j, 1);
    double slope = onep_feature(&p->gamma, j, 1) * rstd * onep_feature(&p->scale, j, 1);
    double rows = p->batch_rows, s0, s1;
    column_sums(p, dz, j, &s0, &s1);
    onep_head_feature_gradients(p, j, s0, s1);
    double scale_gradient = onep_head_scale_gradient(p, j, s0, s1);
    if (p->ranks.count)
        onep_head_merge_sums(&p->ranks, j, &s0, &s1);
    int batch = p->statistics == ONEPASS_BATCH_STATISTICS;
    for (int64_t i = 0; i < p->rows.count; i++) {
        double xh = (element(&p->product, &p->rows, i, j) - mean) * rstd;
        dz[i * n + j] = slope * (batch ? dz[i * n + j] - s0 / rows - xh * (s1 / rows) : dz[i * n + j]);
    }
    return scale_gradient;
}

static onepass_status run_sums(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_head_backward_problem *p = (const onep_head_backward_problem *)problem;
    double *dz = product_of(plan);
    (void)handle;
    for (int64_t i = 0; i < p->rows.count; i++)
        softmax_gradient(p, dz + i * p->columns, i);
    for (int64_t j = 0; j < p->columns; j++) {
        double s0, s1;
        column_sums(p, dz, j, &s0, &s1);
        onep_feature_store(&p->s0, j, s0);
        onep_feature_store(&p->s1, j, s1);
    }
    return ONEPASS_OK;
}

static onepass_status run_backward(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_head_backward_problem *p = (const onep_head_backward_problem *)problem;
    (void)handle;
    if (p->columns == 0) {
        onep_head_backward_without_features(p);
        return ONEPASS_OK;
    }
    double *dy = product_of(plan);
    for (int64_t i = 0; i < p->rows.count; i++)
        softmax_gradient(p, dy + i * p->columns, i);
    double scale_sum = 0;
    for (int64_t j = 0; j < p->columns; j++)
        scale_sum += column_gradient(p, dy, j);
    if (p->scale_is_one_value)
        onep_feature_store(&p->grad_scale, 0, scale_sum);
    for (int64_t i = 0; i < p->rows.count && p->grad_input.data; i++)
        for (int64_t k = 0; k < p->depth; k++) {
            double sum = 0;
            for (int64_t j = 0; j < p->columns; j++)
                sum += dy[i * p->columns + j] * element(&p->weight, &p->weight_rows, j, k);
            store(&p->grad_input, &p->rows, i, k, sum);
        }
    for (int64_t j = 0; j < p->columns && p->grad_weight.data; j++)
        for (int64_t k = 0; k < p->depth; k++) {
            double sum = 0;
            for (int64_t i = 0; i < p->rows.count; i++)
                sum += dy[i * p->columns + j] * element(&p->input, &p->rows, i, k);
            store(&p->grad_weight, &p->weight_rows, j, k, sum);
        }
    return ONEPASS_OK;
}

#define EACH_TYPE(plan, run)                                                                                           \
    {                                                                                                                  \
        [ONEP_F16] = {plan, run}, [ONEP_BF16] = {plan, run}, [ONEP_F32] = {plan, run}, [ONEP_F64] = { plan, run }      \
    }

const onep_kernel onep_head_ref[ONEP_FLOAT_TYPES] = EACH_TYPE(plan_forward, run_forward);
const onep_kernel onep_head_statistics_ref[ONEP_FLOAT_TYPES] = EACH_TYPE(plan_forward, run_statistics);
const onep_kernel onep_head_synchronised_ref[ONEP_FLOAT_TYPES] = EACH_TYPE(plan_forward, run_synchronised);
const onep_kernel onep_head_backward_ref[ONEP_FLOAT_TYPES] = EACH_TYPE(plan_backward, run_backward);
const onep_kernel onep_head_backward_sums_ref[ONEP_FLOAT_TYPES] = EACH_TYPE(plan_backward, run_sums);
