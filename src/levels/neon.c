/* The CPU backend at level "neon". */
#include "cpu/vec_neon.h"

#define LEVEL(name) name##_neon
#include "levels/operators.inc"
