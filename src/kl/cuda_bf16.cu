/* The KL kernels for bfloat16. */
#include "kl/cuda_cross.cuh"
#include "kl/cuda_flat.cuh"
#include "kl/cuda_lines.cuh"
#include "kl/cuda_narrow.cuh"
#include "kl/cuda_rows.cuh"

ONEP_KL_FLAT(bf16, 0, 2, 2)
ONEP_KL_FLAT(bf16, 1, 2, 2)
ONEP_KL_FLAT(bf16, 2, 2, 1)
ONEP_KL_FLAT(bf16, 3, 2, 2)

ONEP_KL_LINES(bf16, 0, 6, 5, 6, 4)
ONEP_KL_LINES(bf16, 1, 6, 5, 6, 4)
ONEP_KL_LINES(bf16, 2, 6, 4, 6, 4)
ONEP_KL_LINES(bf16, 3, 6, 5, 6, 4)

ONEP_KL_NARROW(bf16, 0)
ONEP_KL_NARROW(bf16, 1)
ONEP_KL_NARROW(bf16, 2)
ONEP_KL_NARROW(bf16, 3)

ONEP_KL_CROSS(bf16, 0, 4, 3)
ONEP_KL_CROSS(bf16, 1, 4, 3)
ONEP_KL_CROSS(bf16, 2, 4, 3)
ONEP_KL_CROSS(bf16, 3, 4, 3)

ONEP_KL_ROWS(bf16, 0)
ONEP_KL_ROWS(bf16, 1)
ONEP_KL_ROWS(bf16, 2)
ONEP_KL_ROWS(bf16, 3)
