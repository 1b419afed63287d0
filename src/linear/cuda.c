/* The linear layer on a CUDA device: three products (product.h) and the column sums for the bias. */
#include "linear/cuda.h"

#include "cuda/split.h"
#include "linear/linear.h"

static onep_rows weight_rows(int64_t columns)
{
    onep_rows rows = {.rank = columns == 1 ? 0 : 1, .count = columns};
    rows.extent[0] = columns;
    return rows;
}

/* Enough for both directions, before outputs and gradients are known. */
static size_t workspace_bytes(onep_cuda *cuda, onep_product_math math, const onep_rows *rows, int64_t depth,
                              int64_t columns, const onep_operand *input, const onep_operand *weight)
{
    onep_rows of_weight = weight_rows(columns);
    onep_product products[] = {
        /* the output has the type of the operands, or is wider */
        {.m = rows->count, .n = columns, .k = depth, .b = *weight, .b_rows = of_weight, .c.type = weight->type},
        {.m = rows->count, .n = columns, .k = depth, .b = *weight, .b_rows = of_weight, .c.type = ONEP_F32},
        {.m = rows->count,
         .n = depth,
         .k = columns,
         .b = *weight,
         .b_rows = of_weight,
         .b_swapped = 1,
         .c.type = input->type},
        {.m = columns,
         .n = depth,
         .k = rows->count,
         .a_swapped = 1,
         .b = *input,
         .b_rows = *rows,
         .b_swapped = 1,
         .c.type = weight->type},
    };
    size_t most = 0;
    for (int i = 0; i < 4; i++) {
        products[i].operator_name = "linear";
        products[i].math = math;
        products[i].may_exchange = 1;
        size_t bytes = onep_product_workspace(cuda, &products[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(onep_matmul_plan) <= sizeof(onep_plan), "a plan holds it");

static onepass_status plan(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *to,
                           size_t *bytes)
{
    const onep_linear_problem *p = (const onep_linear_problem *)problem;
    onep_matmul_plan *made = (onep_matmul_plan *)(void *)to;
    onep_cuda *cuda = onep_cuda_of(handle);
    onep_product_math math = onep_math_of(handle);
    onepass_status status = ONEPASS_OK;
    if (p->output.data) {
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
        status = onep_matmul_plan_make(cuda, &product, workspace, made);
        *bytes = made->bytes;
    }
    if (!workspace) /* a size that serves every call of these operands */
        *bytes = workspace_bytes(cuda, math, &p->rows, p->depth, p->columns, &p->input, &p->weight);
    return status;
}

static onepass_status run(const onepass_handle *handle, const void *problem, onep_plan *made)
{
    (void)problem;
    return onep_matmul_run(onep_cuda_of(handle), (const onep_matmul_plan *)(const void *)made);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Products follow each other in the same workspace; those that are not wanted have no engine, or no grid. */
typedef struct backward_plan {
    onep_matmul_plan to_input, to_weight;
    onep_column_sums_plan to_bias;
} backward_plan;

_Static_assert(sizeof(backward_plan) <= sizeof(onep_plan), "a plan holds it");

static onepass_status plan_gradients(onep_cuda *cuda, onep_product_math math, const onep_linear_backward_problem *p,
                                     char *workspace, backward_plan *made)
{
    onepass_status status = ONEPASS_OK;
    if (p->grad_input.data) {
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
        status = onep_matmul_plan_make(cuda, &to_input, workspace, &made->to_input);
    }
    if (status == ONEPASS_OK && p->grad_weight.data) {
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
        status = onep_matmul_plan_make(cuda, &to_weight, workspace, &made->to_weight);
    }
    const onep_operand none = {.data = NULL};
    if (status == ONEPASS_OK && p->grad_bias.data)
        status = onep_column_sums_plan_make("linear_backward", &p->grad_output, &p->rows, p->columns, &none,
                                            &p->grad_bias, &made->to_bias);
    return status;
}

static onepass_status plan_backward(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *to,
                                    size_t *bytes)
{
    const onep_linear_backward_problem *p = (const onep_linear_backward_problem *)problem;
    backward_plan *made = (backward_plan *)(void *)to;
    onep_cuda *cuda = onep_cuda_of(handle);
    onep_product_math math = onep_math_of(handle);
    onepass_status status = ONEPASS_OK;
    made->to_input.engine = made->to_weight.engine = ONEP_ENGINE_NONE;
    made->to_input.bytes = made->to_weight.bytes = 0;
    made->to_bias.launch.grid = 0;
    if (p->grad_output.data)
        status = plan_gradients(cuda, math, p, workspace, made);
    *bytes = made->to_input.bytes > made->to_weight.bytes ? made->to_input.bytes : made->to_weight.bytes;
    if (!workspace)
        *bytes = workspace_bytes(cuda, math, &p->rows, p->depth, p->columns, &p->input, &p->weight);
    return status;
}

static onepass_status run_backward(const onepass_handle *handle, const void *problem, onep_plan *plan_made)
{
    const backward_plan *made = (const backward_plan *)(const void *)plan_made;
    onep_cuda *cuda = onep_cuda_of(handle);
    (void)problem;
    onepass_status status = onep_matmul_run(cuda, &made->to_input);
    if (status == ONEPASS_OK)
        status = onep_matmul_run(cuda, &made->to_weight);
    return status == ONEPASS_OK ? onep_column_sums_run(cuda, "linear_backward", &made->to_bias) : status;
}

/* ---- prepared weights -------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(onep_split_prepare_plan) <= sizeof(onep_plan), "a plan holds it");

static onepass_status plan_prepare(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *to,
                                   size_t *bytes)
{
    const onep_prepare_weight_problem *p = (const onep_prepare_weight_problem *)problem;
    onep_split_prepare_plan *made = (onep_split_prepare_plan *)(void *)to;
    (void)handle;
    *bytes = onep_split_planes_bytes(p->weight_rows.count, p->depth);
    made->launch.grid = 0;
    if (!workspace || p->weight_rows.count == 0 || p->depth == 0)
        return ONEPASS_OK;
    return onep_split_prepare("prepare_weight", &p->weight, &p->weight_rows, p->depth, workspace, made);
}

static onepass_status run_prepare(const onepass_handle *handle, const void *problem, onep_plan *plan_made)
{
    const onep_split_prepare_plan *made = (const onep_split_prepare_plan *)(const void *)plan_made;
    (void)problem;
    return made->launch.grid ? onep_cuda_launch(onep_cuda_of(handle), "prepare_weight", &made->launch, &made->args)
                             : ONEPASS_OK;
}

const onep_kernel onep_linear_cuda[ONEP_FLOAT_TYPES] = {
    [ONEP_F16] = {plan, run}, [ONEP_BF16] = {plan, run}, [ONEP_F32] = {plan, run}, [ONEP_F64] = {plan, run}};

const onep_kernel onep_linear_backward_cuda[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {plan_backward, run_backward},
                                                                 [ONEP_BF16] = {plan_backward, run_backward},
                                                                 [ONEP_F32] = {plan_backward, run_backward},
                                                                 [ONEP_F64] = {plan_backward, run_backward}};

const onep_kernel onep_prepare_weight_cuda[ONEP_FLOAT_TYPES] = {[ONEP_F32] = {plan_prepare, run_prepare}};
