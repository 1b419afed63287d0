/*
 * The door of linear -> batch normalisation -> scale -> softmax, forward and backward: every check on the arguments,
 * the problem the kernels compute, one call through the table. Nothing is written unless every check has passed.
 */
#include <inttypes.h>
#include <math.h>

#include "arguments.h"
#include "head_cuda.h"
#include "status.h"
#include "versioned.h"

/* The structures as first published: up to their last members. */
enum {
    FIRST_OPTIONS_SIZE = offsetof(onepass_head_options, workspace_size) + sizeof(size_t),
    FIRST_GRADIENTS_SIZE = offsetof(onepass_head_gradients, scale) + sizeof(void *),
};

/* Lines of the tables of arguments. */
static onep_argument matrix(const char *name, const onepass_tensor *tensor, int64_t rows, int64_t columns)
{
    return (onep_argument){.name = name, .tensor = tensor, .rank = 2, .extent = {rows, columns}};
}

static onep_argument vector(const char *name, const onepass_tensor *tensor, int64_t elements)
{
    return (onep_argument){.name = name, .tensor = tensor, .rank = 1, .extent = {elements}};
}

static onep_argument or_one(onep_argument argument, int allowed)
{
    argument.one_allowed = allowed;
    return argument;
}

static onep_argument of_type(onep_argument argument, onep_type_rule rule, onep_type type)
{
    argument.rule = rule;
    argument.type = type;
    return argument;
}

static onep_argument written(onep_argument argument, int is_output)
{
    argument.is_output = is_output;
    return argument;
}

static onepass_status read_options(const char *op, const onepass_head_options *given, onepass_head_options *options)
{
    if (!given)
        return onep_missing(op, "options");
    onepass_status status = onep_read_versioned(op, "options", given, FIRST_OPTIONS_SIZE, options, sizeof *options);
    if (status != ONEPASS_OK)
        return status;
    if ((unsigned)options->statistics > ONEPASS_RUNNING_STATISTICS)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.statistics: %d; it must be one of onepass_statistics",
                         op, (int)options->statistics);
    if ((unsigned)options->cumulative > 1)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.cumulative: %d; it must be 0 or 1", op,
                         (int)options->cumulative);
    return ONEPASS_OK;
}

/* The rules of the forward call about numbers, and about which tensors go together. */
static onepass_status check_options(const char *op, const onepass_head_options *o, int64_t rows)
{
    int keeps = o->running_mean || o->running_var;
    if (!isfinite(o->eps) || o->eps < 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.eps: %g; it must be finite and not negative", op,
                         o->eps);
    if (!isfinite(o->momentum))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.momentum: %g; it must be finite", op, o->momentum);
    if (keeps && !(o->running_mean && o->running_var))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.%s: NULL beside options.%s; they go together", op,
                         o->running_mean ? "running_var" : "running_mean",
                         o->running_mean ? "running_mean" : "running_var");
    if (o->statistics == ONEPASS_RUNNING_STATISTICS) {
        if (!keeps)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: options.running_mean: NULL; ONEPASS_RUNNING_STATISTICS needs it and running_var", op);
        if (o->cumulative || o->momentum != 0 || o->batches_tracked)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: options.%s: given with ONEPASS_RUNNING_STATISTICS, which updates nothing", op,
                             o->cumulative        ? "cumulative"
                             : o->batches_tracked ? "batches_tracked"
                                                  : "momentum");
        return ONEPASS_OK;
    }
    if (o->cumulative && o->momentum != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.momentum: %g; it must be 0 with options.cumulative", op,
                         o->momentum);
    if (o->cumulative && !o->batches_tracked)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: options.batches_tracked: NULL; options.cumulative divides by it", op);
    if (rows == 1)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "%s: input: 1 row; ONEPASS_BATCH_STATISTICS need at least 2 values a feature", op);
    return ONEPASS_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static onep_head_problem problem_of(const onepass_tensor *input, const onepass_tensor *weight,
                                    const onepass_head_options *o, const onepass_tensor *output,
                                    const onepass_tensor *product)
{
    return (onep_head_problem){
        .rows = onep_rows_of(input),
        .weight_rows = onep_rows_of(weight),
        .depth = onep_columns(input),
        .columns = weight->shape[0],
        .statistics = o->statistics,
        .cumulative = o->cumulative,
        .eps = o->eps,
        .momentum = o->momentum,
        .input = onep_operand_of(input, ONEP_PER_ELEMENT, input),
        .weight = onep_operand_of(weight, ONEP_PER_ELEMENT, weight),
        .bias = onep_feature_operand(o->bias),
        .gamma = onep_feature_operand(o->gamma),
        .beta = onep_feature_operand(o->beta),
        .scale = onep_feature_operand(o->scale),
        .running_mean = onep_feature_operand(o->running_mean),
        .running_var = onep_feature_operand(o->running_var),
        .batches_tracked = onep_operand_of(o->batches_tracked, ONEP_ONE, o->batches_tracked),
        .output = onep_operand_of(output, ONEP_PER_ELEMENT, output),
        .product = onep_operand_of(product, ONEP_PER_ELEMENT, product),
        .workspace = o->workspace,
    };
}

static size_t forward_workspace(const onepass_handle *handle, const onep_head_problem *problem)
{
    if (problem->rows.count == 0 || problem->columns == 0)
        return 0;
    if (handle->cuda)
        return onep_head_cuda_workspace(handle->cuda, problem, onep_math_of(handle));
    onep_type computed = onep_computed(onep_promote(problem->input.type, problem->weight.type));
    return handle->level == ONEP_REF ? onep_head_workspace_ref(problem)
                                     : onep_head_workspace_cpu(problem, computed, handle->threads);
}

onepass_status onepass_head(onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
                            const onepass_head_options *given, const onepass_tensor *output,
                            const onepass_tensor *product, const onepass_tensor *mean, const onepass_tensor *rstd)
{
    const char *op = "head";
    onepass_status status = onep_check_input_weight(op, handle, input, weight, 2);
    onepass_head_options o;
    if (status == ONEPASS_OK)
        status = read_options(op, given, &o);
    if (status == ONEPASS_OK)
        status = check_options(op, &o, input->shape[0]);
    if (status != ONEPASS_OK)
        return status;
    if (!output)
        return onep_missing(op, "output");
    if ((!product || !mean || !rstd) && (product || mean || rstd))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: NULL; product, mean and rstd go together", op,
                         !product ? "product"
                         : !mean  ? "mean"
                                  : "rstd");
    int64_t rows = input->shape[0], depth = input->shape[1], n = weight->shape[0];
    int updates = o.statistics == ONEPASS_BATCH_STATISTICS;
    onep_type promoted = onep_promoted(input, weight), computed = onep_computed(promoted);
    onep_argument arguments[] = {
        matrix("input", input, rows, depth),
        matrix("weight", weight, n, depth),
        vector("options.bias", o.bias, n),
        vector("options.gamma", o.gamma, n),
        vector("options.beta", o.beta, n),
        or_one(vector("options.scale", o.scale, n), 1),
        written(vector("options.running_mean", o.running_mean, n), updates),
        written(vector("options.running_var", o.running_var, n), updates),
        {.name = "options.batches_tracked",
         .tensor = o.batches_tracked,
         .is_output = updates,
         .rule = ONEP_COUNTER,
         .one_allowed = 1},
        written(of_type(matrix("output", output, rows, n), ONEP_HOLDS_TYPE, promoted), 1),
        written(of_type(matrix("product", product, rows, n), ONEP_SAME_TYPE, computed), 1),
        written(of_type(vector("mean", mean, n), ONEP_HOLDS_TYPE, computed), 1),
        written(of_type(vector("rstd", rstd, n), ONEP_HOLDS_TYPE, computed), 1),
    };
    enum { ARGUMENTS = sizeof arguments / sizeof arguments[0] };
    status = onep_arguments_check(op, handle, arguments, ARGUMENTS);
    if (status != ONEPASS_OK)
        return status;
    onep_head_problem problem = problem_of(input, weight, &o, output, product);
    problem.mean = onep_feature_operand(mean);
    problem.rstd = onep_feature_operand(rstd);
    problem.prepared = o.prepared_weight;
    status = onep_prepared_check(op, "options.prepared_weight", handle, weight, o.prepared_weight);
    if (status == ONEPASS_OK)
        status = onep_workspace_check(op, handle, arguments, ARGUMENTS, o.workspace, o.workspace_size,
                                      forward_workspace(handle, &problem));
    if (status != ONEPASS_OK)
        return status;
    if (handle->cuda) /* the counter is on the device, also that of an empty batch */
        status = handle->kernels->head[promoted](handle, &problem);
    else if (rows == 0 && updates)
        onep_head_factor(&problem); /* an empty batch is counted, and leaves the running statistics as they are */
    else if (rows != 0 && n != 0)
        status = handle->kernels->head[promoted](handle, &problem);
    else if (updates)
        onep_head_factor(&problem);
    if (status == ONEPASS_OK && handle->progress)
        handle->progress(handle->progress_context, 1);
    return status;
}

onepass_status onepass_head_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                           const onepass_tensor *weight, const onepass_head_options *given,
                                           const onepass_tensor *output, const onepass_tensor *product, size_t *bytes)
{
    const char *op = "head_workspace_size";
    onepass_status status = onep_check_input_weight(op, handle, input, weight, 2);
    onepass_head_options o;
    if (status == ONEPASS_OK)
        status = read_options(op, given, &o);
    if (status != ONEPASS_OK)
        return status;
    if (!output || !bytes)
        return onep_missing(op, output ? "bytes" : "output");
    onep_argument arguments[] = {
        written(matrix("output", output, input->shape[0], weight->shape[0]), 1),
        written(matrix("product", product, input->shape[0], weight->shape[0]), 1),
    };
    status = onep_arguments_check(op, handle, arguments, 2);
    if (status != ONEPASS_OK)
        return status;
    onepass_head_options plain = {.statistics = o.statistics};
    onep_head_problem problem = problem_of(input, weight, &plain, output, product);
    *bytes = forward_workspace(handle, &problem);
    return ONEPASS_OK;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static size_t backward_workspace(const onepass_handle *handle, const onep_head_backward_problem *problem)
{
    if (problem->columns == 0)
        return 0;
    if (handle->cuda)
        return onep_head_backward_cuda_workspace(handle->cuda, problem, onep_math_of(handle));
    onep_type computed = onep_computed(onep_promote(problem->input.type, problem->weight.type));
    return handle->level == ONEP_REF ? onep_head_backward_workspace_ref(problem)
                                     : onep_head_backward_workspace_cpu(problem, computed, handle->threads);
}

static onepass_status read_gradients(const char *op, const onepass_head_gradients *given, const onepass_head_options *o,
                                     onepass_head_gradients *gradients)
{
    if (!given)
        return onep_missing(op, "gradients");
    onepass_status status =
        onep_read_versioned(op, "gradients", given, FIRST_GRADIENTS_SIZE, gradients, sizeof *gradients);
    if (status != ONEPASS_OK)
        return status;
    if (!gradients->input && !gradients->weight && !gradients->bias && !gradients->gamma && !gradients->beta &&
        !gradients->scale)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: gradients: all NULL; ask for at least one", op);
    const struct {
        const char *name;
        const onepass_tensor *gradient, *of;
    } pairs[] = {{"bias", gradients->bias, o->bias},
                 {"gamma", gradients->gamma, o->gamma},
                 {"beta", gradients->beta, o->beta},
                 {"scale", gradients->scale, o->scale}};
    for (int i = 0; i < 4; i++)
        if (pairs[i].gradient && !pairs[i].of)
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: gradients.%s: given, but options.%s is NULL", op,
                             pairs[i].name, pairs[i].name);
    return ONEPASS_OK;
}

/* The dtype a gradient must have; anything if there is nothing it belongs to. */
static onep_type type_or_any(const onepass_tensor *tensor)
{
    return tensor ? onep_type_of(tensor->dtype) : ONEP_NO_TYPE;
}

onepass_status onepass_head_backward(onepass_handle *handle, const onepass_tensor *grad_output,
                                     const onepass_tensor *output, const onepass_tensor *input,
                                     const onepass_tensor *weight, const onepass_tensor *product,
                                     const onepass_tensor *mean, const onepass_tensor *rstd,
                                     const onepass_head_options *given, const onepass_head_gradients *asked)
{
    const char *op = "head_backward";
    onepass_status status = onep_check_input_weight(op, handle, input, weight, 2);
    onepass_head_options o;
    onepass_head_gradients g;
    if (status == ONEPASS_OK)
        status = read_options(op, given, &o);
    if (status == ONEPASS_OK)
        status = read_gradients(op, asked, &o, &g);
    if (status != ONEPASS_OK)
        return status;
    if (!grad_output || !output || !product || !mean || !rstd)
        return onep_missing(op, !grad_output ? "grad_output"
                                : !output    ? "output"
                                : !product   ? "product"
                                : !mean      ? "mean"
                                             : "rstd");
    int64_t rows = input->shape[0], depth = input->shape[1], n = weight->shape[0];
    onep_type computed = onep_computed(onep_promoted(input, weight));
    int one_scale = o.scale && onep_elements(o.scale) == 1;
    onep_argument arguments[] = {
        matrix("grad_output", grad_output, rows, n),
        matrix("output", output, rows, n),
        matrix("input", input, rows, depth),
        matrix("weight", weight, n, depth),
        of_type(matrix("product", product, rows, n), ONEP_SAME_TYPE, computed),
        of_type(vector("mean", mean, n), ONEP_HOLDS_TYPE, computed),
        of_type(vector("rstd", rstd, n), ONEP_HOLDS_TYPE, computed),
        vector("options.bias", o.bias, n),
        vector("options.gamma", o.gamma, n),
        vector("options.beta", o.beta, n),
        or_one(vector("options.scale", o.scale, n), 1),
        written(of_type(matrix("gradients.input", g.input, rows, depth), ONEP_SAME_TYPE, type_or_any(input)), 1),
        written(of_type(matrix("gradients.weight", g.weight, n, depth), ONEP_SAME_TYPE, type_or_any(weight)), 1),
        written(of_type(vector("gradients.bias", g.bias, n), ONEP_SAME_TYPE, type_or_any(o.bias)), 1),
        written(of_type(vector("gradients.gamma", g.gamma, n), ONEP_SAME_TYPE, type_or_any(o.gamma)), 1),
        written(of_type(vector("gradients.beta", g.beta, n), ONEP_SAME_TYPE, type_or_any(o.beta)), 1),
        written(of_type(or_one(vector("gradients.scale", g.scale, one_scale ? 1 : n), one_scale), ONEP_SAME_TYPE,
                        type_or_any(o.scale)),
                1),
    };
    enum { ARGUMENTS = sizeof arguments / sizeof arguments[0] };
    status = onep_arguments_check(op, handle, arguments, ARGUMENTS);
    if (status != ONEPASS_OK)
        return status;
    onep_head_backward_problem problem = {
        .rows = onep_rows_of(input),
        .weight_rows = onep_rows_of(weight),
        .depth = depth,
        .columns = n,
        .statistics = o.statistics,
        .grad_output = onep_operand_of(grad_output, ONEP_PER_ELEMENT, grad_output),
        .output = onep_operand_of(output, ONEP_PER_ELEMENT, output),
        .input = onep_operand_of(input, ONEP_PER_ELEMENT, input),
        .weight = onep_operand_of(weight, ONEP_PER_ELEMENT, weight),
        .product = onep_operand_of(product, ONEP_PER_ELEMENT, product),
        .mean = onep_feature_operand(mean),
        .rstd = onep_feature_operand(rstd),
        .gamma = onep_feature_operand(o.gamma),
        .beta = onep_feature_operand(o.beta),
        .scale = onep_feature_operand(o.scale),
        .grad_input = onep_operand_of(g.input, ONEP_PER_ELEMENT, g.input),
        .grad_weight = onep_operand_of(g.weight, ONEP_PER_ELEMENT, g.weight),
        .grad_bias = onep_feature_operand(g.bias),
        .grad_gamma = onep_feature_operand(g.gamma),
        .grad_beta = onep_feature_operand(g.beta),
        .grad_scale = onep_feature_operand(g.scale),
        .scale_is_one_value = one_scale,
        .workspace = o.workspace,
    };
    status = onep_workspace_check(op, handle, arguments, ARGUMENTS, o.workspace, o.workspace_size,
                                  backward_workspace(handle, &problem));
    if (status == ONEPASS_OK)
        status = handle->kernels->head_backward[onep_promoted(input, weight)](handle, &problem);
    if (status == ONEPASS_OK && handle->progress)
        handle->progress(handle->progress_context, 1);
    return status;
}

onepass_status onepass_head_backward_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                    const onepass_tensor *weight, const onepass_head_options *given,
                                                    size_t *bytes)
{
    const char *op = "head_backward_workspace_size";
    onepass_status status = onep_check_input_weight(op, handle, input, weight, 2);
    onepass_head_options o;
    if (status == ONEPASS_OK)
        status = read_options(op, given, &o);
    if (status != ONEPASS_OK)
        return status;
    if (!bytes)
        return onep_missing(op, "bytes");
    onep_head_backward_problem problem = {
        .rows = onep_rows_of(input),
        .depth = input->shape[1],
        .columns = weight->shape[0],
        .statistics = o.statistics,
        .input = onep_operand_of(input, ONEP_PER_ELEMENT, input),
        .weight = onep_operand_of(weight, ONEP_PER_ELEMENT, weight),
    };
    *bytes = backward_workspace(handle, &problem);
    return ONEPASS_OK;
}
