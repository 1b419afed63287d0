"""What the ways to the head share: a call, and the library's forward and backward passes of it."""

from collections import namedtuple

from onepass import _native, library
from onepass.torch import prepared_weights, route

# training: batch statistics; momentum: None is cumulative; running_mean, running_var, batches_tracked: updated if
# training, or None; dtype: of the output; exact_fp32: linear's; prepared: the planes of prepared_weights.py, or None.
Call = namedtuple("Call", "training momentum eps running_mean running_var batches_tracked dtype exact_fp32 prepared")


def statistics_of(training):
    return _native.BATCH_STATISTICS if training else _native.RUNNING_STATISTICS


def flat(scale):
    return scale if scale is None or scale.dim() == 1 else scale.reshape(-1)


def mark_as_written(*tensors):
    """Autograd is told of a write to these that it does not see: a backward that needs them as they were will say so.
    Of a tensor with one dimension or none, transposing in place is nothing else; it takes a quarter of a microsecond.
    (torch.autograd.graph.increment_version is there since 2.1 and lets tensors of the inference mode pass.)"""
    for tensor in tensors:
        if tensor is not None:
            tensor.t_()


def empty_results(input, weight, dtype, empty=route.empty):
    """(output, product, mean, rstd) without their numbers."""
    rows, columns, computed = input.shape[0], weight.shape[0], route.computed_dtype(input)
    return (empty(input, (rows, columns), dtype), empty(input, (rows, columns), computed),
            empty(input, (columns,), computed), empty(input, (columns,), computed))


def forward(input, weight, bias, gamma, beta, scale, call, keep):
    """(output, product, mean, rstd); the last three are None unless kept for backward."""
    products = route.products(input, call.exact_fp32)
    prepared_weights.check("head", weight, call.prepared, products)
    if keep:
        results = empty_results(input, weight, call.dtype)
    else:
        results = (route.empty(input, (input.shape[0], weight.shape[0]), call.dtype), None, None, None)
    if call.training:
        mark_as_written(call.running_mean, call.running_var, call.batches_tracked)
    # Running statistics that are only read have no momentum.
    cumulative = call.training and call.momentum is None
    momentum = call.momentum if call.training and not cumulative else 0.0
    library.call(library.HEAD, input, weight, bias, gamma, beta, flat(scale), call.running_mean, call.running_var,
                 call.batches_tracked, call.prepared, *results, statistics_of(call.training), cumulative, call.eps,
                 momentum, products, route.threads(), route.workspace)
    return results


def empty_gradients(upstream, input, weight, bias, gamma, beta, scale, needs, empty=route.empty):
    """Gradients without their numbers, None where not asked for: that to the input has its shape from the weight, and
    the other way round."""
    rows, columns = upstream.shape
    return [empty(upstream, (rows, weight.shape[1]), weight.dtype) if needs[0] else None,
            empty(upstream, (columns, input.shape[1]), input.dtype) if needs[1] else None] + [
                empty(tensor, (*tensor.shape,), tensor.dtype) if need else None
                for tensor, need in zip((bias, gamma, beta, scale), needs[2:])]


def with_stand_ins(input, weight, product):
    """(input, weight) of a backward pass: what no gradient asked for needs, and is None, has its shape alone."""
    if input is None:
        like, depth = (product, 1) if weight is None else (weight, weight.shape[1])
        input = route.stand_in(like, (product.shape[0], depth))
    if weight is None:
        weight = route.stand_in(input, (product.shape[1], input.shape[1]))
    return input, weight


def gradients(upstream, output, product, mean, rstd, input, weight, bias, gamma, beta, scale, training, needs,
              exact_fp32=False):
    """The same with their numbers. input may be None if no gradient to the weight is asked for, and the other way
    round."""
    made = empty_gradients(upstream, input, weight, bias, gamma, beta, scale, needs)
    input, weight = with_stand_ins(input, weight, product)
    library.call(library.HEAD_BACKWARD, input, weight, upstream, output, product, mean, rstd, bias, gamma, beta,
                 flat(scale), *made[:5], flat(made[5]), statistics_of(training), 0, route.products(input, exact_fp32),
                 route.threads(), route.workspace)
    return made
