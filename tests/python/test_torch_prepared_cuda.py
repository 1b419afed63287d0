"""Prepared weights on a GPU: the bits of calls without one, forward and backward, through every way that a call takes;
memory, streams, CUDA graphs; and that a weight which was changed is refused. What needs no GPU is in
test_torch_prepared.py."""

import copy
import subprocess
import sys

import pytest

import torch_samples as samples
from prepared_samples import OPERATORS, draw, linear, results, same
from torch_samples import needs_cuda, torch

import onepass
import onepass.torch
from onepass import _native, library
from onepass.torch import LinearBatchNormSoftmax, prepare_weight, route

pytestmark = needs_cuda

every_operator = pytest.mark.parametrize("operator", OPERATORS)

# (rows, depth, columns): by default the library's own product on Hopper, by its three widths of a tile, with depths and
# columns that are no multiples of anything; and two that are left to cuBLAS unless the split is asked for.
LARGE = [(64, 4096, 1100), (100, 2050, 2047), (1024, 1024, 1024)]
SMALL = [(6, 8, 5), (70, 300, 200)]


@pytest.fixture(autouse=True)
def no_tf32():
    with samples.tf32(False):
        yield


@pytest.fixture
def split(monkeypatch):
    """Every float32 product is the library's own."""
    monkeypatch.setattr(route, "_FP32", _native.FP32_SPLIT)


def upstream(tensors):
    return torch.randn(tensors[0].shape[0], tensors[1].shape[0], device="cuda")


def written_to(weight, factor=1.5):
    with torch.no_grad():
        weight.mul_(factor)


def check_same_bits(operator, name, shape):
    tensors, call = draw("%s %s %s" % (name, operator, shape), "cuda", shape), OPERATORS[operator]
    grad, prepared = upstream(tensors), prepare_weight(tensors[1])
    for _ in range(2):
        expected = results(call, tensors, grad)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in expected) and bool(expected[0].any())
        assert same(results(call, tensors, grad, prepared=prepared), expected)
        with torch.no_grad():
            assert torch.equal(call(*tensors, prepared=prepared), expected[0])
        written_to(tensors[1])
        with pytest.raises(onepass.InvalidArgument, match="^%s: prepared: .*version" % operator.split("-")[0]):
            call(*tensors, prepared=prepared)
        prepared.update()
    return tensors, prepared


@every_operator
@pytest.mark.parametrize("shape", LARGE + SMALL, ids=str)
def test_same_bits(shape, operator):
    check_same_bits(operator, "bits", shape)


@every_operator
@pytest.mark.parametrize("shape", LARGE + SMALL, ids=str)
def test_same_bits_split(shape, operator, split):
    """And it is the planes that are multiplied: of others the result is another."""
    tensors, prepared = check_same_bits(operator, "split", shape)
    call = OPERATORS[operator]
    with torch.no_grad():
        expected = call(*tensors, prepared=prepared)
        prepared.planes.zero_()
        assert not torch.equal(call(*tensors, prepared=prepared), expected)
        prepared.update()
        assert torch.equal(call(*tensors, prepared=prepared), expected)


@pytest.mark.parametrize("shape", [(4096, 2048, 256), (300, 64, 64)], ids=str)
def test_of_a_tall_input(shape, split):
    """The operands change places, with a prepared weight and without: it is not used."""
    tensors, prepared = check_same_bits("linear", "tall", shape)
    with torch.no_grad():
        expected = linear(*tensors)
        prepared.planes.zero_()
        assert torch.equal(linear(*tensors, prepared=prepared), expected)


def test_by_default():
    """Large products by default are the library's own and of the planes, on Hopper; elsewhere the planes lie idle."""
    used = torch.cuda.get_device_capability()[0] == 9
    for shape in LARGE:
        tensors = draw("default %s" % (shape,), "cuda", shape)
        prepared = prepare_weight(tensors[1])
        with torch.no_grad():
            expected = linear(*tensors, prepared=prepared)
            prepared.planes.zero_()
            assert torch.equal(linear(*tensors, prepared=prepared), expected) is not used, shape


@every_operator
def test_layouts(operator, split):
    """Of the weight: what the planes hold does not depend on it."""
    tensors, call = draw("layouts " + operator, "cuda", (70, 300, 200)), OPERATORS[operator]
    grad = upstream(tensors)
    for layout, weight in samples.layouts(tensors[1].detach()).items():
        given = [tensors[0], weight.requires_grad_(), tensors[2]]
        prepared = prepare_weight(weight)
        assert same(results(call, given, grad, prepared=prepared), results(call, given, grad)), layout


def test_leading_dimensions(split):
    x, weight, bias = draw("leading", "cuda", (60, 300, 200))
    x = x.detach().reshape(3, 4, 5, 300)
    prepared = prepare_weight(weight)
    assert torch.equal(linear(x, weight, bias, prepared=prepared), linear(x, weight, bias))
    assert torch.equal(linear(x[0, 0, 0], weight, None, prepared=prepared), linear(x[0, 0, 0], weight, None))
    assert linear(x[:0], weight, bias, prepared=prepared).shape == (0, 4, 5, 200)


@every_operator
def test_special_values(operator, split):
    x, weight, vector = draw("special " + operator, "cuda", (70, 300, 200))
    with torch.no_grad():
        weight[3, 5], weight[7, 1], weight[150, 299] = float("inf"), float("nan"), 3e38
        weight[20] = 1e-40
        prepared = prepare_weight(weight)
        found = OPERATORS[operator](x, weight, vector, prepared=prepared)
        assert samples.same(found, OPERATORS[operator](x, weight, vector))
        assert bool(torch.isnan(found).any())


# ---- training and modules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [_native.FP32_FULL, _native.FP32_SPLIT], ids=["full", "split"])
def test_training(mode, monkeypatch):
    """A module that is prepared after every step beside one that never is, then both in eval: no bit differs."""
    monkeypatch.setattr(route, "_FP32", mode)
    generator = samples.random("training %d" % mode)
    module = LinearBatchNormSoftmax(512, 1024).cuda()
    plain = copy.deepcopy(module)
    optimisers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, plain)]
    x = torch.randn(2048, 512, generator=generator).cuda()
    grad = torch.randn(2048, 1024, generator=generator).cuda()
    for _ in range(3):
        module.prepare()
        outputs = [each(x) for each in (module, plain)]
        for output, optimiser in zip(outputs, optimisers):
            optimiser.zero_grad()
            output.backward(grad)
            optimiser.step()
        assert same(outputs[:1], outputs[1:])
        assert same(list(module.state_dict().values()), list(plain.state_dict().values()))
        with pytest.raises(onepass.InvalidArgument, match="^head: prepared: .*version"):
            module(x)
        assert same(list(module.buffers()), list(plain.buffers()))
    planes = module.prepared.planes.data_ptr()
    module.prepare(), module.eval(), plain.eval()
    assert module.prepared.planes.data_ptr() == planes and torch.equal(module(x), plain(x))
    module.double()
    with pytest.raises(onepass.InvalidArgument, match="^head: prepared: given with a weight of torch.float64"):
        module(x.double())
    assert torch.isfinite(module.forget_prepared()(x.double())).all()


def test_inference_mode(split):
    tensors = draw("inference cuda", "cuda", (70, 300, 200))
    expected = results(linear, tensors, torch.ones(70, 200, device="cuda"))
    with torch.inference_mode():
        prepared = prepare_weight(tensors[1])
        assert torch.equal(linear(*tensors, prepared=prepared), expected[0])
    assert same(results(linear, tensors, torch.ones(70, 200, device="cuda"), prepared=prepared), expected)


# ---- memory, streams, graphs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns,depth", [(1024, 4096), (1000, 2050), (1, 1), (130, 64)], ids=str)
def test_memory(columns, depth):
    """Two planes of two bytes an element and a byte for 64 of them, K in whole 64s; nothing besides, nothing after."""
    def rounded(size):
        return -(-size // 256) * 256
    pitch = -(-depth // 64) * 64
    weight = torch.randn(columns, depth, device="cuda")
    prepare_weight(weight)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    prepared = prepare_weight(weight)
    size = 2 * rounded(2 * columns * pitch) + rounded(columns * pitch // 64)
    assert prepared.planes.numel() == size and prepared.planes.data_ptr() % 256 == 0
    assert 0 <= torch.cuda.memory_allocated() - before - size <= 2 << 20  # PyTorch's blocks may be larger
    prepared.update()
    del prepared
    assert torch.cuda.memory_allocated() == before


def test_nothing_waits(split):
    tensors = draw("wait", "cuda", (70, 300, 200))
    grad = upstream(tensors)
    results(linear, tensors, grad, prepared=prepare_weight(tensors[1]))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        prepared = prepare_weight(tensors[1])
        results(linear, tensors, grad, prepared=prepared)
        written_to(tensors[1])
        prepared.update()
        results(linear, tensors, grad, prepared=prepared)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_current_stream(split):
    """Weight, planes and product one after the other on a stream that is late."""
    x, weight, bias = [tensor.detach() for tensor in draw("stream", "cuda", (70, 300, 200))]
    late = torch.full_like(weight, float("nan"))
    expected = linear(x, weight, bias)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        prepare_weight(weight), linear(x, weight, bias)  # what is made at first use
        torch.cuda.synchronize()
        torch.cuda._sleep(int(5e7))
        late.copy_(weight)
        prepared = prepare_weight(late)
        found = linear(x, late, bias, prepared=prepared)
    side.synchronize()
    assert torch.equal(found, expected)


@every_operator
def test_graph(operator, split):
    """A captured call reads the planes as they are when it is replayed: update() writes them where they were. The
    weight is looked at when the call is made, which a replay is not."""
    tensors = [tensor.detach() for tensor in draw("graph " + operator, "cuda", (70, 300, 200))]
    call = OPERATORS[operator]
    prepared = prepare_weight(tensors[1])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(*tensors, prepared=prepared)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call(*tensors, prepared=prepared)
    for _ in range(3):
        expected = call(*tensors)
        output.fill_(float("nan"))
        graph.replay()
        assert torch.equal(output, expected)
        written_to(tensors[1])
        tensors[0].copy_(torch.randn_like(tensors[0]))
        prepared.update()


def test_graph_that_prepares(split):
    """update() can be captured, too: then a replay prepares the weight that it finds."""
    x, weight, bias = [tensor.detach() for tensor in draw("graph prepares", "cuda", (70, 300, 200))]
    prepared = prepare_weight(weight)
    linear(x, weight, bias, prepared=prepared)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.update()
        output = linear(x, weight, bias, prepared=prepared)
    for _ in range(3):
        written_to(weight)
        output.fill_(float("nan"))
        graph.replay()
        assert torch.equal(output, linear(x, weight, bias))


@samples.needs_whole_graphs
@every_operator
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend, operator, split):
    tensors, call = draw("compile %s %s" % (backend, operator), "cuda", (70, 300, 200)), OPERATORS[operator]
    grad, prepared = upstream(tensors), prepare_weight(tensors[1])
    torch._dynamo.reset()
    compiled = torch.compile(lambda *tensors: call(*tensors, prepared=prepared), fullgraph=True, backend=backend)
    for _ in range(2):
        assert same(results(compiled, tensors, grad), results(call, tensors, grad))
        written_to(tensors[1])
        with pytest.raises(onepass.InvalidArgument, match="^%s: prepared: .*version" % operator.split("-")[0]):
            compiled(*tensors)
        prepared.update()


@samples.needs_whole_graphs
def test_compile_into_a_graph():
    """The compiler's own CUDA graphs copy their inputs, the planes too: refused, in a process of its own since a
    capture is broken off."""
    done = subprocess.run([sys.executable, "-c", """
import torch, onepass, onepass.torch
torch.backends.cuda.matmul.allow_tf32 = False
weight, x = torch.randn(200, 300, device="cuda"), torch.randn(70, 300, device="cuda")
prepared = onepass.torch.prepare_weight(weight)
compiled = torch.compile(lambda x: onepass.torch.linear(x, weight, prepared=prepared), mode="reduce-overhead")
try:
    for _ in range(5):
        with torch.no_grad():
            compiled(x)
    print("taken")
except onepass.InvalidArgument as error:
    print(error)
"""], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    assert "linear: prepared: bytes on cuda:0 that prepare_weight did not make" in done.stdout, done


# ---- what is refused -------------------------------------------------------------------------------------------------


@every_operator
def test_refused(operator):
    tensors, call, name = draw("refused " + operator, "cuda"), OPERATORS[operator], operator.split("-")[0]
    prepared = prepare_weight(tensors[1])

    def refuses(words, given=tensors, **options):
        with pytest.raises(onepass.InvalidArgument, match="^%s: prepared: %s" % (name, words)):
            call(*given, prepared=prepared, **options)
    refuses("exact_fp32=True or", exact_fp32=True)
    with samples.tf32(True):
        refuses("PyTorch's setting allows TF32")
    with torch.autocast("cuda", dtype=torch.float16):
        refuses("given with a weight of torch.float16")
    refuses(".*device cuda:0, now cpu", [tensor.detach().cpu() for tensor in tensors])
    refuses(".*address", [tensor.detach().clone() for tensor in tensors])
    for weight, words in ((tensors[1].double(), "torch.float64"), (tensors[1].half(), "torch.float16"),
                          (tensors[1].bfloat16(), "torch.bfloat16")):
        with pytest.raises(onepass.InvalidArgument, match="^prepare_weight: weight: %s; it must be" % words):
            prepare_weight(weight.detach())


def test_bytes_that_the_extension_refuses(split):
    """Size, type, layout and place are looked at, and nothing is written."""
    x, weight, _ = [tensor.detach() for tensor in draw("extension", "cuda", (70, 300, 200))]
    size = library.workspace_size(library.PREPARE_WEIGHT, weight, _native.FP32_SPLIT, 0)
    y = torch.full((70, 200), 7.0, device="cuda")
    large = torch.zeros(2 * size + 512, dtype=torch.uint8, device="cuda")
    last = _native.FP32_SPLIT, 1, route.workspace
    for planes, words, workspace in (
            (large[:size - 1], "%d bytes; a weight of this shape needs %d" % (size - 1, size), "needs %d" % size),
            (large[:2 * size:2], "stride 2; it must be contiguous", "it must be contiguous uint8 of one dimension"),
            (large[:size].view(1, size), r"it must be \[P\]", "it must be contiguous uint8 of one dimension"),
            (torch.zeros(size, device="cuda"), "it must be uint8", "it must be contiguous uint8 of one dimension"),
            (large[:size].cpu(), "the handle's device is type 2", "on device 1:0; it must be on that of the call, 2:0"),
            (large[16:size + 16], "it must be a multiple of 256", "it must be a multiple of 256")):
        for call in (lambda: library.call(library.LINEAR, x, weight, None, planes, y, *last),
                     lambda: library.call(library.HEAD, x, weight, *7 * (None,), planes, y, *3 * (None,), 0, 0, 1e-5,
                                          0.0, *last)):
            with pytest.raises(ValueError, match=words):
                call()
        with pytest.raises(ValueError, match=workspace):
            library.call(library.PREPARE_WEIGHT, weight, _native.FP32_SPLIT, 0, planes)
    assert bool((y == 7).all()) and not bool(large.any())
    for mode in (_native.FP32_TF32, _native.FP32_VENDOR):
        with pytest.raises(onepass.Unsupported, match="^prepare_weight: handle: only one of a CUDA device"):
            library.workspace_size(library.PREPARE_WEIGHT, weight, mode, 0)
