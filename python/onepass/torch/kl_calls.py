"""KL divergence of plain tensors: outputs allocated, the library called, nothing recorded.

A Call is what the library is asked for besides tensors. Value and gradients are made in one pass when both are asked
for; no other memory is used than theirs (and on CUDA a workspace below 1% of the inputs).
"""

from collections import namedtuple

import torch

from onepass import _native, library
from onepass.torch import eager

# form: library.LOG_PREDICTIONS | library.LOG_TARGETS; reduction, semantics: the library's numbers; divisor: of
# DIVISOR, else 0.0; dtype: of the value, None: the promoted one of the inputs.
Call = namedtuple("Call", "form reduction semantics divisor dtype")

BATCHMEAN, MEAN, SUM, ROWS, NONE, DIVISOR = (_native.BATCHMEAN, _native.MEAN, _native.SUM, _native.ROWS, _native.NONE,
                                             _native.DIVISOR)


def value_dtype(call, predictions, targets):
    if call.dtype is not None:
        return call.dtype
    if predictions.dtype is targets.dtype:
        return predictions.dtype
    return torch.promote_types(predictions.dtype, targets.dtype)


def empty_value(call, predictions, targets, empty_scalar=eager.empty_scalar):
    dtype = value_dtype(call, predictions, targets)
    if call.reduction == NONE:
        return torch.empty_like(predictions, dtype=dtype)
    if call.reduction == ROWS:
        return predictions.new_empty(predictions.shape[:-1], dtype=dtype)
    return empty_scalar(predictions, dtype)


def value(call, predictions, targets, row_weights, row_mask):
    """The value alone."""
    made = empty_value(call, predictions, targets)
    library.kl(call.form, predictions, targets, call.reduction, call.semantics, call.divisor, row_weights, row_mask,
               None, None, made, None, None, eager.threads(), eager.workspace)
    return made


def value_and_gradients(call, predictions, targets, row_weights, row_mask, upstream, needs):
    """(value, gradient to predictions, to targets), the gradients for the upstream gradient that is expected."""
    made = empty_value(call, predictions, targets)
    grad_predictions = torch.empty_like(predictions) if needs[0] else None
    grad_targets = torch.empty_like(targets) if needs[1] else None
    library.kl(call.form, predictions, targets, call.reduction, call.semantics, call.divisor, row_weights, row_mask,
               upstream, None, made, grad_predictions, grad_targets, eager.threads(), eager.workspace)
    return made, grad_predictions, grad_targets


def gradients(call, upstream, predictions, targets, row_weights, row_mask, needs, made=None, made_for=None):
    """The gradients alone: those in `made`, which are left as they are if they were made for this very upstream
    gradient, or new ones."""
    if made is None:
        made = (torch.empty_like(predictions) if needs[0] else None, torch.empty_like(targets) if needs[1] else None)
    library.kl(call.form, predictions, targets, call.reduction, call.semantics, call.divisor, row_weights, row_mask,
               upstream, made_for, None, made[0], made[1], eager.threads(), eager.workspace)
    return made


def divisor_of(call, shape, elements):
    """What the sum over a tensor of this shape is divided by."""
    if call.reduction == BATCHMEAN:
        return shape[0] if len(shape) else 1
    if call.reduction == MEAN:
        return elements
    return call.divisor if call.reduction == DIVISOR else 1
