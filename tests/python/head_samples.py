"""What the tests of the head share: the chain of PyTorch's modules that it replaces, drawn models and inputs, one step
of training, and what it means that two of them agree."""

import copy
import math

import pytest

import torch_samples as samples
from torch_samples import torch

from onepass.torch import LinearBatchNormSoftmax, linear_batch_norm_softmax

nn = torch.nn
CLOSE = 1e-12  # of float64's 1.1e-16: what a few hundred roundings may add up to


class Chain(nn.Module):
    """What is replaced."""

    def __init__(self, in_features, out_features, bn_eps=1e-5, bn_momentum=0.1, scale_shape=(1,), bias=True,
                 affine=True, track_running_stats=True):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=bias)
        self.bn = nn.BatchNorm1d(out_features, eps=bn_eps, momentum=bn_momentum, affine=affine,
                                 track_running_stats=track_running_stats)
        self.scale = nn.Parameter(torch.ones(scale_shape))
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        return self.softmax(self.scale * self.bn(self.gemm(x)))


def off(found, expected, size=None):
    """Norm of the error relative to that of the expected tensor, or to `size`; NaN is infinite."""
    error = float((found.detach().double() - expected.detach().double()).norm())
    size = float(expected.detach().double().norm()) if size is None else size
    return math.inf if error != error else error / size if size else error


def models(generator, inputs, outputs, dtype=torch.float64, device="cpu", **options):
    """(ours, theirs) with the same state, none of it at its first value. Scale, gamma and the variances are of about
    its size: where they are large outputs are nearly one-hot, and gradients what rounding leaves of a difference."""
    theirs = Chain(inputs, outputs, **options)
    with torch.no_grad():
        for name, tensor in list(theirs.named_parameters()) + list(theirs.named_buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * (0.3 if "gemm" in name else 1))
            if name in ("scale", "bn.weight"):
                tensor.copy_(torch.sign(tensor) * (0.5 + torch.rand(tensor.shape, generator=generator)))
            if name in ("bn.running_var", "bn.bias"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + (0.5 if "var" in name else -0.5))
    theirs = theirs.to(device=device, dtype=dtype)
    ours = LinearBatchNormSoftmax(inputs, outputs, **options).to(device=device, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def draw(generator, rows, columns, dtype=torch.float64, device="cpu"):
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)


def step(model, x, upstream):
    """{name: tensor}: output, gradients, buffers. Gradients of the model are new ones."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    output = model(x)
    output.backward(upstream.to(output.dtype))
    made = {"output": output.detach(), "x": x.grad}
    made.update((name, parameter.grad.clone()) for name, parameter in model.named_parameters())
    made.update((name, buffer.clone()) for name, buffer in model.named_buffers())
    return made


def draw_step(generator, model, rows):
    """(input, gradient to the output) of a step in which at least 0.1 is left of every gradient but the scale's: no
    rounding is large beside it. Where there are many rows each has less of a gradient: that of a scale is one number,
    and its roundings add up like the root of theirs (docs/numerics.md, Errors of the head)."""
    parameter = model.gemm.weight
    columns, inputs = parameter.shape
    means = torch.linspace(-1, 1, columns, dtype=torch.float64)  # sums over the rows are not what random signs leave
    for _ in range(1000):
        x = draw(generator, rows, inputs, parameter.dtype, parameter.device)
        upstream = (draw(generator, rows, columns) + means) * min(1.0, 12 / rows) ** 0.5
        upstream = upstream.to(x)
        made = step(copy.deepcopy(model), x, upstream)
        bias_is_0 = model.bn.training or model.bn.running_mean is None
        left = [float(made[name].double().norm()) for name in ["x"] + [name for name, _ in model.named_parameters()]
                if name != "scale" and not (name == "gemm.bias" and bias_is_0)]
        if min(left) >= 0.1:
            return x, upstream
    pytest.fail("no step in a thousand leaves 0.1 of every gradient")


def check(found, expected, batch_statistics, limit=CLOSE):
    assert list(found) == list(expected)
    for name in expected:
        a, b = found[name], expected[name]
        assert a.shape == b.shape and a.dtype == b.dtype and a.device == b.device, name
        if name == "gemm.bias" and batch_statistics:  # theirs is rounding noise
            assert not a.any() and float(b.abs().max()) < 1e-10
        else:
            error = off(a, b, 0.1 if name == "scale" else None)  # one number, and what is added up is larger
            assert error <= limit, (name, error)


@pytest.fixture
def calls(monkeypatch):
    """What the library was asked for: ("head" or "head_backward", its arguments)."""
    return samples.watched(monkeypatch, "head", "head_backward")


def functional(x, weight, bias, gamma, beta, scale, training):
    mean, var = torch.linspace(-1, 1, 4, dtype=x.dtype), torch.linspace(0.5, 2, 4, dtype=x.dtype)
    return linear_batch_norm_softmax(x, weight, bias, mean, var, gamma, beta, scale, training, 0.1, 1e-3)


def leaves(generator, scale=1):
    shapes = ((6, 3), (4, 3), (4,), (4,), (4,), (scale,))
    return [samples.leaf(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


class Round(torch.autograd.Function):
    """Rounds a value to a type, and the gradient that comes back to it."""

    @staticmethod
    def forward(ctx, tensor, dtype):
        ctx.dtype = dtype
        return tensor.to(dtype).to(tensor.dtype)

    @staticmethod
    def backward(ctx, upstream):
        return upstream.to(ctx.dtype).to(upstream.dtype), None


class Rounded(nn.Module):
    """A chain in float32 with every result and gradient rounded to a type that this PyTorch has no kernels for."""

    def __init__(self, chain, dtype):
        super().__init__()
        chain = copy.deepcopy(chain).float()
        self.gemm, self.bn, self.scale, self.dtype = chain.gemm, chain.bn, chain.scale, dtype

    def forward(self, x):
        normalised = Round.apply(self.bn(Round.apply(self.gemm(x), self.dtype)), self.dtype)
        return Round.apply(torch.softmax(Round.apply(self.scale * normalised, self.dtype), 1), self.dtype)

    def step(self, x, upstream):
        return {result: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
                for result, tensor in step(self, x.float(), upstream.float()).items()}
