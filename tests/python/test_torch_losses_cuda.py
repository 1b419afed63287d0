"""Losses from logits on a GPU: the library's kernels through PyTorch, against the same functions in float64 on the CPU;
in CUDA graphs with changed inputs, on another stream, under autocast. Skipped without a GPU."""

import itertools

import pytest

import losses_samples
import torch_samples as samples
from torch_samples import torch, watched

import onepass.torch

pytestmark = samples.needs_cuda

SHAPES = (6, 50), (5, 1500), (4, 9001), (3, 33000)  # by octets, by blocks, by clusters misaligned and aligned
HALVES = torch.bfloat16, torch.float16

MIXTURES = losses_samples.MIXTURES


def top_k(x, y, **options):
    """From 20 classes, one of them twice, with values that are the same numbers in every type."""
    places = torch.arange(20, device=x.device) * 37
    indices = (places + torch.arange(x.shape[0], device=x.device).unsqueeze(-1)) % x.shape[1]
    indices[:, 7] = indices[:, 3]
    return onepass.torch.kl_div_top_k(x, -4 - y.detach().gather(-1, indices).abs().round(), indices, **options)


LOSSES = {name: lambda x, y, labels, name=name: getattr(onepass.torch, name)(x, y, **MIXTURES.get(name, {}))
          for name in losses_samples.DIVERGENCES}
LOSSES.update({
    "cross_entropy": lambda x, y, labels: onepass.torch.cross_entropy(x, labels),
    "smoothed": lambda x, y, labels: onepass.torch.cross_entropy(x, labels, label_smoothing=0.1, reduction="sum"),
    "rows": lambda x, y, labels: (onepass.torch.cross_entropy(x, labels, reduction="none") ** 2).sum(),
    "kl of rows": lambda x, y, labels: (onepass.torch.kl_div_logits(x, y, "none", temperature=2.0) ** 2).sum(),
    "capped": lambda x, y, labels: onepass.torch.kl_div_logits(x, y, softcap=5.0, labels=labels, label_weight=0.5),
    "top k": lambda x, y, labels: top_k(x, y),
    "top k, reverse": lambda x, y, labels: top_k(x, y, reverse=True, temperature=2.0, labels=labels),
    "top k, subset": lambda x, y, labels: top_k(x, y, form="logits", outside="subset", reduction="sum"),
    "top k of rows": lambda x, y, labels: (top_k(x, y, reduction="none", labels=labels, label_weight=0.5) ** 2).sum(),
    "tokens": lambda x, y, labels: (onepass.torch.token_log_probs(x, labels) ** 2).sum(),
    "entropies": lambda x, y, labels: sum(
        (part ** 2).sum() for part in onepass.torch.token_log_probs(x, labels, return_entropy=True)),
})


@pytest.fixture(autouse=True)
def synchronized():
    """An asynchronous failure belongs to the test that caused it."""
    yield
    torch.cuda.synchronize()


def made(name, shape, dtype):
    """Logits, target logits and labels, one of them ignored, on the GPU."""
    generator = samples.random("losses on cuda " + name)
    x, y = (3 * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    labels = torch.randint(shape[1], shape[:1], generator=generator)
    labels[1] = -100
    return x.to(dtype).cuda(), y.to(dtype).cuda(), labels.cuda()


def value_and_gradients(loss, x, y, labels):
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    value = LOSSES[loss](x, y, labels)
    return (value,) + torch.autograd.grad(value, (x, y), allow_unused=True)


def assert_same(found, expected, dtype, what):
    """Relative to the largest element: what is added up is no larger than a few times that."""
    for f, e in zip(found, expected):
        assert (f is None) == (e is None), what
        if f is None:
            continue
        f, e = f.detach().double().cpu(), e.detach()
        rounding = torch.finfo(dtype).eps if dtype in HALVES and f.dim() else 0.0  # values are float32
        bound = e.abs().max() * (2e-6 + rounding) + 1e-8
        assert bool(((f - e).abs() <= bound).all()), (what, (f - e).abs().max(), bound)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_values_and_gradients(loss, shape, monkeypatch):
    calls = watched(monkeypatch, *samples.OPERATORS.values())
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, y, labels = made("%s %s %s" % (loss, shape, dtype), shape, dtype)
        calls.clear()
        found = value_and_gradients(loss, x, y, labels)
        assert calls, "the library was not asked"
        assert_same(found, value_and_gradients(loss, x.cpu().double(), y.cpu().double(), labels.cpu()), dtype,
                    "%s %s" % (loss, dtype))


@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
@pytest.mark.parametrize("loss", ["cross_entropy", "kl_div_logits", "js_logits", "entropies", "top k"])
def test_graphs(loss, shape):
    """What was captured is computed again from what the inputs hold by then, with the bits of a call."""
    x, y, labels = made("graph " + loss, shape, torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            value_and_gradients(loss, x, y, labels)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = value_and_gradients(loss, x, y, labels)
    for change in range(3):
        for tensor, fresh in zip((x, y, labels), made("graph %s %d" % (loss, change), shape, torch.bfloat16)):
            tensor.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        expected = value_and_gradients(loss, x, y, labels)
        for found, wanted in zip(results, expected):
            assert (found is None) == (wanted is None)
            assert found is None or torch.equal(found, wanted), (loss, change)


def test_streams_and_layouts():
    """Beside another stream's work, with classes that are not the last dimension in memory, and at odd addresses."""
    for loss, shape in itertools.product(("cross_entropy", "kl_div_logits", "top k"), SHAPES[1:]):
        x, y, labels = made("layouts " + loss, shape, torch.bfloat16)
        expected = value_and_gradients(loss, x, y, labels)
        room = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(shape).copy_(x)
        across = x.t().contiguous().t()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for other in (room, across):
                found = value_and_gradients(loss, other, y, labels)
                torch.cuda.synchronize()
                for f, e in zip(found, expected):
                    assert f is None and e is None or torch.equal(f, e), (loss, shape, other.stride())
