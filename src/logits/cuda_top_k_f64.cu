/* Divergences from a teacher of k columns, computed in double. */
#include "logits/cuda_top_k.cuh"

ONEP_LOGITS_TOP_K(f64, double)
