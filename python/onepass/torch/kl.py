"""kl_div with torch.nn.functional's signature and behaviour, and kl_div_probs, which takes probabilities.

Here arguments are read: reductions, broadcasting, promotion, autocast, the warning of 'mean'. The work is done by
kl_eager.py or, where PyTorch must see it, by kl_traced.py.
"""

import warnings

import torch
from torch.nn import _reduction
from torch.overrides import handle_torch_function, has_torch_function

from onepass import errors, library
from onepass.torch import eager, kl_calls, kl_eager

if eager.HAS_TRACED:
    from onepass.torch import kl_traced

_HALF = (torch.float16, torch.bfloat16)

# Without a divisor of the caller's own: made once, by (form, reduction, semantics).
_CALLS = {(form, reduction, semantics): kl_calls.Call(form, number, rule, 0.0, None)
          for form in range(4)
          for reduction, number in library.REDUCTIONS.items()
          for semantics, rule in library.SEMANTICS.items()}


def _call(form, reduction, semantics, divisor):
    if divisor is None:
        try:
            return _CALLS[form, reduction, semantics]
        except (KeyError, TypeError):
            pass  # what follows says which of them is wrong
    number, divisor = library.reduction_of(reduction, divisor)
    return kl_calls.Call(form, number, library.option("semantics", semantics, library.SEMANTICS), divisor, None)


def _check(name, tensor):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError("kl_div: %s: %s; it must be a torch.Tensor" % (name, type(tensor).__name__))
    if not tensor.is_floating_point():
        raise errors.Unsupported("kl_div: %s: dtype %s; it must be floating point: integers and complex numbers are "
                                 "not supported" % (name, tensor.dtype))


def _check_rows(row_weights, row_mask):
    if row_weights is not None:
        _check("row_weights", row_weights)
        if row_weights.requires_grad and torch.is_grad_enabled():
            raise errors.Unsupported("kl_div: row_weights: requires_grad; there is no gradient to the weights")
    if row_mask is not None and not isinstance(row_mask, torch.Tensor):
        raise TypeError("kl_div: row_mask: %s; it must be a torch.Tensor" % type(row_mask).__name__)


def _broadcast(predictions, targets, call):
    """(predictions, targets, call, what to divide by afterwards). As PyTorch does it: the batch is the input's own,
    whatever it is broadcast to, and a tensor without dimensions takes the other's type."""
    over = 1
    if call.reduction == kl_calls.BATCHMEAN:
        batch = predictions.shape[0] if predictions.dim() else 1
        if eager.is_compiling():  # a size that varies must not become a constant of the operator
            call, over = call._replace(reduction=kl_calls.SUM), batch
        elif batch == 0:  # 0 / 0, which is what the mean gives
            call = call._replace(reduction=kl_calls.MEAN)
        else:
            call = call._replace(reduction=kl_calls.DIVISOR, divisor=float(batch))
    predictions, targets = torch.broadcast_tensors(
        predictions if predictions.dim() else predictions.to(targets.dtype),
        targets if targets.dim() else targets.to(predictions.dtype))
    return predictions, targets, call, over


def _kl(form, predictions, targets, reduction, divisor, row_weights, row_mask, semantics):
    _check("input", predictions)
    _check("target", targets)
    call = _call(form, reduction, semantics, divisor)
    if row_weights is not None or row_mask is not None:
        _check_rows(row_weights, row_mask)
    over = 1
    if predictions.shape != targets.shape:
        predictions, targets, call, over = _broadcast(predictions, targets, call)
    if (predictions.dtype in _HALF or targets.dtype in _HALF) and eager.autocasts(predictions):
        call = call._replace(dtype=torch.promote_types(kl_calls.value_dtype(call, predictions, targets),
                                                       torch.float32))
    if eager.is_plain(predictions, targets):
        return kl_eager.kl(predictions, targets, row_weights, row_mask, call)
    value = kl_traced.kl(predictions, targets, row_weights, row_mask, call)
    return value if over == 1 else value / over


def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False, *, divisor=None,
           row_weights=None, row_mask=None, semantics="strict"):
    """torch.nn.functional.kl_div, in one pass: KL(target || exp(input)).

    input         log-probabilities (kl_div_probs takes probabilities)
    target        probabilities, or with log_target their logarithms
    size_average, reduce   as in PyTorch: if one is given, it overrides reduction
    reduction     'none', 'mean' (over all elements, with PyTorch's warning), 'batchmean' (over the first dimension),
                  'sum', and besides PyTorch's: 'rows', one value a row, the last dimension summed

    Keywords that PyTorch does not have:
    divisor       with 'sum': a number that divides it (valid tokens, say)
    row_weights   one number a row (the shape without the last dimension) that multiplies it; no gradient to it
    row_mask      bool or uint8, one a row: a row where it is 0 counts 0 and is never read. Neither changes a divisor
    semantics     'strict': special values as in PyTorch; 'finite': the limits, 0 where target and prediction are 0

    Gradients to input and target, of any order. Shapes broadcast as in PyTorch; row_weights and row_mask then have the
    broadcast shape without its last dimension. Half types are computed in float32.
    """
    # So a symbolic trace of somebody's model keeps the call whole: traced through, it would lose its gradients.
    if has_torch_function((input, target)):
        return handle_torch_function(kl_div, (input, target), input, target, size_average=size_average, reduce=reduce,
                                     reduction=reduction, log_target=log_target, divisor=divisor,
                                     row_weights=row_weights, row_mask=row_mask, semantics=semantics)
    form = library.LOG_PREDICTIONS | (library.LOG_TARGETS if log_target else 0)
    if size_average is not None or reduce is not None:
        legacy = _reduction.legacy_get_string(size_average, reduce)
        loss = _kl(form, input, target, legacy, divisor, row_weights, row_mask, semantics)
        return loss / input.shape[0] if reduction == "batchmean" and input.dim() else loss
    if reduction == "mean" and not eager.is_compiling():
        warnings.warn("reduction: 'mean' divides the total loss by both the batch size and the support size. "
                      "The divergence of a batch is 'batchmean', which PyTorch says 'mean' will become.", stacklevel=2)
    return _kl(form, input, target, reduction, divisor, row_weights, row_mask, semantics)


def kl_div_probs(predictions, targets, reduction="batchmean", log_target=False, *, divisor=None, row_weights=None,
                 row_mask=None, semantics="strict"):
    """kl_div(log(predictions), targets) without the logarithm's tensor, its gradient's, and its rounding.

    predictions   probabilities; the gradient is to them
    The rest is as in kl_div; 'mean' does not warn: here nobody expects anything of it yet.
    """
    if has_torch_function((predictions, targets)):
        return handle_torch_function(kl_div_probs, (predictions, targets), predictions, targets, reduction=reduction,
                                     log_target=log_target, divisor=divisor, row_weights=row_weights,
                                     row_mask=row_mask, semantics=semantics)
    form = library.LOG_TARGETS if log_target else 0
    return _kl(form, predictions, targets, reduction, divisor, row_weights, row_mask, semantics)
