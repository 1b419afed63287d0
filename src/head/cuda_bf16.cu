/* The head's kernels for bfloat16 outputs, and for y kept in bfloat16. */
#include "head/cuda_backward.cuh"
#include "head/cuda_softmax.cuh"
#include "head/cuda_stats.cuh"

ONEP_HEAD_STATS(bf16, packed_columns<bf16>, 4)
ONEP_HEAD_SOFTMAX(f32, bf16, float, bf16)
ONEP_HEAD_SOFTMAX(bf16, bf16, bf16, bf16)
ONEP_HEAD_GRAD_ROWS(bf16, bf16)
ONEP_HEAD_GRAD_COLUMNS(bf16, bf16, bf16, bf16)
