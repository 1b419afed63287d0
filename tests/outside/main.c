/* Uses the installed library as a stranger would: one divergence with its gradient, one refusal with its message. */
#include <onepass.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "outside: %s: %s\n", what, onepass_last_error());
    return 1;
}

int main(void)
{
    float p[] = {0.5F, 0.5F}, t[] = {0.25F, 0.75F}, gradient[2];
    double value = 0;
    int64_t shape[] = {1, 2};
    const onepass_dtype f32 = ONEPASS_F32, f64 = ONEPASS_F64;
    const onepass_device cpu = {ONEPASS_CPU, 0};
    const onepass_tensor predictions = {.data = p, .device = cpu, .ndim = 2, .dtype = f32, .shape = shape};
    const onepass_tensor targets = {.data = t, .device = cpu, .ndim = 2, .dtype = f32, .shape = shape};
    const onepass_tensor grad = {.data = gradient, .device = cpu, .ndim = 2, .dtype = f32, .shape = shape};
    const onepass_tensor result = {.data = &value, .device = cpu, .ndim = 0, .dtype = f64};

    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", ONEPASS_VERSION_MAJOR, ONEPASS_VERSION_MINOR, ONEPASS_VERSION_PATCH);
    if (strcmp(version, onepass_version()) != 0)
        return fail("header and library differ in version");

    onepass_handle *handle = NULL;
    if (onepass_create(NULL, &handle) != ONEPASS_OK)
        return fail("onepass_create");

    /* 0.25 log 0.5 + 0.75 log 1.5 */
    if (onepass_kl_probs_probs(handle, &predictions, &targets, NULL, &result, &grad, NULL) != ONEPASS_OK)
        return fail("onepass_kl_probs_probs");
    if (!(fabs(value - 0.13081203594113697) < 1e-7))
        return fail("wrong divergence");
    if (!(fabsf(gradient[0] + 0.5F) < 1e-6F) || !(fabsf(gradient[1] + 1.5F) < 1e-6F))
        return fail("wrong gradient");

    if (onepass_kl_probs_probs(handle, NULL, &targets, NULL, &result, NULL, NULL) != ONEPASS_INVALID_ARGUMENT)
        return fail("missing predictions were accepted");
    if (strlen(onepass_last_error()) == 0)
        return fail("a refusal without a message");

    printf("onepass %s, %s, %d threads: %.9g\n", onepass_version(), onepass_isa(handle), (int)onepass_threads(handle),
           value);
    onepass_destroy(handle);
    return 0;
}
