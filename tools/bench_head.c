/* See bench_head.h. */
#define _POSIX_C_SOURCE 200809L
#include "bench_head.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device.h"
#include "json.h"
#include "loss_case.h"
#include "measure_cuda.h"
#include "message.h"
#include "progress.h"

typedef struct head_job {
    const parsed_options *options;
    onepass_device device;
    head_bench bench;
    double errors[HEAD_WORKS];
} head_job;

/* ---- what is timed ----------------------------------------------------------------------------------------------- */

/* The floor lets BLAS use its own threads; everything else needs it on one. */
static void many_threads(void *context)
{
    const head_bench *it = context;
    if (it->blas.library)
        blas_set_threads(&it->blas, (int)onepass_threads(it->handle));
}

static void one_thread(void *context)
{
    const head_bench *it = context;
    if (it->blas.library)
        blas_set_threads(&it->blas, 1);
}

static void run_product(void *context, int repeats)
{
    head_bench *it = context;
    head_case *problem = &it->problem;
    for (int i = 0; i < repeats; i++) {
        if (it->blas.library)
            blas_multiply(&it->blas, problem->type, (int)problem->rows, (int)problem->columns, (int)problem->depth,
                          problem->arrays[HEAD_CASE_INPUT], problem->arrays[HEAD_CASE_WEIGHT],
                          problem->arrays[HEAD_CASE_OUTPUT]);
        else
            head_case_linear(problem, it->handle, false);
    }
}

static onepass_status forward(const head_bench *it, head_case *problem, bool train)
{
    return it->head ? head_case_forward(problem, it->handle, train) : head_case_linear(problem, it->handle, true);
}

static onepass_status both(const head_bench *it, head_case *problem)
{
    onepass_status status = forward(it, problem, true);
    if (status != ONEPASS_OK)
        return status;
    return it->head ? head_case_backward(problem, it->handle, true) : head_case_linear_backward(problem, it->handle);
}

static void run_forward(void *context, int repeats)
{
    head_bench *it = context;
    for (int i = 0; i < repeats; i++)
        forward(it, &it->problem, true);
}

static void run_eval(void *context, int repeats)
{
    head_bench *it = context;
    for (int i = 0; i < repeats; i++)
        forward(it, &it->problem, false);
}

static void run_both(void *context, int repeats)
{
    head_bench *it = context;
    for (int i = 0; i < repeats; i++)
        both(it, &it->problem);
}

static onepass_status run_kind(const head_bench *it, head_case *problem, int kind)
{
    switch (kind) {
    case HEAD_PRODUCT:
        return head_case_linear(problem, it->handle, false);
    case HEAD_BACKWARD:
        return both(it, problem);
    default:
        return forward(it, problem, kind == HEAD_FORWARD);
    }
}

static onepass_status run_there(void *context, int work)
{
    head_bench *it = context;
    return run_kind(it, &it->there, it->kinds[work]);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

bool head_bench_open(head_bench *it)
{
    const head_case *problem = &it->problem;
    if (!head_case_create(&it->problem))
        return false;
    bool fits = problem->rows <= INT32_MAX && problem->depth <= INT32_MAX && problem->columns <= INT32_MAX;
    if (problem->type >= ELEMENT_F32 && fits && onepass_device_of(it->handle).type == ONEPASS_CPU)
        blas_open(&it->blas, onepass_blas(it->handle));
    return true;
}

void head_bench_close(head_bench *it)
{
    measure_release(it->works, it->count);
    head_case_destroy(&it->problem);
    blas_close(&it->blas);
}

/* The works that are asked for, closed up. */
static void choose_works(head_bench *it, unsigned kinds)
{
    const head_case *problem = &it->problem;
    double flops = 2 * (double)problem->rows * (double)problem->depth * (double)problem->columns;
    bool cublaslt = strcmp(onepass_blas(it->handle), "cublaslt") == 0;
    const timed_work all[HEAD_WORKS] = {
        [HEAD_PRODUCT] = {.name = it->blas.library ? "BLAS product alone"
                                  : cublaslt       ? "cuBLASLt alone"
                                                   : "own product alone",
                          .prepare = many_threads,
                          .run = run_product,
                          .bytes = flops},
        [HEAD_FORWARD] = {.name = it->head ? "train" : "forward", .run = run_forward, .bytes = flops},
        [HEAD_EVAL] = {.name = "eval", .run = run_eval, .bytes = flops},
        [HEAD_BACKWARD] = {.name = it->head ? "train + backward" : "forward + backward",
                           .run = run_both,
                           .bytes = 3 * flops},
    };
    it->count = 0;
    for (int kind = 0; kind < HEAD_WORKS; kind++) {
        if (kind != HEAD_PRODUCT && !(kinds >> kind & 1))
            continue;
        timed_work *work = &it->works[it->count];
        *work = all[kind];
        work->context = it;
        work->counts_flops = true;
        if (!work->prepare)
            work->prepare = one_thread;
        it->kinds[it->count++] = kind;
    }
}

static onepass_status find_workspaces(head_bench *it, const head_case *problem)
{
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < it->count && status == ONEPASS_OK; i++)
        status = head_case_workspace(problem, it->handle, it->head && it->kinds[i] != HEAD_PRODUCT,
                                     it->kinds[i] != HEAD_EVAL, it->kinds[i] == HEAD_BACKWARD, &it->workspaces[i]);
    return status;
}

/* The processor's work and floor, in turn. */
static onepass_status measure_on_cpu(head_bench *it, const measure_rule *rule)
{
    onepass_status status = head_case_prepare(&it->problem, it->handle);
    if (status == ONEPASS_OK)
        status = find_workspaces(it, &it->problem);
    one_thread(it);
    for (int i = 0; i < it->count && status == ONEPASS_OK; i++)
        status = run_kind(it, &it->problem, it->kinds[i]);
    if (status == ONEPASS_OK && !measure_in_turn(it->works, it->count, rule))
        measure_release(it->works, it->count);
    one_thread(it);
    return status;
}

/* The same with everything on the device. */
static onepass_status measure_on_cuda(head_bench *it, const measure_rule *rule)
{
    cuda_timer timer = {0};
    onepass_status status = cuda_timer_open(&timer, it->handle);
    if (status == ONEPASS_OK)
        status = head_case_send(&it->problem, &it->there, it->handle);
    if (status == ONEPASS_OK)
        status = find_workspaces(it, &it->there);
    if (status == ONEPASS_OK)
        status = cuda_measure_in_turn(&timer, run_there, it, it->works, 0, it->count, rule);
    head_case_drop(&it->there, it->handle);
    cuda_timer_close(&timer);
    return status;
}

onepass_status head_bench_measure(head_bench *it, unsigned kinds, const measure_rule *rule)
{
    measure_release(it->works, it->count);
    choose_works(it, kinds);
    return onepass_device_of(it->handle).type == ONEPASS_CUDA ? measure_on_cuda(it, rule) : measure_on_cpu(it, rule);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* The distance of two arrays, relative to the size of the second, both as vectors. */
static double distance(const head_case *a, const head_case *b, int array)
{
    element_type type = array == HEAD_CASE_OUTPUT || array == HEAD_CASE_GRAD_WEIGHT ? a->type : a->computed;
    double off = 0, size = 0;
    for (int64_t i = 0; i < head_case_count(a, array); i++) {
        double x = element_load(type, a->arrays[array], (size_t)i);
        double y = element_load(ELEMENT_F64, b->arrays[array], (size_t)i);
        off += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(off / size);
}

/* The same numbers in f64, computed in f64, are exact beside any narrower type; shows that every call succeeds, too. */
static onepass_status measure_errors(head_job *job)
{
    for (int i = 0; i < HEAD_WORKS; i++)
        job->errors[i] = NAN;
    head_bench *bench = &job->bench;
    head_case *it = &bench->problem;
    onepass_status status = head_case_prepare(it, bench->handle);
    if (status == ONEPASS_OK)
        status = both(bench, it);
    if (status != ONEPASS_OK || it->type == ELEMENT_F64)
        return status;
    head_case exact = {.rows = it->rows, .depth = it->depth, .columns = it->columns, .type = ELEMENT_F64};
    if (!head_case_create(&exact)) {
        head_case_destroy(&exact);
        return ONEPASS_OK; /* no room to know them */
    }
    for (int array = 0; array <= HEAD_CASE_GRAD_OUTPUT; array++) {
        bool matrix = array == HEAD_CASE_INPUT || array == HEAD_CASE_WEIGHT || array == HEAD_CASE_GRAD_OUTPUT;
        for (int64_t i = 0; i < head_case_count(it, array); i++)
            element_store(ELEMENT_F64, exact.arrays[array], (size_t)i,
                          element_load(matrix ? it->type : it->computed, it->arrays[array], (size_t)i));
    }
    status = head_case_prepare(&exact, bench->handle);
    if (status == ONEPASS_OK)
        status = both(bench, &exact);
    if (status == ONEPASS_OK) {
        job->errors[HEAD_FORWARD] = distance(it, &exact, HEAD_CASE_OUTPUT);
        job->errors[HEAD_BACKWARD] = distance(it, &exact, HEAD_CASE_GRAD_WEIGHT);
    }
    if (status == ONEPASS_OK)
        status = forward(bench, it, false);
    if (status == ONEPASS_OK)
        status = forward(bench, &exact, false);
    if (status == ONEPASS_OK)
        job->errors[HEAD_EVAL] = distance(it, &exact, HEAD_CASE_OUTPUT);
    head_case_destroy(&exact);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void print_json(const head_job *job)
{
    const head_bench *bench = &job->bench;
    const head_case *it = &bench->problem;
    json_writer json = json_begin(stdout, "bench");
    json_string(&json, "operator", options_text(job->options, "OPERATOR"));
    json_integer(&json, "rows_count", it->rows);
    json_integer(&json, "depth", it->depth);
    json_integer(&json, "columns", it->columns);
    json_string(&json, "dtype", element_infos[it->type].name);
    device_print_json(&json, bench->handle, job->options);
    json_integer(&json, "seed", (int64_t)it->seed);
    json_open(&json, "rows", '[');
    for (int i = 0; i < bench->count; i++)
        measure_print_json(&json, bench->works, i, job->errors[bench->kinds[i]]);
    json_close(&json, ']');
    json_end(&json);
}

static void print_table(const head_job *job)
{
    const head_bench *bench = &job->bench;
    const head_case *it = &bench->problem;
    char products[400];
    if (job->device.type == ONEPASS_CUDA)
        onepass_describe_blas(bench->handle, products, sizeof products);
    else
        snprintf(products, sizeof products, "BLAS %s, %d threads", onepass_blas(bench->handle),
                 (int)onepass_threads(bench->handle));
    printf("%s, %lld x %lld x %lld (B x K x N) %s; %s, %s, %d rounds, seed %llu\n",
           options_text(job->options, "OPERATOR"), (long long)it->rows, (long long)it->depth, (long long)it->columns,
           element_infos[it->type].name, onepass_isa(bench->handle), products, bench->works[0].rounds,
           (unsigned long long)it->seed);
    double errors[HEAD_WORKS];
    for (int i = 0; i < bench->count; i++)
        errors[i] = job->errors[bench->kinds[i]];
    measure_print_table(bench->works, bench->count, errors);
}

static int run(head_job *job)
{
    const parsed_options *options = job->options;
    head_bench *bench = &job->bench;
    bool quiet = options_given(options, "quiet");
    int code = device_option(options, &job->device);
    if (code)
        return code;
    onepass_config config = {
        .size = sizeof config,
        .device = job->device,
        .fp32_products = options_choice(options, "fp32-products"),
        .threads = (int32_t)options_integer(options, "threads"),
        .isa = options_text(options, "isa"),
    };
    onepass_status status = onepass_create(&config, &bench->handle);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    bench->problem = (head_case){
        .rows = options_integer(options, "rows"),
        .depth = options_integer(options, "depth"),
        .columns = options_integer(options, "cols"),
        .type = (element_type)options_choice(options, "dtype"),
        .seed = random_seed(options),
    };
    if (!head_bench_open(bench))
        return message_error(EXIT_INPUT, "--rows %s --depth %s --cols %s: no memory for arrays of that size",
                             options_text(options, "rows"), options_text(options, "depth"),
                             options_text(options, "cols"));
    progress_begin("errors", quiet);
    status = measure_errors(job);
    progress_clear();
    double seconds = options_real(options, "seconds");
    bool on_cuda = job->device.type == ONEPASS_CUDA, gradient = options_given(options, "grad");
    measure_rule rule = on_cuda ? cuda_measure_thoroughly(seconds) : measure_thoroughly(seconds);
    unsigned forward_kinds = 1u << HEAD_FORWARD | (bench->head ? 1u << HEAD_EVAL : 0);
    progress_begin("bench", quiet);
    if (status == ONEPASS_OK)
        status = head_bench_measure(bench, 1u << HEAD_BACKWARD | (gradient ? 0 : forward_kinds), &rule);
    progress_clear();
    if (status != ONEPASS_OK)
        return message_library_error(status);
    if (!bench->works[0].samples)
        return message_error(EXIT_INPUT, "no memory for the samples");
    if (options_given(options, "json"))
        print_json(job);
    else
        print_table(job);
    return 0;
}

int bench_head(const parsed_options *options)
{
    head_job job = {.options = options};
    job.bench.head = strcmp(options_text(options, "OPERATOR"), "head") == 0;
    int code = run(&job);
    head_bench_close(&job.bench);
    onepass_destroy(job.bench.handle);
    return code;
}
