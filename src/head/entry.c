/*
 * The entry points of linear -> batch normalisation -> scale -> softmax, forward and backward: their descriptions,
 * their own rules, and the problems their kernels compute.
 */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/operator.h"
#include "core/status.h"
#include "core/versioned.h"
#include "head/entry.h"
#include "head/head.h"
#include "linear/linear.h"

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

enum {
    INPUT,
    WEIGHT,
    BIAS,
    GAMMA,
    BETA,
    SCALE,
    RUNNING_MEAN,
    RUNNING_VAR,
    BATCHES_TRACKED,
    PREPARED,
    OUTPUT,
    PRODUCT,
    MEAN,
    RSTD,
    FORWARD_ARGUMENTS
};
enum {
    STATISTICS = ONEP_HEAD_STATISTICS_OPTION,
    CUMULATIVE = ONEP_HEAD_CUMULATIVE_OPTION,
    EPS = ONEP_HEAD_EPS_OPTION,
    MOMENTUM = ONEP_HEAD_MOMENTUM_OPTION,
    FORWARD_OPTIONS
};

static const onep_argument forward_arguments[FORWARD_ARGUMENTS] = {
    [INPUT] = {.info = {"input", "BK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [WEIGHT] = {.info = {"weight", "NK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [BIAS] = {.info = {"options.bias", "N", ONEPASS_READ, 0}},
    [GAMMA] = {.info = {"options.gamma", "N", ONEPASS_READ, 0}},
    [BETA] = {.info = {"options.beta", "N", ONEPASS_READ, 0}},
    [SCALE] = {.info = {"options.scale", "N", ONEPASS_READ, 0}, .flags = ONEP_OR_ONE},
    [RUNNING_MEAN] = {.info = {"options.running_mean", "N", ONEPASS_UPDATED, 0},
                      .flags = ONEP_READ_BY,
                      .by = STATISTICS},
    [RUNNING_VAR] = {.info = {"options.running_var", "N", ONEPASS_UPDATED, 0}, .flags = ONEP_READ_BY, .by = STATISTICS},
    [BATCHES_TRACKED] = {.info = {"options.batches_tracked", "", ONEPASS_UPDATED, 0}, .type = ONEP_COUNTER},
    [PREPARED] = {.info = {"options.prepared_weight", "P", ONEPASS_READ, 0}, .type = ONEP_OPAQUE},
    [OUTPUT] = {.info = {"output", "BN", ONEPASS_WRITTEN, 1}, .type = ONEP_HOLDS_PROMOTED, .flags = ONEP_SIZES},
    [PRODUCT] = {.info = {"product", "BN", ONEPASS_WRITTEN, 0}, .type = ONEP_IS_COMPUTED},
    [MEAN] = {.info = {"mean", "N", ONEPASS_WRITTEN, 0}, .type = ONEP_HOLDS_COMPUTED},
    [RSTD] = {.info = {"rstd", "N", ONEPASS_WRITTEN, 0}, .type = ONEP_HOLDS_COMPUTED},
};

static const onep_option forward_options[FORWARD_OPTIONS] = {
    [STATISTICS] = {.info = {"options.statistics", ONEPASS_RUNNING_STATISTICS + 1},
                    .rule = "one of onepass_statistics"},
    [CUMULATIVE] = {.info = {"options.cumulative", 2}, .rule = "0 or 1"},
    [EPS] = {.info = {"options.eps", 0}, .rule = NULL},
    [MOMENTUM] = {.info = {"options.momentum", 0}, .rule = NULL},
};

const onep_argument onep_head_backward_arguments[ONEP_HEAD_SYNCHRONISED_BACKWARD_ARGUMENTS] = {
    [ONEP_HEAD_B_INPUT] = {.info = {"input", "BK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [ONEP_HEAD_B_WEIGHT] = {.info = {"weight", "NK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [ONEP_HEAD_GRAD_OUTPUT] = {.info = {"grad_output", "BN", ONEPASS_READ, 1}},
    [ONEP_HEAD_B_OUTPUT] = {.info = {"output", "BN", ONEPASS_READ, 1}},
    [ONEP_HEAD_B_PRODUCT] = {.info = {"product", "BN", ONEPASS_READ, 1}, .type = ONEP_IS_COMPUTED},
    [ONEP_HEAD_B_MEAN] = {.info = {"mean", "N", ONEPASS_READ, 1}, .type = ONEP_HOLDS_COMPUTED},
    [ONEP_HEAD_B_RSTD] = {.info = {"rstd", "N", ONEPASS_READ, 1}, .type = ONEP_HOLDS_COMPUTED},
    [ONEP_HEAD_B_BIAS] = {.info = {"options.bias", "N", ONEPASS_READ, 0}},
    [ONEP_HEAD_B_GAMMA] = {.info = {"options.gamma", "N", ONEPASS_READ, 0}},
    [ONEP_HEAD_B_BETA] = {.info = {"options.beta", "N", ONEPASS_READ, 0}},
    [ONEP_HEAD_B_SCALE] = {.info = {"options.scale", "N", ONEPASS_READ, 0}, .flags = ONEP_OR_ONE},
    [ONEP_HEAD_GRAD_INPUT] = {.info = {"gradients.input", "BK", ONEPASS_WRITTEN, 0},
                              .type = ONEP_LIKE,
                              .like = ONEP_HEAD_B_INPUT},
    [ONEP_HEAD_GRAD_WEIGHT] = {.info = {"gradients.weight", "NK", ONEPASS_WRITTEN, 0},
                               .type = ONEP_LIKE,
                               .like = ONEP_HEAD_B_WEIGHT},
    [ONEP_HEAD_GRAD_BIAS] = {.info = {"gradients.bias", "N", ONEPASS_WRITTEN, 0},
                             .type = ONEP_LIKE,
                             .like = ONEP_HEAD_B_BIAS},
    [ONEP_HEAD_GRAD_GAMMA] = {.info = {"gradients.gamma", "N", ONEPASS_WRITTEN, 0},
                              .type = ONEP_LIKE,
                              .like = ONEP_HEAD_B_GAMMA},
    [ONEP_HEAD_GRAD_BETA] = {.info = {"gradients.beta", "N", ONEPASS_WRITTEN, 0},
                             .type = ONEP_LIKE,
                             .like = ONEP_HEAD_B_BETA},
    [ONEP_HEAD_GRAD_SCALE] = {.info = {"gradients.scale", "N", ONEPASS_WRITTEN, 0},
                              .type = ONEP_LIKE,
                              .like = ONEP_HEAD_B_SCALE,
                              .flags = ONEP_OR_ONE},
    [ONEP_HEAD_COUNTS] = {.info = {"counts", "R", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
    [ONEP_HEAD_S0S] = {.info = {"s0s", "RN", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
    [ONEP_HEAD_S1S] = {.info = {"s1s", "RN", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
};

static onepass_status solve(onep_call *call);

ONEP_DECLARE_KERNELS(onep_head);
ONEP_DECLARE_KERNELS(onep_head_backward);

const onep_operator onep_head = {
    .name = "head",
    .arguments = forward_arguments,
    .argument_count = FORWARD_ARGUMENTS,
    .options = forward_options,
    .option_count = FORWARD_OPTIONS,
    .workspace = "options.workspace",
    .solve = solve,
    .kernels = ONEP_KERNELS(onep_head),
};

/* Of the forward call's options it looks at the first two alone. */
const onep_operator onep_head_backward = {
    .name = "head_backward",
    .arguments = onep_head_backward_arguments,
    .argument_count = ONEP_HEAD_BACKWARD_ARGUMENTS,
    .options = forward_options,
    .option_count = CUMULATIVE + 1,
    .workspace = "options.workspace",
    .solve = onep_head_solve_backward,
    .kernels = ONEP_KERNELS(onep_head_backward),
};

/* ---- forward ----------------------------------------------------------------------------------------------------- */

onepass_status onep_head_check_numbers(const onep_call *call)
{
    double eps = call->options[EPS], momentum = call->options[MOMENTUM];
    if (!isfinite(eps) || eps < 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.eps: %g; it must be finite and not negative",
                         call->name, eps);
    if (!isfinite(momentum))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.momentum: %g; it must be finite", call->name, momentum);
    return ONEPASS_OK;
}

onepass_status onep_head_check_running(const onep_call *call, const onepass_tensor *running_mean,
                                       const onepass_tensor *running_var, const onepass_tensor *batches_tracked)
{
    const char *op = call->name;
    double momentum = call->options[MOMENTUM];
    int cumulative = (int)call->options[CUMULATIVE];
    int keeps = running_mean || running_var;
    if (keeps && !(running_mean && running_var))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.%s: NULL beside options.%s; they go together", op,
                         running_mean ? "running_var" : "running_mean", running_mean ? "running_mean" : "running_var");
    if ((int)call->options[STATISTICS] == ONEPASS_RUNNING_STATISTICS) {
        if (!keeps)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: options.running_mean: NULL; ONEPASS_RUNNING_STATISTICS needs it and running_var", op);
        if (cumulative || momentum != 0 || batches_tracked)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: options.%s: given with ONEPASS_RUNNING_STATISTICS, which updates nothing", op,
                             cumulative        ? "cumulative"
                             : batches_tracked ? "batches_tracked"
                                               : "momentum");
        return ONEPASS_OK;
    }
    if (cumulative && momentum != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.momentum: %g; it must be 0 with options.cumulative", op,
                         momentum);
    if (cumulative && !batches_tracked)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: options.batches_tracked: NULL; options.cumulative divides by it", op);
    return ONEPASS_OK;
}

/* The rules about numbers, and about which tensors go together. */
static onepass_status check_rules(const onep_call *call)
{
    const onepass_tensor *const *t = call->tensors;
    onepass_status status = onep_head_check_numbers(call);
    if (status != ONEPASS_OK)
        return status;
    if ((!t[PRODUCT] || !t[MEAN] || !t[RSTD]) && (t[PRODUCT] || t[MEAN] || t[RSTD]))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: NULL; product, mean and rstd go together", call->name,
                         !t[PRODUCT] ? "product"
                         : !t[MEAN]  ? "mean"
                                     : "rstd");
    status = onep_head_check_running(call, t[RUNNING_MEAN], t[RUNNING_VAR], t[BATCHES_TRACKED]);
    if (status == ONEPASS_OK && (int)call->options[STATISTICS] == ONEPASS_BATCH_STATISTICS &&
        onep_extent(call, 'B') == 1)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: input: 1 row; ONEPASS_BATCH_STATISTICS need at least 2 values per feature", call->name);
    return status;
}

onepass_status onep_head_check_counter(const onep_call *call, const onepass_tensor *counter)
{
    if (call->handle->device_class || (int)call->options[CUMULATIVE] == 0)
        return ONEPASS_OK;
    int64_t count;
    memcpy(&count, (const char *)counter->data + counter->byte_offset, sizeof count);
    if (count < 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.batches_tracked: %" PRId64 "; it must not be negative",
                         call->name, count);
    if (count == INT64_MAX)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: options.batches_tracked: %" PRId64 "; it must leave room for one more", call->name,
                         count);
    return ONEPASS_OK;
}

static onepass_status solve(onep_call *call)
{
    onepass_status status = ONEPASS_OK;
    if (!call->bytes)
        status = check_rules(call);
    if (status == ONEPASS_OK && !call->bytes)
        status = onep_head_check_counter(call, call->tensors[BATCHES_TRACKED]);
    if (status == ONEPASS_OK)
        status = onep_prepared_check(call, PREPARED, WEIGHT);
    if (status != ONEPASS_OK)
        return status;
    onep_head_problem problem = {
        .rows = onep_rows_of(call->tensors[INPUT]),
        .weight_rows = onep_rows_of(call->tensors[WEIGHT]),
        .depth = onep_extent(call, 'K'),
        .columns = onep_extent(call, 'N'),
        .statistics = (onepass_statistics)call->options[STATISTICS],
        .cumulative = (int)call->options[CUMULATIVE],
        .eps = call->options[EPS],
        .momentum = call->options[MOMENTUM],
        .input = onep_call_operand(call, INPUT),
        .weight = onep_call_operand(call, WEIGHT),
        .prepared = onep_call_operand(call, PREPARED).data,
        .bias = onep_call_operand(call, BIAS),
        .gamma = onep_call_operand(call, GAMMA),
        .beta = onep_call_operand(call, BETA),
        .scale = onep_call_operand(call, SCALE),
        .running_mean = onep_call_operand(call, RUNNING_MEAN),
        .running_var = onep_call_operand(call, RUNNING_VAR),
        .batches_tracked = onep_call_operand(call, BATCHES_TRACKED),
        .output = onep_call_operand(call, OUTPUT),
        .product = onep_call_operand(call, PRODUCT),
        .mean = onep_call_operand(call, MEAN),
        .rstd = onep_call_operand(call, RSTD),
        .batch_rows = (double)onep_extent(call, 'B'),
    };
    return onep_execute(call, &problem);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* A gradient belongs to a tensor that is given, and has its shape. */
static onepass_status check_gradients(const onep_call *call)
{
    static const struct {
        const char *name;
        int gradient, of;
    } pairs[] = {{"bias", ONEP_HEAD_GRAD_BIAS, ONEP_HEAD_B_BIAS},
                 {"gamma", ONEP_HEAD_GRAD_GAMMA, ONEP_HEAD_B_GAMMA},
                 {"beta", ONEP_HEAD_GRAD_BETA, ONEP_HEAD_B_BETA},
                 {"scale", ONEP_HEAD_GRAD_SCALE, ONEP_HEAD_B_SCALE}};
    for (int i = 0; i < 4; i++) {
        const onepass_tensor *gradient = call->tensors[pairs[i].gradient], *of = call->tensors[pairs[i].of];
        if (gradient && !of)
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: gradients.%s: given, but options.%s is NULL", call->name,
                             pairs[i].name, pairs[i].name);
        if (gradient && onep_elements(gradient) != onep_elements(of)) {
            char got[80], wanted[80];
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: gradients.%s: shape %s; it must be that of options.%s, %s",
                             call->name, pairs[i].name,
                             onep_shape_text(gradient->ndim, gradient->shape, got, sizeof got), pairs[i].name,
                             onep_shape_text(of->ndim, of->shape, wanted, sizeof wanted));
        }
    }
    return ONEPASS_OK;
}

onepass_status onep_head_solve_backward(onep_call *call)
{
    onep_head_ranks ranks = {.batch_rows = (double)onep_extent(call, 'B')};
    onepass_status status = check_gradients(call);
    if (status == ONEPASS_OK && call->op->variant)
        status =
            onep_head_ranks_of(call, ONEP_HEAD_COUNTS, ONEP_HEAD_S0S, ONEP_HEAD_S1S, onep_extent(call, 'B'), &ranks);
    if (status != ONEPASS_OK)
        return status;
    onep_head_backward_problem problem = {
        .rows = onep_rows_of(call->tensors[ONEP_HEAD_B_INPUT]),
        .weight_rows = onep_rows_of(call->tensors[ONEP_HEAD_B_WEIGHT]),
        .depth = onep_extent(call, 'K'),
        .columns = onep_extent(call, 'N'),
        .statistics = (onepass_statistics)call->options[STATISTICS],
        .grad_output = onep_call_operand(call, ONEP_HEAD_GRAD_OUTPUT),
        .output = onep_call_operand(call, ONEP_HEAD_B_OUTPUT),
        .input = onep_call_operand(call, ONEP_HEAD_B_INPUT),
        .weight = onep_call_operand(call, ONEP_HEAD_B_WEIGHT),
        .product = onep_call_operand(call, ONEP_HEAD_B_PRODUCT),
        .mean = onep_call_operand(call, ONEP_HEAD_B_MEAN),
        .rstd = onep_call_operand(call, ONEP_HEAD_B_RSTD),
        .gamma = onep_call_operand(call, ONEP_HEAD_B_GAMMA),
        .beta = onep_call_operand(call, ONEP_HEAD_B_BETA),
        .scale = onep_call_operand(call, ONEP_HEAD_B_SCALE),
        .grad_input = onep_call_operand(call, ONEP_HEAD_GRAD_INPUT),
        .grad_weight = onep_call_operand(call, ONEP_HEAD_GRAD_WEIGHT),
        .grad_bias = onep_call_operand(call, ONEP_HEAD_GRAD_BIAS),
        .grad_gamma = onep_call_operand(call, ONEP_HEAD_GRAD_GAMMA),
        .grad_beta = onep_call_operand(call, ONEP_HEAD_GRAD_BETA),
        .grad_scale = onep_call_operand(call, ONEP_HEAD_GRAD_SCALE),
        .scale_is_one_value = call->tensors[ONEP_HEAD_B_SCALE] && onep_elements(call->tensors[ONEP_HEAD_B_SCALE]) == 1,
        .batch_rows = ranks.batch_rows,
        .ranks = ranks,
    };
    return onep_execute(call, &problem);
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* The structures as first published: up to these members. */
enum {
    FIRST_OPTIONS_SIZE = offsetof(onepass_head_options, workspace_size) + sizeof(size_t),
    FIRST_GRADIENTS_SIZE = offsetof(onepass_head_gradients, scale) + sizeof(void *),
};

onepass_status onep_head_read_options(onep_call *call, const onepass_head_options *given, onepass_head_options *o)
{
    if (!given)
        return onep_missing(call->name, "options");
    onepass_status status = onep_read_versioned(call->name, "options", given, FIRST_OPTIONS_SIZE, o, sizeof *o);
    call->options[STATISTICS] = (int)o->statistics;
    call->options[CUMULATIVE] = (int)o->cumulative;
    call->workspace = o->workspace;
    call->workspace_size = o->workspace_size;
    return status;
}

onepass_status onepass_head(onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
                            const onepass_head_options *given, const onepass_tensor *output,
                            const onepass_tensor *product, const onepass_tensor *mean, const onepass_tensor *rstd)
{
    onep_call call = {.op = &onep_head, .name = "head", .handle = handle};
    onepass_head_options o = {0};
    onepass_status status = onep_head_read_options(&call, given, &o);
    if (status != ONEPASS_OK)
        return status;
    int64_t bytes;
    onepass_tensor planes = {0};
    if (o.prepared_weight)
        planes = onep_prepared_tensor(handle, weight, o.prepared_weight, &bytes);
    const onepass_tensor *tensors[FORWARD_ARGUMENTS] = {
        [INPUT] = input,
        [WEIGHT] = weight,
        [BIAS] = o.bias,
        [GAMMA] = o.gamma,
        [BETA] = o.beta,
        [SCALE] = o.scale,
        [RUNNING_MEAN] = o.running_mean,
        [RUNNING_VAR] = o.running_var,
        [BATCHES_TRACKED] = o.batches_tracked,
        [PREPARED] = o.prepared_weight ? &planes : NULL,
        [OUTPUT] = output,
        [PRODUCT] = product,
        [MEAN] = mean,
        [RSTD] = rstd,
    };
    memcpy(call.tensors, tensors, sizeof tensors);
    call.options[EPS] = o.eps;
    call.options[MOMENTUM] = o.momentum;
    return onep_call_run(&call);
}

onepass_status onepass_head_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                           const onepass_tensor *weight, const onepass_head_options *given,
                                           const onepass_tensor *output, const onepass_tensor *product, size_t *bytes)
{
    onep_call call = {.op = &onep_head,
                      .name = "head_workspace_size",
                      .handle = handle,
                      .tensors = {[INPUT] = input, [WEIGHT] = weight, [OUTPUT] = output, [PRODUCT] = product},
                      .bytes = bytes};
    onepass_head_options o = {0};
    onepass_status status = onep_head_read_options(&call, given, &o);
    if (status != ONEPASS_OK)
        return status;
    return bytes ? onep_call_run(&call) : onep_missing(call.name, "bytes");
}

onepass_status onep_head_read_backward(onep_call *call, const onepass_head_options *given,
                                       const onepass_head_gradients *asked)
{
    onepass_head_options o = {0};
    onepass_head_gradients g = {0};
    onepass_status status = onep_head_read_options(call, given, &o);
    if (status == ONEPASS_OK && !asked)
        status = onep_missing(call->name, "gradients");
    if (status == ONEPASS_OK)
        status = onep_read_versioned(call->name, "gradients", asked, FIRST_GRADIENTS_SIZE, &g, sizeof g);
    const onepass_tensor **t = call->tensors;
    t[ONEP_HEAD_B_BIAS] = o.bias;
    t[ONEP_HEAD_B_GAMMA] = o.gamma;
    t[ONEP_HEAD_B_BETA] = o.beta;
    t[ONEP_HEAD_B_SCALE] = o.scale;
    t[ONEP_HEAD_GRAD_INPUT] = g.input;
    t[ONEP_HEAD_GRAD_WEIGHT] = g.weight;
    t[ONEP_HEAD_GRAD_BIAS] = g.bias;
    t[ONEP_HEAD_GRAD_GAMMA] = g.gamma;
    t[ONEP_HEAD_GRAD_BETA] = g.beta;
    t[ONEP_HEAD_GRAD_SCALE] = g.scale;
    return status;
}

onepass_status onepass_head_backward(onepass_handle *handle, const onepass_tensor *grad_output,
                                     const onepass_tensor *output, const onepass_tensor *input,
                                     const onepass_tensor *weight, const onepass_tensor *product,
                                     const onepass_tensor *mean, const onepass_tensor *rstd,
                                     const onepass_head_options *given, const onepass_head_gradients *asked)
{
    onep_call call = {.op = &onep_head_backward,
                      .name = "head_backward",
                      .handle = handle,
                      .tensors = {[ONEP_HEAD_GRAD_OUTPUT] = grad_output,
                                  [ONEP_HEAD_B_OUTPUT] = output,
                                  [ONEP_HEAD_B_INPUT] = input,
                                  [ONEP_HEAD_B_WEIGHT] = weight,
                                  [ONEP_HEAD_B_PRODUCT] = product,
                                  [ONEP_HEAD_B_MEAN] = mean,
                                  [ONEP_HEAD_B_RSTD] = rstd}};
    onepass_status status = onep_head_read_backward(&call, given, asked);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

onepass_status onepass_head_backward_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                    const onepass_tensor *weight, const onepass_head_options *given,
                                                    size_t *bytes)
{
    onep_call call = {.op = &onep_head_backward,
                      .name = "head_backward_workspace_size",
                      .handle = handle,
                      .tensors = {[ONEP_HEAD_B_INPUT] = input, [ONEP_HEAD_B_WEIGHT] = weight},
                      .bytes = bytes};
    onepass_head_options o = {0};
    onepass_status status = onep_head_read_options(&call, given, &o);
    if (status != ONEPASS_OK)
        return status;
    return bytes ? onep_call_run(&call) : onep_missing(call.name, "bytes");
}
