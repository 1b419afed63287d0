/* Losses from hidden states: their descriptions, their own rules, and the problem their kernels compute. */
#include "core/operator.h"
#include "core/status.h"
#include "linear_loss/describe.h"
#include "logits/describe.h"

/* ---- the descriptions -------------------------------------------------------------------------------------------- */

/* Those of the loss from logits, with hidden states in the place of logits, and more. */
enum { INPUT = PREDICTIONS, GRAD_INPUT = GRAD_PREDICTIONS, TARGET_INPUT = TARGETS, TARGET_WEIGHT = GRAD_TARGETS };
enum {
    XENT_WEIGHT = CROSS_ENTROPY_ARGUMENTS,
    XENT_BIAS,
    XENT_GRAD_WEIGHT,
    XENT_GRAD_BIAS,
    XENT_ARGUMENTS,

    TARGET_BIAS = DIVERGENCE_ARGUMENTS,
    WEIGHT,
    BIAS,
    GRAD_WEIGHT,
    GRAD_BIAS,
    ARGUMENTS
};
enum { XENT_CHUNK_BYTES = CROSS_ENTROPY_OPTIONS, XENT_OPTIONS, CHUNK_BYTES = DIVERGENCE_OPTIONS, OPTIONS };

_Static_assert((int)ARGUMENTS <= (int)ONEP_MAX_ARGUMENTS && (int)OPTIONS <= (int)ONEP_MAX_OPTIONS, "a call holds them");

/* Where an operator has what both have. */
typedef struct places {
    int weight, bias, grad_weight, grad_bias, chunk_bytes;
} places;

static const places cross_entropy_places = {XENT_WEIGHT, XENT_BIAS, XENT_GRAD_WEIGHT, XENT_GRAD_BIAS, XENT_CHUNK_BYTES};
static const places divergence_places = {WEIGHT, BIAS, GRAD_WEIGHT, GRAD_BIAS, CHUNK_BYTES};

/* clang-format off */
#define LINEAR_ARGUMENTS(labels, labels_are_required, weight, bias, grad_weight, grad_bias)                            \
    [INPUT] = {.info = {"input", "*K", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},                         \
    LOSS_ARGUMENTS(labels, labels_are_required),                                                                       \
    [GRAD_INPUT] = {.info = {"grad_input", "*K", ONEPASS_WRITTEN, 0}},                                                 \
    [weight] = {.info = {"weight", "CK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},                       \
    [bias] = {.info = {"bias", "C", ONEPASS_READ, 0}},                                                                 \
    [grad_weight] = {.info = {"grad_weight", "CK", ONEPASS_WRITTEN, 0}},                                               \
    [grad_bias] = {.info = {"grad_bias", "C", ONEPASS_WRITTEN, 0}}
/* clang-format on */

static const onep_argument cross_entropy_arguments[XENT_ARGUMENTS] = {
    LINEAR_ARGUMENTS("labels", 1, XENT_WEIGHT, XENT_BIAS, XENT_GRAD_WEIGHT, XENT_GRAD_BIAS),
};

static const onep_argument divergence_arguments[ARGUMENTS] = {
    LINEAR_ARGUMENTS("options.labels", 0, WEIGHT, BIAS, GRAD_WEIGHT, GRAD_BIAS),
    [TARGET_INPUT] = {.info = {"target_input", "*L", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [TARGET_WEIGHT] = {.info = {"target_weight", "CL", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [TARGET_LSE] = LOSS_ROW_RESULT("target_lse"),
    [TARGET_ENTROPY] = LOSS_ROW_RESULT("target_entropy"),
    [TARGET_BIAS] = {.info = {"target_bias", "C", ONEPASS_READ, 0}},
};

static const onep_option cross_entropy_options[XENT_OPTIONS] = {
    LOSS_OPTIONS,
    [XENT_CHUNK_BYTES] = {.info = {"options.chunk_bytes", 0}},
};

static const onep_option divergence_options[OPTIONS] = {
    LOSS_OPTIONS,
    TARGET_OPTIONS,
    [CHUNK_BYTES] = {.info = {"options.chunk_bytes", 0}},
};

static onepass_status solve(onep_call *call);

ONEP_DECLARE_KERNELS(onep_linear_loss);

const onep_operator onep_linear_cross_entropy = {
    .name = "linear_cross_entropy",
    .arguments = cross_entropy_arguments,
    .argument_count = XENT_ARGUMENTS,
    .options = cross_entropy_options,
    .option_count = XENT_OPTIONS,
    .workspace = "options.workspace",
    .variant = ONEP_NO_TARGET,
    .solve = solve,
    .kernels = ONEP_KERNELS(onep_linear_loss),
};

const onep_operator onep_linear_divergence = {
    .name = "linear_divergence",
    .arguments = divergence_arguments,
    .argument_count = ARGUMENTS,
    .options = divergence_options,
    .option_count = OPTIONS,
    .workspace = "options.workspace",
    .variant = ONEP_TARGET_LOGITS,
    .solve = solve,
    .kernels = ONEP_KERNELS(onep_linear_loss),
};

/* ---- the problem ------------------------------------------------------------------------------------------------- */

static const places *places_of(const onep_call *call)
{
    return call->op->variant == ONEP_NO_TARGET ? &cross_entropy_places : &divergence_places;
}

static onepass_status solve(onep_call *call)
{
    const places *at = places_of(call);
    int64_t chunk_bytes = onep_linear_loss_chunk_bytes(call->options[at->chunk_bytes]);
    if (chunk_bytes < 0)
        return onep_refuse_option(call, at->chunk_bytes, ONEP_CHUNK_BYTES_RULE);
    onep_logits_problem loss;
    onepass_status status = onep_logits_problem_of(call, &loss);
    if (status != ONEPASS_OK)
        return status;
    onep_linear_loss_problem problem = {
        .loss = &loss,
        .rows = loss.rows,
        .width = loss.width,
        .student = onep_linear_side_of(call, INPUT, at->weight, at->bias, 'K'),
        .chunk_bytes = chunk_bytes,
        .grad_input = onep_call_operand(call, GRAD_INPUT),
        .grad_weight = onep_call_operand(call, at->grad_weight),
        .grad_bias = onep_call_operand(call, at->grad_bias),
    };
    if (onep_linear_loss_has_teacher(&problem))
        problem.teacher = onep_linear_side_of(call, TARGET_INPUT, TARGET_WEIGHT, TARGET_BIAS, 'L');
    const onep_operand absent = {.data = NULL};
    loss.predictions = loss.grad_predictions = loss.targets = loss.grad_targets = absent;
    if (loss.reduction == ONEPASS_BATCHMEAN && call->tensors[INPUT]->ndim == 1)
        loss.divisor = (double)loss.width; /* the first dimension of the logits, as of all others */
    return onep_execute(call, &problem);
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

static onepass_status run(onep_call *call, const onepass_logits_options *given)
{
    call->name = call->op->name;
    onepass_status status = onep_logits_read_options(call, given, &call->options[places_of(call)->chunk_bytes]);
    return status == ONEPASS_OK ? onep_call_run(call) : status;
}

/* The size depends on hidden states, weights, grad_weight and the options: `call` has those. */
static onepass_status ask_size(onep_call *call, const onepass_logits_options *given, size_t *bytes)
{
    onep_call with_options = *call;
    if (!bytes)
        return onep_missing(call->name, "bytes");
    with_options.bytes = bytes;
    onepass_status status =
        onep_logits_read_options(&with_options, given, &with_options.options[places_of(call)->chunk_bytes]);
    if (status != ONEPASS_OK)
        return status;
    for (int i = 0; i < ONEP_MAX_ARGUMENTS; i++)
        with_options.tensors[i] = call->tensors[i];
    return onep_call_run(&with_options);
}

onepass_status onepass_linear_cross_entropy(onepass_handle *handle, const onepass_tensor *input,
                                            const onepass_tensor *weight, const onepass_tensor *bias,
                                            const onepass_tensor *labels, const onepass_logits_options *given,
                                            const onepass_tensor *value, const onepass_tensor *grad_input,
                                            const onepass_tensor *grad_weight, const onepass_tensor *grad_bias)
{
    onep_call call = {.op = &onep_linear_cross_entropy,
                      .handle = handle,
                      .tensors = {[INPUT] = input,
                                  [XENT_WEIGHT] = weight,
                                  [XENT_BIAS] = bias,
                                  [LABELS] = labels,
                                  [VALUE] = value,
                                  [GRAD_INPUT] = grad_input,
                                  [XENT_GRAD_WEIGHT] = grad_weight,
                                  [XENT_GRAD_BIAS] = grad_bias}};
    return run(&call, given);
}

onepass_status onepass_linear_cross_entropy_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                           const onepass_tensor *weight,
                                                           const onepass_logits_options *given,
                                                           const onepass_tensor *grad_weight, size_t *bytes)
{
    onep_call call = {.op = &onep_linear_cross_entropy,
                      .name = "linear_cross_entropy_workspace_size",
                      .handle = handle,
                      .tensors = {[INPUT] = input, [XENT_WEIGHT] = weight, [XENT_GRAD_WEIGHT] = grad_weight}};
    return ask_size(&call, given, bytes);
}

onepass_status onepass_linear_divergence(onepass_handle *handle, const onepass_tensor *input,
                                         const onepass_tensor *weight, const onepass_tensor *bias,
                                         const onepass_tensor *target_input, const onepass_tensor *target_weight,
                                         const onepass_tensor *target_bias, const onepass_logits_options *given,
                                         const onepass_tensor *value, const onepass_tensor *grad_input,
                                         const onepass_tensor *grad_weight, const onepass_tensor *grad_bias)
{
    onep_call call = {.op = &onep_linear_divergence,
                      .handle = handle,
                      .tensors = {[INPUT] = input,
                                  [WEIGHT] = weight,
                                  [BIAS] = bias,
                                  [TARGET_INPUT] = target_input,
                                  [TARGET_WEIGHT] = target_weight,
                                  [TARGET_BIAS] = target_bias,
                                  [VALUE] = value,
                                  [GRAD_INPUT] = grad_input,
                                  [GRAD_WEIGHT] = grad_weight,
                                  [GRAD_BIAS] = grad_bias}};
    return run(&call, given);
}

onepass_status onepass_linear_divergence_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                        const onepass_tensor *weight,
                                                        const onepass_tensor *target_input,
                                                        const onepass_tensor *target_weight,
                                                        const onepass_logits_options *given,
                                                        const onepass_tensor *grad_weight, size_t *bytes)
{
    onep_call call = {.op = &onep_linear_divergence,
                      .name = "linear_divergence_workspace_size",
                      .handle = handle,
                      .tensors = {[INPUT] = input,
                                  [WEIGHT] = weight,
                                  [TARGET_INPUT] = target_input,
                                  [TARGET_WEIGHT] = target_weight,
                                  [GRAD_WEIGHT] = grad_weight}};
    return ask_size(&call, given, bytes);
}
