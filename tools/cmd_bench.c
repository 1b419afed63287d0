/*
 * onepass bench: an operator and, in turn with it, a plain loop over the same bytes. Prints a table or JSON; judges
 * nothing. The numbers are those of warm pages and, for arrays beyond the caches, cold lines.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench_cuda.h"
#include "bench_head.h"
#include "commands.h"
#include "device_memory.h"
#include "json.h"
#include "kl_case.h"
#include "message.h"
#include "progress.h"

enum {
    FLOOR_READ = BENCH_FLOOR_READ,
    FORWARD = BENCH_FORWARD,
    FLOOR_WRITE = BENCH_FLOOR_WRITE,
    GRADIENT = BENCH_GRADIENT,
    WORKS = BENCH_WORKS
};

typedef struct bench_job {
    const parsed_options *options;
    team *members;
    onepass_device device;
    onepass_handle *handle;
    kl_case problem;
    memory_set read, written;
    timed_work works[WORKS];
    double errors[WORKS];
    double value; /* of the last run */
} bench_job;

static void run_forward(void *context, int repeats)
{
    bench_job *job = context;
    for (int i = 0; i < repeats; i++)
        kl_case_run(&job->problem, job->handle, false, ELEMENT_F64, &job->value);
}

static void run_gradient(void *context, int repeats)
{
    bench_job *job = context;
    for (int i = 0; i < repeats; i++)
        kl_case_run(&job->problem, job->handle, true, ELEMENT_F64, &job->value);
}

/* A relative error; of a value that should be 0, the value itself. */
static double relative_error(double got, double expected)
{
    return expected == 0 ? fabs(got) : fabs(got / expected - 1);
}

/* The value of both kinds of work against the reference's; also shows that every call to be timed succeeds. */
static int measure_errors(bench_job *job)
{
    onepass_config config = {.size = sizeof config, .isa = "ref", .progress = progress_update};
    onepass_handle *reference;
    onepass_status status = onepass_create(&config, &reference);
    double exact = NAN;
    if (status == ONEPASS_OK)
        status = kl_case_run(&job->problem, reference, false, ELEMENT_F64, &exact);
    for (int i = 0; i < WORKS; i++)
        job->errors[i] = NAN;
    for (int gradient = 0; gradient < 2 && status == ONEPASS_OK; gradient++) {
        double value = NAN;
        status = kl_case_run(&job->problem, job->handle, gradient, ELEMENT_F64, &value);
        job->errors[gradient ? GRADIENT : FORWARD] = relative_error(value, exact);
    }
    onepass_destroy(reference);
    return status == ONEPASS_OK ? 0 : message_library_error(status);
}

static void print_json(const bench_job *job, const timed_work *works, int count, const double *errors)
{
    const kl_case *problem = &job->problem;
    json_writer json = json_begin(stdout, "bench");
    json_string(&json, "operator", "kl");
    json_shape(&json, "shape", 2, problem->shape);
    json_string(&json, "dtype", element_infos[problem->type].name);
    json_string(&json, "pred", options_text(job->options, "pred"));
    json_string(&json, "target", options_text(job->options, "target"));
    json_string(&json, "reduction", "batchmean");
    json_string(&json, "device", options_text(job->options, "device"));
    json_string(&json, "isa", onepass_isa(job->handle));
    json_integer(&json, "threads", onepass_threads(job->handle));
    json_integer(&json, "seed", (int64_t)problem->seed);
    json_open(&json, "rows", '[');
    for (int i = 0; i < count; i++)
        measure_print_json(&json, works, i, errors[i]);
    json_close(&json, ']');
    json_end(&json);
}

static void print_table(const bench_job *job, const timed_work *works, int count, const double *errors)
{
    const kl_case *problem = &job->problem;
    printf("kl, %lld x %lld %s, %s predictions, %s targets, batchmean; %s, %d threads, %d rounds, seed %llu\n",
           (long long)problem->shape[0], (long long)problem->shape[1], element_infos[problem->type].name,
           options_text(job->options, "pred"), options_text(job->options, "target"), onepass_isa(job->handle),
           (int)onepass_threads(job->handle), works[0].rounds, (unsigned long long)problem->seed);
    measure_print_table(works, count, errors);
}

/* The processor's work and floors, in turn. */
static int measure_on_cpu(bench_job *job, int skipped)
{
    job->read = job->written = kl_case_memory(&job->problem, job->members);
    timed_work *works = job->works;
    works[FLOOR_READ] = measure_floor(&job->read, false);
    works[FORWARD] = (timed_work){"forward", NULL, run_forward, job, works[FLOOR_READ].bytes, .floor = FLOOR_READ};
    works[FLOOR_WRITE] = measure_floor(&job->written, true);
    works[FLOOR_WRITE].floor = FLOOR_WRITE;
    works[GRADIENT] =
        (timed_work){"forward + gradient", NULL, run_gradient, job, works[FLOOR_WRITE].bytes, .floor = FLOOR_WRITE};
    for (int i = skipped; i < WORKS; i++)
        works[i].floor -= skipped;
    if (!measure_in_turn(works + skipped, WORKS - skipped, options_real(job->options, "seconds")))
        return message_error(EXIT_INPUT, "no memory for the samples");
    return 0;
}

static int measure_on_cuda(bench_job *job, int skipped)
{
    onepass_status status =
        bench_cuda(job->handle, &job->problem, job->works, skipped, options_real(job->options, "seconds"));
    for (int i = skipped; i < WORKS; i++)
        job->works[i].floor -= skipped;
    return status == ONEPASS_OK ? 0 : message_library_error(status);
}

static int measure(bench_job *job)
{
    int skipped = options_given(job->options, "grad") ? FLOOR_WRITE : 0;
    timed_work *works = job->works;
    progress_begin("bench", options_given(job->options, "quiet"));
    int code = job->device.type == ONEPASS_CUDA ? measure_on_cuda(job, skipped) : measure_on_cpu(job, skipped);
    progress_clear();
    if (code)
        return code;
    if (options_given(job->options, "json"))
        print_json(job, works + skipped, WORKS - skipped, job->errors + skipped);
    else
        print_table(job, works + skipped, WORKS - skipped, job->errors + skipped);
    return 0;
}

/* The inputs are made by the processor, for a GPU too. */
static int input_threads(const bench_job *job)
{
    onepass_handle *cpu = NULL;
    int threads = (int)onepass_threads(job->handle);
    if (threads == 0 && onepass_create(NULL, &cpu) == ONEPASS_OK)
        threads = (int)onepass_threads(cpu);
    onepass_destroy(cpu);
    return threads > 0 ? threads : 1;
}

static int run(bench_job *job)
{
    const parsed_options *options = job->options;
    bool quiet = options_given(options, "quiet");
    int code = device_option(options, &job->device);
    if (code)
        return code;
    onepass_config config = {
        .size = sizeof config,
        .device = job->device,
        .threads = (int32_t)options_integer(options, "threads"),
        .isa = options_text(options, "isa"),
    };
    onepass_status status = onepass_create(&config, &job->handle);
    int threads = status == ONEPASS_OK ? input_threads(job) : 0;
    if (status != ONEPASS_OK)
        return message_library_error(status);
    job->members = team_create(threads);
    if (!job->members)
        return message_error(EXIT_INPUT, "%d threads could not be started", threads);
    job->problem = (kl_case){
        .shape = {options_integer(options, "rows"), options_integer(options, "cols")},
        .type = (element_type)options_choice(options, "dtype"),
        .forms = {options_choice(options, "pred") == 1, options_choice(options, "target") == 1},
        .seed = random_seed(options),
    };
    if (!kl_case_create(&job->problem, job->members))
        return message_error(EXIT_INPUT, "--rows %s --cols %s: no memory for three arrays of that size",
                             options_text(options, "rows"), options_text(options, "cols"));
    progress_begin("reference", quiet);
    code = measure_errors(job);
    progress_clear();
    return code ? code : measure(job);
}

/* What only other operators have is refused, not ignored. */
static int check_options(const parsed_options *options, bool kl)
{
    static const char *const for_kl[] = {"pred", "target"}, *const for_layers[] = {"depth", "fp32-products"};
    for (int i = 0; i < 2; i++) {
        const char *name = kl ? for_layers[i] : for_kl[i];
        if (options_given(options, name))
            return message_error(EXIT_USAGE, "--%s with %s; it is for %s", name, options_text(options, "OPERATOR"),
                                 kl ? "head and linear" : "kl");
    }
    return 0;
}

int command_bench(const parsed_options *options)
{
    bool kl = strcmp(options_text(options, "OPERATOR"), "kl") == 0;
    int refused = check_options(options, kl);
    if (refused || !kl)
        return refused ? refused : bench_head(options);
    bench_job job = {.options = options};
    int code = run(&job);
    measure_release(job.works, WORKS);
    kl_case_destroy(&job.problem);
    team_destroy(job.members);
    onepass_destroy(job.handle);
    return code;
}
