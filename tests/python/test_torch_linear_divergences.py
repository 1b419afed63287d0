"""linear_kl_div and its like: values and gradients against the divergence of all logits in float64, in every type,
reduction and way a call can go; what is frozen costs nothing; chunks change no bits; rows that take no part; no
gradient to the teacher; what is refused."""

import math

import pytest

import losses_samples as samples
import torch_samples
from losses_samples import assert_near, leaf
from torch_samples import F, needs_compile, needs_func, torch, watched

import onepass.torch
from onepass import errors, library
from onepass.torch import linear_js, linear_kl_div, losses_call

ROWS, DEPTH, TARGET_DEPTH, CLASSES = 6, 5, 4, 9
NAMES = "kl_div", "reverse_kl", "js", "skew_kl", "skew_reverse_kl", "tv"
PAIRS = [(getattr(onepass.torch, "linear_" + name), getattr(onepass.torch, name + "_logits")) for name in NAMES]


def layers(generator, rows=(ROWS,), dtype=torch.float64, bias=True, classes=CLASSES):
    """(hidden states, weight and bias of the student, with gradients; the same of the teacher, without)"""
    def drawn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    student = [leaf(drawn(*rows, DEPTH)), leaf(drawn(classes, DEPTH)), leaf(drawn(classes)) if bias else None]
    return student, [drawn(*rows, TARGET_DEPTH), drawn(classes, TARGET_DEPTH), drawn(classes) if bias else None]


def of(function, student, teacher, **options):
    return function(*student[:2], *teacher[:2], linear_bias=student[2], target_bias=teacher[2], **options)


def exact(function, student, teacher, **options):
    """By way of all logits, in float64."""
    def logits(input, weight, bias):
        return F.linear(input.double(), weight.double(), None if bias is None else bias.double())

    return function(logits(*student), logits(*teacher), **options)


def given(tensors):
    return [tensor for tensor in tensors if tensor is not None]


def every_option(generator, rows=(ROWS,)):
    return {"temperature": 1.3, "target_temperature": 0.8, "softcap": 4.0, "target_softcap": 5.0,
            "columns": CLASSES - 2, "divergence_weight": 0.7, "label_weight": 0.4, "label_smoothing": 0.1,
            "label_temperature": 1.1, "z_loss": 0.02, "entropy_bonus": 0.1,
            "labels": samples.labels(generator, rows, CLASSES - 2),
            "class_weights": torch.rand(CLASSES, generator=generator, dtype=torch.float64) + 0.1,
            "row_weights": torch.rand(rows, generator=generator, dtype=torch.float64),
            "row_mask": torch.arange(math.prod(rows)).reshape(rows) != 3}


@pytest.mark.parametrize("dtype", torch_samples.DTYPES)
@pytest.mark.parametrize("function, of_logits", PAIRS, ids=NAMES)
def test_values_and_gradients(function, of_logits, dtype):
    generator = samples.random("linear %s %s" % (function.__name__, dtype))
    for reduction in ("batchmean", "mean", "sum", "none", "valid"):
        for rows, bias in (((ROWS,), True), ((2, 3), False)):
            student, teacher = layers(generator, rows, dtype, bias)
            found = of(function, student, teacher, reduction=reduction)
            expected = exact(of_logits, student, teacher, reduction=reduction)
            assert found.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
            assert found.shape == expected.shape
            upstream = torch.rand(found.shape, generator=generator, dtype=torch.float64) + 0.5
            inputs = given(student)
            found = samples.with_gradients(found, inputs, upstream)
            assert all(gradient.dtype is dtype for gradient in found[1:])
            for a, c in zip(found, samples.with_gradients(expected, inputs, upstream)):
                assert_near(a, c)


@pytest.mark.parametrize("function, of_logits", PAIRS, ids=NAMES)
def test_every_option(function, of_logits):
    generator = samples.random("linear options %s" % function.__name__)
    for rows in ((ROWS,), (2, 3)):
        student, teacher = layers(generator, rows)
        options = every_option(generator, rows)
        for named in ({"reduction": "valid"}, {"reduction": "none"}, {"reduction": "sum", "divisor": 2.5},
                      {"reduction": "sum", "divisor": torch.tensor(7)}, {"divergence_weight": 0.0}):
            named = dict(options, **named)
            for a, c in zip(samples.with_gradients(of(function, student, teacher, **named), student),
                            samples.with_gradients(exact(of_logits, student, teacher, **named), student)):
                assert_near(a, c)


def test_outputs():
    generator = samples.random("linear divergence outputs")
    student, teacher = layers(generator)
    names = "target_entropy", "argmax", "lse", "log_prob", "entropy", "target_lse"
    labels = samples.labels(generator, (ROWS,), CLASSES)
    found = of(linear_kl_div, student, teacher, labels=labels, outputs=names)
    expected = exact(onepass.torch.kl_div_logits, student, teacher, labels=labels, outputs=names)
    assert len(found) == 7 and torch.equal(found[2], expected[2])
    assert not any(output.requires_grad for output in found[1:])
    for i in (0, 1, 3, 4, 5, 6):
        assert_near(found[i], expected[i])


def test_library_and_reference_agree(monkeypatch):
    """With every option, and with NaN on both sides of rows that take no part."""
    generator = samples.random("linear divergence reference")
    student, teacher = layers(generator)
    options = every_option(generator)
    options["labels"][1] = -100
    with torch.no_grad():
        student[0][1] = teacher[0][1] = math.nan
        student[0][3] = teacher[0][3] = math.inf
    for function in (linear_kl_div, linear_js):
        for reduction in ("valid", "none"):
            found = []
            for devices in (("cpu", "meta"), ()):
                monkeypatch.setattr(losses_call, "_DEVICES", devices)
                value = of(function, student, teacher, reduction=reduction, **options)
                found.append(samples.with_gradients(value, student))
            for a, c in zip(*found):
                assert not a.isnan().any()
                assert_near(a, c)
            assert (found[0][1][1] == 0).all() and (found[0][1][3] == 0).all()


@pytest.mark.parametrize("reduction", ["batchmean", "none"])
def test_only_what_is_needed(reduction, monkeypatch):
    """Each choice of what is frozen: the others' gradients are those that there were, and only they are asked for."""
    generator = samples.random("linear divergence frozen")
    student, teacher = layers(generator)
    expected = torch.autograd.grad(of(linear_kl_div, student, teacher, reduction=reduction).sum(), student)
    asked = []
    call = library.call

    def watch(operator, *arguments):
        asked.append([arguments[i] is not None for i in (9, 21, 22)])
        return call(operator, *arguments)

    monkeypatch.setattr(library, "call", watch)
    for bits in range(8):
        needs = [bool(bits >> i & 1) for i in range(3)]
        some = [tensor.detach().requires_grad_(need) for tensor, need in zip(student, needs)]
        asked.clear()
        value = of(linear_kl_div, some, teacher, reduction=reduction).sum()
        assert value.requires_grad == any(needs)
        if any(needs):
            value.backward()
        for tensor, need, gradient in zip(some, needs, expected):
            assert (tensor.grad is not None) == need
            if need:
                assert torch.equal(tensor.grad, gradient)
        assert asked[-1] == needs and len(asked) == 1 + (reduction == "none" and any(needs))


def test_chunks():
    """A tile of rows at a time, or all of them: the same bits, and a gradient to the weight that is as good."""
    generator = samples.random("linear divergence chunks")
    for dtype in torch_samples.DTYPES:
        student, teacher = layers(generator, (700,), dtype)
        whole, cut = (samples.with_gradients(of(linear_kl_div, student, teacher, chunk_bytes=size), student)
                      for size in (None, 1))
        for i in (0, 1, 3):
            assert torch.equal(whole[i], cut[i])
        exactly = samples.with_gradients(exact(onepass.torch.kl_div_logits, student, teacher), student[1:2])[1]
        for found in (whole[2], cut[2]):
            assert_near(found, exactly)


def test_equal_sides():
    """A student that is its teacher: every divergence is 0."""
    student, _ = layers(samples.random("linear divergence of equals"), dtype=torch.float32)
    for function, _ in PAIRS:
        found = of(function, student, [tensor.detach() for tensor in student])
        assert found == 0
        for gradient in torch.autograd.grad(found, student):
            assert gradient.abs().max() < 1e-6


def test_upstream_and_second_backward():
    """Gradients for any upstream gradient, and again through the same graph."""
    student, teacher = layers(samples.random("linear divergence upstream"))
    value = of(linear_kl_div, student, teacher)
    kept = [gradient.clone() for gradient in torch.autograd.grad(value, student, retain_graph=True)]
    for factor in (1.0, -3.5):
        again = torch.autograd.grad(value, student, torch.tensor(factor, dtype=torch.float64), retain_graph=True)
        for gradient, one in zip(again, kept):
            assert_near(gradient, factor * one)


def test_autocast():
    student, teacher = layers(samples.random("linear divergence autocast"), dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = of(linear_kl_div, student, teacher)
    halves = [[tensor.to(torch.bfloat16) for tensor in side] for side in (student, teacher)]
    expected = of(linear_kl_div, *halves)
    assert found.dtype is torch.float32
    for a, c in zip(samples.with_gradients(found, student), samples.with_gradients(expected, student)):
        assert a.dtype is torch.float32 and torch.equal(a, c)


def test_gradgrad():
    student, teacher = layers(samples.random("linear divergence gradgrad"), (3,), classes=4)
    for reduction in ("batchmean", "none"):
        f = lambda *student: of(linear_js, student, teacher, temperature=1.2, beta=0.3, reduction=reduction)
        assert torch.autograd.gradcheck(f, student)
        assert torch.autograd.gradgradcheck(f, student)


@needs_func
def test_func():
    student, teacher = layers(samples.random("linear divergence func"))
    x, w, b = (tensor.detach() for tensor in student)

    def row(x, y):
        return linear_kl_div(x, w, y, teacher[1], linear_bias=b, reduction="sum")

    found = torch.func.vmap(torch.func.grad(row))(x, teacher[0])
    y = leaf(x)
    row(y, teacher[0]).backward()
    assert_near(found, y.grad)


@needs_compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_compile(dtype):
    student, teacher = layers(samples.random("linear divergence compile"), dtype=dtype)
    for reduction in ("batchmean", "none"):
        f = lambda student, teacher: of(linear_kl_div, [student[0] * 2] + student[1:], teacher, reduction=reduction)
        expected = samples.with_gradients(f(student, teacher), student)
        torch._dynamo.reset()
        with torch_samples.no_warnings():
            made = torch.compile(f, backend="aot_eager", fullgraph=True)
        for a, c in zip(samples.with_gradients(made(student, teacher), student), expected):
            assert_near(a, c)


def test_library_is_called(monkeypatch):
    student, teacher = layers(samples.random("linear divergence called"))
    seen = watched(monkeypatch, "linear_divergence")
    of(linear_kl_div, student, teacher).backward()
    assert len(seen) == 1


def test_no_gradient_to_the_teacher():
    student, teacher = layers(samples.random("linear divergence teacher"))
    for i, name in enumerate(("target_input", "target_weight", "target_bias")):
        learning = list(teacher)
        learning[i] = leaf(teacher[i])
        with pytest.raises(errors.Unsupported, match=name + ": requires_grad; there is no gradient to the teacher"):
            of(linear_kl_div, student, learning)
        with torch.no_grad():
            assert torch.equal(of(linear_kl_div, student, learning), of(linear_kl_div, student, teacher))


@pytest.mark.parametrize("named, text", [
    ({"linear_weight": torch.zeros((4, 5))}, r"linear_weight: shape \[4, 5\]"),
    ({"linear_weight": torch.zeros((4, 2, 3))}, r"linear_weight: shape \[4, 2, 3\]"),
    ({"linear_bias": torch.zeros(3)}, r"linear_bias: shape \[3\]"),
    ({"target_input": torch.zeros((3, 2))}, r"target_input: shape \[3, 2\]"),
    ({"target_weight": torch.zeros((5, 2))}, r"target_weight: shape \[5, 2\]"),
    ({"target_weight": torch.zeros((4, 3))}, r"target_weight: shape \[4, 3\]"),
    ({"target_bias": torch.zeros(5)}, r"target_bias: shape \[5\]"),
    ({"label_weight": 1.0}, "given without labels"),
    ({"labels": torch.zeros(3, dtype=torch.int64)}, r"labels: shape \[3\]"),
    ({"chunk_bytes": 0}, "chunk_bytes: 0"),
    ({"columns": 5}, "columns: 5"),
    ({"outputs": ("log_prob",)}, "log_prob"),
    ({"reduction": "median"}, "reduction: 'median'"),
    ({"target_temperature": 0.0}, "target_temperature: 0"),
])
def test_refusals(named, text):
    arguments = {"input": torch.zeros((2, 3)), "linear_weight": torch.zeros((4, 3)),
                 "target_input": torch.zeros((2, 2)), "target_weight": torch.zeros((4, 2))}
    with pytest.raises(errors.InvalidArgument, match="linear_kl_div: .*" + text):
        linear_kl_div(**dict(arguments, **named))


def test_mixtures_are_refused():
    student, teacher = layers(samples.random("linear divergence mixtures"))
    for beta in (0, 1, -0.5, 2):
        with pytest.raises(errors.InvalidArgument, match="linear_js: beta: .* above 0 and below 1"):
            of(linear_js, student, teacher, beta=beta)
