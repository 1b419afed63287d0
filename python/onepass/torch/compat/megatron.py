"""The loss of NVIDIA/Megatron-LM, whose classes are spread over the processes of a tensor-parallel group."""

import torch.distributed as dist

from onepass import errors
from onepass.torch import losses, losses_shards


def vocab_parallel_cross_entropy(vocab_parallel_logits, target, label_smoothing=0.0, tp_group=None):
    """One loss per token, [SQ, B], of this rank's logits [SQ, B, V / ranks], or of any leading dimensions, and labels
    of all V classes. It is float32, and the logits are not overwritten.

    label_smoothing   as in Megatron, spread over the V - 1 other classes: what torch.nn.functional.cross_entropy calls
                      label_smoothing V / (V - 1). V is that of all ranks; Megatron takes the classes of the rank alone
                      there, so that with several ranks its losses differ from one rank to another, and from these
    tp_group          the group. Megatron finds its own if there is none given; here it has to be

    Every rank has as many classes, or the call is refused. A label of no class, as that of a token which a mask leaves
    out later, counts 0 and has no gradient, where Megatron has the logarithm of the sum of exponentials.
    """
    if tp_group is None:
        raise errors.InvalidArgument("vocab_parallel_cross_entropy: tp_group: None; it must be given, as "
                                     "parallel_state.get_tensor_model_parallel_group() is in Megatron")
    arguments = {"logits": vocab_parallel_logits, "target": target, "label_smoothing": label_smoothing}
    return losses_shards.entered(tp_group, _cross_entropy, arguments, in_graphs=True)


def _cross_entropy(logits, target, label_smoothing, process_group):
    classes = logits.shape[-1] * dist.get_world_size(process_group.group)  # which the ranks compare
    smoothing = label_smoothing * classes / (classes - 1) if label_smoothing else 0.0
    return losses.cross_entropy(logits, target, class_dim=-1, reduction="none", label_smoothing=smoothing,
                                row_mask=(target >= 0) & (target < classes), columns=classes,
                                process_group=process_group)
