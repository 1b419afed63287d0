/*
 * What the tests of the head on a GPU are made of: an arena with everything a call touches, cases with their tensors in
 * it, and the definition of a case in double.
 */
#ifndef ONEPASS_TEST_HEAD_CUDA_CASE_H
#define ONEPASS_TEST_HEAD_CUDA_CASE_H

#include "cuda_harness.h"
#include "head_cuda.h"

/* What calls are made with; set by the program. */
extern onepass_handle *head_handle;
extern onep_cu_stream *head_stream;
extern uint64_t head_streams; /* of random numbers; the last one used */

/* ---- the arena --------------------------------------------------------------------------------------------------- */

/* Device memory and its image on the host; what a call may write is marked, a byte a byte. */
extern struct head_arena {
    char *device, *host, *sent;
    unsigned char *writable; /* one a byte */
    size_t used, most;       /* most is what was used, and so must be filled anew */
} head_arena;

typedef enum head_layout { COMPACT, SHIFTED, PADDED, STRIDED, LAYOUTS } head_layout;

/* A matrix in the arena; its operand has device addresses. */
typedef struct head_field {
    onep_operand operand;
    int64_t rows, columns;
    char *host;
} head_field;

/* Begins anew, filled with a byte that is in nobody's interest. */
void head_arena_begin(int poison);
char *head_arena_take(size_t bytes, size_t shift);
char *head_to_device(const char *host);
head_field field_place(onep_type type, int64_t rows, int64_t columns, head_layout l, int written);

double field_get(const head_field *f, int64_t i, int64_t j);
double head_put(const head_field *f, int64_t i, int64_t j, double x); /* returns what was stored */
void *head_take_workspace(size_t bytes);

/* Copies it to the device and back; the second checks that nothing changed that was not marked, and all tickets. */
void head_arena_send(void);
void head_arena_fetch(void);

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
    int stages;
} head_tensors;

head_case head_plain_case(onep_type type, int64_t rows, int64_t columns);
head_tensors head_make_case(const head_case *c);
onep_type head_computed_type(const head_case *c);

/* Column j of a vector; `otherwise` if the case has it not. */
double head_vector_at(const head_case *c, const head_field *f, unsigned absent, int64_t j, double otherwise);
double head_normal(test_random *random);

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
