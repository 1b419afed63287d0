"""What rewrite, and the backend of torch.compile, put in the place of a model's losses from logits.

Each function gives what PyTorch's operations give, of the type that they give. It asks in every call whether
onepass.torch's function computes that, without storing a probability; where it does not (a device without kernels,
targets that are probabilities or broadcast, torch.func), PyTorch's operations are called as the model called them.
"""

import functools
import math
import warnings

import torch
import torch.nn.functional as F
from torch.overrides import handle_torch_function

from onepass.torch import losses, losses_call, route
from onepass.torch.kl import kl_div


def _why_not_called(predictions, *others):
    """Why the library is not called with these tensors; None if it is."""
    if predictions.dtype not in route.FLOATS:
        return "the logits are not of a floating-point type that onepass has"
    if not losses_call.is_served(predictions):
        return "on this device losses from logits are PyTorch's operations already"
    if route.way((predictions,) + others) == route.TRANSFORMED:
        return "a transform, or a class of tensors, has rules for PyTorch's operations alone"
    return None


def _asked(ask, key, *tensors):
    """The type of what PyTorch's operations give for tensors of these types; None if they refuse them. What autocast
    computes in float32 depends on device and release, so half types are asked for: with one element each, once."""
    dtypes = tuple(tensor.dtype for tensor in tensors)
    if not any(dtype in route.HALF for dtype in dtypes):
        return functools.reduce(torch.promote_types, dtypes)
    key = (tensors[0].device.type, route.autocasts(tensors[0])) + dtypes + key
    if route.is_compiling():
        return _ask(ask, tensors)
    if key not in _types:
        _types[key] = _ask(ask, tensors)
    return _types[key]


_types = {}  # {what was asked: type}


def _ask(ask, tensors):
    try:
        return ask(*(torch.ones(1, 1, dtype=tensor.dtype, device=tensor.device) for tensor in tensors)).dtype
    except RuntimeError:
        return None


def _as(value, dtype):
    return value if value.dtype is dtype else value.to(dtype)


# ---- cross-entropy ---------------------------------------------------------------------------------------------------


def _type_of_cross_entropy(input, weight):
    def ask(one, *weight):
        return F.cross_entropy(one, one.new_zeros(1, dtype=torch.int64), *(each.reshape(1) for each in weight))
    return _asked(ask, ("cross_entropy",), *((input,) if weight is None else (input, weight)))


def why_not_cross_entropy(input, target, weight, label_smoothing):
    """Why onepass.torch.cross_entropy is not PyTorch's of these tensors; None if it is."""
    if label_smoothing and route.VERSION < (1, 12):
        return "before PyTorch 1.12 label_smoothing counts rows that are ignored"
    why = _why_not_called(input, target, weight)
    if why:
        return why
    if target.is_floating_point():
        return "the targets are probabilities"
    if target.dtype is not torch.int64:
        return "the labels are not int64"
    if input.dim() < 2 or target.shape != input.shape[:1] + input.shape[2:]:
        return "the labels are not one for each row of logits [N, C, ...]"
    if weight is not None:
        if weight.requires_grad:
            return "weight requires a gradient"
        if weight.shape != input.shape[1:2] or (weight.dtype is not input.dtype and input.dtype not in route.HALF):
            return "weight is not one number of the logits' type for each class"
    if _type_of_cross_entropy(input, weight) is None:
        return "this PyTorch does not take these types"
    return None


def _has_nan(value):
    return math.isnan(value.item()) if value.dim() == 0 else bool(torch.isnan(value.detach()).any())


def cross_entropy(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """torch.nn.functional.cross_entropy, computed by onepass.torch.cross_entropy where that is the same."""
    if route.has_torch_function((input, target)):
        return handle_torch_function(cross_entropy, (input, target), input, target, weight, ignore_index, reduction,
                                     label_smoothing)
    if why_not_cross_entropy(input, target, weight, label_smoothing) is None:
        value = losses.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction,
                                     label_smoothing=label_smoothing)
        # A label out of range is PyTorch's to refuse, and the mean over no rows, of which old releases make 0, its own.
        if not route.is_eager(input, target) or not _has_nan(value):
            return _as(value, _type_of_cross_entropy(input, weight))
    return F.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction,
                           label_smoothing=label_smoothing)


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """What a torch.nn.CrossEntropyLoss becomes."""

    def forward(self, input, target):
        return cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


# ---- KL divergence of softmax ----------------------------------------------------------------------------------------

# How softmax is taken of logits, as a tuple, which a graph can hold: (dim, dtype, temperature), the latter two or None.


def _softmax(x, how, is_log):
    dim, dtype, temperature = how
    return (F.log_softmax if is_log else F.softmax)(x if temperature is None else x / temperature, dim, dtype=dtype)


def _composed(student, targets, how, target_how, reduction, log_target):
    """As the model had it. reduction: also the dimension that the model sums 'none' over."""
    if target_how is not None:
        targets = _softmax(targets, target_how, log_target)
    log_s, semantics = _softmax(student, how, True), semantics_of(log_target)
    if isinstance(reduction, int):
        return kl_div(log_s, targets, reduction="none", log_target=log_target, semantics=semantics).sum(reduction)
    return kl_div(log_s, targets, reduction=reduction, log_target=log_target, semantics=semantics)


def semantics_of(log_target):
    """The special values of this PyTorch's kl_div: before 1.13 it was 0 wherever the target was, whatever the input."""
    return "finite" if route.VERSION < (1, 13) and not log_target else "strict"


def warn_of_mean():
    """The warning of torch.nn.functional.kl_div, of which kl_div_probs has none."""
    if not route.is_compiling():
        warnings.warn("reduction: 'mean' divides the total loss by both the batch size and the support size. "
                      "The divergence of a batch is 'batchmean', which PyTorch says 'mean' will become.", stacklevel=2)


def _type_of_kl_div(student, targets, how, target_how, log_target):
    of_student, of_targets = how[1], None if target_how is None else target_how[1]

    def ask(s, t):
        t = t if target_how is None else _softmax(t, (1, of_targets, None), log_target)
        return F.kl_div(_softmax(s, (1, of_student, None), True), t, reduction="sum", log_target=log_target)
    return _asked(ask, (target_how is None, of_student, of_targets, log_target), student, targets)


def _last(tensor, dim):
    return tensor if dim in (-1, tensor.dim() - 1) else tensor.movedim(dim, -1)


def why_not_kl_div(student, targets, how, target_how, reduction, log_target):
    """Why onepass.torch.kl_div_logits is not the same; None if it is."""
    why = _why_not_called(student, targets)
    if why:
        return why
    if targets.dtype not in route.FLOATS:
        return "the targets are not of a floating-point type that onepass has"
    if student.shape != targets.shape:
        return "the shapes differ"
    rank = student.dim()
    dims = [how[0]] + ([] if target_how is None else [target_how[0]]) + (
        [reduction] if isinstance(reduction, int) else [])
    if any(not -rank <= dim < rank for dim in dims) or len({dim % rank for dim in dims}) > 1:
        return "not all dimensions that are summed over are the same"
    if rank > 1 and how[0] % rank == 0:
        return "softmax is over the first dimension"
    for tensor, each in ((student, how), (targets, target_how)):
        if each is not None and each[1] is not None and (each[1] is not torch.float32 or tensor.dtype is torch.float64):
            return "softmax is computed in another type than onepass computes it in"
    if target_how is None and not log_target and route.VERSION < (1, 13) and targets.requires_grad:
        return "before PyTorch 1.13 the gradient to targets is another where they are 0"
    if _type_of_kl_div(student, targets, how, target_how, log_target) is None:
        return "this PyTorch does not take these types"
    return None


def kl_div_of_softmax(student, targets, how, target_how, reduction, log_target, warns):
    """kl_div(log_softmax(student), T), computed by onepass.torch.kl_div_logits where that is the same. T is softmax or,
    with log_target, log_softmax of the targets, or without a target_how the targets themselves.

    reduction   kl_div's, but for 'none': the dimension that it is then summed over
    """
    if route.has_torch_function((student, targets)):
        return handle_torch_function(kl_div_of_softmax, (student, targets), student, targets, how, target_how,
                                     reduction, log_target, warns)
    if why_not_kl_div(student, targets, how, target_how, reduction, log_target) is not None:
        return _composed(student, targets, how, target_how, reduction, log_target)
    if warns and reduction == "mean":
        warn_of_mean()
    options = {"target": "log_probs" if log_target else "probs"}
    if target_how is not None:
        options = {"target_temperature": target_how[2] or 1.0}
    value = losses.kl_div_logits(_last(student, how[0]), _last(targets, how[0]),
                                 "none" if isinstance(reduction, int) else reduction, temperature=how[2] or 1.0,
                                 **options)
    return _as(value, _type_of_kl_div(student, targets, how, target_how, log_target))
