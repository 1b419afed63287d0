"""onepass.torch.kl_div beside torch.nn.functional.kl_div, and kl_div_probs beside kl_div of the logarithm: every
reduction, type, shape and layout. Values are judged against exact ones; PyTorch's own error is the limit."""

import inspect
import warnings

import numpy
import pytest

import torch_samples as samples
from torch_samples import DTYPES, FORMS, FUNCTIONS, REDUCTIONS, F, exact, ours, pair, theirs, torch

import onepass.torch

ROOM = 1e-3  # of half an ulp: what a result may be off besides its own rounding, where it is computed in a wider type


def check_value(found, function, predictions, targets, reduction, log_target):
    """The value is right to its last bit but for what the arithmetic in float32 (or float64) may add. Returns the exact
    one."""
    shape = predictions.shape
    expected = samples.reduce_exact(exact(function, predictions, targets, log_target)[0], reduction, shape)
    scale = samples.reduce_exact(samples.magnitude(function, predictions, targets, log_target), reduction, shape)
    computed = torch.float64 if torch.float64 in (predictions.dtype, targets.dtype) else torch.float32
    error = numpy.abs(samples.as_exact(found) - expected)
    allowed = samples.ulp(found.dtype, expected) * (0.5 + ROOM) + 4 * samples.ulp(computed, scale)
    assert samples.largest(error / allowed) <= 1
    return expected


def largest_error(found, expected):
    """In ulps of its type at the largest expected value."""
    error = numpy.abs(samples.as_exact(found) - expected)
    return samples.largest(error) / samples.largest(samples.ulp(found.dtype, expected))


def pytorch(function, predictions, targets, **options):
    """The value of this very PyTorch, None where it has no such kernel: an old one has few for half and mixed types."""
    try:
        with samples.no_warnings():
            return F.kl_div(predictions if function == "kl_div" else predictions.log(), targets, **options)
    except RuntimeError:
        assert samples.VERSION < (2, 2)
        return None


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [(a, b) for a in DTYPES for b in DTYPES], ids=lambda t: "%s-%s" % tuple(
    str(d).split(".")[1] for d in t))
@pytest.mark.parametrize("function,log_target", FORMS)
def test_types(function, log_target, types):
    """Every pair of types: the value has the promoted one, and no more error than PyTorch's but for one ulp, over
    several draws (a single value may be right by luck)."""
    generator = samples.random("types %s %s %s" % (function, log_target, types))
    errors = {reduction: [] for reduction in REDUCTIONS + ("rows",)}
    for _ in range(4):
        predictions, targets = pair(generator, (7, 33), function, log_target, types)
        for reduction in errors:
            found = ours(function, predictions, targets, reduction=reduction, log_target=log_target)
            assert found.dtype == torch.promote_types(*types)
            expected = check_value(found, function, predictions, targets, reduction, log_target)
            rival = None
            if reduction != "rows":
                rival = pytorch(function, predictions, targets, reduction=reduction, log_target=log_target)
            if rival is not None:
                assert found.shape == rival.shape and found.dtype == rival.dtype
                errors[reduction].append((largest_error(found, expected), largest_error(rival, expected)))
    for reduction, pairs in errors.items():
        if pairs:
            found, rival = numpy.mean(pairs, axis=0)
            print("%s: %.2f ulp, PyTorch %.2f" % (reduction, found, rival))
            assert found <= rival + 1


@pytest.mark.parametrize("shape", [(), (1,), (9,), (1, 1), (6, 1), (1, 40), (4, 37), (2, 3, 4, 5),
                                   (3, 1, 2, 1, 2, 1, 3, 1, 2)], ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_shapes(function, log_target, shape):
    generator = samples.random("shapes %s %s %s" % (function, log_target, shape))
    predictions, targets = pair(generator, shape, function, log_target)
    for reduction in REDUCTIONS + ("rows",):
        found = ours(function, predictions, targets, reduction=reduction, log_target=log_target)
        expected_shape = {"none": shape, "rows": shape[:-1]}.get(reduction, ())
        assert found.shape == expected_shape and found.dtype == torch.float32
        check_value(found, function, predictions, targets, reduction, log_target)
        if reduction != "rows":
            assert found.shape == theirs(function, predictions, targets, reduction=reduction,
                                         log_target=log_target).shape


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3), (0, 0)], ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_empty(function, log_target, shape):
    """The sum of nothing is 0, its mean NaN, as in PyTorch; gradients are empty."""
    for dtype in (torch.float32, torch.float64):
        predictions, targets = (torch.empty(shape, dtype=dtype, requires_grad=True) for _ in range(2))
        for reduction in REDUCTIONS:
            found = ours(function, predictions, targets, reduction=reduction, log_target=log_target)
            expected = theirs(function, predictions, targets, reduction=reduction, log_target=log_target)
            assert samples.same(found.detach(), expected.detach()), reduction
            gradients = torch.autograd.grad(found.sum(), (predictions, targets))
            assert [g.shape for g in gradients] == [torch.Size(shape)] * 2
        rows = ours(function, predictions, targets, reduction="rows", log_target=log_target).detach()
        assert rows.shape == shape[:-1] and not rows.any()


@pytest.mark.parametrize("function,log_target", FORMS)
def test_small_divergences(function, log_target):
    """Distributions that are almost the same, where most digits cancel: over several draws the error is not larger than
    PyTorch's, and from probabilities it is at the last digit."""
    generator = samples.random("small divergences %s %s" % (function, log_target))
    errors = numpy.zeros(2)
    for _ in range(100):  # half of PyTorch's error at the least, and the mean of 30 came out above it once
        targets = samples.probabilities(generator, (20, 200), torch.float64)
        noise = torch.rand(targets.shape, generator=generator, dtype=torch.float64) * 2e-3 + (1 - 1e-3)
        predictions = targets * noise / (targets * noise).sum(-1, keepdim=True)
        predictions = (predictions.log() if function == "kl_div" else predictions).float()
        targets = (targets.log() if log_target else targets).float()
        expected = exact(function, predictions, targets, log_target)[0].sum()
        found = [f(function, predictions, targets, reduction="sum", log_target=log_target) for f in (ours, theirs)]
        errors += [abs(float(samples.as_exact(f) - expected)) for f in found]
        if function == "kl_div_probs" and not log_target:
            samples.assert_close(found[0], expected, 1)
    print("mean error: %.3g, PyTorch's %.3g" % tuple(errors / 100))
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_equal_distributions(function):
    """KL(p, p) is exactly 0 in every type."""
    generator = samples.random("equal %s" % function)
    for dtype in DTYPES:
        p = samples.probabilities(generator, (5, 100), torch.float64)
        p = (p.log() if function == "kl_div" else p).to(dtype)
        found = ours(function, p, p, reduction="none", log_target=function == "kl_div")
        assert not found.any() and found.dtype == dtype


@pytest.mark.parametrize("function,log_target", FORMS)
def test_inputs_are_only_read(function, log_target):
    generator = samples.random("inputs are only read")
    inputs = [samples.leaf(x) for x in pair(generator, (130, 100), function, log_target)]
    before = [x.detach().clone() for x in inputs]
    versions = [x._version for x in inputs]
    ours(function, *inputs, reduction="batchmean", log_target=log_target).backward()
    assert all(torch.equal(x.detach(), b) for x, b in zip(inputs, before))
    assert [x._version for x in inputs] == versions


def test_same_bits_on_any_number_of_threads():
    generator = samples.random("threads")
    p, t = (samples.leaf(x) for x in pair(generator, (300, 700), "kl_div_probs"))
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            value = onepass.torch.kl_div_probs(p, t)
            results.append((value.detach(),) + torch.autograd.grad(value, (p, t)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


# ---- layouts and broadcasting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("function,log_target", FORMS)
def test_layouts(function, log_target):
    """Transposed, stepped and shifted tensors, in every combination: values and both gradients."""
    generator = samples.random("layouts %s %s" % (function, log_target))
    for dtype in (torch.float32, torch.bfloat16):
        predictions, targets = pair(generator, (9, 14), function, log_target, (dtype, dtype))
        _, to_predictions, to_targets = exact(function, predictions, targets, log_target)
        for a in samples.layouts(predictions).values():
            for b in samples.layouts(targets).values():
                for reduction in ("none", "rows", "sum"):
                    inputs = a.detach().requires_grad_(), b.detach().requires_grad_()
                    found = ours(function, *inputs, reduction=reduction, log_target=log_target)
                    check_value(found, function, predictions, targets, reduction, log_target)
                    gradients = torch.autograd.grad(found.sum(), inputs)
                    samples.assert_close(gradients[0], to_predictions, 4)
                    samples.assert_close(gradients[1], to_targets, 4, scale=1)


@pytest.mark.parametrize("function,log_target", FORMS)
def test_expanded_inputs(function, log_target):
    """A stride of 0, along rows and along columns; the gradient of an expanded tensor is summed."""
    generator = samples.random("expanded %s %s" % (function, log_target))
    predictions, targets = pair(generator, (6, 11), function, log_target, (torch.float64, torch.float64))
    for cut in (lambda x: x[:1], lambda x: x[:, :1], lambda x: x[:1, :1]):
        small, whole = samples.leaf(cut(predictions)), samples.leaf(targets)
        results = []
        for f in (ours, theirs):
            value = f(function, small.expand(6, 11), whole, reduction="batchmean", log_target=log_target)
            results.append((value,) + torch.autograd.grad(value, (small, whole)))
        assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) and a.shape == b.shape for a, b in zip(*results))


BROADCASTS = [((4, 5), (5,)), ((5,), (4, 5)), ((4, 1), (1, 5)), ((1, 5), (4, 5)), ((4, 5), ()), ((), (4, 5)),
              ((3, 1, 5), (4, 1)), ((2, 3), (4, 2, 3)), ((0, 5), (1, 5)), ((1, 5), (0, 5)), ((3, 1), (3, 0)),
              ((0,), (3, 1)), ((), (0, 3))]


@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
def test_broadcasting(shapes):
    """PyTorch's rules, also that batchmean divides by the input's own first size; a gradient has its input's shape."""
    generator = samples.random("broadcasting %s" % (shapes,))
    for function, log_target in FORMS:
        inputs = [samples.leaf(side) for side in (
            pair(generator, shapes[0], function, log_target, (torch.float64,) * 2)[0],
            pair(generator, shapes[1], function, log_target, (torch.float64,) * 2)[1])]
        for reduction in REDUCTIONS:
            results = []
            for f in (ours, theirs):
                value = f(function, *inputs, reduction=reduction, log_target=log_target)
                if value.isnan().any():
                    assert reduction != "sum"
                    results.append((value.detach(),))
                else:
                    results.append((value.detach(),) + torch.autograd.grad(value.sum(), inputs))
            for found, expected in zip(*results):
                assert found.shape == expected.shape and found.dtype == expected.dtype
                assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14, equal_nan=True), reduction
            assert len(results[0]) == len(results[1])


def test_batchmean_divides_by_the_inputs_own_batch():
    p, t = torch.full((1, 4), 0.25), torch.tensor([[0.5, 0.5, 0.25, 0.25]] * 3)
    total = float(onepass.torch.kl_div_probs(p, t, reduction="sum"))
    assert float(onepass.torch.kl_div_probs(p, t)) == total
    assert float(onepass.torch.kl_div_probs(p.expand(3, 4), t)) == pytest.approx(total / 3, rel=1e-6)


@pytest.mark.parametrize("types", [(a, b) for a in DTYPES for b in DTYPES], ids=str)
def test_a_tensor_without_dimensions_does_not_widen(types):
    """float32 rows with one float64 number are float32, as everywhere in PyTorch; the number's gradient is its own."""
    generator = samples.random("0-d %s" % (types,))
    for side in (0, 1):  # which of the two has rows
        inputs = [samples.leaf(x) for x in pair(generator, (4, 5), "kl_div_probs", dtypes=types)]
        inputs[1 - side] = torch.tensor(0.25, dtype=types[1 - side], requires_grad=True)
        loss = ours("kl_div_probs", *inputs, reduction="sum")
        assert loss.dtype == torch.result_type(*inputs) == types[side]
        gradients = torch.autograd.grad(loss, inputs)
        assert [g.dtype for g in gradients] == list(types) and gradients[1 - side].shape == ()
        value, *derivatives = exact("kl_div_probs", *(x.expand(4, 5) for x in inputs))
        epsilon = max(torch.finfo(dtype).eps for dtype in types)
        samples.assert_close(gradients[side], derivatives[side], 3, scale=side)
        for found, elements in ((loss.detach(), value), (gradients[1 - side], derivatives[1 - side])):
            assert abs(float(found) - float(elements.sum())) <= 8 * epsilon * float(abs(elements).sum())


# ---- the signature ---------------------------------------------------------------------------------------------------


def test_signature_begins_as_pytorchs():
    expected = list(inspect.signature(F.kl_div).parameters.values())
    found = list(inspect.signature(onepass.torch.kl_div).parameters.values())
    assert [(p.name, p.default) for p in found[:len(expected)]] == [(p.name, p.default) for p in expected]
    assert all(p.kind == p.KEYWORD_ONLY for p in found[len(expected):])


@pytest.mark.parametrize("size_average", [None, False, True])
@pytest.mark.parametrize("reduce", [None, False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_legacy_flags(size_average, reduce, reduction):
    """size_average and reduce override the reduction, all but batchmean's division: PyTorch's behaviour, literally."""
    generator = samples.random("legacy")
    for shape in ((), (4, 5)):
        x, t = pair(generator, shape, dtypes=(torch.float64,) * 2)
        found = ours("kl_div", x, t, size_average=size_average, reduce=reduce, reduction=reduction)
        expected = theirs("kl_div", x, t, size_average=size_average, reduce=reduce, reduction=reduction)
        assert found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-12)
        positional = F.kl_div, onepass.torch.kl_div
        with samples.no_warnings():
            a, b = (f(x, t, size_average, reduce, reduction, False) for f in positional)
        assert torch.allclose(a, b, rtol=1e-12)


def test_mean_warns_at_the_callers_line():
    x, t = pair(samples.random("warning"), (2, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        onepass.torch.kl_div(x, t)
        here = inspect.currentframe().f_lineno - 1
        onepass.torch.kl_div(x, t, reduction="batchmean")
        onepass.torch.kl_div_probs(x.exp(), t, reduction="mean")
    assert len(caught) == 1 and caught[0].category is UserWarning
    assert (caught[0].filename, caught[0].lineno) == (__file__, here)
    assert "batchmean" in str(caught[0].message)


def test_nothing_else_warns():
    generator = samples.random("no other warning")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in DTYPES:
            p, t = (samples.leaf(x) for x in pair(generator, (100, 100), "kl_div_probs", dtypes=(dtype, dtype)))
            onepass.torch.kl_div_probs(p, t).backward()
            onepass.torch.kl_div(p.detach(), t.detach(), reduction="sum")


# ---- autocast --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function,log_target", FORMS)
def test_autocast_on_the_cpu(function, log_target):
    """Under autocast PyTorch computes kl_div in float32 and returns that, from float32 copies. Here there are none."""
    generator = samples.random("autocast %s %s" % (function, log_target))
    for types in [(torch.bfloat16,) * 2, (torch.bfloat16, torch.float32), (torch.float64, torch.bfloat16),
                  (torch.float32,) * 2]:
        predictions, targets = (samples.leaf(x) for x in pair(generator, (20, 50), function, log_target, types))
        for reduction in REDUCTIONS:
            saved = []
            with torch.cpu.amp.autocast() if samples.VERSION < (2, 4) else torch.autocast("cpu", dtype=torch.bfloat16):
                with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
                    found = ours(function, predictions, targets, reduction=reduction, log_target=log_target)
                expected = pytorch(function, predictions, targets, reduction=reduction, log_target=log_target)
            assert found.dtype == torch.promote_types(torch.promote_types(*types), torch.float32)
            assert expected is None or found.dtype == expected.dtype
            check_value(found, function, predictions, targets, reduction, log_target)
            assert {x.data_ptr() for x in saved} == {predictions.data_ptr(), targets.data_ptr()}, "a copy was saved"
            gradients = torch.autograd.grad(found.sum(), (predictions, targets))
            assert [g.dtype for g in gradients] == list(types)


# ---- tensors that are not what they seem -----------------------------------------------------------------------------


def test_lazy_negation():
    """The imaginary part of a conjugate lies in memory with the wrong sign, and the tensor knows."""
    generator = samples.random("lazy negation")
    parts = torch.rand(2, 4, 6, generator=generator) + 0.1
    x = torch.complex(parts[0], -parts[1]).conj().imag
    weights = torch.complex(parts[0, :, 0], -parts[1, :, 0]).conj().imag
    assert x.is_neg() and weights.is_neg()
    for inputs in ((x, parts[0]), (parts[0], x), (x, x)):
        whole = [torch.clone(y).resolve_neg() for y in inputs]
        for reduction in ("none", "sum"):
            assert torch.equal(onepass.torch.kl_div_probs(*inputs, reduction=reduction),
                               onepass.torch.kl_div_probs(*whole, reduction=reduction))
        assert torch.equal(onepass.torch.kl_div_probs(*inputs, row_weights=weights),
                           onepass.torch.kl_div_probs(*whole, row_weights=weights.resolve_neg()))


@pytest.mark.parametrize("shape", [(6, 50), (100, 100)], ids=str)
def test_lazy_negation_of_the_upstream_gradient(shape):
    """The gradient may be such a tensor, too."""
    generator = samples.random("lazy upstream")
    p, t = (samples.leaf(x) for x in pair(generator, shape, "kl_div_probs"))
    for reduction in ("none", "rows", "sum"):
        value = ours("kl_div_probs", p, t, reduction=reduction)
        part = torch.rand(value.shape, generator=generator)
        upstream = torch.complex(part, part).conj().imag
        assert upstream.is_neg() and torch.equal(upstream, -part)
        found = torch.autograd.grad(value, (p, t), upstream)
        value = ours("kl_div_probs", p, t, reduction=reduction)
        assert all(map(torch.equal, found, torch.autograd.grad(value, (p, t), -part))), reduction
