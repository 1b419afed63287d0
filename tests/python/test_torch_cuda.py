"""onepass.torch on a GPU: the numbers, the streams, the graphs, the memory, the host's time. Skipped without a GPU."""

import itertools
import math
import threading
import time

import numpy
import pytest

import torch_samples as samples
from torch_samples import DTYPES, F, FORMS, exact, ours, pair, theirs, torch

import onepass
import onepass.torch

pytestmark = samples.needs_cuda

ALL_REDUCTIONS = ("none", "rows", "sum", "mean", "batchmean")
SMALL, LARGE = (6, 50), (130, 1000)  # above kl._SMALL forward makes the gradients
MIB = 1 << 20


def on_gpu(tensors):
    return [x.cuda() for x in tensors]


def leaves(name, shape, function="kl_div_probs", log_target=False, dtype=torch.float32):
    made = pair(samples.random("cuda " + name), shape, function, log_target, (dtype, dtype))
    return [x.cuda().requires_grad_() for x in made]


def gradients(inputs, upstream=None, **options):
    return torch.autograd.grad(ours("kl_div_probs", *inputs, **options), inputs, upstream)


@pytest.fixture(autouse=True)
def synchronized():
    """An asynchronous failure belongs to the test that caused it."""
    yield
    torch.cuda.synchronize()


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", list(itertools.product(DTYPES, DTYPES)), ids=str)
@pytest.mark.parametrize("function,log_target", FORMS)
def test_values_and_gradients(function, log_target, types):
    """Against exact ones; types, shapes and device of the results."""
    generator = samples.random("cuda values %s %s %s" % (function, log_target, types))
    for shape in ((7, 33), (40, 400)):
        inputs = [x.cuda().requires_grad_() for x in pair(generator, shape, function, log_target, types)]
        value, to_predictions, to_targets = exact(function, *inputs, log_target)
        scale = samples.magnitude(function, *inputs, log_target)
        for reduction in ALL_REDUCTIONS:
            found = ours(function, *inputs, reduction=reduction, log_target=log_target)
            assert found.is_cuda and found.dtype == torch.promote_types(*types)
            over = {"mean": value.size, "batchmean": shape[0]}.get(reduction, 1)
            computed = torch.finfo(torch.float64 if torch.float64 in types else torch.float32)
            for result, expected, room in zip(
                    (found,) + torch.autograd.grad(found.sum(), inputs),
                    (samples.reduce_exact(value, reduction, shape), to_predictions / over, to_targets / over),
                    (samples.reduce_exact(scale, reduction, shape), abs(to_predictions) / over, 3 / over)):
                error = numpy.abs(samples.as_exact(result) - expected)
                allowed = samples.ulp(result.dtype, expected) + 16 * computed.eps * numpy.maximum(abs(expected), room)
                assert result.is_cuda and samples.largest(error / allowed) <= 1


@pytest.mark.parametrize("function,log_target", FORMS)
def test_no_more_error_than_pytorchs(function, log_target):
    """Over several draws, sums of many elements."""
    generator = samples.random("cuda errors %s %s" % (function, log_target))
    errors = numpy.zeros(2)
    for _ in range(8):
        inputs = on_gpu(pair(generator, (200, 3000), function, log_target))
        expected = exact(function, *inputs, log_target)[0].sum() / 200
        for i, f in enumerate((ours, theirs)):
            found = f(function, *inputs, reduction="batchmean", log_target=log_target)
            errors[i] += abs(float(samples.as_exact(found) - expected)) / float(abs(expected))
    print("mean relative error %.3g, PyTorch's %.3g" % tuple(errors / 8))
    assert errors[0] <= errors[1] + 8 * 2.0**-23


def test_special_values():
    """Zeros, infinities and NaN among ordinary numbers: the CPU's values and gradients, in both semantics."""
    numbers = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -1.0, 0.25, 0.5, 1.5, 80.0, -80.0, 1e-30, 1e-42])
    a, b = (x.flatten() for x in torch.meshgrid(numbers, numbers))
    for (function, log_target), semantics in itertools.product(FORMS, ("strict", "finite")):
        results = []
        for device in ("cpu", "cuda"):
            inputs = [x.to(device).requires_grad_() for x in (a, b)]
            value = ours(function, *inputs, reduction="none", log_target=log_target, semantics=semantics)
            results.append([value.detach().cpu()] + [g.cpu() for g in torch.autograd.grad(value.sum(), inputs)])
        for what, cpu, gpu in zip(("value", "d/prediction", "d/target"), *results):
            close = torch.allclose(cpu, gpu, rtol=1e-5, atol=1e-30, equal_nan=True)
            assert close, (function, log_target, semantics, what)


def test_layouts_weights_and_masks():
    generator = samples.random("cuda layouts")
    p, t = on_gpu(pair(generator, (9, 14), "kl_div_probs"))
    weights, mask = torch.rand(9, generator=generator).cuda(), (torch.rand(9, generator=generator) < 0.6).cuda()
    expected = {r: ours("kl_div_probs", p.cpu(), t.cpu(), reduction=r, row_weights=weights.cpu(), row_mask=mask.cpu())
                for r in ALL_REDUCTIONS}
    for a, b in itertools.product(samples.layouts(p).values(), samples.layouts(t).values()):
        a = a.masked_fill(~mask[:, None], math.nan) if a.is_contiguous() else a
        for reduction in ALL_REDUCTIONS:
            found = ours("kl_div_probs", a, b, reduction=reduction, row_weights=weights, row_mask=mask)
            assert torch.allclose(found.cpu(), expected[reduction], rtol=1e-5, atol=1e-8)


def test_broadcasting_and_empty():
    p, t = leaves("broadcasting", (5, 8))
    for inputs in ((p, t[0]), (p[:1], t), (p, t[0, 0]), (p[:0], t[:0]), (p[:, :0], t[:, :0])):
        for reduction in samples.REDUCTIONS:
            found = ours("kl_div_probs", *inputs, reduction=reduction)
            expected = theirs("kl_div_probs", *inputs, reduction=reduction)
            assert found.shape == expected.shape
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
def test_double_backward(shape):
    inputs = leaves("double backward", shape, dtype=torch.float64)
    results = []
    for f in (ours, theirs):
        first = torch.autograd.grad(f("kl_div_probs", *inputs, reduction="batchmean"), inputs, create_graph=True)
        results.append(torch.autograd.grad(sum((g * g).sum() for g in first), inputs))
    assert all(torch.allclose(a, b, rtol=1e-8) for a, b in zip(*results))


def test_the_same_bits_every_time():
    inputs = leaves("bits", (500, 2000))
    first = (ours("kl_div_probs", *inputs).detach(),) + gradients(inputs)
    for _ in range(5):
        torch.cuda._sleep(int(1e6))
        again = (ours("kl_div_probs", *inputs).detach(),) + gradients(inputs)
        assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
def test_upstream_gradients(shape):
    """Bits do not depend on what was expected; a tensor that changes in place is read when backward runs."""
    inputs = leaves("upstream", shape)
    one = gradients(inputs)
    upstreams = [1.0, 4.0, 4.0, 0.5, 0.0, math.nan, 1.0, math.inf, 2.0]
    for number in upstreams:
        found = gradients(inputs, torch.tensor(number, device="cuda"))
        if math.isnan(number):
            assert all(g.isnan().all() for g in found)
        elif math.isfinite(number):
            assert all(torch.equal(g, o * number) for g, o in zip(found, one)), number
    upstream = torch.tensor(4.0, device="cuda")
    gradients(inputs, upstream)
    for change, number in ((upstream.fill_, 8.0), (upstream.data.fill_, 16.0)):
        value = ours("kl_div_probs", *inputs)
        change(number)
        assert torch.equal(torch.autograd.grad(value, inputs, upstream)[0], one[0] * number)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", ["kl_div", "kl_div_probs"])
def test_gradient_alone_of_every_element(function, dtype):
    """To the predictions only, with an upstream gradient for each element: other kernels than those of a sum."""
    generator = samples.random("cuda elements %s %s" % (function, dtype))
    p, t = (x.cuda() for x in pair(generator, LARGE, function, False, (dtype, dtype)))
    upstream = torch.rand(LARGE, generator=generator).to(dtype).cuda()
    results = []
    for f, kind in ((ours, dtype), (theirs, torch.float64)):
        leaf = p.to(kind).requires_grad_()
        value = f(function, leaf, t.to(kind), reduction="none")
        results.append(torch.autograd.grad(value, leaf, upstream.to(kind))[0].double())
    info = torch.finfo(dtype)
    # tiny * eps is the smallest number above 0: what is rounded to a multiple of it is off by up to half of it
    assert torch.allclose(*results, rtol=4 * info.eps, atol=0.51 * info.tiny * info.eps)


def test_autocast():
    p, t = leaves("autocast", (20, 50), dtype=torch.float16)
    with torch.cuda.amp.autocast() if samples.VERSION < (2, 4) else torch.autocast("cuda"):
        found, expected = ours("kl_div_probs", p, t, reduction="sum"), theirs("kl_div_probs", p, t, reduction="sum")
    assert found.dtype == expected.dtype == torch.float32 and torch.allclose(found, expected, rtol=1e-2)
    assert [g.dtype for g in torch.autograd.grad(found, (p, t))] == [torch.float16] * 2


def test_wrong_devices():
    p, t = (x.detach() for x in leaves("devices", (4, 5)))
    for inputs in ((p.cpu(), t), (p, t.cpu())):
        with pytest.raises(RuntimeError, match="device|pointer|memory"):
            onepass.torch.kl_div_probs(*inputs)
    for option in ({"row_weights": torch.ones(4)}, {"row_mask": torch.ones(4).bool()}):
        with pytest.raises(RuntimeError, match="device|pointer|memory"):
            onepass.torch.kl_div_probs(p, t, **option)
    with pytest.raises((RuntimeError, TypeError, BufferError)):
        onepass.kl_div_probs(p, t)
    assert onepass.torch.kl_div_probs(p, t).isfinite()


# ---- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
def test_the_current_stream_is_honoured(shape):
    """Behind a long kernel on a side stream that only then brings the numbers: on any other stream the work would read
    the old ones."""
    p, t = (x.detach() for x in leaves("streams", shape))
    late, upstream = torch.full_like(p, math.nan), torch.tensor(2.0, device="cuda")
    leaf = p.clone().requires_grad_()
    expected = ours("kl_div_probs", leaf, t)
    expected = (expected.detach(),) + torch.autograd.grad(expected, leaf, upstream)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for _ in range(3):
        late.fill_(math.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(int(5e7))
            late.copy_(p)
            leaf = late.detach().requires_grad_()
            value = ours("kl_div_probs", leaf, t)
            gradient, = torch.autograd.grad(value, leaf, upstream)
        side.synchronize()
        assert torch.equal(value.detach(), expected[0]) and torch.equal(gradient, expected[1])


def test_streams_beside_each_other():
    """Threads with a stream and an upstream gradient each."""
    jobs = [leaves("thread %d" % i, (130 + i, 500)) for i in range(6)]
    expected = [gradients(job, torch.tensor(float(2**i), device="cuda")) for i, job in enumerate(jobs)]
    torch.cuda.synchronize()
    failures = []

    def run(i):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    found = gradients(jobs[i], torch.tensor(float(2**i), device="cuda"))
                    torch.cuda.current_stream().synchronize()
                    assert all(map(torch.equal, found, expected[i]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_a_device_that_is_not_the_current_one():
    p, t = pair(samples.random("cuda devices"), LARGE, "kl_div_probs")
    expected = ours("kl_div_probs", p.cuda(0), t.cuda(0))
    with torch.cuda.device(0):
        leaf = p.to("cuda:1").requires_grad_()
        value = ours("kl_div_probs", leaf, t.to("cuda:1"))
        value.backward()
        assert torch.cuda.current_device() == 0
    assert value.device.index == 1 and leaf.grad.device.index == 1
    assert torch.allclose(value.cpu(), expected.cpu(), rtol=1e-6)
    with pytest.raises(RuntimeError):
        onepass.torch.kl_div_probs(p.cuda(0), t.cuda(1))


def test_the_host_never_waits():
    """PyTorch's own alarm for synchronisation, and a long kernel that the calls must not wait for."""
    inputs = leaves("no waiting", LARGE)
    upstream = torch.tensor(3.0, device="cuda")
    gradients(inputs, upstream)
    ours("kl_div_probs", *inputs, reduction="rows")
    torch.cuda.synchronize()
    debug = getattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    debug("error")
    try:
        start = time.perf_counter()
        torch.cuda._sleep(int(2e9))  # about a second
        for number in (1.0, 3.0):
            gradients(inputs, upstream * number)
            ours("kl_div_probs", *inputs, reduction="rows")
        queued = time.perf_counter() - start
    finally:
        debug("default")
    torch.cuda.synchronize()
    total = time.perf_counter() - start
    print("queued in %.1f ms, done in %.1f ms" % (queued * 1e3, total * 1e3))
    assert queued < total / 4


# ---- graphs ----------------------------------------------------------------------------------------------------------


def captured(work):
    """(graph, what the work returned while it was captured), after the warm-up that capturing asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
@pytest.mark.parametrize("reduction", ["batchmean", "rows", "none"])
def test_graphs(reduction, shape):
    """Forward and backward captured once, replayed with other numbers, other upstream gradients too. Two graphs,
    replayed in turn, and eager calls between them."""
    generator = samples.random("cuda graphs")
    graphs = []
    for scale in (1.0, 5.0):
        inputs = [x.cuda().requires_grad_() for x in pair(generator, shape, "kl_div_probs")]
        upstream = torch.full(ours("kl_div_probs", *inputs, reduction=reduction).shape, scale, device="cuda")

        def work(inputs=inputs, upstream=upstream):
            value = ours("kl_div_probs", *inputs, reduction=reduction)
            return (value.detach(),) + torch.autograd.grad(value, inputs, upstream)

        graphs.append((inputs, upstream) + captured(work))
    for _ in range(3):
        for inputs, upstream, graph, results in graphs:
            fresh = on_gpu(pair(generator, shape, "kl_div_probs"))
            with torch.no_grad():
                for x, new in zip(inputs, fresh):
                    x.copy_(new)
            upstream.add_(1)
            graph.replay()
            replayed = [x.clone() for x in results]
            fresh = [x.requires_grad_() for x in fresh]
            value = ours("kl_div_probs", *fresh, reduction=reduction)
            expected = (value.detach(),) + torch.autograd.grad(value, fresh, upstream)
            assert all(map(torch.equal, replayed, expected))


# ---- memory and time -------------------------------------------------------------------------------------------------


def peak_of(work):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_peak_memory(dtype):
    """Forward: under 1 MiB. Forward and backward: the gradient alone and under 1 MiB."""
    p, t = leaves("peak", (4096, 8192), dtype=dtype)
    t = t.detach()
    ours("kl_div_probs", p, t).backward()
    p.grad = None
    with torch.no_grad():
        used, _ = peak_of(lambda: ours("kl_div_probs", p, t))
    assert used < MIB
    used, _ = peak_of(lambda: ours("kl_div_probs", p, t).backward())
    size = p.numel() * p.element_size()
    print("forward and backward: the gradient and %.3f MiB" % ((used - size) / MIB))
    assert size <= used < size + MIB
    p.grad = None
    used, _ = peak_of(lambda: (ours("kl_div_probs", p, t) * 3).backward())
    assert used < size + MIB, "with another upstream gradient too"


def test_loops_leave_nothing():
    inputs = leaves("loops", LARGE)
    sizes = []
    for steps in (100, 3000):
        for step in range(steps):
            for x in inputs:
                x.grad = None
            (ours("kl_div_probs", *inputs) * (step % 5 + 1)).backward()
        torch.cuda.synchronize()
        sizes.append(torch.cuda.memory_allocated())
    assert sizes[1] <= sizes[0]


def microseconds(work, calls=300, rounds=20):
    """The host's time a call: the least of several runs, with nothing to wait for in between."""
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return best * 1e6


def test_time_of_the_host():
    """A call of forward takes the host under 12 microseconds, or on a slow host a third of PyTorch's time. Other
    figures are printed, and each is below PyTorch's."""
    p, t = (x.detach() for x in leaves("host time", (64, 1000)))
    x = p.log()
    leaf, log_leaf = p.clone().requires_grad_(), x.clone().requires_grad_()

    def step(f, a):
        a.grad = None
        f(a).backward()

    times = {
        "kl_div_probs": (lambda: onepass.torch.kl_div_probs(p, t), lambda: F.kl_div(p.log(), t, reduction="batchmean")),
        "kl_div": (lambda: onepass.torch.kl_div(x, t, reduction="batchmean"),
                   lambda: F.kl_div(x, t, reduction="batchmean")),
        "kl_div_probs and backward": (
            lambda: step(lambda a: onepass.torch.kl_div_probs(a, t), leaf),
            lambda: step(lambda a: F.kl_div(a.log(), t, reduction="batchmean"), leaf)),
        "kl_div and backward": (
            lambda: step(lambda a: onepass.torch.kl_div(a, t, reduction="batchmean"), log_leaf),
            lambda: step(lambda a: F.kl_div(a, t, reduction="batchmean"), log_leaf)),
    }
    for name, (mine, rival) in times.items():
        for attempt in range(5):
            found, other = microseconds(mine), microseconds(rival)
            print("%s: %.1f us, PyTorch %.1f" % (name, found, other))
            if found < other and ("backward" in name or found < max(12, other / 3)):
                break
        else:
            pytest.fail("%s: %.1f us, PyTorch %.1f" % (name, found, other))


def test_a_training_step_with_a_gradient_scaler():
    """Autocast, a scaler that changes its scale, gradients unscaled: the parameters that PyTorch's loss gives."""
    generator = samples.random("cuda scaler")
    data = torch.randn(64, 32, generator=generator).cuda()
    targets = samples.probabilities(generator, (64, 500)).cuda()
    start = torch.randn(32, 500, generator=generator).cuda() * 0.1
    finals = []
    for f in (ours, theirs):
        weight = start.clone().requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scaler = torch.cuda.amp.GradScaler(growth_interval=2) if samples.VERSION < (2, 4) else torch.amp.GradScaler(
            "cuda", growth_interval=2)
        for _ in range(8):
            optimizer.zero_grad()
            with torch.cuda.amp.autocast() if samples.VERSION < (2, 4) else torch.autocast("cuda"):
                logits = data @ weight
                loss = f("kl_div", logits.float().log_softmax(-1), targets, reduction="batchmean")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        finals.append(weight.detach())
    assert torch.allclose(*finals, rtol=1e-3, atol=1e-4) and not torch.allclose(finals[0], start, atol=1e-3)


@samples.needs_func
def test_transforms_and_compile():
    p, t = (x.detach() for x in leaves("transforms", (4, 30, 50)))
    loss = onepass.torch.kl_div_probs
    for function in (torch.func.vmap(loss), torch.func.grad(loss), torch.func.vmap(torch.func.grad(loss))):
        assert torch.allclose(function(p, t).cpu(), function(p.cpu(), t.cpu()), rtol=1e-4, atol=1e-7)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: loss(a, b) * 2, fullgraph=True)
    leaf = p.clone().requires_grad_()
    compiled(leaf, t).backward()
    assert torch.allclose(leaf.grad, 2 * torch.func.grad(loss)(p, t), rtol=1e-5)
