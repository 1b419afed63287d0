/*
 * What the descriptions of losses from logits share: the arguments and options of cross-entropy and of divergences, in
 * their order. For the entry.c of an operator alone. A loss from hidden states has the same in the same places, with
 * the hidden states where the logits are, and the teacher's weight where the gradient of targets would be.
 */
#ifndef ONEP_LOGITS_DESCRIBE_H
#define ONEP_LOGITS_DESCRIBE_H

#include "core/operator.h"
#include "logits/logits.h"

enum {
    PREDICTIONS,
    LABELS,
    CLASS_WEIGHTS,
    ROW_WEIGHTS,
    ROW_MASK,
    GRAD_VALUE,
    GRAD_MADE_FOR,
    DIVISOR_TENSOR,
    VALUE,
    GRAD_PREDICTIONS,
    LSE,
    ENTROPY,
    LOG_PROB,
    ARGMAX,
    CROSS_ENTROPY_ARGUMENTS,
    /* divergences have more */
    TARGETS = CROSS_ENTROPY_ARGUMENTS,
    GRAD_TARGETS,
    TARGET_LSE,
    TARGET_ENTROPY,
    DIVERGENCE_ARGUMENTS,
    /* a shard has one more */
    STATISTICS = DIVERGENCE_ARGUMENTS,
    SHARD_ARGUMENTS
};
enum {
    REDUCTION,
    SEMANTICS,
    DIVISOR,
    TEMPERATURE,
    SOFTCAP,
    COLUMNS,
    HAS_IGNORE_INDEX,
    IGNORE_INDEX,
    LABEL_WEIGHT,
    LABEL_SMOOTHING,
    Z_LOSS,
    ENTROPY_BONUS,
    CROSS_ENTROPY_OPTIONS,
    DIVERGENCE = CROSS_ENTROPY_OPTIONS,
    MIXTURE,
    DIVERGENCE_WEIGHT,
    TARGET_TEMPERATURE,
    LABEL_TEMPERATURE,
    TARGET_SOFTCAP,
    DIVERGENCE_OPTIONS,
    FIRST_COLUMN = DIVERGENCE_OPTIONS,
    TOTAL_COLUMNS,
    SHARD_OPTIONS
};

/* By the reduction: one value, or one per row. There is none per element: ONEPASS_NONE is refused. */
extern const char *const onep_logits_value_shapes[];

/* clang-format off */
#define LOSS_ROW_RESULT(name) {.info = {"options." name, "*", ONEPASS_WRITTEN, 0}, .type = ONEP_HOLDS_PROMOTED}

/* All of them but the logits and their gradient. */
#define LOSS_ARGUMENTS(labels, labels_are_required)                                                                    \
    [LABELS] = {.info = {labels, "*", ONEPASS_READ, labels_are_required}, .type = ONEP_INDEX},                         \
    [CLASS_WEIGHTS] = {.info = {"options.class_weights", "C", ONEPASS_READ, 0}},                                       \
    [ROW_WEIGHTS] = {.info = {"options.row_weights", "*", ONEPASS_READ, 0}},                                           \
    [ROW_MASK] = {.info = {"options.row_mask", "*", ONEPASS_READ, 0}, .type = ONEP_MASK},                              \
    [GRAD_VALUE] = {.info = {"options.grad_value", NULL, ONEPASS_READ, 0},                                             \
                    .shapes = onep_logits_value_shapes, .by = REDUCTION},                                              \
    [GRAD_MADE_FOR] = {.info = {"options.grad_made_for", "", ONEPASS_READ, 0}},                                        \
    [DIVISOR_TENSOR] = {.info = {"options.divisor_tensor", "", ONEPASS_READ, 0}},                                      \
    [VALUE] = {.info = {"value", NULL, ONEPASS_WRITTEN, 0},                                                            \
               .type = ONEP_HOLDS_PROMOTED, .shapes = onep_logits_value_shapes, .by = REDUCTION},                      \
    [LSE] = LOSS_ROW_RESULT("lse"),                                                                                    \
    [ENTROPY] = LOSS_ROW_RESULT("entropy"),                                                                            \
    [LOG_PROB] = LOSS_ROW_RESULT("log_prob"),                                                                          \
    [ARGMAX] = {.info = {"options.argmax", "*", ONEPASS_WRITTEN, 0}, .type = ONEP_COUNTER}

#define LOSS_OPTIONS                                                                                                   \
    [REDUCTION] = {.info = {"options.reduction", ONEPASS_VALID + 1}, .rule = "one of onepass_reduction"},              \
    [SEMANTICS] = {.info = {"options.semantics", ONEPASS_FINITE + 1}, .rule = "one of onepass_semantics"},             \
    [DIVISOR] = {.info = {"options.divisor", 0}},                                                                      \
    [TEMPERATURE] = {.info = {"options.temperature", 0}},                                                              \
    [SOFTCAP] = {.info = {"options.softcap", 0}},                                                                      \
    [COLUMNS] = {.info = {"options.columns", 0}},                                                                      \
    [HAS_IGNORE_INDEX] = {.info = {"options.has_ignore_index", 2}, .rule = "0 or 1"},                                  \
    [IGNORE_INDEX] = {.info = {"options.ignore_index", 0}},                                                            \
    [LABEL_WEIGHT] = {.info = {"options.label_weight", 0}},                                                            \
    [LABEL_SMOOTHING] = {.info = {"options.label_smoothing", 0}},                                                      \
    [Z_LOSS] = {.info = {"options.z_loss", 0}},                                                                        \
    [ENTROPY_BONUS] = {.info = {"options.entropy_bonus", 0}}

#define TARGET_OPTIONS                                                                                                 \
    [DIVERGENCE] = {.info = {"options.divergence", ONEPASS_TOTAL_VARIATION + 1}, .rule = "one of onepass_divergence"}, \
    [MIXTURE] = {.info = {"options.mixture", 0}},                                                                      \
    [DIVERGENCE_WEIGHT] = {.info = {"options.divergence_weight", 0}},                                                  \
    [TARGET_TEMPERATURE] = {.info = {"options.target_temperature", 0}},                                                \
    [LABEL_TEMPERATURE] = {.info = {"options.label_temperature", 0}},                                                  \
    [TARGET_SOFTCAP] = {.info = {"options.target_softcap", 0}}

#define PREDICTIONS_ARGUMENTS(labels, labels_are_required)                                                             \
    [PREDICTIONS] = {.info = {"predictions", "*C", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},             \
    LOSS_ARGUMENTS(labels, labels_are_required),                                                                       \
    [GRAD_PREDICTIONS] = {.info = {"grad_predictions", "*C", ONEPASS_WRITTEN, 0},                                      \
                          .type = ONEP_LIKE, .like = PREDICTIONS, .flags = ONEP_IN_PLACE}

#define TARGETS_ARGUMENTS(targets_are_required)                                                                        \
    [TARGETS] = {.info = {"targets", "*C", ONEPASS_READ, targets_are_required}, .flags = ONEP_PROMOTES},               \
    [GRAD_TARGETS] = {.info = {"grad_targets", "*C", ONEPASS_WRITTEN, 0},                                              \
                      .type = ONEP_LIKE, .like = TARGETS, .flags = ONEP_IN_PLACE},                                     \
    [TARGET_LSE] = LOSS_ROW_RESULT("target_lse"),                                                                      \
    [TARGET_ENTROPY] = LOSS_ROW_RESULT("target_entropy")
/* clang-format on */

/*
 * The problem of a call whose description begins as cross-entropy's or a divergence's does, after the rules that its
 * tables cannot say. Logits, targets and their gradients are those of arguments PREDICTIONS, GRAD_PREDICTIONS, TARGETS
 * and GRAD_TARGETS: a loss from hidden states puts its own in their place.
 */
onepass_status onep_logits_problem_of(const onep_call *call, onep_logits_problem *made);

/* The caller's structure into the call's options and tensors. chunk_bytes NULL: the operator has no such option. */
onepass_status onep_logits_read_options(onep_call *call, const onepass_logits_options *given, double *chunk_bytes);

#endif
