/*
 * The bits of every operator, at every level and on one thread and two, are the same whatever floating-point
 * environment the caller has set: rounding, subnormal numbers flushed on the way in or out, traps, in threads that were
 * started under it, or by the progress callback in the middle. The caller finds its environment as it was, flags too.
 */
#define _GNU_SOURCE /* feenableexcept */
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/threads.h"
#include "every_call.h"

/* ---- environments ------------------------------------------------------------------------------------------------ */

/* The register that says rounding, flushing and traps, and holds the flags as far as that is the same one. */
static uint64_t control(void)
{
#if defined(__x86_64__)
    uint32_t mxcsr;
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr) : : "memory");
    return mxcsr;
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr) : : "memory");
    return fpcr;
#else
    return (uint64_t)fegetround();
#endif
}

static void set_control(uint64_t bits)
{
#if defined(__x86_64__)
    uint32_t mxcsr = (uint32_t)bits;
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr) : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(bits) : "memory");
#else
    (void)bits;
#endif
}

#if defined(__x86_64__)
enum { FLUSH = 1 << 15, ZERO_INPUTS = 1 << 6, ALL_MASKED = 0x1f80 };
#elif defined(__aarch64__)
enum { FLUSH = 1 << 24, ZERO_INPUTS = 1 << 25 /* default NaN */, ALL_MASKED = 0 };
#else
enum { FLUSH = 0, ZERO_INPUTS = 0, ALL_MASKED = 0 };
#endif

static void set_flush(void)
{
    set_control(ALL_MASKED | FLUSH);
}

static void set_zero_inputs(void)
{
    set_control(ALL_MASKED | ZERO_INPUTS);
}

static void set_both(void)
{
    set_control(ALL_MASKED | FLUSH | ZERO_INPUTS);
}

static void set_upward(void)
{
    fesetround(FE_UPWARD);
}

static void set_downward(void)
{
    fesetround(FE_DOWNWARD);
}

static void set_toward_zero(void)
{
    fesetround(FE_TOWARDZERO);
    feraiseexcept(FE_DIVBYZERO);
}

static void set_traps(void)
{
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
}

static const struct {
    const char *name;
    void (*set)(void);
} environments[] = {
    {"flush to zero", set_flush}, {"subnormal inputs are zero", set_zero_inputs},
    {"both", set_both},           {"upward", set_upward},
    {"downward", set_downward},   {"toward zero, a flag raised", set_toward_zero},
    {"every trap", set_traps},
};

enum { ENVIRONMENTS = sizeof environments / sizeof environments[0] };

/* ---- every operator ---------------------------------------------------------------------------------------------- */

/* So small that results, and some inputs, are subnormal. */
static double small_of(onep_type type)
{
    return type == ONEP_F16 ? 0x1p-13 : type == ONEP_F64 ? 0x1p-1021 : 0x1p-125;
}

/* The call under an environment; the digest, and 0 if the environment came back changed. */
static uint64_t run_under(int environment, every_call *call, onepass_handle *handle)
{
    size_t bytes;
    void *workspace = call_prepare(call, handle, &bytes);
    fesetenv(FE_DFL_ENV);
    if (environment >= 0)
        environments[environment].set();
    uint64_t before = control();
    int flags = fetestexcept(FE_ALL_EXCEPT);
    onepass_status status = call_execute(call, handle, workspace, bytes);
    uint64_t after = control();
    int flags_after = fetestexcept(FE_ALL_EXCEPT);
    fesetenv(FE_DFL_ENV);
    call_release(call, workspace);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(after == before && flags_after == flags, "the caller had %#llx, flags %#x, and got %#llx, flags %#x back",
          (unsigned long long)before, flags, (unsigned long long)after, flags_after);
    return call_digest(call);
}

static void test_kind(onep_level level, call_kind kind, double magnitude, uint64_t stream)
{
    every_call *call = call_make(kind, magnitude, stream);
    uint64_t expected = 0;
    for (int32_t threads = 1; threads <= 2; threads++) {
        onepass_handle *handle = test_handle(level, threads);
        for (int environment = -1; environment < ENVIRONMENTS; environment++) {
            /* A quick run takes one in three, others for the next kind of call. */
            if (test_quick() && environment >= 0 && ((uint64_t)environment + stream + (uint64_t)threads) % 3 != 0)
                continue;
            test_context("%s, %s, %s, variant %d, magnitude %g, %d threads, %s", call_name(kind.operator_id),
                         onep_type_name(kind.type), onep_level_name(level), kind.variant, magnitude, (int)threads,
                         environment < 0 ? "the default" : environments[environment].name);
            uint64_t digest = run_under(environment, call, handle);
            if (environment < 0 && threads == 1)
                expected = digest;
            CHECK(digest == expected, "other bits than in the default environment");
        }
        onepass_destroy(handle);
    }
    call_free(call);
}

static void test_operators(onep_level level)
{
    static const int variants[] = {1, 3, 13, 19, 0, 2};
    int turn = (int)level + (int)(test_seed() % 4); /* not all are taken: other ones at the next level and seed */
    for (int operator_id = 0; operator_id < CALL_OPERATORS; operator_id++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int small = 0; small < 2; small++)
                for (int v = 0; v < (test_quick() || level == ONEP_REF ? 2 : 6); v++) {
                    if (turn++ % (test_quick() ? test_one_in(1) : 2) != 0)
                        continue;
                    int is_kl = operator_id < CALL_LINEAR; /* or another loss of rows */
                    int64_t rows = call_is_from_logits((call_operator)operator_id) ? 5 : is_kl ? 60 : 70;
                    call_kind kind = {(call_operator)operator_id, (onep_type)type, rows,     is_kl ? 3 : 33,
                                      is_kl ? 600 : 100,          variants[v],     CALL_HEAP};
                    test_kind(level, kind, small ? small_of((onep_type)type) : 1, (uint64_t)(operator_id * 100 + v));
                }
}

/* ---- who starts threads, and who is called back ------------------------------------------------------------------ */

enum { INDICES = 64 };
static _Atomic uint64_t seen[INDICES];
static atomic_int elsewhere;
static pthread_t caller;

static void note_control(void *context, int64_t index)
{
    (void)context;
    for (volatile int i = 0; i < 200000; i++) /* long enough for the worker to come */
        ;
    if (!pthread_equal(pthread_self(), caller)) {
        atomic_fetch_add(&elsewhere, 1);
        atomic_store(&seen[index], control() & ~(uint64_t)FE_ALL_EXCEPT);
    }
}

/* Threads inherit the environment of the one that starts them; the pool's must not. First of all: there is no pool. */
static void test_started_threads(void)
{
    test_context("threads started under another environment");
    fesetenv(FE_DFL_ENV);
    uint64_t usual = control() & ~(uint64_t)FE_ALL_EXCEPT;
    for (int i = 0; i < INDICES; i++)
        atomic_store(&seen[i], usual);
    caller = pthread_self();
    onepass_handle *handle = test_handle(onep_best_level(), 2);
    set_both();
    fesetround(FE_UPWARD);
    for (int repeat = 0; repeat < 10000 && atomic_load(&elsewhere) == 0; repeat++) /* a minute, on a busy machine */
        onep_parallel(handle, INDICES, note_control, NULL);
    fesetenv(FE_DFL_ENV);
    CHECK(atomic_load(&elsewhere) > 0, "no worker came");
    for (int i = 0; i < INDICES; i++)
        CHECK(atomic_load(&seen[i]) == usual, "a worker computed with %#llx",
              (unsigned long long)atomic_load(&seen[i]));
    onepass_destroy(handle);
}

static void change_environment(void *context, double done)
{
    ++*(int *)context;
    if (done < 1)
        set_both();
    fesetround(FE_UPWARD);
}

static void test_callback(onep_level level)
{
    for (int operator_id = 0; operator_id < CALL_OPERATORS; operator_id++) {
        test_context("%s, %s, a callback that changes the environment", call_name((call_operator)operator_id),
                     onep_level_name(level));
        int64_t rows = call_is_from_logits((call_operator)operator_id) ? 9 : 90;
        call_kind kind = {
            (call_operator)operator_id, ONEP_F32, rows, 33, operator_id < CALL_LINEAR ? 777 : 100, 1, CALL_HEAP};
        every_call *call = call_make(kind, small_of(ONEP_F32), 7);
        onepass_handle *plain = test_handle(level, 1), *handle = NULL;
        int called = 0;
        onepass_config config = {.size = sizeof config,
                                 .threads = 2,
                                 .isa = onep_level_name(level),
                                 .progress = change_environment,
                                 .progress_context = &called};
        CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
        uint64_t expected = run_under(-1, call, plain);
        CHECK(run_under(-1, call, handle) == expected, "other bits than without it");
        CHECK(called > 0, "it was not called");
        onepass_destroy(plain);
        onepass_destroy(handle);
        call_free(call);
    }
}

/* Numbers in the options that a flushing caller must not turn into zeros. */
static void test_checks(void)
{
    test_context("a subnormal divisor");
    onepass_handle *handle = test_handle(onep_best_level(), 1);
    double p = 0.5, t = 0.25, value = 0;
    onepass_tensor one = {.data = &p, .device = {ONEPASS_CPU, 0}, .dtype = ONEPASS_F64};
    onepass_tensor other = one, out = one;
    other.data = &t;
    out.data = &value;
    onepass_kl_options options = {.size = sizeof options, .reduction = ONEPASS_DIVISOR, .divisor = 0x1p-1060};
    size_t bytes;
    set_both();
    onepass_status status = onepass_kl_probs_probs(handle, &one, &other, &options, &out, NULL, NULL);
    onepass_status sized = onepass_kl_workspace_size(handle, &one, &options, &bytes);
    fesetenv(FE_DFL_ENV);
    CHECK(status == ONEPASS_OK && sized == ONEPASS_OK, "%s", onepass_last_error());
    onepass_destroy(handle);
}

int main(void)
{
    test_begin("test_environment");
    test_print_levels();
#if !defined(__x86_64__) && !defined(__aarch64__)
    test_left_out("flushing of subnormal numbers: how this processor is told is not known here");
#endif
    test_started_threads();
    test_checks();
    for (int level = ONEP_REF; level < ONEP_LEVELS; level++)
        if (level == ONEP_REF || test_covers((onep_level)level)) {
            test_operators((onep_level)level);
            test_callback((onep_level)level);
        }
    return test_end();
}
