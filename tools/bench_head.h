/*
 * onepass bench head and linear: the operator and, in turn with it, the matrix product alone: on the CPU by BLAS with
 * as many threads of its own, or by the library's own product where there is no BLAS (or none for the type); on a GPU
 * by the library's product, which is cuBLASLt's or its own (onepass_blas).
 */
#ifndef TOOL_BENCH_HEAD_H
#define TOOL_BENCH_HEAD_H

#include "blas.h"
#include "head_case.h"
#include "measure.h"
#include "options.h"

/* What can be timed: the product alone, the layer forward (of a head: in training), a head in inference, forward and
 * backward. */
enum { HEAD_PRODUCT, HEAD_FORWARD, HEAD_EVAL, HEAD_BACKWARD, HEAD_WORKS };

typedef struct head_bench {
    bool head; /* otherwise linear */
    onepass_handle *handle;
    head_case problem;
    head_case there; /* the same on a GPU, while it is measured */
    timed_work works[HEAD_WORKS];
    int kinds[HEAD_WORKS];         /* HEAD_PRODUCT to HEAD_BACKWARD */
    size_t workspaces[HEAD_WORKS]; /* bytes that the works need */
    int count;
    tool_blas blas; /* library NULL: the floor is the library's own product, or a GPU's */
} head_bench;

/* The caller has set head, handle, and of the problem what head_case_create asks for. False: no memory. */
bool head_bench_open(head_bench *it);
void head_bench_close(head_bench *it); /* also of a zeroed structure; the handle stays */

/*
 * Times the product and, in turn with it, the works whose bits are set, each of which is run once before; what the
 * library refuses is its status. Without memory for the samples works[0].samples is NULL.
 */
onepass_status head_bench_measure(head_bench *it, unsigned kinds, const measure_rule *rule);

/* An exit code, as command_bench's. */
int bench_head(const parsed_options *options);

#endif
