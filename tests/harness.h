/*
 * What every test program shares: a printed seed, counted checks whose failures say what and where, and the cases of
 * cases/ with their guard bands, poisoned outputs and comparisons a NaN cannot pass. test_harness.c proves that each of
 * these catches the fault it is there for.
 *
 * Environment: ONEPASS_TEST_SEED fixes the seed, ONEPASS_TEST_QUICK=1 asks for a reduced set, ONEPASS_TEST_STOP=1 ends
 * a program at its first failure.
 */
#ifndef ONEPASS_TEST_HARNESS_H
#define ONEPASS_TEST_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#include "cases/case.h"
#include "operators.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#endif
#if defined(__SANITIZE_THREAD__)
#define TEST_THREAD_SANITIZED 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#if __has_feature(thread_sanitizer)
#define TEST_THREAD_SANITIZED 1
#endif
#endif

/* ---- the program ------------------------------------------------------------------------------------------------- */

/* Prints the name and the seed. */
void test_begin(const char *name);

/* Prints one line with the counts; returns the exit status: 0 only if checks were made and all of them passed. */
int test_end(void);

int test_quick(void);

/* One in how many cases a long test takes: 1, in a quick run `quick`, and four times that under an emulator, which
 * takes fifty times as long. */
int test_one_in(int quick);
uint64_t test_seed(void);

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* What is being tested now; printed before the first failure that happens there. */
void test_context(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Counts one check, and prints the text if it failed. Returns whether it passed. */
int test_check(int passed, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));

#define CHECK(condition, ...) test_check((condition) ? 1 : 0, __FILE__, __LINE__, __VA_ARGS__)

/* Between these two, failures are counted apart and not printed; the second returns how many there were. */
void test_capture_begin(void);
long test_capture_end(void);

/* Between these two nothing reaches stdout and stderr; the second returns how many bytes would have. */
void test_catch_output(void);
long test_release_output(void);

/* Says that something was left out, and why. */
void test_left_out(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

typedef case_random test_random;

/* A stream of the program's seed. */
test_random test_random_stream(uint64_t stream);

static inline uint64_t test_random_bits(test_random *random)
{
    return case_random_bits(random);
}
static inline double test_random_unit(test_random *random) /* in (0, 1) */
{
    return case_random_unit(random);
}
static inline double test_random_between(test_random *random, double low, double high)
{
    return case_random_between(random, low, high);
}
static inline int64_t test_random_below(test_random *random, int64_t limit) /* 0 .. limit-1 */
{
    return case_random_below(random, limit);
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

/* The library's own number of a type, for cases. */
onepass_dtype test_dtype(onep_type type);

/* The comparisons of cases/number.h, under the library's own names of types. */
static inline int test_close(double got, long double expected, long double allowed)
{
    return case_close(got, expected, allowed);
}
static inline int test_close_in(onep_type type, double got, long double expected, long double allowed)
{
    return case_close_in(test_dtype(type), got, expected, allowed);
}

/* Counts what a case checks as checks of the program. */
extern const case_judge test_judge;

/* ---- levels ------------------------------------------------------------------------------------------------------ */

/* A handle of a level; it ends the program if it cannot be made. */
onepass_handle *test_handle(onep_level level, int32_t threads);

/* Why children that are forked beside threads cannot be relied on here; NULL if they can. */
const char *test_no_forks(void);

/* Has the library start the workers of a call with so many threads, and returns when all of them are at work. A thread
 * that is still being started holds locks of a sanitizer's allocator now and then: a child forked at that moment would
 * wait for them for ever. */
void test_start_workers(int32_t threads);

/* The level runs here, and is worth running: ThreadSanitizer looks at how work is shared, which is alike at all levels,
 * so under it only the best one is. Under an emulator the scalar level is left to tests that ask for every level
 * (test_operators, test_kl, test_logits, and their special values). */
int test_covers(onep_level level);

/* The reference, the scalar level, and any under an emulator: large shapes take turns with the types there. */
int test_is_slow(onep_level level);

/* Prints which levels run here and which do not. */
void test_print_levels(void);

#endif
