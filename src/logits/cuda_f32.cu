/* The kernels of losses from logits for any types computed in float. */
#include "logits/cuda_loss.cuh"
#include "logits/cuda_token.cuh"

ONEP_LOGITS_LOSS(f32, float)
ONEP_LOGITS_TOKEN(f32, float)
