/*
 * Token log-probabilities from hidden states, forward and backward: every level against the exact results of cases/
 * with every option, type and layout; the bits of linear, token_log_probs and linear_backward one after the other; the
 * same bits of everything but grad_weight from any number of chunks, and of everything from any number of threads and
 * from calls for one result alone; gradients against finite differences; rows that take no part; and what is refused.
 */
#include <stdio.h>

#include "entry_points.h"
#include "linear_cases.h"

static const char *const names[] = {"linear_token_log_probs", "linear_token_log_probs_backward"};

static void begin_token(op_case *c, int is_backward, onepass_dtype type, int64_t rows, int64_t depth, int64_t columns,
                        int family, int amount, uint64_t seed)
{
    case_begin(c, names[is_backward]);
    c->leading[0] = rows;
    c->extents['D' - 'A'] = depth;
    c->extents['C' - 'A'] = columns;
    c->extents['K' - 'A'] = (int64_t)(seed % 4);
    c->family = family;
    c->amount = amount;
    c->seed = seed;
    for (int i = 0; i < c->arguments; i++) {
        c->argument[i].given = 1;
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = type;
    }
}

/* ---- against exact results --------------------------------------------------------------------------------------- */

static void test_options(test_random *random)
{
    static op_case c;
    for (int family = 0; family <= LINEAR_LOSS_SPECIAL; family++)
        for (int i = 0; i < 32; i++) {
            begin_token(&c, i % 2, type_at(i / 2), 9, 1 + test_random_below(random, 24),
                        1 + test_random_below(random, 40), family, i / 8 % 2 ? 50 : 0, test_random_bits(random));
            c.options[TOKEN_SEMANTICS] = i / 16;
            c.options[TOKEN_HAS_IGNORE_INDEX] = i / 4 % 2;
            case_settle(&c);
            check_everywhere(&c);
        }
}

/* Extents around vectors, panels and strips, and 0 and 1 of everything. */
static void test_sizes(test_random *random)
{
    static const int64_t extents[] = {0, 1, 2, 5, 12, 13, 31, 33, 64, 65, 130};
    enum { EXTENTS = sizeof extents / sizeof extents[0] };
    static op_case c;
    for (int i = 0; i < 160 / test_one_in(3); i++) {
        begin_token(&c, i % 2, type_at(i / 2), extents[test_random_below(random, EXTENTS)],
                    extents[test_random_below(random, EXTENTS)], extents[test_random_below(random, EXTENTS)],
                    (int)test_random_below(random, LINEAR_LOSS_DATA_KINDS), 50, test_random_bits(random));
        for (int a = 0; a < c.arguments; a++)
            c.argument[a].guard = i / 2 % 2 ? CASE_PAGE_AFTER : CASE_PAGE_BEFORE;
        case_settle(&c);
        check_everywhere(&c);
    }
}

/* Any layout, alignment, rank and mixture of types, and any choice of what is wanted. */
static void test_layouts(test_random *random)
{
    static op_case c;
    for (int i = 0; i < 160 / test_one_in(3); i++) {
        begin_token(&c, i % 2, case_f32, 4, 1 + test_random_below(random, 40), 1 + test_random_below(random, 70),
                    (int)test_random_below(random, LINEAR_LOSS_SPECIAL + 1), 50, test_random_bits(random));
        c.leading_rank = i / 2 % 4;
        for (int d = 0; d < c.leading_rank; d++)
            c.leading[d] = 1 + test_random_below(random, 4);
        case_shuffle(&c, random);
        for (int a = 0; a < c.arguments; a++)
            if (!c.argument[a].info->is_required)
                c.argument[a].given = test_random_below(random, 3) > 0;
        case_settle(&c);
        check_everywhere(&c);
    }
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static void test_chunks(test_random *random)
{
    static const int64_t some_rows[] = {265, 700, 1064};
    static op_case c;
    int kinds = 8 / test_one_in(2), first = (int)test_random_below(random, 8); /* a quick run takes some of them */
    for (int i = 0; i < kinds; i++) {
        int kind = (first + i) % 8;
        int64_t columns = 20 + test_random_below(random, 20);
        begin_token(&c, kind % 2, type_at(kind / 2), some_rows[kind % 3], 9, columns, kind % LINEAR_LOSS_DATA_KINDS, 50,
                    test_random_bits(random));
        case_settle(&c);
        check_chunks_of(&c, 528 * 4 * (double)(columns + 9 + 32));
    }
}

/* linear, token_log_probs forward or backward, and linear_backward, in the type that is computed in; of 5 rows or more:
 * fewer are multiplied in another way where operands have that type. */
static void test_composition(test_random *random)
{
    static op_case c;
    for (int i = 0; i < 16; i++)
        for (int level = ONEP_SCALAR; level < ONEP_LEVELS; level++) {
            if (!handles[level])
                continue;
            int is_backward = i % 2;
            int64_t rows = i < 12 ? 5 + test_random_below(random, 60) : 300,
                    columns = 5 + test_random_below(random, 80);
            int64_t depth = 5 + test_random_below(random, 40);
            onepass_dtype type = type_at(i / 2), computed = case_computed(type);
            begin_token(&c, is_backward, type, rows, depth, columns, LINEAR_LOSS_ORDINARY, 0,
                        test_random_bits(random) | 1);
            c.argument[TOKEN_MASK].given = 0;
            c.options[TOKEN_TEMPERATURE] = 1.3;
            case_settle(&c);
            CHECK(case_make(&c), "no memory");
            for (int64_t k = 0; k < c.argument[TOKEN_INDICES].count; k++) /* none of them is ignored */
                case_put(&c, TOKEN_INDICES, k, (double)test_random_below(random, columns));
            case_remember(&c);
            test_context("level %s, %s, %s, %" PRId64 " x %" PRId64 " x %" PRId64, onep_level_name((onep_level)level),
                         c.name, case_type_name(type), rows, depth, columns);
            call_well(&c, handles[level], 0x33);

            int weight = case_argument_named(&c, "weight"), bias = case_argument_named(&c, "bias");
            int64_t count = case_extent(&c, 'K');
            int64_t of_logits[] = {rows, columns}, of_input[] = {rows, depth}, of_weight[] = {columns, depth};
            int64_t of_indices[] = {rows, count};
            onepass_tensor x = copy_of(&c, LINEAR_LOSS_INPUT, computed), w = copy_of(&c, weight, computed);
            onepass_tensor b = copy_of(&c, bias, computed), z = room_for(computed, 2, of_logits);
            const onepass_tensor *indices = &c.argument[TOKEN_INDICES].tensor;
            onepass_token_options o = {.size = sizeof o, .temperature = 1.3};
            onepass_tensor results[] = {room_for(case_f64, 2, of_indices), room_for(case_f64, 1, of_input),
                                        room_for(case_f64, 1, of_input)};
            onepass_tensor dx = room_for(computed, 2, of_input), dw = room_for(computed, 2, of_weight);
            onepass_tensor db = room_for(case_f64, 1, of_weight);
            multiply(handles[level], &x, &w, &b, &z);
            if (is_backward) {
                CHECK(onepass_token_log_probs_backward(handles[level], &z, indices, &c.argument[TOKEN_LOG_PROB].tensor,
                                                       &c.argument[TOKEN_ENTROPY].tensor, &c.argument[TOKEN_LSE].tensor,
                                                       &o, &z) == ONEPASS_OK,
                      "%s", onepass_last_error());
                multiply_back(handles[level], &z, &x, &w, &dx, &dw, &db);
                same_as(&c, LINEAR_TOKEN_GRAD_INPUT, &dx);
                same_as(&c, LINEAR_TOKEN_GRAD_WEIGHT, &dw);
                same_as(&c, LINEAR_TOKEN_GRAD_BIAS, &db);
            } else {
                CHECK(onepass_token_log_probs(handles[level], &z, indices, &o, &results[0], &results[1], &results[2]) ==
                          ONEPASS_OK,
                      "%s", onepass_last_error());
                for (int r = 0; r < 3; r++)
                    same_as(&c, TOKEN_LOG_PROB + r, &results[r]);
            }
            void *all[] = {x.data,  w.data,  b.data,          z.data,          dx.data,
                           dw.data, db.data, results[0].data, results[1].data, results[2].data};
            for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
                free(all[k]);
        }
}

/* ---- a small problem in double ----------------------------------------------------------------------------------- */

enum { ROWS = 4, DEPTH = 3, COLUMNS = 7, INDICES = 2 };

typedef struct small {
    double input[ROWS * DEPTH], weight[COLUMNS * DEPTH], bias[COLUMNS];
    int64_t indices[ROWS * INDICES];
    uint8_t mask[ROWS];
    double log_prob[ROWS * INDICES], entropy[ROWS], lse[ROWS];
    double to_log_prob[ROWS * INDICES], to_entropy[ROWS], to_lse[ROWS]; /* upstream gradients */
    double grad_input[ROWS * DEPTH], grad_weight[COLUMNS * DEPTH], grad_bias[COLUMNS];
    onepass_token_options options;
} small;

static onepass_status run_small(small *s, onepass_handle *handle, int is_backward)
{
    int64_t of_input[] = {ROWS, DEPTH}, of_weight[] = {COLUMNS, DEPTH}, of_indices[] = {ROWS, INDICES};
    onepass_tensor x = tensor_of(s->input, case_f64, 2, of_input), w = tensor_of(s->weight, case_f64, 2, of_weight);
    onepass_tensor b = tensor_of(s->bias, case_f64, 1, of_weight), i = tensor_of(s->indices, case_i64, 2, of_indices);
    onepass_tensor mask = tensor_of(s->mask, case_u8, 1, of_input);
    onepass_tensor p = tensor_of(is_backward ? s->to_log_prob : s->log_prob, case_f64, 2, of_indices);
    onepass_tensor h = tensor_of(is_backward ? s->to_entropy : s->entropy, case_f64, 1, of_input);
    onepass_tensor l = tensor_of(is_backward ? s->to_lse : s->lse, case_f64, 1, of_input);
    onepass_tensor dx = tensor_of(s->grad_input, case_f64, 2, of_input);
    onepass_tensor dw = tensor_of(s->grad_weight, case_f64, 2, of_weight);
    onepass_tensor db = tensor_of(s->grad_bias, case_f64, 1, of_weight);
    onepass_token_options o = s->options;
    size_t bytes = 0;
    o.row_mask = &mask;
    onepass_status status = onepass_linear_token_workspace_size(handle, &x, &w, &o, is_backward ? &dw : NULL, &bytes);
    if (status != ONEPASS_OK)
        return status;
    o.workspace = malloc(bytes);
    o.workspace_size = bytes;
    if (is_backward)
        status = onepass_linear_token_log_probs_backward(handle, &x, &w, &b, &i, &p, &h, &l, &o, &dx, &dw, &db);
    else
        status = onepass_linear_token_log_probs(handle, &x, &w, &b, &i, &o, &p, &h, &l);
    free(o.workspace);
    return status;
}

static void draw(double *to, int count, test_random *random)
{
    for (int i = 0; i < count; i++)
        to[i] = test_random_between(random, -1.5, 1.5);
}

/* Row 2 is masked, and an index is ignored. */
static void draw_small(small *s, test_random *random)
{
    *s = (small){.options = {.size = sizeof s->options}, .mask = {1, 1, 0, 1}};
    draw(s->input, ROWS * DEPTH, random);
    draw(s->weight, COLUMNS * DEPTH, random);
    draw(s->bias, COLUMNS, random);
    draw(s->to_log_prob, ROWS * INDICES, random);
    draw(s->to_entropy, ROWS, random);
    draw(s->to_lse, ROWS, random);
    for (int i = 0; i < ROWS * INDICES; i++)
        s->indices[i] = i == 3 ? -100 : test_random_below(random, COLUMNS - 1);
}

/* What the upstream gradients are those of. */
static double final_loss(small *s, onepass_handle *handle)
{
    CHECK(run_small(s, handle, 0) == ONEPASS_OK, "%s", onepass_last_error());
    double sum = 0;
    for (int i = 0; i < ROWS * INDICES; i++)
        sum += s->to_log_prob[i] * s->log_prob[i];
    for (int i = 0; i < ROWS; i++)
        sum += s->to_entropy[i] * s->entropy[i] + s->to_lse[i] * s->lse[i];
    return sum;
}

static void differences(small *s, double *at, const double *gradient, int count, const char *name, int level)
{
    for (int k = 0; k < count; k++) {
        /* Truncation is below step^2 = 1e-10 of third derivatives below 1000, rounding 1e-15 / step. */
        const double step = 1e-5, before = at[k];
        double values[2];
        for (int side = 0; side < 2; side++) {
            at[k] = before + (side ? step : -step);
            values[side] = final_loss(s, handles[level]);
        }
        at[k] = before;
        double slope = (values[1] - values[0]) / (2 * step);
        CHECK(test_close(gradient[k], slope, 1e-7L), "%s[%d] is %.12g, differences give %.12g", name, k, gradient[k],
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
            if (i % 2) {
                s.options.temperature = 1.4;
                s.options.softcap = 3;
                s.options.columns = COLUMNS - 1;
            }
            test_context("level %s, differences %d", onep_level_name((onep_level)level), i);
            CHECK(run_small(&s, handles[level], 1) == ONEPASS_OK, "%s", onepass_last_error());
            differences(&s, s.input, s.grad_input, ROWS * DEPTH, "grad_input", level);
            differences(&s, s.weight, s.grad_weight, COLUMNS * DEPTH, "grad_weight", level);
            differences(&s, s.bias, s.grad_bias, COLUMNS, "grad_bias", level);
        }
}

/* The masked row holds NaN, which reaches nothing; its results are 0. An index that is no column makes its row NaN. */
static void test_special_rows(test_random *random, int level)
{
    static small plain, s;
    draw_small(&plain, random);
    CHECK(run_small(&plain, handles[level], 0) == ONEPASS_OK && run_small(&plain, handles[level], 1) == ONEPASS_OK,
          "%s", onepass_last_error());
    s = plain;
    for (int k = 0; k < DEPTH; k++)
        s.input[2 * DEPTH + k] = NAN;
    s.to_entropy[2] = NAN;
    CHECK(run_small(&s, handles[level], 0) == ONEPASS_OK && run_small(&s, handles[level], 1) == ONEPASS_OK, "%s",
          onepass_last_error());
    CHECK(memcmp(s.log_prob, plain.log_prob, sizeof s.log_prob) == 0 &&
              memcmp(s.grad_input, plain.grad_input, sizeof s.grad_input) == 0 &&
              memcmp(s.grad_weight, plain.grad_weight, sizeof s.grad_weight) == 0,
          "what is masked was read");
    CHECK(all_are(s.log_prob + 2 * INDICES, INDICES, 0) && s.lse[2] == 0 && s.entropy[2] == 0 &&
              all_are(s.grad_input + 2 * DEPTH, DEPTH, 0) && s.log_prob[3] == 0,
          "what takes no part has results");
    s.indices[0] = COLUMNS;
    CHECK(run_small(&s, handles[level], 0) == ONEPASS_OK && run_small(&s, handles[level], 1) == ONEPASS_OK, "%s",
          onepass_last_error());
    CHECK(isnan(s.log_prob[0]) && !isnan(s.log_prob[1]) && all_are(s.grad_input, DEPTH, (double)NAN) &&
              isfinite(s.grad_input[DEPTH]),
          "an index that is no column: %g", s.log_prob[0]);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void test_refusals(void)
{
    onepass_handle *handle = handles[ONEP_REF];
    double x[6] = {0}, w[12] = {0}, upstream[2] = {0}, lse[2] = {5, 5};
    int64_t indices[2] = {0, 1}, of_x[] = {2, 3}, of_w[] = {4, 3}, of_i[] = {2, 1}, of_bad[] = {4, 2};
    onepass_tensor input = tensor_of(x, case_f64, 2, of_x), weight = tensor_of(w, case_f64, 2, of_w);
    onepass_tensor index = tensor_of(indices, case_i64, 2, of_i), wrong = tensor_of(w, case_f64, 2, of_bad);
    onepass_tensor to = tensor_of(lse, case_f64, 1, of_x), each = tensor_of(upstream, case_f64, 2, of_i);
    char workspace[65536];
    onepass_token_options good = {.size = sizeof good, .workspace = workspace, .workspace_size = sizeof workspace};
    onepass_token_options negative = good, tight = good;
    size_t bytes;
    negative.chunk_bytes = -1;
    tight.workspace_size = 16;
    test_context("refusals");
    CHECK(onepass_linear_token_log_probs(handle, &input, &weight, NULL, &index, &good, NULL, NULL, &to) == ONEPASS_OK &&
              test_close(lse[0], logl(4.0L), 1e-15L),
          "%g: %s", lse[0], onepass_last_error());
    lse[0] = 5;
    const struct {
        const char *word;
        const onepass_tensor *weight, *indices, *log_prob, *lse;
        const onepass_token_options *options;
    } calls[] = {
        {"weight", &wrong, &index, NULL, &to, &good},
        {"weight", NULL, &index, NULL, &to, &good},
        {"indices", &weight, NULL, &each, NULL, &good},
        {"all NULL", &weight, &index, NULL, NULL, &good},
        {"options.chunk_bytes", &weight, &index, NULL, &to, &negative},
        {"options.workspace", &weight, &index, NULL, &to, &tight},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        onepass_status status = onepass_linear_token_log_probs(handle, &input, calls[i].weight, NULL, calls[i].indices,
                                                               calls[i].options, calls[i].log_prob, NULL, calls[i].lse);
        CHECK(status == (calls[i].options == &tight ? ONEPASS_WORKSPACE : ONEPASS_INVALID_ARGUMENT) && lse[0] == 5 &&
                  strstr(onepass_last_error(), calls[i].word),
              "%s: %s", calls[i].word, onepass_last_error());
    }
    CHECK(onepass_linear_token_log_probs_backward(handle, &input, &weight, NULL, &index, &each, NULL, NULL, &good, NULL,
                                                  NULL, NULL) == ONEPASS_INVALID_ARGUMENT &&
              strstr(onepass_last_error(), "all NULL"),
          "%s", onepass_last_error());
    onepass_token_options chunked = {.size = sizeof chunked, .chunk_bytes = 1};
    CHECK(onepass_token_log_probs(handle, &input, NULL, &chunked, NULL, NULL, &to) == ONEPASS_INVALID_ARGUMENT &&
              strstr(onepass_last_error(), "options.chunk_bytes"),
          "%s", onepass_last_error());
    CHECK(onepass_linear_token_workspace_size(handle, &input, NULL, NULL, NULL, &bytes) == ONEPASS_INVALID_ARGUMENT &&
              onepass_linear_token_workspace_size(handle, &input, &weight, NULL, NULL, NULL) ==
                  ONEPASS_INVALID_ARGUMENT,
          "a size of nothing");
}

int main(void)
{
    test_begin("test_linear_token");
    test_print_levels();
    test_random random = test_random_stream(0);
    open_levels();
    test_refusals();
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        test_context("level %s, special rows", onep_level_name((onep_level)level));
        test_special_rows(&random, level);
    }
    test_finite_differences(&random);
    test_composition(&random);
    test_options(&random);
    test_sizes(&random);
    test_layouts(&random);
    test_chunks(&random);
    close_levels("test_linear_token");
    return test_end();
}
