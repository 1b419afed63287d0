/*
 * The kernels of losses from logits on a GPU, each of them: against the exact results of cases/ on both sides of every
 * width at which another kernel or another number of warps takes over, at every distance from an aligned address and in
 * any layout; divergences that are 0 where both sides are alike and never negative; the same bits of a row alone and in
 * a batch, strided, misaligned and in place, with one result asked for or all of them. That no kernel was left out is
 * checked too.
 *
 * It is run by ./dev gpu, and a smaller sample of it by ctest under the stand-in for the driver (driver_standin.c).
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cases/logits.h"
#include "cuda/device.h"
#include "cuda/fatbin.h"
#include "cuda/kernels.h"
#include "cuda_harness.h"

enum { DIVERGENCES = ONEPASS_TOTAL_VARIATION + 1 };

/* ---- which kernels ran ------------------------------------------------------------------------------------------- */

static long launches[ONEP_CUDA_KERNEL_COUNT];

onepass_status __real_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args);
onepass_status __wrap_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args);

onepass_status __wrap_onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                       const void *args)
{
    launches[launch->kernel]++;
    return __real_onep_cuda_launch(cuda, operator_name, launch, args);
}

static void check_all_ran(const onepass_handle *handle)
{
    test_context("all kernels");
    for (int i = 0; i < (int)ONEP_CUDA_KERNEL_COUNT; i++) {
        const char *name = onep_fatbin_kernels[i].name;
        if (strncmp(name, "onep_logits_", 12) != 0)
            continue;
        if (!strstr(name, "_cluster_") || onep_cuda_has_tma(onep_cuda_of(handle)))
            CHECK(launches[i] > 0, "%s was never launched", name);
    }
}

/* ---- against exact results --------------------------------------------------------------------------------------- */

static void begin_case(op_case *c, const char *name, onepass_dtype type, int64_t rows, int64_t columns,
                       case_random *random)
{
    case_begin(c, name);
    c->leading[0] = rows;
    c->extents['C' - 'A'] = columns;
    c->family = (int)case_random_below(random, LOGITS_SPECIAL + 1);
    c->amount = case_random_below(random, 3) ? 50 : 0;
    c->seed = case_random_bits(random);
    case_shuffle(c, random);
    for (int i = 0; i < c->arguments; i++) {
        c->argument[i].given = c->argument[i].info->is_required || case_random_below(random, 3) > 0;
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = type;
    }
    for (int i = 0; i < c->option_count; i++) {
        int32_t choices = onepass_operator_option(c->op, i)->choices;
        if (choices)
            c->options[i] = (double)case_random_below(random, choices);
    }
}

static void check(op_case *c, onepass_handle *handle)
{
    char text[1800];
    case_settle(c);
    CHECK(case_make(c), "no memory");
    test_context("%s", case_describe(c, text, sizeof text));
    case_check(c, handle, &test_judge);
}

static const char *const names[] = {"cross_entropy_logits_labels", "divergence_logits_logits", "token_log_probs",
                                    "divergence_logits_probs",     "token_log_probs_backward", NULL};
/* The first ones have kernels with a row in shared memory, for all types but the last. */
enum { HELD_NAMES = 3, TYPES = 4 };

static onepass_dtype type_at(int i)
{
    const onepass_dtype types[TYPES] = {case_f32, case_bf16, case_f16, case_f64};
    return types[i];
}

/* Each kernel whatever is drawn: few columns and many, without options that leave some out. */
static void test_every_kernel(onepass_handle *handle, case_random *random)
{
    static op_case c;
    for (int i = 0; i < 2 * TYPES * 2; i++)
        for (const char *const *name = names; *name; name++) {
            begin_case(&c, *name, type_at(i / 2 % TYPES), 3, i % 2 ? 1100 : 70, random);
            c.amount = 0;
            if (name == names + 1)
                c.options[LOGITS_DIVERGENCE] = i / (2 * TYPES) ? ONEPASS_JS : ONEPASS_KL;
            check(&c, handle);
        }
    /* With a bonus on the entropy no row is in registers. */
    for (int i = 0; i < 2 * (TYPES - 1) * 2; i++) {
        begin_case(&c, names[i % 2], type_at(i / 4), 3, i / 2 % 2 ? 1100 : 70, random);
        c.amount = 0;
        c.options[LOGITS_DIVERGENCE] = ONEPASS_KL;
        c.options[LOGITS_ENTROPY_BONUS] = 0.25;
        check(&c, handle);
    }
}

/* Borders: so many lanes or a block, one to eight warps, one slice of a row, two and three. */
static void test_widths(onepass_handle *handle, case_random *random)
{
    static const int64_t widths[] = {1,    2,    3,     4,     5,     8,     10,    31,    33,     100,   127,  128,
                                     129,  130,  500,   1000,  1023,  1024,  1025,  2048,  2049,   4099,  8193, 9216,
                                     9217, 9220, 18431, 18432, 18433, 36864, 36865, 65537, 128256, 262145};
    static op_case c;
    int count = (int)(sizeof widths / sizeof widths[0]), turn = 0;
    for (int i = 0; i < count; i++)
        for (int which = 0; which < HELD_NAMES; which++)
            for (int type = 0; type < TYPES - 1; type++) {
                int64_t columns = widths[i];
                if (test_quick() && columns > 9000 && turn++ % 3 != 0)
                    continue;
                int rounds = columns > 1500 ? 1 : test_quick() ? 2 : 8;
                for (int round = 0; round < rounds; round++) {
                    begin_case(&c, names[which], type_at(type),
                               columns > 1500  ? 1
                               : columns > 300 ? 3
                                               : 7,
                               columns, random);
                    if ((i + round) % 2 == 0 && which == 1)
                        c.options[LOGITS_DIVERGENCE] = ONEPASS_KL;
                    if ((i + round) % 2 == 0 && which == 2)
                        c.extents['K' - 'A'] = 1;
                    check(&c, handle);
                }
            }
}

/* What rows in the registers of a part of a warp have, and nothing else. */
static void choose_narrow_options(op_case *c, int has_targets, case_random *random)
{
    static const double temperatures[] = {0, 0.7, 2.5}, weights[] = {0, 1.5, 0.25}, losses[] = {0, 1e-2};
    c->amount = 0;
    c->options[LOGITS_TEMPERATURE] = logits_choice(random, temperatures, 3);
    c->options[LOGITS_HAS_IGNORE_INDEX] = (double)case_random_below(random, 2);
    c->options[LOGITS_IGNORE_INDEX] = (double)case_random_below(random, 2);
    if (case_random_below(random, 3) == 0) { /* columns of padding */
        c->options[LOGITS_COLUMNS] = (double)c->extents['C' - 'A'];
        c->extents['C' - 'A'] += 1 + case_random_below(random, 5);
    }
    if (!has_targets) {
        c->options[LOGITS_LABEL_WEIGHT] = logits_choice(random, weights, 3);
        c->options[LOGITS_Z_LOSS] = logits_choice(random, losses, 2);
        return;
    }
    c->options[LOGITS_DIVERGENCE] = ONEPASS_KL;
    c->options[LOGITS_DIVERGENCE_WEIGHT] = logits_choice(random, weights, 3);
    c->options[LOGITS_TARGET_TEMPERATURE] = logits_choice(random, temperatures, 3);
    c->options[LOGITS_LABEL_TEMPERATURE] = c->options[LOGITS_TEMPERATURE];
}

/* Nothing but value and gradient of compact rows. */
static void make_plain(op_case *c)
{
    for (int a = 0; a < c->arguments; a++) {
        c->argument[a].given = c->argument[a].info->is_required || a == LOGITS_VALUE || a == LOGITS_GRAD_PREDICTIONS;
        c->argument[a].layout = CASE_COMPACT;
        c->argument[a].shift = 0;
    }
    int reduction = (int)c->options[LOGITS_REDUCTION];
    if (reduction == ONEPASS_ROWS || reduction == ONEPASS_NONE)
        c->options[LOGITS_REDUCTION] = ONEPASS_SUM;
    if (c->options[LOGITS_COLUMNS] != 0)
        c->extents['C' - 'A'] = (int64_t)c->options[LOGITS_COLUMNS];
    c->options[LOGITS_COLUMNS] = 0;
}

/* Both sides of every border of rows in registers, in any layout; all quads of a lane, and some. */
static void test_narrow(onepass_handle *handle, case_random *random)
{
    static const int64_t borders[] = {16, 32, 64, 128, 256, 512, 1024, 2048};
    enum { BORDERS = sizeof borders / sizeof borders[0], CASES = BORDERS * 3 * (TYPES - 1) * 2 };
    static op_case c;
    for (int i = 0; i < CASES; i++) {
        int border = i % BORDERS, place = i / BORDERS % 3, type = i / BORDERS / 3 % (TYPES - 1), has_targets = i % 2;
        has_targets ^= i / (BORDERS * 3 * (TYPES - 1));
        int64_t columns = borders[border];
        columns += place == 0 ? 0 : place == 1 ? 1 : -case_random_below(random, columns / 2);
        for (int round = 0; round < (test_quick() ? 1 : 6); round++) {
            begin_case(&c, names[has_targets], type_at(type), columns > 600 ? 3 : 37, columns, random);
            choose_narrow_options(&c, has_targets, random);
            check(&c, handle);
            begin_case(&c, names[has_targets], type_at(type), columns > 600 ? 3 : 37, (columns + 3) / 4 * 4, random);
            choose_narrow_options(&c, has_targets, random);
            make_plain(&c);
            check(&c, handle);
        }
    }
}

/* More rows than there are teams in as many blocks as there may be, and more than one block counts. */
static void test_many_rows(onepass_handle *handle, case_random *random)
{
    static op_case c;
    for (int i = 0; i < (test_quick() ? 2 : 6); i++) {
        begin_case(&c, names[i % 2], type_at(i % (TYPES - 1)), test_quick() ? 9000 : 140000 + i, 3, random);
        choose_narrow_options(&c, i % 2, random);
        c.options[LOGITS_REDUCTION] = ONEPASS_VALID;
        c.argument[LOGITS_LABELS].given = c.argument[LOGITS_VALUE].given = 1;
        c.argument[LOGITS_CLASS_WEIGHTS].given = i / 2 % 2;
        c.argument[LOGITS_MADE_FOR].given = c.argument[LOGITS_UPSTREAM].given = 0;
        check(&c, handle);
    }
}

/* More than loss, LSE and gradients. */
static int is_extra(const char *argument)
{
    return strstr(argument, "entropy") || strstr(argument, "argmax") || strstr(argument, "log_prob");
}

/* Rows of many slices, more than there are clusters at once, with few results and with all of them. */
static void test_clusters(onepass_handle *handle, case_random *random)
{
    static const int64_t columns[] = {8200, 9001, 70000};
    static const struct {
        int name, divergence;
    } kinds[] = {{0, 0},
                 {1, ONEPASS_KL},
                 {1, ONEPASS_REVERSE_KL},
                 {1, ONEPASS_JS},
                 {1, ONEPASS_SKEW_KL},
                 {1, ONEPASS_TOTAL_VARIATION},
                 {2, 0},
                 {4, 0}};
    enum { KINDS = sizeof kinds / sizeof kinds[0], WIDTHS = 3, CASES = KINDS * WIDTHS * (TYPES - 1) * 2 };
    static op_case c;
    for (int i = 0; i < CASES; i++) {
        int width = i % WIDTHS, type = i / WIDTHS % (TYPES - 1), kind = i / WIDTHS / (TYPES - 1) % KINDS;
        int has_all = i >= CASES / 2, is_token = kinds[kind].name > 1;
        if (test_quick() && width > 0)
            continue;
        int64_t divide = kinds[kind].name == 1 && kinds[kind].divergence != ONEPASS_KL ? 4 : 1;
        begin_case(&c, names[kinds[kind].name], type_at(type),
                   width == 2                   ? 3 / divide + (divide > 1)
                   : width == 1 || test_quick() ? 12 / divide
                                                : 80 / divide,
                   columns[width], random);
        c.amount = 0;
        if (kinds[kind].name == 1)
            c.options[LOGITS_DIVERGENCE] = kinds[kind].divergence;
        if (is_token)
            c.extents['K' - 'A'] = 1;
        for (int a = 0; a < c.arguments; a++) {
            const char *argument = c.argument[a].info->name;
            if (is_token)
                c.argument[a].given |= has_all;
            else if (strstr(argument, "grad_value") || strstr(argument, "made_for"))
                c.argument[a].given = 0; /* with them there are no results but gradients */
            else if (has_all || is_extra(argument))
                c.argument[a].given = has_all;
        }
        check(&c, handle);
    }
}

/*
 * Rows at multiples of 16 bytes with the loss and the gradient to the predictions as the only results, of both shares
 * of wide rows: near the targets, far from them, the same, and in part -inf.
 */
static void test_aligned(onepass_handle *handle, case_random *random)
{
    enum { NEARNESS = 4, KINDS = DIVERGENCES + 1 };
    static op_case c;
    for (int i = 0; i < KINDS * (TYPES - 1) * NEARNESS; i++) {
        int kind = i % KINDS, type = i / KINDS % (TYPES - 1), near = i / KINDS / (TYPES - 1);
        if (test_quick() && near > 0 && case_random_below(random, 3))
            continue;
        begin_case(&c, names[kind > 0], type_at(type), near ? 3 : 9, near ? 8200 : 8208, random);
        c.amount = near == 3 ? 50 : 0;
        for (int k = 0; k < c.option_count; k++)
            c.options[k] = 0;
        for (int k = 0; k < c.arguments; k++) {
            const char *argument = c.argument[k].info->name;
            c.argument[k].given = c.argument[k].info->is_required || !strcmp(argument, "value") ||
                                  !strcmp(argument, kind ? "grad_predictions" : "grad_logits");
            c.argument[k].layout = CASE_COMPACT;
            c.argument[k].shift = 0;
        }
        if (kind)
            c.options[LOGITS_DIVERGENCE] = kind - 1;
        c.options[LOGITS_REDUCTION] = i % 2 ? ONEPASS_ROWS : ONEPASS_SUM;
        c.options[LOGITS_TEMPERATURE] = i % 3 ? 1.7 : 0;
        c.family = near ? LOGITS_GAUSSIAN : c.family;
        case_settle(&c);
        CHECK(case_make(&c), "no memory");
        if (kind && (near == 1 || near == 2)) {
            for (int64_t k = 0; k < c.argument[LOGITS_TARGETS].count; k++)
                case_put(&c, LOGITS_TARGETS, k,
                         case_was(&c, LOGITS_PREDICTIONS, k) +
                             (near == 1 ? case_random_between(random, -0.03, 0.03) : 0));
            case_remember(&c);
        }
        test_context("aligned: kind %d, %s, nearness %d", kind, case_type_name(type_at(type)), near);
        case_check(&c, handle, &test_judge);
    }
}

/* Slices of -inf alone at the beginning of a row, of either side and of both, and maxima that rise from slice to slice.
 */
static void test_slices(onepass_handle *handle, case_random *random)
{
    enum { COLUMNS = 20000, SLICE = 9216, VARIANTS = 4 }; /* three slices of KL in fp32, two of cross-entropy */
    static op_case c;
    for (int i = 0; i < 3 * VARIANTS; i++) {
        int sides = i % VARIANTS, which = i / VARIANTS;
        int64_t masked = which ? SLICE : 2 * SLICE;
        begin_case(&c, names[which > 0], case_f32, 1, COLUMNS, random);
        if (which)
            c.options[LOGITS_DIVERGENCE] = which == 1 ? ONEPASS_KL : ONEPASS_JS;
        c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
        c.family = LOGITS_GAUSSIAN;
        c.amount = 0;
        for (int k = 0; k < c.arguments; k++) {
            c.argument[k].given = c.argument[k].info->is_required || c.argument[k].info->role != ONEPASS_READ;
            c.argument[k].layout = CASE_COMPACT;
        }
        case_settle(&c);
        CHECK(case_place(&c), "no memory");
        c.definition->generate(&c);
        for (int64_t k = 0; k < COLUMNS; k++) {
            if (sides == 0)
                case_put(&c, LOGITS_PREDICTIONS, k, case_get(&c, LOGITS_PREDICTIONS, k) + (double)k / 1000);
            if (sides & 1 && k < masked)
                case_put(&c, LOGITS_PREDICTIONS, k, (double)-INFINITY);
            if (which && sides & 2 && k < masked)
                case_put(&c, LOGITS_TARGETS, k, (double)-INFINITY);
        }
        if (!which)
            case_put(&c, LOGITS_LABELS, 0, COLUMNS - 1);
        case_remember(&c);
        test_context("%s %d, slices, variant %d", c.name, which, sides);
        case_check(&c, handle, &test_judge);
    }
}

/* Two sides of different types, as no kernel with a row in shared memory has them. */
static void test_mixed_types(onepass_handle *handle, case_random *random)
{
    static op_case c;
    for (int i = 0; i < (test_quick() ? 6 : 24); i++) {
        begin_case(&c, "divergence_logits_logits", i % 2 ? case_bf16 : case_f32, 3, i % 3 ? 70 : 1100, random);
        c.argument[LOGITS_TARGETS].dtype = i % 2 ? case_f32 : case_f16;
        check(&c, handle);
    }
}

/* Targets that are the predictions: exactly 0. Targets near them: not below it. */
static void test_equal_sides(onepass_handle *handle, case_random *random)
{
    static const double distances[] = {0, 1e-7, 1e-5, 1e-3, 0.03};
    static op_case c;
    for (int divergence = 0; divergence < DIVERGENCES; divergence++)
        for (int k = 0; k < 15; k++) {
            double distance = distances[k % 5];
            int64_t columns = 1 + case_random_below(random, k / 5 ? 1500 : 128);
            begin_case(&c, "divergence_logits_logits", type_at(k / 5), 3, columns, random);
            for (int i = 0; i < c.option_count; i++)
                c.options[i] = 0;
            for (int i = 0; i < c.arguments; i++)
                c.argument[i].given = c.argument[i].info->is_required || i == LOGITS_VALUE;
            c.argument[LOGITS_TARGETS].layout = c.argument[LOGITS_PREDICTIONS].layout;
            c.family = LOGITS_GAUSSIAN;
            c.amount = 0;
            c.options[LOGITS_DIVERGENCE] = divergence;
            c.options[LOGITS_REDUCTION] = ONEPASS_ROWS;
            c.options[LOGITS_TEMPERATURE] = k % 2 ? 1.7 : 0;
            case_settle(&c);
            CHECK(case_make(&c), "no memory");
            for (int64_t i = 0; i < c.argument[LOGITS_TARGETS].count; i++)
                case_put(&c, LOGITS_TARGETS, i,
                         case_was(&c, LOGITS_PREDICTIONS, i) + distance * case_random_between(random, -1, 1));
            case_remember(&c);
            onepass_status status;
            test_context("divergence %d, %s, %" PRId64 " columns, %g apart", divergence, case_type_name(type_at(k / 5)),
                         columns, distance);
            case_call(&c, handle, 0xff, &test_judge, &status);
            CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
            for (int64_t row = 0; row < 3; row++) {
                double value = case_get(&c, LOGITS_VALUE, row);
                CHECK(distance == 0 ? value == 0 : value >= 0, "row %" PRId64 " is %g", row, value);
            }
        }
}

/* KL from 1e-2 down to 1e-7 keeps its digits, by octets and by blocks. */
static void test_small_kl(onepass_handle *handle, case_random *random)
{
    enum { COLUMNS = 900 };
    static const double distances[] = {0.15, 3e-2, 5e-3, 4.5e-4};
    static float x[COLUMNS], y[COLUMNS];
    float *device = cuda_claim((2 * COLUMNS + 1) * sizeof *device);
    onepass_logits_options options = {.size = sizeof options, .reduction = ONEPASS_ROWS, .workspace_size = 4096};
    options.workspace = cuda_claim(options.workspace_size);
    for (int k = 0; k < 8; k++) {
        int64_t columns = k / 4 ? COLUMNS : 60, shape[] = {1, columns};
        long double s = 0, t = 0, exact = 0;
        for (int i = 0; i < columns; i++) {
            x[i] = (float)(2 * case_random_normal(random));
            y[i] = (float)((double)x[i] + distances[k % 4] * case_random_normal(random));
            s += expl((long double)x[i]);
            t += expl((long double)y[i]);
        }
        for (int i = 0; i < columns; i++)
            exact += expl((long double)y[i]) / t *
                     (((long double)y[i] - (long double)x[i]) - (logl(t) - logl(s))); /* 1e-18 of 1e-7 is lost */
        cuda_upload(device, x, (size_t)columns * sizeof *x);
        cuda_upload(device + COLUMNS, y, (size_t)columns * sizeof *y);
        onepass_tensor p = {.data = device, .device = {ONEPASS_CUDA, 0}, .ndim = 2, .dtype = case_f32, .shape = shape};
        onepass_tensor q = p, v = p;
        q.data = device + COLUMNS;
        v.data = device + 2 * COLUMNS;
        v.ndim = 1;
        test_context("KL %.2Le of %d columns", exact, (int)columns);
        CHECK(onepass_divergence_logits_logits(handle, &p, &q, &options, &v, NULL, NULL) == ONEPASS_OK &&
                  onepass_wait(handle) == ONEPASS_OK,
              "%s", onepass_last_error());
        /* KL is half the sum of T delta^2: errors e of delta, 1.2e-6 at most for logits within 16, move it by e sqrt(2
         * KL). */
        long double allowed = exact * 1e-5L + 1.2e-6L * sqrtl(2 * exact);
        float value;
        cuda_download(&value, device + 2 * COLUMNS, sizeof value);
        CHECK(fabsl((long double)value - exact) <= allowed, "got %.9g, allowed %.2Lg off", (double)value, allowed);
    }
    cuda_release(device);
    cuda_release(options.workspace);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

enum { ROWS = 5, MOST_COLUMNS = 18500, MOST = ROWS * MOST_COLUMNS * 2 };

/* One call on the device: rows of `columns` fp32 or bf16 logits, `step` elements apart, `shift` from an aligned one. */
typedef struct bits_call {
    onepass_handle *handle;
    int divergence; /* below 0: cross-entropy */
    int has_labels; /* beside a divergence */
    int is_half, rows, columns, step, shift, in_place, has_gradients;
    int is_plain; /* the loss and its gradient to the predictions alone */
    int is_sum;   /* of the rows, and no gradient to targets */
    const float *x, *y;
    const int64_t *labels;
    float value[ROWS], gx[MOST], gy[MOST]; /* gradients compact, whatever their layout was */
} bits_call;

/* bf16 by cutting off: the numbers do not matter. */
static void put_element(const bits_call *b, unsigned char *to, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t upper = (uint16_t)(bits >> 16);
    memcpy(to, b->is_half ? (void *)&upper : (void *)&bits, b->is_half ? 2 : 4);
}
static float get_element(const bits_call *b, const unsigned char *from)
{
    uint32_t bits = 0;
    memcpy(b->is_half ? (unsigned char *)&bits + 2 : (unsigned char *)&bits, from, b->is_half ? 2 : 4);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static onepass_tensor device_rows(const bits_call *b, unsigned char *memory, int64_t *shape, int64_t *strides)
{
    return (onepass_tensor){.data = memory + b->shift * (b->is_half ? 2 : 4),
                            .device = {ONEPASS_CUDA, 0},
                            .ndim = 2,
                            .dtype = b->is_half ? case_bf16 : case_f32,
                            .shape = shape,
                            .strides = strides};
}

static void run_bits(bits_call *b)
{
    static unsigned char host[4 * (MOST + 16)];
    size_t size = b->is_half ? 2 : 4, bytes = (size_t)(b->rows * b->columns * b->step + 16) * size;
    int64_t shape[] = {b->rows, b->columns}, strides[] = {(int64_t)b->columns * b->step, b->step};
    unsigned char *memory[4]; /* x, y and their gradients */
    for (int m = 0; m < 4; m++) {
        memset(host, 0x7f, sizeof host);
        for (int i = 0; i < b->rows * b->columns && m < 2; i++)
            put_element(b, host + (size_t)(b->shift + i * b->step) * size, (m ? b->y : b->x)[i]);
        memory[m] = cuda_claim(bytes);
        cuda_upload(memory[m], host, bytes);
    }
    int64_t *labels = cuda_claim(ROWS * sizeof *labels);
    cuda_upload(labels, b->labels, (size_t)b->rows * sizeof *labels);
    float *value = cuda_claim(ROWS * sizeof *value);
    onepass_tensor tx = device_rows(b, memory[0], shape, strides), ty = device_rows(b, memory[1], shape, strides);
    int gradients = b->in_place ? 0 : 2;
    onepass_tensor tgx = device_rows(b, memory[gradients], shape, strides);
    onepass_tensor tgy = device_rows(b, memory[gradients + 1], shape, strides);
    onepass_tensor tl = {.data = labels, .device = {ONEPASS_CUDA, 0}, .ndim = 1, .dtype = case_i64, .shape = shape};
    onepass_tensor tv = {.data = value, .device = {ONEPASS_CUDA, 0}, .ndim = 1, .dtype = case_f32, .shape = shape};
    int mixes = b->divergence >= ONEPASS_JS && b->divergence <= ONEPASS_SKEW_REVERSE_KL;
    onepass_logits_options options = {.size = sizeof options, .reduction = ONEPASS_ROWS};
    options.label_weight = 0.5;
    onepass_status status;
    onepass_tensor *to_x = b->has_gradients ? &tgx : NULL, *to_y = b->has_gradients && !b->is_plain ? &tgy : NULL;
    if (b->is_sum) {
        options.reduction = ONEPASS_SUM;
        tv.ndim = 0;
        to_y = NULL;
    }
    options.workspace_size = 4096;
    options.workspace = cuda_claim(options.workspace_size);
    if (b->divergence < 0) {
        status = onepass_cross_entropy_logits_labels(b->handle, &tx, &tl, &options, &tv, to_x);
    } else {
        options.divergence = (onepass_divergence)b->divergence;
        options.mixture = mixes ? 0.25 : 0;
        options.labels = b->has_labels ? &tl : NULL;
        options.label_weight = b->has_labels ? 0.5 : 0;
        options.temperature = 1.5;
        status = onepass_divergence_logits_logits(b->handle, &tx, &ty, &options, &tv, to_x, to_y);
    }
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_wait(b->handle) == ONEPASS_OK, "%s", onepass_last_error());
    cuda_download(b->value, value, (size_t)b->rows * sizeof *value);
    for (int m = 0; m < (b->is_plain ? 1 : 2) && b->has_gradients; m++) {
        cuda_download(host, memory[gradients + m], bytes);
        for (int i = 0; i < b->rows * b->columns; i++)
            (m ? b->gy : b->gx)[i] = get_element(b, host + (size_t)(b->shift + i * b->step) * size);
    }
    for (int m = 0; m < 4; m++)
        cuda_release(memory[m]);
    cuda_release(labels);
    cuda_release(value);
    cuda_release(options.workspace);
}

static void check_bits(const float *got, const float *expected, int count, const char *what, const char *how)
{
    int different = 0;
    for (int i = 0; i < count; i++)
        different += memcmp(&got[i], &expected[i], sizeof(float)) != 0;
    CHECK(different == 0, "%s, %s: %d of %d numbers have other bits", what, how, different, count);
}

static void compare_bits(bits_call *b, const bits_call *expected, int row, const char *how)
{
    int first = row * b->columns, count = b->rows * b->columns;
    run_bits(b);
    check_bits(b->value, expected->value + row, b->rows, "value", how);
    if (!b->has_gradients)
        return;
    check_bits(b->gx, expected->gx + first, count, "gradient to predictions", how);
    if (b->divergence >= 0 && !b->is_sum && !b->is_plain)
        check_bits(b->gy, expected->gy + first, count, "gradient to targets", how);
}

static void test_bits(onepass_handle *handle, case_random *random, int divergence, int has_labels, int is_half,
                      int columns, int is_plain)
{
    static float x[MOST], y[MOST];
    static bits_call all, b;
    int64_t labels[ROWS];
    for (int i = 0; i < ROWS * columns; i++) {
        x[i] = (float)case_random_between(random, -3, 3);
        y[i] = i / columns == 1 ? x[i] + (float)case_random_between(random, -0.02, 0.02)
                                : (float)case_random_between(random, -3, 3);
    }
    for (int r = 0; r < ROWS; r++)
        labels[r] = case_random_below(random, columns);
    test_context("bits: divergence %d, %s, %d columns", divergence, is_half ? "bf16" : "f32", columns);
    const bits_call as_usual = {.handle = handle,
                                .divergence = divergence,
                                .has_labels = has_labels,
                                .is_half = is_half,
                                .rows = ROWS,
                                .columns = columns,
                                .step = 1,
                                .has_gradients = 1,
                                .is_plain = is_plain,
                                .x = x,
                                .y = y,
                                .labels = labels};
    all = as_usual;
    run_bits(&all);
    b = as_usual, b.has_gradients = 0;
    compare_bits(&b, &all, 0, "by itself");
    b = as_usual, b.shift = 1;
    compare_bits(&b, &all, 0, "one element further");
    b = as_usual, b.step = 2, b.in_place = 1;
    compare_bits(&b, &all, 0, "strided and in place");
    b = as_usual, b.in_place = 1;
    compare_bits(&b, &all, 0, "in place");
    for (int row = 1; row < ROWS; row += 2) {
        b = as_usual, b.rows = 1, b.x = x + row * columns, b.y = y + row * columns, b.labels = labels + row;
        compare_bits(&b, &all, row, "of a row alone");
        b.is_sum = 1;
        compare_bits(&b, &all, row, "of a row as a sum");
    }
}

int main(void)
{
    test_begin("test_logits_cuda");
    onepass_handle *handle = cuda_handle(NULL);
    case_random random = case_random_stream(test_seed(), 1);
    test_every_kernel(handle, &random);
    test_widths(handle, &random);
    test_narrow(handle, &random);
    test_many_rows(handle, &random);
    test_clusters(handle, &random);
    test_aligned(handle, &random);
    test_slices(handle, &random);
    test_mixed_types(handle, &random);
    test_equal_sides(handle, &random);
    test_small_kl(handle, &random);
    for (int divergence = -1; divergence < DIVERGENCES; divergence++)
        for (int is_half = 0; is_half < 2; is_half++) {
            test_bits(handle, &random, divergence, 1, is_half, 97 + is_half, 0);
            test_bits(handle, &random, divergence, 1, is_half, is_half ? 1000 : 2051, 0);
            if (divergence <= ONEPASS_JS) /* up to three slices */
                test_bits(handle, &random, divergence, 1, is_half, 18500, 0);
            if (!test_quick() || is_half)
                test_bits(handle, &random, divergence, 0, is_half, 8200, 1);
            if (!test_quick())
                test_bits(handle, &random, divergence, 0, is_half, 18496, 1);
            static const int narrow[] = {10, 50, 100, 101, 255, 500, 1000, 1023, 1500, 2040};
            for (int i = 0; i < (int)(sizeof narrow / sizeof narrow[0]) && divergence <= ONEPASS_KL; i++)
                test_bits(handle, &random, divergence, 0, is_half, narrow[i], 0);
        }
    check_all_ran(handle);
    CHECK(cuda_tickets_are_zero(handle), "a kernel left its ticket");
    onepass_destroy(handle);
    return test_end();
}
