"""The loss of apple/ml-cross-entropy, Cut Cross-Entropy: that of hidden states and a classifier's weight."""

from onepass import errors
from onepass.torch import losses_linear


def linear_cross_entropy(e, c, targets, bias=None, ignore_index=-100, softcap=None, reduction="mean", shift=0, *,
                         return_lse=False, vocab_parallel_options=None, **tuning):
    """Cross-entropy of hidden states e [..., D] times the classifier c [V, D], and targets [...].

    shift        a number, or True for 1: e at a token is compared with the target so many tokens later
    return_lse   the result is (loss, LSE of each token), the LSE without a gradient, 0 where the target is ignored
    tuning       filter_eps, accum_e_fp32, impl and the like say nothing: no gradient is filtered, sums are float32

    A classifier in shards, vocab_parallel_options, is refused.
    """
    if vocab_parallel_options is not None:
        raise errors.Unsupported("linear_cross_entropy: vocab_parallel_options: given; a classifier in shards is not "
                                 "offered")
    unknown = sorted(set(tuning) - {"filter_eps", "accum_e_fp32", "accum_c_fp32", "filter_e_grad", "filter_c_grad",
                                    "impl"})
    if unknown:
        raise TypeError("linear_cross_entropy: %s: no such argument" % unknown[0])
    shift = int(shift)
    if targets.dim() and not 0 <= shift < targets.shape[-1]:
        raise errors.InvalidArgument("linear_cross_entropy: shift: %d; it must be from 0 to less than the number of "
                                     "targets, %d" % (shift, targets.shape[-1]))
    if shift:
        e, targets = e[..., :-shift, :], targets[..., shift:]
    return losses_linear.linear_cross_entropy(e, c, targets, linear_bias=bias, ignore_index=ignore_index,
                                              softcap=softcap, reduction=reduction,
                                              outputs=("lse",) if return_lse else ())
