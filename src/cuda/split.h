/*
 * fp32 products on tensor cores, with the accuracy of fp32: operands split into two fp16, three products, sums of 64 of
 * the depth added up in fp32 (split_args.h; docs/numerics.md has the error bound). Hopper's own instructions where the
 * device and the driver have them, those of Ampere elsewhere.
 *
 * Of c[m][n] = sum over k of a(m, k) b(n, k) + bias[n] the operand b, a weight mostly, is the left one: it goes to the
 * tensor cores as it is if the copy engine can read it, and otherwise as planes, like a. Where a has twice the rows of
 * b or more the two change places, if they may: see onep_split_exchanges.
 */
#ifndef ONEP_SPLIT_H
#define ONEP_SPLIT_H

#include "product.h"

/* Bytes of the planes of an operand, for a caller that keeps them. */
size_t onep_split_planes_bytes(int64_t rows, int64_t depth);

/* Makes them, at a multiple of 256 in device memory, of an fp32 operand whose rows are one stride apart. */
onepass_status onep_split_prepare(onep_cuda *cuda, const char *operator_name, const onep_operand *x,
                                  const onep_rows *rows, int64_t depth, void *planes);

/* True if the product can go this way on this device: fp32 throughout, none of m, n, k is 0, rows with one stride. */
int onep_split_takes(const onep_cuda *cuda, const onep_product *product);

/*
 * True if a is the left operand, with the bits that has: product->may_exchange is set, statistics are not wanted,
 * the device has a copy engine that can read a, and m is at least 128 and at least 2 n.
 */
int onep_split_exchanges(const onep_cuda *cuda, const onep_product *product);

/*
 * True if it is faster than cuBLAS's fp32 there: on Hopper, by measurement (the table is in docs/performance.md). Other
 * devices have not been measured. By the shape, and by which operand is the left one.
 */
int onep_split_wins(const onep_cuda *cuda, const onep_product *product);

/*
 * Bytes of workspace; by shape, and by strides and alignment of b. Enough whatever a is like; with ONEP_MATH_BEST 0 if
 * it cannot be faster than cuBLAS.
 */
size_t onep_split_workspace(const onep_cuda *cuda, const onep_product *product);

/* Rows of a that one set of column statistics is over, if the product can make them on its way; 0 if not. */
int64_t onep_split_statistics_rows(const onep_cuda *cuda, const onep_product *product);

/* The depth of the parts whose sums are added up, the depth of all if there is one. */
int64_t onep_split_part_depth(const onep_cuda *cuda, const onep_product *product);

/* Puts a product that onep_split_takes on the stream. */
onepass_status onep_split_run(onep_cuda *cuda, const onep_product *product, void *workspace);

#endif
