/*
 * A loss at any size, made on the spot by the generators of cases/. Of probabilities it is the founding problem:
 * predictions = softmax(rand * s) with one random s, targets = softmax(rand), over the last dimension, or their
 * logarithms. Logits are normal with deviation 2, labels and indices uniform. The same seed gives the same inputs for
 * any number of threads. Shared by bench, its sweep and demo.
 */
#ifndef TOOL_LOSS_CASE_H
#define TOOL_LOSS_CASE_H

#include "call.h"
#include "element.h"
#include "kl_forms.h"
#include "measure.h"
#include "options.h"

typedef enum loss_kind {
    LOSS_KL,    /* divergences, in the forms of kl_forms.h; batchmean */
    LOSS_XENT,  /* cross-entropy of logits and labels; the mean over the rows that take part */
    LOSS_TOKEN, /* log-probabilities of indices, and entropy; their gradient is a call of its own */
    LOSS_KINDS
} loss_kind;

/* How the large arrays lie in memory. */
typedef enum loss_layout {
    LAYOUT_CONTIGUOUS,
    LAYOUT_PADDED,     /* three unused elements after each row */
    LAYOUT_SHIFTED,    /* begins one element after an aligned address */
    LAYOUT_TRANSPOSED, /* columns are contiguous, of every array */
    LAYOUT_MIXED,      /* of the targets alone */
    LAYOUT_BROADCAST,  /* the targets are one row for all */
    LOSS_LAYOUTS
} loss_layout;

/* The arrays of a case; those from LOSS_LABELS on are small, and compact. */
enum {
    LOSS_PREDICTIONS,
    LOSS_TARGETS, /* of LOSS_KL alone */
    LOSS_GRADIENT,
    LOSS_LARGE,
    LOSS_LABELS = LOSS_LARGE, /* or indices */
    LOSS_VALUE,               /* or log-probabilities */
    LOSS_ENTROPY,
    LOSS_GRAD_LOG_PROB, /* upstream gradients of LOSS_TOKEN */
    LOSS_GRAD_ENTROPY,
    LOSS_ARRAYS
};

typedef struct loss_case {
    loss_kind kind;
    int64_t shape[2]; /* rows, columns */
    element_type type, value_type, label_type;
    kl_forms forms;              /* of LOSS_KL; the others are of logits */
    int64_t indices;             /* a row of LOSS_TOKEN */
    int divergence;              /* of LOSS_KL from logits: onepass_divergence, ... */
    double mixture, temperature; /* ... and what goes with it; 0: none, the library's default */
    int reduction;               /* onepass_reduction; token has none */
    loss_layout layout;
    int64_t distinct; /* so many elements of a large array are drawn, the others repeat them; 0: all are drawn */
    uint64_t seed;
    double scale;              /* s, from the seed */
    size_t bytes;              /* of the memory of each large array, gaps between rows included */
    void *arrays[LOSS_ARRAYS]; /* NULL: the loss has none */
    int64_t shapes[LOSS_ARRAYS][2], strides[LOSS_ARRAYS][2];
    onepass_tensor tensors[LOSS_ARRAYS];
} loss_case;

/* Allocates and fills; the caller has set what is above `scale`. False: no memory for that many. */
bool loss_case_create(loss_case *it, team *members);
void loss_case_destroy(loss_case *it); /* also of a zeroed structure */

/* Bytes of all arrays together, before they are created; UINT64_MAX: more than can be counted. */
uint64_t loss_case_room(const loss_case *it);

int64_t loss_case_count(const loss_case *it, int array); /* of elements */
int loss_case_inputs(const loss_case *it);               /* how many large arrays are read: 1 or 2 */
bool loss_case_is_large(const loss_case *it, int array); /* has `bytes` bytes; targets that are one row have not */

/* The calls that make the value, and with it the gradient to the predictions if `gradient`; with these tensors, which
 * are the case's own or their copies on a device. Returns how many. */
enum { LOSS_MOST_CALLS = 2 };
int loss_case_calls(const loss_case *it, const onepass_tensor tensors[LOSS_ARRAYS], bool gradient,
                    tool_call calls[LOSS_MOST_CALLS]);

/* The same, on any handle: the results are in the case's arrays. */
onepass_status loss_case_run(const loss_case *it, onepass_handle *handle, bool gradient);

/* Element `index` of what the last run made. */
double loss_case_value(const loss_case *it, int64_t index);

/* The inputs and the gradient, for the plain loops. */
memory_set loss_case_memory(const loss_case *it, team *members);

/* A number in [0, 1) that depends on the seed and the index alone. */
double random_unit(uint64_t seed, uint64_t index);

/* What --seed says, or something from the clock. */
uint64_t random_seed(const parsed_options *options);

#endif
