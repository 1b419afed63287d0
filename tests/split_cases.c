/* See split_cases.h. */
#define _DEFAULT_SOURCE /* sysconf */
#include "split_cases.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const split_family_names[FAMILIES] = {"uniform",    "gaussian",  "lognormal",  "outliers",
                                                  "cancelling", "subnormal", "max float",  "zeros",
                                                  "infinite",   "NaN",       "wide chunks"};

float split_at(const head_field *f, int swapped, int64_t i, int64_t k)
{
    return (float)(swapped ? field_get(f, k, i) : field_get(f, i, k));
}

static void set(const head_field *f, int swapped, int64_t i, int64_t k, double x)
{
    head_put(f, swapped ? k : i, swapped ? i : k, x);
}

static double drawn(const split_case *c, const split_made *made, test_random *random, int is_b, int64_t i, int64_t k)
{
    double normal = head_normal(random);
    int is_left = is_b != made->exchanged;
    int64_t right_rows = made->exchanged ? c->n : c->m;
    switch (c->data) {
    case UNIFORM:
        return is_left ? test_random_between(random, -1, 1) : test_random_unit(random);
    case LOGNORMAL:
        return exp(3 * normal);
    case OUTLIERS:
        return k == i % c->k ? (is_left ? 0 : 0x1p20) : (is_left && k < right_rows ? 0 : normal);
    case CANCELLING:
        return (k % 2 ? -1 : 1) * (1e6 + (is_left ? 0 : normal));
    case SUBNORMAL:
        return i % 3 == 0 ? normal * 0x1p-130 : normal;
    case HUGE_VALUES:
        return is_left ? normal * 0x1p-20 : (k % 2 ? -0x1.fffffep127 : 0x1.fffffep127);
    case ZERO_ROWS:
        return i % 2 ? normal : (k % 2 ? -0.0 : 0.0);
    case INFINITE:
        return i == 1 && k == c->k / 2 ? (is_b ? -HUGE_VAL : HUGE_VAL) : normal;
    case NOT_A_NUMBER:
        return i == 1 && k == c->k / 2 ? NAN : normal;
    case WIDE_CHUNKS:
        return is_left ? ldexp(normal, (int)((k / SPLIT_CHUNK * 37 + i) % 241) - 120) : normal;
    default:
        return normal;
    }
}

/* Large enough to count beside sums of wide chunks, which are made another way. */
static double drawn_bias(const split_case *c, test_random *random, int64_t i)
{
    double normal = head_normal(random);
    return c->data == WIDE_CHUNKS ? ldexp(normal, (int)(40 + i % 61)) : normal;
}

onep_rows split_rows_of(int64_t count)
{
    onep_rows rows = {.rank = count == 1 ? 0 : 1, .count = count};
    rows.extent[0] = count;
    return rows;
}

static head_field place_operand(int64_t rows, int64_t depth, int swapped, head_layout layout)
{
    return swapped ? field_place(ONEP_F32, depth, rows, layout, 0) : field_place(ONEP_F32, rows, depth, layout, 0);
}

/* Whether the operands should change places; split.h has the rule. TMA wants rows at multiples of 16. */
static int should_exchange(const split_case *c)
{
    int64_t rows = c->a_swapped ? c->k : c->m, columns = c->a_swapped ? c->m : c->k;
    int packed = c->a_layout == COMPACT || c->a_layout == PADDED;
    int aligned = columns % 4 == 0 || rows == 1 || (columns == 1 && c->a_layout == COMPACT);
    return c->may_exchange && !c->ampere && c->m >= 128 && c->m >= 2 * c->n && packed && aligned &&
           onep_cuda_has_tma(onep_cuda_of(head_handle));
}

split_made split_make_case(const split_case *c)
{
    split_made made = {0};
    test_random random = test_random_stream(++head_streams);
    head_arena_begin((int)test_random_below(&random, 256));
    made.a = place_operand(c->m, c->k, c->a_swapped, c->a_layout);
    made.b = place_operand(c->n, c->k, c->b_swapped, c->b_layout);
    made.c = field_place(ONEP_F32, c->m, c->n, c->c_layout, 1);
    made.bias = field_place(ONEP_F32, 1, c->n, COMPACT, 0);
    made.exchanged = should_exchange(c);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t k = 0; k < c->k; k++)
            set(&made.a, c->a_swapped, i, k, drawn(c, &made, &random, 0, i, k));
    for (int64_t i = 0; i < c->n; i++) {
        for (int64_t k = 0; k < c->k; k++)
            set(&made.b, c->b_swapped, i, k, drawn(c, &made, &random, 1, i, k));
        head_put(&made.bias, 0, i, drawn_bias(c, &random, i));
    }
    made.product = (onep_product){
        .operator_name = "test",
        .m = c->m,
        .n = c->n,
        .k = c->k,
        .a = made.a.operand,
        .b = made.b.operand,
        .c = made.c.operand,
        .a_rows = split_rows_of(c->a_swapped ? c->k : c->m),
        .b_rows = split_rows_of(c->b_swapped ? c->k : c->n),
        .c_rows = split_rows_of(c->m),
        .a_swapped = c->a_swapped,
        .b_swapped = c->b_swapped,
        .math = c->ampere ? ONEP_MATH_SPLIT_SM80 : c->math,
        .may_exchange = c->may_exchange,
    };
    if (c->bias)
        made.product.bias = made.bias.operand;
    if (c->prepared) {
        made.planes = head_take_workspace(onep_split_planes_bytes(c->n, c->k));
        made.product.b_planes = made.planes;
    }
    onep_split_plan plan;
    int taken;
    CHECK(onep_split_plan_make(onep_cuda_of(head_handle), &made.product, NULL, &plan, &taken) == ONEPASS_OK, "%s",
          onepass_last_error());
    if (taken) {
        CHECK(plan.exchanged == made.exchanged, "operands change places: %d", plan.exchanged);
        made.part_depth = plan.part_depth;
        made.statistics_rows = c->statistics ? plan.statistics_rows : 0;
    }
    if (made.statistics_rows > 0) {
        size_t parts = (size_t)((c->m + made.statistics_rows - 1) / made.statistics_rows);
        made.partial = head_take_workspace(parts * (size_t)c->n * 16);
    }
    onep_product unknown = made.product; /* a is, when a workspace is asked for */
    unknown.a = (onep_operand){0};
    size_t bytes = onep_split_workspace(onep_cuda_of(head_handle), &unknown);
    CHECK(!taken || plan.bytes <= bytes, "the plan needs %zu bytes, %zu were asked for", plan.bytes, bytes);
    made.workspace = head_take_workspace(bytes);
    return made;
}

void split_run_case(const split_case *c, split_made *made)
{
    const onep_cuda *cuda = onep_cuda_of(head_handle);
    onepass_status status = ONEPASS_OK;
    if (c->prepared) {
        onep_split_prepare_plan prepare;
        status = onep_split_prepare("test", &made->product.b, &made->product.b_rows, c->k, made->planes, &prepare);
        if (status == ONEPASS_OK)
            status = onep_cuda_launch(cuda, "test", &prepare.launch, &prepare.args);
    }
    onep_split_plan plan;
    int taken = 0;
    if (status == ONEPASS_OK)
        status = onep_split_plan_make(cuda, &made->product, made->workspace, &plan, &taken);
    CHECK(taken, "the product is not taken");
    if (status == ONEPASS_OK && taken) {
        plan.product.partial = (double *)(void *)made->partial;
        if (c->stages)
            plan.product.stages = c->stages;
        split_set_pauses(c->pauses);
        status = onep_split_run(cuda, "test", &plan);
    }
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static const split_scheme scheme = {
    .name = "kernels",
    .core = &tensor_core_hopper,
    .corrections = SPLIT_FIRST,
    .promote = SPLIT_CHUNK,
    .chunk_scaled = 1,
    .weight_first = 1,
};

void *split_must_have(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return memory;
}

/* An operand's rows, compact, with their parts. */
typedef struct model_rows {
    float *values;
    split_row *rows;
    uint16_t *parts;
    int *exponents;
} model_rows;

static model_rows model_operand(const head_field *f, int swapped, int left, int64_t rows, int64_t depth)
{
    int64_t chunks = (depth + SPLIT_CHUNK - 1) / SPLIT_CHUNK;
    model_rows made = {
        split_must_have((size_t)(rows * depth) * sizeof(float)),
        split_must_have((size_t)rows * sizeof(split_row)),
        split_must_have((size_t)(2 * rows * depth) * sizeof(uint16_t)),
        split_must_have((size_t)(rows * chunks) * sizeof(int)),
    };
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < depth; k++)
            made.values[i * depth + k] = split_at(f, swapped, i, k);
        made.rows[i] =
            (split_row){made.parts + 2 * i * depth, made.parts + (2 * i + 1) * depth, made.exponents + i * chunks, 0};
        split_make(&scheme, left, made.values + i * depth, depth, &made.rows[i]);
    }
    return made;
}

static void free_model(model_rows *m)
{
    free(m->values);
    free(m->rows);
    free(m->parts);
    free(m->exponents);
}

static int same_bits(float x, float y)
{
    return (isnan(x) && isnan(y)) || memcmp(&x, &y, sizeof x) == 0;
}

static void check_statistics(const split_case *c, const split_made *made)
{
    int64_t rows = made->statistics_rows;
    const char *host = head_arena.host + (made->partial - head_arena.device);
    for (int64_t part = 0; part * rows < c->m; part++)
        for (int64_t j = 0; j < c->n; j++) {
            int64_t end = (part + 1) * rows < c->m ? (part + 1) * rows : c->m, count = end - part * rows;
            double sum = 0, size = 0, m2 = 0, got[2];
            for (int64_t i = part * rows; i < end; i++) {
                sum += field_get(&made->c, i, j);
                size = fmax(size, fabs(field_get(&made->c, i, j)));
            }
            double mean = sum / (double)count, spread = 0;
            for (int64_t i = part * rows; i < end; i++) {
                double d = field_get(&made->c, i, j) - mean;
                m2 += d * d;
                spread = fmax(spread, fabs(d));
            }
            memcpy(got, host + (size_t)(part * c->n + j) * 16, 16);
            CHECK(test_close(got[0], mean, spread * 0x1p-18 + size * 0x1p-50), "mean %.17g instead of %.17g", got[0],
                  mean);
            CHECK(test_close(got[1], m2,
                             m2 * 0x1p-16 + spread * spread * 0x1p-18 * (double)count + (double)count * 0x1p-140),
                  "sum of squared deviations %.9g instead of %.9g", got[1], m2);
        }
}

/* Elements of left row `first` and every `step`th after it, and what was found wrong there. */
typedef struct bits_check {
    const split_case *c;
    const split_made *made;
    const model_rows *left, *right;
    int64_t left_rows, right_rows, part, first, step;
    int64_t wrong, i, j; /* how many, and one of them */
    float got, expected;
} bits_check;

/*
 * One row of the left operand: every element is the sum of its parts of the depth. A part of the left operand has flags
 * of its own, a row of the right one those of the whole row. In the model's words the left operand is the weight.
 */
static void check_row(bits_check *check, int64_t row, float *sums)
{
    const split_case *c = check->c;
    for (int64_t k = 0; k < c->k; k += check->part) {
        int64_t count = c->k - k < check->part ? c->k - k : check->part;
        const float *w = check->left->values + row * c->k + k;
        split_row w_row = check->left->rows[row];
        w_row.hi += k;
        w_row.lo += k;
        w_row.exponents += k / SPLIT_CHUNK;
        split_make(&scheme, 1, w, count, &w_row);
        for (int64_t other = 0; other < check->right_rows; other++) {
            split_row x_row = check->right->rows[other];
            x_row.hi += k;
            x_row.lo += k;
            float y = split_product(&scheme, check->right->values + other * c->k + k, &x_row, w, &w_row, count);
            sums[other] = k == 0 ? y : sums[other] + y;
        }
    }
    for (int64_t other = 0; other < check->right_rows; other++) {
        int64_t i = check->made->exchanged ? row : other, j = check->made->exchanged ? other : row;
        float y = sums[other] + (c->bias ? (float)field_get(&check->made->bias, 0, j) : -0.0f);
        float got = (float)field_get(&check->made->c, i, j);
        if (!same_bits(got, y) && !check->wrong++)
            check->i = i, check->j = j, check->got = got, check->expected = y;
    }
}

static void *check_rows(void *context)
{
    bits_check *check = context;
    float *sums = split_must_have((size_t)check->right_rows * sizeof(float));
    for (int64_t row = check->first; row < check->left_rows; row += check->step)
        check_row(check, row, sums);
    free(sums);
    return NULL;
}

/* The model takes its time: as many threads as there are processors share the left rows. */
static void check_bits(const split_case *c, const split_made *made)
{
    enum { MOST_THREADS = 16 };
    int exchanged = made->exchanged;
    model_rows a = model_operand(&made->a, c->a_swapped, exchanged, c->m, c->k);
    model_rows b = model_operand(&made->b, c->b_swapped, !exchanged, c->n, c->k);
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = processors < 1 ? 1 : processors < MOST_THREADS ? (int)processors : MOST_THREADS, started = 0;
    pthread_t ids[MOST_THREADS];
    bits_check checks[MOST_THREADS];
    for (int t = 0; t < threads; t++)
        checks[t] = (bits_check){
            .c = c,
            .made = made,
            .left = exchanged ? &a : &b,
            .right = exchanged ? &b : &a,
            .left_rows = exchanged ? c->m : c->n,
            .right_rows = exchanged ? c->n : c->m,
            .part = made->part_depth,
            .first = t,
            .step = threads,
        };
    while (started < threads && pthread_create(&ids[started], NULL, check_rows, &checks[started]) == 0)
        started++;
    for (int t = started; t < threads; t++)
        check_rows(&checks[t]);
    const bits_check *bad = &checks[0];
    int64_t wrong = 0;
    for (int t = 0; t < threads; t++) {
        if (t < started)
            pthread_join(ids[t], NULL);
        wrong += checks[t].wrong;
        bad = bad->wrong ? bad : &checks[t];
    }
    CHECK(wrong == 0, "%lld of %lld elements have other bits than the model; one, (%lld, %lld), is %a, not %a",
          (long long)wrong, (long long)(c->m * c->n), (long long)bad->i, (long long)bad->j, (double)bad->got,
          (double)bad->expected);
    free_model(&a);
    free_model(&b);
}

void split_try_case(const split_case *c)
{
    test_context("%s, %lld x %lld x %lld, layouts %d %d %d, swapped %d %d%s%s%s%s, stages %d, pauses %d %d",
                 split_family_names[c->data], (long long)c->m, (long long)c->n, (long long)c->k, (int)c->a_layout,
                 (int)c->b_layout, (int)c->c_layout, c->a_swapped, c->b_swapped, c->bias ? ", bias" : "",
                 c->prepared ? ", prepared" : "", c->may_exchange ? ", exchanged if it may be" : "",
                 c->ampere ? ", Ampere's kernel" : "", c->stages, c->pauses[0], c->pauses[1]);
    split_made made = split_make_case(c);
    head_arena_send();
    split_run_case(c, &made);
    head_arena_fetch();
    check_bits(c, &made);
    if (made.statistics_rows > 0)
        check_statistics(c, &made);
}

split_case split_plain_case(int64_t m, int64_t n, int64_t k)
{
    return (split_case){.m = m, .n = n, .k = k, .data = GAUSSIAN, .math = ONEP_MATH_SPLIT};
}

void split_try_depths(int64_t longest)
{
    static const int64_t depths[][2] = {{1020, 1}, {1024, 1}, {1028, 1}, {4100, 0},  {4096, 0},
                                        {4101, 0}, {8196, 0}, {8192, 0}, {16384, 0}, {16388, 0}};
    for (int i = 0; i < (int)(sizeof depths / sizeof depths[0]); i++) {
        split_case c = split_plain_case(3, 2, depths[i][0]);
        c.a_swapped = (int)depths[i][1];
        if (c.k <= longest)
            split_try_case(&c);
    }
}
