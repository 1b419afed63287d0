/*
 * The fp32 product on tensor cores, for tests on a GPU and of the same kernels on the CPU (emulated_gpu.hpp): cases
 * with their matrices in an arena, and what the model of the tensor cores (split_product.h) says of every bit.
 * Everything a call touches lies in the arena; what is not its to write must be as it was.
 */
#ifndef ONEPASS_TEST_SPLIT_CASES_H
#define ONEPASS_TEST_SPLIT_CASES_H

#include "cuda/split.h"
#include "cuda_arena.h"
#include "split_product.h"

typedef enum family {
    UNIFORM, /* [0, 1) by (-1, 1) */
    GAUSSIAN,
    LOGNORMAL, /* exp(3 x) */
    OUTLIERS,  /* one element of a row of the right operand, a mostly, is 2^20 where the left one is 0 */
    CANCELLING,
    SUBNORMAL, /* every third row of a, every third of b */
    HUGE_VALUES,
    ZERO_ROWS,
    INFINITE, /* in one row of a and one of b */
    NOT_A_NUMBER,
    WIDE_CHUNKS, /* chunks of the left operand from 2^-120 to 2^120 */
    FAMILIES,
} family;

extern const char *const split_family_names[FAMILIES];

typedef struct split_case {
    int64_t m, n, k;
    head_layout a_layout, b_layout, c_layout;
    int a_swapped, b_swapped, bias, prepared, statistics, may_exchange;
    family data;
    onep_product_math math;
    int ampere;    /* its kernel, whatever the device is */
    int stages;    /* of shared memory, 3 or more; 0: all there are */
    int pauses[2]; /* nanoseconds that copying and multiplying sleep every chunk */
} split_case;

typedef struct split_made {
    head_field a, b, c, bias;
    char *partial;
    void *planes;
    onep_product product;
    void *workspace;
    int64_t statistics_rows, part_depth;
    int exchanged; /* a is the left operand */
} split_made;

/* Gaussian operands, compact, for the kernels of split.h. */
split_case split_plain_case(int64_t m, int64_t n, int64_t k);

/* Element (row i, depth k) of an operand. */
float split_at(const head_field *f, int swapped, int64_t i, int64_t k);

/* Draws the matrices, in the arena. */
split_made split_make_case(const split_case *c);
void split_run_case(const split_case *c, split_made *made);

/* Runs it and compares every bit. */
void split_try_case(const split_case *c);

/* Depths around what the kernels hold in registers, up to `longest`: along memory, across it, and with no whole fours.
 */
void split_try_depths(int64_t longest);

/* The program's: from here on kernels are launched that sleep so long, or not at all. */
void split_set_pauses(const int *pauses);

onep_rows split_rows_of(int64_t count);
void *split_must_have(size_t bytes);

#endif
