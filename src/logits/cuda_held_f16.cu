/* The kernels with a row of logits in shared memory, for operands of fp16. */
#include "logits/cuda_held.cuh"
#include "logits/cuda_held_token.cuh"

ONEP_LOGITS_OCTET(labels, HELD_LABELS, f16, f16, 4)
ONEP_LOGITS_BLOCK(labels, HELD_LABELS, f16, f16, 2)
ONEP_LOGITS_OCTET(kl, HELD_KL, f16, f16, 4)
ONEP_LOGITS_BLOCK(kl, HELD_KL, f16, f16, 2)
ONEP_LOGITS_BLOCK(mixed, HELD_MIXED, f16, f16, 2)
ONEP_LOGITS_HELD_TOKEN(f16, f16)
