/*
 * The head and the linear layer on a GPU, below their entry points, against their definition in double: shapes around
 * every tile, all types and layouts, badly conditioned columns, special values, running statistics, gradients, the same
 * bits in every run and in replayed graphs. Everything a call touches lies in one arena; what is not its to write must
 * be as it was. Errors are also held against those of the plain chain of float operations, as PyTorch computes it.
 *
 * `test_head_cuda time` measures instead. Run by ./dev gpu, never by a machine without a GPU.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "head_cuda_case.h"

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void check_output(const head_case *c, const head_tensors *t, const head_expected *e)
{
    int64_t m = c->rows, n = c->columns, wrong = 0, shown_i = 0, shown_j = 0;
    double exponential = head_computed_type(c) == ONEP_F64 ? 1e-14 : 6e-7;
    for (int64_t i = 0; i < m; i++) {
        double common = 0; /* what the sum is off by */
        for (int64_t j = 0; j < n; j++)
            if (e->output[i * n + j] > 0)
                common += e->output[i * n + j] * e->z_error[i * n + j];
        for (int64_t j = 0; j < n; j++) {
            double own = isfinite(e->z_error[i * n + j]) ? e->z_error[i * n + j] : 0;
            double off = own + (isfinite(common) ? common : 0) + exponential;
            double allowed = e->output[i * n + j] * (off < 0.5 ? 2 * off : exp(off)) + 0x1p-125;
            if (!test_close_in(c->output_type, field_get(&t->output, i, j), e->output[i * n + j], allowed) &&
                !wrong++) {
                shown_i = i;
                shown_j = j;
            }
        }
    }
    CHECK(wrong == 0, "%lld of %lld outputs are wrong; the first, (%lld, %lld), is %.9g instead of %.9g (z %.9g)",
          (long long)wrong, (long long)(m * n), (long long)shown_i, (long long)shown_j,
          field_get(&t->output, shown_i, shown_j), e->output[shown_i * n + shown_j], e->z[shown_i * n + shown_j]);
}

static void check_vector(const char *what, const head_field *f, int64_t j, double exact, double allowed)
{
    double got = field_get(f, 0, j);
    CHECK(test_close_in(f->operand.type, got, exact, allowed), "%s[%lld] is %.9g instead of %.9g, allowed %.3g", what,
          (long long)j, got, exact, allowed);
}

static void check_state(const head_case *c, const head_tensors *t, const head_expected *e, const double *old_mean,
                        const double *old_var)
{
    int64_t m = c->rows, n = c->columns;
    double unit = head_computed_type(c) == ONEP_F64 ? 0x1p-50 : 0x1p-21;
    double factor = c->cumulative ? 1 / (double)(t->counted + 1) : 0.1;
    for (int64_t j = 0; j < n; j++) {
        double sigma = sqrt(e->m2[j] / (double)m), y_error = 0;
        for (int64_t i = 0; i < m; i++)
            y_error = fmax(y_error, e->y_error[i * n + j]);
        if (c->running) /* the batch has no part in them */
            sigma = y_error = 0;
        /* sums are made in double: float64 has their rounding, float32 only its own */
        double of_mean = head_computed_type(c) == ONEP_F64 ? 1 : 0x1p-3;
        double mean_error = unit * (sigma + fabs(e->mean[j]) * of_mean) + y_error;
        /* M2 = s2 - s1^2 / n of a thread's n rows (head_stats.cuh): both have n + 2 roundings, and s2 <= n M2 */
        double group = fmin((double)m, 16), in_double = 2 * (group + 2) * group * 0x1p-53;
        double of_var = head_computed_type(c) == ONEP_F64 ? unit + in_double : unit;
        double var_error = (of_var * sigma + 3 * y_error) * sigma + 3 * y_error * y_error;
        if (t->problem.mean.data) {
            check_vector("mean", &t->mean, j, e->mean[j], mean_error);
            check_vector("rstd", &t->rstd, j, e->rstd[j], e->rstd[j] * (unit + var_error * e->rstd[j] * e->rstd[j]));
        }
        if (c->running || c->absent & NO_RUNNING)
            continue;
        double bias = head_vector_at(c, &t->bias, NO_BIAS, j, 0);
        check_vector("running_mean", &t->running_mean, j, (1 - factor) * old_mean[j] + factor * (e->mean[j] + bias),
                     factor * mean_error + 0x1p-51 * (fabs(old_mean[j]) + fabs(e->mean[j]) + fabs(bias)));
        check_vector("running_var", &t->running_var, j,
                     (1 - factor) * old_var[j] + factor * (e->m2[j] / (double)(m - 1)),
                     2 * factor * var_error + 0x1p-51 * old_var[j]);
    }
    long long counted;
    memcpy(&counted, t->counter, 8);
    CHECK(counted == t->counted + (!c->running && !(c->absent & NO_COUNTER)), "the counter went from %lld to %lld",
          t->counted, counted);
}

static void must_run(onepass_status status)
{
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    MUST(cuda_driver()->cuStreamSynchronize(head_stream));
}

static void check_forward(const head_case *c)
{
    head_tensors t = head_make_case(c);
    double *old_mean = head_doubles(c->columns), *old_var = head_doubles(c->columns);
    for (int64_t j = 0; j < c->columns; j++) {
        old_mean[j] = field_get(&t.running_mean, 0, j);
        old_var[j] = field_get(&t.running_var, 0, j);
    }
    head_expected e = head_define(c, &t);
    head_arena_send();
    must_run(head_forward(head_handle, c->math, &t.problem, t.workspace, t.stages));
    head_arena_fetch();
    check_output(c, &t, &e);
    check_state(c, &t, &e, old_mean, old_var);
    head_free_expected(&e);
    free(old_mean);
    free(old_var);
}

static void test_shapes(void)
{
    static const int64_t shapes[][2] = {
        {2, 1},     {2, 3},     {3, 4},     {5, 8},     {63, 127},  {64, 128},   {65, 129},   {127, 132}, {128, 1000},
        {129, 260}, {257, 512}, {300, 33},  {1025, 36}, {17, 8184}, {9, 8192},   {8, 8196},   {7, 8200},  {5, 16384},
        {3, 16388}, {4, 16392}, {3, 40001}, {4, 40008}, {3000, 7},  {131073, 3}, {20000, 16}, {2, 70000},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int running = 0; running < 2; running++) {
                if (test_quick() && (s + (size_t)type + (size_t)running) % 3 != 0)
                    continue;
                head_case c = head_plain_case((onep_type)type, shapes[s][0], shapes[s][1]);
                c.running = running;
                c.layout = (head_layout)((s + (size_t)type) % 5 ? COMPACT : (s + (size_t)running) % LAYOUTS);
                check_forward(&c);
            }
}

static void test_options(void)
{
    test_random random = test_random_stream(++head_streams);
    for (int i = 0; i < (test_quick() ? 12 : 60); i++) {
        head_case c = head_plain_case((onep_type)(i % ONEP_FLOAT_TYPES), 2 + test_random_below(&random, 200),
                                      1 + test_random_below(&random, 300));
        c.layout = (head_layout)test_random_below(&random, LAYOUTS);
        c.running = (int)test_random_below(&random, 2);
        c.absent = (unsigned)test_random_below(&random, c.running ? 16 : 64);
        c.cumulative = !c.running && !(c.absent & NO_COUNTER) && test_random_below(&random, 2);
        c.one_scale = (int)test_random_below(&random, 2);
        c.parameter_type = (onep_type)test_random_below(&random, ONEP_FLOAT_TYPES);
        if (c.type < ONEP_F32)
            c.output_type = test_random_below(&random, 2) ? c.type : ONEP_F32;
        else if (c.type == ONEP_F32 && test_random_below(&random, 3) == 0)
            c.output_type = ONEP_F64;
        check_forward(&c);
    }
}

/* Columns far from 0, no spread, ties, scales that make everything equal or one-hot, infinities and NaN. */
static void test_hard(void)
{
    static const double conditions[] = {1, 1e2, 1e4, -1e4}, scales[] = {0, 1, 1000};
    static const int64_t columns[] = {24, 1024, 8192};
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 4; i++)
            for (int s = 0; s < 3; s++) {
                head_case c = head_plain_case(i % 2 ? ONEP_F32 : ONEP_BF16, 130, columns[n]);
                c.condition = conditions[i];
                c.scale = scales[s];
                check_forward(&c);
                c.type = c.output_type = ONEP_F32;
                c.running = 1;
                check_forward(&c);
            }
    for (int data = ORDINARY; data < DATA_KINDS; data++)
        for (int running = 0; running < 2; running++)
            for (int n = 0; n < 5; n++) {
                static const int64_t widths[] = {9, 64, 4096, 9000, 20000};
                if (data == MINUS_INF_COLUMNS && !running)
                    continue; /* the column means are not finite then: the same as INF_ROW */
                head_case c = head_plain_case(n % 2 ? ONEP_F32 : ONEP_F16, n < 3 ? 70 : 6, widths[n]);
                c.data = (head_data)data;
                c.running = running;
                c.scale = 3;
                c.absent = data == MINUS_INF_COLUMNS ? NO_GAMMA : 0; /* a gamma below 0 makes them +inf */
                check_forward(&c);
            }
}

/* ---- against the chain of float operations ----------------------------------------------------------------------- */

/* Our output's error relative to the definition, and that of each step rounded to float, over all elements. */
static void compare_with_chain(double condition, int64_t rows, int64_t n)
{
    head_case c = head_plain_case(ONEP_F32, rows, n);
    c.condition = condition;
    head_tensors t = head_make_case(&c);
    head_expected e = head_define(&c, &t);
    head_arena_send();
    must_run(head_forward(head_handle, c.math, &t.problem, t.workspace, t.stages));
    head_arena_fetch();
    float *mean = malloc((size_t)n * sizeof *mean), *rstd = malloc((size_t)n * sizeof *rstd);
    float *z = malloc((size_t)n * sizeof *z);
    for (int64_t j = 0; j < n; j++) { /* even with exact statistics, rounded once */
        mean[j] = (float)e.mean[j];
        rstd[j] = (float)e.rstd[j];
    }
    double ours = 0, theirs = 0, ours_most = 0, theirs_most = 0;
    for (int64_t i = 0; i < rows; i++) {
        float most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++) {
            float x = ((float)field_get(&t.product, i, j) - mean[j]) * rstd[j];
            x = x * (float)field_get(&t.gamma, 0, j) + (float)field_get(&t.beta, 0, j);
            z[j] = x * (float)field_get(&t.scale, 0, 0);
            most = z[j] > most ? z[j] : most;
        }
        for (int64_t j = 0; j < n; j++)
            sum += expf(z[j] - most);
        for (int64_t j = 0; j < n; j++) {
            double exact = e.output[i * n + j];
            double off = field_get(&t.output, i, j) / exact - 1, chain = expf(z[j] - most) / sum / exact - 1;
            ours += off * off;
            theirs += chain * chain;
            ours_most = fmax(ours_most, fabs(off));
            theirs_most = fmax(theirs_most, fabs(chain));
        }
    }
    ours = sqrt(ours / (double)(rows * n));
    theirs = sqrt(theirs / (double)(rows * n));
    printf("condition %g, %lld x %lld: relative error %.3g (most %.3g), of the chain of floats %.3g (most %.3g)\n",
           condition, (long long)rows, (long long)n, ours, ours_most, theirs, theirs_most);
    CHECK(ours <= theirs, "the error %.3g is larger than that of the chain of float operations, %.3g", ours, theirs);
    CHECK(ours > 1e-9, "an error of %.3g: something was compared with itself", ours);
    free(mean), free(rstd), free(z);
    head_free_expected(&e);
}

/* ---- the whole, and gradients ------------------------------------------------------------------------------------ */

typedef struct gradient_tensors {
    head_field grad_output, input, weight, bias, gamma, beta, scale;
    onep_head_backward_problem problem;
    void *workspace;
} gradient_tensors;

/* The backward problem of a forward call whose tensors are in the arena still, results included. */
static gradient_tensors make_gradients(const head_case *c, const head_tensors *t)
{
    test_random random = test_random_stream(++head_streams);
    int64_t m = c->rows, n = c->columns, k = c->depth;
    gradient_tensors g = {0};
    memset(head_arena.writable, 0, head_arena.used);
    g.grad_output = field_place(c->output_type, m, n, c->layout, 0);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            head_put(&g.grad_output, i, j, head_normal(&random) * 3);
    g.input = field_place(c->type, m, k, c->layout, 1);
    g.weight = field_place(c->type, n, k, c->layout, 1);
    g.bias = field_place(c->parameter_type, 1, n, COMPACT, 1);
    g.gamma = field_place(c->parameter_type, 1, n, c->layout, 1);
    g.beta = field_place(c->parameter_type, 1, n, COMPACT, 1);
    g.scale = field_place(c->parameter_type, 1, c->one_scale ? 1 : n, COMPACT, 1);
    g.problem = (onep_head_backward_problem){
        .rows = t->problem.rows,
        .depth = k,
        .columns = n,
        .statistics = t->problem.statistics,
        .grad_output = g.grad_output.operand,
        .output = t->output.operand,
        .input = t->input.operand,
        .weight = t->weight.operand,
        .product = t->product.operand,
        .mean = t->mean.operand,
        .rstd = t->rstd.operand,
        .gamma = t->problem.gamma,
        .beta = t->problem.beta,
        .scale = t->problem.scale,
        .grad_input = g.input.operand,
        .grad_weight = g.weight.operand,
        .grad_bias = g.bias.operand,
        .grad_gamma = g.gamma.operand,
        .grad_beta = g.beta.operand,
        .grad_scale = g.scale.operand,
        .scale_is_one_value = c->one_scale,
    };
    g.workspace = head_take_workspace(head_bytes(onep_head_backward_cuda, head_handle, c->math, &g.problem));
    return g;
}

static double half_unit_of(onep_type type)
{
    return type == ONEP_F16 ? 0x1p-11 : type == ONEP_BF16 ? 0x1p-8 : type == ONEP_F32 ? 0x1p-24 : 0x1p-53;
}

/* The definition of the gradients, from what the forward call stored; errors relative to the sums of absolute values.
 */
static void check_gradients(const head_case *c, const head_tensors *t, const gradient_tensors *g)
{
    int64_t m = c->rows, n = c->columns, k = c->depth;
    double *dz = head_doubles(m * n), *dz_error = head_doubles(m * n), scale_sum = 0, scale_size = 0;
    double unit = head_computed_type(c) == ONEP_F64 ? 0x1p-53 : 0x1p-24,
           sums = unit * (8 + sqrt((double)m + (double)n));
    double rounded = half_unit_of(c->type); /* of dy, before it is multiplied */
    double least = c->type == ONEP_F16 ? 0x1p-25 : 0;
    for (int64_t i = 0; i < m; i++) {
        double r = 0, size = 0;
        for (int64_t j = 0; j < n; j++) {
            r += field_get(&g->grad_output, i, j) * field_get(&t->output, i, j);
            size += fabs(field_get(&g->grad_output, i, j) * field_get(&t->output, i, j));
        }
        for (int64_t j = 0; j < n; j++) {
            dz[i * n + j] = field_get(&t->output, i, j) * (field_get(&g->grad_output, i, j) - r);
            dz_error[i * n + j] =
                field_get(&t->output, i, j) * (size * sums + fabs(field_get(&g->grad_output, i, j)) * 2 * unit);
        }
    }
    double *dy = dz, *dy_error = dz_error;
    for (int64_t j = 0; j < n; j++) {
        double mean = field_get(&t->mean, 0, j), rstd = field_get(&t->rstd, 0, j),
               gamma = head_vector_at(c, &t->gamma, NO_GAMMA, j, 1);
        double beta = head_vector_at(c, &t->beta, NO_BETA, j, 0), scale = head_vector_at(c, &t->scale, NO_SCALE, j, 1);
        double s0 = 0, s1 = 0, e0 = 0, e1 = 0, rows = (double)m, slope = scale * gamma * rstd;
        for (int64_t i = 0; i < m; i++) {
            double xh = (field_get(&t->product, i, j) - mean) * rstd,
                   error = dz_error[i * n + j] + sums * fabs(dz[i * n + j]);
            s0 += dz[i * n + j];
            s1 += dz[i * n + j] * xh;
            e0 += error;
            e1 += error * fabs(xh);
        }
        check_vector("grad_beta", &g->beta, j, scale * s0, fabs(scale) * e0);
        check_vector("grad_gamma", &g->gamma, j, scale * s1, fabs(scale) * e1);
        check_vector("grad_bias", &g->bias, j, c->running ? slope * s0 : 0, c->running ? fabs(slope) * e0 : 0);
        if (!c->one_scale)
            check_vector("grad_scale", &g->scale, j, gamma * s1 + beta * s0, fabs(gamma) * e1 + fabs(beta) * e0);
        scale_sum += gamma * s1 + beta * s0;
        scale_size += fabs(gamma) * e1 + fabs(beta) * e0;
        for (int64_t i = 0; i < m; i++) {
            double xh = (field_get(&t->product, i, j) - mean) * rstd, error = dz_error[i * n + j];
            double x = c->running ? dz[i * n + j] : dz[i * n + j] - s0 / rows - xh * (s1 / rows);
            if (!c->running)
                error += e0 / rows + fabs(xh) * e1 / rows +
                         4 * unit * (fabs(dz[i * n + j]) + fabs(s0 / rows) + fabs(xh * (s1 / rows)));
            dy[i * n + j] = slope * x;
            dy_error[i * n + j] = fabs(slope) * (error + 4 * unit * fabs(x)) + rounded * fabs(slope * x) + least;
        }
    }
    if (c->one_scale)
        check_vector("grad_scale", &g->scale, 0, scale_sum, scale_size + unit * fabs(scale_sum));
    double tf32 = c->math == ONEP_MATH_TF32 ? 0x1p-10 : c->math == ONEP_MATH_SPLIT ? 49 * 0x1p-24 : 0;
    int64_t wrong = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++) {
            double sum = 0, allowed = 0;
            for (int64_t j = 0; j < n; j++) {
                double w = field_get(&t->weight, j, l);
                sum += dy[i * n + j] * w;
                allowed += (dy_error[i * n + j] + fabs(dy[i * n + j]) * (unit * (2 + (double)n) + tf32)) * fabs(w);
            }
            wrong += !test_close_in(c->type, field_get(&g->input, i, l), sum, allowed);
        }
    CHECK(wrong == 0, "%lld elements of grad_input are wrong", (long long)wrong);
    wrong = 0;
    for (int64_t j = 0; j < n; j++)
        for (int64_t l = 0; l < k; l++) {
            double sum = 0, allowed = 0;
            for (int64_t i = 0; i < m; i++) {
                double x = field_get(&t->input, i, l);
                sum += dy[i * n + j] * x;
                allowed += (dy_error[i * n + j] + fabs(dy[i * n + j]) * (unit * (2 + (double)m) + tf32)) * fabs(x);
            }
            wrong += !test_close_in(c->type, field_get(&g->weight, j, l), sum, allowed);
        }
    CHECK(wrong == 0, "%lld elements of grad_weight are wrong", (long long)wrong);
    free(dz);
    free(dz_error);
}

static void check_both(const head_case *c)
{
    check_forward(c);
    head_case again = *c;
    head_streams--; /* the same numbers: check_forward's results are what backward gets */
    head_tensors t = head_make_case(&again);
    head_arena_send();
    must_run(head_forward(head_handle, c->math, &t.problem, t.workspace, t.stages));
    head_arena_fetch();
    gradient_tensors g = make_gradients(c, &t);
    head_arena_send();
    must_run(head_backward(head_handle, c->math, &g.problem, g.workspace, ONEP_HEAD_ALL));
    head_arena_fetch();
    check_gradients(c, &t, &g);
}

static void test_whole(void)
{
    static const int64_t shapes[][3] = {{2, 1, 1},    {2, 8, 16},   {3, 64, 40},    {65, 63, 17},   {128, 128, 64},
                                        {130, 72, 8}, {33, 257, 9}, {64, 8192, 16}, {12, 8200, 16}, {300, 520, 64}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int running = 0; running < 2; running++) {
                if (test_quick() && (s + (size_t)type) % 3 != 0)
                    continue;
                head_case c = head_plain_case((onep_type)type, shapes[s][0], shapes[s][1]);
                c.depth = shapes[s][2];
                c.running = running;
                c.layout = s % 3 == 1 ? (head_layout)(type % LAYOUTS) : COMPACT;
                c.one_scale = (int)((s + (size_t)type) % 2);
                c.absent = s % 4 == 3 ? NO_BIAS | NO_BETA : 0;
                if (type < 2 && s % 2)
                    c.output_type = ONEP_F32;
                if (type == ONEP_F32 && s % 4 == 0)
                    c.math = ONEP_MATH_TF32;
                if (type == ONEP_F32 && s % 4 == 2)
                    c.math = ONEP_MATH_SPLIT;
                check_both(&c);
                c.keep = 0; /* the product in the output or in the workspace */
                check_forward(&c);
            }
}

/* ---- the linear layer -------------------------------------------------------------------------------------------- */

static void check_linear(onep_type input, onep_type weight, onep_type output, int64_t m, int64_t n, int64_t k,
                         head_layout l, int with_bias, onep_product_math math)
{
    test_random random = test_random_stream(++head_streams);
    test_context("linear %lld x %lld x %lld, %s, %s to %s, layout %d, bias %d", (long long)m, (long long)n,
                 (long long)k, onep_type_name(input), onep_type_name(weight), onep_type_name(output), (int)l,
                 with_bias);
    head_arena_begin(0xff);
    int mixed = input != weight;
    double unit = onep_promote(input, weight) == ONEP_F64 ? 0x1p-53 : 0x1p-24;
    double split = math == ONEP_MATH_SPLIT ? 49 : 0; /* docs/numerics.md; in halves of a unit */
    head_field x = field_place(input, m, k, l, 0), w = field_place(weight, n, k, l, 0),
               b = field_place(output, 1, n, COMPACT, 0);
    head_field y = field_place(output, m, n, l, 1), dy = field_place(mixed ? ONEP_F32 : input, m, n, l, 0);
    head_field dx = field_place(input, m, k, l, 1), dw = field_place(weight, n, k, l, 1),
               db = field_place(ONEP_F32, 1, n, COMPACT, 1);
    head_field fields[] = {x, w, b, dy};
    for (int f = 0; f < 4; f++)
        for (int64_t i = 0; i < fields[f].rows; i++)
            for (int64_t j = 0; j < fields[f].columns; j++)
                head_put(&fields[f], i, j, head_normal(&random));
    onep_rows rows = {.rank = m == 1 ? 0 : 1, .count = m};
    rows.extent[0] = m;
    onep_linear_problem p = {
        .rows = rows, .depth = k, .columns = n, .input = x.operand, .weight = w.operand, .output = y.operand};
    void *workspace = head_take_workspace(head_bytes(onep_linear_cuda, head_handle, math, &p));
    if (with_bias)
        p.bias = b.operand;
    onep_linear_backward_problem q = {.rows = rows,
                                      .depth = k,
                                      .columns = n,
                                      .grad_output = dy.operand,
                                      .input = x.operand,
                                      .weight = w.operand,
                                      .grad_input = dx.operand,
                                      .grad_weight = dw.operand,
                                      .grad_bias = db.operand};
    head_arena_send();
    must_run(head_call(onep_linear_cuda, head_handle, math, &p, workspace));
    must_run(head_call(onep_linear_backward_cuda, head_handle, math, &q, workspace));
    head_arena_fetch();
    int64_t wrong[3] = {0};
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = with_bias ? field_get(&b, 0, j) : 0, size = fabs(sum);
            for (int64_t l2 = 0; l2 < k; l2++) {
                sum += field_get(&x, i, l2) * field_get(&w, j, l2);
                size += fabs(field_get(&x, i, l2) * field_get(&w, j, l2));
            }
            /* cuBLASLt may round a half before it adds the bias, and again after it */
            double first = with_bias && output < ONEP_F32 ? half_unit_of(output) * fabs(sum - field_get(&b, 0, j)) : 0;
            wrong[0] +=
                !test_close_in(output, field_get(&y, i, j), sum, size * unit * ((double)(k + 2) + split) + first);
        }
    for (int64_t i = 0; i < m; i++)
        for (int64_t l2 = 0; l2 < k; l2++) {
            double sum = 0, size = 0;
            for (int64_t j = 0; j < n; j++) {
                sum += field_get(&dy, i, j) * field_get(&w, j, l2);
                size += fabs(field_get(&dy, i, j) * field_get(&w, j, l2));
            }
            wrong[1] += !test_close_in(input, field_get(&dx, i, l2), sum, size * unit * ((double)(n + 2) + split));
        }
    for (int64_t j = 0; j < n; j++) {
        double bias = 0;
        for (int64_t i = 0; i < m; i++)
            bias += field_get(&dy, i, j);
        check_vector("grad_bias", &db, j, bias, 1e-9);
        for (int64_t l2 = 0; l2 < k; l2++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < m; i++) {
                sum += field_get(&dy, i, j) * field_get(&x, i, l2);
                size += fabs(field_get(&dy, i, j) * field_get(&x, i, l2));
            }
            wrong[2] += !test_close_in(weight, field_get(&dw, j, l2), sum, size * unit * ((double)(m + 2) + split));
        }
    }
    CHECK(wrong[0] + wrong[1] + wrong[2] == 0, "wrong: %lld outputs, %lld of grad_input, %lld of grad_weight",
          (long long)wrong[0], (long long)wrong[1], (long long)wrong[2]);
}

static void test_linear(void)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {1, 5, 3}, {7, 1, 9}, {64, 64, 64}, {65, 63, 16}, {100, 129, 17}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int l = 0; l < LAYOUTS; l++)
                check_linear((onep_type)type, (onep_type)type, type < 2 && l % 2 ? ONEP_F32 : (onep_type)type,
                             shapes[s][0], shapes[s][1], shapes[s][2], (head_layout)l, (type + l) % 2, ONEP_MATH_PLAIN);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int l = 0; l < LAYOUTS; l++)
            check_linear(ONEP_F32, ONEP_F32, ONEP_F32, shapes[s][0], shapes[s][1], shapes[s][2], (head_layout)l, l % 2,
                         ONEP_MATH_SPLIT);
    check_linear(ONEP_BF16, ONEP_F32, ONEP_F32, 30, 40, 50, COMPACT, 1, ONEP_MATH_SPLIT);
    check_linear(ONEP_F32, ONEP_F64, ONEP_F64, 30, 40, 50, COMPACT, 1, ONEP_MATH_PLAIN);
    check_linear(ONEP_F16, ONEP_BF16, ONEP_F32, 30, 40, 50, COMPACT, 0, ONEP_MATH_PLAIN);
}

/* ---- the same bits, and graphs ----------------------------------------------------------------------------------- */

static void test_determinism(void)
{
    static const int64_t shapes[][3] = {{1024, 1024, 64}, {777, 1001, 33}, {2000, 24, 16}};
    for (int s = 0; s < 3; s++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
            head_case c = head_plain_case((onep_type)type, shapes[s][0], shapes[s][1]);
            c.depth = shapes[s][2];
            head_tensors t = head_make_case(&c);
            gradient_tensors g = make_gradients(&c, &t);
            char *first = malloc(head_arena.used);
            for (int i = 0; i < (test_quick() ? 3 : 25) && first; i++) {
                head_arena_send(); /* running statistics and all */
                head_forward(head_handle, c.math, &t.problem, t.workspace, ONEP_HEAD_ALL);
                must_run(head_backward(head_handle, c.math, &g.problem, g.workspace, ONEP_HEAD_ALL));
                char *into = i ? head_arena.host : first;
                cuda_download(into, head_arena.device, head_arena.used);
                if (i && !CHECK(memcmp(first, into, head_arena.used) == 0, "run %d differs from the first", i))
                    break;
                memcpy(head_arena.host, head_arena.sent, head_arena.used);
            }
            free(first);
        }
}

/* The first use of a shape may be inside a capture; a replay sees the inputs of its time. */
static void test_graphs(void)
{
    const onep_driver *driver = cuda_driver();
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
        onep_cu_stream *captured = cuda_stream();
        onepass_handle *fresh = cuda_handle(captured);
        head_case c = head_plain_case((onep_type)type, 384, 640);
        c.depth = 48;
        head_tensors t = head_make_case(&c);
        gradient_tensors g = make_gradients(&c, &t);
        head_arena_send();
        onep_cu_graph *graph;
        onep_cu_graph_exec *exec;
        MUST(driver->cuStreamBeginCapture(captured, ONEP_CU_CAPTURE_GLOBAL));
        onepass_status status = head_forward(fresh, c.math, &t.problem, t.workspace, ONEP_HEAD_ALL);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        status = head_backward(fresh, c.math, &g.problem, g.workspace, ONEP_HEAD_ALL);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        MUST(driver->cuStreamEndCapture(captured, &graph));
        MUST(driver->cuGraphInstantiate(&exec, graph, NULL, NULL, 0));
        char *replayed = malloc(head_arena.used);
        for (int i = 0; i < 10 && replayed; i++) {
            for (int64_t row = 0; row < c.rows; row++)
                head_put(&t.input, row, 0, 0.1 * (double)(row % 7) - i);
            head_arena_send();
            MUST(driver->cuGraphLaunch(exec, captured));
            MUST(driver->cuStreamSynchronize(captured));
            cuda_download(replayed, head_arena.device, head_arena.used);
            cuda_upload(head_arena.device, head_arena.sent, head_arena.used);
            head_forward(head_handle, c.math, &t.problem, t.workspace, ONEP_HEAD_ALL);
            must_run(head_backward(head_handle, c.math, &g.problem, g.workspace, ONEP_HEAD_ALL));
            cuda_download(head_arena.host, head_arena.device, head_arena.used);
            CHECK(memcmp(head_arena.host, replayed, head_arena.used) == 0, "replay %d differs from the direct call", i);
            memcpy(head_arena.host, head_arena.sent, head_arena.used);
        }
        free(replayed);
        MUST(driver->cuGraphExecDestroy(exec));
        MUST(driver->cuGraphDestroy(graph));
        onepass_destroy(fresh);
        MUST(driver->cuStreamDestroy(captured));
    }
}

/* A batch without rows is counted, and changes nothing else. */
static void test_empty(void)
{
    head_case c = head_plain_case(ONEP_F32, 4, 8);
    head_tensors t = head_make_case(&c);
    char *mean = (char *)t.mean.host, *rstd = (char *)t.rstd.host;
    size_t bytes = 8 * sizeof(float);
    memset(head_arena.writable, 0, head_arena.used);
    memset(head_arena.writable + (t.counter - head_arena.host), 1, 8);
    memset(head_arena.writable + (mean - head_arena.host), 1, bytes);
    memset(head_arena.writable + (rstd - head_arena.host), 1, bytes);
    t.problem.rows = (onep_rows){.rank = 1, .count = 0};
    head_arena_send();
    must_run(head_forward(head_handle, c.math, &t.problem, t.workspace, ONEP_HEAD_ALL));
    head_arena_fetch();
    long long counted;
    memcpy(&counted, t.counter, 8);
    CHECK(counted == t.counted + 1, "the counter went from %lld to %lld", t.counted, counted);
    for (int j = 0; j < 8; j++) {
        float of_mean, of_rstd;
        memcpy(&of_mean, mean + (size_t)j * sizeof of_mean, sizeof of_mean);
        memcpy(&of_rstd, rstd + (size_t)j * sizeof of_rstd, sizeof of_rstd);
        CHECK(isnan(of_mean) && isnan(of_rstd), "statistics of nothing: mean %g, rstd %g", of_mean, of_rstd);
    }
}

#include "time_head_cuda.inc"

static void test_chain(void)
{
    static const double conditions[] = {0, 1, 100, 10000};
    for (int i = 0; i < 4; i++) {
        compare_with_chain(conditions[i], 128, 8192);
        compare_with_chain(conditions[i], 512, 640);
    }
}

/* Without an argument everything; else the named part. */
int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"shapes", test_shapes},    {"options", test_options}, {"hard", test_hard},
                 {"chain", test_chain},      {"whole", test_whole},     {"linear", test_linear},
                 {"bits", test_determinism}, {"graphs", test_graphs},   {"empty", test_empty}};
    const char *wanted = argc > 1 ? argv[1] : NULL;
    test_begin("head_cuda");
    head_stream = cuda_stream();
    head_handle = cuda_handle(head_stream);
    onep_cuda_products(onep_cuda_of(head_handle));
    char text[400];
    int library = onep_products_describe(text, sizeof text);
    printf("products: %s\n", text);
    const char *forced = getenv("ONEPASS_CUBLASLT");
    CHECK(!library || !forced || strcmp(forced, "none") != 0, "ONEPASS_CUBLASLT=none, and still %s", text);
    if (wanted && strcmp(wanted, "time") == 0)
        return time_all();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!wanted || strcmp(wanted, parts[i].name) == 0)
            parts[i].run();
    onepass_destroy(head_handle);
    return test_end();
}
