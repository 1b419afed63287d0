/* See head_cuda_case.h. */
#include "head_cuda_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a case ------------------------------------------------------------------------------------------------------ */

head_case head_plain_case(onep_type type, int64_t rows, int64_t columns)
{
    return (head_case){.rows = rows,
                       .columns = columns,
                       .type = type,
                       .output_type = type,
                       .parameter_type = type == ONEP_F64 ? ONEP_F64 : ONEP_F32,
                       .keep = 1,
                       .one_scale = 1,
                       .condition = 1,
                       .scale = 1};
}

static const char *case_text(const head_case *c)
{
    static char text[300];
    snprintf(
        text, sizeof text,
        "%lld x %lld x %lld, %s to %s, parameters %s, layout %d, data %d, absent %u, running %d, cumulative %d, keep "
        "%d, one scale %d, condition %g, scale %g, math %d",
        (long long)c->rows, (long long)c->columns, (long long)c->depth, onep_type_name(c->type),
        onep_type_name(c->output_type), onep_type_name(c->parameter_type), (int)c->layout, (int)c->data, c->absent,
        c->running, c->cumulative, c->keep, c->one_scale, c->condition, c->scale, (int)c->math);
    return text;
}

onep_type head_computed_type(const head_case *c)
{
    return c->type == ONEP_F64 ? ONEP_F64 : ONEP_F32;
}

static void fill_vector(const head_field *f, test_random *random, double low, double high)
{
    for (int64_t j = 0; j < f->columns; j++)
        head_put(f, 0, j, test_random_between(random, low, high));
}

/* Element (i, j) of a given product, or of the input if there is one. */
static double draw(const head_case *c, test_random *random, int64_t i, int64_t j)
{
    double sigma = exp(test_random_between(random, -0.1, 0.1));
    double x = c->condition + sigma * head_normal(random);
    if (c->data == TIES)
        x = (double)(int64_t)(x * 2) / 2;
    if (c->data == CONSTANT_COLUMNS && j % 3 == 0)
        x = 0.7 + (double)j;
    if (c->data == NAN_ROW && i == c->rows / 2 && j == c->columns / 3)
        x = NAN;
    if (c->data == INF_ROW && i == c->rows / 2 && j == c->columns / 2)
        x = INFINITY;
    if (c->data == MINUS_INF_COLUMNS && i == c->rows / 2 && j < c->columns / 2 + 1)
        x = -INFINITY;
    return x;
}

head_tensors head_make_case(const head_case *c)
{
    test_random random = test_random_stream(++head_streams);
    test_context("%s", case_text(c));
    onep_type computed = head_computed_type(c);
    int64_t m = c->rows, n = c->columns, k = c->depth ? c->depth : 1;
    head_tensors t = {.stages = c->depth ? ONEP_HEAD_ALL : ONEP_HEAD_STATISTICS | ONEP_HEAD_SOFTMAX};
    head_arena_begin(head_streams % 2 ? 0xff : 0x55);
    t.input = field_place(c->type, m, k, c->layout, 0);
    t.weight = field_place(c->type, n, k, c->layout, 0);
    t.bias = field_place(c->parameter_type, 1, n, c->layout, 0);
    t.gamma = field_place(c->parameter_type, 1, n, COMPACT, 0);
    t.beta = field_place(c->parameter_type, 1, n, c->layout, 0);
    t.scale = field_place(c->parameter_type, 1, c->one_scale ? 1 : n, COMPACT, 0);
    t.running_mean = field_place(c->parameter_type, 1, n, COMPACT, !c->running);
    t.running_var = field_place(c->parameter_type, 1, n, c->layout, !c->running);
    t.output = field_place(c->output_type, m, n, c->layout, 1);
    int given = !c->depth;
    t.product = field_place(computed, m, n, c->layout, !given);
    t.mean = field_place(computed, 1, n, COMPACT, 1);
    t.rstd = field_place(computed, 1, n, COMPACT, 1);
    t.counter = head_arena_take(8, 0);
    if (!c->running && !(c->absent & NO_COUNTER))
        memset(head_arena.writable + (t.counter - head_arena.host), 1, 8);
    t.counted = c->cumulative ? (long long)test_random_below(&random, 5) : 7;
    memcpy(t.counter, &t.counted, 8);

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; given && j < n; j++)
            head_put(&t.product, i, j, draw(c, &random, i, j));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++)
            head_put(&t.input, i, j, draw(c, &random, i, j));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++)
            head_put(&t.weight, i, j, head_normal(&random) / sqrt((double)k));
    fill_vector(&t.bias, &random, -1, 1);
    fill_vector(&t.gamma, &random, -1.5, 1.5);
    fill_vector(&t.beta, &random, -1, 1);
    fill_vector(&t.scale, &random, 0.5 * c->scale, 1.5 * c->scale);
    fill_vector(&t.running_mean, &random, c->condition - 1, c->condition + 1);
    fill_vector(&t.running_var, &random, 0.5, 2);
    if (n > 2)
        head_put(&t.gamma, 0, n / 2, 0);

    onep_head_problem *p = &t.problem;
    p->rows = (onep_rows){.rank = m == 1 ? 0 : 1, .count = m};
    p->rows.extent[0] = m;
    p->depth = k;
    p->columns = n;
    p->statistics = c->running ? ONEPASS_RUNNING_STATISTICS : ONEPASS_BATCH_STATISTICS;
    p->cumulative = c->cumulative;
    p->eps = 1e-5;
    p->momentum = c->cumulative || c->running ? 0 : 0.1;
    p->input = t.input.operand;
    p->weight = t.weight.operand;
    p->output = t.output.operand;
    if (!(c->absent & NO_BIAS))
        p->bias = t.bias.operand;
    if (!(c->absent & NO_GAMMA))
        p->gamma = t.gamma.operand;
    if (!(c->absent & NO_BETA))
        p->beta = t.beta.operand;
    if (!(c->absent & NO_SCALE))
        p->scale = t.scale.operand;
    if (c->one_scale)
        p->scale.col_stride = 0;
    if (!(c->absent & NO_RUNNING)) {
        p->running_mean = t.running_mean.operand;
        p->running_var = t.running_var.operand;
    }
    if (!c->running && !(c->absent & NO_COUNTER))
        p->batches_tracked = (onep_operand){.data = head_to_device(t.counter)};
    if (c->keep || given) {
        p->product = t.product.operand;
        p->mean = t.mean.operand;
        p->rstd = t.rstd.operand;
    }
    t.workspace = head_take_workspace(head_bytes(onep_head_cuda, head_handle, c->math, p));
    return t;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static onepass_handle with_math(const onepass_handle *handle, onep_product_math math)
{
    static const onepass_fp32_products ways[] = {[ONEP_MATH_PLAIN] = ONEPASS_FP32_VENDOR,
                                                 [ONEP_MATH_TF32] = ONEPASS_FP32_TF32,
                                                 [ONEP_MATH_SPLIT] = ONEPASS_FP32_SPLIT,
                                                 [ONEP_MATH_BEST] = ONEPASS_FP32_FULL};
    onepass_handle with = *handle;
    with.fp32_products = ways[math];
    return with;
}

size_t head_bytes(const onep_kernel *kernel, const onepass_handle *handle, onep_product_math math, const void *problem)
{
    onepass_handle with = with_math(handle, math);
    onep_plan plan;
    size_t bytes = 0;
    CHECK(kernel->plan(&with, problem, NULL, &plan, &bytes) == ONEPASS_OK, "%s", onepass_last_error());
    return bytes;
}

static onepass_status make_plan(const onep_kernel *kernel, const onepass_handle *with, const void *problem,
                                void *workspace, onep_plan *plan)
{
    size_t bytes = 0, asked = 0;
    onepass_status status = kernel->plan(with, problem, NULL, plan, &asked);
    if (status == ONEPASS_OK)
        status = kernel->plan(with, problem, workspace, plan, &bytes);
    CHECK(bytes <= asked, "the plan needs %zu bytes, %zu were asked for", bytes, asked);
    return status;
}

onepass_status head_call(const onep_kernel *kernel, const onepass_handle *handle, onep_product_math math,
                         const void *problem, void *workspace)
{
    onepass_handle with = with_math(handle, math);
    onep_plan plan;
    onepass_status status = make_plan(kernel, &with, problem, workspace, &plan);
    return status == ONEPASS_OK ? kernel->run(&with, problem, &plan) : status;
}

onepass_status head_forward(const onepass_handle *handle, onep_product_math math, const onep_head_problem *problem,
                            void *workspace, int stages)
{
    onepass_handle with = with_math(handle, math);
    onep_plan plan;
    onepass_status status = make_plan(onep_head_cuda, &with, problem, workspace, &plan);
    return status == ONEPASS_OK ? onep_head_cuda_run(&with, &plan, stages) : status;
}

onepass_status head_backward(const onepass_handle *handle, onep_product_math math,
                             const onep_head_backward_problem *problem, void *workspace, int stages)
{
    onepass_handle with = with_math(handle, math);
    onep_plan plan;
    onepass_status status = make_plan(onep_head_backward_cuda, &with, problem, workspace, &plan);
    return status == ONEPASS_OK ? onep_head_backward_cuda_run(&with, &plan, stages) : status;
}

double head_vector_at(const head_case *c, const head_field *f, unsigned absent, int64_t j, double otherwise)
{
    return c->absent & absent ? otherwise : field_get(f, 0, f->columns == 1 ? 0 : j);
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

double *head_doubles(int64_t count)
{
    double *made = calloc((size_t)(count > 0 ? count : 1), sizeof *made);
    if (!made)
        exit(2);
    return made;
}

void head_free_expected(head_expected *e)
{
    free(e->y), free(e->y_error), free(e->z), free(e->z_error), free(e->output);
    free(e->mean), free(e->rstd), free(e->m2);
}

head_expected head_define(const head_case *c, const head_tensors *t)
{
    int64_t m = c->rows, n = c->columns;
    double unit = head_computed_type(c) == ONEP_F64 ? 0x1p-53 : 0x1p-24;
    head_expected e = {head_doubles(m * n), head_doubles(m * n), head_doubles(m * n), head_doubles(m * n),
                       head_doubles(m * n), head_doubles(n),     head_doubles(n),     head_doubles(n)};
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < c->depth; k++) {
                double x = field_get(&t->input, i, k) * field_get(&t->weight, j, k);
                sum += x;
                size += fabs(x);
            }
            e.y[i * n + j] = c->depth ? sum : field_get(&t->product, i, j);
            /* sums of k terms, each rounded; tensor cores cut off where others round; TF32 rounds the operands; for a
             * split see docs/numerics.md */
            double more = c->math == ONEP_MATH_TF32 ? 0x1p-10 : c->math == ONEP_MATH_SPLIT ? 49 * 0x1p-24 : 0;
            e.y_error[i * n + j] = size * (unit * (2 + (double)c->depth) + more);
        }
    for (int64_t j = 0; j < n; j++) {
        double bias = head_vector_at(c, &t->bias, NO_BIAS, j, 0), gamma = head_vector_at(c, &t->gamma, NO_GAMMA, j, 1);
        double beta = head_vector_at(c, &t->beta, NO_BETA, j, 0), scale = head_vector_at(c, &t->scale, NO_SCALE, j, 1);
        double y_error = 0;
        long double sum = 0, m2 = 0; /* float64 is tested too, and a double would be no reference for it */
        for (int64_t i = 0; i < m; i++) {
            sum += e.y[i * n + j];
            y_error = fmax(y_error, e.y_error[i * n + j]);
        }
        long double mean = sum / (long double)m;
        for (int64_t i = 0; i < m; i++)
            m2 += (e.y[i * n + j] - mean) * (e.y[i * n + j] - mean);
        e.m2[j] = (double)m2;
        e.mean[j] = c->running ? field_get(&t->running_mean, 0, j) - bias : (double)mean;
        double variance = c->running ? field_get(&t->running_var, 0, j) : e.m2[j] / (double)m;
        e.rstd[j] = 1 / sqrt(variance + 1e-5);
        double slope = scale * gamma * e.rstd[j];
        for (int64_t i = 0; i < m; i++) {
            double x = slope * (e.y[i * n + j] - e.mean[j]), z = x + scale * beta;
            e.z[i * n + j] = z;
            /* the offset's rounding, that of z, the slope's, the statistics' of rounded sums, and the product's error
             */
            e.z_error[i * n + j] = unit * (fabs(slope * e.mean[j]) + fabs(scale * beta) + 2 * fabs(z) + 8 * fabs(x)) +
                                   3 * fabs(slope) * y_error * (1 + fabs(x / (scale != 0 ? scale : 1)));
        }
    }
    for (int64_t i = 0; i < m; i++) {
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++)
            most = e.z[i * n + j] > most ? e.z[i * n + j] : most;
        for (int64_t j = 0; j < n; j++)
            sum += e.output[i * n + j] = exp(e.z[i * n + j] - most);
        for (int64_t j = 0; j < n; j++)
            e.output[i * n + j] /= sum;
    }
    return e;
}
