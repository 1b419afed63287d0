"""The head of plain eager tensors: straight to the library, with autograd around it.

Without gradients the output is all the memory there is (the product is built in it). With them the product and two
numbers a feature are kept for backward, the input if the weight wants a gradient, the weight if the input does. Second
and higher derivatives are PyTorch's, of the same formula; for their sake the product is an output that autograd knows.
"""

from collections import namedtuple

import torch
import torch.nn.functional as F

from onepass import _native, library
from onepass.torch import eager, matrices, prepared_weights

# training: batch statistics; momentum: None is cumulative; running_mean, running_var, batches_tracked: updated if
# training, or None; dtype: of the output; exact_fp32: linear's; prepared: the planes of prepared_weights.py, or None.
Call = namedtuple("Call", "training momentum eps running_mean running_var batches_tracked dtype exact_fp32 prepared")


def _statistics(training):
    return _native.BATCH_STATISTICS if training else _native.RUNNING_STATISTICS


def _flat(scale):
    return None if scale is None else scale.reshape(-1)


def _mark_as_written(*tensors):
    """Autograd is told of a write to these that it does not see: a backward that needs them as they were will say so.
    Of a tensor with one dimension or none, transposing in place is nothing else; it takes a quarter of a microsecond.
    (torch.autograd.graph.increment_version is there since 2.1 and lets tensors of the inference mode pass.)"""
    for tensor in tensors:
        if tensor is not None:
            tensor.t_()


def empty_results(input, weight, dtype):
    """(output, product, mean, rstd) without their numbers."""
    rows, columns = input.shape[0], weight.shape[0]
    computed = matrices.computed_dtype(input)
    mean, rstd = input.new_empty((columns,), dtype=computed), input.new_empty((columns,), dtype=computed)
    return (input.new_empty((rows, columns), dtype=dtype), input.new_empty((rows, columns), dtype=computed), mean, rstd)


def forward(input, weight, bias, gamma, beta, scale, call, keep):
    """(output, product, mean, rstd); the last three are None unless kept for backward."""
    products = matrices.products(input, call.exact_fp32)
    prepared_weights.check("head", weight, call.prepared, products)
    if keep:
        results = empty_results(input, weight, call.dtype)
    else:
        results = (input.new_empty((input.shape[0], weight.shape[0]), dtype=call.dtype), None, None, None)
    if call.training:
        _mark_as_written(call.running_mean, call.running_var, call.batches_tracked)
    # Running statistics that are only read have no momentum.
    cumulative = call.training and call.momentum is None
    momentum = call.momentum if call.training and not cumulative else 0.0
    library.head(input, weight, results[0], bias, gamma, beta, _flat(scale), call.running_mean, call.running_var,
                 call.batches_tracked, *results[1:], call.prepared, _statistics(call.training), cumulative, call.eps,
                 momentum, products, eager.threads(), eager.workspace)
    return results


# ---- first derivatives -----------------------------------------------------------------------------------------------


def empty_gradients(upstream, input, weight, bias, gamma, beta, scale, needs):
    """Gradients without their numbers, None where not asked for: that to the input has its shape from the weight, and
    the other way round."""
    return [upstream.new_empty((upstream.shape[0], weight.shape[1]), dtype=weight.dtype) if needs[0] else None,
            upstream.new_empty((upstream.shape[1], input.shape[1]), dtype=input.dtype) if needs[1] else None] + [
                torch.empty_like(tensor, memory_format=torch.contiguous_format) if need else None
                for tensor, need in zip((bias, gamma, beta, scale), needs[2:])]


def gradients(upstream, output, product, mean, rstd, input, weight, bias, gamma, beta, scale, training, needs,
              exact_fp32=False):
    """The same with their numbers. input may be None if no gradient to the weight is asked for, and the other way
    round."""
    made = empty_gradients(upstream, input, weight, bias, gamma, beta, scale, needs)
    if input is None:
        like, depth = (product, 1) if weight is None else (weight, weight.shape[1])
        input = matrices.stand_in(like, (product.shape[0], depth))
    if weight is None:
        weight = matrices.stand_in(input, (product.shape[1], input.shape[1]))
    library.head_backward(upstream, output, input, weight, product, mean, rstd, bias, gamma, beta, _flat(scale),
                          *made[:5], _flat(made[5]), _statistics(training), matrices.products(input, exact_fp32),
                          eager.threads(), eager.workspace)
    return made


class Head(torch.autograd.Function):
    """(output, product) of (input, weight, bias, gamma, beta, scale) and one Call."""

    @staticmethod
    def forward(ctx, input, weight, bias, gamma, beta, scale, call):
        output, product, mean, rstd = forward(input, weight, bias, gamma, beta, scale, call, True)
        keep(ctx, input, weight, bias, gamma, beta, scale, output, product, mean, rstd)
        ctx.training, ctx.eps, ctx.exact_fp32 = call.training, call.eps, call.exact_fp32
        return output, product

    @staticmethod
    def backward(ctx, upstream, to_product, *none):
        saved = ctx.saved_tensors
        needs = ctx.needs_input_grad[:6]
        rest = (None,) * (len(ctx.needs_input_grad) - 6)
        in_torch = (torch.is_grad_enabled() or to_product is not None or upstream is None
                    or eager.is_batched(upstream))
        tensors = (upstream,) + saved[4:]
        if not in_torch and matrices.are_plain(tensors):
            return tuple(gradients(upstream, *saved, ctx.training, needs, ctx.exact_fp32)) + rest
        if in_torch or not matrices.are_traceable(tensors):
            return _gradients_in_torch(ctx, upstream, to_product, *saved, needs) + rest
        made = torch.ops.onepass.head_backward(upstream, *saved, ctx.training, needs, ctx.exact_fp32)
        return tuple(gradient if need else None for gradient, need in zip(made, needs)) + rest


def keep(ctx, input, weight, bias, gamma, beta, scale, output, product, mean, rstd):
    """For backward. Not the running statistics: it has no use for them."""
    needs = ctx.needs_input_grad
    ctx.save_for_backward(output, product, mean, rstd, input if needs[1] else None, weight if needs[0] else None, bias,
                          gamma, beta, scale)
    ctx.set_materialize_grads(False)


# ---- all derivatives -------------------------------------------------------------------------------------------------


def _argument(product, bias, gamma, beta, scale, mean, rstd, training, eps):
    """softmax's argument in PyTorch's operations, in the type the library computes in. Running statistics are those
    that the product was normalised with, as numbers, in which the bias is one, too."""
    computed = product.dtype
    if training:
        z = F.batch_norm(product, None, None, None, None, True, 0.0, eps)
    else:
        y = product if bias is None else product + (bias - bias.detach()).to(computed)
        z = (y - mean) * rstd
    if gamma is not None:
        z = z * gamma.to(computed)
    if beta is not None:
        z = z + beta.to(computed)
    return z if scale is None else scale.to(computed) * z


def _before_the_product(ctx, upstream, output, product, mean, rstd, bias, gamma, beta, scale, needs):
    """Gradients to product, bias, gamma, beta, scale, to be differentiated again if PyTorch records; None where `needs`
    has no place for them. Views stand for the tensors, so that a gradient stops there even if one was made of
    another."""
    create_graph = torch.is_grad_enabled()
    tensors = product, bias, gamma, beta, scale
    wanted = (needs[0] or needs[1], needs[2] and not ctx.training) + needs[3:]
    if not any(wanted):
        return (None,) * 5
    with torch.enable_grad():
        views = [tensor.view_as(tensor) if want else tensor for tensor, want in zip(tensors, wanted)]
        again = torch.softmax(_argument(*views, mean, rstd, ctx.training, ctx.eps), 1).to(output.dtype)
        made = iter(torch.autograd.grad(again, [view for view, want in zip(views, wanted) if want], upstream,
                                        create_graph=create_graph))
    return tuple(next(made) if want else None for want in wanted)


def _gradients_in_torch(ctx, upstream, to_product, output, product, mean, rstd, input, weight, bias, gamma, beta, scale,
                        needs):
    """The gradients as something to differentiate again. to_product: what the derivatives of gradients add."""
    made = (None,) * 5
    with matrices.no_autocast(product):
        if upstream is not None:
            made = _before_the_product(ctx, upstream, output, product, mean, rstd, bias, gamma, beta, scale, needs)
        to_product = made[0] if to_product is None else to_product if made[0] is None else to_product + made[0]
        to_input = to_weight = None
        if to_product is not None and needs[0]:
            to_input = to_product.matmul(weight.to(product.dtype)).to(weight.dtype)
        if to_product is not None and needs[1]:
            to_weight = to_product.t().matmul(input.to(product.dtype)).to(input.dtype)
    to_bias = made[1]
    if needs[2] and ctx.training:
        # 0: a constant added to a feature changes nothing if the batch's own mean is subtracted again. Made of the
        # bias, so that it has derivatives, which are 0 too.
        to_bias = bias.masked_fill(torch.ones_like(bias, dtype=torch.bool), 0)
    return (to_input, to_weight, to_bias) + made[2:]


def head(input, weight, bias, gamma, beta, scale, call):
    if matrices.wants_gradients(input, weight, bias, gamma, beta, scale):
        return Head.apply(input, weight, bias, gamma, beta, scale, call)[0]
    return forward(input, weight, bias, gamma, beta, scale, call, False)[0]
