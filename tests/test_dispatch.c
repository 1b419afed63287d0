/*
 * One list, complete tables: every level has a kernel for every type, its own where the list has one and the next lower
 * level's elsewhere, the reference first of all. The level that is chosen is the best that runs, $ONEPASS_ISA and
 * config.isa are honoured, and wrong ones are refused, as is every other mistake in a configuration. With
 * ONEPASS_TEST_LEVEL set the best level must be that one, so that a machine whose detection fails is noticed.
 */
#define _DEFAULT_SOURCE /* setenv, MAP_ANONYMOUS */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/detect.h"
#include "harness.h"

#define BAD ONEPASS_INVALID_ARGUMENT

static void test_list(void)
{
    int count = 0;
    const onep_operator *const *list = onep_operators(&count);
    CHECK(count > 0, "an empty list");
    for (int i = 0; i < count; i++) {
        const onep_operator *op = list[i];
        test_context("%s", op->name);
        CHECK(op->argument_count > 0 && op->argument_count <= ONEP_MAX_ARGUMENTS, "%d arguments", op->argument_count);
        CHECK(op->option_count <= ONEP_MAX_OPTIONS, "%d options", op->option_count);
        CHECK(op->solve && op->workspace, "no way to solve it");
        for (int k = 0; k < i; k++)
            CHECK(strcmp(op->name, list[k]->name) != 0, "twice in the list");
        for (int a = 0; a < op->argument_count; a++) {
            const onep_argument *it = &op->arguments[a];
            CHECK(it->info.name && it->info.name[0], "argument %d has no name", a);
            CHECK((it->info.shape != NULL) != (it->shapes != NULL), "%s: its shape is said once", it->info.name);
            CHECK(it->type != ONEP_LIKE || it->like < a, "%s: like an argument that comes later", it->info.name);
            CHECK(!(it->shapes || (it->flags & ONEP_READ_BY)) || it->by < op->option_count, "%s: option %d",
                  it->info.name, it->by);
            for (int b = 0; b < a; b++)
                CHECK(strcmp(it->info.name, op->arguments[b].info.name) != 0, "%s: twice", it->info.name);
        }
    }
}

/* The operators as data, as a program without the library's own headers sees them. */
static void test_public_list(void)
{
    int count = 0;
    const onep_operator *const *list = onep_operators(&count);
    test_context("operators as data");
    for (int i = 0; i < count; i++) {
        const onepass_operator *op = onepass_operator_at(i);
        CHECK(op == list[i] && onepass_operator_named(list[i]->name) == op, "%s", list[i]->name);
        CHECK(strcmp(onepass_operator_name(op), list[i]->name) == 0, "%s", onepass_operator_name(op));
        int arguments = 0, options = 0;
        while (onepass_operator_argument(op, arguments))
            arguments++;
        while (onepass_operator_option(op, options))
            options++;
        CHECK(arguments == op->argument_count && options == op->option_count, "%s: %d arguments, %d options",
              list[i]->name, arguments, options);
        CHECK(!onepass_operator_argument(op, -1) && !onepass_operator_option(op, -1), "%s: index -1", list[i]->name);
    }
    CHECK(!onepass_operator_at(count) && !onepass_operator_at(-1), "beyond the list");
    CHECK(!onepass_operator_named("kl") && !onepass_operator_named(NULL) && !onepass_operator_named(""), "no operator");
    CHECK(!onepass_operator_argument(NULL, 0) && !onepass_operator_option(NULL, 0), "of no operator");
    CHECK(strcmp(onepass_operator_name(NULL), "") == 0, "the name of none");
}

/* The operators that devices lack so far: they refuse them. */
static int lacks_cuda(const char *name)
{
    static const char *const lacking[] = {"head_statistics",
                                          "head_synchronised",
                                          "head_backward_sums",
                                          "head_backward_synchronised",
                                          "shard_states",
                                          "shard_merge",
                                          "shard_sums",
                                          "shard_merge_sums",
                                          "shard_loss",
                                          "shard_token_log_probs",
                                          "shard_token_log_probs_backward"};
    for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++)
        if (strcmp(name, lacking[i]) == 0)
            return 1;
    return 0;
}

/* The operators whose reference is every level's kernel. */
static int is_for_all_levels(const char *name)
{
    return strcmp(name, "shard_merge") == 0 || strcmp(name, "shard_merge_sums") == 0;
}

/* Every level has a kernel for every type: its own where it has one, that of the next lower level elsewhere. */
static void test_kernels(const onep_operator *op)
{
    int on_cpu = op->kernels[ONEP_REF] != NULL; /* what exists for a device alone has no reference either */
    for (int level = 0; level < ONEP_LEVELS; level++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
            test_context("%s: level %s, %s", op->name, onep_level_name((onep_level)level),
                         onep_type_name((onep_type)type));
            const onep_kernel *kernel = onep_kernel_of(op, (onep_level)level, (onep_type)type);
            CHECK((kernel != NULL) == on_cpu, "%s", kernel ? "a kernel" : "none");
            if (!kernel || level == ONEP_REF)
                continue;
            const onep_kernel *lower = onep_kernel_of(op, (onep_level)(level - 1), (onep_type)type);
            const onep_kernel *reference = onep_kernel_of(op, ONEP_REF, (onep_type)type);
            if (onep_level_built((onep_level)level) && !is_for_all_levels(op->name))
                CHECK(kernel == &op->kernels[level][type] && kernel->run && kernel->run != lower->run &&
                          kernel->run != reference->run,
                      "the level's own kernel is not used");
            else
                CHECK(kernel == lower, "not the next lower level's");
        }
    test_context("%s: cuda", op->name); /* its own or none: the processor's cannot reach a GPU */
    int has_cuda = onep_level_built(ONEP_CUDA) && !lacks_cuda(op->name);
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++) {
        const onep_kernel *kernel = onep_kernel_of(op, ONEP_CUDA, (onep_type)type);
        CHECK(kernel == NULL || onep_level_built(ONEP_CUDA), "%s: a kernel of no build",
              onep_type_name((onep_type)type));
        CHECK((kernel != NULL) == has_cuda || !on_cpu, "%s: %s", onep_type_name((onep_type)type),
              kernel ? "a kernel" : "none");
        for (int level = 0; level < ONEP_LEVELS && kernel && on_cpu; level++)
            CHECK(kernel->run != onep_kernel_of(op, (onep_level)level, (onep_type)type)->run, "a kernel of level %s",
                  onep_level_name((onep_level)level));
    }
}

static void test_tables(void)
{
    int count = 0;
    const onep_operator *const *list = onep_operators(&count);
    for (int i = 0; i < count; i++)
        test_kernels(list[i]);
}

static void test_levels(void)
{
    test_context("levels");
    int best = 0;
    for (int level = 0; level < ONEP_LEVELS; level++) {
        const char *name = onep_level_name((onep_level)level);
        CHECK(onep_level_named(name) == (onep_level)level, "%s", name);
        int built = onep_level_built((onep_level)level);
        CHECK(!!onep_level_runs((onep_level)level) == (built && onep_cpu_has((onep_level)level)), "%s: runs", name);
        if (onep_level_runs((onep_level)level))
            best = level;
    }
    CHECK(onep_level_runs(ONEP_REF) && onep_level_runs(ONEP_SCALAR), "plain C runs everywhere");
    CHECK((int)onep_best_level() == best, "best is %s", onep_level_name(onep_best_level()));
    CHECK(!onep_cpu_has(ONEP_CUDA), "a level beyond the last");
    CHECK(strcmp(onep_level_name(ONEP_CUDA), "cuda") == 0, "%s", onep_level_name(ONEP_CUDA));
    CHECK(onep_level_built(ONEP_CUDA) || !onep_level_runs(ONEP_CUDA), "cuda: runs, but is not built");
#if defined(__x86_64__)
    CHECK(!onep_cpu_has(ONEP_NEON), "NEON on x86");
    CHECK(!onep_cpu_has(ONEP_AVX512) || onep_cpu_has(ONEP_AVX2), "AVX-512 implies AVX2");
#elif defined(__aarch64__)
    CHECK(onep_cpu_has(ONEP_NEON) && !onep_cpu_has(ONEP_AVX2), "NEON is part of aarch64");
#endif
    static const char *const wrong[] = {"", "AVX2", "avx2 ", "avx", "avx5122", "sse2", "cuda"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK(onep_level_named(wrong[i]) == ONEP_LEVELS, "\"%s\" is a level", wrong[i]);
    const char *expected = getenv("ONEPASS_TEST_LEVEL");
    if (expected && *expected)
        CHECK(strcmp(onep_level_name(onep_best_level()), expected) == 0,
              "the best level is %s, ONEPASS_TEST_LEVEL is %s", onep_level_name(onep_best_level()), expected);
}

/* Makes a handle under a setting of $ONEPASS_ISA (NULL: unset) and config.isa. */
static onepass_status create(const char *variable, const char *isa, onepass_handle **handle)
{
    if (variable)
        setenv("ONEPASS_ISA", variable, 1);
    else
        unsetenv("ONEPASS_ISA");
    onepass_config config = {.size = sizeof config, .isa = isa};
    onepass_status status = onepass_create(&config, handle);
    unsetenv("ONEPASS_ISA");
    return status;
}

static void expect_level(const char *variable, const char *isa, onep_level level)
{
    test_context("$ONEPASS_ISA %s, config.isa %s", variable ? variable : "unset", isa ? isa : "NULL");
    onepass_handle *handle = NULL;
    if (!CHECK(create(variable, isa, &handle) == ONEPASS_OK, "%s", onepass_last_error()))
        return;
    CHECK(strcmp(onepass_isa(handle), onep_level_name(level)) == 0, "got %s, expected %s", onepass_isa(handle),
          onep_level_name(level));
    CHECK(handle->level == level, "not the level's kernels");
    onepass_destroy(handle);
}

static void expect_refusal(const char *variable, const char *isa, onepass_status expected, const char *source,
                           const char *rule)
{
    test_context("$ONEPASS_ISA %s, config.isa %s", variable ? variable : "unset", isa ? isa : "NULL");
    onepass_handle *handle = NULL;
    onepass_status status = create(variable, isa, &handle);
    CHECK(status == expected, "got %s, expected %s", onepass_status_name(status), onepass_status_name(expected));
    CHECK(handle == NULL, "a handle was made");
    const char *message = onepass_last_error();
    CHECK(strstr(message, "create") && strstr(message, source) && strstr(message, rule) &&
              strstr(message, isa ? isa : variable),
          "message: %s", message);
    onepass_destroy(handle);
}

static void test_choice(void)
{
    expect_level(NULL, NULL, onep_best_level());
    expect_level("", NULL, onep_best_level());
    for (int level = 0; level < ONEP_LEVELS; level++) {
        const char *name = onep_level_name((onep_level)level);
        if (onep_level_runs((onep_level)level)) {
            expect_level(name, NULL, (onep_level)level);
            expect_level(NULL, name, (onep_level)level);
            expect_level("ref", name, (onep_level)level);
            expect_level("nonsense", name, (onep_level)level); /* config.isa says it all */
        } else {
            const char *rule = onep_level_built((onep_level)level) ? "cannot run" : "not built";
            expect_refusal(name, NULL, ONEPASS_UNSUPPORTED, "$ONEPASS_ISA", rule);
            expect_refusal(NULL, name, ONEPASS_UNSUPPORTED, "config.isa", rule);
        }
    }
    static const char *const wrong[] = {"AVX2", "sse", "best", " avx2"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        expect_refusal(wrong[i], NULL, ONEPASS_INVALID_ARGUMENT, "$ONEPASS_ISA", "not a level");
        expect_refusal(NULL, wrong[i], ONEPASS_INVALID_ARGUMENT, "config.isa", "not a level");
    }
}

/* ---- configurations ---------------------------------------------------------------------------------------------- */

/* The configuration must be refused with this status and a message with all these parts (ended by NULL). */
static void refuse_config(const char *what, const onepass_config *config, onepass_status expected, ...)
{
    test_context("%s", what);
    onepass_handle *made = (onepass_handle *)&made; /* to be replaced by NULL */
    test_catch_output();
    onepass_status status = onepass_create(config, &made);
    long printed = test_release_output();
    CHECK(status == expected, "got %s, expected %s", onepass_status_name(status), onepass_status_name(expected));
    CHECK(made == NULL, "the handle is not NULL");
    CHECK(printed == 0, "%ld bytes were printed", printed);
    va_list parts;
    va_start(parts, expected);
    for (const char *part = va_arg(parts, const char *); part; part = va_arg(parts, const char *))
        CHECK(strstr(onepass_last_error(), part) != NULL, "the message lacks \"%s\": %s", part, onepass_last_error());
    va_end(parts);
}

static void ignore_progress(void *context, double done)
{
    (void)context, (void)done;
}

static void expect_made(const onepass_config *config)
{
    onepass_handle *made = NULL;
    CHECK(onepass_create(config, &made) == ONEPASS_OK && made, "%s", onepass_last_error());
    onepass_destroy(made);
}

static void test_config(void)
{
    const onepass_config base = {.size = sizeof base};
    onepass_config config = base;
    static const size_t sizes[] = {0, 3, offsetof(onepass_config, threads), 65537};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        config.size = sizes[i];
        refuse_config("a config of no known size", &config, BAD, "create", "config.size", "sizeof", NULL);
    }
    static struct {
        onepass_config known;
        char later[16];
    } longer = {.known = {.size = sizeof longer}};
    expect_made(&longer.known);
    longer.later[15] = 1;
    refuse_config("a config with an unknown part", &longer.known, ONEPASS_UNSUPPORTED, "create", "config", "newer",
                  NULL);
    config = base;
    config.device = (onepass_device){ONEPASS_CUDA, 99};
    refuse_config("a GPU that is not there", &config, ONEPASS_NO_DEVICE, "create", "config.device", "cuda:99", "CUDA",
                  NULL);
    config.device.id = -1;
    refuse_config("a GPU with a negative number", &config, BAD, "create", "config.device", "cuda:-1", "negative", NULL);
    config.device.id = 0;
    config.threads = 2;
    refuse_config("threads on a GPU", &config, BAD, "create", "config.threads: 2", "for the CPU", NULL);
    config.threads = 0;
    config.trust_addresses = 2;
    refuse_config("a trust of 2", &config, BAD, "create", "config.trust_addresses: 2", "0 or 1", NULL);
    config.trust_addresses = 0;
    config.isa = "avx2";
    refuse_config("a vector level on a GPU", &config, BAD, "create", "config.isa", "avx2", "for the CPU", NULL);
    config.isa = NULL;
    config.progress = ignore_progress;
    refuse_config("progress on a GPU", &config, BAD, "create", "config.progress", "must be NULL", NULL);
    config = base;
    config.device = (onepass_device){ONEPASS_CPU, 1};
    refuse_config("a second CPU", &config, BAD, "create", "config.device", "type 1, id 1", "id 0", NULL);
    config.device = (onepass_device){7, 0};
    refuse_config("an unknown device", &config, BAD, "create", "config.device", "type 7", NULL);
    config = base;
    config.trust_addresses = 1;
    refuse_config("trust on the CPU", &config, BAD, "create", "config.trust_addresses: 1", "CUDA", "must be 0", NULL);
    config.trust_addresses = 0;
    config.stream = &config;
    refuse_config("a stream", &config, BAD, "create", "config.stream", "0x", "must be NULL", NULL);
    static const int32_t threads[] = {-1, 4097, INT32_MIN, INT32_MAX};
    static const char *const texts[] = {"-1", "4097", "-2147483648", "2147483647"};
    for (int i = 0; i < 4; i++) {
        config = base;
        config.threads = threads[i];
        refuse_config("a number of threads", &config, BAD, "create", "config.threads", texts[i], "from 0", "4096",
                      NULL);
    }
    static const char *const isas[] = {"", "AVX2", "avx", "sse2 and a name far longer than any level could ever have"};
    for (int i = 0; i < 4; i++) {
        config = base;
        config.isa = isas[i];
        refuse_config("an unknown level", &config, BAD, "create", "config.isa", "not a level",
                      "ref, scalar, avx2, avx512 or neon", NULL);
    }
    test_context("handles");
    CHECK(onepass_create(NULL, NULL) == BAD, "nowhere to put the handle");
    CHECK(strstr(onepass_last_error(), "create: handle: NULL"), "%s", onepass_last_error());
    onepass_handle *made = NULL;
    CHECK(onepass_create(NULL, &made) == ONEPASS_OK && made, "the defaults");
    CHECK(onepass_threads(made) >= 1, "threads: %d", (int)onepass_threads(made));
    CHECK(onep_level_named(onepass_isa(made)) == onep_best_level(), "level %s", onepass_isa(made));
    onepass_destroy(made);
    config = base;
    config.device = (onepass_device){ONEPASS_CPU, 0};
    config.threads = 4096;
    CHECK(onepass_create(&config, &made) == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(onepass_threads(made) == 4096, "threads: %d", (int)onepass_threads(made));
    onepass_destroy(made);
    onepass_destroy(NULL);
    CHECK(strcmp(onepass_isa(NULL), "") == 0, "level of no handle");
    CHECK(onepass_threads(NULL) == 0, "threads of no handle");
    CHECK(onepass_is_capturing(NULL) == 0, "no handle captures");
}

#ifndef TEST_SANITIZED
/* Makes the stack as large as the rest of the child needs: it could not grow any more. */
static __attribute__((noinline)) int grow_stack(void)
{
    volatile char room[1 << 18];
    for (size_t i = 0; i < sizeof room; i += 1024)
        room[i] = 1;
    return room[0];
}
#endif

/* A child that may have no more memory cannot make a handle, and says so. */
static void test_out_of_memory(void)
{
#ifdef TEST_SANITIZED
    test_left_out("out of memory: a sanitizer's allocator ends the program instead");
#else
    enum { NO_LIMIT = 3 };
    test_context("out of memory");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        if (!grow_stack() || setrlimit(RLIMIT_AS, &none) != 0)
            _exit(2);
        if (mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
            _exit(NO_LIMIT);
        /* Every size class: the allocator keeps freed blocks of each apart. */
        for (size_t bytes = 1 << 20; bytes >= 16; bytes = bytes > 2048 ? bytes / 2 : bytes - 16)
            for (void *volatile taken = malloc(bytes); taken; taken = malloc(bytes))
                ; /* volatile: a compiler may leave out memory nobody looks at */
        onepass_handle *made = (onepass_handle *)&made;
        onepass_status status = onepass_create(NULL, &made);
        int named = strstr(onepass_last_error(), "create") && strstr(onepass_last_error(), "memory");
        _exit(status == ONEPASS_OUT_OF_MEMORY && !made && named ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_LIMIT)
        test_left_out("out of memory: this system (an emulator?) does not limit it");
    else
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child ended with %d", status);
#endif
}

int main(void)
{
    unsetenv("ONEPASS_ISA");
    test_begin("test_dispatch");
    test_print_levels();
    test_list();
    test_public_list();
    test_tables();
    test_levels();
    test_choice();
    test_config();
    test_out_of_memory();
    return test_end();
}
