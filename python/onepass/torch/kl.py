"""kl_div with torch.nn.functional's signature and behaviour, and kl_div_probs, which takes probabilities.

route.py says which way a call goes: to the library, to onepass::kl in PyTorch's dispatcher, or to an autograd function
with rules for torch.func and forward mode.

An eager forward makes the gradients in the same pass as the value, for the upstream gradient it expects: the one the
last backward on this device and stream came with (a weighted loss, a gradient scaler and gradient accumulation give the
same one step after step), at first 1. Backward compares the two: on the CPU the host does, elsewhere the library, where
they are, so that the host neither reads nor waits. If they are equal nothing is left to do. Otherwise, and in every
further backward through the same graph, the gradients are made from the inputs. What is expected changes the time a step
takes, never its bits. Gradients of small tensors are left to backward: reading those again costs less than keeping them.
In a compiled graph forward makes them for 1. The other ways are two passes.
"""

import warnings
from collections import namedtuple

import torch
from torch.nn import _reduction
from torch.overrides import handle_torch_function

from onepass import _native, errors, library
from onepass.torch import kl_derivatives, route

# form: library.LOG_PREDICTIONS | library.LOG_TARGETS; reduction, semantics: the library's numbers; divisor: of
# DIVISOR, else 0.0; dtype: of the value, None: the promoted one of the inputs.
Call = namedtuple("Call", "form reduction semantics divisor dtype")


def _with_reduction(call, reduction, divisor=0.0):
    """The call with another reduction. Not by _replace, here and below: torch.compile does not follow that before
    2.9."""
    return Call(call.form, reduction, call.semantics, divisor, call.dtype)


BATCHMEAN, MEAN, SUM, ROWS, NONE, DIVISOR = (_native.BATCHMEAN, _native.MEAN, _native.SUM, _native.ROWS, _native.NONE,
                                             _native.DIVISOR)

_KL = library.KL  # by form

# Without a divisor of the caller's own: made once, by (form, reduction, semantics).
_CALLS = {(form, reduction, semantics): Call(form, number, rule, 0.0, None)
          for form in range(4)
          for reduction, number in library.REDUCTIONS.items()
          for semantics, rule in library.SEMANTICS.items()}

_SMALL = 8192  # elements: up to here backward makes the gradients


# ---- the library -----------------------------------------------------------------------------------------------------


def value_dtype(call, predictions, targets):
    if call.dtype is not None:
        return call.dtype
    dtype, other = predictions.dtype, targets.dtype
    return dtype if dtype is other else torch.promote_types(dtype, other)


def _empty_value(call, predictions, targets, empty_scalar=route.empty_scalar):
    dtype = value_dtype(call, predictions, targets)
    if call.reduction == NONE:
        return torch.empty_like(predictions, dtype=dtype)
    if call.reduction == ROWS:
        return predictions.new_empty(predictions.shape[:-1], dtype=dtype)
    return empty_scalar(predictions, dtype)


def _value(call, predictions, targets, row_weights, row_mask):
    """The value alone."""
    made = _empty_value(call, predictions, targets)
    form, reduction, semantics, divisor, _ = call
    library.call(_KL[form], predictions, targets, row_weights, row_mask, None, None, made, None, None, reduction,
                 semantics, divisor, 0, route.threads(), route.workspace)
    return made


def _value_and_gradients(call, predictions, targets, row_weights, row_mask, upstream, needs):
    """(value, gradient to predictions, to targets) in one pass, the gradients for this upstream gradient."""
    made = _empty_value(call, predictions, targets)
    grad_predictions = torch.empty_like(predictions) if needs[0] else None
    grad_targets = torch.empty_like(targets) if needs[1] else None
    form, reduction, semantics, divisor, _ = call
    library.call(_KL[form], predictions, targets, row_weights, row_mask, upstream, None, made, grad_predictions,
                 grad_targets, reduction, semantics, divisor, 0, route.threads(), route.workspace)
    return made, grad_predictions, grad_targets


def _gradients(call, upstream, predictions, targets, row_weights, row_mask, needs, made=None, made_for=None):
    """The gradients alone: those in `made`, which are left as they are if they were made for this very upstream
    gradient, or new ones."""
    if made is None:
        made = torch.empty_like(predictions) if needs[0] else None, torch.empty_like(targets) if needs[1] else None
    form, reduction, semantics, divisor, _ = call
    library.call(_KL[form], predictions, targets, row_weights, row_mask, upstream, made_for, None, made[0],
                 made[1], reduction, semantics, divisor, 0, route.threads(), route.workspace)
    return made


# {place: upstream gradient}. A copy, never written again: the caller may change his own between forward and backward.
_expected = {}


def _expect(tensor):
    place = route.place_of(tensor)
    found = _expected.get(place)
    if found is None:
        found = torch.ones((), device=tensor.device)
        if place is not None:
            _expected[place] = found
    return found


def _came(upstream):
    place = route.place_of(upstream)
    if place is not None:
        _expected[place] = upstream.clone()


# ---- autograd --------------------------------------------------------------------------------------------------------


class KL(torch.autograd.Function):
    """kl(predictions, targets, row_weights, row_mask, call)"""

    @staticmethod
    def forward(ctx, predictions, targets, row_weights, row_mask, call):
        ctx.save_for_backward(predictions, targets, row_weights, row_mask)
        ctx.call = call
        if call.reduction == ROWS or call.reduction == NONE or predictions.numel() <= _SMALL:
            return _value(call, predictions, targets, row_weights, row_mask)
        upstream = _expect(predictions)
        value, grad_predictions, grad_targets = _value_and_gradients(
            call, predictions, targets, row_weights, row_mask, upstream, ctx.needs_input_grad)
        ctx.made = grad_predictions, grad_targets, upstream
        return value

    @staticmethod
    def backward(ctx, upstream):
        predictions, targets, row_weights, row_mask = ctx.saved_tensors
        # Handed over once: autograd may make them somebody's .grad. In one step: another thread may be going back
        # through this graph.
        made = ctx.__dict__.pop("made", None)
        call, needs = ctx.call, ctx.needs_input_grad
        if upstream.is_neg():
            upstream = upstream.resolve_neg()
        if not route.is_eager(upstream, predictions) or route.is_batched(upstream):
            if route.HAS_TRACED:
                grads = _watched_gradients(upstream, predictions, targets, row_weights, row_mask, *call, *needs[:2])
            else:
                grads = kl_derivatives.gradients(call, upstream, predictions, targets, row_weights, row_mask)
            return grads[0] if needs[0] else None, grads[1] if needs[1] else None, None, None, None
        if torch.is_grad_enabled():
            grads = Backward.apply(upstream, predictions, targets, row_weights, row_mask, *call, *needs[:2])
        elif made is None:
            grads = _gradients(call, upstream, predictions, targets, row_weights, row_mask, needs)
        else:
            grads, made_for = made[:2], made[2]
            if not route.is_same_number(upstream, made_for):
                _gradients(call, upstream, predictions, targets, row_weights, row_mask, needs, grads, made_for)
                _came(upstream)
        return grads[0], grads[1], None, None, None


class Backward(torch.autograd.Function):
    """The gradients, kl_backward(upstream, predictions, targets, row_weights, row_mask, *call, *needs), as something to
    differentiate again."""

    @staticmethod
    def forward(ctx, upstream, predictions, targets, row_weights, row_mask, *rest):
        _keep(ctx, (upstream, predictions, targets, row_weights, row_mask) + rest)
        return _gradients(ctx.call, upstream, predictions, targets, row_weights, row_mask, ctx.needs)

    @staticmethod
    def backward(ctx, to_predictions, to_targets):
        grads = kl_derivatives.second_order(ctx.call, *ctx.saved_tensors, to_predictions if ctx.needs[0] else None,
                                            to_targets if ctx.needs[1] else None)
        return grads + (None,) * 9


def _keep(ctx, inputs):
    ctx.save_for_backward(*inputs[:5])
    ctx.call, ctx.needs = Call(*inputs[5:10]), inputs[10:]
    ctx.set_materialize_grads(False)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


def _kernel(predictions, targets, row_weights, row_mask, *call):
    return _value(Call(*call), predictions, targets, row_weights, row_mask)


def _meta(predictions, targets, row_weights, row_mask, *call):
    torch._check(predictions.shape == targets.shape,
                 lambda: "kl: targets: shape %s does not fit predictions %s; it must equal that of predictions" %
                 (list(targets.shape), list(predictions.shape)))
    torch._check(predictions.device == targets.device,
                 lambda: "kl: targets: device %s; it must be that of predictions, %s" %
                 (targets.device, predictions.device))
    return _empty_value(Call(*call), predictions, targets, lambda like, dtype: like.new_empty((), dtype=dtype))


def _both(predictions, targets, made):
    """Gradients as an operator returns them."""
    return (route.not_asked_for(predictions) if made[0] is None else made[0],
            route.not_asked_for(targets) if made[1] is None else made[1])


def _made_kernel(predictions, targets, row_weights, row_mask, *rest):
    value, *made = _value_and_gradients(Call(*rest[:5]), predictions, targets, row_weights, row_mask, None, rest[5:])
    return (value,) + _both(predictions, targets, made)


def _made_meta(predictions, targets, row_weights, row_mask, *rest):
    return (_meta(predictions, targets, row_weights, row_mask, *rest[:5]),) + _backward_meta(
        None, predictions, targets, row_weights, row_mask, *rest)


def _backward_kernel(upstream, predictions, targets, row_weights, row_mask, *rest):
    call, needs = Call(*rest[:5]), rest[5:]
    return _both(predictions, targets, _gradients(call, upstream, predictions, targets, row_weights, row_mask, needs))


def _backward_meta(upstream, predictions, targets, row_weights, row_mask, *rest):
    needs = rest[5:]
    return _both(predictions, targets, (torch.empty_like(predictions) if needs[0] else None,
                                        torch.empty_like(targets) if needs[1] else None))


class TracedKL(KL):
    """The same, of the operator."""

    @staticmethod
    def forward(ctx, predictions, targets, row_weights, row_mask, call):
        ctx.save_for_backward(predictions, targets, row_weights, row_mask)
        ctx.call = call
        return _below_autograd(predictions, targets, row_weights, row_mask, *call)


class CompiledKL(torch.autograd.Function):
    """The same in one pass, for graphs of forward and backward: forward makes the gradients too, for an upstream
    gradient of 1. Multiplying them by another is the graph's own work, done along with what comes next."""

    @staticmethod
    def forward(ctx, predictions, targets, row_weights, row_mask, call):
        with route.below_autograd():
            value, *made = torch.ops.onepass.kl_made(predictions, targets, row_weights, row_mask, *call,
                                                     *ctx.needs_input_grad[:2])
        ctx.save_for_backward(*made)
        return value

    @staticmethod
    def backward(ctx, upstream):
        return tuple((upstream * made).to(made.dtype) if need else None
                     for made, need in zip(ctx.saved_tensors, ctx.needs_input_grad)) + (None, None, None)


def _traced(call, predictions, targets):
    """The function of a traced call. Half types keep to two passes: a gradient before it is multiplied by a gradient
    scaler's factor may be too small for them."""
    one_pass = (call.reduction not in (ROWS, NONE) and predictions.dtype not in route.HALF
                and targets.dtype not in route.HALF and route.is_compiling_backward())
    return CompiledKL if one_pass else TracedKL


def _below_autograd(*arguments):
    with route.below_autograd():
        return torch.ops.onepass.kl(*arguments)


def _autograd(predictions, targets, row_weights, row_mask, *call):
    if route.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
        call = Call(*call)
        return kl_derivatives.value(call, predictions, targets, row_weights, row_mask,
                                    value_dtype(call, predictions, targets))
    if route.wants_gradients(predictions, targets):
        call = Call(*call)
        return _traced(call, predictions, targets).apply(predictions, targets, row_weights, row_mask, call)
    return _below_autograd(predictions, targets, row_weights, row_mask, *call)


def _watched_gradients(*arguments):
    """kl_backward of a call that is not eager: the operator itself where nobody differentiates or maps it."""
    tensors = arguments[:5]
    if route.is_compiling() or not (torch.is_grad_enabled() or route.is_batched(tensors[0])
                                    or route.way(tensors) == route.TRANSFORMED):
        return torch.ops.onepass.kl_backward(*arguments)
    return BackwardRules.apply(*arguments)


if route.HAS_TRACED:
    _CALL = "int form, int reduction, int semantics, float divisor, ScalarType? dtype"
    route.define("kl(Tensor predictions, Tensor targets, Tensor? row_weights, Tensor? row_mask, " + _CALL +
                 ") -> Tensor", _kernel, _meta, _autograd)
    route.define("kl_made(Tensor predictions, Tensor targets, Tensor? row_weights, Tensor? row_mask, " + _CALL +
                 ", bool to_predictions, bool to_targets) -> (Tensor, Tensor, Tensor)", _made_kernel, _made_meta)
    route.define("kl_backward(Tensor upstream, Tensor predictions, Tensor targets, Tensor? row_weights, "
                 "Tensor? row_mask, " + _CALL + ", bool to_predictions, bool to_targets) -> (Tensor, Tensor)",
                 _backward_kernel, _backward_meta)


# ---- torch.func and forward mode -------------------------------------------------------------------------------------


class KLRules(KL):
    """kl(predictions, targets, row_weights, row_mask, *call)"""

    @staticmethod
    def forward(predictions, targets, row_weights, row_mask, *call):
        return torch.ops.onepass.kl(predictions, targets, row_weights, row_mask, *call)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:4])
        ctx.save_for_forward(*inputs[:4])
        ctx.call = Call(*inputs[4:])
        ctx.set_materialize_grads(False)  # a tensor without a tangent comes as None, not as zeros

    @staticmethod
    def backward(ctx, upstream):
        return KL.backward(ctx, upstream) + (None,) * 4

    @staticmethod
    def jvp(ctx, d_predictions, d_targets, d_row_weights, d_row_mask, *none):
        kl_derivatives.check_tangents(d_row_weights, d_row_mask)
        tangent = kl_derivatives.value_tangent(ctx.call, *ctx.saved_tensors, d_predictions, d_targets)
        return tangent.to(value_dtype(ctx.call, *ctx.saved_tensors[:2]))

    @staticmethod
    def vmap(info, in_dims, predictions, targets, row_weights, row_mask, *call):
        call = Call(*call)
        predictions, targets, row_weights, row_mask = kl_derivatives.batched(
            info, in_dims, predictions, targets, row_weights, row_mask)
        shape = predictions.shape
        predictions, targets = kl_derivatives.with_rows(predictions, targets)
        if call.reduction == NONE:
            return KLRules.apply(predictions, targets, row_weights, row_mask, *call).reshape(shape), 0
        if call.reduction == ROWS:
            return KLRules.apply(predictions, targets, row_weights, row_mask, *call), 0
        dtype = value_dtype(call, predictions, targets)
        rows, divisor = kl_derivatives.of_samples(call, predictions)
        rows = rows._replace(dtype=torch.promote_types(dtype, torch.float32))
        predictions, targets = kl_derivatives.as_rows(predictions, targets, row_weights, row_mask)
        value = KLRules.apply(predictions, targets, row_weights, row_mask, *rows)
        if value.dim() > 1:
            value = value.flatten(1).sum(1)
        return (value / divisor).to(dtype), 0


class BackwardRules(Backward):
    """kl_backward, of the same arguments."""

    @staticmethod
    def forward(upstream, predictions, targets, row_weights, row_mask, *rest):
        return torch.ops.onepass.kl_backward(upstream, predictions, targets, row_weights, row_mask, *rest)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _keep(ctx, inputs)
        ctx.save_for_forward(*inputs[:5])

    @staticmethod
    def jvp(ctx, d_upstream, d_predictions, d_targets, d_row_weights, d_row_mask, *none):
        kl_derivatives.check_tangents(d_row_weights, d_row_mask)
        predictions, targets = ctx.saved_tensors[1:3]
        tangents = kl_derivatives.gradient_tangents(ctx.call, *ctx.saved_tensors, d_upstream, d_predictions, d_targets)
        return _both(predictions, targets, (tangents[0].to(predictions.dtype) if ctx.needs[0] else None,
                                            tangents[1].to(targets.dtype) if ctx.needs[1] else None))

    @staticmethod
    def vmap(info, in_dims, upstream, predictions, targets, row_weights, row_mask, *rest):
        call, needs = Call(*rest[:5]), rest[5:]
        upstream, predictions, targets, row_weights, row_mask = kl_derivatives.batched(
            info, in_dims, upstream, predictions, targets, row_weights, row_mask)
        p, t = kl_derivatives.with_rows(predictions, targets)
        if call.reduction == NONE:
            upstream = upstream.reshape(p.shape)
        elif call.reduction != ROWS:
            call, divisor = kl_derivatives.of_samples(call, p)
            upstream = upstream.to(torch.promote_types(upstream.dtype, torch.float32)) / divisor
            p, t = kl_derivatives.as_rows(p, t, row_weights, row_mask)
            lead = p.shape[1:-1]
            upstream = upstream.reshape(upstream.shape + (1,) * len(lead)).expand(upstream.shape + lead)
        made = _watched_gradients(upstream, p, t, row_weights, row_mask, *call, *needs)
        grads = (made[0].reshape(predictions.shape) if needs[0] else made[0],
                 made[1].reshape(targets.shape) if needs[1] else made[1])
        return grads, (0 if needs[0] else None, 0 if needs[1] else None)


# ---- the functions ---------------------------------------------------------------------------------------------------


def _refuse(name, tensor):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError("kl_div: %s: %s; it must be a torch.Tensor" % (name, type(tensor).__name__))
    raise errors.Unsupported("kl_div: %s: dtype %s; it must be floating point: integers and complex numbers are not "
                             "supported" % (name, tensor.dtype))


def _check_rows(row_weights, row_mask):
    if row_weights is not None:
        if not isinstance(row_weights, torch.Tensor) or not row_weights.is_floating_point():
            _refuse("row_weights", row_weights)
        if row_weights.requires_grad and torch.is_grad_enabled():
            raise errors.Unsupported("kl_div: row_weights: requires_grad; there is no gradient to the weights")
    if row_mask is not None and not isinstance(row_mask, torch.Tensor):
        raise TypeError("kl_div: row_mask: %s; it must be a torch.Tensor" % type(row_mask).__name__)


def _call(form, reduction, semantics, divisor):
    if divisor is None:
        try:
            return _CALLS[form, reduction, semantics]
        except (KeyError, TypeError):
            pass  # what follows says which of them is wrong
    number, divisor = library.reduction_of(reduction, divisor)
    return Call(form, number, library.option("semantics", semantics, library.SEMANTICS), divisor, None)


def _broadcast(predictions, targets, call):
    """(predictions, targets, call, what to divide by afterwards). As PyTorch does it: the batch is the input's own,
    whatever it is broadcast to, and a tensor without dimensions takes the other's type."""
    over = 1
    if call.reduction == BATCHMEAN:
        batch = predictions.shape[0] if predictions.dim() else 1
        if route.is_compiling():  # a size that varies must not become a constant of the operator
            call, over = _with_reduction(call, SUM), batch
        elif batch == 0:  # 0 / 0, which is what the mean gives
            call = _with_reduction(call, MEAN)
        else:
            call = _with_reduction(call, DIVISOR, float(batch))
    predictions, targets = torch.broadcast_tensors(
        predictions if predictions.dim() else predictions.to(targets.dtype),
        targets if targets.dim() else targets.to(predictions.dtype))
    return predictions, targets, call, over


def _kl(form, predictions, targets, reduction, divisor, row_weights, row_mask, semantics):
    if not isinstance(predictions, torch.Tensor) or not predictions.is_floating_point():
        _refuse("input", predictions)
    if not isinstance(targets, torch.Tensor) or not targets.is_floating_point():
        _refuse("target", targets)
    call = _call(form, reduction, semantics, divisor)
    if row_weights is not None or row_mask is not None:
        _check_rows(row_weights, row_mask)
    over = 1
    if predictions.shape != targets.shape:
        predictions, targets, call, over = _broadcast(predictions, targets, call)
    if (predictions.dtype in route.HALF or targets.dtype in route.HALF) and route.autocasts(predictions):
        is_double = torch.float64 in (predictions.dtype, targets.dtype)
        dtype = torch.float64 if is_double else torch.float32
        call = Call(call.form, call.reduction, call.semantics, call.divisor, dtype)
    if route.is_eager(predictions, targets):
        return _eager(call, predictions, targets, row_weights, row_mask)
    if route.is_compiling() or route.way((predictions, targets, row_weights, row_mask)) == route.TRACED:
        value = torch.ops.onepass.kl(predictions, targets, row_weights, row_mask, *call)
    else:
        kl_derivatives.check_levels()
        value = KLRules.apply(predictions, targets, row_weights, row_mask, *call)
    return value if over == 1 else value / over


def _eager(call, predictions, targets, row_weights, row_mask):
    # The imaginary part of a conjugate is in memory without its sign.
    if predictions.is_neg() or targets.is_neg():
        predictions, targets = predictions.resolve_neg(), targets.resolve_neg()
    if row_weights is not None and row_weights.is_neg():
        row_weights = row_weights.resolve_neg()
    if not route.HAS_TRACED and route.is_tracing():  # such a trace keeps PyTorch's own operations
        return kl_derivatives.value(call, predictions, targets, row_weights, row_mask,
                                    value_dtype(call, predictions, targets))
    if torch.is_grad_enabled() and (predictions.requires_grad or targets.requires_grad):
        return KL.apply(predictions, targets, row_weights, row_mask, call)
    return _value(call, predictions, targets, row_weights, row_mask)


def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False, *, divisor=None,
           row_weights=None, row_mask=None, semantics="strict"):
    """torch.nn.functional.kl_div, in one pass: KL(target || exp(input)).

    input         log-probabilities (kl_div_probs takes probabilities)
    target        probabilities, or with log_target their logarithms
    size_average, reduce   as in PyTorch: if one is given, it overrides reduction
    reduction     'none', 'mean' (over all elements, with PyTorch's warning), 'batchmean' (over the first dimension),
                  'sum', and besides PyTorch's: 'rows', one value per row, the last dimension summed

    Keywords that PyTorch does not have:
    divisor       with 'sum': a number that divides it (valid tokens, say)
    row_weights   one number per row (the shape without the last dimension) that multiplies it; no gradient to it
    row_mask      bool or uint8, one per row: a row where it is 0 counts 0 and is never read. Neither changes a divisor
    semantics     'strict': special values as in PyTorch; 'finite': the limits, 0 where target and prediction are 0

    Gradients to input and target, of any order. Shapes broadcast as in PyTorch; row_weights and row_mask then have the
    broadcast shape without its last dimension. Half types are computed in float32.
    """
    # So a symbolic trace of somebody's model keeps the call whole: traced through, it would lose its gradients.
    if route.has_torch_function((input, target)):
        return handle_torch_function(kl_div, (input, target), input, target, size_average=size_average, reduce=reduce,
                                     reduction=reduction, log_target=log_target, divisor=divisor,
                                     row_weights=row_weights, row_mask=row_mask, semantics=semantics)
    form = library.LOG_PREDICTIONS | (library.LOG_TARGETS if log_target else 0)
    if size_average is not None or reduce is not None:
        legacy = _reduction.legacy_get_string(size_average, reduce)
        loss = _kl(form, input, target, legacy, divisor, row_weights, row_mask, semantics)
        return loss / input.shape[0] if reduction == "batchmean" and input.dim() else loss
    if reduction == "mean" and not route.is_compiling():
        warnings.warn("reduction: 'mean' divides the total loss by both the batch size and the support size. "
                      "The divergence of a batch is 'batchmean', which PyTorch says 'mean' will become.", stacklevel=2)
    return _kl(form, input, target, reduction, divisor, row_weights, row_mask, semantics)


def kl_div_probs(predictions, targets, reduction="batchmean", log_target=False, *, divisor=None, row_weights=None,
                 row_mask=None, semantics="strict"):
    """kl_div(log(predictions), targets) without the logarithm's tensor, its gradient's, and its rounding.

    predictions   probabilities; the gradient is to them
    The rest is as in kl_div; 'mean' does not warn: here nobody expects anything of it yet.
    """
    if route.has_torch_function((predictions, targets)):
        return handle_torch_function(kl_div_probs, (predictions, targets), predictions, targets, reduction=reduction,
                                     log_target=log_target, divisor=divisor, row_weights=row_weights,
                                     row_mask=row_mask, semantics=semantics)
    form = library.LOG_TARGETS if log_target else 0
    return _kl(form, predictions, targets, reduction, divisor, row_weights, row_mask, semantics)
