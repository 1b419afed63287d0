/*
 * Every operator of the library as one kind of call, for tests whose subject is not the numbers: extents, the floating-
 * point environment, stack, threads that are cancelled. A call owns its tensors, each in memory of exactly its size, so
 * that AddressSanitizer, or a forbidden page, sees the first byte read or written outside.
 */
#ifndef ONEPASS_TEST_EVERY_CALL_H
#define ONEPASS_TEST_EVERY_CALL_H

#include "call_tensor.h"

typedef enum call_operator {
    CALL_KL_PROBS_PROBS, /* the four forms in the order of onep_kl_form */
    CALL_KL_LOG_PROBS_PROBS,
    CALL_KL_PROBS_LOG_PROBS,
    CALL_KL_LOG_PROBS_LOG_PROBS,
    CALL_DIVERGENCE_LOGITS, /* from here on losses from logits; three forms in the order of onep_target_form */
    CALL_DIVERGENCE_PROBS,
    CALL_DIVERGENCE_LOG_PROBS,
    CALL_DIVERGENCE_TOP_K,
    CALL_CROSS_ENTROPY,
    CALL_TOKEN,
    CALL_TOKEN_BACKWARD,
    CALL_SHARD_STATES, /* of one rank that has all columns, as everything over several ranks here */
    CALL_SHARD_MERGE,
    CALL_SHARD_SUMS,
    CALL_SHARD_MERGE_SUMS,
    CALL_SHARD_LOSS,
    CALL_SHARD_TOKEN,
    CALL_SHARD_TOKEN_BACKWARD,
    CALL_LINEAR, /* those before it take rows of columns, those from here on multiply */
    CALL_LINEAR_BACKWARD,
    CALL_LINEAR_CROSS_ENTROPY,
    CALL_LINEAR_DIVERGENCE,
    CALL_LINEAR_TOKEN,
    CALL_LINEAR_TOKEN_BACKWARD,
    CALL_HEAD,
    CALL_HEAD_BACKWARD,
    CALL_OPERATORS,
} call_operator;

typedef enum call_memory {
    CALL_HEAP,       /* malloc: AddressSanitizer watches it */
    CALL_PAGE_AFTER, /* the last byte touches a page that may not be touched */
    CALL_NULL,       /* malloc; what is empty has no address at all */
    CALL_MEMORIES,
} call_memory;

enum { CALL_TENSORS = 24, CALL_VARIANTS = 20 };

/* What a call is; `variant` chooses reductions, statistics, which optional tensors there are, and the layout. */
typedef struct call_kind {
    call_operator operator_id;
    onep_type type;
    int64_t rows, depth, columns; /* of token log-probabilities the depth is the number of indices */
    int variant;                  /* 0 .. CALL_VARIANTS - 1 */
    call_memory memory;
} call_kind;

typedef struct every_call {
    call_kind kind;
    int strided;
    int count;
    call_tensor tensor[CALL_TENSORS];
    onepass_kl_options kl;
    onepass_logits_options logits;
    onepass_token_options token;
    onepass_head_options head;
    onepass_head_gradients gradients;
    case_buffer workspace; /* with CALL_PAGE_AFTER */
    double magnitude;      /* inputs are multiplied by it: 1, or small enough for subnormal results */
} every_call;

const char *call_name(call_operator operator_id);

/* Whether the operator knows a depth. */
int call_has_depth(call_operator operator_id);

/* A loss from logits: each row costs as much as ten of KL's, so that fewer of them will do. */
int call_is_from_logits(call_operator operator_id);

/* Makes the tensors; `stream` chooses the numbers. */
every_call *call_make(call_kind kind, double magnitude, uint64_t stream);
void call_free(every_call *call);

/* Poisons what is written, resets what is kept, takes a workspace of exactly the size asked for, and calls. */
onepass_status call_run(every_call *call, onepass_handle *handle);

/* The same in two steps: the workspace is made by the first, given by the second, and freed by the third. */
void *call_prepare(every_call *call, onepass_handle *handle, size_t *bytes);
onepass_status call_execute(every_call *call, onepass_handle *handle, void *workspace, size_t bytes);
void call_release(every_call *call, void *workspace);

/* Over all bytes of what is written. */
uint64_t call_digest(const every_call *call);

/* Element by element, in the same kind of call; NaN is NaN. Prints what differs. */
void call_compare(const every_call *got, const every_call *expected, double relative, double absolute);

/* The tensor of that name; NULL: the call has none. */
const onepass_tensor *call_named(const every_call *call, const char *name);

/* The call is refused by the operator's rules: one row has no batch statistics. */
int call_is_refused(const every_call *call);

#endif
