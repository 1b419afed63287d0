/* The linear layer on a CUDA device: three products (product.h) and the column sums for the bias. */
#include "head_cuda.h"
#include "split.h"

static onep_rows weight_rows(int64_t columns)
{
    onep_rows rows = {.rank = columns == 1 ? 0 : 1, .count = columns};
    rows.extent[0] = columns;
    return rows;
}

size_t onep_linear_cuda_workspace(onep_cuda *cuda, const onep_linear_problem *p, onep_product_math math)
{
    int64_t rows = p->rows.count, depth = p->depth, columns = p->columns;
    onep_type input = p->input.type, weight = p->weight.type;
    onep_rows of_weight = weight_rows(columns);
    onep_product products[] = {
        /* the output has the type of the operands, or is wider */
        {.m = rows, .n = columns, .k = depth, .b = p->weight, .b_rows = of_weight, .c.type = weight},
        {.m = rows, .n = columns, .k = depth, .b = p->weight, .b_rows = of_weight, .c.type = ONEP_F32},
        {.m = rows, .n = depth, .k = columns, .b = p->weight, .b_rows = of_weight, .b_swapped = 1, .c.type = input},
        {.m = columns,
         .n = depth,
         .k = rows,
         .b = p->input,
         .b_rows = p->rows,
         .b_swapped = 1,
         .c.type = weight,
         .a_swapped = 1},
    };
    size_t most = 0;
    for (int i = 0; i < 4; i++) {
        products[i].operator_name = "linear";
        products[i].math = math;
        products[i].may_exchange = 1;
        size_t bytes = onep_product_workspace(cuda, &products[i]);
        most = bytes > most ? bytes : most;
    }
    return most ? most + 256 : 0; /* the caller's address may be anything */
}

static void *aligned(void *workspace)
{
    return workspace ? (void *)(((uintptr_t)workspace + 255) / 256 * 256) : NULL;
}

size_t onep_weight_cuda_bytes(int64_t columns, int64_t depth)
{
    return onep_split_planes_bytes(columns, depth);
}

onepass_status onep_weight_cuda_prepare(onep_cuda *cuda, const onep_operand *weight, int64_t columns, int64_t depth,
                                        void *prepared)
{
    onep_rows rows = weight_rows(columns);
    return onep_split_prepare(cuda, "prepare_weight", weight, &rows, depth, prepared);
}

onepass_status onep_linear_cuda_run(onep_cuda *cuda, const onep_linear_problem *p, onep_product_math math)
{
    onep_product product = {
        .operator_name = "linear",
        .m = p->rows.count,
        .n = p->columns,
        .k = p->depth,
        .a = p->input,
        .a_rows = p->rows,
        .b = p->weight,
        .b_rows = weight_rows(p->columns),
        .c = p->output,
        .c_rows = p->rows,
        .bias = p->bias,
        .math = math,
        .b_planes = p->prepared,
        .may_exchange = 1,
    };
    return onep_product_run(cuda, &product, aligned(p->workspace));
}

onepass_status onep_linear_backward_cuda_run(onep_cuda *cuda, const onep_linear_backward_problem *p,
                                             onep_product_math math)
{
    onep_product to_input = {
        .operator_name = "linear_backward",
        .m = p->rows.count,
        .n = p->depth,
        .k = p->columns,
        .a = p->grad_output,
        .a_rows = p->rows,
        .b = p->weight,
        .b_rows = weight_rows(p->columns),
        .b_swapped = 1,
        .c = p->grad_input,
        .c_rows = p->rows,
        .math = math,
        .may_exchange = 1,
    };
    onep_product to_weight = {
        .operator_name = "linear_backward",
        .m = p->columns,
        .n = p->depth,
        .k = p->rows.count,
        .a = p->grad_output,
        .a_rows = p->rows,
        .a_swapped = 1,
        .b = p->input,
        .b_rows = p->rows,
        .b_swapped = 1,
        .c = p->grad_weight,
        .c_rows = weight_rows(p->columns),
        .math = math,
        .may_exchange = 1,
    };
    void *workspace = aligned(p->workspace);
    onepass_status status = ONEPASS_OK;
    if (p->grad_input.data)
        status = onep_product_run(cuda, &to_input, workspace);
    if (status == ONEPASS_OK && p->grad_weight.data)
        status = onep_product_run(cuda, &to_weight, workspace);
    if (status == ONEPASS_OK && p->grad_bias.data)
        status = onep_column_sums(cuda, "linear_backward", &p->grad_output, &p->rows, p->columns, &p->grad_bias);
    return status;
}

onepass_status onep_linear_cuda(const onepass_handle *handle, const onep_linear_problem *problem)
{
    return onep_linear_cuda_run(handle->cuda, problem, onep_math_of(handle));
}

onepass_status onep_linear_backward_cuda(const onepass_handle *handle, const onep_linear_backward_problem *problem)
{
    return onep_linear_backward_cuda_run(handle->cuda, problem, onep_math_of(handle));
}
