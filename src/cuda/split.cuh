/* Two fp16 for one fp32: see split_args.h. */
#ifndef ONEP_SPLIT_CUH
#define ONEP_SPLIT_CUH

#include "cuda/halves.cuh"
#include "cuda/split_args.h"

/* 2^n for -126 <= n <= 127. */
__device__ __forceinline__ float power_of_two(int n)
{
    return __int_as_float((127 + n) << 23);
}

/* The exponent a largest |x| is scaled with; fmaxf, which found it, has passed over NaN: they stay NaN in the planes.
 */
__device__ __forceinline__ int split_exponent(float largest)
{
    int e = __float_as_int(largest) >> 23;
    return e < ONEP_SPLIT_LEAST ? (int)ONEP_SPLIT_LEAST : e;
}

__device__ __forceinline__ float split_scale(int exponent)
{
    return power_of_two(ONEP_SPLIT_TOP - (exponent < 254 ? exponent : 254));
}

/*
 * high is x rounded to 11 bits; x - high is exact and has at most 13, so low is off by at most one unit of x's last
 * place. Products by powers of two are exact as well: the bits do not depend on whether the compiler fuses.
 */
__device__ __forceinline__ void split_two(float x, float y, float scale, unsigned &high, unsigned &low)
{
    float a = x * scale, b = y * scale, high_a, high_b;
    high = pack_halves(a, b);
    unpack_halves(high, high_a, high_b);
    low = pack_halves(a - high_a, b - high_b);
}

/* ---- sums of chunks ---------------------------------------------------------------------------------------------- */

enum {
    SUM_BASE = 87, /* 2^-40: below it sums are not scaled up to a row's first chunk, */
    SUM_ROOM = 80, /* and further above it none can be added to them */
};

__device__ __forceinline__ int first_base(int exponent)
{
    return exponent > SUM_BASE ? exponent : (int)SUM_BASE;
}

/*
 * What a chunk's sums are multiplied by before they are added to a row's: 2^(exponent - base), 0 if that is no normal
 * float. The base is the row's first chunk's exponent: a float holds everything up to 2^80 times that, and all that is
 * not too small to matter. A row with a larger chunk (is_summed) gets nonsense, and is made again without factors.
 */
__device__ __forceinline__ float chunk_factor(int exponent, int base)
{
    const int n = 127 + exponent - base;
    return __int_as_float((n > 0 ? n : 0) << 23);
}

/* Whether a row's sums are what they should be; largest: its chunks' largest exponent. */
__device__ __forceinline__ bool is_summed(int largest, int base)
{
    return largest != ONEP_SPLIT_INFINITE && largest - base <= SUM_ROOM;
}

/* x 2^n, rounded once: the first of two steps cannot leave the range that the second does not leave as well. */
__device__ __forceinline__ float scaled(float x, int n)
{
    return x * power_of_two(n >> 1) * power_of_two(n - (n >> 1));
}

/* One element's part in the order of k, without tensor cores: where an infinity must stay what it is. */
__device__ __forceinline__ float plain_sum(const onep_split_product_args &a, long long i, long long j, int split)
{
    const long long each = (long long)a.split_chunks * ONEP_SPLIT_CHUNK, begin = split * each;
    const long long end = begin + each < a.depth ? begin + each : a.depth;
    const char *left = a.left_side.data + i * a.left_side.row_stride + begin * a.left_side.depth_stride;
    const char *right = a.right_side.data + j * a.right_side.row_stride + begin * a.right_side.depth_stride;
    float sum = 0;
#pragma unroll 4
    for (long long k = begin; k < end; k++, left += a.left_side.depth_stride, right += a.right_side.depth_stride)
        sum = fmaf(*reinterpret_cast<const float *>(left), *reinterpret_cast<const float *>(right), sum);
    return sum;
}

__device__ __forceinline__ float *element_at(const onep_split_product_args &a, long long i, long long j, int split)
{
    return reinterpret_cast<float *>(a.c + split * a.split_stride + i * a.c_left_stride + j * a.c_right_stride);
}

#endif
