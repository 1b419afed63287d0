/*
 * KL divergence of many short rows and of operands that lie column after column, which the CPU computes by the tile:
 * shapes around every size of a tile, layouts that agree and that do not, weights, masks, upstream gradients, special
 * values; the same bits for any number of threads, with and without gradients, and for an element whatever stands
 * beside it.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kl_cases.h"

enum { REDUCTIONS = ONEPASS_DIVISOR + 1 };

static uint64_t streams; /* one stream of random numbers a case */

static int run(kl_case *c)
{
    c->stream = ++streams;
    return kl_case_check(c);
}

/* ---- against the exact answer ------------------------------------------------------------------------------------ */

/* Rows that fill a tile and a little more or less, columns on both sides of what counts as short. */
static const struct {
    int ndim;
    int64_t shape[3];
} shapes[] = {
    {2, {255, 1}},   {2, {257, 1}},    {2, {300, 2}},    {2, {170, 3}},   {2, {75, 7}},
    {2, {99, 10}},   {2, {50, 16}},    {2, {16, 31}},    {2, {11, 48}},   {2, {11, 49}},
    {2, {130, 70}},  {2, {40, 130}},   {2, {5, 300}},    {2, {260, 17}},  {3, {5, 40, 3}},
    {3, {40, 5, 3}}, {3, {3, 130, 2}}, {3, {2, 33, 20}}, {3, {9, 1, 33}}, {3, {1, 90, 5}},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static const case_layout even_layouts[] = {CASE_COMPACT, CASE_ROW_MAJOR, CASE_PADDED,        CASE_FORTRAN,
                                           CASE_ROTATED, CASE_FORTRAN,   CASE_NEGATIVE_ROWS, CASE_COLUMN_STEP};

/* What is asked for at random; in half of the cases all tensors lie alike, as they mostly do. */
static void test_random_cases(test_random *random, int count)
{
    for (int i = 0; i < count; i++) {
        kl_case c = kl_case_plain((onep_kl_form)test_random_below(random, ONEP_KL_FORMS), ONEP_F32, 1, 1);
        kl_case_shuffle(&c, random);
        int shape = i % SHAPES;
        c.ndim = shapes[shape].ndim;
        memcpy(c.shape, shapes[shape].shape, sizeof shapes[shape].shape);
        c.reduction = (onepass_reduction)test_random_below(random, REDUCTIONS);
        c.divisor = c.reduction == ONEPASS_DIVISOR ? test_random_between(random, 0.5, 100) : 0;
        c.semantics = (onepass_semantics)test_random_below(random, 2);
        c.data = (kl_data)test_random_below(random, KL_SPECIAL + 1);
        unsigned outputs = 1 + (unsigned)test_random_below(random, 7);
        c.present = outputs << KL_VALUE | (unsigned)test_random_below(random, 8) << KL_WEIGHTS;
        if (i % 2) {
            case_layout layout = even_layouts[test_random_below(random, 8)];
            onep_type type = (onep_type)test_random_below(random, ONEP_FLOAT_TYPES);
            for (int tensor = 0; tensor < KL_TENSORS; tensor++) {
                c.layout[tensor] = layout;
                c.type[tensor] = type;
            }
        }
        run(&c);
    }
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

enum { MOST = 1 << 15 };
static float predictions[MOST], targets[MOST], gradients[2][MOST], values[3][MOST];

static int has_same_bits(const float *a, const float *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static onepass_tensor matrix(float *data, int64_t *shape, int64_t *strides)
{
    onepass_tensor tensor = kl_tensor(ONEP_F32, data, 2, shape);
    tensor.strides = strides;
    return tensor;
}

/* A value per row of short rows and of columns that are contiguous: alone, with a gradient, on one thread and on three.
 */
static void test_bits(onep_level level, test_random *random)
{
    static const int64_t extents[][2] = {{9001, 3}, {3000, 10}, {1100, 29}, {500, 64}, {129, 250}};
    onepass_handle *one = test_handle(level, 1), *three = test_handle(level, 3);
    for (size_t i = 0; i < sizeof extents / sizeof extents[0]; i++)
        for (int by_columns = 0; by_columns < 2; by_columns++) {
            int64_t rows = extents[i][0], columns = extents[i][1], shape[] = {rows, columns};
            int64_t strides[] = {by_columns ? 1 : columns, by_columns ? rows : 1};
            for (int64_t at = 0; at < rows * columns; at++) {
                predictions[at] = (float)test_random_between(random, 0.001, 1);
                targets[at] = test_random_below(random, 9) ? (float)test_random_between(random, 0.001, 1) : 0;
            }
            onepass_tensor p = matrix(predictions, shape, strides), t = matrix(targets, shape, strides);
            onepass_kl_options options = {.size = sizeof options, .reduction = ONEPASS_ROWS};
            memset(values, 0xff, sizeof values);
            memset(gradients, 0xff, sizeof gradients);
            for (int call = 0; call < 3; call++) {
                int64_t row_shape[] = {rows};
                onepass_tensor v = kl_tensor(ONEP_F32, values[call], 1, row_shape);
                onepass_tensor g = matrix(gradients[call > 1], shape, strides);
                onepass_status status =
                    onepass_kl_probs_probs(call == 2 ? three : one, &p, &t, &options, &v, call > 0 ? &g : NULL, NULL);
                CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
            }
            test_context("level %s, %" PRId64 " x %" PRId64 "%s", onep_level_name(level), rows, columns,
                         by_columns ? ", columns contiguous" : "");
            CHECK(values[0][0] == values[0][0] && values[0][rows - 1] == values[0][rows - 1], "rows were not written");
            CHECK(has_same_bits(values[0], values[1], rows), "a gradient changes the value");
            CHECK(has_same_bits(values[1], values[2], rows), "threads change the value");
            CHECK(has_same_bits(gradients[0], gradients[1], rows * columns), "threads change the gradient");
        }
    onepass_destroy(one);
    onepass_destroy(three);
}

/* An element beside zeros, infinities and NaN has the bits that it has among ordinary ones. */
static void test_neighbours(onep_level level, test_random *random)
{
    enum { COUNT = 400 };
    static const float odd[] = {0, -0.0f, 1e-40f, -1, INFINITY, NAN, 3e38f};
    onepass_handle *handle = test_handle(level, 1);
    for (int form = 0; form < ONEP_KL_FORMS; form++)
        for (int semantics = 0; semantics <= ONEPASS_FINITE; semantics++) {
            int64_t shape[] = {COUNT};
            onepass_kl_options options = {
                .size = sizeof options, .reduction = ONEPASS_NONE, .semantics = (onepass_semantics)semantics};
            static unsigned char is_odd[COUNT];
            memset(values, 0xff, sizeof values);
            memset(gradients, 0xff, sizeof gradients);
            for (int i = 0; i < COUNT; i++) {
                predictions[i] = (float)(ONEP_KL_LOG_PREDICTIONS(form) ? test_random_between(random, -9, 0)
                                                                       : test_random_between(random, 0.01, 1));
                targets[i] = (float)(ONEP_KL_LOG_TARGETS(form) ? test_random_between(random, -9, 0)
                                                               : test_random_between(random, 0.01, 1));
                is_odd[i] = test_random_below(random, 3) == 0;
            }
            for (int call = 0; call < 2; call++) {
                for (int i = 0; i < COUNT && call == 1; i++)
                    if (is_odd[i]) {
                        float *one = test_random_below(random, 2) ? predictions : targets;
                        one[i] = odd[test_random_below(random, 7)];
                    }
                onepass_tensor p = kl_tensor(ONEP_F32, predictions, 1, shape),
                               t = kl_tensor(ONEP_F32, targets, 1, shape);
                onepass_tensor v = kl_tensor(ONEP_F32, values[call], 1, shape);
                onepass_tensor g = kl_tensor(ONEP_F32, gradients[call], 1, shape);
                onepass_status status = kl_entry_of((onep_kl_form)form)(handle, &p, &t, &options, &v, &g, NULL);
                CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
            }
            test_context("level %s, %s, %s", onep_level_name(level), kl_form_name((onep_kl_form)form),
                         semantics ? "finite" : "strict");
            for (int i = 0; i < COUNT; i++)
                if (!is_odd[i]) {
                    CHECK(values[0][i] == values[1][i], "value[%d]: %.9g and %.9g", i, (double)values[0][i],
                          (double)values[1][i]);
                    CHECK(gradients[0][i] == gradients[1][i], "gradient[%d]: %.9g and %.9g", i, (double)gradients[0][i],
                          (double)gradients[1][i]);
                }
        }
    onepass_destroy(handle);
}

int main(void)
{
    test_begin("test_kl_tiles");
    test_random random = test_random_stream(0);
    test_random_cases(&random, test_quick() ? 400 : 4000);
    for (int level = 0; level < ONEP_LEVELS; level++)
        if (onep_level_runs((onep_level)level)) {
            test_bits((onep_level)level, &random);
            test_neighbours((onep_level)level, &random);
        }
    kl_print_worst();
    return test_end();
}
