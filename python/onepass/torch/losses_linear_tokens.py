"""linear_token_log_probs: token_log_probs of input weight^T + bias, which the library makes in chunks of rows, so that
the logits are never there as a whole.

Which way a call goes is route.py's answer; there are kernels for the CPU, elsewhere PyTorch's operations do it, with
all logits. A forward makes nothing for a gradient; backward makes the logits again, chunk by chunk, from the upstream
gradients of all results at once.
"""

from collections import namedtuple

import torch
from torch.overrides import handle_torch_function, has_torch_function

from onepass import library
from onepass.torch import (losses_call, losses_linear, losses_reference, losses_shards, losses_shards_linear,
                           losses_tokens, route)
from onepass.torch.linear import autocast

Call = namedtuple("Call", losses_tokens.Call._fields + ("chunk_bytes",))

# Tensors; input and weight are given. The first three have gradients.
Inputs = namedtuple("Inputs", "input weight bias indices row_mask")

_NAME = "linear_token_log_probs"
_TENSORS = len(Inputs._fields)

# ---- the library -----------------------------------------------------------------------------------------------------


def _empty(call, inputs):
    """(log_prob, entropy, lse) without their numbers, None where not asked for."""
    input, dtype = inputs.input, losses_reference.value_dtype(inputs.input, inputs.weight)
    shape = input.shape[:-1]
    return (None if inputs.indices is None else input.new_empty(inputs.indices.shape, dtype=dtype),
            input.new_empty(shape, dtype=dtype) if call.entropy else None,
            input.new_empty(shape, dtype=dtype) if call.lse else None)


def _numbers(call, input):
    return (call.semantics, call.temperature, call.softcap, call.columns, 1, call.ignore_index, call.chunk_bytes,
            route.products(input), route.threads(), losses_linear.workspace)


def _forward(call, inputs):
    made = _empty(call, inputs)
    library.call(library.LINEAR_TOKEN_LOG_PROBS, inputs.input, inputs.indices, inputs.row_mask, *made, inputs.weight,
                 inputs.bias, *_numbers(call, inputs.input))
    return made


def _empty_gradients(inputs, needs):
    return tuple(torch.empty_like(tensor) if need else None for tensor, need in zip(inputs[:3], needs))


def _gradients(call, inputs, upstream, needs):
    """To input, weight and bias, None where not needed. upstream: of log_prob, entropy and lse, None for 0."""
    made = _empty_gradients(inputs, needs)
    library.call(library.LINEAR_TOKEN_LOG_PROBS_BACKWARD, inputs.input, inputs.indices, inputs.row_mask, *upstream,
                 made[0], inputs.weight, inputs.bias, *made[1:], *_numbers(call, inputs.input))
    return made


# ---- PyTorch's operations --------------------------------------------------------------------------------------------


def reference(call, inputs):
    """(log_prob, entropy, lse) in PyTorch's own operations, None where not asked for. Logits of half types are float32
    where the library's are, and elsewhere what PyTorch makes them."""
    dtype = torch.promote_types(inputs.input.dtype, inputs.weight.dtype)
    if losses_call.is_served(inputs.input) and not inputs.input.is_cuda:
        dtype = losses_reference.value_dtype(inputs.input, inputs.weight)
    part = losses_reference.taking_part(call, None, inputs.row_mask)
    logits = losses_linear.logits_of(inputs[:3], part, dtype)
    return losses_reference.token_log_probs(losses_tokens.Call(*call[:-1]), logits, inputs.indices, inputs.row_mask)


def _gradients_in_torch(call, inputs, upstream, needs):
    """The gradients as something to differentiate again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        pairs = [(result, grad) for result, grad in zip(reference(call, inputs), upstream) if grad is not None]
        wanted = [tensor for tensor, need in zip(inputs[:3], needs) if need]
        made = iter(torch.autograd.grad([result for result, _ in pairs], wanted, [grad for _, grad in pairs],
                                        create_graph=again))
    return tuple(next(made) if need else None for need in needs)


# ---- autograd --------------------------------------------------------------------------------------------------------


def _asked(call, inputs):
    return inputs.indices is not None, call.entropy, call.lse


def _backward(call, inputs, upstream, needs):
    grads = [grad for grad in upstream if grad is not None]
    if not grads:
        return (None,) * 3
    how = route.TRANSFORMED
    if not torch.is_grad_enabled() and not any(map(route.is_batched, grads)):
        how = route.way(inputs + tuple(upstream))
    if how == route.EAGER:
        return _gradients(call, inputs, upstream, needs)
    if how == route.TRACED:
        made = torch.ops.onepass.linear_token_log_probs_backward(*upstream, *inputs, *call, *needs)
        return tuple(grad if need else None for grad, need in zip(made, needs))
    return _gradients_in_torch(call, inputs, upstream, needs)


class LinearTokenLogProbs(torch.autograd.Function):
    """linear_token_log_probs(call, *inputs) -> those asked for of log_prob, entropy, lse"""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(result for result in _forward(call, Inputs(*tensors)) if result is not None)

    @staticmethod
    def backward(ctx, *upstream):
        inputs, given = Inputs(*ctx.saved_tensors), iter(upstream)
        upstream = tuple(next(given) if asked else None for asked in _asked(ctx.call, inputs))
        return (None,) + _backward(ctx.call, inputs, upstream, ctx.needs_input_grad[1:4]) + (None, None)


class TracedLinearTokenLogProbs(torch.autograd.Function):
    """The same, of the operator, which returns all three."""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        with route.below_autograd():
            return torch.ops.onepass.linear_token_log_probs(*tensors, *call)

    @staticmethod
    def backward(ctx, *upstream):
        inputs = Inputs(*ctx.saved_tensors)
        upstream = tuple(grad if asked else None for grad, asked in zip(upstream, _asked(ctx.call, inputs)))
        return (None,) + _backward(ctx.call, inputs, upstream, ctx.needs_input_grad[1:4]) + (None, None)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


def _split(arguments):
    return Call(*arguments[_TENSORS:_TENSORS + len(Call._fields)]), Inputs(*arguments[:_TENSORS])


def _kernel(*arguments):
    call, inputs = _split(arguments)
    return route.all_results(inputs.input, _forward(call, inputs))


def _meta(*arguments):
    call, inputs = _split(arguments)
    return route.all_results(inputs.input, _empty(call, inputs))


def _autograd(*arguments):
    call, inputs = _split(arguments)
    if not route.wants_gradients(*inputs[:3]):
        with route.below_autograd():
            return torch.ops.onepass.linear_token_log_probs(*arguments)
    if route.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
        return route.all_results(inputs.input, reference(call, inputs))
    return TracedLinearTokenLogProbs.apply(call, *inputs)


def _backward_kernel(to_log_prob, to_entropy, to_lse, *arguments):
    call, inputs = _split(arguments)
    made = _gradients(call, inputs, (to_log_prob, to_entropy, to_lse), arguments[-3:])
    return route.all_results(inputs.input, made)


def _backward_meta(to_log_prob, to_entropy, to_lse, *arguments):
    inputs = _split(arguments)[1]
    return route.all_results(inputs.input, _empty_gradients(inputs, arguments[-3:]))


if route.HAS_TRACED:
    _SCHEMA = ("(%sTensor input, Tensor weight, Tensor? bias, Tensor? indices, Tensor? row_mask, int semantics, "
               "float temperature, float softcap, int columns, int ignore_index, bool wants_entropy, bool wants_lse, "
               "int chunk_bytes%s) -> (Tensor, Tensor, Tensor)")
    route.define("linear_token_log_probs" + _SCHEMA % ("", ""), _kernel, _meta, _autograd)
    route.define("linear_token_log_probs_backward" + _SCHEMA % (
        "Tensor? to_log_prob, Tensor? to_entropy, Tensor? to_lse, ", ", bool to_input, bool to_weight, bool to_bias"),
                 _backward_kernel, _backward_meta)


# ---- the function ----------------------------------------------------------------------------------------------------


def linear_token_log_probs(input, linear_weight, indices, temperature=1.0, *, linear_bias=None, softcap=None,
                           columns=None, ignore_index=-100, row_mask=None, semantics="strict", return_entropy=False,
                           return_lse=False, chunk_bytes=None, process_group=None):
    """token_log_probs of input linear_weight^T + linear_bias, without all of these logits at once.

    input           hidden states [..., K]
    linear_weight   [C, K]; linear_bias [C]
    chunk_bytes     as in linear_cross_entropy
    process_group   as in linear_cross_entropy

    The other arguments, and what is returned, are those of token_log_probs. Log-probabilities are float32, or float64
    if an input is; logits of half types are float32 on the CPU, and have that type on a GPU. Gradients to input,
    linear_weight and linear_bias, each made only if it is needed, of any order, from those of all results; the logits
    are made again for them. Those of higher order, and devices without kernels, take all logits at once. Rows that are
    masked are never read, and cost nothing on the CPU.
    """
    if process_group is not None and not isinstance(process_group, losses_shards.Entry):
        return losses_shards.entered(process_group, linear_token_log_probs, locals())
    tensors = input, linear_weight, indices, linear_bias
    if has_torch_function(tensors):
        return handle_torch_function(linear_token_log_probs, tensors, input, linear_weight, indices,
                                     temperature=temperature, linear_bias=linear_bias, softcap=softcap,
                                     columns=columns, ignore_index=ignore_index, row_mask=row_mask,
                                     semantics=semantics, return_entropy=return_entropy, return_lse=return_lse,
                                     chunk_bytes=chunk_bytes, process_group=process_group)
    losses_linear.check_side(_NAME, ("input", "linear_weight", "linear_bias"), input, linear_weight, linear_bias)
    losses_linear.check_matrix(_NAME, "linear_weight", linear_weight)
    chunk_bytes = losses_linear.check_chunk_bytes(_NAME, chunk_bytes)
    call, indices, is_single = losses_tokens.read(_NAME, input, "input", linear_weight.shape[0], indices, temperature,
                                                  softcap, columns, ignore_index, row_mask, semantics, return_entropy,
                                                  return_lse, process_group)
    if route.autocasts(input):
        input, linear_weight, linear_bias = autocast(input, linear_weight, linear_bias)
    inputs = Inputs(input, linear_weight, linear_bias, indices, row_mask)
    if process_group is not None:
        made = losses_shards_linear.token_log_probs(_NAME, Call(*call, chunk_bytes), inputs, process_group)
        return losses_tokens.returned(made, is_single, call)
    return losses_tokens.returned(_call(Call(*call, chunk_bytes), inputs), is_single, call)


def _call(call, inputs):
    """(log_prob, entropy, lse), None where not asked for."""
    how = route.way(inputs) if losses_call.is_served(inputs.input) else route.TRANSFORMED
    if how == route.TRANSFORMED:
        return reference(call, inputs)
    asked = _asked(call, inputs)
    if how == route.TRACED:
        made = torch.ops.onepass.linear_token_log_probs(*inputs, *call)
        return [result if wanted else None for result, wanted in zip(made, asked)]
    if not route.wants_gradients(*inputs[:3]):
        return _forward(call, inputs)
    made = iter(LinearTokenLogProbs.apply(call, *inputs))
    return [next(made) if wanted else None for wanted in asked]
