/* The functions test_vec_math.c looks at, at level "neon". Compiled with that level's flags, where it is built. */
#ifdef ONEPASS_HAVE_NEON
#include "cpu/vec_neon.h"

#define PROBE       vec_math_probe_neon
#define PROBE_LEVEL ONEP_NEON
#include "vec_math_probe.inc"
#else
typedef int vec_math_probe_neon_is_not_built;
#endif
