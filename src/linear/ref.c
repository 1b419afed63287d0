/*
 * The linear layer in plain C and double: the definition, the oracle of every test, and the fallback where no faster
 * kernel exists. Any strides, one thread, sums in index order, nothing stored besides the results.
 */
#include "linear/linear.h"

static double element(const onep_operand *operand, const char *row, int64_t column)
{
    return onep_load(operand->type, row + column * operand->col_stride);
}

static onepass_status run(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_linear_problem *p = (const onep_linear_problem *)problem;
    (void)handle, (void)plan;
    for (int64_t i = 0; i < p->rows.count; i++) {
        const char *x = onep_row_address(&p->input, &p->rows, i);
        char *y = onep_row_address(&p->output, &p->rows, i);
        for (int64_t j = 0; j < p->columns; j++) {
            const char *w = onep_row_address(&p->weight, &p->weight_rows, j);
            double sum = 0;
            for (int64_t k = 0; k < p->depth; k++)
                sum += element(&p->input, x, k) * element(&p->weight, w, k);
            onep_store(p->output.type, y + j * p->output.col_stride, sum + onep_feature(&p->bias, j, 0));
        }
    }
    return ONEPASS_OK;
}

/* grad_input[i][k] = sum over j of grad_output[i][j] weight[j][k] */
static void grad_input(const onep_linear_backward_problem *p)
{
    for (int64_t i = 0; i < p->rows.count; i++) {
        const char *g = onep_row_address(&p->grad_output, &p->rows, i);
        char *to = onep_row_address(&p->grad_input, &p->rows, i);
        for (int64_t k = 0; k < p->depth; k++) {
            double sum = 0;
            for (int64_t j = 0; j < p->columns; j++)
                sum += element(&p->grad_output, g, j) *
                       element(&p->weight, onep_row_address(&p->weight, &p->weight_rows, j), k);
            onep_store(p->grad_input.type, to + k * p->grad_input.col_stride, sum);
        }
    }
}

/* grad_weight[j][k] = sum over i of grad_output[i][j] input[i][k] */
static void grad_weight(const onep_linear_backward_problem *p)
{
    for (int64_t j = 0; j < p->columns; j++) {
        char *to = onep_row_address(&p->grad_weight, &p->weight_rows, j);
        for (int64_t k = 0; k < p->depth; k++) {
            double sum = 0;
            for (int64_t i = 0; i < p->rows.count; i++)
                sum += element(&p->grad_output, onep_row_address(&p->grad_output, &p->rows, i), j) *
                       element(&p->input, onep_row_address(&p->input, &p->rows, i), k);
            onep_store(p->grad_weight.type, to + k * p->grad_weight.col_stride, sum);
        }
    }
}

static onepass_status run_backward(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_linear_backward_problem *p = (const onep_linear_backward_problem *)problem;
    (void)handle, (void)plan;
    if (p->grad_input.data)
        grad_input(p);
    if (p->grad_weight.data)
        grad_weight(p);
    for (int64_t j = 0; j < p->columns && p->grad_bias.data; j++) {
        double sum = 0;
        for (int64_t i = 0; i < p->rows.count; i++)
            sum += element(&p->grad_output, onep_row_address(&p->grad_output, &p->rows, i), j);
        onep_feature_store(&p->grad_bias, j, sum);
    }
    return ONEPASS_OK;
}

const onep_kernel onep_linear_ref[ONEP_FLOAT_TYPES] = {
    [ONEP_F16] = {NULL, run}, [ONEP_BF16] = {NULL, run}, [ONEP_F32] = {NULL, run}, [ONEP_F64] = {NULL, run}};

const onep_kernel onep_linear_backward_ref[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {NULL, run_backward},
                                                                [ONEP_BF16] = {NULL, run_backward},
                                                                [ONEP_F32] = {NULL, run_backward},
                                                                [ONEP_F64] = {NULL, run_backward}};
