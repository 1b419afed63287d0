"""linear_batch_norm_softmax: a linear layer, batch normalisation, a scale and softmax as one operator, and its module.

Here arguments are read and the way is chosen (matrices.py): head_eager.py, the operator of head_traced.py, or PyTorch's
own operations. These also get what they would refuse and what the library does not have: they decide, and theirs are
the errors.
"""

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from onepass.torch import eager, head_composite, head_eager, matrices, prepared_weights

if eager.HAS_TRACED:
    from onepass.torch import head_traced

_INFINITY = float("inf")  # compared with: torch.compile does not follow math.isfinite of a number that varies

# Before that, autocast on the CPU gave batch_norm and softmax float32.
_CPU_AUTOCAST_KEEPS_HALF = eager.VERSION >= (1, 12)


def _fits(input, weight, bias, running_mean, running_var, gamma, beta, scale, training, momentum, eps, count, autocast):
    """True for what the library computes as PyTorch would."""
    dtype = input.dtype
    if input.dim() != 2 or weight.dim() != 2 or input.shape[1] != weight.shape[1]:
        return False
    if dtype not in matrices.FLOATS or weight.dtype is not dtype:
        return False
    # One type for the product, but for a bias that autocast would cast; normalisation may have float32 beside halves.
    feature = weight.shape[:1]
    if bias is not None and (bias.shape != feature or not (bias.dtype is dtype or (
            autocast and bias.dtype in matrices.FLOATS[:3]))):
        return False
    beside = torch.float32 if dtype in matrices.HALF else dtype
    for parameter in (running_mean, running_var, gamma, beta):
        if parameter is not None and (parameter.shape != feature or not (
                parameter.dtype is dtype or parameter.dtype is beside)):
            return False
    if scale is not None and (scale.dtype not in matrices.FLOATS or tuple(scale.shape) not in (
            (), (1,), (1, 1), (feature[0],), (1, feature[0]))):
        return False
    if (running_mean is None) != (running_var is None) or not 0 <= eps < _INFINITY:
        return False
    if not training:
        return running_mean is not None
    # PyTorch has its own words for a batch of 1.
    return (input.shape[0] != 1 and (count is None or (count.dtype is torch.int64 and tuple(count.shape) in ((), (1,))))
            and (momentum is None or -_INFINITY < momentum < _INFINITY))


def _promoted(a, b):
    return a if a is b else torch.promote_types(a, b)


def _output_dtype(input, scale, autocast):
    """What scale * y, and softmax of it, have in PyTorch."""
    dtype = input.dtype if scale is None or scale.dim() == 0 else _promoted(input.dtype, scale.dtype)
    if autocast and (input.is_cuda or not _CPU_AUTOCAST_KEEPS_HALF):
        return _promoted(dtype, torch.float32)
    return dtype


def linear_batch_norm_softmax(input, weight, bias, running_mean, running_var, gamma, beta, scale, training, momentum,
                              eps, num_batches_tracked=None, *, exact_fp32=False, prepared=None):
    """softmax(scale * batch_norm(linear(input, weight, bias), ...), dim=1) as one operator.

    input [B, K], weight [N, K], bias [N] or None
    running_mean, running_var   [N] or both None: updated in place if training, normalised with if not
    gamma, beta                 batch_norm's weight and bias, [N] or None
    scale                       a tensor of one element, or of one a feature; a number; None: 1
    training                    normalise with the statistics of the batch
    momentum                    None: cumulative average, by num_batches_tracked, which no host reads
    eps                         added to the variance
    num_batches_tracked         int64: incremented in place if training; None: nobody counts
    exact_fp32                  float32 on CUDA, gradients included, without tensor cores: cuBLAS's own float32
    prepared                    prepare_weight(weight), as in linear

    Gradients to input, weight, bias, gamma, beta and scale, of any order; that to the bias is exactly 0 with statistics
    of the batch, where adding a constant to a feature changes nothing. Everything up to the output is computed in
    float32 (float64 if the input is), half types and autocast included. The output's dtype is that of PyTorch's chain.
    """
    tensors = (input, weight, bias, running_mean, running_var, gamma, beta, scale, num_batches_tracked)
    if has_torch_function(tensors):
        return handle_torch_function(linear_batch_norm_softmax, tensors, input, weight, bias, running_mean, running_var,
                                     gamma, beta, scale, training, momentum, eps,
                                     num_batches_tracked=num_batches_tracked, exact_fp32=exact_fp32,
                                     **prepared_weights.keyword(prepared))
    planes = prepared_weights.planes_of("head", prepared)
    options = (training, momentum, eps, num_batches_tracked)
    is_number = type(scale) in (float, int)
    if is_number:
        tensors = tensors[:7] + tensors[8:]
    is_plain = matrices.are_plain(tensors)
    if not is_plain and not matrices.are_traceable(tensors):
        prepared_weights.refuse_in_torch("head", planes)
        return head_composite.head(input, weight, bias, running_mean, running_var, gamma, beta, scale, *options)
    x, w = input, weight
    autocast = eager.autocasts(input)
    if autocast and input.dtype in matrices.FLOATS[:3] and weight.dtype in matrices.FLOATS[:3]:
        dtype = matrices.autocast_dtype(input)
        x, w = input.to(dtype), weight.to(dtype)
    factor = x.new_full((), scale, dtype=matrices.computed_dtype(x)) if is_number else scale
    if not _fits(x, w, bias, running_mean, running_var, gamma, beta, factor, *options, autocast):
        prepared_weights.refuse_in_torch("head", planes)
        return head_composite.head(input, weight, bias, running_mean, running_var, gamma, beta, scale, *options)
    if momentum is None and (num_batches_tracked is None or running_mean is None):
        momentum = 0.0  # as nn.BatchNorm1d, which then updates nothing
    call = head_eager.Call(training, momentum, eps, running_mean, running_var,
                           num_batches_tracked if training else None, _output_dtype(x, factor, autocast), exact_fp32,
                           planes)
    return (head_eager if is_plain else head_traced).head(x, w, bias, gamma, beta, factor, call)


# ---- module ----------------------------------------------------------------------------------------------------------

_GLOBAL_HOOKS = [getattr(nn.modules.module, "_global" + name)
                 for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
                 if hasattr(nn.modules.module, "_global" + name)]


def _is_stock(module, kind):
    """True if calling the module does what its class says, and nothing else."""
    state = module.__dict__
    return type(module) is kind and "forward" not in state and not (
        state["_forward_hooks"] or state["_forward_pre_hooks"] or state["_backward_hooks"]
        or state.get("_backward_pre_hooks"))


def _dimension_of(softmax):
    """What softmax is taken over; None if calling the module does more."""
    if isinstance(softmax, int):
        return softmax
    return softmax.dim if _is_stock(softmax, nn.Softmax) else None


def _is_over_features(dimension, input):
    """True if softmax is over the features, which are the input's second dimension and, of two, the last."""
    return dimension == 1 or (dimension == -1 and not has_torch_function((input,)) and input.dim() == 2)


def linear_batch_norm_softmax_of(input, gemm, bn, scale, softmax, exact_fp32=False, prepared=None):
    """softmax(scale * bn(gemm(input))) of modules, by linear_batch_norm_softmax as long as they do what their classes
    say and nothing else; otherwise they are called as the modules they are.

    gemm, bn                      nn.Linear, nn.BatchNorm1d
    scale, exact_fp32, prepared   as in linear_batch_norm_softmax
    softmax                       nn.Softmax, or its dimension
    """
    if (not (_is_stock(gemm, nn.Linear) and _is_stock(bn, nn.BatchNorm1d)) or any(_GLOBAL_HOOKS)
            or not _is_over_features(_dimension_of(softmax), input)):
        prepared_weights.refuse_in_torch("head", prepared)
        z = bn(gemm(input))
        z = z if scale is None else scale * z
        return torch.softmax(z, softmax) if isinstance(softmax, int) else softmax(z)
    # As nn.BatchNorm1d reads its own attributes, track_running_stats set to False later included.
    uses_running = bn.track_running_stats or not bn.training
    training = bn.training or (bn.running_mean is None and bn.running_var is None)
    counts = bn.training and bn.track_running_stats
    return linear_batch_norm_softmax(input, gemm.weight, gemm.bias, bn.running_mean if uses_running else None,
                                     bn.running_var if uses_running else None, bn.weight, bn.bias, scale, training,
                                     bn.momentum, bn.eps, bn.num_batches_tracked if counts else None,
                                     exact_fp32=exact_fp32, prepared=prepared)


class LinearBatchNormSoftmax(nn.Module):
    """A model's end: softmax(scale * bn(gemm(input)), dim=1), computed by linear_batch_norm_softmax.

    Its state is that of a module with gemm = nn.Linear, bn = nn.BatchNorm1d and a parameter scale of ones, made in this
    order: the same seed gives the same numbers, and a state_dict goes both ways. If somebody hooks, parametrizes or
    replaces gemm or bn they are called as the modules they are.
    """

    prepared = None  # what prepare() made; no part of the module's state

    def __init__(self, in_features, out_features, bn_eps=1e-5, bn_momentum=0.1, scale_shape=(1,), bias=True,
                 affine=True, track_running_stats=True, *, device=None, dtype=None, exact_fp32=False):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.bn = nn.BatchNorm1d(out_features, eps=bn_eps, momentum=bn_momentum, affine=affine,
                                 track_running_stats=track_running_stats, device=device, dtype=dtype)
        self.scale = nn.Parameter(torch.ones(scale_shape, device=device, dtype=dtype))
        self.exact_fp32 = exact_fp32

    def forward(self, input):
        return linear_batch_norm_softmax_of(input, self.gemm, self.bn, self.scale, 1, self.exact_fp32, self.prepared)

    def prepare(self):
        """From now on forward passes use gemm's weight as it is now, prepared by prepare_weight; after every change of
        it they are refused until this is called again. Returns the module."""
        prepared = self.prepared
        if prepared is not None and prepared.weight is self.gemm.weight and prepared.can_update:
            prepared.update()
        else:
            self.prepared = prepared_weights.prepare_weight(self.gemm.weight)
        return self

    def forget_prepared(self):
        """From now on forward passes read the weight itself, and the prepared one's memory is given back. Returns the
        module."""
        self.prepared = None
        return self

    def __getstate__(self):
        """A copy, or what is loaded from a pickle, has memory of its own and nothing prepared."""
        state = self.__dict__.copy()
        state.pop("prepared", None)
        return state
