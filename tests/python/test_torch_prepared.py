"""Prepared weights without a GPU: who may prepare what, which calls are refused, and how they reach the library. There
a stand-in (prepared_samples.copies) takes a copy of the weight for a prepared one and multiplies with that copy, so
that a call which used the wrong one, or none, would show. test_torch_prepared_cuda.py has the library's own."""

import copy
import gc
import io
import pickle
import weakref

import pytest

import torch_samples as samples
from prepared_samples import COLUMNS, DEPTH, OPERATORS, ROWS, draw, linear, results, same
from prepared_samples import copies  # noqa: F401: a fixture
from torch_samples import needs_compile, needs_func, tf32, torch

import onepass
import onepass.torch
from onepass import _native, library
from onepass.torch import LinearBatchNormSoftmax, prepare_weight, prepared_weights, route

every_operator = pytest.mark.parametrize("operator", OPERATORS)


def upstream(tensors):
    return torch.randn(tensors[0].shape[0], tensors[1].shape[0])


def written_to(weight, number=1.0):
    with torch.no_grad():
        weight.add_(number)


# ---- what is refused by prepare_weight -------------------------------------------------------------------------------


def test_prepare_refuses():
    """On this machine, as it is: the first reason is named."""
    for weight, error, words in (
            (torch.ones(5, 8), onepass.Unsupported, "on cpu; only products on CUDA"),
            (torch.ones(5, 8, dtype=torch.float64), onepass.Unsupported, "on cpu; only products on CUDA"),
            (torch.ones(5, 8, device="meta"), onepass.Unsupported, "on meta; only products on CUDA"),
            ([1.0], TypeError, "list; it must be a tensor"), (None, TypeError, "NoneType; it must be a tensor")):
        with pytest.raises(error, match="^prepare_weight: weight: " + words):
            prepare_weight(weight)
    head = LinearBatchNormSoftmax(8, 5)
    with pytest.raises(onepass.Unsupported, match="^prepare_weight: weight: on cpu"):
        head.prepare()
    assert head.prepared is None


def test_prepare_refuses_where_products_are(copies, monkeypatch):
    class Other(torch.Tensor):
        pass
    for weight, error, words in (
            (torch.ones(5, 8).double(), onepass.InvalidArgument, "torch.float64; it must be torch.float32"),
            (torch.ones(5, 8).bfloat16(), onepass.InvalidArgument, "torch.bfloat16; it must be torch.float32"),
            (torch.ones(8), onepass.InvalidArgument, r"shape \[8\]; it must be \[N, K\]"),
            (torch.ones(2, 3, 4), onepass.InvalidArgument, r"shape \[2, 3, 4\]; it must be \[N, K\]"),
            (torch.ones(0, 8), onepass.InvalidArgument, r"shape \[0, 8\]; it must be \[N, K\], neither of them 0"),
            (torch.ones(5, 0), onepass.InvalidArgument, r"shape \[5, 0\]; it must be \[N, K\], neither of them 0"),
            (torch.ones(5, 8).as_subclass(Other), onepass.Unsupported, "Other; it must be a plain strided tensor"),
            (torch.ones(5, 8).to_sparse(), onepass.Unsupported, "Tensor; it must be a plain strided tensor")):
        with pytest.raises(error, match="^prepare_weight: weight: " + words):
            prepare_weight(weight)
    with tf32(True), pytest.raises(onepass.InvalidArgument, match="^prepare_weight: weight: .* allows TF32"):
        prepare_weight(torch.ones(5, 8))
    monkeypatch.setattr(route, "_FP32", _native.FP32_VENDOR)
    with pytest.raises(onepass.InvalidArgument, match="^prepare_weight: weight: .*_PRODUCTS=vendor leaves products to"):
        prepare_weight(torch.ones(5, 8))
    assert copies == []


# ---- the library's entry point ---------------------------------------------------------------------------------------


def test_the_library_on_the_cpu():
    """The extension hands prepared weights to the library, which has no use for them on the CPU, in its own words."""
    x, w, y = torch.ones(6, 8), torch.ones(5, 8), torch.full((6, 5), 7.0)
    planes = torch.zeros(1 << 16, dtype=torch.uint8)
    last = _native.FP32_FULL, 1, route.workspace
    for call in (lambda: library.workspace_size(library.PREPARE_WEIGHT, w, _native.FP32_FULL, 0),
                 lambda: library.call(library.PREPARE_WEIGHT, w, _native.FP32_FULL, 0, planes),
                 lambda: library.call(library.PREPARE_WEIGHT, w, *last)):
        with pytest.raises(onepass.Unsupported, match="^prepare_weight: handle: only one of a CUDA device"):
            call()
    with pytest.raises(onepass.InvalidArgument, match="^linear: prepared: 0x.*; it is for handles of a CUDA device"):
        library.call(library.LINEAR, x, w, None, planes, y, *last)
    with pytest.raises(onepass.InvalidArgument, match="^head: options.prepared_weight: .*; it is for handles of a"):
        library.call(library.HEAD, x, w, *7 * (None,), planes, y, None, None, None, 0, 0, 1e-5, 0.0, *last)
    assert bool((y == 7).all())
    library.call(library.LINEAR, x, w, None, None, y, *last)
    assert bool((y == 8).all())


def test_wrong_arguments_of_the_extension():
    w, prepare = torch.ones(5, 8), library.PREPARE_WEIGHT
    planes = torch.zeros(100, dtype=torch.uint8)
    for call, words in ((lambda: library.call(prepare, None, 0, 0, planes), "prepare_weight: weight: None; it is req"),
                        (lambda: library.call(prepare, w, 0, 0), "call of prepare_weight takes 5 arguments, not 4"),
                        (lambda: library.workspace_size(prepare, None, 0, 0), "prepare_weight: weight: None; it is"),
                        (lambda: library.workspace_size(prepare, w), "of prepare_weight takes 4 arguments, not 2"),
                        (lambda: library.workspace_size(prepare, w, "full", 0), "int")):
        with pytest.raises(TypeError, match=words):
            call()
    with pytest.raises(ValueError, match="products: 4294967296; it must fit 32 bits"):
        library.workspace_size(prepare, w, 1 << 32, 0)
    for wrong, words in ((w, "2 dimensions, elements of 32 bits"), (planes[::2], "it must be contiguous uint8"),
                         (planes.view(2, 50), "2 dimensions"), (planes.to(torch.int8), "it must be contiguous uint8")):
        with pytest.raises(ValueError, match="^workspace: .*" + words):
            library.call(prepare, w, 0, 0, wrong)


# ---- what is used ----------------------------------------------------------------------------------------------------


@every_operator
def test_the_prepared_weight_is_used(operator, copies):
    """And by forward alone: a backward pass has the weight itself."""
    tensors, call, name = draw("used " + operator), OPERATORS[operator], operator.split("-")[0]
    grad = upstream(tensors)
    expected = results(call, tensors, grad)
    assert copies == []
    prepared = prepare_weight(tensors[1])
    assert same(results(call, tensors, grad, prepared=prepared), expected)
    assert copies == ["prepare_weight", name]
    with torch.no_grad():
        assert torch.equal(call(*tensors, prepared=prepared), expected[0])
    assert copies == ["prepare_weight", name, name]
    prepared.planes.zero_()  # nobody but this test does so
    zeros = torch.zeros_like(tensors[1])
    with torch.no_grad():
        assert torch.equal(call(*tensors, prepared=prepared), call(tensors[0], zeros, tensors[2]))
    assert "is_current=True" in repr(prepared) and "shape=[5, 8], device='cpu', bytes=160" in repr(prepared)


@every_operator
def test_second_derivatives(operator, copies):
    tensors, call = draw("second " + operator), OPERATORS[operator]
    prepared = prepare_weight(tensors[1])

    def second(**options):
        first = torch.autograd.grad(call(*tensors, **options).square().sum(), tensors, create_graph=True)
        return list(torch.autograd.grad(sum(gradient.square().sum() for gradient in first), tensors))
    expected = second()
    assert same(second(prepared=prepared), expected) and copies == ["prepare_weight", operator.split("-")[0]]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in expected) and bool(expected[1].any())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_module(training, copies):
    torch.manual_seed(samples.SEED)
    module = LinearBatchNormSoftmax(DEPTH, COLUMNS).train(training)
    x = torch.randn(ROWS, DEPTH)
    plain = copy.deepcopy(module)
    state = list(module.state_dict())
    assert module.prepare() is module and list(module.state_dict()) == state
    assert torch.equal(module(x), plain(x)) and copies == ["prepare_weight", "head"]
    assert same(list(module.buffers()), list(plain.buffers()))
    planes = module.prepared.planes
    written_to(module.gemm.weight), written_to(plain.gemm.weight)
    with pytest.raises(onepass.InvalidArgument, match="^head: prepared: .*version"):
        module(x)
    assert same(list(module.buffers()), list(plain.buffers()))  # a call that is refused counts no batch
    module.prepare()
    assert module.prepared.planes is planes and torch.equal(module(x), plain(x))
    module.gemm.weight = torch.nn.Parameter(torch.randn(COLUMNS, DEPTH))
    with pytest.raises(onepass.InvalidArgument, match="^head: prepared: .*address"):
        module(x)
    module.prepare()
    assert module.prepared.planes is not planes and module.prepared.weight is module.gemm.weight
    del copies[:]
    assert module.forget_prepared() is module and module.prepared is None
    module(x)
    assert copies == []


def test_a_module_that_grew(copies):
    """Another shape in the same parameter: prepare makes room for it."""
    module = LinearBatchNormSoftmax(DEPTH, COLUMNS).eval().prepare()
    module.gemm.weight.data = torch.randn(COLUMNS, 2 * DEPTH)
    assert not module.prepared.can_update
    with pytest.raises(onepass.InvalidArgument, match=r"^update: weight: shape \(5, 8\), now \(5, 16\); .*anew"):
        module.prepared.update()
    with pytest.raises(onepass.InvalidArgument, match="^head: prepared: "):
        module(torch.randn(ROWS, 2 * DEPTH))
    x = torch.randn(ROWS, 2 * DEPTH)
    found = module.prepare()(x)
    assert copies[-1] == "head" and torch.equal(found, module.forget_prepared()(x))


def test_modules_that_do_more(copies):
    module = LinearBatchNormSoftmax(DEPTH, COLUMNS).eval().prepare()
    handle = module.gemm.register_forward_hook(lambda *arguments: None)
    with pytest.raises(onepass.Unsupported, match="^head: prepared: .*left to PyTorch's own operations"):
        module(torch.randn(ROWS, DEPTH))
    handle.remove()
    module(torch.randn(ROWS, DEPTH))
    assert copies == ["prepare_weight", "head"]


# ---- what is stale ---------------------------------------------------------------------------------------------------


def optimiser_step(weight):
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.25).step()


def inference_write(weight):
    with torch.inference_mode():
        weight.add_(1)


def loaded(weight):
    layer = torch.nn.Linear(DEPTH, COLUMNS, bias=False)
    layer.weight = weight
    layer.load_state_dict({"weight": torch.randn(COLUMNS, DEPTH)})


def replaced(weight):
    weight.data = torch.randn(COLUMNS, DEPTH)


def transposed(weight):
    weight.data = torch.randn(DEPTH, COLUMNS).t()


CHANGES = {
    "in place": (written_to, "version"), "by a view": (lambda weight: written_to(weight[1:2]), "version"),
    "by its detached self": (lambda weight: written_to(weight.detach()), "version"),
    "by an optimiser": (optimiser_step, "version"), "in inference mode": (inference_write, "version"),
    "by load_state_dict": (loaded, "version"), "elsewhere": (replaced, "address"), "layout": (transposed, "strides"),
}


@every_operator
@pytest.mark.parametrize("change", CHANGES)
def test_stale(change, operator, copies):
    tensors, call = draw("stale %s %s" % (change, operator)), OPERATORS[operator]
    tensors[1] = torch.nn.Parameter(tensors[1].detach())
    prepared = prepare_weight(tensors[1])
    call(*tensors, prepared=prepared)
    function, words = CHANGES[change]
    function(tensors[1])
    assert not prepared.is_current and prepared.can_update
    used = len(copies)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises(onepass.InvalidArgument, match="^%s: prepared: .*%s .*now" % (
                operator.split("-")[0], words)):
            call(*tensors, prepared=prepared)
    assert len(copies) == used
    prepared.update()
    grad = upstream(tensors)
    assert prepared.is_current
    assert same(results(call, tensors, grad, prepared=prepared), results(call, tensors, grad))
    assert copies[used:] == ["prepare_weight", operator.split("-")[0]]


@every_operator
def test_another_weight(operator, copies):
    tensors, call = draw("another " + operator), OPERATORS[operator]
    prepared = prepare_weight(tensors[1])
    x, weight, vector = tensors
    wide = torch.randn(COLUMNS, 2 * DEPTH)
    for given, words in ((weight.detach().clone(), "address"), (weight.detach().t().contiguous().t(), "strides"),
                         (torch.randn(COLUMNS, DEPTH), "address"), (wide[:, :DEPTH], "strides")):
        with pytest.raises(onepass.InvalidArgument, match="^%s: prepared: .*%s .*must be the call's weight as it is" % (
                operator.split("-")[0], words)):
            call(x, given, vector, prepared=prepared)
    with pytest.raises(onepass.InvalidArgument, match=r"shape \(5, 8\), now \(4, 8\)"):
        call(x, weight[:4], vector[:4], prepared=prepared)
    assert copies == ["prepare_weight"]
    call(x, weight.detach(), vector, prepared=prepared)  # the same memory, and counted with it
    call(x, weight.view_as(weight), vector, prepared=prepared)
    assert len(copies) == 3


def test_data_is_counted_apart(copies):
    """weight.data has a count of its own: one of the two was written to, and it cannot be known which."""
    x, weight, vector = draw("data")
    prepared = prepare_weight(weight.data)
    linear(x, weight, vector, prepared=prepared)
    written_to(weight)
    with pytest.raises(onepass.InvalidArgument, match="version 0, now 1"):
        linear(x, weight, vector, prepared=prepared)
    x, weight, vector = draw("data the other way round")
    prepared = prepare_weight(weight)
    linear(x, weight.data, vector, prepared=prepared)
    written_to(weight)
    assert weight.data._version == 0
    with pytest.raises(onepass.InvalidArgument, match="version 0, now 1"):
        linear(x, weight.data, vector, prepared=prepared)


def test_inference_tensors(copies):
    """They count nothing: address, shape and strides are what is known."""
    with torch.inference_mode():
        x, weight, vector = [torch.randn(size) for size in ((ROWS, DEPTH), (COLUMNS, DEPTH), (COLUMNS,))]
        prepared = prepare_weight(weight)
        first = linear(x, weight, vector, prepared=prepared)
        assert torch.equal(first, linear(x, weight, vector))
        weight.add_(1)
        assert prepared.is_current and torch.equal(linear(x, weight, vector, prepared=prepared), first)
        prepared.update()
        assert torch.equal(linear(x, weight, vector, prepared=prepared), linear(x, weight, vector))
        with pytest.raises(onepass.InvalidArgument, match="address"):
            linear(x, weight.clone(), vector, prepared=prepared)


def test_prepared_in_inference_mode(copies):
    tensors = draw("made in inference mode")
    grad = upstream(tensors)
    with torch.inference_mode():
        prepared = prepare_weight(tensors[1])
    assert same(results(linear, tensors, grad, prepared=prepared), results(linear, tensors, grad))
    written_to(tensors[1])
    prepared.update()
    assert same(results(linear, tensors, grad, prepared=prepared), results(linear, tensors, grad))


# ---- which calls cannot use one --------------------------------------------------------------------------------------


@every_operator
def test_calls_that_cannot(operator, copies, monkeypatch):
    tensors, call, name = draw("cannot " + operator), OPERATORS[operator], operator.split("-")[0]
    prepared = prepare_weight(tensors[1])

    def refuses(error, words, tensors=tensors, prepared=prepared, **options):
        with pytest.raises(error, match="^%s: prepared: %s" % (name, words)):
            call(*tensors, prepared=prepared, **options)
    refuses(onepass.InvalidArgument, "exact_fp32=True or .* leaves products to cuBLAS; only the library's own",
            exact_fp32=True)
    with tf32(True):
        refuses(onepass.InvalidArgument, "PyTorch's setting allows TF32")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        refuses(onepass.InvalidArgument, r"given with a weight of torch.bfloat16 \(autocast casts weights\)")
    for dtype in (torch.float64, torch.bfloat16):
        refuses(onepass.InvalidArgument, "given with a weight of %s" % dtype, [t.detach().to(dtype) for t in tensors])
    mixed = [tensors[0].double()] + tensors[1:]
    refuses(onepass.Unsupported, "given to a call that is left to PyTorch's own operations", mixed)
    for wrong in (prepared.planes, tensors[1], True):
        refuses(TypeError, "%s; it must be what onepass.torch.prepare_weight returns" % type(wrong).__name__,
                prepared=wrong)
    monkeypatch.setattr(route, "_FP32", _native.FP32_VENDOR)
    refuses(onepass.InvalidArgument, "exact_fp32=True or .*_PRODUCTS=vendor leaves products to cuBLAS")
    assert copies == ["prepare_weight"]


@every_operator
def test_other_classes_take_it_along(operator, copies):
    tensors, call = draw("classes " + operator), OPERATORS[operator]

    class Other(torch.Tensor):
        keywords = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function in (onepass.torch.linear, onepass.torch.linear_batch_norm_softmax):
                cls.keywords.append(kwargs)
                return None
            return super().__torch_function__(function, types, args, kwargs)
    other = tensors[0].as_subclass(Other)
    prepared = prepare_weight(tensors[1])
    call(other, *tensors[1:], prepared=prepared)
    call(other, *tensors[1:])
    assert Other.keywords[0]["prepared"] is prepared and "prepared" not in Other.keywords[1]


@needs_func
@every_operator
def test_transforms_cannot(operator, copies):
    x, weight, vector = [tensor.detach() for tensor in draw("transforms " + operator)]
    prepared, call = prepare_weight(weight), OPERATORS[operator]
    def refuses(function, *arguments):
        with pytest.raises(onepass.Unsupported, match="^%s: prepared: .*PyTorch's own" % operator.split("-")[0]):
            function(*arguments)
    refuses(torch.func.grad(lambda x: call(x, weight, vector, prepared=prepared).sum()), x)
    refuses(lambda: torch.func.jvp(lambda x: call(x, weight, vector, prepared=prepared), (x,), (x,)))
    assert copies == ["prepare_weight"]


# ---- its life --------------------------------------------------------------------------------------------------------


def test_it_is_not_copied(copies):
    x, weight, vector = draw("copies")
    prepared = prepare_weight(weight)
    for function in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(onepass.Unsupported, match="^prepare_weight: a prepared weight is of one tensor's memory"):
            function(prepared)
    module = LinearBatchNormSoftmax(DEPTH, COLUMNS).eval().prepare()
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    options = {"weights_only": False} if samples.VERSION >= (1, 13) else {}
    x = x.detach()
    for made in (copy.deepcopy(module), torch.load(file, **options)):
        assert made.prepared is None and module.prepared is not None
        assert torch.equal(made(x), module(x))
    assert copies[-2:] == ["head", "head"] and copies.count("head") == 2


def test_nothing_is_kept(copies):
    """The planes live as long as the object, and no longer; the object lives as long as its user."""
    x, weight, vector = draw("life")
    prepared = prepare_weight(weight)
    output = linear(x, weight, vector, prepared=prepared)
    planes, known = weakref.ref(prepared.planes), len(prepared_weights._living)
    gc.disable()
    try:
        del prepared
        assert planes() is None and len(prepared_weights._living) == known - 1
    finally:
        gc.enable()
    output.sum().backward()


@needs_compile
@pytest.mark.parametrize("name", ["linear", "head"])
def test_bytes_of_somebody_else(name, copies):
    """An operator that is called by hand."""
    x, weight, vector = [tensor.detach() for tensor in draw("bytes " + name)]
    planes = prepare_weight(weight).planes  # the object is gone
    call = {"linear": lambda *last: torch.ops.onepass.linear(x, weight, vector, *last),
            "head": lambda *last: torch.ops.onepass.head(x, weight, *7 * (None,), True, 0.1, 1e-5, torch.float32, *last)
            }[name]
    for given in (planes, planes.clone(), torch.zeros(1 << 16, dtype=torch.uint8)):
        with pytest.raises(onepass.InvalidArgument, match="^%s: prepared: bytes on cpu that prepare_weight did" % name):
            call(False, given)
    prepared = prepare_weight(weight)
    expected = call()
    found = call(False, prepared.planes)
    assert same([found] if name == "linear" else list(found), [expected] if name == "linear" else list(expected))
    assert copies[-1] == name


# ---- graphs ----------------------------------------------------------------------------------------------------------


@samples.needs_whole_graphs
@every_operator
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend, operator, copies):
    """Whole graphs, gradients and all; a graph looks at the weight at every call, and goes on after an update."""
    tensors, call, name = draw("compile %s %s" % (backend, operator)), OPERATORS[operator], operator.split("-")[0]
    grad, prepared = upstream(tensors), prepare_weight(tensors[1])
    torch._dynamo.reset()
    compiled = torch.compile(lambda *tensors: call(*tensors, prepared=prepared), fullgraph=True, backend=backend)
    for _ in range(2):
        expected = results(call, tensors, grad)
        del copies[:]
        assert same(results(compiled, tensors, grad), expected)
        with torch.no_grad():
            assert torch.equal(compiled(*tensors), expected[0])
        assert copies == [name, name]
        written_to(tensors[1])
        for recorded in (True, False):
            with torch.set_grad_enabled(recorded), pytest.raises(
                    onepass.InvalidArgument, match="^%s: prepared: .*version" % name):
                compiled(*tensors)
        prepared.update()


@samples.needs_whole_graphs
def test_compile_a_module(copies):
    torch._dynamo.reset()
    module = LinearBatchNormSoftmax(DEPTH, COLUMNS)
    plain, x = copy.deepcopy(module), torch.randn(ROWS, DEPTH)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for prepares in (False, True, True, False):
        module.prepare() if prepares else module.forget_prepared()
        del copies[:]
        assert torch.equal(compiled(x), plain(x)) and copies == ["head"] * prepares
        assert same(list(module.buffers()), list(plain.buffers()))
        for each in (module, plain):
            written_to(each.gemm.weight)


@samples.needs_whole_graphs
@every_operator
def test_compile_with_transforms_inside(operator, copies):
    """There the operator is PyTorch's operations, as outside of a graph."""
    x, weight, vector = [tensor.detach() for tensor in draw("transforms inside " + operator)]
    prepared, call = prepare_weight(weight), OPERATORS[operator]
    torch._dynamo.reset()
    compiled = torch.compile(torch.func.grad(lambda x: call(x, weight, vector, prepared=prepared).sum()),
                             backend="aot_eager")
    with pytest.raises(Exception, match="%s: prepared: given to a call that is left to" % operator.split("-")[0]):
        compiled(x)
    assert copies == ["prepare_weight"]


@samples.needs_whole_graphs
def test_prepare_is_not_compiled(copies):
    weight = torch.randn(COLUMNS, DEPTH)
    for options in ({}, {"fullgraph": True}):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="prepare_weight: weight: |Observed exception"):
            torch.compile(lambda weight: prepare_weight(weight).planes, backend="eager", **options)(weight)
    assert copies == []


@samples.needs_whole_graphs
@pytest.mark.parametrize("strict", [False, True], ids=["not strict", "strict"])
def test_export(strict, copies):
    """A program in this process is held to the same rules; one that was saved has bytes of nobody's."""
    module = LinearBatchNormSoftmax(DEPTH, COLUMNS).eval().prepare()
    x = torch.randn(ROWS, DEPTH)
    program = torch.export.export(module, (x,), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    assert torch.equal(program.module()(x), module(x))
    written_to(module.gemm.weight)
    with pytest.raises(onepass.InvalidArgument, match="^head: prepared: .*version"):
        program.module()(x)
    with pytest.raises(onepass.InvalidArgument, match="^head: prepared: bytes on cpu that prepare_weight did not make"):
        torch.export.load(file).module()(x)


@pytest.mark.skipif(not hasattr(getattr(torch, "library", None), "opcheck"),
                    reason="PyTorch %d.%d has no torch.library.opcheck" % samples.VERSION)
@pytest.mark.parametrize("grad", [False, True], ids=["no gradients", "gradients"])
def test_opcheck(grad, copies, monkeypatch):
    """With planes and, as in graphs that were made without them, without. opcheck copies what it is given, which calls
    refuse; here they do not."""
    monkeypatch.setattr(prepared_weights, "check", lambda *arguments: None)
    x, weight, vector = [tensor.detach().requires_grad_(grad) for tensor in draw("opcheck")]
    prepared = prepare_weight(weight)
    for last in ((False, prepared.planes), (False, None), (False,), ()):
        torch.library.opcheck(torch.ops.onepass.linear.default, (x, weight, vector, *last))
        for training in (True, False):
            state = torch.zeros(COLUMNS), torch.ones(COLUMNS), torch.tensor(3) if training else None
            arguments = (x, weight, vector, vector, vector, None, *state, training, 0.1, 1e-5, torch.float32, *last)
            torch.library.opcheck(torch.ops.onepass.head.default, arguments)
            if not grad:
                torch.library.opcheck(torch.ops.onepass.head_kept.default, arguments)
    assert "head" in copies and "linear" in copies


@needs_compile
def test_fake_tensors(copies):
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        x, weight, planes = [mode.from_tensor(tensor) for tensor in (
            torch.ones(ROWS, DEPTH), torch.ones(COLUMNS, DEPTH), torch.ones(160, dtype=torch.uint8))]
        assert torch.ops.onepass.linear(x, weight, None, False, planes).shape == (ROWS, COLUMNS)
        with pytest.raises(onepass.Unsupported, match="^prepare_weight: weight: FakeTensor; "):
            prepare_weight(weight)
    assert copies == []
