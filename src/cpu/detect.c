/*
 * What this processor can run. Compiled without any instruction-set flag, so that it runs on the oldest machine. The
 * compiler's own detection is used because it asks the operating system too: a kernel that does not save the wide
 * registers would let them be overwritten at every context switch.
 */
#include "cpu/detect.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Half-precision conversions; not every compiler's detection knows the word. AVX, checked beside it, covers the system.
 */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

int onep_cpu_has(onep_level level)
{
    switch (level) {
    case ONEP_REF:
    case ONEP_SCALAR:
        return 1;
#if defined(__x86_64__)
    case ONEP_AVX2:
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case ONEP_AVX512:
        __builtin_cpu_init();
        return onep_cpu_has(ONEP_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif defined(__aarch64__)
    case ONEP_NEON: /* part of the base architecture */
        return 1;
#endif
    default:
        return 0;
    }
}
