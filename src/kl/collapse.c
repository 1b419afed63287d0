/*
 * Fewer, longer rows for a KL problem, whatever device computes it. See kl.h.
 */
#include <string.h>

#include "kl/kl.h"

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

static int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
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

/* The larger stride outside, as the first operand has it that repeats neither of the two dimensions (stride 0). */
static int belongs_outside(const dimensions *d, int dimension, int than)
{
    for (int o = 0; o < OPERANDS; o++) {
        int64_t stride = d->stride[dimension][o], other = d->stride[than][o];
        if (stride != 0 && other != 0 && stride != other)
            return magnitude(stride) > magnitude(other);
    }
    return 0;
}

/*
 * Largest stride of the predictions first, and none of them negative: element-wise work may be done in any order. Where
 * the predictions are repeated along a dimension, the next operand decides.
 */
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
        for (int j = i; j > 0 && belongs_outside(d, j, j - 1); j--)
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
