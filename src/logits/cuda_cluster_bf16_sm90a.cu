/* The kernels with a row of logits in the registers of a cluster, for operands of bf16. */
#include "logits/cuda_cluster_loss.cuh"
#include "logits/cuda_cluster_token.cuh"

ONEP_LOGITS_CLUSTER_LOSS(bf16, bf16)
ONEP_LOGITS_CLUSTER_TOKEN(bf16, bf16)
