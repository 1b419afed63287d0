"""The modules of losses from logits: torch.nn.CrossEntropyLoss and its like for divergences."""

import math

import torch

from onepass.torch import losses, losses_linear


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
