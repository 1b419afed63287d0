/*
 * A product of two matrices on the device: fp32 by the library's own kernels for tensor cores if that is wanted
 * (split.h); the rest by cuBLASLt where it is there and takes the operands, and by the library's plain kernel (any
 * strides, any types, slower) where not.
 */
#ifndef ONEP_PRODUCT_H
#define ONEP_PRODUCT_H

#include "cublaslt.h"
#include "device.h"
#include "tensor.h"

typedef struct onep_products onep_products;

/* What a device multiplies with. The context is current. NULL: no memory. */
onep_products *onep_products_create(void);
void onep_products_destroy(onep_products *products); /* NULL is allowed */

/*
 * For people: who multiplies, "libcublasLt.so.13, 13.1.0", or why it is the library's own kernel. Returns whether it is
 * cuBLASLt. Looks for the library if nobody has yet.
 */
int onep_products_describe(char *text, size_t size);

/* For tests of the kernels of split.h: how they are slowed down, held short of memory, chosen. Zeroed: as always. */
typedef struct onep_split_trial {
    int copy_delay, multiply_delay; /* nanoseconds, every chunk */
    int units;                      /* of shared memory, 3 or more; 0: all there are */
    int ampere;                     /* the kernel for devices without a copy engine */
} onep_split_trial;

/* c[m][n] = sum over k of a(m, k) b(n, k) + bias[n] */
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
    onep_product_math math;
    const void *b_planes; /* what onep_split_prepare made of b before; or NULL. Then b itself is only looked at for
                             rows with an infinity, or where the product cannot go that way */
    int may_exchange;     /* tall: the operands may change places (split.h), so that c has other bits than with
                             `partial`, no statistics are made, and b_planes are not looked at */
    double *partial;      /* column statistics on the way, see onep_product_statistics_rows; NULL: not wanted */
    onep_split_trial trial;
} onep_product;

/*
 * Bytes of workspace with which the product is fastest. Only m, n, k, the types of b and c, what is swapped, the math
 * and, with ONEP_MATH_SPLIT, strides and alignment of b are looked at; address and strides of a and c are not.
 */
size_t onep_product_workspace(onep_cuda *cuda, const onep_product *product);

/*
 * Rows of c of which the product can make column statistics while it has them in registers, 0 if it cannot: with
 * `partial` it then writes mean and sum of squared deviations of every column over rows 0 to that, and so on:
 * [ceil(m / rows)][n][2].
 */
int64_t onep_product_statistics_rows(onep_cuda *cuda, const onep_product *product);

/* Puts it on the stream. The workspace is 256-byte aligned and has what onep_product_workspace says, or is NULL. */
onepass_status onep_product_run(onep_cuda *cuda, const onep_product *product, void *workspace);

/* out[j] = sum over the rows of x[i][j], in double */
onepass_status onep_column_sums(onep_cuda *cuda, const char *operator_name, const onep_operand *x,
                                const onep_rows *rows, int64_t columns, const onep_operand *out);

#endif
