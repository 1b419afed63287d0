/*
 * Heads as the tests speak of them: a case says shapes, types, layouts, options and values of a forward call and of the
 * backward call after it. head_run makes cases of cases/head.c of them, and checks both at a level.
 */
#ifndef ONEPASS_TEST_HEAD_CASES_H
#define ONEPASS_TEST_HEAD_CASES_H

#include "cases/head.h"
#include "harness.h"

/* The tensors of both calls. */
enum {
    LAYER_INPUT,
    LAYER_WEIGHT,
    LAYER_BIAS,
    LAYER_GAMMA,
    LAYER_BETA,
    LAYER_SCALE,
    LAYER_RUNNING_MEAN,
    LAYER_RUNNING_VAR,
    LAYER_COUNTER,
    LAYER_GRAD_OUTPUT,
    LAYER_OUTPUT,
    LAYER_PRODUCT,
    LAYER_MEAN,
    LAYER_RSTD,
    LAYER_GRAD_INPUT,
    LAYER_GRAD_WEIGHT,
    LAYER_GRAD_BIAS,
    LAYER_GRAD_GAMMA,
    LAYER_GRAD_BETA,
    LAYER_GRAD_SCALE,
    LAYER_TENSORS
};

#define LAYER_BIT(tensor) (1u << (tensor))
#define LAYER_ALL         ((1u << LAYER_TENSORS) - 1)

typedef struct head_case {
    int64_t rows, depth, columns;
    onepass_statistics statistics;
    int cumulative;
    double eps, momentum;
    unsigned present; /* LAYER_BIT of those that are given */
    onep_type type[LAYER_TENSORS];
    case_layout layout[LAYER_TENSORS];
    case_guard guard[LAYER_TENSORS];
    size_t shift[LAYER_TENSORS];
    int scale_each; /* one scale per feature */
    head_data data;
    double amount; /* of what the data are about */
    double spoil;  /* put into the input at (spoil_row, 0) if it is not 0 */
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

/* For tests that look at single results: an element of an argument (HEAD_OUTPUT) of the last forward call. */
double head_result(int argument, int64_t index);

/* A handle at a level; `blas` NULL: "none". NULL, and a failed check, if there is none. */
onepass_handle *layer_handle(onep_level level, int32_t threads, const char *blas);

#endif
