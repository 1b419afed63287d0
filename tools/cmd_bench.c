/*
 * onepass bench: an operator and, in turn with it, a plain loop over the same bytes. Prints a table or JSON; judges
 * nothing. The numbers are those of warm pages and, for arrays beyond the caches, cold lines.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_cuda.h"
#include "bench_head.h"
#include "commands.h"
#include "device.h"
#include "json.h"
#include "loss_case.h"
#include "measure_cuda.h"
#include "message.h"
#include "progress.h"

enum { FORWARD = BENCH_FORWARD, FLOOR_WRITE = BENCH_FLOOR_WRITE, GRADIENT = BENCH_GRADIENT, WORKS = BENCH_WORKS };

typedef struct bench_job {
    const parsed_options *options;
    team *members;
    onepass_device device;
    onepass_handle *handle;
    loss_case problem;
    bench_result result;
    double errors[WORKS];
} bench_job;

/* The distance of what the last run made, relative to the size of what it should be; of 0, the distance itself. */
static double distance(const loss_case *problem, const double *exact)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < loss_case_count(problem, LOSS_VALUE); i++) {
        double difference = loss_case_value(problem, i) - exact[i];
        off += difference * difference;
        size += exact[i] * exact[i];
    }
    return sqrt(off) / (size == 0 ? 1 : sqrt(size));
}

/* The value of both kinds of work against the reference's; also shows that every call to be timed succeeds. */
static onepass_status measure_errors(bench_job *job, onepass_handle *reference, double *exact)
{
    const loss_case *problem = &job->problem;
    onepass_status status = loss_case_run(problem, reference, false);
    for (int64_t i = 0; i < loss_case_count(problem, LOSS_VALUE); i++)
        exact[i] = loss_case_value(problem, i);
    for (int gradient = 0; gradient < 2 && status == ONEPASS_OK; gradient++) {
        status = loss_case_run(problem, job->handle, gradient);
        job->errors[gradient ? GRADIENT : FORWARD] = distance(problem, exact);
    }
    return status;
}

static int compare_with_reference(bench_job *job)
{
    onepass_config config = {.size = sizeof config, .isa = "ref", .progress = progress_update};
    onepass_handle *reference = NULL;
    double *exact = malloc((size_t)loss_case_count(&job->problem, LOSS_VALUE) * sizeof *exact);
    onepass_status status = onepass_create(&config, &reference);
    for (int i = 0; i < WORKS; i++)
        job->errors[i] = NAN;
    if (exact && status == ONEPASS_OK)
        status = measure_errors(job, reference, exact);
    onepass_destroy(reference);
    free(exact);
    if (!exact)
        return message_error(EXIT_INPUT, "no memory for the reference's values");
    return status == ONEPASS_OK ? 0 : message_library_error(status);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static bool has_divergence(const loss_case *problem)
{
    return problem->kind == LOSS_KL && problem->forms.predictions == FORM_LOGITS;
}

static const char *const reductions[LOSS_KINDS] = {"batchmean", "valid", "rows"};

static void print_json(const bench_job *job, const timed_work *works, int count, const double *errors)
{
    const loss_case *problem = &job->problem;
    json_writer json = json_begin(stdout, "bench");
    json_string(&json, "operator", options_text(job->options, "OPERATOR"));
    json_shape(&json, "shape", 2, problem->shape);
    json_string(&json, "dtype", element_infos[problem->type].name);
    if (problem->kind == LOSS_KL) {
        json_string(&json, "pred", options_text(job->options, "pred"));
        json_string(&json, "target", options_text(job->options, "target"));
    } else {
        json_string(&json, "label_type", element_infos[problem->label_type].name);
    }
    if (problem->kind == LOSS_TOKEN)
        json_integer(&json, "indices", problem->indices);
    if (has_divergence(problem)) {
        json_string(&json, "divergence", options_text(job->options, "divergence"));
        json_number(&json, "mixture", problem->mixture);
    }
    if (problem->kind != LOSS_KL || has_divergence(problem))
        json_number(&json, "temperature", problem->temperature);
    json_string(&json, "reduction", reductions[problem->kind]);
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
    const loss_case *problem = &job->problem;
    printf("%s, %lld x %lld %s, ", options_text(job->options, "OPERATOR"), (long long)problem->shape[0],
           (long long)problem->shape[1], element_infos[problem->type].name);
    if (problem->kind == LOSS_KL)
        printf("%s predictions, %s targets, ", options_text(job->options, "pred"),
               options_text(job->options, "target"));
    if (problem->kind == LOSS_XENT)
        printf("%s labels, ", element_infos[problem->label_type].name);
    if (problem->kind == LOSS_TOKEN)
        printf("%lld %s indices a row and entropy, ", (long long)problem->indices,
               element_infos[problem->label_type].name);
    if (has_divergence(problem))
        printf("%s, ", options_text(job->options, "divergence"));
    if (problem->temperature != 1)
        printf("temperature %g, ", problem->temperature);
    printf("%s; %s, %d threads, %d rounds, seed %llu\n", reductions[problem->kind], onepass_isa(job->handle),
           (int)onepass_threads(job->handle), works[0].rounds, (unsigned long long)problem->seed);
    measure_print_table(works, count, errors);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static int measure(bench_job *job)
{
    int skipped = options_given(job->options, "grad") ? FLOOR_WRITE : 0;
    double seconds = options_real(job->options, "seconds");
    bool on_cuda = job->device.type == ONEPASS_CUDA;
    measure_rule rule = on_cuda ? cuda_measure_thoroughly(seconds) : measure_thoroughly(seconds);
    timed_work *works = job->result.works + skipped;
    progress_begin("bench", options_given(job->options, "quiet"));
    onepass_status status =
        on_cuda ? bench_cuda(job->handle, &job->problem, &job->result, skipped, WORKS, &rule)
                : bench_loss(job->handle, &job->problem, job->members, &job->result, skipped, WORKS, &rule);
    progress_clear();
    if (status != ONEPASS_OK)
        return message_library_error(status);
    if (!works[0].samples)
        return message_error(EXIT_INPUT, "no memory for the samples");
    if (options_given(job->options, "json"))
        print_json(job, works, WORKS - skipped, job->errors + skipped);
    else
        print_table(job, works, WORKS - skipped, job->errors + skipped);
    return 0;
}

static loss_case chosen_problem(const parsed_options *options)
{
    loss_case problem = {
        .kind = (loss_kind)options_choice(options, "OPERATOR"),
        .shape = {options_integer(options, "rows"), options_integer(options, "cols")},
        .type = (element_type)options_choice(options, "dtype"),
        .value_type = ELEMENT_F64,
        .label_type = options_choice(options, "label-type") ? ELEMENT_I64 : ELEMENT_I32,
        .forms = {options_choice(options, "pred"), options_choice(options, "target")},
        .indices = options_integer(options, "indices"),
        .divergence = options_choice(options, "divergence"),
        .temperature = options_real(options, "temperature"),
        .seed = random_seed(options),
    };
    problem.reduction = problem.kind == LOSS_XENT ? ONEPASS_VALID : ONEPASS_BATCHMEAN;
    int kind = problem.divergence;
    bool mixes = kind == ONEPASS_JS || kind == ONEPASS_SKEW_KL || kind == ONEPASS_SKEW_REVERSE_KL;
    problem.mixture = options_given(options, "mixture") ? options_real(options, "mixture") : mixes ? 0.5 : 0;
    if (problem.temperature == 0)
        problem.temperature = 1;
    return problem;
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
    int threads = status == ONEPASS_OK ? device_input_threads(job->handle) : 0;
    if (status != ONEPASS_OK)
        return message_library_error(status);
    job->members = team_create(threads);
    if (!job->members)
        return message_error(EXIT_INPUT, "%d threads could not be started", threads);
    job->problem = chosen_problem(options);
    if (!loss_case_create(&job->problem, job->members))
        return message_error(EXIT_INPUT, "--rows %s --cols %s: no memory for arrays of that size",
                             options_text(options, "rows"), options_text(options, "cols"));
    progress_begin("reference", quiet);
    code = compare_with_reference(job);
    progress_clear();
    return code ? code : measure(job);
}

/* In the order of the choices of OPERATOR; those before HEAD are loss_kind. */
enum { HEAD = LOSS_KINDS, LINEAR };

#define BIT(operator) (1u << (operator))

/* What only other operators have is refused, not ignored. */
static int check_options(const parsed_options *options, int operator)
{
    static const struct {
        const char *name;
        unsigned operators;
        const char *words;
    } rules[] = {
        {"pred", BIT(LOSS_KL), "kl"},
        {"target", BIT(LOSS_KL), "kl"},
        {"divergence", BIT(LOSS_KL), "kl"},
        {"mixture", BIT(LOSS_KL), "kl"},
        {"temperature", BIT(LOSS_KL) | BIT(LOSS_XENT) | BIT(LOSS_TOKEN), "losses from logits"},
        {"label-type", BIT(LOSS_XENT) | BIT(LOSS_TOKEN), "xent and token"},
        {"indices", BIT(LOSS_TOKEN), "token"},
        {"depth", BIT(HEAD) | BIT(LINEAR), "head and linear"},
        {"fp32-products", BIT(HEAD) | BIT(LINEAR), "head and linear"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (options_given(options, rules[i].name) && !(rules[i].operators & BIT(operator)))
            return message_error(EXIT_USAGE, "--%s with %s; it is for %s", rules[i].name,
                                 options_text(options, "OPERATOR"), rules[i].words);
    static const char *const of_logits[] = {"divergence", "mixture", "temperature"};
    if (operator!= LOSS_KL || options_choice(options, "pred") == FORM_LOGITS)
        return 0;
    if (options_choice(options, "target") == FORM_LOGITS)
        return message_error(EXIT_USAGE, "--target logits needs --pred logits");
    for (int i = 0; i < 3; i++)
        if (options_given(options, of_logits[i]))
            return message_error(EXIT_USAGE, "--%s needs --pred logits", of_logits[i]);
    return 0;
}

int command_bench(const parsed_options *options)
{
    int operator= options_choice(options, "OPERATOR");
    int refused = check_options(options, operator);
    if (refused || operator>= HEAD)
        return refused ? refused : bench_head(options);
    bench_job job = {.options = options};
    int code = run(&job);
    measure_release(job.result.works, WORKS);
    loss_case_destroy(&job.problem);
    team_destroy(job.members);
    onepass_destroy(job.handle);
    return code;
}
