"""The losses as modules: torch.nn.KLDivLoss and its like for probabilities."""

import torch

from onepass.torch.kl import kl_div, kl_div_probs


class KLDivLoss(torch.nn.KLDivLoss):
    """torch.nn.KLDivLoss, computed by onepass.torch.kl_div. `divisor` and `semantics` are kl_div's."""

    def __init__(self, size_average=None, reduce=None, reduction="mean", log_target=False, *, divisor=None,
                 semantics="strict"):
        super().__init__(size_average, reduce, reduction, log_target)
        self.divisor = divisor
        self.semantics = semantics

    def forward(self, input, target, *, row_weights=None, row_mask=None):
        return kl_div(input, target, reduction=self.reduction, log_target=self.log_target, divisor=self.divisor,
                      row_weights=row_weights, row_mask=row_mask, semantics=self.semantics)


class KLDivProbsLoss(torch.nn.Module):
    """KL(targets || predictions) of probabilities, computed by onepass.torch.kl_div_probs."""

    def __init__(self, reduction="batchmean", log_target=False, *, divisor=None, semantics="strict"):
        super().__init__()
        self.reduction = reduction
        self.log_target = log_target
        self.divisor = divisor
        self.semantics = semantics

    def forward(self, predictions, targets, *, row_weights=None, row_mask=None):
        return kl_div_probs(predictions, targets, self.reduction, self.log_target, divisor=self.divisor,
                            row_weights=row_weights, row_mask=row_mask, semantics=self.semantics)

    def extra_repr(self):
        return "reduction=%r, log_target=%r" % (self.reduction, self.log_target)
