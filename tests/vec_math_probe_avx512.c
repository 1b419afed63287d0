/* The functions test_vec_math.c looks at, at level "avx512". Compiled with that level's flags, where it is built. */
#ifdef ONEPASS_HAVE_AVX512
#include "cpu/vec_avx512.h"

#define PROBE       vec_math_probe_avx512
#define PROBE_LEVEL ONEP_AVX512
#include "vec_math_probe.inc"
#else
typedef int vec_math_probe_avx512_is_not_built;
#endif
