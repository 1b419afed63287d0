/* What the commands share about devices: --device, the vector levels, and what JSON says about a handle. */
#ifndef TOOL_DEVICE_H
#define TOOL_DEVICE_H

#include "json.h"
#include "onepass.h"
#include "options.h"

/*
 * What --device says: "cpu", "cuda" or "cuda:N". 0, or EXIT_USAGE after having said what is wrong with it, or with an
 * option that is for the other kind of device.
 */
int device_option(const parsed_options *options, onepass_device *device);

/* Threads that make inputs: the handle's; of a GPU's every core, since the processor makes them for it too. */
int device_input_threads(const onepass_handle *handle);

/* The CPU's levels, the reference first; onepass_isa_support says which are there. */
enum { DEVICE_REF_LEVEL, DEVICE_LEVELS = 5 };
extern const char *const device_levels[DEVICE_LEVELS];

/* Device, level, GEMM library, fp32 products, threads: the part of a JSON object that head, linear and bench share. */
void device_print_json(json_writer *json, onepass_handle *handle, const parsed_options *options);

#endif
