/*
 * KL divergence against the naive formula in long double: every level of the kernel list that runs here, every type,
 * form, reduction, semantics and set of outputs, weights, masks, upstream gradients, layouts, shapes around every block
 * and vector size, in place and empty; gradients against finite differences; exact zeros; small divergences; the two
 * classical mistakes; the same bits for any number of threads.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kl_cases.h"

static uint64_t streams; /* one stream of random numbers a case */
static long cases;

/* Runs a case on its own random numbers. */
static int run(kl_case *c)
{
    c->stream = ++streams;
    cases++;
    return kl_case_check(c);
}

static const unsigned output_sets[] = {
    KL_BIT(KL_VALUE),
    KL_BIT(KL_GRAD_PREDICTIONS),
    KL_BIT(KL_GRAD_TARGETS),
    KL_BIT(KL_VALUE) | KL_BIT(KL_GRAD_PREDICTIONS),
    KL_BIT(KL_VALUE) | KL_BIT(KL_GRAD_TARGETS),
    KL_BIT(KL_GRAD_PREDICTIONS) | KL_BIT(KL_GRAD_TARGETS),
    KL_BIT(KL_VALUE) | KL_BIT(KL_GRAD_PREDICTIONS) | KL_BIT(KL_GRAD_TARGETS),
};
enum { OUTPUT_SETS = sizeof output_sets / sizeof output_sets[0], REDUCTIONS = ONEPASS_DIVISOR + 1 };

/* ---- every combination of what is asked for ---------------------------------------------------------------------- */

static void test_combinations(test_random *random)
{
    for (int form = 0; form < ONEP_KL_FORMS; form++)
        for (int reduction = 0; reduction < REDUCTIONS; reduction++)
            for (int semantics = 0; semantics <= ONEPASS_FINITE; semantics++)
                for (int outputs = 0; outputs < OUTPUT_SETS; outputs++)
                    for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
                        kl_case c = kl_case_plain((onep_kl_form)form, (onep_type)type, 3, 45);
                        c.reduction = (onepass_reduction)reduction;
                        c.divisor = reduction == ONEPASS_DIVISOR ? -2.5 : 0;
                        c.semantics = (onepass_semantics)semantics;
                        c.present = output_sets[outputs];
                        c.data = (kl_data)test_random_below(random, KL_DATA_KINDS);
                        run(&c);
                    }
}

/* ---- everything at random, every pair of choices met ------------------------------------------------------------- */

enum { FACTORS = 16, CHOICES = 16 };
static long pairs_met[FACTORS][CHOICES][FACTORS][CHOICES];

static const struct {
    int ndim;
    int64_t shape[5];
} shapes[] = {
    {0, {0}},       {1, {1}},        {1, {67}},       {2, {1, 1}},          {2, {1, 130}},
    {2, {70, 1}},   {2, {5, 37}},    {2, {17, 16}},   {2, {3, 64}},         {2, {513, 2}},
    {2, {2, 1025}}, {3, {4, 3, 19}}, {3, {2, 1, 33}}, {5, {2, 1, 3, 2, 9}}, {5, {3, 2, 1, 1, 8}},
    {3, {7, 5, 1}},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Lays an output over an input, as far as their types and layouts allow; 0 if it chose not to. */
static int choose_in_place(kl_case *c, test_random *random)
{
    static const int choices[][2] = {{0, 0},
                                     {KL_GRAD_PREDICTIONS, KL_PREDICTIONS},
                                     {KL_GRAD_TARGETS, KL_TARGETS},
                                     {KL_VALUE, KL_PREDICTIONS},
                                     {KL_GRAD_PREDICTIONS, KL_TARGETS},
                                     {KL_GRAD_TARGETS, KL_UPSTREAM}};
    int choice = (int)test_random_below(random, 6);
    int output = choices[choice][0];
    int input = choices[choice][1];
    int given = input <= KL_TARGETS || (c->present & KL_BIT(input));
    if (!output || !(c->present & KL_BIT(output)) || !given || c->layout[input] >= CASE_OUTPUT_LAYOUTS)
        return 0;
    if ((output == KL_VALUE || input == KL_UPSTREAM) && c->reduction != ONEPASS_NONE)
        return 0;
    for (int i = 0; i < KL_TENSORS; i++) /* the same type all over makes every choice legal */
        c->type[i] = c->type[KL_PREDICTIONS];
    c->output_in_place = output;
    c->input_in_place = input;
    return choice;
}

static void test_random_cases(test_random *random, int count)
{
    memset(pairs_met, 0, sizeof pairs_met);
    for (int i = 0; i < count; i++) {
        int form = (int)test_random_below(random, ONEP_KL_FORMS);
        int outputs = (int)test_random_below(random, OUTPUT_SETS);
        int shape = (int)test_random_below(random, SHAPES);
        kl_case c = kl_case_plain((onep_kl_form)form, ONEP_F32, 1, 1);
        kl_case_shuffle(&c, random);
        c.ndim = shapes[shape].ndim;
        memcpy(c.shape, shapes[shape].shape, sizeof shapes[shape].shape);
        c.reduction = (onepass_reduction)test_random_below(random, REDUCTIONS);
        c.divisor = c.reduction == ONEPASS_DIVISOR ? test_random_between(random, 0.5, 100) : 0;
        c.semantics = (onepass_semantics)test_random_below(random, 2);
        c.data = (kl_data)test_random_below(random, KL_DATA_KINDS);
        c.present = output_sets[outputs] | (unsigned)test_random_below(random, 8) << KL_WEIGHTS;
        int in_place = choose_in_place(&c, random);
        run(&c);

        int factors[FACTORS] = {form,
                                outputs,
                                (int)c.reduction,
                                (int)c.semantics,
                                (int)c.data,
                                (int)c.type[KL_PREDICTIONS],
                                (int)c.type[KL_TARGETS],
                                (int)(c.present >> KL_WEIGHTS & 7),
                                (int)c.layout[KL_PREDICTIONS],
                                (int)c.layout[KL_TARGETS],
                                (int)c.layout[KL_GRAD_PREDICTIONS],
                                (int)c.layout[KL_GRAD_TARGETS],
                                (int)c.layout[KL_UPSTREAM],
                                in_place,
                                shape,
                                c.mask_is_bool};
        for (int a = 0; a < FACTORS; a++)
            for (int b = 0; b < FACTORS; b++)
                pairs_met[a][factors[a]][b][factors[b]]++;
    }
    /* A choice was met alone; in a full run it must have been met with every other one that can go with it. */
    static const char *const names[FACTORS] = {"form",
                                               "outputs",
                                               "reduction",
                                               "semantics",
                                               "data",
                                               "prediction type",
                                               "target type",
                                               "options",
                                               "layout of predictions",
                                               "layout of targets",
                                               "layout of grad_predictions",
                                               "layout of grad_targets",
                                               "layout of grad_value",
                                               "in place",
                                               "shape",
                                               "mask type"};
    enum { IN_PLACE = 13 };
    long met = 0;
    for (int a = 0; a < FACTORS; a++)
        for (int x = 0; x < CHOICES; x++)
            for (int b = 0; b < a; b++)
                for (int y = 0; y < CHOICES; y++) {
                    met += pairs_met[a][x][b][y] > 0;
                    if (!test_quick() && a != IN_PLACE && b != IN_PLACE && pairs_met[a][x][a][x] &&
                        pairs_met[b][y][b][y])
                        CHECK(pairs_met[a][x][b][y] > 0, "%s %d was never met with %s %d", names[a], x, names[b], y);
                }
    printf("test_kl: %d random cases met %ld pairs of choices\n", count, met);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Tails of every vector, and both sides of the blocks: 256, 2048 and 32768 elements are cut at inside. */
static void test_lengths(test_random *random)
{
    static const int64_t lengths[] = {255,  256,  257,  511,  512,  513,   1023,  1024,  1025, 2047,
                                      2048, 2049, 4095, 4096, 4097, 32767, 32768, 32769, 65537};
    int count = 70 + (int)(sizeof lengths / sizeof lengths[0]);
    for (int i = 0; i < count; i++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int form = 0; form < ONEP_KL_FORMS; form++) {
                int64_t length = i < 70 ? i + 1 : lengths[i - 70];
                int turn = (form + type + i) % 4 + 4 * ((form + i / 4) % 4);
                if (turn % (length > 4097 && !test_quick() ? 4 : test_one_in(4)) != 0)
                    continue;
                if (test_quick() && length > 1025 && (type + i) % 3 != 0)
                    continue;
                kl_case c = kl_case_plain((onep_kl_form)form, (onep_type)type, length > 4097 ? 1 : 2, length);
                c.reduction = (onepass_reduction)(i % REDUCTIONS);
                c.divisor = c.reduction == ONEPASS_DIVISOR ? 3 : 0;
                c.data = (kl_data)test_random_below(random, KL_DATA_KINDS);
                c.threads = 2;
                for (int k = 0; k < KL_TENSORS; k++)
                    c.guard[k] = i % 2 ? CASE_PAGE_AFTER : CASE_PAGE_BEFORE;
                if (i % 3 == 0) /* gathered in pieces instead of read in place */
                    c.layout[KL_PREDICTIONS] = c.layout[KL_GRAD_TARGETS] = CASE_COLUMN_STEP;
                run(&c);
            }
}

static void test_rows(test_random *random)
{
    static const int64_t rows[] = {1, 2, 3, 17, 511, 512, 513, 1000};
    static const int64_t columns[] = {1, 2, 3, 7, 33};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t k = 0; k < sizeof columns / sizeof columns[0]; k++)
            for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
                if (test_quick() && (i + k + (size_t)reduction) % 3 != 0)
                    continue;
                kl_case c = kl_case_plain((onep_kl_form)test_random_below(random, ONEP_KL_FORMS),
                                          (onep_type)test_random_below(random, ONEP_FLOAT_TYPES), rows[i], columns[k]);
                c.reduction = (onepass_reduction)reduction;
                c.divisor = reduction == ONEPASS_DIVISOR ? 7 : 0;
                c.data = (kl_data)test_random_below(random, KL_DATA_KINDS);
                c.present |= (unsigned)test_random_below(random, 8) << KL_WEIGHTS;
                c.threads = 3;
                run(&c);
            }
    /* Rows long enough to be cut into parts, whose sums are put together again. */
    for (int reduction = 0; reduction < REDUCTIONS; reduction += test_quick() ? 2 : 1) {
        kl_case c = kl_case_plain((onep_kl_form)test_random_below(random, ONEP_KL_FORMS), ONEP_F32, 2, 66001);
        c.reduction = (onepass_reduction)reduction;
        c.divisor = reduction == ONEPASS_DIVISOR ? 7 : 0;
        c.present = KL_BIT(KL_VALUE) | KL_BIT(KL_WEIGHTS);
        c.threads = 3;
        run(&c);
    }
    /* One long row, and one long column; cut into blocks for threads. */
    for (int form = 0; form < ONEP_KL_FORMS; form++)
        for (int tall = 0; tall < 2; tall++) {
            kl_case c = kl_case_plain((onep_kl_form)form, (onep_type)test_random_below(random, ONEP_FLOAT_TYPES),
                                      tall ? 100003 : 1, tall ? 1 : 100003);
            c.reduction = (onepass_reduction)test_random_below(random, REDUCTIONS - 1);
            c.present |= KL_BIT(KL_WEIGHTS);
            c.threads = 3;
            if (!test_quick() || form == ONEP_KL_PROBS_PROBS)
                run(&c);
        }
}

static void test_ranks(test_random *random)
{
    for (int round = 0; round < (test_quick() ? 8 : 48); round++) {
        kl_case c = kl_case_plain((onep_kl_form)(round % ONEP_KL_FORMS), ONEP_F32, 1, 1);
        kl_case_shuffle(&c, random);
        c.present |= (unsigned)test_random_below(random, 8) << KL_WEIGHTS;
        c.reduction = (onepass_reduction)(round % ONEPASS_DIVISOR);
        c.ndim = CASE_MAX_RANK; /* ones, with a few real dimensions among them */
        for (int d = 0; d < c.ndim; d++)
            c.shape[d] = 1;
        for (int k = 0; k < 5; k++)
            c.shape[test_random_below(random, c.ndim)] = 2 + test_random_below(random, 3);
        run(&c);
    }
}

/* Every pair of input layouts, in three dimensions, with outputs of all kinds. */
static void test_layouts(test_random *random)
{
    for (int p = 0; p < CASE_LAYOUTS; p++)
        for (int t = 0; t < CASE_LAYOUTS; t++) {
            kl_case c = kl_case_plain((onep_kl_form)test_random_below(random, ONEP_KL_FORMS),
                                      (onep_type)test_random_below(random, ONEP_FLOAT_TYPES), 1, 1);
            c.ndim = 3;
            c.shape[0] = 4;
            c.shape[1] = 5;
            c.shape[2] = 67;
            c.layout[KL_PREDICTIONS] = (case_layout)p;
            c.layout[KL_TARGETS] = (case_layout)t;
            for (int i = KL_VALUE; i < KL_TENSORS; i++)
                c.layout[i] = (case_layout)test_random_below(random, CASE_OUTPUT_LAYOUTS);
            c.reduction = (onepass_reduction)test_random_below(random, REDUCTIONS - 1);
            c.shift[KL_PREDICTIONS] = c.shift[KL_GRAD_TARGETS] = (size_t)(p + t) % 2;
            run(&c);
        }
}

/* All but one tensor lie ready for the vector loops; that one is strided or of another type. Rows are longer than any
 * buffer it is gathered into. */
static void test_one_odd(test_random *random)
{
    for (int odd = 0; odd < KL_TENSORS; odd++)
        for (int type = 0; type < ONEP_FLOAT_TYPES && odd != KL_MADE_FOR; type++)
            for (int strided = 0; strided < 2; strided++)
                for (int reduction = ONEPASS_SUM; reduction <= ONEPASS_NONE; reduction++) {
                    if (test_quick() && (odd + type + strided + reduction) % 3 != 0)
                        continue;
                    kl_case c = kl_case_plain((onep_kl_form)test_random_below(random, ONEP_KL_FORMS), (onep_type)type,
                                              2, 2100 + test_random_below(random, 64));
                    c.reduction = (onepass_reduction)reduction;
                    c.present |= odd == KL_WEIGHTS || odd == KL_MASK || odd == KL_UPSTREAM ? KL_BIT(odd) : 0;
                    if (strided)
                        c.layout[odd] = test_random_below(random, 2) ? CASE_COLUMN_STEP : CASE_NEGATIVE_COLUMNS;
                    else
                        c.type[odd] = odd == KL_VALUE ? ONEP_F64 : (onep_type)((type + 1) % ONEP_FLOAT_TYPES);
                    if (odd <= KL_TARGETS)
                        c.type[KL_VALUE] = onep_promote(c.type[KL_PREDICTIONS], c.type[KL_TARGETS]);
                    run(&c);
                }
}

/* ---- nothing there ----------------------------------------------------------------------------------------------- */

static void test_empty(void)
{
    static const int64_t empty[][3] = {{0, 5, -1}, {4, 0, -1}, {0, 0, -1}, {0, -1, -1},
                                       {3, 0, 7},  {0, 3, 7},  {3, 7, 0}};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
        for (int form = 0; form < ONEP_KL_FORMS; form++)
            for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
                for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
                    kl_case c = kl_case_plain((onep_kl_form)form, (onep_type)type, 0, 0);
                    for (c.ndim = 0; c.ndim < 3 && empty[i][c.ndim] >= 0; c.ndim++)
                        c.shape[c.ndim] = empty[i][c.ndim];
                    c.reduction = (onepass_reduction)reduction;
                    c.divisor = reduction == ONEPASS_DIVISOR ? 4 : 0;
                    c.present |= (unsigned)(type & 1 ? KL_BIT(KL_WEIGHTS) | KL_BIT(KL_MASK) : 0);
                    c.layout[KL_PREDICTIONS] = (case_layout)(form % 2 ? CASE_FORTRAN : CASE_COMPACT);
                    run(&c);
                }

    /* The same in words, with the expected numbers written down. */
    static const struct {
        int64_t shape[2];
        onepass_reduction reduction;
        double expected;
    } lines[] = {
        {{0, 5}, ONEPASS_SUM, 0},       {{0, 5}, ONEPASS_MEAN, NAN}, {{0, 5}, ONEPASS_BATCHMEAN, NAN},
        {{0, 5}, ONEPASS_DIVISOR, 0},   {{4, 0}, ONEPASS_SUM, 0},    {{4, 0}, ONEPASS_MEAN, NAN},
        {{4, 0}, ONEPASS_BATCHMEAN, 0}, {{4, 0}, ONEPASS_ROWS, 0},   {{4, 0}, ONEPASS_DIVISOR, 0},
    };
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!onep_level_runs((onep_level)level))
            continue;
        onepass_handle *handle = test_handle((onep_level)level, 2);
        for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
            int64_t shape[] = {lines[i].shape[0], lines[i].shape[1]};
            double value[4] = {5, 5, 5, 5};
            onepass_tensor nothing = kl_tensor(ONEP_F32, NULL, 2, shape);
            onepass_tensor v = kl_tensor(ONEP_F64, value, lines[i].reduction == ONEPASS_ROWS, shape);
            onepass_kl_options options = {.size = sizeof options,
                                          .reduction = lines[i].reduction,
                                          .divisor = lines[i].reduction == ONEPASS_DIVISOR ? 4 : 0};
            onepass_status status = onepass_kl_probs_probs(handle, &nothing, &nothing, &options, &v, NULL, NULL);
            test_context("level %s, shape %" PRId64 " x %" PRId64 ", %s", onep_level_name((onep_level)level), shape[0],
                         shape[1], kl_reduction_name(lines[i].reduction));
            CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
            for (int k = 0; k < (lines[i].reduction == ONEPASS_ROWS ? 4 : 1); k++)
                CHECK(test_close(value[k], lines[i].expected, 0), "value %g, expected %g", value[k], lines[i].expected);
        }
        onepass_destroy(handle);
    }
}

/* Masked rows are never read and give exactly 0; all rows masked give 0 whatever they hold. */
static void test_masked(test_random *random)
{
    for (int form = 0; form < ONEP_KL_FORMS; form++)
        for (int reduction = 0; reduction < REDUCTIONS; reduction++)
            for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
                for (int all = 0; all < 2; all++) {
                    kl_case c = kl_case_plain((onep_kl_form)form, (onep_type)type, 19, 21);
                    c.reduction = (onepass_reduction)reduction;
                    c.divisor = reduction == ONEPASS_DIVISOR ? 7 : 0;
                    c.semantics = (onepass_semantics)test_random_below(random, 2);
                    c.present |= KL_BIT(KL_MASK) | KL_BIT(KL_WEIGHTS) | KL_BIT(KL_UPSTREAM);
                    c.mask_all = all;
                    c.mask_is_bool = type % 2;
                    run(&c);
                }
}

/* ---- exactly 0 --------------------------------------------------------------------------------------------------- */

/* Targets equal to predictions: the value is 0 to the last bit, element by element and in every sum. */
static void test_equal_inputs(test_random *random)
{
    enum { ROWS = 3, COLUMNS = 300 };
    static double memory[ROWS * COLUMNS], value[ROWS * COLUMNS];
    static const onep_kl_form equal_forms[] = {ONEP_KL_PROBS_PROBS, ONEP_KL_LOG_PROBS_LOG_PROBS};
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!onep_level_runs((onep_level)level))
            continue;
        onepass_handle *handle = test_handle((onep_level)level, 1);
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int which = 0; which < 2; which++)
                for (int reduction = 0; reduction <= ONEPASS_NONE; reduction++) {
                    int64_t shape[] = {ROWS, COLUMNS};
                    size_t size = onep_type_size((onep_type)type);
                    for (size_t i = 0; i < ROWS * COLUMNS;
                         i++) /* e^-69 to e^11; below in fp16, where it is subnormal */
                        onep_store((onep_type)type, (char *)memory + i * size,
                                   which ? test_random_between(random, -80, 5)
                                         : exp(test_random_between(random, type == ONEP_F16 ? -13 : -69, 11)));
                    onepass_tensor t = kl_tensor((onep_type)type, memory, 2, shape);
                    int rank = reduction == ONEPASS_NONE ? 2 : reduction == ONEPASS_ROWS ? 1 : 0;
                    onepass_tensor v = kl_tensor((onep_type)type, value, rank, shape);
                    onepass_kl_options options = {.size = sizeof options, .reduction = (onepass_reduction)reduction};
                    memset(value, 0xff, sizeof value);
                    onepass_status status = kl_entry_of(equal_forms[which])(handle, &t, &t, &options, &v, NULL, NULL);
                    test_context("level %s, %s, %s, %s, equal inputs", onep_level_name((onep_level)level),
                                 kl_form_name(equal_forms[which]), onep_type_name((onep_type)type),
                                 kl_reduction_name((onepass_reduction)reduction));
                    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
                    size_t count = rank == 2 ? ROWS * COLUMNS : rank == 1 ? ROWS : 1;
                    for (size_t i = 0; i < count; i++) {
                        double got = onep_load((onep_type)type, (char *)value + i * size);
                        CHECK(got == 0, "value[%zu] is %g at %g, expected 0", i, got,
                              onep_load((onep_type)type, (char *)memory + i * size));
                    }
                }
        onepass_destroy(handle);
    }
}

/* ---- whole answers ----------------------------------------------------------------------------------------------- */

static double one_value(onepass_handle *handle, onep_kl_form form, onep_type type, void *p, void *t, int64_t rows,
                        int64_t columns, const onepass_kl_options *options)
{
    int64_t shape[] = {rows, columns};
    double value = NAN;
    onepass_tensor predictions = kl_tensor(type, p, 2, shape);
    onepass_tensor targets = kl_tensor(type, t, 2, shape);
    onepass_tensor v = kl_tensor(ONEP_F64, &value, 0, NULL);
    onepass_status status = kl_entry_of(form)(handle, &predictions, &targets, options, &v, NULL, NULL);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    return value;
}

/* The direction and the divisor: the right value, the reversed one and the one divided by the columns too are far
 * apart. */
static void test_classical_mistakes(void)
{
    const double right = 1.4939989395879258;
    const double reversed = 1.0805143392290746;
    double p[] = {0.95, 0.04, 0.01, 0.25, 0.25, 0.5};
    double t[] = {0.1, 0.3, 0.6, 0.5, 0.125, 0.375};
    double log_p[6];
    double log_t[6];
    for (int i = 0; i < 6; i++) {
        log_p[i] = log(p[i]);
        log_t[i] = log(t[i]);
    }
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!onep_level_runs((onep_level)level))
            continue;
        onepass_handle *handle = test_handle((onep_level)level, 1);
        for (int form = 0; form < ONEP_KL_FORMS; form++) {
            double got = one_value(handle, (onep_kl_form)form, ONEP_F64, ONEP_KL_LOG_PREDICTIONS(form) ? log_p : p,
                                   ONEP_KL_LOG_TARGETS(form) ? log_t : t, 2, 3, NULL);
            test_context("level %s, %s, batchmean by default", onep_level_name((onep_level)level),
                         kl_form_name((onep_kl_form)form));
            CHECK(test_close(got, right, 4e-15L), "got %.17g, expected %.17g", got, right);
            CHECK(!test_close(got, reversed, 0.3L), "the direction is reversed");
            CHECK(!test_close(got, right / 3, 0.5L), "divided by the columns too");
        }
        onepass_destroy(handle);
    }
}

/* Gradients against central differences of the library's own value, in double. */
static void test_finite_differences(test_random *random)
{
    enum { ROWS = 3, COLUMNS = 11, COUNT = ROWS * COLUMNS };
    /* Truncation is below 1e-9 where inputs are 0.05 and more, rounding about 1e-15 / step. */
    const double relative_step = 1e-5;
    const double least_step = 5e-7;
    const long double tolerance = 1e-7L;
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (int form = 0; form < ONEP_KL_FORMS; form++) {
            if (!onep_level_runs((onep_level)level))
                continue;
            onepass_handle *handle = test_handle((onep_level)level, 1);
            double inputs[2][COUNT];
            double gradients[2][COUNT];
            double weights[ROWS] = {1.5, -0.5, 2};
            unsigned char mask[ROWS] = {1, 1, (unsigned char)(form % 2)};
            double upstream = 1.75;
            double value;
            for (int i = 0; i < COUNT; i++)
                for (int k = 0; k < 2; k++) {
                    double x = test_random_between(random, 0.05, 1);
                    int is_log = k == 0 ? ONEP_KL_LOG_PREDICTIONS(form) : ONEP_KL_LOG_TARGETS(form);
                    inputs[k][i] = is_log ? log(x) : x;
                }
            int64_t shape[] = {ROWS, COLUMNS};
            onepass_tensor p = kl_tensor(ONEP_F64, inputs[0], 2, shape);
            onepass_tensor t = kl_tensor(ONEP_F64, inputs[1], 2, shape);
            onepass_tensor gp = kl_tensor(ONEP_F64, gradients[0], 2, shape);
            onepass_tensor gt = kl_tensor(ONEP_F64, gradients[1], 2, shape);
            onepass_tensor v = kl_tensor(ONEP_F64, &value, 0, NULL);
            onepass_tensor w = kl_tensor(ONEP_F64, weights, 1, shape);
            onepass_tensor m = kl_tensor(ONEP_BYTE, mask, 1, shape);
            onepass_tensor up = kl_tensor(ONEP_F64, &upstream, 0, NULL);
            onepass_kl_options options = {.size = sizeof options,
                                          .reduction = (onepass_reduction)(form % 3),
                                          .row_weights = &w,
                                          .row_mask = &m,
                                          .grad_value = &up};
            test_context("level %s, %s, finite differences", onep_level_name((onep_level)level),
                         kl_form_name((onep_kl_form)form));
            CHECK(kl_entry_of((onep_kl_form)form)(handle, &p, &t, &options, &v, &gp, &gt) == ONEPASS_OK, "%s",
                  onepass_last_error());
            for (int i = 0; i < 2 * COUNT; i++) {
                double *x = &inputs[i / COUNT][i % COUNT];
                double kept = *x;
                double step = fmax(relative_step * fabs(kept), least_step);
                *x = kept + step;
                double above =
                    one_value(handle, (onep_kl_form)form, ONEP_F64, inputs[0], inputs[1], ROWS, COLUMNS, &options);
                *x = kept - step;
                double below =
                    one_value(handle, (onep_kl_form)form, ONEP_F64, inputs[0], inputs[1], ROWS, COLUMNS, &options);
                *x = kept;
                double slope = upstream * (above - below) / (2 * step);
                double got = gradients[i / COUNT][i % COUNT];
                CHECK(test_close(got, slope, tolerance * (1 + fabsl((long double)slope))),
                      "%s[%d] is %.12g, differences give %.12g", i < COUNT ? "grad_predictions" : "grad_targets",
                      i % COUNT, got, slope);
            }
            onepass_destroy(handle);
        }
}

/* Rows that differ by little: the digits of a small divergence survive fp32. */
static void test_small_divergences(test_random *random)
{
    enum { ROWS = 4, COLUMNS = 16384, COUNT = ROWS * COLUMNS };
    static const double sizes[] = {0.19, 0.0219, 0.00219, 0.000387}; /* KL is about size^2 / 6 */
    static float p[COUNT], t[COUNT];
    for (int k = 0; k < 4; k++) {
        long double exact = 0;
        for (int row = 0; row < ROWS; row++) {
            static double a[COLUMNS], b[COLUMNS];
            double sum_a = 0;
            double sum_b = 0;
            for (int i = 0; i < COLUMNS; i++) {
                a[i] = exp(test_random_unit(random));
                b[i] = a[i] * (1 + sizes[k] * test_random_between(random, -1, 1));
                sum_a += a[i];
                sum_b += b[i];
            }
            for (int i = 0; i < COLUMNS; i++) {
                p[row * COLUMNS + i] = (float)(a[i] / sum_a);
                t[row * COLUMNS + i] = (float)(b[i] / sum_b);
                long double difference = (long double)t[row * COLUMNS + i] - (long double)p[row * COLUMNS + i];
                exact += (long double)t[row * COLUMNS + i] * log1pl(difference / (long double)p[row * COLUMNS + i]);
            }
        }
        exact /= ROWS;
        test_context("small divergences");
        CHECK(exact > 0 && exact < 1e-2L, "the exact value is %Lg", exact);
        printf("test_kl: KL %.2Le in fp32, relative error", exact);
        for (int level = 0; level < ONEP_LEVELS; level++) {
            if (!onep_level_runs((onep_level)level))
                continue;
            onepass_handle *handle = test_handle((onep_level)level, 2);
            double got = one_value(handle, ONEP_KL_PROBS_PROBS, ONEP_F32, p, t, ROWS, COLUMNS, NULL);
            long double error = fabsl((long double)got - exact) / exact;
            printf(" %s %.1Le", onep_level_name((onep_level)level), error);
            CHECK(error <= kl_small_error(), "level %s: got %.12g, expected %.12Lg, relative error %.2Lg, allowed %g",
                  onep_level_name((onep_level)level), got, exact, error, kl_small_error());
            onepass_destroy(handle);
        }
        printf("\n");
    }
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

/* Any number of threads, and every repetition, gives the bits of the first call with one thread. */
static void test_determinism(test_random *random)
{
    enum { ROWS = 150, COLUMNS = 1111, COUNT = ROWS * COLUMNS };
    static const int32_t threads[] = {1, 2, 3, 7};
    static float p[COUNT], t[COUNT];
    static float results[2][3 * COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = (float)test_random_between(random, 1e-4, 1);
        t[i] = (float)test_random_between(random, 1e-4, 1);
    }
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
            if (!onep_level_runs((onep_level)level))
                continue;
            int repeats = test_quick() || level == ONEP_REF ? 2 : 20;
            int handles = level == ONEP_REF ? 1 : 4; /* the reference has one thread only */
            int64_t shape[] = {ROWS, COLUMNS};
            onepass_tensor predictions = kl_tensor(ONEP_F32, p, 2, shape);
            onepass_tensor targets = kl_tensor(ONEP_F32, t, 2, shape);
            int rank = reduction == ONEPASS_NONE ? 2 : reduction == ONEPASS_ROWS ? 1 : 0;
            onepass_kl_options options = {.size = sizeof options,
                                          .reduction = (onepass_reduction)reduction,
                                          .divisor = reduction == ONEPASS_DIVISOR ? 3 : 0};
            for (int k = 0; k < handles; k++) {
                onepass_handle *handle = test_handle((onep_level)level, threads[k]);
                for (int repeat = 0; repeat < repeats; repeat++) {
                    float *result = results[k + repeat > 0];
                    memset(result, repeat % 2 ? 0xff : 0, sizeof results[0]);
                    for (size_t i = rank == 2 ? COUNT : rank == 1 ? ROWS : 1; i < COUNT; i++)
                        result[i] = 0;
                    onepass_tensor v = kl_tensor(ONEP_F32, result, rank, shape);
                    onepass_tensor gp = kl_tensor(ONEP_F32, result + COUNT, 2, shape);
                    onepass_tensor gt = kl_tensor(ONEP_F32, result + 2 * COUNT, 2, shape);
                    onepass_status status =
                        onepass_kl_probs_probs(handle, &predictions, &targets, &options, &v, &gp, &gt);
                    test_context("level %s, %s, %d threads, repetition %d", onep_level_name((onep_level)level),
                                 kl_reduction_name((onepass_reduction)reduction), (int)threads[k], repeat);
                    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
                    CHECK(memcmp(results[0], result, sizeof results[0]) == 0, "bits differ from the first call's");
                }
                onepass_destroy(handle);
            }
        }
}

int main(void)
{
    test_begin("test_kl");
    test_print_levels();
    test_random random = test_random_stream(0);
    test_classical_mistakes();
    test_equal_inputs(&random);
    test_finite_differences(&random);
    test_small_divergences(&random);
    test_empty();
    test_masked(&random);
    test_combinations(&random);
    test_lengths(&random);
    test_rows(&random);
    test_ranks(&random);
    test_layouts(&random);
    test_one_odd(&random);
    test_random_cases(&random, 6000 / test_one_in(20));
    test_determinism(&random);
    printf("test_kl: %ld cases at each level\n", cases);
    kl_print_worst();
    return test_end();
}
