/* See call_tensor.h. */
#include "call_tensor.h"

int call_is_integer(onep_type type)
{
    return type == ONEP_I32 || type == ONEP_I64;
}

/* Elements from the first to the last of a two-dimensional view, both counted; 0 if it has none. */
static size_t reach(const call_tensor *t)
{
    size_t elements = 1;
    for (int d = 0; d < t->tensor.ndim; d++) {
        if (t->shape[d] == 0)
            return 0;
        elements += (size_t)((t->shape[d] - 1) * t->strides[d]);
    }
    return elements;
}

size_t call_tensor_bytes(const call_tensor *t)
{
    return reach(t) * onep_type_size(t->type);
}

int64_t call_tensor_elements(const call_tensor *t)
{
    int64_t count = 1;
    for (int d = 0; d < t->tensor.ndim; d++)
        count *= t->shape[d];
    return count;
}

char *call_tensor_at(const call_tensor *t, int64_t index)
{
    int64_t at = 0;
    for (int d = t->tensor.ndim - 1; d >= 0; d--) {
        at += index % t->shape[d] * t->strides[d];
        index /= t->shape[d];
    }
    return t->buffer.data + at * (int64_t)onep_type_size(t->type);
}

void call_tensor_put(const call_tensor *t, int64_t index, double x)
{
    unsigned char byte = x != 0;
    if (call_is_integer(t->type))
        onep_store_integer(t->type, call_tensor_at(t, index), (int64_t)x);
    else if (t->type == ONEP_BYTE)
        *call_tensor_at(t, index) = (char)byte;
    else
        onep_store(t->type, call_tensor_at(t, index), x);
}

void call_tensor_fill(const call_tensor *t, double low, double high, test_random *random)
{
    for (int64_t i = 0; i < call_tensor_elements(t); i++)
        call_tensor_put(t, i,
                        t->type == ONEP_BYTE ? (double)(test_random_bits(random) % 4 != 0)
                                             : test_random_between(random, low, high));
}
