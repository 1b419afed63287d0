"""KL divergence for double backward, forward mode and torch.func: value and derivatives as differentiable operations of
PyTorch's, and how vmap sees the arguments.

v(t, p) is one element's value, subscripts its derivatives to what was passed (t or log t, p or log p), s its factor
without the upstream gradient u: row weight, mask and divisor. The library makes v, v_p and v_t in its own pass; what is
here serves double backward, forward mode and torch.func in a compiled graph, where nobody counts passes.
"""

import math

import torch

from onepass import _native, errors, library

_INFINITY = float("inf")


def divisor_of(call, shape, elements):
    """What the sum over a tensor of this shape is divided by."""
    if call.reduction == _native.BATCHMEAN:
        return shape[0] if len(shape) else 1
    if call.reduction == _native.MEAN:
        return elements
    return call.divisor if call.reduction == _native.DIVISOR else 1


def _as_ones(elements, tensor, is_log):
    """The tensor with the probability 1 in these places (None: nowhere). Multiplying by 0 afterwards would not do: what
    was infinite or NaN would still reach the next derivative."""
    return tensor if elements is None else tensor.masked_fill(elements, 0.0 if is_log else 1.0)


def _limits(call, predictions, targets):
    """(elements with t = 0, of these the ones with p = 0): what finite semantics give a value of 0. (None, None) in
    strict semantics."""
    if call.semantics != _native.FINITE:
        return None, None
    log_p = predictions if call.form & library.LOG_PREDICTIONS else predictions.log()
    t = targets.exp() if call.form & library.LOG_TARGETS else targets
    no_target = (t == 0) & (log_p < _INFINITY)
    return no_target, no_target & (log_p == -_INFINITY)


def _unmasked(call, predictions, targets, row_mask):
    """(predictions, targets, elements with t = 0, of these the ones with p = 0), half types as float32. Masked rows
    count as t = p = 1 here, and the last of these elements as p = 1."""
    predictions, targets = (tensor.to(torch.promote_types(tensor.dtype, torch.float32))
                            for tensor in (predictions, targets))
    p_is_log, t_is_log = call.form & library.LOG_PREDICTIONS, call.form & library.LOG_TARGETS
    masked = None if row_mask is None else ~row_mask.bool().unsqueeze(-1)
    predictions, targets = _as_ones(masked, predictions, p_is_log), _as_ones(masked, targets, t_is_log)
    no_target, nothing = _limits(call, predictions, targets)
    return _as_ones(nothing, predictions, p_is_log), targets, no_target, nothing


def _partials(call, predictions, targets, row_mask):
    """(v_p, v_t, v_pp, v_pt, v_tt)"""
    p_is_log, t_is_log = call.form & library.LOG_PREDICTIONS, call.form & library.LOG_TARGETS
    predictions, targets, no_target, nothing = _unmasked(call, predictions, targets, row_mask)
    if p_is_log:
        log_p, p_p = predictions, torch.ones_like(predictions)  # p_p: the derivative of log p to what was passed
        p_pp = torch.zeros_like(predictions)
    else:
        log_p, p_p = predictions.log(), 1 / predictions
        p_pp = p_p * p_p
    positive = _as_ones(no_target, targets, t_is_log)
    if t_is_log:
        t = t_t = targets.exp()
        v_t = positive.exp() * (positive - log_p + 1)
        v_tt = v_t + positive.exp()
    else:
        t, t_t = targets, torch.ones_like(targets)
        v_t = positive.log() - log_p + 1
        v_tt = 1 / positive
    v_p, v_pp, v_pt = -t * p_p, t * p_pp, -t_t * p_p
    if no_target is not None:
        v_t, v_tt, v_pt = v_t.masked_fill(no_target, 0), v_tt.masked_fill(no_target, 0), v_pt.masked_fill(nothing, 0)
    return v_p, v_t, v_pp, v_pt, v_tt


def _scaled(call, row_weights, row_mask, part):
    """s times a tensor of the inputs' shape. A masked row is 0, whatever it held."""
    if row_weights is not None:
        part = part * row_weights.unsqueeze(-1)
    if row_mask is not None:
        part = torch.where(row_mask.bool().unsqueeze(-1), part, torch.zeros_like(part))
    divisor = divisor_of(call, part.shape, part.numel())
    return part if divisor == 1 else part / divisor


def _reduced(call, part):
    """Summed to the value's shape."""
    if call.reduction == _native.NONE:
        return part
    return part.sum(-1) if call.reduction == _native.ROWS else part.sum()


def _spread(call, upstream):
    """The upstream gradient, to be multiplied with a tensor of the inputs' shape."""
    return upstream.unsqueeze(-1) if call.reduction == _native.ROWS and upstream is not None else upstream


def _sum(like, *products):
    """The sum of a * v, without those whose a is None: there v may be anything, infinite too."""
    parts = [a * v for a, v in products if a is not None]
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)


def value(call, predictions, targets, row_weights, row_mask, dtype):
    """The value itself, by way of float64, so that a small divergence keeps its digits."""
    predictions, targets, no_target, _ = _unmasked(call, predictions.double(), targets.double(), row_mask)
    targets = _as_ones(no_target, targets, call.form & library.LOG_TARGETS)
    log_p = predictions if call.form & library.LOG_PREDICTIONS else predictions.log()
    if call.form & library.LOG_TARGETS:
        part = targets.exp() * (targets - log_p)
    else:
        part = torch.xlogy(targets, targets) - targets * log_p
    if no_target is not None:
        part = part.masked_fill(no_target, 0)
    return _reduced(call, _scaled(call, row_weights, row_mask, part)).to(dtype)


def gradients(call, upstream, predictions, targets, row_weights, row_mask):
    """Of the value, to both: u s v_p and u s v_t."""
    partials = _partials(call, predictions, targets, row_mask)[:2]
    u = _spread(call, upstream)
    return tuple((u * _scaled(call, row_weights, row_mask, part)).to(tensor.dtype)
                 for part, tensor in zip(partials, (predictions, targets)))


def second_order(call, upstream, predictions, targets, row_weights, row_mask, to_predictions, to_targets):
    """Backward of the gradients. With A and B the gradients to them, None where there is none:

      to u   sum of s (A v_p + B v_t)      to p   u s (A v_pp + B v_pt)      to t   u s (A v_pt + B v_tt)
    """
    v_p, v_t, v_pp, v_pt, v_tt = _partials(call, predictions, targets, row_mask)
    a, b = to_predictions, to_targets
    u = _spread(call, upstream)
    to_u = _reduced(call, _scaled(call, row_weights, row_mask, _sum(predictions, (a, v_p), (b, v_t))))
    to_p = u * _scaled(call, row_weights, row_mask, _sum(predictions, (a, v_pp), (b, v_pt)))
    to_t = u * _scaled(call, row_weights, row_mask, _sum(targets, (a, v_pt), (b, v_tt)))
    return to_u.to(upstream.dtype), to_p.to(predictions.dtype), to_t.to(targets.dtype)


def _transforms():
    """The kinds of torch.func's transforms that this thread is in."""
    functorch = torch._C._functorch
    if hasattr(functorch, "get_interpreter_stack"):
        return [level.key() for level in functorch.get_interpreter_stack() or ()]
    level = functorch.peek_interpreter_stack()  # before 2.3: the innermost one is all that can be seen
    if level is None:
        return []
    with torch._functorch.pyfunctorch.temporarily_pop_interpreter_stack():
        return [level.key()] + _transforms()


def check_levels():
    """PyTorch runs a function's rule for forward mode with forward mode off: within another one its derivative would be
    lost without a word."""
    if _transforms().count(torch._C._functorch.TransformType.Jvp) > 1:
        raise errors.Unsupported("kl_div: forward mode within forward mode is not supported; use jacfwd(jacrev(...)), "
                                 "which torch.func.hessian is")


def check_tangents(d_row_weights, d_row_mask):
    if d_row_weights is not None or d_row_mask is not None:
        raise errors.Unsupported("kl_div: row_weights: has a tangent; there is no derivative to the weights")


def value_tangent(call, predictions, targets, row_weights, row_mask, d_predictions, d_targets):
    """Forward mode of the value: sum of s (v_p dp + v_t dt)."""
    v_p, v_t = _partials(call, predictions, targets, row_mask)[:2]
    return _reduced(call, _scaled(call, row_weights, row_mask,
                                  _sum(predictions, (d_predictions, v_p), (d_targets, v_t))))


def gradient_tangents(call, upstream, predictions, targets, row_weights, row_mask, d_upstream, d_predictions,
                      d_targets):
    """Forward mode of the gradients: s (du v_p + u (v_pp dp + v_pt dt)), and the same to t."""
    v_p, v_t, v_pp, v_pt, v_tt = _partials(call, predictions, targets, row_mask)
    dp, dt = d_predictions, d_targets
    u, du = _spread(call, upstream), _spread(call, d_upstream)
    to_p = _sum(predictions, (du, v_p), (u, _sum(predictions, (dp, v_pp), (dt, v_pt))))
    to_t = _sum(targets, (du, v_t), (u, _sum(targets, (dp, v_pt), (dt, v_tt))))
    return _scaled(call, row_weights, row_mask, to_p), _scaled(call, row_weights, row_mask, to_t)


# ---- vmap -----------------------------------------------------------------------------------------------------------


def batched(info, in_dims, *tensors):
    """The tensors with the mapped dimension first, whether they were mapped or not."""
    return [None if tensor is None else
            tensor.unsqueeze(0).expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims)]


def with_rows(predictions, targets):
    """A sample without dimensions is a row of one element."""
    if predictions.dim() > 1:
        return predictions, targets
    return predictions.unsqueeze(-1), targets.unsqueeze(-1)


def as_rows(predictions, targets, row_weights, row_mask):
    """A sample's elements, whose sum is wanted, as one row; with weights or a mask as the rows they are."""
    if row_weights is None and row_mask is None:
        return predictions.flatten(1), targets.flatten(1)
    return predictions, targets


def of_samples(call, predictions):
    """The call that gives one value per row, and what each sample's sum is divided by."""
    sample = predictions.shape[1:]
    return call._replace(reduction=_native.ROWS, divisor=0.0), divisor_of(call, sample, math.prod(sample))
