/* The library's four KL entries under one name: which of them runs is a matter of data in the tool. */
#ifndef TOOL_KL_CALL_H
#define TOOL_KL_CALL_H

#include <stdbool.h>

#include "onepass.h"

typedef struct kl_forms {
    bool log_predictions, log_targets; /* what is passed: log-probabilities, or probabilities */
} kl_forms;

/* All arrays lie in host memory; for a CUDA handle they are copied there and back. Outputs not wanted are NULL. */
onepass_status kl_call(kl_forms forms, onepass_handle *handle, const onepass_tensor *predictions,
                       const onepass_tensor *targets, const onepass_kl_options *options, const onepass_tensor *value,
                       const onepass_tensor *grad_predictions, const onepass_tensor *grad_targets);

/* The same with arrays that lie where the handle computes. */
onepass_status kl_call_in_place(kl_forms forms, onepass_handle *handle, const onepass_tensor *predictions,
                                const onepass_tensor *targets, const onepass_kl_options *options,
                                const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                const onepass_tensor *grad_targets);

#endif
