/*
 * Shards in plain C and double: rows of states and statistics in memory, states by the definition, and the merge of
 * what all ranks have sent, which every level shares.
 *
 * With m, o the maximum and `others` of a slice and M, O those of the row (the first slice with the maximum counted
 * without it), z in units of the temperature:
 *
 *   1 + O = sum of exp(m - M) (1 + o)                  spread = sum of exp(m - M) (spread of the slice + (M - m) (1 +
 * o)) KL(A || B) = sum of a KL(A || B within the slice) + sum of a h(log a/b),  a, b the masses of the slice in A and B
 *
 * h as in terms.h: no term is negative, and all are exactly 0 where both sides are the same. Sums are in the order of
 * the ranks and of their slices.
 */
#include <math.h>

#include "core/sum.h"
#include "core/threads.h"
#include "logits/shard.h"
#include "logits/terms.h"

static double get(const onep_operand *operand, const char *row, int64_t i)
{
    return onep_load(ONEP_F64, row + i * operand->col_stride);
}

static void get_all(const onep_operand *operand, const char *row, int64_t begin, int count, double *to)
{
    for (int i = 0; i < count; i++)
        to[i] = get(operand, row, begin + i);
}

static void put_all(const onep_operand *operand, char *row, int64_t begin, int64_t count, const double *from)
{
    for (int64_t i = 0; i < count; i++)
        onep_store(ONEP_F64, row + (begin + i) * operand->col_stride, from ? from[i] : 0);
}

/* ---- a row of states --------------------------------------------------------------------------------------------- */

static int sides_of(const onep_shard_problem *p)
{
    return onep_shard_sides(p->loss.form != ONEP_NO_TARGET);
}

static char *states_of(const onep_shard_problem *p, int64_t row)
{
    return onep_row_address(&p->states, &p->loss.rows, row);
}

static int64_t slices_begin(int sides, int64_t indices)
{
    return onep_header_doubles(sides) + ONEP_PICK_DOUBLES * indices;
}

onep_shard_header onep_shard_header_of(const onep_shard_problem *p)
{
    const onep_logits_problem *k = &p->loss;
    const double temperatures[ONEP_SIDES] = {k->label_temperature, k->temperature, k->target_temperature};
    onep_shard_header header = {.columns = (double)k->columns,
                                .kind = (double)p->kind,
                                .indices = (double)p->index_count,
                                .slices = (double)onep_shard_slices(k->columns),
                                .bits = p->computed == ONEP_F64 ? 64 : 32};
    for (int side = 0; side < ONEP_SIDES; side++)
        header.scale[side] = 1 / temperatures[side];
    return header;
}

void onep_shard_put_header(const onep_shard_problem *p, int64_t row)
{
    onep_shard_header header = onep_shard_header_of(p);
    put_all(&p->states, states_of(p, row), 0, onep_header_doubles(sides_of(p)), &header.columns);
}

void onep_shard_put_pick(const onep_shard_problem *p, int64_t row, int64_t i, const onep_pick *pick)
{
    int64_t begin = onep_header_doubles(sides_of(p)) + ONEP_PICK_DOUBLES * i;
    put_all(&p->states, states_of(p, row), begin, ONEP_PICK_DOUBLES, &pick->has);
}

void onep_shard_put_slice(const onep_shard_problem *p, int64_t row, int64_t slice, const onep_slice_state *state)
{
    int sides = sides_of(p), count = onep_slice_doubles(sides);
    put_all(&p->states, states_of(p, row), slices_begin(sides, p->index_count) + slice * count, count,
            state ? &state->first : NULL);
}

void onep_shard_put_end(const onep_shard_problem *p, int64_t row)
{
    int sides = sides_of(p);
    int64_t used = slices_begin(sides, p->index_count) + onep_shard_slices(p->loss.columns) * onep_slice_doubles(sides);
    put_all(&p->states, states_of(p, row), used, p->width - used, NULL);
}

int64_t onep_shard_index(const onep_shard_problem *p, int64_t row, int64_t i)
{
    const onep_logits_problem *k = &p->loss;
    const onep_operand *from = k->labels.data ? &k->labels : &p->indices;
    const char *at = onep_row_address(from, &k->rows, row);
    int64_t column = onep_load_integer(from->type, at + (k->labels.data ? 0 : i * from->col_stride)) - k->first_column;
    return column >= 0 && column < k->columns ? column : -1;
}

static double logit_at(const onep_logits_problem *k, int64_t row, int64_t column)
{
    const onep_operand *x = &k->predictions;
    double v = onep_load(x->type, onep_row_address(x, &k->rows, row) + column * x->col_stride);
    return k->softcap > 0 && v != -INFINITY ? k->softcap * tanh(v / k->softcap) : v;
}

static onepass_status run_states(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_shard_problem *p = (const onep_shard_problem *)problem;
    const onep_logits_problem *k = &p->loss;
    const onep_operand *w = &k->class_weights;
    (void)handle, (void)plan;
    for (int64_t row = 0; row < k->rows.count; row++) {
        int64_t label;
        int takes_part = onep_logits_takes_part(k, row, &label);
        onep_shard_put_header(p, row);
        for (int64_t i = 0; i < p->index_count; i++) {
            int64_t column = takes_part ? onep_shard_index(p, row, i) : -1;
            onep_pick pick = {0, 0, 0};
            if (column >= 0)
                pick = (onep_pick){.has = 1,
                                   .v = logit_at(k, row, column),
                                   .weight = w->data ? onep_load(w->type, w->data + column * w->col_stride) : 1};
            onep_shard_put_pick(p, row, i, &pick);
        }
        for (int64_t slice = 0; slice < onep_shard_slices(k->columns); slice++) {
            onep_slice_state state;
            if (takes_part)
                onep_shard_slice(p, row, slice, &state);
            onep_shard_put_slice(p, row, slice, takes_part ? &state : NULL);
        }
        onep_shard_put_end(p, row);
    }
    return ONEPASS_OK;
}

const onep_kernel onep_shard_states_ref[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {NULL, run_states},
                                                             [ONEP_BF16] = {NULL, run_states},
                                                             [ONEP_F32] = {NULL, run_states},
                                                             [ONEP_F64] = {NULL, run_states}};

/* ---- a row of sums ----------------------------------------------------------------------------------------------- */

static int64_t sums_begin(int64_t slice)
{
    return ONEP_SUMS_HEADER_DOUBLES + slice * ONEP_SUMS_DOUBLES;
}

void onep_shard_put_sums(const onep_shard_problem *p, int64_t row, int64_t slice, const onep_slice_sums *sums)
{
    put_all(&p->states, states_of(p, row), sums_begin(slice), ONEP_SUMS_DOUBLES, sums ? &sums->divergence : NULL);
}

void onep_shard_put_sums_ends(const onep_shard_problem *p, int64_t row)
{
    int64_t slices = onep_shard_slices(p->loss.columns), used = sums_begin(slices);
    onep_sums_header header = {
        .columns = (double)p->loss.columns, .kind = (double)p->kind, .mixture = p->mixture, .slices = (double)slices};
    put_all(&p->states, states_of(p, row), 0, ONEP_SUMS_HEADER_DOUBLES, &header.columns);
    put_all(&p->states, states_of(p, row), used, p->width - used, NULL);
}

static onepass_status run_sums(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    const onep_shard_problem *p = (const onep_shard_problem *)problem;
    (void)handle, (void)plan;
    for (int64_t row = 0; row < p->loss.rows.count; row++) {
        int64_t label;
        int takes_part = onep_logits_takes_part(&p->loss, row, &label);
        for (int64_t slice = 0; slice < onep_shard_slices(p->loss.columns); slice++) {
            onep_slice_sums sums;
            if (takes_part)
                onep_shard_slice_sums(p, row, slice, &sums);
            onep_shard_put_sums(p, row, slice, takes_part ? &sums : NULL);
        }
        onep_shard_put_sums_ends(p, row);
    }
    return ONEPASS_OK;
}

const onep_kernel onep_shard_sums_ref[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {NULL, run_sums},
                                                           [ONEP_BF16] = {NULL, run_sums},
                                                           [ONEP_F32] = {NULL, run_sums},
                                                           [ONEP_F64] = {NULL, run_sums}};

/* ---- a row of statistics ----------------------------------------------------------------------------------------- */

void onep_statistics_load(const onep_operand *statistics, const onep_rows *rows, int64_t row, onep_row_statistics *to)
{
    const char *at = onep_row_address(statistics, rows, row);
    int sides = onep_shard_sides((int)get(statistics, at, 1) != ONEP_SHARD_LABELS);
    *to = (onep_row_statistics){0};
    get_all(statistics, at, 0, onep_statistics_doubles(sides), &to->columns);
}

onep_pick onep_statistics_pick(const onep_operand *statistics, const onep_rows *rows, int64_t row, int64_t i)
{
    const char *at = onep_row_address(statistics, rows, row);
    int sides = onep_shard_sides((int)get(statistics, at, 1) != ONEP_SHARD_LABELS);
    onep_pick pick;
    get_all(statistics, at, onep_statistics_doubles(sides) + ONEP_PICK_DOUBLES * i, ONEP_PICK_DOUBLES, &pick.has);
    return pick;
}

/* ---- the merge --------------------------------------------------------------------------------------------------- */

enum { MERGED_AT_ONCE = 32 }; /* rows, worth handing to a thread */

/* What all ranks have sent of one row; slices are walked in the order of the columns. */
typedef struct sent_row {
    const onep_merge_problem *problem;
    int64_t row;
    int sides;
    onep_shard_header header; /* of the first rank: only columns and slices differ from rank to rank */
} sent_row;

typedef struct cursor {
    int64_t rank, slice, slices;
    double columns; /* of the ranks before */
    const char *at;
} cursor;

static void open_rank(const sent_row *sent, cursor *c)
{
    const onep_merge_problem *p = sent->problem;
    c->at = onep_row_address(&p->gathered, &p->sent_rows, c->rank * p->row_count + sent->row);
    c->slices = (int64_t)get(&p->gathered, c->at, 3);
    c->slice = 0;
}

static cursor begin(const sent_row *sent)
{
    cursor c = {0};
    open_rank(sent, &c);
    return c;
}

/* The next slice; 0 at the end. */
static int next(const sent_row *sent, cursor *c, onep_slice_state *state)
{
    const onep_merge_problem *p = sent->problem;
    while (c->slice == c->slices) {
        c->columns += get(&p->gathered, c->at, 0);
        if (++c->rank == p->ranks)
            return 0;
        open_rank(sent, c);
    }
    int count = onep_slice_doubles(sent->sides);
    *state = (onep_slice_state){0};
    get_all(&p->gathered, c->at, slices_begin(sent->sides, (int64_t)sent->header.indices) + c->slice++ * count, count,
            &state->first);
    return 1;
}

static double times(double x, double y)
{
    return x == 0 ? 0 : x * y;
}

/* The maximum of each side, which is NaN if there is one, and the first column with the largest prediction. */
static void merge_maxima(const sent_row *sent, onep_row_statistics *to)
{
    onep_slice_state s;
    double best = -INFINITY;
    to->first = -1;
    for (int side = 0; side < sent->sides; side++)
        to->side[side].max = -INFINITY;
    cursor c = begin(sent);
    while (next(sent, &c, &s)) {
        for (int side = 0; side < sent->sides; side++) {
            double max = s.side[side].max, *most = &to->side[side].max;
            if (!isnan(*most) && (max > *most || isnan(max)))
                *most = max;
        }
        if (!isnan(best) && (to->first < 0 || s.best > best || isnan(s.best))) {
            best = s.best;
            to->first = c.columns + s.first;
        }
    }
    to->columns = c.columns;
}

static void merge_side(const sent_row *sent, int side, onep_row_statistics *to)
{
    onep_side_state *all = &to->side[side];
    onep_sum others = {0, 0}, spread = {0, 0};
    int has_max = 0;
    onep_slice_state s;
    if (all->max == -INFINITY)
        return;
    for (cursor c = begin(sent); next(sent, &c, &s);) {
        const onep_side_state *own = &s.side[side];
        if (own->max == -INFINITY)
            continue;
        double apart = (all->max - own->max) * sent->header.scale[side], factor = exp(-apart);
        int is_first = !has_max && own->max == all->max; /* it leaves its maximum out */
        has_max |= is_first;
        onep_sum_add(&others, is_first ? own->others : factor * (1 + own->others));
        onep_sum_add(&spread, factor * (own->spread + times(apart, 1 + own->others)));
    }
    int is_finite = isfinite(all->max);
    all->others = is_finite ? onep_sum_value(others) : (double)NAN;
    all->spread = is_finite ? onep_sum_value(spread) : (double)NAN;
}

static void merge_smoothing(const sent_row *sent, onep_row_statistics *to)
{
    onep_sum below = {0, 0}, weights = {0, 0};
    onep_slice_state s;
    for (cursor c = begin(sent); next(sent, &c, &s);) {
        double apart = to->side[ONEP_SIDE_P].max - s.side[ONEP_SIDE_P].max;
        onep_sum_add(&below, s.below + times(s.weights, apart));
        onep_sum_add(&weights, s.weights);
    }
    to->below = onep_sum_value(below);
    to->weights = onep_sum_value(weights);
}

/* log of the mass that exp(z - max) (1 + others), z a logit, has in the row. */
static double log_mass(const sent_row *sent, const onep_row_statistics *all, int side, double v, double others)
{
    const onep_side_state *whole = &all->side[side];
    return (v - whole->max) * sent->header.scale[side] + (log1p(others) - log1p(whole->others));
}

/* What is 0 in the type computed in has no mass. */
static double flushed(const sent_row *sent, double p)
{
    return sent->header.bits == 32 && (float)p == 0 ? 0 : p;
}

static void merge_divergence(const sent_row *sent, onep_row_statistics *to)
{
    int is_reverse = (int)to->kind == ONEP_SHARD_REVERSE_KL;
    int side_a = is_reverse ? ONEP_SIDE_S : ONEP_SIDE_T, side_b = is_reverse ? ONEP_SIDE_T : ONEP_SIDE_S;
    onep_sum sum = {0, 0};
    onep_slice_state s;
    for (cursor c = begin(sent); next(sent, &c, &s);) {
        const onep_side_state *a = &s.side[side_a], *b = &s.side[side_b];
        double log_a = log_mass(sent, to, side_a, a->max, a->others),
               log_b = log_mass(sent, to, side_b, b->max, b->others);
        double mass_a = flushed(sent, exp(log_a)), mass_b = exp(log_b);
        if (s.bare != -INFINITY && flushed(sent, exp(log_mass(sent, to, side_a, s.bare, 0))) != 0)
            onep_sum_add(&sum, INFINITY);
        if (mass_a != 0 && b->max == -INFINITY) /* all of it is bare, and next to nothing */
            continue;
        onep_sum_add(&sum, times(mass_a, s.divergence));
        onep_sum_add(&sum, onep_relative_entropy(mass_a, log_a - log_b, mass_b));
    }
    int has_numbers = isfinite(to->side[ONEP_SIDE_S].max) && isfinite(to->side[ONEP_SIDE_T].max);
    to->divergence = has_numbers || to->columns == 0 ? onep_sum_value(sum) : (double)NAN;
    to->sum_s = is_reverse ? to->divergence : -1;
    to->sum_t = is_reverse ? -1 : to->divergence;
}

static void merge_picks(const sent_row *sent, char *at)
{
    const onep_merge_problem *p = sent->problem;
    for (int64_t i = 0; i < (int64_t)sent->header.indices; i++) {
        onep_pick merged = {0, 0, 0}, pick;
        for (int64_t rank = 0; rank < p->ranks; rank++) {
            const char *from = onep_row_address(&p->gathered, &p->sent_rows, rank * p->row_count + sent->row);
            get_all(&p->gathered, from, onep_header_doubles(sent->sides) + ONEP_PICK_DOUBLES * i, ONEP_PICK_DOUBLES,
                    &pick.has);
            if (pick.has != 0)
                merged = pick;
        }
        put_all(&p->statistics, at, onep_statistics_doubles(sent->sides) + ONEP_PICK_DOUBLES * i, ONEP_PICK_DOUBLES,
                &merged.has);
    }
}

static void merge_row(const onep_merge_problem *p, int64_t row)
{
    sent_row sent = {.problem = p, .row = row};
    const char *from = onep_row_address(&p->gathered, &p->sent_rows, row);
    char *at = onep_row_address(&p->statistics, &p->rows, row);
    sent.sides = onep_shard_sides((int)get(&p->gathered, from, 1) != ONEP_SHARD_LABELS);
    get_all(&p->gathered, from, 0, onep_header_doubles(sent.sides), &sent.header.columns);
    onep_row_statistics all = {.kind = sent.header.kind, .indices = sent.header.indices};
    merge_maxima(&sent, &all);
    for (int side = 0; side < sent.sides; side++)
        merge_side(&sent, side, &all);
    merge_smoothing(&sent, &all);
    onep_shard_kind kind = (onep_shard_kind)(int)all.kind;
    if (onep_shard_has_sums(kind))
        all.kind = -all.kind;
    else if (kind != ONEP_SHARD_LABELS)
        merge_divergence(&sent, &all);
    put_all(&p->statistics, at, 0, onep_statistics_doubles(sent.sides), &all.columns);
    merge_picks(&sent, at);
}

static void merge_block(void *context, int64_t block)
{
    const onep_merge_problem *p = (const onep_merge_problem *)context;
    int64_t first = block * MERGED_AT_ONCE, rest = p->row_count - first;
    for (int64_t row = first; row < first + (rest < MERGED_AT_ONCE ? rest : MERGED_AT_ONCE); row++)
        merge_row(p, row);
}

static onepass_status run_merge(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    onep_merge_problem p = *(const onep_merge_problem *)problem;
    (void)plan;
    onep_parallel(handle, p.row_count / MERGED_AT_ONCE + (p.row_count % MERGED_AT_ONCE != 0), merge_block, &p);
    return ONEPASS_OK;
}

/* What is merged is double, whatever the logits were. */
const onep_kernel onep_shard_merge_ref[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {NULL, run_merge},
                                                            [ONEP_BF16] = {NULL, run_merge},
                                                            [ONEP_F32] = {NULL, run_merge},
                                                            [ONEP_F64] = {NULL, run_merge}};

/* ---- the merge of sums ------------------------------------------------------------------------------------------- */

static void merge_sums_row(const onep_merge_problem *p, int64_t row)
{
    const char *from = onep_row_address(&p->statistics, &p->rows, row);
    char *to = onep_row_address(&p->merged, &p->merged_rows, row);
    onep_row_statistics all;
    onep_statistics_load(&p->statistics, &p->rows, row, &all);
    int64_t own = onep_statistics_doubles(ONEP_SIDES), picks = ONEP_PICK_DOUBLES * (int64_t)all.indices;
    onep_sum divergence = {0, 0}, sum_s = {0, 0}, sum_t = {0, 0};
    for (int64_t rank = 0; rank < p->ranks; rank++) {
        const char *at = onep_row_address(&p->gathered, &p->sent_rows, rank * p->row_count + row);
        int64_t slices = (int64_t)get(&p->gathered, at, 3);
        for (int64_t slice = 0; slice < slices; slice++) {
            onep_slice_sums sums;
            get_all(&p->gathered, at, sums_begin(slice), ONEP_SUMS_DOUBLES, &sums.divergence);
            onep_sum_add(&divergence, sums.divergence);
            onep_sum_add(&sum_s, sums.sum_s);
            onep_sum_add(&sum_t, sums.sum_t);
        }
    }
    all.kind = -all.kind;
    all.divergence = onep_sum_value(divergence);
    all.sum_s = onep_sum_value(sum_s);
    all.sum_t = onep_sum_value(sum_t);
    put_all(&p->merged, to, 0, own, &all.columns);
    for (int64_t i = own; i < own + picks; i++)
        onep_store(ONEP_F64, to + i * p->merged.col_stride, get(&p->statistics, from, i));
}

static void merge_sums_block(void *context, int64_t block)
{
    const onep_merge_problem *p = (const onep_merge_problem *)context;
    int64_t first = block * MERGED_AT_ONCE, rest = p->row_count - first;
    for (int64_t row = first; row < first + (rest < MERGED_AT_ONCE ? rest : MERGED_AT_ONCE); row++)
        merge_sums_row(p, row);
}

static onepass_status run_merge_sums(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    onep_merge_problem p = *(const onep_merge_problem *)problem;
    (void)plan;
    onep_parallel(handle, p.row_count / MERGED_AT_ONCE + (p.row_count % MERGED_AT_ONCE != 0), merge_sums_block, &p);
    return ONEPASS_OK;
}

const onep_kernel onep_shard_merge_sums_ref[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {NULL, run_merge_sums},
                                                                 [ONEP_BF16] = {NULL, run_merge_sums},
                                                                 [ONEP_F32] = {NULL, run_merge_sums},
                                                                 [ONEP_F64] = {NULL, run_merge_sums}};
