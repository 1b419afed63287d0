/* Checks on caller's tensors, and their translation into operands. See tensor.h. */
#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

/* The stride of dimension d in elements, whether strides are given or the tensor is compact. */
static int64_t stride_of(const onepass_tensor *tensor, int d)
{
    if (tensor->strides)
        return tensor->strides[d];
    int64_t stride = 1;
    for (int k = tensor->ndim - 1; k > d; k--)
        stride *= tensor->shape[k];
    return stride;
}

static int64_t element_size(const onepass_tensor *tensor)
{
    return (int64_t)onep_type_size(onep_type_of(tensor->dtype));
}

static const char *first_byte(const onepass_tensor *tensor)
{
    return (const char *)tensor->data + tensor->byte_offset;
}

int64_t onep_elements(const onepass_tensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

const char *onep_shape_text(int ndim, const int64_t *shape, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < ndim; d++) {
        if (used + 32 > size) {
            used += (size_t)snprintf(text + used, size - used, ", ...");
            break;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, d ? ", " : "", shape[d]);
    }
    snprintf(text + used, size - used, "]");
    return text;
}

onepass_status onep_tensor_check(const char *operator_name, const char *argument, const onepass_tensor *tensor,
                                 onepass_device device)
{
    if (tensor->ndim < 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: ndim is %d; it must not be negative", operator_name,
                         argument, (int)tensor->ndim);
    if (tensor->ndim > 0 && !tensor->shape)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: shape is NULL; a tensor of %d dimensions needs one",
                         operator_name, argument, (int)tensor->ndim);
    if (onep_type_of(tensor->dtype) == ONEP_NO_TYPE)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: %s: dtype code %d, %d bits, %d lanes is not supported; use float16, bfloat16, float32 or "
                         "float64 (masks: bool or uint8)",
                         operator_name, argument, tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
    if (tensor->device.type != device.type || tensor->device.id != device.id)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: device type %d, id %d; the handle's device is type %d, id %d (1 is the CPU)",
                         operator_name, argument, (int)tensor->device.type, (int)tensor->device.id, (int)device.type,
                         (int)device.id);

    /* An extent of 0 makes the tensor empty, but must not hide a product that overflows: skip it in the product. */
    int64_t count = 1;
    int empty = 0;
    for (int d = 0; d < tensor->ndim; d++) {
        int64_t extent = tensor->shape[d];
        if (extent < 0)
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: shape[%d] is %" PRId64 "; it must not be negative",
                             operator_name, argument, d, extent);
        if (extent == 0)
            empty = 1;
        else if (__builtin_mul_overflow(count, extent, &count))
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: %s: the product of shape overflows at shape[%d] = %" PRId64
                             "; it must stay below 2^63 elements",
                             operator_name, argument, d, extent);
    }
    int64_t reach = 0; /* bytes from the first element to the farthest, in either direction */
    int overflow = __builtin_mul_overflow(count, element_size(tensor), &reach);
    if (tensor->strides) {
        reach = 0;
        for (int d = 0; d < tensor->ndim && !empty; d++) {
            int64_t step;
            overflow |= tensor->strides[d] == INT64_MIN;
            overflow |= __builtin_mul_overflow(tensor->shape[d] - 1, overflow ? 0 : llabs(tensor->strides[d]), &step);
            overflow |= __builtin_mul_overflow(step, element_size(tensor), &step);
            overflow |= __builtin_add_overflow(reach, step, &reach);
        }
    }
    if (overflow)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: shape and strides reach beyond 2^63 bytes; no memory holds such a tensor",
                         operator_name, argument);
    if (!empty && !tensor->data)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: data is NULL; only an empty tensor may have none",
                         operator_name, argument);
    return ONEPASS_OK;
}

onepass_status onep_shape_check(const char *operator_name, const char *argument, const onepass_tensor *tensor,
                                onep_shape_kind kind, const onepass_tensor *of)
{
    static const char *const rules[] = {
        [ONEP_PER_ELEMENT] = "it must equal that of predictions",
        [ONEP_PER_ROW] = "it must equal that of predictions without the last dimension",
        [ONEP_ONE] = "it must have one element",
    };
    int fits;
    if (kind == ONEP_ONE) {
        fits = onep_elements(tensor) == 1;
    } else {
        int ndim = kind == ONEP_PER_ROW && of->ndim > 0 ? of->ndim - 1 : of->ndim;
        fits = tensor->ndim == ndim;
        for (int d = 0; fits && d < ndim; d++)
            fits = tensor->shape[d] == of->shape[d];
    }
    if (fits)
        return ONEPASS_OK;
    char got[160];
    char expected[160];
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: shape %s does not fit predictions %s; %s", operator_name,
                     argument, onep_shape_text(tensor->ndim, tensor->shape, got, sizeof got),
                     onep_shape_text(of->ndim, of->shape, expected, sizeof expected), rules[kind]);
}

/* ---- memory overlap ---------------------------------------------------------------------------------------------- */

/*
 * A tensor's memory as runs: `run` bytes without a gap, repeated along the remaining strides. The lowest address is
 * `low`, the end of the highest run is `high`, and `grid` is the greatest common divisor of the remaining strides (0 if
 * none remain), so every run starts at low + a multiple of grid.
 */
typedef struct footprint {
    uintptr_t low, high;
    uint64_t run, grid;
    int apart; /* no two elements share a byte */
} footprint;

typedef struct dimension {
    uint64_t stride; /* bytes, without sign */
    uint64_t extent;
} dimension;

static int by_stride(const void *a, const void *b)
{
    uint64_t x = ((const dimension *)a)->stride;
    uint64_t y = ((const dimension *)b)->stride;
    return (x > y) - (x < y);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static footprint footprint_of(const onepass_tensor *tensor)
{
    dimension dims[ONEP_MAX_RANK];
    int rank = 0;
    footprint f = {.run = (uint64_t)element_size(tensor), .apart = 1};
    f.low = (uintptr_t)first_byte(tensor);
    f.high = f.low + f.run;
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->shape[d] == 1)
            continue;
        int64_t stride = stride_of(tensor, d) * element_size(tensor);
        dims[rank].stride = (uint64_t)(stride < 0 ? -stride : stride);
        dims[rank].extent = (uint64_t)tensor->shape[d];
        uint64_t reach = dims[rank].stride * (dims[rank].extent - 1);
        if (stride < 0)
            f.low -= reach;
        else
            f.high += reach;
        rank++;
    }
    qsort(dims, (size_t)rank, sizeof dims[0], by_stride);
    uint64_t reach = f.run; /* bytes spanned by the dimensions so far */
    for (int k = 0; k < rank; k++) {
        if (dims[k].stride < reach)
            f.apart = 0;
        reach += dims[k].stride * (dims[k].extent - 1);
        if (dims[k].stride == f.run && f.grid == 0)
            f.run *= dims[k].extent;
        else
            f.grid = common_divisor(f.grid, dims[k].stride);
    }
    return f;
}

onepass_status onep_writable_check(const char *operator_name, const char *argument, const onepass_tensor *tensor)
{
    if (onep_elements(tensor) == 0 || footprint_of(tensor).apart)
        return ONEPASS_OK;
    return onep_fail(ONEPASS_INVALID_ARGUMENT,
                     "%s: %s: its strides make elements share memory; a tensor that is written needs them apart",
                     operator_name, argument);
}

static int same_view(const onepass_tensor *a, const onepass_tensor *b)
{
    if (first_byte(a) != first_byte(b) || onep_type_of(a->dtype) != onep_type_of(b->dtype) || a->ndim != b->ndim)
        return 0;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d] || (a->shape[d] != 1 && stride_of(a, d) != stride_of(b, d)))
            return 0;
    return 1;
}

/* True only if it is certain that no byte belongs to both: disjoint ranges, or runs that interleave without touching.
 */
static int certainly_apart(const onepass_tensor *a, const onepass_tensor *b)
{
    footprint f = footprint_of(a);
    footprint g = footprint_of(b);
    if (f.high <= g.low || g.high <= f.low)
        return 1;
    uint64_t grid = common_divisor(f.grid, g.grid);
    if (grid == 0)
        return 0;
    uint64_t offset = (g.low >= f.low ? g.low - f.low : grid - (f.low - g.low) % grid) % grid;
    return offset >= f.run && grid - offset >= g.run;
}

onepass_status onep_overlap_check(const char *operator_name, const char *output_name, const onepass_tensor *output,
                                  const char *other_name, const onepass_tensor *other, int same_allowed)
{
    if (onep_elements(output) == 0 || onep_elements(other) == 0 || certainly_apart(output, other))
        return ONEPASS_OK;
    if (same_allowed && same_view(output, other))
        return ONEPASS_OK;
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: its memory (at %p) overlaps %s (at %p); %s", operator_name,
                     output_name, (const void *)first_byte(output), other_name, (const void *)first_byte(other),
                     same_allowed ? "it must be elsewhere, or exactly the same view" : "it must be elsewhere");
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

onep_rows onep_rows_of(const onepass_tensor *tensor)
{
    onep_rows rows = {.count = 1};
    for (int d = 0; d < tensor->ndim - 1; d++) {
        rows.count *= tensor->shape[d];
        if (tensor->shape[d] != 1 && rows.rank < ONEP_MAX_RANK)
            rows.extent[rows.rank++] = tensor->shape[d];
    }
    return rows;
}

int64_t onep_columns(const onepass_tensor *tensor)
{
    return tensor->ndim > 0 ? tensor->shape[tensor->ndim - 1] : 1;
}

/* Unsigned, because the strides of an empty tensor are never used and may be anything. */
static int64_t byte_stride(const onepass_tensor *tensor, int d)
{
    return (int64_t)((uint64_t)stride_of(tensor, d) * (uint64_t)element_size(tensor));
}

onep_operand onep_operand_of(const onepass_tensor *tensor, onep_shape_kind kind, const onepass_tensor *of)
{
    onep_operand operand = {0};
    if (!tensor)
        return operand;
    operand.type = onep_type_of(tensor->dtype);
    /* An empty tensor may have no memory; a present operand needs an address all the same, which is never followed. */
    static char nowhere;
    operand.data = tensor->data ? (char *)tensor->data + tensor->byte_offset : &nowhere;
    if (kind == ONEP_ONE)
        return operand;
    int rank = 0;
    for (int d = 0; d < of->ndim - 1; d++)
        if (of->shape[d] != 1 && rank < ONEP_MAX_RANK)
            operand.row_stride[rank++] = byte_stride(tensor, d);
    if (kind == ONEP_PER_ELEMENT && of->ndim > 0)
        operand.col_stride = byte_stride(tensor, of->ndim - 1);
    return operand;
}

char *onep_row_address(const onep_operand *operand, const onep_rows *rows, int64_t row)
{
    if (!operand->data)
        return NULL;
    int64_t offset = 0;
    for (int k = rows->rank - 1; k > 0; k--) {
        offset += row % rows->extent[k] * operand->row_stride[k];
        row /= rows->extent[k];
    }
    if (rows->rank > 0)
        offset += row * operand->row_stride[0];
    return operand->data + offset;
}
