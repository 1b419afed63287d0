/*
 * Linked fully static by test_static.sh: multiplies matrices large enough for a BLAS, on two threads, and asks for a
 * GPU. There may be an OpenBLAS or a driver on the machine; a static program must do without.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onepass.h"

enum { ROWS = 128, DEPTH = 64, COLUMNS = 96 };

static float input[ROWS * DEPTH], weight[COLUMNS * DEPTH], output[ROWS * COLUMNS];

static int failed(const char *what)
{
    printf("FAILED: %s: %s\n", what, onepass_last_error());
    return 1;
}

int main(void)
{
    onepass_handle *handle = NULL, *other = NULL;
    onepass_config config = {.size = sizeof config, .threads = 2};
    if (onepass_create(&config, &handle) != ONEPASS_OK)
        return failed("create");
    if (strcmp(onepass_blas(handle), "none") != 0)
        return failed(onepass_blas(handle));
    for (int i = 0; i < ROWS * DEPTH; i++)
        input[i] = (float)(i % 7 - 3);
    for (int i = 0; i < COLUMNS * DEPTH; i++)
        weight[i] = (float)(i % 5 - 2);
    int64_t input_shape[] = {ROWS, DEPTH}, weight_shape[] = {COLUMNS, DEPTH}, output_shape[] = {ROWS, COLUMNS};
    onepass_tensor x = {.data = input, .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = ONEPASS_F32};
    onepass_tensor w = x, y = x;
    x.shape = input_shape;
    w.data = weight;
    w.shape = weight_shape;
    y.data = output;
    y.shape = output_shape;
    size_t bytes;
    if (onepass_linear_workspace_size(handle, &x, &w, &bytes) != ONEPASS_OK)
        return failed("workspace_size");
    void *workspace = malloc(bytes);
    for (int repeat = 0; repeat < 20; repeat++)
        if (onepass_linear(handle, &x, &w, NULL, &y, workspace, bytes) != ONEPASS_OK)
            return failed("linear");
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            float sum = 0; /* of whole numbers: exact in any order */
            for (int k = 0; k < DEPTH; k++)
                sum += input[i * DEPTH + k] * weight[j * DEPTH + k];
            if (output[i * COLUMNS + j] != sum)
                return failed("a wrong product");
        }
    config.blas = "openblas";
    if (onepass_create(&config, &other) != ONEPASS_UNSUPPORTED)
        return failed("openblas was loaded");
    onepass_config cuda = {.size = sizeof cuda, .device = {ONEPASS_CUDA, 0}};
    if (onepass_create(&cuda, &other) == ONEPASS_OK)
        return failed("a driver was loaded");
    printf("a GPU: %s\n", onepass_last_error());
    free(workspace);
    onepass_destroy(handle);
    return 0;
}
