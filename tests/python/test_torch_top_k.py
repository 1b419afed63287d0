"""kl_div_top_k: value and gradient with every form of values and every rule for what is outside, against the plain
formulas over dense float64 tensors, in every way a call can go; special values; what is refused."""

import math

import pytest

import losses_samples as samples
import torch_samples
from losses_samples import assert_near, leaf
from torch_samples import F, needs_compile, needs_func, torch, watched

from onepass import errors
from onepass.torch import kl_div_top_k, losses_call

FORMS = "log_probs", "probs", "logits"
OUTSIDES = "tail", "zero", "renormalised", "subset"
ROWS, CLASSES, K = 6, 40, 7


def teacher(generator, form, rows=ROWS, classes=CLASSES, k=K, dtype=torch.float64, all_classes=False):
    """(values, indices) of some classes, whose probabilities add up to less than 1."""
    y = torch.randn((rows, classes), generator=generator, dtype=torch.float64) * 2
    indices = torch.stack([torch.randperm(classes, generator=generator) for _ in range(rows)])
    indices = indices if all_classes else indices[:, :k]
    values = y if form == "logits" else F.log_softmax(y, -1) if form == "log_probs" else F.softmax(y, -1)
    return values.gather(-1, indices).to(dtype), indices


def rows_of(x, values, indices, form, outside, reverse, temperature=1.0):
    """D of each row by the formulas, over dense tensors with one more column for what is outside. No index may come
    twice, none may be padding."""
    x, values = x.double(), values.double()
    t = {"log_probs": torch.exp, "probs": torch.clone, "logits": lambda y: F.softmax(y / temperature, -1)}[form](values)
    if outside in ("renormalised", "subset"):
        t = t / t.sum(-1, keepdim=True)
    in_set = torch.zeros_like(x).scatter(-1, indices, torch.ones_like(values)) > 0
    log_s = F.log_softmax(x / temperature, -1)
    if outside == "subset":
        log_s = F.log_softmax((x / temperature).gather(-1, indices), -1)
        parts = t, log_s
    else:
        rest = (1 - t.sum(-1)) if outside == "tail" and form != "logits" else torch.zeros(len(x), dtype=t.dtype)
        s_rest = (log_s.exp() * ~in_set).sum(-1)
        parts = (torch.cat([t, rest.unsqueeze(-1)], -1),
                 torch.cat([log_s.gather(-1, indices), s_rest.log().unsqueeze(-1)], -1))
        if in_set.all():
            parts = t, log_s.gather(-1, indices)
    t, log_s = parts
    return (log_s.exp() * (log_s - t.log())).sum(-1) if reverse else torch.xlogy(t, t).sum(-1) - torch.where(
        t > 0, t * log_s, torch.zeros_like(t)).sum(-1)


def is_infinite(form, outside, reverse):
    return reverse and (outside in ("zero", "renormalised") or (outside == "tail" and form == "logits"))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("outside", OUTSIDES)
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients(form, outside, reverse):
    generator = samples.random("top-k %s %s %s" % (form, outside, reverse))
    for reduction, dtype in (("none", torch.float64), ("batchmean", torch.float64), ("sum", torch.float32)):
        x = leaf(torch.randn((ROWS, CLASSES), generator=generator, dtype=torch.float64).mul(2).to(dtype))
        values, indices = teacher(generator, form, dtype=dtype, all_classes=is_infinite(form, outside, reverse))
        rows = rows_of(x, values, indices, form, outside, reverse, 1.4)
        expected = rows if reduction == "none" else rows.sum() / (ROWS if reduction == "batchmean" else 1)
        upstream = torch.rand(expected.shape, generator=generator, dtype=torch.float64) + 0.5
        wanted = samples.with_gradients(expected, (x,), upstream)
        for integer in (torch.int64, torch.int32):
            found = kl_div_top_k(x, values, indices.to(integer), form=form, outside=outside, reverse=reverse,
                                 temperature=1.4, reduction=reduction)
            assert found.dtype == dtype
            for a, b in zip(samples.with_gradients(found, (x,), upstream), wanted):
                assert_near(a, b)


@pytest.mark.parametrize("outside", OUTSIDES)
@pytest.mark.parametrize("form", FORMS)
def test_devices_without_kernels(form, outside, monkeypatch):
    """There PyTorch's operations do it, to the same formulas."""
    monkeypatch.setattr(losses_call, "_DEVICES", ())
    seen = watched(monkeypatch, "divergence_logits_top_k")
    for reverse in (False, True):
        test_values_and_gradients(form, outside, reverse)
    assert not seen


def every_option(generator):
    labels = samples.labels(generator, (ROWS,), CLASSES - 2)
    return {"labels": labels, "label_weight": 0.7, "label_smoothing": 0.1, "label_temperature": 1.5,
            "class_weights": torch.rand(CLASSES, generator=generator, dtype=torch.float64) + 0.1, "z_loss": 0.02,
            "entropy_bonus": 0.1, "columns": CLASSES - 2, "softcap": 4.0, "temperature": 1.3,
            "row_weights": torch.rand(ROWS, generator=generator, dtype=torch.float64),
            "row_mask": torch.arange(ROWS) != 3, "divergence_weight": 2.0}


def messy(generator, form):
    """Padding, repetitions, and a row that names nothing."""
    values, indices = teacher(generator, form, classes=CLASSES - 2)
    indices[0, 2], indices[1, 1], indices[4] = -1, indices[1, 0], -100
    values[0, 2] = math.nan
    return values, indices


@pytest.mark.parametrize("outside", OUTSIDES)
@pytest.mark.parametrize("form", FORMS)
def test_library_and_reference_agree(form, outside, monkeypatch):
    """With every option, and what both define of special rows."""
    generator = samples.random("top-k options %s %s" % (form, outside))
    values, indices = messy(generator, form)
    for given in ({}, every_option(generator)):
        for semantics in ("strict", "finite"):
            for reverse in (False, True):
                if is_infinite(form, outside, reverse):
                    continue
                x = leaf(torch.randn((ROWS, CLASSES), generator=generator, dtype=torch.float64))
                found = []
                for devices in (("cpu", "meta"), ()):
                    monkeypatch.setattr(losses_call, "_DEVICES", devices)
                    value = kl_div_top_k(x, values, indices, form=form, outside=outside, reverse=reverse,
                                         semantics=semantics, reduction="none", **given)
                    found.append(samples.with_gradients(value, (x,)))
                for a, b in zip(*found):
                    assert torch.allclose(a, b, rtol=1e-11, atol=1e-12, equal_nan=True), (given.keys(), semantics)


def test_special_rows(monkeypatch):
    x = torch.zeros((6, 6), dtype=torch.float64)
    x[4, 2] = math.nan
    values = torch.tensor([[0.2, 0.2], [0.2, 0.2], [0.2, 0.2], [-1.0, 0.2], [0.2, 0.2], [0.5, 0.7]], dtype=torch.float64)
    indices = torch.tensor([[3, 1], [-1, -7], [6, 1], [0, 1], [0, 1], [0, 1]])
    expected = torch.tensor([0.4 * math.log(1.2) + 0.6 * math.log(0.9), 0.0, math.nan, math.nan, math.nan,
                             0.5 * math.log(3) + 0.7 * math.log(4.2)], dtype=torch.float64)
    for devices in (("cpu", "meta"), ()):
        monkeypatch.setattr(losses_call, "_DEVICES", devices)
        y = leaf(x)
        value = kl_div_top_k(y, values, indices, form="probs", reduction="none")
        assert torch.allclose(value, expected, rtol=1e-14, atol=1e-15, equal_nan=True)
        value.sum().backward()
        assert y.grad[2:5].isnan().all() and not y.grad[[0, 1, 5]].isnan().any()
        assert (y.grad[1].abs() < 1e-16).all()
        inf = kl_div_top_k(y, values[:1].expand(6, 2), indices[:1].expand(6, 2), form="probs", outside="zero",
                           reverse=True, reduction="none")
        assert inf[0] == math.inf
        none = kl_div_top_k(y, values[:, :0], indices[:, :0], form="probs", outside="renormalised", reduction="none")
        assert none.isnan().all()
        none = kl_div_top_k(y, values[:, :0], indices[:, :0], form="probs", outside="subset", reduction="none",
                            semantics="finite")
        assert (none == 0).all()


def test_upstream_and_second_backward():
    """Gradients for any upstream gradient, and again through the same graph."""
    generator = samples.random("top-k upstream")
    values, indices = teacher(generator, "log_probs")
    x = leaf(torch.randn((ROWS, CLASSES), generator=generator, dtype=torch.float64))
    value = kl_div_top_k(x, values, indices)
    first, = torch.autograd.grad(value, x, retain_graph=True)
    kept = first.clone()
    for factor in (1.0, -3.5):
        again, = torch.autograd.grad(value, x, torch.tensor(factor, dtype=torch.float64), retain_graph=True)
        assert torch.allclose(again, factor * kept, rtol=1e-14, atol=0)
    assert torch.equal(first, kept)


def test_gradgrad():
    generator = samples.random("top-k gradgrad")
    values, indices = teacher(generator, "log_probs", rows=2, classes=6, k=3)
    x = leaf(torch.randn((2, 6), generator=generator, dtype=torch.float64))
    for outside in OUTSIDES:
        f = lambda x: kl_div_top_k(x, values, indices, outside=outside, temperature=1.2)
        assert torch.autograd.gradcheck(f, (x,))
        assert torch.autograd.gradgradcheck(f, (x,))


@needs_func
def test_func():
    generator = samples.random("top-k func")
    values, indices = teacher(generator, "log_probs")
    x = torch.randn((ROWS, CLASSES), generator=generator, dtype=torch.float64)

    def row(x, values, indices):
        return kl_div_top_k(x, values, indices, reduction="sum", reverse=True)

    found = torch.func.vmap(torch.func.grad(row))(x, values, indices)
    y = leaf(x)
    row(y, values, indices).backward()
    assert_near(found, y.grad)


@needs_compile
def test_compile():
    generator = samples.random("top-k compile")
    values, indices = teacher(generator, "logits", dtype=torch.float32)
    x = leaf(torch.randn((ROWS, CLASSES), generator=generator))
    for reduction in ("batchmean", "none"):
        f = lambda x, values, indices: kl_div_top_k(x * 2, values, indices, form="logits", outside="subset",
                                                    reduction=reduction)
        expected = samples.with_gradients(f(x, values, indices), (x,))
        torch._dynamo.reset()
        with torch_samples.no_warnings():
            made = torch.compile(f, backend="aot_eager", fullgraph=True)
        for a, b in zip(samples.with_gradients(made(x, values, indices), (x,)), expected):
            assert_near(a, b)
    if hasattr(torch.library, "opcheck"):
        call = 6, 0, 0.0, 1.0, 0.0, 0, -100, 0.0, 0.0, 0.0, 0.0, 0, 1.0, 1.0, 1.0, 2, 3
        tensors = (x, values, indices) + (None,) * 5
        torch.library.opcheck(torch.ops.onepass.top_k_loss.default, tensors + call)
        tensors = (x.detach(),) + tensors[1:]
        torch.library.opcheck(torch.ops.onepass.top_k_loss_backward.default, (torch.ones(()),) + tensors + call,
                              test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("given, text", [
    ({"form": "odds"}, "form: 'odds'"),
    ({"outside": "ghost"}, "outside: 'ghost'"),
    ({"target_temperature": 2.0}, "target_temperature: 2"),
    ({"top_indices": torch.zeros((2, 3))}, "top_indices: dtype torch.float32"),
    ({"top_indices": torch.zeros((2, 4), dtype=torch.int64)}, r"top_indices: shape \[2, 4\]"),
    ({"top_values": torch.zeros((3, 3))}, r"top_values: shape \[3, 3\]"),
    ({"top_values": torch.zeros((2, 3), requires_grad=True)}, "top_values: requires_grad"),
    ({"top_values": torch.zeros((2, 4097)), "top_indices": torch.zeros((2, 4097), dtype=torch.int64)},
     "4097 classes; at most 4096"),
    ({"label_weight": 1.0}, "without labels"),
    ({"reduction": "middle"}, "reduction: 'middle'"),
    ({"temperature": 0.0}, "temperature: 0"),
])
def test_refusals(given, text):
    tensors = {"top_values": torch.full((2, 3), -2.0), "top_indices": torch.zeros((2, 3), dtype=torch.int64)}
    tensors.update(given)
    with pytest.raises(errors.Error, match="kl_div_top_k: .*" + text):
        kl_div_top_k(torch.zeros((2, 5)), **tensors)
