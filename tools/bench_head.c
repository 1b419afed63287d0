/* See bench_head.h. */
#define _POSIX_C_SOURCE 200809L
#include "bench_head.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "blas.h"
#include "device_memory.h"
#include "handle.h"
#include "head_case.h"
#include "json.h"
#include "kl_case.h"
#include "layer_call.h"
#include "measure_cuda.h"
#include "message.h"
#include "product.h"
#include "progress.h"

enum { PRODUCT, FORWARD, EVAL, BACKWARD, WORKS };

typedef struct head_job {
    const parsed_options *options;
    bool head; /* otherwise linear */
    onepass_device device;
    onepass_handle *handle;
    head_case problem;
    head_case there; /* the same on a GPU */
    timed_work works[WORKS];
    int kinds[WORKS]; /* PRODUCT to BACKWARD */
    double errors[WORKS];
    int count;
    const onep_blas *blas; /* NULL: the product is our own, or a GPU's */
} head_job;

/* ---- what is timed ----------------------------------------------------------------------------------------------- */

/* The floor lets BLAS use its own threads; everything else needs it on one. */
static void many_threads(void *context)
{
    const head_job *job = context;
    if (job->blas)
        onep_blas_set_threads(job->blas, (int)onepass_threads(job->handle));
}

static void one_thread(void *context)
{
    const head_job *job = context;
    if (job->blas)
        onep_blas_set_threads(job->blas, 1);
}

static void run_product(void *context, int repeats)
{
    head_job *job = context;
    head_case *it = &job->problem;
    int m = (int)it->rows, n = (int)it->columns, k = (int)it->depth;
    const void *a = it->arrays[HEAD_CASE_INPUT], *b = it->arrays[HEAD_CASE_WEIGHT];
    void *c = it->arrays[HEAD_CASE_OUTPUT];
    for (int i = 0; i < repeats; i++) {
        if (!job->blas)
            head_case_linear(it, job->handle, false);
        else if (it->type == ELEMENT_F32)
            job->blas->sgemm(ONEP_BLAS_ROW_MAJOR, ONEP_BLAS_PLAIN, ONEP_BLAS_TRANSPOSED, m, n, k, 1, a, k, b, k, 0, c,
                             n);
        else
            job->blas->dgemm(ONEP_BLAS_ROW_MAJOR, ONEP_BLAS_PLAIN, ONEP_BLAS_TRANSPOSED, m, n, k, 1, a, k, b, k, 0, c,
                             n);
    }
}

static onepass_status forward(const head_job *job, head_case *it, bool train)
{
    return job->head ? head_case_forward(it, job->handle, train) : head_case_linear(it, job->handle, true);
}

static onepass_status both(const head_job *job, head_case *it)
{
    onepass_status status = forward(job, it, true);
    if (status != ONEPASS_OK)
        return status;
    return job->head ? head_case_backward(it, job->handle, true) : head_case_linear_backward(it, job->handle);
}

static void run_forward(void *context, int repeats)
{
    head_job *job = context;
    for (int i = 0; i < repeats; i++)
        forward(job, &job->problem, true);
}

static void run_eval(void *context, int repeats)
{
    head_job *job = context;
    for (int i = 0; i < repeats; i++)
        forward(job, &job->problem, false);
}

static void run_both(void *context, int repeats)
{
    head_job *job = context;
    for (int i = 0; i < repeats; i++)
        both(job, &job->problem);
}

static onepass_status run_there(void *context, int work)
{
    head_job *job = context;
    switch (job->kinds[work]) {
    case PRODUCT:
        return head_case_linear(&job->there, job->handle, false);
    case BACKWARD:
        return both(job, &job->there);
    default:
        return forward(job, &job->there, job->kinds[work] == FORWARD);
    }
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
    for (int i = 0; i < WORKS; i++)
        job->errors[i] = NAN;
    head_case *it = &job->problem;
    onepass_status status = head_case_prepare(it, job->handle);
    if (status == ONEPASS_OK)
        status = both(job, it);
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
    status = head_case_prepare(&exact, job->handle);
    if (status == ONEPASS_OK)
        status = both(job, &exact);
    if (status == ONEPASS_OK) {
        job->errors[FORWARD] = distance(it, &exact, HEAD_CASE_OUTPUT);
        job->errors[BACKWARD] = distance(it, &exact, HEAD_CASE_GRAD_WEIGHT);
    }
    if (status == ONEPASS_OK)
        status = forward(job, it, false);
    if (status == ONEPASS_OK)
        status = forward(job, &exact, false);
    if (status == ONEPASS_OK)
        job->errors[EVAL] = distance(it, &exact, HEAD_CASE_OUTPUT);
    head_case_destroy(&exact);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void print_json(const head_job *job)
{
    const head_case *it = &job->problem;
    json_writer json = json_begin(stdout, "bench");
    json_string(&json, "operator", options_text(job->options, "OPERATOR"));
    json_integer(&json, "rows_count", it->rows);
    json_integer(&json, "depth", it->depth);
    json_integer(&json, "columns", it->columns);
    json_string(&json, "dtype", element_infos[it->type].name);
    layer_print_device(&json, job->handle, job->options);
    json_integer(&json, "seed", (int64_t)it->seed);
    json_open(&json, "rows", '[');
    for (int i = 0; i < job->count; i++)
        measure_print_json(&json, job->works, i, job->errors[i]);
    json_close(&json, ']');
    json_end(&json);
}

static void print_table(const head_job *job)
{
    const head_case *it = &job->problem;
    char products[400];
    if (job->handle->cuda)
        onep_products_describe(products, sizeof products);
    else
        snprintf(products, sizeof products, "BLAS %s, %d threads", onepass_blas(job->handle),
                 (int)onepass_threads(job->handle));
    printf("%s, %lld x %lld x %lld (B x K x N) %s; %s, %s, %d rounds, seed %llu\n",
           options_text(job->options, "OPERATOR"), (long long)it->rows, (long long)it->depth, (long long)it->columns,
           element_infos[it->type].name, onepass_isa(job->handle), products, job->works[0].rounds,
           (unsigned long long)it->seed);
    measure_print_table(job->works, job->count, job->errors);
}

/* The works that were asked for, closed up, with their errors. */
static void choose_works(head_job *job)
{
    const head_case *it = &job->problem;
    double flops = 2 * (double)it->rows * (double)it->depth * (double)it->columns;
    bool gradient = options_given(job->options, "grad");
    char ignored[8];
    bool cublaslt = job->handle->cuda && onep_products_describe(ignored, sizeof ignored);
    const timed_work all[WORKS] = {
        [PRODUCT] = {.name = job->blas  ? "BLAS product alone"
                             : cublaslt ? "cuBLASLt alone"
                                        : "own product alone",
                     .prepare = many_threads,
                     .run = run_product,
                     .bytes = flops},
        [FORWARD] = {.name = job->head ? "train" : "forward", .run = run_forward, .bytes = flops},
        [EVAL] = {.name = "eval", .run = run_eval, .bytes = flops},
        [BACKWARD] = {.name = job->head ? "train + backward" : "forward + backward",
                      .run = run_both,
                      .bytes = 3 * flops},
    };
    double errors[WORKS];
    memcpy(errors, job->errors, sizeof errors);
    for (int i = 0; i < WORKS; i++) {
        if ((i == EVAL && !job->head) || (gradient && (i == FORWARD || i == EVAL)))
            continue;
        timed_work *work = &job->works[job->count];
        *work = all[i];
        job->kinds[job->count] = i;
        work->context = job;
        work->counts_flops = true;
        if (!work->prepare)
            work->prepare = one_thread;
        job->errors[job->count++] = errors[i];
    }
}

/* The processor's work and floor, in turn. */
static int measure_on_cpu(head_job *job)
{
    bool measured = measure_in_turn(job->works, job->count, options_real(job->options, "seconds"));
    one_thread(job);
    return measured ? 0 : message_error(EXIT_INPUT, "no memory for the samples");
}

/* The same with everything on the device. */
static int measure_on_cuda(head_job *job)
{
    cuda_timer timer = {0};
    onepass_status status = cuda_timer_open(&timer, job->device.id);
    if (status == ONEPASS_OK)
        status = head_case_send(&job->problem, &job->there, job->handle, &timer.memory);
    if (status == ONEPASS_OK)
        status = cuda_measure_in_turn(&timer, run_there, job, job->works, 0, job->count,
                                      options_real(job->options, "seconds"));
    if (timer.memory.open)
        head_case_drop(&job->there, &timer.memory);
    cuda_timer_close(&timer);
    return status == ONEPASS_OK ? 0 : message_library_error(status);
}

static int run(head_job *job)
{
    const parsed_options *options = job->options;
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
    onepass_status status = onepass_create(&config, &job->handle);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    job->problem = (head_case){
        .rows = options_integer(options, "rows"),
        .depth = options_integer(options, "depth"),
        .columns = options_integer(options, "cols"),
        .type = (element_type)options_choice(options, "dtype"),
        .seed = random_seed(options),
    };
    const head_case *it = &job->problem;
    if (!head_case_create(&job->problem))
        return message_error(EXIT_INPUT, "--rows %s --depth %s --cols %s: no memory for arrays of that size",
                             options_text(options, "rows"), options_text(options, "depth"),
                             options_text(options, "cols"));
    bool fits = it->rows <= INT32_MAX && it->depth <= INT32_MAX && it->columns <= INT32_MAX;
    if (it->type >= ELEMENT_F32 && fits && !job->handle->cuda && job->handle->level != ONEP_REF)
        job->blas = onep_blas_of(job->handle->blas);
    progress_begin("errors", quiet);
    status = measure_errors(job);
    progress_clear();
    if (status != ONEPASS_OK)
        return message_library_error(status);
    choose_works(job);
    progress_begin("bench", quiet);
    code = job->handle->cuda ? measure_on_cuda(job) : measure_on_cpu(job);
    progress_clear();
    if (code)
        return code;
    if (options_given(options, "json"))
        print_json(job);
    else
        print_table(job);
    return 0;
}

int bench_head(const parsed_options *options)
{
    head_job job = {.options = options, .head = strcmp(options_text(options, "OPERATOR"), "head") == 0};
    int code = run(&job);
    measure_release(job.works, job.count);
    head_case_destroy(&job.problem);
    onepass_destroy(job.handle);
    return code;
}
