/*
 * The entry points of divergences and cross-entropy from logits: their descriptions, their own rules, and the problem
 * their kernels compute. The rules that hold for every tensor are checked by core/operator.c.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/operator.h"
#include "core/status.h"
#include "core/versioned.h"
#include "logits/describe.h"
#include "logits/logits.h"
#include "logits/top_k.h"

/* ---- the descriptions -------------------------------------------------------------------------------------------- */

/* A teacher of k columns has others in place of targets. */
enum { TOP_INDICES = TARGETS + 1, TOP_K_ARGUMENTS };
enum { TOP_VALUES = DIVERGENCE_OPTIONS, OUTSIDE, TOP_K_OPTIONS };

const char *const onep_logits_value_shapes[] = {
    [ONEPASS_BATCHMEAN] = "", [ONEPASS_MEAN] = "",    [ONEPASS_SUM] = "",   [ONEPASS_ROWS] = "*",
    [ONEPASS_NONE] = "",      [ONEPASS_DIVISOR] = "", [ONEPASS_VALID] = "",
};

static const onep_argument cross_entropy_arguments[CROSS_ENTROPY_ARGUMENTS] = {PREDICTIONS_ARGUMENTS("labels", 1)};

static const onep_argument divergence_arguments[DIVERGENCE_ARGUMENTS] = {
    PREDICTIONS_ARGUMENTS("options.labels", 0),
    TARGETS_ARGUMENTS(1),
};

static const onep_argument top_k_arguments[TOP_K_ARGUMENTS] = {
    PREDICTIONS_ARGUMENTS("options.labels", 0),
    [TARGETS] = {.info = {"top_values", "*K", ONEPASS_READ, 1}, .flags = ONEP_PROMOTES},
    [TOP_INDICES] = {.info = {"top_indices", "*K", ONEPASS_READ, 1}, .type = ONEP_INDEX},
};

static const onep_option options[TOP_K_OPTIONS] = {
    LOSS_OPTIONS,
    TARGET_OPTIONS,
    [TOP_VALUES] = {.info = {"options.top_values", ONEPASS_TOP_LOGITS + 1}, .rule = "one of onepass_top_values"},
    [OUTSIDE] = {.info = {"options.outside", ONEPASS_OUTSIDE_SUBSET + 1}, .rule = "one of onepass_outside"},
};

static onepass_status solve(onep_call *call);

ONEP_DECLARE_KERNELS(onep_logits);
ONEP_DECLARE_KERNELS(onep_top_k); /* those of a device: on the processor onep_logits has this too */

#define LOGITS(operator_name, list, arguments_of, options_of, form)                                                    \
    const onep_operator onep_##operator_name = {.name = #operator_name,                                                \
                                                .arguments = list,                                                     \
                                                .argument_count = arguments_of,                                        \
                                                .options = options,                                                    \
                                                .option_count = options_of,                                            \
                                                .workspace = "options.workspace",                                      \
                                                .variant = form,                                                       \
                                                .solve = solve,                                                        \
                                                .kernels = ONEP_KERNELS(onep_logits)}
LOGITS(divergence_logits_logits, divergence_arguments, DIVERGENCE_ARGUMENTS, DIVERGENCE_OPTIONS, ONEP_TARGET_LOGITS);
LOGITS(divergence_logits_probs, divergence_arguments, DIVERGENCE_ARGUMENTS, DIVERGENCE_OPTIONS, ONEP_TARGET_PROBS);
LOGITS(divergence_logits_log_probs, divergence_arguments, DIVERGENCE_ARGUMENTS, DIVERGENCE_OPTIONS,
       ONEP_TARGET_LOG_PROBS);
LOGITS(cross_entropy_logits_labels, cross_entropy_arguments, CROSS_ENTROPY_ARGUMENTS, CROSS_ENTROPY_OPTIONS,
       ONEP_NO_TARGET);

const onep_operator onep_divergence_logits_top_k = {
    .name = "divergence_logits_top_k",
    .arguments = top_k_arguments,
    .argument_count = TOP_K_ARGUMENTS,
    .options = options,
    .option_count = TOP_K_OPTIONS,
    .workspace = "options.workspace",
    .variant = ONEP_TARGET_TOP_K,
    .solve = solve,
    .kernels = {ONEP_EACH_CPU_KERNEL(onep_logits) ONEP_CUDA_KERNELS(onep_top_k)}};

/* ---- rules of their own ------------------------------------------------------------------------------------------ */

/* What the targets of this call are. */
static onep_target_form form_of(const onep_call *call)
{
    if (call->op->variant != ONEP_TARGET_OPTIONAL)
        return (onep_target_form)call->op->variant;
    return call->tensors[TARGETS] ? ONEP_TARGET_LOGITS : ONEP_NO_TARGET;
}

static onepass_status check_numbers(const onep_call *call)
{
    static const int temperatures[] = {TEMPERATURE, SOFTCAP, TARGET_TEMPERATURE, LABEL_TEMPERATURE, TARGET_SOFTCAP};
    static const int weights[] = {LABEL_WEIGHT, Z_LOSS, ENTROPY_BONUS, DIVERGENCE_WEIGHT};
    for (size_t i = 0; i < sizeof temperatures / sizeof temperatures[0]; i++) {
        double x = call->options[temperatures[i]];
        if (!(x >= 0 && isfinite(x)))
            return onep_refuse_option(call, temperatures[i], "finite and above 0, or 0 for its default");
    }
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        if (!isfinite(call->options[weights[i]]))
            return onep_refuse_option(call, weights[i], "finite");
    double smoothing = call->options[LABEL_SMOOTHING];
    if (!(smoothing >= 0 && smoothing <= 1))
        return onep_refuse_option(call, LABEL_SMOOTHING, "between 0 and 1");
    double columns = call->options[COLUMNS], width = (double)onep_extent(call, 'C');
    if (!(columns >= 0 && columns <= width && columns == floor(columns)))
        return onep_refuse_option(call, COLUMNS, "a whole number from 0 to the number of columns");
    double ignored = call->options[IGNORE_INDEX];
    if (!(fabs(ignored) < 0x1p62 && ignored == floor(ignored)))
        return onep_refuse_option(call, IGNORE_INDEX, "a whole number");
    if (call->options[HAS_IGNORE_INDEX] == 0 && ignored != 0)
        return onep_refuse_option(call, IGNORE_INDEX, "0 unless options.has_ignore_index is 1");
    return ONEPASS_OK;
}

static onepass_status check_reduction(const onep_call *call)
{
    int reduction = (int)call->options[REDUCTION];
    double divisor = call->options[DIVISOR];
    int from_memory = call->tensors[DIVISOR_TENSOR] != NULL;
    if (reduction == ONEPASS_NONE)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: options.reduction: ONEPASS_NONE; a loss from logits has one value per row, ONEPASS_ROWS",
                         call->name);
    if (reduction != ONEPASS_DIVISOR && (divisor != 0 || from_memory))
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: options.%s: given with reduction %d; only ONEPASS_DIVISOR takes one", call->name,
                         from_memory ? "divisor_tensor" : "divisor", reduction);
    if (reduction == ONEPASS_DIVISOR && from_memory && divisor != 0)
        return onep_refuse_option(call, DIVISOR, "0 where options.divisor_tensor is given");
    if (reduction == ONEPASS_DIVISOR && !from_memory && !call->bytes && (!isfinite(divisor) || divisor == 0))
        return onep_refuse_option(call, DIVISOR, "finite and not 0");
    if (!call->tensors[GRAD_MADE_FOR])
        return ONEPASS_OK;
    if (reduction == ONEPASS_ROWS)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: options.grad_made_for: given with reduction %d; it goes with the reductions to one value",
                         call->name, reduction);
    for (int i = 0; i < call->op->argument_count; i++)
        if (call->tensors[i] && call->op->arguments[i].info.role == ONEPASS_WRITTEN &&
            strncmp(call->op->arguments[i].info.name, "grad_", 5) != 0)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: options.grad_made_for: given with %s; it is for gradients alone", call->name,
                             call->op->arguments[i].info.name);
    return ONEPASS_OK;
}

static onepass_status check_divergence(const onep_call *call)
{
    int divergence = (int)call->options[DIVERGENCE];
    double mixture = call->options[MIXTURE];
    int mixes = divergence == ONEPASS_JS || divergence == ONEPASS_SKEW_KL || divergence == ONEPASS_SKEW_REVERSE_KL;
    if (mixes && !(mixture > 0 && mixture < 1))
        return onep_refuse_option(call, MIXTURE, "above 0 and below 1");
    if (!mixes && mixture != 0)
        return onep_refuse_option(call, MIXTURE, "0: this divergence has none");
    if (form_of(call) == ONEP_TARGET_LOGITS)
        return ONEPASS_OK;
    if (call->options[TARGET_TEMPERATURE] != 0)
        return onep_refuse_option(call, TARGET_TEMPERATURE, "0 where targets are not logits");
    if (call->options[TARGET_SOFTCAP] != 0)
        return onep_refuse_option(call, TARGET_SOFTCAP, "0 where targets are not logits");
    if (call->tensors[TARGET_LSE])
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: options.target_lse: given; only targets that are logits have one",
                         call->name);
    return ONEPASS_OK;
}

/* What a teacher of k columns has of divergences and targets. */
static onepass_status check_top_k(const onep_call *call)
{
    int divergence = (int)call->options[DIVERGENCE];
    if (divergence != ONEPASS_KL && divergence != ONEPASS_REVERSE_KL)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: options.divergence: %d; a teacher of k columns has ONEPASS_KL or ONEPASS_REVERSE_KL",
                         call->name, divergence);
    if (call->options[MIXTURE] != 0)
        return onep_refuse_option(call, MIXTURE, "0: this divergence has none");
    if (call->options[TARGET_TEMPERATURE] != 0 && (int)call->options[TOP_VALUES] != ONEPASS_TOP_LOGITS)
        return onep_refuse_option(call, TARGET_TEMPERATURE, "0 unless options.top_values is ONEPASS_TOP_LOGITS");
    if (call->options[TARGET_SOFTCAP] != 0)
        return onep_refuse_option(call, TARGET_SOFTCAP, "0 where targets are not logits of every column");
    if (onep_extent(call, 'K') > ONEP_TOP_K_MOST)
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: top_values: %lld columns; at most %d", call->name,
                         (long long)onep_extent(call, 'K'), (int)ONEP_TOP_K_MOST);
    return ONEPASS_OK;
}

static onepass_status check_labels(const onep_call *call)
{
    if (call->tensors[LABELS] || call->bytes)
        return ONEPASS_OK;
    if (call->options[LABEL_WEIGHT] != 0)
        return onep_refuse_option(call, LABEL_WEIGHT, "0 without options.labels");
    if (call->options[LABEL_SMOOTHING] != 0)
        return onep_refuse_option(call, LABEL_SMOOTHING, "0 without options.labels");
    if (call->tensors[CLASS_WEIGHTS])
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.class_weights: given without options.labels",
                         call->name);
    if (call->tensors[LOG_PROB])
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.log_prob: given without options.labels", call->name);
    return ONEPASS_OK;
}

/* ---- the problem ------------------------------------------------------------------------------------------------- */

static double or_default(double x, double otherwise)
{
    return x != 0 ? x : otherwise;
}

static onep_divergence_terms divergence_of(const onep_call *call)
{
    double q = call->options[MIXTURE];
    onep_divergence_terms terms = {.weight = or_default(call->options[DIVERGENCE_WEIGHT], 1)};
    switch ((int)call->options[DIVERGENCE]) {
    case ONEPASS_KL:
        terms.a = 1;
        break;
    case ONEPASS_REVERSE_KL:
        terms.b = terms.q = 1;
        break;
    case ONEPASS_JS:
        terms.a = terms.q = q;
        terms.b = 1 - q;
        break;
    case ONEPASS_SKEW_KL:
        terms.a = 1;
        terms.q = q;
        break;
    case ONEPASS_SKEW_REVERSE_KL:
        terms.b = 1;
        terms.q = 1 - q;
        break;
    default:
        terms.is_total_variation = 1;
        break;
    }
    return terms;
}

static onep_label_terms label_terms_of(const onep_call *call)
{
    double weight = call->options[LABEL_WEIGHT];
    return (onep_label_terms){
        .weight = form_of(call) == ONEP_NO_TARGET ? or_default(weight, 1) : weight,
        .smoothing = call->options[LABEL_SMOOTHING],
        .z_loss = call->options[Z_LOSS],
        .entropy_bonus = call->options[ENTROPY_BONUS],
        .ignore_index = call->options[HAS_IGNORE_INDEX] != 0 ? (int64_t)call->options[IGNORE_INDEX] : -100,
    };
}

/* What the sum of all rows is divided by, where shape and options say it. */
static double divisor_of(const onep_call *call, const onep_logits_problem *problem)
{
    switch (problem->reduction) {
    case ONEPASS_BATCHMEAN:
        return (double)call->tensors[PREDICTIONS]->shape[0];
    case ONEPASS_MEAN:
        return (double)problem->rows.count * (double)problem->columns;
    case ONEPASS_DIVISOR:
        return call->options[DIVISOR];
    default:
        return 1;
    }
}

onepass_status onep_logits_problem_of(const onep_call *call, onep_logits_problem *made)
{
    onep_target_form form = form_of(call);
    int has_targets = form != ONEP_NO_TARGET, is_top_k = form == ONEP_TARGET_TOP_K;
    onepass_status status = check_numbers(call);
    if (status == ONEPASS_OK)
        status = check_reduction(call);
    if (status == ONEPASS_OK && has_targets)
        status = is_top_k ? check_top_k(call) : check_divergence(call);
    if (status == ONEPASS_OK && has_targets)
        status = check_labels(call);
    if (status != ONEPASS_OK)
        return status;
    double temperature = or_default(call->options[TEMPERATURE], 1);
    *made = (onep_logits_problem){
        .form = form,
        .semantics = (onepass_semantics)call->options[SEMANTICS],
        .reduction = (onepass_reduction)call->options[REDUCTION],
        .label = label_terms_of(call),
        .temperature = temperature,
        .target_temperature = or_default(call->options[TARGET_TEMPERATURE], temperature),
        .label_temperature = has_targets ? or_default(call->options[LABEL_TEMPERATURE], 1) : temperature,
        .softcap = call->options[SOFTCAP],
        .target_softcap = call->options[TARGET_SOFTCAP],
        .rows = onep_rows_of(call->tensors[PREDICTIONS]),
        .width = onep_extent(call, 'C'),
        .predictions = onep_call_operand(call, PREDICTIONS),
        .labels = onep_call_operand(call, LABELS),
        .class_weights = onep_call_operand(call, CLASS_WEIGHTS),
        .weights = onep_call_operand(call, ROW_WEIGHTS),
        .mask = onep_call_operand(call, ROW_MASK),
        .grad_value = onep_call_operand(call, GRAD_VALUE),
        .grad_made_for = onep_call_operand(call, GRAD_MADE_FOR),
        .divisor_from = onep_call_operand(call, DIVISOR_TENSOR),
        .value = onep_call_operand(call, VALUE),
        .grad_predictions = onep_call_operand(call, GRAD_PREDICTIONS),
        .lse = onep_call_operand(call, LSE),
        .entropy = onep_call_operand(call, ENTROPY),
        .log_prob = onep_call_operand(call, LOG_PROB),
        .argmax = onep_call_operand(call, ARGMAX),
    };
    if (has_targets) {
        made->divergence = divergence_of(call);
        made->targets = onep_call_operand(call, TARGETS);
    }
    if (is_top_k) {
        made->top_indices = onep_call_operand(call, TOP_INDICES);
        made->top_values = (onepass_top_values)call->options[TOP_VALUES];
        made->outside = (onepass_outside)call->options[OUTSIDE];
        made->top_k = (int)onep_extent(call, 'K');
    } else if (has_targets) {
        made->grad_targets = onep_call_operand(call, GRAD_TARGETS);
        made->target_lse = onep_call_operand(call, TARGET_LSE);
        made->target_entropy = onep_call_operand(call, TARGET_ENTROPY);
    }
    made->columns = (int64_t)or_default(call->options[COLUMNS], (double)made->width);
    made->total_columns = made->columns;
    made->divisor = divisor_of(call, made);
    return ONEPASS_OK;
}

static onepass_status solve(onep_call *call)
{
    onep_logits_problem problem;
    onepass_status status = onep_logits_problem_of(call, &problem);
    return status == ONEPASS_OK ? onep_execute(call, &problem) : status;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* onepass_logits_options as first published: up to workspace_size. */
enum { FIRST_OPTIONS_SIZE = offsetof(onepass_logits_options, workspace_size) + sizeof(size_t) };

static onepass_status must_be_zero(const onep_call *call, const char *field)
{
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.%s: given; it is for divergences, and must be 0",
                     call->name, field);
}

/* What only a teacher of k columns has, and what it has not. The size of a workspace is asked for with any options. */
static onepass_status read_top_k(onep_call *call, const onepass_logits_options *o)
{
    if (call->op->variant == ONEP_TARGET_TOP_K) {
        call->options[TOP_VALUES] = (int)o->top_values;
        call->options[OUTSIDE] = (int)o->outside;
        const char *field = o->target_lse ? "target_lse" : o->target_entropy ? "target_entropy" : NULL;
        return field ? onep_fail(ONEPASS_UNSUPPORTED, "%s: options.%s: given; a teacher of k columns has none",
                                 call->name, field)
                     : ONEPASS_OK;
    }
    const char *field = (int)o->top_values != 0 ? "top_values" : (int)o->outside != 0 ? "outside" : NULL;
    return field && !call->bytes
               ? onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.%s: given; it is for divergence_logits_top_k",
                           call->name, field)
               : ONEPASS_OK;
}

/* What only divergences have. */
static onepass_status read_divergence(onep_call *call, const onepass_logits_options *o)
{
    if (call->op->variant != ONEP_NO_TARGET) {
        call->options[DIVERGENCE] = (int)o->divergence;
        call->options[MIXTURE] = o->mixture;
        call->options[DIVERGENCE_WEIGHT] = o->divergence_weight;
        call->options[TARGET_TEMPERATURE] = o->target_temperature;
        call->options[LABEL_TEMPERATURE] = o->label_temperature;
        call->options[TARGET_SOFTCAP] = o->target_softcap;
        call->tensors[LABELS] = o->labels;
        if (call->op->variant != ONEP_TARGET_TOP_K) {
            call->tensors[TARGET_LSE] = o->target_lse;
            call->tensors[TARGET_ENTROPY] = o->target_entropy;
        }
        return ONEPASS_OK;
    }
    const char *field = (int)o->divergence != 0      ? "divergence"
                        : o->mixture != 0            ? "mixture"
                        : o->divergence_weight != 0  ? "divergence_weight"
                        : o->target_temperature != 0 ? "target_temperature"
                        : o->label_temperature != 0  ? "label_temperature"
                        : o->target_softcap != 0     ? "target_softcap"
                        : o->labels                  ? "labels"
                        : o->target_lse              ? "target_lse"
                        : o->target_entropy          ? "target_entropy"
                                                     : NULL;
    return field ? must_be_zero(call, field) : ONEPASS_OK;
}

onepass_status onep_logits_read_options(onep_call *call, const onepass_logits_options *given, double *chunk_bytes)
{
    static const onepass_logits_options defaults = {.size = sizeof defaults};
    onepass_logits_options o;
    onepass_status status =
        onep_read_versioned(call->name, "options", given ? given : &defaults, FIRST_OPTIONS_SIZE, &o, sizeof o);
    if (status != ONEPASS_OK)
        return status;
    if (chunk_bytes)
        *chunk_bytes = (double)o.chunk_bytes;
    else if (o.chunk_bytes != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: options.chunk_bytes: given; it is for losses from hidden states", call->name);
    call->options[REDUCTION] = (int)o.reduction;
    call->options[SEMANTICS] = (int)o.semantics;
    call->options[DIVISOR] = o.divisor;
    call->options[TEMPERATURE] = o.temperature;
    call->options[SOFTCAP] = o.softcap;
    call->options[COLUMNS] = (double)o.columns;
    call->options[HAS_IGNORE_INDEX] = o.has_ignore_index;
    call->options[IGNORE_INDEX] = (double)o.ignore_index;
    call->options[LABEL_WEIGHT] = o.label_weight;
    call->options[LABEL_SMOOTHING] = o.label_smoothing;
    call->options[Z_LOSS] = o.z_loss;
    call->options[ENTROPY_BONUS] = o.entropy_bonus;
    call->tensors[CLASS_WEIGHTS] = o.class_weights;
    call->tensors[ROW_WEIGHTS] = o.row_weights;
    call->tensors[ROW_MASK] = o.row_mask;
    call->tensors[GRAD_VALUE] = o.grad_value;
    call->tensors[GRAD_MADE_FOR] = o.grad_made_for;
    call->tensors[DIVISOR_TENSOR] = o.divisor_tensor;
    call->tensors[LSE] = o.lse;
    call->tensors[ENTROPY] = o.entropy;
    call->tensors[LOG_PROB] = o.log_prob;
    call->tensors[ARGMAX] = o.argmax;
    call->workspace = o.workspace;
    call->workspace_size = o.workspace_size;
    if (call->op->variant == ONEP_TARGET_OPTIONAL) {
        call->options[FIRST_COLUMN] = (double)o.first_column;
        call->options[TOTAL_COLUMNS] = (double)o.total_columns;
    } else if (o.first_column != 0 || o.total_columns != 0) {
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.%s: given; it is for shards", call->name,
                         o.first_column != 0 ? "first_column" : "total_columns");
    }
    status = read_top_k(call, &o);
    return status == ONEPASS_OK ? read_divergence(call, &o) : status;
}

static onepass_status divergence(const onep_operator *op, onepass_handle *handle, const onepass_tensor *predictions,
                                 const onepass_tensor *targets, const onepass_logits_options *given,
                                 const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                 const onepass_tensor *grad_targets)
{
    onep_call call = {.op = op,
                      .name = op->name,
                      .handle = handle,
                      .tensors = {[PREDICTIONS] = predictions,
                                  [TARGETS] = targets,
                                  [VALUE] = value,
                                  [GRAD_PREDICTIONS] = grad_predictions,
                                  [GRAD_TARGETS] = grad_targets}};
    onepass_status status = onep_logits_read_options(&call, given, NULL);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_divergence_logits_logits(onepass_handle *handle, const onepass_tensor *predictions,
                                                const onepass_tensor *targets, const onepass_logits_options *given,
                                                const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                                const onepass_tensor *grad_targets)
{
    return divergence(&onep_divergence_logits_logits, handle, predictions, targets, given, value, grad_predictions,
                      grad_targets);
}

onepass_status onepass_divergence_logits_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                               const onepass_tensor *targets, const onepass_logits_options *given,
                                               const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                               const onepass_tensor *grad_targets)
{
    return divergence(&onep_divergence_logits_probs, handle, predictions, targets, given, value, grad_predictions,
                      grad_targets);
}

onepass_status onepass_divergence_logits_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                   const onepass_tensor *targets, const onepass_logits_options *given,
                                                   const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                                   const onepass_tensor *grad_targets)
{
    return divergence(&onep_divergence_logits_log_probs, handle, predictions, targets, given, value, grad_predictions,
                      grad_targets);
}

onepass_status onepass_divergence_logits_top_k(onepass_handle *handle, const onepass_tensor *predictions,
                                               const onepass_tensor *top_values, const onepass_tensor *top_indices,
                                               const onepass_logits_options *given, const onepass_tensor *value,
                                               const onepass_tensor *grad_predictions)
{
    onep_call call = {.op = &onep_divergence_logits_top_k,
                      .name = onep_divergence_logits_top_k.name,
                      .handle = handle,
                      .tensors = {[PREDICTIONS] = predictions,
                                  [TARGETS] = top_values,
                                  [TOP_INDICES] = top_indices,
                                  [VALUE] = value,
                                  [GRAD_PREDICTIONS] = grad_predictions}};
    onepass_status status = onep_logits_read_options(&call, given, NULL);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_cross_entropy_logits_labels(onepass_handle *handle, const onepass_tensor *predictions,
                                                   const onepass_tensor *labels, const onepass_logits_options *given,
                                                   const onepass_tensor *value, const onepass_tensor *grad_predictions)
{
    onep_call call = {
        .op = &onep_cross_entropy_logits_labels,
        .name = onep_cross_entropy_logits_labels.name,
        .handle = handle,
        .tensors = {
            [PREDICTIONS] = predictions, [LABELS] = labels, [VALUE] = value, [GRAD_PREDICTIONS] = grad_predictions}};
    onepass_status status = onep_logits_read_options(&call, given, NULL);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_logits_workspace_size(onepass_handle *handle, const onepass_tensor *predictions,
                                             const onepass_logits_options *given, size_t *bytes)
{
    onep_call call = {.op = &onep_divergence_logits_logits,
                      .name = "logits_workspace_size",
                      .handle = handle,
                      .tensors = {[PREDICTIONS] = predictions}};
    if (!bytes)
        return onep_missing(call.name, "bytes");
    call.bytes = bytes;
    onepass_status status = onep_logits_read_options(&call, given, NULL);
    if (status != ONEPASS_OK)
        return status;
    for (int i = 0; i < DIVERGENCE_ARGUMENTS; i++) /* the size depends on the shape and the options alone */
        if (i != PREDICTIONS)
            call.tensors[i] = NULL;
    return onep_call_run(&call);
}
