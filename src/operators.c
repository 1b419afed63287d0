/* The list of operators, the generic entry points over it, and the levels that are there. See operators.h. */
#include "operators.h"

#include <string.h>

#include "core/status.h"
#include "cpu/detect.h"
#if defined(ONEPASS_HAVE_CUDA)
#include "cuda/device.h"
#endif

static const onep_operator *const list[] = {
#define OPERATOR(name) &onep_##name,
#include "operators.def"
#undef OPERATOR
};

enum { OPERATORS = sizeof list / sizeof list[0] };

const onep_operator *const *onep_operators(int *count)
{
    *count = OPERATORS;
    return list;
}

/* ---- levels ------------------------------------------------------------------------------------------------------ */

int onep_level_built(onep_level level)
{
    return list[0]->kernels[level] != NULL; /* every operator has the same levels */
}

int onep_level_runs(onep_level level)
{
    if (!onep_level_built(level))
        return 0;
#if defined(ONEPASS_HAVE_CUDA)
    if (level == ONEP_CUDA)
        return onep_cuda_devices(NULL) > 0;
#endif
    return onep_cpu_has(level);
}

onep_level onep_best_level(void)
{
    int level = ONEP_LEVELS - 1;
    while (!onep_level_runs((onep_level)level))
        level--;
    return (onep_level)level;
}

/* ---- operators as data ------------------------------------------------------------------------------------------- */

const onepass_operator *onepass_operator_named(const char *name)
{
    for (int i = 0; name && i < OPERATORS; i++)
        if (strcmp(list[i]->name, name) == 0)
            return list[i];
    return NULL;
}

const onepass_operator *onepass_operator_at(int32_t index)
{
    return index >= 0 && index < OPERATORS ? list[index] : NULL;
}

const char *onepass_operator_name(const onepass_operator *op)
{
    return op ? op->name : "";
}

const onepass_argument_info *onepass_operator_argument(const onepass_operator *op, int32_t index)
{
    return op && index >= 0 && index < op->argument_count ? &op->arguments[index].info : NULL;
}

const onepass_option_info *onepass_operator_option(const onepass_operator *op, int32_t index)
{
    return op && index >= 0 && index < op->option_count ? &op->options[index].info : NULL;
}

onepass_role onepass_operator_role(const onepass_operator *op, int32_t index, const double *options)
{
    if (!onepass_operator_argument(op, index))
        return ONEPASS_READ;
    return options ? onep_argument_role(op, index, options) : op->arguments[index].info.role;
}

static onepass_status run(const onepass_operator *op, onepass_handle *handle, const onepass_tensor *const *tensors,
                          const double *options, onep_call *call)
{
    if (!op)
        return onep_missing("call", "op");
    if (!tensors || (!options && op->option_count > 0))
        return onep_missing(op->name, tensors ? "options" : "tensors");
    call->op = op;
    call->handle = handle;
    for (int i = 0; i < op->argument_count; i++)
        call->tensors[i] = tensors[i];
    for (int i = 0; i < op->option_count; i++)
        call->options[i] = options[i];
    return onep_call_run(call);
}

onepass_status onepass_call(onepass_handle *handle, const onepass_operator *op, const onepass_tensor *const *tensors,
                            const double *options, void *workspace, size_t workspace_size)
{
    onep_call call = {.workspace = workspace, .workspace_size = workspace_size};
    return run(op, handle, tensors, options, &call);
}

onepass_status onepass_call_workspace_size(onepass_handle *handle, const onepass_operator *op,
                                           const onepass_tensor *const *tensors, const double *options, size_t *bytes)
{
    onep_call call = {.bytes = bytes};
    return bytes ? run(op, handle, tensors, options, &call) : onep_missing("call_workspace_size", "bytes");
}
