/* Device memory, events and the read probe. See memory.h. */
#include "cuda/memory.h"

#include <stdio.h>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"
#include "cuda/probe.h"

/* A handle of a CUDA device exists: there is a driver. */
static onepass_status enter(const onepass_handle *handle, const char *operator_name, const onep_driver **driver,
                            int *mode)
{
    *driver = onep_driver_get();
    return onep_cuda_enter(onep_cuda_of(handle), operator_name, mode);
}

static onepass_status leave(const onepass_handle *handle, int mode, const char *operator_name, const char *what,
                            int error)
{
    onep_cuda_leave(onep_cuda_of(handle), mode);
    return onep_cuda_status(operator_name, what, error);
}

static onep_cu_stream *stream_of(const onepass_handle *handle)
{
    return onep_cuda_stream(onep_cuda_of(handle));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

onepass_status onep_cuda_allocate(const onepass_handle *handle, size_t bytes, void **memory)
{
    const onep_driver *driver;
    int mode;
    onepass_status status = enter(handle, "memory_alloc", &driver, &mode);
    if (status != ONEPASS_OK)
        return status;
    onep_cu_address address = 0;
    char what[80];
    snprintf(what, sizeof what, "%zu bytes on cuda:%d", bytes, (int)handle->device.id);
    status = leave(handle, mode, "memory_alloc", what, driver->cuMemAlloc(&address, bytes));
    *memory = status == ONEPASS_OK ? (void *)(uintptr_t)address : NULL;
    return status;
}

onepass_status onep_cuda_release(const onepass_handle *handle, void *memory)
{
    const onep_driver *driver;
    int mode;
    onepass_status status = enter(handle, "memory_free", &driver, &mode);
    if (status != ONEPASS_OK)
        return status;
    return leave(handle, mode, "memory_free", "memory", driver->cuMemFree((onep_cu_address)(uintptr_t)memory));
}

/* The driver finds out which side is the host's. */
onepass_status onep_cuda_copy(const onepass_handle *handle, void *to, const void *from, size_t bytes)
{
    const onep_driver *driver;
    int mode;
    onepass_status status = enter(handle, "memory_copy", &driver, &mode);
    if (status != ONEPASS_OK)
        return status;
    int error = driver->cuMemcpyAsync((onep_cu_address)(uintptr_t)to, (onep_cu_address)(uintptr_t)from, bytes,
                                      stream_of(handle));
    if (error == 0)
        error = driver->cuStreamSynchronize(stream_of(handle));
    return leave(handle, mode, "memory_copy", "the copy, or work before it", error);
}

onepass_status onep_cuda_fill(const onepass_handle *handle, void *to, unsigned char value, size_t bytes)
{
    const onep_driver *driver;
    int mode;
    onepass_status status = enter(handle, "memory_fill", &driver, &mode);
    if (status != ONEPASS_OK)
        return status;
    return leave(handle, mode, "memory_fill", "to",
                 driver->cuMemsetD8Async((onep_cu_address)(uintptr_t)to, value, bytes, stream_of(handle)));
}

onepass_status onep_cuda_wait(const onepass_handle *handle)
{
    const onep_driver *driver;
    int mode;
    onepass_status status = enter(handle, "wait", &driver, &mode);
    if (status != ONEPASS_OK)
        return status;
    return leave(handle, mode, "wait", "the stream", driver->cuStreamSynchronize(stream_of(handle)));
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

onepass_status onep_cuda_event_create(const onepass_handle *handle, void **event)
{
    const onep_driver *driver;
    int mode;
    onepass_status status = enter(handle, "timer_create", &driver, &mode);
    if (status != ONEPASS_OK)
        return status;
    onep_cu_event *created = NULL;
    status = leave(handle, mode, "timer_create", "an event", driver->cuEventCreate(&created, 0));
    *event = status == ONEPASS_OK ? created : NULL;
    return status;
}

void onep_cuda_event_destroy(const onepass_handle *handle, void *event)
{
    const onep_driver *driver;
    int mode;
    if (enter(handle, "timer_destroy", &driver, &mode) != ONEPASS_OK)
        return;
    driver->cuEventDestroy(event);
    onep_cuda_leave(onep_cuda_of(handle), mode);
}

onepass_status onep_cuda_event_record(const onepass_handle *handle, void *event)
{
    const onep_driver *driver;
    int mode;
    onepass_status status = enter(handle, "timer", &driver, &mode);
    if (status != ONEPASS_OK)
        return status;
    return leave(handle, mode, "timer", "an event", driver->cuEventRecord(event, stream_of(handle)));
}

onepass_status onep_cuda_event_elapsed(const onepass_handle *handle, void *begin, void *end, double *seconds)
{
    const onep_driver *driver;
    int mode;
    float milliseconds = 0;
    onepass_status status = enter(handle, "timer_seconds", &driver, &mode);
    if (status != ONEPASS_OK)
        return status;
    int error = driver->cuEventSynchronize(end);
    if (error == 0)
        error = driver->cuEventElapsedTime(&milliseconds, begin, end);
    *seconds = 1e-3 * (double)milliseconds;
    return leave(handle, mode, "timer_seconds", "the work that is timed", error);
}

/* ---- the read probe ---------------------------------------------------------------------------------------------- */

onepass_status onep_cuda_read_probe(const onepass_handle *handle, const void *data, size_t bytes, void *sink)
{
    enum { THREADS = 512, BLOCKS_PER_MULTIPROCESSOR = 2 };
    const onep_cuda *cuda = onep_cuda_of(handle);
    onep_read_args args = {.data = data, .bytes = bytes, .sink = sink};
    onep_launch launch = {.kernel = ONEP_KERNEL_ID(onep_read_probe),
                          .grid = BLOCKS_PER_MULTIPROCESSOR * (unsigned)onep_cuda_multiprocessors(cuda),
                          .block = THREADS};
    return onep_cuda_launch(cuda, "read_probe", &launch, &args);
}
