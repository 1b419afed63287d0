/* The kernels with a row of logits in registers, for operands of fp16. */
#include "logits/cuda_narrow_loss.cuh"

/* Six blocks per multiprocessor are 8% faster than five without spilling (H200, bf16, 134217 x 1000).
 * onep_logits_kl_plain_32x8_f16: spills up to 12 bytes */

ONEP_LOGITS_NARROW(labels_plain, f16, 4, 2, 8, labels<f16, 4, 2, true>)
ONEP_LOGITS_NARROW(labels, f16, 4, 2, 6, labels<f16, 4, 2, false>)
ONEP_LOGITS_NARROW(labels_plain, f16, 4, 8, 8, labels<f16, 4, 8, true>)
ONEP_LOGITS_NARROW(labels, f16, 4, 8, 5, labels<f16, 4, 8, false>)
ONEP_LOGITS_NARROW(labels_plain, f16, 8, 8, 8, labels<f16, 8, 8, true>)
ONEP_LOGITS_NARROW(labels, f16, 8, 8, 5, labels<f16, 8, 8, false>)
ONEP_LOGITS_NARROW(labels_plain, f16, 32, 8, 8, labels<f16, 32, 8, true>)
ONEP_LOGITS_NARROW(labels, f16, 32, 8, 5, labels<f16, 32, 8, false>)
ONEP_LOGITS_NARROW(labels_plain, f16, 32, 16, 5, labels<f16, 32, 16, true>)
ONEP_LOGITS_NARROW(labels, f16, 32, 16, 3, labels<f16, 32, 16, false>)
ONEP_LOGITS_NARROW(kl_plain, f16, 4, 2, 8, kl<f16, 4, 2, true>)
ONEP_LOGITS_NARROW(kl, f16, 4, 2, 4, kl<f16, 4, 2, false>)
ONEP_LOGITS_NARROW(kl_plain, f16, 4, 8, 5, kl<f16, 4, 8, true>)
ONEP_LOGITS_NARROW(kl, f16, 4, 8, 3, kl<f16, 4, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, f16, 8, 8, 5, kl<f16, 8, 8, true>)
ONEP_LOGITS_NARROW(kl, f16, 8, 8, 3, kl<f16, 8, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, f16, 32, 8, 6, kl<f16, 32, 8, true>)
ONEP_LOGITS_NARROW(kl, f16, 32, 8, 3, kl<f16, 32, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, f16, 32, 16, 3, kl<f16, 32, 16, true>)
ONEP_LOGITS_NARROW(kl, f16, 32, 16, 2, kl<f16, 32, 16, false>)
