/*
 * The entry points of losses over several ranks but for token log-probabilities (token.c): the states of a rank's
 * columns, their merge, sums and theirs where a divergence has a second exchange, and the loss from what is merged,
 * around exchanges that are the caller's. shard.h has what is sent. The kernels of the loss are those of logits that
 * are all here, which take from the statistics what they would have read.
 */
#include <math.h>
#include <string.h>

#include "core/operator.h"
#include "core/status.h"
#include "logits/describe.h"
#include "logits/shard.h"

ONEP_DECLARE_KERNELS(onep_logits);
ONEP_DECLARE_KERNELS(onep_shard_states);
ONEP_DECLARE_KERNELS(onep_shard_sums);
extern const onep_kernel onep_shard_merge_ref[], onep_shard_merge_sums_ref[]; /* a few numbers per row: every level's */

static const onep_option options[SHARD_OPTIONS] = {
    LOSS_OPTIONS,
    TARGET_OPTIONS,
    [FIRST_COLUMN] = {.info = {"options.first_column", 0}},
    [TOTAL_COLUMNS] = {.info = {"options.total_columns", 0}},
};

/* ---- rules that shards share ------------------------------------------------------------------------------------- */

onepass_status onep_shard_place_of(const onep_call *call, int columns_option, int first_option, int64_t width,
                                   onep_shard_place *to)
{
    const double *o = call->options;
    for (int i = first_option; i <= first_option + 1; i++)
        if (!(o[i] >= 0 && o[i] <= 0x1p53 && o[i] == floor(o[i])))
            return onep_refuse_option(call, i, "a whole number from 0 to 2^53");
    if (o[columns_option] != 0)
        return onep_refuse_option(call, columns_option, "0: options.total_columns says which columns take part");
    int64_t first = (int64_t)o[first_option], total = (int64_t)o[first_option + 1];
    int64_t left = total > first ? total - first : 0;
    *to = (onep_shard_place){.columns = left < width ? left : width, .first = first, .total = total};
    return ONEPASS_OK;
}

static double number_at(const onep_operand *operand, const onep_rows *rows, int64_t row, int64_t i)
{
    return onep_load(ONEP_F64, onep_row_address(operand, rows, row) + i * operand->col_stride);
}

onepass_status onep_shard_check_statistics(const onep_call *call, int argument, int kind, int64_t indices,
                                           int64_t total)
{
    const char *name = call->op->arguments[argument].info.name;
    int64_t width = onepass_shard_statistics_width(indices, kind != ONEP_SHARD_LABELS);
    if (call->bytes || call->handle->device_class) /* which refuses the call anyway */
        return ONEPASS_OK;
    if (onep_extent(call, 'F') != width)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: %lld numbers per row; this loss has %lld", call->name, name,
                         (long long)onep_extent(call, 'F'), (long long)width);
    onep_rows rows = onep_rows_of(call->tensors[argument]);
    onep_operand statistics = onep_call_operand(call, argument);
    for (int64_t row = 0; row < rows.count; row++) {
        double columns = number_at(&statistics, &rows, row, 0), of = number_at(&statistics, &rows, row, 1);
        if (columns != (double)total)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: %s: row %lld is of %g columns; options.total_columns is %lld", call->name, name,
                             (long long)row, columns, (long long)total);
        if (kind != 0 && of == -(double)kind)
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: row %lld %s the sums of onepass_shard_merge_sums",
                             call->name, name, (long long)row, kind > 0 ? "lacks" : "has");
        if (of != (double)kind || number_at(&statistics, &rows, row, 2) != (double)indices)
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: row %lld is of another loss (kind %g, here %d)",
                             call->name, name, (long long)row, of, kind);
    }
    return ONEPASS_OK;
}

/* Of a call in the order of the loss's description: the kinds of divergences are in the order of onepass_divergence. */
static onep_shard_kind kind_of(const onep_call *call)
{
    return call->tensors[TARGETS] ? (onep_shard_kind)(ONEP_SHARD_KL + (int)call->options[DIVERGENCE])
                                  : ONEP_SHARD_LABELS;
}

int64_t onepass_shard_states_width(int64_t columns, int64_t indices, int32_t has_targets)
{
    int sides = onep_shard_sides(has_targets != 0);
    return columns < 0 || indices < 0 ? -1
                                      : onep_header_doubles(sides) + ONEP_PICK_DOUBLES * indices +
                                            onep_shard_slices(columns) * onep_slice_doubles(sides);
}

int64_t onepass_shard_sums_width(int64_t columns)
{
    return columns < 0 ? -1 : ONEP_SUMS_HEADER_DOUBLES + onep_shard_slices(columns) * ONEP_SUMS_DOUBLES;
}

int64_t onepass_shard_statistics_width(int64_t indices, int32_t has_targets)
{
    return indices < 0 ? -1 : onep_statistics_doubles(onep_shard_sides(has_targets != 0)) + ONEP_PICK_DOUBLES * indices;
}

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

static onepass_status solve_loss(onep_call *call);

static const onep_argument loss_arguments[SHARD_ARGUMENTS] = {
    PREDICTIONS_ARGUMENTS("options.labels", 0),
    TARGETS_ARGUMENTS(0),
    [STATISTICS] = {.info = {"statistics", "*F", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
};

const onep_operator onep_shard_loss = {.name = "shard_loss",
                                       .arguments = loss_arguments,
                                       .argument_count = SHARD_ARGUMENTS,
                                       .options = options,
                                       .option_count = SHARD_OPTIONS,
                                       .workspace = "options.workspace",
                                       .variant = ONEP_TARGET_OPTIONAL,
                                       .solve = solve_loss,
                                       .kernels = ONEP_CPU_KERNELS(onep_logits)};

/* What goes with targets only. */
static onepass_status check_without_targets(const onep_call *call)
{
    static const int of_targets[] = {GRAD_TARGETS, TARGET_LSE, TARGET_ENTROPY};
    if (call->tensors[TARGETS] || call->bytes)
        return ONEPASS_OK;
    for (int i = DIVERGENCE; i < DIVERGENCE_OPTIONS; i++)
        if (call->options[i] != 0)
            return onep_refuse_option(call, i, "0 without targets");
    for (int i = 0; i < 3; i++)
        if (call->tensors[of_targets[i]])
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: given without targets", call->name,
                             onep_shard_loss.arguments[of_targets[i]].info.name);
    return ONEPASS_OK;
}

/* The problem of a call in the order of the loss's description. */
static onepass_status problem_of(const onep_call *call, onep_logits_problem *made)
{
    onep_shard_place place;
    onepass_status status = onep_shard_place_of(call, COLUMNS, FIRST_COLUMN, onep_extent(call, 'C'), &place);
    if (status == ONEPASS_OK)
        status = check_without_targets(call);
    if (status == ONEPASS_OK)
        status = onep_logits_problem_of(call, made);
    if (status != ONEPASS_OK)
        return status;
    made->columns = place.columns;
    made->first_column = place.first;
    made->total_columns = place.total;
    if (made->reduction == ONEPASS_MEAN)
        made->divisor = (double)made->rows.count * (double)place.total;
    if (made->reduction == ONEPASS_BATCHMEAN && call->tensors[PREDICTIONS]->ndim == 1) /* that is the columns */
        made->divisor = (double)place.total;
    return ONEPASS_OK;
}

static onepass_status solve_loss(onep_call *call)
{
    onep_logits_problem problem;
    onepass_status status = problem_of(call, &problem);
    if (status == ONEPASS_OK && !call->tensors[TARGETS] && !call->tensors[LABELS] && !call->bytes)
        status = onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: options.labels: NULL; without targets they are required",
                           call->name);
    if (status == ONEPASS_OK)
        status = onep_shard_check_statistics(call, STATISTICS, (int)kind_of(call), call->tensors[LABELS] != NULL,
                                             problem.total_columns);
    onep_operand statistics = onep_call_operand(call, STATISTICS);
    problem.statistics = &statistics;
    return status == ONEPASS_OK ? onep_execute(call, &problem) : status;
}

onepass_status onepass_shard_loss(onepass_handle *handle, const onepass_tensor *predictions,
                                  const onepass_tensor *targets, const onepass_tensor *statistics,
                                  const onepass_logits_options *given, const onepass_tensor *value,
                                  const onepass_tensor *grad_predictions, const onepass_tensor *grad_targets)
{
    onep_call call = {.op = &onep_shard_loss,
                      .name = onep_shard_loss.name,
                      .handle = handle,
                      .tensors = {[PREDICTIONS] = predictions,
                                  [TARGETS] = targets,
                                  [STATISTICS] = statistics,
                                  [VALUE] = value,
                                  [GRAD_PREDICTIONS] = grad_predictions,
                                  [GRAD_TARGETS] = grad_targets}};
    onepass_status status = onep_logits_read_options(&call, given, NULL);
    return status == ONEPASS_OK ? onep_call_run(&call) : status;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

enum { S_PREDICTIONS, S_TARGETS, S_LABELS, S_INDICES, S_CLASS_WEIGHTS, S_ROW_MASK, S_STATES, STATES_ARGUMENTS };

static const onep_argument states_arguments[STATES_ARGUMENTS] = {
    [S_PREDICTIONS] = {.info = {"predictions", "*C", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [S_TARGETS] = {.info = {"targets", "*C", ONEPASS_READ, 0}, .flags = ONEP_PROMOTES},
    [S_LABELS] = {.info = {"options.labels", "*", ONEPASS_READ, 0}, .type = ONEP_INDEX},
    [S_INDICES] = {.info = {"indices", "*K", ONEPASS_READ, 0}, .type = ONEP_INDEX},
    [S_CLASS_WEIGHTS] = {.info = {"options.class_weights", "C", ONEPASS_READ, 0}},
    [S_ROW_MASK] = {.info = {"options.row_mask", "*", ONEPASS_READ, 0}, .type = ONEP_MASK},
    [S_STATES] = {.info = {"states", "*W", ONEPASS_WRITTEN, 1}, .type = ONEP_ONLY_F64},
};

/* The call as the loss's description has it. How rows are put together is the loss's affair. */
static onep_call of_loss(const onep_call *call, const onepass_tensor *predictions, const onepass_tensor *targets,
                         const onepass_tensor *labels, const onepass_tensor *row_mask)
{
    onep_call loss = *call;
    loss.op = &onep_shard_loss;
    loss.options[REDUCTION] = ONEPASS_SUM;
    loss.options[DIVISOR] = 0;
    memset(loss.tensors, 0, sizeof loss.tensors);
    loss.tensors[PREDICTIONS] = predictions;
    loss.tensors[TARGETS] = targets;
    loss.tensors[LABELS] = labels;
    loss.tensors[ROW_MASK] = row_mask;
    return loss;
}

static onepass_status solve_states(onep_call *call)
{
    const onepass_tensor *const *t = call->tensors;
    onep_call loss = of_loss(call, t[S_PREDICTIONS], t[S_TARGETS], t[S_LABELS], t[S_ROW_MASK]);
    loss.tensors[CLASS_WEIGHTS] = t[S_CLASS_WEIGHTS];
    onep_shard_problem problem = {.computed = call->computed, .width = onep_extent(call, 'W')};
    onepass_status status = problem_of(&loss, &problem.loss);
    if (status != ONEPASS_OK)
        return status;
    if (t[S_INDICES] && t[S_LABELS])
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: indices: given beside options.labels; one of them goes",
                         call->name);
    problem.kind = kind_of(&loss);
    problem.index_count = t[S_LABELS] ? 1 : t[S_INDICES] ? onep_extent(call, 'K') : 0;
    problem.indices = onep_call_operand(call, S_INDICES);
    problem.states = onep_call_operand(call, S_STATES);
    int64_t needed = onepass_shard_states_width(problem.loss.columns, problem.index_count, t[S_TARGETS] != NULL);
    if (!call->bytes && problem.width < needed)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: states: %lld numbers per row; these columns need %lld",
                         call->name, (long long)problem.width, (long long)needed);
    return onep_execute(call, &problem);
}

const onep_operator onep_shard_states = {.name = "shard_states",
                                         .arguments = states_arguments,
                                         .argument_count = STATES_ARGUMENTS,
                                         .options = options,
                                         .option_count = SHARD_OPTIONS,
                                         .workspace = "options.workspace",
                                         .variant = ONEP_TARGET_OPTIONAL,
                                         .solve = solve_states,
                                         .kernels = ONEP_CPU_KERNELS(onep_shard_states)};

onepass_status onepass_shard_states(onepass_handle *handle, const onepass_tensor *predictions,
                                    const onepass_tensor *targets, const onepass_tensor *indices,
                                    const onepass_logits_options *given, const onepass_tensor *states)
{
    onep_call read = {.op = &onep_shard_loss, .name = onep_shard_states.name, .handle = handle};
    onepass_status status = onep_logits_read_options(&read, given, NULL);
    if (status != ONEPASS_OK)
        return status;
    onep_call call = {.op = &onep_shard_states,
                      .name = onep_shard_states.name,
                      .handle = handle,
                      .tensors = {[S_PREDICTIONS] = predictions,
                                  [S_TARGETS] = targets,
                                  [S_LABELS] = read.tensors[LABELS],
                                  [S_INDICES] = indices,
                                  [S_CLASS_WEIGHTS] = read.tensors[CLASS_WEIGHTS],
                                  [S_ROW_MASK] = read.tensors[ROW_MASK],
                                  [S_STATES] = states}};
    memcpy(call.options, read.options, sizeof call.options);
    return onep_call_run(&call);
}

/* ---- merge ------------------------------------------------------------------------------------------------------- */

enum { GATHERED, MERGED, MERGE_ARGUMENTS };

static const onep_argument merge_arguments[MERGE_ARGUMENTS] = {
    [GATHERED] = {.info = {"gathered", "RNW", ONEPASS_READ, 1},
                  .type = ONEP_ONLY_F64,
                  .flags = ONEP_SIZES | ONEP_PROMOTES},
    [MERGED] = {.info = {"statistics", "NF", ONEPASS_WRITTEN, 1}, .type = ONEP_ONLY_F64},
};

static int is_count(double x, double most)
{
    return x >= 0 && x <= most && x == floor(x);
}

/* What the ranks have sent is of one loss, and nothing lies beyond it. */
static onepass_status check_sent(const onep_call *call, const onep_merge_problem *p)
{
    double first[3] = {0, 0, 0};
    int64_t width = onep_extent(call, 'W'), least = onepass_shard_states_width(0, 0, 0);
    for (int64_t i = 0; i < p->ranks * p->row_count; i++) {
        double header[5];
        for (int h = 0; h < 5 && width >= least; h++)
            header[h] = number_at(&p->gathered, &p->sent_rows, i, h);
        int has_targets = width >= least && header[1] != ONEP_SHARD_LABELS;
        int is_one = width >= least && is_count(header[0], 0x1p53) && is_count(header[1], ONEP_SHARD_KINDS - 1) &&
                     is_count(header[2], (double)width) && header[3] == (double)onep_shard_slices((int64_t)header[0]) &&
                     onepass_shard_states_width((int64_t)header[0], (int64_t)header[2], has_targets) <= width;
        if (!is_one)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: gathered: row %lld of rank %lld holds no states of up to %lld numbers", call->name,
                             (long long)(i % p->row_count), (long long)(i / p->row_count), (long long)width);
        const double own[3] = {header[1], header[2], header[4]};
        if (i == 0)
            memcpy(first, own, sizeof first);
        if (memcmp(first, own, sizeof first) != 0)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: gathered: rank %lld sent kind %g, %g indices, %g bits; rank 0 kind %g, %g, %g",
                             call->name, (long long)(i / p->row_count), own[0], own[1], own[2], first[0], first[1],
                             first[2]);
    }
    int64_t needed = onepass_shard_statistics_width((int64_t)first[1], first[0] != ONEP_SHARD_LABELS);
    if (p->row_count > 0 && onep_extent(call, 'F') != needed)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: statistics: %lld numbers per row; these states have %lld",
                         call->name, (long long)onep_extent(call, 'F'), (long long)needed);
    return ONEPASS_OK;
}

static onepass_status solve_merge(onep_call *call)
{
    onep_merge_problem problem = {.ranks = onep_extent(call, 'R'), .row_count = onep_extent(call, 'N')};
    if (problem.ranks == 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: gathered: shape [0, ...]; there must be a rank, this one",
                         call->name);
    problem.sent_rows = onep_rows_of(call->tensors[GATHERED]);
    problem.gathered = onep_call_operand(call, GATHERED);
    if (!call->bytes) {
        problem.rows = onep_rows_of(call->tensors[MERGED]);
        problem.statistics = onep_call_operand(call, MERGED);
    }
    onepass_status status = call->bytes || call->handle->device_class ? ONEPASS_OK : check_sent(call, &problem);
    return status == ONEPASS_OK ? onep_execute(call, &problem) : status;
}

const onep_operator onep_shard_merge = {.name = "shard_merge",
                                        .arguments = merge_arguments,
                                        .argument_count = MERGE_ARGUMENTS,
                                        .workspace = "workspace",
                                        .solve = solve_merge,
                                        .kernels = {[ONEP_REF] = onep_shard_merge_ref}};

onepass_status onepass_shard_merge(onepass_handle *handle, const onepass_tensor *gathered,
                                   const onepass_tensor *statistics)
{
    onep_call call = {
        .op = &onep_shard_merge, .handle = handle, .tensors = {[GATHERED] = gathered, [MERGED] = statistics}};
    return onep_call_run(&call);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

enum { U_PREDICTIONS, U_TARGETS, U_LABELS, U_ROW_MASK, U_STATISTICS, U_SUMS, SUMS_ARGUMENTS };

static const onep_argument sums_arguments[SUMS_ARGUMENTS] = {
    [U_PREDICTIONS] = {.info = {"predictions", "*C", ONEPASS_READ, 1}, .flags = ONEP_SIZES | ONEP_PROMOTES},
    [U_TARGETS] = {.info = {"targets", "*C", ONEPASS_READ, 1}, .flags = ONEP_PROMOTES},
    [U_LABELS] = {.info = {"options.labels", "*", ONEPASS_READ, 0}, .type = ONEP_INDEX},
    [U_ROW_MASK] = {.info = {"options.row_mask", "*", ONEPASS_READ, 0}, .type = ONEP_MASK},
    [U_STATISTICS] = {.info = {"statistics", "*F", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
    [U_SUMS] = {.info = {"sums", "*W", ONEPASS_WRITTEN, 1}, .type = ONEP_ONLY_F64},
};

static onepass_status solve_sums(onep_call *call)
{
    const onepass_tensor *const *t = call->tensors;
    onep_call loss = of_loss(call, t[U_PREDICTIONS], t[U_TARGETS], t[U_LABELS], t[U_ROW_MASK]);
    onep_shard_problem problem = {.computed = call->computed, .width = onep_extent(call, 'W')};
    if (call->options[DIVERGENCE] == ONEPASS_KL || call->options[DIVERGENCE] == ONEPASS_REVERSE_KL)
        return onep_refuse_option(call, DIVERGENCE, "one that has sums: not ONEPASS_KL nor ONEPASS_REVERSE_KL");
    onepass_status status = problem_of(&loss, &problem.loss);
    if (status != ONEPASS_OK)
        return status;
    problem.kind = kind_of(&loss);
    problem.mixture = call->options[MIXTURE];
    problem.states = onep_call_operand(call, U_SUMS);
    onep_operand statistics = onep_call_operand(call, U_STATISTICS);
    problem.loss.statistics = &statistics;
    status = onep_shard_check_statistics(call, U_STATISTICS, -(int)problem.kind, t[U_LABELS] != NULL,
                                         problem.loss.total_columns);
    if (status != ONEPASS_OK)
        return status;
    int64_t needed = onepass_shard_sums_width(problem.loss.columns);
    if (!call->bytes && problem.width < needed)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: sums: %lld numbers per row; these columns need %lld",
                         call->name, (long long)problem.width, (long long)needed);
    return onep_execute(call, &problem);
}

const onep_operator onep_shard_sums = {.name = "shard_sums",
                                       .arguments = sums_arguments,
                                       .argument_count = SUMS_ARGUMENTS,
                                       .options = options,
                                       .option_count = SHARD_OPTIONS,
                                       .workspace = "options.workspace",
                                       .variant = ONEP_TARGET_OPTIONAL,
                                       .solve = solve_sums,
                                       .kernels = ONEP_CPU_KERNELS(onep_shard_sums)};

onepass_status onepass_shard_sums(onepass_handle *handle, const onepass_tensor *predictions,
                                  const onepass_tensor *targets, const onepass_tensor *statistics,
                                  const onepass_logits_options *given, const onepass_tensor *sums)
{
    onep_call read = {.op = &onep_shard_loss, .name = onep_shard_sums.name, .handle = handle};
    onepass_status status = onep_logits_read_options(&read, given, NULL);
    if (status != ONEPASS_OK)
        return status;
    onep_call call = {.op = &onep_shard_sums,
                      .name = onep_shard_sums.name,
                      .handle = handle,
                      .tensors = {[U_PREDICTIONS] = predictions,
                                  [U_TARGETS] = targets,
                                  [U_LABELS] = read.tensors[LABELS],
                                  [U_ROW_MASK] = read.tensors[ROW_MASK],
                                  [U_STATISTICS] = statistics,
                                  [U_SUMS] = sums}};
    memcpy(call.options, read.options, sizeof call.options);
    return onep_call_run(&call);
}

/* ---- their merge ------------------------------------------------------------------------------------------------- */

enum { M_STATISTICS, M_GATHERED, M_MERGED, MERGE_SUMS_ARGUMENTS };

static const onep_argument merge_sums_arguments[MERGE_SUMS_ARGUMENTS] = {
    [M_STATISTICS] = {.info = {"statistics", "NF", ONEPASS_READ, 1},
                      .type = ONEP_ONLY_F64,
                      .flags = ONEP_SIZES | ONEP_PROMOTES},
    [M_GATHERED] = {.info = {"gathered", "RNW", ONEPASS_READ, 1}, .type = ONEP_ONLY_F64},
    [M_MERGED] = {.info = {"merged", "NF", ONEPASS_WRITTEN, 1}, .type = ONEP_ONLY_F64, .flags = ONEP_IN_PLACE},
};

/* What the ranks have sent is of the divergence whose sums the statistics lack, and of all their columns. */
static onepass_status check_sums(const onep_call *call, const onep_merge_problem *p)
{
    int64_t width = onep_extent(call, 'W'), least = onepass_shard_sums_width(0);
    double first[2] = {0, 0};
    if (p->row_count > 0 && onep_extent(call, 'F') < onepass_shard_statistics_width(0, 1))
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: statistics: %lld numbers per row; those with targets have more",
                         call->name, (long long)onep_extent(call, 'F'));
    for (int64_t row = 0; row < p->row_count; row++) {
        double columns = 0, all = number_at(&p->statistics, &p->rows, row, 0);
        double kind = number_at(&p->statistics, &p->rows, row, 1);
        for (int64_t rank = 0; rank < p->ranks; rank++) {
            double header[ONEP_SUMS_HEADER_DOUBLES];
            for (int h = 0; h < ONEP_SUMS_HEADER_DOUBLES && width >= least; h++)
                header[h] = number_at(&p->gathered, &p->sent_rows, rank * p->row_count + row, h);
            int is_one = width >= least && is_count(header[0], 0x1p53) && is_count(header[1], ONEP_SHARD_KINDS - 1) &&
                         header[1] > ONEP_SHARD_REVERSE_KL &&
                         header[3] == (double)onep_shard_slices((int64_t)header[0]) &&
                         onepass_shard_sums_width((int64_t)header[0]) <= width;
            if (!is_one)
                return onep_fail(ONEPASS_INVALID_ARGUMENT,
                                 "%s: gathered: row %lld of rank %lld holds no sums of up to %lld numbers", call->name,
                                 (long long)row, (long long)rank, (long long)width);
            if (row == 0 && rank == 0)
                memcpy(first, header + 1, sizeof first);
            if (memcmp(first, header + 1, sizeof first) != 0)
                return onep_fail(ONEPASS_INVALID_ARGUMENT,
                                 "%s: gathered: rank %lld sent kind %g, mixture %g; rank 0 kind %g, %g", call->name,
                                 (long long)rank, header[1], header[2], first[0], first[1]);
            columns += header[0];
        }
        if (kind != -first[0] || columns != all)
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: statistics: row %lld is of kind %g and %g columns; the sums of kind %g and %g",
                             call->name, (long long)row, kind, all, first[0], columns);
    }
    return ONEPASS_OK;
}

static onepass_status solve_merge_sums(onep_call *call)
{
    onep_merge_problem problem = {.ranks = onep_extent(call, 'R'), .row_count = onep_extent(call, 'N')};
    problem.rows = onep_rows_of(call->tensors[M_STATISTICS]);
    problem.statistics = onep_call_operand(call, M_STATISTICS);
    if (call->bytes)
        return onep_execute(call, &problem);
    if (problem.ranks == 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: gathered: shape [0, ...]; there must be a rank, this one",
                         call->name);
    problem.sent_rows = onep_rows_of(call->tensors[M_GATHERED]);
    problem.gathered = onep_call_operand(call, M_GATHERED);
    problem.merged_rows = onep_rows_of(call->tensors[M_MERGED]);
    problem.merged = onep_call_operand(call, M_MERGED);
    onepass_status status = call->handle->device_class ? ONEPASS_OK : check_sums(call, &problem);
    return status == ONEPASS_OK ? onep_execute(call, &problem) : status;
}

const onep_operator onep_shard_merge_sums = {.name = "shard_merge_sums",
                                             .arguments = merge_sums_arguments,
                                             .argument_count = MERGE_SUMS_ARGUMENTS,
                                             .workspace = "workspace",
                                             .solve = solve_merge_sums,
                                             .kernels = {[ONEP_REF] = onep_shard_merge_sums_ref}};

onepass_status onepass_shard_merge_sums(onepass_handle *handle, const onepass_tensor *statistics,
                                        const onepass_tensor *gathered, const onepass_tensor *merged)
{
    onep_call call = {.op = &onep_shard_merge_sums,
                      .handle = handle,
                      .tensors = {[M_STATISTICS] = statistics, [M_GATHERED] = gathered, [M_MERGED] = merged}};
    return onep_call_run(&call);
}
