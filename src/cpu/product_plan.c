/* Tiles, slots and the caller's workspace. See product_plan.h. */
#include "cpu/product_plan.h"

/* Equal parts of at most `most`, each a multiple. */
static int64_t part(int64_t total, int64_t most, int64_t multiple, int64_t *parts)
{
    *parts = (total + most - 1) / most;
    if (*parts == 0)
        return multiple;
    int64_t size = onep_round_up((total + *parts - 1) / *parts, multiple);
    *parts = (total + size - 1) / size;
    return size;
}

onep_product_plan onep_product_plan_of(int64_t rows, int64_t columns, size_t element)
{
    onep_product_plan plan = {.depth_block = ONEP_DEPTH_BYTES / (int64_t)element, .element = element};
    plan.tile_rows = part(rows, ONEP_TILE_ROWS, ONEP_STRIP_MULTIPLE, &plan.row_tiles);
    int64_t most = ONEP_TILE_COLUMNS;
    plan.tile_columns = part(columns, most, ONEP_PANEL_MULTIPLE, &plan.column_tiles);
    while (most > ONEP_LEAST_COLUMNS && plan.row_tiles * plan.column_tiles < ONEP_WANTED_TILES) {
        most /= 2;
        plan.tile_columns = part(columns, most, ONEP_PANEL_MULTIPLE, &plan.column_tiles);
    }
    plan.a_stride = plan.depth_block + ONEP_STAGGER;
    plan.c_stride = plan.tile_columns + ONEP_STAGGER;
    return plan;
}

/* ---- the workspace ----------------------------------------------------------------------------------------------- */

static size_t whole_lines(size_t bytes)
{
    return (bytes + ONEP_LINE - 1) / ONEP_LINE * ONEP_LINE;
}

void *onep_arena_take(onep_arena *arena, size_t bytes)
{
    void *taken = arena->base ? arena->base + arena->used : NULL;
    arena->used += whole_lines(bytes);
    return taken;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static size_t a_bytes(const onep_product_plan *plan)
{
    return whole_lines((size_t)(plan->tile_rows * plan->a_stride) * plan->element);
}

static size_t b_bytes(const onep_product_plan *plan)
{
    return whole_lines((size_t)(plan->tile_columns * plan->depth_block) * plan->element);
}

static size_t c_bytes(const onep_product_plan *plan)
{
    return whole_lines((size_t)(plan->tile_rows * plan->c_stride) * plan->element);
}

static size_t segment_bytes(const onep_product_plan *plan)
{
    return whole_lines((size_t)ONEP_SEGMENT_ROWS * ONEP_SEGMENT_LENGTH * plan->element);
}

int32_t onep_useful_threads(const onep_product_plan *plan, int32_t threads)
{
    int64_t tiles = plan->row_tiles * plan->column_tiles;
    return tiles < threads ? (int32_t)tiles : threads;
}

onep_slots onep_slots_take(onep_arena *arena, const onep_product_plan *plan, int32_t threads, size_t extra)
{
    onep_slots slots = {.count = threads < 1 ? 1 : threads, .plan = *plan};
    slots.bytes = a_bytes(plan) + b_bytes(plan) + c_bytes(plan) + segment_bytes(plan) + whole_lines(extra);
    slots.taken = (char *)onep_arena_take(arena, (size_t)slots.count);
    slots.memory = (char *)onep_arena_take(arena, (size_t)slots.count * slots.bytes);
    return slots;
}

void onep_slots_open(const onep_slots *slots)
{
    for (int32_t i = 0; i < slots->count; i++)
        __atomic_clear(&slots->taken[i], __ATOMIC_RELAXED);
}

int32_t onep_slot_enter(const onep_slots *slots)
{
    for (int32_t i = 0;; i = (i + 1) % slots->count)
        if (!__atomic_test_and_set(&slots->taken[i], __ATOMIC_ACQUIRE))
            return i;
}

void onep_slot_leave(const onep_slots *slots, int32_t index)
{
    __atomic_clear(&slots->taken[index], __ATOMIC_RELEASE);
}

onep_slot onep_slot_of(const onep_slots *slots, int32_t index)
{
    onep_slot slot;
    slot.a = slots->memory + (size_t)index * slots->bytes;
    slot.b = slot.a + a_bytes(&slots->plan);
    slot.c = slot.b + b_bytes(&slots->plan);
    slot.segments = slot.c + c_bytes(&slots->plan);
    return slot;
}

char *onep_slot_extra(const onep_slots *slots, int32_t index)
{
    return onep_slot_of(slots, index).segments + segment_bytes(&slots->plan);
}

size_t onep_product_bytes(int64_t rows, int64_t columns, size_t element, int32_t threads)
{
    onep_product_plan plan = onep_product_plan_of(rows, columns, element);
    onep_arena arena = {NULL, 0};
    onep_slots_take(&arena, &plan, onep_useful_threads(&plan, threads), 0);
    return arena.used;
}

int onep_rows_even(const onep_operand *operand, const onep_rows *rows, int64_t *stride)
{
    *stride = rows->rank > 0 ? operand->row_stride[rows->rank - 1] : 0;
    for (int k = rows->rank - 2; k >= 0; k--)
        if (operand->row_stride[k] != operand->row_stride[k + 1] * rows->extent[k + 1])
            return 0;
    return 1;
}
