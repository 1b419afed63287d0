/*
 * A problem whose tensors stay on the device from call to call, for tests that repeat calls or capture them: made,
 * filled with random inputs, called, poisoned, fetched.
 */
#ifndef ONEPASS_TEST_CUDA_RESIDENT_H
#define ONEPASS_TEST_CUDA_RESIDENT_H

#include "cuda_harness.h"

extern uint64_t cuda_streams; /* of random numbers; the last one used */

/* A compact rows x columns problem with all its tensors on the device; `bytes` of each element-wise one. */
typedef struct resident {
    onep_kl_form form;
    onep_type type;
    int64_t shape[2];
    size_t bytes;
    char *predictions, *targets, *value, *grad_predictions, *grad_targets, *workspace;
    size_t value_bytes, workspace_bytes;
    onepass_reduction reduction;
} resident;

void resident_make(resident *r, onepass_handle *handle);
void resident_free(resident *r);

/* New inputs: probabilities or their logarithms, different for each seed. */
void resident_load(const resident *r, uint64_t seed);

/* Puts the call on the handle's stream. */
onepass_status resident_call(resident *r, onepass_handle *handle, int gradients);

/* Bytes of all a call writes: the value, then both gradients. */
size_t resident_bytes(const resident *r, int gradients);

/* Fills all it writes, and the workspace, with one byte. */
void resident_poison(const resident *r, int byte);

/* Waits for the stream alone, so that other streams go on. */
void resident_fetch(const resident *r, onep_cu_stream *stream, int gradients, char *to);

#endif
