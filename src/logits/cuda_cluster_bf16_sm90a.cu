/* The kernels with a row of logits in the registers or the shared memory of a cluster, for operands of bf16. */
#include "logits/cuda_cluster_aligned.cuh"
#include "logits/cuda_cluster_loss.cuh"
#include "logits/cuda_cluster_mixed.cuh"
#include "logits/cuda_cluster_token.cuh"

ONEP_LOGITS_CLUSTER_LOSS(bf16, bf16)
ONEP_LOGITS_CLUSTER_MIXED(bf16, bf16)
ONEP_LOGITS_CLUSTER_TOKEN(bf16, bf16)
ONEP_LOGITS_CLUSTER_ALIGNED(bf16, bf16)

/*
 * Two blocks per multiprocessor leave 128 registers per thread: what does not fit between sweeps is stored and read
 * again, as these kernels were measured.
 * onep_logits_variation_cluster_aligned_bf16: spills up to 160 bytes
 * onep_logits_js_cluster_aligned_bf16: spills up to 160 bytes
 * onep_logits_mixture_cluster_aligned_bf16: spills up to 256 bytes
 * onep_logits_kl_cluster_bf16: spills up to 64 bytes
 */
