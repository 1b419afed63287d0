/*
 * The CUDA kernels of an operator, found by name. The kernels are the library's: operator_kernels.inc includes them,
 * operator_names.inc has KERNEL(name) for each of them.
 */
#include <cuda_runtime.h>
#include <string.h>

#include "cuda_words.h"

namespace onepass_export {

#include "operator_kernels.inc"

static const struct kernel {
    const char *name;
    const void *function;
} kernels[] = {
#define KERNEL(name) {#name, reinterpret_cast<const void *>(&name)},
#include "operator_names.inc"
#undef KERNEL
};

static __device__ unsigned ticket_words[ONEPASS_EXPORT_TICKETS];
static __device__ float one_word = 1.0f;

} // namespace onepass_export

using onepass_export::kernel;
using onepass_export::kernels;

/* An early launch is a thing of CUDA 11.8; drivers keep it as it is when they capture it since 12.3. */
static bool can_launch_early()
{
#if CUDART_VERSION >= 11080
    int driver = 0;
    return cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030;
#else
    return false;
#endif
}

#ifdef ONEPASS_EXPORT_HOPPER
/* The device has code of this file, and this kernel is not in it. */
static bool is_for_others(cudaError_t error)
{
    return error == cudaErrorInvalidDeviceFunction || error == cudaErrorNoKernelImageForDevice ||
           error == cudaErrorSymbolNotFound;
}
#endif

int onepass_export_load(onepass_export_words *words)
{
    void *tickets = 0;
    void *one = 0;
    cudaError_t error = cudaGetSymbolAddress(&tickets, onepass_export::ticket_words);
    if (error == cudaSuccess)
        error = cudaGetSymbolAddress(&one, onepass_export::one_word);
    words->early = can_launch_early();
    words->hopper = 0;
    for (const kernel &k : kernels) {
        if (error != cudaSuccess)
            break;
        cudaFuncAttributes attributes; /* asking for them loads the kernel */
        error = cudaFuncGetAttributes(&attributes, k.function);
#ifdef ONEPASS_EXPORT_HOPPER
        if (strstr(k.name, "_sm90")) {
            words->hopper = error == cudaSuccess;
            if (is_for_others(error)) {
                cudaGetLastError(); /* or PyTorch's next check would find it */
                error = cudaSuccess;
                continue;
            }
        }
#endif
        /* Code that was translated from an older architecture's does not wait for the kernel in front of it. */
        if (error == cudaSuccess && attributes.ptxVersion < 90)
            words->early = 0;
    }
    words->tickets = static_cast<unsigned *>(tickets);
    words->one = static_cast<const float *>(one);
    return static_cast<int>(error);
}

const void *onepass_export_kernel(const char *name)
{
    for (const kernel &k : kernels)
        if (strcmp(k.name, name) == 0)
            return k.function;
    return 0;
}

static cudaError_t launch(const void *function, unsigned grid, unsigned block, unsigned shared_bytes, void **arguments,
                          cudaStream_t stream, int early)
{
#if CUDART_VERSION >= 11080
    if (early) {
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t shape = {};
        shape.gridDim = dim3(grid);
        shape.blockDim = dim3(block);
        shape.dynamicSmemBytes = shared_bytes;
        shape.stream = stream;
        shape.attrs = &attribute;
        shape.numAttrs = 1;
        return cudaLaunchKernelExC(&shape, function, arguments);
    }
#endif
    (void)early;
    return cudaLaunchKernel(function, dim3(grid), dim3(block), arguments, shared_bytes, stream);
}

int onepass_export_launch(const char *name, unsigned grid, unsigned block, unsigned shared_bytes, const void *args,
                          void *stream, int early)
{
    const void *function = onepass_export_kernel(name);
    if (!function)
        return static_cast<int>(cudaErrorInvalidDeviceFunction);
    void *arguments[] = {const_cast<void *>(args)};
    return static_cast<int>(
        launch(function, grid, block, shared_bytes, arguments, static_cast<cudaStream_t>(stream), early));
}
