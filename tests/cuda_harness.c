/* See cuda_harness.h. */
#include "cuda_harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BLOCKS = 10, ALIGNMENT = 256 };

/* ---- device ------------------------------------------------------------------------------------------------------ */

void cuda_must(int error, const char *file, int line)
{
    if (error == 0)
        return;
    char text[200];
    onep_driver_text(error, text, sizeof text);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    exit(2);
}

const onep_driver *cuda_driver(void)
{
    static const onep_driver *driver;
    if (driver)
        return driver;
    const char *why = "";
    if (onep_cuda_devices(&why) < 1) {
        fprintf(stderr, "these tests need a CUDA device: %s\n", why);
        exit(2);
    }
    driver = onep_driver_get();
    int device;
    onep_cu_context *context;
    MUST(driver->cuDeviceGet(&device, 0));
    MUST(driver->cuDevicePrimaryCtxRetain(&context, device));
    MUST(driver->cuCtxPushCurrent(context));
    onep_cuda_info info;
    onep_cuda_describe(0, &info);
    printf("on cuda:0, %s, compute capability %d.%d, driver for CUDA %d.%d\n", info.name, info.major, info.minor,
           info.driver_version / 1000, info.driver_version % 1000 / 10);
    return driver;
}

onep_cu_address cuda_address(const void *memory)
{
    return (onep_cu_address)(uintptr_t)memory;
}

void *cuda_claim(size_t bytes)
{
    onep_cu_address address = 0;
    MUST(cuda_driver()->cuMemAlloc(&address, bytes ? bytes : 1));
    return (void *)(uintptr_t)address;
}

void cuda_release(void *memory)
{
    if (memory)
        MUST(cuda_driver()->cuMemFree(cuda_address(memory)));
}

/* A copy from pageable memory may return before it has arrived, and other streams would not wait for it. */
void cuda_upload(void *to, const void *from, size_t bytes)
{
    if (bytes)
        MUST(cuda_driver()->cuMemcpyHtoD(cuda_address(to), from, bytes));
    MUST(cuda_driver()->cuCtxSynchronize());
}

void cuda_download(void *to, const void *from, size_t bytes)
{
    MUST(cuda_driver()->cuCtxSynchronize());
    if (bytes)
        MUST(cuda_driver()->cuMemcpyDtoH(to, cuda_address(from), bytes));
}

onep_cu_stream *cuda_stream(void)
{
    onep_cu_stream *stream;
    MUST(cuda_driver()->cuStreamCreate(&stream, ONEP_CU_NON_BLOCKING));
    return stream;
}

onepass_handle *cuda_handle(onep_cu_stream *stream)
{
    cuda_driver();
    onepass_handle *handle = NULL;
    onepass_config config = {.size = sizeof config, .device = {ONEPASS_CUDA, 0}, .stream = stream};
    if (onepass_create(&config, &handle) != ONEPASS_OK) {
        fprintf(stderr, "%s\n", onepass_last_error());
        exit(2);
    }
    return handle;
}

onepass_tensor cuda_tensor(onep_type type, void *data, int ndim, int64_t *shape)
{
    onepass_tensor tensor = kl_tensor(type, data, ndim, shape);
    tensor.device = (onepass_device){ONEPASS_CUDA, 0};
    return tensor;
}

int cuda_tickets_are_zero(const onepass_handle *handle)
{
    uint32_t tickets[ONEP_CUDA_TICKETS];
    cuda_download(tickets, onep_cuda_tickets(onep_cuda_of(handle)), sizeof tickets);
    for (int i = 0; i < ONEP_CUDA_TICKETS; i++)
        if (tickets[i])
            return 0;
    return 1;
}

/* ---- one call carried to the device ------------------------------------------------------------------------------ */

/* A range of host memory and its place on the device. Tensors that lie over each other share one. */
typedef struct block {
    char *host; /* NULL: the workspace */
    size_t bytes;
    size_t at; /* offset in the arena */
    char *own; /* its own allocation, if it has one */
    char *device;
    int written;
} block;

typedef struct journey {
    block blocks[MOST_BLOCKS];
    int count;
    size_t end; /* of the arena, as far as it is used */
} journey;

/* The arena on the device, what was sent there, and what came back. */
static struct {
    char *device, *sent, *back;
    size_t bytes;
} arena;

static onepass_handle *bridge_handle;

static void *host_claim(void *old, size_t bytes)
{
    void *memory = realloc(old, bytes ? bytes : 1);
    if (!memory) {
        perror("test memory");
        exit(2);
    }
    return memory;
}

static void start(void)
{
    if (!bridge_handle)
        bridge_handle = cuda_handle(cuda_stream());
}

static int64_t element_count(const onepass_tensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

/* Adds a block of `bytes`; `shift` moves it off the alignment. */
static block *add_block(journey *j, char *host, size_t bytes, size_t shift)
{
    block *b = &j->blocks[j->count++];
    b->host = host;
    b->bytes = bytes;
    b->at = (j->end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + shift;
    j->end = b->at + bytes + CASE_BAND;
    return b;
}

/*
 * Plans the place of a tensor. Elements on a GPU are aligned to their own size, so what the host's address is off by in
 * bytes becomes a number of elements there: every offset from a 16-byte boundary occurs.
 */
static void send(journey *j, const onepass_tensor *host, onepass_tensor *device, int *index, int written)
{
    *index = -1;
    if (!host)
        return;
    *device = *host;
    device->device = (onepass_device){ONEPASS_CUDA, 0};
    if (element_count(host) == 0)
        return;
    int64_t size = host->dtype.bits / 8;
    int64_t low = 0, high = 0;
    for (int d = 0; host->strides && d < host->ndim; d++) {
        int64_t reach = host->shape[d] > 1 ? (host->shape[d] - 1) * host->strides[d] : 0;
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    if (!host->strides)
        high = element_count(host) - 1;
    char *first = (char *)host->data + host->byte_offset + low * size;
    size_t bytes = (size_t)((high - low + 1) * size);
    for (int i = 0; i < j->count && *index < 0; i++)
        if (j->blocks[i].host == first && j->blocks[i].bytes == bytes)
            *index = i;
    if (*index < 0) {
        *index = j->count;
        add_block(j, first, bytes, (uintptr_t)first % 16 % 8 * (size_t)size);
    }
    j->blocks[*index].written |= written;
}

/* Where the tensor's first element is, once the blocks have their addresses. */
static void settle(const journey *j, const onepass_tensor *host, onepass_tensor *device, int index)
{
    if (index >= 0) {
        const block *b = &j->blocks[index];
        device->data = b->device + ((char *)host->data - b->host);
    }
}

static char guard_byte(size_t at)
{
    return (char)(0xa5 ^ (at * 29 >> 3));
}

static void claim_arena(size_t bytes)
{
    if (bytes <= arena.bytes)
        return;
    cuda_release(arena.device);
    arena.bytes = bytes + bytes / 2;
    arena.device = cuda_claim(arena.bytes);
    arena.sent = host_claim(arena.sent, arena.bytes);
    arena.back = host_claim(arena.back, arena.bytes);
}

static void depart(journey *j)
{
    int apart = test_quick();
    if (!apart) {
        claim_arena(j->end);
        for (size_t at = 0; at < j->end; at++)
            arena.sent[at] = guard_byte(at);
    }
    for (int i = 0; i < j->count; i++) {
        block *b = &j->blocks[i];
        size_t shift = b->at % ALIGNMENT;
        if (apart) {
            b->own = cuda_claim(b->bytes + shift);
            b->device = b->own + shift;
            if (b->host)
                cuda_upload(b->device, b->host, b->bytes);
        } else {
            b->device = arena.device + b->at;
            if (b->host)
                memcpy(arena.sent + b->at, b->host, b->bytes);
            else
                memset(arena.sent + b->at, 0xff, b->bytes);
        }
    }
    if (!apart)
        cuda_upload(arena.device, arena.sent, j->end);
}

/* Brings everything back and counts the bytes that nobody should have changed. */
static size_t come_home(journey *j, onepass_status status)
{
    size_t changed = 0;
    int apart = test_quick();
    if (!apart)
        cuda_download(arena.back, arena.device, j->end);
    size_t checked = 0; /* bytes of the arena looked at so far */
    for (int i = 0; i < j->count; i++) {
        block *b = &j->blocks[i];
        int may_change = status == ONEPASS_OK && (b->written || !b->host);
        char *back = NULL;
        if (apart && b->host) {
            back = host_claim(NULL, b->bytes);
            cuda_download(back, b->device, b->bytes);
        } else if (!apart) {
            back = arena.back + b->at;
            for (; checked < b->at; checked++)
                changed += arena.back[checked] != arena.sent[checked];
            checked += b->bytes;
        }
        for (size_t k = 0; back && !may_change && k < b->bytes; k++)
            changed += back[k] != (apart ? b->host[k] : arena.sent[b->at + k]);
        if (b->host && may_change)
            memcpy(b->host, back, b->bytes);
        if (apart) {
            free(back);
            cuda_release(b->own);
        }
    }
    for (; !apart && checked < j->end; checked++)
        changed += arena.back[checked] != arena.sent[checked];
    return changed;
}

static onepass_status carry(onep_kl_form form, const onepass_tensor *predictions, const onepass_tensor *targets,
                            const onepass_kl_options *given, const onepass_tensor *value,
                            const onepass_tensor *grad_predictions, const onepass_tensor *grad_targets)
{
    start();
    onepass_kl_options options = {.size = sizeof options};
    if (given)
        options = *given;
    enum { TENSORS = 9 };
    const onepass_tensor *host[TENSORS] = {
        predictions,           targets, options.row_weights, options.row_mask, options.grad_value,
        options.grad_made_for, value,   grad_predictions,    grad_targets};
    onepass_tensor device[TENSORS];
    int index[TENSORS];
    journey j = {.end = CASE_BAND};
    for (int i = 0; i < TENSORS; i++)
        send(&j, host[i], &device[i], &index[i], i >= 5);
    size_t needed = 0;
    onepass_status status = cuda_workspace_size(bridge_handle, &device[0], &options, &needed);
    if (!CHECK(status == ONEPASS_OK, "workspace_size: %s", onepass_last_error()))
        return status;
    const block *workspace = needed ? add_block(&j, NULL, needed, 0) : NULL;
    depart(&j);
    const onepass_tensor *there[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        if (host[i])
            settle(&j, host[i], &device[i], index[i]);
        there[i] = host[i] ? &device[i] : NULL;
    }
    options.row_weights = there[2];
    options.row_mask = there[3];
    options.grad_value = there[4];
    options.grad_made_for = there[5];
    options.workspace = workspace ? workspace->device : NULL;
    options.workspace_size = needed;
    status = cuda_entry_of(form)(bridge_handle, there[0], there[1], &options, there[6], there[7], there[8]);
    int error = cuda_driver()->cuCtxSynchronize();
    if (error != 0) {
        char text[200];
        onep_driver_text(error, text, sizeof text);
        CHECK(0, "the kernel failed: %s", text);
        fprintf(stderr, "the device cannot be used after this; the tests end here\n");
        exit(test_end() ? 1 : 2);
    }
    size_t changed = come_home(&j, status);
    CHECK(changed == 0, "on the device %zu bytes changed that are not the call's to change", changed);
    static long calls;
    if (calls++ % 64 == 0)
        CHECK(cuda_tickets_are_zero(bridge_handle), "a kernel left a ticket that is not 0");
    return status;
}

/* ---- the names the linker replaces ------------------------------------------------------------------------------- */

/* --wrap=X gives calls of X to __wrap_X, and calls of __real_X to X. */
kl_entry __real_onepass_kl_probs_probs, __wrap_onepass_kl_probs_probs;
kl_entry __real_onepass_kl_log_probs_probs, __wrap_onepass_kl_log_probs_probs;
kl_entry __real_onepass_kl_probs_log_probs, __wrap_onepass_kl_probs_log_probs;
kl_entry __real_onepass_kl_log_probs_log_probs, __wrap_onepass_kl_log_probs_log_probs;

kl_entry *cuda_entry_of(onep_kl_form form)
{
    static kl_entry *const entries[ONEP_KL_FORMS] = {
        [ONEP_KL_PROBS_PROBS] = __real_onepass_kl_probs_probs,
        [ONEP_KL_LOG_PROBS_PROBS] = __real_onepass_kl_log_probs_probs,
        [ONEP_KL_PROBS_LOG_PROBS] = __real_onepass_kl_probs_log_probs,
        [ONEP_KL_LOG_PROBS_LOG_PROBS] = __real_onepass_kl_log_probs_log_probs,
    };
    return entries[form];
}

onepass_status cuda_workspace_size(onepass_handle *handle, const onepass_tensor *predictions,
                                   const onepass_kl_options *options, size_t *bytes)
{
    return onepass_kl_workspace_size(handle, predictions, options, bytes);
}

onepass_status __wrap_onepass_kl_probs_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                             const onepass_tensor *targets, const onepass_kl_options *options,
                                             const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                             const onepass_tensor *grad_targets)
{
    (void)handle;
    return carry(ONEP_KL_PROBS_PROBS, predictions, targets, options, value, grad_predictions, grad_targets);
}

onepass_status __wrap_onepass_kl_log_probs_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                 const onepass_tensor *targets, const onepass_kl_options *options,
                                                 const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                                 const onepass_tensor *grad_targets)
{
    (void)handle;
    return carry(ONEP_KL_LOG_PROBS_PROBS, predictions, targets, options, value, grad_predictions, grad_targets);
}

onepass_status __wrap_onepass_kl_probs_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                 const onepass_tensor *targets, const onepass_kl_options *options,
                                                 const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                                 const onepass_tensor *grad_targets)
{
    (void)handle;
    return carry(ONEP_KL_PROBS_LOG_PROBS, predictions, targets, options, value, grad_predictions, grad_targets);
}

onepass_status __wrap_onepass_kl_log_probs_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                     const onepass_tensor *targets, const onepass_kl_options *options,
                                                     const onepass_tensor *value,
                                                     const onepass_tensor *grad_predictions,
                                                     const onepass_tensor *grad_targets)
{
    (void)handle;
    return carry(ONEP_KL_LOG_PROBS_LOG_PROBS, predictions, targets, options, value, grad_predictions, grad_targets);
}

/* The GPU takes the place of the first level that is not the reference; no other one runs. */
int __wrap_onep_level_runs(onep_level level);
const char *__real_onep_level_name(onep_level level);
const char *__wrap_onep_level_name(onep_level level);
onepass_handle *__wrap_test_handle(onep_level level, int32_t threads);
void __wrap_test_print_levels(void);

int __wrap_onep_level_runs(onep_level level)
{
    return level == ONEP_SCALAR;
}

const char *__wrap_onep_level_name(onep_level level)
{
    return __real_onep_level_name(level == ONEP_SCALAR ? ONEP_CUDA : level);
}

/* A handle for the test to pass around; the calls are made with the bridge's own. */
onepass_handle *__wrap_test_handle(onep_level level, int32_t threads)
{
    (void)level, (void)threads;
    start();
    return cuda_handle(NULL);
}

void __wrap_test_print_levels(void)
{
    kl_allow_cuda();
    start();
}
