/* One name for the four KL entries. See kl_call.h. */
#include "kl_call.h"

#include "device_memory.h"
#include "handle.h"

typedef onepass_status kl_entry(onepass_handle *, const onepass_tensor *, const onepass_tensor *,
                                const onepass_kl_options *, const onepass_tensor *, const onepass_tensor *,
                                const onepass_tensor *);

static kl_entry *entry_of(kl_forms forms)
{
    static kl_entry *const entries[2][2] = {
        {onepass_kl_probs_probs, onepass_kl_probs_log_probs},
        {onepass_kl_log_probs_probs, onepass_kl_log_probs_log_probs},
    };
    return entries[forms.log_predictions][forms.log_targets];
}

onepass_status kl_call_in_place(kl_forms forms, onepass_handle *handle, const onepass_tensor *predictions,
                                const onepass_tensor *targets, const onepass_kl_options *options,
                                const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                const onepass_tensor *grad_targets)
{
    return entry_of(forms)(handle, predictions, targets, options, value, grad_predictions, grad_targets);
}

/* ---- on a device ------------------------------------------------------------------------------------------------- */

enum { PREDICTIONS, TARGETS, WEIGHTS, MASK, GRAD_VALUE, GRAD_MADE_FOR, VALUE, GRAD_PREDICTIONS, GRAD_TARGETS, TENSORS };

typedef struct kl_context {
    kl_entry *entry;
    onepass_kl_options options;
} kl_context;

static onepass_status size_there(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                 size_t *bytes)
{
    onepass_kl_options *options = &((kl_context *)context)->options;
    options->row_weights = there[WEIGHTS];
    options->row_mask = there[MASK];
    options->grad_value = there[GRAD_VALUE];
    options->grad_made_for = there[GRAD_MADE_FOR];
    return onepass_kl_workspace_size(handle, there[PREDICTIONS], options, bytes);
}

static onepass_status run_there(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                void *workspace, size_t bytes)
{
    kl_context *call = context;
    call->options.workspace = workspace;
    call->options.workspace_size = bytes;
    return call->entry(handle, there[PREDICTIONS], there[TARGETS], &call->options, there[VALUE],
                       there[GRAD_PREDICTIONS], there[GRAD_TARGETS]);
}

onepass_status kl_call(kl_forms forms, onepass_handle *handle, const onepass_tensor *predictions,
                       const onepass_tensor *targets, const onepass_kl_options *options, const onepass_tensor *value,
                       const onepass_tensor *grad_predictions, const onepass_tensor *grad_targets)
{
    if (!handle->cuda)
        return kl_call_in_place(forms, handle, predictions, targets, options, value, grad_predictions, grad_targets);
    static const device_work work = {"kl", size_there, run_there};
    kl_context call = {entry_of(forms), {.size = sizeof call.options}};
    if (options)
        call.options = *options;
    device_copy copies[TENSORS] = {
        [PREDICTIONS] = device_reads("predictions", predictions),
        [TARGETS] = device_reads("targets", targets),
        [WEIGHTS] = device_reads("row_weights", call.options.row_weights),
        [MASK] = device_reads("row_mask", call.options.row_mask),
        [GRAD_VALUE] = device_reads("grad_value", call.options.grad_value),
        [GRAD_MADE_FOR] = device_writes("grad_made_for", call.options.grad_made_for),
        [VALUE] = device_writes("value", value),
        [GRAD_PREDICTIONS] = device_writes("grad_predictions", grad_predictions),
        [GRAD_TARGETS] = device_writes("grad_targets", grad_targets),
    };
    return device_call(handle, &work, &call, copies, TENSORS);
}
