"""The losses of volcengine/verl that take logits, and the one that takes hidden states."""

from onepass import errors
from onepass.torch import losses_linear_tokens, losses_shards, losses_tokens
from onepass.torch.compat.trl import entropy_from_logits


def linear_cross_entropy(hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None):
    """(log-probabilities of the labels, entropies) of hidden [..., H] weight^T / temperature: not losses, and never all
    logits at once.

    reduction            'none' for each token, 'mean' or 'sum' of either over all tokens
    dist_process_group   weight has the rows of this rank's classes, in the order of the ranks, here not only in equal
                         shards; hidden and labels are the same on all. As in verl the gradient to hidden is this rank's
                         part: what makes it the same on all, Megatron's copy_to_tensor_model_parallel_region, say, adds
                         them up
    """
    arguments = {"input": hidden, "linear_weight": weight, "labels": labels, "temperature": temperature,
                 "reduction": reduction}
    if dist_process_group is None:
        return _linear_cross_entropy(process_group=None, **arguments)
    return losses_shards.entered(dist_process_group, _linear_cross_entropy, arguments)


def _linear_cross_entropy(input, linear_weight, labels, temperature, reduction, process_group):
    if reduction not in ("none", "mean", "sum"):
        raise errors.InvalidArgument("linear_cross_entropy: reduction: %r; it must be one of none, mean, sum" %
                                     (reduction,))
    if process_group is not None:
        process_group.adds_up = False
    made = losses_linear_tokens.linear_token_log_probs(input, linear_weight, labels, temperature, return_entropy=True,
                                                       process_group=process_group)
    return made if reduction == "none" else tuple(getattr(result, reduction)() for result in made)


def logprobs_from_logits(logits, labels, inplace_backward=True):
    """Log-probabilities of the labels, not losses. The logits are never overwritten."""
    return losses_tokens.token_log_probs(logits, labels)


def entropy_from_logits_with_chunking(logits, chunk_size=2048):
    """The entropy of each row; there are no chunks to choose the size of."""
    return entropy_from_logits(logits)
