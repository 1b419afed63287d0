/*
 * What bad input gets: every rule of the API is broken once, and each time the status is the right one, the message
 * names the operator, the argument, the offending value and the rule, no byte of any output changes and nothing is
 * printed. What looks odd but is legal is accepted. Messages belong to the thread that failed. The tensor has DLPack's
 * layout.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kl_cases.h"

_Static_assert(offsetof(onepass_tensor, data) == 0, "DLTensor.data");
_Static_assert(offsetof(onepass_tensor, device) == 8, "DLTensor.device");
_Static_assert(offsetof(onepass_tensor, ndim) == 16, "DLTensor.ndim");
_Static_assert(offsetof(onepass_tensor, dtype) == 20, "DLTensor.dtype");
_Static_assert(offsetof(onepass_tensor, shape) == 24, "DLTensor.shape");
_Static_assert(offsetof(onepass_tensor, strides) == 32, "DLTensor.strides");
_Static_assert(offsetof(onepass_tensor, byte_offset) == 40, "DLTensor.byte_offset");
_Static_assert(sizeof(onepass_tensor) == 48, "DLTensor");
_Static_assert(sizeof(onepass_dtype) == 4 && sizeof(onepass_device) == 8, "DLDataType, DLDevice");

/* ---- a good call to spoil ---------------------------------------------------------------------------------------- */

enum { ROWS = 4, COLUMNS = 6, ROOM = 4 * ROWS * COLUMNS };

/* Everything of one call; a test changes one thing and hands it in. */
typedef struct call {
    onepass_handle *handle;
    onep_kl_form form;
    onepass_kl_options options;
    onepass_tensor tensor[KL_TENSORS];
    int64_t shape[KL_TENSORS][4], strides[KL_TENSORS][4];
    const onepass_tensor *given[KL_TENSORS];
    int no_options;
    float memory[KL_TENSORS][ROOM];
} call;

static onepass_handle *handle;
static call good; /* the state every test starts from */

static void make_good_call(void)
{
    good.handle = handle;
    good.options.size = sizeof good.options;
    for (int i = 0; i < KL_TENSORS; i++)
        for (int k = 0; k < ROOM; k++)
            good.memory[i][k] = i == KL_PREDICTIONS || i == KL_TARGETS ? 0.25f + (float)k / 128 : 1;
}

/* A fresh call; its pointers point into the returned memory, so it is static. */
static call *fresh(onepass_reduction reduction)
{
    static call c;
    c = good;
    c.options.reduction = reduction;
    for (int i = 0; i < KL_TENSORS; i++) {
        int per_row = i == KL_WEIGHTS || i == KL_MASK;
        int as_value = i == KL_VALUE || i == KL_UPSTREAM;
        int ndim = per_row || (as_value && reduction == ONEPASS_ROWS) ? 1
                   : as_value && reduction != ONEPASS_NONE            ? 0
                                                                      : 2;
        c.shape[i][0] = ROWS;
        c.shape[i][1] = COLUMNS;
        c.strides[i][0] = ndim == 1 ? 1 : COLUMNS;
        c.strides[i][1] = 1;
        c.tensor[i] = kl_tensor(i == KL_MASK ? ONEP_BYTE : ONEP_F32, c.memory[i], ndim, c.shape[i]);
        c.tensor[i].strides = c.strides[i];
        c.given[i] = &c.tensor[i];
    }
    return &c;
}

static onepass_status make_call(call *c)
{
    c->options.row_weights = c->given[KL_WEIGHTS];
    c->options.row_mask = c->given[KL_MASK];
    c->options.grad_value = c->given[KL_UPSTREAM];
    return kl_entry_of(c->form)(c->handle, c->given[KL_PREDICTIONS], c->given[KL_TARGETS],
                                c->no_options ? NULL : &c->options, c->given[KL_VALUE], c->given[KL_GRAD_PREDICTIONS],
                                c->given[KL_GRAD_TARGETS]);
}

/* ---- expectations ------------------------------------------------------------------------------------------------ */

static void check_message(va_list parts)
{
    const char *message = onepass_last_error();
    CHECK(strlen(message) < 512, "the message is %zu long", strlen(message));
    for (const char *part = va_arg(parts, const char *); part; part = va_arg(parts, const char *))
        CHECK(strstr(message, part) != NULL, "the message lacks \"%s\": %s", part, message);
}

static const char *const operators[] = {"kl_probs_probs", "kl_log_probs_probs", "kl_probs_log_probs",
                                        "kl_log_probs_log_probs"};

/* The call must fail with this status and a message with the operator and all these parts, and change nothing. */
#define BAD                          ONEPASS_INVALID_ARGUMENT
#define REFUSE(what, c, status, ...) refuse(what, c, status, operators[(c)->form], __VA_ARGS__, NULL)
static void refuse(const char *what, call *c, onepass_status expected, ...)
{
    test_context("%s", what);
    static float before[KL_TENSORS][ROOM];
    memcpy(before, c->memory, sizeof before);
    test_catch_output();
    onepass_status status = make_call(c);
    long printed = test_release_output();
    CHECK(status == expected, "got %s, expected %s: %s", onepass_status_name(status), onepass_status_name(expected),
          onepass_last_error());
    CHECK(memcmp(before, c->memory, sizeof before) == 0, "memory changed");
    CHECK(printed == 0, "%ld bytes were printed", printed);
    va_list parts;
    va_start(parts, expected);
    check_message(parts);
    va_end(parts);
}

static void accept(const char *what, call *c)
{
    test_context("%s", what);
    test_catch_output();
    onepass_status status = make_call(c);
    long printed = test_release_output();
    CHECK(status == ONEPASS_OK, "refused: %s", onepass_last_error());
    CHECK(printed == 0, "%ld bytes were printed", printed);
}

static const char *const names[KL_TENSORS] = {"predictions", "targets", "row_weights",      "row_mask",
                                              "grad_value",  "value",   "grad_predictions", "grad_targets"};

/* ---- the operator's arguments ------------------------------------------------------------------------------------ */

static void test_null(void)
{
    for (int form = 0; form < ONEP_KL_FORMS; form++) {
        call *c = fresh(ONEPASS_NONE);
        c->form = (onep_kl_form)form;
        accept("every tensor given", c);

        c = fresh(ONEPASS_NONE);
        c->form = (onep_kl_form)form;
        c->handle = NULL;
        REFUSE("no handle", c, BAD, "handle", "NULL", "onepass_create");
        for (int i = KL_PREDICTIONS; i <= KL_TARGETS; i++) {
            c = fresh(ONEPASS_NONE);
            c->form = (onep_kl_form)form;
            c->given[i] = NULL;
            REFUSE("an input is NULL", c, BAD, names[i], "NULL", "required");
        }
        c = fresh(ONEPASS_NONE);
        c->form = (onep_kl_form)form;
        c->given[KL_VALUE] = c->given[KL_GRAD_PREDICTIONS] = c->given[KL_GRAD_TARGETS] = NULL;
        REFUSE("no output", c, BAD, "value, grad_predictions, grad_targets", "NULL", "at least one");
    }
    call *c = fresh(ONEPASS_BATCHMEAN);
    c->no_options = 1;
    accept("no options", c);
}

static void test_options(void)
{
    call *c;
    static const int unknown[] = {-1, 6, 1000};
    static const char *const texts[] = {"-1", "6", "1000"};
    for (int i = 0; i < 3; i++) {
        c = fresh(ONEPASS_SUM);
        c->options.reduction = (onepass_reduction)unknown[i];
        REFUSE("an unknown reduction", c, BAD, "options.reduction", texts[i], "onepass_reduction");
        c = fresh(ONEPASS_SUM);
        c->options.semantics = (onepass_semantics)unknown[i];
        REFUSE("unknown semantics", c, BAD, "options.semantics", texts[i], "onepass_semantics");
    }
    c = fresh(ONEPASS_SUM);
    c->options.semantics = (onepass_semantics)2;
    REFUSE("semantics 2", c, BAD, "options.semantics: 2");

    static const double bad_divisors[] = {0, NAN, INFINITY, -INFINITY};
    static const char *const divisor_texts[] = {"0", "nan", "inf", "-inf"};
    for (int i = 0; i < 4; i++) {
        c = fresh(ONEPASS_DIVISOR);
        c->options.divisor = bad_divisors[i];
        REFUSE("a divisor that divides nothing", c, BAD, "options.divisor", divisor_texts[i], "finite and not 0");
    }
    for (int reduction = 0; reduction < ONEPASS_DIVISOR; reduction++) {
        c = fresh((onepass_reduction)reduction);
        c->options.divisor = 2.5;
        REFUSE("a divisor that would be ignored", c, BAD, "options.divisor: 2.5", "ONEPASS_DIVISOR", "must be 0");
    }
    c = fresh(ONEPASS_DIVISOR);
    c->options.divisor = -7;
    accept("a negative divisor", c);
}

/* The checks on a descriptor, for every tensor of the call. */
static void test_descriptors(void)
{
    for (int i = 0; i < KL_TENSORS; i++) {
        call *c = fresh(ONEPASS_NONE);
        c->tensor[i].ndim = -3;
        REFUSE("a negative rank", c, BAD, names[i], "ndim is -3", "must not be negative");
        c = fresh(ONEPASS_NONE);
        c->tensor[i].shape = NULL;
        REFUSE("no shape", c, BAD, names[i], "shape is NULL", "needs one");
        c = fresh(ONEPASS_NONE);
        c->tensor[i].data = NULL;
        REFUSE("no data", c, BAD, names[i], "data is NULL", "empty");
        c = fresh(ONEPASS_NONE);
        c->shape[i][0] = -5;
        REFUSE("a negative extent", c, BAD, names[i], "shape[0] is -5", "must not be negative");

        static const onepass_device devices[] = {{ONEPASS_CUDA, 0}, {ONEPASS_CPU, 1}, {0, 0}, {99, -4}};
        static const char *const device_texts[] = {"type 2, id 0", "type 1, id 1", "type 0, id 0", "type 99, id -4"};
        for (int k = 0; k < 4; k++) {
            c = fresh(ONEPASS_NONE);
            c->tensor[i].device = devices[k];
            REFUSE("another device", c, BAD, names[i], device_texts[k], "handle's device");
        }
        static const onepass_dtype dtypes[] = {
            {ONEPASS_INT, 32, 1}, {ONEPASS_FLOAT, 8, 1}, {ONEPASS_FLOAT, 32, 2}, {ONEPASS_FLOAT, 32, 0},
            {5, 64, 1},           {ONEPASS_BOOL, 1, 1}};
        static const char *const dtype_texts[] = {"code 0, 32 bits, 1 lanes", "code 2, 8 bits, 1 lanes",
                                                  "code 2, 32 bits, 2 lanes", "code 2, 32 bits, 0 lanes",
                                                  "code 5, 64 bits, 1 lanes", "code 6, 1 bits, 1 lanes"};
        for (int k = 0; k < 6; k++) {
            c = fresh(ONEPASS_NONE);
            c->tensor[i].dtype = dtypes[k];
            REFUSE("a type the library does not read", c, ONEPASS_UNSUPPORTED, names[i], dtype_texts[k],
                   "not supported");
        }
    }
}

/* Sizes and strides that leave 64 bits. */
static void test_overflow(void)
{
    for (int i = 0; i < KL_TENSORS; i++) {
        int ndim = fresh(ONEPASS_NONE)->tensor[i].ndim;
        call *c = fresh(ONEPASS_NONE);
        c->shape[i][0] = INT64_MAX;
        c->shape[i][ndim] = 2;
        c->tensor[i].ndim = ndim + 1;
        if (ndim == 2)
            c->shape[i][1] = 1;
        REFUSE("a product of extents", c, BAD, names[i], "overflows", ndim == 2 ? "shape[2] = 2" : "shape[1] = 2",
               "2^63");
        c->shape[i][ndim] = 0;
        c->shape[i][1] = c->shape[i][0];
        c->tensor[i].ndim = 3;
        c->shape[i][2] = 0;
        REFUSE("a zero does not hide it", c, BAD, names[i], "overflows", "shape[1] = 9223372036854775807");

        static const int64_t strides[] = {INT64_MAX, INT64_MIN, INT64_MIN + 1, INT64_MAX / 2, INT64_MIN / 8};
        for (int k = 0; k < 5; k++) {
            c = fresh(ONEPASS_NONE);
            c->strides[i][0] = strides[k];
            if (i == KL_MASK && k == 4)
                continue; /* a byte at 2^60 times 3 is within 64 bits */
            REFUSE("a stride", c, BAD, names[i], "2^63 bytes");
        }
        c = fresh(ONEPASS_NONE);
        c->tensor[i].strides = NULL;
        c->shape[i][0] = INT64_MAX / (ndim == 2 ? COLUMNS : 1);
        if (i != KL_MASK)
            REFUSE("a compact size in bytes", c, BAD, names[i], "2^63 bytes");
    }
    /* Each dimension alone fits; together they do not. */
    call *c = fresh(ONEPASS_NONE);
    c->shape[KL_PREDICTIONS][0] = 2;
    c->shape[KL_PREDICTIONS][1] = 2;
    c->strides[KL_PREDICTIONS][0] = c->strides[KL_PREDICTIONS][1] = INT64_C(1) << 60;
    REFUSE("a sum of strides", c, BAD, "predictions", "2^63 bytes");
}

static void test_types(void)
{
    static const int floats[] = {KL_PREDICTIONS, KL_TARGETS,          KL_WEIGHTS,     KL_UPSTREAM,
                                 KL_VALUE,       KL_GRAD_PREDICTIONS, KL_GRAD_TARGETS};
    for (size_t k = 0; k < sizeof floats / sizeof floats[0]; k++) {
        call *c = fresh(ONEPASS_NONE);
        c->tensor[floats[k]].dtype = (onepass_dtype)ONEPASS_U8;
        REFUSE("bytes where numbers belong", c, ONEPASS_UNSUPPORTED, names[floats[k]], "uint8",
               "float16, bfloat16, float32 or float64");
    }
    static const onepass_dtype types[] = {ONEPASS_F16, ONEPASS_BF16, ONEPASS_F32, ONEPASS_F64};
    static const char *const type_names[] = {"float16", "bfloat16", "float32", "float64"};
    for (int k = 0; k < 4; k++) {
        call *c = fresh(ONEPASS_NONE);
        c->tensor[KL_MASK].dtype = types[k];
        REFUSE("a mask of numbers", c, ONEPASS_UNSUPPORTED, "row_mask", type_names[k], "bool or uint8");
        if (k == ONEP_F32)
            continue;
        for (int i = KL_GRAD_PREDICTIONS; i <= KL_GRAD_TARGETS; i++) {
            c = fresh(ONEPASS_SUM);
            c->tensor[i].dtype = types[k];
            REFUSE("a gradient of another type", c, BAD, names[i], type_names[k], "must be float32",
                   "input it belongs to");
        }
        c = fresh(ONEPASS_SUM);
        c->tensor[KL_VALUE].dtype = types[k];
        if (k == ONEP_F64)
            accept("a wider value", c);
        else
            REFUSE("a narrower value", c, BAD, "value", type_names[k], "must hold float32", "promoted");
    }
    call *c = fresh(ONEPASS_SUM);
    c->tensor[KL_PREDICTIONS].dtype = c->tensor[KL_GRAD_PREDICTIONS].dtype = types[ONEP_F16];
    c->tensor[KL_TARGETS].dtype = c->tensor[KL_GRAD_TARGETS].dtype = types[ONEP_BF16];
    accept("float16 with bfloat16 into float32", c);
    c->tensor[KL_VALUE].dtype = types[ONEP_F16];
    REFUSE("float16 with bfloat16 into float16", c, BAD, "value", "float16", "must hold float32");
    c = fresh(ONEPASS_SUM);
    c->tensor[KL_MASK].dtype = (onepass_dtype)ONEPASS_B8;
    accept("a mask of bools", c);
}

static void test_shapes(void)
{
    for (int reduction = 0; reduction <= ONEPASS_NONE; reduction++)
        for (int i = KL_TARGETS; i < KL_TENSORS; i++) {
            int ndim = fresh((onepass_reduction)reduction)->tensor[i].ndim;
            const char *rule = ndim == 2   ? "it must equal that of predictions"
                               : ndim == 1 ? "it must equal that of predictions without the last dimension"
                                           : "it must have one element";
            call *c = fresh((onepass_reduction)reduction);
            c->shape[i][0] = ROWS - 1;
            if (ndim == 0)
                c->tensor[i].ndim = 1;
            REFUSE("a first extent too small", c, BAD, names[i], ndim == 2 ? "[3, 6]" : "[3]", "predictions [4, 6]",
                   rule);
            if (ndim == 2) {
                c = fresh((onepass_reduction)reduction);
                c->shape[i][1] = COLUMNS + 1;
                REFUSE("a last extent too large", c, BAD, names[i], "[4, 7]", "predictions [4, 6]", rule);
            }
            c = fresh((onepass_reduction)reduction);
            c->tensor[i].ndim = 3;
            c->shape[i][0] = ROWS;
            c->shape[i][1] = COLUMNS;
            c->shape[i][2] = 1;
            REFUSE("a rank too large", c, BAD, names[i], "[4, 6, 1]", rule);
            if (ndim > 0) {
                c = fresh((onepass_reduction)reduction);
                c->tensor[i].ndim = 0;
                REFUSE("a rank too small", c, BAD, names[i], "[]", rule);
            }
        }
    call *c = fresh(ONEPASS_SUM);
    c->tensor[KL_VALUE].ndim = 2;
    c->shape[KL_VALUE][0] = c->shape[KL_VALUE][1] = 1;
    accept("one element of any rank for a scalar", c);
    c->shape[KL_VALUE][1] = 0;
    REFUSE("no element for a scalar", c, BAD, "value", "[1, 0]", "one element");

    /* A long shape is cut, and the message stays within its bounds. */
    static int64_t long_shape[200];
    for (int d = 0; d < 200; d++)
        long_shape[d] = 1;
    c = fresh(ONEPASS_SUM);
    c->tensor[KL_TARGETS].ndim = 200;
    c->tensor[KL_TARGETS].shape = long_shape;
    c->tensor[KL_TARGETS].strides = NULL;
    REFUSE("a shape of 200 ones", c, BAD, "targets", "[1, 1, 1", "...");
}

/* ---- overlap ----------------------------------------------------------------------------------------------------- */

/* Makes tensor `which` a view of the memory of `of`. */
static void view(call *c, int which, int of, int64_t offset, int64_t row_stride, int64_t column_stride)
{
    c->tensor[which].data = c->memory[of] + offset;
    c->strides[which][0] = row_stride;
    c->strides[which][1] = column_stride;
}

static void test_overlap(void)
{
    /* Outputs whose elements share memory. */
    for (int i = KL_VALUE; i < KL_TENSORS; i++) {
        static const int64_t strides[][2] = {{0, 1},           {COLUMNS, 0},      {0, 0}, {1, 1},
                                             {COLUMNS - 1, 1}, {-COLUMNS + 1, 1}, {2, 3}};
        for (size_t k = 0; k < sizeof strides / sizeof strides[0]; k++) {
            call *c = fresh(ONEPASS_NONE);
            view(c, i, i, ROOM / 2, strides[k][0], strides[k][1]);
            REFUSE("an output that overlaps itself", c, BAD, names[i], "strides", "share memory", "apart");
        }
        call *c = fresh(ONEPASS_NONE);
        view(c, i, i, 0, 1, ROWS);
        accept("a transposed output", c);
        c = fresh(ONEPASS_NONE);
        view(c, i, i, ROWS * COLUMNS - 1, -COLUMNS, -1);
        accept("a reversed output", c);
    }
    call *c = fresh(ONEPASS_ROWS);
    c->strides[KL_VALUE][0] = 0;
    REFUSE("row values in one place", c, BAD, "value", "share memory");

    /* Outputs against inputs and against each other. */
    for (int out = KL_VALUE; out < KL_TENSORS; out++)
        for (int other = 0; other < KL_TENSORS; other++) {
            if (other == out || other == KL_MASK || other == KL_WEIGHTS)
                continue;
            int later = out > other ? out : other; /* the message names the output that is checked */
            int earlier = out > other ? other : out;
            if (other < KL_VALUE) {
                later = out;
                earlier = other;
            }
            c = fresh(ONEPASS_NONE);
            view(c, out, other, 1, COLUMNS, 1);
            REFUSE("shifted by one", c, BAD, names[later], "overlaps", names[earlier], "elsewhere");
            c = fresh(ONEPASS_NONE);
            view(c, out, other, (ROWS - 1) * COLUMNS, -COLUMNS, 1);
            REFUSE("rows reversed over itself", c, BAD, names[later], "overlaps", names[earlier]);
            c = fresh(ONEPASS_NONE);
            view(c, out, other, ROWS * COLUMNS - 1, -COLUMNS, -1);
            REFUSE("reversed over itself", c, BAD, names[later], "overlaps", names[earlier]);
            c = fresh(ONEPASS_NONE);
            view(c, out, other, 0, 1, ROWS);
            REFUSE("transposed over itself", c, BAD, names[later], "overlaps", names[earlier]);
            c = fresh(ONEPASS_NONE);
            view(c, out, other, ROWS * COLUMNS - 1, COLUMNS, 1);
            REFUSE("the last element shared", c, BAD, names[later], "overlaps", names[earlier]);
            c = fresh(ONEPASS_NONE);
            c->tensor[out].data = (char *)c->memory[other] + 1;
            REFUSE("one byte off", c, BAD, names[later], "overlaps", names[earlier]);

            c = fresh(ONEPASS_NONE);
            view(c, out, other, 0, COLUMNS, 1);
            if (other < KL_VALUE)
                accept("exactly an input", c);
            else
                REFUSE("exactly another output", c, BAD, names[later], "overlaps", names[earlier]);

            c = fresh(ONEPASS_NONE);
            view(c, out, other, 1, 2 * COLUMNS, 2);
            view(c, other, other, 0, 2 * COLUMNS, 2);
            accept("interleaved columns", c);
            c = fresh(ONEPASS_NONE);
            view(c, out, other, COLUMNS, 2 * COLUMNS, 1);
            view(c, other, other, 0, 2 * COLUMNS, 1);
            accept("left and right half of one matrix", c);
            c = fresh(ONEPASS_NONE);
            view(c, out, other, COLUMNS - 1, 2 * COLUMNS, 1);
            view(c, other, other, 0, 2 * COLUMNS, 1);
            REFUSE("halves that share a column", c, BAD, names[later], "overlaps", names[earlier]);
            c = fresh(ONEPASS_NONE);
            view(c, out, other, ROWS * COLUMNS, COLUMNS, 1);
            accept("one after the other", c);
        }

    /* The same memory read as another type is not the same view. */
    c = fresh(ONEPASS_NONE);
    c->tensor[KL_VALUE].dtype = (onepass_dtype)ONEPASS_F64;
    c->tensor[KL_VALUE].data = c->memory[KL_PREDICTIONS];
    REFUSE("a wider value over the predictions", c, BAD, "value", "overlaps", "predictions");
    c = fresh(ONEPASS_SUM);
    c->tensor[KL_VALUE].data = c->memory[KL_TARGETS] + 3;
    REFUSE("a scalar inside an input", c, BAD, "value", "overlaps", "targets");
    c = fresh(ONEPASS_SUM);
    c->tensor[KL_VALUE].data = c->memory[KL_UPSTREAM];
    REFUSE("a scalar over its own upstream gradient", c, BAD, "value", "overlaps", "grad_value");
    c = fresh(ONEPASS_ROWS);
    c->tensor[KL_VALUE].data = c->memory[KL_WEIGHTS];
    REFUSE("row values over the weights", c, BAD, "value", "overlaps", "row_weights");
    c = fresh(ONEPASS_NONE);
    c->tensor[KL_GRAD_TARGETS].data = c->memory[KL_MASK];
    REFUSE("a gradient over the mask", c, BAD, "grad_targets", "overlaps", "row_mask");
    c = fresh(ONEPASS_NONE);
    c->tensor[KL_PREDICTIONS].data = c->tensor[KL_TARGETS].data;
    accept("inputs may be the same memory", c);
}

/* ---- workspace, handle, status, threads -------------------------------------------------------------------------- */

static void test_workspace_size(void)
{
    call *c = fresh(ONEPASS_SUM);
    size_t bytes = 77;
    test_context("workspace size");
    CHECK(onepass_kl_workspace_size(handle, &c->tensor[0], &c->options, &bytes) == ONEPASS_OK && bytes == 0, "%zu",
          bytes);
    bytes = 77;
    CHECK(onepass_kl_workspace_size(handle, &c->tensor[0], NULL, &bytes) == ONEPASS_OK && bytes == 0, "%zu", bytes);
    bytes = 77;
    CHECK(onepass_kl_workspace_size(NULL, &c->tensor[0], NULL, &bytes) == BAD, "no handle");
    CHECK(strstr(onepass_last_error(), "kl_workspace_size: handle: NULL; it is required"), "%s", onepass_last_error());
    CHECK(onepass_kl_workspace_size(handle, NULL, NULL, &bytes) == BAD, "no predictions");
    CHECK(strstr(onepass_last_error(), "kl_workspace_size: predictions: NULL"), "%s", onepass_last_error());
    CHECK(onepass_kl_workspace_size(handle, &c->tensor[0], NULL, NULL) == BAD, "no bytes");
    CHECK(strstr(onepass_last_error(), "kl_workspace_size: bytes: NULL"), "%s", onepass_last_error());
    c->options.size = 1;
    CHECK(onepass_kl_workspace_size(handle, &c->tensor[0], &c->options, &bytes) == BAD, "options");
    CHECK(strstr(onepass_last_error(), "kl_workspace_size: options.size: 1"), "%s", onepass_last_error());
    c->tensor[0].ndim = -1;
    CHECK(onepass_kl_workspace_size(handle, &c->tensor[0], NULL, &bytes) == BAD, "rank");
    CHECK(strstr(onepass_last_error(), "kl_workspace_size: predictions: ndim is -1"), "%s", onepass_last_error());
    CHECK(bytes == 77, "a refused query wrote %zu", bytes);
}

/* Structures of older and of newer headers: what is not there is 0, what is not known must be 0. */
static void test_versions(void)
{
    static const size_t sizes[] = {0, 1, sizeof(size_t), offsetof(onepass_kl_options, divisor), 65537, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        call *c = fresh(ONEPASS_SUM);
        c->options.size = sizes[i];
        char size[32];
        snprintf(size, sizeof size, "options.size: %zu", sizes[i]);
        REFUSE("options of no known size", c, BAD, size, "sizeof");
    }
    static struct {
        onepass_kl_options known;
        char later[40];
    } longer;
    call *c = fresh(ONEPASS_SUM);
    longer.known = c->options;
    longer.known.size = sizeof longer;
    test_context("options of a newer header");
    CHECK(kl_entry_of(c->form)(handle, &c->tensor[KL_PREDICTIONS], &c->tensor[KL_TARGETS], &longer.known,
                               &c->tensor[KL_VALUE], NULL, NULL) == ONEPASS_OK,
          "refused: %s", onepass_last_error());
    longer.later[33] = 1;
    c->memory[KL_VALUE][0] = 77;
    CHECK(kl_entry_of(c->form)(handle, &c->tensor[KL_PREDICTIONS], &c->tensor[KL_TARGETS], &longer.known,
                               &c->tensor[KL_VALUE], NULL, NULL) == ONEPASS_UNSUPPORTED,
          "an unknown option was ignored");
    CHECK(strstr(onepass_last_error(), "kl_probs_probs: options") && strstr(onepass_last_error(), "newer library"),
          "%s", onepass_last_error());
    CHECK(c->memory[KL_VALUE][0] == 77, "a refused call wrote");
}

/* grad_made_for: gradients that are there already are neither read nor written, others are made. */
static void test_made_for(void)
{
    float made_for = 0;
    int64_t one = 1;
    onepass_tensor tensor = kl_tensor(ONEP_F32, &made_for, 0, NULL);
    call *c = fresh(ONEPASS_SUM);
    c->options.grad_made_for = &tensor;
    REFUSE("grad_made_for with a value", c, BAD, "grad_made_for", "given with value", "gradients alone");
    for (int reduction = ONEPASS_ROWS; reduction <= ONEPASS_NONE; reduction++) {
        c = fresh((onepass_reduction)reduction);
        c->options.grad_made_for = &tensor;
        c->given[KL_VALUE] = NULL;
        REFUSE("grad_made_for without a scalar", c, ONEPASS_UNSUPPORTED, "grad_made_for", "reduction", "one value");
    }
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
        double room = 0;
        onepass_tensor other = kl_tensor((onep_type)type, &room, 1, &one);
        c = fresh(ONEPASS_SUM);
        c->options.grad_made_for = &other;
        c->given[KL_VALUE] = NULL;
        accept("grad_made_for of one element", c);
    }
    int64_t two = 2;
    onepass_tensor pair = kl_tensor(ONEP_F32, c->memory[KL_VALUE], 1, &two);
    c = fresh(ONEPASS_SUM);
    c->options.grad_made_for = &pair;
    c->given[KL_VALUE] = NULL;
    REFUSE("grad_made_for of two elements", c, BAD, "grad_made_for", "[2]", "one element");
    onepass_tensor inside = kl_tensor(ONEP_F32, c->memory[KL_GRAD_TARGETS] + 3, 0, NULL);
    c->options.grad_made_for = &inside;
    REFUSE("grad_made_for within a gradient", c, BAD, "grad_targets", "overlaps", "grad_made_for");

    c = fresh(ONEPASS_SUM);
    c->options.grad_made_for = &tensor;
    c->given[KL_VALUE] = c->given[KL_MASK] = NULL;
    c->memory[KL_UPSTREAM][0] = 3;
    accept("gradients to be made", c);
    CHECK(made_for == 0, "the word was set to %g", (double)made_for);
    float first = c->memory[KL_GRAD_PREDICTIONS][0];
    CHECK(first == -3.0f * c->memory[KL_TARGETS][0] / c->memory[KL_PREDICTIONS][0], "gradient %g", (double)first);
    c->memory[KL_GRAD_PREDICTIONS][0] = c->memory[KL_GRAD_TARGETS][5] = 99;
    made_for = 3;
    accept("gradients that are there", c);
    CHECK(c->memory[KL_GRAD_PREDICTIONS][0] == 99 && c->memory[KL_GRAD_TARGETS][5] == 99, "they were made again");
    c->memory[KL_UPSTREAM][0] = -6;
    accept("gradients for another upstream", c);
    CHECK(c->memory[KL_GRAD_PREDICTIONS][0] == -2 * first, "gradient %g", (double)c->memory[KL_GRAD_PREDICTIONS][0]);
    c->given[KL_UPSTREAM] = NULL;
    accept("gradients for no upstream", c);
    CHECK(c->memory[KL_GRAD_PREDICTIONS][0] == first / 3, "gradient %g", (double)c->memory[KL_GRAD_PREDICTIONS][0]);
    made_for = NAN;
    c->memory[KL_GRAD_PREDICTIONS][0] = 99;
    accept("gradients made for NaN", c);
    CHECK(isnan(made_for) && c->memory[KL_GRAD_PREDICTIONS][0] != 99, "they were not made");
}

static void test_status_names(void)
{
    test_context("status names");
    static const char *const expected[] = {"ONEPASS_OK",          "ONEPASS_INVALID_ARGUMENT", "ONEPASS_UNSUPPORTED",
                                           "ONEPASS_NO_DEVICE",   "ONEPASS_OUT_OF_MEMORY",    "ONEPASS_WORKSPACE",
                                           "ONEPASS_DEVICE_ERROR"};
    for (int i = 0; i < 7; i++)
        CHECK(strcmp(onepass_status_name((onepass_status)i), expected[i]) == 0, "%d is %s", i,
              onepass_status_name((onepass_status)i));
    CHECK(onepass_status_name((onepass_status)7) && onepass_status_name((onepass_status)-1), "unknown numbers");
    CHECK(strstr(onepass_status_name((onepass_status)-1), "unknown"), "%s", onepass_status_name((onepass_status)-1));
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", ONEPASS_VERSION_MAJOR, ONEPASS_VERSION_MINOR, ONEPASS_VERSION_PATCH);
    CHECK(strcmp(onepass_version(), version) == 0, "version %s", onepass_version());
}

static void *other_thread(void *result)
{
    int *fine = result;
    fine[0] = strcmp(onepass_last_error(), "") == 0; /* nothing failed here yet */
    fine[1] = onepass_create(NULL, NULL) != ONEPASS_OK && strstr(onepass_last_error(), "create: handle") != NULL;
    return NULL;
}

static void test_messages_per_thread(void)
{
    test_context("messages belong to threads");
    call *c = fresh(ONEPASS_SUM);
    c->given[KL_TARGETS] = NULL;
    CHECK(make_call(c) == BAD, "status");
    char before[512];
    snprintf(before, sizeof before, "%s", onepass_last_error());
    int fine[2] = {0, 0};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_thread, fine) == 0, "no thread");
    pthread_join(thread, NULL);
    CHECK(fine[0], "a new thread starts without a message");
    CHECK(fine[1], "the other thread sees its own message");
    CHECK(strcmp(before, onepass_last_error()) == 0, "this thread's message changed to %s", onepass_last_error());
}

int main(void)
{
    unsetenv("ONEPASS_ISA");
    test_begin("test_api");
    test_context("before any failure");
    CHECK(strcmp(onepass_last_error(), "") == 0, "there is a message before any failure: %s", onepass_last_error());
    if (onepass_create(NULL, &handle) != ONEPASS_OK) {
        fprintf(stderr, "cannot start: %s\n", onepass_last_error());
        return 2;
    }
    make_good_call();
    test_null();
    test_options();
    test_descriptors();
    test_overflow();
    test_types();
    test_shapes();
    test_overlap();
    test_workspace_size();
    test_versions();
    test_made_for();
    test_status_names();
    test_messages_per_thread();
    onepass_destroy(handle);
    return test_end();
}
