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

#include "cases/linear.h"
#include "entry_points.h"
#include "head_cases.h"

/* The tensors of both calls, and which argument of each they are. */
enum { INPUT, WEIGHT, BIAS, GRAD_OUTPUT, OUTPUT, GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS, TENSORS };
static const int forward_place[TENSORS] = {LINEAR_INPUT, LINEAR_WEIGHT, LINEAR_BIAS, -1, LINEAR_OUTPUT, -1, -1, -1};
static const int backward_place[TENSORS] = {
    LINEAR_B_INPUT,     LINEAR_B_WEIGHT, -1, LINEAR_GRAD_OUTPUT, -1, LINEAR_GRAD_INPUT,
    LINEAR_GRAD_WEIGHT, LINEAR_GRAD_BIAS};

typedef struct linear_case {
    int leading_rank;
    int64_t leading[3], depth, columns;
    onep_type input, weight, output, other; /* other: bias, grad_output, grad_bias */
    case_layout layout[TENSORS];
    case_guard guard;
    size_t shift;
    linear_data data;
    int no_bias;
    double spoil; /* put into the input's first element, beside a first weight of 0, if it is not 0 */
    int32_t threads;
    const char *blas; /* NULL: "none" */
} linear_case;

static op_case forward, backward;

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

static onep_type type_of(const linear_case *c, int tensor)
{
    return tensor == INPUT || tensor == GRAD_INPUT     ? c->input
           : tensor == WEIGHT || tensor == GRAD_WEIGHT ? c->weight
           : tensor == OUTPUT                          ? c->output
                                                       : c->other;
}

static void make(op_case *to, const linear_case *c, const char *name, uint64_t stream)
{
    test_random random = test_random_stream(stream);
    if (!case_begin(to, name))
        exit(2);
    to->leading_rank = c->leading_rank;
    memcpy(to->leading, c->leading, sizeof c->leading);
    to->extents['K' - 'A'] = c->depth;
    to->extents['N' - 'A'] = c->columns;
    to->family = (int)c->data;
    to->seed = test_random_bits(&random);
    to->entry = entry_point;
    for (int i = 0; i < TENSORS; i++) {
        int place = to == &forward ? forward_place[i] : backward_place[i];
        if (place < 0)
            continue;
        to->argument[place].given = i != BIAS || !c->no_bias;
        to->argument[place].dtype = test_dtype(type_of(c, i));
        to->argument[place].layout = c->layout[i];
        to->argument[place].guard = c->guard;
        to->argument[place].shift = c->shift;
    }
    if (!case_make(to))
        exit(2);
    if (c->spoil != 0) {
        case_put(to, LINEAR_INPUT, 0, c->spoil);
        case_put(to, LINEAR_WEIGHT, 0, 0); /* inf * 0 is NaN */
        case_remember(to);
    }
}

/* Both calls with everything checked, or for their bits alone. */
static void run_both(const linear_case *c, onep_level level, uint64_t stream, int for_bits)
{
    static op_case *const cases[] = {&forward, &backward};
    onepass_handle *handle = layer_handle(level, c->threads, c->blas);
    for (int i = 0; handle && i < 2; i++) {
        char text[1800];
        make(cases[i], c, i ? "linear_backward" : "linear", stream);
        test_context("level %s, threads %d, blas %s: %s", onep_level_name(level), (int)c->threads,
                     c->blas ? c->blas : "none", case_describe(cases[i], text, sizeof text));
        if (for_bits) {
            onepass_status status;
            case_call(cases[i], handle, 0xff, &test_judge, &status);
            CHECK(status == ONEPASS_OK, "refused: %s", onepass_last_error());
        } else {
            case_check(cases[i], handle, &test_judge);
        }
    }
    onepass_destroy(handle);
}

static void run(const linear_case *c, onep_level level, uint64_t stream)
{
    run_both(c, level, stream, 0);
}

static uint64_t digest(void)
{
    return case_digest(&forward) ^ case_digest(&backward) * 31;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

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
        {41, 70, 3},   /* few columns, an odd number of rows, a tail of the depth */
        {266, 64, 4},  /* as many as count as few, two tiles of rows, the least depth for that */
        {2, 99, 2},    /* few of both */
        {25, 257, 63}, /* a depth block and one */
        {263, 5, 9},   /* just below a tile of rows */
        {265, 4, 257}, /* just above one, and above a tile of columns */
        {530, 3, 64},  /* three tiles of rows */
        {33, 129, 70}, /* more than a depth block in double */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
            if (test_is_slow((onep_level)level) && shapes[i][0] * shapes[i][1] * shapes[i][2] > 100000 &&
                type != (int)(i % 4))
                continue;
            linear_case c = plain((onep_type)type, shapes[i][0], shapes[i][1], shapes[i][2]);
            c.no_bias = (int)(i % 2);
            c.guard = (case_guard)(i % CASE_GUARDS);
            run(&c, (onep_level)level, 100 + i);
        }
}

static void test_layouts(int level, test_random *random)
{
    int runs = 120 / test_one_in(3);
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
            c.layout[t] = (case_layout)test_random_below(random, t < OUTPUT ? CASE_LAYOUTS : CASE_OUTPUT_LAYOUTS);
        c.leading_rank = (int)test_random_below(random, 4);
        for (int d = 1; d < 3; d++)
            c.leading[d] = 1 + test_random_below(random, 3);
        c.guard = (case_guard)test_random_below(random, CASE_GUARDS);
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
        run(&c, (onep_level)level, 40 + i);
    }
}

/* Terms that nearly cancel, the smallest products, and sizes far apart: no element hides behind another. */
static void test_hard(int level)
{
    for (int data = LINEAR_CANCELLING; data < LINEAR_DATA_KINDS; data++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
            linear_case c = plain((onep_type)type, 9, 130, 21);
            if (data == LINEAR_TINY && type == ONEP_F16)
                continue; /* which has no such numbers */
            c.data = (linear_data)data;
            run(&c, (onep_level)level, 200 + (uint64_t)data);
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
            c.layout[INPUT] = CASE_PADDED;
            c.blas = products[i];
            uint64_t first = 0;
            for (int threads = 1; threads <= 4; threads++) {
                c.threads = threads;
                run_both(&c, level, 50, threads > 1);
                first = threads == 1 ? digest() : first;
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
            run_both(&c, (onep_level)level, 60, 1);
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
        test_hard(level);
    }
    test_products(onep_best_level());
    test_levels_agree();
    return test_end();
}
