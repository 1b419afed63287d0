/* The kernels with a row of logits in the registers or the shared memory of a cluster, for operands of fp16. */
#include "logits/cuda_cluster_aligned.cuh"
#include "logits/cuda_cluster_loss.cuh"
#include "logits/cuda_cluster_mixed.cuh"
#include "logits/cuda_cluster_token.cuh"

ONEP_LOGITS_CLUSTER_LOSS(f16, f16)
ONEP_LOGITS_CLUSTER_MIXED(f16, f16)
ONEP_LOGITS_CLUSTER_TOKEN(f16, f16)
ONEP_LOGITS_CLUSTER_ALIGNED(f16, f16)

/*
 * Two blocks per multiprocessor leave 128 registers per thread: what does not fit between sweeps is stored and read
 * again, as these kernels were measured. Where it is most, nearly all of it is in a copy of the loop that the assembler
 * makes for lanes that part. onep_logits_variation_cluster_aligned_f16: spills up to 160 bytes
 * onep_logits_js_cluster_aligned_f16: spills up to 160 bytes
 * onep_logits_mixture_cluster_aligned_f16: spills up to 256 bytes
 * onep_logits_kl_cluster_f16: spills up to 64 bytes
 * onep_logits_kl_cluster_aligned_f16: spills up to 600 bytes
 */
