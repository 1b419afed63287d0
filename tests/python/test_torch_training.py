"""A small network that learns with onepass.torch.linear in float32, beside torch.nn.functional.linear in float32 and in
float64: the same first weights, the same batches, the loss after every step.

Rounding makes two such runs drift apart, and the float64 run is where both of float32 drift away from. How far
PyTorch's goes is the measure of how far ours may. That fewer digits would be noticed is shown by one more run, with
operands of 11 bits, which is what TF32 has.
"""

import pytest

import torch_samples as samples
from torch_samples import F, needs_cuda, tf32, torch

import onepass.torch

STEPS = 100
RUNS = 3


class Net(torch.nn.Module):
    """Three layers and tanh between them. linear: the function that multiplies."""

    def __init__(self, widths, linear):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:])])
        self.linear = linear

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(self.linear(x, layer.weight, layer.bias))
        return self.linear(x, self.layers[-1].weight, self.layers[-1].bias)


def curve(net, inputs, labels, rate):
    """The loss of every step, as float64."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    losses = []
    for x, y in zip(inputs, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().double())
    return torch.stack(losses).cpu()


def cut(input, weight, bias):
    return F.linear(input.half().float(), weight.half().float(), bias)


def curves(generator, batch, widths, rate, device, **options):
    """(float64, F.linear in float32, ours in float32, with operands cut): what is to be learnt is which of a few random
    directions an input points to most."""
    directions = torch.randn(widths[0], widths[-1], generator=generator)
    inputs = torch.randn(STEPS, batch, widths[0], generator=generator)
    labels = (inputs @ directions).argmax(-1).to(device)
    first = Net(widths, F.linear)
    with torch.no_grad():
        for layer in first.layers:
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / layer.in_features ** 0.5)
            layer.bias.zero_()

    def ours(input, weight, bias):
        return onepass.torch.linear(input, weight, bias, **options)
    made = []
    for linear, dtype in ((F.linear, torch.float64), (F.linear, torch.float32), (ours, torch.float32),
                          (cut, torch.float32)):
        net = Net(widths, linear)
        net.load_state_dict(first.state_dict())
        made.append(curve(net.to(device, dtype), inputs.to(device, dtype), labels, rate))
    return made


def distance(losses, exact):
    """Root mean square over the steps; NaN is infinite."""
    found = float((losses - exact).square().mean().sqrt())
    return found if found == found else float("inf")


# On CUDA every product of a hidden layer is one that the library has its own way for.
@pytest.mark.parametrize("device, batch, widths, rate, options", [
    pytest.param("cpu", 64, (32, 96, 96, 10), 0.1, {}, id="cpu"),
    pytest.param("cuda", 512, (1024, 1024, 1024, 16), 0.1, {}, id="cuda", marks=needs_cuda),
    pytest.param("cuda", 512, (1024, 1024, 1024, 16), 0.1, {"exact_fp32": True}, id="cuda exact_fp32",
                 marks=needs_cuda)])
def test_loss_curves(device, batch, widths, rate, options):
    """Over a few runs, since how far one drifts is a matter of luck: at most three times as far as PyTorch's float32,
    plus the rounding of the losses themselves."""
    generator = samples.random("training " + device)
    far = {"F.linear": 0.0, "onepass": 0.0, "11 bits": 0.0}
    size = 0.0
    with tf32(False):
        for run in range(RUNS):
            exact, theirs, ours, fewer = curves(generator, batch, widths, rate, device, **options)
            print("run %d: step, float64, F.linear - float64, onepass - float64" % run)
            for step in range(0, STEPS, 10):
                print("%4d %10.6f %10.1e %10.1e" % (step, exact[step], theirs[step] - exact[step],
                                                    ours[step] - exact[step]))
            assert exact[-10:].mean() < 0.8 * exact[0], "nothing was learnt"
            assert (ours != exact).any(), "float64 under another name"
            for name, losses in zip(far, (theirs, ours, fewer)):
                far[name] += distance(losses, exact) / RUNS
            size += float(exact.mean()) / RUNS
    print("distances:", far)
    limit = 3 * far["F.linear"] + torch.finfo(torch.float32).eps * size
    assert 0 < far["onepass"] <= limit, (far, limit)
    assert far["11 bits"] > 3 * limit, (far, limit)
