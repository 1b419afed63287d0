"""Laws of the divergence, for inputs that Hypothesis chooses: shapes, types, scales, layouts."""

import math

import pytest

import torch_samples as samples
from torch_samples import DTYPES, FORMS, ours, torch

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import given, settings, strategies  # noqa: E402

few = settings(max_examples=60, database=None)  # the rest is in conftest.py

EPSILON = {dtype: torch.finfo(dtype).eps for dtype in DTYPES}
shapes = strategies.lists(strategies.integers(1, 40), min_size=1, max_size=3).map(tuple)
seeds = strategies.integers(0, 2**32)
forms = strategies.sampled_from(FORMS)
types = strategies.sampled_from(DTYPES)


@strategies.composite
def distributions(draw, dtypes=types):
    """(predictions, targets) as probabilities of one type, from flat ones to ones near 0 and 1."""
    generator = torch.Generator().manual_seed(draw(seeds))
    shape, dtype = draw(shapes), draw(dtypes)
    scales = [draw(strategies.sampled_from([0.01, 1.0, 5.0])) for _ in range(2)]
    return [samples.probabilities(generator, shape, dtype, scale) for scale in scales]


def formed(inputs, form):
    """Probabilities in the form a function takes them; logarithms are made in float64."""
    function, log_target = form
    p, t = inputs
    return (p.double().log().to(p.dtype) if function == "kl_div" else p,
            t.double().log().to(t.dtype) if log_target else t)


def size_of(inputs, form, over=1):
    """The sum of the terms' magnitudes: what rounding errors are relative to."""
    return float(samples.magnitude(form[0], *inputs, form[1]).sum()) / over


@few
@given(distributions(dtypes=strategies.just(torch.float64)))
def test_not_negative(inputs):
    """Gibbs: KL(t, p) >= 0 for distributions. Theirs add up to 1 but for rounding, so 0 is within rounding, too."""
    p, t = inputs
    rows = ours("kl_div_probs", p, t, reduction="rows")
    slack = (t.sum(-1) - p.sum(-1)).abs() + 4 * EPSILON[torch.float64] * t.shape[-1]
    assert bool((rows >= -slack).all())


@few
@given(distributions(), forms)
def test_zero_if_equal(inputs, form):
    """KL(p, p) is exactly 0 where both are passed in the same way."""
    function = form[0]
    p, _ = formed([inputs[0], inputs[0]], (function, False))
    for reduction in ("none", "rows", "sum", "mean", "batchmean"):
        assert not ours(function, p, p, reduction=reduction, log_target=function == "kl_div").any()


@few
@given(distributions(), forms, seeds)
def test_the_order_of_rows_and_columns_does_not_matter(inputs, form, seed):
    function, log_target = form
    inputs = formed(inputs, form)
    shape = inputs[0].shape
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randperm(shape[-1], generator=generator)
    rows = torch.randperm(shape[0], generator=generator)
    shuffled = [x[..., columns][rows] if len(shape) > 1 else x[columns] for x in inputs]
    a, b = (float(ours(function, *x, reduction="sum", log_target=log_target)) for x in (inputs, shuffled))
    computed = EPSILON[inputs[0].dtype] if inputs[0].dtype == torch.float64 else EPSILON[torch.float32]
    assert math.isfinite(a)
    assert abs(a - b) <= EPSILON[inputs[0].dtype] * abs(a) + 4 * computed * size_of(inputs, form)


@few
@given(distributions(), forms, strategies.sampled_from(["none", "rows", "sum", "mean", "batchmean"]))
def test_weights_of_1_and_a_full_mask_change_nothing(inputs, form, reduction):
    function, log_target = form
    inputs = [samples.leaf(x) for x in formed(inputs, form)]
    lead = inputs[0].shape[:-1]
    results = []
    for options in ({}, {"row_weights": torch.ones(lead)}, {"row_mask": torch.ones(lead, dtype=torch.bool)}):
        value = ours(function, *inputs, reduction=reduction, log_target=log_target, **options)
        results.append((value.detach(),) + torch.autograd.grad(value.sum(), inputs))
    computed = EPSILON[inputs[0].dtype] if inputs[0].dtype == torch.float64 else EPSILON[torch.float32]
    over = {"mean": inputs[0].numel(), "batchmean": inputs[0].shape[0]}.get(reduction, 1)
    room = 4 * computed * size_of(inputs, form, over)
    for other in results[1:]:
        difference = (other[0].double() - results[0][0].double()).abs()
        assert bool((difference <= EPSILON[inputs[0].dtype] * results[0][0].double().abs() + room).all())
        for a, b in zip(results[0][1:], other[1:]):
            assert torch.allclose(a.double(), b.double(), rtol=4 * EPSILON[inputs[0].dtype], atol=4 * computed / over)


@few
@given(distributions(dtypes=strategies.sampled_from([torch.float32, torch.float64])), forms)
def test_reductions_agree(inputs, form):
    """sum = the rows' sum = the elements' sum; mean and batchmean are the sum divided."""
    function, log_target = form
    inputs = formed(inputs, form)
    room = 8 * EPSILON[inputs[0].dtype] * size_of(inputs, form)
    values = {reduction: ours(function, *inputs, reduction=reduction, log_target=log_target).double()
              for reduction in ("none", "rows", "sum", "mean", "batchmean")}
    total = float(values["sum"])
    assert math.isfinite(total)
    assert abs(float(values["none"].sum()) - total) <= room
    assert abs(float(values["rows"].sum()) - total) <= room
    assert abs(float(values["mean"]) * inputs[0].numel() - total) <= room
    assert abs(float(values["batchmean"]) * inputs[0].shape[0] - total) <= room


@few
@given(distributions(), forms, strategies.floats(-1e3, 1e3).filter(lambda u: abs(u) > 1e-3))
def test_gradients_are_linear_in_the_upstream_gradient(inputs, form, upstream):
    """The gradient of batchmean is that of the sum over N; twice the upstream gradient gives exactly twice the
    gradient, any other the same multiple within rounding."""
    function, log_target = form
    inputs = [samples.leaf(x) for x in formed(inputs, form)]
    rows = inputs[0].shape[0]

    def gradients(reduction, factor):
        value = ours(function, *inputs, reduction=reduction, log_target=log_target)
        return torch.autograd.grad(value, inputs, torch.tensor(factor, dtype=value.dtype))

    factor = float(torch.tensor(upstream, dtype=inputs[0].dtype))
    for a, b, c, d, x in zip(gradients("sum", 1.0), gradients("batchmean", 1.0), gradients("sum", 2.0),
                             gradients("sum", factor), inputs):
        rtol, tiny = 3 * EPSILON[x.dtype], 4 * torch.finfo(x.dtype).tiny
        assert a.isfinite().all()
        assert torch.allclose(b.double(), a.double() / rows, rtol=rtol, atol=tiny)
        normal = (a.abs() > tiny) & (c.abs() < torch.finfo(x.dtype).max)
        assert torch.equal(c[normal], 2 * a[normal])
        fits = d.isfinite()
        assert torch.allclose(d.double()[fits], a.double()[fits] * factor, rtol=rtol, atol=tiny * max(1, abs(factor)))


@few
@given(distributions(), seeds)
def test_any_layout_gives_the_same_value(inputs, seed):
    p, t = (x.reshape(-1, x.shape[-1]) for x in inputs)
    generator = torch.Generator().manual_seed(seed)
    a, b = ([list(samples.layouts(x).values())[int(torch.randint(4, (), generator=generator))] for x in (p, t)]
            for _ in range(2))
    found, other = (float(ours("kl_div_probs", *x, reduction="sum")) for x in (a, b))
    computed = EPSILON[p.dtype] if p.dtype == torch.float64 else EPSILON[torch.float32]
    assert abs(found - other) <= EPSILON[p.dtype] * abs(found) + 4 * computed * size_of((p, t), ("kl_div_probs", False))
