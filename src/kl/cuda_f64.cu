/* The KL kernels for float64, and those of mixed types computed in double. */
#include "kl/cuda_cross.cuh"
#include "kl/cuda_flat.cuh"
#include "kl/cuda_lines.cuh"
#include "kl/cuda_narrow.cuh"
#include "kl/cuda_rows.cuh"

typedef double f64;

/* onep_kl_flat_f64_0_grad: spills up to 36 bytes for sm_80; none for sm_90, where it was measured. */
ONEP_KL_FLAT(f64, 0, 2, 2)
ONEP_KL_FLAT(f64, 1, 2, 2)
ONEP_KL_FLAT(f64, 2, 1, 1)
ONEP_KL_FLAT(f64, 3, 2, 1)

ONEP_KL_LINES(f64, 0, 4, 4, 4, 4)
ONEP_KL_LINES(f64, 1, 4, 4, 4, 4)
ONEP_KL_LINES(f64, 2, 4, 4, 4, 4)
ONEP_KL_LINES(f64, 3, 4, 4, 4, 4)

ONEP_KL_NARROW(f64, 0)
ONEP_KL_NARROW(f64, 1)
ONEP_KL_NARROW(f64, 2)
ONEP_KL_NARROW(f64, 3)

ONEP_KL_CROSS(f64, 0, 1, 2)
ONEP_KL_CROSS(f64, 1, 1, 2)
ONEP_KL_CROSS(f64, 2, 1, 2)
ONEP_KL_CROSS(f64, 3, 1, 2)

ONEP_KL_ROWS(f64, 0)
ONEP_KL_ROWS(f64, 1)
ONEP_KL_ROWS(f64, 2)
ONEP_KL_ROWS(f64, 3)

ONEP_KL_ROWS(any64, 0)
ONEP_KL_ROWS(any64, 1)
ONEP_KL_ROWS(any64, 2)
ONEP_KL_ROWS(any64, 3)
