/* Checks of a call against its operator's description, and its way to the kernel. See operator.h. */
#include "core/operator.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/fpenv.h"
#include "core/status.h"

enum { SHAPE_TEXT = 160 };

onepass_status onep_missing(const char *operator_name, const char *argument)
{
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: NULL; it is required", operator_name, argument);
}

onepass_status onep_refuse_option(const onep_call *call, int option, const char *rule)
{
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: %g; it must be %s", call->name,
                     call->op->options[option].info.name, call->options[option], rule);
}

onep_type onep_computed(onep_type promoted)
{
    return promoted == ONEP_F64 ? ONEP_F64 : ONEP_F32;
}

const char *onep_argument_shape(const onep_call *call, int argument)
{
    const onep_argument *a = &call->op->arguments[argument];
    return a->shapes ? a->shapes[(int)call->options[a->by]] : a->info.shape;
}

/* ---- what is given ----------------------------------------------------------------------------------------------- */

onepass_role onep_argument_role(const onep_operator *op, int argument, const double *options)
{
    const onep_argument *a = &op->arguments[argument];
    return (a->flags & ONEP_READ_BY) && options[a->by] != 0 ? ONEPASS_READ : a->info.role;
}

static int is_written(const onep_call *call, int argument)
{
    return onep_argument_role(call->op, argument, call->options) != ONEPASS_READ;
}

static onepass_status check_presence(const onep_call *call)
{
    const onep_operator *op = call->op;
    if (!call->handle)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: handle: NULL; make one with onepass_create", call->name);
    for (int i = 0; i < op->argument_count; i++) {
        const onep_argument *a = &op->arguments[i];
        int needed = call->bytes ? (a->flags & ONEP_SIZES) != 0 : a->info.is_required;
        if (!call->tensors[i] && needed)
            return onep_missing(call->name, a->info.name);
    }
    return ONEPASS_OK;
}

/* An operator none of whose results is required computes those asked for; a call for none of them is a mistake. */
static onepass_status check_results(const onep_call *call)
{
    const onep_operator *op = call->op;
    char names[SHAPE_TEXT] = "";
    size_t used = 0;
    for (int i = 0; i < op->argument_count; i++) {
        const onep_argument *a = &op->arguments[i];
        if (a->info.role != ONEPASS_WRITTEN)
            continue;
        if (call->tensors[i] || a->info.is_required)
            return ONEPASS_OK;
        int more = snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", a->info.name);
        used += (size_t)more < sizeof names - used ? (size_t)more : 0;
    }
    return used ? onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: all NULL; ask for at least one", call->name, names)
                : ONEPASS_OK;
}

static onepass_status check_options(const onep_call *call)
{
    const onep_operator *op = call->op;
    for (int i = 0; i < op->option_count; i++) {
        const onep_option *o = &op->options[i];
        double x = call->options[i];
        if (o->info.choices && !(x >= 0 && x < o->info.choices && x == (int)x))
            return onep_refuse_option(call, i, o->rule);
    }
    return ONEPASS_OK;
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static onepass_status check_type(const onep_call *call, int argument)
{
    const char *op = call->name;
    const onep_argument *a = &call->op->arguments[argument];
    onep_type type = onep_type_of(call->tensors[argument]->dtype);
    const char *got = onep_type_name(type);
    switch (a->type) {
    case ONEP_MASK:
        return type == ONEP_BYTE ? ONEPASS_OK
                                 : onep_fail(ONEPASS_UNSUPPORTED, "%s: %s: dtype %s; it must be bool or uint8", op,
                                             a->info.name, got);
    case ONEP_COUNTER:
        return type == ONEP_I64
                   ? ONEPASS_OK
                   : onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be int64", op, a->info.name, got);
    case ONEP_INDEX:
        return type == ONEP_I32 || type == ONEP_I64
                   ? ONEPASS_OK
                   : onep_fail(ONEPASS_UNSUPPORTED, "%s: %s: dtype %s; it must be int32 or int64", op, a->info.name,
                               got);
    case ONEP_OPAQUE:
        return type == ONEP_BYTE
                   ? ONEPASS_OK
                   : onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be uint8", op, a->info.name, got);
    default:
        break;
    }
    if (type >= ONEP_FLOAT_TYPES)
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: %s: dtype %s; it must be float16, bfloat16, float32 or float64", op,
                         a->info.name, got);
    switch (a->type) {
    case ONEP_ONLY_F32:
        return type == ONEP_F32
                   ? ONEPASS_OK
                   : onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be float32", op, a->info.name, got);
    case ONEP_ONLY_F64:
        return type == ONEP_F64
                   ? ONEPASS_OK
                   : onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be float64", op, a->info.name, got);
    case ONEP_LIKE: {
        const onepass_tensor *other = call->tensors[a->like];
        if (other && type != onep_type_of(other->dtype))
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be %s, the dtype of %s", op,
                             a->info.name, got, onep_type_name(onep_type_of(other->dtype)),
                             call->op->arguments[a->like].info.name);
        return ONEPASS_OK;
    }
    case ONEP_HOLDS_PROMOTED:
        if (!onep_type_holds(type, call->promoted))
            return onep_fail(ONEPASS_INVALID_ARGUMENT,
                             "%s: %s: dtype %s; it must hold %s, the promoted dtype of the inputs", op, a->info.name,
                             got, onep_type_name(call->promoted));
        return ONEPASS_OK;
    case ONEP_IS_COMPUTED:
        if (type != call->computed)
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be %s", op, a->info.name, got,
                             onep_type_name(call->computed));
        return ONEPASS_OK;
    case ONEP_HOLDS_COMPUTED:
        if (!onep_type_holds(type, call->computed))
            return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: dtype %s; it must be %s or a type that holds it", op,
                             a->info.name, got, onep_type_name(call->computed));
        return ONEPASS_OK;
    default:
        return ONEPASS_OK;
    }
}

/* "[..., K]" from "*K"; with the extents that are known in the place of letters if `known`. */
static void shape_rule(const onep_call *call, const char *shape, int known, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (const char *s = shape; *s && used + 24 < size; s++) {
        const char *comma = used > 1 ? ", " : "";
        if (*s == '*' && known && call->leading) {
            char leading[SHAPE_TEXT];
            int dims = call->leading->ndim > 0 ? call->leading->ndim - 1 : 0;
            onep_shape_text(dims, call->leading->shape, leading, sizeof leading);
            leading[strlen(leading) - 1] = 0; /* without its brackets */
            used += (size_t)snprintf(text + used, size - used, "%s", leading + 1);
        } else if (*s == '*') {
            used += (size_t)snprintf(text + used, size - used, "...");
        } else if (known && onep_extent(call, *s) >= 0) {
            used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, comma, onep_extent(call, *s));
        } else {
            used += (size_t)snprintf(text + used, size - used, "%s%c", comma, *s);
        }
        used = used < size ? used : size - 1;
    }
    snprintf(text + used, size - used, "]");
}

static onepass_status refuse_shape(const onep_call *call, int argument, const char *shape)
{
    const onep_argument *a = &call->op->arguments[argument];
    const onepass_tensor *t = call->tensors[argument];
    char got[SHAPE_TEXT], rule[SHAPE_TEXT], known[2 * SHAPE_TEXT];
    onep_shape_text(t->ndim, t->shape, got, sizeof got);
    if (!*shape)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: shape %s; it must have one element", call->name,
                         a->info.name, got);
    shape_rule(call, shape, 0, rule, sizeof rule);
    shape_rule(call, shape, 1, known, sizeof known);
    int differs = strcmp(rule, known) != 0;
    return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: shape %s; it must be %s%s%s%s", call->name, a->info.name, got,
                     rule, differs ? ", here " : "", differs ? known : "",
                     a->flags & ONEP_OR_ONE ? ", or one element" : "");
}

/* Matches a shape with the problem's; a letter seen for the first time gets its extent from this tensor. */
static onepass_status check_shape(onep_call *call, int argument)
{
    const onep_argument *a = &call->op->arguments[argument];
    const onepass_tensor *t = call->tensors[argument];
    const char *shape = onep_argument_shape(call, argument);
    if (!*shape || ((a->flags & ONEP_OR_ONE) && onep_elements(t) == 1))
        return onep_elements(t) == 1 ? ONEPASS_OK : refuse_shape(call, argument, shape);
    int letters = (int)strlen(shape), first = 0; /* the dimension of the first letter */
    const char *letter = shape;
    if (*shape == '*') {
        letter++;
        letters--;
        if (!call->leading && t->ndim == 0 && (a->flags & ONEP_OR_SCALAR)) { /* a row of one column */
            call->is_scalar = 1;
            call->leading = t;
            call->extents[*letter - 'A'] = 1;
            return ONEPASS_OK;
        }
        if (!call->leading && t->ndim >= letters)
            call->leading = t;
        if (call->is_scalar)
            return t->ndim == 0 ? ONEPASS_OK : refuse_shape(call, argument, shape);
        if (!call->leading)
            return refuse_shape(call, argument, shape);
        first = call->leading->ndim - 1;
    }
    int fits = t->ndim == first + letters;
    for (int d = 0; fits && d < first; d++)
        fits = t->shape[d] == call->leading->shape[d];
    for (int d = first; fits && d < t->ndim; d++, letter++) {
        int64_t *extent = &call->extents[*letter - 'A'];
        if (*extent < 0)
            *extent = t->shape[d];
        fits = t->shape[d] == *extent;
    }
    return fits ? ONEPASS_OK : refuse_shape(call, argument, shape);
}

/* A device's kernels load whole elements from its own memory: what the host could still reach would fault there. */
static onepass_status check_address(const onep_call *call, const char *name, const char *first, size_t size)
{
    const onepass_handle *handle = call->handle;
    if (!handle->device_class)
        return ONEPASS_OK;
    if ((uintptr_t)first % size != 0)
        return onep_fail(ONEPASS_UNSUPPORTED,
                         "%s: %s: address %p; on a CUDA device it must be a multiple of the element's %zu bytes",
                         call->name, name, (const void *)first, size);
    return handle->device_class->check_address(handle, call->name, name, first);
}

/* The type the promoting arguments promote to. What has no floating-point type is left out: check_type refuses it. */
static void find_types(onep_call *call)
{
    for (int i = 0; i < call->op->argument_count; i++) {
        if (!call->tensors[i] || !(call->op->arguments[i].flags & ONEP_PROMOTES))
            continue;
        onep_type type = onep_type_of(call->tensors[i]->dtype);
        if (type < ONEP_FLOAT_TYPES)
            call->promoted = call->promoted == ONEP_NO_TYPE ? type : onep_promote(call->promoted, type);
    }
    call->computed = onep_computed(call->promoted);
}

static onepass_status check_tensors(onep_call *call)
{
    const onep_operator *op = call->op;
    find_types(call);
    for (int i = 0; i < op->argument_count; i++) {
        const onepass_tensor *t = call->tensors[i];
        const onep_argument *a = &op->arguments[i];
        if (!t)
            continue;
        onepass_status status = onep_tensor_check(call->name, a->info.name, t, call->handle->device);
        if (status == ONEPASS_OK)
            status = check_type(call, i);
        if (status == ONEPASS_OK)
            status = check_shape(call, i);
        if (status != ONEPASS_OK)
            return status;
    }
    return ONEPASS_OK;
}

/* ---- tensors against each other ---------------------------------------------------------------------------------- */

/* In place is safe between tensors of the problem's own shape: an element is written after its inputs were read. */
static int may_coincide(const onep_call *call, int output, int other)
{
    const onep_argument *arguments = call->op->arguments;
    return (arguments[output].flags & ONEP_IN_PLACE) && !is_written(call, other) &&
           strcmp(onep_argument_shape(call, output), arguments[0].info.shape) == 0 &&
           strcmp(onep_argument_shape(call, other), arguments[0].info.shape) == 0;
}

static onepass_status check_overlaps(const onep_call *call)
{
    const onep_operator *op = call->op;
    for (int out = 0; out < op->argument_count; out++) {
        const onep_argument *a = &op->arguments[out];
        if (!call->tensors[out] || !is_written(call, out))
            continue;
        onepass_status status = onep_writable_check(call->name, a->info.name, call->tensors[out]);
        for (int in = 0; in < op->argument_count && status == ONEPASS_OK; in++) {
            const onep_argument *b = &op->arguments[in];
            if (in != out && call->tensors[in] && !(is_written(call, in) && in > out))
                status = onep_overlap_check(call->name, a->info.name, call->tensors[out], b->info.name,
                                            call->tensors[in], may_coincide(call, out, in));
        }
        if (status != ONEPASS_OK)
            return status;
    }
    return ONEPASS_OK;
}

static onepass_status check_addresses(const onep_call *call)
{
    const onep_operator *op = call->op;
    onepass_status status = ONEPASS_OK;
    for (int i = 0; i < op->argument_count && status == ONEPASS_OK; i++) {
        const onepass_tensor *t = call->tensors[i];
        if (!t || onep_elements(t) == 0)
            continue;
        const char *first = (const char *)t->data + t->byte_offset, *name = op->arguments[i].info.name;
        status = check_address(call, name, first, onep_type_size(onep_type_of(t->dtype)));
    }
    return status;
}

static onepass_status check_workspace(const onep_call *call, size_t needed)
{
    const onep_operator *op = call->op;
    if (needed == 0)
        return ONEPASS_OK;
    if (!call->workspace || call->workspace_size < needed)
        return onep_fail(ONEPASS_WORKSPACE, "%s: %s: %zu bytes at %p; this problem needs %zu", call->name,
                         op->workspace, call->workspace_size, call->workspace, needed);
    if (op->workspace_is_kept && (uintptr_t)call->workspace % ONEP_WORKSPACE_ALIGNMENT != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: %p; it must be a multiple of %d", call->name, op->workspace,
                         call->workspace, (int)ONEP_WORKSPACE_ALIGNMENT);
    int64_t bytes = (int64_t)needed;
    onepass_tensor memory = {
        .data = call->workspace, .device = call->handle->device, .ndim = 1, .dtype = ONEPASS_U8, .shape = &bytes};
    onepass_status status = check_address(call, op->workspace, (const char *)call->workspace, 1);
    for (int i = 0; i < op->argument_count && status == ONEPASS_OK; i++)
        if (call->tensors[i])
            status =
                onep_overlap_check(call->name, op->workspace, &memory, op->arguments[i].info.name, call->tensors[i], 0);
    return status;
}

/* ---- the way to the kernel --------------------------------------------------------------------------------------- */

static ONEP_IN_FPENV onepass_status check_and_solve(onep_call *call)
{
    memset(call->extents, -1, sizeof call->extents); /* every byte of -1 */
    if (!call->name)
        call->name = call->op->name;
    call->promoted = ONEP_NO_TYPE;
    onepass_status status = check_presence(call);
    if (status == ONEPASS_OK && !call->bytes)
        status = check_results(call);
    if (status == ONEPASS_OK)
        status = check_options(call);
    if (status == ONEPASS_OK)
        status = check_tensors(call);
    if (status == ONEPASS_OK && !call->bytes)
        status = check_overlaps(call);
    if (status == ONEPASS_OK && !call->bytes)
        status = check_addresses(call);
    return status == ONEPASS_OK ? call->op->solve(call) : status;
}

onepass_status onep_call_run(onep_call *call)
{
    onep_fpenv before = onep_fpenv_enter();
    onepass_status status = check_and_solve(call);
    onep_fpenv_leave(before);
    return status;
}

const onep_kernel *onep_kernel_of(const onep_operator *op, onep_level level, onep_type promoted)
{
    int lowest = level < ONEP_LEVELS ? ONEP_REF : (int)level; /* a device falls back on nothing */
    for (int l = (int)level; l >= lowest; l--)
        if (op->kernels[l] && op->kernels[l][promoted].run)
            return &op->kernels[l][promoted];
    return NULL;
}

/* With a plan in this memory. */
static onepass_status plan_and_run(onep_call *call, const void *problem, const onep_kernel *kernel, onep_plan *plan)
{
    const onepass_handle *handle = call->handle;
    size_t bytes = 0;
    onepass_status status = ONEPASS_OK;
    if (kernel->plan) {
        uintptr_t first = ((uintptr_t)call->workspace + ONEP_WORKSPACE_ALIGNMENT - 1) / ONEP_WORKSPACE_ALIGNMENT *
                          ONEP_WORKSPACE_ALIGNMENT;
        if (call->bytes) /* options may name a workspace even where only its size is asked for */
            first = 0;
        status = kernel->plan(handle, problem, (char *)first, plan, &bytes);
    }
    if (bytes && !call->op->workspace_is_kept)
        bytes += ONEP_WORKSPACE_ALIGNMENT; /* the caller's address may be anything */
    if (status == ONEPASS_OK && call->bytes) {
        *call->bytes = bytes;
        return ONEPASS_OK;
    }
    if (status == ONEPASS_OK)
        status = check_workspace(call, bytes);
    if (status == ONEPASS_OK)
        status = kernel->run(handle, problem, plan);
    if (status == ONEPASS_OK && handle->progress)
        handle->progress(handle->progress_context, 1);
    return status;
}

/* Not inlined: its plan would be on the stack of the processor's calls too. */
static __attribute__((noinline)) onepass_status on_device(onep_call *call, const void *problem,
                                                          const onep_kernel *kernel)
{
    onep_plan plan;
    return plan_and_run(call, problem, kernel, &plan);
}

static __attribute__((noinline)) onepass_status on_cpu(onep_call *call, const void *problem, const onep_kernel *kernel)
{
    onep_cpu_plan plan;
    return plan_and_run(call, problem, kernel, (onep_plan *)(void *)&plan);
}

onepass_status onep_execute(onep_call *call, const void *problem)
{
    const onepass_handle *handle = call->handle;
    const onep_kernel *kernel = onep_kernel_of(call->op, handle->level, call->promoted);
    if (!kernel)
        return onep_fail(ONEPASS_UNSUPPORTED, "%s: handle: level \"%s\" has no kernels for it", call->name,
                         onep_level_name(handle->level));
    return handle->device_class ? on_device(call, problem, kernel) : on_cpu(call, problem, kernel);
}

onep_operand onep_call_operand(const onep_call *call, int argument)
{
    const onepass_tensor *t = call->tensors[argument];
    const char *shape = t ? onep_argument_shape(call, argument) : "";
    if (t && (!*shape || ((call->op->arguments[argument].flags & ONEP_OR_ONE) && onep_elements(t) == 1)))
        return onep_operand_of(t, 0, 0);
    int has_columns = *shape && shape[strlen(shape) - 1] != '*' && t->ndim > 0;
    return onep_operand_of(t, t ? t->ndim - has_columns : 0, has_columns);
}
