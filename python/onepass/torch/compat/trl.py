"""The losses of huggingface/trl that take logits."""

from onepass import errors
from onepass.torch import losses, losses_tokens


def divergence_of(beta):
    """(function, its keywords): at 0 and 1, where the mixture's divergence vanishes, theirs is that of one side."""
    if beta == 0:
        return losses.kl_div_logits, {}
    if beta == 1:
        return losses.reverse_kl_logits, {}
    return losses.js_logits, {"beta": beta}


def generalized_jsd_loss(student_logits, teacher_logits, labels=None, beta=0.5, temperature=1.0, reduction="batchmean",
                         num_items_in_batch=None):
    """JSD(beta) of logits [..., V]; beta 0 is KL(teacher || student), 1 is KL(student || teacher).

    labels      -100: the token takes no part
    reduction   'batchmean': over the tokens that take part, without labels over the first dimension; 'mean': over all
                elements of the tokens that take part; 'sum'. A value for each element of the vocabulary, their 'none',
                is not offered
    num_items_in_batch   the sum is divided by it, a number or a tensor

    The temperature's square multiplies nothing. If no token takes part the loss is 0, with a graph.
    """
    function, options = divergence_of(beta)
    options.update(labels=labels, temperature=temperature, semantics="finite")
    if num_items_in_batch is not None:
        return function(student_logits, teacher_logits, reduction="sum", divisor=num_items_in_batch, **options)
    if reduction == "none":
        raise errors.Unsupported("generalized_jsd_loss: reduction: 'none'; one value per element is not offered, "
                                 "onepass.torch.js_logits has one per row")
    if reduction not in ("batchmean", "mean", "sum"):
        raise errors.InvalidArgument("generalized_jsd_loss: reduction: %r; it must be one of batchmean, mean, sum" %
                                     (reduction,))
    if labels is not None and reduction != "sum":
        loss = function(student_logits, teacher_logits, reduction="valid", **options)
        return loss if reduction == "batchmean" else loss / student_logits.shape[-1]
    return function(student_logits, teacher_logits, reduction=reduction, **options)


def selective_log_softmax(logits, index):
    """log_softmax(logits) at index, [...] or [..., K]."""
    return losses_tokens.token_log_probs(logits, index)


def entropy_from_logits(logits, chunk_size=128):
    """The entropy of each row; there are no chunks to choose the size of."""
    entropy, = losses_tokens.token_log_probs(logits, None, return_entropy=True)
    return entropy
