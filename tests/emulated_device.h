/* What the host side of the split product calls instead of the driver, where kernels are run by emulated_gpu.hpp. */
#ifndef ONEPASS_TEST_EMULATED_DEVICE_H
#define ONEPASS_TEST_EMULATED_DEVICE_H

#include "device.h"

int emulated_has_kernel(const onep_cuda *cuda, const char *kernel);
onepass_status emulated_launch_cluster(const onep_cuda *cuda, const char *operator_name, const char *kernel,
                                       unsigned grid, unsigned block, unsigned cluster, unsigned shared_bytes,
                                       const void *args);
onepass_status emulated_describe_matrix(const onep_cuda *cuda, const char *operator_name, void *map,
                                        const void *address, int element_size, int64_t rows, int64_t columns,
                                        int64_t stride, int box_rows);

#endif
