/*
 * BLAS beside the library, for bench: the same OpenBLAS or BLIS that the library uses, called with threads of its own,
 * as any other program would. The number of threads is a setting of the whole process, and the library needs it to be
 * one: whoever raises it lowers it again before the next call.
 */
#ifndef TOOL_BLAS_H
#define TOOL_BLAS_H

#include <stdbool.h>

#include "element.h"

typedef struct tool_blas {
    void *library; /* NULL: none */
    void *gemm[2]; /* of f32, of f64 */
    void *set_threads;
} tool_blas;

/* Finds the one of this name ("openblas", "blis"), as onepass_blas says. False: there is none. */
bool blas_open(tool_blas *blas, const char *name);
void blas_close(tool_blas *blas); /* also of a zeroed structure */

void blas_set_threads(const tool_blas *blas, int threads);

/* c[m][n] = a[m][k] b[n][k]^T, compact, f32 or f64. */
void blas_multiply(const tool_blas *blas, element_type type, int m, int n, int k, const void *a, const void *b,
                   void *c);

#endif
