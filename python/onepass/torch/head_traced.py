"""The head for whoever must see the call: onepass::head, its like that keeps what backward needs, and
onepass::head_backward in PyTorch's dispatcher.

onepass::head is what a graph of a model holds. It writes to nothing: updated running statistics are results of its own,
copied where they belong in the graph. While PyTorch records, onepass::head_kept takes its place.
"""

import torch

from onepass.torch import eager, head_composite, head_eager, matrices, operators, prepared_weights


def _call(running_mean, running_var, batches_tracked, training, momentum, eps, dtype, exact_fp32=False, prepared=None):
    """The Call of an operator, whose last arguments the dispatcher leaves out if they have their defaults. Statistics
    that it updates are copies."""
    state = running_mean, running_var, batches_tracked
    if training:
        state = [None if tensor is None else tensor.clone(memory_format=torch.contiguous_format) for tensor in state]
    return head_eager.Call(training, momentum, eps, *state, dtype, exact_fp32, prepared)


def _updated(input, call):
    """Running statistics and counter as results."""
    state = call.running_mean, call.running_var, call.batches_tracked
    return tuple(operators.not_asked_for(input) if tensor is None or not call.training else tensor for tensor in state)


def _head(input, weight, bias, gamma, beta, scale, *rest):
    call = _call(*rest)
    output = head_eager.forward(input, weight, bias, gamma, beta, scale, call, False)[0]
    return (output,) + _updated(input, call)


def _head_kept(input, weight, bias, gamma, beta, scale, *rest):
    call = _call(*rest)
    return head_eager.forward(input, weight, bias, gamma, beta, scale, call, True) + _updated(input, call)


def _head_kept_meta(input, weight, bias, gamma, beta, scale, *rest):
    torch._check(input.shape[1] == weight.shape[1],
                 lambda: "head: weight: shape %s does not fit input %s; it must have as many columns" %
                 (list(weight.shape), list(input.shape)))
    call = _call(*rest)
    return head_eager.empty_results(input, weight, call.dtype) + _updated(input, call)


def _head_meta(*arguments):
    made = _head_kept_meta(*arguments)
    return made[:1] + made[4:]


def _all(upstream, gradients):
    return tuple(operators.not_asked_for(upstream) if gradient is None else gradient for gradient in gradients)


def _head_backward(upstream, *arguments):
    return _all(upstream, head_eager.gradients(upstream, *arguments))


def _head_backward_meta(upstream, output, product, mean, rstd, input, weight, bias, gamma, beta, scale, training, needs,
                        exact_fp32=False):
    return _all(upstream, head_eager.empty_gradients(upstream, input, weight, bias, gamma, beta, scale, needs))


# ---- autograd --------------------------------------------------------------------------------------------------------


class _Head(head_eager.Head):
    """(output, product, updated statistics) of onepass::head's arguments."""

    @staticmethod
    def forward(ctx, *arguments):
        output, product, mean, rstd, *updated = torch.ops.onepass.head_kept(*arguments)
        head_eager.keep(ctx, *arguments[:6], output, product, mean, rstd)
        ctx.training, ctx.eps, ctx.exact_fp32 = arguments[9], arguments[11], len(arguments) > 13 and arguments[13]
        ctx.mark_non_differentiable(*updated)
        return (output, product, *updated)


def _in_torch(*arguments):
    """In PyTorch's operations, in the type the library computes in: for a derivative of torch.func's in a compiled
    graph, which autograd's functions inside of an operator cannot give."""
    call = _call(*arguments[6:])
    prepared_weights.refuse_in_torch("head", call.prepared)
    computed = matrices.computed_dtype(arguments[0])
    state = call.running_mean, call.running_var
    input, weight, bias, gamma, beta, scale, mean, var = [
        None if tensor is None else tensor.to(computed) for tensor in arguments[:6] + state]
    with matrices.no_autocast(input):
        output = head_composite.head(input, weight, bias, mean, var, gamma, beta, scale, call.training, call.momentum,
                                     call.eps, call.batches_tracked)
    updated = [made if made is None else made.to(tensor.dtype) for made, tensor in zip((mean, var), state)]
    return (output.to(call.dtype),) + _updated(input, call._replace(running_mean=updated[0], running_var=updated[1]))


def _head_autograd(*arguments):
    if matrices.wants_gradients(*arguments[:6]):
        if eager.transforms():
            return _in_torch(*arguments)
        output, product, *updated = _Head.apply(*arguments)
        return (output, *updated)
    with operators.below_autograd():
        return torch.ops.onepass.head(*arguments)


_ARGUMENTS = ("Tensor input, Tensor weight, Tensor? bias, Tensor? gamma, Tensor? beta, Tensor? scale, "
              "Tensor? running_mean, Tensor? running_var, Tensor? batches_tracked, bool training, float? momentum, "
              "float eps, ScalarType dtype, bool exact_fp32=False, Tensor? prepared=None")
operators.define("head(%s) -> (Tensor, Tensor, Tensor, Tensor)" % _ARGUMENTS, _head, _head_meta, _head_autograd)
operators.define("head_kept(%s) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)" % _ARGUMENTS, _head_kept,
                 _head_kept_meta)
operators.define("head_backward(Tensor upstream, Tensor output, Tensor product, Tensor mean, Tensor rstd, "
                 "Tensor? input, Tensor? weight, Tensor? bias, Tensor? gamma, Tensor? beta, Tensor? scale, "
                 "bool training, bool[6] needs, bool exact_fp32=False) -> "
                 "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)", _head_backward, _head_backward_meta)


def head(input, weight, bias, gamma, beta, scale, call):
    state = call.running_mean, call.running_var, call.batches_tracked
    output, *updated = torch.ops.onepass.head(input, weight, bias, gamma, beta, scale, *state, call.training,
                                              call.momentum, call.eps, call.dtype, call.exact_fp32, call.prepared)
    if call.training:
        for tensor, made in zip(state, updated):
            if tensor is not None:
                tensor.copy_(made)
    return output
