/*
 * A stand-in for libcuda.so.1, for tests on a machine that has no GPU. "Device memory" is host memory between guard
 * bands, poisoned with NaN; a kernel is run at once, on the CPU, thread by thread: the library's own CUDA sources
 * (emulated_sources.py, emulated_threads.hpp), so that what they compute and how their threads wait for each other is
 * tried, though nothing of how a GPU does it. What no GPU but Hopper has (*_sm90a.cu, clusters, TMA) is refused.
 *
 * When the process ends, memory or contexts that were not given back, or a copy or a kernel that left its bounds, end
 * it with exit code 99. $ONEPASS_STANDIN_ALLOCATIONS: how many allocations succeed; all others find no memory.
 * $ONEPASS_STANDIN_KEEPS=1: memory and contexts may be left to the process's end, as programs that own a GPU do it.
 * $ONEPASS_STANDIN_REFUSES: a kernel that is refused, by the beginning of its name. $ONEPASS_STANDIN_LAUNCHES: a file
 * to which the name of every kernel that was run is added.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "emulated_standin.h"

enum {
    BAND = 256,
    MOST_POISON = 16 << 20,
    POISON = 0xff,
    GUARD = 0xa5,
    MOST_BLOCKS = 4096,
    MOST_STREAMS = 256,
    INVALID_VALUE = 1,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900
};

#define EXPORTED __attribute__((visibility("default")))

/* The prototypes of driver.h, under the driver's own names. */
#define FUNCTION(member, symbol, parameters) EXPORTED int member parameters __asm__(symbol);
ONEP_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
EXPORTED int cuLaunchKernelEx(const onep_cu_launch *launch, onep_cu_function *function, void **parameters,
                              void **extra);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static struct block {
    char *first; /* of the caller's bytes; NULL: not in use */
    size_t bytes;
} blocks[MOST_BLOCKS];

static const size_t most_bytes = (size_t)1 << 40;
static long claims, wrongs;
static pthread_mutex_t using = PTHREAD_MUTEX_INITIALIZER; /* of blocks, and of what runs: one kernel at a time */

static void complain(const char *what)
{
    fprintf(stderr, "stand-in for the driver: %s\n", what);
    wrongs++;
}

/* Calls that a capture does not survive, unless the thread has said that it knows. */
static atomic_int captures;
static _Thread_local int capture_mode = ONEP_CU_CAPTURE_GLOBAL;

static int breaks_a_capture(void)
{
    return captures > 0 && capture_mode != ONEP_CU_CAPTURE_RELAXED;
}

/* By whoever holds `using`. */
static struct block *block_of(onep_cu_address address, size_t bytes)
{
    for (int i = 0; i < MOST_BLOCKS; i++) {
        onep_cu_address first = (onep_cu_address)(uintptr_t)blocks[i].first;
        if (first && address >= first && address + bytes <= first + blocks[i].bytes)
            return &blocks[i];
    }
    return NULL;
}

static int is_claimed(onep_cu_address address, size_t bytes)
{
    pthread_mutex_lock(&using);
    const int found = block_of(address, bytes) != NULL;
    pthread_mutex_unlock(&using);
    return found;
}

static int claim(onep_cu_address *address, size_t bytes)
{
    const char *most = getenv("ONEPASS_STANDIN_ALLOCATIONS");
    if (bytes == 0)
        return INVALID_VALUE;
    if ((most && claims >= atol(most)) || bytes > most_bytes)
        return ONEP_CU_OUT_OF_MEMORY;
    int free_one = 0;
    while (free_one < MOST_BLOCKS && blocks[free_one].first)
        free_one++;
    size_t room = (bytes + BAND - 1) / BAND * BAND + 2 * BAND;
    char *memory = free_one < MOST_BLOCKS ? aligned_alloc(BAND, room) : NULL;
    if (!memory)
        return ONEP_CU_OUT_OF_MEMORY;
    memset(memory, GUARD, BAND);
    memset(memory + BAND, POISON, bytes < MOST_POISON ? bytes : MOST_POISON);
    memset(memory + BAND + bytes, GUARD, room - BAND - bytes);
    blocks[free_one] = (struct block){memory + BAND, bytes};
    *address = (onep_cu_address)(uintptr_t)blocks[free_one].first;
    claims++;
    return 0;
}

int cuMemAlloc(onep_cu_address *address, size_t bytes)
{
    if (breaks_a_capture())
        return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&using);
    const int error = claim(address, bytes);
    pthread_mutex_unlock(&using);
    return error;
}

static int bands_are_whole(const struct block *block)
{
    const size_t end = (block->bytes + BAND - 1) / BAND * BAND + BAND;
    int whole = 1;
    for (size_t i = 0; i < BAND; i++)
        whole &= (unsigned char)block->first[(long)i - BAND] == GUARD;
    for (size_t i = block->bytes; i < end; i++)
        whole &= (unsigned char)block->first[i] == GUARD;
    return whole;
}

static int release(onep_cu_address address)
{
    struct block *block = block_of(address, 1);
    if (!block || (onep_cu_address)(uintptr_t)block->first != address) {
        complain("memory is freed that was not claimed");
        return INVALID_VALUE;
    }
    if (!bands_are_whole(block))
        complain("a guard band was written to");
    free(block->first - BAND);
    block->first = NULL;
    return 0;
}

int cuMemFree(onep_cu_address address)
{
    if (breaks_a_capture())
        return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&using);
    const int error = release(address);
    pthread_mutex_unlock(&using);
    return error;
}

int cuMemcpyHtoD(onep_cu_address to, const void *from, size_t bytes)
{
    if (breaks_a_capture())
        return CAPTURE_UNSUPPORTED;
    if (!is_claimed(to, bytes)) {
        complain("a copy to memory that was not claimed");
        return INVALID_VALUE;
    }
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

int cuMemcpyDtoH(void *to, onep_cu_address from, size_t bytes)
{
    if (breaks_a_capture())
        return CAPTURE_UNSUPPORTED;
    if (!is_claimed(from, bytes)) {
        complain("a copy from memory that was not claimed");
        return INVALID_VALUE;
    }
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

/* The tool only empties the cache with it: there is none. */
int cuMemsetD32Async(onep_cu_address to, unsigned value, size_t count, onep_cu_stream *stream)
{
    (void)value, (void)stream;
    return is_claimed(to, 4 * count) ? 0 : INVALID_VALUE;
}

int cuMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = (size_t)1 << 30;
    return 0;
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **data, onep_cu_address address)
{
    int inside = is_claimed(address, 1);
    for (unsigned i = 0; i < count; i++)
        *(int *)data[i] = attributes[i] == ONEP_CU_MEMORY_TYPE && inside ? ONEP_CU_IN_DEVICE : 0;
    return 0;
}

static atomic_long all_contexts;

__attribute__((destructor)) static void look_back(void)
{
    const char *keeps = getenv("ONEPASS_STANDIN_KEEPS");
    for (int i = 0; i < MOST_BLOCKS; i++) {
        if (blocks[i].first && !bands_are_whole(&blocks[i]))
            complain("a guard band was written to");
        if (blocks[i].first && !keeps)
            complain("memory was not released");
    }
    if (all_contexts && !keeps)
        complain("a context was left current");
    if (wrongs)
        _exit(99);
}

/* ---- work: done at once, or kept in a graph while its stream is captured -------------------------------------------
 */

typedef struct step {
    struct step *next;
    const emulated_kernel *kernel; /* NULL: bytes are copied, or set */
    emulated_shape shape;
    onep_cu_address to, from; /* from 0: set */
    size_t bytes;
    int value;
    void *args; /* a copy, at a multiple of 64 */
} step;

struct onep_cu_graph {
    step *first, **end;
    int users; /* itself, and what was made of it to be launched */
};

struct onep_cu_stream {
    int taken;
    onep_cu_graph *captured;
};
static struct onep_cu_stream streams[MOST_STREAMS];

static emulated_kernel *kernels;

void emulated_register(emulated_kernel *kernel)
{
    kernel->next = kernels;
    kernels = kernel;
}

static void run_kernel(const emulated_kernel *kernel, const emulated_shape *shape, const void *args)
{
    pthread_mutex_lock(&using);
    kernel->run(shape, args);
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (blocks[i].first && !bands_are_whole(&blocks[i])) {
            complain("a kernel wrote to a guard band:");
            complain(kernel->name);
            break;
        }
    const char *path = getenv("ONEPASS_STANDIN_LAUNCHES");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", kernel->name);
        fclose(file);
    }
    pthread_mutex_unlock(&using);
}

static void take_step(const step *s)
{
    if (s->kernel)
        run_kernel(s->kernel, &s->shape, s->args);
    else if (s->from)
        memmove((void *)(uintptr_t)s->to, (const void *)(uintptr_t)s->from, s->bytes);
    else
        memset((void *)(uintptr_t)s->to, s->value, s->bytes);
}

/* The values 0 to 2 are the driver's own streams. */
static int enqueue(const onep_cu_stream *stream, const step *s)
{
    onep_cu_graph *graph = (uintptr_t)stream > 2 ? stream->captured : NULL;
    if (!graph) {
        take_step(s);
        return 0;
    }
    step *kept = malloc(sizeof *kept);
    void *args = s->kernel ? aligned_alloc(64, (s->kernel->args_size + 63) / 64 * 64) : NULL;
    if (!kept || (s->kernel && !args)) {
        free(kept);
        return ONEP_CU_OUT_OF_MEMORY;
    }
    *kept = *s;
    kept->args = args;
    if (args)
        memcpy(args, s->args, s->kernel->args_size);
    *graph->end = kept;
    graph->end = &kept->next;
    return 0;
}

static int is_refused(const char *name)
{
    const char *refused = getenv("ONEPASS_STANDIN_REFUSES");
    return refused && strncmp(name, refused, strlen(refused)) == 0;
}

/* A function is its name here. */
int cuLaunchKernelEx(const onep_cu_launch *launch, onep_cu_function *function, void **parameters, void **extra)
{
    const char *name = (const char *)function;
    const emulated_kernel *kernel = kernels;
    emulated_shape shape = {launch->grid_x, launch->block_x, launch->shared_bytes};
    for (unsigned i = 0; i < launch->attribute_count; i++)
        if (launch->attributes[i].id == ONEP_CU_CLUSTER)
            return NOT_SUPPORTED;
    while (kernel && strcmp(kernel->name, name) != 0)
        kernel = kernel->next;
    if (!kernel || is_refused(name) || extra)
        return NOT_SUPPORTED;
    if (shape.grid == 0 || shape.block == 0 || shape.block > 1024 || shape.shared_bytes > EMULATED_MOST_SHARED ||
        launch->grid_y * launch->grid_z * launch->block_y * launch->block_z != 1)
        return INVALID_VALUE;
    return enqueue(launch->stream, &(step){.kernel = kernel, .shape = shape, .args = parameters[0]});
}

int cuLaunchKernel(onep_cu_function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, onep_cu_stream *stream, void **parameters,
                   void **extra)
{
    onep_cu_launch launch = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, NULL, 0};
    return cuLaunchKernelEx(&launch, function, parameters, extra);
}

/* From the host, to it, or within the device: what is not a block of its own is the host's. */
int cuMemcpyAsync(onep_cu_address to, onep_cu_address from, size_t bytes, onep_cu_stream *stream)
{
    if (!is_claimed(to, bytes) && !is_claimed(from, bytes)) {
        complain("a copy between addresses that were not claimed");
        return INVALID_VALUE;
    }
    return enqueue(stream, &(step){.to = to, .from = from, .bytes = bytes});
}

int cuMemsetD8Async(onep_cu_address to, unsigned char value, size_t count, onep_cu_stream *stream)
{
    if (!is_claimed(to, count))
        return INVALID_VALUE;
    return enqueue(stream, &(step){.to = to, .value = value, .bytes = count});
}

/* ---- streams and graphs ------------------------------------------------------------------------------------------ */

int cuStreamCreate(onep_cu_stream **stream, unsigned flags)
{
    (void)flags;
    *stream = NULL;
    pthread_mutex_lock(&using);
    for (int i = 0; i < MOST_STREAMS && !*stream; i++)
        if (!streams[i].taken)
            *stream = &streams[i];
    if (*stream)
        (*stream)->taken = 1;
    pthread_mutex_unlock(&using);
    return *stream ? 0 : ONEP_CU_OUT_OF_MEMORY;
}

int cuStreamDestroy(onep_cu_stream *stream)
{
    if (!stream->taken || stream->captured) {
        complain("a stream is destroyed that is not there, or is captured");
        return INVALID_VALUE;
    }
    stream->taken = 0;
    return 0;
}

int cuStreamIsCapturing(onep_cu_stream *stream, int *status)
{
    *status = (uintptr_t)stream > 2 && stream->captured ? ONEP_CU_CAPTURING : 0;
    return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

int cuStreamBeginCapture(onep_cu_stream *stream, int mode)
{
    if ((uintptr_t)stream <= 2 || stream->captured || mode != ONEP_CU_CAPTURE_GLOBAL)
        return NOT_SUPPORTED;
    stream->captured = calloc(1, sizeof *stream->captured);
    if (!stream->captured)
        return ONEP_CU_OUT_OF_MEMORY;
    stream->captured->end = &stream->captured->first;
    stream->captured->users = 1;
    captures++;
    return 0;
}

int cuStreamEndCapture(onep_cu_stream *stream, onep_cu_graph **graph)
{
    if ((uintptr_t)stream <= 2 || !stream->captured)
        return INVALID_VALUE;
    *graph = stream->captured;
    stream->captured = NULL;
    captures--;
    return 0;
}

int cuGraphInstantiate(onep_cu_graph_exec **exec, onep_cu_graph *graph, void **error_node, char *log, size_t log_size)
{
    (void)error_node, (void)log, (void)log_size;
    graph->users++;
    *exec = (onep_cu_graph_exec *)(void *)graph;
    return 0;
}

int cuGraphLaunch(onep_cu_graph_exec *exec, onep_cu_stream *stream)
{
    (void)stream;
    for (const step *s = ((onep_cu_graph *)(void *)exec)->first; s; s = s->next)
        take_step(s);
    return 0;
}

int cuGraphDestroy(onep_cu_graph *graph)
{
    if (--graph->users > 0)
        return 0;
    while (graph->first) {
        step *next = graph->first->next;
        free(graph->first->args);
        free(graph->first);
        graph->first = next;
    }
    free(graph);
    return 0;
}

int cuGraphExecDestroy(onep_cu_graph_exec *exec)
{
    return cuGraphDestroy((onep_cu_graph *)(void *)exec);
}

/* ---- the rest of a driver ---------------------------------------------------------------------------------------- */

static _Thread_local long contexts;
static onep_cu_context *const context_here = (onep_cu_context *)(void *)blocks;

int cuInit(unsigned flags)
{
    return flags ? INVALID_VALUE : 0;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == ONEP_CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_NOT_SUPPORTED";
    return 0;
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == ONEP_CU_OUT_OF_MEMORY ? "out of memory" : "the stand-in does not do this";
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? 0 : INVALID_VALUE;
}

int cuDeviceGetName(char *name, int size, int device)
{
    (void)device;
    snprintf(name, (size_t)size, "stand-in");
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == ONEP_CU_MAJOR ? 9 : attribute == ONEP_CU_MINOR ? 0 : 4;
    return 0;
}

int cuDeviceTotalMem(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return 0;
}

int cuDevicePrimaryCtxRetain(onep_cu_context **context, int device)
{
    (void)device;
    *context = context_here;
    return 0;
}

int cuDevicePrimaryCtxRelease(int device)
{
    (void)device;
    return 0;
}

int cuCtxGetCurrent(onep_cu_context **context)
{
    *context = contexts ? context_here : NULL;
    return 0;
}

int cuCtxPushCurrent(onep_cu_context *context)
{
    contexts++;
    all_contexts++;
    return context == context_here ? 0 : INVALID_VALUE;
}

int cuCtxPopCurrent(onep_cu_context **context)
{
    *context = context_here;
    all_contexts--;
    if (contexts-- <= 0)
        complain("more contexts are popped than were pushed");
    return 0;
}

int cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}

int cuCtxSynchronize(void)
{
    return contexts > 0 ? 0 : INVALID_VALUE;
}

int cuModuleLoadData(onep_cu_module **module, const void *image)
{
    *module = (onep_cu_module *)(uintptr_t)image;
    return 0;
}

int cuModuleGetFunction(onep_cu_function **function, onep_cu_module *module, const char *name)
{
    (void)module;
    *function = (onep_cu_function *)(uintptr_t)name;
    return 0;
}

int cuFuncSetAttribute(onep_cu_function *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return 0;
}

int cuStreamSynchronize(onep_cu_stream *stream)
{
    (void)stream;
    return 0;
}

int cuStreamGetCtx(onep_cu_stream *stream, onep_cu_context **context)
{
    (void)stream;
    *context = context_here;
    return 0;
}

/* An event is the time at which it was recorded. */
int cuEventCreate(onep_cu_event **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(double));
    return *event ? 0 : ONEP_CU_OUT_OF_MEMORY;
}

int cuEventDestroy(onep_cu_event *event)
{
    free(event);
    return 0;
}

int cuEventRecord(onep_cu_event *event, onep_cu_stream *stream)
{
    (void)stream;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *(double *)(void *)event = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
    return 0;
}

int cuEventSynchronize(onep_cu_event *event)
{
    (void)event;
    return 0;
}

int cuEventElapsedTime(float *milliseconds, onep_cu_event *begin, onep_cu_event *end)
{
    *milliseconds = (float)(*(double *)(void *)end - *(double *)(void *)begin);
    return 0;
}
