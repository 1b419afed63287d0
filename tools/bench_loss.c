/* bench of a loss on the processor, and what it shares with a GPU's. See bench_loss.h. */
#include "bench_loss.h"

double bench_bytes(const loss_case *problem, int work)
{
    int inputs = loss_case_inputs(problem), calls = problem->kind == LOSS_TOKEN && work == BENCH_GRADIENT ? 2 : 1;
    bool writes = work == BENCH_FLOOR_WRITE || work == BENCH_GRADIENT;
    return (calls * inputs + writes) * (double)problem->bytes;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

onepass_status bench_calls_make(bench_calls *it, onepass_handle *handle, const loss_case *problem,
                                const onepass_tensor tensors[LOSS_ARRAYS], int first, int last, bench_result *result)
{
    *it = (bench_calls){0};
    onepass_status status = ONEPASS_OK;
    for (int gradient = 0; gradient < 2; gradient++) {
        int work = gradient ? BENCH_GRADIENT : BENCH_FORWARD;
        if (work < first || work >= last)
            continue;
        it->counts[gradient] = loss_case_calls(problem, tensors, gradient, it->calls[gradient]);
        result->workspace[gradient] = 0;
        for (int i = 0; i < it->counts[gradient] && status == ONEPASS_OK; i++) {
            size_t size = 0, *most = &result->workspace[gradient];
            status = call_workspace_size(&it->calls[gradient][i], handle, &size);
            *most = size > *most ? size : *most;
        }
        if (result->workspace[gradient] > it->workspace_size)
            it->workspace_size = result->workspace[gradient];
    }
    return status == ONEPASS_OK ? onepass_memory_alloc(handle, it->workspace_size, &it->workspace) : status;
}

onepass_status bench_calls_run(const bench_calls *it, onepass_handle *handle, bool gradient)
{
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < it->counts[gradient] && status == ONEPASS_OK; i++)
        status = call_run_there(&it->calls[gradient][i], handle, it->workspace, it->workspace_size);
    return status;
}

void bench_calls_drop(bench_calls *it, onepass_handle *handle)
{
    onepass_memory_free(handle, it->workspace);
    it->workspace = NULL;
}

/* ---- the processor ----------------------------------------------------------------------------------------------- */

typedef struct cpu_bench {
    onepass_handle *handle;
    onepass_status status; /* of the first call that failed */
    bench_calls calls;
    memory_set read, written;
} cpu_bench;

/* A call that is refused returns at once: measuring it to the end costs nothing. */
static void run_calls(cpu_bench *b, bool gradient, int repeats)
{
    for (int i = 0; i < repeats; i++) {
        onepass_status status = bench_calls_run(&b->calls, b->handle, gradient);
        if (b->status == ONEPASS_OK)
            b->status = status;
    }
}

static void run_forward(void *context, int repeats)
{
    run_calls(context, false, repeats);
}

static void run_gradient(void *context, int repeats)
{
    run_calls(context, true, repeats);
}

static void describe_works(cpu_bench *b, const loss_case *problem, timed_work works[BENCH_WORKS], int first, int last)
{
    if (first == BENCH_FLOOR_READ) {
        works[BENCH_FLOOR_READ] = measure_floor(&b->read, false);
        works[BENCH_FORWARD] = (timed_work){.name = "forward", .run = run_forward};
    }
    if (last == BENCH_WORKS) {
        works[BENCH_FLOOR_WRITE] = measure_floor(&b->written, true);
        works[BENCH_GRADIENT] = (timed_work){.name = "forward + gradient", .run = run_gradient};
    }
    for (int i = first; i < last; i++) {
        works[i].floor = (i < BENCH_FLOOR_WRITE ? BENCH_FLOOR_READ : BENCH_FLOOR_WRITE) - first;
        works[i].bytes = bench_bytes(problem, i);
        if (i == BENCH_FORWARD || i == BENCH_GRADIENT)
            works[i].context = b;
    }
}

onepass_status bench_loss(onepass_handle *handle, const loss_case *problem, team *members, bench_result *result,
                          int first, int last, const measure_rule *rule)
{
    cpu_bench b = {.handle = handle};
    b.read = b.written = loss_case_memory(problem, members);
    b.status = bench_calls_make(&b.calls, handle, problem, problem->tensors, first, last, result);
    if (b.status == ONEPASS_OK) {
        timed_work *works = result->works;
        describe_works(&b, problem, works, first, last);
        if (!measure_in_turn(works + first, last - first, rule))
            measure_release(works + first, last - first);
    }
    bench_calls_drop(&b.calls, handle);
    return b.status;
}
