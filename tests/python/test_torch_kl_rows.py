"""What kl_div has beyond PyTorch's: a value a row, weights, masks, a divisor of the caller's own, finite semantics."""

import math

import numpy
import pytest

import torch_samples as samples
from torch_samples import DTYPES, FORMS, exact, ours, pair, torch

import onepass.torch

ALL_REDUCTIONS = ("none", "rows", "sum", "mean", "batchmean")


def check(function, inputs, log_target, reduction, factor, **options):
    """Value and gradients of the value's sum against the exact ones, with a factor a row."""
    inputs = [samples.leaf(x) for x in inputs]
    value, to_predictions, to_targets = exact(function, *inputs, log_target)
    scale = samples.magnitude(function, *inputs, log_target)
    shape = value.shape
    factor = numpy.asarray(factor, dtype=numpy.longdouble)[..., None]
    over = {"mean": value.size, "batchmean": shape[0]}.get(reduction, 1)

    found = ours(function, *inputs, reduction=reduction, log_target=log_target, **options)
    gradients = torch.autograd.grad(found.sum(), inputs)
    samples.assert_close(found, samples.reduce_exact(value * factor, reduction, shape), 4,
                         scale=samples.reduce_exact(scale * abs(factor), reduction, shape))
    samples.assert_close(gradients[0], to_predictions * factor / over, 4)
    # log(t/p) + 1 may be a small difference.
    samples.assert_close(gradients[1], to_targets * factor / over, 4, scale=3 * abs(factor) / over)


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (8,), (1, 8), (5, 33), (2, 3, 4, 9), (700, 2), (3, 5000)], ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_one_value_a_row(function, log_target, shape):
    """Within two ulps of what is added up."""
    generator = samples.random("rows %s %s %s" % (function, log_target, shape))
    if function == "kl_div_probs" and log_target:
        # exp and the logarithm are rounded apart. For every draw within these powers docs/numerics.md (Errors) derives:
        check_rows(generator, shape, 2, (0.77, 1.45))
        check_rows(generator, shape, 4, (0.31, 9.5))
    else:
        predictions, targets = pair(generator, shape, function, log_target)
        found = ours(function, predictions, targets, reduction="rows", log_target=log_target)
        expected, scale = exact(function, predictions, targets, log_target)[0], samples.magnitude(
            function, predictions, targets, log_target)
        samples.assert_close(found, samples.reduce_exact(expected, "rows", shape), 2,
                             scale=samples.reduce_exact(scale, "rows", shape))


def check_rows(generator, shape, ulps, powers):
    """Rows of probabilities and logarithms of targets that lie between two powers of them, least power first."""
    p, t = (samples.probabilities(generator, shape, torch.float64) for _ in range(2))
    predictions = p.float()
    log_p = predictions.double().log()  # negative
    if ulps == 2:  # what is clamped would be mostly the limits themselves
        low, high = powers
        targets = log_p * (low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64))
    else:
        targets = torch.minimum(torch.maximum(t.log(), powers[1] * log_p), powers[0] * log_p)
    targets = targets.float()
    found = ours("kl_div_probs", predictions, targets, reduction="rows", log_target=True)
    expected = exact("kl_div_probs", predictions, targets, True)[0]
    scale = samples.magnitude("kl_div_probs", predictions, targets, True)
    samples.assert_close(found, samples.reduce_exact(expected, "rows", shape), ulps,
                         scale=samples.reduce_exact(scale, "rows", shape))


def test_rows_are_a_batchs_loss_each():
    """The value of a row does not depend on the rows around it."""
    p, t = pair(samples.random("rows alone"), (40, 300), "kl_div_probs")
    rows = ours("kl_div_probs", p, t, reduction="rows")
    for i in (0, 17, 39):
        assert torch.equal(rows[i], ours("kl_div_probs", p[i:i + 1], t[i:i + 1], reduction="sum"))


# ---- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_weights(function, log_target, dtype):
    """Every type of weights, every reduction; positive, negative and 0."""
    generator = samples.random("weights %s %s %s" % (function, log_target, dtype))
    weights = (torch.rand(7, generator=generator) * 4 - 2).to(dtype)
    weights[2] = 0
    for reduction in ALL_REDUCTIONS:
        inputs = pair(generator, (7, 29), function, log_target)
        check(function, inputs, log_target, reduction, weights.double().numpy(), row_weights=weights)


def test_weights_of_any_layout_and_many_dimensions():
    generator = samples.random("weights' layouts")
    base = torch.rand(3, 8, generator=generator) + 0.5
    for weights in (base[:, :4], base[:, ::2], base[:, :1].expand(3, 4), base[:1, :4].expand(3, 4),
                    torch.rand(4, 3, generator=generator).t()):
        for reduction in ALL_REDUCTIONS:
            inputs = pair(generator, (3, 4, 11), "kl_div_probs")
            check("kl_div_probs", inputs, False, reduction, weights.double().numpy(), row_weights=weights)


def test_a_weight_of_one_row():
    """A 1-d tensor is one row, and so is a number: its weight has no dimensions."""
    generator = samples.random("weights without dimensions")
    for shape in ((), (9,)):
        for reduction in ("none", "rows", "sum"):
            inputs = pair(generator, shape, "kl_div_probs")
            found = ours("kl_div_probs", *inputs, reduction=reduction, row_weights=torch.tensor(3.0))
            assert torch.allclose(found, 3 * ours("kl_div_probs", *inputs, reduction=reduction), rtol=1e-6)


def test_a_weight_of_0_is_no_mask():
    p, t = pair(samples.random("weight 0"), (3, 5), "kl_div_probs")
    p[1, 2] = math.nan
    weights = torch.tensor([1.0, 0.0, 1.0])
    assert ours("kl_div_probs", p, t, reduction="sum", row_weights=weights).isnan()
    assert ours("kl_div_probs", p, t, reduction="sum", row_mask=weights.bool()).isfinite()


# ---- masks -----------------------------------------------------------------------------------------------------------

BAD = (math.nan, math.inf, -math.inf, 0.0, -1.0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8], ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_masked_rows_are_never_read(function, log_target, dtype):
    """Whatever is in a masked row: its values and gradients are 0, and the others as if it were not there. The divisor
    stays that of the whole batch."""
    generator = samples.random("masks %s %s %s" % (function, log_target, dtype))
    for columns in (3, 2500):  # the latter: gradients are made in the forward pass
        mask = torch.tensor([1, 0, 0, 1, 0, 1]).to(dtype)
        if dtype == torch.uint8:
            mask = mask * torch.tensor([1, 0, 0, 2, 0, 255], dtype=torch.uint8)
        for reduction in ALL_REDUCTIONS:
            clean = [samples.leaf(x) for x in pair(generator, (6, columns), function, log_target)]
            dirty = [x.detach().clone() for x in clean]
            for x in dirty:
                for row in (1, 2, 4):
                    places = torch.randint(columns, (3,), generator=generator)
                    x[row, places] = BAD[int(torch.randint(len(BAD), (), generator=generator))]
            dirty = [samples.leaf(x) for x in dirty]
            results = []
            for inputs in (clean, dirty):
                value = ours(function, *inputs, reduction=reduction, log_target=log_target, row_mask=mask)
                results.append((value.detach(),) + torch.autograd.grad(value.sum(), inputs))
            for a, b in zip(*results):
                assert torch.equal(a, b), reduction
            assert all(not gradient[~mask.bool()].any() for gradient in results[1][1:])
            check(function, clean, log_target, reduction, mask.bool().double().numpy(), row_mask=mask)


@pytest.mark.parametrize("function,log_target", FORMS)
def test_all_masked_is_0(function, log_target):
    """Not 0/0, in any reduction."""
    for shape in ((4, 5), (40, 500), (5,), ()):
        inputs = [torch.full(shape, math.nan, requires_grad=True) for _ in range(2)]
        mask = torch.zeros(shape[:-1], dtype=torch.bool)
        for reduction in ALL_REDUCTIONS:
            value = ours(function, *inputs, reduction=reduction, log_target=log_target, row_mask=mask)
            gradients = torch.autograd.grad(value.sum(), inputs)
            assert all(bool((x.detach() == 0).all()) for x in (value,) + gradients), reduction


def test_masks_of_any_layout():
    generator = samples.random("masks' layouts")
    base = torch.rand(3, 8, generator=generator) < 0.5
    for mask in (base[:, :4], base[:, ::2], base[:, :1].expand(3, 4), base[:, :4].to(torch.uint8),
                 (torch.rand(4, 3, generator=generator) < 0.5).t()):
        inputs = pair(generator, (3, 4, 11), "kl_div_probs")
        check("kl_div_probs", inputs, False, "batchmean", mask.double().numpy(), row_mask=mask)


def test_weights_and_mask_together():
    """A masked row's weight is not read either."""
    generator = samples.random("weights and mask")
    inputs = pair(generator, (4, 9), "kl_div_probs")
    weights, mask = torch.tensor([2.0, math.nan, 0.5, -1.0]), torch.tensor([True, False, True, True])
    for reduction in ALL_REDUCTIONS:
        check("kl_div_probs", inputs, False, reduction, [2.0, 0.0, 0.5, -1.0], row_weights=weights, row_mask=mask)


def test_weights_and_mask_with_broadcasting():
    """They have the broadcast shape without its last dimension."""
    generator = samples.random("weights with broadcasting")
    p, t = pair(generator, (6, 5), "kl_div_probs")
    row, weights = samples.leaf(p[:1]), torch.rand(6, generator=generator)
    mask = torch.tensor([1, 1, 0, 1, 0, 1]).bool()
    found = ours("kl_div_probs", row, t, reduction="batchmean", row_weights=weights, row_mask=mask)
    expected = ours("kl_div_probs", row.expand(6, 5), t, reduction="sum", row_weights=weights * mask)
    assert torch.allclose(found, expected, rtol=1e-6), "the batch is the input's own: 1"
    gradients = [torch.autograd.grad(x, row)[0] for x in (found, expected)]
    assert torch.allclose(*gradients, rtol=1e-5)


# ---- divisors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divisor", [3, 2.5, -4, 1e-3, numpy.float32(7), torch.tensor(5.0), torch.tensor(6)], ids=str)
def test_divisors(divisor):
    """Any number; the mask does not change it."""
    generator = samples.random("divisor %s" % divisor)
    inputs = [samples.leaf(x) for x in pair(generator, (5, 8), "kl_div", dtypes=(torch.float64,) * 2)]
    for mask in (None, torch.tensor([1, 1, 0, 0, 1]).bool()):
        results = []
        for options in ({"divisor": divisor}, {}):
            value = ours("kl_div", *inputs, reduction="sum", row_mask=mask, **options)
            results.append((value.detach(),) + torch.autograd.grad(value, inputs))
        for found, total in zip(*results):
            assert torch.allclose(found, total / float(divisor), rtol=1e-12, atol=0)


def test_valid_tokens():
    """What divisor and row_mask are for: a mean over the tokens that count."""
    generator = samples.random("valid tokens")
    x, t = pair(generator, (4, 6, 50))
    valid = torch.rand(4, 6, generator=generator) < 0.6
    found = onepass.torch.kl_div(x, t, reduction="sum", row_mask=valid, divisor=int(valid.sum()))
    expected = (t * (t.log() - x)).sum(-1)[valid].mean()
    assert torch.isclose(found, expected, rtol=1e-5)


# ---- finite semantics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function,log_target", FORMS)
def test_finite_semantics_are_finite(function, log_target):
    """Zeros in both, as underflow makes them: value and gradients are numbers, and the limits of positive ones."""
    generator = samples.random("finite %s %s" % (function, log_target))
    p, t = (samples.probabilities(generator, (6, 40), torch.float64) for _ in range(2))
    zero_t = torch.rand(p.shape, generator=generator) < 0.3
    zero_p = zero_t & (torch.rand(p.shape, generator=generator) < 0.5)
    assert zero_p.any()

    def with_zeros_as(tiny, semantics):
        predictions, targets = p.masked_fill(zero_p, tiny), t.masked_fill(zero_t, tiny)
        inputs = [samples.leaf(predictions.log() if function == "kl_div" else predictions),
                  samples.leaf(targets.log() if log_target else targets)]
        value = ours(function, *inputs, reduction="sum", log_target=log_target, semantics=semantics)
        return (value.detach(),) + torch.autograd.grad(value, inputs)

    zeros, limits = with_zeros_as(0.0, "finite"), with_zeros_as(1e-300, "strict")
    assert all(x.isfinite().all() for x in zeros)
    assert torch.allclose(zeros[0], limits[0], rtol=1e-12)
    # To the predictions the limit is the derivative's own wherever p > 0; 0/0 is 0 by definition.
    assert torch.allclose(zeros[1].masked_fill(zero_p, 0), limits[1].masked_fill(zero_p, 0), rtol=1e-12)
    assert not zeros[1][zero_p].any() and not zeros[2][zero_t].any()
    assert with_zeros_as(0.0, "strict")[0].isnan()
