/*
 * Cases of the merges of losses over several ranks: what is merged is drawn. Both are in double: 1e-13 of the sum of
 * sizes.
 */
#include <math.h>

#include "cases/shards.h"

/* ---- merge ------------------------------------------------------------------------------------------------------- */

enum { GATHERED, MERGED };

typedef struct drawn {
    int kind, sides, indices;
    int64_t slices_at;
    int slice;
} drawn;

/* What the states of this case are of: its family. */
static drawn drawn_of(const op_case *c)
{
    drawn d = {.kind = c->family % KINDS, .indices = c->family / KINDS};
    d.sides = d.kind == NO_DIVERGENCE ? 1 : 3;
    d.slices_at = SCALES + d.sides + PICK * d.indices;
    d.slice = SIDES + SIDE * d.sides;
    return d;
}

static int has_divergence(const drawn *d)
{
    return d->kind == FORWARD_KL || d->kind == REVERSE_KL;
}

static void settle_merge(op_case *c)
{
    drawn d = drawn_of(c);
    case_argument *a = c->argument;
    if (case_extent(c, 'R') == 0)
        c->extents['R' - 'A'] = 1;
    a[GATHERED].dtype = a[MERGED].dtype = case_f64;
    a[GATHERED].layout = a[GATHERED].layout >= CASE_REPEATED_ROWS ? CASE_COMPACT : a[GATHERED].layout;
    c->extents['W' - 'A'] = onepass_shard_states_width(2 * SLICE, d.indices, d.sides > 1);
    c->extents['F' - 'A'] = onepass_shard_statistics_width(d.indices, d.sides > 1);
}

static void begin_merge(op_case *c)
{
    c->extents['R' - 'A'] = 3;
    c->extents['N' - 'A'] = 2;
    settle_merge(c);
}

static double sent(const op_case *c, int64_t rank, int64_t row, int64_t place)
{
    return case_was(c, GATHERED, (rank * case_extent(c, 'N') + row) * case_extent(c, 'W') + place);
}

static void generate_merge(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    drawn d = drawn_of(c);
    int64_t ranks = case_extent(c, 'R'), rows = case_extent(c, 'N'), width = case_extent(c, 'W');
    for (int64_t rank = 0; rank < ranks; rank++) {
        int64_t slices = case_random_below(&random, 3), columns = slices * SLICE - (slices > 0 ? 17 : 0);
        for (int64_t row = 0; row < rows; row++) {
            int64_t at = (rank * rows + row) * width;
            double head[] = {(double)columns, d.kind, d.indices, (double)slices, 64, 1, 0.5, 2};
            for (int64_t k = 0; k < width; k++)
                case_put(c, GATHERED, at + k, k < SCALES + d.sides ? head[k] : 0);
            for (int i = 0; i < d.indices && (row + i) % ranks == rank; i++) {
                case_put(c, GATHERED, at + SCALES + d.sides + PICK * i, 1);
                case_put(c, GATHERED, at + SCALES + d.sides + PICK * i + 1, case_random_normal(&random));
                case_put(c, GATHERED, at + SCALES + d.sides + PICK * i + 2, case_random_unit(&random));
            }
            for (int64_t s = 0; s < slices; s++) {
                int64_t place = at + d.slices_at + s * d.slice;
                for (int side = 0; side < d.sides; side++) {
                    double max = 3 * case_random_normal(&random);
                    case_put(c, GATHERED, place + SIDES + SIDE * side + MAX, max);
                    case_put(c, GATHERED, place + SIDES + SIDE * side + OTHERS, 20 * case_random_unit(&random));
                    case_put(c, GATHERED, place + SIDES + SIDE * side + SPREAD, 30 * case_random_unit(&random));
                    if (side == 0)
                        case_put(c, GATHERED, place + BEST, max);
                }
                case_put(c, GATHERED, place + FIRST, (double)(s * SLICE + case_random_below(&random, SLICE - 17)));
                case_put(c, GATHERED, place + DIVERGENCE, has_divergence(&d) ? case_random_unit(&random) : 0);
                case_put(c, GATHERED, place + BARE, (double)-INFINITY);
                case_put(c, GATHERED, place + BELOW, 5 * case_random_unit(&random));
                case_put(c, GATHERED, place + WEIGHTS, 9 * case_random_unit(&random));
            }
        }
    }
}

/* The numbers of one slice of a row. */
typedef struct slice_walk {
    int64_t rank, slice;
    double columns; /* of the ranks before */
    double of[SIDES + 3 * SIDE];
} slice_walk;

static int next_slice(const op_case *c, int64_t row, const drawn *d, slice_walk *w)
{
    int64_t ranks = case_extent(c, 'R');
    while (w->rank < ranks && w->slice >= (int64_t)sent(c, w->rank, row, SLICES)) {
        w->columns += sent(c, w->rank++, row, COLUMNS);
        w->slice = 0;
    }
    for (int k = 0; k < d->slice && w->rank < ranks; k++)
        w->of[k] = sent(c, w->rank, row, d->slices_at + w->slice * d->slice + k);
    w->slice++;
    return w->rank < ranks;
}

static void put_merged(op_case *c, int64_t row, int64_t place, long double x, long double size)
{
    case_expected(c, MERGED, row * case_extent(c, 'F') + place, x, 1e-13L * size);
}

static void expect_merged(op_case *c, int64_t row, const drawn *d)
{
    static const long double scale[] = {1, 0.5L, 2};
    long double max[3], total[3], most_below = 0, weights = 0;
    double first = -1, best = -INFINITY;
    slice_walk w = {0};
    for (int side = 0; side < 3; side++)
        max[side] = -INFINITY, total[side] = 0;
    while (next_slice(c, row, d, &w)) {
        for (int side = 0; side < d->sides; side++)
            max[side] = fmaxl(max[side], w.of[SIDES + SIDE * side]);
        if (first < 0 || w.of[BEST] > best) {
            best = w.of[BEST];
            first = w.columns + w.of[FIRST];
        }
    }
    put_merged(c, row, ALL_COLUMNS, w.columns, 0);
    put_merged(c, row, ALL_KIND, d->kind < FIRST_WITH_SUMS ? d->kind : -d->kind, 0);
    put_merged(c, row, ALL_INDICES, d->indices, 0);
    put_merged(c, row, ALL_FIRST, first, 0);
    for (int side = 0; side < d->sides; side++) {
        long double spread = 0;
        for (w = (slice_walk){0}; next_slice(c, row, d, &w);) {
            const double *own = &w.of[SIDES + SIDE * side];
            long double apart = (max[side] - own[MAX]) * scale[side], factor = expl(-apart);
            total[side] += factor * (1 + (long double)own[OTHERS]);
            spread += factor * (own[SPREAD] + apart * (1 + (long double)own[OTHERS]));
        }
        put_merged(c, row, ALL_SIDES + SIDE * side + MAX, max[side], 0);
        put_merged(c, row, ALL_SIDES + SIDE * side + OTHERS, total[side] > 0 ? total[side] - 1 : 0, total[side]);
        put_merged(c, row, ALL_SIDES + SIDE * side + SPREAD, spread, spread);
    }
    long double divergence = 0;
    int a = d->kind == REVERSE_KL ? 1 : 2, b = 3 - a;
    for (w = (slice_walk){0}; next_slice(c, row, d, &w);) {
        most_below += w.of[BELOW] + (max[0] - w.of[SIDES + MAX]) * w.of[WEIGHTS];
        weights += w.of[WEIGHTS];
        if (!has_divergence(d))
            continue;
        const double *of_a = &w.of[SIDES + SIDE * a], *of_b = &w.of[SIDES + SIDE * b];
        long double mass_a = expl((of_a[MAX] - max[a]) * scale[a]) * (1 + of_a[OTHERS]) / total[a];
        long double mass_b = expl((of_b[MAX] - max[b]) * scale[b]) * (1 + of_b[OTHERS]) / total[b];
        divergence += mass_a * (w.of[DIVERGENCE] + logl(mass_a / mass_b));
    }
    int has_any = has_divergence(d);
    put_merged(c, row, ALL_BELOW, most_below, most_below);
    put_merged(c, row, ALL_WEIGHTS, weights, weights);
    put_merged(c, row, ALL_DIVERGENCE, divergence, 1 + divergence);
    put_merged(c, row, SUM_S, has_any ? (a == 1 ? divergence : -1) : 0, 1 + divergence);
    put_merged(c, row, SUM_T, has_any ? (a == 1 ? -1 : divergence) : 0, 1 + divergence);
    for (int i = 0; i < d->indices; i++)
        for (int k = 0; k < PICK; k++)
            put_merged(c, row, ALL_SIDES + SIDE * d->sides + PICK * i + k,
                       sent(c, (row + i) % case_extent(c, 'R'), row, SCALES + d->sides + PICK * i + k), 0);
}

static int exact_merge(op_case *c, case_arithmetic arithmetic)
{
    (void)arithmetic; /* in double, whatever level */
    drawn d = drawn_of(c);
    for (int64_t row = 0; row < case_extent(c, 'N'); row++)
        expect_merged(c, row, &d);
    return 1;
}

static const char *const merge_names[] = {"shard_merge", NULL};
const case_definition case_shard_merge = {.names = merge_names,
                                          .families = 3 * KINDS,
                                          .begin = begin_merge,
                                          .settle = settle_merge,
                                          .generate = generate_merge,
                                          .exact = exact_merge};

/* ---- the merge of sums ------------------------------------------------------------------------------------------- */

enum { LACKING, SENT_SUMS, COMPLETE };

static void settle_merge_sums(op_case *c)
{
    case_argument *a = c->argument;
    if (case_extent(c, 'R') == 0)
        c->extents['R' - 'A'] = 1;
    a[LACKING].dtype = a[SENT_SUMS].dtype = a[COMPLETE].dtype = case_f64;
    for (int i = LACKING; i <= SENT_SUMS; i++)
        a[i].layout = a[i].layout >= CASE_REPEATED_ROWS ? CASE_COMPACT : a[i].layout;
    c->extents['W' - 'A'] = onepass_shard_sums_width(2 * SLICE) + (int64_t)(c->seed % 3);
    c->extents['F' - 'A'] = onepass_shard_statistics_width(c->family / 4, 1);
}

static void begin_merge_sums(op_case *c)
{
    c->extents['R' - 'A'] = 3;
    c->extents['N' - 'A'] = 2;
    settle_merge_sums(c);
}

static void generate_merge_sums(op_case *c)
{
    case_random random = case_random_stream(c->seed, 1);
    int64_t ranks = case_extent(c, 'R'), rows = case_extent(c, 'N'), width = case_extent(c, 'W');
    int64_t merged = case_extent(c, 'F'), all = 0;
    int kind = FIRST_WITH_SUMS + c->family % 4;
    for (int64_t rank = 0; rank < ranks; rank++) {
        int64_t slices = case_random_below(&random, 3), columns = slices * SLICE - (slices > 0 ? 17 : 0);
        double head[SUMS_BEGIN] = {(double)columns, kind, 0.3, (double)slices};
        all += columns;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t k = 0; k < width; k++)
                case_put(c, SENT_SUMS, (rank * rows + row) * width + k,
                         k < SUMS_BEGIN                   ? head[k]
                         : k < SUMS_BEGIN + SUMS * slices ? case_random_normal(&random)
                                                          : 0);
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < merged; k++)
            case_put(c, LACKING, row * merged + k,
                     k == ALL_COLUMNS   ? (double)all
                     : k == ALL_KIND    ? -kind
                     : k == ALL_INDICES ? c->family / 4
                                        : case_random_normal(&random));
}

static int exact_merge_sums(op_case *c, case_arithmetic arithmetic)
{
    int64_t ranks = case_extent(c, 'R'), rows = case_extent(c, 'N'), width = case_extent(c, 'W');
    int64_t merged = case_extent(c, 'F');
    (void)arithmetic; /* in double, whatever level */
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t k = 0; k < merged; k++)
            case_expected(c, COMPLETE, row * merged + k, case_was(c, LACKING, row * merged + k), 0);
        case_expected(c, COMPLETE, row * merged + ALL_KIND, -case_was(c, LACKING, row * merged + ALL_KIND), 0);
        for (int i = 0; i < SUMS; i++) {
            long double sum = 0, size = 0;
            for (int64_t rank = 0; rank < ranks; rank++) {
                int64_t at = (rank * rows + row) * width, slices = (int64_t)case_was(c, SENT_SUMS, at + SUMS_SLICES);
                for (int64_t slice = 0; slice < slices; slice++) {
                    double one = case_was(c, SENT_SUMS, at + SUMS_BEGIN + SUMS * slice + i);
                    sum += one;
                    size += fabs(one);
                }
            }
            case_expected(c, COMPLETE, row * merged + ALL_DIVERGENCE + i, sum, 1e-13L * size);
        }
    }
    return 1;
}

static const char *const merge_sums_names[] = {"shard_merge_sums", NULL};
const case_definition case_shard_merge_sums = {.names = merge_sums_names,
                                               .families = 12,
                                               .begin = begin_merge_sums,
                                               .settle = settle_merge_sums,
                                               .generate = generate_merge_sums,
                                               .exact = exact_merge_sums};
