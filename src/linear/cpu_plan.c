/* The linear layer's workspace on the CPU. See linear.h. */
#include "cpu/product_plan.h"
#include "linear/linear.h"

size_t onep_linear_cpu_bytes(int64_t rows, int64_t depth, int64_t columns, onep_type computed, int32_t threads)
{
    size_t element = onep_type_size(computed);
    size_t forward = onep_product_bytes(rows, columns, element, threads);
    size_t grad_input = onep_product_bytes(rows, depth, element, threads);
    size_t grad_weight = onep_product_bytes(columns, depth, element, threads);
    size_t most = forward > grad_input ? forward : grad_input;
    return most > grad_weight ? most : grad_weight;
}
