/* The head's kernels for any strides, alignment, length and types, computed in float or in double. */
#include "head_backward.cuh"
#include "head_softmax.cuh"
#include "head_stats.cuh"

ONEP_HEAD_STATS(any32, loose_columns<float>, 4)
ONEP_HEAD_STATS(any64, loose_columns<double>, 2)

#define ONEP_HEAD_ANY(name, R)                                                                                         \
    extern "C" __global__ void __launch_bounds__(ONEP_HEAD_STATS_THREADS)                                              \
        onep_head_prepare_##name(const onep_head_stats_args a)                                                         \
    {                                                                                                                  \
        head_prepare<R>(a);                                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_HEAD_ANY_THREADS)                                                \
        onep_head_softmax_##name(const onep_head_softmax_args a)                                                       \
    {                                                                                                                  \
        head_softmax_any<R>(a);                                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024, 1) onep_head_grad_rows_##name(const onep_head_grad_args a)      \
    {                                                                                                                  \
        head_grad_rows_any<R>(a);                                                                                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_HEAD_GRAD_THREADS, 1)                                            \
        onep_head_grad_columns_##name(const onep_head_grad_args a)                                                     \
    {                                                                                                                  \
        head_grad_columns<loose_grads<R>>(a);                                                                          \
    }
/* Where the product makes statistics itself, it is one of fp32. */
extern "C" __global__ void __launch_bounds__(ONEP_HEAD_STATS_THREADS)
    onep_head_merge_any32(const onep_head_stats_args a)
{
    head_merge<float>(a);
}
ONEP_HEAD_ANY(any32, float)
ONEP_HEAD_ANY(any64, double)

/* A batch of no rows is counted too. */
extern "C" __global__ void onep_head_count(const onep_head_stats_args a)
{
    wait_for_previous();
    if (threadIdx.x == 0)
        *a.features.batches += 1;
}
