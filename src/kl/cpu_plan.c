/* Blocks, tiles and sums of a KL problem on the CPU. See cpu_plan.h. */
#include "kl/cpu_plan.h"

#include <math.h>

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

int64_t onep_kl_row_stride(const onep_kl_problem *k, const onep_operand *operand)
{
    return k->rows.rank > 0 ? operand->row_stride[k->rows.rank - 1] : 0;
}

/* Counts the element-wise operands, and those of them whose columns lie closer together in memory than their rows. */
static void count_layouts(const onep_kl_problem *k, int *operands, int *by_columns)
{
    const onep_operand *all[] = {&k->predictions,  &k->targets, &k->grad_predictions,
                                 &k->grad_targets, &k->value,   &k->grad_value};
    int element_wise = k->reduction == ONEPASS_NONE ? 6 : 4;
    *operands = *by_columns = 0;
    for (int i = 0; i < element_wise; i++) {
        int64_t row = magnitude(onep_kl_row_stride(k, all[i])), column = magnitude(all[i]->col_stride);
        if (!all[i]->data || row == 0 || column == 0)
            continue; /* what is repeated lies well either way */
        *operands += 1;
        *by_columns += row < column;
    }
}

/*
 * Tiles for rows that are short or lie across memory. Where operands disagree, tiles are squares: each is then read and
 * written in whole lines of the cache, whichever way it lies.
 */
static void choose_tiles(const onep_kl_problem *k, onep_kl_plan *plan)
{
    int operands, by_columns;
    count_layouts(k, &operands, &by_columns);
    int64_t neighbours = k->rows.rank > 0 ? k->rows.extent[k->rows.rank - 1] : 1;
    if (neighbours <= 1 || k->columns == 0)
        return;
    if (by_columns > 0 && by_columns == operands) {
        plan->by_columns = 1;
        int64_t share = k->rows.count / ONEP_KL_TALL_BLOCKS;
        int64_t tall = share > ONEP_STRIP ? ONEP_STRIP : share > ONEP_KL_TALL_ROWS ? share : ONEP_KL_TALL_ROWS;
        if (plan->rows_per_block < tall)
            plan->rows_per_block = tall;
        plan->tile_rows = smaller(smaller(neighbours, plan->rows_per_block), ONEP_STRIP);
        plan->tile_columns =
            plan->tile_rows < ONEP_KL_TALL_ROWS ? smaller(k->columns, ONEP_STRIP / plan->tile_rows) : 1;
    } else if (by_columns > 0) {
        plan->tile_columns = smaller(k->columns, ONEP_KL_TILE_SIDE);
        plan->tile_rows = smaller(neighbours, ONEP_STRIP / plan->tile_columns);
        if (plan->rows_per_block < plan->tile_rows)
            plan->rows_per_block = plan->tile_rows;
    } else if (k->columns <= ONEP_KL_SHORT_ROW) {
        plan->tile_columns = k->columns;
        int64_t rows = ONEP_STRIP / k->columns, step = ONEP_KL_WHOLE_VECTORS;
        for (; step > 1 && k->columns * (step / 2) % ONEP_KL_WHOLE_VECTORS == 0; step /= 2)
            ;
        plan->tile_rows = smaller(neighbours, rows > step ? rows - rows % step : rows);
    }
}

onep_kl_plan onep_kl_plan_of(const onep_kl_problem *k)
{
    onep_kl_plan plan = {.rows_per_block = 1, .parts = 1, .columns_per_part = k->columns};
    int64_t most = k->rows.count ? ONEP_KL_MAX_BLOCKS / k->rows.count : 1; /* parts of a row */
    int64_t useful = k->columns / ONEP_KL_BLOCK_ELEMENTS;
    int64_t parts = most < useful ? most : useful;
    if (parts > 1) {
        plan.columns_per_part = ceil_div(ceil_div(k->columns, parts), ONEP_KL_SEGMENT) * ONEP_KL_SEGMENT;
        plan.parts = ceil_div(k->columns, plan.columns_per_part);
        plan.blocks = plan.parts * k->rows.count;
        return plan;
    }
    int64_t fewest = ceil_div(k->rows.count, ONEP_KL_MAX_BLOCKS); /* rows of a block */
    int64_t worth = k->columns ? ceil_div(ONEP_KL_BLOCK_ELEMENTS, k->columns) : k->rows.count;
    plan.rows_per_block = fewest > worth ? fewest : worth;
    if (plan.rows_per_block < 1)
        plan.rows_per_block = 1;
    choose_tiles(k, &plan);
    plan.blocks = ceil_div(k->rows.count, plan.rows_per_block);
    return plan;
}

int onep_kl_tile_is_contiguous(const onep_kl_problem *k, const onep_kl_plan *plan, const onep_operand *operand)
{
    int64_t size = (int64_t)onep_type_size(operand->type);
    int64_t row = onep_kl_row_stride(k, operand), column = operand->col_stride;
    if (plan->by_columns)
        return row == size && plan->tile_columns == 1;
    return plan->tile_columns == k->columns && row == size * k->columns && (column == size || k->columns == 1);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

onep_kl_row onep_kl_row_at(const onep_kl_problem *k, int64_t index)
{
    return (onep_kl_row){.predictions = onep_row_address(&k->predictions, &k->rows, index),
                         .targets = onep_row_address(&k->targets, &k->rows, index),
                         .upstream = onep_row_address(&k->grad_value, &k->rows, index),
                         .value = onep_row_address(&k->value, &k->rows, index),
                         .grad_predictions = onep_row_address(&k->grad_predictions, &k->rows, index),
                         .grad_targets = onep_row_address(&k->grad_targets, &k->rows, index),
                         .weights = onep_row_address(&k->weights, &k->rows, index),
                         .mask = onep_row_address(&k->mask, &k->rows, index)};
}

static char *shifted(char *address, int64_t bytes)
{
    return address ? address + bytes : NULL;
}

onep_kl_row onep_kl_row_below(const onep_kl_problem *k, const onep_kl_row *row, int64_t rows)
{
    return (onep_kl_row){.predictions = shifted(row->predictions, rows * onep_kl_row_stride(k, &k->predictions)),
                         .targets = shifted(row->targets, rows * onep_kl_row_stride(k, &k->targets)),
                         .upstream = shifted(row->upstream, rows * onep_kl_row_stride(k, &k->grad_value)),
                         .value = shifted(row->value, rows * onep_kl_row_stride(k, &k->value)),
                         .grad_predictions =
                             shifted(row->grad_predictions, rows * onep_kl_row_stride(k, &k->grad_predictions)),
                         .grad_targets = shifted(row->grad_targets, rows * onep_kl_row_stride(k, &k->grad_targets)),
                         .weights = shifted(row->weights, rows * onep_kl_row_stride(k, &k->weights)),
                         .mask = shifted(row->mask, rows * onep_kl_row_stride(k, &k->mask))};
}

/* Weights and masks have no columns, and neither have values and their upstream gradients unless elements have them. */
onep_kl_row onep_kl_row_from(const onep_kl_problem *k, const onep_kl_row *row, int64_t column)
{
    onep_kl_row from = *row;
    from.predictions = shifted(row->predictions, column * k->predictions.col_stride);
    from.targets = shifted(row->targets, column * k->targets.col_stride);
    from.grad_predictions = shifted(row->grad_predictions, column * k->grad_predictions.col_stride);
    from.grad_targets = shifted(row->grad_targets, column * k->grad_targets.col_stride);
    if (k->reduction == ONEPASS_NONE) {
        from.upstream = shifted(row->upstream, column * k->grad_value.col_stride);
        from.value = shifted(row->value, column * k->value.col_stride);
    }
    return from;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

void onep_kl_finish(const onep_kl_problem *k, const onep_kl_plan *plan, const onep_sum *partial)
{
    if (!k->value.data || k->reduction == ONEPASS_NONE)
        return;
    if (k->reduction == ONEPASS_ROWS) {
        if (plan->parts == 1)
            return; /* the blocks held whole rows and have stored them */
        for (int64_t row = 0; row < k->rows.count; row++) {
            onep_sum sum = {0, 0};
            for (int64_t part = 0; part < plan->parts; part++)
                onep_sum_add(&sum, onep_sum_value(partial[row * plan->parts + part]));
            onep_store(k->value.type, onep_row_address(&k->value, &k->rows, row), onep_sum_value(sum));
        }
        return;
    }
    onep_sum total = {0, 0};
    for (int64_t block = 0; block < plan->blocks; block++) {
        onep_sum_add(&total, partial[block].sum);
        onep_sum_add(&total, isfinite(partial[block].lost) ? partial[block].lost : 0);
    }
    onep_store(k->value.type, k->value.data, onep_sum_value(total) / k->divisor);
}
