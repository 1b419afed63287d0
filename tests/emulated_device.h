/* What the host side of the split product calls instead of the driver, where kernels are run by emulated_gpu.hpp. */
#ifndef ONEPASS_TEST_EMULATED_DEVICE_H
#define ONEPASS_TEST_EMULATED_DEVICE_H

#include "cuda/device.h"

int emulated_has_kernel(const onep_cuda *cuda, int kernel);
onepass_status emulated_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                               const void *args);
onepass_status emulated_tensor_map(const onep_cuda *cuda, const char *operator_name, void *map, const void *address,
                                   int element_size, int64_t rows, int64_t columns, int64_t stride, int box_rows);

/* Copying and multiplying sleep every chunk where these are not 0. */
extern int emulated_pauses[2];

#endif
