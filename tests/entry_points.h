/*
 * The typed entry points of every operator behind the one signature of onepass_call: what a test says as arrays reaches
 * onepass_kl_probs_probs and its like, structures and all. So one list of cases tests both ways into an operator.
 */
#ifndef ONEPASS_TEST_ENTRY_POINTS_H
#define ONEPASS_TEST_ENTRY_POINTS_H

#include "harness.h"

typedef onepass_status kl_entry(onepass_handle *handle, const onepass_tensor *predictions,
                                const onepass_tensor *targets, const onepass_kl_options *options,
                                const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                const onepass_tensor *grad_targets);

/* The entry point of that operator. */
onepass_status entry_point(onepass_handle *handle, const onepass_operator *op, const onepass_tensor *const *tensors,
                           const double *options, void *workspace, size_t workspace_size);

/* Its question for the size of the workspace. */
onepass_status entry_point_size(onepass_handle *handle, const onepass_operator *op,
                                const onepass_tensor *const *tensors, const double *options, size_t *bytes);

/* An entry point of KL divergence with its arguments as arrays. */
onepass_status entry_point_kl(kl_entry *entry, onepass_handle *handle, const onepass_tensor *const *tensors,
                              const double *options, void *workspace, size_t workspace_size);

#endif
