/*
 * A loss beside its floor, in turn: a plain read of the inputs, the value, a plain read with one write (on a GPU a read
 * of as many bytes more), the value with the gradient. For bench and its sweep; bench_cuda.h has the same on a GPU.
 * Calls are described and their workspace is claimed before anything is timed.
 */
#ifndef TOOL_BENCH_LOSS_H
#define TOOL_BENCH_LOSS_H

#include "loss_case.h"

enum { BENCH_FLOOR_READ, BENCH_FORWARD, BENCH_FLOOR_WRITE, BENCH_GRADIENT, BENCH_WORKS };

typedef struct bench_result {
    timed_work works[BENCH_WORKS]; /* released by measure_release */
    size_t workspace[2];           /* bytes that forward and gradient need */
} bench_result;

/* What a work reads and writes of the large arrays: one call reads each input once. */
double bench_bytes(const loss_case *problem, int work);

/* The calls of a case, without and with gradient, over tensors that are the case's own or copies on a device. */
typedef struct bench_calls {
    tool_call calls[2][LOSS_MOST_CALLS];
    int counts[2];
    void *workspace; /* one serves every call */
    size_t workspace_size;
} bench_calls;

/* Only those of the works first to last - 1. What is claimed is released by bench_calls_drop, after a failure too. */
onepass_status bench_calls_make(bench_calls *it, onepass_handle *handle, const loss_case *problem,
                                const onepass_tensor tensors[LOSS_ARRAYS], int first, int last, bench_result *result);
onepass_status bench_calls_run(const bench_calls *it, onepass_handle *handle, bool gradient);
void bench_calls_drop(bench_calls *it, onepass_handle *handle);

/*
 * Fills the works first to last - 1, of which each pair of floor and operator is whole: names, bytes, floors and
 * samples. What the library refuses is its status. Without memory for the samples works[first].samples is NULL.
 */
onepass_status bench_loss(onepass_handle *handle, const loss_case *problem, team *members, bench_result *result,
                          int first, int last, const measure_rule *rule);

#endif
