/*
 * What bad input gets from linear and head: every rule of their doors is broken once, and each time the status is the
 * right one, the message names the operator, the argument, the value and the rule, no byte of any tensor changes and
 * nothing is printed. What looks odd but is legal is accepted. Also which BLAS a handle gets, and who is refused one.
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
    onepass_tensor tensor[HEAD_TENSORS];
    int64_t shape[HEAD_TENSORS][4], strides[HEAD_TENSORS][4];
    const onepass_tensor *given[HEAD_TENSORS];
    int no_options, no_gradients;
    double memory[HEAD_TENSORS][ROOM];
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
    for (int i = 0; i < HEAD_TENSORS; i++) {
        int two = i == HEAD_INPUT || i == HEAD_WEIGHT || i == HEAD_OUTPUT || i == HEAD_PRODUCT ||
                  i == HEAD_GRAD_OUTPUT || i == HEAD_GRAD_INPUT || i == HEAD_GRAD_WEIGHT;
        int64_t rows = i == HEAD_WEIGHT || i == HEAD_GRAD_WEIGHT ? N : B;
        int64_t columns = i == HEAD_INPUT || i == HEAD_GRAD_INPUT || i == HEAD_WEIGHT || i == HEAD_GRAD_WEIGHT ? K : N;
        int64_t single = i == HEAD_SCALE || i == HEAD_GRAD_SCALE || i == HEAD_COUNTER ? 1 : N;
        c.shape[i][0] = two ? rows : single;
        c.shape[i][1] = columns;
        c.strides[i][0] = two ? columns : 1;
        c.strides[i][1] = 1;
        c.tensor[i] = (onepass_tensor){.data = c.memory[i],
                                       .device = {ONEPASS_CPU, 0},
                                       .ndim = two ? 2 : 1,
                                       .dtype = i == HEAD_COUNTER ? i64 : f32,
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
    c->options.bias = t[HEAD_BIAS];
    c->options.gamma = t[HEAD_GAMMA];
    c->options.beta = t[HEAD_BETA];
    c->options.scale = t[HEAD_SCALE];
    c->options.running_mean = t[HEAD_RUNNING_MEAN];
    c->options.running_var = t[HEAD_RUNNING_VAR];
    c->options.batches_tracked = t[HEAD_COUNTER];
    c->gradients.input = t[HEAD_GRAD_INPUT];
    c->gradients.weight = t[HEAD_GRAD_WEIGHT];
    c->gradients.bias = t[HEAD_GRAD_BIAS];
    c->gradients.gamma = t[HEAD_GRAD_GAMMA];
    c->gradients.beta = t[HEAD_GRAD_BETA];
    c->gradients.scale = t[HEAD_GRAD_SCALE];
    switch (c->entry) {
    case LINEAR:
        return onepass_linear(c->handle, t[HEAD_INPUT], t[HEAD_WEIGHT], t[HEAD_BIAS], t[HEAD_OUTPUT],
                              c->options.workspace, c->options.workspace_size);
    case LINEAR_BACKWARD:
        return onepass_linear_backward(c->handle, t[HEAD_GRAD_OUTPUT], t[HEAD_INPUT], t[HEAD_WEIGHT],
                                       t[HEAD_GRAD_INPUT], t[HEAD_GRAD_WEIGHT], t[HEAD_GRAD_BIAS], c->options.workspace,
                                       c->options.workspace_size);
    case HEAD:
        return onepass_head(c->handle, t[HEAD_INPUT], t[HEAD_WEIGHT], c->no_options ? NULL : &c->options,
                            t[HEAD_OUTPUT], t[HEAD_PRODUCT], t[HEAD_MEAN], t[HEAD_RSTD]);
    default:
        return onepass_head_backward(c->handle, t[HEAD_GRAD_OUTPUT], t[HEAD_OUTPUT], t[HEAD_INPUT], t[HEAD_WEIGHT],
                                     t[HEAD_PRODUCT], t[HEAD_MEAN], t[HEAD_RSTD], c->no_options ? NULL : &c->options,
                                     c->no_gradients ? NULL : &c->gradients);
    }
}

/* The call must fail with this status and a message with the operator and all these parts, and change nothing. */
#define REFUSE(what, c, status, ...) refuse(what, c, status, operators[(c)->entry], __VA_ARGS__, NULL)
static void refuse(const char *what, call *c, onepass_status expected, ...)
{
    test_context("%s%s", operators[c->entry], what);
    static double before[HEAD_TENSORS][ROOM];
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

static const char *const names[HEAD_TENSORS] = {
    "input",       "weight",          "bias",        "gamma",  "beta",    "scale", "running_mean",
    "running_var", "batches_tracked", "grad_output", "output", "product", "mean",  "rstd",
    "input",       "weight",          "bias",        "gamma",  "beta",    "scale",
};

/* Which tensors an entry takes, and which of them it needs. */
static const unsigned taken[] = {
    HEAD_BIT(HEAD_INPUT) | HEAD_BIT(HEAD_WEIGHT) | HEAD_BIT(HEAD_BIAS) | HEAD_BIT(HEAD_OUTPUT),
    HEAD_BIT(HEAD_INPUT) | HEAD_BIT(HEAD_WEIGHT) | HEAD_BIT(HEAD_GRAD_OUTPUT) | HEAD_BIT(HEAD_GRAD_INPUT) |
        HEAD_BIT(HEAD_GRAD_WEIGHT) | HEAD_BIT(HEAD_GRAD_BIAS),
    HEAD_BIT(HEAD_INPUT) | HEAD_BIT(HEAD_WEIGHT) | HEAD_BIT(HEAD_BIAS) | HEAD_BIT(HEAD_GAMMA) | HEAD_BIT(HEAD_BETA) |
        HEAD_BIT(HEAD_SCALE) | HEAD_BIT(HEAD_RUNNING_MEAN) | HEAD_BIT(HEAD_RUNNING_VAR) | HEAD_BIT(HEAD_COUNTER) |
        HEAD_BIT(HEAD_OUTPUT) | HEAD_BIT(HEAD_PRODUCT) | HEAD_BIT(HEAD_MEAN) | HEAD_BIT(HEAD_RSTD),
    HEAD_ALL & ~(HEAD_BIT(HEAD_RUNNING_MEAN) | HEAD_BIT(HEAD_RUNNING_VAR) | HEAD_BIT(HEAD_COUNTER)),
};
static const unsigned needed[] = {
    HEAD_BIT(HEAD_INPUT) | HEAD_BIT(HEAD_WEIGHT) | HEAD_BIT(HEAD_OUTPUT),
    HEAD_BIT(HEAD_INPUT) | HEAD_BIT(HEAD_WEIGHT) | HEAD_BIT(HEAD_GRAD_OUTPUT),
    HEAD_BIT(HEAD_INPUT) | HEAD_BIT(HEAD_WEIGHT) | HEAD_BIT(HEAD_OUTPUT),
    HEAD_BIT(HEAD_INPUT) | HEAD_BIT(HEAD_WEIGHT) | HEAD_BIT(HEAD_GRAD_OUTPUT) | HEAD_BIT(HEAD_OUTPUT) |
        HEAD_BIT(HEAD_PRODUCT) | HEAD_BIT(HEAD_MEAN) | HEAD_BIT(HEAD_RSTD),
};

static int is_written(entry_id entry, int i)
{
    return i >= HEAD_GRAD_INPUT || (entry <= HEAD && i >= HEAD_OUTPUT) ||
           (entry == HEAD && i >= HEAD_RUNNING_MEAN && i <= HEAD_COUNTER);
}

/* What is wrong with any tensor, for every tensor of every entry. */
static void test_each_tensor(entry_id entry)
{
    call *c = fresh(entry);
    accept("everything given", c);
    c = fresh(entry);
    c->handle = NULL;
    REFUSE("no handle", c, BAD, "handle", "NULL", "onepass_create");
    for (int i = 0; i < HEAD_TENSORS; i++) {
        if (!(taken[entry] & HEAD_BIT(i)))
            continue;
        if (needed[entry] & HEAD_BIT(i)) {
            c = fresh(entry);
            c->given[i] = NULL;
            REFUSE("a required tensor is NULL", c, BAD, names[i], "NULL", "required");
        }
        c = fresh(entry);
        c->tensor[i].ndim = -1;
        REFUSE("negative rank", c, BAD, names[i], "ndim is -1");
        c = fresh(entry);
        c->tensor[i].data = NULL;
        REFUSE("no memory", c, BAD, names[i], "data is NULL");
        c = fresh(entry);
        c->tensor[i].dtype.bits = 8;
        REFUSE("a dtype nobody reads", c, ONEPASS_UNSUPPORTED, names[i], "8 bits");
        c = fresh(entry);
        c->tensor[i].device.type = ONEPASS_CUDA;
        REFUSE("another device", c, BAD, names[i], "device type 2");
        c = fresh(entry);
        c->tensor[i].dtype = (onepass_dtype)ONEPASS_U8;
        if (i == HEAD_COUNTER)
            REFUSE("a counter of bytes", c, BAD, names[i], "uint8", "int64");
        else
            REFUSE("bytes", c, ONEPASS_UNSUPPORTED, names[i], "uint8", "float16, bfloat16, float32 or float64");
        c = fresh(entry);
        c->shape[i][0] = 7;  /* of no other tensor */
        if (i == HEAD_INPUT) /* is measured by: the others do not fit */
            REFUSE("another number of rows", c, BAD, "shape", "it must be");
        else if (i == HEAD_WEIGHT)
            REFUSE("another number of features", c, BAD, "shape", "it must be");
        else
            REFUSE("a wrong extent", c, BAD, names[i], "shape [7", "it must be");
        if (!is_written(entry, i))
            continue;
        if (c->tensor[i].ndim > 0 && i != HEAD_COUNTER && i != HEAD_GRAD_SCALE) {
            c = fresh(entry);
            c->strides[i][0] = 0;
            REFUSE("elements that share memory", c, BAD, names[i], "apart");
        }
        c = fresh(entry);
        c->tensor[i].data = c->memory[HEAD_INPUT];
        REFUSE("an output over the input", c, BAD, names[i], "overlaps", "input");
    }
}

static void test_shapes(void)
{
    for (int e = LINEAR; e <= HEAD_BACKWARD; e++) {
        call *c = fresh((entry_id)e);
        c->shape[HEAD_WEIGHT][1] = K + 1;
        REFUSE("another depth", c, BAD, "weight: shape [5, 4]", "the K of input", "[4, 3]");
        c = fresh((entry_id)e);
        c->tensor[HEAD_INPUT].ndim = e >= HEAD ? 1 : 0;
        REFUSE("an input of the wrong rank", c, BAD, "input: shape", e >= HEAD ? "[B, K]" : "[..., K]");
        c = fresh((entry_id)e);
        c->options.workspace_size = 100;
        REFUSE("a small workspace", c, ONEPASS_WORKSPACE, "workspace", "100 bytes", "needs");
        c = fresh((entry_id)e);
        c->options.workspace = NULL;
        REFUSE("no workspace", c, ONEPASS_WORKSPACE, "workspace");
        c = fresh((entry_id)e);
        c->tensor[HEAD_INPUT].data = workspace + 64;
        REFUSE("a workspace that is a tensor", c, BAD, "workspace", "overlaps", "input");
    }
    call *c = fresh(LINEAR);
    c->tensor[HEAD_OUTPUT].dtype = (onepass_dtype)ONEPASS_F16;
    REFUSE("a narrow output", c, BAD, "output: dtype float16", "float32", "holds");
    c = fresh(HEAD);
    c->tensor[HEAD_OUTPUT].dtype = (onepass_dtype)ONEPASS_BF16;
    REFUSE("a narrow output", c, BAD, "output: dtype bfloat16", "float32");
    c = fresh(HEAD);
    c->tensor[HEAD_PRODUCT].dtype = (onepass_dtype)ONEPASS_F64;
    REFUSE("a product of another type", c, BAD, "product: dtype float64", "float32");
    c = fresh(HEAD_BACKWARD);
    c->tensor[HEAD_GRAD_GAMMA].dtype = (onepass_dtype)ONEPASS_F64;
    REFUSE("a gradient of another type", c, BAD, "gradients.gamma: dtype float64", "float32");
    c = fresh(HEAD_BACKWARD);
    c->shape[HEAD_GRAD_SCALE][0] = N;
    REFUSE("a gradient of another shape", c, BAD, "gradients.scale: shape [5]", "[1]");
    c = fresh(HEAD);
    c->tensor[HEAD_PRODUCT].data = c->memory[HEAD_OUTPUT];
    REFUSE("two outputs in one place", c, BAD, "product", "overlaps", "output");
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
        c = fresh((entry_id)e);
        c->options.statistics = (onepass_statistics)2;
        REFUSE("unknown statistics", c, BAD, "options.statistics: 2", "onepass_statistics");
        c = fresh((entry_id)e);
        c->options.cumulative = -1;
        REFUSE("neither yes nor no", c, BAD, "options.cumulative: -1", "0 or 1");
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
    for (int i = HEAD_RUNNING_MEAN; i <= HEAD_RUNNING_VAR; i++) {
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
    c->given[HEAD_COUNTER] = NULL;
    REFUSE("cumulative without a counter", c, BAD, "options.batches_tracked", "NULL");
    c = fresh(HEAD);
    c->shape[HEAD_INPUT][0] = c->shape[HEAD_OUTPUT][0] = c->shape[HEAD_PRODUCT][0] = 1;
    REFUSE("a batch of one", c, BAD, "input: 1 row", "at least 2");
    for (int i = HEAD_PRODUCT; i <= HEAD_RSTD; i++) {
        c = fresh(HEAD);
        c->given[i] = NULL;
        REFUSE("two of three", c, BAD, names[i], "go together");
    }

    /* running statistics */
    c = fresh(HEAD);
    c->options.statistics = ONEPASS_RUNNING_STATISTICS;
    REFUSE("a counter that would not count", c, BAD, "options.batches_tracked", "updates nothing");
    c->given[HEAD_COUNTER] = NULL;
    REFUSE("a momentum that would not be used", c, BAD, "options.momentum", "updates nothing");
    c->options.momentum = 0;
    accept("running statistics", c);
    c->shape[HEAD_INPUT][0] = c->shape[HEAD_OUTPUT][0] = c->shape[HEAD_PRODUCT][0] = 1;
    accept("running statistics of one row", c);
    c->given[HEAD_RUNNING_MEAN] = c->given[HEAD_RUNNING_VAR] = NULL;
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
    c = fresh(HEAD_BACKWARD);
    for (int i = HEAD_GRAD_INPUT; i < HEAD_TENSORS; i++)
        c->given[i] = NULL;
    REFUSE("no gradient asked for", c, BAD, "gradients", "at least one");
    for (int i = 0; i < 4; i++) {
        c = fresh(HEAD_BACKWARD);
        c->given[HEAD_BIAS + i] = NULL;
        REFUSE("the gradient of nothing", c, BAD, "gradients.", names[HEAD_BIAS + i], "is NULL");
    }
    c = fresh(LINEAR_BACKWARD);
    c->given[HEAD_GRAD_INPUT] = c->given[HEAD_GRAD_WEIGHT] = c->given[HEAD_GRAD_BIAS] = NULL;
    REFUSE("no gradient asked for", c, BAD, "grad_input, grad_weight, grad_bias", "at least one");
}

/* Odd but legal. */
static void test_accepted(void)
{
    call *c = fresh(HEAD);
    for (int i = HEAD_BIAS; i <= HEAD_COUNTER; i++)
        c->given[i] = NULL;
    c->given[HEAD_PRODUCT] = c->given[HEAD_MEAN] = c->given[HEAD_RSTD] = NULL;
    accept("nothing but input and weight", c);
    c = fresh(HEAD);
    c->tensor[HEAD_SCALE].ndim = 0;
    c->tensor[HEAD_COUNTER].ndim = 0;
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
    c->tensor[HEAD_COUNTER].data = &counter;
    c->shape[HEAD_INPUT][0] = c->shape[HEAD_OUTPUT][0] = c->shape[HEAD_PRODUCT][0] = 0;
    double before[2][ROOM];
    memcpy(before, c->memory[HEAD_RUNNING_MEAN], sizeof before);
    accept("an empty batch", c);
    CHECK(counter == 42, "counter %lld", (long long)counter);
    CHECK(memcmp(before, c->memory[HEAD_RUNNING_MEAN], sizeof before) == 0, "running statistics changed");
    c = fresh(HEAD_BACKWARD);
    c->shape[HEAD_INPUT][0] = c->shape[HEAD_OUTPUT][0] = c->shape[HEAD_PRODUCT][0] = 0;
    c->shape[HEAD_GRAD_INPUT][0] = c->shape[HEAD_GRAD_OUTPUT][0] = 0;
    accept("the gradients of an empty batch", c);
    for (int k = 0; k < N * K; k++)
        CHECK(((float *)c->memory[HEAD_GRAD_WEIGHT])[k] == 0, "grad_weight[%d] is not 0", k);

    size_t bytes = 1;
    c = fresh(HEAD);
    CHECK(onepass_linear_workspace_size(handle, c->given[HEAD_INPUT], c->given[HEAD_WEIGHT], NULL) == BAD,
          "bytes NULL");
    CHECK(onepass_head_workspace_size(handle, c->given[HEAD_INPUT], c->given[HEAD_WEIGHT], &c->options, NULL, NULL,
                                      &bytes) == BAD,
          "no output");
    CHECK(onepass_head_backward_workspace_size(handle, NULL, c->given[HEAD_WEIGHT], &c->options, &bytes) == BAD,
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
    const onepass_tensor *weight = c->given[HEAD_WEIGHT];
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
            onepass_linear_prepared(handle, c->given[HEAD_INPUT], c->given[HEAD_WEIGHT], k ? memory : NULL, NULL,
                                    c->given[HEAD_OUTPUT], workspace, WORKSPACE);
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
        test_each_tensor((entry_id)e);
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
