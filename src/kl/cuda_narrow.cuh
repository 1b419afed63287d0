/*
 * KL divergence over narrow rows of at most one dimension, with weights, masks and values per row: a block takes some
 * whole rows at a time, a thread every so-manieth of their elements, so that neighbouring threads read neighbouring
 * elements however short a row is. The terms of each element, the linear one apart, wait in shared memory until a few
 * threads per row add them up, in double. Nothing else is stored but the results and one double per tile. Masked rows
 * are not read.
 */
#ifndef ONEP_KL_NARROW_CUH
#define ONEP_KL_NARROW_CUH

#include "kl/cuda_rows.cuh"

/* What an element adds to its row. */
template <class R> struct narrow_terms {
    R linear, rest;
};

template <class R> struct narrow_room {
    narrow_terms<R> terms[ONEP_CUDA_NARROW];
    R weight[ONEP_CUDA_NARROW];     /* per row, of values */
    R grad_scale[ONEP_CUDA_NARROW]; /* per row */
    double sums[ONEP_CUDA_NARROW_THREADS / 32];
};

__device__ __forceinline__ bool narrow_masked(const onep_kl_rows_args &a, long long row)
{
    return a.mask.data && a.mask.data[row * a.mask.row_stride[0]] == 0;
}

/* The row that element `e` of some rows is in. */
__device__ __forceinline__ int narrow_row(const onep_kl_rows_args &a, int e)
{
    return a.magic ? (int)__umulhi((unsigned)e, a.magic) : e; /* a single column has no magic number */
}

__device__ __forceinline__ double narrow_weight(const onep_kl_rows_args &a, long long row)
{
    return a.weights.data ? load_any<double>(a.weights.type, a.weights.data + row * a.weights.row_stride[0]) : 1.0;
}

/* Where element `e` of the rows from `first_row` on is, row r and column c of them. DENSE: rows follow each other. */
template <class T, bool DENSE>
__device__ __forceinline__ char *narrow_at(const onep_kl_strided &o, long long first_row, int e, int r, int c)
{
    if (DENSE)
        return o.data + first_row * o.row_stride[0] + e * (int)sizeof(T);
    return o.data + (first_row + r) * o.row_stride[0] + c * o.col_stride;
}

/* The results of one element that are wanted of those a kernel is made for. */
template <class T, int MOST, bool DENSE>
__device__ __forceinline__ void
narrow_store(const onep_kl_rows_args &a, long long first_row, int e, int r, int c, typename column_type<T>::real value,
             typename column_type<T>::real grad_prediction, typename column_type<T>::real grad_target)
{
    typedef column_type<T> C;
    const int outputs = a.common.outputs & MOST;
    if (outputs & ONEP_CUDA_VALUE)
        store_any(a.value.type, narrow_at<T, false>(a.value, first_row, e, r, c), value);
    if (outputs & ONEP_CUDA_GRAD_PREDICTIONS)
        C::store(a.grad_predictions, narrow_at<T, DENSE>(a.grad_predictions, first_row, e, r, c), grad_prediction);
    if (outputs & ONEP_CUDA_GRAD_TARGETS)
        C::store(a.grad_targets, narrow_at<T, DENSE>(a.grad_targets, first_row, e, r, c), grad_target);
}

/* What the upstream gradient of an element is, where there is one for each. */
template <int MOST> __device__ __forceinline__ double narrow_upstream(const onep_kl_rows_args &a, long long row, int c)
{
    if (!(MOST & ONEP_CUDA_VALUE) || !a.upstream.data || a.per_row)
        return 1;
    return load_any<double>(a.upstream.type,
                            a.upstream.data + row * a.upstream.row_stride[0] + c * a.upstream.col_stride);
}

/* Every element of rows [first_row, first_row + rows): element-wise results, and the terms in shared memory. */
template <class T, int FORM, int MOST, bool DENSE>
__device__ __forceinline__ void narrow_elements(const onep_kl_rows_args &a, long long first_row, int rows,
                                                narrow_room<typename column_type<T>::real> &room)
{
    typedef column_type<T> C;
    typedef typename C::real R;
    const int ahead = 4; /* elements a thread loads before it computes */
    const int columns = (int)a.columns;
    const int count = rows * columns;
    const bool by_row = a.weights.data || a.mask.data || (a.upstream.data && a.per_row);
    const R d_target_at_zero = a.common.finite ? (R)0 : (R)ONEP_KL_NAN;
    const R one_scale = (R)(upstream_of(a.common) * a.common.grad_scale);
#pragma unroll 1
    for (int first = threadIdx.x; first < count; first += ONEP_CUDA_NARROW_THREADS * ahead) {
        R p[ahead];
        R t[ahead];
        int row[ahead];
        int column[ahead];
        unsigned taken = 0; /* elements of rows that are not masked */
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int e = first + ONEP_CUDA_NARROW_THREADS * i;
            row[i] = column[i] = 0;
            if (!DENSE || by_row) {
                row[i] = narrow_row(a, e);
                column[i] = e - row[i] * columns;
            }
            if (e < count && !narrow_masked(a, first_row + row[i])) {
                taken |= 1u << i;
                p[i] = C::load(a.predictions, narrow_at<T, DENSE>(a.predictions, first_row, e, row[i], column[i]));
                t[i] = C::load(a.targets, narrow_at<T, DENSE>(a.targets, first_row, e, row[i], column[i]));
            }
        }
        unsigned left = 0; /* elements that are not ordinary */
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int e = first + ONEP_CUDA_NARROW_THREADS * i;
            if (e >= count)
                continue;
            narrow_terms<R> sum = {0, 0};
            if (!(taken & 1u << i)) {
                narrow_store<T, MOST, DENSE>(a, first_row, e, row[i], column[i], 0, 0, 0);
            } else {
                kl_terms<R> terms = terms_of<FORM, true, false, R>(p[i], t[i], d_target_at_zero);
                if (!terms.ordinary) {
                    left |= 1u << i;
                    continue;
                }
                sum.linear = terms.linear;
                sum.rest = math<R>::multiply_add(terms.binades, (R)math<R>::ln2_of_binade(), terms.rest);
                R scale = by_row ? room.grad_scale[row[i]] : one_scale;
                if (MOST & ONEP_CUDA_VALUE)
                    scale = (R)(scale * narrow_upstream<MOST>(a, first_row + row[i], column[i]));
                narrow_store<T, MOST, DENSE>(a, first_row, e, row[i], column[i],
                                             terms.value() * (by_row ? room.weight[row[i]] : (R)1),
                                             terms.d_prediction * scale, terms.d_target * scale);
            }
            room.terms[e] = sum;
        }
#pragma unroll 1
        for (int e = first; left != 0; e += ONEP_CUDA_NARROW_THREADS, left >>= 1) {
            if (!(left & 1))
                continue;
            const int r = narrow_row(a, e);
            const int c = e - r * columns;
            R prediction = C::load(a.predictions, narrow_at<T, DENSE>(a.predictions, first_row, e, r, c));
            R target = C::load(a.targets, narrow_at<T, DENSE>(a.targets, first_row, e, r, c));
            onep_kl_element x = by_definition<FORM, R>(prediction, target, a.common.finite);
            double scale = by_row ? room.grad_scale[r] : one_scale;
            scale *= narrow_upstream<MOST>(a, first_row + r, c);
            narrow_store<T, MOST, DENSE>(a, first_row, e, r, c, (R)(x.value * (by_row ? (double)room.weight[r] : 1.0)),
                                         (R)(x.d_prediction * scale), (R)(x.d_target * scale));
            narrow_terms<R> sum = {0, (R)x.value};
            room.terms[e] = sum;
        }
    }
}

/* The values of rows [first_row, first_row + rows) from the terms in shared memory; returns what this thread's make up.
 */
template <class R>
__device__ __forceinline__ double narrow_sums(const onep_kl_rows_args &a, long long first_row, int rows,
                                              const narrow_room<R> &room)
{
    const int columns = (int)a.columns;
    const int group = a.group;
    const int lane = threadIdx.x & (group - 1);
    double all = 0;
#pragma unroll 1
    for (int first = 0; first < rows; first += ONEP_CUDA_NARROW_THREADS / group) { /* the same number in every thread */
        const int r = first + threadIdx.x / group;
        double sum = 0;
        if (r < rows)
#pragma unroll 4
            for (int c = lane; c < columns; c += group) {
                narrow_terms<R> terms = room.terms[r * columns + c];
                sum += (double)terms.linear + (double)terms.rest;
            }
        for (int offset = group / 2; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (r >= rows || lane != 0)
            continue;
        sum = narrow_masked(a, first_row + r) ? 0.0 : narrow_weight(a, first_row + r) * sum;
        if (a.per_row)
            store_any<double>(a.value.type, a.value.data + (first_row + r) * a.value.row_stride[0], sum);
        all += sum;
    }
    return all;
}

template <class T, int FORM, int MOST, bool DENSE> __device__ __forceinline__ void kl_narrow(const onep_kl_rows_args &a)
{
    typedef typename column_type<T>::real R;
    __shared__ narrow_room<R> room;
    if (already_made(a.common))
        return; /* no block gets further */
    const bool sums = (a.common.outputs & ONEP_CUDA_SUM) != 0;
    const bool one_value = sums && !a.per_row;
    const bool by_row = a.weights.data || a.mask.data || (a.upstream.data && a.per_row);
    const int most = (int)a.strip;
    for (long long tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        double all = 0;
        for (int i = 0; i < a.tile_strips; i++) {
            const long long first_row = (tile * a.tile_strips + i) * most;
            if (first_row >= a.rows)
                break; /* the same for the whole block */
            const int rows = a.rows - first_row < most ? (int)(a.rows - first_row) : most;
            if (by_row) {
                for (int r = threadIdx.x; r < rows; r += ONEP_CUDA_NARROW_THREADS) {
                    double weight = narrow_weight(a, first_row + r);
                    double upstream =
                        a.upstream.data && a.per_row
                            ? load_any<double>(a.upstream.type,
                                               a.upstream.data + (first_row + r) * a.upstream.row_stride[0])
                            : upstream_of(a.common);
                    room.weight[r] = (R)weight;
                    room.grad_scale[r] = (R)(weight * upstream * a.common.grad_scale);
                }
                __syncthreads(); /* scales come before the elements they are for */
            }
            narrow_elements<T, FORM, MOST, DENSE>(a, first_row, rows, room);
            __syncthreads(); /* all terms come before their sums */
            if (sums)
                all += narrow_sums<R>(a, first_row, rows, room);
            __syncthreads(); /* and sums before the next rows' terms */
        }
        if (!one_value)
            continue;
        all = block_sum<ONEP_CUDA_NARROW_THREADS>(all, room.sums);
        if (threadIdx.x == 0)
            a.common.partial[tile] = all;
        __syncthreads(); /* the next tile uses the same room */
    }
    if (!one_value || !last_block(a.common.ticket, gridDim.x))
        return;
    double sum = sum_partials<ONEP_CUDA_NARROW_THREADS>(a.common.partial, a.tiles, room.sums);
    if (threadIdx.x == 0)
        store_any<double>(a.common.value_type, a.common.value, sum * a.common.value_scale);
}

/* Values per row or of all with the gradient to the predictions, where rows follow each other; and anything. */
#define ONEP_KL_NARROW_KERNEL(T, form, name, most, dense, blocks)                                                      \
    extern "C" __global__ void __launch_bounds__(ONEP_CUDA_NARROW_THREADS, blocks)                                     \
        onep_kl_narrow_##T##_##form##_##name(const onep_kl_rows_args a)                                                \
    {                                                                                                                  \
        kl_narrow<T, form, most, dense>(a);                                                                            \
    }
#define ONEP_KL_NARROW(T, form)                                                                                        \
    ONEP_KL_NARROW_KERNEL(T, form, grad, ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS, true, 7)                          \
    ONEP_KL_NARROW_KERNEL(                                                                                             \
        T, form, any, ONEP_CUDA_SUM | ONEP_CUDA_VALUE | ONEP_CUDA_GRAD_PREDICTIONS | ONEP_CUDA_GRAD_TARGETS, false, 5)

#endif
