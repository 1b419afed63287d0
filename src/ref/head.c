/*
 * Linear -> batch normalisation -> scale -> softmax in plain C and double: the definition, the oracle of every test,
 * and the fallback where no faster kernel exists. Any strides, one thread, sums in index order. The product is held in
 * the workspace in double; what backward is given is what forward stored, rounded to the type computed in.
 */
#include <math.h>
#include <stdint.h>

#include "kernels.h"

static double element(const onep_operand *operand, const onep_rows *rows, int64_t row, int64_t column)
{
    return onep_load(operand->type, onep_row_address(operand, rows, row) + column * operand->col_stride);
}

static void store(const onep_operand *operand, const onep_rows *rows, int64_t row, int64_t column, double x)
{
    if (operand->data)
        onep_store(operand->type, onep_row_address(operand, rows, row) + column * operand->col_stride, x);
}

static double *aligned(void *workspace)
{
    return (double *)(((uintptr_t)workspace + sizeof(double) - 1) / sizeof(double) * sizeof(double));
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

size_t onep_head_workspace_ref(const onep_head_problem *p)
{
    return ((size_t)p->rows.count * (size_t)p->columns + 1) * sizeof(double);
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

/* Column j of q becomes z = scale (gamma (q - mean) rstd + beta). */
static void normalise(const onep_head_problem *p, double *q, int64_t j, double factor)
{
    int64_t n = p->columns;
    double mean = 0, m2 = 0;
    for (int64_t i = 0; i < p->rows.count; i++)
        mean += q[i * n + j];
    mean /= (double)p->rows.count;
    for (int64_t i = 0; i < p->rows.count; i++)
        m2 += (q[i * n + j] - mean) * (q[i * n + j] - mean);
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

onepass_status onep_head_ref(const onepass_handle *handle, const onep_head_problem *p)
{
    (void)handle;
    double *q = aligned(p->workspace);
    multiply(p, q);
    double factor = p->statistics == ONEPASS_BATCH_STATISTICS ? onep_head_factor(p) : 0;
    for (int64_t j = 0; j < p->columns; j++)
        normalise(p, q, j, factor);
    for (int64_t i = 0; i < p->rows.count; i++)
        softmax(p, q + i * p->columns, i);
    return ONEPASS_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

size_t onep_head_backward_workspace_ref(const onep_head_backward_problem *p)
{
    return ((size_t)p->rows.count * (size_t)p->columns + 1) * sizeof(double);
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

/* Column j of dz becomes dy = slope (dz - s0 / B - xh s1 / B), slope = gamma rstd scale; returns its part of dscale. */
static double column_gradient(const onep_head_backward_problem *p, double *dz, int64_t j)
{
    int64_t n = p->columns;
    double mean = onep_feature(&p->mean, j, 0), rstd = onep_feature(&p->rstd, j, 1);
    double slope = onep_feature(&p->gamma, j, 1) * rstd * onep_feature(&p->scale, j, 1);
    double rows = (double)p->rows.count, s0 = 0, s1 = 0;
    for (int64_t i = 0; i < p->rows.count; i++) {
        s0 += dz[i * n + j];
        s1 += dz[i * n + j] * ((element(&p->product, &p->rows, i, j) - mean) * rstd);
    }
    onep_head_feature_gradients(p, j, s0, s1);
    int batch = p->statistics == ONEPASS_BATCH_STATISTICS;
    for (int64_t i = 0; i < p->rows.count; i++) {
        double xh = (element(&p->product, &p->rows, i, j) - mean) * rstd;
        dz[i * n + j] = slope * (batch ? dz[i * n + j] - s0 / rows - xh * (s1 / rows) : dz[i * n + j]);
    }
    return onep_head_scale_gradient(p, j, s0, s1);
}

onepass_status onep_head_backward_ref(const onepass_handle *handle, const onep_head_backward_problem *p)
{
    (void)handle;
    double *dy = aligned(p->workspace);
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
