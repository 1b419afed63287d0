class ModelNew(nn.Module):
    """softmax(scale * bn(gemm(x)), dim=1): a linear layer, batch normalisation, a scale and a softmax.

    Its state is that of a module with gemm = nn.Linear, bn = nn.BatchNorm1d and a parameter scale of ones, made in this
    order: the same seed gives the same numbers, and a state_dict goes both ways. In training mode the statistics are the
    batch's and the running ones are updated. Everything up to the output is computed in float32, in float64 if x is.
    If somebody hooks or replaces gemm or bn, or x is no matrix, they are called as the modules they are.
    """

    def __init__(self, in_features, out_features, eps=1e-5, momentum=0.1, scale_shape=(1,)):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)
        self.bn = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)
        self.scale = nn.Parameter(torch.ones(scale_shape))

    def forward(self, x):
        gemm, bn, scale = self.gemm, self.bn, self.scale
        if not (_is_stock(gemm, nn.Linear) and _is_stock(bn, nn.BatchNorm1d)):
            return torch.softmax(scale * bn(gemm(x)), 1)
        a, weight, autocast = x, gemm.weight, _autocast(x)
        if autocast and x.dtype in _FLOATS[:3] and weight.dtype in _FLOATS[:3]:
            dtype = _autocast_dtype(x)
            a, weight = x.to(dtype), weight.to(dtype)
        if not _fits(a, weight, gemm, bn, scale, autocast):
            return torch.softmax(scale * bn(gemm(x)), 1)
        call = _Call(bn.training, bn.momentum is None, bn.momentum or 0.0, bn.eps,
                     (bn.running_mean, bn.running_var, bn.num_batches_tracked), _output_dtype(a, scale, autocast))
        inputs = (a, weight, gemm.bias, bn.weight, bn.bias, scale)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
            return _Head.apply(*inputs, call)
        return _forward(*inputs, call, False)[0]


# training: batch statistics; cumulative: they are averaged, instead of being weighed by momentum; running: mean,
# variance and the number of batches; dtype: of the output.
_Call = namedtuple("_Call", "training cumulative momentum eps running dtype")

_HALF = (torch.float16, torch.bfloat16)
_FLOATS = _HALF + (torch.float32, torch.float64)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def _is_stock(module, kind):
    """True if calling the module does what its class says, and nothing else."""
    return type(module) is kind and "forward" not in module.__dict__ and not any(
        module.__dict__.get(name) or getattr(nn.modules.module, "_global" + name, None) for name in _HOOKS)


def _fits(x, weight, gemm, bn, scale, autocast):
    """True if PyTorch's chain would take these tensors, and the kernels do. PyTorch has its own words for a batch of 1."""
    features, dtype = weight.shape[:1], x.dtype
    if not bn.track_running_stats or any(tensor is None for tensor in (gemm.bias, bn.weight, bn.bias, bn.running_mean,
                                                                       bn.running_var, bn.num_batches_tracked)):
        return False
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or (bn.training and x.shape[0] == 1):
        return False
    beside = (dtype, torch.float32) if dtype in _HALF else (dtype,)
    of_features = (bn.weight, bn.bias, bn.running_mean, bn.running_var)
    return (dtype in _FLOATS and weight.dtype is dtype and scale.dtype in _FLOATS
            and (gemm.bias.dtype is dtype or (autocast and gemm.bias.dtype in _FLOATS[:3]))
            and all(tensor.dtype in beside and tensor.shape == features for tensor in of_features)
            and gemm.bias.shape == features and bn.num_batches_tracked.dtype is torch.int64
            and tuple(scale.shape) in ((), (1,), (1, 1), (features[0],), (1, features[0]))
            and all(tensor.device == x.device for tensor in of_features + (weight, gemm.bias, scale,
                                                                           bn.num_batches_tracked)))


def _autocast_dtype(tensor):
    """What autocast computes a linear layer in."""
    if _VERSION >= (2, 4):
        return torch.get_autocast_dtype(tensor.device.type)
    return torch.get_autocast_gpu_dtype() if tensor.is_cuda else torch.get_autocast_cpu_dtype()


def _output_dtype(x, scale, autocast):
    """What scale * y, and softmax of it, have in PyTorch; on the CPU, autocast has kept halves since 1.12."""
    dtype = x.dtype if scale.dim() == 0 else torch.promote_types(x.dtype, scale.dtype)
    if autocast and (x.is_cuda or _VERSION < (1, 12)):
        return torch.promote_types(dtype, torch.float32)
    return dtype


def _allows_tf32(tensor):
    """True if PyTorch would multiply these matrices with TF32, by the program's own setting."""
    if not tensor.is_cuda or tensor.dtype is not torch.float32:
        return False
    matmul = torch.backends.cuda.matmul
    try:
        return matmul.fp32_precision == "tf32"
    except (AttributeError, AssertionError):  # before 2.9; the older name fails once somebody has used this one
        return matmul.allow_tf32


def _computed(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


def _forward(x, weight, bias, gamma, beta, scale, call, keep):
    """The output, and what backward needs: the product, and mean and rstd that it was normalised with."""
    rows, columns = x.shape[0], weight.shape[0]
    output = x.new_empty((rows, columns), dtype=call.dtype)
    kept = []
    if keep:
        kept = [x.new_empty(shape, dtype=_computed(x.dtype)) for shape in ((rows, columns), (columns,), (columns,))]
    _extension(x).forward(x, weight, bias, gamma, beta, scale.reshape(-1), *call.running, call.training,
                          call.cumulative, call.momentum, call.eps, _allows_tf32(x), output, kept)
    return (output, *kept)


class _Head(torch.autograd.Function):
    """The model where a gradient is required."""

    @staticmethod
    def forward(ctx, x, weight, bias, gamma, beta, scale, call):
        output, *kept = _forward(x, weight, bias, gamma, beta, scale, call, True)
        ctx.save_for_backward(x, weight, bias, gamma, beta, scale, output, *kept)
        ctx.call = call._replace(running=None)  # backward has no use for them
        return output

    @staticmethod
    def backward(ctx, upstream):
        saved = ctx.saved_tensors
        inputs, output, kept, wanted = saved[:6], saved[6], saved[7:], ctx.needs_input_grad[:6]
        if torch.is_grad_enabled():
            return (*_differentiable_gradients(upstream, inputs, kept, ctx.call, wanted), None)
        made = [torch.empty_like(tensor, memory_format=torch.contiguous_format) if want else None
                for tensor, want in zip(inputs, wanted)]
        flat = [tensor.reshape(-1) if place == 5 else tensor for place, tensor in enumerate(made) if tensor is not None]
        x, *features = inputs
        features[-1] = features[-1].reshape(-1)
        _extension(x).backward(upstream, output, x, *features, list(kept), ctx.call.training, _allows_tf32(x), flat,
                               list(wanted))
        return (*made, None)


def _in_torch(x, weight, bias, gamma, beta, scale, mean, rstd, call):
    """The output in PyTorch's operators, in the type that the kernels compute in. Running statistics are those that the
    product was normalised with, as numbers."""
    x, weight, bias, gamma, beta, scale = (tensor.to(mean.dtype) for tensor in (x, weight, bias, gamma, beta, scale))
    y = nn.functional.linear(x, weight, bias)
    if call.training:
        z = nn.functional.batch_norm(y, None, None, gamma, beta, True, 0.0, call.eps)
    else:
        z = (y - (mean + bias.detach())) * rstd * gamma + beta
    return torch.softmax(scale * z, 1).to(call.dtype)


def _differentiable_gradients(upstream, inputs, kept, call, wanted):
    """The gradients where they are to be differentiated in turn. Views stand for the inputs, so that a gradient stops
    there even if one of them was made of another."""
    _, mean, rstd = kept
    with torch.enable_grad(), torch.autocast("cuda" if upstream.is_cuda else "cpu", enabled=False):
        views = [tensor.view_as(tensor) if want else tensor for tensor, want in zip(inputs, wanted)]
        output = _in_torch(*views, mean, rstd, call)
        made = iter(torch.autograd.grad(output, [view for view, want in zip(views, wanted) if want], upstream,
                                        create_graph=True))
    return [next(made) if want else None for want in wanted]
