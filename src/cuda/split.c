/* See split.h. Where planes lie, which kernels, how many blocks. Nothing is allocated, copied or waited for. */
#include "cuda/split.h"

#include <string.h>

#include "core/status.h"
#include "cuda/kernels.h"
#include "cuda/split_args.h"

_Static_assert(sizeof(onep_split_product_args) <= 4096, "a kernel takes at most 4096 bytes of arguments");
_Static_assert(ONEP_SPLIT_SHARED == ONEP_SPLIT_STAGES * ONEP_SPLIT_STAGE_BYTES + 1024,
               "stages, and room to align them");

enum { PLANES_ALIGNED = 256 };

static int64_t div_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static size_t rounded(int64_t bytes)
{
    return (size_t)(div_up(bytes, PLANES_ALIGNED) * PLANES_ALIGNED);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* One of the product's operands as (row i, depth k). Returns 0 if its rows cannot be walked with one stride. */
static int side_of(const onep_operand *operand, const onep_rows *rows, int swapped, onep_split_side *side)
{
    int64_t stride = rows->rank > 0 ? operand->row_stride[rows->rank - 1] : 0;
    for (int k = rows->rank - 2; k >= 0; k--)
        if (operand->row_stride[k] != operand->row_stride[k + 1] * rows->extent[k + 1])
            return 0;
    side->data = operand->data;
    side->row_stride = swapped ? operand->col_stride : stride;
    side->depth_stride = swapped ? stride : operand->col_stride;
    return operand->type == ONEP_F32 && (uintptr_t)operand->data % 4 == 0 && stride % 4 == 0 &&
           operand->col_stride % 4 == 0;
}

/* How the left operand reaches the tensor cores. */
typedef enum left_kind { LEFT_PLANES, LEFT_ALONG, LEFT_ACROSS } left_kind;

/* True if TMA can read it: floats side by side one way, `far` bytes apart the other. */
static int is_tma_readable(const onep_split_side *side, int64_t near, int64_t far, int64_t far_count)
{
    return near == 4 && (uintptr_t)side->data % 16 == 0 &&
           (far_count == 1 || (far > 0 && far % 16 == 0 && far < (int64_t)1 << 40));
}

static left_kind kind_of(const onep_split_side *left, int64_t rows, int64_t depth)
{
    if (is_tma_readable(left, left->depth_stride, left->row_stride, rows))
        return LEFT_ALONG;
    return is_tma_readable(left, left->row_stride, left->depth_stride, depth) ? LEFT_ACROSS : LEFT_PLANES;
}

/* Hopper's kernels, by kind of the left operand and right rows of a tile. */
enum { WIDTHS = 3 };
#if defined(ONEPASS_HAVE_SM90A)
#define PRODUCTS(kind)                                                                                                 \
    {                                                                                                                  \
        ONEP_KERNEL_ID(onep_split_product_sm90_##kind##_64), ONEP_KERNEL_ID(onep_split_product_sm90_##kind##_128),     \
            ONEP_KERNEL_ID(onep_split_product_sm90_##kind##_256)                                                       \
    }
static const onep_kernel_id product_kernels[][WIDTHS] = {
    [LEFT_PLANES] = PRODUCTS(planes), [LEFT_ALONG] = PRODUCTS(along), [LEFT_ACROSS] = PRODUCTS(across)};

/* True if they can be launched. */
static int has_hopper(const onep_cuda *cuda)
{
    return onep_cuda_has_tma(cuda) && onep_cuda_has_kernel(cuda, (int)product_kernels[LEFT_ALONG][0]);
}
#else
static const onep_kernel_id product_kernels[][WIDTHS] = {{(onep_kernel_id)0}, {(onep_kernel_id)0}, {(onep_kernel_id)0}};

static int has_hopper(const onep_cuda *cuda)
{
    (void)cuda;
    return 0; /* they are not in this library */
}
#endif

/* True if the product is to use them. */
static int uses_hopper(const onep_cuda *cuda, const onep_product *p)
{
    return p->math != ONEP_MATH_SPLIT_SM80 && has_hopper(cuda);
}

/* Both planes and the exponents of an operand. */
typedef struct planes {
    unsigned short *high, *low;
    unsigned char *exponents;
    int64_t pitch;
} planes;

static int64_t pitch_of(int64_t depth)
{
    return div_up(depth, ONEP_SPLIT_CHUNK) * ONEP_SPLIT_CHUNK;
}

/* Lays planes out; NULL only counts. Exponents by rows are read eight at a time, by chunks one for each. */
static size_t place_planes(char *memory, int64_t rows, int64_t depth, int by_chunks, planes *to)
{
    int64_t pitch = pitch_of(depth);
    size_t plane = rounded(rows * pitch * 2);
    size_t exponents = by_chunks ? rounded(rows * (pitch / ONEP_SPLIT_CHUNK)) : rounded(div_up(rows, 8) * 8);
    *to = (planes){.pitch = pitch};
    if (memory) {
        to->high = (unsigned short *)(void *)memory;
        to->low = (unsigned short *)(void *)(memory + plane);
        to->exponents = (unsigned char *)(memory + 2 * plane);
    }
    return 2 * plane + exponents;
}

size_t onep_split_planes_bytes(int64_t rows, int64_t depth)
{
    planes unused;
    return place_planes(NULL, rows, depth, 1, &unused);
}

/* The kernel that scales by rows: one that holds a row, if that is short enough and made of whole, aligned fours. */
static onep_kernel_id row_kernel(const onep_split_side *side, int64_t depth, int across, unsigned *threads)
{
    if (across && depth > 1024)
        return ONEP_KERNEL_ID(onep_split_columns);
    if (across) {
        *threads = ONEP_SPLIT_HELD_THREADS;
        return ONEP_KERNEL_ID(onep_split_columns_1024);
    }
    if (side->depth_stride != 4 || (uintptr_t)side->data % 16 != 0 || side->row_stride % 16 != 0 || depth % 4 != 0 ||
        depth > 16384)
        return ONEP_KERNEL_ID(onep_split_rows);
    if (depth <= 8192)
        return depth <= 4096 ? ONEP_KERNEL_ID(onep_split_rows_4096) : ONEP_KERNEL_ID(onep_split_rows_8192);
    *threads = ONEP_SPLIT_HELD_THREADS;
    return ONEP_KERNEL_ID(onep_split_rows_16384);
}

static void plan_planes(const onep_split_side *side, const planes *to, int64_t rows, int64_t depth, int by_chunks,
                        onep_launch *launch, onep_split_args *args)
{
    *args = (onep_split_args){
        .x = *side,
        .high = to->high,
        .low = to->low,
        .exponents = to->exponents,
        .rows = rows,
        .depth = depth,
        .pitch = to->pitch,
    };
    /* neighbouring threads take neighbours in memory */
    int across = side->row_stride < side->depth_stride && side->row_stride > 0 && depth > 1;
    unsigned threads = ONEP_SPLIT_THREADS;
    onep_kernel_id kernel = !by_chunks ? row_kernel(side, depth, across, &threads)
                            : across   ? ONEP_KERNEL_ID(onep_split_chunks_across)
                                       : ONEP_KERNEL_ID(onep_split_chunks);
    int64_t strips = div_up(rows, ONEP_SPLIT_STRIP), chunks = to->pitch / ONEP_SPLIT_CHUNK;
    int64_t grid = !by_chunks ? (across ? strips : rows)
                   : across   ? div_up(strips * chunks, ONEP_SPLIT_THREADS / 32)
                              : div_up(rows * chunks, ONEP_SPLIT_ITEMS);
    *launch = (onep_launch){.kernel = (int)kernel, .grid = (unsigned)grid, .block = threads, .programmatic = 1};
}

onepass_status onep_split_prepare(const char *operator_name, const onep_operand *x, const onep_rows *rows,
                                  int64_t depth, void *memory, onep_split_prepare_plan *plan)
{
    onep_split_side side;
    planes to;
    if (!side_of(x, rows, 0, &side))
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: weight: its rows are not one stride apart, or it is not fp32",
                         operator_name);
    place_planes((char *)memory, rows->count, depth, 1, &to);
    plan_planes(&side, &to, rows->count, depth, 1, &plan->launch, &plan->args);
    return ONEPASS_OK;
}

/* ---- which operand is the left one ------------------------------------------------------------------------------- */

/*
 * The left operand is b. It is a if a is much taller, TMA can read it, and the caller allows it: planes of b, which is
 * smaller, take less time than those of a, and a right operand need not fill 128 rows of a tile. That is so even if b
 * comes prepared, and then bits do not depend on that. Here: as far as it can be said before a is known.
 */
static int may_exchange(const onep_cuda *cuda, const onep_product *p)
{
    return p->may_exchange && !p->chosen_m && p->m >= ONEP_SPLIT_LEFT && p->n <= p->m / 2 && uses_hopper(cuda, p);
}

/*
 * By measurement. Three launches and a tile take longer than a small product by cuBLAS, unless one of its sides is
 * short; of a tall right operand the planes count too.
 */
static int wins(const onep_cuda *cuda, int64_t left_rows, int64_t right_rows, int64_t depth)
{
    if (left_rows < ONEP_SPLIT_LEFT || right_rows < 1 || depth < 1 || !has_hopper(cuda))
        return 0; /* less than a tile */
    double work = (double)left_rows * (double)right_rows * (double)depth;
    return work >= (right_rows > 8 * left_rows ? 0x1p32 : 0x1p29) ||
           ((right_rows <= 256 || depth <= 64) && work >= 0x1p28) ||
           (right_rows <= 16 && depth >= 1024 && work >= 0x1p24);
}

/* True if the product goes this way, as far as math and speed are concerned. */
static int is_wanted(const onep_cuda *cuda, const onep_product *p, int exchanged)
{
    if (p->accumulates)
        return 0;
    if (p->math == ONEP_MATH_BEST)
        return exchanged ? wins(cuda, p->m, p->n, p->k) : wins(cuda, p->n, p->chosen_m ? p->chosen_m : p->m, p->k);
    return p->math == ONEP_MATH_SPLIT || p->math == ONEP_MATH_SPLIT_SM80;
}

/* ---- a product --------------------------------------------------------------------------------------------------- */

/* How a product is laid out. */
typedef struct layout {
    int exchanged; /* a is the left operand, not b */
    int64_t left_rows, right_rows;
    left_kind kind;
    int hopper; /* its kernels, or Ampere's */
    int width;  /* right rows of a tile */
    int blocks; /* of a cluster */
    int splits; /* parts of the depth */
    planes left_planes, right_planes;
    char *parts; /* splits x m x n, if there is more than one */
    size_t bytes;
} layout;

static int width_of(int64_t right_rows)
{
    return right_rows <= 64 ? 64 : right_rows <= 128 ? 128 : 256;
}

/*
 * Where there are fewer tiles than the device has multiprocessors, the depth is cut into parts of at least 4 chunks, so
 * that all of them read the left operand at once. By the shape and the number of multiprocessors alone.
 */
static void cut_depth(const onep_cuda *cuda, int64_t depth, int64_t right_rows, layout *to)
{
    enum { LEAST_CHUNKS = 4, MOST_SPLITS = 16 };
    int64_t multiprocessors = onep_cuda_multiprocessors(cuda), left_tiles = div_up(to->left_rows, ONEP_SPLIT_LEFT);
    to->blocks = left_tiles > 1 && multiprocessors > 1 ? 2 : 1;
    int64_t clusters = div_up(left_tiles, to->blocks) * div_up(right_rows, width_of(right_rows));
    int64_t splits = multiprocessors / to->blocks / clusters, chunks = pitch_of(depth) / ONEP_SPLIT_CHUNK;
    splits = splits < chunks / LEAST_CHUNKS ? splits : chunks / LEAST_CHUNKS;
    splits = splits < MOST_SPLITS ? splits : MOST_SPLITS;
    to->splits = splits > 1 ? (int)div_up(chunks, div_up(chunks, splits)) : 1;
}

/* `kind`: how TMA reads the left operand, if it does. */
static void lay_out(const onep_cuda *cuda, const onep_product *p, int exchanged, left_kind kind, char *workspace,
                    layout *to)
{
    memset(to, 0, sizeof *to);
    to->exchanged = exchanged;
    to->left_rows = exchanged ? p->m : p->n;
    to->right_rows = exchanged ? p->n : p->m;
    to->hopper = uses_hopper(cuda, p);
    const void *prepared = exchanged ? NULL : p->b_planes;
    to->kind = to->hopper && !prepared ? kind : LEFT_PLANES;
    to->width = to->hopper ? width_of(to->right_rows) : (int)ONEP_SPLIT_AMPERE_RIGHT;
    to->blocks = to->splits = 1;
    if (to->hopper)
        cut_depth(cuda, p->k, p->chosen_m ? p->chosen_m : to->right_rows, to);
    to->bytes = place_planes(workspace, to->right_rows, p->k, 0, &to->right_planes);
    to->parts = workspace ? workspace + to->bytes : NULL;
    to->bytes += to->splits > 1 ? rounded(to->splits * p->m * p->n * 4) : 0;
    if (prepared)
        place_planes((char *)(uintptr_t)prepared, p->n, p->k, 1, &to->left_planes);
    else if (to->kind == LEFT_PLANES)
        to->bytes += place_planes(workspace ? workspace + to->bytes : NULL, to->left_rows, p->k, 1, &to->left_planes);
}

size_t onep_split_workspace(const onep_cuda *cuda, const onep_product *p)
{
    onep_split_side b;
    layout made;
    size_t most = 0;
    if (p->m < 1 || p->n < 1 || p->k < 1 || !side_of(&p->b, &p->b_rows, p->b_swapped, &b))
        return 0;
    if (is_wanted(cuda, p, 0)) {
        lay_out(cuda, p, 0, kind_of(&b, p->n, p->k), NULL, &made);
        most = made.bytes;
    }
    if (may_exchange(cuda, p) && is_wanted(cuda, p, 1)) {
        lay_out(cuda, p, 1, LEFT_ALONG, NULL, &made);
        most = made.bytes > most ? made.bytes : most;
    }
    return most;
}

/* ---- its launches ------------------------------------------------------------------------------------------------ */

static onepass_status map_planes(const onep_cuda *cuda, const char *operator_name, const planes *from, int64_t rows,
                                 int box_rows, onep_tensor_map *maps)
{
    const void *address[] = {from->high, from->low};
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < 2 && status == ONEPASS_OK; i++)
        status = onep_cuda_tensor_map(cuda, operator_name, &maps[i], address[i], 2, rows, from->pitch, from->pitch * 2,
                                      box_rows);
    return status;
}

/* Boxes as split_sm90a.cu loads them: of the left operand 128 rows, or 64 deep; of the right one a block's share. */
static onepass_status make_maps(const onep_cuda *cuda, const onep_product *p, const layout *made,
                                onep_split_product_args *args)
{
    int stage_rows = made->width < 128 ? made->width : 128;
    onepass_status status = map_planes(cuda, p->operator_name, &made->right_planes, made->right_rows,
                                       stage_rows / made->blocks, args->right);
    if (status != ONEPASS_OK)
        return status;
    if (made->kind == LEFT_PLANES)
        return map_planes(cuda, p->operator_name, &made->left_planes, made->left_rows, ONEP_SPLIT_LEFT, args->left);
    int along = made->kind == LEFT_ALONG;
    int64_t rows = along ? made->left_rows : p->k, columns = along ? p->k : made->left_rows;
    int64_t stride = along ? args->left_side.row_stride : args->left_side.depth_stride;
    if (rows == 1)
        stride = div_up(columns * 4, 16) * 16; /* any that is allowed */
    return onep_cuda_tensor_map(cuda, p->operator_name, &args->left[0], args->left_side.data, 4, rows, columns, stride,
                                along ? (int)ONEP_SPLIT_LEFT : (int)ONEP_SPLIT_CHUNK);
}

/* Adds the parts of the depth, which have a c each in the workspace, instead of c. */
static void plan_merge(const onep_product *p, const layout *made, onep_split_plan *plan)
{
    enum { MOST_BLOCKS = 1024 };
    onep_split_product_args *args = &plan->product;
    plan->parts = (onep_split_merge_args){
        .parts = (const float *)(const void *)made->parts,
        .c = args->c,
        .c_row_stride = made->exchanged ? args->c_left_stride : args->c_right_stride,
        .c_col_stride = made->exchanged ? args->c_right_stride : args->c_left_stride,
        .bias = args->bias,
        .m = p->m,
        .n = p->n,
        .splits = made->splits,
    };
    int64_t blocks = div_up(p->m * p->n, ONEP_SPLIT_THREADS);
    plan->merge = (onep_launch){
        .kernel = ONEP_KERNEL_ID(onep_split_merge),
        .grid = (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS),
        .block = ONEP_SPLIT_THREADS,
        .programmatic = 1,
    };
    args->c = made->parts;
    args->c_left_stride = made->exchanged ? p->n * 4 : 4;
    args->c_right_stride = made->exchanged ? 4 : p->n * 4;
    args->split_stride = p->m * p->n * 4;
    args->bias.data = NULL;
    args->bias_right = 0;
}

static void plan_hopper(const onep_cuda *cuda, const layout *made, onep_split_plan *plan)
{
    onep_split_product_args *args = &plan->product;
    args->left_tiles = (int)div_up(made->left_rows, ONEP_SPLIT_LEFT);
    args->right_tiles = (int)div_up(made->right_rows, made->width);
    args->blocks = made->blocks;
    args->splits = made->splits;
    args->split_chunks = (int)div_up(args->chunks, made->splits);
    args->stages = ONEP_SPLIT_STAGES;
    int64_t clusters = div_up(args->left_tiles, args->blocks) * args->right_tiles * args->splits;
    int64_t at_once = onep_cuda_multiprocessors(cuda) / args->blocks;
    clusters = clusters < at_once ? clusters : at_once;
    plan->multiply = (onep_launch){
        .kernel = (int)product_kernels[made->kind][made->width == 64    ? 0
                                                   : made->width == 128 ? 1
                                                                        : 2],
        .grid = (unsigned)(clusters * args->blocks),
        .block = ONEP_SPLIT_PRODUCT_THREADS,
        .shared_bytes = ONEP_SPLIT_SHARED,
        .cluster = (unsigned)args->blocks,
        .programmatic = 1,
    };
}

static void plan_ampere(const layout *made, onep_split_plan *plan)
{
    onep_split_product_args *args = &plan->product;
    args->splits = 1;
    args->split_chunks = args->chunks;
    args->left_tiles = (int)div_up(made->left_rows, ONEP_SPLIT_AMPERE_LEFT);
    args->right_tiles = (int)div_up(made->right_rows, ONEP_SPLIT_AMPERE_RIGHT);
    args->left_high = made->left_planes.high;
    args->left_low = made->left_planes.low;
    args->right_high = made->right_planes.high;
    args->right_low = made->right_planes.low;
    plan->multiply = (onep_launch){
        .kernel = ONEP_KERNEL_ID(onep_split_product_sm80),
        .grid = (unsigned)(args->left_tiles * args->right_tiles),
        .block = ONEP_SPLIT_AMPERE_THREADS,
        .shared_bytes = ONEP_SPLIT_AMPERE_SHARED,
        .programmatic = 1,
    };
}

/* Blocks, tiles and coordinates are counted in 32 bits. */
static const int64_t most_blocks = INT32_MAX - 1024;

static int is_countable(const layout *made)
{
    int64_t chunks = made->right_planes.pitch / ONEP_SPLIT_CHUNK;
    return (made->kind != LEFT_PLANES || made->left_rows * chunks <= most_blocks) &&
           div_up(made->left_rows, ONEP_SPLIT_AMPERE_LEFT) * div_up(made->right_rows, ONEP_SPLIT_AMPERE_RIGHT) <=
               most_blocks;
}

onepass_status onep_split_plan_make(const onep_cuda *cuda, const onep_product *p, char *workspace,
                                    onep_split_plan *plan, int *taken)
{
    onep_split_side a, b, c;
    layout made;
    *taken = 0;
    if (p->math == ONEP_MATH_PLAIN || p->math == ONEP_MATH_TF32 || p->m < 1 || p->n < 1 || p->k < 1 ||
        p->m > most_blocks || p->n > most_blocks || p->k > most_blocks || p->c.type != ONEP_F32 ||
        (p->bias.data && p->bias.type != ONEP_F32))
        return ONEPASS_OK;
    if (!side_of(&p->a, &p->a_rows, p->a_swapped, &a) || !side_of(&p->b, &p->b_rows, p->b_swapped, &b) ||
        !side_of(&p->c, &p->c_rows, 0, &c))
        return ONEPASS_OK;
    int exchanged = may_exchange(cuda, p) && kind_of(&a, p->m, p->k) != LEFT_PLANES;
    if (!is_wanted(cuda, p, exchanged))
        return ONEPASS_OK;
    lay_out(cuda, p, exchanged, exchanged ? kind_of(&a, p->m, p->k) : kind_of(&b, p->n, p->k), workspace, &made);
    if (!is_countable(&made))
        return ONEPASS_OK;
    *taken = 1;
    int64_t chunks = made.right_planes.pitch / ONEP_SPLIT_CHUNK;
    plan->bytes = made.bytes;
    plan->exchanged = exchanged;
    plan->part_depth = div_up(chunks, made.splits) * ONEP_SPLIT_CHUNK;
    plan->statistics_rows = made.hopper && made.splits == 1 && !exchanged ? made.width : 0;
    plan->split_left = plan->merge = (onep_launch){0};
    plan->product = (onep_split_product_args){
        .left_exponents = made.left_planes.exponents,
        .right_exponents = made.right_planes.exponents,
        .left_side = exchanged ? a : b,
        .right_side = exchanged ? b : a,
        .c = p->c.data,
        .c_left_stride = exchanged ? c.row_stride : c.depth_stride,
        .c_right_stride = exchanged ? c.depth_stride : c.row_stride,
        .bias = {p->bias.data, 0, p->bias.col_stride, (int)p->bias.type},
        .left_rows = made.left_rows,
        .right_rows = made.right_rows,
        .depth = p->k,
        .pitch = made.right_planes.pitch,
        .bias_right = exchanged && p->bias.data,
        .chunks = (int)chunks,
    };
    if (made.kind == LEFT_PLANES && !p->b_planes)
        plan_planes(&plan->product.left_side, &made.left_planes, made.left_rows, p->k, 1, &plan->split_left,
                    &plan->left);
    plan_planes(&plan->product.right_side, &made.right_planes, made.right_rows, p->k, 0, &plan->split_right,
                &plan->right);
    if (!made.hopper) {
        plan_ampere(&made, plan);
        return ONEPASS_OK;
    }
    plan_hopper(cuda, &made, plan);
    onepass_status status = workspace ? make_maps(cuda, p, &made, &plan->product) : ONEPASS_OK;
    if (made.splits > 1)
        plan_merge(p, &made, plan);
    return status;
}

onepass_status onep_split_run(const onep_cuda *cuda, const char *operator_name, const onep_split_plan *plan)
{
    onepass_status status = ONEPASS_OK;
    if (plan->split_left.grid)
        status = onep_cuda_launch(cuda, operator_name, &plan->split_left, &plan->left);
    if (status == ONEPASS_OK)
        status = onep_cuda_launch(cuda, operator_name, &plan->split_right, &plan->right);
    if (status == ONEPASS_OK)
        status = onep_cuda_launch(cuda, operator_name, &plan->multiply, &plan->product);
    if (status == ONEPASS_OK && plan->merge.grid)
        status = onep_cuda_launch(cuda, operator_name, &plan->merge, &plan->parts);
    return status;
}
