/* Cases of linear -> batch normalisation -> scale -> softmax, forward and backward. */
#ifndef CASES_HEAD_H
#define CASES_HEAD_H

#include "cases/case.h"

/* The arguments and options of the descriptions, in their order. */
enum {
    HEAD_INPUT,
    HEAD_WEIGHT,
    HEAD_BIAS,
    HEAD_GAMMA,
    HEAD_BETA,
    HEAD_SCALE,
    HEAD_RUNNING_MEAN,
    HEAD_RUNNING_VAR,
    HEAD_COUNTER, /* batches_tracked */
    HEAD_PREPARED,
    HEAD_OUTPUT,
    HEAD_PRODUCT,
    HEAD_MEAN,
    HEAD_RSTD,
    HEAD_ARGUMENTS,
};
enum {
    HEAD_B_INPUT,
    HEAD_B_WEIGHT,
    HEAD_GRAD_OUTPUT,
    HEAD_B_OUTPUT,
    HEAD_B_PRODUCT,
    HEAD_B_MEAN,
    HEAD_B_RSTD,
    HEAD_B_BIAS,
    HEAD_B_GAMMA,
    HEAD_B_BETA,
    HEAD_B_SCALE,
    HEAD_GRAD_INPUT,
    HEAD_GRAD_WEIGHT,
    HEAD_GRAD_BIAS,
    HEAD_GRAD_GAMMA,
    HEAD_GRAD_BETA,
    HEAD_GRAD_SCALE,
    HEAD_B_ARGUMENTS,
    HEAD_B_COUNTS = HEAD_B_ARGUMENTS, /* of head_backward_synchronised */
    HEAD_B_S0S,
    HEAD_B_S1S,
};
enum { HEAD_S_INPUT, HEAD_S_WEIGHT, HEAD_S_PRODUCT, HEAD_S_MEAN, HEAD_S_M2 }; /* head_statistics */
enum {                                                                        /* head_synchronised */
       HEAD_Y_PRODUCT,
       HEAD_Y_COUNTS,
       HEAD_Y_MEANS,
       HEAD_Y_M2S,
       HEAD_Y_BIAS,
       HEAD_Y_GAMMA,
       HEAD_Y_BETA,
       HEAD_Y_SCALE,
       HEAD_Y_RUNNING_MEAN,
       HEAD_Y_RUNNING_VAR,
       HEAD_Y_COUNTER,
       HEAD_Y_OUTPUT,
       HEAD_Y_MEAN,
       HEAD_Y_RSTD,
};
enum { /* head_backward_sums */
       HEAD_D_PRODUCT,
       HEAD_D_GRAD_OUTPUT,
       HEAD_D_OUTPUT,
       HEAD_D_MEAN,
       HEAD_D_RSTD,
       HEAD_D_S0,
       HEAD_D_S1,
};
enum { HEAD_STATISTICS, HEAD_CUMULATIVE, HEAD_EPS, HEAD_MOMENTUM };

/* What the numbers are like: the family of a case. */
typedef enum head_data {
    HEAD_ORDINARY,
    HEAD_MEANS,            /* |mean| / deviation of the columns of the product is about c->amount */
    HEAD_CONSTANT_COLUMNS, /* every third row of the weight is 0 */
    HEAD_TIES,             /* all rows of the weight alike */
    HEAD_GAMMA_IS,         /* every gamma is c->amount */
    HEAD_SCALE_IS,         /* every scale is; 1000: nearly one-hot */
    HEAD_DATA_KINDS,
} head_data;

/* Takes the numbers of `from` that both calls have, and what it stored, into `to`, which case_place has placed: the
 * backward call of this forward call. grad_output and case_remember are the caller's. */
void head_continue(op_case *to, const op_case *from);

/* Fills grad_output of a backward case as `generate` does. */
void head_fill_grad_output(op_case *c);

#endif
