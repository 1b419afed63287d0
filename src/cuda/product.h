/*
 * A product of two matrices on the device: fp32 by the library's own kernels for tensor cores if that is wanted
 * (split.h); the rest by cuBLASLt where it is there and takes the operands, and by the library's plain kernel (any
 * strides, any types, slower) where not. A product is planned once, then run: engine, places in the workspace, kernels
 * and their arguments are the plan's, and run only launches.
 */
#ifndef ONEP_PRODUCT_H
#define ONEP_PRODUCT_H

#include "core/tensor.h"
#include "cuda/cublaslt.h"
#include "cuda/device.h"
#include "cuda/product_args.h"
#include "cuda/split_args.h"

typedef struct onep_products onep_products;

/* A device's GEMM libraries. The context is current. NULL: no memory. */
onep_products *onep_products_create(void);
void onep_products_destroy(onep_products *products); /* NULL is allowed */

/*
 * For people: the GEMM library, "libcublasLt.so.13, 13.1.0", or why it is the library's own kernel. Returns whether it
 * is cuBLASLt. Looks for the library if nobody has yet.
 */
int onep_products_describe(char *text, size_t size);

/* c[m][n] = sum over k of a(m, k) b(n, k) + bias[n], or that added to what c has */
typedef struct onep_product {
    const char *operator_name;
    int64_t m, n, k;
    onep_operand a;
    onep_rows a_rows;
    int a_swapped; /* the operand is stored with k along its rows */
    onep_operand b;
    onep_rows b_rows;
    int b_swapped;
    onep_operand c;
    onep_rows c_rows;
    onep_operand bias; /* absent: 0 */
    int rounds_once;   /* of a half c with a bias: never twice, which some of cuBLASLt's kernels do */
    int accumulates;   /* c is added to, in one rounding; never by split.h, and without a bias */
    onep_product_math math;
    const void *b_planes; /* prepared planes of b (split.h); or NULL. Then b itself is only looked at for rows with an
                             infinity, or where the product cannot go that way */
    int may_exchange;     /* tall: the operands may change places (split.h), so that c has other bits, no statistics
                             are made, and b_planes are not looked at */
    int64_t chosen_m;     /* of a chunk of rows: engine, algorithm and parts of the depth are those of so many rows, so
                             the bits of a row do not depend on the chunk; 0: m */
    size_t room;          /* bytes of workspace the plan may use at most; 0: onep_product_workspace of this product */
} onep_product;

/* The launches of a product by split.h: those whose grid is 0 are not needed. */
typedef struct onep_split_plan {
    onep_launch split_left, split_right, multiply, merge;
    onep_split_args left, right;
    onep_split_product_args product;
    onep_split_merge_args parts;
    int exchanged;           /* a is the left operand */
    int64_t statistics_rows; /* as in onep_matmul_plan */
    int64_t part_depth;      /* depth of the parts whose sums are added up, that of all if there is one */
    size_t bytes;
} onep_split_plan;

typedef enum onep_product_engine {
    ONEP_ENGINE_NONE, /* an empty product */
    ONEP_ENGINE_SPLIT,
    ONEP_ENGINE_CUBLASLT,
    ONEP_ENGINE_PLAIN, /* product.cu */
} onep_product_engine;

typedef struct onep_matmul_plan {
    const char *operator_name;
    onep_product_engine engine;
    size_t bytes;            /* of workspace */
    int64_t statistics_rows; /* rows of c of which the product can make column statistics while it has them in
                                registers; 0: it cannot. See onep_matmul_statistics */
    union {
        onep_split_plan split;
        struct {
            const onep_lt_plan *lt; /* of cuBLASLt */
            const void *a, *b, *bias;
            void *c, *workspace;
            onep_launch launch; /* of the plain kernel, or to add the bias after cuBLASLt; grid 0: none */
            onep_product_args args;
        } other;
    } by;
} onep_matmul_plan;

/*
 * Bytes of workspace that the product's plan may need at most, whatever a and c are like: only m, n, k, the types of b
 * and c, what is swapped, the math and, with ONEP_MATH_SPLIT, strides and alignment of b are looked at.
 */
size_t onep_product_workspace(onep_cuda *cuda, const onep_product *product);

/* Plans for a workspace at that address, a multiple of 256. NULL: only the sizes in the plan mean anything, or, if no
 * workspace is needed, all of it. */
onepass_status onep_matmul_plan_make(onep_cuda *cuda, const onep_product *product, char *workspace,
                                     onep_matmul_plan *plan);

/*
 * Has the product write mean and sum of squared deviations of every column of c over rows 0 to statistics_rows, and so
 * on: partial[ceil(m / statistics_rows)][n][2].
 */
void onep_matmul_statistics(onep_matmul_plan *plan, double *partial);

/* Puts it on the stream. */
onepass_status onep_matmul_run(onep_cuda *cuda, const onep_matmul_plan *plan);

/* out[j] = before[j], if there is any, + sum over the rows of x[i][j], in double; grid 0: there is nothing to add up.
 * `before` may be `out`. */
typedef struct onep_column_sums_plan {
    onep_launch launch;
    onep_column_sums_args args;
} onep_column_sums_plan;

onepass_status onep_column_sums_plan_make(const char *operator_name, const onep_operand *x, const onep_rows *rows,
                                          int64_t columns, const onep_operand *before, const onep_operand *out,
                                          onep_column_sums_plan *plan);
onepass_status onep_column_sums_run(const onep_cuda *cuda, const char *operator_name,
                                    const onep_column_sums_plan *plan);

#endif
