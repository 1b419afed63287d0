/* Checks on caller's tensors, and their translation into operands. See tensor.h. */
#include "core/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

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
    int64_t below = 0; /* the part of it before the first element */
    int overflow = __builtin_mul_overflow(count, element_size(tensor), &reach);
    if (tensor->strides) {
        reach = element_size(tensor);
        for (int d = 0; d < tensor->ndim && !empty; d++) {
            int64_t step;
            overflow |= tensor->strides[d] == INT64_MIN;
            overflow |= __builtin_mul_overflow(tensor->shape[d] - 1, overflow ? 0 : llabs(tensor->strides[d]), &step);
            overflow |= __builtin_mul_overflow(step, element_size(tensor), &step);
            overflow |= __builtin_add_overflow(reach, step, &reach);
            if (!overflow && tensor->strides[d] < 0)
                below += step;
        }
    }
    if (overflow)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: shape and strides reach beyond 2^63 bytes; no memory holds such a tensor",
                         operator_name, argument);
    if (!empty && !tensor->data)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: data is NULL; only an empty tensor may have none",
                         operator_name, argument);
    /* Rows that are masked are never read, so nothing would fault; but the check for overlaps would look elsewhere. */
    uintptr_t first, high;
    if (!empty &&
        (__builtin_add_overflow((uintptr_t)tensor->data, tensor->byte_offset, &first) || first < (uintptr_t)below ||
         __builtin_add_overflow(first - (uintptr_t)below, (uintptr_t)reach, &high)))
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: data %p, byte_offset %" PRIu64 ", elements from %" PRId64 " bytes before to %" PRId64
                         " after; they must lie within the address space",
                         operator_name, argument, tensor->data, tensor->byte_offset, below, reach - below);
    return ONEPASS_OK;
}

/* ---- memory overlap ---------------------------------------------------------------------------------------------- */

/* From the lowest byte of a tensor's memory to the end of the highest one. */
typedef struct range {
    uintptr_t low, high;
} range;

/*
 * A tensor's memory as runs: `run` bytes without a gap, repeated along the remaining strides, whose greatest common
 * divisor is `grid` (0 if none remain): every run starts at the range's low + a multiple of grid.
 */
typedef struct footprint {
    uint64_t run, grid;
    int apart; /* no two elements share a byte */
} footprint;

typedef struct dimension {
    uint64_t stride; /* bytes, without sign */
    uint64_t extent;
} dimension;

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static range range_of(const onepass_tensor *tensor)
{
    range r = {.low = (uintptr_t)first_byte(tensor)};
    r.high = r.low + (uint64_t)element_size(tensor);
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->shape[d] == 1) /* whose stride may be any number */
            continue;
        int64_t reach = stride_of(tensor, d) * element_size(tensor) * (tensor->shape[d] - 1);
        if (reach < 0)
            r.low += (uint64_t)reach;
        else
            r.high += (uint64_t)reach;
    }
    return r;
}

static footprint footprint_of(const onepass_tensor *tensor)
{
    dimension dims[ONEP_MAX_RANK]; /* by stride, the smallest first */
    int rank = 0;
    footprint f = {.run = (uint64_t)element_size(tensor), .apart = 1};
    for (int d = tensor->ndim - 1; d >= 0; d--) { /* where they usually stand in this order */
        if (tensor->shape[d] == 1)
            continue;
        int64_t stride = stride_of(tensor, d) * element_size(tensor);
        dimension next = {(uint64_t)(stride < 0 ? -stride : stride), (uint64_t)tensor->shape[d]};
        int k = rank++;
        for (; k > 0 && dims[k - 1].stride > next.stride; k--)
            dims[k] = dims[k - 1];
        dims[k] = next;
    }
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
    range p = range_of(a);
    range q = range_of(b);
    if (p.high < p.low || q.high < q.low) /* a workspace at the end of the address space */
        return 0;
    if (p.high <= q.low || q.high <= p.low)
        return 1;
    footprint f = footprint_of(a);
    footprint g = footprint_of(b);
    uint64_t grid = common_divisor(f.grid, g.grid);
    if (grid == 0)
        return 0;
    uint64_t offset = (q.low >= p.low ? q.low - p.low : grid - (p.low - q.low) % grid) % grid;
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

onep_operand onep_operand_of(const onepass_tensor *tensor, int row_dims, int has_columns)
{
    onep_operand operand = {0};
    if (!tensor)
        return operand;
    operand.type = onep_type_of(tensor->dtype);
    /* An empty tensor may have no memory; a present operand needs an address all the same, which is never followed. */
    static char nowhere;
    operand.data = tensor->data ? (char *)tensor->data + tensor->byte_offset : &nowhere;
    int rank = 0;
    for (int d = 0; d < row_dims; d++)
        if (tensor->shape[d] != 1 && rank < ONEP_MAX_RANK)
            operand.row_stride[rank++] = byte_stride(tensor, d);
    if (has_columns)
        operand.col_stride = byte_stride(tensor, row_dims);
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

void onep_row_addresses(const onep_operand *operand, const onep_rows *rows, const int64_t *indices, int count,
                        char **to)
{
    int inner = rows->rank - 1;
    int64_t left = 0; /* rows that follow along the innermost dimension */
    for (int i = 0; i < count; i++) {
        if (left > 0 && operand->data && indices[i] == indices[i - 1] + 1) {
            to[i] = to[i - 1] + operand->row_stride[inner];
            left--;
        } else {
            to[i] = onep_row_address(operand, rows, indices[i]);
            left = inner >= 0 ? rows->extent[inner] - 1 - indices[i] % rows->extent[inner] : 0;
        }
    }
}

double onep_feature(const onep_operand *operand, int64_t j, double otherwise)
{
    return operand->data ? onep_load(operand->type, operand->data + j * operand->col_stride) : otherwise;
}

void onep_feature_store(const onep_operand *operand, int64_t j, double x)
{
    if (operand->data)
        onep_store(operand->type, operand->data + j * operand->col_stride, x);
}
