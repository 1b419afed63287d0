/*
 * The thread pool keeps its promises: the same bits for any number of threads, in a child forked after a parallel call
 * and in one forked while others are calling, under many concurrent callers; progress is reported on the calling
 * thread, never falls and ends at 1; no signal of the program is taken by a worker; small calls by the thousand. An
 * alarm turns a deadlock into a failure. Clean under ThreadSanitizer, where the parts that fork are left out.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/threads.h"
#include "kl_cases.h"

enum { ROWS = 300, COLUMNS = 777, COUNT = ROWS * COLUMNS, MOST_THREADS = 9, DEADLOCK_SECONDS = 1200 };

static float predictions[COUNT], targets[COUNT];

/* All that a call makes. */
typedef struct result {
    float rows[ROWS];
    float grad_predictions[COUNT], grad_targets[COUNT];
    double sum;
} result;

static result *new_result(void)
{
    result *made = malloc(sizeof *made);
    if (!made) {
        perror("test memory");
        exit(2);
    }
    return made;
}

/* Two calls: a value a row with both gradients, and the sum alone. */
static int solve(onepass_handle *handle, result *r)
{
    int64_t shape[] = {ROWS, COLUMNS};
    memset(r, 0xff, sizeof *r);
    onepass_tensor p = kl_tensor(ONEP_F32, predictions, 2, shape);
    onepass_tensor t = kl_tensor(ONEP_F32, targets, 2, shape);
    onepass_tensor rows = kl_tensor(ONEP_F32, r->rows, 1, shape);
    onepass_tensor gp = kl_tensor(ONEP_F32, r->grad_predictions, 2, shape);
    onepass_tensor gt = kl_tensor(ONEP_F32, r->grad_targets, 2, shape);
    onepass_tensor sum = kl_tensor(ONEP_F64, &r->sum, 0, NULL);
    onepass_kl_options by_row = {.size = sizeof by_row, .reduction = ONEPASS_ROWS};
    onepass_kl_options all = {.size = sizeof all, .reduction = ONEPASS_SUM};
    return onepass_kl_probs_probs(handle, &p, &t, &by_row, &rows, &gp, &gt) == ONEPASS_OK &&
           onepass_kl_probs_probs(handle, &p, &t, &all, &sum, NULL, NULL) == ONEPASS_OK;
}

static int same(const result *a, const result *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* The answer of one thread, checked against the naive formula, for a level. */
static result *reference_for(onep_level level)
{
    result *r = new_result();
    onepass_handle *handle = test_handle(level, 1);
    CHECK(solve(handle, r), "%s", onepass_last_error());
    onepass_destroy(handle);
    long double sum = 0;
    for (int i = 0; i < COUNT; i++)
        sum += (long double)targets[i] * logl((long double)targets[i] / (long double)predictions[i]);
    CHECK(test_close(r->sum, sum, 1e-6L * fabsl(sum)), "sum %.12g, expected %.12Lg", r->sum, sum);
    return r;
}

/* ---- thread counts ----------------------------------------------------------------------------------------------- */

static void test_counts(onep_level level, const result *expected)
{
    result *r = new_result();
    for (int32_t threads = 1; threads <= MOST_THREADS; threads++) {
        test_context("level %s, %d threads", onep_level_name(level), (int)threads);
        onepass_handle *handle = test_handle(level, threads);
        CHECK(onepass_threads(handle) == threads, "the handle has %d", (int)onepass_threads(handle));
        for (int repeat = 0; repeat < (test_quick() ? 2 : 10); repeat++)
            CHECK(solve(handle, r) && same(r, expected), "bits differ from one thread's");
        onepass_destroy(handle);
    }
    free(r);
}

/* Every index is done exactly once, whatever the counts are. */
static void count_index(void *context, int64_t index)
{
    atomic_fetch_add(&((_Atomic int *)context)[index], 1);
}

static void test_indices(void)
{
    enum { MOST = 1000 };
    static _Atomic int times[MOST];
    static const int64_t counts[] = {0, 1, 2, 3, 8, 9, 100, MOST};
    for (int32_t threads = 1; threads <= MOST_THREADS; threads++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            test_context("%d threads, %d indices", (int)threads, (int)counts[k]);
            onepass_handle *handle = test_handle(ONEP_SCALAR, threads);
            for (int i = 0; i < MOST; i++)
                atomic_store(&times[i], 0);
            onep_parallel(handle, counts[k], count_index, times);
            int wrong = 0;
            for (int i = 0; i < MOST; i++)
                wrong += atomic_load(&times[i]) != (i < counts[k]);
            CHECK(wrong == 0, "%d indices were not done once", wrong);
            onepass_destroy(handle);
        }
}

/* ---- concurrent callers ------------------------------------------------------------------------------------------ */

enum { CALLERS = 8 };

typedef struct caller {
    pthread_t thread;
    onep_level level;
    int32_t threads;
    const result *expected;
    atomic_int *stop; /* NULL: a fixed number of calls */
    atomic_int calls;
    int wrong;
} caller;

static void *call_again_and_again(void *argument)
{
    caller *c = argument;
    onepass_handle *handle = test_handle(c->level, c->threads);
    result *r = new_result();
    int limit = test_quick() ? 4 : 20;
    while (c->stop ? !atomic_load(c->stop) : atomic_load(&c->calls) < limit) {
        c->wrong += !solve(handle, r) || !same(r, c->expected);
        atomic_fetch_add(&c->calls, 1);
    }
    free(r);
    onepass_destroy(handle);
    return NULL;
}

static void start_callers(caller *callers, int count, onep_level level, const result *expected, atomic_int *stop)
{
    for (int i = 0; i < count; i++) {
        callers[i] = (caller){.level = level, .threads = 1 + i % 4, .expected = expected, .stop = stop};
        if (pthread_create(&callers[i].thread, NULL, call_again_and_again, &callers[i]) != 0) {
            perror("pthread_create");
            exit(2);
        }
    }
}

static void join_callers(caller *callers, int count)
{
    for (int i = 0; i < count; i++) {
        pthread_join(callers[i].thread, NULL);
        int calls = atomic_load(&callers[i].calls);
        CHECK(calls > 0, "caller %d made no call", i);
        CHECK(callers[i].wrong == 0, "caller %d: %d of %d calls gave other bits", i, callers[i].wrong, calls);
    }
}

static void test_callers(onep_level level, const result *expected)
{
    test_context("level %s, %d concurrent callers", onep_level_name(level), CALLERS);
    caller callers[CALLERS];
    start_callers(callers, CALLERS, level, expected, NULL);
    join_callers(callers, CALLERS);
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

/* In a child: the same call with the inherited handle, and with a new one; the exit status says how it went. */
static int child_agrees(onepass_handle *inherited, onep_level level, const result *expected)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(DEADLOCK_SECONDS / 4);
        result *r = new_result();
        int wrong = !solve(inherited, r) || !same(r, expected);
        onepass_handle *fresh = test_handle(level, 3);
        wrong |= !solve(fresh, r) || !same(r, expected) ? 2 : 0;
        wrong |= !solve(inherited, r) || !same(r, expected) ? 4 : 0;
        _exit(wrong);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 0;
    return CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %d, signal %d",
                 WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void test_fork(onep_level level, const result *expected)
{
    result *r = new_result();
    onepass_handle *handle = test_handle(level, 4);
    test_start_workers(MOST_THREADS);
    test_context("level %s, fork after a parallel call", onep_level_name(level));
    CHECK(solve(handle, r) && same(r, expected), "before the fork");
    CHECK(child_agrees(handle, level, expected), "the child's results differ");
    CHECK(solve(handle, r) && same(r, expected), "after the fork, in the parent");

    test_context("level %s, fork while others call", onep_level_name(level));
    enum { OTHERS = 3 };
    caller callers[OTHERS];
    atomic_int stop = 0;
    start_callers(callers, OTHERS, level, expected, &stop);
    for (int i = 0; i < OTHERS; i++) /* as test_start_workers does */
        while (atomic_load(&callers[i].calls) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int i = 0; i < (test_quick() ? 5 : 25); i++) {
        CHECK(child_agrees(handle, level, expected), "fork %d: the child's results differ", i);
        CHECK(solve(handle, r) && same(r, expected), "fork %d: in the parent", i);
    }
    atomic_store(&stop, 1);
    join_callers(callers, OTHERS);
    onepass_destroy(handle);
    free(r);
}

/* ---- progress, signals, small calls ------------------------------------------------------------------------------ */

typedef struct progress_log {
    pthread_t caller;
    int reports, elsewhere, falling, outside;
    double last;
} progress_log;

static void note_progress(void *context, double done)
{
    progress_log *log = context;
    log->reports++;
    log->elsewhere += !pthread_equal(log->caller, pthread_self());
    log->falling += done < log->last;
    log->outside += !(done >= 0 && done <= 1);
    log->last = done;
}

static void test_progress(onep_level level)
{
    for (int32_t threads = 1; threads <= 4; threads++)
        for (int repeat = 0; repeat < 10; repeat++) {
            test_context("level %s, %d threads, progress", onep_level_name(level), (int)threads);
            progress_log log = {.caller = pthread_self()};
            onepass_handle *handle = NULL;
            onepass_config config = {.size = sizeof config,
                                     .threads = threads,
                                     .isa = onep_level_name(level),
                                     .progress = note_progress,
                                     .progress_context = &log};
            CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
            int64_t shape[] = {ROWS, COLUMNS};
            double value;
            onepass_tensor p = kl_tensor(ONEP_F32, predictions, 2, shape);
            onepass_tensor t = kl_tensor(ONEP_F32, targets, 2, shape);
            onepass_tensor v = kl_tensor(ONEP_F64, &value, 0, NULL);
            CHECK(onepass_kl_probs_probs(handle, &p, &t, NULL, &v, NULL, NULL) == ONEPASS_OK, "%s",
                  onepass_last_error());
            CHECK(log.reports > 0, "nothing was reported");
            CHECK(log.elsewhere == 0, "%d of %d reports came on another thread", log.elsewhere, log.reports);
            CHECK(log.falling == 0, "%d of %d reports went back", log.falling, log.reports);
            CHECK(log.outside == 0, "%d of %d reports were not from 0 to 1", log.outside, log.reports);
            CHECK(log.last == 1, "the last report was %g", log.last);
            onepass_destroy(handle);
        }
}

static atomic_int signals_taken;

static void take_signal(int number)
{
    (void)number;
    atomic_fetch_add(&signals_taken, 1);
}

/* A signal to the process that this thread blocks stays pending: no worker takes it. */
static void test_signals(onep_level level, const result *expected)
{
    test_context("level %s, signals", onep_level_name(level));
    struct sigaction action = {.sa_handler = take_signal};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t set;
    sigset_t before;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    result *r = new_result();
    onepass_handle *handle = test_handle(level, 4);
    CHECK(solve(handle, r), "%s", onepass_last_error());
    kill(getpid(), SIGUSR1);
    CHECK(solve(handle, r) && same(r, expected), "with a signal pending");
    CHECK(atomic_load(&signals_taken) == 0, "a worker took the signal");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(atomic_load(&signals_taken) == 1, "the program's own thread did not get it");
    atomic_store(&signals_taken, 0);
    onepass_destroy(handle);
    free(r);
}

static void test_small_calls(onep_level level)
{
    test_context("level %s, small calls", onep_level_name(level));
    onepass_handle *handle = test_handle(level, 4);
    int64_t shape[] = {2, 3};
    int wrong = 0;
    for (int i = 0; i < (test_quick() ? 2000 : 20000); i++) {
        float p[] = {0.5f, 0.25f, 0.25f, 0.125f, 0.5f, 0.375f};
        float value = NAN;
        onepass_tensor a = kl_tensor(ONEP_F32, p, 2, shape);
        onepass_tensor b = kl_tensor(ONEP_F32, p, 2, shape);
        onepass_tensor v = kl_tensor(ONEP_F32, &value, 0, NULL);
        wrong += onepass_kl_probs_probs(handle, &a, &b, NULL, &v, NULL, NULL) != ONEPASS_OK || value != 0;
    }
    CHECK(wrong == 0, "%d small calls went wrong", wrong);
    onepass_destroy(handle);
}

int main(void)
{
    test_begin("test_threads");
    test_print_levels();
    alarm(DEADLOCK_SECONDS);
    test_random random = test_random_stream(0);
    for (int i = 0; i < COUNT; i++) {
        predictions[i] = (float)test_random_between(&random, 1e-3, 1);
        targets[i] = (float)test_random_between(&random, 1e-3, 1);
    }
    if (test_no_forks())
        test_left_out("fork: %s", test_no_forks());
    test_indices();
    const onep_level levels[] = {ONEP_SCALAR, onep_best_level()};
    for (int i = 0; i < (levels[0] == levels[1] ? 1 : 2); i++) {
        test_context("level %s", onep_level_name(levels[i]));
        result *expected = reference_for(levels[i]);
        test_counts(levels[i], expected);
        test_callers(levels[i], expected);
        if (!test_no_forks())
            test_fork(levels[i], expected);
        test_progress(levels[i]);
        test_signals(levels[i], expected);
        test_small_calls(levels[i]);
        free(expected);
    }
    return test_end();
}
