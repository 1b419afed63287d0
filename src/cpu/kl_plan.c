/* Blocks and sums of a KL problem on the CPU. See kl_plan.h. */
#include "kl_plan.h"

#include <math.h>
#include <string.h>

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
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

/* ---- strided elements -------------------------------------------------------------------------------------------- */

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
    copy_strided((char *)to, (int64_t)size, from, stride, size, count);
}

void onep_spread(char *to, int64_t stride, const void *from, size_t size, int64_t count)
{
    copy_strided(to, stride, (const char *)from, (int64_t)size, size, count);
}
