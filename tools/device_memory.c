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
    if (strcmp(text, "cpu") == 0)
        return 0;
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

/* ---- one call with host tensors ---------------------------------------------------------------------------------- */

enum { PREDICTIONS, TARGETS, WEIGHTS, MASK, GRAD_VALUE, GRAD_MADE_FOR, VALUE, GRAD_PREDICTIONS, GRAD_TARGETS, TENSORS };
enum { FIRST_OUTPUT = GRAD_MADE_FOR };

static const char *const names[TENSORS] = {"predictions",   "targets", "row_weights",      "row_mask",    "grad_value",
                                           "grad_made_for", "value",   "grad_predictions", "grad_targets"};

/* A tensor on the host and its copy. */
typedef struct copied {
    const onepass_tensor *host; /* NULL: not given */
    onepass_tensor device;
    char *first; /* lowest byte on the host; NULL: empty */
    size_t bytes;
    onep_cu_address address;
} copied;

/* The range of memory from the lowest to the highest element; gaps travel too, so that they stay as they are. */
static void find_range(copied *c)
{
    const onepass_tensor *t = c->host;
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
    c->first = (char *)t->data + t->byte_offset + low * size;
    c->bytes = (size_t)((high - low + 1) * size);
}

static onepass_status copy_there(const device_memory *memory, copied *c, const char *name, onepass_device device)
{
    c->device = *c->host;
    c->device.device = device;
    find_range(c);
    if (!c->first)
        return ONEPASS_OK;
    onepass_status status = device_claim(memory, name, c->bytes, &c->address);
    if (status == ONEPASS_OK)
        status = device_status(name, memory->driver->cuMemcpyHtoD(c->address, c->first, c->bytes));
    c->device.data = (char *)(uintptr_t)c->address + ((char *)c->host->data - c->first);
    return status;
}

/* Everything is there: makes room for the partial sums, calls, waits, and fetches the outputs. */
static onepass_status call_there(const device_memory *memory, device_kl_entry *entry, onepass_handle *handle,
                                 onepass_kl_options *options, copied all[TENSORS])
{
    const onepass_tensor *there[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        there[i] = all[i].host ? &all[i].device : NULL;
    options->row_weights = there[WEIGHTS];
    options->row_mask = there[MASK];
    options->grad_value = there[GRAD_VALUE];
    options->grad_made_for = there[GRAD_MADE_FOR];
    onep_cu_address workspace = 0;
    onepass_status status = onepass_kl_workspace_size(handle, there[PREDICTIONS], options, &options->workspace_size);
    if (status == ONEPASS_OK)
        status = device_claim(memory, "workspace", options->workspace_size, &workspace);
    options->workspace = (void *)(uintptr_t)workspace;
    /* The copies above were on another stream than the handle's may be. */
    if (status == ONEPASS_OK)
        status = device_status("copying", memory->driver->cuCtxSynchronize());
    if (status == ONEPASS_OK)
        status = entry(handle, there[PREDICTIONS], there[TARGETS], options, there[VALUE], there[GRAD_PREDICTIONS],
                       there[GRAD_TARGETS]);
    if (status == ONEPASS_OK)
        status = device_status("kl", memory->driver->cuCtxSynchronize());
    for (int i = FIRST_OUTPUT; i < TENSORS && status == ONEPASS_OK; i++)
        if (all[i].first)
            status = device_status(names[i], memory->driver->cuMemcpyDtoH(all[i].first, all[i].address, all[i].bytes));
    device_release(memory, workspace);
    return status;
}

onepass_status device_kl_call(device_kl_entry *entry, onepass_handle *handle, const onepass_tensor *predictions,
                              const onepass_tensor *targets, const onepass_kl_options *given,
                              const onepass_tensor *value, const onepass_tensor *grad_predictions,
                              const onepass_tensor *grad_targets)
{
    onepass_kl_options options = {.size = sizeof options};
    if (given)
        options = *given;
    copied all[TENSORS] = {
        [PREDICTIONS] = {.host = predictions},
        [TARGETS] = {.host = targets},
        [WEIGHTS] = {.host = options.row_weights},
        [MASK] = {.host = options.row_mask},
        [GRAD_VALUE] = {.host = options.grad_value},
        [GRAD_MADE_FOR] = {.host = options.grad_made_for},
        [VALUE] = {.host = value},
        [GRAD_PREDICTIONS] = {.host = grad_predictions},
        [GRAD_TARGETS] = {.host = grad_targets},
    };
    device_memory memory = {0};
    onepass_status status = device_open(&memory, handle->device.id);
    for (int i = 0; i < TENSORS && status == ONEPASS_OK; i++)
        if (all[i].host)
            status = copy_there(&memory, &all[i], names[i], handle->device);
    if (status == ONEPASS_OK)
        status = call_there(&memory, entry, handle, &options, all);
    for (int i = 0; i < TENSORS && memory.open; i++)
        device_release(&memory, all[i].address);
    device_close(&memory);
    return status;
}
