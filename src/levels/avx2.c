/* The CPU backend at level "avx2". */
#include "cpu/vec_avx2.h"

#define LEVEL(name) name##_avx2
#include "levels/operators.inc"
