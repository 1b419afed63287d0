/*
 * onepass demo: the founding problem as a user meets it, at 4096 x 4096. Divergence and gradient are compared with the
 * exact answers of cases/kl.c, element by element in long double and within the documented bounds; then time, share of
 * the read bandwidth and memory. Exits with 1 if a comparison fails.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cases/kl.h"
#include "commands.h"
#include "json.h"
#include "loss_case.h"
#include "message.h"
#include "progress.h"

enum { ROWS = 4096, COLUMNS = 4096 };
enum { FLOOR_READ, FORWARD, FLOOR_WRITE, GRADIENT, WORKS };

/* Sums over a row, and what its gradient is off by. */
typedef struct exact_row {
    long double value, size, error, opposite;
    double worst;  /* relative */
    int64_t wrong; /* elements outside their bounds */
} exact_row;

typedef struct demo_job {
    const parsed_options *options;
    team *members;
    onepass_handle *handle;
    loss_case problem;
    memory_set read, written;
    timed_work works[WORKS];
    struct exact_row *rows;         /* one per row */
    long double exact, exact_error; /* of the batch, and what the library's may be off by */
    double opposite;
    double value, gradient_value, gradient_error;
    int64_t wrong_gradients;
    long forward_kib, gradient_kib; /* memory beyond inputs and outputs */
    const char *memory_source;
} demo_job;

/* ---- what it should be ------------------------------------------------------------------------------------------- */

static kl_exact exact_element(const demo_job *job, int64_t i)
{
    const float *p = job->problem.arrays[LOSS_PREDICTIONS], *t = job->problem.arrays[LOSS_TARGETS];
    kl_precision precision = kl_precision_of(CASE_VECTOR, case_f32);
    return kl_exact_element((kl_form){0, 0}, ONEPASS_STRICT, &precision, (double)p[i], (double)t[i]);
}

static void exact_share(void *context, int index, int count)
{
    demo_job *job = context;
    const float *p = job->problem.arrays[LOSS_PREDICTIONS], *t = job->problem.arrays[LOSS_TARGETS];
    int64_t first, last;
    team_share(ROWS, 1, index, count, &first, &last);
    for (int64_t row = first; row < last; row++) {
        exact_row *sum = &job->rows[row];
        for (int64_t i = row * COLUMNS; i < (row + 1) * COLUMNS; i++) {
            kl_exact e = exact_element(job, i);
            sum->value += e.value;
            sum->size += fabsl(e.value);
            sum->error += e.value_error;
            sum->opposite -= e.value / (long double)t[i] * (long double)p[i];
        }
        if (index == 0)
            progress_update(NULL, (double)(row - first) / (double)(last - first));
    }
}

/* d/dp of the batch mean, for each element. Written so that a NaN counts as infinitely wrong. */
static void gradient_share(void *context, int index, int count)
{
    demo_job *job = context;
    const float *gradient = job->problem.arrays[LOSS_GRADIENT];
    kl_precision precision = kl_precision_of(CASE_VECTOR, case_f32);
    int64_t first, last;
    team_share(ROWS, 1, index, count, &first, &last);
    for (int64_t row = first; row < last; row++)
        for (int64_t i = row * COLUMNS; i < (row + 1) * COLUMNS; i++) {
            kl_exact e = exact_element(job, i);
            long double expected = e.d_prediction / ROWS;
            long double allowed = kl_gradient_error(&precision, e.d_prediction, e.d_prediction_error, 1.0L / ROWS);
            double error = fabs((double)((long double)gradient[i] / expected) - 1);
            if (!(error <= job->rows[row].worst))
                job->rows[row].worst = isnan(error) ? (double)INFINITY : error;
            job->rows[row].wrong += !case_close_in(case_f32, (double)gradient[i], expected, allowed);
        }
}

static void sum_exact(demo_job *job)
{
    team_run(job->members, exact_share, job);
    exact_row all = {0};
    for (int row = 0; row < ROWS; row++) {
        all.value += job->rows[row].value;
        all.size += job->rows[row].size;
        all.error += job->rows[row].error;
        all.opposite += job->rows[row].opposite;
    }
    job->exact = all.value / ROWS;
    job->exact_error = (all.error + kl_sum_error((int64_t)ROWS * COLUMNS) * all.size) / ROWS;
    job->opposite = (double)(all.opposite / ROWS);
}

static void check_gradient(demo_job *job)
{
    team_run(job->members, gradient_share, job);
    for (int row = 0; row < ROWS; row++) {
        job->gradient_error = fmax(job->gradient_error, job->rows[row].worst);
        job->wrong_gradients += job->rows[row].wrong;
    }
}

/* The worse of the value computed alone and the one computed with the gradient. */
static double value_error(const demo_job *job)
{
    return fmax(fabs((double)(job->value / job->exact - 1)), fabs((double)(job->gradient_value / job->exact - 1)));
}

static bool passes(const demo_job *job)
{
    return case_close_in(case_f32, job->value, job->exact, job->exact_error) &&
           case_close_in(case_f32, job->gradient_value, job->exact, job->exact_error) && job->wrong_gradients == 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A line of /proc/self/status in KiB; -1 where there is none. */
static long status_kib(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    while (file && kib < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtol(line + strlen(name), NULL, 10);
    if (file)
        fclose(file);
    return kib;
}

/* The highest resident size from here on, where the system can forget the past; otherwise of the whole process. */
static long peak_kib(demo_job *job, bool begin)
{
    if (begin) {
        FILE *file = fopen("/proc/self/clear_refs", "w");
        if (file) {
            fputs("5", file);
            fclose(file);
        }
    }
    long kib = status_kib(begin ? "VmRSS:" : "VmHWM:");
    job->memory_source = "VmHWM - VmRSS in /proc/self/status";
    if (kib >= 0)
        return kib;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    job->memory_source = "ru_maxrss";
    return usage.ru_maxrss;
}

/* One call, with the growth of the peak across it; handle and threads are made inside the first. */
static onepass_status run_watched(demo_job *job, bool gradient, double *value, long *grown)
{
    memset(job->problem.arrays[LOSS_GRADIENT], 0, job->problem.bytes);
    long before = peak_kib(job, true);
    onepass_status status = ONEPASS_OK;
    if (!job->handle) {
        onepass_config config = {.size = sizeof config, .threads = (int32_t)options_integer(job->options, "threads")};
        status = onepass_create(&config, &job->handle);
    }
    if (status == ONEPASS_OK)
        status = loss_case_run(&job->problem, job->handle, gradient);
    long after = peak_kib(job, false);
    if (status == ONEPASS_OK)
        *value = loss_case_value(&job->problem, 0);
    *grown = after > before ? after - before : 0;
    return status;
}

/* ---- the parts in order ------------------------------------------------------------------------------------------ */

static void run_forward(void *context, int repeats)
{
    demo_job *job = context;
    for (int i = 0; i < repeats; i++)
        loss_case_run(&job->problem, job->handle, false);
}

static void run_gradient(void *context, int repeats)
{
    demo_job *job = context;
    for (int i = 0; i < repeats; i++)
        loss_case_run(&job->problem, job->handle, true);
}

static bool measure(demo_job *job)
{
    timed_work *works = job->works;
    job->read = job->written = loss_case_memory(&job->problem, job->members);
    works[FLOOR_READ] = measure_floor(&job->read, false);
    works[FORWARD] = (timed_work){"forward", NULL, run_forward, job, works[FLOOR_READ].bytes, .floor = FLOOR_READ};
    works[FLOOR_WRITE] = measure_floor(&job->written, true);
    works[FLOOR_WRITE].floor = FLOOR_WRITE;
    works[GRADIENT] =
        (timed_work){"forward + gradient", NULL, run_gradient, job, works[FLOOR_WRITE].bytes, .floor = FLOOR_WRITE};
    const measure_rule rule = measure_thoroughly(1);
    return measure_in_turn(works, WORKS, &rule);
}

static bool allocate(demo_job *job)
{
    job->rows = calloc(ROWS, sizeof *job->rows);
    return job->rows && loss_case_create(&job->problem, job->members);
}

static void print_text(const demo_job *job)
{
    printf("onepass %s: KL(targets || predictions), %d x %d fp32, batchmean; %s, %d threads\n", onepass_version(), ROWS,
           COLUMNS, onepass_isa(job->handle), (int)onepass_threads(job->handle));
    printf("predictions = softmax(rand * %.6f), targets = softmax(rand); seed %llu\n\n", job->problem.scale,
           (unsigned long long)job->problem.seed);
    printf("divergence   %-16.9g relative error %.1e\n", job->value, value_error(job));
    printf("exact        %-16.9Lg long double, every element\n", job->exact);
    printf("not          %-16.9g the opposite direction, KL(predictions || targets)\n", job->opposite);
    printf("not          %-16.9g divided by the columns too (\"mean\")\n", (double)(job->exact / COLUMNS));
    printf("gradient     every element against -t / (p * rows): worst relative error %.1e\n", job->gradient_error);
    printf("memory       %ld KiB more for forward, %ld KiB for forward + gradient (%s)\n\n", job->forward_kib,
           job->gradient_kib, job->memory_source);
    measure_print_table(job->works, WORKS, NULL);
    printf("\n%s\n", passes(job) ? "All of it is right." : "WRONG: see the errors above.");
}

static void print_json(const demo_job *job)
{
    json_writer json = json_begin(stdout, "demo");
    json_boolean(&json, "passed", passes(job));
    json_integer(&json, "seed", (int64_t)job->problem.seed);
    json_number(&json, "scale", job->problem.scale);
    json_shape(&json, "shape", 2, job->problem.shape);
    json_string(&json, "dtype", element_infos[job->problem.type].name);
    json_string(&json, "isa", onepass_isa(job->handle));
    json_integer(&json, "threads", onepass_threads(job->handle));
    json_number(&json, "value", job->value);
    json_number(&json, "exact", (double)job->exact);
    json_number(&json, "error", value_error(job));
    json_number(&json, "opposite_direction", job->opposite);
    json_number(&json, "divided_by_columns", (double)(job->exact / COLUMNS));
    json_number(&json, "gradient_error", job->gradient_error);
    json_integer(&json, "forward_extra_kib", job->forward_kib);
    json_integer(&json, "gradient_extra_kib", job->gradient_kib);
    json_open(&json, "rows", '[');
    for (int i = 0; i < WORKS; i++)
        measure_print_json(&json, job->works, i, NAN);
    json_close(&json, ']');
    json_end(&json);
}

static int run(demo_job *job)
{
    bool quiet = options_given(job->options, "quiet");
    if (!allocate(job))
        return message_error(EXIT_INPUT, "no memory for three arrays of %d x %d fp32", ROWS, COLUMNS);
    onepass_status status = run_watched(job, false, &job->value, &job->forward_kib);
    if (status == ONEPASS_OK)
        status = run_watched(job, true, &job->gradient_value, &job->gradient_kib);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    check_gradient(job);
    progress_begin("exact value", quiet);
    sum_exact(job);
    progress_begin("time", quiet);
    bool measured = measure(job);
    progress_clear();
    if (!measured)
        return message_error(EXIT_INPUT, "no memory for the samples");
    if (options_given(job->options, "json"))
        print_json(job);
    else
        print_text(job);
    return passes(job) ? EXIT_FINE : EXIT_CHECK;
}

static int usable_threads(const parsed_options *options)
{
    if (options_given(options, "threads"))
        return (int)options_integer(options, "threads");
    onepass_handle *handle;
    if (onepass_create(NULL, &handle) != ONEPASS_OK)
        return 1;
    int threads = onepass_threads(handle);
    onepass_destroy(handle);
    return threads;
}

int command_demo(const parsed_options *options)
{
    demo_job job = {
        .options = options,
        .members = team_create(usable_threads(options)),
        .problem = {.shape = {ROWS, COLUMNS},
                    .type = ELEMENT_F32,
                    .value_type = ELEMENT_F32,
                    .seed = random_seed(options)},
    };
    int code =
        job.members ? run(&job) : message_error(EXIT_INPUT, "%d threads could not be started", usable_threads(options));
    measure_release(job.works, WORKS);
    loss_case_destroy(&job.problem);
    free(job.rows);
    team_destroy(job.members);
    onepass_destroy(job.handle);
    return code;
}
