/*
 * The CUDA driver, found at run time: libcuda.so.1 by dlopen, its functions by their explicit names. The prototypes are
 * our own, so that neither cuda.h nor a toolkit is needed to build, and where there is no driver the library works on.
 * Every function here returns a number that is 0 on success; onep_driver_text puts the others into words.
 */
#ifndef ONEP_DRIVER_H
#define ONEP_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef struct onep_cu_context onep_cu_context;
typedef struct onep_cu_module onep_cu_module;
typedef struct onep_cu_function onep_cu_function;
typedef struct onep_cu_stream onep_cu_stream;
typedef struct onep_cu_event onep_cu_event;
typedef struct onep_cu_graph onep_cu_graph;
typedef struct onep_cu_graph_exec onep_cu_graph_exec;
typedef uint64_t onep_cu_address; /* in the device's memory */

/* Numbers of the driver's enumerations, as far as they are used. */
enum {
    ONEP_CU_OUT_OF_MEMORY = 2,
    ONEP_CU_NO_DEVICE = 100,
    ONEP_CU_NO_BINARY = 209, /* an image has nothing for the device */

    ONEP_CU_CLOCK_RATE = 13, /* attributes of a device; kHz */
    ONEP_CU_MULTIPROCESSORS = 16,
    ONEP_CU_L2_BYTES = 38,
    ONEP_CU_MAJOR = 75,
    ONEP_CU_MINOR = 76,

    ONEP_CU_MAX_SHARED = 8,      /* attributes of a function: bytes of shared memory a launch may ask for, */
    ONEP_CU_LARGE_CLUSTERS = 14, /* whether clusters may have more than 8 blocks */

    ONEP_CU_MEMORY_TYPE = 2, /* attributes of an address */
    ONEP_CU_IS_MANAGED = 8,
    ONEP_CU_DEVICE_ORDINAL = 9,
    ONEP_CU_IN_HOST = 1, /* values of ONEP_CU_MEMORY_TYPE; 0: the driver does not know the address */
    ONEP_CU_IN_DEVICE = 2,

    ONEP_CU_NON_BLOCKING = 1,   /* of a stream: not ordered with the legacy stream */
    ONEP_CU_CAPTURE_GLOBAL = 0, /* of a capture: a call that is unsafe in one is an error, in any thread */
    ONEP_CU_CAPTURE_RELAXED = 2,
    ONEP_CU_CLUSTER = 4,      /* of a launch: blocks per cluster, */
    ONEP_CU_PROGRAMMATIC = 6, /* and programmatic dependent launch */
    ONEP_CU_CAPTURING = 1,    /* what cuStreamIsCapturing says of a stream in the middle of a capture */
};

/*
 * FUNCTION(member, symbol, parameters). All have been in every driver since CUDA 11.0; a driver that lacks one is too
 * old. The members are named without the version suffix of their symbol.
 */
#define ONEP_DRIVER_FUNCTIONS(FUNCTION)                                                                                \
    FUNCTION(cuInit, "cuInit", (unsigned flags))                                                                       \
    FUNCTION(cuDriverGetVersion, "cuDriverGetVersion", (int *version))                                                 \
    FUNCTION(cuGetErrorName, "cuGetErrorName", (int error, const char **name))                                         \
    FUNCTION(cuGetErrorString, "cuGetErrorString", (int error, const char **text))                                     \
    FUNCTION(cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                                       \
    FUNCTION(cuDeviceGet, "cuDeviceGet", (int *device, int ordinal))                                                   \
    FUNCTION(cuDeviceGetName, "cuDeviceGetName", (char *name, int size, int device))                                   \
    FUNCTION(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                    \
    FUNCTION(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, int device))                                    \
    FUNCTION(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (onep_cu_context * *context, int device))           \
    FUNCTION(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int device))                                  \
    FUNCTION(cuCtxGetCurrent, "cuCtxGetCurrent", (onep_cu_context * *context))                                         \
    FUNCTION(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (onep_cu_context * context))                                     \
    FUNCTION(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (onep_cu_context * *context))                                      \
    FUNCTION(cuCtxGetDevice, "cuCtxGetDevice", (int *device))                                                          \
    FUNCTION(cuCtxSynchronize, "cuCtxSynchronize", (void))                                                             \
    FUNCTION(cuModuleLoadData, "cuModuleLoadData", (onep_cu_module * *module, const void *image))                      \
    FUNCTION(cuModuleGetFunction, "cuModuleGetFunction",                                                               \
             (onep_cu_function * *function, onep_cu_module * module, const char *name))                                \
    FUNCTION(cuFuncSetAttribute, "cuFuncSetAttribute", (onep_cu_function * function, int attribute, int value))        \
    FUNCTION(cuLaunchKernel, "cuLaunchKernel",                                                                         \
             (onep_cu_function * function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
              unsigned block_y, unsigned block_z, unsigned shared_bytes, onep_cu_stream *stream, void **parameters,    \
              void **extra))                                                                                           \
    FUNCTION(cuMemAlloc, "cuMemAlloc_v2", (onep_cu_address * address, size_t bytes))                                   \
    FUNCTION(cuMemFree, "cuMemFree_v2", (onep_cu_address address))                                                     \
    FUNCTION(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * available, size_t * total))                                    \
    FUNCTION(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (onep_cu_address to, const void *from, size_t bytes))                    \
    FUNCTION(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *to, onep_cu_address from, size_t bytes))                          \
    FUNCTION(cuMemcpyAsync, "cuMemcpyAsync",                                                                           \
             (onep_cu_address to, onep_cu_address from, size_t bytes, onep_cu_stream * stream))                        \
    FUNCTION(cuMemsetD8Async, "cuMemsetD8Async",                                                                       \
             (onep_cu_address to, unsigned char value, size_t count, onep_cu_stream *stream))                          \
    FUNCTION(cuMemsetD32Async, "cuMemsetD32Async",                                                                     \
             (onep_cu_address to, unsigned value, size_t count, onep_cu_stream *stream))                               \
    FUNCTION(cuPointerGetAttributes, "cuPointerGetAttributes",                                                         \
             (unsigned count, int *attributes, void **data, onep_cu_address address))                                  \
    FUNCTION(cuStreamCreate, "cuStreamCreate", (onep_cu_stream * *stream, unsigned flags))                             \
    FUNCTION(cuStreamDestroy, "cuStreamDestroy_v2", (onep_cu_stream * stream))                                         \
    FUNCTION(cuStreamSynchronize, "cuStreamSynchronize", (onep_cu_stream * stream))                                    \
    FUNCTION(cuStreamGetCtx, "cuStreamGetCtx", (onep_cu_stream * stream, onep_cu_context * *context))                  \
    FUNCTION(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (onep_cu_stream * stream, int mode))                     \
    FUNCTION(cuStreamEndCapture, "cuStreamEndCapture", (onep_cu_stream * stream, onep_cu_graph * *graph))              \
    FUNCTION(cuStreamIsCapturing, "cuStreamIsCapturing", (onep_cu_stream * stream, int *status))                       \
    FUNCTION(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode))                      \
    FUNCTION(cuGraphInstantiate, "cuGraphInstantiate_v2",                                                              \
             (onep_cu_graph_exec * *exec, onep_cu_graph * graph, void **error_node, char *log, size_t log_size))       \
    FUNCTION(cuGraphLaunch, "cuGraphLaunch", (onep_cu_graph_exec * exec, onep_cu_stream * stream))                     \
    FUNCTION(cuGraphExecDestroy, "cuGraphExecDestroy", (onep_cu_graph_exec * exec))                                    \
    FUNCTION(cuGraphDestroy, "cuGraphDestroy", (onep_cu_graph * graph))                                                \
    FUNCTION(cuEventCreate, "cuEventCreate", (onep_cu_event * *event, unsigned flags))                                 \
    FUNCTION(cuEventDestroy, "cuEventDestroy_v2", (onep_cu_event * event))                                             \
    FUNCTION(cuEventRecord, "cuEventRecord", (onep_cu_event * event, onep_cu_stream * stream))                         \
    FUNCTION(cuEventSynchronize, "cuEventSynchronize", (onep_cu_event * event))                                        \
    FUNCTION(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, onep_cu_event *begin, onep_cu_event *end))

/* What a kernel is launched with beside its arguments: cuLaunchKernelEx, in drivers since CUDA 11.8. */
typedef struct onep_cu_attribute {
    int id;
    char padding[4];
    union {
        int allowed;
        unsigned blocks[3];
        char bytes[64];
    } value;
} onep_cu_attribute;

typedef struct onep_cu_launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    onep_cu_stream *stream;
    onep_cu_attribute *attributes;
    unsigned attribute_count;
} onep_cu_launch;

_Static_assert(sizeof(onep_cu_attribute) == 72 && sizeof(onep_cu_launch) == 56 &&
                   offsetof(onep_cu_launch, stream) == 32,
               "the driver's own sizes");

typedef struct onep_driver {
#define FUNCTION(member, symbol, parameters) int(*member) parameters;
    ONEP_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION
    int (*cuLaunchKernelEx)(const onep_cu_launch *launch, onep_cu_function *function, void **parameters,
                            void **extra); /* NULL if the driver has none */
    /* A tensor map, for TMA: in drivers since CUDA 12.0, NULL if this one has none. */
    int (*cuTensorMapEncodeTiled)(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                                  const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int fill);
    int version; /* 13000 for CUDA 13.0 */
    int devices; /* how many the driver shows, at least 1 */
} onep_driver;

/* The driver, loaded and initialised at the first call; NULL if it cannot be used: onep_driver_missing says why. */
const onep_driver *onep_driver_get(void);

/* Why onep_driver_get returned NULL: "libcuda.so.1: cannot open shared object file: ..."; "" if it did not. */
const char *onep_driver_missing(void);

/* "CUDA_ERROR_INVALID_VALUE, invalid argument" for a number one of the functions returned; cut to the size. */
void onep_driver_text(int error, char *text, size_t size);

#endif
