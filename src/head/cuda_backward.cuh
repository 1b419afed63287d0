/*
 * Gradients of the head, up to dy (the gradient to y = input weight^T); head_args.h has the formulas. Two passes: over
 * rows, for r and the column sums of a part of the rows; then over columns, which adds up the parts by index, makes the
 * features' gradients, and makes dz anew with dy from it: keeping dz in between would cost as many bytes as reading the
 * three inputs of it again, and memory besides. No atomics but a ticket; the bits depend on the shape alone.
 */
#ifndef ONEP_HEAD_BACKWARD_CUH
#define ONEP_HEAD_BACKWARD_CUH

#include "head/cuda_elem.cuh"
#include "cuda/reduce.cuh"

/* The sum over the block, in every thread; callers alternate between two rooms. */
template <class R> __device__ __forceinline__ R sum_over_block(R x, R *room)
{
    const int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    x = over_warp<take_sum>(x);
    if (lane == 0)
        room[threadIdx.x >> 5] = x;
    __syncthreads();
    return over_warp<take_sum>(lane < warps ? room[lane] : (R)0);
}

/* ---- over rows --------------------------------------------------------------------------------------------------- */

/* Rows in registers, 8 columns per thread: the output and its gradient of type T, mean float, elements side by side. */
template <class T> __device__ __forceinline__ void head_grad_rows(const onep_head_grad_args &a)
{
    enum { COLUMNS = 8, EACH = element<T>::lanes, GROUPS = COLUMNS / EACH };
    __shared__ float room[2][32];
    __shared__ __align__(16) float mean[ONEP_HEAD_ROW_COLUMNS]; /* a thread reads only what it wrote */
    const long long first = blockIdx.x * a.part_rows;
    const long long end = first + a.part_rows < a.rows ? first + a.part_rows : a.rows;

    pdl_wait();
    pdl_launch_dependents();
    float s0[COLUMNS] = {}, s1[COLUMNS] = {};
#pragma unroll
    for (int i = 0; i < COLUMNS; i += 4) {
        unsigned j = (i / EACH * blockDim.x + threadIdx.x) * EACH + i % EACH;
        float4 four = make_float4(0, 0, 0, 0);
        if (j < a.columns)
            four = *reinterpret_cast<const float4 *>(a.in[ONEP_HEAD_MEAN].data + j * sizeof(float));
        *reinterpret_cast<float4 *>(mean + j) = four;
    }
    const int count = (int)(end - first);
#pragma unroll 1
    for (int done = 0; done < count; done++) {
        const long long row = first + done;
        pack<T> g[GROUPS], p[GROUPS];
        float q[COLUMNS] = {}, gradient[EACH], output[EACH], dot = 0;
#pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            unsigned at = (k * blockDim.x + threadIdx.x) * EACH;
            g[k] = pack<T>();
            p[k] = pack<T>();
            if (at < a.columns) {
                const char *from = a.grad_output.data + row * a.grad_output.row_stride;
                g[k] = load_pack(reinterpret_cast<const T *>(from) + at);
                from = a.output.data + row * a.output.row_stride;
                p[k] = load_pack(reinterpret_cast<const T *>(from) + at);
                from = a.product.data + row * a.product.row_stride + at * sizeof(float);
#pragma unroll
                for (int i = 0; i < EACH; i += 4)
                    group<float, 4>::load(from + i * sizeof(float), q + k * EACH + i);
            }
        }
#pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            unpack<T>(g[k], gradient);
            unpack<T>(p[k], output);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                dot = fmaf(gradient[i], output[i], dot);
        }
        dot = sum_over_block(dot, room[done & 1]);
        if (threadIdx.x == 0)
            static_cast<float *>(a.dots)[row] = dot;
#pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            unpack<T>(g[k], gradient);
            unpack<T>(p[k], output);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                int c = k * EACH + i;
                float dz = output[i] * (gradient[i] - dot);
                s0[c] += dz;
                s1[c] = fmaf(dz, q[c] - mean[(k * blockDim.x + threadIdx.x) * EACH + i], s1[c]);
            }
        }
    }
    float *partial = static_cast<float *>(a.partial) + blockIdx.x * 2 * a.columns;
#pragma unroll
    for (int i = 0; i < COLUMNS; i += 4) {
        long long j = (i / EACH * blockDim.x + threadIdx.x) * EACH + i % EACH;
        if (j < a.columns) {
            group<float, 4>::store(reinterpret_cast<char *>(partial + j), s0 + i);
            group<float, 4>::store(reinterpret_cast<char *>(partial + a.columns + j), s1 + i);
        }
    }
}

/* Any length, strides and types: first r of every row of the part, then its columns, the output and its gradient again.
 */
template <class R> __device__ __forceinline__ void head_grad_rows_any(const onep_head_grad_args &a)
{
    __shared__ R room[2][32];
    const long long first = blockIdx.x * a.part_rows;
    const long long end = first + a.part_rows < a.rows ? first + a.part_rows : a.rows;
    R *dots = static_cast<R *>(a.dots), *partial = static_cast<R *>(a.partial) + blockIdx.x * 2 * a.columns;
    auto at = [](const onep_matrix &m, long long row, long long j) {
        return load_any<R>(m.type, m.data + row * m.row_stride + j * m.col_stride);
    };
    pdl_wait();
    pdl_launch_dependents();
    int turn = 0;
    for (long long row = first; row < end; row++, turn ^= 1) {
        R dot = 0;
        for (long long j = threadIdx.x; j < a.columns; j += blockDim.x)
            dot = multiply_add(at(a.grad_output, row, j), at(a.output, row, j), dot);
        dot = sum_over_block(dot, room[turn]);
        if (threadIdx.x == 0)
            dots[row] = dot;
    }
    __syncthreads(); /* thread 0's dots are visible to the block */
    for (long long j = threadIdx.x; j < a.columns; j += blockDim.x) {
        R mean = at(a.in[ONEP_HEAD_MEAN], 0, j), s0 = 0, s1 = 0;
        for (long long row = first; row < end; row++) {
            R dz = at(a.output, row, j) * (at(a.grad_output, row, j) - dots[row]);
            s0 += dz;
            s1 = multiply_add(dz, at(a.product, row, j) - mean, s1);
        }
        partial[j] = s0;
        partial[a.columns + j] = s1;
    }
}

/* ---- over columns ------------------------------------------------------------------------------------------------ */

/* Four columns per thread, side by side; dy of type D. */
template <class T, class D> struct packed_grads {
    typedef float real;
    enum { each = 4 };
    static __device__ __forceinline__ void load(const onep_head_grad_args &a, long long row, long long j, float *g,
                                                float *p, float *q)
    {
        group<T, 4>::load(a.grad_output.data + row * a.grad_output.row_stride + j * (long long)sizeof(T), g);
        group<T, 4>::load(a.output.data + row * a.output.row_stride + j * (long long)sizeof(T), p);
        group<float, 4>::load(a.product.data + row * a.product.row_stride + j * (long long)sizeof(float), q);
    }
    static __device__ __forceinline__ void store(const onep_head_grad_args &a, long long row, long long j,
                                                 const float *dy)
    {
        group<D, 4>::store(a.grad_product.data + row * a.grad_product.row_stride + j * (long long)sizeof(D), dy);
    }
};

template <class R> struct loose_grads {
    typedef R real;
    enum { each = 1 };
    static __device__ __forceinline__ R element_of(const onep_matrix &m, long long row, long long j)
    {
        return load_any<R>(m.type, m.data + row * m.row_stride + j * m.col_stride);
    }
    static __device__ __forceinline__ void load(const onep_head_grad_args &a, long long row, long long j, R *g, R *p,
                                                R *q)
    {
        *g = element_of(a.grad_output, row, j);
        *p = element_of(a.output, row, j);
        *q = element_of(a.product, row, j);
    }
    static __device__ __forceinline__ void store(const onep_head_grad_args &a, long long row, long long j, const R *dy)
    {
        const onep_matrix &m = a.grad_product;
        store_any<R>(m.type, m.data + row * m.row_stride + j * m.col_stride, *dy);
    }
};

/* The parts' sums of the strip, by index: 16 slices of the parts, then the slices. Valid in threads below 64. */
template <class R>
__device__ __forceinline__ void merge_parts(const onep_head_grad_args &a, long long j, double &s0, double &s1)
{
    enum { SLICES = ONEP_HEAD_GRAD_THREADS / ONEP_HEAD_GRAD_STRIP };
    __shared__ double room[2][SLICES][ONEP_HEAD_GRAD_STRIP];
    const int column = threadIdx.x % ONEP_HEAD_GRAD_STRIP, slice = threadIdx.x / ONEP_HEAD_GRAD_STRIP;
    const int each = (a.parts + SLICES - 1) / SLICES;
    const int end = (slice + 1) * each < a.parts ? (slice + 1) * each : a.parts;
    s0 = s1 = 0;
    if (j < a.columns) {
        const R *partial = static_cast<const R *>(a.partial) + j;
#pragma unroll 8
        for (int part = slice * each; part < end; part++) {
            s0 += (double)__ldcg(partial + part * 2 * a.columns);
            s1 += (double)__ldcg(partial + (part * 2 + 1) * a.columns);
        }
    }
    room[0][slice][column] = s0;
    room[1][slice][column] = s1;
    __syncthreads();
    s0 = s1 = 0;
    if (slice == 0)
#pragma unroll
        for (int k = 0; k < SLICES; k++) {
            s0 += room[0][k][column];
            s1 += room[1][k][column];
        }
}

/* What dy of a column is made with. */
template <class R> struct grad_column {
    R mean, slope, level, tilt; /* dy = slope (dz - level - (q - mean) tilt) */
};

template <class SOURCE> __device__ __forceinline__ void head_grad_columns(const onep_head_grad_args &a)
{
    typedef typename SOURCE::real real;
    enum {
        EACH = SOURCE::each,
        ACROSS = ONEP_HEAD_GRAD_STRIP / EACH, /* threads side by side over a row of the strip */
        AT_ONCE = ONEP_HEAD_GRAD_THREADS / ACROSS,
    };
    __shared__ grad_column<real> column_of[ONEP_HEAD_GRAD_STRIP];
    __shared__ double room[32];
    __shared__ double in[ONEP_HEAD_VALUES][ONEP_HEAD_GRAD_STRIP], out[ONEP_HEAD_RESULTS][ONEP_HEAD_GRAD_STRIP];
    const int strip = blockIdx.x % a.strips, split = blockIdx.x / a.strips;
    const long long begin = (long long)strip * ONEP_HEAD_GRAD_STRIP;

    pdl_wait();
    pdl_launch_dependents();
    const long long own = begin + threadIdx.x % ONEP_HEAD_GRAD_STRIP;
    const long long j = begin + threadIdx.x % ACROSS * EACH;
    const long long first = split * a.split_rows;
    const long long end = first + a.split_rows < a.rows ? first + a.split_rows : a.rows;
    load_features(a.in, begin, a.columns, in);
    double s0, s1;
    merge_parts<real>(a, own, s0, s1);
    double scale_share = 0;
    if (threadIdx.x < ONEP_HEAD_GRAD_STRIP && own < a.columns) {
        const int k = threadIdx.x;
        double rstd = in[ONEP_HEAD_SPREAD][k], gamma = in[ONEP_HEAD_GAMMA][k], scale = in[ONEP_HEAD_SCALE][k];
        grad_column<real> c = {(real)in[ONEP_HEAD_MEAN][k], (real)(scale * gamma * rstd), 0, 0};
        s1 *= rstd; /* from here on the sum of dz xh */
        if (!a.running) {
            c.level = (real)(s0 * a.per_row);
            c.tilt = (real)(rstd * s1 * a.per_row);
        }
        column_of[k] = c;
        scale_share = gamma * s1 + in[ONEP_HEAD_BETA][k] * s0;
        out[ONEP_HEAD_TO_BETA][k] = scale * s0;
        out[ONEP_HEAD_TO_GAMMA][k] = scale * s1;
        /* with the batch's own statistics dy has no mean over the batch */
        out[ONEP_HEAD_TO_BIAS][k] = a.running ? scale * gamma * rstd * s0 : 0.0;
        out[ONEP_HEAD_TO_SCALE][k] = scale_share;
    }
    __syncthreads();
    if (split == 0)
        store_features(a.out, begin, a.columns, out);

    if (a.grad_product.data) {
        const real *dots = static_cast<const real *>(a.dots);
        grad_column<real> c[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            c[i] = column_of[threadIdx.x % ACROSS * EACH + i];
        if (j < a.columns)
#pragma unroll 2
            for (long long row = first + threadIdx.x / ACROSS; row < end; row += AT_ONCE) {
                real g[EACH], p[EACH], q[EACH], dy[EACH], dot = dots[row];
                SOURCE::load(a, row, j, g, p, q);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    real dz = p[i] * (g[i] - dot);
                    dy[i] = c[i].slope * (dz - c[i].level - (q[i] - c[i].mean) * c[i].tilt);
                }
                SOURCE::store(a, row, j, dy);
            }
    }

    /* the gradient of one scale for all features: one share per strip, added up by index by the block that comes last */
    if (!a.one_scale.data)
        return;
    double share = block_sum<ONEP_HEAD_GRAD_THREADS>(scale_share, room);
    if (split == 0 && threadIdx.x == 0)
        a.scale_partial[strip] = share;
    if (!last_block(a.ticket, gridDim.x))
        return;
    double total = sum_partials<ONEP_HEAD_GRAD_THREADS>(a.scale_partial, a.strips, room);
    if (threadIdx.x == 0)
        store_any<double>(a.one_scale.type, a.one_scale.data, total);
}

#define ONEP_HEAD_GRAD_ROWS(name, T)                                                                                   \
    extern "C" __global__ void __launch_bounds__(1024, 1) onep_head_grad_rows_##name(const onep_head_grad_args a)      \
    {                                                                                                                  \
        head_grad_rows<T>(a);                                                                                          \
    }
#define ONEP_HEAD_GRAD_COLUMNS(t, d, T, D)                                                                             \
    extern "C" __global__ void __launch_bounds__(ONEP_HEAD_GRAD_THREADS, 1)                                            \
        onep_head_grad_columns_##t##_##d(const onep_head_grad_args a)                                                  \
    {                                                                                                                  \
        head_grad_columns<packed_grads<T, D>>(a);                                                                      \
    }

#endif
