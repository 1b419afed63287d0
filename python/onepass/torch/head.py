"""linear_batch_norm_softmax: a linear layer, batch normalisation, a scale and softmax as one operator.

route.py says which way a call goes: to the library, to onepass::head in PyTorch's dispatcher, or to PyTorch's own
operations. These also get what they would refuse and what the library does not have: they decide, and theirs are the
errors.

Without gradients the output is all the memory there is (the product is built in it). With them backward keeps the
product and two numbers per feature, the input if the weight wants a gradient, the weight if the input does. Second and
higher derivatives are PyTorch's, of the same formula; for their sake the product is an output that autograd knows.
"""

import torch
import torch.nn.functional as F
from torch.overrides import handle_torch_function

from onepass.torch import head_call, head_sync, prepared_weights, route
from onepass.torch.head_call import Call, empty_gradients, empty_results

# ---- autograd --------------------------------------------------------------------------------------------------------


def _keep(ctx, input, weight, bias, gamma, beta, scale, output, product, mean, rstd):
    """For backward. Not the running statistics: it has no use for them."""
    needs = ctx.needs_input_grad
    ctx.save_for_backward(output, product, mean, rstd, input if needs[1] else None, weight if needs[0] else None, bias,
                          gamma, beta, scale)
    ctx.set_materialize_grads(False)


class Head(torch.autograd.Function):
    """(output, product) of (input, weight, bias, gamma, beta, scale) and one Call."""

    @staticmethod
    def forward(ctx, input, weight, bias, gamma, beta, scale, call):
        output, product, mean, rstd = head_call.forward(input, weight, bias, gamma, beta, scale, call, True)
        _keep(ctx, input, weight, bias, gamma, beta, scale, output, product, mean, rstd)
        ctx.training, ctx.eps, ctx.exact_fp32 = call.training, call.eps, call.exact_fp32
        return output, product

    @staticmethod
    def backward(ctx, upstream, to_product, *none):
        saved = ctx.saved_tensors
        needs = ctx.needs_input_grad[:6]
        rest = (None,) * (len(ctx.needs_input_grad) - 6)
        way = route.TRANSFORMED
        if upstream is not None and to_product is None and not torch.is_grad_enabled() and not route.is_batched(
                upstream):
            way = route.way((upstream,) + saved[4:])
        if way == route.EAGER:
            return tuple(head_call.gradients(upstream, *saved, ctx.training, needs, ctx.exact_fp32)) + rest
        if way == route.TRANSFORMED:
            return _gradients_in_torch(ctx, upstream, to_product, *saved, needs) + rest
        made = torch.ops.onepass.head_backward(upstream, *saved, ctx.training, needs, ctx.exact_fp32)
        return tuple(gradient if need else None for gradient, need in zip(made, needs)) + rest


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
    with route.no_autocast(product):
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


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


def _call(running_mean, running_var, batches_tracked, training, momentum, eps, dtype, exact_fp32=False, prepared=None):
    """The Call of an operator, whose last arguments the dispatcher leaves out if they have their defaults. Statistics
    that it updates are copies."""
    state = running_mean, running_var, batches_tracked
    if training:
        state = [None if tensor is None else tensor.clone(memory_format=torch.contiguous_format) for tensor in state]
    return Call(training, momentum, eps, *state, dtype, exact_fp32, prepared)


def _updated(input, call):
    """Running statistics and counter as results."""
    state = call.running_mean, call.running_var, call.batches_tracked
    return tuple(route.not_asked_for(input) if tensor is None or not call.training else tensor for tensor in state)


def _head(input, weight, bias, gamma, beta, scale, *rest):
    call = _call(*rest)
    output = head_call.forward(input, weight, bias, gamma, beta, scale, call, False)[0]
    return (output,) + _updated(input, call)


def _head_kept(input, weight, bias, gamma, beta, scale, *rest):
    call = _call(*rest)
    return head_call.forward(input, weight, bias, gamma, beta, scale, call, True) + _updated(input, call)


def _head_kept_meta(input, weight, bias, gamma, beta, scale, *rest):
    torch._check(input.shape[1] == weight.shape[1],
                 lambda: "head: weight: shape %s does not fit input %s; it must have as many columns" %
                 (list(weight.shape), list(input.shape)))
    call = _call(*rest)
    return empty_results(input, weight, call.dtype, route.empty_fake) + _updated(input, call)


def _head_meta(*arguments):
    made = _head_kept_meta(*arguments)
    return made[:1] + made[4:]


def _head_backward(upstream, *arguments):
    return route.all_results(upstream, head_call.gradients(upstream, *arguments))


def _head_backward_meta(upstream, output, product, mean, rstd, input, weight, bias, gamma, beta, scale, training, needs,
                        exact_fp32=False):
    return route.all_results(upstream, empty_gradients(upstream, input, weight, bias, gamma, beta, scale, needs,
                                                       route.empty_fake))


class TracedHead(Head):
    """(output, product, updated statistics) of onepass::head's arguments."""

    @staticmethod
    def forward(ctx, *arguments):
        output, product, mean, rstd, *updated = torch.ops.onepass.head_kept(*arguments)
        _keep(ctx, *arguments[:6], output, product, mean, rstd)
        ctx.training, ctx.eps, ctx.exact_fp32 = arguments[9], arguments[11], len(arguments) > 13 and arguments[13]
        ctx.mark_non_differentiable(*updated)
        return (output, product, *updated)


def _transformed(*arguments):
    """The operator in PyTorch's operations, in the type the library computes in: for a derivative of torch.func's in a
    compiled graph, which autograd's functions inside of an operator cannot give."""
    call = _call(*arguments[6:])
    prepared_weights.refuse_in_torch("head", call.prepared)
    computed = route.computed_dtype(arguments[0])
    state = call.running_mean, call.running_var
    input, weight, bias, gamma, beta, scale, mean, var = [
        None if tensor is None else tensor.to(computed) for tensor in arguments[:6] + state]
    with route.no_autocast(input):
        output = _composite(input, weight, bias, mean, var, gamma, beta, scale, call.training, call.momentum, call.eps,
                            call.batches_tracked)
    updated = [made if made is None else made.to(tensor.dtype) for made, tensor in zip((mean, var), state)]
    return (output.to(call.dtype),) + _updated(input, call._replace(running_mean=updated[0], running_var=updated[1]))


def _head_autograd(*arguments):
    if route.wants_gradients(*arguments[:6]):
        if route.transforms():
            return _transformed(*arguments)
        output, product, *updated = TracedHead.apply(*arguments)
        return (output, *updated)
    with route.below_autograd():
        return torch.ops.onepass.head(*arguments)


if route.HAS_TRACED:
    _ARGUMENTS = ("Tensor input, Tensor weight, Tensor? bias, Tensor? gamma, Tensor? beta, Tensor? scale, "
                  "Tensor? running_mean, Tensor? running_var, Tensor? batches_tracked, bool training, float? momentum, "
                  "float eps, ScalarType dtype, bool exact_fp32=False, Tensor? prepared=None")
    route.define("head(%s) -> (Tensor, Tensor, Tensor, Tensor)" % _ARGUMENTS, _head, _head_meta, _head_autograd)
    route.define("head_kept(%s) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)" % _ARGUMENTS, _head_kept,
                 _head_kept_meta)
    route.define("head_backward(Tensor upstream, Tensor output, Tensor product, Tensor mean, Tensor rstd, "
                 "Tensor? input, Tensor? weight, Tensor? bias, Tensor? gamma, Tensor? beta, Tensor? scale, "
                 "bool training, bool[6] needs, bool exact_fp32=False) -> "
                 "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)", _head_backward, _head_backward_meta)


def _traced(input, weight, bias, gamma, beta, scale, call):
    """onepass::head writes to nothing: updated running statistics are results of its own, copied where they belong in
    the graph. While PyTorch records, onepass::head_kept takes its place."""
    state = call.running_mean, call.running_var, call.batches_tracked
    output, *updated = torch.ops.onepass.head(input, weight, bias, gamma, beta, scale, *state, call.training,
                                              call.momentum, call.eps, call.dtype, call.exact_fp32, call.prepared)
    if call.training:
        for tensor, made in zip(state, updated):
            if tensor is not None:
                tensor.copy_(made)
    return output


# ---- PyTorch's operations --------------------------------------------------------------------------------------------


def _composite(input, weight, bias, running_mean, running_var, gamma, beta, scale, training, momentum, eps,
               num_batches_tracked):
    """linear_batch_norm_softmax in PyTorch's operations, which decide what is allowed, and raise the errors."""
    y = F.linear(input, weight, bias)
    if y.dim() not in (2, 3):
        raise ValueError("expected 2D or 3D input (got %dD input)" % y.dim())
    counts = training and num_batches_tracked is not None
    if counts:
        num_batches_tracked.add_(1)
    if momentum is None and counts and running_mean is not None:
        z = _cumulative(y, running_mean, running_var, gamma, beta, eps, num_batches_tracked)
    else:
        factor = 0.0 if momentum is None else momentum
        z = F.batch_norm(y, running_mean, running_var, gamma, beta, training, factor, eps)
    return torch.softmax(z if scale is None else scale * z, 1)


def _cumulative(y, running_mean, running_var, gamma, beta, eps, count):
    """batch_norm with the cumulative average of the statistics, and no number read by the host: with momentum 1 PyTorch
    gives those of the batch (of an empty one, those that were)."""
    mean, var = running_mean.clone(), running_var.clone()
    z = F.batch_norm(y, mean, var, gamma, beta, True, 1.0, eps)
    with torch.no_grad():
        factor = count.to(running_mean.dtype).reciprocal()
        running_mean.add_((mean - running_mean) * factor)
        running_var.add_((var - running_var) * factor)
    return z


# ---- the function ----------------------------------------------------------------------------------------------------

_INFINITY = float("inf")  # compared with: torch.compile does not follow math.isfinite of a number that varies

# Before that, autocast on the CPU gave batch_norm and softmax float32.
_CPU_AUTOCAST_KEEPS_HALF = route.VERSION >= (1, 12)


def _is_scale(tensor, features):
    """True of one element or one per feature, with at most a dimension of 1 before it."""
    dimensions = tensor.dim()
    if dimensions == 0:
        return True
    last = tensor.shape[-1]
    return (dimensions == 1 or (dimensions == 2 and tensor.shape[0] == 1)) and (last == 1 or last == features)


def _fits(input, weight, bias, running_mean, running_var, gamma, beta, scale, training, momentum, eps, count, autocast,
          synchronised):
    """True for what the library computes as PyTorch would."""
    dtype = input.dtype
    if input.dim() != 2 or weight.dim() != 2 or input.shape[1] != weight.shape[1]:
        return False
    if dtype not in route.FLOATS or weight.dtype is not dtype:
        return False
    # One type for the product, but for a bias that autocast would cast; normalisation may have float32 beside halves.
    feature = weight.shape[:1]
    if bias is not None and (bias.shape != feature or not (bias.dtype is dtype or (
            autocast and bias.dtype in route.FLOATS[:3]))):
        return False
    beside = torch.float32 if dtype in route.HALF else dtype
    for parameter in (running_mean, running_var, gamma, beta):
        if parameter is not None and (parameter.shape != feature or not (
                parameter.dtype is dtype or parameter.dtype is beside)):
            return False
    if scale is not None and not (scale.dtype in route.FLOATS and _is_scale(scale, feature[0])):
        return False
    if (running_mean is None) != (running_var is None) or not 0 <= eps < _INFINITY:
        return False
    if not training:
        return running_mean is not None
    # PyTorch has its own words for a batch of 1, which a rank of several may have.
    return ((synchronised or input.shape[0] != 1)
            and (count is None or (count.dtype is torch.int64 and tuple(count.shape) in ((), (1,))))
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
                              eps, num_batches_tracked=None, *, exact_fp32=False, prepared=None, process_group=None):
    """softmax(scale * batch_norm(linear(input, weight, bias), ...), dim=1) as one operator.

    input [B, K], weight [N, K], bias [N] or None
    running_mean, running_var   [N] or both None: updated in place if training, normalised with if not
    gamma, beta                 batch_norm's weight and bias, [N] or None
    scale                       a tensor of one element, or of one per feature; a number; None: 1
    training                    normalise with the statistics of the batch
    momentum                    None: cumulative average, by num_batches_tracked, which no host reads
    eps                         added to the variance
    num_batches_tracked         int64: incremented in place if training; None: nobody counts
    exact_fp32                  float32 on CUDA, gradients included, without tensor cores: cuBLAS's own float32
    prepared                    prepare_weight(weight), as in linear
    process_group               of torch.distributed: batch statistics, if training, are those of all its processes, as
                                torch.nn.SyncBatchNorm defines them. Every one of them makes the call, and calls
                                backward; each has rows of its own, any number of them. None: of this process

    Gradients to input, weight, bias, gamma, beta and scale, of any order; that to the bias is exactly 0 with statistics
    of the batch, where adding a constant to a feature changes nothing. Everything up to the output is computed in
    float32 (float64 if the input is), half types and autocast included. The output's dtype is that of PyTorch's chain.
    """
    tensors = (input, weight, bias, running_mean, running_var, gamma, beta, scale, num_batches_tracked)
    if route.has_torch_function(tensors):
        return handle_torch_function(linear_batch_norm_softmax, tensors, input, weight, bias, running_mean, running_var,
                                     gamma, beta, scale, training, momentum, eps,
                                     num_batches_tracked=num_batches_tracked, exact_fp32=exact_fp32,
                                     **prepared_weights.keyword(prepared), **head_sync.keyword(process_group))
    planes = prepared_weights.planes_of("head", prepared)
    options = (training, momentum, eps, num_batches_tracked)
    is_number = type(scale) in (float, int)
    synchronised = training and process_group is not None and head_sync.size_of(process_group) > 1
    if is_number:
        tensors = tensors[:7] + tensors[8:]
    way = route.way(tensors)
    if way != route.TRANSFORMED:
        x, w = input, weight
        autocast = route.autocasts(input)
        if autocast and input.dtype in route.FLOATS[:3] and weight.dtype in route.FLOATS[:3]:
            dtype = route.autocast_dtype(input)
            x, w = input.to(dtype), weight.to(dtype)
        factor = x.new_full((), scale, dtype=route.computed_dtype(x)) if is_number else scale
        if not _fits(x, w, bias, running_mean, running_var, gamma, beta, factor, *options, autocast, synchronised):
            way = route.TRANSFORMED
    if synchronised and route.is_compiling():
        return _not_compiled(input, weight, bias, running_mean, running_var, gamma, beta, scale, *options,
                             exact_fp32=exact_fp32, prepared=prepared, process_group=process_group)
    if synchronised and (way != route.EAGER or input.is_cuda):
        prepared_weights.refuse_in_torch("head", planes)
        return head_sync.in_torch(input, weight, bias, running_mean, running_var, gamma, beta, scale, momentum, eps,
                                  num_batches_tracked, process_group)
    if way == route.TRANSFORMED:
        prepared_weights.refuse_in_torch("head", planes)
        return _composite(input, weight, bias, running_mean, running_var, gamma, beta, scale, *options)
    if momentum is None and (num_batches_tracked is None or running_mean is None):
        momentum = 0.0  # as nn.BatchNorm1d, which then updates nothing
    call = Call(training, momentum, eps, running_mean, running_var, num_batches_tracked if training else None,
                _output_dtype(x, factor, autocast), exact_fp32, planes)
    if synchronised:
        return head_sync.in_library(x, w, bias, gamma, beta, factor, call, process_group)
    if way == route.TRACED:
        return _traced(x, w, bias, gamma, beta, factor, call)
    if route.wants_gradients(x, w, bias, gamma, beta, factor):
        return Head.apply(x, w, bias, gamma, beta, factor, call)[0]
    return head_call.forward(x, w, bias, gamma, beta, factor, call, False)[0]


def _not_compiled(*arguments, **named):
    """A graph ends here: collectives are not part of it."""
    return torch.compiler.disable(linear_batch_norm_softmax)(*arguments, **named)


_not_compiled._torchdynamo_disable = True  # as torch.compiler.disable does, which imports the whole compiler
