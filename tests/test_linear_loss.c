/*
 * Cross-entropy from hidden states: every level against the exact results of cases/ with every option, reduction, type
 * and layout; the bits of linear, cross-entropy and linear_backward one after the other; the same bits of everything
 * but grad_weight from any number of chunks, and of everything from any number of threads and from calls for one result
 * alone; gradients against finite differences; rows that take no part, -inf, no mass, small losses, made gradients;
 * what the workspace costs; and what is refused.
 */
#include <stdio.h>

#include "entry_points.h"
#include "linear_cases.h"

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* Labels that are columns, and numbers also in rows that were to be ignored. */
static void count_every_row(op_case *c, test_random *random)
{
    for (int64_t row = 0; row < case_rows(c); row++)
        case_put(c, LOGITS_LABELS, row, (double)test_random_below(random, case_extent(c, 'C')));
    for (int64_t k = 0; k < c->argument[LINEAR_LOSS_INPUT].count; k++)
        case_put(c, LINEAR_LOSS_INPUT, k, test_random_between(random, -2, 2));
    case_remember(c);
}

/* So many rows that the last tile, and with it the last chunk, has one: a product of one row has bits of its own, which
 * must not be those of this row. */
static void test_last_row(test_random *random)
{
    enum { ALONE = 21 * 264 + 1 };
    static op_case whole, cut;
    for (int level = 0; level < ONEP_LEVELS; level++) {
        op_case *both[] = {&whole, &cut};
        uint64_t seed = test_random_bits(random);
        for (int i = 0; i < 2 && handles[level]; i++) {
            test_random numbers = case_random_stream(seed, 3);
            begin_case(both[i], "linear_cross_entropy", case_f32, ALONE, 19, 5, LINEAR_LOSS_ORDINARY, 0, seed);
            for (int a = 0; a < whole.arguments; a++)
                both[i]->argument[a].given = both[i]->argument[a].info->is_required || a == LOGITS_LSE ||
                                             a == LOGITS_VALUE || a == LINEAR_LOSS_GRAD_INPUT;
            both[i]->options[LOGITS_REDUCTION] = ONEPASS_VALID;
            both[i]->options[LINEAR_LOSS_CHUNK_BYTES] = i;
            case_settle(both[i]);
            CHECK(case_make(both[i]), "no memory");
            count_every_row(both[i], &numbers);
            test_context("level %s, a last row alone", onep_level_name((onep_level)level));
            call_well(both[i], handles[level], 0x55);
        }
        for (int a = 0; a < whole.arguments && handles[level]; a++)
            if (case_is_written(&whole, a))
                same_bits(&whole, &cut, a);
    }
}

/* linear, cross-entropy and linear_backward in the type that is computed in. */
static void test_composition(test_random *random)
{
    static op_case c;
    for (int i = 0; i < 8; i++)
        for (int level = ONEP_SCALAR; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            /* up to 4 rows are multiplied in another way where operands have the type that is computed in */
            int64_t rows = i < 4 ? (type_at(i).bits < 32 ? 5 : 1) + test_random_below(random, 60) : 300;
            int64_t depth = 1 + test_random_below(random, 40);
            int64_t columns = 1 + test_random_below(random, 80);
            onepass_dtype type = type_at(i), computed = case_computed(type);
            begin_case(&c, "linear_cross_entropy", type, rows, depth, columns, LINEAR_LOSS_ORDINARY, 0,
                       test_random_bits(random));
            for (int a = 0; a < c.arguments; a++)
                c.argument[a].given = c.argument[a].info->is_required || a == LINEAR_LOSS_BIAS || a == LOGITS_VALUE ||
                                      a == LINEAR_LOSS_GRAD_INPUT || a == LINEAR_LOSS_GRAD_WEIGHT ||
                                      a == LINEAR_LOSS_GRAD_BIAS;
            c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
            c.options[LOGITS_TEMPERATURE] = 1.3;
            c.options[LOGITS_Z_LOSS] = 1e-3;
            case_settle(&c);
            CHECK(case_make(&c), "no memory");
            count_every_row(&c, random);
            test_context("level %s, %s, %" PRId64 " x %" PRId64 " x %" PRId64, onep_level_name((onep_level)level),
                         case_type_name(type), rows, depth, columns);
            call_well(&c, handles[level], 0x33);

            int64_t of_logits[] = {rows, columns}, of_input[] = {rows, depth}, of_weight[] = {columns, depth};
            onepass_tensor x = copy_of(&c, LINEAR_LOSS_INPUT, computed), w = copy_of(&c, LINEAR_LOSS_WEIGHT, computed);
            onepass_tensor b = copy_of(&c, LINEAR_LOSS_BIAS, computed), z = room_for(computed, 2, of_logits);
            /* these two are made in double, and rounded once */
            onepass_tensor value = room_for(case_f64, 1, of_logits), db = room_for(case_f64, 1, of_weight);
            onepass_tensor dx = room_for(computed, 2, of_input);
            onepass_tensor dw = room_for(computed, 2, of_weight);
            onepass_logits_options o = {
                .size = sizeof o, .reduction = ONEPASS_ROWS, .temperature = 1.3, .z_loss = 1e-3};
            multiply(handles[level], &x, &w, &b, &z);
            CHECK(onepass_cross_entropy_logits_labels(handles[level], &z, &c.argument[LOGITS_LABELS].tensor, &o, &value,
                                                      &z) == ONEPASS_OK,
                  "%s", onepass_last_error());
            multiply_back(handles[level], &z, &x, &w, &dx, &dw, &db);
            same_as(&c, LOGITS_VALUE, &value);
            same_as(&c, LINEAR_LOSS_GRAD_INPUT, &dx);
            same_as(&c, LINEAR_LOSS_GRAD_WEIGHT, &dw);
            same_as(&c, LINEAR_LOSS_GRAD_BIAS, &db);
            void *all[] = {x.data, w.data, b.data, z.data, value.data, dx.data, dw.data, db.data};
            for (int k = 0; k < 8; k++)
                free(all[k]);
        }
}

/* ---- a small problem in double ------------------------------------------------------------------------------------
 */

enum { ROWS = 5, DEPTH = 3, COLUMNS = 7 };

typedef struct small {
    double input[ROWS * DEPTH], weight[COLUMNS * DEPTH], bias[COLUMNS];
    int64_t labels[ROWS];
    double value, grad_input[ROWS * DEPTH], grad_weight[COLUMNS * DEPTH], grad_bias[COLUMNS];
    onepass_logits_options options;
} small;

static onepass_status run_small(small *s, onepass_handle *handle)
{
    int64_t of_input[] = {ROWS, DEPTH}, of_weight[] = {COLUMNS, DEPTH};
    onepass_tensor x = tensor_of(s->input, case_f64, 2, of_input), w = tensor_of(s->weight, case_f64, 2, of_weight);
    onepass_tensor b = tensor_of(s->bias, case_f64, 1, of_weight), l = tensor_of(s->labels, case_i64, 1, of_input);
    onepass_tensor v = tensor_of(&s->value, case_f64, 0, NULL), dx = tensor_of(s->grad_input, case_f64, 2, of_input);
    onepass_tensor dw = tensor_of(s->grad_weight, case_f64, 2, of_weight);
    onepass_tensor db = tensor_of(s->grad_bias, case_f64, 1, of_weight);
    size_t bytes = 0;
    onepass_status status = onepass_linear_cross_entropy_workspace_size(handle, &x, &w, &s->options, &dw, &bytes);
    if (status != ONEPASS_OK)
        return status;
    s->options.workspace = malloc(bytes);
    s->options.workspace_size = bytes;
    status = onepass_linear_cross_entropy(handle, &x, &w, &b, &l, &s->options, &v, &dx, &dw, &db);
    free(s->options.workspace);
    s->options.workspace = NULL;
    s->options.workspace_size = 0;
    return status;
}

static void draw_small(small *s, test_random *random)
{
    *s = (small){.options = {.size = sizeof s->options, .reduction = ONEPASS_VALID}};
    for (int i = 0; i < ROWS * DEPTH; i++)
        s->input[i] = test_random_between(random, -2, 2);
    for (int i = 0; i < COLUMNS * DEPTH; i++)
        s->weight[i] = test_random_between(random, -2, 2);
    for (int i = 0; i < COLUMNS; i++)
        s->bias[i] = test_random_between(random, -1, 1);
    for (int i = 0; i < ROWS; i++)
        s->labels[i] = i == 2 ? -100 : test_random_below(random, COLUMNS);
}

static void differences(small *s, double *at, const double *gradient, int count, const char *name, int level)
{
    static small moved;
    for (int k = 0; k < count; k++) {
        /* Truncation is below step^2 = 1e-10 of third derivatives below 100, rounding 1e-15 / step. */
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
        CHECK(test_close(gradient[k], slope, 1e-8L), "%s[%d] is %.12g, differences give %.12g", name, k, gradient[k],
              slope);
    }
}

static void test_finite_differences(test_random *random)
{
    static small s;
    for (int i = 0; i < 4; i++)
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            draw_small(&s, random);
            s.options.label_smoothing = i % 2 ? 0.2 : 0;
            s.options.softcap = i / 2 ? 4 : 0;
            s.options.z_loss = i % 2 ? 0.1 : 0;
            s.options.temperature = i / 2 ? 1.5 : 0;
            test_context("level %s, differences %d", onep_level_name((onep_level)level), i);
            CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
            differences(&s, s.input, s.grad_input, ROWS * DEPTH, "grad_input", level);
            differences(&s, s.weight, s.grad_weight, COLUMNS * DEPTH, "grad_weight", level);
            differences(&s, s.bias, s.grad_bias, COLUMNS, "grad_bias", level);
        }
}

/* No row takes part, though hidden states and weights are anything: gradients of 0; the mean of nothing is NaN, or 0 by
 * finite semantics. */
static void test_nothing_counts(test_random *random, int level)
{
    static small s;
    static const struct {
        onepass_reduction reduction;
        onepass_semantics semantics;
        double value;
    } cases[] = {{ONEPASS_VALID, ONEPASS_STRICT, (double)NAN},
                 {ONEPASS_VALID, ONEPASS_FINITE, 0},
                 {ONEPASS_SUM, ONEPASS_STRICT, 0},
                 {ONEPASS_MEAN, ONEPASS_STRICT, 0}};
    for (int i = 0; i < 4; i++) {
        draw_small(&s, random);
        s.options.reduction = cases[i].reduction;
        s.options.semantics = cases[i].semantics;
        for (int k = 0; k < ROWS; k++)
            s.labels[k] = -100;
        s.input[1] = NAN;
        s.weight[4] = INFINITY;
        CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(all_are(&s.value, 1, cases[i].value), "the value is %g, not %g", s.value, cases[i].value);
        CHECK(all_are(s.grad_input, ROWS * DEPTH, 0) && all_are(s.grad_weight, COLUMNS * DEPTH, 0) &&
                  all_are(s.grad_bias, COLUMNS, 0),
              "a gradient is not 0");
    }
}

/* Row 2 is ignored: NaN there reaches nothing. A label that is no column makes its own row NaN, and the sums. */
static void test_special_rows(test_random *random, int level)
{
    static small plain, s;
    draw_small(&plain, random);
    CHECK(run_small(&plain, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    s = plain;
    for (int k = 0; k < DEPTH; k++)
        s.input[2 * DEPTH + k] = NAN;
    CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(s.value == plain.value && memcmp(s.grad_input, plain.grad_input, sizeof s.grad_input) == 0 &&
              memcmp(s.grad_weight, plain.grad_weight, sizeof s.grad_weight) == 0,
          "what is ignored was read");
    CHECK(all_are(s.grad_input + 2 * DEPTH, DEPTH, 0), "the gradient of a row that is ignored is not 0");

    s.labels[3] = COLUMNS;
    CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(isnan(s.value) && all_are(s.grad_input + 3 * DEPTH, DEPTH, (double)NAN) &&
              all_are(s.grad_weight, COLUMNS * DEPTH, (double)NAN) && isfinite(s.grad_input[0]),
          "a label that is no column: value %g", s.value);
}

/* -inf in the bias takes a column out: what is left is the loss without it, and its gradients are 0. In all columns no
 * row has mass. */
static void test_masked_columns(test_random *random, int level)
{
    static small s;
    draw_small(&s, random);
    s.bias[0] = s.bias[5] = -INFINITY;
    for (int i = 0; i < ROWS; i++)
        s.labels[i] = 1 + test_random_below(random, 4);
    CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    double sum = 0;
    for (int i = 0; i < ROWS; i++) {
        double z[COLUMNS], mass = 0;
        for (int j = 0; j < COLUMNS; j++) {
            z[j] = s.bias[j];
            for (int k = 0; k < DEPTH; k++)
                z[j] += s.input[i * DEPTH + k] * s.weight[j * DEPTH + k];
            mass += exp(z[j]);
        }
        sum += log(mass) - z[s.labels[i]];
    }
    CHECK(test_close(s.value, sum / ROWS, 1e-13L), "%.17g, not %.17g", s.value, sum / ROWS);
    CHECK(all_are(s.grad_weight, DEPTH, 0) && all_are(s.grad_weight + 5 * DEPTH, DEPTH, 0) && s.grad_bias[0] == 0 &&
              s.grad_bias[5] == 0 && isfinite(s.grad_input[0]) && isfinite(s.grad_weight[DEPTH]),
          "gradients of columns that are out");
    for (int j = 0; j < COLUMNS; j++)
        s.bias[j] = -INFINITY;
    for (int finite = 0; finite < 2; finite++) {
        s.options.semantics = finite ? ONEPASS_FINITE : ONEPASS_STRICT;
        double x = finite ? 0 : (double)NAN;
        CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(all_are(&s.value, 1, x) && all_are(s.grad_input, ROWS * DEPTH, x) &&
                  all_are(s.grad_weight, COLUMNS * DEPTH, x),
              "without mass: value %g", s.value);
    }
}

/* One logit is h, the others are 0: NLL = log1p(6 exp(-h)), to its last digits. */
static void test_small_losses(int level)
{
    static small s;
    test_random random = test_random_stream(7);
    for (double h = 5; h <= 30; h += 5) {
        draw_small(&s, &random);
        memset(s.input, 0, sizeof s.input);
        memset(s.weight, 0, sizeof s.weight);
        memset(s.bias, 0, sizeof s.bias);
        for (int i = 0; i < ROWS; i++) {
            s.input[i * DEPTH] = h;
            s.labels[i] = 3;
        }
        s.weight[3 * DEPTH] = 1;
        CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
        double nll = log1p(6 * exp(-h)), slope = -6 * exp(-h) / (1 + 6 * exp(-h)) / ROWS;
        CHECK(test_close(s.value, nll, 1e-14L * (long double)nll), "%.17g, not %.17g", s.value, nll);
        CHECK(test_close(s.grad_input[0], slope, 1e-14L * fabsl((long double)slope)), "%.17g, not %.17g",
              s.grad_input[0], slope);
    }
}

/* Gradients that were made for the upstream gradient that is given stay as they are; others are made again. */
static void test_made_for(test_random *random, int level)
{
    static small s;
    int64_t of_input[] = {ROWS, DEPTH}, of_weight[] = {COLUMNS, DEPTH};
    double one = 1, made_for = 1;
    draw_small(&s, random);
    CHECK(run_small(&s, handles[level]) == ONEPASS_OK, "%s", onepass_last_error());
    onepass_tensor x = tensor_of(s.input, case_f64, 2, of_input), w = tensor_of(s.weight, case_f64, 2, of_weight);
    onepass_tensor b = tensor_of(s.bias, case_f64, 1, of_weight), l = tensor_of(s.labels, case_i64, 1, of_input);
    double again[COLUMNS * DEPTH];
    memset(again, 0x7f, sizeof again);
    onepass_tensor dw = tensor_of(again, case_f64, 2, of_weight);
    onepass_tensor upstream = tensor_of(&one, case_f64, 0, NULL), made = tensor_of(&made_for, case_f64, 0, NULL);
    onepass_logits_options o = s.options;
    size_t bytes;
    CHECK(onepass_linear_cross_entropy_workspace_size(handles[level], &x, &w, &o, &dw, &bytes) == ONEPASS_OK, "%s",
          onepass_last_error());
    o.workspace = malloc(bytes);
    o.workspace_size = bytes;
    o.grad_value = &upstream;
    o.grad_made_for = &made;
    double before = again[0];
    CHECK(onepass_linear_cross_entropy(handles[level], &x, &w, &b, &l, &o, NULL, NULL, &dw, NULL) == ONEPASS_OK, "%s",
          onepass_last_error());
    CHECK(memcmp(&again[0], &before, sizeof before) == 0, "written, though it was made");
    one = 2;
    CHECK(onepass_linear_cross_entropy(handles[level], &x, &w, &b, &l, &o, NULL, NULL, &dw, NULL) == ONEPASS_OK, "%s",
          onepass_last_error());
    for (int k = 0; k < COLUMNS * DEPTH; k++)
        CHECK(again[k] == 2 * s.grad_weight[k], "%.17g, not twice %.17g", again[k], s.grad_weight[k]);
    free(o.workspace);
}

/* ---- the workspace ----------------------------------------------------------------------------------------------- */

static size_t bytes_of(onepass_handle *handle, int64_t rows, int64_t depth, int64_t columns, onepass_dtype type,
                       int64_t chunk_bytes, const onepass_dtype *grad_weight)
{
    int64_t of_input[] = {rows, depth}, of_weight[] = {columns, depth};
    onepass_tensor x = tensor_of(&rows, type, 2, of_input), w = tensor_of(&rows, type, 2, of_weight);
    onepass_tensor dw = tensor_of(&rows, grad_weight ? *grad_weight : type, 2, of_weight);
    onepass_logits_options o = {.size = sizeof o, .chunk_bytes = chunk_bytes};
    size_t bytes = 0;
    CHECK(onepass_linear_cross_entropy_workspace_size(handle, &x, &w, &o, grad_weight ? &dw : NULL, &bytes) ==
              ONEPASS_OK,
          "%s", onepass_last_error());
    return bytes;
}

/* A chunk of the size that was asked for, whatever the number of rows; a tile of rows at least; a sum of grad_weight
 * only where that is narrower than sums are. */
static void test_workspace(int level)
{
    enum { DEEP = 4096, VOCABULARY = 128256, MIB = 1 << 20 };
    const onepass_dtype f32 = case_f32, bf16 = case_bf16;
    onepass_handle *h = test_handle((onep_level)level, 1);
    test_context("level %s, workspace", onep_level_name((onep_level)level));
    size_t half = bytes_of(h, 8192, DEEP, VOCABULARY, bf16, 0, NULL);
    CHECK(half > 500u * MIB && half < 520u * MIB, "%zu bytes for 512 MiB", half);
    CHECK(bytes_of(h, 1 << 20, DEEP, VOCABULARY, bf16, 0, &f32) == half, "more for more rows, or for sums in place");
    CHECK(bytes_of(h, 8192, DEEP, VOCABULARY, bf16, 0, &bf16) == half + (size_t)VOCABULARY * DEEP * 4,
          "sums of grad_weight");
    CHECK(bytes_of(h, 300, DEEP, VOCABULARY, bf16, 0, &bf16) == bytes_of(h, 300, DEEP, VOCABULARY, bf16, 0, NULL),
          "sums of grad_weight for one chunk");
    size_t tile = bytes_of(h, 8192, DEEP, VOCABULARY, bf16, 1, NULL), rows = 264;
    CHECK(tile > rows * VOCABULARY * 4 && tile < rows * (VOCABULARY + DEEP) * 4 + 8u * MIB, "%zu bytes for a tile",
          tile);
    onepass_destroy(h);
}

/* ---- progress and refusals --------------------------------------------------------------------------------------- */

typedef struct heard {
    int calls;
    double last;
} heard;

static void hear(void *context, double done)
{
    heard *h = context;
    CHECK(done >= h->last && done <= 1, "%g after %g", done, h->last);
    h->calls++;
    h->last = done;
}

static void test_progress(test_random *random)
{
    static op_case c;
    heard h = {0, 0};
    onepass_config config = {.size = sizeof config, .threads = 1, .progress = hear, .progress_context = &h};
    onepass_handle *handle = NULL;
    CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
    begin_case(&c, "linear_cross_entropy", case_f32, 1100, 5, 9, 0, 0, test_random_bits(random));
    c.options[LINEAR_LOSS_CHUNK_BYTES] = 1;
    case_settle(&c);
    CHECK(case_make(&c), "no memory");
    test_context("progress");
    call_well(&c, handle, 0x44);
    CHECK(h.calls >= 3 && h.last == 1, "%d calls, the last with %g", h.calls, h.last);
    onepass_destroy(handle);
}

static void test_refusals(void)
{
    onepass_handle *handle = handles[ONEP_REF];
    double x[6] = {0}, w[12] = {0}, value = 5;
    int64_t labels[2] = {0, 1}, of_x[] = {2, 3}, of_w[] = {4, 3}, of_bad[] = {3, 4};
    onepass_tensor input = tensor_of(x, case_f64, 2, of_x), weight = tensor_of(w, case_f64, 2, of_w);
    onepass_tensor wrong_weight = tensor_of(w, case_f64, 2, of_bad), label = tensor_of(labels, case_i64, 1, of_x);
    onepass_tensor v = tensor_of(&value, case_f64, 0, NULL), bias = tensor_of(w, case_f64, 1, of_x);
    char workspace[65536];
    onepass_logits_options good = {.size = sizeof good, .workspace = workspace, .workspace_size = sizeof workspace};
    test_context("refusals");
    CHECK(onepass_linear_cross_entropy(handle, &input, &weight, NULL, &label, &good, &v, NULL, NULL, NULL) ==
                  ONEPASS_OK &&
              test_close(value, logl(4.0L), 1e-15L),
          "%g: %s", value, onepass_last_error());
    static const struct {
        const char *field;
        onepass_logits_options options;
    } wrong[] = {
        {"options.chunk_bytes", {.chunk_bytes = -1}},
        {"options.divergence", {.divergence = ONEPASS_JS}},
        {"options.target_temperature", {.target_temperature = 2}},
        {"options.label_temperature", {.label_temperature = 2}},
        {"options.outside", {.outside = ONEPASS_OUTSIDE_ZERO}},
        {"options.reduction", {.reduction = ONEPASS_NONE}},
        {"options.temperature", {.temperature = -1}},
        {"options.columns", {.columns = 5}},
        {"options.divisor", {.divisor = 2}},
        {"options.label_smoothing", {.label_smoothing = 2}},
    };
    value = 5;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        onepass_logits_options bad = wrong[i].options;
        bad.size = sizeof bad;
        bad.workspace = workspace;
        bad.workspace_size = sizeof workspace;
        onepass_status status =
            onepass_linear_cross_entropy(handle, &input, &weight, NULL, &label, &bad, &v, NULL, NULL, NULL);
        CHECK(status != ONEPASS_OK && value == 5 && strstr(onepass_last_error(), wrong[i].field), "%s: %s",
              wrong[i].field, onepass_last_error());
    }
    static const char *const words[] = {"weight", "bias", "labels", "all NULL", "options.workspace", "grad_input"};
    onepass_logits_options tight = good;
    tight.workspace_size = 16;
    onepass_status statuses[] = {
        onepass_linear_cross_entropy(handle, &input, &wrong_weight, NULL, &label, &good, &v, NULL, NULL, NULL),
        onepass_linear_cross_entropy(handle, &input, &weight, &bias, &label, &good, &v, NULL, NULL, NULL),
        onepass_linear_cross_entropy(handle, &input, &weight, NULL, NULL, &good, &v, NULL, NULL, NULL),
        onepass_linear_cross_entropy(handle, &input, &weight, NULL, &label, &good, NULL, NULL, NULL, NULL),
        onepass_linear_cross_entropy(handle, &input, &weight, NULL, &label, &tight, &v, NULL, NULL, NULL),
        onepass_linear_cross_entropy(handle, &input, &weight, NULL, &label, &good, &v, &input, NULL, NULL),
    };
    CHECK(strstr(onepass_last_error(), words[5]), "%s", onepass_last_error());
    for (int i = 0; i < 6; i++)
        CHECK(statuses[i] == (i == 4 ? ONEPASS_WORKSPACE : ONEPASS_INVALID_ARGUMENT) && value == 5, "%s is taken",
              words[i]);
    onepass_logits_options chunked = {.size = sizeof chunked, .chunk_bytes = 1};
    CHECK(onepass_cross_entropy_logits_labels(handle, &input, &label, &chunked, &v, NULL) == ONEPASS_INVALID_ARGUMENT &&
              strstr(onepass_last_error(), "options.chunk_bytes"),
          "%s", onepass_last_error());
    size_t bytes;
    CHECK(onepass_linear_cross_entropy_workspace_size(handle, &input, NULL, NULL, NULL, &bytes) ==
                  ONEPASS_INVALID_ARGUMENT &&
              onepass_linear_cross_entropy_workspace_size(handle, &input, &weight, NULL, NULL, NULL) ==
                  ONEPASS_INVALID_ARGUMENT,
          "a size of nothing");
}

int main(void)
{
    test_begin("test_linear_loss");
    test_print_levels();
    test_random random = test_random_stream(0);
    open_levels();
    test_refusals();
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        test_context("level %s, special rows", onep_level_name((onep_level)level));
        test_nothing_counts(&random, level);
        test_special_rows(&random, level);
        test_masked_columns(&random, level);
        test_small_losses(level);
        test_made_for(&random, level);
        if (level != ONEP_REF)
            test_workspace(level);
    }
    test_progress(&random);
    test_finite_differences(&random);
    test_composition(&random);
    check_options("linear_cross_entropy", &random);
    check_sizes("linear_cross_entropy", &random);
    check_layouts("linear_cross_entropy", &random);
    test_last_row(&random);
    check_chunks("linear_cross_entropy", &random);
    close_levels("test_linear_loss");
    return test_end();
}
