/*
 * A head and its linear layer at any size, made on the spot: inputs uniform in [0, 1), weights as PyTorch initialises
 * them, parameters and statistics that are not trivial. The same seed gives the same numbers. For bench and its sweep.
 */
#ifndef TOOL_HEAD_CASE_H
#define TOOL_HEAD_CASE_H

#include <stdbool.h>

#include "call.h"
#include "element.h"

/* The arrays of a case, compact; parameters have the type computed in, f64 for f64 and f32 otherwise. */
enum {
    HEAD_CASE_INPUT,
    HEAD_CASE_WEIGHT,
    HEAD_CASE_BIAS,
    HEAD_CASE_GAMMA,
    HEAD_CASE_BETA,
    HEAD_CASE_SCALE,
    HEAD_CASE_RUNNING_MEAN,
    HEAD_CASE_RUNNING_VAR,
    HEAD_CASE_GRAD_OUTPUT,
    HEAD_CASE_OUTPUT,
    HEAD_CASE_PRODUCT,
    HEAD_CASE_MEAN,
    HEAD_CASE_RSTD,
    HEAD_CASE_GRAD_INPUT,
    HEAD_CASE_GRAD_WEIGHT,
    HEAD_CASE_GRAD_BIAS,
    HEAD_CASE_GRAD_GAMMA,
    HEAD_CASE_GRAD_BETA,
    HEAD_CASE_GRAD_SCALE,
    HEAD_CASE_ARRAYS
};

/* The calls that are made with them. */
enum {
    HEAD_CALL_LINEAR,
    HEAD_CALL_PRODUCT, /* linear without its bias */
    HEAD_CALL_LINEAR_BACKWARD,
    HEAD_CALL_EVAL,
    HEAD_CALL_TRAIN,
    HEAD_CALL_EVAL_BACKWARD,
    HEAD_CALL_TRAIN_BACKWARD,
    HEAD_CALLS
};

extern const char *const head_case_names[HEAD_CASE_ARRAYS];

typedef struct head_case {
    int64_t rows, depth, columns;
    element_type type, computed;
    uint64_t seed;
    bool transposed; /* the columns of input and weight are contiguous */
    void *arrays[HEAD_CASE_ARRAYS];
    int64_t shapes[HEAD_CASE_ARRAYS][2], strides[HEAD_CASE_ARRAYS][2];
    onepass_tensor tensors[HEAD_CASE_ARRAYS];
    tool_call calls[HEAD_CALLS]; /* with these very tensors */
    void *workspace;
    size_t workspace_size;
    tensor_copy copies[HEAD_CASE_ARRAYS]; /* of a case on a device */
} head_case;

/* Allocates and fills; the caller has set rows, depth, columns, type and seed. False: no memory for that many. */
bool head_case_create(head_case *it);
void head_case_destroy(head_case *it); /* also of a zeroed structure */

/* Bytes of all arrays together, before they are created; UINT64_MAX: more than can be counted. */
uint64_t head_case_room(const head_case *it);

/* Bytes of input, weight and output, what a product moves; the same rule. */
uint64_t head_case_matrices(const head_case *it);

int64_t head_case_count(const head_case *it, int array);

/* Bytes of workspace that the call, and with `backward` the one after it, needs; head false: of linear. */
onepass_status head_case_workspace(const head_case *it, onepass_handle *handle, bool head, bool train, bool backward,
                                   size_t *bytes);

/* Workspace for every call below on this handle; larger than before if need be. Calls that copy bring their own. */
onepass_status head_case_prepare(head_case *it, onepass_handle *handle);

/*
 * The same case on the device of a CUDA handle, where the calls below compute without copying; `here` outlives it. What
 * was claimed there is released by head_case_drop, after a failure too, and by nothing else.
 */
onepass_status head_case_send(const head_case *here, head_case *there, onepass_handle *handle);
void head_case_drop(head_case *there, onepass_handle *handle); /* also of a zeroed structure */

onepass_status head_case_linear(head_case *it, onepass_handle *handle, bool bias);
onepass_status head_case_linear_backward(head_case *it, onepass_handle *handle);

/* Keeps what backward needs. Running statistics are only read, so that every run does the same. */
onepass_status head_case_forward(head_case *it, onepass_handle *handle, bool train);
onepass_status head_case_backward(head_case *it, onepass_handle *handle, bool train);

#endif
