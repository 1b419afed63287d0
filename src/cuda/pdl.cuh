/*
 * Programmatic dependent launch (onep_launch.programmatic): a kernel may begin before the one in front of it on the
 * stream has ended. It calls pdl_wait before it touches anything the previous kernel wrote or still reads; the previous
 * one may call pdl_launch_dependents to have it on the multiprocessors sooner. Where the device has no such launches
 * both are nothing.
 */
#ifndef ONEP_PDL_CUH
#define ONEP_PDL_CUH

/* All that was on the stream before is finished and visible. */
__device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/*
 * The next kernel may begin once every block has come here. Called after pdl_wait it promises the next kernel more:
 * what was on the stream before this kernel is finished, even before the next one waits.
 */
__device__ __forceinline__ void pdl_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
