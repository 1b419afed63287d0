/*
 * KL divergence as the tests speak of it: a case says what is passed, how it lies in memory and what is asked for, in
 * the library's own types and levels. kl_case_check makes a case of cases/kl.c of it and checks that at every level of
 * the kernel list that this machine can run.
 */
#ifndef ONEPASS_TEST_KL_CASES_H
#define ONEPASS_TEST_KL_CASES_H

#include "cases/kl.h"
#include "entry_points.h"
#include "kl/kl.h"

enum { KL_TENSORS = KL_ARGUMENTS };

#define KL_BIT(tensor) (1u << (tensor))

typedef struct kl_case {
    onep_kl_form form;
    onepass_semantics semantics;
    onepass_reduction reduction;
    double divisor;
    int ndim;
    int64_t shape[CASE_MAX_RANK];
    kl_data data;
    unsigned present; /* KL_BIT of the optional tensors and of the outputs */
    onep_type type[KL_TENSORS];
    case_layout layout[KL_TENSORS];
    case_guard guard[KL_TENSORS];
    size_t shift[KL_TENSORS]; /* bytes off the natural alignment */
    int mask_is_bool, mask_all;
    int output_in_place, input_in_place; /* both KL_ numbers: that output lies exactly over that input; 0: none */
    int32_t threads;
    uint64_t stream; /* of random numbers */
    onep_level only; /* this level alone; ONEP_LEVELS: all that run */
    kl_entry *entry; /* in place of the library's own; NULL: that */
} kl_case;

/* A compact rows x columns problem in one type, batchmean, strict, value and both gradients. */
kl_case kl_case_plain(onep_kl_form form, onep_type type, int64_t rows, int64_t columns);

/* Chooses type, layout, guard and alignment of every tensor at random. */
void kl_case_shuffle(kl_case *c, test_random *random);

/* Runs and checks; true if everything held. */
int kl_case_check(const kl_case *c);

/* The library's entries by form. */
kl_entry *kl_entry_of(onep_kl_form form);
const char *kl_form_name(onep_kl_form form);
const char *kl_reduction_name(onepass_reduction reduction);

/* A descriptor for numbers that lie compactly; shape is not copied. */
onepass_tensor kl_tensor(onep_type type, void *data, int ndim, int64_t *shape);

/* From now on the allowances are those of the CUDA kernels. */
void kl_allow_cuda(void);

/* How far, relatively, the value of a small divergence in fp32 may be off; a tenth of it is reached. */
double kl_small_error(void);

/* Prints the largest error seen so far for each form, as a share of what is allowed. */
void kl_print_worst(void);

#endif
