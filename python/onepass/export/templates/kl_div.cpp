/* PyTorch's tensors through the door of onepass: KL divergence between probabilities, its value and its gradients. */
static const char operator_name[] = "kl_div";

#include "binding.inc"

namespace {

onepass_kl_options divided_by(int64_t divisor)
{
    onepass_kl_options options = {};
    options.size = sizeof options;
    /* Only an empty batch is divided by 0. It has no elements: its mean is the NaN that PyTorch gives. */
    options.reduction = divisor == 0 ? ONEPASS_MEAN : ONEPASS_DIVISOR;
    options.divisor = static_cast<double>(divisor);
    return options;
}

/* What the call needs beside its tensors. */
void provide_for(call &c, const onepass_tensor &predictions, onepass_kl_options &options)
{
    size_t bytes = 0;
    must(onepass_kl_workspace_size(&c.handle, &predictions, &options, &bytes));
    c.provide(options, bytes);
}

/* ---- what Python calls ------------------------------------------------------------------------------------------- */

/*
 * sum t log(t/p) / divisor, and in the same pass the gradients to the predictions and to the targets that are wanted,
 * for an upstream gradient of 1. The value has the inputs' promoted dtype; at least float32 if `wide`.
 */
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor &predictions, const at::Tensor &targets,
                                                       int64_t divisor, bool wide, bool want_predictions,
                                                       bool want_targets)
{
    pybind11::gil_scoped_release no_gil;
    at::Tensor p = readable("predictions", predictions);
    at::Tensor t = readable("targets", targets);
    TORCH_CHECK(p.device() == t.device(), operator_name, ": targets: on ", t.device(), ", predictions on ", p.device(),
                "; they must be on the same device");
    at::ScalarType type = at::promote_types(p.scalar_type(), t.scalar_type());
    if (wide && type != at::kDouble)
        type = at::kFloat;
    onepass_tensor p_view = view_of(p);
    onepass_tensor t_view = view_of(t);
    onepass_kl_options options = divided_by(divisor);
    call c(p);
    provide_for(c, p_view, options);

    at::Tensor value = at::empty({}, p.options().dtype(type));
    at::Tensor to_p, to_t;
    onepass_tensor value_view = view_of(value);
    onepass_tensor to_p_view, to_t_view;
    if (want_predictions) {
        to_p = at::empty_like(p);
        to_p_view = view_of(to_p);
    }
    if (want_targets) {
        to_t = at::empty_like(t);
        to_t_view = view_of(to_t);
    }
    must(onepass_kl_probs_probs(&c.handle, &p_view, &t_view, &options, &value_view,
                                want_predictions ? &to_p_view : NULL, want_targets ? &to_t_view : NULL));
    return std::make_tuple(value, to_p, to_t);
}

/*
 * The gradients for an upstream gradient of grad_value, one number on the device of the inputs. `made`, if not empty,
 * holds those that `forward` made, the wanted ones in order: they are returned, made anew only if grad_value is not 1.
 * On a GPU the kernel decides that; nothing here waits for it.
 */
std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor &predictions, const at::Tensor &targets, int64_t divisor,
                                            const at::Tensor &grad_value, std::vector<at::Tensor> made,
                                            bool want_predictions, bool want_targets)
{
    pybind11::gil_scoped_release no_gil;
    at::Tensor p = readable("predictions", predictions);
    at::Tensor t = readable("targets", targets);
    at::Tensor g = readable("grad_value", grad_value);
    onepass_tensor p_view = view_of(p);
    onepass_tensor t_view = view_of(t);
    onepass_tensor g_view = view_of(g);
    onepass_kl_options options = divided_by(divisor);
    call c(p);
    provide_for(c, p_view, options);
    options.grad_value = &g_view;

    onepass_tensor made_for = {};
    if (made.empty()) {
        if (want_predictions)
            made.push_back(at::empty_like(p));
        if (want_targets)
            made.push_back(at::empty_like(t));
    } else {
        made_for.data = const_cast<void *>(c.one());
        made_for.device = p_view.device;
        made_for.dtype = dtype_of(at::kFloat);
        options.grad_made_for = &made_for;
    }
    at::Tensor to_p, to_t;
    onepass_tensor to_p_view, to_t_view;
    if (want_predictions) {
        to_p = made.front();
        to_p_view = view_of(to_p);
    }
    if (want_targets) {
        to_t = made.back();
        to_t_view = view_of(to_t);
    }
    must(onepass_kl_probs_probs(&c.handle, &p_view, &t_view, &options, NULL, want_predictions ? &to_p_view : NULL,
                                want_targets ? &to_t_view : NULL));
    return std::make_tuple(to_p, to_t);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
    module.def("forward", torch::wrap_pybind_function(forward));
    module.def("backward", torch::wrap_pybind_function(backward));
}
