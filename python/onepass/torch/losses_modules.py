"""The modules of losses from logits: torch.nn.CrossEntropyLoss and its like for divergences."""

import math

import torch
import torch.nn.functional as F

from onepass.torch import losses, losses_call, losses_linear, route


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, computed by onepass.torch.cross_entropy, whose keywords are in `options`."""

    def __init__(self, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                 label_smoothing=0.0, **options):
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.options = options

    def forward(self, input, target, **more):
        """more: keywords of cross_entropy for this call, row_mask=..., say."""
        return losses.cross_entropy(input, target, weight=self.weight, ignore_index=self.ignore_index,
                                    reduction=self.reduction, label_smoothing=self.label_smoothing,
                                    **dict(self.options, **more))


class LinearCrossEntropyLoss(torch.nn.modules.loss._WeightedLoss):
    """torch.nn.LinearCrossEntropyLoss of PyTorch 2.13, with its parameters and their initial values: a linear layer
    and the cross-entropy of its output, computed by onepass.torch.linear_cross_entropy, whose keywords are in
    `more`."""

    def __init__(self, in_features, num_classes, *, out_features=(), bias=False, device=None, dtype=None,
                 reduction="mean", weight=None, ignore_index=None, label_smoothing=0.0, options=None, **more):
        super().__init__(weight, None, None, reduction)
        self.num_classes, self.out_features = num_classes, tuple(out_features)
        self.ignore_index, self.label_smoothing, self.options, self.more = ignore_index, label_smoothing, options, more
        self.linear = torch.nn.Linear(in_features, num_classes * math.prod(self.out_features), bias=bias,
                                      device=device, dtype=dtype)

    def forward(self, input, target, **more):
        """more: keywords of linear_cross_entropy for this call, row_mask=..., say."""
        shape, bias = (self.num_classes,) + self.out_features, self.linear.bias
        return losses_linear.linear_cross_entropy(
            input, self.linear.weight.reshape(shape + (self.linear.in_features,)), target,
            linear_bias=None if bias is None else bias.reshape(shape), weight=self.weight, reduction=self.reduction,
            ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, options=self.options,
            **dict(self.more, **more))


_types = {}  # {what was asked: type of a loss in PyTorch}


def _type_of_cross_entropy(input, weight):
    """Of F.cross_entropy(F.linear(input, weight), labels), which depends on autocast, device and release: it is asked
    with one element of each, once."""
    autocasts = route.autocasts(input)
    key = input.device.type, input.dtype, weight.dtype, autocasts and route.autocast_dtype(input)
    found = _types.get(key)
    if found is None:
        with torch.no_grad():
            logits = F.linear(input.new_ones((1, 1)), weight.new_ones((1, 1)))
            found = F.cross_entropy(logits, torch.zeros(1, dtype=torch.int64, device=input.device)).dtype
        if not route.is_compiling():
            _types[key] = found
    return found


def _is_linear_cross_entropy(input, head, target):
    """True if linear_cross_entropy computes the same of these."""
    if not route.is_stock(head, torch.nn.Linear) or route.has_global_hooks():
        return False
    if not losses_call.is_served(input) or route.way((input, head.weight, head.bias, target)) == route.TRANSFORMED:
        return False
    dtype = head.weight.dtype
    return (dtype in route.FLOATS and input.dim() == 2 and target.dtype is torch.int64
            and target.shape == input.shape[:1] and (input.dtype is dtype or route.autocasts(input)))


def linear_cross_entropy_of(input, head, target):
    """torch.nn.functional.cross_entropy(head(input), target) of an nn.Linear, and of its type: by linear_cross_entropy
    as long as the layer does what its class says and nothing else; otherwise it is called as the module it is. input
    [N, K], labels [N]. A label out of range raises PyTorch's error on the CPU; on a GPU it makes the loss NaN."""
    if _is_linear_cross_entropy(input, head, target):
        value = losses_linear.linear_cross_entropy(input, head.weight, target, linear_bias=head.bias)
        # A label out of range is PyTorch's to refuse, and the mean over no rows, of which old releases make 0, its own.
        if value.is_cuda or not route.is_eager(input, target) or not math.isnan(value.item()):
            return value.to(_type_of_cross_entropy(input, head.weight))
    return F.cross_entropy(head(input), target)


class KLDivLogitsLoss(torch.nn.Module):
    """KL divergence of logits, computed by onepass.torch.kl_div_logits, whose keywords are in `options`."""

    function = staticmethod(losses.kl_div_logits)

    def __init__(self, reduction="batchmean", **options):
        super().__init__()
        self.reduction = reduction
        self.options = options

    def forward(self, predictions, targets, **more):
        """more: keywords of the function for this call, labels=..., say."""
        return self.function(predictions, targets, reduction=self.reduction, **dict(self.options, **more))

    def extra_repr(self):
        return ", ".join(["reduction=%r" % self.reduction] + ["%s=%r" % item for item in self.options.items()])


class ReverseKLLogitsLoss(KLDivLogitsLoss):
    """The same of reverse_kl_logits."""

    function = staticmethod(losses.reverse_kl_logits)


class JSLogitsLoss(KLDivLogitsLoss):
    """The same of js_logits."""

    function = staticmethod(losses.js_logits)

    def __init__(self, beta=0.5, reduction="batchmean", **options):
        super().__init__(reduction, beta=beta, **options)


class SkewKLLogitsLoss(KLDivLogitsLoss):
    """The same of skew_kl_logits."""

    function = staticmethod(losses.skew_kl_logits)

    def __init__(self, alpha=0.1, reduction="batchmean", **options):
        super().__init__(reduction, alpha=alpha, **options)


class SkewReverseKLLogitsLoss(SkewKLLogitsLoss):
    """The same of skew_reverse_kl_logits."""

    function = staticmethod(losses.skew_reverse_kl_logits)


class TVLogitsLoss(KLDivLogitsLoss):
    """The same of tv_logits."""

    function = staticmethod(losses.tv_logits)
