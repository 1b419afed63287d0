/*
 * What the tests of the head on a GPU are made of: cases with their tensors in the arena, and the definition of a case
 * in double.
 */
#ifndef ONEPASS_TEST_HEAD_CUDA_CASE_H
#define ONEPASS_TEST_HEAD_CUDA_CASE_H

#include "cuda_arena.h"
#include "head/cuda.h"
#include "linear/linear.h"

/* ---- cases ------------------------------------------------------------------------------------------------------- */

enum { NO_BIAS = 1, NO_GAMMA = 2, NO_BETA = 4, NO_SCALE = 8, NO_RUNNING = 16, NO_COUNTER = 32 };

typedef enum head_data {
    ORDINARY,
    CONSTANT_COLUMNS, /* every third column */
    TIES,             /* few different values */
    NAN_ROW,
    INF_ROW,
    MINUS_INF_COLUMNS, /* half of the columns of a row; running statistics */
    DATA_KINDS,
} head_data;

typedef struct head_case {
    int64_t rows, columns, depth; /* depth 0: the product is given, not made */
    onep_type type, output_type, parameter_type;
    head_layout layout;
    head_data data;
    unsigned absent;
    int running, cumulative, keep, one_scale;
    double condition, scale; /* |mean| / sigma of y; size of scale */
    onep_product_math math;
} head_case;

/* All tensors of a case, in the arena. */
typedef struct head_tensors {
    head_field input, weight, bias, gamma, beta, scale, running_mean, running_var, output, product, mean, rstd;
    char *counter;
    long long counted;
    onep_head_problem problem;
    void *workspace;
    int stages;
} head_tensors;

head_case head_plain_case(onep_type type, int64_t rows, int64_t columns);
head_tensors head_make_case(const head_case *c);
onep_type head_computed_type(const head_case *c);

/*
 * Calls below the entry points, which plan and run as those do, on a handle that multiplies fp32 in this way. Bytes of
 * workspace that the kernel plans for if it has none; a plan with one must not need more.
 */
size_t head_bytes(const onep_kernel *kernel, const onepass_handle *handle, onep_product_math math, const void *problem);
onepass_status head_call(const onep_kernel *kernel, const onepass_handle *handle, onep_product_math math,
                         const void *problem, void *workspace);
onepass_status head_forward(const onepass_handle *handle, onep_product_math math, const onep_head_problem *problem,
                            void *workspace, int stages);
onepass_status head_backward(const onepass_handle *handle, onep_product_math math,
                             const onep_head_backward_problem *problem, void *workspace, int stages);

extern const onep_kernel onep_head_cuda[], onep_head_backward_cuda[], onep_linear_cuda[], onep_linear_backward_cuda[];

/* Column j of a vector; `otherwise` if the case has it not. */
double head_vector_at(const head_case *c, const head_field *f, unsigned absent, int64_t j, double otherwise);

/* ---- the definition ---------------------------------------------------------------------------------------------- */

/* What the definition makes of a case: in double, with for each element how far a result may be off. */
typedef struct head_expected {
    double *y, *y_error, *z, *z_error, *output; /* rows x columns */
    double *mean, *rstd, *m2;
} head_expected;

head_expected head_define(const head_case *c, const head_tensors *t);
void head_free_expected(head_expected *e);
double *head_doubles(int64_t count);

#endif
