/* See linear.h. */
#include "cases/linear.h"

#include <math.h>

/* ---- sums of products -------------------------------------------------------------------------------------------- */

long double case_roundoff(onepass_dtype promoted)
{
    return promoted.bits == 64 ? 0x1p-53L : 0x1p-24L;
}

long double case_smallest(onepass_dtype promoted)
{
    return promoted.bits == 64 ? 0x1p-1074L : 0x1p-149L;
}

long double case_product_error(const case_product *sum, case_arithmetic arithmetic, onepass_dtype promoted)
{
    long double n = (long double)sum->n;
    long double chain = case_roundoff(promoted) * (8 + 4 * sqrtl(n)) * sum->size;
    if (arithmetic != CASE_CUDA || promoted.bits != 32)
        return chain;
    /* Chunks of 64, up to 16 parts, and the twice as many steps of the older tensor cores. */
    long double chunks = ceill(n / 64);
    long double split = (44.5L + (chunks - 1) / 2 + 8) * 0x1p-23L * sum->size * (1 + 0x1p-7L) +
                        0x1p-38L * ((long double)sum->most_a * sum->sum_b + (long double)sum->most_b * sum->sum_a) +
                        0x1p-150L;
    return split > chain ? split : chain;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static double draw(int family, int64_t index, double last, case_random *random)
{
    double z = case_random_between(random, -2, 2);
    switch (family) {
    case LINEAR_CANCELLING:
        return index % 2 ? last * (1 + 1e-3 * z) : z;
    case LINEAR_TINY:
        return z * 0x1p-60;
    case LINEAR_WIDE:
        return z * exp2(6 * case_random_between(random, -2, 2));
    default:
        return z;
    }
}

/* Every tensor that is read, from numbers of its own. */
static void generate(op_case *c)
{
    for (int i = 0; i < c->arguments; i++) {
        case_random random = case_random_stream(c->seed, 1 + (uint64_t)i);
        double last = 0;
        if (c->argument[i].info->role != ONEPASS_READ || !c->argument[i].given)
            continue;
        for (int64_t k = 0; k < c->argument[i].count; k++) {
            last = draw(c->family, k, last, &random);
            case_put(c, i, k, last);
            /* The other factor has one sign, so that it is the terms that cancel. */
            if (c->family == LINEAR_CANCELLING && i == LINEAR_WEIGHT)
                case_put(c, i, k, k % 2 ? -fabs(last) : fabs(last));
        }
    }
}

static onepass_dtype promoted_of(const op_case *c)
{
    return case_promote(c->argument[LINEAR_INPUT].dtype, c->argument[LINEAR_WEIGHT].dtype);
}

static void expect(op_case *c, case_arithmetic arithmetic, int argument, int64_t index, const case_product *sum)
{
    onepass_dtype promoted = promoted_of(c);
    case_expected(c, argument, index, sum->value,
                  case_product_error(sum, arithmetic, promoted) + case_smallest(promoted));
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static int exact(op_case *c, case_arithmetic arithmetic)
{
    int64_t rows = case_rows(c), depth = case_extent(c, 'K'), columns = case_extent(c, 'N');
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            case_product sum = {0};
            long double bias = case_was_or(c, LINEAR_BIAS, j, 0);
            sum.value = bias;
            sum.size = fabsl(bias);
            for (int64_t k = 0; k < depth; k++)
                case_product_add(&sum, case_was(c, LINEAR_INPUT, i * depth + k),
                                 case_was(c, LINEAR_WEIGHT, j * depth + k));
            expect(c, arithmetic, LINEAR_OUTPUT, i * columns + j, &sum);
        }
    return 1;
}

static void begin(op_case *c)
{
    c->leading_rank = 1;
    c->leading[0] = 4;
    c->extents['K' - 'A'] = 3;
    c->extents['N' - 'A'] = 5;
}

static void settle(op_case *c)
{
    c->argument[LINEAR_PREPARED].given = 0; /* cases do not make one */
    if (!case_holds(c->argument[LINEAR_OUTPUT].dtype, promoted_of(c)))
        c->argument[LINEAR_OUTPUT].dtype = promoted_of(c);
}

static void begin_forward(op_case *c)
{
    begin(c);
    c->argument[LINEAR_BIAS].given = 1;
    c->argument[LINEAR_PREPARED].dtype = case_u8;
}

static const char *const forward_names[] = {"linear", NULL};
const case_definition case_linear = {.names = forward_names,
                                     .families = LINEAR_DATA_KINDS,
                                     .begin = begin_forward,
                                     .settle = settle,
                                     .generate = generate,
                                     .exact = exact};

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static int exact_backward(op_case *c, case_arithmetic arithmetic)
{
    int64_t rows = case_rows(c), depth = case_extent(c, 'K'), columns = case_extent(c, 'N');
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < depth; k++) {
            case_product sum = {0};
            for (int64_t j = 0; j < columns; j++)
                case_product_add(&sum, case_was(c, LINEAR_GRAD_OUTPUT, i * columns + j),
                                 case_was(c, LINEAR_B_WEIGHT, j * depth + k));
            expect(c, arithmetic, LINEAR_GRAD_INPUT, i * depth + k, &sum);
        }
    for (int64_t j = 0; j < columns; j++) {
        case_product bias = {0};
        for (int64_t i = 0; i < rows; i++)
            case_product_add(&bias, case_was(c, LINEAR_GRAD_OUTPUT, i * columns + j), 1);
        expect(c, arithmetic, LINEAR_GRAD_BIAS, j, &bias);
        for (int64_t k = 0; k < depth; k++) {
            case_product sum = {0};
            for (int64_t i = 0; i < rows; i++)
                case_product_add(&sum, case_was(c, LINEAR_GRAD_OUTPUT, i * columns + j),
                                 case_was(c, LINEAR_B_INPUT, i * depth + k));
            expect(c, arithmetic, LINEAR_GRAD_WEIGHT, j * depth + k, &sum);
        }
    }
    return 1;
}

static void settle_backward(op_case *c)
{
    c->argument[LINEAR_GRAD_INPUT].dtype = c->argument[LINEAR_B_INPUT].dtype;
    c->argument[LINEAR_GRAD_WEIGHT].dtype = c->argument[LINEAR_B_WEIGHT].dtype;
    if (!c->argument[LINEAR_GRAD_INPUT].given && !c->argument[LINEAR_GRAD_WEIGHT].given)
        c->argument[LINEAR_GRAD_BIAS].given = 1;
}

static void begin_backward(op_case *c)
{
    begin(c);
    for (int i = LINEAR_GRAD_INPUT; i <= LINEAR_GRAD_BIAS; i++)
        c->argument[i].given = 1;
}

static const char *const backward_names[] = {"linear_backward", NULL};
const case_definition case_linear_backward = {.names = backward_names,
                                              .begin = begin_backward,
                                              .families = LINEAR_DATA_KINDS,
                                              .settle = settle_backward,
                                              .generate = generate,
                                              .exact = exact_backward};

/* ---- prepared weights: what is made is opaque, and judged by the products made with it --------------------------- */

static void settle_prepare(op_case *c)
{
    c->argument[0].dtype = case_f32;
}

static const char *const prepare_names[] = {"prepare_weight", NULL};
const case_definition case_prepare_weight = {.names = prepare_names,
                                             .families = LINEAR_DATA_KINDS,
                                             .begin = begin,
                                             .settle = settle_prepare,
                                             .generate = generate};
