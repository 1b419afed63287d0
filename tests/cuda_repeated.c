/* See cuda_repeated.h. */
#include "cuda_repeated.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_grid.h"
#include "cuda_resident.h"

enum { REDUCTIONS = ONEPASS_DIVISOR + 1 };

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

/* Writes over 256 MB again and again, on a stream of its own. */
typedef struct flood {
    onep_cu_stream *stream;
    char *memory;
} flood;

enum { FLOOD_WORDS = 64 << 20 };

static void pour(const flood *f, int times)
{
    for (int i = 0; i < times; i++)
        MUST(cuda_driver()->cuMemsetD32Async(cuda_address(f->memory), (unsigned)i, FLOOD_WORDS, f->stream));
}

/* Repeats one call and compares all it writes with `first`; fills `first` if it is empty. */
static void repeat(resident *r, onepass_handle *handle, onep_cu_stream *stream, int gradients, int times, flood *beside,
                   char **first)
{
    char *again = malloc(resident_bytes(r, gradients));
    for (int i = 0; i < times && again; i++) {
        if (i % 50 == 0)
            resident_poison(r, i % 100 ? 0x55 : 0xff);
        if (beside)
            pour(beside, 2);
        if (!CHECK(resident_call(r, handle, gradients) == ONEPASS_OK, "%s", onepass_last_error()))
            break;
        resident_fetch(r, stream, gradients, again);
        if (!*first) {
            *first = again;
            again = malloc(resident_bytes(r, gradients));
        } else if (!CHECK(memcmp(*first, again, resident_bytes(r, gradients)) == 0, "run %d differs from the first",
                          i)) {
            break;
        }
    }
    free(again);
    if (beside)
        MUST(cuda_driver()->cuStreamSynchronize(beside->stream));
    CHECK(cuda_tickets_are_zero(handle), "a ticket is not 0");
}

void cuda_test_determinism(void)
{
    static const unsigned grids[] = {1, 7, 66, 132, 264, 1000};
    int quick = test_quick();
    flood beside = {0};
    if (!quick) {
        beside.stream = cuda_stream();
        beside.memory = cuda_claim((size_t)FLOOD_WORDS * 4);
    }
    for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
        for (int gradients = 0; gradients < 2; gradients++)
            for (int reduction = 0; reduction < REDUCTIONS - 1; reduction++) {
                onep_cu_stream *stream = cuda_stream();
                onepass_handle *handle = cuda_handle(stream);
                resident r = {.form = (onep_kl_form)((type + reduction) % ONEP_KL_FORMS),
                              .type = (onep_type)type,
                              .shape = {quick       ? 9
                                        : gradients ? 203
                                                    : 1001,
                                        quick ? 301 : 3003},
                              .reduction = (onepass_reduction)reduction};
                resident_make(&r, handle);
                resident_load(&r, ++cuda_streams);
                char *first = NULL;
                test_context("%s, %s, %s, gradients %d, alone", kl_form_name(r.form), onep_type_name(r.type),
                             kl_reduction_name(r.reduction), gradients);
                repeat(&r, handle, stream, gradients, quick ? 2 : 200, NULL, &first);
                if (!quick && (reduction == ONEPASS_BATCHMEAN || reduction == ONEPASS_ROWS)) {
                    test_context("%s, %s, %s, gradients %d, beside a flood", kl_form_name(r.form),
                                 onep_type_name(r.type), kl_reduction_name(r.reduction), gradients);
                    repeat(&r, handle, stream, gradients, 200, &beside, &first);
                }
                onepass_destroy(handle);
                for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++) {
                    cuda_force_grid(grids[g]);
                    handle = cuda_handle(stream);
                    test_context("%s, %s, %s, gradients %d, grid %u", kl_form_name(r.form), onep_type_name(r.type),
                                 kl_reduction_name(r.reduction), gradients, grids[g]);
                    repeat(&r, handle, stream, gradients, 2, NULL, &first);
                    onepass_destroy(handle);
                }
                cuda_force_grid(0);
                free(first);
                resident_free(&r);
                MUST(cuda_driver()->cuStreamDestroy(stream));
            }
    if (!quick) {
        cuda_release(beside.memory);
        MUST(cuda_driver()->cuStreamDestroy(beside.stream));
    }
}

/* Two threads, each with a handle, a stream and a problem of its own, get what each gets alone. */
typedef struct worker {
    onep_kl_form form;
    onep_cu_context *context;
    int differences, failures;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    const onep_driver *driver = cuda_driver();
    MUST(driver->cuCtxPushCurrent(w->context)); /* for this test's own calls; the library needs none */
    onep_cu_stream *stream = cuda_stream();
    onepass_handle *handle = cuda_handle(stream);
    resident r = {.form = w->form, .type = ONEP_F32, .shape = {37, 2111}};
    resident_make(&r, handle);
    resident_load(&r, 77 + (uint64_t)w->form);
    size_t bytes = resident_bytes(&r, 1);
    char *first = malloc(bytes), *again = malloc(bytes);
    for (int i = 0; i < (test_quick() ? 3 : 100) && first && again; i++) {
        w->failures += resident_call(&r, handle, 1) != ONEPASS_OK;
        resident_fetch(&r, stream, 1, i ? again : first);
        w->differences += i && memcmp(first, again, bytes) != 0;
    }
    free(first);
    free(again);
    onepass_destroy(handle);
    resident_free(&r);
    MUST(driver->cuStreamDestroy(stream));
    return NULL;
}

void cuda_test_threads(void)
{
    worker workers[2] = {{.form = ONEP_KL_PROBS_PROBS}, {.form = ONEP_KL_LOG_PROBS_LOG_PROBS}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        MUST(cuda_driver()->cuDevicePrimaryCtxRetain(&workers[i].context, 0));
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            exit(2);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        test_context("thread %d of two", i);
        CHECK(workers[i].failures == 0, "%d calls failed", workers[i].failures);
        CHECK(workers[i].differences == 0, "%d results differ", workers[i].differences);
    }
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Captures one call; the mode makes every call that is not allowed in a capture an error. */
static onep_cu_graph_exec *capture(resident *r, onepass_handle *handle, onep_cu_stream *stream, int gradients)
{
    const onep_driver *driver = cuda_driver();
    onep_cu_graph *graph = NULL;
    onep_cu_graph_exec *exec = NULL;
    MUST(driver->cuStreamBeginCapture(stream, ONEP_CU_CAPTURE_GLOBAL));
    CHECK(onepass_is_capturing(handle), "a capture is not seen");
    onepass_status status = resident_call(r, handle, gradients);
    int error = driver->cuStreamEndCapture(stream, &graph);
    CHECK(!onepass_is_capturing(handle), "the capture is over");
    CHECK(status == ONEPASS_OK, "%s", onepass_last_error());
    CHECK(error == 0, "the capture was broken: error %d", error);
    if (status != ONEPASS_OK || error != 0)
        return NULL;
    MUST(driver->cuGraphInstantiate(&exec, graph, NULL, NULL, 0));
    MUST(driver->cuGraphDestroy(graph));
    return exec;
}

/* Replays with new inputs each time; an eager call on the same inputs must give the same bits. */
static void test_graphs(void)
{
    const onep_driver *driver = cuda_driver();
    int replays = test_quick() ? 2 : 100;
    for (int form = 0; form < ONEP_KL_FORMS; form++)
        for (int gradients = 0; gradients < 2; gradients++) {
            onep_cu_stream *stream = cuda_stream();
            /* No call was made with this handle before the capture: nothing may be left to the first one. */
            onepass_handle *handle = cuda_handle(stream), *eager = cuda_handle(stream);
            resident r = {.form = (onep_kl_form)form,
                          .type = (onep_type)((form + 2 * gradients) % ONEP_FLOAT_TYPES),
                          .shape = {33, 4099},
                          .reduction = (onepass_reduction)((form + gradients) % ONEPASS_DIVISOR)};
            resident_make(&r, handle);
            test_context("graph of %s, %s, %s, gradients %d", kl_form_name(r.form), onep_type_name(r.type),
                         kl_reduction_name(r.reduction), gradients);
            onep_cu_graph_exec *exec = capture(&r, handle, stream, gradients);
            size_t bytes = resident_bytes(&r, gradients);
            char *replayed = malloc(bytes), *expected = malloc(bytes);
            for (int i = 0; exec && replayed && expected && i < replays; i++) {
                resident_load(&r, ++cuda_streams);
                resident_poison(&r, 0xff);
                MUST(driver->cuGraphLaunch(exec, stream));
                resident_fetch(&r, stream, gradients, replayed);
                resident_poison(&r, 0x55);
                CHECK(resident_call(&r, eager, gradients) == ONEPASS_OK, "%s", onepass_last_error());
                resident_fetch(&r, stream, gradients, expected);
                CHECK(memcmp(replayed, expected, bytes) == 0, "replay %d differs from the eager call", i);
            }
            free(replayed);
            free(expected);
            if (exec)
                MUST(driver->cuGraphExecDestroy(exec));
            CHECK(cuda_tickets_are_zero(handle), "a ticket is not 0");
            onepass_destroy(handle);
            onepass_destroy(eager);
            resident_free(&r);
            MUST(driver->cuStreamDestroy(stream));
        }
}

/*
 * Two graphs at the same time, beside an eager call of the handle that made the first: workspaces are their own, and
 * so are the tickets, whether two handles captured them or one did.
 */
static void two_graphs(int handles)
{
    const onep_driver *driver = cuda_driver();
    onep_cu_stream *stream[2];
    onepass_handle *handle[2];
    onep_cu_graph_exec *exec[2];
    resident r[2];
    char *first[2], *again[2];
    test_context("two graphs at once, captured by %d handles", handles);
    for (int k = 0; k < 2; k++) {
        stream[k] = cuda_stream();
        handle[k] = k < handles ? cuda_handle(stream[k]) : handle[0];
        r[k] = (resident){.form = ONEP_KL_PROBS_PROBS, .type = ONEP_F32, .shape = {64, 8193}};
        resident_make(&r[k], handle[k]);
        resident_load(&r[k], ++cuda_streams);
        first[k] = malloc(resident_bytes(&r[k], 1));
        again[k] = malloc(resident_bytes(&r[k], 1));
        if (!first[k] || !again[k])
            exit(2);
        CHECK(resident_call(&r[k], handle[k], 1) == ONEPASS_OK, "%s", onepass_last_error());
        resident_fetch(&r[k], stream[k < handles ? k : 0], 1, first[k]);
        exec[k] = capture(&r[k], handle[k], stream[k < handles ? k : 0], 1);
    }
    resident eager = {.form = ONEP_KL_PROBS_PROBS, .type = ONEP_F32, .shape = {64, 8193}};
    resident_make(&eager, handle[0]);
    resident_load(&eager, ++cuda_streams);
    for (int i = 0; i < (test_quick() ? 2 : 200) && exec[0] && exec[1]; i++) {
        MUST(driver->cuGraphLaunch(exec[1], stream[1]));
        CHECK(resident_call(&eager, handle[0], 0) == ONEPASS_OK, "%s", onepass_last_error());
        MUST(driver->cuGraphLaunch(exec[0], stream[0]));
        for (int k = 0; k < 2; k++) {
            resident_fetch(&r[k], stream[k], 1, again[k]);
            CHECK(memcmp(first[k], again[k], resident_bytes(&r[k], 1)) == 0, "graph %d, replay %d differs", k, i);
        }
    }
    for (int k = 0; k < 2; k++) {
        if (exec[k])
            MUST(driver->cuGraphExecDestroy(exec[k]));
        CHECK(cuda_tickets_are_zero(handle[k]), "a ticket is not 0");
        resident_free(&r[k]);
        free(first[k]);
        free(again[k]);
    }
    resident_free(&eager);
    for (int k = 0; k < 2; k++) {
        if (k < handles)
            onepass_destroy(handle[k]);
        MUST(driver->cuStreamDestroy(stream[k]));
    }
}

static void test_two_graphs(void)
{
    two_graphs(2);
    two_graphs(1);
}

/* Every captured call keeps a ticket: more of them than one page has, and the calls after it still work. */
static void test_many_captures(void)
{
    onep_cu_stream *stream = cuda_stream();
    onepass_handle *handle = cuda_handle(stream);
    resident r = {.form = ONEP_KL_PROBS_PROBS, .type = ONEP_F32, .shape = {8, 8193}};
    resident_make(&r, handle);
    resident_load(&r, ++cuda_streams);
    char *first = malloc(resident_bytes(&r, 0)), *again = malloc(resident_bytes(&r, 0));
    if (!first || !again)
        exit(2);
    CHECK(resident_call(&r, handle, 0) == ONEPASS_OK, "%s", onepass_last_error());
    resident_fetch(&r, stream, 0, first);
    for (int i = 0; i <= ONEP_CUDA_TICKETS; i++) {
        test_context("captured call %d of a handle", i);
        onep_cu_graph_exec *exec = capture(&r, handle, stream, 0);
        if (exec && (i == 0 || i >= ONEP_CUDA_TICKETS - 2)) {
            resident_poison(&r, 0xff);
            MUST(cuda_driver()->cuGraphLaunch(exec, stream));
            resident_fetch(&r, stream, 0, again);
            CHECK(memcmp(first, again, resident_bytes(&r, 0)) == 0, "its replay differs from an eager call");
        }
        if (exec)
            MUST(cuda_driver()->cuGraphExecDestroy(exec));
    }
    free(first);
    free(again);
    resident_free(&r);
    onepass_destroy(handle);
    MUST(cuda_driver()->cuStreamDestroy(stream));
}

/* A handle made while this thread captures another stream leaves the capture whole. */
static void test_create_in_capture(void)
{
    const onep_driver *driver = cuda_driver();
    onep_cu_stream *stream = cuda_stream();
    char *memory = cuda_claim(64);
    onep_cu_graph *graph = NULL;
    test_context("a handle made during a capture");
    MUST(driver->cuStreamBeginCapture(stream, ONEP_CU_CAPTURE_GLOBAL));
    onepass_destroy(cuda_handle(NULL));
    int error = driver->cuMemsetD8Async(cuda_address(memory), 1, 64, stream);
    CHECK(error == 0, "the captured stream no longer works: error %d", error);
    error = driver->cuStreamEndCapture(stream, &graph);
    CHECK(error == 0, "the capture was broken: error %d", error);
    if (error == 0)
        MUST(driver->cuGraphDestroy(graph));
    cuda_release(memory);
    MUST(driver->cuStreamDestroy(stream));
}

void cuda_test_graphs(void)
{
    test_graphs();
    test_two_graphs();
    test_many_captures();
    test_create_in_capture();
}
