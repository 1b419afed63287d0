"""The same for whoever must see the call: torch.compile, torch.export, torch.func, dispatch modes, tensor classes.

Two operators of the dispatcher, onepass::kl and onepass::kl_backward, each a plain function of its inputs, and outside
them an autograd function with rules for vmap. Here the value and the gradients are two passes: a graph does not know
the upstream gradient beforehand.
"""

import torch

from onepass import errors
from onepass.torch import eager, kl_calls, kl_derivatives, operators
from onepass.torch.kl_calls import NONE, ROWS, Call
from onepass.torch.operators import not_asked_for


def _kl(predictions, targets, row_weights, row_mask, *call):
    return kl_calls.value(Call(*call), predictions, targets, row_weights, row_mask)


def _kl_meta(predictions, targets, row_weights, row_mask, *call):
    _check_meta(predictions, targets)
    return kl_calls.empty_value(Call(*call), predictions, targets, lambda like, dtype: like.new_empty((), dtype=dtype))


def _check_meta(predictions, targets):
    torch._check(predictions.shape == targets.shape,
                 lambda: "kl: targets: shape %s does not fit predictions %s; it must equal that of predictions" %
                 (list(targets.shape), list(predictions.shape)))
    torch._check(predictions.device == targets.device,
                 lambda: "kl: targets: device %s; it must be that of predictions, %s" %
                 (targets.device, predictions.device))


def _kl_backward(upstream, predictions, targets, row_weights, row_mask, *rest):
    call, needs = Call(*rest[:5]), rest[5:]
    made = kl_calls.gradients(call, upstream, predictions, targets, row_weights, row_mask, needs)
    return (made[0] if needs[0] else not_asked_for(predictions), made[1] if needs[1] else not_asked_for(targets))


def _kl_backward_meta(upstream, predictions, targets, row_weights, row_mask, *rest):
    needs = rest[5:]
    return (torch.empty_like(predictions) if needs[0] else not_asked_for(predictions),
            torch.empty_like(targets) if needs[1] else not_asked_for(targets))


_CALL = "int form, int reduction, int semantics, float divisor, ScalarType? dtype"
operators.define("kl(Tensor predictions, Tensor targets, Tensor? row_weights, Tensor? row_mask, " + _CALL +
                 ") -> Tensor", _kl, _kl_meta)
operators.define("kl_backward(Tensor upstream, Tensor predictions, Tensor targets, Tensor? row_weights, "
                 "Tensor? row_mask, " + _CALL + ", bool to_predictions, bool to_targets) -> (Tensor, Tensor)",
                 _kl_backward, _kl_backward_meta)


# ---- vmap -----------------------------------------------------------------------------------------------------------


def _batched(tensor, dim, size):
    """The tensor with the mapped dimension first, whether it was mapped or not."""
    if tensor is None:
        return None
    return tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _all_batched(info, in_dims, *tensors):
    return [_batched(tensor, dim, info.batch_size) for tensor, dim in zip(tensors, in_dims)]


def _with_rows(predictions, targets):
    """A sample without dimensions is a row of one element."""
    if predictions.dim() > 1:
        return predictions, targets
    return predictions.unsqueeze(-1), targets.unsqueeze(-1)


def _as_rows(predictions, targets, row_weights, row_mask):
    """A sample's elements, whose sum is wanted, as one row; with weights or a mask as the rows they are."""
    if row_weights is None and row_mask is None:
        return predictions.flatten(1), targets.flatten(1)
    return predictions, targets


def _of_samples(call, predictions):
    """The call that gives one value a row, and what each sample's sum is divided by."""
    sample = predictions.shape[1:]
    elements = 1
    for extent in sample:
        elements *= extent
    return call._replace(reduction=ROWS, divisor=0.0), kl_calls.divisor_of(call, sample, elements)


# ---- autograd -------------------------------------------------------------------------------------------------------


class KL(torch.autograd.Function):
    """kl(predictions, targets, row_weights, row_mask, *Call)"""

    @staticmethod
    def forward(predictions, targets, row_weights, row_mask, *call):
        return torch.ops.onepass.kl(predictions, targets, row_weights, row_mask, *call)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:4])
        ctx.call = Call(*inputs[4:])

    @staticmethod
    def backward(ctx, upstream):
        predictions, targets, row_weights, row_mask = ctx.saved_tensors
        needs = ctx.needs_input_grad
        grads = _apply_backward(upstream, predictions, targets, row_weights, row_mask, *ctx.call, needs[0], needs[1])
        return (grads[0] if needs[0] else None, grads[1] if needs[1] else None) + (None,) * 7

    @staticmethod
    def vmap(info, in_dims, predictions, targets, row_weights, row_mask, *call):
        call = Call(*call)
        predictions, targets, row_weights, row_mask = _all_batched(info, in_dims, predictions, targets, row_weights,
                                                                   row_mask)
        shape = predictions.shape
        predictions, targets = _with_rows(predictions, targets)
        if call.reduction == NONE:
            return _apply_kl(predictions, targets, row_weights, row_mask, *call).reshape(shape), 0
        if call.reduction == ROWS:
            return _apply_kl(predictions, targets, row_weights, row_mask, *call), 0
        dtype = kl_calls.value_dtype(call, predictions, targets)
        rows, divisor = _of_samples(call, predictions)
        rows = rows._replace(dtype=torch.promote_types(dtype, torch.float32))
        value = _apply_kl(*_as_rows(predictions, targets, row_weights, row_mask), row_weights, row_mask, *rows)
        if value.dim() > 1:
            value = value.flatten(1).sum(1)
        return (value / divisor).to(dtype), 0


class Backward(torch.autograd.Function):
    """The gradients of KL, to be differentiated again by PyTorch's own operations."""

    @staticmethod
    def forward(upstream, predictions, targets, row_weights, row_mask, *rest):
        return torch.ops.onepass.kl_backward(upstream, predictions, targets, row_weights, row_mask, *rest)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:5])
        ctx.save_for_forward(*inputs[:5])
        ctx.call = Call(*inputs[5:10])
        ctx.needs = inputs[10:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, to_predictions, to_targets):
        grads = kl_derivatives.second_order(ctx.call, *ctx.saved_tensors, to_predictions if ctx.needs[0] else None,
                                            to_targets if ctx.needs[1] else None)
        return grads + (None,) * 9

    @staticmethod
    def jvp(ctx, d_upstream, d_predictions, d_targets, d_row_weights, d_row_mask, *none):
        kl_derivatives.check_tangents(d_row_weights, d_row_mask)
        predictions, targets = ctx.saved_tensors[1:3]
        tangents = kl_derivatives.gradient_tangents(ctx.call, *ctx.saved_tensors, d_upstream, d_predictions, d_targets)
        return (tangents[0].to(predictions.dtype) if ctx.needs[0] else not_asked_for(predictions),
                tangents[1].to(targets.dtype) if ctx.needs[1] else not_asked_for(targets))

    @staticmethod
    def vmap(info, in_dims, upstream, predictions, targets, row_weights, row_mask, *rest):
        call, needs = Call(*rest[:5]), rest[5:]
        upstream, predictions, targets, row_weights, row_mask = _all_batched(
            info, in_dims, upstream, predictions, targets, row_weights, row_mask)
        p, t = _with_rows(predictions, targets)
        if call.reduction == NONE:
            upstream = upstream.reshape(p.shape)
        elif call.reduction != ROWS:
            call, divisor = _of_samples(call, p)
            upstream = upstream.to(torch.promote_types(upstream.dtype, torch.float32)) / divisor
            p, t = _as_rows(p, t, row_weights, row_mask)
            lead = p.shape[1:-1]
            upstream = upstream.reshape(upstream.shape + (1,) * len(lead)).expand(upstream.shape + lead)
        made = _apply_backward(upstream, p, t, row_weights, row_mask, *call, *needs)
        grads = (made[0].reshape(predictions.shape) if needs[0] else made[0],
                 made[1].reshape(targets.shape) if needs[1] else made[1])
        return grads, (0 if needs[0] else None, 0 if needs[1] else None)


class KLWithTangents(KL):
    """KL with a rule for forward mode; torch.compile, which has no forward mode, refuses a function that has one."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        KL.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:4])
        ctx.set_materialize_grads(False)  # a tensor without a tangent comes as None, not as zeros

    @staticmethod
    def jvp(ctx, d_predictions, d_targets, d_row_weights, d_row_mask, *none):
        kl_derivatives.check_tangents(d_row_weights, d_row_mask)
        tangent = kl_derivatives.value_tangent(ctx.call, *ctx.saved_tensors, d_predictions, d_targets)
        return tangent.to(kl_calls.value_dtype(ctx.call, *ctx.saved_tensors[:2]))


def _apply_kl(*arguments):
    return (KL if eager.is_compiling() else KLWithTangents).apply(*arguments)


def _apply_backward(*arguments):
    # A compiled graph is not differentiated twice, and torch.compile does not follow a function in another's backward.
    return (torch.ops.onepass.kl_backward if eager.is_compiling() else Backward.apply)(*arguments)


def _check_levels():
    """PyTorch runs a function's rule for forward mode with forward mode off: within another one its derivative would be
    lost without a word."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in levels) > 1:
        raise errors.Unsupported("kl_div: forward mode within forward mode is not supported; use jacfwd(jacrev(...)), "
                                 "which torch.func.hessian is")


def kl(predictions, targets, row_weights, row_mask, call):
    if not eager.is_compiling():
        _check_levels()
    return _apply_kl(predictions, targets, row_weights, row_mask, *call)


def gradients(upstream, predictions, targets, row_weights, row_mask, call, needs):
    """Of a call that was plain, in a backward pass that is not."""
    return _apply_backward(upstream, predictions, targets, row_weights, row_mask, *call, needs[0], needs[1])
