/*
 * One call of KL divergence as a test case: what is passed, how it lies in memory, what is asked for. kl_case_check
 * makes the data, computes the exact answer by the naive formula in long double, runs every level of the kernel list
 * that this machine can run, and compares element by element; it also proves that nothing else was written or changed.
 */
#ifndef ONEPASS_TEST_KL_CASES_H
#define ONEPASS_TEST_KL_CASES_H

#include "harness.h"

/* The tensors of a call. */
enum {
    KL_PREDICTIONS,
    KL_TARGETS,
    KL_WEIGHTS,
    KL_MASK,
    KL_UPSTREAM, /* onepass_kl_options.grad_value */
    KL_VALUE,
    KL_GRAD_PREDICTIONS,
    KL_GRAD_TARGETS,
    KL_TENSORS,
};

#define KL_BIT(tensor) (1u << (tensor))

enum { KL_MAX_RANK = 40 };

/* Where elements lie. Those from KL_REPEATED_ROWS on are for inputs alone. */
typedef enum kl_layout {
    KL_COMPACT,   /* strides NULL */
    KL_ROW_MAJOR, /* the same, written out */
    KL_PADDED,    /* three unused elements after each row */
    KL_FORTRAN,   /* the first dimension is the fastest; nonsense strides where the extent is 1 */
    KL_COLUMN_STEP,
    KL_NEGATIVE_ROWS,
    KL_NEGATIVE_COLUMNS,
    KL_NEGATIVE_ALL,
    KL_ROTATED, /* the dimensions permuted in memory */
    KL_REPEATED_ROWS,
    KL_OUTPUT_LAYOUTS = KL_REPEATED_ROWS,
    KL_REPEATED_COLUMNS,
    KL_REPEATED_ALL,
    KL_LAYOUTS,
} kl_layout;

/* What the numbers are like. */
typedef enum kl_data {
    KL_SOFTMAX,      /* rows of a softmax, temperature 1 */
    KL_SHARP,        /* the same, logits ten times as large */
    KL_ONE_HOT,      /* all of a target's weight on one column */
    KL_ZEROS,        /* zeros among the targets; under finite semantics among the predictions too */
    KL_NEAR_3,       /* targets 1e-3 away from predictions, relatively */
    KL_NEAR_6,       /* 1e-6 */
    KL_WIDE,         /* 1e-30 to 1, as far as the type goes */
    KL_UNNORMALISED, /* 0.1 to 50 */
    KL_DEEP,         /* logarithms uniform from -100 to 0 */
    KL_DATA_KINDS,
} kl_data;

typedef onepass_status kl_entry(onepass_handle *handle, const onepass_tensor *predictions,
                                const onepass_tensor *targets, const onepass_kl_options *options,
                                const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                const onepass_tensor *grad_targets);

typedef struct kl_case {
    onep_kl_form form;
    onepass_semantics semantics;
    onepass_reduction reduction;
    double divisor;
    int ndim;
    int64_t shape[KL_MAX_RANK];
    kl_data data;
    unsigned present; /* KL_BIT of the optional tensors and of the outputs */
    onep_type type[KL_TENSORS];
    kl_layout layout[KL_TENSORS];
    test_guard guard[KL_TENSORS];
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

/*
 * The exact answer for one element in long double, by the naive formula, and how far a kernel that computes in a type
 * of unit roundoff u and smallest number s may be from it. Both are derived in kl_cases.c.
 */
typedef struct kl_exact {
    long double value, d_prediction, d_target;
    long double value_error, d_prediction_error, d_target_error;
} kl_exact;

kl_exact kl_exact_element(onep_kl_form form, onepass_semantics semantics, onep_type computed, double prediction,
                          double target, long double u, long double s);

#endif
