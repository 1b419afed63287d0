/*
 * The kernels of divergences from a teacher of k columns on a GPU, each of them: against the exact results of cases/
 * with every kind of values, rule for what is outside, direction and family; on both sides of every width and number of
 * entries at which something else is done, in any layout; the same bits of a row alone and in a batch, strided,
 * misaligned, in place, and of entries in another order or with padding. That no kernel was left out is checked too.
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

enum { FORMS = ONEPASS_TOP_LOGITS + 1, OUTSIDES = ONEPASS_OUTSIDE_SUBSET + 1, TYPES = 4, MOST_ENTRIES = 4096 };

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
        if (strncmp(name, "onep_top_k_", 11) != 0)
            continue;
        if (!strstr(name, "_cluster_") || onep_cuda_has_tma(onep_cuda_of(handle)))
            CHECK(launches[i] > 0, "%s was never launched", name);
    }
}

/* ---- against exact results --------------------------------------------------------------------------------------- */

static onepass_dtype type_at(int64_t i)
{
    const onepass_dtype types[TYPES] = {case_f32, case_bf16, case_f16, case_f64};
    return types[i % TYPES];
}

static void begin_case(op_case *c, onepass_dtype type, int64_t rows, int64_t columns, int64_t entries,
                       case_random *random)
{
    case_begin(c, "divergence_logits_top_k");
    c->leading[0] = rows;
    c->extents['C' - 'A'] = columns;
    c->extents['K' - 'A'] = entries;
    c->family = (int)case_random_below(random, LOGITS_SPECIAL + 1);
    c->amount = case_random_below(random, 3) ? 50 : 0;
    c->seed = case_random_bits(random);
    for (int i = 0; i < c->arguments; i++) {
        c->argument[i].given = c->argument[i].info->is_required || case_random_below(random, 3) > 0;
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = type;
    }
    c->argument[LOGITS_MADE_FOR].given = 0;
    c->argument[LOGITS_TOP_INDICES].dtype = c->seed % 2 ? case_i32 : case_i64;
    c->options[LOGITS_REDUCTION] = (double)(c->seed / 43 % 7);
    c->options[LOGITS_DIVERGENCE] = (double)case_random_below(random, 2);
    c->options[LOGITS_TOP_FORM] = (double)case_random_below(random, FORMS);
    c->options[LOGITS_OUTSIDE] = (double)case_random_below(random, OUTSIDES);
    c->options[LOGITS_SEMANTICS] = (double)case_random_below(random, 2);
}

static void check(op_case *c, onepass_handle *handle)
{
    char text[1800];
    case_settle(c);
    CHECK(case_make(c), "no memory");
    test_context("%s", case_describe(c, text, sizeof text));
    case_check(c, handle, &test_judge);
}

/* Every kind of values with every rule, both directions and every family. */
static void test_rules(onepass_handle *handle, case_random *random)
{
    static op_case c;
    int turn = 0;
    for (int form = 0; form < FORMS; form++)
        for (int outside = 0; outside < OUTSIDES; outside++)
            for (int reverse = 0; reverse < 2; reverse++)
                for (int family = 0; family <= LOGITS_SPECIAL; family++, turn++) {
                    if (test_quick() && turn % 3)
                        continue;
                    begin_case(&c, type_at(case_random_below(random, TYPES)), 7, 37, 1 + case_random_below(random, 20),
                               random);
                    c.family = family;
                    c.options[LOGITS_DIVERGENCE] = reverse;
                    c.options[LOGITS_TOP_FORM] = form;
                    c.options[LOGITS_OUTSIDE] = outside;
                    check(&c, handle);
                }
}

/* Widths with no entries, one, some, all of their columns and more than those. */
static void test_sizes(onepass_handle *handle, case_random *random)
{
    static const int64_t widths[] = {0, 1, 2, 3, 8, 33, 255, 256, 257, 1025, 4100};
    static op_case c;
    for (int i = 0; i < 11; i++) {
        int64_t columns = widths[i];
        int64_t entries[] = {0, 1, columns / 3, columns < MOST_ENTRIES ? columns : MOST_ENTRIES, columns + 2};
        for (int k = 0; k < 5; k++) {
            if ((test_quick() && (i + k) % 2) || entries[k] > MOST_ENTRIES)
                continue;
            begin_case(&c, type_at(case_random_below(random, TYPES)), 2, columns, entries[k], random);
            check(&c, handle);
        }
    }
}

/* Rows of every type that are wide enough for clusters and around their borders, with ordinary options and any. */
static void test_widths(onepass_handle *handle, case_random *random)
{
    static const int64_t widths[] = {4097, 8191, 8193, 9001, 16385, 65537, 128256, 131073, 262145};
    static const int64_t entries[] = {64, 1, 7, 300, 1024, 1025};
    static op_case c;
    int turn = 0;
    for (int i = 0; i < 9; i++)
        for (int type = 0; type < TYPES; type++)
            for (int round = 0; round < 4; round++, turn++) {
                if (test_quick() && (widths[i] > 70000 ? turn % 7 != 0 : turn % 2 != 0))
                    continue;
                begin_case(&c, type_at(type), widths[i] > 20000 ? 1 : 5, widths[i], entries[turn % 6], random);
                if (round < 3)
                    c.amount = 0;
                if (round == 1)
                    for (int a = 0; a < c.arguments; a++)
                        c.argument[a].given =
                            c.argument[a].info->is_required || a == LOGITS_VALUE || a == LOGITS_GRAD_PREDICTIONS;
                check(&c, handle);
            }
}

/* Any layout, alignment and mixture of types. */
static void test_layouts(onepass_handle *handle, case_random *random)
{
    static op_case c;
    for (int i = 0; i < (test_quick() ? 24 : 120); i++) {
        begin_case(&c, case_f32, 4, i % 4 ? 1 + case_random_below(random, 300) : 8200 + case_random_below(random, 900),
                   1 + case_random_below(random, 12), random);
        case_shuffle(&c, random);
        if (i % 2) {
            c.argument[LOGITS_PREDICTIONS].dtype = type_at(i / 2);
            c.argument[LOGITS_GRAD_PREDICTIONS].dtype = c.argument[LOGITS_PREDICTIONS].dtype;
            c.amount = 0;
        }
        check(&c, handle);
    }
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

enum { ROWS = 5, MOST_COLUMNS = 20500, ENTRIES = 40, MOST = ROWS * MOST_COLUMNS * 2 };

/* One call on the device: rows of `columns` fp32 or bf16 logits, `step` elements apart, `shift` from an aligned one. */
typedef struct bits_call {
    onepass_handle *handle;
    onepass_divergence divergence;
    onepass_outside outside;
    int is_half, rows, columns, step, shift, in_place, has_gradient, is_reordered;
    const float *x, *y;
    const int32_t *indices;
    float value[ROWS], gradient[MOST]; /* compact, whatever its layout was */
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

static onepass_tensor rows_on_device(const bits_call *b, unsigned char *memory, int64_t *shape, int64_t *strides)
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
    float y[ROWS * (ENTRIES + 3)];
    int32_t indices[ROWS * (ENTRIES + 3)];
    size_t size = b->is_half ? 2 : 4, bytes = (size_t)(b->rows * b->columns * b->step + 16) * size;
    int entries = b->is_reordered ? ENTRIES + 3 : ENTRIES;
    for (int row = 0; row < b->rows; row++)
        for (int i = 0; i < entries; i++) { /* backwards, the padding first */
            int from = b->is_reordered ? ENTRIES - 1 - (i - 3) : i;
            y[row * entries + i] = from < ENTRIES ? b->y[row * ENTRIES + from] : (float)NAN;
            indices[row * entries + i] = from < ENTRIES ? b->indices[row * ENTRIES + from] : -1 - i;
        }
    int64_t shape[] = {b->rows, b->columns}, strides[] = {(int64_t)b->columns * b->step, b->step};
    int64_t top[] = {b->rows, entries};
    unsigned char *memory[2]; /* logits and gradient */
    for (int m = 0; m < 2; m++) {
        memset(host, 0x7f, sizeof host);
        for (int i = 0; i < b->rows * b->columns && m == 0; i++)
            put_element(b, host + (size_t)(b->shift + i * b->step) * size, b->x[i]);
        memory[m] = cuda_claim(bytes);
        cuda_upload(memory[m], host, bytes);
    }
    float *values = cuda_claim(sizeof y), *value = cuda_claim(ROWS * sizeof *value);
    int32_t *places = cuda_claim(sizeof indices);
    cuda_upload(values, y, sizeof y);
    cuda_upload(places, indices, sizeof indices);
    onepass_tensor tx = rows_on_device(b, memory[0], shape, strides);
    onepass_tensor tg = rows_on_device(b, memory[!b->in_place], shape, strides);
    onepass_tensor ty = {.data = values, .device = {ONEPASS_CUDA, 0}, .ndim = 2, .dtype = case_f32, .shape = top};
    onepass_tensor ti = {.data = places, .device = {ONEPASS_CUDA, 0}, .ndim = 2, .dtype = case_i32, .shape = top};
    onepass_tensor tv = {.data = value, .device = {ONEPASS_CUDA, 0}, .ndim = 1, .dtype = case_f32, .shape = shape};
    onepass_logits_options options = {.size = sizeof options,
                                      .reduction = ONEPASS_ROWS,
                                      .divergence = b->divergence,
                                      .outside = b->outside,
                                      .temperature = 1.5,
                                      .workspace_size = 4096};
    options.workspace = cuda_claim(options.workspace_size);
    CHECK(onepass_divergence_logits_top_k(b->handle, &tx, &ty, &ti, &options, &tv, b->has_gradient ? &tg : NULL) ==
              ONEPASS_OK,
          "%s", onepass_last_error());
    CHECK(onepass_wait(b->handle) == ONEPASS_OK, "%s", onepass_last_error());
    cuda_download(b->value, value, (size_t)b->rows * sizeof *value);
    if (b->has_gradient) {
        cuda_download(host, memory[!b->in_place], bytes);
        for (int i = 0; i < b->rows * b->columns; i++)
            b->gradient[i] = get_element(b, host + (size_t)(b->shift + i * b->step) * size);
    }
    void *claimed[] = {memory[0], memory[1], values, value, places, options.workspace};
    for (int i = 0; i < 6; i++)
        cuda_release(claimed[i]);
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
    run_bits(b);
    check_bits(b->value, expected->value + row, b->rows, "value", how);
    if (b->has_gradient)
        check_bits(b->gradient, expected->gradient + row * b->columns, b->rows * b->columns, "gradient", how);
}

static void test_bits(onepass_handle *handle, case_random *random, int variant, int is_half, int columns)
{
    static float x[MOST], y[ROWS * ENTRIES];
    static int32_t indices[ROWS * ENTRIES];
    static bits_call all, b;
    for (int i = 0; i < ROWS * columns; i++)
        x[i] = (float)case_random_between(random, -3, 3);
    for (int i = 0; i < ROWS * ENTRIES; i++) { /* no column twice: the order of its entries would matter */
        y[i] = (float)case_random_between(random, -9, -5);
        indices[i] = (int32_t)(i % ENTRIES * (columns / ENTRIES) + case_random_below(random, columns / ENTRIES));
    }
    test_context("bits: variant %d, %s, %d columns", variant, is_half ? "bf16" : "f32", columns);
    const bits_call as_usual = {.handle = handle,
                                .divergence = variant % 2 ? ONEPASS_REVERSE_KL : ONEPASS_KL,
                                .outside = variant / 2 ? ONEPASS_OUTSIDE_SUBSET : ONEPASS_OUTSIDE_TAIL,
                                .is_half = is_half,
                                .rows = ROWS,
                                .columns = columns,
                                .step = 1,
                                .has_gradient = 1,
                                .x = x,
                                .y = y,
                                .indices = indices};
    all = as_usual;
    run_bits(&all);
    b = as_usual, b.has_gradient = 0;
    compare_bits(&b, &all, 0, "by itself");
    b = as_usual, b.shift = 1;
    compare_bits(&b, &all, 0, "one element further");
    b = as_usual, b.step = 2, b.in_place = 1;
    compare_bits(&b, &all, 0, "strided and in place");
    b = as_usual, b.in_place = 1;
    compare_bits(&b, &all, 0, "in place");
    b = as_usual, b.is_reordered = 1;
    compare_bits(&b, &all, 0, "entries in another order");
    for (int row = 1; row < ROWS; row += 2) {
        b = as_usual, b.rows = 1;
        b.x = x + row * columns, b.y = y + row * ENTRIES, b.indices = indices + row * ENTRIES;
        compare_bits(&b, &all, row, "of a row alone");
    }
}

int main(void)
{
    test_begin("test_top_k_cuda");
    onepass_handle *handle = cuda_handle(NULL);
    case_random random = case_random_stream(test_seed(), 1);
    test_rules(handle, &random);
    test_sizes(handle, &random);
    test_widths(handle, &random);
    test_layouts(handle, &random);
    for (int variant = 0; variant < 4; variant++)
        for (int is_half = 0; is_half < 2; is_half++) {
            test_bits(handle, &random, variant, is_half, 97 + is_half);
            test_bits(handle, &random, variant, is_half, is_half ? 9001 : 2051);
            test_bits(handle, &random, variant, is_half, is_half ? 20500 : 18500);
        }
    check_all_ran(handle);
    CHECK(cuda_tickets_are_zero(handle), "a kernel left its ticket");
    onepass_destroy(handle);
    return test_end();
}
