/* The KL kernels for bfloat16. */
#include "kl/cuda_flat.cuh"
#include "kl/cuda_rows.cuh"

ONEP_KL_FLAT(bf16, 0, 2, 2)
ONEP_KL_FLAT(bf16, 1, 2, 2)
ONEP_KL_FLAT(bf16, 2, 2, 1)
ONEP_KL_FLAT(bf16, 3, 2, 2)

ONEP_KL_LINES(bf16, 0)
ONEP_KL_LINES(bf16, 1)
ONEP_KL_LINES(bf16, 2)
ONEP_KL_LINES(bf16, 3)

ONEP_KL_ROWS(bf16, 0)
ONEP_KL_ROWS(bf16, 1)
ONEP_KL_ROWS(bf16, 2)
ONEP_KL_ROWS(bf16, 3)
