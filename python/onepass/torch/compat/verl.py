"""The losses of volcengine/verl that take logits, and the one that takes hidden states."""

from onepass import errors
from onepass.torch import losses_linear_tokens, losses_tokens
from onepass.torch.compat.trl import entropy_from_logits


def linear_cross_entropy(hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None):
    """(log-probabilities of the labels, entropies) of hidden [..., H] weight^T / temperature: not losses, and never all
    logits at once. reduction: 'none' for each token, 'mean' or 'sum' of either over all tokens. A process group, over
    which the weight would be split, is refused."""
    if dist_process_group is not None:
        raise errors.Unsupported("linear_cross_entropy: dist_process_group: given; weights that are split over "
                                 "processes are not offered")
    if reduction not in ("none", "mean", "sum"):
        raise errors.InvalidArgument("linear_cross_entropy: reduction: %r; it must be one of none, mean, sum" %
                                     (reduction,))
    made = losses_linear_tokens.linear_token_log_probs(hidden, weight, labels, temperature, return_entropy=True)
    return made if reduction == "none" else tuple(getattr(result, reduction)() for result in made)


def logprobs_from_logits(logits, labels, inplace_backward=True):
    """Log-probabilities of the labels, not losses. The logits are never overwritten."""
    return losses_tokens.token_log_probs(logits, labels)


def entropy_from_logits_with_chunking(logits, chunk_size=2048):
    """The entropy of each row; there are no chunks to choose the size of."""
    return entropy_from_logits(logits)
