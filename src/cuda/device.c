/*
 * See device.h. The kernels are loaded once per device and process, and every one of them is looked up then: a launch
 * finds its function by number, and a first use inside a stream capture finds nothing left to load.
 */
#include "cuda/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/cancel.h"
#include "core/status.h"
#include "cuda/driver.h"
#include "cuda/fatbin.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/product.h"

enum { OLDEST_CAPABILITY = 80, PROGRAMMATIC_VERSION = 12030 };

/* What a device has been given for the rest of the process; the primary context is retained with it. */
typedef struct loaded {
    struct loaded *next;
    int device;
    onep_cu_context *context;
    onep_cu_function *functions[ONEP_CUDA_KERNEL_COUNT]; /* NULL: not for this device */
    atomic_uint most_shared[ONEP_CUDA_KERNEL_COUNT];     /* bytes of shared memory the driver has been asked to allow */
} loaded;

/* ONEP_CUDA_TICKETS words of device memory. */
typedef struct ticket_page {
    struct ticket_page *older;
    onep_cu_address words;
} ticket_page;

struct onep_cuda {
    const onep_driver *driver;
    const loaded *kernels;
    onep_cu_stream *stream;
    ticket_page *tickets; /* the newest page first */
    int tickets_taken;    /* words of the newest page; the oldest page's first ones are for launches not captured */
    onep_products *products;
    int32_t ordinal;
    int trust_addresses;
    int capability, multiprocessors;
    int has_tma, is_programmatic;
    int64_t l2_bytes;
};

static loaded *all_loaded;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* A failure of the driver, in its own words. */
static onepass_status failed(onepass_status status, const char *operator_name, const char *what, int error)
{
    char text[160];
    onep_driver_text(error, text, sizeof text);
    if (error == ONEP_CU_OUT_OF_MEMORY)
        status = ONEPASS_OUT_OF_MEMORY;
    return onep_fail(status, "%s: %s: %s", operator_name, what, text);
}

onepass_status onep_cuda_status(const char *operator_name, const char *what, int error)
{
    return error == 0 ? ONEPASS_OK : failed(ONEPASS_DEVICE_ERROR, operator_name, what, error);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

int onep_cuda_devices(const char **why)
{
    const onep_driver *driver = onep_driver_get();
    if (why)
        *why = onep_driver_missing();
    return driver ? driver->devices : 0;
}

static int has_tma(const onep_driver *driver, int major)
{
    return major == 9 && driver->cuLaunchKernelEx && driver->cuTensorMapEncodeTiled;
}

int onep_cuda_describe(int32_t device, onep_cuda_info *info)
{
    const onep_driver *driver = onep_driver_get();
    int id;
    if (!driver || device < 0 || driver->cuDeviceGet(&id, device) != 0)
        return 0;
    memset(info, 0, sizeof *info);
    int l2_bytes = 0;
    driver->cuDeviceGetName(info->name, (int)sizeof info->name - 1, id);
    driver->cuDeviceGetAttribute(&info->major, ONEP_CU_MAJOR, id);
    driver->cuDeviceGetAttribute(&info->minor, ONEP_CU_MINOR, id);
    driver->cuDeviceGetAttribute(&info->multiprocessors, ONEP_CU_MULTIPROCESSORS, id);
    driver->cuDeviceGetAttribute(&info->clock_khz, ONEP_CU_CLOCK_RATE, id);
    driver->cuDeviceGetAttribute(&l2_bytes, ONEP_CU_L2_BYTES, id);
    driver->cuDeviceTotalMem(&info->memory_bytes, id);
    info->l2_bytes = l2_bytes;
    info->driver_version = driver->version;
    info->has_tma = has_tma(driver, info->major);
    return 1;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* True of an image for one generation of devices: its kernels' names say which. */
static int image_is_special(int image)
{
    for (int i = 0; i < ONEP_CUDA_KERNEL_COUNT; i++)
        if (onep_fatbin_kernels[i].image == image)
            return strstr(onep_fatbin_kernels[i].name, "_sm90") != NULL;
    return 0;
}

/* Loads every image and looks every kernel up, in the context that is current. */
static int load_images(const onep_driver *driver, loaded *into)
{
    int error = 0;
    for (int image = 0; image < onep_fatbin_image_count && error == 0; image++) {
        onep_cu_module *module;
        error = driver->cuModuleLoadData(&module, onep_fatbin_images[image]);
        if (error == ONEP_CU_NO_BINARY && image_is_special(image)) {
            error = 0; /* its functions stay NULL */
            continue;
        }
        for (int i = 0; i < ONEP_CUDA_KERNEL_COUNT && error == 0; i++)
            if (onep_fatbin_kernels[i].image == image)
                error = driver->cuModuleGetFunction(&into->functions[i], module, onep_fatbin_kernels[i].name);
    }
    return error;
}

static onepass_status load(const onep_driver *driver, int device, int32_t ordinal, loaded **out)
{
    loaded *made = calloc(1, sizeof *made);
    if (!made)
        return onep_fail(ONEPASS_OUT_OF_MEMORY, "create: no memory for the table of kernels");
    made->device = device;
    int error = driver->cuDevicePrimaryCtxRetain(&made->context, device);
    if (error != 0) {
        free(made);
        return failed(ONEPASS_DEVICE_ERROR, "create", "the device's primary context", error);
    }
    error = driver->cuCtxPushCurrent(made->context);
    if (error == 0) {
        error = load_images(driver, made);
        onep_cu_context *popped;
        driver->cuCtxPopCurrent(&popped);
    }
    if (error != 0) { /* with the context, if nobody else holds it, goes what was loaded into it */
        driver->cuDevicePrimaryCtxRelease(device);
        free(made);
        char text[160];
        onep_driver_text(error, text, sizeof text);
        return onep_fail(ONEPASS_NO_DEVICE,
                         "create: config.device: cuda:%d; its driver (for CUDA %d.%d) does not load the kernels of "
                         "this library (built with CUDA %s): %s",
                         (int)ordinal, driver->version / 1000, driver->version % 1000 / 10, onep_fatbin_cuda, text);
    }
    *out = made;
    return ONEPASS_OK;
}

/* The kernels on a device, loaded now if nobody has done so yet. */
static onepass_status kernels_on(const onep_driver *driver, int device, int32_t ordinal, const loaded **out)
{
    onepass_status status = ONEPASS_OK;
    int cancel_state = onep_cancel_disable(); /* the driver reads and waits: a thread could be cancelled there */
    pthread_mutex_lock(&loading);
    loaded *found = all_loaded;
    while (found && found->device != device)
        found = found->next;
    if (!found) {
        status = load(driver, device, ordinal, &found);
        if (status == ONEPASS_OK) {
            found->next = all_loaded;
            all_loaded = found;
        }
    }
    pthread_mutex_unlock(&loading);
    onep_cancel_restore(cancel_state);
    *out = found;
    return status;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* The values 1 and 2 are the driver's names for its two default streams; any other is a stream of some context. */
static onepass_status check_stream(const onep_cuda *cuda, void *stream)
{
    if ((uintptr_t)stream <= 2)
        return ONEPASS_OK;
    const onep_driver *driver = cuda->driver;
    onep_cu_context *owner = NULL, *popped;
    int error = driver->cuStreamGetCtx(stream, &owner);
    int device = cuda->kernels->device;
    if (error == 0 && owner != cuda->kernels->context && driver->cuCtxPushCurrent(owner) == 0) {
        error = driver->cuCtxGetDevice(&device);
        driver->cuCtxPopCurrent(&popped);
    }
    if (error != 0)
        return failed(ONEPASS_INVALID_ARGUMENT, "create", "config.stream", error);
    if (device != cuda->kernels->device)
        return onep_fail(ONEPASS_INVALID_ARGUMENT,
                         "create: config.stream: %p; it belongs to another device than cuda:%d", stream,
                         (int)cuda->ordinal);
    return ONEPASS_OK;
}

/* Adds a page of tickets and waits until they are 0, on a stream of its own: nobody else's work is waited for. */
static onepass_status add_tickets(onep_cuda *cuda, const char *operator_name)
{
    const onep_driver *driver = cuda->driver;
    const size_t bytes = ONEP_CUDA_TICKETS * sizeof(uint32_t);
    ticket_page *page = calloc(1, sizeof *page);
    if (!page)
        return onep_fail(ONEPASS_OUT_OF_MEMORY, "%s: no memory for a page of tickets", operator_name);
    onep_cu_stream *stream = NULL;
    int error = driver->cuStreamCreate(&stream, ONEP_CU_NON_BLOCKING);
    if (error == 0)
        error = driver->cuMemAlloc(&page->words, bytes);
    if (error == 0)
        error = driver->cuMemsetD8Async(page->words, 0, bytes, stream);
    if (error == 0)
        error = driver->cuStreamSynchronize(stream);
    if (stream)
        driver->cuStreamDestroy(stream);
    if (error != 0) {
        if (page->words)
            driver->cuMemFree(page->words);
        free(page);
        return failed(ONEPASS_DEVICE_ERROR, operator_name, "the handle's tickets", error);
    }
    page->older = cuda->tickets;
    cuda->tickets = page;
    cuda->tickets_taken = 0;
    return ONEPASS_OK;
}

static onepass_status fill(onep_cuda *cuda, void *stream)
{
    onep_cuda_info info;
    if (!onep_cuda_describe(cuda->ordinal, &info))
        return onep_fail(ONEPASS_NO_DEVICE, "create: config.device: cuda:%d; the driver does not describe it",
                         (int)cuda->ordinal);
    cuda->capability = 10 * info.major + info.minor;
    cuda->multiprocessors = info.multiprocessors;
    cuda->l2_bytes = info.l2_bytes;
    cuda->has_tma = info.has_tma;
    /* Only where the kernels' own code for 9.x runs: what a newer device translates from PTX for 8.0 does not wait. And
     * only with drivers that keep such a launch as it is when they capture it. */
    cuda->is_programmatic =
        info.major == 9 && cuda->driver->cuLaunchKernelEx && cuda->driver->version >= PROGRAMMATIC_VERSION;
    if (cuda->capability < OLDEST_CAPABILITY)
        return onep_fail(ONEPASS_NO_DEVICE,
                         "create: config.device: cuda:%d, %s, has compute capability %d.%d; it must be %d.%d or newer",
                         (int)cuda->ordinal, info.name, info.major, info.minor, OLDEST_CAPABILITY / 10,
                         OLDEST_CAPABILITY % 10);
    int device;
    int error = cuda->driver->cuDeviceGet(&device, cuda->ordinal);
    if (error != 0)
        return failed(ONEPASS_DEVICE_ERROR, "create", "config.device", error);
    onepass_status status = kernels_on(cuda->driver, device, cuda->ordinal, &cuda->kernels);
    if (status != ONEPASS_OK)
        return status;

    error = cuda->driver->cuCtxPushCurrent(cuda->kernels->context);
    if (error != 0)
        return failed(ONEPASS_DEVICE_ERROR, "create", "the device's primary context", error);
    status = check_stream(cuda, stream);
    if (status == ONEPASS_OK) {
        cuda->stream = stream;
        status = add_tickets(cuda, "create");
        cuda->tickets_taken = ONEP_CUDA_LAUNCH_TICKETS;
    }
    onep_cu_context *popped;
    cuda->driver->cuCtxPopCurrent(&popped);
    return status;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

/* Makes the device's context the calling thread's. It mostly is already, and asking is cheaper than pushing. */
static int enter(const onep_cuda *cuda, int *pushed)
{
    onep_cu_context *current = NULL;
    *pushed = 0;
    int error = cuda->driver->cuCtxGetCurrent(&current);
    if (error != 0 || current == cuda->kernels->context)
        return error;
    error = cuda->driver->cuCtxPushCurrent(cuda->kernels->context);
    *pushed = error == 0;
    return error;
}

static void leave(const onep_cuda *cuda, int pushed)
{
    onep_cu_context *popped;
    if (pushed)
        cuda->driver->cuCtxPopCurrent(&popped);
}

int onep_cuda_has_kernel(const onep_cuda *cuda, int kernel)
{
    return cuda->kernels->functions[kernel] != NULL;
}

int onep_cuda_has_tma(const onep_cuda *cuda)
{
    return cuda->has_tma;
}

/* Has the driver allow a launch clusters of so many blocks, and so much shared memory, this once per kernel. By default
 * that is 48 KB with what kernels declare themselves. */
static int allow(const onep_cuda *cuda, const onep_launch *launch)
{
    enum { BY_DEFAULT = 32 * 1024, PORTABLE = 8 };
    if (launch->cluster > PORTABLE) {
        int error =
            cuda->driver->cuFuncSetAttribute(cuda->kernels->functions[launch->kernel], ONEP_CU_LARGE_CLUSTERS, 1);
        if (error != 0)
            return error;
    }
    atomic_uint *most = (atomic_uint *)&cuda->kernels->most_shared[launch->kernel];
    if (launch->shared_bytes <= BY_DEFAULT || atomic_load_explicit(most, memory_order_acquire) >= launch->shared_bytes)
        return 0;
    int error = cuda->driver->cuFuncSetAttribute(cuda->kernels->functions[launch->kernel], ONEP_CU_MAX_SHARED,
                                                 (int)launch->shared_bytes);
    if (error == 0)
        atomic_store_explicit(most, launch->shared_bytes, memory_order_release);
    return error;
}

/* In the device's context. */
static int launch_now(const onep_cuda *cuda, const onep_launch *launch, const void *args)
{
    onep_cu_function *function = cuda->kernels->functions[launch->kernel];
    /* Not as one buffer of bytes: where in it an argument lies that wants 64-byte alignment only the image knows. */
    void *parameters[] = {(void *)(uintptr_t)args};
    onep_cu_attribute attributes[2];
    unsigned count = 0;
    if (launch->cluster)
        attributes[count++] = (onep_cu_attribute){.id = ONEP_CU_CLUSTER, .value.blocks = {launch->cluster, 1, 1}};
    if (launch->programmatic && cuda->is_programmatic)
        attributes[count++] = (onep_cu_attribute){.id = ONEP_CU_PROGRAMMATIC, .value.allowed = 1};
    int error = allow(cuda, launch);
    if (error != 0)
        return error;
    if (count == 0)
        return cuda->driver->cuLaunchKernel(function, launch->grid, 1, 1, launch->block, 1, 1, launch->shared_bytes,
                                            cuda->stream, parameters, NULL);
    onep_cu_launch shape = {launch->grid, 1,          1,    launch->block, 1, 1, launch->shared_bytes,
                            cuda->stream, attributes, count};
    return cuda->driver->cuLaunchKernelEx(&shape, function, parameters, NULL);
}

onepass_status onep_cuda_launch(const onep_cuda *cuda, const char *operator_name, const onep_launch *launch,
                                const void *args)
{
    const char *name = onep_fatbin_kernels[launch->kernel].name;
    if (!cuda->kernels->functions[launch->kernel])
        return onep_fail(ONEPASS_DEVICE_ERROR, "%s: kernel %s is not for this device", operator_name, name);
    int pushed;
    int error = enter(cuda, &pushed);
    if (error == 0)
        error = launch_now(cuda, launch, args);
    leave(cuda, pushed);
    return error == 0 ? ONEPASS_OK : failed(ONEPASS_DEVICE_ERROR, operator_name, name, error);
}

/* ---- TMA --------------------------------------------------------------------------------------------------------- */

onepass_status onep_cuda_tensor_map(const onep_cuda *cuda, const char *operator_name, void *map, const void *address,
                                    int element_size, int64_t rows, int64_t columns, int64_t stride, int box_rows)
{
    /* the driver's numbers: fp16, fp32; no interleaving; the 128-byte swizzle; 128-byte promotion in the second-level
     * cache (others made no difference); zeros outside */
    enum { FP16 = 6, FP32 = 7, PLAIN = 0, SWIZZLE_128 = 3, PROMOTED_128 = 2, ZEROS = 0, PIECE = 128 };
    uint64_t extents[] = {(uint64_t)columns, (uint64_t)rows}, strides[] = {(uint64_t)stride};
    uint32_t box[] = {(uint32_t)(PIECE / element_size), (uint32_t)box_rows}, steps[] = {1, 1};
    int pushed;
    int error = enter(cuda, &pushed); /* it only fills in the map, but refuses a thread without a context */
    if (error == 0)
        error =
            cuda->driver->cuTensorMapEncodeTiled(map, element_size == 2 ? FP16 : FP32, 2, (void *)(uintptr_t)address,
                                                 extents, strides, box, steps, PLAIN, SWIZZLE_128, PROMOTED_128, ZEROS);
    leave(cuda, pushed);
    return error == 0 ? ONEPASS_OK : failed(ONEPASS_DEVICE_ERROR, operator_name, "cuTensorMapEncodeTiled", error);
}

/* ---- what else a call needs -------------------------------------------------------------------------------------- */

onepass_status onep_cuda_enter(const onep_cuda *cuda, const char *operator_name, int *mode)
{
    int error = cuda->driver->cuCtxPushCurrent(cuda->kernels->context);
    if (error != 0)
        return failed(ONEPASS_DEVICE_ERROR, operator_name, "the device's primary context", error);
    *mode = ONEP_CU_CAPTURE_RELAXED;
    cuda->driver->cuThreadExchangeStreamCaptureMode(mode);
    return ONEPASS_OK;
}

void onep_cuda_leave(const onep_cuda *cuda, int mode)
{
    onep_cu_context *popped;
    cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
    cuda->driver->cuCtxPopCurrent(&popped);
}

void *onep_cuda_stream(const onep_cuda *cuda)
{
    return cuda->stream;
}

onep_products *onep_cuda_products(onep_cuda *cuda)
{
    int mode;
    if (!cuda->products && onep_cuda_enter(cuda, "product", &mode) == ONEPASS_OK) {
        cuda->products = onep_products_create();
        onep_cuda_leave(cuda, mode);
    }
    return cuda->products;
}

/* Refuses an address that is not memory of this device: the host's, another device's, or unknown to the driver. One
 * that the caller vouches for (onepass_config.trust_addresses) is not looked at. */
static onepass_status check_address(const onepass_handle *handle, const char *operator_name, const char *argument,
                                    const void *pointer)
{
    const onep_cuda *cuda = onep_cuda_of(handle);
    int attributes[] = {ONEP_CU_MEMORY_TYPE, ONEP_CU_IS_MANAGED, ONEP_CU_DEVICE_ORDINAL};
    unsigned memory_type = 0;
    unsigned managed = 0; /* the driver writes a byte or a word, as its release likes */
    int ordinal = -1;
    void *values[] = {&memory_type, &managed, &ordinal};
    if (cuda->trust_addresses)
        return ONEPASS_OK;
    int pushed;
    int error = enter(cuda, &pushed);
    if (error == 0)
        error = cuda->driver->cuPointerGetAttributes(3, attributes, values, (onep_cu_address)(uintptr_t)pointer);
    leave(cuda, pushed);
    if (error != 0)
        return failed(ONEPASS_DEVICE_ERROR, operator_name, argument, error);
    if (managed)
        return ONEPASS_OK;
    if (memory_type != ONEP_CU_IN_DEVICE)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: %p is %s; it must be memory of cuda:%d", operator_name,
                         argument, pointer,
                         memory_type == ONEP_CU_IN_HOST ? "memory of the host" : "not an address the CUDA driver knows",
                         (int)cuda->ordinal);
    if (ordinal != cuda->ordinal)
        return onep_fail(ONEPASS_INVALID_ARGUMENT, "%s: %s: %p is memory of cuda:%d; it must be memory of cuda:%d",
                         operator_name, argument, pointer, ordinal, (int)cuda->ordinal);
    return ONEPASS_OK;
}

int onep_cuda_is_capturing(const onep_cuda *cuda)
{
    int status = 0;
    /* It fails for the legacy stream while another thread captures; so will the launch, which then says why. */
    return cuda->driver->cuStreamIsCapturing(cuda->stream, &status) == 0 && status == ONEP_CU_CAPTURING;
}

int onep_cuda_multiprocessors(const onep_cuda *cuda)
{
    return cuda->multiprocessors;
}

int onep_cuda_capability(const onep_cuda *cuda)
{
    return cuda->capability;
}

int64_t onep_cuda_l2_bytes(const onep_cuda *cuda)
{
    return cuda->l2_bytes;
}

static const ticket_page *oldest_page(const onep_cuda *cuda)
{
    const ticket_page *page = cuda->tickets;
    while (page->older)
        page = page->older;
    return page;
}

void *onep_cuda_tickets(const onep_cuda *cuda)
{
    return (void *)(uintptr_t)oldest_page(cuda)->words;
}

/* Words that no launch has used yet. */
static onepass_status fresh_tickets(onep_cuda *cuda, const char *operator_name, int count, unsigned **tickets)
{
    if (cuda->tickets_taken + count > ONEP_CUDA_TICKETS) {
        int pushed;
        int error = enter(cuda, &pushed);
        if (error != 0)
            return failed(ONEPASS_DEVICE_ERROR, operator_name, "the device's primary context", error);
        int mode = ONEP_CU_CAPTURE_RELAXED; /* or the allocation would end the capture */
        cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
        onepass_status status = add_tickets(cuda, operator_name);
        cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
        leave(cuda, pushed);
        if (status != ONEPASS_OK)
            return status;
    }
    *tickets = (unsigned *)(uintptr_t)cuda->tickets->words + cuda->tickets_taken;
    cuda->tickets_taken += count;
    return ONEPASS_OK;
}

onepass_status onep_cuda_tickets_of(onep_cuda *cuda, const char *operator_name, int count, unsigned **tickets)
{
    if (onep_cuda_is_capturing(cuda))
        return fresh_tickets(cuda, operator_name, count, tickets);
    *tickets = onep_cuda_tickets(cuda);
    return ONEPASS_OK;
}

onepass_status onep_cuda_ticket(onep_cuda *cuda, const char *operator_name, unsigned **ticket)
{
    return onep_cuda_tickets_of(cuda, operator_name, 1, ticket);
}

/* ---- the handle's device ------------------------------------------------------------------------------------------
 */

static void destroy(onep_cuda *cuda)
{
    if (cuda->tickets && cuda->driver->cuCtxPushCurrent(cuda->kernels->context) == 0) {
        int mode = ONEP_CU_CAPTURE_RELAXED;
        onep_cu_context *popped;
        cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
        onep_products_destroy(cuda->products);
        while (cuda->tickets) {
            ticket_page *page = cuda->tickets;
            cuda->tickets = page->older;
            cuda->driver->cuMemFree(page->words);
            free(page);
        }
        cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
        cuda->driver->cuCtxPopCurrent(&popped);
    }
    free(cuda);
}

static void close_device(onepass_handle *handle)
{
    destroy(onep_cuda_of(handle));
}

static int is_capturing(const onepass_handle *handle)
{
    return onep_cuda_is_capturing(onep_cuda_of(handle));
}

static const char *gemm_library(onepass_handle *handle, char *text, size_t size)
{
    onep_cuda_products(onep_cuda_of(handle)); /* one that does not start on this device is none */
    return onep_products_describe(text, size) ? "cublaslt" : "none";
}

static const onep_device_class cuda_class = {
    .check_address = check_address,
    .is_capturing = is_capturing,
    .close = close_device,
    .gemm_library = gemm_library,
    .allocate = onep_cuda_allocate,
    .release = onep_cuda_release,
    .copy = onep_cuda_copy,
    .fill = onep_cuda_fill,
    .wait = onep_cuda_wait,
    .event_create = onep_cuda_event_create,
    .event_destroy = onep_cuda_event_destroy,
    .event_record = onep_cuda_event_record,
    .event_elapsed = onep_cuda_event_elapsed,
    .read_probe = onep_cuda_read_probe,
};

onepass_status onep_cuda_open(onepass_handle *handle, int32_t device, void *stream, int trust_addresses)
{
    const onep_driver *driver = onep_driver_get();
    if (!driver)
        return onep_fail(ONEPASS_NO_DEVICE, "create: config.device: cuda:%d; no CUDA driver can be used: %s",
                         (int)device, onep_driver_missing());
    if (device >= driver->devices)
        return onep_fail(ONEPASS_NO_DEVICE, "create: config.device: cuda:%d; this machine has %d CUDA device%s",
                         (int)device, driver->devices, driver->devices == 1 ? "" : "s");
    onep_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return onep_fail(ONEPASS_OUT_OF_MEMORY, "create: no memory for a device of %zu bytes", sizeof *cuda);
    cuda->driver = driver;
    cuda->ordinal = device;
    cuda->trust_addresses = trust_addresses;

    /* Another thread may be capturing a stream, and would otherwise lose its graph to the calls made here. */
    int mode = ONEP_CU_CAPTURE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    onepass_status status = fill(cuda, stream);
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    if (status != ONEPASS_OK) {
        destroy(cuda);
        return status;
    }
    handle->device_state = cuda;
    handle->device_class = &cuda_class;
    return ONEPASS_OK;
}
