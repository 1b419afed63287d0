"""The losses of Dao-AILab/quack that take logits, or hidden states and a weight."""

import torch

from onepass import errors
from onepass.torch import losses, losses_linear


def cross_entropy(x, target, lse_partial=None, weight=None, ignore_index=-100, reduction="mean",
                  inplace_backward=False):
    """Cross-entropy of logits [M, N] and labels [M].

    inplace_backward   the gradient is written over x, where autograd lets anybody write to it and the loss is reduced
    lse_partial        is refused: the LSE is found in the same pass
    """
    if lse_partial is not None:
        raise errors.Unsupported("cross_entropy: lse_partial: given; the loss reads all logits and needs none")
    return losses.cross_entropy(x, target, weight=weight, ignore_index=ignore_index, reduction=reduction,
                                inplace=inplace_backward and reduction != "none" and _can_be_written(x))


def linear_cross_entropy_func(x, weight, bias, target, ignore_index=-100, reduction="mean", inplace_backward=False):
    """Cross-entropy of x [..., D] weight^T + bias and labels [...], in chunks of rows, in which gradients are always
    made in place."""
    return losses_linear.linear_cross_entropy(x, weight, target, linear_bias=bias, ignore_index=ignore_index,
                                              reduction=reduction)


def chunked_linear_cross_entropy(x, weight, target, chunk_size=4096, ignore_index=-100, reduction="mean", tuned=True,
                                 z_loss_weight=0.0, return_z_loss=False):
    """The same without a bias, chunk_size rows at a time, 264 at least. z_loss_weight adds z_loss_weight lse^2 to each
    row; with return_z_loss that part is returned besides, without a gradient. tuned says nothing."""
    if reduction not in ("mean", "sum"):
        raise errors.InvalidArgument("chunked_linear_cross_entropy: reduction: %r; it must be mean or sum" %
                                     (reduction,))
    found = losses_linear.linear_cross_entropy(
        x, weight, target, ignore_index=ignore_index, reduction=reduction, z_loss=z_loss_weight,
        chunk_bytes=chunk_size * (weight.shape[0] + weight.shape[1]) * (8 if x.dtype is torch.float64 else 4),
        outputs=("lse",) if return_z_loss else ())
    if not return_z_loss:
        return found
    loss, lse = found
    z_loss = z_loss_weight * (lse * lse).sum()
    return loss, z_loss / (target != ignore_index).sum() if reduction == "mean" else z_loss


def _can_be_written(x):
    owner = x._base if x._is_view() else x
    return not (owner.is_leaf and owner.requires_grad and torch.is_grad_enabled())
