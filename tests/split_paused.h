/*
 * Launches of the product kernels that sleep (split_paused_sm90a.cu) instead of the library's: with the linker's
 * --wrap=onep_cuda_launch every launch comes here first.
 */
#ifndef ONEPASS_TEST_SPLIT_PAUSED_H
#define ONEPASS_TEST_SPLIT_PAUSED_H

#include "cuda_harness.h"

/* Nanoseconds that copying and multiplying sleep every chunk from here on; both 0: the library's kernels again. */
void split_pause(onep_cu_stream *stream, const int *pauses);

#endif
