/* The kernels with a row of logits in registers, for operands of bf16. */
#include "logits/cuda_narrow_loss.cuh"

/* Six blocks per multiprocessor are 8% faster than five without spilling (H200, bf16, 134217 x 1000).
 * onep_logits_kl_plain_32x8_bf16: spills up to 8 bytes */

ONEP_LOGITS_NARROW(labels_plain, bf16, 4, 2, 8, labels<bf16, 4, 2, true>)
ONEP_LOGITS_NARROW(labels, bf16, 4, 2, 6, labels<bf16, 4, 2, false>)
ONEP_LOGITS_NARROW(labels_plain, bf16, 4, 8, 8, labels<bf16, 4, 8, true>)
ONEP_LOGITS_NARROW(labels, bf16, 4, 8, 5, labels<bf16, 4, 8, false>)
ONEP_LOGITS_NARROW(labels_plain, bf16, 8, 8, 8, labels<bf16, 8, 8, true>)
ONEP_LOGITS_NARROW(labels, bf16, 8, 8, 5, labels<bf16, 8, 8, false>)
ONEP_LOGITS_NARROW(labels_plain, bf16, 32, 8, 8, labels<bf16, 32, 8, true>)
ONEP_LOGITS_NARROW(labels, bf16, 32, 8, 5, labels<bf16, 32, 8, false>)
ONEP_LOGITS_NARROW(labels_plain, bf16, 32, 16, 5, labels<bf16, 32, 16, true>)
ONEP_LOGITS_NARROW(labels, bf16, 32, 16, 3, labels<bf16, 32, 16, false>)
ONEP_LOGITS_NARROW(kl_plain, bf16, 4, 2, 8, kl<bf16, 4, 2, true>)
ONEP_LOGITS_NARROW(kl, bf16, 4, 2, 4, kl<bf16, 4, 2, false>)
ONEP_LOGITS_NARROW(kl_plain, bf16, 4, 8, 5, kl<bf16, 4, 8, true>)
ONEP_LOGITS_NARROW(kl, bf16, 4, 8, 3, kl<bf16, 4, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, bf16, 8, 8, 5, kl<bf16, 8, 8, true>)
ONEP_LOGITS_NARROW(kl, bf16, 8, 8, 3, kl<bf16, 8, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, bf16, 32, 8, 6, kl<bf16, 32, 8, true>)
ONEP_LOGITS_NARROW(kl, bf16, 32, 8, 3, kl<bf16, 32, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, bf16, 32, 16, 3, kl<bf16, 32, 16, true>)
ONEP_LOGITS_NARROW(kl, bf16, 32, 16, 2, kl<bf16, 32, 16, false>)
