/*
 * KL divergence of two small batches of distributions, with its gradient, by the C interface. Each row is one
 * distribution over three outcomes; the value is the mean over the rows ("batchmean").
 *
 *   cc examples/kl.c $(pkg-config --cflags --libs onepass) -o kl
 */
#include <onepass.h>

#include <stdio.h>

enum { ROWS = 2, COLUMNS = 3 };

/* A tensor is a view: it says where numbers lie and owns nothing. NULL strides mean row after row without gaps. */
static onepass_tensor view(float *numbers, int64_t *shape)
{
    const onepass_tensor tensor = {
        .data = numbers, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = ONEPASS_F32, .shape = shape};
    return tensor;
}

int main(void)
{
    float p[ROWS * COLUMNS] = {0.25F, 0.25F, 0.5F, 0.125F, 0.375F, 0.5F}; /* what a model predicts */
    float t[ROWS * COLUMNS] = {0.5F, 0.25F, 0.25F, 0.0F, 0.5F, 0.5F};     /* what it should predict */
    float gradient[ROWS * COLUMNS];
    double value = 0;
    int64_t shape[] = {ROWS, COLUMNS};

    /* The same views serve any number of calls. The value may be wider than the inputs: here it is a double. */
    onepass_tensor predictions = view(p, shape);
    onepass_tensor targets = view(t, shape);
    onepass_tensor grad_predictions = view(gradient, shape);
    onepass_tensor result = {.data = &value, .device = {ONEPASS_CPU, 0}, .ndim = 0, .dtype = ONEPASS_F64};

    /* A handle holds the device and the threads. NULL: the CPU, every core, the best vector level there is. */
    onepass_handle *handle = NULL;
    if (onepass_create(NULL, &handle) != ONEPASS_OK) {
        fprintf(stderr, "%s\n", onepass_last_error());
        return 1;
    }

    /* Zero is every option's default: here the mean over the rows, and special values as PyTorch has them. */
    onepass_kl_options options = {.size = sizeof options, .reduction = ONEPASS_BATCHMEAN};
    onepass_status status =
        onepass_kl_probs_probs(handle, &predictions, &targets, &options, &result, &grad_predictions, NULL);
    if (status == ONEPASS_OK) {
        printf("onepass %s, %s: KL(targets || predictions) = %.9g\n", onepass_version(), onepass_isa(handle), value);
        for (int row = 0; row < ROWS; row++)
            printf("gradient of row %d: %9.6f %9.6f %9.6f\n", row, (double)gradient[row * COLUMNS],
                   (double)gradient[row * COLUMNS + 1], (double)gradient[row * COLUMNS + 2]);
    } else {
        fprintf(stderr, "%s: %s\n", onepass_status_name(status), onepass_last_error());
    }

    /* What is wrong is said, and nothing is written: here the shapes differ. */
    int64_t other_shape[] = {COLUMNS, ROWS};
    onepass_tensor other = view(t, other_shape);
    if (onepass_kl_probs_probs(handle, &predictions, &other, &options, &result, NULL, NULL) != ONEPASS_OK)
        printf("refused, as it should be: %s\n", onepass_last_error());

    onepass_destroy(handle);
    return status == ONEPASS_OK ? 0 : 1;
}
