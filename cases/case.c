/* Cases in memory: from the operator's description to tensors full of numbers. See case.h. */
#include "cases/case.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const case_layout_names[CASE_LAYOUTS] = {"compact",     "row-major",     "padded",           "fortran",
                                                     "column step", "negative rows", "negative columns", "negative all",
                                                     "rotated",     "repeated rows", "repeated columns", "repeated"};

static const case_definition *const definitions[] = {&case_kl,
                                                     &case_logits,
                                                     &case_token,
                                                     &case_linear,
                                                     &case_linear_backward,
                                                     &case_linear_loss,
                                                     &case_linear_token,
                                                     &case_head,
                                                     &case_head_backward,
                                                     &case_prepare_weight,
                                                     &case_head_statistics,
                                                     &case_head_synchronised,
                                                     &case_head_backward_sums,
                                                     &case_shard_states,
                                                     &case_shard_merge,
                                                     &case_shard_sums,
                                                     &case_shard_merge_sums,
                                                     &case_shard_loss,
                                                     &case_shard_token};

static const case_definition *definition_of(const char *name)
{
    for (size_t i = 0; i < sizeof definitions / sizeof definitions[0]; i++)
        for (const char *const *known = definitions[i]->names; *known; known++)
            if (strcmp(*known, name) == 0)
                return definitions[i];
    return NULL;
}

/* ---- saying what it is ------------------------------------------------------------------------------------------- */

int case_begin(op_case *c, const char *operator_name)
{
    c->op = onepass_operator_named(operator_name);
    c->definition = c->op ? definition_of(operator_name) : NULL;
    if (!c->definition)
        return 0;
    c->name = onepass_operator_name(c->op);
    c->arguments = c->option_count = c->leading_rank = c->is_scalar = c->family = c->entry_carries = 0;
    c->amount = 0;
    c->seed = 0;
    c->entry = NULL;
    memset(c->options, 0, sizeof c->options);
    memset(c->extents, 0, sizeof c->extents);
    const onepass_argument_info *info;
    for (; (info = onepass_operator_argument(c->op, c->arguments)); c->arguments++) {
        case_argument *a = &c->argument[c->arguments];
        a->info = info;
        a->given = info->is_required;
        a->dtype = case_f32;
        a->layout = CASE_COMPACT;
        a->guard = CASE_BANDS;
        a->shift = 0;
        a->is_one = a->over = 0;
        a->worst = 0;
    }
    while (onepass_operator_option(c->op, c->option_count))
        c->option_count++;
    c->definition->begin(c);
    return 1;
}

/* Whether `name` is `full`, or what comes after its point. */
static int is_name(const char *full, const char *name)
{
    const char *point = strrchr(full, '.');
    return strcmp(full, name) == 0 || (point && strcmp(point + 1, name) == 0);
}

int case_argument_named(const op_case *c, const char *name)
{
    for (int pass = 0; pass < 2; pass++) /* "input" is rather itself than "gradients.input" */
        for (int i = 0; i < c->arguments; i++)
            if (pass ? is_name(c->argument[i].info->name, name) : strcmp(c->argument[i].info->name, name) == 0)
                return i;
    return -1;
}

int case_option_named(const op_case *c, const char *name)
{
    for (int i = 0; i < c->option_count; i++)
        if (is_name(onepass_operator_option(c->op, i)->name, name))
            return i;
    return -1;
}

const char *case_shape_of(const op_case *c, int argument)
{
    const char *shape = c->argument[argument].info->shape;
    return shape ? shape : c->definition->shape(c, argument);
}

int case_is_written(const op_case *c, int argument)
{
    switch (c->argument[argument].info->role) {
    case ONEPASS_WRITTEN:
        return 1;
    case ONEPASS_UPDATED:
        return !c->definition->is_read || !c->definition->is_read(c, argument);
    default:
        return 0;
    }
}

int64_t case_rows(const op_case *c)
{
    int64_t rows = 1;
    for (int d = 0; d < c->leading_rank; d++)
        rows *= c->leading[d];
    return rows;
}

void case_shuffle(op_case *c, case_random *random)
{
    const onepass_dtype types[] = {case_f16, case_bf16, case_f32, case_f64};
    for (int i = 0; i < c->arguments; i++) {
        case_argument *a = &c->argument[i];
        if (case_is_float(a->dtype))
            a->dtype = types[case_random_below(random, 4)];
        else if (a->dtype.code == ONEPASS_INT && a->info->role == ONEPASS_READ) /* indices */
            a->dtype = case_random_below(random, 2) ? case_i32 : case_i64;
        a->layout =
            (case_layout)case_random_below(random, a->info->role == ONEPASS_READ ? CASE_LAYOUTS : CASE_OUTPUT_LAYOUTS);
        a->guard = (case_guard)case_random_below(random, CASE_GUARDS);
        a->shift = (size_t)(case_random_below(random, 3) == 0);
    }
}

void case_settle(op_case *c)
{
    if (c->definition->settle)
        c->definition->settle(c);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Grows *memory to `bytes`; 0: there are not that many. */
static int claim(void *memory, size_t bytes)
{
    void *old, *grown;
    memcpy(&old, memory, sizeof old);
    grown = realloc(old, bytes ? bytes : 1);
    if (grown)
        memcpy(memory, &grown, sizeof grown);
    return grown != NULL;
}

/* Fills the strides of a layout; extents are in shape. */
static void lay_out(case_layout layout, int ndim, const int64_t *shape, int64_t *strides)
{
    int64_t step = layout == CASE_COLUMN_STEP ? 2 : 1;
    for (int k = 0; k < ndim; k++) {
        int d = ndim - 1 - k; /* from the fastest on */
        if (layout == CASE_FORTRAN)
            d = k;
        if (layout == CASE_ROTATED)
            d = (ndim - 1 - k + ndim / 2 + 1) % ndim;
        strides[d] = step;
        step *= shape[d] > 0 ? shape[d] : 1;
        if (layout == CASE_PADDED && k == 0)
            step += 3;
        if (layout == CASE_FORTRAN && shape[d] == 1)
            strides[d] = -(INT64_C(7919) << 40);
    }
    for (int d = 0; d < ndim; d++) {
        int is_column = d == ndim - 1;
        if (layout == CASE_NEGATIVE_ALL || (layout == CASE_NEGATIVE_ROWS && !is_column) ||
            (layout == CASE_NEGATIVE_COLUMNS && is_column))
            strides[d] = -strides[d];
        if (layout == CASE_REPEATED_ALL || (layout == CASE_REPEATED_ROWS && !is_column) ||
            (layout == CASE_REPEATED_COLUMNS && is_column))
            strides[d] = 0;
    }
}

/* The shape of an argument in numbers; returns its rank. One element is a scalar, or any shape of ones. */
static int shape_in_numbers(const op_case *c, int argument, case_random *random, int64_t *shape)
{
    const char *letters = case_shape_of(c, argument);
    int rank = 0;
    if (!*letters || c->argument[argument].is_one) {
        rank = (int)case_random_below(random, 3);
        for (int d = 0; d < rank; d++)
            shape[d] = 1;
        return rank;
    }
    if (*letters == '*' && c->is_scalar)
        return 0;
    for (; *letters; letters++) {
        if (*letters == '*') {
            memcpy(shape, c->leading, (size_t)c->leading_rank * sizeof *shape);
            rank = c->leading_rank;
        } else {
            shape[rank++] = case_extent(c, *letters);
        }
    }
    return rank;
}

/* Offsets of all elements, and the flags of the bytes they occupy. `at` is the first one's, in elements. */
static void find_elements(case_argument *a, int64_t at)
{
    size_t size = case_size(a->dtype);
    int64_t index[CASE_MAX_RANK] = {0};
    memset(a->owned, 0, a->buffer->bytes);
    for (int64_t i = 0; i < a->count; i++) {
        a->offsets[i] = at * (int64_t)size;
        memset(a->owned + a->offsets[i], 1, size);
        for (int d = a->tensor.ndim - 1; d >= 0; d--) {
            if (a->shape[d] > 1)
                at += a->strides[d];
            if (++index[d] < a->shape[d])
                break;
            if (a->shape[d] > 1)
                at -= a->strides[d] * a->shape[d];
            index[d] = 0;
        }
    }
}

static int place(op_case *c, int argument, case_random *random)
{
    case_argument *a = &c->argument[argument], *under = a->over ? &c->argument[a->over - 1] : NULL;
    int rank = shape_in_numbers(c, argument, random, a->shape);
    case_layout layout = under ? under->layout : a->layout;
    lay_out(layout, rank, a->shape, a->strides);
    int64_t low = 0, high = 0, size = (int64_t)case_size(a->dtype);
    a->count = 1;
    for (int d = 0; d < rank; d++) {
        a->count *= a->shape[d];
        int64_t reach = a->shape[d] > 1 ? (a->shape[d] - 1) * a->strides[d] : 0;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    a->buffer = under ? &under->own : &a->own;
    size_t bytes = a->count > 0 ? (size_t)((high - low + 1) * size) : 0;
    if (!under && !case_buffer_place(a->buffer, bytes, a->guard, a->shift))
        return 0;
    if (!claim(&a->offsets, (size_t)a->count * sizeof *a->offsets) || !claim(&a->owned, bytes) ||
        !claim(&a->before, bytes) || !claim(&a->after, bytes))
        return 0;
    if (!under)
        memset(a->buffer->data, case_is_float(a->dtype) ? 0xff : 0, bytes); /* NaN in every floating-point type */
    /* The first element is named by data and byte_offset together: sometimes all in one, sometimes split. */
    uint64_t split = under ? 0 : (uint64_t)case_random_below(random, 2) * 24;
    char *first = a->buffer->data - low * size;
    a->tensor = (onepass_tensor){.data = a->count > 0 ? first - split : NULL,
                                 .device = {ONEPASS_CPU, 0},
                                 .ndim = rank,
                                 .dtype = a->dtype,
                                 .shape = a->shape,
                                 .strides = layout == CASE_COMPACT ? NULL : a->strides,
                                 .byte_offset = a->count > 0 ? split : 0};
    find_elements(a, -low);
    return 1;
}

int case_place(op_case *c)
{
    case_random random = case_random_stream(c->seed, UINT64_C(0x706c616365));
    for (int over = 0; over < 2; over++) /* those that lie over others come after them */
        for (int i = 0; i < c->arguments; i++)
            if (c->argument[i].given && (c->argument[i].over != 0) == over && !place(c, i, &random))
                return 0;
    return 1;
}

void case_remember(op_case *c)
{
    c->expected_for = 0;
    for (int i = 0; i < c->arguments; i++) {
        case_argument *a = &c->argument[i];
        if (a->given && a->buffer->bytes)
            memcpy(a->before, a->buffer->data, a->buffer->bytes);
    }
}

int case_make(op_case *c)
{
    if (!case_place(c))
        return 0;
    c->definition->generate(c);
    case_remember(c);
    return 1;
}

void case_free(op_case *c)
{
    for (int i = 0; i < CASE_MAX_ARGUMENTS; i++) {
        case_argument *a = &c->argument[i];
        case_buffer_free(&a->own);
        free(a->offsets);
        free(a->owned);
        free(a->before);
        free(a->after);
        free(a->expected);
        free(a->allowed);
    }
    case_buffer_free(&c->workspace);
    free(c->arena_sent);
    free(c->arena_back);
    memset(c, 0, sizeof *c);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

double case_get(const op_case *c, int argument, int64_t index)
{
    const case_argument *a = &c->argument[argument];
    return case_load(a->dtype, a->buffer->data + a->offsets[index]);
}

double case_was(const op_case *c, int argument, int64_t index)
{
    const case_argument *a = &c->argument[argument];
    return case_load(a->dtype, a->before + a->offsets[index]);
}

double case_was_or(const op_case *c, int argument, int64_t index, double otherwise)
{
    const case_argument *a = &c->argument[argument];
    return a->given ? case_was(c, argument, a->count == 1 ? 0 : index) : otherwise;
}

void case_put(op_case *c, int argument, int64_t index, double x)
{
    case_argument *a = &c->argument[argument];
    case_store(a->dtype, a->buffer->data + a->offsets[index], x);
}

/* ---- what is expected -------------------------------------------------------------------------------------------- */

case_arithmetic case_arithmetic_of(const onepass_handle *handle)
{
    const char *level = onepass_isa(handle);
    return strcmp(level, "ref") == 0 ? CASE_REFERENCE : strcmp(level, "cuda") == 0 ? CASE_CUDA : CASE_VECTOR;
}

int case_expect(op_case *c, case_arithmetic arithmetic)
{
    if (c->expected_for == (int)arithmetic + 1)
        return 1;
    c->expected_for = 0;
    for (int i = 0; i < c->arguments; i++) {
        case_argument *a = &c->argument[i];
        size_t bytes = a->given && case_is_written(c, i) ? (size_t)a->count * sizeof(long double) : 0;
        if (bytes && (!claim(&a->expected, bytes) || !claim(&a->allowed, bytes)))
            return 0;
    }
    if (c->definition->exact && !c->definition->exact(c, arithmetic))
        return 0;
    c->expected_for = (int)arithmetic + 1;
    return 1;
}

void case_expected(op_case *c, int argument, int64_t index, long double expected, long double allowed)
{
    case_argument *a = &c->argument[argument];
    if (!a->given)
        return;
    a->expected[index] = expected;
    a->allowed[index] = allowed;
}

uint64_t case_digest(const op_case *c)
{
    uint64_t digest = 1469598103934665603u;
    for (int i = 0; i < c->arguments; i++) {
        const case_argument *a = &c->argument[i];
        for (int64_t k = 0; a->given && case_is_written(c, i) && k < a->count; k++)
            for (size_t byte = 0; byte < case_size(a->dtype); byte++)
                digest = (digest ^ (unsigned char)a->buffer->data[(size_t)a->offsets[k] + byte]) * 1099511628211u;
    }
    return digest;
}

/* ---- in words ---------------------------------------------------------------------------------------------------- */

/* A text that is cut where it no longer fits. */
typedef struct text_space {
    char *text;
    size_t size, used;
} text_space;

static void add(text_space *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(text_space *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(to->text + to->used, to->size - to->used, format, arguments);
    va_end(arguments);
    to->used += more < 0 ? 0 : (size_t)more;
    to->used = to->used < to->size ? to->used : to->size - 1;
}

const char *case_describe(const op_case *c, char *text, size_t size)
{
    static const char *const guards[CASE_GUARDS] = {"", ", page after", ", page before"};
    text_space to = {text, size, 0};
    add(&to, "%s, family %d (%g), seed %" PRIu64, c->name, c->family, c->amount, c->seed);
    for (int i = 0; i < c->option_count; i++)
        add(&to, ", %s %g", onepass_operator_option(c->op, i)->name, c->options[i]);
    for (int i = 0; i < c->arguments; i++) {
        const case_argument *a = &c->argument[i];
        if (!a->given)
            continue;
        add(&to, "\n    %s: %s [", a->info->name, case_type_name(a->dtype));
        for (int d = 0; d < a->tensor.ndim; d++)
            add(&to, "%s%" PRId64, d ? ", " : "", a->shape[d]);
        add(&to, "], %s%s", case_layout_names[a->layout], guards[a->guard]);
        if (a->shift)
            add(&to, ", off by %zu", a->shift);
        if (a->over)
            add(&to, ", over %s", c->argument[a->over - 1].info->name);
    }
    return text;
}
