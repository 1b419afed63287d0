"""What a call costs beside PyTorch's, at sizes where the call is most of it. On one thread of the CPU.

The two are timed in turn, by the time that the thread had the processor, until it is clear which is cheaper. Every ratio
is printed. Before PyTorch 2.0 going back through any function written in Python costs about as much as PyTorch's own
kl_div of ten numbers does in all. There the two take the same time, and chance decides which is the faster one: what is
held at small sizes is that ours costs less than PyTorch's and a function of Python's that does nothing.
"""

import gc
import subprocess
import sys
import time

import pytest

import torch_samples as samples
import turns
from torch_samples import F, torch

import onepass.torch
from onepass.torch import route

SHAPES = [(1, 10), (8, 100), (32, 1000), (128, 4096)]
WORK = ["forward", "forward with grad", "forward and backward"]


PAIRS = {
    "kl_div": (lambda x, t: onepass.torch.kl_div(x, t, reduction="batchmean"),
               lambda x, t: F.kl_div(x, t, reduction="batchmean")),
    "kl_div_probs": (lambda p, t: onepass.torch.kl_div_probs(p, t),
                     lambda p, t: F.kl_div(p.log(), t, reduction="batchmean")),
}


class Nothing(torch.autograd.Function):
    """A function written in Python that does nothing, there and back."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.fixture
def one_thread():
    """And nobody's garbage is collected meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    torch.set_num_threads(before)


def task(loss, work, inputs):
    x, t = inputs
    if work == "forward":
        return lambda: loss(x, t)
    x.requires_grad_()
    if work == "forward with grad":
        return lambda: loss(x, t)

    def step():
        x.grad = None
        loss(x, t).backward()
    return step


def repeated(work, calls):
    def run():
        for _ in range(calls):
            work()
    return run


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("function", PAIRS)
def test_cheaper_than_pytorch(function, shape, work, one_thread):
    generator = samples.random("overhead")
    inputs = samples.pair(generator, shape, function)
    losses = list(PAIRS[function])
    if samples.VERSION < (2, 0) and shape in SHAPES[:2] and work == "forward and backward":
        plain = losses[1]
        losses[1] = lambda x, t: Nothing.apply(plain(x, t))
    ours, theirs = [task(loss, work, [x.clone() for x in inputs]) for loss in losses]
    theirs()
    begun = time.thread_time()
    repeated(theirs, 3)()
    calls = max(1, min(200, int(6e-3 / max(time.thread_time() - begun, 1e-6))))  # a run of about two milliseconds
    share, mine, other = turns.share(repeated(ours, calls), repeated(theirs, calls), 1)
    found = "%.1f us, PyTorch %.1f: %.2f" % (mine / calls * 1e6, other / calls * 1e6, share)
    print("%s %s, %s: %s" % (function, shape, work, found))
    assert share < 1, "slower than PyTorch: %s" % found


class Chain(torch.nn.Module):
    """A head in PyTorch's operations, with the modules of ours."""

    def __init__(self, head):
        super().__init__()
        self.gemm, self.bn, self.scale = head.gemm, head.bn, head.scale

    def forward(self, x):
        return torch.softmax(self.scale * self.bn(self.gemm(x)), 1)


@pytest.mark.skipif(not route.HAS_PLAIN, reason="before PyTorch 2.10 tensors are read by their attributes")
@pytest.mark.parametrize("name,bound", [("linear", 1.5), ("head", 1.0)])
def test_plain_calls(name, bound, one_thread):
    """The smallest ones, without gradients. A linear layer takes 1.1 of PyTorch's time, and 2.6 if it goes through
    Python; a head takes three quarters."""
    head = onepass.torch.LinearBatchNormSoftmax(8, 8).eval()
    x, w, b = torch.randn(1, 8), head.gemm.weight.detach(), head.gemm.bias.detach()
    chain = Chain(head)
    ours, theirs = {"linear": (lambda: onepass.torch.linear(x, w, b), lambda: F.linear(x, w, b)),
                    "head": (lambda: head(x), lambda: chain(x))}[name]
    with torch.no_grad():
        share, mine, other = turns.share(repeated(ours, 200), repeated(theirs, 200), bound)
    found = "%.1f us, PyTorch %.1f: %.2f" % (mine / 200 * 1e6, other / 200 * 1e6, share)
    print("%s: %s" % (name, found))
    assert share < bound, "slower than %g of PyTorch's: %s" % (bound, found)


# The most that importing them may take of what importing PyTorch takes.
IMPORTS = {"onepass": 0.05, "onepass.torch": 0.2 if samples.VERSION < (2, 0) else 0.1}


def test_import():
    """By the time that the process had the processor. One of a few is enough: the first may compile the sources."""
    program = """if True:
        import time
        taken = [time.process_time()]
        import onepass
        taken.append(time.process_time())
        import torch
        taken.append(time.process_time())
        import onepass.torch
        taken.append(time.process_time())
        print(*taken)
    """
    least = dict.fromkeys(IMPORTS, 1.0)
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE,
                              universal_newlines=True)
        begun, alone, torch_too, all_of_it = (float(word) for word in done.stdout.split())
        taken = {"onepass": alone - begun, "onepass.torch": alone - begun + all_of_it - torch_too}
        for name in IMPORTS:
            least[name] = min(least[name], taken[name] / (torch_too - alone))
        print("import: %s; PyTorch %.3f s" % (", ".join("%s %.3f s" % pair for pair in taken.items()), torch_too - alone))
        if all(least[name] < IMPORTS[name] for name in IMPORTS):
            return
    pytest.fail("shares of what importing PyTorch takes: %s" % least)
