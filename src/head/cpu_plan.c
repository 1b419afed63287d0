/* The head's workspace. See cpu_plan.h. */
#include "head/cpu_plan.h"

#include "linear/linear.h"

_Static_assert(sizeof(onep_head_layout) <= sizeof(onep_cpu_plan) &&
                   sizeof(onep_head_backward_layout) <= sizeof(onep_cpu_plan),
               "a plan holds either layout");

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void take_features(onep_arena *arena, int64_t columns, size_t element, onep_head_layout *l)
{
    size_t features = (size_t)(columns + ONEP_HEAD_PADDING) * element;
    l->slope = (char *)onep_arena_take(arena, features);
    l->shift = (char *)onep_arena_take(arena, features);
    l->lift = (char *)onep_arena_take(arena, features);
}

onep_head_layout onep_head_layout_of(const onep_head_problem *p, onep_type computed, int32_t threads, char *workspace,
                                     size_t *bytes)
{
    size_t element = onep_type_size(computed);
    int batch = p->statistics == ONEPASS_BATCH_STATISTICS;
    int in_output = p->output.type == computed && p->output.col_stride == (int64_t)element;
    int in_workspace = !p->product.data && !in_output && p->output.data; /* head_statistics has no output */
    onep_arena arena = {workspace, 0};
    onep_head_layout l = {.product = p->product.data ? p->product : p->output};
    l.panel_rows = in_workspace && !batch ? smaller(p->rows.count, ONEP_HEAD_PANEL_ROWS) : p->rows.count;
    l.plan = onep_product_plan_of(l.panel_rows, p->columns, element);
    l.block_rows = larger(1, ONEP_HEAD_BLOCK_ELEMENTS / p->columns);
    l.room = onep_round_up(p->columns, ONEP_HEAD_PADDING);
    int64_t most = larger(l.plan.row_tiles * l.plan.column_tiles, (l.panel_rows + l.block_rows - 1) / l.block_rows);
    l.slots = onep_slots_take(&arena, &l.plan, (int32_t)smaller(most, threads), 2 * (size_t)l.room * element);

    take_features(&arena, p->columns, element, &l);
    if (batch)
        l.partial =
            (double *)onep_arena_take(&arena, (size_t)l.plan.row_tiles * 2 * (size_t)p->columns * sizeof(double));
    if (in_workspace) {
        l.product = (onep_operand){.type = computed, .col_stride = (int64_t)element};
        l.product.row_stride[0] = l.room * (int64_t)element;
        l.product.data = (char *)onep_arena_take(&arena, (size_t)l.panel_rows * (size_t)l.room * element);
    }
    *bytes = arena.used;
    return l;
}

onep_head_layout onep_head_softmax_layout_of(const onep_head_problem *p, onep_type computed, int32_t threads,
                                             char *workspace, size_t *bytes)
{
    size_t element = onep_type_size(computed);
    onep_arena arena = {workspace, 0};
    onep_head_layout l = {.product = p->product, .plan = onep_product_plan_of(0, 0, element)};
    l.block_rows = larger(1, ONEP_HEAD_BLOCK_ELEMENTS / p->columns);
    l.room = onep_round_up(p->columns, ONEP_HEAD_PADDING);
    int64_t blocks = (p->rows.count + l.block_rows - 1) / l.block_rows;
    l.slots = onep_slots_take(&arena, &l.plan, (int32_t)smaller(blocks, threads), 2 * (size_t)l.room * element);
    take_features(&arena, p->columns, element, &l);
    *bytes = arena.used;
    return l;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

onep_head_backward_layout onep_head_sums_layout_of(const onep_head_backward_problem *p, onep_type computed,
                                                   int32_t threads, char *workspace, size_t *bytes)
{
    size_t element = onep_type_size(computed);
    size_t features = (size_t)(p->columns + ONEP_HEAD_PADDING) * element;
    onep_arena arena = {workspace, 0};
    onep_head_backward_layout l = {.plan = onep_product_plan_of(0, 0, element)};
    l.block_rows = larger(ONEP_HEAD_SUM_ROWS, (p->rows.count + ONEP_HEAD_SUM_BLOCKS - 1) / ONEP_HEAD_SUM_BLOCKS);
    l.block_rows = onep_round_up(l.block_rows, ONEP_HEAD_GROUP);
    l.blocks = (p->rows.count + l.block_rows - 1) / l.block_rows;
    l.mean = (char *)onep_arena_take(&arena, features);
    l.rstd = (char *)onep_arena_take(&arena, features);
    l.slope = (char *)onep_arena_take(&arena, features);
    l.s0 = (char *)onep_arena_take(&arena, features);
    l.s1 = (char *)onep_arena_take(&arena, features);
    l.dot = (char *)onep_arena_take(&arena, (size_t)p->rows.count * element);
    l.partial = (double *)onep_arena_take(&arena, (size_t)l.blocks * 2 * (size_t)p->columns * sizeof(double));
    l.slots = onep_slots_take(&arena, &l.plan, (int32_t)smaller(l.blocks, threads), 0);
    l.rest = arena;
    *bytes = arena.used;
    return l;
}

onep_head_backward_layout onep_head_backward_layout_of(const onep_head_backward_problem *p, onep_type computed,
                                                       int32_t threads, char *workspace, size_t *bytes)
{
    onep_head_backward_layout l = onep_head_sums_layout_of(p, computed, threads, workspace, bytes);
    *bytes += onep_linear_cpu_bytes(p->rows.count, p->depth, p->columns, computed, threads);
    return l;
}
