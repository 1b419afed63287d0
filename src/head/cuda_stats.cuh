/*
 * Column statistics of y = input weight^T, and what they become: slope and offset of the next kernel, mean and rstd for
 * backward, running statistics. y is read once, and nothing of it is kept.
 *
 * A thread takes up to 16 rows of a column, measured from the first of them, k: with s1 and s2 the sums of y - k and of
 * its square over n rows,
 *
 *   mean = k + s1 / n          M2 = s2 - s1^2 / n
 *
 * k is one of the rows, so the difference is at least s2 / n: at most 4 bits are lost, whatever the values are. The sum
 * of squares of y itself, which loses twice the bits of |mean| / sigma, is never taken. Threads, chunks, and blocks (by
 * the one that finishes last) are merged in a fixed order, in double: the bits depend on the shape alone.
 */
#ifndef ONEP_HEAD_STATS_CUH
#define ONEP_HEAD_STATS_CUH

#include "cuda/reduce.cuh"
#include "head/cuda_elem.cuh"

/* Columns of a strip as a warp reads them: 16 bytes per lane, side by side. */
template <class T> struct packed_columns {
    typedef typename element<T>::real real;
    typedef pack<T> raw;
    enum { each = element<T>::lanes, threads = ONEP_HEAD_STRIP / each, chunk = ONEP_HEAD_CHUNK };
    static __device__ __forceinline__ int column(int thread, int i)
    {
        return thread * each + i;
    }
    /* True if the thread has columns at all; they are a multiple of a pack's elements. */
    static __device__ __forceinline__ bool inside(long long columns, long long begin, int thread)
    {
        return begin + thread * each < columns;
    }
    /* From the beginning of a row. */
    static __device__ __forceinline__ void load(const onep_matrix &, const char *row, long long, long long begin,
                                                int thread, raw &to)
    {
        to = load_pack_l2<T>(row + (begin + thread * each) * (long long)sizeof(T));
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
    static __device__ __forceinline__ bool inside(long long, long long, int)
    {
        return true;
    }
    static __device__ __forceinline__ void load(const onep_matrix &y, const char *row, long long columns,
                                                long long begin, int thread, raw &to)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            long long j = begin + column(thread, i);
            if (j < columns)
                to.at[i] = load_any<R>(y.type, row + j * y.col_stride);
        }
    }
    static __device__ __forceinline__ void values(const raw &from, R *to)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = from.at[i];
    }
};

/* 1 / n to the last place but one: 23 bits, then 46, then all. A division would be ten times the code. */
__device__ __forceinline__ double reciprocal_of(int n)
{
    float coarse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(coarse) : "f"((float)n));
    double r = (double)coarse;
    r = fma(fma(-(double)n, r, 1.0), r, r);
    return fma(fma(-(double)n, r, 1.0), r, r);
}

/*
 * Groups of rows of a column, one after the other; n, mean and sum of squared deviations of each. With d = mean of a
 * group - mean of the first:
 *   M2 = sum of (M2 of a group + n d^2) - (sum of n d)^2 / rows
 * The sum is kept beside it: infinities stay what they are.
 */
struct column_merge {
    double origin, sum, shifted, squares;

    /* Between chunks it lies in shared memory, where the results will be. */
    __device__ __forceinline__ void keep(double (&at)[ONEP_HEAD_RESULTS][ONEP_HEAD_STRIP], int c) const
    {
        at[0][c] = origin, at[1][c] = sum, at[2][c] = shifted, at[3][c] = squares;
    }
    __device__ __forceinline__ void recall(const double (&at)[ONEP_HEAD_RESULTS][ONEP_HEAD_STRIP], int c)
    {
        origin = at[0][c], sum = at[1][c], shifted = at[2][c], squares = at[3][c];
    }

    __device__ __forceinline__ void clear()
    {
        origin = sum = shifted = squares = 0;
    }
    __device__ __forceinline__ void add(bool first, double n, double mean, double m2)
    {
        origin = first ? mean : origin;
        double d = mean - origin;
        sum = fma(n, mean, sum);
        shifted = fma(n, d, shifted);
        squares += fma(n * d, d, m2);
    }
    __device__ __forceinline__ void finish(double per_row, double &mean, double &m2) const
    {
        mean = sum * per_row;
        m2 = fma(-shifted, shifted * per_row, squares);
        m2 = m2 < 0 ? 0 : m2; /* NaN stays */
    }
};

/*
 * log2(e) z = slope y + offset. The offset, as large as the mean is in units of sigma, can only be rounded to what its
 * size allows; a slope a few units in the last place away may let it be rounded with less loss. Of nine the one is
 * taken whose two errors, the offset's and the slope's over the spread of y, are smallest.
 */
__device__ __forceinline__ void round_line(double slope, double mean, double sigma, double level, float &slope_to,
                                           float &offset_to)
{
    float nearest = (float)slope;
    double least = 0;
#pragma unroll 1
    for (int k = 0; k < 9; k++) {
        /* 0, 1, -1, 2, -2, ...: the nearest one wins a tie, and stays where none can be compared */
        float s = __int_as_float(__float_as_int(nearest) + ((k & 1) ? (k + 1) / 2 : -(k / 2)));
        double exact = fma(-(double)s, mean, level);
        float o = (float)exact;
        double lost = exact - (double)o, off = ((double)s - slope) * sigma, error = fma(lost, lost, off * off);
        if (k == 0 || error < least) {
            least = error;
            slope_to = s;
            offset_to = o;
        }
    }
}
__device__ __forceinline__ void round_line(double slope, double mean, double, double level, double &slope_to,
                                           double &offset_to)
{
    slope_to = slope;
    offset_to = fma(-slope, mean, level);
}

/*
 * A feature, given the mean of y (without the bias) and the sum of its squared deviations over the batch:
 *   z = scale (gamma (y - mean) rstd + beta)
 */
template <class R>
__device__ __forceinline__ void finish_feature(const onep_head_features &f, long long j, double mean, double m2,
                                               const double (&in)[ONEP_HEAD_VALUES][ONEP_HEAD_STRIP],
                                               double (&out)[ONEP_HEAD_RESULTS][ONEP_HEAD_STRIP])
{
    const double log2e = 1.4426950408889634;
    const int c = threadIdx.x;
    double bias = in[ONEP_HEAD_BIAS][c], kept_mean = in[ONEP_HEAD_MEAN][c], kept_var = in[ONEP_HEAD_SPREAD][c];
    double factor = f.momentum;
    if (f.cumulative)
        factor = 1 / (double)(*f.batches + 1);
    out[ONEP_HEAD_TO_RUNNING_MEAN][c] = fma(factor, mean + bias, (1 - factor) * kept_mean);
    out[ONEP_HEAD_TO_RUNNING_VAR][c] = fma(factor, m2 * f.per_free_row, (1 - factor) * kept_var);
    double spread = (f.running ? kept_var : m2 * f.per_row) + f.eps, rstd = rsqrt(spread);
    /* a bias that is not finite does not cancel */
    mean = f.running ? kept_mean - bias : mean + (bias - bias);
    out[ONEP_HEAD_TO_MEAN][c] = mean;
    out[ONEP_HEAD_TO_RSTD][c] = rstd;
    double scale = in[ONEP_HEAD_SCALE][c] * log2e;
    round_line(scale * in[ONEP_HEAD_GAMMA][c] * rstd, mean, spread * rstd, scale * in[ONEP_HEAD_BETA][c],
               static_cast<R *>(f.slope)[j], static_cast<R *>(f.offset)[j]);
}

/* The last of all strips counts the batch; by then every strip has read the counter. */
__device__ __forceinline__ void count_batch(const onep_head_features &f, unsigned *ticket, unsigned strips)
{
    if (f.batches && !f.running && last_block(ticket, strips) && threadIdx.x == 0)
        *f.batches += 1;
}

/* Merges the blocks of a strip. */
__device__ __forceinline__ void merge_splits(const onep_head_stats_args &a, long long j, double &mean, double &m2)
{
    const double2 *partial = reinterpret_cast<const double2 *>(a.partial) + j;
    const double each = (double)a.split_rows, rest = (double)(a.features.rows - (a.splits - 1) * a.split_rows);
    column_merge merge;
    merge.clear();
#pragma unroll 4
    for (int s = 0; s < a.splits; s++) {
        double2 one = __ldcg(partial + s * a.features.columns);
        merge.add(s == 0, s < a.splits - 1 ? each : rest, one.x, one.y);
    }
    merge.finish(a.features.per_row, mean, m2);
}

template <class SOURCE> __device__ __forceinline__ void head_stats(const onep_head_stats_args &a)
{
    typedef typename SOURCE::real real;
    enum {
        AT_ONCE = ONEP_HEAD_STATS_THREADS / SOURCE::threads, /* rows the block reads side by side, */
        ROWS = SOURCE::chunk / AT_ONCE,                      /* and of each thread, */
        BATCH = sizeof(typename SOURCE::raw) > 16 ? 4 : 8,   /* so many under way */
    };
    __shared__ real room[3][AT_ONCE][ONEP_HEAD_STRIP];
    __shared__ double in[ONEP_HEAD_VALUES][ONEP_HEAD_STRIP], out[ONEP_HEAD_RESULTS][ONEP_HEAD_STRIP];
    const int strip = blockIdx.x % a.strips, split = blockIdx.x / a.strips;
    const int thread = threadIdx.x % SOURCE::threads, lane_row = threadIdx.x / SOURCE::threads;
    const long long begin_column = (long long)strip * ONEP_HEAD_STRIP, columns = a.features.columns;
    const long long first = split * a.split_rows;
    const long long end = first + a.split_rows < a.features.rows ? first + a.split_rows : a.features.rows;
    const bool owner = threadIdx.x < ONEP_HEAD_STRIP && begin_column + threadIdx.x < columns;

    pdl_wait();
    pdl_launch_dependents();
#pragma unroll 1
    for (long long row = first; row < end; row += SOURCE::chunk) {
        const int count = (int)(end - row < SOURCE::chunk ? end - row : SOURCE::chunk);
        const int reach = SOURCE::inside(columns, begin_column, thread) ? count - lane_row : 0;
        const char *from = a.y.data + (row + lane_row) * a.y.row_stride;
        real k[SOURCE::each] = {}, s1[SOURCE::each] = {}, s2[SOURCE::each] = {};
#pragma unroll 1 /* little code: none of it is in a cache when the kernel begins */
        for (int p = 0; p < ROWS; p += BATCH) {
            typename SOURCE::raw raw[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++, from += AT_ONCE * a.y.row_stride) {
                raw[b] = typename SOURCE::raw();
                if ((p + b) * AT_ONCE < reach)
                    SOURCE::load(a.y, from, columns, begin_column, thread, raw[b]);
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                real y[SOURCE::each];
                SOURCE::values(raw[b], y);
                if ((p + b) * AT_ONCE < reach) {
#pragma unroll
                    for (int i = 0; i < SOURCE::each; i++) {
                        if (b == 0 && p == 0)
                            k[i] = y[i];
                        real d = y[i] - k[i];
                        s1[i] += d;
                        s2[i] = multiply_add(d, d, s2[i]);
                    }
                }
            }
            if (p == 0 && row == first) /* meanwhile; whichever of the strip's blocks comes last will need them */
                load_features(a.features.in, begin_column, columns, in);
        }
#pragma unroll
        for (int i = 0; i < SOURCE::each; i++) {
            room[0][lane_row][SOURCE::column(thread, i)] = k[i];
            room[1][lane_row][SOURCE::column(thread, i)] = s1[i];
            room[2][lane_row][SOURCE::column(thread, i)] = s2[i];
        }
        __syncthreads();
        if (owner) {
            column_merge merge;
            merge.clear();
            if (row > first)
                merge.recall(out, threadIdx.x);
#pragma unroll 2
            for (int g = 0; g < AT_ONCE; g++) {
                int n = (count - g + AT_ONCE - 1) / AT_ONCE; /* rows of that thread; 0 beyond the end */
                double t1 = (double)room[1][g][threadIdx.x], origin = (double)room[0][g][threadIdx.x];
                double shift = t1 * reciprocal_of(n), m2 = fma(-t1, shift, (double)room[2][g][threadIdx.x]);
                shift = origin - origin == 0 ? shift : 0.0; /* from an infinite value there are no deviations */
                if (n > 0)
                    merge.add(row == first && g == 0, n, origin + shift, m2 < 0 ? 0 : m2);
            }
            merge.keep(out, threadIdx.x);
        }
        __syncthreads(); /* or a fast warp would write the next chunk's sums over this one's */
    }

    const long long j = begin_column + threadIdx.x;
    double mean = 0, m2 = 0;
    if (owner) {
        column_merge merge;
        merge.recall(out, threadIdx.x);
        merge.finish(reciprocal_of((int)(end - first)), mean, m2);
    }
    if (a.splits > 1) {
        if (owner)
            reinterpret_cast<double2 *>(a.partial)[split * columns + j] = make_double2(mean, m2);
        if (!last_block(a.tickets + 1 + strip, (unsigned)a.splits))
            return;
        if (owner)
            merge_splits(a, j, mean, m2);
    }
    if (owner)
        finish_feature<real>(a.features, j, mean, m2, in, out);
    __syncthreads();
    store_features(a.features.out, begin_column, columns, out);
    count_batch(a.features, a.tickets, (unsigned)a.strips);
}

/* The parts that the product has made the statistics of itself; one block per strip. */
template <class R> __device__ __forceinline__ void head_merge(const onep_head_stats_args &a)
{
    __shared__ double in[ONEP_HEAD_VALUES][ONEP_HEAD_STRIP], out[ONEP_HEAD_RESULTS][ONEP_HEAD_STRIP];
    const long long begin = (long long)blockIdx.x * ONEP_HEAD_STRIP, j = begin + threadIdx.x;
    const bool owner = threadIdx.x < ONEP_HEAD_STRIP && j < a.features.columns;
    pdl_wait();
    pdl_launch_dependents();
    load_features(a.features.in, begin, a.features.columns, in);
    double mean = 0, m2 = 0;
    if (owner)
        merge_splits(a, j, mean, m2);
    __syncthreads();
    if (owner)
        finish_feature<R>(a.features, j, mean, m2, in, out);
    __syncthreads();
    store_features(a.features.out, begin, a.features.columns, out);
    count_batch(a.features, a.tickets, (unsigned)a.strips);
}

/* The running statistics instead of the batch's; one block per strip. */
template <class R> __device__ __forceinline__ void head_prepare(const onep_head_stats_args &a)
{
    __shared__ double in[ONEP_HEAD_VALUES][ONEP_HEAD_STRIP], out[ONEP_HEAD_RESULTS][ONEP_HEAD_STRIP];
    const long long begin = (long long)blockIdx.x * ONEP_HEAD_STRIP, j = begin + threadIdx.x;
    pdl_wait();
    pdl_launch_dependents();
    load_features(a.features.in, begin, a.features.columns, in);
    __syncthreads();
    if (threadIdx.x < ONEP_HEAD_STRIP && j < a.features.columns)
        finish_feature<R>(a.features, j, 0, 0, in, out);
    __syncthreads();
    store_features(a.features.out, begin, a.features.columns, out);
}

/* BLOCKS of them fit on a multiprocessor. */
#define ONEP_HEAD_STATS(name, SOURCE, BLOCKS)                                                                          \
    extern "C" __global__ void __launch_bounds__(ONEP_HEAD_STATS_THREADS, BLOCKS)                                      \
        onep_head_stats_##name(const onep_head_stats_args a)                                                           \
    {                                                                                                                  \
        head_stats<SOURCE>(a);                                                                                         \
    }

#endif
