/* See head_cases.h. */
#include "head_cases.h"

#include <stdio.h>
#include <stdlib.h>

#include "entry_points.h"

/* Which argument of the forward and of the backward call a tensor is; -1: of neither. */
static const struct {
    int forward, backward;
} places[LAYER_TENSORS] = {
    [LAYER_INPUT] = {HEAD_INPUT, HEAD_B_INPUT},     [LAYER_WEIGHT] = {HEAD_WEIGHT, HEAD_B_WEIGHT},
    [LAYER_BIAS] = {HEAD_BIAS, HEAD_B_BIAS},        [LAYER_GAMMA] = {HEAD_GAMMA, HEAD_B_GAMMA},
    [LAYER_BETA] = {HEAD_BETA, HEAD_B_BETA},        [LAYER_SCALE] = {HEAD_SCALE, HEAD_B_SCALE},
    [LAYER_RUNNING_MEAN] = {HEAD_RUNNING_MEAN, -1}, [LAYER_RUNNING_VAR] = {HEAD_RUNNING_VAR, -1},
    [LAYER_COUNTER] = {HEAD_COUNTER, -1},           [LAYER_GRAD_OUTPUT] = {-1, HEAD_GRAD_OUTPUT},
    [LAYER_OUTPUT] = {HEAD_OUTPUT, HEAD_B_OUTPUT},  [LAYER_PRODUCT] = {HEAD_PRODUCT, HEAD_B_PRODUCT},
    [LAYER_MEAN] = {HEAD_MEAN, HEAD_B_MEAN},        [LAYER_RSTD] = {HEAD_RSTD, HEAD_B_RSTD},
    [LAYER_GRAD_INPUT] = {-1, HEAD_GRAD_INPUT},     [LAYER_GRAD_WEIGHT] = {-1, HEAD_GRAD_WEIGHT},
    [LAYER_GRAD_BIAS] = {-1, HEAD_GRAD_BIAS},       [LAYER_GRAD_GAMMA] = {-1, HEAD_GRAD_GAMMA},
    [LAYER_GRAD_BETA] = {-1, HEAD_GRAD_BETA},       [LAYER_GRAD_SCALE] = {-1, HEAD_GRAD_SCALE},
};

static op_case forward, backward;
static int ran_backward;

double head_result(int argument, int64_t index)
{
    return case_get(&forward, argument, index);
}

uint64_t head_digest(void)
{
    return case_digest(&forward) ^ (ran_backward ? case_digest(&backward) * 31 : 0);
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

static onep_type computed_type(const head_case *c)
{
    return c->type[LAYER_INPUT] == ONEP_F64 || c->type[LAYER_WEIGHT] == ONEP_F64 ? ONEP_F64 : ONEP_F32;
}

/* The types that follow from others: gradients have that of their tensor, the product that of the computation. */
static void derive_types(head_case *c)
{
    static const int of[][2] = {{LAYER_GRAD_INPUT, LAYER_INPUT}, {LAYER_GRAD_WEIGHT, LAYER_WEIGHT},
                                {LAYER_GRAD_BIAS, LAYER_BIAS},   {LAYER_GRAD_GAMMA, LAYER_GAMMA},
                                {LAYER_GRAD_BETA, LAYER_BETA},   {LAYER_GRAD_SCALE, LAYER_SCALE}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        c->type[of[i][0]] = c->type[of[i][1]];
    c->type[LAYER_COUNTER] = ONEP_I64;
    c->type[LAYER_PRODUCT] = computed_type(c);
    onep_type promoted = onep_promote(c->type[LAYER_INPUT], c->type[LAYER_WEIGHT]);
    if (!onep_type_holds(c->type[LAYER_OUTPUT], promoted))
        c->type[LAYER_OUTPUT] = promoted;
    for (int i = LAYER_MEAN; i <= LAYER_RSTD; i++)
        if (!onep_type_holds(c->type[i], computed_type(c)))
            c->type[i] = computed_type(c);
}

head_case head_case_plain(onep_type type, int64_t rows, int64_t depth, int64_t columns)
{
    head_case c = {
        .rows = rows,
        .depth = depth,
        .columns = columns,
        .eps = 1e-5,
        .momentum = 0.1,
        .present = LAYER_ALL,
        .threads = 1,
    };
    for (int i = 0; i < LAYER_TENSORS; i++)
        c.type[i] = i == LAYER_INPUT || i == LAYER_WEIGHT || i == LAYER_OUTPUT || i == LAYER_GRAD_OUTPUT ? type
                    : type == ONEP_F64                                                                   ? ONEP_F64
                                                                                                         : ONEP_F32;
    derive_types(&c);
    return c;
}

void head_case_shuffle(head_case *c, test_random *random)
{
    for (int i = 0; i < LAYER_TENSORS; i++) {
        c->type[i] = (onep_type)test_random_below(random, ONEP_FLOAT_TYPES);
        c->layout[i] = (case_layout)test_random_below(random, CASE_OUTPUT_LAYOUTS);
        c->guard[i] = (case_guard)test_random_below(random, CASE_GUARDS);
        c->shift[i] = test_random_below(random, 3) == 0;
    }
    derive_types(c);
    static const unsigned pairs[][2] = {{LAYER_BIAS, LAYER_GRAD_BIAS},
                                        {LAYER_GAMMA, LAYER_GRAD_GAMMA},
                                        {LAYER_BETA, LAYER_GRAD_BETA},
                                        {LAYER_SCALE, LAYER_GRAD_SCALE}};
    for (int i = 0; i < 4; i++)
        if (test_random_below(random, 3) == 0)
            c->present &= ~(LAYER_BIT(pairs[i][0]) | LAYER_BIT(pairs[i][1]));
    for (int i = LAYER_GRAD_INPUT; i <= LAYER_GRAD_SCALE; i++)
        if (test_random_below(random, 4) == 0)
            c->present &= ~LAYER_BIT(i);
    c->scale_each = (int)test_random_below(random, 2);
    c->statistics = (onepass_statistics)test_random_below(random, 2);
    if (c->statistics == ONEPASS_BATCH_STATISTICS && test_random_below(random, 3) == 0)
        c->present &= ~(LAYER_BIT(LAYER_RUNNING_MEAN) | LAYER_BIT(LAYER_RUNNING_VAR));
    if (c->statistics == ONEPASS_BATCH_STATISTICS && test_random_below(random, 3) == 0) {
        c->cumulative = 1;
        c->momentum = 0;
    } else if (test_random_below(random, 3) == 0) {
        c->present &= ~LAYER_BIT(LAYER_COUNTER);
    }
    c->threads = 1 + (int32_t)test_random_below(random, 3);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

onepass_handle *layer_handle(onep_level level, int32_t threads, const char *blas)
{
    onepass_handle *handle = NULL;
    onepass_config config = {
        .size = sizeof config, .threads = threads, .isa = onep_level_name(level), .blas = blas ? blas : "none"};
    CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
    return handle;
}

static int saves(const head_case *c)
{
    return (c->present & LAYER_BIT(LAYER_PRODUCT)) != 0;
}

static int is_given(const head_case *c, int i)
{
    int running = c->statistics == ONEPASS_RUNNING_STATISTICS;
    if (i == LAYER_COUNTER && running)
        return 0;
    if (i >= LAYER_PRODUCT && i <= LAYER_RSTD) /* product, mean and rstd go together */
        return saves(c);
    int needed = i == LAYER_INPUT || i == LAYER_WEIGHT || i == LAYER_OUTPUT || i == LAYER_GRAD_OUTPUT ||
                 ((i == LAYER_RUNNING_MEAN || i == LAYER_RUNNING_VAR) && running);
    return needed || (c->present & LAYER_BIT(i)) != 0;
}

/* Makes a forward or backward case ready to be placed. */
static void begin(op_case *to, const head_case *c, const char *name, uint64_t stream)
{
    test_random random = test_random_stream(stream);
    if (!case_begin(to, name)) {
        fprintf(stderr, "%s has no cases\n", name);
        exit(2);
    }
    to->extents['B' - 'A'] = c->rows;
    to->extents['K' - 'A'] = c->depth;
    to->extents['N' - 'A'] = c->columns;
    to->options[HEAD_STATISTICS] = c->statistics;
    to->options[HEAD_CUMULATIVE] = c->cumulative;
    to->family = (int)c->data;
    to->amount = c->amount;
    to->seed = test_random_bits(&random);
    to->entry = entry_point;
    for (int i = 0; i < LAYER_TENSORS; i++) {
        int place = to == &forward ? places[i].forward : places[i].backward;
        if (place < 0)
            continue;
        case_argument *a = &to->argument[place];
        a->given = is_given(c, i);
        a->dtype = test_dtype(c->type[i]);
        a->layout = c->layout[i];
        a->guard = c->guard[i];
        a->shift = c->shift[i];
        a->is_one = (i == LAYER_SCALE || i == LAYER_GRAD_SCALE) && !c->scale_each;
    }
}

static void must(int made)
{
    if (made)
        return;
    fprintf(stderr, "no memory for a case\n");
    exit(2);
}

static void say(const head_case *c, const op_case *of, onep_level level)
{
    char text[1800];
    test_context("level %s, %d threads, blas %s: %s", onep_level_name(level), (int)c->threads,
                 c->blas ? c->blas : "none", case_describe(of, text, sizeof text));
}

static int asks_for_gradients(const head_case *c)
{
    return saves(c) && !c->no_backward && (c->present >> LAYER_GRAD_INPUT) != 0;
}

void head_run(const head_case *c, onep_level level, uint64_t stream)
{
    onepass_handle *handle = layer_handle(level, c->threads, c->blas);
    begin(&forward, c, "head", stream);
    forward.options[HEAD_EPS] = c->eps;
    forward.options[HEAD_MOMENTUM] = c->statistics == ONEPASS_RUNNING_STATISTICS ? 0 : c->momentum;
    must(case_make(&forward));
    if (c->spoil != 0) {
        case_put(&forward, HEAD_INPUT, c->spoil_row * c->depth, c->spoil);
        case_remember(&forward);
    }
    say(c, &forward, level);
    ran_backward = handle && case_check(&forward, handle, &test_judge) && asks_for_gradients(c);
    if (ran_backward) {
        begin(&backward, c, "head_backward", stream);
        must(case_place(&backward));
        head_continue(&backward, &forward);
        head_fill_grad_output(&backward);
        case_remember(&backward);
        say(c, &backward, level);
        case_check(&backward, handle, &test_judge);
    }
    onepass_destroy(handle);
}
