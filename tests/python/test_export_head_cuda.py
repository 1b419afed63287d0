"""The model that python -m onepass.export linear_bn_softmax writes, on a GPU: values, gradients, streams, graphs, bits.

Without a GPU only this is tested: that the CUDA kernels compile, and that what is built with them can be imported.
"""
import copy
import pathlib
import statistics
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import onepass.torch  # noqa: E402
from test_export_cuda import compile_without_a_gpu, exported_for_cuda, gpu, kernels_in  # noqa: E402
from test_export_head import BF16, EPSILON, F16, F32, F64, HARD, SHAPES, TYPES, both_modes  # noqa: E402
from test_export_head import check, in_type, make_hard, off, pair, step  # noqa: E402


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    with exported_for_cuda("linear_bn_softmax", tmp_path_factory.mktemp("head_cuda")) as module:
        yield module


@pytest.fixture(autouse=True)
def no_tf32():
    """But where a test allows it."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: every other test here compiles it")
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_kernels_compile_without_a_gpu(module, capsys, capability):
    """Hopper's own kernels for a Hopper, and for no other GPU."""
    began = time.monotonic()
    kernels = compile_without_a_gpu(module, capability)
    with capsys.disabled():
        print("\ncompiled for %d.%d in %.0f s" % (capability + (time.monotonic() - began,)))
    assert {"onep_head_stats_f32", "onep_split_rows", "onep_split_product_sm80"} <= kernels
    assert ("onep_split_product_sm90_along_256" in kernels) == (capability == (9, 0))
    assert not any("_kl_" in name for name in kernels)


def on_gpu(*shape, dtype=F32):
    return torch.randn(*shape, device="cuda").to(dtype)


@gpu
@both_modes
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rows, inputs, outputs", SHAPES + [(1024, 512, 8192), (64, 64, 12288), (64, 64, 20000)])
def test_values_and_gradients(module, rows, inputs, outputs, dtype, train):
    ours, theirs = pair(module, inputs, outputs, dtype, "cuda")
    ours.train(train), theirs.train(train)
    check(ours, theirs, on_gpu(rows, inputs, dtype=dtype), on_gpu(rows, outputs, dtype=dtype))


@gpu
@both_modes
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("case", HARD)
def test_hard_inputs(module, case, dtype, train):
    ours, theirs = pair(module, 70, 90, dtype, "cuda")
    ours.train(train), theirs.train(train)
    x = make_hard(case, ours, theirs, torch.randn(2 if case == "batch of 2" else 130, 70, dtype=F64, device="cuda"))
    check(ours, theirs, x.to(dtype), on_gpu(x.size(0), 90, dtype=dtype))


@gpu
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_after_many_steps(module, momentum):
    ours, theirs = pair(module, 20, 10, F32, "cuda", momentum=momentum)
    for batch in range(50):
        x = (1 + batch % 7) * on_gpu(2 + batch % 13, 20) + batch % 5
        ours(x), theirs(x.double())
    assert ours.bn.num_batches_tracked.item() == 50
    for name, buffer in ours.named_buffers():
        assert off(buffer, dict(theirs.named_buffers())[name]) <= 32 * EPSILON[F32], name


@gpu
@both_modes
def test_strides(module, train):
    for layout in (lambda t: t.t().contiguous().t(), lambda t: torch.stack((t, t), -1).flatten(-2)[:, ::2],
                   lambda t: torch.cat((t[:1, :1].flatten(), t.flatten()))[1:].view(t.shape)):
        for dtype in (F32, BF16):
            ours, theirs = pair(module, 70, 50, dtype, "cuda")
            ours.train(train), theirs.train(train)
            ours.gemm.weight = torch.nn.Parameter(layout(ours.gemm.weight.detach()))
            check(ours, theirs, layout(on_gpu(90, 70, dtype=dtype)), layout(on_gpu(90, 50, dtype=dtype)))


@gpu
def test_batch_of_one_and_empty_batch(module):
    ours, theirs = pair(module, 6, 4, F64, "cuda")
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        ours(torch.randn(1, 6, dtype=F64, device="cuda"))
    before = int(ours.bn.num_batches_tracked)
    assert ours(torch.empty(0, 6, dtype=F64, device="cuda")).shape == (0, 4)
    assert int(ours.bn.num_batches_tracked) == before + 1


@gpu
def test_tf32_only_if_the_program_allows_it(module):
    ours, theirs = pair(module, 512, 256, F32, "cuda")
    x = on_gpu(128, 512)
    ours.eval(), theirs.eval()
    exact = theirs(x.double())
    full = off(ours(x), exact)
    torch.backends.cuda.matmul.allow_tf32 = True
    rounded = off(ours(x), exact)
    assert full < 1e-4 < rounded < 0.1


@gpu
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_autocast_gives_pytorchs_dtype(module, dtype):
    ours, theirs = pair(module, 40, 30, F32, "cuda")
    chain = in_type(ours, F32, 40, 30)
    x = on_gpu(50, 40)
    with torch.autocast("cuda", dtype=dtype):
        found, like = ours(x), chain(x)
    assert found.dtype == like.dtype == F32
    assert off(found, theirs(x.double())) <= 4 * EPSILON[dtype]
    found.sum().backward()
    assert {p.grad.dtype for p in ours.parameters()} == {F32}


@gpu
def test_nothing_waits_and_the_current_stream_is_used(module):
    """The input is ready late on a side stream; a launch anywhere else would read it too early."""
    ours, _ = pair(module, 512, 1024, F32, "cuda")
    x, upstream = on_gpu(256, 512), on_gpu(256, 1024)
    expected = step(copy.deepcopy(ours), x, upstream)
    late = torch.zeros_like(x).requires_grad_()
    busy = torch.rand(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.tanh(busy @ busy)  # what PyTorch prepares at first use may wait
        step(copy.deepcopy(ours), x, upstream)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            for _ in range(40):
                busy = torch.tanh(busy @ busy)
            with torch.no_grad():
                late.copy_(x)
            output = ours(late)
            output.backward(upstream)
            assert not stream.query(), "the work before the call should still be running"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert torch.equal(output, expected["output"]) and torch.equal(late.grad, expected["x"])
    assert torch.equal(ours.bn.running_mean, expected["bn.running_mean"])


@gpu
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_graph_of_a_training_step(module, dtype):
    """Replays count batches and update running statistics like eager steps do; eager calls run beside them."""
    ours, _ = pair(module, 256, 1024, dtype, "cuda")
    x, upstream = on_gpu(128, 256, dtype=dtype), on_gpu(128, 1024, dtype=dtype)
    eager = copy.deepcopy(ours)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    state = copy.deepcopy(ours.state_dict())
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(ours(x), list(ours.parameters()), upstream)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = ours(x)
        gradients = torch.autograd.grad(output, list(ours.parameters()), upstream)
    ours.load_state_dict(state)
    beside = copy.deepcopy(eager)
    for turn in range(5):
        x.copy_(on_gpu(128, 256, dtype=dtype))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.replay()
        beside(x)
        torch.cuda.synchronize()
        expected = eager(x)
        theirs = torch.autograd.grad(expected, list(eager.parameters()), upstream)
        assert torch.equal(output, expected)
        assert all(torch.equal(a, b) for a, b in zip(gradients, theirs))
        assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), eager.buffers()))
        assert int(ours.bn.num_batches_tracked) == turn + 1


@gpu
def test_threads(module):
    models = [module.ModelNew(300, 400).cuda() for _ in range(4)]
    x, upstream = on_gpu(200, 300), on_gpu(200, 400)
    expected = [step(copy.deepcopy(model), x, upstream) for model in models]
    found = [None] * 4

    def work(place):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found[place] = step(copy.deepcopy(models[place]), x, upstream)
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(found, expected):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def library_models(ours):
    theirs = onepass.torch.LinearBatchNormSoftmax(ours.gemm.in_features, ours.gemm.out_features)
    theirs = theirs.to("cuda", ours.scale.dtype)
    theirs.load_state_dict(ours.state_dict())
    return theirs.train(ours.training)


@gpu
@both_modes
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_bits_are_the_librarys(module, dtype, train):
    for rows, inputs, outputs in ((63, 129, 41), (256, 512, 1024), (1024, 64, 8192)):
        ours, _ = pair(module, inputs, outputs, dtype, "cuda")
        theirs = library_models(ours.train(train))
        x, upstream = on_gpu(rows, inputs, dtype=dtype), on_gpu(rows, outputs, dtype=dtype)
        found, expected = step(ours, x, upstream), step(theirs, x, upstream)
        for name in expected:
            assert torch.equal(found[name], expected[name]), name


@gpu
@both_modes
@pytest.mark.parametrize("rows, inputs, outputs", [(512, 1024, 1024), (16, 2048, 2048), (300, 515, 4096),
                                                   (512, 512, 16384)])
def test_bits_of_large_products_are_the_librarys(module, rows, inputs, outputs, train):
    """Large enough for Hopper's own products: depth in parts and in one, weights that are and are not aligned."""
    ours, _ = pair(module, inputs, outputs, F32, "cuda")
    theirs = library_models(ours.train(train))
    x, upstream = on_gpu(rows, inputs), on_gpu(rows, outputs)
    if torch.cuda.get_device_capability() == (9, 0):  # or both may be cuBLASLt's
        directory = pathlib.Path(module._onepass(x).__file__).parents[3]
        assert "onep_split_product_sm90_along_256" in kernels_in(directory)
    found, expected = step(ours, x, upstream), step(theirs, x, upstream)
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


@gpu
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("rows, inputs, outputs", [(1024, 8192, 8192), (512, 1024, 1024)])
def test_speed_is_the_librarys(module, rows, inputs, outputs, dtype, gradient, capsys):
    """The founding problem, and a small one that Hopper's own products take too; in turns, cold cache."""
    if torch.cuda.get_device_properties(0).total_memory < 12 << 30:
        pytest.skip("needs 12 GiB of GPU memory")
    model = module.ModelNew(inputs, outputs).to("cuda", dtype)
    models = {"model": model, "library": library_models(model)}
    x, upstream = torch.rand(rows, inputs, device="cuda").to(dtype), on_gpu(rows, outputs, dtype=dtype)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = {name: [] for name in models}
    for turn in range(24):
        for name in sorted(models, reverse=turn % 2 == 0):
            for _ in range(16):  # long enough that the device is still busy when the last of the work arrives
                flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            with torch.set_grad_enabled(gradient):
                output = models[name](x)
            if gradient:
                torch.autograd.grad(output, list(models[name].parameters()), upstream)
            end.record()
            torch.cuda.synchronize()
            if turn > 3:
                times[name].append(begin.elapsed_time(end))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ratio = medians["model"] / medians["library"]
    with capsys.disabled():
        print("\n%d x %d x %d %s on %s, %s: library %.4f ms, exported model %.4f ms, ratio %.3f" % (
            rows, inputs, outputs, dtype, torch.cuda.get_device_name(),
            "forward and backward" if gradient else "forward", medians["library"], medians["model"], ratio))
    assert ratio < 1.03 or rows < 1024  # a small one is as fast as Python calls it
