/*
 * PyTorch's tensors through the door of onepass: KL divergence between probabilities, its value and its gradients.
 * ONEPASS_EXPORT_CUDA chooses which half of the library this extension holds.
 */
#include <ATen/ATen.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#ifdef ONEPASS_EXPORT_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda.inc"
#else
#include <ATen/Parallel.h>

#include "cpu.inc"
#endif

#include <algorithm>
#include <tuple>
#include <vector>

namespace {

const char operator_name[] = "kl_div";

void must(onepass_status status)
{
    TORCH_CHECK(status == ONEPASS_OK, onepass_last_error());
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

onepass_dtype dtype_of(at::ScalarType type)
{
    switch (type) {
    case at::kHalf:
        return ONEPASS_F16;
    case at::kBFloat16:
        return ONEPASS_BF16;
    case at::kFloat:
        return ONEPASS_F32;
    default:
        return ONEPASS_F64;
    }
}

/* The library's view of a tensor; it keeps nothing alive. */
onepass_tensor view_of(const at::Tensor &tensor)
{
    onepass_tensor view = {};
    view.data = tensor.data_ptr();
    view.device.type = tensor.is_cuda() ? ONEPASS_CUDA : ONEPASS_CPU;
    view.device.id = tensor.is_cuda() ? tensor.get_device() : 0;
    view.ndim = static_cast<int32_t>(tensor.dim());
    view.dtype = dtype_of(tensor.scalar_type());
    view.shape = const_cast<int64_t *>(tensor.sizes().data()); /* the library does not write there */
    view.strides = const_cast<int64_t *>(tensor.strides().data());
    return view;
}

/* An input that the library can read as it lies. */
at::Tensor readable(const char *argument, const at::Tensor &tensor)
{
    at::ScalarType type = tensor.scalar_type();
    TORCH_CHECK_TYPE(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble,
                     operator_name, ": ", argument, ": dtype ", type,
                     "; it must be float16, bfloat16, float32 or float64");
    TORCH_CHECK(tensor.layout() == at::kStrided, operator_name, ": ", argument, ": layout ", tensor.layout(),
                "; it must be strided");
    TORCH_CHECK(tensor.has_storage(), operator_name, ": ", argument,
                ": has no memory of its own; vmap and other transforms of functions are not offered");
    TORCH_CHECK(!tensor._fw_grad(0).defined(), operator_name, ": ", argument,
                ": carries a tangent; forward-mode derivatives are not offered");
    return tensor.is_neg() ? tensor.resolve_neg() : tensor;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

/* A handle for this call, on the device of the inputs. */
#ifdef ONEPASS_EXPORT_CUDA
struct call {
    c10::cuda::CUDAGuard guard;
    onep_cuda cuda;
    onepass_handle handle;
    at::Tensor workspace;

    call(const at::Tensor &like, const onepass_tensor &predictions, onepass_kl_options &options)
        : guard(like.device()), cuda(), handle()
    {
        cuda.stream = c10::cuda::getCurrentCUDAStream(like.get_device()).stream();
        must(cuda_open(operator_name, like.get_device(), &cuda));
        handle.device = predictions.device;
        handle.level = ONEP_CUDA;
        handle.kernels = &cuda_kernels;
        handle.cuda = &cuda;
        size_t bytes = 0;
        must(onepass_kl_workspace_size(&handle, &predictions, &options, &bytes));
        workspace = at::empty({static_cast<int64_t>(bytes + sizeof(unsigned))}, like.options().dtype(at::kByte));
        options.workspace = workspace.data_ptr();
        options.workspace_size = bytes;
        cuda.spare = reinterpret_cast<unsigned *>(static_cast<char *>(options.workspace) + bytes);
    }

    const void *one() const
    {
        return cuda.device->words.one;
    }
};
#else
struct call {
    onepass_handle handle;

    call(const at::Tensor &, const onepass_tensor &, onepass_kl_options &) : handle(chosen())
    {
        handle.threads = std::min(at::get_num_threads(), ONEP_MAX_THREADS);
    }

    const void *one() const
    {
        static const float one = 1;
        return &one;
    }

    /* The vector level is chosen once, $ONEPASS_ISA or the best. */
    static const onepass_handle &chosen()
    {
        static const onepass_handle *made = [] {
            onepass_handle *created;
            must(onepass_create(NULL, &created));
            TORCH_CHECK(!onep_level_contracts(created->level), operator_name,
                        ": compiled with floating-point contraction, which changes bits; -ffp-contract=off is needed");
            return created;
        }();
        return *made;
    }
};
#endif

onepass_kl_options divided_by(int64_t divisor)
{
    onepass_kl_options options = {};
    options.size = sizeof options;
    /* Only an empty batch is divided by 0. It has no elements: its mean is the NaN that PyTorch gives. */
    options.reduction = divisor == 0 ? ONEPASS_MEAN : ONEPASS_DIVISOR;
    options.divisor = static_cast<double>(divisor);
    return options;
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
    call c(p, p_view, options);

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
    call c(p, p_view, options);
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
