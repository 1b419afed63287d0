/* onepass info: what this build holds and what this machine can run of it. Computes nothing. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "device.h"
#include "device_memory.h"
#include "json.h"
#include "kernels.h"
#include "message.h"

#define NO_BLAS "none found; matrices are multiplied by the library's own product"

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
            printf("%-16s cuda:%d, %s, compute capability %d.%d, %d multiprocessors, %.1f GiB, driver for CUDA %d.%d\n",
                   "", i, info.name, info.major, info.minor, info.multiprocessors, (double)info.memory_bytes * 0x1p-30,
                   info.driver_version / 1000, info.driver_version % 1000 / 10);
    }
}

static bool has_blas(onepass_handle *handle)
{
    return strcmp(onepass_blas(handle), "none") != 0;
}

static void print_json(onepass_handle *handle)
{
    json_writer json = json_begin(stdout, "info");
    json_string(&json, "version", onepass_version());
    json_string(&json, "isa", onepass_isa(handle));
    print_levels(&json, "levels_built", onep_level_built);
    print_levels(&json, "levels_usable", onep_level_runs);
    json_integer(&json, "cores", onepass_threads(handle));
    if (has_blas(handle)) {
        json_string(&json, "blas", onepass_blas(handle));
    } else {
        json_null(&json, "blas");
        json_string(&json, "blas_text", NO_BLAS);
    }
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
    printf("%-16s %s\n", "BLAS", has_blas(handle) ? onepass_blas(handle) : NO_BLAS);
    print_devices();
}

/* A device that was asked for by name must be usable: a handle is made on it, and the kernels are loaded. */
static int try_device(onepass_device device)
{
    onepass_handle *handle;
    onepass_config config = {.size = sizeof config, .device = device};
    onepass_status status = onepass_create(&config, &handle);
    if (status != ONEPASS_OK)
        return message_library_error(status);
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
