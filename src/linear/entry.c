/*
 * The entry points of the linear layer, forward and backward, and of prepared weights: their descriptions, their own
 * rules, and the problems their kernels compute.
 */
#include "core/operator.h"
#include "core/status.h"
#include "linear/linear.h"

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

enum { INPUT, WEIGHT, BIAS, PREPARED, OUTPUT, FORWARD_ARGUMENTS };

static const onep_argument forward_arguments[FORWARD_ARGUMENTS] = {
    [INPUT] = {.info = {"input", "*K", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [WEIGHT] = {.info = {"weight", "NK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [BIAS] = {.info = {"bias", "N", ONEPASS_READ, 0}},
    [PREPARED] = {.info = {"prepared", "P", ONEPASS_READ, 0}, .type = ONEP_OPAQUE},
    [OUTPUT] = {.info = {"output", "*N", ONEPASS_WRITTEN, 1}, .type = ONEP_HOLDS_PROMOTED},
};

enum { B_INPUT, B_WEIGHT, GRAD_OUTPUT, GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS, BACKWARD_ARGUMENTS };

static const onep_argument backward_arguments[BACKWARD_ARGUMENTS] = {
    [B_INPUT] = {.info = {"input", "*K", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [B_WEIGHT] = {.info = {"weight", "NK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [GRAD_OUTPUT] = {.info = {"grad_output", "*N", ONEPASS_READ, 1}},
    [GRAD_INPUT] = {.info = {"grad_input", "*K", ONEPASS_WRITTEN, 0}, .type = ONEP_LIKE, .like = B_INPUT},
    [GRAD_WEIGHT] = {.info = {"grad_weight", "NK", ONEPASS_WRITTEN, 0}, .type = ONEP_LIKE, .like = B_WEIGHT},
    [GRAD_BIAS] = {.info = {"grad_bias", "N", ONEPASS_WRITTEN, 0}},
};

static const onep_argument prepare_arguments[] = {
    {.info = {"weight", "NK", ONEPASS_READ, 1}, .type = ONEP_ONLY_F32, .flags = ONEP_SIZES | ONEP_PROMOTES},
};

static onepass_status solve(onep_call *call);
static onepass_status solve_backward(onep_call *call);
static onepass_status solve_prepare(onep_call *call);

ONEP_DECLARE_KERNELS(onep_linear);
ONEP_DECLARE_KERNELS(onep_linear_backward);
ONEP_DECLARE_KERNELS(onep_prepare_weight);

const onep_operator onep_linear = {
    .name = "linear",
    .arguments = forward_arguments,
    .argument_count = FORWARD_ARGUMENTS,
    .workspace = "workspace",
    .solve = solve,
    .kernels = ONEP_KERNELS(onep_linear),
};

const onep_operator onep_linear_backward = {
    .name = "linear_backward",
    .arguments = backward_arguments,
    .argument_count = BACKWARD_ARGUMENTS,
    .workspace = "workspace",
    .solve = solve_backward,
    .kernels = ONEP_KERNELS(onep_linear_backward),
};

/* What it makes is its workspace: opaque bytes that the caller keeps. */
const onep_operator onep_prepare_weight = {
    .name = "prepare_weight",
    .arguments = prepare_arguments,
    .argument_count = 1,
    .workspace = "prepared",
    .workspace_is_kept = 1,
    .solve = solve_prepare,
    .kernels = {ONEP_CUDA_KERNELS(onep_prepare_weight)},
};

/* ---- prepared weights -------------------------------------------------------------------------------------------- */

/* True of handles that multiply fp32 with ONEPASS_FP32_SPLIT, or choose it where it is faster. */
static int can_use_prepared(const onepass_handle *handle)
{
    return onep_prepare_weight.kernels[handle->level] &&
           (handle->fp32_products == ONEPASS_FP32_SPLIT || handle->fp32_products == ONEPASS_FP32_FULL);
}

onepass_tensor onep_prepared_tensor(onepass_handle *handle, const onepass_tensor *weight, const void *prepared,
                                    int64_t *bytes)
{
    size_t size = 0;
    if (handle && weight && onepass_prepare_weight_size(handle, weight, &size) != ONEPASS_OK)
        size = 0; /* why not, the check of the call says */
    *bytes = (int64_t)size;
    return (onepass_tensor){.data = (void *)(uintptr_t)prepared,
                            .device = handle ? handle->device : (onepass_device){0, 0},
                            .ndim = 1,
                            .dtype = ONEPASS_U8,
                            .shape = bytes};
}

onepass_status onep_prepared_check(const onep_call *call, int prepared, int weight)
{
    const onepass_tensor *t = call->tensors[prepared], *of = call->tensors[weight];
    const char *name = call->op->arguments[prepared].info.name;
    if (!t)
        return ONEPASS_OK;
    const void *address = (const char *)t->data + t->byte_offset;
    if (!can_use_prepared(call->handle))
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: %p; it is for handles of a CUDA device whose config.fp32_products is "
                         "ONEPASS_FP32_SPLIT or ONEPASS_FP32_FULL",
                         call->name, name, address);
    if (onep_type_of(of->dtype) != ONEP_F32)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: given with a weight of dtype %s; it must be float32",
                         call->name, name, onep_type_name(onep_type_of(of->dtype)));
    if ((uintptr_t)address % ONEP_WORKSPACE_ALIGNMENT != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: %p; it must be a multiple of %d", call->name, name, address,
                         (int)ONEP_WORKSPACE_ALIGNMENT);
    if (t->strides && t->shape[0] > 1 && t->strides[0] != 1)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: stride %lld; it must be contiguous", call->name, name,
                         (long long)t->strides[0]);
    size_t needed;
    onepass_status status = onepass_prepare_weight_size(call->handle, of, &needed);
    if (status == ONEPASS_OK && (size_t)t->shape[0] < needed)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: %lld bytes; a weight of this shape needs %zu", call->name,
                         name, (long long)t->shape[0], needed);
    return status;
}

static onepass_status solve_prepare(onep_call *call)
{
    const onepass_tensor *weight = call->tensors[0];
    if (!can_use_prepared(call->handle))
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: handle: only one of a CUDA device whose config.fp32_products is ONEPASS_FP32_SPLIT or "
                         "ONEPASS_FP32_FULL uses prepared weights",
                         call->name);
    onep_prepare_weight_problem problem = {
        .weight_rows = onep_rows_of(weight),
        .depth = onep_extent(call, 'K'),
        .weight = onep_call_operand(call, 0),
    };
    return onep_execute(call, &problem);
}

/* ---- problems ---------------------------------------------------------------------------------------------------- */

static onepass_status solve(onep_call *call)
{
    onepass_status status = onep_prepared_check(call, PREPARED, WEIGHT);
    if (status != ONEPASS_OK)
        return status;
    onep_linear_problem problem = {
        .rows = onep_rows_of(call->tensors[INPUT]),
        .weight_rows = onep_rows_of(call->tensors[WEIGHT]),
        .depth = onep_extent(call, 'K'),
        .columns = onep_extent(call, 'N'),
        .input = onep_call_operand(call, INPUT),
        .weight = onep_call_operand(call, WEIGHT),
        .prepared = onep_call_operand(call, PREPARED).data,
        .bias = onep_call_operand(call, BIAS),
        .output = onep_call_operand(call, OUTPUT),
    };
    return onep_execute(call, &problem);
}

static onepass_status solve_backward(onep_call *call)
{
    onep_linear_backward_problem problem = {
        .rows = onep_rows_of(call->tensors[B_INPUT]),
        .weight_rows = onep_rows_of(call->tensors[B_WEIGHT]),
        .depth = onep_extent(call, 'K'),
        .columns = onep_extent(call, 'N'),
        .grad_output = onep_call_operand(call, GRAD_OUTPUT),
        .input = onep_call_operand(call, B_INPUT),
        .weight = onep_call_operand(call, B_WEIGHT),
        .grad_input = onep_call_operand(call, GRAD_INPUT),
        .grad_weight = onep_call_operand(call, GRAD_WEIGHT),
        .grad_bias = onep_call_operand(call, GRAD_BIAS),
    };
    return onep_execute(call, &problem);
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

onepass_status onepass_linear(onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
                              const onepass_tensor *bias, const onepass_tensor *output, void *workspace,
                              size_t workspace_size)
{
    onep_call call = {.op = &onep_linear,
                      .handle = handle,
                      .tensors = {[INPUT] = input, [WEIGHT] = weight, [BIAS] = bias, [OUTPUT] = output},
                      .workspace = workspace,
                      .workspace_size = workspace_size};
    return onep_call_run(&call);
}

onepass_status onepass_linear_prepared(onepass_handle *handle, const onepass_tensor *input,
                                       const onepass_tensor *weight, const void *prepared, const onepass_tensor *bias,
                                       const onepass_tensor *output, void *workspace, size_t workspace_size)
{
    int64_t bytes;
    onepass_tensor planes = onep_prepared_tensor(handle, weight, prepared, &bytes);
    onep_call call = {
        .op = &onep_linear,
        .name = "linear_prepared",
        .handle = handle,
        .tensors = {[INPUT] = input, [WEIGHT] = weight, [BIAS] = bias, [PREPARED] = &planes, [OUTPUT] = output},
        .workspace = workspace,
        .workspace_size = workspace_size};
    return prepared ? onep_call_run(&call) : onep_missing(call.name, "prepared");
}

onepass_status onepass_linear_backward(onepass_handle *handle, const onepass_tensor *grad_output,
                                       const onepass_tensor *input, const onepass_tensor *weight,
                                       const onepass_tensor *grad_input, const onepass_tensor *grad_weight,
                                       const onepass_tensor *grad_bias, void *workspace, size_t workspace_size)
{
    onep_call call = {.op = &onep_linear_backward,
                      .handle = handle,
                      .tensors = {[GRAD_OUTPUT] = grad_output,
                                  [B_INPUT] = input,
                                  [B_WEIGHT] = weight,
                                  [GRAD_INPUT] = grad_input,
                                  [GRAD_WEIGHT] = grad_weight,
                                  [GRAD_BIAS] = grad_bias},
                      .workspace = workspace,
                      .workspace_size = workspace_size};
    return onep_call_run(&call);
}

/* One size serves both directions: kernels plan for the larger of the two. */
onepass_status onepass_linear_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                             const onepass_tensor *weight, size_t *bytes)
{
    onep_call call = {.op = &onep_linear,
                      .name = "linear_workspace_size",
                      .handle = handle,
                      .tensors = {[INPUT] = input, [WEIGHT] = weight},
                      .bytes = bytes};
    return bytes ? onep_call_run(&call) : onep_missing(call.name, "bytes");
}

onepass_status onepass_prepare_weight_size(onepass_handle *handle, const onepass_tensor *weight, size_t *bytes)
{
    onep_call call = {.op = &onep_prepare_weight,
                      .name = "prepare_weight_size",
                      .handle = handle,
                      .tensors = {weight},
                      .bytes = bytes};
    return bytes ? onep_call_run(&call) : onep_missing(call.name, "bytes");
}

onepass_status onepass_prepare_weight(onepass_handle *handle, const onepass_tensor *weight, void *prepared,
                                      size_t prepared_size)
{
    onep_call call = {.op = &onep_prepare_weight,
                      .handle = handle,
                      .tensors = {weight},
                      .workspace = prepared,
                      .workspace_size = prepared_size};
    return handle && weight && !prepared ? onep_missing("prepare_weight", "prepared") : onep_call_run(&call);
}
