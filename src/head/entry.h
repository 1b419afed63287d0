/* What the entry points of the head and those of its synchronised form (synchronised.c) share: options and rules. */
#ifndef ONEP_HEAD_ENTRY_H
#define ONEP_HEAD_ENTRY_H

#include "head/head.h"

/* The options of every call, in this order; backward calls look at the first two alone. */
enum { ONEP_HEAD_STATISTICS_OPTION, ONEP_HEAD_CUMULATIVE_OPTION, ONEP_HEAD_EPS_OPTION, ONEP_HEAD_MOMENTUM_OPTION };

/* The tensors of head_backward; the last three are head_backward_synchronised's. */
enum {
    ONEP_HEAD_B_INPUT,
    ONEP_HEAD_B_WEIGHT,
    ONEP_HEAD_GRAD_OUTPUT,
    ONEP_HEAD_B_OUTPUT,
    ONEP_HEAD_B_PRODUCT,
    ONEP_HEAD_B_MEAN,
    ONEP_HEAD_B_RSTD,
    ONEP_HEAD_B_BIAS,
    ONEP_HEAD_B_GAMMA,
    ONEP_HEAD_B_BETA,
    ONEP_HEAD_B_SCALE,
    ONEP_HEAD_GRAD_INPUT,
    ONEP_HEAD_GRAD_WEIGHT,
    ONEP_HEAD_GRAD_BIAS,
    ONEP_HEAD_GRAD_GAMMA,
    ONEP_HEAD_GRAD_BETA,
    ONEP_HEAD_GRAD_SCALE,
    ONEP_HEAD_BACKWARD_ARGUMENTS,
    ONEP_HEAD_COUNTS = ONEP_HEAD_BACKWARD_ARGUMENTS,
    ONEP_HEAD_S0S,
    ONEP_HEAD_S1S,
    ONEP_HEAD_SYNCHRONISED_BACKWARD_ARGUMENTS
};
extern const onep_argument onep_head_backward_arguments[ONEP_HEAD_SYNCHRONISED_BACKWARD_ARGUMENTS];

/* Of both operators; the synchronised one is variant 1. */
onepass_status onep_head_solve_backward(onep_call *call);

/* eps and momentum alone. */
onepass_status onep_head_check_numbers(const onep_call *call);

/* What the options say of running statistics and counter, which may be NULL, against each other. */
onepass_status onep_head_check_running(const onep_call *call, const onepass_tensor *running_mean,
                                       const onepass_tensor *running_var, const onepass_tensor *batches_tracked);

/* A counter that cumulative averages can divide by. On a GPU it is the kernel's to read: see docs/numerics.md. */
onepass_status onep_head_check_counter(const onep_call *call, const onepass_tensor *batches_tracked);

/* The options of a call as they are now published; NULL and a wrong size are refused. */
onepass_status onep_head_read_options(onep_call *call, const onepass_head_options *given, onepass_head_options *o);

/* The same for a backward call, with the tensors that options and gradients hold. */
onepass_status onep_head_read_backward(onep_call *call, const onepass_head_options *given,
                                       const onepass_head_gradients *asked);

/* What all ranks have sent: the tensors `counts` [R], `first` and `second` [R, N]. Refuses what are no numbers of rows,
 * none at all, and fewer than the `rows` of this rank. A question for the workspace has no such tensors. */
onepass_status onep_head_ranks_of(const onep_call *call, int counts, int first, int second, int64_t rows,
                                  onep_head_ranks *ranks);

#endif
