/*
 * The head on a CUDA device, below its entry points: workspace and launches for checked problems. A call
 * allocates, copies and waits for nothing; the bits of everything but the products (cuBLASLt's) depend on shape and
 * layout alone.
 */
#ifndef ONEP_HEAD_CUDA_H
#define ONEP_HEAD_CUDA_H

#include "head/head.h"
#include "linear/cuda.h"

/* Parts of a call, as bits; tools time them one by one. */
typedef enum onep_head_stage {
    ONEP_HEAD_PRODUCT = 1,    /* y = input weight^T; backward: gradients of input and weight */
    ONEP_HEAD_STATISTICS = 2, /* slope and offset of every feature; backward: the pass over rows */
    ONEP_HEAD_SOFTMAX = 4,    /* the output; backward: the pass over columns */
    ONEP_HEAD_ALL = 7,
} onep_head_stage;

/*
 * Stages of a planned call. The product is built where the problem keeps it, else in the output, if that has the
 * computed type and its rows are contiguous, else in the workspace. A batch without rows is counted and nothing else is
 * done.
 */
onepass_status onep_head_cuda_run(const onepass_handle *handle, onep_plan *plan, int stages);
onepass_status onep_head_backward_cuda_run(const onepass_handle *handle, onep_plan *plan, int stages);

#endif
