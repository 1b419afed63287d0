/*
 * The kernels of the split product, and the C that plans and launches them, on the CPU: compiled as C++ and run thread
 * by thread (emulated_gpu.hpp), held bit for bit against the model of the tensor cores. Launches come here under names
 * of their own (CMakeLists.txt), and "device memory" is memory.
 */
#include "emulated_gpu.hpp"

extern "C" {
#include "emulated_device.h"
}

#include "cuda/kernels.h"
#include "cuda/pdl.cuh"
#include "cuda/split.cuh"
namespace planes_kernels
{
#include "cuda/split_planes.cu"
}
namespace ampere_kernels
{
#include "cuda/split_sm80.cu"
}
#define ONEP_SPLIT_PAUSE(which)                                                                                        \
    if (emulated_pauses[which])                                                                                        \
    __nanosleep(emulated_pauses[which])
namespace hopper_kernels
{
#include "cuda/split_sm90a.cu"
}

int emulated_pauses[2];

template <class ARGS>
static void launch_any(void (*kernel)(ARGS), const onep_launch *launch, unsigned cluster, const void *args,
                       uint64_t seed)
{
    emulated::launch(kernel, launch->grid, launch->block, cluster, *static_cast<const ARGS *>(args),
                     {"the split product", seed, 200, emulated::SHARED});
}

/* By number, as kernels.h has them. */
typedef void launcher(const onep_launch *launch, unsigned cluster, const void *args, uint64_t seed);
static launcher *const launchers[] = {
#define KERNEL(name, where)                                                                                            \
    [](const onep_launch *launch, unsigned cluster, const void *args, uint64_t seed) {                                 \
        launch_any(where::name, launch, cluster, args, seed);                                                          \
    },
#include "fatbin_kernels.inc"
#undef KERNEL
};

int emulated_has_kernel(const onep_cuda *, int kernel)
{
    return kernel >= 0 && kernel < (int)ONEP_CUDA_KERNEL_COUNT;
}

onepass_status emulated_launch(const onep_cuda *cuda, const char *, const onep_launch *launch, const void *args)
{
    static uint64_t seed = 1;
    const unsigned cluster = launch->cluster ? launch->cluster : 1;
    if (!emulated_has_kernel(cuda, launch->kernel) || launch->shared_bytes > emulated::SHARED || launch->grid == 0 ||
        launch->grid % cluster != 0)
        return ONEPASS_DEVICE_ERROR;
    launchers[launch->kernel](launch, cluster, args, seed++);
    return ONEPASS_OK;
}

onepass_status emulated_tensor_map(const onep_cuda *, const char *, void *map, const void *address, int element_size,
                                   int64_t rows, int64_t columns, int64_t stride, int box_rows)
{
    emulated_map made = {static_cast<const char *>(address), rows, columns, stride, element_size, box_rows};
    static_assert(sizeof made <= sizeof(onep_tensor_map), "fits");
    /* what the driver refuses */
    if ((uintptr_t)address % 16 != 0 || stride % 16 != 0 || stride <= 0 || box_rows > 256 || (uintptr_t)map % 64 != 0)
        return ONEPASS_DEVICE_ERROR;
    memset(map, 0xff, sizeof(onep_tensor_map));
    memcpy(map, &made, sizeof made);
    return ONEPASS_OK;
}
