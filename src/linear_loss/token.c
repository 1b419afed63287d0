/*
 * The entry points of token log-probabilities from hidden states, forward and backward: their descriptions, and the
 * problem their kernels compute.
 */
#include "core/status.h"
#include "linear_loss/describe.h"
#include "logits/describe_token.h"

/* ---- the descriptions -------------------------------------------------------------------------------------------- */

/* Those of token log-probabilities, with hidden states in the place of logits, and more. */
enum {
    INPUT = LOGITS,
    GRAD_INPUT = GRAD_LOGITS,
    FORWARD_WEIGHT = FORWARD_ARGUMENTS,
    FORWARD_BIAS,
    ALL_FORWARD_ARGUMENTS,

    WEIGHT = BACKWARD_ARGUMENTS,
    BIAS,
    GRAD_WEIGHT,
    GRAD_BIAS,
    ALL_BACKWARD_ARGUMENTS
};
enum { CHUNK_BYTES = TOKEN_OPTION_COUNT, OPTIONS };

/* clang-format off */
#define LINEAR_ARGUMENTS(weight, bias)                                                                                 \
    [INPUT] = {.info = {"input", "*D", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},                         \
    [weight] = {.info = {"weight", "CD", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},                       \
    [bias] = {.info = {"bias", "C", ONEPASS_READ, 0}}
/* clang-format on */

static const onep_argument forward_arguments[ALL_FORWARD_ARGUMENTS] = {
    LINEAR_ARGUMENTS(FORWARD_WEIGHT, FORWARD_BIAS),
    TOKEN_ARGUMENTS,
    TOKEN_RESULTS,
};

static const onep_argument backward_arguments[ALL_BACKWARD_ARGUMENTS] = {
    LINEAR_ARGUMENTS(WEIGHT, BIAS),
    TOKEN_ARGUMENTS,
    TOKEN_UPSTREAM,
    [GRAD_INPUT] = {.info = {"grad_input", "*D", ONEPASS_WRITTEN, 0}},
    [GRAD_WEIGHT] = {.info = {"grad_weight", "CD", ONEPASS_WRITTEN, 0}},
    [GRAD_BIAS] = {.info = {"grad_bias", "C", ONEPASS_WRITTEN, 0}},
};

static const onep_option options[OPTIONS] = {
    TOKEN_OPTIONS,
    [CHUNK_BYTES] = {.info = {"options.chunk_bytes", 0}},
};

static onepass_status solve(onep_call *call);

ONEP_DECLARE_KERNELS(onep_linear_loss);

const onep_operator onep_linear_token_log_probs = {
    .name = "linear_token_log_probs",
    .arguments = forward_arguments,
    .argument_count = ALL_FORWARD_ARGUMENTS,
    .options = options,
    .option_count = OPTIONS,
    .workspace = "options.workspace",
    .variant = FORWARD,
    .solve = solve,
    .kernels = ONEP_KERNELS(onep_linear_loss),
};

const onep_operator onep_linear_token_log_probs_backward = {
    .name = "linear_token_log_probs_backward",
    .arguments = backward_arguments,
    .argument_count = ALL_BACKWARD_ARGUMENTS,
    .options = options,
    .option_count = OPTIONS,
    .workspace = "options.workspace",
    .variant = BACKWARD,
    .solve = solve,
    .kernels = ONEP_KERNELS(onep_linear_loss),
};

/* ---- the problem ------------------------------------------------------------------------------------------------- */

static onepass_status solve(onep_call *call)
{
    int is_backward = call->op->variant == BACKWARD;
    int64_t chunk_bytes = onep_linear_loss_chunk_bytes(call->options[CHUNK_BYTES]);
    if (chunk_bytes < 0)
        return onep_refuse_option(call, CHUNK_BYTES, ONEP_CHUNK_BYTES_RULE);
    onep_token_problem token;
    onepass_status status = onep_token_problem_of(call, &token);
    if (status != ONEPASS_OK)
        return status;
    onep_linear_loss_problem problem = {
        .token = &token,
        .rows = token.rows,
        .width = token.width,
        .student = onep_linear_side_of(call, INPUT, is_backward ? WEIGHT : FORWARD_WEIGHT,
                                       is_backward ? BIAS : FORWARD_BIAS, 'D'),
        .chunk_bytes = chunk_bytes,
    };
    if (is_backward) {
        problem.grad_input = onep_call_operand(call, GRAD_INPUT);
        problem.grad_weight = onep_call_operand(call, GRAD_WEIGHT);
        problem.grad_bias = onep_call_operand(call, GRAD_BIAS);
    }
    const onep_operand absent = {.data = NULL};
    token.logits = token.grad_logits = absent;
    return onep_execute(call, &problem);
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

static onepass_status run(onep_call *call, const onepass_token_options *given)
{
    call->name = call->op->name;
    onepass_status status = onep_token_read_options(call, given, &call->options[CHUNK_BYTES]);
    return status == ONEPASS_OK ? onep_call_run(call) : status;
}

onepass_status onepass_linear_token_log_probs(onepass_handle *handle, const onepass_tensor *input,
                                              const onepass_tensor *weight, const onepass_tensor *bias,
                                              const onepass_tensor *indices, const onepass_token_options *given,
                                              const onepass_tensor *log_prob, const onepass_tensor *entropy,
                                              const onepass_tensor *lse)
{
    onep_call call = {.op = &onep_linear_token_log_probs,
                      .handle = handle,
                      .tensors = {[INPUT] = input,
                                  [FORWARD_WEIGHT] = weight,
                                  [FORWARD_BIAS] = bias,
                                  [INDICES] = indices,
                                  [LOG_PROB] = log_prob,
                                  [ENTROPY] = entropy,
                                  [LSE] = lse}};
    return run(&call, given);
}

onepass_status onepass_linear_token_log_probs_backward(
    onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight, const onepass_tensor *bias,
    const onepass_tensor *indices, const onepass_tensor *grad_log_prob, const onepass_tensor *grad_entropy,
    const onepass_tensor *grad_lse, const onepass_token_options *given, const onepass_tensor *grad_input,
    const onepass_tensor *grad_weight, const onepass_tensor *grad_bias)
{
    onep_call call = {.op = &onep_linear_token_log_probs_backward,
                      .handle = handle,
                      .tensors = {[INPUT] = input,
                                  [WEIGHT] = weight,
                                  [BIAS] = bias,
                                  [INDICES] = indices,
                                  [LOG_PROB] = grad_log_prob,
                                  [ENTROPY] = grad_entropy,
                                  [LSE] = grad_lse,
                                  [GRAD_INPUT] = grad_input,
                                  [GRAD_WEIGHT] = grad_weight,
                                  [GRAD_BIAS] = grad_bias}};
    return run(&call, given);
}

onepass_status onepass_linear_token_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                   const onepass_tensor *weight, const onepass_token_options *given,
                                                   const onepass_tensor *grad_weight, size_t *bytes)
{
    onep_call call = {.op = &onep_linear_token_log_probs_backward,
                      .name = "linear_token_workspace_size",
                      .handle = handle,
                      .tensors = {[INPUT] = input, [WEIGHT] = weight, [GRAD_WEIGHT] = grad_weight}};
    if (!bytes)
        return onep_missing(call.name, "bytes");
    onepass_status status = onep_token_read_options(&call, given, &call.options[CHUNK_BYTES]);
    if (status != ONEPASS_OK)
        return status;
    call.bytes = bytes;
    call.tensors[ROW_MASK] = NULL;
    return onep_call_run(&call);
}
