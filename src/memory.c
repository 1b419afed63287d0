/*
 * Memory, waiting and timing where a handle computes, for programs that have no other way there. On the CPU these are
 * the C library's; a device's class does the rest. No operator uses them: operators allocate and wait for nothing.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/operator.h"
#include "core/status.h"

/* "memory_copy: to: NULL; it is required", for the first that is missing; `bytes` 0 needs no address. */
static onepass_status check(const char *name, const onepass_handle *handle, const char *argument, const void *address,
                            size_t bytes)
{
    if (!handle)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: handle: NULL; make one with onepass_create", name);
    return address || bytes == 0 ? ONEPASS_OK : onep_missing(name, argument);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

onepass_status onepass_memory_alloc(onepass_handle *handle, size_t bytes, void **memory)
{
    onepass_status status = check("memory_alloc", handle, "memory", (void *)memory, 1);
    if (memory)
        *memory = NULL;
    if (status != ONEPASS_OK || bytes == 0)
        return status;
    if (handle->device_class)
        return handle->device_class->allocate(handle, bytes, memory);
    size_t room = (bytes + ONEP_WORKSPACE_ALIGNMENT - 1) / ONEP_WORKSPACE_ALIGNMENT * ONEP_WORKSPACE_ALIGNMENT;
    if (room >= bytes) /* it has not wrapped around */
        *memory = aligned_alloc(ONEP_WORKSPACE_ALIGNMENT, room);
    return *memory ? ONEPASS_OK : onep_fail(ONEPASS_OUT_OF_MEMORY, "memory_alloc: no memory for %zu bytes", bytes);
}

onepass_status onepass_memory_free(onepass_handle *handle, void *memory)
{
    onepass_status status = check("memory_free", handle, "memory", memory, 0);
    if (status != ONEPASS_OK || !memory)
        return status;
    if (handle->device_class)
        return handle->device_class->release(handle, memory);
    free(memory);
    return ONEPASS_OK;
}

onepass_status onepass_memory_copy(onepass_handle *handle, void *to, const void *from, size_t bytes)
{
    onepass_status status = check("memory_copy", handle, "to", to, bytes);
    if (status == ONEPASS_OK)
        status = check("memory_copy", handle, "from", from, bytes);
    if (status != ONEPASS_OK || bytes == 0)
        return status;
    if (handle->device_class)
        return handle->device_class->copy(handle, to, from, bytes);
    memmove(to, from, bytes);
    return ONEPASS_OK;
}

onepass_status onepass_memory_fill(onepass_handle *handle, void *to, int32_t value, size_t bytes)
{
    onepass_status status = check("memory_fill", handle, "to", to, bytes);
    if (status == ONEPASS_OK && (value < 0 || value > UINT8_MAX))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "memory_fill: value: %d; it must be from 0 to %d", (int)value,
                         UINT8_MAX);
    if (status != ONEPASS_OK || bytes == 0)
        return status;
    if (handle->device_class)
        return handle->device_class->fill(handle, to, (unsigned char)value, bytes);
    memset(to, (int)value, bytes);
    return ONEPASS_OK;
}

onepass_status onepass_wait(onepass_handle *handle)
{
    onepass_status status = check("wait", handle, "", NULL, 0);
    return status == ONEPASS_OK && handle->device_class ? handle->device_class->wait(handle) : status;
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

enum { BEGIN, END, EVENTS };

struct onepass_timer {
    const onepass_handle *handle;
    void *events[EVENTS]; /* of a device */
    double times[EVENTS]; /* of the CPU, in seconds */
    int is_known[EVENTS]; /* it was started, and stopped since */
};

onepass_status onepass_timer_create(onepass_handle *handle, onepass_timer **timer)
{
    onepass_status status = check("timer_create", handle, "timer", (void *)timer, 1);
    if (timer)
        *timer = NULL;
    if (status != ONEPASS_OK)
        return status;
    onepass_timer *created = calloc(1, sizeof *created);
    if (!created)
        return onep_fail(ONEPASS_OUT_OF_MEMORY, "timer_create: no memory for a timer of %zu bytes", sizeof *created);
    created->handle = handle;
    for (int i = 0; i < EVENTS && handle->device_class && status == ONEPASS_OK; i++)
        status = handle->device_class->event_create(handle, &created->events[i]);
    if (status == ONEPASS_OK)
        *timer = created;
    else
        onepass_timer_destroy(created);
    return status;
}

void onepass_timer_destroy(onepass_timer *timer)
{
    for (int i = 0; timer && i < EVENTS; i++)
        if (timer->events[i])
            timer->handle->device_class->event_destroy(timer->handle, timer->events[i]);
    free(timer);
}

static onepass_status record(onepass_timer *timer, int which)
{
    const onep_device_class *device = timer->handle->device_class;
    struct timespec now;
    onepass_status status = ONEPASS_OK;
    if (device)
        status = device->event_record(timer->handle, timer->events[which]);
    else if (clock_gettime(CLOCK_MONOTONIC, &now) == 0)
        timer->times[which] = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    timer->is_known[which] = status == ONEPASS_OK;
    return status;
}

onepass_status onepass_timer_start(onepass_timer *timer)
{
    if (!timer)
        return onep_missing("timer_start", "timer");
    timer->is_known[END] = 0;
    return record(timer, BEGIN);
}

onepass_status onepass_timer_stop(onepass_timer *timer)
{
    if (!timer)
        return onep_missing("timer_stop", "timer");
    if (!timer->is_known[BEGIN])
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "timer_stop: timer: it has not been started");
    return record(timer, END);
}

onepass_status onepass_timer_seconds(onepass_timer *timer, double *seconds)
{
    if (!timer || !seconds)
        return onep_missing("timer_seconds", timer ? "seconds" : "timer");
    if (!timer->is_known[END])
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "timer_seconds: timer: it has not been started and stopped");
    const onep_device_class *device = timer->handle->device_class;
    double elapsed = timer->times[END] - timer->times[BEGIN];
    onepass_status status = ONEPASS_OK;
    if (device)
        status = device->event_elapsed(timer->handle, timer->events[BEGIN], timer->events[END], &elapsed);
    if (status == ONEPASS_OK)
        *seconds = elapsed;
    return status;
}

/* ---- the read probe ---------------------------------------------------------------------------------------------- */

onepass_status onepass_read_probe(onepass_handle *handle, const void *data, size_t bytes, void *sink)
{
    enum { UNIT = 16 };
    onepass_status status = check("read_probe", handle, "data", data, bytes);
    if (status != ONEPASS_OK)
        return status;
    if (!handle->device_class)
        return onep_fail(ONEPASS_UNSUPPORTED, "read_probe: handle: it is the CPU's; the probe is a kernel of devices");
    if (!sink)
        return onep_missing("read_probe", "sink");
    if ((uintptr_t)data % UNIT != 0 || bytes % UNIT != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "read_probe: data: %zu bytes at %p; both must be multiples of %d",
                         bytes, data, UNIT);
    if (bytes == 0)
        return ONEPASS_OK;
    status = handle->device_class->check_address(handle, "read_probe", "data", data);
    if (status == ONEPASS_OK)
        status = handle->device_class->check_address(handle, "read_probe", "sink", sink);
    return status == ONEPASS_OK ? handle->device_class->read_probe(handle, data, bytes, sink) : status;
}
