"""linear: torch.nn.functional.linear with the library's product.

The first derivatives are the library's, too; those of higher order are PyTorch's operations. A call that is compiled,
traced or transformed, and one that PyTorch itself would refuse, goes to torch.nn.functional.linear.
"""

import math

import torch
import torch.nn.functional as F
from torch.overrides import handle_torch_function, has_torch_function

from onepass import library
from onepass.torch import eager, matrices


def _product(input, weight, bias):
    output = input.new_empty(input.shape[:-1] + weight.shape[:1])
    library.linear(input, weight, bias, output, matrices.products(input), eager.threads(), eager.workspace)
    return output


def _stand_in(like, shape):
    """A tensor whose shape alone is looked at."""
    return like.new_empty(()).expand(shape)


class Linear(torch.autograd.Function):
    """linear(input, weight, bias). Kept for backward is what the gradients asked for are made of."""

    @staticmethod
    def forward(ctx, input, weight, bias):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(input if needs[1] else None, weight if needs[0] else None)
        ctx.shapes = input.shape, weight.shape
        return _product(input, weight, bias)

    @staticmethod
    def backward(ctx, upstream):
        input, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled() or eager.is_batched(upstream) or not matrices.are_plain((upstream, input, weight)):
            return _gradients_in_torch(upstream, input, weight, ctx.shapes, needs)
        shape, weight_shape = ctx.shapes
        input = _stand_in(upstream, shape) if input is None else input
        weight = _stand_in(upstream, weight_shape) if weight is None else weight
        grads = (upstream.new_empty(shape) if needs[0] else None,
                 upstream.new_empty(weight_shape) if needs[1] else None,
                 upstream.new_empty(weight_shape[:1]) if needs[2] else None)
        library.linear_backward(upstream, input, weight, grads[0], grads[1], grads[2], matrices.products(upstream),
                                eager.threads(), eager.workspace)
        return grads


def _gradients_in_torch(upstream, input, weight, shapes, needs):
    """The gradients as something to differentiate again."""
    shape, weight_shape = shapes
    rows = math.prod(shape[:-1])
    with matrices.no_autocast(upstream):
        flat = upstream.reshape(rows, weight_shape[0])
        return (upstream.matmul(weight) if needs[0] else None,
                flat.t().matmul(input.reshape(rows, shape[-1])) if needs[1] else None,
                flat.sum(0) if needs[2] else None)


def _fits(input, weight, bias):
    """True for what the library computes as PyTorch would."""
    return (input.dtype in matrices.FLOATS and weight.dtype is input.dtype and input.dim() >= 1 and weight.dim() == 2
            and input.shape[-1] == weight.shape[1]
            and (bias is None or (bias.dtype is input.dtype and bias.shape == weight.shape[:1])))


def _autocast(*tensors):
    """The tensors as autocast gives them to a linear layer: double stays what it is."""
    dtype = matrices.autocast_dtype(tensors[0])
    return [tensor.to(dtype) if tensor is not None and tensor.dtype in matrices.FLOATS[:3] else tensor
            for tensor in tensors]


def linear(input, weight, bias=None):
    """torch.nn.functional.linear: input weight^T + bias, with input [..., K], weight [N, K], bias [N].

    In float32 no digit of an operand is lost on any device, unless the program lets PyTorch use TF32
    (torch.set_float32_matmul_precision, torch.backends.cuda.matmul). Half types are summed in float32. Gradients to all
    three, of any order.
    """
    if has_torch_function((input, weight, bias)):
        return handle_torch_function(linear, (input, weight, bias), input, weight, bias)
    if not matrices.are_plain((input, weight, bias)):
        return F.linear(input, weight, bias)
    if eager.autocasts(input):
        input, weight, bias = _autocast(input, weight, bias)
    if not _fits(input, weight, bias):
        return F.linear(input, weight, bias)
    if torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad
                                    or (bias is not None and bias.requires_grad)):
        return Linear.apply(input, weight, bias)
    return _product(input, weight, bias)
