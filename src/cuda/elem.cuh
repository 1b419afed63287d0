/*
 * Element types on the device: how many fit in a 16-byte access, how they become the type that is computed in (float, or
 * double for float64) and back. No CUDA header is needed, so NVRTC compiles this as it is.
 */
#ifndef ONEP_ELEM_CUH
#define ONEP_ELEM_CUH

#include "cuda/types.h"

struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};

__device__ __forceinline__ float widen(f16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float widen(bf16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}
__device__ __forceinline__ float widen(float x)
{
    return x;
}
__device__ __forceinline__ double widen(double x)
{
    return x;
}

/* Round to nearest, ties to even; NaN stays NaN. */
__device__ __forceinline__ void narrow(f16 &to, float x)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
}
__device__ __forceinline__ void narrow(bf16 &to, float x)
{
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
}
__device__ __forceinline__ void narrow(float &to, float x)
{
    to = x;
}
__device__ __forceinline__ void narrow(double &to, double x)
{
    to = x;
}

/* The type computed in, and the elements of a 16-byte access. */
template <class T> struct element {
    typedef float real;
    enum { lanes = 16 / sizeof(T) };
};
template <> struct element<double> {
    typedef double real;
    enum { lanes = 2 };
};

/* One 16-byte access. Plain loads and stores: every cache hint that was tried cost 6 to 11 percent. */
template <class T> struct alignas(16) pack {
    T at[element<T>::lanes];
};

template <class T> __device__ __forceinline__ pack<T> load_pack(const T *from)
{
    uint4 raw = *reinterpret_cast<const uint4 *>(from);
    pack<T> p;
    static_assert(sizeof p == sizeof raw, "a pack is one 16-byte access");
    *reinterpret_cast<uint4 *>(&p) = raw;
    return p;
}
template <class T> __device__ __forceinline__ void store_pack(T *to, const pack<T> &p)
{
    *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(&p);
}

/* All elements of a pack at once. Half types are taken from whole words: one instruction per element. */
template <class T> __device__ __forceinline__ void unpack(const pack<T> &p, typename element<T>::real *to)
{
#pragma unroll
    for (int i = 0; i < element<T>::lanes; i++)
        to[i] = widen(p.at[i]);
}
template <> __device__ __forceinline__ void unpack<bf16>(const pack<bf16> &p, float *to)
{
    const uint4 raw = *reinterpret_cast<const uint4 *>(&p);
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}
template <> __device__ __forceinline__ void unpack<f16>(const pack<f16> &p, float *to)
{
    const uint4 raw = *reinterpret_cast<const uint4 *>(&p);
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
            : "=f"(to[2 * i]), "=f"(to[2 * i + 1])
            : "r"(words[i]));
}

__device__ __forceinline__ float multiply_add(float a, float b, float c)
{
    return fmaf(a, b, c);
}
__device__ __forceinline__ double multiply_add(double a, double b, double c)
{
    return fma(a, b, c);
}

/* One element of a type known only at run time. */
template <class R> __device__ __forceinline__ R load_any(int type, const void *from)
{
    switch (type) {
    case ONEP_CUDA_F16:
        return (R)widen(*static_cast<const f16 *>(from));
    case ONEP_CUDA_BF16:
        return (R)widen(*static_cast<const bf16 *>(from));
    case ONEP_CUDA_F32:
        return (R) * static_cast<const float *>(from);
    default:
        return (R) * static_cast<const double *>(from);
    }
}

/* A double becomes a half in one rounding: float first, rounded to odd, keeps what decides a tie. */
__device__ __forceinline__ float to_float_odd(double x)
{
    float y = __double2float_rz(x);
    if ((double)y != x && x == x) /* inexact: the last bit says so */
        y = __uint_as_float(__float_as_uint(y) | 1u);
    return y;
}
__device__ __forceinline__ float to_float_odd(float x)
{
    return x;
}

template <class R> __device__ __forceinline__ void store_any(int type, void *to, R x)
{
    switch (type) {
    case ONEP_CUDA_F16:
        narrow(*static_cast<f16 *>(to), to_float_odd(x));
        break;
    case ONEP_CUDA_BF16:
        narrow(*static_cast<bf16 *>(to), to_float_odd(x));
        break;
    case ONEP_CUDA_F32:
        *static_cast<float *>(to) = (float)x;
        break;
    default:
        *static_cast<double *>(to) = (double)x;
    }
}

#endif
