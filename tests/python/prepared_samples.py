"""What the tests of prepared weights share: calls of linear and of the head with a prepared weight and without, and,
for a machine without a GPU, a library whose prepared weight is a copy of the weight."""

import numpy
import pytest

import torch_samples as samples
from torch_samples import torch

import onepass.torch
from onepass import _native, library
from onepass.torch import linear_batch_norm_softmax, prepared_weights, route

ROWS, DEPTH, COLUMNS = 6, 8, 5


def draw(name, device="cpu", shape=(ROWS, DEPTH, COLUMNS)):
    """(input, weight, vector of the features), float32 leaves that want gradients."""
    rows, depth, columns = shape
    generator = samples.random(name)
    return [samples.leaf(torch.randn(size, generator=generator).to(device))
            for size in ((rows, depth), (columns, depth), (columns,))]


def linear(input, weight, vector, prepared=None, **options):
    return onepass.torch.linear(input, weight, vector, prepared=prepared, **options)


def head(training):
    """The head as a function of the same tensors; statistics begin anew with every call."""
    def call(input, weight, vector, prepared=None, **options):
        mean, var = torch.zeros_like(vector.detach()), torch.ones_like(vector.detach())
        return linear_batch_norm_softmax(input, weight, vector, mean, var, vector, vector, None, training, 0.1, 1e-5,
                                         prepared=prepared, **options)
    return call


OPERATORS = {"linear": linear, "head-train": head(True), "head-eval": head(False)}


def results(call, tensors, upstream, **options):
    """The output and the gradients."""
    output = call(*tensors, **options)
    return [output.detach()] + list(torch.autograd.grad(output, tensors, upstream))


def same(found, expected):
    return len(found) == len(expected) and all(torch.equal(a, b) for a, b in zip(found, expected))


def _copied_from(planes, shape):
    return torch.from_numpy(numpy.frombuffer(planes.numpy().tobytes(), numpy.float32).copy()).reshape(shape)


@pytest.fixture
def copies(monkeypatch):
    """Weights on the CPU can be prepared: what is prepared is a copy, and what is multiplied then is that copy. A list
    of the calls that made one or used one: "prepare_weight", "linear" or "head"."""
    seen = []

    original = library.call
    places = {}
    for operator, name in (("linear", "prepared"), ("head", "options.prepared_weight")):
        number, tensors, _ = _native.operators()[operator]
        places[number] = tensors.index(name)

    def prepare(weight, products, threads, planes):
        seen.append("prepare_weight")
        planes.copy_(torch.from_numpy(numpy.frombuffer(weight.detach().contiguous().numpy().tobytes(),
                                                       numpy.uint8).copy()))

    def call(operator, *arguments):
        if operator == library.PREPARE_WEIGHT:
            return prepare(*arguments)
        place = places.get(operator)
        if place is None or arguments[place] is None:
            return original(operator, *arguments)
        seen.append(samples.OPERATORS[operator])
        weight = _copied_from(arguments[place], arguments[1].shape)
        return original(operator, arguments[0], weight, *arguments[2:place], None, *arguments[place + 1:])

    products = route.products
    monkeypatch.setattr(route, "products", lambda tensor, *exact: products(samples.OnCuda(tensor.dtype), *exact))
    monkeypatch.setattr(prepared_weights, "_DEVICE", "cpu")
    monkeypatch.setattr(library, "workspace_size", lambda operator, weight, products, threads: 4 * weight.numel())
    monkeypatch.setattr(library, "call", call)
    with samples.tf32(False):
        yield seen
