/*
 * An fp32 product on tensor cores, as the kernels compute it: y = sum over k of x[k] w[k], one element at a time, from
 * two fp16 parts of each operand and three products of parts. Written for its bits, not for speed: on small shapes a
 * kernel must give exactly these.
 *
 *   split     a row of x is multiplied by 2^s, exact, so that its largest magnitude lies in [2^14, 2^15), or by 2^126
 *             if that takes more; then
 *             hi = fp16(x 2^s), lo = fp16((x 2^s - hi) L), both to nearest, with L = 2^11 or 1 (lo_scaled or not).
 *             A row of w likewise, by 2^t; or each 64 of its depth by a power of two of their own (chunk_scaled).
 *   products  64 of the depth are a chunk. Per chunk, into an accumulator that starts from 0, in steps of 16:
 *             corrections: for each 16 of the depth the product of hi of the first operand with lo of the second one,
 *             then of lo with hi; after them, for each 16 of the depth, hi with hi. lo with lo is left out.
 *             SPLIT_FIRST: all into one accumulator; if lo is scaled, it is multiplied by 1/L, exact, between the two.
 *             SPLIT_APART: corrections have an accumulator of their own, which runs through the whole depth.
 *   promotion every `promote` of the depth main += accumulator, in fp32 to nearest, and the accumulator starts from 0
 *             again; if chunk_scaled, main = fma(accumulator, 2^(t of the first chunk - t of the chunk), main), with 54
 *             for t of the first chunk if that is larger.
 *   end       y = main 2^-(s+t), with fma(corrections, 1/L, main) for main if they are apart. That takes two factors,
 *             because s+t can be from -226 to 252; y is rounded once, also if it is subnormal.
 *
 * The tensor core adds as tensor_core.h says. docs/numerics.md derives how far y may be from the exact sum.
 */
#ifndef ONEPASS_TEST_SPLIT_PRODUCT_H
#define ONEPASS_TEST_SPLIT_PRODUCT_H

#include "tensor_core.h"

enum {
    SPLIT_CHUNK = 64,
    SPLIT_STEP = 16,
    SPLIT_BASE = 54, /* chunk_scaled: of a row's sums, the largest exponent */
    SPLIT_ROOM = 80, /* and how much larger than they a chunk may be */
};

typedef enum split_corrections { SPLIT_FIRST, SPLIT_APART } split_corrections;

typedef struct split_scheme {
    const char *name;
    const tensor_core *core;
    int lo_scaled;                 /* L is 2^11, not 1 */
    split_corrections corrections; /* SPLIT_APART needs scales that hold for the whole row: not with chunk_scaled */
    int promote;                   /* a multiple of 64, or 0: never before the end. 64 if chunk_scaled or SPLIT_FIRST */
    int chunk_scaled;              /* w is scaled per row and chunk */
    int weight_first;              /* the first operand of the tensor core is w, not x */
} split_scheme;

/* What a split found. */
enum {
    SPLIT_SPECIAL = 1, /* infinity or NaN: hi is that value, lo is 0, the exponent is that of the finite elements */
    SPLIT_SMALL = 2,   /* an element that is not 0 is under 2^-29 (lo unscaled: 2^-18) of the largest */
    SPLIT_RANGE = 4,   /* chunk_scaled: a chunk is more than 2^80 times as large as the row's sums may begin */
};

/* A row's parts, in the caller's memory. */
typedef struct split_row {
    uint16_t *hi, *lo; /* depth elements each */
    int *exponents;    /* s or t: one, or one for each chunk */
    int flags;
} split_row;

/* chunk_scaled: the exponent that the sums of a row of w have. */
int split_base(const split_row *row);

/* Splits one run of elements that share an exponent; returns flags. */
int split_run(const float *x, int64_t count, int lo_scaled, uint16_t *hi, uint16_t *lo, int *exponent);

/* Splits a row of x, or of w if `weight`. */
void split_make(const split_scheme *scheme, int weight, const float *x, int64_t depth, split_row *row);

/* x 2^exponent, rounded once, for |x| < 2^52 and exponents up to 252: the second factor is from 2^-126 to 2^126, the
 * first one takes the rest and is exact, or its result is so small that the second one makes it 0. */
float split_rescale(float x, int exponent);

/* One element. If either row is flagged SPLIT_SPECIAL or SPLIT_RANGE it is not taken from the parts but from x and w
 * themselves, by a chain of fmaf from 0 in the order of k. */
float split_product(const split_scheme *scheme, const float *x, const split_row *x_row, const float *w,
                    const split_row *w_row, int64_t depth);

#endif
