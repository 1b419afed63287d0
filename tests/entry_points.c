/* See entry_points.h. */
#include "entry_points.h"

#include <stdlib.h>
#include <string.h>

#include "cases/head.h"
#include "cases/kl.h"
#include "cases/linear.h"
#include "cases/linear_loss.h"
#include "cases/logits.h"

/* ---- KL divergence ----------------------------------------------------------------------------------------------- */

static onepass_kl_options kl_options(const onepass_tensor *const *t, const double *options)
{
    return (onepass_kl_options){.size = sizeof(onepass_kl_options),
                                .reduction = (onepass_reduction)(int)options[KL_REDUCTION],
                                .semantics = (onepass_semantics)(int)options[KL_SEMANTICS],
                                .divisor = options[KL_DIVISOR],
                                .row_weights = t[KL_WEIGHTS],
                                .row_mask = t[KL_MASK],
                                .grad_value = t[KL_UPSTREAM],
                                .grad_made_for = t[KL_MADE_FOR]};
}

onepass_status entry_point_kl(kl_entry *entry, onepass_handle *handle, const onepass_tensor *const *t,
                              const double *options, void *workspace, size_t workspace_size)
{
    onepass_kl_options o = kl_options(t, options);
    o.workspace = workspace;
    o.workspace_size = workspace_size;
    return entry(handle, t[KL_PREDICTIONS], t[KL_TARGETS], &o, t[KL_VALUE], t[KL_GRAD_PREDICTIONS], t[KL_GRAD_TARGETS]);
}

/* ---- losses from logits ------------------------------------------------------------------------------------------ */

typedef onepass_status divergence_entry(onepass_handle *handle, const onepass_tensor *predictions,
                                        const onepass_tensor *targets, const onepass_logits_options *options,
                                        const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                        const onepass_tensor *grad_targets);

static const struct {
    const char *name;
    divergence_entry *entry;
} divergence_entries[] = {
    {"divergence_logits_logits", onepass_divergence_logits_logits},
    {"divergence_logits_probs", onepass_divergence_logits_probs},
    {"divergence_logits_log_probs", onepass_divergence_logits_log_probs},
};

static divergence_entry *divergence_entry_named(const char *name)
{
    for (size_t i = 0; i < sizeof divergence_entries / sizeof divergence_entries[0]; i++)
        if (strcmp(divergence_entries[i].name, name) == 0)
            return divergence_entries[i].entry;
    return NULL;
}

/* What cross-entropy has too; the rest of a divergence's options if it is one. */
enum { NO_DIVERGENCE, DIVERGENCE, TOP_K };

/* What shards have more. */
enum { SHARD_STATISTICS = LOGITS_ARGUMENTS, SHARD_FIRST_COLUMN = LOGITS_OPTIONS, SHARD_TOTAL_COLUMNS };
enum { SHARD_TOKEN_FIRST_COLUMN = TOKEN_IGNORE_INDEX + 1, SHARD_TOKEN_TOTAL_COLUMNS };

static onepass_logits_options logits_options(const onepass_tensor *const *t, const double *options, int kind,
                                             void *workspace, size_t workspace_size)
{
    onepass_logits_options o = {.size = sizeof o,
                                .reduction = (onepass_reduction)(int)options[LOGITS_REDUCTION],
                                .semantics = (onepass_semantics)(int)options[LOGITS_SEMANTICS],
                                .divisor = options[LOGITS_DIVISOR],
                                .divisor_tensor = t[LOGITS_DIVISOR_TENSOR],
                                .temperature = options[LOGITS_TEMPERATURE],
                                .softcap = options[LOGITS_SOFTCAP],
                                .columns = (int64_t)options[LOGITS_COLUMNS],
                                .has_ignore_index = (int32_t)options[LOGITS_HAS_IGNORE_INDEX],
                                .ignore_index = (int64_t)options[LOGITS_IGNORE_INDEX],
                                .label_weight = options[LOGITS_LABEL_WEIGHT],
                                .label_smoothing = options[LOGITS_SMOOTHING],
                                .z_loss = options[LOGITS_Z_LOSS],
                                .entropy_bonus = options[LOGITS_ENTROPY_BONUS],
                                .class_weights = t[LOGITS_CLASS_WEIGHTS],
                                .row_weights = t[LOGITS_WEIGHTS],
                                .row_mask = t[LOGITS_MASK],
                                .grad_value = t[LOGITS_UPSTREAM],
                                .grad_made_for = t[LOGITS_MADE_FOR],
                                .lse = t[LOGITS_LSE],
                                .entropy = t[LOGITS_ENTROPY],
                                .log_prob = t[LOGITS_LOG_PROB],
                                .argmax = t[LOGITS_ARGMAX],
                                .workspace = workspace,
                                .workspace_size = workspace_size};
    if (kind != NO_DIVERGENCE) {
        o.labels = t[LOGITS_LABELS];
        o.divergence = (onepass_divergence)(int)options[LOGITS_DIVERGENCE];
        o.mixture = options[LOGITS_MIXTURE];
        o.divergence_weight = options[LOGITS_DIVERGENCE_WEIGHT];
        o.target_temperature = options[LOGITS_TARGET_TEMPERATURE];
        o.label_temperature = options[LOGITS_LABEL_TEMPERATURE];
        o.target_softcap = options[LOGITS_TARGET_SOFTCAP];
    }
    if (kind == DIVERGENCE) {
        o.target_lse = t[LOGITS_TARGET_LSE];
        o.target_entropy = t[LOGITS_TARGET_ENTROPY];
    } else if (kind == TOP_K) {
        o.top_values = (onepass_top_values)(int)options[LOGITS_TOP_FORM];
        o.outside = (onepass_outside)(int)options[LOGITS_OUTSIDE];
    }
    return o;
}

static onepass_token_options token_options(const onepass_tensor *const *t, const double *options, void *workspace,
                                           size_t workspace_size)
{
    return (onepass_token_options){.size = sizeof(onepass_token_options),
                                   .semantics = (onepass_semantics)(int)options[TOKEN_SEMANTICS],
                                   .temperature = options[TOKEN_TEMPERATURE],
                                   .softcap = options[TOKEN_SOFTCAP],
                                   .columns = (int64_t)options[TOKEN_COLUMNS],
                                   .has_ignore_index = (int32_t)options[TOKEN_HAS_IGNORE_INDEX],
                                   .ignore_index = (int64_t)options[TOKEN_IGNORE_INDEX],
                                   .row_mask = t[TOKEN_MASK],
                                   .workspace = workspace,
                                   .workspace_size = workspace_size};
}

static onepass_status token(int is_backward, onepass_handle *handle, const onepass_tensor *const *t,
                            const double *options, void *workspace, size_t workspace_size)
{
    onepass_token_options o = token_options(t, options, workspace, workspace_size);
    if (is_backward)
        return onepass_token_log_probs_backward(handle, t[TOKEN_LOGITS], t[TOKEN_INDICES], t[TOKEN_LOG_PROB],
                                                t[TOKEN_ENTROPY], t[TOKEN_LSE], &o, t[TOKEN_GRAD_LOGITS]);
    return onepass_token_log_probs(handle, t[TOKEN_LOGITS], t[TOKEN_INDICES], &o, t[TOKEN_LOG_PROB], t[TOKEN_ENTROPY],
                                   t[TOKEN_LSE]);
}

static onepass_status linear_token(int is_backward, onepass_handle *handle, const onepass_tensor *const *t,
                                   const double *options, void *workspace, size_t workspace_size)
{
    onepass_token_options o = token_options(t, options, workspace, workspace_size);
    o.chunk_bytes = (int64_t)options[LINEAR_TOKEN_CHUNK_BYTES];
    if (is_backward)
        return onepass_linear_token_log_probs_backward(handle, t[LINEAR_LOSS_INPUT], t[LINEAR_TOKEN_WEIGHT],
                                                       t[LINEAR_TOKEN_BIAS], t[TOKEN_INDICES], t[TOKEN_LOG_PROB],
                                                       t[TOKEN_ENTROPY], t[TOKEN_LSE], &o, t[LINEAR_TOKEN_GRAD_INPUT],
                                                       t[LINEAR_TOKEN_GRAD_WEIGHT], t[LINEAR_TOKEN_GRAD_BIAS]);
    return onepass_linear_token_log_probs(handle, t[LINEAR_LOSS_INPUT], t[LINEAR_TOKEN_FORWARD_WEIGHT],
                                          t[LINEAR_TOKEN_FORWARD_BIAS], t[TOKEN_INDICES], &o, t[TOKEN_LOG_PROB],
                                          t[TOKEN_ENTROPY], t[TOKEN_LSE]);
}

static onepass_status shard_loss(onepass_handle *handle, const onepass_tensor *const *t, const double *options)
{
    onepass_logits_options o = logits_options(t, options, DIVERGENCE, NULL, 0);
    o.first_column = (int64_t)options[SHARD_FIRST_COLUMN];
    o.total_columns = (int64_t)options[SHARD_TOTAL_COLUMNS];
    return onepass_shard_loss(handle, t[LOGITS_PREDICTIONS], t[LOGITS_TARGETS], t[SHARD_STATISTICS], &o,
                              t[LOGITS_VALUE], t[LOGITS_GRAD_PREDICTIONS], t[LOGITS_GRAD_TARGETS]);
}

static onepass_status shard_states(onepass_handle *handle, const onepass_tensor *const *t, const double *options)
{
    enum { PREDICTIONS, TARGETS, LABELS, INDICES, CLASS_WEIGHTS, MASK, STATES };
    const onepass_tensor *of_loss[SHARD_STATISTICS + 1] = {
        [LOGITS_LABELS] = t[LABELS], [LOGITS_CLASS_WEIGHTS] = t[CLASS_WEIGHTS], [LOGITS_MASK] = t[MASK]};
    onepass_logits_options o = logits_options(of_loss, options, DIVERGENCE, NULL, 0);
    o.first_column = (int64_t)options[SHARD_FIRST_COLUMN];
    o.total_columns = (int64_t)options[SHARD_TOTAL_COLUMNS];
    return onepass_shard_states(handle, t[PREDICTIONS], t[TARGETS], t[INDICES], &o, t[STATES]);
}

static onepass_status shard_sums(onepass_handle *handle, const onepass_tensor *const *t, const double *options)
{
    enum { PREDICTIONS, TARGETS, LABELS, MASK, STATISTICS, SUMS };
    const onepass_tensor *of_loss[SHARD_STATISTICS + 1] = {[LOGITS_LABELS] = t[LABELS], [LOGITS_MASK] = t[MASK]};
    onepass_logits_options o = logits_options(of_loss, options, DIVERGENCE, NULL, 0);
    o.first_column = (int64_t)options[SHARD_FIRST_COLUMN];
    o.total_columns = (int64_t)options[SHARD_TOTAL_COLUMNS];
    return onepass_shard_sums(handle, t[PREDICTIONS], t[TARGETS], t[STATISTICS], &o, t[SUMS]);
}

static onepass_status shard_token(int is_backward, onepass_handle *handle, const onepass_tensor *const *t,
                                  const double *options)
{
    onepass_token_options o = token_options(t, options, NULL, 0);
    o.first_column = (int64_t)options[SHARD_TOKEN_FIRST_COLUMN];
    o.total_columns = (int64_t)options[SHARD_TOKEN_TOTAL_COLUMNS];
    if (is_backward)
        return onepass_shard_token_log_probs_backward(handle, t[TOKEN_LOGITS], t[TOKEN_INDICES],
                                                      t[TOKEN_GRAD_LOGITS + 1], t[TOKEN_LOG_PROB], t[TOKEN_ENTROPY],
                                                      t[TOKEN_LSE], &o, t[TOKEN_GRAD_LOGITS]);
    return onepass_shard_token_log_probs(handle, t[TOKEN_LOGITS], t[TOKEN_INDICES], t[TOKEN_LSE + 1], &o,
                                         t[TOKEN_LOG_PROB], t[TOKEN_ENTROPY], t[TOKEN_LSE]);
}

/* ---- head -------------------------------------------------------------------------------------------------------- */

static onepass_head_options head_options(const onepass_tensor *const *t, const double *options, void *workspace,
                                         size_t workspace_size)
{
    return (onepass_head_options){.size = sizeof(onepass_head_options),
                                  .statistics = (onepass_statistics)(int)options[HEAD_STATISTICS],
                                  .cumulative = (int32_t)options[HEAD_CUMULATIVE],
                                  .eps = options[HEAD_EPS],
                                  .momentum = options[HEAD_MOMENTUM],
                                  .bias = t[HEAD_BIAS],
                                  .gamma = t[HEAD_GAMMA],
                                  .beta = t[HEAD_BETA],
                                  .scale = t[HEAD_SCALE],
                                  .running_mean = t[HEAD_RUNNING_MEAN],
                                  .running_var = t[HEAD_RUNNING_VAR],
                                  .batches_tracked = t[HEAD_COUNTER],
                                  .prepared_weight = t[HEAD_PREPARED] ? t[HEAD_PREPARED]->data : NULL,
                                  .workspace = workspace,
                                  .workspace_size = workspace_size};
}

static onepass_head_options backward_options(const onepass_tensor *const *t, const double *options, void *workspace,
                                             size_t workspace_size)
{
    return (onepass_head_options){.size = sizeof(onepass_head_options),
                                  .statistics = (onepass_statistics)(int)options[HEAD_STATISTICS],
                                  .cumulative = (int32_t)options[HEAD_CUMULATIVE],
                                  .bias = t[HEAD_B_BIAS],
                                  .gamma = t[HEAD_B_GAMMA],
                                  .beta = t[HEAD_B_BETA],
                                  .scale = t[HEAD_B_SCALE],
                                  .workspace = workspace,
                                  .workspace_size = workspace_size};
}

static onepass_status head(onepass_handle *handle, const onepass_tensor *const *t, const double *options,
                           void *workspace, size_t workspace_size)
{
    onepass_head_options o = head_options(t, options, workspace, workspace_size);
    return onepass_head(handle, t[HEAD_INPUT], t[HEAD_WEIGHT], &o, t[HEAD_OUTPUT], t[HEAD_PRODUCT], t[HEAD_MEAN],
                        t[HEAD_RSTD]);
}

static onepass_status head_backward(int is_synchronised, onepass_handle *handle, const onepass_tensor *const *t,
                                    const double *options, void *workspace, size_t workspace_size)
{
    onepass_head_options o = backward_options(t, options, workspace, workspace_size);
    onepass_head_gradients gradients = {.size = sizeof gradients,
                                        .input = t[HEAD_GRAD_INPUT],
                                        .weight = t[HEAD_GRAD_WEIGHT],
                                        .bias = t[HEAD_GRAD_BIAS],
                                        .gamma = t[HEAD_GRAD_GAMMA],
                                        .beta = t[HEAD_GRAD_BETA],
                                        .scale = t[HEAD_GRAD_SCALE]};
    if (is_synchronised)
        return onepass_head_backward_synchronised(handle, t[HEAD_GRAD_OUTPUT], t[HEAD_B_OUTPUT], t[HEAD_B_INPUT],
                                                  t[HEAD_B_WEIGHT], t[HEAD_B_PRODUCT], t[HEAD_B_MEAN], t[HEAD_B_RSTD],
                                                  t[HEAD_B_COUNTS], t[HEAD_B_S0S], t[HEAD_B_S1S], &o, &gradients);
    return onepass_head_backward(handle, t[HEAD_GRAD_OUTPUT], t[HEAD_B_OUTPUT], t[HEAD_B_INPUT], t[HEAD_B_WEIGHT],
                                 t[HEAD_B_PRODUCT], t[HEAD_B_MEAN], t[HEAD_B_RSTD], &o, &gradients);
}

static onepass_status head_synchronised(onepass_handle *handle, const onepass_tensor *const *t, const double *options,
                                        void *workspace, size_t workspace_size)
{
    onepass_head_options o = {.size = sizeof o,
                              .statistics = (onepass_statistics)(int)options[HEAD_STATISTICS],
                              .cumulative = (int32_t)options[HEAD_CUMULATIVE],
                              .eps = options[HEAD_EPS],
                              .momentum = options[HEAD_MOMENTUM],
                              .bias = t[HEAD_Y_BIAS],
                              .gamma = t[HEAD_Y_GAMMA],
                              .beta = t[HEAD_Y_BETA],
                              .scale = t[HEAD_Y_SCALE],
                              .running_mean = t[HEAD_Y_RUNNING_MEAN],
                              .running_var = t[HEAD_Y_RUNNING_VAR],
                              .batches_tracked = t[HEAD_Y_COUNTER],
                              .workspace = workspace,
                              .workspace_size = workspace_size};
    return onepass_head_synchronised(handle, t[HEAD_Y_PRODUCT], t[HEAD_Y_COUNTS], t[HEAD_Y_MEANS], t[HEAD_Y_M2S], &o,
                                     t[HEAD_Y_OUTPUT], t[HEAD_Y_MEAN], t[HEAD_Y_RSTD]);
}

/* ---- which of them ----------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    kl_entry *entry;
} kl_entries[] = {
    {"kl_probs_probs", onepass_kl_probs_probs},
    {"kl_log_probs_probs", onepass_kl_log_probs_probs},
    {"kl_probs_log_probs", onepass_kl_probs_log_probs},
    {"kl_log_probs_log_probs", onepass_kl_log_probs_log_probs},
};

static kl_entry *kl_entry_named(const char *name)
{
    for (size_t i = 0; i < sizeof kl_entries / sizeof kl_entries[0]; i++)
        if (strcmp(kl_entries[i].name, name) == 0)
            return kl_entries[i].entry;
    return NULL;
}

static int is(const onepass_operator *op, const char *name)
{
    return strcmp(onepass_operator_name(op), name) == 0;
}

onepass_status entry_point(onepass_handle *handle, const onepass_operator *op, const onepass_tensor *const *t,
                           const double *options, void *workspace, size_t workspace_size)
{
    kl_entry *kl = kl_entry_named(onepass_operator_name(op));
    if (kl)
        return entry_point_kl(kl, handle, t, options, workspace, workspace_size);
    divergence_entry *divergence = divergence_entry_named(onepass_operator_name(op));
    if (divergence) {
        onepass_logits_options o = logits_options(t, options, DIVERGENCE, workspace, workspace_size);
        return divergence(handle, t[LOGITS_PREDICTIONS], t[LOGITS_TARGETS], &o, t[LOGITS_VALUE],
                          t[LOGITS_GRAD_PREDICTIONS], t[LOGITS_GRAD_TARGETS]);
    }
    if (is(op, "divergence_logits_top_k")) {
        onepass_logits_options o = logits_options(t, options, TOP_K, workspace, workspace_size);
        return onepass_divergence_logits_top_k(handle, t[LOGITS_PREDICTIONS], t[LOGITS_TOP_VALUES],
                                               t[LOGITS_TOP_INDICES], &o, t[LOGITS_VALUE], t[LOGITS_GRAD_PREDICTIONS]);
    }
    if (is(op, "cross_entropy_logits_labels")) {
        onepass_logits_options o = logits_options(t, options, NO_DIVERGENCE, workspace, workspace_size);
        return onepass_cross_entropy_logits_labels(handle, t[LOGITS_PREDICTIONS], t[LOGITS_LABELS], &o, t[LOGITS_VALUE],
                                                   t[LOGITS_GRAD_PREDICTIONS]);
    }
    if (is(op, "linear_cross_entropy")) {
        onepass_logits_options o = logits_options(t, options, NO_DIVERGENCE, workspace, workspace_size);
        o.chunk_bytes = (int64_t)options[LINEAR_LOSS_CHUNK_BYTES];
        return onepass_linear_cross_entropy(handle, t[LINEAR_LOSS_INPUT], t[LINEAR_LOSS_WEIGHT], t[LINEAR_LOSS_BIAS],
                                            t[LOGITS_LABELS], &o, t[LOGITS_VALUE], t[LINEAR_LOSS_GRAD_INPUT],
                                            t[LINEAR_LOSS_GRAD_WEIGHT], t[LINEAR_LOSS_GRAD_BIAS]);
    }
    if (is(op, "linear_divergence")) {
        onepass_logits_options o = logits_options(t, options, DIVERGENCE, workspace, workspace_size);
        o.chunk_bytes = (int64_t)options[LINEAR_DIVERGENCE_CHUNK_BYTES];
        return onepass_linear_divergence(handle, t[LINEAR_LOSS_INPUT], t[LINEAR_DIVERGENCE_WEIGHT],
                                         t[LINEAR_DIVERGENCE_BIAS], t[LINEAR_DIVERGENCE_TARGET_INPUT],
                                         t[LINEAR_DIVERGENCE_TARGET_WEIGHT], t[LINEAR_DIVERGENCE_TARGET_BIAS], &o,
                                         t[LOGITS_VALUE], t[LINEAR_LOSS_GRAD_INPUT], t[LINEAR_DIVERGENCE_GRAD_WEIGHT],
                                         t[LINEAR_DIVERGENCE_GRAD_BIAS]);
    }
    if (is(op, "token_log_probs") || is(op, "token_log_probs_backward"))
        return token(is(op, "token_log_probs_backward"), handle, t, options, workspace, workspace_size);
    if (is(op, "linear_token_log_probs") || is(op, "linear_token_log_probs_backward"))
        return linear_token(is(op, "linear_token_log_probs_backward"), handle, t, options, workspace, workspace_size);
    if (is(op, "shard_loss"))
        return shard_loss(handle, t, options);
    if (is(op, "shard_states"))
        return shard_states(handle, t, options);
    if (is(op, "shard_sums"))
        return shard_sums(handle, t, options);
    if (is(op, "shard_merge_sums"))
        return onepass_shard_merge_sums(handle, t[0], t[1], t[2]);
    if (is(op, "shard_merge"))
        return onepass_shard_merge(handle, t[0], t[1]);
    if (is(op, "shard_token_log_probs") || is(op, "shard_token_log_probs_backward"))
        return shard_token(is(op, "shard_token_log_probs_backward"), handle, t, options);
    if (is(op, "linear") && t[LINEAR_PREPARED])
        return onepass_linear_prepared(handle, t[LINEAR_INPUT], t[LINEAR_WEIGHT], t[LINEAR_PREPARED]->data,
                                       t[LINEAR_BIAS], t[LINEAR_OUTPUT], workspace, workspace_size);
    if (is(op, "linear"))
        return onepass_linear(handle, t[LINEAR_INPUT], t[LINEAR_WEIGHT], t[LINEAR_BIAS], t[LINEAR_OUTPUT], workspace,
                              workspace_size);
    if (is(op, "linear_backward"))
        return onepass_linear_backward(handle, t[LINEAR_GRAD_OUTPUT], t[LINEAR_B_INPUT], t[LINEAR_B_WEIGHT],
                                       t[LINEAR_GRAD_INPUT], t[LINEAR_GRAD_WEIGHT], t[LINEAR_GRAD_BIAS], workspace,
                                       workspace_size);
    if (is(op, "prepare_weight"))
        return onepass_prepare_weight(handle, t[0], workspace, workspace_size);
    if (is(op, "head"))
        return head(handle, t, options, workspace, workspace_size);
    if (is(op, "head_backward") || is(op, "head_backward_synchronised"))
        return head_backward(is(op, "head_backward_synchronised"), handle, t, options, workspace, workspace_size);
    if (is(op, "head_statistics"))
        return onepass_head_statistics(handle, t[HEAD_S_INPUT], t[HEAD_S_WEIGHT], t[HEAD_S_PRODUCT], t[HEAD_S_MEAN],
                                       t[HEAD_S_M2], workspace, workspace_size);
    if (is(op, "head_synchronised"))
        return head_synchronised(handle, t, options, workspace, workspace_size);
    if (is(op, "head_backward_sums"))
        return onepass_head_backward_sums(handle, t[HEAD_D_GRAD_OUTPUT], t[HEAD_D_OUTPUT], t[HEAD_D_PRODUCT],
                                          t[HEAD_D_MEAN], t[HEAD_D_RSTD], t[HEAD_D_S0], t[HEAD_D_S1], workspace,
                                          workspace_size);
    CHECK(0, "tests/entry_points.c does not know %s", onepass_operator_name(op));
    exit(test_end());
}

onepass_status entry_point_size(onepass_handle *handle, const onepass_operator *op, const onepass_tensor *const *t,
                                const double *options, size_t *bytes)
{
    if (kl_entry_named(onepass_operator_name(op))) {
        onepass_kl_options o = kl_options(t, options);
        return onepass_kl_workspace_size(handle, t[KL_PREDICTIONS], &o, bytes);
    }
    if (divergence_entry_named(onepass_operator_name(op)) || is(op, "cross_entropy_logits_labels") ||
        is(op, "divergence_logits_top_k")) {
        int kind = is(op, "cross_entropy_logits_labels") ? NO_DIVERGENCE
                   : is(op, "divergence_logits_top_k")   ? TOP_K
                                                         : DIVERGENCE;
        onepass_logits_options o = logits_options(t, options, kind, NULL, 0);
        return onepass_logits_workspace_size(handle, t[LOGITS_PREDICTIONS], &o, bytes);
    }
    if (is(op, "linear_cross_entropy")) {
        onepass_logits_options o = logits_options(t, options, NO_DIVERGENCE, NULL, 0);
        o.chunk_bytes = (int64_t)options[LINEAR_LOSS_CHUNK_BYTES];
        return onepass_linear_cross_entropy_workspace_size(handle, t[LINEAR_LOSS_INPUT], t[LINEAR_LOSS_WEIGHT], &o,
                                                           t[LINEAR_LOSS_GRAD_WEIGHT], bytes);
    }
    if (is(op, "linear_divergence")) {
        onepass_logits_options o = logits_options(t, options, DIVERGENCE, NULL, 0);
        o.chunk_bytes = (int64_t)options[LINEAR_DIVERGENCE_CHUNK_BYTES];
        return onepass_linear_divergence_workspace_size(
            handle, t[LINEAR_LOSS_INPUT], t[LINEAR_DIVERGENCE_WEIGHT], t[LINEAR_DIVERGENCE_TARGET_INPUT],
            t[LINEAR_DIVERGENCE_TARGET_WEIGHT], &o, t[LINEAR_DIVERGENCE_GRAD_WEIGHT], bytes);
    }
    if (is(op, "token_log_probs") || is(op, "token_log_probs_backward")) {
        onepass_token_options o = token_options(t, options, NULL, 0);
        return onepass_token_workspace_size(handle, t[TOKEN_LOGITS], &o, bytes);
    }
    if (is(op, "linear_token_log_probs") || is(op, "linear_token_log_probs_backward")) {
        int is_backward = is(op, "linear_token_log_probs_backward");
        onepass_token_options o = token_options(t, options, NULL, 0);
        o.chunk_bytes = (int64_t)options[LINEAR_TOKEN_CHUNK_BYTES];
        return onepass_linear_token_workspace_size(handle, t[LINEAR_LOSS_INPUT],
                                                   t[is_backward ? LINEAR_TOKEN_WEIGHT : LINEAR_TOKEN_FORWARD_WEIGHT],
                                                   &o, is_backward ? t[LINEAR_TOKEN_GRAD_WEIGHT] : NULL, bytes);
    }
    if (strncmp(onepass_operator_name(op), "shard_", 6) == 0) /* which need none */
        return onepass_call_workspace_size(handle, op, t, options, bytes);
    if (is(op, "linear") || is(op, "linear_backward"))
        return onepass_linear_workspace_size(handle, t[LINEAR_INPUT], t[LINEAR_WEIGHT], bytes);
    if (is(op, "prepare_weight"))
        return onepass_prepare_weight_size(handle, t[0], bytes);
    if (is(op, "head")) {
        onepass_head_options o = head_options(t, options, NULL, 0);
        return onepass_head_workspace_size(handle, t[HEAD_INPUT], t[HEAD_WEIGHT], &o, t[HEAD_OUTPUT], t[HEAD_PRODUCT],
                                           bytes);
    }
    if (is(op, "head_statistics"))
        return onepass_head_statistics_workspace_size(handle, t[HEAD_S_INPUT], t[HEAD_S_WEIGHT], bytes);
    if (is(op, "head_synchronised"))
        return onepass_head_synchronised_workspace_size(handle, t[HEAD_Y_PRODUCT], bytes);
    if (is(op, "head_backward_sums"))
        return onepass_head_backward_sums_workspace_size(handle, t[HEAD_D_PRODUCT], bytes);
    onepass_head_options o = backward_options(t, options, NULL, 0);
    return onepass_head_backward_workspace_size(handle, t[HEAD_B_INPUT], t[HEAD_B_WEIGHT], &o, bytes);
}
