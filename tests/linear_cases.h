/*
 * What tests of losses from hidden states share: cases of any of them, held to their exact results by every level, and
 * to each other's bits over chunks, threads and what else is asked for; and tensors for calls of several operators.
 */
#ifndef ONEP_TESTS_LINEAR_CASES_H
#define ONEP_TESTS_LINEAR_CASES_H

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/linear_loss.h"
#include "level_cases.h"

static inline onepass_dtype type_at(int64_t i)
{
    const onepass_dtype types[] = {case_f32, case_bf16, case_f64, case_f16};
    return types[i % 4];
}

/* Everything is given; a teacher is less deep by a third, or one deeper. */
static inline void begin_case(op_case *c, const char *name, onepass_dtype type, int64_t rows, int64_t depth,
                              int64_t columns, int family, int amount, uint64_t seed)
{
    case_begin(c, name);
    c->leading[0] = rows;
    c->extents['K' - 'A'] = depth;
    c->extents['L' - 'A'] = seed % 2 ? depth + 1 : depth - depth / 3;
    c->extents['C' - 'A'] = columns;
    c->family = family;
    c->amount = amount;
    c->seed = seed;
    for (int i = 0; i < c->arguments; i++) {
        c->argument[i].given = i != LOGITS_MADE_FOR;
        if (case_is_float(c->argument[i].dtype))
            c->argument[i].dtype = type;
    }
    c->options[LOGITS_REDUCTION] = (double)(seed / 43 % 7);
    if (case_option_named(c, "divergence") >= 0)
        c->options[LOGITS_DIVERGENCE] = (double)(seed / 301 % 6);
}

/* ---- against exact results --------------------------------------------------------------------------------------- */

/* Every reduction, family and type, without options and with them. */
static inline void check_options(const char *name, test_random *random)
{
    static op_case c;
    for (int reduction = 0; reduction <= ONEPASS_VALID; reduction++)
        for (int family = 0; family <= LINEAR_LOSS_SPECIAL; family++)
            for (int i = 0; i < 8; i++) {
                begin_case(&c, name, type_at(i), 9, 1 + test_random_below(random, 24),
                           1 + test_random_below(random, 40), family, i / 4 ? 50 : 0, test_random_bits(random));
                c.options[LOGITS_REDUCTION] = reduction;
                c.options[LOGITS_SEMANTICS] = i % 2;
                c.options[LOGITS_HAS_IGNORE_INDEX] = i / 2 % 2;
                case_settle(&c);
                check_everywhere(&c);
            }
}

/* Extents around vectors, panels and strips, and 0 and 1 of everything. */
static inline void check_sizes(const char *name, test_random *random)
{
    static const int64_t extents[] = {0, 1, 2, 5, 12, 13, 31, 33, 64, 65, 130};
    enum { EXTENTS = sizeof extents / sizeof extents[0] };
    static op_case c;
    for (int i = 0; i < 160 / test_one_in(3); i++) {
        begin_case(&c, name, type_at(i), extents[test_random_below(random, EXTENTS)],
                   extents[test_random_below(random, EXTENTS)], extents[test_random_below(random, EXTENTS)],
                   (int)test_random_below(random, LINEAR_LOSS_DATA_KINDS), 50, test_random_bits(random));
        for (int a = 0; a < c.arguments; a++)
            c.argument[a].guard = i % 2 ? CASE_PAGE_AFTER : CASE_PAGE_BEFORE;
        case_settle(&c);
        check_everywhere(&c);
    }
}

/* Any layout, alignment, rank and mixture of types, and any choice of what is wanted. */
static inline void check_layouts(const char *name, test_random *random)
{
    static op_case c;
    for (int i = 0; i < 160 / test_one_in(3); i++) {
        begin_case(&c, name, case_f32, 4, 1 + test_random_below(random, 40), 1 + test_random_below(random, 70),
                   (int)test_random_below(random, LINEAR_LOSS_SPECIAL + 1), 50, test_random_bits(random));
        c.leading_rank = i % 4;
        for (int d = 0; d < c.leading_rank; d++)
            c.leading[d] = 1 + test_random_below(random, 4);
        case_shuffle(&c, random);
        for (int a = 0; a < c.arguments; a++)
            if (!c.argument[a].info->is_required)
                c.argument[a].given = test_random_below(random, 3) > 0;
        c.argument[LOGITS_MADE_FOR].given = i % 5 == 0;
        case_settle(&c);
        check_everywhere(&c);
    }
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* A result of two cases, element by element. */
static inline void same_bits(const op_case *one, const op_case *other, int argument)
{
    for (int64_t k = 0; k < one->argument[argument].count && one->argument[argument].given; k++) {
        double x = case_get(one, argument, k), y = case_get(other, argument, k);
        if (!CHECK(x == y || (isnan(x) && isnan(y)), "%s[%" PRId64 "]: %.17g and %.17g",
                   one->argument[argument].info->name, k, x, y))
            return;
    }
}

static inline void call_well(op_case *c, onepass_handle *handle, int poison)
{
    onepass_status status = ONEPASS_OK;
    case_call(c, handle, poison, &test_judge, &status);
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
}

/* The same case, its numbers and what is given, laid out in memory of its own. */
static inline void copy_case(op_case *to, const op_case *from)
{
    case_begin(to, from->name);
    to->family = from->family;
    to->seed = from->seed;
    memcpy(to->options, from->options, sizeof to->options);
    memcpy(to->extents, from->extents, sizeof to->extents);
    to->leading[0] = from->leading[0];
    for (int a = 0; a < from->arguments; a++) {
        to->argument[a].given = from->argument[a].given;
        to->argument[a].dtype = from->argument[a].dtype;
    }
}

/* The arguments that a case writes. */
static inline int written_of(const op_case *c, int *to)
{
    int count = 0;
    for (int a = 0; a < c->arguments; a++)
        if (c->argument[a].given && case_is_written(c, a))
            to[count++] = a;
    return count;
}

/*
 * `c`, in as many chunks as can be, against the exact results at every level; then against the bits of two tiles a
 * chunk, of one chunk, of other numbers of threads, and of calls for each result alone.
 */
static inline void check_chunks_of(op_case *c, double two_tiles)
{
    static op_case other;
    int results[CASE_MAX_ARGUMENTS], grad_weight = case_argument_named(c, "grad_weight");
    int chunk_bytes = case_option_named(c, "chunk_bytes");
    c->options[chunk_bytes] = 1;
    check_everywhere(c);
    int count = written_of(c, results);
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!handles[level])
            continue;
        call_well(c, handles[level], 0x11);
        for (int way = 0; way < 2 + count; way++) {
            copy_case(&other, c);
            for (int r = 0; r < count && way >= 2; r++) /* one result alone, in chunks as before */
                other.argument[results[r]].given = r == way - 2;
            if (way < 2)
                other.options[chunk_bytes] = way ? 0 : two_tiles;
            CHECK(case_make(&other), "no memory");
            test_context("level %s, %s, %" PRId64 " rows, way %d", onep_level_name((onep_level)level), c->name,
                         c->leading[0], way);
            onepass_handle *handle = test_handle((onep_level)level, 1 + way % 3);
            call_well(&other, handle, 0x22);
            onepass_destroy(handle);
            for (int r = 0; r < count; r++)
                if (other.argument[results[r]].given && (way >= 2 || results[r] != grad_weight))
                    same_bits(c, &other, results[r]);
        }
    }
}

/* Rows for many tiles. A quick run takes some of the six kinds, others every time. */
static inline void check_chunks(const char *name, test_random *random)
{
    static const int64_t some_rows[] = {265, 700, 1064};
    static op_case c;
    int kinds = 6 / test_one_in(2), first = (int)test_random_below(random, 6);
    for (int i = 0; i < (kinds > 0 ? kinds : 1); i++) {
        int kind = (first + i) % 6;
        int64_t columns = 20 + test_random_below(random, 20);
        begin_case(&c, name, type_at(kind + kind / 4), some_rows[kind % 3], 9, columns, kind % LINEAR_LOSS_DATA_KINDS,
                   50, test_random_bits(random));
        c.options[LOGITS_REDUCTION] = kind % 2 ? ONEPASS_ROWS : ONEPASS_VALID;
        case_settle(&c);
        check_chunks_of(&c, 528 * 4 * (double)(columns + 9 + 32));
    }
}

/* ---- calls of several operators ---------------------------------------------------------------------------------- */

static inline onepass_tensor tensor_of(void *data, onepass_dtype type, int32_t ndim, int64_t *shape)
{
    return (onepass_tensor){.data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = type, .shape = shape};
}

/* The numbers of an argument as a tensor of another type in memory of its own. */
static inline onepass_tensor copy_of(const op_case *c, int argument, onepass_dtype type)
{
    const case_argument *a = &c->argument[argument];
    onepass_tensor copy = a->tensor;
    copy.dtype = type;
    copy.strides = NULL;
    copy.byte_offset = 0;
    copy.data = malloc((size_t)a->count * case_size(type) + 1);
    for (int64_t k = 0; copy.data && k < a->count; k++)
        case_store(type, (char *)copy.data + (size_t)k * case_size(type), case_was(c, argument, k));
    return copy;
}

static inline onepass_tensor room_for(onepass_dtype type, int32_t ndim, int64_t *shape)
{
    size_t elements = 1;
    for (int d = 0; d < ndim; d++)
        elements *= (size_t)shape[d];
    return tensor_of(malloc(elements * case_size(type) + 1), type, ndim, shape);
}

/* What was computed in a type, rounded to that of the result, is the result. */
static inline void same_as(const op_case *c, int argument, const onepass_tensor *computed)
{
    const case_argument *a = &c->argument[argument];
    for (int64_t k = 0; k < a->count; k++) {
        double x = case_load(computed->dtype, (const char *)computed->data + (size_t)k * case_size(computed->dtype));
        char stored[8];
        case_store(a->dtype, stored, x);
        x = case_load(a->dtype, stored);
        if (!CHECK(x == case_get(c, argument, k), "%s[%" PRId64 "] is %.17g, other calls give %.17g", a->info->name, k,
                   case_get(c, argument, k), x))
            return;
    }
}

/* onepass_linear, and onepass_linear_backward. */
static inline void multiply(onepass_handle *handle, const onepass_tensor *x, const onepass_tensor *w,
                            const onepass_tensor *b, const onepass_tensor *to)
{
    size_t bytes = 0;
    CHECK(onepass_linear_workspace_size(handle, x, w, &bytes) == ONEPASS_OK, "%s", onepass_last_error());
    void *workspace = malloc(bytes + 1);
    CHECK(onepass_linear(handle, x, w, b, to, workspace, bytes) == ONEPASS_OK, "%s", onepass_last_error());
    free(workspace);
}

static inline void multiply_back(onepass_handle *handle, const onepass_tensor *gradient, const onepass_tensor *x,
                                 const onepass_tensor *w, const onepass_tensor *dx, const onepass_tensor *dw,
                                 const onepass_tensor *db)
{
    size_t bytes = 0;
    CHECK(onepass_linear_workspace_size(handle, x, w, &bytes) == ONEPASS_OK, "%s", onepass_last_error());
    void *workspace = malloc(bytes + 1);
    CHECK(onepass_linear_backward(handle, gradient, x, w, dx, dw, db, workspace, bytes) == ONEPASS_OK, "%s",
          onepass_last_error());
    free(workspace);
}

static inline int all_are(const double *numbers, int count, double x)
{
    for (int i = 0; i < count; i++)
        if (!(numbers[i] == x || (isnan(x) && isnan(numbers[i]))))
            return 0;
    return 1;
}

#endif
