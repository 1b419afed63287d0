/*
 * Matrix products where cuBLASLt is missing or refuses: any strides, any types, sums in float or double in the order of
 * k. A block makes a 64 x 64 tile from 16 columns of both operands at a time, each thread 4 x 4 of it. Correct first.
 */
#include "cuda/elem.cuh"
#include "cuda/pdl.cuh"
#include "cuda/product_args.h"

/* Where row `row` of a side begins. */
__device__ __forceinline__ const char *row_of(const onep_product_side &s, long long row)
{
    const char *at = s.data;
    for (int k = s.rank - 1; k > 0; k--) {
        at += row % s.extent[k] * s.row_stride[k];
        row /= s.extent[k];
    }
    return s.rank > 0 ? at + row * s.row_stride[0] : at;
}

template <class R> __device__ __forceinline__ R element_of(const onep_product_side &s, long long i, long long k)
{
    long long row = s.swapped ? k : i, column = s.swapped ? i : k;
    return load_any<R>(s.type, row_of(s, row) + column * s.col_stride);
}

enum { TILE = ONEP_PRODUCT_TILE, DEEP = 16 };

/* 64 rows and 16 columns of an operand into shared memory; what is not there is 0. */
template <class R>
__device__ __forceinline__ void fill(R (&room)[DEEP][TILE + 1], const onep_product_side &s, long long begin,
                                     long long count, long long k, long long depth)
{
    for (int e = threadIdx.x; e < TILE * DEEP; e += ONEP_PRODUCT_THREADS) {
        /* neighbours in the warp are neighbours in memory, whichever way the operand lies */
        int i = s.swapped ? e % TILE : e / DEEP, d = s.swapped ? e / TILE : e % DEEP;
        room[d][i] = begin + i < count && k + d < depth ? element_of<R>(s, begin + i, k + d) : (R)0;
    }
}

template <class R> __device__ __forceinline__ void product(const onep_product_args &a)
{
    __shared__ R left[DEEP][TILE + 1], right[DEEP][TILE + 1];
    const long long m = blockIdx.x / a.n_tiles * TILE, n = blockIdx.x % a.n_tiles * TILE;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    R sum[4][4] = {};
    pdl_wait();
    for (long long k = 0; k < a.k; k += DEEP) {
        fill(left, a.a, m, a.m, k, a.k);
        fill(right, a.b, n, a.n, k, a.k);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            R l[4], r[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                l[i] = left[d][y * 4 + i];
                r[i] = right[d][x + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = multiply_add(l[i], r[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            long long row = m + y * 4 + i, column = n + x + 16 * j;
            if (row < a.m && column < a.n) {
                char *to = const_cast<char *>(row_of(a.c, row)) + column * a.c.col_stride;
                R bias = a.bias.data ? load_any<R>(a.bias.type, a.bias.data + column * a.bias.col_stride) : (R)0;
                R before = a.accumulates ? load_any<R>(a.c.type, to) : (R)0;
                store_any<R>(a.c.type, to, a.bias.data ? sum[i][j] + bias : a.accumulates ? before + sum[i][j] : sum[i][j]);
            }
        }
}

/* A strip of 32 columns per block, rows in 32 interleaved runs that are then added up in order; in double. */
__device__ __forceinline__ void column_sums(const onep_column_sums_args &a)
{
    __shared__ double room[32][33];
    const int lane = threadIdx.x & 31, run = threadIdx.x >> 5;
    const long long j = (long long)blockIdx.x * 32 + lane;
    pdl_wait();
    double sum = 0;
    if (j < a.columns)
#pragma unroll 4
        for (long long row = run; row < a.rows; row += 32)
            sum += load_any<double>(a.x.type, row_of(a.x, row) + j * a.x.col_stride);
    room[run][lane] = sum;
    __syncthreads();
    if (run != 0 || j >= a.columns)
        return;
    sum = a.before.data ? load_any<double>(a.before.type, a.before.data + j * a.before.col_stride) : 0.0;
    for (int k = 0; k < 32; k++)
        sum += room[k][lane];
    store_any<double>(a.out.type, a.out.data + j * a.out.col_stride, sum);
}

extern "C" __global__ void __launch_bounds__(ONEP_PRODUCT_THREADS) onep_product_any32(const onep_product_args a)
{
    product<float>(a);
}
extern "C" __global__ void __launch_bounds__(ONEP_PRODUCT_THREADS) onep_product_any64(const onep_product_args a)
{
    product<double>(a);
}
extern "C" __global__ void __launch_bounds__(ONEP_COLUMN_SUMS_THREADS, 1)
    onep_column_sums(const onep_column_sums_args a)
{
    column_sums(a);
}

/* c[m][n] += bias[n]: what the product before could not do itself. */
extern "C" __global__ void __launch_bounds__(ONEP_PRODUCT_THREADS) onep_add_bias(const onep_product_args a)
{
    pdl_wait();
    for (long long row = blockIdx.x; row < a.m; row += gridDim.x)
        for (long long n = threadIdx.x; n < a.n; n += ONEP_PRODUCT_THREADS) {
            char *at = const_cast<char *>(row_of(a.c, row)) + n * a.c.col_stride;
            const char *bias = a.bias.data + n * a.bias.col_stride;
            if (a.c.type == ONEP_CUDA_F64)
                store_any<double>(a.c.type, at, load_any<double>(a.c.type, at) + load_any<double>(a.bias.type, bias));
            else
                store_any<float>(a.c.type, at, load_any<float>(a.c.type, at) + load_any<float>(a.bias.type, bias));
        }
}
