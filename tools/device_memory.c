/* The tool's way to a GPU. See device_memory.h. */
#include "device_memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "handle.h"
#include "message.h"
#include "status.h"

int device_option(const parsed_options *options, onepass_device *device)
{
    const char *text = options_text(options, "device");
    *device = (onepass_device){ONEPASS_CPU, 0};
    if (strcmp(text, "cpu") == 0) {
        if (options_given(options, "fp32-products"))
            return message_error(EXIT_USAGE, "--fp32-products with --device cpu; it is for a GPU, on the CPU an fp32 "
                                             "product is an fp32 product");
        return 0;
    }
    const char *number = strncmp(text, "cuda:", 5) == 0 ? text + 5 : strcmp(text, "cuda") == 0 ? "0" : "";
    if (!*number || number[strspn(number, "0123456789")])
        return message_error(EXIT_USAGE, "--device: \"%s\" is not a device; it must be cpu or cuda[:N]", text);
    static const char *const for_cpu[] = {"threads", "isa"};
    for (int i = 0; i < 2; i++)
        if (options_given(options, for_cpu[i]))
            return message_error(EXIT_USAGE, "--%s with --device %s; it is for the CPU", for_cpu[i], text);
    unsigned long id = strtoul(number, NULL, 10);
    *device = (onepass_device){ONEPASS_CUDA, id > INT32_MAX ? INT32_MAX : (int32_t)id};
    return 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

onepass_status device_status(const char *what, int error)
{
    if (error == 0)
        return ONEPASS_OK;
    char text[160];
    onep_driver_text(error, text, sizeof text);
    return onep_fail(error == ONEP_CU_OUT_OF_MEMORY ? ONEPASS_OUT_OF_MEMORY : ONEPASS_DEVICE_ERROR, "%s: %s", what,
                     text);
}

onepass_status device_open(device_memory *memory, int32_t id)
{
    memory->driver = onep_driver_get();
    if (!memory->driver)
        return onep_fail(ONEPASS_NO_DEVICE, "cuda:%d: %s", (int)id, onep_driver_missing());
    onep_cu_context *context;
    int error = memory->driver->cuDeviceGet(&memory->device, id);
    if (error == 0)
        error = memory->driver->cuDevicePrimaryCtxRetain(&context, memory->device);
    if (error != 0)
        return device_status("the device", error);
    error = memory->driver->cuCtxPushCurrent(context);
    if (error != 0)
        memory->driver->cuDevicePrimaryCtxRelease(memory->device);
    memory->open = error == 0;
    return device_status("the device", error);
}

void device_close(device_memory *memory)
{
    if (!memory->open)
        return;
    onep_cu_context *popped;
    memory->driver->cuCtxPopCurrent(&popped);
    memory->driver->cuDevicePrimaryCtxRelease(memory->device);
    memory->open = false;
}

onepass_status device_claim(const device_memory *memory, const char *what, size_t bytes, onep_cu_address *address)
{
    *address = 0;
    return device_status(what, memory->driver->cuMemAlloc(address, bytes ? bytes : 1));
}

void device_release(const device_memory *memory, onep_cu_address address)
{
    if (address)
        memory->driver->cuMemFree(address);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

device_copy device_reads(const char *name, const onepass_tensor *host)
{
    return (device_copy){.name = name, .host = host};
}

device_copy device_writes(const char *name, const onepass_tensor *host)
{
    return (device_copy){.name = name, .host = host, .written = true};
}

/* The range of memory from the lowest to the highest element; gaps travel too, so that they stay as they are. */
static void find_range(device_copy *copy)
{
    const onepass_tensor *t = copy->host;
    int64_t size = t->dtype.bits / 8, low = 0, high = 0, step = 1, elements = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        int64_t stride = t->strides ? t->strides[d] : step;
        int64_t reach = t->shape[d] > 1 ? (t->shape[d] - 1) * stride : 0;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
        step *= t->shape[d];
        elements *= t->shape[d];
    }
    if (elements == 0)
        return;
    copy->first = (char *)t->data + t->byte_offset + low * size;
    copy->bytes = (size_t)((high - low + 1) * size);
}

static onepass_status send_one(const device_memory *memory, onepass_device device, device_copy *copy)
{
    copy->device = *copy->host;
    copy->device.device = device;
    find_range(copy);
    if (!copy->first)
        return ONEPASS_OK;
    onepass_status status = device_claim(memory, copy->name, copy->bytes, &copy->address);
    if (status == ONEPASS_OK)
        status = device_status(copy->name, memory->driver->cuMemcpyHtoD(copy->address, copy->first, copy->bytes));
    copy->device.data = (char *)(uintptr_t)copy->address + ((char *)copy->host->data - copy->first);
    return status;
}

onepass_status device_send(const device_memory *memory, onepass_device device, device_copy copies[], int count)
{
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < count && status == ONEPASS_OK; i++)
        if (copies[i].host)
            status = send_one(memory, device, &copies[i]);
    /* The stream they went on may be another than the handle's. */
    return status == ONEPASS_OK ? device_status("copying", memory->driver->cuCtxSynchronize()) : status;
}

onepass_status device_fetch(const device_memory *memory, const char *what, const device_copy copies[], int count)
{
    onepass_status status = device_status(what, memory->driver->cuCtxSynchronize());
    for (int i = 0; i < count && status == ONEPASS_OK; i++)
        if (copies[i].written && copies[i].first)
            status = device_status(copies[i].name,
                                   memory->driver->cuMemcpyDtoH(copies[i].first, copies[i].address, copies[i].bytes));
    return status;
}

void device_drop(const device_memory *memory, device_copy copies[], int count)
{
    for (int i = 0; i < count; i++) {
        device_release(memory, copies[i].address);
        copies[i].address = 0;
    }
}

/* ---- one call with host tensors ---------------------------------------------------------------------------------- */

/* Everything is there: makes room for the workspace, calls, waits, and fetches the outputs. */
static onepass_status call_there(const device_memory *memory, onepass_handle *handle, const device_work *work,
                                 void *context, const device_copy copies[], int count)
{
    const onepass_tensor *there[DEVICE_MOST_COPIES];
    for (int i = 0; i < count; i++)
        there[i] = copies[i].host ? &copies[i].device : NULL;
    size_t bytes = 0;
    onep_cu_address workspace = 0;
    onepass_status status = work->size(context, handle, there, &bytes);
    if (status == ONEPASS_OK)
        status = device_claim(memory, "workspace", bytes, &workspace);
    if (status == ONEPASS_OK)
        status = work->run(context, handle, there, (void *)(uintptr_t)workspace, bytes);
    if (status == ONEPASS_OK)
        status = device_fetch(memory, work->name, copies, count);
    device_release(memory, workspace);
    return status;
}

onepass_status device_call(onepass_handle *handle, const device_work *work, void *context, device_copy copies[],
                           int count)
{
    device_memory memory = {0};
    onepass_status status = device_open(&memory, handle->device.id);
    if (status == ONEPASS_OK)
        status = device_send(&memory, handle->device, copies, count);
    if (status == ONEPASS_OK)
        status = call_there(&memory, handle, work, context, copies, count);
    if (memory.open)
        device_drop(&memory, copies, count);
    device_close(&memory);
    return status;
}
