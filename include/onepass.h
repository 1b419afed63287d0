/*
 * onepass: KL-divergence losses and softmax heads, each reading its inputs once.
 *
 * This is the only public header; a complete program, on a GPU too, needs nothing else. The rules that hold everywhere:
 *
 *  - Functions return a status. Anything but ONEPASS_OK leaves every output untouched and records, per thread, a
 *    message that names the operator, the argument, the offending value and the rule (onepass_last_error).
 *  - The library never aborts, exits or prints.
 *  - Memory belongs to the caller. Tensors are views; a workspace, where an operator needs one, is the caller's too.
 *  - A workspace may start at any address: the library aligns inside it, and the size it asks for includes that. What
 *    onepass_prepare_weight writes is kept from call to call and must start at a multiple of 256 bytes.
 *  - A workspace_size function makes the plan of the call, without running it, and returns the bytes the plan needs.
 *    Ask again when shapes, dtypes, strides or options change.
 *  - Structures that may grow start with their own size. Zero all fields you do not use: zero is the default.
 *  - Results do not depend on the caller's floating-point environment (rounding, flushing of subnormal numbers, traps),
 *    which a call leaves as it was, exception flags included.
 *  - A child may use the library after fork, on the CPU. One forked in a progress callback may return from it and
 *    finish the call. pthread_cancel takes effect after a call's work, not in the middle of it.
 *  - A handle serves one call at a time; different handles may be used from different threads at once.
 *  - A call on a CUDA handle is queued on the handle's stream and returns at once; onepass_wait waits for it.
 */
#ifndef ONEPASS_H
#define ONEPASS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONEPASS_VERSION_MAJOR 0
#define ONEPASS_VERSION_MINOR 1
#define ONEPASS_VERSION_PATCH 0

#if defined(__GNUC__)
#define ONEPASS_API __attribute__((visibility("default")))
#else
#define ONEPASS_API
#endif

/* What a call on the CPU takes of the calling thread's stack at most, beside what a BLAS and the progress callback do.
 */
#define ONEPASS_STACK_BYTES 49152

/* "0.1.0": the version of the loaded library, which may be newer than this header. */
ONEPASS_API const char *onepass_version(void);

/* ---- status ------------------------------------------------------------------------------------------------------ */

typedef enum onepass_status {
    ONEPASS_OK = 0,
    ONEPASS_INVALID_ARGUMENT = 1, /* an argument breaks a rule: null, shape, dtype, overlap, option */
    ONEPASS_UNSUPPORTED = 2,      /* legal, but not supported: refused rather than ignored */
    ONEPASS_NO_DEVICE = 3,        /* this machine does not have the requested device */
    ONEPASS_OUT_OF_MEMORY = 4,
    ONEPASS_WORKSPACE = 5,    /* the workspace is too small; the operator's workspace_size function has the size */
    ONEPASS_DEVICE_ERROR = 6, /* the device, or earlier work on it, failed */
} onepass_status;

/* "ONEPASS_INVALID_ARGUMENT" and so on; never NULL, not even for unknown numbers. */
ONEPASS_API const char *onepass_status_name(onepass_status status);

/* The message of the calling thread's last failure, "" if there is none. Valid until that thread's next failure. */
ONEPASS_API const char *onepass_last_error(void);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Type codes and device types have DLPack's values, so a DLTensor can be passed by casting its address. */
typedef enum onepass_type_code {
    ONEPASS_INT = 0,
    ONEPASS_UINT = 1,
    ONEPASS_FLOAT = 2,
    ONEPASS_BFLOAT = 4,
    ONEPASS_BOOL = 6,
} onepass_type_code;

typedef enum onepass_device_type {
    ONEPASS_CPU = 1,
    ONEPASS_CUDA = 2,
} onepass_device_type;

typedef struct onepass_dtype {
    uint8_t code; /* onepass_type_code */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} onepass_dtype;

/* Initialisers: onepass_dtype type = ONEPASS_F32; */
/* clang-format off */
#define ONEPASS_F16  {ONEPASS_FLOAT, 16, 1}
#define ONEPASS_BF16 {ONEPASS_BFLOAT, 16, 1}
#define ONEPASS_F32  {ONEPASS_FLOAT, 32, 1}
#define ONEPASS_F64  {ONEPASS_FLOAT, 64, 1}
#define ONEPASS_I32  {ONEPASS_INT, 32, 1}
#define ONEPASS_I64  {ONEPASS_INT, 64, 1}
#define ONEPASS_U8   {ONEPASS_UINT, 8, 1}
#define ONEPASS_B8   {ONEPASS_BOOL, 8, 1}
/* clang-format on */

typedef struct onepass_device {
    int32_t type; /* onepass_device_type */
    int32_t id;
} onepass_device;

/*
 * A view of memory with the layout of DLPack's DLTensor. Strides count elements and may be zero or negative; NULL means
 * compact row-major order. The first element is at (char *)data + byte_offset: any address on the CPU, a multiple of
 * the element's size on a CUDA device.
 */
typedef struct onepass_tensor {
    void *data;
    onepass_device device;
    int32_t ndim;
    onepass_dtype dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} onepass_tensor;

/* ---- handle ------------------------------------------------------------------------------------------------------ */

typedef struct onepass_handle onepass_handle;

/*
 * Called on the thread that called the operator, while it computes, with the fraction of the work done (0 to 1). It
 * must not call the library with the same handle. It runs in the default floating-point environment.
 */
typedef void (*onepass_progress)(void *context, double done);

/* How fp32 matrices are multiplied on a CUDA device. The CPU always multiplies fp32 in fp32. */
typedef enum onepass_fp32_products {
    /* fp32 accuracy: SPLIT for the devices and shapes where it is faster, VENDOR otherwise. */
    ONEPASS_FP32_FULL = 0,
    ONEPASS_FP32_TF32 = 1, /* operands rounded to 11 bits for the tensor cores: faster still, at a loss of 4 digits */
    /* Each operand split into two fp16 for the tensor cores: several times as fast as VENDOR and closer to the exact
     * product than fp32 accumulation. docs/numerics.md says for which operands. The workspace is as large as the input.
     */
    ONEPASS_FP32_SPLIT = 2,
    ONEPASS_FP32_VENDOR = 3, /* cuBLASLt in fp32; without cuBLASLt the library's plain kernel */
} onepass_fp32_products;

typedef struct onepass_config {
    size_t size;           /* sizeof(onepass_config) */
    onepass_device device; /* zeroed: the CPU */
    void *stream;          /* CUDA only: the CUstream that calls are queued on; NULL: the default stream */
    int32_t threads;       /* CPU only: 0 means every core this process may use; results do not depend on it */
    const char *isa;       /* CPU only: "ref", "scalar", "avx2", "avx512", "neon"; NULL: $ONEPASS_ISA, else the best */
    onepass_progress progress; /* CPU only; NULL: none */
    void *progress_context;
    int32_t trust_addresses; /* CUDA only: 1: skip the pointer check */
    int32_t fp32_products;   /* CUDA only: onepass_fp32_products */
    const char *blas;        /* CPU only: the GEMM library, "openblas", "blis" or "none"; NULL: $ONEPASS_BLAS, else the
                                first that this machine has. Loaded at the first product, or at once if named here. */
} onepass_config;

/* config NULL: the defaults. On failure *handle is set to NULL. */
ONEPASS_API onepass_status onepass_create(const onepass_config *config, onepass_handle **handle);

/* NULL is allowed. */
ONEPASS_API void onepass_destroy(onepass_handle *handle);

/* The handle's device; type 0 for NULL. */
ONEPASS_API onepass_device onepass_device_of(const onepass_handle *handle);

/* The vector level the handle computes with ("avx2"; "cuda" on a CUDA device), and its number of threads (0 on a CUDA
 * device). NULL handle: "" and 0. */
ONEPASS_API const char *onepass_isa(const onepass_handle *handle);
ONEPASS_API int32_t onepass_threads(const onepass_handle *handle);

/* The handle's GEMM library: "openblas", "blis", "cublaslt", or "none" for the library's own product. NULL: "". */
ONEPASS_API const char *onepass_blas(onepass_handle *handle);

/* The same in words, for people: "libcublasLt.so.13, 13.1.0", or why the library's own product is used. At most `size`
 * bytes are written to `text`, the terminating 0 included. */
ONEPASS_API onepass_status onepass_describe_blas(onepass_handle *handle, char *text, size_t size);

/* 1 while the handle's stream is being captured into a graph: calls run when the graph does, so give them memory of
 * their own, not memory that other calls reuse. 0 otherwise, and on the CPU. */
ONEPASS_API int32_t onepass_is_capturing(const onepass_handle *handle);

/* ---- this machine ------------------------------------------------------------------------------------------------- *
 *
 * None of these needs a handle, and none touches a device.
 */

/* Of a level that onepass_config.isa names, or "cuda": 0: not built into this library (or unknown), 1: built, but this
 * machine cannot run it, 2: runs here. */
ONEPASS_API int32_t onepass_isa_support(const char *isa);

/* How many devices of this type there are: 1 CPU. If there is no CUDA device, onepass_describe_device says why. */
ONEPASS_API int32_t onepass_device_count(onepass_device_type type);

typedef struct onepass_device_info {
    size_t size; /* sizeof(onepass_device_info), set by the caller; what is unknown or does not apply is 0 */
    char name[96];
    int32_t compute_capability; /* 90 for 9.0; a handle needs 80 or more */
    int32_t multiprocessors;    /* on the CPU the cores this process may use */
    int32_t clock_khz;
    int32_t driver_version; /* the CUDA release the driver is for: 13000 for 13.0 */
    int64_t l2_bytes;
    int64_t memory_bytes;
    int32_t has_tma; /* 1: device and driver have the tensor memory accelerator (TMA) */
} onepass_device_info;

/* ONEPASS_NO_DEVICE, with the reason as message, if there is no such device. */
ONEPASS_API onepass_status onepass_describe_device(onepass_device device, onepass_device_info *info);

/* ---- memory, waiting, timing -------------------------------------------------------------------------------------- *
 *
 * Memory where a handle computes, for programs that have no CUDA toolkit, and the same on the CPU, so that one program
 * serves both. Calls, fills and timers run in the order in which they are queued on the handle's stream. Memory of any
 * other origin (cudaMalloc, PyTorch) serves as well. Do not call these while the stream is being captured.
 */

/* At a multiple of 256 bytes; NULL for 0 bytes. On failure *memory is set to NULL. */
ONEPASS_API onepass_status onepass_memory_alloc(onepass_handle *handle, size_t bytes, void **memory);

/* Waits for work that uses the memory. NULL is allowed. */
ONEPASS_API onepass_status onepass_memory_free(onepass_handle *handle, void *memory);

/* Either side may be memory of the host or of the handle's device. Returns when all work queued so far and the copy are
 * done. */
ONEPASS_API onepass_status onepass_memory_copy(onepass_handle *handle, void *to, const void *from, size_t bytes);

/* Sets every byte to `value`, 0 to 255. Filling more than the L2 cache holds empties it, as benchmarks need. */
ONEPASS_API onepass_status onepass_memory_fill(onepass_handle *handle, void *to, int32_t value, size_t bytes);

/* Returns when everything queued on the handle's stream is done. An error of that work shows here. */
ONEPASS_API onepass_status onepass_wait(onepass_handle *handle);

/* Times what is queued between start and stop: on the device itself, by the clock on the CPU. Start and stop are queued
 * like any other work; seconds waits for the stop. Destroy a timer before its handle; NULL is allowed. */
typedef struct onepass_timer onepass_timer;
ONEPASS_API onepass_status onepass_timer_create(onepass_handle *handle, onepass_timer **timer);
ONEPASS_API void onepass_timer_destroy(onepass_timer *timer);
ONEPASS_API onepass_status onepass_timer_start(onepass_timer *timer);
ONEPASS_API onepass_status onepass_timer_stop(onepass_timer *timer);
ONEPASS_API onepass_status onepass_timer_seconds(onepass_timer *timer, double *seconds);

/*
 * A kernel that only reads: the floor to compare an operator's time with. `data`, at a multiple of 16 bytes, has
 * `bytes` bytes, a multiple of 16; `sink` has room for 4, which are written only for one sum of the data in 2^32. CUDA
 * devices only: ONEPASS_UNSUPPORTED on the CPU.
 */
#define ONEPASS_HAS_READ_PROBE 1
ONEPASS_API onepass_status onepass_read_probe(onepass_handle *handle, const void *data, size_t bytes, void *sink);

/* ---- KL divergence ------------------------------------------------------------------------------------------------ *
 *
 * KL(targets || predictions) = sum of t * (log t - log p) per row. A row is the last dimension; any number of
 * dimensions may precede it. Predictions and targets have the same shape; broadcast with zero strides. docs/numerics.md
 * defines every special value and states the error bounds.
 */

typedef enum onepass_reduction {
    ONEPASS_BATCHMEAN = 0, /* sum / extent of the first dimension (a 0-d tensor is not divided) */
    ONEPASS_MEAN = 1,      /* sum / number of elements */
    ONEPASS_SUM = 2,
    ONEPASS_ROWS = 3,    /* one value per row: the shape without its last dimension */
    ONEPASS_NONE = 4,    /* one value per element */
    ONEPASS_DIVISOR = 5, /* sum / options.divisor */
    ONEPASS_VALID = 6,   /* losses from logits: sum / number of rows that take part, counted where they are */
} onepass_reduction;

typedef enum onepass_semantics {
    ONEPASS_STRICT = 0, /* every special value as in PyTorch 1.13 and later: 0 * log 0 is NaN */
    ONEPASS_FINITE = 1, /* the limits: where t = 0 and p = 0, value and gradients are 0 */
} onepass_semantics;

typedef struct onepass_kl_options {
    size_t size; /* sizeof(onepass_kl_options) */
    onepass_reduction reduction;
    onepass_semantics semantics;
    double divisor; /* with ONEPASS_DIVISOR: finite and not 0; otherwise 0 */

    /* One element per row: the shape without its last dimension. A row's value and gradients are multiplied by its
     * weight. A row whose mask is 0 is never read, and its values and gradients are 0. Neither changes the divisor. */
    const onepass_tensor *row_weights; /* floating point; NULL: 1 */
    const onepass_tensor *row_mask;    /* bool or uint8; NULL: every row takes part */

    /* The gradient of the final loss with respect to the value, in the value's shape: scales the gradients. NULL: 1. */
    const onepass_tensor *grad_value;

    /* For backward passes: one element, the grad_value for which the gradients in memory were computed. If grad_value
     * (one element as well) equals it, nothing else is read or written; otherwise the gradients are recomputed. The
     * comparison happens on the tensors' device: the host neither reads nor waits. Not together with `value`. */
    const onepass_tensor *grad_made_for;

    void *workspace; /* at least onepass_kl_workspace_size bytes; the CPU needs none */
    size_t workspace_size;
} onepass_kl_options;

/*
 * One entry point per pair of forms; the name says what is passed: predictions first, then targets.
 *
 *  - predictions, targets: fp16, bf16, fp32 or fp64, mixed freely; half types are computed in fp32.
 *  - options: NULL means batchmean, strict.
 *  - value: 0-d (or one element) for the reductions to one value; NULL if only gradients are wanted. Its dtype is the
 *    promoted dtype of the inputs or a wider one.
 *  - grad_predictions, grad_targets: shape and dtype of their input; NULL if not wanted. The derivative is with respect
 *    to the tensor that is passed: p for probs, log p for log_probs.
 *
 * At least one of the three outputs is required; those given are computed in a single pass over the inputs. An output
 * may be exactly the same view as an input of the same layout and dtype; any other overlap is refused.
 */
ONEPASS_API onepass_status onepass_kl_probs_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                  const onepass_tensor *targets, const onepass_kl_options *options,
                                                  const onepass_tensor *value, const onepass_tensor *grad_predictions,
                                                  const onepass_tensor *grad_targets);

ONEPASS_API onepass_status onepass_kl_log_probs_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                      const onepass_tensor *targets, const onepass_kl_options *options,
                                                      const onepass_tensor *value,
                                                      const onepass_tensor *grad_predictions,
                                                      const onepass_tensor *grad_targets);

ONEPASS_API onepass_status onepass_kl_probs_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                      const onepass_tensor *targets, const onepass_kl_options *options,
                                                      const onepass_tensor *value,
                                                      const onepass_tensor *grad_predictions,
                                                      const onepass_tensor *grad_targets);

ONEPASS_API onepass_status onepass_kl_log_probs_log_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                          const onepass_tensor *targets,
                                                          const onepass_kl_options *options,
                                                          const onepass_tensor *value,
                                                          const onepass_tensor *grad_predictions,
                                                          const onepass_tensor *grad_targets);

/* Bytes of workspace that such a call needs. They depend on the shape and the options alone. */
ONEPASS_API onepass_status onepass_kl_workspace_size(onepass_handle *handle, const onepass_tensor *predictions,
                                                     const onepass_kl_options *options, size_t *bytes);

/* ---- losses from logits --------------------------------------------------------------------------------------------
 * *
 *
 * With S = softmax(predictions / temperature) and T = softmax(targets / target_temperature), or T as it is passed, and
 * P = softmax(predictions / label_temperature), all over the first `columns` columns of a row, the loss of a row is
 *
 *   divergence_weight D(T, S) + label_weight NLL + z_loss lse^2 - entropy_bonus H(P)
 *
 * where NLL, lse and H belong to P. No probability is stored. docs/numerics.md defines every special value and states
 * the error bounds; small losses keep their digits, and KL is 0 where S = T and never negative. A row's results depend
 * on the row alone.
 */

typedef enum onepass_divergence {
    ONEPASS_KL = 0,              /* KL(T || S) */
    ONEPASS_REVERSE_KL = 1,      /* KL(S || T) */
    ONEPASS_JS = 2,              /* q KL(T || M) + (1-q) KL(S || M), M = q T + (1-q) S, q = mixture */
    ONEPASS_SKEW_KL = 3,         /* KL(T || q T + (1-q) S) */
    ONEPASS_SKEW_REVERSE_KL = 4, /* KL(S || q S + (1-q) T) */
    ONEPASS_TOTAL_VARIATION = 5, /* half the sum of |S - T|; its derivative is 0 where they are equal */
} onepass_divergence;

/* What the values of a teacher of k columns are. */
typedef enum onepass_top_values {
    ONEPASS_TOP_LOG_PROBS = 0,
    ONEPASS_TOP_PROBS = 1,
    ONEPASS_TOP_LOGITS = 2, /* T is the softmax over the k values / target_temperature */
} onepass_top_values;

/* What T is outside of the columns that such a teacher names. */
typedef enum onepass_outside {
    ONEPASS_OUTSIDE_TAIL = 0,         /* all columns outside are one more category, with what T lacks to 1 */
    ONEPASS_OUTSIDE_ZERO = 1,         /* 0 */
    ONEPASS_OUTSIDE_RENORMALISED = 2, /* 0, and T is divided by its sum */
    ONEPASS_OUTSIDE_SUBSET = 3,       /* columns outside take no part: both sides are normalised over the set */
} onepass_outside;

typedef struct onepass_logits_options {
    size_t size; /* sizeof(onepass_logits_options) */

    /* Not ONEPASS_NONE. ONEPASS_VALID: rows that are masked or whose label is ignored do not count; with class weights
     * a row counts as its label's. ONEPASS_DIVISOR: by `divisor`, or by divisor_tensor, one number on the device. */
    onepass_reduction reduction;
    onepass_semantics semantics;
    double divisor;
    const onepass_tensor *divisor_tensor;

    onepass_divergence divergence;
    double mixture;           /* JS and the skew ones: in (0, 1); otherwise 0 */
    double divergence_weight; /* 0: 1. For the temperature squared of distillation pass it here. */

    double temperature;        /* of S; cross-entropy: of P; 0: 1 */
    double target_temperature; /* of T, where targets are logits; 0: as temperature */
    double label_temperature;  /* of P beside a divergence; 0: 1 */
    double softcap;            /* predictions become cap tanh(x / cap) before all else; 0: they stay */
    double target_softcap;     /* the same for targets that are logits */
    int64_t columns;           /* those beyond take no part, their gradients are 0; 0: all */

    /* int32 or int64, one per row. A row whose label is ignored is not read, and all its results are 0. Any other label
     * outside of 0 .. columns-1 makes the row's value and gradients NaN. Beside a divergence: NULL: no label terms but
     * z_loss and entropy_bonus; with a label_weight of 0 labels only say which rows are ignored. */
    const onepass_tensor *labels;
    int32_t has_ignore_index; /* 0: -100 is ignored; 1: ignore_index is */
    int64_t ignore_index;
    double label_weight;    /* cross-entropy: 0: 1 */
    double label_smoothing; /* in [0, 1]: NLL becomes (1 - s) NLL + s mean over the columns of -log P */
    double z_loss;
    double entropy_bonus;
    const onepass_tensor *class_weights; /* [C]: weights of the classes in NLL and its smoothing; NULL: 1 */

    const onepass_tensor *row_weights, *row_mask, *grad_value, *grad_made_for; /* as in onepass_kl_options */

    /* One per row, each NULL if not wanted: lse and entropy of P and of T, log P at the label, the first column with
     * the largest prediction (int64). A row that takes no part has 0 there. */
    const onepass_tensor *lse, *entropy, *log_prob, *argmax;
    const onepass_tensor *target_lse, *target_entropy;

    void *workspace; /* at least onepass_logits_workspace_size bytes; the CPU needs none */
    size_t workspace_size;

    /* onepass_divergence_logits_top_k alone. */
    onepass_top_values top_values;
    onepass_outside outside;

    /* Losses from hidden states alone: see onepass_linear_cross_entropy. */
    int64_t chunk_bytes;

    /* Losses over several ranks alone: see onepass_shard_states. */
    int64_t first_column, total_columns;
} onepass_logits_options;

/*
 * Divergences of predictions, which are logits, from targets; the name says what the targets are. Types, value and
 * gradients as for KL above. Targets given as probabilities or their logarithms are taken as they are: temperature and
 * columns concern them as said, nothing is normalised.
 */
ONEPASS_API onepass_status onepass_divergence_logits_logits(onepass_handle *handle, const onepass_tensor *predictions,
                                                            const onepass_tensor *targets,
                                                            const onepass_logits_options *options,
                                                            const onepass_tensor *value,
                                                            const onepass_tensor *grad_predictions,
                                                            const onepass_tensor *grad_targets);

ONEPASS_API onepass_status onepass_divergence_logits_probs(onepass_handle *handle, const onepass_tensor *predictions,
                                                           const onepass_tensor *targets,
                                                           const onepass_logits_options *options,
                                                           const onepass_tensor *value,
                                                           const onepass_tensor *grad_predictions,
                                                           const onepass_tensor *grad_targets);

ONEPASS_API onepass_status onepass_divergence_logits_log_probs(
    onepass_handle *handle, const onepass_tensor *predictions, const onepass_tensor *targets,
    const onepass_logits_options *options, const onepass_tensor *value, const onepass_tensor *grad_predictions,
    const onepass_tensor *grad_targets);

/*
 * KL or reverse KL of predictions from a teacher of k columns: their values, of any floating-point type, and their
 * indices, int32 or int64, both [..., K] with K up to 4096, in any order. An index below 0 is padding and ignored with
 * its value; the masses of an index that comes twice add up; an index that is no column makes the row's value and
 * gradient NaN. options.top_values says what the values are, options.outside what T is elsewhere. There is no gradient
 * to the teacher; target_softcap, target_lse and target_entropy are refused, target_temperature is for logits.
 */
ONEPASS_API onepass_status onepass_divergence_logits_top_k(onepass_handle *handle, const onepass_tensor *predictions,
                                                           const onepass_tensor *top_values,
                                                           const onepass_tensor *top_indices,
                                                           const onepass_logits_options *options,
                                                           const onepass_tensor *value,
                                                           const onepass_tensor *grad_predictions);

/* Cross-entropy with labels, int32 or int64, one per row. Options about divergences, targets and label_temperature must
 * be 0, options.labels NULL. */
ONEPASS_API onepass_status onepass_cross_entropy_logits_labels(
    onepass_handle *handle, const onepass_tensor *predictions, const onepass_tensor *labels,
    const onepass_logits_options *options, const onepass_tensor *value, const onepass_tensor *grad_predictions);

/* Bytes of workspace that such a call needs. */
ONEPASS_API onepass_status onepass_logits_workspace_size(onepass_handle *handle, const onepass_tensor *predictions,
                                                         const onepass_logits_options *options, size_t *bytes);

typedef struct onepass_token_options {
    size_t size; /* sizeof(onepass_token_options) */
    onepass_semantics semantics;
    double temperature;       /* 0: 1 */
    double softcap;           /* 0: none */
    int64_t columns;          /* 0: all */
    int32_t has_ignore_index; /* 0: -100 is ignored; 1: ignore_index is */
    int64_t ignore_index;
    const onepass_tensor *row_mask; /* as in onepass_kl_options */
    void *workspace;                /* at least onepass_token_workspace_size bytes; the CPU needs none */
    size_t workspace_size;
    int64_t chunk_bytes;                 /* from hidden states alone: see onepass_linear_token_log_probs */
    int64_t first_column, total_columns; /* over several ranks alone: see onepass_shard_states */
} onepass_token_options;

/*
 * log_prob [..., K]: log P at `indices` [..., K], int32 or int64; entropy and lse [...] of P, for each row of logits
 * [..., C]. At least one of them is wanted. An ignored index gives 0, any other outside of 0 .. columns-1 NaN.
 */
ONEPASS_API onepass_status onepass_token_log_probs(onepass_handle *handle, const onepass_tensor *logits,
                                                   const onepass_tensor *indices, const onepass_token_options *options,
                                                   const onepass_tensor *log_prob, const onepass_tensor *entropy,
                                                   const onepass_tensor *lse);

/* grad_logits [..., C] from the gradients of the final loss with respect to log_prob, entropy and lse, each in the
 * shape of its own and NULL for 0. Options are those of the forward call. */
ONEPASS_API onepass_status onepass_token_log_probs_backward(
    onepass_handle *handle, const onepass_tensor *logits, const onepass_tensor *indices,
    const onepass_tensor *grad_log_prob, const onepass_tensor *grad_entropy, const onepass_tensor *grad_lse,
    const onepass_token_options *options, const onepass_tensor *grad_logits);

/* Bytes of workspace that either of them needs. */
ONEPASS_API onepass_status onepass_token_workspace_size(onepass_handle *handle, const onepass_tensor *logits,
                                                        const onepass_token_options *options, size_t *bytes);

/* ---- losses over several ranks --------------------------------------------------------------------------------------
 * *
 *
 * The losses above of rows whose columns are spread over R ranks, in the order of the ranks: vocab-parallel training.
 * The library has the arithmetic and no communicator; the exchange, an all-gather (MPI_Allgather, ncclAllGather) of a
 * few numbers per row, is the caller's.
 *
 *     onepass_shard_states   what a rank sends of its columns: states [..., W], fp64
 *         every rank's states go to all, in the order of the ranks: gathered [R, N, W], N rows
 *     onepass_shard_merge    statistics [N, F] of the whole rows, the same bits on every rank
 *
 *     of JS, the skew divergences and total variation, whose sums need both softmaxes of the whole row, once more:
 *     onepass_shard_sums        sums [..., W] of this rank's columns
 *         every rank's sums go to all: gathered [R, N, W]
 *     onepass_shard_merge_sums  the statistics with the sums
 *
 *     onepass_shard_loss, onepass_shard_token_log_probs and its _backward: value and row results, on every rank the
 *                            same; gradients of this rank's columns
 *
 * A rank has columns first_column, first_column + 1, ... of total_columns in all, both in its options; columns from
 * total_columns on are padding, whose gradients are 0. Ranks may have any number of columns, none too. Labels, indices,
 * masks and weights of rows are those of the whole rows, the same on every rank; class_weights are those of the rank's
 * columns. options.columns is 0. Cut at multiples of 8192 columns, a row has the same results to the bit for any number
 * of ranks; otherwise they are the same to rounding. docs/distributed.md says how to use them and what they cost. For
 * the CPU; a CUDA device refuses them.
 */

/* W, the fp64 numbers a rank sends per row: columns is the largest number of them that a rank has, indices that of
 * indices per row (1 for labels). F, those of merged statistics. -1 for a negative number. */
ONEPASS_API int64_t onepass_shard_states_width(int64_t columns, int64_t indices, int32_t has_targets);
ONEPASS_API int64_t onepass_shard_statistics_width(int64_t indices, int32_t has_targets);

/* predictions and targets, both logits, are [..., C]; targets NULL: no divergence. indices [..., K] of token
 * log-probabilities, NULL beside options.labels. Options that matter are those of the loss: temperatures, softcaps,
 * labels, label_smoothing, class_weights, ignore_index, row_mask, divergence. */
ONEPASS_API onepass_status onepass_shard_states(onepass_handle *handle, const onepass_tensor *predictions,
                                                const onepass_tensor *targets, const onepass_tensor *indices,
                                                const onepass_logits_options *options, const onepass_tensor *states);

ONEPASS_API onepass_status onepass_shard_merge(onepass_handle *handle, const onepass_tensor *gathered,
                                               const onepass_tensor *statistics);

/* The second exchange of such a divergence. statistics [..., F] are those of onepass_shard_merge; predictions, targets
 * and options those of the states. onepass_shard_sums_width says W, of the largest number of columns that a rank has;
 * -1 for a negative one. merged [N, F] are the statistics the loss takes; they may be the very view that lacks the
 * sums.
 */
ONEPASS_API int64_t onepass_shard_sums_width(int64_t columns);
ONEPASS_API onepass_status onepass_shard_sums(onepass_handle *handle, const onepass_tensor *predictions,
                                              const onepass_tensor *targets, const onepass_tensor *statistics,
                                              const onepass_logits_options *options, const onepass_tensor *sums);
ONEPASS_API onepass_status onepass_shard_merge_sums(onepass_handle *handle, const onepass_tensor *statistics,
                                                    const onepass_tensor *gathered, const onepass_tensor *merged);

/* onepass_divergence_logits_logits, or onepass_cross_entropy_logits_labels if targets is NULL, of this rank's columns.
 * statistics [..., F]; options are those of the states, labels too. */
ONEPASS_API onepass_status onepass_shard_loss(onepass_handle *handle, const onepass_tensor *predictions,
                                              const onepass_tensor *targets, const onepass_tensor *statistics,
                                              const onepass_logits_options *options, const onepass_tensor *value,
                                              const onepass_tensor *grad_predictions,
                                              const onepass_tensor *grad_targets);

/* onepass_token_log_probs and its backward call, of this rank's columns. */
ONEPASS_API onepass_status onepass_shard_token_log_probs(onepass_handle *handle, const onepass_tensor *logits,
                                                         const onepass_tensor *indices,
                                                         const onepass_tensor *statistics,
                                                         const onepass_token_options *options,
                                                         const onepass_tensor *log_prob, const onepass_tensor *entropy,
                                                         const onepass_tensor *lse);
ONEPASS_API onepass_status onepass_shard_token_log_probs_backward(
    onepass_handle *handle, const onepass_tensor *logits, const onepass_tensor *indices,
    const onepass_tensor *statistics, const onepass_tensor *grad_log_prob, const onepass_tensor *grad_entropy,
    const onepass_tensor *grad_lse, const onepass_token_options *options, const onepass_tensor *grad_logits);

/* ---- linear ------------------------------------------------------------------------------------------------------- *
 *
 * output = input weight^T + bias: input [..., K], weight [N, K], bias [N] (NULL: 0), output [..., N], any strides.
 *
 *  - input, weight: fp16, bf16, fp32 or fp64, mixed freely; the product accumulates in fp32, in fp64 if either is fp64.
 *    bias and grad_output may have any of these dtypes.
 *  - output: the promoted dtype of input and weight, or a wider one.
 *  - Gradients have the shape and dtype of their tensor (grad_bias: any floating-point dtype); NULL if not wanted.
 *  - workspace: at least onepass_linear_workspace_size bytes for the same input and weight, forward and backward.
 *
 * An output must not share memory with any other tensor of the call.
 */
ONEPASS_API onepass_status onepass_linear(onepass_handle *handle, const onepass_tensor *input,
                                          const onepass_tensor *weight, const onepass_tensor *bias,
                                          const onepass_tensor *output, void *workspace, size_t workspace_size);

/* grad_output [..., N]: the gradient of the final loss with respect to the output. At least one gradient is required.
 */
ONEPASS_API onepass_status onepass_linear_backward(onepass_handle *handle, const onepass_tensor *grad_output,
                                                   const onepass_tensor *input, const onepass_tensor *weight,
                                                   const onepass_tensor *grad_input, const onepass_tensor *grad_weight,
                                                   const onepass_tensor *grad_bias, void *workspace,
                                                   size_t workspace_size);

ONEPASS_API onepass_status onepass_linear_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                         const onepass_tensor *weight, size_t *bytes);

/*
 * An fp32 weight [N, K] in the form that ONEPASS_FP32_SPLIT multiplies, computed once for many calls, which are then
 * faster and give the same bits. For handles with ONEPASS_FP32_SPLIT, or ONEPASS_FP32_FULL, which use it for the shapes
 * they multiply that way; onepass_linear ignores it if the input has at least 128 rows and at least 2 N. `prepared` is
 * device memory of the caller, at a multiple of 256 bytes.
 * A snapshot of the weight: call again after the weight changes.
 */
ONEPASS_API onepass_status onepass_prepare_weight(onepass_handle *handle, const onepass_tensor *weight, void *prepared,
                                                  size_t prepared_size);
ONEPASS_API onepass_status onepass_prepare_weight_size(onepass_handle *handle, const onepass_tensor *weight,
                                                       size_t *bytes);

/* onepass_linear with a prepared weight beside the weight itself. */
ONEPASS_API onepass_status onepass_linear_prepared(onepass_handle *handle, const onepass_tensor *input,
                                                   const onepass_tensor *weight, const void *prepared,
                                                   const onepass_tensor *bias, const onepass_tensor *output,
                                                   void *workspace, size_t workspace_size);

/* ---- losses from hidden states ------------------------------------------------------------------------------------ *
 *
 * The cross-entropy of input weight^T + bias with labels, without those logits ever being there as a whole: they are
 * made for a chunk of rows, their gradient takes their place, and grad_input and grad_weight are made from that. input
 * [..., K] are hidden states, weight [C, K], bias [C] (NULL: 0), labels [...] as for
 * onepass_cross_entropy_logits_labels, whose options all apply; row results (options.lse and so on) too. Rows that are
 * masked or whose label is ignored are not read, and cost nothing on the CPU.
 *
 *  - input, weight: fp16, bf16, fp32 or fp64, mixed freely. Logits and their gradient are kept in fp32, in fp64 if
 *    either is fp64: the type of all sums. On CUDA they are kept in the type that input and weight promote to.
 *  - value: as of losses from logits. grad_input [..., K], grad_weight [C, K], grad_bias [C]: any floating-point dtype.
 *    Each NULL if it is not wanted, and then not paid for; at least one result is wanted.
 *  - options.chunk_bytes: what a chunk of logits and its hidden states, on CUDA its logits alone, may take of the
 *    workspace; 0: 512 MiB. No less than 264 rows are taken at a time, on CUDA 128. The number of chunks changes no bit
 *    of any result but grad_weight and, on CUDA, grad_bias.
 *  - options.workspace: onepass_linear_cross_entropy_workspace_size bytes: a chunk, the room of a product, and
 *    100 bytes a row of a chunk. With more than one chunk a grad_weight of less than the type of sums needs room for
 *    all of it in that type: pass one in fp32 to do without. On CUDA it needs none, and is rounded after every chunk.
 *  - options.grad_made_for is not looked at on CUDA: gradients are always made.
 *
 * A result must not share memory with any other tensor of the call.
 */
ONEPASS_API onepass_status onepass_linear_cross_entropy(
    onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight, const onepass_tensor *bias,
    const onepass_tensor *labels, const onepass_logits_options *options, const onepass_tensor *value,
    const onepass_tensor *grad_input, const onepass_tensor *grad_weight, const onepass_tensor *grad_bias);

/* grad_weight NULL: for a call without one. */
ONEPASS_API onepass_status onepass_linear_cross_entropy_workspace_size(
    onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
    const onepass_logits_options *options, const onepass_tensor *grad_weight, size_t *bytes);

/*
 * Divergences of input weight^T + bias from the logits of a teacher, target_input target_weight^T + target_bias, of
 * which there is never more than a chunk either: target_input [..., L], whose L need not be K, target_weight [C, L],
 * target_bias [C] (NULL: 0). Options and row results are those of onepass_divergence_logits_logits, the label terms of
 * options.labels among them. There is no gradient to the teacher. Types, gradients, chunks and workspace are as above,
 * with these differences:
 *
 *  - Everything is kept in fp64 if any of the four is fp64.
 *  - options.chunk_bytes holds a chunk of logits of each side and the hidden states of the deeper one.
 *  - options.workspace: onepass_linear_divergence_workspace_size bytes.
 */
ONEPASS_API onepass_status onepass_linear_divergence(
    onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight, const onepass_tensor *bias,
    const onepass_tensor *target_input, const onepass_tensor *target_weight, const onepass_tensor *target_bias,
    const onepass_logits_options *options, const onepass_tensor *value, const onepass_tensor *grad_input,
    const onepass_tensor *grad_weight, const onepass_tensor *grad_bias);

/* grad_weight NULL: for a call without one. */
ONEPASS_API onepass_status onepass_linear_divergence_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                                    const onepass_tensor *weight,
                                                                    const onepass_tensor *target_input,
                                                                    const onepass_tensor *target_weight,
                                                                    const onepass_logits_options *options,
                                                                    const onepass_tensor *grad_weight, size_t *bytes);

/*
 * onepass_token_log_probs of input weight^T + bias: log P at `indices`, entropy and lse, with the options of that call,
 * and without the logits being there as a whole. input [..., D], weight [C, D], bias [C] (NULL: 0), types and chunks as
 * for onepass_linear_cross_entropy. Nothing is made for a gradient. Rows that are masked are not read.
 * options.workspace: onepass_linear_token_workspace_size bytes.
 */
ONEPASS_API onepass_status onepass_linear_token_log_probs(onepass_handle *handle, const onepass_tensor *input,
                                                          const onepass_tensor *weight, const onepass_tensor *bias,
                                                          const onepass_tensor *indices,
                                                          const onepass_token_options *options,
                                                          const onepass_tensor *log_prob, const onepass_tensor *entropy,
                                                          const onepass_tensor *lse);

/*
 * The gradients to input, weight and bias, each NULL if it is not wanted, from those of the final loss with respect to
 * log_prob, entropy and lse, each in the shape of its own and NULL for 0. The logits are made again, chunk by chunk.
 * Options are those of the forward call.
 */
ONEPASS_API onepass_status onepass_linear_token_log_probs_backward(
    onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight, const onepass_tensor *bias,
    const onepass_tensor *indices, const onepass_tensor *grad_log_prob, const onepass_tensor *grad_entropy,
    const onepass_tensor *grad_lse, const onepass_token_options *options, const onepass_tensor *grad_input,
    const onepass_tensor *grad_weight, const onepass_tensor *grad_bias);

/* Of either; grad_weight NULL: for a call without one. */
ONEPASS_API onepass_status onepass_linear_token_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                               const onepass_tensor *weight,
                                                               const onepass_token_options *options,
                                                               const onepass_tensor *grad_weight, size_t *bytes);

/* ---- head: linear, batch normalisation, scale, softmax ------------------------------------------------------------ *
 *
 * output = softmax(scale * (gamma * (y - mean) / sqrt(variance + eps) + beta)) over the last dimension, with
 * y = input weight^T + bias: input [B, K], weight [N, K], output [B, N]; whatever exists per feature is [N].
 * docs/numerics.md has the definition, the gradients, every special value and the error bounds.
 */

typedef enum onepass_statistics {
    ONEPASS_BATCH_STATISTICS = 0,   /* training: mean and biased variance of y over the batch, of 2 rows or more */
    ONEPASS_RUNNING_STATISTICS = 1, /* inference: running_mean and running_var, which are only read */
} onepass_statistics;

typedef struct onepass_head_options {
    size_t size; /* sizeof(onepass_head_options) */
    onepass_statistics statistics;
    int32_t cumulative; /* 1: the factor is 1 / batches_tracked, this batch included, and momentum must be 0 */
    double eps;         /* added to the variance; 0 or more; PyTorch's default is 1e-5 */
    double momentum;    /* the factor of this batch in the running statistics; PyTorch's default is 0.1 */

    /* Any floating-point dtype, independent of the inputs'. */
    const onepass_tensor *bias;  /* NULL: 0 */
    const onepass_tensor *gamma; /* NULL: 1 */
    const onepass_tensor *beta;  /* NULL: 0 */
    const onepass_tensor *scale; /* [N], or one element for all features; NULL: 1 */

    /* Batch statistics update both in place; both may be NULL:
     * running = (1 - factor) * running + factor * (mean of y, or variance of y with B - 1 in the denominator). */
    const onepass_tensor *running_mean, *running_var;
    /* One int64 element, which batch statistics increment in place; or NULL. With cumulative it must not be negative,
     * which on a CUDA device is not checked. */
    const onepass_tensor *batches_tracked;

    void *workspace; /* at least as large as the workspace_size function of the call says */
    size_t workspace_size;

    const void *prepared_weight; /* onepass_prepare_weight's result for this weight; NULL: none. Backward ignores it */
} onepass_head_options;

/*
 *  - input, weight: fp16, bf16, fp32 or fp64, mixed freely; everything up to the output is computed in fp32, in fp64 if
 *    either is fp64: the type C.
 *  - output: the promoted dtype of input and weight, or a wider one.
 *  - product [B, N], mean [N], rstd [N]: what backward needs; all three or none. product receives input weight^T,
 *    without the bias, in dtype C; mean and rstd, with which it is normalised, have dtype C or a wider one.
 *
 * Without `product`, the product is computed in the output if that has dtype C and contiguous rows, and in a larger
 * workspace otherwise. A tensor that is written must not share memory with another.
 */
ONEPASS_API onepass_status onepass_head(onepass_handle *handle, const onepass_tensor *input,
                                        const onepass_tensor *weight, const onepass_head_options *options,
                                        const onepass_tensor *output, const onepass_tensor *product,
                                        const onepass_tensor *mean, const onepass_tensor *rstd);

ONEPASS_API onepass_status onepass_head_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                       const onepass_tensor *weight,
                                                       const onepass_head_options *options,
                                                       const onepass_tensor *output, const onepass_tensor *product,
                                                       size_t *bytes);

/* Where the gradients go; each has the shape and dtype of its tensor, which must be given; NULL: not wanted. */
typedef struct onepass_head_gradients {
    size_t size; /* sizeof(onepass_head_gradients) */
    const onepass_tensor *input, *weight, *bias, *gamma, *beta, *scale;
} onepass_head_gradients;

/*
 * grad_output [B, N]: the gradient of the final loss with respect to the output. output, product, mean and rstd are
 * those of the forward call, options are its options (running statistics, momentum, eps and the counter are ignored).
 * With batch statistics the gradient of the bias is exactly 0: adding a constant to a feature changes nothing.
 */
ONEPASS_API onepass_status onepass_head_backward(onepass_handle *handle, const onepass_tensor *grad_output,
                                                 const onepass_tensor *output, const onepass_tensor *input,
                                                 const onepass_tensor *weight, const onepass_tensor *product,
                                                 const onepass_tensor *mean, const onepass_tensor *rstd,
                                                 const onepass_head_options *options,
                                                 const onepass_head_gradients *gradients);

ONEPASS_API onepass_status onepass_head_backward_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                                const onepass_tensor *weight,
                                                                const onepass_head_options *options, size_t *bytes);

/* ---- a head over several ranks -------------------------------------------------------------------------------------
 * *
 *
 * The head of a batch whose rows are spread over R processes, with the statistics of all of it, as
 * torch.nn.SyncBatchNorm defines them. The library has the arithmetic and no communicator: two exchanges, in which
 * every rank sends a few numbers per feature to all (MPI_Allgather, ncclAllGather), are the caller's, between calls.
 *
 *     onepass_head_statistics             the product, and its columns' mean and M2 = sum of (q - mean)^2
 *         every rank's number of rows, mean and M2 go to all: counts [R], means [R, N], m2s [R, N]
 *     onepass_head_synchronised           output, running statistics, mean and rstd
 *     onepass_head_backward_sums          s0 and s1 of docs/numerics.md
 *         every rank's s0 and s1 go to all: s0s [R, N], s1s [R, N]
 *     onepass_head_backward_synchronised  gradients
 *
 * What is exchanged is fp64, in the order of the ranks, on each of them the same: then outputs of the same row, running
 * statistics, mean and rstd have the same bits on all, and a single rank has those of onepass_head. Ranks may have any
 * number of rows, none too, but a rank without rows makes the same calls. Gradients are those of this rank's rows:
 * their sum over the ranks is the gradient of the sum of the ranks' losses. That of the bias is 0 on every rank. For
 * the CPU; a CUDA device refuses them.
 */

/* input [B, K], weight [N, K] as for onepass_head; product [B, N] in its dtype C; mean and m2 [N] in fp64, 0 if there
 * are no rows. */
ONEPASS_API onepass_status onepass_head_statistics(onepass_handle *handle, const onepass_tensor *input,
                                                   const onepass_tensor *weight, const onepass_tensor *product,
                                                   const onepass_tensor *mean, const onepass_tensor *m2,
                                                   void *workspace, size_t workspace_size);
ONEPASS_API onepass_status onepass_head_statistics_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                                  const onepass_tensor *weight, size_t *bytes);

/* options: those of onepass_head with batch statistics, of two rows or more on all ranks together. output [B, N]: any
 * floating-point dtype; mean and rstd [N]: what backward needs, the dtype of the product or a wider one; NULL: not
 * wanted. */
ONEPASS_API onepass_status onepass_head_synchronised(onepass_handle *handle, const onepass_tensor *product,
                                                     const onepass_tensor *counts, const onepass_tensor *means,
                                                     const onepass_tensor *m2s, const onepass_head_options *options,
                                                     const onepass_tensor *output, const onepass_tensor *mean,
                                                     const onepass_tensor *rstd);
ONEPASS_API onepass_status onepass_head_synchronised_workspace_size(onepass_handle *handle,
                                                                    const onepass_tensor *product, size_t *bytes);

/* s0 and s1 [N] in fp64, 0 if there are no rows. The other tensors are those of the forward call, as in backward. */
ONEPASS_API onepass_status onepass_head_backward_sums(onepass_handle *handle, const onepass_tensor *grad_output,
                                                      const onepass_tensor *output, const onepass_tensor *product,
                                                      const onepass_tensor *mean, const onepass_tensor *rstd,
                                                      const onepass_tensor *s0, const onepass_tensor *s1,
                                                      void *workspace, size_t workspace_size);
ONEPASS_API onepass_status onepass_head_backward_sums_workspace_size(onepass_handle *handle,
                                                                     const onepass_tensor *product, size_t *bytes);

/* onepass_head_backward with the counts of the forward call and the sums of all ranks. Its workspace is as large. */
ONEPASS_API onepass_status onepass_head_backward_synchronised(
    onepass_handle *handle, const onepass_tensor *grad_output, const onepass_tensor *output,
    const onepass_tensor *input, const onepass_tensor *weight, const onepass_tensor *product,
    const onepass_tensor *mean, const onepass_tensor *rstd, const onepass_tensor *counts, const onepass_tensor *s0s,
    const onepass_tensor *s1s, const onepass_head_options *options, const onepass_head_gradients *gradients);

/* ---- operators as data ---------------------------------------------------------------------------------------------
 * *
 *
 * Every operator above is also described as constant data, for programs that call any of them without knowing which:
 * bindings, tools, tests. The tensors and options of a call are arrays in the order of the description.
 */

typedef struct onepass_operator onepass_operator;

typedef enum onepass_role {
    ONEPASS_READ = 0,
    ONEPASS_WRITTEN = 1,
    ONEPASS_UPDATED = 2, /* read, and written in place */
} onepass_role;

typedef struct onepass_argument_info {
    const char *name;  /* "predictions", "options.bias" */
    const char *shape; /* a letter per dimension, '*' for any number of leading ones: "*C", "NK"; "": one element;
                          NULL: depends on an option */
    onepass_role role;
    int32_t is_required;
} onepass_argument_info;

typedef struct onepass_option_info {
    const char *name; /* "options.reduction" */
    int32_t choices;  /* the values 0 to choices - 1; 0: any number */
} onepass_option_info;

/* The operator of an entry point, by its name without the prefix: "kl_probs_probs", "head_backward"; NULL: unknown. */
ONEPASS_API const onepass_operator *onepass_operator_named(const char *name);

/* All operators, in a fixed order; NULL past the last one. */
ONEPASS_API const onepass_operator *onepass_operator_at(int32_t index);

/* Name, tensors and options of an operator; NULL past the last one. */
ONEPASS_API const char *onepass_operator_name(const onepass_operator *op);
ONEPASS_API const onepass_argument_info *onepass_operator_argument(const onepass_operator *op, int32_t index);
ONEPASS_API const onepass_option_info *onepass_operator_option(const onepass_operator *op, int32_t index);

/* The role of a tensor in a call with these options: what is UPDATED under some options is only READ under others.
 * options NULL: the role in the description. */
ONEPASS_API onepass_role onepass_operator_role(const onepass_operator *op, int32_t index, const double *options);

/* The operator's entry point with its arguments as arrays; NULL stands for a tensor that is not given. */
ONEPASS_API onepass_status onepass_call(onepass_handle *handle, const onepass_operator *op,
                                        const onepass_tensor *const *tensors, const double *options, void *workspace,
                                        size_t workspace_size);

/* Bytes of workspace that this call needs. */
ONEPASS_API onepass_status onepass_call_workspace_size(onepass_handle *handle, const onepass_operator *op,
                                                       const onepass_tensor *const *tensors, const double *options,
                                                       size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif /* ONEPASS_H */
