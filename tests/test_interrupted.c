/*
 * Calls that are interrupted from outside. Threads cancelled again and again, in calls and between them, leave the
 * library usable by others. A child forked in a progress callback that returns from it finishes the call with the same
 * bits, also where results lie over their inputs, and so does its parent. A child forked while others multiply with a
 * BLAS can multiply. An alarm turns a deadlock into a failure.
 */
#define _DEFAULT_SOURCE /* usleep */
#include <math.h>
#include <pthread.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "every_call.h"
#include "kl_cases.h"

enum { DEADLOCK_SECONDS = 1500, CHILD_SECONDS = 300 };

static call_kind kind_of(int operator_id)
{
    int is_kl = operator_id < CALL_LINEAR; /* or another loss of rows */
    int64_t rows = call_is_from_logits((call_operator)operator_id) ? 8 : is_kl ? 120 : 200;
    return (call_kind){(call_operator)operator_id, ONEP_F32, rows, is_kl ? 3 : 33, is_kl ? 1111 : 150, 1, CALL_HEAP};
}

/* ---- cancelled threads ------------------------------------------------------------------------------------------- */

typedef struct victim {
    every_call *call;
    onepass_handle *handle;
    void *workspace;
    size_t bytes;
    atomic_int calls, wrong;
} victim;

static void reach_cancellation_point(void *context, double done)
{
    (void)context;
    (void)done;
    usleep(1);
}

/* Frames that a cancelled thread leaves without returning stay marked for AddressSanitizer, which then takes what runs
 * next on that stack for an overflow. */
static void forget_frames(void *nothing)
{
    (void)nothing;
#if defined(__SANITIZE_ADDRESS__)
    enum { DEPTH = 128 << 10 };
    char here;
    __asan_unpoison_memory_region((char *)((uintptr_t)&here - DEPTH), DEPTH);
#endif
}

static void *call_until_cancelled(void *argument)
{
    victim *v = argument;
    pthread_cleanup_push(forget_frames, NULL);
    for (;;) {
        atomic_fetch_add(&v->calls, 1); /* before: the last report, after the work, may be where it ends */
        atomic_fetch_add(&v->wrong, call_execute(v->call, v->handle, v->workspace, v->bytes) != ONEPASS_OK);
        pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return NULL;
}

static void test_cancel(int operator_id, onepass_progress progress)
{
    test_context("%s, threads cancelled%s", call_name((call_operator)operator_id),
                 progress ? ", with a callback that could be" : "");
    onepass_config config = {.size = sizeof config, .threads = 3, .progress = progress};
    victim v = {.call = call_make(kind_of(operator_id), 1, 1)};
    CHECK(onepass_create(&config, &v.handle) == ONEPASS_OK, "%s", onepass_last_error());
    v.workspace = call_prepare(v.call, v.handle, &v.bytes);
    test_random random = test_random_stream((uint64_t)operator_id);
    for (int i = 0; i < (test_quick() ? 15 : 60); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, call_until_cancelled, &v) != 0) {
            perror("pthread_create");
            exit(2);
        }
        while (i == 0 && atomic_load(&v.calls) == 0) /* on a busy machine no thread may get so far otherwise */
            usleep(1000);
        usleep((useconds_t)test_random_below(&random, 3000));
        pthread_cancel(thread);
        void *result = NULL;
        pthread_join(thread, &result);
        CHECK(result == PTHREAD_CANCELED, "the thread was not cancelled");
    }
    CHECK(atomic_load(&v.calls) > 0 && atomic_load(&v.wrong) == 0, "%d of %d calls were refused", atomic_load(&v.wrong),
          atomic_load(&v.calls));
    call_release(v.call, v.workspace);
    onepass_destroy(v.handle);

    onepass_handle *one = test_handle(onep_best_level(), 1), *more = test_handle(onep_best_level(), 3);
    CHECK(call_run(v.call, one) == ONEPASS_OK, "%s", onepass_last_error());
    uint64_t expected = call_digest(v.call);
    CHECK(call_run(v.call, more) == ONEPASS_OK && call_digest(v.call) == expected, "afterwards, bits differ");
    onepass_destroy(one);
    onepass_destroy(more);
    call_free(v.call);
}

/* ---- fork in a callback ------------------------------------------------------------------------------------------ */

typedef struct forker {
    int at; /* the report at which to fork */
    int reports, forked;
    pid_t child; /* 0 in the child */
} forker;

static void fork_once(void *context, double done)
{
    (void)done;
    forker *f = context;
    if (f->reports++ != f->at)
        return;
    fflush(stdout);
    f->child = fork();
    f->forked = 1;
    if (f->child == 0)
        alarm(CHILD_SECONDS);
}

static void check_child(pid_t child)
{
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "there is no child");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %d, signal %d",
          WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void test_fork_in_callback(int operator_id, int32_t threads, int at)
{
    test_context("%s, %d threads, fork at report %d", call_name((call_operator)operator_id), (int)threads, at);
    forker f = {.at = at};
    onepass_config config = {.size = sizeof config, .threads = threads, .progress = fork_once, .progress_context = &f};
    every_call *call = call_make(kind_of(operator_id), 1, 2);
    onepass_handle *plain = test_handle(onep_best_level(), 1), *handle = NULL;
    CHECK(call_run(call, plain) == ONEPASS_OK, "%s", onepass_last_error());
    uint64_t expected = call_digest(call);
    CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
    int right = call_run(call, handle) == ONEPASS_OK && call_digest(call) == expected;
    if (f.forked && f.child == 0) {
        int again = call_run(call, handle) == ONEPASS_OK && call_digest(call) == expected;
        _exit((right ? 0 : 1) + (again ? 0 : 2));
    }
    CHECK(right, "in the parent, bits differ");
    if (f.forked)
        check_child(f.child);
    onepass_destroy(plain);
    onepass_destroy(handle);
    call_free(call);
}

/* Gradients over the predictions: an index that was done, or half done, cannot be done again. */
static void test_fork_in_place(int at)
{
    enum { ROWS = 200, COLUMNS = 1111, COUNT = ROWS * COLUMNS };
    static float given[COUNT], targets[COUNT], expected[COUNT], over[COUNT];
    test_context("in place, fork at report %d", at);
    test_random random = test_random_stream(3);
    for (int i = 0; i < COUNT; i++) {
        given[i] = (float)test_random_between(&random, 1e-3, 1);
        targets[i] = (float)test_random_between(&random, 1e-3, 1);
    }
    int64_t shape[] = {ROWS, COLUMNS};
    onepass_tensor p = kl_tensor(ONEP_F32, given, 2, shape), t = kl_tensor(ONEP_F32, targets, 2, shape);
    onepass_tensor e = kl_tensor(ONEP_F32, expected, 2, shape), o = kl_tensor(ONEP_F32, over, 2, shape);
    onepass_handle *plain = test_handle(onep_best_level(), 1), *handle = NULL;
    CHECK(onepass_kl_probs_probs(plain, &p, &t, NULL, NULL, &e, NULL) == ONEPASS_OK, "%s", onepass_last_error());
    memcpy(over, given, sizeof over);
    forker f = {.at = at};
    onepass_config config = {.size = sizeof config, .threads = 3, .progress = fork_once, .progress_context = &f};
    CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
    int right = onepass_kl_probs_probs(handle, &o, &t, NULL, NULL, &o, NULL) == ONEPASS_OK &&
                memcmp(over, expected, sizeof over) == 0;
    if (f.forked && f.child == 0)
        _exit(right ? 0 : 1);
    CHECK(right, "in the parent, bits differ");
    if (f.forked)
        check_child(f.child);
    onepass_destroy(plain);
    onepass_destroy(handle);
}

/* ---- fork while a BLAS multiplies -------------------------------------------------------------------------------- */

typedef struct multiplier {
    const char *blas;
    atomic_int *stop;
} multiplier;

static onepass_handle *blas_handle(const char *blas, int32_t threads)
{
    onepass_handle *handle = NULL;
    onepass_config config = {.size = sizeof config, .threads = threads, .blas = blas};
    return onepass_create(&config, &handle) == ONEPASS_OK ? handle : NULL;
}

static void *multiply_until_told(void *argument)
{
    multiplier *m = argument;
    every_call *call = call_make(kind_of(CALL_LINEAR), 1, 4);
    onepass_handle *handle = blas_handle(m->blas, 2);
    while (!atomic_load(m->stop))
        call_run(call, handle);
    onepass_destroy(handle);
    call_free(call);
    return NULL;
}

static void __attribute__((unused)) test_fork_beside_blas(const char *blas)
{
    test_context("fork while %s multiplies", blas);
    onepass_handle *handle = blas_handle(blas, 1);
    if (!handle || strcmp(onepass_blas(handle), blas) != 0) {
        test_left_out("fork while %s multiplies: it is not on this machine", blas);
        onepass_destroy(handle);
        return;
    }
    every_call *call = call_make(kind_of(CALL_LINEAR), 1, 5);
    CHECK(call_run(call, handle) == ONEPASS_OK, "%s", onepass_last_error());
    uint64_t expected = call_digest(call);
    enum { OTHERS = 2 };
    pthread_t threads[OTHERS];
    atomic_int stop = 0;
    multiplier m = {blas, &stop};
    for (int i = 0; i < OTHERS; i++)
        if (pthread_create(&threads[i], NULL, multiply_until_told, &m) != 0) {
            perror("pthread_create");
            exit(2);
        }
    for (int i = 0; i < (test_quick() ? 100 : 1000); i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_SECONDS);
            _exit(call_run(call, handle) != ONEPASS_OK || call_digest(call) != expected);
        }
        check_child(child);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < OTHERS; i++)
        pthread_join(threads[i], NULL);
    onepass_destroy(handle);
    call_free(call);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void test_forks(void)
{
    test_start_workers(3);
    for (int at = 0; at < (test_quick() ? 3 : 6); at++) {
        for (int operator_id = 0; operator_id < CALL_OPERATORS; operator_id++)
            for (int32_t threads = 1; threads <= 3; threads++)
                test_fork_in_callback(operator_id, threads, at);
        for (int repeat = 0; repeat < 5; repeat++)
            test_fork_in_place(at);
    }
#if defined(__SANITIZE_ADDRESS__)
    test_left_out("fork while a BLAS multiplies: those who call it hold locks of AddressSanitizer's allocator");
#else
    test_fork_beside_blas("openblas");
    test_fork_beside_blas("blis");
#endif
}

int main(void)
{
    test_begin("test_interrupted");
    test_print_levels();
    alarm(DEADLOCK_SECONDS);
    for (int operator_id = 0; operator_id < CALL_OPERATORS; operator_id += operator_id == 0 ? 4 : 1) {
        test_cancel(operator_id, NULL);
        test_cancel(operator_id, reach_cancellation_point);
    }
    if (test_no_forks())
        test_left_out("fork: %s", test_no_forks());
    else
        test_forks();
    return test_end();
}
