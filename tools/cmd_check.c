/*
 * onepass check: every vector level this machine runs, or a GPU, against the exact results of cases/, element by
 * element and within the bounds of docs/numerics.md; linear and head in check_head.c, losses from logits in
 * check_logits.c, KL divergence here, case by case:
 * types, forms, reductions, semantics, weights, masks, upstream gradients, shapes with tails, layouts, special values.
 * A case is a number, so a failure can be repeated from seed and number.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cases/kl.h"
#include "check_head.h"
#include "check_logits.h"
#include "commands.h"
#include "device.h"
#include "json.h"
#include "loss_case.h"
#include "message.h"
#include "progress.h"

enum { ALWAYS_ELEMENTS = 400 /* larger shapes are tried in a part of the cases */ };
enum { PATTERN_ORDINARY, PATTERN_NEAR, PATTERN_ZEROS, PATTERN_SPECIAL, PATTERNS };

/* A unit is what a result may be off by, beyond the rounding that storing it costs. */
static const double most_units = 1;

static const case_layout layouts[] = {CASE_ROW_MAJOR, CASE_FORTRAN, CASE_NEGATIVE_ALL, CASE_REPEATED_ROWS};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* Each shape with its reason; --quick takes the first ones. */
static const struct {
    int rank;
    int64_t extents[3];
} shapes[] = {
    {2, {3, 37}},    /* a tail at every vector width */
    {1, {1}},        /* one element */
    {3, {2, 3, 17}}, /* rows of several dimensions; short rows */
    {2, {0, 5}},     /* no rows */
    {2, {70, 1}},    /* one column */
    {0, {0}},        /* no dimensions */
    {2, {4, 0}},     /* no columns */
    {2, {5, 64}},    /* whole vectors only */
    {2, {2, 2049}},  /* one past a run of sums */
    {2, {257, 15}},  /* just under a vector */
    {2, {1, 70001}}, /* a row in several parts */
};

enum { SHAPES = sizeof shapes / sizeof shapes[0], QUICK_SHAPES = 4 };

static const element_type type_pairs[][2] = {
    {ELEMENT_F32, ELEMENT_F32}, {ELEMENT_F64, ELEMENT_F64},  {ELEMENT_F16, ELEMENT_F16}, {ELEMENT_BF16, ELEMENT_BF16},
    {ELEMENT_F32, ELEMENT_F16}, {ELEMENT_BF16, ELEMENT_F32}, {ELEMENT_F64, ELEMENT_F32}, {ELEMENT_F16, ELEMENT_BF16},
};

enum { TYPE_PAIRS = sizeof type_pairs / sizeof type_pairs[0] };

/* ---- a case from its number -------------------------------------------------------------------------------------- */

static int family_of(int pattern, case_random *random)
{
    static const kl_data ordinary[] = {KL_SOFTMAX, KL_SHARP, KL_ONE_HOT, KL_WIDE, KL_UNNORMALISED, KL_DEEP};
    switch (pattern) {
    case PATTERN_NEAR:
        return case_random_below(random, 2) ? KL_NEAR_3 : KL_NEAR_6;
    case PATTERN_ZEROS:
        return KL_ZEROS;
    case PATTERN_SPECIAL:
        return KL_SPECIAL;
    default:
        return (int)ordinary[case_random_below(random, 6)];
    }
}

/* Makes the case of a number; false: it is one of the large ones that are left out. */
static bool make_case(op_case *c, uint64_t seed, int64_t number, const element_type types[2])
{
    case_random random = case_random_stream(seed, (uint64_t)number);
    int64_t rest = number;
    kl_forms forms;
    forms.predictions = (int)(rest % 2), rest /= 2;
    forms.targets = (int)(rest % 2), rest /= 2;
    case_begin(c, kl_operator(forms.predictions, forms.targets));
    c->options[KL_SEMANTICS] = (double)(rest % 2), rest /= 2;
    c->options[KL_REDUCTION] = (double)(rest % 6), rest /= 6;
    case_layout layout = layouts[rest % LAYOUTS];
    rest /= LAYOUTS;
    c->family = family_of((int)(rest % PATTERNS), &random), rest /= PATTERNS;
    c->seed = case_random_bits(&random);
    int rank = shapes[rest].rank;
    double elements = 1;
    for (int d = 0; d < rank; d++)
        elements *= (double)shapes[rest].extents[d];
    c->is_scalar = rank == 0;
    c->leading_rank = rank > 0 ? rank - 1 : 0;
    memcpy(c->leading, shapes[rest].extents, sizeof shapes[rest].extents);
    c->extents['C' - 'A'] = rank > 0 ? shapes[rest].extents[rank - 1] : 1;
    for (int i = 0; i < c->arguments; i++) {
        case_argument *a = &c->argument[i];
        a->given = a->info->is_required || case_random_unit(&random) < (a->info->role == ONEPASS_WRITTEN ? 0.7 : 0.3);
        a->layout = i == KL_PREDICTIONS || i == KL_TARGETS ? layout : CASE_COMPACT;
        a->dtype = i == KL_MASK ? case_b8 : i == KL_WEIGHTS || i == KL_UPSTREAM ? case_f64 : case_f32;
    }
    c->argument[KL_PREDICTIONS].dtype = element_infos[types[0]].dtype;
    c->argument[KL_TARGETS].dtype = element_infos[types[1]].dtype;
    c->argument[KL_MADE_FOR].given = 0;
    case_settle(c);
    return case_random_unit(&random) * elements <= ALWAYS_ELEMENTS;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

enum { CHECK_REF = DEVICE_REF_LEVEL, CHECK_CUDA = DEVICE_LEVELS, CHECK_LEVELS };

static const char *level_name(int level)
{
    return level == CHECK_CUDA ? "cuda" : device_levels[level];
}

typedef struct check_job {
    onepass_handle *handles[CHECK_LEVELS]; /* NULL: does not run here, or was not asked for */
    uint64_t seed;
    int64_t cases; /* of one line */
    bool json, quick;
    int64_t failures;
} check_job;

/* Every level on the same inputs. */
static onepass_status run_case(check_job *job, check_line lines[CHECK_LEVELS], int64_t number)
{
    static op_case c;
    if (!make_case(&c, job->seed, number, lines[0].types))
        return ONEPASS_OK;
    if (!case_make(&c))
        return ONEPASS_OUT_OF_MEMORY;
    onepass_status status = ONEPASS_OK;
    for (int level = 0; level < CHECK_LEVELS && status == ONEPASS_OK; level++) {
        int64_t failures = lines[level].failures;
        if (!job->handles[level])
            continue;
        status = check_one(&lines[level], &c, job->handles[level]);
        size_t used = strlen(lines[level].first);
        if (failures == 0 && lines[level].failures > 0)
            snprintf(lines[level].first + used, sizeof lines[level].first - used, "; seed %" PRIu64 ", case %" PRId64,
                     job->seed, number);
    }
    return status;
}

static void print_text(const check_line *line)
{
    char what[32];
    if (line->operator_name)
        snprintf(what, sizeof what, "%-13s %-4s", line->operator_name, element_infos[line->types[0]].name);
    else
        snprintf(what, sizeof what, "%-4s / %-11s", element_infos[line->types[0]].name,
                 element_infos[line->types[1]].name);
    printf("%-8s %s %7" PRId64 " cases   worst %.2f units   %s\n", line->level, what, line->cases, line->worst,
           line->failures ? "FAILED" : "ok");
}

static void print_json(json_writer *json, const check_line *line)
{
    json_open(json, NULL, '{');
    json_string(json, "level", line->level);
    if (line->operator_name) {
        json_string(json, "operator", line->operator_name);
        json_string(json, "dtype", element_infos[line->types[0]].name);
    } else {
        json_string(json, "predictions", element_infos[line->types[0]].name);
        json_string(json, "targets", element_infos[line->types[1]].name);
    }
    json_integer(json, "cases", line->cases);
    json_number(json, "worst_units", line->worst);
    json_integer(json, "failures", line->failures);
    if (line->failures)
        json_string(json, "first_failure", line->first);
    json_close(json, '}');
}

static void print_lines(check_job *job, json_writer *json, const check_line lines[CHECK_LEVELS])
{
    for (int level = 0; level < CHECK_LEVELS; level++) {
        if (!job->handles[level] || lines[level].cases == 0) /* it does not run here, or has no kernels for it */
            continue;
        job->failures += lines[level].failures;
        progress_wipe();
        if (job->json)
            print_json(json, &lines[level]);
        else
            print_text(&lines[level]);
        if (lines[level].failures)
            message_error(EXIT_CHECK, "%s", lines[level].first);
    }
}

static onepass_status check_pair(check_job *job, json_writer *json, int pair)
{
    check_line lines[CHECK_LEVELS] = {0};
    for (int level = 0; level < CHECK_LEVELS; level++) {
        lines[level].level = level_name(level);
        memcpy(lines[level].types, type_pairs[pair], sizeof lines[level].types);
    }
    for (int64_t number = 0; number < job->cases; number++) {
        onepass_status status = run_case(job, lines, number);
        if (status != ONEPASS_OK)
            return status;
        progress_update(NULL, (pair + (double)number / (double)job->cases) / TYPE_PAIRS);
    }
    print_lines(job, json, lines);
    return ONEPASS_OK;
}

/* Losses from logits, linear and head at every level that was asked for. */
static onepass_status check_others(check_job *job, json_writer *json)
{
    onepass_status status = ONEPASS_OK;
    for (int which = 0; which < CHECK_LOSSES + 2; which++)
        for (int type = 0; type < ELEMENT_FLOATS && status == ONEPASS_OK; type++) {
            check_line lines[CHECK_LEVELS] = {0};
            int head = which - CHECK_LOSSES; /* or linear */
            for (int level = 0; level < CHECK_LEVELS; level++) {
                lines[level].level = level_name(level);
                lines[level].operator_name = head < 0 ? check_loss_names[which] : head ? "head" : "linear";
                lines[level].types[0] = (element_type)type;
            }
            status = head < 0 ? check_loss(lines, job->handles, CHECK_LEVELS, which, job->seed, job->quick)
                              : check_layer(lines, job->handles, CHECK_LEVELS, head, job->seed, job->quick);
            if (status == ONEPASS_OK)
                print_lines(job, json, lines);
        }
    return status;
}

static int check_all(check_job *job)
{
    json_writer json = {0};
    if (job->json) {
        json = json_begin(stdout, "check");
        json_integer(&json, "seed", (int64_t)job->seed);
        json_number(&json, "most_units", most_units);
        json_open(&json, "lines", '[');
    } else {
        printf("against exact results, seed %" PRIu64 "; a unit is what docs/numerics.md allows, beside half an ulp\n",
               job->seed);
    }
    for (int pair = 0; pair < TYPE_PAIRS; pair++) {
        onepass_status status = check_pair(job, &json, pair);
        if (status != ONEPASS_OK)
            return message_library_error(status);
    }
    onepass_status status = check_others(job, &json);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    if (job->json) {
        json_close(&json, ']');
        json_boolean(&json, "passed", job->failures == 0);
        json_end(&json);
    }
    return job->failures ? EXIT_CHECK : EXIT_FINE;
}

/* Every level of the processor but the reference, or the GPU. */
static onepass_status create_handles(check_job *job, onepass_device device)
{
    if (device.type == ONEPASS_CUDA) {
        onepass_config config = {.size = sizeof config, .device = device};
        return onepass_create(&config, &job->handles[CHECK_CUDA]);
    }
    onepass_status status = ONEPASS_OK;
    for (int level = CHECK_REF + 1; level < CHECK_CUDA && status == ONEPASS_OK; level++) {
        onepass_config config = {.size = sizeof config, .isa = level_name(level)};
        if (onepass_isa_support(level_name(level)) == 2)
            status = onepass_create(&config, &job->handles[level]);
    }
    return status;
}

int command_check(const parsed_options *options)
{
    int shape_count = options_given(options, "quick") ? QUICK_SHAPES : SHAPES;
    onepass_device device;
    int code = device_option(options, &device);
    if (code)
        return code;
    check_job job = {
        .seed = random_seed(options),
        .cases = (int64_t)2 * 2 * 2 * 6 * LAYOUTS * PATTERNS * shape_count,
        .json = options_given(options, "json"),
        .quick = options_given(options, "quick"),
    };
    progress_begin("check", options_given(options, "quiet"));
    onepass_status status = create_handles(&job, device);
    code = status == ONEPASS_OK ? check_all(&job) : message_library_error(status);
    progress_clear();
    for (int level = 0; level < CHECK_LEVELS; level++)
        onepass_destroy(job.handles[level]);
    return code;
}
