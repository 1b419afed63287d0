/*
 * Where rows of any strides begin, and the values of rows that were summed in parts.
 */
#ifndef ONEP_KL_OFFSETS_CUH
#define ONEP_KL_OFFSETS_CUH

#include "cuda/elem.cuh"
#include "kl/cuda_args.h"

/* Where row `row` begins in each operand. */
struct row_offsets {
    long long predictions, targets, value, grad_predictions, grad_targets, upstream, weights, mask;
};

__device__ __forceinline__ void add_offsets(row_offsets &at, const onep_kl_rows_args &a, int k, long long index)
{
    at.predictions += index * a.predictions.row_stride[k];
    at.targets += index * a.targets.row_stride[k];
    at.value += index * a.value.row_stride[k];
    at.grad_predictions += index * a.grad_predictions.row_stride[k];
    at.grad_targets += index * a.grad_targets.row_stride[k];
    at.upstream += index * a.upstream.row_stride[k];
    at.weights += index * a.weights.row_stride[k];
    at.mask += index * a.mask.row_stride[k];
}

__device__ __forceinline__ row_offsets offsets_of(const onep_kl_rows_args &a, long long row)
{
    row_offsets at = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int k = a.rank - 1; k > 0; k--) {
        add_offsets(at, a, k, row % a.extent[k]);
        row /= a.extent[k];
    }
    if (a.rank > 0)
        add_offsets(at, a, 0, row);
    return at;
}

/* Every row's value from its parts' sums, in their order, by the block that ended last. */
template <int THREADS> __device__ __forceinline__ void sum_parts(const onep_kl_rows_args &a)
{
    for (long long row = threadIdx.x; row < a.rows; row += THREADS) {
        double sum = 0;
#pragma unroll 8
        for (long long part = 0; part < a.parts; part++)
            sum += __ldcg(a.common.partial + row * a.parts + part);
        store_any<double>(a.value.type, a.value.data + offsets_of(a, row).value, sum);
    }
}

#endif
