/* The head's kernels for float16 outputs, and for y kept in float16. */
#include "head/cuda_backward.cuh"
#include "head/cuda_softmax.cuh"
#include "head/cuda_stats.cuh"

ONEP_HEAD_STATS(f16, packed_columns<f16>, 4)
ONEP_HEAD_SOFTMAX(f32, f16, float, f16)
ONEP_HEAD_SOFTMAX(f16, f16, f16, f16)
ONEP_HEAD_GRAD_ROWS(f16, f16)
ONEP_HEAD_GRAD_COLUMNS(f16, f16, f16, f16)
