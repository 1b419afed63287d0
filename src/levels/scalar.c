/* The CPU backend at level "scalar". */
#include "cpu/vec_scalar.h"

#define LEVEL(name) name##_scalar
#include "levels/operators.inc"
