/*
 * Splits an fp32 operand into planes of fp16, high and low, for the product on tensor cores: once scaled by rows, once
 * by chunks of 64 of a row; for operands whose depth lies along memory, and for those whose rows lie side by side.
 * Reads the operand once or, where a row does not fit in registers, a second time out of a cache. Any strides; nothing
 * outside the planes is written.
 * And the sum of a product that was made in parts.
 */
#include "cuda/pdl.cuh"
#include "cuda/split.cuh"

/* Four neighbours along the depth; 0 beyond its end. */
__device__ __forceinline__ float4 load_four(const char *row, long long stride, bool packed, long long k,
                                            long long depth)
{
    if (packed && k + 4 <= depth)
        return *reinterpret_cast<const float4 *>(row + k * 4);
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = k + i < depth ? *reinterpret_cast<const float *>(row + (k + i) * stride) : 0.0f;
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* True if fours of a row, counted from its beginning, are aligned. */
__device__ __forceinline__ bool is_packed(const onep_split_args &a, const char *row)
{
    return a.x.depth_stride == 4 && (unsigned long long)row % 16 == 0;
}

__device__ __forceinline__ float largest_of(float4 x, float most)
{
    return fmaxf(fmaxf(fmaxf(most, fabsf(x.x)), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

__device__ __forceinline__ void store_four(const onep_split_args &a, long long at, float4 x, float scale)
{
    uint2 high, low;
    split_two(x.x, x.y, scale, high.x, low.x);
    split_two(x.z, x.w, scale, high.y, low.y);
    *reinterpret_cast<uint2 *>(a.high + at) = high;
    *reinterpret_cast<uint2 *>(a.low + at) = low;
}

/* ---- by rows, one block per row, the depth along memory------------------------------------------------------------ */

__device__ __forceinline__ float largest_of_warp(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
    return x;
}

/* The exponent of the block's row, from each thread's largest element; it is written, and after the last row zeros up
 * to a multiple of eight: exponents are read eight at a time. */
template <int THREADS> __device__ __forceinline__ int row_exponent(const onep_split_args &a, long long row, float most)
{
    __shared__ float most_of[THREADS / 32];
    const int lane = threadIdx.x % 32;
    most = largest_of_warp(most);
    if (lane == 0)
        most_of[threadIdx.x / 32] = most;
    __syncthreads();
    most = largest_of_warp(lane < THREADS / 32 ? most_of[lane] : 0.0f);
    const int exponent = split_exponent(most);
    if (threadIdx.x == 0)
        a.exponents[row] = (unsigned char)exponent;
    const unsigned after = (unsigned)(row + 1) % 8;
    if (row == a.rows - 1 && after != 0 && threadIdx.x < 8 - after)
        a.exponents[row + 1 + threadIdx.x] = 0;
    return exponent;
}

/*
 * Any row, read twice. Whole fours of an aligned row go first, in loops short enough for 32 registers: then 8 blocks
 * fit on a multiprocessor. One value that the loops do not use finds no register, onep_split_rows: spills up to 8 bytes
 */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS, 8) onep_split_rows(const onep_split_args a)
{
    const long long row = blockIdx.x;
    const char *from = a.x.data + row * a.x.row_stride;
    const int fours = is_packed(a, from) ? (int)(a.depth / 4) : 0;
    pdl_wait();
    pdl_launch_dependents();
    float most = 0;
#pragma unroll 2
    for (int i = threadIdx.x; i < fours; i += ONEP_SPLIT_THREADS)
        most = largest_of(reinterpret_cast<const float4 *>(from)[i], most);
#pragma unroll 1
    for (long long k = 4ll * fours + threadIdx.x; k < a.depth; k += ONEP_SPLIT_THREADS)
        most = fmaxf(most, fabsf(*reinterpret_cast<const float *>(from + k * a.x.depth_stride)));
    const float scale = split_scale(row_exponent<ONEP_SPLIT_THREADS>(a, row, most));
#pragma unroll 2
    for (int i = threadIdx.x; i < fours; i += ONEP_SPLIT_THREADS)
        store_four(a, row * a.pitch + 4 * i, reinterpret_cast<const float4 *>(from)[i], scale);
#pragma unroll 1
    for (long long k = 4ll * (fours + threadIdx.x); k < a.pitch; k += 4 * ONEP_SPLIT_THREADS)
        store_four(a, row * a.pitch + k, load_four(from, a.x.depth_stride, false, k, a.depth), scale);
}

/* A row of whole, aligned fours, up to EACH per thread, is held in registers and read once. */
template <int THREADS, int EACH> __device__ __forceinline__ void split_held_row(const onep_split_args &a)
{
    const long long row = blockIdx.x;
    const float4 *from = reinterpret_cast<const float4 *>(a.x.data + row * a.x.row_stride);
    const int fours = (int)(a.depth / 4), stored = (int)(a.pitch / 4);
    float4 x[EACH];
    float most = 0;
    pdl_wait();
    pdl_launch_dependents();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = i * THREADS + (int)threadIdx.x;
        x[i] = at < fours ? from[at] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        most = largest_of(x[i], most);
    const float scale = split_scale(row_exponent<THREADS>(a, row, most));
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = i * THREADS + (int)threadIdx.x;
        if (at < stored)
            store_four(a, row * a.pitch + 4 * at, x[i], scale);
    }
}

extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS, 6) onep_split_rows_4096(const onep_split_args a)
{
    split_held_row<ONEP_SPLIT_THREADS, 4096 / (4 * ONEP_SPLIT_THREADS)>(a);
}
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS, 4) onep_split_rows_8192(const onep_split_args a)
{
    split_held_row<ONEP_SPLIT_THREADS, 8192 / (4 * ONEP_SPLIT_THREADS)>(a);
}
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_HELD_THREADS, 2) onep_split_rows_16384(const onep_split_args a)
{
    split_held_row<ONEP_SPLIT_HELD_THREADS, 16384 / (4 * ONEP_SPLIT_HELD_THREADS)>(a);
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

/* x * scale, split. */
__device__ __forceinline__ void split_eight(const float *x, float scale, uint4 &high, uint4 &low)
{
    split_two(x[0], x[1], scale, high.x, low.x);
    split_two(x[2], x[3], scale, high.y, low.y);
    split_two(x[4], x[5], scale, high.z, low.z);
    split_two(x[6], x[7], scale, high.w, low.w);
}

/*
 * ---- by rows, 32 rows per block, rows side by side in memory
 * A lane has a row, and its warp 16 of the depth at a time: element (lane, k) comes from 128 bytes that the warp reads
 * at once. Planes are written the other way round, along the depth.
 */

enum { ACROSS_EACH = 16 };

/* The exponent of a lane's row, from its warp's largest elements of it; written up to a multiple of eight rows. */
template <int THREADS> __device__ __forceinline__ int lane_exponent(const onep_split_args &a, long long row, float most)
{
    __shared__ float most_of[THREADS / 32][ONEP_SPLIT_STRIP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    most_of[warp][lane] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++)
        most = fmaxf(most, most_of[w][lane]);
    const int exponent = split_exponent(most);
    if (warp == 0 && row < (a.rows + 7) / 8 * 8)
        a.exponents[row] = (unsigned char)exponent;
    return exponent;
}

template <int COUNT> __device__ __forceinline__ float largest_of(const float (&x)[COUNT], float most)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        most = fmaxf(most, fabsf(x[i]));
    return most;
}

/*
 * Stores what the block's warps have of depth k to k + THREADS / 2. By way of shared memory: rows of a plane are often
 * a power of two apart, and a warp that wrote to 32 of them would find few parts of the second-level cache at work.
 */
template <int THREADS>
__device__ __forceinline__ void store_strip(const onep_split_args &a, long long first_row, long long k,
                                            const float (&x)[ACROSS_EACH], float scale)
{
    enum { DEEP = THREADS / 2, PACKS = DEEP / 8, ITEMS = 2 * ONEP_SPLIT_STRIP * PACKS };
    __shared__ uint4 room[2 * ONEP_SPLIT_STRIP][PACKS + 1]; /* one more: lanes then meet in no bank */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    split_eight(x, scale, room[lane][2 * warp], room[ONEP_SPLIT_STRIP + lane][2 * warp]);
    split_eight(x + 8, scale, room[lane][2 * warp + 1], room[ONEP_SPLIT_STRIP + lane][2 * warp + 1]);
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < ITEMS; i += THREADS) {
        const int at = i % PACKS, low = i / (ONEP_SPLIT_STRIP * PACKS), row = i / PACKS % ONEP_SPLIT_STRIP;
        unsigned short *plane = low ? a.low : a.high;
        if (first_row + row < a.rows && k + 8 * at < a.pitch)
            *reinterpret_cast<uint4 *>(plane + (first_row + row) * a.pitch + k + 8 * at) = room[i / PACKS][at];
    }
    __syncthreads(); /* or the next part would be written over this one */
}

/* Any depth, read twice. */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS, 2) onep_split_columns(const onep_split_args a)
{
    enum { STEP = ONEP_SPLIT_THREADS / 2 };
    const long long first_row = (long long)blockIdx.x * ONEP_SPLIT_STRIP, row = first_row + threadIdx.x % 32;
    const int first = threadIdx.x / 32 * ACROSS_EACH;
    pdl_wait();
    pdl_launch_dependents();
    float x[ACROSS_EACH], most = 0;
#pragma unroll 1
    for (long long k = first; k < a.depth; k += STEP) {
        load_across(a, row, k, x);
        most = largest_of(x, most);
    }
    const float scale = split_scale(lane_exponent<ONEP_SPLIT_THREADS>(a, row, most));
#pragma unroll 1
    for (long long k = 0; k < a.pitch; k += STEP) {
        load_across(a, row, k + first, x);
        store_strip<ONEP_SPLIT_THREADS>(a, first_row, k, x, scale);
    }
}

/* A depth of up to 1024 is held in registers, and read once. */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_HELD_THREADS) onep_split_columns_1024(const onep_split_args a)
{
    enum { STEP = ONEP_SPLIT_HELD_THREADS / 2, TIMES = 1024 / STEP };
    const long long first_row = (long long)blockIdx.x * ONEP_SPLIT_STRIP, row = first_row + threadIdx.x % 32;
    const int first = threadIdx.x / 32 * ACROSS_EACH;
    float x[TIMES][ACROSS_EACH], most = 0;
    pdl_wait();
    pdl_launch_dependents();
#pragma unroll
    for (int i = 0; i < TIMES; i++)
        load_across(a, row, first + i * STEP, x[i]);
#pragma unroll
    for (int i = 0; i < TIMES; i++)
        most = largest_of(x[i], most);
    const float scale = split_scale(lane_exponent<ONEP_SPLIT_HELD_THREADS>(a, row, most));
#pragma unroll
    for (int i = 0; i < TIMES; i++)
        if (i * STEP < a.pitch)
            store_strip<ONEP_SPLIT_HELD_THREADS>(a, first_row, i * STEP, x[i], scale);
}

/* ---- by chunks ----------------------------------------------------------------------------------------------------
 */

/* Scaled by chunks, the depth along memory: half a warp has a chunk of a row. */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS) onep_split_chunks(const onep_split_args a)
{
    const long long chunks = a.pitch / ONEP_SPLIT_CHUNK;
    const long long item = (long long)blockIdx.x * ONEP_SPLIT_ITEMS + threadIdx.x / 16;
    const bool inside = item < a.rows * chunks;
    const long long row = inside ? item / chunks : 0, chunk = inside ? item % chunks : 0;
    const long long k = chunk * ONEP_SPLIT_CHUNK + threadIdx.x % 16 * 4;
    pdl_wait();
    pdl_launch_dependents();
    const char *from = a.x.data + row * a.x.row_stride;
    const float4 x = load_four(from, a.x.depth_stride, is_packed(a, from), k, a.depth);
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
    pdl_wait();
    pdl_launch_dependents();
    if (row >= a.rows || chunk * ONEP_SPLIT_CHUNK >= a.pitch)
        return;
    float x[ONEP_SPLIT_CHUNK];
    load_across(a, row, chunk * ONEP_SPLIT_CHUNK, x);
    const int exponent = split_exponent(largest_of(x, 0));
    a.exponents[chunk * a.rows + row] = (unsigned char)exponent;
#pragma unroll
    for (int i = 0; i < ONEP_SPLIT_CHUNK; i += 8) {
        uint4 high, low;
        split_eight(x + i, split_scale(exponent), high, low);
        const long long at = row * a.pitch + chunk * ONEP_SPLIT_CHUNK + i;
        *reinterpret_cast<uint4 *>(a.high + at) = high;
        *reinterpret_cast<uint4 *>(a.low + at) = low;
    }
}

/* Adds the parts of a product whose depth was cut, in their order. */
extern "C" __global__ void __launch_bounds__(ONEP_SPLIT_THREADS) onep_split_merge(const onep_split_merge_args a)
{
    const long long count = a.m * a.n;
    pdl_wait();
    pdl_launch_dependents();
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
