/*
 * From a caller's tensor to an operand the kernels can walk: every check on a descriptor lives here, and nothing below
 * the operators' entry points sees an unchecked one. All sizes are 64-bit and every product is checked for overflow.
 */
#ifndef ONEP_TENSOR_H
#define ONEP_TENSOR_H

#include "core/types.h"
#include "onepass.h"

/* Enough for any rank: dimensions of extent 1 are dropped, and 63 dimensions of 2 already exceed 2^62 elements. */
#define ONEP_MAX_RANK 64

/* The rows of a problem: the extents of the dimensions before the last one that are not 1. */
typedef struct onep_rows {
    int rank;
    int64_t extent[ONEP_MAX_RANK];
    int64_t count; /* the product */
} onep_rows;

/* One tensor as rows x columns. Strides are in bytes; a stride of 0 repeats (one value per row, or one for all). */
typedef struct onep_operand {
    char *data; /* NULL: absent */
    onep_type type;
    int64_t row_stride[ONEP_MAX_RANK]; /* one for each of onep_rows.extent */
    int64_t col_stride;
} onep_operand;

/*
 * Checks all that can be checked of one tensor alone: pointers, rank, extents, dtype, device, and that no size or
 * offset leaves 64 bits. `operator_name` and `argument` begin the message.
 */
onepass_status onep_tensor_check(const char *operator_name, const char *argument, const onepass_tensor *tensor,
                                 onepass_device device);

/* Refuses a tensor to be written whose elements are not all apart (stride 0, or dimensions that run into each other).
 */
onepass_status onep_writable_check(const char *operator_name, const char *argument, const onepass_tensor *tensor);

/*
 * Refuses `output` if it may share memory with `other`. With `same_allowed` the two may be exactly the same view (an
 * element-wise operator then works in place).
 */
onepass_status onep_overlap_check(const char *operator_name, const char *output_name, const onepass_tensor *output,
                                  const char *other_name, const onepass_tensor *other, int same_allowed);

/* "[2, 3]" into text; a long shape ends in "...". Returns text. */
const char *onep_shape_text(int ndim, const int64_t *shape, char *text, size_t size);

/* Number of elements of a checked tensor. */
int64_t onep_elements(const onepass_tensor *tensor);

/* The rows of a checked tensor; its columns are onep_columns. A 0-d tensor is one row of one column. */
onep_rows onep_rows_of(const onepass_tensor *tensor);
int64_t onep_columns(const onepass_tensor *tensor);

/* The operand for a checked tensor whose first `row_dims` dimensions are rows, and the next one columns if it has them.
 * NULL gives an absent operand. */
onep_operand onep_operand_of(const onepass_tensor *tensor, int row_dims, int has_columns);

/* Where row `row` begins, NULL for an absent operand: the row's index is taken apart along the extents, last dimension
 * fastest. */
char *onep_row_address(const onep_operand *operand, const onep_rows *rows, int64_t row);

/* The addresses of several rows, in rising order; neighbours cost an addition. NULLs if the operand is absent. */
void onep_row_addresses(const onep_operand *operand, const onep_rows *rows, const int64_t *indices, int count,
                        char **to);

/* Element j of an operand of N columns; `otherwise` if it is absent. */
double onep_feature(const onep_operand *operand, int64_t j, double otherwise);
void onep_feature_store(const onep_operand *operand, int64_t j, double x); /* does nothing if it is absent */

#endif
