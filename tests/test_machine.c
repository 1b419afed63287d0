/*
 * What a program without a CUDA toolkit builds on: levels and devices, memory, waiting, timing, the read probe, the
 * GEMM library of a handle, roles of tensors. On the CPU everywhere; on a CUDA device where the driver shows one, which
 * may be the stand-in of driver_standin.c.
 */
#define _DEFAULT_SOURCE /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define BAD ONEPASS_INVALID_ARGUMENT

/* The call failed with this status and a message that holds both words. */
static void refused(onepass_status got, onepass_status want, const char *word, const char *other)
{
    const char *text = onepass_last_error();
    CHECK(got == want && strstr(text, word) && strstr(text, other), "%s: %s", onepass_status_name(got), text);
}

/* ---- before there is a handle ------------------------------------------------------------------------------------ */

static void test_levels(void)
{
    test_context("levels");
    CHECK(onepass_isa_support(NULL) == 0 && onepass_isa_support("") == 0 && onepass_isa_support("sse2") == 0,
          "an unknown level is there");
    CHECK(onepass_isa_support("ref") == 2 && onepass_isa_support("scalar") == 2, "plain C does not run");
    for (int level = 0; level < ONEP_ALL_LEVELS; level++) {
        const char *name = onep_level_name((onep_level)level);
        int want = onep_level_runs((onep_level)level) ? 2 : onep_level_built((onep_level)level) ? 1 : 0;
        CHECK(onepass_isa_support(name) == want, "%s: %d, not %d", name, (int)onepass_isa_support(name), want);
        onepass_config config = {.size = sizeof config, .isa = name};
        onepass_handle *made = NULL;
        if (level < ONEP_LEVELS)
            CHECK((onepass_create(&config, &made) == ONEPASS_OK) == (want == 2), "%s: %d", name, want);
        onepass_destroy(made);
    }
}

static void test_devices(void)
{
    const onepass_device cpu = {ONEPASS_CPU, 0}, cuda = {ONEPASS_CUDA, 0};
    onepass_device_info info = {.size = sizeof info};
    test_context("devices");
    CHECK(onepass_device_count(ONEPASS_CPU) == 1 && onepass_device_count((onepass_device_type)77) == 0, "a count");
    CHECK(onepass_describe_device(cpu, &info) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(info.size == sizeof info && strcmp(info.name, "cpu") == 0, "%s", info.name);
    CHECK(info.multiprocessors > 0 && info.memory_bytes > 0 && info.compute_capability == 0, "the CPU");
    refused(onepass_describe_device(cpu, NULL), BAD, "describe_device", "info: NULL");
    refused(onepass_describe_device((onepass_device){ONEPASS_CPU, 1}, &info), BAD, "type 1", "id 1");
    refused(onepass_describe_device((onepass_device){9, 0}, &info), BAD, "type 9", "ONEPASS_CUDA");

    int count = onepass_device_count(ONEPASS_CUDA);
    CHECK((count > 0) == (onepass_isa_support("cuda") == 2), "%d devices, support %d", count,
          (int)onepass_isa_support("cuda"));
    memset(&info, 0xff, sizeof info);
    info.size = sizeof info;
    if (count > 0) {
        CHECK(onepass_describe_device(cuda, &info) == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(info.name[0] && info.compute_capability >= 30 && info.multiprocessors > 0 && info.memory_bytes > 0 &&
                  info.driver_version >= 11000 && (info.has_tma == 0 || info.has_tma == 1),
              "%s", info.name);
    } else {
        onepass_device_info before = info;
        refused(onepass_describe_device(cuda, &info), ONEPASS_NO_DEVICE, "cuda:0", "CUDA");
        CHECK(memcmp(&before, &info, sizeof info) == 0, "a failure writes");
    }
    refused(onepass_describe_device((onepass_device){ONEPASS_CUDA, count}, &info), ONEPASS_NO_DEVICE, "cuda", "CUDA");
    refused(onepass_describe_device((onepass_device){ONEPASS_CUDA, -1}, &info), ONEPASS_NO_DEVICE, "cuda:-1", "CUDA");
}

/* A caller compiled against another header: shorter is refused below the first size, longer is filled with zeros. */
static void test_versions(void)
{
    union {
        onepass_device_info info;
        unsigned char bytes[sizeof(onepass_device_info) + 64];
    } longer;
    test_context("versions of onepass_device_info");
    memset(&longer, 0xff, sizeof longer);
    longer.info.size = sizeof longer;
    CHECK(onepass_describe_device((onepass_device){ONEPASS_CPU, 0}, &longer.info) == ONEPASS_OK, "a newer caller");
    CHECK(longer.info.size == sizeof longer && strcmp(longer.info.name, "cpu") == 0, "what is known");
    for (size_t i = sizeof longer.info; i < sizeof longer; i++)
        CHECK(longer.bytes[i] == 0, "byte %zu is %d", i, longer.bytes[i]);
    for (size_t size = 0; size < sizeof longer; size += sizeof(size_t)) {
        longer.info.size = size;
        onepass_status status = onepass_describe_device((onepass_device){ONEPASS_CPU, 0}, &longer.info);
        CHECK((status == ONEPASS_OK) == (size + sizeof(size_t) > sizeof longer.info), "size %zu: %d", size, status);
    }
    longer.info.size = 100000;
    refused(onepass_describe_device((onepass_device){ONEPASS_CPU, 0}, &longer.info), BAD, "info.size", "100000");
}

/* ---- with a handle ----------------------------------------------------------------------------------------------- */

static void test_memory(onepass_handle *handle)
{
    enum { BYTES = 1000, AT = 100, PART = 37 };
    unsigned char here[BYTES], back[BYTES];
    void *memory = &memory;
    for (int i = 0; i < BYTES; i++)
        here[i] = (unsigned char)(7 * i);
    CHECK(onepass_memory_alloc(handle, BYTES, &memory) == ONEPASS_OK && memory, "%s", onepass_last_error());
    CHECK((uintptr_t)memory % 256 == 0, "%p", memory);
    CHECK(onepass_memory_copy(handle, memory, here, BYTES) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_memory_fill(handle, (char *)memory + AT, 0xab, PART) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_wait(handle) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_memory_copy(handle, back, memory, BYTES) == ONEPASS_OK, "%s", onepass_last_error());
    memset(here + AT, 0xab, PART);
    CHECK(memcmp(here, back, BYTES) == 0, "what comes back differs");

    void *other = NULL; /* from one place on the device to another */
    CHECK(onepass_memory_alloc(handle, BYTES, &other) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_memory_copy(handle, other, memory, BYTES) == ONEPASS_OK, "%s", onepass_last_error());
    memset(back, 0, BYTES);
    CHECK(onepass_memory_copy(handle, back, other, BYTES) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(memcmp(here, back, BYTES) == 0, "a copy on the device differs");
    CHECK(onepass_memory_free(handle, other) == ONEPASS_OK, "%s", onepass_last_error());

    void *nothing = &nothing;
    CHECK(onepass_memory_alloc(handle, 0, &nothing) == ONEPASS_OK && !nothing, "0 bytes");
    CHECK(onepass_memory_copy(handle, NULL, NULL, 0) == ONEPASS_OK, "a copy of nothing");
    CHECK(onepass_memory_fill(handle, NULL, 0, 0) == ONEPASS_OK, "a fill of nothing");
    CHECK(onepass_memory_free(handle, NULL) == ONEPASS_OK, "nothing is freed");
    refused(onepass_memory_alloc(handle, BYTES, NULL), BAD, "memory_alloc", "memory: NULL");
    refused(onepass_memory_copy(handle, NULL, here, 1), BAD, "memory_copy", "to: NULL");
    refused(onepass_memory_copy(handle, memory, NULL, 1), BAD, "memory_copy", "from: NULL");
    refused(onepass_memory_fill(handle, NULL, 0, 1), BAD, "memory_fill", "to: NULL");
    refused(onepass_memory_fill(handle, memory, 256, 1), BAD, "memory_fill", "256");
    refused(onepass_memory_fill(handle, memory, -1, 1), BAD, "memory_fill", "-1");
#ifdef TEST_SANITIZED
    test_left_out("more memory than there is: a sanitizer's allocator ends the program instead");
#else
    for (int i = 0; i < 2; i++) { /* 16 EiB, the second of them wrapping around when it is rounded up */
        nothing = &nothing;
        onepass_status status = onepass_memory_alloc(handle, SIZE_MAX - (i ? 0 : 4096), &nothing);
        CHECK(status == ONEPASS_OUT_OF_MEMORY && !nothing, "%s: %s", onepass_status_name(status), onepass_last_error());
    }
#endif
    CHECK(onepass_memory_free(handle, memory) == ONEPASS_OK, "%s", onepass_last_error());
}

static void test_timer(onepass_handle *handle)
{
    onepass_timer *timer = NULL;
    double seconds = -1;
    void *memory = NULL;
    enum { BYTES = 1 << 22 };
    CHECK(onepass_memory_alloc(handle, BYTES, &memory) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_timer_create(handle, &timer) == ONEPASS_OK && timer, "%s", onepass_last_error());
    refused(onepass_timer_stop(timer), BAD, "timer_stop", "not been started");
    refused(onepass_timer_seconds(timer, &seconds), BAD, "timer_seconds", "started and stopped");
    for (int i = 0; i < 2; i++) {
        CHECK(onepass_timer_start(timer) == ONEPASS_OK, "%s", onepass_last_error());
        refused(onepass_timer_seconds(timer, &seconds), BAD, "timer_seconds", "started and stopped");
        CHECK(seconds == -1, "a failure writes");
        CHECK(onepass_memory_fill(handle, memory, i, BYTES) == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(onepass_timer_stop(timer) == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(onepass_timer_seconds(timer, &seconds) == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(seconds > 0 && seconds < 10, "%g s", seconds);
        seconds = -1;
    }
    refused(onepass_timer_seconds(timer, NULL), BAD, "timer_seconds", "seconds: NULL");
    onepass_timer_destroy(timer);
    onepass_timer_destroy(NULL);
    refused(onepass_timer_create(handle, NULL), BAD, "timer_create", "timer: NULL");
    refused(onepass_timer_start(NULL), BAD, "timer_start", "timer: NULL");
    refused(onepass_timer_stop(NULL), BAD, "timer_stop", "timer: NULL");
    refused(onepass_timer_seconds(NULL, &seconds), BAD, "timer_seconds", "timer: NULL");
    onepass_memory_free(handle, memory);
}

static void test_probe(onepass_handle *handle)
{
    enum { BYTES = 1 << 20 };
    void *memory = NULL;
    CHECK(onepass_memory_alloc(handle, BYTES + 16, &memory) == ONEPASS_OK, "%s", onepass_last_error());
    char *data = memory, *sink = data + BYTES;
    if (onepass_device_of(handle).type == ONEPASS_CPU) {
        refused(onepass_read_probe(handle, data, BYTES, sink), ONEPASS_UNSUPPORTED, "read_probe", "CPU");
        onepass_memory_free(handle, memory);
        return;
    }
    unsigned before = 0x12345678, after = 0;
    onepass_memory_copy(handle, sink, &before, sizeof before);
    onepass_memory_fill(handle, data, 1, BYTES);
    CHECK(onepass_read_probe(handle, data, BYTES, sink) == ONEPASS_OK && onepass_wait(handle) == ONEPASS_OK, "%s",
          onepass_last_error());
    onepass_memory_copy(handle, &after, sink, sizeof after);
    CHECK(after == before, "the probe wrote");
    CHECK(onepass_read_probe(handle, NULL, 0, sink) == ONEPASS_OK, "%s", onepass_last_error());
    refused(onepass_read_probe(handle, NULL, 16, sink), BAD, "read_probe", "data: NULL");
    refused(onepass_read_probe(handle, data, 16, NULL), BAD, "read_probe", "sink: NULL");
    refused(onepass_read_probe(handle, data + 4, 16, sink), BAD, "read_probe", "multiples of 16");
    refused(onepass_read_probe(handle, data, 17, sink), BAD, "read_probe", "multiples of 16");
    refused(onepass_read_probe(handle, data, 16, &after), BAD, "read_probe", "sink");
    onepass_memory_free(handle, memory);
}

static void test_gemm_library(onepass_handle *handle)
{
    char text[400] = "", cut[5];
    const char *name = onepass_blas(handle);
    CHECK(onepass_describe_blas(handle, text, sizeof text) == ONEPASS_OK && text[0], "%s", onepass_last_error());
    CHECK((strcmp(name, "none") == 0) == (strstr(text, "own ") != NULL), "%s: %s", name, text);
    memset(cut, 'x', sizeof cut);
    CHECK(onepass_describe_blas(handle, cut, sizeof cut - 1) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(strncmp(cut, text, 3) == 0 && cut[3] == 0 && cut[4] == 'x', "a short buffer: %.4s", cut);
    refused(onepass_describe_blas(handle, NULL, 5), BAD, "describe_blas", "text: NULL");
    refused(onepass_describe_blas(handle, cut, 0), BAD, "describe_blas", "size: 0");
}

static void test_on(onepass_handle *handle, const char *name)
{
    test_context("memory on %s", name);
    test_memory(handle);
    test_context("a timer on %s", name);
    test_timer(handle);
    test_context("the read probe on %s", name);
    test_probe(handle);
    test_context("the GEMM library on %s", name);
    test_gemm_library(handle);
}

static void test_no_handle(void)
{
    void *memory = &memory;
    onepass_timer *timer = (onepass_timer *)&timer;
    char text[8];
    test_context("no handle");
    CHECK(onepass_device_of(NULL).type == 0, "a device of no handle");
    refused(onepass_memory_alloc(NULL, 1, &memory), BAD, "memory_alloc", "handle: NULL");
    CHECK(!memory, "memory without a handle");
    refused(onepass_memory_free(NULL, NULL), BAD, "memory_free", "handle: NULL");
    refused(onepass_memory_copy(NULL, text, text, 1), BAD, "memory_copy", "handle: NULL");
    refused(onepass_memory_fill(NULL, text, 0, 1), BAD, "memory_fill", "handle: NULL");
    refused(onepass_wait(NULL), BAD, "wait", "handle: NULL");
    refused(onepass_timer_create(NULL, &timer), BAD, "timer_create", "handle: NULL");
    CHECK(!timer, "a timer without a handle");
    refused(onepass_read_probe(NULL, text, 0, text), BAD, "read_probe", "handle: NULL");
    refused(onepass_describe_blas(NULL, text, sizeof text), BAD, "describe_blas", "handle: NULL");
}

/* ---- roles ------------------------------------------------------------------------------------------------------- */

static void test_roles(void)
{
    const onepass_argument_info *argument;
    test_context("roles");
    for (int k = 0; onepass_operator_at(k); k++) {
        const onepass_operator *op = onepass_operator_at(k);
        for (int i = 0; (argument = onepass_operator_argument(op, i)); i++)
            CHECK(onepass_operator_role(op, i, NULL) == argument->role, "%s: %s", onepass_operator_name(op),
                  argument->name);
        CHECK(onepass_operator_role(op, -1, NULL) == ONEPASS_READ &&
                  onepass_operator_role(op, 99, NULL) == ONEPASS_READ,
              "beyond the arguments");
    }
    const onepass_operator *head = onepass_operator_named("head");
    const double train[] = {ONEPASS_BATCH_STATISTICS, 0, 0, 0}, eval[] = {ONEPASS_RUNNING_STATISTICS, 0, 0, 0};
    int updated = 0;
    for (int i = 0; (argument = onepass_operator_argument(head, i)); i++) {
        int running = strstr(argument->name, "running") != NULL;
        CHECK(onepass_operator_role(head, i, train) == argument->role, "%s", argument->name);
        CHECK(onepass_operator_role(head, i, eval) == (running ? ONEPASS_READ : argument->role), "%s", argument->name);
        updated += running && argument->role == ONEPASS_UPDATED;
    }
    CHECK(updated == 2, "%d running statistics", updated);
    CHECK(onepass_operator_role(NULL, 0, train) == ONEPASS_READ, "no operator");
}

int main(void)
{
    unsetenv("ONEPASS_ISA");
    test_begin("test_machine");
    test_levels();
    test_devices();
    test_versions();
    test_no_handle();
    test_roles();
    onepass_handle *handle = test_handle(onep_best_level(), 1);
    CHECK(onepass_device_of(handle).type == ONEPASS_CPU && onepass_device_of(handle).id == 0, "the CPU");
    test_on(handle, "the CPU");
    onepass_destroy(handle);
    handle = test_handle(ONEP_REF, 1);
    test_gemm_library(handle);
    onepass_destroy(handle);

    onepass_config config = {.size = sizeof config, .device = {ONEPASS_CUDA, 0}};
    onepass_device_info info = {.size = sizeof info};
    if (onepass_describe_device(config.device, &info) == ONEPASS_OK) {
        CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
        CHECK(onepass_device_of(handle).type == ONEPASS_CUDA, "a CUDA handle");
        test_on(handle, info.name);
        onepass_destroy(handle);
    } else {
        test_left_out("CUDA: %s", onepass_last_error());
    }
    return test_end();
}
