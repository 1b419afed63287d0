/*
 * Element types: the four the operators compute on, the bytes a mask is made of, and integers that count or choose.
 * This file, the loads and stores of src/cpu/vec_*.h and src/cuda/elem.cuh are the only places that know how half types
 * are laid out.
 */
#ifndef ONEP_TYPES_H
#define ONEP_TYPES_H

#include "core/strict_math.h"
#include "onepass.h"

typedef enum onep_type {
    ONEP_F16,
    ONEP_BF16,
    ONEP_F32,
    ONEP_F64,
    ONEP_FLOAT_TYPES, /* those above are the floating-point ones */
    ONEP_BYTE = ONEP_FLOAT_TYPES,
    ONEP_I32,
    ONEP_I64,
    ONEP_NO_TYPE,
} onep_type;

/* ONEP_NO_TYPE for anything the library does not read: other integers, complex numbers, vectors, 8-bit floats. */
onep_type onep_type_of(onepass_dtype dtype);

size_t onep_type_size(onep_type type);

/* "float32", "bfloat16", ...: PyTorch's words, for messages. */
const char *onep_type_name(onep_type type);

/* The type PyTorch gives to a mixture: the wider one; float16 with bfloat16 is float32. */
onep_type onep_promote(onep_type a, onep_type b);

/* True if every value of `narrow` is a value of `wide`. */
int onep_type_holds(onep_type wide, onep_type narrow);

/* One element, from or to memory of any alignment; stores round to nearest, ties to even. */
double onep_load(onep_type type, const void *from);
void onep_store(onep_type type, void *to, double x);

/* The same for ONEP_I32 and ONEP_I64; what is stored fits. */
int64_t onep_load_integer(onep_type type, const void *from);
void onep_store_integer(onep_type type, void *to, int64_t x);

float onep_f16_to_f32(uint16_t bits);
uint16_t onep_f16_from_f64(double x);
float onep_bf16_to_f32(uint16_t bits);
uint16_t onep_bf16_from_f64(double x);

#endif
