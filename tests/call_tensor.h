/*
 * A tensor of a call of tests/every_call.h: up to three dimensions, any strides, in memory of exactly its size.
 */
#ifndef ONEPASS_TEST_CALL_TENSOR_H
#define ONEPASS_TEST_CALL_TENSOR_H

#include "cases/buffer.h"
#include "harness.h"

typedef struct call_tensor {
    const char *name;
    onepass_tensor tensor;
    int64_t shape[3], strides[3];
    onep_type type;
    case_buffer buffer;
    int on_heap, is_output, is_kept; /* kept: read and written, as running statistics are */
} call_tensor;

int call_is_integer(onep_type type);

/* From the first element to the last, both counted; 0 if there is none. */
size_t call_tensor_bytes(const call_tensor *t);
int64_t call_tensor_elements(const call_tensor *t);

/* The address of an element, counted in row-major order whatever the strides. */
char *call_tensor_at(const call_tensor *t, int64_t index);

/* Stores x as the tensor's type has it: rounded, truncated to an integer, or nonzero as a byte of a mask. */
void call_tensor_put(const call_tensor *t, int64_t index, double x);

/* Uniform numbers from low to high; of a mask three bytes in four are 1. */
void call_tensor_fill(const call_tensor *t, double low, double high, test_random *random);

#endif
