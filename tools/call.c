/* Calls by description, and copies to a device. See call.h. */
#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void mistake(const char *what, const char *name)
{
    fprintf(stderr, "onepass: mistake in the tool: no %s \"%s\"\n", what, name);
    abort();
}

tool_call call_of(const char *operator_name)
{
    tool_call call = {.op = onepass_operator_named(operator_name)};
    if (!call.op || onepass_operator_argument(call.op, CALL_MOST_TENSORS) ||
        onepass_operator_option(call.op, CALL_MOST_OPTIONS))
        mistake("operator of that size", operator_name);
    return call;
}

/* The same name, with or without the "options." that a description may begin it with. */
static bool is_named(const char *described, const char *name)
{
    static const char prefix[] = "options.";
    bool is_option = strncmp(described, prefix, sizeof prefix - 1) == 0;
    return strcmp(described, name) == 0 || (is_option && strcmp(described + sizeof prefix - 1, name) == 0);
}

void call_tensor(tool_call *call, const char *name, const onepass_tensor *tensor)
{
    const onepass_argument_info *argument;
    for (int i = 0; (argument = onepass_operator_argument(call->op, i)); i++) {
        if (is_named(argument->name, name)) {
            call->tensors[i] = tensor;
            return;
        }
    }
    mistake("tensor", name);
}

void call_option(tool_call *call, const char *name, double value)
{
    const onepass_option_info *option;
    for (int i = 0; (option = onepass_operator_option(call->op, i)); i++) {
        if (is_named(option->name, name)) {
            call->options[i] = value;
            return;
        }
    }
    mistake("option", name);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* The range of memory from the lowest to the highest element; gaps travel too, so that they stay as they are. */
static void find_range(tensor_copy *copy, const onepass_tensor *t)
{
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

onepass_status copy_send(tensor_copy *copy, onepass_handle *handle, const onepass_tensor *host)
{
    *copy = (tensor_copy){.there = *host};
    copy->there.device = onepass_device_of(handle);
    find_range(copy, host);
    if (!copy->first)
        return ONEPASS_OK;
    onepass_status status = onepass_memory_alloc(handle, copy->bytes, &copy->memory);
    if (status != ONEPASS_OK)
        return status;
    copy->there.data = (char *)copy->memory + ((char *)host->data - copy->first);
    return onepass_memory_copy(handle, copy->memory, copy->first, copy->bytes);
}

onepass_status copy_fetch(const tensor_copy *copy, onepass_handle *handle)
{
    return onepass_memory_copy(handle, copy->first, copy->memory, copy->bytes);
}

void copy_drop(tensor_copy *copy, onepass_handle *handle)
{
    onepass_memory_free(handle, copy->memory);
    copy->memory = NULL;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

onepass_status call_run_there(const tool_call *call, onepass_handle *handle, void *workspace, size_t workspace_size)
{
    return onepass_call(handle, call->op, call->tensors, call->options, workspace, workspace_size);
}

onepass_status call_workspace_size(const tool_call *call, onepass_handle *handle, size_t *bytes)
{
    return onepass_call_workspace_size(handle, call->op, call->tensors, call->options, bytes);
}

static onepass_status run_with_workspace(const tool_call *call, onepass_handle *handle)
{
    size_t bytes = 0;
    void *workspace = NULL;
    onepass_status status = call_workspace_size(call, handle, &bytes);
    if (status == ONEPASS_OK)
        status = onepass_memory_alloc(handle, bytes, &workspace);
    if (status == ONEPASS_OK)
        status = call_run_there(call, handle, workspace, bytes);
    if (status == ONEPASS_OK)
        status = onepass_wait(handle);
    onepass_memory_free(handle, workspace);
    return status;
}

/* Outputs are sent, too: what a kernel does not write comes back as it was, and is noticed. */
onepass_status call_run(const tool_call *call, onepass_handle *handle)
{
    if (onepass_device_of(handle).type == ONEPASS_CPU)
        return run_with_workspace(call, handle);
    tool_call moved = *call;
    tensor_copy copies[CALL_MOST_TENSORS] = {0};
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < CALL_MOST_TENSORS && status == ONEPASS_OK; i++) {
        if (!call->tensors[i])
            continue;
        status = copy_send(&copies[i], handle, call->tensors[i]);
        moved.tensors[i] = &copies[i].there;
    }
    if (status == ONEPASS_OK)
        status = run_with_workspace(&moved, handle);
    for (int i = 0; i < CALL_MOST_TENSORS && status == ONEPASS_OK; i++)
        if (onepass_operator_role(call->op, i, call->options) != ONEPASS_READ)
            status = copy_fetch(&copies[i], handle);
    for (int i = 0; i < CALL_MOST_TENSORS; i++)
        copy_drop(&copies[i], handle);
    return status;
}
