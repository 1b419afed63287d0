/*
 * Timing on a GPU: several kinds of work in turn, each run alone on the device after 256 MB have been written to empty
 * its cache, between two events of the device. Copies nothing inside what is timed.
 */
#ifndef TOOL_MEASURE_CUDA_H
#define TOOL_MEASURE_CUDA_H

#include "measure.h"
#include "onepass.h"

typedef struct cuda_timer {
    onepass_handle *handle;
    void *flushed;
    onepass_timer *timer;
} cuda_timer;

onepass_status cuda_timer_open(cuda_timer *timer, onepass_handle *handle);
void cuda_timer_close(cuda_timer *timer); /* after a failure too; also of a zeroed structure */

/* Puts work number `work` on the handle's stream, once. */
typedef onepass_status cuda_work(void *context, int work);

/* What bench takes: 30 rounds. */
measure_rule cuda_measure_thoroughly(double seconds);

/*
 * Fills the samples of works[first] to works[count - 1], as many of each as the rule says. Without memory for them it
 * measures nothing and returns ONEPASS_OK: works[first].samples is NULL.
 */
onepass_status cuda_measure_in_turn(cuda_timer *timer, cuda_work *run, void *context, timed_work works[], int first,
                                    int count, const measure_rule *rule);

#endif
