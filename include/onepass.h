/*
 * onepass: KL-divergence losses and softmax heads, each reading its inputs once.
 *
 * This is the only public header. The rules that hold everywhere:
 *
 *  - A function returns a status. Anything but ONEPASS_OK leaves every output untouched and records, for the calling
 *    thread, a message that names the operator, the argument, the offending value and the rule (onepass_last_error).
 *  - The library never aborts, exits or prints.
 *  - Memory belongs to the caller. Tensors are views; a workspace, where an operator needs one, is the caller's too.
 *  - Structures that may grow start with their own size. Zero every other field you do not use: zero is the default.
 *  - A handle serves one call at a time; different handles may be used from different threads at once.
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

/* "0.1.0": the library that is loaded, which may be newer than the header that was compiled. */
ONEPASS_API const char *onepass_version(void);

/* ---- status ------------------------------------------------------------------------------------------------------ */

typedef enum onepass_status {
    ONEPASS_OK = 0,
    ONEPASS_INVALID_ARGUMENT = 1, /* an argument breaks a rule: null, shape, dtype, overlap, option */
    ONEPASS_UNSUPPORTED = 2,      /* legal, but not offered: refused rather than ignored */
    ONEPASS_NO_DEVICE = 3,        /* the device asked for is not on this machine */
    ONEPASS_OUT_OF_MEMORY = 4,
    ONEPASS_WORKSPACE = 5,    /* the workspace is too small; ask the operator's workspace_size */
    ONEPASS_DEVICE_ERROR = 6, /* the device failed while working */
} onepass_status;

/* "ONEPASS_INVALID_ARGUMENT" and so on; never NULL, for unknown numbers too. */
ONEPASS_API const char *onepass_status_name(onepass_status status);

/* The calling thread's last failure, "" if there was none. Valid until that thread's next failing call. */
ONEPASS_API const char *onepass_last_error(void);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Type codes and device types carry DLPack's numbers, so a DLTensor can be passed by casting its address. */
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
#define ONEPASS_I64  {ONEPASS_INT, 64, 1}
#define ONEPASS_U8   {ONEPASS_UINT, 8, 1}
#define ONEPASS_B8   {ONEPASS_BOOL, 8, 1}
/* clang-format on */

typedef struct onepass_device {
    int32_t type; /* onepass_device_type */
    int32_t id;
} onepass_device;

/*
 * A view of memory, laid out as DLPack's DLTensor. Strides count elements and may be zero or negative; NULL strides
 * mean compact row-major order. The first element is at (char *)data + byte_offset: any address on the
 * CPU, a multiple of the element's size on a CUDA device.
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
 * Called on the thread that called the operator, while it works, with the part of the work that is done (0 to 1).
 * It must not call the library with the same handle.
 */
typedef void (*onepass_progress)(void *context, double done);

/* How fp32 matrices are multiplied on a CUDA device. On the CPU an fp32 product is an fp32 product. */
typedef enum onepass_fp32_products {
    /* With the accuracy of fp32: SPLIT on devices and for shapes where it is faster, else VENDOR. */
    ONEPASS_FP32_FULL = 0,
    ONEPASS_FP32_TF32 = 1, /* operands are cut to 11 bits for the tensor cores: faster still, 4 digits are lost */
    /* Operands are split into two fp16 for the tensor cores: several times as fast as VENDOR, and closer to the exact
     * product than fp32 sums are. docs/numerics.md says for which operands; it takes a workspace as large as the input.
     */
    ONEPASS_FP32_SPLIT = 2,
    ONEPASS_FP32_VENDOR = 3, /* cuBLASLt's sums of fp32 products, or without it the library's plain kernel */
} onepass_fp32_products;

typedef struct onepass_config {
    size_t size;           /* sizeof(onepass_config) */
    onepass_device device; /* zeroed: the CPU */
    void *stream;          /* CUDA only: the CUstream work is ordered on */
    int32_t threads;       /* CPU only: 0 means every core this process may use; results do not depend on it */
    const char *isa;       /* CPU only: "ref", "scalar", "avx2", "avx512", "neon"; NULL: $ONEPASS_ISA, else the best */
    onepass_progress progress; /* CPU only; NULL: none */
    void *progress_context;
    int32_t
        trust_addresses; /* CUDA only: 1: the driver is not asked whether addresses are the device's; that takes time */
    int32_t fp32_products; /* CUDA only: onepass_fp32_products */
    const char *blas; /* CPU only: who multiplies matrices, "openblas", "blis" or "none"; NULL: $ONEPASS_BLAS, else the
                         first of them that this machine has. Loaded when first needed, or at once if named here. */
} onepass_config;

/* config NULL: the defaults. On failure *handle is set to NULL. */
ONEPASS_API onepass_status onepass_create(const onepass_config *config, onepass_handle **handle);

/* NULL is allowed. */
ONEPASS_API void onepass_destroy(onepass_handle *handle);

/* The vector level the handle computes with ("avx2"), and its number of threads. NULL handle: "" and 0. */
ONEPASS_API const char *onepass_isa(const onepass_handle *handle);
ONEPASS_API int32_t onepass_threads(const onepass_handle *handle);

/* Who multiplies the handle's matrices now: "openblas", "blis", or "none" for the library's own product. NULL: "". */
ONEPASS_API const char *onepass_blas(onepass_handle *handle);

/* 1 if the handle's stream is in the middle of a capture: what is called then runs when the graph does, so memory that
 * is used again from call to call must not be given to it. 0 otherwise, and on the CPU. */
ONEPASS_API int32_t onepass_is_capturing(const onepass_handle *handle);

/* ---- KL divergence ------------------------------------------------------------------------------------------------ *
 *
 * KL(targets || predictions) = sum over a row of t * (log t - log p). Rows are the last dimension; there may be any
 * number of dimensions before it. Predictions and targets have the same shape; broadcast with zero strides.
 * docs/numerics.md defines every special value and states the error bounds.
 */

typedef enum onepass_reduction {
    ONEPASS_BATCHMEAN = 0, /* sum / size of the first dimension (a 0-d tensor is not divided) */
    ONEPASS_MEAN = 1,      /* sum / number of elements */
    ONEPASS_SUM = 2,
    ONEPASS_ROWS = 3,    /* one value a row: the shape without its last dimension */
    ONEPASS_NONE = 4,    /* one value an element */
    ONEPASS_DIVISOR = 5, /* sum / onepass_kl_options.divisor */
} onepass_reduction;

typedef enum onepass_semantics {
    ONEPASS_STRICT = 0, /* every special value as in PyTorch 1.13 and later: 0 * log 0 is NaN */
    ONEPASS_FINITE = 1, /* the limits: where t = 0 and p = 0, value and gradients are 0 */
} onepass_semantics;

typedef struct onepass_kl_options {
    size_t size; /* sizeof(onepass_kl_options) */
    onepass_reduction reduction;
    onepass_semantics semantics;
    double divisor; /* for ONEPASS_DIVISOR: finite and not 0; otherwise 0 */

    /* Each has the shape without its last dimension. A row's value and gradients are multiplied by its weight. A row
     * whose mask is 0 is masked: it is never read, and its values and gradients are 0. Neither changes the divisor. */
    const onepass_tensor *row_weights; /* floating point; NULL: 1 */
    const onepass_tensor *row_mask;    /* bool or uint8; NULL: every row takes part */

    /* The gradient of the final loss to the value; it has the value's shape. NULL: 1. Gradients are scaled by it. */
    const onepass_tensor *grad_value;

    /* For backward passes: one element, the grad_value that the gradients now in memory were made for. If grad_value
     * (one element, too) equals it, nothing is read or written; otherwise the gradients are made anew. The comparison
     * is done where the tensors are: on a GPU the host neither reads nor waits. Not together with `value`. */
    const onepass_tensor *grad_made_for;

    void *workspace; /* as onepass_kl_workspace_size asks; on the CPU none is needed */
    size_t workspace_size;
} onepass_kl_options;

/*
 * One entry a pair of forms, so that the name says what is passed: predictions first, then targets.
 *
 *  - predictions, targets: fp16, bf16, fp32 or fp64, mixed freely; half types are computed in fp32.
 *  - options: NULL means batchmean, strict.
 *  - value: 0-d (or one element) for the reductions to one value; NULL if only gradients are wanted. Its dtype is the
 *    promoted type of the inputs or a wider one.
 *  - grad_predictions, grad_targets: the inputs' shape, and the dtype of their own input; NULL if not wanted. The
 *    derivative is to the tensor that was passed: to p for probs, to log p for log_probs.
 *
 * At least one of the three outputs must be asked for; those asked for are made in a single pass over the inputs. An
 * output may be the very same memory as an input of the same layout and dtype; any other overlap is refused.
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

/* Bytes of workspace a call with these inputs needs on the handle's device. It depends on the shape alone. */
ONEPASS_API onepass_status onepass_kl_workspace_size(onepass_handle *handle, const onepass_tensor *predictions,
                                                     const onepass_kl_options *options, size_t *bytes);

/* ---- linear ------------------------------------------------------------------------------------------------------- *
 *
 * output = input weight^T + bias: input [..., K], weight [N, K], bias [N], output [..., N], any strides.
 *
 *  - input, weight: fp16, bf16, fp32 or fp64, mixed freely; the product is made in fp32, in fp64 if one of them is.
 *    bias and grad_output may be of any of these types.
 *  - output: the promoted dtype of input and weight, or a wider one.
 *  - Gradients have shape and dtype of the tensor they belong to (grad_bias: any floating-point one); NULL if not
 * wanted.
 *  - workspace: at least what onepass_linear_workspace_size says for the same input and weight; it serves both calls.
 *
 * An output may not share memory with any other tensor of the call.
 */
ONEPASS_API onepass_status onepass_linear(onepass_handle *handle, const onepass_tensor *input,
                                          const onepass_tensor *weight, const onepass_tensor *bias,
                                          const onepass_tensor *output, void *workspace, size_t workspace_size);

/* grad_output [..., N]: the gradient of the final loss to the output. At least one gradient must be asked for. */
ONEPASS_API onepass_status onepass_linear_backward(onepass_handle *handle, const onepass_tensor *grad_output,
                                                   const onepass_tensor *input, const onepass_tensor *weight,
                                                   const onepass_tensor *grad_input, const onepass_tensor *grad_weight,
                                                   const onepass_tensor *grad_bias, void *workspace,
                                                   size_t workspace_size);

ONEPASS_API onepass_status onepass_linear_workspace_size(onepass_handle *handle, const onepass_tensor *input,
                                                         const onepass_tensor *weight, size_t *bytes);

/*
 * A weight in the form that ONEPASS_FP32_SPLIT multiplies, made once for many calls, each of which is then shorter; the
 * bits of its result are the same. For handles of ONEPASS_FP32_SPLIT, and of ONEPASS_FP32_FULL, which use it for the
 * shapes they multiply that way; onepass_linear does without if it has at least 128 rows of input and at least 2 N.
 * `prepared` is device memory of the caller, at a multiple of 256 bytes.
 * It is of the weight as it was: whoever changes the weight prepares it again. The weight [N, K] is fp32.
 */
ONEPASS_API onepass_status onepass_prepare_weight(onepass_handle *handle, const onepass_tensor *weight, void *prepared,
                                                  size_t prepared_size);
ONEPASS_API onepass_status onepass_prepare_weight_size(onepass_handle *handle, const onepass_tensor *weight,
                                                       size_t *bytes);

/* onepass_linear with such a weight, beside the weight itself. */
ONEPASS_API onepass_status onepass_linear_prepared(onepass_handle *handle, const onepass_tensor *input,
                                                   const onepass_tensor *weight, const void *prepared,
                                                   const onepass_tensor *bias, const onepass_tensor *output,
                                                   void *workspace, size_t workspace_size);

/* ---- head: linear, batch normalisation, scale, softmax ------------------------------------------------------------ *
 *
 * output = softmax(scale * (gamma * (y - mean) / sqrt(variance + eps) + beta)) over the last dimension, with
 * y = input weight^T + bias: input [B, K], weight [N, K], output [B, N]; everything a feature (of N) has is [N].
 * docs/numerics.md has the definition, the gradients, every special value and the error bounds.
 */

typedef enum onepass_statistics {
    ONEPASS_BATCH_STATISTICS = 0,   /* mean and biased variance of y over the batch, which needs 2 rows; training */
    ONEPASS_RUNNING_STATISTICS = 1, /* running_mean and running_var, which are only read; inference */
} onepass_statistics;

typedef struct onepass_head_options {
    size_t size; /* sizeof(onepass_head_options) */
    onepass_statistics statistics;
    int32_t cumulative; /* 1: the factor is 1 / batches_tracked, counted with this batch, and momentum must be 0 */
    double eps;         /* added to the variance; 0 or more; PyTorch's default is 1e-5 */
    double momentum;    /* weight of this batch in the running statistics; PyTorch's default is 0.1 */

    /* Any floating-point dtype, whatever the inputs' is. */
    const onepass_tensor *bias;  /* NULL: 0 */
    const onepass_tensor *gamma; /* NULL: 1 */
    const onepass_tensor *beta;  /* NULL: 0 */
    const onepass_tensor *scale; /* [N], or one element for all; NULL: 1 */

    /* With batch statistics both are updated in place, or left alone if both are NULL:
     * running = (1 - factor) * running + factor * (mean of y, or variance of y with B - 1 in the denominator). */
    const onepass_tensor *running_mean, *running_var;
    const onepass_tensor *batches_tracked; /* one int64 element, incremented in place with batch statistics; or NULL */

    void *workspace; /* at least what the workspace_size function of the call says */
    size_t workspace_size;

    const void
        *prepared_weight; /* onepass_prepare_weight's, of this weight; NULL: none. Backward does not look at it */
} onepass_head_options;

/*
 *  - input, weight: fp16, bf16, fp32 or fp64, mixed freely; everything up to the output is computed in fp32, in fp64 if
 *    one of them is: the type C.
 *  - output: the promoted dtype of input and weight, or a wider one.
 *  - product [B, N], mean [N], rstd [N]: what backward needs; all three or none. product receives input weight^T,
 *    without the bias, and has dtype C; mean and rstd, those the product was normalised with, have C or a wider one.
 *
 * Without product the output, if its dtype is C and its rows are contiguous, is also where the product is built;
 * otherwise the workspace is larger. No tensor that is written may share memory with another.
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

/* Where the gradients go; each has shape and dtype of the tensor it belongs to, which must be given; NULL: not wanted.
 */
typedef struct onepass_head_gradients {
    size_t size; /* sizeof(onepass_head_gradients) */
    const onepass_tensor *input, *weight, *bias, *gamma, *beta, *scale;
} onepass_head_gradients;

/*
 * grad_output [B, N]: the gradient of the final loss to the output. output, product, mean and rstd are those of the
 * forward call, options are its options (running statistics, momentum, eps and the counter are not looked at). The
 * gradient to the bias is exactly 0 with batch statistics: adding a constant to a feature changes nothing.
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

#ifdef __cplusplus
}
#endif

#endif /* ONEPASS_H */
