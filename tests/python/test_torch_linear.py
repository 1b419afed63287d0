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
from torch_samples import DTYPES, F, OnCuda, needs_compile, needs_cuda, needs_func, tf32, torch

import onepass.torch
from onepass import _native, fp32, library
from onepass.torch import route

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
    return samples.watched(monkeypatch, "linear", "linear_backward")


def test_signature():
    parameters = inspect.signature(onepass.torch.linear).parameters
    assert list(parameters) == ["input", "weight", "bias", "exact_fp32", "prepared"]
    for name, default in (("exact_fp32", False), ("prepared", None)):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY and parameters[name].default is default


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


# ---- plain calls on the CPU, in one crossing -------------------------------------------------------------------------


def plain(*tensors):
    """The output; True: autograd is to see the call; None: it is somebody else's."""
    return _native.linear(library.LINEAR, *tensors)


def test_plain_calls_begin_with_the_exchange_api():
    """Earlier releases' tensors are read by their attributes, and every call goes through Python."""
    assert route.HAS_PLAIN == (samples.VERSION >= (2, 10))
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    assert (plain(x, w, None) is not None) == route.HAS_PLAIN


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape,outputs", SHAPES + [((2, 1, 3, 1, 2, 1, 1, 5), 4)], ids=str)
def test_plain_calls(shape, outputs, dtype, monkeypatch):
    """The bits and the layout of the longer way, with a bias and without, of parameters, of strided memory."""
    generator = samples.random("plain %s %s" % (shape, dtype))
    x, w, b = (tensor.detach() for tensor in draw(generator, shape, outputs, dtype))
    stepped = torch.zeros(shape[:-1] + (2 * shape[-1],), dtype=dtype)[..., ::2].copy_(x)
    parameters = torch.nn.Parameter(w.t().contiguous().t()), torch.nn.Parameter(b)
    for tensors in ((x, w, b), (x, w, None), (stepped, *parameters)):
        with torch.no_grad():
            found, called = plain(*tensors), onepass.torch.linear(*tensors)
            with monkeypatch.context() as patch:
                patch.setattr(_native, "linear", lambda *arguments: None)
                expected = onepass.torch.linear(*tensors)
        assert (found is not None) == route.HAS_PLAIN
        for output in [called] + [found] * route.HAS_PLAIN:
            assert type(output) is torch.Tensor and torch.equal(output, expected) and not output.requires_grad
            assert output.shape == expected.shape and output.stride() == expected.stride()
    with torch.inference_mode():
        assert onepass.torch.linear(x, w, b).is_inference()


def test_plain_calls_keep_nothing():
    x, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    other = x.to_sparse()

    def counts():
        return [sys.getrefcount(thing) for thing in (x, w, b, other, torch.float32, torch.Tensor)]

    before = counts()
    for _ in range(50):
        assert _native.are_plain((x, w, None)) == route.HAS_PLAIN and not _native.are_plain((x, other))
        assert onepass.torch.linear(x, w, b) is not None and plain(other, w, b) is None and plain(x, w, x) is None
    assert counts() == before


class Class(torch.Tensor):
    pass


def a_function_mode():
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            assert function in (F.linear, onepass.torch.linear), "nobody else asks a tensor for anything"
            return function(*arguments, **(keywords or {}))
    return Mode()


def a_dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            return function(*arguments, **(keywords or {}))
    return Mode()


X, W, B = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3) - 5, torch.arange(4.0)
OTHERS = {
    "a class": lambda: (X.as_subclass(Class), W, B),
    "a class of the bias": lambda: (X, W, B.as_subclass(Class)),
    "negated": lambda: (torch.complex(X, X).conj().imag, W, B),
    "sparse": lambda: (X.to_sparse(), W, None),
    "mkldnn": lambda: (X.to_mkldnn(), W.to_mkldnn(), B.to_mkldnn()),
    "meta": lambda: (X.to("meta"), W.to("meta"), None),
    "two types": lambda: (X, W.double(), B),
    "two types of the bias": lambda: (X, W, B.double()),
    "integers": lambda: (X.long(), W.long(), None),
    "complex": lambda: (torch.complex(X, X), torch.complex(W, W), None),
    "no dimension": lambda: (X[0, 0], W[:, :1], None),
    "a vector as weight": lambda: (X, W[0], None),
    "another depth": lambda: (X[:, :2], W, B),
    "another bias": lambda: (X, W, B[:3]),
    "a matrix as bias": lambda: (X, W, torch.ones(2, 4)),
    "nine dimensions": lambda: (X.reshape(1, 1, 1, 1, 1, 1, 1, 2, 3), W, B),
}


def outcome(function, tensors):
    """A tensor in numbers, or the class of the exception."""
    try:
        made = function(*tensors)
    except Exception as error:
        return type(error)
    if made.layout is not torch.strided:
        made = made.to_dense()
    return (type(made), made.dtype, made.shape) if made.is_meta else (type(made), made.tolist())


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_plain(name):
    """It goes the way it went before: PyTorch's results, and PyTorch's refusals."""
    tensors = OTHERS[name]()
    assert plain(*tensors) is None
    assert outcome(onepass.torch.linear, tensors) == outcome(F.linear, tensors)


@pytest.mark.parametrize("name", OTHERS)
def test_are_plain(name):
    """What the router asks the extension is what it would find out itself."""
    tensors = OTHERS[name]()
    expected = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
                   and not tensor.is_neg() and tensor.device == torch.device("cpu")
                   for tensor in tensors if tensor is not None)
    assert _native.are_plain(tensors) == (expected and route.HAS_PLAIN)
    for rest in ((None,), (torch.nn.Parameter(W), None)):
        assert _native.are_plain(tensors + rest) == (expected and route.HAS_PLAIN)
    assert not _native.are_plain(tensors + (X.to("meta"),)) and not _native.are_plain(tensors + (1.0,))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_plain_calls_that_want_gradients(wanted, monkeypatch):
    """They are known by the same crossing; outputs and gradients have the bits and the layout of the longer way."""
    tensors = draw(samples.random("plain gradients %s" % (wanted,)), (4, 6), 5)
    for i in range(3):
        tensors[i].requires_grad_(i in wanted)
    assert plain(*tensors) is (True if route.HAS_PLAIN else None)
    with torch.no_grad():
        assert isinstance(plain(*tensors), torch.Tensor) == route.HAS_PLAIN
    negated = torch.complex(tensors[0], tensors[0]).conj().imag
    assert plain(negated, *tensors[1:]) is None
    upstream = torch.randn(4, 5, generator=samples.random("plain upstream")).to(tensors[0].dtype)

    def made():
        output = onepass.torch.linear(*tensors)
        return (output,) + torch.autograd.grad(output, [tensors[i] for i in wanted], upstream)

    found = made()
    with monkeypatch.context() as patch:
        patch.setattr(_native, "linear", lambda *arguments: None)
        expected = made()
    assert type(found[0].grad_fn) is type(expected[0].grad_fn)
    for a, b in zip(found, expected):
        assert torch.equal(a, b) and a.stride() == b.stride()


@needs_func
def test_who_looks_on():
    """Nobody is passed by: modes, autocast, traces, transforms, forward mode, and a compiler."""
    for context in (a_function_mode(), a_dispatch_mode(), torch.device("cpu"), torch.autocast("cpu")):
        with context:
            found, made, expected = plain(X, W, B), onepass.torch.linear(X, W, B), F.linear(X, W, B)
        assert found is None and made.dtype is expected.dtype and torch.equal(made, expected)
    seen = []

    def layer(x):
        seen.append(plain(x, W, B))
        return onepass.torch.linear(x, W, B)

    assert torch.equal(torch.func.vmap(layer)(X), F.linear(X, W, B))
    torch.func.grad(lambda x: layer(x).sum())(X)
    with samples.no_warnings():
        assert "linear" in str(torch.jit.trace(layer, X, check_trace=False).graph)
    assert len(seen) >= 3 and all(found is None for found in seen)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        tangent = torch.autograd.forward_ad.unpack_dual(onepass.torch.linear(dual, W, B)).tangent
    assert torch.equal(tangent, F.linear(torch.ones_like(X), W))
    assert plain(X, None, B) is None and plain(X.tolist(), W, B) is None
    assert (plain(X, W, B) is not None) == route.HAS_PLAIN


def test_wrong_calls_of_the_extension():
    for arguments in ((), (library.LINEAR, X, W), (library.LINEAR, X, W, B, None)):
        with pytest.raises(TypeError, match="linear\\(index, input, weight, bias\\)"):
            _native.linear(*arguments)
    with pytest.raises(TypeError, match="are_plain takes a tuple"):
        _native.are_plain([X])
    with pytest.raises(TypeError, match="register_plain"):
        _native.register_plain(torch.Tensor)
    if route.HAS_PLAIN:
        for index in (-1, 1000, library.LINEAR_BACKWARD, library.KL[0]):
            with pytest.raises(ValueError, match="operator: %d; it must be one of 5 tensors and no options" % index):
                _native.linear(index, X, W, B)


# ---- how float32 is multiplied on CUDA -------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [_native.FP32_FULL, _native.FP32_SPLIT, _native.FP32_VENDOR])
def test_tf32_is_pytorchs_to_allow(wanted, monkeypatch):
    """Never on the CPU, never with exact_fp32, whatever the setting."""
    monkeypatch.setattr(route, "_FP32", wanted)
    assert len({_native.FP32_FULL, _native.FP32_TF32, _native.FP32_SPLIT, _native.FP32_VENDOR}) == 4
    for allowed in (False, True):
        with tf32(allowed):
            assert fp32.allows_tf32() is allowed
            assert route.products(OnCuda(torch.float32)) == (_native.FP32_TF32 if allowed else wanted)
            assert route.products(OnCuda(torch.float32), exact_fp32=True) == _native.FP32_VENDOR
            for exact in (False, True):
                assert route.products(torch.ones(1), exact) == _native.FP32_FULL
                for dtype in (torch.float16, torch.bfloat16, torch.float64):
                    assert route.products(OnCuda(dtype), exact) == _native.FP32_FULL


@pytest.fixture
def asked(calls, monkeypatch):
    """What the library was told of products: see samples.products_asked."""
    with samples.products_asked(calls, monkeypatch) as ask:
        yield ask


def exact_fp32(*tensors):
    return onepass.torch.linear(*tensors, exact_fp32=True)


VENDOR_TWICE = [("linear", _native.FP32_VENDOR), ("linear_backward", _native.FP32_VENDOR)]
SPLIT_TWICE = [("linear", _native.FP32_SPLIT), ("linear_backward", _native.FP32_SPLIT)]


@pytest.mark.parametrize("bias", [True, False])
def test_exact_fp32(bias, asked):
    """It reaches forward and backward, and changes nothing on the CPU."""
    tensors = draw(samples.random("exact_fp32 %s" % bias), (6, 8), 5, torch.float32, bias)
    found = results(exact_fp32, tensors)
    assert asked() == VENDOR_TWICE
    expected = results(onepass.torch.linear, tensors)
    assert asked() == SPLIT_TWICE
    assert all(torch.equal(a, b) for a, b in zip(found, expected)) and len(found) == len(expected)
    with torch.no_grad():
        exact_fp32(*tensors)
    assert asked() == VENDOR_TWICE[:1]
    with tf32(True):
        results(exact_fp32, tensors)
        assert asked() == VENDOR_TWICE
        results(onepass.torch.linear, tensors)
        assert asked() == [("linear", _native.FP32_TF32), ("linear_backward", _native.FP32_TF32)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_exact_fp32_is_for_float32(dtype, asked):
    tensors = draw(samples.random("exact_fp32 %s" % dtype), (6, 8), 5, dtype)
    found, expected = results(exact_fp32, tensors), results(onepass.torch.linear, tensors)
    assert asked() == 2 * [("linear", _native.FP32_FULL), ("linear_backward", _native.FP32_FULL)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_exact_fp32_with_autocast(asked):
    """Halves are multiplied as halves; what autocast leaves alone is float32."""
    tensors = draw(samples.random("exact_fp32 autocast"), (6, 8), 5, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = exact_fp32(*tensors)
        expected = onepass.torch.linear(*tensors)
    assert output.dtype is torch.bfloat16 and torch.equal(output, expected)
    assert asked() == 2 * [("linear", _native.FP32_FULL)]
    with torch.autocast("cpu", enabled=False):
        exact_fp32(*tensors)
    assert asked() == VENDOR_TWICE[:1]


@needs_compile
def test_exact_fp32_compiled(asked):
    tensors = draw(samples.random("exact_fp32 compile"), (6, 8), 5, torch.float32)
    expected = results(onepass.torch.linear, tensors)
    asked()
    for function, told in ((exact_fp32, VENDOR_TWICE), (onepass.torch.linear, SPLIT_TWICE)):
        found = results(torch.compile(function, fullgraph=True, backend="aot_eager"), tensors)
        assert asked() == told
        assert all(torch.equal(a, b) for a, b in zip(found, expected))


@needs_compile
def test_exact_fp32_of_the_operators(asked):
    """What an exported graph holds, with the argument and, as in graphs that were made without it, without."""
    tensors = draw(samples.random("exact_fp32 operators"), (6, 8), 5, torch.float32)
    for arguments, told in (((True,), VENDOR_TWICE), ((False,), SPLIT_TWICE), ((), SPLIT_TWICE)):
        results(lambda *t: torch.ops.onepass.linear(*t, *arguments), tensors)
        assert asked() == told
        input, weight, _ = [tensor.detach() for tensor in tensors]
        torch.ops.onepass.linear_backward(torch.ones(6, 5), input, weight, True, *arguments)
        assert asked() == told[1:]


@samples.needs_whole_graphs
def test_exact_fp32_exported(asked):
    class Layer(torch.nn.Linear):
        def forward(self, input):
            return onepass.torch.linear(input, self.weight, self.bias, exact_fp32=True)
    program = torch.export.export(Layer(8, 5), (torch.ones(6, 8),)).module()
    asked()
    program(torch.ones(6, 8))
    assert asked() == VENDOR_TWICE[:1]


def test_exact_fp32_in_pytorchs_own_ways():
    """Classes of tensors, a symbolic trace and, since 2.1, torch.func take the keyword along."""
    import torch.fx
    tensors = draw(samples.random("exact_fp32 others"), (6, 8), 5)
    expected = F.linear(*tensors)

    class Other(torch.Tensor):
        keywords = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is onepass.torch.linear:
                cls.keywords.append(kwargs)
            return super().__torch_function__(function, types, args, kwargs)
    assert off(exact_fp32(tensors[0].as_subclass(Other), *tensors[1:]).as_subclass(torch.Tensor), expected) <= 1e-13
    assert Other.keywords[0] == {"exact_fp32": True}
    traced = torch.fx.symbolic_trace(lambda x, w, b: onepass.torch.linear(x, w, b, exact_fp32=True))
    assert [node.kwargs for node in traced.graph.nodes if node.op == "call_function"] == [{"exact_fp32": True}]
    assert off(traced(*tensors), expected) <= 1e-13
    if samples.VERSION >= (2, 1):
        found = torch.func.vmap(exact_fp32, in_dims=(0, None, None))(*tensors)
        assert off(found, expected) <= 1e-13


def imported(products, program="from onepass.torch import route"):
    """What a new process prints that imports onepass.torch with $ONEPASS_FP32_PRODUCTS set."""
    return subprocess.run([sys.executable, "-c", program], env=dict(os.environ, ONEPASS_FP32_PRODUCTS=products),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)


def test_products_from_the_environment():
    done = imported("exact")
    assert done.returncode != 0
    assert "ValueError: $ONEPASS_FP32_PRODUCTS: 'exact'; it must be full, split or vendor" in done.stdout
    for products, number in (("", _native.FP32_FULL), ("full", _native.FP32_FULL), ("split", _native.FP32_SPLIT),
                             ("vendor", _native.FP32_VENDOR)):
        done = imported(products, "import torch; from onepass.torch import linear, route; x = torch.ones(2, 3); "
                                  "print(linear(x, x).tolist(), route._FP32)")
        assert done.stdout == "[[3.0, 3.0], [3.0, 3.0]] %d\n" % number, done.stdout


def test_the_setting_in_words(monkeypatch):
    for name, words in (("", "full: as accurate as float32, by the library on tensor cores where that is faster"),
                        ("split", "split: as accurate as float32"), ("vendor", "vendor: in float32, by cuBLAS"),
                        ("most", "$ONEPASS_FP32_PRODUCTS: 'most'; it must be full, split or vendor")):
        monkeypatch.setenv("ONEPASS_FP32_PRODUCTS", name)
        with tf32(False):
            assert fp32.description().startswith(words)
    monkeypatch.delenv("ONEPASS_FP32_PRODUCTS")
    with tf32(True):
        assert fp32.description().startswith("tf32: PyTorch's setting allows it: operands are cut to 11 bits")


# ---- CUDA ------------------------------------------------------------------------------------------------------------


@needs_cuda
def test_split_products_cuda():
    """float32 on tensor cores by two halves: closer to the exact product than PyTorch's, gradients included."""
    done = imported("split", """
import torch, onepass.torch
torch.backends.cuda.matmul.allow_tf32 = False
draw = lambda *shape: torch.randn(*shape, device="cuda", requires_grad=True)
tensors, upstream = [draw(1500, 2048), draw(1600, 2048)], torch.randn(1500, 1600, device="cuda")
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
def test_exact_fp32_cuda(monkeypatch):
    """Without tensor cores, gradients too: the same bits whatever PyTorch's setting and the environment say. Where the
    library has its own product (Hopper) the default has other bits and less error."""
    generator = samples.random("exact_fp32 cuda")
    tensors = draw(generator, (1024, 2048), 2048, torch.float32, bias=False, device="cuda")
    upstream = torch.randn(1024, 2048, generator=generator).cuda()
    exact = results(F.linear, [samples.leaf(tensor.double()) for tensor in tensors], upstream)
    monkeypatch.setattr(route, "_FP32", _native.FP32_FULL)
    with tf32(False):
        default, plain = results(onepass.torch.linear, tensors, upstream), results(exact_fp32, tensors, upstream)
        theirs = results(F.linear, tensors, upstream)
    for wanted in (_native.FP32_FULL, _native.FP32_SPLIT, _native.FP32_VENDOR):
        monkeypatch.setattr(route, "_FP32", wanted)
        with tf32(True):
            assert all(torch.equal(a, b) for a, b in zip(results(exact_fp32, tensors, upstream), plain))
    errors = [[off(a, b) for a, b in zip(found, exact)] for found in (default, plain, theirs)]
    print("default, exact_fp32, F.linear:", errors)
    assert all(error <= 2 * of_theirs for error, of_theirs in zip(errors[1], errors[2])), errors
    hopper = torch.cuda.get_device_capability()[0] == 9
    assert [torch.equal(a, b) for a, b in zip(default, plain)] == 3 * [not hopper]
    if hopper:
        assert all(ours < others for ours, others in zip(errors[0], errors[1])), errors


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_cuda(dtype):
    generator = samples.random("cuda %s" % dtype)
    tensors = draw(generator, (128, 512), 192, dtype, device="cuda")
    upstream = torch.randn(128, 192, generator=generator, dtype=torch.float64).to(device="cuda", dtype=dtype)
    exact = results(F.linear, [samples.leaf(tensor.double()) for tensor in tensors], upstream)
    with tf32(False):
        found, theirs = results(onepass.torch.linear, tensors, upstream), results(F.linear, tensors, upstream)
    for tensor, expected, error in zip(found, exact, [off(a, b) for a, b in zip(theirs, exact)]):
        assert tensor.dtype is dtype
        least = 1e-14 if dtype is torch.float64 else torch.finfo(dtype).eps / 2
        assert off(tensor, expected) <= max(1.25 * error, least), (off(tensor, expected), error)


@needs_cuda
def test_tf32_cuda():
    """Allowed, operands have 11 bits; not allowed, 24."""
    tensors = draw(samples.random("tf32 cuda"), (256, 512), 256, torch.float32, bias=False, device="cuda")
    exact = F.linear(*[tensor.double() for tensor in tensors])
    with tf32(False):
        assert off(onepass.torch.linear(*tensors), exact) <= 2e-6
    with tf32(True):
        assert 1e-5 <= off(onepass.torch.linear(*tensors), exact) <= 2e-3


@needs_cuda
def test_streams_cuda():
    tensors = draw(samples.random("streams cuda"), (64, 128), 32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = onepass.torch.linear(*tensors)
    torch.cuda.current_stream().wait_stream(stream)
    assert off(found, F.linear(*tensors)) <= 1e-13
