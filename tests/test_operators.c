/*
 * What every operator promises, from its description alone: a new operator is tested here by being in
 * src/operators.def, with cases in cases/. Every rule is broken once for every argument, and each time the status is
 * the right one, the message names the operator, the argument, the offending value and the rule, no byte of any tensor
 * changes and nothing is printed, through the generic entry point and through the operator's own. Every optional
 * argument is given and left out, outputs lie over inputs where they may, and random legal calls are compared with the
 * exact results at every level.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry_points.h"

#define BAD ONEPASS_INVALID_ARGUMENT

enum { ROOM = 48, WORKSPACE = 8 << 20, TYPES = 8 };

static onepass_handle *handle; /* at the best level */
static op_case made;           /* the legal call that is broken */
static const onep_operator *op;

/* The call as it is broken: what the test changes. */
static struct {
    onepass_handle *handle;
    onepass_tensor tensor[ONEP_MAX_ARGUMENTS];
    const onepass_tensor *given[ONEP_MAX_ARGUMENTS];
    int64_t shape[ONEP_MAX_ARGUMENTS][ROOM], strides[ONEP_MAX_ARGUMENTS][ROOM];
    double options[ONEP_MAX_OPTIONS];
    void *workspace;
    size_t workspace_size;
    int only_generic; /* the typed entry point has no such argument */
} broken;

static char *workspace;

static const onepass_dtype *all_types(void)
{
    static onepass_dtype types[TYPES];
    const onepass_dtype known[TYPES] = {case_f16, case_bf16, case_f32, case_f64, case_i32, case_i64, case_u8, case_b8};
    memcpy(types, known, sizeof types);
    return types;
}

static const char *name_of(int argument)
{
    return op->arguments[argument].info.name;
}

/* ---- a call to break --------------------------------------------------------------------------------------------- */

static int is_opaque(int argument)
{
    return op->arguments[argument].type == ONEP_OPAQUE;
}

/* A fresh call with every argument of the case but the opaque ones; `with` is given whatever it is, -1: none. */
static void fresh(int with)
{
    for (int i = 0; i < made.arguments; i++) {
        const case_argument *a = &made.argument[i];
        broken.tensor[i] = a->tensor;
        broken.tensor[i].shape = broken.shape[i];
        broken.tensor[i].strides = broken.strides[i];
        for (int d = 0, rank = a->tensor.ndim; d < rank; d++) {
            broken.shape[i][d] = a->shape[d];
            broken.strides[i][d] = a->strides[d];
        }
        broken.given[i] = a->given && (!is_opaque(i) || i == with) ? &broken.tensor[i] : NULL;
    }
    memcpy(broken.options, made.options, sizeof broken.options);
    broken.handle = handle;
    broken.workspace = workspace;
    broken.workspace_size = WORKSPACE;
    broken.only_generic = with >= 0 && is_opaque(with);
}

/* What the two ways into the operator said. */
static struct {
    onepass_status status;
    char message[600];
    long printed;
} answers[2];

static onepass_status call_broken(onepass_handle *unused, const onepass_operator *of,
                                  const onepass_tensor *const *tensors, const double *options, void *memory,
                                  size_t size)
{
    (void)unused, (void)tensors, (void)options, (void)memory, (void)size;
    case_entry *const entries[2] = {onepass_call, broken.only_generic ? onepass_call : entry_point};
    for (int i = 0; i < 2; i++) {
        test_catch_output();
        answers[i].status =
            entries[i](broken.handle, of, broken.given, broken.options, broken.workspace, broken.workspace_size);
        answers[i].printed = test_release_output();
        snprintf(answers[i].message, sizeof answers[i].message, "%s", onepass_last_error());
    }
    return answers[0].status;
}

/* The call must fail with this status and a message with the operator and all these parts, and change nothing. */
static void refuse(const char *what, onepass_status expected, ...)
{
    test_context("%s: %s", op->name, what);
    onepass_status status;
    made.entry = call_broken;
    made.entry_carries = 1;
    CHECK(case_call(&made, handle, 0x55, &test_judge, &status), "memory changed");
    const char *message = answers[0].message;
    CHECK(status == expected, "got %s, expected %s: %s", onepass_status_name(status), onepass_status_name(expected),
          message);
    CHECK(answers[1].status == status, "the operator's own entry point says %s, the generic one %s",
          onepass_status_name(answers[1].status), onepass_status_name(status));
    CHECK(strcmp(message, answers[1].message) == 0,
          "the operator's own entry point says \"%s\", the generic one \"%s\"", answers[1].message, message);
    CHECK(answers[0].printed == 0 && answers[1].printed == 0, "something was printed");
    CHECK(strlen(message) < 512, "the message is %zu long", strlen(message));
    CHECK(strncmp(message, op->name, strlen(op->name)) == 0, "the message does not begin with the operator: %s",
          message);
    va_list parts;
    va_start(parts, expected);
    for (const char *part = va_arg(parts, const char *); part; part = va_arg(parts, const char *))
        CHECK(strstr(message, part) != NULL, "the message lacks \"%s\": %s", part, message);
    va_end(parts);
}

#define REFUSE(...) refuse(__VA_ARGS__, NULL)

/* Makes the case that is broken: all arguments given, elements of two types at most, compact. */
static void make(onepass_dtype first, onepass_dtype second)
{
    if (!CHECK(case_begin(&made, op->name), "%s has no cases", op->name))
        exit(test_end());
    int promoting = 0;
    for (int i = 0; i < made.arguments; i++) {
        made.argument[i].given = 1;
        if (op->arguments[i].flags & ONEP_PROMOTES)
            made.argument[i].dtype = promoting++ ? second : first;
    }
    made.extents['P' - 'A'] = 64;
    case_settle(&made);
    for (int i = 0; i < made.arguments; i++)
        made.argument[i].given = 1; /* together or not: descriptions are checked before an operator's own rules */
    made.seed = 7;
    CHECK(case_make(&made), "no memory");
}

/* ---- what is given ----------------------------------------------------------------------------------------------- */

static void test_presence(void)
{
    fresh(-1);
    broken.handle = NULL;
    REFUSE("no handle", BAD, "handle", "NULL", "onepass_create");
    int needs_results = 0;
    for (int i = 0; i < op->argument_count; i++) {
        const onepass_argument_info *info = &op->arguments[i].info;
        needs_results |= info->role == ONEPASS_WRITTEN ? (info->is_required ? 2 : 1) : 0;
        if (!info->is_required)
            continue;
        fresh(-1);
        broken.given[i] = NULL;
        REFUSE("a required argument is NULL", BAD, info->name, "NULL", "required");
    }
    if (needs_results != 1) /* some result is required, or none is a tensor */
        return;
    fresh(-1);
    for (int i = 0; i < op->argument_count; i++)
        if (op->arguments[i].info.role == ONEPASS_WRITTEN)
            broken.given[i] = NULL;
    for (int i = 0; i < op->argument_count; i++)
        if (op->arguments[i].info.role == ONEPASS_WRITTEN)
            REFUSE("nothing is asked for", BAD, name_of(i), "NULL", "at least one");
}

static void test_options(void)
{
    for (int i = 0; i < op->option_count; i++) {
        int choices = op->options[i].info.choices;
        const double wrong[] = {-1, choices, 1000, 0.5, (double)NAN, (double)INFINITY};
        for (int k = 0; choices && k < 6; k++) {
            char value[64];
            fresh(-1);
            broken.options[i] = wrong[k];
            broken.only_generic = k >= 3; /* the structure's member is an integer */
            snprintf(value, sizeof value, "%s: %g;", op->options[i].info.name, wrong[k]);
            REFUSE("a choice that is none", BAD, value, op->options[i].rule);
        }
    }
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static void test_descriptor(int i)
{
    const char *name = name_of(i);
    fresh(i);
    broken.tensor[i].ndim = -3;
    REFUSE("a negative rank", BAD, name, "ndim is -3", "must not be negative");
    fresh(i);
    broken.tensor[i].ndim = 1;
    broken.tensor[i].shape = NULL;
    REFUSE("no shape", BAD, name, "shape is NULL", "needs one");
    fresh(i);
    broken.tensor[i].data = NULL;
    broken.tensor[i].byte_offset = 0;
    REFUSE("no data", BAD, name, "data is NULL", "empty");
    fresh(i);
    broken.tensor[i].ndim = broken.tensor[i].ndim ? broken.tensor[i].ndim : 1;
    broken.shape[i][0] = -5;
    REFUSE("a negative extent", BAD, name, "shape[0] is -5", "must not be negative");

    static const onepass_device devices[] = {{ONEPASS_CUDA, 0}, {ONEPASS_CPU, 1}, {0, 0}, {99, -4}};
    static const char *const device_texts[] = {"type 2, id 0", "type 1, id 1", "type 0, id 0", "type 99, id -4"};
    for (int k = 0; k < 4; k++) {
        fresh(i);
        broken.tensor[i].device = devices[k];
        REFUSE("another device", BAD, name, device_texts[k], "handle's device");
    }
    static const onepass_dtype dtypes[] = {
        {ONEPASS_INT, 16, 1}, {ONEPASS_FLOAT, 8, 1}, {ONEPASS_FLOAT, 32, 2}, {ONEPASS_FLOAT, 32, 0},
        {5, 64, 1},           {ONEPASS_BOOL, 1, 1}};
    static const char *const dtype_texts[] = {"code 0, 16 bits, 1 lanes", "code 2, 8 bits, 1 lanes",
                                              "code 2, 32 bits, 2 lanes", "code 2, 32 bits, 0 lanes",
                                              "code 5, 64 bits, 1 lanes", "code 6, 1 bits, 1 lanes"};
    for (int k = 0; k < 6; k++) {
        fresh(i);
        broken.tensor[i].dtype = dtypes[k];
        REFUSE("a type the library does not read", ONEPASS_UNSUPPORTED, name, dtype_texts[k], "not supported");
    }
}

/* Sizes and strides that leave 64 bits. */
static void test_overflow(int i)
{
    const char *name = name_of(i);
    fresh(i);
    broken.tensor[i].ndim = 3;
    broken.shape[i][0] = INT64_MAX;
    broken.shape[i][1] = 1;
    broken.shape[i][2] = 2;
    REFUSE("a product of extents", BAD, name, "overflows", "shape[2] = 2", "2^63");
    broken.shape[i][1] = INT64_MAX;
    broken.shape[i][2] = 0;
    REFUSE("a zero does not hide it", BAD, name, "overflows", "shape[1] = 9223372036854775807");
    static const int64_t strides[] = {INT64_MAX, INT64_MIN, INT64_MIN + 1};
    for (int k = 0; k < 3; k++) {
        fresh(i);
        broken.tensor[i].ndim = 2;
        broken.shape[i][0] = 3;
        broken.shape[i][1] = 1;
        broken.strides[i][0] = strides[k];
        broken.strides[i][1] = 1;
        REFUSE("a stride", BAD, name, "2^63 bytes");
    }
    fresh(i); /* each dimension alone fits; together they do not */
    broken.tensor[i].ndim = 3;
    for (int d = 0; d < 3; d++) {
        broken.shape[i][d] = 3;
        broken.strides[i][d] = (INT64_C(1) << 61) / (int64_t)case_size(broken.tensor[i].dtype);
    }
    REFUSE("a sum of strides", BAD, name, "2^63 bytes");
    if (case_size(broken.tensor[i].dtype) == 1)
        return;
    fresh(i);
    broken.tensor[i].ndim = 1;
    broken.tensor[i].strides = NULL;
    broken.shape[i][0] = INT64_MAX;
    REFUSE("a compact size in bytes", BAD, name, "2^63 bytes");
}

/* Whether a type breaks the rule of an argument, and what the message says of it then. */
static int breaks_type_rule(int i, onepass_dtype type, onepass_status *status, const char **rule)
{
    const onep_argument *a = &op->arguments[i];
    onepass_dtype like = broken.tensor[a->like].dtype, promoted = {0};
    for (int k = 0; k < op->argument_count; k++)
        if (op->arguments[k].flags & ONEP_PROMOTES) {
            onepass_dtype of = k == i && case_is_float(type) ? type : broken.tensor[k].dtype;
            promoted = promoted.bits ? case_promote(promoted, of) : of;
        }
    onepass_dtype computed = case_computed(promoted);
    int is_byte = case_same_type(type, case_u8) || case_same_type(type, case_b8);
    *status = BAD;
    switch (a->type) {
    case ONEP_MASK:
        *status = ONEPASS_UNSUPPORTED;
        *rule = "bool or uint8";
        return !is_byte;
    case ONEP_COUNTER:
        *rule = "int64";
        return !case_same_type(type, case_i64);
    case ONEP_INDEX:
        *status = ONEPASS_UNSUPPORTED;
        *rule = "int32 or int64";
        return !case_same_type(type, case_i32) && !case_same_type(type, case_i64);
    case ONEP_OPAQUE:
        *rule = "uint8";
        return !is_byte;
    default:
        break;
    }
    if (!case_is_float(type)) {
        *status = ONEPASS_UNSUPPORTED;
        *rule = "float16, bfloat16, float32 or float64";
        return 1;
    }
    switch (a->type) {
    case ONEP_ONLY_F32:
        *rule = "float32";
        return !case_same_type(type, case_f32);
    case ONEP_ONLY_F64:
        *rule = "float64";
        return !case_same_type(type, case_f64);
    case ONEP_LIKE:
        *rule = name_of(a->like);
        return !case_same_type(type, like);
    case ONEP_HOLDS_PROMOTED:
        *rule = case_type_name(promoted);
        return !case_holds(type, promoted);
    case ONEP_IS_COMPUTED:
        *rule = case_type_name(computed);
        return !case_same_type(type, computed);
    case ONEP_HOLDS_COMPUTED:
        *rule = case_type_name(computed);
        return !case_holds(type, computed);
    default:
        return 0;
    }
}

static void test_types(int i)
{
    for (int k = 0; k < TYPES; k++) {
        onepass_dtype type = all_types()[k];
        onepass_status status;
        const char *rule = "";
        char got[64];
        fresh(i);
        if (!breaks_type_rule(i, type, &status, &rule))
            continue;
        snprintf(got, sizeof got, "%s: dtype %s;", name_of(i),
                 case_same_type(type, case_b8) ? "uint8" : case_type_name(type)); /* both are bytes */
        broken.tensor[i].dtype = type;
        REFUSE("a type that breaks its rule", status, got, rule);
    }
}

/* Whether an argument of the call before `i` already says what the letter stands for. */
static int is_said_before(int i, char letter)
{
    for (int k = 0; k < i; k++)
        if (broken.given[k] && strchr(case_shape_of(&made, k), letter) && !made.argument[k].is_one)
            return 1;
    return 0;
}

static int is_said_after(int i, char letter)
{
    for (int k = i + 1; k < op->argument_count; k++)
        if (broken.given[k] && strchr(case_shape_of(&made, k), letter) && !made.argument[k].is_one)
            return 1;
    return 0;
}

static void refuse_shape(int i, const char *what, int is_named)
{
    char got[200] = "";
    size_t used = (size_t)snprintf(got, sizeof got, "%s: shape [", name_of(i));
    for (int d = 0; d < broken.tensor[i].ndim; d++)
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%" PRId64, d ? ", " : "", broken.shape[i][d]);
    REFUSE(what, BAD, is_named ? got : ": shape [", "; it must ");
}

/* Every extent and the rank. Who first says what a letter stands for is right; then another one is wrong. */
static void test_shape(int i)
{
    const char *letters = case_shape_of(&made, i);
    int rank = made.argument[i].tensor.ndim, leading = *letters == '*' ? rank - (int)strlen(letters) + 1 : 0;
    if (!*letters || made.argument[i].is_one) {
        fresh(i);
        broken.tensor[i].ndim = 1;
        broken.shape[i][0] = 2;
        refuse_shape(i, "more than one element", 1);
        broken.shape[i][0] = 0;
        refuse_shape(i, "no element", 1);
        return;
    }
    for (int d = 0; d < rank; d++)
        for (int step = -1; step <= 1; step += 2) {
            char letter = d < leading ? '*' : letters[d - leading + (*letters == '*')];
            fresh(i);
            int named = is_said_before(i, letter);
            if (!named && !is_said_after(i, letter))
                continue;
            broken.shape[i][d] += step;
            refuse_shape(i, "an extent", named);
        }
    fresh(i);
    broken.tensor[i].ndim = rank + 1;
    broken.shape[i][rank] = broken.strides[i][rank] = 1;
    refuse_shape(i, "a rank too large", *letters != '*' || is_said_before(i, '*'));
    fresh(i);
    if (rank == 0 || (rank == 1 && (op->arguments[i].flags & ONEP_OR_SCALAR)))
        return;
    broken.tensor[i].ndim = rank - 1;
    refuse_shape(i, "a rank too small", *letters != '*' || is_said_before(i, '*'));
}

/* ---- tensors against each other ---------------------------------------------------------------------------------- */

static void test_sharing(int i)
{
    for (int d = 0; case_is_written(&made, i) && d < made.argument[i].tensor.ndim; d++) {
        if (made.argument[i].shape[d] < 2)
            continue;
        fresh(-1);
        broken.strides[i][d] = 0;
        REFUSE("elements that share memory", BAD, name_of(i), "strides", "share memory", "apart");
    }
}

/* Where the same view is allowed: an output in place of an input that has all of the problem's elements. */
static int may_coincide(const op_case *c, int out, int in)
{
    const char *full = op->arguments[0].info.shape;
    return (op->arguments[out].flags & ONEP_IN_PLACE) && !case_is_written(c, in) &&
           strcmp(case_shape_of(c, out), full) == 0 && strcmp(case_shape_of(c, in), full) == 0;
}

static char *first_byte(int i)
{
    return (char *)made.argument[i].tensor.data + made.argument[i].tensor.byte_offset;
}

static void test_overlap(int out, int in)
{
    size_t bytes = made.argument[in].buffer->bytes, size = case_size(made.argument[in].dtype);
    const size_t offsets[] = {0, 1, size, bytes - size, bytes - 1};
    for (int k = 0; k < 5; k++) {
        fresh(-1);
        if (!broken.given[in] || offsets[k] >= bytes || (k == 0 && may_coincide(&made, out, in)))
            continue;
        broken.tensor[out].data = first_byte(in) + offsets[k];
        broken.tensor[out].byte_offset = 0;
        REFUSE("a result over another argument", BAD, name_of(out), "overlaps", name_of(in), "elsewhere");
    }
}

/* It is looked at last: the call is legal but for it. */
static void test_workspace(void)
{
    size_t needed = 0, typed = 0;
    case_begin(&made, op->name);
    case_settle(&made);
    CHECK(case_make(&made), "no memory");
    fresh(-1);
    onepass_status status = onepass_call_workspace_size(handle, op, broken.given, broken.options, &needed);
    if (!onep_kernel_of(op, onep_best_level(), ONEP_F32)) {
        CHECK(status == ONEPASS_UNSUPPORTED, "%s: no kernel, but %s", op->name, onepass_status_name(status));
        return;
    }
    test_context("%s: workspace", op->name);
    CHECK(entry_point_size(handle, op, broken.given, broken.options, &typed) == status && typed == needed,
          "the operator's own question is answered %zu, the generic one %zu", typed, needed);
    if (!CHECK(status == ONEPASS_OK && needed <= WORKSPACE, "%s", onepass_last_error()) || needed == 0)
        return;
    char got[64], wanted[64];
    snprintf(wanted, sizeof wanted, "needs %zu", needed);
    for (int k = 0; k < 3; k++) {
        fresh(-1);
        broken.workspace_size = k == 0 ? needed - 1 : k == 1 ? 0 : needed;
        broken.workspace = k == 2 ? NULL : workspace;
        snprintf(got, sizeof got, "%s: %zu bytes", op->workspace, broken.workspace_size);
        REFUSE("a workspace too small", ONEPASS_WORKSPACE, got, wanted);
    }
    for (int i = 0; i < op->argument_count; i++) {
        fresh(-1);
        if (!broken.given[i])
            continue;
        char *there = workspace + needed - case_size(broken.tensor[i].dtype);
        memcpy(there, first_byte(i), made.argument[i].buffer->bytes); /* what it holds may have rules of its own */
        broken.tensor[i].data = there;
        broken.tensor[i].byte_offset = 0;
        REFUSE("a workspace over an argument", BAD, op->workspace, "overlaps", name_of(i));
    }
}

/* What the size depends on must be said. */
static void test_questions(void)
{
    fresh(-1);
    test_context("%s: a question for the size of the workspace", op->name);
    CHECK(onepass_call_workspace_size(handle, op, broken.given, broken.options, NULL) == BAD &&
              strstr(onepass_last_error(), "bytes: NULL"),
          "bytes NULL: %s", onepass_last_error());
    size_t bytes = 77;
    CHECK(onepass_call_workspace_size(NULL, op, broken.given, broken.options, &bytes) == BAD &&
              strstr(onepass_last_error(), "handle: NULL"),
          "handle NULL: %s", onepass_last_error());
    for (int i = 0; i < op->argument_count; i++) {
        if (!(op->arguments[i].flags & ONEP_SIZES))
            continue;
        fresh(-1);
        broken.given[i] = NULL;
        onepass_status status = onepass_call_workspace_size(handle, op, broken.given, broken.options, &bytes);
        CHECK(status == BAD && strstr(onepass_last_error(), name_of(i)) && strstr(onepass_last_error(), "required"),
              "%s NULL: %s", name_of(i), onepass_last_error());
        status = entry_point_size(handle, op, broken.given, broken.options, &bytes);
        CHECK(status == BAD && strstr(onepass_last_error(), name_of(i)), "%s NULL: %s", name_of(i),
              onepass_last_error());
    }
    CHECK(bytes == 77, "a refused question was answered %zu", bytes);
}

/* ---- every rule of one operator ---------------------------------------------------------------------------------- */

/* The option that shapes depend on; -1: none. */
static int shaping_option(void)
{
    for (int i = 0; i < op->argument_count; i++)
        if (op->arguments[i].shapes)
            return op->arguments[i].by;
    return -1;
}

static void test_refusals(void)
{
    make(case_f32, case_f32);
    test_presence();
    test_options();
    test_questions();
    for (int i = 0; i < op->argument_count; i++) {
        test_descriptor(i);
        test_overflow(i);
    }
    int option = shaping_option(), values = option < 0 ? 1 : op->options[option].info.choices;
    for (int value = 0; value < values; value++) {
        make(case_f32, case_f32);
        if (option >= 0) {
            made.options[option] = value;
            CHECK(case_make(&made), "no memory");
        }
        for (int i = 0; i < op->argument_count; i++) {
            test_shape(i);
            test_sharing(i);
            for (int in = 0; in < op->argument_count && case_is_written(&made, i); in++)
                if (in != i)
                    test_overlap(i, in);
        }
    }
    const onepass_dtype pairs[][2] = {
        {case_f32, case_f32}, {case_f64, case_f32}, {case_f16, case_f16}, {case_f16, case_bf16}, {case_f32, case_f64}};
    for (int k = 0; k < 5; k++) {
        make(pairs[k][0], pairs[k][1]);
        for (int i = 0; i < op->argument_count; i++)
            test_types(i);
    }
    test_workspace();
}

/* ---- legal calls ------------------------------------------------------------------------------------------------- */

/* The call must be accepted and right, at every level; where there is no kernel, it must say so. */
static void check_call(op_case *c)
{
    static onepass_handle *handles[ONEP_LEVELS];
    char text[1800];
    CHECK(case_make(c), "no memory");
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!onep_level_runs((onep_level)level))
            continue;
        if (!handles[level])
            handles[level] = test_handle((onep_level)level, 2);
        test_context("level %s: %s", onep_level_name((onep_level)level), case_describe(c, text, sizeof text));
        onepass_status status;
        if (onep_kernel_of(op, (onep_level)level, ONEP_F32)) {
            case_check(c, handles[level], &test_judge);
        } else {
            case_call(c, handles[level], 0x55, &test_judge, &status);
            CHECK(status == ONEPASS_UNSUPPORTED, "no kernel, but %s", onepass_status_name(status));
        }
    }
}

static void test_optional(void)
{
    static op_case c;
    for (int i = 0; i < op->argument_count; i++)
        for (int given = 0; given < 2 && !op->arguments[i].info.is_required; given++)
            for (int others = 0; others < 2; others++) {
                case_begin(&c, op->name);
                for (int k = 0; others && k < c.arguments; k++)
                    c.argument[k].given = c.argument[k].info->is_required;
                c.argument[i].given = given;
                case_settle(&c);
                check_call(&c);
            }
}

/* With every value of the option that shapes depend on: where the result has all of the problem's elements. */
static void test_in_place(void)
{
    static op_case c;
    int option = shaping_option(), values = option < 0 ? 1 : op->options[option].info.choices;
    for (int value = 0; value < values; value++)
        for (int out = 0; out < op->argument_count; out++)
            for (int in = 0; in < op->argument_count; in++) {
                if (!(op->arguments[out].flags & ONEP_IN_PLACE) || in == out)
                    continue;
                case_begin(&c, op->name);
                if (option >= 0)
                    c.options[option] = value;
                c.argument[out].given = c.argument[in].given = 1;
                case_settle(&c);
                if (!may_coincide(&c, out, in) || !c.argument[out].given || !c.argument[in].given)
                    continue;
                c.argument[out].over = in + 1;
                check_call(&c);
            }
}

static void choose(op_case *c, test_random *random)
{
    static const double amounts[] = {0, 1, 50};
    for (int i = 0; i < c->arguments; i++)
        c->argument[i].given = c->argument[i].info->is_required || test_random_below(random, 3) > 0;
    for (int i = 0; i < c->option_count; i++)
        if (op->options[i].info.choices)
            c->options[i] = (double)test_random_below(random, op->options[i].info.choices);
    c->leading_rank = (int)test_random_below(random, 4);
    for (int d = 0; d < c->leading_rank; d++)
        c->leading[d] = test_random_below(random, 12) == 0 ? 0 : 1 + test_random_below(random, d ? 4 : 12);
    for (int letter = 0; letter < 26; letter++)
        c->extents[letter] = test_random_below(random, 16) == 0 ? 0 : 1 + test_random_below(random, 40);
    c->family = (int)test_random_below(random, c->definition->families);
    c->amount = amounts[test_random_below(random, 3)];
    c->seed = test_random_bits(random);
    case_shuffle(c, random);
    case_settle(c);
}

static void test_random_calls(test_random *random)
{
    static op_case c;
    for (int i = 0; i < 240 / test_one_in(6); i++) {
        case_begin(&c, op->name);
        choose(&c, random);
        check_call(&c);
    }
}

int main(void)
{
    unsetenv("ONEPASS_ISA");
    test_begin("test_operators");
    test_print_levels();
    test_random random = test_random_stream(1);
    handle = test_handle(onep_best_level(), 1);
    workspace = malloc(WORKSPACE);
    if (!workspace)
        return 2;
    int count;
    const onep_operator *const *operators = onep_operators(&count);
    for (int i = 0; i < count; i++) {
        op = operators[i];
        test_refusals();
        test_optional();
        test_in_place();
        test_random_calls(&random);
    }
    onepass_destroy(handle);
    free(workspace);
    return test_end();
}
