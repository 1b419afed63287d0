/*
 * What bad input gets, beyond the rules that test_operators.c reads from the descriptions: the rules of KL divergence
 * alone, the words of shapes, overlap of strided views, structures of other versions. Each time the status is the right
 * one, the message names the operator, the argument, the offending value and the rule, no byte of any output changes
 * and nothing is printed. What looks odd but is legal is accepted. Messages belong to the thread that failed. The
 * tensor has DLPack's layout.
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

static const char *const names[KL_TENSORS] = {"predictions", "targets",          "row_weights",
                                              "row_mask",    "grad_value",       "grad_made_for",
                                              "value",       "grad_predictions", "grad_targets"};

/* ---- the operator's arguments ------------------------------------------------------------------------------------ */

static void test_given(void)
{
    for (int form = 0; form < ONEP_KL_FORMS; form++) {
        call *c = fresh(ONEPASS_NONE);
        c->form = (onep_kl_form)form;
        accept("every tensor given", c);
    }
    call *c = fresh(ONEPASS_BATCHMEAN);
    c->no_options = 1;
    accept("no options", c);
}

static void test_options(void)
{
    call *c;
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

static void test_shapes(void)
{
    for (int reduction = 0; reduction <= ONEPASS_NONE; reduction++)
        for (int i = KL_TARGETS; i < KL_TENSORS; i++) {
            if (i == KL_MADE_FOR)
                continue;
            int ndim = fresh((onepass_reduction)reduction)->tensor[i].ndim;
            const char *rule = ndim == 2   ? "it must be [..., C], here [4, 6]"
                               : ndim == 1 ? "it must be [...], here [4]"
                                           : "it must have one element";
            call *c = fresh((onepass_reduction)reduction);
            c->shape[i][0] = ROWS - 1;
            if (ndim == 0)
                c->tensor[i].ndim = 1;
            REFUSE("a first extent too small", c, BAD, names[i], ndim == 2 ? "[3, 6]" : "[3]", rule);
            if (ndim == 2) {
                c = fresh((onepass_reduction)reduction);
                c->shape[i][1] = COLUMNS + 1;
                REFUSE("a last extent too large", c, BAD, names[i], "[4, 7]", rule);
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
            if (other == out || other == KL_MASK || other == KL_WEIGHTS || other == KL_MADE_FOR)
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

/* Rows within 64 bits, but not from where the tensor lies. Masked, the far row would never be touched. */
static void test_address_space(void)
{
    call *c;
    for (int i = 0; i < KL_TENSORS; i++)
        for (int down = 0; down < 2 && i != KL_MADE_FOR; down++) {
            int64_t size = i == KL_MASK ? 1 : 4;
            c = fresh(ONEPASS_NONE);
            ((char *)c->memory[KL_MASK])[ROWS - 1] = 0;
            c->strides[i][0] = (INT64_C(1) << 61) / size * (down ? -1 : 1);
            if (!down)
                c->tensor[i].byte_offset = UINT64_C(5) << 61;
            REFUSE("a row beyond the address space", c, BAD, names[i], "byte_offset", "address space");
            c = fresh(ONEPASS_NONE);
            c->tensor[i].byte_offset = UINT64_MAX - (down ? 0 : (uintptr_t)c->tensor[i].data);
            REFUSE("a first element there", c, BAD, names[i], "byte_offset", "address space");
        }
    c = fresh(ONEPASS_NONE);
    view(c, KL_GRAD_PREDICTIONS, KL_TARGETS, 0, COLUMNS, 1);
    ((char *)c->memory[KL_MASK])[ROWS - 1] = 0;
    c->tensor[KL_TARGETS].data = c->memory[KL_TARGETS] + 1;
    c->strides[KL_TARGETS][0] = -(INT64_C(1) << 59);
    REFUSE("an overlap hidden by such a row", c, BAD, "targets", "address space");
}

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
    CHECK(strstr(onepass_last_error(), "kl_workspace_size: handle: NULL; make one with onepass_create"), "%s",
          onepass_last_error());
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
    test_given();
    test_options();
    test_shapes();
    test_overlap();
    test_address_space();
    test_workspace_size();
    test_versions();
    test_made_for();
    test_status_names();
    test_messages_per_thread();
    onepass_destroy(handle);
    return test_end();
}
