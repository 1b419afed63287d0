/*
 * Device memory, events and the read probe of a CUDA handle: what the public functions of include/onepass.h do there,
 * with the contracts of onep_device_class. For programs without a CUDA toolkit; no operator calls them.
 */
#ifndef ONEP_CUDA_MEMORY_H
#define ONEP_CUDA_MEMORY_H

#include "core/handle.h"

onepass_status onep_cuda_allocate(const onepass_handle *handle, size_t bytes, void **memory);
onepass_status onep_cuda_release(const onepass_handle *handle, void *memory);
onepass_status onep_cuda_copy(const onepass_handle *handle, void *to, const void *from, size_t bytes);
onepass_status onep_cuda_fill(const onepass_handle *handle, void *to, unsigned char value, size_t bytes);
onepass_status onep_cuda_wait(const onepass_handle *handle);

onepass_status onep_cuda_event_create(const onepass_handle *handle, void **event);
void onep_cuda_event_destroy(const onepass_handle *handle, void *event);
onepass_status onep_cuda_event_record(const onepass_handle *handle, void *event);
onepass_status onep_cuda_event_elapsed(const onepass_handle *handle, void *begin, void *end, double *seconds);

onepass_status onep_cuda_read_probe(const onepass_handle *handle, const void *data, size_t bytes, void *sink);

#endif
