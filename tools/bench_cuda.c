/* bench of a loss on a GPU. See bench_cuda.h. */
#include "bench_cuda.h"

#include "measure_cuda.h"

typedef struct cuda_bench {
    onepass_handle *handle;
    const loss_case *problem;
    cuda_timer timer;
    size_t bytes;                    /* of one large array, rounded up so that they lie aligned one after the other */
    char *arrays;                    /* of the device: predictions, targets if there are any, gradient */
    tensor_copy copies[LOSS_ARRAYS]; /* of the small ones */
    onepass_tensor tensors[LOSS_ARRAYS];
    void *sum; /* of the read probe */
    bench_calls calls;
} cuda_bench;

/* As many arrays as the operator reads and writes, read and nothing else. */
static onepass_status run_plain_read(const cuda_bench *b, int arrays)
{
    return onepass_read_probe(b->handle, b->arrays, (size_t)arrays * b->bytes, b->sum);
}

static onepass_status run_work(void *context, int work)
{
    const cuda_bench *b = context;
    int inputs = loss_case_inputs(b->problem);
    if (work == BENCH_FLOOR_READ || work == BENCH_FLOOR_WRITE)
        return run_plain_read(b, work == BENCH_FLOOR_READ ? inputs : inputs + 1);
    return bench_calls_run(&b->calls, b->handle, work == BENCH_GRADIENT);
}

/* The large arrays one after the other, the small ones anywhere. */
static onepass_status send(cuda_bench *b)
{
    const loss_case *problem = b->problem;
    char *at = b->arrays;
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < LOSS_ARRAYS && status == ONEPASS_OK; i++) {
        if (!problem->arrays[i])
            continue;
        if (!loss_case_is_large(problem, i)) {
            status = copy_send(&b->copies[i], b->handle, &problem->tensors[i]);
            b->tensors[i] = b->copies[i].there;
            continue;
        }
        b->tensors[i] = problem->tensors[i];
        b->tensors[i].device = onepass_device_of(b->handle);
        b->tensors[i].data = at;
        if (i != LOSS_GRADIENT)
            status = onepass_memory_copy(b->handle, at, problem->arrays[i], problem->bytes);
        at += b->bytes;
    }
    return status;
}

static onepass_status prepare(cuda_bench *b, int first, int last, bench_result *result)
{
    const loss_case *problem = b->problem;
    void *arrays = NULL;
    b->bytes = (problem->bytes + 255) / 256 * 256;
    onepass_status status = cuda_timer_open(&b->timer, b->handle);
    if (status == ONEPASS_OK)
        status = onepass_memory_alloc(b->handle, (size_t)(loss_case_inputs(problem) + 1) * b->bytes, &arrays);
    b->arrays = arrays;
    if (status == ONEPASS_OK)
        status = onepass_memory_alloc(b->handle, sizeof(double), &b->sum);
    if (status == ONEPASS_OK)
        status = send(b);
    if (status == ONEPASS_OK)
        status = bench_calls_make(&b->calls, b->handle, problem, b->tensors, first, last, result);
    return status;
}

static void clean_up(cuda_bench *b)
{
    for (int i = 0; i < LOSS_ARRAYS; i++)
        copy_drop(&b->copies[i], b->handle);
    onepass_memory_free(b->handle, b->arrays);
    onepass_memory_free(b->handle, b->sum);
    bench_calls_drop(&b->calls, b->handle);
    cuda_timer_close(&b->timer);
}

onepass_status bench_cuda(onepass_handle *handle, const loss_case *problem, bench_result *result, int first, int last,
                          const measure_rule *rule)
{
    const char *const work_names[BENCH_WORKS] = {
        "plain read", "forward", loss_case_inputs(problem) == 2 ? "plain read of 3/2" : "plain read of 2/1",
        "forward + gradient"};
    cuda_bench b = {.handle = handle, .problem = problem};
    for (int i = first; i < last; i++)
        result->works[i] =
            (timed_work){.name = work_names[i],
                         .bytes = bench_bytes(problem, i),
                         .floor = (i < BENCH_FLOOR_WRITE ? BENCH_FLOOR_READ : BENCH_FLOOR_WRITE) - first};
    onepass_status status = prepare(&b, first, last, result);
    if (status == ONEPASS_OK)
        status = cuda_measure_in_turn(&b.timer, run_work, &b, result->works, first, last, rule);
    clean_up(&b);
    return status;
}
