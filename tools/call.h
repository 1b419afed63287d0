/*
 * Calls of any operator by its description (onepass.h, "operators as data"), with tensors in host memory on any handle:
 * for a CUDA handle the given tensors are copied there, and back what the description says is written. On the CPU the
 * call works in place.
 *
 *   tool_call call = call_of("linear");
 *   call_tensor(&call, "input", &input); ...
 *   onepass_status status = call_run(&call, handle);
 *
 * Names are those of the description, "options." may be left out; one that is not there is a mistake in the tool, and
 * aborts.
 */
#ifndef TOOL_CALL_H
#define TOOL_CALL_H

#include <stdbool.h>

#include "onepass.h"

enum { CALL_MOST_TENSORS = 32, CALL_MOST_OPTIONS = 24 };

typedef struct tool_call {
    const onepass_operator *op;
    const onepass_tensor *tensors[CALL_MOST_TENSORS]; /* in the description's order; NULL: not given */
    double options[CALL_MOST_OPTIONS];
} tool_call;

tool_call call_of(const char *operator_name);
void call_tensor(tool_call *call, const char *name, const onepass_tensor *tensor); /* NULL: not given */
void call_option(tool_call *call, const char *name, double value);

/* Runs the call with a workspace of its own and waits for it. Failures leave the library's message. */
onepass_status call_run(const tool_call *call, onepass_handle *handle);

/* The same for tensors that lie where the handle computes, in a workspace of the caller: nothing is copied, allocated
 * or waited for. The size is the call's, from call_workspace_size. */
onepass_status call_run_there(const tool_call *call, onepass_handle *handle, void *workspace, size_t workspace_size);
onepass_status call_workspace_size(const tool_call *call, onepass_handle *handle, size_t *bytes);

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* A tensor in host memory and its copy on a handle's device. */
typedef struct tensor_copy {
    onepass_tensor there;
    char *first; /* the host's lowest byte; NULL: no elements */
    size_t bytes;
    void *memory; /* on the device */
} tensor_copy;

/* What is allocated is freed by copy_drop, after a failure too, and of a zeroed structure. */
onepass_status copy_send(tensor_copy *copy, onepass_handle *handle, const onepass_tensor *host);
onepass_status copy_fetch(const tensor_copy *copy, onepass_handle *handle);
void copy_drop(tensor_copy *copy, onepass_handle *handle);

#endif
