"""torch.func and forward mode: grad, jacobians, hessians, jvp and vmap of the losses beside PyTorch's own or a loop."""

import itertools

import pytest

import torch_samples as samples
from torch_samples import FORMS, ours, pair, theirs, torch

import onepass
import onepass.torch

pytestmark = samples.needs_func
if samples.VERSION >= (2, 1):
    from torch import func, vmap
    from torch.autograd import forward_ad

ALL_REDUCTIONS = ("none", "rows", "sum", "mean", "batchmean")
DOUBLE = (torch.float64, torch.float64)


def close(found, expected, rtol=1e-11):
    found, expected = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (found, expected))
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        assert f.shape == e.shape and f.dtype == e.dtype and torch.allclose(f, e, rtol=rtol, atol=1e-13)


# ---- derivatives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", samples.REDUCTIONS)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_jacobians_and_hessians(function, log_target, reduction):
    """Every way torch.func makes first and second derivatives, to each side and to both."""
    generator = samples.random("func %s %s %s" % (function, log_target, reduction))
    inputs = pair(generator, (2, 3), function, log_target, DOUBLE)

    def each(f, scalar):
        def loss(a, b):
            value = f(function, a, b, reduction=reduction, log_target=log_target)
            return value.sum() if scalar else value
        return loss

    for argnums in (0, 1, (0, 1)):
        for transform in (func.jacrev, func.jacfwd):
            close(transform(each(ours, False), argnums)(*inputs), transform(each(theirs, False), argnums)(*inputs))
        close(func.grad(each(ours, True), argnums)(*inputs), func.grad(each(theirs, True), argnums)(*inputs))
    for argnums in (0, 1):
        expected = func.hessian(each(theirs, True), argnums)(*inputs)
        close(func.hessian(each(ours, True), argnums)(*inputs), expected)
        for outer, inner in itertools.product((func.jacrev, func.jacfwd), repeat=2):
            if outer is inner is func.jacfwd:  # PyTorch would give zeros for any function of autograd's
                with pytest.raises(onepass.Unsupported, match="forward mode within forward mode"):
                    outer(inner(each(ours, True), argnums), argnums)(*inputs)
            else:
                close(outer(inner(each(ours, True), argnums), argnums)(*inputs), expected)


EXTRAS = {
    "plain": {},
    "weights": {"row_weights": torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)},
    "mask": {"row_mask": torch.tensor([True, False, True])},
    "both": {"row_weights": torch.tensor([0.5, 2.0, -1.0]), "row_mask": torch.tensor([1, 1, 0], dtype=torch.uint8)},
}


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("reduction", ALL_REDUCTIONS)
def test_jvp_is_the_transpose_of_vjp(reduction, extra):
    """<u, J v> = <J^T u, v>, with tangents to either side or to both."""
    for function, log_target in FORMS:
        generator = samples.random("jvp %s %s %s %s" % (function, log_target, reduction, extra))
        inputs = pair(generator, (3, 4), function, log_target, DOUBLE)

        def loss(a, b):
            return ours(function, a, b, reduction=reduction, log_target=log_target, **EXTRAS[extra])

        value, pull = func.vjp(loss, *inputs)
        tangents = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
        upstream = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        back = pull(upstream)
        for sides in ((0,), (1,), (0, 1)):
            def some(*given):
                return loss(*[given[sides.index(i)] if i in sides else x for i, x in enumerate(inputs)])

            again, push = func.jvp(some, tuple(inputs[i] for i in sides), tuple(tangents[i] for i in sides))
            assert torch.equal(again, value) and push.dtype == value.dtype
            left = (upstream * push).sum()
            right = sum((back[i] * tangents[i]).sum() for i in sides)
            assert torch.isclose(left, right, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("function,log_target", FORMS)
def test_dual_tensors(function, log_target):
    """forward_ad as it stands, in half types too; an ordinary call within a level stays ordinary."""
    generator = samples.random("dual %s %s" % (function, log_target))
    for dtype, rtol in ((torch.float64, 1e-11), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)):
        inputs = pair(generator, (3, 4), function, log_target, (dtype, dtype))
        tangents = [torch.rand(3, 4, generator=generator).to(dtype) for _ in range(2)]
        results = []
        for f in (ours, theirs):
            with forward_ad.dual_level():
                duals = [forward_ad.make_dual(x, v) for x, v in zip(inputs, tangents)]
                both = forward_ad.unpack_dual(f(function, *duals, reduction="batchmean", log_target=log_target))
                one = forward_ad.unpack_dual(f(function, inputs[0], duals[1], reduction="none", log_target=log_target))
                plain = forward_ad.unpack_dual(f(function, *inputs, reduction="sum", log_target=log_target))
            assert plain.tangent is None
            results.append([both.primal, both.tangent, one.primal, one.tangent])
        assert all(a.dtype == b.dtype for a, b in zip(*results))
        for a, b in zip(*results):
            assert torch.allclose(a.double(), b.double(), rtol=rtol, atol=rtol)


def test_gradcheck_in_forward_mode():
    for function, log_target in FORMS:
        made = pair(samples.random("forward gradcheck"), (2, 3), function, log_target, DOUBLE)
        inputs = [samples.leaf(x) for x in made]
        for reduction in ("none", "batchmean"):
            def loss(a, b):
                return ours(function, a, b, reduction=reduction, log_target=log_target)
            assert torch.autograd.gradcheck(loss, inputs, check_forward_ad=True, check_batched_grad=True,
                                            check_batched_forward_grad=True)
            assert torch.autograd.gradgradcheck(loss, inputs, check_fwd_over_rev=True, check_rev_over_rev=True,
                                                check_batched_grad=True)


def test_no_derivative_to_the_weights():
    """It is refused, not 0: by reverse mode, by forward mode, in the gradient's own derivative."""
    x, t = pair(samples.random("weights' derivative"), (3, 4))
    weights = torch.ones(3)

    def loss(w, a=x):
        return onepass.torch.kl_div(a, t, reduction="sum", row_weights=w)

    with pytest.raises(onepass.Unsupported, match="row_weights"):
        func.grad(loss)(weights)
    with pytest.raises(onepass.Unsupported, match="row_weights"):
        func.jvp(loss, (weights,), (weights,))
    with pytest.raises(onepass.Unsupported, match="row_weights"):
        func.jvp(lambda w: func.grad(lambda a: loss(w, a))(x), (weights,), (weights,))


# ---- vmap ------------------------------------------------------------------------------------------------------------

SAMPLES = {"0-d": (), "1-d": (5,), "2-d": (3, 5), "3-d": (2, 3, 5)}


@pytest.mark.parametrize("extra", ["plain", "weights", "mask", "both"])
@pytest.mark.parametrize("shape", SAMPLES)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_vmap_is_a_loop(function, log_target, shape, extra):
    """Values and gradients of every reduction; each argument is mapped along its first or last dimension, or shared."""
    shape = SAMPLES[shape]
    generator = samples.random("vmap %s %s %s %s" % (function, log_target, shape, extra))
    lead = shape[:-1]
    batch = 4
    for dims in [(0, 0, 0, 0), (-1, 0, 0, 0), (0, None, None, 0), (None, -1, 0, None), (0, 0, None, None)]:
        arguments = []
        made = [pair(generator, (batch,) + shape, function, log_target, DOUBLE)[i] for i in (0, 1)]
        made.append(torch.rand((batch,) + lead, generator=generator) + 0.5 if extra in ("weights", "both") else None)
        made.append(torch.rand((batch,) + lead, generator=generator) < 0.7 if extra in ("mask", "both") else None)
        for x, dim in zip(made, dims):
            arguments.append(x if x is None else x[0] if dim is None else x.movedim(0, dim))
        in_dims = tuple(None if x is None else dim for x, dim in zip(arguments, dims))
        for reduction in ALL_REDUCTIONS:
            def loss(a, b, w, m):
                return ours(function, a, b, reduction=reduction, log_target=log_target, row_weights=w, row_mask=m)

            def gradients(a, b, w, m):
                return func.grad(lambda p, t: loss(p, t, w, m).sum(), (0, 1))(a, b)

            found = vmap(loss, in_dims)(*arguments), vmap(gradients, in_dims)(*arguments)
            singles = [[x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims)]
                       for i in range(batch)]
            close(found[0], torch.stack([loss(*single) for single in singles]))
            expected = [gradients(*single) for single in singles]
            close(found[1], [torch.stack([e[side] for e in expected]) for side in (0, 1)])


def test_a_gradient_through_vmap():
    """grad(vmap) and autograd through vmap, to a shared and to a mapped argument."""
    generator = samples.random("grad of vmap")
    p, t = pair(generator, (4, 3, 5), "kl_div_probs", dtypes=DOUBLE)
    shared = p[0]
    for reduction in ALL_REDUCTIONS:
        def one(f):
            return lambda a, b: f("kl_div_probs", a, b, reduction=reduction)

        def total(a, b):
            return vmap(one(ours), (None, 0))(a, b).sum()

        def plain(a, b):
            return sum(one(ours)(a, b[i]).sum() for i in range(4))

        close(func.grad(total, (0, 1))(shared, t), func.grad(plain, (0, 1))(shared, t))
        leaves = [samples.leaf(shared), samples.leaf(t)]
        close(torch.autograd.grad(total(*leaves), leaves), torch.autograd.grad(plain(*leaves), leaves))


def test_vmap_of_second_derivatives_and_of_vmap():
    p, t = pair(samples.random("nested"), (4, 3, 5), "kl_div_probs", dtypes=DOUBLE)

    def loss(f):
        return lambda a, b: f("kl_div_probs", a, b, reduction="batchmean")

    close(vmap(func.hessian(loss(ours)))(p[:, :2, :2], t[:, :2, :2]),
          vmap(func.hessian(loss(theirs)))(p[:, :2, :2], t[:, :2, :2]))
    close(vmap(vmap(loss(ours)))(p, t), vmap(vmap(loss(theirs)))(p, t))
    mixed = [vmap(vmap(loss(f), (0, None)), (1, 0))(p, t[:3, 0]) for f in (ours, theirs)]
    close(*mixed)
    close(vmap(loss(ours), chunk_size=3)(p, t), vmap(loss(theirs))(p, t))
    close(vmap(lambda a, b: func.jvp(loss(ours), (a, b), (b, a))[1])(p, t),
          vmap(lambda a, b: func.jvp(loss(theirs), (a, b), (b, a))[1])(p, t))


def test_vmap_with_zeros_of_samples_and_elements():
    """Samples without elements: sum 0, mean NaN, as one at a time."""
    empty = torch.empty(3, 0, 5)
    for reduction in ("sum", "mean", "batchmean"):
        found = vmap(lambda a, b: ours("kl_div", a, b, reduction=reduction))(empty, empty)
        single = ours("kl_div", empty[0], empty[0], reduction=reduction)
        assert samples.same(found, single.expand(3))


def test_vmap_does_not_lose_half_precision():
    """An upstream gradient of 1, divided by the elements of a large sample, is below what float16 has digits for."""
    p, t = pair(samples.random("vmap, half"), (2, 300, 41), "kl_div_probs", dtypes=(torch.float16, torch.float16))

    def gradient(a, b):
        return func.grad(lambda x: ours("kl_div_probs", x, b, reduction="mean"))(a)

    found = vmap(gradient)(p, t)
    assert torch.equal(found, torch.stack([gradient(a, b) for a, b in zip(p, t)]))


def test_gradients_of_each_sample_of_a_model():
    """Per-sample gradients of a network's parameters: vmap(grad) over functional_call."""
    generator = samples.random("per sample")
    torch.manual_seed(samples.SEED)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5), torch.nn.LogSoftmax(-1))
    model.double()
    data = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    targets = samples.probabilities(generator, (7, 5), torch.float64)
    parameters = dict(model.named_parameters())
    results = []
    for f in (ours, theirs):
        def loss(weights, x, t):
            output = func.functional_call(model, weights, (x.unsqueeze(0),))
            return f("kl_div", output, t.unsqueeze(0), reduction="batchmean")
        results.append(vmap(func.grad(loss), (None, 0, 0))(parameters, data, targets))
    assert results[0].keys() == results[1].keys()
    for name in results[0]:
        close(results[0][name], results[1][name])


def test_functionalize():
    """PyTorch has no rule for functions of autograd's there, and says so. What it functionalizes itself (torch.compile,
    torch.export) is in test_torch_tracing.py."""
    p, t = pair(samples.random("functionalize"), (3, 4), "kl_div_probs")
    with pytest.raises(RuntimeError, match="custom_function_call"):
        func.functionalize(lambda a, b: ours("kl_div_probs", a, b))(p, t)


@pytest.mark.parametrize("function,log_target", FORMS)
def test_the_traced_way_gives_the_eager_bits(function, log_target):
    """Value and gradients through the dispatcher are the library's too."""
    inputs = pair(samples.random("traced bits"), (130, 100), function, log_target)
    for reduction in ALL_REDUCTIONS:
        def loss(a, b):
            return ours(function, a, b, reduction=reduction, log_target=log_target).sum()

        leaves = [samples.leaf(x) for x in inputs]
        eager = torch.autograd.grad(loss(*leaves), leaves)
        traced = func.grad(loss, (0, 1))(*inputs)
        assert all(map(torch.equal, eager, traced)), reduction
