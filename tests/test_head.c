/*
 * Linear -> batch normalisation -> scale -> softmax, forward and backward, against an oracle in long double: every
 * level, type and option, shapes around the edges of tiles, any strides; columns with a large mean; gamma 0, constant
 * columns, ties, extreme scales; infinities and NaN in one row; finite differences; running statistics over 50 steps;
 * the same bits on any number of threads.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "head_cases.h"

/* Each shape with its reason. */
static void test_shapes(int level)
{
    static const int64_t shapes[][3] = {
        {2, 1, 1},     /* the smallest batch; a softmax of one */
        {2, 3, 5},     /* below every strip, panel and vector */
        {5, 7, 16},    /* a whole vector */
        {13, 17, 33},  /* one past a strip and a panel */
        {33, 64, 40},  /* a tail in every vector length */
        {65, 3, 31},   /* two blocks of column sums */
        {263, 4, 9},   /* just below a tile of rows */
        {265, 5, 65},  /* just above one: two tiles' statistics are merged */
        {530, 2, 11},  /* three tiles */
        {17, 257, 63}, /* a depth block and one */
        {9, 5, 257},   /* just above a tile of columns */
        {6, 2, 1500},  /* rows longer than a chunk */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int running = 0; running < 2; running++) {
                if (test_is_slow((onep_level)level) && shapes[i][0] * shapes[i][1] * shapes[i][2] > 20000 &&
                    type != (int)(i % 4))
                    continue;
                head_case c = head_case_plain((onep_type)type, shapes[i][0], shapes[i][1], shapes[i][2]);
                c.statistics = (onepass_statistics)running;
                c.scale_each = (int)(i % 2);
                for (int t = 0; t < LAYER_TENSORS; t++)
                    c.guard[t] = (case_guard)((i + (size_t)t) % CASE_GUARDS);
                head_run(&c, (onep_level)level, 100 + i);
            }
}

static void test_options(int level, test_random *random)
{
    int runs = 200 / test_one_in(5);
    for (int i = 0; i < runs; i++) {
        head_case c = head_case_plain(ONEP_F32, 2 + test_random_below(random, 40), 1 + test_random_below(random, 30),
                                      1 + test_random_below(random, 60));
        head_case_shuffle(&c, random);
        if (i % 4 == 0) /* nothing is kept for backward: the product is built elsewhere */
            c.present &= ~LAYER_BIT(LAYER_PRODUCT);
        head_run(&c, (onep_level)level, 1000 + (uint64_t)i);
    }
}

/* Running statistics and a half output that is not kept: panels of the product in the workspace, more than one. */
static void test_panels(int level)
{
    for (int running = 0; running < 2; running++) {
        head_case c = head_case_plain(ONEP_BF16, 1100, 3, 21);
        c.statistics = (onepass_statistics)running;
        c.present &= ~LAYER_BIT(LAYER_PRODUCT);
        c.threads = 3;
        head_run(&c, (onep_level)level, 5);
    }
}

/* Means up to 10^4 deviations away: the error grows with them, and no faster. */
static void test_conditions(int level)
{
    static const double ratios[] = {1, 1e2, 1e4};
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
        for (int i = 0; i < 3; i++) {
            head_case c = head_case_plain((onep_type)type, 300, 6, 20);
            if (test_is_slow((onep_level)level))
                c.rows = 60;
            c.data = HEAD_MEANS;
            c.amount = type == ONEP_F16 || type == ONEP_BF16 ? ratios[i] * 1.5 : ratios[i];
            head_run(&c, (onep_level)level, 20 + (uint64_t)i);
        }
}

/*
 * q = base + j k is exact, its mean is not: what rounding takes from the mean (up to a sixth of the deviation here)
 * must be in neither the variance nor z. The bounds of head_run cannot see it, as they allow for the rounding of q. (In
 * fp64 there is no wider type that could hold the mean.)
 */
static void test_exact_product(int level)
{
    enum { COUNT = 3, FEATURES = 4 };
    static op_case c;
    static const double steps[COUNT] = {0, 1, 1};
    const double base = 0x1p21;
    const long double allowed = 2e-6L;
    case_begin(&c, "head");
    c.extents['B' - 'A'] = COUNT;
    c.extents['K' - 'A'] = 2;
    c.extents['N' - 'A'] = FEATURES;
    c.options[HEAD_MOMENTUM] = 0;
    for (int i = HEAD_BIAS; i <= HEAD_COUNTER; i++)
        c.argument[i].given = 0;
    CHECK(case_place(&c), "no memory");
    for (int i = 0; i < COUNT; i++) {
        case_put(&c, HEAD_INPUT, 2 * i, 1);
        case_put(&c, HEAD_INPUT, 2 * i + 1, steps[i]);
    }
    for (int j = 0; j < FEATURES; j++) {
        case_put(&c, HEAD_WEIGHT, 2 * j, base);
        case_put(&c, HEAD_WEIGHT, 2 * j + 1, j + 1);
    }
    case_remember(&c);
    test_context("an exact product, level %s", onep_level_name((onep_level)level));
    onepass_handle *handle = test_handle((onep_level)level, 1);
    onepass_status status;
    case_call(&c, handle, 0xff, &test_judge, &status);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    for (int i = 0; i < COUNT; i++) {
        long double z[FEATURES], sum = 0;
        for (int j = 0; j < FEATURES; j++) { /* deviations of 0, s, s are -2s/3, s/3, s/3 */
            long double s = j + 1, rstd = 1 / sqrtl(2 * s * s / 9 + 1e-5L);
            double got = case_get(&c, HEAD_RSTD, j);
            CHECK(case_get(&c, HEAD_PRODUCT, i * FEATURES + j) == base + steps[i] * (j + 1),
                  "the product is not exact");
            CHECK(test_close(got, rstd, allowed * rstd), "rstd[%d]: %.17g, expected %.17Lg", j, got, rstd);
            z[j] = ((long double)steps[i] - 2.0L / 3) * s * rstd;
            sum += expl(z[j]);
        }
        for (int j = 0; j < FEATURES; j++) {
            double got = case_get(&c, HEAD_OUTPUT, i * FEATURES + j);
            CHECK(test_close(got, expl(z[j]) / sum, allowed), "output[%d, %d]: %.17g, expected %.17Lg", i, j, got,
                  expl(z[j]) / sum);
        }
    }
    onepass_destroy(handle);
}

static void test_extremes(int level)
{
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
        for (int running = 0; running < 2; running++) {
            head_case base = head_case_plain((onep_type)type, 11, 9, 35);
            base.statistics = (onepass_statistics)running;
            head_case c = base;
            c.data = HEAD_GAMMA_IS;
            head_run(&c, (onep_level)level, 30);
            c = base;
            c.data = HEAD_CONSTANT_COLUMNS; /* variance 0: eps alone, and a bias that must cancel */
            head_run(&c, (onep_level)level, 31);
            c = base;
            c.data = HEAD_TIES;
            c.present &= ~(LAYER_BIT(LAYER_GAMMA) | LAYER_BIT(LAYER_BETA) | LAYER_BIT(LAYER_GRAD_GAMMA) |
                           LAYER_BIT(LAYER_GRAD_BETA));
            if (!running) { /* every feature alike: the output is exactly 1 / N */
                head_run(&c, (onep_level)level, 32);
                double first = head_result(HEAD_OUTPUT, 0);
                for (int64_t i = 1; i < c.rows * c.columns; i++)
                    CHECK(head_result(HEAD_OUTPUT, i) == first, "ties: [%" PRId64 "] is not the first", i);
            }
            c = base;
            c.data = HEAD_SCALE_IS;
            head_run(&c, (onep_level)level, 33);
            for (int64_t i = 1; i < c.rows * c.columns; i++)
                CHECK(head_result(HEAD_OUTPUT, i) == head_result(HEAD_OUTPUT, 0),
                      "scale 0: [%" PRId64 "] is not the first", i);
            c.amount = 1000; /* nearly one-hot */
            c.no_backward = 1;
            head_run(&c, (onep_level)level, 34);
            for (int64_t i = 0; i < c.rows * c.columns; i++)
                CHECK(head_result(HEAD_OUTPUT, i) >= 0 && head_result(HEAD_OUTPUT, i) <= 1,
                      "scale 1000: [%" PRId64 "] is no probability", i);
        }
}

/* In running mode a bad row spoils itself alone; in batch mode everything, and running statistics as in PyTorch. */
static void test_special(int level)
{
    static const double spoils[] = {INFINITY, -INFINITY, NAN, 1e25 /* its square is too large for fp32 */};
    for (int i = 0; i < 4; i++)
        for (int running = 0; running < 2; running++) {
            head_case c = head_case_plain(ONEP_F32, 9, 5, 21);
            c.statistics = (onepass_statistics)running;
            c.spoil = spoils[i];
            c.spoil_row = 4;
            c.no_backward = 1;
            head_run(&c, (onep_level)level, 40 + (uint64_t)i);
            int64_t bad = 0;
            for (int64_t k = 0; k < c.rows * c.columns; k++)
                bad += isnan(head_result(HEAD_OUTPUT, k));
            int64_t most = isfinite(spoils[i]) ? 0 : running ? c.columns : c.rows * c.columns;
            CHECK(running ? bad <= most : bad == most, "%" PRId64 " elements are NaN", bad);
            double mean = head_result(HEAD_RUNNING_MEAN, 0);
            if (!running && !isfinite(spoils[i]))
                CHECK(isnan(spoils[i]) ? isnan(mean) : isinf(mean), "running_mean is %g", mean);
        }
}

/* ---- gradients by finite differences ----------------------------------------------------------------------------- */

enum { ROWS = 6, DEPTH = 4, COLUMNS = 5 };

typedef struct small {
    double input[ROWS * DEPTH], weight[COLUMNS * DEPTH], bias[COLUMNS], gamma[COLUMNS], beta[COLUMNS], scale[COLUMNS];
    double running_mean[COLUMNS], running_var[COLUMNS];
    double output[ROWS * COLUMNS], product[ROWS * COLUMNS], mean[COLUMNS], rstd[COLUMNS];
} small;

static onepass_tensor vector(double *data, int64_t *shape)
{
    return (onepass_tensor){.data = data, .device = {ONEPASS_CPU, 0}, .ndim = 1, .dtype = ONEPASS_F64, .shape = shape};
}

static onepass_tensor matrix(double *data, int64_t *shape)
{
    onepass_tensor t = vector(data, shape);
    t.ndim = 2;
    return t;
}

static int64_t of_columns[] = {COLUMNS}, of_input[] = {ROWS, DEPTH}, of_weight[] = {COLUMNS, DEPTH},
               of_output[] = {ROWS, COLUMNS};

/* The loss sum g output; with `gradients` also its derivatives (in the order of small's first six). */
static double loss(onepass_handle *handle, small *s, onepass_statistics statistics, double *g, small *gradients)
{
    onepass_tensor input = matrix(s->input, of_input), weight = matrix(s->weight, of_weight);
    onepass_tensor bias = vector(s->bias, of_columns), gamma = vector(s->gamma, of_columns);
    onepass_tensor beta = vector(s->beta, of_columns), scale = vector(s->scale, of_columns);
    onepass_tensor running_mean = vector(s->running_mean, of_columns);
    onepass_tensor running_var = vector(s->running_var, of_columns);
    onepass_tensor output = matrix(s->output, of_output), product = matrix(s->product, of_output);
    onepass_tensor mean = vector(s->mean, of_columns), rstd = vector(s->rstd, of_columns);
    int running = statistics == ONEPASS_RUNNING_STATISTICS;
    size_t bytes = (size_t)1 << 24;
    onepass_head_options options = {.size = sizeof options,
                                    .statistics = statistics,
                                    .eps = 1e-5,
                                    .bias = &bias,
                                    .gamma = &gamma,
                                    .beta = &beta,
                                    .scale = &scale,
                                    .running_mean = running ? &running_mean : NULL,
                                    .running_var = running ? &running_var : NULL,
                                    .workspace = malloc(bytes),
                                    .workspace_size = bytes};
    CHECK(onepass_head(handle, &input, &weight, &options, &output, &product, &mean, &rstd) == ONEPASS_OK, "%s",
          onepass_last_error());
    double sum = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        sum += g[i] * s->output[i];
    if (gradients) {
        onepass_tensor upstream = matrix(g, of_output);
        onepass_tensor to[] = {matrix(gradients->input, of_input),  matrix(gradients->weight, of_weight),
                               vector(gradients->bias, of_columns), vector(gradients->gamma, of_columns),
                               vector(gradients->beta, of_columns), vector(gradients->scale, of_columns)};
        onepass_head_gradients wanted = {sizeof wanted, &to[0], &to[1], &to[2], &to[3], &to[4], &to[5]};
        CHECK(onepass_head_backward(handle, &upstream, &output, &input, &weight, &product, &mean, &rstd, &options,
                                    &wanted) == ONEPASS_OK,
              "%s", onepass_last_error());
    }
    free(options.workspace);
    return sum;
}

static void test_differences(int level, test_random *random)
{
    static const char *const names[] = {"input", "weight", "bias", "gamma", "beta", "scale"};
    static const size_t counts[] = {ROWS * DEPTH, COLUMNS * DEPTH, COLUMNS, COLUMNS, COLUMNS, COLUMNS};
    onepass_handle *handle = test_handle((onep_level)level, 1);
    for (int running = 0; running < 2; running++) {
        test_context("finite differences, level %s, %s statistics", onep_level_name((onep_level)level),
                     running ? "running" : "batch");
        small s, gradients;
        double g[ROWS * COLUMNS];
        double *values = (double *)&s;
        for (size_t i = 0; i < sizeof s / sizeof(double); i++)
            values[i] = test_random_between(random, 0.2, 1.8) * (i % 3 == 0 ? -1 : 1);
        for (int j = 0; j < COLUMNS; j++)
            s.running_var[j] = fabs(s.running_var[j]);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            g[i] = test_random_between(random, -1, 1);
        loss(handle, &s, (onepass_statistics)running, g, &gradients);
        double *at = (double *)&s, *analytic = (double *)&gradients;
        for (int t = 0; t < 6; t++)
            for (size_t i = 0; i < counts[t]; i++, at++, analytic++) {
                double kept = *at, step = 1e-5;
                *at = kept + step;
                double above = loss(handle, &s, (onepass_statistics)running, g, NULL);
                *at = kept - step;
                double below = loss(handle, &s, (onepass_statistics)running, g, NULL);
                *at = kept;
                double numeric = (above - below) / (2 * step);
                CHECK(fabs(numeric - *analytic) <= 1e-7 + 1e-6 * fabs(numeric), "%s[%zu]: %.10g, by differences %.10g",
                      names[t], i, *analytic, numeric);
            }
    }
    onepass_destroy(handle);
}

/* ---- fifty steps ------------------------------------------------------------------------------------------------- */

static void test_steps(int level)
{
    enum { BATCH = 7, STEPS = 50 };
    static float input[BATCH * DEPTH], weight[COLUMNS * DEPTH], bias[COLUMNS], output[BATCH * COLUMNS];
    static float running_mean[2][COLUMNS], running_var[2][COLUMNS];
    int64_t of_x[] = {BATCH, DEPTH}, of_y[] = {BATCH, COLUMNS};
    test_random random = test_random_stream(70);
    onepass_handle *handle = test_handle((onep_level)level, 2);
    size_t bytes = (size_t)1 << 24;
    void *memory = malloc(bytes);
    for (int cumulative = 0; cumulative < 2; cumulative++) {
        test_context("%d steps, level %s, %s", (int)STEPS, onep_level_name((onep_level)level),
                     cumulative ? "cumulative" : "momentum 0.1");
        long double mean[COLUMNS] = {0}, var[COLUMNS];
        int64_t counter = 0;
        for (int j = 0; j < COLUMNS; j++) {
            running_mean[0][j] = 0;
            running_var[0][j] = 1;
            var[j] = 1;
            bias[j] = (float)test_random_between(&random, -3, 3);
        }
        for (int i = 0; i < COLUMNS * DEPTH; i++)
            weight[i] = (float)test_random_between(&random, -1, 1);
        for (int step = 1; step <= STEPS; step++) {
            for (int i = 0; i < BATCH * DEPTH; i++)
                input[i] = (float)test_random_between(&random, -1, 3);
            onepass_tensor t[] = {
                {input, {ONEPASS_CPU, 0}, 2, ONEPASS_F32, of_x, NULL, 0},
                {weight, {ONEPASS_CPU, 0}, 2, ONEPASS_F32, of_weight, NULL, 0},
                {bias, {ONEPASS_CPU, 0}, 1, ONEPASS_F32, of_columns, NULL, 0},
                {running_mean[0], {ONEPASS_CPU, 0}, 1, ONEPASS_F32, of_columns, NULL, 0},
                {running_var[0], {ONEPASS_CPU, 0}, 1, ONEPASS_F32, of_columns, NULL, 0},
                {&counter, {ONEPASS_CPU, 0}, 0, ONEPASS_I64, NULL, NULL, 0},
                {output, {ONEPASS_CPU, 0}, 2, ONEPASS_F32, of_y, NULL, 0},
            };
            onepass_head_options options = {.size = sizeof options,
                                            .cumulative = cumulative,
                                            .eps = 1e-5,
                                            .momentum = cumulative ? 0 : 0.1,
                                            .bias = &t[2],
                                            .running_mean = &t[3],
                                            .running_var = &t[4],
                                            .batches_tracked = &t[5],
                                            .workspace = memory,
                                            .workspace_size = bytes};
            if (!CHECK(onepass_head(handle, &t[0], &t[1], &options, &t[6], NULL, NULL, NULL) == ONEPASS_OK, "%s",
                       onepass_last_error()))
                break;
            long double factor = cumulative ? 1.0L / step : 0.1L;
            for (int j = 0; j < COLUMNS; j++) {
                long double y[BATCH], sum = 0, m2 = 0;
                for (int i = 0; i < BATCH; i++) {
                    y[i] = bias[j];
                    for (int k = 0; k < DEPTH; k++)
                        y[i] += (long double)input[i * DEPTH + k] * (long double)weight[j * DEPTH + k];
                    sum += y[i];
                }
                for (int i = 0; i < BATCH; i++)
                    m2 += (y[i] - sum / BATCH) * (y[i] - sum / BATCH);
                mean[j] = (1 - factor) * mean[j] + factor * sum / BATCH;
                var[j] = (1 - factor) * var[j] + factor * m2 / (BATCH - 1);
            }
            CHECK(counter == step, "counter %" PRId64 " after step %d", counter, step);
        }
        for (int j = 0; j < COLUMNS; j++) {
            CHECK(test_close((double)running_mean[0][j], mean[j], 2e-6L), "running_mean[%d]: %.9g, expected %.9Lg", j,
                  (double)running_mean[0][j], mean[j]);
            CHECK(test_close((double)running_var[0][j], var[j], 2e-6L * var[j]),
                  "running_var[%d]: %.9g, expected %.9Lg", j, (double)running_var[0][j], var[j]);
        }
    }
    free(memory);
    onepass_destroy(handle);
}

/* ---- large batches, threads -------------------------------------------------------------------------------------- */

/* More rows than the limits other libraries have. */
static void test_many_rows(int level)
{
    head_case c = head_case_plain(ONEP_F32, 131073, 1, 3);
    c.threads = 2;
    head_run(&c, (onep_level)level, 80);
}

static void test_threads(int level)
{
    static const char *const products[] = {"none", "openblas", "blis"};
    for (int p = 0; p < 3; p++) {
        onepass_handle *handle = NULL;
        onepass_config config = {.size = sizeof config, .blas = products[p]};
        if (onepass_create(&config, &handle) != ONEPASS_OK) {
            test_left_out("%s: not on this machine", products[p]);
            continue;
        }
        onepass_destroy(handle);
        for (int type = ONEP_BF16; type <= ONEP_F64; type++) {
            uint64_t first = 0;
            for (int threads = 1; threads <= 4; threads++) {
                head_case c = head_case_plain((onep_type)type, 280, 30, 140);
                c.threads = threads;
                c.blas = products[p];
                head_run(&c, (onep_level)level, 90);
                if (threads == 1)
                    first = head_digest();
                CHECK(head_digest() == first, "%d threads give other bits than one", threads);
            }
        }
    }
}

int main(void)
{
    test_begin("test_head");
    test_print_levels();
    test_random random = test_random_stream(1);
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!test_covers((onep_level)level))
            continue;
        test_shapes(level);
        test_options(level, &random);
        test_conditions(level);
        test_exact_product(level);
        test_extremes(level);
        test_special(level);
        test_differences(level, &random);
        test_steps(level);
        if (level != ONEP_REF && level != ONEP_SCALAR)
            test_panels(level);
    }
    test_many_rows((int)onep_best_level());
    test_threads((int)onep_best_level());
    return test_end();
}
