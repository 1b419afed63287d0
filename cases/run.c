/* Cases on a handle: the call, what it may have changed, and what came of it. See case.h. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case.h"

enum { ARENA_ALIGNMENT = 256 };

static int judged(const case_judge *judge, int passed, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int judged(const case_judge *judge, int passed, const char *format, ...)
{
    char text[400];
    if (!passed) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
    }
    return judge->check(judge->context, passed, passed ? NULL : text);
}

static int has_own_buffer(const case_argument *a)
{
    return a->given && a->buffer == &a->own;
}

/* What is written begins as poison, everything else as it was remembered. */
static void restore(op_case *c, int poison)
{
    for (int i = 0; i < c->arguments; i++) {
        case_argument *a = &c->argument[i];
        if (!has_own_buffer(a) || a->buffer->bytes == 0)
            continue;
        if (a->info->role == ONEPASS_WRITTEN)
            memset(a->before, poison, a->buffer->bytes);
        memcpy(a->buffer->data, a->before, a->buffer->bytes);
    }
}

/* Whether the call may write elements of the memory of this argument, or of one that lies over it. */
static int may_write(const op_case *c, int argument)
{
    for (int i = 0; i < c->arguments; i++)
        if (c->argument[i].given && (i == argument || c->argument[i].over == argument + 1) && case_is_written(c, i))
            return 1;
    return 0;
}

static int check_memory(const op_case *c, onepass_status status, const case_judge *judge)
{
    int good = 1;
    for (int i = 0; i < c->arguments; i++) {
        const case_argument *a = &c->argument[i];
        if (!has_own_buffer(a))
            continue;
        size_t damage = case_buffer_damage(a->buffer), changed = 0;
        good &= judged(judge, damage == 0, "%s: %zu bytes beside it changed", a->info->name, damage);
        int written = status == ONEPASS_OK && may_write(c, i);
        for (size_t at = 0; at < a->buffer->bytes; at++)
            changed += a->buffer->data[at] != a->before[at] && !(written && a->owned[at]);
        good &= judged(judge, changed == 0, "%s: %zu bytes changed that are not its to change", a->info->name, changed);
    }
    return good;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static onepass_status call_here(op_case *c, onepass_handle *handle, const case_judge *judge, int *good)
{
    const onepass_tensor *tensors[CASE_MAX_ARGUMENTS];
    for (int i = 0; i < c->arguments; i++)
        tensors[i] = c->argument[i].given ? &c->argument[i].tensor : NULL;
    size_t bytes = 0;
    onepass_status status = ONEPASS_OK;
    if (!c->entry_carries)
        status = onepass_call_workspace_size(handle, c->op, tensors, c->options, &bytes);
    if (status != ONEPASS_OK)
        return status;
    if (!case_buffer_place(&c->workspace, bytes, CASE_PAGE_AFTER, 0))
        return ONEPASS_OUT_OF_MEMORY;
    memset(c->workspace.data, 0xff, bytes);
    status = (c->entry ? c->entry : onepass_call)(handle, c->op, tensors, c->options, bytes ? c->workspace.data : NULL,
                                                  bytes);
    size_t damage = case_buffer_damage(&c->workspace);
    *good &= judged(judge, damage == 0, "%zu bytes beside the workspace changed", damage);
    return status;
}

/* Plans where each buffer lies in the device's memory, with a band before and after it; returns the end. */
static size_t plan_arena(const op_case *c, size_t at[CASE_MAX_ARGUMENTS])
{
    size_t end = CASE_BAND;
    for (int i = 0; i < c->arguments; i++) {
        const case_argument *a = &c->argument[i];
        if (!has_own_buffer(a))
            continue;
        at[i] = (end + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT + a->shift * case_size(a->dtype);
        end = at[i] + a->buffer->bytes + CASE_BAND;
    }
    return end;
}

static char arena_byte(size_t at)
{
    return (char)(0xa5 ^ (at * 29 >> 3));
}

static int claim_arena(op_case *c, size_t bytes)
{
    if (bytes <= c->arena_bytes)
        return 1;
    char *sent = realloc(c->arena_sent, bytes), *back = sent ? realloc(c->arena_back, bytes) : NULL;
    c->arena_sent = sent ? sent : c->arena_sent;
    c->arena_back = back ? back : c->arena_back;
    c->arena_bytes = back ? bytes : c->arena_bytes;
    return back != NULL;
}

/* What came back: data into the host's buffers; what lies between them must be as it was sent. */
static size_t unpack_arena(op_case *c, const size_t at[CASE_MAX_ARGUMENTS], size_t end)
{
    size_t changed = 0, checked = 0;
    for (int i = 0; i < c->arguments; i++) {
        case_argument *a = &c->argument[i];
        if (!has_own_buffer(a))
            continue;
        for (; checked < at[i]; checked++)
            changed += c->arena_back[checked] != c->arena_sent[checked];
        memcpy(a->buffer->data, c->arena_back + at[i], a->buffer->bytes);
        checked += a->buffer->bytes;
    }
    for (; checked < end; checked++)
        changed += c->arena_back[checked] != c->arena_sent[checked];
    return changed;
}

/* The call on tensors in the arena at `device`, with a workspace of its own. */
static onepass_status call_in_arena(op_case *c, onepass_handle *handle, const size_t at[CASE_MAX_ARGUMENTS],
                                    char *device)
{
    onepass_tensor there[CASE_MAX_ARGUMENTS];
    const onepass_tensor *tensors[CASE_MAX_ARGUMENTS];
    for (int i = 0; i < c->arguments; i++) {
        const case_argument *a = &c->argument[i];
        tensors[i] = a->given ? &there[i] : NULL;
        if (!a->given)
            continue;
        there[i] = a->tensor;
        there[i].device = onepass_device_of(handle);
        if (a->tensor.data)
            there[i].data = device + at[a->over ? a->over - 1 : i] + ((char *)a->tensor.data - a->buffer->data);
    }
    size_t bytes = 0;
    void *workspace = NULL;
    onepass_status status = onepass_call_workspace_size(handle, c->op, tensors, c->options, &bytes);
    if (status == ONEPASS_OK && bytes)
        status = onepass_memory_alloc(handle, bytes, &workspace);
    if (status == ONEPASS_OK)
        status = (c->entry ? c->entry : onepass_call)(handle, c->op, tensors, c->options, workspace, bytes);
    onepass_status waited = onepass_wait(handle);
    if (workspace)
        onepass_memory_free(handle, workspace);
    return status == ONEPASS_OK ? waited : status;
}

static onepass_status call_there(op_case *c, onepass_handle *handle, const case_judge *judge, int *good)
{
    size_t at[CASE_MAX_ARGUMENTS], end = plan_arena(c, at);
    if (!claim_arena(c, end))
        return ONEPASS_OUT_OF_MEMORY;
    for (size_t k = 0; k < end; k++)
        c->arena_sent[k] = arena_byte(k);
    for (int i = 0; i < c->arguments; i++)
        if (has_own_buffer(&c->argument[i]))
            memcpy(c->arena_sent + at[i], c->argument[i].buffer->data, c->argument[i].buffer->bytes);
    void *device = NULL;
    onepass_status status = onepass_memory_alloc(handle, end, &device);
    if (status != ONEPASS_OK)
        return status;
    status = onepass_memory_copy(handle, device, c->arena_sent, end);
    if (status == ONEPASS_OK)
        status = call_in_arena(c, handle, at, device);
    onepass_status fetched = onepass_memory_copy(handle, c->arena_back, device, end);
    onepass_memory_free(handle, device);
    if (fetched != ONEPASS_OK)
        return fetched;
    size_t changed = unpack_arena(c, at, end);
    *good &= judged(judge, changed == 0, "%zu bytes beside the tensors changed on the device", changed);
    return status;
}

int case_call(op_case *c, onepass_handle *handle, int poison, const case_judge *judge, onepass_status *status)
{
    int good = 1;
    restore(c, poison);
    int is_elsewhere = onepass_device_of(handle).type == ONEPASS_CUDA && !c->entry_carries;
    *status = is_elsewhere ? call_there(c, handle, judge, &good) : call_here(c, handle, judge, &good);
    return check_memory(c, *status, judge) && good;
}

/* ---- what came of it --------------------------------------------------------------------------------------------- */

static int compare_argument(op_case *c, int argument, const case_judge *judge)
{
    case_argument *a = &c->argument[argument];
    for (int64_t i = 0; i < a->count; i++) {
        double got = case_get(c, argument, i);
        long double expected = a->expected[i], allowed = a->allowed[i];
        int close = case_close_in(a->dtype, got, expected, allowed);
        double share = case_share(a->dtype, got, expected, allowed);
        a->worst = share > a->worst ? share : a->worst;
        if (!judged(judge, close,
                    "%s[%" PRId64 "]: got %.17g, expected %.17Lg, off by %.3Lg, allowed %.3Lg + half a unit",
                    a->info->name, i, got, expected, fabsl((long double)got - expected), allowed))
            return 0;
    }
    return 1;
}

int case_compare(op_case *c, const case_judge *judge)
{
    int good = 1;
    for (int i = 0; i < c->arguments; i++)
        if (c->argument[i].given && case_is_written(c, i) && c->definition->exact)
            good &= compare_argument(c, i, judge);
    return good;
}

static int call_well(op_case *c, onepass_handle *handle, int poison, const case_judge *judge)
{
    onepass_status status;
    int good = case_call(c, handle, poison, judge, &status);
    return judged(judge, status == ONEPASS_OK, "%s: %s", onepass_status_name(status), onepass_last_error()) && good;
}

int case_check(op_case *c, onepass_handle *handle, const case_judge *judge)
{
    if (!judged(judge, case_expect(c, case_arithmetic_of(handle)), "no memory for what is expected"))
        return 0;
    int good = call_well(c, handle, 0xff, judge); /* a NaN in every type */
    good = good && case_compare(c, judge);
    for (int i = 0; i < c->arguments && good; i++) {
        const case_argument *a = &c->argument[i];
        if (a->given && a->buffer->bytes)
            memcpy(a->after, a->buffer->data, a->buffer->bytes);
    }
    good = good && call_well(c, handle, 0x55, judge);
    for (int i = 0; i < c->arguments && good; i++) {
        const case_argument *a = &c->argument[i];
        if (!a->given || !case_is_written(c, i))
            continue;
        size_t different = 0;
        for (size_t at = 0; at < a->buffer->bytes; at++)
            different += a->owned[at] && a->after[at] != a->buffer->data[at];
        good &= judged(judge, different == 0, "%s: %zu bytes depend on what was there before the call", a->info->name,
                       different);
    }
    return good;
}
