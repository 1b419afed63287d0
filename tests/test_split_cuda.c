/*
 * The fp32 product on a GPU's tensor cores, below its entry points: every kernel gives, bit for bit, what the model of
 * the tensor cores (split_product.h) says, for shapes around every tile, layouts, special values, slowed down and short
 * of memory, in every run and in replayed graphs; and its error is smaller than that of cuBLAS's fp32 in the same run.
 * Everything a call touches lies in one arena; what is not its to write must be as it was.
 *
 * `test_split_cuda time` measures instead. Run by ./dev gpu, never by a machine without a GPU.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "split_cases.h"
#include "split_paused.h"

#include "time_split_cuda.inc"

void split_set_pauses(const int *pauses)
{
    split_pause(head_stream, pauses);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void test_shapes(void)
{
    static const int64_t edges[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257};
    enum { EDGES = sizeof edges / sizeof edges[0] };
    test_random random = test_random_stream(++head_streams);
    int rounds = test_quick() ? 1 : 2;
    for (int round = 0; round < rounds; round++)
        for (int which = 0; which < 3; which++)
            for (int e = 0; e < EDGES; e++) {
                int64_t shape[3];
                for (int i = 0; i < 3; i++)
                    shape[i] = i == which ? edges[e] : edges[test_random_below(&random, EDGES)];
                split_case c = split_plain_case(shape[0], shape[1], shape[2]);
                c.b_swapped = (int)test_random_below(&random, 2);
                c.a_swapped = (int)test_random_below(&random, 2);
                c.prepared = !c.b_swapped && test_random_below(&random, 3) == 0;
                c.bias = (int)test_random_below(&random, 2);
                c.statistics = 1;
                c.may_exchange = (int)test_random_below(&random, 2);
                c.ampere = test_random_below(&random, 4) == 0;
                c.data = (family)test_random_below(&random, 3);
                split_try_case(&c);
            }
}

static void test_layouts(void)
{
    for (int layouts = 0; layouts < LAYOUTS * LAYOUTS * LAYOUTS; layouts++)
        for (int swapped = 0; swapped < 4; swapped++) {
            split_case c = split_plain_case(70, 130, 100);
            c.a_layout = (head_layout)(layouts % LAYOUTS);
            c.b_layout = (head_layout)(layouts / LAYOUTS % LAYOUTS);
            c.c_layout = (head_layout)(layouts / (LAYOUTS * LAYOUTS));
            c.a_swapped = swapped & 1;
            c.b_swapped = swapped >> 1;
            c.ampere = layouts % 5 == 0;
            if (!test_quick() || layouts % 7 == 0)
                split_try_case(&c);
        }
}

static void test_families(void)
{
    for (int data = 0; data < FAMILIES; data++)
        for (int variant = 0; variant < 4; variant++) {
            split_case c = split_plain_case(40, 140, 330);
            c.data = (family)data;
            c.prepared = variant == 1;
            c.b_swapped = variant == 2;
            c.ampere = variant == 3;
            c.statistics = 1;
            split_try_case(&c);
        }
}

/*
 * Operands that change places: around the edges of tiles and of what is exchanged, with a's depth along memory and
 * across it, in every layout, with special values, and in more tiles than a device has multiprocessors.
 */
static void test_exchanged(void)
{
    static const int64_t tall[] = {127, 128, 129, 132, 255, 256, 257, 300, 384, 516};
    static const int64_t narrow[] = {1, 2, 3, 7, 8, 9, 63, 64, 65, 66, 127, 128, 129, 150, 257};
    enum { TALL = sizeof tall / sizeof tall[0], NARROW = sizeof narrow / sizeof narrow[0] };
    test_random random = test_random_stream(++head_streams);
    for (int i = 0; i < TALL * NARROW; i++)
        for (int across = 0; across < 2; across++) {
            split_case c =
                split_plain_case(tall[i % TALL], narrow[i / TALL], 4 + 4 * (int64_t)test_random_below(&random, 200));
            c.may_exchange = 1;
            c.a_swapped = across;
            c.b_swapped = (int)test_random_below(&random, 2);
            c.bias = (int)test_random_below(&random, 2);
            c.a_layout = test_random_below(&random, 2) ? PADDED : COMPACT;
            c.b_layout = (head_layout)test_random_below(&random, LAYOUTS);
            c.c_layout = (head_layout)test_random_below(&random, LAYOUTS);
            if (!test_quick() || i % 7 == 0)
                split_try_case(&c);
        }
    for (int data = 0; data < FAMILIES; data++)
        for (int across = 0; across < 2; across++) {
            split_case c = split_plain_case(300, 70, 332);
            c.data = (family)data;
            c.may_exchange = c.bias = 1;
            c.a_swapped = across;
            split_try_case(&c);
        }
    for (int stages = 0; stages < 5; stages += 4) {
        split_case many = split_plain_case(128 * 140 + 4, 130, 132);
        many.may_exchange = many.bias = 1;
        many.a_swapped = stages == 0;
        many.stages = stages;
        if (!test_quick())
            split_try_case(&many);
    }
}

/* More tiles than a device has multiprocessors, a ring that goes round, and threads that keep each other waiting. */
static void test_pipelines(void)
{
    static const int trials[][3] = {
        {0, 0, 3}, {0, 0, 4}, {2000, 0, 0}, {0, 2000, 0}, {500, 700, 3}}; /* pauses, stages */
    for (int i = 0; i < (int)(sizeof trials / sizeof trials[0]); i++)
        for (int variant = 0; variant < 3; variant++) {
            split_case c = split_plain_case(variant == 0 ? 300 : 60, 300, 700);
            c.prepared = variant == 1;
            c.b_swapped = variant == 2;
            memcpy(c.pauses, trials[i], sizeof c.pauses);
            c.stages = trials[i][2];
            split_try_case(&c);
        }
    if (!test_quick()) {
        split_case many = split_plain_case(520, 1200, 130), bands = split_plain_case(18 * 256 - 3, 1030, 70);
        split_try_case(&many);
        split_try_case(&bands);
    }
}

static void test_repeats(void)
{
    split_case c = split_plain_case(513, 1024, 1024);
    const onep_driver *driver = cuda_driver();
    for (int swapped = 0; swapped < 2; swapped++) {
        c.b_swapped = swapped;
        test_context("repeated, swapped %d", swapped);
        split_made made = split_make_case(&c);
        size_t bytes = (size_t)(c.m * c.n) * sizeof(float);
        char *first = split_must_have(bytes), *again = split_must_have(bytes);
        head_arena_send();
        split_run_case(&c, &made);
        MUST(driver->cuStreamSynchronize(head_stream));
        cuda_download(first, made.c.operand.data, bytes);
        for (int i = 0; i < (test_quick() ? 5 : 200); i++) {
            MUST(driver->cuMemsetD8Async(cuda_address(made.c.operand.data), 0xff, bytes, head_stream));
            split_run_case(&c, &made);
            MUST(driver->cuStreamSynchronize(head_stream));
            cuda_download(again, made.c.operand.data, bytes);
            CHECK(memcmp(first, again, bytes) == 0, "run %d has other bits than the first", i);
        }
        onep_cu_graph *graph;
        onep_cu_graph_exec *exec;
        MUST(driver->cuStreamBeginCapture(head_stream, ONEP_CU_CAPTURE_GLOBAL));
        split_run_case(&c, &made);
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

/* ---- through the entry points ----------------------------------------------------------------------------------- */

/*
 * The same bits with a prepared weight, from linear and from the head; and what is refused. N is too large for the
 * operands of linear to change places.
 */
static void test_prepared(void)
{
    enum { M = 130, N = 66, K = 300 };
    test_context("prepared weights through the entry points");
    onepass_config config = {
        .size = sizeof config, .device = {ONEPASS_CUDA, 0}, .stream = head_stream, .fp32_products = ONEPASS_FP32_SPLIT};
    onepass_handle *handle = NULL;
    CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
    int64_t x_shape[] = {M, K}, w_shape[] = {N, K}, y_shape[] = {M, N};
    float *host = split_must_have((size_t)(M * K + N * K) * sizeof(float));
    test_random random = test_random_stream(++head_streams);
    for (int i = 0; i < M * K + N * K; i++)
        host[i] = (float)head_normal(&random);
    size_t y_bytes = (size_t)(M * N) * sizeof(float), planes_bytes = 0, bytes = 0, more = 0;
    onepass_tensor x = cuda_tensor(ONEP_F32, cuda_claim((size_t)(M * K) * sizeof(float)), 2, x_shape);
    onepass_tensor w = cuda_tensor(ONEP_F32, cuda_claim((size_t)(N * K) * sizeof(float)), 2, w_shape);
    onepass_tensor y = cuda_tensor(ONEP_F32, cuda_claim(y_bytes), 2, y_shape);
    cuda_upload(x.data, host, (size_t)(M * K) * sizeof(float));
    cuda_upload(w.data, host + M * K, (size_t)(N * K) * sizeof(float));
    onepass_head_options options = {.size = sizeof options, .eps = 1e-5};
    CHECK(onepass_prepare_weight_size(handle, &w, &planes_bytes) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_linear_workspace_size(handle, &x, &w, &bytes) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_head_workspace_size(handle, &x, &w, &options, &y, NULL, &more) == ONEPASS_OK, "%s",
          onepass_last_error());
    bytes = more > bytes ? more : bytes;
    char *planes = cuda_claim(planes_bytes), *workspace = cuda_claim(bytes);
    options.workspace = workspace;
    options.workspace_size = bytes;
    CHECK(onepass_prepare_weight(handle, &w, planes, planes_bytes - 1) == ONEPASS_WORKSPACE, "too small a place");
    CHECK(onepass_prepare_weight(handle, &w, planes + 16, planes_bytes) == ONEPASS_INVALID_ARGUMENT, "not aligned");
    CHECK(onepass_prepare_weight(handle, &w, planes, planes_bytes) == ONEPASS_OK, "%s", onepass_last_error());
    char *results = split_must_have(4 * y_bytes);
    for (int i = 0; i < 4; i++) {
        options.prepared_weight = i & 1 ? planes : NULL;
        onepass_status status = i >= 2  ? onepass_head(handle, &x, &w, &options, &y, NULL, NULL, NULL)
                                : i & 1 ? onepass_linear_prepared(handle, &x, &w, planes, NULL, &y, workspace, bytes)
                                        : onepass_linear(handle, &x, &w, NULL, &y, workspace, bytes);
        CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
        MUST(cuda_driver()->cuStreamSynchronize(head_stream));
        cuda_download(results + (size_t)i * y_bytes, y.data, y_bytes);
    }
    CHECK(memcmp(results, results + y_bytes, y_bytes) == 0, "linear has other bits with a prepared weight");
    CHECK(memcmp(results + 2 * y_bytes, results + 3 * y_bytes, y_bytes) == 0, "head has other bits, too");
    CHECK(memcmp(results, results + 2 * y_bytes, y_bytes) != 0, "linear and head give the same: nothing was written");
    onepass_destroy(handle);
    void *claimed[] = {x.data, w.data, y.data, planes, workspace};
    for (int i = 0; i < 5; i++)
        cuda_release(claimed[i]);
    free(host);
    free(results);
}

/* A handle that may choose has the bits of the kernels here where they are faster, and cuBLAS's where they are not. */
static void test_choice(void)
{
    static const int64_t shapes[][3] = {{300, 1024, 2048}, {16, 1100, 1030}, {200, 100, 3000},
                                        {64, 256, 128},    {4096, 60, 2048}, {3000, 200, 1030}};
    static const int splits[] = {1, 1, 0, 0, 1, 0}; /* the last is tall, but TMA cannot read it */
    static const onepass_fp32_products ways[] = {ONEPASS_FP32_FULL, ONEPASS_FP32_SPLIT, ONEPASS_FP32_VENDOR};
    for (int s = 0; s < 6; s++) {
        int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
        int64_t x_shape[] = {m, k}, w_shape[] = {n, k}, y_shape[] = {m, n};
        onep_operand x_data = timed_matrix(m, k), w_data = timed_matrix(n, k), y_data = timed_matrix(m, n);
        onepass_tensor x = cuda_tensor(ONEP_F32, x_data.data, 2, x_shape);
        onepass_tensor w = cuda_tensor(ONEP_F32, w_data.data, 2, w_shape);
        onepass_tensor y = cuda_tensor(ONEP_F32, y_data.data, 2, y_shape);
        size_t y_bytes = (size_t)(m * n) * sizeof(float);
        char *results = split_must_have(3 * y_bytes);
        test_context("choice, %lld x %lld x %lld", (long long)m, (long long)n, (long long)k);
        for (int i = 0; i < 3; i++) {
            onepass_config config = {
                .size = sizeof config, .device = {ONEPASS_CUDA, 0}, .stream = head_stream, .fp32_products = ways[i]};
            onepass_handle *handle = NULL;
            size_t bytes = 0;
            CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
            CHECK(onepass_linear_workspace_size(handle, &x, &w, &bytes) == ONEPASS_OK, "%s", onepass_last_error());
            void *workspace = bytes ? cuda_claim(bytes) : NULL;
            CHECK(onepass_linear(handle, &x, &w, NULL, &y, workspace, bytes) == ONEPASS_OK, "%s", onepass_last_error());
            MUST(cuda_driver()->cuStreamSynchronize(head_stream));
            cuda_download(results + (size_t)i * y_bytes, y.data, y_bytes);
            if (workspace)
                cuda_release(workspace);
            onepass_destroy(handle);
        }
        CHECK(memcmp(results + y_bytes, results + 2 * y_bytes, y_bytes) != 0, "both ways give the same bits");
        CHECK(memcmp(results, results + (splits[s] ? 1 : 2) * y_bytes, y_bytes) == 0, "it chose the other way");
        free(results);
        cuda_release(x.data);
        cuda_release(w.data);
        cuda_release(y.data);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* c(i, j) before any rounding that counts, in rows. */
static void take_exact(const split_case *c, const split_made *made, long double *exact)
{
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            long double sum = 0;
            for (int64_t k = 0; k < c->k; k++)
                sum += (long double)split_at(&made->a, c->a_swapped, i, k) *
                       (long double)split_at(&made->b, c->b_swapped, j, k);
            exact[i * c->n + j] = sum;
        }
}

/* Relative, as a whole: |c - exact| / |exact|, both as vectors. */
static double error_of(const split_case *c, const split_made *made, const long double *exact)
{
    long double off = 0, size = 0;
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            long double d = (long double)field_get(&made->c, i, j) - exact[i * c->n + j];
            off += d * d;
            size += exact[i * c->n + j] * exact[i * c->n + j];
        }
    return (double)sqrtl(off / size);
}

/* c = a b^T of compact matrices by cuBLAS in fp32, with no workspace: it does not cut the depth then. */
static onepass_status multiply_by_cublas(const onep_product *p)
{
    static onep_cublaslt *lt;
    onep_cuda *cuda = onep_cuda_of(head_handle);
    onep_lt_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.m = p->n;
    shape.n = p->m;
    shape.k = shape.lda = shape.ldb = p->k;
    shape.ldd = p->n;
    shape.type = shape.d_type = ONEP_F32;
    shape.a_transposed = 1;
    shape.a_alignment = shape.b_alignment = shape.d_alignment = 256;
    int mode, error = -1;
    if (onep_cuda_enter(cuda, "test", &mode) != ONEPASS_OK)
        return ONEPASS_DEVICE_ERROR;
    lt = lt ? lt : onep_cublaslt_create();
    const onep_lt_plan *plan = lt ? onep_cublaslt_plan(lt, &shape) : NULL;
    if (plan)
        error = onep_cublaslt_run(lt, plan, p->b.data, p->a.data, p->c.data, NULL, NULL, onep_cuda_stream(cuda));
    onep_cuda_leave(cuda, mode);
    return error == 0 ? ONEPASS_OK : ONEPASS_DEVICE_ERROR;
}

static void test_errors(void)
{
    static const family families[] = {UNIFORM, GAUSSIAN, LOGNORMAL, OUTLIERS, SUBNORMAL, HUGE_VALUES, CANCELLING};
    for (int f = 0; f < (int)(sizeof families / sizeof families[0]); f++) {
        split_case c = split_plain_case(64, 128, 8192);
        c.data = families[f];
        double errors[2];
        long double *exact = split_must_have((size_t)(c.m * c.n) * sizeof(long double));
        uint64_t stream = head_streams;
        for (int plain = 0; plain < 2; plain++) {
            c.math = plain ? ONEP_MATH_PLAIN : ONEP_MATH_SPLIT;
            head_streams = stream; /* the same numbers */
            split_made made = split_make_case(&c);
            head_arena_send();
            if (plain)
                CHECK(multiply_by_cublas(&made.product) == ONEPASS_OK, "cuBLAS fails: %s", onep_cublaslt_missing());
            else
                split_run_case(&c, &made);
            head_arena_fetch();
            if (!plain)
                take_exact(&c, &made, exact);
            errors[plain] = error_of(&c, &made, exact);
        }
        free(exact);
        test_context("errors, %s", split_family_names[c.data]);
        printf("%s, 64 x 128 x %lld: relative error %.3g, cuBLAS fp32 %.3g\n", split_family_names[c.data],
               (long long)c.k, errors[0], errors[1]);
        CHECK(errors[0] < errors[1], "the error, %.3g, is not under cuBLAS's, %.3g", errors[0], errors[1]);
        CHECK(errors[0] > 3e-8, "an error of %.3g: what was it compared with?", errors[0]);
        if (c.data == UNIFORM || c.data == GAUSSIAN)
            CHECK(errors[0] < 3.5e-7, "the error is %.3g", errors[0]);
    }
}

int main(int count, char **arguments)
{
    test_begin("split_cuda");
    head_stream = cuda_stream();
    head_handle = cuda_handle(head_stream);
    if (count > 1 && strcmp(arguments[1], "time") == 0) {
        time_products(count - 2, arguments + 2);
        return 0;
    }
    test_shapes();
    test_layouts();
    split_try_depths(INT64_MAX);
    test_families();
    test_exchanged();
    test_pipelines();
    test_repeats();
    test_prepared();
    test_choice();
    test_errors();
    onepass_destroy(head_handle);
    return test_end();
}
