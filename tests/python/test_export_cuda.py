"""The model that python -m onepass.export writes, on a GPU: values, gradients, streams, graphs, memory, bits, speed.

Without a GPU only this is tested: that the CUDA kernels compile, and that what is built with them can be imported.
"""
import contextlib
import os
import pathlib
import re
import statistics
import sys

import pytest

torch = pytest.importorskip("torch")

from test_export import ROOT, cuda_home, exported, load  # noqa: E402
from test_export_model import (BF16, EPSILON, F16, F32, F64, LAYOUTS, SHAPES, check_gradients,  # noqa: E402
                               check_special_values, check_value, gradients, probabilities, reference)

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@contextlib.contextmanager
def exported_for_cuda(operator, directory):
    """The module in the exported file; a skip where its CUDA half cannot be compiled."""
    cuda_home()
    if torch.version.cuda is None:
        pytest.skip("this PyTorch was built without CUDA")
    with exported(operator, directory) as path:
        yield load(path, operator + "_cuda")


def kernels_in(directory):
    """The kernels that were compiled, by name."""
    text = (pathlib.Path(directory) / "cuda" / "fatbin_kernels.inc").read_text(encoding="utf-8")
    return set(re.findall(r"^KERNEL\((\w+), \d+\)$", text, re.MULTILINE))


def compile_without_a_gpu(module, capability):
    """The kernels, compiled for a GPU of this compute capability, which is not here."""
    directory = module._built("cuda", module._cuda_tools([capability]))
    assert os.path.basename(directory).startswith("onepass_%s_cuda_" % module._FOLDERS)
    module._import(directory)
    library = sys.modules[os.path.basename(directory) + ".library"]
    with pytest.raises(library.errors.NoDevice, match="cuda"):
        library.info("cuda")  # it has kernels, but no GPU to run them
    return kernels_in(directory)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    with exported_for_cuda("kl_div", tmp_path_factory.mktemp("model_cuda")) as module:
        yield module


@pytest.fixture(scope="module")
def model(module):
    return module.ModelNew()


def on_gpu(*shape, dtype=F32, **options):
    return probabilities(*shape, dtype=dtype, device="cuda", **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: every other test here compiles it")
def test_kernels_compile_without_a_gpu(module):
    kernels = compile_without_a_gpu(module, (8, 0))
    assert {"onep_kl_flat_f32_0_sum", "onep_kl_flat_bf16_3_any"} <= kernels
    assert not any("_sm90" in name or "_head_" in name for name in kernels)


# ---- values and gradients --------------------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize("shape", SHAPES + [(3000, 1000), (1, 300001)])
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16])
def test_value_and_gradients(model, shape, dtype):
    predictions, targets = on_gpu(*shape, dtype=dtype), on_gpu(*shape, dtype=dtype)
    check_value(model(predictions, targets), predictions, targets)
    value, to_predictions, to_targets = gradients(model, predictions, targets)
    check_value(value, predictions, targets)
    check_gradients(predictions, targets, to_predictions, to_targets)


@gpu
@pytest.mark.parametrize("p_type, t_type", [(F16, F32), (F32, BF16), (F64, F32), (F16, BF16), (BF16, F64)])
def test_mixed_types(model, p_type, t_type):
    predictions, targets = on_gpu(33, 65, dtype=p_type), on_gpu(33, 65, dtype=t_type)
    check_value(model(predictions, targets), predictions, targets)
    _, to_predictions, to_targets = gradients(model, predictions, targets)
    check_gradients(predictions, targets, to_predictions, to_targets)


@gpu
@pytest.mark.parametrize("p_layout", list(LAYOUTS))
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_strides(model, p_layout, dtype):
    predictions, targets = LAYOUTS[p_layout](on_gpu(370, 530, dtype=dtype)), on_gpu(370, 530, dtype=dtype)
    for p, t in ((predictions, targets), (targets, predictions), (predictions, predictions.flip(0))):
        check_value(model(p, t), p, t)
        _, to_predictions, to_targets = gradients(model, p, t)
        check_gradients(p, t, to_predictions, to_targets)


@gpu
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16])
def test_special_values(model, dtype):
    check_special_values(model, dtype, "cuda")


@gpu
def test_broadcast_and_empty(model):
    predictions, targets = on_gpu(1, 40, dtype=F64).requires_grad_(), on_gpu(30, 40, dtype=F64)
    value = model(predictions, targets)
    expected = (targets * (targets.log() - predictions.log())).sum()
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    value.backward()
    torch.testing.assert_close(predictions.grad, torch.autograd.grad(expected, predictions)[0], rtol=1e-12, atol=0)
    assert model(torch.empty(0, 5, device="cuda"), torch.empty(0, 5, device="cuda")).isnan()
    assert model(torch.empty(5, 0, device="cuda"), torch.empty(5, 0, device="cuda")).item() == 0


@gpu
def test_more_than_2_to_the_31_elements(model):
    predictions, targets = on_gpu(1, 1 << 20), on_gpu(1, 1 << 20)
    rows = (1 << 11) + 3
    value = model(predictions.expand(rows, -1), targets.expand(rows, -1)).item()
    exact = reference(predictions, targets).item()
    assert abs(value - exact) <= 2 * EPSILON[F32] * exact


# ---- autograd --------------------------------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize("shape", [(31, 47), (1024, 2048)])
@pytest.mark.parametrize("upstream", [1.0, 3.5, 0.0, -2.0])
def test_upstream_gradient(model, shape, upstream):
    predictions, targets = on_gpu(*shape), on_gpu(*shape)
    for wanted in ((True, False), (False, True), (True, True)):
        p, t = predictions.detach().requires_grad_(wanted[0]), targets.detach().requires_grad_(wanted[1])
        model(p, t).backward(torch.tensor(upstream, device="cuda"))
        check_gradients(p, t, p.grad, t.grad, upstream)
        assert (p.grad is not None, t.grad is not None) == wanted


@gpu
def test_the_made_gradient_is_handed_over_and_never_written_again(model):
    predictions, targets = on_gpu(640, 650).requires_grad_(), on_gpu(640, 650)
    value = model(predictions, targets)
    made = value.grad_fn.made[0].data_ptr()
    value.backward(retain_graph=True)
    assert predictions.grad.data_ptr() == made
    once = predictions.grad.clone()
    value.backward(torch.tensor(5.0, device="cuda"), retain_graph=True)
    value.backward(retain_graph=True)
    assert predictions.grad.data_ptr() == made  # autograd adds in place
    five, = torch.autograd.grad(model(predictions, targets), predictions, torch.tensor(5.0, device="cuda"))
    check_gradients(predictions, targets, five, None, 5.0)
    assert torch.equal(predictions.grad, once + five + once)


@gpu
def test_gradcheck_and_gradgradcheck(model):
    predictions, targets = on_gpu(3, 5, dtype=F64).requires_grad_(), on_gpu(3, 5, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(model, (predictions, targets))
    assert torch.autograd.gradgradcheck(model, (predictions, targets))


@gpu
def test_autocast_gives_pytorchs_dtype(model):
    predictions, targets = on_gpu(9, 10, dtype=F16), on_gpu(9, 10, dtype=F16)
    with torch.autocast("cuda"):
        value = model(predictions, targets)
    exact = reference(predictions, targets).item()
    assert value.dtype == F32 and abs(value.item() - exact) < 1e-5 * exact


# ---- streams and graphs ----------------------------------------------------------------------------------------------


@gpu
def test_nothing_waits_and_the_current_stream_is_used(model):
    """The inputs are ready late on a side stream; a launch anywhere else would read them too early."""
    predictions, targets = on_gpu(512, 4096), on_gpu(512, 4096)
    leaf = predictions.clone().requires_grad_()
    expected = model(leaf, targets)
    expected.backward()
    late = torch.ones_like(predictions).requires_grad_()
    busy = torch.rand(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.tanh(busy @ busy)  # what PyTorch prepares at first use may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            for _ in range(40):
                busy = torch.tanh(busy @ busy)
            with torch.no_grad():
                late.copy_(predictions)
            value = model(late, targets)
            value.backward()
            assert not stream.query(), "the work before the call should still be running"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert torch.equal(value, expected) and torch.equal(late.grad, leaf.grad)


def captured(model, predictions, targets, upstream):
    """A graph of value and gradient over these very tensors, and the two results that its replays write."""
    leaf = predictions.requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.autograd.grad(model(leaf, targets), leaf, upstream)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = model(leaf, targets)
        gradient, = torch.autograd.grad(value, leaf, upstream)
    return graph, value, gradient


@gpu
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_graph_replays_with_other_inputs_and_upstream_gradients(model, dtype):
    predictions, targets = on_gpu(700, 1000, dtype=dtype), on_gpu(700, 1000, dtype=dtype)
    upstream = torch.ones((), dtype=dtype, device="cuda")
    graph, value, gradient = captured(model, predictions, targets, upstream)
    for scale in (1.0, 2.5, 1.0, 0.0):
        with torch.no_grad():
            predictions.copy_(on_gpu(700, 1000, dtype=dtype))
            upstream.fill_(scale)
        graph.replay()
        torch.cuda.synchronize()
        leaf = predictions.detach().clone().requires_grad_()
        expected = model(leaf, targets)
        expected.backward(upstream.clone())
        assert torch.equal(value, expected) and torch.equal(gradient, leaf.grad)


@gpu
def test_graphs_beside_each_other_and_beside_eager_calls(model):
    """Blocks of different launches must not be counted together."""
    upstream = torch.ones((), device="cuda")
    inputs = [(on_gpu(2000, 1500), on_gpu(2000, 1500)) for _ in range(3)]
    expected = [model(p.detach().requires_grad_(), t).item() for p, t in inputs[:2]]
    expected.append(model(*inputs[2]).item())  # its gradient is not required: other kernels, other last bits
    graphs = [captured(model, p, t, upstream) for p, t in inputs[:2]]
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(50):
        for (graph, value, _), stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]), torch.no_grad():
            eager = model(*inputs[2])
        torch.cuda.synchronize()
        assert [value.item() for _, value, _ in graphs] + [eager.item()] == expected


@gpu
def test_when_all_words_for_counting_are_taken(module):
    """More captured launches than there are words: the rest count in their workspace."""
    model, predictions, targets = module.ModelNew(), on_gpu(64, 4096), on_gpu(64, 4096)
    expected = model(predictions, targets).item()
    model(predictions, targets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        for _ in range(16400):
            value = model(predictions, targets)
    for _ in range(2):
        value.zero_()
        graph.replay()
        assert value.item() == expected


@gpu
def test_every_device(model):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    targets = probabilities(64, 100, device="cuda:1")
    predictions = probabilities(64, 100, device="cuda:1").requires_grad_()
    value = model(predictions, targets)
    value.backward()
    check_value(value.detach(), predictions.detach(), targets)
    check_gradients(predictions, targets, predictions.grad, None)
    with pytest.raises(RuntimeError, match="device"):
        model(predictions.detach(), targets.to("cuda:0"))


# ---- memory, bits, speed ---------------------------------------------------------------------------------------------


@gpu
def test_extra_memory(model):
    predictions, targets = on_gpu(4096, 4096), on_gpu(4096, 4096)
    model(predictions, targets)
    for required, allowed in ((False, 1 << 20), (True, (1 << 20) + predictions.nelement() * 4)):
        leaf = predictions.detach().requires_grad_(required)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        value = model(leaf, targets)
        if required:
            value.backward()
        assert 0 < torch.cuda.max_memory_allocated() - before <= allowed


@pytest.fixture(scope="module")
def calls():
    """bench/calls.py"""
    from onepass import errors, library
    try:
        library.info("cuda")
    except errors.Error as error:
        pytest.skip("onepass has no CUDA kernels here: %s" % error)
    sys.path.insert(0, str(ROOT / "bench"))
    import calls
    sys.path.remove(str(ROOT / "bench"))
    return calls


@gpu
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16])
@pytest.mark.parametrize("shape", [(1, 1000), (63, 129), (1000, 3001)])
def test_bits_are_the_librarys(model, calls, dtype, shape):
    predictions, targets = on_gpu(*shape, dtype=dtype), on_gpu(*shape, dtype=dtype)
    for p, t in ((predictions, targets), (predictions[:, 1:], targets[:, 1:]), (predictions.t(), targets.t())):
        call = calls.KlCall("probs_probs", p, t, True, value_type=dtype)
        alone = calls.KlCall("probs_probs", p, t, False, value_type=dtype)
        call(), alone()
        leaf = p.detach().requires_grad_()
        value = model(leaf, t)
        value.backward()
        torch.cuda.synchronize()
        assert torch.equal(value, call.value) and torch.equal(leaf.grad, call.gradient)
        assert torch.equal(model(p, t), alone.value)


@gpu
@pytest.mark.parametrize("gradient", [False, True])
def test_speed_is_the_librarys(module, calls, gradient, capsys):
    """The founding problem, in turns, cold cache."""
    if torch.cuda.get_device_properties(0).total_memory < 12 << 30:
        pytest.skip("needs 12 GiB of GPU memory")
    predictions = torch.softmax(torch.rand(16384, 16384, device="cuda") * torch.rand((), device="cuda"), -1)
    targets = torch.softmax(torch.rand(16384, 16384, device="cuda"), -1)
    call = calls.KlCall("probs_probs", predictions, targets, gradient)
    model, leaf = module.ModelNew(), predictions.detach().requires_grad_(gradient)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = {"library": [], "model": []}
    for turn in range(24):
        for name, work in (("library", call), ("model", lambda: model(leaf, targets))):
            for _ in range(16):  # long enough that the device is still busy when the last of the work arrives
                flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            if turn > 3:
                times[name].append(begin.elapsed_time(end))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ratio = medians["model"] / medians["library"]
    with capsys.disabled():
        print("\n16384 x 16384 float32 on %s, %s: library %.4f ms, exported model %.4f ms, ratio %.3f" % (
            torch.cuda.get_device_name(), "value and gradient" if gradient else "value", medians["library"],
            medians["model"], ratio))
    assert ratio < 1.03
