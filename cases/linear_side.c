/* See linear_side.h. */
#include "cases/linear_side.h"

#include <math.h>

#include "cases/linear.h"

static char depth_letter(const op_case *c, const char *weight)
{
    return case_shape_of(c, case_argument_named(c, weight))[1];
}

linear_side linear_side_of(const op_case *c)
{
    return (linear_side){case_argument_named(c, "input"), case_argument_named(c, "weight"),
                         case_argument_named(c, "bias"), case_extent(c, depth_letter(c, "weight"))};
}

linear_side linear_side_of_teacher(const op_case *c)
{
    return (linear_side){case_argument_named(c, "target_input"), case_argument_named(c, "target_weight"),
                         case_argument_named(c, "target_bias"), case_extent(c, depth_letter(c, "target_weight"))};
}

linear_types linear_types_of(case_arithmetic arithmetic, onepass_dtype promoted)
{
    onepass_dtype computed = case_computed(promoted);
    return (linear_types){arithmetic, computed, arithmetic == CASE_CUDA ? promoted : computed};
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

long double linear_side_put_logits(const op_case *c, const linear_side *side, linear_types types, int64_t row,
                                   int64_t columns, op_case *to, int to_argument)
{
    long double most = 0;
    int64_t width = case_extent(c, 'C');
    for (int64_t j = 0; j < width; j++) {
        case_product sum = {0};
        sum.value = case_was_or(c, side->bias, j, 0);
        sum.size = fabsl(sum.value);
        for (int64_t k = 0; k < side->depth; k++)
            case_product_add(&sum, case_was(c, side->input, row * side->depth + k),
                             case_was(c, side->weight, j * side->depth + k));
        case_put(to, to_argument, row * width + j, (double)sum.value);
        if (!isfinite(sum.value) || j >= columns)
            continue;
        long double error = case_product_error(&sum, types.arithmetic, types.computed) + case_smallest(types.computed);
        error += case_half_unit(types.kept, fabsl(sum.value) + error);
        most = error > most ? error : most;
    }
    return most;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* One element of a product with the gradient: g as far as it is known, times an exact number. */
static void add_gradient(const linear_gradient *from, case_product *sum, long double *error, int64_t index,
                         long double by)
{
    long double g = from->of_logits->expected[index];
    long double unsure = from->of_logits->allowed[index] + from->slack[index];
    unsure += isfinite(g) ? case_half_unit(from->types.kept, fabsl(g) + unsure) : 0;
    case_product_add(sum, g, by);
    sum->size += isfinite(g) ? unsure * fabsl(by) : 0;
    *error += unsure * fabsl(by);
}

void linear_side_expect_gradients(op_case *c, const linear_side *student, int grad_input, const linear_gradient *g)
{
    int grad_weight = case_argument_named(c, "grad_weight"), grad_bias = case_argument_named(c, "grad_bias");
    int64_t depth = student->depth;
    onepass_dtype computed = g->types.computed;
    case_arithmetic arithmetic = g->types.arithmetic;
    long double least = case_smallest(computed);
    /* Sums of grad_weight are rounded after every chunk: on CUDA to its own type, and every run of rows with one stride
     * is a chunk. One has 128 rows or more unless it is the last one of a run. */
    long double chunks = 1 + (long double)g->rows / 128;
    for (int d = 0; d + 1 < c->leading_rank && arithmetic == CASE_CUDA; d++)
        chunks += (long double)c->leading[d] * (d == 0 ? 1 : chunks);
    onepass_dtype summed = arithmetic == CASE_CUDA ? c->argument[grad_weight].dtype : computed;
    for (int64_t i = 0; i < g->rows; i++)
        for (int64_t k = 0; k < depth; k++) {
            case_product sum = {0};
            long double error = 0;
            for (int64_t j = 0; j < g->width && g->takes_part(c, i); j++)
                add_gradient(g, &sum, &error, i * g->width + j, case_was(c, student->weight, j * depth + k));
            case_expected(c, grad_input, i * depth + k, sum.value,
                          sum.n ? error + case_product_error(&sum, arithmetic, computed) + least : 0);
        }
    for (int64_t j = 0; j < g->width; j++) {
        case_product bias = {0};
        long double bias_error = 0;
        for (int64_t i = 0; i < g->rows; i++)
            if (g->takes_part(c, i))
                add_gradient(g, &bias, &bias_error, i * g->width + j, 1);
        case_expected(c, grad_bias, j, bias.value, bias_error + case_product_error(&bias, arithmetic, case_f64));
        for (int64_t k = 0; k < depth; k++) {
            case_product sum = {0};
            long double error = 0;
            for (int64_t i = 0; i < g->rows; i++)
                if (g->takes_part(c, i))
                    add_gradient(g, &sum, &error, i * g->width + j, case_was(c, student->input, i * depth + k));
            error += case_product_error(&sum, arithmetic, computed) + chunks * case_half_unit(summed, sum.size) + least;
            case_expected(c, grad_weight, j * depth + k, sum.value, error);
        }
    }
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

void linear_side_put_weight(op_case *c, const linear_side *side, double size, case_random *random)
{
    double deviation = size / sqrt((double)(side->depth > 0 ? side->depth : 1));
    for (int64_t i = 0; i < case_extent(c, 'C') * side->depth; i++)
        case_put(c, side->weight, i, deviation * case_random_normal(random));
}

void linear_side_put_towering_row(op_case *c, const linear_side *side, int64_t row, int64_t column, double height)
{
    double square = 0;
    for (int64_t k = 0; k < side->depth; k++)
        square += pow(case_get(c, side->weight, column * side->depth + k), 2);
    for (int64_t k = 0; k < side->depth && square > 1e-3; k++)
        case_put(c, side->input, row * side->depth + k,
                 case_get(c, side->weight, column * side->depth + k) * height / square);
}
