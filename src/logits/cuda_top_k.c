/*
 * Divergences from a teacher of k columns on a CUDA device: chooses the kernel for a checked problem, fills in its
 * arguments and launches it, after a small one that counts where the divisor has to be counted. Nothing is allocated,
 * copied or waited for. How the work is cut depends on the shape alone.
 */
#include "core/status.h"
#include "cuda/kernels.h"
#include "logits/cuda.h"
#include "logits/cuda_rows.h"
#include "logits/cuda_top_k_args.h"
#include "logits/top_k.h"

_Static_assert(sizeof(onep_logits_top_k_args) <= 4096, "a kernel takes at most 4096 bytes of arguments");
_Static_assert((int)ONEP_TOP_K_PLACES >= (int)ONEP_TOP_K_MOST, "a key holds any place");

static const char *const name = "divergence_logits_top_k";

typedef struct top_k_plan {
    onep_launch more, loss; /* more: block 0: not needed */
    onep_logits_top_k_args args;
} top_k_plan;

/* Kernels with a row in shared memory, by the type of the logits. */
static const onep_kernel_id held_kernels[ONEP_FLOAT_TYPES] = {[ONEP_F16] = ONEP_KERNEL_ID(onep_top_k_held_f16),
                                                              [ONEP_BF16] = ONEP_KERNEL_ID(onep_top_k_held_bf16),
                                                              [ONEP_F32] = ONEP_KERNEL_ID(onep_top_k_held_f32)};

enum { LEAST_COLUMNS = 1024 }; /* of rows in shared memory, less one */

_Static_assert(sizeof(top_k_plan) <= sizeof(onep_plan), "a plan holds it");

/* Whether P is needed at all. */
static int has_label_terms(const onep_logits_problem *k)
{
    return k->label.weight != 0 || k->label.z_loss != 0 || k->label.entropy_bonus != 0 || k->lse.data ||
           k->entropy.data || k->log_prob.data;
}

static void fill_args(const onep_logits_problem *k, onep_logits_top_k_args *args)
{
    *args = (onep_logits_top_k_args){
        .loss =
            {
                .columns = k->columns,
                .width = k->width,
                .weight = k->divergence.weight,
                .label_weight = k->label.weight,
                .smoothing = k->label.smoothing,
                .z_loss = k->label.z_loss,
                .entropy_bonus = k->label.entropy_bonus,
                .temperature = k->temperature,
                .target_temperature = k->target_temperature,
                .label_temperature = k->label_temperature,
                .softcap = k->softcap,
                .divisor = k->divisor,
                .ignore_index = k->label.ignore_index,
                .finite = k->semantics == ONEPASS_FINITE,
                .per_row = k->reduction == ONEPASS_ROWS,
                .has_label_terms = has_label_terms(k),
                .shares_softmax = has_label_terms(k) && k->label_temperature == k->temperature,
                .needs_sums = (k->label.weight != 0 && k->label.smoothing != 0) || k->label.entropy_bonus != 0,
            },
        .entries = k->top_k,
        .keys = 1,
        .values = (int)k->top_values,
        .outside = (int)k->outside,
        .is_reverse = k->divergence.b != 0,
    };
    while (args->keys < k->top_k)
        args->keys *= 2;
}

/* 0: there are too many dimensions. */
static int add_operands(const onep_logits_problem *k, onep_logits_top_k_args *args)
{
    onep_logits_loss_args *a = &args->loss;
    onep_row_plan rows = {.rows = &k->rows};
    onep_row_plan_add(&rows, &a->predictions, &k->predictions);
    onep_row_plan_add(&rows, &a->targets, &k->targets);
    onep_row_plan_add(&rows, &args->indices, &k->top_indices);
    onep_row_plan_add(&rows, &a->labels, &k->labels);
    onep_row_plan_add(&rows, &a->weights, &k->weights);
    onep_row_plan_add(&rows, &a->mask, &k->mask);
    onep_row_plan_add(&rows, &a->value, &k->value);
    onep_row_plan_add(&rows, &a->grad_predictions, &k->grad_predictions);
    onep_row_plan_add(&rows, &a->grad_value, &k->grad_value);
    onep_row_plan_add(&rows, &a->lse, &k->lse);
    onep_row_plan_add(&rows, &a->entropy, &k->entropy);
    onep_row_plan_add(&rows, &a->log_prob, &k->log_prob);
    onep_row_plan_add(&rows, &a->argmax, &k->argmax);
    /* These have no rows: their strides are 0 and follow anything. */
    onep_row_plan_add(&rows, &a->class_weights, &k->class_weights);
    onep_row_plan_add(&rows, &a->made_for, &k->grad_made_for);
    onep_row_plan_add(&rows, &a->divisor_from, &k->divisor_from);
    return onep_row_plan_finish(&rows, &a->rows);
}

static int is_double(const onep_logits_problem *k)
{
    return k->predictions.type == ONEP_F64 || k->targets.type == ONEP_F64;
}

/*
 * Whether the kernels that have a row in shared memory compute loss and gradient. Types, widths and these options alone
 * decide: neither layout nor the results asked for may change the bits of a row.
 */
static int is_held(const onep_logits_problem *k)
{
    int has_label_terms = k->label.weight != 0 || k->label.z_loss != 0 || k->label.entropy_bonus != 0;
    return !is_double(k) && !has_label_terms && !(k->softcap > 0) && k->columns > LEAST_COLUMNS &&
           k->columns <= ONEP_LOGITS_MAX_COLUMNS;
}

/* Bytes of shared memory of a multiprocessor that blocks may ask for, beside what they declare and what each costs. */
static unsigned shared_for(const onep_cuda *cuda, unsigned blocks)
{
    int capability = onep_cuda_capability(cuda);
    unsigned all = capability == 90 ? 228 : capability == 80 ? 164 : 100; /* KB */
    return (all << 10) / blocks - (3u << 10);
}

static unsigned shared_by_entries(const onep_logits_top_k_args *args)
{
    return (unsigned)args->keys * 2 * (unsigned)sizeof(double) + ONEP_TOP_K_BITS / 8;
}

static onep_launch any_launch_of(const onep_logits_problem *k, const onep_logits_top_k_args *args)
{
    const onep_logits_rows *rows = &args->loss.rows;
    return (onep_launch){.kernel =
                             is_double(k) ? (int)ONEP_KERNEL_ID(onep_top_k_f64) : (int)ONEP_KERNEL_ID(onep_top_k_f32),
                         .grid = (unsigned)(rows->chunks > 0 ? rows->chunks : 1),
                         .block = ONEP_LOGITS_THREADS,
                         .shared_bytes = shared_by_entries(args)};
}

/* As many blocks as there are at once; each takes its chunks of rows one after the other. */
static onep_launch held_launch_of(const onep_cuda *cuda, const onep_logits_problem *k, onep_logits_top_k_args *args)
{
    int64_t chunks = args->loss.rows.chunks, bytes = k->columns * (int64_t)onep_type_size(k->predictions.type);
    unsigned others = shared_by_entries(args), at_once = others <= shared_for(cuda, 2) ? 2 : 1;
    int64_t vectors = (bytes + 15) / 16, room = (shared_for(cuda, at_once) - others) / 16;
    args->held = vectors < room ? vectors : room;
    int64_t blocks = (int64_t)onep_cuda_multiprocessors(cuda) * at_once;
    return (onep_launch){.kernel = (int)held_kernels[k->predictions.type],
                         .grid = (unsigned)(chunks < 1        ? 1
                                            : chunks < blocks ? chunks
                                                              : blocks),
                         .block = ONEP_TOP_K_THREADS,
                         .shared_bytes = others + (unsigned)args->held * 16};
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static onepass_status plan_top_k(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *plan,
                                 size_t *bytes)
{
    const onep_logits_problem *k = (const onep_logits_problem *)problem;
    top_k_plan *made = (top_k_plan *)(void *)plan;
    onep_logits_top_k_args *args = &made->args;
    made->more = made->loss = (onep_launch){.block = 0};
    fill_args(k, args);
    if (!add_operands(k, args))
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: rank %d before the columns; CUDA allows %d after merging", name,
                         k->rows.rank, ONEP_LOGITS_MAX_RANK);
    /* Partial sums, of the loss and before that of the divisor: never more than there are chunks, but at least one. */
    size_t sums = round_up((size_t)(args->loss.rows.chunks + 1) * sizeof(double));
    *bytes = sums + round_up(sizeof(double));
    if (!workspace)
        return ONEPASS_OK;
    args->loss.partial = (double *)(void *)workspace;
    if (k->reduction == ONEPASS_VALID)
        args->loss.counted = (double *)(void *)(workspace + sums);
    if (!is_held(k)) {
        made->loss = any_launch_of(k, args);
        return ONEPASS_OK;
    }
    made->loss = held_launch_of(onep_cuda_of(handle), k, args);
    if (args->loss.has_label_terms || k->argmax.data) /* results that those kernels do not have */
        made->more = any_launch_of(k, args);
    return ONEPASS_OK;
}

static onepass_status run_top_k(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    top_k_plan *made = (top_k_plan *)(void *)plan;
    onep_cuda *cuda = onep_cuda_of(handle);
    const onep_logits_loss_args *loss = &made->args.loss;
    onepass_status status = onep_cuda_tickets_of(cuda, name, 2, &made->args.loss.ticket);
    if (status == ONEPASS_OK && loss->counted)
        status = onep_logits_count_divisor(cuda, (const onep_logits_problem *)problem, loss->partial, loss->counted);
    if (status == ONEPASS_OK && made->more.block) { /* first: gradients may be written over the logits */
        onep_logits_top_k_args more = made->args;
        more.loss.value.data = more.loss.grad_predictions.data = NULL;
        status = onep_cuda_launch(cuda, name, &made->more, &more);
    }
    return status == ONEPASS_OK ? onep_cuda_launch(cuda, name, &made->loss, &made->args) : status;
}

const onep_kernel onep_top_k_cuda[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {plan_top_k, run_top_k},
                                                       [ONEP_BF16] = {plan_top_k, run_top_k},
                                                       [ONEP_F32] = {plan_top_k, run_top_k},
                                                       [ONEP_F64] = {plan_top_k, run_top_k}};
