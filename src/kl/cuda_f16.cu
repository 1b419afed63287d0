/* The KL kernels for float16. */
#include "kl/cuda_cross.cuh"
#include "kl/cuda_flat.cuh"
#include "kl/cuda_lines.cuh"
#include "kl/cuda_narrow.cuh"
#include "kl/cuda_rows.cuh"

ONEP_KL_FLAT(f16, 0, 2, 2)
ONEP_KL_FLAT(f16, 1, 2, 2)
ONEP_KL_FLAT(f16, 2, 2, 1)
ONEP_KL_FLAT(f16, 3, 2, 2)

ONEP_KL_LINES(f16, 0, 6, 5, 6, 4)
ONEP_KL_LINES(f16, 1, 6, 5, 6, 4)
ONEP_KL_LINES(f16, 2, 6, 5, 6, 4)
ONEP_KL_LINES(f16, 3, 6, 5, 6, 4)

ONEP_KL_NARROW(f16, 0)
ONEP_KL_NARROW(f16, 1)
ONEP_KL_NARROW(f16, 2)
ONEP_KL_NARROW(f16, 3)

ONEP_KL_CROSS(f16, 0, 4, 3)
ONEP_KL_CROSS(f16, 1, 4, 3)
ONEP_KL_CROSS(f16, 2, 4, 3)
ONEP_KL_CROSS(f16, 3, 4, 3)

ONEP_KL_ROWS(f16, 0)
ONEP_KL_ROWS(f16, 1)
ONEP_KL_ROWS(f16, 2)
ONEP_KL_ROWS(f16, 3)
