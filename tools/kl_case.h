/*
 * The founding problem at any size, made on the spot: predictions = softmax(rand * s) with one random s, targets =
 * softmax(rand), over the last dimension, as probabilities or their logarithms, in any type. The same seed gives the
 * same inputs for any number of threads. Shared by bench and demo.
 */
#ifndef TOOL_KL_CASE_H
#define TOOL_KL_CASE_H

#include "element.h"
#include "kl_call.h"
#include "measure.h"
#include "options.h"

typedef struct kl_case {
    int64_t shape[2]; /* rows, columns */
    element_type type;
    kl_forms forms;
    uint64_t seed;
    double scale; /* s, from the seed */
    void *predictions, *targets, *gradient;
    size_t bytes; /* of each of the three */
} kl_case;

/* Allocates and fills; the caller has set shape, type, forms and seed. False: no memory for that many. */
bool kl_case_create(kl_case *it, team *members);
void kl_case_destroy(kl_case *it);

/* The divergence (batchmean), and with it the gradient to the predictions if `gradient`. */
onepass_status kl_case_run(const kl_case *it, onepass_handle *handle, bool gradient, element_type value_type,
                           double *value);

/* Both inputs and the gradient, for the plain loops. */
memory_set kl_case_memory(const kl_case *it, team *members);

/* A number in [0, 1) that depends on the seed and the index alone. */
double random_unit(uint64_t seed, uint64_t index);

/* What --seed says, or something from the clock. */
uint64_t random_seed(const parsed_options *options);

#endif
