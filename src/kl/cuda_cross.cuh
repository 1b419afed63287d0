/*
 * KL divergence where two layouts meet: neighbours in a row lie side by side in the predictions, neighbours in a column
 * in the targets, as when one of them is transposed. A block takes a square tile at a time; the targets go through
 * shared memory, so that both are read, and gradients written, along their own memory. Nothing else is stored but one
 * double per group of tiles. Concurrent blocks have neighbouring tiles, so that pages of either tensor are used up
 * together.
 */
#ifndef ONEP_KL_CROSS_CUH
#define ONEP_KL_CROSS_CUH

#include "kl/cuda_rows.cuh"

/* Row and column of tiles of the tile with this number: bands of 16 rows of tiles, each walked column by column. */
__device__ __forceinline__ void cross_place(const onep_kl_rows_args &a, long long number, long long &row,
                                            long long &column)
{
    const long long down = (a.rows + ONEP_CUDA_CROSS - 1) / ONEP_CUDA_CROSS;
    const long long across = (a.columns + ONEP_CUDA_CROSS - 1) / ONEP_CUDA_CROSS;
    const long long band = number / (16 * across);
    const long long height = down - 16 * band < 16 ? down - 16 * band : 16;
    const unsigned rest = (unsigned)(number - 16 * across * band);
    row = (16 * band + rest % (unsigned)height) * ONEP_CUDA_CROSS;
    column = (long long)(rest / (unsigned)height) * ONEP_CUDA_CROSS;
}

/* A column of a tile begins one bank after the one before it. */
template <class T> struct cross_room {
    enum { stride = ONEP_CUDA_CROSS + (sizeof(T) < 4 ? 4 / sizeof(T) : 1) };
    T at[ONEP_CUDA_CROSS][stride];
};

/* One tile; returns the thread's sum. Of the outputs only those in MOST are made. WHOLE: it lies within the tensors. */
template <class T, int FORM, int MOST, bool WHOLE>
__device__ __forceinline__ double cross_tile(const onep_kl_rows_args &a, long long first_row, long long first_column,
                                             typename element<T>::real grad_scale, cross_room<T> &room)
{
    typedef typename element<T>::real R;
    const int side = ONEP_CUDA_CROSS;
    const int step = ONEP_CUDA_CROSS_THREADS / side; /* rows or columns that are taken at once */
    const int steps = side / step;
    const int ahead = sizeof(T) > 4 ? 4 : 8; /* elements loaded before the first is used */
    const int outputs = a.common.outputs & MOST;
    const R d_target_at_zero = a.common.finite ? (R)0 : (R)ONEP_KL_NAN;
    const int along = threadIdx.x % side;
    const int other = threadIdx.x / side;
    const int rows = WHOLE || a.rows - first_row > side ? side : (int)(a.rows - first_row);
    const int columns = WHOLE || a.columns - first_column > side ? side : (int)(a.columns - first_column);
    {
        const char *at =
            a.targets.data + (first_column + other) * a.targets.col_stride + (first_row + along) * (long long)sizeof(T);
#pragma unroll
        for (int first = 0; first < steps; first += ahead) {
            T t[ahead];
#pragma unroll
            for (int i = 0; i < ahead; i++, at += step * a.targets.col_stride)
                if (WHOLE || (along < rows && other + (first + i) * step < columns))
                    t[i] = *reinterpret_cast<const T *>(at);
#pragma unroll
            for (int i = 0; i < ahead; i++)
                if (WHOLE || (along < rows && other + (first + i) * step < columns))
                    room.at[other + (first + i) * step][along] = t[i];
        }
    }
    const long long row = first_row + other;
    const long long offset = (first_column + along) * (long long)sizeof(T);
    const char *from = a.predictions.data + row * a.predictions.row_stride[0] + offset;
    char *to = a.grad_predictions.data + row * a.grad_predictions.row_stride[0] + offset;
    kl_sums<R> sums;
    sums.clear();
    unsigned left = 0; /* elements that are not ordinary */
#pragma unroll
    for (int first = 0; first < steps; first += ahead) {
        T p[ahead];
#pragma unroll
        for (int i = 0; i < ahead; i++, from += step * a.predictions.row_stride[0])
            if (WHOLE || (along < columns && other + (first + i) * step < rows))
                p[i] = *reinterpret_cast<const T *>(from);
        if (first == 0)
            __syncthreads(); /* all targets come before the first use */
#pragma unroll
        for (int i = 0; i < ahead; i++, to += step * a.grad_predictions.row_stride[0]) {
            const int r = other + (first + i) * step;
            if (!WHOLE && (along >= columns || r >= rows))
                continue;
            kl_terms<R> terms = terms_of<FORM, true, false, R>(widen(p[i]), widen(room.at[along][r]), d_target_at_zero);
            if (!terms.ordinary) {
                left |= 1u << (first + i);
                continue;
            }
            sums.linear += terms.linear;
            sums.rest += terms.rest;
            sums.binades += terms.binades;
            if (outputs & ONEP_CUDA_GRAD_PREDICTIONS)
                narrow(*reinterpret_cast<T *>(to), terms.d_prediction * grad_scale);
            if (outputs & ONEP_CUDA_GRAD_TARGETS) /* in the target's place, which no other thread needs */
                narrow(room.at[along][r], terms.d_target * grad_scale);
        }
    }
#pragma unroll 1
    for (int r = other; left != 0; left >>= 1, r += step) {
        if (!(left & 1))
            continue;
        const R p = widen(
            *reinterpret_cast<const T *>(a.predictions.data + (first_row + r) * a.predictions.row_stride[0] + offset));
        onep_kl_element e = by_definition<FORM, R>(p, widen(room.at[along][r]), a.common.finite);
        sums.special += (double)(R)e.value;
        if (outputs & ONEP_CUDA_GRAD_PREDICTIONS)
            narrow(*reinterpret_cast<T *>(a.grad_predictions.data + (first_row + r) * a.grad_predictions.row_stride[0] +
                                          offset),
                   (R)(e.d_prediction * (double)grad_scale));
        if (outputs & ONEP_CUDA_GRAD_TARGETS)
            narrow(room.at[along][r], (R)(e.d_target * (double)grad_scale));
    }
    __syncthreads(); /* before the next tile's targets, or other threads' gradients, are in the room */
    if (outputs & ONEP_CUDA_GRAD_TARGETS) {
#pragma unroll 4
        for (int c = other; c < columns; c += step)
            if (along < rows)
                reinterpret_cast<T *>(a.grad_targets.data +
                                      (first_column + c) * a.grad_targets.col_stride)[first_row + along] =
                    room.at[c][along];
        __syncthreads();
    }
    return sums.total();
}

template <class T, int FORM, int MOST> __device__ __forceinline__ void kl_cross(const onep_kl_rows_args &a)
{
    typedef typename element<T>::real R;
    __shared__ cross_room<T> room;
    __shared__ double sums[ONEP_CUDA_CROSS_THREADS / 32];
    if (already_made(a.common))
        return; /* no block gets further */
    const R grad_scale = (R)(upstream_of(a.common) * a.common.grad_scale);
    const bool one_value = (a.common.outputs & ONEP_CUDA_SUM) != 0;
    for (long long tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        double sum = 0;
        for (long long strip = tile; strip < a.strips; strip += a.tiles) {
            long long row, column;
            cross_place(a, strip, row, column);
            if (row + ONEP_CUDA_CROSS <= a.rows && column + ONEP_CUDA_CROSS <= a.columns)
                sum += cross_tile<T, FORM, MOST, true>(a, row, column, grad_scale, room);
            else
                sum += cross_tile<T, FORM, MOST, false>(a, row, column, grad_scale, room);
        }
        if (!one_value)
            continue;
        sum = block_sum<ONEP_CUDA_CROSS_THREADS>(sum, sums);
        if (threadIdx.x == 0)
            a.common.partial[tile] = sum;
        __syncthreads(); /* the next tile uses the same room */
    }
    if (!one_value || !last_block(a.common.ticket, gridDim.x))
        return;
    double sum = sum_partials<ONEP_CUDA_CROSS_THREADS>(a.common.partial, a.tiles, sums);
    if (threadIdx.x == 0)
        store_any<double>(a.common.value_type, a.common.value, sum * a.common.value_scale);
}

/* The value, the value and the gradient to the predictions, and both gradients. */
#define ONEP_KL_CROSS_KERNEL(T, form, name, most, blocks)                                                              \
    extern "C" __global__ void __launch_bounds__(ONEP_CUDA_CROSS_THREADS, blocks)                                      \
        onep_kl_cross_##T##_##form##_##name(const onep_kl_rows_args a)                                                 \
    {                                                                                                                  \
        kl_cross<T, form, most>(a);                                                                                    \
    }
#define ONEP_KL_CROSS(T, form, sum_blocks, grad_blocks)                                                                \
    ONEP_KL_CROSS_KERNEL(T, form, sum, ONEP_CUDA_SUM, sum_blocks)                                                      \
    ONEP_KL_CROSS_KERNEL(T, form, grad, ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS, grad_blocks)                       \
    ONEP_KL_CROSS_KERNEL(T, form, any, ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS | ONEP_CUDA_GRAD_TARGETS, 2)

#endif
