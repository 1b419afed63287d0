/*
 * The kernels of the split product on the CPU (emulated_kernels.cpp), with the C that plans them: the same cases, bit
 * for bit, as tests/test_split_cuda.c has on a GPU, but few of them. "Device memory" is memory of the machine.
 */
#include <stdlib.h>
#include <string.h>

#include "emulated_device.h"
#include "split_cases.h"

/* ---- instead of a device ----------------------------------------------------------------------------------------- */

int emulated_has_tma(const onep_cuda *cuda)
{
    (void)cuda;
    return 1;
}

/* Few, so that a block has several tiles and the ring of shared memory goes on from one to the next; or more than there
 * are tiles, so that the depth is cut. */
static int multiprocessors = 2;

int emulated_multiprocessors(const onep_cuda *cuda)
{
    (void)cuda;
    return multiprocessors;
}

void split_set_pauses(const int *pauses)
{
    memcpy(emulated_pauses, pauses, sizeof emulated_pauses);
}

void *cuda_claim(size_t bytes)
{
    void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory)
        exit(2);
    return memory;
}

void cuda_upload(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void cuda_download(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

int cuda_tickets_are_zero(const onepass_handle *handle)
{
    (void)handle;
    return 1; /* there are none */
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* Tiles of each width, edges of each operand, one chunk and several, the last one full or not. */
static void test_shapes(void)
{
    static const int64_t shapes[][3] = {{1, 1, 1},      {5, 7, 64},     {64, 128, 65}, {65, 129, 64},
                                        {128, 40, 130}, {129, 200, 70}, {300, 130, 40}};
    test_random random = test_random_stream(++head_streams);
    for (int s = 0; s < (int)(sizeof shapes / sizeof shapes[0]); s++)
        for (int variant = 0; variant < 4; variant++) {
            split_case c = split_plain_case(shapes[s][0], shapes[s][1], shapes[s][2]);
            c.prepared = variant == 1;
            c.b_swapped = variant == 2;
            c.ampere = variant == 3;
            c.a_swapped = (int)test_random_below(&random, 2);
            c.bias = (int)test_random_below(&random, 2);
            c.statistics = 1;
            split_try_case(&c);
        }
}

static void test_layouts(void)
{
    test_random random = test_random_stream(++head_streams);
    for (int i = 0; i < 8; i++) {
        split_case c = split_plain_case(20, 30, 70);
        c.a_layout = (head_layout)(i % LAYOUTS);
        c.b_layout = (head_layout)((i + 1) % LAYOUTS);
        c.c_layout = (head_layout)test_random_below(&random, LAYOUTS);
        c.a_swapped = (int)test_random_below(&random, 2);
        c.b_swapped = i & 1;
        split_try_case(&c);
    }
}

static void test_families(void)
{
    for (int data = 0; data < FAMILIES; data++) {
        split_case c = split_plain_case(10, 20, 200);
        c.data = (family)data;
        c.prepared = data % 4 == 1;
        c.b_swapped = data % 4 == 2;
        c.ampere = data % 4 == 3;
        c.statistics = 1;
        split_try_case(&c);
    }
}

/* More tiles than blocks, and threads that keep each other waiting. */
static void test_pipelines(void)
{
    static const int trials[][3] = {{0, 0, 3}, {1, 0, 4}, {0, 1, 0}}; /* pauses, stages */
    for (int i = 0; i < 3; i++) {
        split_case c = split_plain_case(70, 390, 260);
        c.prepared = i == 1;
        c.b_swapped = i == 2;
        memcpy(c.pauses, trials[i], sizeof c.pauses);
        c.stages = trials[i][2];
        split_try_case(&c);
    }
    split_case bands = split_plain_case(10 * 256 - 3, 390, 16); /* one of 8 right tiles, one of 2 */
    split_try_case(&bands);
}

/* Fewer tiles than multiprocessors. */
static void test_parts(void)
{
    multiprocessors = 9;
    for (int data = 0; data < FAMILIES; data++) {
        split_case c = split_plain_case(10 + 60 * (data % 2), 100 + 100 * (data % 3), 900 - data);
        c.data = (family)data;
        c.prepared = data % 3 == 1;
        c.bias = data % 2;
        c.c_layout = (head_layout)(data % LAYOUTS);
        split_try_case(&c);
    }
    multiprocessors = 2;
}

/*
 * Operands that change places: around every edge of a tile, with a's depth along memory and across it, a bias of right
 * rows or none, c's rows at even and at odd places, and in parts. Fields that make it impossible, one at a time.
 */
static void test_exchanged(void)
{
    static const int64_t shapes[][3] = {{128, 1, 4},    {128, 2, 68},   {132, 7, 64},   {257, 63, 8},  {259, 64, 132},
                                        {260, 65, 200}, {383, 127, 36}, {256, 128, 64}, {300, 129, 4}, {520, 257, 20}};
    test_random random = test_random_stream(++head_streams);
    for (int s = 0; s < (int)(sizeof shapes / sizeof shapes[0]); s++)
        for (int bias = 0; bias < 2; bias++) {
            split_case c = split_plain_case(shapes[s][0], shapes[s][1], shapes[s][2]);
            c.may_exchange = 1;
            c.bias = bias;
            c.statistics = 1; /* none are made */
            c.a_swapped = c.m % 4 == 0 && bias != s % 2;
            c.b_swapped = (int)test_random_below(&random, 2);
            c.a_layout = test_random_below(&random, 2) ? PADDED : COMPACT;
            c.b_layout = (head_layout)test_random_below(&random, LAYOUTS);
            c.c_layout = (head_layout)((s + bias) % LAYOUTS);
            split_try_case(&c);
        }
    for (int data = 0; data < FAMILIES; data++) {
        split_case c = split_plain_case(140, 30, 200);
        c.may_exchange = c.bias = 1;
        c.data = (family)data;
        c.a_swapped = data % 2;
        split_try_case(&c);
    }
    for (int i = 0; i < 8; i++) { /* not exchanged, each for another reason; the last one is, prepared or not */
        split_case c = split_plain_case(i == 1 ? 127 : i == 2 ? 130 : 132, i == 2 ? 66 : 10, i == 3 ? 70 : 72);
        c.may_exchange = i != 4;
        c.a_layout = i == 5 ? SHIFTED : i == 6 ? STRIDED : COMPACT;
        c.prepared = i == 7;
        c.ampere = i == 0;
        split_try_case(&c);
    }
    multiprocessors = 9;
    for (int i = 0; i < 6; i++) { /* in parts */
        split_case c = split_plain_case(i % 2 ? 128 : 300, 20 + 23 * i, 600);
        c.may_exchange = 1;
        c.m = c.m < 2 * c.n ? 2 * c.n : c.m;
        c.data = i == 3 ? INFINITE : i == 4 ? WIDE_CHUNKS : GAUSSIAN;
        c.bias = i % 3 != 0;
        c.c_layout = (head_layout)(i % LAYOUTS);
        split_try_case(&c);
    }
    multiprocessors = 2;
    split_case bands = split_plain_case(520, 260, 200); /* the ring goes on from tile to tile */
    bands.may_exchange = bands.bias = 1;
    bands.stages = 4;
    split_try_case(&bands);
}

static int is_chosen(const onep_product *p)
{
    onep_split_plan plan;
    int taken = 0;
    CHECK(onep_split_plan_make(NULL, p, NULL, &plan, &taken) == ONEPASS_OK, "%s", onepass_last_error());
    return taken;
}

/*
 * Where it is chosen before cuBLAS: some shapes of the table in docs/performance.md, on either side of every border, as
 * they are and where operands may change places. A workspace is asked for where either is chosen.
 */
static void test_wins(void)
{
    static const struct {
        int64_t m, n, k;
        int wins, wins_exchanged;
    } shapes[] = {{1024, 8192, 8192, 1, 1}, {1024, 64, 4096, 0, 1},   {4096, 64, 16384, 0, 1}, {16, 1024, 1024, 1, 1},
                  {16, 4096, 256, 0, 0},    {16, 16384, 64, 0, 0},    {64, 256, 1024, 0, 0},   {64, 1024, 4096, 1, 1},
                  {256, 1024, 1024, 1, 1},  {1024, 1024, 256, 0, 0},  {4096, 256, 256, 0, 1},  {4096, 256, 4096, 1, 1},
                  {16384, 256, 256, 0, 1},  {16384, 256, 1024, 1, 1}, {1, 100, 100000, 0, 0},  {0, 1024, 1024, 0, 0},
                  {1024, 1024, 0, 0, 0},    {8192, 8192, 1024, 1, 1}, {256, 64, 1024, 0, 0},   {1024, 64, 256, 0, 0},
                  {4096, 64, 64, 0, 0},     {16384, 64, 4096, 0, 1},  {100, 1, 1000000, 0, 0}, {4096, 1, 4096, 0, 1}};
    static float memory[4] __attribute__((aligned(16)));
    for (int i = 0; i < (int)(sizeof shapes / sizeof shapes[0]); i++) {
        int64_t m = shapes[i].m, n = shapes[i].n, k = shapes[i].k;
        test_context("choice, %lld x %lld x %lld", (long long)m, (long long)n, (long long)k);
        onep_operand compact = {.data = (char *)memory, .row_stride = {k * 4}, .col_stride = 4, .type = ONEP_F32};
        onep_product p = {.m = m, .n = n, .k = k, .a = compact, .b = compact, .c = compact, .math = ONEP_MATH_BEST};
        p.a_rows = split_rows_of(m);
        p.b_rows = split_rows_of(n);
        p.c_rows = split_rows_of(m);
        CHECK(is_chosen(&p) == shapes[i].wins, "as it is");
        CHECK((onep_split_workspace(NULL, &p) > 0) == shapes[i].wins, "a workspace as it is");
        p.may_exchange = 1;
        CHECK(is_chosen(&p) == shapes[i].wins_exchanged, "if operands may change places");
        CHECK((onep_split_workspace(NULL, &p) > 0) == shapes[i].wins_exchanged, "a workspace, then");
        onep_product unlike = p;
        unlike.a.data += 4; /* TMA does not read it */
        CHECK(is_chosen(&unlike) == shapes[i].wins, "a not aligned");
        unlike = p;
        unlike.b_planes = memory;
        CHECK(is_chosen(&unlike) == shapes[i].wins_exchanged, "b prepared");
    }
}

/* A matrix of random numbers, rows of `columns` floats. */
static onep_operand drawn_matrix(test_random *random, int64_t rows, int64_t columns)
{
    float *data = cuda_claim((size_t)(rows * columns) * sizeof(float));
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = (float)test_random_between(random, -1, 1);
    onep_operand made = {.data = (char *)data, .type = ONEP_F32, .col_stride = 4};
    made.row_stride[0] = columns * 4;
    return made;
}

/* Planes are 0 beyond the depth. The other operand is 0 there as well, so only a NaN shows what was not written. */
static void test_workspaces_of_nan(void)
{
    static const int64_t depths[][2] = {
        {20, 0}, {21, 0}, {4100, 0}, {20, 1}, {1028, 1}}; /* a along memory, across it */
    enum { M = 3, N = 2 };
    test_random random = test_random_stream(++head_streams);
    for (int i = 0; i < (int)(sizeof depths / sizeof depths[0]); i++)
        for (int ampere = 0; ampere < 2; ampere++) {
            int64_t k = depths[i][0];
            int across = (int)depths[i][1];
            float results[2][M * N];
            onep_product p = {
                .operator_name = "test",
                .m = M,
                .n = N,
                .k = k,
                .a = across ? drawn_matrix(&random, k, M) : drawn_matrix(&random, M, k),
                .b = drawn_matrix(&random, N, k),
                .c = drawn_matrix(&random, M, N),
                .a_rows = split_rows_of(across ? k : M),
                .b_rows = split_rows_of(N),
                .c_rows = split_rows_of(M),
                .a_swapped = across,
                .math = ampere ? ONEP_MATH_SPLIT_SM80 : ONEP_MATH_SPLIT,
            };
            test_context("a workspace of NaN, depth %lld%s%s", (long long)k, across ? ", across" : "",
                         ampere ? ", Ampere" : "");
            size_t bytes = onep_split_workspace(onep_cuda_of(head_handle), &p);
            void *workspace = cuda_claim(bytes);
            for (int fill = 0; fill < 2; fill++) {
                memset(workspace, fill ? 0xff : 0, bytes);
                memset(p.c.data, 0xff, sizeof results[0]);
                onep_split_plan plan;
                int taken = 0;
                CHECK(onep_split_plan_make(NULL, &p, workspace, &plan, &taken) == ONEPASS_OK && taken &&
                          onep_split_run(NULL, "test", &plan) == ONEPASS_OK,
                      "%s", onepass_last_error());
                memcpy(results[fill], p.c.data, sizeof results[0]);
            }
            for (int j = 0; j < M * N; j++)
                CHECK(results[0][j] == results[1][j], "element %d: %g, or %g", j, (double)results[0][j],
                      (double)results[1][j]); /* no NaN is equal to itself */
            free(p.a.data);
            free(p.b.data);
            free(p.c.data);
            free(workspace);
        }
}

int main(void)
{
    static onepass_handle handle; /* nobody looks into it but for a device that is not there */
    test_begin("split_emulated");
    head_handle = &handle;
    test_shapes();
    test_layouts();
    split_try_depths(8196);
    test_workspaces_of_nan();
    test_families();
    test_pipelines();
    test_parts();
    test_exchanged();
    test_wins();
    return test_end();
}
