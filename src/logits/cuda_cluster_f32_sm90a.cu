/* The kernels with a row of logits in the registers or the shared memory of a cluster, for operands of fp32. */
#include "logits/cuda_cluster_loss.cuh"
#include "logits/cuda_cluster_mixed.cuh"
#include "logits/cuda_cluster_token.cuh"

ONEP_LOGITS_CLUSTER_LOSS(f32, float)
ONEP_LOGITS_CLUSTER_MIXED(f32, float)
ONEP_LOGITS_CLUSTER_TOKEN(f32, float)
