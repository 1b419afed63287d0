/*
 * Which kernels there are and which one runs. kernels.def is the list; from it one table a level is filled, reference
 * first and faster levels over it, so a missing variant is slow, never absent.
 */
#ifndef ONEP_KERNELS_H
#define ONEP_KERNELS_H

#include "head.h"
#include "kl.h"
#include "linear.h"

typedef enum onep_level {
    ONEP_REF,    /* plain C, double arithmetic, libm: the definition */
    ONEP_SCALAR, /* the vector code, one lane wide */
    ONEP_AVX2,   /* AVX2 + FMA + F16C */
    ONEP_AVX512, /* AVX-512 F, BW, DQ, VL */
    ONEP_NEON,
    ONEP_LEVELS,                 /* those above are the processor's, each falling back on the ones before it */
    ONEP_CUDA = ONEP_LEVELS + 1, /* a device of its own: never chosen for the CPU, falls back on nothing */
} onep_level;

/* A kernel computes a whole, checked problem on the handle's device. It may fail, but no longer refuse. */
typedef onepass_status onep_kl_kernel(const onepass_handle *handle, const onep_kl_problem *problem);
typedef onepass_status onep_linear_kernel(const onepass_handle *handle, const onep_linear_problem *problem);
typedef onepass_status onep_linear_backward_kernel(const onepass_handle *handle,
                                                   const onep_linear_backward_problem *problem);
typedef onepass_status onep_head_kernel(const onepass_handle *handle, const onep_head_problem *problem);
typedef onepass_status onep_head_backward_kernel(const onepass_handle *handle,
                                                 const onep_head_backward_problem *problem);

#define KERNEL(operator_name, type, level, function) onep_##operator_name##_kernel function;
#include "kernels.def"
#undef KERNEL

typedef struct onep_kernels {
    onep_kl_kernel *kl[ONEP_FLOAT_TYPES];
    onep_linear_kernel *linear[ONEP_FLOAT_TYPES];
    onep_linear_backward_kernel *linear_backward[ONEP_FLOAT_TYPES];
    onep_head_kernel *head[ONEP_FLOAT_TYPES];
    onep_head_backward_kernel *head_backward[ONEP_FLOAT_TYPES];
} onep_kernels;

/* The table of a level: its own kernels where it has them, lower levels' elsewhere. ONEP_CUDA has its own alone. */
const onep_kernels *onep_kernels_of(onep_level level);

/* One line of kernels.def, for whoever walks the list. */
typedef struct onep_kernel_line {
    const char *operator_name;
    onep_type type;
    onep_level level;
    const char *function_name;
} onep_kernel_line;

const onep_kernel_line *onep_kernel_list(size_t *count);

/* "avx2"; ONEP_LEVELS if no level of the processor has that name. */
const char *onep_level_name(onep_level level);
onep_level onep_level_named(const char *name);

/* Built into this library, and runs on this machine. ONEP_CUDA runs if the driver shows a device. */
int onep_level_built(onep_level level);
int onep_level_runs(onep_level level);
onep_level onep_best_level(void);

/* cpu_detect.c: what processor and operating system allow, whatever was built. */
int onep_cpu_has(onep_level level);

#endif
