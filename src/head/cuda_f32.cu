/* The head's kernels for float32. */
#include "head/cuda_backward.cuh"
#include "head/cuda_softmax.cuh"
#include "head/cuda_stats.cuh"

ONEP_HEAD_STATS(f32, packed_columns<float>, 4)
ONEP_HEAD_SOFTMAX(f32, f32, float, float)
ONEP_HEAD_GRAD_ROWS(f32, float)
ONEP_HEAD_GRAD_COLUMNS(f32, f32, float, float)
ONEP_HEAD_GRAD_COLUMNS(f32, f16, float, f16)
ONEP_HEAD_GRAD_COLUMNS(f32, bf16, float, bf16)
