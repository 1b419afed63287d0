"""onepass.torch.compat against what the other projects say their functions compute, written with PyTorch's operations
in float64."""

import functools

import pytest

import losses_samples as samples
from losses_samples import assert_near, leaf
from torch_samples import F, torch

import onepass.torch
from onepass import errors
from onepass.torch import js_logits, kl_div_logits, reverse_kl_logits
from onepass.torch.compat import cce, liger, quack, torchtune, trl, verl

SHAPE = 2, 4, 9


def pair(name):
    generator = samples.random(name)
    x, y = leaf(samples.logits(generator, SHAPE)), leaf(samples.logits(generator, SHAPE))
    labels = samples.labels(generator, SHAPE[:-1], SHAPE[-1])
    labels[1, 2:] = -100
    return x, y, labels


def check(found, expected, inputs):
    """Value and gradients; what is expected may be part of a graph that is used again."""
    assert_near(found, expected, steps=512)
    upstream = torch.ones_like(expected)
    for a, b in zip(torch.autograd.grad(found, inputs, upstream),
                    torch.autograd.grad(expected, inputs, upstream, retain_graph=True)):
        assert_near(a, b, steps=512)


def elements(x, y, beta):
    """Of the generalised JSD of log-probabilities x and y, beta 0 and 1 being the KL divergences."""
    if beta in (0, 1):
        a, b = (y, x) if beta == 0 else (x, y)
        return a.exp() * (a - b)
    m = (beta * y.exp() + (1 - beta) * x.exp()).log()
    return beta * y.exp() * (y - m) + (1 - beta) * x.exp() * (x - m)


# ---- TRL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0, 0.0, 0.3, 0.5, 1, 1.0])
def test_generalized_jsd_loss(beta):
    x, y, labels = pair("trl %s" % beta)
    for temperature in (1.0, 2.5):
        each = elements(F.log_softmax(x / temperature, -1), F.log_softmax(y / temperature, -1), beta)
        kept = labels != -100
        part = (each * kept.unsqueeze(-1)).sum()
        for given, reduction, expected in ((None, "batchmean", each.sum() / 2), (None, "mean", each.mean()),
                                           (None, "sum", each.sum()), (labels, "batchmean", part / kept.sum()),
                                           (labels, "mean", part / (kept.sum() * 9)), (labels, "sum", part)):
            found = trl.generalized_jsd_loss(x, y, given, beta, temperature, reduction)
            check(found, expected, (x, y))
        for items in (7, torch.tensor(7)):
            found = trl.generalized_jsd_loss(x, y, labels, beta, temperature, num_items_in_batch=items)
            check(found, part / 7, (x, y))


def test_generalized_jsd_loss_of_nothing():
    """0 with a graph; what is not offered says so."""
    x, y, labels = pair("trl, nothing")
    loss = trl.generalized_jsd_loss(x, y, torch.full_like(labels, -100))
    assert float(loss) == 0 and not bool(torch.autograd.grad(loss, x)[0].any())
    with pytest.raises(errors.Unsupported, match="reduction: 'none'"):
        trl.generalized_jsd_loss(x, y, reduction="none")
    with pytest.raises(errors.InvalidArgument, match="reduction: 'avg'"):
        trl.generalized_jsd_loss(x, y, reduction="avg")


def test_token_functions():
    x, y, labels = pair("trl, tokens")
    index = labels.clamp(0)
    log_p = F.log_softmax(x, -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    for found, expected in ((trl.selective_log_softmax(x, index), log_p.gather(-1, index[..., None])[..., 0]),
                            (trl.selective_log_softmax(x, torch.stack([index, index], -1)),
                             log_p.gather(-1, torch.stack([index, index], -1))),
                            (trl.entropy_from_logits(x), entropy), (verl.entropy_from_logits(x), entropy),
                            (verl.entropy_from_logits_with_chunking(x), entropy),
                            (verl.logprobs_from_logits(x, index), log_p.gather(-1, index[..., None])[..., 0])):
        gradient, = torch.autograd.grad(found.sum(), x)
        assert_near(found, expected)
        assert_near(gradient, torch.autograd.grad(expected.sum(), x, retain_graph=True)[0])


# ---- torchtune -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
def test_torchtune(normalize):
    x, y, labels = pair("torchtune %s" % normalize)
    kept = labels != -100
    log_s, log_t = F.log_softmax(x, -1), F.log_softmax(y, -1)

    def reduced(each):
        total = (each.sum(-1) * kept).sum()
        return total / kept.sum() if normalize else total
    forward, reverse = -log_t.exp() * log_s, log_s.exp() * (log_s - log_t)
    for module, each in ((torchtune.ForwardKLLoss(), forward), (torchtune.ReverseKLLoss(), reverse),
                         (torchtune.SymmetricKLLoss(0.3), 0.3 * forward + 0.7 * reverse)):
        found, expected = module(x, y, labels, normalize), reduced(each)
        assert_near(found, expected)
        for a, b in zip(torch.autograd.grad(found, (x, y)), torch.autograd.grad(expected, (x, y), retain_graph=True)):
            assert_near(a, b, steps=512)
        without = module(x, y.detach(), labels, normalize)
        assert_near(without, expected)
        nothing = module(x, y, torch.full_like(labels, -100), normalize)
        assert float(nothing) == 0 and not bool(torch.autograd.grad(nothing, x)[0].any())


def test_torchtune_is_not_a_divergence():
    """Their forward KL of equal distributions is their entropy; ours is 0."""
    x, _, labels = pair("torchtune, equal")
    labels = labels.clamp(0)
    log_p = F.log_softmax(x, -1)
    assert_near(torchtune.ForwardKLLoss()(x, x, labels), -(log_p.exp() * log_p).sum(-1).mean())
    assert float(onepass.torch.kl_div_logits(x, x)) == 0
    with pytest.raises(ValueError, match="sym_kd_ratio"):
        torchtune.SymmetricKLLoss(1.5)


# ---- Liger -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_liger_cross_entropy(reduction):
    x, _, labels = pair("liger %s" % reduction)
    x, labels = leaf(x.flatten(0, 1)), labels.flatten()
    kept = labels != -100
    weight = torch.rand(9, dtype=torch.float64) + 0.1
    for softcap in (None, 4.0):
        for given in (None, weight):
            z = samples.prepared(x, 1.0, softcap)
            nll = samples.torch_cross_entropy(z, labels, given, reduction=reduction, label_smoothing=0.1)
            extra = 0.01 * z.logsumexp(-1).square() * kept
            right = ((z.argmax(-1) == labels) & kept).double()
            if reduction != "none":
                over = kept.sum() if reduction == "mean" else 1
                extra, right = extra.sum() / over, right.sum() / over
            options = {"reduction": reduction, "label_smoothing": 0.1, "lse_square_scale": 0.01, "softcap": softcap}
            found = liger.liger_cross_entropy(x, labels, given, return_z_loss=True, return_token_accuracy=True,
                                              return_predicted_tokens=True, **options)
            check(found.loss, nll + extra, (x,))
            assert_near(found.z_loss, extra)
            assert_near(found.token_accuracy, right)
            assert torch.equal(found.predicted_tokens, torch.where(kept, z.argmax(-1), torch.full_like(labels, -1)))
            module = liger.LigerCrossEntropyLoss(given, **options)
            assert torch.equal(module(x, labels), liger.liger_cross_entropy(x, labels, given, **options))
    only = liger.liger_cross_entropy(x, labels, return_token_accuracy=True)
    assert only.z_loss is None and only.predicted_tokens is None
    assert float(liger.liger_cross_entropy(x, torch.full_like(labels, -100))) == 0


@pytest.mark.parametrize("beta", [0, 0.0, 0.1, 0.5, 0.9, 1, 1.0])
def test_liger_jsd(beta):
    """Of log-probabilities, to which the gradient is, as to any numbers."""
    x, y, labels = pair("liger jsd %s" % beta)
    x, y = (leaf(F.log_softmax(tensor.detach().flatten(0, 1), -1)) for tensor in (x, y))
    labels = labels.flatten()
    kept = labels != -100
    check(liger.liger_jsd(x, y, beta=beta), elements(x, y, beta).sum() / 8, (x, y))
    found = liger.LigerJSD(beta)(x, y, labels)
    check(found, (elements(x, y, beta) * kept[:, None]).sum() / kept.sum(), (x, y))
    assert float(liger.liger_jsd(x, y, torch.full_like(labels, -100), beta)) == 0
    half = liger.liger_jsd(x.detach().bfloat16(), y.detach().bfloat16(), beta=beta)
    assert half.dtype is torch.float32
    with pytest.raises(errors.InvalidArgument, match="shift_labels"):
        liger.liger_jsd(x, y, labels[:3])


def test_liger_jsd_does_not_underflow():
    x = leaf(torch.tensor([[0.0, -150.0, float("-inf"), -120.0]]))
    y = torch.tensor([[0.0, -150.0, float("-inf"), float("-inf")]])
    loss = liger.liger_jsd(x, y)
    gradient, = torch.autograd.grad(loss, x)
    assert float(loss) >= 0 and bool(torch.isfinite(gradient).all())


def test_liger_tvd():
    x, y, labels = pair("liger tvd")
    p, q = (leaf(F.softmax(tensor.detach().flatten(0, 1), -1)) for tensor in (x, y))
    labels = labels.flatten()
    kept = labels != -100
    for given, count in ((None, 8), (labels, kept.sum())):
        each = 0.5 * (p - q).abs() * (1 if given is None else kept[:, None])
        for reduction, expected in (("none", each), ("sum", each.sum()), ("batchmean", each.sum() / count),
                                    ("mean", each.sum() / (count * 9))):
            found = liger.liger_tvd(p, q, given, reduction)
            assert_near(found, expected)
            gradient, = torch.autograd.grad(found.sum(), p)
            assert_near(gradient, torch.autograd.grad(expected.sum(), p, retain_graph=True)[0])
    assert torch.equal(liger.LigerTVDLoss()(p, q, labels), liger.liger_tvd(p, q, labels, "batchmean"))
    with pytest.raises(errors.InvalidArgument, match="reduction: 'avg'"):
        liger.liger_tvd(p, q, reduction="avg")


def test_liger_kl_div():
    x, y, _ = pair("liger kl")
    x, y = leaf(F.log_softmax(x.detach().flatten(0, 1), -1)), leaf(F.log_softmax(y.detach().flatten(0, 1), -1))
    each = y.exp() * (y - x)
    for reduction, expected in (("none", each), ("sum", each.sum()), ("mean", each.mean()),
                                ("batchmean", each.sum() / 8)):
        assert_near(liger.liger_kl_div(x, y, reduction=reduction, log_target=True), expected)
        assert_near(liger.liger_kl_div(x, y.exp(), reduction=reduction), expected)
    assert_near(liger.LigerKLDIVLoss(reduction="batchmean", log_target=True)(x, y), each.sum() / 8)
    assert liger.LigerKLDIVLoss(1e-8).eps == 1e-8 and liger.LigerKLDIVLoss().reduction == "mean"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_liger_fused_linear_cross_entropy(reduction):
    """What liger_cross_entropy says of the logits, with gradients to input, weight and bias."""
    generator = samples.random("liger linear %s" % reduction)
    hidden, w, b = (leaf(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in ((8, 4), (9, 4), 9))
    labels = samples.labels(generator, (8,), 9)
    classes = torch.rand(9, generator=generator, dtype=torch.float64) + 0.1
    for options in ({}, {"lse_square_scale": 0.1, "softcap": 3.0}, {"label_smoothing": 0.2, "ignore_index": 2}):
        for class_weights in (None, classes):
            target = labels.clamp(min=0) if "ignore_index" in options else labels
            asked = {"return_z_loss": True, "return_token_accuracy": True, "return_predicted_tokens": True}
            expected = liger.liger_cross_entropy(F.linear(hidden, w, b), target, class_weights, reduction=reduction,
                                                 **options, **asked)
            found = liger.liger_fused_linear_cross_entropy(hidden, w, target, b, class_weights, reduction=reduction,
                                                           **options, **asked)
            check(found.loss, expected.loss, (hidden, w, b))
            assert_near(found.z_loss, expected.z_loss)
            assert_near(found.token_accuracy, expected.token_accuracy)
            assert torch.equal(found.predicted_tokens, expected.predicted_tokens)
            module = liger.LigerFusedLinearCrossEntropyLoss(class_weights, reduction=reduction, **options)
            assert torch.equal(module(w, hidden, target, b), found.loss)
    frozen = liger.liger_fused_linear_cross_entropy(hidden.detach(), w, labels, reduction=reduction)
    assert torch.autograd.grad(frozen.sum(), w)[0].abs().sum() > 0
    with pytest.raises(errors.Unsupported, match="use_token_scaling"):
        liger.liger_fused_linear_cross_entropy(hidden, w, labels, use_token_scaling=True)


def test_liger_fused_linear_jsd():
    """What js_logits says of the logits; the ends are KL and reverse KL; nothing goes to the teacher."""
    generator = samples.random("liger linear jsd")
    x, w, b, y, v, c = (leaf(torch.randn(shape, generator=generator, dtype=torch.float64))
                        for shape in ((8, 4), (9, 4), 9, (8, 3), (9, 3), 9))
    labels = samples.labels(generator, (8,), 9)
    kept = labels != -100
    student, teacher = F.linear(x, w) / 2, (F.linear(y, v) / 2).detach()
    for beta, function in ((0, kl_div_logits), (1, reverse_kl_logits), (0.3, functools.partial(js_logits, beta=0.3))):
        expected = function(student, teacher, reduction="none")
        for target, each in ((labels, expected[kept].mean()), (None, expected.mean())):
            found = liger.liger_fused_linear_jsd(x, w, y, v, target, jsd_beta=beta, temperature=2.0)
            assert not any(torch.autograd.grad(found, (y, v), retain_graph=True, allow_unused=True))
            check(found, each, (x, w))
        module = liger.LigerFusedLinearJSD(beta, temperature=2.0)
        assert torch.equal(module(x, w, y, v, labels), liger.liger_fused_linear_jsd(
            x, w, y, v, labels, jsd_beta=beta, temperature=2.0))
        logits, target_logits = F.linear(x, w, b), F.linear(y, v, c).detach()
        soft = function(logits / 2, target_logits / 2, reduction="none")[kept].mean()
        both = liger.LigerFusedLinearJSDLoss(0.4, 0.7, beta, temperature=2.0)(x, w, y, v, labels, b, c)
        check(both, 0.4 * F.cross_entropy(logits, labels) + 0.7 * soft, (x, w, b))
    nothing = liger.liger_fused_linear_jsd(x, w, y, v, torch.full((8,), -100))
    assert nothing == 0 and torch.autograd.grad(nothing, x)[0].abs().sum() == 0
    with pytest.raises(errors.InvalidArgument, match="shift_labels: shape"):
        liger.liger_fused_linear_jsd(x, w, y, v, labels[:3])


# ---- quack -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_quack(reduction):
    x, _, labels = pair("quack %s" % reduction)
    x, labels = leaf(x.flatten(0, 1)), labels.flatten()
    weight = torch.rand(9, dtype=torch.float64) + 0.1
    for given in (None, weight):
        expected = F.cross_entropy(x, labels, given, reduction=reduction)
        for logits in (x, x * 1):  # the second may be written to
            found = quack.cross_entropy(logits, labels, weight=given, reduction=reduction, inplace_backward=True)
            assert_near(found, expected)
            gradient, = torch.autograd.grad(found.sum(), x)
            assert_near(gradient, torch.autograd.grad(expected.sum(), x, retain_graph=True)[0])
    with pytest.raises(errors.Unsupported, match="lse_partial"):
        quack.cross_entropy(x, labels, lse_partial=x)


def linear_layer(name, rows):
    generator = samples.random(name)
    tensors = (leaf(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in (rows + (4,), (9, 4), 9))
    return tuple(tensors) + (samples.labels(generator, rows, 9),)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_quack_linear(reduction):
    x, w, b, labels = linear_layer("quack linear %s" % reduction, (700,))
    logits = F.linear(x, w, b)
    check(quack.linear_cross_entropy_func(x, w, b, labels, reduction=reduction),
          F.cross_entropy(logits, labels, reduction=reduction), (x, w, b))
    if reduction == "none":
        with pytest.raises(errors.InvalidArgument, match="reduction: 'none'"):
            quack.chunked_linear_cross_entropy(x, w, labels, reduction=reduction)
        return
    lse = torch.logsumexp(F.linear(x, w), -1) * (labels != -100)
    squares = 0.1 * lse.square().sum() / ((labels != -100).sum() if reduction == "mean" else 1)
    for size in (1, 4096):
        found, z_loss = quack.chunked_linear_cross_entropy(x, w, labels, size, reduction=reduction, z_loss_weight=0.1,
                                                           return_z_loss=True)
        check(found, F.cross_entropy(F.linear(x, w), labels, reduction=reduction) + squares, (x, w))
        assert_near(z_loss, squares)
        assert not z_loss.requires_grad


def test_cce():
    e, c, bias, targets = linear_layer("cce", (2, 7))
    for shift in (0, 1, True, 3):
        some = e[:, :7 - int(shift)].reshape(-1, 4)
        labels = targets[:, int(shift):].reshape(-1)
        logits = F.linear(some, c, bias)
        for reduction in ("mean", "sum", "none"):
            expected = F.cross_entropy(logits, labels, reduction=reduction)
            found, lse = cce.linear_cross_entropy(e, c, targets, bias, reduction=reduction, shift=shift,
                                                  return_lse=True, filter_eps="auto", impl="cce_exact")
            check(found.reshape(expected.shape), expected, (e, c, bias))
            assert_near(lse.reshape(-1), torch.logsumexp(logits, -1) * (labels != -100))
    check(cce.linear_cross_entropy(e, c, targets, softcap=2.0),
          F.cross_entropy(2 * torch.tanh(F.linear(e, c) / 2).reshape(-1, 9), targets.reshape(-1)), (e, c))
    with pytest.raises(errors.InvalidArgument, match="shift: 7"):
        cce.linear_cross_entropy(e, c, targets, shift=7)
    with pytest.raises(errors.Unsupported, match="vocab_parallel_options"):
        cce.linear_cross_entropy(e, c, targets, vocab_parallel_options=object())
    with pytest.raises(TypeError, match="filter_epsilon"):
        cce.linear_cross_entropy(e, c, targets, filter_epsilon=1)


def test_verl_linear():
    x, w, _, labels = linear_layer("verl linear", (2, 7))
    labels = labels.clamp(min=0)
    log_p = F.log_softmax(F.linear(x, w) / 1.5, -1)
    each = log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)
    for reduction in ("none", "mean", "sum"):
        for i, one in enumerate(each):
            found = verl.linear_cross_entropy(x, w, labels, 1.5, reduction)[i]
            check(found, one if reduction == "none" else getattr(one, reduction)(), (x, w))
    with pytest.raises(errors.InvalidArgument, match="reduction: 'median'"):
        verl.linear_cross_entropy(x, w, labels, reduction="median")
