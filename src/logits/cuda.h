/* Losses from logits on a CUDA device: what losses from hidden states share with them, beside their kernels. */
#ifndef ONEP_LOGITS_CUDA_H
#define ONEP_LOGITS_CUDA_H

#include "cuda/device.h"
#include "logits/logits.h"

extern const onep_kernel onep_logits_cuda[ONEP_FLOAT_TYPES], onep_token_cuda[ONEP_FLOAT_TYPES];

/* Puts the kernel on the stream that counts the divisor of ONEPASS_VALID, from masks, labels and class weights alone.
 * room: in device memory, one double per row or ONEP_LOGITS_COUNTING_BLOCKS of them, at least one. */
onepass_status onep_logits_count_divisor(onep_cuda *cuda, const onep_logits_problem *problem, double *room,
                                         double *counted);

#endif
