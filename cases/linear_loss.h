/* Cases of losses from hidden states. Arguments and options are those of logits.h, and these. */
#ifndef CASES_LINEAR_LOSS_H
#define CASES_LINEAR_LOSS_H

#include "cases/logits.h"

enum {
    LINEAR_LOSS_INPUT = LOGITS_PREDICTIONS,
    LINEAR_LOSS_GRAD_INPUT = LOGITS_GRAD_PREDICTIONS,
    /* cross-entropy */
    LINEAR_LOSS_WEIGHT = LOGITS_TARGETS,
    LINEAR_LOSS_BIAS,
    LINEAR_LOSS_GRAD_WEIGHT,
    LINEAR_LOSS_GRAD_BIAS,
    /* divergences */
    LINEAR_DIVERGENCE_TARGET_INPUT = LOGITS_TARGETS,
    LINEAR_DIVERGENCE_TARGET_WEIGHT = LOGITS_GRAD_TARGETS,
    LINEAR_DIVERGENCE_TARGET_BIAS = LOGITS_ARGUMENTS,
    LINEAR_DIVERGENCE_WEIGHT,
    LINEAR_DIVERGENCE_BIAS,
    LINEAR_DIVERGENCE_GRAD_WEIGHT,
    LINEAR_DIVERGENCE_GRAD_BIAS,
    /* token log-probabilities, behind what logits.h says of them */
    LINEAR_TOKEN_FORWARD_WEIGHT = TOKEN_GRAD_LOGITS,
    LINEAR_TOKEN_FORWARD_BIAS,
    LINEAR_TOKEN_GRAD_INPUT = TOKEN_GRAD_LOGITS,
    LINEAR_TOKEN_WEIGHT,
    LINEAR_TOKEN_BIAS,
    LINEAR_TOKEN_GRAD_WEIGHT,
    LINEAR_TOKEN_GRAD_BIAS,
};
enum {
    LINEAR_LOSS_CHUNK_BYTES = LOGITS_DIVERGENCE,
    LINEAR_DIVERGENCE_CHUNK_BYTES = LOGITS_OPTIONS,
    LINEAR_TOKEN_CHUNK_BYTES = TOKEN_IGNORE_INDEX + 1
};

/* What the numbers are like: the family of a case. */
typedef enum linear_loss_data {
    LINEAR_LOSS_ORDINARY, /* logits of a deviation of about 2 */
    LINEAR_LOSS_SHARP,    /* one of them towers by up to 20: losses down to 1e-8 */
    LINEAR_LOSS_MASKED,   /* -inf in the bias, and in the teacher's: some divergences are infinite */
    LINEAR_LOSS_NEAR,     /* the teacher's logits are those of the student but for 2e-3: divergences of 1e-6 */
    LINEAR_LOSS_DATA_KINDS,
    LINEAR_LOSS_SPECIAL = LINEAR_LOSS_DATA_KINDS, /* NaN and infinities among the hidden states, bad labels, no mass */
} linear_loss_data;

#endif
