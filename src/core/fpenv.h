/*
 * The floating-point environment of a call. Results are defined with rounding to nearest, subnormal numbers kept and no
 * trap; what the calling thread has set (-ffast-math in some other library sets flush-to-zero for a whole program) must
 * not reach them, or bits would depend on who calls, and half of a result on which thread made it. So an entry point
 * puts the default environment in place and, when it returns, the caller's back: rounding, flushing, traps and the
 * exception flags, exactly as they were. Flags a call raises are not handed out: a worker's never could be.
 *
 * On x86-64 the library and its libm compute with SSE alone: the x87 control word is neither read nor written.
 */
#ifndef ONEP_FPENV_H
#define ONEP_FPENV_H

#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <fenv.h>
#endif

typedef struct onep_fpenv {
#if defined(__x86_64__)
    uint32_t mxcsr;
#elif defined(__aarch64__)
    uint64_t fpcr, fpsr;
#else
    fenv_t all;
#endif
} onep_fpenv;

/*
 * The asm statements clobber memory so that no load moves across them; arithmetic on what was loaded before could still
 * move. What is computed between the two therefore belongs into a function that is not inlined.
 */
#define ONEP_IN_FPENV __attribute__((noinline))

static inline void onep_fpenv_set_default(void)
{
#if defined(__x86_64__)
    uint32_t mxcsr = 0x1f80; /* nearest, every exception masked, no flag raised */
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr) : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
#else
    fesetenv(FE_DFL_ENV);
#endif
}

static inline onep_fpenv onep_fpenv_enter(void)
{
    onep_fpenv before;
#if defined(__x86_64__)
    __asm__ volatile("stmxcsr %0" : "=m"(before.mxcsr) : : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(before.fpcr), "=r"(before.fpsr) : : "memory");
#else
    fegetenv(&before.all);
#endif
    onep_fpenv_set_default();
    return before;
}

static inline void onep_fpenv_leave(onep_fpenv before)
{
#if defined(__x86_64__)
    __asm__ volatile("ldmxcsr %0" : : "m"(before.mxcsr) : "memory");
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(before.fpcr), "r"(before.fpsr) : "memory");
#else
    fesetenv(&before.all);
#endif
}

#endif
