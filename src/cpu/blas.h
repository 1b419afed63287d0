/*
 * The one way to BLAS. A library is found by dlopen and never linked: OpenBLAS, then BLIS; never libblas.so.3, behind
 * which the reference implementation may stand, forty times slower than our own product (src/cpu/product.inc), which
 * multiplies wherever no BLAS is used.
 *
 * Tiles of fixed size are multiplied, each by one call on one of our own threads, so results do not depend on the
 * number of threads. That needs a BLAS that stays on the calling thread. How many threads it uses is a setting of the
 * whole process, so it is changed only in a copy that was loaded by us; one that the program had loaded itself is left
 * as it is, and used only while it is set to one thread.
 */
#ifndef ONEP_BLAS_H
#define ONEP_BLAS_H

#include "onepass.h"

/* C = A B, row-major, with cblas's numbers for "as it is" and "transposed". */
enum { ONEP_BLAS_ROW_MAJOR = 101, ONEP_BLAS_PLAIN = 111, ONEP_BLAS_TRANSPOSED = 112 };

typedef void onep_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                        int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void onep_dgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha, const double *a,
                        int lda, const double *b, int ldb, double beta, double *c, int ldc);

typedef struct onep_blas {
    const char *name, *file;
    onep_sgemm *sgemm;
    onep_dgemm *dgemm;
} onep_blas;

typedef enum onep_blas_choice {
    ONEP_BLAS_ANY, /* the first that is there */
    ONEP_BLAS_OPENBLAS,
    ONEP_BLAS_BLIS,
    ONEP_BLAS_NONE,
} onep_blas_choice;

/* What config.blas or $ONEPASS_BLAS asks for. One that is named must be there. */
onepass_status onep_blas_choose(const char *asked, onep_blas_choice *choice);

/* The library to use now, NULL for our own product. */
const onep_blas *onep_blas_of(onep_blas_choice choice);

/* For people: the file in use, or why it is our own product; cut to the size. */
void onep_blas_describe(onep_blas_choice choice, char *text, size_t size);

#endif
