/*
 * The head over several ranks, all of them in this process: 1, 2, 3 and 5, uneven, some without rows. Every result is
 * held to what the head of the joined batch is held to (cases/head.c), at every level; a single rank has its bits, and
 * all ranks have the same statistics to the bit. Gradients also by finite differences, over all ranks at once; special
 * values; threads; what is refused.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry_points.h"
#include "head_cases.h"

enum { MOST_RANKS = 5 };

/* ---- a batch in parts -------------------------------------------------------------------------------------------- */

typedef struct group {
    int ranks;
    int64_t rows[MOST_RANKS];
} group;

static int64_t first_row(const group *g, int rank)
{
    int64_t row = 0;
    for (int r = 0; r < rank; r++)
        row += g->rows[r];
    return row;
}

/* Memory for every tensor of a test, and its views; freed all at once. */
static struct {
    void *memory[256];
    onepass_tensor tensor[256];
    int64_t shape[256][2];
    int count;
} made;

static void forget(void)
{
    for (int i = 0; i < made.count; i++)
        free(made.memory[i]);
    made.count = 0;
}

static const onepass_tensor *view(void *data, onepass_dtype dtype, int ndim, int64_t a, int64_t b)
{
    int i = made.count++;
    if (made.count > 256)
        exit(2);
    made.memory[i] = NULL;
    made.shape[i][0] = a;
    made.shape[i][1] = b;
    made.tensor[i] = (onepass_tensor){
        .data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = dtype, .shape = made.shape[i]};
    return &made.tensor[i];
}

/* A new tensor full of poison. */
static const onepass_tensor *fresh(onepass_dtype dtype, int ndim, int64_t a, int64_t b)
{
    size_t bytes = (size_t)a * (size_t)(ndim > 1 ? b : 1) * case_size(dtype);
    void *memory = malloc(bytes + 1);
    if (!memory)
        exit(2);
    memset(memory, 0xff, bytes);
    const onepass_tensor *t = view(memory, dtype, ndim, a, b);
    made.memory[made.count - 1] = memory;
    return t;
}

static double element(const onepass_tensor *t, int64_t index)
{
    onep_type type = onep_type_of(t->dtype);
    return onep_load(type, (const char *)t->data + (size_t)index * onep_type_size(type));
}

/* Rows of a compact tensor of a case. */
static const onepass_tensor *part(const op_case *c, int argument, const group *g, int rank)
{
    const case_argument *a = &c->argument[argument];
    size_t row = (size_t)a->shape[1] * case_size(a->dtype);
    return view((char *)a->tensor.data + a->tensor.byte_offset + (size_t)first_row(g, rank) * row, a->dtype, 2,
                g->rows[rank], a->shape[1]);
}

static const onepass_tensor *all_of(const op_case *c, int argument)
{
    const case_argument *a = &c->argument[argument];
    return a->given ? &a->tensor : NULL;
}

/* ---- the calls of one rank --------------------------------------------------------------------------------------- */

typedef struct rank_results {
    const onepass_tensor *product, *output, *mean, *rstd;
    const onepass_tensor *running_mean, *running_var, *counter;
    const onepass_tensor *gradients[6]; /* input, weight, bias, gamma, beta, scale */
} rank_results;

/* What all ranks have sent. */
typedef struct exchange {
    const onepass_tensor *counts, *first, *second;
} exchange;

static exchange new_exchange(const group *g, int64_t columns)
{
    exchange e = {fresh(case_f64, 1, g->ranks, 0), fresh(case_f64, 2, g->ranks, columns),
                  fresh(case_f64, 2, g->ranks, columns)};
    for (int r = 0; r < g->ranks; r++)
        ((double *)e.counts->data)[r] = (double)g->rows[r];
    return e;
}

static const onepass_tensor *sent(const onepass_tensor *gathered, int rank, int64_t columns)
{
    return view((double *)gathered->data + rank * columns, case_f64, 1, columns, 0);
}

static void *claim(size_t bytes)
{
    return fresh(case_u8, 1, (int64_t)bytes + 1, 0)->data;
}

static void must(onepass_status status)
{
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
}

static onepass_head_options options_of(const op_case *f)
{
    return (onepass_head_options){.size = sizeof(onepass_head_options),
                                  .cumulative = (int32_t)f->options[HEAD_CUMULATIVE],
                                  .eps = f->options[HEAD_EPS],
                                  .momentum = f->options[HEAD_MOMENTUM],
                                  .bias = all_of(f, HEAD_BIAS),
                                  .gamma = all_of(f, HEAD_GAMMA),
                                  .beta = all_of(f, HEAD_BETA),
                                  .scale = all_of(f, HEAD_SCALE)};
}

static const onepass_tensor *copy_before(const op_case *f, int argument)
{
    const case_argument *a = &f->argument[argument];
    if (!a->given)
        return NULL;
    const onepass_tensor *t = fresh(a->dtype, 1, a->count, 0);
    for (int64_t i = 0; i < a->count; i++)
        if (argument == HEAD_COUNTER)
            ((int64_t *)t->data)[i] = (int64_t)case_was(f, argument, i);
        else
            onep_store(onep_type_of(a->dtype), (char *)t->data + (size_t)i * case_size(a->dtype),
                       case_was(f, argument, i));
    return t;
}

/* Every rank's forward pass of a joined case; results[rank]. */
static void forward(onepass_handle *handle, const op_case *f, const group *g, exchange *e, rank_results *results)
{
    int64_t columns = case_extent(f, 'N');
    onepass_dtype computed = f->argument[HEAD_PRODUCT].dtype;
    const onepass_tensor *weight = all_of(f, HEAD_WEIGHT);
    *e = new_exchange(g, columns);
    size_t bytes;
    for (int r = 0; r < g->ranks; r++) {
        const onepass_tensor *input = part(f, HEAD_INPUT, g, r);
        results[r] = (rank_results){.product = fresh(computed, 2, g->rows[r], columns)};
        must(onepass_head_statistics_workspace_size(handle, input, weight, &bytes));
        must(onepass_head_statistics(handle, input, weight, results[r].product, sent(e->first, r, columns),
                                     sent(e->second, r, columns), claim(bytes), bytes));
    }
    for (int r = 0; r < g->ranks; r++) {
        rank_results *to = &results[r];
        onepass_head_options o = options_of(f);
        to->output = fresh(f->argument[HEAD_OUTPUT].dtype, 2, g->rows[r], columns);
        to->mean = fresh(f->argument[HEAD_MEAN].dtype, 1, columns, 0);
        to->rstd = fresh(f->argument[HEAD_RSTD].dtype, 1, columns, 0);
        o.running_mean = to->running_mean = copy_before(f, HEAD_RUNNING_MEAN);
        o.running_var = to->running_var = copy_before(f, HEAD_RUNNING_VAR);
        o.batches_tracked = to->counter = copy_before(f, HEAD_COUNTER);
        must(onepass_head_synchronised_workspace_size(handle, to->product, &bytes));
        o.workspace = claim(bytes);
        o.workspace_size = bytes;
        must(onepass_head_synchronised(handle, to->product, e->counts, e->first, e->second, &o, to->output, to->mean,
                                       to->rstd));
    }
}

/* Every rank's backward pass, from what the joined forward pass stored. */
static void backward(onepass_handle *handle, const op_case *f, const op_case *b, const group *g, rank_results *results)
{
    static const int of[] = {HEAD_B_INPUT, HEAD_B_WEIGHT, HEAD_B_BIAS, HEAD_B_GAMMA, HEAD_B_BETA, HEAD_B_SCALE};
    int64_t columns = case_extent(b, 'N');
    const onepass_tensor *weight = all_of(b, HEAD_B_WEIGHT), *mean = all_of(b, HEAD_B_MEAN);
    const onepass_tensor *rstd = all_of(b, HEAD_B_RSTD);
    exchange e = new_exchange(g, columns);
    size_t bytes;
    for (int r = 0; r < g->ranks; r++) {
        const onepass_tensor *product = part(b, HEAD_B_PRODUCT, g, r);
        must(onepass_head_backward_sums_workspace_size(handle, product, &bytes));
        must(onepass_head_backward_sums(handle, part(b, HEAD_GRAD_OUTPUT, g, r), part(b, HEAD_B_OUTPUT, g, r), product,
                                        mean, rstd, sent(e.first, r, columns), sent(e.second, r, columns), claim(bytes),
                                        bytes));
    }
    for (int r = 0; r < g->ranks; r++) {
        const onepass_tensor *input = part(b, HEAD_B_INPUT, g, r), **to = results[r].gradients;
        onepass_head_options o = options_of(f);
        for (int i = 0; i < 6; i++) {
            const case_argument *a = &b->argument[of[i]];
            to[i] = !a->given ? NULL
                    : i == 0  ? fresh(a->dtype, 2, g->rows[r], a->shape[1])
                    : i == 1  ? fresh(a->dtype, 2, a->shape[0], a->shape[1])
                              : fresh(a->dtype, 1, a->count, 0);
        }
        onepass_head_gradients gradients = {sizeof gradients, to[0], to[1], to[2], to[3], to[4], to[5]};
        must(onepass_head_backward_workspace_size(handle, input, weight, &o, &bytes));
        o.workspace = claim(bytes);
        o.workspace_size = bytes;
        must(onepass_head_backward_synchronised(handle, part(b, HEAD_GRAD_OUTPUT, g, r), part(b, HEAD_B_OUTPUT, g, r),
                                                input, weight, part(b, HEAD_B_PRODUCT, g, r), mean, rstd, e.counts,
                                                e.first, e.second, &o, &gradients));
    }
}

/* ---- against the joined batch ------------------------------------------------------------------------------------ */

static void compare(const op_case *c, int argument, int64_t index, const onepass_tensor *t, int64_t at)
{
    const case_argument *a = &c->argument[argument];
    double got = element(t, at);
    CHECK(case_close_in(a->dtype, got, a->expected[index], a->allowed[index]),
          "%s[%" PRId64 "]: %.17g, of the joined batch %.17Lg +- %.3Lg", a->info->name, index, got, a->expected[index],
          a->allowed[index]);
}

static int same_bits(const onepass_tensor *a, const onepass_tensor *b)
{
    return !a || memcmp(a->data, b->data, (size_t)onep_elements(a) * case_size(a->dtype)) == 0;
}

static void check_forward(const op_case *f, const group *g, const rank_results *results)
{
    int64_t columns = case_extent(f, 'N');
    for (int r = 0; r < g->ranks; r++) {
        const rank_results *of = &results[r];
        for (int64_t i = 0; i < g->rows[r] * columns; i++) {
            compare(f, HEAD_OUTPUT, first_row(g, r) * columns + i, of->output, i);
            compare(f, HEAD_PRODUCT, first_row(g, r) * columns + i, of->product, i);
        }
        for (int64_t j = 0; j < columns; j++) {
            compare(f, HEAD_MEAN, j, of->mean, j);
            compare(f, HEAD_RSTD, j, of->rstd, j);
            if (of->running_mean) {
                compare(f, HEAD_RUNNING_MEAN, j, of->running_mean, j);
                compare(f, HEAD_RUNNING_VAR, j, of->running_var, j);
            }
        }
        if (of->counter)
            CHECK(*(const int64_t *)of->counter->data == (int64_t)case_was(f, HEAD_COUNTER, 0) + 1, "the counter");
        CHECK(same_bits(of->mean, results[0].mean) && same_bits(of->rstd, results[0].rstd) &&
                  same_bits(of->running_mean, results[0].running_mean) &&
                  same_bits(of->running_var, results[0].running_var),
              "rank %d has other statistics than rank 0", r);
    }
}

/* Gradients to the input are the joined batch's; the others are so when all ranks' are added up, each of which is
 * rounded to its type. */
static void check_backward(const op_case *b, const group *g, const rank_results *results)
{
    static const int to[] = {HEAD_GRAD_INPUT, HEAD_GRAD_WEIGHT, HEAD_GRAD_BIAS,
                             HEAD_GRAD_GAMMA, HEAD_GRAD_BETA,   HEAD_GRAD_SCALE};
    int64_t depth = case_extent(b, 'K');
    for (int r = 0; r < g->ranks; r++)
        for (int64_t i = 0; i < g->rows[r] * depth; i++)
            compare(b, HEAD_GRAD_INPUT, first_row(g, r) * depth + i, results[r].gradients[0], i);
    for (int t = 1; t < 6; t++) {
        const case_argument *a = &b->argument[to[t]];
        for (int64_t i = 0; a->given && i < a->count; i++) {
            long double sum = 0, rounded = 0;
            for (int r = 0; r < g->ranks; r++) {
                double x = element(results[r].gradients[t], i);
                sum += x;
                rounded += case_half_unit(a->dtype, x);
                CHECK(t != 2 || x == 0, "gradients.bias[%" PRId64 "] of rank %d: %g", i, r, x);
            }
            CHECK(test_close((double)sum, a->expected[i], a->allowed[i] + rounded),
                  "%s[%" PRId64 "]: %.17Lg in all, of the joined batch %.17Lg +- %.3Lg", a->info->name, i, sum,
                  a->expected[i], a->allowed[i] + rounded);
        }
    }
}

static int has_bits_of(const op_case *c, int argument, const onepass_tensor *t)
{
    const case_argument *a = &c->argument[argument];
    return !a->given || memcmp((const char *)a->tensor.data + a->tensor.byte_offset, t->data,
                               (size_t)a->count * case_size(a->dtype)) == 0;
}

/* A single rank has the bits of the head by itself. (The reference holds the product in double, and stores it rounded:
 * only in fp64 is the stored one the same.) */
static void check_single(const op_case *f, const op_case *b, const rank_results *of)
{
    static const int to[] = {HEAD_GRAD_INPUT, HEAD_GRAD_WEIGHT, HEAD_GRAD_BIAS,
                             HEAD_GRAD_GAMMA, HEAD_GRAD_BETA,   HEAD_GRAD_SCALE};
    CHECK(has_bits_of(f, HEAD_OUTPUT, of->output) && has_bits_of(f, HEAD_PRODUCT, of->product) &&
              has_bits_of(f, HEAD_MEAN, of->mean) && has_bits_of(f, HEAD_RSTD, of->rstd) &&
              has_bits_of(f, HEAD_RUNNING_MEAN, of->running_mean) && has_bits_of(f, HEAD_RUNNING_VAR, of->running_var),
          "a single rank has other bits than the head");
    for (int t = 0; t < 6; t++)
        CHECK(has_bits_of(b, to[t], of->gradients[t]), "a single rank has other bits than the head: gradient %d", t);
}

static op_case f, b;

/* The joined batch's cases, checked: f and b. */
static void join(const group *g, onep_type type, int64_t depth, int64_t columns, int variant, onepass_handle *handle,
                 uint64_t seed)
{
    onepass_dtype dtype = test_dtype(type), computed = case_computed(dtype);
    op_case *both[] = {&f, &b};
    case_begin(&f, "head");
    case_begin(&b, "head_backward");
    for (int k = 0; k < 2; k++) {
        op_case *c = both[k];
        c->extents['B' - 'A'] = first_row(g, g->ranks);
        c->extents['K' - 'A'] = depth;
        c->extents['N' - 'A'] = columns;
        c->seed = seed;
        c->family = variant % 4 == 3 ? HEAD_MEANS : HEAD_ORDINARY;
        c->amount = 20;
        for (int i = 0; i < c->arguments; i++) {
            if (case_is_float(c->argument[i].dtype))
                c->argument[i].dtype = strlen(case_shape_of(c, i)) > 1 ? dtype : computed;
            if (strstr(c->argument[i].info->name, "scale"))
                c->argument[i].is_one = variant % 2;
        }
    }
    f.options[HEAD_CUMULATIVE] = variant % 3 == 1;
    if (variant % 4 == 2) { /* a head with nothing optional */
        for (int i = HEAD_BIAS; i <= HEAD_COUNTER; i++)
            f.argument[i].given = 0;
        f.options[HEAD_CUMULATIVE] = 0;
        for (int i = HEAD_B_BIAS; i <= HEAD_B_SCALE; i++)
            b.argument[i].given = 0;
    }
    case_settle(&f);
    case_settle(&b);
    if (!case_make(&f) || !case_place(&b))
        exit(2);
    case_check(&f, handle, &test_judge);
    head_continue(&b, &f);
    head_fill_grad_output(&b);
    case_remember(&b);
    case_check(&b, handle, &test_judge);
}

static void run(const group *g, onep_level level, int32_t threads, onep_type type, int64_t depth, int64_t columns,
                int variant, uint64_t seed)
{
    char rows[80] = "";
    for (int r = 0, used = 0; r < g->ranks; r++)
        used += snprintf(rows + used, sizeof rows - (size_t)used, " %" PRId64, g->rows[r]);
    test_context("level %s, type %s, rows%s, depth %" PRId64 ", columns %" PRId64 ", variant %d",
                 onep_level_name(level), onep_type_name(type), rows, depth, columns, variant);
    onepass_handle *handle = layer_handle(level, threads, NULL);
    rank_results results[MOST_RANKS];
    exchange e;
    join(g, type, depth, columns, variant, handle, seed);
    forward(handle, &f, g, &e, results);
    check_forward(&f, g, results);
    backward(handle, &f, &b, g, results);
    check_backward(&b, g, results);
    if (g->ranks == 1 && (level != ONEP_REF || type == ONEP_F64))
        check_single(&f, &b, &results[0]);
    forget();
    onepass_destroy(handle);
}

static void test_groups(int level, test_random *random)
{
    static const group groups[] = {
        {1, {7}},       {2, {4, 5}},        {2, {1, 1}},          {2, {0, 6}},
        {3, {5, 0, 2}}, {3, {1, 9, 1}},     {5, {3, 1, 0, 4, 2}}, {5, {0, 0, 2, 0, 0}},
        {2, {270, 3}},  {3, {2, 300, 265}}, {1, {530}},
    };
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
            int large = first_row(&groups[i], groups[i].ranks) > 100;
            if (large && test_is_slow((onep_level)level) && type != (int)(i % 4))
                continue;
            run(&groups[i], (onep_level)level, 1 + (int32_t)(i % 3), (onep_type)type, large ? 3 : 1 + (int64_t)(i * 3),
                large ? 21 : 1 + (int64_t)(5 * i), (int)(i + (size_t)type), test_random_bits(random));
        }
    for (int i = 0; i < 40 / test_one_in(4); i++) {
        group g = {.ranks = 1 + (int)test_random_below(random, MOST_RANKS)};
        for (int r = 0; r < g.ranks; r++)
            g.rows[r] = test_random_below(random, 4) == 0 ? 0 : test_random_below(random, 30);
        if (first_row(&g, g.ranks) < 2)
            g.rows[0] += 2;
        run(&g, (onep_level)level, 1 + (int32_t)test_random_below(random, 3),
            (onep_type)test_random_below(random, ONEP_FLOAT_TYPES), 1 + test_random_below(random, 20),
            1 + test_random_below(random, 40), (int)test_random_below(random, 12), test_random_bits(random));
    }
}

/* ---- empty, special, threads ------------------------------------------------------------------------------------- */

/* No rank has a row: the batch is counted, running statistics stay, mean and rstd are NaN. */
static void test_empty(int level)
{
    group g = {2, {0, 0}};
    onepass_handle *handle = layer_handle((onep_level)level, 1, NULL);
    rank_results results[MOST_RANKS];
    exchange e;
    test_context("level %s: no rows at all", onep_level_name((onep_level)level));
    join(&g, ONEP_F32, 4, 6, 0, handle, 3);
    forward(handle, &f, &g, &e, results);
    check_forward(&f, &g, results);
    for (int j = 0; j < 6; j++)
        CHECK(isnan(element(results[1].mean, j)) && isnan(element(results[1].rstd, j)) &&
                  element(results[1].running_mean, j) == case_was(&f, HEAD_RUNNING_MEAN, j),
              "feature %d", j);
    backward(handle, &f, &b, &g, results);
    check_backward(&b, &g, results);
    forget();
    onepass_destroy(handle);
}

/* A bad row of one rank spoils all of them, as it does the joined batch. */
static void test_special(int level)
{
    static const double spoils[] = {INFINITY, -INFINITY, NAN};
    group g = {3, {3, 4, 2}};
    for (int i = 0; i < 3; i++) {
        onepass_handle *handle = layer_handle((onep_level)level, 1, NULL);
        rank_results results[MOST_RANKS];
        exchange e;
        test_context("level %s: %g in rank 1", onep_level_name((onep_level)level), spoils[i]);
        join(&g, ONEP_F32, 4, 6, 0, handle, 5);
        case_put(&f, HEAD_INPUT, 5 * 4, spoils[i]);
        case_remember(&f);
        f.expected_for = 0;
        case_check(&f, handle, &test_judge);
        forward(handle, &f, &g, &e, results);
        for (int r = 0; r < 3; r++) {
            for (int64_t k = 0; k < g.rows[r] * 6; k++)
                CHECK(isnan(element(results[r].output, k)), "output[%" PRId64 "] of rank %d is a number", k, r);
            for (int j = 0; j < 6; j++) {
                double got = element(results[r].running_mean, j), joined = case_get(&f, HEAD_RUNNING_MEAN, j);
                CHECK(isnan(joined) ? isnan(got) : got == joined, "running_mean[%d]: %g, of the joined batch %g", j,
                      got, joined);
            }
        }
        forget();
        onepass_destroy(handle);
    }
}

static void test_threads(int level)
{
    group g = {2, {280, 70}};
    uint64_t first = 0;
    for (int threads = 1; threads <= 4; threads++) {
        onepass_handle *handle = layer_handle((onep_level)level, threads, NULL);
        rank_results results[MOST_RANKS];
        exchange e;
        test_context("%d threads", threads);
        join(&g, ONEP_F32, 30, 140, 0, handle, 9);
        forward(handle, &f, &g, &e, results);
        backward(handle, &f, &b, &g, results);
        uint64_t digest = 0xcbf29ce484222325u; /* FNV-1a */
        for (int i = 0; i < made.count; i++)
            for (size_t k = 0; made.memory[i] && made.tensor[i].dtype.bits > 8 &&
                               k < (size_t)onep_elements(&made.tensor[i]) * case_size(made.tensor[i].dtype);
                 k++)
                digest = (digest ^ ((unsigned char *)made.memory[i])[k]) * 0x100000001b3u;
        first = threads == 1 ? digest : first;
        CHECK(digest == first, "%d threads give other bits than one", threads);
        forget();
        onepass_destroy(handle);
    }
}

/* ---- finite differences ------------------------------------------------------------------------------------------ */

/* The loss of all ranks, sum of g output, of the numbers as they are now. */
static double loss(onepass_handle *handle, const group *g, const double *upstream)
{
    rank_results results[MOST_RANKS];
    exchange e;
    double sum = 0;
    int64_t columns = case_extent(&f, 'N');
    forward(handle, &f, g, &e, results);
    for (int r = 0; r < g->ranks; r++)
        for (int64_t i = 0; i < g->rows[r] * columns; i++)
            sum += upstream[first_row(g, r) * columns + i] * element(results[r].output, i);
    forget();
    return sum;
}

static void test_differences(int level, test_random *random)
{
    static const int inputs[] = {HEAD_INPUT, HEAD_WEIGHT, HEAD_BIAS, HEAD_GAMMA, HEAD_BETA, HEAD_SCALE};
    static const group g = {3, {3, 0, 4}};
    double upstream[7 * 5];
    onepass_handle *handle = layer_handle((onep_level)level, 1, NULL);
    test_context("finite differences, level %s", onep_level_name((onep_level)level));
    join(&g, ONEP_F64, 3, 5, 0, handle, test_random_bits(random));
    for (int i = 0; i < 7 * 5; i++)
        upstream[i] = case_get(&b, HEAD_GRAD_OUTPUT, i);
    rank_results results[MOST_RANKS];
    double analytic[6][64] = {{0}};
    backward(handle, &f, &b, &g, results);
    for (int t = 0; t < 6; t++)
        for (int r = 0; r < g.ranks; r++)
            for (int64_t i = 0; i < onep_elements(results[r].gradients[t]); i++)
                analytic[t][i + (t == 0 ? first_row(&g, r) * 3 : 0)] += element(results[r].gradients[t], i);
    forget();
    for (int t = 0; t < 6; t++)
        for (int64_t i = 0; i < f.argument[inputs[t]].count; i++) {
            double kept = case_get(&f, inputs[t], i), step = 1e-5;
            case_put(&f, inputs[t], i, kept + step);
            double above = loss(handle, &g, upstream);
            case_put(&f, inputs[t], i, kept - step);
            double below = loss(handle, &g, upstream);
            case_put(&f, inputs[t], i, kept);
            double numeric = (above - below) / (2 * step);
            CHECK(fabs(numeric - analytic[t][i]) <= 1e-7 + 1e-6 * fabs(numeric),
                  "%s[%" PRId64 "]: %.10g, by differences %.10g", f.argument[inputs[t]].info->name, i, analytic[t][i],
                  numeric);
        }
    onepass_destroy(handle);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(op_case *c, onepass_handle *handle, const char *words)
{
    onepass_status status;
    c->entry = entry_point;
    case_call(c, handle, 0x55, &test_judge, &status);
    CHECK(status == ONEPASS_INVALID_ARGUMENT && strstr(onepass_last_error(), words) &&
              strstr(onepass_last_error(), "counts"),
          "%s: not refused with \"%s\": %s", c->name, words, onepass_last_error());
}

static void test_refusals(void)
{
    static const struct {
        double count;
        const char *words;
    } wrong[] = {{-1, "-1; it must be a number of rows"}, {0.5, "0.5; it must be a number of rows"},
                 {(double)NAN, "nan; it must"},           {(double)INFINITY, "inf; it must be a number of rows"},
                 {0x1p60, "it must be a number of rows"}, {1, "rows in all; there must be those of this rank, 4"}};
    static const char *const names[] = {"head_synchronised", "head_backward_synchronised"};
    static op_case c;
    onepass_handle *handle = test_handle(onep_best_level(), 1);
    for (int k = 0; k < 2; k++) {
        int counts = k ? HEAD_B_COUNTS : HEAD_Y_COUNTS;
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            case_begin(&c, names[k]);
            case_settle(&c);
            CHECK(case_make(&c), "no memory");
            for (int r = 0; r < 3; r++)
                case_put(&c, counts, r, r == 1 ? wrong[i].count : 1);
            case_remember(&c);
            refuse(&c, handle, wrong[i].words);
        }
        case_begin(&c, names[k]);
        case_settle(&c);
        c.extents['R' - 'A'] = 0;
        CHECK(case_make(&c), "no memory");
        refuse(&c, handle, "shape [0]; there must be a rank");
    }
    case_begin(&c, "head_synchronised");
    c.extents['B' - 'A'] = 1;
    case_settle(&c);
    CHECK(case_make(&c), "no memory");
    for (int r = 0; r < 3; r++)
        case_put(&c, HEAD_Y_COUNTS, r, r == 2);
    case_remember(&c);
    refuse(&c, handle, "1 row in all; ONEPASS_BATCH_STATISTICS need at least 2 values per feature");
    onepass_destroy(handle);
    case_free(&c);
}

int main(void)
{
    test_begin("test_head_sync");
    test_print_levels();
    test_random random = test_random_stream(1);
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!test_covers((onep_level)level))
            continue;
        test_groups(level, &random);
        test_empty(level);
        test_special(level);
        test_differences(level, &random);
    }
    test_threads((int)onep_best_level());
    test_refusals();
    case_free(&f);
    case_free(&b);
    return test_end();
}
