/*
 * cuBLASLt, found at run time: one already in the process first (PyTorch brings its own), then libcublasLt.so.13, .12,
 * .11 as the system's loader finds them or from /usr/local/cuda. The prototypes are our own, no header and no library
 * is needed to build, and where there is none the library's own product works on. $ONEPASS_CUBLASLT names one file to
 * take instead, or is "none".
 *
 * Matrices here are column-major, as cuBLASLt sees them: D[m][n] = op(A)[m][k] op(B)[k][n] (+ a bias, one per row of
 * D, or + D). A call allocates and waits for nothing; the workspace is the caller's. The context of the device is
 * current.
 */
#ifndef ONEP_CUBLASLT_H
#define ONEP_CUBLASLT_H

#include "core/types.h"

typedef struct onep_cublaslt onep_cublaslt;

/* How products of fp32 are made; halves accumulate in fp32 and fp64 in fp64 in any case. */
typedef enum onep_product_math {
    ONEP_MATH_PLAIN,      /* fp32 throughout */
    ONEP_MATH_TF32,       /* operands rounded to 11 bits, on tensor cores */
    ONEP_MATH_SPLIT,      /* operands split into two fp16, on tensor cores; not by cuBLASLt, which makes them plain */
    ONEP_MATH_BEST,       /* SPLIT where that is faster, PLAIN elsewhere */
    ONEP_MATH_SPLIT_SM80, /* SPLIT with Ampere's instructions, whatever the device has */
} onep_product_math;

/* All that decides how a product is made. Unused bytes are 0: two of them are compared as memory. */
typedef struct onep_lt_shape {
    int64_t m, n, k;
    int64_t lda, ldb, ldd; /* in elements */
    int64_t workspace;     /* bytes the algorithm may use */
    int64_t chosen_n;      /* the algorithm is that for so many columns of B and D; 0: n */
    int type, d_type;      /* onep_type of A and B, and of D */
    int a_transposed, b_transposed;
    int a_alignment, b_alignment, d_alignment; /* bytes, a power of 2, up to 256 */
    int math, bias;                            /* a bias has D's type, elements side by side */
    int accumulates;                           /* D is added to */
} onep_lt_shape;

typedef struct onep_lt_plan onep_lt_plan;

enum { ONEP_LT_MAX_WORKSPACE = 32 << 20 };

/* NULL if no cuBLASLt can be used on the current device: onep_cublaslt_missing says why. */
onep_cublaslt *onep_cublaslt_create(void);
void onep_cublaslt_destroy(onep_cublaslt *lt);

/* The file in use and its version, "libcublasLt.so.13, 13.1.0"; "" if there is none yet. Why there is none; "". */
const char *onep_cublaslt_name(void);
const char *onep_cublaslt_missing(void);

/* What is remembered of a shape: true, and its plan, or NULL if cuBLASLt refuses it. No context need be current. */
int onep_cublaslt_recall(onep_cublaslt *lt, const onep_lt_shape *shape, const onep_lt_plan **plan);

/* How to make a product of this shape, remembered from call to call; NULL if cuBLASLt refuses the shape. A plan stays
 * until 64 other shapes have been asked for since. */
const onep_lt_plan *onep_cublaslt_plan(onep_cublaslt *lt, const onep_lt_shape *shape);
size_t onep_cublaslt_workspace(const onep_lt_plan *plan);

/* Puts the product on the stream. Returns 0, or the number cuBLASLt failed with, for onep_cublaslt_text. */
int onep_cublaslt_run(onep_cublaslt *lt, const onep_lt_plan *plan, const void *a, const void *b, void *d,
                      const void *bias, void *workspace, void *stream);
void onep_cublaslt_text(int error, char *text, size_t size);

#endif
