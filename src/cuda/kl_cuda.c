/*
 * KL divergence on a CUDA device: chooses the kernel for a checked problem, fills in its arguments and launches it,
 * once. Nothing is allocated, copied or waited for. How the work is cut depends on shape and layout alone, so the bits
 * of a result do not depend on the device's size.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handle.h"
#include "kl_args.h"
#include "kl_plan.h"
#include "status.h"

_Static_assert((int)ONEP_CUDA_F16 == (int)ONEP_F16 && (int)ONEP_CUDA_BF16 == (int)ONEP_BF16 &&
                   (int)ONEP_CUDA_F32 == (int)ONEP_F32 && (int)ONEP_CUDA_F64 == (int)ONEP_F64,
               "kl_args.h numbers the types as types.h does");
_Static_assert(sizeof(onep_kl_rows_args) <= 4096, "a kernel takes at most 4096 bytes of arguments");

enum { BLOCKS_PER_MULTIPROCESSOR = 2 };

static const char *const type_words[ONEP_FLOAT_TYPES] = {
    [ONEP_F16] = "f16", [ONEP_BF16] = "bf16", [ONEP_F32] = "f32", [ONEP_F64] = "f64"};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}

/* Strips of a row: enough to keep the device busy, few enough for the workspace. */
static int64_t parts_of(int64_t rows, int64_t columns)
{
    int64_t most = rows ? ONEP_CUDA_MAX_STRIPS / rows : 1;
    int64_t parts = at_most(ceil_div(columns, ONEP_CUDA_STRIP), most);
    return parts > 1 ? parts : 1;
}

/* Enough for either kind of kernel and any layout of this shape: a double for each partial sum there may be. */
size_t onep_kl_cuda_workspace(const onep_kl_problem *k)
{
    int64_t elements = k->rows.count * k->columns;
    int64_t chunks = ceil_div(elements, ONEP_CUDA_CHUNK(sizeof(double)));
    int64_t sums = at_most(elements, ONEP_CUDA_MAX_TILES);
    if (sums < chunks)
        sums = chunks;
    if (k->reduction == ONEPASS_ROWS && sums < k->rows.count * parts_of(k->rows.count, k->columns))
        sums = at_most(k->rows.count * parts_of(k->rows.count, k->columns), ONEP_CUDA_MAX_STRIPS);
    return (size_t)sums * sizeof(double);
}

/*
 * Blocks for `pieces` of work: one each, or as many as the device holds at once, which then take pieces in turn.
 * $ONEPASS_CUDA_GRID, for tests, shows that results do not depend on it.
 */
static unsigned grid_for(const onepass_handle *handle, int64_t pieces, int persistent)
{
    int64_t blocks = pieces;
    if (persistent)
        blocks = (int64_t)onep_cuda_multiprocessors(handle->cuda) * BLOCKS_PER_MULTIPROCESSOR;
    const char *forced = getenv("ONEPASS_CUDA_GRID");
    if (forced && atoi(forced) > 0)
        blocks = atoi(forced);
    return (unsigned)at_most(pieces > 0 ? pieces : 1, blocks > 0 ? blocks : 1);
}

static onep_kl_common common_args(const onep_kl_problem *k, unsigned *ticket)
{
    int one_value = k->reduction != ONEPASS_ROWS && k->reduction != ONEPASS_NONE;
    onep_kl_common c = {
        .value_scale = 1 / k->divisor, /* infinite for the mean of nothing: 0 times it is NaN, as it should be */
        .grad_scale = 1 / k->divisor,
        .partial = (double *)k->workspace,
        .ticket = ticket,
        .made_for = k->grad_made_for.data,
        .made_for_type = (int)k->grad_made_for.type,
        .finite = k->semantics == ONEPASS_FINITE,
    };
    if (one_value) {
        c.value = k->value.data;
        c.value_type = (int)k->value.type;
        c.upstream_one = k->grad_value.data;
        c.upstream_one_type = (int)k->grad_value.type;
    }
    if (k->value.data)
        c.outputs |= k->reduction == ONEPASS_NONE ? ONEP_CUDA_VALUE : ONEP_CUDA_SUM;
    if (k->grad_predictions.data)
        c.outputs |= ONEP_CUDA_GRAD_PREDICTIONS;
    if (k->grad_targets.data)
        c.outputs |= ONEP_CUDA_GRAD_TARGETS;
    return c;
}

/* ---- elements one after the other ----------------------------------------------------------------------------------
 */

static int is_compact(const onep_operand *operand, onep_type type)
{
    return !operand->data || (operand->type == type && operand->col_stride == (int64_t)onep_type_size(type));
}

static int is_aligned(const onep_operand *operand)
{
    return (uintptr_t)operand->data % 16 == 0;
}

static onepass_status launch_flat(const onepass_handle *handle, const onep_kl_problem *k, unsigned *ticket)
{
    onep_type type = k->predictions.type;
    onep_kl_flat_args a = {
        .common = common_args(k, ticket),
        .count = k->columns,
        .chunks = ceil_div(k->columns, ONEP_CUDA_CHUNK((int64_t)onep_type_size(type))),
        .predictions = k->predictions.data,
        .targets = k->targets.data,
        .grad_predictions = k->grad_predictions.data,
        .grad_targets = k->grad_targets.data,
    };
    if (k->reduction == ONEPASS_NONE) {
        a.upstream = k->grad_value.data;
        a.value = k->value.data;
    }
    const char *kind = "any";
    if (!is_aligned(&k->predictions) || !is_aligned(&k->targets) || !is_aligned(&k->grad_predictions) ||
        !is_aligned(&k->grad_targets))
        kind = "loose";
    else if (a.common.outputs == ONEP_CUDA_SUM)
        kind = "sum";
    else if (a.common.outputs == (ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS))
        kind = "grad";
    else if (a.common.outputs == ONEP_CUDA_GRAD_PREDICTIONS && !a.upstream) /* it reads no upstream an element */
        kind = "back";
    char name[48];
    snprintf(name, sizeof name, "onep_kl_flat_%s_%d_%s", type_words[type], (int)k->form, kind);
    /* With element-wise results a block a chunk is faster: its stores overlap with the loads of the next block. But if
     * there may be nothing to do, starting that many blocks would be most of the work. */
    int persistent = a.common.outputs == ONEP_CUDA_SUM || a.common.made_for;
    unsigned grid = grid_for(handle, a.chunks, persistent);
    return onep_cuda_launch(handle->cuda, "kl", name, grid, ONEP_CUDA_THREADS, 0, &a);
}

/* ---- rows ----------------------------------------------------------------------------------------------
 */

/* Every row one after the other in memory, all of one type. */
static int is_lines(const onep_kl_problem *k)
{
    onep_type type = k->predictions.type;
    onep_type computed = type == ONEP_F64 ? ONEP_F64 : ONEP_F32;
    if (k->reduction == ONEPASS_NONE && (!is_compact(&k->value, computed) || !is_compact(&k->grad_value, computed)))
        return 0;
    return is_compact(&k->predictions, type) && is_compact(&k->targets, type) &&
           is_compact(&k->grad_predictions, type) && is_compact(&k->grad_targets, type);
}

static int rows_aligned(const onep_operand *operand, int rank)
{
    int aligned = !operand->data || is_aligned(operand);
    for (int k = 0; operand->data && k < rank; k++)
        aligned = aligned && operand->row_stride[k] % 16 == 0;
    return aligned;
}

static onep_kl_strided strided(const onep_operand *operand, int rank)
{
    onep_kl_strided s = {.data = operand->data, .col_stride = operand->col_stride, .type = (int)operand->type};
    for (int k = 0; k < rank; k++)
        s.row_stride[k] = operand->row_stride[k];
    return s;
}

static onepass_status launch_rows(const onepass_handle *handle, const onep_kl_problem *k, unsigned *ticket)
{
    if (k->rows.rank > ONEP_CUDA_MAX_RANK)
        return onep_fail(
            ONEPASS_UNSUPPORTED,
            "kl: predictions: %d dimensions remain after merging those that can be; on CUDA at most %d may",
            k->rows.rank, ONEP_CUDA_MAX_RANK);
    int rank = k->rows.rank;
    onep_kl_rows_args a = {
        .common = common_args(k, ticket),
        .rows = k->rows.count,
        .columns = k->columns,
        .rank = rank,
        .per_row = k->reduction == ONEPASS_ROWS,
        .predictions = strided(&k->predictions, rank),
        .targets = strided(&k->targets, rank),
        .value = strided(&k->value, rank),
        .grad_predictions = strided(&k->grad_predictions, rank),
        .grad_targets = strided(&k->grad_targets, rank),
        .weights = strided(&k->weights, rank),
        .mask = strided(&k->mask, rank),
    };
    a.aligned = rows_aligned(&k->predictions, rank) && rows_aligned(&k->targets, rank) &&
                rows_aligned(&k->grad_predictions, rank) && rows_aligned(&k->grad_targets, rank);
    for (int i = 0; i < rank; i++)
        a.extent[i] = k->rows.extent[i];
    if (k->reduction == ONEPASS_ROWS || k->reduction == ONEPASS_NONE)
        a.upstream = strided(&k->grad_value, rank);

    a.strip = ceil_div(ceil_div(k->columns, parts_of(a.rows, a.columns)), 512) *
              512; /* whole packs for every lane, aligned as the row is */
    a.parts = k->columns ? ceil_div(k->columns, a.strip) : 1;
    a.strips = a.parts * a.rows;
    /* A strip a warp while that is few tiles enough: small problems then reach all multiprocessors. */
    int64_t warps = ONEP_CUDA_ROWS_THREADS / 32;
    a.tile_strips = ceil_div(ceil_div(a.strips, ONEP_CUDA_MAX_TILES), warps) * warps;
    if (a.tile_strips < warps)
        a.tile_strips = warps;
    a.tiles = ceil_div(a.strips, a.tile_strips);

    onep_type type = k->predictions.type;
    int same = k->targets.type == type && (!k->grad_predictions.data || k->grad_predictions.type == type) &&
               (!k->grad_targets.data || k->grad_targets.type == type);
    const char *word = type_words[type];
    if (!same)
        word = onep_promote(type, k->targets.type) == ONEP_F64 ? "any64" : "any32";
    char name[48];
    snprintf(name, sizeof name, "onep_kl_%s_%s_%d", is_lines(k) ? "lines" : "rows", word, (int)k->form);
    return onep_cuda_launch(handle->cuda, "kl", name, grid_for(handle, a.tiles, a.common.made_for != NULL),
                            ONEP_CUDA_ROWS_THREADS, 0, &a);
}

onepass_status onep_kl_cuda(const onepass_handle *handle, const onep_kl_problem *problem)
{
    onep_kl_problem k = *problem;
    onep_kl_collapse(&k);
    if (k.reduction == ONEPASS_ROWS && k.rows.count == 1 && !k.weights.data && !k.mask.data)
        k.reduction = ONEPASS_SUM; /* one row: its value is the sum */
    int flat = k.rows.count == 1 && k.reduction != ONEPASS_ROWS && !k.weights.data && !k.mask.data && is_lines(&k);
    unsigned *ticket;
    onepass_status status = onep_cuda_ticket(handle->cuda, "kl", &ticket);
    if (status != ONEPASS_OK)
        return status;
    return flat ? launch_flat(handle, &k, ticket) : launch_rows(handle, &k, ticket);
}
