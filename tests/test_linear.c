/*
 * The linear layer, forward and backward, against an oracle in long double: every level, every type and mixture, shapes
 * below, at and above the edges of strips, panels, tiles and depth blocks, any strides and ranks, every BLAS that is
 * here and none, special values, empty tensors; the same bits on any number of threads and, without BLAS, at any level.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "head_cases.h"

enum { INPUT, WEIGHT, BIAS, GRAD_OUTPUT, OUTPUT, GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS, TENSORS };
static const char *const names[TENSORS] = {"input",  "weight",     "bias",        "grad_output",
                                           "output", "grad_input", "grad_weight", "grad_bias"};

typedef struct linear_case {
    int leading_rank;
    int64_t leading[3], depth, columns;
    onep_type input, weight, output, other; /* other: bias, grad_output, grad_bias */
    head_layout layout[TENSORS];
    test_guard guard;
    size_t shift;
    int no_bias;
    double spoil; /* put into the input's first element if it is not 0 */
    int32_t threads;
    const char *blas; /* NULL: "none" */
} linear_case;

static head_tensor tensors[TENSORS];

static linear_case plain(onep_type type, int64_t rows, int64_t depth, int64_t columns)
{
    return (linear_case){.leading_rank = 1,
                         .leading = {rows},
                         .depth = depth,
                         .columns = columns,
                         .input = type,
                         .weight = type,
                         .output = type,
                         .other = type,
                         .threads = 1};
}

static int64_t row_count(const linear_case *c)
{
    int64_t rows = 1;
    for (int d = 0; d < c->leading_rank; d++)
        rows *= c->leading[d];
    return rows;
}

static void place(const linear_case *c, uint64_t stream)
{
    test_random random = test_random_stream(stream);
    for (int i = 0; i < TENSORS; i++) {
        int64_t shape[4] = {c->columns, c->depth};
        int ndim = i == WEIGHT || i == GRAD_WEIGHT ? 2 : 1;
        if (i == INPUT || i == GRAD_INPUT || i == OUTPUT || i == GRAD_OUTPUT) {
            memcpy(shape, c->leading, sizeof c->leading);
            ndim = c->leading_rank + 1;
            shape[c->leading_rank] = i == INPUT || i == GRAD_INPUT ? c->depth : c->columns;
        }
        onep_type type = i == INPUT || i == GRAD_INPUT     ? c->input
                         : i == WEIGHT || i == GRAD_WEIGHT ? c->weight
                         : i == OUTPUT                     ? c->output
                                                           : c->other;
        head_place(&tensors[i], type, ndim, shape, c->layout[i], c->guard, c->shift);
        for (int64_t k = 0; k < tensors[i].count && i < OUTPUT; k++)
            head_set(&tensors[i], k, test_random_between(&random, -2, 2));
    }
    if (c->spoil != 0)
        head_set(&tensors[INPUT], 0, c->spoil);
    tensors[BIAS].given = !c->no_bias;
    for (int i = 0; i < TENSORS; i++)
        head_remember(&tensors[i]);
}

/* A sum of n products in the type computed in: u sqrt(n) of the sum of magnitudes, doubled, and roundings of the rest.
 */
static void expect(const linear_case *c, int tensor, int64_t index, long double sum, long double size, int64_t n)
{
    int wide = c->input == ONEP_F64 || c->weight == ONEP_F64;
    long double u = wide ? 0x1p-53L : 0x1p-24L;
    long double allowed = u * (8 + 4 * sqrtl((long double)n)) * size + (wide ? 0x1p-1074L : 0x1p-149L);
    double got = head_get(&tensors[tensor], index);
    CHECK(test_close_in(tensors[tensor].type, got, sum, allowed),
          "%s[%" PRId64 "]: got %.17g, expected %.17Lg, allowed %.3Lg", names[tensor], index, got, sum, allowed);
}

static void check_results(const linear_case *c)
{
    int64_t rows = row_count(c), depth = c->depth, columns = c->columns;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            long double sum = tensors[BIAS].given ? (long double)head_get(&tensors[BIAS], j) : 0, size = fabsl(sum);
            for (int64_t k = 0; k < depth; k++) {
                long double term = (long double)head_get(&tensors[INPUT], i * depth + k) *
                                   (long double)head_get(&tensors[WEIGHT], j * depth + k);
                sum += term;
                size += fabsl(term);
            }
            expect(c, OUTPUT, i * columns + j, sum, size, depth);
        }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < depth; k++) {
            long double sum = 0, size = 0;
            for (int64_t j = 0; j < columns; j++) {
                long double term = (long double)head_get(&tensors[GRAD_OUTPUT], i * columns + j) *
                                   (long double)head_get(&tensors[WEIGHT], j * depth + k);
                sum += term;
                size += fabsl(term);
            }
            expect(c, GRAD_INPUT, i * depth + k, sum, size, columns);
        }
    for (int64_t j = 0; j < columns; j++) {
        long double bias = 0, bias_size = 0;
        for (int64_t i = 0; i < rows; i++) {
            long double g = head_get(&tensors[GRAD_OUTPUT], i * columns + j);
            bias += g;
            bias_size += fabsl(g);
        }
        expect(c, GRAD_BIAS, j, bias, bias_size, rows);
        for (int64_t k = 0; k < depth; k++) {
            long double sum = 0, size = 0;
            for (int64_t i = 0; i < rows; i++) {
                long double term = (long double)head_get(&tensors[GRAD_OUTPUT], i * columns + j) *
                                   (long double)head_get(&tensors[INPUT], i * depth + k);
                sum += term;
                size += fabsl(term);
            }
            expect(c, GRAD_WEIGHT, j * depth + k, sum, size, rows);
        }
    }
}

/* The call itself; returns whether it was accepted. */
static int call(const linear_case *c, onep_level level)
{
    onepass_handle *handle = NULL;
    onepass_config config = {.size = sizeof config,
                             .threads = c->threads,
                             .isa = onep_level_name(level),
                             .blas = c->blas ? c->blas : "none"};
    if (!CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error()))
        return 0;
    const onepass_tensor *t[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        t[i] = tensors[i].given ? &tensors[i].tensor : NULL;
    size_t bytes = 0;
    onepass_status status = onepass_linear_workspace_size(handle, t[INPUT], t[WEIGHT], &bytes);
    void *workspace = head_workspace(bytes);
    if (status == ONEPASS_OK)
        status = onepass_linear(handle, t[INPUT], t[WEIGHT], t[BIAS], t[OUTPUT], workspace, bytes);
    if (status == ONEPASS_OK)
        status = onepass_linear_backward(handle, t[GRAD_OUTPUT], t[INPUT], t[WEIGHT], t[GRAD_INPUT], t[GRAD_WEIGHT],
                                         t[GRAD_BIAS], workspace, bytes);
    onepass_destroy(handle);
    return CHECK(status == ONEPASS_OK, "refused: %s", onepass_last_error());
}

static void run(const linear_case *c, onep_level level, uint64_t stream)
{
    test_context("linear, %s, rank %d, %" PRId64 " x %" PRId64 " x %" PRId64 ", %s, %s -> %s (%s), layouts %d %d %d %d "
                 "%d %d %d %d, guard %d, shift %zu, threads %d, blas %s",
                 onep_level_name(level), c->leading_rank + 1, row_count(c), c->depth, c->columns,
                 onep_type_name(c->input), onep_type_name(c->weight), onep_type_name(c->output),
                 onep_type_name(c->other), c->layout[0], c->layout[1], c->layout[2], c->layout[3], c->layout[4],
                 c->layout[5], c->layout[6], c->layout[7], (int)c->guard, c->shift, (int)c->threads,
                 c->blas ? c->blas : "none");
    place(c, stream);
    if (call(c, level)) {
        check_results(c);
        head_check_workspace();
    }
    for (int i = 0; i < TENSORS; i++)
        head_check_memory(&tensors[i], names[i], i >= OUTPUT);
}

static uint64_t digest(void)
{
    uint64_t sum = 0;
    for (int i = OUTPUT; i < TENSORS; i++)
        for (int64_t k = 0; k < tensors[i].count; k++) {
            uint64_t bits = 0;
            memcpy(&bits, head_at(&tensors[i], k), onep_type_size(tensors[i].type));
            sum = (sum ^ bits) * 1099511628211u;
        }
    return sum;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static int slow_level(int level)
{
    return level == ONEP_REF || level == ONEP_SCALAR;
}

/* Each shape with its reason. */
static void test_shapes(int level)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1},     /* one of everything */
        {2, 3, 5},     /* below every strip, panel and vector */
        {6, 16, 32},   /* whole strips and panels at some level */
        {7, 15, 33},   /* one past, one short of them */
        {12, 17, 31},  /* a strip of 12 and a panel less one */
        {13, 64, 65},  /* just above a strip and two panels */
        {1, 300, 40},  /* one row, two depth blocks in float */
        {3, 65, 9},    /* few rows, an odd number of columns, a tail of the depth */
        {4, 48, 6},    /* as many as count as few */
        {40, 256, 1},  /* one column, exactly a depth block */
        {25, 257, 63}, /* a depth block and one */
        {263, 5, 9},   /* just below a tile of rows */
        {265, 4, 257}, /* just above one, and above a tile of columns */
        {530, 3, 64},  /* three tiles of rows */
        {33, 129, 70}, /* more than a depth block in double */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
            if (slow_level(level) && shapes[i][0] * shapes[i][1] * shapes[i][2] > 100000 && type != (int)(i % 4))
                continue;
            linear_case c = plain((onep_type)type, shapes[i][0], shapes[i][1], shapes[i][2]);
            c.no_bias = (int)(i % 2);
            c.guard = (test_guard)(i % TEST_GUARDS);
            run(&c, (onep_level)level, 100 + i);
        }
}

static void test_layouts(int level, test_random *random)
{
    int runs = test_quick() ? 40 : 120;
    for (int i = 0; i < runs; i++) {
        linear_case c = plain(ONEP_F32, 1 + test_random_below(random, 40), 1 + test_random_below(random, 50),
                              1 + test_random_below(random, 70));
        c.input = (onep_type)test_random_below(random, ONEP_FLOAT_TYPES);
        c.weight = (onep_type)test_random_below(random, ONEP_FLOAT_TYPES);
        c.output = onep_promote(c.input, c.weight);
        if (test_random_below(random, 2))
            c.output = onep_promote(c.output, ONEP_F32);
        c.other = (onep_type)test_random_below(random, ONEP_FLOAT_TYPES);
        for (int t = 0; t < TENSORS; t++)
            c.layout[t] = (head_layout)test_random_below(random, t < OUTPUT ? HEAD_LAYOUTS : HEAD_OUTPUT_LAYOUTS);
        c.leading_rank = (int)test_random_below(random, 4);
        for (int d = 1; d < 3; d++)
            c.leading[d] = 1 + test_random_below(random, 3);
        c.guard = (test_guard)test_random_below(random, TEST_GUARDS);
        c.shift = (size_t)test_random_below(random, 2);
        c.threads = 1 + (int32_t)test_random_below(random, 3);
        run(&c, (onep_level)level, 1000 + (uint64_t)i);
    }
}

static void test_empty(int level)
{
    static const int64_t shapes[][3] = {{0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {0, 0, 0}, {0, 0, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        linear_case c = plain(ONEP_F32, shapes[i][0], shapes[i][1], shapes[i][2]);
        run(&c, (onep_level)level, 7);
    }
}

/* An infinity or a NaN in one row reaches that row and no other. */
static void test_special(int level)
{
    static const double spoils[] = {INFINITY, -INFINITY, NAN, 3e38, 1e-40};
    for (size_t i = 0; i < sizeof spoils / sizeof spoils[0]; i++) {
        linear_case c = plain(ONEP_F32, 14, 20, 37);
        c.spoil = spoils[i];
        place(&c, 40 + i);
        test_context("linear, %s, first input %g", onep_level_name((onep_level)level), spoils[i]);
        head_set(&tensors[WEIGHT], 0, 0); /* inf * 0 is NaN */
        for (int t = 0; t < TENSORS; t++)
            head_remember(&tensors[t]);
        if (call(&c, (onep_level)level))
            check_results(&c);
    }
}

static const char *const products[] = {"none", "openblas", "blis"};

/* 1 if the BLAS is on this machine. */
static int have(const char *blas)
{
    onepass_handle *handle = NULL;
    onepass_config config = {.size = sizeof config, .blas = blas};
    int there = onepass_create(&config, &handle) == ONEPASS_OK;
    if (there)
        CHECK(strcmp(onepass_blas(handle), blas) == 0, "asked for %s, got %s", blas, onepass_blas(handle));
    onepass_destroy(handle);
    return there;
}

/* The same bits on any number of threads, whoever multiplies; each BLAS is right, and used from several threads. */
static void test_products(onep_level level)
{
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        if (!have(products[i])) {
            test_left_out("%s: not on this machine", products[i]);
            continue;
        }
        for (int wide = 0; wide < 2; wide++) {
            linear_case c = plain(wide ? ONEP_F64 : ONEP_F32, 300, 70, 290);
            c.layout[INPUT] = HEAD_PADDED;
            c.blas = products[i];
            uint64_t first = 0;
            for (int threads = 1; threads <= 4; threads++) {
                c.threads = threads;
                if (threads == 1) {
                    run(&c, level, 50);
                    first = digest();
                    continue;
                }
                place(&c, 50);
                if (call(&c, level))
                    CHECK(digest() == first, "%d threads give other bits than one", threads);
            }
        }
    }
}

/* Without BLAS an element's sum is the same chain at every level. */
static void test_levels_agree(void)
{
    uint64_t first = 0;
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
        for (int level = ONEP_SCALAR; level < ONEP_LEVELS; level++) {
            if (!onep_level_runs((onep_level)level))
                continue;
            linear_case c = plain((onep_type)type, 50, 300, 45);
            test_context("linear, level %s, %s: bits", onep_level_name((onep_level)level),
                         onep_type_name((onep_type)type));
            place(&c, 60);
            if (!call(&c, (onep_level)level))
                continue;
            if (level == ONEP_SCALAR)
                first = digest();
            CHECK(digest() == first, "other bits than level scalar");
        }
}

int main(void)
{
    test_begin("test_linear");
    test_print_levels();
    test_random random = test_random_stream(1);
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!test_covers((onep_level)level))
            continue;
        test_shapes(level);
        test_layouts(level, &random);
        test_empty(level);
        test_special(level);
    }
    test_products(onep_best_level());
    test_levels_agree();
    return test_end();
}
