/*
 * Losses from logits on a CUDA device: chooses the kernel for a checked problem, fills in its arguments and launches
 * it, after a small one that counts where the divisor has to be counted. Nothing is allocated, copied or waited for.
 * How the work is cut depends on the shape alone.
 */
#include "logits/cuda.h"

#include "core/status.h"
#include "cuda/kernels.h"
#include "logits/cuda_args.h"

_Static_assert(sizeof(onep_logits_loss_args) <= 4096, "a kernel takes at most 4096 bytes of arguments");
_Static_assert((int)ONEP_CUDA_I32 == (int)ONEP_I32 && (int)ONEP_CUDA_I64 == (int)ONEP_I64, "numbers of integer types");

enum { NARROW, WIDE, WIDTHS };

#define WIDTHS_OF(name, type)                                                                                          \
    {                                                                                                                  \
        ONEP_KERNEL_ID(onep_logits_##name##_narrow_##type), ONEP_KERNEL_ID(onep_logits_##name##_wide_##type)           \
    }
enum { IN_F32, IN_F64, COMPUTED }; /* the type computed in */

static const onep_kernel_id loss_kernels[COMPUTED][WIDTHS] = {
    [IN_F32] = WIDTHS_OF(loss, f32), [IN_F64] = WIDTHS_OF(loss, f64)};
static const onep_kernel_id token_kernels[COMPUTED][WIDTHS] = {
    [IN_F32] = WIDTHS_OF(token, f32), [IN_F64] = WIDTHS_OF(token, f64)};

/* Kernels with a row in shared memory, by what they compute, how many threads share a row, and the operands' type. */
enum { LABELS, KL, MIXED, TOKEN, HELD_KINDS };
enum { OCTET, BLOCK, HELD_TEAMS };
enum { LEAST_SLICES = 5 }; /* of a row that a cluster shares */

#define HELD_TYPES(name)                                                                                               \
    {                                                                                                                  \
        [ONEP_F16] = ONEP_KERNEL_ID(onep_logits_##name##_f16),                                                         \
        [ONEP_BF16] = ONEP_KERNEL_ID(onep_logits_##name##_bf16), [ONEP_F32] = ONEP_KERNEL_ID(onep_logits_##name##_f32) \
    }
static const onep_kernel_id held_kernels[HELD_KINDS][HELD_TEAMS][ONEP_FLOAT_TYPES] = {
    [LABELS] = {[OCTET] = HELD_TYPES(labels_octet), [BLOCK] = HELD_TYPES(labels_block)},
    [KL] = {[OCTET] = HELD_TYPES(kl_octet), [BLOCK] = HELD_TYPES(kl_block)},
    [MIXED] = {[BLOCK] = HELD_TYPES(mixed_block)},
    [TOKEN] = {[OCTET] = HELD_TYPES(token_octet), [BLOCK] = HELD_TYPES(token_block)}};

/*
 * Kernels with a row in a cluster of blocks, where the device has them; not made by CUDA before 12.0. The two of a kind
 * differ in the results they have.
 */
enum {
    CLUSTER_LABELS,
    CLUSTER_KL,
    CLUSTER_REVERSE_KL,
    CLUSTER_MIXTURE,
    CLUSTER_VARIATION,
    CLUSTER_TOKEN,
    ALIGNED_LABELS,
    ALIGNED_KL,
    ALIGNED_REVERSE_KL,
    ALIGNED_MIXTURE,
    ALIGNED_VARIATION,
    ALIGNED_JS,
};
#ifdef ONEPASS_HAVE_SM90A
typedef struct cluster_kind {
    onep_kernel_id kernels[2][ONEP_FLOAT_TYPES];
    int slots; /* of a warp, in shared memory */
} cluster_kind;
#define ONE_OF_A_KIND(name)                                                                                            \
    {                                                                                                                  \
        HELD_TYPES(name), HELD_TYPES(name)                                                                             \
    }
static const cluster_kind cluster_kinds[] = {
    [CLUSTER_LABELS] = {{HELD_TYPES(labels_cluster), HELD_TYPES(labels_cluster_more)}, 2},
    [CLUSTER_KL] = {{HELD_TYPES(kl_cluster), HELD_TYPES(kl_cluster_more)}, 3},
    [CLUSTER_REVERSE_KL] = {ONE_OF_A_KIND(reverse_kl_cluster), 2},
    [CLUSTER_MIXTURE] = {ONE_OF_A_KIND(mixture_cluster), 2},
    [CLUSTER_VARIATION] = {ONE_OF_A_KIND(variation_cluster), 2},
    [CLUSTER_TOKEN] = {{HELD_TYPES(token_cluster), HELD_TYPES(token_cluster_backward)}, 2},
    [ALIGNED_LABELS] = {ONE_OF_A_KIND(labels_cluster_aligned), 1},
    [ALIGNED_KL] = {ONE_OF_A_KIND(kl_cluster_aligned), 3},
    [ALIGNED_REVERSE_KL] = {ONE_OF_A_KIND(reverse_kl_cluster_aligned), 3},
    [ALIGNED_MIXTURE] = {ONE_OF_A_KIND(mixture_cluster_aligned), 3},
    [ALIGNED_VARIATION] = {ONE_OF_A_KIND(variation_cluster_aligned), 3},
    [ALIGNED_JS] = {ONE_OF_A_KIND(js_cluster_aligned), 3}};
#endif

/* ---- rows and operands ------------------------------------------------------------------------------------------- */

enum { MOST_OPERANDS = 24 };

/* The rows of a problem with its operands, in the kernel's words. */
typedef struct row_plan {
    const onep_rows *rows;
    const onep_operand *from[MOST_OPERANDS];
    onep_logits_operand *to[MOST_OPERANDS];
    int count;
} row_plan;

static void add(row_plan *plan, onep_logits_operand *to, const onep_operand *from)
{
    plan->from[plan->count] = from;
    plan->to[plan->count++] = to;
}

/* Dimension d follows dimension d - 1 in the memory of every operand. */
static int follows(const row_plan *plan, int d)
{
    for (int i = 0; i < plan->count; i++) {
        const onep_operand *o = plan->from[i];
        if (o->data && o->row_stride[d - 1] != o->row_stride[d] * plan->rows->extent[d])
            return 0;
    }
    return 1;
}

/* Copies rows and operands, dimensions that follow each other as one. 0: there are too many dimensions. */
static int merge_rows(const row_plan *plan, onep_logits_rows *rows)
{
    const onep_rows *from = plan->rows;
    rows->count = from->count;
    rows->rank = 0;
    for (int d = 0; d < from->rank; d++) {
        int joins = d > 0 && follows(plan, d);
        if (!joins && rows->rank == ONEP_LOGITS_MAX_RANK)
            return 0;
        int at = joins ? rows->rank - 1 : rows->rank++;
        rows->extent[at] = joins ? rows->extent[at] * from->extent[d] : from->extent[d];
        for (int i = 0; i < plan->count; i++)
            plan->to[i]->row_stride[at] = plan->from[i]->row_stride[d];
    }
    for (int i = 0; i < plan->count; i++) {
        const onep_operand *o = plan->from[i];
        onep_logits_operand *to = plan->to[i];
        to->data = o->data;
        to->col_stride = o->col_stride;
        to->type = (int)o->type;
    }
    return 1;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static void cut_rows(onep_logits_rows *rows)
{
    rows->chunk = rows->count > 0 ? ceil_div(rows->count, ONEP_LOGITS_MAX_CHUNKS) : 1;
    rows->chunks = ceil_div(rows->count, rows->chunk);
}

static onep_launch launch_of(const onep_kernel_id kernels[WIDTHS], const onep_logits_rows *rows, int64_t columns)
{
    int is_wide = columns > ONEP_LOGITS_WARP_COLUMNS;
    int64_t teams = is_wide ? 1 : ONEP_LOGITS_WARPS, blocks = ceil_div(rows->chunks, teams);
    return (onep_launch){.kernel = (int)kernels[is_wide],
                         .grid = (unsigned)(blocks > 0 ? blocks : 1),
                         .block = is_wide ? ONEP_LOGITS_THREADS : ONEP_LOGITS_WARPS * 32};
}

static int may_be_held(onep_type type, int64_t columns)
{
    return type != ONEP_F64 && columns > 0 && columns <= ONEP_LOGITS_MAX_COLUMNS;
}

/* A team has a slice of each operand in shared memory, in quads of columns, or the row if that is shorter. */
static onep_launch held_launch_of(int kind, onep_type type, const onep_logits_rows *rows, int64_t columns)
{
    int is_octet = columns <= ONEP_LOGITS_OCTET_COLUMNS && kind != MIXED;
    int64_t teams = is_octet ? ONEP_LOGITS_OCTETS : 1, blocks = ceil_div(rows->chunks, teams);
    unsigned warps = 1;
    while (warps < ONEP_LOGITS_MAX_WARPS && columns > (int64_t)warps * ONEP_LOGITS_WARP_COLUMNS)
        warps *= 2;
    int64_t operands = kind == KL || kind == MIXED ? 2 : 1;
    int64_t bytes = operands * ceil_div(columns, 4) * 4 * (int64_t)onep_type_size(type);
    return (onep_launch){.kernel = (int)held_kernels[kind][is_octet ? OCTET : BLOCK][type],
                         .grid = (unsigned)(blocks > 0 ? blocks : 1),
                         .block = is_octet ? ONEP_LOGITS_OCTETS * 8 : warps * 32,
                         .shared_bytes = (unsigned)(teams * (bytes < ONEP_LOGITS_SLOT ? bytes : ONEP_LOGITS_SLOT))};
}

/*
 * Blocks per cluster for rows of so many columns, 0: not the work of clusters. Narrower rows have too few slices to
 * share out, wider ones do not fit. Widths and types alone decide, as above.
 */
static int cluster_blocks(onep_type type, int64_t columns)
{
    int64_t slices = ceil_div(columns * (int64_t)onep_type_size(type), ONEP_LOGITS_SLICE_BYTES);
    if (slices < LEAST_SLICES || slices > (int64_t)ONEP_LOGITS_MAX_WARPS * ONEP_LOGITS_MAX_BLOCKS)
        return 0;
    return slices > ONEP_LOGITS_MAX_WARPS ? (int)ceil_div(slices, ONEP_LOGITS_MAX_WARPS) : 2; /* one is no cluster */
}

/* 0 in .block: no such kernel here. */
static onep_launch cluster_launch_of(const onep_cuda *cuda, int kind, int variant, onep_type type,
                                     const onep_logits_rows *rows, int64_t columns)
{
    onep_launch launch = {.block = 0};
#ifdef ONEPASS_HAVE_SM90A
    const cluster_kind *of = &cluster_kinds[kind];
    int blocks = cluster_blocks(type, columns), kernel = (int)of->kernels[variant][type];
    if (!blocks || rows->count > INT32_MAX || !onep_cuda_has_tma(cuda) || !onep_cuda_has_kernel(cuda, kernel))
        return launch;
    int64_t slices = ceil_div(columns * (int64_t)onep_type_size(type), ONEP_LOGITS_SLICE_BYTES);
    int64_t warps = ceil_div(slices, blocks);
    /* As many clusters as are there at once; a few more do no harm, for they claim their rows. */
    int64_t at_once = ceil_div(
        (int64_t)onep_cuda_multiprocessors(cuda) * ONEP_LOGITS_CLUSTER_BLOCKS * ONEP_LOGITS_MAX_WARPS, warps * blocks);
    int64_t clusters = rows->chunks < at_once ? rows->chunks : at_once;
    launch = (onep_launch){.kernel = kernel,
                           .grid = (unsigned)((clusters > 0 ? clusters : 1) * blocks),
                           .block = (unsigned)warps * 32,
                           .shared_bytes = (unsigned)(warps * of->slots * ONEP_LOGITS_SLOT_BYTES),
                           .cluster = (unsigned)blocks};
#else
    (void)cuda, (void)kind, (void)variant, (void)type, (void)rows, (void)columns;
#endif
    return launch;
}

static onepass_status refuse_rank(const char *name, const onep_rows *rows)
{
    return onep_fail(ONEPASS_UNSUPPORTED, "%s: rank %d before the columns; CUDA allows %d after merging", name,
                     rows->rank, ONEP_LOGITS_MAX_RANK);
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

typedef struct loss_plan {
    onep_launch loss;
    onep_logits_loss_args args;
} loss_plan;

_Static_assert(sizeof(loss_plan) <= sizeof(onep_plan), "a plan holds it");

static int is_kl_of_logits(const onep_logits_problem *k)
{
    return k->form == ONEP_TARGET_LOGITS && k->divergence.q == 0 && !k->divergence.is_total_variation;
}

/* Whether P is needed at all. */
static int has_label_terms(const onep_logits_problem *k)
{
    return k->form == ONEP_NO_TARGET || k->label.weight != 0 || k->label.z_loss != 0 || k->label.entropy_bonus != 0 ||
           k->lse.data || k->entropy.data || k->log_prob.data;
}

/* What gradients need of the whole row beyond its softmaxes. */
static int needs_sums(const onep_logits_problem *k)
{
    int is_smoothed = k->label.weight != 0 && k->label.smoothing != 0;
    int has_sums = k->form != ONEP_NO_TARGET && (!is_kl_of_logits(k) || k->grad_targets.data);
    return is_smoothed || k->label.entropy_bonus != 0 || has_sums;
}

static int computed_of(const onep_logits_problem *k)
{
    int is_double = k->predictions.type == ONEP_F64 || (k->form != ONEP_NO_TARGET && k->targets.type == ONEP_F64);
    return is_double ? IN_F64 : IN_F32;
}

/*
 * Whether the kernels that have a row in shared memory compute this. Not where the two sides are of different types, of
 * float64, which is computed in double, where targets are probabilities, nor where a divergence has a softcap, which
 * would make the kernels twice as long; nor where there are no columns. Types, widths and these options alone decide:
 * neither layout nor the results asked for may change the bits of a row.
 */
static int is_held(const onep_logits_problem *k)
{
    if (!may_be_held(k->predictions.type, k->columns))
        return 0;
    if (k->form == ONEP_NO_TARGET)
        return 1;
    return k->form == ONEP_TARGET_LOGITS && k->targets.type == k->predictions.type && !(k->softcap > 0) &&
           !(k->target_softcap > 0);
}

/* More than loss, LSE and gradients; log-probabilities of labels are a by-product of their loss. */
static int has_more_results(const onep_logits_problem *k)
{
    int has_log_prob = k->log_prob.data && k->form != ONEP_NO_TARGET;
    return k->entropy.data || k->target_entropy.data || k->argmax.data || has_log_prob;
}

/* Whether the kernels of clusters compute this: of what is_held says, the options that people train with. */
static int is_clustered(const onep_logits_problem *k)
{
    if (k->label.entropy_bonus != 0 || k->softcap > 0)
        return 0;
    if (k->form == ONEP_NO_TARGET)
        return k->label.weight == 0 || k->label.smoothing == 0;
    if (k->label.weight != 0 || k->label.z_loss != 0)
        return 0;
    return k->label_temperature == k->temperature || !has_label_terms(k);
}

/* ---- rows in the registers of a part of a warp ------------------------------------------------------------------- */

/* So many lanes share a row of up to so many columns. */
typedef struct narrow_width {
    int64_t columns;
    int lanes;
    onep_kernel_id kernels[2][2][ONEP_FLOAT_TYPES]; /* LABELS, KL; any options and layout, or plain ones */
} narrow_width;

#define NARROW(columns, lanes, quads, TYPES)                                                                           \
    {                                                                                                                  \
        columns, lanes,                                                                                                \
        {                                                                                                              \
            [LABELS] = {TYPES(labels_##lanes##x##quads), TYPES(labels_plain_##lanes##x##quads)}, [KL] = {              \
                TYPES(kl_##lanes##x##quads),                                                                           \
                TYPES(kl_plain_##lanes##x##quads)                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
#define HALF_TYPES(name)                                                                                               \
    {                                                                                                                  \
        [ONEP_F16] = ONEP_KERNEL_ID(onep_logits_##name##_f16), [ONEP_BF16] = ONEP_KERNEL_ID(onep_logits_##name##_bf16) \
    }
static const narrow_width narrow_widths[] = {NARROW(32, 4, 2, HELD_TYPES), NARROW(128, 4, 8, HELD_TYPES),
                                             NARROW(256, 8, 8, HELD_TYPES), NARROW(1024, 32, 8, HELD_TYPES),
                                             NARROW(2048, 32, 16, HALF_TYPES)};

/*
 * The kernels that have a row in registers, NULL if they do not compute this: of what is_held says, the options that
 * people train with. Types, widths and these options alone decide, as above.
 */
static const narrow_width *narrow_width_of(const onep_logits_problem *k)
{
    int is_labels = k->form == ONEP_NO_TARGET && (k->label.weight == 0 || k->label.smoothing == 0);
    int is_kl = k->form == ONEP_TARGET_LOGITS && is_kl_of_logits(k) && k->label.weight == 0 && k->label.z_loss == 0 &&
                (k->label_temperature == k->temperature || !has_label_terms(k));
    if (!is_held(k) || k->label.entropy_bonus != 0 || k->softcap > 0 || !(is_labels || is_kl) ||
        k->columns * (int64_t)onep_type_size(k->predictions.type) > ONEP_LOGITS_NARROW_BYTES)
        return NULL;
    for (size_t i = 0; i < sizeof narrow_widths / sizeof narrow_widths[0]; i++)
        if (k->columns <= narrow_widths[i].columns)
            return &narrow_widths[i];
    return NULL;
}

/* A chunk is the work of a block, as many rows at a time as it has teams. Smaller blocks for few rows were slower. */
static onep_launch cut_narrow_rows(const narrow_width *width, onep_logits_rows *rows)
{
    int64_t teams = ONEP_LOGITS_NARROW_THREADS / width->lanes;
    int64_t times = ceil_div(rows->count, teams * ONEP_LOGITS_NARROW_CHUNKS);
    rows->chunk = teams * (times > 0 ? times : 1);
    rows->chunks = ceil_div(rows->count, rows->chunk);
    return (onep_launch){.grid = (unsigned)(rows->chunks > 0 ? rows->chunks : 1), .block = ONEP_LOGITS_NARROW_THREADS};
}

static void find_unit(const onep_logits_operand *o, const onep_logits_rows *rows, int64_t size, int *unit)
{
    uint64_t places = (uint64_t)(uintptr_t)o->data;
    for (int d = 0; d < rows->rank; d++)
        places |= (uint64_t)o->row_stride[d];
    while (o->data && *unit > 1 && (o->col_stride != size || places % (uint64_t)(*unit * size) != 0))
        *unit /= 2;
}

/* What its kernels need to know beside the arguments, which are complete but for the kernel's number. */
static onep_logits_narrow narrow_facts(const onep_logits_problem *k, const onep_logits_loss_args *a)
{
    int is_labels = k->form == ONEP_NO_TARGET;
    double temperature = is_labels ? k->label_temperature : k->temperature;
    double target_temperature = is_labels ? 1 : k->target_temperature;
    int64_t size = (int64_t)onep_type_size(k->predictions.type);
    onep_logits_narrow n = {.unit = k->columns % 4 == 0   ? 4
                                    : k->columns % 2 == 0 ? 2
                                                          : 1,
                            .over_s = (float)(1 / temperature),
                            .over_t = (float)(1 / target_temperature),
                            .k_s = (float)(1.44269504088896341 / temperature),
                            .k_t = (float)(1.44269504088896341 / target_temperature),
                            .at_label = is_labels ? (float)k->label.weight : 0,
                            .z_slope = (float)(2 * k->label.z_loss),
                            .to_s = (is_labels ? 1 : k->divergence.weight) / temperature,
                            .to_t = is_labels ? 0 : k->divergence.weight / target_temperature,
                            .predictions = a->predictions.data,
                            .targets = a->targets.data,
                            .labels = a->labels.data,
                            .gradients = a->grad_predictions.data,
                            .predictions_stride = a->predictions.row_stride[0],
                            .targets_stride = a->targets.row_stride[0],
                            .labels_stride = a->labels.row_stride[0],
                            .gradients_stride = a->grad_predictions.row_stride[0],
                            .label_type = a->labels.type};
    find_unit(&a->predictions, &a->rows, size, &n.unit);
    find_unit(&a->targets, &a->rows, size, &n.unit);
    find_unit(&a->grad_predictions, &a->rows, size, &n.unit);
    find_unit(&a->grad_targets, &a->rows, size, &n.unit);
    if (k->reduction == ONEPASS_VALID || k->divisor_from.data || (!a->per_row && k->grad_value.data)) {
        n.flags |= ONEP_LOGITS_SCALED;
    } else {
        n.to_s /= k->divisor;
        n.to_t /= k->divisor;
    }
    if (k->mask.data || k->weights.data || (a->per_row && k->grad_value.data))
        n.flags |= ONEP_LOGITS_BY_ROW;
    if (k->lse.data || k->target_lse.data || k->log_prob.data || has_more_results(k) || k->width > k->columns)
        n.flags |= ONEP_LOGITS_RESULTS;
    if (a->rows.rank > 1)
        n.flags |= ONEP_LOGITS_RANKS;
    if (k->value.data && !a->per_row)
        n.flags |= ONEP_LOGITS_TOTAL;
    if (k->class_weights.data)
        n.flags |= ONEP_LOGITS_CLASSES;
    return n;
}

/* Whether the kernels of plain rows do: they compute the same, and have no instructions for anything else. */
static int is_plain(const onep_logits_problem *k, const onep_logits_loss_args *a)
{
    int is_scaled = k->divisor_from.data || k->grad_value.data || k->grad_made_for.data;
    return (a->narrow.flags & ~(ONEP_LOGITS_SCALED | ONEP_LOGITS_TOTAL)) == 0 && a->narrow.unit == 4 && !is_scaled &&
           !a->per_row && !k->grad_targets.data;
}

/* ---- plans of losses --------------------------------------------------------------------------------------------- */

static int held_kind_of(const onep_logits_problem *k)
{
    return k->form == ONEP_NO_TARGET ? LABELS : is_kl_of_logits(k) ? KL : MIXED;
}

static int is_aligned_operand(const onep_logits_operand *o, const onep_logits_rows *rows, int64_t columns)
{
    int64_t size = (int64_t)onep_type_size((onep_type)o->type);
    int64_t stride = rows->rank > 0 && rows->count > 1 ? o->row_stride[0] : 0;
    return o->col_stride == size && ((uintptr_t)o->data | (uintptr_t)stride | (uintptr_t)(columns * size)) % 16 == 0;
}

/*
 * Whether rows are as the fastest kernels of clusters take them: at multiples of 16 bytes, alike but for their labels,
 * with loss and gradient to the predictions as the only results. Bits do not depend on it.
 */
static int has_aligned_rows(const onep_logits_problem *k, const onep_logits_loss_args *a)
{
    if (a->rows.rank > 1 || k->width != k->columns || k->grad_targets.data || k->lse.data || k->target_lse.data ||
        k->log_prob.data || has_more_results(k) || k->weights.data || k->mask.data || k->class_weights.data)
        return 0;
    if (a->per_row && k->grad_value.data)
        return 0;
    if (k->form == ONEP_NO_TARGET ? !k->labels.data || k->label.weight == 0 || k->label.z_loss != 0
                                  : k->labels.data != NULL)
        return 0;
    return is_aligned_operand(&a->predictions, &a->rows, k->columns) &&
           (k->form == ONEP_NO_TARGET || is_aligned_operand(&a->targets, &a->rows, k->columns)) &&
           (!k->grad_predictions.data || is_aligned_operand(&a->grad_predictions, &a->rows, k->columns));
}

static int cluster_kind_of(const onep_logits_problem *k, const onep_logits_loss_args *a)
{
    int is_aligned = has_aligned_rows(k, a);
    if (k->form == ONEP_NO_TARGET)
        return is_aligned ? ALIGNED_LABELS : CLUSTER_LABELS;
    if (is_kl_of_logits(k))
        return is_aligned ? ALIGNED_KL : CLUSTER_KL;
    if (k->divergence.is_total_variation)
        return is_aligned ? ALIGNED_VARIATION : CLUSTER_VARIATION;
    if (k->divergence.q == 1)
        return is_aligned ? ALIGNED_REVERSE_KL : CLUSTER_REVERSE_KL;
    int is_js = k->divergence.a == k->divergence.q && k->divergence.b == 1 - k->divergence.q;
    return !is_aligned ? CLUSTER_MIXTURE : is_js ? ALIGNED_JS : ALIGNED_MIXTURE;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Of the kernel that counts the divisor; it takes a partial sum of each. */
static int64_t counting_blocks(int64_t rows)
{
    int64_t blocks = ceil_div(rows, ONEP_LOGITS_COUNTED_ROWS);
    return blocks > ONEP_LOGITS_COUNTING_BLOCKS ? ONEP_LOGITS_COUNTING_BLOCKS : blocks > 0 ? blocks : 1;
}

/* Its arguments are those of a loss, but for the chunks. */
static onepass_status count_divisor(const onep_cuda *cuda, const onep_logits_loss_args *of_loss)
{
    onep_logits_loss_args args = *of_loss;
    int64_t blocks = counting_blocks(args.rows.count);
    const onep_launch launch = {
        .kernel = ONEP_KERNEL_ID(onep_logits_count), .grid = (unsigned)blocks, .block = ONEP_LOGITS_THREADS};
    args.rows.chunk = ceil_div(args.rows.count, blocks);
    args.rows.chunks = blocks;
    return onep_cuda_launch(cuda, "logits", &launch, &args);
}

static onepass_status plan_loss(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *plan,
                                size_t *bytes)
{
    const onep_logits_problem *k = (const onep_logits_problem *)problem;
    loss_plan *made = (loss_plan *)(void *)plan;
    *made = (loss_plan){.args = {
                            .columns = k->columns,
                            .width = k->width,
                            .weight = k->divergence.weight,
                            .a = k->divergence.a,
                            .b = k->divergence.b,
                            .q = k->divergence.q,
                            .label_weight = k->label.weight,
                            .smoothing = k->label.smoothing,
                            .z_loss = k->label.z_loss,
                            .entropy_bonus = k->label.entropy_bonus,
                            .temperature = k->temperature,
                            .target_temperature = k->target_temperature,
                            .label_temperature = k->label_temperature,
                            .softcap = k->softcap,
                            .target_softcap = k->target_softcap,
                            .divisor = k->divisor,
                            .ignore_index = k->label.ignore_index,
                            .form = (int)k->form,
                            .is_total_variation = k->divergence.is_total_variation,
                            .finite = k->semantics == ONEPASS_FINITE,
                            .per_row = k->reduction == ONEPASS_ROWS,
                            .has_label_terms = has_label_terms(k),
                            .needs_sums = needs_sums(k),
                        }};
    onep_logits_loss_args *a = &made->args;
    a->shares_softmax = a->has_label_terms && k->form != ONEP_NO_TARGET && k->label_temperature == k->temperature;
    row_plan rows = {.rows = &k->rows};
    add(&rows, &a->predictions, &k->predictions);
    add(&rows, &a->targets, &k->targets);
    add(&rows, &a->labels, &k->labels);
    add(&rows, &a->weights, &k->weights);
    add(&rows, &a->mask, &k->mask);
    add(&rows, &a->value, &k->value);
    add(&rows, &a->grad_predictions, &k->grad_predictions);
    add(&rows, &a->grad_targets, &k->grad_targets);
    add(&rows, &a->grad_value, &k->grad_value);
    add(&rows, &a->lse, &k->lse);
    add(&rows, &a->entropy, &k->entropy);
    add(&rows, &a->log_prob, &k->log_prob);
    add(&rows, &a->argmax, &k->argmax);
    add(&rows, &a->target_lse, &k->target_lse);
    add(&rows, &a->target_entropy, &k->target_entropy);
    /* These have no rows: their strides are 0 and follow anything. */
    add(&rows, &a->class_weights, &k->class_weights);
    add(&rows, &a->made_for, &k->grad_made_for);
    add(&rows, &a->divisor_from, &k->divisor_from);
    if (!merge_rows(&rows, &a->rows))
        return refuse_rank("logits", &k->rows);
    const narrow_width *narrow = narrow_width_of(k);
    if (narrow) {
        made->loss = cut_narrow_rows(narrow, &a->rows);
        a->narrow = narrow_facts(k, a);
        made->loss.kernel = (int)narrow->kernels[held_kind_of(k)][is_plain(k, a)][k->predictions.type];
    } else {
        cut_rows(&a->rows);
    }
    int64_t counts = k->reduction == ONEPASS_VALID ? counting_blocks(a->rows.count) : 0;
    size_t sums = round_up((size_t)(counts > a->rows.chunks ? counts : a->rows.chunks) * sizeof(double));
    *bytes = sums + round_up(sizeof(double));
    if (!workspace)
        return ONEPASS_OK;
    a->partial = (double *)(void *)workspace;
    if (k->reduction == ONEPASS_VALID)
        a->counted = (double *)(void *)(workspace + sums);
    if (narrow)
        return ONEPASS_OK;
    if (!is_held(k)) {
        made->loss = launch_of(loss_kernels[computed_of(k)], &a->rows, k->columns);
        return ONEPASS_OK;
    }
    if (is_clustered(k))
        made->loss = cluster_launch_of(onep_cuda_of(handle), cluster_kind_of(k, a), has_more_results(k),
                                       k->predictions.type, &a->rows, k->columns);
    if (!made->loss.block)
        made->loss = held_launch_of(held_kind_of(k), k->predictions.type, &a->rows, k->columns);
    return ONEPASS_OK;
}

static onepass_status run_loss(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    loss_plan *made = (loss_plan *)(void *)plan;
    onep_cuda *cuda = onep_cuda_of(handle);
    (void)problem;
    onepass_status status = onep_cuda_tickets_of(cuda, "logits", 2, &made->args.ticket);
    if (status == ONEPASS_OK && made->args.counted)
        status = count_divisor(cuda, &made->args);
    return status == ONEPASS_OK ? onep_cuda_launch(cuda, "logits", &made->loss, &made->args) : status;
}

onepass_status onep_logits_count_divisor(onep_cuda *cuda, const onep_logits_problem *k, double *room, double *counted)
{
    onep_logits_loss_args args = {
        .columns = k->columns, .ignore_index = k->label.ignore_index, .partial = room, .counted = counted};
    row_plan rows = {.rows = &k->rows};
    add(&rows, &args.labels, &k->labels);
    add(&rows, &args.mask, &k->mask);
    add(&rows, &args.class_weights, &k->class_weights); /* has no rows */
    if (!merge_rows(&rows, &args.rows))
        return refuse_rank("logits", &k->rows);
    onepass_status status = onep_cuda_tickets_of(cuda, "logits", 1, &args.ticket);
    return status == ONEPASS_OK ? count_divisor(cuda, &args) : status;
}

const onep_kernel onep_logits_cuda[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {plan_loss, run_loss},
                                                        [ONEP_BF16] = {plan_loss, run_loss},
                                                        [ONEP_F32] = {plan_loss, run_loss},
                                                        [ONEP_F64] = {plan_loss, run_loss}};

/* ---- token log-probabilities ------------------------------------------------------------------------------------- */

typedef struct token_plan {
    onep_launch launch;
    onep_logits_token_args args;
} token_plan;

_Static_assert(sizeof(token_plan) <= sizeof(onep_plan), "a plan holds it");

static onepass_status plan_token(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *plan,
                                 size_t *bytes)
{
    const onep_token_problem *k = (const onep_token_problem *)problem;
    token_plan *made = (token_plan *)(void *)plan;
    (void)workspace;
    *bytes = 0;
    *made = (token_plan){.args = {.columns = k->columns,
                                  .width = k->width,
                                  .count = k->count,
                                  .temperature = k->temperature,
                                  .softcap = k->softcap,
                                  .ignore_index = k->ignore_index,
                                  .finite = k->semantics == ONEPASS_FINITE,
                                  .is_backward = k->grad_logits.data != NULL}};
    onep_logits_token_args *a = &made->args;
    row_plan rows = {.rows = &k->rows};
    add(&rows, &a->logits, &k->logits);
    add(&rows, &a->indices, &k->indices);
    add(&rows, &a->mask, &k->mask);
    add(&rows, &a->log_prob, &k->log_prob);
    add(&rows, &a->entropy, &k->entropy);
    add(&rows, &a->lse, &k->lse);
    add(&rows, &a->grad_log_prob, &k->grad_log_prob);
    add(&rows, &a->grad_entropy, &k->grad_entropy);
    add(&rows, &a->grad_lse, &k->grad_lse);
    add(&rows, &a->grad_logits, &k->grad_logits);
    if (!merge_rows(&rows, &a->rows))
        return refuse_rank("token_log_probs", &k->rows);
    cut_rows(&a->rows);
    int is_single = k->logits.type != ONEP_F64;
    if (is_single && k->count == 1 && !(k->softcap > 0))
        made->launch = cluster_launch_of(onep_cuda_of(handle), CLUSTER_TOKEN, a->is_backward, k->logits.type, &a->rows,
                                         k->columns);
    if (made->launch.block)
        return ONEPASS_OK;
    if (!a->is_backward && may_be_held(k->logits.type, k->columns)) /* the gradient has no such kernel */
        made->launch = held_launch_of(TOKEN, k->logits.type, &a->rows, k->columns);
    else
        made->launch = launch_of(token_kernels[is_single ? IN_F32 : IN_F64], &a->rows, k->columns);
    return ONEPASS_OK;
}

static onepass_status run_token(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    token_plan *made = (token_plan *)(void *)plan;
    onep_cuda *cuda = onep_cuda_of(handle);
    (void)problem;
    onepass_status status = onep_cuda_tickets_of(cuda, "token_log_probs", 2, &made->args.ticket);
    return status == ONEPASS_OK ? onep_cuda_launch(cuda, "token_log_probs", &made->launch, &made->args) : status;
}

const onep_kernel onep_token_cuda[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {plan_token, run_token},
                                                       [ONEP_BF16] = {plan_token, run_token},
                                                       [ONEP_F32] = {plan_token, run_token},
                                                       [ONEP_F64] = {plan_token, run_token}};
