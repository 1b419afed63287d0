/* Blocks, collapsed dimensions and sums of a KL problem on the CPU. See kl_plan.h. */
#include "kl_plan.h"

#include <math.h>
#include <string.h>

/* ---- collapsing ----------------------------------------------------------------------------------------------------
 */

enum { OPERANDS = 8 };

/* The problem's dimensions with the strides of every operand. */
typedef struct dimensions {
    int rank;
    int64_t extent[ONEP_MAX_RANK + 1];
    int64_t stride[ONEP_MAX_RANK + 1][OPERANDS];
} dimensions;

static void list_operands(onep_kl_problem *k, onep_operand *operands[OPERANDS])
{
    operands[0] = &k->predictions;
    operands[1] = &k->targets;
    operands[2] = &k->value;
    operands[3] = &k->grad_predictions;
    operands[4] = &k->grad_targets;
    operands[5] = &k->grad_value;
    operands[6] = &k->weights;
    operands[7] = &k->mask;
}

static void swap_dimensions(dimensions *d, int a, int b)
{
    int64_t extent = d->extent[a];
    d->extent[a] = d->extent[b];
    d->extent[b] = extent;
    int64_t strides[OPERANDS];
    memcpy(strides, d->stride[a], sizeof strides);
    memcpy(d->stride[a], d->stride[b], sizeof strides);
    memcpy(d->stride[b], strides, sizeof strides);
}

/* The larger stride outside; a repeated dimension (stride 0) outermost, so that what is repeated is read in order. */
static int belongs_outside(int64_t stride, int64_t than)
{
    return than != 0 && (stride == 0 || stride > than);
}

/* Largest stride of the predictions first, and none of them negative: element-wise work may be done in any order. */
static void sort_as_in_memory(dimensions *d, onep_operand *operands[OPERANDS])
{
    for (int i = 0; i < d->rank; i++) {
        if (d->stride[i][0] >= 0)
            continue;
        for (int o = 0; o < OPERANDS; o++) {
            if (operands[o]->data)
                operands[o]->data += d->stride[i][o] * (d->extent[i] - 1);
            d->stride[i][o] = -d->stride[i][o];
        }
    }
    for (int i = 1; i < d->rank; i++)
        for (int j = i; j > 0 && belongs_outside(d->stride[j][0], d->stride[j - 1][0]); j--)
            swap_dimensions(d, j - 1, j);
}

static int continues(const dimensions *d, int outer, int inner)
{
    for (int o = 0; o < OPERANDS; o++)
        if (d->stride[outer][o] != d->stride[inner][o] * d->extent[inner])
            return 0;
    return 1;
}

/* Merges neighbours wherever the outer one continues the inner one in every operand. */
static void merge_neighbours(dimensions *d)
{
    int kept = 0;
    for (int i = 1; i < d->rank; i++) {
        if (continues(d, kept, i)) {
            d->extent[kept] *= d->extent[i];
            memcpy(d->stride[kept], d->stride[i], sizeof d->stride[i]);
        } else {
            kept++;
            d->extent[kept] = d->extent[i];
            memmove(d->stride[kept], d->stride[i], sizeof d->stride[i]);
        }
    }
    d->rank = d->rank > 0 ? kept + 1 : 0;
}

void onep_kl_collapse(onep_kl_problem *k)
{
    if (k->rows.count == 0 || k->columns == 0)
        return;
    onep_operand *operands[OPERANDS];
    list_operands(k, operands);
    /* Rows must stay rows if anything is said or asked about each of them. */
    int free_order = k->reduction != ONEPASS_ROWS && !k->weights.data && !k->mask.data;

    dimensions d = {.rank = k->rows.rank};
    for (int i = 0; i < d.rank; i++) {
        d.extent[i] = k->rows.extent[i];
        for (int o = 0; o < OPERANDS; o++)
            d.stride[i][o] = operands[o]->row_stride[i];
    }
    if (free_order && k->columns > 1) {
        d.extent[d.rank] = k->columns;
        for (int o = 0; o < OPERANDS; o++)
            d.stride[d.rank][o] = operands[o]->col_stride;
        d.rank++;
    }
    if (free_order)
        sort_as_in_memory(&d, operands);
    merge_neighbours(&d);

    if (free_order) { /* the innermost dimension becomes the columns */
        d.rank = d.rank > 0 ? d.rank - 1 : 0;
        int64_t columns = k->rows.count * k->columns;
        for (int i = 0; i < d.rank; i++)
            columns /= d.extent[i];
        k->columns = columns;
        for (int o = 0; o < OPERANDS; o++)
            operands[o]->col_stride = d.stride[d.rank][o];
    }
    k->rows.rank = d.rank;
    k->rows.count = 1;
    for (int i = 0; i < d.rank; i++) {
        k->rows.extent[i] = d.extent[i];
        k->rows.count *= d.extent[i];
        for (int o = 0; o < OPERANDS; o++)
            operands[o]->row_stride[i] = d.stride[i][o];
    }
}

/* ---- blocks
 * ---------------------------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

onep_kl_plan onep_kl_plan_of(const onep_kl_problem *k)
{
    onep_kl_plan plan = {.parts = 1, .rows_per_block = 1, .columns_per_part = k->columns};
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
    plan.blocks = ceil_div(k->rows.count, plan.rows_per_block);
    return plan;
}

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

/* ---- strided elements
 * -------------------------------------------------------------------------------------------------- */

/* One copy loop a size: with the size a constant, each becomes a plain load and store. */
static inline __attribute__((always_inline)) void copy_elements(char *to, int64_t to_stride, const char *from,
                                                                int64_t from_stride, size_t size, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * to_stride, from + i * from_stride, size);
}

static void copy_strided(char *to, int64_t to_stride, const char *from, int64_t from_stride, size_t size, int64_t count)
{
    if (to_stride == (int64_t)size && from_stride == (int64_t)size)
        memcpy(to, from, size * (size_t)count);
    else if (size == 2)
        copy_elements(to, to_stride, from, from_stride, 2, count);
    else if (size == 4)
        copy_elements(to, to_stride, from, from_stride, 4, count);
    else
        copy_elements(to, to_stride, from, from_stride, 8, count);
}

void onep_collect(void *to, const char *from, int64_t stride, size_t size, int64_t count)
{
    copy_strided(to, (int64_t)size, from, stride, size, count);
}

void onep_spread(char *to, int64_t stride, const void *from, size_t size, int64_t count)
{
    copy_strided(to, stride, from, (int64_t)size, size, count);
}
