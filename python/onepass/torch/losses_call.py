"""Losses from logits, as calls of the library: autograd's function and the operators of PyTorch's dispatcher.

As kl_div's (kl.py), an eager forward makes the gradients in the same pass as the value, for the upstream gradient that
the last backward of such a loss came with, at first 1; backward compares the two. The gradient of unreduced losses is
made in backward, from the rows' upstream gradients.

In a compiled graph one operator, onepass::logits_loss_with_gradients, makes value and gradients for an upstream
gradient of 1, and backward multiplies them. Not so for float16, whose small gradients would be lost before a gradient
scaler's factor saves them, and for unreduced losses: there backward is an operator of its own.
"""

from collections import namedtuple

import torch

from onepass import _native, errors, library
from onepass.torch import losses_reference, route

# Numbers as the library takes them and in its order, in which 1, has_ignore_index, comes before ignore_index; and
# outputs: which of losses_reference.OUTPUTS are asked for, a bit for each.
Call = namedtuple("Call", "form reduction semantics divisor temperature softcap columns ignore_index label_weight "
                  "label_smoothing z_loss entropy_bonus divergence mixture divergence_weight target_temperature "
                  "label_temperature target_softcap outputs")

# Tensors; all but the predictions may be None.
Inputs = namedtuple("Inputs", "predictions targets labels class_weights row_weights row_mask divisor")

_DEVICES = "cpu", "cuda", "meta"  # that the library has kernels for, or needs none


def is_served(logits):
    """True if the library has kernels for the tensor's device."""
    return logits.device.type in _DEVICES


def way(call, inputs):
    """The way of a call."""
    if not is_served(inputs.predictions):
        return route.TRANSFORMED
    if call.form != losses_reference.LABELS and not call.divergence_weight:  # to the library, 0 is the default
        return route.TRANSFORMED
    return route.way(inputs)


# ---- the library -----------------------------------------------------------------------------------------------------


def _empty_value(call, inputs):
    predictions, dtype = inputs.predictions, losses_reference.value_dtype(inputs.predictions, inputs.targets)
    if call.reduction == _native.ROWS:
        return route.empty(predictions, tuple(predictions.shape[:-1]), dtype)
    return route.empty_scalar(predictions, dtype)


def _fake_value(call, inputs):
    """The same of tensors that may be fake ones."""
    predictions, dtype = inputs.predictions, losses_reference.value_dtype(inputs.predictions, inputs.targets)
    return predictions.new_empty(predictions.shape[:-1] if call.reduction == _native.ROWS else (), dtype=dtype)


_NO_OUTPUTS = (None,) * len(losses_reference.OUTPUTS)


def _empty_outputs(call, inputs):
    """One for each of losses_reference.OUTPUTS, None where not asked for."""
    if not call.outputs:
        return _NO_OUTPUTS
    predictions = inputs.predictions
    dtype, asked = losses_reference.value_dtype(predictions, inputs.targets), losses_reference.outputs_of(call.outputs)
    return tuple(predictions.new_empty(predictions.shape[:-1], dtype=torch.int64 if name == "argmax" else dtype)
                 if name in asked else None for name in losses_reference.OUTPUTS)


def empty_gradients(inputs, needs):
    return (torch.empty_like(inputs.predictions) if needs[0] else None,
            torch.empty_like(inputs.targets) if needs[1] else None)


def _run(call, inputs, value, gradients, outputs=_NO_OUTPUTS, upstream=None, made_for=None):
    predictions, targets, labels, class_weights, row_weights, row_mask, divisor = inputs
    if call.form == losses_reference.LABELS:
        library.call(library.CROSS_ENTROPY, predictions, labels, class_weights, row_weights, row_mask, upstream,
                     made_for, divisor, value, gradients[0], *outputs[:4], *call[1:7], 1, *call[7:12], 0,
                     route.threads(), route.workspace)
        return
    library.call(library.DIVERGENCE[call.form], predictions, labels, class_weights, row_weights, row_mask, upstream,
                 made_for, divisor, value, gradients[0], *outputs[:4], targets, gradients[1], *outputs[4:], *call[1:7],
                 1, *call[7:18], 0, route.threads(), route.workspace)


def empty_results(call, inputs):
    """(value, outputs) without their numbers"""
    return _empty_value(call, inputs), _empty_outputs(call, inputs)


def fake_results(call, inputs):
    """The same of tensors that may be fake ones."""
    return _fake_value(call, inputs), _empty_outputs(call, inputs)


def _forward(call, inputs):
    """(value, outputs)"""
    value, outputs = empty_results(call, inputs)
    _run(call, inputs, value, (None, None), outputs)
    return value, outputs


def _forward_with_gradients(call, inputs, gradients, upstream=None):
    """The same; writes the gradients for this upstream gradient, None: 1."""
    value, outputs = empty_results(call, inputs)
    _run(call, inputs, value, gradients, outputs, upstream)
    return value, outputs


# {(place, loss): upstream gradient}. A copy, never written again: the caller may change his own in the meantime.
_expected = {}


def _loss(call):
    return call.form, call.divergence


def expect(loss, tensor):
    """The upstream gradient that the gradients of a forward pass are made for: that of the last backward, or 1."""
    place = route.place_of(tensor)
    found = _expected.get((place, loss))
    if found is None:
        found = torch.ones((), device=tensor.device)
        if place is not None:
            _expected[place, loss] = found
    return found


def came(loss, upstream):
    """What expect() has from now on."""
    place = route.place_of(upstream)
    if place is not None:
        _expected[place, loss] = upstream.clone()


# ---- in place --------------------------------------------------------------------------------------------------------


def check_in_place(name, call, predictions):
    """A tensor that autograd lets nobody write to is refused, as PyTorch refuses it."""
    if call.reduction == _native.ROWS:
        raise errors.InvalidArgument("%s: inplace: True with reduction 'none'; it goes with the reductions to one "
                                     "value, whose gradient is made in forward" % name)
    owner = predictions._base if predictions._is_view() else predictions
    if owner.is_leaf and owner.requires_grad:
        raise errors.InvalidArgument("%s: inplace: True with a leaf that requires grad, or a view of one; the logits "
                                     "must be the result of an operation" % name)


class InPlaceLoss(torch.autograd.Function):
    """loss(name, call, *inputs) that writes the gradient to the predictions over them. Autograd is told by their
    version: an operation that needs the logits in its own backward raises."""

    @staticmethod
    def forward(ctx, name, call, *tensors):
        inputs = Inputs(*tensors)
        gradient = inputs.predictions.detach()
        to_targets = torch.empty_like(inputs.targets) if ctx.needs_input_grad[3] else None
        value, outputs = _forward_with_gradients(call, inputs, (gradient, to_targets))
        gradient[..., :0].zero_()  # writes nothing, and counts as a change
        ctx.made, ctx.name = (gradient, to_targets), name
        ctx.set_materialize_grads(False)
        return _returned(ctx, value, outputs)

    @staticmethod
    def backward(ctx, upstream, *none):
        if upstream is None:
            return (None,) * 9
        if torch.is_grad_enabled():
            raise errors.Unsupported("%s: inplace: True with create_graph; the logits are gone" % ctx.name)
        made = ctx.__dict__.pop("made", None)
        if made is None:
            raise errors.InvalidArgument("%s: inplace: True with a second backward through the same graph; the first "
                                         "has handed its gradients over" % ctx.name)
        for gradient in made:
            if gradient is not None:
                gradient.mul_(upstream)
        return (None, None) + made + (None,) * 5


# ---- autograd --------------------------------------------------------------------------------------------------------


def _asked_for(value, outputs):
    """(value, *outputs asked for)"""
    return (value,) if outputs is _NO_OUTPUTS else (value, *(output for output in outputs if output is not None))


def _returned(ctx, value, outputs):
    results = _asked_for(value, outputs)
    ctx.mark_non_differentiable(*results[1:])
    return results


class Loss(torch.autograd.Function):
    """loss(call, *inputs) -> (value, *outputs asked for)"""

    @staticmethod
    def forward(ctx, call, *tensors):
        inputs = Inputs(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        if call.reduction == _native.ROWS:
            return _returned(ctx, *_forward(call, inputs))
        upstream, made = expect(_loss(call), inputs.predictions), empty_gradients(inputs, ctx.needs_input_grad[1:3])
        results = _forward_with_gradients(call, inputs, made, upstream)
        ctx.made = made, upstream
        return _returned(ctx, *results)

    @staticmethod
    def backward(ctx, upstream, *none):
        if upstream is None:
            return (None,) * 8
        # Handed over once: autograd may make them somebody's .grad. In one step: another thread may be going back
        # through this graph.
        made = ctx.__dict__.pop("made", None)
        call, inputs, needs = ctx.call, Inputs(*ctx.saved_tensors), ctx.needs_input_grad[1:3]
        if upstream.is_neg():
            upstream = upstream.resolve_neg()
        how = route.TRANSFORMED
        if not torch.is_grad_enabled() and not route.is_batched(upstream):
            how = route.way((upstream, inputs.predictions, inputs.targets))
        if how == route.TRACED:
            grads = torch.ops.onepass.logits_loss_backward(upstream, *inputs, *call, *needs)
            grads = tuple(grad if need else None for grad, need in zip(grads, needs))
        elif how == route.TRANSFORMED:
            grads = losses_reference.gradients(call, inputs, upstream, needs)
        elif made is None:
            grads = _gradients(call, inputs, upstream, needs)
        else:
            grads, made_for = made
            if not route.is_same_number(upstream, made_for):
                _run(call, inputs, None, grads, upstream=upstream, made_for=made_for)
                came(_loss(call), upstream)
        return (None,) + grads + (None,) * 5


def _gradients(call, inputs, upstream, needs):
    made = empty_gradients(inputs, needs)
    _run(call, inputs, None, made, upstream=upstream)
    return made


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------

_TENSORS = 7  # of Inputs


def _split(arguments):
    return Call(*arguments[_TENSORS:_TENSORS + len(Call._fields)]), Inputs(*arguments[:_TENSORS])


def _results(inputs, value, outputs, gradients=()):
    return route.all_results(inputs.predictions, (value,) + outputs + tuple(gradients))


def _kernel(*arguments):
    call, inputs = _split(arguments)
    return _results(inputs, *_forward(call, inputs))


def _check_shapes(inputs):
    predictions = inputs.predictions
    rows = predictions.shape[:-1]
    for name, shape in (("targets", predictions.shape), ("labels", rows), ("row_weights", rows), ("row_mask", rows)):
        tensor = getattr(inputs, name)
        if tensor is not None:
            torch._check(tensor.shape == shape, lambda: "logits_loss: %s: shape %s; it must be %s" % (
                name, list(tensor.shape), list(shape)))


def _meta(*arguments):
    call, inputs = _split(arguments)
    _check_shapes(inputs)
    return _results(inputs, *fake_results(call, inputs))


def _kernel_with_gradients(*arguments):
    call, inputs = _split(arguments)
    made = empty_gradients(inputs, arguments[-2:])
    return _results(inputs, *_forward_with_gradients(call, inputs, made), made)


def _meta_with_gradients(*arguments):
    call, inputs = _split(arguments)
    _check_shapes(inputs)
    return _results(inputs, *fake_results(call, inputs), empty_gradients(inputs, arguments[-2:]))


def _backward_kernel(upstream, *arguments):
    call, inputs = _split(arguments)
    return route.all_results(upstream, _gradients(call, inputs, upstream, arguments[-2:]))


def _backward_meta(upstream, *arguments):
    return route.all_results(upstream, empty_gradients(_split(arguments)[1], arguments[-2:]))


def _asked(call, results):
    """The results that were asked for, of those that an operator returns."""
    return (results[0],) + tuple(results[1 + i] for i in range(6) if call.outputs >> i & 1)


class TracedLoss(Loss):
    """The same, of the operators."""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.call = call
        ctx.set_materialize_grads(False)
        needs = ctx.needs_input_grad[1:3]
        halves = [tensor.dtype is torch.float16 for tensor, need in zip(tensors[:2], needs) if need]
        ctx.is_made = call.reduction != _native.ROWS and not any(halves)
        made = ()
        with route.below_autograd():
            if ctx.is_made:
                results = torch.ops.onepass.logits_loss_with_gradients(*tensors, *call, *needs)
                made = results[7:]
            else:
                results = torch.ops.onepass.logits_loss(*tensors, *call)
        ctx.save_for_backward(*tensors, *made)
        ctx.mark_non_differentiable(*results[1:7])
        return tuple(results[:7])

    @staticmethod
    def backward(ctx, upstream, *none):
        if upstream is None:
            return (None,) * 8
        call, needs, saved = ctx.call, ctx.needs_input_grad[1:3], ctx.saved_tensors
        inputs, made = Inputs(*saved[:_TENSORS]), saved[_TENSORS:]
        if torch.is_grad_enabled() or route.is_batched(upstream):
            grads = losses_reference.gradients(call, inputs, upstream, needs)
        elif ctx.is_made:
            grads = tuple(grad * upstream.to(grad.dtype if grad.dtype is torch.float64 else upstream.dtype)
                          if need else None for grad, need in zip(made, needs))
        else:
            grads = torch.ops.onepass.logits_loss_backward(upstream, *inputs, *call, *needs)
            grads = tuple(grad if need else None for grad, need in zip(grads, needs))
        return (None,) + grads + (None,) * 5


def _autograd(*arguments):
    call, inputs = _split(arguments)
    if not route.wants_gradients(inputs.predictions, inputs.targets):
        with route.below_autograd():
            return torch.ops.onepass.logits_loss(*arguments)
    if route.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
        value, *outputs = losses_reference.loss(call, inputs)
        outputs = iter(outputs)
        return _results(inputs, value, tuple(next(outputs) if call.outputs >> i & 1 else None for i in range(6)))
    return TracedLoss.apply(call, *inputs)


if route.HAS_TRACED:
    SCHEMA = ("(%sTensor predictions, Tensor? targets, Tensor? labels, Tensor? class_weights, Tensor? row_weights, "
              "Tensor? row_mask, Tensor? divisor_tensor, int form, int reduction, int semantics, float divisor, "
              "float temperature, float softcap, int columns, int ignore_index, float label_weight, "
              "float label_smoothing, float z_loss, float entropy_bonus, int divergence, float mixture, "
              "float divergence_weight, float target_temperature, float label_temperature, float target_softcap, "
              "int outputs%s) -> (%s)")
    NEEDS = ", bool to_predictions, bool to_targets"
    route.define("logits_loss" + SCHEMA % ("", "", ", ".join(["Tensor"] * 7)), _kernel, _meta, _autograd)
    route.define("logits_loss_with_gradients" + SCHEMA % ("", NEEDS, ", ".join(["Tensor"] * 9)),
                 _kernel_with_gradients, _meta_with_gradients)
    route.define("logits_loss_backward" + SCHEMA % ("Tensor upstream, ", NEEDS, "Tensor, Tensor"),
                 _backward_kernel, _backward_meta)


# ---- one call --------------------------------------------------------------------------------------------------------


def loss(name, call, inputs, in_place=False):
    """[value, *outputs asked for]: by the way that suits the tensors."""
    how = way(call, inputs)
    if how == route.TRANSFORMED:
        return losses_reference.loss(call, inputs)
    if how == route.TRACED:
        return _asked(call, torch.ops.onepass.logits_loss(*inputs, *call))
    if not route.wants_gradients(inputs.predictions, inputs.targets):
        return _asked_for(*_forward(call, inputs))
    if in_place and inputs.predictions.requires_grad:
        check_in_place(name, call, inputs.predictions)
        return InPlaceLoss.apply(name, call, *inputs)
    return Loss.apply(call, *inputs)
