/*
 * A head trained from C alone: softmax(scale * batchnorm(input weight^T)) learns to tell eight classes apart, and is
 * then used with the statistics it has collected. A step is three calls: the head, the loss with its gradient, the
 * head's gradients; what is between them is memory of the caller. Ends with 1 unless it has learned.
 *
 *   cc examples/train_head.c $(pkg-config --cflags --libs onepass) -lm -o train_head
 */
#include <onepass.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 128, INPUTS = 48, CLASSES = 8, STEPS = 200 };

static const float LEARNING_RATE = 0.5F, NOISE = 1.5F;

static int64_t batch_by_inputs[] = {BATCH, INPUTS}, batch_by_classes[] = {BATCH, CLASSES};
static int64_t classes_by_inputs[] = {CLASSES, INPUTS}, classes[] = {CLASSES};

static onepass_tensor view(void *numbers, int ndim, int64_t *shape)
{
    const onepass_tensor tensor = {
        .data = numbers, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = ONEPASS_F32, .shape = shape};
    return tensor;
}

/* ---- data: a point of each class with noise around it ------------------------------------------------------------ */

static uint32_t state = 1;

/* Uniform in (-1, 1): xorshift, the same numbers everywhere. */
static float noise(void)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return (float)(int32_t)state * 0x1p-31F;
}

static float centres[CLASSES][INPUTS], input[BATCH][INPUTS], targets[BATCH][CLASSES];
static int labels[BATCH];

static void draw_batch(void)
{
    for (int row = 0; row < BATCH; row++) {
        labels[row] = (int)(fabsf(noise()) * CLASSES) % CLASSES;
        for (int i = 0; i < INPUTS; i++)
            input[row][i] = centres[labels[row]][i] + NOISE * noise();
        for (int c = 0; c < CLASSES; c++)
            targets[row][c] = c == labels[row] ? 0.93F : 0.01F; /* a little smoothed: they add up to 1 */
    }
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

static float weight[CLASSES][INPUTS], gains[CLASSES], shifts[CLASSES], running_mean[CLASSES], running_var[CLASSES];
static float grad_weight[CLASSES][INPUTS], grad_gains[CLASSES], grad_shifts[CLASSES];
static float output[BATCH][CLASSES], grad_output[BATCH][CLASSES];
static float product[BATCH][CLASSES], mean[CLASSES], rstd[CLASSES]; /* what backward needs of forward */

static void descend(float *parameter, const float *gradient, int count)
{
    for (int i = 0; i < count; i++)
        parameter[i] -= LEARNING_RATE * gradient[i];
}

static double accuracy(void)
{
    int right = 0;
    for (int row = 0; row < BATCH; row++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (output[row][c] > output[row][best])
                best = c;
        right += best == labels[row];
    }
    return (double)right / BATCH;
}

int main(void)
{
    onepass_tensor x = view(input, 2, batch_by_inputs), w = view(weight, 2, classes_by_inputs);
    onepass_tensor y = view(output, 2, batch_by_classes), t = view(targets, 2, batch_by_classes);
    onepass_tensor dy = view(grad_output, 2, batch_by_classes), dw = view(grad_weight, 2, classes_by_inputs);
    onepass_tensor g = view(gains, 1, classes), b = view(shifts, 1, classes);
    onepass_tensor dg = view(grad_gains, 1, classes), db = view(grad_shifts, 1, classes);
    onepass_tensor saved = view(product, 2, batch_by_classes), m = view(mean, 1, classes), r = view(rstd, 1, classes);
    onepass_tensor rm = view(running_mean, 1, classes), rv = view(running_var, 1, classes);
    float value = 0, first = 0;
    onepass_tensor loss = view(&value, 0, NULL);

    for (int c = 0; c < CLASSES; c++) {
        gains[c] = running_var[c] = 1;
        for (int i = 0; i < INPUTS; i++) {
            centres[c][i] = noise();
            weight[c][i] = 0.1F * noise();
        }
    }

    onepass_head_options training = {.size = sizeof training,
                                     .eps = 1e-5,
                                     .momentum = 0.1,
                                     .gamma = &g,
                                     .beta = &b,
                                     .running_mean = &rm,
                                     .running_var = &rv};
    onepass_head_options inference = training;
    inference.statistics = ONEPASS_RUNNING_STATISTICS;
    inference.momentum = 0; /* nothing is updated then */
    onepass_head_gradients gradients = {.size = sizeof gradients, .weight = &dw, .gamma = &dg, .beta = &db};

    /* One workspace for all calls, as large as the largest of them needs. */
    onepass_handle *handle = NULL;
    size_t needed[3] = {0, 0, 0}, bytes = 0;
    onepass_status status = onepass_create(NULL, &handle);
    if (status == ONEPASS_OK)
        status = onepass_head_workspace_size(handle, &x, &w, &training, &y, &saved, &needed[0]);
    if (status == ONEPASS_OK)
        status = onepass_head_backward_workspace_size(handle, &x, &w, &training, &needed[1]);
    if (status == ONEPASS_OK)
        status = onepass_head_workspace_size(handle, &x, &w, &inference, &y, NULL, &needed[2]);
    for (int i = 0; i < 3; i++)
        bytes = needed[i] > bytes ? needed[i] : bytes;
    bytes = (bytes + 256) / 256 * 256;
    void *workspace = aligned_alloc(256, bytes);
    if (status == ONEPASS_OK && !workspace)
        status = ONEPASS_OUT_OF_MEMORY;
    training.workspace = inference.workspace = workspace;
    training.workspace_size = inference.workspace_size = bytes;

    for (int step = 0; status == ONEPASS_OK && step < STEPS; step++) {
        draw_batch();
        status = onepass_head(handle, &x, &w, &training, &y, &saved, &m, &r);
        if (status == ONEPASS_OK)
            status = onepass_kl_probs_probs(handle, &y, &t, NULL, &loss, &dy, NULL);
        if (status == ONEPASS_OK)
            status = onepass_head_backward(handle, &dy, &y, &x, &w, &saved, &m, &r, &training, &gradients);
        if (status != ONEPASS_OK)
            break;
        descend(weight[0], grad_weight[0], CLASSES * INPUTS);
        descend(gains, grad_gains, CLASSES);
        descend(shifts, grad_shifts, CLASSES);
        first = step == 0 ? value : first;
        if (step % 40 == 0 || step == STEPS - 1)
            printf("step %3d: loss %.4f, %5.1f%% right\n", step, (double)value, 100 * accuracy());
    }

    double share = 0;
    if (status == ONEPASS_OK) { /* data it has not seen, and the statistics it has collected */
        draw_batch();
        status = onepass_head(handle, &x, &w, &inference, &y, NULL, NULL, NULL);
        share = accuracy();
        printf("new data: %5.1f%% right\n", 100 * share);
    }
    if (status != ONEPASS_OK)
        fprintf(stderr, "%s: %s\n", onepass_status_name(status), onepass_last_error());
    free(workspace);
    onepass_destroy(handle);
    return status == ONEPASS_OK && share > 0.9 && value < first / 4 ? 0 : 1;
}
