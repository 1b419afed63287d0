/* See arguments.h. */
#include "arguments.h"

#include <inttypes.h>
#include <stdio.h>

#include "status.h"

enum { SHAPE_TEXT = 160 };

onepass_status onep_missing(const char *op, const char *argument)
{
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: NULL; it is required", op, argument);
}

static onepass_status check_float(const char *op, const char *name, onep_type type)
{
    if (type < ONEP_FLOAT_TYPES)
        return ONEPASS_OK;
    return onep_fail(ONEPASS_UNSUPPORTED, "%s: %s: dtype %s; it must be float16, bfloat16, float32 or float64", op,
                     name, onep_type_name(type));
}

static onepass_status check_type(const char *op, const onep_argument *a)
{
    onep_type type = onep_type_of(a->tensor->dtype);
    const char *name = onep_type_name(type);
    if (a->rule == ONEP_COUNTER)
        return type == ONEP_I64
                   ? ONEPASS_OK
                   : onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be int64", op, a->name, name);
    onepass_status status = check_float(op, a->name, type);
    if (status != ONEPASS_OK)
        return status;
    if (a->rule == ONEP_SAME_TYPE && type != a->type)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be %s", op, a->name, name,
                         onep_type_name(a->type));
    if (a->rule == ONEP_HOLDS_TYPE && !onep_type_holds(type, a->type))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be %s or a type that holds it", op,
                         a->name, name, onep_type_name(a->type));
    return ONEPASS_OK;
}

static onepass_status check_shape(const char *op, const onep_argument *a)
{
    int before = a->leading ? a->leading->ndim - 1 : 0;
    const onepass_tensor *t = a->tensor;
    if (a->one_allowed && onep_elements(t) == 1)
        return ONEPASS_OK;
    int fits = t->ndim == before + a->rank;
    for (int d = 0; fits && d < before; d++)
        fits = t->shape[d] == a->leading->shape[d];
    for (int d = 0; fits && d < a->rank; d++)
        fits = t->shape[before + d] == a->extent[d];
    if (fits)
        return ONEPASS_OK;
    char got[SHAPE_TEXT], wanted[SHAPE_TEXT];
    onep_shape_text(t->ndim, t->shape, got, sizeof got);
    onep_shape_text(a->rank, a->extent, wanted, sizeof wanted);
    if (before > 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: shape %s; it must be that of input with %" PRId64 " as its last extent", op, a->name,
                         got, a->extent[0]);
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: shape %s; it must be %s%s", op, a->name, got, wanted,
                     a->one_allowed ? ", or one element" : "");
}

static onepass_status check_overlaps(const char *op, const onep_argument *arguments, int count, int out)
{
    const onep_argument *a = &arguments[out];
    onepass_status status = onep_writable_check(op, a->name, a->tensor);
    for (int in = 0; in < count && status == ONEPASS_OK; in++) {
        const onep_argument *b = &arguments[in];
        if (in != out && b->tensor && !(b->is_output && in > out))
            status = onep_overlap_check(op, a->name, a->tensor, b->name, b->tensor, 0);
    }
    return status;
}

/* A GPU's own conditions: elements aligned to their size, in its own memory. */
static onepass_status check_on_cuda(const char *op, const onepass_handle *handle, const onep_argument *a)
{
    if (onep_elements(a->tensor) == 0)
        return ONEPASS_OK;
    const char *first = (const char *)a->tensor->data + a->tensor->byte_offset;
    size_t size = onep_type_size(onep_type_of(a->tensor->dtype));
    if ((uintptr_t)first % size != 0)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: %s: address %p; on a CUDA device it must be a multiple of the element's %zu bytes", op,
                         a->name, (const void *)first, size);
    return onep_cuda_pointer_check(handle->cuda, op, a->name, first);
}

onepass_status onep_arguments_check(const char *op, const onepass_handle *handle, const onep_argument *arguments,
                                    int count)
{
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < count && status == ONEPASS_OK; i++) {
        const onep_argument *a = &arguments[i];
        if (!a->tensor)
            continue;
        status = onep_tensor_check(op, a->name, a->tensor, handle->device);
        if (status == ONEPASS_OK)
            status = check_type(op, a);
        if (status == ONEPASS_OK)
            status = check_shape(op, a);
        if (status == ONEPASS_OK && handle->cuda)
            status = check_on_cuda(op, handle, a);
    }
    for (int i = 0; i < count && status == ONEPASS_OK; i++)
        if (arguments[i].tensor && arguments[i].is_output)
            status = check_overlaps(op, arguments, count, i);
    return status;
}

onepass_status onep_check_input_weight(const char *op, const onepass_handle *handle, const onepass_tensor *input,
                                       const onepass_tensor *weight, int rank)
{
    if (!handle)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: handle: NULL; make one with onepass_create", op);
    if (!input || !weight)
        return onep_missing(op, input ? "weight" : "input");
    onepass_status status = onep_tensor_check(op, "input", input, handle->device);
    if (status == ONEPASS_OK)
        status = onep_tensor_check(op, "weight", weight, handle->device);
    if (status == ONEPASS_OK)
        status = check_float(op, "input", onep_type_of(input->dtype));
    if (status == ONEPASS_OK)
        status = check_float(op, "weight", onep_type_of(weight->dtype));
    if (status != ONEPASS_OK)
        return status;
    char text[SHAPE_TEXT], other[SHAPE_TEXT];
    onep_shape_text(input->ndim, input->shape, text, sizeof text);
    onep_shape_text(weight->ndim, weight->shape, other, sizeof other);
    if (rank ? input->ndim != rank : input->ndim < 1)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: input: shape %s; it must be %s", op, text,
                         rank ? "[B, K]: one row an example" : "[..., K]");
    if (weight->ndim != 2 || weight->shape[1] != onep_columns(input))
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: weight: shape %s; it must be [N, K] with the K of input, whose shape is %s", op, other,
                         text);
    return ONEPASS_OK;
}

onepass_status onep_workspace_check(const char *op, const onepass_handle *handle, const onep_argument *arguments,
                                    int count, const void *workspace, size_t size, size_t needed)
{
    if (needed == 0)
        return ONEPASS_OK;
    if (!workspace || size < needed)
        return onep_fail(ONEPASS_WORKSPACE, "%s: workspace: %zu bytes at %p; this problem needs %zu", op, size,
                         workspace, needed);
    int64_t bytes = (int64_t)needed;
    onepass_tensor memory = {.data = (void *)(uintptr_t)workspace,
                             .device = handle->device,
                             .ndim = 1,
                             .dtype = ONEPASS_U8,
                             .shape = &bytes};
    onepass_status status = ONEPASS_OK;
    if (handle->cuda)
        status = onep_cuda_pointer_check(handle->cuda, op, "workspace", workspace);
    for (int i = 0; i < count && status == ONEPASS_OK; i++)
        if (arguments[i].tensor)
            status = onep_overlap_check(op, "workspace", &memory, arguments[i].name, arguments[i].tensor, 0);
    return status;
}

int onep_can_use_prepared(const onepass_handle *handle)
{
    return handle->cuda && (handle->fp32_products == ONEPASS_FP32_SPLIT || handle->fp32_products == ONEPASS_FP32_FULL);
}

onepass_status onep_prepared_check(const char *op, const char *argument, const onepass_handle *handle,
                                   const onepass_tensor *weight, const void *prepared)
{
    enum { PLANES_ALIGNMENT = 256 };
    if (!prepared)
        return ONEPASS_OK;
    if (!onep_can_use_prepared(handle))
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: %p; it is for handles of a CUDA device whose config.fp32_products is "
                         "ONEPASS_FP32_SPLIT or ONEPASS_FP32_FULL",
                         op, argument, prepared);
    if (onep_type_of(weight->dtype) != ONEP_F32)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: given with a weight of type %s; it must be fp32", op,
                         argument, onep_type_name(onep_type_of(weight->dtype)));
    if ((uintptr_t)prepared % PLANES_ALIGNMENT != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: %p; it must be a multiple of %d", op, argument, prepared,
                         (int)PLANES_ALIGNMENT);
    return onep_cuda_pointer_check(handle->cuda, op, argument, prepared);
}

onep_type onep_promoted(const onepass_tensor *input, const onepass_tensor *weight)
{
    return onep_promote(onep_type_of(input->dtype), onep_type_of(weight->dtype));
}

onep_type onep_computed(onep_type promoted)
{
    return promoted == ONEP_F64 ? ONEP_F64 : ONEP_F32;
}

onep_operand onep_feature_operand(const onepass_tensor *tensor)
{
    return onep_operand_of(tensor, tensor && onep_elements(tensor) == 1 ? ONEP_ONE : ONEP_PER_ELEMENT, tensor);
}
