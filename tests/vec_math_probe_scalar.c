/* The functions test_vec_math.c looks at, at level "scalar". Compiled with that level's flags, where it is built. */
#include "cpu/vec_scalar.h"

#define PROBE       vec_math_probe_scalar
#define PROBE_LEVEL ONEP_SCALAR
#include "vec_math_probe.inc"
