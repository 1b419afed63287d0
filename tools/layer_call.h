/*
 * The library's linear and head with arrays in host memory, on any handle: for a CUDA handle they are copied there and
 * back. Arrays that already lie on the device stay there. Also what both commands say about who multiplies.
 */
#ifndef TOOL_LAYER_CALL_H
#define TOOL_LAYER_CALL_H

#include <stdbool.h>

#include "json.h"
#include "onepass.h"
#include "options.h"

/* True if a call on this handle copies the tensor first, and brings a workspace of its own. */
bool layer_is_copied(const onepass_handle *handle, const onepass_tensor *input);

/* The library's arguments. The workspace of a call that copies is not looked at. */
onepass_status linear_call(onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
                           const onepass_tensor *bias, const onepass_tensor *output, void *workspace,
                           size_t workspace_size);

onepass_status linear_backward_call(onepass_handle *handle, const onepass_tensor *grad_output,
                                    const onepass_tensor *input, const onepass_tensor *weight,
                                    const onepass_tensor *grad_input, const onepass_tensor *grad_weight,
                                    const onepass_tensor *grad_bias, void *workspace, size_t workspace_size);

onepass_status head_call(onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
                         const onepass_head_options *options, const onepass_tensor *output,
                         const onepass_tensor *product, const onepass_tensor *mean, const onepass_tensor *rstd);

onepass_status head_backward_call(onepass_handle *handle, const onepass_tensor *grad_output,
                                  const onepass_tensor *output, const onepass_tensor *input,
                                  const onepass_tensor *weight, const onepass_tensor *product,
                                  const onepass_tensor *mean, const onepass_tensor *rstd,
                                  const onepass_head_options *options, const onepass_head_gradients *gradients);

/* Device, level, who multiplies and how, threads: the part of a JSON object that head, linear and bench share. */
void layer_print_device(json_writer *json, onepass_handle *handle, const parsed_options *options);

#endif
