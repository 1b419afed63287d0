/* call_execute of every_call.h: the arguments of each operator, by their names in the call. */
#include "every_call.h"

#include "kl_cases.h"

static onepass_status execute_loss(every_call *c, onepass_handle *handle)
{
    const onepass_tensor *predictions = call_named(c, "predictions"), *targets = call_named(c, "targets");
    const onepass_tensor *value = call_named(c, "value"), *to_predictions = call_named(c, "grad_predictions");
    const onepass_tensor *to_targets = call_named(c, "grad_targets");
    const onepass_tensor *logits = call_named(c, "logits"), *indices = call_named(c, "indices");
    const onepass_tensor *log_prob = call_named(c, "log_prob"), *entropy = call_named(c, "entropy"),
                         *lse = call_named(c, "lse");
    switch (c->kind.operator_id) {
    case CALL_DIVERGENCE_LOGITS:
        return onepass_divergence_logits_logits(handle, predictions, targets, &c->logits, value, to_predictions,
                                                to_targets);
    case CALL_DIVERGENCE_PROBS:
        return onepass_divergence_logits_probs(handle, predictions, targets, &c->logits, value, to_predictions,
                                               to_targets);
    case CALL_DIVERGENCE_LOG_PROBS:
        return onepass_divergence_logits_log_probs(handle, predictions, targets, &c->logits, value, to_predictions,
                                                   to_targets);
    case CALL_DIVERGENCE_TOP_K:
        return onepass_divergence_logits_top_k(handle, predictions, call_named(c, "top_values"),
                                               call_named(c, "top_indices"), &c->logits, value, to_predictions);
    case CALL_CROSS_ENTROPY:
        return onepass_cross_entropy_logits_labels(handle, predictions, call_named(c, "labels"), &c->logits, value,
                                                   to_predictions);
    case CALL_TOKEN:
        return onepass_token_log_probs(handle, logits, indices, &c->token, log_prob, entropy, lse);
    default:
        return onepass_token_log_probs_backward(handle, logits, indices, log_prob, entropy, lse, &c->token,
                                                call_named(c, "grad_logits"));
    }
}

static onepass_status execute_shard(every_call *c, onepass_handle *handle)
{
    const onepass_tensor *predictions = call_named(c, "predictions"), *targets = call_named(c, "targets");
    const onepass_tensor *logits = call_named(c, "logits"), *indices = call_named(c, "indices");
    const onepass_tensor *log_prob = call_named(c, "log_prob"), *entropy = call_named(c, "entropy"),
                         *lse = call_named(c, "lse");
    const onepass_tensor *statistics = call_named(c, "statistics"), *gathered = call_named(c, "gathered");
    switch (c->kind.operator_id) {
    case CALL_SHARD_STATES:
        return onepass_shard_states(handle, predictions, targets, indices, &c->logits, call_named(c, "states"));
    case CALL_SHARD_MERGE:
        return onepass_shard_merge(handle, gathered, call_named(c, "merged"));
    case CALL_SHARD_SUMS:
        return onepass_shard_sums(handle, predictions, targets, statistics, &c->logits, call_named(c, "sums"));
    case CALL_SHARD_MERGE_SUMS:
        return onepass_shard_merge_sums(handle, statistics, gathered, call_named(c, "merged"));
    case CALL_SHARD_LOSS:
        return onepass_shard_loss(handle, predictions, targets, statistics, &c->logits, call_named(c, "value"),
                                  call_named(c, "grad_predictions"), call_named(c, "grad_targets"));
    case CALL_SHARD_TOKEN:
        return onepass_shard_token_log_probs(handle, logits, indices, statistics, &c->token, log_prob, entropy, lse);
    default:
        return onepass_shard_token_log_probs_backward(handle, logits, indices, statistics, log_prob, entropy, lse,
                                                      &c->token, call_named(c, "grad_logits"));
    }
}

onepass_status call_execute(every_call *c, onepass_handle *handle, void *workspace, size_t bytes)
{
    const onepass_tensor *input = call_named(c, "input"), *weight = call_named(c, "weight"),
                         *output = call_named(c, "output");
    c->kl.workspace = c->head.workspace = c->logits.workspace = c->token.workspace = workspace;
    c->kl.workspace_size = c->head.workspace_size = c->logits.workspace_size = c->token.workspace_size = bytes;
    if (c->kind.operator_id >= CALL_SHARD_STATES && c->kind.operator_id <= CALL_SHARD_TOKEN_BACKWARD)
        return execute_shard(c, handle);
    if (call_is_from_logits(c->kind.operator_id))
        return execute_loss(c, handle);
    switch (c->kind.operator_id) {
    case CALL_LINEAR:
        return onepass_linear(handle, input, weight, call_named(c, "bias"), output, workspace, bytes);
    case CALL_LINEAR_BACKWARD:
        return onepass_linear_backward(handle, call_named(c, "grad_output"), input, weight, call_named(c, "grad_input"),
                                       call_named(c, "grad_weight"), call_named(c, "grad_bias"), workspace, bytes);
    case CALL_LINEAR_CROSS_ENTROPY:
        return onepass_linear_cross_entropy(handle, input, weight, call_named(c, "bias"), call_named(c, "labels"),
                                            &c->logits, call_named(c, "value"), call_named(c, "grad_input"),
                                            call_named(c, "grad_weight"), call_named(c, "grad_bias"));
    case CALL_LINEAR_DIVERGENCE:
        return onepass_linear_divergence(handle, input, weight, call_named(c, "bias"), call_named(c, "target_input"),
                                         call_named(c, "target_weight"), call_named(c, "target_bias"), &c->logits,
                                         call_named(c, "value"), call_named(c, "grad_input"),
                                         call_named(c, "grad_weight"), call_named(c, "grad_bias"));
    case CALL_LINEAR_TOKEN:
        return onepass_linear_token_log_probs(handle, input, weight, call_named(c, "bias"), call_named(c, "indices"),
                                              &c->token, call_named(c, "log_prob"), call_named(c, "entropy"),
                                              call_named(c, "lse"));
    case CALL_LINEAR_TOKEN_BACKWARD:
        return onepass_linear_token_log_probs_backward(
            handle, input, weight, call_named(c, "bias"), call_named(c, "indices"), call_named(c, "log_prob"),
            call_named(c, "entropy"), call_named(c, "lse"), &c->token, call_named(c, "grad_input"),
            call_named(c, "grad_weight"), call_named(c, "grad_bias"));
    case CALL_HEAD:
        return onepass_head(handle, input, weight, &c->head, output, call_named(c, "product"), call_named(c, "mean"),
                            call_named(c, "rstd"));
    case CALL_HEAD_BACKWARD:
        return onepass_head_backward(handle, call_named(c, "grad_output"), output, input, weight,
                                     call_named(c, "product"), call_named(c, "mean"), call_named(c, "rstd"), &c->head,
                                     &c->gradients);
    default:
        return kl_entry_of((onep_kl_form)(c->kind.operator_id - CALL_KL_PROBS_PROBS))(
            handle, call_named(c, "predictions"), call_named(c, "targets"), &c->kl, call_named(c, "value"),
            call_named(c, "grad_predictions"), call_named(c, "grad_targets"));
    }
}
