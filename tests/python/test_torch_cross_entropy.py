"""cross_entropy against torch.nn.functional's own: every argument, shape and type, PyTorch's own samples, and what is
refused."""

import importlib.util
import itertools
import sys
import types
import unittest

import pytest

import losses_samples as samples
from losses_samples import assert_near, leaf
from torch_samples import DTYPES, VERSION, F, needs_cuda, needs_func, torch

import onepass.torch
from onepass import errors
from onepass.torch import losses
from onepass.torch.losses import cross_entropy

REDUCTIONS = "mean", "sum", "none"


def weights_of(generator, classes, dtype=torch.float64):
    return torch.rand(classes, generator=generator, dtype=dtype) + 0.1


def check(x, target, dtype=torch.float64, steps=64, **options):
    """Value and gradient as PyTorch's, in float64."""
    exact = leaf(x.detach().double())
    double = {name: value.double() if name == "weight" and value is not None else value
              for name, value in options.items()}
    target_of_theirs = target.double() if target.is_floating_point() else target.long()
    theirs = samples.torch_cross_entropy(exact, target_of_theirs, **double)
    ours = cross_entropy(x, target, **options)
    assert ours.shape == theirs.shape and ours.dtype is dtype
    for a, b in zip(samples.with_gradients(ours, (x,)), samples.with_gradients(theirs, (exact,))):
        assert_near(a, b, steps=steps)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_as_in_pytorch(reduction):
    """Every dimension, with weights, smoothing and ignored rows, indices and probabilities."""
    generator = samples.random("cross_entropy %s" % reduction)
    for shape in ((7,), (4, 7), (3, 7, 2), (2, 7, 3, 2), (2, 7, 1, 2, 2)):
        rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
        target = samples.labels(generator, rows, 7) if rows else torch.tensor(5)
        spread = F.softmax(samples.logits(generator, shape), 1 if len(shape) > 1 else 0)
        for weight, smoothing in itertools.product((None, weights_of(generator, 7)), (0.0, 0.3, 1.0)):
            x = leaf(samples.logits(generator, shape))
            options = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
            check(x, target, **options)
            check(x, target.int(), **options)
            check(x, target.clamp(0), ignore_index=2, **options)
            check(x, spread, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    """The value has float32's digits, the gradient the input's type."""
    generator = samples.random("cross_entropy %s" % dtype)
    x = leaf(samples.logits(generator, (6, 50), dtype))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    target = samples.labels(generator, (6,), 50)
    for reduction in REDUCTIONS:
        check(x, target, wide, reduction=reduction, steps=16)
        check(x, F.softmax(samples.logits(generator, (6, 50)), -1).to(dtype), wide, reduction=reduction, steps=64)
    for other in (torch.uint8, torch.int16):
        found = cross_entropy(x, target.clamp(0).to(other))
        assert torch.equal(found, cross_entropy(x, target.clamp(0)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pixels(dtype):
    """Classes before pixels, which are neighbours in memory: fewer and more of both than a vector holds, narrow rows and
    wide ones, in batches and under ignored rows."""
    generator = samples.random("pixels %s" % dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    for classes, pixels in itertools.product((2, 21, 128, 129, 300), ((5, 3), (1, 16), (3, 33))):
        shape = (2, classes) + pixels
        target = samples.labels(generator, (2,) + pixels, classes)
        weight = weights_of(generator, classes, torch.float32)
        for reduction, options in zip(REDUCTIONS, ({}, {"label_smoothing": 0.1}, {"weight": weight})):
            check(leaf(samples.logits(generator, shape, dtype)), target, wide, reduction=reduction, **options)
        check(leaf(samples.logits(generator, shape, dtype)), target.clamp(0), wide)


def test_old_arguments_of_the_reduction():
    generator = samples.random("size_average")
    x, target = samples.logits(generator, (4, 7)), samples.labels(generator, (4,), 7)
    with pytest.warns(UserWarning):
        for given in itertools.product((None, True, False), (None, True, False)):
            if given != (None, None):
                assert_near(cross_entropy(x, target, None, given[0], -100, given[1]),
                            F.cross_entropy(x, target, None, given[0], -100, given[1]))


def test_other_terms():
    """z-loss, entropy, softcap, temperature, columns, weights and masks of rows, for indices and probabilities."""
    generator = samples.random("cross_entropy terms")
    x, target = leaf(samples.logits(generator, (5, 9))), samples.labels(generator, (5,), 8)
    row_weights = torch.rand(5, generator=generator, dtype=torch.float64)
    row_mask = torch.tensor([1, 1, 1, 0, 1]).bool()
    spread = F.softmax(samples.logits(generator, (5, 9)), -1)
    for reduction in REDUCTIONS:
        for labels in (target, spread):
            z = samples.prepared(x, 1.5, 4.0, 8)
            kept = row_mask & (labels != -100) if labels.dim() == 1 else row_mask
            nll, others = samples.label_loss(z, labels if labels.dim() == 1 else labels[:, :8], z_loss=0.01,
                                             entropy_bonus=0.2)
            rows = torch.where(kept, (nll + others) * row_weights, torch.zeros_like(nll))
            expected = rows if reduction == "none" else rows.sum() / (kept.sum() if reduction == "mean" else 1)
            found = cross_entropy(x, labels, reduction=reduction, temperature=1.5, softcap=4.0, columns=8, z_loss=0.01,
                                  entropy_bonus=0.2, row_weights=row_weights, row_mask=row_mask)
            for a, b in zip(samples.with_gradients(found, (x,)), samples.with_gradients(expected, (x,))):
                assert_near(a, b, steps=256)


def test_class_dim():
    generator = samples.random("class_dim")
    x, target = leaf(samples.logits(generator, (2, 3, 7))), samples.labels(generator, (2, 3), 7)
    expected = samples.with_gradients(F.cross_entropy(x.flatten(0, 1), target.flatten()), (x,))
    for found in (cross_entropy(x, target, class_dim=-1), cross_entropy(x, target, class_dim=2),
                  cross_entropy(x.movedim(-1, 0), target, class_dim=0), cross_entropy(x.movedim(-1, 1), target)):
        for a, b in zip(samples.with_gradients(found, (x,)), expected):
            assert_near(a, b)
    gradient, = torch.autograd.grad(cross_entropy(x.movedim(-1, 1), target), x)
    assert gradient.is_contiguous()


def test_outputs():
    generator = samples.random("cross_entropy outputs")
    x, target = leaf(samples.logits(generator, (4, 7))), samples.labels(generator, (4,), 7)
    loss, argmax, lse, log_prob, entropy = cross_entropy(x, target, outputs=("argmax", "lse", "log_prob", "entropy"))
    kept = target != -100
    assert torch.equal(argmax, x.argmax(-1) * kept) and argmax.dtype is torch.int64
    assert_near(lse, x.logsumexp(-1) * kept)
    assert_near(log_prob, -F.cross_entropy(x, target, reduction="none"))
    assert_near(entropy, -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1) * kept)
    gradient, = torch.autograd.grad(loss, x)
    assert_near(gradient, torch.autograd.grad(F.cross_entropy(x, target), x)[0])


def test_module():
    generator = samples.random("CrossEntropyLoss")
    x, target = samples.logits(generator, (4, 7)), samples.labels(generator, (4,), 7)
    weight = weights_of(generator, 7)
    for options in ({}, {"weight": weight, "reduction": "sum"}, {"ignore_index": 3, "label_smoothing": 0.1}):
        theirs, ours = torch.nn.CrossEntropyLoss(**options), onepass.torch.CrossEntropyLoss(**options)
        assert_near(ours(x, target.clamp(0)), samples.torch_cross_entropy(x, target.clamp(0), **options))
        assert list(ours.state_dict()) == list(theirs.state_dict())
    loss = onepass.torch.CrossEntropyLoss(z_loss=0.1)
    assert_near(loss(x, target, temperature=2.0), cross_entropy(x, target, z_loss=0.1, temperature=2.0))
    y = samples.logits(generator, (4, 7))
    for name, function, given in (("KLDivLogitsLoss", "kl_div_logits", {}), ("TVLogitsLoss", "tv_logits", {}),
                                  ("ReverseKLLogitsLoss", "reverse_kl_logits", {}),
                                  ("JSLogitsLoss", "js_logits", {"beta": 0.2}),
                                  ("SkewKLLogitsLoss", "skew_kl_logits", {"alpha": 0.2}),
                                  ("SkewReverseKLLogitsLoss", "skew_reverse_kl_logits", {"alpha": 0.2})):
        module = getattr(onepass.torch, name)(reduction="valid", temperature=2.0, **given)
        found = module(x, y, labels=target)
        expected = samples.ours(function, x, y, reduction="valid", temperature=2.0, labels=target, **given)
        assert torch.equal(found, expected)
        assert "temperature=2.0" in repr(module)


# ---- PyTorch's own samples -------------------------------------------------------------------------------------------


needs_samples = pytest.mark.skipif(VERSION < (2, 4), reason="PyTorch %d.%d has other samples" % VERSION)


@pytest.fixture(scope="module")
def operators():
    """PyTorch's list of operators and their sample inputs. The file it is in imports expecttest, which nothing of this
    needs and few have installed."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("expecttest") is None:
            patch.setitem(sys.modules, "expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))
        from torch.testing._internal.common_methods_invocations import op_db
        yield op_db


def samples_of(operators, name):
    """[(input, arguments, keywords)] that PyTorch tests its own function with."""
    operators = [op for op in operators if op.name == name]
    assert operators
    return [(s.input, s.args, s.kwargs) for op in operators
            for s in op.sample_inputs("cpu", torch.float64, requires_grad=True)]


@needs_samples
def test_pytorch_samples_of_cross_entropy(operators):
    found = samples_of(operators, "nn.functional.cross_entropy")
    assert len(found) >= 20
    for x, args, kwargs in found:
        theirs, ours = F.cross_entropy(x, *args, **kwargs), cross_entropy(x, *args, **kwargs)
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14, equal_nan=True), kwargs
        upstream = torch.randn_like(theirs)
        a, b = (torch.autograd.grad(loss, x, upstream)[0] for loss in (ours, theirs))
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14, equal_nan=True), kwargs
    for x, args, kwargs in found[:6]:
        assert torch.autograd.gradcheck(lambda x: cross_entropy(x, *args, **kwargs), (x,))


@needs_samples
def test_pytorch_samples_of_kl_div(operators):
    """Of logits: kl_div(log_softmax(input), softmax(target)) of each sample whose shapes are equal."""
    count = 0
    for x, (y,), kwargs in samples_of(operators, "nn.functional.kl_div"):
        if x.shape != y.shape or not x.dim():
            continue
        count += 1
        reduction = kwargs.get("reduction", "mean")
        leaves = leaf(x), leaf(y)
        theirs = F.kl_div(F.log_softmax(leaves[0], -1), F.log_softmax(leaves[1], -1), reduction=reduction,
                          log_target=True)
        theirs = theirs.sum(-1) if reduction == "none" else theirs
        ours = onepass.torch.kl_div_logits(*leaves, reduction=reduction)
        for a, b in zip(samples.with_gradients(ours, leaves), samples.with_gradients(theirs, leaves)):
            assert torch.allclose(a, b, rtol=1e-11, atol=1e-13), kwargs
    assert count >= 8


@needs_samples
def test_pytorch_samples_of_log_softmax(operators):
    """At every index, as token_log_probs gives them."""
    for x, (dim,), kwargs in samples_of(operators, "log_softmax"):
        if not x.dim() or not x.numel():
            continue
        dtype = kwargs.get("dtype", x.dtype)
        moved = x.movedim(dim, -1)
        indices = torch.arange(moved.shape[-1]).expand(moved.shape)
        ours = onepass.torch.token_log_probs(moved.to(dtype), indices)
        theirs = torch.log_softmax(x, dim, **kwargs).movedim(dim, -1)
        upstream = torch.randn_like(theirs)
        assert_near(ours, theirs)
        a, b = (torch.autograd.grad(value, x, upstream)[0] for value in (ours, theirs))
        assert_near(a, b, dtype)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_refused_as_in_pytorch():
    """Whatever PyTorch refuses is refused, with an exception of the same kind; the text names argument and rule."""
    x = torch.randn(3, 5)
    good = torch.tensor([0, 1, 2])
    for args, kwargs, word in (
            ((x, good[:2]), {}, "target: shape"), ((x, good.view(3, 1)), {}, "target: shape"),
            ((x, good.float()), {}, "target: dtype"), ((x, good.bool()), {}, "target: dtype"),
            ((x.long(), good), {}, "input: dtype"), ((x, good), {"weight": torch.ones(4)}, "weight: shape"),
            ((x, good), {"reduction": "avg"}, "reduction: 'avg'"),
            ((x, good), {"label_smoothing": 1.5}, "label_smoothing: 1.5"),
            ((x, F.softmax(x, -1)), {"ignore_index": 1}, "ignore_index: 1")):
        with pytest.raises(Exception) as theirs:
            F.cross_entropy(*args, **kwargs)
        with pytest.raises(errors.Error, match=word) as ours:
            cross_entropy(*args, **kwargs)
        assert isinstance(ours.value, type(theirs.value)) or isinstance(theirs.value, RuntimeError)
        assert str(ours.value).startswith("cross_entropy: ")
    for args in ((x.numpy(), good), (x, [0, 1, 2])):
        with pytest.raises(TypeError):
            cross_entropy(*args)


def test_refused_of_our_own():
    x, y, good = torch.randn(3, 5), torch.randn(3, 5), torch.tensor([0, 1, 2])
    kl = onepass.torch.kl_div_logits
    for function, args, kwargs, word in (
            (cross_entropy, (x, good), {"temperature": 0}, "temperature: 0"),
            (cross_entropy, (x, good), {"temperature": float("nan")}, "temperature: nan"),
            (cross_entropy, (x, good), {"softcap": -1.0}, "softcap: -1"),
            (cross_entropy, (x, good), {"columns": 6}, "columns: 6"),
            (cross_entropy, (x, good), {"columns": 0}, "columns: 0"),
            (cross_entropy, (x, good), {"z_loss": float("inf")}, "z_loss: inf"),
            (cross_entropy, (x, good), {"divisor": 3}, "divisor: given with reduction 'mean'"),
            (cross_entropy, (x, good), {"reduction": "sum", "divisor": 0}, "divisor: 0"),
            (cross_entropy, (x, good), {"reduction": "sum", "divisor": torch.ones(2)}, "divisor: shape"),
            (cross_entropy, (x, good), {"outputs": ["target_lse"]}, "outputs: 'target_lse'"),
            (cross_entropy, (x, good), {"row_mask": torch.ones(3)}, "row_mask: dtype"),
            (cross_entropy, (x, good), {"row_mask": torch.ones(2).bool()}, "row_mask: shape"),
            (cross_entropy, (x, good), {"row_weights": torch.ones(2)}, "row_weights: shape"),
            (cross_entropy, (x, good), {"row_weights": torch.ones(3).requires_grad_()}, "row_weights: requires_grad"),
            (cross_entropy, (x, good), {"weight": torch.ones(5).requires_grad_()}, "weight: requires_grad"),
            (cross_entropy, (x, good), {"class_dim": 2}, "class_dim: 2"),
            (cross_entropy, (x[0, 0], good[0]), {}, "input: 0 dimensions"),
            (kl, (x, y[:2]), {}, "targets: shape"), (kl, (x, y.long()), {}, "targets: dtype"),
            (kl, (x, y), {"target": "tokens"}, "target: 'tokens'"),
            (kl, (x, y), {"target": "probs", "target_temperature": 2.0}, "target_temperature: 2"),
            (kl, (x, y), {"label_weight": 1.0}, "without labels"),
            (kl, (x, y), {"labels": good.float()}, "labels: dtype"),
            (kl, (x, y), {"labels": good[:2]}, "labels: shape"),
            (kl, (x, y), {"outputs": ["log_prob"]}, "outputs: 'log_prob'"),
            (kl, (x, y), {"semantics": "loose"}, "semantics: 'loose'"),
            (kl, (x, y), {"reduction": "rowmean"}, "reduction: 'rowmean'"),
            (onepass.torch.token_log_probs, (x, good[:2]), {}, "indices: shape"),
            (onepass.torch.token_log_probs, (x, good.float()), {}, "indices: dtype"),
            (onepass.torch.token_log_probs, (x, None), {}, "indices: None")):
        with pytest.raises(errors.Error, match=word) as caught:
            function(*args, **kwargs)
        assert str(caught.value).startswith(function.__name__ + ": ")
    for name in ("js_logits", "skew_kl_logits", "skew_reverse_kl_logits"):
        for value in (0, 1, -0.5, float("nan")):
            with pytest.raises(errors.InvalidArgument, match="above 0 and below 1"):
                samples.ours(name, x, y, value)
    with pytest.raises(TypeError):
        kl(x, y, colums=3)


def test_labels_on_another_device():
    x, target = torch.randn(3, 5), torch.tensor([0, 1, 2], device="meta")
    with pytest.raises(RuntimeError, match="target: device meta; it must be that of input, cpu"):
        cross_entropy(x, target)
    with pytest.raises(RuntimeError, match="targets: device meta"):
        onepass.torch.kl_div_logits(x, x.to("meta"))


def test_labels_out_of_range(monkeypatch):
    """The row's value and gradient are NaN, those of others are not; on request it raises."""
    for bad in (5, -1, -101, 2**40):
        x = torch.randn(3, 5, requires_grad=True)
        target = torch.tensor([0, bad, -100])
        value = cross_entropy(x, target, reduction="none")
        gradient, = torch.autograd.grad(value.sum(), x)
        assert torch.isnan(value).tolist() == [False, True, False]
        assert torch.isnan(gradient).any(1).tolist() == [False, True, False] and bool(torch.isnan(gradient[1]).all())
        with monkeypatch.context() as patch:
            patch.setattr(losses, "_CHECKS_LABELS", True)
            with pytest.raises(IndexError, match="%d is out of bounds" % bad):
                cross_entropy(x, target)
            assert bool(torch.isfinite(cross_entropy(x, torch.tensor([0, 4, -100]))))


@needs_func
def test_labels_out_of_range_transformed():
    x, target = torch.randn(3, 5), torch.tensor([0, 7, -100])
    gradient, value = torch.func.grad_and_value(lambda x: cross_entropy(x, target, reduction="none").sum())(x)
    assert bool(torch.isnan(value)) and torch.isnan(gradient).all(1).tolist() == [False, True, False]


@needs_cuda
def test_on_cuda():
    """The CPU's numbers."""
    generator = samples.random("cuda")
    x, y = samples.logits(generator, (4, 7)), samples.logits(generator, (4, 7))
    target = samples.labels(generator, (4,), 7)
    for function, given in ((cross_entropy, target), (onepass.torch.kl_div_logits, y)):
        on_cpu, on_cuda = leaf(x), leaf(x.cuda())
        expected = samples.with_gradients(function(on_cpu, given), (on_cpu,))
        found = samples.with_gradients(function(on_cuda, given.cuda()), (on_cuda,))
        for a, b in zip(found, expected):
            assert a.is_cuda
            assert_near(a.cpu(), b)
