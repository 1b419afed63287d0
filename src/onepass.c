/* Creates and destroys handles: every check on a configuration is here, and the choice of device and level. */
#include "onepass.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/status.h"
#include "core/threads.h"
#include "core/versioned.h"
#include "cpu/blas.h"
#include "cpu/detect.h"
#include "machine.h"
#include "operators.h"
#if defined(ONEPASS_HAVE_CUDA)
#include "cuda/device.h"
#endif

/* onepass_config as first published: up to progress_context. */
enum { FIRST_CONFIG_SIZE = offsetof(onepass_config, progress_context) + sizeof(void *) };

/* The level asked for by name, by $ONEPASS_ISA, or the best one. */
static onepass_status choose_level(const char *isa, onep_level *level)
{
    const char *source = "config.isa";
    if (!isa) {
        source = "$ONEPASS_ISA";
        isa = getenv("ONEPASS_ISA");
        if (!isa || !*isa) {
            *level = onep_best_level();
            return ONEPASS_OK;
        }
    }
    *level = onep_level_named(isa);
    if (*level == ONEP_LEVELS)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: %s: \"%.32s\" is not a level; use ref, scalar, avx2, avx512 or neon", source, isa);
    if (!onep_level_built(*level))
        return onep_fail(ONEPASS_UNSUPPORTED, "create: %s: level \"%s\" is not built into this library", source, isa);
    if (!onep_cpu_has(*level))
        return onep_fail(ONEPASS_UNSUPPORTED, "create: %s: this processor cannot run level \"%s\"", source, isa);
    return ONEPASS_OK;
}

/* What a GPU has no use for is refused, not ignored. */
static onepass_status check_for_cuda(const onepass_config *config)
{
    if (config->device.id < 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "create: config.device: cuda:%d; the id must not be negative",
                         (int)config->device.id);
    if ((uint32_t)config->fp32_products > ONEPASS_FP32_VENDOR)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.fp32_products: %d; it must be one of onepass_fp32_products",
                         (int)config->fp32_products);
    if ((config->trust_addresses & ~1) != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "create: config.trust_addresses: %d; it must be 0 or 1",
                         (int)config->trust_addresses);
    if (config->threads != 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.threads: %d; it is for the CPU, with a CUDA device it must be 0",
                         (int)config->threads);
    if (config->isa)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.isa: \"%.32s\"; it is for the CPU, with a CUDA device it must be NULL",
                         config->isa);
    if (config->progress)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.progress: given; a call on a CUDA device does not wait for its work, it must "
                         "be NULL");
    if (config->blas)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.blas: \"%.32s\"; it is for the CPU, with a CUDA device it must be NULL",
                         config->blas);
    return ONEPASS_OK;
}

static onepass_status check_for_cpu(const onepass_config *config)
{
    if (config->stream)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "create: config.stream: %p; the CPU has no streams, it must be NULL",
                         config->stream);
    if (config->fp32_products)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.fp32_products: %d; it is for CUDA devices, with the CPU it must be 0",
                         (int)config->fp32_products);
    if (config->trust_addresses)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.trust_addresses: %d; it is for CUDA devices, with the CPU it must be 0",
                         (int)config->trust_addresses);
    if (config->threads < 0 || config->threads > ONEP_MAX_THREADS)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "create: config.threads: %d; it must be from 0 (all cores) to %d",
                         (int)config->threads, ONEP_MAX_THREADS);
    return ONEPASS_OK;
}

static onepass_status open_cuda(onepass_handle *handle, const onepass_config *config)
{
    onepass_status status = check_for_cuda(config);
    if (status != ONEPASS_OK)
        return status;
    handle->level = ONEP_CUDA;
    handle->fp32_products = (onepass_fp32_products)config->fp32_products;
#if defined(ONEPASS_HAVE_CUDA)
    return onep_cuda_open(handle, config->device.id, config->stream, config->trust_addresses);
#else
    return onep_fail(ONEPASS_NO_DEVICE, "create: config.device: cuda:%d; this library was built without CUDA kernels",
                     (int)config->device.id);
#endif
}

static onepass_status open_cpu(onepass_handle *handle, const onepass_config *config)
{
    onep_blas_choice blas = ONEP_BLAS_ANY;
    onepass_status status = check_for_cpu(config);
    if (status == ONEPASS_OK)
        status = choose_level(config->isa, &handle->level);
    if (status == ONEPASS_OK)
        status = onep_blas_choose(config->blas, &blas);
    handle->blas = (int32_t)blas;
    handle->threads = config->threads ? config->threads : onep_usable_cores();
    return status;
}

static onepass_status fill(onepass_handle *handle, const onepass_config *config)
{
    handle->device = config->device;
    handle->progress = config->progress;
    handle->progress_context = config->progress_context;
    return config->device.type == ONEPASS_CUDA ? open_cuda(handle, config) : open_cpu(handle, config);
}

onepass_status onepass_create(const onepass_config *config, onepass_handle **handle)
{
    static const onepass_config defaults = {.size = sizeof defaults};
    if (!handle)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "create: handle: NULL; it receives the new handle");
    *handle = NULL;
    if (!config)
        config = &defaults;
    onepass_config known;
    onepass_status status = onep_read_versioned("create", "config", config, FIRST_CONFIG_SIZE, &known, sizeof known);
    if (status != ONEPASS_OK)
        return status;
    if (known.device.type == 0)
        known.device.type = ONEPASS_CPU;
    if (known.device.type != ONEPASS_CUDA && (known.device.type != ONEPASS_CPU || known.device.id != 0))
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.device: type %d, id %d; use ONEPASS_CPU with id 0, or ONEPASS_CUDA",
                         (int)known.device.type, (int)known.device.id);

    onepass_handle *created = (onepass_handle *)calloc(1, sizeof *created);
    if (!created)
        return onep_fail(ONEPASS_OUT_OF_MEMORY, "create: no memory for a handle of %zu bytes", sizeof *created);
    status = fill(created, &known);
    if (status != ONEPASS_OK) {
        onepass_destroy(created);
        return status;
    }
    *handle = created;
    return ONEPASS_OK;
}

void onepass_destroy(onepass_handle *handle)
{
    if (handle && handle->device_class)
        handle->device_class->close(handle);
    free(handle);
}

const char *onepass_isa(const onepass_handle *handle)
{
    return handle ? onep_level_name(handle->level) : "";
}

int32_t onepass_threads(const onepass_handle *handle)
{
    return handle ? handle->threads : 0;
}

onepass_device onepass_device_of(const onepass_handle *handle)
{
    return handle ? handle->device : (onepass_device){0, 0};
}

/* The reference multiplies by itself. */
static onep_blas_choice blas_of(const onepass_handle *handle)
{
    return handle->level == ONEP_REF ? ONEP_BLAS_NONE : (onep_blas_choice)handle->blas;
}

const char *onepass_blas(onepass_handle *handle)
{
    char ignored[8];
    if (!handle)
        return "";
    if (handle->device_class)
        return handle->device_class->gemm_library(handle, ignored, sizeof ignored);
    const onep_blas *blas = onep_blas_of(blas_of(handle));
    return blas ? blas->name : "none";
}

onepass_status onepass_describe_blas(onepass_handle *handle, char *text, size_t size)
{
    if (!handle || !text || size == 0)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "describe_blas: %s; it is required",
                         !handle ? "handle: NULL"
                         : !text ? "text: NULL"
                                 : "size: 0");
    if (handle->device_class)
        handle->device_class->gemm_library(handle, text, size);
    else if (handle->level == ONEP_REF)
        snprintf(text, size, "the library's own product; level \"ref\" computes by definition");
    else
        onep_blas_describe(blas_of(handle), text, size);
    return ONEPASS_OK;
}

int32_t onepass_is_capturing(const onepass_handle *handle)
{
    return handle && handle->device_class && handle->device_class->is_capturing(handle);
}
