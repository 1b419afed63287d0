/*
 * KL divergence and its gradient on a GPU, or on the CPU where there is none: the same lines for both. Needs no CUDA
 * toolkit, only the driver.
 *
 *   cc examples/kl_cuda.c $(pkg-config --cflags --libs onepass) -o kl_cuda
 */
#include <onepass.h>

#include <stdio.h>

enum { ROWS = 2, COLUMNS = 3, BYTES = ROWS * COLUMNS * sizeof(float) };

static onepass_handle *handle;

/* Every step can fail, and says why; the first failure ends the work. */
static int works(onepass_status status)
{
    if (status != ONEPASS_OK)
        fprintf(stderr, "%s: %s\n", onepass_status_name(status), onepass_last_error());
    return status == ONEPASS_OK;
}

static int divergence(void *p, void *t, void *gradient, void *value)
{
    int64_t shape[] = {ROWS, COLUMNS};
    onepass_tensor predictions = {
        .data = p, .device = onepass_device_of(handle), .ndim = 2, .dtype = ONEPASS_F32, .shape = shape};
    onepass_tensor targets = predictions, grad_predictions = predictions, result = predictions;
    targets.data = t;
    grad_predictions.data = gradient;
    result.data = value;
    result.ndim = 0;

    /* The library allocates nothing: it says how much room the call needs. */
    onepass_kl_options options = {.size = sizeof options};
    int fine =
        works(onepass_kl_workspace_size(handle, &predictions, &options, &options.workspace_size)) &&
        works(onepass_memory_alloc(handle, options.workspace_size, &options.workspace)) &&
        works(onepass_kl_probs_probs(handle, &predictions, &targets, &options, &result, &grad_predictions, NULL));
    onepass_memory_free(handle, options.workspace);
    return fine;
}

int main(void)
{
    float p[] = {0.25F, 0.25F, 0.5F, 0.125F, 0.375F, 0.5F}, t[] = {0.5F, 0.25F, 0.25F, 0.0F, 0.5F, 0.5F};
    float gradient[ROWS * COLUMNS], value = 0;
    void *there[4] = {NULL, NULL, NULL, NULL}; /* predictions, targets, gradient, value */

    int gpu = onepass_device_count(ONEPASS_CUDA) > 0;
    onepass_config config = {.size = sizeof config, .device = {gpu ? ONEPASS_CUDA : ONEPASS_CPU, 0}};
    if (!works(onepass_create(&config, &handle)))
        return 1;

    int fine = 1;
    for (int i = 0; i < 4 && fine; i++)
        fine = works(onepass_memory_alloc(handle, BYTES, &there[i]));
    fine =
        fine && works(onepass_memory_copy(handle, there[0], p, BYTES)) &&
        works(onepass_memory_copy(handle, there[1], t, BYTES)) &&
        divergence(there[0], there[1], there[2], there[3]) && /* on a GPU it is only queued: the copies wait for it */
        works(onepass_memory_copy(handle, gradient, there[2], BYTES)) &&
        works(onepass_memory_copy(handle, &value, there[3], sizeof value));
    if (fine) {
        printf("%s: KL(targets || predictions) = %.9g\n", onepass_isa(handle), (double)value);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            printf("%9.6f%c", (double)gradient[i], i % COLUMNS == COLUMNS - 1 ? '\n' : ' ');
    }
    for (int i = 0; i < 4; i++)
        onepass_memory_free(handle, there[i]);
    onepass_destroy(handle);
    return fine ? 0 : 1;
}
