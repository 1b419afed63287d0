/*
 * Linear -> batch normalisation -> scale -> softmax on a CUDA device: where everything lies, which kernels, how many
 * blocks. Forward: the product, column statistics, softmax; backward: a pass over rows, one over columns, two products.
 */
#include "head/cuda.h"

#include "cuda/kernels.h"
#include "head/cuda_args.h"

_Static_assert(ONEP_HEAD_MAX_SHARED + 1 <= ONEP_CUDA_LAUNCH_TICKETS, "a ticket per shared strip, and one for all");
_Static_assert(sizeof(onep_head_stats_args) <= 4096 && sizeof(onep_head_grad_args) <= 4096,
               "a kernel takes at most 4096 bytes of arguments");

/* ---- kernels by type --------------------------------------------------------------------------------------------- */

/* Packed elements of a type, or any strides and types; computed in float or in double. */
enum { ANY32 = ONEP_F64, ANY64, KERNEL_TYPES };

#define BY_TYPE(name)                                                                                                  \
    {                                                                                                                  \
        ONEP_KERNEL_ID(name##_f16), ONEP_KERNEL_ID(name##_bf16), ONEP_KERNEL_ID(name##_f32),                           \
            ONEP_KERNEL_ID(name##_any32), ONEP_KERNEL_ID(name##_any64)                                                 \
    }
static const onep_kernel_id stats_kernels[KERNEL_TYPES] = BY_TYPE(onep_head_stats);
static const onep_kernel_id grad_rows_kernels[KERNEL_TYPES] = BY_TYPE(onep_head_grad_rows);

/* By length of the row and type of the output: from y of the same type, and from float32. */
enum { SOFTMAX_ROWS, SOFTMAX_WIDE, SOFTMAX_LONG, SOFTMAX_KINDS };
#define SOFTMAX(kind)                                                                                                  \
    {                                                                                                                  \
        {ONEP_KERNEL_ID(onep_head_softmax_##kind##_f16_f16), ONEP_KERNEL_ID(onep_head_softmax_##kind##_bf16_bf16),     \
         ONEP_KERNEL_ID(onep_head_softmax_##kind##_f32_f32)},                                                          \
        {                                                                                                              \
            ONEP_KERNEL_ID(onep_head_softmax_##kind##_f32_f16), ONEP_KERNEL_ID(onep_head_softmax_##kind##_f32_bf16),   \
                ONEP_KERNEL_ID(onep_head_softmax_##kind##_f32_f32)                                                     \
        }                                                                                                              \
    }
static const onep_kernel_id softmax_kernels[SOFTMAX_KINDS][2][ONEP_F64] = {
    [SOFTMAX_ROWS] = SOFTMAX(rows), [SOFTMAX_WIDE] = SOFTMAX(wide), [SOFTMAX_LONG] = SOFTMAX(long)};

/* By type of dy: from an output of the same type, and from float32. */
static const onep_kernel_id grad_columns_kernels[2][ONEP_F64] = {
    {ONEP_KERNEL_ID(onep_head_grad_columns_f16_f16), ONEP_KERNEL_ID(onep_head_grad_columns_bf16_bf16),
     ONEP_KERNEL_ID(onep_head_grad_columns_f32_f32)},
    {ONEP_KERNEL_ID(onep_head_grad_columns_f32_f16), ONEP_KERNEL_ID(onep_head_grad_columns_f32_bf16),
     ONEP_KERNEL_ID(onep_head_grad_columns_f32_f32)}};

/* ---- shapes and places ------------------------------------------------------------------------------------------- */

enum { ALIGNMENT = 256, GRID_LIMIT = 1 << 20 };

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t at_most(int64_t x, int64_t limit)
{
    return x < limit ? x : limit;
}

static size_t size_of(onep_type type)
{
    return onep_type_size(type);
}

static onep_type computed_of(onep_type input, onep_type weight)
{
    return onep_promote(input, weight) == ONEP_F64 ? ONEP_F64 : ONEP_F32;
}

/* A matrix of rank 2, in a problem whose tensors have no others. */
static onep_rows rows_of(int64_t count)
{
    onep_rows rows = {.rank = count == 1 ? 0 : 1, .count = count};
    rows.extent[0] = count;
    return rows;
}

static onep_matrix matrix(const onep_operand *operand, const onep_rows *rows)
{
    return (onep_matrix){operand->data, rows->rank > 0 ? operand->row_stride[0] : 0, operand->col_stride,
                         (int)operand->type};
}

static onep_matrix vector(const onep_operand *operand)
{
    return (onep_matrix){operand->data, 0, operand->col_stride, (int)operand->type};
}

/* Bytes handed out one after the other; with a NULL base only counted. */
typedef struct room {
    char *base;
    size_t used;
} room;

static void *take(room *r, size_t bytes)
{
    void *at = r->base ? r->base + r->used : NULL;
    r->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

/* Where the next bytes will be. */
static char *here(const room *r)
{
    return r->base ? r->base + r->used : NULL;
}

/* A matrix in the workspace; rows begin at multiples of 16 bytes. */
static onep_operand take_matrix(room *r, int64_t rows, int64_t columns, onep_type type)
{
    int64_t pitch = ceil_div(columns * (int64_t)size_of(type), 16) * 16;
    onep_operand made = {.type = type, .col_stride = (int64_t)size_of(type)};
    made.row_stride[0] = pitch;
    made.data = (char *)take(r, (size_t)(rows * pitch));
    return made;
}

/* True if elements lie side by side and every `count` of them, from the first of each row, form one aligned access. */
static int is_packed(const onep_matrix *m, int count)
{
    int64_t size = (int64_t)size_of((onep_type)m->type), bytes = size * count;
    return m->col_stride == size && (uintptr_t)m->data % (uintptr_t)bytes == 0 && m->row_stride % bytes == 0;
}

/* Threads for rows of which each thread has `each` columns. */
static unsigned threads_for(int64_t columns, int64_t each)
{
    return (unsigned)(ceil_div(columns, 32 * each) * 32);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* How a strip of columns is shared among blocks. */
typedef struct cut {
    int64_t strips, splits, split_rows;
} cut;

static cut cut_of(int64_t rows, int64_t columns)
{
    enum { WANTED = 512 }; /* blocks: two rounds on a large device */
    cut c = {.strips = ceil_div(columns, ONEP_HEAD_STRIP)};
    int64_t chunks = ceil_div(rows, ONEP_HEAD_CHUNK), splits = 1;
    if (c.strips <= ONEP_HEAD_MAX_SHARED)
        splits = at_most(at_most(ceil_div(WANTED, c.strips), ONEP_HEAD_MAX_SPLITS), chunks);
    c.split_rows = ceil_div(chunks, splits) * ONEP_HEAD_CHUNK;
    c.splits = ceil_div(rows, c.split_rows);
    return c;
}

/* Three launches; the tickets, which depend on whether they are captured, are filled in by run. Of an empty batch only
 * `statistics`, which counts it. */
typedef struct forward_plan {
    onep_matmul_plan product;
    onep_launch statistics, softmax; /* grid 0: none */
    int tickets;                     /* of the statistics; 0: none */
    onep_head_stats_args statistics_args;
    onep_head_softmax_args softmax_args;
} forward_plan;

_Static_assert(sizeof(forward_plan) <= sizeof(onep_plan), "a plan holds it");

/* Mean and spread of every column: the running ones, merged from the product's own, or taken from y. */
static void plan_statistics(const onep_head_problem *p, onep_type computed, const onep_operand *y, const cut *shares,
                            double *partial, forward_plan *plan)
{
    onep_rows rows = rows_of(p->rows.count);
    onep_head_stats_args *a = &plan->statistics_args;
    int made = plan->product.statistics_rows > 0;
    *a = (onep_head_stats_args){
        .features = {.in = {[ONEP_HEAD_BIAS] = vector(&p->bias),
                            [ONEP_HEAD_GAMMA] = vector(&p->gamma),
                            [ONEP_HEAD_BETA] = vector(&p->beta),
                            [ONEP_HEAD_SCALE] = vector(&p->scale),
                            [ONEP_HEAD_MEAN] = vector(&p->running_mean),
                            [ONEP_HEAD_SPREAD] = vector(&p->running_var)},
                     .out = {[ONEP_HEAD_TO_MEAN] = vector(&p->mean), [ONEP_HEAD_TO_RSTD] = vector(&p->rstd)},
                     .batches = (long long *)(void *)p->batches_tracked.data,
                     .eps = p->eps,
                     .momentum = p->momentum,
                     .per_row = 1 / (double)p->rows.count,
                     .per_free_row = 1 / (double)(p->rows.count - 1),
                     .rows = p->rows.count,
                     .columns = p->columns,
                     .cumulative = p->cumulative,
                     .running = p->statistics == ONEPASS_RUNNING_STATISTICS},
        .y = matrix(y, &rows),
        .split_rows = shares->split_rows,
        .strips = (int)shares->strips,
        .splits = (int)shares->splits,
        .partial = partial,
    };
    int any = computed == ONEP_F64 ? ANY64 : ANY32;
    plan->statistics = (onep_launch){.grid = (unsigned)a->strips, .block = ONEP_HEAD_STATS_THREADS, .programmatic = 1};
    if (a->features.running) {
        plan->statistics.kernel =
            any == ANY64 ? ONEP_KERNEL_ID(onep_head_prepare_any64) : ONEP_KERNEL_ID(onep_head_prepare_any32);
        return;
    }
    a->features.out[ONEP_HEAD_TO_RUNNING_MEAN] = a->features.in[ONEP_HEAD_MEAN];
    a->features.out[ONEP_HEAD_TO_RUNNING_VAR] = a->features.in[ONEP_HEAD_SPREAD];
    plan->tickets = a->splits > 1 && !made ? a->strips + 1 : 1;
    if (made) {
        plan->statistics.kernel = ONEP_KERNEL_ID(onep_head_merge_any32);
        return;
    }
    int lanes = 16 / (int)size_of(y->type);
    int packed = y->type != ONEP_F64 && p->columns % lanes == 0 && is_packed(&a->y, lanes);
    plan->statistics.kernel = (int)stats_kernels[packed ? (int)y->type : any];
    plan->statistics.grid = (unsigned)(a->strips * a->splits);
}

/* True if there are kernels from packed y to a packed output. */
static int has_softmax(onep_type y, onep_type output)
{
    return y != ONEP_F64 && output != ONEP_F64 && (y == output || y == ONEP_F32);
}

static void plan_softmax(const onep_cuda *cuda, const onep_head_problem *p, onep_type computed, const onep_operand *y,
                         forward_plan *plan)
{
    onep_rows rows = rows_of(p->rows.count);
    onep_head_softmax_args *a = &plan->softmax_args;
    a->y = matrix(y, &rows);
    a->output = matrix(&p->output, &rows);
    a->rows = p->rows.count;
    a->columns = p->columns;
    a->block_rows = 0;
    plan->softmax = (onep_launch){.programmatic = 1};
    int64_t n = p->columns;
    int lanes = 16 / (int)size_of(y->type);
    if (!has_softmax(y->type, p->output.type) || n % lanes != 0 || !is_packed(&a->y, lanes) ||
        !is_packed(&a->output, lanes)) {
        plan->softmax.kernel =
            computed == ONEP_F64 ? ONEP_KERNEL_ID(onep_head_softmax_any64) : ONEP_KERNEL_ID(onep_head_softmax_any32);
        plan->softmax.grid = (unsigned)at_most(a->rows, GRID_LIMIT);
        plan->softmax.block = ONEP_HEAD_ANY_THREADS;
        return;
    }
    int kind = n <= ONEP_HEAD_ROW_COLUMNS ? SOFTMAX_ROWS : n <= ONEP_HEAD_WIDE_COLUMNS ? SOFTMAX_WIDE : SOFTMAX_LONG;
    unsigned threads = kind == SOFTMAX_ROWS ? threads_for(n, 8) : kind == SOFTMAX_WIDE ? threads_for(n, 16) : 1024;
    /* As many blocks as fit at once; each has the same number of rows, two at a time. A row's bits do not depend on it.
     */
    int64_t blocks = onep_cuda_multiprocessors(cuda) * (int64_t)(1024 / threads);
    a->block_rows = 2 * ceil_div(a->rows, 2 * (blocks > 0 ? blocks : 1));
    plan->softmax.kernel = (int)softmax_kernels[kind][y->type != p->output.type][p->output.type];
    plan->softmax.grid =
        (unsigned)(kind == SOFTMAX_LONG ? at_most(a->rows, GRID_LIMIT) : ceil_div(a->rows, a->block_rows));
    plan->softmax.block = threads;
}

/* A batch without rows or features is counted, leaves the statistics it is normalised by, and nothing else. */
static void plan_count(const onep_head_problem *p, forward_plan *plan)
{
    int running = p->statistics == ONEPASS_RUNNING_STATISTICS, counts = !running && p->batches_tracked.data;
    if (!counts && (!p->mean.data || p->columns == 0))
        return;
    plan->statistics_args.features =
        (onep_head_features){.in = {[ONEP_HEAD_BIAS] = vector(&p->bias),
                                    [ONEP_HEAD_MEAN] = vector(&p->running_mean),
                                    [ONEP_HEAD_SPREAD] = vector(&p->running_var)},
                             .out = {[ONEP_HEAD_TO_MEAN] = vector(&p->mean), [ONEP_HEAD_TO_RSTD] = vector(&p->rstd)},
                             .batches = counts ? (long long *)(void *)p->batches_tracked.data : NULL,
                             .eps = p->eps,
                             .columns = p->columns,
                             .running = running};
    plan->statistics = (onep_launch){
        .kernel = ONEP_KERNEL_ID(onep_head_count), .grid = 1, .block = ONEP_HEAD_STATS_THREADS, .programmatic = 1};
}

/* Where y is made: where the problem keeps it, else in the output, else in the workspace. */
static onep_operand place_y(const onep_head_problem *p, onep_type computed, room *r)
{
    if (p->product.data)
        return p->product;
    if (p->output.type == computed && p->output.col_stride == (int64_t)size_of(computed))
        return p->output;
    return take_matrix(r, p->rows.count, p->columns, computed);
}

static onepass_status plan_forward(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *to,
                                   size_t *bytes)
{
    const onep_head_problem *p = (const onep_head_problem *)problem;
    forward_plan *plan = (forward_plan *)(void *)to;
    onep_cuda *cuda = onep_cuda_of(handle);
    plan->product.engine = ONEP_ENGINE_NONE;
    plan->statistics.grid = plan->softmax.grid = 0;
    plan->tickets = 0;
    if (onep_head_is_empty(p)) {
        plan_count(p, plan);
        return ONEPASS_OK;
    }
    room r = {workspace, 0};
    onep_type computed = computed_of(p->input.type, p->weight.type);
    void *slope = take(&r, (size_t)p->columns * size_of(computed));
    void *offset = take(&r, (size_t)p->columns * size_of(computed));
    onep_operand y = place_y(p, computed, &r);
    /* Operands do not change places: statistics are over rows of the right one, the input. */
    onep_product product = {
        .operator_name = "head",
        .m = p->rows.count,
        .n = p->columns,
        .k = p->depth,
        .a = p->input,
        .a_rows = p->rows,
        .b = p->weight,
        .b_rows = rows_of(p->columns),
        .c = y,
        .c_rows = rows_of(p->rows.count),
        .math = onep_math_of(handle),
        .b_planes = p->prepared,
    };
    onepass_status status = onep_matmul_plan_make(cuda, &product, here(&r), &plan->product);
    if (status != ONEPASS_OK)
        return status;
    take(&r, workspace ? plan->product.bytes : onep_product_workspace(cuda, &product));

    int batch = p->statistics == ONEPASS_BATCH_STATISTICS;
    cut shares = cut_of(p->rows.count, p->columns);
    if (!batch)
        plan->product.statistics_rows = 0;
    if (plan->product.statistics_rows > 0) {
        shares.split_rows = plan->product.statistics_rows;
        shares.splits = ceil_div(p->rows.count, shares.split_rows);
    }
    double *partial = NULL;
    if (batch && (plan->product.statistics_rows > 0 || shares.splits > 1))
        partial = (double *)take(&r, (size_t)(shares.splits * p->columns) * 2 * sizeof(double));
    if (plan->product.statistics_rows > 0)
        onep_matmul_statistics(&plan->product, partial);
    plan_statistics(p, computed, &y, &shares, partial, plan);
    plan_softmax(cuda, p, computed, &y, plan);
    plan->statistics_args.features.slope = slope;
    plan->statistics_args.features.offset = offset;
    plan->softmax_args.slope = slope;
    plan->softmax_args.offset = offset;
    *bytes = r.used;
    return ONEPASS_OK;
}

onepass_status onep_head_cuda_run(const onepass_handle *handle, onep_plan *planned, int stages)
{
    forward_plan *plan = (forward_plan *)(void *)planned;
    onep_cuda *cuda = onep_cuda_of(handle);
    onepass_status status = ONEPASS_OK;
    if (stages & ONEP_HEAD_PRODUCT)
        status = onep_matmul_run(cuda, &plan->product);
    if (status == ONEPASS_OK && (stages & ONEP_HEAD_STATISTICS) && plan->tickets)
        status = onep_cuda_tickets_of(cuda, "head", plan->tickets, &plan->statistics_args.tickets);
    if (status == ONEPASS_OK && (stages & ONEP_HEAD_STATISTICS) && plan->statistics.grid)
        status = onep_cuda_launch(cuda, "head", &plan->statistics, &plan->statistics_args);
    if (status == ONEPASS_OK && (stages & ONEP_HEAD_SOFTMAX) && plan->softmax.grid)
        status = onep_cuda_launch(cuda, "head", &plan->softmax, &plan->softmax_args);
    return status;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct backward_plan {
    onep_matmul_plan to_input, to_weight; /* dX = dY W and dW = dY^T X, one after the other in the same workspace */
    onep_launch rows, columns;            /* grid 0: none */
    onep_head_grad_args args;
} backward_plan;

_Static_assert(sizeof(backward_plan) <= sizeof(onep_plan), "a plan holds it");

/* How the passes over rows and columns are cut, and where they leave what. */
static void place_passes(const onep_head_backward_problem *p, onep_type computed, room *r, onep_head_grad_args *a)
{
    int64_t rows = p->rows.count, columns = p->columns;
    size_t size = size_of(computed);
    a->part_rows = rows ? 2 * ceil_div(rows, 2 * ONEP_HEAD_MAX_PARTS) : 1;
    a->parts = (int)ceil_div(rows, a->part_rows);
    a->strips = (int)ceil_div(columns, ONEP_HEAD_GRAD_STRIP);
    int64_t splits = at_most(ceil_div(ONEP_HEAD_MAX_GRAD_BLOCKS, a->strips), ceil_div(rows, ONEP_HEAD_GRAD_STRIP));
    splits = splits > 1 ? splits : 1;
    a->split_rows = rows ? ceil_div(rows, splits) : 1;
    a->splits = rows ? (int)ceil_div(rows, a->split_rows) : 1;
    a->dots = take(r, (size_t)rows * size);
    a->partial = take(r, (size_t)(a->parts * 2 * columns) * size);
    a->scale_partial = (double *)take(r, (size_t)a->strips * sizeof(double));
}

static void fill_grad_args(const onep_head_backward_problem *p, const onep_operand *dy, onep_head_grad_args *a)
{
    onep_rows rows = rows_of(p->rows.count);
    a->grad_output = matrix(&p->grad_output, &rows);
    a->output = matrix(&p->output, &rows);
    a->product = matrix(&p->product, &rows);
    a->in[ONEP_HEAD_GAMMA] = vector(&p->gamma);
    a->in[ONEP_HEAD_BETA] = vector(&p->beta);
    a->in[ONEP_HEAD_SCALE] = vector(&p->scale);
    a->in[ONEP_HEAD_MEAN] = vector(&p->mean);
    a->in[ONEP_HEAD_SPREAD] = vector(&p->rstd);
    a->out[ONEP_HEAD_TO_BIAS] = vector(&p->grad_bias);
    a->out[ONEP_HEAD_TO_GAMMA] = vector(&p->grad_gamma);
    a->out[ONEP_HEAD_TO_BETA] = vector(&p->grad_beta);
    if (p->scale_is_one_value)
        a->one_scale = vector(&p->grad_scale);
    else
        a->out[ONEP_HEAD_TO_SCALE] = vector(&p->grad_scale);
    if (p->grad_input.data || p->grad_weight.data)
        a->grad_product = matrix(dy, &rows);
    a->per_row = p->rows.count ? 1 / (double)p->rows.count : 0;
    a->rows = p->rows.count;
    a->columns = p->columns;
    a->running = p->statistics == ONEPASS_RUNNING_STATISTICS;
}

/* True if all rows can be read `count` elements at a time: one type of two beside float32. */
static int grads_packed(const onep_head_grad_args *a, int count)
{
    return a->output.type == a->grad_output.type && a->output.type != ONEP_F64 && a->product.type == ONEP_F32 &&
           a->columns % count == 0 && is_packed(&a->output, count) && is_packed(&a->grad_output, count) &&
           is_packed(&a->product, 4);
}

static onep_launch grad_rows_launch(const onep_head_grad_args *a, onep_type computed)
{
    const onep_matrix *mean = &a->in[ONEP_HEAD_MEAN];
    int packed = a->columns <= ONEP_HEAD_ROW_COLUMNS && grads_packed(a, 16 / (int)size_of((onep_type)a->output.type)) &&
                 mean->type == ONEP_CUDA_F32 && is_packed(mean, 4);
    unsigned threads = packed ? threads_for(a->columns, 8) : (unsigned)at_most(threads_for(a->columns, 1), 1024);
    int type = packed ? a->output.type : computed == ONEP_F64 ? ANY64 : ANY32;
    return (onep_launch){
        .kernel = (int)grad_rows_kernels[type], .grid = (unsigned)a->parts, .block = threads, .programmatic = 1};
}

static onep_launch grad_columns_launch(const onep_head_grad_args *a, onep_type computed)
{
    int type = a->output.type, made = a->grad_product.data ? a->grad_product.type : type;
    int kernel = computed == ONEP_F64 ? ONEP_KERNEL_ID(onep_head_grad_columns_any64)
                                      : ONEP_KERNEL_ID(onep_head_grad_columns_any32);
    if (computed == ONEP_F32 && grads_packed(a, 4) && (made == type || type == ONEP_F32))
        kernel = (int)grad_columns_kernels[made != type][made];
    return (onep_launch){.kernel = kernel,
                         .grid = (unsigned)(a->strips * a->splits),
                         .block = ONEP_HEAD_GRAD_THREADS,
                         .programmatic = 1};
}

/* dX = dY W */
static onep_product input_product(const onep_head_backward_problem *p, const onep_operand *dy, onep_product_math math)
{
    onep_product product = {
        .operator_name = "head_backward",
        .m = p->rows.count,
        .n = p->depth,
        .k = p->columns,
        .a = *dy,
        .a_rows = rows_of(p->rows.count),
        .b = p->weight,
        .b_rows = rows_of(p->columns),
        .b_swapped = 1,
        .c = p->grad_input,
        .c_rows = rows_of(p->rows.count),
        .math = math,
        .may_exchange = 1,
    };
    product.c.type = p->input.type; /* a gradient has the type of what it belongs to, also if it is not given */
    return product;
}

/* dW = dY^T X */
static onep_product weight_product(const onep_head_backward_problem *p, const onep_operand *dy, onep_product_math math)
{
    onep_product product = {
        .operator_name = "head_backward",
        .m = p->columns,
        .n = p->depth,
        .k = p->rows.count,
        .a = *dy,
        .a_rows = rows_of(p->rows.count),
        .a_swapped = 1,
        .b = p->input,
        .b_rows = rows_of(p->rows.count),
        .b_swapped = 1,
        .c = p->grad_weight,
        .c_rows = rows_of(p->columns),
        .math = math,
        .may_exchange = 1,
    };
    product.c.type = p->weight.type;
    return product;
}

/* The products of the gradients that are wanted, in the same workspace, of which `bytes` are needed; if there is none,
 * enough for any call of these operands. */
static onepass_status plan_products(onep_cuda *cuda, const onep_head_backward_problem *p, const onep_operand *dy,
                                    onep_product_math math, char *workspace, backward_plan *plan, size_t *bytes)
{
    onepass_status status = ONEPASS_OK;
    if (p->grad_input.data || !workspace) {
        onep_product product = input_product(p, dy, math);
        if (p->grad_input.data)
            status = onep_matmul_plan_make(cuda, &product, workspace, &plan->to_input);
        *bytes = workspace ? plan->to_input.bytes : onep_product_workspace(cuda, &product);
    }
    if (status == ONEPASS_OK && (p->grad_weight.data || !workspace)) {
        onep_product product = weight_product(p, dy, math);
        if (p->grad_weight.data)
            status = onep_matmul_plan_make(cuda, &product, workspace, &plan->to_weight);
        size_t more = workspace ? plan->to_weight.bytes : onep_product_workspace(cuda, &product);
        *bytes = more > *bytes ? more : *bytes;
    }
    return status;
}

static onepass_status plan_backward(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *to,
                                    size_t *bytes)
{
    const onep_head_backward_problem *p = (const onep_head_backward_problem *)problem;
    backward_plan *plan = (backward_plan *)(void *)to;
    plan->to_input.engine = plan->to_weight.engine = ONEP_ENGINE_NONE;
    plan->rows.grid = plan->columns.grid = 0;
    onep_type computed = computed_of(p->input.type, p->weight.type);
    /* Tensor cores multiply halves by halves: dy is rounded to the type of both operands, as it would be anyway. */
    onep_operand dy = {.type = p->input.type == p->weight.type ? p->input.type : computed};
    room r = {workspace, 0};
    if (p->columns > 0) {
        plan->args = (onep_head_grad_args){.rows = p->rows.count};
        place_passes(p, computed, &r, &plan->args);
        dy = take_matrix(&r, p->rows.count, p->columns, dy.type);
        if (p->output.data) { /* not if only the size is asked for */
            fill_grad_args(p, &dy, &plan->args);
            plan->rows = grad_rows_launch(&plan->args, computed);
            plan->columns = grad_columns_launch(&plan->args, computed);
        }
    }
    size_t product_bytes = 0;
    onepass_status status =
        plan_products(onep_cuda_of(handle), p, &dy, onep_math_of(handle), here(&r), plan, &product_bytes);
    take(&r, product_bytes);
    *bytes = r.used;
    return status;
}

onepass_status onep_head_backward_cuda_run(const onepass_handle *handle, onep_plan *planned, int stages)
{
    backward_plan *plan = (backward_plan *)(void *)planned;
    onep_cuda *cuda = onep_cuda_of(handle);
    onepass_status status = ONEPASS_OK;
    if ((stages & ONEP_HEAD_STATISTICS) && plan->rows.grid)
        status = onep_cuda_launch(cuda, "head_backward", &plan->rows, &plan->args);
    if (status == ONEPASS_OK && (stages & ONEP_HEAD_SOFTMAX) && plan->columns.grid) {
        status = onep_cuda_ticket(cuda, "head_backward", &plan->args.ticket);
        if (status == ONEPASS_OK)
            status = onep_cuda_launch(cuda, "head_backward", &plan->columns, &plan->args);
    }
    if (!(stages & ONEP_HEAD_PRODUCT))
        return status;
    if (status == ONEPASS_OK)
        status = onep_matmul_run(cuda, &plan->to_input);
    return status == ONEPASS_OK ? onep_matmul_run(cuda, &plan->to_weight) : status;
}

/* ---- the kernels ------------------------------------------------------------------------------------------------- */

static onepass_status run_forward(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    (void)problem;
    return onep_head_cuda_run(handle, plan, ONEP_HEAD_ALL);
}

static onepass_status run_backward(const onepass_handle *handle, const void *problem, onep_plan *plan)
{
    (void)problem;
    return onep_head_backward_cuda_run(handle, plan, ONEP_HEAD_ALL);
}

const onep_kernel onep_head_cuda[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {plan_forward, run_forward},
                                                      [ONEP_BF16] = {plan_forward, run_forward},
                                                      [ONEP_F32] = {plan_forward, run_forward},
                                                      [ONEP_F64] = {plan_forward, run_forward}};

const onep_kernel onep_head_backward_cuda[ONEP_FLOAT_TYPES] = {[ONEP_F16] = {plan_backward, run_backward},
                                                               [ONEP_BF16] = {plan_backward, run_backward},
                                                               [ONEP_F32] = {plan_backward, run_backward},
                                                               [ONEP_F64] = {plan_backward, run_backward}};
