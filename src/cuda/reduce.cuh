/*
 * Sums in a fixed order: a shuffle tree within a warp, warps in order within a block, and for the whole grid one partial
 * sum per chunk in memory, added up by the block that finishes last. Which block that is does not change the order, so the
 * bits are the same on any grid. No floating-point atomics.
 */
#ifndef ONEP_REDUCE_CUH
#define ONEP_REDUCE_CUH

__device__ __forceinline__ double warp_sum(double x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* The sum over the block, valid in thread 0. `room` has a double per warp; callers alternate between two rooms. */
template <int THREADS> __device__ __forceinline__ double block_sum(double x, double *room)
{
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0)
        room[threadIdx.x >> 5] = x;
    __syncthreads(); /* without it warp 0 would add sums of the chunk before */
    if (threadIdx.x >= 32)
        return 0;
    return warp_sum(threadIdx.x < THREADS / 32 ? room[threadIdx.x] : 0.0);
}

/* The same for blocks of any number of warps. */
__device__ __forceinline__ double block_sum(double x, double *room)
{
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0)
        room[threadIdx.x >> 5] = x;
    __syncthreads(); /* as above */
    if (threadIdx.x >= 32)
        return 0;
    return warp_sum(threadIdx.x < blockDim.x / 32 ? room[threadIdx.x] : 0.0);
}

/*
 * True in every thread of the last of `blocks` blocks; what the others stored is visible to it then. The ticket wraps to 0
 * with the last block, ready for the next launch.
 */
__device__ __forceinline__ bool last_block(unsigned *ticket, unsigned blocks)
{
    __shared__ bool last;
    __syncthreads(); /* every thread's stores come before thread 0's fence */
    if (threadIdx.x == 0) {
        __threadfence(); /* stores before the ticket, or the last block would read stale ones */
        last = atomicInc(ticket, blocks - 1) == blocks - 1;
    }
    __syncthreads();
    if (last)
        __threadfence(); /* and the ticket before they are read */
    return last;
}

/* partial[0 .. count) by index, valid in thread 0. Read past the first-level cache, which does not see other blocks. */
template <int THREADS> __device__ __forceinline__ double sum_partials(const double *partial, long long count, double *room)
{
    double sum = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < count; i += THREADS)
        sum += __ldcg(partial + i);
    return block_sum<THREADS>(sum, room);
}

/* The same for blocks of any number of warps; `room` has 32 doubles. */
__device__ __forceinline__ double sum_partials(const double *partial, long long count, double *room)
{
    double sum = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < count; i += blockDim.x)
        sum += __ldcg(partial + i);
    return block_sum(sum, room);
}

#endif
