/* Instructions of Ampere and later that C++ has no words for: copies into shared memory, products of small matrices. */
#ifndef ONEP_AMPERE_CUH
#define ONEP_AMPERE_CUH

#include "cuda/shared.cuh"

/* 16 bytes into shared memory, on their way while the thread goes on; zeros instead if there is nothing to copy. */
__device__ __forceinline__ void cp_async_16(unsigned to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
/* 4, 8 or 16 bytes, at a multiple of so many on both sides. */
template <int BYTES> __device__ __forceinline__ void cp_async(unsigned to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

/* Closes a group of copies. */
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* The thread's own copies, but for those of the last group, have arrived. */
__device__ __forceinline__ void cp_async_wait_1()
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}
/* The same, but for those of the last N groups. */
template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* All of the thread's own copies have arrived. */
__device__ __forceinline__ void cp_async_wait_0()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Four 8 by 8 matrices of fp16; every lane says where one row of one of them is. */
__device__ __forceinline__ void ldmatrix_x4(unsigned at, unsigned (&to)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at));
}

/* d (16 left rows by 8 right ones) += left right^T, 16 deep. */
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&left)[4], unsigned right0, unsigned right1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

#endif
