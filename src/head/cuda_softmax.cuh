/*
 * output = softmax over a row of z = slope y + offset, in base 2 (the factor log2(e) is in slope and offset). y is read
 * once where a row fits in the registers of a block, twice where it does not (the second time from cache). output may
 * be y itself: a thread writes only what it has read, and only after the kernel before is finished.
 *
 * Infinities and NaN come out as exp(z - max) / sum gives them: a row with a NaN, with +inf, or with nothing but -inf
 * is NaN throughout; -inf beside numbers is 0.
 */
#ifndef ONEP_HEAD_SOFTMAX_CUH
#define ONEP_HEAD_SOFTMAX_CUH

#include "head/cuda_elem.cuh"

/* Slope and offset of EACH columns; beyond the row z is -inf, and adds nothing. */
template <int EACH>
__device__ __forceinline__ void load_line(const onep_head_softmax_args &a, unsigned at, float *slope, float *offset)
{
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        float4 s = make_float4(0, 0, 0, 0);
        float4 o = make_float4(minus_infinity(0.0f), minus_infinity(0.0f), minus_infinity(0.0f), minus_infinity(0.0f));
        if (at < a.columns) {
            s = *reinterpret_cast<const float4 *>(static_cast<const float *>(a.slope) + at + i);
            o = *reinterpret_cast<const float4 *>(static_cast<const float *>(a.offset) + at + i);
        }
        slope[i] = s.x, slope[i + 1] = s.y, slope[i + 2] = s.z, slope[i + 3] = s.w;
        offset[i] = o.x, offset[i + 1] = o.y, offset[i + 2] = o.z, offset[i + 3] = o.w;
    }
}

/*
 * Rows in registers: a block takes block_rows rows, each thread COLUMNS of them in groups of 16 bytes of y. RESIDENT:
 * two rows at a time, slope and offset stay in registers too, and the next rows are on their way while these are worked
 * on; with more columns there is no room for any of that. y is asked for before the kernel in front is finished: that
 * one only reads y, see pdl.cuh.
 */
template <class Y, class T, int COLUMNS, bool RESIDENT>
__device__ __forceinline__ void head_softmax_rows(const onep_head_softmax_args &a)
{
    enum { ROWS = RESIDENT ? 2 : 1, EACH = element<Y>::lanes, GROUPS = COLUMNS / EACH };
    __shared__ float2 room[2][ROWS][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const long long first = blockIdx.x * a.block_rows;
    const long long end = first + a.block_rows < a.rows ? first + a.block_rows : a.rows;

    pack<Y> raw[ROWS][GROUPS];
    auto load = [&](long long row) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            /* an odd last row is done twice, and stored once */
            const char *from = a.y.data + (row + r < end ? row + r : end - 1) * a.y.row_stride;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                unsigned at = (g * blockDim.x + threadIdx.x) * EACH;
                raw[r][g] = pack<Y>();
                if (at < a.columns)
                    raw[r][g] = load_pack_l2<Y>(from + at * sizeof(Y));
            }
        }
    };
    load(first);
    pdl_wait();

    enum { KEPT = RESIDENT ? COLUMNS : EACH };
    float slope[KEPT], offset[KEPT];
    if (RESIDENT)
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            load_line<EACH>(a, (g * blockDim.x + threadIdx.x) * EACH, slope + g * EACH % KEPT,
                            offset + g * EACH % KEPT);

    int turn = 0;
#pragma unroll 1
    for (long long row = first; row < end; row += ROWS, turn ^= 1) {
        if (!RESIDENT && row > first)
            load(row);
        float z[ROWS][COLUMNS], most[ROWS], sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            most[r] = minus_infinity(0.0f);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (!RESIDENT)
                load_line<EACH>(a, (g * blockDim.x + threadIdx.x) * EACH, slope, offset);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float *own = z[r] + g * EACH;
                unpack<Y>(raw[r][g], own);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    own[i] = fmaf(slope[(g * EACH + i) % KEPT], own[i], offset[(g * EACH + i) % KEPT]);
                    most[r] = fmaxf(most[r], own[i]);
                }
            }
        }
        if (RESIDENT && row + ROWS < end)
            load(row + ROWS);

        /* exponentials relative to the warp's largest, which needs no barrier */
        over_warp_rows<take_largest>(most);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float base = most[r] == minus_infinity(0.0f) ? 0.0f : most[r]; /* a warp may have nothing but -inf */
            sum[r] = 0;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                z[r][i] = exp2_of(z[r][i] - base);
                sum[r] += z[r][i];
            }
        }
        over_warp_rows<take_sum>(sum);
        if (lane == 0)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                room[turn][r][warp] = make_float2(most[r], sum[r]);
        __syncthreads(); /* the other room is not written before every warp has passed here, and so has read it */

        /* all warps' sums, brought to the row's largest; every warp does the same */
        float largest[ROWS], total[ROWS];
        float2 one[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            one[r] = lane < warps ? room[turn][r][lane] : make_float2(minus_infinity(0.0f), 0);
            largest[r] = one[r].x;
        }
        over_warp_rows<take_largest>(largest);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            total[r] = one[r].y * exp2_of(one[r].x - largest[r]);
        over_warp_rows<take_sum>(total);

#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float factor = exp2_of(most[r] - largest[r]) / total[r];
#pragma unroll
            for (int i = 0; i < COLUMNS; i++)
                z[r][i] *= factor;
            if (row + r >= end)
                continue;
            char *to = a.output.data + (row + r) * a.output.row_stride;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                unsigned at = (g * blockDim.x + threadIdx.x) * EACH;
                if (at < a.columns)
                    group<T, EACH>::store(to + at * sizeof(T), z[r] + g * EACH);
            }
        }
    }
}

/* Largest and sum of exponentials so far. */
template <class R> struct softmax_state {
    R most, sum;

    __device__ __forceinline__ void add(R z)
    {
        if (z > most) {
            sum = sum * exp2_of(most - z) + exp2_of(z - z); /* 1; NaN if z is +inf */
            most = z;
        } else if (z != minus_infinity(z)) {
            sum += exp2_of(z - most); /* NaN if z is */
        }
    }
    __device__ __forceinline__ void join(R other_most, R other_sum)
    {
        R both = larger(most, other_most);
        R here = most == both ? sum : sum * exp2_of(most - both); /* -inf and -inf: nothing, and no NaN */
        sum = here + (other_most == both ? other_sum : other_sum * exp2_of(other_most - both));
        most = both;
    }
};

/* The state of the whole block, in every thread. */
template <class R> __device__ __forceinline__ softmax_state<R> over_block(softmax_state<R> s)
{
    __shared__ R room[2][32];
    const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        s.join(__shfl_xor_sync(0xffffffffu, s.most, offset), __shfl_xor_sync(0xffffffffu, s.sum, offset));
    __syncthreads(); /* the row before has been read */
    if (lane == 0) {
        room[0][threadIdx.x >> 5] = s.most;
        room[1][threadIdx.x >> 5] = s.sum;
    }
    __syncthreads();
    s.most = lane < warps ? room[0][lane] : minus_infinity(s.most);
    s.sum = lane < warps ? room[1][lane] : 0;
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        s.join(__shfl_xor_sync(0xffffffffu, s.most, offset), __shfl_xor_sync(0xffffffffu, s.sum, offset));
    if (s.most == minus_infinity(s.most))
        s.sum = s.most - s.most; /* nothing but -inf: NaN, as exp(-inf - -inf) is */
    return s;
}

/* Any length, strides and types: a row at a time, twice over it. */
template <class R> __device__ __forceinline__ void head_softmax_any(const onep_head_softmax_args &a)
{
    pdl_wait();
    const R *slope = static_cast<const R *>(a.slope), *offset = static_cast<const R *>(a.offset);
    for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const char *y = a.y.data + row * a.y.row_stride;
        char *to = a.output.data + row * a.output.row_stride;
        softmax_state<R> state = {minus_infinity((R)0), 0};
        for (long long j = threadIdx.x; j < a.columns; j += blockDim.x)
            state.add(multiply_add(slope[j], load_any<R>(a.y.type, y + j * a.y.col_stride), offset[j]));
        state = over_block(state);
        R factor = 1 / state.sum;
        for (long long j = threadIdx.x; j < a.columns; j += blockDim.x) {
            R z = multiply_add(slope[j], load_any<R>(a.y.type, y + j * a.y.col_stride), offset[j]);
            store_any<R>(a.output.type, to + j * a.output.col_stride, exp2_of(z - state.most) * factor);
        }
    }
}

/* Long rows whose elements lie side by side, 16 bytes of y at a time. */
template <class Y, class T> __device__ __forceinline__ void head_softmax_long(const onep_head_softmax_args &a)
{
    enum { EACH = element<Y>::lanes };
    pdl_wait();
    const float *slope = static_cast<const float *>(a.slope), *offset = static_cast<const float *>(a.offset);
    auto read = [&](const char *y, long long j, float *z) {
        pack<Y> raw = load_pack_l2<Y>(y + j * sizeof(Y));
        unpack<Y>(raw, z);
#pragma unroll
        for (int i = 0; i < EACH; i += 4) {
            float4 s = *reinterpret_cast<const float4 *>(slope + j + i);
            float4 o = *reinterpret_cast<const float4 *>(offset + j + i);
            z[i] = fmaf(s.x, z[i], o.x), z[i + 1] = fmaf(s.y, z[i + 1], o.y);
            z[i + 2] = fmaf(s.z, z[i + 2], o.z), z[i + 3] = fmaf(s.w, z[i + 3], o.w);
        }
    };
    for (long long row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const char *y = a.y.data + row * a.y.row_stride;
        char *to = a.output.data + row * a.output.row_stride;
        softmax_state<float> state = {minus_infinity(0.0f), 0};
#pragma unroll 2
        for (long long j = threadIdx.x * EACH; j < a.columns; j += blockDim.x * EACH) {
            float z[EACH], most = state.most;
            read(y, j, z);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                most = fmaxf(most, z[i]);
            float base = most == minus_infinity(0.0f) ? 0.0f : most, sum = 0;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                sum += exp2_of(z[i] - base);
            state.sum = fmaf(state.sum, exp2_of(state.most - base), sum);
            state.most = most;
        }
        state = over_block(state);
        float factor = 1 / state.sum;
#pragma unroll 2
        for (long long j = threadIdx.x * EACH; j < a.columns; j += blockDim.x * EACH) {
            float z[EACH];
            read(y, j, z);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                z[i] = exp2_of(z[i] - state.most) * factor;
            group<T, EACH>::store(to + j * sizeof(T), z);
        }
    }
}

/* Kernels from y of type Y to an output of type T. */
#define ONEP_HEAD_SOFTMAX(y, t, Y, T)                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024, 1)                                                              \
        onep_head_softmax_rows_##y##_##t(const onep_head_softmax_args a)                                               \
    {                                                                                                                  \
        head_softmax_rows<Y, T, 8, true>(a);                                                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024, 1)                                                              \
        onep_head_softmax_wide_##y##_##t(const onep_head_softmax_args a)                                               \
    {                                                                                                                  \
        head_softmax_rows<Y, T, 16, false>(a);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024, 1)                                                              \
        onep_head_softmax_long_##y##_##t(const onep_head_softmax_args a)                                               \
    {                                                                                                                  \
        head_softmax_long<Y, T>(a);                                                                                    \
    }

#endif
