"""float32 without TF32: errors of linear and of the head against float64 beside those of PyTorch's own float32 (on a
GPU cuBLAS's), in one run, on uniform and Gaussian inputs and on columns whose mean is 10^4 times their spread. The same
on the CPU, at smaller sizes. Both errors are printed.

Limits are PyTorch's errors with room for what is its affair or chance: cuBLAS may cut the long sum of a product into
parts, which halves its error, for one of the two and not for the other. Where the products are the library's own, on
Hopper, there is no room: they must be closer to the exact ones."""

import copy
import math

import pytest

import torch_samples as samples
from torch_samples import F, needs_cuda, torch

import onepass.torch

KINDS = ("uniform", "gaussian", "far")
SMALL, LARGE = (96, 200, 160), (1024, 2048, 4096)  # batch, inputs, outputs
OUTPUT_LIMIT, GRADIENT_LIMIT = 1.5, 2.0  # times PyTorch's error
DRAWS = 3  # errors are means over so many


@pytest.fixture
def no_tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def draw_input(kind, generator, batch, inputs):
    """"far": y has a mean of about 10^4 times its deviation, as x has."""
    if kind == "uniform":
        return torch.rand(batch, inputs, generator=generator)
    return torch.randn(batch, inputs, generator=generator) + (1e4 if kind == "far" else 0)


def off(found, exact):
    """Frobenius norm of the error relative to the exact; NaN is infinite."""
    error = float((found.detach().double() - exact.detach()).norm() / exact.detach().norm())
    return math.inf if error != error else error


def mean_errors(pairs):
    """[{result: (ours, theirs)}] -> {result: means}"""
    return {name: tuple(sum(pair[name][side] for pair in pairs) / len(pairs) for side in (0, 1)) for name in pairs[0]}


def check(label, errors, closer=()):
    """closer: results whose errors must be smaller than PyTorch's where products are the library's own."""
    eps = torch.finfo(torch.float32).eps
    own = "CUDA" in label and torch.cuda.get_device_capability()[0] == 9
    for name, (ours, theirs) in errors.items():
        print("%s, %s: error %.2e, PyTorch's %.2e" % (label, name, ours, theirs))
    for name, (ours, theirs) in errors.items():
        assert theirs < 1, (label, name, theirs)  # there is something to compare with
        limit = 1.0 if own and name in closer else OUTPUT_LIMIT if name == "output" else GRADIENT_LIMIT
        assert ours <= max(limit * theirs, eps / 2), (label, name, ours, theirs)


def step(call, leaves, upstream):
    """Output and gradients to the leaves."""
    output = call()
    return [output] + list(torch.autograd.grad(output, leaves, upstream.to(output.dtype)))


def compare(names, exact, ours, theirs):
    return {name: (off(a, e), off(b, e)) for name, e, a, b in zip(names, exact, ours, theirs)}


# ---- linear ----------------------------------------------------------------------------------------------------------


def linear_errors(kind, device, shape):
    generator = samples.random("linear errors %s %s" % (kind, device))
    batch, inputs, outputs = shape
    pairs = []
    for _ in range(DRAWS):
        host = [draw_input(kind, generator, batch, inputs),
                (torch.rand(outputs, inputs, generator=generator) * 2 - 1) / inputs ** 0.5,
                torch.randn(outputs, generator=generator)]
        upstream = torch.randn(batch, outputs, generator=generator).to(device)
        tensors = [tensor.to(device).requires_grad_() for tensor in host]
        wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
        pairs.append(compare(("output", "input", "weight", "bias"),
                             step(lambda: F.linear(*wide), wide, upstream),
                             step(lambda: onepass.torch.linear(*tensors), tensors, upstream),
                             step(lambda: F.linear(*tensors), tensors, upstream)))
    return mean_errors(pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_linear_errors(kind):
    check("linear, CPU, " + kind, linear_errors(kind, "cpu", SMALL))


@needs_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_linear_errors_cuda(kind, no_tf32):
    check("linear, CUDA, " + kind, linear_errors(kind, "cuda", LARGE), ("output", "input", "weight"))


# ---- head ------------------------------------------------------------------------------------------------------------


class Chain(torch.nn.Module):
    """PyTorch's chain, on the state of a LinearBatchNormSoftmax."""

    def __init__(self, head):
        super().__init__()
        self.gemm, self.bn, self.scale = head.gemm, head.bn, head.scale

    def forward(self, x):
        return torch.softmax(self.scale * self.bn(self.gemm(x)), 1)


def head_errors(kind, train, device, shape):
    generator = samples.random("head errors %s %s %s" % (kind, train, device))
    batch, inputs, outputs = shape
    pairs = []
    for _ in range(DRAWS):
        ours = onepass.torch.LinearBatchNormSoftmax(inputs, outputs, scale_shape=(outputs,))
        x = draw_input(kind, generator, batch, inputs)
        with torch.no_grad():
            for name, parameter in ours.named_parameters():
                low, width = (-1, 2) if "gemm" in name else (0.5, 1)
                parameter.copy_((low + width * torch.rand(parameter.shape, generator=generator))
                                / (inputs ** 0.5 if "gemm" in name else 1))
        ours, x = ours.to(device), x.to(device)
        with torch.no_grad():
            y = F.linear(x.double(), ours.gemm.weight.double(), ours.gemm.bias.double())
            ours.bn.running_mean.copy_(y.mean(0))
            ours.bn.running_var.copy_(y.var(0))
        upstream = torch.randn(batch, outputs, generator=generator).to(device)
        found = []
        for model, input in ((Chain(copy.deepcopy(ours)).double(), x.double()), (ours, x),
                             (Chain(copy.deepcopy(ours)), x)):
            model.train(train)
            leaf = input.detach().requires_grad_()
            leaves = {"input": leaf}
            # With the batch's statistics the gradients of y add up to 0 over a column. So the bias's is 0, and far
            # from 0 the weight's has no digit left in float32, ours or PyTorch's.
            without = (("gemm.bias",) + (("gemm.weight",) if kind == "far" else ())) if train else ()
            leaves.update((name, parameter) for name, parameter in model.named_parameters() if name not in without)
            found.append(step(lambda: model(leaf), list(leaves.values()), upstream))
        pairs.append(compare(["output"] + list(leaves), *found))
    return mean_errors(pairs)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", KINDS)
def test_head_errors(kind, train):
    check("head, CPU, %s, %s" % (kind, "train" if train else "eval"), head_errors(kind, train, "cpu", SMALL))


@needs_cuda
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", KINDS)
def test_head_errors_cuda(kind, train, no_tf32):
    check("head, CUDA, %s, %s" % (kind, "train" if train else "eval"), head_errors(kind, train, "cuda", LARGE),
          ("output",))
