/*
 * KL divergence over rows with any strides, types, weights, masks and per-row results, still in one pass. A warp does a
 * strip of a row, a block a tile of consecutive strips; sums are added in the order of strips, warps and tiles, which
 * depends on the shape alone. Masked rows are not read.
 */
#ifndef ONEP_KL_ROWS_CUH
#define ONEP_KL_ROWS_CUH

#include "cuda/reduce.cuh"
#include "kl/cuda_offsets.cuh"
#include "kl/cuda_terms.cuh"

/* Elements of a type known at compile time, or (ANY) told by the operand. */
struct any32 {
};
struct any64 {
};
template <class T> struct column_type {
    typedef typename element<T>::real real;
    static __device__ __forceinline__ real load(const onep_kl_strided &, const char *from)
    {
        return widen(*reinterpret_cast<const T *>(from));
    }
    static __device__ __forceinline__ void store(const onep_kl_strided &, char *to, real x)
    {
        narrow(*reinterpret_cast<T *>(to), x);
    }
};
template <class R> struct any_column {
    typedef R real;
    static __device__ __forceinline__ R load(const onep_kl_strided &o, const char *from)
    {
        return load_any<R>(o.type, from);
    }
    static __device__ __forceinline__ void store(const onep_kl_strided &o, char *to, R x)
    {
        store_any<R>(o.type, to, x);
    }
};
template <> struct column_type<any32> : any_column<float> {
};
template <> struct column_type<any64> : any_column<double> {
};

/* The results of one element, where they belong. */
template <class T>
__device__ __forceinline__ void
rows_store(const onep_kl_rows_args &a, const row_offsets &at, long long c, typename column_type<T>::real value,
           typename column_type<T>::real grad_prediction, typename column_type<T>::real grad_target)
{
    typedef column_type<T> C;
    const int outputs = a.common.outputs;
    if (outputs & ONEP_CUDA_VALUE)
        store_any(a.value.type, a.value.data + at.value + c * a.value.col_stride, value);
    if (outputs & ONEP_CUDA_GRAD_PREDICTIONS)
        C::store(a.grad_predictions, a.grad_predictions.data + at.grad_predictions + c * a.grad_predictions.col_stride,
                 grad_prediction);
    if (outputs & ONEP_CUDA_GRAD_TARGETS)
        C::store(a.grad_targets, a.grad_targets.data + at.grad_targets + c * a.grad_targets.col_stride, grad_target);
}

/* Columns [begin, end) of a row that takes part, every 32nd per lane; returns the lane's sum of values, unweighted. */
template <class T, int FORM>
__device__ __forceinline__ double rows_columns(const onep_kl_rows_args &a, const row_offsets &at, long long begin,
                                               long long end, double weight, double grad_scale)
{
    typedef column_type<T> C;
    typedef typename C::real R;
    const int ahead = 4; /* elements a lane loads before it computes */
    const R d_target_at_zero = a.common.finite ? (R)0 : (R)ONEP_KL_NAN;
    const char *predictions = a.predictions.data + at.predictions;
    const char *targets = a.targets.data + at.targets;
    kl_sums<R> sums;
    sums.clear();
    double total = 0;
    for (long long first = begin + (threadIdx.x & 31); first < end; first += 32 * ahead) {
        R p[ahead];
        R t[ahead];
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            long long c = first + 32 * i;
            if (c < end) {
                p[i] = C::load(a.predictions, predictions + c * a.predictions.col_stride);
                t[i] = C::load(a.targets, targets + c * a.targets.col_stride);
            }
        }
        unsigned left = 0; /* elements that are not ordinary */
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            long long c = first + 32 * i;
            if (c >= end)
                continue;
            kl_terms<R> terms = terms_of<FORM, true, false, R>(p[i], t[i], d_target_at_zero);
            if (!terms.ordinary) {
                left |= 1u << i;
                continue;
            }
            sums.linear += terms.linear;
            sums.rest += terms.rest;
            sums.binades += terms.binades;
            double scale = grad_scale;
            if (a.upstream.data && !a.per_row)
                scale *= load_any<double>(a.upstream.type, a.upstream.data + at.upstream + c * a.upstream.col_stride);
            rows_store<T>(a, at, c, terms.value() * (R)weight, terms.d_prediction * (R)scale,
                          terms.d_target * (R)scale);
        }
        total += sums.total(); /* short runs in the computed type, then double */
        sums.clear();
#pragma unroll 1
        for (long long c = first; left != 0; c += 32, left >>= 1) {
            if (!(left & 1))
                continue;
            R prediction = C::load(a.predictions, predictions + c * a.predictions.col_stride);
            R target = C::load(a.targets, targets + c * a.targets.col_stride);
            onep_kl_element e = by_definition<FORM, R>(prediction, target, a.common.finite);
            double scale = grad_scale;
            if (a.upstream.data && !a.per_row)
                scale *= load_any<double>(a.upstream.type, a.upstream.data + at.upstream + c * a.upstream.col_stride);
            total += (double)(R)e.value;
            rows_store<T>(a, at, c, (R)(e.value * weight), (R)(e.d_prediction * scale), (R)(e.d_target * scale));
        }
    }
    return total;
}

template <class T>
__device__ __forceinline__ void rows_masked(const onep_kl_rows_args &a, const row_offsets &at, long long begin,
                                            long long end)
{
    for (long long c = begin + (threadIdx.x & 31); c < end; c += 32)
        rows_store<T>(a, at, c, 0, 0, 0);
}

/* One strip: its element-wise results, its row's value if the row is one strip; returns its weighted sum. */
template <class T, int FORM>
__device__ __forceinline__ double rows_strip(const onep_kl_rows_args &a, long long strip, double upstream_one)
{
    long long row = strip / a.parts;
    long long begin = (strip - row * a.parts) * a.strip;
    long long end = begin + a.strip < a.columns ? begin + a.strip : a.columns;
    row_offsets at = offsets_of(a, row);
    double sum = 0;
    if (a.mask.data && a.mask.data[at.mask] == 0) {
        rows_masked<T>(a, at, begin, end);
    } else {
        double weight = a.weights.data ? load_any<double>(a.weights.type, a.weights.data + at.weights) : 1.0;
        double upstream = upstream_one;
        if (a.upstream.data && a.per_row)
            upstream = load_any<double>(a.upstream.type, a.upstream.data + at.upstream);
        double grad_scale = weight * upstream * a.common.grad_scale;
        sum = weight * warp_sum(rows_columns<T, FORM>(a, at, begin, end, weight, grad_scale));
    }
    if (a.per_row && (a.common.outputs & ONEP_CUDA_SUM) && (threadIdx.x & 31) == 0) {
        if (a.parts == 1)
            store_any<double>(a.value.type, a.value.data + at.value, sum);
        else
            a.common.partial[strip] = sum;
    }
    return sum;
}

template <class T, int FORM> __device__ __forceinline__ void kl_rows(const onep_kl_rows_args &a)
{
    const int warps = ONEP_CUDA_ROWS_THREADS / 32;
    __shared__ double room[2][warps];
    if (already_made(a.common))
        return; /* no block gets further */
    const double upstream_one = upstream_of(a.common);
    const bool one_value = (a.common.outputs & ONEP_CUDA_SUM) && !a.per_row;
    int turn = 0;
    for (long long tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, turn ^= 1) {
        /* Each warp takes consecutive strips, so that the sum runs in their order. */
        long long share = a.tile_strips / warps;
        long long first = tile * a.tile_strips + (threadIdx.x >> 5) * share;
        double sum = 0;
        for (long long strip = first; strip < first + share && strip < a.strips; strip++)
            sum += rows_strip<T, FORM>(a, strip, upstream_one);
        if (!one_value)
            continue;
        if ((threadIdx.x & 31) == 0)
            room[turn][threadIdx.x >> 5] = sum;
        __syncthreads(); /* without it thread 0 would add sums of the tile before */
        if (threadIdx.x == 0) {
            double of_tile = 0;
            for (int w = 0; w < warps; w++)
                of_tile += room[turn][w];
            a.common.partial[tile] = of_tile;
        }
    }
    const bool rows_in_parts = (a.common.outputs & ONEP_CUDA_SUM) && a.per_row && a.parts > 1;
    if (!one_value && !rows_in_parts)
        return;
    if (!last_block(a.common.ticket, gridDim.x))
        return;
    if (one_value) {
        double sum = sum_partials<ONEP_CUDA_ROWS_THREADS>(a.common.partial, a.tiles, room[turn]);
        if (threadIdx.x == 0)
            store_any<double>(a.common.value_type, a.common.value, sum * a.common.value_scale);
    }
    if (rows_in_parts)
        sum_parts<ONEP_CUDA_ROWS_THREADS>(a);
}

/* Rows of any strides. */
#define ONEP_KL_ROWS(T, form)                                                                                          \
    extern "C" __global__ void __launch_bounds__(ONEP_CUDA_ROWS_THREADS, 3)                                            \
        onep_kl_rows_##T##_##form(const onep_kl_rows_args a)                                                           \
    {                                                                                                                  \
        kl_rows<T, form>(a);                                                                                           \
    }

#endif
