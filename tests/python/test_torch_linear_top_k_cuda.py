"""linear_kl_div_top_k on a GPU: values and gradients against float64 of all logits, in every type, in one chunk and in
several; bits; rows that do not count; nothing that waits for the device; memory; graphs."""

import pytest

import losses_samples as samples
from losses_samples import leaf
from torch_samples import F, needs_compile, needs_cuda, torch
from test_torch_linear_cuda import CLASSES, DEPTH, TOLERANCES, near, near_gradient

from onepass.torch import kl_div_top_k, linear_kl_div_top_k

pytestmark = needs_cuda

ROWS, K = 2500, 9  # three tiles


def drawn(name, dtype):
    """Hidden states, weight, bias and the teacher's values and indices."""
    generator = samples.random("linear top-k cuda " + name)
    x, w, b, y = (torch.randn(shape, generator=generator, dtype=torch.float64)
                  for shape in ((ROWS, DEPTH), (CLASSES, DEPTH), (CLASSES,), (ROWS, CLASSES)))
    values, indices = F.log_softmax(y * 2, -1).topk(K)
    tensors = x.to(dtype), (w * DEPTH ** -0.5).to(dtype), b.to(dtype)
    return [tensor.cuda() for tensor in tensors + (
        values.to(torch.float64 if dtype is torch.float64 else torch.float32), indices)]


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("reduction", ["valid", "none"])
def test_values_and_gradients_on_cuda(reduction, dtype):
    x, w, b, values, indices = drawn("values", dtype)
    mask = torch.ones(ROWS, dtype=torch.bool, device="cuda")
    mask[5] = False
    exact = [leaf(tensor.double()) for tensor in (x, w, b)]
    expected = kl_div_top_k(F.linear(*exact), values.double(), indices, reduction=reduction, row_mask=mask)
    upstream = torch.linspace(0.5, 2, expected.numel(), dtype=torch.float64, device="cuda").reshape(expected.shape)
    expected_gradients = torch.autograd.grad(expected, exact, upstream)
    spoiled = x.clone()
    spoiled[5] = float("nan")  # it does not count, and is not looked at
    for chunk_bytes in (None, 1):
        mine = [leaf(spoiled), leaf(w), leaf(b)]
        loss = linear_kl_div_top_k(*mine[:2], values, indices, linear_bias=mine[2], reduction=reduction, row_mask=mask,
                                   chunk_bytes=chunk_bytes)
        assert loss.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
        near(loss, expected, TOLERANCES[dtype])
        gradients = torch.autograd.grad(loss, mine, upstream.to(loss.dtype))
        for found, exactly in zip(gradients, expected_gradients):
            assert found.dtype is dtype
            near_gradient(found, exactly, TOLERANCES[dtype])
        assert not gradients[0][5].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_change_no_bits_on_cuda(dtype):
    x, w, b, values, indices = drawn("bits", dtype)
    size, found = torch.empty((), dtype=dtype).element_size(), []
    for chunk_bytes in (None, 1, 2 * 1024 * CLASSES * size):
        mine = leaf(x)
        loss = linear_kl_div_top_k(mine, w, values, indices, linear_bias=b, chunk_bytes=chunk_bytes)
        found.append((loss.detach(), torch.autograd.grad(loss, mine)[0]))
    for loss, gradient in found[1:]:
        assert torch.equal(loss, found[0][0]) and torch.equal(gradient, found[0][1])


def test_one_gradient_alone_on_cuda():
    x, w, _, values, indices = drawn("alone", torch.bfloat16)
    both = [leaf(x), leaf(w)]
    expected = torch.autograd.grad(linear_kl_div_top_k(*both, values, indices), both)
    for which in range(2):
        some = [x, w]
        some[which] = leaf(some[which])
        found = torch.autograd.grad(linear_kl_div_top_k(*some, values, indices), some[which])[0]
        assert torch.equal(found, expected[which])


def test_nothing_waits_on_cuda():
    x, w, b, values, indices = drawn("waits", torch.bfloat16)
    mask = torch.ones(ROWS, dtype=torch.bool, device="cuda")

    def step():
        tensors = leaf(x), leaf(w), leaf(b)
        linear_kl_div_top_k(*tensors[:2], values, indices, linear_bias=tensors[2], row_mask=mask, reduction="valid",
                            chunk_bytes=1).backward()
        return [tensor.grad for tensor in tensors]

    expected = step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, c) for a, c in zip(found, expected))


def test_memory_on_cuda():
    """Beside inputs and gradients a chunk of logits, a part of the weight's gradient, and little more."""
    rows, depth, classes, k = 8192, 256, 16000, 16
    x = leaf(torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16))
    w = leaf(torch.randn(classes, depth, device="cuda", dtype=torch.bfloat16) / 16)
    values = torch.full((rows, k), -4.0, device="cuda")
    indices = torch.randint(classes, (rows, k), device="cuda")
    chunk = 2 * 1024 * classes * 2
    for _ in range(2):
        x.grad = w.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        linear_kl_div_top_k(x, w, values, indices, chunk_bytes=chunk).backward()
        torch.cuda.synchronize()
    gradients = 2 * (x.numel() + w.numel())
    assert torch.cuda.max_memory_allocated() - before <= gradients + chunk + 2 * w.numel() + (40 << 20)


def test_captured_on_cuda():
    x, w, _, values, indices = drawn("captured", torch.bfloat16)
    mine, weight = leaf(x), leaf(w)

    def step():
        mine.grad = weight.grad = None
        loss = linear_kl_div_top_k(mine, weight, values, indices, chunk_bytes=1)
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
    x, w, b, values, indices = drawn("scaled", torch.float16)
    exact_x, mine, factor = leaf(x.double()), leaf(x), 1e-4 * 2.0 ** 14
    expected = torch.autograd.grad(kl_div_top_k(F.linear(exact_x, w.double(), b.double()), values.double(), indices)
                                   * factor, exact_x)[0]
    found = torch.autograd.grad(linear_kl_div_top_k(mine, w, values, indices, linear_bias=b) * factor, mine)[0]
    near_gradient(found, expected, TOLERANCES[torch.float16])


@needs_compile
def test_compiled_on_cuda():
    x, w, _, values, indices = drawn("compiled", torch.bfloat16)
    both, again = [leaf(x), leaf(w)], [leaf(x), leaf(w)]
    expected = linear_kl_div_top_k(*both, values, indices)
    found = torch.compile(linear_kl_div_top_k, fullgraph=True)(*again, values, indices)
    assert torch.equal(found.detach(), expected.detach())
    for a, c in zip(torch.autograd.grad(found, again), torch.autograd.grad(expected, both)):
        assert torch.equal(a, c)
