/* Timing on a GPU. See measure_cuda.h. */
#define _POSIX_C_SOURCE 200809L
#include "measure_cuda.h"

#include <math.h>
#include <stdlib.h>

#include "clock.h"
#include "progress.h"

enum { MOST_ROUNDS = 10000, WARM_UPS = 3 };
static const size_t flush_bytes = (size_t)256 << 20;

onepass_status cuda_timer_open(cuda_timer *timer, onepass_handle *handle)
{
    *timer = (cuda_timer){.handle = handle};
    onepass_status status = onepass_memory_alloc(handle, flush_bytes, &timer->flushed);
    return status == ONEPASS_OK ? onepass_timer_create(handle, &timer->timer) : status;
}

void cuda_timer_close(cuda_timer *timer)
{
    onepass_timer_destroy(timer->timer);
    if (timer->flushed)
        onepass_memory_free(timer->handle, timer->flushed);
    *timer = (cuda_timer){0};
}

/* Seconds of one run with a cold cache. */
static onepass_status time_once(const cuda_timer *timer, cuda_work *run, void *context, int work, double *seconds)
{
    onepass_status status = onepass_memory_fill(timer->handle, timer->flushed, 1, flush_bytes);
    if (status == ONEPASS_OK)
        status = onepass_timer_start(timer->timer);
    if (status == ONEPASS_OK)
        status = run(context, work);
    if (status == ONEPASS_OK)
        status = onepass_timer_stop(timer->timer);
    return status == ONEPASS_OK ? onepass_timer_seconds(timer->timer, seconds) : status;
}

static onepass_status warm_up(const cuda_timer *timer, cuda_work *run, void *context, int work)
{
    onepass_status status = ONEPASS_OK;
    double ignored;
    for (int i = 0; i < WARM_UPS && status == ONEPASS_OK; i++)
        status = time_once(timer, run, context, work, &ignored);
    return status;
}

/* All or none. */
static bool claim_samples(timed_work works[], int first, int count)
{
    bool claimed = true;
    for (int i = first; i < count; i++) {
        works[i].repeats = 1;
        works[i].samples = malloc(MOST_ROUNDS * sizeof *works[i].samples);
        claimed = claimed && works[i].samples;
    }
    for (int i = first; i < count && !claimed; i++) {
        free(works[i].samples);
        works[i].samples = NULL;
    }
    return claimed;
}

measure_rule cuda_measure_thoroughly(double seconds)
{
    return (measure_rule){.rounds = 30, .seconds = seconds, .most_seconds = INFINITY, .shows_progress = true};
}

onepass_status cuda_measure_in_turn(cuda_timer *timer, cuda_work *run, void *context, timed_work works[], int first,
                                    int count, const measure_rule *rule)
{
    if (!claim_samples(works, first, count))
        return ONEPASS_OK;
    for (int i = first; i < count; i++) {
        onepass_status status = warm_up(timer, run, context, i);
        if (status != ONEPASS_OK)
            return status;
    }
    double begun = clock_seconds();
    for (int round = 0; round < MOST_ROUNDS; round++) {
        double passed = clock_seconds() - begun;
        if (!measure_goes_on(rule, round, passed))
            break;
        for (int i = first; i < count; i++) {
            onepass_status status = time_once(timer, run, context, i, &works[i].samples[works[i].rounds]);
            if (status != ONEPASS_OK)
                return status;
            works[i].rounds++;
        }
        double least = (round + 1.0) / rule->rounds, part = passed / rule->seconds;
        if (rule->shows_progress)
            progress_update(NULL, least < part ? least : part < 1 ? part : 1);
    }
    return ONEPASS_OK;
}
