/*
 * Linear -> batch normalisation -> scale -> softmax on a CUDA device: where everything lies, which kernels, how many
 * blocks. Forward: the product, column statistics, softmax; backward: a pass over rows, one over columns, two products.
 */
#include "head_cuda.h"

#include <stdio.h>

#include "head_args.h"
#include "status.h"

_Static_assert((int)ONEP_CUDA_F16 == (int)ONEP_F16 && (int)ONEP_CUDA_BF16 == (int)ONEP_BF16 &&
                   (int)ONEP_CUDA_F32 == (int)ONEP_F32 && (int)ONEP_CUDA_F64 == (int)ONEP_F64,
               "kl_args.h numbers the types as types.h does");
_Static_assert(ONEP_HEAD_MAX_SHARED + 1 <= ONEP_CUDA_LAUNCH_TICKETS, "a ticket a shared strip, and one for all");
_Static_assert(sizeof(onep_head_stats_args) <= 4096 && sizeof(onep_head_grad_args) <= 4096,
               "a kernel takes at most 4096 bytes of arguments");

static const char *const type_words[ONEP_FLOAT_TYPES] = {
    [ONEP_F16] = "f16", [ONEP_BF16] = "bf16", [ONEP_F32] = "f32", [ONEP_F64] = "f64"};

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

static onep_head_matrix matrix(const onep_operand *operand, const onep_rows *rows)
{
    return (onep_head_matrix){operand->data, rows->rank > 0 ? operand->row_stride[0] : 0, operand->col_stride,
                              (int)operand->type};
}

static onep_head_matrix vector(const onep_operand *operand)
{
    return (onep_head_matrix){operand->data, 0, operand->col_stride, (int)operand->type};
}

/* Bytes handed out one after the other; with a NULL base only counted. */
typedef struct room {
    char *base;
    size_t used;
} room;

static room room_of(void *workspace)
{
    uintptr_t address = (uintptr_t)workspace;
    return (room){workspace ? (char *)((address + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) : NULL, 0};
}

static void *take(room *r, size_t bytes)
{
    void *at = r->base ? r->base + r->used : NULL;
    r->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static size_t room_bytes(const room *r)
{
    return r->used ? r->used + ALIGNMENT : 0; /* the caller's address may be anything */
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
static int is_packed(const onep_head_matrix *m, int count)
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

/* Where a forward call has its things. */
typedef struct forward {
    onep_type computed;
    onep_operand y;
    cut shares;
    int made; /* the product makes the statistics of every cut itself */
    void *slope, *offset, *product;
    double *partial;
    size_t product_bytes;
} forward;

/* Operands do not change places: statistics are over rows of the right one, the input. */
static onep_product forward_product(const onep_head_problem *p, const onep_operand *y, onep_product_math math)
{
    return (onep_product){
        .operator_name = "head",
        .m = p->rows.count,
        .n = p->columns,
        .k = p->depth,
        .a = p->input,
        .a_rows = p->rows,
        .b = p->weight,
        .b_rows = rows_of(p->columns),
        .c = *y,
        .c_rows = rows_of(p->rows.count),
        .math = math,
        .b_planes = p->prepared,
    };
}

static size_t place_forward(onep_cuda *cuda, const onep_head_problem *p, onep_product_math math, forward *f)
{
    room r = room_of(p->workspace);
    f->computed = computed_of(p->input.type, p->weight.type);
    size_t size = size_of(f->computed);
    f->slope = take(&r, (size_t)p->columns * size);
    f->offset = take(&r, (size_t)p->columns * size);
    if (p->product.data)
        f->y = p->product;
    else if (p->output.type == f->computed && p->output.col_stride == (int64_t)size)
        f->y = p->output;
    else
        f->y = take_matrix(&r, p->rows.count, p->columns, f->computed);
    onep_product product = forward_product(p, &f->y, math);
    int batch = p->statistics == ONEPASS_BATCH_STATISTICS;
    int64_t made_rows = batch ? onep_product_statistics_rows(cuda, &product) : 0;
    f->shares = cut_of(p->rows.count, p->columns);
    f->made = made_rows > 0;
    if (f->made) {
        f->shares.split_rows = made_rows;
        f->shares.splits = ceil_div(p->rows.count, made_rows);
    }
    f->partial = NULL;
    if (batch && (f->made || f->shares.splits > 1))
        f->partial = (double *)take(&r, (size_t)(f->shares.splits * p->columns) * 2 * sizeof(double));
    f->product_bytes = onep_product_workspace(cuda, &product);
    f->product = f->product_bytes ? take(&r, f->product_bytes) : NULL;
    return room_bytes(&r);
}

size_t onep_head_cuda_workspace(onep_cuda *cuda, const onep_head_problem *p, onep_product_math math)
{
    forward f;
    if (p->rows.count == 0 || p->columns == 0)
        return 0;
    return place_forward(cuda, p, math, &f);
}

static onepass_status run_statistics(onep_cuda *cuda, const onep_head_problem *p, const forward *f)
{
    onep_rows rows = rows_of(p->rows.count);
    onep_head_stats_args a = {
        .features = {.in = {[ONEP_HEAD_BIAS] = vector(&p->bias),
                            [ONEP_HEAD_GAMMA] = vector(&p->gamma),
                            [ONEP_HEAD_BETA] = vector(&p->beta),
                            [ONEP_HEAD_SCALE] = vector(&p->scale),
                            [ONEP_HEAD_MEAN] = vector(&p->running_mean),
                            [ONEP_HEAD_SPREAD] = vector(&p->running_var)},
                     .out = {[ONEP_HEAD_TO_MEAN] = vector(&p->mean), [ONEP_HEAD_TO_RSTD] = vector(&p->rstd)},
                     .slope = f->slope,
                     .offset = f->offset,
                     .batches = (long long *)(void *)p->batches_tracked.data,
                     .eps = p->eps,
                     .momentum = p->momentum,
                     .per_row = 1 / (double)p->rows.count,
                     .per_free_row = 1 / (double)(p->rows.count - 1),
                     .rows = p->rows.count,
                     .columns = p->columns,
                     .cumulative = p->cumulative,
                     .running = p->statistics == ONEPASS_RUNNING_STATISTICS},
        .y = matrix(&f->y, &rows),
        .split_rows = f->shares.split_rows,
        .strips = (int)f->shares.strips,
        .splits = (int)f->shares.splits,
        .partial = f->partial,
    };
    const char *any = f->computed == ONEP_F64 ? "any64" : "any32";
    char name[48];
    if (a.features.running) {
        snprintf(name, sizeof name, "onep_head_prepare_%s", any);
        return onep_cuda_launch_early(cuda, "head", name, (unsigned)a.strips, ONEP_HEAD_STATS_THREADS, 0, &a);
    }
    a.features.out[ONEP_HEAD_TO_RUNNING_MEAN] = a.features.in[ONEP_HEAD_MEAN];
    a.features.out[ONEP_HEAD_TO_RUNNING_VAR] = a.features.in[ONEP_HEAD_SPREAD];
    int tickets = a.splits > 1 && !f->made ? a.strips + 1 : 1;
    onepass_status status = onep_cuda_tickets_of(cuda, "head", tickets, &a.tickets);
    if (status != ONEPASS_OK)
        return status;
    if (f->made)
        return onep_cuda_launch_early(cuda, "head", "onep_head_merge_any32", (unsigned)a.strips,
                                      ONEP_HEAD_STATS_THREADS, 0, &a);
    int lanes = 16 / (int)size_of(f->y.type);
    int packed = f->y.type != ONEP_F64 && p->columns % lanes == 0 && is_packed(&a.y, lanes);
    snprintf(name, sizeof name, "onep_head_stats_%s", packed ? type_words[f->y.type] : any);
    return onep_cuda_launch_early(cuda, "head", name, (unsigned)(a.strips * a.splits), ONEP_HEAD_STATS_THREADS, 0, &a);
}

/* True if there are kernels from packed y to a packed output. */
static int has_softmax(onep_type y, onep_type output)
{
    return y != ONEP_F64 && output != ONEP_F64 && (y == output || y == ONEP_F32);
}

static onepass_status run_softmax(onep_cuda *cuda, const onep_head_problem *p, const forward *f)
{
    onep_rows rows = rows_of(p->rows.count);
    onep_head_softmax_args a = {
        .y = matrix(&f->y, &rows),
        .output = matrix(&p->output, &rows),
        .slope = f->slope,
        .offset = f->offset,
        .rows = p->rows.count,
        .columns = p->columns,
    };
    int64_t multiprocessors = onep_cuda_multiprocessors(cuda), n = p->columns;
    int lanes = 16 / (int)size_of(f->y.type);
    char name[48];
    if (!has_softmax(f->y.type, p->output.type) || n % lanes != 0 || !is_packed(&a.y, lanes) ||
        !is_packed(&a.output, lanes)) {
        snprintf(name, sizeof name, "onep_head_softmax_%s", f->computed == ONEP_F64 ? "any64" : "any32");
        return onep_cuda_launch_early(cuda, "head", name, (unsigned)at_most(a.rows, GRID_LIMIT), ONEP_HEAD_ANY_THREADS,
                                      0, &a);
    }
    const char *kind = n <= ONEP_HEAD_ROW_COLUMNS ? "rows" : n <= ONEP_HEAD_WIDE_COLUMNS ? "wide" : "long";
    unsigned threads = n <= ONEP_HEAD_ROW_COLUMNS    ? threads_for(n, 8)
                       : n <= ONEP_HEAD_WIDE_COLUMNS ? threads_for(n, 16)
                                                     : 1024;
    /* As many blocks as fit at once; each has the same number of rows, two at a time. A row's bits do not depend on it.
     */
    int64_t blocks = multiprocessors * (1024 / threads);
    a.block_rows = 2 * ceil_div(a.rows, 2 * (blocks > 0 ? blocks : 1));
    unsigned grid = (unsigned)ceil_div(a.rows, a.block_rows);
    if (n > ONEP_HEAD_WIDE_COLUMNS)
        grid = (unsigned)at_most(a.rows, GRID_LIMIT);
    snprintf(name, sizeof name, "onep_head_softmax_%s_%s_%s", kind, type_words[f->y.type], type_words[p->output.type]);
    return onep_cuda_launch_early(cuda, "head", name, grid, threads, 0, &a);
}

/* A batch without rows leaves everything but the counter as it is. */
static onepass_status count_batch(onep_cuda *cuda, const onep_head_problem *p)
{
    if (p->statistics == ONEPASS_RUNNING_STATISTICS || !p->batches_tracked.data)
        return ONEPASS_OK;
    onep_head_stats_args a = {.features = {.batches = (long long *)(void *)p->batches_tracked.data}};
    return onep_cuda_launch_early(cuda, "head", "onep_head_count", 1, 32, 0, &a);
}

onepass_status onep_head_cuda_run(onep_cuda *cuda, const onep_head_problem *p, onep_product_math math, int stages)
{
    if (p->rows.count == 0 || p->columns == 0)
        return count_batch(cuda, p);
    forward f;
    place_forward(cuda, p, math, &f);
    onep_product product = forward_product(p, &f.y, math);
    product.partial = f.made ? f.partial : NULL;
    onepass_status status = ONEPASS_OK;
    if (stages & ONEP_HEAD_PRODUCT)
        status = onep_product_run(cuda, &product, f.product);
    if (status == ONEPASS_OK && (stages & ONEP_HEAD_STATISTICS))
        status = run_statistics(cuda, p, &f);
    if (status == ONEPASS_OK && (stages & ONEP_HEAD_SOFTMAX))
        status = run_softmax(cuda, p, &f);
    return status;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct backward {
    onep_type computed;
    onep_operand dy;
    int64_t parts, part_rows, strips, splits, split_rows;
    void *dots, *partial, *product;
    double *scale_partial;
} backward;

/* dX = dY W and dW = dY^T X. */
static onep_product input_product(const onep_head_backward_problem *p, const onep_operand *dy, onep_product_math math)
{
    return (onep_product){
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
}

static onep_product weight_product(const onep_head_backward_problem *p, const onep_operand *dy, onep_product_math math)
{
    return (onep_product){
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
}

static size_t place_backward(onep_cuda *cuda, const onep_head_backward_problem *given, onep_product_math math,
                             backward *b)
{
    onep_head_backward_problem p = *given; /* gradients have the types of what they belong to, also if not given */
    p.grad_input.type = p.input.type;
    p.grad_weight.type = p.weight.type;
    room r = room_of(p.workspace);
    int64_t rows = p.rows.count, columns = p.columns;
    b->computed = computed_of(p.input.type, p.weight.type);
    size_t size = size_of(b->computed);
    b->part_rows = rows ? 2 * ceil_div(rows, 2 * ONEP_HEAD_MAX_PARTS) : 1;
    b->parts = ceil_div(rows, b->part_rows);
    b->strips = ceil_div(columns, ONEP_HEAD_GRAD_STRIP);
    b->splits = at_most(ceil_div(ONEP_HEAD_MAX_GRAD_BLOCKS, b->strips), ceil_div(rows, ONEP_HEAD_GRAD_STRIP));
    b->splits = b->splits > 1 ? b->splits : 1;
    b->split_rows = rows ? ceil_div(rows, b->splits) : 1;
    b->splits = rows ? ceil_div(rows, b->split_rows) : 1;
    b->dots = take(&r, (size_t)rows * size);
    b->partial = take(&r, (size_t)(b->parts * 2 * columns) * size);
    b->scale_partial = (double *)take(&r, (size_t)b->strips * sizeof(double));
    /* Tensor cores multiply halves by halves: dy is rounded to the type of both operands, as it would be anyway. */
    b->dy = take_matrix(&r, rows, columns, p.input.type == p.weight.type ? p.input.type : b->computed);
    onep_product to_input = input_product(&p, &b->dy, math), to_weight = weight_product(&p, &b->dy, math);
    size_t bytes = onep_product_workspace(cuda, &to_input), more = onep_product_workspace(cuda, &to_weight);
    bytes = bytes > more ? bytes : more;
    b->product = bytes ? take(&r, bytes) : NULL;
    return room_bytes(&r);
}

size_t onep_head_backward_cuda_workspace(onep_cuda *cuda, const onep_head_backward_problem *p, onep_product_math math)
{
    backward b;
    return p->columns == 0 ? 0 : place_backward(cuda, p, math, &b);
}

static onep_head_grad_args grad_args(const onep_head_backward_problem *p, const backward *b)
{
    onep_rows rows = rows_of(p->rows.count);
    onep_head_grad_args a = {
        .grad_output = matrix(&p->grad_output, &rows),
        .output = matrix(&p->output, &rows),
        .product = matrix(&p->product, &rows),
        .in = {[ONEP_HEAD_BIAS] = {NULL, 0, 0, 0},
               [ONEP_HEAD_GAMMA] = vector(&p->gamma),
               [ONEP_HEAD_BETA] = vector(&p->beta),
               [ONEP_HEAD_SCALE] = vector(&p->scale),
               [ONEP_HEAD_MEAN] = vector(&p->mean),
               [ONEP_HEAD_SPREAD] = vector(&p->rstd)},
        .out = {[ONEP_HEAD_TO_BIAS] = vector(&p->grad_bias),
                [ONEP_HEAD_TO_GAMMA] = vector(&p->grad_gamma),
                [ONEP_HEAD_TO_BETA] = vector(&p->grad_beta)},
        .dots = b->dots,
        .partial = b->partial,
        .scale_partial = b->scale_partial,
        .per_row = p->rows.count ? 1 / (double)p->rows.count : 0,
        .rows = p->rows.count,
        .columns = p->columns,
        .part_rows = b->part_rows,
        .split_rows = b->split_rows,
        .parts = (int)b->parts,
        .strips = (int)b->strips,
        .splits = (int)b->splits,
        .running = p->statistics == ONEPASS_RUNNING_STATISTICS,
    };
    if (p->scale_is_one_value)
        a.one_scale = vector(&p->grad_scale);
    else
        a.out[ONEP_HEAD_TO_SCALE] = vector(&p->grad_scale);
    if (p->grad_input.data || p->grad_weight.data)
        a.grad_product = matrix(&b->dy, &rows);
    return a;
}

/* True if all rows can be read `count` elements at a time: one type of two beside float32. */
static int grads_packed(const onep_head_grad_args *a, int count)
{
    return a->output.type == a->grad_output.type && a->output.type != ONEP_F64 && a->product.type == ONEP_F32 &&
           a->columns % count == 0 && is_packed(&a->output, count) && is_packed(&a->grad_output, count) &&
           is_packed(&a->product, 4);
}

static onepass_status run_grad_rows(onep_cuda *cuda, const onep_head_grad_args *a, onep_type computed)
{
    if (a->parts == 0)
        return ONEPASS_OK;
    char name[48];
    unsigned threads = 1024;
    const onep_head_matrix *mean = &a->in[ONEP_HEAD_MEAN];
    if (a->columns <= ONEP_HEAD_ROW_COLUMNS && grads_packed(a, 16 / (int)size_of((onep_type)a->output.type)) &&
        mean->type == ONEP_CUDA_F32 && is_packed(mean, 4)) {
        snprintf(name, sizeof name, "onep_head_grad_rows_%s", type_words[a->output.type]);
        threads = threads_for(a->columns, 8);
    } else {
        snprintf(name, sizeof name, "onep_head_grad_rows_%s", computed == ONEP_F64 ? "any64" : "any32");
        threads = (unsigned)at_most(threads_for(a->columns, 1), 1024);
    }
    return onep_cuda_launch_early(cuda, "head_backward", name, (unsigned)a->parts, threads, 0, a);
}

static onepass_status run_grad_columns(onep_cuda *cuda, onep_head_grad_args *a, onep_type computed)
{
    onepass_status status = onep_cuda_ticket(cuda, "head_backward", &a->ticket);
    if (status != ONEPASS_OK)
        return status;
    char name[48];
    int type = a->output.type, made = a->grad_product.data ? a->grad_product.type : type;
    if (computed == ONEP_F32 && grads_packed(a, 4) && (made == type || type == ONEP_F32))
        snprintf(name, sizeof name, "onep_head_grad_columns_%s_%s", type_words[type], type_words[made]);
    else
        snprintf(name, sizeof name, "onep_head_grad_columns_%s", computed == ONEP_F64 ? "any64" : "any32");
    return onep_cuda_launch_early(cuda, "head_backward", name, (unsigned)(a->strips * a->splits),
                                  ONEP_HEAD_GRAD_THREADS, 0, a);
}

onepass_status onep_head_backward_cuda_run(onep_cuda *cuda, const onep_head_backward_problem *p, onep_product_math math,
                                           int stages)
{
    backward b;
    onepass_status status = ONEPASS_OK;
    if (p->columns > 0) {
        place_backward(cuda, p, math, &b);
        onep_head_grad_args a = grad_args(p, &b);
        if (stages & ONEP_HEAD_STATISTICS)
            status = run_grad_rows(cuda, &a, b.computed);
        if (status == ONEPASS_OK && (stages & ONEP_HEAD_SOFTMAX))
            status = run_grad_columns(cuda, &a, b.computed);
    } else {
        b = (backward){.dy = {.type = p->input.type}};
    }
    if (!(stages & ONEP_HEAD_PRODUCT))
        return status;
    onep_product to_input = input_product(p, &b.dy, math), to_weight = weight_product(p, &b.dy, math);
    if (status == ONEPASS_OK && p->grad_input.data)
        status = onep_product_run(cuda, &to_input, b.product);
    if (status == ONEPASS_OK && p->grad_weight.data)
        status = onep_product_run(cuda, &to_weight, b.product);
    return status;
}

/* ---- the table's entries ----------------------------------------------------------------------------------------- */

onepass_status onep_head_cuda(const onepass_handle *handle, const onep_head_problem *problem)
{
    return onep_head_cuda_run(handle->cuda, problem, onep_math_of(handle), ONEP_HEAD_ALL);
}

onepass_status onep_head_backward_cuda(const onepass_handle *handle, const onep_head_backward_problem *problem)
{
    return onep_head_backward_cuda_run(handle->cuda, problem, onep_math_of(handle), ONEP_HEAD_ALL);
}
