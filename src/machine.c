/* What this machine offers before there is a handle: vector levels, cores and devices. */
#define _GNU_SOURCE /* sched_getaffinity, sysconf's number of pages */
#include "machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"
#include "core/threads.h"
#include "core/versioned.h"
#include "operators.h"
#if defined(ONEPASS_HAVE_CUDA)
#include "cuda/device.h"
#endif

int32_t onep_usable_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int count = CPU_COUNT(&set);
    return count > ONEP_MAX_THREADS ? ONEP_MAX_THREADS : count;
}

int32_t onepass_isa_support(const char *isa)
{
    for (int level = 0; isa && level < ONEP_ALL_LEVELS; level++)
        if (strcmp(isa, onep_level_name((onep_level)level)) == 0)
            return onep_level_runs((onep_level)level) ? 2 : onep_level_built((onep_level)level) ? 1 : 0;
    return 0;
}

int32_t onepass_device_count(onepass_device_type type)
{
    if (type == ONEPASS_CPU)
        return 1;
#if defined(ONEPASS_HAVE_CUDA)
    if (type == ONEPASS_CUDA)
        return onep_cuda_devices(NULL);
#endif
    return 0;
}

static void describe_cpu(onepass_device_info *info)
{
    snprintf(info->name, sizeof info->name, "cpu");
    info->multiprocessors = onep_usable_cores();
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    info->memory_bytes = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
}

static onepass_status describe_cuda(int32_t id, onepass_device_info *info)
{
#if defined(ONEPASS_HAVE_CUDA)
    const char *why;
    onep_cuda_info found;
    int count = onep_cuda_devices(&why);
    if (count == 0)
        return onep_fail(ONEPASS_NO_DEVICE, "describe_device: device: cuda:%d; no CUDA driver can be used: %s", (int)id,
                         why);
    if (id < 0 || id >= count || !onep_cuda_describe(id, &found))
        return onep_fail(ONEPASS_NO_DEVICE, "describe_device: device: cuda:%d; this machine has %d CUDA device%s",
                         (int)id, count, count == 1 ? "" : "s");
    snprintf(info->name, sizeof info->name, "%s", found.name);
    info->compute_capability = 10 * found.major + found.minor;
    info->multiprocessors = found.multiprocessors;
    info->clock_khz = found.clock_khz;
    info->driver_version = found.driver_version;
    info->l2_bytes = found.l2_bytes;
    info->memory_bytes = (int64_t)found.memory_bytes;
    info->has_tma = found.has_tma;
    return ONEPASS_OK;
#else
    (void)info;
    return onep_fail(ONEPASS_NO_DEVICE, "describe_device: device: cuda:%d; this library was built without CUDA kernels",
                     (int)id);
#endif
}

onepass_status onepass_describe_device(onepass_device device, onepass_device_info *info)
{
    /* onepass_device_info as first published: up to has_tma. */
    enum { FIRST_SIZE = offsetof(onepass_device_info, has_tma) + sizeof(int32_t) };
    if (!info)
        return onep_missing("describe_device", "info");
    onepass_device_info found = {.size = sizeof found};
    onepass_status status = ONEPASS_OK;
    if (device.type == ONEPASS_CUDA)
        status = describe_cuda(device.id, &found);
    else if (device.type == ONEPASS_CPU && device.id == 0)
        describe_cpu(&found);
    else
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "describe_device: device: type %d, id %d; use ONEPASS_CPU with id 0, or ONEPASS_CUDA",
                         (int)device.type, (int)device.id);
    if (status != ONEPASS_OK)
        return status;
    return onep_write_versioned("describe_device", "info", &found, sizeof found, FIRST_SIZE, info);
}
