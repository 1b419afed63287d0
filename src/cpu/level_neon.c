/* The CPU backend at level "neon". */
#include "vec_neon.h"

#define LEVEL(name) name##_neon
#include "level.inc"
#include "level_head.inc"
#include "level_kl.inc"
