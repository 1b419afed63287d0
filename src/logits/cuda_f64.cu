/* The kernels of losses from logits for any types computed in double. */
#include "logits/cuda_loss.cuh"
#include "logits/cuda_token.cuh"

ONEP_LOGITS_LOSS(f64, double)
ONEP_LOGITS_TOKEN(f64, double)
