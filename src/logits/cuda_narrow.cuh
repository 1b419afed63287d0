/*
 * Rows of logits in the registers of a part of a warp: every logit is read once, every gradient written once, and
 * nothing else is stored but results. For what people train with: cross-entropy of labels with class weights and
 * z-loss, and KL of logits from logits. cuda_held.cuh has every other option, and wider rows.
 *
 * 4 to 32 lanes share a row. A lane has quads of columns, LANES quads apart, whatever the layout: which ones follows
 * from the width alone, and so do the bits of a row. Quads that are whole in memory are loaded and stored at once,
 * others an element at a time; nothing outside of the columns is touched.
 *
 * exp((v - m) / temperature) = 2^(v k - r) 2^-error, with k = log2(e) / temperature, m the row's maximum, r = m k
 * rounded and error = m k - r: one fused multiply-add and one ex2 per element, off by (m - v) k u beside ex2's
 * 2^-22.5. A softmax is its maximum, how many columns have it, and the sum of the others' exponentials, so that small
 * losses keep their digits. At most 8 terms follow each other in a sum in float before sums are added as a tree. KL is
 *
 *   (sum of exp(w - m_t) ((w - m_t) - (z - m_s))) / sum_t + log(sum_s / sum_t)
 *
 * and below 2^-7 the sum of T h(delta) instead, where no term is negative.
 */
#ifndef ONEP_LOGITS_NARROW_CUH
#define ONEP_LOGITS_NARROW_CUH

#include "logits/cuda_column.cuh"
#include "logits/cuda_team.cuh"

/* ---- a part of a warp -------------------------------------------------------------------------------------------- */

/* LANES of them share a row. Every lane of the warp takes part in exchanges. */
template <int LANES> struct lanes {
    static __device__ __forceinline__ int rank()
    {
        return threadIdx.x & (LANES - 1);
    }
    static __device__ __forceinline__ int size()
    {
        return LANES;
    }
    static __device__ __forceinline__ int in_block()
    {
        return threadIdx.x / LANES;
    }
    static __device__ __forceinline__ float largest(float x)
    {
        return largest_of_lanes<LANES>(~0u, x);
    }
    template <class N> static __device__ __forceinline__ N sum(N x)
    {
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset >>= 1)
            x += __shfl_xor_sync(~0u, x, offset);
        return x;
    }
    static __device__ __forceinline__ int least(int x)
    {
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset >>= 1) {
            const int other = __shfl_xor_sync(~0u, x, offset);
            x = other < x ? other : x;
        }
        return x;
    }
};

/* ---- four columns ------------------------------------------------------------------------------------------------ */

enum { COLUMNS = 4 };

/* Four columns as they lie in memory. */
template <class T> struct alignas(COLUMNS * sizeof(T)) packed_columns {
    unsigned word[sizeof(T)];
};

__device__ __forceinline__ void unpack(const packed_columns<float> &p, float (&to)[COLUMNS])
{
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        to[i] = __uint_as_float(p.word[i]);
}
__device__ __forceinline__ void unpack(const packed_columns<bf16> &p, float (&to)[COLUMNS])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to[2 * i] = __uint_as_float(p.word[i] << 16);
        to[2 * i + 1] = __uint_as_float(p.word[i] & 0xffff0000u);
    }
}
__device__ __forceinline__ void unpack(const packed_columns<f16> &p, float (&to)[COLUMNS])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
            : "=f"(to[2 * i]), "=f"(to[2 * i + 1])
            : "r"(p.word[i]));
}
__device__ __forceinline__ void pack_columns(const float (&x)[COLUMNS], packed_columns<float> &to)
{
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        to.word[i] = __float_as_uint(x[i]);
}
__device__ __forceinline__ void pack_columns(const float (&x)[COLUMNS], packed_columns<bf16> &to)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to.word[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
}
__device__ __forceinline__ void pack_columns(const float (&x)[COLUMNS], packed_columns<f16> &to)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(to.word[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
}

/* -inf, in every element of a word; the larger ones of the elements of two words, NaN where either is. */
__device__ __forceinline__ unsigned lowest(float)
{
    return 0xff800000u;
}
__device__ __forceinline__ unsigned lowest(bf16)
{
    return 0xff80ff80u;
}
__device__ __forceinline__ unsigned lowest(f16)
{
    return 0xfc00fc00u;
}
__device__ __forceinline__ unsigned larger_of_words(float, unsigned a, unsigned b)
{
    return __float_as_uint(larger(__uint_as_float(a), __uint_as_float(b)));
}
__device__ __forceinline__ unsigned larger_of_words(bf16, unsigned a, unsigned b)
{
    unsigned y;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
__device__ __forceinline__ unsigned larger_of_words(f16, unsigned a, unsigned b)
{
    unsigned y;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* ---- a row ------------------------------------------------------------------------------------------------------- */

/* What so many bytes are read and written as. */
template <int BYTES> struct access;
template <> struct access<4> {
    typedef unsigned type;
};
template <> struct access<8> {
    typedef uint2 type;
};
template <> struct access<16> {
    typedef uint4 type;
};

/* UNIT of the four columns, from column i on, out of memory and into it. Single halves are taken out of words by
 * shifts: as halves every one of them would have a register to itself. */
template <class T, int UNIT> struct column_unit {
    typedef typename access<UNIT *(int)sizeof(T)>::type type;

    static __device__ __forceinline__ void load(packed_columns<T> &p, int i, const char *from)
    {
        reinterpret_cast<type *>(&p)[i / UNIT] = *reinterpret_cast<const type *>(from);
    }
    static __device__ __forceinline__ void store(const packed_columns<T> &p, int i, char *to)
    {
        *reinterpret_cast<type *>(to) = reinterpret_cast<const type *>(&p)[i / UNIT];
    }
};
template <class T> struct single_half {
    static __device__ __forceinline__ void load(packed_columns<T> &p, int i, const char *from)
    {
        const unsigned bits = *reinterpret_cast<const unsigned short *>(from), old = p.word[i / 2];
        p.word[i / 2] = i % 2 ? (old & 0xffffu) | bits << 16 : (old & 0xffff0000u) | bits;
    }
    static __device__ __forceinline__ void store(const packed_columns<T> &p, int i, char *to)
    {
        *reinterpret_cast<unsigned short *>(to) = (unsigned short)(i % 2 ? p.word[i / 2] >> 16 : p.word[i / 2]);
    }
};
template <> struct column_unit<f16, 1> : single_half<f16> {
};
template <> struct column_unit<bf16, 1> : single_half<bf16> {
};

/* A lane's columns of one row of an operand: quad j begins with column 4 (LANES j + rank). */
template <class T, int LANES, int QUADS> struct narrow_operand {
    enum { STEP = LANES * COLUMNS };
    packed_columns<T> at[QUADS];

    static __device__ __forceinline__ int first_column()
    {
        return lanes<LANES>::rank() * COLUMNS;
    }
    /* -inf everywhere. */
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < QUADS; j++)
#pragma unroll
            for (int w = 0; w < (int)sizeof(T); w++)
                at[j].word[w] = lowest(T());
    }

    /* Otherwise the offsets of all columns are computed ahead of all rows, and have registers. */
    static __device__ __forceinline__ void forget(long long &stride)
    {
        asm volatile("" : "+l"(stride));
    }
    /* `columns` is 0 where there is no row; -inf beyond them. A unit lies within the columns, or outside of them. */
    template <bool PLAIN>
    __device__ __forceinline__ void load(const onep_logits_operand &o, const char *row, int unit, int columns)
    {
        clear();
        if (PLAIN || unit == COLUMNS)
            load_units<COLUMNS>(row, sizeof(T), columns);
        else if (unit == 2)
            load_units<2>(row, sizeof(T), columns);
        else
            load_units<1>(row, o.col_stride, columns);
    }
    template <int UNIT> __device__ __forceinline__ void load_units(const char *row, long long stride, int columns)
    {
        if (UNIT == 1)
            forget(stride);
        const char *from = row + first_column() * stride;
#pragma unroll
        for (int j = 0; j < QUADS; j++)
#pragma unroll
            for (int i = 0; i < COLUMNS; i += UNIT)
                if (first_column() + j * STEP + i < columns)
                    column_unit<T, UNIT>::load(at[j], i, from + (j * STEP + i) * stride);
    }
    template <bool PLAIN>
    __device__ __forceinline__ void store(const onep_logits_operand &o, char *row, int unit, int columns) const
    {
        if (PLAIN || unit == COLUMNS)
            store_units<COLUMNS>(row, sizeof(T), columns);
        else if (unit == 2)
            store_units<2>(row, sizeof(T), columns);
        else
            store_units<1>(row, o.col_stride, columns);
    }
    template <int UNIT> __device__ __forceinline__ void store_units(char *row, long long stride, int columns) const
    {
        if (UNIT == 1)
            forget(stride);
        char *to = row + first_column() * stride;
#pragma unroll
        for (int j = 0; j < QUADS; j++)
#pragma unroll
            for (int i = 0; i < COLUMNS; i += UNIT)
                if (first_column() + j * STEP + i < columns)
                    column_unit<T, UNIT>::store(at[j], i, to + (j * STEP + i) * stride);
    }

    /* Stores what make(j, four numbers) makes for every quad of a row of `columns`; to NULL nothing. `made` may be what
     * it is made from. AT_ONCE: every quad as it is made, which takes fewer registers. Where a warp has several rows
     * all of them together are faster, for quads of different lanes share sectors. */
    template <bool PLAIN, bool AT_ONCE, class MAKE>
    static __device__ __forceinline__ void put(const onep_logits_loss_args &k, const onep_logits_operand &o, char *row,
                                               int columns, narrow_operand &made, const MAKE &make)
    {
        for_quads(k.columns, [&](int j) {
            float v[COLUMNS];
            make(j, v);
            pack_columns(v, made.at[j]);
            if (PLAIN && AT_ONCE && row && first_column() + j * STEP < columns)
                column_unit<T, COLUMNS>::store(made.at[j], 0, row + (first_column() + j * STEP) * (int)sizeof(T));
        });
        if (!(PLAIN && AT_ONCE) && row)
            made.template store<PLAIN>(o, row, k.narrow.unit, columns);
    }

    /* Calls f(j) for the quads that have columns in any lane of a row of so many. */
    template <class F> static __device__ __forceinline__ void for_quads(long long columns, const F &f)
    {
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            if (j * STEP >= (int)columns)
                break;
            f(j);
        }
    }

    /* The compiler forgets what it knows of them: otherwise it keeps the unpacked values, which are more registers. */
    __device__ __forceinline__ void forget()
    {
#pragma unroll
        for (int j = 0; j < QUADS; j++)
#pragma unroll
            for (int w = 0; w < (int)sizeof(T); w++)
                asm volatile("" : "+r"(at[j].word[w]));
    }

    /* The largest element of the row, in all of its lanes; NaN if there is one. */
    __device__ __forceinline__ float largest() const
    {
        unsigned most[2] = {lowest(T()), lowest(T())};
#pragma unroll
        for (int j = 0; j < QUADS; j++)
#pragma unroll
            for (int w = 0; w < (int)sizeof(T); w++)
                most[w % 2] = larger_of_words(T(), most[w % 2], at[j].word[w]);
        packed_columns<T> both = {{0}};
        both.word[0] = larger_of_words(T(), most[0], most[1]);
        float v[COLUMNS];
        unpack(both, v);
        return lanes<LANES>::largest(sizeof(T) == 4 ? v[0] : larger(v[0], v[1]));
    }
};

/* ---- its softmax ------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A sum in float: element i of quad j goes to part i, and from the ninth quad on to another one. */
template <int QUADS> struct parts {
    enum { COUNT = QUADS > 8 ? 2 * COLUMNS : COLUMNS };
    float at[COUNT];

    __device__ __forceinline__ parts()
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            at[i] = 0;
    }
    static __device__ __forceinline__ int of(int j, int i)
    {
        return j / 8 * COLUMNS + i;
    }
    template <int LANES> __device__ __forceinline__ float sum() const
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i += COLUMNS)
            sum += (at[i] + at[i + 1]) + (at[i + 2] + at[i + 3]);
        return lanes<LANES>::sum(sum);
    }
};

/* One side of a row, as this file's head has it. */
struct narrow_softmax {
    float k, m, r, error;
    float others, inverse; /* the sum of exponentials less 1; its inverse. NaN if there is NaN or +inf in the row */

    __device__ __forceinline__ narrow_softmax(float k_, float largest)
        : k(k_), m(largest), r(largest == minus_infinity(0.0f) ? 0.0f : largest * k_),
          error(largest == minus_infinity(0.0f) ? 0.0f : fmaf(largest, k_, -r)), others(0), inverse(0)
    {
    }
    __device__ __forceinline__ float exponent(float v) const
    {
        return fmaf(v, k, -r);
    }
    /* Counts v if it is the maximum, or adds its exponential to the others'. In C++ it becomes a fourth instruction. */
    __device__ __forceinline__ void add(float v, float e, int &ties, float &tail) const
    {
        asm("{\n\t.reg .pred p;\n\tsetp.eq.f32 p, %2, %3;\n\t@p add.s32 %0, %0, 1;\n\t@!p add.f32 %1, %1, %4;\n\t}"
            : "+r"(ties), "+f"(tail)
            : "f"(v), "f"(m), "f"(e));
    }
    __device__ __forceinline__ void find(int ties, float tail)
    {
        others = fmaf(tail, power_of_2(-error), (float)(ties - 1));
        if (has_no_mass())
            others = 0;
        if (!(m < -minus_infinity(0.0f)))
            others = (float)not_a_number();
        inverse = reciprocal(1 + others);
    }
    __device__ __forceinline__ bool has_no_mass() const
    {
        return m == minus_infinity(0.0f);
    }
    /* What turns exponentials into probabilities. */
    __device__ __forceinline__ float share() const
    {
        return inverse * power_of_2(-error);
    }
    __device__ __forceinline__ float lse(float over_temperature, float log_sum) const
    {
        return has_no_mass() ? m : __fmul_rn(m, over_temperature) + log_sum;
    }
    /* Sum of P (m - v) / temperature over the row, from this lane's exponentials. */
    template <class T, int LANES, int QUADS>
    __device__ __forceinline__ float distance(const narrow_operand<T, LANES, QUADS> &x) const
    {
        parts<QUADS> sum;
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            float v[COLUMNS];
            unpack(x.at[j], v);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                const float d = exponent(v[i]), e = power_of_2(d);
                if (e != 0)
                    sum.at[sum.of(j, i)] += e * (error - d);
            }
        }
        return sum.template sum<LANES>() * 0.693147181f * share();
    }
    /* The first column with the maximum, or the first NaN. */
    template <class T, int LANES, int QUADS>
    __device__ __forceinline__ int first(const narrow_operand<T, LANES, QUADS> &x, int columns) const
    {
        int found = columns;
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            float v[COLUMNS];
            unpack(x.at[j], v);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                const int column = x.first_column() + j * x.STEP + i;
                if ((v[i] == m || v[i] != v[i]) && column < found)
                    found = column;
            }
        }
        return lanes<LANES>::least(found);
    }
};

#endif
