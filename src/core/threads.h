/*
 * The library's own small thread pool. OpenMP is not used: a child forked after a parallel region hangs at its next
 * one, and a second OpenMP runtime beside the caller's own fights it for the cores.
 *
 *  - The calling thread works too; a handle of one thread never starts another.
 *  - Concurrent callers never wait for each other: one that finds no idle worker works alone.
 *  - After fork the child starts with an empty pool and makes its own workers when it first needs them. A child forked
 *    in a progress callback that returns from it finishes the call by itself.
 *  - A thread is not cancelled in the middle: cancellation is put off until the work is done.
 *  - Nothing computed may depend on which thread does which index, so the number of threads never changes a result.
 */
#ifndef ONEP_THREADS_H
#define ONEP_THREADS_H

#include <stdint.h>

#include "onepass.h"

#define ONEP_MAX_THREADS 4096

typedef void onep_work(void *context, int64_t index);

/* Calls work(context, i) once for every i in [0, count), on up to the handle's number of threads; returns when all are
 * done. The handle's progress callback hears on this thread how far the work is; core/operator.c reports the end.
 */
void onep_parallel(const onepass_handle *handle, int64_t count, onep_work *work, void *context);

/*
 * Between these two, which may not be nested, no other thread forks: for a library whose locks a child would inherit
 * locked. A fork waits for those that hold, so they must neither fork nor wait for anybody.
 */
void onep_forks_hold(void);
void onep_forks_release(void);

#endif
