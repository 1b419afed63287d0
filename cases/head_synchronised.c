/*
 * Cases of the head over several ranks: what a rank computes, from what it is given. What other ranks would have sent
 * is drawn. The errors are those of head.c; what is merged in double is off by a few units of double.
 */
#include <math.h>
#include <stdlib.h>

#include "cases/head_model.h"
#include "cases/linear.h"

int head_at_synchronised(const op_case *c, int forward)
{
    static const int of_synchronised[HEAD_ARGUMENTS] = {
        [HEAD_INPUT] = -1,
        [HEAD_WEIGHT] = -1,
        [HEAD_BIAS] = HEAD_Y_BIAS,
        [HEAD_GAMMA] = HEAD_Y_GAMMA,
        [HEAD_BETA] = HEAD_Y_BETA,
        [HEAD_SCALE] = HEAD_Y_SCALE,
        [HEAD_RUNNING_MEAN] = HEAD_Y_RUNNING_MEAN,
        [HEAD_RUNNING_VAR] = HEAD_Y_RUNNING_VAR,
        [HEAD_COUNTER] = HEAD_Y_COUNTER,
        [HEAD_PREPARED] = -1,
        [HEAD_OUTPUT] = HEAD_Y_OUTPUT,
        [HEAD_PRODUCT] = HEAD_Y_PRODUCT,
        [HEAD_MEAN] = HEAD_Y_MEAN,
        [HEAD_RSTD] = HEAD_Y_RSTD,
    };
    if (c->definition == &case_head_synchronised)
        return of_synchronised[forward];
    if (c->definition == &case_head_backward_sums)
        return forward == HEAD_PRODUCT ? HEAD_D_PRODUCT : -1;
    return forward == HEAD_INPUT ? HEAD_S_INPUT : forward == HEAD_WEIGHT ? HEAD_S_WEIGHT : -1;
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

enum { RANKS_STREAM = 96, PRODUCT_STREAM, OUTPUT_STREAM, GRAD_OUTPUT_STREAM };

void head_fill_ranks(op_case *c, int counts, int first, int second)
{
    case_random random = case_random_stream(c->seed, RANKS_STREAM);
    int is_m2 = c->definition == &case_head_synchronised;
    int64_t ranks = case_extent(c, 'R'), mine = case_extent(c, 'B') + 2;
    double total = 0;
    for (int64_t rank = 0; rank < ranks; rank++) {
        int has_none = case_random_below(&random, 3) == 0;
        case_put(c, counts, rank, rank == 0 ? (double)mine : has_none ? 0 : (double)case_random_below(&random, 20));
    }
    for (int64_t rank = 0; rank < ranks; rank++)
        total += case_get(c, counts, rank);
    for (int64_t rank = 0; rank < ranks && total < (double)mine; rank++) /* they share one place in memory */
        case_put(c, counts, rank, (double)mine);
    for (int64_t i = 0; i < c->argument[first].count; i++) {
        double a = case_random_normal(&random), b = case_random_normal(&random);
        case_put(c, first, i, a + (c->family == HEAD_MEANS ? c->amount : 0));
        case_put(c, second, i, is_m2 ? 3 * b * b : b);
    }
}

/* There is a rank, and what is sent is double. */
void head_settle_ranks(op_case *c, int first, int last)
{
    if (case_extent(c, 'R') == 0)
        c->extents['R' - 'A'] = 1;
    for (int i = first; i <= last; i++)
        c->argument[i].dtype = case_f64;
}

static void fill_normal(op_case *c, int argument, int stream)
{
    case_random random = case_random_stream(c->seed, (uint64_t)stream);
    for (int64_t i = 0; i < c->argument[argument].count; i++)
        case_put(c, argument, i, case_random_normal(&random) + (c->family == HEAD_MEANS ? c->amount : 0));
}

static void begin_any(op_case *c)
{
    c->extents['B' - 'A'] = 4;
    c->extents['K' - 'A'] = 3;
    c->extents['N' - 'A'] = 5;
    c->extents['R' - 'A'] = 3;
    for (int i = 0; i < c->arguments; i++)
        c->argument[i].given = 1;
    c->definition->settle(c); /* what is sent is double */
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static void settle_statistics(op_case *c)
{
    c->argument[HEAD_S_PRODUCT].dtype =
        case_computed(case_promote(c->argument[HEAD_S_INPUT].dtype, c->argument[HEAD_S_WEIGHT].dtype));
    c->argument[HEAD_S_MEAN].dtype = c->argument[HEAD_S_M2].dtype = case_f64;
}

static void generate_statistics(op_case *c)
{
    head_fill(c, HEAD_S_INPUT, HEAD_INPUT);
    head_fill(c, HEAD_S_WEIGHT, HEAD_WEIGHT);
}

static int exact_statistics(op_case *c, case_arithmetic arithmetic)
{
    head_model m;
    if (!head_model_begin(&m, c))
        return 0;
    head_model_product(&m, arithmetic);
    for (int64_t k = 0; k < m.rows * m.columns; k++)
        head_expect(c, HEAD_S_PRODUCT, k, m.q[k], m.q_error[k]);
    for (int64_t j = 0; j < m.columns; j++) {
        long double m2 = 0, m2_error = 0;
        if (m.rows > 0)
            head_model_batch(&m, j, &m2, &m2_error);
        head_expect(c, HEAD_S_MEAN, j, m.mean[j], m.mean_error[j]);
        head_expect(c, HEAD_S_M2, j, m2, m2_error);
    }
    free(m.memory);
    return 1;
}

static const char *const statistics_names[] = {"head_statistics", NULL};
const case_definition case_head_statistics = {.names = statistics_names,
                                              .begin = begin_any,
                                              .families = HEAD_DATA_KINDS,
                                              .settle = settle_statistics,
                                              .generate = generate_statistics,
                                              .exact = exact_statistics};

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void begin_synchronised(op_case *c)
{
    begin_any(c);
    c->argument[HEAD_Y_SCALE].is_one = 1;
    c->argument[HEAD_Y_COUNTER].dtype = case_i64;
    c->options[HEAD_EPS] = 1e-5;
    c->options[HEAD_MOMENTUM] = 0.1;
}

static void settle_synchronised(op_case *c)
{
    case_argument *a = c->argument;
    a[HEAD_Y_RUNNING_VAR].given = a[HEAD_Y_RUNNING_MEAN].given;
    if (c->options[HEAD_CUMULATIVE] != 0) {
        c->options[HEAD_MOMENTUM] = 0;
        a[HEAD_Y_COUNTER].given = 1;
    }
    a[HEAD_Y_PRODUCT].dtype = case_computed(a[HEAD_Y_PRODUCT].dtype);
    head_hold(c, HEAD_Y_MEAN, a[HEAD_Y_PRODUCT].dtype);
    head_hold(c, HEAD_Y_RSTD, a[HEAD_Y_PRODUCT].dtype);
    head_settle_ranks(c, HEAD_Y_COUNTS, HEAD_Y_M2S);
}

static void generate_synchronised(op_case *c)
{
    for (int i = HEAD_BIAS; i <= HEAD_COUNTER; i++)
        head_fill(c, head_at_synchronised(c, i), i);
    fill_normal(c, HEAD_Y_PRODUCT, PRODUCT_STREAM);
    head_fill_ranks(c, HEAD_Y_COUNTS, HEAD_Y_MEANS, HEAD_Y_M2S);
}

/* mean = sum of (rows / all rows) its mean, M2 = sum of (its M2 + rows (its mean - mean)^2), in double. */
static void merge(head_model *m, int64_t j, long double *m2, long double *m2_error)
{
    const op_case *c = m->c;
    const long double u = 0x1p-53L;
    long double sum = 0, size = 0, off_sum = 0;
    int64_t ranks = case_extent(c, 'R');
    for (int64_t rank = 0; rank < ranks; rank++) {
        long double rows = case_was(c, HEAD_Y_COUNTS, rank), mean = case_was(c, HEAD_Y_MEANS, rank * m->columns + j);
        sum += rows * mean;
        size += rows * fabsl(mean);
    }
    m->mean[j] = sum / m->batch_rows;
    m->mean_error[j] = 4 * u * size / m->batch_rows;
    *m2 = *m2_error = 0;
    for (int64_t rank = 0; rank < ranks; rank++) {
        long double rows = case_was(c, HEAD_Y_COUNTS, rank);
        long double off = (long double)case_was(c, HEAD_Y_MEANS, rank * m->columns + j) - m->mean[j];
        long double part = rows > 0 ? (long double)case_was(c, HEAD_Y_M2S, rank * m->columns + j) : 0;
        *m2 += part + rows * off * off;
        off_sum += rows * fabsl(off);
        *m2_error += 6 * u * (part + rows * off * off);
    }
    *m2_error += 2 * off_sum * m->mean_error[j] + m->batch_rows * m->mean_error[j] * m->mean_error[j];
    long double bias = c->argument[HEAD_Y_BIAS].given ? (long double)case_was(c, HEAD_Y_BIAS, j) : 0;
    m->mean[j] += bias - bias; /* a bias that is not finite does not cancel */
    m->var[j] = *m2 / m->batch_rows;
    m->var_error[j] = *m2_error / m->batch_rows;
}

static int exact_synchronised(op_case *c, case_arithmetic arithmetic)
{
    head_model m;
    (void)arithmetic; /* there is no product */
    if (!head_model_begin(&m, c))
        return 0;
    m.batch_rows = 0;
    for (int64_t rank = 0; rank < case_extent(c, 'R'); rank++)
        m.batch_rows += (long double)case_was(c, HEAD_Y_COUNTS, rank);
    for (int64_t k = 0; k < m.rows * m.columns; k++)
        m.q[k] = case_was(c, HEAD_Y_PRODUCT, k);
    for (int64_t j = 0; j < m.columns; j++) {
        long double m2, m2_error;
        merge(&m, j, &m2, &m2_error);
        head_expect_running(c, &m, j, m2, m2_error);
        head_model_rstd(&m, j, c->options[HEAD_EPS]);
        head_expect(c, HEAD_Y_MEAN, j, m.mean[j], m.mean_error[j]);
        head_expect(c, HEAD_Y_RSTD, j, m.rstd[j], m.rstd_error[j]);
    }
    for (int64_t i = 0; i < m.rows; i++) {
        long double *row = &c->argument[HEAD_Y_OUTPUT].expected[i * m.columns];
        long double *row_error = &c->argument[HEAD_Y_OUTPUT].allowed[i * m.columns];
        head_model_row(&m, i, row, row_error);
        for (int64_t j = 0; j < m.columns; j++)
            head_expect(c, HEAD_Y_OUTPUT, i * m.columns + j, row[j], row_error[j]);
    }
    if (c->argument[HEAD_Y_COUNTER].given)
        case_expected(c, HEAD_Y_COUNTER, 0, case_was(c, HEAD_Y_COUNTER, 0) + 1, 0);
    free(m.memory);
    return 1;
}

static const char *const synchronised_names[] = {"head_synchronised", NULL};
const case_definition case_head_synchronised = {.names = synchronised_names,
                                                .begin = begin_synchronised,
                                                .families = HEAD_DATA_KINDS,
                                                .settle = settle_synchronised,
                                                .generate = generate_synchronised,
                                                .exact = exact_synchronised};

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static void settle_sums(op_case *c)
{
    case_argument *a = c->argument;
    a[HEAD_D_PRODUCT].dtype = case_computed(a[HEAD_D_PRODUCT].dtype);
    head_hold(c, HEAD_D_MEAN, a[HEAD_D_PRODUCT].dtype);
    head_hold(c, HEAD_D_RSTD, a[HEAD_D_PRODUCT].dtype);
    a[HEAD_D_S0].dtype = a[HEAD_D_S1].dtype = case_f64;
}

/* Outputs between 0 and 1: what is summed need not add up to anything. */
static void generate_sums(op_case *c)
{
    fill_normal(c, HEAD_D_PRODUCT, PRODUCT_STREAM);
    fill_normal(c, HEAD_D_GRAD_OUTPUT, GRAD_OUTPUT_STREAM);
    case_random random = case_random_stream(c->seed, OUTPUT_STREAM);
    for (int64_t i = 0; i < c->argument[HEAD_D_OUTPUT].count; i++)
        case_put(c, HEAD_D_OUTPUT, i, case_random_unit(&random) / 4);
    for (int64_t j = 0; j < case_extent(c, 'N'); j++) {
        case_put(c, HEAD_D_MEAN, j, case_random_normal(&random) / 2 + (c->family == HEAD_MEANS ? c->amount : 0));
        case_put(c, HEAD_D_RSTD, j, 0.5 + case_random_unit(&random));
    }
}

static int exact_sums(op_case *c, case_arithmetic arithmetic)
{
    int64_t rows = case_extent(c, 'B'), columns = case_extent(c, 'N');
    (void)arithmetic;
    head_slope s = {.dz = calloc((size_t)(2 * rows * columns) + 1, sizeof *s.dz)};
    if (!s.dz)
        return 0;
    s.error = s.dz + rows * columns;
    head_exact_dz(c, HEAD_D_GRAD_OUTPUT, HEAD_D_OUTPUT, &s);
    for (int64_t j = 0; j < columns; j++) {
        head_sums sums = head_exact_sums(c, &s, HEAD_D_PRODUCT, HEAD_D_MEAN, HEAD_D_RSTD, j);
        head_expect(c, HEAD_D_S0, j, sums.s0, sums.s0_error);
        head_expect(c, HEAD_D_S1, j, sums.s1, sums.s1_error);
    }
    free(s.dz);
    return 1;
}

static const char *const sums_names[] = {"head_backward_sums", NULL};
const case_definition case_head_backward_sums = {.names = sums_names,
                                                 .begin = begin_any,
                                                 .families = HEAD_DATA_KINDS,
                                                 .settle = settle_sums,
                                                 .generate = generate_sums,
                                                 .exact = exact_sums};
