/*
 * Timing on a GPU: several kinds of work in turn, each run alone on the device after 256 MB have been written to empty
 * its cache, between two of the driver's events. Copies nothing inside what is timed.
 */
#ifndef TOOL_MEASURE_CUDA_H
#define TOOL_MEASURE_CUDA_H

#include "device_memory.h"
#include "measure.h"

typedef struct cuda_timer {
    device_memory memory; /* open while the timer is */
    onep_cu_address flushed;
    onep_cu_event *begin, *end;
} cuda_timer;

onepass_status cuda_timer_open(cuda_timer *timer, int32_t device);
void cuda_timer_close(cuda_timer *timer); /* also of a zeroed structure */

/* Puts work number `work` on the default stream, once. */
typedef onepass_status cuda_work(void *context, int work);

/* Fills the samples of works[first] to works[count - 1]: at least 30 of each, for at least `seconds`. */
onepass_status cuda_measure_in_turn(cuda_timer *timer, cuda_work *run, void *context, timed_work works[], int first,
                                    int count, double seconds);

#endif
