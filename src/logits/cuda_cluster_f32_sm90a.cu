/* The kernels with a row of logits in the registers or the shared memory of a cluster, for operands of fp32. */
#include "logits/cuda_cluster_aligned.cuh"
#include "logits/cuda_cluster_loss.cuh"
#include "logits/cuda_cluster_mixed.cuh"
#include "logits/cuda_cluster_token.cuh"

ONEP_LOGITS_CLUSTER_LOSS(f32, float)
ONEP_LOGITS_CLUSTER_MIXED(f32, float)
ONEP_LOGITS_CLUSTER_TOKEN(f32, float)
ONEP_LOGITS_CLUSTER_ALIGNED(f32, float)

/*
 * Two blocks per multiprocessor leave 128 registers per thread: what does not fit between sweeps is stored and read
 * again, as these kernels were measured.
 * onep_logits_variation_cluster_aligned_f32: spills up to 40 bytes
 * onep_logits_js_cluster_aligned_f32: spills up to 40 bytes
 * onep_logits_mixture_cluster_aligned_f32: spills up to 40 bytes
 * onep_logits_kl_cluster_f32: spills up to 40 bytes
 */
