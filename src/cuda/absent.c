/* Stands in for device.c and the kernels' plans in a build without CUDA kernels: every question is answered with no. */
#include "device.h"
#include "kl.h"
#include "status.h"

static const char reason[] = "this library was built without CUDA kernels";

onepass_status onep_cuda_create(int32_t device, void *stream, int trust_addresses, onep_cuda **out)
{
    (void)stream, (void)trust_addresses;
    *out = NULL;
    return onep_fail(ONEPASS_NO_DEVICE, "create: config.device: cuda:%d; %s", (int)device, reason);
}

void onep_cuda_destroy(onep_cuda *cuda)
{
    (void)cuda;
}

onepass_status onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const char *kernel, unsigned grid,
                                unsigned block, unsigned shared_bytes, const void *args)
{
    (void)cuda, (void)kernel, (void)grid, (void)block, (void)shared_bytes, (void)args;
    return onep_fail(ONEPASS_NO_DEVICE, "%s: %s", operator_name, reason);
}

onepass_status onep_cuda_pointer_check(const onep_cuda *cuda, const char *operator_name, const char *argument,
                                       const void *pointer)
{
    (void)cuda, (void)argument, (void)pointer;
    return onep_fail(ONEPASS_NO_DEVICE, "%s: %s", operator_name, reason);
}

int onep_cuda_is_capturing(const onep_cuda *cuda)
{
    (void)cuda;
    return 0;
}

int onep_cuda_multiprocessors(const onep_cuda *cuda)
{
    (void)cuda;
    return 0;
}

int onep_cuda_capability(const onep_cuda *cuda)
{
    (void)cuda;
    return 0;
}

int64_t onep_cuda_l2_bytes(const onep_cuda *cuda)
{
    (void)cuda;
    return 0;
}

void *onep_cuda_tickets(const onep_cuda *cuda)
{
    (void)cuda;
    return NULL;
}

int onep_cuda_devices(const char **why)
{
    if (why)
        *why = reason;
    return 0;
}

int onep_cuda_describe(int32_t device, onep_cuda_info *info)
{
    (void)device, (void)info;
    return 0;
}

size_t onep_kl_cuda_workspace(const onep_kl_problem *problem)
{
    (void)problem;
    return 0;
}
