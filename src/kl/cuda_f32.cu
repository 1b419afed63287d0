/* The KL kernels for float32, and those of mixed types computed in float. */
#include "kl/cuda_cross.cuh"
#include "kl/cuda_flat.cuh"
#include "kl/cuda_lines.cuh"
#include "kl/cuda_narrow.cuh"
#include "kl/cuda_rows.cuh"

typedef float f32;

ONEP_KL_FLAT(f32, 0, 2, 2)
ONEP_KL_FLAT(f32, 1, 2, 2)
ONEP_KL_FLAT(f32, 2, 2, 2)
ONEP_KL_FLAT(f32, 3, 2, 2)

ONEP_KL_LINES(f32, 0, 6, 6, 7, 5)
ONEP_KL_LINES(f32, 1, 6, 5, 4, 5)
ONEP_KL_LINES(f32, 2, 6, 5, 4, 5)
ONEP_KL_LINES(f32, 3, 6, 5, 4, 5)

ONEP_KL_NARROW(f32, 0)
ONEP_KL_NARROW(f32, 1)
ONEP_KL_NARROW(f32, 2)
ONEP_KL_NARROW(f32, 3)

ONEP_KL_CROSS(f32, 0, 4, 3)
ONEP_KL_CROSS(f32, 1, 4, 3)
ONEP_KL_CROSS(f32, 2, 4, 3)
ONEP_KL_CROSS(f32, 3, 4, 3)

ONEP_KL_ROWS(f32, 0)
ONEP_KL_ROWS(f32, 1)
ONEP_KL_ROWS(f32, 2)
ONEP_KL_ROWS(f32, 3)

ONEP_KL_ROWS(any32, 0)
ONEP_KL_ROWS(any32, 1)
ONEP_KL_ROWS(any32, 2)
ONEP_KL_ROWS(any32, 3)
