/*
 * Splits an fp32 operand into planes of fp16, high and low, for the product on tensor cores: once scaled by rows, once
 * by chunks of 64 of a row; for operands whose depth lies along memory, and for those whose rows lie side by side.
 * Reads the operand once or, by rows, a second time out of a cache. Any strides; nothing outside the planes is written.
 * And the sum of a product that was made in parts.
 */
#include "early.cuh"
#include "split.cuh"

/* Four neighbours along the depth; 0 beyond its end. */
__device__ __forceinline__ void load_four(const char *row, long long stride, bool packed, long long k, long long depth,
                                          float (&to)[4])
{
    if (packed && k + 4 <= depth) {
        float4 four = *reinterpret_cast<const float4 *>(row + k * 4);
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = k + i < depth ? *reinterpret_cast<const float *>(row + (k + i) * stride) : 0.0f;
    }
}

/* True if fours of a row, counted from its beginning, are aligned. */
__device__ __forceinline__ bool is_packed(const onep_split_args &a, const char *row)
{
    return a.x.depth_stride == 4 && (unsigned long long)row % 16 == 0;
}

__device__ __forceinline__ float largest_of(const float (&x)[4], float most)
{
    return fmaxf(fmaxf(fmaxf(most, fabsf(x[0])), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
}

__device__ __forceinline__ void store_four(const onep_split_args &a, long long at, const float (&x)[4], float scale)
{
    uint2 high, low;
    split_two(x[0], x[1], scale, high.x, low.x);
    split_two(x[2], x[3], scale, high.y, low.y);
    *reinterpret_cast<uint2 *>(a.high + at) = high;
    *reinterpret_cast<uint2 *>(a.low + at) = low;
}

/*
 * Scaled by rows, a block a row, the depth along memory. Whole fours of an aligned row go first, in loops short enough
 * for 32 registers: then 8 blocks fit on a multiprocessor, and rows of a batch of 1024 are all on their way at once.
 * One value that the loops do not use finds no register, onep_split_rows: spills up to 8 bytes
 */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS, 8) onep_split_rows(const onep_split_args a)
{
    enum { WARPS = ONEP_SPLIT_THREADS / 32 };
    __shared__ float most_of[WARPS];
    const long long row = blockIdx.x;
    const char *from = a.x.data + row * a.x.row_stride;
    const int fours = is_packed(a, from) ? (int)(a.depth / 4) : 0;
    wait_for_previous();
    let_next_begin();
    float most = 0;
#pragma unroll 2
    for (int i = threadIdx.x; i < fours; i += ONEP_SPLIT_THREADS) {
        float4 x = reinterpret_cast<const float4 *>(from)[i];
        most = fmaxf(fmaxf(fmaxf(most, fabsf(x.x)), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
    }
#pragma unroll 1
    for (long long k = 4ll * fours + threadIdx.x; k < a.depth; k += ONEP_SPLIT_THREADS)
        most = fmaxf(most, fabsf(*reinterpret_cast<const float *>(from + k * a.x.depth_stride)));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
    if (threadIdx.x % 32 == 0)
        most_of[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        most = fmaxf(most, most_of[w]);
    const int exponent = split_exponent(most);
    const float scale = split_scale(exponent);
    if (threadIdx.x == 0)
        a.exponents[row] = (unsigned char)exponent;
    const unsigned after = (unsigned)(row + 1) % 8; /* exponents are read eight at a time */
    if (row == a.rows - 1 && after != 0 && threadIdx.x < 8 - after)
        a.exponents[row + 1 + threadIdx.x] = 0;
#pragma unroll 2
    for (int i = threadIdx.x; i < fours; i += ONEP_SPLIT_THREADS) {
        float4 x = reinterpret_cast<const float4 *>(from)[i];
        const float four[4] = {x.x, x.y, x.z, x.w};
        store_four(a, row * a.pitch + 4 * i, four, scale);
    }
#pragma unroll 1
    for (long long k = 4ll * (fours + threadIdx.x); k < a.pitch; k += 4 * ONEP_SPLIT_THREADS) {
        float x[4];
        load_four(from, a.x.depth_stride, false, k, a.depth, x);
        store_four(a, row * a.pitch + k, x, scale);
    }
}

/* COUNT neighbours along the depth, of one row of the operand. */
template <int COUNT>
__device__ __forceinline__ void load_across(const onep_split_args &a, long long row, long long k, float (&to)[COUNT])
{
    const char *from = a.x.data + row * a.x.row_stride + k * a.x.depth_stride;
    const int reach = row >= a.rows || k >= a.depth ? 0 : a.depth - k < COUNT ? (int)(a.depth - k) : COUNT;
#pragma unroll
    for (int i = 0; i < COUNT; i++, from += a.x.depth_stride)
        to[i] = i < reach ? *reinterpret_cast<const float *>(from) : 0.0f;
}

template <int COUNT>
__device__ __forceinline__ void store_across(const onep_split_args &a, long long at, const float (&x)[COUNT],
                                             float scale)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 8) {
        uint4 high, low;
        split_two(x[i], x[i + 1], scale, high.x, low.x);
        split_two(x[i + 2], x[i + 3], scale, high.y, low.y);
        split_two(x[i + 4], x[i + 5], scale, high.z, low.z);
        split_two(x[i + 6], x[i + 7], scale, high.w, low.w);
        *reinterpret_cast<uint4 *>(a.high + at + i) = high;
        *reinterpret_cast<uint4 *>(a.low + at + i) = low;
    }
}

/* Scaled by rows, 32 rows a block, rows side by side in memory: a lane has a row, a warp 16 of its depth. */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS, 2) onep_split_columns(const onep_split_args a)
{
    enum { WARPS = ONEP_SPLIT_THREADS / 32, EACH = 16 };
    __shared__ float most_of[WARPS][ONEP_SPLIT_STRIP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = (long long)blockIdx.x * ONEP_SPLIT_STRIP + lane;
    wait_for_previous();
    let_next_begin();
    float most = 0;
#pragma unroll 1
    for (long long k = warp * EACH; k < a.depth; k += WARPS * EACH) {
        float x[EACH];
        load_across(a, row, k, x);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            most = fmaxf(most, fabsf(x[i]));
    }
    most_of[warp][lane] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        most = fmaxf(most, most_of[w][lane]);
    const int exponent = split_exponent(most);
    const float scale = split_scale(exponent);
    if (warp == 0 && row < (a.rows + 7) / 8 * 8) /* they are read eight at a time */
        a.exponents[row] = (unsigned char)exponent;
    if (row >= a.rows)
        return;
#pragma unroll 1
    for (long long k = warp * EACH; k < a.pitch; k += WARPS * EACH) {
        float x[EACH];
        load_across(a, row, k, x);
        store_across(a, row * a.pitch + k, x, scale);
    }
}

/* Scaled by chunks, the depth along memory: half a warp has a chunk of a row. */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS) onep_split_chunks(const onep_split_args a)
{
    const long long chunks = a.pitch / ONEP_SPLIT_CHUNK;
    const long long item = (long long)blockIdx.x * ONEP_SPLIT_ITEMS + threadIdx.x / 16;
    const bool inside = item < a.rows * chunks;
    const long long row = inside ? item / chunks : 0, chunk = inside ? item % chunks : 0;
    const long long k = chunk * ONEP_SPLIT_CHUNK + threadIdx.x % 16 * 4;
    wait_for_previous();
    let_next_begin();
    const char *from = a.x.data + row * a.x.row_stride;
    float x[4];
    load_four(from, a.x.depth_stride, is_packed(a, from), k, a.depth, x);
    float most = largest_of(x, 0);
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
    if (!inside)
        return;
    const int exponent = split_exponent(most);
    if (threadIdx.x % 16 == 0)
        a.exponents[chunk * a.rows + row] = (unsigned char)exponent;
    store_four(a, row * a.pitch + k, x, split_scale(exponent));
}

/* Scaled by chunks, rows side by side in memory: a lane has a chunk of a row. */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS) onep_split_chunks_across(const onep_split_args a)
{
    const long long strips = (a.rows + ONEP_SPLIT_STRIP - 1) / ONEP_SPLIT_STRIP;
    const long long item = (long long)blockIdx.x * (ONEP_SPLIT_THREADS / 32) + threadIdx.x / 32;
    const long long row = item % strips * ONEP_SPLIT_STRIP + threadIdx.x % 32, chunk = item / strips;
    wait_for_previous();
    let_next_begin();
    if (row >= a.rows || chunk * ONEP_SPLIT_CHUNK >= a.pitch)
        return;
    float x[ONEP_SPLIT_CHUNK];
    load_across(a, row, chunk * ONEP_SPLIT_CHUNK, x);
    float most = 0;
#pragma unroll
    for (int i = 0; i < ONEP_SPLIT_CHUNK; i++)
        most = fmaxf(most, fabsf(x[i]));
    const int exponent = split_exponent(most);
    a.exponents[chunk * a.rows + row] = (unsigned char)exponent;
    store_across(a, row * a.pitch + chunk * ONEP_SPLIT_CHUNK, x, split_scale(exponent));
}

/* Adds the parts of a product whose depth was cut, in their order. */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS) onep_split_merge(const onep_split_merge_args a)
{
    const long long count = a.m * a.n;
    wait_for_previous();
    let_next_begin();
    for (long long e = (long long)blockIdx.x * ONEP_SPLIT_THREADS + threadIdx.x; e < count;
         e += (long long)gridDim.x * ONEP_SPLIT_THREADS) {
        const long long i = e / a.n, j = e % a.n;
        float sum = a.parts[e];
#pragma unroll 4
        for (int s = 1; s < a.splits; s++)
            sum += a.parts[s * count + e];
        if (a.bias.data)
            sum += *reinterpret_cast<const float *>(a.bias.data + j * a.bias.col_stride);
        *reinterpret_cast<float *>(a.c + i * a.c_row_stride + j * a.c_col_stride) = sum;
    }
}
