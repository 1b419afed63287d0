/*
 * What every test program shares: a printed seed, counted checks whose failures say what and where, buffers with guard
 * bands or forbidden pages around them, poisoned outputs, and comparisons a NaN cannot pass. test_harness.c proves that
 * each of these catches the fault it is there for.
 *
 * Environment: ONEPASS_TEST_SEED fixes the seed, ONEPASS_TEST_QUICK=1 asks for a reduced set, ONEPASS_TEST_STOP=1 ends
 * a program at its first failure.
 */
#ifndef ONEPASS_TEST_HARNESS_H
#define ONEPASS_TEST_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

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

/* The same seed and stream give the same numbers on every machine. */
typedef struct test_random {
    uint64_t state;
} test_random;

test_random test_random_stream(uint64_t stream);
uint64_t test_random_bits(test_random *random);
double test_random_unit(test_random *random); /* in (0, 1) */
double test_random_between(test_random *random, double low, double high);
int64_t test_random_below(test_random *random, int64_t limit); /* 0 .. limit-1 */

/* ---- comparison -------------------------------------------------------------------------------------------------- */

/* NaN meets NaN, an infinity the same infinity, a number one that is not farther than allowed. */
int test_close(double got, long double expected, long double allowed);

/* The same for a result stored in `type`: half a unit in its last place is added, and overflow gives infinity. */
int test_close_in(onep_type type, double got, long double expected, long double allowed);

/* Half a unit in the last place of x in a type, its subnormals included. */
long double test_half_unit(onep_type type, long double x);

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

typedef enum test_guard {
    TEST_BANDS,       /* 4 KiB of pattern on both sides: a write outside is seen afterwards */
    TEST_PAGE_AFTER,  /* the last byte touches a page that may not be read; a band before */
    TEST_PAGE_BEFORE, /* the first byte touches such a page; a band after */
    TEST_GUARDS,
} test_guard;

/* Reused from call to call; zero it before its first use. */
typedef struct test_buffer {
    char *data; /* `bytes` of it belong to the test */
    size_t bytes;
    char *map; /* `usable` bytes between two forbidden pages */
    size_t usable;
} test_buffer;

enum { TEST_BAND = 4096 };

/* Makes data point at `bytes` bytes at an address that is `shift` bytes off the place the guard alone would give. */
void test_buffer_place(test_buffer *buffer, size_t bytes, test_guard guard, size_t shift);
void test_buffer_free(test_buffer *buffer);

/* The number of guard bytes that changed since test_buffer_place. */
size_t test_buffer_damage(const test_buffer *buffer);

/* ---- levels ------------------------------------------------------------------------------------------------------ */

/* A handle of a level; it ends the program if it cannot be made. */
onepass_handle *test_handle(onep_level level, int32_t threads);

/* The level runs here, and is worth running: ThreadSanitizer looks at how work is shared, which is alike at all levels,
 * so under it only the best one is. */
int test_covers(onep_level level);

/* Prints which levels run here and which do not. */
void test_print_levels(void);

#endif
