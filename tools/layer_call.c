/* Linear and head on any handle. See layer_call.h. */
#include "layer_call.h"

#include "device_memory.h"
#include "handle.h"
#include "product.h"

bool layer_is_copied(const onepass_handle *handle, const onepass_tensor *input)
{
    return handle->cuda && input->device.type == ONEPASS_CPU;
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

enum { LINEAR_INPUT, LINEAR_WEIGHT, LINEAR_BIAS, LINEAR_OUTPUT, LINEAR_TENSORS };

static onepass_status linear_size(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                  size_t *bytes)
{
    (void)context;
    return onepass_linear_workspace_size(handle, there[LINEAR_INPUT], there[LINEAR_WEIGHT], bytes);
}

static onepass_status linear_run(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                 void *workspace, size_t bytes)
{
    (void)context;
    return onepass_linear(handle, there[LINEAR_INPUT], there[LINEAR_WEIGHT], there[LINEAR_BIAS], there[LINEAR_OUTPUT],
                          workspace, bytes);
}

onepass_status linear_call(onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
                           const onepass_tensor *bias, const onepass_tensor *output, void *workspace,
                           size_t workspace_size)
{
    if (!layer_is_copied(handle, input))
        return onepass_linear(handle, input, weight, bias, output, workspace, workspace_size);
    static const device_work work = {"linear", linear_size, linear_run};
    device_copy copies[LINEAR_TENSORS] = {
        [LINEAR_INPUT] = device_reads("input", input),
        [LINEAR_WEIGHT] = device_reads("weight", weight),
        [LINEAR_BIAS] = device_reads("bias", bias),
        [LINEAR_OUTPUT] = device_writes("output", output),
    };
    return device_call(handle, &work, NULL, copies, LINEAR_TENSORS);
}

enum {
    BACK_GRAD_OUTPUT,
    BACK_INPUT,
    BACK_WEIGHT,
    BACK_GRAD_INPUT,
    BACK_GRAD_WEIGHT,
    BACK_GRAD_BIAS,
    BACK_TENSORS,
};

static onepass_status linear_backward_size(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                           size_t *bytes)
{
    (void)context;
    return onepass_linear_workspace_size(handle, there[BACK_INPUT], there[BACK_WEIGHT], bytes);
}

static onepass_status linear_backward_run(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                          void *workspace, size_t bytes)
{
    (void)context;
    return onepass_linear_backward(handle, there[BACK_GRAD_OUTPUT], there[BACK_INPUT], there[BACK_WEIGHT],
                                   there[BACK_GRAD_INPUT], there[BACK_GRAD_WEIGHT], there[BACK_GRAD_BIAS], workspace,
                                   bytes);
}

onepass_status linear_backward_call(onepass_handle *handle, const onepass_tensor *grad_output,
                                    const onepass_tensor *input, const onepass_tensor *weight,
                                    const onepass_tensor *grad_input, const onepass_tensor *grad_weight,
                                    const onepass_tensor *grad_bias, void *workspace, size_t workspace_size)
{
    if (!layer_is_copied(handle, input))
        return onepass_linear_backward(handle, grad_output, input, weight, grad_input, grad_weight, grad_bias,
                                       workspace, workspace_size);
    static const device_work work = {"linear_backward", linear_backward_size, linear_backward_run};
    device_copy copies[BACK_TENSORS] = {
        [BACK_GRAD_OUTPUT] = device_reads("grad_output", grad_output),
        [BACK_INPUT] = device_reads("input", input),
        [BACK_WEIGHT] = device_reads("weight", weight),
        [BACK_GRAD_INPUT] = device_writes("grad_input", grad_input),
        [BACK_GRAD_WEIGHT] = device_writes("grad_weight", grad_weight),
        [BACK_GRAD_BIAS] = device_writes("grad_bias", grad_bias),
    };
    return device_call(handle, &work, NULL, copies, BACK_TENSORS);
}

/* ---- head -------------------------------------------------------------------------------------------------------- */

/* The tensors of a head: what both directions have, then those of the forward call, then those of backward. */
enum {
    HEAD_INPUT,
    HEAD_WEIGHT,
    HEAD_BIAS,
    HEAD_GAMMA,
    HEAD_BETA,
    HEAD_SCALE,
    HEAD_OUTPUT,
    HEAD_PRODUCT,
    HEAD_MEAN,
    HEAD_RSTD,
    HEAD_BOTH,
    HEAD_RUNNING_MEAN = HEAD_BOTH,
    HEAD_RUNNING_VAR,
    HEAD_BATCHES_TRACKED,
    HEAD_TENSORS,
    HEAD_GRAD_OUTPUT = HEAD_BOTH,
    HEAD_GRAD_INPUT,
    HEAD_GRAD_WEIGHT,
    HEAD_GRAD_BIAS,
    HEAD_GRAD_GAMMA,
    HEAD_GRAD_BETA,
    HEAD_GRAD_SCALE,
    HEAD_BACKWARD_TENSORS,
};
_Static_assert((int)HEAD_BACKWARD_TENSORS <= (int)DEVICE_MOST_COPIES, "they travel in one call");

static void set_parameters(onepass_head_options *options, const onepass_tensor *const there[])
{
    options->bias = there[HEAD_BIAS];
    options->gamma = there[HEAD_GAMMA];
    options->beta = there[HEAD_BETA];
    options->scale = there[HEAD_SCALE];
}

static onepass_status head_size(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                size_t *bytes)
{
    onepass_head_options *options = context;
    set_parameters(options, there);
    options->running_mean = there[HEAD_RUNNING_MEAN];
    options->running_var = there[HEAD_RUNNING_VAR];
    options->batches_tracked = there[HEAD_BATCHES_TRACKED];
    return onepass_head_workspace_size(handle, there[HEAD_INPUT], there[HEAD_WEIGHT], options, there[HEAD_OUTPUT],
                                       there[HEAD_PRODUCT], bytes);
}

static onepass_status head_run(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                               void *workspace, size_t bytes)
{
    onepass_head_options *options = context;
    options->workspace = workspace;
    options->workspace_size = bytes;
    return onepass_head(handle, there[HEAD_INPUT], there[HEAD_WEIGHT], options, there[HEAD_OUTPUT], there[HEAD_PRODUCT],
                        there[HEAD_MEAN], there[HEAD_RSTD]);
}

onepass_status head_call(onepass_handle *handle, const onepass_tensor *input, const onepass_tensor *weight,
                         const onepass_head_options *options, const onepass_tensor *output,
                         const onepass_tensor *product, const onepass_tensor *mean, const onepass_tensor *rstd)
{
    if (!layer_is_copied(handle, input))
        return onepass_head(handle, input, weight, options, output, product, mean, rstd);
    static const device_work work = {"head", head_size, head_run};
    onepass_head_options moved = *options;
    bool updates = options->statistics == ONEPASS_BATCH_STATISTICS;
    device_copy copies[HEAD_TENSORS] = {
        [HEAD_INPUT] = device_reads("input", input),
        [HEAD_WEIGHT] = device_reads("weight", weight),
        [HEAD_BIAS] = device_reads("bias", options->bias),
        [HEAD_GAMMA] = device_reads("gamma", options->gamma),
        [HEAD_BETA] = device_reads("beta", options->beta),
        [HEAD_SCALE] = device_reads("scale", options->scale),
        [HEAD_OUTPUT] = device_writes("output", output),
        [HEAD_PRODUCT] = device_writes("product", product),
        [HEAD_MEAN] = device_writes("mean", mean),
        [HEAD_RSTD] = device_writes("rstd", rstd),
        [HEAD_RUNNING_MEAN] = (updates ? device_writes : device_reads)("running_mean", options->running_mean),
        [HEAD_RUNNING_VAR] = (updates ? device_writes : device_reads)("running_var", options->running_var),
        [HEAD_BATCHES_TRACKED] = (updates ? device_writes : device_reads)("batches_tracked", options->batches_tracked),
    };
    return device_call(handle, &work, &moved, copies, HEAD_TENSORS);
}

static onepass_status head_backward_size(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                         size_t *bytes)
{
    onepass_head_options *options = context;
    set_parameters(options, there);
    options->running_mean = options->running_var = options->batches_tracked = NULL; /* not looked at */
    return onepass_head_backward_workspace_size(handle, there[HEAD_INPUT], there[HEAD_WEIGHT], options, bytes);
}

static onepass_status head_backward_run(void *context, onepass_handle *handle, const onepass_tensor *const there[],
                                        void *workspace, size_t bytes)
{
    onepass_head_options *options = context;
    options->workspace = workspace;
    options->workspace_size = bytes;
    onepass_head_gradients gradients = {
        .size = sizeof gradients,
        .input = there[HEAD_GRAD_INPUT],
        .weight = there[HEAD_GRAD_WEIGHT],
        .bias = there[HEAD_GRAD_BIAS],
        .gamma = there[HEAD_GRAD_GAMMA],
        .beta = there[HEAD_GRAD_BETA],
        .scale = there[HEAD_GRAD_SCALE],
    };
    return onepass_head_backward(handle, there[HEAD_GRAD_OUTPUT], there[HEAD_OUTPUT], there[HEAD_INPUT],
                                 there[HEAD_WEIGHT], there[HEAD_PRODUCT], there[HEAD_MEAN], there[HEAD_RSTD], options,
                                 &gradients);
}

onepass_status head_backward_call(onepass_handle *handle, const onepass_tensor *grad_output,
                                  const onepass_tensor *output, const onepass_tensor *input,
                                  const onepass_tensor *weight, const onepass_tensor *product,
                                  const onepass_tensor *mean, const onepass_tensor *rstd,
                                  const onepass_head_options *options, const onepass_head_gradients *gradients)
{
    if (!layer_is_copied(handle, input))
        return onepass_head_backward(handle, grad_output, output, input, weight, product, mean, rstd, options,
                                     gradients);
    static const device_work work = {"head_backward", head_backward_size, head_backward_run};
    onepass_head_options moved = *options;
    device_copy copies[HEAD_BACKWARD_TENSORS] = {
        [HEAD_INPUT] = device_reads("input", input),
        [HEAD_WEIGHT] = device_reads("weight", weight),
        [HEAD_BIAS] = device_reads("bias", options->bias),
        [HEAD_GAMMA] = device_reads("gamma", options->gamma),
        [HEAD_BETA] = device_reads("beta", options->beta),
        [HEAD_SCALE] = device_reads("scale", options->scale),
        [HEAD_OUTPUT] = device_reads("output", output),
        [HEAD_PRODUCT] = device_reads("product", product),
        [HEAD_MEAN] = device_reads("mean", mean),
        [HEAD_RSTD] = device_reads("rstd", rstd),
        [HEAD_GRAD_OUTPUT] = device_reads("grad_output", grad_output),
        [HEAD_GRAD_INPUT] = device_writes("grad_input", gradients->input),
        [HEAD_GRAD_WEIGHT] = device_writes("grad_weight", gradients->weight),
        [HEAD_GRAD_BIAS] = device_writes("grad_bias", gradients->bias),
        [HEAD_GRAD_GAMMA] = device_writes("grad_gamma", gradients->gamma),
        [HEAD_GRAD_BETA] = device_writes("grad_beta", gradients->beta),
        [HEAD_GRAD_SCALE] = device_writes("grad_scale", gradients->scale),
    };
    return device_call(handle, &work, &moved, copies, HEAD_BACKWARD_TENSORS);
}

/* ---- who multiplies ---------------------------------------------------------------------------------------------- */

void layer_print_device(json_writer *json, onepass_handle *handle, const parsed_options *options)
{
    json_string(json, "device", options_text(options, "device"));
    json_string(json, "isa", onepass_isa(handle));
    if (handle->cuda) {
        char products[400];
        onep_products_describe(products, sizeof products);
        json_string(json, "products", products);
        json_string(json, "fp32_products", options_text(options, "fp32-products"));
    } else {
        json_string(json, "blas", onepass_blas(handle));
    }
    json_integer(json, "threads", onepass_threads(handle));
}
