/*
 * The CPU's tests on a GPU, unchanged. A program linked with cuda_harness.c and the linker's --wrap for the names below
 * calls the same functions with the same host memory; each call of a KL entry is carried to the device instead: inputs,
 * outputs and gaps are copied there among guard bands, the real entry runs on a CUDA handle, everything is copied back,
 * and whatever was not the call's to write must be as it was. So one list of cases serves all devices.
 *
 * With ONEPASS_TEST_QUICK=1 every tensor gets an allocation of its own and the workspace is left as it comes: then
 * compute-sanitizer sees the smallest step outside and every word that is read before it is written.
 *
 * There is no pretending: without a usable GPU these programs say so and end with status 2.
 */
#ifndef ONEPASS_TEST_CUDA_HARNESS_H
#define ONEPASS_TEST_CUDA_HARNESS_H

#include "core/handle.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "kl_cases.h"

/* The driver with the device's primary context current in this thread; ends the program if there is none. */
const onep_driver *cuda_driver(void);

/* Ends the program with the driver's words if `error` is not 0. */
void cuda_must(int error, const char *file, int line);
#define MUST(error) cuda_must(error, __FILE__, __LINE__)

/* Device memory; uploads and downloads have finished when they return, on every stream. */
void *cuda_claim(size_t bytes);
void cuda_release(void *memory);
void cuda_upload(void *to, const void *from, size_t bytes);
void cuda_download(void *to, const void *from, size_t bytes);
onep_cu_address cuda_address(const void *memory);

/* A handle on device 0 and the given stream; ends the program if it cannot be made. */
onepass_handle *cuda_handle(onep_cu_stream *stream);
onep_cu_stream *cuda_stream(void); /* a new one, not ordered with the legacy stream */

/* A compact tensor on the device; shape is not copied. */
onepass_tensor cuda_tensor(onep_type type, void *data, int ndim, int64_t *shape);

/* The library's own entry, for tensors that lie on the device already. */
kl_entry *cuda_entry_of(onep_kl_form form);
onepass_status cuda_workspace_size(onepass_handle *handle, const onepass_tensor *predictions,
                                   const onepass_kl_options *options, size_t *bytes);

/* True if all of the handle's tickets are 0, as every kernel must leave them. */
int cuda_tickets_are_zero(const onepass_handle *handle);

#endif
