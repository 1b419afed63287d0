/* See cuda_resident.h. */
#include "cuda_resident.h"

#include <math.h>
#include <stdlib.h>

uint64_t cuda_streams = 1u << 20; /* not those of test_kl.c */

/* Probabilities or their logarithms, different for each seed. */
static void make_inputs(const resident *r, uint64_t seed, char *predictions, char *targets)
{
    test_random random = test_random_stream(seed);
    size_t size = onep_type_size(r->type);
    for (int64_t i = 0; i < r->shape[0] * r->shape[1]; i++) {
        double p = test_random_between(&random, 0.02, 1), t = test_random_between(&random, 0.02, 1);
        onep_store(r->type, predictions + (size_t)i * size, ONEP_KL_LOG_PREDICTIONS(r->form) ? log(p) : p);
        onep_store(r->type, targets + (size_t)i * size, ONEP_KL_LOG_TARGETS(r->form) ? log(t) : t);
    }
}

void resident_load(const resident *r, uint64_t seed)
{
    char *predictions = malloc(r->bytes), *targets = malloc(r->bytes);
    if (!predictions || !targets)
        exit(2);
    make_inputs(r, seed, predictions, targets);
    cuda_upload(r->predictions, predictions, r->bytes);
    cuda_upload(r->targets, targets, r->bytes);
    free(predictions);
    free(targets);
}

void resident_make(resident *r, onepass_handle *handle)
{
    int64_t count = r->shape[0] * r->shape[1];
    r->bytes = (size_t)count * onep_type_size(r->type);
    int64_t values = r->reduction == ONEPASS_NONE ? count : r->reduction == ONEPASS_ROWS ? r->shape[0] : 1;
    r->value_bytes = (size_t)values * onep_type_size(r->type);
    r->predictions = cuda_claim(r->bytes);
    r->targets = cuda_claim(r->bytes);
    r->grad_predictions = cuda_claim(r->bytes);
    r->grad_targets = cuda_claim(r->bytes);
    r->value = cuda_claim(r->value_bytes);
    onepass_tensor p = cuda_tensor(r->type, r->predictions, 2, r->shape);
    onepass_kl_options options = {.size = sizeof options, .reduction = r->reduction};
    if (!CHECK(cuda_workspace_size(handle, &p, &options, &r->workspace_bytes) == ONEPASS_OK, "%s",
               onepass_last_error()))
        exit(1);
    r->workspace = r->workspace_bytes ? cuda_claim(r->workspace_bytes) : NULL;
}

void resident_free(resident *r)
{
    cuda_release(r->predictions);
    cuda_release(r->targets);
    cuda_release(r->grad_predictions);
    cuda_release(r->grad_targets);
    cuda_release(r->value);
    cuda_release(r->workspace);
}

onepass_status resident_call(resident *r, onepass_handle *handle, int gradients)
{
    onepass_tensor p = cuda_tensor(r->type, r->predictions, 2, r->shape);
    onepass_tensor t = cuda_tensor(r->type, r->targets, 2, r->shape);
    onepass_tensor gp = cuda_tensor(r->type, r->grad_predictions, 2, r->shape);
    onepass_tensor gt = cuda_tensor(r->type, r->grad_targets, 2, r->shape);
    int rank = r->reduction == ONEPASS_NONE ? 2 : r->reduction == ONEPASS_ROWS ? 1 : 0;
    onepass_tensor v = cuda_tensor(r->type, r->value, rank, r->shape);
    onepass_kl_options options = {.size = sizeof options,
                                  .reduction = r->reduction,
                                  .workspace = r->workspace,
                                  .workspace_size = r->workspace_bytes};
    return cuda_entry_of(r->form)(handle, &p, &t, &options, &v, gradients ? &gp : NULL, gradients ? &gt : NULL);
}

size_t resident_bytes(const resident *r, int gradients)
{
    return r->value_bytes + (gradients ? 2 * r->bytes : 0);
}

void resident_poison(const resident *r, int byte)
{
    const onep_driver *driver = cuda_driver();
    MUST(driver->cuMemsetD8Async(cuda_address(r->value), (unsigned char)byte, r->value_bytes, NULL));
    MUST(driver->cuMemsetD8Async(cuda_address(r->grad_predictions), (unsigned char)byte, r->bytes, NULL));
    MUST(driver->cuMemsetD8Async(cuda_address(r->grad_targets), (unsigned char)byte, r->bytes, NULL));
    if (r->workspace_bytes)
        MUST(driver->cuMemsetD8Async(cuda_address(r->workspace), (unsigned char)byte, r->workspace_bytes, NULL));
    MUST(driver->cuStreamSynchronize(NULL));
}

void resident_fetch(const resident *r, onep_cu_stream *stream, int gradients, char *to)
{
    const onep_driver *driver = cuda_driver();
    MUST(driver->cuStreamSynchronize(stream));
    MUST(driver->cuMemcpyDtoH(to, cuda_address(r->value), r->value_bytes));
    if (gradients) {
        MUST(driver->cuMemcpyDtoH(to + r->value_bytes, cuda_address(r->grad_predictions), r->bytes));
        MUST(driver->cuMemcpyDtoH(to + r->value_bytes + r->bytes, cuda_address(r->grad_targets), r->bytes));
    }
}
