/* Divergences from a teacher of k columns with a row in shared memory, for logits of f16. */
#include "logits/cuda_top_k_held.cuh"

ONEP_LOGITS_TOP_K_HELD(f16, f16)
