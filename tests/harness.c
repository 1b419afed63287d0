/* See harness.h. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, getpid, clock_gettime */
#include "harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

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
    test_random random = {test.seed ^ (stream * 0xd1342543de82ef95u)};
    test_random_bits(&random);
    return random;
}

/* splitmix64 */
uint64_t test_random_bits(test_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double test_random_unit(test_random *random)
{
    return ((double)(test_random_bits(random) >> 12) + 0.5) * 0x1p-52;
}

double test_random_between(test_random *random, double low, double high)
{
    return low + (high - low) * test_random_unit(random);
}

int64_t test_random_below(test_random *random, int64_t limit)
{
    return (int64_t)(test_random_bits(random) % (uint64_t)limit);
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

int test_close(double got, long double expected, long double allowed)
{
    if (isnan(expected))
        return isnan(got);
    if (isinf(expected))
        return isinf(got) && (got > 0) == (expected > 0);
    return fabsl((long double)got - expected) <= allowed; /* false for a NaN */
}

static const struct {
    int digits; /* significant bits */
    int lowest; /* exponent of the smallest subnormal */
    int beyond; /* the first power of two that is too large */
} formats[ONEP_FLOAT_TYPES] = {
    [ONEP_F16] = {11, -24, 16},
    [ONEP_BF16] = {8, -133, 128},
    [ONEP_F32] = {24, -149, 128},
    [ONEP_F64] = {53, -1074, 1024},
};

long double test_half_unit(onep_type type, long double x)
{
    int exponent;
    frexpl(x, &exponent);
    int unit = exponent - formats[type].digits;
    if (unit < formats[type].lowest || x == 0)
        unit = formats[type].lowest;
    return ldexpl(0.5L, unit);
}

int test_close_in(onep_type type, double got, long double expected, long double allowed)
{
    if (!isfinite(expected) || isnan(got))
        return test_close(got, expected, allowed);
    allowed += test_half_unit(type, fabsl(expected) + allowed);
    if (!isinf(got))
        return test_close(got, expected, allowed);
    /* Rounded up beyond the largest number: right if the true value may lie there. */
    return (got > 0) == (expected > 0) && fabsl(expected) + allowed >= ldexpl(1, formats[type].beyond);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* What guard bytes hold: depends on the address, so that a shifted copy of the pattern is seen too. */
static char guard_byte(const char *at)
{
    uintptr_t address = (uintptr_t)at;
    return (char)(0xa5 ^ address ^ (address >> 8));
}

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void test_buffer_free(test_buffer *buffer)
{
    if (buffer->map)
        munmap(buffer->map - page_size(), buffer->usable + 2 * page_size());
    memset(buffer, 0, sizeof *buffer);
}

static void reserve(test_buffer *buffer, size_t needed)
{
    if (buffer->usable >= needed)
        return;
    test_buffer_free(buffer);
    size_t page = page_size();
    size_t usable = (needed + needed / 2 + page - 1) / page * page;
    char *all = mmap(NULL, usable + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + page, usable, PROT_READ | PROT_WRITE) != 0) {
        perror("test buffer");
        exit(2);
    }
    buffer->map = all + page;
    buffer->usable = usable;
}

/* Start and end of the guard bytes before and after the data. */
static void bands(const test_buffer *buffer, char **before, char **after)
{
    char *end = buffer->map + buffer->usable;
    *before = buffer->data - buffer->map > TEST_BAND ? buffer->data - TEST_BAND : buffer->map;
    char *data_end = buffer->data + buffer->bytes;
    *after = end - data_end > TEST_BAND ? data_end + TEST_BAND : end;
}

void test_buffer_place(test_buffer *buffer, size_t bytes, test_guard guard, size_t shift)
{
    reserve(buffer, bytes + 2 * TEST_BAND + shift);
    buffer->bytes = bytes;
    switch (guard) {
    case TEST_PAGE_AFTER:
        buffer->data = buffer->map + buffer->usable - bytes - shift;
        break;
    case TEST_PAGE_BEFORE:
        buffer->data = buffer->map + shift;
        break;
    default:
        buffer->data = buffer->map + TEST_BAND + shift;
        break;
    }
    char *before;
    char *after;
    bands(buffer, &before, &after);
    for (char *at = before; at < buffer->data; at++)
        *at = guard_byte(at);
    for (char *at = buffer->data + bytes; at < after; at++)
        *at = guard_byte(at);
}

size_t test_buffer_damage(const test_buffer *buffer)
{
    char *before;
    char *after;
    bands(buffer, &before, &after);
    size_t damage = 0;
    for (const char *at = before; at < buffer->data; at++)
        damage += *at != guard_byte(at);
    for (const char *at = buffer->data + buffer->bytes; at < after; at++)
        damage += *at != guard_byte(at);
    return damage;
}

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

int test_covers(onep_level level)
{
#ifdef TEST_THREAD_SANITIZED
    return level == onep_best_level();
#else
    return onep_level_runs(level);
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
