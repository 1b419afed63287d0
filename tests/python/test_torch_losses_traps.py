"""What others' losses from logits went wrong at, one test each."""

import math

import pytest

import losses_samples as samples
from losses_samples import DIVERGENCES, MIXTURES, assert_near, leaf, ours
from torch_samples import DTYPES, VERSION, F, torch

import onepass.torch
from onepass.torch.losses import cross_entropy

INF = float("inf")


def test_small_losses_keep_their_digits():
    """lse - x has nothing right of an NLL of 2e-8 in float32."""
    for gap in (4.0, 9.0, 14.0, 18.0):
        x = torch.zeros(1, 2)
        x[0, 0] = gap
        exact = math.log1p(math.exp(-gap))
        label = torch.tensor([0])
        assert abs(float(cross_entropy(x, label)) - exact) <= 4e-7 * exact
        assert abs(float(onepass.torch.token_log_probs(x, label)) + exact) <= 4e-7 * exact
        x.requires_grad_()
        gradient, = torch.autograd.grad(cross_entropy(x, label), x)
        slope = 1 / (1 + math.exp(gap))
        assert abs(float(gradient[0, 0]) + slope) <= 4e-7 * slope


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_distributions(dtype):
    """0, exactly so without a mixture, the gradient too; and KL is never negative next to it."""
    generator = samples.random("equal %s" % dtype)
    x = leaf(samples.logits(generator, (8, 100), dtype))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    for name in DIVERGENCES:
        value, gradient = samples.with_gradients(ours(name, x, x.detach(), **MIXTURES.get(name, {})), (x,))
        assert float(value) == 0 if name not in MIXTURES else abs(float(value)) <= torch.finfo(wide).eps, name
        assert_near(gradient.to(wide), torch.zeros_like(gradient), wide, steps=4)
        near = (x.detach().double() * (1 + 1e-4)).to(dtype)
        rows = ours(name, x, near, reduction="none", **MIXTURES.get(name, {}))
        assert bool((rows >= (0 if name not in MIXTURES else -torch.finfo(wide).eps)).all()), name


def test_ends_of_js():
    """The formula's limit at 0 and 1 is 0, not one of the KL divergences: they are refused, and nearby it is small."""
    x, y = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[2.0, 0.0, 1.0]])
    for beta in (0, 1, 0.0, 1.0):
        with pytest.raises(ValueError, match="beta: %g; it must be above 0 and below 1" % beta):
            onepass.torch.js_logits(x, y, beta)
    for beta in (1e-6, 1 - 1e-6):
        assert 0 < float(onepass.torch.js_logits(x, y, beta)) < 1e-5


def test_temperature_is_not_squared():
    generator = samples.random("temperature")
    x, y = samples.logits(generator, (3, 9)), samples.logits(generator, (3, 9))
    plain = onepass.torch.kl_div_logits(x / 3, y / 3)
    assert_near(onepass.torch.kl_div_logits(x, y, temperature=3.0), plain)
    assert_near(onepass.torch.kl_div_logits(x, y, temperature=3.0, divergence_weight=9.0), 9 * plain)


def test_divisors():
    """mean: all elements; batchmean: the first dimension, whatever others there are; valid: tokens."""
    generator = samples.random("divisors")
    x, y = samples.logits(generator, (2, 3, 5)), samples.logits(generator, (2, 3, 5))
    labels = torch.tensor([[0, -100, -100], [1, 2, -100]])
    kl = onepass.torch.kl_div_logits
    total = kl(x, y, reduction="sum")
    for reduction, over in (("mean", 30), ("batchmean", 2), ("valid", 6)):
        assert_near(kl(x, y, reduction=reduction), total / over)
    part = kl(x, y, reduction="sum", labels=labels)
    for reduction, over in (("mean", 30), ("batchmean", 2), ("valid", 3)):
        assert_near(kl(x, y, reduction=reduction, labels=labels), part / over)
    assert_near(kl(x, y, reduction="mean", columns=4), kl(x[..., :4], y[..., :4], reduction="sum") / 24)


def test_all_rows_ignored():
    """NaN as in PyTorch, or in finite semantics 0; the graph is kept and the gradient is 0."""
    x, y = leaf(torch.randn(3, 5)), leaf(torch.randn(3, 5))
    labels = torch.full((3,), -100)
    for semantics in ("strict", "finite"):
        for value in (cross_entropy(x, labels, semantics=semantics),
                      onepass.torch.kl_div_logits(x, y, labels=labels, reduction="valid", semantics=semantics)):
            assert math.isnan(value.item()) if semantics == "strict" else value.item() == 0
            gradient, = torch.autograd.grad(value, x)
            assert torch.equal(gradient, torch.zeros(3, 5))
    assert math.isnan(F.cross_entropy(x.detach(), labels).item()) or VERSION < (1, 11)


def test_half_types_lose_no_digits():
    """Logits are rounded to bfloat16, the loss and what belongs to rows are not."""
    generator = samples.random("half")
    x, y = (samples.logits(generator, (4, 200), torch.bfloat16) for _ in range(2))
    for name in DIVERGENCES:
        found = ours(name, x, y, **MIXTURES.get(name, {}))
        exact = ours(name, x.double(), y.double(), **MIXTURES.get(name, {}))
        assert found.dtype is torch.float32
        assert_near(found, exact, steps=8)


def test_masked_logits():
    """-inf anywhere: whole leading blocks, one side, both sides; no NaN but for a row without any mass."""
    x, y = (torch.randn(4, 9000, dtype=torch.float64) for _ in range(2))
    for tensor in (x, y):
        tensor[0, :8500] = -INF
    x[1, 17] = y[2, 17] = -INF
    x[3] = -INF
    labels = torch.tensor([8999, 0, 0, 0])
    for name in DIVERGENCES:
        a, b = leaf(x), leaf(y)
        rows = ours(name, a, b, reduction="none", **MIXTURES.get(name, {}))
        gradients = torch.autograd.grad(rows, (a, b), torch.ones_like(rows))
        cut = ours(name, x[:1, 8500:], y[:1, 8500:], reduction="none", **MIXTURES.get(name, {}))
        assert_near(rows[:1], cut, steps=512)
        assert all(bool(torch.isfinite(gradient[0]).all()) and not bool(gradient[0, :8500].any())
                   for gradient in gradients)
        one_sided = name in ("kl_div_logits", "reverse_kl_logits")
        assert torch.isinf(rows[1:3]).tolist() == [one_sided and name == "kl_div_logits",
                                                   one_sided and name == "reverse_kl_logits"]
        assert bool(torch.isnan(rows[3]))
        finite = ours(name, x, y, reduction="none", semantics="finite", **MIXTURES.get(name, {}))
        assert float(finite[3]) == 0 and torch.equal(finite[:3], rows[:3].detach())
    a = leaf(x)
    rows = cross_entropy(a, labels, reduction="none")
    assert bool(torch.isfinite(rows[:3]).all()) and bool(torch.isnan(rows[3]))
    assert float(cross_entropy(x[1:2], torch.tensor([17]))) == INF
    gradient, = torch.autograd.grad(rows[:3].sum(), a)
    assert bool(torch.isfinite(gradient[:3]).all())


def test_softcap_leaves_masks_alone():
    """A mask is applied to capped logits: -inf stays, and gains no mass; the derivative is that of tanh."""
    x = torch.tensor([[1.0, -INF, 40.0, -3.0]], dtype=torch.float64)
    a, label = leaf(x), torch.tensor([0])
    value, gradient = samples.with_gradients(cross_entropy(a, label, softcap=5.0), (a,))
    short = leaf(x[:, [0, 2, 3]])
    expected = samples.with_gradients(F.cross_entropy(5 * torch.tanh(short / 5), label), (short,))
    assert_near(value, expected[0])
    assert_near(gradient[:, [0, 2, 3]], expected[1])
    assert float(gradient[0, 1]) == 0


def test_padded_vocabulary():
    """Columns beyond the vocabulary may hold anything, NaN too; their gradient is 0."""
    generator = samples.random("padding")
    x, y = samples.logits(generator, (3, 12)), samples.logits(generator, (3, 12))
    labels = samples.labels(generator, (3,), 10)
    x[:, 10:] = y[:, 10:] = float("nan")
    a, b = leaf(x), leaf(y)
    value = onepass.torch.kl_div_logits(a, b, labels=labels, label_weight=1.0, label_smoothing=0.1, columns=10)
    gradients = torch.autograd.grad(value, (a, b))
    short = leaf(x[:, :10]), leaf(y[:, :10])
    exact = onepass.torch.kl_div_logits(*short, labels=labels, label_weight=1.0, label_smoothing=0.1)
    assert_near(value, exact)
    for found, expected in zip(gradients, torch.autograd.grad(exact, short)):
        assert_near(found[:, :10], expected)
        assert torch.equal(found[:, 10:], torch.zeros(3, 2).double())


def test_label_smoothing_is_over_the_vocabulary():
    generator = samples.random("smoothing")
    x, labels = samples.logits(generator, (4, 12)), samples.labels(generator, (4,), 10, ignored=False)
    found = cross_entropy(x, labels, label_smoothing=0.2, columns=10)
    assert_near(found, samples.torch_cross_entropy(x[:, :10], labels, label_smoothing=0.2))


def test_js_does_not_underflow():
    """Where both sides are below what float32 holds, and where one is: no NaN, in the gradients neither."""
    x, y = torch.zeros(1, 4), torch.zeros(1, 4)
    x[0, :3] = torch.tensor([-150.0, -200.0, -90.0])
    y[0, :3] = torch.tensor([-150.0, -90.0, -200.0])
    for name in ("js_logits", "skew_kl_logits", "skew_reverse_kl_logits", "kl_div_logits", "reverse_kl_logits"):
        a, b = leaf(x), leaf(y)
        value = ours(name, a, b, **MIXTURES.get(name, {}))
        gradients = torch.autograd.grad(value, (a, b))
        assert bool(torch.isfinite(value)) and float(value) >= 0
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def test_ties_of_total_variation():
    """No gradient where the two are equal."""
    x = leaf(torch.randn(3, 7, dtype=torch.float64))
    gradient, = torch.autograd.grad(onepass.torch.tv_logits(x, x.detach()), x)
    assert torch.equal(gradient, torch.zeros_like(x))


def test_a_row_depends_on_the_row_alone():
    """Not on its place, the batch, or whether there is a gradient."""
    generator = samples.random("rows alone")
    x, y = samples.logits(generator, (9, 60), torch.float32), samples.logits(generator, (9, 60), torch.float32)
    for name in DIVERGENCES:
        mixture = MIXTURES.get(name, {})
        rows = ours(name, x, y, reduction="none", **mixture)
        assert torch.equal(ours(name, x.flip(0), y.flip(0), reduction="none", **mixture), rows.flip(0))
        for i in range(3):
            assert torch.equal(ours(name, x[i], y[i], reduction="none", **mixture), rows[i])
        assert torch.equal(ours(name, leaf(x), y, reduction="none", **mixture).detach(), rows)
