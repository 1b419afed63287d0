"""Autograd for plain eager calls: straight to the library, without the dispatcher.

Forward makes the gradients in the same pass as the value, for the upstream gradient it expects: the one the last
backward on this device and stream came with (a weighted loss, a gradient scaler and gradient accumulation give the same
one step after step), at first 1. Backward has the library compare the two where they are, so that the host neither
reads nor waits; if they are equal nothing is left to do. Otherwise, and in every further backward through the same
graph, the gradients are made from the inputs. What is expected changes the time a step takes, never its bits.

Gradients of small tensors are left to backward: reading those again costs less than keeping them.

Made gradients are handed over once and then forgotten here: autograd may make them somebody's .grad.
"""

import torch

from onepass.torch import eager, kl_calls, kl_derivatives
from onepass.torch.kl_calls import NONE, ROWS

if eager.HAS_TRACED:
    from onepass.torch import kl_traced

_SMALL = 8192  # elements

# {place: upstream gradient}. A copy, never written again: the caller may change his own between forward and backward.
_expected = {}


def _expect(tensor):
    place = eager.place_of(tensor)
    found = _expected.get(place)
    if found is None:
        found = torch.ones((), device=tensor.device)
        if place is not None:
            _expected[place] = found
    return found


def _came(upstream):
    place = eager.place_of(upstream)
    if place is not None:
        _expected[place] = upstream.clone()


class KL(torch.autograd.Function):
    """kl(predictions, targets), of one Call."""

    @staticmethod
    def forward(ctx, predictions, targets, row_weights, row_mask, call):
        ctx.save_for_backward(predictions, targets, row_weights, row_mask)
        ctx.call = call
        if call.reduction == ROWS or call.reduction == NONE or predictions.numel() <= _SMALL:
            return kl_calls.value(call, predictions, targets, row_weights, row_mask)
        upstream = _expect(predictions)
        value, grad_predictions, grad_targets = kl_calls.value_and_gradients(
            call, predictions, targets, row_weights, row_mask, upstream, ctx.needs_input_grad)
        ctx.made = grad_predictions, grad_targets, upstream
        return value

    @staticmethod
    def backward(ctx, upstream):
        predictions, targets, row_weights, row_mask = ctx.saved_tensors
        made = ctx.__dict__.pop("made", None)  # in one step: another thread may be going back through this graph
        needs = ctx.needs_input_grad
        if upstream.is_neg():
            upstream = upstream.resolve_neg()
        if not eager.is_plain(upstream, predictions) or eager.is_batched(upstream):
            grads = kl_traced.gradients(upstream, predictions, targets, row_weights, row_mask, ctx.call, needs)
        elif torch.is_grad_enabled():
            grads = Backward.apply(upstream, predictions, targets, row_weights, row_mask, ctx.call, needs[:2])
        elif made is None:
            grads = kl_calls.gradients(ctx.call, upstream, predictions, targets, row_weights, row_mask, needs)
        else:
            grads = kl_calls.gradients(ctx.call, upstream, predictions, targets, row_weights, row_mask, needs, made[:2],
                                       made[2])
            _came(upstream)
        return grads[0] if needs[0] else None, grads[1] if needs[1] else None, None, None, None


class Backward(torch.autograd.Function):
    """The gradients as something to differentiate again."""

    @staticmethod
    def forward(ctx, upstream, predictions, targets, row_weights, row_mask, call, needs):
        ctx.save_for_backward(upstream, predictions, targets, row_weights, row_mask)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return kl_calls.gradients(call, upstream, predictions, targets, row_weights, row_mask, needs)

    @staticmethod
    def backward(ctx, to_predictions, to_targets):
        upstream, predictions, targets, row_weights, row_mask = ctx.saved_tensors
        grads = kl_derivatives.second_order(ctx.call, upstream, predictions, targets, row_weights, row_mask,
                                            to_predictions, to_targets)
        return grads + (None, None, None, None)


def kl(predictions, targets, row_weights, row_mask, call):
    # The imaginary part of a conjugate is in memory without its sign.
    if predictions.is_neg() or targets.is_neg():
        predictions, targets = predictions.resolve_neg(), targets.resolve_neg()
    if row_weights is not None and row_weights.is_neg():
        row_weights = row_weights.resolve_neg()
    if torch.is_grad_enabled() and (predictions.requires_grad or targets.requires_grad):
        return KL.apply(predictions, targets, row_weights, row_mask, call)
    if not eager.HAS_TRACED and eager.is_tracing():  # a function of autograd's is all that such a trace would keep
        return KL.apply(predictions, targets, row_weights, row_mask, call)
    return kl_calls.value(call, predictions, targets, row_weights, row_mask)
