/*
 * See head.h. The error model: a product of depth K is off by what linear.h says; everything after it is followed to
 * first order, and the bound is doubled for what is left out. Backward is judged from what forward stored, which is its
 * input.
 */
#include "cases/head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/head_model.h"
#include "cases/linear.h"

#define SAFETY       2
#define SUM_ERROR(n) (4 + 2 * sqrtl((long double)(n))) /* roundoffs, of the sum of magnitudes */

/* ---- arguments of both calls ------------------------------------------------------------------------------------- */

static int is_backward(const op_case *c)
{
    return c->definition == &case_head_backward;
}

/* Whether it is head_backward_synchronised, which has the same arguments and more. */
static int is_synchronised(const op_case *c)
{
    return c->arguments > HEAD_B_ARGUMENTS;
}

/* The argument of the backward call that is this one of the forward call; -1: it has none. */
static int in_backward(int forward)
{
    switch (forward) {
    case HEAD_INPUT:
        return HEAD_B_INPUT;
    case HEAD_WEIGHT:
        return HEAD_B_WEIGHT;
    case HEAD_BIAS:
        return HEAD_B_BIAS;
    case HEAD_GAMMA:
        return HEAD_B_GAMMA;
    case HEAD_BETA:
        return HEAD_B_BETA;
    case HEAD_SCALE:
        return HEAD_B_SCALE;
    case HEAD_OUTPUT:
        return HEAD_B_OUTPUT;
    case HEAD_PRODUCT:
        return HEAD_B_PRODUCT;
    case HEAD_MEAN:
        return HEAD_B_MEAN;
    case HEAD_RSTD:
        return HEAD_B_RSTD;
    default:
        return -1;
    }
}

/* The argument of this case that the forward call knows under that number. */
int head_at(const op_case *c, int forward)
{
    if (is_backward(c))
        return in_backward(forward);
    return c->definition == &case_head ? forward : head_at_synchronised(c, forward);
}

static int64_t row_count(const op_case *c)
{
    return case_extent(c, 'B');
}

static onepass_dtype promoted_of(const op_case *c)
{
    if (head_at(c, HEAD_INPUT) < 0) /* the product is there instead */
        return c->argument[head_at(c, HEAD_PRODUCT)].dtype;
    return case_promote(c->argument[head_at(c, HEAD_INPUT)].dtype, c->argument[head_at(c, HEAD_WEIGHT)].dtype);
}

static int is_running(const op_case *c)
{
    return c->option_count > 0 && (int)c->options[HEAD_STATISTICS] == ONEPASS_RUNNING_STATISTICS;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static void fill_weight(op_case *c, int argument, case_random *random)
{
    int64_t depth = case_extent(c, 'K'), columns = case_extent(c, 'N');
    for (int64_t j = 0; j < columns; j++)
        for (int64_t k = 0; k < depth; k++) {
            double x = case_random_normal(random) / sqrt((double)depth);
            if (c->family == HEAD_TIES && j > 0)
                x = case_get(c, argument, k);
            if (c->family == HEAD_CONSTANT_COLUMNS && j % 3 == 0)
                x = 0;
            if (c->family == HEAD_MEANS && depth > 1 && k == 0)
                x = c->amount; /* beside a first input that is always 1 */
            case_put(c, argument, j * depth + k, x);
        }
}

/* One number of a tensor whose numbers know nothing of each other. */
static double draw(const op_case *c, int forward, int64_t index, case_random *random)
{
    double normal = case_random_normal(random);
    switch (forward) {
    case HEAD_INPUT:
        return c->family == HEAD_MEANS && case_extent(c, 'K') > 1 && index % case_extent(c, 'K') == 0 ? 1 : normal;
    case HEAD_GAMMA:
        return c->family == HEAD_GAMMA_IS ? c->amount : normal;
    case HEAD_SCALE:
        return c->family == HEAD_SCALE_IS ? c->amount : 1 + normal;
    case HEAD_RUNNING_MEAN:
        return normal + (c->family == HEAD_MEANS ? c->amount : 0);
    case HEAD_RUNNING_VAR:
        return 0.5 + case_random_unit(random);
    case HEAD_COUNTER:
        return 4;
    default:
        return normal;
    }
}

enum { GRAD_OUTPUT_STREAM = 64 };

/* The same seed gives a tensor the same numbers in both calls. */
void head_fill(op_case *c, int argument, int forward)
{
    case_random random = case_random_stream(c->seed, 1 + (uint64_t)forward);
    const case_argument *a = &c->argument[argument];
    if (!a->given)
        return;
    if (forward == HEAD_WEIGHT) {
        fill_weight(c, argument, &random);
        return;
    }
    for (int64_t i = 0; i < a->count; i++)
        case_put(c, argument, i, draw(c, forward, i, &random));
}

static void generate(op_case *c)
{
    for (int i = HEAD_INPUT; i <= HEAD_COUNTER; i++)
        head_fill(c, i, i);
}

void head_fill_grad_output(op_case *c)
{
    head_fill(c, HEAD_GRAD_OUTPUT, GRAD_OUTPUT_STREAM);
}

/* ---- the model of forward ---------------------------------------------------------------------------------------- */

int head_model_begin(head_model *m, const op_case *c)
{
    *m = (head_model){.c = c,
                      .rows = row_count(c),
                      .depth = case_extent(c, 'K'),
                      .columns = case_extent(c, 'N'),
                      .u = case_roundoff(promoted_of(c)),
                      .batch_rows = (long double)row_count(c)};
    int64_t matrix = m->rows * m->columns;
    m->memory = calloc((size_t)(2 * matrix + 8 * m->columns) + 1, sizeof *m->memory);
    if (!m->memory)
        return 0;
    m->q = m->memory;
    m->q_error = m->q + matrix;
    long double **vectors[] = {&m->mean, &m->mean_error, &m->rstd, &m->rstd_error,
                               &m->var,  &m->var_error,  &m->z,    &m->z_error};
    for (int i = 0; i < 8; i++)
        *vectors[i] = m->q_error + matrix + i * m->columns;
    return 1;
}

static long double parameter(const op_case *c, int forward, int64_t j, double otherwise)
{
    int argument = head_at(c, forward);
    return argument < 0 ? otherwise : case_was_or(c, argument, j, otherwise);
}

void head_model_product(head_model *m, case_arithmetic arithmetic)
{
    const op_case *c = m->c;
    int input = head_at(c, HEAD_INPUT), weight = head_at(c, HEAD_WEIGHT);
    for (int64_t i = 0; i < m->rows; i++)
        for (int64_t j = 0; j < m->columns; j++) {
            case_product sum = {0};
            for (int64_t k = 0; k < m->depth; k++)
                case_product_add(&sum, case_was(c, input, i * m->depth + k), case_was(c, weight, j * m->depth + k));
            m->q[i * m->columns + j] = sum.value;
            m->q_error[i * m->columns + j] = case_product_error(&sum, arithmetic, promoted_of(c)) / SAFETY;
        }
}

/* Mean and variance of a column over the batch; *m2 and its error are what the running variance is made of. */
void head_model_batch(head_model *m, int64_t j, long double *m2, long double *m2_error)
{
    long double sum = 0, mean_error = 0, rows = (long double)m->rows, bias = parameter(m->c, HEAD_BIAS, j, 0);
    *m2 = *m2_error = 0;
    for (int64_t i = 0; i < m->rows; i++)
        sum += m->q[i * m->columns + j];
    long double mean = sum / rows;
    for (int64_t i = 0; i < m->rows; i++) {
        long double q = m->q[i * m->columns + j];
        mean_error += (m->q_error[i * m->columns + j] + 0x1p-53L * SUM_ERROR(m->rows) * fabsl(q)) / rows;
        *m2 += (q - mean) * (q - mean);
    }
    for (int64_t i = 0; i < m->rows; i++) {
        long double d = fabsl(m->q[i * m->columns + j] - mean), e = m->q_error[i * m->columns + j] + mean_error;
        *m2_error += 2 * d * e + e * e + 4 * m->u * d * d;
    }
    m->mean[j] = mean + (bias - bias); /* a bias that is not finite does not cancel */
    m->mean_error[j] = mean_error;
    m->var[j] = *m2 / rows;
    m->var_error[j] = *m2_error / rows;
}

void head_model_rstd(head_model *m, int64_t j, double eps)
{
    long double scaled = m->var[j] + (long double)eps;
    m->rstd[j] = 1 / sqrtl(scaled);
    m->rstd_error[j] = m->rstd[j] * (m->var_error[j] / (2 * scaled) + 4 * m->u);
}

/* z of a row, and the softmax of it into `output` with its error. */
void head_model_row(head_model *m, int64_t i, long double *output, long double *output_error)
{
    long double u = m->u, most = -(long double)INFINITY, sum = 0, shift = 0, spread = 0;
    for (int64_t j = 0; j < m->columns; j++) {
        long double scale = parameter(m->c, HEAD_SCALE, j, 1), gamma = parameter(m->c, HEAD_GAMMA, j, 1);
        long double beta = parameter(m->c, HEAD_BETA, j, 0), d = m->q[i * m->columns + j] - m->mean[j];
        m->z[j] = scale * (gamma * (d * m->rstd[j]) + beta);
        /* The kernel subtracts the rounded mean; what it lost is added later, after a rounding of its own size. */
        m->z_error[j] = fabsl(scale * gamma) * (m->rstd[j] * (m->q_error[i * m->columns + j] + m->mean_error[j]) +
                                                fabsl(d) * m->rstd_error[j] + 6 * u * fabsl(d) * m->rstd[j] +
                                                4 * u * u * fabsl(m->mean[j]) * m->rstd[j]) +
                        4 * u * fabsl(scale * beta);
        most = m->z[j] > most ? m->z[j] : most;
    }
    for (int64_t j = 0; j < m->columns; j++) {
        long double e = expl(m->z[j] - most);
        sum += e;
        shift += e * m->z_error[j];
        spread += e * fabsl(m->z[j] - most);
    }
    for (int64_t j = 0; j < m->columns; j++) {
        long double e = expl(m->z[j] - most) / sum;
        long double relative = m->z_error[j] + shift / sum + 2 * u * (fabsl(m->z[j] - most) + spread / sum) + 8 * u;
        output[j] = e;
        /* Beyond first order: an error of z that is not small multiplies. */
        output_error[j] = e * expm1l(relative < 20 ? relative : 20);
    }
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

void head_expect(op_case *c, int argument, int64_t index, long double expected, long double allowed)
{
    case_expected(c, argument, index, expected, SAFETY * allowed + case_smallest(promoted_of(c)));
}

void head_expect_running(op_case *c, const head_model *m, int64_t j, long double m2, long double m2_error)
{
    int at_mean = head_at(c, HEAD_RUNNING_MEAN), at_var = head_at(c, HEAD_RUNNING_VAR);
    if (!c->argument[at_mean].given)
        return;
    int cumulative = (int)c->options[HEAD_CUMULATIVE];
    long double bias = parameter(c, HEAD_BIAS, j, 0), rows = m->batch_rows;
    long double factor = cumulative ? 1 / ((long double)case_was(c, head_at(c, HEAD_COUNTER), 0) + 1)
                                    : (long double)c->options[HEAD_MOMENTUM];
    long double old_mean = case_was(c, at_mean, j), old_var = case_was(c, at_var, j);
    if (rows == 0) { /* an empty batch leaves them as they are */
        case_expected(c, at_mean, j, old_mean, 0);
        case_expected(c, at_var, j, old_var, 0);
        return;
    }
    long double kept_mean = (1 - factor) * old_mean, kept_var = (1 - factor) * old_var;
    head_expect(c, at_mean, j, kept_mean + factor * (m->mean[j] + bias),
                fabsl(factor) * m->mean_error[j] + 0x1p-51L * (fabsl(kept_mean) + fabsl(m->mean[j]) + fabsl(bias)));
    head_expect(c, at_var, j, kept_var + factor * m2 / (rows - 1),
                fabsl(factor) * m2_error / (rows - 1) + 0x1p-51L * (fabsl(kept_var) + m2 / (rows - 1)));
}

static void expect_statistics(op_case *c, head_model *m, int64_t j)
{
    if (is_running(c)) {
        long double bias = parameter(c, HEAD_BIAS, j, 0);
        m->mean[j] = (long double)case_was(c, HEAD_RUNNING_MEAN, j) - bias;
        m->var[j] = case_was(c, HEAD_RUNNING_VAR, j);
        m->mean_error[j] = 0x1p-52L * (fabsl(bias) + fabsl(m->mean[j]));
        m->var_error[j] = 0;
    } else {
        long double m2, m2_error;
        head_model_batch(m, j, &m2, &m2_error);
        head_expect_running(c, m, j, m2, m2_error);
    }
    head_model_rstd(m, j, c->options[HEAD_EPS]);
    head_expect(c, HEAD_MEAN, j, m->mean[j], m->mean_error[j]);
    head_expect(c, HEAD_RSTD, j, m->rstd[j], m->rstd_error[j]);
}

static int exact(op_case *c, case_arithmetic arithmetic)
{
    head_model m;
    if (!head_model_begin(&m, c))
        return 0;
    head_model_product(&m, arithmetic);
    for (int64_t k = 0; k < m.rows * m.columns; k++)
        head_expect(c, HEAD_PRODUCT, k, m.q[k], m.q_error[k]);
    for (int64_t j = 0; j < m.columns; j++)
        expect_statistics(c, &m, j);
    for (int64_t i = 0; i < m.rows; i++) {
        long double *row = &c->argument[HEAD_OUTPUT].expected[i * m.columns];
        long double *row_error = &c->argument[HEAD_OUTPUT].allowed[i * m.columns];
        head_model_row(&m, i, row, row_error);
        for (int64_t j = 0; j < m.columns; j++)
            head_expect(c, HEAD_OUTPUT, i * m.columns + j, row[j], row_error[j]);
    }
    if (c->argument[HEAD_COUNTER].given)
        case_expected(c, HEAD_COUNTER, 0, case_was(c, HEAD_COUNTER, 0) + 1, 0);
    free(m.memory);
    return 1;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

void head_continue(op_case *to, const op_case *from)
{
    for (int i = 0; i < HEAD_ARGUMENTS; i++) {
        int argument = in_backward(i);
        if (argument < 0 || !to->argument[argument].given)
            continue;
        for (int64_t k = 0; k < to->argument[argument].count; k++)
            case_put(to, argument, k, case_get(from, i, k));
    }
}

/* What a forward call would have stored: the exact results, rounded. Running statistics are drawn. */
static void generate_backward(op_case *c)
{
    static const int inputs[] = {HEAD_INPUT, HEAD_WEIGHT, HEAD_BIAS, HEAD_GAMMA, HEAD_BETA, HEAD_SCALE};
    const double eps = 1e-5;
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        head_fill(c, head_at(c, inputs[i]), inputs[i]);
    head_fill_grad_output(c);
    case_remember(c);
    case_random random = case_random_stream(c->seed, 1 + HEAD_RUNNING_VAR);
    head_model m;
    if (!head_model_begin(&m, c))
        return; /* what is left is poison: no result will be right */
    head_model_product(&m, CASE_VECTOR);
    for (int64_t j = 0; j < m.columns; j++) {
        long double m2, m2_error;
        head_model_batch(&m, j, &m2, &m2_error);
        if (is_running(c)) {
            m.mean[j] = case_random_normal(&random) + (c->family == HEAD_MEANS ? c->amount : 0);
            m.var[j] = 0.5 + case_random_unit(&random);
        }
        head_model_rstd(&m, j, eps);
        case_put(c, HEAD_B_MEAN, j, (double)m.mean[j]);
        case_put(c, HEAD_B_RSTD, j, (double)m.rstd[j]);
    }
    for (int64_t i = 0; i < m.rows; i++) {
        long double *row = &m.q_error[i * m.columns]; /* no longer needed after its row of z */
        head_model_row(&m, i, row, m.var_error);
        for (int64_t j = 0; j < m.columns; j++) {
            case_put(c, HEAD_B_PRODUCT, i * m.columns + j, (double)m.q[i * m.columns + j]);
            case_put(c, HEAD_B_OUTPUT, i * m.columns + j, (double)row[j]);
        }
    }
    free(m.memory);
    if (is_synchronised(c))
        head_fill_ranks(c, HEAD_B_COUNTS, HEAD_B_S0S, HEAD_B_S1S);
}

void head_exact_dz(const op_case *c, int grad_output, int output, head_slope *s)
{
    long double u = case_roundoff(promoted_of(c));
    int64_t rows = row_count(c), columns = case_extent(c, 'N');
    for (int64_t i = 0; i < rows; i++) {
        long double dot = 0, size = 0;
        for (int64_t j = 0; j < columns; j++) {
            long double term = (long double)case_was(c, grad_output, i * columns + j) *
                               (long double)case_was(c, output, i * columns + j);
            dot += term;
            size += fabsl(term);
        }
        for (int64_t j = 0; j < columns; j++) {
            int64_t k = i * columns + j;
            long double g = case_was(c, grad_output, k), p = case_was(c, output, k);
            s->dz[k] = p * (g - dot);
            /* An upstream gradient of a wider type is rounded to the type computed in. */
            s->error[k] = 3 * u * fabsl(s->dz[k]) + fabsl(p) * u * (4 * size + 2 * fabsl(dot) + fabsl(g)) +
                          fabsl(p) * 0x1p-53L * SUM_ERROR(columns) * size + 2 * u * fabsl(p) * fabsl(g - dot) +
                          case_smallest(promoted_of(c));
        }
    }
}

head_sums head_exact_sums(const op_case *c, const head_slope *s, int product, int mean_at, int rstd_at, int64_t j)
{
    int64_t count = row_count(c), columns = case_extent(c, 'N');
    long double u = case_roundoff(promoted_of(c));
    long double mean = case_was(c, mean_at, j), rstd = case_was(c, rstd_at, j);
    head_sums sums = {0, 0, 0, 0};
    for (int64_t i = 0; i < count; i++) {
        int64_t k = i * columns + j;
        long double xh = ((long double)case_was(c, product, k) - mean) * rstd;
        long double xh_error = u * (4 * fabsl(xh) + fabsl(mean) * rstd);
        sums.s0 += s->dz[k];
        sums.s1 += s->dz[k] * xh;
        sums.s0_error += s->error[k] + (4 * u + 0x1p-53L * SUM_ERROR(count)) * fabsl(s->dz[k]);
        sums.s1_error += s->error[k] * fabsl(xh) +
                         fabsl(s->dz[k]) * (xh_error + (6 * u + 0x1p-53L * SUM_ERROR(count)) * fabsl(xh)) +
                         case_smallest(promoted_of(c)); /* nearly one-hot, the product ends below the normal numbers */
    }
    return sums;
}

/* What all ranks have sent, added up in double, in the place of this rank's sums. Returns their rows. */
static long double exact_merged_sums(const op_case *c, int64_t j, head_sums *sums)
{
    int64_t columns = case_extent(c, 'N');
    long double rows = 0, size0 = 0, size1 = 0;
    *sums = (head_sums){0, 0, 0, 0};
    for (int64_t rank = 0; rank < case_extent(c, 'R'); rank++) {
        long double s0 = case_was(c, HEAD_B_S0S, rank * columns + j), s1 = case_was(c, HEAD_B_S1S, rank * columns + j);
        rows += case_was(c, HEAD_B_COUNTS, rank);
        sums->s0 += s0;
        sums->s1 += s1;
        size0 += fabsl(s0);
        size1 += fabsl(s1);
    }
    sums->s0_error = 0x1p-52L * size0;
    sums->s1_error = 0x1p-52L * size1;
    return rows;
}

/* The sums over a column, and what they are gradients of; dz becomes dy. Returns the gradient of the column's scale. */
static long double exact_column(op_case *c, head_slope *s, int64_t j, long double *scale_error)
{
    int64_t count = row_count(c), columns = case_extent(c, 'N');
    long double u = case_roundoff(promoted_of(c)), rows = (long double)count;
    /* Saved in a wider type, they are rounded to the type computed in. */
    long double mean = case_was(c, HEAD_B_MEAN, j), rstd = case_was(c, HEAD_B_RSTD, j);
    long double gamma = parameter(c, HEAD_GAMMA, j, 1), beta = parameter(c, HEAD_BETA, j, 0);
    long double scale = parameter(c, HEAD_SCALE, j, 1);
    head_sums sums = head_exact_sums(c, s, HEAD_B_PRODUCT, HEAD_B_MEAN, HEAD_B_RSTD, j);
    head_expect(c, HEAD_GRAD_BETA, j, scale * sums.s0, fabsl(scale) * sums.s0_error);
    head_expect(c, HEAD_GRAD_GAMMA, j, scale * sums.s1, fabsl(scale) * sums.s1_error);
    int batch = !is_running(c);
    long double factor = gamma * rstd * scale, scale_gradient = gamma * sums.s1 + beta * sums.s0;
    head_expect(c, HEAD_GRAD_BIAS, j, batch ? 0 : factor * sums.s0,
                batch ? 0 : fabsl(factor) * (sums.s0_error + u * fabsl(sums.s0)));
    *scale_error = fabsl(gamma) * sums.s1_error + fabsl(beta) * sums.s0_error +
                   0x1p-50L * (fabsl(gamma * sums.s1) + fabsl(beta * sums.s0));
    if (is_synchronised(c))
        rows = exact_merged_sums(c, j, &sums);
    long double s0 = sums.s0, s1 = sums.s1;
    for (int64_t i = 0; i < count; i++) {
        int64_t k = i * columns + j;
        long double xh = ((long double)case_was(c, HEAD_B_PRODUCT, k) - mean) * rstd;
        long double xh_error = u * (4 * fabsl(xh) + fabsl(mean) * rstd), dz = s->dz[k];
        long double inner = batch ? dz - s0 / rows - xh * s1 / rows : dz;
        long double error = s->error[k];
        if (batch)
            error += (sums.s0_error + fabsl(xh) * sums.s1_error + fabsl(s1) * xh_error) / rows +
                     4 * u * (fabsl(dz) + fabsl(s0) / rows + fabsl(xh * s1) / rows);
        s->dz[k] = factor * inner;
        s->error[k] = fabsl(factor) * (error + 4 * u * fabsl(inner)) + case_smallest(promoted_of(c));
    }
    return scale_gradient;
}

/* One element of the gradient to input or weight: the product of a row or column of dy with `other`. */
static void expect_product(op_case *c, const head_slope *s, case_arithmetic arithmetic, int argument, int64_t index,
                           int64_t n, int64_t first, int64_t step, int other, int64_t other_first, int64_t other_step)
{
    case_product sum = {0};
    long double error = 0;
    for (int64_t i = 0; i < n; i++) {
        long double x = case_was(c, other, other_first + i * other_step);
        case_product_add(&sum, s->dz[first + i * step], x);
        error += s->error[first + i * step] * fabsl(x);
    }
    head_expect(c, argument, index, sum.value, error + case_product_error(&sum, arithmetic, promoted_of(c)) / SAFETY);
}

/* A GPU multiplies halves by halves: dy is rounded to the type of the inputs on its way into the products. */
static void round_slope(const op_case *c, head_slope *s)
{
    onepass_dtype type = promoted_of(c);
    for (int64_t k = 0; k < row_count(c) * case_extent(c, 'N'); k++)
        s->error[k] += case_half_unit(type, s->dz[k]);
}

static int exact_backward(op_case *c, case_arithmetic arithmetic)
{
    int64_t rows = row_count(c), depth = case_extent(c, 'K'), columns = case_extent(c, 'N');
    head_slope s = {.dz = calloc((size_t)(2 * rows * columns) + 1, sizeof *s.dz)};
    if (!s.dz)
        return 0;
    s.error = s.dz + rows * columns;
    head_exact_dz(c, HEAD_GRAD_OUTPUT, HEAD_B_OUTPUT, &s);
    int one_scale = c->argument[HEAD_B_SCALE].given && c->argument[HEAD_B_SCALE].count == 1;
    long double total = 0, total_error = 0;
    for (int64_t j = 0; j < columns; j++) {
        long double error, part = exact_column(c, &s, j, &error);
        total += part;
        total_error += error;
        if (!one_scale)
            head_expect(c, HEAD_GRAD_SCALE, j, part, error);
    }
    if (one_scale)
        head_expect(c, HEAD_GRAD_SCALE, 0, total, total_error);
    if (arithmetic == CASE_CUDA && promoted_of(c).bits == 16)
        round_slope(c, &s);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < depth; k++)
            expect_product(c, &s, arithmetic, HEAD_GRAD_INPUT, i * depth + k, columns, i * columns, 1, HEAD_B_WEIGHT, k,
                           depth);
    for (int64_t j = 0; j < columns; j++)
        for (int64_t k = 0; k < depth; k++)
            expect_product(c, &s, arithmetic, HEAD_GRAD_WEIGHT, j * depth + k, rows, j, columns, HEAD_B_INPUT, k,
                           depth);
    free(s.dz);
    return 1;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static int is_read(const op_case *c, int argument)
{
    return is_running(c) && (argument == HEAD_RUNNING_MEAN || argument == HEAD_RUNNING_VAR);
}

void head_hold(op_case *c, int argument, onepass_dtype least)
{
    if (!case_holds(c->argument[argument].dtype, least))
        c->argument[argument].dtype = least;
}

/* What goes together, and what excludes what. */
static void settle_options(op_case *c)
{
    case_argument *a = c->argument;
    a[HEAD_PREPARED].given = 0; /* cases do not make one */
    a[HEAD_MEAN].given = a[HEAD_RSTD].given = a[HEAD_PRODUCT].given;
    a[HEAD_RUNNING_VAR].given = a[HEAD_RUNNING_MEAN].given = a[HEAD_RUNNING_MEAN].given || is_running(c);
    if (is_running(c)) { /* they are only read: nothing is counted or mixed */
        a[HEAD_COUNTER].given = 0;
        c->options[HEAD_CUMULATIVE] = 0;
    }
    if (is_running(c) || c->options[HEAD_CUMULATIVE] != 0)
        c->options[HEAD_MOMENTUM] = 0;
    if (c->options[HEAD_CUMULATIVE] != 0)
        a[HEAD_COUNTER].given = 1;
    if (!is_running(c) && case_extent(c, 'B') == 1)
        c->extents['B' - 'A'] = 2;
}

static void settle(op_case *c)
{
    settle_options(c);
    onepass_dtype promoted = promoted_of(c), computed = case_computed(promoted);
    head_hold(c, HEAD_OUTPUT, promoted);
    head_hold(c, HEAD_MEAN, computed);
    head_hold(c, HEAD_RSTD, computed);
    c->argument[HEAD_PRODUCT].dtype = computed;
}

static void begin_both(op_case *c)
{
    c->extents['B' - 'A'] = 4;
    c->extents['K' - 'A'] = 3;
    c->extents['N' - 'A'] = 5;
    for (int i = 0; i < c->arguments; i++)
        c->argument[i].given = 1;
    c->argument[head_at(c, HEAD_SCALE)].is_one = 1;
}

static void begin(op_case *c)
{
    begin_both(c);
    c->argument[HEAD_PREPARED].given = 0;
    c->argument[HEAD_PREPARED].dtype = case_u8;
    c->argument[HEAD_COUNTER].dtype = case_i64;
    c->options[HEAD_EPS] = 1e-5;
    c->options[HEAD_MOMENTUM] = 0.1;
}

static const char *const forward_names[] = {"head", NULL};
const case_definition case_head = {.names = forward_names,
                                   .begin = begin,
                                   .is_read = is_read,
                                   .families = HEAD_DATA_KINDS,
                                   .settle = settle,
                                   .generate = generate,
                                   .exact = exact};

static void settle_backward(op_case *c)
{
    static const int gradients[][2] = {{HEAD_GRAD_INPUT, HEAD_B_INPUT}, {HEAD_GRAD_WEIGHT, HEAD_B_WEIGHT},
                                       {HEAD_GRAD_BIAS, HEAD_B_BIAS},   {HEAD_GRAD_GAMMA, HEAD_B_GAMMA},
                                       {HEAD_GRAD_BETA, HEAD_B_BETA},   {HEAD_GRAD_SCALE, HEAD_B_SCALE}};
    int asked = 0;
    for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++) {
        case_argument *gradient = &c->argument[gradients[i][0]];
        const case_argument *of = &c->argument[gradients[i][1]];
        gradient->dtype = of->dtype;
        gradient->is_one = of->is_one;
        gradient->given = gradient->given && of->given;
        asked |= gradient->given;
    }
    if (!asked)
        c->argument[HEAD_GRAD_WEIGHT].given = 1;
    if (is_synchronised(c))
        head_settle_ranks(c, HEAD_B_COUNTS, HEAD_B_S1S);
    onepass_dtype computed = case_computed(promoted_of(c));
    head_hold(c, HEAD_B_MEAN, computed);
    head_hold(c, HEAD_B_RSTD, computed);
    c->argument[HEAD_B_PRODUCT].dtype = computed;
}

static void begin_backward(op_case *c)
{
    begin_both(c);
    if (is_synchronised(c)) {
        c->extents['R' - 'A'] = 3;
        head_settle_ranks(c, HEAD_B_COUNTS, HEAD_B_S1S);
    }
    c->argument[HEAD_GRAD_SCALE].is_one = 1; /* as its scale */
}

static const char *const backward_names[] = {"head_backward", "head_backward_synchronised", NULL};
const case_definition case_head_backward = {.names = backward_names,
                                            .begin = begin_backward,
                                            .families = HEAD_DATA_KINDS,
                                            .settle = settle_backward,
                                            .generate = generate_backward,
                                            .exact = exact_backward};
