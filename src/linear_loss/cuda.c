/*
 * Losses from hidden states on a CUDA device, a chunk of rows at a time. The hidden states of a chunk are copied to one
 * place, with 0 in rows that take no part; their product with the weight is the chunk's logits, rounded to the type
 * that the inputs promote to, and a teacher's are made before them in the same way; the loss (logits/cuda.c) writes its
 * gradient over the student's, and the products of that gradient with weight and hidden states are grad_input and what
 * is added to grad_weight, in grad_weight's own type. Beside the results a chunk is stored, and one number per row.
 *
 * A chunk is rows that follow each other with one stride in every tensor: rows of more dimensions that do not are cut
 * there too. Products of logits and grad_input are planned as those of CHOSEN_ROWS rows, values are kept per row and
 * added up at the end: so the bits of loss and grad_input do not depend on the chunk. Nothing is allocated,
 * copied to the host or waited for; rows that take no part are multiplied like the others, for only the device knows
 * which they are. For the same reason gradients that are there already (grad_made_for) are made again.
 */
#include "linear/cuda.h"
#include "core/status.h"
#include "cuda/kernels.h"
#include "cuda/product.h"
#include "linear_loss/cuda_args.h"
#include "linear_loss/linear_loss.h"
#include "logits/cuda.h"

enum {
    TILE_ROWS = 128,       /* chunks of several are whole tiles of that many rows */
    CHOSEN_ROWS = 1024,    /* that algorithms of products are chosen for: a chunk as the default makes it */
    ALIGNED = 256,         /* bytes */
    ADDED_BYTES = 64 << 20 /* of a product that has to be added to grad_weight afterwards, at a time */
};

typedef struct linear_loss_plan {
    onep_type promoted; /* of logits, their gradient and the copied hidden states */
    int64_t capacity;   /* rows of a chunk at most */
    int64_t run;        /* rows of all that follow each other with one stride in every tensor */
    int64_t logits_stride;
    char *logits, *target_logits, *hidden;
    double *values, *counted, *bias_sums;
    char *added; /* NULL: no such product */
    char *loss_workspace, *product_workspace;
    size_t product_bytes;
} linear_loss_plan;

_Static_assert(sizeof(linear_loss_plan) <= sizeof(onep_plan), "a plan holds it");

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t a, int64_t to)
{
    return (a + to - 1) / to * to;
}

static const char *name_of(const onep_linear_loss_problem *p)
{
    return p->token                          ? "linear_token_log_probs"
           : onep_linear_loss_has_teacher(p) ? "linear_divergence"
                                             : "linear_cross_entropy";
}

static int64_t columns_of(const onep_linear_loss_problem *p)
{
    return p->token ? p->token->columns : p->loss->columns;
}

/* ---- a chunk of rows --------------------------------------------------------------------------------------------- */

/* Rows first to first + count of all rows, within a run. */
typedef struct chunk {
    int64_t first, count;
    onep_rows rows;
} chunk;

static chunk chunk_at(const onep_linear_loss_problem *p, const linear_loss_plan *made, int64_t first)
{
    chunk c = {.first = first};
    if (made->run > 0)
        c.count = smaller(made->capacity, smaller(made->run - first % made->run, p->rows.count - first));
    c.rows = (onep_rows){.rank = 1, .extent = {c.count}, .count = c.count};
    return c;
}

/* The chunk's rows of an operand that has all of them. */
static onep_operand part_of(const onep_operand *all, const onep_rows *rows, const chunk *c)
{
    onep_operand part = {
        .data = onep_row_address(all, rows, c->first), .type = all->type, .col_stride = all->col_stride};
    part.row_stride[0] = rows->rank > 0 ? all->row_stride[rows->rank - 1] : 0;
    return part;
}

/* Rows in the workspace. */
static onep_operand kept(char *data, onep_type type, int64_t row_stride)
{
    onep_operand made = {.data = data, .type = type, .col_stride = (int64_t)onep_type_size(type)};
    made.row_stride[0] = row_stride;
    return made;
}

static onep_matrix matrix_of(const onep_operand *operand)
{
    return (onep_matrix){operand->data, operand->row_stride[0], operand->col_stride, (int)operand->type};
}

enum { MOST_ROW_OPERANDS = 14 };

/* Everything that has rows. */
static int row_operands(const onep_linear_loss_problem *p, const onep_operand *of[MOST_ROW_OPERANDS])
{
    const onep_logits_problem *l = p->loss;
    const onep_token_problem *t = p->token;
    const onep_operand *of_loss[] = {&p->student.input,         &p->grad_input,
                                     &p->teacher.input,         l ? &l->labels : NULL,
                                     l ? &l->weights : NULL,    l ? &l->mask : NULL,
                                     l ? &l->grad_value : NULL, l ? &l->value : NULL,
                                     l ? &l->lse : NULL,        l ? &l->entropy : NULL,
                                     l ? &l->log_prob : NULL,   l ? &l->argmax : NULL,
                                     l ? &l->target_lse : NULL, l ? &l->target_entropy : NULL};
    const onep_operand *of_token[] = {
        &p->student.input,           &p->grad_input,         t ? &t->indices : NULL, t ? &t->mask : NULL,
        t ? &t->log_prob : NULL,     t ? &t->entropy : NULL, t ? &t->lse : NULL,     t ? &t->grad_log_prob : NULL,
        t ? &t->grad_entropy : NULL, t ? &t->grad_lse : NULL};
    int count = t ? (int)(sizeof of_token / sizeof of_token[0]) : (int)(sizeof of_loss / sizeof of_loss[0]);
    for (int i = 0; i < count; i++)
        of[i] = t ? of_token[i] : of_loss[i];
    return count;
}

/* How many rows follow each other with one stride: those of the last dimensions that every operand has as one. */
static int64_t run_of(const onep_linear_loss_problem *p)
{
    const onep_operand *of[MOST_ROW_OPERANDS];
    int count = row_operands(p, of), d = p->rows.rank - 1;
    if (d < 0)
        return p->rows.count;
    int64_t run = p->rows.extent[d];
    for (; d > 0; d--) {
        for (int i = 0; i < count; i++)
            if (of[i]->data && of[i]->row_stride[d - 1] != of[i]->row_stride[d] * p->rows.extent[d])
                return run;
        run *= p->rows.extent[d - 1];
    }
    return run;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static onep_product product_of(const onepass_handle *handle, const onep_linear_loss_problem *p,
                               const linear_loss_plan *made)
{
    return (onep_product){.operator_name = name_of(p), .math = onep_math_of(handle), .room = made->product_bytes};
}

/* The logits of a side. */
static onep_product to_logits(const onepass_handle *handle, const onep_linear_loss_problem *p,
                              const linear_loss_plan *made, const onep_linear_side *side, const chunk *c, char *logits)
{
    int64_t element = (int64_t)onep_type_size(made->promoted);
    onep_product product = product_of(handle, p, made);
    product.m = c->count;
    product.chosen_m = smaller(p->rows.count, CHOSEN_ROWS);
    product.n = columns_of(p);
    product.k = side->depth;
    product.a = kept(made->hidden, made->promoted, round_up(side->depth * element, ALIGNED));
    product.a_rows = c->rows;
    product.b = side->weight;
    product.b_rows = side->weight_rows;
    product.c = kept(logits, made->promoted, made->logits_stride);
    product.c_rows = c->rows;
    product.bias = side->bias;
    product.rounds_once = 1;
    return product;
}

static onep_product to_grad_input(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                  const linear_loss_plan *made, const chunk *c)
{
    onep_product product = product_of(handle, p, made);
    product.m = c->count;
    product.chosen_m = smaller(p->rows.count, CHOSEN_ROWS);
    product.n = p->student.depth;
    product.k = columns_of(p);
    product.a = kept(made->logits, made->promoted, made->logits_stride);
    product.a_rows = c->rows;
    product.b = p->student.weight;
    product.b_rows = p->student.weight_rows;
    product.b_swapped = 1;
    product.c = p->grad_input;
    product.c_rows = c->rows;
    if (p->grad_input.data)
        product.c = part_of(&p->grad_input, &p->rows, c);
    return product;
}

/* Columns `first` to first + count of the logits, which are rows of the weight; c is its place. */
static onep_product to_grad_weight(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                   const linear_loss_plan *made, const chunk *c, int64_t first, int64_t count)
{
    int64_t element = (int64_t)onep_type_size(made->promoted), depth = p->student.depth;
    onep_product product = product_of(handle, p, made);
    product.m = count;
    product.n = depth;
    product.k = c->count;
    product.a = kept(made->logits, made->promoted, made->logits_stride);
    product.a_rows = c->rows;
    product.a_swapped = 1;
    if (made->logits)
        product.a.data += first * element;
    product.b = kept(made->hidden, made->promoted, round_up(depth * element, ALIGNED));
    product.b_rows = c->rows;
    product.b_swapped = 1;
    product.c = p->grad_weight;
    product.c_rows = p->student.weight_rows;
    product.c_rows.count = count;
    if (product.c_rows.rank > 0)
        product.c_rows.extent[0] = count;
    product.may_exchange = 1;
    return product;
}

static onepass_status multiply(const onepass_handle *handle, const linear_loss_plan *made, const onep_product *product,
                               onep_matmul_plan *plan)
{
    onepass_status status = onep_matmul_plan_make(onep_cuda_of(handle), product, made->product_workspace, plan);
    return status == ONEPASS_OK ? onep_matmul_run(onep_cuda_of(handle), plan) : status;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* Places in a workspace, one after the other; NULL counts only. */
typedef struct arena {
    char *at;
    size_t used;
} arena;

static char *take(arena *from, int64_t bytes)
{
    char *at = from->at ? from->at + from->used : NULL;
    from->used += (size_t)round_up(bytes, ALIGNED);
    return at;
}

/* What the products of a chunk of so many rows may need. */
static size_t products_bytes(const onepass_handle *handle, const onep_linear_loss_problem *p,
                             const linear_loss_plan *made, int64_t count)
{
    onep_cuda *cuda = onep_cuda_of(handle);
    chunk c = {.count = count, .rows = {.rank = 1, .extent = {count}, .count = count}};
    onep_product products[] = {to_logits(handle, p, made, &p->student, &c, NULL),
                               to_logits(handle, p, made, &p->teacher, &c, NULL), to_grad_input(handle, p, made, &c),
                               to_grad_weight(handle, p, made, &c, 0, p->width),
                               to_grad_weight(handle, p, made, &c, 0, p->width)};
    products[2].c.type = p->student.input.type; /* where the size is asked for there is no grad_input yet */
    products[4].accumulates = 1;
    size_t most = 0;
    for (int i = 0; i < 5; i++) {
        if ((i == 1 && !onep_linear_loss_has_teacher(p)) || (i >= 3 && !p->grad_weight.data))
            continue;
        size_t bytes = onep_product_workspace(cuda, &products[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Whether fp32 products for grad_weight may be made in a way that cannot add to it. */
static int adds_afterwards(const onepass_handle *handle, const onep_linear_loss_problem *p,
                           const linear_loss_plan *made)
{
    onep_product_math math = onep_math_of(handle);
    return p->grad_weight.data && made->promoted == ONEP_F32 && math != ONEP_MATH_PLAIN && math != ONEP_MATH_TF32;
}

/* Rows of the weight whose gradient is added at a time. */
static int64_t added_rows(const onep_linear_loss_problem *p)
{
    int64_t row = p->student.depth * 4, fitting = row > 0 ? ADDED_BYTES / row / TILE_ROWS * TILE_ROWS : p->width;
    return smaller(p->width, fitting > TILE_ROWS ? fitting : TILE_ROWS);
}

static onep_type promoted_of(const onep_linear_loss_problem *p)
{
    onep_type promoted = onep_promote(p->student.input.type, p->student.weight.type);
    if (!onep_linear_loss_has_teacher(p))
        return promoted;
    return onep_promote(promoted, onep_promote(p->teacher.input.type, p->teacher.weight.type));
}

static onepass_status plan(const onepass_handle *handle, const void *problem, char *workspace, onep_plan *to,
                           size_t *bytes)
{
    const onep_linear_loss_problem *p = (const onep_linear_loss_problem *)problem;
    linear_loss_plan *made = (linear_loss_plan *)(void *)to;
    int has_teacher = onep_linear_loss_has_teacher(p);
    int64_t rows = p->rows.count, depth = p->student.depth;
    int64_t deepest = has_teacher && p->teacher.depth > depth ? p->teacher.depth : depth;
    *made = (linear_loss_plan){.promoted = promoted_of(p), .run = run_of(p)};
    int64_t element = (int64_t)onep_type_size(made->promoted);
    double row_bytes = (has_teacher ? 2.0 : 1.0) * ((double)p->width * (double)element + ALIGNED);
    double least = (row_bytes + (double)deepest * (double)element) * TILE_ROWS + 8 * (double)rows;
    if (!(least < 0x1p61)) { /* more than any memory, and than what is computed below */
        *bytes = SIZE_MAX / 2;
        return ONEPASS_OK;
    }
    made->logits_stride = round_up(p->width * element, ALIGNED);
    int64_t fitting = (int64_t)((double)p->chunk_bytes / row_bytes) / TILE_ROWS * TILE_ROWS;
    fitting = fitting > TILE_ROWS ? fitting : TILE_ROWS;
    int64_t chunks =
        rows / fitting + (rows % fitting != 0); /* of much the same size: short ones leave the device idle */
    made->capacity = chunks > 1 ? round_up((rows + chunks - 1) / chunks, TILE_ROWS) : rows;
    arena room = {workspace, 0};
    made->logits = take(&room, made->capacity * made->logits_stride);
    made->target_logits = has_teacher ? take(&room, made->capacity * made->logits_stride) : NULL;
    made->hidden = take(&room, made->capacity * round_up(deepest * element, ALIGNED));
    made->values = (double *)(void *)take(&room, (rows > 0 ? rows : 1) * 8);
    made->counted = (double *)(void *)take(&room, 8);
    made->bias_sums = (double *)(void *)take(&room, p->width * 8);
    if (adds_afterwards(handle, p, made) && (made->capacity < rows || made->run < rows || !workspace))
        made->added = take(&room, added_rows(p) * depth * 4);
    made->loss_workspace = take(&room, (smaller(made->capacity, 32768) + 64) * 8);
    made->product_bytes = products_bytes(handle, p, made, made->capacity);
    size_t last =
        made->capacity > 0 && rows % made->capacity ? products_bytes(handle, p, made, rows % made->capacity) : 0;
    made->product_bytes = last > made->product_bytes ? last : made->product_bytes;
    made->product_workspace = take(&room, (int64_t)made->product_bytes);
    made->product_bytes = made->product_bytes > 0 ? made->product_bytes : 1; /* a limit; 0 would be none */
    *bytes = room.used;
    return ONEPASS_OK;
}

/* ---- steps of a chunk -------------------------------------------------------------------------------------------- */

static unsigned blocks_for(int64_t rows)
{
    return (unsigned)smaller(rows, 65535);
}

static onep_linear_loss_rows which_rows(const onep_linear_loss_problem *p, const chunk *c)
{
    onep_operand mask = part_of(p->token ? &p->token->mask : &p->loss->mask, &p->rows, c);
    onep_linear_loss_rows rows = {.count = c->count, .mask = matrix_of(&mask)};
    if (p->loss) {
        onep_operand labels = part_of(&p->loss->labels, &p->rows, c);
        rows.labels = matrix_of(&labels);
        rows.ignore_index = p->loss->label.ignore_index;
    }
    return rows;
}

/* True if rows of so many bytes are vectors of 16. */
static int is_vectors(const onep_operand *of, int64_t bytes)
{
    return of->col_stride == (int64_t)onep_type_size(of->type) && bytes % 16 == 0 && (uintptr_t)of->data % 16 == 0 &&
           of->row_stride[0] % 16 == 0;
}

/* Hidden states of the chunk into the workspace; or, without `from`, 0 into the rows of `to` that take no part. */
static onepass_status copy_rows(const onepass_handle *handle, const onep_linear_loss_problem *p, const chunk *c,
                                const onep_operand *from, const onep_operand *to, int64_t columns)
{
    const onep_launch launch = {.kernel = ONEP_KERNEL_ID(onep_linear_loss_copy),
                                .grid = blocks_for(c->count),
                                .block = ONEP_LINEAR_LOSS_THREADS};
    onep_linear_loss_copy_args args = {
        .rows = which_rows(p, c), .from = matrix_of(from), .to = matrix_of(to), .columns = columns};
    int64_t row_bytes = columns * (int64_t)onep_type_size(to->type);
    if (is_vectors(to, row_bytes) && (!from->data || (from->type == to->type && is_vectors(from, row_bytes))))
        args.vectors = row_bytes / 16;
    if (columns == 0 || (!from->data && !args.rows.mask.data && !args.rows.labels.data))
        return ONEPASS_OK;
    return onep_cuda_launch(onep_cuda_of(handle), name_of(p), &launch, &args);
}

static onepass_status make_logits(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                  const linear_loss_plan *made, const onep_linear_side *side, const chunk *c,
                                  char *logits)
{
    onep_matmul_plan plan_of;
    onep_product product = to_logits(handle, p, made, side, c, logits);
    onep_operand from = part_of(&side->input, &p->rows, c);
    onepass_status status = copy_rows(handle, p, c, &from, &product.a, side->depth);
    return status == ONEPASS_OK ? multiply(handle, made, &product, &plan_of) : status;
}

/* The loss of the chunk: a value per row, results where they are wanted, the gradient in place of the logits. */
static onepass_status run_loss(const onepass_handle *handle, const onep_linear_loss_problem *p,
                               const linear_loss_plan *made, const chunk *c)
{
    const onep_operand absent = {.data = NULL};
    const onep_logits_problem *all = p->loss;
    onep_logits_problem k = *all;
    k.rows = c->rows;
    k.reduction = ONEPASS_ROWS;
    k.predictions = kept(made->logits, made->promoted, made->logits_stride);
    k.targets =
        onep_linear_loss_has_teacher(p) ? kept(made->target_logits, made->promoted, made->logits_stride) : absent;
    k.grad_predictions = onep_linear_loss_makes_gradients(p) ? k.predictions : absent;
    k.grad_made_for = absent; /* products would be made all the same, and of what? */
    if (all->reduction == ONEPASS_VALID)
        k.divisor_from = kept((char *)made->counted, ONEP_F64, 0);
    const onep_operand *from[] = {&all->labels,  &all->weights,  &all->mask,   &all->grad_value, &all->lse,
                                  &all->entropy, &all->log_prob, &all->argmax, &all->target_lse, &all->target_entropy};
    onep_operand *to[] = {&k.labels,  &k.weights,  &k.mask,   &k.grad_value, &k.lse,
                          &k.entropy, &k.log_prob, &k.argmax, &k.target_lse, &k.target_entropy};
    for (int i = 0; i < 10; i++)
        *to[i] = part_of(from[i], &p->rows, c);
    if (all->value.data)
        k.value = all->reduction == ONEPASS_ROWS ? part_of(&all->value, &p->rows, c)
                                                 : kept((char *)(made->values + c->first), ONEP_F64, 8);
    onep_plan plan_of;
    size_t none;
    const onep_kernel *kernel = &onep_logits_cuda[made->promoted];
    onepass_status status = kernel->plan(handle, &k, made->loss_workspace, &plan_of, &none);
    return status == ONEPASS_OK ? kernel->run(handle, &k, &plan_of) : status;
}

static onepass_status run_token(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                const linear_loss_plan *made, const chunk *c)
{
    const onep_operand absent = {.data = NULL};
    const onep_token_problem *all = p->token;
    onep_token_problem k = *all;
    k.rows = c->rows;
    k.logits = kept(made->logits, made->promoted, made->logits_stride);
    k.grad_logits = onep_linear_loss_makes_gradients(p) ? k.logits : absent;
    const onep_operand *from[] = {&all->indices, &all->mask,          &all->log_prob,     &all->entropy,
                                  &all->lse,     &all->grad_log_prob, &all->grad_entropy, &all->grad_lse};
    onep_operand *to[] = {&k.indices, &k.mask,          &k.log_prob,     &k.entropy,
                          &k.lse,     &k.grad_log_prob, &k.grad_entropy, &k.grad_lse};
    for (int i = 0; i < 8; i++)
        *to[i] = part_of(from[i], &p->rows, c);
    onep_plan plan_of;
    size_t none;
    const onep_kernel *kernel = &onep_token_cuda[made->promoted];
    onepass_status status = kernel->plan(handle, &k, NULL, &plan_of, &none);
    return status == ONEPASS_OK ? kernel->run(handle, &k, &plan_of) : status;
}

static onepass_status make_grad_input(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                      const linear_loss_plan *made, const chunk *c)
{
    const onep_operand absent = {.data = NULL};
    onep_matmul_plan plan_of;
    onep_product product = to_grad_input(handle, p, made, c);
    onepass_status status = multiply(handle, made, &product, &plan_of);
    return status == ONEPASS_OK ? copy_rows(handle, p, c, &absent, &product.c, p->student.depth) : status;
}

/* By split.h, which cannot add: some rows of the weight at a time, then added. *taken: that is how it is made. */
static onepass_status add_split(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                const linear_loss_plan *made, const chunk *c, int *taken)
{
    const onep_operand *to = &p->grad_weight;
    int64_t depth = p->student.depth, step = added_rows(p);
    onepass_status status = ONEPASS_OK;
    *taken = 0;
    for (int64_t first = 0; first < p->width && status == ONEPASS_OK; first += step) {
        onep_matmul_plan plan_of;
        int64_t count = smaller(step, p->width - first);
        onep_product product = to_grad_weight(handle, p, made, c, first, count);
        product.c = kept(made->added, ONEP_F32, depth * 4);
        status = onep_matmul_plan_make(onep_cuda_of(handle), &product, made->product_workspace, &plan_of);
        if (status != ONEPASS_OK || (first == 0 && plan_of.engine != ONEP_ENGINE_SPLIT))
            return status;
        *taken = 1;
        status = onep_matmul_run(onep_cuda_of(handle), &plan_of);
        const onep_launch launch = {.kernel = ONEP_KERNEL_ID(onep_linear_loss_add),
                                    .grid = blocks_for(count),
                                    .block = ONEP_LINEAR_LOSS_THREADS};
        int64_t row = p->student.weight_rows.rank > 0 ? to->row_stride[0] : 0;
        onep_linear_loss_add_args args = {.from = (const float *)(const void *)made->added,
                                          .to = {to->data + first * row, row, to->col_stride, (int)to->type},
                                          .rows = count,
                                          .columns = depth};
        if (status == ONEPASS_OK)
            status = onep_cuda_launch(onep_cuda_of(handle), name_of(p), &launch, &args);
    }
    return status;
}

static onepass_status make_grad_weight(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                       const linear_loss_plan *made, const chunk *c)
{
    int is_made = 0;
    onepass_status status = ONEPASS_OK;
    if (c->first > 0 && made->added)
        status = add_split(handle, p, made, c, &is_made);
    if (status != ONEPASS_OK || is_made)
        return status;
    onep_matmul_plan plan_of;
    onep_product product = to_grad_weight(handle, p, made, c, 0, p->width);
    product.accumulates = c->first > 0;
    return multiply(handle, made, &product, &plan_of);
}

static onepass_status make_grad_bias(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                     const linear_loss_plan *made, const chunk *c)
{
    onep_column_sums_plan plan_of;
    onep_operand gradient = kept(made->logits, made->promoted, made->logits_stride);
    onep_operand sums = kept((char *)made->bias_sums, ONEP_F64, 0), before = sums;
    if (c->first == 0)
        before.data = NULL;
    int is_last = c->first + c->count == p->rows.count;
    if (p->width == 0)
        return ONEPASS_OK;
    onepass_status status = onep_column_sums_plan_make(name_of(p), &gradient, &c->rows, p->width, &before,
                                                       is_last ? &p->grad_bias : &sums, &plan_of);
    return status == ONEPASS_OK ? onep_column_sums_run(onep_cuda_of(handle), name_of(p), &plan_of) : status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* No rows: gradients of 0 all the same. */
static onepass_status run_chunk(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                const linear_loss_plan *made, const chunk *c)
{
    onepass_status status = ONEPASS_OK;
    if (c->count > 0) {
        if (onep_linear_loss_has_teacher(p))
            status = make_logits(handle, p, made, &p->teacher, c, made->target_logits);
        if (status == ONEPASS_OK)
            status = make_logits(handle, p, made, &p->student, c, made->logits);
        if (status == ONEPASS_OK)
            status = p->token ? run_token(handle, p, made, c) : run_loss(handle, p, made, c);
        if (status == ONEPASS_OK && p->grad_input.data)
            status = make_grad_input(handle, p, made, c);
    }
    if (status == ONEPASS_OK && p->grad_weight.data)
        status = make_grad_weight(handle, p, made, c);
    return status == ONEPASS_OK && p->grad_bias.data ? make_grad_bias(handle, p, made, c) : status;
}

static onepass_status store_total(const onepass_handle *handle, const onep_linear_loss_problem *p,
                                  const linear_loss_plan *made)
{
    const onep_logits_problem *loss = p->loss;
    const onep_launch launch = {
        .kernel = ONEP_KERNEL_ID(onep_linear_loss_total), .grid = 1, .block = ONEP_LINEAR_LOSS_TOTAL_THREADS};
    onep_linear_loss_total_args args = {.values = made->values,
                                        .count = p->rows.count,
                                        .divisor = loss->divisor,
                                        .counted = loss->reduction == ONEPASS_VALID ? made->counted : NULL,
                                        .divisor_from = matrix_of(&loss->divisor_from),
                                        .finite = loss->semantics == ONEPASS_FINITE,
                                        .to = matrix_of(&loss->value)};
    return onep_cuda_launch(onep_cuda_of(handle), name_of(p), &launch, &args);
}

static onepass_status run(const onepass_handle *handle, const void *problem, onep_plan *plan_made)
{
    const onep_linear_loss_problem *p = (const onep_linear_loss_problem *)problem;
    const linear_loss_plan *made = (const linear_loss_plan *)(const void *)plan_made;
    onepass_status status = ONEPASS_OK;
    if (p->loss && p->loss->reduction == ONEPASS_VALID)
        status = onep_logits_count_divisor(onep_cuda_of(handle), p->loss, made->values, made->counted);
    int64_t next = 0;
    do {
        chunk c = chunk_at(p, made, next);
        if (status == ONEPASS_OK)
            status = run_chunk(handle, p, made, &c);
        next += c.count;
    } while (status == ONEPASS_OK && next < p->rows.count);
    if (status == ONEPASS_OK && p->loss && p->loss->value.data && p->loss->reduction != ONEPASS_ROWS)
        status = store_total(handle, p, made);
    return status;
}

const onep_kernel onep_linear_loss_cuda[ONEP_FLOAT_TYPES] = {
    [ONEP_F16] = {plan, run}, [ONEP_BF16] = {plan, run}, [ONEP_F32] = {plan, run}, [ONEP_F64] = {plan, run}};
