/*
 * Losses from hidden states in plain C and double: the definition, the oracle of every test, and the fallback where no
 * faster kernel exists. Any strides, one thread, sums in index order. A row of logits of each side, of which the
 * student's gradient takes the place of its own, and the sums of grad_weight and grad_bias in double are all that is
 * stored beside the results.
 */
#include "core/sum.h"
#include "linear_loss/linear_loss.h"

typedef struct ref_plan {
    onep_logits_problem *row; /* the loss of one row */
    double *logits, *target_logits, *grad_weight, *grad_bias;
} ref_plan;

_Static_assert(sizeof(ref_plan) <= sizeof(onep_cpu_plan), "a plan holds it");

static onepass_status plan(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *to,
                           size_t *bytes)
{
    const onep_linear_loss_problem *p = (const onep_linear_loss_problem *)problem;
    size_t columns = (size_t)p->width, elements = p->grad_weight.data ? columns * (size_t)p->student.depth : 0;
    size_t head = (sizeof(onep_logits_problem) + 63) / 64 * 64;
    (void)handle;
    *bytes = head + (3 * columns + elements) * sizeof(double);
    if (workspace) {
        double *numbers = (double *)(void *)(workspace + head);
        *(ref_plan *)(void *)to = (ref_plan){.row = (onep_logits_problem *)(void *)workspace,
                                             .logits = numbers,
                                             .target_logits = numbers + columns,
                                             .grad_bias = numbers + 2 * columns,
                                             .grad_weight = numbers + 3 * columns};
    }
    return ONEPASS_OK;
}

static double element(const onep_operand *operand, const char *row, int64_t column)
{
    return onep_load(operand->type, row + column * operand->col_stride);
}

static const char *weight_row(const onep_linear_side *side, int64_t j)
{
    return onep_row_address(&side->weight, &side->weight_rows, j);
}

/* A row of logits of one side. */
static void multiply(const onep_linear_side *side, const onep_rows *rows, int64_t row, int64_t columns, double *logits)
{
    const char *x = onep_row_address(&side->input, rows, row);
    for (int64_t j = 0; j < columns; j++) {
        double sum = 0;
        for (int64_t k = 0; k < side->depth; k++)
            sum += element(&side->input, x, k) * element(&side->weight, weight_row(side, j), k);
        logits[j] = sum + onep_feature(&side->bias, j, 0);
    }
}

/* The loss of one row, with everything of it that there is one of per row. */
static void take_row(const onep_linear_loss_problem *p, const ref_plan *made, int64_t index)
{
    const onep_logits_problem *all = p->loss;
    onep_logits_problem *row = made->row;
    *row = *all;
    row->rows = (onep_rows){.count = 1};
    const onep_operand *from[] = {&all->labels,  &all->weights,  &all->mask,   &all->grad_value, &all->lse,
                                  &all->entropy, &all->log_prob, &all->argmax, &all->target_lse, &all->target_entropy};
    onep_operand *to[] = {&row->labels,  &row->weights,  &row->mask,   &row->grad_value, &row->lse,
                          &row->entropy, &row->log_prob, &row->argmax, &row->target_lse, &row->target_entropy};
    for (int i = 0; i < 10; i++)
        to[i]->data = onep_row_address(from[i], &all->rows, index);
    row->predictions =
        (onep_operand){.data = (char *)made->logits, .type = ONEP_F64, .col_stride = (int64_t)sizeof(double)};
    if (onep_linear_loss_has_teacher(p)) {
        row->targets = row->predictions;
        row->targets.data = (char *)made->target_logits;
    }
    if (onep_linear_loss_makes_gradients(p))
        row->grad_predictions = row->predictions;
}

/* What the row adds to grad_weight and grad_bias, and its own grad_input, from the gradient of its logits. */
static void multiply_gradients(const onep_linear_loss_problem *p, const ref_plan *made, const char *x, char *grad_input)
{
    int64_t depth = p->student.depth;
    for (int64_t k = 0; k < depth && grad_input; k++) {
        double sum = 0;
        for (int64_t j = 0; j < p->width; j++)
            sum += made->logits[j] * element(&p->student.weight, weight_row(&p->student, j), k);
        onep_store(p->grad_input.type, grad_input + k * p->grad_input.col_stride, sum);
    }
    for (int64_t j = 0; j < p->width; j++) {
        if (p->grad_bias.data)
            made->grad_bias[j] += made->logits[j];
        for (int64_t k = 0; k < depth && p->grad_weight.data; k++)
            made->grad_weight[j * depth + k] += made->logits[j] * element(&p->student.input, x, k);
    }
}

onep_token_problem onep_linear_token_row(const onep_linear_loss_problem *p, int64_t index, const onep_operand *logits)
{
    const onep_token_problem *all = p->token;
    onep_token_problem row = *all;
    const onep_operand *from[] = {&all->indices, &all->log_prob,      &all->entropy,      &all->lse,
                                  &all->mask,    &all->grad_log_prob, &all->grad_entropy, &all->grad_lse};
    onep_operand *to[] = {&row.indices, &row.log_prob,      &row.entropy,      &row.lse,
                          &row.mask,    &row.grad_log_prob, &row.grad_entropy, &row.grad_lse};
    row.rows = (onep_rows){.count = 1};
    for (int i = 0; i < 8; i++)
        to[i]->data = onep_row_address(from[i], &all->rows, index);
    row.logits = *logits;
    if (onep_linear_loss_makes_gradients(p))
        row.grad_logits = *logits;
    return row;
}

/* The loss of one row and its results, or its token log-probabilities; gradients take the place of its logits. */
static double loss_of_row(const onep_linear_loss_problem *p, const ref_plan *made, int64_t index, double divisor)
{
    const onep_operand logits = {.data = (char *)made->logits, .type = ONEP_F64, .col_stride = (int64_t)sizeof(double)};
    if (!p->token)
        return onep_logits_row(made->row, 0, divisor);
    onep_token_problem row = onep_linear_token_row(p, index, &logits);
    onep_token_row(&row, 0);
    return 0;
}

static double value_of_row(const onep_linear_loss_problem *p, const ref_plan *made, int64_t index, double divisor)
{
    const char *x = onep_row_address(&p->student.input, &p->rows, index);
    char *grad_input = onep_row_address(&p->grad_input, &p->rows, index);
    int64_t label;
    if (p->loss)
        take_row(p, made, index);
    if (!onep_linear_loss_takes_part(p, index, &label)) {
        for (int64_t k = 0; k < p->student.depth && grad_input; k++)
            onep_store(p->grad_input.type, grad_input + k * p->grad_input.col_stride, 0);
        return loss_of_row(p, made, index, divisor);
    }
    multiply(&p->student, &p->rows, index, p->width, made->logits);
    if (onep_linear_loss_has_teacher(p))
        multiply(&p->teacher, &p->rows, index, p->width, made->target_logits);
    double value = loss_of_row(p, made, index, divisor);
    if (onep_linear_loss_makes_gradients(p))
        multiply_gradients(p, made, x, grad_input);
    return value;
}

static onepass_status run(const onepass_handle *handle, const void *problem, onep_plan *plan_made)
{
    const onep_linear_loss_problem *p = (const onep_linear_loss_problem *)problem;
    const ref_plan *made = (const ref_plan *)(const void *)plan_made;
    const onep_logits_problem *loss = p->loss;
    (void)handle;
    if (loss && onep_logits_is_made(loss))
        return ONEPASS_OK;
    double divisor = loss ? onep_logits_divisor(loss) : 1;
    for (int64_t j = 0; j < p->width; j++) {
        made->grad_bias[j] = 0;
        for (int64_t k = 0; k < p->student.depth && p->grad_weight.data; k++)
            made->grad_weight[j * p->student.depth + k] = 0;
    }
    onep_sum total = {0, 0};
    for (int64_t row = 0; row < p->rows.count; row++) {
        double value = value_of_row(p, made, row, divisor);
        if (loss && loss->reduction == ONEPASS_ROWS && loss->value.data)
            onep_store(loss->value.type, onep_row_address(&loss->value, &loss->rows, row), value);
        onep_sum_add(&total, value);
    }
    if (loss)
        onep_logits_store_total(loss, onep_sum_value(total), divisor);
    for (int64_t j = 0; j < p->width; j++) {
        onep_feature_store(&p->grad_bias, j, made->grad_bias[j]);
        char *to = onep_row_address(&p->grad_weight, &p->student.weight_rows, j);
        for (int64_t k = 0; k < p->student.depth && to; k++)
            onep_store(p->grad_weight.type, to + k * p->grad_weight.col_stride,
                       made->grad_weight[j * p->student.depth + k]);
    }
    return ONEPASS_OK;
}

const onep_kernel onep_linear_loss_ref[ONEP_FLOAT_TYPES] = {
    [ONEP_F16] = {plan, run}, [ONEP_BF16] = {plan, run}, [ONEP_F32] = {plan, run}, [ONEP_F64] = {plan, run}};
