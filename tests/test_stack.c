/*
 * How much of the caller's stack a call takes, measured: the call runs on a thread whose stack was painted, and the
 * deepest byte that changed is looked for. Every operator, level, type and variant stays within what onepass.h and
 * README promise, so that a program with small stacks can rely on the number.
 */
#define _GNU_SOURCE /* MAP_STACK */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "every_call.h"

enum { STACK = 1 << 17, PAINT = 0x5a };

typedef struct painted {
    every_call *call;
    onepass_handle *handle;
    void *workspace;
    size_t bytes;
    onepass_status status;
    char *from; /* the stack of whoever calls ends here */
} painted;

static void *call_on_painted_stack(void *argument)
{
    painted *p = argument;
    p->from = __builtin_frame_address(0);
    p->status = call_execute(p->call, p->handle, p->workspace, p->bytes);
    return NULL;
}

/* Bytes of stack below the calling function. */
static long stack_of(every_call *call, onepass_handle *handle)
{
    static char *stack;
    if (!stack)
        stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        perror("test memory");
        exit(2);
    }
    painted p = {.call = call, .handle = handle};
    p.workspace = call_prepare(call, handle, &p.bytes);
    memset(stack, PAINT, STACK);
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0 || pthread_attr_setstack(&attributes, stack, STACK) != 0 ||
        pthread_create(&thread, &attributes, call_on_painted_stack, &p) != 0) {
        perror("pthread_create");
        exit(2);
    }
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    call_release(call, p.workspace);
    CHECK(p.status == ONEPASS_OK, "%s", onepass_last_error());
    const char *deepest = stack;
    while (*deepest == PAINT)
        deepest++;
    return (long)(p.from - deepest);
}

static void __attribute__((unused)) measure(int operator_id)
{
    long most = 0;
    char where[160] = "";
    for (int level = ONEP_REF; level < ONEP_LEVELS; level++) {
        if (level != ONEP_REF && !test_covers((onep_level)level))
            continue;
        for (int32_t threads = 1; threads <= 2; threads++) {
            onepass_config config = {
                .size = sizeof config, .threads = threads, .isa = onep_level_name((onep_level)level), .blas = "none"};
            onepass_handle *handle = NULL;
            CHECK(onepass_create(&config, &handle) == ONEPASS_OK, "%s", onepass_last_error());
            for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
                for (int variant = 0; variant < CALL_VARIANTS; variant += test_quick() ? 3 : 1) {
                    int is_kl = operator_id < CALL_LINEAR; /* two blocks, and strips with a tail */
                    int64_t rows = call_is_from_logits((call_operator)operator_id) ? 5 : is_kl ? 60 : 20;
                    call_kind kind = {(call_operator)operator_id, (onep_type)type, rows,     is_kl ? 3 : 9,
                                      is_kl ? 601 : 300,          variant,         CALL_HEAP};
                    every_call *call = call_make(kind, 1, 1);
                    test_context("%s, %s, %s, %d threads, variant %d", call_name((call_operator)operator_id),
                                 onep_type_name((onep_type)type), onep_level_name((onep_level)level), (int)threads,
                                 variant);
                    CHECK(call_run(call, handle) == ONEPASS_OK, "%s", onepass_last_error()); /* binds functions */
                    long stack = stack_of(call, handle);
                    CHECK(stack <= ONEPASS_STACK_BYTES, "%ld bytes of stack, %d are promised", stack,
                          (int)ONEPASS_STACK_BYTES);
                    if (stack > most) {
                        most = stack;
                        snprintf(where, sizeof where, "%s, %s, %d threads, variant %d",
                                 onep_level_name((onep_level)level), onep_type_name((onep_type)type), (int)threads,
                                 variant);
                    }
                    call_free(call);
                }
            onepass_destroy(handle);
        }
    }
    printf("test_stack: %-24s %6ld bytes (%s)\n", call_name((call_operator)operator_id), most, where);
}

int main(void)
{
    test_begin("test_stack");
    test_print_levels();
#if defined(TEST_SANITIZED) || !defined(__OPTIMIZE__)
    test_left_out("stack: sanitizers and builds without optimisation have larger frames");
    CHECK(ONEPASS_STACK_BYTES > 0, "nothing is promised");
#else
    for (int operator_id = 0; operator_id < CALL_OPERATORS; operator_id++)
        measure(operator_id);
#endif
    return test_end();
}
