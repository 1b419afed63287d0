/* What the head's kernels share: features read in double, groups of elements, the exponential, two-row reductions. */
#ifndef ONEP_HEAD_ELEM_CUH
#define ONEP_HEAD_ELEM_CUH

#include "cuda/pdl.cuh"
#include "cuda/elem.cuh"
#include "head/cuda_args.h"

/*
 * The features' values of COLUMNS columns into shared memory, in double, by all threads of the block: one load per thread
 * or two, all under way at once. The one place where types are told apart, so that little code has to be fetched: a
 * kernel begins with none of it in any cache. A barrier must follow.
 */
template <int COLUMNS>
__device__ __forceinline__ void load_features(const onep_matrix *in, long long begin, long long columns,
                                              double (&to)[ONEP_HEAD_VALUES][COLUMNS])
{
#pragma unroll 1
    for (int k = threadIdx.x; k < ONEP_HEAD_VALUES * COLUMNS; k += blockDim.x) {
        int which = k / COLUMNS, column = k % COLUMNS;
        const onep_matrix &f = in[which];
        double x = which & 1; /* absent: 0, 1, 0, 1, 0, 1 */
        if (f.data && begin + column < columns)
            x = load_any<double>(f.type, f.data + (begin + column) * f.col_stride);
        to[which][column] = x;
    }
}

/* The other way, after a barrier. */
template <int COLUMNS>
__device__ __forceinline__ void store_features(const onep_matrix *out, long long begin, long long columns,
                                               const double (&from)[ONEP_HEAD_RESULTS][COLUMNS])
{
#pragma unroll 1
    for (int k = threadIdx.x; k < ONEP_HEAD_RESULTS * COLUMNS; k += blockDim.x) {
        int which = k / COLUMNS, column = k % COLUMNS;
        const onep_matrix &f = out[which];
        if (f.data && begin + column < columns)
            store_any<double>(f.type, f.data + (begin + column) * f.col_stride, from[which][column]);
    }
}

/*
 * 2^x. In float: 2 ulp (1.44e-7, over all of [-32, 0]), exactly 1 at 0, and 0 instead of a subnormal result. A softmax
 * made of it: each element is off by that, by the same for its warp's largest, by 1 ulp of the sum's mean error (under
 * 5e-8, and common to the row), and by 2 roundings: under 4e-7 relative, plus half a unit in the last place of z.
 */
__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ double exp2_of(double x)
{
    return exp2(x);
}

__device__ __forceinline__ float minus_infinity(float)
{
    return __int_as_float(0xff800000);
}
__device__ __forceinline__ double minus_infinity(double)
{
    return __longlong_as_double(0xfff0000000000000ll);
}

__device__ __forceinline__ float larger(float a, float b)
{
    return fmaxf(a, b);
}
__device__ __forceinline__ double larger(double a, double b)
{
    return fmax(a, b);
}

/* 16 bytes past the first-level cache, which may still hold what an earlier kernel read there. */
template <class T> __device__ __forceinline__ pack<T> load_pack_l2(const char *from)
{
    uint4 raw = __ldcg(reinterpret_cast<const uint4 *>(from));
    pack<T> p;
    *reinterpret_cast<uint4 *>(&p) = raw;
    return p;
}

/* Two numbers as one word, the first one lower in memory. */
__device__ __forceinline__ unsigned narrow_two(const f16 &, float first, float second)
{
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
    return word;
}
__device__ __forceinline__ unsigned narrow_two(const bf16 &, float first, float second)
{
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
    return word;
}

/* COUNT elements side by side, to an address aligned to all of them. */
template <class T, int COUNT> struct group {
    static __device__ __forceinline__ void store(char *to, const float *x)
    {
        unsigned words[COUNT / 2];
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++)
            words[i] = narrow_two(T(), x[2 * i], x[2 * i + 1]);
        if (COUNT == 8)
            *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[COUNT / 2 - 2], words[COUNT / 2 - 1]);
        else
            *reinterpret_cast<uint2 *>(to) = make_uint2(words[0], words[1]);
    }
    /* Four of them, into floats. */
    static __device__ __forceinline__ void load(const char *from, float *x)
    {
        static_assert(COUNT == 4, "a group is read four at a time");
        uint2 raw = *reinterpret_cast<const uint2 *>(from);
        const T *elements = reinterpret_cast<const T *>(&raw);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = widen(elements[i]);
    }
};
template <int COUNT> struct group<float, COUNT> {
    static_assert(COUNT == 4, "16 bytes");
    static __device__ __forceinline__ void store(char *to, const float *x)
    {
        *reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1], x[2], x[3]);
    }
    static __device__ __forceinline__ void load(const char *from, float *x)
    {
        float4 raw = *reinterpret_cast<const float4 *>(from);
        x[0] = raw.x, x[1] = raw.y, x[2] = raw.z, x[3] = raw.w;
    }
};

struct take_largest {
    template <class R> static __device__ __forceinline__ R of(R a, R b)
    {
        return larger(a, b);
    }
};
struct take_sum {
    template <class R> static __device__ __forceinline__ R of(R a, R b)
    {
        return a + b;
    }
};

/* Over the warp, to every lane, in a fixed order. */
template <class OF, class R> __device__ __forceinline__ R over_warp(R x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        x = OF::of(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

/*
 * Rows at once: one row as above. Two rows share the work: after the first exchange each half of the warp reduces a row
 * of its own, 7 shuffles instead of 10.
 */
template <class OF, class R> __device__ __forceinline__ void over_warp_rows(R (&x)[1])
{
    x[0] = over_warp<OF>(x[0]);
}
template <class OF, class R> __device__ __forceinline__ void over_warp_rows(R (&x)[2])
{
    bool upper = (threadIdx.x & 16) != 0;
    R kept = upper ? x[1] : x[0], sent = upper ? x[0] : x[1];
    kept = OF::of(kept, __shfl_xor_sync(0xffffffffu, sent, 16));
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1)
        kept = OF::of(kept, __shfl_xor_sync(0xffffffffu, kept, offset));
    x[0] = __shfl_sync(0xffffffffu, kept, 0);
    x[1] = __shfl_sync(0xffffffffu, kept, 16);
}

#endif
