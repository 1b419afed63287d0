/*
 * Cross-entropy of rows whose columns are spread over ranks, with one process that plays all of them in turn: each
 * makes the states of its columns, what would be an all-gather is a buffer that all write to, each merges it and makes
 * the loss and the gradient of its own columns. Prints the loss over 1, 2 and 4 ranks, which has the same bits, and how
 * far it is from that of the whole rows in one call.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "onepass.h"

enum { ROWS = 4, COLUMNS = 20000, MOST_RANKS = 4, SLICE = 8192 };

static float logits[ROWS][COLUMNS], gradient[ROWS][COLUMNS];
static int64_t labels[ROWS] = {7, 8191, 8192, 19999}; /* of all columns: most are another rank's */

static void must(onepass_status status)
{
    if (status != ONEPASS_OK) {
        fprintf(stderr, "%s\n", onepass_last_error());
        exit(1);
    }
}

static onepass_tensor tensor(void *data, onepass_dtype dtype, int ndim, int64_t *shape, int64_t *strides)
{
    return (onepass_tensor){
        .data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape, .strides = strides};
}

/* begin[r] to begin[r + 1] are the columns of rank r. */
static double loss_over(onepass_handle *handle, int ranks, const int64_t *begin)
{
    const onepass_dtype f32 = ONEPASS_F32, f64 = ONEPASS_F64, i64 = ONEPASS_I64;
    int64_t rows = ROWS, strides[2] = {COLUMNS, 1}, most = 0;
    double value = 0;
    for (int r = 0; r < ranks; r++)
        most = begin[r + 1] - begin[r] > most ? begin[r + 1] - begin[r] : most;
    int64_t width = onepass_shard_states_width(most, 1, 0), merged = onepass_shard_statistics_width(1, 0);
    double *gathered = malloc((size_t)(ranks * ROWS * width) * sizeof *gathered);
    double *statistics = malloc((size_t)(ROWS * merged) * sizeof *statistics);
    onepass_tensor all_labels = tensor(labels, i64, 1, &rows, NULL), result = tensor(&value, f64, 0, NULL, NULL);
    if (!gathered || !statistics)
        exit(1);
    for (int r = 0; r < ranks; r++) {
        int64_t shape[2] = {ROWS, begin[r + 1] - begin[r]}, sent[2] = {ROWS, width};
        onepass_logits_options o = {.size = sizeof o,
                                    .reduction = ONEPASS_VALID,
                                    .labels = &all_labels,
                                    .first_column = begin[r],
                                    .total_columns = COLUMNS};
        onepass_tensor x = tensor(&logits[0][begin[r]], f32, 2, shape, strides);
        onepass_tensor states = tensor(gathered + r * ROWS * width, f64, 2, sent, NULL);
        must(onepass_shard_states(handle, &x, NULL, NULL, &o, &states));
    }
    int64_t gathered_shape[3] = {ranks, ROWS, width}, merged_shape[2] = {ROWS, merged};
    onepass_tensor from = tensor(gathered, f64, 3, gathered_shape, NULL);
    onepass_tensor to = tensor(statistics, f64, 2, merged_shape, NULL);
    for (int r = 0; r < ranks; r++) {
        int64_t shape[2] = {ROWS, begin[r + 1] - begin[r]};
        onepass_logits_options o = {.size = sizeof o,
                                    .reduction = ONEPASS_VALID,
                                    .labels = &all_labels,
                                    .first_column = begin[r],
                                    .total_columns = COLUMNS};
        onepass_tensor x = tensor(&logits[0][begin[r]], f32, 2, shape, strides);
        onepass_tensor grad = tensor(&gradient[0][begin[r]], f32, 2, shape, strides);
        must(onepass_shard_merge(handle, &from, &to));
        must(onepass_shard_loss(handle, &x, NULL, &to, &o, &result, &grad, NULL));
    }
    free(gathered);
    free(statistics);
    return value;
}

int main(void)
{
    const onepass_dtype f32 = ONEPASS_F32, f64 = ONEPASS_F64, i64 = ONEPASS_I64;
    static const int64_t cuts[3][MOST_RANKS + 1] = {
        {0, COLUMNS}, {0, SLICE, COLUMNS}, {0, SLICE, SLICE, 2 * SLICE, COLUMNS}}; /* one rank of four has none */
    onepass_handle *handle;
    must(onepass_create(NULL, &handle));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        (&logits[0][0])[i] = (float)sin(0.37 * i) * 5;
    double first = loss_over(handle, 1, cuts[0]), whole = 0;
    int is_same = 1;
    for (int i = 0; i < 3; i++) {
        double loss = loss_over(handle, 1 << i, cuts[i]);
        printf("over %d ranks  %.17g\n", 1 << i, loss);
        is_same &= loss == first;
    }
    int64_t rows = ROWS, shape[2] = {ROWS, COLUMNS};
    onepass_tensor x = tensor(logits, f32, 2, shape, NULL), y = tensor(labels, i64, 1, &rows, NULL);
    onepass_tensor value = tensor(&whole, f64, 0, NULL, NULL);
    onepass_logits_options o = {.size = sizeof o, .reduction = ONEPASS_VALID};
    must(onepass_cross_entropy_logits_labels(handle, &x, &y, &o, &value, NULL));
    printf("in one call   %.17g\n", whole);
    onepass_destroy(handle);
    return is_same && fabs(whole - first) < 1e-6 * whole ? 0 : 1;
}
