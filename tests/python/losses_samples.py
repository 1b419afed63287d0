"""What the tests of losses from logits share: the formulas once more, as plainly as PyTorch's operations allow, in
float64, and inputs for every form of targets."""

import torch_samples as samples
from torch_samples import F, torch

import onepass.torch

DIVERGENCES = ("kl_div_logits", "reverse_kl_logits", "js_logits", "skew_kl_logits", "skew_reverse_kl_logits",
               "tv_logits")
MIXTURES = {"js_logits": {"beta": 0.3}, "skew_kl_logits": {"alpha": 0.2}, "skew_reverse_kl_logits": {"alpha": 0.4}}
FORMS = "logits", "probs", "log_probs"

# What goes with predictions of 5 classes, [2, 3, 5].
SHAPE = 2, 3, 5


def divergence(name, log_s, log_t, mixture=None):
    """D(T, S) of each row."""
    s, t = log_s.exp(), log_t.exp()

    def kl(p, log_p, m):
        return (p * (log_p - m.log())).sum(-1)

    if name == "kl_div_logits":
        return (t * (log_t - log_s)).sum(-1)
    if name == "reverse_kl_logits":
        return (s * (log_s - log_t)).sum(-1)
    if name == "tv_logits":
        return 0.5 * (s - t).abs().sum(-1)
    if name == "js_logits":
        m = mixture * t + (1 - mixture) * s
        return mixture * kl(t, log_t, m) + (1 - mixture) * kl(s, log_s, m)
    if name == "skew_kl_logits":
        return kl(t, log_t, mixture * t + (1 - mixture) * s)
    return kl(s, log_s, mixture * s + (1 - mixture) * t)


def prepared(x, temperature=1.0, softcap=None, columns=None):
    x = x[..., :columns]
    return (softcap * torch.tanh(x / softcap) if softcap else x) / temperature


def torch_cross_entropy(x, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """PyTorch's, as the later versions have it: before 1.12 smoothing does not leave ignored rows out, and before 1.11
    there is none of one row alone."""
    if x.dim() == 1 and samples.VERSION < (1, 12):
        value = torch_cross_entropy(x[None], target[None], weight, ignore_index, reduction, label_smoothing)
        return value.reshape(())
    if samples.VERSION >= (1, 12) or not label_smoothing or target.is_floating_point():
        return F.cross_entropy(x, target, weight, ignore_index=ignore_index, reduction=reduction,
                               label_smoothing=label_smoothing)
    kept = target != ignore_index
    weight = x.new_ones(x.shape[1]) if weight is None else weight
    log_p = F.log_softmax(x, 1)
    spread = -(log_p.movedim(1, -1) * weight).sum(-1) / x.shape[1] * kept
    rows = F.nll_loss(log_p, target, weight, ignore_index=ignore_index, reduction="none")
    rows = (1 - label_smoothing) * rows + label_smoothing * spread
    if reduction == "none":
        return rows
    return rows.sum() / (weight[target * kept] * kept).sum() if reduction == "mean" else rows.sum()


def label_loss(x, labels, weight=None, smoothing=0.0, z_loss=0.0, entropy_bonus=0.0, ignore_index=-100):
    """NLL + z_loss lse^2 - entropy_bonus H of each row of prepared logits; NLL alone is PyTorch's."""
    value = torch.zeros_like(x[..., 0])
    if labels is not None:
        value = torch_cross_entropy(x.movedim(-1, 1) if x.dim() > 2 else x, labels, weight, ignore_index, "none",
                                    smoothing)
    log_p = F.log_softmax(x, -1)
    return value, z_loss * torch.logsumexp(x, -1).square() + entropy_bonus * (log_p.exp() * log_p).sum(-1)


def rows_of(name, predictions, targets, target="logits", labels=None, label_weight=0.0, label_smoothing=0.0,
            label_temperature=1.0, ignore_index=-100, class_weights=None, z_loss=0.0, entropy_bonus=0.0,
            temperature=1.0, target_temperature=None, divergence_weight=1.0, softcap=None, target_softcap=None, columns=None,
            row_weights=None, row_mask=None, beta=None, alpha=None):
    """The loss of each row, in float64."""
    x, y = predictions.double(), targets.double()
    if target == "logits":
        log_t = F.log_softmax(prepared(y, target_temperature or temperature, target_softcap, columns), -1)
    else:
        log_t = y[..., :columns] if target == "log_probs" else y[..., :columns].log()
    log_s = F.log_softmax(prepared(x, temperature, softcap, columns), -1)
    value = divergence_weight * divergence(name, log_s, log_t, alpha if beta is None else beta)
    p = prepared(x, label_temperature, softcap, columns)
    if label_weight or z_loss or entropy_bonus:
        weights = None if class_weights is None else class_weights.double()[:columns]
        nll, others = label_loss(p, labels if label_weight else None, weights, label_smoothing, z_loss, entropy_bonus,
                                 ignore_index)
        value = value + label_weight * nll + others
    part = torch.ones(value.shape, dtype=torch.bool) if row_mask is None else row_mask.bool()
    if labels is not None:
        part = part & (labels != ignore_index)
    if row_weights is not None:
        value = value * row_weights.double()
    return torch.where(part, value, torch.zeros_like(value)), part


def reduced(rows, part, reduction, shape, columns=None, divisor=None):
    if reduction in ("none", "rows"):
        return rows
    over = {"batchmean": shape[0], "mean": rows.numel() * (columns or shape[-1]),
            "sum": 1 if divisor is None else divisor, "valid": part.sum()}[reduction]
    return rows.sum() / over


def targets(generator, shape, form, dtype=torch.float64):
    y = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    if form == "logits":
        return y.to(dtype)
    return (F.log_softmax(y, -1) if form == "log_probs" else F.softmax(y, -1)).to(dtype)


def logits(generator, shape, dtype=torch.float64, scale=2.0):
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def labels(generator, shape, classes, ignored=True):
    """Some of them are ignored."""
    made = torch.randint(0, classes, shape, generator=generator)
    if ignored and made.numel() > 1:
        made.view(-1)[1] = -100
    return made


def ours(name, *tensors, **options):
    return getattr(onepass.torch, name)(*tensors, **options)


def with_gradients(value, inputs, upstream=None):
    """[value, gradients]"""
    value = value[0] if isinstance(value, tuple) else value
    upstream = torch.ones_like(value) if upstream is None else upstream.to(value.dtype)
    return [value.detach()] + list(torch.autograd.grad(value, inputs, upstream))


def bound(dtype, scale, steps):
    """So many roundings of the type that is computed in, at the numbers' size or that of the terms they are the sum of;
    and for half types that of the result."""
    if dtype is torch.float64:  # where the expected numbers have such errors as well
        return steps * torch.finfo(dtype).eps * (scale + 1)
    made = steps * torch.finfo(torch.float32).eps * (scale + 0.1)
    return made if dtype is torch.float32 else made + torch.finfo(dtype).eps * scale


def error(found, expected):
    """The largest difference of two tensors of one shape, which has numbers."""
    found, expected = found.detach(), expected.detach()
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert bool(torch.isfinite(expected).all()), "the expected values must be finite"
    assert bool(torch.isfinite(found).all()), "the values found must be finite"
    return float((found.double() - expected.double()).abs().max()) if found.numel() else 0.0


def assert_near(found, expected, dtype=None, steps=64):
    off, scale = error(found, expected), float(expected.detach().abs().max()) if expected.numel() else 0.0
    allowed = bound(dtype or found.dtype, scale, steps)
    assert off <= allowed, "%g off, %g allowed at %g" % (off, allowed, scale)


random, leaf = samples.random, samples.leaf
