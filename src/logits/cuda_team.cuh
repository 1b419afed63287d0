/*
 * Threads that share a row held in shared memory: eight lanes, or a block. What they add up or compare is the same in
 * every thread, and its bits depend on how many threads there are, which the width decides.
 */
#ifndef ONEP_LOGITS_TEAM_CUH
#define ONEP_LOGITS_TEAM_CUH

#include "logits/cuda_args.h"

/* The larger one; NaN if either is. */
__device__ __forceinline__ float larger(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* Lanes whose exchanges share a mask; the result is the same in all of them. */
template <int LANES> __device__ __forceinline__ float largest_of_lanes(unsigned mask, float x)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset >>= 1)
        x = larger(x, __shfl_xor_sync(mask, x, offset));
    return x;
}
template <int LANES> __device__ __forceinline__ double sum_of_lanes(unsigned mask, double x)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset >>= 1)
        x += __shfl_xor_sync(mask, x, offset);
    return x;
}

/* Eight lanes: four rows per warp. */
struct octet {
    enum { HAS_SLICES = false }; /* of a row; too few columns for more than one */
    static __device__ __forceinline__ int rank()
    {
        return threadIdx.x & 7;
    }
    static __device__ __forceinline__ int size()
    {
        return 8;
    }
    static __device__ __forceinline__ int in_block()
    {
        return threadIdx.x >> 3;
    }
    static __device__ __forceinline__ long long index()
    {
        return blockIdx.x * (long long)ONEP_LOGITS_OCTETS + in_block();
    }
    static __device__ __forceinline__ unsigned mask()
    {
        return 0xffu << (threadIdx.x & 24);
    }
    /* What any lane has read comes before what any writes after it. */
    static __device__ __forceinline__ void sync()
    {
        __syncwarp(mask());
    }
    template <int N> static __device__ __forceinline__ void largest(float (&x)[N])
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = largest_of_lanes<8>(mask(), x[i]);
    }
    template <int N> static __device__ __forceinline__ void sum(double (&x)[N])
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = sum_of_lanes<8>(mask(), x[i]);
    }
};

/* A block of up to ONEP_LOGITS_MAX_WARPS warps; warps are merged in order, by every thread alike. */
struct whole_block {
    enum { HAS_SLICES = true };
    static __device__ __forceinline__ int rank()
    {
        return threadIdx.x;
    }
    static __device__ __forceinline__ int size()
    {
        return blockDim.x;
    }
    static __device__ __forceinline__ int in_block()
    {
        return 0;
    }
    static __device__ __forceinline__ long long index()
    {
        return blockIdx.x;
    }
    static __device__ __forceinline__ void sync()
    {
        __syncthreads();
    }
    template <int N> static __device__ __forceinline__ void largest(float (&x)[N])
    {
        __shared__ float room[N][ONEP_LOGITS_MAX_WARPS];
        __syncthreads(); /* what was here before has been read */
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = largest_of_lanes<32>(~0u, x[i]);
            if ((threadIdx.x & 31) == 0)
                room[i][threadIdx.x >> 5] = x[i];
        }
        __syncthreads(); /* and every warp's is there */
#pragma unroll
        for (int i = 0; i < N; i++)
            for (unsigned w = 0; w < blockDim.x / 32; w++)
                x[i] = larger(x[i], room[i][w]);
    }
    template <int N> static __device__ __forceinline__ void sum(double (&x)[N])
    {
        __shared__ double room[N][ONEP_LOGITS_MAX_WARPS];
        __syncthreads(); /* as above */
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = sum_of_lanes<32>(~0u, x[i]);
            if ((threadIdx.x & 31) == 0)
                room[i][threadIdx.x >> 5] = x[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = 0;
            for (unsigned w = 0; w < blockDim.x / 32; w++)
                x[i] += room[i][w];
        }
    }
};

#endif
