"""onepass.torch.linear beside torch.nn.functional.linear: every type, shape and layout, derivatives of two orders, and
whoever must see the call. Errors are against float64; PyTorch's own is the limit."""

import inspect
import math
import os
import subprocess
import sys
import threading

import pytest

import torch_samples as samples
from torch_samples import DTYPES, F, needs_compile, needs_cuda, needs_func, torch

import onepass.torch
from onepass import library
from onepass.torch import matrices

SHAPES = [((5, 7), 3), ((2, 3, 4), 6), ((9,), 4), ((1, 1), 1), ((70, 33), 65), ((0, 4), 3), ((3, 0), 2), ((2, 0, 4), 3)]


def draw(generator, shape, outputs, dtype=torch.float64, bias=True, device="cpu"):
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64),
               torch.randn((outputs, shape[-1]), generator=generator, dtype=torch.float64)]
    if bias:
        tensors.append(torch.randn(outputs, generator=generator, dtype=torch.float64))
    return [samples.leaf(tensor.to(device=device, dtype=dtype)) for tensor in tensors]


def off(found, expected):
    """Norm of the error relative to that of the expected tensor; NaN is infinite."""
    error = float((found.detach().double() - expected.detach().double()).norm())
    size = float(expected.detach().double().norm())
    return math.inf if error != error else error / size if size else error


def results(function, tensors, upstream=None):
    """The output and the gradients to everything that asks for one."""
    output = function(*tensors)
    asked = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    upstream = torch.ones_like(output) if upstream is None else upstream.to(output.dtype)
    return [output] + list(torch.autograd.grad(output, asked, upstream))


def check(found, expected, limit):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
        assert off(a, b) <= limit


@pytest.fixture
def calls(monkeypatch):
    """What the library was asked for: ("linear" or "linear_backward", its arguments)."""
    seen = []
    for name in ("linear", "linear_backward"):
        def watched(*arguments, name=name, function=getattr(library, name)):
            seen.append((name, arguments))
            return function(*arguments)
        monkeypatch.setattr(library, name, watched)
    return seen


def test_signature():
    assert list(inspect.signature(onepass.torch.linear).parameters) == ["input", "weight", "bias"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape,outputs", SHAPES, ids=str)
def test_shapes(shape, outputs, bias, calls):
    generator = samples.random("shapes %s %s" % (shape, bias))
    tensors = draw(generator, shape, outputs, bias=bias)
    upstream = torch.randn(shape[:-1] + (outputs,), generator=generator, dtype=torch.float64)
    check(results(onepass.torch.linear, tensors, upstream), results(F.linear, tensors, upstream), 1e-13)
    assert [name for name, _ in calls] == ["linear", "linear_backward"]


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)  # float64 has nothing to be judged by: test_shapes has it
def test_types(dtype):
    """No more error than PyTorch's own, but for a quarter of it; where this PyTorch has no such product, one
    rounding."""
    generator = samples.random("types %s" % dtype)
    tensors = draw(generator, (96, 300), 50, dtype)
    upstream = torch.randn(96, 50, generator=generator, dtype=torch.float64).to(dtype)
    exact = results(F.linear, [samples.leaf(tensor.double()) for tensor in tensors], upstream)
    found = results(onepass.torch.linear, tensors, upstream)
    try:
        errors = [off(a, b) for a, b in zip(results(F.linear, tensors, upstream), exact)]
    except RuntimeError:
        assert samples.VERSION < (2, 2) and dtype is torch.float16
        errors = [0.0] * 4
    eps = torch.finfo(dtype).eps
    for tensor, expected, error in zip(found, exact, errors):
        assert tensor.dtype is dtype
        assert off(tensor, expected) <= max(1.25 * error, eps / 2), (off(tensor, expected), error)


@pytest.mark.parametrize("which", ["input", "weight", "upstream"])
def test_layouts(which):
    generator = samples.random("layouts " + which)
    input, weight, bias = draw(generator, (6, 8), 5)
    upstream = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    expected = results(F.linear, (input, weight, bias), upstream)
    changed = {"input": input, "weight": weight, "upstream": upstream}
    for tensor in samples.layouts(changed[which].detach()).values():
        given = dict(changed)
        given[which] = tensor.requires_grad_() if which != "upstream" else tensor
        found = results(onepass.torch.linear, (given["input"], given["weight"], bias), given["upstream"])
        check(found, expected, 1e-13)


def test_expanded_upstream():
    tensors = draw(samples.random("expanded"), (6, 8), 5)
    found = torch.autograd.grad(onepass.torch.linear(*tensors).sum(), tensors)
    check(found, torch.autograd.grad(F.linear(*tensors).sum(), tensors), 1e-13)


@pytest.mark.parametrize("asked", range(1, 8))
def test_only_what_is_asked(asked, calls):
    """Gradients nobody asks for are not made, and what only they need is not kept."""
    tensors = [tensor.detach().requires_grad_(bool(asked >> i & 1))
               for i, tensor in enumerate(draw(samples.random("asked"), (6, 8), 5))]
    output = onepass.torch.linear(*tensors)
    saved = output.grad_fn.saved_tensors
    assert [tensor is not None for tensor in saved] == [bool(asked & 2), bool(asked & 1)]
    output.sum().backward()
    made = calls[-1][1][3:6]
    assert [tensor is not None for tensor in made] == [bool(asked >> i & 1) for i in range(3)]
    expected = results(F.linear, tensors)[1:]
    check([tensor.grad for tensor in tensors if tensor.grad is not None], expected, 1e-13)


def test_no_gradients(calls):
    tensors = draw(samples.random("none"), (6, 8), 5)
    with torch.no_grad():
        output = onepass.torch.linear(*tensors)
    assert not output.requires_grad and off(output, F.linear(*tensors)) <= 1e-14
    assert len(calls) == 1


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)], ids=str)
def test_gradcheck(shape):
    tensors = draw(samples.random("gradcheck %s" % (shape,)), shape, 2)
    assert torch.autograd.gradcheck(onepass.torch.linear, tensors)
    assert torch.autograd.gradgradcheck(onepass.torch.linear, tensors)


def test_backward_twice():
    tensors = draw(samples.random("twice"), (20, 30), 10, torch.float32)
    output = onepass.torch.linear(*tensors)
    first = torch.autograd.grad(output.sum(), tensors, retain_graph=True)
    second = torch.autograd.grad(output.sum(), tensors, retain_graph=True)
    assert all(samples.same(a, b) for a, b in zip(first, second))


def test_a_changed_weight_is_noticed():
    tensors = draw(samples.random("changed"), (4, 3), 2)
    output = onepass.torch.linear(*tensors)
    with torch.no_grad():
        tensors[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("shapes", [((3, 4), (2, 5), (2,)), ((3, 4), (2, 4), (3,)), ((), (2, 4), (2,))], ids=str)
def test_wrong_shapes(shapes):
    """What PyTorch refuses is refused in its words."""
    tensors = [torch.ones(shape) for shape in shapes]
    with pytest.raises(RuntimeError) as theirs:
        F.linear(*tensors)
    with pytest.raises(RuntimeError) as ours:
        onepass.torch.linear(*tensors)
    assert str(ours.value) == str(theirs.value)


def test_mixed_types_are_refused():
    with pytest.raises(RuntimeError):
        onepass.torch.linear(torch.ones(2, 3), torch.ones(4, 3, dtype=torch.float64))


def test_autocast():
    tensors = draw(samples.random("autocast"), (6, 8), 5, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = onepass.torch.linear(*tensors), F.linear(*tensors)
    assert found.dtype is expected.dtype is torch.bfloat16
    assert off(found, F.linear(*[tensor.double() for tensor in tensors])) <= 2**-7
    grads = torch.autograd.grad(found.float().sum(), tensors)
    assert all(grad.dtype is torch.float32 for grad in grads)


def test_threads():
    """Threads that call at once have a handle and a workspace each."""
    tensors = [draw(samples.random("threads %d" % i), (40, 50), 30) for i in range(4)]
    expected = [results(F.linear, each) for each in tensors]
    wrong = []

    def work(i):
        for _ in range(30):
            if any(not off(a, b) <= 1e-13 for a, b in zip(results(onepass.torch.linear, tensors[i]), expected[i])):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_compile
def test_compile():
    tensors = draw(samples.random("compile"), (6, 8), 5)
    compiled = torch.compile(onepass.torch.linear, fullgraph=True, backend="aot_eager")
    check(results(compiled, tensors), results(F.linear, tensors), 1e-13)


@needs_func
def test_transforms():
    input, weight, bias = [tensor.detach() for tensor in draw(samples.random("func"), (6, 8), 5)]
    found = torch.func.vmap(onepass.torch.linear, in_dims=(0, None, None))(input, weight, bias)
    assert off(found, F.linear(input, weight, bias)) <= 1e-13
    found = torch.func.jvp(lambda x: onepass.torch.linear(x, weight, bias), (input,), (input,))[1]
    assert off(found, F.linear(input, weight)) <= 1e-13
    found = torch.func.hessian(lambda w: onepass.torch.linear(input, w, bias).square().sum())(weight)
    expected = torch.func.hessian(lambda w: F.linear(input, w, bias).square().sum())(weight)
    assert off(found, expected) <= 1e-13


@needs_func
def test_batched_gradients():
    tensors = draw(samples.random("batched"), (3, 4), 2)
    found = torch.autograd.functional.jacobian(onepass.torch.linear, tuple(tensors), vectorize=True)
    expected = torch.autograd.functional.jacobian(F.linear, tuple(tensors))
    check(found, expected, 1e-13)


def test_symbolic_trace():
    import torch.fx
    tensors = draw(samples.random("fx"), (6, 8), 5)
    traced = torch.fx.symbolic_trace(lambda x, w, b: onepass.torch.linear(x, w, b) * 2)
    check(results(traced, tensors), results(lambda *a: F.linear(*a) * 2, tensors), 1e-13)


def test_tf32_is_pytorchs_to_allow():
    """Never on the CPU, whatever the setting."""
    assert matrices.products(torch.ones(1)) == library._native.FP32_FULL
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            assert matrices._allows_tf32() is allowed
            assert matrices.products(torch.ones(1)) == library._native.FP32_FULL
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def imported(products, program="from onepass.torch import matrices"):
    """What a new process prints that imports onepass.torch with $ONEPASS_FP32_PRODUCTS set."""
    return subprocess.run([sys.executable, "-c", program], env=dict(os.environ, ONEPASS_FP32_PRODUCTS=products),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)


def test_products_from_the_environment():
    done = imported("exact")
    assert done.returncode != 0
    assert "ValueError: $ONEPASS_FP32_PRODUCTS: 'exact'; it must be full or split" in done.stdout
    for products in ("", "full", "split"):
        done = imported(products, "import torch; from onepass.torch import linear; x = torch.ones(2, 3); "
                                  "print(linear(x, x).tolist())")
        assert done.stdout == "[[3.0, 3.0], [3.0, 3.0]]\n", done.stdout


# ---- CUDA ------------------------------------------------------------------------------------------------------------


@needs_cuda
def test_split_products_cuda():
    """float32 on tensor cores by two halves: closer to the exact product than PyTorch's, gradients included."""
    done = imported("split", """
import torch, onepass.torch
torch.backends.cuda.matmul.allow_tf32 = False
draw = lambda *shape: torch.randn(*shape, device="cuda", requires_grad=True)
tensors, upstream = [draw(300, 2048), draw(512, 2048)], torch.randn(300, 512, device="cuda")
def results(function, tensors, upstream):
    output = function(*tensors)
    return [output.detach()] + list(torch.autograd.grad(output, tensors, upstream))
exact = results(torch.nn.functional.linear, [t.detach().double().requires_grad_() for t in tensors], upstream.double())
ours, theirs = results(onepass.torch.linear, tensors, upstream), results(torch.nn.functional.linear, tensors, upstream)
off = lambda a, b: float((a.double() - b).norm() / b.norm())
print([off(a, b) < 3.5e-7 and off(a, b) < off(c, b) for a, b, c in zip(ours, exact, theirs)])
""")
    assert done.stdout == "[True, True, True]\n", done.stdout


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_cuda(dtype):
    generator = samples.random("cuda %s" % dtype)
    tensors = draw(generator, (128, 512), 192, dtype, device="cuda")
    upstream = torch.randn(128, 192, generator=generator, dtype=torch.float64).to(device="cuda", dtype=dtype)
    exact = results(F.linear, [samples.leaf(tensor.double()) for tensor in tensors], upstream)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        found, theirs = results(onepass.torch.linear, tensors, upstream), results(F.linear, tensors, upstream)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    for tensor, expected, error in zip(found, exact, [off(a, b) for a, b in zip(theirs, exact)]):
        assert tensor.dtype is dtype
        least = 1e-14 if dtype is torch.float64 else torch.finfo(dtype).eps / 2
        assert off(tensor, expected) <= max(1.25 * error, least), (off(tensor, expected), error)


@needs_cuda
def test_tf32_cuda():
    """Allowed, operands have 11 bits; not allowed, 24."""
    tensors = draw(samples.random("tf32 cuda"), (256, 512), 256, torch.float32, bias=False, device="cuda")
    exact = F.linear(*[tensor.double() for tensor in tensors])
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        assert off(onepass.torch.linear(*tensors), exact) <= 2e-6
        torch.backends.cuda.matmul.allow_tf32 = True
        assert off(onepass.torch.linear(*tensors), exact) <= 2e-3
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@needs_cuda
def test_streams_cuda():
    tensors = draw(samples.random("streams cuda"), (64, 128), 32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = onepass.torch.linear(*tensors)
    torch.cuda.current_stream().wait_stream(stream)
    assert off(found, F.linear(*tensors)) <= 1e-13
