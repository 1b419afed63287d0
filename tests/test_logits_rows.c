/*
 * What a row of a loss from logits promises whatever else is in the call, at every level: masked columns count as they
 * should, equal inputs are exactly 0 apart and have one entropy, small losses keep their digits, and a row's bits are
 * the same alone and in a batch, contiguous, strided and in place, with one result asked for or all of them.
 */
#include <math.h>
#include <string.h>

#include "harness.h"

enum { ROWS = 5, COLUMNS = 700, DIVERGENCES = ONEPASS_TOTAL_VARIATION + 1 };

static onepass_tensor matrix(float *data, int64_t *shape, int64_t *strides)
{
    return (onepass_tensor){
        .data = data, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = ONEPASS_F32, .shape = shape, .strides = strides};
}

static onepass_tensor one_per_row(void *data, onepass_dtype dtype, int64_t *shape)
{
    return (onepass_tensor){.data = data, .device = {ONEPASS_CPU, 0}, .ndim = 1, .dtype = dtype, .shape = shape};
}

static onepass_logits_options options_of(int divergence)
{
    int mixes = divergence >= ONEPASS_JS && divergence <= ONEPASS_SKEW_REVERSE_KL;
    return (onepass_logits_options){.size = sizeof(onepass_logits_options),
                                    .reduction = ONEPASS_ROWS,
                                    .divergence = (onepass_divergence)divergence,
                                    .mixture = mixes ? 0.25 : 0};
}

/* S is even over `all` columns, T over the first `some` of them: every divergence has a closed form. */
static double masked_divergence(int divergence, double some, double all)
{
    double t = 1 / some, s = 1 / all, q = 0.25, mass = some / all; /* what S has where T is not 0 */
    double m = divergence == ONEPASS_SKEW_REVERSE_KL ? (1 - q) * t + q * s : q * t + (1 - q) * s;
    double m_rest = divergence == ONEPASS_SKEW_REVERSE_KL ? q * s : (1 - q) * s;
    double t_to_m = log(t / m), s_to_m = mass * log(s / m) + (1 - mass) * log(s / m_rest);
    switch (divergence) {
    case ONEPASS_KL:
        return log(t / s);
    case ONEPASS_REVERSE_KL:
        return (double)INFINITY;
    case ONEPASS_JS:
        return q * t_to_m + (1 - q) * s_to_m;
    case ONEPASS_SKEW_KL:
        return t_to_m;
    case ONEPASS_SKEW_REVERSE_KL:
        return s_to_m;
    default:
        return 1 - mass;
    }
}

static void test_masked_columns(onepass_handle *handle)
{
    static float x[COLUMNS], y[COLUMNS];
    int64_t shape[] = {1, COLUMNS};
    enum { ALL = 650, SOME = 130 }; /* the columns after ALL are masked on both sides */
    for (int c = 0; c < COLUMNS; c++) {
        x[c] = c < ALL ? 3 : -INFINITY;
        y[c] = c < SOME ? -2 : -INFINITY;
    }
    for (int divergence = 0; divergence < DIVERGENCES; divergence++) {
        onepass_logits_options options = options_of(divergence);
        float value = -1;
        onepass_tensor tx = matrix(x, shape, NULL), ty = matrix(y, shape, NULL);
        onepass_tensor tv = one_per_row(&value, (onepass_dtype)ONEPASS_F32, shape);
        onepass_status status = onepass_divergence_logits_logits(handle, &tx, &ty, &options, &tv, NULL, NULL);
        double expected = masked_divergence(divergence, SOME, ALL);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(isinf(expected) ? (double)value == expected : fabs((double)value - expected) < 1e-6 * expected,
              "divergence %d: got %.9g, expected %.9g", divergence, (double)value, expected);
    }
}

static void fill(float *x, float *y, int64_t *labels)
{
    test_random random = test_random_stream(1);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        x[i] = (float)test_random_between(&random, -3, 3);
        y[i] = (float)test_random_between(&random, -3, 3);
    }
    for (int r = 0; r < ROWS; r++)
        labels[r] = test_random_below(&random, COLUMNS);
}

/* Every divergence of x from y is exactly 0 in every row. */
static void check_zero(onepass_handle *handle, float *x, float *y, int64_t *shape, double temperature)
{
    for (int divergence = 0; divergence < DIVERGENCES; divergence++) {
        onepass_logits_options options = options_of(divergence);
        options.temperature = temperature;
        float value[ROWS];
        onepass_tensor tx = matrix(x, shape, NULL), ty = matrix(y, shape, NULL);
        onepass_tensor tv = one_per_row(value, (onepass_dtype)ONEPASS_F32, shape);
        onepass_status status = onepass_divergence_logits_logits(handle, &tx, &ty, &options, &tv, NULL, NULL);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        for (int r = 0; r < ROWS; r++)
            CHECK(value[r] == 0, "divergence %d, %d columns: row %d is %g, not 0", divergence, (int)shape[1], r,
                  (double)value[r]);
    }
}

static void test_equal_inputs(onepass_handle *handle)
{
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
    int64_t labels[ROWS], shape[] = {ROWS, COLUMNS};
    fill(x, y, labels);
    memcpy(y, x, sizeof y);
    check_zero(handle, x, y, shape, 1.7);
}

/* Of one column every softmax is 1, whatever the logits. */
static void test_one_column(onepass_handle *handle)
{
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
    int64_t labels[ROWS], shape[] = {ROWS, 1};
    fill(x, y, labels);
    check_zero(handle, x, y, shape, 0.7);
}

/* The label towers above the rest by more and more: NLL is nearly the sum of the others. */
static void test_small_losses(onepass_handle *handle)
{
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS], gradient[ROWS * COLUMNS];
    int64_t labels[ROWS], shape[] = {ROWS, COLUMNS};
    fill(x, y, labels);
    for (int r = 0; r < ROWS; r++)
        x[r * COLUMNS + labels[r]] = (float)(8 + 5 * r);
    onepass_logits_options options = {.size = sizeof options, .reduction = ONEPASS_ROWS};
    float value[ROWS];
    onepass_tensor tx = matrix(x, shape, NULL), tg = matrix(gradient, shape, NULL);
    onepass_tensor tl = one_per_row(labels, (onepass_dtype)ONEPASS_I64, shape);
    onepass_tensor tv = one_per_row(value, (onepass_dtype)ONEPASS_F32, shape);
    onepass_status status = onepass_cross_entropy_logits_labels(handle, &tx, &tl, &options, &tv, &tg);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    for (int r = 0; r < ROWS; r++) {
        long double others = 0;
        for (int c = 0; c < COLUMNS; c++)
            if (c != labels[r])
                others += expl((long double)x[r * COLUMNS + c] - (long double)x[r * COLUMNS + labels[r]]);
        double nll = (double)log1pl(others), at_label = (double)(-others / (1 + others));
        double got = (double)gradient[r * COLUMNS + labels[r]];
        CHECK(fabs((double)value[r] - nll) <= 4e-6 * nll, "NLL: got %.9g, expected %.9g", (double)value[r], nll);
        CHECK(fabs(got - at_label) <= -4e-6 * at_label, "gradient at the label: got %.9g, expected %.9g", got,
              at_label);
    }
}

/* A side's entropy is that of its softmax alone: the same for the same logits on the other side, also where all but one
 * probability are below the smallest float (gaps of 104 and more). */
static void test_entropies(onepass_handle *handle)
{
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
    int64_t labels[ROWS], shape[] = {ROWS, COLUMNS};
    fill(x, y, labels);
    for (int r = 0; r < ROWS; r++)
        x[r * COLUMNS + labels[r]] = (float)(8 + 40 * r);
    memcpy(y, x, sizeof y);
    onepass_logits_options options = options_of(ONEPASS_KL);
    double entropy[2][ROWS];
    float value[ROWS];
    onepass_tensor tx = matrix(x, shape, NULL), ty = matrix(y, shape, NULL);
    onepass_tensor tv = one_per_row(value, (onepass_dtype)ONEPASS_F32, shape);
    onepass_tensor ts = one_per_row(entropy[0], (onepass_dtype)ONEPASS_F64, shape);
    onepass_tensor tt = one_per_row(entropy[1], (onepass_dtype)ONEPASS_F64, shape);
    options.entropy = &ts;
    options.target_entropy = &tt;
    onepass_status status = onepass_divergence_logits_logits(handle, &tx, &ty, &options, &tv, NULL, NULL);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    for (int r = 0; r < ROWS; r++)
        CHECK(entropy[0][r] >= 0 && entropy[1][r] == entropy[0][r],
              "entropy of row %d: %.9g of the targets, %.9g of the predictions", r, entropy[1][r], entropy[0][r]);
}

/* Entropies that are asked for change no bit of what else is, of rows that share vectors and of others. */
static void test_entropies_beside(onepass_handle *handle)
{
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS], gradient[2][ROWS * COLUMNS];
    int64_t labels[ROWS];
    static const int64_t widths[] = {5, 37, 64, 128, 129, COLUMNS};
    fill(x, y, labels);
    for (int divergence = 0; divergence < DIVERGENCES; divergence++)
        for (int w = 0; w < 6; w++) {
            int64_t shape[] = {ROWS, widths[w]};
            double value[2][ROWS], lse[2][ROWS], entropy[2][ROWS];
            for (int with = 0; with < 2; with++) {
                onepass_logits_options options = options_of(divergence);
                onepass_tensor tx = matrix(x, shape, NULL), ty = matrix(y, shape, NULL);
                onepass_tensor tg = matrix(gradient[with], shape, NULL);
                onepass_tensor tv = one_per_row(value[with], (onepass_dtype)ONEPASS_F64, shape);
                onepass_tensor tl = one_per_row(lse[with], (onepass_dtype)ONEPASS_F64, shape);
                onepass_tensor ts = one_per_row(entropy[0], (onepass_dtype)ONEPASS_F64, shape);
                onepass_tensor tt = one_per_row(entropy[1], (onepass_dtype)ONEPASS_F64, shape);
                options.lse = &tl;
                options.entropy = with ? &ts : NULL;
                options.target_entropy = with ? &tt : NULL;
                onepass_status status = onepass_divergence_logits_logits(handle, &tx, &ty, &options, &tv, &tg, NULL);
                CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
            }
            size_t bytes = (size_t)(ROWS * widths[w]) * sizeof(float);
            CHECK(memcmp(value[0], value[1], sizeof value[0]) == 0 && memcmp(lse[0], lse[1], sizeof lse[0]) == 0 &&
                      memcmp(gradient[0], gradient[1], bytes) == 0,
                  "divergence %d, %d columns: entropies change other results", divergence, (int)widths[w]);
        }
}

static void check_same(const float *got, int64_t step, const float *expected, int count, const char *how)
{
    int different = 0;
    for (int i = 0; i < count; i++)
        different += memcmp(&got[i * step], &expected[i], sizeof(float)) != 0;
    CHECK(different == 0, "%s: %d of %d numbers have other bits", how, different, count);
}

/* With labels, so that both parts of a gradient meet. */
static void test_bits(onepass_handle *handle, int divergence)
{
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS], gx[ROWS * COLUMNS], gy[ROWS * COLUMNS];
    static float apart[2][ROWS * COLUMNS * 2], alone[COLUMNS];
    int64_t labels[ROWS], shape[] = {ROWS, COLUMNS}, strides[] = {2 * COLUMNS, 2}, one[] = {1, COLUMNS};
    float value[ROWS], lse[ROWS], again[ROWS];
    fill(x, y, labels);
    onepass_logits_options options = options_of(divergence);
    onepass_tensor tx = matrix(x, shape, NULL), ty = matrix(y, shape, NULL), tgx = matrix(gx, shape, NULL);
    onepass_tensor tgy = matrix(gy, shape, NULL), tl = one_per_row(labels, (onepass_dtype)ONEPASS_I64, shape);
    onepass_tensor tv = one_per_row(value, (onepass_dtype)ONEPASS_F32, shape);
    onepass_tensor t_lse = one_per_row(lse, (onepass_dtype)ONEPASS_F32, shape);
    options.labels = &tl;
    options.label_weight = 0.5;
    options.lse = &t_lse;
    onepass_status status = onepass_divergence_logits_logits(handle, &tx, &ty, &options, &tv, &tgx, &tgy);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());

    options.lse = NULL;
    tv.data = again;
    status = onepass_divergence_logits_logits(handle, &tx, &ty, &options, &tv, NULL, NULL);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    check_same(again, 1, value, ROWS, "the value alone");

    for (int i = 0; i < ROWS * COLUMNS; i++) {
        apart[0][2 * i] = x[i];
        apart[1][2 * i] = y[i];
    }
    tx = tgx = matrix(apart[0], shape, strides);
    ty = tgy = matrix(apart[1], shape, strides);
    status = onepass_divergence_logits_logits(handle, &tx, &ty, &options, &tv, &tgx, &tgy);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    check_same(again, 1, value, ROWS, "the value, strided and in place");
    check_same(apart[0], 2, gx, ROWS * COLUMNS, "the gradient to predictions, strided and in place");
    check_same(apart[1], 2, gy, ROWS * COLUMNS, "the gradient to targets, strided and in place");

    int row = ROWS - 2;
    tx = matrix(x + row * COLUMNS, one, NULL);
    ty = matrix(y + row * COLUMNS, one, NULL);
    tgx = matrix(alone, one, NULL);
    tl = one_per_row(labels + row, (onepass_dtype)ONEPASS_I64, one);
    tv = one_per_row(again, (onepass_dtype)ONEPASS_F32, one);
    status = onepass_divergence_logits_logits(handle, &tx, &ty, &options, &tv, &tgx, NULL);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    check_same(again, 1, value + row, 1, "the value of a row by itself");
    check_same(alone, 1, gx + row * COLUMNS, COLUMNS, "the gradient of a row by itself");
}

/*
 * Cross-entropy of rows that share vectors: what a row gives, alone and among others, with its LSE asked for or not,
 * strided and in place, with rows left out before it.
 */
static void test_narrow_bits(onepass_handle *handle, onep_type type, int64_t columns)
{
    enum { NARROW_ROWS = 37, MOST = NARROW_ROWS * 130 };
    static double x[MOST], gradient[MOST], other[2 * MOST], value[NARROW_ROWS], again[NARROW_ROWS], lse[NARROW_ROWS];
    static double class_weights[130], weights[NARROW_ROWS];
    int64_t labels[NARROW_ROWS], shape[] = {NARROW_ROWS, columns}, one[] = {1, columns}, strides[] = {2 * columns, 2};
    size_t size = onep_type_size(type), row_size = size * (size_t)columns;
    onepass_dtype dtype = test_dtype(type);
    for (int64_t i = 0; i < NARROW_ROWS * columns; i++)
        onep_store(type, (char *)x + (size_t)i * size, 3 * sin((double)i * 0.7) + cos((double)i * 0.13));
    for (int64_t c = 0; c < columns; c++)
        onep_store(type, (char *)class_weights + (size_t)c * size, 0.5 + 0.01 * (double)c);
    for (int r = 0; r < NARROW_ROWS; r++) {
        labels[r] = r % 7 == 3 ? -100 : (r * 5) % columns;
        onep_store(type, (char *)weights + (size_t)r * size, 1 + 0.1 * r);
    }
    onepass_logits_options options = {.size = sizeof options, .reduction = ONEPASS_ROWS, .temperature = 1.7};
    onepass_tensor tx = {.data = x, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = dtype, .shape = shape};
    onepass_tensor tg = tx, tl = one_per_row(labels, (onepass_dtype)ONEPASS_I64, shape);
    onepass_tensor tv = one_per_row(value, dtype, shape), t_lse = one_per_row(lse, dtype, shape);
    onepass_tensor tw = one_per_row(weights, dtype, shape), tc = one_per_row(class_weights, dtype, shape + 1);
    tg.data = gradient;
    memset(value, 0xff, sizeof value);
    memset(gradient, 0xff, sizeof gradient);
    options.row_weights = &tw;
    options.class_weights = &tc;
    onepass_status status = onepass_cross_entropy_logits_labels(handle, &tx, &tl, &options, &tv, &tg);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());

    options.lse = &t_lse;
    tv.data = again;
    tg.data = other;
    status = onepass_cross_entropy_logits_labels(handle, &tx, &tl, &options, &tv, &tg);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(memcmp(again, value, size * NARROW_ROWS) == 0, "asking for the LSE changes values");
    CHECK(memcmp(other, gradient, row_size * NARROW_ROWS) == 0, "asking for the LSE changes gradients");

    options.lse = NULL;
    for (int64_t i = 0; i < NARROW_ROWS * columns; i++)
        memcpy((char *)other + 2 * (size_t)i * size, (char *)x + (size_t)i * size, size);
    tx.data = tg.data = other;
    tx.strides = tg.strides = strides;
    status = onepass_cross_entropy_logits_labels(handle, &tx, &tl, &options, &tv, &tg);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(memcmp(again, value, size * NARROW_ROWS) == 0, "strides change values");
    int different = 0;
    for (int64_t i = 0; i < NARROW_ROWS * columns; i++)
        different += memcmp((char *)other + 2 * (size_t)i * size, (char *)gradient + (size_t)i * size, size) != 0;
    CHECK(different == 0, "strides change %d gradients", different);

    /* Rows that are neighbours in memory: other bits only where a row is wider than those that share vectors anyway. */
    int64_t tall[] = {1, NARROW_ROWS};
    for (int64_t r = 0; r < NARROW_ROWS; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy((char *)other + (size_t)(c * NARROW_ROWS + r) * size, (char *)x + (size_t)(r * columns + c) * size,
                   size);
    tx.strides = tg.strides = tall;
    status = onepass_cross_entropy_logits_labels(handle, &tx, &tl, &options, &tv, &tg);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    if (columns * (type == ONEP_F64 ? 8 : 4) <= 512) {
        CHECK(memcmp(again, value, size * NARROW_ROWS) == 0, "rows beside each other have other values");
        different = 0;
        for (int64_t r = 0; r < NARROW_ROWS; r++)
            for (int64_t c = 0; c < columns; c++)
                different += memcmp((char *)other + (size_t)(c * NARROW_ROWS + r) * size,
                                    (char *)gradient + (size_t)(r * columns + c) * size, size) != 0;
        CHECK(different == 0, "rows beside each other have %d other gradients", different);
    }

    tx.strides = tg.strides = NULL;
    tx.shape = tg.shape = one;
    for (int r = 0; r < NARROW_ROWS; r++) {
        tx.data = (char *)x + (size_t)r * row_size;
        tg.data = other;
        tl = one_per_row(labels + r, (onepass_dtype)ONEPASS_I64, one);
        tw = one_per_row((char *)weights + (size_t)r * size, dtype, one);
        tv = one_per_row(again, dtype, one);
        status = onepass_cross_entropy_logits_labels(handle, &tx, &tl, &options, &tv, &tg);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(memcmp(again, (char *)value + (size_t)r * size, size) == 0, "row %d alone has another value", r);
        CHECK(memcmp(other, (char *)gradient + (size_t)r * row_size, row_size) == 0,
              "row %d alone has another gradient", r);
    }
}

/* Wide rows that are neighbours in memory: rows left out between them change nothing in the others. */
static void test_tall_bits(onepass_handle *handle, onep_type type)
{
    enum { TALL_ROWS = 53, WIDE = 150, COUNT = TALL_ROWS * WIDE };
    static double x[COUNT], gradient[2][COUNT], value[2][TALL_ROWS];
    int64_t labels[TALL_ROWS], shape[] = {TALL_ROWS, WIDE}, strides[] = {1, TALL_ROWS};
    size_t size = onep_type_size(type);
    for (int i = 0; i < COUNT; i++)
        onep_store(type, (char *)x + (size_t)i * size, 3 * sin(i * 0.7) + cos(i * 0.13));
    onepass_logits_options options = {.size = sizeof options, .reduction = ONEPASS_ROWS};
    memset(gradient, 0xff, sizeof gradient);
    for (int call = 0; call < 2; call++) {
        for (int r = 0; r < TALL_ROWS; r++)
            labels[r] = call == 1 && r % 19 == 5 ? -100 : (r * 7) % WIDE;
        onepass_tensor tx = {
            .data = x, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = test_dtype(type), .shape = shape};
        onepass_tensor tl = one_per_row(labels, (onepass_dtype)ONEPASS_I64, shape);
        onepass_tensor tv = one_per_row(value[call], test_dtype(type), shape);
        tx.strides = strides;
        onepass_tensor tg = tx;
        tg.data = gradient[call];
        onepass_status status = onepass_cross_entropy_logits_labels(handle, &tx, &tl, &options, &tv, &tg);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    }
    for (int r = 0; r < TALL_ROWS; r++) {
        int is_left_out = r % 19 == 5, different = 0;
        for (int c = 0; c < WIDE; c++) {
            size_t at = (size_t)(c * TALL_ROWS + r) * size;
            if (is_left_out)
                different += onep_load(type, (char *)gradient[1] + at) != 0;
            else
                different += memcmp((char *)gradient[0] + at, (char *)gradient[1] + at, size) != 0;
        }
        CHECK(different == 0, "row %d: %d gradients differ", r, different);
        if (is_left_out)
            CHECK(onep_load(type, (char *)value[1] + (size_t)r * size) == 0, "row %d, left out, has a value", r);
        else
            CHECK(memcmp((char *)value[0] + (size_t)r * size, (char *)value[1] + (size_t)r * size, size) == 0,
                  "row %d has another value", r);
    }
}

int main(void)
{
    test_begin("test_logits_rows");
    test_print_levels();
    for (int level = ONEP_REF; level < ONEP_LEVELS; level++) {
        if (level != ONEP_REF && !test_covers((onep_level)level))
            continue;
        test_context("level %s", onep_level_name((onep_level)level));
        onepass_handle *handle = test_handle((onep_level)level, 2);
        test_masked_columns(handle);
        test_equal_inputs(handle);
        test_one_column(handle);
        test_small_losses(handle);
        test_entropies(handle);
        test_entropies_beside(handle);
        for (int divergence = 0; divergence < DIVERGENCES; divergence++)
            test_bits(handle, divergence);
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            test_tall_bits(handle, (onep_type)type);
        static const int64_t widths[] = {1, 2, 10, 15, 16, 17, 33, 64, 100, 128, 129};
        for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
            for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
                test_context("level %s, %s, %d columns", onep_level_name((onep_level)level),
                             onep_type_name((onep_type)type), (int)widths[i]);
                test_narrow_bits(handle, (onep_type)type, widths[i]);
            }
        onepass_destroy(handle);
    }
    return test_end();
}
