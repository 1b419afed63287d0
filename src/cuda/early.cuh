/*
 * Kernels that may begin before the one in front of them on the stream has ended (onep_cuda_launch_early). Such a
 * kernel calls wait_for_previous before it touches anything the previous kernel wrote or still reads; the previous one
 * may call let_next_begin to have it on the multiprocessors early. Where the device has no such launches both are
 * nothing.
 */
#ifndef ONEP_EARLY_CUH
#define ONEP_EARLY_CUH

/* All that was on the stream before is finished and visible. */
__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/*
 * The next kernel may begin once every block has come here. Called after wait_for_previous it promises the next kernel
 * more: what was on the stream before this kernel is finished, even before the next one waits.
 */
__device__ __forceinline__ void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
