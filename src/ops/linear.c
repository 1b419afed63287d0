/* The door of the linear layer, forward and backward: every check, the problem, one call through the table. */
#include "arguments.h"
#include "head_cuda.h"
#include "status.h"

static size_t workspace_of(const onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight)
{
    if (handle->level == ONEP_REF)
        return 0;
    if (handle->cuda)
        return onep_linear_cuda_workspace(handle->cuda,
                                          &(onep_linear_problem){
                                              .rows = onep_rows_of(input),
                                              .depth = onep_columns(input),
                                              .columns = weight->shape[0],
                                              .input = onep_operand_of(input, ONEP_PER_ELEMENT, input),
                                              .weight = onep_operand_of(weight, ONEP_PER_ELEMENT, weight),
                                          },
                                          onep_math_of(handle));
    return onep_linear_workspace_cpu(onep_rows_of(input).count, onep_columns(input), weight->shape[0],
                                     onep_computed(onep_promoted(input, weight)), handle->threads);
}

static onepass_status finish(const onepass_handle *handle, onepass_status status)
{
    if (status == ONEPASS_OK && handle->progress)
        handle->progress(handle->progress_context, 1);
    return status;
}

/* Both forward calls. */
static onepass_status forward(const char *op, onepass_handle *handle, const onepass_tensor *input,
                              const onepass_tensor *weight, const void *prepared, const onepass_tensor *bias,
                              const onepass_tensor *output, void *workspace, size_t workspace_size)
{
    onepass_status status = onep_check_input_weight(op, handle, input, weight, 0);
    if (status != ONEPASS_OK)
        return status;
    if (!output)
        return onep_missing(op, "output");
    int64_t columns = weight->shape[0];
    onep_type promoted = onep_promoted(input, weight);
    enum { INPUT, WEIGHT, BIAS, OUTPUT, ARGUMENTS };
    onep_argument arguments[ARGUMENTS] = {
        [INPUT] = {"input", input, .leading = input, .rank = 1, .extent = {onep_columns(input)}},
        [WEIGHT] = {"weight", weight, .rank = 2, .extent = {columns, onep_columns(input)}},
        [BIAS] = {"bias", bias, .rank = 1, .extent = {columns}},
        [OUTPUT] = {"output", output, 1, ONEP_HOLDS_TYPE, promoted, .leading = input, .rank = 1, .extent = {columns}},
    };
    status = onep_arguments_check(op, handle, arguments, ARGUMENTS);
    if (status == ONEPASS_OK)
        status = onep_prepared_check(op, "prepared", handle, weight, prepared);
    if (status == ONEPASS_OK)
        status = onep_workspace_check(op, handle, arguments, ARGUMENTS, workspace, workspace_size,
                                      workspace_of(handle, input, weight));
    if (status != ONEPASS_OK)
        return status;
    onep_linear_problem problem = {
        .rows = onep_rows_of(input),
        .weight_rows = onep_rows_of(weight),
        .depth = onep_columns(input),
        .columns = columns,
        .input = onep_operand_of(input, ONEP_PER_ELEMENT, input),
        .weight = onep_operand_of(weight, ONEP_PER_ELEMENT, weight),
        .prepared = prepared,
        .bias = onep_feature_operand(bias),
        .output = onep_operand_of(output, ONEP_PER_ELEMENT, output),
        .workspace = workspace,
    };
    if (problem.rows.count == 0 || columns == 0)
        return finish(handle, ONEPASS_OK);
    return finish(handle, handle->kernels->linear[promoted](handle, &problem));
}

onepass_status onepass_linear(onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
                              const onepass_tensor *bias, const onepass_tensor *output, void *workspace,
                              size_t workspace_size)
{
    return forward("linear", handle, input, weight, NULL, bias, output, workspace, workspace_size);
}

onepass_status onepass_linear_prepared(onepass_handle *handle, const onepass_tensor *input,
                                       const onepass_tensor *weight, const void *prepared, const onepass_tensor *bias,
                                       const onepass_tensor *output, void *workspace, size_t workspace_size)
{
    if (!prepared)
        return onep_missing("linear_prepared", "prepared");
    return forward("linear_prepared", handle, input, weight, prepared, bias, output, workspace, workspace_size);
}

onepass_status onepass_linear_backward(onepass_handle *handle, const onepass_tensor *grad_output,
                                       const onepass_tensor *input, const onepass_tensor *weight,
                                       const onepass_tensor *grad_input, const onepass_tensor *grad_weight,
                                       const onepass_tensor *grad_bias, void *workspace, size_t workspace_size)
{
    const char *op = "linear_backward";
    onepass_status status = onep_check_input_weight(op, handle, input, weight, 0);
    if (status != ONEPASS_OK)
        return status;
    if (!grad_output)
        return onep_missing(op, "grad_output");
    if (!grad_input && !grad_weight && !grad_bias)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: grad_input, grad_weight, grad_bias: all NULL; ask for at least one gradient", op);
    int64_t depth = onep_columns(input), columns = weight->shape[0];
    enum { GRAD_OUTPUT, INPUT, WEIGHT, GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS, ARGUMENTS };
    onep_type input_type = onep_type_of(input->dtype), weight_type = onep_type_of(weight->dtype);
    onep_argument arguments[ARGUMENTS] = {
        [GRAD_OUTPUT] = {"grad_output", grad_output, .leading = input, .rank = 1, .extent = {columns}},
        [INPUT] = {"input", input, .leading = input, .rank = 1, .extent = {depth}},
        [WEIGHT] = {"weight", weight, .rank = 2, .extent = {columns, depth}},
        [GRAD_INPUT] = {"grad_input", grad_input, 1, ONEP_SAME_TYPE, input_type, .leading = input, .rank = 1,
                        .extent = {depth}},
        [GRAD_WEIGHT] = {"grad_weight", grad_weight, 1, ONEP_SAME_TYPE, weight_type, .rank = 2,
                         .extent = {columns, depth}},
        [GRAD_BIAS] = {"grad_bias", grad_bias, 1, .rank = 1, .extent = {columns}},
    };
    status = onep_arguments_check(op, handle, arguments, ARGUMENTS);
    if (status == ONEPASS_OK)
        status = onep_workspace_check(op, handle, arguments, ARGUMENTS, workspace, workspace_size,
                                      workspace_of(handle, input, weight));
    if (status != ONEPASS_OK)
        return status;
    onep_linear_backward_problem problem = {
        .rows = onep_rows_of(input),
        .weight_rows = onep_rows_of(weight),
        .depth = depth,
        .columns = columns,
        .grad_output = onep_operand_of(grad_output, ONEP_PER_ELEMENT, grad_output),
        .input = onep_operand_of(input, ONEP_PER_ELEMENT, input),
        .weight = onep_operand_of(weight, ONEP_PER_ELEMENT, weight),
        .grad_input = onep_operand_of(grad_input, ONEP_PER_ELEMENT, grad_input),
        .grad_weight = onep_operand_of(grad_weight, ONEP_PER_ELEMENT, grad_weight),
        .grad_bias = onep_feature_operand(grad_bias),
        .workspace = workspace,
    };
    return finish(handle, handle->kernels->linear_backward[onep_promoted(input, weight)](handle, &problem));
}

onepass_status onepass_linear_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                             const onepass_tensor *weight, size_t *bytes)
{
    const char *op = "linear_workspace_size";
    onepass_status status = onep_check_input_weight(op, handle, input, weight, 0);
    if (status != ONEPASS_OK)
        return status;
    if (!bytes)
        return onep_missing(op, "bytes");
    *bytes = workspace_of(handle, input, weight);
    return ONEPASS_OK;
}

/* ---- prepared weights -------------------------------------------------------------------------------------------- */

/* A weight that can be prepared, on a handle that can use it; `prepared` only stands for one. */
static onepass_status check_weight(const char *op, const onepass_handle *handle, const onepass_tensor *weight)
{
    onep_argument argument = {"weight", weight, .rank = 2};
    if (!handle)
        return onep_missing(op, "handle");
    if (!weight)
        return onep_missing(op, "weight");
    if (weight->ndim == 2 && weight->shape) {
        argument.extent[0] = weight->shape[0];
        argument.extent[1] = weight->shape[1];
    }
    if (!onep_can_use_prepared(handle))
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: handle: only one of a CUDA device whose config.fp32_products is ONEPASS_FP32_SPLIT or "
                         "ONEPASS_FP32_FULL uses prepared weights",
                         op);
    onepass_status status = onep_arguments_check(op, handle, &argument, 1);
    if (status == ONEPASS_OK && onep_type_of(weight->dtype) != ONEP_F32)
        status = onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: weight: of type %s; it must be fp32", op,
                           onep_type_name(onep_type_of(weight->dtype)));
    return status;
}

onepass_status onepass_prepare_weight_size(onepass_handle *handle, const onepass_tensor *weight, size_t *bytes)
{
    const char *op = "prepare_weight_size";
    onepass_status status = check_weight(op, handle, weight);
    if (status != ONEPASS_OK)
        return status;
    if (!bytes)
        return onep_missing(op, "bytes");
    *bytes = onep_weight_cuda_bytes(weight->shape[0], weight->shape[1]);
    return ONEPASS_OK;
}

onepass_status onepass_prepare_weight(onepass_handle *handle, const onepass_tensor *weight, void *prepared,
                                      size_t prepared_size)
{
    const char *op = "prepare_weight";
    onepass_status status = check_weight(op, handle, weight);
    if (status != ONEPASS_OK)
        return status;
    if (!prepared)
        return onep_missing(op, "prepared");
    status = onep_prepared_check(op, "prepared", handle, weight, prepared);
    if (status != ONEPASS_OK)
        return status;
    size_t needed = onep_weight_cuda_bytes(weight->shape[0], weight->shape[1]);
    if (prepared_size < needed)
        return onep_fail(ONEPASS_WORKSPACE, "%s: prepared: %zu bytes; %zu are needed, see onepass_prepare_weight_size",
                         op, prepared_size, needed);
    if (weight->shape[0] == 0 || weight->shape[1] == 0)
        return ONEPASS_OK;
    onep_operand operand = onep_operand_of(weight, ONEP_PER_ELEMENT, weight);
    return finish(handle,
                  onep_weight_cuda_prepare(handle->cuda, &operand, weight->shape[0], weight->shape[1], prepared));
}
