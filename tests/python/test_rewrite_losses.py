"""Losses from logits in models: rewrite and torch.compile(backend="onepass") give what PyTorch gives, of its type, and
say what they left alone.

Every spelling goes through both doors, in float64 and with gradients to logits and targets; that the library did the
work is seen from the calls it gets. Runs with PyTorch 1.10 and with the newest.
"""

import copy
import pickle

import pytest

import losses_samples
import torch_samples as samples
from rewrite_samples import model_of
from torch_samples import F, VERSION, torch

from torch import nn

from onepass.torch import losses_call, rewrite, rewrite_losses

if VERSION >= (2, 1):
    import torch._dynamo
    from onepass.torch import backend

pytestmark = pytest.mark.filterwarnings("ignore:reduction:UserWarning", "ignore:size_average:UserWarning")

KL, CE = "kl_div_logits", "cross_entropy"
OPERATORS = ("divergence_logits_logits", "divergence_logits_probs", "divergence_logits_log_probs",
             "cross_entropy_logits_labels")


def compiled(function, **options):
    torch._dynamo.reset()
    backend.reports.clear()
    return torch.compile(function, backend=backend.onepass, options={"backend": "aot_eager"}, **options)


def by(reports):
    return [each.by.split(".")[-1] for report in reports for each in report.replaced]


def near(found, expected, steps=64):
    """Of the same type, and as near as so many roundings."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype is b.dtype
            losses_samples.assert_near(a, b, steps=steps)


def step(function, inputs, upstream):
    """Values, and the gradients of their sums times upstream to the inputs of floating-point type."""
    leaves = [samples.leaf(each) if each.is_floating_point() else each for each in inputs]
    values = function(*leaves)
    values = values if isinstance(values, tuple) else (values,)
    total = sum((value * factor).sum() for value, factor in zip(values, upstream))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return [value.detach() for value in values] + list(torch.autograd.grad(total, wanted, allow_unused=True))


# ---- spellings -------------------------------------------------------------------------------------------------------


def teacher_without_gradient(self, s, t, p):
    with torch.no_grad():
        targets = F.softmax(t / 4, dim=-1)
    return F.kl_div(F.log_softmax(s / 4, dim=-1), targets, reduction="batchmean") * 4 ** 2


def in_lines(self, s, t, p):
    log_s = F.log_softmax(s / self.temperature, dim=1)
    unrelated = F.cross_entropy(s * 1, p.argmax(1))
    soft = F.softmax(t / self.temperature, dim=1)
    return F.kl_div(log_s, soft, reduction="batchmean") + unrelated


def softmax_used_twice(self, s, t, p):
    soft = t.softmax(-1)
    return F.kl_div(s.log_softmax(-1), soft, reduction="sum") + (soft * soft).sum()


# forward of logits s, t [N, C] and probabilities p; the library's operator
DIVERGENCES = {
    "softmax": (lambda self, s, t, p: F.kl_div(F.log_softmax(s, -1), F.softmax(t, -1), reduction="batchmean"), 0),
    "log_target": (lambda self, s, t, p: F.kl_div(s.log_softmax(1), t.log_softmax(-1), reduction="sum",
                                                  log_target=True), 0),
    "temperature": (lambda self, s, t, p: F.kl_div(torch.log_softmax(s / 2, 1), torch.softmax(t / 2, 1),
                                                   reduction="batchmean") * 4, 0),
    "one temperature": (lambda self, s, t, p: F.kl_div((s / 3.0).log_softmax(-1), t.softmax(-1)), 0),
    "teacher's temperature": (lambda self, s, t, p: F.kl_div(s.log_softmax(-1), t.div(0.5).log_softmax(-1),
                                                             log_target=True), 0),
    "two temperatures": (lambda self, s, t, p: F.kl_div(torch.div(s, 3).log_softmax(-1), (t / 2).softmax(-1)), 0),
    "attribute": (lambda self, s, t, p: F.kl_div((s / self.temperature).log_softmax(-1),
                                                 (t / self.temperature).softmax(-1), reduction="sum"), 0),
    "modules": (lambda self, s, t, p: self.kl(self.log_softmax(s), self.softmax(t / 2)), 0),
    "torch.kl_div": (lambda self, s, t, p: torch.kl_div(s.log_softmax(1), t.softmax(1), 2), 0),
    "rows": (lambda self, s, t, p: F.kl_div(s.log_softmax(-1), t.softmax(-1), reduction="none").sum(-1), 0),
    "rows, by name": (lambda self, s, t, p: torch.sum(F.kl_div(s.log_softmax(1), t.softmax(1), reduction="none"),
                                                      dim=[1]), 0),
    "detached": (lambda self, s, t, p: F.kl_div(s.log_softmax(-1), (t / 2).softmax(-1).detach(), reduction="sum"), 0),
    "without a gradient": (teacher_without_gradient, 0),
    "four dimensions": (lambda self, s, t, p: F.kl_div(F.log_softmax(s.view(2, 3, 7, 1), 2),
                                                       F.softmax(t.view(2, 3, 7, 1), 2), reduction="batchmean"), 0),
    "rows of four": (lambda self, s, t, p: F.kl_div(F.log_softmax(s.view(2, 3, 1, 7), -1), F.softmax(
        t.view(2, 3, 1, 7), 3), reduction="none").sum(dim=-1), 0),
    "given": (lambda self, s, t, p: F.kl_div(s.log_softmax(-1), p, reduction="batchmean"), 1),
    "given logarithms": (lambda self, s, t, p: F.kl_div((s / 2).log_softmax(-1), p.log(), reduction="mean",
                                                        log_target=True), 2),
    "softmax as logarithms": (lambda self, s, t, p: F.kl_div(s.log_softmax(-1), t.softmax(-1), reduction="sum",
                                                             log_target=True), 2),
    "softmax used twice": (softmax_used_twice, 1),
    "in lines": (in_lines, 0),
}


def divergence_model(forward):
    return model_of(forward, temperature=2.5, kl=nn.KLDivLoss(reduction="batchmean"), log_softmax=nn.LogSoftmax(1),
                    softmax=nn.Softmax(-1))


def divergence_inputs(name):
    generator = samples.random(name)
    s, t = (losses_samples.logits(generator, (6, 7)) for _ in range(2))
    return s, t, samples.probabilities(generator, (6, 7), torch.float64), torch.rand(6, generator=generator) + 0.5


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
def test_divergence(name, monkeypatch):
    forward, form = DIVERGENCES[name]
    model = divergence_model(forward)
    new, report = rewrite(model)
    assert KL in by([report]) and not report.refused, report
    *inputs, upstream = divergence_inputs(name)
    upstream = upstream[:2] if "rows of" in name else upstream
    upstream = [upstream.view(-1, 1, 1) if "rows of" in name else upstream if "rows" in name else upstream[0]]
    expected = step(model, inputs, upstream)
    calls = samples.watched(monkeypatch, *OPERATORS[:3])
    near(step(new, inputs, upstream), expected)
    assert calls or (form == 1 and VERSION < (1, 13))  # where gradients to probabilities are PyTorch's own
    with torch.no_grad():
        near([new(*inputs)], [model(*inputs)])
    assert {operator for operator, _ in calls} == {OPERATORS[form]}


@samples.needs_compile
def test_divergences_in_a_graph(monkeypatch):
    """All spellings in one graph."""
    models = [divergence_model(forward) for forward, _ in DIVERGENCES.values()]

    def every(s, t, p):
        return tuple(model(s, t, p) for model in models)

    *inputs, upstream = divergence_inputs("graph")
    upstream = [upstream[0]] * len(models)
    calls = samples.watched(monkeypatch, *OPERATORS)
    with samples.no_warnings():
        near(step(compiled(every), inputs, upstream), step(every, inputs, upstream))
    assert len(calls) >= len(models) + 1
    found = by(backend.reports)
    assert found.count(KL) == len(models) and found.count(CE) == 1 and len(found) == len(models) + 1, found
    assert not any(report.refused for report in backend.reports)


def labels_of(generator, shape, classes):
    made = torch.randint(0, classes, shape, generator=generator)
    made.view(-1)[1] = 2
    return made


# forward of logits x [N, 5] or, with more dimensions, [N, 5, ...], and labels, among them 2
CROSS_ENTROPIES = {
    "plain": (lambda self, x, y: F.cross_entropy(x, y), (6, 5)),
    "weight": (lambda self, x, y: F.cross_entropy(x, y, self.weight, ignore_index=2), (6, 5)),
    "sum": (lambda self, x, y: F.cross_entropy(x, y, reduction="sum", ignore_index=2), (6, 5)),
    "none": (lambda self, x, y: F.cross_entropy(input=x, target=y, reduction="none"), (6, 5)),
    "by position": (lambda self, x, y: F.cross_entropy(x, y, None, None, 2, None, "mean"), (6, 5)),
    "segmentation": (lambda self, x, y: F.cross_entropy(x, y, weight=self.weight), (2, 5, 3, 4)),
    "transposed": (lambda self, x, y: F.cross_entropy(x.transpose(1, 2).contiguous().transpose(1, 2), y,
                                                      reduction="none"), (2, 5, 3)),
    "module": (lambda self, x, y: self.loss(x, y), (6, 5)),
    "module of four": (lambda self, x, y: self.loss(x, y), (2, 5, 2, 3)),
}
if VERSION >= (1, 12):
    CROSS_ENTROPIES["smoothing"] = lambda self, x, y: F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=2), (6, 5)
    CROSS_ENTROPIES["all of it"] = lambda self, x, y: F.cross_entropy(
        x, y, weight=self.weight, label_smoothing=0.2, ignore_index=2, reduction="mean"), (3, 5, 4)


def cross_entropy_model(forward):
    weight = torch.tensor([0.5, 2.0, 1.0, 0.7, 1.5], dtype=torch.float64)
    return model_of(forward, weight=weight, loss=nn.CrossEntropyLoss(weight=weight.clone(), ignore_index=2))


def cross_entropy_inputs(name, shape):
    generator = samples.random(name)
    x, y = losses_samples.logits(generator, shape), labels_of(generator, shape[:1] + shape[2:], 5)
    return x, y, torch.rand(y.shape, generator=generator) + 0.5


@pytest.mark.parametrize("name", sorted(CROSS_ENTROPIES))
def test_cross_entropy(name, monkeypatch):
    forward, shape = CROSS_ENTROPIES[name]
    model = cross_entropy_model(forward)
    new, report = rewrite(model)
    assert set(by([report])) == {CE} and not report.refused
    x, y, upstream = cross_entropy_inputs(name, shape)
    upstream = [upstream if name in ("none", "transposed") else upstream.view(-1)[0]]
    expected = step(model, (x, y), upstream)
    calls = samples.watched(monkeypatch, OPERATORS[3])
    near(step(new, (x, y), upstream), expected)
    assert calls
    with torch.no_grad():
        near([new(x, y)], [model(x, y)])


@samples.needs_compile
def test_cross_entropies_in_a_graph(monkeypatch):
    models = [(cross_entropy_model(forward), shape) for forward, shape in CROSS_ENTROPIES.values()]
    drawn = [cross_entropy_inputs(str(i), shape) for i, (_, shape) in enumerate(models)]
    inputs = [tensor for x, y, _ in drawn for tensor in (x, y)]

    def every(*inputs):
        return tuple(model(x, y) for (model, _), x, y in zip(models, inputs[::2], inputs[1::2]))

    upstream = [upstream.view(-1)[0] for *_, upstream in drawn]
    calls = samples.watched(monkeypatch, OPERATORS[3])
    near(step(compiled(every), inputs, upstream), step(every, inputs, upstream))
    assert len(calls) >= len(models)
    assert by(backend.reports) == [CE] * len(models) and not backend.reports[0].refused


# ---- types, errors ---------------------------------------------------------------------------------------------------


def losses_of(s, t, y):
    return (F.cross_entropy(s, y), F.cross_entropy(s, y, reduction="none"),
            F.kl_div(F.log_softmax(s / 2, -1), F.softmax(t / 2, -1), reduction="batchmean"),
            F.kl_div(s.log_softmax(-1), t.log_softmax(-1), reduction="none", log_target=True).sum(-1))


# That PyTorch has on the CPU, its cross_entropy among others: 2.2 says that nll_loss is not implemented for float16.
HALVES = [torch.bfloat16] + ([torch.float16] if VERSION >= (2, 4) else [])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32] + HALVES, ids=str)
def test_types(dtype, autocast, monkeypatch):
    """Of PyTorch's type and nearer to the exact value than PyTorch's: half types are computed in float32."""
    generator = samples.random("types, %s" % dtype)
    s, t = (losses_samples.logits(generator, (4, 9), dtype) for _ in range(2))
    y = torch.randint(0, 9, (4,), generator=generator)
    model = model_of(lambda self, s, t, y: losses_of(s, t, y))
    new, report = rewrite(model)
    assert set(by([report])) == {CE, KL} and not report.refused
    exact = losses_of(s.double(), t.double(), y)
    functions = [new]
    if VERSION >= (2, 1):
        functions.append(compiled(model))
    for function in functions:
        calls = samples.watched(monkeypatch, *OPERATORS)
        with torch.autocast("cpu", enabled=autocast):
            expected, found = model(s, t, y), function(s, t, y)
        assert len(calls) == 4
        for a, b, c in zip(found, expected, exact):
            assert a.dtype is b.dtype and a.shape == b.shape
            losses_samples.assert_near(a, c, a.dtype)
    x = samples.leaf(s)
    assert torch.autograd.grad(sum(value.sum() for value in new(x, t, y)), x)[0].dtype is dtype


@pytest.mark.parametrize("type_of_softmax", [torch.float32, torch.float64], ids=str)
def test_softmax_of_another_type(type_of_softmax, monkeypatch):
    generator = samples.random("softmax, %s" % type_of_softmax)
    s, t = (losses_samples.logits(generator, (4, 9), torch.bfloat16) for _ in range(2))
    model = model_of(lambda self, s, t: F.kl_div(F.log_softmax(s, -1, dtype=self.dtype),
                                                 F.softmax(t, -1, dtype=self.dtype), reduction="sum"),
                     dtype=type_of_softmax)
    new, report = rewrite(model)
    fits = type_of_softmax is torch.float32
    assert by([report]) == ([KL] if fits else ["kl_div"]) and bool(report.refused) is not fits
    calls = samples.watched(monkeypatch, OPERATORS[0])
    found, expected = new(s, t), model(s, t)
    assert found.dtype is expected.dtype is type_of_softmax and len(calls) == fits
    losses_samples.assert_near(found, model_of(type(model).forward, dtype=torch.float64)(s, t), torch.float32)


def test_labels_out_of_range_raise_as_before():
    x = losses_samples.logits(samples.random("range"), (3, 5))
    new, _ = rewrite(nn.CrossEntropyLoss(ignore_index=-1))
    for labels in ([0, 5, 1], [0, -2, 1]):
        with pytest.raises(IndexError, match="out of bounds"):
            new(x, torch.tensor(labels))
    nothing = torch.full((3,), -1)
    assert new(x, nothing).isnan() == nn.CrossEntropyLoss(ignore_index=-1)(x, nothing).isnan()


def test_masked_logits():
    """A class that both have masked takes no part; kl_div of their softmax is 0 times -inf, NaN, from 1.13 on."""
    new, _ = rewrite(model_of(lambda self, s, t: F.kl_div(s.log_softmax(-1), t.softmax(-1), reduction="sum")))
    s, t = (losses_samples.logits(samples.random(name), (3, 5)) for name in "st")
    s[:, 3:] = t[:, 3:] = -float("inf")
    expected = F.kl_div(s[:, :3].log_softmax(-1), t[:, :3].softmax(-1), reduction="sum")
    losses_samples.assert_near(new(s, t), expected)


# ---- what is left alone ----------------------------------------------------------------------------------------------


def used_twice(self, s, t):
    log_s = s.log_softmax(-1)
    return F.kl_div(log_s, t.softmax(-1), reduction="sum") + log_s.sum()


def written_between(self, s, t):
    z = s * 1
    log_s = z.log_softmax(-1)
    z.mul_(2)
    return F.kl_div(log_s, t.softmax(-1), reduction="sum") + z.detach().sum()


def without_gradient(self, s, t):
    with torch.no_grad():
        log_s = s.log_softmax(-1)
    return F.kl_div(log_s, t.softmax(-1), reduction="sum")


LEFT = {
    "used twice": (used_twice, "used elsewhere"),
    "written between": (written_between, "may write"),
    "without a gradient": (without_gradient, "gradient mode"),
    "every element": (lambda self, s, t: F.kl_div(s.log_softmax(-1), t.softmax(-1), reduction="none"), "every element"),
    "size_average": (lambda self, s, t: F.kl_div(s.log_softmax(-1), t.exp(), size_average=False), "size_average"),
    "float64": (lambda self, s, t: F.kl_div(s.log_softmax(-1, dtype=torch.float64), t.exp()), "another type"),
}


@pytest.mark.parametrize("name", LEFT)
def test_log_softmax_that_stays(name):
    """kl_div is replaced, the log_softmax before it is not."""
    forward, why = LEFT[name]
    model = model_of(forward)
    new, report = rewrite(model)
    if name != "without a gradient":  # where a second graph is for calls without gradients
        assert by([report]) == ["kl_div"]
    assert [each.what for each in report.refused] == ["log_softmax, kl_div"] and why in report.refused[0].why
    s, t, *_ = divergence_inputs(name)
    near([new(s, t)], [model(s, t)])
    if name != "written between":
        near(step(new, (s, t), [1.7]), step(model, (s, t), [1.7]))


ELSEWHERE = {
    "targets that are probabilities": (lambda self, x, y: F.cross_entropy(x, x.detach().softmax(1)), "probabilities"),
    "shapes that broadcast": (lambda self, x, y: F.kl_div(x.log_softmax(1), x[:1].softmax(1), reduction="sum"),
                              "shapes differ"),
    "other dimensions": (lambda self, x, y: F.kl_div(x.log_softmax(1), x.softmax(0), reduction="sum"), None),
    "over the batch": (lambda self, x, y: F.kl_div(x.log_softmax(0), x.softmax(0), reduction="batchmean"), "first"),
    "old arguments": (lambda self, x, y: F.cross_entropy(x, y, size_average=False), "size_average"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_seen_in_a_call(name, monkeypatch):
    """rewrite does not know the tensors: PyTorch's operations are called. The backend does, and says why."""
    forward, why = ELSEWHERE[name]
    model = model_of(forward)
    new, _ = rewrite(model)
    x = divergence_inputs(name)[0]
    y = torch.tensor([0, 1, 2, 3, 4, 5])
    calls = samples.watched(monkeypatch, OPERATORS[0], OPERATORS[3])
    near([new(x, y)], [model(x, y)])
    assert not calls
    if name == "shapes that broadcast" and VERSION < (1, 13):
        return  # PyTorch has no gradient there
    expected = step(model, (x, y), [1.7])
    near(step(new, (x, y), [1.7]), expected)
    if VERSION >= (2, 1):
        near(step(compiled(model), (x, y), [1.7]), expected)
        refused = [each.why for report in backend.reports for each in report.refused]
        assert (why is None and not refused) or any(why in each for each in refused), refused
        assert not calls


def test_devices_without_kernels(monkeypatch):
    """There PyTorch's operations stay; kl_div is the library's, as without softmax."""
    monkeypatch.setattr(losses_call, "_DEVICES", ())
    generator = samples.random("devices")
    inputs = [losses_samples.logits(generator, (4, 9)) for _ in range(2)] + [torch.tensor([0, 1, 2, 3])]
    model = model_of(lambda self, s, t, y: losses_of(s, t, y))
    calls, others = samples.watched(monkeypatch, *OPERATORS), samples.watched(monkeypatch, "kl_log_probs_probs")
    upstream = [1.7, 0.3, 1.1, 0.9]
    expected = step(model, inputs, upstream)
    near(step(rewrite(model)[0], inputs, upstream), expected)
    assert len(others) >= 1
    if VERSION >= (2, 1):
        near(step(compiled(model), inputs, upstream), expected)
        assert by(backend.reports) == ["kl_div"] * 2
        assert [each.why for each in backend.reports[0].refused] == [
            "on this device losses from logits are PyTorch's operations already"] * 4
    assert not calls


def test_smoothing_of_this_release():
    """PyTorch before 1.12 smooths otherwise, and such a loss stays."""
    model = model_of(lambda self, x, y: F.cross_entropy(x, y, label_smoothing=0.1) + self.loss(x, y),
                     loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    report = rewrite(model)[1]
    if VERSION < (1, 12):
        assert report.replaced == [] and ["1.12" in each.why for each in report.refused] == [True, True]
    else:
        assert by([report]) == [CE, CE] and not report.refused


def test_a_loss_that_changes_later():
    new, report = rewrite(model_of(lambda self, s, t: self.kl(self.log_softmax(s), t.softmax(-1)),
                                   kl=nn.KLDivLoss(reduction="sum"), log_softmax=nn.LogSoftmax(-1)))
    assert KL in by([report])
    s, t, *_ = divergence_inputs("later")
    seen = []
    handle = new.log_softmax.register_forward_hook(lambda module, args, output: seen.append(1) or output * 2)
    near([new(s, t)], [F.kl_div(2 * s.log_softmax(-1), t.softmax(-1), reduction="sum")])
    handle.remove()
    new.log_softmax.dim = 0
    near([new(s, t)], [F.kl_div(s.log_softmax(0), t.softmax(-1), reduction="sum")])
    assert seen == [1]


def test_a_cross_entropy_module():
    hooked = nn.CrossEntropyLoss()
    hooked.register_forward_hook(lambda *arguments: None)
    assert type(rewrite(hooked)[0]) is nn.CrossEntropyLoss and "hooks" in rewrite(hooked)[1].refused[0].why
    model = nn.ModuleDict({"loss": nn.CrossEntropyLoss(weight=torch.rand(5) + 0.5)})
    new, report = rewrite(model)
    assert type(new["loss"]) is rewrite_losses.CrossEntropyLoss and isinstance(new["loss"], nn.CrossEntropyLoss)
    assert by([report]) == [CE] and report.replaced[0].where == "loss"
    assert new["loss"].weight is model["loss"].weight
    x, y = losses_samples.logits(samples.random("module"), (4, 5), torch.float32), torch.tensor([0, 1, 2, 3])
    for each in (new, copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
        near([each["loss"](x, y)], [model["loss"](x, y)])
        each["loss"].reduction = "sum"
        near([each["loss"](x, y)], [F.cross_entropy(x, y, model["loss"].weight, reduction="sum")])
    model["loss"].weight.mul_(2)
    near([new["loss"](x, y)], [F.cross_entropy(x, y, model["loss"].weight, reduction="sum")])


def test_in_place_and_back():
    model = nn.Sequential(nn.Linear(3, 3), nn.CrossEntropyLoss())
    _, report = rewrite(model, inplace=True)
    assert type(model[1]) is rewrite_losses.CrossEntropyLoss
    report.undo()
    assert type(model[1]) is nn.CrossEntropyLoss


@samples.needs_func
def test_transforms():
    """torch.func gets PyTorch's operations."""
    generator = samples.random("func")
    s, t = (losses_samples.logits(generator, (4, 9)) for _ in range(2))
    y = torch.tensor([0, 1, 2, 3])
    model = model_of(lambda self, s, t, y: losses_of(s, t, y))
    new, _ = rewrite(model)
    for transform in (lambda f: torch.func.jacrev(lambda s: f(s, t, y)[0] + f(s, t, y)[2])(s),
                      lambda f: torch.func.vmap(lambda s: f(s, t, y)[3])(torch.stack([s, t])),
                      lambda f: torch.func.jvp(lambda s: f(s, t, y)[2], (s,), (t,))[1]):
        near([transform(new)], [transform(model)])


# ---- a small zoo -----------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """A perceptron and its cross-entropy."""

    by = [CE]

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 5))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y):
        return self.loss(self.layers(x), y)

    @staticmethod
    def batch(generator, rows):
        return torch.randn(rows, 7, generator=generator).double(), torch.randint(0, 5, (rows,), generator=generator)


class Segmentation(nn.Module):
    """Convolutions, a class for each pixel, rare classes weighted."""

    by = [CE]

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 5, 1)
        self.register_buffer("weight", torch.linspace(0.5, 2, 5))

    def forward(self, x, y):
        logits = self.second(F.relu(self.first(x)))
        return F.cross_entropy(logits, y, weight=self.weight, ignore_index=4)

    @staticmethod
    def batch(generator, rows):
        labels = torch.randint(0, 5, (rows, 4, 3), generator=generator)
        labels[0, 0, 0] = 1
        return torch.randn(rows, 2, 4, 3, generator=generator).double(), labels


class Distilled(nn.Module):
    """A student that learns from labels and from a teacher, which learns nothing."""

    by = [KL, CE]

    def __init__(self, temperature=3.0, share=0.7):
        super().__init__()
        self.student, self.teacher = nn.Linear(6, 5), nn.Linear(6, 5)
        self.temperature, self.share = temperature, share

    def forward(self, x, y):
        student = self.student(x)
        with torch.no_grad():
            teacher = self.teacher(x)
        divergence = F.kl_div(F.log_softmax(student / self.temperature, dim=-1),
                              F.softmax(teacher / self.temperature, dim=-1), reduction="batchmean")
        return self.share * self.temperature ** 2 * divergence + (1 - self.share) * F.cross_entropy(student, y)

    @staticmethod
    def batch(generator, rows):
        return torch.randn(rows, 6, generator=generator).double(), torch.randint(0, 5, (rows,), generator=generator)


class LanguageModel(nn.Module):
    """Tokens that predict the next one; padding is ignored."""

    by = [CE]

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, tokens, labels):
        logits = self.head(torch.tanh(self.embedding(tokens)))
        shifted = logits[:, :-1].contiguous()
        return F.cross_entropy(shifted.view(-1, 11), labels[:, 1:].reshape(-1), ignore_index=-1)

    @staticmethod
    def batch(generator, rows):
        tokens = torch.randint(0, 11, (rows, 8), generator=generator)
        labels = tokens.clone()
        labels[:, 6:] = -1
        return tokens, labels


ZOO = [Classifier, Segmentation, Distilled, LanguageModel]


def train(function, model, batches):
    """Values and final state after a step per batch, then the value without gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for batch in batches:
        optimizer.zero_grad()
        value = function(*batch)
        value.backward()
        optimizer.step()
        values.append(value.detach())
    with torch.no_grad():
        values.append(function(*batches[0]))
    return values + [tensor.detach() for tensor in model.state_dict().values()]


def zoo_of(cls):
    generator = samples.random(cls.__name__)
    model = cls().double()
    return model, copy.deepcopy(model), [cls.batch(generator, 3 + i) for i in range(3)]


@pytest.mark.parametrize("cls", ZOO, ids=lambda cls: cls.__name__)
def test_zoo_rewritten(cls, monkeypatch):
    model, eager, batches = zoo_of(cls)
    new, report = rewrite(model)
    assert by([report]) == cls.by and not report.refused
    calls = samples.watched(monkeypatch, *OPERATORS)
    near(train(new, new, batches), train(eager, eager, batches), 512)
    assert len(calls) >= 4 * len(cls.by)


@samples.needs_compile
@pytest.mark.parametrize("cls", ZOO, ids=lambda cls: cls.__name__)
def test_zoo_compiled(cls, monkeypatch):
    """One graph for batches of every size."""
    model, eager, batches = zoo_of(cls)
    calls = samples.watched(monkeypatch, *OPERATORS)
    function = compiled(model, dynamic=True, fullgraph=True)
    near(train(function, model, batches), train(eager, eager, batches), 512)
    assert set(by(backend.reports)) == set(cls.by) and len(calls) >= 4 * len(cls.by)
    for report in list(backend.reports)[-2:]:  # training, inference; an earlier one may be of an attempt given up
        assert set(by([report])) == set(cls.by) and not report.refused, report


@samples.needs_compile
def test_a_rewritten_model_compiles(monkeypatch):
    calls = samples.watched(monkeypatch, *OPERATORS)
    model, eager, batches = zoo_of(Distilled)
    torch._dynamo.reset()
    new = rewrite(model)[0]
    function = torch.compile(new, backend="aot_eager", fullgraph=VERSION >= (2, 4))
    near(train(function, new, batches[:1]), train(eager, eager, batches[:1]), 512)
    assert len(calls) >= 4


@samples.needs_compile
def test_autocast_within_a_graph():
    """What is computed within it and used outside stays, and so do types."""
    def loss(s, t, y):
        with torch.autocast("cpu", torch.bfloat16):
            inside = F.cross_entropy(s, y)
            log_s = s.log_softmax(-1)
        return inside, F.kl_div(log_s, t.softmax(-1), reduction="sum"), F.cross_entropy(s, y)

    s, t, _, _ = divergence_inputs("autocast in a graph")
    s, t, y = s.to(torch.bfloat16), t.to(torch.bfloat16), torch.tensor([0, 1, 2, 3, 4, 5])
    found, expected = compiled(loss, fullgraph=True)(s, t, y), loss(s, t, y)
    assert [value.dtype for value in found] == [value.dtype for value in expected]
    assert by(backend.reports) == [CE, "kl_div", CE] and "autocast" in backend.reports[0].refused[0].why
    exact = F.cross_entropy(s.double(), y)
    losses_samples.assert_near(found[0], exact, found[0].dtype)
    losses_samples.assert_near(found[2], exact, torch.bfloat16)


@samples.needs_compile
def test_graph_breaks():
    """Each graph has what is in it: log_softmax in one and the loss in the next stay apart."""
    def loss(s, t, y):
        first = F.cross_entropy(s, y)
        log_s = s.log_softmax(-1)
        torch._dynamo.graph_break()
        return first + F.kl_div(log_s, t.softmax(-1), reduction="sum")

    s, t, _, _ = divergence_inputs("breaks")
    y = torch.tensor([0, 1, 2, 3, 4, 5])
    near(step(compiled(loss), (s, t, y), [1.7]), step(loss, (s, t, y), [1.7]))
    assert by(backend.reports)[:2] == [CE, "kl_div"] and KL not in by(backend.reports)
