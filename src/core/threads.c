/*
 * The thread pool: see threads.h for what it promises.
 *
 * Every call puts a job, which lives on the caller's stack, on a list. Idle workers join jobs that still want help; the
 * indices of a job are handed out by an atomic counter. The caller works as well, then takes its job off the list and
 * waits for the workers that are still inside it. One mutex guards the list and the counts; it is held for a few
 * instructions at a time and never while work runs.
 */
#define _POSIX_C_SOURCE 200809L
#include "core/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "core/cancel.h"
#include "core/fpenv.h"
#include "core/handle.h"

typedef struct job {
    onep_work *work;
    void *context;
    int64_t count;
    int64_t next;        /* the next index to hand out, atomically */
    int helpers;         /* workers it may have at once */
    int wanted;          /* workers that may still join */
    int inside;          /* workers that have joined and not left */
    int paused;          /* workers are to leave after the index they are at; atomically */
    pthread_cond_t left; /* signalled when the last one leaves */
    struct job *following;
    struct job *outer; /* that of the same thread whose progress callback made this call */
} job;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t arrived; /* a job was put on the list */
    job *jobs;              /* those that still want workers */
    int workers;            /* threads that exist */
    int idle;               /* those that wait for a job */
    int holders;            /* threads between onep_forks_hold and onep_forks_release */
    int forking;            /* threads that wait for the last of those to leave, or are forking */
    pthread_cond_t changed; /* one of these two became 0 */
    int cancel_state;       /* of the thread that is forking */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .arrived = PTHREAD_COND_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* The job of the call this thread is in. */
static _Thread_local job *current;

/* Does indices until none is left. `reporter` is the caller's handle on the caller's thread, NULL on a worker. */
static void do_indices(job *j, const onepass_handle *reporter)
{
    while (!__atomic_load_n(&j->paused, __ATOMIC_RELAXED)) {
        int64_t index = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (index >= j->count)
            return;
        if (reporter && reporter->progress) {
            reporter->progress(reporter->progress_context, (double)index / (double)j->count);
            onep_fpenv_set_default(); /* the callback is the program's: it may have set what it likes */
        }
        j->work(j->context, index);
    }
}

static void put_on_list(job *j)
{
    j->wanted = j->helpers;
    j->following = pool.jobs;
    pool.jobs = j;
    if (j->wanted == 1)
        pthread_cond_signal(&pool.arrived);
    else
        pthread_cond_broadcast(&pool.arrived);
}

static void take_off_list(job *j)
{
    job **link = &pool.jobs;
    while (*link && *link != j)
        link = &(*link)->following;
    if (*link)
        *link = j->following;
}

static void *worker_main(void *unused)
{
    (void)unused;
    onep_fpenv_set_default(); /* a thread inherits that of whoever happened to start it */
    pthread_mutex_lock(&pool.mutex);
    for (;;) {
        while (!pool.jobs) {
            pool.idle++;
            pthread_cond_wait(&pool.arrived, &pool.mutex);
            pool.idle--;
        }
        job *j = pool.jobs;
        j->inside++;
        if (--j->wanted == 0)
            take_off_list(j);
        pthread_mutex_unlock(&pool.mutex);
        do_indices(j, NULL);
        pthread_mutex_lock(&pool.mutex);
        /* The caller may return, and its job vanish, as soon as the mutex is free: this is the last touch. */
        if (--j->inside == 0)
            pthread_cond_signal(&j->left);
    }
    return NULL;
}

/* Starts one worker; false if the system refuses, which only makes the call slower. Mutex held. */
static int start_worker(void)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return 0;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* Workers take no signals: a handler of the program must not run on a thread the program does not know. A fault of
     * the worker's own is another matter: blocked, it would end the process without asking the program's handler. */
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV};
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int started = pthread_create(&thread, &attributes, worker_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    pool.workers += started;
    return started;
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

/*
 * The child has the parent's memory but only the forking thread. Holding the mutex across the fork makes the copied
 * state consistent; the child then forgets workers and jobs, whose threads it does not have.
 *
 * The forking thread may itself be in a call, in its progress callback, and the child may return from it and finish the
 * call. An index that a worker is at would be half done in the child, and cannot be done again where results lie over
 * their inputs: so its workers leave first, the fork happens between two indices, and the child does the rest alone.
 */
static void before_fork(void)
{
    int cancel_state = onep_cancel_disable();
    pthread_mutex_lock(&pool.mutex);
    for (job *j = current; j; j = j->outer) {
        __atomic_store_n(&j->paused, 1, __ATOMIC_RELAXED);
        take_off_list(j);
    }
    for (job *j = current; j; j = j->outer)
        while (j->inside > 0)
            pthread_cond_wait(&j->left, &pool.mutex);
    /* After the workers have left: one of them might be waiting to hold. */
    pool.forking++;
    while (pool.holders > 0)
        pthread_cond_wait(&pool.changed, &pool.mutex);
    pool.cancel_state = cancel_state;
}

static void after_fork_in_parent(void)
{
    int cancel_state = pool.cancel_state;
    if (--pool.forking == 0)
        pthread_cond_broadcast(&pool.changed);
    for (job *j = current; j; j = j->outer) {
        __atomic_store_n(&j->paused, 0, __ATOMIC_RELAXED);
        put_on_list(j);
    }
    pthread_mutex_unlock(&pool.mutex);
    onep_cancel_restore(cancel_state);
}

static void after_fork_in_child(void)
{
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.arrived, NULL);
    pthread_cond_init(&pool.changed, NULL);
    pool.jobs = NULL;
    pool.workers = 0;
    pool.idle = 0;
    pool.holders = 0;
    pool.forking = 0;
    for (job *j = current; j; j = j->outer) {
        j->paused = 0;
        j->wanted = 0;
    }
    onep_cancel_restore(pool.cancel_state);
}

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void onep_forks_hold(void)
{
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&pool.mutex);
    while (pool.forking > 0)
        pthread_cond_wait(&pool.changed, &pool.mutex);
    pool.holders++;
    pthread_mutex_unlock(&pool.mutex);
}

void onep_forks_release(void)
{
    pthread_mutex_lock(&pool.mutex);
    if (--pool.holders == 0)
        pthread_cond_broadcast(&pool.changed);
    pthread_mutex_unlock(&pool.mutex);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void ask_for_workers(job *j)
{
    int helpers = j->helpers;
    pthread_mutex_lock(&pool.mutex);
    /* Workers that are busy elsewhere will not come in time: make up to `helpers` idle ones, no more than asked for. */
    int missing = helpers - pool.idle;
    while (missing-- > 0 && pool.workers < helpers && start_worker())
        ;
    put_on_list(j);
    pthread_mutex_unlock(&pool.mutex);
}

static void wait_for_workers(job *j)
{
    pthread_mutex_lock(&pool.mutex);
    if (j->wanted > 0)
        take_off_list(j);
    while (j->inside > 0)
        pthread_cond_wait(&j->left, &pool.mutex);
    pthread_mutex_unlock(&pool.mutex);
}

static void with_workers(const onepass_handle *handle, job *j)
{
    pthread_once(&fork_once, watch_forks);
    pthread_cond_init(&j->left, NULL);
    j->outer = current;
    current = j;
    ask_for_workers(j);
    do_indices(j, handle);
    wait_for_workers(j);
    current = j->outer;
    pthread_cond_destroy(&j->left);
}

void onep_parallel(const onepass_handle *handle, int64_t count, onep_work *work, void *context)
{
    job j = {.work = work, .context = context, .count = count};
    int64_t helpers = handle->threads - 1 < count - 1 ? handle->threads - 1 : count - 1;
    j.helpers = helpers > 0 ? (int)helpers : 0;
    int cancel_state = onep_cancel_disable();
    if (j.helpers == 0)
        do_indices(&j, handle);
    else
        with_workers(handle, &j);
    onep_cancel_restore(cancel_state);
}
