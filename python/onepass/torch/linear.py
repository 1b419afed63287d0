"""linear: torch.nn.functional.linear with the library's product.

route.py says which way a call goes: to the library, to onepass::linear in PyTorch's dispatcher, or to
torch.nn.functional.linear, which also gets what PyTorch itself would refuse. Before that, _native.linear takes what
needs none of this: plain tensors on the CPU and nobody who looks on. Without gradients it makes the output itself.

Backward keeps what the gradients asked for are made of: the input for that to the weight, the weight for that to the
input. Derivatives of higher order are PyTorch's operations.
"""

import math

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function

from onepass import _native, library
from onepass.torch import prepared_weights, route

# ---- the library -----------------------------------------------------------------------------------------------------


def _forward(input, weight, bias, exact_fp32=False, prepared=None):
    """The output. prepared: the planes of prepared_weights.py."""
    products = route.products(input, exact_fp32)
    prepared_weights.check("linear", weight, prepared, products)
    output = route.empty(input, (*input.shape[:-1], weight.shape[0]), input.dtype)
    library.call(library.LINEAR, input, weight, bias, prepared, output, products, route.threads(), route.workspace)
    return output


def _empty_gradients(upstream, input, weight, to_bias, empty=route.empty):
    """Gradients to input, weight and bias without their numbers; None where not asked for. Asked for is that to the
    input if there is a weight, that to the weight if there is an input."""
    *rows, columns = upstream.shape
    dtype = upstream.dtype
    return (None if weight is None else empty(upstream, (*rows, weight.shape[1]), dtype),
            None if input is None else empty(upstream, (columns, input.shape[-1]), dtype),
            empty(upstream, (columns,), dtype) if to_bias else None)


def _gradients(upstream, input, weight, to_bias, exact_fp32=False):
    """The same with their numbers."""
    made = _empty_gradients(upstream, input, weight, to_bias)
    if input is None:
        input = route.stand_in(upstream, upstream.shape[:-1] + ((1,) if weight is None else weight.shape[1:]))
    if weight is None:
        weight = route.stand_in(upstream, upstream.shape[-1:] + input.shape[-1:])
    library.call(library.LINEAR_BACKWARD, input, weight, upstream, *made, route.products(upstream, exact_fp32),
                 route.threads(), route.workspace)
    return made


def _gradients_in_torch(upstream, input, weight, to_bias):
    """The same as something to differentiate again."""
    columns = upstream.shape[-1]
    with route.no_autocast(upstream):
        flat = upstream.reshape(math.prod(upstream.shape[:-1]), columns)
        return (None if weight is None else upstream.matmul(weight),
                None if input is None else flat.t().matmul(input.reshape(flat.shape[0], input.shape[-1])),
                flat.sum(0) if to_bias else None)


# ---- autograd --------------------------------------------------------------------------------------------------------


def _keep(ctx, input, weight, exact_fp32):
    needs = ctx.needs_input_grad
    ctx.exact_fp32 = exact_fp32
    ctx.save_for_backward(input if needs[1] else None, weight if needs[0] else None)


class Linear(torch.autograd.Function):
    """linear(input, weight, bias, exact_fp32, prepared)"""

    @staticmethod
    def forward(ctx, input, weight, bias, exact_fp32, prepared):
        _keep(ctx, input, weight, exact_fp32)
        return _forward(input, weight, bias, exact_fp32, prepared)

    @staticmethod
    def backward(ctx, upstream):
        input, weight = ctx.saved_tensors
        to_bias = ctx.needs_input_grad[2]
        way = route.TRANSFORMED
        if not torch.is_grad_enabled() and not route.is_batched(upstream):
            way = route.way((upstream, input, weight))
        if way == route.EAGER:
            return _gradients(upstream, input, weight, to_bias, ctx.exact_fp32) + (None, None)
        if way == route.TRANSFORMED:
            return _gradients_in_torch(upstream, input, weight, to_bias) + (None, None)
        made = torch.ops.onepass.linear_backward(upstream, input, weight, to_bias, ctx.exact_fp32)
        return (None if weight is None else made[0], None if input is None else made[1], made[2] if to_bias else None,
                None, None)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


def _meta(input, weight, bias, exact_fp32=False, prepared=None):
    torch._check(input.shape[-1] == weight.shape[1],
                 lambda: "linear: weight: shape %s does not fit input %s; it must have as many columns" %
                 (list(weight.shape), list(input.shape)))
    return input.new_empty(input.shape[:-1] + weight.shape[:1])


def _below_autograd(*arguments):
    with route.below_autograd():
        return torch.ops.onepass.linear(*arguments)


class TracedLinear(Linear):
    """The same, of the operator."""

    @staticmethod
    def forward(ctx, input, weight, bias, exact_fp32, prepared):
        _keep(ctx, input, weight, exact_fp32)
        return _below_autograd(input, weight, bias, exact_fp32, prepared)


def _autograd(input, weight, bias, exact_fp32=False, prepared=None):
    if route.wants_gradients(input, weight, bias):
        if route.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
            prepared_weights.refuse_in_torch("linear", prepared)
            return F.linear(input, weight, bias)
        return TracedLinear.apply(input, weight, bias, exact_fp32, prepared)
    return _below_autograd(input, weight, bias, exact_fp32, prepared)


if route.HAS_TRACED:  # the dispatcher leaves out an argument that has its default
    route.define("linear(Tensor input, Tensor weight, Tensor? bias, bool exact_fp32=False, Tensor? prepared=None) "
                 "-> Tensor", _forward, _meta, _autograd)
    route.define("linear_backward(Tensor upstream, Tensor? input, Tensor? weight, bool to_bias, "
                 "bool exact_fp32=False) -> (Tensor, Tensor, Tensor)",
                 lambda upstream, *rest: route.all_results(upstream, _gradients(upstream, *rest)),
                 lambda upstream, input, weight, to_bias, exact_fp32=False: route.all_results(
                     upstream, _empty_gradients(upstream, input, weight, to_bias, route.empty_fake)))


# ---- the function ----------------------------------------------------------------------------------------------------


def _fits(input, weight, bias):
    """True for what the library computes as PyTorch would."""
    dtype = input.dtype
    return (dtype in route.FLOATS and weight.dtype is dtype and input.dim() >= 1 and weight.dim() == 2
            and input.shape[-1] == weight.shape[1]
            and (bias is None or (bias.dtype is dtype and bias.shape == weight.shape[:1])))


def autocast(*tensors):
    """The tensors as autocast gives them to a linear layer: double stays what it is."""
    dtype = route.autocast_dtype(tensors[0])
    return [tensor.to(dtype) if tensor is not None and tensor.dtype in route.FLOATS[:3] else tensor
            for tensor in tensors]


def linear(input, weight, bias=None, *, exact_fp32=False, prepared=None):
    """torch.nn.functional.linear: input weight^T + bias, with input [..., K], weight [N, K], bias [N].

    exact_fp32   float32 on CUDA, gradients included, without tensor cores: cuBLAS's own float32
    prepared     prepare_weight(weight): float32 on CUDA in less time, with the same bits. Refused if the weight was
                 changed since, and where it could not be used

    float32 has the accuracy of float32 on any device (docs/numerics.md), unless the program lets PyTorch use TF32
    (torch.set_float32_matmul_precision, torch.backends.cuda.matmul) and exact_fp32 is not set. Half types are summed in
    float32. Gradients to all three, of any order.
    """
    if route.HAS_PLAIN and prepared is None and not route.is_compiling() and forward_ad._current_level < 0:
        output = _native.linear(library.LINEAR, input, weight, bias)
        if output is True:
            return Linear.apply(input, weight, bias, exact_fp32, None)
        if output is not None:
            return output
    tensors = input, weight, bias
    if route.has_torch_function(tensors):
        return handle_torch_function(linear, tensors, input, weight, bias, exact_fp32=exact_fp32,
                                     **prepared_weights.keyword(prepared))
    planes = prepared_weights.planes_of("linear", prepared)
    way = route.way(tensors)
    if way != route.TRANSFORMED:
        if route.autocasts(input):
            input, weight, bias = autocast(input, weight, bias)
        if not _fits(input, weight, bias):
            way = route.TRANSFORMED
    if way == route.TRANSFORMED:
        prepared_weights.refuse_in_torch("linear", planes)
        return F.linear(input, weight, bias)
    if way == route.TRACED:
        return torch.ops.onepass.linear(input, weight, bias, exact_fp32, planes)
    if route.wants_gradients(input, weight, bias):
        return Linear.apply(input, weight, bias, exact_fp32, planes)
    return _forward(input, weight, bias, exact_fp32, planes)
