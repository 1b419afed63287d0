/*
 * The product kernels of src/cuda/split_sm90a.cu with pauses, for test_split_cuda.c: threads that copy and threads that
 * multiply keep each other waiting. The same names, in an image that only the test has. The compiler reports
 *   onep_split_product_sm90_planes_256: spills up to 128 bytes
 *   onep_split_product_sm90_planes_128: spills up to 64 bytes
 *   onep_split_product_sm90_planes_64: spills up to 64 bytes
 *   onep_split_product_sm90_along_256: spills up to 128 bytes
 *   onep_split_product_sm90_along_128: spills up to 64 bytes
 *   onep_split_product_sm90_along_64: spills up to 64 bytes
 *   onep_split_product_sm90_across_256: spills up to 128 bytes
 *   onep_split_product_sm90_across_128: spills up to 64 bytes
 *   onep_split_product_sm90_across_64: spills up to 64 bytes
 */
__device__ int pauses[2]; /* nanoseconds, of copying and multiplying, every chunk */

#define ONEP_SPLIT_PAUSE(which)                                                                                        \
    if (pauses[which])                                                                                                 \
    __nanosleep(pauses[which])

#include "cuda/split_sm90a.cu"

extern "C" __global__ void set_pauses(const int2 to)
{
    pauses[0] = to.x;
    pauses[1] = to.y;
}
