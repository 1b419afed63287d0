"""torch.compile(model, backend="onepass"): what it replaces computes what the model did, in float64, with gradients;
the rest is left alone, and the report says which is which."""

import copy
import sys

import pytest

import torch_samples as samples
from torch_samples import F, torch

from torch import nn

needs_inlined_modules = pytest.mark.skipif(samples.VERSION < (2, 5),
                                           reason="PyTorch %d.%d keeps modules whole in its graphs" % samples.VERSION)
pytestmark = samples.needs_compile
if samples.VERSION >= (2, 1):
    import torch._dynamo
    from onepass.torch import backend


def compiled(function, inner="aot_eager", **options):
    """The function, compiled, and the list of reports that it will fill."""
    torch._dynamo.reset()
    backend.reports.clear()
    return torch.compile(function, backend=backend.onepass, options={"backend": inner}, **options)


def by():
    return [each.by.split(".")[-1] for report in backend.reports for each in report.replaced]


def draw(name, *shapes):
    """Probabilities in float64."""
    generator = samples.random("backend, " + name)
    return [samples.probabilities(generator, shape, torch.float64) for shape in shapes]


def both(function, inputs):
    leaves = [samples.leaf(tensor) for tensor in inputs]
    value = function(*leaves)
    return [value.detach()] + list(torch.autograd.grad(value.sum() * 1.7, leaves, allow_unused=True))


def close(found, expected, tolerance=1e-11):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype is b.dtype and bool(b.isfinite().all())
            assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def used_twice(p, t):
    logarithm = p.log()
    return F.kl_div(logarithm, t, reduction="sum") + logarithm.sum()


def written_between(p, t):
    q = p.detach().clone()
    logarithm = q.log()
    q.mul_(2)
    return F.kl_div(logarithm, t, reduction="sum") + q.sum() * p.sum()


def logarithm_without_gradient(p, t):
    with torch.no_grad():
        logarithm = p.log()
    return F.kl_div(logarithm, t, reduction="sum")


# what is compiled; what it becomes
LOSSES = {
    "of logarithms": (lambda p, t: F.kl_div(p.log(), t, reduction="batchmean"), ["kl_div_probs"]),
    "torch.log": (lambda p, t: F.kl_div(torch.log(p), t, reduction="sum") * 3, ["kl_div_probs"]),
    "log_softmax": (lambda p, t: F.kl_div(F.log_softmax(p, -1), t, reduction="batchmean"), ["kl_div_logits"]),
    "of neither": (lambda p, t: F.kl_div(p - 2, t, reduction="batchmean"), ["kl_div"]),
    "log_target": (lambda p, t: F.kl_div(p.log(), t.log(), reduction="sum", log_target=True), ["kl_div_probs"]),
    "none": (lambda p, t: F.kl_div(p.log(), t, reduction="none"), ["kl_div_probs"]),
    "torch.kl_div": (lambda p, t: torch.kl_div(p.log(), t), ["kl_div_probs"]),
    "module": (lambda p, t: nn.KLDivLoss(reduction="batchmean")(p.log(), t), ["kl_div_probs"]),
    "broadcast": (lambda p, t: F.kl_div(p.log(), t[:1], reduction="batchmean"), ["kl_div_probs"]),
    "used twice": (used_twice, ["kl_div"]),
    "written between": (written_between, ["kl_div"]),
    "without a gradient": (logarithm_without_gradient, ["kl_div"]),
    "nothing": (lambda p, t: (p.softmax(-1) - t).square().sum(), []),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    function, expected = LOSSES[name]
    inputs = draw(name, (5, 8), (5, 8))
    f = compiled(function, fullgraph=name != "module")
    with samples.no_warnings():
        close(both(f, inputs), both(function, inputs))
        assert by() == expected, "\n".join(map(str, backend.reports))
        with torch.no_grad():
            close([f(*inputs)], [function(*inputs)])
    if name == "used twice":
        assert "used elsewhere" in str(backend.reports[0])


def test_what_the_library_does_not_have():
    """Left to PyTorch, and said: a device of another kind."""
    p, t = (tensor.to("meta") for tensor in draw("meta", (5, 8), (5, 8)))
    f = compiled(lambda p, t: F.kl_div(p.log(), t, reduction="none"))
    assert f(p, t).shape == (5, 8)
    assert by() == [] and "meta" in str(backend.reports[0])


def test_one_pass(monkeypatch):
    """Value and gradients of a loss are one call of the library, in the graph too, whatever is upstream."""
    if not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("PyTorch %d.%d does not tell a compilation from an export" % samples.VERSION)
    inputs = draw("one pass", (50, 80), (50, 80))

    def loss(p, t):
        return F.kl_div(p.log(), t, reduction="batchmean")

    f = compiled(loss)
    close(both(f, inputs), both(loss, inputs))
    calls = samples.watched(monkeypatch, "kl_probs_probs")
    close(both(f, inputs), both(loss, inputs))
    assert len(calls) == 1


class Network(nn.Module):
    """Two layers, the head, and a loss."""

    def __init__(self, momentum=0.1, affine=True, scale=True):
        super().__init__()
        self.first = nn.Linear(7, 6)
        self.gemm, self.bn = nn.Linear(6, 9), nn.BatchNorm1d(9, momentum=momentum, affine=affine)
        self.scale = nn.Parameter(torch.tensor([1.5])) if scale else None

    def forward(self, x, t):
        z = self.bn(self.gemm(F.gelu(self.first(x))))
        z = z if self.scale is None else z * self.scale
        return F.kl_div(torch.softmax(z, 1).log(), t, reduction="batchmean")


def train(function, model, batches):
    """Values and final state after a step per batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for x, t in batches:
        optimizer.zero_grad()
        value = function(x, t)
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return values + [tensor.detach() for tensor in model.state_dict().values()]


@needs_inlined_modules
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"scale": False}, {"momentum": 0.3}], ids=str)
def test_head(options):
    """Training, then evaluation, of a network with the head: parameters, statistics and counter are the eager ones."""
    generator = samples.random("backend, head %s" % options)
    torch.manual_seed(samples.SEED)
    model = Network(**options).double()
    eager = copy.deepcopy(model)
    batches = [(torch.randn(8, 7, generator=generator, dtype=torch.float64),
                samples.probabilities(generator, (8, 9), torch.float64)) for _ in range(3)]
    f = compiled(model, fullgraph=True)
    close(train(f, model, batches), train(eager, eager, batches), 1e-9)
    assert by() == ["linear_batch_norm_softmax", "kl_div_probs"]
    model.eval(), eager.eval()
    with torch.no_grad():
        close([f(*batches[0])], [eager(*batches[0])])
    assert by() == ["linear_batch_norm_softmax", "kl_div_probs"] * 2


@needs_inlined_modules
def test_head_left_alone():
    """A value in between that is used elsewhere, three dimensions, softmax over the batch."""
    generator = samples.random("backend, head left")
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    gemm, bn = nn.Linear(6, 9).double(), nn.BatchNorm1d(9).double().eval()

    def twice(x):
        z = bn(gemm(x))
        return torch.softmax(z, 1) + z

    cases = {"used elsewhere": (twice, x), "over the features": (lambda x: torch.softmax(bn(gemm(x)), 0), x)}
    for why, (function, input) in cases.items():
        close(both(compiled(function), [input]), both(function, [input]))
        assert by() == [] and why in str(backend.reports[0]), str(backend.reports[0])


def test_hooks_and_graph_breaks():
    """A hook's work is part of the graph; a break makes more than one graph, each with what is in it."""
    inputs = draw("hooks", (5, 8), (5, 8))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.softmax = nn.Softmax(-1)
            self.softmax.register_forward_hook(lambda module, args, output: output * 0.5)

        def forward(self, p, t):
            first = F.kl_div(self.softmax(p).log(), t, reduction="sum")
            torch._dynamo.graph_break()
            return first + F.kl_div(p.log(), t, reduction="sum")

    model = Model()
    close(both(compiled(model), inputs), both(model, inputs))
    assert set(by()) == {"kl_div_probs"} and len(backend.reports) >= 2


def test_dynamic_shapes():
    """One graph for all batches."""
    def loss(p, t):
        return F.kl_div(p.log(), t, reduction="batchmean")

    f = compiled(loss, dynamic=True)
    inputs = draw("dynamic", (5, 8), (5, 8))
    close(both(f, inputs), both(loss, inputs))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (2, 9, 31):
            inputs = draw("dynamic %d" % rows, (rows, 8), (rows, 8))
            close(both(f, inputs), both(loss, inputs))
    assert by() == ["kl_div_probs"]


@samples.needs_func_in_graphs
def test_transforms_are_left_alone():
    p, t = draw("func", (5, 8), (5, 8))
    gradient = torch.func.grad(lambda p: F.kl_div(p.log(), t, reduction="sum"))
    close([compiled(gradient)(p)], [gradient(p)])
    assert by() == []


@pytest.mark.skipif(samples.VERSION < (2, 2), reason="PyTorch %d.%d looks for no entry points" % samples.VERSION)
def test_by_name(tmp_path, monkeypatch):
    """The name alone, as an installed package makes it known; Inductor gets the rest, with its options."""
    information = tmp_path / "onepass_test-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: onepass-test\nVersion: 0\n")
    (information / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\nonepass_test = onepass.torch.backend:onepass\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)] + sys.path)
    registry = torch._dynamo.backends.registry
    for name in ("_lazy_import", "_discover_entrypoint_backends"):
        if hasattr(getattr(registry, name, None), "cache_clear"):
            getattr(registry, name).cache_clear()

    def loss(p, t):
        return F.kl_div(p.log(), t, reduction="batchmean")

    torch._dynamo.reset()
    backend.reports.clear()
    f = torch.compile(loss, backend="onepass_test", options={"fallback_random": True})
    inputs = draw("by name", (5, 8), (5, 8))
    close(both(f, inputs), both(loss, inputs))
    assert by() == ["kl_div_probs"]
