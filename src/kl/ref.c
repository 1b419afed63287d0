/*
 * KL divergence in plain C and double: the definition (define.h) over whole tensors, the oracle of every test, and
 * the fallback where no faster kernel exists. Any strides, one thread, nothing stored besides the results, elements
 * visited in index order.
 */
#include "core/sum.h"
#include "kl/kl.h"

onep_kl_element onep_kl_define(onep_kl_form form, onepass_semantics semantics, double prediction, double target,
                               onep_type computed)
{
    return onep_kl_define_element(ONEP_KL_LOG_PREDICTIONS(form), ONEP_KL_LOG_TARGETS(form), semantics == ONEPASS_FINITE,
                                  prediction, target, computed == ONEP_F64);
}

/* A column of the row at that address, which is NULL if the operand is absent: no offset is added to it then. */
static double load_or(const onep_operand *operand, const char *row, int64_t column, double otherwise)
{
    return operand->data ? onep_load(operand->type, row + column * operand->col_stride) : otherwise;
}

static void store_if(const onep_operand *operand, char *row, int64_t column, double x)
{
    if (operand->data)
        onep_store(operand->type, row + column * operand->col_stride, x);
}

/* One row: writes its element-wise results and returns the sum of its weighted values. */
static double row_sum(const onep_kl_problem *k, int64_t row, onep_type computed)
{
    int per_element = k->reduction == ONEPASS_NONE;
    char *predictions = onep_row_address(&k->predictions, &k->rows, row);
    char *targets = onep_row_address(&k->targets, &k->rows, row);
    char *value = onep_row_address(&k->value, &k->rows, row);
    char *grad_value = onep_row_address(&k->grad_value, &k->rows, row);
    char *grad_predictions = onep_row_address(&k->grad_predictions, &k->rows, row);
    char *grad_targets = onep_row_address(&k->grad_targets, &k->rows, row);
    int masked = k->mask.data && *onep_row_address(&k->mask, &k->rows, row) == 0;
    double weight = load_or(&k->weights, onep_row_address(&k->weights, &k->rows, row), 0, 1);

    onep_sum sum = {0, 0};
    for (int64_t c = 0; c < k->columns; c++) {
        onep_kl_element e = {0, 0, 0};
        double scale = 0;
        if (!masked) {
            e = onep_kl_define(k->form, k->semantics,
                               onep_load(k->predictions.type, predictions + c * k->predictions.col_stride),
                               onep_load(k->targets.type, targets + c * k->targets.col_stride), computed);
            e.value *= weight;
            scale = weight / k->divisor * load_or(&k->grad_value, grad_value, c, 1);
        }
        if (per_element)
            store_if(&k->value, value, c, e.value);
        store_if(&k->grad_predictions, grad_predictions, c, e.d_prediction * scale);
        store_if(&k->grad_targets, grad_targets, c, e.d_target * scale);
        onep_sum_add(&sum, e.value);
    }
    return onep_sum_value(sum);
}

int onep_kl_is_made(const onep_kl_problem *k)
{
    return k->grad_made_for.data &&
           load_or(&k->grad_value, k->grad_value.data, 0, 1) == onep_load(k->grad_made_for.type, k->grad_made_for.data);
}

static onepass_status run(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_kl_problem *k = (const onep_kl_problem *)problem;
    (void)handle, (void)plan;
    if (onep_kl_is_made(k))
        return ONEPASS_OK;
    onep_type promoted = onep_promote(k->predictions.type, k->targets.type);
    onep_type computed = promoted == ONEP_F64 ? ONEP_F64 : ONEP_F32;
    onep_sum total = {0, 0};
    for (int64_t row = 0; row < k->rows.count; row++) {
        double sum = row_sum(k, row, computed);
        if (k->reduction == ONEPASS_ROWS)
            store_if(&k->value, onep_row_address(&k->value, &k->rows, row), 0, sum);
        onep_sum_add(&total, sum);
    }
    if (k->reduction != ONEPASS_ROWS && k->reduction != ONEPASS_NONE)
        store_if(&k->value, k->value.data, 0, onep_sum_value(total) / k->divisor);
    return ONEPASS_OK;
}

const onep_kernel onep_kl_ref[ONEP_FLOAT_TYPES] = {
    [ONEP_F16] = {NULL, run}, [ONEP_BF16] = {NULL, run}, [ONEP_F32] = {NULL, run}, [ONEP_F64] = {NULL, run}};
