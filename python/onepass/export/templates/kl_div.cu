/*
 * The CUDA kernels of KL divergence between probabilities, found by name. The kernels are the library's; kl_kernels.inc
 * has the lines of src/cuda/kl_*.cu that make those for probabilities on both sides, kl_names.inc what they are called.
 */
#include <cuda_runtime.h>
#include <string.h>

#include "cuda_words.h"

namespace onepass_export {

#include "kl_flat.cuh"
#include "kl_rows.cuh"

typedef float f32;
typedef double f64;

#include "kl_kernels.inc"

static const struct kernel {
    const char *name;
    const void *function;
} kernels[] = {
#define KERNEL(name) {#name, reinterpret_cast<const void *>(&name)},
#include "kl_names.inc"
#undef KERNEL
};

static __device__ unsigned ticket_words[ONEPASS_EXPORT_TICKETS];
static __device__ float one_word = 1.0f;

} // namespace onepass_export

using onepass_export::kernel;
using onepass_export::kernels;

int onepass_export_load(onepass_export_words *words)
{
    void *tickets = 0;
    void *one = 0;
    cudaError_t error = cudaGetSymbolAddress(&tickets, onepass_export::ticket_words);
    if (error == cudaSuccess)
        error = cudaGetSymbolAddress(&one, onepass_export::one_word);
    for (const kernel &k : kernels) {
        cudaFuncAttributes attributes; /* asking for them loads the kernel */
        if (error == cudaSuccess)
            error = cudaFuncGetAttributes(&attributes, k.function);
    }
    words->tickets = static_cast<unsigned *>(tickets);
    words->one = static_cast<const float *>(one);
    return static_cast<int>(error);
}

int onepass_export_launch(const char *name, unsigned grid, unsigned block, unsigned shared_bytes, const void *args,
                          void *stream)
{
    for (const kernel &k : kernels) {
        if (strcmp(k.name, name) != 0)
            continue;
        void *arguments[] = {const_cast<void *>(args)};
        return static_cast<int>(cudaLaunchKernel(k.function, dim3(grid), dim3(block), arguments, shared_bytes,
                                                 static_cast<cudaStream_t>(stream)));
    }
    return static_cast<int>(cudaErrorInvalidDeviceFunction);
}
