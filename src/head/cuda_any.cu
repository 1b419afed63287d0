/* The head's kernels for any strides, alignment, length and types, computed in float or in double. */
#include "head/cuda_backward.cuh"
#include "head/cuda_softmax.cuh"
#include "head/cuda_stats.cuh"

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

/* A batch of no rows is counted too. It is normalised by the running statistics, or by none: NaN. One block. */
extern "C" __global__ void __launch_bounds__(ONEP_HEAD_STATS_THREADS) onep_head_count(const onep_head_stats_args a)
{
    const onep_head_features &f = a.features;
    const onep_matrix &bias = f.in[ONEP_HEAD_BIAS], &mean = f.in[ONEP_HEAD_MEAN], &var = f.in[ONEP_HEAD_SPREAD];
    const onep_matrix &to_mean = f.out[ONEP_HEAD_TO_MEAN], &to_rstd = f.out[ONEP_HEAD_TO_RSTD];
    pdl_wait();
    for (long long j = threadIdx.x; to_mean.data && j < f.columns; j += blockDim.x) {
        double centre = __longlong_as_double(0x7ff8000000000000ll), spread = centre;
        if (f.running) {
            centre = load_any<double>(mean.type, mean.data + j * mean.col_stride) -
                     (bias.data ? load_any<double>(bias.type, bias.data + j * bias.col_stride) : 0);
            spread = 1 / sqrt(load_any<double>(var.type, var.data + j * var.col_stride) + f.eps);
        }
        store_any<double>(to_mean.type, to_mean.data + j * to_mean.col_stride, centre);
        store_any<double>(to_rstd.type, to_rstd.data + j * to_rstd.col_stride, spread);
    }
    if (threadIdx.x == 0 && f.batches)
        *f.batches += 1;
}
