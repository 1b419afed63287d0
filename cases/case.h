/*
 * Calls of the library as data. A case names an operator and says of each of its arguments whether it is given, its
 * type and how it lies in memory; the extents of the problem; the options; and what the numbers are like. From the
 * operator's description the library makes every tensor, in guarded memory, poisons what is written and fills what is
 * read. One file per operator (kl.c, logits.c, linear.c, head.c) says how inputs are generated, what the exact result
 * is in long double, and how far each element of a result may be from it (docs/numerics.md). Tests, `onepass check` and
 * the demo share all of it, and all of it goes through onepass.h alone. On the handle of a CUDA device the tensors are
 * copied there among guard bands, and back after the call.
 *
 * A case lives in memory that is zeroed once and reused from case to case: case_begin keeps the buffers.
 */
#ifndef CASES_CASE_H
#define CASES_CASE_H

#include "cases/buffer.h"
#include "cases/number.h"

enum { CASE_MAX_ARGUMENTS = 24, CASE_MAX_OPTIONS = 24, CASE_MAX_RANK = 40 };

/* ---- one argument ------------------------------------------------------------------------------------------------ */

/* Where elements lie. Those from CASE_REPEATED_ROWS on are for what is only read. */
typedef enum case_layout {
    CASE_COMPACT,   /* strides NULL */
    CASE_ROW_MAJOR, /* the same, written out */
    CASE_PADDED,    /* three unused elements after each row */
    CASE_FORTRAN,   /* the first dimension is the fastest; nonsense strides where the extent is 1 */
    CASE_COLUMN_STEP,
    CASE_NEGATIVE_ROWS,
    CASE_NEGATIVE_COLUMNS,
    CASE_NEGATIVE_ALL,
    CASE_ROTATED, /* the dimensions permuted in memory */
    CASE_REPEATED_ROWS,
    CASE_OUTPUT_LAYOUTS = CASE_REPEATED_ROWS,
    CASE_REPEATED_COLUMNS,
    CASE_REPEATED_ALL,
    CASE_LAYOUTS,
} case_layout;

extern const char *const case_layout_names[CASE_LAYOUTS];

typedef struct case_argument {
    /* What the caller says, between case_begin and case_place. */
    int given;
    onepass_dtype dtype;
    case_layout layout;
    case_guard guard;
    size_t shift; /* bytes off the natural alignment; elements on a device */
    int is_one;   /* one element stands for all: for arguments that allow it */
    int over;     /* 1 + the argument whose very view it is; 0: it has memory of its own */

    /* What case_place makes of it. */
    const onepass_argument_info *info;
    onepass_tensor tensor; /* in host memory */
    int64_t shape[CASE_MAX_RANK], strides[CASE_MAX_RANK], count;
    case_buffer own, *buffer;
    int64_t *offsets;     /* of the elements, in bytes from buffer->data */
    unsigned char *owned; /* one flag per byte: it belongs to an element */
    char *before, *after; /* the buffer's bytes before a call, and after the first one */

    /* What case_expect makes of what is written: per element. */
    long double *expected, *allowed;
    double worst; /* the largest share of what is allowed that case_check saw */
} case_argument;

/* ---- a case ------------------------------------------------------------------------------------------------------ */

/* Whose arithmetic the bounds are for: docs/numerics.md has one for each. */
typedef enum case_arithmetic {
    CASE_VECTOR,    /* the CPU's vector levels */
    CASE_REFERENCE, /* level "ref": KL in double */
    CASE_CUDA,
    CASE_ARITHMETICS,
} case_arithmetic;

/* onepass_call, or a function that stands for it. */
typedef onepass_status case_entry(onepass_handle *handle, const onepass_operator *op,
                                  const onepass_tensor *const *tensors, const double *options, void *workspace,
                                  size_t workspace_size);

typedef struct case_definition case_definition;

typedef struct op_case {
    const onepass_operator *op;
    const char *name;
    const case_definition *definition;
    int arguments, option_count;
    case_argument argument[CASE_MAX_ARGUMENTS];
    double options[CASE_MAX_OPTIONS];
    int leading_rank; /* of the dimensions '*' stands for */
    int64_t leading[CASE_MAX_RANK];
    int64_t extents[26]; /* by letter */
    int is_scalar;       /* the problem's tensors have no dimensions */
    int family;          /* what the numbers are like: the operator's own list */
    double amount;       /* of what the family is about */
    uint64_t seed;
    case_entry *entry; /* NULL: onepass_call */
    int entry_carries; /* the entry brings its own workspace, and copies to the handle's device */
    int expected_for;  /* 1 + the arithmetic that `expected` is for; 0: none yet */
    case_buffer workspace;
    char *arena_sent, *arena_back; /* the device's memory as it was sent, and as it came back */
    size_t arena_bytes;
} op_case;

/* What an operator's file says; a function that is NULL has nothing to say. */
struct case_definition {
    const char *const *names;                             /* its operators, NULL at the end */
    int families;                                         /* their number */
    void (*begin)(op_case *c);                            /* a small legal call */
    const char *(*shape)(const op_case *c, int argument); /* of arguments whose shape depends on an option */
    int (*is_read)(const op_case *c, int argument);       /* of updated ones: this call only reads it */
    void (*settle)(op_case *c);                           /* see case_settle */
    void (*generate)(op_case *c);                         /* fills everything that is read */
    int (*exact)(op_case *c, case_arithmetic arithmetic); /* expected and allowed; 0: no memory */
};

/* ---- making a case ----------------------------------------------------------------------------------------------- */

/* A small legal call: everything required is given, fp32, compact, on the host. 0: no such operator, or no cases. */
int case_begin(op_case *c, const char *operator_name);

/* The index of an argument or an option by its name, with or without what is before its last point; -1: none. */
int case_argument_named(const op_case *c, const char *name);
int case_option_named(const op_case *c, const char *name);

/* Makes what was chosen freely a legal call by the operator's own rules: types that depend on others, arguments that go
 * together, options that exclude each other. */
void case_settle(op_case *c);

/* Every type, layout, guard and alignment at random; case_settle is the caller's. */
void case_shuffle(op_case *c, case_random *random);

/* Lays out and poisons every tensor that is given. 0: no memory. */
int case_place(op_case *c);

/* case_place, the operator's generate, case_remember. */
int case_make(op_case *c);

/* The numbers as they are now are what the next calls start from. */
void case_remember(op_case *c);

void case_free(op_case *c);

/* Element `index`, in index order: now, and as it was when case_remember was called. */
double case_get(const op_case *c, int argument, int64_t index);
double case_was(const op_case *c, int argument, int64_t index);
void case_put(op_case *c, int argument, int64_t index, double x);

/* The same, or `otherwise` if the argument is not given; of one element that stands for all, that one. */
double case_was_or(const op_case *c, int argument, int64_t index, double otherwise);

static inline int64_t case_extent(const op_case *c, char letter)
{
    return c->extents[letter - 'A'];
}
int64_t case_rows(const op_case *c); /* the product of the leading extents */

/* The shape of an argument in this case: its letters. */
const char *case_shape_of(const op_case *c, int argument);

/* Written by this call, which running statistics are not in inference. */
int case_is_written(const op_case *c, int argument);

/* ---- running a case ---------------------------------------------------------------------------------------------- */

case_arithmetic case_arithmetic_of(const onepass_handle *handle);

/* The exact results, and what each may be off by; kept for further calls of the same kind. 0: no memory. */
int case_expect(op_case *c, case_arithmetic arithmetic);

/* Where what was checked is told: `text` says what is wrong, and is NULL for what is right. Returns `passed`. */
typedef struct case_judge {
    int (*check)(void *context, int passed, const char *text);
    void *context;
} case_judge;

/* One call with what is written full of `poison`; nothing but the elements of what is written may change, nor anything
 * at all if the call is refused. *status receives the library's. Returns whether all of it held. */
int case_call(op_case *c, onepass_handle *handle, int poison, const case_judge *judge, onepass_status *status);

/* Every element of what is written against what is expected, up to the first that is wrong per argument. */
int case_compare(op_case *c, const case_judge *judge);

/* case_expect, case_call, case_compare, and a second call whose bits must not depend on the poison. */
int case_check(op_case *c, onepass_handle *handle, const case_judge *judge);

/* Over the bits of everything that is written. */
uint64_t case_digest(const op_case *c);

/* "predictions float32 padded [3, 37], ..., options.reduction 2": all of the case, in words. */
const char *case_describe(const op_case *c, char *text, size_t size);

/* ---- for the operators' files ------------------------------------------------------------------------------------ */

extern const case_definition case_kl, case_logits, case_token, case_linear, case_linear_backward, case_prepare_weight,
    case_linear_loss, case_linear_token, case_head, case_head_backward, case_head_statistics, case_head_synchronised,
    case_head_backward_sums, case_shard_states, case_shard_merge, case_shard_sums, case_shard_merge_sums,
    case_shard_loss, case_shard_token;

/* Sets what is expected of an element of a result; nothing if the result is not given. */
void case_expected(op_case *c, int argument, int64_t index, long double expected, long double allowed);

#endif
