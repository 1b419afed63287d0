"""What a user of any release does first: a plain torch.compile, with gradients and without, of every function. These
run on every release (./dev releases), and none of them is skipped where torch.compile is there."""

import sys

import pytest

import torch_samples as samples
from torch_samples import F, pair, torch

import onepass.torch

HAS_COMPILE = samples.VERSION >= (2, 1) or (samples.VERSION == (2, 0) and sys.version_info < (3, 11))
if HAS_COMPILE:
    import torch._dynamo
pytestmark = pytest.mark.skipif(not HAS_COMPILE, reason="PyTorch %d.%d has no torch.compile with this Python" %
                                samples.VERSION)


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", **options)


def both(function, inputs, upstream_of):
    """(value, gradients to all inputs) of a function."""
    leaves = [samples.leaf(tensor) for tensor in inputs]
    value = function(*leaves)
    return [value.detach()] + list(torch.autograd.grad(value, leaves, upstream_of(value)))


def close(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.dtype is b.dtype and a.shape == b.shape and bool(b.isfinite().all()) and bool(b.any())
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


CALLS = {
    "kl_div_probs": lambda a, b: onepass.torch.kl_div_probs(a, b) * 2,
    "kl_div": lambda a, b: onepass.torch.kl_div(a.log(), b, reduction="sum") * 2,
    "broadcast": lambda a, b: onepass.torch.kl_div_probs(a, b[:1]) * 2,
    "linear": lambda a, b: onepass.torch.linear(a, b) * 2,
    "head": lambda a, b: onepass.torch.linear_batch_norm_softmax(
        a, b, None, None, None, None, None, None, True, 0.1, 1e-5) * 2,
}


def ones(value):
    return torch.ones_like(value) + torch.arange(value.numel()).reshape(value.shape)


@pytest.mark.parametrize("name", CALLS)
def test_compile(name, capfd):
    """As it comes: no gradient, none recorded, inference, and with gradients; nothing is written to the terminal."""
    inputs = pair(samples.random("releases, " + name), (5, 8), "kl_div_probs")
    function = CALLS[name]
    expected = function(*inputs)
    f = compiled(function)
    capfd.readouterr()
    close([f(*inputs)], [expected])
    with torch.no_grad():
        close([f(*map(samples.leaf, inputs))], [expected])
    if samples.VERSION >= (2, 1):  # 2.0 compiles nothing there, of its own functions neither
        with torch.inference_mode():
            close([f(*inputs)], [expected])
    close(both(f, inputs, ones), both(function, inputs, ones))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", CALLS)
def test_compile_whole(name):
    """In one graph from 2.1 on."""
    if samples.VERSION < (2, 1):
        pytest.skip("PyTorch %d.%d breaks the graph" % samples.VERSION)
    inputs = pair(samples.random("whole, " + name), (5, 8), "kl_div_probs")
    function = CALLS[name]
    f = compiled(function, fullgraph=True)
    close([f(*inputs)], [function(*inputs)])
    close(both(f, inputs, ones), both(function, inputs, ones))


def test_compile_modules():
    """Losses and a head as modules, in training and in evaluation; PyTorch's own beside them."""
    generator = samples.random("releases, modules")

    class Model(torch.nn.Module):
        def __init__(self, head, loss):
            super().__init__()
            self.head, self.loss = head, loss

        def forward(self, x, t):
            return self.loss(self.head(x).log(), t)

    torch.manual_seed(samples.SEED)
    head = onepass.torch.LinearBatchNormSoftmax(6, 9)
    model = Model(head, onepass.torch.KLDivLoss(reduction="batchmean"))
    x, t = torch.randn(7, 6, generator=generator), samples.probabilities(generator, (7, 9))
    for training in (True, False):
        model.train(training)
        z = F.linear(x, head.gemm.weight, head.gemm.bias)
        z = F.batch_norm(z, head.bn.running_mean.clone(), head.bn.running_var.clone(), head.bn.weight, head.bn.bias,
                         training)
        expected = F.kl_div(torch.softmax(head.scale * z, 1).log(), t, reduction="batchmean")
        found = compiled(model)(x, t)
        # Not to gemm's bias, whose gradient is 0 where batch statistics are.
        parameters = [head.gemm.weight, head.bn.weight, head.bn.bias, head.scale]
        close([found] + list(torch.autograd.grad(found, parameters)),
              [expected] + list(torch.autograd.grad(expected, parameters)))


@samples.needs_func_in_graphs
@pytest.mark.parametrize("name", ["kl_div_probs", "kl_div", "broadcast", "linear"])
def test_compiled_gradients_of_torch_func(name):
    """By their values: some releases have given zeros without a word."""
    inputs = pair(samples.random("func.grad, " + name), (5, 8), "kl_div_probs")

    def loss(a, b):
        return (CALLS[name](a, b) * ones(CALLS[name](a, b))).sum()

    gradient = torch.func.grad(loss, (0, 1))
    leaves = [samples.leaf(tensor) for tensor in inputs]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    close(gradient(*inputs), expected)
    close(compiled(gradient, fullgraph=True)(*inputs), expected)
