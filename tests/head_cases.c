/*
 * See head_cases.h. The error model: a product of depth K, summed in the type computed in (unit roundoff u), is off by
 * about u sqrt(K) of the sum of its terms' magnitudes; everything after it is followed to first order, and the bound is
 * doubled for what is left out. Backward is judged from what forward stored, which is its input.
 */
#include "head_cases.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAFETY           2
#define PRODUCT_ERROR(k) (4 + 2 * sqrtl((long double)(k)))

static const char *const names[HEAD_TENSORS] = {
    "input",       "weight",      "bias",        "gamma",      "beta",      "scale",      "running_mean",
    "running_var", "counter",     "grad_output", "output",     "product",   "mean",       "rstd",
    "grad_input",  "grad_weight", "grad_bias",   "grad_gamma", "grad_beta", "grad_scale",
};
static const char *const layout_names[] = {"compact", "padded", "fortran", "column step", "negative", "repeated"};

static void *claim(void *old, size_t bytes)
{
    void *memory = realloc(old, bytes ? bytes : 1);
    if (!memory) {
        perror("test memory");
        exit(2);
    }
    return memory;
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static const onepass_dtype dtypes[] = {
    [ONEP_F16] = ONEPASS_F16, [ONEP_BF16] = ONEPASS_BF16, [ONEP_F32] = ONEPASS_F32,
    [ONEP_F64] = ONEPASS_F64, [ONEP_BYTE] = ONEPASS_U8,   [ONEP_I64] = ONEPASS_I64,
};

void head_place(head_tensor *t, onep_type type, int ndim, const int64_t *shape, head_layout layout, test_guard guard,
                size_t shift)
{
    t->type = type;
    t->count = 1;
    t->given = 1;
    int64_t step = layout == HEAD_COLUMN_STEP ? 3 : 1, low = 0, high = 0;
    for (int k = 0; k < ndim; k++) {
        int d = layout == HEAD_FORTRAN ? k : ndim - 1 - k;
        t->shape[d] = shape[d];
        t->strides[d] = layout == HEAD_NEGATIVE ? -step : layout == HEAD_REPEATED && d < ndim - 1 ? 0 : step;
        step *= shape[d] > 0 ? shape[d] : 1;
        if (layout == HEAD_PADDED && k == 0)
            step += 5;
        t->count *= shape[d];
    }
    for (int d = 0; d < ndim && t->count > 0; d++) {
        int64_t reach = (shape[d] - 1) * t->strides[d];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    int64_t size = (int64_t)onep_type_size(type);
    test_buffer_place(&t->buffer, t->count > 0 ? (size_t)((high - low + 1) * size) : 0, guard, shift);
    memset(t->buffer.data, 0xff, t->buffer.bytes); /* NaN in every floating-point type */
    t->first = t->buffer.data - low * size;
    t->tensor = (onepass_tensor){.data = t->first,
                                 .device = {ONEPASS_CPU, 0},
                                 .ndim = ndim,
                                 .dtype = dtypes[type],
                                 .shape = t->shape,
                                 .strides = layout == HEAD_COMPACT ? NULL : t->strides};
}

char *head_at(const head_tensor *t, int64_t index)
{
    int64_t offset = 0;
    for (int d = t->tensor.ndim - 1; d >= 0; d--) {
        offset += index % t->shape[d] * t->strides[d];
        index /= t->shape[d];
    }
    return t->first + offset * (int64_t)onep_type_size(t->type);
}

double head_get(const head_tensor *t, int64_t index)
{
    return onep_load(t->type, head_at(t, index));
}

void head_set(const head_tensor *t, int64_t index, double x)
{
    onep_store(t->type, head_at(t, index), x);
}

void head_remember(head_tensor *t)
{
    t->before = claim(t->before, t->buffer.bytes);
    memcpy(t->before, t->buffer.data, t->buffer.bytes);
}

void head_check_memory(const head_tensor *t, const char *name, int is_output)
{
    if (!t->given)
        return;
    CHECK(test_buffer_damage(&t->buffer) == 0, "%s: %zu bytes outside were written", name,
          test_buffer_damage(&t->buffer));
    char *now = claim(NULL, t->buffer.bytes);
    memcpy(now, t->buffer.data, t->buffer.bytes);
    size_t size = onep_type_size(t->type);
    for (int64_t i = 0; i < t->count && is_output; i++) { /* elements may have changed, nothing between them */
        int64_t at = head_at(t, i) - t->buffer.data;
        memcpy(now + at, t->before + at, size);
    }
    CHECK(memcmp(now, t->before, t->buffer.bytes) == 0, "%s: bytes that are not its elements changed", name);
    free(now);
}

static test_buffer workspace;

void *head_workspace(size_t bytes)
{
    test_buffer_place(&workspace, bytes, TEST_PAGE_AFTER, 0);
    memset(workspace.data, 0xff, bytes);
    return bytes ? workspace.data : NULL;
}

void head_check_workspace(void)
{
    CHECK(test_buffer_damage(&workspace) == 0, "bytes beside the workspace were written");
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

static head_tensor tensors[HEAD_TENSORS];

const head_tensor *head_result(int tensor)
{
    return &tensors[tensor];
}

static int is_output(int i)
{
    return i >= HEAD_OUTPUT;
}

static onep_type computed_type(const head_case *c)
{
    return c->type[HEAD_INPUT] == ONEP_F64 || c->type[HEAD_WEIGHT] == ONEP_F64 ? ONEP_F64 : ONEP_F32;
}

/* The types that follow from others: gradients have that of their tensor, the product that of the computation. */
static void derive_types(head_case *c)
{
    static const int of[][2] = {{HEAD_GRAD_INPUT, HEAD_INPUT}, {HEAD_GRAD_WEIGHT, HEAD_WEIGHT},
                                {HEAD_GRAD_BIAS, HEAD_BIAS},   {HEAD_GRAD_GAMMA, HEAD_GAMMA},
                                {HEAD_GRAD_BETA, HEAD_BETA},   {HEAD_GRAD_SCALE, HEAD_SCALE}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        c->type[of[i][0]] = c->type[of[i][1]];
    c->type[HEAD_COUNTER] = ONEP_I64;
    c->type[HEAD_PRODUCT] = computed_type(c);
    onep_type promoted = onep_promote(c->type[HEAD_INPUT], c->type[HEAD_WEIGHT]);
    if (!onep_type_holds(c->type[HEAD_OUTPUT], promoted))
        c->type[HEAD_OUTPUT] = promoted;
    for (int i = HEAD_MEAN; i <= HEAD_RSTD; i++)
        if (!onep_type_holds(c->type[i], computed_type(c)))
            c->type[i] = computed_type(c);
}

head_case head_case_plain(onep_type type, int64_t rows, int64_t depth, int64_t columns)
{
    head_case c = {
        .rows = rows,
        .depth = depth,
        .columns = columns,
        .eps = 1e-5,
        .momentum = 0.1,
        .present = HEAD_ALL,
        .gamma_is = NAN,
        .scale_is = NAN,
        .counter = 4,
        .threads = 1,
    };
    for (int i = 0; i < HEAD_TENSORS; i++)
        c.type[i] = i == HEAD_INPUT || i == HEAD_WEIGHT || i == HEAD_OUTPUT || i == HEAD_GRAD_OUTPUT ? type
                    : type == ONEP_F64                                                               ? ONEP_F64
                                                                                                     : ONEP_F32;
    derive_types(&c);
    return c;
}

void head_case_shuffle(head_case *c, test_random *random)
{
    for (int i = 0; i < HEAD_TENSORS; i++) {
        c->type[i] = (onep_type)test_random_below(random, ONEP_FLOAT_TYPES);
        c->layout[i] = (head_layout)test_random_below(random, HEAD_OUTPUT_LAYOUTS);
        c->guard[i] = (test_guard)test_random_below(random, TEST_GUARDS);
        c->shift[i] = test_random_below(random, 3) == 0;
    }
    derive_types(c);
    static const unsigned pairs[][2] = {{HEAD_BIAS, HEAD_GRAD_BIAS},
                                        {HEAD_GAMMA, HEAD_GRAD_GAMMA},
                                        {HEAD_BETA, HEAD_GRAD_BETA},
                                        {HEAD_SCALE, HEAD_GRAD_SCALE}};
    for (int i = 0; i < 4; i++)
        if (test_random_below(random, 3) == 0)
            c->present &= ~(HEAD_BIT(pairs[i][0]) | HEAD_BIT(pairs[i][1]));
    for (int i = HEAD_GRAD_INPUT; i <= HEAD_GRAD_SCALE; i++)
        if (test_random_below(random, 4) == 0)
            c->present &= ~HEAD_BIT(i);
    c->scale_each = (int)test_random_below(random, 2);
    c->statistics = (onepass_statistics)test_random_below(random, 2);
    if (c->statistics == ONEPASS_BATCH_STATISTICS && test_random_below(random, 3) == 0)
        c->present &= ~(HEAD_BIT(HEAD_RUNNING_MEAN) | HEAD_BIT(HEAD_RUNNING_VAR));
    if (c->statistics == ONEPASS_BATCH_STATISTICS && test_random_below(random, 3) == 0) {
        c->cumulative = 1;
        c->momentum = 0;
    } else if (test_random_below(random, 3) == 0) {
        c->present &= ~HEAD_BIT(HEAD_COUNTER);
    }
    c->threads = 1 + (int32_t)test_random_below(random, 3);
}

static int is_given(const head_case *c, int i)
{
    if (i == HEAD_COUNTER && c->statistics == ONEPASS_RUNNING_STATISTICS)
        return 0;
    int needed = i == HEAD_INPUT || i == HEAD_WEIGHT || i == HEAD_OUTPUT ||
                 ((i == HEAD_RUNNING_MEAN || i == HEAD_RUNNING_VAR) && c->statistics == ONEPASS_RUNNING_STATISTICS);
    return needed || (c->present & HEAD_BIT(i)) != 0;
}

static void place_all(const head_case *c)
{
    for (int i = 0; i < HEAD_TENSORS; i++) {
        int64_t shape[2] = {c->columns, 0};
        int ndim = 1;
        switch (i) {
        case HEAD_INPUT:
        case HEAD_GRAD_INPUT:
            ndim = 2, shape[0] = c->rows, shape[1] = c->depth;
            break;
        case HEAD_WEIGHT:
        case HEAD_GRAD_WEIGHT:
            ndim = 2, shape[1] = c->depth;
            break;
        case HEAD_OUTPUT:
        case HEAD_PRODUCT:
        case HEAD_GRAD_OUTPUT:
            ndim = 2, shape[0] = c->rows, shape[1] = c->columns;
            break;
        case HEAD_SCALE:
        case HEAD_GRAD_SCALE:
            shape[0] = c->scale_each ? c->columns : 1;
            break;
        case HEAD_COUNTER:
            ndim = 0;
            break;
        default:
            break;
        }
        head_place(&tensors[i], c->type[i], ndim, shape, c->layout[i], c->guard[i], c->shift[i]);
        tensors[i].given = is_given(c, i);
    }
}

static double normal(test_random *random)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += test_random_unit(random);
    return sum - 6;
}

static void fill_all(const head_case *c, test_random *random)
{
    int64_t depth = c->depth > 0 ? c->depth : 1;
    for (int64_t i = 0; i < c->rows * c->depth; i++)
        head_set(&tensors[HEAD_INPUT], i, normal(random));
    for (int64_t i = 0; i < c->columns * c->depth; i++) {
        int64_t j = i / depth;
        double x = normal(random) / sqrt((double)depth);
        if (c->ties)
            x = j == 0 ? x : head_get(&tensors[HEAD_WEIGHT], i % depth);
        head_set(&tensors[HEAD_WEIGHT], i, c->constant_columns && j % 3 == 0 ? 0 : x);
    }
    /* A first input that is always 1, with a weight of `ratio`, moves the columns' means to about that. */
    if (c->ratio != 0 && c->depth > 1) {
        for (int64_t i = 0; i < c->rows; i++)
            head_set(&tensors[HEAD_INPUT], i * c->depth, 1);
        for (int64_t j = 0; j < c->columns; j++)
            head_set(&tensors[HEAD_WEIGHT], j * c->depth, c->ratio);
    }
    if (c->spoil != 0)
        head_set(&tensors[HEAD_INPUT], c->spoil_row * c->depth, c->spoil);
    for (int64_t j = 0; j < c->columns; j++) {
        head_set(&tensors[HEAD_BIAS], j, normal(random));
        head_set(&tensors[HEAD_GAMMA], j, isnan(c->gamma_is) ? normal(random) : c->gamma_is);
        head_set(&tensors[HEAD_BETA], j, normal(random));
        head_set(&tensors[HEAD_RUNNING_MEAN], j, normal(random) + c->ratio);
        head_set(&tensors[HEAD_RUNNING_VAR], j, 0.5 + test_random_unit(random));
    }
    for (int64_t j = 0; j < tensors[HEAD_SCALE].count; j++)
        head_set(&tensors[HEAD_SCALE], j, isnan(c->scale_is) ? 1 + normal(random) : c->scale_is);
    for (int64_t i = 0; i < c->rows * c->columns; i++)
        head_set(&tensors[HEAD_GRAD_OUTPUT], i, normal(random));
    memcpy(tensors[HEAD_COUNTER].first, &c->counter, sizeof c->counter);
}

static long double value_or(int tensor, int64_t j, double otherwise)
{
    const head_tensor *t = &tensors[tensor];
    return t->given ? (long double)head_get(t, t->count == 1 ? 0 : j) : (long double)otherwise;
}

/* ---- the oracle, forward ----------------------------------------------------------------------------------------- */

typedef struct oracle {
    long double *q, *q_error;                                             /* rows x columns */
    long double *mean, *mean_error, *rstd, *rstd_error, *var, *var_error; /* columns */
    long double *z, *z_error;                                             /* one row */
    long double *dz, *dz_error;
    double *old_mean, *old_var; /* running statistics before the call */
} oracle;

static oracle o;

static void room(long double **of, int64_t count)
{
    *of = claim(*of, (size_t)count * sizeof **of);
}

/* Unit roundoff of the type computed in, and half its smallest number: what a product loses below the normal ones. */
static long double unit(const head_case *c)
{
    return computed_type(c) == ONEP_F64 ? 0x1p-53L : 0x1p-24L;
}

static long double smallest(const head_case *c)
{
    return computed_type(c) == ONEP_F64 ? 0x1p-1074L : 0x1p-149L;
}

static void expect(const head_case *c, int tensor, int64_t index, long double expected, long double allowed)
{
    const head_tensor *t = &tensors[tensor];
    if (!t->given)
        return;
    double got = head_get(t, index);
    long double bound = SAFETY * allowed + smallest(c);
    CHECK(test_close_in(t->type, got, expected, bound), "%s[%" PRId64 "]: got %.17g, expected %.17Lg, allowed %.3Lg",
          names[tensor], index, got, expected, bound);
}

static void oracle_product(const head_case *c)
{
    room(&o.q, c->rows * c->columns);
    room(&o.q_error, c->rows * c->columns);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < c->columns; j++) {
            long double sum = 0, size = 0;
            for (int64_t k = 0; k < c->depth; k++) {
                long double term = (long double)head_get(&tensors[HEAD_INPUT], i * c->depth + k) *
                                   (long double)head_get(&tensors[HEAD_WEIGHT], j * c->depth + k);
                sum += term;
                size += fabsl(term);
            }
            int64_t at = i * c->columns + j;
            o.q[at] = sum;
            o.q_error[at] = unit(c) * PRODUCT_ERROR(c->depth) * size;
            expect(c, HEAD_PRODUCT, at, sum, o.q_error[at]);
        }
}

static void oracle_statistics(const head_case *c, int64_t j)
{
    long double u = unit(c), bias = value_or(HEAD_BIAS, j, 0);
    if (c->statistics == ONEPASS_RUNNING_STATISTICS) {
        o.mean[j] = (long double)o.old_mean[j] - bias;
        o.var[j] = o.old_var[j];
        o.mean_error[j] = 0x1p-52L * (fabsl(bias) + fabsl(o.mean[j]));
        o.var_error[j] = 0;
        return;
    }
    long double sum = 0, m2 = 0, mean_error = 0, m2_error = 0, rows = (long double)c->rows;
    for (int64_t i = 0; i < c->rows; i++)
        sum += o.q[i * c->columns + j];
    long double mean = sum / rows;
    for (int64_t i = 0; i < c->rows; i++) {
        mean_error +=
            (o.q_error[i * c->columns + j] + 0x1p-53L * PRODUCT_ERROR(c->rows) * fabsl(o.q[i * c->columns + j])) / rows;
        m2 += (o.q[i * c->columns + j] - mean) * (o.q[i * c->columns + j] - mean);
    }
    for (int64_t i = 0; i < c->rows; i++) {
        long double d = fabsl(o.q[i * c->columns + j] - mean), e = o.q_error[i * c->columns + j] + mean_error;
        m2_error += 2 * d * e + e * e + 4 * u * d * d;
    }
    o.mean[j] = mean + (bias - bias);
    o.mean_error[j] = mean_error;
    o.var[j] = m2 / rows;
    o.var_error[j] = m2_error / rows;
    if (!tensors[HEAD_RUNNING_MEAN].given)
        return;
    long double factor = c->cumulative ? 1 / (long double)(c->counter + 1) : (long double)c->momentum;
    long double kept_mean = (1 - factor) * (long double)o.old_mean[j],
                kept_var = (1 - factor) * (long double)o.old_var[j];
    expect(c, HEAD_RUNNING_MEAN, j, kept_mean + factor * (mean + bias),
           factor * mean_error + 0x1p-51L * (fabsl(kept_mean) + fabsl(mean) + fabsl(bias)));
    expect(c, HEAD_RUNNING_VAR, j, kept_var + factor * m2 / (rows - 1),
           factor * m2_error / (rows - 1) + 0x1p-51L * (kept_var + m2 / (rows - 1)));
}

static void oracle_row(const head_case *c, int64_t i)
{
    long double u = unit(c), most = -(long double)INFINITY, sum = 0, shift = 0, spread = 0;
    for (int64_t j = 0; j < c->columns; j++) {
        int64_t at = i * c->columns + j;
        long double scale = value_or(HEAD_SCALE, j, 1), gamma = value_or(HEAD_GAMMA, j, 1);
        long double beta = value_or(HEAD_BETA, j, 0), d = o.q[at] - o.mean[j];
        o.z[j] = scale * (gamma * (d * o.rstd[j]) + beta);
        /* The kernel subtracts the rounded mean; what it lost is added later, after a rounding of its own size. */
        o.z_error[j] =
            fabsl(scale * gamma) * (o.rstd[j] * (o.q_error[at] + o.mean_error[j]) + fabsl(d) * o.rstd_error[j] +
                                    6 * u * fabsl(d) * o.rstd[j] + 4 * u * u * fabsl(o.mean[j]) * o.rstd[j]) +
            4 * u * fabsl(scale * beta);
        most = o.z[j] > most ? o.z[j] : most;
    }
    for (int64_t j = 0; j < c->columns; j++) {
        long double e = expl(o.z[j] - most);
        sum += e;
        shift += e * o.z_error[j];
        spread += e * fabsl(o.z[j] - most);
    }
    for (int64_t j = 0; j < c->columns; j++) {
        long double e = expl(o.z[j] - most) / sum;
        long double relative = o.z_error[j] + shift / sum + 2 * u * (fabsl(o.z[j] - most) + spread / sum) + 8 * u;
        /* Beyond first order: an error of z that is not small multiplies. */
        expect(c, HEAD_OUTPUT, i * c->columns + j, e, e * expm1l(relative < 20 ? relative : 20));
    }
}

static void check_forward(const head_case *c)
{
    oracle_product(c);
    long double **arrays[] = {&o.mean, &o.mean_error, &o.rstd, &o.rstd_error, &o.var, &o.var_error, &o.z, &o.z_error};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        room(arrays[i], c->columns);
    for (int64_t j = 0; j < c->columns; j++) {
        oracle_statistics(c, j);
        long double scaled = o.var[j] + (long double)c->eps;
        o.rstd[j] = 1 / sqrtl(scaled);
        o.rstd_error[j] = o.rstd[j] * (o.var_error[j] / (2 * scaled) + 4 * unit(c));
        expect(c, HEAD_MEAN, j, o.mean[j], o.mean_error[j]);
        expect(c, HEAD_RSTD, j, o.rstd[j], o.rstd_error[j]);
    }
    for (int64_t i = 0; i < c->rows; i++)
        oracle_row(c, i);
    if (tensors[HEAD_COUNTER].given) {
        int64_t counted;
        memcpy(&counted, tensors[HEAD_COUNTER].first, sizeof counted);
        CHECK(counted == c->counter + 1, "counter: got %" PRId64, counted);
    }
}

/* ---- the oracle, backward ---------------------------------------------------------------------------------------- */

/* dz, its error; becomes dy, its error. */
static void oracle_dz(const head_case *c)
{
    long double u = unit(c);
    for (int64_t i = 0; i < c->rows; i++) {
        long double dot = 0, size = 0;
        for (int64_t j = 0; j < c->columns; j++) {
            long double term = (long double)head_get(&tensors[HEAD_GRAD_OUTPUT], i * c->columns + j) *
                               (long double)head_get(&tensors[HEAD_OUTPUT], i * c->columns + j);
            dot += term;
            size += fabsl(term);
        }
        for (int64_t j = 0; j < c->columns; j++) {
            int64_t at = i * c->columns + j;
            long double g = head_get(&tensors[HEAD_GRAD_OUTPUT], at), p = head_get(&tensors[HEAD_OUTPUT], at);
            o.dz[at] = p * (g - dot);
            /* An upstream gradient of a wider type is rounded to the type computed in. */
            o.dz_error[at] = 3 * u * fabsl(o.dz[at]) + fabsl(p) * u * (4 * size + 2 * fabsl(dot) + fabsl(g)) +
                             fabsl(p) * 0x1p-53L * PRODUCT_ERROR(c->columns) * size +
                             2 * u * fabsl(p) * fabsl(g - dot) + smallest(c);
        }
    }
}

static long double oracle_column(const head_case *c, int64_t j, long double *scale_error)
{
    long double u = unit(c), rows = (long double)c->rows, s0 = 0, s1 = 0, s0_error = 0, s1_error = 0;
    /* Saved in a wider type, they are rounded to the type computed in. */
    long double mean = head_get(&tensors[HEAD_MEAN], j), rstd = head_get(&tensors[HEAD_RSTD], j);
    long double gamma = value_or(HEAD_GAMMA, j, 1), beta = value_or(HEAD_BETA, j, 0),
                scale = value_or(HEAD_SCALE, j, 1);
    for (int64_t i = 0; i < c->rows; i++) {
        int64_t at = i * c->columns + j;
        long double xh = ((long double)head_get(&tensors[HEAD_PRODUCT], at) - mean) * rstd;
        long double xh_error = u * (4 * fabsl(xh) + fabsl(mean) * rstd);
        s0 += o.dz[at];
        s1 += o.dz[at] * xh;
        s0_error += o.dz_error[at] + (4 * u + 0x1p-53L * PRODUCT_ERROR(c->rows)) * fabsl(o.dz[at]);
        s1_error += o.dz_error[at] * fabsl(xh) +
                    fabsl(o.dz[at]) * (xh_error + (6 * u + 0x1p-53L * PRODUCT_ERROR(c->rows)) * fabsl(xh));
    }
    expect(c, HEAD_GRAD_BETA, j, scale * s0, fabsl(scale) * s0_error);
    expect(c, HEAD_GRAD_GAMMA, j, scale * s1, fabsl(scale) * s1_error);
    int batch = c->statistics == ONEPASS_BATCH_STATISTICS;
    long double slope = gamma * rstd * scale;
    expect(c, HEAD_GRAD_BIAS, j, batch ? 0 : slope * s0, batch ? 0 : fabsl(slope) * (s0_error + u * fabsl(s0)));
    for (int64_t i = 0; i < c->rows; i++) {
        int64_t at = i * c->columns + j;
        long double xh = ((long double)head_get(&tensors[HEAD_PRODUCT], at) - mean) * rstd;
        long double xh_error = u * (4 * fabsl(xh) + fabsl(mean) * rstd), dz = o.dz[at];
        long double inner = batch ? dz - s0 / rows - xh * s1 / rows : dz;
        long double error = o.dz_error[at];
        if (batch)
            error += (s0_error + fabsl(xh) * s1_error + fabsl(s1) * xh_error) / rows +
                     4 * u * (fabsl(dz) + fabsl(s0) / rows + fabsl(xh * s1) / rows);
        o.dz[at] = slope * inner;
        o.dz_error[at] = fabsl(slope) * (error + 4 * u * fabsl(inner)) + smallest(c);
    }
    *scale_error = fabsl(gamma) * s1_error + fabsl(beta) * s0_error + 0x1p-50L * (fabsl(gamma * s1) + fabsl(beta * s0));
    return gamma * s1 + beta * s0;
}

static void check_backward(const head_case *c)
{
    long double u = unit(c);
    room(&o.dz, c->rows * c->columns);
    room(&o.dz_error, c->rows * c->columns);
    oracle_dz(c);
    long double total = 0, total_error = 0;
    for (int64_t j = 0; j < c->columns; j++) {
        long double error, part = oracle_column(c, j, &error);
        total += part;
        total_error += error;
        if (tensors[HEAD_SCALE].given && tensors[HEAD_SCALE].count > 1)
            expect(c, HEAD_GRAD_SCALE, j, part, error);
    }
    if (tensors[HEAD_SCALE].given && tensors[HEAD_SCALE].count == 1)
        expect(c, HEAD_GRAD_SCALE, 0, total, total_error);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t k = 0; k < c->depth; k++) {
            long double sum = 0, size = 0, error = 0;
            for (int64_t j = 0; j < c->columns; j++) {
                long double w = head_get(&tensors[HEAD_WEIGHT], j * c->depth + k);
                sum += o.dz[i * c->columns + j] * w;
                size += fabsl(o.dz[i * c->columns + j] * w);
                error += o.dz_error[i * c->columns + j] * fabsl(w);
            }
            expect(c, HEAD_GRAD_INPUT, i * c->depth + k, sum, error + u * PRODUCT_ERROR(c->columns) * size);
        }
    for (int64_t j = 0; j < c->columns; j++)
        for (int64_t k = 0; k < c->depth; k++) {
            long double sum = 0, size = 0, error = 0;
            for (int64_t i = 0; i < c->rows; i++) {
                long double x = head_get(&tensors[HEAD_INPUT], i * c->depth + k);
                sum += o.dz[i * c->columns + j] * x;
                size += fabsl(o.dz[i * c->columns + j] * x);
                error += o.dz_error[i * c->columns + j] * fabsl(x);
            }
            expect(c, HEAD_GRAD_WEIGHT, j * c->depth + k, sum, error + u * PRODUCT_ERROR(c->rows) * size);
        }
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static const onepass_tensor *given(int tensor)
{
    return tensors[tensor].given ? &tensors[tensor].tensor : NULL;
}

static onepass_handle *make_handle(onep_level level, int32_t threads, const char *blas)
{
    onepass_handle *handle = NULL;
    onepass_config config = {
        .size = sizeof config, .threads = threads, .isa = onep_level_name(level), .blas = blas ? blas : "none"};
    CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
    return handle;
}

/* Results may be asked for in any combination, but product, mean and rstd go together. */
static int saves(const head_case *c)
{
    return (c->present & HEAD_BIT(HEAD_PRODUCT)) != 0;
}

static onepass_status run_backward(onepass_handle *handle, onepass_head_options *options)
{
    onepass_head_gradients gradients = {.size = sizeof gradients,
                                        .input = given(HEAD_GRAD_INPUT),
                                        .weight = given(HEAD_GRAD_WEIGHT),
                                        .bias = given(HEAD_GRAD_BIAS),
                                        .gamma = given(HEAD_GRAD_GAMMA),
                                        .beta = given(HEAD_GRAD_BETA),
                                        .scale = given(HEAD_GRAD_SCALE)};
    size_t bytes = 0;
    onepass_status status =
        onepass_head_backward_workspace_size(handle, given(HEAD_INPUT), given(HEAD_WEIGHT), options, &bytes);
    options->workspace = head_workspace(bytes);
    options->workspace_size = bytes;
    if (status == ONEPASS_OK)
        status = onepass_head_backward(handle, given(HEAD_GRAD_OUTPUT), given(HEAD_OUTPUT), given(HEAD_INPUT),
                                       given(HEAD_WEIGHT), given(HEAD_PRODUCT), given(HEAD_MEAN), given(HEAD_RSTD),
                                       options, &gradients);
    head_check_workspace();
    return status;
}

static void describe(const head_case *c, onep_level level)
{
    char text[1500];
    int used = snprintf(text, sizeof text,
                        "head, %s, %" PRId64 " x %" PRId64 " x %" PRId64 ", %s, eps %g, momentum %g%s, "
                        "scale %s, threads %d, blas %s:",
                        onep_level_name(level), c->rows, c->depth, c->columns, c->statistics ? "running" : "batch",
                        c->eps, c->momentum, c->cumulative ? " cumulative" : "", c->scale_each ? "each" : "one",
                        (int)c->threads, c->blas ? c->blas : "none");
    for (int i = 0; i < HEAD_TENSORS; i++)
        if (is_given(c, i))
            used += snprintf(text + used, sizeof text - (size_t)used, " %s %s %s;", names[i],
                             onep_type_name(c->type[i]), layout_names[c->layout[i]]);
    test_context("%s", text);
}

void head_run(const head_case *c, onep_level level, uint64_t stream)
{
    describe(c, level);
    test_random random = test_random_stream(stream);
    place_all(c);
    fill_all(c, &random);
    int backward = saves(c) && !c->no_backward;
    for (int i = HEAD_PRODUCT; i <= HEAD_RSTD; i++)
        tensors[i].given = saves(c);
    unsigned wanted = 0;
    for (int i = HEAD_GRAD_INPUT; i < HEAD_TENSORS; i++) {
        tensors[i].given &= backward;
        wanted |= (unsigned)tensors[i].given;
    }
    o.old_mean = claim(o.old_mean, (size_t)c->columns * sizeof(double));
    o.old_var = claim(o.old_var, (size_t)c->columns * sizeof(double));
    for (int64_t j = 0; j < c->columns; j++) {
        o.old_mean[j] = head_get(&tensors[HEAD_RUNNING_MEAN], j);
        o.old_var[j] = head_get(&tensors[HEAD_RUNNING_VAR], j);
    }
    for (int i = 0; i < HEAD_TENSORS; i++)
        head_remember(&tensors[i]);
    onepass_handle *handle = make_handle(level, c->threads, c->blas);
    onepass_head_options options = {.size = sizeof options,
                                    .statistics = c->statistics,
                                    .cumulative = c->cumulative,
                                    .eps = c->eps,
                                    .momentum = c->statistics == ONEPASS_RUNNING_STATISTICS ? 0 : c->momentum,
                                    .bias = given(HEAD_BIAS),
                                    .gamma = given(HEAD_GAMMA),
                                    .beta = given(HEAD_BETA),
                                    .scale = given(HEAD_SCALE),
                                    .running_mean = given(HEAD_RUNNING_MEAN),
                                    .running_var = given(HEAD_RUNNING_VAR),
                                    .batches_tracked = given(HEAD_COUNTER)};
    size_t bytes = 0;
    onepass_status status = onepass_head_workspace_size(handle, given(HEAD_INPUT), given(HEAD_WEIGHT), &options,
                                                        given(HEAD_OUTPUT), given(HEAD_PRODUCT), &bytes);
    options.workspace = head_workspace(bytes);
    options.workspace_size = bytes;
    if (status == ONEPASS_OK)
        status = onepass_head(handle, given(HEAD_INPUT), given(HEAD_WEIGHT), &options, given(HEAD_OUTPUT),
                              given(HEAD_PRODUCT), given(HEAD_MEAN), given(HEAD_RSTD));
    head_check_workspace();
    if (CHECK(status == ONEPASS_OK, "refused: %s", onepass_last_error())) {
        check_forward(c);
        if (wanted) {
            status = run_backward(handle, &options);
            if (CHECK(status == ONEPASS_OK, "backward refused: %s", onepass_last_error()))
                check_backward(c);
        }
    }
    int updates = c->statistics == ONEPASS_BATCH_STATISTICS;
    for (int i = 0; i < HEAD_TENSORS; i++)
        head_check_memory(&tensors[i], names[i],
                          is_output(i) || (updates && i >= HEAD_RUNNING_MEAN && i <= HEAD_COUNTER));
    onepass_destroy(handle);
}

uint64_t head_digest(void)
{
    uint64_t digest = 1469598103934665603u;
    for (int i = HEAD_RUNNING_MEAN; i < HEAD_TENSORS; i++)
        for (int64_t k = 0; k < tensors[i].count && tensors[i].given; k++) {
            const char *at = head_at(&tensors[i], k);
            for (size_t b = 0; b < onep_type_size(tensors[i].type); b++)
                digest = (digest ^ (unsigned char)at[b]) * 1099511628211u;
        }
    return digest;
}
