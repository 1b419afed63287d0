/* See harness.h. */
#define _DEFAULT_SOURCE /* getpid, clock_gettime, usleep */
#include "harness.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/threads.h"

enum { FAILURES_PRINTED = 25 };

static struct {
    const char *name;
    uint64_t seed;
    long checks, failures;
    int capturing;
    long captured;
    int context_printed;
    char context[2048];
    struct timespec start;
} test;

/* ---- the program ------------------------------------------------------------------------------------------------- */

void test_begin(const char *name)
{
    clock_gettime(CLOCK_MONOTONIC, &test.start);
    test.name = name;
    const char *text = getenv("ONEPASS_TEST_SEED");
    test.seed = text && *text
                    ? strtoull(text, NULL, 0)
                    : (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid() * 7919u + (uint64_t)test.start.tv_nsec;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s: ONEPASS_TEST_SEED=%" PRIu64 "%s\n", name, test.seed, test_quick() ? " (quick)" : "");
}

int test_end(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)(now.tv_sec - test.start.tv_sec) + 1e-9 * (double)(now.tv_nsec - test.start.tv_nsec);
    int good = test.checks > 0 && test.failures == 0 && !test.capturing;
    printf("%s: %s, %ld checks, %ld failed, %.1f s, ONEPASS_TEST_SEED=%" PRIu64 "\n", test.name, good ? "ok" : "FAILED",
           test.checks, test.failures, seconds, test.seed);
    return good ? 0 : 1;
}

int test_quick(void)
{
    const char *text = getenv("ONEPASS_TEST_QUICK");
    return text && *text && strcmp(text, "0") != 0;
}

int test_one_in(int quick)
{
#if defined(TEST_EMULATED)
    return test_quick() ? 4 * quick : 1;
#else
    return test_quick() ? quick : 1;
#endif
}

uint64_t test_seed(void)
{
    return test.seed;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

void test_context(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(test.context, sizeof test.context, format, arguments);
    va_end(arguments);
    test.context_printed = 0;
    if (getenv("ONEPASS_TEST_TRACE")) /* the last line of a program that hangs says where */
        fprintf(stderr, "%s\n", test.context);
}

int test_check(int passed, const char *file, int line, const char *format, ...)
{
    test.checks += !test.capturing;
    if (passed)
        return 1;
    if (test.capturing) {
        test.captured++;
        return 0;
    }
    if (++test.failures > FAILURES_PRINTED)
        return 0;
    if (!test.context_printed && test.context[0])
        printf("in %s\n", test.context);
    test.context_printed = 1;
    const char *base = strrchr(file, '/');
    printf("  %s:%d: ", base ? base + 1 : file, line);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("%s\n", test.failures == FAILURES_PRINTED ? " (further failures are only counted)" : "");
    if (getenv("ONEPASS_TEST_STOP"))
        exit(test_end());
    return 0;
}

void test_capture_begin(void)
{
    test.capturing = 1;
    test.captured = 0;
}

long test_capture_end(void)
{
    test.capturing = 0;
    return test.captured;
}

static FILE *catcher; /* stands in for stdout and stderr */
static int kept_stdout, kept_stderr;

void test_catch_output(void)
{
    if (!catcher && !(catcher = tmpfile())) {
        perror("test output");
        exit(2);
    }
    fflush(stdout);
    kept_stdout = dup(1);
    kept_stderr = dup(2);
    dup2(fileno(catcher), 1);
    dup2(fileno(catcher), 2);
}

long test_release_output(void)
{
    fflush(stdout);
    fflush(stderr);
    dup2(kept_stdout, 1);
    dup2(kept_stderr, 2);
    close(kept_stdout);
    close(kept_stderr);
    long bytes = (long)lseek(fileno(catcher), 0, SEEK_END);
    if (ftruncate(fileno(catcher), 0) != 0 || lseek(fileno(catcher), 0, SEEK_SET) != 0)
        return -1;
    return bytes;
}

void test_left_out(const char *format, ...)
{
    printf("%s: left out: ", test.name);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

test_random test_random_stream(uint64_t stream)
{
    return case_random_stream(test.seed, stream);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

onepass_dtype test_dtype(onep_type type)
{
    static const onepass_dtype dtypes[] = {
        [ONEP_F16] = ONEPASS_F16, [ONEP_BF16] = ONEPASS_BF16, [ONEP_F32] = ONEPASS_F32, [ONEP_F64] = ONEPASS_F64,
        [ONEP_BYTE] = ONEPASS_U8, [ONEP_I32] = ONEPASS_I32,   [ONEP_I64] = ONEPASS_I64,
    };
    return dtypes[type];
}

static int judge(void *context, int passed, const char *text)
{
    (void)context;
    return CHECK(passed, "%s", text ? text : "");
}

const case_judge test_judge = {judge, NULL};

/* ---- levels ------------------------------------------------------------------------------------------------------ */

onepass_handle *test_handle(onep_level level, int32_t threads)
{
    onepass_handle *handle = NULL;
    onepass_config config = {.size = sizeof config, .threads = threads, .isa = onep_level_name(level)};
    if (onepass_create(&config, &handle) != ONEPASS_OK) {
        fprintf(stderr, "%s\n", onepass_last_error());
        exit(2);
    }
    return handle;
}

const char *test_no_forks(void)
{
#if defined(TEST_THREAD_SANITIZED)
    return "ThreadSanitizer does not follow it";
#elif defined(TEST_EMULATED)
    return "the emulator may fail in a child that starts threads";
#else
    return NULL;
#endif
}

typedef struct meeting {
    int32_t threads;
    atomic_int arrived;
} meeting;

static void wait_for_all(void *context, int64_t index)
{
    (void)index;
    meeting *m = context;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < m->threads)
        usleep(1000);
}

void test_start_workers(int32_t threads)
{
    meeting m = {.threads = threads};
    onepass_handle *handle = test_handle(ONEP_SCALAR, threads);
    onep_parallel(handle, threads, wait_for_all, &m);
    onepass_destroy(handle);
}

int test_covers(onep_level level)
{
#ifdef TEST_THREAD_SANITIZED
    return level == onep_best_level();
#elif defined(TEST_EMULATED)
    return onep_level_runs(level) && level != ONEP_SCALAR;
#else
    return onep_level_runs(level);
#endif
}

int test_is_slow(onep_level level)
{
#ifdef TEST_EMULATED
    (void)level;
    return 1;
#else
    return level == ONEP_REF || level == ONEP_SCALAR;
#endif
}

void test_print_levels(void)
{
    printf("%s: levels run:", test.name);
    for (int level = 0; level < ONEP_LEVELS; level++)
        if (onep_level_runs((onep_level)level))
            printf(" %s", onep_level_name((onep_level)level));
    printf("; not run:");
    for (int level = 0; level < ONEP_LEVELS; level++)
        if (!onep_level_runs((onep_level)level))
            printf(" %s (%s)", onep_level_name((onep_level)level),
                   onep_level_built((onep_level)level) ? "this processor cannot" : "not built");
    printf("\n");
}
