/*
 * onepass check: every vector level this machine runs, or a GPU, against the plain C reference; linear and head in
 * check_head.c, KL divergence here, case by case: types, forms, reductions, semantics, weights, masks, upstream
 * gradients, shapes with tails, layouts, special values. Both compute the same inputs into outputs of the same type; a
 * case is a number, so a failure can be repeated from seed and number.
 */
#define _POSIX_C_SOURCE 200809L
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_head.h"
#include "commands.h"
#include "device_memory.h"
#include "json.h"
#include "kernels.h"
#include "kl_case.h"
#include "message.h"
#include "npy.h"
#include "progress.h"

enum { MOST_ELEMENTS = 70001, ALWAYS_ELEMENTS = 1000 /* larger shapes are tried in a part of the cases */ };
enum { LAYOUT_ROW_MAJOR, LAYOUT_COLUMN_MAJOR, LAYOUT_REVERSED, LAYOUT_REPEATED, LAYOUTS };
enum { PATTERN_ORDINARY, PATTERN_NEAR, PATTERN_ZEROS, PATTERN_SPECIAL, PATTERNS };
enum { OUT_VALUE, OUT_GRAD_PREDICTIONS, OUT_GRAD_TARGETS, OUTS };

/*
 * A unit is what rounding alone may cost: half an ulp of the result, and an ulp, in the type computed in, of the terms
 * the result is made of. exp, log and a sum in blocks cost a few of them.
 */
static const double most_units = 4;

static const char *const layout_names[] = {"row-major", "column-major", "reversed", "repeated rows"};
static const char *const pattern_names[] = {"ordinary", "nearly equal", "zeros", "special"};
static const char *const out_names[] = {"value", "grad_predictions", "grad_targets"};
static const char *const reduction_names[] = {"batchmean", "mean", "sum", "rows", "none", "divisor"};

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

/* One case, all of it drawn from seed and number. */
typedef struct check_case {
    uint64_t seed;
    int64_t number;
    element_type types[2], computed, value_type;
    kl_forms forms;
    onepass_semantics semantics;
    onepass_reduction reduction;
    int layout, pattern, rank;
    int64_t shape[3], rows, columns, elements;
    bool weighted, masked, upstream, wanted[OUTS];
    double divisor;
    int64_t strides[2][3];
    onepass_tensor inputs[2];
} check_case;

/* Storage for the largest case: inputs as stored, as numbers in index order, and both sides' outputs. */
typedef struct check_memory {
    unsigned char inputs[2][2 * MOST_ELEMENTS * 8];
    double numbers[2][MOST_ELEMENTS];
    unsigned char outputs[2][OUTS][2 * MOST_ELEMENTS * 8]; /* reference, level */
    double weights[MOST_ELEMENTS], upstream[MOST_ELEMENTS];
    unsigned char mask[MOST_ELEMENTS];
    double allowed[OUTS][MOST_ELEMENTS]; /* the part of a unit that comes from the terms */
} check_memory;

typedef struct check_line {
    const char *level;
    element_type types[2];
    int64_t cases, failures;
    double worst;
    char first[600]; /* what the first failure was */
} check_line;

/* ---- a case from its number -------------------------------------------------------------------------------------- */

static double draw(const check_case *it, uint64_t index)
{
    return random_unit(it->seed, (uint64_t)it->number << 24 | index);
}

static check_case case_of(uint64_t seed, int64_t number, const element_type types[2])
{
    check_case it = {.seed = seed, .number = number, .types = {types[0], types[1]}};
    int64_t rest = number;
    it.forms.log_predictions = rest % 2, rest /= 2;
    it.forms.log_targets = rest % 2, rest /= 2;
    it.semantics = rest % 2 ? ONEPASS_FINITE : ONEPASS_STRICT, rest /= 2;
    it.reduction = (onepass_reduction)(rest % 6), rest /= 6;
    it.layout = (int)(rest % LAYOUTS), rest /= LAYOUTS;
    it.pattern = (int)(rest % PATTERNS), rest /= PATTERNS;
    it.rank = shapes[rest].rank;
    memcpy(it.shape, shapes[rest].extents, sizeof it.shape);
    it.elements = 1;
    for (int d = 0; d < it.rank; d++)
        it.elements *= it.shape[d];
    it.columns = it.rank ? it.shape[it.rank - 1] : 1;
    it.rows = 1;
    for (int d = 0; d < it.rank - 1; d++)
        it.rows *= it.shape[d];
    bool wide = types[0] == ELEMENT_F64 || types[1] == ELEMENT_F64;
    it.computed = it.value_type = wide ? ELEMENT_F64 : ELEMENT_F32;
    it.weighted = draw(&it, 0) < 0.3;
    it.masked = draw(&it, 1) < 0.3;
    it.upstream = draw(&it, 2) < 0.3;
    int wanted = (int)(1 + 7 * draw(&it, 3)); /* some of the three outputs */
    for (int k = 0; k < OUTS; k++)
        it.wanted[k] = draw(&it, 4) < 0.5 || wanted >> k & 1;
    it.divisor = it.reduction == ONEPASS_DIVISOR     ? 0.5 + 9 * draw(&it, 5)
                 : it.reduction == ONEPASS_MEAN      ? (double)it.elements
                 : it.reduction == ONEPASS_BATCHMEAN ? (it.rank ? (double)it.shape[0] : 1)
                                                     : 1;
    return it;
}

/* A prediction or target; `other` is the prediction when the target is drawn. Numbers a sum in fp32 can hold. */
static double draw_element(const check_case *it, int64_t index, int which, double other)
{
    static const double zeros[] = {0, -0.0, 1, 1e-40, 0x1p-126, 0x1p-24, 1e-310};
    static const double log_zeros[] = {-INFINITY, 0, -0.0, -90, -100, -103.5, -740};
    static const double specials[] = {NAN, INFINITY, -INFINITY, -1, -0x1p-149, 3, 1e6};
    enum { COUNT = 7 };
    uint64_t at = 64 + 8 * (uint64_t)index + 4 * (uint64_t)which;
    bool logarithms = which ? it->forms.log_targets : it->forms.log_predictions;
    double choice = draw(it, at + 1);
    int pick = (int)(COUNT * draw(it, at + 2));
    if (it->pattern >= PATTERN_ZEROS && choice < 0.2)
        return logarithms ? log_zeros[pick] : zeros[pick];
    if (it->pattern == PATTERN_SPECIAL && choice < 0.3)
        return specials[pick];
    double logarithm = -0.1 - 9 * draw(it, at);
    if (it->pattern == PATTERN_NEAR && which)
        logarithm = (it->forms.log_predictions ? other : log(other)) + 1e-3 * (draw(it, at) - 0.5);
    return logarithms ? logarithm : exp(logarithm);
}

/* Strides in elements, and where index 0 is; a repeated row has stride 0 in the first dimension. */
static int64_t lay_out(const check_case *it, int64_t strides[3])
{
    int64_t step = it->layout == LAYOUT_REVERSED ? -2 : 1, origin = 0;
    for (int i = 0; i < it->rank; i++) {
        int d = it->layout == LAYOUT_COLUMN_MAJOR ? i : it->rank - 1 - i;
        strides[d] = it->layout == LAYOUT_REPEATED && d == 0 && it->rank > 1 ? 0 : step;
        if (step < 0 && it->elements > 0)
            origin += -step * (it->shape[d] - 1);
        step *= it->shape[d];
    }
    return origin;
}

/* Fills one input; its numbers, as rounded to the type, are kept in index order. */
static void make_input(check_case *it, check_memory *memory, int which)
{
    int64_t *strides = it->strides[which];
    int64_t origin = lay_out(it, strides);
    for (int64_t i = 0; i < it->elements; i++) {
        int64_t place = origin, rest = i;
        for (int d = it->rank - 1; d >= 0; d--) {
            place += rest % it->shape[d] * strides[d];
            rest /= it->shape[d];
        }
        bool repeats = it->layout == LAYOUT_REPEATED && it->rank > 1;
        int64_t drawn = repeats ? i % (it->elements / it->shape[0]) : i;
        double number = draw_element(it, drawn, which, memory->numbers[0][i]);
        element_store(it->types[which], memory->inputs[which], (size_t)place, number);
        memory->numbers[which][i] = element_load(it->types[which], memory->inputs[which], (size_t)place);
    }
    it->inputs[which] = (onepass_tensor){
        .data = memory->inputs[which],
        .device = {ONEPASS_CPU, 0},
        .ndim = it->rank,
        .dtype = element_infos[it->types[which]].dtype,
        .shape = it->shape,
        .strides = strides,
        .byte_offset = (uint64_t)origin * element_infos[it->types[which]].size,
    };
}

/* ---- both sides -------------------------------------------------------------------------------------------------- */

static int64_t value_count(const check_case *it)
{
    return it->reduction == ONEPASS_NONE ? it->elements : it->reduction == ONEPASS_ROWS ? it->rows : 1;
}

static onepass_tensor plain_tensor(void *data, element_type type, int rank, int64_t *shape)
{
    return (onepass_tensor){
        .data = data, .device = {ONEPASS_CPU, 0}, .ndim = rank, .dtype = element_infos[type].dtype, .shape = shape};
}

static onepass_status compute(check_case *it, check_memory *memory, onepass_handle *handle, int side)
{
    int row_rank = it->rank > 0 ? it->rank - 1 : 0;
    int value_rank = it->reduction == ONEPASS_NONE ? it->rank : it->reduction == ONEPASS_ROWS ? row_rank : 0;
    for (int k = 0; k < OUTS; k++) /* NaN: a result that is never written is seen */
        memset(memory->outputs[side][k], 0xff, (size_t)(it->elements + it->rows + 1) * 8);
    onepass_tensor outs[OUTS] = {
        plain_tensor(memory->outputs[side][0], it->value_type, value_rank, it->shape),
        plain_tensor(memory->outputs[side][1], it->types[0], it->rank, it->shape),
        plain_tensor(memory->outputs[side][2], it->types[1], it->rank, it->shape),
    };
    onepass_tensor weights = plain_tensor(memory->weights, ELEMENT_F64, row_rank, it->shape);
    onepass_tensor mask = plain_tensor(memory->mask, ELEMENT_BOOL, row_rank, it->shape);
    onepass_tensor upstream = plain_tensor(memory->upstream, ELEMENT_F64, value_rank, it->shape);
    onepass_kl_options options = {
        .size = sizeof options,
        .reduction = it->reduction,
        .semantics = it->semantics,
        .divisor = it->reduction == ONEPASS_DIVISOR ? it->divisor : 0,
        .row_weights = it->weighted ? &weights : NULL,
        .row_mask = it->masked ? &mask : NULL,
        .grad_value = it->upstream ? &upstream : NULL,
    };
    return kl_call(it->forms, handle, &it->inputs[0], &it->inputs[1], &options, it->wanted[0] ? &outs[0] : NULL,
                   it->wanted[1] ? &outs[1] : NULL, it->wanted[2] ? &outs[2] : NULL);
}

static void make_factors(const check_case *it, check_memory *memory)
{
    for (int64_t row = 0; row < it->rows; row++) {
        memory->weights[row] = it->weighted ? 4 * draw(it, 1 << 20 | (uint64_t)row) - 1 : 1;
        memory->mask[row] = !it->masked || draw(it, 2 << 20 | (uint64_t)row) < 0.7;
    }
    for (int64_t i = 0; i < value_count(it); i++)
        memory->upstream[i] = it->upstream ? 4 * draw(it, 3 << 20 | (uint64_t)i) - 2 : 1;
}

/* ---- how far apart they may be ----------------------------------------------------------------------------------- */

/* The size of the terms each result of one element is made of; 0 where a limit or a special value decides. */
static void element_terms(const check_case *it, double prediction, double target, double terms[OUTS])
{
    double log_t = it->forms.log_targets ? target : log(target);
    double log_p = it->forms.log_predictions ? prediction : log(prediction);
    /* exp may end below the normal numbers, where an ulp no longer shrinks with the number. */
    double least = it->computed == ELEMENT_F64 ? DBL_MIN : (double)FLT_MIN;
    double t = it->forms.log_targets ? exp(target) + least : target;
    /* The reference subtracts logarithms in double: beside a level that computes in double its own rounding counts. */
    bool alike = it->forms.log_targets == it->forms.log_predictions && it->computed != ELEMENT_F64;
    double spread = alike ? fabs(log_t - log_p) : fabs(log_t) + fabs(log_p);
    terms[OUT_VALUE] = t * spread;
    terms[OUT_GRAD_PREDICTIONS] = it->forms.log_predictions ? t : t / prediction;
    terms[OUT_GRAD_TARGETS] = it->forms.log_targets ? t * (spread + 1) : spread + 1;
    for (int k = 0; k < OUTS; k++)
        terms[k] = isfinite(terms[k]) ? fabs(terms[k]) : 0;
}

static void sum_terms(const check_case *it, check_memory *memory)
{
    int64_t count = value_count(it);
    for (int64_t i = 0; i < count; i++)
        memory->allowed[OUT_VALUE][i] = 0;
    for (int64_t i = 0; i < it->elements; i++) {
        int64_t row = i / it->columns;
        int64_t value = it->reduction == ONEPASS_NONE ? i : it->reduction == ONEPASS_ROWS ? row : 0;
        double terms[OUTS], weight = fabs(memory->weights[row]) * (memory->mask[row] != 0) / it->divisor;
        element_terms(it, memory->numbers[0][i], memory->numbers[1][i], terms);
        memory->allowed[OUT_VALUE][value] += weight * terms[OUT_VALUE];
        for (int k = OUT_GRAD_PREDICTIONS; k < OUTS; k++)
            memory->allowed[k][i] = weight * fabs(memory->upstream[value]) * terms[k];
    }
}

/* The distance in units; NaN must meet NaN and an infinity itself, anything else is infinitely far. */
static double distance(element_type type, element_type computed, double got, double want, double terms)
{
    if (isnan(want) || isinf(want) || isnan(got) || isinf(got))
        return (isnan(want) && isnan(got)) || got == want ? 0 : (double)INFINITY;
    static const double smallest[ELEMENT_FLOATS] = {0x1p-24, 0x1p-133, 0x1p-149, 0x1p-1074};
    double unit = element_epsilon(computed) * terms + 0.5 * element_epsilon(type) * fabs(want) + smallest[type];
    return fabs(got - want) / unit;
}

static void note_failure(check_line *line, const check_case *it, int out, int64_t index, double got, double want)
{
    if (line->failures++ > 0)
        return;
    char shape[NPY_MAX_SHAPE_TEXT];
    snprintf(line->first, sizeof line->first,
             "%s %s/%s: %s[%" PRId64
             "] is %.17g, the reference has %.17g; %s predictions, %s targets, %s, %s, shape %s, "
             "%s, %s values%s%s%s; seed %" PRIu64 ", case %" PRId64,
             line->level, element_infos[it->types[0]].name, element_infos[it->types[1]].name, out_names[out], index,
             got, want, it->forms.log_predictions ? "log-probs" : "probs",
             it->forms.log_targets ? "log-probs" : "probs", reduction_names[it->reduction],
             it->semantics == ONEPASS_FINITE ? "finite" : "strict", npy_shape_text(shape, it->rank, it->shape),
             layout_names[it->layout], pattern_names[it->pattern], it->weighted ? ", weights" : "",
             it->masked ? ", mask" : "", it->upstream ? ", upstream" : "", it->seed, it->number);
}

static void compare(const check_case *it, const check_memory *memory, check_line *line)
{
    const element_type types[OUTS] = {it->value_type, it->types[0], it->types[1]};
    for (int out = 0; out < OUTS; out++) {
        int64_t count = out == OUT_VALUE ? value_count(it) : it->elements;
        for (int64_t i = 0; i < count && it->wanted[out]; i++) {
            double want = element_load(types[out], memory->outputs[0][out], (size_t)i);
            double got = element_load(types[out], memory->outputs[1][out], (size_t)i);
            double units = distance(types[out], it->computed, got, want, memory->allowed[out][i]);
            if (!(units <= line->worst))
                line->worst = units;
            if (!(units <= most_units)) {
                note_failure(line, it, out, i, got, want);
                return;
            }
        }
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

enum { CHECK_LEVELS = ONEP_CUDA + 1 };

typedef struct check_job {
    check_memory *memory;
    onepass_handle *handles[CHECK_LEVELS]; /* NULL: does not run here, or was not asked for */
    uint64_t seed;
    int64_t cases; /* of one line */
    bool json, quick;
    int64_t failures;
} check_job;

/* The reference once, then every level on the same inputs. */
static onepass_status run_case(check_job *job, check_line lines[CHECK_LEVELS], int64_t number)
{
    check_memory *memory = job->memory;
    check_case it = case_of(job->seed, number, lines[ONEP_REF].types);
    if (draw(&it, 6) * (double)it.elements > ALWAYS_ELEMENTS)
        return ONEPASS_OK;
    make_factors(&it, memory);
    make_input(&it, memory, 0);
    make_input(&it, memory, 1);
    sum_terms(&it, memory);
    onepass_status status = compute(&it, memory, job->handles[ONEP_REF], 0);
    for (int level = ONEP_SCALAR; level < CHECK_LEVELS && status == ONEPASS_OK; level++) {
        if (!job->handles[level])
            continue;
        status = compute(&it, memory, job->handles[level], 1);
        if (status == ONEPASS_OK)
            compare(&it, memory, &lines[level]);
        lines[level].cases++;
    }
    return status;
}

static void print_line(const check_job *job, json_writer *json, const check_line *line)
{
    if (!job->json) {
        printf("%-8s %-4s / %-4s %7" PRId64 " cases   worst %.2f units   %s\n", line->level,
               element_infos[line->types[0]].name, element_infos[line->types[1]].name, line->cases, line->worst,
               line->failures ? "FAILED" : "ok");
        return;
    }
    json_open(json, NULL, '{');
    json_string(json, "level", line->level);
    json_string(json, "predictions", element_infos[line->types[0]].name);
    json_string(json, "targets", element_infos[line->types[1]].name);
    json_integer(json, "cases", line->cases);
    json_number(json, "worst_units", line->worst);
    json_integer(json, "failures", line->failures);
    if (line->failures)
        json_string(json, "first_failure", line->first);
    json_close(json, '}');
}

static onepass_status check_pair(check_job *job, json_writer *json, int pair)
{
    check_line lines[CHECK_LEVELS] = {0};
    for (int level = 0; level < CHECK_LEVELS; level++) {
        lines[level].level = onep_level_name((onep_level)level);
        memcpy(lines[level].types, type_pairs[pair], sizeof lines[level].types);
    }
    for (int64_t number = 0; number < job->cases; number++) {
        onepass_status status = run_case(job, lines, number);
        if (status != ONEPASS_OK)
            return status;
        progress_update(NULL, (pair + (double)number / (double)job->cases) / TYPE_PAIRS);
    }
    for (int level = ONEP_SCALAR; level < CHECK_LEVELS; level++) {
        if (!job->handles[level])
            continue;
        job->failures += lines[level].failures;
        progress_wipe();
        print_line(job, json, &lines[level]);
        if (lines[level].failures)
            message_error(EXIT_CHECK, "%s", lines[level].first);
    }
    return ONEPASS_OK;
}

static void print_head_line(const check_job *job, json_writer *json, const head_check *line)
{
    if (!job->json) {
        printf("%-8s %-6s %-4s %7" PRId64 " cases   worst %.2f units   %s\n", line->level, line->operator_name,
               element_infos[line->type].name, line->cases, line->worst, line->failures ? "FAILED" : "ok");
        return;
    }
    json_open(json, NULL, '{');
    json_string(json, "level", line->level);
    json_string(json, "operator", line->operator_name);
    json_string(json, "dtype", element_infos[line->type].name);
    json_integer(json, "cases", line->cases);
    json_number(json, "worst_units", line->worst);
    json_integer(json, "failures", line->failures);
    if (line->failures)
        json_string(json, "first_failure", line->first);
    json_close(json, '}');
}

/* Linear and head at every level that was asked for. */
static onepass_status check_layers(check_job *job, json_writer *json)
{
    onepass_status status = ONEPASS_OK;
    for (int head = 0; head < 2; head++)
        for (int type = 0; type < ELEMENT_FLOATS; type++)
            for (int level = ONEP_SCALAR; level < CHECK_LEVELS && status == ONEPASS_OK; level++) {
                if (!job->handles[level])
                    continue;
                head_check line = {
                    .operator_name = head ? "head" : "linear",
                    .level = onep_level_name((onep_level)level),
                    .type = (element_type)type,
                    .on_device = level == ONEP_CUDA,
                };
                status = check_head(&line, job->handles[ONEP_REF], job->handles[level], head, job->seed, job->quick,
                                    most_units);
                job->failures += line.failures;
                progress_wipe();
                print_head_line(job, json, &line);
                if (line.failures)
                    message_error(EXIT_CHECK, "%s", line.first);
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
        printf("against ref, seed %" PRIu64
               "; a unit is half an ulp of the result and an ulp of its terms, at most %g are "
               "allowed\n",
               job->seed, most_units);
    }
    for (int pair = 0; pair < TYPE_PAIRS; pair++) {
        onepass_status status = check_pair(job, &json, pair);
        if (status != ONEPASS_OK)
            return message_library_error(status);
    }
    onepass_status status = check_layers(job, &json);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    if (job->json) {
        json_close(&json, ']');
        json_boolean(&json, "passed", job->failures == 0);
        json_end(&json);
    }
    return job->failures ? EXIT_CHECK : EXIT_FINE;
}

/* The reference, and every level of the processor or the GPU. */
static onepass_status create_handles(check_job *job, onepass_device device)
{
    onepass_status status = ONEPASS_OK;
    int levels = device.type == ONEPASS_CUDA ? ONEP_REF + 1 : ONEP_LEVELS;
    for (int level = 0; level < levels && status == ONEPASS_OK; level++) {
        onepass_config config = {.size = sizeof config, .isa = onep_level_name((onep_level)level)};
        if (onep_level_runs((onep_level)level))
            status = onepass_create(&config, &job->handles[level]);
    }
    onepass_config config = {.size = sizeof config, .device = device};
    if (status == ONEPASS_OK && device.type == ONEPASS_CUDA)
        status = onepass_create(&config, &job->handles[ONEP_CUDA]);
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
        .memory = malloc(sizeof *job.memory),
        .seed = random_seed(options),
        .cases = (int64_t)2 * 2 * 2 * 6 * LAYOUTS * PATTERNS * shape_count,
        .json = options_given(options, "json"),
        .quick = options_given(options, "quick"),
    };
    if (!job.memory)
        return message_error(EXIT_INPUT, "no memory for %zu bytes", sizeof *job.memory);
    progress_begin("check", options_given(options, "quiet"));
    onepass_status status = create_handles(&job, device);
    code = status == ONEPASS_OK ? check_all(&job) : message_library_error(status);
    progress_clear();
    for (int level = 0; level < CHECK_LEVELS; level++)
        onepass_destroy(job.handles[level]);
    free(job.memory);
    return code;
}
