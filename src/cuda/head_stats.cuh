/*
 * Column statistics of y = input weight^T, and what they become: slope and offset of the next kernel, mean and rstd for
 * backward, running statistics. y is read once.
 *
 * A block has a chunk of rows of a strip of columns in registers. Twice over it: the mean m, then the sums s1 of y - m
 * and s2 of its square, so that with n rows
 *
 *   mean = m + s1 / n          M2 = s2 - s1^2 / n
 *
 * hold to the rounding of m's own error, whatever |mean| / sigma is: the sum of squares minus the square of the sum is
 * never taken of y itself. Chunks, then blocks (by the one that finishes last) are merged in the order of rows, in
 * double: the bits depend on the shape alone.
 */
#ifndef ONEP_HEAD_STATS_CUH
#define ONEP_HEAD_STATS_CUH

#include "head_elem.cuh"

/* Columns of a strip as a warp reads them: 16 bytes a lane, side by side. */
template <class T> struct packed_columns {
    typedef typename element<T>::real real;
    typedef pack<T> raw;
    enum { each = element<T>::lanes, threads = ONEP_HEAD_STRIP / each, chunk = ONEP_HEAD_CHUNK };
    static __device__ __forceinline__ int column(int thread, int i)
    {
        return thread * each + i;
    }
    static __device__ __forceinline__ void load(const onep_head_matrix &y, long long row, long long columns,
                                                long long begin, int thread, raw &to)
    {
        if (begin + thread * each < columns) /* columns are a multiple of a pack's elements */
            to = load_pack_l2<T>(y.data + row * y.row_stride + (begin + thread * each) * (long long)sizeof(T));
    }
    static __device__ __forceinline__ void values(const raw &from, real *to)
    {
        unpack<T>(from, to);
    }
};

/* Any strides and alignment, any type. */
template <class R> struct loose_columns {
    typedef R real;
    struct raw {
        R at[4];
    };
    enum { each = 4, threads = ONEP_HEAD_STRIP / 4, chunk = ONEP_HEAD_CHUNK_ANY };
    static __device__ __forceinline__ int column(int thread, int i)
    {
        return thread + threads * i;
    }
    static __device__ __forceinline__ void load(const onep_head_matrix &y, long long row, long long columns,
                                                long long begin, int thread, raw &to)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            long long j = begin + column(thread, i);
            if (j < columns)
                to.at[i] = load_any<R>(y.type, y.data + row * y.row_stride + j * y.col_stride);
        }
    }
    static __device__ __forceinline__ void values(const raw &from, R *to)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = from.at[i];
    }
};

struct column_state {
    double count, sum, m2;
};

/* Chan's rule: the state of the rows so far, and n more rows. A sum is kept, not a mean: infinities stay what they are. */
__device__ __forceinline__ void merge(column_state &s, double n, double mean, double m2)
{
    double all = s.count + n, difference = s.count > 0 ? mean - s.sum / s.count : 0.0;
    s.m2 += m2 + difference * difference * (s.count * n / all);
    s.sum += n * mean;
    s.count = all;
}

/*
 * Feature j, given the mean of y (without the bias) and the sum of its squared deviations over the batch.
 *   z = scale (gamma (y - mean) rstd + beta),   log2(e) z = slope y + offset
 * offset is made for the slope as it was rounded: only its own rounding is left, once, however large the mean is.
 */
template <class R>
__device__ __forceinline__ void finish_feature(const onep_head_features &f, long long j, double mean, double m2)
{
    double bias = feature(f.bias, j, 0), rstd;
    if (f.running) {
        mean = feature(f.running_mean, j, 0) - bias;
        rstd = 1 / sqrt(feature(f.running_var, j, 1) + f.eps);
    } else {
        double rows = (double)f.rows, factor = f.momentum;
        if (f.cumulative)
            factor = 1 / (double)(*f.batches + 1);
        if (f.running_mean.data) {
            store_feature(f.running_mean, j, (1 - factor) * feature(f.running_mean, j, 0) + factor * (mean + bias));
            store_feature(f.running_var, j, (1 - factor) * feature(f.running_var, j, 1) + factor * (m2 / (rows - 1)));
        }
        mean += bias - bias; /* a bias that is not finite does not cancel */
        rstd = 1 / sqrt(m2 / rows + f.eps);
    }
    store_feature(f.mean, j, mean);
    store_feature(f.rstd, j, rstd);
    const double log2e = 1.4426950408889634;
    double scale = feature(f.scale, j, 1) * log2e;
    R slope = (R)(scale * feature(f.gamma, j, 1) * rstd);
    static_cast<R *>(f.slope)[j] = slope;
    static_cast<R *>(f.offset)[j] = (R)fma(-(double)slope, mean, scale * feature(f.beta, j, 0));
}

/* True in every thread of the last of `count` blocks; what the others wrote is visible to it. Leaves the ticket at 0. */
__device__ __forceinline__ bool last_of(unsigned *ticket, unsigned count)
{
    __shared__ bool last;
    __syncthreads(); /* every thread's stores come before thread 0's fence */
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(ticket, count - 1) == count - 1;
    }
    __syncthreads();
    if (last)
        __threadfence();
    return last;
}

/* The last of all strips counts the batch; by then every strip has read the counter. */
__device__ __forceinline__ void count_batch(const onep_head_features &f, unsigned *ticket, unsigned strips)
{
    if (f.batches && !f.running && last_of(ticket, strips) && threadIdx.x == 0)
        *f.batches += 1;
}

/* Merges the blocks of a strip. Sums of means and of their deviations: no division, so nothing waits for one. */
__device__ __forceinline__ void merge_splits(const onep_head_stats_args &a, long long j, double &mean, double &m2)
{
    const double2 *partial = reinterpret_cast<const double2 *>(a.partial) + j;
    long long columns = a.features.columns, rows = a.features.rows;
    double sum = 0, squares = 0;
#pragma unroll 8
    for (int s = 0; s < a.splits; s++) {
        long long left = rows - s * a.split_rows;
        sum += (double)(left < a.split_rows ? left : a.split_rows) * __ldcg(partial + s * columns).x;
    }
    mean = sum / (double)rows;
#pragma unroll 8
    for (int s = 0; s < a.splits; s++) {
        long long left = rows - s * a.split_rows;
        double2 one = __ldcg(partial + s * columns);
        squares += one.y + (double)(left < a.split_rows ? left : a.split_rows) * ((one.x - mean) * (one.x - mean));
    }
    m2 = squares;
}

template <class SOURCE> __device__ __forceinline__ void head_stats(const onep_head_stats_args &a)
{
    typedef typename SOURCE::real real;
    enum {
        THREADS = ONEP_HEAD_STATS_THREADS,
        AT_ONCE = THREADS / SOURCE::threads, /* rows the block reads side by side */
        PASSES = SOURCE::chunk / AT_ONCE,
    };
    __shared__ real room[2][AT_ONCE][ONEP_HEAD_STRIP];
    __shared__ real center[ONEP_HEAD_STRIP];
    const int strip = blockIdx.x % a.strips, split = blockIdx.x / a.strips;
    const int thread = threadIdx.x % SOURCE::threads, lane_row = threadIdx.x / SOURCE::threads;
    const long long begin_column = (long long)strip * ONEP_HEAD_STRIP, columns = a.features.columns;
    const long long first = split * a.split_rows;
    const long long end = first + a.split_rows < a.features.rows ? first + a.split_rows : a.features.rows;
    const bool owner = threadIdx.x < ONEP_HEAD_STRIP && begin_column + threadIdx.x < columns;

    wait_for_previous();
    let_next_begin();
    column_state state = {0, 0, 0};
    for (long long row = first; row < end; row += SOURCE::chunk) {
        const int count = (int)(end - row < SOURCE::chunk ? end - row : SOURCE::chunk);
        typename SOURCE::raw raw[PASSES];
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            raw[p] = typename SOURCE::raw();
            if (p * AT_ONCE + lane_row < count)
                SOURCE::load(a.y, row + p * AT_ONCE + lane_row, columns, begin_column, thread, raw[p]);
        }

        /* the mean; rows beyond the end are zeros */
        real sum[SOURCE::each] = {};
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            real y[SOURCE::each];
            SOURCE::values(raw[p], y);
#pragma unroll
            for (int i = 0; i < SOURCE::each; i++)
                sum[i] += y[i];
        }
#pragma unroll
        for (int i = 0; i < SOURCE::each; i++)
            room[0][lane_row][SOURCE::column(thread, i)] = sum[i];
        __syncthreads();
        if (threadIdx.x < ONEP_HEAD_STRIP) {
            real total = 0;
#pragma unroll
            for (int g = 0; g < AT_ONCE; g++)
                total += room[0][g][threadIdx.x];
            center[threadIdx.x] = total / (real)count;
        }
        __syncthreads();

        /* the deviations from it */
        real s1[SOURCE::each] = {}, s2[SOURCE::each] = {}, m[SOURCE::each];
#pragma unroll
        for (int i = 0; i < SOURCE::each; i++)
            m[i] = center[SOURCE::column(thread, i)];
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            real y[SOURCE::each];
            SOURCE::values(raw[p], y);
            if (p * AT_ONCE + lane_row < count) {
#pragma unroll
                for (int i = 0; i < SOURCE::each; i++) {
                    real d = y[i] - m[i];
                    s1[i] += d;
                    s2[i] = multiply_add(d, d, s2[i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < SOURCE::each; i++) {
            room[0][lane_row][SOURCE::column(thread, i)] = s1[i];
            room[1][lane_row][SOURCE::column(thread, i)] = s2[i];
        }
        __syncthreads();
        if (owner) {
            double t1 = 0, t2 = 0, n = count;
#pragma unroll
            for (int g = 0; g < AT_ONCE; g++) {
                t1 += (double)room[0][g][threadIdx.x];
                t2 += (double)room[1][g][threadIdx.x];
            }
            double m2 = t2 - t1 * t1 / n;
            double shift = t1 == t1 ? t1 / n : 0.0; /* from an infinite mean there are no deviations */
            merge(state, n, (double)center[threadIdx.x] + shift, m2 < 0 ? 0 : m2); /* NaN stays */
        }
        __syncthreads(); /* or a fast warp would write the next chunk's sums over this one's */
    }

    const long long j = begin_column + threadIdx.x;
    double mean = state.sum / state.count;
    if (a.splits > 1) {
        if (owner)
            reinterpret_cast<double2 *>(a.partial)[split * columns + j] = make_double2(mean, state.m2);
        if (!last_of(a.tickets + 1 + strip, (unsigned)a.splits))
            return;
        if (owner)
            merge_splits(a, j, mean, state.m2);
    }
    if (owner)
        finish_feature<real>(a.features, j, mean, state.m2);
    count_batch(a.features, a.tickets, (unsigned)a.strips);
}

/* The running statistics instead of the batch's. */
template <class R> __device__ __forceinline__ void head_prepare(const onep_head_stats_args &a)
{
    wait_for_previous();
    let_next_begin();
    long long j = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (j < a.features.columns)
        finish_feature<R>(a.features, j, 0, 0);
}

#define ONEP_HEAD_STATS(name, SOURCE)                                                                                  \
    extern "C" __global__ void __launch_bounds__(ONEP_HEAD_STATS_THREADS, 2)                                           \
        onep_head_stats_##name(const onep_head_stats_args a)                                                           \
    {                                                                                                                  \
        head_stats<SOURCE>(a);                                                                                         \
    }

#endif
