"""kl_div_top_k: the divergence of logits from a teacher that is given as the values and indices of k classes a row.

Which way a call goes is route.py's answer. An eager forward makes the gradient in the same pass, for the upstream
gradient that came last, or 1; backward has the library compare that with the one that comes, where they lie, and make
the gradient again if they differ. A compiled graph has one operator for each of the two passes.
"""

import math
from collections import namedtuple

import torch
from torch.overrides import handle_torch_function, has_torch_function

from onepass import _native, errors, library
from onepass.torch import losses, losses_call, losses_reference, route

# Numbers as the library takes them.
Call = namedtuple("Call", "reduction semantics divisor temperature softcap columns ignore_index label_weight "
                  "label_smoothing z_loss entropy_bonus divergence divergence_weight target_temperature "
                  "label_temperature top_values outside")

# Tensors; all but the first three may be None.
Inputs = namedtuple("Inputs", "predictions top_values top_indices labels class_weights row_weights row_mask divisor")

MOST = 4096  # classes of a teacher

_NAME = "kl_div_top_k"
_TENSORS = len(Inputs._fields)

# ---- the library -----------------------------------------------------------------------------------------------------


def _empty_value(call, inputs):
    dtype = losses_reference.value_dtype(inputs.predictions, inputs.top_values)
    shape = inputs.predictions.shape[:-1] if call.reduction == _native.ROWS else ()
    return inputs.predictions.new_empty(shape, dtype=dtype)


def run(call, inputs, value, gradient, upstream=None, made_for=None):
    """Writes value and gradient, those that are not None."""
    predictions, values, indices, labels, class_weights, row_weights, row_mask, divisor = inputs
    library.call(library.DIVERGENCE_TOP_K, predictions, labels, class_weights, row_weights, row_mask, upstream,
                 made_for, divisor, value, gradient, None, None, None, None, values, indices, call.reduction,
                 call.semantics, call.divisor, call.temperature, call.softcap, call.columns, 1, call.ignore_index,
                 call.label_weight, call.label_smoothing, call.z_loss, call.entropy_bonus, call.divergence, 0.0,
                 call.divergence_weight, call.target_temperature, call.label_temperature, 0.0, call.top_values,
                 call.outside, 0, route.threads(), route.workspace)


def _forward(call, inputs, gradient=None, upstream=None):
    value = _empty_value(call, inputs)
    run(call, inputs, value, gradient, upstream)
    return value


def _gradient(call, inputs, upstream):
    made = torch.empty_like(inputs.predictions)
    run(call, inputs, None, made, upstream)
    return made


# ---- PyTorch's operations --------------------------------------------------------------------------------------------


def _masses(call, values, named):
    """(T of each entry, rows where T is to be normalised and has no mass)."""
    if not values.shape[-1]:  # no entries at all
        return values, values.new_ones(values.shape[:-1], dtype=torch.bool)
    is_normalised = call.top_values == _native.TOP_LOGITS or call.outside >= _native.OUTSIDE_RENORMALISED
    if call.top_values == _native.TOP_PROBS:
        t = values.masked_fill((values < 0) | (values == math.inf), math.nan).masked_fill(~named, 0)
        total = t.sum(-1, keepdim=True)
        return t / total if is_normalised else t, (total == 0).squeeze(-1)
    y = values.masked_fill(values == math.inf, math.nan).masked_fill(~named, -math.inf)
    if not is_normalised:
        return y.exp(), None
    if call.top_values == _native.TOP_LOGITS:
        y = y / call.target_temperature
    return torch.softmax(y, -1), (y == -math.inf).all(-1)


def _log(t):
    """log t, -inf at 0."""
    none = t == 0
    return t.masked_fill(none, 1).log().masked_fill(none, -math.inf)


def _kl(p, log_p, log_q):
    """p log(p / q), 0 where p is 0."""
    none = p == 0
    return p * (log_p - log_q.masked_fill(none, 0)).masked_fill(none, 0)


def _divergence(call, z, t, in_set):
    """D of each row: z of the predictions, T of the columns, and which of them were named."""
    is_reverse = call.divergence == _native.REVERSE_KL
    if call.outside == _native.OUTSIDE_SUBSET:
        none = ~in_set.any(-1, keepdim=True)
        z = z.masked_fill(~in_set & ~none, -math.inf)
    log_s = torch.log_softmax(z, -1)
    if is_reverse:
        value = _kl(log_s.exp().masked_fill(~in_set, 0), log_s, _log(t)).sum(-1)
    else:
        value = _kl(t, _log(t), log_s).sum(-1)
    if call.outside == _native.OUTSIDE_SUBSET:
        return value
    outside = z.masked_fill(in_set, -math.inf)
    empty = (outside == -math.inf).all(-1)
    lse = torch.logsumexp(outside.masked_fill(empty.unsqueeze(-1), 0), -1).masked_fill(empty, -math.inf)
    log_s_rest = lse - torch.logsumexp(z, -1)
    t_rest = torch.zeros_like(value)
    if call.outside == _native.OUTSIDE_TAIL and call.top_values != _native.TOP_LOGITS:
        t_rest = (1 - t.sum(-1)).clamp(min=0).masked_fill(in_set.all(-1), 0)
    if is_reverse:
        return value + _kl(log_s_rest.exp(), log_s_rest, _log(t_rest))
    return value + _kl(t_rest, _log(t_rest), log_s_rest)


def reference(call, inputs):
    """The loss in PyTorch's own operations, which have derivatives of any order."""
    predictions, labels = inputs.predictions, inputs.labels
    dtype = losses_reference.value_dtype(predictions, inputs.top_values)
    part = losses_reference.taking_part(call, labels, inputs.row_mask)
    x = losses_reference.capped(losses_reference.read(predictions, part, call.columns, dtype), call.softcap)
    x, no_mass = losses_reference.without_mass(x, call.semantics)
    columns, given = x.shape[-1], x
    indices = inputs.top_indices.long()
    if part is not None:
        indices = torch.where(part.unsqueeze(-1), indices, indices.new_full((), -1))
    named, bad = indices >= 0, (indices >= columns).any(-1)
    rows = x.new_zeros(predictions.shape[:-1])
    no_target_mass = None
    if columns:
        inside = indices.clamp(0, columns - 1)
        mass, no_target_mass = _masses(call, inputs.top_values.detach().to(dtype), named)
        t = torch.zeros_like(x.detach()).scatter_add(-1, inside, mass.masked_fill(~named, 0))
        in_set = torch.zeros_like(x.detach()).scatter_add(-1, inside, named.to(dtype)) > 0
        if call.outside == _native.OUTSIDE_SUBSET:
            nothing = (x.masked_fill(~in_set, -math.inf) == -math.inf).all(-1)
            no_target_mass = nothing if no_target_mass is None else no_target_mass | nothing
        elif call.top_values != _native.TOP_LOGITS and call.outside < _native.OUTSIDE_RENORMALISED:
            no_target_mass = None
        if no_target_mass is not None:
            no_target_mass = no_target_mass & ~bad
            t = t.masked_fill(no_target_mass.unsqueeze(-1), 0)
            if call.outside == _native.OUTSIDE_SUBSET:  # whose value is set below: its derivative must be a number
                x = torch.where(no_target_mass.unsqueeze(-1), torch.zeros_like(x), x)
        if call.divergence_weight:  # of 0: also where D is infinite
            rows = call.divergence_weight * _divergence(call, x / call.temperature, t, in_set)
        if call.semantics == _native.STRICT and no_target_mass is not None:
            bad = bad | no_target_mass
    # With the logits, so that their gradient is NaN as well.
    undefined = torch.where(bad.unsqueeze(-1), given, torch.zeros_like(x)).sum(-1)
    rows = rows + undefined * torch.where(bad, rows.new_full((), math.nan), rows.new_zeros(()))
    weights = inputs.class_weights
    if weights is not None:
        weights = weights.to(dtype)[:columns]
    soft = losses_reference.Softmax(x / call.label_temperature)
    rows = rows + losses_reference.label_terms(call, soft, labels, weights)
    return losses_reference.reduced(call, inputs, part, losses_reference.either(no_mass, no_target_mass), rows,
                                    columns)


def _gradient_in_torch(call, inputs, upstream):
    """The gradient as something to differentiate again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        value = reference(call, inputs)
        made, = torch.autograd.grad(value, [inputs.predictions], upstream.to(value.dtype), create_graph=again)
    return made


# ---- autograd --------------------------------------------------------------------------------------------------------


class TopKLoss(torch.autograd.Function):
    """loss(call, *inputs)"""

    @staticmethod
    def forward(ctx, call, *tensors):
        inputs = Inputs(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.call = call
        if call.reduction == _native.ROWS:
            return _forward(call, inputs)
        made, made_for = torch.empty_like(inputs.predictions), losses_call.expect(_NAME, inputs.predictions)
        ctx.made = made, made_for
        return _forward(call, inputs, made, made_for)

    @staticmethod
    def backward(ctx, upstream):
        # Handed over once: autograd may make it somebody's .grad.
        made = ctx.__dict__.pop("made", None)
        call, inputs = ctx.call, Inputs(*ctx.saved_tensors)
        if upstream.is_neg():
            upstream = upstream.resolve_neg()
        how = route.TRANSFORMED
        if not torch.is_grad_enabled() and not route.is_batched(upstream):
            how = route.way((upstream, inputs.predictions, inputs.top_values))
        if how == route.EAGER and made is not None:
            made, made_for = made
            run(call, inputs, None, made, upstream, made_for)
            losses_call.came(_NAME, upstream)
        elif how == route.EAGER:
            made = _gradient(call, inputs, upstream)
        elif how == route.TRACED:
            made = torch.ops.onepass.top_k_loss_backward(upstream, *inputs, *call)
        else:
            made = _gradient_in_torch(call, inputs, upstream)
        return (None, made) + (None,) * (_TENSORS - 1)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


def _split(arguments):
    return Call(*arguments[_TENSORS:]), Inputs(*arguments[:_TENSORS])


class TracedTopKLoss(torch.autograd.Function):
    """The same, of the operators."""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.call = call
        with route.below_autograd():
            return torch.ops.onepass.top_k_loss(*tensors, *call)

    @staticmethod
    def backward(ctx, upstream):
        call, inputs = ctx.call, Inputs(*ctx.saved_tensors)
        if torch.is_grad_enabled() or route.is_batched(upstream):
            made = _gradient_in_torch(call, inputs, upstream)
        else:
            made = torch.ops.onepass.top_k_loss_backward(upstream, *inputs, *call)
        return (None, made) + (None,) * (_TENSORS - 1)


def _kernel(*arguments):
    return _forward(*_split(arguments))


def _meta(*arguments):
    return _empty_value(*_split(arguments))


def _autograd(*arguments):
    call, inputs = _split(arguments)
    if not route.wants_gradients(inputs.predictions):
        with route.below_autograd():
            return torch.ops.onepass.top_k_loss(*arguments)
    if route.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
        return reference(call, inputs)
    return TracedTopKLoss.apply(call, *inputs)


def _backward_kernel(upstream, *arguments):
    return _gradient(*_split(arguments), upstream)


if route.HAS_TRACED:
    _SCHEMA = ("(%sTensor predictions, Tensor top_values, Tensor top_indices, Tensor? labels, Tensor? class_weights, "
               "Tensor? row_weights, Tensor? row_mask, Tensor? divisor_tensor, int reduction, int semantics, "
               "float divisor, float temperature, float softcap, int columns, int ignore_index, float label_weight, "
               "float label_smoothing, float z_loss, float entropy_bonus, int divergence, float divergence_weight, "
               "float target_temperature, float label_temperature, int form, int outside) -> Tensor")
    route.define("top_k_loss" + _SCHEMA % "", _kernel, _meta, _autograd)
    route.define("top_k_loss_backward" + _SCHEMA % "Tensor upstream, ", _backward_kernel,
                 lambda upstream, predictions, *rest: torch.empty_like(predictions))


# ---- the function ----------------------------------------------------------------------------------------------------


def _check_teacher(name, rows, of, values, indices):
    losses.check_logits(name, "top_values", values)
    losses.check_beside(name, "top_values", values, rows.shape[:-1] + values.shape[-1:], rows, of)
    if values.requires_grad and torch.is_grad_enabled():
        raise errors.Unsupported("%s: top_values: requires_grad; there is no gradient to it" % name)
    if values.shape[-1] > MOST:
        raise errors.Unsupported("%s: top_values: %d classes; at most %d" % (name, values.shape[-1], MOST))
    if not isinstance(indices, torch.Tensor):
        raise TypeError("%s: top_indices: %s; it must be a torch.Tensor" % (name, type(indices).__name__))
    if indices.dtype not in (torch.int32, torch.int64):
        raise errors.InvalidArgument("%s: top_indices: dtype %s; it must be int32 or int64" % (name, indices.dtype))
    losses.check_beside(name, "top_indices", indices, values.shape, rows, of)


def read(name, rows, of, classes, of_classes, width, top_values, top_indices, *, form, outside, reverse, temperature,
         target_temperature, reduction, divergence_weight, labels, label_weight, label_smoothing, label_temperature,
         ignore_index, class_weights, z_loss, entropy_bonus, softcap, columns, divisor, row_weights, row_mask,
         semantics):
    """(Call, labels, divisor as a tensor or None) of arguments, which are checked. rows: logits or hidden states, the
    argument `of`; classes: the tensor, argument `of_classes`, that has `width` of them."""
    _check_teacher(name, rows, of, top_values, top_indices)
    kind = losses.option_of(name, "form", form, library.TOP_VALUES)
    if target_temperature is not None and kind != _native.TOP_LOGITS:
        raise errors.InvalidArgument("%s: target_temperature: %g; it goes with values that are logits" % (
            name, target_temperature))
    shape = rows.shape[:-1]
    columns = losses.columns_of(name, columns, width)
    if labels is not None:
        labels = losses.check_labels(name, "labels", labels, shape, rows, of, ignore_index, columns or width)
    elif label_weight or label_smoothing or class_weights is not None:
        raise errors.InvalidArgument("%s: label_weight, label_smoothing, class_weights: given without labels" % name)
    if class_weights is not None:
        losses.check_weights(name, "class_weights", class_weights, (width,), classes, of_classes)
    if row_weights is not None:
        losses.check_weights(name, "row_weights", row_weights, shape, rows, of)
    if row_mask is not None:
        losses.check_mask(name, row_mask, shape, rows, of)
    divisor_tensor = None
    if isinstance(divisor, torch.Tensor):
        dtypes = {tensor.dtype for tensor in (rows, classes, top_values)}
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        divisor_tensor = losses.divisor_tensor_of(name, divisor, rows, dtype)
    number, divisor = losses.reduction_of(name, reduction, divisor if divisor_tensor is None else True)
    temperature = losses.positive(name, "temperature", temperature)
    call = Call(number, losses.option_of(name, "semantics", semantics, library.SEMANTICS), float(divisor),
                temperature, losses.positive(name, "softcap", softcap, 0.0), columns, ignore_index,
                losses.finite(name, "label_weight", float(label_weight)),
                losses.smoothing_of(name, float(label_smoothing)), losses.finite(name, "z_loss", float(z_loss)),
                losses.finite(name, "entropy_bonus", float(entropy_bonus)),
                _native.REVERSE_KL if reverse else _native.KL,
                losses.finite(name, "divergence_weight", float(divergence_weight)),
                losses.positive(name, "target_temperature", target_temperature, temperature)
                if kind == _native.TOP_LOGITS else 0.0,
                losses.positive(name, "label_temperature", label_temperature), kind,
                losses.option_of(name, "outside", outside, library.OUTSIDE))
    return call, labels, divisor_tensor


def kl_div_top_k(logits, top_values, top_indices, *, form="log_probs", outside="tail", reverse=False,
                 temperature=1.0, target_temperature=None, reduction="batchmean", divergence_weight=1.0, labels=None,
                 label_weight=0.0, label_smoothing=0.0, label_temperature=1.0, ignore_index=-100, class_weights=None,
                 z_loss=0.0, entropy_bonus=0.0, softcap=None, columns=None, divisor=None, row_weights=None,
                 row_mask=None, semantics="strict"):
    """KL(T || S), S = softmax(logits / temperature), from a teacher T of which K classes a row are known.

    logits        [..., C]
    top_values    [..., K], K up to 4096, in any order
    top_indices   int64 or int32 of the same shape: their classes. One below 0 is padding, and ignored with its value.
                  The masses of one that comes twice add up. One that is no class makes value and gradient of its row
                  NaN
    form          what the values are: 'log_probs', 'probs', or 'logits', of which T is the softmax over the K values /
                  target_temperature (default: temperature)
    outside       what T is elsewhere: 'tail', all other classes are one more category, with what T lacks to 1, and the
                  loss is never negative; 'zero'; 'renormalised', 0 with T divided by its sum; 'subset', both sides are
                  normalised over the K classes, and the gradient to the others is 0
    reverse       KL(S || T). With 'zero' and 'renormalised' it is infinite, unless every class is named

    The other arguments are described in kl_div_logits. The gradient is to the logits alone, of any order. The loss is
    float32, or float64 if an input is.
    """
    options = {"form": form, "outside": outside, "reverse": reverse, "temperature": temperature,
               "target_temperature": target_temperature, "reduction": reduction,
               "divergence_weight": divergence_weight, "labels": labels, "label_weight": label_weight,
               "label_smoothing": label_smoothing, "label_temperature": label_temperature,
               "ignore_index": ignore_index, "class_weights": class_weights, "z_loss": z_loss,
               "entropy_bonus": entropy_bonus, "softcap": softcap, "columns": columns, "divisor": divisor,
               "row_weights": row_weights, "row_mask": row_mask, "semantics": semantics}
    if has_torch_function((logits, top_values, top_indices)):
        return handle_torch_function(kl_div_top_k, (logits, top_values, top_indices), logits, top_values, top_indices,
                                     **options)
    losses.check_logits(_NAME, "logits", logits)
    call, labels, divisor = read(_NAME, logits, "logits", logits, "logits", logits.shape[-1], top_values, top_indices,
                                 **options)
    return _loss(call, Inputs(logits, top_values, top_indices, labels, class_weights, row_weights, row_mask, divisor))


def _loss(call, inputs):
    how = route.TRANSFORMED
    served = losses_call.is_served(inputs.predictions)
    if served and call.divergence_weight:  # to the library, 0 is the default
        how = route.way(inputs)
    if how == route.TRANSFORMED:
        return reference(call, inputs)
    if how == route.TRACED:
        return torch.ops.onepass.top_k_loss(*inputs, *call)
    if not route.wants_gradients(inputs.predictions):
        return _forward(call, inputs)
    return TopKLoss.apply(call, *inputs)
