/*
 * Heads as data: a case says shapes, types, layouts, options and values; head_run makes every tensor
 * in guarded, poisoned memory, calls the library forward and backward at a level and compares each result with an
 * oracle in long double, element by element, within bounds that follow from the arithmetic (head_cases.c).
 */
#ifndef ONEPASS_TEST_HEAD_CASES_H
#define ONEPASS_TEST_HEAD_CASES_H

#include "harness.h"

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

typedef enum head_layout {
    HEAD_COMPACT, /* no strides given */
    HEAD_PADDED,
    HEAD_FORTRAN,
    HEAD_COLUMN_STEP,
    HEAD_NEGATIVE,
    HEAD_OUTPUT_LAYOUTS,
    HEAD_REPEATED = HEAD_OUTPUT_LAYOUTS, /* inputs only: every row the same memory */
    HEAD_LAYOUTS,
} head_layout;

enum { HEAD_MAX_RANK = 4 };

typedef struct head_tensor {
    test_buffer buffer;
    onepass_tensor tensor;
    int64_t shape[HEAD_MAX_RANK], strides[HEAD_MAX_RANK];
    onep_type type;
    int64_t count;
    char *first; /* element 0 */
    char *before;
    int given;
} head_tensor;

/* Places the tensor with poison in all its bytes. */
void head_place(head_tensor *t, onep_type type, int ndim, const int64_t *shape, head_layout layout, test_guard guard,
                size_t shift);
char *head_at(const head_tensor *t, int64_t index); /* index in row-major order */
double head_get(const head_tensor *t, int64_t index);
void head_set(const head_tensor *t, int64_t index, double x);

/* Remembers all bytes; later: those that belong to no element (or, for an input, all) must be as they were. */
void head_remember(head_tensor *t);
void head_check_memory(const head_tensor *t, const char *name, int is_output);

/* Memory for a workspace of exactly that many bytes, poisoned, ending at a page that may not be touched. */
void *head_workspace(size_t bytes);
void head_check_workspace(void);

/* ---- a case ------------------------------------------------------------------------------------------------------ */

enum {
    HEAD_INPUT,
    HEAD_WEIGHT,
    HEAD_BIAS,
    HEAD_GAMMA,
    HEAD_BETA,
    HEAD_SCALE,
    HEAD_RUNNING_MEAN,
    HEAD_RUNNING_VAR,
    HEAD_COUNTER,
    HEAD_GRAD_OUTPUT,
    HEAD_OUTPUT,
    HEAD_PRODUCT,
    HEAD_MEAN,
    HEAD_RSTD,
    HEAD_GRAD_INPUT,
    HEAD_GRAD_WEIGHT,
    HEAD_GRAD_BIAS,
    HEAD_GRAD_GAMMA,
    HEAD_GRAD_BETA,
    HEAD_GRAD_SCALE,
    HEAD_TENSORS
};

#define HEAD_BIT(tensor) (1u << (tensor))
#define HEAD_ALL         ((1u << HEAD_TENSORS) - 1)

typedef struct head_case {
    int64_t rows, depth, columns;
    onepass_statistics statistics;
    int cumulative;
    double eps, momentum;
    unsigned present; /* HEAD_BIT of those that are given */
    onep_type type[HEAD_TENSORS];
    head_layout layout[HEAD_TENSORS];
    test_guard guard[HEAD_TENSORS];
    size_t shift[HEAD_TENSORS];
    int scale_each;            /* one scale a feature */
    int64_t counter;           /* before the call */
    double ratio;              /* |mean| / deviation of the columns of the product, about; 0: as it comes */
    double gamma_is, scale_is; /* fixed values; NaN: random */
    int constant_columns;      /* every third row of the weight is 0 */
    int ties;                  /* all rows of the weight alike */
    double spoil;              /* put into the input at (spoil_row, 0) if it is not 0 */
    int64_t spoil_row;
    int32_t threads;
    const char *blas; /* NULL: "none" */
    int no_backward;
} head_case;

/* Everything present, one type (parameters and statistics fp32 beside half types), compact, training. */
head_case head_case_plain(onep_type type, int64_t rows, int64_t depth, int64_t columns);

/* Random types, layouts, guards, options. */
void head_case_shuffle(head_case *c, test_random *random);

/* Makes tensors and values; runs; checks everything. `stream` chooses the random numbers. */
void head_run(const head_case *c, onep_level level, uint64_t stream);

/* The bytes of every result of the last head_run, for comparing runs bit by bit. */
uint64_t head_digest(void);

/* For tests that look at single results: the tensors of the last run. */
const head_tensor *head_result(int tensor);

#endif
