/*
 * pthread_cancel: a thread must not end where it holds a mutex, or while workers still use a job that lies on its
 * stack: every later call would wait for ever. Such sections put cancellation off; it happens after them.
 */
#ifndef ONEP_CANCEL_H
#define ONEP_CANCEL_H

#include <pthread.h>

static inline int onep_cancel_disable(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void onep_cancel_restore(int before)
{
    int ignored;
    pthread_setcancelstate(before, &ignored);
}

/* pthread_once for functions that load libraries: dlopen reads files, and a thread cancelled there leaves it locked. */
static inline void onep_load_once(pthread_once_t *once, void (*load)(void))
{
    int before = onep_cancel_disable();
    pthread_once(once, load);
    onep_cancel_restore(before);
}

#endif
