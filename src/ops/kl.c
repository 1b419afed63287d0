/*
 * The door of KL divergence: every check on its arguments, the problem the kernels compute, one call through the table.
 * Nothing is written unless every check has passed. Below this file no argument is wrong.
 */
#include <math.h>

#include "handle.h"
#include "status.h"
#include "versioned.h"

static const char *const operator_names[ONEP_KL_FORMS] = {
    [ONEP_KL_PROBS_PROBS] = "kl_probs_probs",
    [ONEP_KL_LOG_PROBS_PROBS] = "kl_log_probs_probs",
    [ONEP_KL_PROBS_LOG_PROBS] = "kl_probs_log_probs",
    [ONEP_KL_LOG_PROBS_LOG_PROBS] = "kl_log_probs_log_probs",
};

/* One argument that is a tensor, with all the door needs to know about it. */
typedef struct argument {
    const char *name;
    const onepass_tensor *tensor; /* NULL: not given */
    onep_shape_kind shape;
    int is_mask;     /* bytes, not floating point */
    int is_output;   /* written; may coincide with an input of ELEMENTS shape */
    onep_type type;  /* the exact type an output must have; ONEP_NO_TYPE: see holds */
    onep_type holds; /* the type an output must be able to hold */
} argument;

enum {
    PREDICTIONS,
    TARGETS,
    WEIGHTS,
    MASK,
    GRAD_VALUE,
    GRAD_MADE_FOR,
    VALUE,
    GRAD_PREDICTIONS,
    GRAD_TARGETS,
    ARGUMENTS
};

/* onepass_kl_options as first published: up to workspace_size. */
enum { FIRST_OPTIONS_SIZE = offsetof(onepass_kl_options, workspace_size) + sizeof(size_t) };

static onepass_status check_options(const char *op, const onepass_kl_options *options)
{
    if ((unsigned)options->reduction > ONEPASS_DIVISOR)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.reduction: %d; it must be one of onepass_reduction", op,
                         (int)options->reduction);
    if ((unsigned)options->semantics > ONEPASS_FINITE)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.semantics: %d; it must be one of onepass_semantics", op,
                         (int)options->semantics);
    if (options->reduction == ONEPASS_DIVISOR && (!isfinite(options->divisor) || options->divisor == 0))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.divisor: %g; it must be finite and not 0", op,
                         options->divisor);
    if (options->reduction != ONEPASS_DIVISOR && options->divisor != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: options.divisor: %g; only reduction ONEPASS_DIVISOR takes one, it must be 0 otherwise",
                         op, options->divisor);
    return ONEPASS_OK;
}

/* The caller's options, or the defaults, checked as far as they can be without the tensors. */
static onepass_status read_options(const char *op, const onepass_kl_options *given, onepass_kl_options *options)
{
    static const onepass_kl_options defaults = {.size = sizeof defaults};
    onepass_status status =
        onep_read_versioned(op, "options", given ? given : &defaults, FIRST_OPTIONS_SIZE, options, sizeof *options);
    return status == ONEPASS_OK ? check_options(op, options) : status;
}

static onepass_status check_type(const char *op, const argument *a)
{
    onep_type type = onep_type_of(a->tensor->dtype);
    const char *name = onep_type_name(type);
    if (a->is_mask && type != ONEP_BYTE)
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: %s: dtype %s; a mask is bool or uint8", op, a->name, name);
    if (!a->is_mask && type >= ONEP_FLOAT_TYPES)
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: %s: dtype %s; it must be float16, bfloat16, float32 or float64", op,
                         a->name, name);
    if (a->type != ONEP_NO_TYPE && type != a->type)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: dtype %s; it must be %s, the dtype of the input it belongs to", op, a->name, name,
                         onep_type_name(a->type));
    if (a->holds != ONEP_NO_TYPE && !onep_type_holds(type, a->holds))
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: %s: dtype %s; it must hold %s, the promoted dtype of the inputs", op, a->name, name,
                         onep_type_name(a->holds));
    return ONEPASS_OK;
}

static onepass_status check_overlaps(const char *op, const argument *arguments)
{
    for (int out = 0; out < ARGUMENTS; out++) {
        const argument *a = &arguments[out];
        if (!a->is_output || !a->tensor)
            continue;
        onepass_status status = onep_writable_check(op, a->name, a->tensor);
        for (int in = 0; in < ARGUMENTS && status == ONEPASS_OK; in++) {
            const argument *b = &arguments[in];
            if (in == out || !b->tensor || (b->is_output && in > out))
                continue;
            /* In place is safe between element-wise tensors: an element is written after its inputs were read. */
            int same_allowed = !b->is_output && a->shape == ONEP_PER_ELEMENT && b->shape == ONEP_PER_ELEMENT;
            status = onep_overlap_check(op, a->name, a->tensor, b->name, b->tensor, same_allowed);
        }
        if (status != ONEPASS_OK)
            return status;
    }
    return ONEPASS_OK;
}

static onepass_status check_tensors(const char *op, const onepass_handle *handle, argument *arguments)
{
    const onepass_tensor *predictions = arguments[PREDICTIONS].tensor;
    for (int i = 0; i < ARGUMENTS; i++) {
        argument *a = &arguments[i];
        if (!a->tensor)
            continue;
        onepass_status status = onep_tensor_check(op, a->name, a->tensor, handle->device);
        if (status == ONEPASS_OK)
            status = check_type(op, a);
        if (status == ONEPASS_OK && i != PREDICTIONS)
            status = onep_shape_check(op, a->name, a->tensor, a->shape, predictions);
        if (status != ONEPASS_OK)
            return status;
        if (i == TARGETS) { /* now both input types are known, and with them the types of the outputs */
            onep_type prediction_type = onep_type_of(predictions->dtype);
            onep_type target_type = onep_type_of(a->tensor->dtype);
            arguments[VALUE].holds = onep_promote(prediction_type, target_type);
            arguments[GRAD_PREDICTIONS].type = prediction_type;
            arguments[GRAD_TARGETS].type = target_type;
        }
    }
    return check_overlaps(op, arguments);
}

/* What the sum of all rows is divided by. */
static double divisor_of(const onepass_kl_options *options, const onepass_tensor *predictions)
{
    switch (options->reduction) {
    case ONEPASS_BATCHMEAN:
        return predictions->ndim > 0 ? (double)predictions->shape[0] : 1;
    case ONEPASS_MEAN:
        return (double)onep_elements(predictions);
    case ONEPASS_DIVISOR:
        return options->divisor;
    default:
        return 1;
    }
}

/* The rules of grad_made_for that go beyond those of any tensor. */
static onepass_status check_made_for(const char *op, const onepass_kl_options *options, const onepass_tensor *value)
{
    if (!options->grad_made_for)
        return ONEPASS_OK;
    if (options->reduction == ONEPASS_ROWS || options->reduction == ONEPASS_NONE)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: grad_made_for: given with reduction %d; it goes with the reductions to one value", op,
                         (int)options->reduction);
    if (value)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: grad_made_for: given with value; it is for gradients alone",
                         op);
    return ONEPASS_OK;
}

/* A GPU's kernels load whole elements from its own memory: what the host could still reach would fault there. */
static onepass_status check_on_cuda(const char *op, const onepass_handle *handle, const argument *arguments)
{
    for (int i = 0; i < ARGUMENTS; i++) {
        const argument *a = &arguments[i];
        if (!a->tensor || onep_elements(a->tensor) == 0)
            continue;
        const char *first = (const char *)a->tensor->data + a->tensor->byte_offset;
        size_t size = onep_type_size(onep_type_of(a->tensor->dtype));
        if ((uintptr_t)first % size != 0)
            return onep_fail(ONEPASS_UNSUPPORTED,
                             "%s: %s: address %p; on a CUDA device it must be a multiple of the element's %zu bytes",
                             op, a->name, (const void *)first, size);
        onepass_status status = onep_cuda_pointer_check(handle->cuda, op, a->name, first);
        if (status != ONEPASS_OK)
            return status;
    }
    return ONEPASS_OK;
}

enum { WORKSPACE_ALIGNMENT = 256 };

/* The workspace a GPU's kernels are to use: large enough, aligned, on the device, and nobody else's memory. */
static onepass_status check_workspace(const char *op, const onepass_handle *handle, const argument *arguments,
                                      const onep_kl_problem *problem)
{
    static const char name[] = "options.workspace";
    size_t needed = onep_kl_cuda_workspace(problem);
    if (needed == 0)
        return ONEPASS_OK;
    if (!problem->workspace || problem->workspace_size < needed)
        return onep_fail(ONEPASS_WORKSPACE,
                         "%s: %s: %zu bytes at %p; this problem needs %zu, see onepass_kl_workspace_size", op, name,
                         problem->workspace_size, problem->workspace, needed);
    if ((uintptr_t)problem->workspace % WORKSPACE_ALIGNMENT != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: address %p; it must be a multiple of %d", op, name,
                         problem->workspace, WORKSPACE_ALIGNMENT);
    onepass_status status = onep_cuda_pointer_check(handle->cuda, op, name, problem->workspace);
    int64_t bytes = (int64_t)needed;
    onepass_tensor workspace = {
        .data = problem->workspace, .device = handle->device, .ndim = 1, .dtype = ONEPASS_U8, .shape = &bytes};
    for (int i = 0; i < ARGUMENTS && status == ONEPASS_OK; i++)
        if (arguments[i].tensor)
            status = onep_overlap_check(op, name, &workspace, arguments[i].name, arguments[i].tensor, 0);
    return status;
}

/* On the CPU: true if the gradients in memory are those asked for. */
static int already_made(const onep_kl_problem *k)
{
    if (!k->grad_made_for.data)
        return 0;
    double wanted = k->grad_value.data ? onep_load(k->grad_value.type, k->grad_value.data) : 1;
    return wanted == onep_load(k->grad_made_for.type, k->grad_made_for.data);
}

static onepass_status kl(onep_kl_form form, onepass_handle *handle, const onepass_tensor *predictions,
                         const onepass_tensor *targets, const onepass_kl_options *given, const onepass_tensor *value,
                         const onepass_tensor *grad_predictions, const onepass_tensor *grad_targets)
{
    const char *op = operator_names[form];
    if (!handle)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: handle: NULL; make one with onepass_create", op);
    if (!predictions || !targets)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: NULL; it is required", op,
                         predictions ? "targets" : "predictions");
    if (!value && !grad_predictions && !grad_targets)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: value, grad_predictions, grad_targets: all NULL; ask for at least one output", op);
    onepass_kl_options options;
    onepass_status status = read_options(op, given, &options);
    if (status != ONEPASS_OK)
        return status;

    onep_shape_kind value_shape = options.reduction == ONEPASS_NONE   ? ONEP_PER_ELEMENT
                                  : options.reduction == ONEPASS_ROWS ? ONEP_PER_ROW
                                                                      : ONEP_ONE;
    argument arguments[ARGUMENTS] = {
        [PREDICTIONS] = {"predictions", predictions, ONEP_PER_ELEMENT, 0, 0, ONEP_NO_TYPE, ONEP_NO_TYPE},
        [TARGETS] = {"targets", targets, ONEP_PER_ELEMENT, 0, 0, ONEP_NO_TYPE, ONEP_NO_TYPE},
        [WEIGHTS] = {"row_weights", options.row_weights, ONEP_PER_ROW, 0, 0, ONEP_NO_TYPE, ONEP_NO_TYPE},
        [MASK] = {"row_mask", options.row_mask, ONEP_PER_ROW, 1, 0, ONEP_NO_TYPE, ONEP_NO_TYPE},
        [GRAD_VALUE] = {"grad_value", options.grad_value, value_shape, 0, 0, ONEP_NO_TYPE, ONEP_NO_TYPE},
        [GRAD_MADE_FOR] = {"grad_made_for", options.grad_made_for, ONEP_ONE, 0, 0, ONEP_NO_TYPE, ONEP_NO_TYPE},
        [VALUE] = {"value", value, value_shape, 0, 1, ONEP_NO_TYPE, ONEP_NO_TYPE},
        [GRAD_PREDICTIONS] = {"grad_predictions", grad_predictions, ONEP_PER_ELEMENT, 0, 1, ONEP_NO_TYPE, ONEP_NO_TYPE},
        [GRAD_TARGETS] = {"grad_targets", grad_targets, ONEP_PER_ELEMENT, 0, 1, ONEP_NO_TYPE, ONEP_NO_TYPE},
    };
    status = check_tensors(op, handle, arguments);
    if (status == ONEPASS_OK)
        status = check_made_for(op, &options, value);
    if (status != ONEPASS_OK)
        return status;

    onep_kl_problem problem = {
        .form = form,
        .semantics = options.semantics,
        .reduction = options.reduction,
        .divisor = divisor_of(&options, predictions),
        .rows = onep_rows_of(predictions),
        .columns = onep_columns(predictions),
        .predictions = onep_operand_of(predictions, ONEP_PER_ELEMENT, predictions),
        .targets = onep_operand_of(targets, ONEP_PER_ELEMENT, predictions),
        .value = onep_operand_of(value, value_shape, predictions),
        .grad_predictions = onep_operand_of(grad_predictions, ONEP_PER_ELEMENT, predictions),
        .grad_targets = onep_operand_of(grad_targets, ONEP_PER_ELEMENT, predictions),
        .grad_value = onep_operand_of(options.grad_value, value_shape, predictions),
        .grad_made_for = onep_operand_of(options.grad_made_for, ONEP_ONE, predictions),
        .weights = onep_operand_of(options.row_weights, ONEP_PER_ROW, predictions),
        .mask = onep_operand_of(options.row_mask, ONEP_PER_ROW, predictions),
        .workspace = options.workspace,
        .workspace_size = options.workspace_size,
    };
    /* Rows without columns are 0, and need a visit only if each is to be stored: there may be 10^12 of them. */
    if (problem.columns == 0 && (problem.reduction != ONEPASS_ROWS || !value))
        problem.rows.count = 0;
    if (handle->cuda) {
        status = check_on_cuda(op, handle, arguments);
        if (status == ONEPASS_OK)
            status = check_workspace(op, handle, arguments, &problem);
        if (status != ONEPASS_OK)
            return status;
    } else if (already_made(&problem)) {
        return ONEPASS_OK;
    }
    onep_type promoted = onep_promote(problem.predictions.type, problem.targets.type);
    status = handle->kernels->kl[promoted](handle, &problem);
    if (status == ONEPASS_OK && handle->progress)
        handle->progress(handle->progress_context, 1);
    return status;
}

onepass_status onepass_kl_probs_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                      const onepass_tensor *targets, const onepass_kl_options *options,
                                      const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                      const onepass_tensor *grad_targets)
{
    return kl(ONEP_KL_PROBS_PROBS, handle, predictions, targets, options, value, grad_predictions, grad_targets);
}

onepass_status onepass_kl_log_probs_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                          const onepass_tensor *targets, const onepass_kl_options *options,
                                          const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                          const onepass_tensor *grad_targets)
{
    return kl(ONEP_KL_LOG_PROBS_PROBS, handle, predictions, targets, options, value, grad_predictions, grad_targets);
}

onepass_status onepass_kl_probs_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                          const onepass_tensor *targets, const onepass_kl_options *options,
                                          const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                          const onepass_tensor *grad_targets)
{
    return kl(ONEP_KL_PROBS_LOG_PROBS, handle, predictions, targets, options, value, grad_predictions, grad_targets);
}

onepass_status onepass_kl_log_probs_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                              const onepass_tensor *targets, const onepass_kl_options *options,
                                              const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                              const onepass_tensor *grad_targets)
{
    return kl(ONEP_KL_LOG_PROBS_LOG_PROBS, handle, predictions, targets, options, value, grad_predictions,
              grad_targets);
}

onepass_status onepass_kl_workspace_size(onepass_handle *handle, const onepass_tensor *predictions,
                                         const onepass_kl_options *options, size_t *bytes)
{
    const char *op = "kl_workspace_size";
    if (!handle || !predictions || !bytes)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: NULL; it is required", op,
                         !handle        ? "handle"
                         : !predictions ? "predictions"
                                        : "bytes");
    onepass_status status = onep_tensor_check(op, "predictions", predictions, handle->device);
    onepass_kl_options known;
    if (status == ONEPASS_OK)
        status = read_options(op, options, &known);
    if (status != ONEPASS_OK)
        return status;
    if (onep_type_of(predictions->dtype) >= ONEP_FLOAT_TYPES)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: predictions: dtype %s; it must be float16, bfloat16, float32 or float64", op,
                         onep_type_name(onep_type_of(predictions->dtype)));
    onep_kl_problem problem = {
        .semantics = known.semantics,
        .reduction = known.reduction,
        .divisor = divisor_of(&known, predictions),
        .rows = onep_rows_of(predictions),
        .columns = onep_columns(predictions),
        .predictions = onep_operand_of(predictions, ONEP_PER_ELEMENT, predictions),
    };
    *bytes = handle->cuda ? onep_kl_cuda_workspace(&problem) : 0; /* the CPU keeps its partial sums on the stack */
    return ONEPASS_OK;
}
