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

enum { FLAT_SUM, FLAT_GRAD, FLAT_BACK, FLAT_ANY, FLAT_LOOSE, FLAT_KINDS }; /* cuda_flat.cuh says what each makes */
enum { ROWS_ANY32 = ONEP_FLOAT_TYPES, ROWS_ANY64, ROWS_TYPES }; /* mixed types, by what they are computed in */

#define FLAT(type, form)                                                                                               \
    {                                                                                                                  \
        ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_sum), ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_grad),       \
            ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_back), ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_any),   \
            ONEP_KERNEL_ID(onep_kl_flat_##type##_##form##_loose)                                                       \
    }
#define FLATS(type)                                                                                                    \
    {                                                                                                                  \
        FLAT(type, 0), FLAT(type, 1), FLAT(type, 2), FLAT(type, 3)                                                     \
    }
#define FORMS(name)                                                                                                    \
    {                                                                                                                  \
        ONEP_KERNEL_ID(name##_0), ONEP_KERNEL_ID(name##_1), ONEP_KERNEL_ID(name##_2), ONEP_KERNEL_ID(name##_3)         \
    }

static const onep_kernel_id flat_kernels[ONEP_FLOAT_TYPES][ONEP_KL_FORMS][FLAT_KINDS] = {
    [ONEP_F16] = FLATS(f16), [ONEP_BF16] = FLATS(bf16), [ONEP_F32] = FLATS(f32), [ONEP_F64] = FLATS(f64)};
static const onep_kernel_id lines_kernels[ONEP_FLOAT_TYPES][ONEP_KL_FORMS] = {[ONEP_F16] = FORMS(onep_kl_lines_f16),
                                                                              [ONEP_BF16] = FORMS(onep_kl_lines_bf16),
                                                                              [ONEP_F32] = FORMS(onep_kl_lines_f32),
                                                                              [ONEP_F64] = FORMS(onep_kl_lines_f64)};
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

/* Strips of a row: enough to keep the device busy, few enough for the workspace. */
static int64_t parts_of(int64_t rows, int64_t columns)
{
    int64_t most = rows ? ONEP_CUDA_MAX_STRIPS / rows : 1;
    int64_t parts = at_most(ceil_div(columns, ONEP_CUDA_STRIP), most);
    return parts > 1 ? parts : 1;
}

/* Enough for either kind of kernel and any layout of this shape: a double for each partial sum there may be. */
static size_t workspace_bytes(const onep_kl_problem *k)
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
    if (!is_aligned(&k->predictions) || !is_aligned(&k->targets) || !is_aligned(&k->grad_predictions) ||
        !is_aligned(&k->grad_targets))
        kind = FLAT_LOOSE;
    else if (a.common.outputs == ONEP_CUDA_SUM)
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
    /* One strip per warp while that is few tiles enough: small problems then reach all multiprocessors. */
    int64_t warps = ONEP_CUDA_ROWS_THREADS / 32;
    a.tile_strips = ceil_div(ceil_div(a.strips, ONEP_CUDA_MAX_TILES), warps) * warps;
    if (a.tile_strips < warps)
        a.tile_strips = warps;
    a.tiles = ceil_div(a.strips, a.tile_strips);

    onep_type type = k->predictions.type;
    int same = k->targets.type == type && (!k->grad_predictions.data || k->grad_predictions.type == type) &&
               (!k->grad_targets.data || k->grad_targets.type == type);
    int mixed = onep_promote(type, k->targets.type) == ONEP_F64 ? ROWS_ANY64 : ROWS_ANY32;
    plan->launch = (onep_launch){
        .kernel = (int)(is_lines(k) ? lines_kernels[type] : rows_kernels[same ? (int)type : mixed])[k->form],
        .grid = grid_for(handle, a.tiles, a.common.made_for != NULL),
        .block = ONEP_CUDA_ROWS_THREADS};
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
    if (k.rows.count == 1 && k.reduction != ONEPASS_ROWS && !k.weights.data && !k.mask.data && is_lines(&k)) {
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
