/*
 * The entry points of KL divergence: its description, its own rules, and the problem its kernels compute. The rules
 * that hold for every tensor are checked by core/operator.c.
 */
#include <math.h>
#include <stddef.h>

#include "core/operator.h"
#include "core/status.h"
#include "core/versioned.h"
#include "kl/kl.h"

/* ---- the description --------------------------------------------------------------------------------------------- */

enum {
    PREDICTIONS,
    TARGETS,
    ROW_WEIGHTS,
    ROW_MASK,
    GRAD_VALUE,
    GRAD_MADE_FOR,
    VALUE,
    GRAD_PREDICTIONS,
    GRAD_TARGETS,
    ARGUMENTS
};
enum { REDUCTION, SEMANTICS, DIVISOR, OPTIONS };

/* One value, one per row or one per element. */
static const char *const value_shapes[] = {
    [ONEPASS_BATCHMEAN] = "", [ONEPASS_MEAN] = "",   [ONEPASS_SUM] = "",
    [ONEPASS_ROWS] = "*",     [ONEPASS_NONE] = "*C", [ONEPASS_DIVISOR] = "",
};

static const onep_argument arguments[ARGUMENTS] = {
    [PREDICTIONS] = {.info = {"predictions", "*C", ONEPASS_READ, 1},
                     .flags = ONEP_SIZES | ONEP_PROMOTES | ONEP_OR_SCALAR},
    [TARGETS] = {.info = {"targets", "*C", ONEPASS_READ, 1}, .flags = ONEP_PROMOTES},
    [ROW_WEIGHTS] = {.info = {"row_weights", "*", ONEPASS_READ, 0}},
    [ROW_MASK] = {.info = {"row_mask", "*", ONEPASS_READ, 0}, .type = ONEP_MASK},
    [GRAD_VALUE] = {.info = {"grad_value", NULL, ONEPASS_READ, 0}, .shapes = value_shapes, .by = REDUCTION},
    [GRAD_MADE_FOR] = {.info = {"grad_made_for", "", ONEPASS_READ, 0}},
    [VALUE] = {.info = {"value", NULL, ONEPASS_WRITTEN, 0},
               .type = ONEP_HOLDS_PROMOTED,
               .flags = ONEP_IN_PLACE,
               .shapes = value_shapes,
               .by = REDUCTION},
    [GRAD_PREDICTIONS] = {.info = {"grad_predictions", "*C", ONEPASS_WRITTEN, 0},
                          .type = ONEP_LIKE,
                          .like = PREDICTIONS,
                          .flags = ONEP_IN_PLACE},
    [GRAD_TARGETS] = {.info = {"grad_targets", "*C", ONEPASS_WRITTEN, 0},
                      .type = ONEP_LIKE,
                      .like = TARGETS,
                      .flags = ONEP_IN_PLACE},
};

static const onep_option options[OPTIONS] = {
    [REDUCTION] = {.info = {"options.reduction", ONEPASS_DIVISOR + 1}, .rule = "one of onepass_reduction"},
    [SEMANTICS] = {.info = {"options.semantics", ONEPASS_FINITE + 1}, .rule = "one of onepass_semantics"},
    [DIVISOR] = {.info = {"options.divisor", 0}, .rule = NULL},
};

static onepass_status solve(onep_call *call);

ONEP_DECLARE_KERNELS(onep_kl);

#define KL(form_name, form)                                                                                            \
    const onep_operator onep_##form_name = {.name = #form_name,                                                        \
                                            .arguments = arguments,                                                    \
                                            .argument_count = ARGUMENTS,                                               \
                                            .options = options,                                                        \
                                            .option_count = OPTIONS,                                                   \
                                            .workspace = "options.workspace",                                          \
                                            .variant = form,                                                           \
                                            .solve = solve,                                                            \
                                            .kernels = ONEP_KERNELS(onep_kl)}
KL(kl_probs_probs, ONEP_KL_PROBS_PROBS);
KL(kl_log_probs_probs, ONEP_KL_LOG_PROBS_PROBS);
KL(kl_probs_log_probs, ONEP_KL_PROBS_LOG_PROBS);
KL(kl_log_probs_log_probs, ONEP_KL_LOG_PROBS_LOG_PROBS);

/* ---- rules of its own -------------------------------------------------------------------------------------------- */

static onepass_status check_divisor(const onep_call *call)
{
    double divisor = call->options[DIVISOR];
    int is_used = (int)call->options[REDUCTION] == ONEPASS_DIVISOR;
    if (is_used && (!isfinite(divisor) || divisor == 0))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.divisor: %g; it must be finite and not 0", call->name,
                         divisor);
    if (!is_used && divisor != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: options.divisor: %g; only reduction ONEPASS_DIVISOR takes one, it must be 0 otherwise",
                         call->name, divisor);
    return ONEPASS_OK;
}

static onepass_status check_made_for(const onep_call *call)
{
    int reduction = (int)call->options[REDUCTION];
    if (!call->tensors[GRAD_MADE_FOR])
        return ONEPASS_OK;
    if (reduction == ONEPASS_ROWS || reduction == ONEPASS_NONE)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: grad_made_for: given with reduction %d; it goes with the reductions to one value",
                         call->name, reduction);
    if (call->tensors[VALUE])
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: grad_made_for: given with value; it is for gradients alone",
                         call->name);
    return ONEPASS_OK;
}

/* ---- the problem ------------------------------------------------------------------------------------------------- */

/* What the sum of all rows is divided by. */
static double divisor_of(const onep_call *call)
{
    const onepass_tensor *predictions = call->tensors[PREDICTIONS];
    switch ((int)call->options[REDUCTION]) {
    case ONEPASS_BATCHMEAN:
        return predictions->ndim > 0 ? (double)predictions->shape[0] : 1;
    case ONEPASS_MEAN:
        return (double)onep_elements(predictions);
    case ONEPASS_DIVISOR:
        return call->options[DIVISOR];
    default:
        return 1;
    }
}

static onepass_status solve(onep_call *call)
{
    onepass_status status = check_divisor(call);
    if (status == ONEPASS_OK)
        status = check_made_for(call);
    if (status != ONEPASS_OK)
        return status;
    onep_kl_problem problem = {
        .form = (onep_kl_form)call->op->variant,
        .semantics = (onepass_semantics)call->options[SEMANTICS],
        .reduction = (onepass_reduction)call->options[REDUCTION],
        .divisor = divisor_of(call),
        .rows = onep_rows_of(call->tensors[PREDICTIONS]),
        .columns = onep_extent(call, 'C'),
        .predictions = onep_call_operand(call, PREDICTIONS),
        .targets = onep_call_operand(call, TARGETS),
        .value = onep_call_operand(call, VALUE),
        .grad_predictions = onep_call_operand(call, GRAD_PREDICTIONS),
        .grad_targets = onep_call_operand(call, GRAD_TARGETS),
        .grad_value = onep_call_operand(call, GRAD_VALUE),
        .grad_made_for = onep_call_operand(call, GRAD_MADE_FOR),
        .weights = onep_call_operand(call, ROW_WEIGHTS),
        .mask = onep_call_operand(call, ROW_MASK),
    };
    /* Rows without columns are 0, and need a visit only if each is to be stored: there may be 10^12 of them. */
    int stores_rows = problem.reduction == ONEPASS_ROWS && (problem.value.data || call->bytes);
    if (problem.columns == 0 && !stores_rows)
        problem.rows.count = 0;
    return onep_execute(call, &problem);
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* onepass_kl_options as first published: up to workspace_size. */
enum { FIRST_OPTIONS_SIZE = offsetof(onepass_kl_options, workspace_size) + sizeof(size_t) };

static onepass_status read_options(onep_call *call, const onepass_kl_options *given)
{
    static const onepass_kl_options defaults = {.size = sizeof defaults};
    onepass_kl_options o;
    onepass_status status =
        onep_read_versioned(call->name, "options", given ? given : &defaults, FIRST_OPTIONS_SIZE, &o, sizeof o);
    if (status != ONEPASS_OK)
        return status;
    call->options[REDUCTION] = (int)o.reduction;
    call->options[SEMANTICS] = (int)o.semantics;
    call->options[DIVISOR] = o.divisor;
    call->tensors[ROW_WEIGHTS] = o.row_weights;
    call->tensors[ROW_MASK] = o.row_mask;
    call->tensors[GRAD_VALUE] = o.grad_value;
    call->tensors[GRAD_MADE_FOR] = o.grad_made_for;
    call->workspace = o.workspace;
    call->workspace_size = o.workspace_size;
    return ONEPASS_OK;
}

static onepass_status kl(const onep_operator *op, onepass_handle *handle, const onepass_tensor *predictions,
                         const onepass_tensor *targets, const onepass_kl_options *given, const onepass_tensor *value,
                         const onepass_tensor *grad_predictions, const onepass_tensor *grad_targets)
{
    onep_call call = {.op = op,
                      .name = op->name,
                      .handle = handle,
                      .tensors = {[PREDICTIONS] = predictions,
                                  [TARGETS] = targets,
                                  [VALUE] = value,
                                  [GRAD_PREDICTIONS] = grad_predictions,
                                  [GRAD_TARGETS] = grad_targets}};
    onepass_status status = read_options(&call, given);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_kl_probs_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                      const onepass_tensor *targets, const onepass_kl_options *given,
                                      const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                      const onepass_tensor *grad_targets)
{
    return kl(&onep_kl_probs_probs, handle, predictions, targets, given, value, grad_predictions, grad_targets);
}

onepass_status onepass_kl_log_probs_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                          const onepass_tensor *targets, const onepass_kl_options *given,
                                          const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                          const onepass_tensor *grad_targets)
{
    return kl(&onep_kl_log_probs_probs, handle, predictions, targets, given, value, grad_predictions, grad_targets);
}

onepass_status onepass_kl_probs_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                          const onepass_tensor *targets, const onepass_kl_options *given,
                                          const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                          const onepass_tensor *grad_targets)
{
    return kl(&onep_kl_probs_log_probs, handle, predictions, targets, given, value, grad_predictions, grad_targets);
}

onepass_status onepass_kl_log_probs_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                              const onepass_tensor *targets, const onepass_kl_options *given,
                                              const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                              const onepass_tensor *grad_targets)
{
    return kl(&onep_kl_log_probs_log_probs, handle, predictions, targets, given, value, grad_predictions, grad_targets);
}

onepass_status onepass_kl_workspace_size(onepass_handle *handle, const onepass_tensor *predictions,
                                         const onepass_kl_options *given, size_t *bytes)
{
    onep_call call = {.op = &onep_kl_probs_probs,
                      .name = "kl_workspace_size",
                      .handle = handle,
                      .tensors = {[PREDICTIONS] = predictions}};
    if (!bytes)
        return onep_missing(call.name, "bytes");
    onepass_status status = read_options(&call, given);
    if (status != ONEPASS_OK)
        return status;
    call.bytes = bytes;
    for (int i = TARGETS; i < ARGUMENTS; i++) /* the size depends on the shape and the options alone */
        call.tensors[i] = NULL;
    return onep_call_run(&call);
}
