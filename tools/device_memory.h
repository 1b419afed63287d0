/*
 * The tool's way to a GPU: the name of a device on the command line, memory there, and calls whose arrays lie in host
 * memory and are copied there and back. Only the tool copies; the library works where its tensors are.
 */
#ifndef TOOL_DEVICE_MEMORY_H
#define TOOL_DEVICE_MEMORY_H

#include <stdbool.h>

#include "driver.h"
#include "onepass.h"
#include "options.h"

/*
 * What --device says: "cpu", "cuda" or "cuda:N". 0, or EXIT_USAGE after having said what is wrong with it, or with an
 * option that is for the other kind of device.
 */
int device_option(const parsed_options *options, onepass_device *device);

/* A device's primary context, current in this thread from open to close. */
typedef struct device_memory {
    const onep_driver *driver;
    int device;
    bool open;
} device_memory;

/* Failures leave a message, as those of the library do (onepass_last_error). */
onepass_status device_open(device_memory *memory, int32_t id);
void device_close(device_memory *memory); /* also of a zeroed structure */

onepass_status device_claim(const device_memory *memory, const char *what, size_t bytes, onep_cu_address *address);
void device_release(const device_memory *memory, onep_cu_address address); /* 0 is allowed */

/* The status of a driver call: ONEPASS_OK for 0. */
onepass_status device_status(const char *what, int error);

/* ---- copies ------------------------------------------------------------------------------------------------------ */

enum { DEVICE_MOST_COPIES = 20 };

/* A tensor in host memory and its copy on the device. The first three are the caller's to set. */
typedef struct device_copy {
    const char *name;           /* in messages */
    const onepass_tensor *host; /* NULL: not given, there is no copy */
    bool written;               /* device_fetch brings it back */
    onepass_tensor device;
    char *first; /* lowest byte on the host; NULL: empty */
    size_t bytes;
    onep_cu_address address;
} device_copy;

device_copy device_reads(const char *name, const onepass_tensor *host);  /* an input */
device_copy device_writes(const char *name, const onepass_tensor *host); /* an output, or what is updated */

/* Copies all there and waits. What was claimed is released by device_drop, after a failure too. */
onepass_status device_send(const device_memory *memory, onepass_device device, device_copy copies[], int count);

/* Waits for the device (what fails there is `what`), and copies back what was written. */
onepass_status device_fetch(const device_memory *memory, const char *what, const device_copy copies[], int count);
void device_drop(const device_memory *memory, device_copy copies[], int count);

/* ---- one call with host tensors ---------------------------------------------------------------------------------- */

/* A call of the library. `there` has the device's tensors in the order of the copies, NULL for those not given. */
typedef struct device_work {
    const char *name;
    onepass_status (*size)(void *context, onepass_handle *handle, const onepass_tensor *const there[], size_t *bytes);
    onepass_status (*run)(void *context, onepass_handle *handle, const onepass_tensor *const there[], void *workspace,
                          size_t bytes);
} device_work;

/* Does the work on a CUDA handle with copies of all tensors and a workspace, waits, and copies the outputs back. */
onepass_status device_call(onepass_handle *handle, const device_work *work, void *context, device_copy copies[],
                           int count);

#endif
