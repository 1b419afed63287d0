"""Special values: every line of the tables of docs/numerics.md, and all pairs of them beside PyTorch itself."""

import math

import pytest

import torch_samples as samples
from torch_samples import DTYPES, FORMS, ours, theirs, torch

NAN, INF = math.nan, math.inf

# A line: target, prediction, then value, derivative to the prediction, derivative to the target. Two of them in
# brackets: strict, finite. "-0.0" as an input is the negative zero.
LOG2 = math.log(2)
N0 = (NAN, 0.0)

PROBS_PROBS = [
    # finite, > 0 with everything
    (0.5, 0.25, 0.5 * LOG2, -2.0, LOG2 + 1),
    (0.25, 0.5, -0.25 * LOG2, -0.5, 1 - LOG2),
    (0.5, 0.0, INF, -INF, INF),
    (0.5, -0.0, INF, INF, INF),
    (0.5, INF, -INF, 0.0, -INF),
    # 0
    (0.0, 0.5, 0.0, 0.0, N0),
    (-0.0, 0.5, 0.0, 0.0, N0),
    (0.0, 0.0, N0, N0, N0),
    (0.0, -0.0, N0, N0, N0),
    (0.0, INF, NAN, 0.0, NAN),
    # infinite
    (INF, 0.0, INF, -INF, NAN),
    (INF, 0.5, INF, -INF, NAN),
    (INF, 1.0, NAN, -INF, NAN),
    (INF, 2.0, NAN, -INF, NAN),
    (INF, INF, NAN, NAN, NAN),
    # negative, NaN
    (0.5, -0.25, NAN, 2.0, NAN),
    (0.0, -0.25, NAN, 0.0, NAN),
    (0.5, -INF, NAN, 0.0, NAN),
    (-0.5, 0.25, NAN, 2.0, NAN),
    (-0.5, 0.0, NAN, INF, NAN),
    (-INF, 0.5, NAN, INF, NAN),
    (NAN, 0.5, NAN, NAN, NAN),
    (0.5, NAN, NAN, NAN, NAN),
    (NAN, NAN, NAN, NAN, NAN),
]

LOG_PROBS_PROBS = [
    (0.5, -2.0, 0.5 * (2 - LOG2), -0.5, 3 - LOG2),
    (0.5, 2.0, 0.5 * (-2 - LOG2), -0.5, -1 - LOG2),
    (0.5, -INF, INF, -0.5, INF),
    (0.5, INF, -INF, -0.5, -INF),
    (0.5, NAN, NAN, -0.5, NAN),
    (0.0, -2.0, 0.0, 0.0, N0),
    (-0.0, 3.0, 0.0, 0.0, N0),
    (0.0, -INF, N0, 0.0, N0),
    (0.0, INF, NAN, 0.0, NAN),
    (0.0, NAN, NAN, 0.0, NAN),
    (INF, -2.0, INF, -INF, NAN),
    (INF, -INF, INF, -INF, NAN),
    (INF, 0.0, NAN, -INF, NAN),
    (INF, 2.0, NAN, -INF, NAN),
    (INF, INF, NAN, -INF, NAN),
    (INF, NAN, NAN, -INF, NAN),
    (-0.5, -2.0, NAN, 0.5, NAN),
    (-0.5, -INF, NAN, 0.5, NAN),
    (-INF, -2.0, NAN, INF, NAN),
    (NAN, -2.0, NAN, NAN, NAN),
]

E1 = math.exp(-1)
TINY, HUGE = -2000.0, 2000.0  # exp of them is 0 and infinite in every type

PROBS_LOG_PROBS = [
    (-1.0, 0.5, E1 * (LOG2 - 1), -2 * E1, E1 * LOG2),
    (-1.0, 0.0, INF, -INF, INF),
    (-1.0, -0.0, INF, INF, INF),
    (-1.0, INF, -INF, 0.0, -INF),
    (TINY, 0.5, 0.0, 0.0, 0.0),
    (-INF, 0.5, N0, 0.0, N0),
    (TINY, 0.0, N0, N0, N0),
    (-INF, 0.0, N0, N0, N0),
    (TINY, INF, NAN, 0.0, NAN),
    (-INF, INF, NAN, 0.0, NAN),
    (HUGE, 0.5, INF, -INF, INF),
    (HUGE, 0.0, INF, -INF, INF),
    (INF, 0.5, INF, -INF, INF),
    (HUGE, INF, -INF, NAN, NAN),
    (INF, INF, NAN, NAN, NAN),
    (-1.0, -0.5, NAN, 2 * E1, NAN),
    (-1.0, -INF, NAN, 0.0, NAN),
    (-INF, -0.5, NAN, 0.0, NAN),
    (NAN, 0.5, NAN, NAN, NAN),
    (-1.0, NAN, NAN, NAN, NAN),
]

LOG_PROBS_LOG_PROBS = [
    (-1.0, -2.0, E1, -E1, 2 * E1),
    (-1.0, 2.0, -3 * E1, -E1, -2 * E1),
    (-1.0, -INF, INF, -E1, INF),
    (-1.0, INF, -INF, -E1, -INF),
    (TINY, -2.0, 0.0, 0.0, 0.0),
    (TINY, -INF, N0, 0.0, N0),
    (-INF, -2.0, N0, 0.0, N0),
    (-INF, -INF, N0, 0.0, N0),
    (TINY, INF, NAN, 0.0, NAN),
    (-INF, INF, NAN, 0.0, NAN),
    (TINY, NAN, NAN, 0.0, NAN),
    (HUGE, -2.0, INF, -INF, INF),
    (HUGE, HUGE, NAN, -INF, NAN),
    (HUGE, 2 * HUGE, -INF, -INF, NAN),
    (INF, INF, NAN, -INF, NAN),
    (INF, -2.0, INF, -INF, INF),
    (-1.0, NAN, NAN, -E1, NAN),
    (NAN, -2.0, NAN, NAN, NAN),
]

TABLES = {
    ("kl_div_probs", False): PROBS_PROBS,
    ("kl_div", False): LOG_PROBS_PROBS,
    ("kl_div_probs", True): PROBS_LOG_PROBS,
    ("kl_div", True): LOG_PROBS_LOG_PROBS,
}


def expected_of(line, finite):
    return [entry[finite] if isinstance(entry, tuple) else entry for entry in line[2:]]


def agrees(found, expected, dtype):
    """A number with its number, infinity with its infinity, NaN with NaN."""
    if math.isnan(expected) or math.isinf(expected):
        return math.isnan(found) if math.isnan(expected) else found == expected
    return abs(found - expected) <= 4 * torch.finfo(dtype).eps * max(abs(expected), 1e-3)


@pytest.mark.parametrize("semantics", ["strict", "finite"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_tables(function, log_target, dtype, semantics):
    """Value and both gradients of each line, alone and somewhere in a row of ordinary numbers."""
    generator = samples.random("tables %s %s %s %s" % (function, log_target, dtype, semantics))
    for line in TABLES[function, log_target]:
        expected = expected_of(line, semantics == "finite")
        for columns in (None, 1, 37):
            if columns is None:
                inputs, place = [torch.tensor(v, dtype=dtype) for v in (line[1], line[0])], ()
            else:
                inputs = list(samples.pair(generator, (2, columns), function, log_target, (dtype, dtype)))
                place = (1, int(torch.randint(columns, (), generator=generator)))
                inputs[0][place], inputs[1][place] = line[1], line[0]
            inputs = [x.requires_grad_() for x in inputs]
            value = ours(function, *inputs, reduction="none", log_target=log_target, semantics=semantics)
            found = [value.detach()[place]] + [g[place] for g in torch.autograd.grad(value.sum(), inputs)]
            for what, f, e in zip(("value", "d/prediction", "d/target"), found, expected):
                assert agrees(float(f), e, dtype), "%s of t = %s, p = %s: %s, not %s (%s columns)" % (
                    what, line[0], line[1], float(f), e, columns)
            # One special value decides the sum, unless it gives a number; its gradients are those of the element alone.
            total = ours(function, *inputs, reduction="sum", log_target=log_target, semantics=semantics)
            if not math.isfinite(expected[0]):
                assert agrees(float(total.detach()), expected[0], dtype), line
            else:
                assert math.isfinite(float(total.detach())), line
            again = [g[place] for g in torch.autograd.grad(total, inputs)]
            assert all(samples.same(a, b) for a, b in zip(again, found[1:])), line


VALUES = [0.0, -0.0, INF, -INF, NAN, -1.0, -0.5, -2.0, -80.0, -800.0, 0.25, 0.5, 1.0, 1.5, 3.0, 80.0, 800.0, 1e-30,
          1e-42, 1e-7]


@pytest.mark.skipif(not samples.STRICT_IN_TORCH,
                    reason="PyTorch %d.%d has other special values itself" % samples.VERSION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_every_pair_beside_pytorch(function, log_target, dtype):
    """All pairs of special and ordinary numbers, value and both gradients: what PyTorch gives."""
    predictions, targets = (x.flatten() for x in torch.meshgrid(torch.tensor(VALUES, dtype=dtype),
                                                                torch.tensor(VALUES, dtype=dtype), indexing="ij"))
    results = []
    for f in (ours, theirs):
        inputs = samples.leaf(predictions), samples.leaf(targets)
        value = f(function, *inputs, reduction="none", log_target=log_target)
        results.append((value.detach(),) + torch.autograd.grad(value, inputs, torch.ones_like(value)))
    for what, found, expected in zip(("value", "d/prediction", "d/target"), *results):
        close = torch.isclose(found, expected, rtol=100 * torch.finfo(dtype).eps, atol=1e-6, equal_nan=True)
        wrong = [(float(targets[i]), float(predictions[i]), float(found[i]), float(expected[i]))
                 for i in (~close).nonzero().flatten()]
        assert not wrong, "%s of (t, p): found, PyTorch's: %s" % (what, wrong)


@pytest.mark.parametrize("function,log_target", FORMS)
def test_subnormals_where_pytorch_flushes_them(function, log_target):
    """The same bits if the thread flushes subnormal numbers (Inductor's own code has it do so on some releases), and it
    still does after the call."""
    predictions, targets = (x.flatten() for x in torch.meshgrid(torch.tensor(VALUES), torch.tensor(VALUES),
                                                                indexing="ij"))
    results = []
    for flushes in (False, True):
        assert torch.set_flush_denormal(flushes)
        inputs = samples.leaf(predictions), samples.leaf(targets)
        value = ours(function, *inputs, reduction="none", log_target=log_target)
        made = (value.detach(),) + torch.autograd.grad(value, inputs, torch.ones_like(value))
        assert bool(torch.tensor([1e-42]) * 0.5 == 0) == flushes
        results.append([x.view(torch.int32) for x in made])  # as integers: flushing makes subnormal numbers equal
    assert all(torch.equal(a, b) for a, b in zip(*results))
    assert not torch.equal(results[0][0][targets == 0.25], results[0][0][targets == 0.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_largest_number_with_itself(dtype):
    """One of the two places where PyTorch's formula overflows (inf - inf) and the true value is given instead."""
    huge = torch.tensor([torch.finfo(dtype).max] * 2, dtype=dtype, requires_grad=True)
    value = ours("kl_div_probs", huge, huge.detach(), reduction="sum")
    assert float(value.detach()) == 0
    assert torch.autograd.grad(value, huge)[0].tolist() == [-1, -1]


@pytest.mark.parametrize("function,log_target", FORMS)
def test_finite_and_strict_are_the_same_where_nothing_is_special(function, log_target):
    generator = samples.random("finite and strict")
    inputs = [samples.leaf(x) for x in samples.pair(generator, (30, 70), function, log_target)]
    results = []
    for semantics in ("strict", "finite"):
        value = ours(function, *inputs, reduction="sum", log_target=log_target, semantics=semantics)
        results.append((value.detach(),) + torch.autograd.grad(value, inputs))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_one_hot_targets():
    """The usual case of zeros: labels. The gradient to the predictions is finite in both semantics."""
    generator = samples.random("one hot")
    x = samples.leaf(samples.probabilities(generator, (50, 10)).log())
    t = torch.nn.functional.one_hot(torch.randint(10, (50,), generator=generator), 10).float()
    for semantics in ("strict", "finite"):
        loss = ours("kl_div", x, t, reduction="batchmean", semantics=semantics)
        gradient, = torch.autograd.grad(loss, x)
        expected = -(x.detach() * t).sum() / 50
        assert torch.isclose(loss.detach(), expected, rtol=1e-6) and torch.allclose(gradient, -t / 50)
