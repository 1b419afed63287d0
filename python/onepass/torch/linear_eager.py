"""linear of plain eager tensors: straight to the library, with autograd around it.

What is kept for backward is what the gradients asked for are made of: the input for that to the weight, the weight for
that to the input. Those of higher order are PyTorch's operations.
"""

import math

import torch

from onepass import library
from onepass.torch import eager, matrices, prepared_weights


def product(input, weight, bias, exact_fp32=False, prepared=None):
    """prepared: the planes of prepared_weights.py."""
    products = matrices.products(input, exact_fp32)
    prepared_weights.check("linear", weight, prepared, products)
    output = input.new_empty(input.shape[:-1] + weight.shape[:1])
    library.linear(input, weight, bias, output, prepared, products, eager.threads(), eager.workspace)
    return output


def empty_gradients(upstream, input, weight, to_bias):
    """Gradients to input, weight and bias without their numbers; None where not asked for. Asked for is that to the
    input if there is a weight, that to the weight if there is an input."""
    columns = upstream.shape[-1]
    return (None if weight is None else upstream.new_empty(upstream.shape[:-1] + weight.shape[1:]),
            None if input is None else upstream.new_empty((columns, input.shape[-1])),
            upstream.new_empty((columns,)) if to_bias else None)


def gradients(upstream, input, weight, to_bias, exact_fp32=False):
    """The same with their numbers."""
    made = empty_gradients(upstream, input, weight, to_bias)
    depth = weight.shape[1:] if input is None and weight is not None else (1,) if input is None else input.shape[-1:]
    if input is None:
        input = matrices.stand_in(upstream, upstream.shape[:-1] + depth)
    if weight is None:
        weight = matrices.stand_in(upstream, upstream.shape[-1:] + depth)
    library.linear_backward(upstream, input, weight, made[0], made[1], made[2],
                            matrices.products(upstream, exact_fp32), eager.threads(), eager.workspace)
    return made


def _gradients_in_torch(upstream, input, weight, to_bias):
    """The same as something to differentiate again."""
    columns = upstream.shape[-1]
    with matrices.no_autocast(upstream):
        flat = upstream.reshape(math.prod(upstream.shape[:-1]), columns)
        return (None if weight is None else upstream.matmul(weight),
                None if input is None else flat.t().matmul(input.reshape(flat.shape[0], input.shape[-1])),
                flat.sum(0) if to_bias else None)


class Linear(torch.autograd.Function):
    """linear(input, weight, bias, exact_fp32, prepared)"""

    @staticmethod
    def forward(ctx, input, weight, bias, exact_fp32, prepared):
        keep(ctx, input, weight, exact_fp32)
        return product(input, weight, bias, exact_fp32, prepared)

    @staticmethod
    def backward(ctx, upstream):
        input, weight = ctx.saved_tensors
        to_bias = ctx.needs_input_grad[2]
        if torch.is_grad_enabled() or eager.is_batched(upstream):
            return _gradients_in_torch(upstream, input, weight, to_bias) + (None, None)
        tensors = upstream, input, weight
        if matrices.are_plain(tensors):
            return gradients(upstream, input, weight, to_bias, ctx.exact_fp32) + (None, None)
        if not matrices.are_traceable(tensors):
            return _gradients_in_torch(upstream, input, weight, to_bias) + (None, None)
        made = torch.ops.onepass.linear_backward(upstream, input, weight, to_bias, ctx.exact_fp32)
        return (None if weight is None else made[0], None if input is None else made[1], made[2] if to_bias else None,
                None, None)


def keep(ctx, input, weight, exact_fp32):
    needs = ctx.needs_input_grad
    ctx.exact_fp32 = exact_fp32
    ctx.save_for_backward(input if needs[1] else None, weight if needs[0] else None)


def linear(input, weight, bias, exact_fp32, prepared):
    if matrices.wants_gradients(input, weight, bias):
        return Linear.apply(input, weight, bias, exact_fp32, prepared)
    return product(input, weight, bias, exact_fp32, prepared)
