/* One name for the four KL entries. See kl_call.h. */
#include "kl_call.h"

#include "device_memory.h"
#include "handle.h"

static device_kl_entry *entry_of(kl_forms forms)
{
    static device_kl_entry *const entries[2][2] = {
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

onepass_status kl_call(kl_forms forms, onepass_handle *handle, const onepass_tensor *predictions,
                       const onepass_tensor *targets, const onepass_kl_options *options, const onepass_tensor *value,
                       const onepass_tensor *grad_predictions, const onepass_tensor *grad_targets)
{
    if (handle->cuda)
        return device_kl_call(entry_of(forms), handle, predictions, targets, options, value, grad_predictions,
                              grad_targets);
    return kl_call_in_place(forms, handle, predictions, targets, options, value, grad_predictions, grad_targets);
}
