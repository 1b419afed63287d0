/*
 * Around the products of losses from hidden states: hidden states of a chunk brought together, with 0 where a row takes
 * no part, so that nothing of it reaches grad_weight; 0 in such rows of grad_input, whatever the weight holds; a product
 * added to what chunks before have made; the sum of all rows. Any strides and types; a block per row at a time.
 */
#include "cuda/elem.cuh"
#include "cuda/reduce.cuh"
#include "linear_loss/cuda_args.h"
#include "logits/cuda_args.h"

__device__ __forceinline__ bool takes_part(const onep_linear_loss_rows &rows, long long row)
{
    if (rows.mask.data && rows.mask.data[row * rows.mask.row_stride] == 0)
        return false;
    if (!rows.labels.data)
        return true;
    const char *at = rows.labels.data + row * rows.labels.row_stride;
    const long long label = rows.labels.type == ONEP_CUDA_I64 ? *reinterpret_cast<const long long *>(at)
                                                              : (long long)*reinterpret_cast<const int *>(at);
    return label != rows.ignore_index;
}

/* 16 bytes at a time: both sides of one type, elements side by side, rows at multiples of 16. */
__device__ __forceinline__ void copy_vectors(const onep_linear_loss_copy_args &a, long long row, bool is_copied)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(a.from.data + row * a.from.row_stride);
    uint4 *to = reinterpret_cast<uint4 *>(a.to.data + row * a.to.row_stride);
    const uint4 none = {0, 0, 0, 0};
    for (long long k = threadIdx.x; k < a.vectors; k += ONEP_LINEAR_LOSS_THREADS)
        to[k] = is_copied ? from[k] : none;
}

extern "C" __global__ void __launch_bounds__(ONEP_LINEAR_LOSS_THREADS)
    onep_linear_loss_copy(const __grid_constant__ onep_linear_loss_copy_args a)
{
    for (long long row = blockIdx.x; row < a.rows.count; row += gridDim.x) {
        const bool is_copied = takes_part(a.rows, row);
        if (is_copied && !a.from.data)
            continue;
        if (a.vectors > 0) {
            copy_vectors(a, row, is_copied);
            continue;
        }
        const char *from = a.from.data + row * a.from.row_stride;
        char *to = a.to.data + row * a.to.row_stride;
        for (long long k = threadIdx.x; k < a.columns; k += ONEP_LINEAR_LOSS_THREADS) {
            const double x = is_copied ? load_any<double>(a.from.type, from + k * a.from.col_stride) : 0.0;
            store_any<double>(a.to.type, to + k * a.to.col_stride, x);
        }
    }
}

extern "C" __global__ void __launch_bounds__(ONEP_LINEAR_LOSS_THREADS)
    onep_linear_loss_add(const __grid_constant__ onep_linear_loss_add_args a)
{
    for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const float *from = a.from + row * a.columns;
        char *to = a.to.data + row * a.to.row_stride;
        for (long long k = threadIdx.x; k < a.columns; k += ONEP_LINEAR_LOSS_THREADS) {
            char *at = to + k * a.to.col_stride;
            store_any<float>(a.to.type, at, load_any<float>(a.to.type, at) + from[k]);
        }
    }
}

/* One block; the order of the sum is fixed by the number of rows. */
extern "C" __global__ void __launch_bounds__(ONEP_LINEAR_LOSS_TOTAL_THREADS)
    onep_linear_loss_total(const __grid_constant__ onep_linear_loss_total_args a)
{
    __shared__ double room[32];
    const double total = sum_partials<ONEP_LINEAR_LOSS_TOTAL_THREADS>(a.values, a.count, room);
    if (threadIdx.x != 0)
        return;
    double divisor = a.divisor;
    if (a.counted)
        divisor = *a.counted;
    else if (a.divisor_from.data)
        divisor = load_any<double>(a.divisor_from.type, a.divisor_from.data);
    const bool is_none = a.counted && a.finite && divisor == 0;
    store_any<double>(a.to.type, a.to.data, is_none ? 0.0 : total / divisor);
}
