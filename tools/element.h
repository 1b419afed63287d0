/*
 * The element types the tool reads and writes: their names here, in .npy headers and in the library, and one element at
 * a time to and from double. For making inputs and checking outputs; never on the way of the operator itself.
 */
#ifndef TOOL_ELEMENT_H
#define TOOL_ELEMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "onepass.h"

typedef enum element_type {
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_F32,
    ELEMENT_F64,
    ELEMENT_FLOATS, /* the types before this one are floating point */
    ELEMENT_BOOL = ELEMENT_FLOATS,
    ELEMENT_U8,
    ELEMENT_I32, /* labels */
    ELEMENT_I64,
    ELEMENT_TYPES,
} element_type;

typedef struct element_info {
    const char *name;  /* "f32": options, tables, JSON */
    const char *descr; /* "<f4": what a .npy file written by the tool says */
    size_t size;
    onepass_dtype dtype;
} element_info;

extern const element_info element_infos[ELEMENT_TYPES];

/* The distance from 1 to the next number of a floating-point type. */
double element_epsilon(element_type type);

double element_load(element_type type, const void *base, size_t index);
void element_store(element_type type, void *base, size_t index, double value); /* rounds to nearest, ties to even */

#endif
