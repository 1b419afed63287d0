/*
 * onepass bench of a loss on a GPU: the operator and, in turn with it, a plain read of as many bytes (measure_cuda.h).
 */
#ifndef TOOL_BENCH_CUDA_H
#define TOOL_BENCH_CUDA_H

#include "bench_loss.h"

/* bench_loss with everything on the device. */
onepass_status bench_cuda(onepass_handle *handle, const loss_case *problem, bench_result *result, int first, int last,
                          const measure_rule *rule);

#endif
