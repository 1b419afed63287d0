/* The CPU backend at level "avx512". */
#include "cpu/vec_avx512.h"

#define LEVEL(name) name##_avx512
#include "levels/operators.inc"
