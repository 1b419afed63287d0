"""Whoever looks on: torch.compile, torch.export, symbolic and jit traces, fake and meta tensors, modes, tensor classes.
Each must see the loss as one operation, and its results must be the eager ones."""

import copy
import io
import pickle

import pytest

import torch_samples as samples
from torch_samples import F, ours, pair, torch

import onepass.torch
from onepass.torch import route

needs_traced = samples.needs_compile
if samples.VERSION >= (2, 1):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    TorchFunctionMode = TorchDispatchMode = object

ALL_REDUCTIONS = ("none", "rows", "sum", "mean", "batchmean")


def loss_of(function, log_target=False, **options):
    def loss(a, b):
        return getattr(onepass.torch, function)(a, b, log_target=log_target, **options)
    return loss


def with_gradients(loss, inputs):
    """(value, gradients to every input)."""
    leaves = [samples.leaf(x) for x in inputs]
    value = loss(*leaves)
    return [value.detach()] + list(torch.autograd.grad(value.sum(), leaves))


def compiled(function, **options):
    torch._dynamo.reset()
    options.setdefault("backend", "aot_eager")
    with samples.no_warnings():
        return torch.compile(function, fullgraph=True, **options)


# ---- torch.compile ---------------------------------------------------------------------------------------------------


@needs_traced
@pytest.mark.parametrize("reduction", ALL_REDUCTIONS)
@pytest.mark.parametrize("function", samples.FUNCTIONS)
def test_compile(function, reduction):
    """No graph break, and the eager bits: value and gradients, recorded or not."""
    inputs = pair(samples.random("compile %s %s" % (function, reduction)), (9, 40), function)
    loss = loss_of(function, reduction=reduction)
    with samples.no_warnings():
        f = compiled(loss)
        for found, expected in zip(with_gradients(f, inputs), with_gradients(loss, inputs)):
            assert torch.equal(found, expected)
        assert torch.equal(f(*inputs), loss(*inputs))
        with torch.no_grad():
            assert torch.equal(f(*inputs), loss(*inputs))


@needs_traced
def test_compile_with_every_option():
    generator = samples.random("compile options")
    inputs = pair(generator, (6, 20), "kl_div", True)
    weights, mask = torch.rand(6, generator=generator), torch.tensor([1, 0, 1, 1, 0, 1]).bool()
    loss = loss_of("kl_div", True, reduction="sum", divisor=3.5, semantics="finite", row_weights=weights, row_mask=mask)
    for found, expected in zip(with_gradients(compiled(loss), inputs), with_gradients(loss, inputs)):
        assert torch.equal(found, expected)


@needs_traced
def test_compile_refuses_what_eager_refuses():
    x, t = pair(samples.random("compile errors"), (3, 4))
    for options in ({"reduction": "avg"}, {"reduction": "sum", "divisor": 0.0}, {"reduction": "sum", "semantics": "x"}):
        with pytest.raises(Exception) as caught:
            compiled(loss_of("kl_div", **options))(x, t)
        assert any(word in str(caught.value) for word in options), str(caught.value)


@needs_traced
@pytest.mark.parametrize("shapes", [((3, 5), (3, 5)), ((3, 5), (5,)), ((1, 5), (3, 5)), ((3, 5), ())], ids=str)
def test_compile_with_dynamic_shapes(shapes):
    """One graph for all sizes, with broadcasting too: batchmean's divisor is a size."""
    generator = samples.random("dynamic %s" % (shapes,))
    loss = loss_of("kl_div_probs", reduction="batchmean")
    f = compiled(loss, dynamic=True)

    def check(grow):
        sizes = [tuple(n if n == 1 else n + grow for n in shape) for shape in shapes]
        inputs = [samples.probabilities(generator, size) for size in sizes]
        for found, expected in zip(with_gradients(f, inputs), with_gradients(loss, inputs)):
            assert torch.allclose(found, expected, rtol=1e-6, atol=0)

    check(0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for grow in (1, 4, 30):
            check(grow)


@needs_traced
def test_compile_under_autocast():
    x, t = pair(samples.random("compile, autocast"), (5, 8), dtypes=(torch.bfloat16,) * 2)
    loss = loss_of("kl_div", reduction="batchmean")
    f = compiled(loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = with_gradients(f, (x, t)), with_gradients(loss, (x, t))
    assert expected[0].dtype == torch.float32
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected))


@samples.needs_func_in_graphs
def test_compile_with_transforms_inside():
    p, t = pair(samples.random("compile, func"), (4, 3, 5), "kl_div_probs")
    loss = loss_of("kl_div_probs")
    for function in (torch.func.grad(loss), torch.func.vmap(loss)):
        with samples.no_warnings():  # there vmap takes PyTorch's own slow way, and PyTorch says so
            assert torch.allclose(compiled(function)(p, t), function(p, t), rtol=1e-6)


@samples.needs_func_in_graphs
@pytest.mark.parametrize("name", ["grad of grad", "jvp", "jacfwd", "hessian", "vmap of grad"])
def test_compile_with_derivatives_inside(name):
    """None of them is lost: a compiled one is the eager one."""
    func, loss = torch.func, loss_of("kl_div_probs")
    rows = loss_of("kl_div_probs", reduction="rows")
    function = {
        "grad of grad": func.grad(lambda p, t: func.grad(loss, 1)(p, t).square().sum()),
        "jvp": lambda p, t: func.jvp(lambda q: loss(q, t), (p,), (t,))[1],
        "jacfwd": lambda p, t: func.jacfwd(rows)(p, t),
        "hessian": lambda p, t: func.hessian(loss)(p, t),
        "vmap of grad": func.vmap(func.grad(loss)),
    }[name]
    p, t = pair(samples.random("compile, " + name), (3, 5), "kl_div_probs")
    options = {}
    if name == "hessian" and samples.VERSION == (2, 4):
        # AOTAutograd has no Jacobian within a Jacobian there, of PyTorch's operations neither: Dynamo's graph is run.
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="Cannot access storage of TensorWrapper"):
            compiled(lambda p, t: func.hessian(lambda q: (q * q * t).sum())(p))(p, t)
        options["backend"] = "eager"
    with samples.no_warnings():
        found, expected = compiled(function, **options)(p, t), function(p, t)
    assert bool(expected.any()) and torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@samples.needs_func_in_graphs
@pytest.mark.parametrize("name", ["jacfwd", "hessian"])
def test_compile_what_torch_func_returns(name):
    """The function that jacfwd or hessian returns as what is compiled, with nothing around it. The compiler of 2.4
    takes a function of PyTorch's within it for the one it was given, and raises, whichever that one is."""
    def squares(p, t):
        return (p * p * t).sum(-1 if name == "jacfwd" else None)

    transform = getattr(torch.func, name)
    p, t = pair(samples.random("compile, bare " + name), (3, 5), "kl_div_probs")
    ours = transform(loss_of("kl_div_probs", reduction="rows" if name == "jacfwd" else "batchmean"))
    if samples.VERSION == (2, 4):
        for function in (transform(squares), ours):
            with pytest.raises(torch._dynamo.exc.ArgsMismatchError, match="func = 'push_jvp'"):
                compiled(function)(p, t)
        return
    with samples.no_warnings():
        found, expected = compiled(ours)(p, t), ours(p, t)
    assert bool(expected.any()) and torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@samples.needs_func_in_graphs
@pytest.mark.parametrize("semantics", ["strict", "finite"])
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("function", samples.FUNCTIONS)
def test_compile_with_gradients_inside(function, log_target, semantics):
    """Every form, with weights, a mask and elements that are 0. A gradient to targets is log t - log p + 1, which cancels:
    its error is that of its terms, and logarithms of these probabilities are below 4.7 (e**3 by six columns)."""
    atol = 4 * torch.finfo(torch.float32).eps * (1 + 2 * 4.7)
    generator = samples.random("compile, grad %s %s %s" % (function, log_target, semantics))
    p, t = pair(generator, (4, 6), function, log_target)
    if semantics == "finite" or not log_target:  # the logarithm of 0 is NaN's in strict semantics
        t[0, 1] = t[3, :] = float("-inf") if log_target else 0.0
    if semantics == "finite":
        p[0, 1] = float("-inf") if function == "kl_div" else 0.0
    p[1, 0] = float("nan")  # masked
    weights, mask = torch.rand(4, generator=generator), torch.tensor([1, 0, 1, 1]).bool()
    for reduction in ("batchmean", "rows"):
        loss = loss_of(function, log_target, reduction=reduction, row_weights=weights, row_mask=mask,
                       semantics=semantics)
        gradient = torch.func.grad_and_value(lambda a, b: loss(a, b).sum(), (0, 1))
        (found, value), (expected, exact) = compiled(gradient)(p, t), gradient(p, t)
        assert torch.allclose(value, exact, rtol=1e-6, atol=atol) and bool(torch.isfinite(exact))
        for a, b in zip(found, expected):
            assert bool((torch.isclose(a, b, rtol=1e-6, atol=atol) | ~torch.isfinite(b)).all())
            assert torch.equal(torch.isfinite(a), torch.isfinite(b))


class Model(torch.nn.Module):
    """A network with the loss inside and work on both sides of it."""

    def __init__(self, kind):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(12, 30), torch.nn.GELU(), torch.nn.Linear(30, 40))
        self.loss = kind(reduction="batchmean")

    def forward(self, data, targets):
        x = self.layers(data).log_softmax(-1)
        return self.loss(x, targets) * 2 + x.square().mean()


@needs_traced
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_a_model(backend):
    """Parameters' gradients as with PyTorch's own loss, eager; then without gradients."""
    generator = samples.random("compile a model %s" % backend)
    data, targets = torch.randn(8, 12, generator=generator), samples.probabilities(generator, (8, 40))
    torch.manual_seed(samples.SEED)
    theirs = Model(torch.nn.KLDivLoss)
    model = copy.deepcopy(theirs)
    model.loss = onepass.torch.KLDivLoss(reduction="batchmean")
    f = compiled(model, backend=backend)
    value, expected = f(data, targets), theirs(data, targets)
    value.backward()
    expected.backward()
    assert torch.isclose(value, expected, rtol=1e-5)
    for a, b in zip(model.parameters(), theirs.parameters()):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert torch.isclose(f(data, targets), expected, rtol=1e-5)


# ---- torch.export and make_fx ----------------------------------------------------------------------------------------


def targets_of(graph):
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@needs_traced
@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    """The loss is one node of the exported graph, which a file can carry."""
    if samples.VERSION < (2, 2 if strict else 3):
        pytest.skip("PyTorch %d.%d has no shapes that vary in such an export" % samples.VERSION)
    generator = samples.random("export")
    data, targets = torch.randn(8, 12, generator=generator), samples.probabilities(generator, (8, 40))
    torch.manual_seed(samples.SEED)
    model = Model(onepass.torch.KLDivLoss)
    batch = torch.export.Dim("batch", min=2)
    with samples.no_warnings():
        program = torch.export.export(model, (data, targets), strict=strict, dynamic_shapes=({0: batch}, {0: batch}))
    found = [name for m in program.graph_module.modules() if hasattr(m, "graph") for name in targets_of(m.graph)]
    assert found.count("onepass.kl.default") == 1
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, torch.export.load(file)):
        assert torch.allclose(exported.module()(data, targets), model(data, targets), rtol=1e-6)
        assert torch.allclose(exported.module()(data[:3], targets[:3]), model(data[:3], targets[:3]), rtol=1e-6)


@needs_traced
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    if mode == "symbolic" and samples.VERSION < (2, 2):
        pytest.skip("PyTorch %d.%d makes no such graph of an operator that Python registered" % samples.VERSION)
    inputs = pair(samples.random("make_fx"), (4, 6), "kl_div_probs")
    loss = loss_of("kl_div_probs")
    graph = make_fx(loss, tracing_mode=mode)(*inputs)
    assert targets_of(graph.graph) == ["onepass.kl.default"]
    assert torch.equal(graph(*inputs), loss(*inputs))
    gradient = torch.func.grad(loss, (0, 1))
    graph = make_fx(gradient, tracing_mode=mode)(*inputs)
    assert "onepass.kl_backward.default" in targets_of(graph.graph)
    assert all(map(torch.equal, graph(*inputs), gradient(*inputs)))


@needs_traced
def test_opcheck():
    """PyTorch's own examination of an operator: schema, autograd, fake results, compiled with dynamic shapes.
    (A graph is not differentiated twice: kl_backward has no autograd.)"""
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("PyTorch %d.%d has no torch.library.opcheck" % samples.VERSION)
    generator = samples.random("opcheck")
    tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    weights, mask = torch.rand(4, generator=generator), torch.tensor([1, 0, 1, 1]).bool()
    for form in range(4):
        p, t = (samples.probabilities(generator, (4, 6)) for _ in range(2))
        for reduction in range(5):
            value = torch.ops.onepass.kl(p, t, weights, mask, form, reduction, 0, 0.0, None)
            torch.library.opcheck(torch.ops.onepass.kl.default, (p, t, weights, mask, form, reduction, 1, 0.0, None),
                                  test_utils=tests)
            for to in ((True, True), (True, False), (False, True)):
                arguments = (value, p, t, None, mask, form, reduction, 0, 0.0, None) + to
                torch.library.opcheck(torch.ops.onepass.kl_backward.default, arguments, test_utils=tests[:2])
                torch.library.opcheck(torch.ops.onepass.kl_made.default, arguments[1:], test_utils=tests[:2])
    half = p.bfloat16().t().contiguous().t()
    for arguments in ((half, t, None, None, 0, 4, 0, 0.0, torch.float32), (p, t, None, None, 0, 5, 0, 2.5, None)):
        torch.library.opcheck(torch.ops.onepass.kl.default, arguments, test_utils=tests)


# ---- fake and meta tensors -------------------------------------------------------------------------------------------


@needs_traced
@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_tensors_without_numbers(kind):
    """The results' shapes, types and strides, forward and backward, for every reduction: those of real ones."""
    for types in ((torch.float32, torch.float32), (torch.float16, torch.bfloat16), (torch.bfloat16, torch.float64)):
        real = pair(samples.random("fake"), (4, 6), "kl_div_probs", dtypes=types)
        real = [real[0].t().contiguous().t(), real[1]]
        mode = FakeTensorMode() if kind == "fake" else None
        inputs = [mode.from_tensor(x) if mode else x.to("meta") for x in real]
        for reduction in ALL_REDUCTIONS:
            expected, found = (with_gradients(loss_of("kl_div_probs", reduction=reduction), x) for x in (real, inputs))
            for a, b in zip(found, expected):
                assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
                assert a.is_meta or kind == "fake"
    for f in (loss_of("kl_div", reduction="sum"), lambda a, b: F.kl_div(a, b, reduction="sum")):
        with pytest.raises(RuntimeError):
            f(inputs[0], inputs[1][:2])


@needs_traced
def test_fake_mode_itself():
    with FakeTensorMode():
        x, t = torch.randn(30000, 50000), torch.rand(30000, 50000)  # 6 GB each, if they were real
        x.requires_grad_()
        value = onepass.torch.kl_div(x, t, reduction="batchmean")
        gradient, = torch.autograd.grad(value, x)
    assert value.shape == () and gradient.shape == (30000, 50000)


# ---- modes and tensor classes ----------------------------------------------------------------------------------------


class SeesOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@needs_traced
@pytest.mark.parametrize("shape", [(4, 6), (100, 100)], ids=str)
def test_dispatch_modes(shape):
    """A mode sees forward and backward as operators, also if it is entered in between."""
    inputs = [samples.leaf(x) for x in pair(samples.random("dispatch modes"), shape, "kl_div_probs")]
    expected = with_gradients(loss_of("kl_div_probs"), inputs)
    with SeesOperators() as forward:
        value = onepass.torch.kl_div_probs(*inputs)
    assert "onepass.kl.default" in forward.names
    with SeesOperators() as backward:
        found = torch.autograd.grad(value, inputs, retain_graph=True)
    assert "onepass.kl_backward.default" in backward.names
    assert all(map(torch.equal, found, expected[1:]))
    assert all(map(torch.equal, torch.autograd.grad(value, inputs), expected[1:]))
    value = onepass.torch.kl_div_probs(*inputs)
    with SeesOperators() as only_backward:
        found = torch.autograd.grad(value, inputs)
    assert "onepass.kl_backward.default" in only_backward.names
    assert all(map(torch.equal, found, expected[1:]))


@needs_traced
def test_flop_counter():
    from torch.utils.flop_counter import FlopCounterMode
    p, t = pair(samples.random("flops"), (4, 6), "kl_div_probs")
    with FlopCounterMode(display=False) as counter:
        value = onepass.torch.kl_div_probs(p, t)
        torch.mm(p, t.t())
    assert torch.equal(value, onepass.torch.kl_div_probs(p, t)) and counter.get_total_flops() == 2 * 4 * 6 * 4


class SeesFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


@needs_traced
def test_function_modes():
    p, t = pair(samples.random("function modes"), (4, 6), "kl_div_probs")
    with SeesFunctions() as mode:
        found = onepass.torch.kl_div_probs(p, t), onepass.torch.kl_div(p, t, reduction="sum")
    assert onepass.torch.kl_div_probs in mode.seen and onepass.torch.kl_div in mode.seen
    assert torch.equal(found[0], onepass.torch.kl_div_probs(p, t))
    assert torch.equal(found[1], onepass.torch.kl_div(p, t, reduction="sum"))
    with torch.device("cpu"):  # a function mode too
        assert torch.equal(found[0], onepass.torch.kl_div_probs(p, t))


class Named(torch.Tensor):
    """A tensor class of somebody's, with nothing but PyTorch's defaults."""


class Refuses(torch.Tensor):
    """A class that answers every function itself."""

    calls = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls.append((function, kwargs))
        return "answered"


@pytest.mark.parametrize("shape", [(4, 6), (100, 100)], ids=str)
def test_tensor_classes(shape, monkeypatch):
    """Results have the class, as those of PyTorch's functions have; plain tensors afterwards have none of it."""
    monkeypatch.setattr(route, "_scalars", {})
    p, t = pair(samples.random("classes"), shape, "kl_div_probs")
    for reduction in ALL_REDUCTIONS:
        leaf = p.as_subclass(Named).requires_grad_()
        found = ours("kl_div_probs", leaf, t, reduction=reduction)
        assert type(found) is Named and type(F.kl_div(leaf, t, reduction="sum")) is Named
        gradient, = torch.autograd.grad(found.sum(), leaf)
        plain = ours("kl_div_probs", p, t, reduction=reduction)
        assert type(plain) is torch.Tensor and torch.equal(found.detach().as_subclass(torch.Tensor), plain)
        expected = with_gradients(loss_of("kl_div_probs", reduction=reduction), (p, t))[1]
        assert torch.equal(gradient.as_subclass(torch.Tensor), expected)


def test_tensor_classes_with_an_answer_of_their_own():
    p, t = pair(samples.random("answers"), (4, 6), "kl_div_probs")
    for function in (onepass.torch.kl_div, onepass.torch.kl_div_probs):
        for inputs in ((p.as_subclass(Refuses), t), (p, t.as_subclass(Refuses))):
            Refuses.calls.clear()
            assert function(*inputs, reduction="sum", semantics="finite") == "answered"
            (seen, kwargs), = Refuses.calls
            assert seen is function and kwargs["semantics"] == "finite" and kwargs["reduction"] == "sum"


def test_parameters_are_plain():
    p, t = pair(samples.random("parameters"), (100, 100), "kl_div_probs")
    parameter = torch.nn.Parameter(p.clone())
    value = onepass.torch.kl_div_probs(parameter, t)
    value.backward()
    assert type(value) is torch.Tensor and type(parameter.grad) is torch.Tensor
    assert torch.equal(parameter.grad, with_gradients(loss_of("kl_div_probs"), (p, t))[1])


# ---- symbolic and jit traces -----------------------------------------------------------------------------------------


class Traced(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 10)
        self.loss = onepass.torch.KLDivLoss(reduction="batchmean")

    def forward(self, data, targets):
        x = self.layer(data)
        return (self.loss(x.log_softmax(-1), targets) +
                onepass.torch.kl_div_probs(x.softmax(-1), targets, reduction="sum"))


def test_symbolic_trace():
    """The calls stay whole, and with them their gradients; the trace can be copied, pickled and traced again."""
    generator = samples.random("symbolic trace")
    data, targets = torch.randn(5, 6, generator=generator), samples.probabilities(generator, (5, 10))
    torch.manual_seed(samples.SEED)
    model = Traced()
    model(data, targets).backward()
    traced = torch.fx.symbolic_trace(model)
    calls = [getattr(node.target, "__name__", "") for node in traced.graph.nodes if node.op == "call_function"]
    assert calls.count("kl_div") == 1 and calls.count("kl_div_probs") == 1
    expected = model(data, targets)
    for other in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced)), torch.fx.symbolic_trace(traced)):
        other.zero_grad()
        value = other(data, targets)
        value.backward()
        assert torch.equal(value, expected)
        for a, b in zip(other.parameters(), model.parameters()):
            assert torch.equal(a.grad, b.grad) and a.grad.any()
        model(data, targets)


def test_jit_trace():
    """Right for other numbers than it was traced with, or an error: never a number that was baked in."""
    generator = samples.random("jit trace")
    for shape in ((4, 6), (100, 100)):
        inputs = pair(generator, shape, "kl_div_probs")
        others = pair(generator, shape, "kl_div_probs")
        for wants in (False, True):
            example = [x.clone().requires_grad_(wants) for x in inputs]
            with samples.no_warnings():
                traced = torch.jit.trace(loss_of("kl_div_probs"), example, check_trace=False)
                found = with_gradients(traced, others)
                value = traced(*others)
            expected = with_gradients(loss_of("kl_div_probs"), others) + [onepass.torch.kl_div_probs(*others)]
            for a, b in zip(found + [value], expected):
                if route.HAS_TRACED:
                    assert torch.equal(a, b)
                else:  # PyTorch's own operations
                    assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_jit_trace_of_a_module():
    """Two losses of one module, right for other numbers."""
    generator = samples.random("jit trace of a module")
    torch.manual_seed(samples.SEED)
    model = Traced()
    data, others = (torch.randn(5, 6, generator=generator) for _ in range(2))
    targets = samples.probabilities(generator, (5, 10))
    with samples.no_warnings():
        traced = torch.jit.trace(model, (data, targets), check_trace=False)
        found, expected = traced(others, targets), model(others, targets)
    found.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    expected.backward()
    assert torch.allclose(found, expected, rtol=1e-6)
    for a, b in zip(gradients, model.parameters()):
        assert bool(b.grad.any()) and torch.allclose(a, b.grad, rtol=1e-5, atol=1e-7)


def test_jit_script_is_refused():
    with samples.no_warnings(), pytest.raises(Exception):
        torch.jit.script(onepass.torch.kl_div)
