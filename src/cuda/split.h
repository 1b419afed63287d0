/*
 * fp32 products on tensor cores, with the accuracy of fp32: operands split into two fp16, three products, sums of 64 of
 * the depth added up in fp32 (split_args.h; docs/numerics.md has the error bound). Hopper's own instructions where the
 * device and the driver have them, those of Ampere elsewhere.
 *
 * Of c[m][n] = sum over k of a(m, k) b(n, k) + bias[n] the operand b, a weight mostly, is the left one: it goes to the
 * tensor cores as it is if TMA can read it, and otherwise as planes, like a. The two change places if product's
 * may_exchange is set, the device has TMA that can read a, and m is at least 128 and at least 2 n.
 */
#ifndef ONEP_SPLIT_H
#define ONEP_SPLIT_H

#include "cuda/product.h"

/* Bytes of the planes of an operand, for a caller that keeps them. */
size_t onep_split_planes_bytes(int64_t rows, int64_t depth);

/* How to make them, at a multiple of 256 in device memory, of an fp32 operand whose rows are one stride apart. */
typedef struct onep_split_prepare_plan {
    onep_launch launch;
    onep_split_args args;
} onep_split_prepare_plan;

onepass_status onep_split_prepare(const char *operator_name, const onep_operand *x, const onep_rows *rows,
                                  int64_t depth, void *planes, onep_split_prepare_plan *plan);

/*
 * Plans a product for a workspace at that address (NULL: only sizes and choices), and says in *taken whether it goes
 * this way: the math asks for it, or leaves the choice and it is faster than cuBLAS's fp32 there (on Hopper, by
 * measurement: the table is in docs/performance.md); and fp32 throughout, none of m, n, k is 0, rows with one stride.
 */
onepass_status onep_split_plan_make(const onep_cuda *cuda, const onep_product *product, char *workspace,
                                    onep_split_plan *plan, int *taken);

/* Puts it on the stream. */
onepass_status onep_split_run(const onep_cuda *cuda, const char *operator_name, const onep_split_plan *plan);

/*
 * Bytes of workspace, at most; by shape, and by strides and alignment of b. Enough whatever a is like; with
 * ONEP_MATH_BEST 0 if it cannot be faster than cuBLAS.
 */
size_t onep_split_workspace(const onep_cuda *cuda, const onep_product *product);

#endif
