/*
 * Divergences from hidden states of student and teacher: every level against the exact results of cases/ with every
 * divergence, option, reduction, type and layout; the bits of linear, linear, divergence_logits_logits and
 * linear_backward one after the other; the same bits of everything but grad_weight from any number of chunks, and of
 * everything from any number of threads and from calls for one result alone; gradients against finite differences;
 * divergences that are 0; rows that take no part; what the workspace costs; and what is refused.
 */
#include <stdio.h>

#include "entry_points.h"
#include "linear_cases.h"

#define NAME "linear_divergence"

static const struct {
    onepass_divergence divergence;
    double mixture;
} divergences[] = {{ONEPASS_KL, 0},        {ONEPASS_REVERSE_KL, 0},        {ONEPASS_JS, 0.3},
                   {ONEPASS_SKEW_KL, 0.1}, {ONEPASS_SKEW_REVERSE_KL, 0.1}, {ONEPASS_TOTAL_VARIATION, 0}};
enum { DIVERGENCES = sizeof divergences / sizeof divergences[0] };

/* ---- the operators it stands for --------------------------------------------------------------------------------- */

/* In the type that is computed in; rows, columns and depths of 5 or more: fewer are multiplied in another way where
 * operands have that type. */
static void test_composition(test_random *random)
{
    static op_case c;
    for (int i = 0; i < 2 * DIVERGENCES; i++)
        for (int level = ONEP_SCALAR; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            int64_t rows = i < 9 ? 5 + test_random_below(random, 60) : 300, columns = 5 + test_random_below(random, 80);
            onepass_dtype type = type_at(i), computed = case_computed(type);
            begin_case(&c, NAME, type, rows, 8 + test_random_below(random, 40), columns, LINEAR_LOSS_ORDINARY, 0,
                       test_random_bits(random));
            int64_t depth = case_extent(&c, 'K');
            for (int a = 0; a < c.arguments; a++)
                c.argument[a].given = c.argument[a].info->is_required || a == LINEAR_DIVERGENCE_BIAS ||
                                      a == LINEAR_DIVERGENCE_TARGET_BIAS || a == LOGITS_VALUE ||
                                      a == LINEAR_LOSS_GRAD_INPUT || a == LINEAR_DIVERGENCE_GRAD_WEIGHT ||
                                      a == LINEAR_DIVERGENCE_GRAD_BIAS;
            c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
            c.options[LOGITS_DIVERGENCE] = divergences[i % DIVERGENCES].divergence;
            c.options[LOGITS_MIXTURE] = divergences[i % DIVERGENCES].mixture;
            c.options[LOGITS_TEMPERATURE] = 1.3;
            c.options[LOGITS_TARGET_TEMPERATURE] = 1.7;
            case_settle(&c);
            CHECK(case_make(&c), "no memory");
            test_context("level %s, %s, divergence %d, %" PRId64 " x %" PRId64 " x %" PRId64,
                         onep_level_name((onep_level)level), case_type_name(type), i % DIVERGENCES, rows, depth,
                         columns);
            call_well(&c, handles[level], 0x33);

            int64_t of_logits[] = {rows, columns}, of_input[] = {rows, depth}, of_weight[] = {columns, depth};
            onepass_tensor x = copy_of(&c, LINEAR_LOSS_INPUT, computed);
            onepass_tensor w = copy_of(&c, LINEAR_DIVERGENCE_WEIGHT, computed);
            onepass_tensor b = copy_of(&c, LINEAR_DIVERGENCE_BIAS, computed);
            onepass_tensor target_x = copy_of(&c, LINEAR_DIVERGENCE_TARGET_INPUT, computed);
            onepass_tensor target_w = copy_of(&c, LINEAR_DIVERGENCE_TARGET_WEIGHT, computed);
            onepass_tensor target_b = copy_of(&c, LINEAR_DIVERGENCE_TARGET_BIAS, computed);
            onepass_tensor z = room_for(computed, 2, of_logits), y = room_for(computed, 2, of_logits);
            /* these two are made in double, and rounded once */
            onepass_tensor value = room_for(case_f64, 1, of_logits), db = room_for(case_f64, 1, of_weight);
            onepass_tensor dx = room_for(computed, 2, of_input), dw = room_for(computed, 2, of_weight);
            onepass_logits_options o = {.size = sizeof o,
                                        .reduction = ONEPASS_ROWS,
                                        .divergence = divergences[i % DIVERGENCES].divergence,
                                        .mixture = divergences[i % DIVERGENCES].mixture,
                                        .temperature = 1.3,
                                        .target_temperature = 1.7};
            multiply(handles[level], &x, &w, &b, &z);
            multiply(handles[level], &target_x, &target_w, &target_b, &y);
            CHECK(onepass_divergence_logits_logits(handles[level], &z, &y, &o, &value, &z, NULL) == ONEPASS_OK, "%s",
                  onepass_last_error());
            multiply_back(handles[level], &z, &x, &w, &dx, &dw, &db);
            same_as(&c, LOGITS_VALUE, &value);
            same_as(&c, LINEAR_LOSS_GRAD_INPUT, &dx);
            same_as(&c, LINEAR_DIVERGENCE_GRAD_WEIGHT, &dw);
            same_as(&c, LINEAR_DIVERGENCE_GRAD_BIAS, &db);
            void *all[] = {x.data, w.data, b.data,     target_x.data, target_w.data, target_b.data,
                           z.data, y.data, value.data, dx.data,       dw.data,       db.data};
            for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
                free(all[k]);
        }
}

/* ---- a small problem in double ----------------------------------------------------------------------------------- */

enum { ROWS = 5, DEPTH = 3, TARGET_DEPTH = 4, COLUMNS = 7 };

typedef struct small {
    double input[ROWS * DEPTH], weight[COLUMNS * DEPTH], bias[COLUMNS];
    double target_input[ROWS * TARGET_DEPTH], target_weight[COLUMNS * TARGET_DEPTH], target_bias[COLUMNS];
    int64_t labels[ROWS];
    int has_labels;
    double value, grad_input[ROWS * DEPTH], grad_weight[COLUMNS * DEPTH], grad_bias[COLUMNS];
    double target_lse[ROWS], target_entropy[ROWS];
    onepass_logits_options options;
} small;

static onepass_status run_small(small *s, onepass_handle *handle)
{
    int64_t of_input[] = {ROWS, DEPTH}, of_weight[] = {COLUMNS, DEPTH};
    int64_t of_target[] = {ROWS, TARGET_DEPTH}, of_target_weight[] = {COLUMNS, TARGET_DEPTH};
    onepass_tensor x = tensor_of(s->input, case_f64, 2, of_input), w = tensor_of(s->weight, case_f64, 2, of_weight);
    onepass_tensor b = tensor_of(s->bias, case_f64, 1, of_weight);
    onepass_tensor y = tensor_of(s->target_input, case_f64, 2, of_target);
    onepass_tensor v = tensor_of(s->target_weight, case_f64, 2, of_target_weight);
    onepass_tensor c = tensor_of(s->target_bias, case_f64, 1, of_weight);
    onepass_tensor l = tensor_of(s->labels, case_i64, 1, of_input);
    onepass_tensor value = tensor_of(&s->value, case_f64, 0, NULL);
    onepass_tensor dx = tensor_of(s->grad_input, case_f64, 2, of_input);
    onepass_tensor dw = tensor_of(s->grad_weight, case_f64, 2, of_weight);
    onepass_tensor db = tensor_of(s->grad_bias, case_f64, 1, of_weight);
    onepass_tensor lse = tensor_of(s->target_lse, case_f64, 1, of_input);
    onepass_tensor entropy = tensor_of(s->target_entropy, case_f64, 1, of_input);
    onepass_logits_options o = s->options;
    size_t bytes = 0;
    o.labels = s->has_labels ? &l : NULL;
    o.target_lse = &lse;
    o.target_entropy = &entropy;
    onepass_status status = onepass_linear_divergence_workspace_size(handle, &x, &w, &y, &v, &o, &dw, &bytes);
    if (status != ONEPASS_OK)
        return status;
    o.workspace = malloc(bytes);
    o.workspace_size = bytes;
    status = onepass_linear_divergence(handle, &x, &w, &b, &y, &v, &c, &o, &value, &dx, &dw, &db);
    free(o.workspace);
    return status;
}

static void draw(double *to, int count, double most, test_random *random)
{
    for (int i = 0; i < count; i++)
        to[i] = test_random_between(random, -most, most);
}

static void draw_small(small *s, test_random *random)
{
    *s = (small){.options = {.size = sizeof s->options, .reduction = ONEPASS_VALID}, .has_labels = 1};
    draw(s->input, ROWS * DEPTH, 2, random);
    draw(s->weight, COLUMNS * DEPTH, 2, random);
    draw(s->bias, COLUMNS, 1, random);
    draw(s->target_input, ROWS * TARGET_DEPTH, 2, random);
    draw(s->target_weight, COLUMNS * TARGET_DEPTH, 1, random);
    draw(s->target_bias, COLUMNS, 1, random);
    for (int i = 0; i < ROWS; i++)
        s->labels[i] = i == 2 ? -100 : test_random_below(random, COLUMNS);
}

static void differences(small *s, double *at, const double *gradient, int count, const char *name, int level)
{
    static small moved;
    for (int k = 0; k < count; k++) {
        /* Truncation is below step^2 = 1e-10 of third derivatives below 1000, rounding 1e-15 / step. */
        const double step = 1e-5, before = at[k];
        double values[2];
        for (int side = 0; side < 2; side++) {
            at[k] = before + (side ? step : -step);
            moved = *s;
            CHECK(run_small(&moved, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
            values[side] = moved.value;
        }
        at[k] = before;
        double slope = (values[1] - values[0]) / (2 * step);
        CHECK(test_close(gradient[k], slope, 1e-7L), "%s[%d] is %.12g, differences give %.12g", name, k, gradient[k],
              slope);
    }
}

/* All of them but total variation, whose derivative jumps where S = T. */
static void test_finite_differences(test_random *random)
{
    static small s;
    for (int i = 0; i < 2 * (DIVERGENCES - 1); i++)
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            draw_small(&s, random);
            s.options.divergence = divergences[i / 2].divergence;
            s.options.mixture = divergences[i / 2].mixture;
            s.options.divergence_weight = 0.5;
            s.has_labels = i % 2;
            if (s.has_labels) {
                s.options.label_weight = 0.7;
                s.options.label_smoothing = 0.2;
                s.options.label_temperature = 1.2;
                s.options.softcap = 4;
                s.options.target_softcap = 3;
                s.options.temperature = 1.5;
                s.options.target_temperature = 0.8;
                s.options.columns = COLUMNS - 1;
                for (int row = 0; row < ROWS; row++)
                    s.labels[row] = s.labels[row] == COLUMNS - 1 ? 0 : s.labels[row];
            }
            test_context("level %s, divergence %d, differences", onep_level_name((onep_level)level), i / 2);
            CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
            differences(&s, s.input, s.grad_input, ROWS * DEPTH, "grad_input", level);
            differences(&s, s.weight, s.grad_weight, COLUMNS * DEPTH, "grad_weight", level);
            differences(&s, s.bias, s.grad_bias, COLUMNS, "grad_bias", level);
            CHECK(!s.has_labels ||
                      (all_are(s.grad_weight + (COLUMNS - 1) * DEPTH, DEPTH, 0) && s.grad_bias[COLUMNS - 1] == 0),
                  "a column beyond the last has a gradient");
        }
}

/* A teacher that is the student, with a feature of 0 more: the logits have the same bits, and every divergence is 0. */
static void test_equal_sides(test_random *random, int level)
{
    static small s;
    for (int i = 0; i < DIVERGENCES; i++) {
        draw_small(&s, random);
        for (int row = 0; row < ROWS; row++)
            for (int k = 0; k < TARGET_DEPTH; k++)
                s.target_input[row * TARGET_DEPTH + k] = k < DEPTH ? s.input[row * DEPTH + k] : 0;
        for (int j = 0; j < COLUMNS; j++)
            for (int k = 0; k < TARGET_DEPTH; k++)
                s.target_weight[j * TARGET_DEPTH + k] = k < DEPTH ? s.weight[j * DEPTH + k] : 1;
        memcpy(s.target_bias, s.bias, sizeof s.bias);
        s.options.divergence = divergences[i].divergence;
        s.options.mixture = divergences[i].mixture;
        CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(s.value == 0, "divergence %d of equal sides is %g", i, s.value);
        for (int k = 0; k < ROWS * DEPTH; k++)
            CHECK(fabs(s.grad_input[k]) < 1e-14, "grad_input[%d] is %g", k, s.grad_input[k]);
    }
}

/* The KL of two columns is known by heart: logits h and 0 on one side, 0 and 0 on the other. */
static void test_known_row(int level)
{
    static small s;
    test_random random = test_random_stream(3);
    for (double height = -6; height <= 6; height += 1.5) {
        draw_small(&s, &random);
        memset(s.weight, 0, sizeof s.weight);
        memset(s.bias, 0, sizeof s.bias);
        memset(s.target_weight, 0, sizeof s.target_weight);
        memset(s.target_bias, 0, sizeof s.target_bias);
        for (int row = 0; row < ROWS; row++)
            s.target_input[row * TARGET_DEPTH + 3] = height;
        s.target_weight[3] = 1; /* of column 0 */
        s.options.columns = 2;
        s.has_labels = 0;
        CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
        double t = 1 / (1 + exp(-height)), kl = t * log(2 * t) + (1 - t) * log(2 * (1 - t));
        CHECK(test_close(s.value, kl, 1e-14L), "%.17g, not %.17g", s.value, kl);
        CHECK(test_close(s.target_lse[1], height + log1p(exp(-height)), 1e-14L), "target_lse %.17g", s.target_lse[1]);
        CHECK(test_close(s.grad_bias[0], 0.5 - t, 1e-15L) && s.grad_bias[2] == 0, "grad_bias %.17g, %g", s.grad_bias[0],
              s.grad_bias[2]);
    }
}

/* Row 2 is ignored: NaN on either side of it reaches nothing. -inf in the student's bias where the teacher has mass
 * makes the KL infinite, in the teacher's alone it does not. */
static void test_special_rows(test_random *random, int level)
{
    static small plain, s;
    draw_small(&plain, random);
    CHECK(run_small(&plain, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    s = plain;
    for (int k = 0; k < DEPTH; k++)
        s.input[2 * DEPTH + k] = s.target_input[2 * TARGET_DEPTH + k] = NAN;
    CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(s.value == plain.value && memcmp(s.grad_input, plain.grad_input, sizeof s.grad_input) == 0 &&
              memcmp(s.grad_weight, plain.grad_weight, sizeof s.grad_weight) == 0,
          "what is ignored was read");
    CHECK(all_are(s.grad_input + 2 * DEPTH, DEPTH, 0) && s.target_lse[2] == 0, "an ignored row has results");
    s.target_bias[4] = -INFINITY;
    CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(isfinite(s.value) && isfinite(s.grad_weight[4 * DEPTH]), "a column without the teacher: %g", s.value);
    s.target_bias[4] = 0;
    s.bias[4] = -INFINITY;
    CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(isinf(s.value) && s.value > 0, "a column without the student: %g", s.value);
    s.target_input[3 * TARGET_DEPTH] = NAN;
    CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(isnan(s.value) && isnan(s.grad_input[3 * DEPTH]) && isfinite(s.grad_input[0]), "NaN in the teacher: %g",
          s.value);
}

/* ---- the workspace ----------------------------------------------------------------------------------------------- */

static size_t bytes_of(onepass_handle *handle, int64_t rows, int64_t depth, int64_t target_depth, int64_t columns,
                       int64_t chunk_bytes)
{
    int64_t of_input[] = {rows, depth}, of_weight[] = {columns, depth};
    int64_t of_target[] = {rows, target_depth}, of_target_weight[] = {columns, target_depth};
    onepass_tensor x = tensor_of(&rows, case_bf16, 2, of_input), w = tensor_of(&rows, case_bf16, 2, of_weight);
    onepass_tensor y = tensor_of(&rows, case_bf16, 2, of_target);
    onepass_tensor v = tensor_of(&rows, case_bf16, 2, of_target_weight);
    onepass_logits_options o = {.size = sizeof o, .chunk_bytes = chunk_bytes};
    size_t bytes = 0;
    CHECK(onepass_linear_divergence_workspace_size(handle, &x, &w, &y, &v, &o, NULL, &bytes) == ONEPASS_OK, "%s",
          onepass_last_error());
    return bytes;
}

/* A chunk of the size that was asked for, for both sides, whatever the number of rows; a tile of rows at least; and
 * room for the deeper side's hidden states alone. */
static void test_workspace(int level)
{
    enum { DEEP = 4096, VOCABULARY = 128256, MIB = 1 << 20 };
    onepass_handle *h = test_handle((onep_level)level, 1);
    test_context("level %s, workspace", onep_level_name((onep_level)level));
    size_t half = bytes_of(h, 8192, DEEP, DEEP, VOCABULARY, 0);
    CHECK(half > 500u * MIB && half < 520u * MIB, "%zu bytes for 512 MiB", half);
    CHECK(bytes_of(h, 1 << 20, DEEP, DEEP, VOCABULARY, 0) == half, "more for more rows");
    CHECK(bytes_of(h, 8192, DEEP / 2, DEEP, VOCABULARY, 1) == bytes_of(h, 8192, DEEP, DEEP / 4, VOCABULARY, 1),
          "room for the shallower side");
    size_t tile = bytes_of(h, 8192, DEEP, DEEP, VOCABULARY, 1), rows = 264;
    CHECK(tile > 2 * rows * VOCABULARY * 4 && tile < rows * (2 * VOCABULARY + DEEP) * 4 + 8u * MIB,
          "%zu bytes for a tile", tile);
    onepass_destroy(h);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void test_refusals(void)
{
    onepass_handle *handle = handles[ONEP_REF];
    double x[6] = {0}, w[12] = {0}, y[4] = {0}, v[8] = {0}, value = 5;
    int64_t labels[2] = {0, 1}, of_x[] = {2, 3}, of_w[] = {4, 3}, of_y[] = {2, 2}, of_v[] = {4, 2}, of_bad[] = {3, 2};
    onepass_tensor input = tensor_of(x, case_f64, 2, of_x), weight = tensor_of(w, case_f64, 2, of_w);
    onepass_tensor target = tensor_of(y, case_f64, 2, of_y), target_weight = tensor_of(v, case_f64, 2, of_v);
    onepass_tensor wrong = tensor_of(v, case_f64, 2, of_bad), label = tensor_of(labels, case_i64, 1, of_x);
    onepass_tensor to = tensor_of(&value, case_f64, 0, NULL), short_bias = tensor_of(x, case_f64, 1, of_x);
    char workspace[65536];
    onepass_logits_options good = {.size = sizeof good, .workspace = workspace, .workspace_size = sizeof workspace};
    test_context("refusals");
    CHECK(onepass_linear_divergence(handle, &input, &weight, NULL, &target, &target_weight, NULL, &good, &to, NULL,
                                    NULL, NULL) == ONEPASS_OK &&
              value == 0,
          "%g: %s", value, onepass_last_error());
    const struct {
        const char *field;
        onepass_logits_options options;
    } bad[] = {
        {"options.chunk_bytes", {.chunk_bytes = -1}},
        {"options.mixture", {.divergence = ONEPASS_JS}},
        {"options.mixture", {.divergence = ONEPASS_JS, .mixture = 1}},
        {"options.mixture", {.mixture = 0.5}},
        {"options.divergence", {.divergence = (onepass_divergence)6}},
        {"options.label_weight", {.label_weight = 1}},
        {"options.log_prob", {.log_prob = &input}},
        {"options.outside", {.outside = ONEPASS_OUTSIDE_ZERO}},
        {"options.reduction", {.reduction = ONEPASS_NONE}},
        {"options.target_temperature", {.target_temperature = -1}},
        {"options.columns", {.columns = 5}},
        {"options.label_smoothing", {.labels = &label, .label_smoothing = 2}},
    };
    value = 5;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        onepass_logits_options o = bad[i].options;
        o.size = sizeof o;
        o.workspace = workspace;
        o.workspace_size = sizeof workspace;
        onepass_status status = onepass_linear_divergence(handle, &input, &weight, NULL, &target, &target_weight, NULL,
                                                          &o, &to, NULL, NULL, NULL);
        CHECK(status != ONEPASS_OK && value == 5 && strstr(onepass_last_error(), bad[i].field), "%s: %s", bad[i].field,
              onepass_last_error());
    }
    onepass_logits_options tight = good;
    tight.workspace_size = 16;
    const struct {
        const char *word;
        const onepass_tensor *weight, *target, *target_weight, *target_bias, *value;
        const onepass_logits_options *options;
    } calls[] = {
        {"weight: shape", &weight, &target, &wrong, NULL, &to, &good},
        {"target_weight", &weight, &target, NULL, NULL, &to, &good},
        {"target_input", &weight, NULL, &target_weight, NULL, &to, &good},
        {"target_input", &weight, &wrong, &target_weight, NULL, &to, &good},
        {"target_bias", &weight, &target, &target_weight, &short_bias, &to, &good},
        {"weight", NULL, &target, &target_weight, NULL, &to, &good},
        {"all NULL", &weight, &target, &target_weight, NULL, NULL, &good},
        {"options.workspace", &weight, &target, &target_weight, NULL, &to, &tight},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        onepass_status status =
            onepass_linear_divergence(handle, &input, calls[i].weight, NULL, calls[i].target, calls[i].target_weight,
                                      calls[i].target_bias, calls[i].options, calls[i].value, NULL, NULL, NULL);
        CHECK(status == (calls[i].options == &tight ? ONEPASS_WORKSPACE : ONEPASS_INVALID_ARGUMENT) && value == 5 &&
                  strstr(onepass_last_error(), calls[i].word),
              "%s: %s", calls[i].word, onepass_last_error());
    }
    size_t bytes;
    CHECK(onepass_linear_divergence_workspace_size(handle, &input, &weight, &target, NULL, NULL, NULL, &bytes) ==
                  ONEPASS_INVALID_ARGUMENT &&
              onepass_linear_divergence_workspace_size(handle, &input, &weight, &target, &target_weight, NULL, NULL,
                                                       NULL) == ONEPASS_INVALID_ARGUMENT,
          "a size of nothing");
}

int main(void)
{
    test_begin("test_linear_divergence");
    test_print_levels();
    test_random random = test_random_stream(0);
    open_levels();
    test_refusals();
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        test_context("level %s, special rows", onep_level_name((onep_level)level));
        test_equal_sides(&random, level);
        test_known_row(level);
        test_special_rows(&random, level);
        if (level != ONEP_REF)
            test_workspace(level);
    }
    test_finite_differences(&random);
    test_composition(&random);
    check_options(NAME, &random);
    check_sizes(NAME, &random);
    check_layouts(NAME, &random);
    check_chunks(NAME, &random);
    close_levels("test_linear_divergence");
    return test_end();
}
