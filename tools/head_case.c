/* A head at any size. See head_case.h. */
#define _POSIX_C_SOURCE 200809L
#include "head_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "handle.h"
#include "kl_case.h"
#include "layer_call.h"

const char *const head_case_names[HEAD_CASE_ARRAYS] = {
    "input",       "weight",      "bias",       "gamma",     "beta",       "scale", "running_mean",
    "running_var", "grad_output", "output",     "product",   "mean",       "rstd",  "grad_input",
    "grad_weight", "grad_bias",   "grad_gamma", "grad_beta", "grad_scale",
};

/* Which arrays are matrices, and of which extents. */
static int rank_of(int array)
{
    switch (array) {
    case HEAD_CASE_INPUT:
    case HEAD_CASE_WEIGHT:
    case HEAD_CASE_GRAD_OUTPUT:
    case HEAD_CASE_OUTPUT:
    case HEAD_CASE_PRODUCT:
    case HEAD_CASE_GRAD_INPUT:
    case HEAD_CASE_GRAD_WEIGHT:
        return 2;
    default:
        return 1;
    }
}

static void set_shape(const head_case *it, int array, int64_t shape[2])
{
    bool of_weight = array == HEAD_CASE_WEIGHT || array == HEAD_CASE_GRAD_WEIGHT;
    bool of_input = array == HEAD_CASE_INPUT || array == HEAD_CASE_GRAD_INPUT;
    bool single = array == HEAD_CASE_SCALE || array == HEAD_CASE_GRAD_SCALE;
    shape[0] = rank_of(array) == 1 ? (single ? 1 : it->columns) : of_weight ? it->columns : it->rows;
    shape[1] = of_weight || of_input ? it->depth : it->columns;
}

int64_t head_case_count(const head_case *it, int array)
{
    return it->shapes[array][0] * (rank_of(array) == 2 ? it->shapes[array][1] : 1);
}

static element_type type_of(const head_case *it, int array)
{
    return rank_of(array) == 2 && array != HEAD_CASE_PRODUCT ? it->type : it->computed;
}

static double draw(const head_case *it, int array, int64_t index)
{
    double unit = random_unit(it->seed + (uint64_t)array, (uint64_t)index);
    switch (array) {
    case HEAD_CASE_INPUT:
        return unit;
    case HEAD_CASE_WEIGHT:
    case HEAD_CASE_BIAS:
        return (2 * unit - 1) / sqrt((double)it->depth);
    case HEAD_CASE_GAMMA:
    case HEAD_CASE_SCALE:
    case HEAD_CASE_RUNNING_VAR:
        return 0.5 + unit;
    default:
        return 2 * unit - 1;
    }
}

static bool create_array(head_case *it, int array)
{
    int64_t *shape = it->shapes[array];
    set_shape(it, array, shape);
    element_type type = type_of(it, array);
    size_t count = (size_t)head_case_count(it, array), size = element_infos[type].size;
    if (rank_of(array) == 2 && shape[1] > 0 && shape[0] > (INT64_MAX >> 4) / shape[1])
        return false;
    it->arrays[array] = malloc(count > 0 ? count * size : 1);
    if (!it->arrays[array])
        return false;
    memset(it->arrays[array], 0xff, count * size); /* touches every page, and no result is NaN by chance */
    for (size_t i = 0; i < count && array <= HEAD_CASE_GRAD_OUTPUT; i++)
        element_store(type, it->arrays[array], i, draw(it, array, (int64_t)i));
    it->tensors[array] = (onepass_tensor){.data = it->arrays[array],
                                          .device = {ONEPASS_CPU, 0},
                                          .ndim = rank_of(array),
                                          .dtype = element_infos[type].dtype,
                                          .shape = shape};
    return true;
}

bool head_case_create(head_case *it)
{
    it->computed = it->type == ELEMENT_F64 ? ELEMENT_F64 : ELEMENT_F32;
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        if (!create_array(it, array))
            return false;
    return true;
}

void head_case_destroy(head_case *it)
{
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        free(it->arrays[array]);
    free(it->workspace);
}

static onepass_head_options options_of(head_case *it, bool train)
{
    return (onepass_head_options){
        .size = sizeof(onepass_head_options),
        .statistics = train ? ONEPASS_BATCH_STATISTICS : ONEPASS_RUNNING_STATISTICS,
        .eps = 1e-5,
        .bias = &it->tensors[HEAD_CASE_BIAS],
        .gamma = &it->tensors[HEAD_CASE_GAMMA],
        .beta = &it->tensors[HEAD_CASE_BETA],
        .scale = &it->tensors[HEAD_CASE_SCALE],
        .running_mean = train ? NULL : &it->tensors[HEAD_CASE_RUNNING_MEAN],
        .running_var = train ? NULL : &it->tensors[HEAD_CASE_RUNNING_VAR],
        .workspace = it->workspace,
        .workspace_size = it->workspace_size,
    };
}

/* The most that one of the calls needs. */
static onepass_status workspace_of(head_case *it, onepass_handle *handle, size_t *most)
{
    const onepass_tensor *t = it->tensors;
    size_t sizes[4] = {0};
    onepass_status status = onepass_linear_workspace_size(handle, &t[HEAD_CASE_INPUT], &t[HEAD_CASE_WEIGHT], &sizes[0]);
    for (int train = 0; train < 2 && status == ONEPASS_OK; train++) {
        onepass_head_options options = options_of(it, train);
        status = onepass_head_workspace_size(handle, &t[HEAD_CASE_INPUT], &t[HEAD_CASE_WEIGHT], &options,
                                             &t[HEAD_CASE_OUTPUT], &t[HEAD_CASE_PRODUCT], &sizes[1 + train]);
        if (status == ONEPASS_OK)
            status = onepass_head_backward_workspace_size(handle, &t[HEAD_CASE_INPUT], &t[HEAD_CASE_WEIGHT], &options,
                                                          &sizes[3]);
    }
    *most = 0;
    for (int i = 0; i < 4; i++)
        *most = sizes[i] > *most ? sizes[i] : *most;
    return status;
}

onepass_status head_case_prepare(head_case *it, onepass_handle *handle)
{
    size_t most;
    if (layer_is_copied(handle, &it->tensors[HEAD_CASE_INPUT]))
        return ONEPASS_OK;
    onepass_status status = workspace_of(it, handle, &most);
    if (status != ONEPASS_OK || most <= it->workspace_size)
        return status;
    free(it->workspace);
    it->workspace = malloc(most);
    it->workspace_size = it->workspace ? most : 0; /* without memory the calls say what they miss */
    return ONEPASS_OK;
}

onepass_status head_case_send(const head_case *here, head_case *there, onepass_handle *handle,
                              const device_memory *memory)
{
    *there = *here;
    there->workspace = NULL;
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        there->copies[array] = device_reads(head_case_names[array], &here->tensors[array]);
    onepass_status status = device_send(memory, handle->device, there->copies, HEAD_CASE_ARRAYS);
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        there->tensors[array] = there->copies[array].device;
    onep_cu_address workspace = 0;
    if (status == ONEPASS_OK)
        status = workspace_of(there, handle, &there->workspace_size);
    if (status == ONEPASS_OK)
        status = device_claim(memory, "workspace", there->workspace_size, &workspace);
    there->workspace = (void *)(uintptr_t)workspace;
    return status;
}

void head_case_drop(head_case *there, const device_memory *memory)
{
    device_release(memory, (onep_cu_address)(uintptr_t)there->workspace);
    device_drop(memory, there->copies, HEAD_CASE_ARRAYS);
}

onepass_status head_case_linear(head_case *it, onepass_handle *handle, bool bias)
{
    const onepass_tensor *t = it->tensors;
    return linear_call(handle, &t[HEAD_CASE_INPUT], &t[HEAD_CASE_WEIGHT], bias ? &t[HEAD_CASE_BIAS] : NULL,
                       &t[HEAD_CASE_OUTPUT], it->workspace, it->workspace_size);
}

onepass_status head_case_linear_backward(head_case *it, onepass_handle *handle)
{
    const onepass_tensor *t = it->tensors;
    return linear_backward_call(handle, &t[HEAD_CASE_GRAD_OUTPUT], &t[HEAD_CASE_INPUT], &t[HEAD_CASE_WEIGHT],
                                &t[HEAD_CASE_GRAD_INPUT], &t[HEAD_CASE_GRAD_WEIGHT], &t[HEAD_CASE_GRAD_BIAS],
                                it->workspace, it->workspace_size);
}

onepass_status head_case_forward(head_case *it, onepass_handle *handle, bool train)
{
    const onepass_tensor *t = it->tensors;
    onepass_head_options options = options_of(it, train);
    return head_call(handle, &t[HEAD_CASE_INPUT], &t[HEAD_CASE_WEIGHT], &options, &t[HEAD_CASE_OUTPUT],
                     &t[HEAD_CASE_PRODUCT], &t[HEAD_CASE_MEAN], &t[HEAD_CASE_RSTD]);
}

onepass_status head_case_backward(head_case *it, onepass_handle *handle, bool train)
{
    const onepass_tensor *t = it->tensors;
    onepass_head_options options = options_of(it, train);
    onepass_head_gradients gradients = {
        .size = sizeof gradients,
        .input = &t[HEAD_CASE_GRAD_INPUT],
        .weight = &t[HEAD_CASE_GRAD_WEIGHT],
        .bias = &t[HEAD_CASE_GRAD_BIAS],
        .gamma = &t[HEAD_CASE_GRAD_GAMMA],
        .beta = &t[HEAD_CASE_GRAD_BETA],
        .scale = &t[HEAD_CASE_GRAD_SCALE],
    };
    return head_backward_call(handle, &t[HEAD_CASE_GRAD_OUTPUT], &t[HEAD_CASE_OUTPUT], &t[HEAD_CASE_INPUT],
                              &t[HEAD_CASE_WEIGHT], &t[HEAD_CASE_PRODUCT], &t[HEAD_CASE_MEAN], &t[HEAD_CASE_RSTD],
                              &options, &gradients);
}
