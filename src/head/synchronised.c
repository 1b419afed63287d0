/*
 * The head whose batch statistics are those of several ranks, as entry points around two exchanges that are the
 * caller's:
 *
 *   head_statistics              the product, and mean and M2 of each of its columns over this rank's rows
 *     ... every rank's rows, means and M2s go to all ...
 *   head_synchronised            merges them in the order of the ranks; running statistics; normalisation, softmax
 *   head_backward_sums           s0 and s1 over this rank's rows
 *     ... every rank's s0 and s1 go to all ...
 *   head_backward_synchronised   the gradients
 *
 * What travels is double, so that a single rank has the bits of the head by itself. Every rank merges the same numbers
 * in the same order, and has the same bits as the others.
 */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "head/entry.h"
#include "head/head.h"

ONEP_DECLARE_KERNELS(onep_head_statistics);
ONEP_DECLARE_KERNELS(onep_head_synchronised);
ONEP_DECLARE_KERNELS(onep_head_backward);
ONEP_DECLARE_KERNELS(onep_head_backward_sums);

static const onep_option options[] = {
    [ONEP_HEAD_STATISTICS_OPTION] = {.info = {"options.statistics", ONEPASS_BATCH_STATISTICS + 1},
                                     .rule = "ONEPASS_BATCH_STATISTICS"},
    [ONEP_HEAD_CUMULATIVE_OPTION] = {.info = {"options.cumulative", 2}, .rule = "0 or 1"},
    [ONEP_HEAD_EPS_OPTION] = {.info = {"options.eps", 0}, .rule = NULL},
    [ONEP_HEAD_MOMENTUM_OPTION] = {.info = {"options.momentum", 0}, .rule = NULL},
};

/* ---- what the ranks have sent ------------------------------------------------------------------------------------ */

static onep_gathered gathered(const onepass_tensor *t)
{
    onep_operand operand = onep_operand_of(t, t->ndim - 1, 1);
    int is_list = t->ndim == 1; /* of one number per rank */
    return (onep_gathered){.data = operand.data,
                           .rank_stride = is_list ? operand.col_stride : operand.row_stride[0],
                           .column_stride = is_list ? 0 : operand.col_stride};
}

onepass_status onep_head_ranks_of(const onep_call *call, int counts, int first, int second, int64_t rows,
                                  onep_head_ranks *ranks)
{
    *ranks = (onep_head_ranks){0};
    if (call->bytes)
        return ONEPASS_OK;
    const char *op = call->name;
    ranks->count = onep_extent(call, 'R');
    if (ranks->count == 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: counts: shape [0]; there must be a rank, this one", op);
    ranks->rows = gathered(call->tensors[counts]);
    ranks->first = gathered(call->tensors[first]);
    ranks->second = gathered(call->tensors[second]);
    for (int64_t rank = 0; rank < ranks->count; rank++) {
        double count = onep_head_rows_of(ranks, rank);
        if (!(count >= 0 && count <= 0x1p53 && count == floor(count)))
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: counts: %g; it must be a number of rows", op, count);
        ranks->batch_rows += count;
    }
    if (ranks->batch_rows < (double)rows)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: counts: %g rows in all; there must be those of this rank, %g",
                         op, ranks->batch_rows, (double)rows);
    return ONEPASS_OK;
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

enum { INPUT, WEIGHT, PRODUCT, MEAN, M2, STATISTICS_ARGUMENTS };

static const onep_argument statistics_arguments[STATISTICS_ARGUMENTS] = {
    [INPUT] = {.info = {"input", "BK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [WEIGHT] = {.info = {"weight", "NK", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [PRODUCT] = {.info = {"product", "BN", ONEPASS_WRITTEN, 1}, .type = ONEP_IS_COMPUTED},
    [MEAN] = {.info = {"mean", "N", ONEPASS_WRITTEN, 1}, .type = ONEP_ONLY_F64},
    [M2] = {.info = {"m2", "N", ONEPASS_WRITTEN, 1}, .type = ONEP_ONLY_F64},
};

static onepass_status solve_statistics(onep_call *call)
{
    onep_head_problem problem = {
        .rows = onep_rows_of(call->tensors[INPUT]),
        .weight_rows = onep_rows_of(call->tensors[WEIGHT]),
        .depth = onep_extent(call, 'K'),
        .columns = onep_extent(call, 'N'),
        .statistics = ONEPASS_BATCH_STATISTICS,
        .input = onep_call_operand(call, INPUT),
        .weight = onep_call_operand(call, WEIGHT),
        .product = onep_call_operand(call, PRODUCT),
        .mean = onep_call_operand(call, MEAN),
        .m2 = onep_call_operand(call, M2),
        .batch_rows = (double)onep_extent(call, 'B'),
    };
    return onep_execute(call, &problem);
}

const onep_operator onep_head_statistics = {
    .name = "head_statistics",
    .arguments = statistics_arguments,
    .argument_count = STATISTICS_ARGUMENTS,
    .workspace = "workspace",
    .solve = solve_statistics,
    .kernels = ONEP_CPU_KERNELS(onep_head_statistics),
};

onepass_status onepass_head_statistics(onepass_handle *handle, const onepass_tensor *input,
                                       const onepass_tensor *weight, const onepass_tensor *product,
                                       const onepass_tensor *mean, const onepass_tensor *m2, void *workspace,
                                       size_t workspace_size)
{
    onep_call call = {
        .op = &onep_head_statistics,
        .handle = handle,
        .tensors = {[INPUT] = input, [WEIGHT] = weight, [PRODUCT] = product, [MEAN] = mean, [M2] = m2},
        .workspace = workspace,
        .workspace_size = workspace_size,
    };
    return onep_call_run(&call);
}

onepass_status onepass_head_statistics_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                      const onepass_tensor *weight, size_t *bytes)
{
    onep_call call = {.op = &onep_head_statistics,
                      .name = "head_statistics_workspace_size",
                      .handle = handle,
                      .tensors = {[INPUT] = input, [WEIGHT] = weight},
                      .bytes = bytes};
    return bytes ? onep_call_run(&call) : onep_missing(call.name, "bytes");
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

enum {
    F_PRODUCT,
    F_COUNTS,
    F_MEANS,
    F_M2S,
    F_BIAS,
    F_GAMMA,
    F_BETA,
    F_SCALE,
    F_RUNNING_MEAN,
    F_RUNNING_VAR,
    F_BATCHES_TRACKED,
    F_OUTPUT,
    F_MEAN,
    F_RSTD,
    FORWARD_ARGUMENTS
};

static const onep_argument forward_arguments[FORWARD_ARGUMENTS] = {
    [F_PRODUCT] = {.info = {"product", "BN", ONEPASS_READ, 1},
                   .type = ONEP_IS_COMPUTED,
                   .flags = ONEP_SIZES | ONEP_PROMOTES},
    [F_COUNTS] = {.info = {"counts", "R", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
    [F_MEANS] = {.info = {"means", "RN", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
    [F_M2S] = {.info = {"m2s", "RN", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
    [F_BIAS] = {.info = {"options.bias", "N", ONEPASS_READ, 0}},
    [F_GAMMA] = {.info = {"options.gamma", "N", ONEPASS_READ, 0}},
    [F_BETA] = {.info = {"options.beta", "N", ONEPASS_READ, 0}},
    [F_SCALE] = {.info = {"options.scale", "N", ONEPASS_READ, 0}, .flags = ONEP_OR_ONE},
    [F_RUNNING_MEAN] = {.info = {"options.running_mean", "N", ONEPASS_UPDATED, 0}},
    [F_RUNNING_VAR] = {.info = {"options.running_var", "N", ONEPASS_UPDATED, 0}},
    [F_BATCHES_TRACKED] = {.info = {"options.batches_tracked", "", ONEPASS_UPDATED, 0}, .type = ONEP_COUNTER},
    [F_OUTPUT] = {.info = {"output", "BN", ONEPASS_WRITTEN, 1}},
    [F_MEAN] = {.info = {"mean", "N", ONEPASS_WRITTEN, 0}, .type = ONEP_HOLDS_COMPUTED},
    [F_RSTD] = {.info = {"rstd", "N", ONEPASS_WRITTEN, 0}, .type = ONEP_HOLDS_COMPUTED},
};

static onepass_status check_forward(const onep_call *call)
{
    const onepass_tensor *const *t = call->tensors;
    onepass_status status = onep_head_check_numbers(call);
    if (status == ONEPASS_OK)
        status = onep_head_check_running(call, t[F_RUNNING_MEAN], t[F_RUNNING_VAR], t[F_BATCHES_TRACKED]);
    return status == ONEPASS_OK ? onep_head_check_counter(call, t[F_BATCHES_TRACKED]) : status;
}

static onepass_status solve_forward(onep_call *call)
{
    onep_head_ranks ranks;
    onepass_status status = call->bytes ? ONEPASS_OK : check_forward(call);
    if (status == ONEPASS_OK)
        status = onep_head_ranks_of(call, F_COUNTS, F_MEANS, F_M2S, onep_extent(call, 'B'), &ranks);
    if (status == ONEPASS_OK && ranks.batch_rows == 1)
        status = onep_fail(ONEPASS_INVALID_ARGUMENT,
                           "%s: counts: 1 row in all; ONEPASS_BATCH_STATISTICS need at least 2 values per feature",
                           call->name);
    if (status != ONEPASS_OK)
        return status;
    onep_head_problem problem = {
        .rows = onep_rows_of(call->tensors[F_PRODUCT]),
        .columns = onep_extent(call, 'N'),
        .statistics = ONEPASS_BATCH_STATISTICS,
        .cumulative = (int)call->options[ONEP_HEAD_CUMULATIVE_OPTION],
        .eps = call->options[ONEP_HEAD_EPS_OPTION],
        .momentum = call->options[ONEP_HEAD_MOMENTUM_OPTION],
        .bias = onep_call_operand(call, F_BIAS),
        .gamma = onep_call_operand(call, F_GAMMA),
        .beta = onep_call_operand(call, F_BETA),
        .scale = onep_call_operand(call, F_SCALE),
        .running_mean = onep_call_operand(call, F_RUNNING_MEAN),
        .running_var = onep_call_operand(call, F_RUNNING_VAR),
        .batches_tracked = onep_call_operand(call, F_BATCHES_TRACKED),
        .output = onep_call_operand(call, F_OUTPUT),
        .product = onep_call_operand(call, F_PRODUCT),
        .mean = onep_call_operand(call, F_MEAN),
        .rstd = onep_call_operand(call, F_RSTD),
        .batch_rows = ranks.batch_rows,
        .ranks = ranks,
    };
    return onep_execute(call, &problem);
}

const onep_operator onep_head_synchronised = {
    .name = "head_synchronised",
    .arguments = forward_arguments,
    .argument_count = FORWARD_ARGUMENTS,
    .options = options,
    .option_count = ONEP_HEAD_MOMENTUM_OPTION + 1,
    .workspace = "options.workspace",
    .solve = solve_forward,
    .kernels = ONEP_CPU_KERNELS(onep_head_synchronised),
};

onepass_status onepass_head_synchronised(onepass_handle *handle, const onepass_tensor *product,
                                         const onepass_tensor *counts, const onepass_tensor *means,
                                         const onepass_tensor *m2s, const onepass_head_options *given,
                                         const onepass_tensor *output, const onepass_tensor *mean,
                                         const onepass_tensor *rstd)
{
    onep_call call = {.op = &onep_head_synchronised, .name = "head_synchronised", .handle = handle};
    onepass_head_options o = {0};
    onepass_status status = onep_head_read_options(&call, given, &o);
    if (status != ONEPASS_OK)
        return status;
    const onepass_tensor *tensors[FORWARD_ARGUMENTS] = {
        [F_PRODUCT] = product,
        [F_COUNTS] = counts,
        [F_MEANS] = means,
        [F_M2S] = m2s,
        [F_BIAS] = o.bias,
        [F_GAMMA] = o.gamma,
        [F_BETA] = o.beta,
        [F_SCALE] = o.scale,
        [F_RUNNING_MEAN] = o.running_mean,
        [F_RUNNING_VAR] = o.running_var,
        [F_BATCHES_TRACKED] = o.batches_tracked,
        [F_OUTPUT] = output,
        [F_MEAN] = mean,
        [F_RSTD] = rstd,
    };
    memcpy(call.tensors, tensors, sizeof tensors);
    call.options[ONEP_HEAD_EPS_OPTION] = o.eps;
    call.options[ONEP_HEAD_MOMENTUM_OPTION] = o.momentum;
    return onep_call_run(&call);
}

onepass_status onepass_head_synchronised_workspace_size(onepass_handle *handle, const onepass_tensor *product,
                                                        size_t *bytes)
{
    onep_call call = {.op = &onep_head_synchronised,
                      .name = "head_synchronised_workspace_size",
                      .handle = handle,
                      .tensors = {[F_PRODUCT] = product},
                      .bytes = bytes};
    return bytes ? onep_call_run(&call) : onep_missing(call.name, "bytes");
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

enum { S_PRODUCT, S_GRAD_OUTPUT, S_OUTPUT, S_MEAN, S_RSTD, S0, S1, SUMS_ARGUMENTS };

static const onep_argument sums_arguments[SUMS_ARGUMENTS] = {
    [S_PRODUCT] = {.info = {"product", "BN", ONEPASS_READ, 1},
                   .type = ONEP_IS_COMPUTED,
                   .flags = ONEP_SIZES | ONEP_PROMOTES},
    [S_GRAD_OUTPUT] = {.info = {"grad_output", "BN", ONEPASS_READ, 1}},
    [S_OUTPUT] = {.info = {"output", "BN", ONEPASS_READ, 1}},
    [S_MEAN] = {.info = {"mean", "N", ONEPASS_READ, 1}, .type = ONEP_HOLDS_COMPUTED},
    [S_RSTD] = {.info = {"rstd", "N", ONEPASS_READ, 1}, .type = ONEP_HOLDS_COMPUTED},
    [S0] = {.info = {"s0", "N", ONEPASS_WRITTEN, 1}, .type = ONEP_ONLY_F64},
    [S1] = {.info = {"s1", "N", ONEPASS_WRITTEN, 1}, .type = ONEP_ONLY_F64},
};

static onepass_status solve_sums(onep_call *call)
{
    onep_head_backward_problem problem = {
        .rows = onep_rows_of(call->tensors[S_PRODUCT]),
        .columns = onep_extent(call, 'N'),
        .statistics = ONEPASS_BATCH_STATISTICS,
        .grad_output = onep_call_operand(call, S_GRAD_OUTPUT),
        .output = onep_call_operand(call, S_OUTPUT),
        .product = onep_call_operand(call, S_PRODUCT),
        .mean = onep_call_operand(call, S_MEAN),
        .rstd = onep_call_operand(call, S_RSTD),
        .s0 = onep_call_operand(call, S0),
        .s1 = onep_call_operand(call, S1),
    };
    return onep_execute(call, &problem);
}

const onep_operator onep_head_backward_sums = {
    .name = "head_backward_sums",
    .arguments = sums_arguments,
    .argument_count = SUMS_ARGUMENTS,
    .workspace = "workspace",
    .solve = solve_sums,
    .kernels = ONEP_CPU_KERNELS(onep_head_backward_sums),
};

/* The kernels of head_backward but for those of a device. */
const onep_operator onep_head_backward_synchronised = {
    .name = "head_backward_synchronised",
    .arguments = onep_head_backward_arguments,
    .argument_count = ONEP_HEAD_SYNCHRONISED_BACKWARD_ARGUMENTS,
    .options = options,
    .option_count = ONEP_HEAD_CUMULATIVE_OPTION + 1,
    .workspace = "options.workspace",
    .variant = 1,
    .solve = onep_head_solve_backward,
    .kernels = ONEP_CPU_KERNELS(onep_head_backward),
};

onepass_status onepass_head_backward_sums(onepass_handle *handle, const onepass_tensor *grad_output,
                                          const onepass_tensor *output, const onepass_tensor *product,
                                          const onepass_tensor *mean, const onepass_tensor *rstd,
                                          const onepass_tensor *s0, const onepass_tensor *s1, void *workspace,
                                          size_t workspace_size)
{
    onep_call call = {
        .op = &onep_head_backward_sums,
        .handle = handle,
        .tensors = {[S_PRODUCT] = product,
                    [S_GRAD_OUTPUT] = grad_output,
                    [S_OUTPUT] = output,
                    [S_MEAN] = mean,
                    [S_RSTD] = rstd,
                    [S0] = s0,
                    [S1] = s1},
        .workspace = workspace,
        .workspace_size = workspace_size,
    };
    return onep_call_run(&call);
}

onepass_status onepass_head_backward_sums_workspace_size(onepass_handle *handle, const onepass_tensor *product,
                                                         size_t *bytes)
{
    onep_call call = {.op = &onep_head_backward_sums,
                      .name = "head_backward_sums_workspace_size",
                      .handle = handle,
                      .tensors = {[S_PRODUCT] = product},
                      .bytes = bytes};
    return bytes ? onep_call_run(&call) : onep_missing(call.name, "bytes");
}

onepass_status onepass_head_backward_synchronised(onepass_handle *handle, const onepass_tensor *grad_output,
                                                  const onepass_tensor *output, const onepass_tensor *input,
                                                  const onepass_tensor *weight, const onepass_tensor *product,
                                                  const onepass_tensor *mean, const onepass_tensor *rstd,
                                                  const onepass_tensor *counts, const onepass_tensor *s0s,
                                                  const onepass_tensor *s1s, const onepass_head_options *given,
                                                  const onepass_head_gradients *asked)
{
    onep_call call = {.op = &onep_head_backward_synchronised,
                      .name = "head_backward_synchronised",
                      .handle = handle,
                      .tensors = {[ONEP_HEAD_GRAD_OUTPUT] = grad_output,
                                  [ONEP_HEAD_B_OUTPUT] = output,
                                  [ONEP_HEAD_B_INPUT] = input,
                                  [ONEP_HEAD_B_WEIGHT] = weight,
                                  [ONEP_HEAD_B_PRODUCT] = product,
                                  [ONEP_HEAD_B_MEAN] = mean,
                                  [ONEP_HEAD_B_RSTD] = rstd,
                                  [ONEP_HEAD_COUNTS] = counts,
                                  [ONEP_HEAD_S0S] = s0s,
                                  [ONEP_HEAD_S1S] = s1s}};
    onepass_status status = onep_head_read_backward(&call, given, asked);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}
