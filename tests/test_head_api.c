/*
 * What bad input gets from linear and head, beyond the rules that test_operators.c reads from the descriptions: numbers
 * out of range, tensors that go together, structures of no known size. Each time the status is the right one, the
 * message names the operator, the argument, the value and the rule, no byte of any tensor changes and nothing is
 * printed. What looks odd but is legal is accepted. Also which BLAS a handle gets, and who is refused one.
 */
#define _DEFAULT_SOURCE /* setenv */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "head_cases.h"

#define BAD ONEPASS_INVALID_ARGUMENT

enum { B = 4, K = 3, N = 5, ROOM = 64, WORKSPACE = 1 << 22 };

typedef enum entry_id { LINEAR, LINEAR_BACKWARD, HEAD, HEAD_BACKWARD } entry_id;
static const char *const operators[] = {"linear: ", "linear_backward: ", "head: ", "head_backward: "};

/* Everything of one call; a test changes one thing and hands it in. */
typedef struct call {
    entry_id entry;
    onepass_handle *handle;
    onepass_head_options options;
    onepass_head_gradients gradients;
    onepass_tensor tensor[LAYER_TENSORS];
    int64_t shape[LAYER_TENSORS][4], strides[LAYER_TENSORS][4];
    const onepass_tensor *given[LAYER_TENSORS];
    int no_options, no_gradients;
    double memory[LAYER_TENSORS][ROOM];
} call;

static onepass_handle *handle;
static char *workspace;

static call *fresh(entry_id entry)
{
    static const onepass_dtype f32 = ONEPASS_F32, i64 = ONEPASS_I64;
    static call c;
    memset(&c, 0, sizeof c);
    c.entry = entry;
    c.handle = handle;
    for (int i = 0; i < LAYER_TENSORS; i++) {
        int two = i == LAYER_INPUT || i == LAYER_WEIGHT || i == LAYER_OUTPUT || i == LAYER_PRODUCT ||
                  i == LAYER_GRAD_OUTPUT || i == LAYER_GRAD_INPUT || i == LAYER_GRAD_WEIGHT;
        int64_t rows = i == LAYER_WEIGHT || i == LAYER_GRAD_WEIGHT ? N : B;
        int64_t columns =
            i == LAYER_INPUT || i == LAYER_GRAD_INPUT || i == LAYER_WEIGHT || i == LAYER_GRAD_WEIGHT ? K : N;
        int64_t single = i == LAYER_SCALE || i == LAYER_GRAD_SCALE || i == LAYER_COUNTER ? 1 : N;
        c.shape[i][0] = two ? rows : single;
        c.shape[i][1] = columns;
        c.strides[i][0] = two ? columns : 1;
        c.strides[i][1] = 1;
        c.tensor[i] = (onepass_tensor){.data = c.memory[i],
                                       .device = {ONEPASS_CPU, 0},
                                       .ndim = two ? 2 : 1,
                                       .dtype = i == LAYER_COUNTER ? i64 : f32,
                                       .shape = c.shape[i],
                                       .strides = c.strides[i]};
        c.given[i] = &c.tensor[i];
        for (int k = 0; k < 2 * ROOM; k++)
            ((float *)c.memory[i])[k] = 0.5f + (float)((k * 7 + i) % 11) / 16;
    }
    c.options = (onepass_head_options){
        .size = sizeof c.options, .eps = 1e-5, .momentum = 0.1, .workspace = workspace, .workspace_size = WORKSPACE};
    c.gradients.size = sizeof c.gradients;
    return &c;
}

static onepass_status make_call(call *c)
{
    const onepass_tensor **t = c->given;
    c->options.bias = t[LAYER_BIAS];
    c->options.gamma = t[LAYER_GAMMA];
    c->options.beta = t[LAYER_BETA];
    c->options.scale = t[LAYER_SCALE];
    c->options.running_mean = t[LAYER_RUNNING_MEAN];
    c->options.running_var = t[LAYER_RUNNING_VAR];
    c->options.batches_tracked = t[LAYER_COUNTER];
    c->gradients.input = t[LAYER_GRAD_INPUT];
    c->gradients.weight = t[LAYER_GRAD_WEIGHT];
    c->gradients.bias = t[LAYER_GRAD_BIAS];
    c->gradients.gamma = t[LAYER_GRAD_GAMMA];
    c->gradients.beta = t[LAYER_GRAD_BETA];
    c->gradients.scale = t[LAYER_GRAD_SCALE];
    switch (c->entry) {
    case LINEAR:
        return onepass_linear(c->handle, t[LAYER_INPUT], t[LAYER_WEIGHT], t[LAYER_BIAS], t[LAYER_OUTPUT],
                              c->options.workspace, c->options.workspace_size);
    case LINEAR_BACKWARD:
        return onepass_linear_backward(c->handle, t[LAYER_GRAD_OUTPUT], t[LAYER_INPUT], t[LAYER_WEIGHT],
                                       t[LAYER_GRAD_INPUT], t[LAYER_GRAD_WEIGHT], t[LAYER_GRAD_BIAS],
                                       c->options.workspace, c->options.workspace_size);
    case HEAD:
        return onepass_head(c->handle, t[LAYER_INPUT], t[LAYER_WEIGHT], c->no_options ? NULL : &c->options,
                            t[LAYER_OUTPUT], t[LAYER_PRODUCT], t[LAYER_MEAN], t[LAYER_RSTD]);
    default:
        return onepass_head_backward(c->handle, t[LAYER_GRAD_OUTPUT], t[LAYER_OUTPUT], t[LAYER_INPUT], t[LAYER_WEIGHT],
                                     t[LAYER_PRODUCT], t[LAYER_MEAN], t[LAYER_RSTD], c->no_options ? NULL : &c->options,
                                     c->no_gradients ? NULL : &c->gradients);
    }
}

/* The call must fail with this status and a message with the operator and all these parts, and change nothing. */
#define REFUSE(what, c, status, ...) refuse(what, c, status, operators[(c)->entry], __VA_ARGS__, NULL)
static void refuse(const char *what, call *c, onepass_status expected, ...)
{
    test_context("%s%s", operators[c->entry], what);
    static double before[LAYER_TENSORS][ROOM];
    memcpy(before, c->memory, sizeof before);
    test_catch_output();
    onepass_status status = make_call(c);
    long printed = test_release_output();
    const char *message = onepass_last_error();
    CHECK(status == expected, "got %s, expected %s: %s", onepass_status_name(status), onepass_status_name(expected),
          message);
    CHECK(memcmp(before, c->memory, sizeof before) == 0, "memory changed");
    CHECK(printed == 0 && strlen(message) < 512, "%ld bytes were printed", printed);
    va_list parts;
    va_start(parts, expected);
    for (const char *part = va_arg(parts, const char *); part; part = va_arg(parts, const char *))
        CHECK(strstr(message, part) != NULL, "the message lacks \"%s\": %s", part, message);
    va_end(parts);
}

static void accept(const char *what, call *c)
{
    test_context("%s%s", operators[c->entry], what);
    CHECK(make_call(c) == ONEPASS_OK, "refused: %s", onepass_last_error());
}

static const char *const names[LAYER_TENSORS] = {
    "input",       "weight",          "bias",        "gamma",  "beta",    "scale", "running_mean",
    "running_var", "batches_tracked", "grad_output", "output", "product", "mean",  "rstd",
    "input",       "weight",          "bias",        "gamma",  "beta",    "scale",
};

static void test_shapes(void)
{
    for (int e = LINEAR; e <= HEAD_BACKWARD; e++) {
        call *c = fresh((entry_id)e);
        c->shape[LAYER_WEIGHT][1] = K + 1;
        REFUSE("another depth", c, BAD, "weight: shape [5, 4]", "it must be [N, K], here [5, 3]");
        c = fresh((entry_id)e);
        c->tensor[LAYER_INPUT].ndim = e >= HEAD ? 1 : 0;
        REFUSE("an input of the wrong rank", c, BAD, "input: shape", e >= HEAD ? "[B, K]" : "[..., K]");
    }
    call *c;
    c = fresh(HEAD_BACKWARD);
    c->shape[LAYER_GRAD_SCALE][0] = N;
    REFUSE("a gradient of another shape", c, BAD, "gradients.scale: shape [5]", "[1]");
}

static void test_options(void)
{
    call *c;
    for (int e = HEAD; e <= HEAD_BACKWARD; e++) {
        c = fresh((entry_id)e);
        c->no_options = 1;
        REFUSE("no options", c, BAD, "options", "NULL", "required");
        c = fresh((entry_id)e);
        c->options.size = 3;
        REFUSE("options of no known size", c, BAD, "options.size: 3", "sizeof");
    }
    static const double bad[] = {-1e-9, NAN, INFINITY};
    static const char *const texts[] = {"-1e-09", "nan", "inf"};
    for (int i = 0; i < 3; i++) {
        c = fresh(HEAD);
        c->options.eps = bad[i];
        REFUSE("an eps", c, BAD, "options.eps", texts[i], "finite and not negative");
        c = fresh(HEAD);
        c->options.momentum = bad[i];
        if (i > 0)
            REFUSE("a momentum", c, BAD, "options.momentum", texts[i], "finite");
    }
    for (int i = LAYER_RUNNING_MEAN; i <= LAYER_RUNNING_VAR; i++) {
        c = fresh(HEAD);
        c->given[i] = NULL;
        REFUSE("one of two statistics", c, BAD, names[i], "go together");
    }
    c = fresh(HEAD);
    c->options.cumulative = 1;
    REFUSE("cumulative with momentum", c, BAD, "options.momentum: 0.1", "cumulative");
    c = fresh(HEAD);
    c->options.cumulative = 1;
    c->options.momentum = 0;
    c->given[LAYER_COUNTER] = NULL;
    REFUSE("cumulative without a counter", c, BAD, "options.batches_tracked", "NULL");
    static const int64_t counters[] = {-1, -2, INT64_MIN, INT64_MAX};
    static const char *const said[] = {"-1; it must not be negative", "-2; it must not be negative",
                                       "-9223372036854775808; it must not be negative",
                                       "9223372036854775807; it must leave room"};
    for (int i = 0; i < 4; i++) {
        c = fresh(HEAD);
        c->options.cumulative = 1;
        c->options.momentum = 0;
        memcpy(c->memory[HEAD_COUNTER], &counters[i], sizeof counters[i]);
        REFUSE("a counter that cannot be divided by", c, BAD, "options.batches_tracked", said[i]);
        c->shape[HEAD_INPUT][0] = c->shape[HEAD_OUTPUT][0] = c->shape[HEAD_PRODUCT][0] = 0;
        REFUSE("the same with an empty batch", c, BAD, "options.batches_tracked", said[i]);
        c = fresh(HEAD);
        memcpy(c->memory[HEAD_COUNTER], &counters[i], sizeof counters[i]);
        accept("any counter beside a momentum, as PyTorch", c);
    }
    c = fresh(HEAD);
    c->shape[LAYER_INPUT][0] = c->shape[LAYER_OUTPUT][0] = c->shape[LAYER_PRODUCT][0] = 1;
    REFUSE("a batch of one", c, BAD, "input: 1 row", "at least 2");
    for (int i = LAYER_PRODUCT; i <= LAYER_RSTD; i++) {
        c = fresh(HEAD);
        c->given[i] = NULL;
        REFUSE("two of three", c, BAD, names[i], "go together");
    }

    /* running statistics */
    c = fresh(HEAD);
    c->options.statistics = ONEPASS_RUNNING_STATISTICS;
    REFUSE("a counter that would not count", c, BAD, "options.batches_tracked", "updates nothing");
    c->given[LAYER_COUNTER] = NULL;
    REFUSE("a momentum that would not be used", c, BAD, "options.momentum", "updates nothing");
    c->options.momentum = 0;
    accept("running statistics", c);
    c->shape[LAYER_INPUT][0] = c->shape[LAYER_OUTPUT][0] = c->shape[LAYER_PRODUCT][0] = 1;
    accept("running statistics of one row", c);
    c->given[LAYER_RUNNING_MEAN] = c->given[LAYER_RUNNING_VAR] = NULL;
    REFUSE("running statistics that are not there", c, BAD, "options.running_mean", "NULL");
}

static void test_gradients(void)
{
    call *c = fresh(HEAD_BACKWARD);
    c->no_gradients = 1;
    REFUSE("no gradients", c, BAD, "gradients", "NULL", "required");
    c = fresh(HEAD_BACKWARD);
    c->gradients.size = 8;
    REFUSE("gradients of no known size", c, BAD, "gradients.size: 8", "sizeof");
    for (int i = 0; i < 4; i++) {
        c = fresh(HEAD_BACKWARD);
        c->given[LAYER_BIAS + i] = NULL;
        REFUSE("the gradient of nothing", c, BAD, "gradients.", names[LAYER_BIAS + i], "is NULL");
    }
}

/* Odd but legal. */
static void test_accepted(void)
{
    call *c = fresh(HEAD);
    for (int i = LAYER_BIAS; i <= LAYER_COUNTER; i++)
        c->given[i] = NULL;
    c->given[LAYER_PRODUCT] = c->given[LAYER_MEAN] = c->given[LAYER_RSTD] = NULL;
    accept("nothing but input and weight", c);
    c = fresh(HEAD);
    c->tensor[LAYER_SCALE].ndim = 0;
    c->tensor[LAYER_COUNTER].ndim = 0;
    accept("a scale and a counter of no dimension", c);
    c = fresh(HEAD);
    c->options.momentum = -3;
    accept("a negative momentum, as PyTorch", c);
    c = fresh(HEAD);
    c->options.eps = 0;
    accept("no eps", c);

    /* An empty batch is counted and leaves the statistics alone; no features is nothing at all. */
    c = fresh(HEAD);
    int64_t counter = 41;
    c->tensor[LAYER_COUNTER].data = &counter;
    c->shape[LAYER_INPUT][0] = c->shape[LAYER_OUTPUT][0] = c->shape[LAYER_PRODUCT][0] = 0;
    double before[2][ROOM];
    memcpy(before, c->memory[LAYER_RUNNING_MEAN], sizeof before);
    accept("an empty batch", c);
    CHECK(counter == 42, "counter %lld", (long long)counter);
    CHECK(memcmp(before, c->memory[LAYER_RUNNING_MEAN], sizeof before) == 0, "running statistics changed");
    c = fresh(HEAD_BACKWARD);
    c->shape[LAYER_INPUT][0] = c->shape[LAYER_OUTPUT][0] = c->shape[LAYER_PRODUCT][0] = 0;
    c->shape[LAYER_GRAD_INPUT][0] = c->shape[LAYER_GRAD_OUTPUT][0] = 0;
    accept("the gradients of an empty batch", c);
    for (int k = 0; k < N * K; k++)
        CHECK(((float *)c->memory[LAYER_GRAD_WEIGHT])[k] == 0, "grad_weight[%d] is not 0", k);

    size_t bytes = 1;
    c = fresh(HEAD);
    CHECK(onepass_linear_workspace_size(handle, c->given[LAYER_INPUT], c->given[LAYER_WEIGHT], NULL) == BAD,
          "bytes NULL");
    CHECK(onepass_head_workspace_size(handle, c->given[LAYER_INPUT], c->given[LAYER_WEIGHT], &c->options, NULL, NULL,
                                      &bytes) == BAD,
          "no output");
    CHECK(onepass_head_backward_workspace_size(handle, NULL, c->given[LAYER_WEIGHT], &c->options, &bytes) == BAD,
          "no input");
    CHECK(bytes == 1, "bytes was written");
}

/* ---- prepared weights -------------------------------------------------------------------------------------------- */

static void expect_words(onepass_status got, onepass_status wanted, const char *first, const char *second)
{
    CHECK(got == wanted, "status %d instead of %d: %s", (int)got, (int)wanted, onepass_last_error());
    CHECK(strstr(onepass_last_error(), first) && strstr(onepass_last_error(), second), "\"%s\" lacks \"%s\" or \"%s\"",
          onepass_last_error(), first, second);
}

/* On the CPU nobody uses them, and none is taken in silence. */
static void test_prepared(void)
{
    call *c = fresh(HEAD);
    char memory[256];
    size_t bytes = 1;
    const onepass_tensor *weight = c->given[LAYER_WEIGHT];
    expect_words(onepass_prepare_weight_size(NULL, weight, &bytes), BAD, "prepare_weight_size: handle", "NULL");
    expect_words(onepass_prepare_weight_size(handle, NULL, &bytes), BAD, "prepare_weight_size: weight", "NULL");
    expect_words(onepass_prepare_weight_size(handle, weight, &bytes), ONEPASS_UNSUPPORTED,
                 "prepare_weight_size: handle", "ONEPASS_FP32_SPLIT");
    expect_words(onepass_prepare_weight(handle, weight, memory, sizeof memory), ONEPASS_UNSUPPORTED,
                 "prepare_weight: handle", "ONEPASS_FP32_SPLIT");
    CHECK(bytes == 1, "bytes was written");
    c->options.prepared_weight = memory;
    REFUSE("a prepared weight", c, BAD, "options.prepared_weight", "ONEPASS_FP32_SPLIT");
    c = fresh(LINEAR);
    for (int k = 0; k < 2; k++) {
        onepass_status status =
            onepass_linear_prepared(handle, c->given[LAYER_INPUT], c->given[LAYER_WEIGHT], k ? memory : NULL, NULL,
                                    c->given[LAYER_OUTPUT], workspace, WORKSPACE);
        expect_words(status, BAD, "linear_prepared: prepared", k ? "ONEPASS_FP32_SPLIT" : "NULL");
    }
}

/* ---- BLAS -------------------------------------------------------------------------------------------------------- */

static onepass_status create(const char *variable, const char *blas, onepass_handle **made)
{
    if (variable)
        setenv("ONEPASS_BLAS", variable, 1);
    else
        unsetenv("ONEPASS_BLAS");
    onepass_config config = {.size = sizeof config, .blas = blas};
    onepass_status status = onepass_create(&config, made);
    unsetenv("ONEPASS_BLAS");
    return status;
}

static void test_blas(void)
{
    test_context("BLAS");
    static const char *const wrong[] = {"", "mkl", "OpenBLAS", "libblas.so.3"};
    onepass_handle *made = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK(create(NULL, wrong[i], &made) == BAD && !made, "config.blas \"%s\"", wrong[i]);
        CHECK(strstr(onepass_last_error(), "config.blas") && strstr(onepass_last_error(), "openblas, blis or none"),
              "%s", onepass_last_error());
        CHECK((create(wrong[i], NULL, &made) == BAD) == (i > 0), "$ONEPASS_BLAS \"%s\"", wrong[i]);
        onepass_destroy(made);
        made = NULL;
    }
    CHECK(create("nonsense", "none", &made) == ONEPASS_OK, "config.blas says it all: %s", onepass_last_error());
    CHECK(strcmp(onepass_blas(made), "none") == 0, "%s", onepass_blas(made));
    onepass_destroy(made);
    CHECK(create("none", NULL, &made) == ONEPASS_OK && strcmp(onepass_blas(made), "none") == 0, "$ONEPASS_BLAS");
    onepass_destroy(made);
    CHECK(create(NULL, NULL, &made) == ONEPASS_OK, "%s", onepass_last_error());
    const char *chosen = onepass_blas(made);
    CHECK(strcmp(chosen, "none") == 0 || strcmp(chosen, "openblas") == 0 || strcmp(chosen, "blis") == 0, "%s", chosen);
    onepass_destroy(made);
    CHECK(strcmp(onepass_blas(NULL), "") == 0, "BLAS of no handle");
    static const char *const libraries[] = {"openblas", "blis"};
    for (int i = 0; i < 2; i++) {
        made = NULL;
        onepass_status status = create(NULL, libraries[i], &made);
        CHECK(status == ONEPASS_OK || status == ONEPASS_UNSUPPORTED, "%s: %s", libraries[i], onepass_last_error());
        if (status != ONEPASS_OK)
            CHECK(!made && strstr(onepass_last_error(), "cannot be loaded"), "%s", onepass_last_error());
        onepass_destroy(made);
    }
    onepass_config config = {.size = sizeof config, .device = {ONEPASS_CUDA, 0}, .blas = "none"};
    CHECK(onepass_create(&config, &made) == BAD && strstr(onepass_last_error(), "config.blas"), "%s",
          onepass_last_error());
}

int main(void)
{
    unsetenv("ONEPASS_BLAS");
    test_begin("test_head_api");
    handle = test_handle(onep_best_level(), 2);
    workspace = malloc(WORKSPACE);
    if (!workspace)
        return 2;
    for (int e = LINEAR; e <= HEAD_BACKWARD; e++)
        accept("everything given", fresh((entry_id)e));
    test_shapes();
    test_options();
    test_gradients();
    test_accepted();
    test_prepared();
    test_blas();
    onepass_destroy(handle);
    free(workspace);
    return test_end();
}
