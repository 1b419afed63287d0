"""The head and linear for whoever looks on: torch.compile, torch.export, opcheck, make_fx, fake and meta tensors,
dispatch modes. Each must see one operator, whose results are the eager ones. The rest, torch.func, jit and symbolic
traces, tensor classes, get PyTorch's own operations."""

import copy
import io

import pytest

import torch_samples as samples
from head_samples import CLOSE, check, draw, draw_step, functional, leaves, models, off, step
from torch_samples import F, needs_compile, needs_cuda, needs_func, torch

import onepass.torch
from onepass.torch import LinearBatchNormSoftmax

if samples.VERSION >= (2, 1):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode
else:
    TorchDispatchMode = object

OPTIONS = [{}, {"bn_momentum": None}, {"bias": False, "affine": False}, {"track_running_stats": False},
           {"scale_shape": ()}, {"scale_shape": (4,)}]


def targets_of(graph):
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    return [name for name in names if "getitem" not in name]


class Graphs:
    """A backend that keeps the names of what is in the graphs: as captured, forward, backward."""

    def __init__(self):
        self.captured, self.forward, self.backward = [], [], []

    def __call__(self, graph, examples):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd
        self.captured += targets_of(graph.graph)

        def keep(names):
            def compile(graph, examples):
                names.extend(targets_of(graph.graph))
                return make_boxed_func(graph.forward)
            return compile
        return aot_autograd(fw_compiler=keep(self.forward), bw_compiler=keep(self.backward))(graph, examples)


def compiled(function, backend="aot_eager", **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def step_of(function, model, x, upstream):
    """head_samples.step of a function that is compiled from the model."""
    model.zero_grad()
    leaf = x.detach().requires_grad_()
    output = function(leaf)
    output.backward(upstream)
    made = {"output": output.detach(), "x": leaf.grad}
    made.update((name, parameter.grad.clone()) for name, parameter in model.named_parameters())
    made.update((name, buffer.clone()) for name, buffer in model.named_buffers())
    return made


def same_bits(found, expected):
    assert list(found) == list(expected)
    for name in expected:
        assert found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name]), name


# ---- torch.compile ---------------------------------------------------------------------------------------------------


@samples.needs_whole_graphs
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compile(options, train):
    """One graph with one operator of ours forward and one backward, and the eager bits: output, gradients, statistics
    and counter after each of three steps. The cumulative average too, which nn.BatchNorm1d cannot be compiled with."""
    generator = samples.random("compile %s %s" % (options, train))
    model, _ = models(generator, 6, 4, **options)
    eager = copy.deepcopy(model)
    model.train(train), eager.train(train)
    graphs = Graphs()
    f = compiled(model, graphs)
    for _ in range(3):
        x, upstream = draw(generator, 8, 6), draw(generator, 8, 4)
        same_bits(step_of(f, model, x, upstream), step(eager, x, upstream))
    assert graphs.captured == ["onepass.head"]
    others = {"aten.detach.default", "aten.copy.default", "aten.copy_.default"}
    assert [name for name in graphs.forward if name not in others] == ["onepass.head_kept.default"]
    assert [name for name in graphs.backward if name not in others] == ["onepass.head_backward.default"]


@samples.needs_whole_graphs
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_compile_without_gradients(train):
    """Nothing is kept for a backward that will not come; statistics are still updated."""
    model, _ = models(samples.random("compile no grad"), 6, 4)
    eager = copy.deepcopy(model)
    model.train(train), eager.train(train)
    graphs = Graphs()
    f = compiled(model, graphs)
    x = torch.rand(8, 6, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(f(x), eager(x))
    assert "onepass.head.default" in graphs.forward and "onepass.head_kept.default" not in graphs.forward
    for found, expected in zip(model.buffers(), eager.buffers()):
        assert torch.equal(found, expected)


@samples.needs_whole_graphs
def test_compile_frozen_weight():
    """Inside a graph, too, the input is kept for the weight's gradient alone."""
    model, _ = models(samples.random("compile frozen"), 6, 4)
    model.gemm.weight.requires_grad_(False)
    seen = []

    def compile(graph, examples):
        from functorch.compile import make_boxed_func
        node, = [node for node in graph.graph.nodes if str(node.target) == "onepass.head_backward.default"]
        seen.append([argument is not None for argument in node.args[5:7]] + [list(node.args[12])])
        return make_boxed_func(graph.forward)

    def backend(graph, examples):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd
        return aot_autograd(fw_compiler=lambda g, _: make_boxed_func(g.forward), bw_compiler=compile)(graph, examples)

    x = torch.rand(8, 6, dtype=torch.float64, requires_grad=True)
    eager = copy.deepcopy(model)
    found, = torch.autograd.grad(compiled(model, backend)(x).square().sum(), x)
    assert seen == [[False, True, [True, False, True, True, True, True]]]
    assert torch.equal(found, torch.autograd.grad(eager(x).square().sum(), x)[0])


@samples.needs_whole_graphs
def test_compile_with_dynamic_shapes():
    generator = samples.random("compile dynamic")
    model, _ = models(generator, 6, 4)
    eager = copy.deepcopy(model)
    f = compiled(model, dynamic=True)

    def compare(rows):
        x, upstream = draw(generator, rows, 6), draw(generator, rows, 4)
        same_bits(step_of(f, model, x, upstream), step(eager, x, upstream))

    compare(8)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (2, 9, 40):
            compare(rows)


@samples.needs_whole_graphs
def test_compile_with_momentum_that_changes():
    """A number that becomes a symbol at its second value."""
    generator = samples.random("compile momentum")
    model, _ = models(generator, 6, 4)
    eager = copy.deepcopy(model)
    f = compiled(model)
    for momentum in (0.1, 0.2, 0.35, 0.01):
        model.bn.momentum = eager.bn.momentum = momentum
        x, upstream = draw(generator, 8, 6), draw(generator, 8, 4)
        same_bits(step_of(f, model, x, upstream), step(eager, x, upstream))


@samples.needs_whole_graphs
def test_compile_under_autocast():
    generator = samples.random("compile autocast")
    model, _ = models(generator, 30, 9, torch.float32)
    eager = copy.deepcopy(model)
    x, upstream = draw(generator, 20, 30, torch.float32), draw(generator, 20, 9, torch.float32)
    f = compiled(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = f(x), eager(x)
    assert found.dtype is expected.dtype and torch.equal(found, expected)
    found.backward(upstream.to(found.dtype)), expected.backward(upstream.to(found.dtype))
    for a, b in zip(model.parameters(), eager.parameters()):
        assert a.grad.dtype is b.grad.dtype and torch.equal(a.grad, b.grad)


@needs_compile
def test_compile_with_inductor():
    """A network around the head and around linear, trained for three steps."""
    generator = samples.random("inductor")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(12, 6)
            self.head = models(generator, 6, 4)[0].float()

        def forward(self, x):
            x = onepass.torch.linear(x, self.first.weight, self.first.bias)
            return self.head(torch.nn.functional.gelu(x)).square().sum()

    model = Network()
    eager = copy.deepcopy(model)
    f = compiled(model, "inductor")
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, eager)]
    for _ in range(3):
        x = draw(generator, 10, 12, torch.float32)
        for function, optimizer in zip((f, eager), optimizers):
            optimizer.zero_grad()
            function(x).backward()
            optimizer.step()
    for (name, found), expected in zip(model.state_dict().items(), eager.state_dict().values()):
        assert off(found, expected) <= 1e-5, name


@needs_compile
def test_compile_with_hooks():
    model, _ = models(samples.random("compile hooks"), 6, 4)
    model.bn.register_forward_hook(lambda module, inputs, output: output * 2)
    x = torch.rand(8, 6, dtype=torch.float64)
    expected = copy.deepcopy(model)(x)
    assert off(compiled(model)(x), expected) <= CLOSE


@needs_compile
def test_compile_what_the_library_does_not_have():
    """Three dimensions: PyTorch's own operations in the graph, as in an eager call."""
    model, _ = models(samples.random("compile ranks"), 6, 4)
    x = torch.rand(5, 4, 6, dtype=torch.float64)
    expected = copy.deepcopy(model)(x)
    graphs = Graphs()
    assert off(compiled(model, graphs)(x), expected) <= CLOSE
    assert "onepass.head" not in graphs.captured


@needs_compile
@pytest.mark.parametrize("scale", [2.5, None])
def test_compile_with_a_number_or_no_scale(scale):
    tensors = leaves(samples.random("compile number"))[:5]

    def value(*tensors):
        return functional(*tensors, scale, True)

    found, expected = compiled(value)(*tensors), value(*tensors)
    assert torch.equal(found, expected)
    for a, b in zip(torch.autograd.grad(found.square().sum(), tensors),
                    torch.autograd.grad(expected.square().sum(), tensors)):
        assert torch.equal(a, b)


@samples.needs_func_in_graphs
@pytest.mark.parametrize("training", [True, False])
def test_compile_with_transforms_inside(training):
    tensors = [tensor.detach() for tensor in leaves(samples.random("compile, func"))]

    def value(scale):
        return functional(*tensors[:5], scale, training).square().sum()

    gradient = compiled(torch.func.grad(value))(tensors[5])
    assert off(gradient, torch.func.grad(value)(tensors[5])) <= CLOSE
    mapped = compiled(torch.func.vmap(value))
    scales = torch.stack([tensors[5], 2 * tensors[5]])
    with samples.no_warnings():  # there vmap takes PyTorch's own slow way, and PyTorch says so
        if training:  # statistics of several samples do not fit into those of one
            with pytest.raises(Exception, match="vmap"):
                mapped(scales)
        else:
            assert off(mapped(scales), torch.stack([value(scale) for scale in scales])) <= CLOSE


@needs_compile
@pytest.mark.parametrize("shape,bias", [((6, 8), True), ((2, 3, 8), False), ((8,), True)], ids=str)
def test_compile_linear(shape, bias):
    generator = samples.random("compile linear %s" % (shape,))
    tensors = [samples.leaf(torch.randn(size, generator=generator))
               for size in (shape, (5, 8)) + (((5,),) if bias else ())]
    graphs = Graphs()
    found, expected = compiled(onepass.torch.linear, graphs)(*tensors), onepass.torch.linear(*tensors)
    assert torch.equal(found, expected)
    upstream = torch.randn(expected.shape, generator=generator)
    for a, b in zip(torch.autograd.grad(found, tensors, upstream), torch.autograd.grad(expected, tensors, upstream)):
        assert torch.equal(a, b)
    assert graphs.captured == ["onepass.linear"]
    assert graphs.forward == ["onepass.linear.default"] and graphs.backward == ["onepass.linear_backward.default"]


# ---- torch.export and make_fx ----------------------------------------------------------------------------------------


@samples.needs_whole_graphs
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("strict", [True, False])
def test_export(strict, train):
    """One node of the exported graph, which a file can carry, for any batch; statistics move on, gradients come."""
    if not strict and samples.VERSION <= (2, 4):
        pytest.skip("PyTorch %d.%d puts hooks on the modules, which are then called as such" % samples.VERSION)
    generator = samples.random("export %s %s" % (strict, train))
    model, _ = models(generator, 6, 4, bn_momentum=None)
    model.train(train)
    eager = copy.deepcopy(model)
    batch = torch.export.Dim("batch", min=2)
    with samples.no_warnings():
        program = torch.export.export(model, (draw(generator, 8, 6),), strict=strict, dynamic_shapes=({0: batch},))
    found = targets_of(program.graph_module.graph)
    assert [name for name in found if not name.startswith("aten.copy")] == ["onepass.head.default"]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for rows in (8, 3):
        x, upstream = draw(generator, rows, 6), draw(generator, rows, 4)
        output = loaded(x)
        loaded.zero_grad()
        output.backward(upstream)
        expected = step(eager, x, upstream)
        assert torch.equal(output, expected["output"])
        for name, parameter in loaded.named_parameters():
            assert torch.equal(parameter.grad, expected[name]), name
        for name, buffer in loaded.named_buffers():
            assert torch.equal(buffer, expected[name]), name


@needs_compile
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    x, weight, bias, gamma, beta, scale = [tensor.detach() for tensor in leaves(samples.random("make_fx"))]

    def value(x, weight, bias, gamma, beta, scale):
        return functional(onepass.torch.linear(x, torch.eye(3, dtype=torch.float64)), weight, bias, gamma, beta, scale,
                          False)

    tensors = (x, weight, bias, gamma, beta, scale)
    graph = make_fx(value, tracing_mode=mode)(*tensors)
    names = [name for name in targets_of(graph.graph) if name.startswith("onepass.")]
    assert names == ["onepass.linear.default", "onepass.head.default"]
    assert torch.equal(graph(*tensors), value(*tensors))


def opcheck(operator, arguments):
    torch.library.opcheck(operator, arguments)


needs_opcheck = pytest.mark.skipif(not hasattr(getattr(torch, "library", None), "opcheck"),
                                   reason="PyTorch %d.%d has no torch.library.opcheck" % samples.VERSION)


@needs_opcheck
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_opcheck_linear(grad, dtype):
    """PyTorch's own examination: schema, autograd, fake results, compiled with dynamic shapes."""
    generator = samples.random("opcheck linear")
    for shape in ((6, 8), (2, 3, 8), (0, 8)):
        x, weight, bias = [torch.randn(size, generator=generator).to(dtype).requires_grad_(grad)
                           for size in (shape, (5, 8), (5,))]
        for arguments in ((bias,), (None,), (bias, True)):
            opcheck(torch.ops.onepass.linear.default, (x, weight, *arguments))
        upstream = torch.randn(shape[:-1] + (5,), generator=generator).to(dtype)
        for arguments in ((x, weight, True), (None, weight, False), (x, None, False), (None, None, True),
                          (x, weight, True, True)):
            arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
            opcheck(torch.ops.onepass.linear_backward.default, (upstream, *arguments))


@needs_opcheck
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_opcheck_head(grad, training):
    generator = samples.random("opcheck head %s" % training)
    count = torch.tensor(3)
    for scale in (1, 4):
        tensors = [tensor.detach().requires_grad_(grad) for tensor in leaves(generator, scale)]
        mean, var = torch.randn(4, generator=generator).double(), torch.rand(4, generator=generator).double()
        few = tensors[:2] + [None] * 4
        for momentum in (0.1, None):
            for inputs in (tensors, few):
                for state in ((mean, var, count if training else None), (None,) * 3):
                    if (training or state[0] is not None) and (momentum is not None or state[2] is not None):
                        arguments = (*inputs, *state, training, momentum, 1e-5, torch.float64, inputs is few)
                        opcheck(torch.ops.onepass.head.default, arguments)
                        arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
                        opcheck(torch.ops.onepass.head_kept.default, arguments)


@needs_opcheck
@pytest.mark.parametrize("training", [True, False])
def test_opcheck_head_backward(training):
    generator = samples.random("opcheck backward %s" % training)
    x, weight, bias, gamma, beta, scale = [tensor.detach() for tensor in leaves(generator, 4)]
    state = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64), None
    made = torch.ops.onepass.head_kept(x, weight, bias, gamma, beta, scale, *state, training, 0.1, 1e-5, torch.float64)
    upstream = draw(generator, 6, 4)
    for asked in (1, 2, 3, 12, 48, 63):
        needs = [bool(asked >> i & 1) for i in range(6)]
        inputs = (x if needs[1] else None, weight if needs[0] else None, bias, gamma, beta, scale)
        opcheck(torch.ops.onepass.head_backward.default, (upstream, *made[:4], *inputs, training, needs))
    opcheck(torch.ops.onepass.head_backward.default, (upstream, *made[:4], *inputs, training, needs, True))


# ---- fake and meta tensors, modes ------------------------------------------------------------------------------------


@needs_compile
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_tensors_without_numbers(kind, train):
    """Shapes, types and strides of real results, forward and backward."""
    generator = samples.random("fake %s" % kind)
    for dtype in (torch.float64, torch.bfloat16):
        real, _ = models(generator, 6, 4, dtype)
        real.train(train)
        x, upstream = draw(generator, 8, 6, dtype), draw(generator, 8, 4, dtype)
        expected = step(real, x, upstream)
        if kind == "meta":
            found = step(copy.deepcopy(real).to("meta"), x.to("meta"), upstream.to("meta"))
        else:
            with FakeTensorMode() as mode:
                blank = LinearBatchNormSoftmax(6, 4, dtype=dtype).train(train)
                found = step(blank, mode.from_tensor(x), mode.from_tensor(upstream))
        assert list(found) == list(expected)
        for name in expected:
            a, b = found[name], expected[name]
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), name


class SeesOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@needs_compile
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_dispatch_modes(train):
    """A mode sees forward and backward as operators, also if it is entered in between; second derivatives come."""
    generator = samples.random("modes")
    model, theirs = models(generator, 6, 4)
    model.train(train), theirs.train(train)
    eager = copy.deepcopy(model)
    x, upstream = draw_step(generator, theirs, 8)
    with SeesOperators() as seen:
        found = step(model, x, upstream)
    assert "onepass.head_kept.default" in seen.names and "onepass.head_backward.default" in seen.names
    same_bits(found, step(eager, x, upstream))
    check(found, step(theirs, x, upstream), train)
    leaf = x.clone().requires_grad_()
    value = eager(leaf).square().sum()
    with SeesOperators() as only_backward:
        found, = torch.autograd.grad(value, leaf)
    assert "onepass.head_backward.default" in only_backward.names
    expected, = torch.autograd.grad(theirs(leaf).square().sum(), leaf, create_graph=True)
    assert off(found, expected) <= CLOSE
    with SeesOperators():
        found, = torch.autograd.grad(model(leaf).square().sum(), leaf, create_graph=True)
        second, = torch.autograd.grad(found.square().sum(), leaf)
    assert off(second, torch.autograd.grad(expected.square().sum(), leaf)[0]) <= 1e-10


@needs_compile
def test_dispatch_modes_linear():
    tensors = [samples.leaf(torch.randn(size, dtype=torch.float64)) for size in ((6, 8), (5, 8), (5,))]
    expected = torch.autograd.grad(F.linear(*tensors).square().sum(), tensors)
    with SeesOperators() as seen:
        found = torch.autograd.grad(onepass.torch.linear(*tensors).square().sum(), tensors)
    assert "onepass.linear.default" in seen.names and "onepass.linear_backward.default" in seen.names
    value = onepass.torch.linear(*tensors).square().sum()
    with SeesOperators() as only_backward:
        again = torch.autograd.grad(value, tensors)
    assert "onepass.linear_backward.default" in only_backward.names
    assert all(off(a, c) <= 1e-13 and torch.equal(a, b) for a, b, c in zip(found, again, expected))


@needs_compile
def test_flop_counter():
    """The products are counted as PyTorch's own are."""
    from torch.utils.flop_counter import FlopCounterMode
    model, theirs = models(samples.random("flops"), 6, 4)
    x = torch.rand(8, 6, dtype=torch.float64, requires_grad=True)
    counted = []
    for function in (model, theirs, lambda x: onepass.torch.linear(x, model.gemm.weight),
                     lambda x: F.linear(x, model.gemm.weight)):
        with FlopCounterMode(display=False) as counter:
            function(x).square().sum().backward()
        counted.append(counter.get_total_flops())
    assert counted == [3 * 2 * 8 * 6 * 4] * 4


# ---- whoever gets PyTorch's own operations ---------------------------------------------------------------------------


@needs_func
def test_transforms():
    tensors = [tensor.detach() for tensor in leaves(samples.random("func"))]

    def value(scale):
        return functional(*tensors[:5], scale, False).square().sum()

    def chain(scale):
        x, weight, bias, gamma, beta = tensors[:5]
        mean, var = torch.linspace(-1, 1, 4, dtype=torch.float64), torch.linspace(0.5, 2, 4, dtype=torch.float64)
        z = F.batch_norm(F.linear(x, weight, bias), mean, var, gamma, beta, False, 0.1, 1e-3)
        return torch.softmax(scale * z, 1).square().sum()

    for transform in (torch.func.grad, torch.func.hessian, torch.func.jacfwd):
        assert off(transform(value)(tensors[5]), transform(chain)(tensors[5])) <= CLOSE
    scales = torch.rand(3, 1, dtype=torch.float64)
    assert off(torch.func.vmap(value)(scales), torch.stack([chain(scale) for scale in scales])) <= CLOSE


@needs_func
def test_batched_gradients():
    tensors = leaves(samples.random("batched"))

    def value(weight, scale):
        return functional(tensors[0], weight, *tensors[2:5], scale, True)

    found = torch.autograd.functional.jacobian(value, (tensors[1], tensors[5]), vectorize=True)
    expected = torch.autograd.functional.jacobian(value, (tensors[1], tensors[5]))
    assert all(off(a, b) <= 1e-11 for a, b in zip(found, expected))


def test_symbolic_trace():
    import torch.fx
    generator = samples.random("fx")
    ours, theirs = models(generator, 6, 4)
    traced = torch.fx.symbolic_trace(ours)
    x, upstream = draw_step(generator, theirs, 8)
    found, expected = step(traced, x, upstream), step(theirs, x, upstream)
    check({name: found[name] for name in expected}, expected, True)


def test_jit_trace():
    ours, theirs = models(samples.random("jit"), 6, 4)
    ours.eval(), theirs.eval()
    x = torch.rand(8, 6, dtype=torch.float64)
    traced = torch.jit.trace(ours, torch.rand(8, 6, dtype=torch.float64))
    assert off(traced(x), theirs(x)) <= CLOSE


# ---- CUDA ------------------------------------------------------------------------------------------------------------


@needs_cuda
@needs_compile
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compile_cuda(options, train):
    generator = samples.random("compile cuda %s %s" % (options, train))
    model, _ = models(generator, 6, 4, device="cuda", **options)
    eager = copy.deepcopy(model)
    model.train(train), eager.train(train)
    graphs = Graphs()
    f = compiled(model, graphs)
    for _ in range(3):
        x, upstream = draw(generator, 8, 6, device="cuda"), draw(generator, 8, 4, device="cuda")
        same_bits(step_of(f, model, x, upstream), step(eager, x, upstream))
    assert graphs.captured == ["onepass.head"]


@needs_cuda
@needs_compile
def test_compile_linear_cuda():
    generator = samples.random("compile linear cuda")
    tensors = [samples.leaf(torch.randn(size, generator=generator).cuda()) for size in ((6, 8), (5, 8), (5,))]
    found, expected = compiled(onepass.torch.linear)(*tensors), onepass.torch.linear(*tensors)
    assert torch.equal(found, expected)
    for a, b in zip(torch.autograd.grad(found.square().sum(), tensors),
                    torch.autograd.grad(expected.square().sum(), tensors)):
        assert torch.equal(a, b)


@needs_cuda
@needs_compile
def test_compile_into_a_graph_cuda():
    """mode="reduce-overhead": captured into a CUDA graph, replayed, with statistics that move on."""
    generator = samples.random("compile graph cuda")
    model, _ = models(generator, 32, 16, torch.float32, device="cuda", bn_momentum=None)
    eager = copy.deepcopy(model)
    torch._dynamo.reset()
    f = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        x, upstream = draw(generator, 8, 32, torch.float32, "cuda"), draw(generator, 8, 16, torch.float32, "cuda")
        found, expected = step_of(f, model, x, upstream), step(eager, x, upstream)
        for name in expected:
            assert off(found[name], expected[name]) <= 1e-5 or name == "gemm.bias", name
