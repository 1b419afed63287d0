/*
 * The thread pool: see threads.h for what it promises.
 *
 * Every call puts a job, which lives on the caller's stack, on a list. Idle workers join jobs that still want help; the
 * indices of a job are handed out by an atomic counter. The caller works as well, then takes its job off the list and
 * waits for the workers that are still inside it. One mutex guards the list and the counts; it is held for a few
 * instructions at a time and never while work runs.
 */
#define _POSIX_C_SOURCE 200809L
#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "handle.h"

typedef struct job {
    onep_work *work;
    void *context;
    int64_t count;
    int64_t next;        /* the next index to hand out, atomically */
    int wanted;          /* workers that may still join */
    int inside;          /* workers that have joined and not left */
    pthread_cond_t left; /* signalled when the last one leaves */
    struct job *following;
} job;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t arrived; /* a job was put on the list */
    job *jobs;              /* those that still want workers */
    int workers;            /* threads that exist */
    int idle;               /* those that wait for a job */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .arrived = PTHREAD_COND_INITIALIZER};

/* Does indices until none is left. `reporter` is the caller's handle on the caller's thread, NULL on a worker. */
static void do_indices(job *j, const onepass_handle *reporter)
{
    for (;;) {
        int64_t index = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (index >= j->count)
            return;
        if (reporter && reporter->progress)
            reporter->progress(reporter->progress_context, (double)index / (double)j->count);
        j->work(j->context, index);
    }
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

/*
 * fork: the child has the parent's memory but only the forking thread. Holding the mutex across the fork makes the
 * copied state consistent; the child then forgets workers and jobs, whose threads it does not have.
 */
static void before_fork(void)
{
    pthread_mutex_lock(&pool.mutex);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&pool.mutex);
}

static void after_fork_in_child(void)
{
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.arrived, NULL);
    pool.jobs = NULL;
    pool.workers = 0;
    pool.idle = 0;
}

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void put_on_list(job *j, int helpers)
{
    pthread_mutex_lock(&pool.mutex);
    /* Workers that are busy elsewhere will not come in time: make up to `helpers` idle ones, no more than asked for. */
    int missing = helpers - pool.idle;
    while (missing-- > 0 && pool.workers < helpers && start_worker())
        ;
    j->wanted = helpers;
    j->following = pool.jobs;
    pool.jobs = j;
    if (helpers == 1)
        pthread_cond_signal(&pool.arrived);
    else
        pthread_cond_broadcast(&pool.arrived);
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

void onep_parallel(const onepass_handle *handle, int64_t count, onep_work *work, void *context)
{
    job j = {.work = work, .context = context, .count = count};
    int64_t helpers = handle->threads - 1 < count - 1 ? handle->threads - 1 : count - 1;
    if (helpers <= 0) {
        do_indices(&j, handle);
        return;
    }
    pthread_once(&fork_once, watch_forks);
    pthread_cond_init(&j.left, NULL);
    put_on_list(&j, (int)helpers);
    do_indices(&j, handle);
    wait_for_workers(&j);
    pthread_cond_destroy(&j.left);
}
