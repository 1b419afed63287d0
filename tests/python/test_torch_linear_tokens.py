"""linear_token_log_probs: results and gradients against token_log_probs of all logits in float64, in every type and way
a call can go; what is frozen costs nothing; chunks change no bits; rows that take no part; what is refused."""

import math

import pytest

import losses_samples as samples
import torch_samples
from losses_samples import assert_near, leaf
from torch_samples import F, needs_compile, needs_func, torch, watched

from onepass import errors, library
from onepass.torch import linear_token_log_probs, losses_call, token_log_probs

ROWS, DEPTH, CLASSES, COUNT = 6, 5, 9, 3
ALL = {"return_entropy": True, "return_lse": True}


def layer(generator, rows=(ROWS,), dtype=torch.float64, classes=CLASSES):
    """Hidden states, weight and bias, with gradients; indices."""
    def drawn(*shape):
        return leaf(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))

    indices = samples.labels(generator, rows + (COUNT,), classes)
    return [drawn(*rows, DEPTH), drawn(classes, DEPTH), drawn(classes)], indices


def of(tensors, indices, **options):
    return linear_token_log_probs(*tensors[:2], indices, linear_bias=tensors[2], **options)


def exact(tensors, indices, **options):
    return token_log_probs(F.linear(*(tensor.double() for tensor in tensors)), indices, **options)


def total(results):
    """One number of all results, each with weights of its own."""
    return sum((result * torch.linspace(-1, 2, result.numel(), dtype=result.dtype).reshape(result.shape)).sum()
               for result in results)


def same(found, expected, inputs):
    for a, c in zip(found, expected):
        assert a.shape == c.shape
        assert_near(a, c)
    for a, c in zip(torch.autograd.grad(total(found), inputs), torch.autograd.grad(total(expected), inputs)):
        assert_near(a, c, steps=512)


@pytest.mark.parametrize("dtype", torch_samples.DTYPES)
def test_values_and_gradients(dtype):
    generator = samples.random("linear tokens %s" % dtype)
    for rows in ((ROWS,), (2, 3), ()):
        tensors, indices = layer(generator, rows, dtype)
        found, expected = of(tensors, indices, **ALL), exact(tensors, indices, **ALL)
        assert all(result.dtype == (torch.float64 if dtype is torch.float64 else torch.float32) for result in found)
        same(found, expected, tensors)
        one = of(tensors, indices[..., 0])
        same([one], [exact(tensors, indices[..., 0])], tensors)
        same(of(tensors, None, return_entropy=True), exact(tensors, None, return_entropy=True), tensors)


def test_every_option(monkeypatch):
    """By the library and by PyTorch's operations, with NaN in a row that is masked."""
    generator = samples.random("linear tokens options")
    tensors, indices = layer(generator, classes=CLASSES)
    indices = indices.clamp(max=CLASSES - 3)
    options = dict(ALL, temperature=1.3, softcap=4.0, columns=CLASSES - 2, ignore_index=2,
                   row_mask=torch.arange(ROWS) != 3, semantics="finite")
    indices[indices < 0] = 2
    expected = exact(tensors, indices, **options)
    for devices in (("cpu", "meta"), ()):
        monkeypatch.setattr(losses_call, "_DEVICES", devices)
        same(of(tensors, indices, **options), expected, tensors)
        expected = exact(tensors, indices, **options)
        spoiled = [leaf(tensors[0])] + tensors[1:]
        with torch.no_grad():
            spoiled[0][3] = math.nan
        gradients = torch.autograd.grad(total(of(spoiled, indices, **options)), spoiled)
        assert not any(gradient.isnan().any() for gradient in gradients) and (gradients[0][3] == 0).all()


def test_only_what_is_needed(monkeypatch):
    """Each choice of what is frozen: only the others' gradients are asked for, and nothing of them in forward."""
    tensors, indices = layer(samples.random("linear tokens frozen"))
    expected = torch.autograd.grad(total(of(tensors, indices, **ALL)), tensors)
    asked = []
    call = library.call

    def watch(operator, *arguments):
        if operator == library.LINEAR_TOKEN_LOG_PROBS_BACKWARD:
            asked.append([arguments[i] is not None for i in (6, 9, 10)])
        return call(operator, *arguments)

    monkeypatch.setattr(library, "call", watch)
    for bits in range(8):
        needs = [bool(bits >> i & 1) for i in range(3)]
        some = [tensor.detach().requires_grad_(need) for tensor, need in zip(tensors, needs)]
        asked.clear()
        value = total(of(some, indices, **ALL))
        assert value.requires_grad == any(needs) and not asked
        if any(needs):
            value.backward()
            assert asked == [needs]
        for tensor, need, gradient in zip(some, needs, expected):
            assert (tensor.grad is not None) == need
            if need:
                assert torch.equal(tensor.grad, gradient)


def test_chunks():
    generator = samples.random("linear tokens chunks")
    for dtype in torch_samples.DTYPES:
        tensors, indices = layer(generator, (700,), dtype)
        whole, cut = (of(tensors, indices, chunk_bytes=size, **ALL) for size in (None, 1))
        assert all(torch.equal(a, c) for a, c in zip(whole, cut))
        whole, cut = (torch.autograd.grad(total(results), tensors) for results in (whole, cut))
        assert torch.equal(whole[0], cut[0]) and torch.equal(whole[2], cut[2])
        exactly, = torch.autograd.grad(total(exact(tensors, indices, **ALL)), tensors[1:2])
        for found in (whole[1], cut[1]):
            assert_near(found, exactly, steps=512)


def test_autocast():
    tensors, indices = layer(samples.random("linear tokens autocast"), dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = of(tensors, indices)
    expected = of([tensor.to(torch.bfloat16) for tensor in tensors], indices)
    assert found.dtype is torch.float32 and torch.equal(found, expected)


def test_gradgrad():
    tensors, indices = layer(samples.random("linear tokens gradgrad"), (3,), classes=4)
    f = lambda *tensors: of(tensors, indices, temperature=1.2, **ALL)
    assert torch.autograd.gradcheck(f, tensors)
    assert torch.autograd.gradgradcheck(f, tensors)


@needs_func
def test_func():
    tensors, indices = layer(samples.random("linear tokens func"))
    x, w, b = (tensor.detach() for tensor in tensors)
    row = lambda x, indices: of((x, w, b), indices).sum()
    found = torch.func.vmap(torch.func.grad(row))(x, indices)
    y = leaf(x)
    row(y, indices).backward()
    assert_near(found, y.grad)


@needs_compile
def test_compile():
    tensors, indices = layer(samples.random("linear tokens compile"), dtype=torch.float32)
    f = lambda tensors, indices: of([tensors[0] * 2] + tensors[1:], indices, **ALL)
    expected = f(tensors, indices)
    torch._dynamo.reset()
    with torch_samples.no_warnings():
        made = torch.compile(f, backend="aot_eager", fullgraph=True)
    same(made(tensors, indices), expected, tensors)


def test_library_is_called(monkeypatch):
    tensors, indices = layer(samples.random("linear tokens called"))
    seen = watched(monkeypatch, "linear_token_log_probs")
    of(tensors, indices)
    assert len(seen) == 1


@pytest.mark.parametrize("named, text", [
    ({"linear_weight": torch.zeros((4, 5))}, r"linear_weight: shape \[4, 5\]"),
    ({"linear_weight": torch.zeros((4, 2, 3))}, r"linear_weight: shape \[4, 2, 3\]"),
    ({"linear_bias": torch.zeros(3)}, r"linear_bias: shape \[3\]"),
    ({"indices": torch.zeros(3, dtype=torch.int64)}, r"indices: shape \[3\]"),
    ({"indices": None}, "indices: None"),
    ({"row_mask": torch.zeros(3, dtype=torch.bool)}, r"row_mask: shape \[3\]"),
    ({"chunk_bytes": 0}, "chunk_bytes: 0"),
    ({"columns": 5}, "columns: 5"),
    ({"temperature": 0.0}, "temperature: 0"),
])
def test_refusals(named, text):
    arguments = {"input": torch.zeros((2, 3)), "linear_weight": torch.zeros((4, 3)),
                 "indices": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(errors.InvalidArgument, match="linear_token_log_probs: .*" + text):
        linear_token_log_probs(**dict(arguments, **named))
