/*
 * PyTorch's tensors through the door of onepass: softmax(scale * batch_norm(linear(x))), and its gradients. Whoever
 * calls has looked at shapes and types, and has made the tensors that are written.
 */
static const char operator_name[] = "linear_bn_softmax";

#include "binding.inc"

namespace {

/* One number for all features, or one for each; views that live as long as the options do. */
struct features {
    at::Tensor tensors[4];
    onepass_tensor bias, gamma, beta, scale;

    features(const at::Tensor &b, const at::Tensor &g, const at::Tensor &e, const at::Tensor &s)
        : tensors{readable("gemm.bias", b), readable("bn.weight", g), readable("bn.bias", e), readable("scale", s)},
          bias(view_of(tensors[0])), gamma(view_of(tensors[1])), beta(view_of(tensors[2])), scale(view_of(tensors[3]))
    {
    }

    onepass_head_options options(bool training) const
    {
        onepass_head_options made = {};
        made.size = sizeof made;
        made.statistics = training ? ONEPASS_BATCH_STATISTICS : ONEPASS_RUNNING_STATISTICS;
        made.bias = &bias;
        made.gamma = &gamma;
        made.beta = &beta;
        made.scale = &scale;
        return made;
    }
};

/* ---- what Python calls ------------------------------------------------------------------------------------------- */

/*
 * Fills `output`, and `kept` (product, mean and rstd, for backward) if it is not empty. If `training`, the statistics
 * are the batch's and the running ones are updated, with `momentum` or, if `cumulative`, as the average of all batches.
 */
void run_forward(const at::Tensor &x, const at::Tensor &weight, const at::Tensor &bias, const at::Tensor &gamma,
                 const at::Tensor &beta, const at::Tensor &scale, const at::Tensor &running_mean,
                 const at::Tensor &running_var, const at::Tensor &count, bool training, bool cumulative,
                 double momentum, double eps, bool tf32, const at::Tensor &output, const std::vector<at::Tensor> &kept)
{
    pybind11::gil_scoped_release no_gil;
    at::Tensor input = readable("x", x), w = readable("gemm.weight", weight);
    features of(bias, gamma, beta, scale);
    onepass_tensor input_view = view_of(input), w_view = view_of(w), output_view = view_of(output);
    onepass_tensor mean_view = view_of(running_mean), var_view = view_of(running_var), count_view = view_of(count);
    onepass_tensor kept_views[3];
    for (size_t i = 0; i < kept.size(); i++)
        kept_views[i] = view_of(kept[i]);
    onepass_tensor *product = kept.empty() ? NULL : kept_views;

    onepass_head_options options = of.options(training);
    options.eps = eps;
    options.running_mean = &mean_view;
    options.running_var = &var_view;
    if (training) {
        options.cumulative = cumulative;
        options.momentum = cumulative ? 0 : momentum;
        options.batches_tracked = &count_view;
    }
    turn in_turn;
    call c(input);
    c.handle.fp32_products = tf32 ? ONEPASS_FP32_TF32 : ONEPASS_FP32_FULL;
    size_t bytes = 0;
    must(onepass_head_workspace_size(&c.handle, &input_view, &w_view, &options, &output_view, product, &bytes));
    c.provide(options, bytes);
    must(onepass_head(&c.handle, &input_view, &w_view, &options, &output_view, product, product ? product + 1 : NULL,
                      product ? product + 2 : NULL));
}

/*
 * Fills the gradients to x, weight, bias, gamma, beta and scale: `made` has those that are `wanted`, in this order. The
 * rest is what `run_forward` was given and has made.
 */
void run_backward(const at::Tensor &grad_output, const at::Tensor &output, const at::Tensor &x,
                  const at::Tensor &weight, const at::Tensor &bias, const at::Tensor &gamma, const at::Tensor &beta,
                  const at::Tensor &scale, const std::vector<at::Tensor> &kept, bool training, bool tf32,
                  const std::vector<at::Tensor> &made, const std::vector<bool> &wanted)
{
    pybind11::gil_scoped_release no_gil;
    at::Tensor g = readable("grad_output", grad_output), input = readable("x", x), w = readable("gemm.weight", weight);
    features of(bias, gamma, beta, scale);
    onepass_tensor g_view = view_of(g), output_view = view_of(output), input_view = view_of(input), w_view = view_of(w);
    onepass_tensor product = view_of(kept.at(0)), mean = view_of(kept.at(1)), rstd = view_of(kept.at(2));

    onepass_head_gradients gradients = {};
    gradients.size = sizeof gradients;
    const onepass_tensor **places[] = {&gradients.input, &gradients.weight, &gradients.bias,
                                       &gradients.gamma, &gradients.beta,   &gradients.scale};
    onepass_tensor views[6];
    for (size_t i = 0, next = 0; i < 6; i++)
        if (wanted.at(i)) {
            views[i] = view_of(made.at(next++));
            *places[i] = &views[i];
        }
    onepass_head_options options = of.options(training);
    turn in_turn;
    call c(input);
    c.handle.fp32_products = tf32 ? ONEPASS_FP32_TF32 : ONEPASS_FP32_FULL;
    size_t bytes = 0;
    must(onepass_head_backward_workspace_size(&c.handle, &input_view, &w_view, &options, &bytes));
    c.provide(options, bytes);
    must(onepass_head_backward(&c.handle, &g_view, &output_view, &input_view, &w_view, &product, &mean, &rstd, &options,
                               &gradients));
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
    module.def("forward", torch::wrap_pybind_function(run_forward));
    module.def("backward", torch::wrap_pybind_function(run_backward));
}
