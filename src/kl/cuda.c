/*
 * KL divergence on a CUDA device: chooses the kernel for a checked problem, fills in its arguments and launches it,
 * once. Nothing is allocated, copied or waited for. How the work is cut depends on shape and layout alone, so the bits
 * of a result do not depend on the device's size.
 */
#include "core/status.h"
#include "cuda/device.h"
#include "cuda/kernels.h"
#include "kl/cuda_args.h"
#include "kl/kl.h"

_Static_assert(sizeof(onep_kl_rows_args) <= 4096, "a kernel takes at most 4096 bytes of arguments");

enum { BLOCKS_PER_MULTIPROCESSOR = 2 };

/* One launch; the ticket, which depends on whether it is captured, is filled in by run. */
typedef struct kl_plan {
    onep_launch launch;
    union {
        onep_kl_common common; /* the first member of either */
        onep_kl_flat_args flat;
        onep_kl_rows_args rows;
    } args;
} kl_plan;

_Static_assert(sizeof(kl_plan) <= sizeof(onep_plan), "a plan holds it");

/* ---- kernels by type and form ------------------------------------------------------------------------------------ */

/* cuda_flat.cuh, cuda_lines.cuh, cuda_narrow.cuh and cuda_cross.cuh say what each makes */
enum { FLAT_SUM, FLAT_GRAD, FLAT_BACK, FLAT_ANY, FLAT_KINDS };
enum { LINES_SUM, LINES_GRAD, LINES_LOOSE_SUM, LINES_LOOSE_GRAD, LINES_LOOSE, LINES_KINDS };
enum { NARROW_GRAD, NARROW_ANY, NARROW_KINDS };
enum { CROSS_SUM, CROSS_GRAD, CROSS_ANY, CROSS_KINDS };
enum { ROWS_ANY32 = ONEP_FLOAT_TYPES, ROWS_ANY64, ROWS_TYPES }; /* mixed types, by what they are computed in */

#define FLAT(type, form)                                                                                               \
    {                                                                                                                  \
        ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_sum), ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_grad),       \
            ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_back), ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_any)    \
    }
#define LINES(type, form)                                                                                              \
    {                                                                                                                  \
        ONEP_KERNEL_ID(onep_kl_lines_##type##_##form##_sum), ONEP_KERNEL_ID(onep_kl_lines_##type##_##form##_grad),     \
            ONEP_KERNEL_ID(onep_kl_lines_##type##_##form##_loose_sum),                                                 \
            ONEP_KERNEL_ID(onep_kl_lines_##type##_##form##_loose_grad),                                                \
            ONEP_KERNEL_ID(onep_kl_lines_##type##_##form##_loose)                                                      \
    }
#define NARROW(type, form)                                                                                             \
    {                                                                                                                  \
        ONEP_KERNEL_ID(onep_kl_narrow_##type##_##form##_grad), ONEP_KERNEL_ID(onep_kl_narrow_##type##_##form##_any)    \
    }
#define CROSS(type, form)                                                                                              \
    {                                                                                                                  \
        ONEP_KERNEL_ID(onep_kl_cross_##type##_##form##_sum), ONEP_KERNEL_ID(onep_kl_cross_##type##_##form##_grad),     \
            ONEP_KERNEL_ID(onep_kl_cross_##type##_##form##_any)                                                        \
    }
#define OF_FORMS(what, type)                                                                                           \
    {                                                                                                                  \
        what(type, 0), what(type, 1), what(type, 2), what(type, 3)                                                     \
    }
#define OF_TYPES(what)                                                                                                 \
    {                                                                                                                  \
        [ONEP_F16] = OF_FORMS(what, f16), [ONEP_BF16] = OF_FORMS(what, bf16), [ONEP_F32] = OF_FORMS(what, f32),        \
        [ONEP_F64] = OF_FORMS(what, f64)                                                                               \
    }
#define FORMS(name)                                                                                                    \
    {                                                                                                                  \
        ONEP_KERNEL_ID(name##_0), ONEP_KERNEL_ID(name##_1), ONEP_KERNEL_ID(name##_2), ONEP_KERNEL_ID(name##_3)         \
    }

static const onep_kernel_id flat_kernels[ONEP_FLOAT_TYPES][ONEP_KL_FORMS][FLAT_KINDS] = OF_TYPES(FLAT);
static const onep_kernel_id lines_kernels[ONEP_FLOAT_TYPES][ONEP_KL_FORMS][LINES_KINDS] = OF_TYPES(LINES);
static const onep_kernel_id narrow_kernels[ONEP_FLOAT_TYPES][ONEP_KL_FORMS][NARROW_KINDS] = OF_TYPES(NARROW);
static const onep_kernel_id cross_kernels[ONEP_FLOAT_TYPES][ONEP_KL_FORMS][CROSS_KINDS] = OF_TYPES(CROSS);
static const onep_kernel_id rows_kernels[ROWS_TYPES][ONEP_KL_FORMS] = {
    [ONEP_F16] = FORMS(onep_kl_rows_f16),     [ONEP_BF16] = FORMS(onep_kl_rows_bf16),
    [ONEP_F32] = FORMS(onep_kl_rows_f32),     [ONEP_F64] = FORMS(onep_kl_rows_f64),
    [ROWS_ANY32] = FORMS(onep_kl_rows_any32), [ROWS_ANY64] = FORMS(onep_kl_rows_any64)};

/* ---- how the work is cut ----------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}

/* Strips of a row of the kernel for any strides: enough to keep the device busy, few enough for the workspace. */
static int64_t parts_of(int64_t rows, int64_t columns)
{
    int64_t most = rows ? ONEP_CUDA_MAX_STRIPS / rows : 1;
    int64_t parts = at_most(ceil_div(columns, ONEP_CUDA_STRIP), most);
    return parts > 1 ? parts : 1;
}

/*
 * Columns of a strip that is the work of a block: a whole row where there are many, or else 4096 to 32768, so that a
 * thousand blocks have some. A multiple of 512, whole packs for every thread.
 */
static int64_t block_strip(int64_t rows, int64_t columns)
{
    int64_t strip = ceil_div(rows * columns, 1024);
    if (rows >= ONEP_CUDA_MANY_ROWS && columns <= ONEP_CUDA_MAX_STRIP)
        strip = columns;
    else if (rows >= ONEP_CUDA_MANY_ROWS)
        strip = ONEP_CUDA_MAX_STRIP;
    else
        strip = strip < 4096 ? 4096 : at_most(strip, 32768);
    return ceil_div(strip, 512) * 512;
}

/* Enough for every kind of kernel and any layout of this shape: a double for each partial sum there may be. */
static size_t workspace_bytes(const onep_kl_problem *k)
{
    int64_t rows = k->rows.count, columns = k->columns, elements = rows * columns;
    int64_t chunks = ceil_div(elements, ONEP_CUDA_CHUNK(sizeof(double)));
    int64_t sums = at_most(elements, ONEP_CUDA_MAX_TILES);
    if (sums < chunks)
        sums = chunks;
    if (k->reduction == ONEPASS_ROWS) {
        int64_t strips = at_most(rows * parts_of(rows, columns), ONEP_CUDA_MAX_STRIPS);
        int64_t block_strips = rows * ceil_div(columns, block_strip(rows, columns));
        if (strips < block_strips && block_strips > rows)
            strips = block_strips;
        if (sums < strips)
            sums = strips;
    }
    return (size_t)sums * sizeof(double);
}

/* Blocks for `pieces` of work: one each, or as many as the device holds at once, which then take pieces in turn. */
static unsigned grid_for(const onepass_handle *handle, int64_t pieces, int persistent)
{
    int64_t blocks = pieces;
    if (persistent)
        blocks = (int64_t)onep_cuda_multiprocessors(onep_cuda_of(handle)) * BLOCKS_PER_MULTIPROCESSOR;
    return (unsigned)at_most(pieces > 0 ? pieces : 1, blocks > 0 ? blocks : 1);
}

static onep_kl_common common_args(const onep_kl_problem *k, char *workspace)
{
    int one_value = k->reduction != ONEPASS_ROWS && k->reduction != ONEPASS_NONE;
    onep_kl_common c = {
        .value_scale = 1 / k->divisor, /* infinite for the mean of nothing: 0 times it is NaN, as it should be */
        .grad_scale = 1 / k->divisor,
        .partial = (double *)(void *)workspace,
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

static void plan_flat(const onepass_handle *handle, const onep_kl_problem *k, char *workspace, kl_plan *plan)
{
    onep_type type = k->predictions.type;
    onep_kl_flat_args a = {
        .common = common_args(k, workspace),
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
    int kind = FLAT_ANY;
    if (a.common.outputs == ONEP_CUDA_SUM)
        kind = FLAT_SUM;
    else if (a.common.outputs == (ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS))
        kind = FLAT_GRAD;
    else if (a.common.outputs == ONEP_CUDA_GRAD_PREDICTIONS && !a.upstream) /* it reads no upstream per element */
        kind = FLAT_BACK;
    /* With element-wise results a block per chunk is faster: its stores overlap with the loads of the next block. But
     * if there may be nothing to do, starting that many blocks would be most of the work. */
    int persistent = a.common.outputs == ONEP_CUDA_SUM || a.common.made_for;
    plan->launch = (onep_launch){.kernel = (int)flat_kernels[type][k->form][kind],
                                 .grid = grid_for(handle, a.chunks, persistent),
                                 .block = ONEP_CUDA_THREADS};
    plan->args.flat = a;
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

/* Strips that are added up by themselves, so that there are few enough sums of them. */
static int64_t tiles_of(onep_kl_rows_args *a, int64_t strips, int64_t teams)
{
    int64_t most = a->per_row || !(a->common.outputs & ONEP_CUDA_SUM) ? INT32_MAX : ONEP_CUDA_MAX_TILES;
    a->strips = strips;
    a->tile_strips = (int)(ceil_div(ceil_div(strips, most), teams) * teams);
    if (a->tile_strips < teams)
        a->tile_strips = (int)teams;
    a->tiles = ceil_div(strips, a->tile_strips);
    return a->tiles;
}

/* Whole rows, so many that a block has a thousand elements at a time; and the threads that add up each. */
static int64_t cut_narrow(onep_kl_rows_args *a)
{
    a->strip = ONEP_CUDA_NARROW / a->columns;
    a->magic =
        a->columns == 1 ? 0 : (unsigned)(((UINT64_C(1) << 32) + (uint64_t)a->columns - 1) / (uint64_t)a->columns);
    a->group = 1;
    while (a->group < 32 && 2 * a->group * a->strip <= ONEP_CUDA_NARROW_THREADS && 2 * a->group <= a->columns)
        a->group *= 2;
    return tiles_of(a, ceil_div(a->rows, a->strip), 1);
}

/* A row for each warp if rows are short and many, or else strips for blocks. */
static int64_t cut_lines(onep_kl_rows_args *a)
{
    a->by_block = a->columns > ONEP_CUDA_WARP_STRIP || (a->columns > 512 && a->rows < ONEP_CUDA_MANY_ROWS);
    a->strip = a->by_block ? block_strip(a->rows, a->columns) : ceil_div(a->columns, 512) * 512;
    a->parts = a->columns ? ceil_div(a->columns, a->strip) : 1;
    return tiles_of(a, a->parts * a->rows, a->by_block ? 1 : ONEP_CUDA_LINES_THREADS / 32);
}

static int64_t cut_rows(onep_kl_rows_args *a)
{
    a->strip = ceil_div(ceil_div(a->columns, parts_of(a->rows, a->columns)), 512) * 512;
    a->parts = a->columns ? ceil_div(a->columns, a->strip) : 1;
    /* One strip per warp while that is few tiles enough: small problems then reach all multiprocessors. */
    return tiles_of(a, a->parts * a->rows, ONEP_CUDA_ROWS_THREADS / 32);
}

/* Nothing but values of rows or of all and the gradient to the predictions, and no upstream gradient per element. */
static int is_usual(const onep_kl_problem *k, int outputs)
{
    return !(outputs & ~(ONEP_CUDA_SUM | ONEP_CUDA_GRAD_PREDICTIONS)) &&
           !(k->reduction == ONEPASS_NONE && k->grad_value.data);
}

/* Rows of at most one dimension, one after the other in memory. */
static int is_dense(const onep_operand *operand, int64_t columns)
{
    return !operand->data || operand->row_stride[0] == columns * (int64_t)onep_type_size(operand->type);
}

static int lines_kind(const onep_kl_problem *k, int outputs)
{
    int rank = k->rows.rank;
    int aligned = rows_aligned(&k->predictions, rank) && rows_aligned(&k->targets, rank) &&
                  rows_aligned(&k->grad_predictions, rank) && rows_aligned(&k->grad_targets, rank);
    if (outputs == ONEP_CUDA_SUM)
        return aligned ? LINES_SUM : LINES_LOOSE_SUM;
    if (is_usual(k, outputs))
        return aligned ? LINES_GRAD : LINES_LOOSE_GRAD;
    return LINES_LOOSE;
}

/* Neighbours in a row lie side by side in what belongs to the predictions, neighbours in a column in the rest. */
static int is_cross(const onep_kl_problem *k)
{
    int64_t size = (int64_t)onep_type_size(k->predictions.type);
    return k->rows.rank == 1 && k->rows.count >= ONEP_CUDA_CROSS / 2 && k->columns >= ONEP_CUDA_CROSS / 2 &&
           k->reduction != ONEPASS_ROWS && k->reduction != ONEPASS_NONE && !k->weights.data && !k->mask.data &&
           k->predictions.col_stride == size && k->targets.row_stride[0] == size &&
           (!k->grad_predictions.data || k->grad_predictions.col_stride == size) &&
           (!k->grad_targets.data || k->grad_targets.row_stride[0] == size);
}

static onepass_status plan_rows(const onepass_handle *handle, const onep_kl_problem *k, char *workspace, kl_plan *plan)
{
    if (k->rows.rank > ONEP_CUDA_MAX_RANK)
        return onep_fail(ONEPASS_UNSUPPORTED, "kl: predictions: rank %d after collapsing; CUDA allows %d", k->rows.rank,
                         ONEP_CUDA_MAX_RANK);
    int rank = k->rows.rank;
    onep_kl_rows_args a = {
        .common = common_args(k, workspace),
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
    for (int i = 0; i < rank; i++)
        a.extent[i] = k->rows.extent[i];
    if (k->reduction == ONEPASS_ROWS || k->reduction == ONEPASS_NONE)
        a.upstream = strided(&k->grad_value, rank);

    onep_type type = k->predictions.type;
    int same = k->targets.type == type && (!k->grad_predictions.data || k->grad_predictions.type == type) &&
               (!k->grad_targets.data || k->grad_targets.type == type);
    int lines = is_lines(k);
    int64_t pieces; /* that are added up by themselves, if at all */
    plan->launch = (onep_launch){0};
    if (same && is_cross(k)) {
        pieces = tiles_of(&a, ceil_div(a.rows, ONEP_CUDA_CROSS) * ceil_div(a.columns, ONEP_CUDA_CROSS), 1);
        int kind = a.common.outputs == ONEP_CUDA_SUM           ? CROSS_SUM
                   : a.common.outputs & ONEP_CUDA_GRAD_TARGETS ? CROSS_ANY
                                                               : CROSS_GRAD;
        plan->launch.kernel = (int)cross_kernels[type][k->form][kind];
        plan->launch.block = ONEP_CUDA_CROSS_THREADS;
    } else if (same && rank <= 1 && k->columns > 0 &&
               k->columns <= (lines ? ONEP_CUDA_NARROW_LINES : ONEP_CUDA_NARROW)) {
        pieces = cut_narrow(&a);
        int kind = lines && is_usual(k, a.common.outputs) && is_dense(&k->predictions, k->columns) &&
                           is_dense(&k->targets, k->columns) && is_dense(&k->grad_predictions, k->columns)
                       ? NARROW_GRAD
                       : NARROW_ANY;
        plan->launch.kernel = (int)narrow_kernels[type][k->form][kind];
        plan->launch.block = ONEP_CUDA_NARROW_THREADS;
    } else if (lines) {
        pieces = cut_lines(&a);
        plan->launch.kernel = (int)lines_kernels[type][k->form][lines_kind(k, a.common.outputs)];
        plan->launch.block = ONEP_CUDA_LINES_THREADS;
    } else {
        pieces = cut_rows(&a);
        int mixed = onep_promote(type, k->targets.type) == ONEP_F64 ? ROWS_ANY64 : ROWS_ANY32;
        plan->launch.kernel = (int)rows_kernels[same ? (int)type : mixed][k->form];
        plan->launch.block = ONEP_CUDA_ROWS_THREADS;
    }
    plan->launch.grid = grid_for(handle, pieces, a.common.made_for != NULL);
    plan->args.rows = a;
    return ONEPASS_OK;
}

/* ---- the kernel ----------------------------------------------------------------------------------------------------
 */

static onepass_status plan_kl(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *plan,
                              size_t *bytes)
{
    onep_kl_problem k = *(const onep_kl_problem *)problem;
    kl_plan *made = (kl_plan *)(void *)plan;
    *bytes = workspace_bytes(&k);
    if (!workspace && *bytes) /* the size is asked for, or its lack about to be refused */
        return ONEPASS_OK;
    onep_kl_collapse(&k);
    if (k.reduction == ONEPASS_ROWS && k.rows.count == 1 && !k.weights.data && !k.mask.data)
        k.reduction = ONEPASS_SUM; /* one row: its value is the sum */
    if (k.rows.count == 1 && k.reduction != ONEPASS_ROWS && !k.weights.data && !k.mask.data && is_lines(&k) &&
        is_aligned(&k.predictions) && is_aligned(&k.targets) && is_aligned(&k.grad_predictions) &&
        is_aligned(&k.grad_targets)) {
        plan_flat(handle, &k, workspace, made);
        return ONEPASS_OK;
    }
    return plan_rows(handle, &k, workspace, made);
}

static onepass_status run_kl(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    kl_plan *made = (kl_plan *)(void *)plan;
    onep_cuda *cuda = onep_cuda_of(handle);
    (void)problem;
    onepass_status status = onep_cuda_ticket(cuda, "kl", &made->args.common.ticket);
    if (status != ONEPASS_OK)
        return status;
    return onep_cuda_launch(cuda, "kl", &made->launch, &made->args);
}

const onep_kernel onep_kl_cuda[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {plan_kl, run_kl},
                                                    [ONEP_BF16] = {plan_kl, run_kl},
                                                    [ONEP_F32] = {plan_kl, run_kl},
                                                    [ONEP_F64] = {plan_kl, run_kl}};
