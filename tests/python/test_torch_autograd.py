"""Gradients of onepass.torch: against finite differences and exact values, for every upstream gradient, in every order
of forward and backward passes that autograd allows."""

import itertools
import math

import numpy
import pytest
from torch.utils.checkpoint import checkpoint

import torch_samples as samples
from torch_samples import DTYPES, FORMS, F, exact, ours, pair, theirs, torch

from onepass.torch import kl

ALL_REDUCTIONS = ("none", "rows", "sum", "mean", "batchmean")
SMALL, LARGE = (6, 50), (130, 100)  # on both sides of kl._SMALL, above which forward makes the gradients
SIZES = (SMALL, LARGE)
DIVISORS = ((6, 50), (192, 100), (8, 64), (128, 128))  # the same, by sizes that are powers of two and that are not
assert 300 <= kl._SMALL < 13000


def leaves(generator, shape, function="kl_div_probs", log_target=False, dtype=torch.float32):
    return [samples.leaf(x) for x in pair(generator, shape, function, log_target, (dtype, dtype))]


def gradients(inputs, upstream=None, **options):
    """Those of a fresh forward and backward pass."""
    value = ours("kl_div_probs", *inputs, **options)
    return torch.autograd.grad(value, inputs, upstream)


def made_anew(inputs, upstream, **options):
    """The gradients of a second backward pass, which expects nothing and reads the inputs again."""
    value = ours("kl_div_probs", *inputs, **options)
    torch.autograd.grad(value, inputs, upstream, retain_graph=True)
    return torch.autograd.grad(value, inputs, upstream)


# ---- finite differences ----------------------------------------------------------------------------------------------

EXTRAS = {
    "plain": {},
    "weights": {"row_weights": torch.tensor([[0.5], [2.0], [-1.0]], dtype=torch.float64)},
    "mask": {"row_mask": torch.tensor([[True], [False], [True]])},
    "both": {"row_weights": torch.tensor([[0.5], [2.0], [-1.0]]),
             "row_mask": torch.tensor([[1], [1], [0]], dtype=torch.uint8)},
    "finite": {"semantics": "finite"},
}


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("reduction", ALL_REDUCTIONS)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_first_and_second_derivatives(function, log_target, reduction, extra):
    generator = samples.random("gradcheck %s %s %s %s" % (function, log_target, reduction, extra))
    inputs = leaves(generator, (3, 1, 4), function, log_target, torch.float64)

    def loss(a, b):
        return ours(function, a, b, reduction=reduction, log_target=log_target, **EXTRAS[extra])

    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)
    for side in (0, 1):  # the other needs none
        one = [x if i == side else x.detach() for i, x in enumerate(inputs)]
        assert torch.autograd.gradcheck(loss, one)
        assert torch.autograd.gradgradcheck(loss, one)


def test_a_divisor_of_the_callers_own():
    inputs = leaves(samples.random("gradcheck divisor"), (3, 4), dtype=torch.float64)

    def loss(a, b):
        return ours("kl_div_probs", a, b, reduction="sum", divisor=-2.5)

    assert torch.autograd.gradcheck(loss, inputs) and torch.autograd.gradgradcheck(loss, inputs)


@pytest.mark.parametrize("function,log_target", FORMS)
def test_third_derivatives(function, log_target):
    """The second derivative is made of PyTorch's operations, so it has derivatives too."""
    inputs = leaves(samples.random("third %s %s" % (function, log_target)), (2, 3), function, log_target, torch.float64)

    def first(a, b):
        value = ours(function, a, b, reduction="sum", log_target=log_target)
        return torch.autograd.grad(value, (a, b), create_graph=True)

    assert torch.autograd.gradgradcheck(first, inputs)


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_gradients_are_exact(function, log_target, dtype):
    """Within three ulps of the exact ones, small and large tensors, both sides; each alone has the same bits. Three
    hold for every draw with these divisors, but for exp, a division and a divisor that is no power of two together:
    there the bound is the one that docs/numerics.md derives for each element, 4.1 at most."""
    generator = samples.random("exact gradients %s %s %s" % (function, log_target, dtype))
    for shape, reduction in itertools.product(DIVISORS, ("sum", "batchmean", "mean")):
        inputs = leaves(generator, shape, function, log_target, dtype)
        over = {"batchmean": shape[0], "mean": shape[0] * shape[1]}.get(reduction, 1)
        ulps = 3
        if function == "kl_div_probs" and log_target and over & (over - 1) and dtype in (torch.float64, torch.float32):
            ulps = samples.gradient_ulps(*inputs, over)
            assert samples.largest(ulps) < 4.1
        _, to_predictions, to_targets = exact(function, *inputs, log_target)
        value = ours(function, *inputs, reduction=reduction, log_target=log_target)
        found = torch.autograd.grad(value, inputs)
        assert [g.dtype for g in found] == [dtype, dtype]
        samples.assert_close(found[0], to_predictions / over, ulps)
        samples.assert_close(found[1], to_targets / over, 3, scale=3 / over)
        for side in (0, 1):
            one = [x if i == side else x.detach() for i, x in enumerate(inputs)]
            value = ours(function, *one, reduction=reduction, log_target=log_target)
            assert torch.equal(torch.autograd.grad(value, one[side])[0], found[side])
            # One of two that both could have one.
            value = ours(function, *inputs, reduction=reduction, log_target=log_target)
            assert torch.equal(torch.autograd.grad(value, inputs[side])[0], found[side])


@pytest.mark.parametrize("function,log_target", FORMS)
def test_no_more_error_than_pytorchs(function, log_target):
    generator = samples.random("errors of gradients %s %s" % (function, log_target))
    for shape in SIZES:
        inputs = leaves(generator, shape, function, log_target)
        _, *expected = exact(function, *inputs, log_target)
        errors = []
        for f in (ours, theirs):
            found = torch.autograd.grad(f(function, *inputs, reduction="batchmean", log_target=log_target), inputs)
            errors.append([numpy.abs(samples.as_exact(g) - e / shape[0]) for g, e in zip(found, expected)])
        for side, e in enumerate(expected):
            ulp = samples.ulp(torch.float32, numpy.maximum(abs(e), 1 if side else 0) / shape[0])
            assert samples.largest(errors[0][side] / ulp) <= samples.largest(errors[1][side] / ulp) + 1


def test_nothing_is_recorded_where_nothing_is_wanted():
    p, t = pair(samples.random("not recorded"), LARGE, "kl_div_probs")
    assert not ours("kl_div_probs", p, t).requires_grad
    leaf = samples.leaf(p)
    with torch.no_grad():
        assert not ours("kl_div_probs", leaf, t).requires_grad
    with torch.inference_mode():
        assert ours("kl_div_probs", leaf, t).is_inference()
    assert ours("kl_div_probs", leaf, t).requires_grad
    assert torch.equal(ours("kl_div_probs", leaf, t).detach(), ours("kl_div_probs", p, t))


# ---- upstream gradients ----------------------------------------------------------------------------------------------

UPSTREAMS = [1.0, 2.5, -3.0, 65536.0, 1e-3, 0.0]  # 65536: where a gradient scaler begins


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("reduction", ["sum", "mean", "batchmean"])
def test_bits_do_not_depend_on_what_was_expected(reduction, shape):
    """After any upstream gradient, any other: what a step gets is what a step of its own gets."""
    generator = samples.random("expected %s %s" % (reduction, shape))
    for dtype in DTYPES:
        inputs = leaves(generator, shape, dtype=dtype)
        upstreams = [u for u in UPSTREAMS if u < torch.finfo(dtype).max]
        alone = {u: made_anew(inputs, torch.tensor(u, dtype=dtype), reduction=reduction) for u in upstreams}
        for u in upstreams:
            assert alone[u][0].isfinite().all() and bool(alone[u][0].any()) == (u != 0)
        for before, now in itertools.product(upstreams, upstreams):
            gradients(inputs, torch.tensor(before, dtype=dtype), reduction=reduction)
            found = gradients(inputs, torch.tensor(now, dtype=dtype), reduction=reduction)
            assert all(samples.same(a, b) for a, b in zip(found, alone[now])), (before, now)


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_upstream_gradients_that_are_no_numbers(shape):
    """NaN is never equal to what was expected, infinity may be; twice each, and an ordinary one after them."""
    inputs = leaves(samples.random("upstream NaN %s" % (shape,)), shape)
    ordinary = gradients(inputs)
    for value in (math.nan, math.nan, math.inf, math.inf, -math.inf):
        found = gradients(inputs, torch.tensor(value))
        if math.isnan(value):
            assert all(g.isnan().all() for g in found)
        else:
            assert bool((found[0] == -value).all())
        assert all(torch.equal(a, b) for a, b in zip(gradients(inputs), ordinary))


def test_upstream_gradients_changing_from_step_to_step():
    """A loss that is scaled anew every step, with accumulation, as gradient scalers and warm-ups do it."""
    generator = samples.random("steps")
    inputs = leaves(generator, LARGE, dtype=torch.float64)
    total = torch.zeros_like(inputs[0])
    one = gradients(inputs)[0]
    for step in range(12):
        scale = float(torch.rand((), generator=generator) * 10) if step % 3 else 65536.0
        (ours("kl_div_probs", *inputs) * scale).backward()
        total += one * scale
        assert torch.allclose(inputs[0].grad, total, rtol=1e-13)


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_an_upstream_gradient_that_is_changed_in_place(shape):
    """The same tensor with another number in it, written before forward, between forward and backward, and behind
    autograd's back: backward sees the number of that moment."""
    inputs = leaves(samples.random("changed upstream %s" % (shape,)), shape)
    one = gradients(inputs)
    upstream = torch.tensor(4.0)
    gradients(inputs, upstream)
    value = ours("kl_div_probs", *inputs)
    upstream.fill_(8.0)
    assert torch.equal(torch.autograd.grad(value, inputs, upstream)[0], one[0] * 8)
    value = ours("kl_div_probs", *inputs)
    upstream.data.fill_(16.0)
    assert torch.equal(torch.autograd.grad(value, inputs, upstream)[0], one[0] * 16)
    value = ours("kl_div_probs", *inputs)
    upstream.numpy()[()] = 32.0
    assert torch.equal(torch.autograd.grad(value, inputs, upstream)[0], one[0] * 32)
    upstream.fill_(2.0)
    assert torch.equal(gradients(inputs, upstream)[0], one[0] * 2)


def test_an_upstream_gradient_made_in_inference_mode():
    inputs = leaves(samples.random("inference upstream"), LARGE)
    with torch.inference_mode():
        upstream = torch.tensor(2.0)
    expected = gradients(inputs, torch.tensor(2.0))
    for _ in range(2):
        assert torch.equal(gradients(inputs, upstream)[0], expected[0])


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_upstream_gradients_of_any_layout(function, log_target, shape):
    """An element or a row each: expanded numbers (loss.sum() gives them), transposed and stepped ones."""
    generator = samples.random("upstream layouts %s %s %s" % (function, log_target, shape))
    inputs = leaves(generator, shape, function, log_target)
    base = torch.randn(shape, generator=generator)
    wide = torch.randn(shape[0] * 2, shape[1] * 2, generator=generator)
    for upstream in (torch.tensor(2.0).expand(shape), base[:1].expand(shape), base[:, :1].expand(shape),
                     base.t().contiguous().t(), wide[::2, 1::2]):
        value = ours(function, *inputs, reduction="none", log_target=log_target)
        found = torch.autograd.grad(value, inputs, upstream)
        value = ours(function, *inputs, reduction="none", log_target=log_target)
        assert all(map(torch.equal, found, torch.autograd.grad(value, inputs, upstream.contiguous())))
        _, to_predictions, to_targets = exact(function, *inputs, log_target)
        factor = samples.as_exact(upstream)
        samples.assert_close(found[0], to_predictions * factor, 3)
        samples.assert_close(found[1], to_targets * factor, 3, scale=3 * abs(factor))
    for upstream in (torch.tensor(-1.5).expand(shape[0]), base[:, 3], wide[::2, 0]):
        value = ours(function, *inputs, reduction="rows", log_target=log_target)
        found = torch.autograd.grad(value, inputs, upstream)
        factor = samples.as_exact(upstream)[:, None]
        samples.assert_close(found[0], to_predictions * factor, 3)
        samples.assert_close(found[1], to_targets * factor, 3, scale=3 * abs(factor))


# ---- the buffers of gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_repeated_backward_passes_accumulate(shape):
    """Three backward passes through one graph: exactly what adding three times gives."""
    for reduction in ALL_REDUCTIONS:
        inputs = leaves(samples.random("repeated %s" % (shape,)), shape)
        value = ours("kl_div_probs", *inputs, reduction=reduction)
        one = torch.autograd.grad(value, inputs, torch.ones_like(value), retain_graph=True)
        value = ours("kl_div_probs", *inputs, reduction=reduction)
        expected = [torch.zeros_like(g) for g in one]
        for step in range(3):
            value.backward(torch.ones_like(value), retain_graph=step < 2)
            for e, g in zip(expected, one):
                e += g
            assert all(torch.equal(x.grad, e) for x, e in zip(inputs, expected)), (reduction, step)
        with pytest.raises(RuntimeError, match="second time"):
            value.backward(torch.ones_like(value))


def test_kept_gradients_stay():
    """A .grad from one step is its owner's: later steps with other upstream gradients do not write to it."""
    inputs = leaves(samples.random("kept"), LARGE)
    ours("kl_div_probs", *inputs).backward()
    kept = [x.grad for x in inputs]
    before = [g.clone() for g in kept]
    for upstream in (4.0, 4.0, -2.0, 1.0):
        for x in inputs:
            x.grad = None
        ours("kl_div_probs", *inputs).backward(torch.tensor(upstream))
        assert all(torch.equal(x.grad, b * upstream) for x, b in zip(inputs, before))
        assert all(map(torch.equal, kept, before))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("same", [True, False], ids=["same inputs", "other inputs"])
def test_two_losses_at_once(same, order):
    """Both outstanding, taken back in either order, with different upstream gradients: each spoils what the other
    expected."""
    generator = samples.random("two losses")
    first = leaves(generator, LARGE)
    second = first if same else leaves(generator, LARGE)
    upstreams = torch.tensor(2.0), torch.tensor(-5.0)
    expected = [made_anew(inputs, u) for inputs, u in zip((first, second), upstreams)]
    values = [ours("kl_div_probs", *inputs) for inputs in (first, second)]
    found = [None, None]
    for i in order:
        found[i] = torch.autograd.grad(values[i], (first, second)[i], upstreams[i])
    for f, e in zip(found, expected):
        assert all(map(torch.equal, f, e))


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_one_tensor_as_both(shape):
    """KL(p, p): the gradients to both arguments add up, from two losses too."""
    p, _ = leaves(samples.random("both %s" % (shape,)), shape, dtype=torch.float64)
    (ours("kl_div_probs", p, p, reduction="sum") + 2 * ours("kl_div_probs", p, p.detach(), reduction="sum")).backward()
    assert torch.allclose(p.grad, torch.full_like(p, -1 + 1 - 2), rtol=1e-12)


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_hooks_may_keep_and_change_gradients(shape):
    """A hook that writes into the gradient changes nobody else's: the next backward pass is as right."""
    inputs = leaves(samples.random("hooks %s" % (shape,)), shape)
    one = gradients(inputs)
    seen = []

    def spoil(gradient):
        seen.append(gradient.clone())
        gradient.mul_(math.nan)

    handles = [x.register_hook(spoil) for x in inputs]
    value = ours("kl_div_probs", *inputs)
    for _ in range(3):
        value.backward(retain_graph=True)
    assert len(seen) == 6
    for i, gradient in enumerate(seen):
        assert any(torch.equal(gradient, g) for g in one), i
    for handle in handles:
        handle.remove()
    assert all(map(torch.equal, torch.autograd.grad(value, inputs), one))


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_hooks_on_the_loss(shape):
    """A hook that changes the upstream gradient, in place or by another."""
    inputs = leaves(samples.random("loss hooks %s" % (shape,)), shape)
    one = gradients(inputs)
    for hook in (lambda g: g * 4, lambda g: g.mul_(4) and None, lambda g: g.data.mul_(4) and None):
        value = ours("kl_div_probs", *inputs)
        value.register_hook(hook)
        assert torch.equal(torch.autograd.grad(value, inputs)[0], one[0] * 4)
        assert torch.equal(gradients(inputs)[0], one[0])


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("side", [0, 1])
def test_inputs_changed_in_place_before_backward(side, shape):
    """As in PyTorch: an error, not a wrong gradient, also where the gradient was made already."""
    for f in (ours, theirs):
        used = [x * 1 for x in leaves(samples.random("in place"), shape)]
        value = f("kl_div", *used, reduction="batchmean")
        used[side].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


# ---- double backward -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_gradient_penalty(function, log_target, shape):
    """The squared norm of the gradient as a loss, which needs its derivative: PyTorch's numbers. The graph then still
    gives the gradient itself."""
    generator = samples.random("penalty %s %s %s" % (function, log_target, shape))
    inputs = leaves(generator, shape, function, log_target, torch.float64)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    results = []
    for f in (ours, theirs):
        value = f(function, *inputs, reduction="batchmean", log_target=log_target) * scale
        first = torch.autograd.grad(value, inputs, create_graph=True)
        penalty = sum((g * g).sum() for g in first)
        second = torch.autograd.grad(penalty, inputs + [scale], retain_graph=True)
        results.append(tuple(g.detach() for g in first) + second + torch.autograd.grad(value, inputs))
    for found, expected in zip(*results):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_double_backward_beside_zeros_in_the_targets():
    """One-hot targets with no gradient of their own: what is infinite is only the derivative nobody asked for."""
    generator = samples.random("double backward, zeros")
    x = samples.leaf(samples.probabilities(generator, (5, 4), torch.float64).log())
    t = F.one_hot(torch.randint(4, (5,), generator=generator), 4).double()
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    for function in ("kl_div", "kl_div_probs"):
        results = []
        for f in (ours, theirs):
            inputs = x if function == "kl_div" else x.exp()
            first, = torch.autograd.grad(f(function, inputs, t, reduction="sum") * scale, x, create_graph=True)
            results.append(torch.autograd.grad((first * first).sum(), (x, scale) if function != "kl_div" else (scale,)))
        for found, expected in zip(*results):
            assert found.isfinite().all() and torch.allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("function,log_target", FORMS)
def test_double_backward_leaves_masked_rows_out(function, log_target):
    """NaN in masked rows, and in their weights, reaches no derivative of any order."""
    generator = samples.random("double backward, masks %s %s" % (function, log_target))
    clean = leaves(generator, (4, 5), function, log_target, torch.float64)
    mask = torch.tensor([True, False, True, False])
    weights = torch.rand(4, generator=generator)
    results = []
    for bad in (None, math.nan, -math.inf):
        inputs = [x.detach().clone() for x in clean]
        w = weights.clone()
        if bad is not None:
            for x in inputs:
                x[1] = bad
                x[3, 2] = bad
            w[1] = bad
        inputs = [x.requires_grad_() for x in inputs]
        value = ours(function, *inputs, reduction="sum", log_target=log_target, row_mask=mask, row_weights=w)
        first = torch.autograd.grad(value, inputs, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), inputs, create_graph=True)
        third = torch.autograd.grad(sum((g * g).sum() for g in second), inputs)
        results.append([g.detach() for g in first + second + third])
    for other in results[1:]:
        for expected, found in zip(results[0], other):
            assert not found[~mask].any() and torch.equal(found, expected)


@pytest.mark.parametrize("function,log_target", FORMS)
def test_double_backward_in_finite_semantics(function, log_target):
    """Zeros in both: derivatives of every order are numbers."""
    generator = samples.random("double backward, finite %s %s" % (function, log_target))
    p, t = (samples.probabilities(generator, (4, 6), torch.float64) for _ in range(2))
    t[0, :3] = 0
    p[0, 1] = 0
    inputs = [samples.leaf(p.log() if function == "kl_div" else p), samples.leaf(t.log() if log_target else t)]
    value = ours(function, *inputs, reduction="sum", log_target=log_target, semantics="finite")
    first = torch.autograd.grad(value, inputs, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first), inputs, create_graph=True)
    third = torch.autograd.grad(sum((g * g).sum() for g in second), inputs)
    for gradient in first + second + third:
        assert gradient.isfinite().all()
    # The ordinary elements are as if the others were not there.
    rest = [samples.leaf(x.detach()[1:]) for x in inputs]
    value = ours(function, *rest, reduction="sum", log_target=log_target)
    first = torch.autograd.grad(value, rest, create_graph=True)
    expected = torch.autograd.grad(sum((g * g).sum() for g in first), rest)
    assert all(torch.allclose(a.detach()[1:], b, rtol=1e-12) for a, b in zip(second, expected))


# ---- with the rest of autograd ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_checkpoints(shape):
    inputs = leaves(samples.random("checkpoint %s" % (shape,)), shape)
    expected = gradients(inputs, torch.tensor(3.0))
    modes = [{}] if samples.VERSION < (1, 11) else [{"use_reentrant": True}, {"use_reentrant": False}]
    for mode in modes:
        for x in inputs:
            x.grad = None
        (checkpoint(lambda a, b: ours("kl_div_probs", a * 1, b), *inputs, **mode) * 3).backward()
        assert all(torch.equal(x.grad, e) for x, e in zip(inputs, expected))


def test_saved_tensors_may_be_packed_away():
    """Hooks that put saved tensors elsewhere, as offloading to the host does."""
    inputs = leaves(samples.random("packed"), LARGE)
    expected = gradients(inputs)
    packed = []

    def pack(x):
        packed.append(x)
        return x.detach().numpy().copy()

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        value = ours("kl_div_probs", *inputs)
    assert len(packed) == 2
    assert all(map(torch.equal, torch.autograd.grad(value, inputs, retain_graph=True), expected))
    assert all(map(torch.equal, torch.autograd.grad(value, inputs), expected))


@pytest.mark.parametrize("shape", [(3, 4), (100, 100)], ids=str)
@pytest.mark.skipif(samples.VERSION < (1, 11), reason="PyTorch %d.%d has no is_grads_batched" % samples.VERSION)
def test_batched_backward_passes(shape):
    """Many upstream gradients in one backward pass of an ordinary loss, as autograd's own jacobian takes them.

    Both ways round. -u t / p / divisor: five times or fewer, half an eps each. u (log t - log p + 1) / divisor, which
    cancels: a logarithm is off by 1.05 eps of itself, its sums and products by 2.5 eps of the sizes of the terms."""
    eps = torch.finfo(torch.float32).eps
    p, t = (samples.leaf(x) for x in pair(samples.random("batched backward"), shape, "kl_div_probs"))
    with torch.no_grad():
        bounds = 2 * 2.5 * eps * (t / p), 2 * 3.55 * eps * (t.log().abs() + p.log().abs() + 1)

    def close(found, expected, bound):
        return found.shape == expected.shape and bool(((found - expected).abs() <= bound).all())

    for reduction in ALL_REDUCTIONS:
        value = ours("kl_div_probs", p, t, reduction=reduction)
        upstream = torch.randn((3,) + value.shape, generator=samples.random("batched upstream"))
        divisor = {"mean": p.numel(), "batchmean": p.shape[0]}.get(reduction, 1)
        found = torch.autograd.grad(value, (p, t), upstream, is_grads_batched=True, retain_graph=True)
        for i in range(3):
            expected = torch.autograd.grad(value, (p, t), upstream[i], retain_graph=True)
            size = upstream[i].abs().unsqueeze(-1) if reduction == "rows" else upstream[i].abs()
            assert all(close(f[i], e, size / divisor * bound) for f, e, bound in zip(found, expected, bounds))
            assert all(bool(e.any()) for e in expected)
    if shape[0] < 10:
        found, expected = (torch.autograd.functional.jacobian(
            lambda a, b: ours("kl_div_probs", a, b, reduction="rows"), (p, t), vectorize=v) for v in (True, False))
        assert all(close(f, e, bound.max()) for f, e, bound in zip(found, expected, bounds))


def test_anomaly_mode():
    inputs = leaves(samples.random("anomaly"), LARGE)
    with samples.no_warnings(), torch.autograd.detect_anomaly():
        assert all(g.isfinite().all() for g in gradients(inputs))
        with pytest.raises(RuntimeError, match="nan"):
            gradients(inputs, torch.tensor(math.nan))


def test_training_is_pytorchs():
    """Twenty steps of a small network with either loss: the same parameters."""
    generator = samples.random("training")
    data = torch.randn(64, 20, generator=generator, dtype=torch.float64)
    targets = samples.probabilities(generator, (64, 300), torch.float64)
    start = [torch.randn(20, 300, generator=generator, dtype=torch.float64) * 0.1,
             torch.zeros(300, dtype=torch.float64)]
    finals = []
    for f in (ours, theirs):
        weights = [w.clone().requires_grad_() for w in start]
        optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9)
        for step in range(20):
            optimizer.zero_grad()
            logits = data @ weights[0] + weights[1]
            loss = f("kl_div", logits.log_softmax(-1), targets, reduction="batchmean") * (1 + step % 3)
            loss.backward()
            optimizer.step()
        finals.append(weights)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(*finals))
    assert not torch.allclose(finals[0][0], start[0], atol=1e-2), "it moved"
