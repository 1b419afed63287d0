/* What the host hands to the kernels of divergences from a teacher of k columns: see cuda_args.h. */
#ifndef ONEP_LOGITS_TOP_K_ARGS_H
#define ONEP_LOGITS_TOP_K_ARGS_H

#include "logits/cuda_args.h"

/* A set of bits in shared memory: a column whose bit, its number mod this, is 0 was not named. */
enum { ONEP_TOP_K_BITS = 65536 };

/* An entry's key is its column times this plus its place, of which there are ONEP_TOP_K_MOST at most. */
enum { ONEP_TOP_K_PLACES = 4096 };

/* Threads of the block that has a row in shared memory; there is room for two such blocks on a multiprocessor. */
enum { ONEP_TOP_K_THREADS = 256 };

typedef struct onep_logits_top_k_args {
    onep_logits_loss_args loss; /* first: what all losses share takes it alone; `targets` are the values */
    onep_logits_operand indices;
    int entries;
    int keys;   /* a power of two, at least 1 and at least `entries` */
    int values; /* onepass_top_values */
    int outside;
    int is_reverse;
    long long held; /* vectors of 16 bytes of a row that shared memory has room for */
} onep_logits_top_k_args;

#endif
