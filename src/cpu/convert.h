/*
 * Compact runs of elements to and from the type a kernel computes in. The vector loops read and write whole vectors:
 * the buffers of strided.inc have room for that behind their last element, no caller's memory is touched here.
 */
#ifndef ONEP_CONVERT_H
#define ONEP_CONVERT_H

#include "core/types.h"

static void vf_widen(float *to, onep_type type, const char *from, int64_t count)
{
    switch (type) {
    case ONEP_F16:
        for (int64_t i = 0; i < count; i += VF_LANES)
            vf_store_f32(to + i, vf_load_f16(from + 2 * i));
        break;
    case ONEP_BF16:
        for (int64_t i = 0; i < count; i += VF_LANES)
            vf_store_f32(to + i, vf_load_bf16(from + 2 * i));
        break;
    case ONEP_F32:
        memcpy(to, from, sizeof(float) * (size_t)count);
        break;
    default: /* float64 beside narrower inputs: an upstream gradient, which may be of any type */
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)onep_load(ONEP_F64, from + 8 * i);
    }
}

static void vf_narrow(char *to, onep_type type, const float *from, int64_t count)
{
    switch (type) {
    case ONEP_F16:
        for (int64_t i = 0; i < count; i += VF_LANES)
            vf_store_f16(to + 2 * i, vf_load_f32(from + i));
        break;
    case ONEP_BF16:
        for (int64_t i = 0; i < count; i += VF_LANES)
            vf_store_bf16(to + 2 * i, vf_load_f32(from + i));
        break;
    case ONEP_F32:
        memcpy(to, from, sizeof(float) * (size_t)count);
        break;
    default:
        for (int64_t i = 0; i < count; i++)
            onep_store(ONEP_F64, to + 8 * i, (double)from[i]);
    }
}

static void vd_widen(double *to, onep_type type, const char *from, int64_t count)
{
    int64_t size = (int64_t)onep_type_size(type);
    for (int64_t i = 0; i < count; i++)
        to[i] = onep_load(type, from + size * i);
}

static void vd_narrow(char *to, onep_type type, const double *from, int64_t count)
{
    int64_t size = (int64_t)onep_type_size(type);
    for (int64_t i = 0; i < count; i++)
        onep_store(type, to + size * i, from[i]);
}

#endif
