"""linear_cross_entropy: value and gradients against float64 and PyTorch's own, in every type, reduction and way a call
can go; what is frozen costs nothing; chunks change no bits; rows that take no part; what is refused."""

import inspect
import math

import pytest

import losses_samples as samples
import torch_samples
from losses_samples import assert_near, leaf
from torch_samples import F, needs_compile, needs_func, torch, watched

from onepass import errors, library
from onepass.torch import LinearCrossEntropyLoss, cross_entropy, kl_div_top_k, linear_cross_entropy, losses_call

ROWS, DEPTH, CLASSES = 6, 5, 9


def layer(generator, rows=(ROWS,), dtype=torch.float64, bias=True, classes=CLASSES):
    """Hidden states, weight and bias, with gradients."""
    def drawn(*shape):
        return leaf(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))

    return drawn(*rows, DEPTH), drawn(classes, DEPTH), drawn(classes) if bias else None


def every_option(generator, rows=(ROWS,)):
    return {"weight": torch.rand(CLASSES, generator=generator, dtype=torch.float64) + 0.1, "label_smoothing": 0.1,
            "z_loss": 0.02, "entropy_bonus": 0.1, "columns": CLASSES - 2, "softcap": 4.0, "temperature": 1.3,
            "row_weights": torch.rand(rows, generator=generator, dtype=torch.float64),
            "row_mask": torch.arange(math.prod(rows)).reshape(rows) != 3}


def exact(x, w, b, target, **options):
    """By way of all logits, in float64."""
    return cross_entropy(F.linear(x.double(), w.double(), None if b is None else b.double()), target, class_dim=-1,
                         **options)


def given(*tensors):
    return [tensor for tensor in tensors if tensor is not None]


@pytest.mark.parametrize("dtype", torch_samples.DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients(reduction, dtype):
    generator = samples.random("linear loss %s %s" % (reduction, dtype))
    for rows in ((ROWS,), (2, 3), ()):
        for bias in (True, False):
            x, w, b = layer(generator, rows, dtype, bias)
            target = samples.labels(generator, rows, CLASSES)
            found = linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction)
            expected = exact(x, w, b, target, reduction=reduction)
            assert found.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
            assert found.shape == expected.shape
            upstream = torch.rand(found.shape, generator=generator, dtype=torch.float64) + 0.5
            inputs = given(x, w, b)
            found = samples.with_gradients(found, inputs, upstream)
            assert all(gradient.dtype is dtype for gradient in found[1:])
            for a, c in zip(found, samples.with_gradients(expected, inputs, upstream)):
                assert_near(a, c)


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="PyTorch before 2.13 has no linear_cross_entropy")
def test_is_pytorchs():
    """The signature begins as PyTorch's does, and so do the results."""
    names = list(inspect.signature(F.linear_cross_entropy).parameters.items())
    ours = list(inspect.signature(linear_cross_entropy).parameters.items())
    for (name, parameter), (our_name, our) in zip(names, ours):
        assert (name, parameter.default, parameter.kind) == (our_name, our.default, our.kind)
    generator = samples.random("linear loss of PyTorch")
    x, w, b = layer(generator)
    target = samples.labels(generator, (ROWS,), CLASSES)
    weight = torch.rand(CLASSES, generator=generator, dtype=torch.float64)
    for named in ({}, {"weight": weight, "label_smoothing": 0.2}, {"reduction": "sum", "ignore_index": 3},
                  {"reduction": "none"}):
        labels = target.clamp(min=0) if "ignore_index" in named else target
        for a, c in zip(*(samples.with_gradients(f(x, w, labels, linear_bias=b, **named), (x, w, b))
                          for f in (linear_cross_entropy, F.linear_cross_entropy))):
            assert_near(a, c)


def test_other_targets_and_weights():
    """Probabilities, and several losses a row: by way of the logits."""
    generator = samples.random("linear loss with logits")
    x, w, b = layer(generator)
    probabilities = F.softmax(torch.randn((ROWS, CLASSES), generator=generator, dtype=torch.float64), -1)
    for a, c in zip(samples.with_gradients(linear_cross_entropy(x, w, probabilities, linear_bias=b), (x, w, b)),
                    samples.with_gradients(F.cross_entropy(F.linear(x, w, b), probabilities), (x, w, b))):
        assert_near(a, c)
    wide = leaf(torch.randn((CLASSES, 2, DEPTH), generator=generator, dtype=torch.float64))
    target = samples.labels(generator, (ROWS, 2), CLASSES)
    logits = F.linear(x, wide.reshape(-1, DEPTH)).reshape(ROWS, CLASSES, 2)
    for a, c in zip(samples.with_gradients(linear_cross_entropy(x, wide, target), (x, wide)),
                    samples.with_gradients(F.cross_entropy(logits, target), (x, wide))):
        assert_near(a, c)


def test_module():
    """Its linear layer is torch.nn.Linear's, and where PyTorch has the module, all of it is PyTorch's."""
    generator = samples.random("linear loss module")
    x = leaf(torch.randn((ROWS, DEPTH), generator=generator))
    weight = torch.rand(CLASSES, generator=generator)
    for out_features in ((), (2,)):
        target = samples.labels(generator, (ROWS,) + out_features, CLASSES)
        named = {"out_features": out_features, "bias": True, "weight": weight, "label_smoothing": 0.1}
        torch.manual_seed(3)
        made = LinearCrossEntropyLoss(DEPTH, CLASSES, chunk_bytes=1, **named)
        torch.manual_seed(3)
        layer = torch.nn.Linear(DEPTH, CLASSES * math.prod(out_features))
        assert torch.equal(made.linear.weight, layer.weight) and torch.equal(made.linear.bias, layer.bias)
        logits = F.linear(x.double(), layer.weight.double(), layer.bias.double())
        expected = cross_entropy(logits.reshape((ROWS, CLASSES) + out_features), target, weight=weight,
                                 label_smoothing=0.1)
        assert_near(made(x, target), expected, torch.float32)
        gradients = torch.autograd.grad(made(x, target, row_mask=torch.ones(target.shape, dtype=torch.bool)),
                                        (x, made.linear.weight, made.linear.bias))
        for a, c in zip(gradients, torch.autograd.grad(expected, (x, layer.weight, layer.bias))):
            assert_near(a, c)
        if hasattr(torch.nn, "LinearCrossEntropyLoss"):
            theirs = torch.nn.LinearCrossEntropyLoss(DEPTH, CLASSES, **named)
            theirs.load_state_dict(made.state_dict())
            assert_near(theirs(x, target), expected, torch.float32)


def test_every_option():
    generator = samples.random("linear loss options")
    for rows in ((ROWS,), (2, 3)):
        x, w, b = layer(generator, rows)
        target = samples.labels(generator, rows, CLASSES - 2)
        options = every_option(generator, rows)
        for named in ({"reduction": "mean"}, {"reduction": "none"}, {"reduction": "sum", "divisor": 2.5},
                      {"reduction": "sum", "divisor": torch.tensor(7)}):
            named = dict(options, **named)
            for a, c in zip(samples.with_gradients(linear_cross_entropy(x, w, target, linear_bias=b, **named),
                                                   (x, w, b)),
                            samples.with_gradients(exact(x, w, b, target, **named), (x, w, b))):
                assert_near(a, c)


def test_outputs():
    generator = samples.random("linear loss outputs")
    x, w, b = layer(generator)
    target = samples.labels(generator, (ROWS,), CLASSES)
    names = "argmax", "lse", "log_prob", "entropy"
    found = linear_cross_entropy(x, w, target, linear_bias=b, outputs=names)
    expected = exact(x, w, b, target, outputs=names)
    assert len(found) == 5 and torch.equal(found[1], expected[1])
    assert not any(output.requires_grad for output in found[1:])
    for i in (0, 2, 3, 4):
        assert_near(found[i], expected[i])


def test_library_and_reference_agree(monkeypatch):
    """With every option, and with NaN in rows that take no part."""
    generator = samples.random("linear loss reference")
    x, w, b = layer(generator)
    target = samples.labels(generator, (ROWS,), CLASSES - 2)
    with torch.no_grad():
        x[1] = math.nan
        x[3] = math.inf
    options = every_option(generator)
    for named in ({"ignore_index": -100, "row_mask": options["row_mask"]}, options):
        for reduction in ("mean", "none"):
            found = []
            for devices in (("cpu", "meta"), ()):
                monkeypatch.setattr(losses_call, "_DEVICES", devices)
                value = linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction, **named)
                found.append(samples.with_gradients(value, (x, w, b)))
            for a, c in zip(*found):
                assert not a.isnan().any()
                assert_near(a, c)
            assert (found[0][1][1] == 0).all() and (found[0][1][3] == 0).all()


@pytest.mark.parametrize("devices", [("cpu", "meta"), ()])
def test_nothing_counts(devices, monkeypatch):
    """The mean is NaN, as PyTorch's; gradients are 0, and they are there."""
    monkeypatch.setattr(losses_call, "_DEVICES", devices)
    x, w, b = layer(samples.random("linear loss of nothing"))
    target = torch.full((ROWS,), -100)
    for semantics, reduction, value in (("strict", "mean", math.nan), ("finite", "mean", 0), ("strict", "sum", 0)):
        found = linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction, semantics=semantics)
        assert found.isnan() if math.isnan(value) else found == value
        for gradient in torch.autograd.grad(found, (x, w, b)):
            assert (gradient == 0).all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_only_what_is_needed(reduction, monkeypatch):
    """Each choice of what is frozen: the others' gradients are those that there were, and only they are asked for."""
    generator = samples.random("linear loss frozen")
    tensors = layer(generator)
    target = samples.labels(generator, (ROWS,), CLASSES)

    def loss(x, w, b):
        return linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction).sum()

    expected = torch.autograd.grad(loss(*tensors), tensors)
    asked = []
    call = library.call

    def watch(operator, *arguments):
        asked.append([arguments[i] is not None for i in (9, 16, 17)])
        return call(operator, *arguments)

    monkeypatch.setattr(library, "call", watch)
    for bits in range(8):
        needs = [bool(bits >> i & 1) for i in range(3)]
        given = [tensor.detach().requires_grad_(need) for tensor, need in zip(tensors, needs)]
        asked.clear()
        value = loss(*given)
        assert value.requires_grad == any(needs)
        if any(needs):
            value.backward()
        for tensor, need, gradient in zip(given, needs, expected):
            assert (tensor.grad is not None) == need
            if need:
                assert torch.equal(tensor.grad, gradient)
        assert asked[-1] == needs and len(asked) == 1 + (reduction == "none" and any(needs))


def test_chunks():
    """A tile of rows at a time, or all of them: the same bits, and a gradient to the weight that is as good."""
    generator = samples.random("linear loss chunks")
    for dtype in torch_samples.DTYPES:
        x, w, b = layer(generator, (700,), dtype)
        target = samples.labels(generator, (700,), CLASSES)
        whole, cut = (samples.with_gradients(linear_cross_entropy(x, w, target, linear_bias=b, chunk_bytes=size),
                                             (x, w, b)) for size in (None, 1))
        for i in (0, 1, 3):
            assert torch.equal(whole[i], cut[i])
        exactly = samples.with_gradients(exact(x, w, b, target), (w,))[1]
        for found in (whole[2], cut[2]):
            assert_near(found, exactly)


def test_upstream_and_second_backward():
    """Gradients for any upstream gradient, and again through the same graph."""
    generator = samples.random("linear loss upstream")
    x, w, b = layer(generator)
    target = samples.labels(generator, (ROWS,), CLASSES)
    value = linear_cross_entropy(x, w, target, linear_bias=b)
    first = torch.autograd.grad(value, (x, w, b), retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    for factor in (1.0, -3.5):
        again = torch.autograd.grad(value, (x, w, b), torch.tensor(factor, dtype=torch.float64), retain_graph=True)
        for gradient, one in zip(again, kept):
            assert_near(gradient, factor * one)
    assert all(torch.equal(a, c) for a, c in zip(first, kept))


def test_float16_gradients_survive_scaling():
    """They are scaled before they are rounded: in float16 most of these would be 0 without their factor."""
    generator = samples.random("linear loss float16")
    x, w, _ = layer(generator, (600,), torch.float16, bias=False)
    target = torch.randint(0, CLASSES, (600,), generator=generator)
    factor = torch.tensor(2.0 ** 12)
    loss = linear_cross_entropy(x, w, target) * 2.0 ** -12
    made, = torch.autograd.grad(loss, x, factor)
    exactly, = torch.autograd.grad(exact(x, w, None, target), x)
    assert torch.equal(made == 0, exactly == 0)
    assert_near(made, exactly)


def test_autocast():
    generator = samples.random("linear loss autocast")
    x, w, b = layer(generator, dtype=torch.float32)
    target = samples.labels(generator, (ROWS,), CLASSES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = linear_cross_entropy(x, w, target, linear_bias=b)
    halves = [tensor.to(torch.bfloat16) for tensor in (x, w, b)]
    expected = linear_cross_entropy(*halves[:2], target, linear_bias=halves[2])
    assert found.dtype is torch.float32
    for a, c in zip(samples.with_gradients(found, (x, w, b)), samples.with_gradients(expected, (x, w, b))):
        assert a.dtype is torch.float32 and torch.equal(a, c)


def test_gradgrad():
    generator = samples.random("linear loss gradgrad")
    x, w, b = layer(generator, (3,), classes=4)
    target = samples.labels(generator, (3,), 4)
    for reduction in ("mean", "none"):
        f = lambda x, w, b: linear_cross_entropy(x, w, target, linear_bias=b, temperature=1.2, reduction=reduction)
        assert torch.autograd.gradcheck(f, (x, w, b))
        assert torch.autograd.gradgradcheck(f, (x, w, b))


@needs_func
def test_func():
    generator = samples.random("linear loss func")
    x, w, b = (tensor.detach() for tensor in layer(generator))
    target = torch.randint(0, CLASSES, (ROWS,), generator=generator)

    def row(x, target):
        return linear_cross_entropy(x, w, target, linear_bias=b, reduction="sum")

    found = torch.func.vmap(torch.func.grad(row))(x, target)
    y = leaf(x)
    row(y, target).backward()
    assert_near(found, y.grad)


@needs_compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_compile(dtype):
    generator = samples.random("linear loss compile")
    x, w, b = layer(generator, dtype=dtype)
    target = samples.labels(generator, (ROWS,), CLASSES)
    for reduction in ("mean", "none"):
        f = lambda x, w, b, target: linear_cross_entropy(x * 2, w, target, linear_bias=b, reduction=reduction)
        expected = samples.with_gradients(f(x, w, b, target), (x, w, b))
        torch._dynamo.reset()
        with torch_samples.no_warnings():
            made = torch.compile(f, backend="aot_eager", fullgraph=True)
        for a, c in zip(samples.with_gradients(made(x, w, b, target), (x, w, b)), expected):
            assert_near(a, c)


@needs_compile
def test_operators():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("PyTorch %d.%d has no torch.library.opcheck" % torch_samples.VERSION)
    x, w, b = layer(samples.random("linear loss operators"), dtype=torch.float32)
    tensors = x, w, b, None, None, None, torch.zeros(ROWS, dtype=torch.int64), None, None, None, None
    call = 3, 6, 0, 0.0, 1.0, 0.0, 0, -100, 1.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 5, 0
    torch.library.opcheck(torch.ops.onepass.linear_loss.default, tensors + call)
    for name, first in (("linear_loss_with_gradients", ()), ("linear_loss_backward", (torch.ones(()),))):
        for dtype, in_float in ((torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)):
            given = tuple(tensor.detach().to(dtype) for tensor in tensors[:3]) + tensors[3:]
            torch.library.opcheck(getattr(torch.ops.onepass, name).default,
                                  first + given + call + (True, False, True, in_float),
                                  test_utils=("test_schema", "test_faketensor"))


def test_library_is_called(monkeypatch):
    x, w, _ = layer(samples.random("linear loss called"), bias=False)
    seen = watched(monkeypatch, "linear_cross_entropy")
    linear_cross_entropy(x, w, torch.zeros(ROWS, dtype=torch.int64)).backward()
    assert len(seen) == 1


@pytest.mark.parametrize("named, text", [
    ({"linear_weight": torch.zeros((4, 5))}, r"linear_weight: shape \[4, 5\]"),
    ({"linear_weight": torch.zeros(3)}, r"linear_weight: shape \[3\]"),
    ({"linear_bias": torch.zeros(3)}, r"linear_bias: shape \[3\]"),
    ({"linear_bias": torch.zeros(4, dtype=torch.int64)}, "linear_bias: dtype torch.int64"),
    ({"target": torch.zeros(3, dtype=torch.int64)}, r"target: shape \[3\]"),
    ({"target": torch.zeros(2)}, "target: dtype torch.float32"),
    ({"weight": torch.zeros(3)}, r"weight: shape \[3\]"),
    ({"options": object()}, "options: given"),
    ({"chunk_bytes": 0}, "chunk_bytes: 0"),
    ({"reduction": "batchmean"}, "reduction: 'batchmean'"),
    ({"outputs": ("target_lse",)}, "outputs: 'target_lse'"),
    ({"label_smoothing": 2.0}, "label_smoothing: 2"),
    ({"columns": 5}, "columns: 5"),
    ({"target": torch.full((2, 4), 0.25), "ignore_index": 1}, "ignore_index: 1"),
    ({"row_weights": torch.zeros(2, requires_grad=True)}, "row_weights: requires_grad"),
])
def test_refusals(named, text):
    tensors = {"input": torch.zeros((2, 3)), "linear_weight": torch.zeros((4, 3)),
               "target": torch.zeros(2, dtype=torch.int64)}
    tensors.update(named)
    with pytest.raises(errors.Error, match="linear_cross_entropy: .*" + text):
        linear_cross_entropy(**tensors)


def test_a_gpu_is_asked_for_the_kernels_it_has(monkeypatch):
    """Losses from logits, from hidden states and of top-k teachers have kernels there; no other device has any."""
    class On:
        def __init__(self, kind):
            self.device = torch.device(kind)

    assert losses_call.is_served(On("cuda")) and losses_call.is_served(On("cpu"))
    assert not losses_call.is_served(On("xpu"))
    asked = []

    def is_served(tensor):
        asked.append(tensor)
        return False
    monkeypatch.setattr(losses_call, "is_served", is_served)
    generator = torch_samples.random("kernels of a gpu")
    x, w, b = layer(generator)
    linear_cross_entropy(x, w, torch.zeros(ROWS, dtype=torch.int64), linear_bias=b)
    assert asked
    del asked[:]
    kl_div_top_k(x, torch.full((ROWS, 1), -1.0, dtype=x.dtype), torch.zeros(ROWS, 1, dtype=torch.int64))
    assert asked
