/*
 * What the descriptions of token log-probabilities share, from logits and from hidden states, which have the latter
 * where the logits are: arguments and options in their order. For the file with their entry points alone.
 */
#ifndef ONEP_LOGITS_DESCRIBE_TOKEN_H
#define ONEP_LOGITS_DESCRIBE_TOKEN_H

#include "core/operator.h"
#include "logits/logits.h"

enum {
    LOGITS,
    INDICES,
    ROW_MASK,
    LOG_PROB,
    ENTROPY,
    LSE,
    FORWARD_ARGUMENTS,
    GRAD_LOGITS = FORWARD_ARGUMENTS,
    BACKWARD_ARGUMENTS
};
enum {
    SEMANTICS,
    TEMPERATURE,
    SOFTCAP,
    COLUMNS,
    HAS_IGNORE_INDEX,
    IGNORE_INDEX,
    TOKEN_OPTION_COUNT,
    /* a shard has more */
    FIRST_COLUMN = TOKEN_OPTION_COUNT,
    TOTAL_COLUMNS,
    TOKEN_SHARD_OPTION_COUNT
};

/* The variant of an operator. */
enum { FORWARD, BACKWARD, SHARD_FORWARD, SHARD_BACKWARD };

/* clang-format off */
#define TOKEN_ARGUMENTS                                                                                                \
    [INDICES] = {.info = {"indices", "*K", ONEPASS_READ, 0}, .type = ONEP_INDEX},                                      \
    [ROW_MASK] = {.info = {"options.row_mask", "*", ONEPASS_READ, 0}, .type = ONEP_MASK}

#define TOKEN_RESULTS                                                                                                  \
    [LOG_PROB] = {.info = {"log_prob", "*K", ONEPASS_WRITTEN, 0}, .type = ONEP_HOLDS_PROMOTED},                        \
    [ENTROPY] = {.info = {"entropy", "*", ONEPASS_WRITTEN, 0}, .type = ONEP_HOLDS_PROMOTED},                           \
    [LSE] = {.info = {"lse", "*", ONEPASS_WRITTEN, 0}, .type = ONEP_HOLDS_PROMOTED}

/* What the forward call writes the backward call reads the gradients of. */
#define TOKEN_UPSTREAM                                                                                                 \
    [LOG_PROB] = {.info = {"grad_log_prob", "*K", ONEPASS_READ, 0}},                                                   \
    [ENTROPY] = {.info = {"grad_entropy", "*", ONEPASS_READ, 0}},                                                      \
    [LSE] = {.info = {"grad_lse", "*", ONEPASS_READ, 0}}

#define TOKEN_OPTIONS                                                                                                  \
    [SEMANTICS] = {.info = {"options.semantics", ONEPASS_FINITE + 1}, .rule = "one of onepass_semantics"},             \
    [TEMPERATURE] = {.info = {"options.temperature", 0}},                                                              \
    [SOFTCAP] = {.info = {"options.softcap", 0}},                                                                      \
    [COLUMNS] = {.info = {"options.columns", 0}},                                                                      \
    [HAS_IGNORE_INDEX] = {.info = {"options.has_ignore_index", 2}, .rule = "0 or 1"},                                  \
    [IGNORE_INDEX] = {.info = {"options.ignore_index", 0}}
/* clang-format on */

/* The problem of a call, after the rules that its tables cannot say. Logits and their gradient are those of arguments
 * LOGITS and GRAD_LOGITS: with hidden states the caller puts others in their place. */
onepass_status onep_token_problem_of(const onep_call *call, onep_token_problem *made);

/* The caller's structure into the call's options and tensors. chunk_bytes NULL: the operator has no such option. */
onepass_status onep_token_read_options(onep_call *call, const onepass_token_options *given, double *chunk_bytes);

#endif
