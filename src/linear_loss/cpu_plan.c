/* The workspace of a loss from hidden states. See cpu_plan.h. */
#include "linear_loss/cpu_plan.h"

_Static_assert(sizeof(onep_linear_loss_layout) <= sizeof(onep_cpu_plan), "a plan holds a layout");

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The slots of any product with up to so many rows: tiles as large and as many as there may be. */
static size_t slots_bytes(int64_t rows, int64_t columns, size_t element, int32_t threads)
{
    onep_product_plan plan = onep_product_plan_of(rows, columns, element);
    plan.tile_rows = smaller(onep_round_up(rows, ONEP_STRIP_MULTIPLE), ONEP_TILE_ROWS);
    plan.tile_columns = smaller(onep_round_up(columns, ONEP_PANEL_MULTIPLE), ONEP_TILE_COLUMNS);
    plan.c_stride = plan.tile_columns + ONEP_STAGGER;
    plan.row_tiles = (rows + ONEP_TILE_ROWS - 1) / ONEP_TILE_ROWS + 1; /* equal tiles of less: one more may fit in */
    plan.column_tiles = (columns + ONEP_LEAST_COLUMNS - 1) / ONEP_LEAST_COLUMNS;
    onep_arena arena = {NULL, 0};
    onep_slots_take(&arena, &plan, onep_useful_threads(&plan, threads), 0);
    return arena.used;
}

/* An array of doubles, or of integers as long, one per row of a chunk. */
static void *per_row(onep_arena *arena, const onep_linear_loss_layout *l)
{
    return onep_arena_take(arena, (size_t)l->capacity * sizeof(double));
}

/* Rows of numbers, each from the beginning of a cache line. Their place is the caller's to give. */
static onep_operand rows_of_numbers(int64_t columns, onep_type type)
{
    int64_t element = (int64_t)onep_type_size(type);
    onep_operand made = {.type = type, .col_stride = element};
    made.row_stride[0] = onep_round_up(columns * element, ONEP_LINE);
    return made;
}

static char *take_rows(onep_arena *arena, int64_t rows, const onep_operand *numbers)
{
    return (char *)onep_arena_take(arena, (size_t)(rows * numbers->row_stride[0]));
}

onep_linear_loss_layout onep_linear_loss_layout_of(const onep_linear_loss_problem *p, onep_type computed,
                                                   int32_t threads, char *workspace, size_t *bytes)
{
    int64_t rows = p->rows.count, columns = p->width, element = (int64_t)onep_type_size(computed);
    int64_t depth = p->student.depth, has_teacher = onep_linear_loss_has_teacher(p);
    int64_t deepest = has_teacher && p->teacher.depth > depth ? p->teacher.depth : depth;
    onep_linear_loss_layout l = {.capacity = 0};
    double sides = has_teacher ? 2 : 1;
    double row_bytes = (sides * (double)columns + (double)deepest) * (double)element + (1 + sides) * ONEP_LINE;
    double whole = row_bytes * ONEP_TILE_ROWS + (double)columns * (double)depth * (double)element;
    if (!(whole < 0x1p61)) { /* more than any memory, and than what is computed below */
        *bytes = SIZE_MAX / 2;
        return l;
    }
    int64_t fitting = (int64_t)((double)p->chunk_bytes / row_bytes);
    l.capacity = smaller(rows, fitting > ONEP_TILE_ROWS ? fitting : ONEP_TILE_ROWS);
    onep_arena arena = {workspace, 0};
    l.chunk = (onep_logits_problem *)onep_arena_take(&arena, sizeof *l.chunk);
    l.logits = rows_of_numbers(columns, computed);
    l.logits.data = take_rows(&arena, l.capacity, &l.logits);
    l.hidden = rows_of_numbers(deepest, computed);
    l.hidden.data = take_rows(&arena, l.capacity, &l.hidden);
    l.hidden.row_stride[0] = rows_of_numbers(depth, computed).row_stride[0];
    if (has_teacher) {
        l.target_logits = l.logits;
        l.target_logits.data = take_rows(&arena, l.capacity, &l.logits);
        l.target_hidden = rows_of_numbers(p->teacher.depth, computed);
        l.target_hidden.data = l.hidden.data;
    }
    l.rows = (int64_t *)per_row(&arena, &l);
    l.labels = (int64_t *)per_row(&arena, &l);
    l.argmax = (int64_t *)per_row(&arena, &l);
    l.weights = (double *)per_row(&arena, &l);
    l.upstream = (double *)per_row(&arena, &l);
    l.value = (double *)per_row(&arena, &l);
    l.lse = (double *)per_row(&arena, &l);
    l.entropy = (double *)per_row(&arena, &l);
    l.log_prob = (double *)per_row(&arena, &l);
    if (has_teacher) {
        l.target_lse = (double *)per_row(&arena, &l);
        l.target_entropy = (double *)per_row(&arena, &l);
    }
    /* Whether grad_bias is made may not be known where the size is asked for. */
    l.grad_bias = (double *)onep_arena_take(&arena, (size_t)columns * sizeof(double));
    l.grad_weight = p->grad_weight;
    if (p->grad_weight.data && p->grad_weight.type != computed && l.capacity < rows) {
        l.grad_weight = (onep_operand){.type = computed, .col_stride = element};
        l.grad_weight.row_stride[0] = depth * element;
        l.grad_weight.data = (char *)onep_arena_take(&arena, (size_t)(columns * depth * element));
    }
    l.rest = arena;
    size_t slots = larger(slots_bytes(l.capacity, columns, (size_t)element, threads),
                          slots_bytes(l.capacity, depth, (size_t)element, threads));
    *bytes = arena.used + larger(slots, onep_product_bytes(columns, depth, (size_t)element, threads));
    return l;
}
