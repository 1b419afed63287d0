/* Two fp16 in a word. */
#ifndef ONEP_HALVES_CUH
#define ONEP_HALVES_CUH

/* The first in the low half; round to nearest, ties to even. */
__device__ __forceinline__ unsigned pack_halves(float first, float second)
{
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
}
__device__ __forceinline__ void unpack_halves(unsigned word, float &first, float &second)
{
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(first), "=f"(second)
        : "r"(word));
}

#endif
