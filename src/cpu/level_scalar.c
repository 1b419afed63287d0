/* The CPU backend at level "scalar". */
#include "vec_scalar.h"

#define LEVEL(name) name##_scalar
#include "level.inc"
#include "level_head.inc"
#include "level_kl.inc"
