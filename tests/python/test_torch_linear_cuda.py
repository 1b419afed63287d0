"""Losses from hidden states on a GPU: values and gradients against float64 of all logits, in every type, in one chunk
and in several; rows that do not count; memory; graphs; what a gradient scaler needs."""

import pytest

import losses_samples as samples
from losses_samples import leaf
from torch_samples import F, needs_compile, needs_cuda, torch

from onepass.torch import linear_cross_entropy, linear_kl_div, linear_token_log_probs

pytestmark = needs_cuda

ROWS, DEPTH, CLASSES = 300, 64, 520

# Of results per row: half a unit of logits of that type, up to 8 in size; of gradients relative to the largest.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}


def drawn(name, dtype, count=1):
    generator = samples.random("linear cuda " + name)

    def tensor(*shape, deviation=1.0):
        made = torch.randn(shape, generator=generator, dtype=torch.float64) * deviation
        return made.to(dtype).cuda()
    made = []
    for _ in range(count):
        made += [tensor(ROWS, DEPTH), tensor(CLASSES, DEPTH, deviation=DEPTH ** -0.5)]
    labels = torch.randint(CLASSES, (ROWS,), generator=generator).cuda()
    return made + [labels]


def near(found, expected, tolerance):
    found, expected = found.detach().double(), expected.detach().double()
    assert found.shape == expected.shape and torch.isfinite(found).all()
    assert (found - expected).abs().max() <= tolerance * max(1.0, expected.abs().max().item())


def near_gradient(found, expected, tolerance):
    found, expected = found.detach().double(), expected.detach().double()
    assert found.shape == expected.shape and torch.isfinite(found).all()
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_cross_entropy_on_cuda(reduction, dtype):
    x, w, labels = drawn("cross entropy", dtype)
    labels[5] = -100
    exact_x, exact_w = leaf(x.double()), leaf(w.double())
    expected = F.cross_entropy(F.linear(exact_x, exact_w), labels, reduction=reduction)
    upstream = torch.linspace(0.5, 2, expected.numel(), dtype=torch.float64, device="cuda").reshape(expected.shape)
    expected_gradients = torch.autograd.grad(expected, (exact_x, exact_w), upstream)
    spoiled = x.clone()
    spoiled[5] = float("nan")  # it does not count, and is not looked at
    for chunk_bytes in (None, 1):
        mine, weight = leaf(spoiled), leaf(w)
        loss = linear_cross_entropy(mine, weight, labels, reduction=reduction, chunk_bytes=chunk_bytes)
        assert loss.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
        near(loss, expected, TOLERANCES[dtype])
        gradients = torch.autograd.grad(loss, (mine, weight), upstream.to(loss.dtype))
        for found, exact in zip(gradients, expected_gradients):
            assert found.dtype is dtype
            near_gradient(found, exact, TOLERANCES[dtype])
        assert not gradients[0][5].any()


def test_one_gradient_alone_on_cuda():
    x, w, labels = drawn("alone", torch.bfloat16)
    both = [leaf(x), leaf(w)]
    expected = torch.autograd.grad(linear_cross_entropy(*both, labels), both)
    for which in range(2):
        some = [x, w]
        some[which] = leaf(some[which])
        found = torch.autograd.grad(linear_cross_entropy(*some, labels), some[which])[0]
        assert torch.equal(found, expected[which])


def test_chunks_change_no_bits_on_cuda():
    x, w, labels = drawn("bits", torch.bfloat16)
    found = []
    for chunk_bytes in (None, 1, 2 * 256 * CLASSES * 2):
        mine = leaf(x)
        loss = linear_cross_entropy(mine, w, labels, chunk_bytes=chunk_bytes)
        found.append((loss.detach(), torch.autograd.grad(loss, mine)[0]))
    for loss, gradient in found[1:]:
        assert torch.equal(loss, found[0][0]) and torch.equal(gradient, found[0][1])


def test_kl_on_cuda():
    for dtype in (torch.float32, torch.bfloat16):
        x, w, y, v, _ = drawn("kl", dtype, 2)
        exact_x, exact_w = leaf(x.double()), leaf(w.double())
        s, t = (F.log_softmax(F.linear(a, b), -1) for a, b in ((exact_x, exact_w), (y.double(), v.double())))
        expected = F.kl_div(s, t, reduction="batchmean", log_target=True)
        expected_gradients = torch.autograd.grad(expected, (exact_x, exact_w))
        mine, weight = leaf(x), leaf(w)
        loss = linear_kl_div(mine, weight, y, v, chunk_bytes=1)
        near(loss, expected, TOLERANCES[dtype])
        for found, exact in zip(torch.autograd.grad(loss, (mine, weight)), expected_gradients):
            near_gradient(found, exact, TOLERANCES[dtype])


def test_token_log_probs_on_cuda():
    for dtype in (torch.float32, torch.bfloat16):
        x, w, indices = drawn("tokens", dtype)
        exact_x, exact_w = leaf(x.double()), leaf(w.double())
        log_p = F.log_softmax(F.linear(exact_x, exact_w), -1)
        expected = log_p.gather(-1, indices.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)
        upstream = [torch.linspace(-1, 1, ROWS, device="cuda", dtype=torch.float64) for _ in range(2)]
        expected_gradients = torch.autograd.grad(expected, (exact_x, exact_w), upstream)
        mine, weight = leaf(x), leaf(w)
        found = linear_token_log_probs(mine, weight, indices, return_entropy=True, chunk_bytes=1)
        for a, b in zip(found, expected):
            near(a, b, TOLERANCES[dtype])
        gradients = torch.autograd.grad(found, (mine, weight), [each.float() for each in upstream])
        for a, b in zip(gradients, expected_gradients):
            near_gradient(a, b, TOLERANCES[dtype])


def test_memory_on_cuda():
    """Beside inputs and gradients a chunk of logits, and little more."""
    rows, depth, classes = 4096, 256, 16000
    x = leaf(torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16))
    w = leaf(torch.randn(classes, depth, device="cuda", dtype=torch.bfloat16) / 16)
    labels = torch.randint(classes, (rows,), device="cuda")
    chunk = 16 << 20
    linear_cross_entropy(x, w, labels, chunk_bytes=chunk).backward()
    x.grad = w.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_cross_entropy(x, w, labels, chunk_bytes=chunk).backward()
    torch.cuda.synchronize()
    gradients = 2 * (x.numel() + w.numel())
    assert torch.cuda.max_memory_allocated() - before <= gradients + chunk + (8 << 20) + (32 << 20)


def test_captured_on_cuda():
    x, w, labels = drawn("captured", torch.bfloat16)
    mine, weight = leaf(x), leaf(w)

    def step():
        mine.grad = weight.grad = None
        loss = linear_cross_entropy(mine, weight, labels, chunk_bytes=1)
        loss.backward()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    expected = [tensor.detach().clone() for tensor in (step(), mine.grad, weight.grad)]
    mine.grad = weight.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    for found, exact in zip((loss, mine.grad, weight.grad), expected):
        assert torch.equal(found.detach(), exact)


def test_scaled_float16_on_cuda():
    """Gradients that would vanish without the scaler's factor."""
    x, w, labels = drawn("scaled", torch.float16)
    exact_x = leaf(x.double())
    scale = 2.0 ** 14
    expected = torch.autograd.grad(F.cross_entropy(F.linear(exact_x, w.double()), labels) * 1e-4 * scale, exact_x)[0]
    mine = leaf(x)
    found = torch.autograd.grad(linear_cross_entropy(mine, w, labels) * 1e-4 * scale, mine)[0]
    near_gradient(found, expected, TOLERANCES[torch.float16])


@needs_compile
def test_compiled_on_cuda():
    x, w, labels = drawn("compiled", torch.bfloat16)
    both, again = [leaf(x), leaf(w)], [leaf(x), leaf(w)]
    expected = linear_cross_entropy(*both, labels)
    found = torch.compile(linear_cross_entropy, fullgraph=True)(*again, labels)
    assert torch.equal(found.detach(), expected.detach())
    for a, b in zip(torch.autograd.grad(found, again), torch.autograd.grad(expected, both)):
        assert torch.equal(a, b)
