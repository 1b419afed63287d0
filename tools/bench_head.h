/*
 * onepass bench head and linear: the operator and, in turn with it, the matrix product alone: on the CPU by BLAS with
 * as many threads of its own, or by the library's own product where there is no BLAS (or none for the type); on a GPU
 * by the library's product, which is cuBLASLt's or its own (product.h).
 */
#ifndef TOOL_BENCH_HEAD_H
#define TOOL_BENCH_HEAD_H

#include "options.h"

/* An exit code, as command_bench's. */
int bench_head(const parsed_options *options);

#endif
