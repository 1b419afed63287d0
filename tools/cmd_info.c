/* onepass info: what this build holds and what this machine can run of it. Computes nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "device.h"
#include "device_memory.h"
#include "handle.h"
#include "json.h"
#include "kernels.h"
#include "message.h"
#include "product.h"

/* Two lists of levels: those built in, and of these the ones that run here. */
static void print_levels(json_writer *json, const char *name, int (*holds)(onep_level))
{
    if (json)
        json_open(json, name, '[');
    else
        printf("%-16s", name);
    for (int level = 0; level < ONEP_LEVELS; level++) {
        if (!holds((onep_level)level))
            continue;
        if (json)
            json_string(json, NULL, onep_level_name((onep_level)level));
        else
            printf(" %s", onep_level_name((onep_level)level));
    }
    if (json)
        json_close(json, ']');
    else
        putchar('\n');
}

/* Who makes fp32 products there unless told otherwise; by shape where there are two (docs/performance.md). */
static const char *fp32_products(const onep_cuda_info *info)
{
    return info->copy_engine ? "own on tensor cores, where faster than cuBLAS" : "cuBLAS";
}

/* The CPU, and each GPU; where there is none, why. */
static void print_devices_json(json_writer *json)
{
    const char *why;
    int count = onep_cuda_devices(&why);
    json_open(json, "devices", '[');
    json_open(json, NULL, '{');
    json_string(json, "name", "cpu");
    json_boolean(json, "usable", true);
    json_close(json, '}');
    for (int i = 0; i < (count ? count : 1); i++) {
        onep_cuda_info info;
        char name[24];
        snprintf(name, sizeof name, count ? "cuda:%d" : "cuda", i);
        json_open(json, NULL, '{');
        json_string(json, "name", name);
        json_boolean(json, "usable", count && onep_cuda_describe(i, &info));
        if (count && onep_cuda_describe(i, &info)) {
            json_string(json, "model", info.name);
            json_integer(json, "compute_capability", 10 * info.major + info.minor);
            json_integer(json, "multiprocessors", info.multiprocessors);
            json_integer(json, "memory_bytes", (int64_t)info.memory_bytes);
            json_integer(json, "l2_bytes", info.l2_bytes);
            json_integer(json, "driver", info.driver_version);
            json_string(json, "fp32_products", fp32_products(&info));
        } else {
            json_string(json, "reason", why);
        }
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void print_devices(void)
{
    const char *why;
    int count = onep_cuda_devices(&why);
    printf("%-16s cpu", "devices");
    if (count == 0)
        printf("; cuda: %s", why);
    putchar('\n');
    for (int i = 0; i < count; i++) {
        onep_cuda_info info;
        if (onep_cuda_describe(i, &info))
            printf("%-16s cuda:%d, %s, compute capability %d.%d, %d multiprocessors, %.1f GiB, driver for CUDA %d.%d, "
                   "fp32 products: %s\n",
                   "", i, info.name, info.major, info.minor, info.multiprocessors, (double)info.memory_bytes * 0x1p-30,
                   info.driver_version / 1000, info.driver_version % 1000 / 10, fp32_products(&info));
    }
}

/* Who multiplies on a GPU, or why it is the library's own kernel. */
static void print_products(json_writer *json)
{
    char text[400];
    bool found = onep_products_describe(text, sizeof text);
    if (!json) {
        printf("%-16s %s\n", "CUDA products", text);
    } else if (found) {
        json_string(json, "cublaslt", text);
    } else {
        json_null(json, "cublaslt");
        json_string(json, "cublaslt_text", text);
    }
}

/* Who multiplies on the CPU; "" or why it is the library itself. */
static const char *blas_missing(onepass_handle *handle)
{
    const char *asked = getenv("ONEPASS_BLAS");
    if (strcmp(onepass_blas(handle), "none") != 0)
        return "";
    return asked && strcmp(asked, "none") == 0
               ? "$ONEPASS_BLAS is \"none\"; matrices are multiplied by the library's own product"
               : "none found; matrices are multiplied by the library's own product";
}

static void print_json(onepass_handle *handle)
{
    json_writer json = json_begin(stdout, "info");
    json_string(&json, "version", onepass_version());
    json_string(&json, "isa", onepass_isa(handle));
    print_levels(&json, "levels_built", onep_level_built);
    print_levels(&json, "levels_usable", onep_level_runs);
    json_integer(&json, "cores", onepass_threads(handle));
    const char *missing = blas_missing(handle);
    if (*missing) {
        json_null(&json, "blas");
        json_string(&json, "blas_text", missing);
    } else {
        json_string(&json, "blas", onepass_blas(handle));
    }
    print_products(&json);
    print_devices_json(&json);
    json_end(&json);
}

static void print_text(onepass_handle *handle)
{
    printf("%-16s %s\n", "onepass", onepass_version());
    printf("%-16s %s\n", "vector level", onepass_isa(handle));
    print_levels(NULL, "levels built in", onep_level_built);
    print_levels(NULL, "levels usable", onep_level_runs);
    printf("%-16s %d\n", "cores usable", (int)onepass_threads(handle));
    printf("%-16s %s\n", "BLAS", *blas_missing(handle) ? blas_missing(handle) : onepass_blas(handle));
    print_products(NULL);
    print_devices();
}

/* A device that was asked for by name must be usable: a handle is made on it, kernels are loaded, cuBLASLt started. */
static int try_device(onepass_device device)
{
    onepass_handle *handle;
    onepass_config config = {.size = sizeof config, .device = device};
    onepass_status status = onepass_create(&config, &handle);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    if (handle->cuda)
        onep_cuda_products(handle->cuda);
    onepass_destroy(handle);
    return EXIT_FINE;
}

int command_info(const parsed_options *options)
{
    onepass_device device;
    int code = device_option(options, &device);
    if (code == EXIT_FINE)
        code = try_device(device);
    if (code)
        return code;
    onepass_handle *handle;
    onepass_status status = onepass_create(NULL, &handle);
    if (status != ONEPASS_OK)
        return message_library_error(status);
    if (options_given(options, "json"))
        print_json(handle);
    else
        print_text(handle);
    onepass_destroy(handle);
    return EXIT_FINE;
}
