/*
 * The entry points of token log-probabilities, forward and backward: their descriptions, their own rules, and the
 * problem their kernels compute.
 */
#include <math.h>
#include <stddef.h>

#include "core/operator.h"
#include "core/status.h"
#include "core/versioned.h"
#include "logits/describe_token.h"
#include "logits/shard.h"

/* ---- the descriptions -------------------------------------------------------------------------------------------- */

#define LOGITS_ARGUMENT [LOGITS] = {.info = {"logits", "*C", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES}

#define GRAD_LOGITS_ARGUMENT                                                                                           \
    [GRAD_LOGITS] = {                                                                                                  \
        .info = {"grad_logits", "*C", ONEPASS_WRITTEN, 1}, .type = ONEP_LIKE, .like = LOGITS, .flags = ONEP_IN_PLACE}

static const onep_argument forward_arguments[FORWARD_ARGUMENTS] = {LOGITS_ARGUMENT, TOKEN_ARGUMENTS, TOKEN_RESULTS};

static const onep_argument backward_arguments[BACKWARD_ARGUMENTS] = {
    LOGITS_ARGUMENT,
    TOKEN_ARGUMENTS,
    TOKEN_UPSTREAM,
    GRAD_LOGITS_ARGUMENT,
};

/* Of a shard: what its calls have more. */
enum { FORWARD_STATISTICS = FORWARD_ARGUMENTS, BACKWARD_STATISTICS = BACKWARD_ARGUMENTS };
#define STATISTICS_ARGUMENT                                                                                            \
    {                                                                                                                  \
        .info = {"statistics", "*F", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64                                           \
    }

static const onep_argument shard_forward_arguments[FORWARD_STATISTICS + 1] = {
    LOGITS_ARGUMENT, TOKEN_ARGUMENTS, TOKEN_RESULTS, [FORWARD_STATISTICS] = STATISTICS_ARGUMENT};

static const onep_argument shard_backward_arguments[BACKWARD_STATISTICS + 1] = {
    LOGITS_ARGUMENT, TOKEN_ARGUMENTS, TOKEN_UPSTREAM, GRAD_LOGITS_ARGUMENT, [BACKWARD_STATISTICS] = STATISTICS_ARGUMENT,
};

static const onep_option options[TOKEN_SHARD_OPTION_COUNT] = {
    TOKEN_OPTIONS,
    [FIRST_COLUMN] = {.info = {"options.first_column", 0}},
    [TOTAL_COLUMNS] = {.info = {"options.total_columns", 0}},
};

static onepass_status solve(onep_call *call);

ONEP_DECLARE_KERNELS(onep_token);

const onep_operator onep_token_log_probs = {.name = "token_log_probs",
                                            .arguments = forward_arguments,
                                            .argument_count = FORWARD_ARGUMENTS,
                                            .options = options,
                                            .option_count = TOKEN_OPTION_COUNT,
                                            .workspace = "options.workspace",
                                            .variant = FORWARD,
                                            .solve = solve,
                                            .kernels = ONEP_KERNELS(onep_token)};

const onep_operator onep_token_log_probs_backward = {.name = "token_log_probs_backward",
                                                     .arguments = backward_arguments,
                                                     .argument_count = BACKWARD_ARGUMENTS,
                                                     .options = options,
                                                     .option_count = TOKEN_OPTION_COUNT,
                                                     .workspace = "options.workspace",
                                                     .variant = BACKWARD,
                                                     .solve = solve,
                                                     .kernels = ONEP_KERNELS(onep_token)};

const onep_operator onep_shard_token_log_probs = {.name = "shard_token_log_probs",
                                                  .arguments = shard_forward_arguments,
                                                  .argument_count = FORWARD_STATISTICS + 1,
                                                  .options = options,
                                                  .option_count = TOKEN_SHARD_OPTION_COUNT,
                                                  .workspace = "options.workspace",
                                                  .variant = SHARD_FORWARD,
                                                  .solve = solve,
                                                  .kernels = ONEP_CPU_KERNELS(onep_token)};

const onep_operator onep_shard_token_log_probs_backward = {.name = "shard_token_log_probs_backward",
                                                           .arguments = shard_backward_arguments,
                                                           .argument_count = BACKWARD_STATISTICS + 1,
                                                           .options = options,
                                                           .option_count = TOKEN_SHARD_OPTION_COUNT,
                                                           .workspace = "options.workspace",
                                                           .variant = SHARD_BACKWARD,
                                                           .solve = solve,
                                                           .kernels = ONEP_CPU_KERNELS(onep_token)};

/* ---- rules of their own ------------------------------------------------------------------------------------------ */

static onepass_status check(const onep_call *call)
{
    for (int i = TEMPERATURE; i <= SOFTCAP; i++)
        if (!(call->options[i] >= 0 && isfinite(call->options[i])))
            return onep_refuse_option(call, i, "finite and above 0, or 0 for its default");
    double columns = call->options[COLUMNS], ignored = call->options[IGNORE_INDEX];
    if (!(columns >= 0 && columns <= (double)onep_extent(call, 'C') && columns == floor(columns)))
        return onep_refuse_option(call, COLUMNS, "a whole number from 0 to the number of columns");
    if (!(fabs(ignored) < 0x1p62 && ignored == floor(ignored)))
        return onep_refuse_option(call, IGNORE_INDEX, "a whole number");
    if (call->options[HAS_IGNORE_INDEX] == 0 && ignored != 0)
        return onep_refuse_option(call, IGNORE_INDEX, "0 unless options.has_ignore_index is 1");
    if (call->tensors[LOG_PROB] && !call->tensors[INDICES] && !call->bytes)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: indices: NULL; %s needs them", call->name,
                         call->op->arguments[LOG_PROB].info.name);
    return ONEPASS_OK;
}

/* ---- the problem ------------------------------------------------------------------------------------------------- */

onepass_status onep_token_problem_of(const onep_call *call, onep_token_problem *made)
{
    onepass_status status = check(call);
    if (status != ONEPASS_OK)
        return status;
    double temperature = call->options[TEMPERATURE], columns = call->options[COLUMNS];
    *made = (onep_token_problem){
        .semantics = (onepass_semantics)call->options[SEMANTICS],
        .temperature = temperature != 0 ? temperature : 1,
        .softcap = call->options[SOFTCAP],
        .ignore_index = call->options[HAS_IGNORE_INDEX] != 0 ? (int64_t)call->options[IGNORE_INDEX] : -100,
        .rows = onep_rows_of(call->tensors[LOGITS]),
        .columns = columns != 0 ? (int64_t)columns : onep_extent(call, 'C'),
        .width = onep_extent(call, 'C'),
        .count = call->tensors[INDICES] ? onep_extent(call, 'K') : 0,
        .logits = onep_call_operand(call, LOGITS),
        .indices = onep_call_operand(call, INDICES),
        .mask = onep_call_operand(call, ROW_MASK),
    };
    made->total_columns = made->columns;
    if (call->op->variant == FORWARD || call->op->variant == SHARD_FORWARD) {
        made->log_prob = onep_call_operand(call, LOG_PROB);
        made->entropy = onep_call_operand(call, ENTROPY);
        made->lse = onep_call_operand(call, LSE);
    } else {
        made->grad_log_prob = onep_call_operand(call, LOG_PROB);
        made->grad_entropy = onep_call_operand(call, ENTROPY);
        made->grad_lse = onep_call_operand(call, LSE);
        made->grad_logits = onep_call_operand(call, GRAD_LOGITS);
    }
    return ONEPASS_OK;
}

static onepass_status solve(onep_call *call)
{
    onep_token_problem problem;
    onep_operand statistics;
    onepass_status status = onep_token_problem_of(call, &problem);
    int is_shard = call->op->variant >= SHARD_FORWARD;
    if (status == ONEPASS_OK && is_shard) {
        int argument = call->op->variant == SHARD_FORWARD ? (int)FORWARD_STATISTICS : (int)BACKWARD_STATISTICS;
        onep_shard_place place;
        status = onep_shard_place_of(call, COLUMNS, FIRST_COLUMN, problem.width, &place);
        if (status == ONEPASS_OK)
            status = onep_shard_check_statistics(call, argument, ONEP_SHARD_LABELS, problem.count, place.total);
        problem.columns = place.columns;
        problem.first_column = place.first;
        problem.total_columns = place.total;
        statistics = onep_call_operand(call, argument);
        problem.statistics = &statistics;
    }
    return status == ONEPASS_OK ? onep_execute(call, &problem) : status;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* onepass_token_options as first published: up to workspace_size. */
enum { FIRST_OPTIONS_SIZE = offsetof(onepass_token_options, workspace_size) + sizeof(size_t) };

onepass_status onep_token_read_options(onep_call *call, const onepass_token_options *given, double *chunk_bytes)
{
    static const onepass_token_options defaults = {.size = sizeof defaults};
    onepass_token_options o;
    onepass_status status =
        onep_read_versioned(call->name, "options", given ? given : &defaults, FIRST_OPTIONS_SIZE, &o, sizeof o);
    if (status != ONEPASS_OK)
        return status;
    if (chunk_bytes)
        *chunk_bytes = (double)o.chunk_bytes;
    else if (o.chunk_bytes != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.chunk_bytes: given; it is for hidden states",
                         call->name);
    if (call->op->variant >= SHARD_FORWARD) {
        call->options[FIRST_COLUMN] = (double)o.first_column;
        call->options[TOTAL_COLUMNS] = (double)o.total_columns;
    } else if (o.first_column != 0 || o.total_columns != 0) {
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.%s: given; it is for shards", call->name,
                         o.first_column != 0 ? "first_column" : "total_columns");
    }
    call->options[SEMANTICS] = (int)o.semantics;
    call->options[TEMPERATURE] = o.temperature;
    call->options[SOFTCAP] = o.softcap;
    call->options[COLUMNS] = (double)o.columns;
    call->options[HAS_IGNORE_INDEX] = o.has_ignore_index;
    call->options[IGNORE_INDEX] = (double)o.ignore_index;
    call->tensors[ROW_MASK] = o.row_mask;
    call->workspace = o.workspace;
    call->workspace_size = o.workspace_size;
    return ONEPASS_OK;
}

onepass_status onepass_token_log_probs(onepass_handle *handle, const onepass_tensor *logits,
                                       const onepass_tensor *indices, const onepass_token_options *given,
                                       const onepass_tensor *log_prob, const onepass_tensor *entropy,
                                       const onepass_tensor *lse)
{
    onep_call call = {
        .op = &onep_token_log_probs,
        .name = onep_token_log_probs.name,
        .handle = handle,
        .tensors = {[LOGITS] = logits, [INDICES] = indices, [LOG_PROB] = log_prob, [ENTROPY] = entropy, [LSE] = lse}};
    onepass_status status = onep_token_read_options(&call, given, NULL);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_token_log_probs_backward(onepass_handle *handle, const onepass_tensor *logits,
                                                const onepass_tensor *indices, const onepass_tensor *grad_log_prob,
                                                const onepass_tensor *grad_entropy, const onepass_tensor *grad_lse,
                                                const onepass_token_options *given, const onepass_tensor *grad_logits)
{
    onep_call call = {.op = &onep_token_log_probs_backward,
                      .name = onep_token_log_probs_backward.name,
                      .handle = handle,
                      .tensors = {[LOGITS] = logits,
                                  [INDICES] = indices,
                                  [LOG_PROB] = grad_log_prob,
                                  [ENTROPY] = grad_entropy,
                                  [LSE] = grad_lse,
                                  [GRAD_LOGITS] = grad_logits}};
    onepass_status status = onep_token_read_options(&call, given, NULL);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_shard_token_log_probs(onepass_handle *handle, const onepass_tensor *logits,
                                             const onepass_tensor *indices, const onepass_tensor *statistics,
                                             const onepass_token_options *given, const onepass_tensor *log_prob,
                                             const onepass_tensor *entropy, const onepass_tensor *lse)
{
    onep_call call = {.op = &onep_shard_token_log_probs,
                      .name = onep_shard_token_log_probs.name,
                      .handle = handle,
                      .tensors = {[LOGITS] = logits,
                                  [INDICES] = indices,
                                  [LOG_PROB] = log_prob,
                                  [ENTROPY] = entropy,
                                  [LSE] = lse,
                                  [FORWARD_STATISTICS] = statistics}};
    onepass_status status = onep_token_read_options(&call, given, NULL);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_shard_token_log_probs_backward(
    onepass_handle *handle, const onepass_tensor *logits, const onepass_tensor *indices,
    const onepass_tensor *statistics, const onepass_tensor *grad_log_prob, const onepass_tensor *grad_entropy,
    const onepass_tensor *grad_lse, const onepass_token_options *given, const onepass_tensor *grad_logits)
{
    onep_call call = {.op = &onep_shard_token_log_probs_backward,
                      .name = onep_shard_token_log_probs_backward.name,
                      .handle = handle,
                      .tensors = {[LOGITS] = logits,
                                  [INDICES] = indices,
                                  [LOG_PROB] = grad_log_prob,
                                  [ENTROPY] = grad_entropy,
                                  [LSE] = grad_lse,
                                  [GRAD_LOGITS] = grad_logits,
                                  [BACKWARD_STATISTICS] = statistics}};
    onepass_status status = onep_token_read_options(&call, given, NULL);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_token_workspace_size(onepass_handle *handle, const onepass_tensor *logits,
                                            const onepass_token_options *given, size_t *bytes)
{
    onep_call call = {.op = &onep_token_log_probs_backward,
                      .name = "token_workspace_size",
                      .handle = handle,
                      .tensors = {[LOGITS] = logits}};
    if (!bytes)
        return onep_missing(call.name, "bytes");
    onepass_status status = onep_token_read_options(&call, given, NULL);
    if (status != ONEPASS_OK)
        return status;
    call.bytes = bytes;
    call.tensors[ROW_MASK] = NULL;
    return onep_call_run(&call);
}
