"""torch.ops.onepass of losses over the processes of a group: what losses_shards.py calls in a compiled graph.

    shard_loss, shard_token_log_probs     a whole call, its exchanges included; statistics besides
    their _backward                       the gradient of this rank's classes, from the statistics
    shard_failure                         tells the group of a call that could not be made a part of the graph

Those with exchanges take `order`, which says nothing, and return one as their last result: see losses_shards.py.
Statistics have [*leading, F] numbers, F known without numbers; `place` is (first column, columns in all).
"""

import torch
import torch.distributed as dist

from onepass import errors
from onepass.torch import losses_call, losses_reference, losses_shards, losses_tokens, route
from onepass.torch.losses_call import Call, Inputs

_TENSORS, _FIELDS = len(Inputs._fields), len(Call._fields)
_OUTPUTS = len(losses_reference.OUTPUTS)

# As which an error of a call is raised, by the name of its type; others are RuntimeErrors.
_RAISED = {kind.__name__: kind for kind in (errors.InvalidArgument, errors.Unsupported, TypeError, ValueError,
                                            IndexError)}


def _entry(group_name):
    return losses_shards.Entry(dist.distributed_c10d._resolve_process_group(group_name))


def _told(entry, make, *arguments):
    """make(*arguments); if it fails before the ranks have agreed, they are told."""
    try:
        return make(*arguments)
    except Exception:
        entry.tell_of_failure()
        raise


def _as_tensors(shard, order):
    """(statistics, place, order) as an operator returns them"""
    return shard[0], torch.tensor(shard[1:]), order.clone()


def _empty_statistics(tensor, sides, count, order):
    """The same without their numbers."""
    width = 9 + 3 * sides + 3 * count
    return (tensor.new_empty(tensor.shape[:-1] + (width,), dtype=torch.float64), tensor.new_empty(2, dtype=torch.int64),
            torch.empty_like(order))


def _refuse_transforms(name):
    if route.transforms():
        raise errors.Unsupported("%s: process_group: given under a transformation; call it eagerly" % name)


# ---- losses ----------------------------------------------------------------------------------------------------------


def _split(arguments):
    return Inputs(*arguments[:_TENSORS]), Call(*arguments[_TENSORS:_TENSORS + _FIELDS]), arguments[_TENSORS + _FIELDS:]


def _loss_kernel(order, *arguments):
    inputs, call, (name, group_name) = _split(arguments)
    entry = _entry(group_name)
    shard = _told(entry, losses_shards.loss_statistics, name, call, inputs, entry)
    value, outputs = losses_call.empty_results(call, inputs)
    losses_shards.run_loss(call, inputs, shard, value, (None, None), outputs)
    return route.all_results(inputs.predictions, (value,) + outputs) + _as_tensors(shard, order)


def _loss_meta(order, *arguments):
    inputs, call, _ = _split(arguments)
    value, outputs = losses_call.fake_results(call, inputs)
    return route.all_results(inputs.predictions, (value,) + outputs) + _empty_statistics(
        inputs.predictions, 1 if inputs.targets is None else 3, 0 if inputs.labels is None else 1, order)


def _gradients_kernel(upstream, *arguments):
    inputs, call, (statistics, place, *needs) = _split(arguments)
    made = losses_call.empty_gradients(inputs, needs)
    losses_shards.run_loss(call, inputs, (statistics, *place.tolist()), None, made, upstream=upstream)
    return route.all_results(upstream, made)


def _gradients_meta(upstream, *arguments):
    inputs, _, (_, _, *needs) = _split(arguments)
    return route.all_results(upstream, losses_call.empty_gradients(inputs, needs))


class TracedShardLoss(torch.autograd.Function):
    """shard_loss(call, name, group_name, order, *inputs), which returns all results."""

    @staticmethod
    def forward(ctx, call, name, group_name, order, *tensors):
        ctx.set_materialize_grads(False)
        with route.below_autograd():
            results = torch.ops.onepass.shard_loss(order, *tensors, *call, name, group_name)
        ctx.save_for_backward(*tensors, *results[-3:-1])
        ctx.call = call
        ctx.mark_non_differentiable(*results[1:])
        return tuple(results)

    @staticmethod
    def backward(ctx, upstream, *none):
        if upstream is None:
            return (None,) * (4 + _TENSORS)
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[4:6]
        grads = torch.ops.onepass.shard_loss_backward(upstream, *saved[:_TENSORS], *ctx.call, *saved[_TENSORS:], *needs)
        return (None,) * 4 + tuple(grad if need else None for grad, need in zip(grads, needs)) + (None,) * 5


def _loss_autograd(order, *arguments):
    inputs, call, (name, group_name) = _split(arguments)
    _refuse_transforms(name)
    if route.wants_gradients(inputs.predictions, inputs.targets):
        return TracedShardLoss.apply(call, name, group_name, order, *inputs)
    with route.below_autograd():
        return torch.ops.onepass.shard_loss(order, *arguments)


# ---- token log-probabilities -----------------------------------------------------------------------------------------


def _tokens_kernel(order, logits, indices, row_mask, *arguments):
    call, (name, group_name) = losses_tokens.Call(*arguments[:-2]), arguments[-2:]
    entry, made = _entry(group_name), losses_tokens.empty_results(call, logits, indices)
    shard = _told(entry, losses_shards.tokens_statistics, name, call, logits, indices, row_mask, entry)
    losses_shards.run_tokens(call, logits, indices, row_mask, shard, made)
    return route.all_results(logits, made) + _as_tensors(shard, order)


def _tokens_meta(order, logits, indices, row_mask, *arguments):
    made = losses_tokens.empty_results(losses_tokens.Call(*arguments[:-2]), logits, indices)
    return route.all_results(logits, made) + _empty_statistics(
        logits, 1, 0 if indices is None else indices.shape[-1], order)


def _tokens_gradient_kernel(to_log_prob, to_entropy, to_lse, logits, indices, row_mask, *arguments):
    call, (statistics, place) = losses_tokens.Call(*arguments[:-2]), arguments[-2:]
    return losses_shards.tokens_gradient(call, logits, indices, row_mask, (statistics, *place.tolist()),
                                         (to_log_prob, to_entropy, to_lse))


class TracedShardTokens(torch.autograd.Function):
    """shard_token_log_probs(logits, indices, row_mask, call, name, group_name, order), which returns all results."""

    @staticmethod
    def forward(ctx, logits, indices, row_mask, call, name, group_name, order):
        ctx.set_materialize_grads(False)
        with route.below_autograd():
            results = torch.ops.onepass.shard_token_log_probs(order, logits, indices, row_mask, *call, name, group_name)
        ctx.save_for_backward(logits, indices, row_mask, *results[-3:-1])
        ctx.call = call
        ctx.mark_non_differentiable(*results[-3:])
        return tuple(results)

    @staticmethod
    def backward(ctx, *upstream):
        logits, indices, row_mask, statistics, place = ctx.saved_tensors
        call = ctx.call
        upstream = tuple(grad if asked else None
                         for grad, asked in zip(upstream, (indices is not None, call.entropy, call.lse)))
        made = None
        if any(grad is not None for grad in upstream):
            made = torch.ops.onepass.shard_token_log_probs_backward(*upstream, logits, indices, row_mask, *call,
                                                                    statistics, place)
        return (made,) + (None,) * 6


def _tokens_autograd(order, logits, indices, row_mask, *arguments):
    call, (name, group_name) = losses_tokens.Call(*arguments[:-2]), arguments[-2:]
    _refuse_transforms(name)
    if route.wants_gradients(logits):
        return TracedShardTokens.apply(logits, indices, row_mask, call, name, group_name, order)
    with route.below_autograd():
        return torch.ops.onepass.shard_token_log_probs(order, logits, indices, row_mask, *arguments)


# ---- a call that failed ----------------------------------------------------------------------------------------------


def _failure_kernel(order, kind, message, group_name):
    _entry(group_name).tell_of_failure()
    raise _RAISED.get(kind, RuntimeError)(message)


def _failure_meta(order, kind, message, group_name):
    return order.new_empty(()), torch.empty_like(order)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


def _results(count):
    return ", ".join(["Tensor"] * count)


if losses_shards.HAS_GRAPHS:
    _IN_GROUP, _MERGED = ", str name, str group_name", ", Tensor statistics, Tensor place"
    route.define("shard_loss" + losses_call.SCHEMA % ("Tensor order, ", _IN_GROUP, _results(4 + _OUTPUTS)),
                 _loss_kernel, _loss_meta, _loss_autograd)
    route.define("shard_loss_backward" + losses_call.SCHEMA % (
        "Tensor upstream, ", _MERGED + losses_call.NEEDS, _results(2)), _gradients_kernel, _gradients_meta)
    _SCHEMA = "(%sTensor logits, Tensor? indices, Tensor? row_mask, " + losses_tokens.SCHEMA_OF_CALL + "%s) -> (%s)"
    route.define("shard_token_log_probs" + _SCHEMA % ("Tensor order, ", _IN_GROUP, _results(6)),
                 _tokens_kernel, _tokens_meta, _tokens_autograd)
    route.define("shard_token_log_probs_backward" + _SCHEMA % (
        "Tensor? to_log_prob, Tensor? to_entropy, Tensor? to_lse, ", _MERGED, "Tensor"), _tokens_gradient_kernel,
        lambda to_log_prob, to_entropy, to_lse, logits, *rest: torch.empty_like(logits))
    route.define("shard_failure(Tensor order, str kind, str message, str group_name) -> (Tensor, Tensor)",
                 _failure_kernel, _failure_meta)
