/* onepass info: what this build holds and what this machine can run of it. Computes nothing. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "device.h"
#include "json.h"
#include "message.h"

enum { BUILT = 1, RUNS = 2 };
enum { TEXT_SIZE = 600 };

typedef struct info_job {
    onepass_handle *cpu, *cuda; /* cuda NULL: no device, or it cannot be used */
    char why[TEXT_SIZE];        /* why there is none */
} info_job;

/* Two lists of levels: those built in, and of these the ones that run here. */
static void print_levels(json_writer *json, const char *name, int32_t support)
{
    if (json)
        json_open(json, name, '[');
    else
        printf("%-16s", name);
    for (int level = 0; level < DEVICE_LEVELS; level++) {
        if (onepass_isa_support(device_levels[level]) < support)
            continue;
        if (json)
            json_string(json, NULL, device_levels[level]);
        else
            printf(" %s", device_levels[level]);
    }
    if (json)
        json_close(json, ']');
    else
        putchar('\n');
}

/* What makes fp32 products there unless told otherwise; by shape where there are two (docs/performance.md). */
static const char *fp32_products(const onepass_device_info *info)
{
    return info->has_tma ? "own on tensor cores, where faster than cuBLAS" : "cuBLAS";
}

/* The reason in the library's last message, without the call that failed: what follows "operator: argument: value; ".
 */
static const char *reason(void)
{
    const char *text = onepass_last_error(), *rule = strstr(text, "; ");
    return rule ? rule + 2 : text;
}

static bool describe(int id, onepass_device_info *info)
{
    *info = (onepass_device_info){.size = sizeof *info};
    return onepass_describe_device((onepass_device){ONEPASS_CUDA, id}, info) == ONEPASS_OK;
}

/* The CPU, and each GPU; where there is none, why. */
static void print_devices_json(json_writer *json)
{
    int count = onepass_device_count(ONEPASS_CUDA);
    json_open(json, "devices", '[');
    json_open(json, NULL, '{');
    json_string(json, "name", "cpu");
    json_boolean(json, "usable", true);
    json_close(json, '}');
    for (int i = 0; i < (count ? count : 1); i++) {
        onepass_device_info info;
        bool usable = describe(i, &info);
        char name[24];
        snprintf(name, sizeof name, count ? "cuda:%d" : "cuda", i);
        json_open(json, NULL, '{');
        json_string(json, "name", name);
        json_boolean(json, "usable", usable);
        if (usable) {
            json_string(json, "model", info.name);
            json_integer(json, "compute_capability", info.compute_capability);
            json_integer(json, "multiprocessors", info.multiprocessors);
            json_integer(json, "memory_bytes", info.memory_bytes);
            json_integer(json, "l2_bytes", info.l2_bytes);
            json_integer(json, "driver", info.driver_version);
            json_string(json, "fp32_products", fp32_products(&info));
        } else {
            json_string(json, "reason", reason());
        }
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void print_devices(void)
{
    onepass_device_info info;
    int count = onepass_device_count(ONEPASS_CUDA);
    printf("%-16s cpu", "devices");
    if (count == 0 && !describe(0, &info))
        printf("; cuda: %s", reason());
    putchar('\n');
    for (int i = 0; i < count; i++)
        if (describe(i, &info))
            printf("%-16s cuda:%d, %s, compute capability %d.%d, %d multiprocessors, %.1f GiB, driver for CUDA %d.%d, "
                   "fp32 products: %s\n",
                   "", i, info.name, (int)info.compute_capability / 10, (int)info.compute_capability % 10,
                   (int)info.multiprocessors, (double)info.memory_bytes * 0x1p-30, (int)info.driver_version / 1000,
                   (int)info.driver_version % 1000 / 10, fp32_products(&info));
}

/* The GEMM library of a handle, or why the library's own product is used, or why there is no such handle. */
static void print_gemm_library(const info_job *job, json_writer *json, const char *name, onepass_handle *handle)
{
    char text[TEXT_SIZE], text_key[24];
    bool found = handle && strcmp(onepass_blas(handle), "none") != 0;
    if (!handle || onepass_describe_blas(handle, text, sizeof text) != ONEPASS_OK)
        snprintf(text, sizeof text, "%s", job->why);
    if (!json) {
        printf("%-16s %s\n", name, text);
    } else if (found) {
        json_string(json, name, handle == job->cpu ? onepass_blas(handle) : text);
    } else {
        snprintf(text_key, sizeof text_key, "%s_text", name);
        json_null(json, name);
        json_string(json, text_key, text);
    }
}

static void print_json(const info_job *job)
{
    json_writer json = json_begin(stdout, "info");
    json_string(&json, "version", onepass_version());
    json_string(&json, "isa", onepass_isa(job->cpu));
    print_levels(&json, "levels_built", BUILT);
    print_levels(&json, "levels_usable", RUNS);
    json_integer(&json, "cores", onepass_threads(job->cpu));
    print_gemm_library(job, &json, "blas", job->cpu);
    print_gemm_library(job, &json, "cublaslt", job->cuda);
    print_devices_json(&json);
    json_end(&json);
}

static void print_text(const info_job *job)
{
    printf("%-16s %s\n", "onepass", onepass_version());
    printf("%-16s %s\n", "vector level", onepass_isa(job->cpu));
    print_levels(NULL, "levels built in", BUILT);
    print_levels(NULL, "levels usable", RUNS);
    printf("%-16s %d\n", "cores usable", (int)onepass_threads(job->cpu));
    print_gemm_library(job, NULL, "CPU GEMM", job->cpu);
    print_gemm_library(job, NULL, "CUDA GEMM", job->cuda);
    print_devices();
}

/* A device asked for by name must be usable. Otherwise the first one is tried: only a handle knows its GEMM library. */
static int open_cuda(info_job *job, onepass_device device)
{
    bool asked = device.type == ONEPASS_CUDA;
    onepass_config config = {.size = sizeof config, .device = asked ? device : (onepass_device){ONEPASS_CUDA, 0}};
    onepass_status status = onepass_create(&config, &job->cuda);
    if (status != ONEPASS_OK)
        snprintf(job->why, sizeof job->why, "%s", reason());
    return status != ONEPASS_OK && asked ? message_library_error(status) : EXIT_FINE;
}

int command_info(const parsed_options *options)
{
    info_job job = {0};
    onepass_device device;
    int code = device_option(options, &device);
    if (code == EXIT_FINE)
        code = open_cuda(&job, device);
    if (code)
        return code;
    onepass_status status = onepass_create(NULL, &job.cpu);
    if (status != ONEPASS_OK)
        code = message_library_error(status);
    else if (options_given(options, "json"))
        print_json(&job);
    else
        print_text(&job);
    onepass_destroy(job.cpu);
    onepass_destroy(job.cuda);
    return code;
}
