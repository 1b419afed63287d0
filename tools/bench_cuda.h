/*
 * onepass bench kl on a GPU: the operator and, in turn with it, a plain read of as many bytes (measure_cuda.h).
 */
#ifndef TOOL_BENCH_CUDA_H
#define TOOL_BENCH_CUDA_H

#include "kl_case.h"

enum { BENCH_FLOOR_READ, BENCH_FORWARD, BENCH_FLOOR_WRITE, BENCH_GRADIENT, BENCH_WORKS };

/* Fills the works from `first` on: names, bytes, floors and samples, at least 30 of each and for at least `seconds`. */
onepass_status bench_cuda(onepass_handle *handle, const kl_case *problem, timed_work works[BENCH_WORKS], int first,
                          double seconds);

#endif
