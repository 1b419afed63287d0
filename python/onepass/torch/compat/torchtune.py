"""The distillation losses of pytorch/torchtune: modules that are called with student's and teacher's logits [..., V]
and labels [...].

normalize: over the tokens that take part, else the sum. If none does the loss is 0; theirs is a constant then, this one
has a graph, so that every process of a data-parallel training has gradients. A logit of -inf is left out by theirs;
here it is a probability of 0, and the loss infinite where the other side has more.
"""

import torch

from onepass.torch import losses, losses_tokens


def _entropy_of(teacher_logits, labels, ignore_index):
    """The entropy of each row that takes part, with a gradient."""
    entropy, = losses_tokens.token_log_probs(teacher_logits, None, row_mask=labels != ignore_index,
                                             return_entropy=True)
    return entropy


def _reduced(function, student_logits, teacher_logits, labels, ignore_index, normalize, **options):
    return function(student_logits, teacher_logits, reduction="valid" if normalize else "sum", labels=labels,
                    ignore_index=ignore_index, semantics="finite", **options)


class ForwardKLLoss(torch.nn.Module):
    """The cross-entropy of the two distributions, which is what theirs computes: KL(teacher || student) and the
    teacher's entropy. It is not 0 where the two are equal."""

    def __init__(self, ignore_index=-100):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, student_logits, teacher_logits, labels, normalize=True):
        divergence, entropy = _reduced(losses.kl_div_logits, student_logits, teacher_logits, labels, self.ignore_index,
                                       normalize, outputs=["target_entropy"])
        if teacher_logits.requires_grad and torch.is_grad_enabled():
            entropy = _entropy_of(teacher_logits, labels, self.ignore_index)
        total = entropy.sum()
        return divergence + (total / (labels != self.ignore_index).sum().clamp(min=1) if normalize else total)


class ReverseKLLoss(torch.nn.Module):
    """KL(student || teacher)."""

    def __init__(self, ignore_index=-100):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, student_logits, teacher_logits, labels, normalize=True):
        return _reduced(losses.reverse_kl_logits, student_logits, teacher_logits, labels, self.ignore_index, normalize)


class SymmetricKLLoss(torch.nn.Module):
    """sym_kd_ratio times ForwardKLLoss and (1 - sym_kd_ratio) times ReverseKLLoss."""

    def __init__(self, sym_kd_ratio=0.5, ignore_index=-100):
        super().__init__()
        if not 0 <= sym_kd_ratio <= 1:
            raise ValueError("sym_kd_ratio must be in the range [0, 1], not %g" % sym_kd_ratio)
        self.sym_kd_ratio = sym_kd_ratio
        self.ignore_index = ignore_index
        self._forward_kl = ForwardKLLoss(ignore_index)
        self._reverse_kl = ReverseKLLoss(ignore_index)

    def forward(self, student_logits, teacher_logits, labels, normalize=True):
        given = student_logits, teacher_logits, labels, normalize
        return self.sym_kd_ratio * self._forward_kl(*given) + (1 - self.sym_kd_ratio) * self._reverse_kl(*given)
