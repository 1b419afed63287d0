/* The CPU backend at level "avx512". */
#include "vec_avx512.h"

#define LEVEL(name) name##_avx512
#include "level.inc"
#include "level_head.inc"
#include "level_kl.inc"
