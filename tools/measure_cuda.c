/* Timing on a GPU. See measure_cuda.h. */
#define _POSIX_C_SOURCE 200809L
#include "measure_cuda.h"

#include <stdlib.h>

#include "clock.h"
#include "progress.h"
#include "status.h"

enum { LEAST_ROUNDS = 30, MOST_ROUNDS = 10000, WARM_UPS = 3 };
static const size_t flush_bytes = (size_t)256 << 20;

onepass_status cuda_timer_open(cuda_timer *timer, int32_t device)
{
    onepass_status status = device_open(&timer->memory, device);
    if (status == ONEPASS_OK)
        status = device_claim(&timer->memory, "memory to empty the cache", flush_bytes, &timer->flushed);
    if (status != ONEPASS_OK)
        return status;
    int error = timer->memory.driver->cuEventCreate(&timer->begin, 0);
    if (error == 0)
        error = timer->memory.driver->cuEventCreate(&timer->end, 0);
    return device_status("bench", error);
}

void cuda_timer_close(cuda_timer *timer)
{
    if (!timer->memory.open)
        return;
    if (timer->begin)
        timer->memory.driver->cuEventDestroy(timer->begin);
    if (timer->end)
        timer->memory.driver->cuEventDestroy(timer->end);
    device_release(&timer->memory, timer->flushed);
    device_close(&timer->memory);
}

/* Seconds of one run with a cold cache. */
static onepass_status time_once(const cuda_timer *timer, cuda_work *run, void *context, int work, double *seconds)
{
    const onep_driver *driver = timer->memory.driver;
    float milliseconds = 0;
    int error = driver->cuMemsetD32Async(timer->flushed, 1, flush_bytes / 4, NULL);
    if (error == 0)
        error = driver->cuEventRecord(timer->begin, NULL);
    onepass_status status = device_status("bench", error);
    if (status == ONEPASS_OK)
        status = run(context, work);
    if (status != ONEPASS_OK)
        return status;
    error = driver->cuEventRecord(timer->end, NULL);
    if (error == 0)
        error = driver->cuEventSynchronize(timer->end);
    if (error == 0)
        error = driver->cuEventElapsedTime(&milliseconds, timer->begin, timer->end);
    *seconds = 1e-3 * (double)milliseconds;
    return device_status("bench", error);
}

static onepass_status warm_up(const cuda_timer *timer, cuda_work *run, void *context, timed_work *works, int work)
{
    works[work].repeats = 1;
    works[work].samples = malloc(MOST_ROUNDS * sizeof *works[work].samples);
    if (!works[work].samples)
        return onep_fail(ONEPASS_OUT_OF_MEMORY, "bench: no memory for the samples");
    onepass_status status = ONEPASS_OK;
    double ignored;
    for (int i = 0; i < WARM_UPS && status == ONEPASS_OK; i++)
        status = time_once(timer, run, context, work, &ignored);
    return status;
}

onepass_status cuda_measure_in_turn(cuda_timer *timer, cuda_work *run, void *context, timed_work works[], int first,
                                    int count, double seconds)
{
    for (int i = first; i < count; i++) {
        onepass_status status = warm_up(timer, run, context, works, i);
        if (status != ONEPASS_OK)
            return status;
    }
    double begun = clock_seconds();
    for (int round = 0; round < MOST_ROUNDS; round++) {
        double passed = clock_seconds() - begun;
        if (round >= LEAST_ROUNDS && passed >= seconds)
            break;
        for (int i = first; i < count; i++) {
            onepass_status status = time_once(timer, run, context, i, &works[i].samples[works[i].rounds]);
            if (status != ONEPASS_OK)
                return status;
            works[i].rounds++;
        }
        double least = (round + 1.0) / LEAST_ROUNDS, part = passed / seconds;
        progress_update(NULL, least < part ? least : part < 1 ? part : 1);
    }
    return ONEPASS_OK;
}
