/*
 * The fp32 product on a GPU's tensor cores, below its doors: every kernel gives, bit for bit, what the model of the
 * tensor cores (split_product.h) says, for shapes around every tile, layouts, special values, slowed down and short of
 * memory, in every run and in replayed graphs; and its error is smaller than that of cuBLAS's fp32 in the same run.
 * Everything a call touches lies in one arena; what is not its to write must be as it was.
 *
 * `test_split_cuda time` measures instead. Run by ./dev gpu, never by a machine without a GPU.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "head_cuda_case.h"
#include "split.h"
#include "split_product.h"

/* ---- cases ------------------------------------------------------------------------------------------------------- */

typedef enum family {
    UNIFORM, /* [0, 1) by (-1, 1) */
    GAUSSIAN,
    LOGNORMAL, /* exp(3 x) */
    OUTLIERS,  /* one element of a row of a is 2^20 where b is 0 */
    CANCELLING,
    SUBNORMAL, /* every third row of a, every third of b */
    HUGE_VALUES,
    ZERO_ROWS,
    INFINITE, /* in one row of a and one of b */
    NOT_A_NUMBER,
    WIDE_CHUNKS, /* chunks of b from 2^-120 to 2^120 */
    FAMILIES,
} family;

static const char *const family_names[FAMILIES] = {"uniform",    "gaussian",  "lognormal",  "outliers",
                                                   "cancelling", "subnormal", "max float",  "zeros",
                                                   "infinite",   "NaN",       "wide chunks"};

typedef struct product_case {
    int64_t m, n, k;
    head_layout a_layout, b_layout, c_layout;
    int a_swapped, b_swapped, bias, prepared, statistics;
    family data;
    onep_product_math math;
    onep_split_trial trial;
} product_case;

typedef struct made_case {
    head_field a, b, c, bias;
    char *partial;
    onep_split_planes prepared;
    onep_product product;
    void *workspace;
    int64_t statistics_rows;
} made_case;

static float at(const head_field *f, int swapped, int64_t i, int64_t k)
{
    return (float)(swapped ? field_get(f, k, i) : field_get(f, i, k));
}

static void set(const head_field *f, int swapped, int64_t i, int64_t k, double x)
{
    head_put(f, swapped ? k : i, swapped ? i : k, x);
}

static double drawn(const product_case *c, test_random *random, int is_b, int64_t i, int64_t k)
{
    double normal = head_normal(random);
    switch (c->data) {
    case UNIFORM:
        return is_b ? test_random_between(random, -1, 1) : test_random_unit(random);
    case LOGNORMAL:
        return exp(3 * normal);
    case OUTLIERS:
        return k == i % c->k ? (is_b ? 0 : 0x1p20) : (is_b && k < c->m ? 0 : normal);
    case CANCELLING:
        return (k % 2 ? -1 : 1) * (1e6 + (is_b ? 0 : normal));
    case SUBNORMAL:
        return i % 3 == 0 ? normal * 0x1p-130 : normal;
    case HUGE_VALUES:
        return is_b ? normal * 0x1p-20 : (k % 2 ? -0x1.fffffep127 : 0x1.fffffep127);
    case ZERO_ROWS:
        return i % 2 ? normal : (k % 2 ? -0.0 : 0.0);
    case INFINITE:
        return i == 1 && k == c->k / 2 ? (is_b ? -HUGE_VAL : HUGE_VAL) : normal;
    case NOT_A_NUMBER:
        return i == 1 && k == c->k / 2 ? NAN : normal;
    case WIDE_CHUNKS:
        return is_b ? ldexp(normal, (int)((k / SPLIT_CHUNK * 37 + i) % 241) - 120) : normal;
    default:
        return normal;
    }
}

static onep_rows rows_of(int64_t count)
{
    onep_rows rows = {.rank = count == 1 ? 0 : 1, .count = count};
    rows.extent[0] = count;
    return rows;
}

static head_field place_operand(int64_t rows, int64_t depth, int swapped, head_layout layout)
{
    return swapped ? field_place(ONEP_F32, depth, rows, layout, 0) : field_place(ONEP_F32, rows, depth, layout, 0);
}

/* Device memory at a multiple of 256: the doors above have seen to that. */
static void *take_aligned(size_t bytes)
{
    if (!bytes)
        return NULL;
    char *host = head_arena_take(bytes, 0);
    memset(head_arena.writable + (host - head_arena.host), 1, bytes);
    return head_to_device(host);
}

static made_case make_case(const product_case *c)
{
    made_case made = {0};
    test_random random = test_random_stream(++head_streams);
    head_arena_begin((int)test_random_below(&random, 256));
    made.a = place_operand(c->m, c->k, c->a_swapped, c->a_layout);
    made.b = place_operand(c->n, c->k, c->b_swapped, c->b_layout);
    made.c = field_place(ONEP_F32, c->m, c->n, c->c_layout, 1);
    made.bias = field_place(ONEP_F32, 1, c->n, COMPACT, 0);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t k = 0; k < c->k; k++)
            set(&made.a, c->a_swapped, i, k, drawn(c, &random, 0, i, k));
    for (int64_t i = 0; i < c->n; i++) {
        for (int64_t k = 0; k < c->k; k++)
            set(&made.b, c->b_swapped, i, k, drawn(c, &random, 1, i, k));
        head_put(&made.bias, 0, i, head_normal(&random));
    }
    made.product = (onep_product){
        .operator_name = "test",
        .m = c->m,
        .n = c->n,
        .k = c->k,
        .a = made.a.operand,
        .b = made.b.operand,
        .c = made.c.operand,
        .a_rows = rows_of(c->a_swapped ? c->k : c->m),
        .b_rows = rows_of(c->b_swapped ? c->k : c->n),
        .c_rows = rows_of(c->m),
        .a_swapped = c->a_swapped,
        .b_swapped = c->b_swapped,
        .math = c->math,
        .trial = c->trial,
    };
    if (c->bias)
        made.product.bias = made.bias.operand;
    if (c->prepared) {
        made.prepared = (onep_split_planes){c->n, c->k, NULL};
        made.prepared.memory = take_aligned(onep_split_planes_bytes(c->n, c->k));
        made.product.b_planes = &made.prepared;
    }
    made.statistics_rows = c->statistics ? onep_product_statistics_rows(head_handle->cuda, &made.product) : 0;
    if (made.statistics_rows > 0) {
        size_t parts = (size_t)((c->m + made.statistics_rows - 1) / made.statistics_rows);
        made.partial = take_aligned(parts * (size_t)c->n * 16);
        made.product.partial = (double *)(void *)made.partial;
    }
    made.workspace = take_aligned(onep_product_workspace(head_handle->cuda, &made.product));
    return made;
}

static void run_case(const product_case *c, made_case *made)
{
    onepass_status status = ONEPASS_OK;
    made->product.b_planes = c->prepared ? &made->prepared : NULL; /* the structure has been copied */
    if (c->prepared)
        status =
            onep_split_prepare(head_handle->cuda, "test", &made->product.b, &made->product.b_rows, &made->prepared);
    if (status == ONEPASS_OK)
        status = onep_product_run(head_handle->cuda, &made->product, made->workspace);
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

static void *must_have(size_t bytes)
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

static model_rows model_operand(const head_field *f, int swapped, int weight, int64_t rows, int64_t depth)
{
    int64_t chunks = (depth + SPLIT_CHUNK - 1) / SPLIT_CHUNK;
    model_rows made = {
        must_have((size_t)(rows * depth) * sizeof(float)),
        must_have((size_t)rows * sizeof(split_row)),
        must_have((size_t)(2 * rows * depth) * sizeof(uint16_t)),
        must_have((size_t)(rows * chunks) * sizeof(int)),
    };
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < depth; k++)
            made.values[i * depth + k] = at(f, swapped, i, k);
        made.rows[i] =
            (split_row){made.parts + 2 * i * depth, made.parts + (2 * i + 1) * depth, made.exponents + i * chunks, 0};
        split_make(&scheme, weight, made.values + i * depth, depth, &made.rows[i]);
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

static void check_statistics(const product_case *c, const made_case *made)
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
            CHECK(test_close(got[1], m2, m2 * 0x1p-16 + spread * spread * 0x1p-18 * (double)count),
                  "sum of squared deviations %.9g instead of %.9g", got[1], m2);
        }
}

static void check_bits(const product_case *c, const made_case *made)
{
    model_rows a = model_operand(&made->a, c->a_swapped, 0, c->m, c->k);
    model_rows b = model_operand(&made->b, c->b_swapped, 1, c->n, c->k);
    int64_t wrong = 0;
    float first_got = 0, first_expected = 0;
    int64_t first_i = 0, first_j = 0;
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            float y = split_product(&scheme, a.values + i * c->k, &a.rows[i], b.values + j * c->k, &b.rows[j], c->k);
            y += c->bias ? (float)field_get(&made->bias, 0, j) : -0.0f;
            float got = (float)field_get(&made->c, i, j);
            if (!same_bits(got, y) && !wrong++)
                first_i = i, first_j = j, first_got = got, first_expected = y;
        }
    CHECK(wrong == 0, "%lld of %lld elements have other bits than the model; the first, (%lld, %lld), is %a, not %a",
          (long long)wrong, (long long)(c->m * c->n), (long long)first_i, (long long)first_j, (double)first_got,
          (double)first_expected);
    free_model(&a);
    free_model(&b);
}

static void try_case(const product_case *c)
{
    test_context("%s, %lld x %lld x %lld, layouts %d %d %d, swapped %d %d%s%s%s, units %d, delays %d %d",
                 family_names[c->data], (long long)c->m, (long long)c->n, (long long)c->k, (int)c->a_layout,
                 (int)c->b_layout, (int)c->c_layout, c->a_swapped, c->b_swapped, c->bias ? ", bias" : "",
                 c->prepared ? ", prepared" : "", c->trial.ampere ? ", Ampere's kernel" : "", c->trial.units,
                 c->trial.copy_delay, c->trial.multiply_delay);
    made_case made = make_case(c);
    CHECK(onep_split_takes(head_handle->cuda, &made.product), "the product is not taken");
    head_arena_send();
    run_case(c, &made);
    head_arena_fetch();
    check_bits(c, &made);
    if (made.statistics_rows > 0)
        check_statistics(c, &made);
}

static product_case plain_case(int64_t m, int64_t n, int64_t k)
{
    return (product_case){.m = m, .n = n, .k = k, .data = GAUSSIAN, .math = ONEP_MATH_SPLIT};
}

static void test_shapes(void)
{
    static const int64_t edges[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257};
    enum { EDGES = sizeof edges / sizeof edges[0] };
    test_random random = test_random_stream(++head_streams);
    int rounds = test_quick() ? 1 : 6;
    for (int round = 0; round < rounds; round++)
        for (int which = 0; which < 3; which++)
            for (int e = 0; e < EDGES; e++) {
                int64_t shape[3];
                for (int i = 0; i < 3; i++)
                    shape[i] = i == which ? edges[e] : edges[test_random_below(&random, EDGES)];
                product_case c = plain_case(shape[0], shape[1], shape[2]);
                c.b_swapped = (int)test_random_below(&random, 2);
                c.a_swapped = (int)test_random_below(&random, 2);
                c.prepared = !c.b_swapped && test_random_below(&random, 3) == 0;
                c.bias = (int)test_random_below(&random, 2);
                c.statistics = 1;
                c.trial.ampere = test_random_below(&random, 4) == 0;
                c.data = (family)test_random_below(&random, 3);
                try_case(&c);
            }
}

static void test_layouts(void)
{
    for (int layouts = 0; layouts < LAYOUTS * LAYOUTS * LAYOUTS; layouts++)
        for (int swapped = 0; swapped < 4; swapped++) {
            product_case c = plain_case(70, 130, 100);
            c.a_layout = (head_layout)(layouts % LAYOUTS);
            c.b_layout = (head_layout)(layouts / LAYOUTS % LAYOUTS);
            c.c_layout = (head_layout)(layouts / (LAYOUTS * LAYOUTS));
            c.a_swapped = swapped & 1;
            c.b_swapped = swapped >> 1;
            c.trial.ampere = layouts % 5 == 0;
            if (!test_quick() || layouts % 7 == 0)
                try_case(&c);
        }
}

static void test_families(void)
{
    for (int data = 0; data < FAMILIES; data++)
        for (int variant = 0; variant < 4; variant++) {
            product_case c = plain_case(40, 140, 330);
            c.data = (family)data;
            c.prepared = variant == 1;
            c.b_swapped = variant == 2;
            c.trial.ampere = variant == 3;
            c.statistics = 1;
            try_case(&c);
        }
}

/* More tiles than a device has multiprocessors, a ring that goes round, and threads that keep each other waiting. */
static void test_pipelines(void)
{
    static const onep_split_trial trials[] = {
        {0, 0, 3, 0}, {0, 0, 4, 0}, {2000, 0, 0, 0}, {0, 2000, 0, 0}, {500, 700, 3, 0}};
    for (int i = 0; i < (int)(sizeof trials / sizeof trials[0]); i++)
        for (int variant = 0; variant < 3; variant++) {
            product_case c = plain_case(variant == 0 ? 300 : 60, 300, 700);
            c.prepared = variant == 1;
            c.b_swapped = variant == 2;
            c.trial = trials[i];
            try_case(&c);
        }
    if (!test_quick()) {
        product_case many = plain_case(1030, 2100, 130);
        try_case(&many);
    }
}

static void test_repeats(void)
{
    product_case c = plain_case(513, 1024, 1024);
    const onep_driver *driver = cuda_driver();
    for (int swapped = 0; swapped < 2; swapped++) {
        c.b_swapped = swapped;
        test_context("repeated, swapped %d", swapped);
        made_case made = make_case(&c);
        size_t bytes = (size_t)(c.m * c.n) * sizeof(float);
        char *first = must_have(bytes), *again = must_have(bytes);
        head_arena_send();
        run_case(&c, &made);
        MUST(driver->cuStreamSynchronize(head_stream));
        cuda_download(first, made.c.operand.data, bytes);
        for (int i = 0; i < (test_quick() ? 5 : 200); i++) {
            MUST(driver->cuMemsetD8Async(cuda_address(made.c.operand.data), 0xff, bytes, head_stream));
            run_case(&c, &made);
            MUST(driver->cuStreamSynchronize(head_stream));
            cuda_download(again, made.c.operand.data, bytes);
            CHECK(memcmp(first, again, bytes) == 0, "run %d has other bits than the first", i);
        }
        onep_cu_graph *graph;
        onep_cu_graph_exec *exec;
        MUST(driver->cuStreamBeginCapture(head_stream, ONEP_CU_CAPTURE_GLOBAL));
        run_case(&c, &made);
        MUST(driver->cuStreamEndCapture(head_stream, &graph));
        MUST(driver->cuGraphInstantiate(&exec, graph, NULL, NULL, 0));
        for (int i = 0; i < 100; i++) {
            MUST(driver->cuMemsetD8Async(cuda_address(made.c.operand.data), 0xff, bytes, head_stream));
            MUST(driver->cuGraphLaunch(exec, head_stream));
        }
        MUST(driver->cuStreamSynchronize(head_stream));
        cuda_download(again, made.c.operand.data, bytes);
        CHECK(memcmp(first, again, bytes) == 0, "a graph has other bits than the call");
        MUST(driver->cuGraphExecDestroy(exec));
        MUST(driver->cuGraphDestroy(graph));
        free(first);
        free(again);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Relative, as a whole: |c - exact| / |exact|, both as vectors. */
static double error_of(const product_case *c, const made_case *made)
{
    long double off = 0, size = 0;
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            long double exact = 0;
            for (int64_t k = 0; k < c->k; k++)
                exact += (long double)at(&made->a, c->a_swapped, i, k) * (long double)at(&made->b, c->b_swapped, j, k);
            long double d = (long double)field_get(&made->c, i, j) - exact;
            off += d * d;
            size += exact * exact;
        }
    return (double)sqrtl(off / size);
}

static void test_errors(void)
{
    static const family families[] = {UNIFORM, GAUSSIAN, LOGNORMAL, OUTLIERS};
    for (int f = 0; f < 4; f++) {
        product_case c = plain_case(64, 128, test_quick() ? 1024 : 8192);
        c.data = families[f];
        double errors[2];
        uint64_t stream = head_streams;
        for (int plain = 0; plain < 2; plain++) {
            c.math = plain ? ONEP_MATH_PLAIN : ONEP_MATH_SPLIT;
            head_streams = stream; /* the same numbers */
            made_case made = make_case(&c);
            head_arena_send();
            run_case(&c, &made);
            head_arena_fetch();
            errors[plain] = error_of(&c, &made);
        }
        test_context("errors, %s", family_names[c.data]);
        printf("%s, 64 x 128 x %lld: relative error %.3g, cuBLAS fp32 %.3g\n", family_names[c.data], (long long)c.k,
               errors[0], errors[1]);
        CHECK(errors[0] < errors[1], "the error, %.3g, is not under cuBLAS's, %.3g", errors[0], errors[1]);
        CHECK(errors[0] > 3e-8, "an error of %.3g: what was it compared with?", errors[0]);
        if (c.data == UNIFORM || c.data == GAUSSIAN)
            CHECK(errors[0] < 3.5e-7, "the error is %.3g", errors[0]);
    }
}

#include "time_split_cuda.inc"

int main(int count, char **arguments)
{
    test_begin("split_cuda");
    head_stream = cuda_stream();
    head_handle = cuda_handle(head_stream);
    if (count > 1 && strcmp(arguments[1], "time") == 0) {
        time_products();
        return 0;
    }
    test_shapes();
    test_layouts();
    test_families();
    test_pipelines();
    test_repeats();
    test_errors();
    onepass_destroy(head_handle);
    return test_end();
}
