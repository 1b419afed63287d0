/*
 * The tool's way to a GPU: the name of a device on the command line, memory there, and a KL call whose arrays lie in
 * host memory and are copied there and back. Only the tool copies; the library works where its tensors are.
 */
#ifndef TOOL_DEVICE_MEMORY_H
#define TOOL_DEVICE_MEMORY_H

#include <stdbool.h>

#include "driver.h"
#include "onepass.h"
#include "options.h"

/* What --device says: "cpu", "cuda" or "cuda:N". 0, or EXIT_USAGE after having said what is wrong with it. */
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

typedef onepass_status device_kl_entry(onepass_handle *, const onepass_tensor *, const onepass_tensor *,
                                       const onepass_kl_options *, const onepass_tensor *, const onepass_tensor *,
                                       const onepass_tensor *);

/* Calls the entry on a CUDA handle with copies of all tensors, waits, and copies the outputs back. */
onepass_status device_kl_call(device_kl_entry *entry, onepass_handle *handle, const onepass_tensor *predictions,
                              const onepass_tensor *targets, const onepass_kl_options *options,
                              const onepass_tensor *value, const onepass_tensor *grad_predictions,
                              const onepass_tensor *grad_targets);

#endif
