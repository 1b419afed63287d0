"""The loss of NVIDIA/TransformerEngine whose classes may be spread over processes."""

from onepass.torch import losses, losses_shards


def parallel_cross_entropy(inp, target, label_smoothing=0.0, reduce_loss=False, dist_process_group=None,
                           ignore_idx=-100, is_cg_capturable=False):
    """Cross-entropy of logits [B, SQ, V] or [SQ, B, V], or of any leading dimensions, and as many labels: one loss per
    token, of the leading shape. It is float32; the gradient has the type of the logits, which are not overwritten.

    label_smoothing      spread over the classes of all processes, as torch.nn.functional.cross_entropy spreads it
    reduce_loss          the mean over the tokens whose label is not ignore_idx; 0 if there are none
    dist_process_group   the classes are spread over its processes, in the order of their ranks; here not only in equal
                         shards. None: all are here
    is_cg_capturable     says nothing: no call waits for the device

    A label of no class makes the loss of its token NaN.
    """
    arguments = {"logits": inp, "target": target, "label_smoothing": label_smoothing, "reduce_loss": reduce_loss,
                 "ignore_idx": ignore_idx}
    if dist_process_group is None:
        return _cross_entropy(process_group=None, **arguments)
    return losses_shards.entered(dist_process_group, _cross_entropy, arguments, in_graphs=True)


def _cross_entropy(logits, target, label_smoothing, reduce_loss, ignore_idx, process_group):
    target = target.reshape(logits.shape[:-1])
    reduced = {"reduction": "none"}
    if reduce_loss:
        reduced = {"reduction": "sum", "divisor": (target != ignore_idx).sum().clamp(min=1)}
    return losses.cross_entropy(logits, target, class_dim=-1, ignore_index=ignore_idx, label_smoothing=label_smoothing,
                                process_group=process_group, **reduced)
