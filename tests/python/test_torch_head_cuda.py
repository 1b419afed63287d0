"""The head on a GPU: options, types, CUDA graphs and autocast, beside the chain of PyTorch's modules as in
test_torch_head.py."""

import copy

import pytest

import torch_samples as samples
from head_samples import calls  # noqa: F401: a fixture
from head_samples import check, draw, draw_step, models, off, step
from test_torch_head import HALF, OPTIONS, check_errors, errors_beside_pytorch
from torch_samples import needs_cuda, torch

pytestmark = needs_cuda


@pytest.fixture
def no_tf32():
    with samples.tf32(False):
        yield


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_cuda(options, train, calls):
    generator = samples.random("cuda %s %s" % (options, train))
    ours, theirs = models(generator, 13, 9, device="cuda", **options)
    ours.train(train), theirs.train(train)
    for _ in range(3):
        x, upstream = draw_step(generator, theirs, 12)
        check(step(ours, x, upstream), step(theirs, x, upstream), train or "track_running_stats" in options, 1e-11)
    assert [name for name, _ in calls] == ["head", "head_backward"] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_types_cuda(train, dtype, no_tf32):
    check_errors(errors_beside_pytorch("cuda types %s %s" % (train, dtype), dtype, train, 128, 256, 192, "cuda"), dtype)


def test_training_does_not_wait_cuda(no_tf32):
    """Forward, backward and statistics, cumulative too, with no number read by the host."""
    ours, _ = models(samples.random("wait cuda"), 32, 16, torch.float32, device="cuda", bn_momentum=None)
    x = torch.rand(8, 32, device="cuda")
    ours(x).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(ours.bn.num_batches_tracked) == 2


def test_graph_cuda(no_tf32):
    """A captured training step replayed: statistics and counter move on with every replay."""
    ours, theirs = models(samples.random("graph cuda"), 32, 16, torch.float32, device="cuda", bn_momentum=None)
    x = torch.rand(8, 32, device="cuda")
    state = copy.deepcopy(ours.state_dict())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            ours.zero_grad(set_to_none=True)
            ours(x).square().sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    ours.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = ours(x)
        output.square().sum().backward()
    ours.load_state_dict(state)
    theirs.load_state_dict(state)
    for _ in range(4):
        x.copy_(torch.rand_like(x))
        graph.replay()
        theirs.zero_grad()
        expected = theirs(x)
        expected.square().sum().backward()
        assert off(output, expected) <= 1e-5
        assert off(ours.gemm.weight.grad, theirs.gemm.weight.grad) <= 1e-3
        for found, buffer in zip(ours.buffers(), theirs.buffers()):
            assert off(found, buffer) <= 1e-5
    assert int(ours.bn.num_batches_tracked) == 4


@pytest.mark.parametrize("scale_shape", [(1,), ()], ids=str)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_autocast_cuda(dtype, scale_shape, calls):
    generator = samples.random("autocast cuda %s %s" % (dtype, scale_shape))
    ours, theirs = models(generator, 64, 32, torch.float32, device="cuda", scale_shape=scale_shape)
    x = draw(generator, 40, 64, torch.float32, "cuda")
    with torch.autocast("cuda", dtype=dtype):
        found, expected = ours(x), theirs(x)
    assert found.dtype is expected.dtype is torch.float32
    found.square().sum().backward()
    assert [name for name, _ in calls] == ["head", "head_backward"]
    assert off(found, expected) <= 8 * torch.finfo(dtype).eps
    assert all(parameter.grad.dtype is torch.float32 for parameter in ours.parameters())
