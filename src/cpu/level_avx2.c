/* The CPU backend at level "avx2". */
#include "vec_avx2.h"

#define LEVEL(name) name##_avx2
#include "level.inc"
#include "level_head.inc"
#include "level_kl.inc"
