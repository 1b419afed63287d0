/* Shared memory by its own addresses, as instructions beyond C++ want them. */
#ifndef ONEP_SHARED_CUH
#define ONEP_SHARED_CUH

/* Declares what a launch asked for beside what the kernel declares; at a multiple of 128. */
#define ONEP_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

__device__ __forceinline__ unsigned shared_address(const volatile void *p)
{
    return (unsigned)__cvta_generic_to_shared(const_cast<const void *>(p));
}

__device__ __forceinline__ float load_shared(unsigned at)
{
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
    return x;
}
__device__ __forceinline__ float2 load_shared_two(unsigned at)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
    return x;
}

#endif
