/* bench kl on a GPU. See bench_cuda.h. */
#include "bench_cuda.h"

#include "handle.h"
#include "kl_args.h"
#include "measure_cuda.h"

typedef struct cuda_bench {
    onepass_handle *handle;
    const kl_case *problem;
    cuda_timer timer;
    size_t bytes;           /* of one array, rounded up so that three lie aligned one after the other */
    onep_cu_address arrays; /* predictions, targets, gradient */
    onep_cu_address value, workspace;
    size_t workspace_size;
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
    return onep_cuda_launch(b->handle->cuda, "bench", "onep_read_probe", grid, 512, 0, &args);
}

static onepass_status run_work(void *context, int work)
{
    const cuda_bench *b = context;
    switch (work) {
    case BENCH_FLOOR_READ:
        return run_plain_read(b, 2);
    case BENCH_FLOOR_WRITE:
        return run_plain_read(b, 3);
    default:
        return run_operator(b, work == BENCH_GRADIENT);
    }
}

static onepass_status prepare(cuda_bench *b)
{
    const kl_case *problem = b->problem;
    const device_memory *memory = &b->timer.memory;
    int64_t shape[2] = {problem->shape[0], problem->shape[1]};
    b->bytes = (problem->bytes + 255) / 256 * 256;
    onepass_status status = cuda_timer_open(&b->timer, b->handle->device.id);
    if (status == ONEPASS_OK)
        status = device_claim(memory, "predictions, targets and gradient", 3 * b->bytes, &b->arrays);
    if (status == ONEPASS_OK)
        status = device_claim(memory, "value", 2 * sizeof(double), &b->value);
    onepass_tensor predictions = tensor_at(b, 0, shape);
    if (status == ONEPASS_OK)
        status = onepass_kl_workspace_size(b->handle, &predictions, NULL, &b->workspace_size);
    if (status == ONEPASS_OK)
        status = device_claim(memory, "workspace", b->workspace_size, &b->workspace);
    if (status != ONEPASS_OK)
        return status;
    int error = memory->driver->cuMemcpyHtoD(b->arrays, problem->predictions, problem->bytes);
    if (error == 0)
        error = memory->driver->cuMemcpyHtoD(b->arrays + b->bytes, problem->targets, problem->bytes);
    return device_status("bench", error);
}

static void clean_up(cuda_bench *b)
{
    if (!b->timer.memory.open)
        return;
    device_release(&b->timer.memory, b->arrays);
    device_release(&b->timer.memory, b->value);
    device_release(&b->timer.memory, b->workspace);
    cuda_timer_close(&b->timer);
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
                                .floor = i < BENCH_FLOOR_WRITE ? BENCH_FLOOR_READ : BENCH_FLOOR_WRITE};
    onepass_status status = prepare(&b);
    if (status == ONEPASS_OK)
        status = cuda_measure_in_turn(&b.timer, run_work, &b, works, first, BENCH_WORKS, seconds);
    clean_up(&b);
    return status;
}
