/* The kernels with a row of logits in registers, for operands of fp32. */
#include "logits/cuda_narrow_loss.cuh"

ONEP_LOGITS_NARROW(labels_plain, f32, 4, 2, 8, labels<float, 4, 2, true>)
ONEP_LOGITS_NARROW(labels, f32, 4, 2, 6, labels<float, 4, 2, false>)
ONEP_LOGITS_NARROW(labels_plain, f32, 4, 8, 5, labels<float, 4, 8, true>)
ONEP_LOGITS_NARROW(labels, f32, 4, 8, 4, labels<float, 4, 8, false>)
ONEP_LOGITS_NARROW(labels_plain, f32, 8, 8, 5, labels<float, 8, 8, true>)
ONEP_LOGITS_NARROW(labels, f32, 8, 8, 4, labels<float, 8, 8, false>)
ONEP_LOGITS_NARROW(labels_plain, f32, 32, 8, 6, labels<float, 32, 8, true>)
ONEP_LOGITS_NARROW(labels, f32, 32, 8, 4, labels<float, 32, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, f32, 4, 2, 8, kl<float, 4, 2, true>)
ONEP_LOGITS_NARROW(kl, f32, 4, 2, 4, kl<float, 4, 2, false>)
ONEP_LOGITS_NARROW(kl_plain, f32, 4, 8, 4, kl<float, 4, 8, true>)
ONEP_LOGITS_NARROW(kl, f32, 4, 8, 2, kl<float, 4, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, f32, 8, 8, 4, kl<float, 8, 8, true>)
ONEP_LOGITS_NARROW(kl, f32, 8, 8, 2, kl<float, 8, 8, false>)
ONEP_LOGITS_NARROW(kl_plain, f32, 32, 8, 4, kl<float, 32, 8, true>)
ONEP_LOGITS_NARROW(kl, f32, 32, 8, 2, kl<float, 32, 8, false>)
