/* The kernels with a row of logits in the registers or the shared memory of a cluster, for operands of fp16. */
#include "logits/cuda_cluster_loss.cuh"
#include "logits/cuda_cluster_mixed.cuh"
#include "logits/cuda_cluster_token.cuh"

ONEP_LOGITS_CLUSTER_LOSS(f16, f16)
ONEP_LOGITS_CLUSTER_MIXED(f16, f16)
ONEP_LOGITS_CLUSTER_TOKEN(f16, f16)
