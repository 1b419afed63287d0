/*
 * onepass bench sweep: walks the plan (sweep_plan.h), measures each group of points beside its floor (sweep_point.h),
 * and tells which are farthest from it: as a table, as JSON with every point, as a page (sweep_html.h). Judges nothing.
 * Files take their names at the end, together.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "commands.h"
#include "device.h"
#include "files.h"
#include "json.h"
#include "message.h"
#include "progress.h"
#include "sweep_html.h"
#include "sweep_point.h"

enum { JSON_OUTPUT, HTML_OUTPUT, OUTPUTS };

typedef struct sweep_job {
    const parsed_options *options;
    sweep_bench bench;
    sweep_plan plan;
    double limit, seconds; /* that it may take, that it took */
    sweep_point **worst;   /* room for all points */
    size_t measured;       /* how many are in `worst`, the smallest share first */
} sweep_job;

/* ---- results ----------------------------------------------------------------------------------------------------- */

static size_t count_state(const sweep_plan *plan, sweep_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++)
        count += plan->points[i].state == state;
    return count;
}

static int compare_shares(const void *a, const void *b)
{
    double left = sweep_share(*(sweep_point *const *)a), right = sweep_share(*(sweep_point *const *)b);
    return (left > right) - (left < right);
}

static void sort_worst(sweep_job *job)
{
    job->measured = 0;
    for (size_t i = 0; i < job->plan.count; i++)
        if (job->plan.points[i].state == SWEEP_MEASURED)
            job->worst[job->measured++] = &job->plan.points[i];
    qsort(job->worst, job->measured, sizeof *job->worst, compare_shares);
}

static void json_point(json_writer *json, const sweep_plan *plan, const sweep_point *point)
{
    bool is_loss = point->operator_id < SWEEP_LOSSES;
    json_open(json, NULL, '{');
    json_string(json, "operator", sweep_operator_names[point->operator_id]);
    json_string(json, "dtype", element_infos[point->type].name);
    json_integer(json, "rows", point->rows);
    json_integer(json, "cols", point->columns);
    if (!is_loss)
        json_integer(json, "depth", plan->depth);
    if (point->reduction == SWEEP_NO_REDUCTION)
        json_null(json, "reduction");
    else
        json_string(json, "reduction", sweep_reduction_name(point));
    json_string(json, "layout", sweep_layout_names[point->layout]);
    json_boolean(json, "gradient", point->gradient);
    json_integer(json, "memory_bytes", point->memory < INT64_MAX ? (int64_t)point->memory : INT64_MAX);
    json_string(json, "state", sweep_state_names[point->state]);
    if (point->state == SWEEP_MEASURED) {
        json_number(json, "ms", 1e3 * point->seconds);
        json_number(json, "floor_ms", 1e3 * point->floor);
        json_string(json, "floor", point->floor_name);
        json_number(json, "share", sweep_share(point));
        json_number(json, is_loss ? "bytes" : "flops", point->amount);
        json_integer(json, "workspace_bytes", (int64_t)point->workspace);
        json_integer(json, "rounds", point->rounds);
    }
    if (point->state == SWEEP_REFUSED)
        json_string(json, "message", point->message ? point->message : "");
    json_close(json, '}');
}

static void write_json(FILE *stream, const sweep_job *job)
{
    const sweep_plan *plan = &job->plan;
    json_writer json = json_begin(stream, "bench sweep");
    device_print_json(&json, job->bench.handle, job->options);
    json_integer(&json, "seed", (int64_t)plan->seed);
    json_integer(&json, "memory_limit_bytes", (int64_t)plan->memory);
    json_number(&json, "seconds_limit", job->limit);
    json_number(&json, "seconds", job->seconds);
    json_open(&json, "points", '[');
    for (size_t i = 0; i < plan->count; i++) {
        fputc('\n', stream);
        json_point(&json, plan, &plan->points[i]);
    }
    json_close(&json, ']');
    json_end(&json);
}

static void print_operator(const sweep_job *job, sweep_operator id)
{
    size_t count = 0, seen = 0;
    for (size_t i = 0; i < job->measured; i++)
        count += job->worst[i]->operator_id == id;
    for (size_t i = 0; i < job->measured; i++) {
        if (job->worst[i]->operator_id != id)
            continue;
        if (seen == 0)
            printf("%-10s %8zu %9.1f%%", sweep_operator_names[id], count, 100 * sweep_share(job->worst[i]));
        if (seen++ == count / 2)
            printf(" %9.1f%%\n", 100 * sweep_share(job->worst[i]));
    }
}

static bool has_message(const sweep_point *point, const char *message)
{
    return point->message && strcmp(point->message, message) == 0;
}

/* Each message once, with the first of its points. */
static void print_refused(const sweep_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        const sweep_point *point = &plan->points[i];
        size_t first = 0, count = 0;
        if (!point->message)
            continue;
        while (!has_message(&plan->points[first], point->message))
            first++;
        for (size_t k = first; first == i && k < plan->count; k++)
            count += has_message(&plan->points[k], point->message);
        if (first == i)
            printf("refused, %zu points, first %s %s %" PRId64 " x %" PRId64 " %s %s: %s\n", count,
                   sweep_operator_names[point->operator_id], element_infos[point->type].name, point->rows,
                   point->columns, sweep_reduction_name(point), sweep_layout_names[point->layout], point->message);
    }
}

static void print_table(const sweep_job *job)
{
    const sweep_plan *plan = &job->plan;
    printf("%zu points: %zu measured, %zu refused, %zu over %.3g GiB, %zu not reached; %s, %d threads, %.0f s, seed "
           "%" PRIu64 "\n\n",
           plan->count, job->measured, count_state(plan, SWEEP_REFUSED), count_state(plan, SWEEP_OVER_MEMORY),
           0x1p-30 * (double)plan->memory, count_state(plan, SWEEP_NOT_REACHED), onepass_isa(job->bench.handle),
           (int)onepass_threads(job->bench.handle), job->seconds, plan->seed);
    printf("%-10s %8s %10s %10s\n", "operator", "measured", "worst", "median");
    for (int id = 0; id < SWEEP_OPERATORS; id++)
        print_operator(job, (sweep_operator)id);
    size_t most = (size_t)options_integer(job->options, "worst");
    printf("\n%7s %11s %11s  %-9s %-5s %9s %9s  %-9s %-10s %-8s %s\n", "share", "ms", "floor ms", "operator", "dtype",
           "rows", "cols", "reduction", "layout", "result", "workspace");
    for (size_t i = 0; i < job->measured && i < most; i++) {
        const sweep_point *point = job->worst[i];
        printf("%6.1f%% %11.5f %11.5f  %-9s %-5s %9" PRId64 " %9" PRId64 "  %-9s %-10s %-8s %zu\n",
               100 * sweep_share(point), 1e3 * point->seconds, 1e3 * point->floor,
               sweep_operator_names[point->operator_id], element_infos[point->type].name, point->rows, point->columns,
               sweep_reduction_name(point), sweep_layout_names[point->layout], point->gradient ? "gradient" : "value",
               point->workspace);
    }
    if (count_state(plan, SWEEP_REFUSED))
        putchar('\n');
    print_refused(plan);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Written to memory, then to a temporary file beside its target, or kept for stdout. */
static int make_output(const sweep_job *job, output_file *file, const char *path, int which)
{
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    if (stream && which == JSON_OUTPUT)
        write_json(stream, job);
    else if (stream)
        sweep_write_html(stream, &job->plan, onepass_isa(job->bench.handle), (int)onepass_threads(job->bench.handle));
    int code = 0;
    if (!stream || fclose(stream) != 0)
        code = message_error(EXIT_INPUT, "%s: no memory for what is to be written", path);
    if (code == 0)
        code = output_open_bytes(file, path, text, size);
    free(text);
    return code;
}

static int write_results(const sweep_job *job, const char *const paths[OUTPUTS])
{
    output_file files[OUTPUTS] = {{0}};
    int code = 0;
    for (int i = 0; i < OUTPUTS && code == 0; i++)
        if (paths[i])
            code = make_output(job, &files[i], paths[i], i);
    if (code == 0 && !files_have_dash(paths, OUTPUTS))
        print_table(job);
    if (code == 0)
        code = outputs_seal(files, OUTPUTS);
    if (code == 0)
        code = outputs_publish(files, OUTPUTS);
    outputs_close(files, OUTPUTS);
    return code;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

/* Of the time that is left for looking at the worst again. */
static const double second_look = 0.1;

/* Measures every group once, as far as the time goes. */
static onepass_status walk(sweep_job *job, double begun)
{
    sweep_plan *plan = &job->plan;
    double limit = (1 - second_look) * job->limit;
    onepass_status status = ONEPASS_OK;
    for (size_t turn = 0; turn < plan->group_count && status == ONEPASS_OK; turn++) {
        double passed = clock_seconds() - begun, part = (double)turn / (double)plan->group_count;
        if (passed > limit)
            break;
        progress_update(NULL, passed / limit > part ? passed / limit : part);
        sweep_point *points = &plan->points[plan->groups[turn]];
        if (points[0].state == SWEEP_NOT_REACHED)
            status = sweep_measure(&job->bench, plan, points, sweep_group_size(plan, plan->groups[turn]));
    }
    return status;
}

/* A neighbour's load makes a point look bad, and hardly twice: of the table's points the better of two counts. */
static onepass_status look_again(sweep_job *job, double begun)
{
    size_t most = (size_t)options_integer(job->options, "worst");
    onepass_status status = ONEPASS_OK;
    for (size_t i = 0; i < most && i < job->measured && status == ONEPASS_OK; i++) {
        if (clock_seconds() - begun > job->limit)
            break;
        sweep_point again = *job->worst[i];
        again.state = SWEEP_NOT_REACHED;
        status = sweep_measure(&job->bench, &job->plan, &again, 1);
        if (again.state == SWEEP_MEASURED && sweep_share(&again) > sweep_share(job->worst[i]))
            *job->worst[i] = again;
        else
            free(again.message);
    }
    return status;
}

static int measure(sweep_job *job)
{
    job->worst = malloc((job->plan.count + 1) * sizeof *job->worst);
    if (!job->worst)
        return message_error(EXIT_INPUT, "no memory for the results");
    double begun = clock_seconds();
    progress_begin("sweep", options_given(job->options, "quiet"));
    onepass_status status = walk(job, begun);
    sort_worst(job);
    if (status == ONEPASS_OK)
        status = look_again(job, begun);
    sort_worst(job);
    job->seconds = clock_seconds() - begun;
    progress_clear();
    return status == ONEPASS_OK ? 0 : message_library_error(status);
}

static int run(sweep_job *job)
{
    const parsed_options *options = job->options;
    const char *const paths[OUTPUTS] = {options_text(options, "json"), options_text(options, "html")};
    onepass_device device;
    int code = device_option(options, &device);
    if (code == 0)
        code = output_check(paths, OUTPUTS, NULL, 0);
    if (code)
        return code;
    onepass_config config = {
        .size = sizeof config,
        .device = device,
        .fp32_products = options_choice(options, "fp32-products"),
        .threads = (int32_t)options_integer(options, "threads"),
        .isa = options_text(options, "isa"),
    };
    onepass_status status = onepass_create(&config, &job->bench.handle);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    int threads = device_input_threads(job->bench.handle);
    job->bench.members = team_create(threads);
    if (!job->bench.members)
        return message_error(EXIT_INPUT, "%d threads could not be started", threads);
    bool quick = options_given(options, "quick");
    job->limit = quick && !options_given(options, "seconds") ? 15 : options_real(options, "seconds");
    job->bench.rule = (measure_rule){
        .rounds = 3, .seconds = quick ? 0 : 0.02, .most_seconds = 0.5, .shortest_sample = quick ? 2e-4 : 5e-4};
    if (!sweep_plan_make(&job->plan, options))
        return message_error(EXIT_INPUT, "no memory for so many points");
    code = measure(job);
    return code ? code : write_results(job, paths);
}

int command_sweep(const parsed_options *options)
{
    sweep_job job = {.options = options};
    int code = run(&job);
    free(job.worst);
    sweep_plan_free(&job.plan);
    team_destroy(job.bench.members);
    onepass_destroy(job.bench.handle);
    return code;
}
