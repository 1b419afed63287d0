"""Divergences of the logits of a student from those of a teacher, both made of hidden states and a weight, without
either of them being there as a whole: linear_kl_div and its like. How they are computed is in losses_linear.py.
"""

import math

import torch
from torch.overrides import handle_torch_function, has_torch_function

from onepass import _native, errors
from onepass.torch import losses, losses_linear, losses_reference, losses_shards, losses_shards_linear, route
from onepass.torch.linear import autocast

_STUDENT = "input", "linear_weight", "linear_bias"
_TEACHER = "target_input", "target_weight", "target_bias"


def _check_teacher(name, input, linear_weight, teacher):
    losses_linear.check_side(name, _TEACHER, *teacher)
    losses_linear.check_matrix(name, "target_weight", teacher[1])
    target_input, target_weight = teacher[:2]
    losses.check_beside(name, "target_input", target_input, input.shape[:-1] + target_input.shape[-1:], input, "input")
    if target_weight.shape[0] != linear_weight.shape[0]:
        raise errors.InvalidArgument("%s: target_weight: shape %s; it must have the %d classes of linear_weight" % (
            name, list(target_weight.shape), linear_weight.shape[0]))
    for argument, tensor in zip(_TEACHER, teacher):
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise errors.Unsupported("%s: %s: requires_grad; there is no gradient to the teacher, pass %s.detach()" % (
                name, argument, argument))


def _divergence(name, divergence, mixture, input, linear_weight, target_input, target_weight, reduction, *,
                linear_bias=None, target_bias=None, temperature=1.0, target_temperature=None, divergence_weight=1.0,
                labels=None, label_weight=0.0, label_smoothing=0.0, label_temperature=1.0, ignore_index=-100,
                class_weights=None, z_loss=0.0, entropy_bonus=0.0, softcap=None, target_softcap=None, columns=None,
                divisor=None, row_weights=None, row_mask=None, semantics="strict", outputs=(), chunk_bytes=None,
                process_group=None):
    """mixture: (argument, number), None: it has none."""
    if process_group is not None and not isinstance(process_group, losses_shards.Entry):
        return losses_shards.entered(process_group, _divergence, locals())
    mixture = 0.0 if mixture is None else losses.mixture_of(name, *mixture)
    losses_linear.check_side(name, _STUDENT, input, linear_weight, linear_bias)
    losses_linear.check_matrix(name, "linear_weight", linear_weight)
    _check_teacher(name, input, linear_weight, (target_input, target_weight, target_bias))
    chunk_bytes = losses_linear.check_chunk_bytes(name, chunk_bytes)
    shape, width = input.shape[:-1], linear_weight.shape[0]
    classes = width if process_group is None else math.inf  # of a group, those of all ranks: not known yet
    columns = losses.columns_of(name, columns, classes)
    if labels is not None:
        labels = losses.check_labels(name, "labels", labels, shape, input, "input", ignore_index, columns or classes)
    elif label_weight or label_smoothing or class_weights is not None:
        raise errors.InvalidArgument("%s: label_weight, label_smoothing, class_weights: given without labels" % name)
    if class_weights is not None:
        losses.check_weights(name, "class_weights", class_weights, (width,), linear_weight, "linear_weight")
    if row_weights is not None:
        losses.check_weights(name, "row_weights", row_weights, shape, input, "input")
    if row_mask is not None:
        losses.check_mask(name, row_mask, shape, input, "input")
    if route.autocasts(input):
        input, linear_weight, linear_bias = autocast(input, linear_weight, linear_bias)
        target_input, target_weight, target_bias = autocast(target_input, target_weight, target_bias)
    divisor_tensor = None
    if isinstance(divisor, torch.Tensor):
        dtype = torch.promote_types(losses_reference.value_dtype(input, linear_weight),
                                    losses_reference.value_dtype(target_input, target_weight))
        divisor_tensor = losses.divisor_tensor_of(name, divisor, input, dtype)
    form = losses_reference.LOGITS
    made = losses.call_of(name, form, divergence, mixture, losses.OFFERED[form, labels is not None], reduction,
                          losses.as_number(divisor) if divisor_tensor is None else True, semantics,
                          losses.as_number(temperature), losses.as_number(softcap), columns, ignore_index,
                          float(label_weight), float(label_smoothing), float(z_loss), float(entropy_bonus),
                          float(divergence_weight), losses.as_number(target_temperature), float(label_temperature),
                          losses.as_number(target_softcap), tuple(outputs))
    inputs = losses_linear.Inputs(input, linear_weight, linear_bias, target_input, target_weight, target_bias, labels,
                                  class_weights, row_weights, row_mask, divisor_tensor)
    call = losses_linear.Call(*made, chunk_bytes)
    if process_group is not None:
        return losses.answer(losses_shards_linear.loss(name, call, inputs, process_group), made, outputs)
    return losses.answer(losses_linear.loss(call, inputs), made, outputs)


def _overridden(function, tensors, reduction, options):
    """(whether another class of tensors takes the call, what it returned)"""
    given = tensors + tuple(options.get(name) for name in ("linear_bias", "target_bias"))
    if not has_torch_function(given):
        return False, None
    return True, handle_torch_function(function, given, *tensors, reduction=reduction, **options)


def linear_kl_div(input, linear_weight, target_input, target_weight, reduction="batchmean", **options):
    """KL(T || S) of S = softmax((input linear_weight^T + linear_bias) / temperature) and
    T = softmax((target_input target_weight^T + target_bias) / target_temperature), without all logits of either at
    once.

    input, linear_weight            the student's hidden states [..., K] and weight [C, K]
    target_input, target_weight     the teacher's [..., L] and [C, L]
    reduction                       as in kl_div_logits

    Keywords, of all of these divergences:
    linear_bias, target_bias        [C]
    chunk_bytes                     what a chunk of logits of both sides, with hidden states, may take; None: 512 MiB.
                                    At least 264 rows are taken at a time. It changes no bit of the loss and of the
                                    gradient to input
    process_group                   the classes are spread over the processes of this group: weights, biases and
                                    class_weights are those of this rank's, as in linear_cross_entropy

    The others are those of kl_div_logits but for target and inplace: temperatures, softcaps, columns, the terms of
    labels, row_weights, row_mask, outputs. Rows that are masked or whose label is ignored are never read, and cost
    nothing on the CPU. The loss is float32; float64 if an input is. Logits of half types are float32 on the CPU, and
    have that type on a GPU. Gradients to input, linear_weight and linear_bias, each made only if it is needed, of any
    order; those of higher order with all logits at once, as on devices without kernels. There is none to the teacher:
    one that requires grad is refused.
    """
    tensors = input, linear_weight, target_input, target_weight
    taken, result = _overridden(linear_kl_div, tensors, reduction, options)
    return result if taken else _divergence("linear_kl_div", _native.KL, None, *tensors, reduction, **options)


def linear_reverse_kl(input, linear_weight, target_input, target_weight, reduction="batchmean", **options):
    """KL(S || T); arguments as of linear_kl_div."""
    tensors = input, linear_weight, target_input, target_weight
    taken, result = _overridden(linear_reverse_kl, tensors, reduction, options)
    return result if taken else _divergence("linear_reverse_kl", _native.REVERSE_KL, None, *tensors, reduction,
                                            **options)


def linear_js(input, linear_weight, target_input, target_weight, beta=0.5, reduction="batchmean", **options):
    """The generalised Jensen-Shannon divergence of js_logits, 0 < beta < 1; arguments as of linear_kl_div."""
    tensors = input, linear_weight, target_input, target_weight
    taken, result = _overridden(linear_js, tensors, reduction, dict(options, beta=beta))
    return result if taken else _divergence("linear_js", _native.JS, ("beta", beta), *tensors, reduction,
                                            **options)


def linear_skew_kl(input, linear_weight, target_input, target_weight, alpha=0.1, reduction="batchmean", **options):
    """KL(T || alpha T + (1 - alpha) S), 0 < alpha < 1; arguments as of linear_kl_div."""
    tensors = input, linear_weight, target_input, target_weight
    taken, result = _overridden(linear_skew_kl, tensors, reduction, dict(options, alpha=alpha))
    return result if taken else _divergence("linear_skew_kl", _native.SKEW_KL, ("alpha", alpha), *tensors, reduction,
                                            **options)


def linear_skew_reverse_kl(input, linear_weight, target_input, target_weight, alpha=0.1, reduction="batchmean",
                           **options):
    """KL(S || alpha S + (1 - alpha) T), 0 < alpha < 1; arguments as of linear_kl_div."""
    tensors = input, linear_weight, target_input, target_weight
    taken, result = _overridden(linear_skew_reverse_kl, tensors, reduction, dict(options, alpha=alpha))
    return result if taken else _divergence("linear_skew_reverse_kl", _native.SKEW_REVERSE_KL, ("alpha", alpha),
                                            *tensors, reduction, **options)


def linear_tv(input, linear_weight, target_input, target_weight, reduction="batchmean", **options):
    """Total variation, half the sum of |S - T|; its derivative is 0 where they are equal. Arguments as of
    linear_kl_div."""
    tensors = input, linear_weight, target_input, target_weight
    taken, result = _overridden(linear_tv, tensors, reduction, options)
    return result if taken else _divergence("linear_tv", _native.TOTAL_VARIATION, None, *tensors, reduction, **options)
