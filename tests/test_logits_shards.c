/*
 * Losses over several ranks, all of them in this process and called in any order: 1 to 5, uneven, some without columns.
 * Every result is held to what the unsharded loss is held to (cases/logits.c, cases/token.c), at every level, every
 * reduction and type; ranks agree to the bit on everything but their own columns, which no other rank touches. Cut at
 * slice borders, any number of ranks has the same bits, those of the unsharded loss where the row is one slice. Whole
 * shards of -inf, special values, ignored and masked rows; what is refused.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/logits.h"
#include "harness.h"

enum { MOST_RANKS = 5, SLICE = 8192, GUARD = 64, POISON = 0xc3 };

/* ---- rows in parts ----------------------------------------------------------------------------------------------- */

/* Rank r has columns begin[r] to begin[r + 1]. */
typedef struct group {
    int ranks;
    int64_t begin[MOST_RANKS + 1];
} group;

static struct {
    char *memory[512];
    size_t bytes[512];
    onepass_tensor tensor[1024];
    int64_t shape[1024][3], strides[1024][3];
    int memories, tensors;
} made;

static void forget(void)
{
    for (int i = 0; i < made.memories; i++) {
        for (size_t k = 0; k < GUARD; k++)
            CHECK(made.memory[i][k] == (char)POISON && made.memory[i][GUARD + made.bytes[i] + k] == (char)POISON,
                  "a guard band of buffer %d changed", i);
        free(made.memory[i]);
    }
    made.memories = made.tensors = 0;
}

static char *claim(size_t bytes)
{
    int i = made.memories++;
    made.bytes[i] = bytes;
    made.memory[i] = made.memories <= 512 ? malloc(bytes + 2 * GUARD) : NULL;
    if (!made.memory[i])
        exit(2);
    memset(made.memory[i], POISON, bytes + 2 * GUARD);
    return made.memory[i] + GUARD;
}

/* shape [a, b, c][:ndim], compact but for the stride of its rows if `stride` is not 0. */
static const onepass_tensor *view(void *data, onepass_dtype dtype, int ndim, int64_t a, int64_t b, int64_t c,
                                  int64_t stride)
{
    int i = made.tensors++;
    if (made.tensors > 1024)
        exit(2);
    int64_t shape[3] = {a, b, c}, strides[3] = {ndim == 3 ? b * c : ndim == 2 ? b : 1, ndim == 3 ? c : 1, 1};
    memcpy(made.shape[i], shape, sizeof shape);
    memcpy(made.strides[i], strides, sizeof strides);
    if (stride)
        made.strides[i][0] = stride;
    made.tensor[i] = (onepass_tensor){.data = data,
                                      .device = {ONEPASS_CPU, 0},
                                      .ndim = ndim,
                                      .dtype = dtype,
                                      .shape = made.shape[i],
                                      .strides = made.strides[i]};
    return &made.tensor[i];
}

/* The same of an argument of a case, which is compact. */
static const onepass_tensor *all_of(const op_case *c, int argument)
{
    const case_argument *a = &c->argument[argument];
    return argument < c->arguments && a->given ? &a->tensor : NULL;
}

/* A rank's columns of memory that has all of them: [rows, C] or [C]. */
static const onepass_tensor *part(const group *g, int rank, char *data, onepass_dtype dtype, int ndim, int64_t rows)
{
    int64_t width = g->begin[g->ranks], count = g->begin[rank + 1] - g->begin[rank];
    char *at = data + (size_t)g->begin[rank] * case_size(dtype);
    return ndim == 1 ? view(at, dtype, 1, count, 0, 0, 0) : view(at, dtype, 2, rows, count, 0, width);
}

static const onepass_tensor *part_of(const op_case *c, int argument, const group *g, int rank)
{
    const case_argument *a = &c->argument[argument];
    if (argument >= c->arguments || !a->given)
        return NULL;
    return part(g, rank, (char *)a->tensor.data + a->tensor.byte_offset, a->dtype, a->tensor.ndim, a->shape[0]);
}

static void must(onepass_status status)
{
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
}

/* ---- all ranks' calls -------------------------------------------------------------------------------------------- */

/* Results by argument of the unsharded call: gradients as a whole, whatever there is one of per rank. */
typedef struct results {
    char *of[CASE_MAX_ARGUMENTS][MOST_RANKS];
} results;

static int64_t rows_of(const op_case *c)
{
    return case_rows(c);
}

/* The statistics that every rank merges. */
static const onepass_tensor *exchange(onepass_handle *handle, const op_case *c, const group *g, int logits, int targets,
                                      const onepass_tensor *indices, int64_t index_count,
                                      const onepass_logits_options *options, int class_weights)
{
    int64_t most = 0, rows = rows_of(c);
    int has_targets = all_of(c, targets) != NULL;
    for (int r = 0; r < g->ranks; r++)
        most = g->begin[r + 1] - g->begin[r] > most ? g->begin[r + 1] - g->begin[r] : most;
    int64_t width = onepass_shard_states_width(most, index_count, has_targets);
    int64_t merged = onepass_shard_statistics_width(index_count, has_targets);
    double *gathered = (double *)(void *)claim((size_t)(g->ranks * rows * width) * sizeof(double));
    for (int r = 0; r < g->ranks; r++) {
        onepass_logits_options o = *options;
        o.first_column = g->begin[r];
        o.class_weights = class_weights >= 0 ? part_of(c, class_weights, g, r) : NULL;
        must(onepass_shard_states(handle, part_of(c, logits, g, r), part_of(c, targets, g, r), indices, &o,
                                  view(gathered + r * rows * width, case_f64, 2, rows, width, 0, 0)));
    }
    char *statistics = claim((size_t)(rows * merged) * sizeof(double));
    const onepass_tensor *all = view(statistics, case_f64, 2, rows, merged, 0, 0);
    must(onepass_shard_merge(handle, view(gathered, case_f64, 3, g->ranks, rows, width, 0), all));
    if (!has_targets || options->divergence < ONEPASS_JS)
        return all;
    int64_t of_sums = onepass_shard_sums_width(most);
    double *sent = (double *)(void *)claim((size_t)(g->ranks * rows * of_sums) * sizeof(double));
    for (int r = 0; r < g->ranks; r++) {
        onepass_logits_options o = *options;
        o.first_column = g->begin[r];
        must(onepass_shard_sums(handle, part_of(c, logits, g, r), part_of(c, targets, g, r), all, &o,
                                view(sent + r * rows * of_sums, case_f64, 2, rows, of_sums, 0, 0)));
    }
    must(onepass_shard_merge_sums(handle, all, view(sent, case_f64, 3, g->ranks, rows, of_sums, 0), all));
    return all;
}

/* Memory for a result, poisoned: all columns of a gradient, or this rank's own of anything else. */
static const onepass_tensor *result(const op_case *c, results *to, const group *g, int argument, int rank,
                                    int is_gradient)
{
    const case_argument *a = &c->argument[argument];
    if (argument >= c->arguments || !a->given)
        return NULL;
    char **memory = &to->of[argument][is_gradient ? 0 : rank];
    if (!*memory)
        *memory = claim((size_t)a->count * case_size(a->dtype));
    return is_gradient           ? part(g, rank, *memory, a->dtype, a->tensor.ndim, a->shape[0])
           : a->tensor.ndim == 0 ? view(*memory, a->dtype, 0, 0, 0, 0, 0)
                                 : view(*memory, a->dtype, a->tensor.ndim, a->shape[0], a->shape[1], 0, 0);
}

static const int row_results[] = {LOGITS_VALUE,  LOGITS_LSE,        LOGITS_ENTROPY,       LOGITS_LOG_PROB,
                                  LOGITS_ARGMAX, LOGITS_TARGET_LSE, LOGITS_TARGET_ENTROPY};

static onepass_logits_options options_of(const op_case *c)
{
    const double *o = c->options;
    onepass_logits_options made_of = {.size = sizeof made_of,
                                      .reduction = (onepass_reduction)(int)o[LOGITS_REDUCTION],
                                      .semantics = (onepass_semantics)(int)o[LOGITS_SEMANTICS],
                                      .divisor = o[LOGITS_DIVISOR],
                                      .divisor_tensor = all_of(c, LOGITS_DIVISOR_TENSOR),
                                      .temperature = o[LOGITS_TEMPERATURE],
                                      .softcap = o[LOGITS_SOFTCAP],
                                      .has_ignore_index = (int32_t)o[LOGITS_HAS_IGNORE_INDEX],
                                      .ignore_index = (int64_t)o[LOGITS_IGNORE_INDEX],
                                      .label_weight = o[LOGITS_LABEL_WEIGHT],
                                      .label_smoothing = o[LOGITS_SMOOTHING],
                                      .z_loss = o[LOGITS_Z_LOSS],
                                      .entropy_bonus = o[LOGITS_ENTROPY_BONUS],
                                      .labels = all_of(c, LOGITS_LABELS),
                                      .row_weights = all_of(c, LOGITS_WEIGHTS),
                                      .row_mask = all_of(c, LOGITS_MASK),
                                      .grad_value = all_of(c, LOGITS_UPSTREAM),
                                      .total_columns = logits_columns(c, LOGITS_COLUMNS)};
    if (c->arguments > LOGITS_TARGETS) {
        made_of.divergence = (onepass_divergence)(int)o[LOGITS_DIVERGENCE];
        made_of.mixture = o[LOGITS_MIXTURE];
        made_of.divergence_weight = o[LOGITS_DIVERGENCE_WEIGHT];
        made_of.target_temperature = o[LOGITS_TARGET_TEMPERATURE];
        made_of.label_temperature = o[LOGITS_LABEL_TEMPERATURE];
        made_of.target_softcap = o[LOGITS_TARGET_SOFTCAP];
    }
    return made_of;
}

static void play_loss(onepass_handle *handle, const op_case *c, const group *g, int backwards, results *to)
{
    onepass_logits_options options = options_of(c);
    const onepass_tensor *statistics = exchange(handle, c, g, LOGITS_PREDICTIONS, LOGITS_TARGETS, NULL,
                                                all_of(c, LOGITS_LABELS) != NULL, &options, LOGITS_CLASS_WEIGHTS);
    memset(to, 0, sizeof *to);
    for (int i = 0; i < g->ranks; i++) {
        int r = backwards ? g->ranks - 1 - i : i;
        onepass_logits_options o = options;
        o.first_column = g->begin[r];
        o.class_weights = part_of(c, LOGITS_CLASS_WEIGHTS, g, r);
        const onepass_tensor *out[7];
        for (int k = 0; k < 7; k++)
            out[k] = result(c, to, g, row_results[k], r, 0);
        o.lse = out[1];
        o.entropy = out[2];
        o.log_prob = out[3];
        o.argmax = out[4];
        o.target_lse = out[5];
        o.target_entropy = out[6];
        const onepass_tensor *to_predictions = result(c, to, g, LOGITS_GRAD_PREDICTIONS, r, 1);
        const onepass_tensor *to_targets = result(c, to, g, LOGITS_GRAD_TARGETS, r, 1);
        must(onepass_shard_loss(handle, part_of(c, LOGITS_PREDICTIONS, g, r), part_of(c, LOGITS_TARGETS, g, r),
                                statistics, &o, out[0], to_predictions, to_targets));
    }
}

static void play_token(onepass_handle *handle, const op_case *c, const group *g, int backwards, results *to)
{
    const double *o = c->options;
    int is_backward = c->arguments > TOKEN_GRAD_LOGITS;
    const onepass_tensor *indices = all_of(c, TOKEN_INDICES);
    int64_t total = logits_columns(c, TOKEN_COLUMNS);
    onepass_logits_options of_states = {.size = sizeof of_states,
                                        .temperature = o[TOKEN_TEMPERATURE],
                                        .softcap = o[TOKEN_SOFTCAP],
                                        .row_mask = all_of(c, TOKEN_MASK),
                                        .total_columns = total};
    const onepass_tensor *statistics = exchange(handle, c, g, TOKEN_LOGITS, CASE_MAX_ARGUMENTS, indices,
                                                indices ? case_extent(c, 'K') : 0, &of_states, -1);
    memset(to, 0, sizeof *to);
    for (int i = 0; i < g->ranks; i++) {
        int r = backwards ? g->ranks - 1 - i : i;
        onepass_token_options options = {.size = sizeof options,
                                         .semantics = (onepass_semantics)(int)o[TOKEN_SEMANTICS],
                                         .temperature = o[TOKEN_TEMPERATURE],
                                         .softcap = o[TOKEN_SOFTCAP],
                                         .has_ignore_index = (int32_t)o[TOKEN_HAS_IGNORE_INDEX],
                                         .ignore_index = (int64_t)o[TOKEN_IGNORE_INDEX],
                                         .row_mask = all_of(c, TOKEN_MASK),
                                         .first_column = g->begin[r],
                                         .total_columns = total};
        const onepass_tensor *logits = part_of(c, TOKEN_LOGITS, g, r);
        if (is_backward)
            must(onepass_shard_token_log_probs_backward(handle, logits, indices, statistics, all_of(c, TOKEN_LOG_PROB),
                                                        all_of(c, TOKEN_ENTROPY), all_of(c, TOKEN_LSE), &options,
                                                        result(c, to, g, TOKEN_GRAD_LOGITS, r, 1)));
        else
            must(onepass_shard_token_log_probs(
                handle, logits, indices, statistics, &options, result(c, to, g, TOKEN_LOG_PROB, r, 0),
                result(c, to, g, TOKEN_ENTROPY, r, 0), result(c, to, g, TOKEN_LSE, r, 0)));
    }
}

static int is_token(const op_case *c)
{
    return strncmp(c->name, "token", 5) == 0;
}

static void play(onepass_handle *handle, const op_case *c, const group *g, int backwards, results *to)
{
    if (is_token(c))
        play_token(handle, c, g, backwards, to);
    else
        play_loss(handle, c, g, backwards, to);
}

/* ---- against the unsharded loss ---------------------------------------------------------------------------------- */

static int is_gradient(const op_case *c, int argument)
{
    return strncmp(c->argument[argument].info->name, "grad_", 5) == 0;
}

static void compare(const op_case *c, const group *g, const results *of)
{
    for (int i = 0; i < c->arguments; i++) {
        const case_argument *a = &c->argument[i];
        if (!a->given || !case_is_written(c, i))
            continue;
        for (int64_t k = 0; k < a->count; k++) {
            double got = case_load(a->dtype, of->of[i][0] + (size_t)k * case_size(a->dtype));
            if (!CHECK(case_close_in(a->dtype, got, a->expected[k], a->allowed[k]),
                       "%s[%" PRId64 "]: %.17g over %d ranks, %.17Lg +- %.3Lg expected", a->info->name, k, got,
                       g->ranks, a->expected[k], a->allowed[k]))
                break;
        }
        for (int r = 1; r < g->ranks && !is_gradient(c, i); r++)
            CHECK(memcmp(of->of[i][0], of->of[i][r], (size_t)a->count * case_size(a->dtype)) == 0,
                  "%s: rank %d has other bits than rank 0", a->info->name, r);
    }
}

static void same_bits(const op_case *c, const results *a, const results *b, const char *what)
{
    for (int i = 0; i < c->arguments; i++) {
        const case_argument *of = &c->argument[i];
        if (of->given && case_is_written(c, i))
            CHECK(memcmp(a->of[i][0], b ? b->of[i][0] : (char *)of->tensor.data + of->tensor.byte_offset,
                         (size_t)of->count * case_size(of->dtype)) == 0,
                  "%s: other bits than %s", of->info->name, what);
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static const char *const names[] = {"cross_entropy_logits_labels", "divergence_logits_logits", "token_log_probs",
                                    "token_log_probs_backward"};
enum { NAMES = 4 };

static const onepass_dtype *any_type(test_random *random)
{
    static const onepass_dtype *const types[] = {&case_f16, &case_bf16, &case_f32, &case_f64};
    return types[test_random_below(random, 4)];
}

/* A joined call of `name` with any options, types and results. */
static void join(op_case *c, const char *name, int64_t rows, int64_t width, int family, test_random *random)
{
    CHECK(case_begin(c, name), "%s has no cases", name);
    c->leading[0] = rows;
    c->extents['C' - 'A'] = width;
    c->extents['K' - 'A'] = 1 + test_random_below(random, 3);
    c->family = family;
    c->amount = 2;
    c->seed = test_random_bits(random);
    for (int i = 0; i < c->arguments; i++) {
        if (!c->argument[i].info->is_required)
            c->argument[i].given = (int)test_random_below(random, 2);
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = *any_type(random);
    }
    if (is_token(c)) {
        c->argument[TOKEN_INDICES].given = 1;
        c->options[TOKEN_SEMANTICS] = (double)test_random_below(random, 2);
        c->options[TOKEN_HAS_IGNORE_INDEX] = (double)test_random_below(random, 2);
    } else {
        c->argument[LOGITS_MADE_FOR].given = 0;
        c->options[LOGITS_REDUCTION] = (double)test_random_below(random, ONEPASS_VALID + 1);
        c->options[LOGITS_SEMANTICS] = (double)test_random_below(random, 2);
        c->options[LOGITS_HAS_IGNORE_INDEX] = (double)test_random_below(random, 2);
        if (c->arguments > LOGITS_TARGETS)
            c->options[LOGITS_DIVERGENCE] = (double)test_random_below(random, ONEPASS_TOTAL_VARIATION + 1);
    }
    case_settle(c);
    CHECK(case_make(c), "no memory");
}

/* Cuts anywhere, some at the same place. */
static group any_group(int64_t width, test_random *random)
{
    group g = {.ranks = 1 + (int)test_random_below(random, MOST_RANKS)};
    for (int r = 1; r < g.ranks; r++)
        g.begin[r] = test_random_below(random, width + 1);
    for (int r = 1; r < g.ranks; r++)
        for (int k = r; k > 1 && g.begin[k] < g.begin[k - 1]; k--) {
            int64_t other = g.begin[k];
            g.begin[k] = g.begin[k - 1];
            g.begin[k - 1] = other;
        }
    g.begin[g.ranks] = width;
    return g;
}

/* -inf in all columns of a rank, of either side. */
static void mask_shard(op_case *c, const group *g, test_random *random)
{
    int rank = (int)test_random_below(random, g->ranks);
    int64_t width = g->begin[g->ranks];
    int sides[2] = {is_token(c) ? (int)TOKEN_LOGITS : (int)LOGITS_PREDICTIONS, LOGITS_TARGETS};
    int which = 1 + (int)test_random_below(random, 3);
    for (int side = 0; side < (is_token(c) || c->arguments <= LOGITS_TARGETS ? 1 : 2); side++)
        for (int64_t row = 0; row < rows_of(c) && (which >> side & 1); row++)
            for (int64_t k = g->begin[rank]; k < g->begin[rank + 1]; k++)
                case_put(c, sides[side], row * width + k, (double)-INFINITY);
    case_remember(c);
}

static op_case c;

static void describe(const char *what, const group *g, onep_level level)
{
    static char text[3000];
    char cuts[200] = "";
    for (int r = 0; r <= g->ranks; r++)
        snprintf(cuts + strlen(cuts), sizeof cuts - strlen(cuts), " %" PRId64, g->begin[r]);
    test_context("%s, level %s, family %d, cuts%s: %s", what, onep_level_name(level), c.family, cuts,
                 case_describe(&c, text, sizeof text));
}

static case_arithmetic arithmetic_of(onep_level level)
{
    return level == ONEP_REF ? CASE_REFERENCE : CASE_VECTOR;
}

static void test_any(onep_level level, onepass_handle *handle, int number)
{
    test_random random = test_random_stream(1000 * (uint64_t)(number + 1) + (uint64_t)level);
    static const int64_t widths[] = {1, 2, 5, 17, 40, 129, 300, 700};
    int64_t width = widths[test_random_below(&random, 8)], rows = 1 + test_random_below(&random, 4);
    if (test_random_below(&random, 12) == 0) { /* several slices */
        width = SLICE * 2 + test_random_below(&random, SLICE);
        rows = 1;
    }
    int family = (int)test_random_below(&random, LOGITS_SPECIAL + 1);
    join(&c, names[number % NAMES], rows, width, family, &random);
    group g = any_group(width, &random);
    if (test_random_below(&random, 4) == 0)
        mask_shard(&c, &g, &random);
    describe("any", &g, level);
    results of;
    CHECK(case_expect(&c, arithmetic_of(level)), "no memory");
    play(handle, &c, &g, (int)test_random_below(&random, 2), &of);
    compare(&c, &g, &of);
    forget();
}

/* Cut at slice borders, 1 to 4 ranks and more with nothing have the same bits. */
static void test_borders(onep_level level, onepass_handle *handle, int number)
{
    test_random random = test_random_stream(77000 + 1000 * (uint64_t)(number + 1) + (uint64_t)level);
    int64_t width = 3 * SLICE + 1 + test_random_below(&random, SLICE), slices = 4;
    int family = (int)test_random_below(&random, LOGITS_SPECIAL + 1);
    join(&c, names[number % NAMES], 4, width, family, &random);
    if (!is_token(&c)) { /* the sum of the rows, with all its bits */
        c.argument[LOGITS_VALUE].given = 1;
        c.argument[LOGITS_VALUE].dtype = case_f64;
        CHECK(case_make(&c), "no memory");
    }
    results first, of;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        group g = {.ranks = ranks};
        for (int r = 1; r < ranks; r++) {
            int64_t least = g.begin[r - 1] / SLICE;
            g.begin[r] = SLICE * (least + test_random_below(&random, slices - least));
        }
        g.begin[ranks] = width;
        describe("slice borders", &g, level);
        play(handle, &c, &g, ranks & 1, &of);
        if (ranks == 1) {
            first = of;
            CHECK(case_expect(&c, arithmetic_of(level)), "no memory");
            compare(&c, &g, &of);
        } else {
            same_bits(&c, &of, &first, "a single rank");
        }
    }
    forget();
}

/* The rows of a block are added up before the blocks are: what a block is, of 1 row here and of 4 if a slice were all
 * there is, must not depend on what a rank has. Weights cancel from one 4 rows to the next, so that their sum says how
 * they were put together. */
static void test_blocks(onep_level level, onepass_handle *handle)
{
    static const double weights[] = {0x1p60, 3, 0x1p58, 5, -0x1p60, 7, -0x1p58, 11};
    static const group groups[] = {{1, {0, 4 * SLICE}},
                                   {2, {0, SLICE, 4 * SLICE}},
                                   {3, {0, 3 * SLICE, 3 * SLICE, 4 * SLICE}},
                                   {4, {0, SLICE, 2 * SLICE, 3 * SLICE, 4 * SLICE}}};
    enum { ROWS = 8, WIDTH = 4 * SLICE };
    CHECK(case_begin(&c, "cross_entropy_logits_labels"), "no cases");
    c.leading[0] = ROWS;
    c.extents['C' - 'A'] = WIDTH;
    c.argument[LOGITS_WEIGHTS].given = 1;
    c.argument[LOGITS_WEIGHTS].dtype = c.argument[LOGITS_VALUE].dtype = case_f64;
    c.options[LOGITS_REDUCTION] = ONEPASS_SUM;
    case_settle(&c);
    CHECK(case_make(&c), "no memory");
    for (int64_t row = 0; row < ROWS; row++) {
        for (int64_t k = 0; k < WIDTH; k++)
            case_put(&c, LOGITS_PREDICTIONS, row * WIDTH + k, (double)(k % 11) / 4);
        case_put(&c, LOGITS_LABELS, row, SLICE + 7);
        case_put(&c, LOGITS_WEIGHTS, row, weights[row]);
    }
    case_remember(&c);
    results first, of;
    for (int i = 0; i < 4; i++) {
        describe("blocks", &groups[i], level);
        play(handle, &c, &groups[i], i & 1, &of);
        if (i == 0)
            first = of;
        same_bits(&c, &of, &first, "a single rank");
        for (int r = 1; r < groups[i].ranks; r++)
            CHECK(memcmp(of.of[LOGITS_VALUE][0], of.of[LOGITS_VALUE][r], sizeof(double)) == 0,
                  "rank %d has other bits than rank 0", r);
    }
    forget();
}

/* A row of one slice has the bits of the unsharded loss, wherever the ranks without columns are. */
static void test_one_slice(onep_level level, onepass_handle *handle, int number)
{
    test_random random = test_random_stream(99000 + 1000 * (uint64_t)(number + 1) + (uint64_t)level);
    static const int64_t widths[] = {129, 513, 1000, SLICE};
    static const int families[] = {LOGITS_GAUSSIAN, LOGITS_SHARP, LOGITS_NEAR_3, LOGITS_NEAR_4, LOGITS_UNNORMALISED};
    int64_t width = widths[test_random_below(&random, test_quick() ? 3 : 4)];
    join(&c, names[number % NAMES], 3, width, families[test_random_below(&random, 5)], &random);
    c.options[is_token(&c) ? (int)TOKEN_COLUMNS : (int)LOGITS_COLUMNS] = 0; /* narrow rows are added up otherwise */
    CHECK(case_make(&c), "no memory");
    onepass_status status;
    case_call(&c, handle, POISON, &test_judge, &status);
    must(status);
    for (int ranks = 1; ranks <= 4; ranks++) {
        group g = {.ranks = ranks};
        int owner = (int)test_random_below(&random, ranks);
        for (int r = 0; r < ranks; r++)
            g.begin[r + 1] = r >= owner ? width : 0;
        describe("one slice", &g, level);
        results of;
        play(handle, &c, &g, ranks & 1, &of);
        same_bits(&c, &of, NULL, "the unsharded loss");
    }
    forget();
}

/* ---- single facts ------------------------------------------------------------------------------------------------ */

static void refused(onepass_status status, const char *word, const char *other)
{
    CHECK(status == ONEPASS_INVALID_ARGUMENT, "got %s", onepass_status_name(status));
    CHECK(strstr(onepass_last_error(), word) && strstr(onepass_last_error(), other), "%s", onepass_last_error());
}

static void test_refusals(onepass_handle *handle)
{
    test_context("refusals");
    float logits[8] = {0, 1, 2, 3, 4, 5, 6, 7}, value;
    int64_t labels[2] = {1, 2};
    double states[2][64] = {{0}}, statistics[2][32] = {{0}};
    int64_t w = onepass_shard_states_width(4, 1, 0), f = onepass_shard_statistics_width(1, 0);
    const onepass_tensor *x = view(logits, case_f32, 2, 2, 4, 0, 0), *y = view(labels, case_i64, 1, 2, 0, 0, 0);
    const onepass_tensor *v = view(&value, case_f32, 0, 0, 0, 0, 0);
    const onepass_tensor *s = view(states, case_f64, 2, 2, w, 0, 64);
    onepass_logits_options o = {.size = sizeof o, .labels = y, .total_columns = 4};
    CHECK(onepass_shard_states_width(-1, 0, 0) == -1 && onepass_shard_statistics_width(-1, 0) == -1, "negative");
    refused(onepass_shard_states(handle, x, NULL, NULL, &o, view(states, case_f64, 2, 2, w - 1, 0, 64)), "states",
            "need");
    o.columns = 2;
    refused(onepass_shard_states(handle, x, NULL, NULL, &o, s), "options.columns", "total_columns");
    o.columns = 0;
    o.first_column = -1;
    refused(onepass_shard_states(handle, x, NULL, NULL, &o, s), "options.first_column", "whole number");
    o.first_column = 0;
    refused(onepass_shard_states(handle, x, NULL, view(labels, case_i64, 2, 2, 1, 0, 0), &o, s), "indices", "labels");
    o.divergence = ONEPASS_REVERSE_KL;
    refused(onepass_shard_states(handle, x, NULL, NULL, &o, s), "options.divergence", "without targets");
    o.divergence = ONEPASS_JS;
    refused(onepass_shard_states(handle, x, x, NULL, &o, s), "options.mixture", "above 0");
    o.divergence = ONEPASS_KL;
    must(onepass_shard_states(handle, x, NULL, NULL, &o, s));
    double gathered[2][2][64];
    for (int r = 0; r < 2; r++)
        memcpy(gathered[r], states, sizeof states);
    const onepass_tensor *t = view(statistics, case_f64, 2, 2, f, 0, 32);
    refused(onepass_shard_merge(handle, view(gathered, case_f64, 3, 0, 2, 64, 0), t), "gathered", "rank");
    gathered[1][1][2] = 0; /* a rank that sent no labels */
    refused(onepass_shard_merge(handle, view(gathered, case_f64, 3, 2, 2, 64, 0), t), "gathered", "rank 1");
    gathered[1][1][2] = 1;
    gathered[1][0][3] = 1e9;
    refused(onepass_shard_merge(handle, view(gathered, case_f64, 3, 2, 2, 64, 0), t), "gathered", "row 0 of rank 1");
    gathered[1][0][3] = 1;
    refused(onepass_shard_merge(handle, view(gathered, case_f64, 3, 2, 2, 64, 0),
                                view(statistics, case_f64, 2, 2, f - 1, 0, 32)),
            "statistics", "numbers per row");
    must(onepass_shard_merge(handle, view(gathered, case_f64, 3, 2, 2, 64, 0), t)); /* 8 columns */
    refused(onepass_shard_loss(handle, x, NULL, t, &o, v, NULL, NULL), "statistics", "8 columns");
    o.total_columns = 8;
    must(onepass_shard_loss(handle, x, NULL, t, &o, v, NULL, NULL));
    refused(onepass_shard_loss(handle, x, x, t, &o, v, NULL, NULL), "statistics", "numbers per row");
    o.labels = NULL;
    refused(onepass_shard_loss(handle, x, NULL, t, &o, v, NULL, NULL), "options.labels", "required");
    o.labels = y;
    refused(onepass_cross_entropy_logits_labels(
                handle, x, y, &(onepass_logits_options){.size = sizeof o, .total_columns = 4}, v, NULL),
            "options.total_columns", "shards");
    forget();
}

/* A second exchange that is left out, made twice, or of another divergence. */
static void test_sums_refusals(onepass_handle *handle)
{
    test_context("refusals of sums");
    float x_of[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y_of[8] = {1, 1, 2, 3, 0, 5, 0, 7}, value;
    double sent[2][32] = {{0}}, merged[2][32] = {{0}}, of_sums[2][8], complete[2][32];
    const onepass_tensor *x = view(x_of, case_f32, 2, 2, 4, 0, 0), *y = view(y_of, case_f32, 2, 2, 4, 0, 0);
    const onepass_tensor *v = view(&value, case_f32, 0, 0, 0, 0, 0);
    int64_t w = onepass_shard_states_width(4, 0, 1), f = onepass_shard_statistics_width(0, 1);
    int64_t u = onepass_shard_sums_width(4);
    const onepass_tensor *s = view(sent, case_f64, 2, 2, w, 0, 32), *t = view(merged, case_f64, 2, 2, f, 0, 32);
    const onepass_tensor *sums = view(of_sums, case_f64, 2, 2, u, 0, 8);
    const onepass_tensor *to = view(complete, case_f64, 2, 2, f, 0, 32);
    const onepass_tensor *all = view(of_sums, case_f64, 3, 1, 2, 8, 0);
    onepass_logits_options o = {.size = sizeof o, .divergence = ONEPASS_JS, .mixture = 0.5, .total_columns = 4};
    CHECK(onepass_shard_sums_width(-1) == -1 && onepass_shard_sums_width(0) == 4 && u == 7, "widths");
    must(onepass_shard_states(handle, x, y, NULL, &o, s));
    must(onepass_shard_merge(handle, view(sent, case_f64, 3, 1, 2, 32, 0), t));
    refused(onepass_shard_loss(handle, x, y, t, &o, v, NULL, NULL), "statistics", "lacks the sums");
    refused(onepass_shard_sums(handle, x, y, t, &o, view(of_sums, case_f64, 2, 2, u - 1, 0, 8)), "sums", "need");
    refused(onepass_shard_sums(handle, x, NULL, t, &o, sums), "targets", "required");
    onepass_logits_options other = o;
    other.divergence = ONEPASS_KL;
    other.mixture = 0;
    refused(onepass_shard_sums(handle, x, y, t, &other, sums), "options.divergence", "has sums");
    other.divergence = ONEPASS_TOTAL_VARIATION;
    refused(onepass_shard_sums(handle, x, y, t, &other, sums), "statistics", "another loss");
    other = o;
    other.total_columns = 5;
    refused(onepass_shard_sums(handle, x, y, t, &other, sums), "statistics", "4 columns");
    memset(of_sums, 0, sizeof of_sums);
    refused(onepass_shard_merge_sums(handle, t, all, to), "gathered", "row 0 of rank 0");
    must(onepass_shard_sums(handle, x, y, t, &o, sums));
    refused(onepass_shard_merge_sums(handle, t, view(of_sums, case_f64, 3, 0, 2, 8, 0), to), "gathered", "rank");
    double twice[2][2][8];
    memcpy(twice[0], of_sums, sizeof of_sums);
    memcpy(twice[1], of_sums, sizeof of_sums);
    refused(onepass_shard_merge_sums(handle, t, view(twice, case_f64, 3, 2, 2, 8, 0), to), "statistics", "8");
    twice[1][0][2] = 0.25;
    refused(onepass_shard_merge_sums(handle, t, view(twice, case_f64, 3, 2, 2, 8, 0), to), "gathered", "mixture 0.25");
    must(onepass_shard_merge_sums(handle, t, all, to));
    refused(onepass_shard_merge_sums(handle, to, all, t), "statistics", "kind");
    refused(onepass_shard_sums(handle, x, y, to, &o, sums), "statistics", "has the sums");
    must(onepass_shard_loss(handle, x, y, to, &o, v, NULL, NULL));
    o.divergence = ONEPASS_SKEW_KL;
    refused(onepass_shard_loss(handle, x, y, to, &o, v, NULL, NULL), "statistics", "another loss");
    forget();
}

/* Divergences of equal logits are exactly 0 however they are cut. */
static void test_equal_sides(onep_level level, onepass_handle *handle)
{
    test_random random = test_random_stream(5 + (uint64_t)level);
    for (int divergence = ONEPASS_KL; divergence <= ONEPASS_TOTAL_VARIATION; divergence++) {
        CHECK(case_begin(&c, "divergence_logits_logits"), "no cases");
        c.leading[0] = 3;
        c.extents['C' - 'A'] = 333;
        c.family = LOGITS_GAUSSIAN;
        c.seed = test_random_bits(&random);
        c.options[LOGITS_DIVERGENCE] = divergence;
        c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
        case_settle(&c);
        CHECK(case_make(&c), "no memory");
        for (int64_t i = 0; i < 3 * 333; i++)
            case_put(&c, LOGITS_TARGETS, i, case_get(&c, LOGITS_PREDICTIONS, i));
        case_remember(&c);
        group g = {3, {0, 100, 101, 333}};
        describe("equal sides", &g, level);
        results of;
        play(handle, &c, &g, 0, &of);
        for (int row = 0; row < 3; row++) {
            double got = case_load(case_f32, of.of[LOGITS_VALUE][0] + row * 4);
            CHECK(got == 0, "row %d: %g", row, got);
        }
        forget();
    }
}

/* Slices of a single column: what has no other columns is undefined all the same where that column is. */
static void test_one_column(onep_level level, onepass_handle *handle)
{
    static const double column[] = {(double)NAN, (double)INFINITY, (double)-INFINITY, 3};
    const double others[] = {(double)NAN, (double)NAN, 0, 0};
    enum { MAX = 12 }; /* after a header of 6 and 6 of the slice: max, others and spread of its softmax */
    test_context("one column, level %s", onep_level_name(level));
    double states[4][MAX + 3];
    onepass_logits_options options = {.size = sizeof options, .total_columns = 1};
    CHECK(onepass_shard_states_width(1, 0, 0) == MAX + 3, "%d", (int)onepass_shard_states_width(1, 0, 0));
    must(onepass_shard_states(handle, view((void *)column, case_f64, 2, 4, 1, 0, 0), NULL, NULL, &options,
                              view(states, case_f64, 2, 4, MAX + 3, 0, 0)));
    for (int row = 0; row < 4; row++)
        for (int k = 0; k < 3; k++) {
            double got = states[row][MAX + k], expected = k == 0 ? column[row] : others[row];
            CHECK(isnan(expected) ? isnan(got) : got == expected, "row %d, number %d: %g, not %g", row, k, got,
                  expected);
        }
    forget();
}

int main(void)
{
    test_begin("test_logits_shards");
    test_print_levels();
    for (int level = ONEP_REF; level < ONEP_LEVELS; level++) {
        if (level != ONEP_REF && !test_covers((onep_level)level))
            continue;
        onepass_handle *handle = test_handle((onep_level)level, 1 + level % 3);
        for (int i = 0; i < 600; i += test_one_in(4))
            test_any((onep_level)level, handle, i / test_one_in(4));
        for (int i = 0; i < 24; i += test_one_in(6))
            test_borders((onep_level)level, handle, i / test_one_in(6));
        for (int i = 0; i < 100 && level != ONEP_REF; i += test_one_in(4))
            test_one_slice((onep_level)level, handle, i / test_one_in(4));
        test_blocks((onep_level)level, handle);
        test_equal_sides((onep_level)level, handle);
        test_one_column((onep_level)level, handle);
        test_refusals(handle);
        test_sums_refusals(handle);
        onepass_destroy(handle);
    }
    case_free(&c);
    return test_end();
}
