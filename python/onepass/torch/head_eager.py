"""The head of plain eager tensors: straight to the library, with autograd around it.

Without gradients the output is all the memory there is (the product is built in it). With them the product and two
numbers a feature are kept for backward. Second and higher derivatives are PyTorch's, of the same formula.
"""

from collections import namedtuple

import torch
import torch.nn.functional as F

from onepass import _native, library
from onepass.torch import eager, matrices

# training: batch statistics; momentum: None is cumulative; running_mean, running_var, batches_tracked: updated if
# training, or None; dtype: of the output.
Call = namedtuple("Call", "training momentum eps running_mean running_var batches_tracked dtype")


def _statistics(call):
    return _native.BATCH_STATISTICS if call.training else _native.RUNNING_STATISTICS


def _computed(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


def _flat(scale):
    return scale.reshape(-1)


def forward(input, weight, bias, gamma, beta, scale, call, keep):
    """(output, product, mean, rstd); the last three are None unless kept for backward."""
    rows, columns = input.shape[0], weight.shape[0]
    output = input.new_empty((rows, columns), dtype=call.dtype)
    product = mean = rstd = None
    if keep:
        computed = _computed(input.dtype)
        product = input.new_empty((rows, columns), dtype=computed)
        mean, rstd = input.new_empty((2, columns), dtype=computed).unbind(0)
    # Running statistics that are only read have no momentum.
    cumulative = call.training and call.momentum is None
    momentum = call.momentum if call.training and not cumulative else 0.0
    library.head(input, weight, output, bias, gamma, beta, _flat(scale), call.running_mean, call.running_var,
                 call.batches_tracked, product, mean, rstd, _statistics(call), cumulative, call.eps, momentum,
                 matrices.products(input), eager.threads(), eager.workspace)
    return output, product, mean, rstd


class Head(torch.autograd.Function):
    """head(input, weight, bias, gamma, beta, scale), of one Call."""

    @staticmethod
    def forward(ctx, input, weight, bias, gamma, beta, scale, call):
        output, product, mean, rstd = forward(input, weight, bias, gamma, beta, scale, call, True)
        ctx.save_for_backward(input, weight, bias, gamma, beta, scale, output, product, mean, rstd)
        # Not the running statistics: backward has no use for them.
        ctx.call = call._replace(running_mean=None, running_var=None, batches_tracked=None)
        return output

    @staticmethod
    def backward(ctx, upstream):
        saved = ctx.saved_tensors
        inputs, (output, product, mean, rstd) = saved[:6], saved[6:]
        needs = ctx.needs_input_grad[:6]
        if torch.is_grad_enabled() or eager.is_batched(upstream) or not matrices.are_plain((upstream,) + inputs):
            return _gradients_in_torch(upstream, inputs, mean, rstd, ctx.call, needs) + (None,)
        input, weight, bias, gamma, beta, scale = inputs
        grads = [torch.empty_like(tensor, memory_format=torch.contiguous_format) if need else None
                 for tensor, need in zip(inputs, needs)]
        library.head_backward(upstream, output, input, weight, product, mean, rstd, bias, gamma, beta, _flat(scale),
                              *grads[:5], None if grads[5] is None else _flat(grads[5]), _statistics(ctx.call),
                              matrices.products(input), eager.threads(), eager.workspace)
        return tuple(grads) + (None,)


def _in_torch(input, weight, bias, gamma, beta, scale, mean, rstd, call):
    """The output in PyTorch's operations, in the type the library computes in; running statistics are those that the
    product was normalised with, as numbers."""
    computed = _computed(input.dtype)
    y = F.linear(input.to(computed), weight.to(computed), None if bias is None else bias.to(computed))
    if call.training:
        z = F.batch_norm(y, None, None, None, None, True, 0.0, call.eps)
    else:
        running_mean = mean if bias is None else mean + bias.detach().to(computed)
        z = (y - running_mean) * rstd
    if gamma is not None:
        z = z * gamma.to(computed)
    if beta is not None:
        z = z + beta.to(computed)
    return torch.softmax(scale.to(computed) * z, 1).to(call.dtype)


def _gradients_in_torch(upstream, inputs, mean, rstd, call, needs):
    """The gradients as something to differentiate again. Views stand for the inputs, so that a gradient stops there
    even if one of them was made of another."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), matrices.no_autocast(upstream):
        views = [tensor.view_as(tensor) if need else tensor for tensor, need in zip(inputs, needs)]
        output = _in_torch(*views, mean, rstd, call)
        made = iter(torch.autograd.grad(output, [view for view, need in zip(views, needs) if need], upstream,
                                        create_graph=create_graph))
    return tuple(next(made) if need else None for need in needs)


def head(input, weight, bias, gamma, beta, scale, call):
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad
                                       for tensor in (input, weight, bias, gamma, beta, scale)):
        return Head.apply(input, weight, bias, gamma, beta, scale, call)
    return forward(input, weight, bias, gamma, beta, scale, call, False)[0]
