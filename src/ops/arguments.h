/*
 * What the doors of operators over matrices have in common: a table of tensor arguments, each with the shape and type
 * it must have, checked in one place. Nothing is written unless every check has passed.
 */
#ifndef ONEP_ARGUMENTS_H
#define ONEP_ARGUMENTS_H

#include "handle.h"

typedef enum onep_type_rule {
    ONEP_ANY_FLOAT,
    ONEP_SAME_TYPE, /* exactly `type` */
    ONEP_HOLDS_TYPE,
    ONEP_COUNTER, /* int64 */
} onep_type_rule;

/* One tensor. Its shape must be that of `leading` without the last dimension, if there is one, and then extent. */
typedef struct onep_argument {
    const char *name;
    const onepass_tensor *tensor; /* NULL: not given */
    int is_output;
    onep_type_rule rule;
    onep_type type;
    const onepass_tensor *leading;
    int rank;
    int64_t extent[2];
    int one_allowed; /* a tensor of one element will do as well */
} onep_argument;

/* Each given tensor alone, then every output against all others. */
onepass_status onep_arguments_check(const char *operator_name, const onepass_handle *handle,
                                    const onep_argument *arguments, int count);

/*
 * The two that everything else is measured by: input [..., K] (of `rank` dimensions; 0: any but none) and
 * weight [N, K]. Also refuses a missing handle, and one of a device that has no kernels.
 */
onepass_status onep_check_input_weight(const char *operator_name, const onepass_handle *handle,
                                       const onepass_tensor *input, const onepass_tensor *weight, int rank);

/* A null pointer that is required. */
onepass_status onep_missing(const char *operator_name, const char *argument);

/* The caller's workspace is large enough, and nobody else's memory. */
onepass_status onep_workspace_check(const char *operator_name, const onepass_handle *handle,
                                    const onep_argument *arguments, int count, const void *workspace, size_t size,
                                    size_t needed);

/* True of CUDA handles that multiply fp32 with ONEPASS_FP32_SPLIT, or choose it where it is faster. */
int onep_can_use_prepared(const onepass_handle *handle);

/* A prepared weight that may be used: on such a handle, of an fp32 weight, in device memory at a multiple of 256. NULL
 * is none. */
onepass_status onep_prepared_check(const char *operator_name, const char *argument, const onepass_handle *handle,
                                   const onepass_tensor *weight, const void *prepared);

/* The type input and weight promote to, and the one they are computed in. */
onep_type onep_promoted(const onepass_tensor *input, const onepass_tensor *weight);
onep_type onep_computed(onep_type promoted);

/* An operand of N columns, or of one element that stands for all. */
onep_operand onep_feature_operand(const onepass_tensor *tensor);

#endif
