"""The losses of linkedin/Liger-Kernel that take logits, log-probabilities or probabilities, and the cross-entropy and
Jensen-Shannon divergence that take hidden states.

Only cross-entropy takes logits; liger_jsd takes log-probabilities, liger_tvd probabilities. Those two are here for
programs that call them: they are PyTorch's operations (with beta 0 and 1 onepass's kl_div). A program that has logits
is better off with onepass.torch.js_logits and tv_logits, which never store a probability.
"""

from collections import namedtuple

import torch

from onepass import errors
from onepass.torch import kl, losses, losses_linear, losses_linear_divergences, losses_tokens

CrossEntropyOutput = namedtuple("CrossEntropyOutput", "loss z_loss token_accuracy predicted_tokens",
                                defaults=(None, None, None))


# ---- cross-entropy ---------------------------------------------------------------------------------------------------


def _over_tokens(rows, kept, reduction):
    if reduction == "none":
        return rows
    return rows.sum() / kept.sum().clamp(min=1) if reduction == "mean" else rows.sum()


def liger_cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
                        label_smoothing=0.0, lse_square_scale=0.0, softcap=None, return_z_loss=False,
                        return_token_accuracy=False, return_predicted_tokens=False):
    """Cross-entropy of logits [BT, V] and labels [BT]. size_average and reduce say nothing, as in theirs.

    lse_square_scale   adds lse_square_scale lse^2: over the tokens that take part, where 'mean' weights the rest by
                       class weights
    return_...         the result is a CrossEntropyOutput: also the z-loss, whether the largest logit is the label's
                       (reduced as the loss), and which one it is (-1 where the label is ignored)

    If no token takes part the loss is 0. The logits are never overwritten.
    """
    kept = target != ignore_index

    def z_loss_alone():
        lse, = losses_tokens.token_log_probs(input, None, softcap=softcap, row_mask=kept, return_lse=True)
        return _over_tokens(lse_square_scale * lse * lse, kept, reduction)

    def loss(**options):
        return losses.cross_entropy(input, target, ignore_index=ignore_index, reduction=reduction, softcap=softcap,
                                    label_smoothing=label_smoothing, semantics="finite", **options)

    return _with_returns(loss, z_loss_alone, target, kept, weight, reduction, lse_square_scale, return_z_loss,
                         return_token_accuracy, return_predicted_tokens)


def _with_returns(function, z_loss_alone, target, kept, weight, reduction, lse_square_scale, return_z_loss,
                  return_token_accuracy, return_predicted_tokens):
    """The loss, and what else is to be returned."""
    outputs = ([] if not return_z_loss else ["lse"]) + \
        ([] if not (return_token_accuracy or return_predicted_tokens) else ["argmax"])
    is_apart = weight is not None and reduction == "mean" and lse_square_scale != 0
    found = function(weight=weight, z_loss=0.0 if is_apart else lse_square_scale, outputs=outputs)
    loss, made = (found[0], dict(zip(outputs, found[1:]))) if outputs else (found, {})
    if is_apart:
        loss = loss + z_loss_alone()
    if not outputs:
        return loss
    z_loss = accuracy = predicted = None
    if return_z_loss:
        z_loss = _over_tokens(lse_square_scale * made["lse"] * made["lse"], kept, reduction)
    if return_token_accuracy:
        accuracy = _over_tokens(((made["argmax"] == target) & kept).to(loss.dtype), kept, reduction)
    if return_predicted_tokens:
        predicted = made["argmax"].masked_fill(~kept, -1)
    return CrossEntropyOutput(loss, z_loss, accuracy, predicted)


class LigerCrossEntropyLoss(torch.nn.Module):
    """The same as a module."""

    def __init__(self, weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean",
                 softcap=None, return_z_loss=False, return_token_accuracy=False, return_predicted_tokens=False):
        super().__init__()
        self.weight = weight
        self.options = {"ignore_index": ignore_index, "lse_square_scale": lse_square_scale, "reduction": reduction,
                        "label_smoothing": label_smoothing, "softcap": softcap, "return_z_loss": return_z_loss,
                        "return_token_accuracy": return_token_accuracy,
                        "return_predicted_tokens": return_predicted_tokens}

    def forward(self, _input, target):
        return liger_cross_entropy(_input, target, self.weight, **self.options)


# ---- cross-entropy from hidden states --------------------------------------------------------------------------------


def liger_fused_linear_cross_entropy(input, weight, target, bias=None, ce_weight=None, ignore_index=-100,
                                     lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None,
                                     return_z_loss=False, accum_dtype=None, use_token_scaling=False,
                                     return_token_accuracy=False, return_predicted_tokens=False):
    """Cross-entropy of input [BT, H] weight^T + bias and labels [BT], in chunks of rows; results as of
    liger_cross_entropy. ce_weight: of the classes. Gradients to what needs one, the weight also where the input needs
    none. They are summed in float32, whatever accum_dtype says, and use_token_scaling is refused."""
    if use_token_scaling:
        raise errors.Unsupported("liger_fused_linear_cross_entropy: use_token_scaling: True; it is not offered, weight "
                                 "the rows of onepass.torch.linear_cross_entropy instead")
    kept = target != ignore_index

    def loss(**options):
        return losses_linear.linear_cross_entropy(input, weight, target, linear_bias=bias, ignore_index=ignore_index,
                                                  softcap=softcap, semantics="finite", **options)

    def z_loss_alone():  # with weights of 0 the labels add nothing
        return loss(weight=torch.zeros_like(ce_weight), z_loss=lse_square_scale, reduction="sum",
                    divisor=kept.sum().clamp(min=1))

    def whole(**options):
        return loss(reduction=reduction, label_smoothing=label_smoothing, **options)

    return _with_returns(whole, z_loss_alone, target, kept, ce_weight, reduction, lse_square_scale, return_z_loss,
                         return_token_accuracy, return_predicted_tokens)


class LigerFusedLinearCrossEntropyLoss(torch.nn.Module):
    """The same as a module, called with the weight first."""

    def __init__(self, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean",
                 softcap=None, return_z_loss=False, accum_dtype=None, use_token_scaling=False,
                 return_token_accuracy=False, return_predicted_tokens=False):
        super().__init__()
        self.ce_weight = ce_weight
        self.options = {"ignore_index": ignore_index, "lse_square_scale": lse_square_scale, "reduction": reduction,
                        "label_smoothing": label_smoothing, "softcap": softcap, "return_z_loss": return_z_loss,
                        "accum_dtype": accum_dtype, "use_token_scaling": use_token_scaling,
                        "return_token_accuracy": return_token_accuracy,
                        "return_predicted_tokens": return_predicted_tokens}

    def forward(self, lin_weight, _input, target, bias=None):
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, self.ce_weight, **self.options)


# ---- divergences from hidden states ----------------------------------------------------------------------------------


def _linear_jsd(beta, student_input, student_weight, teacher_input, teacher_weight, student_bias, teacher_bias,
                **options):
    """JSD(beta) from hidden states; beta 0 is KL(T || S), 1 is KL(S || T). The teacher gets no gradient."""
    teacher_input, teacher_weight = teacher_input.detach(), teacher_weight.detach()
    teacher_bias = None if teacher_bias is None else teacher_bias.detach()
    ends = {0: losses_linear_divergences.linear_kl_div, 1: losses_linear_divergences.linear_reverse_kl}
    function = ends.get(beta, losses_linear_divergences.linear_js)
    mixture = {} if beta in ends else {"beta": beta}
    return function(student_input, student_weight, teacher_input, teacher_weight, linear_bias=student_bias,
                    target_bias=teacher_bias, semantics="finite", **mixture, **options)


def liger_fused_linear_jsd(student_input, student_weight, teacher_input, teacher_weight, shift_labels=None,
                           jsd_beta=0.5, ignore_index=-100, temperature=1.0, accum_dtype=None):
    """JSD(jsd_beta) of the logits that hidden states [BT, H] and weights [V, H] of student and teacher make, over the
    temperature; jsd_beta 0 is KL(teacher || student), 1 is KL(student || teacher). The sum over the tokens whose label
    is not ignored, divided by their number. Gradients to the student alone, summed in float32, whatever accum_dtype
    says."""
    if shift_labels is not None and shift_labels.shape != student_input.shape[:1]:
        raise errors.InvalidArgument("liger_fused_linear_jsd: shift_labels: shape %s; it must be %s, one for each "
                                     "row" % (list(shift_labels.shape), list(student_input.shape[:1])))
    return _linear_jsd(jsd_beta, student_input, student_weight, teacher_input, teacher_weight, None, None,
                       reduction="valid", labels=shift_labels, ignore_index=ignore_index, temperature=temperature)


class LigerFusedLinearJSD(torch.nn.Module):
    """The same as a module."""

    def __init__(self, jsd_beta=0.5, ignore_index=-100, temperature=1.0, accum_dtype=None):
        super().__init__()
        self.options = {"jsd_beta": jsd_beta, "ignore_index": ignore_index, "temperature": temperature,
                        "accum_dtype": accum_dtype}

    def forward(self, student_input, student_weight, teacher_input, teacher_weight, shift_labels=None):
        return liger_fused_linear_jsd(student_input, student_weight, teacher_input, teacher_weight, shift_labels,
                                      **self.options)


class LigerFusedLinearJSDLoss(torch.nn.Module):
    """weight_hard_loss times the cross-entropy of the student and the labels, and weight_soft_loss times the JSD of
    student and teacher over the temperature, both per token whose label is not ignored. compiled and chunk_size say
    nothing: the loss is made in one pass, in chunks of 512 MiB."""

    def __init__(self, weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, ignore_index=-100, temperature=1.0,
                 compiled=True, chunk_size=1024):
        super().__init__()
        self.weight_hard_loss, self.weight_soft_loss, self.beta = weight_hard_loss, weight_soft_loss, beta
        self.ignore_index, self.temperature = ignore_index, temperature

    def forward(self, student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias=None,
                teacher_bias=None):
        return _linear_jsd(self.beta, student_input, student_weight, teacher_input, teacher_weight, student_bias,
                           teacher_bias, reduction="valid", labels=true_labels, label_weight=self.weight_hard_loss,
                           divergence_weight=self.weight_soft_loss, ignore_index=self.ignore_index,
                           temperature=self.temperature)


# ---- divergences -----------------------------------------------------------------------------------------------------


def liger_kl_div(input, target, size_average=True, reduce=True, reduction="mean", log_target=False, eps=1e-10):
    """KL(target || exp(input)) as torch.nn.functional.kl_div: size_average and reduce say nothing, as in theirs, and
    eps does nothing: 0 log 0 is 0 here."""
    input, target = _wide(input), _wide(target)
    if reduction == "mean":  # which warns
        return kl.kl_div(input, target, reduction="sum", log_target=log_target) / max(input.numel(), 1)
    return kl.kl_div(input, target, reduction=reduction, log_target=log_target)


class LigerKLDIVLoss(torch.nn.KLDivLoss):
    """The same as a module."""

    def __init__(self, eps=1e-10, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.eps = eps

    def forward(self, y_pred, y_true):
        return liger_kl_div(y_pred, y_true, reduction=self.reduction, log_target=self.log_target, eps=self.eps)


def _kept(name, input, shift_labels, ignore_index):
    """(which rows take part, how many do, at least 1)"""
    if shift_labels is None:
        return None, max(input.shape[0], 1)
    if shift_labels.shape != input.shape[:1]:
        raise errors.InvalidArgument("%s: shift_labels: shape %s; it must be %s, one for each row" % (
            name, list(shift_labels.shape), list(input.shape[:1])))
    kept = shift_labels != ignore_index
    return kept, kept.sum().clamp(min=1)


def _wide(tensor, kept=None):
    """In float32 or float64; a row that takes no part is 0."""
    tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    return tensor if kept is None else tensor.masked_fill(~kept.unsqueeze(-1), 0)


def liger_jsd(input, target, shift_labels=None, beta=0.5, ignore_index=-100):
    """JSD(beta) of log-probabilities [BT, V], the student's first; beta 0 is KL(target || input), 1 is KL(input ||
    target). The sum over the tokens that take part, divided by their number."""
    kept, count = _kept("liger_jsd", input, shift_labels, ignore_index)
    if beta in (0, 1):
        pair = (_wide(input), _wide(target)) if beta == 0 else (_wide(target), _wide(input))
        return kl.kl_div(*pair, reduction="sum", log_target=True, row_mask=kept, semantics="finite") / count
    x, y = _wide(input, kept), _wide(target, kept)
    log_beta = [x.new_full((), number).log() for number in (beta, 1 - beta)]
    nowhere = (x == float("-inf")) & (y == float("-inf"))
    x, y = x.masked_fill(nowhere, 0), y.masked_fill(nowhere, 0)
    log_m = torch.logaddexp(y + log_beta[0], x + log_beta[1])

    def term(z):
        p = z.exp()
        return p * (z - log_m).masked_fill((p == 0) | nowhere, 0)
    rows = (beta * term(y) + (1 - beta) * term(x)).sum(-1)
    return (rows if kept is None else rows.masked_fill(~kept, 0)).sum() / count


class LigerJSD(torch.nn.Module):
    """The same as a module."""

    def __init__(self, beta=0.5, ignore_index=-100):
        super().__init__()
        self.beta = beta
        self.ignore_index = ignore_index

    def forward(self, log_q, log_p, shift_labels=None):
        return liger_jsd(log_q, log_p, shift_labels, self.beta, self.ignore_index)


def liger_tvd(input, target, shift_labels=None, reduction="mean", ignore_index=-100):
    """Half of |input - target| of probabilities [BT, V]. 'mean': over all elements of the tokens that take part,
    'batchmean': over these tokens, 'sum', 'none': each element. The derivative is 0 where the two are equal."""
    kept, count = _kept("liger_tvd", input, shift_labels, ignore_index)
    each = 0.5 * (_wide(input, kept) - _wide(target, kept)).abs()
    if reduction == "none":
        return each
    if reduction not in ("mean", "batchmean", "sum"):
        raise errors.InvalidArgument("liger_tvd: reduction: %r; it must be one of none, mean, batchmean, sum" %
                                     (reduction,))
    over = {"mean": count * input.shape[-1], "batchmean": count, "sum": 1}[reduction]
    return each.sum() / over


class LigerTVDLoss(torch.nn.Module):
    """The same as a module."""

    def __init__(self, reduction="batchmean", ignore_index=-100):
        super().__init__()
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(self, p, q, shift_labels=None):
        return liger_tvd(p, q, shift_labels, self.reduction, self.ignore_index)
