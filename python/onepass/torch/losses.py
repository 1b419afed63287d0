"""Losses from logits: cross_entropy with torch.nn.functional's signature, and divergences of predictions, which are
logits, from targets that are logits, probabilities or their logarithms. No probability is stored.

What is here checks arguments and turns them into a call; losses_call.py makes it. Token log-probabilities are in
losses_tokens.py.
"""

import functools
import math
import os

import torch
from torch.nn import _reduction
from torch.overrides import handle_torch_function, has_torch_function

from onepass import _native, errors, library
from onepass.torch import losses_call, losses_reference, losses_shards, route
from onepass.torch.losses_call import Call, Inputs

_TARGETS = {"logits": losses_reference.LOGITS, "probs": losses_reference.PROBS, "log_probs": losses_reference.LOG_PROBS}

_REDUCTIONS = {"batchmean": _native.BATCHMEAN, "mean": _native.MEAN, "sum": _native.SUM, "none": _native.ROWS,
               "rows": _native.ROWS, "valid": _native.VALID}
_CROSS_ENTROPY_REDUCTIONS = {"none": _native.ROWS, "mean": _native.VALID, "sum": _native.SUM}

_LABELS = torch.int32, torch.int64
_OTHER_INTEGERS = torch.uint8, torch.int8, torch.int16

# Labels out of range are NaN; to raise instead, which on CUDA waits for the device, is for finding mistakes.
_CHECKS_LABELS = os.environ.get("ONEPASS_CHECK_LABELS", "0") not in ("", "0")


# ---- arguments -------------------------------------------------------------------------------------------------------


def check_logits(name, argument, tensor):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError("%s: %s: %s; it must be a torch.Tensor" % (name, argument, type(tensor).__name__))
    if tensor.dtype not in route.FLOATS:
        raise errors.Unsupported("%s: %s: dtype %s; it must be float16, bfloat16, float32 or float64" %
                                 (name, argument, tensor.dtype))
    if tensor.dim() == 0:
        raise errors.InvalidArgument("%s: %s: 0 dimensions; it must have one for the classes" % (name, argument))


def check_beside(name, argument, tensor, shape, like, of):
    """A tensor of this shape, on the device of another."""
    if tensor.shape != shape:
        raise errors.InvalidArgument("%s: %s: shape %s does not fit %s %s; it must be %s" % (
            name, argument, list(tensor.shape), of, list(like.shape), list(shape)))
    if tensor.device != like.device:
        raise errors.InvalidArgument("%s: %s: device %s; it must be that of %s, %s" % (
            name, argument, tensor.device, of, like.device))


def check_labels(name, argument, labels, shape, like, of, ignore_index, columns):
    """The labels, as the library takes them."""
    if not isinstance(labels, torch.Tensor):
        raise TypeError("%s: %s: %s; it must be a torch.Tensor" % (name, argument, type(labels).__name__))
    if labels.dtype not in _LABELS:
        if labels.dtype not in _OTHER_INTEGERS:
            raise errors.InvalidArgument("%s: %s: dtype %s; expected scalar type Long: labels must be int64 or another "
                                         "integer type" % (name, argument, labels.dtype))
        labels = labels.long()
    check_beside(name, argument, labels, shape, like, of)
    if _CHECKS_LABELS and not route.is_compiling():
        bad = ((labels < 0) | (labels >= columns)) & (labels != ignore_index)
        if bool(bad.any()):
            raise IndexError("%s: %s: %d is out of bounds; a label must be from 0 to %d, or ignore_index, %d" % (
                name, argument, int(labels[bad][0]), columns - 1, ignore_index))
    return labels


def check_mask(name, row_mask, shape, like, of):
    if not isinstance(row_mask, torch.Tensor):
        raise TypeError("%s: row_mask: %s; it must be a torch.Tensor" % (name, type(row_mask).__name__))
    if row_mask.dtype not in (torch.bool, torch.uint8):
        raise errors.InvalidArgument("%s: row_mask: dtype %s; it must be bool or uint8" % (name, row_mask.dtype))
    check_beside(name, "row_mask", row_mask, shape, like, of)


def check_weights(name, argument, weights, shape, like, of):
    if not isinstance(weights, torch.Tensor) or weights.dtype not in route.FLOATS:
        raise TypeError("%s: %s: %s; it must be a floating-point torch.Tensor" % (
            name, argument, getattr(weights, "dtype", type(weights).__name__)))
    check_beside(name, argument, weights, shape, like, of)
    if weights.requires_grad and torch.is_grad_enabled():
        raise errors.Unsupported("%s: %s: requires_grad; there is no gradient to it" % (name, argument))


def positive(name, argument, value, default=None):
    """The number; None: its default."""
    if value is None and default is not None:
        return default
    value = float(value)
    if not 0 < value < math.inf:
        raise errors.InvalidArgument("%s: %s: %g; it must be finite and above 0" % (name, argument, value))
    return value


def as_number(value):
    """As a key of what is kept: a tensor would be one by its address."""
    return None if value is None else float(value)


def finite(name, argument, value):
    if not -math.inf < value < math.inf:
        raise errors.InvalidArgument("%s: %s: %g; it must be finite" % (name, argument, value))
    return value


def columns_of(name, columns, width):
    """As the library takes it: 0 is all."""
    if columns is None:
        return 0
    if not 0 < columns <= width:
        raise errors.InvalidArgument("%s: columns: %s; it must be from 1 to the number of classes, %s" % (
            name, columns, width))
    return columns


def smoothing_of(name, value):
    if not 0 <= value <= 1:
        raise errors.InvalidArgument("%s: label_smoothing: %g; it must be between 0 and 1" % (name, value))
    return value


def _bits(name, outputs, offered):
    bits = 0
    for output in outputs:
        if output not in offered:
            raise errors.InvalidArgument("%s: outputs: %r; each must be one of %s" % (name, output,
                                                                                      ", ".join(offered)))
        bits |= 1 << losses_reference.OUTPUTS.index(output)
    return bits


def option_of(name, argument, value, table):
    if value not in table:
        raise errors.InvalidArgument("%s: %s: %r is not a valid value; it must be one of %s" % (
            name, argument, value, ", ".join(table)))
    return table[value]


def reduction_of(name, reduction, divisor):
    """(number, divisor); divisor: a number, None, or True for one in a tensor."""
    number = option_of(name, "reduction", reduction,
                       _CROSS_ENTROPY_REDUCTIONS if name.endswith("cross_entropy") else _REDUCTIONS)
    if divisor is None:
        return number, 0.0
    if number != _native.SUM:
        raise errors.InvalidArgument("%s: divisor: given with reduction %r; it goes with 'sum'" % (name, reduction))
    if divisor is True:
        return _native.DIVISOR, 0.0
    if finite(name, "divisor", divisor) == 0:
        raise errors.InvalidArgument("%s: divisor: 0; it must be another number" % name)
    return _native.DIVISOR, divisor


def divisor_tensor_of(name, divisor, predictions, dtype):
    """As the library takes it."""
    if divisor.numel() != 1:
        raise errors.InvalidArgument("%s: divisor: shape %s; it must have one element" % (name, list(divisor.shape)))
    if divisor.requires_grad and torch.is_grad_enabled():
        raise errors.Unsupported("%s: divisor: requires_grad; there is no gradient to it" % name)
    return divisor.reshape(()).to(device=predictions.device, dtype=dtype)


def _make_call(name, form, divergence, mixture, offered, reduction, divisor, semantics, temperature, softcap, columns,
               ignore_index, label_weight, label_smoothing, z_loss, entropy_bonus, divergence_weight,
               target_temperature, label_temperature, target_softcap, outputs):
    """The Call of these options, which are checked."""
    number, divisor = reduction_of(name, reduction, divisor)
    temperature = positive(name, "temperature", temperature)
    is_logits, has_labels_alone = form == losses_reference.LOGITS, form == losses_reference.LABELS
    return Call(form, number, option_of(name, "semantics", semantics, library.SEMANTICS), divisor, temperature,
                positive(name, "softcap", softcap, 0.0), columns, ignore_index,
                finite(name, "label_weight", label_weight), smoothing_of(name, label_smoothing),
                finite(name, "z_loss", z_loss), finite(name, "entropy_bonus", entropy_bonus), divergence, mixture,
                finite(name, "divergence_weight", divergence_weight),
                positive(name, "target_temperature", target_temperature, temperature) if is_logits else 0.0,
                0.0 if has_labels_alone else positive(name, "label_temperature", label_temperature),
                positive(name, "target_softcap", target_softcap, 0.0), _bits(name, outputs, offered))


_kept_call = functools.lru_cache(maxsize=256)(_make_call)


def call_of(*options):
    """_make_call, which programs call with few sets of options."""
    return _make_call(*options) if route.is_compiling() else _kept_call(*options)


def answer(results, call, outputs):
    """What the caller gets: the value, or with outputs a tuple, in the order in which he named them."""
    if not outputs:
        return results[0]
    made = dict(zip(losses_reference.outputs_of(call.outputs), results[1:]))
    return (results[0],) + tuple(made[name] for name in outputs)


# ---- divergences -----------------------------------------------------------------------------------------------------


def _of_one_width(name, predictions, targets, columns):
    """Both with the classes of the narrower: vocabularies are padded differently, and columns says what counts."""
    width, other = predictions.shape[-1], targets.shape[-1]
    if predictions.shape[:-1] != targets.shape[:-1] or (width != other and columns is None):
        raise errors.InvalidArgument("%s: targets: shape %s does not fit predictions %s; it must be the same (with "
                                     "columns, but for the last dimension)" % (name, list(targets.shape),
                                                                             list(predictions.shape)))
    if width == other:
        return predictions, targets
    return predictions[..., :other], targets[..., :width]


def _divergence(name, divergence, mixture, predictions, targets, reduction, *, target="logits", temperature=1.0,
                target_temperature=None, divergence_weight=1.0, labels=None, label_weight=0.0, label_smoothing=0.0,
                label_temperature=1.0, ignore_index=-100, class_weights=None, z_loss=0.0, entropy_bonus=0.0,
                softcap=None, target_softcap=None, columns=None, divisor=None, row_weights=None, row_mask=None,
                semantics="strict", outputs=(), inplace=False, process_group=None):
    """mixture: (argument, number), None: it has none."""
    if process_group is not None and not isinstance(process_group, losses_shards.Entry):
        return losses_shards.entered(process_group, _divergence, {
            "name": name, "divergence": divergence, "mixture": mixture, "predictions": predictions, "targets": targets,
            "reduction": reduction, "target": target, "temperature": temperature,
            "target_temperature": target_temperature, "divergence_weight": divergence_weight, "labels": labels,
            "label_weight": label_weight, "label_smoothing": label_smoothing, "label_temperature": label_temperature,
            "ignore_index": ignore_index, "class_weights": class_weights, "z_loss": z_loss,
            "entropy_bonus": entropy_bonus, "softcap": softcap, "target_softcap": target_softcap, "columns": columns,
            "divisor": divisor, "row_weights": row_weights, "row_mask": row_mask, "semantics": semantics,
            "outputs": outputs, "inplace": inplace}, in_graphs=True)
    mixture = 0.0 if mixture is None else mixture_of(name, *mixture)
    check_logits(name, "predictions", predictions)
    check_logits(name, "targets", targets)
    form = option_of(name, "target", target, _TARGETS)
    if form != losses_reference.LOGITS:
        for argument, value in (("target_temperature", target_temperature), ("target_softcap", target_softcap)):
            if value is not None:
                raise errors.InvalidArgument("%s: %s: %g; it goes with targets that are logits" % (name, argument,
                                                                                                  value))
    if predictions.shape != targets.shape:
        predictions, targets = _of_one_width(name, predictions, targets, columns if process_group is None else None)
    if targets.device != predictions.device:
        raise errors.InvalidArgument("%s: targets: device %s; it must be that of predictions, %s" % (
            name, targets.device, predictions.device))
    shape, width = predictions.shape[:-1], predictions.shape[-1]
    classes = width if process_group is None else math.inf  # of a group, those of all ranks: not known yet
    columns = columns_of(name, columns, classes)
    if labels is not None:
        labels = check_labels(name, "labels", labels, shape, predictions, "predictions", ignore_index,
                              columns or classes)
    elif label_weight or label_smoothing or class_weights is not None:
        raise errors.InvalidArgument("%s: label_weight, label_smoothing, class_weights: given without labels" % name)
    if class_weights is not None:
        check_weights(name, "class_weights", class_weights, (width,), predictions, "predictions")
    if row_weights is not None:
        check_weights(name, "row_weights", row_weights, shape, predictions, "predictions")
    if row_mask is not None:
        check_mask(name, row_mask, shape, predictions, "predictions")
    divisor_tensor = None
    if isinstance(divisor, torch.Tensor):
        divisor_tensor = divisor_tensor_of(name, divisor, predictions, losses_reference.value_dtype(predictions, targets))
    call = call_of(name, form, divergence, mixture, OFFERED[form, labels is not None], reduction,
                   as_number(divisor) if divisor_tensor is None else True, semantics, as_number(temperature),
                   as_number(softcap), columns, ignore_index, float(label_weight), float(label_smoothing),
                   float(z_loss), float(entropy_bonus), float(divergence_weight), as_number(target_temperature),
                   float(label_temperature), as_number(target_softcap), tuple(outputs))
    inputs = Inputs(predictions, targets, labels, class_weights, row_weights, row_mask, divisor_tensor)
    if process_group is not None:
        return answer(losses_shards.loss(name, call, inputs, inplace, process_group), call, outputs)
    return answer(losses_call.loss(name, call, inputs, inplace), call, outputs)


def _offered(form, has_labels):
    """The outputs that there are."""
    offered = losses_reference.OUTPUTS[:4] if form == losses_reference.LABELS else losses_reference.OUTPUTS
    return tuple(output for output in offered if not (output == "log_prob" and not has_labels)
                 and not (output == "target_lse" and form != losses_reference.LOGITS))


OFFERED = {(form, has_labels): _offered(form, has_labels) for form in range(4) for has_labels in (False, True)}


def mixture_of(name, argument, value):
    value = float(value)
    if not 0 < value < 1:
        raise errors.InvalidArgument("%s: %s: %g; it must be above 0 and below 1" % (name, argument, value))
    return value


def kl_div_logits(predictions, targets, reduction="batchmean", **options):
    """KL(T || S), S = softmax(predictions / temperature), T = softmax(targets / target_temperature): what you would
    write as kl_div(log_softmax(predictions), softmax(targets)).

    predictions   logits [..., C]
    targets       of the same shape: logits, or with target='probs' | 'log_probs' what they say, taken as they are
    reduction     'batchmean' (over the first dimension), 'mean' (over all elements), 'sum', 'none' (one value per row),
                  'valid' (over the rows that take part, counted where they are)

    Keywords, of all divergences:
    target               'logits', 'probs', 'log_probs'
    temperature, target_temperature   the latter's default is the former. Nothing is multiplied by their square:
    divergence_weight    multiplies the divergence, temperature ** 2 of distillation, say
    softcap, target_softcap   logits become cap tanh(x / cap) before all else
    columns              only so many classes exist, the others are padding: they take no part, and their gradient is
                         0. With it predictions and targets may be padded to different widths
    labels, ignore_index   int64 or int32, one per row: a row whose label is ignored takes no part
    label_weight         adds label_weight times the cross-entropy of softmax(predictions / label_temperature) and the
                         labels, with label_smoothing and class_weights as in cross_entropy
    z_loss, entropy_bonus   add z_loss lse^2 and -entropy_bonus H of softmax(predictions / label_temperature)
    divisor              with 'sum': a number or a tensor with one, which divides it
    row_weights          one number per row that multiplies it; no gradient to it
    row_mask             bool or uint8, one per row: where it is 0 the row takes no part
    semantics            'strict'; 'finite': a row without any mass counts 0 instead of NaN, and so does a mean over no
                         rows
    outputs              names of what is wanted besides, one per row and without a gradient: 'lse', 'entropy',
                         'log_prob', 'argmax', 'target_lse', 'target_entropy'. Returns (loss, *outputs)
    inplace              the gradient is written over predictions, where that is possible: they must not be used again
    process_group        the classes are spread over the processes of this group, in the order of their ranks; these are
                         this rank's. Everything else is the same on all of them; columns, labels and argmax count the
                         classes of all. Of targets that are logits, on the CPU, to be differentiated once

    A row that takes no part is never read; its value and gradient are 0. A label out of range makes value and gradient
    of its row NaN, or raises IndexError if ONEPASS_CHECK_LABELS=1 was in the environment.
    The loss is float32, or float64 if an input is. Gradients to predictions and targets, of any order.
    """
    if has_torch_function((predictions, targets)):
        return handle_torch_function(kl_div_logits, (predictions, targets), predictions, targets, reduction=reduction,
                                     **options)
    return _divergence("kl_div_logits", _native.KL, None, predictions, targets, reduction, **options)


def reverse_kl_logits(predictions, targets, reduction="batchmean", **options):
    """KL(S || T); arguments as of kl_div_logits."""
    if has_torch_function((predictions, targets)):
        return handle_torch_function(reverse_kl_logits, (predictions, targets), predictions, targets,
                                     reduction=reduction, **options)
    return _divergence("reverse_kl_logits", _native.REVERSE_KL, None, predictions, targets, reduction, **options)


def js_logits(predictions, targets, beta=0.5, reduction="batchmean", **options):
    """beta KL(T || M) + (1 - beta) KL(S || M) with M = beta T + (1 - beta) S, 0 < beta < 1, the generalised
    Jensen-Shannon divergence; arguments as of kl_div_logits."""
    if has_torch_function((predictions, targets)):
        return handle_torch_function(js_logits, (predictions, targets), predictions, targets, beta=beta,
                                     reduction=reduction, **options)
    return _divergence("js_logits", _native.JS, ("beta", beta), predictions, targets, reduction, **options)


def skew_kl_logits(predictions, targets, alpha=0.1, reduction="batchmean", **options):
    """KL(T || alpha T + (1 - alpha) S), 0 < alpha < 1; arguments as of kl_div_logits."""
    if has_torch_function((predictions, targets)):
        return handle_torch_function(skew_kl_logits, (predictions, targets), predictions, targets, alpha=alpha,
                                     reduction=reduction, **options)
    return _divergence("skew_kl_logits", _native.SKEW_KL, ("alpha", alpha), predictions, targets, reduction, **options)


def skew_reverse_kl_logits(predictions, targets, alpha=0.1, reduction="batchmean", **options):
    """KL(S || alpha S + (1 - alpha) T), 0 < alpha < 1; arguments as of kl_div_logits."""
    if has_torch_function((predictions, targets)):
        return handle_torch_function(skew_reverse_kl_logits, (predictions, targets), predictions, targets, alpha=alpha,
                                     reduction=reduction, **options)
    return _divergence("skew_reverse_kl_logits", _native.SKEW_REVERSE_KL, ("alpha", alpha), predictions, targets,
                       reduction, **options)


def tv_logits(predictions, targets, reduction="batchmean", **options):
    """Total variation, half the sum of |S - T|; its derivative is 0 where they are equal. Arguments as of
    kl_div_logits."""
    if has_torch_function((predictions, targets)):
        return handle_torch_function(tv_logits, (predictions, targets), predictions, targets, reduction=reduction,
                                     **options)
    return _divergence("tv_logits", _native.TOTAL_VARIATION, None, predictions, targets, reduction, **options)


# ---- cross-entropy ---------------------------------------------------------------------------------------------------


def _classes_last(name, input, target, class_dim):
    """(input with its classes in the last dimension, whether targets are probabilities, targets of that order)."""
    dimensions = input.dim()
    if dimensions == 1:
        class_dim = 0
    elif not -dimensions <= class_dim < dimensions:
        raise errors.InvalidArgument("%s: class_dim: %d; input has %d dimensions" % (name, class_dim, dimensions))
    are_probabilities = target.is_floating_point() and target.shape == input.shape
    if class_dim % dimensions == dimensions - 1:
        return input, are_probabilities, target
    return (input.movedim(class_dim, -1), are_probabilities,
            target.movedim(class_dim, -1) if are_probabilities else target)


def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                  label_smoothing=0.0, *, class_dim=1, temperature=1.0, softcap=None, columns=None, z_loss=0.0,
                  entropy_bonus=0.0, divisor=None, row_weights=None, row_mask=None, semantics="strict", outputs=(),
                  inplace=False, process_group=None):
    """torch.nn.functional.cross_entropy: of logits [N, C, ...] or [C] and labels [N, ...], or probabilities of the
    input's shape. The loss is float32, or float64 if an input is.

    weight, ignore_index, reduction, label_smoothing, size_average, reduce   as in PyTorch: 'mean' is over the rows that
    take part, weighted as their labels are

    Keywords that PyTorch does not have; the others are described in kl_div_logits:
    class_dim     where the classes are, -1 for [batch, tokens, C]
    temperature   input / temperature is what softmax is taken of
    z_loss        adds z_loss lse^2 to each row that takes part
    outputs       of 'lse', 'entropy', 'log_prob', 'argmax'
    process_group   as in kl_div_logits; weight is that of this rank's classes

    Targets that are probabilities are computed by PyTorch's operations.
    """
    if process_group is not None and not isinstance(process_group, losses_shards.Entry):
        return losses_shards.entered(process_group, cross_entropy, {
            "input": input, "target": target, "weight": weight, "size_average": size_average,
            "ignore_index": ignore_index, "reduce": reduce, "reduction": reduction, "label_smoothing": label_smoothing,
            "class_dim": class_dim, "temperature": temperature, "softcap": softcap, "columns": columns,
            "z_loss": z_loss, "entropy_bonus": entropy_bonus, "divisor": divisor, "row_weights": row_weights,
            "row_mask": row_mask, "semantics": semantics, "outputs": outputs, "inplace": inplace}, in_graphs=True)
    name = "cross_entropy"
    if has_torch_function((input, target)):
        return handle_torch_function(
            cross_entropy, (input, target), input, target, weight=weight, size_average=size_average,
            ignore_index=ignore_index, reduce=reduce, reduction=reduction, label_smoothing=label_smoothing,
            class_dim=class_dim, temperature=temperature, softcap=softcap, columns=columns, z_loss=z_loss,
            entropy_bonus=entropy_bonus, divisor=divisor, row_weights=row_weights, row_mask=row_mask,
            semantics=semantics, outputs=outputs, inplace=inplace, process_group=process_group)
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    check_logits(name, "input", input)
    if not isinstance(target, torch.Tensor):
        raise TypeError("%s: target: %s; it must be a torch.Tensor" % (name, type(target).__name__))
    predictions, are_probabilities, target = _classes_last(name, input, target, class_dim)
    shape, width = predictions.shape[:-1], predictions.shape[-1]
    classes = width if process_group is None else math.inf  # of a group, those of all ranks: not known yet
    columns = columns_of(name, columns, classes)
    if are_probabilities:
        if process_group is not None:
            raise errors.Unsupported("%s: process_group: given with targets that are probabilities" % name)
        check_logits(name, "target", target)
        check_beside(name, "target", target, predictions.shape, predictions, "input")
        if ignore_index >= 0:
            raise errors.InvalidArgument("%s: ignore_index: %d; it is not supported for targets that are "
                                         "probabilities" % (name, ignore_index))
    else:
        target = check_labels(name, "target", target, shape, input, "input", ignore_index,
                              columns or classes)
    if weight is not None:
        check_weights(name, "weight", weight, (width,), input, "input")
    if row_weights is not None:
        check_weights(name, "row_weights", row_weights, shape, input, "input")
    if row_mask is not None:
        check_mask(name, row_mask, shape, input, "input")
    divisor_tensor = None
    if isinstance(divisor, torch.Tensor):
        divisor_tensor = divisor_tensor_of(name, divisor, input, losses_reference.value_dtype(input, None))
    form = losses_reference.LABELS
    call = call_of(name, form, 0, 0.0, OFFERED[form, not are_probabilities], reduction,
                   as_number(divisor) if divisor_tensor is None else True, semantics, as_number(temperature),
                   as_number(softcap), columns, ignore_index, 1.0, float(label_smoothing), float(z_loss),
                   float(entropy_bonus), 0.0, None, 0.0, None, tuple(outputs))
    if are_probabilities:
        inputs = Inputs(predictions, target, None, weight, row_weights, row_mask, divisor_tensor)
        return answer(losses_reference.cross_entropy_probs(call, inputs), call, outputs)
    inputs = Inputs(predictions, None, target, weight, row_weights, row_mask, divisor_tensor)
    if process_group is not None:
        return answer(losses_shards.loss(name, call, inputs, inplace, process_group), call, outputs)
    return answer(losses_call.loss(name, call, inputs, inplace), call, outputs)
