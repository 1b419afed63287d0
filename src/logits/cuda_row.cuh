/*
 * What the kernels of losses from logits are made of: a team of threads that share a row, and the softmax of a row in
 * one sweep. Types and strides are any; the columns of a thread are those whose index leaves its own number, so that the
 * bits depend on the row alone. Nothing is stored but results.
 */
#ifndef ONEP_LOGITS_ROW_CUH
#define ONEP_LOGITS_ROW_CUH

#include "cuda/elem.cuh"
#include "cuda/reduce.cuh"
#include "logits/cuda_args.h"

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float minus_infinity(float)
{
    return __int_as_float(0xff800000);
}
__device__ __forceinline__ double minus_infinity(double)
{
    return __longlong_as_double(0xfff0000000000000ll);
}
__device__ __forceinline__ double not_a_number()
{
    return __longlong_as_double(0x7ff8000000000000ll);
}

/* The functions of the computed type, none of them approximate. */
__device__ __forceinline__ float exp_of(float x)
{
    return expf(x);
}
__device__ __forceinline__ double exp_of(double x)
{
    return exp(x);
}
__device__ __forceinline__ float expm1_of(float x)
{
    return expm1f(x);
}
__device__ __forceinline__ double expm1_of(double x)
{
    return expm1(x);
}
__device__ __forceinline__ float log1p_of(float x)
{
    return log1pf(x);
}
__device__ __forceinline__ double log1p_of(double x)
{
    return log1p(x);
}
__device__ __forceinline__ float log_of(float x)
{
    return logf(x);
}
__device__ __forceinline__ double log_of(double x)
{
    return log(x);
}
__device__ __forceinline__ float tanh_of(float x)
{
    return tanhf(x);
}
__device__ __forceinline__ double tanh_of(double x)
{
    return tanh(x);
}
__device__ __forceinline__ float magnitude(float x)
{
    return fabsf(x);
}
__device__ __forceinline__ double magnitude(double x)
{
    return fabs(x);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Where row `row` of an operand begins; NULL if it is absent. */
__device__ __forceinline__ char *row_of(const onep_logits_operand &o, const onep_logits_rows &rows, long long row)
{
    if (!o.data)
        return 0;
    long long offset = 0;
#pragma unroll 1
    for (int k = rows.rank - 1; k > 0; k--) {
        const long long before = row / rows.extent[k];
        offset += (row - before * rows.extent[k]) * o.row_stride[k];
        row = before;
    }
    if (rows.rank > 0)
        offset += row * o.row_stride[0];
    return o.data + offset;
}

__device__ __forceinline__ double number_of(const onep_logits_operand &o, const char *at, double otherwise)
{
    return o.data ? load_any<double>(o.type, at) : otherwise;
}

__device__ __forceinline__ long long integer_of(int type, const char *at)
{
    return type == ONEP_CUDA_I64 ? *reinterpret_cast<const long long *>(at)
                                 : (long long)*reinterpret_cast<const int *>(at);
}

__device__ __forceinline__ void store_number(const onep_logits_operand &o, const onep_logits_rows &rows, long long row,
                                             double x)
{
    if (o.data)
        store_any<double>(o.type, row_of(o, rows, row), x);
}

/* One column of a row. */
template <class R>
__device__ __forceinline__ R load_column(const onep_logits_operand &o, const char *row, long long column)
{
    return load_any<R>(o.type, row + column * o.col_stride);
}
template <class R>
__device__ __forceinline__ void store_column(const onep_logits_operand &o, char *row, long long column, R x)
{
    store_any<R>(o.type, row + column * o.col_stride, x);
}

/* ---- a softmax --------------------------------------------------------------------------------------------------- */

/* How logits become what the softmax is taken of. */
template <class R> struct logit_scale {
    R cap, one_over_cap, temperature;
    bool is_plain; /* neither softcap nor temperature */

    __device__ __forceinline__ logit_scale(double softcap, double t)
        : cap((R)softcap), one_over_cap((R)(softcap > 0 ? 1 / softcap : 0)), temperature((R)t),
          is_plain(!(softcap > 0) && t == 1)
    {
    }
    /* -inf is a mask and stays what it is. */
    __device__ __forceinline__ R z_of(R x) const
    {
        if (is_plain)
            return x;
        if (cap > 0 && x != minus_infinity(x))
            x = cap * tanh_of(x * one_over_cap);
        return x / temperature;
    }
    /* The slope of the softcap: 4 e / (1 + e)^2 with e = exp(-2 |x / cap|). */
    __device__ __forceinline__ R slope_of(R x) const
    {
        if (!(cap > 0))
            return 1;
        R e = exp_of(-2 * magnitude(x * one_over_cap));
        return 4 * e / ((1 + e) * (1 + e));
    }
};

/*
 * The maximum so far, the sum of exp(z - most) over all others, the first column with the maximum. Of NaN and +inf only
 * the first columns are remembered; past all columns: there are none.
 */
static const long long NEVER = 0x7fffffffffffffffll;

template <class R> struct softmax_part {
    R most;
    double others;
    long long first, first_nan, first_infinity;

    __device__ __forceinline__ void clear()
    {
        most = minus_infinity((R)0);
        others = 0;
        first = first_nan = first_infinity = NEVER;
    }
    __device__ __forceinline__ bool is_undefined() const
    {
        return first_nan != NEVER || first_infinity != NEVER;
    }

    __device__ __forceinline__ void join(R b_most, double b_others, long long b_first)
    {
        if (b_most == minus_infinity(b_most))
            return;
        if (most == minus_infinity(most)) {
            most = b_most, others = b_others, first = b_first;
            return;
        }
        if (b_most > most) {
            others = b_others + (others + 1) * (double)exp_of(most - b_most);
            most = b_most, first = b_first;
            return;
        }
        others += (b_others + 1) * (double)exp_of(b_most - most);
        if (b_most == most && b_first < first)
            first = b_first;
    }

    __device__ __forceinline__ void add(R z, long long column)
    {
        if (z < -minus_infinity(z))
            join(z, 0, column);
        else
            add_undefined(z != z ? column : NEVER, z != z ? NEVER : column);
    }
    __device__ __forceinline__ void add_undefined(long long nan, long long infinity)
    {
        first_nan = nan < first_nan ? nan : first_nan;
        first_infinity = infinity < first_infinity ? infinity : first_infinity;
    }

    __device__ __forceinline__ double log_sum() const
    {
        return log1p(others);
    }
    __device__ __forceinline__ double lse() const
    {
        return is_undefined() ? not_a_number() : (double)most + log_sum();
    }
    __device__ __forceinline__ bool has_no_mass() const
    {
        return most == minus_infinity(most) && !is_undefined();
    }
    __device__ __forceinline__ long long argmax() const
    {
        return first_nan != NEVER        ? first_nan
               : first_infinity != NEVER ? first_infinity
               : first != NEVER          ? first
                                         : 0;
    }
};

/* What elements are made from, once a softmax is known. */
template <class R> struct softmax_scale {
    R most, one_over_sum, log_sum, rest; /* rest: 1 less the probability of the maximum */

    __device__ __forceinline__ softmax_scale(R largest, R over_sum, R log_of_sum, R all_but_largest)
        : most(largest), one_over_sum(over_sum), log_sum(log_of_sum), rest(all_but_largest)
    {
    }
    __device__ __forceinline__ softmax_scale(const softmax_part<R> &s)
        : most(s.most), one_over_sum((R)(1 / (1 + s.others))), log_sum((R)s.log_sum()),
          rest((R)(s.others / (1 + s.others)))
    {
        if (s.is_undefined()) /* so is every probability then */
            one_over_sum = log_sum = rest = (R)not_a_number();
    }
    /* 1 - P, without cancellation where P is nearly 1 */
    __device__ __forceinline__ R rest_of(R z, R probability) const
    {
        return z == most ? rest : 1 - probability;
    }
    /* What reaches z of a column whose P dL/dP is `own`: own less P times the sum over all columns. Where P is nearly 1
     * the two nearly cancel, so own's share of the sum is taken out of it first. */
    __device__ __forceinline__ R through(R own, R z, R probability, double sum) const
    {
        if (probability == 0)
            return own;
        return own * rest_of(z, probability) - probability * (R)(sum - (double)own);
    }
    __device__ __forceinline__ R probability(R z) const
    {
        return exp_of(z - most) * one_over_sum;
    }
    __device__ __forceinline__ R log_probability(R z) const
    {
        return (z - most) - log_sum;
    }
};

/* ---- teams ------------------------------------------------------------------------------------------------------- */

template <class R> __device__ __forceinline__ softmax_part<R> over_warp(softmax_part<R> s)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        R most = __shfl_xor_sync(0xffffffffu, s.most, offset);
        double others = __shfl_xor_sync(0xffffffffu, s.others, offset);
        long long first = __shfl_xor_sync(0xffffffffu, s.first, offset);
        long long first_nan = __shfl_xor_sync(0xffffffffu, s.first_nan, offset);
        long long first_infinity = __shfl_xor_sync(0xffffffffu, s.first_infinity, offset);
        s.join(most, others, first);
        s.add_undefined(first_nan, first_infinity);
    }
    /* Lanes add in different orders: all take the first one's. */
    s.others = __shfl_sync(0xffffffffu, s.others, 0);
    return s;
}

/* The threads that share a row: a warp, or (WIDE) a block. */
template <bool WIDE> struct team;

template <> struct team<false> {
    static __device__ __forceinline__ int size()
    {
        return 32;
    }
    static __device__ __forceinline__ int rank()
    {
        return threadIdx.x & 31;
    }
    static __device__ __forceinline__ long long index()
    {
        return blockIdx.x * (long long)ONEP_LOGITS_WARPS + (threadIdx.x >> 5);
    }
    template <class R> static __device__ __forceinline__ softmax_part<R> softmax(const softmax_part<R> &s)
    {
        return over_warp(s);
    }
    static __device__ __forceinline__ double sum(double x)
    {
        return warp_sum(x);
    }
};

template <> struct team<true> {
    enum { WARPS = ONEP_LOGITS_THREADS / 32 };
    static __device__ __forceinline__ int size()
    {
        return ONEP_LOGITS_THREADS;
    }
    static __device__ __forceinline__ int rank()
    {
        return threadIdx.x;
    }
    static __device__ __forceinline__ long long index()
    {
        return blockIdx.x;
    }
    /* Warps in order, by every thread alike. */
    template <class R> static __device__ __forceinline__ softmax_part<R> softmax(softmax_part<R> s)
    {
        __shared__ R most[WARPS];
        __shared__ double others[WARPS];
        __shared__ long long first[WARPS], first_nan[WARPS], first_infinity[WARPS];
        s = over_warp(s);
        __syncthreads(); /* what was here before has been read */
        if ((threadIdx.x & 31) == 0) {
            int warp = threadIdx.x >> 5;
            most[warp] = s.most;
            others[warp] = s.others;
            first[warp] = s.first;
            first_nan[warp] = s.first_nan;
            first_infinity[warp] = s.first_infinity;
        }
        __syncthreads(); /* and every warp's part is there */
        s.clear();
        for (int w = 0; w < WARPS; w++) {
            s.join(most[w], others[w], first[w]);
            s.add_undefined(first_nan[w], first_infinity[w]);
        }
        return s;
    }
    /* In every thread. */
    static __device__ __forceinline__ double sum(double x)
    {
        __shared__ double room[WARPS];
        x = warp_sum(x);
        __syncthreads(); /* the sum before has been read */
        if ((threadIdx.x & 31) == 0)
            room[threadIdx.x >> 5] = x;
        __syncthreads(); /* and every warp's is there */
        double total = 0;
        for (int w = 0; w < WARPS; w++)
            total += room[w];
        return total;
    }
};

/* ---- sweeps ------------------------------------------------------------------------------------------------------ */

/* Calls f(column) for the columns of this thread. */
template <class TEAM, class F> __device__ __forceinline__ void for_columns(long long columns, const F &f)
{
#pragma unroll 1
    for (long long column = TEAM::rank(); column < columns; column += TEAM::size())
        f(column);
}

/* One number in columns [begin, end) of a row. */
template <class R, class TEAM>
__device__ __forceinline__ void fill_columns(const onep_logits_operand &o, char *row, long long begin, long long end,
                                             R x)
{
    if (!o.data)
        return;
    for (long long column = begin + TEAM::rank(); column < end; column += TEAM::size())
        store_column(o, row, column, x);
}

#endif
