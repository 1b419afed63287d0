/* Timing on a GPU. See bench_cuda.h. */
#define _POSIX_C_SOURCE 200809L
#include "bench_cuda.h"

#include <stdlib.h>

#include "clock.h"
#include "device_memory.h"
#include "handle.h"
#include "kl_args.h"
#include "progress.h"
#include "status.h"

enum { LEAST_ROUNDS = 30, MOST_ROUNDS = 10000, WARM_UPS = 3 };
static const size_t flush_bytes = (size_t)256 << 20;

typedef struct cuda_bench {
    onepass_handle *handle;
    const kl_case *problem;
    device_memory memory;
    size_t bytes;           /* of one array, rounded up so that three lie aligned one after the other */
    onep_cu_address arrays; /* predictions, targets, gradient */
    onep_cu_address flushed, value, workspace;
    size_t workspace_size;
    onep_cu_event *begin, *end;
} cuda_bench;

static onepass_tensor tensor_at(const cuda_bench *b, int array, int64_t *shape)
{
    return (onepass_tensor){.data = (void *)(uintptr_t)(b->arrays + (size_t)array * b->bytes),
                            .device = b->handle->device,
                            .ndim = 2,
                            .dtype = element_infos[b->problem->type].dtype,
                            .shape = shape};
}

static onepass_status run_operator(const cuda_bench *b, bool gradient)
{
    int64_t shape[2] = {b->problem->shape[0], b->problem->shape[1]};
    onepass_tensor predictions = tensor_at(b, 0, shape), targets = tensor_at(b, 1, shape);
    onepass_tensor grad_predictions = tensor_at(b, 2, shape);
    onepass_tensor value = {
        .data = (void *)(uintptr_t)b->value, .device = b->handle->device, .dtype = element_infos[ELEMENT_F64].dtype};
    onepass_kl_options options = {
        .size = sizeof options, .workspace = (void *)(uintptr_t)b->workspace, .workspace_size = b->workspace_size};
    return kl_call_in_place(b->problem->forms, b->handle, &predictions, &targets, &options, &value,
                            gradient ? &grad_predictions : NULL, NULL);
}

/* As many bytes as the operator moves, read and nothing else. */
static onepass_status run_plain_read(const cuda_bench *b, int arrays)
{
    onep_read_args args = {.data = (void *)(uintptr_t)b->arrays,
                           .bytes = (size_t)arrays * b->bytes,
                           .sink = (void *)(uintptr_t)(b->value + sizeof(double))};
    unsigned grid = 2 * (unsigned)onep_cuda_multiprocessors(b->handle->cuda);
    return onep_cuda_launch(b->handle->cuda, "bench", "onep_read_probe", grid, 512, 0, &args, sizeof args);
}

static onepass_status run_work(const cuda_bench *b, int work)
{
    switch (work) {
    case BENCH_FLOOR_READ:
        return run_plain_read(b, 2);
    case BENCH_FLOOR_WRITE:
        return run_plain_read(b, 3);
    default:
        return run_operator(b, work == BENCH_GRADIENT);
    }
}

/* Seconds of one run with a cold cache. */
static onepass_status time_once(const cuda_bench *b, int work, double *seconds)
{
    const onep_driver *driver = b->memory.driver;
    float milliseconds = 0;
    int error = driver->cuMemsetD32Async(b->flushed, 1, flush_bytes / 4, NULL);
    if (error == 0)
        error = driver->cuEventRecord(b->begin, NULL);
    onepass_status status = device_status("bench", error);
    if (status == ONEPASS_OK)
        status = run_work(b, work);
    if (status != ONEPASS_OK)
        return status;
    error = driver->cuEventRecord(b->end, NULL);
    if (error == 0)
        error = driver->cuEventSynchronize(b->end);
    if (error == 0)
        error = driver->cuEventElapsedTime(&milliseconds, b->begin, b->end);
    *seconds = 1e-3 * (double)milliseconds;
    return device_status("bench", error);
}

static onepass_status prepare(cuda_bench *b)
{
    const kl_case *problem = b->problem;
    int64_t shape[2] = {problem->shape[0], problem->shape[1]};
    b->bytes = (problem->bytes + 255) / 256 * 256;
    onepass_status status = device_open(&b->memory, b->handle->device.id);
    if (status == ONEPASS_OK)
        status = device_claim(&b->memory, "predictions, targets and gradient", 3 * b->bytes, &b->arrays);
    if (status == ONEPASS_OK)
        status = device_claim(&b->memory, "memory to empty the cache", flush_bytes, &b->flushed);
    if (status == ONEPASS_OK)
        status = device_claim(&b->memory, "value", 2 * sizeof(double), &b->value);
    onepass_tensor predictions = tensor_at(b, 0, shape);
    if (status == ONEPASS_OK)
        status = onepass_kl_workspace_size(b->handle, &predictions, NULL, &b->workspace_size);
    if (status == ONEPASS_OK)
        status = device_claim(&b->memory, "workspace", b->workspace_size, &b->workspace);
    if (status != ONEPASS_OK)
        return status;
    const onep_driver *driver = b->memory.driver;
    int error = driver->cuMemcpyHtoD(b->arrays, problem->predictions, problem->bytes);
    if (error == 0)
        error = driver->cuMemcpyHtoD(b->arrays + b->bytes, problem->targets, problem->bytes);
    if (error == 0)
        error = driver->cuEventCreate(&b->begin, 0);
    if (error == 0)
        error = driver->cuEventCreate(&b->end, 0);
    return device_status("bench", error);
}

static void clean_up(cuda_bench *b)
{
    if (!b->memory.open)
        return;
    if (b->begin)
        b->memory.driver->cuEventDestroy(b->begin);
    if (b->end)
        b->memory.driver->cuEventDestroy(b->end);
    device_release(&b->memory, b->arrays);
    device_release(&b->memory, b->flushed);
    device_release(&b->memory, b->value);
    device_release(&b->memory, b->workspace);
    device_close(&b->memory);
}

static onepass_status measure(cuda_bench *b, timed_work works[BENCH_WORKS], int first, double seconds)
{
    for (int i = first; i < BENCH_WORKS; i++) {
        double ignored;
        for (int k = 0; k < WARM_UPS; k++) {
            onepass_status status = time_once(b, i, &ignored);
            if (status != ONEPASS_OK)
                return status;
        }
        works[i].samples = malloc(MOST_ROUNDS * sizeof *works[i].samples);
        if (!works[i].samples)
            return onep_fail(ONEPASS_OUT_OF_MEMORY, "bench: no memory for the samples");
    }
    double begun = clock_seconds();
    for (int round = 0; round < MOST_ROUNDS; round++) {
        double passed = clock_seconds() - begun;
        if (round >= LEAST_ROUNDS && passed >= seconds)
            break;
        for (int i = first; i < BENCH_WORKS; i++) {
            onepass_status status = time_once(b, i, &works[i].samples[works[i].rounds]);
            if (status != ONEPASS_OK)
                return status;
            works[i].rounds++;
        }
        double least = (round + 1.0) / LEAST_ROUNDS, part = passed / seconds;
        progress_update(NULL, least < part ? least : part < 1 ? part : 1);
    }
    return ONEPASS_OK;
}

onepass_status bench_cuda(onepass_handle *handle, const kl_case *problem, timed_work works[BENCH_WORKS], int first,
                          double seconds)
{
    static const char *const work_names[BENCH_WORKS] = {"plain read", "forward", "plain read of 3/2",
                                                        "forward + gradient"};
    cuda_bench b = {.handle = handle, .problem = problem};
    for (int i = 0; i < BENCH_WORKS; i++)
        works[i] = (timed_work){.name = work_names[i],
                                .bytes = (i < BENCH_FLOOR_WRITE ? 2 : 3) * (double)problem->bytes,
                                .floor = i < BENCH_FLOOR_WRITE ? BENCH_FLOOR_READ : BENCH_FLOOR_WRITE,
                                .repeats = 1};
    onepass_status status = prepare(&b);
    if (status == ONEPASS_OK)
        status = measure(&b, works, first, seconds);
    clean_up(&b);
    return status;
}
