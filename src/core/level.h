/* The levels an operator may have kernels for: the processor's, slowest first, and a CUDA device. */
#ifndef ONEP_LEVEL_H
#define ONEP_LEVEL_H

typedef enum onep_level {
    ONEP_REF,    /* plain C, double arithmetic, libm: the definition */
    ONEP_SCALAR, /* the vector code, one lane wide */
    ONEP_AVX2,   /* AVX2 + FMA + F16C */
    ONEP_AVX512, /* AVX-512 F, BW, DQ, VL */
    ONEP_NEON,
    ONEP_LEVELS,             /* those above are the processor's: where one has no kernel, the one before it serves */
    ONEP_CUDA = ONEP_LEVELS, /* a device of its own: never chosen for the CPU, falls back on nothing */
    ONEP_ALL_LEVELS,
} onep_level;

/* "avx2"; ONEP_LEVELS if no level of the processor has that name. */
const char *onep_level_name(onep_level level);
onep_level onep_level_named(const char *name);

#endif
