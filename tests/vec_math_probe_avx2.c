/* The functions test_vec_math.c looks at, at level "avx2". Compiled with that level's flags, where it is built. */
#ifdef ONEPASS_HAVE_AVX2
#include "cpu/vec_avx2.h"

#define PROBE       vec_math_probe_avx2
#define PROBE_LEVEL ONEP_AVX2
#include "vec_math_probe.inc"
#else
typedef int vec_math_probe_avx2_is_not_built;
#endif
