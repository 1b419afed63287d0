/* The founding problem at any size. See kl_case.h. */
#define _POSIX_C_SOURCE 200809L
#include "kl_case.h"

#include <math.h>
#include <stdlib.h>

#include "clock.h"

/* Large pages where the system has them, whole lines for the plain loops. */
static const size_t alignment = (size_t)2 << 20;

/* Streams of random numbers that must not meet: element indices start at 0, the scale is drawn far beyond them. */
enum { TARGET_STREAM = 1 };
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

/* One row: softmax(scale * random), or its logarithm. exp does not overflow, as scale is at most 1. */
static void fill_row(const kl_case *it, int64_t row, bool targets)
{
    uint64_t seed = it->seed + (targets ? TARGET_STREAM : 0);
    double scale = targets ? 1 : it->scale;
    bool logarithms = targets ? it->forms.log_targets : it->forms.log_predictions;
    int64_t columns = it->shape[1];
    size_t first = (size_t)(row * columns);
    void *to = targets ? it->targets : it->predictions;
    double sum = 0;
    for (int64_t column = 0; column < columns; column++)
        sum += exp(scale * random_unit(seed, first + (size_t)column));
    double log_sum = log(sum);
    for (int64_t column = 0; column < columns; column++) {
        size_t index = first + (size_t)column;
        double logarithm = scale * random_unit(seed, index) - log_sum;
        element_store(it->type, to, index, logarithms ? logarithm : exp(logarithm));
    }
}

static void fill_share(void *context, int index, int count)
{
    const kl_case *it = context;
    int64_t first, last;
    team_share(it->shape[0], 1, index, count, &first, &last);
    for (int64_t row = first; row < last; row++) {
        fill_row(it, row, false);
        fill_row(it, row, true);
    }
}

static size_t rounded_up(size_t bytes)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

bool kl_case_create(kl_case *it, team *members)
{
    const int64_t most = INT64_MAX / 16;
    it->predictions = it->targets = it->gradient = NULL;
    if (it->shape[0] > most / it->shape[1])
        return false;
    it->bytes = (size_t)(it->shape[0] * it->shape[1]) * element_infos[it->type].size;
    it->scale = random_unit(it->seed, scale_index);
    it->predictions = aligned_alloc(alignment, rounded_up(it->bytes));
    it->targets = aligned_alloc(alignment, rounded_up(it->bytes));
    it->gradient = aligned_alloc(alignment, rounded_up(it->bytes));
    if (!it->predictions || !it->targets || !it->gradient) {
        kl_case_destroy(it);
        return false;
    }
    team_run(members, fill_share, it);
    return true;
}

void kl_case_destroy(kl_case *it)
{
    free(it->predictions);
    free(it->targets);
    free(it->gradient);
    it->predictions = it->targets = it->gradient = NULL;
}

onepass_status kl_case_run(const kl_case *it, onepass_handle *handle, bool gradient, element_type value_type,
                           double *value)
{
    int64_t shape[2] = {it->shape[0], it->shape[1]};
    onepass_tensor predictions = {.data = it->predictions,
                                  .device = {ONEPASS_CPU, 0},
                                  .ndim = 2,
                                  .dtype = element_infos[it->type].dtype,
                                  .shape = shape};
    onepass_tensor targets = predictions, grad_predictions = predictions;
    targets.data = it->targets;
    grad_predictions.data = it->gradient;
    unsigned char bytes[8];
    onepass_tensor result = {.data = bytes, .device = {ONEPASS_CPU, 0}, .dtype = element_infos[value_type].dtype};
    onepass_status status =
        kl_call(it->forms, handle, &predictions, &targets, NULL, &result, gradient ? &grad_predictions : NULL, NULL);
    if (status == ONEPASS_OK)
        *value = element_load(value_type, bytes, 0);
    return status;
}

memory_set kl_case_memory(const kl_case *it, team *members)
{
    return (memory_set){
        .members = members,
        .inputs = {it->predictions, it->targets},
        .input_bytes = it->bytes,
        .output = it->gradient,
    };
}
