/*
 * Instructions of Hopper (sm_90a) that C++ has no words for: mbarriers, TMA loads of boxes of a matrix, WGMMA, and
 * setmaxnreg. PTX, by hand: no header is needed, so NVRTC compiles this as it is.
 */
#ifndef ONEP_HOPPER_CUH
#define ONEP_HOPPER_CUH

#include "cuda/shared.cuh"

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

/* All threads of all blocks of the cluster. */
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

/* ---- mbarriers --------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/* What was initialised is visible to TMA and to the other blocks, after the cluster's next barrier. */
__device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Arrives, and has the mbarrier wait for so many bytes as well. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/*
 * Arrives at the mbarrier of another block of the cluster, or the own. With no qualifiers: written out as
 * .release.cluster it becomes a fence for the whole device at every chunk, which costs a third of the speed. The reads
 * that must come before it are those of the tensor cores, waited for, and loads into registers already used.
 */
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned barrier, unsigned block)
{
    asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
                 "r"(block)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity)
{
    asm volatile("{\n\t.reg .pred done;\n\t"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* The same for whole warps, which stay together: a wait that lanes could leave one by one has what follows compiled
 * twice where that is long, with registers for both. */
__device__ __forceinline__ void mbarrier_wait_together(unsigned barrier, unsigned parity)
{
    unsigned done;
    do
        asm volatile("{\n\t.reg .pred done;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, done;\n\t}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    while (!__all_sync(~0u, done));
}

/* ---- TMA --------------------------------------------------------------------------------------------------------- */

/* A box at column x and row y of a matrix into shared memory; its bytes count at the mbarrier. Outside there are 0. */
__device__ __forceinline__ void tma_load(unsigned to, const void *map, unsigned barrier, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
/* The same to the same place in every block whose bit is set, and counted at each one's own mbarrier. */
__device__ __forceinline__ void tma_load_multicast(unsigned to, const void *map, unsigned barrier, int x, int y,
                                            unsigned short blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
                 : "memory");
}
__device__ __forceinline__ void prefetch_tensormap(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- WGMMA ------------------------------------------------------------------------------------------------------- */

/*
 * Rows of 64 fp16, 128 bytes, in the 128-byte swizzle of TMA: 16-byte pieces of a row exchanged by its number (mod 8),
 * 8 rows, 1024 bytes, per repetition. 16 more of the depth are 32 bytes on: 2 in the descriptor's units.
 */
__device__ __forceinline__ unsigned long long smem_descriptor(unsigned address)
{
    return (unsigned long long)((address & 0x3ffff) >> 4) | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

/* Before the first product of a group, when registers of its operands have been written. */
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
/* The compiler may neither move nor copy the sums here: the tensor cores write them behind its back. */
template <int N> __device__ __forceinline__ void keep_in_place(float (&sums)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(sums[i])::"memory");
}

#define ONEP_SUMS_8(d, i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define ONEP_SUMS_32(d) ONEP_SUMS_8(d, 0), ONEP_SUMS_8(d, 8), ONEP_SUMS_8(d, 16), ONEP_SUMS_8(d, 24)
#define ONEP_SUMS_64(d) ONEP_SUMS_32(d), ONEP_SUMS_8(d, 32), ONEP_SUMS_8(d, 40), ONEP_SUMS_8(d, 48), ONEP_SUMS_8(d, 56)
#define ONEP_NAMES_32                                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "                 \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define ONEP_NAMES_64                                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "                 \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "                  \
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "                  \
    "%59, %60, %61, %62, %63}"

/*
 * sums (64 rows by 2 N columns) += left (64 rows, 16 deep) right^T; the first of a chain, with more = 0, begins at 0.
 * Each thread has columns 8 i + 2 q, + 1 of row f in sums[4 i], [4 i + 1] and of row f + 8 in [4 i + 2], [4 i + 3], where
 * f = lane / 4, counted in its warp's 16 rows, and q = lane % 4.
 */
__device__ __forceinline__ void wgmma(float (&d)[64], unsigned long long left, unsigned long long right, int more)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " ONEP_NAMES_64 ", %64, %65, p, 1, 1, 0, 0;\n\t}"
                 : ONEP_SUMS_64(d)
                 : "l"(left), "l"(right), "r"(more));
}
__device__ __forceinline__ void wgmma(float (&d)[32], unsigned long long left, unsigned long long right, int more)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " ONEP_NAMES_32 ", %32, %33, p, 1, 1, 0, 0;\n\t}"
                 : ONEP_SUMS_32(d)
                 : "l"(left), "l"(right), "r"(more));
}
/* The same with the left operand in registers: depth 2 q, + 1 of rows f and f + 8, then 8 further of both. */
__device__ __forceinline__ void wgmma(float (&d)[64], const unsigned (&left)[4], unsigned long long right, int more)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " ONEP_NAMES_64
                 ", {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n\t}"
                 : ONEP_SUMS_64(d)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(more));
}
__device__ __forceinline__ void wgmma(float (&d)[32], const unsigned (&left)[4], unsigned long long right, int more)
{
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " ONEP_NAMES_32
                 ", {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t}"
                 : ONEP_SUMS_32(d)
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(more));
}

/* ---- threads and registers --------------------------------------------------------------------------------------- */

/* What lane 0 has: the same in all lanes of a warp, and the compiler knows. */
template <class T> __device__ __forceinline__ T from_lane_0(T x)
{
    return __shfl_sync(~0u, x, 0);
}

/* True in one lane of a warp, of which all are here; no register holds a lane's number for it. */
__device__ __forceinline__ bool elect_one()
{
    unsigned yes;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(yes));
    return yes != 0;
}

/* Opaque copy: forces recomputation of what is made of x, frees registers. */
__device__ __forceinline__ int opaque(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Warps that copy give registers to those that multiply; executed by all threads of a warpgroup. */
template <int COUNT> __device__ __forceinline__ void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#endif
