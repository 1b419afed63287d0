/* A head at any size. See head_case.h. */
#define _POSIX_C_SOURCE 200809L
#include "head_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loss_case.h"
#include "room.h"

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

static element_type computed_type(const head_case *it)
{
    return it->type == ELEMENT_F64 ? ELEMENT_F64 : ELEMENT_F32;
}

/* UINT64_MAX: more than can be counted. */
static uint64_t bytes_of(const head_case *it, int array)
{
    head_case planned = {.type = it->type, .computed = computed_type(it)};
    int64_t shape[2];
    set_shape(it, array, shape);
    uint64_t count = (uint64_t)shape[0], columns = rank_of(array) == 2 ? (uint64_t)shape[1] : 1;
    if (columns > 0 && count > (uint64_t)(INT64_MAX >> 4) / columns)
        return UINT64_MAX;
    return count * columns * element_infos[type_of(&planned, array)].size;
}

uint64_t head_case_room(const head_case *it)
{
    uint64_t total = 0;
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        if (!room_add(&total, 1, bytes_of(it, array)))
            break;
    return total;
}

uint64_t head_case_matrices(const head_case *it)
{
    static const int arrays[] = {HEAD_CASE_INPUT, HEAD_CASE_WEIGHT, HEAD_CASE_OUTPUT};
    uint64_t total = 0;
    for (int i = 0; i < 3; i++)
        if (!room_add(&total, 1, bytes_of(it, arrays[i])))
            break;
    return total;
}

static bool allocate_array(head_case *it, int array)
{
    set_shape(it, array, it->shapes[array]);
    element_type type = type_of(it, array);
    size_t bytes = (size_t)head_case_count(it, array) * element_infos[type].size;
    it->arrays[array] = malloc(bytes > 0 ? bytes : 1);
    it->tensors[array] = (onepass_tensor){.data = it->arrays[array],
                                          .device = {ONEPASS_CPU, 0},
                                          .ndim = rank_of(array),
                                          .dtype = element_infos[type].dtype,
                                          .shape = it->shapes[array]};
    if (it->transposed && (array == HEAD_CASE_INPUT || array == HEAD_CASE_WEIGHT)) {
        it->strides[array][0] = 1;
        it->strides[array][1] = it->shapes[array][0];
        it->tensors[array].strides = it->strides[array];
    }
    return it->arrays[array];
}

static void fill_array(head_case *it, int array)
{
    element_type type = type_of(it, array);
    size_t count = (size_t)head_case_count(it, array);
    /* touches every page, and no result is NaN by chance */
    memset(it->arrays[array], 0xff, count * element_infos[type].size);
    for (size_t i = 0; i < count && array <= HEAD_CASE_GRAD_OUTPUT; i++)
        element_store(type, it->arrays[array], i, draw(it, array, (int64_t)i));
}

void head_case_destroy(head_case *it)
{
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        free(it->arrays[array]);
    free(it->workspace);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* The case's array of an argument: "options.bias" is bias, "gradients.bias" grad_bias. NULL: it has none. */
static const onepass_tensor *tensor_of(const head_case *it, const char *argument)
{
    static const char of_options[] = "options.", of_gradients[] = "gradients.";
    char name[64];
    bool gradient = strncmp(argument, of_gradients, strlen(of_gradients)) == 0;
    bool option = strncmp(argument, of_options, strlen(of_options)) == 0;
    const char *last = argument + (gradient ? strlen(of_gradients) : option ? strlen(of_options) : 0);
    snprintf(name, sizeof name, "%s%s", gradient ? "grad_" : "", last);
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        if (strcmp(name, head_case_names[array]) == 0)
            return &it->tensors[array];
    return NULL;
}

static tool_call call_with(const head_case *it, const char *operator_name)
{
    tool_call call = call_of(operator_name);
    const onepass_argument_info *argument;
    for (int i = 0; (argument = onepass_operator_argument(call.op, i)); i++)
        call.tensors[i] = tensor_of(it, argument->name);
    return call;
}

static tool_call forward_call(const head_case *it, bool train)
{
    tool_call call = call_with(it, "head");
    call_option(&call, "options.statistics", train ? ONEPASS_BATCH_STATISTICS : ONEPASS_RUNNING_STATISTICS);
    call_option(&call, "options.eps", 1e-5);
    if (train) {
        call_tensor(&call, "options.running_mean", NULL);
        call_tensor(&call, "options.running_var", NULL);
    }
    return call;
}

static tool_call backward_call(const head_case *it, bool train)
{
    tool_call call = call_with(it, "head_backward");
    call_option(&call, "options.statistics", train ? ONEPASS_BATCH_STATISTICS : ONEPASS_RUNNING_STATISTICS);
    return call;
}

/* Described once: looking up names takes as long as a small call. */
static void make_calls(head_case *it)
{
    it->calls[HEAD_CALL_LINEAR] = it->calls[HEAD_CALL_PRODUCT] = call_with(it, "linear");
    call_tensor(&it->calls[HEAD_CALL_PRODUCT], "bias", NULL);
    it->calls[HEAD_CALL_LINEAR_BACKWARD] = call_with(it, "linear_backward");
    it->calls[HEAD_CALL_EVAL] = forward_call(it, false);
    it->calls[HEAD_CALL_TRAIN] = forward_call(it, true);
    it->calls[HEAD_CALL_EVAL_BACKWARD] = backward_call(it, false);
    it->calls[HEAD_CALL_TRAIN_BACKWARD] = backward_call(it, true);
}

bool head_case_create(head_case *it)
{
    it->computed = computed_type(it);
    uint64_t room = head_case_room(it);
    if (room == UINT64_MAX || !room_for(room))
        return false;
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        if (!allocate_array(it, array))
            return false;
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        fill_array(it, array);
    make_calls(it);
    return true;
}

/* The most that one of the calls needs. */
static onepass_status workspace_of(const head_case *it, onepass_handle *handle, size_t *most)
{
    onepass_status status = ONEPASS_OK;
    *most = 0;
    for (int call = 0; call < HEAD_CALLS && status == ONEPASS_OK; call++) {
        size_t bytes = 0;
        status = call_workspace_size(&it->calls[call], handle, &bytes);
        *most = bytes > *most ? bytes : *most;
    }
    return status;
}

onepass_status head_case_workspace(const head_case *it, onepass_handle *handle, bool head, bool train, bool backward,
                                   size_t *bytes)
{
    const int calls[] = {!head   ? HEAD_CALL_LINEAR
                         : train ? HEAD_CALL_TRAIN
                                 : HEAD_CALL_EVAL,
                         !head   ? HEAD_CALL_LINEAR_BACKWARD
                         : train ? HEAD_CALL_TRAIN_BACKWARD
                                 : HEAD_CALL_EVAL_BACKWARD};
    onepass_status status = ONEPASS_OK;
    *bytes = 0;
    for (int i = 0; i <= backward && status == ONEPASS_OK; i++) {
        size_t size = 0;
        status = call_workspace_size(&it->calls[calls[i]], handle, &size);
        *bytes = size > *bytes ? size : *bytes;
    }
    return status;
}

/* True if a call on this handle copies the case first, and brings a workspace of its own. */
static bool is_copied(const head_case *it, onepass_handle *handle)
{
    return it->tensors[HEAD_CASE_INPUT].device.type != onepass_device_of(handle).type;
}

static onepass_status run(const head_case *it, onepass_handle *handle, int call)
{
    return is_copied(it, handle) ? call_run(&it->calls[call], handle)
                                 : call_run_there(&it->calls[call], handle, it->workspace, it->workspace_size);
}

onepass_status head_case_prepare(head_case *it, onepass_handle *handle)
{
    size_t most;
    if (is_copied(it, handle))
        return ONEPASS_OK;
    onepass_status status = workspace_of(it, handle, &most);
    if (status != ONEPASS_OK || most <= it->workspace_size)
        return status;
    free(it->workspace);
    it->workspace = room_for(most) ? malloc(most) : NULL;
    it->workspace_size = it->workspace ? most : 0; /* without memory the calls say what they miss */
    return ONEPASS_OK;
}

onepass_status head_case_send(const head_case *here, head_case *there, onepass_handle *handle)
{
    *there = *here;
    there->workspace = NULL;
    onepass_status status = ONEPASS_OK;
    for (int array = 0; array < HEAD_CASE_ARRAYS && status == ONEPASS_OK; array++) {
        status = copy_send(&there->copies[array], handle, &here->tensors[array]);
        there->tensors[array] = there->copies[array].there;
    }
    make_calls(there);
    if (status == ONEPASS_OK)
        status = workspace_of(there, handle, &there->workspace_size);
    if (status == ONEPASS_OK)
        status = onepass_memory_alloc(handle, there->workspace_size, &there->workspace);
    return status;
}

void head_case_drop(head_case *there, onepass_handle *handle)
{
    onepass_memory_free(handle, there->workspace);
    there->workspace = NULL;
    for (int array = 0; array < HEAD_CASE_ARRAYS; array++)
        copy_drop(&there->copies[array], handle);
}

onepass_status head_case_linear(head_case *it, onepass_handle *handle, bool bias)
{
    return run(it, handle, bias ? HEAD_CALL_LINEAR : HEAD_CALL_PRODUCT);
}

onepass_status head_case_linear_backward(head_case *it, onepass_handle *handle)
{
    return run(it, handle, HEAD_CALL_LINEAR_BACKWARD);
}

onepass_status head_case_forward(head_case *it, onepass_handle *handle, bool train)
{
    return run(it, handle, train ? HEAD_CALL_TRAIN : HEAD_CALL_EVAL);
}

onepass_status head_case_backward(head_case *it, onepass_handle *handle, bool train)
{
    return run(it, handle, train ? HEAD_CALL_TRAIN_BACKWARD : HEAD_CALL_EVAL_BACKWARD);
}
