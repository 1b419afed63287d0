/* What the files with entry points of losses from hidden states share. */
#ifndef ONEP_LINEAR_LOSS_DESCRIBE_H
#define ONEP_LINEAR_LOSS_DESCRIBE_H

#include <math.h>

#include "core/operator.h"
#include "linear_loss/linear_loss.h"

/* A side from its arguments; `depth` is the letter of its hidden states. */
static inline onep_linear_side onep_linear_side_of(const onep_call *call, int input, int weight, int bias, char depth)
{
    return (onep_linear_side){.input = onep_call_operand(call, input),
                              .weight = onep_call_operand(call, weight),
                              .bias = onep_call_operand(call, bias),
                              .weight_rows = onep_rows_of(call->tensors[weight]),
                              .depth = onep_extent(call, depth)};
}

#define ONEP_CHUNK_BYTES_RULE "a whole number from 0 to 2^53"

/* What a chunk may take; -1: the option breaks the rule. */
static inline int64_t onep_linear_loss_chunk_bytes(double option)
{
    if (!(option >= 0 && option <= 0x1p53 && option == floor(option)))
        return -1;
    return option > 0 ? (int64_t)option : ONEP_LINEAR_LOSS_CHUNK_BYTES;
}

#endif
