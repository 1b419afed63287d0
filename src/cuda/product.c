/* See product.h. Nothing is allocated, copied or waited for once a shape has been seen. */
#include "cuda/product.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "cuda/kernels.h"
#include "cuda/split.h"

_Static_assert((int)ONEP_CUDA_F16 == (int)ONEP_F16 && (int)ONEP_CUDA_BF16 == (int)ONEP_BF16 &&
                   (int)ONEP_CUDA_F32 == (int)ONEP_F32 && (int)ONEP_CUDA_F64 == (int)ONEP_F64,
               "cuda/types.h numbers the types as core/types.h does");
_Static_assert(sizeof(onep_product_args) <= 4096, "a kernel takes at most 4096 bytes of arguments");

enum { ALIGNED = 256 }; /* bytes; what cuBLASLt expects at best */

struct onep_products {
    onep_cublaslt *lt; /* NULL: there is none */
};

onep_products *onep_products_create(void)
{
    onep_products *products = (onep_products *)calloc(1, sizeof *products);
    if (products)
        products->lt = onep_cublaslt_create();
    return products;
}

void onep_products_destroy(onep_products *products)
{
    if (products)
        onep_cublaslt_destroy(products->lt);
    free(products);
}

int onep_products_describe(char *text, size_t size)
{
    const char *name = onep_cublaslt_name(), *missing = onep_cublaslt_missing();
    if (!*missing) {
        snprintf(text, size, "%s", name);
        return 1;
    }
    snprintf(text, size, "own kernel; %s", missing);
    return 0;
}

/* ---- cuBLASLt ---------------------------------------------------------------------------------------------------- */

/* An operand whose rows can be walked with one stride; strides in elements. */
typedef struct flat {
    int64_t row, column;
    int alignment;
} flat;

static int flatten(const onep_operand *operand, const onep_rows *rows, flat *to)
{
    int64_t size = (int64_t)onep_type_size(operand->type);
    int64_t row = rows->rank > 0 ? operand->row_stride[rows->rank - 1] : 0;
    int one_stride = 1;
    for (int k = rows->rank - 2; k >= 0; k--)
        one_stride = one_stride && operand->row_stride[k] == operand->row_stride[k + 1] * rows->extent[k + 1];
    if (!one_stride || row % size != 0 || operand->col_stride % size != 0)
        return 0;
    to->row = row / size;
    to->column = operand->col_stride / size;
    to->alignment = ALIGNED;
    while (to->alignment > 1 && (uintptr_t)operand->data % (uintptr_t)to->alignment != 0)
        to->alignment /= 2;
    return 1;
}

/*
 * An operand (i, k) of `count` by `depth` with these strides as a column-major matrix: with k the fast index it is
 * depth x count and *k_fast is 1, with i the fast index count x depth. 0 if neither is.
 */
static int column_major(int64_t i_stride, int64_t k_stride, int64_t count, int64_t depth, int *k_fast, int64_t *ld)
{
    if (k_stride == 1 && (i_stride >= depth || count == 1)) {
        *k_fast = 1;
        *ld = i_stride >= depth ? i_stride : depth;
        return 1;
    }
    if (i_stride == 1 && (k_stride >= count || depth == 1)) {
        *k_fast = 0;
        *ld = k_stride >= count ? k_stride : count;
        return 1;
    }
    return 0;
}

/* True if cuBLASLt may take it; then *s says it in its words: D = c^T, n x m, from b on the left and a on the right. */
static int lt_shape(const onep_product *p, onep_lt_shape *s)
{
    flat a, b, c;
    int type = (int)p->a.type, c_type = (int)p->c.type;
    memset(s, 0, sizeof *s);
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->b.type != p->a.type)
        return 0;
    if (c_type != type && !(c_type == ONEP_F32 && (type == ONEP_F16 || type == ONEP_BF16)))
        return 0;
    if (!flatten(&p->a, &p->a_rows, &a) || !flatten(&p->b, &p->b_rows, &b) || !flatten(&p->c, &p->c_rows, &c))
        return 0;
    if (c.column != 1 || (c.row < p->n && p->m > 1))
        return 0;
    int a_k_fast, b_k_fast;
    if (!column_major(p->a_swapped ? a.column : a.row, p->a_swapped ? a.row : a.column, p->m, p->k, &a_k_fast,
                      &s->ldb) ||
        !column_major(p->b_swapped ? b.column : b.row, p->b_swapped ? b.row : b.column, p->n, p->k, &b_k_fast, &s->lda))
        return 0;
    s->m = p->n;
    s->n = p->m;
    s->k = p->k;
    s->ldd = c.row >= p->n ? c.row : p->n;
    s->type = type;
    s->d_type = c_type;
    s->a_transposed = b_k_fast;
    s->b_transposed = !a_k_fast;
    s->a_alignment = b.alignment;
    s->b_alignment = a.alignment;
    s->d_alignment = c.alignment;
    s->math = p->math == ONEP_MATH_TF32 ? ONEP_MATH_TF32 : ONEP_MATH_PLAIN;
    s->chosen_n = p->chosen_m;
    s->accumulates = p->accumulates;
    return 1;
}

/* A shape's plan, from memory or with the device's context current. */
static const onep_lt_plan *lt_plan(onep_cuda *cuda, onep_cublaslt *lt, const onep_product *p,
                                   const onep_lt_shape *shape)
{
    const onep_lt_plan *plan = NULL;
    int mode;
    if (!onep_cublaslt_recall(lt, shape, &plan) && onep_cuda_enter(cuda, p->operator_name, &mode) == ONEPASS_OK) {
        plan = onep_cublaslt_plan(lt, shape);
        onep_cuda_leave(cuda, mode);
    }
    return plan;
}

/* What the algorithm for compact, aligned operands wants; one for others has to do with it. */
static size_t lt_workspace(onep_cuda *cuda, onep_cublaslt *lt, const onep_product *p)
{
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->b.type >= ONEP_FLOAT_TYPES || p->c.type >= ONEP_FLOAT_TYPES)
        return 0;
    onep_lt_shape compact;
    memset(&compact, 0, sizeof compact);
    compact.m = p->n;
    compact.n = p->m;
    compact.k = p->k;
    compact.lda = p->b_swapped ? p->n : p->k;
    compact.ldb = p->a_swapped ? p->m : p->k;
    compact.ldd = p->n;
    compact.workspace = ONEP_LT_MAX_WORKSPACE;
    compact.type = (int)p->b.type;
    compact.d_type = (int)p->c.type;
    compact.a_transposed = !p->b_swapped;
    compact.b_transposed = p->a_swapped;
    compact.a_alignment = compact.b_alignment = compact.d_alignment = ALIGNED;
    compact.math = p->math == ONEP_MATH_TF32 ? ONEP_MATH_TF32 : ONEP_MATH_PLAIN;
    compact.chosen_n = p->chosen_m;
    compact.accumulates = p->accumulates;
    const onep_lt_plan *plan = lt_plan(cuda, lt, p, &compact);
    return plan ? onep_cublaslt_workspace(plan) : 0;
}

/*
 * The best algorithm that does with the workspace of compact operands. Told a small limit cuBLASLt looks at others (for
 * TF32 at half the speed) than those which, told a large one, turn out to need none: so it is first told the largest.
 */
static const onep_lt_plan *plan_within(onep_cuda *cuda, onep_cublaslt *lt, const onep_product *p, onep_lt_shape *shape)
{
    shape->workspace = ONEP_LT_MAX_WORKSPACE;
    const onep_lt_plan *plan = lt_plan(cuda, lt, p, shape);
    if (!plan || onep_cublaslt_workspace(plan) == 0)
        return plan;
    size_t room = p->room ? p->room : lt_workspace(cuda, lt, p);
    if (onep_cublaslt_workspace(plan) <= room)
        return plan;
    shape->workspace = (int64_t)room;
    return lt_plan(cuda, lt, p, shape);
}

/* A bias cuBLASLt adds in its epilogue: of c's type, its elements side by side. */
static int is_plain_bias(const onep_product *p)
{
    return p->bias.type == p->c.type && p->bias.col_stride == (int64_t)onep_type_size(p->c.type) &&
           (uintptr_t)p->bias.data % 16 == 0;
}

static int is_half(onep_type type)
{
    return type == ONEP_F16 || type == ONEP_BF16;
}

/* Whether cuBLASLt has its best kernels for it, whose epilogues add a bias before they round. Of others, seen with odd
 * depths on an H200, some round the product first. */
static int is_aligned(const onep_lt_shape *s)
{
    int64_t size = (int64_t)onep_type_size((onep_type)s->type), d_size = (int64_t)onep_type_size((onep_type)s->d_type);
    return s->a_alignment >= 16 && s->b_alignment >= 16 && s->d_alignment >= 16 && s->lda * size % 16 == 0 &&
           s->ldb * size % 16 == 0 && s->ldd * d_size % 16 == 0;
}

/* How cuBLASLt makes it; NULL: it does not take it. *added says whether the bias is in. */
static const onep_lt_plan *choose_lt(onep_cuda *cuda, onep_cublaslt *lt, const onep_product *p, int *added)
{
    onep_lt_shape shape;
    const onep_lt_plan *plan = NULL;
    *added = 0;
    if (!lt_shape(p, &shape))
        return NULL;
    if (p->bias.data && is_plain_bias(p) && !(p->rounds_once && is_half(p->c.type) && !is_aligned(&shape))) {
        shape.bias = 1;
        plan = plan_within(cuda, lt, p, &shape);
        *added = plan != NULL;
        shape.bias = 0;
    }
    /* A half would be rounded once more if the bias came later. */
    if (!plan && p->bias.data && is_half(p->c.type))
        return NULL;
    return plan ? plan : plan_within(cuda, lt, p, &shape);
}

/* ---- our own ----------------------------------------------------------------------------------------------------- */

static onepass_status side(const char *operator_name, const onep_operand *operand, const onep_rows *rows, int swapped,
                           onep_product_side *to)
{
    if (rows->rank > ONEP_CUDA_MAX_RANK)
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: input: rank %d after collapsing; CUDA allows %d", operator_name,
                         rows->rank + 1, ONEP_CUDA_MAX_RANK + 1);
    memset(to, 0, sizeof *to);
    to->data = operand->data;
    to->col_stride = operand->col_stride;
    to->type = (int)operand->type;
    to->rank = rows->rank;
    to->swapped = swapped;
    for (int k = 0; k < rows->rank; k++) {
        to->extent[k] = rows->extent[k];
        to->row_stride[k] = operand->row_stride[k];
    }
    return ONEPASS_OK;
}

static onepass_status fill_args(const onep_product *p, onep_product_args *args)
{
    args->m = p->m;
    args->n = p->n;
    args->k = p->k;
    args->accumulates = p->accumulates;
    args->n_tiles = p->n / ONEP_PRODUCT_TILE + (p->n % ONEP_PRODUCT_TILE != 0);
    args->bias = (onep_matrix){p->bias.data, 0, p->bias.col_stride, (int)p->bias.type};
    onepass_status status = side(p->operator_name, &p->a, &p->a_rows, p->a_swapped, &args->a);
    if (status == ONEPASS_OK)
        status = side(p->operator_name, &p->b, &p->b_rows, p->b_swapped, &args->b);
    if (status == ONEPASS_OK)
        status = side(p->operator_name, &p->c, &p->c_rows, 0, &args->c);
    return status;
}

static onepass_status plan_plain(const onep_product *p, onep_matmul_plan *plan)
{
    onepass_status status = fill_args(p, &plan->by.other.args);
    if (status != ONEPASS_OK)
        return status;
    int64_t n_tiles = plan->by.other.args.n_tiles;
    int64_t m_tiles = p->m / ONEP_PRODUCT_TILE + (p->m % ONEP_PRODUCT_TILE != 0);
    if (m_tiles > INT32_MAX / n_tiles)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: a product of %lld x %lld; without cuBLASLt it may have at most 2^43 "
                         "elements",
                         p->operator_name, (long long)p->m, (long long)p->n);
    int is_double = p->a.type == ONEP_F64 || p->b.type == ONEP_F64 || p->c.type == ONEP_F64;
    plan->engine = ONEP_ENGINE_PLAIN;
    plan->by.other.launch = (onep_launch){
        .kernel = is_double ? ONEP_KERNEL_ID(onep_product_any64) : ONEP_KERNEL_ID(onep_product_any32),
        .grid = (unsigned)(m_tiles * n_tiles),
        .block = ONEP_PRODUCT_THREADS,
    };
    return ONEPASS_OK;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static onep_cublaslt *lt_of(onep_cuda *cuda)
{
    onep_products *products = onep_cuda_products(cuda);
    return products ? products->lt : NULL;
}

size_t onep_product_workspace(onep_cuda *cuda, const onep_product *p)
{
    onep_cublaslt *lt = lt_of(cuda);
    size_t bytes = lt ? lt_workspace(cuda, lt, p) : 0, split = onep_split_workspace(cuda, p);
    return split > bytes ? split : bytes; /* whichever of them will take it, once all of it is known */
}

static onepass_status plan_lt(const onep_product *p, const onep_lt_plan *lt, int added, char *workspace,
                              onep_matmul_plan *plan)
{
    plan->engine = ONEP_ENGINE_CUBLASLT;
    plan->bytes = onep_cublaslt_workspace(lt);
    plan->by.other.lt = lt;
    plan->by.other.a = p->a.data;
    plan->by.other.b = p->b.data;
    plan->by.other.c = p->c.data;
    plan->by.other.bias = added ? p->bias.data : NULL;
    plan->by.other.workspace = workspace;
    plan->by.other.launch = (onep_launch){0};
    if (!p->bias.data || added)
        return ONEPASS_OK;
    plan->by.other.launch = (onep_launch){
        .kernel = ONEP_KERNEL_ID(onep_add_bias),
        .grid = p->m < 65535 ? (unsigned)p->m : 65535,
        .block = ONEP_PRODUCT_THREADS,
        .programmatic = 1,
    };
    return fill_args(p, &plan->by.other.args);
}

onepass_status onep_matmul_plan_make(onep_cuda *cuda, const onep_product *p, char *workspace, onep_matmul_plan *plan)
{
    plan->operator_name = p->operator_name;
    plan->engine = ONEP_ENGINE_NONE;
    plan->bytes = 0;
    plan->statistics_rows = 0;
    if (p->m == 0 || p->n == 0)
        return ONEPASS_OK;
    int taken, added = 0;
    onepass_status status = onep_split_plan_make(cuda, p, workspace, &plan->by.split, &taken);
    if (status != ONEPASS_OK)
        return status;
    if (taken && (!p->room || plan->by.split.bytes <= p->room)) {
        plan->engine = ONEP_ENGINE_SPLIT;
        plan->bytes = plan->by.split.bytes;
        plan->statistics_rows = plan->by.split.statistics_rows;
        return ONEPASS_OK;
    }
    onep_cublaslt *lt = lt_of(cuda);
    const onep_lt_plan *chosen = lt ? choose_lt(cuda, lt, p, &added) : NULL;
    return chosen ? plan_lt(p, chosen, added, workspace, plan) : plan_plain(p, plan);
}

void onep_matmul_statistics(onep_matmul_plan *plan, double *partial)
{
    plan->by.split.product.partial = partial;
}

static onepass_status run_lt(onep_cuda *cuda, const onep_matmul_plan *plan)
{
    int mode;
    onepass_status status = onep_cuda_enter(cuda, plan->operator_name, &mode);
    if (status != ONEPASS_OK)
        return status;
    int error = onep_cublaslt_run(lt_of(cuda), plan->by.other.lt, plan->by.other.b, plan->by.other.a, plan->by.other.c,
                                  plan->by.other.bias, plan->by.other.workspace, onep_cuda_stream(cuda));
    onep_cuda_leave(cuda, mode);
    if (error == 0)
        return ONEPASS_OK;
    char text[100];
    onep_cublaslt_text(error, text, sizeof text);
    return onep_fail(ONEPASS_DEVICE_ERROR, "%s: cublasLtMatmul: %s", plan->operator_name, text);
}

onepass_status onep_matmul_run(onep_cuda *cuda, const onep_matmul_plan *plan)
{
    onepass_status status = ONEPASS_OK;
    if (plan->engine == ONEP_ENGINE_NONE)
        return ONEPASS_OK;
    if (plan->engine == ONEP_ENGINE_SPLIT)
        return onep_split_run(cuda, plan->operator_name, &plan->by.split);
    if (plan->engine == ONEP_ENGINE_CUBLASLT)
        status = run_lt(cuda, plan);
    if (status == ONEPASS_OK && plan->by.other.launch.grid)
        status = onep_cuda_launch(cuda, plan->operator_name, &plan->by.other.launch, &plan->by.other.args);
    return status;
}

/* ---- column sums ------------------------------------------------------------------------------------------------- */

onepass_status onep_column_sums_plan_make(const char *operator_name, const onep_operand *x, const onep_rows *rows,
                                          int64_t columns, const onep_operand *before, const onep_operand *out,
                                          onep_column_sums_plan *plan)
{
    plan->launch = (onep_launch){
        .kernel = ONEP_KERNEL_ID(onep_column_sums),
        .grid = (unsigned)(columns / 32 + (columns % 32 != 0)),
        .block = ONEP_COLUMN_SUMS_THREADS,
        .programmatic = 1,
    };
    plan->args.rows = rows->count;
    plan->args.columns = columns;
    plan->args.before = (onep_matrix){before->data, 0, before->col_stride, (int)before->type};
    plan->args.out = (onep_matrix){out->data, 0, out->col_stride, (int)out->type};
    return side(operator_name, x, rows, 0, &plan->args.x);
}

onepass_status onep_column_sums_run(const onep_cuda *cuda, const char *operator_name, const onep_column_sums_plan *plan)
{
    return plan->launch.grid ? onep_cuda_launch(cuda, operator_name, &plan->launch, &plan->args) : ONEPASS_OK;
}
