/* A loss at any size. See loss_case.h. */
#define _POSIX_C_SOURCE 200809L
#include "loss_case.h"

#include <stdlib.h>
#include <string.h>

#include "cases/kl.h"
#include "cases/logits.h"
#include "clock.h"
#include "room.h"

/* Large pages where the system has them, whole lines for the plain loops. */
static const size_t alignment = (size_t)2 << 20;

/* Streams of random numbers that must not meet: rows start at 0, the scale is drawn far beyond them. */
enum { TARGET_STREAM = 1, LABEL_STREAM, UPSTREAM };
static const uint64_t scale_index = UINT64_MAX;

/* The finaliser of splitmix64 (Steele, Lea and Flood, 2014) over a counter. */
static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

double random_unit(uint64_t seed, uint64_t index)
{
    return (double)(mix(mix(seed) + (index + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

uint64_t random_seed(const parsed_options *options)
{
    if (options_given(options, "seed"))
        return (uint64_t)options_integer(options, "seed");
    return mix((uint64_t)(1e9 * clock_seconds())) >> 40;
}

static bool is_of_logits(const loss_case *it)
{
    return it->kind != LOSS_KL || it->forms.predictions == FORM_LOGITS;
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static bool has_array(const loss_case *it, int array)
{
    switch (array) {
    case LOSS_TARGETS:
        return it->kind == LOSS_KL;
    case LOSS_LABELS:
        return it->kind != LOSS_KL;
    case LOSS_ENTROPY:
    case LOSS_GRAD_LOG_PROB:
    case LOSS_GRAD_ENTROPY:
        return it->kind == LOSS_TOKEN;
    default:
        return true;
    }
}

static element_type type_of(const loss_case *it, int array)
{
    return array < LOSS_LARGE ? it->type : array == LOSS_LABELS ? it->label_type : it->value_type;
}

/* Rows and columns as far as the array has them, 1 otherwise; the rank. */
static int set_shape(const loss_case *it, int array, int64_t shape[2])
{
    bool is_value = array == LOSS_VALUE && it->kind != LOSS_TOKEN;
    bool is_element_wise = is_value && it->reduction == ONEPASS_NONE && !is_of_logits(it); /* of which there is none */
    bool has_rows = !is_value || it->reduction == ONEPASS_ROWS || is_element_wise;
    bool has_columns = array < LOSS_LARGE || is_element_wise;
    bool has_indices =
        it->kind == LOSS_TOKEN && array >= LOSS_LARGE && array != LOSS_ENTROPY && array != LOSS_GRAD_ENTROPY;
    shape[0] = has_rows ? it->shape[0] : 1;
    shape[1] = has_columns ? it->shape[1] : has_indices ? it->indices : 1;
    return has_columns || has_indices ? 2 : has_rows;
}

bool loss_case_is_large(const loss_case *it, int array)
{
    return array < LOSS_LARGE && !(array == LOSS_TARGETS && it->layout == LAYOUT_BROADCAST);
}

/* Rows and columns of the memory, and the elements before the first; the views of the tensors are laid over it. */
typedef struct memory_shape {
    int64_t rows, columns, before;
} memory_shape;

static memory_shape memory_of(const loss_case *it, int array)
{
    int64_t shape[2];
    set_shape(it, array, shape);
    memory_shape memory = {.rows = shape[0], .columns = shape[1]};
    if (array >= LOSS_LARGE)
        return memory;
    if (!loss_case_is_large(it, array))
        memory.rows = 1;
    memory.columns += it->layout == LAYOUT_PADDED ? 3 : 0;
    memory.before = it->layout == LAYOUT_SHIFTED;
    return memory;
}

static void set_strides(loss_case *it, int array)
{
    bool transposed = it->layout == LAYOUT_TRANSPOSED || (it->layout == LAYOUT_MIXED && array == LOSS_TARGETS);
    memory_shape memory = memory_of(it, array);
    int64_t *strides = it->strides[array];
    strides[0] = transposed ? 1 : memory.rows == it->shape[0] ? memory.columns : 0;
    strides[1] = transposed ? it->shape[0] : 1;
    bool compact = array >= LOSS_LARGE || it->layout == LAYOUT_CONTIGUOUS || it->layout == LAYOUT_SHIFTED;
    it->tensors[array].strides = compact ? NULL : strides;
}

int64_t loss_case_count(const loss_case *it, int array)
{
    return it->shapes[array][0] * it->shapes[array][1];
}

int loss_case_inputs(const loss_case *it)
{
    return it->arrays[LOSS_TARGETS] && loss_case_is_large(it, LOSS_TARGETS) ? 2 : 1;
}

static size_t rounded_up(size_t bytes)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

/* UINT64_MAX: more than can be counted. */
static uint64_t bytes_of(const loss_case *it, int array)
{
    const int64_t most = INT64_MAX / 16;
    memory_shape memory = memory_of(it, array);
    if (memory.rows > most / memory.columns)
        return UINT64_MAX;
    return (uint64_t)(memory.rows * memory.columns + memory.before) * element_infos[type_of(it, array)].size;
}

uint64_t loss_case_room(const loss_case *it)
{
    uint64_t total = 0;
    for (int array = 0; array < LOSS_ARRAYS; array++)
        if (has_array(it, array) && !room_add(&total, 1, bytes_of(it, array)))
            break;
    return total;
}

/* Those that are there all together: known before the first is allocated. */
static bool arrays_fit(const loss_case *it)
{
    uint64_t total = loss_case_room(it);
    return total < UINT64_MAX && room_add(&total, LOSS_ARRAYS, alignment) && room_for(total);
}

static bool allocate(loss_case *it, int array)
{
    int rank = set_shape(it, array, it->shapes[array]);
    element_type type = type_of(it, array);
    it->arrays[array] = aligned_alloc(alignment, rounded_up((size_t)bytes_of(it, array)));
    it->tensors[array] =
        (onepass_tensor){.data = it->arrays[array],
                         .device = {ONEPASS_CPU, 0},
                         .ndim = rank,
                         .dtype = element_infos[type].dtype,
                         .shape = it->shapes[array],
                         .byte_offset = (uint64_t)memory_of(it, array).before * element_infos[type].size};
    set_strides(it, array);
    return it->arrays[array];
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* What is drawn of an array: whole rows, or a part of the first one; the rest of the memory repeats it. */
static memory_shape drawn_of(const loss_case *it, int array)
{
    memory_shape drawn = memory_of(it, array);
    if (it->distinct == 0)
        return drawn;
    if (drawn.columns > it->distinct)
        return (memory_shape){1, it->distinct, drawn.before};
    drawn.rows = drawn.rows < it->distinct / drawn.columns ? drawn.rows : it->distinct / drawn.columns;
    return drawn;
}

/* The first element's place. */
static char *start_of(const loss_case *it, int array)
{
    return (char *)it->arrays[array] + it->tensors[array].byte_offset;
}

static void fill_row(const loss_case *it, int64_t row, int64_t columns, bool targets)
{
    onepass_dtype type = element_infos[it->type].dtype;
    void *to = start_of(it, targets ? LOSS_TARGETS : LOSS_PREDICTIONS) +
               (size_t)(row * columns) * element_infos[it->type].size;
    uint64_t seed = it->seed + (targets ? TARGET_STREAM : 0);
    int form = targets ? it->forms.targets : is_of_logits(it) ? FORM_LOGITS : it->forms.predictions;
    if (form == FORM_LOGITS)
        logits_gaussian_row(type, to, columns, seed, row);
    else
        kl_softmax_row(type, to, columns, targets ? 1 : it->scale, form == FORM_LOG_PROBS, seed, row);
}

static void fill_share(void *context, int index, int count)
{
    const loss_case *it = context;
    for (int array = LOSS_PREDICTIONS; array <= LOSS_TARGETS; array++) {
        memory_shape drawn = drawn_of(it, array);
        int64_t first, last;
        team_share(drawn.rows, 1, index, count, &first, &last);
        for (int64_t row = first; it->arrays[array] && row < last; row++)
            fill_row(it, row, drawn.columns, array == LOSS_TARGETS);
    }
}

/* Copies of what was drawn, up to the end of the memory. */
static void repeat_share(void *context, int index, int count)
{
    const loss_case *it = context;
    for (int array = LOSS_PREDICTIONS; array <= LOSS_TARGETS; array++) {
        memory_shape drawn = drawn_of(it, array), memory = memory_of(it, array);
        int64_t size = (int64_t)element_infos[it->type].size, first, last;
        int64_t period = drawn.rows * drawn.columns * size, total = memory.rows * memory.columns * size;
        team_share(total, period, index, count, &first, &last);
        for (int64_t at = first ? first : period; it->arrays[array] && at < last; at += period)
            memcpy(start_of(it, array) + at, start_of(it, array), (size_t)(at + period < total ? period : total - at));
    }
}

/* Labels are below the number of columns, upstream gradients between -1 and 1. */
static void fill_small(const loss_case *it, int array)
{
    onepass_dtype type = element_infos[type_of(it, array)].dtype;
    bool labels = array == LOSS_LABELS;
    case_random random = case_random_stream(it->seed + (labels ? LABEL_STREAM : UPSTREAM), (uint64_t)array);
    for (int64_t i = 0; it->arrays[array] && i < loss_case_count(it, array); i++)
        case_store(type, (char *)it->arrays[array] + (size_t)i * case_size(type),
                   labels ? (double)case_random_below(&random, it->shape[1]) : case_random_between(&random, -1, 1));
}

bool loss_case_create(loss_case *it, team *members)
{
    if (!arrays_fit(it))
        return false;
    for (int array = 0; array < LOSS_ARRAYS; array++)
        if (has_array(it, array) && !allocate(it, array)) {
            loss_case_destroy(it);
            return false;
        }
    it->bytes = (size_t)bytes_of(it, LOSS_PREDICTIONS);
    it->scale = random_unit(it->seed, scale_index);
    team_run(members, fill_share, it);
    if (it->distinct)
        team_run(members, repeat_share, it);
    fill_small(it, LOSS_LABELS);
    fill_small(it, LOSS_GRAD_LOG_PROB);
    fill_small(it, LOSS_GRAD_ENTROPY);
    return true;
}

void loss_case_destroy(loss_case *it)
{
    for (int array = 0; array < LOSS_ARRAYS; array++) {
        free(it->arrays[array]);
        it->arrays[array] = NULL;
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static tool_call token_call(const loss_case *it, const onepass_tensor tensors[LOSS_ARRAYS], bool backward)
{
    tool_call call = call_of(backward ? "token_log_probs_backward" : "token_log_probs");
    call_tensor(&call, "logits", &tensors[LOSS_PREDICTIONS]);
    call_tensor(&call, "indices", &tensors[LOSS_LABELS]);
    call_tensor(&call, backward ? "grad_log_prob" : "log_prob", &tensors[backward ? LOSS_GRAD_LOG_PROB : LOSS_VALUE]);
    call_tensor(&call, backward ? "grad_entropy" : "entropy", &tensors[backward ? LOSS_GRAD_ENTROPY : LOSS_ENTROPY]);
    if (backward)
        call_tensor(&call, "grad_logits", &tensors[LOSS_GRADIENT]);
    call_option(&call, "temperature", it->temperature);
    return call;
}

static tool_call loss_call(const loss_case *it, const onepass_tensor tensors[LOSS_ARRAYS], bool gradient)
{
    bool is_kl = it->kind == LOSS_KL;
    tool_call call =
        call_of(is_kl ? kl_operator(it->forms.predictions, it->forms.targets) : "cross_entropy_logits_labels");
    call_tensor(&call, "predictions", &tensors[LOSS_PREDICTIONS]);
    call_tensor(&call, is_kl ? "targets" : "labels", &tensors[is_kl ? LOSS_TARGETS : LOSS_LABELS]);
    call_tensor(&call, "value", &tensors[LOSS_VALUE]);
    call_tensor(&call, "grad_predictions", gradient ? &tensors[LOSS_GRADIENT] : NULL);
    call_option(&call, "reduction", it->reduction);
    if (is_of_logits(it))
        call_option(&call, "temperature", it->temperature);
    if (is_of_logits(it) && is_kl) {
        call_option(&call, "divergence", it->divergence);
        call_option(&call, "mixture", it->mixture);
    }
    return call;
}

int loss_case_calls(const loss_case *it, const onepass_tensor tensors[LOSS_ARRAYS], bool gradient,
                    tool_call calls[LOSS_MOST_CALLS])
{
    bool is_token = it->kind == LOSS_TOKEN;
    calls[0] = is_token ? token_call(it, tensors, false) : loss_call(it, tensors, gradient);
    if (!is_token || !gradient)
        return 1;
    calls[1] = token_call(it, tensors, true);
    return 2;
}

onepass_status loss_case_run(const loss_case *it, onepass_handle *handle, bool gradient)
{
    tool_call calls[LOSS_MOST_CALLS];
    int count = loss_case_calls(it, it->tensors, gradient, calls);
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < count && status == ONEPASS_OK; i++)
        status = call_run(&calls[i], handle);
    return status;
}

double loss_case_value(const loss_case *it, int64_t index)
{
    return element_load(it->value_type, it->arrays[LOSS_VALUE], (size_t)index);
}

memory_set loss_case_memory(const loss_case *it, team *members)
{
    return (memory_set){
        .members = members,
        .inputs = {it->arrays[LOSS_PREDICTIONS], loss_case_inputs(it) == 2 ? it->arrays[LOSS_TARGETS] : NULL},
        .input_bytes = it->bytes,
        .output = it->arrays[LOSS_GRADIENT],
    };
}
