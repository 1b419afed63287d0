/*
 * The kernels of the split product, and the C that plans and launches them, on the CPU: compiled as C++ and run thread
 * by thread (emulated_gpu.hpp), held bit for bit against the model of the tensor cores. Launches come here under names
 * of their own (CMakeLists.txt), and "device memory" is memory.
 */
#include "emulated_gpu.hpp"

#include "early.cuh"
#include "split.cuh"
namespace planes_kernels
{
#include "split_planes.cu"
}
namespace ampere_kernels
{
#include "split_sm80.cu"
}
namespace hopper_kernels
{
#include "split_sm90a.cu"
}

extern "C" {
#include "emulated_device.h"
}

struct known_kernel {
    const char *name;
    void (*split)(const onep_split_args);
    void (*product)(const onep_split_product_args);
    void (*merge)(const onep_split_merge_args);
};

#define PRODUCT(name)                                                                                                  \
    {                                                                                                                  \
#name, nullptr, hopper_kernels::name, nullptr                                                                  \
    }
static const known_kernel known[] = {
    {"onep_split_rows", planes_kernels::onep_split_rows, nullptr, nullptr},
    {"onep_split_rows_4096", planes_kernels::onep_split_rows_4096, nullptr, nullptr},
    {"onep_split_rows_8192", planes_kernels::onep_split_rows_8192, nullptr, nullptr},
    {"onep_split_rows_16384", planes_kernels::onep_split_rows_16384, nullptr, nullptr},
    {"onep_split_columns", planes_kernels::onep_split_columns, nullptr, nullptr},
    {"onep_split_columns_1024", planes_kernels::onep_split_columns_1024, nullptr, nullptr},
    {"onep_split_chunks", planes_kernels::onep_split_chunks, nullptr, nullptr},
    {"onep_split_chunks_across", planes_kernels::onep_split_chunks_across, nullptr, nullptr},
    {"onep_split_merge", nullptr, nullptr, planes_kernels::onep_split_merge},
    {"onep_split_product_sm80", nullptr, ampere_kernels::onep_split_product_sm80, nullptr},
    PRODUCT(onep_split_product_sm90_planes_256),
    PRODUCT(onep_split_product_sm90_planes_128),
    PRODUCT(onep_split_product_sm90_planes_64),
    PRODUCT(onep_split_product_sm90_along_256),
    PRODUCT(onep_split_product_sm90_along_128),
    PRODUCT(onep_split_product_sm90_along_64),
    PRODUCT(onep_split_product_sm90_across_256),
    PRODUCT(onep_split_product_sm90_across_128),
    PRODUCT(onep_split_product_sm90_across_64),
};

static const known_kernel *find(const char *name)
{
    for (const known_kernel &k : known)
        if (strcmp(k.name, name) == 0)
            return &k;
    return nullptr;
}

int emulated_has_kernel(const onep_cuda *, const char *kernel)
{
    return find(kernel) != nullptr;
}

onepass_status emulated_launch_cluster(const onep_cuda *, const char *, const char *kernel, unsigned grid,
                                       unsigned block, unsigned cluster, unsigned shared_bytes, const void *args)
{
    static uint64_t seed = 1;
    const known_kernel *k = find(kernel);
    if (!k || shared_bytes > emulated::SHARED || grid == 0 || grid % cluster != 0)
        return ONEPASS_DEVICE_ERROR;
    if (k->split)
        emulated::launch(k->split, grid, block, cluster, *static_cast<const onep_split_args *>(args), seed++);
    else if (k->merge)
        emulated::launch(k->merge, grid, block, cluster, *static_cast<const onep_split_merge_args *>(args), seed++);
    else
        emulated::launch(k->product, grid, block, cluster, *static_cast<const onep_split_product_args *>(args), seed++);
    return ONEPASS_OK;
}

onepass_status emulated_describe_matrix(const onep_cuda *, const char *, void *map, const void *address,
                                        int element_size, int64_t rows, int64_t columns, int64_t stride, int box_rows)
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
