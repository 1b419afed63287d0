"""onepass.torch.rewrite of a linear layer, batch normalisation, a scale and softmax: what is recognised gives the same
with the same state, in both modes; what could differ is left alone."""

import copy
import pathlib
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_samples as samples
from head_samples import CLOSE, check, draw, off, step
from rewrite_samples import model_of

from onepass.torch import rewrite

BY = "onepass.torch.linear_batch_norm_softmax"
PROBLEMS = pathlib.Path(__file__).resolve().parents[2] / "problems"


def parts(outputs=4, inputs=6, **more):
    """Modules and a scale that have seen some training."""
    made = dict(gemm=nn.Linear(inputs, outputs), bn=nn.BatchNorm1d(outputs), scale=nn.Parameter(torch.rand(1) + 0.5),
                softmax=nn.Softmax(dim=1))
    made.update(more)
    for module in made.values():
        if isinstance(module, nn.BatchNorm1d) and module.running_mean is not None:
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return made


def is_ours(output):
    return type(output.grad_fn).__name__ == "HeadBackward"


def compare(model, new, name):
    """Two steps of training and one of evaluation, from the same state, of the rewritten model and of a deep copy of
    the original: the state is shared."""
    generator = samples.random("rewrite " + name)
    theirs = copy.deepcopy(model)
    for train in (True, True, False):
        new.train(train), theirs.train(train)
        x = draw(generator, 8, 6)
        upstream = draw(generator, 8, 4)
        check(step(new, x, upstream), step(theirs, x, upstream), train)
        assert is_ours(new(x.requires_grad_())) and not is_ours(theirs(x))


# ---- what is recognised ----------------------------------------------------------------------------------------------

SPELLINGS = {
    "modules": lambda self, x: self.softmax(self.scale * self.bn(self.gemm(x))),
    "scale behind": lambda self, x: self.softmax(self.bn(self.gemm(x)) * self.scale),
    "torch.mul": lambda self, x: torch.softmax(torch.mul(self.bn(self.gemm(x)), self.scale), 1),
    "mul": lambda self, x: self.bn(self.gemm(x)).mul(self.scale).softmax(dim=1),
    "F.softmax": lambda self, x: F.softmax(self.scale * self.bn(self.gemm(x)), dim=-1),
    "softmax method": lambda self, x: (self.scale * self.bn(self.gemm(x))).softmax(-1),
    "no scale": lambda self, x: self.softmax(self.bn(self.gemm(x))),
    "number": lambda self, x: F.softmax(2.5 * self.bn(self.gemm(x)), 1),
    "whole number": lambda self, x: F.softmax(self.bn(self.gemm(x)) * 3, 1),
}


def in_lines(self, x):
    y = self.gemm(x)
    y = self.bn(y)
    y = self.scale * y
    return self.softmax(y)


SPELLINGS["in lines"] = in_lines


@pytest.mark.parametrize("name", sorted(SPELLINGS))
def test_spelling(name):
    used = parts()
    if name in ("number", "whole number", "no scale"):
        del used["scale"]  # a parameter that nothing is done with has no gradient
    model = model_of(SPELLINGS[name], **used).double()
    new, report = rewrite(model)
    assert [(each.where, each.by) for each in report.replaced] == [("", BY)] and report.refused == []
    assert report.replaced[0].line.startswith("test_rewrite_head.py:")
    assert list(new.state_dict()) == list(model.state_dict())
    assert [id(tensor) for tensor in new.state_dict(keep_vars=True).values()] == [
        id(tensor) for tensor in model.state_dict(keep_vars=True).values()]
    compare(model, new, name)


@pytest.mark.parametrize("change", [
    {"scale": nn.Parameter(torch.rand(4) + 0.5)}, {"scale": nn.Parameter(torch.tensor(1.5))},
    {"scale": torch.rand(1) + 0.5}, {"gemm": nn.Linear(6, 4, bias=False)}, {"bn": nn.BatchNorm1d(4, affine=False)},
    {"bn": nn.BatchNorm1d(4, momentum=None)}, {"bn": nn.BatchNorm1d(4, eps=0.1)}, {"softmax": nn.Softmax(dim=-1)},
], ids=lambda change: "%s %s" % (next(iter(change)), id(change)))
def test_options(change):
    """Parameters a feature and without dimensions, a buffer, no bias, no affine, cumulative average, eps, last dim."""
    model = model_of(SPELLINGS["modules"], **parts(**copy.deepcopy(change))).double()
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [BY] and report.refused == []
    compare(model, new, "options")


def test_modules_in_a_list():
    def forward(self, x):
        return torch.softmax(self.layers[1](self.layers[0](x)), 1)

    model = model_of(forward, layers=nn.ModuleList([nn.Linear(6, 4), nn.BatchNorm1d(4)])).double()
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [BY]
    x = torch.rand(8, 6, dtype=torch.float64)
    expected = copy.deepcopy(model)(x)
    found = new(x)
    assert is_ours(found) and off(found, expected) <= CLOSE


def test_the_founding_problem(monkeypatch):
    monkeypatch.syspath_prepend(str(PROBLEMS))
    monkeypatch.delitem(sys.modules, "linear_bn_softmax", raising=False)
    from linear_bn_softmax import Model
    torch.manual_seed(samples.SEED)
    model = Model(6, 4).double()
    new, report = rewrite(model)
    assert [(each.where, each.what, each.by) for each in report.replaced] == [
        ("", "Linear, BatchNorm1d, scale, softmax", BY)]
    assert report.refused == [] and isinstance(new, Model) and type(model) is Model
    compare(model, new, "problem")


def test_inside_a_model_and_in_place():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.heads = nn.ModuleList([model_of(SPELLINGS["modules"], **parts()) for _ in range(2)])

        def forward(self, x):
            x = torch.tanh(self.first(x))
            return self.heads[0](x) + self.heads[1](x)

    model = Classifier().double()
    before = copy.deepcopy(model)
    same, report = rewrite(model, inplace=True)
    assert same is model and sorted(each.where for each in report.replaced) == ["heads.0", "heads.1"]
    x = torch.rand(8, 6, dtype=torch.float64)
    assert is_ours(model.heads[0](x)) and off(model(x), copy.deepcopy(before)(x)) <= 1e-9
    report.undo()
    assert not is_ours(model.heads[0](x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
                         ids=["deepcopy", "pickle"])
def test_copies(copied):
    sys.modules[__name__].Picklable = type("Picklable", (nn.Module,), {
        "forward": SPELLINGS["modules"], "__module__": __name__, "__qualname__": "Picklable"})
    model = sys.modules[__name__].Picklable()
    for name, part in parts().items():
        setattr(model, name, part)
    new, _ = rewrite(model.double())
    twin = copied(new)
    x = torch.rand(8, 6, dtype=torch.float64)
    expected = copy.deepcopy(model)(x)
    assert is_ours(twin(x)) and off(twin(x), expected) <= CLOSE
    assert int(twin.bn.num_batches_tracked) == 2 and int(new.bn.num_batches_tracked) == 0


@samples.needs_compile
def test_compile():
    model = model_of(SPELLINGS["F.softmax"], **parts()).double()
    new, _ = rewrite(model)
    theirs = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(new, fullgraph=True, backend="aot_eager")
    x = torch.rand(8, 6, dtype=torch.float64)
    assert off(compiled(x), theirs(x)) <= CLOSE and off(new.bn.running_var, theirs.bn.running_var) <= CLOSE


def test_symbolic_trace():
    model = model_of(SPELLINGS["F.softmax"], **parts()).double()
    new, _ = rewrite(model)
    x = torch.rand(8, 6, dtype=torch.float64)
    assert off(torch.fx.symbolic_trace(new)(x), copy.deepcopy(model)(x)) <= CLOSE


# ---- what happens to a rewritten model -------------------------------------------------------------------------------


def test_other_ranks():
    """Three dimensions: normalised over the second, softmax over the last; PyTorch's operations, and its errors."""
    for name in ("modules", "F.softmax"):
        model = model_of(SPELLINGS[name], **parts()).double()
        new, _ = rewrite(model)
        theirs = copy.deepcopy(model)
        for shape in ((5, 4, 6), (6,), (1, 6), (5, 7)):
            x = torch.rand(shape, dtype=torch.float64)
            try:
                expected = theirs(x)
            except Exception as error:
                with pytest.raises(type(error)) as caught:
                    new(x)
                assert str(caught.value) == str(error)
            else:
                assert shape == (5, 4, 6) and off(new(x), expected) <= CLOSE


def hook(model, fired):
    model.bn.register_forward_hook(lambda *_: fired.append("bn"))


def hook_softmax(model, fired):
    model.softmax.register_forward_pre_hook(lambda *_: fired.append("softmax"))


def replace_bn(model, fired):
    class Louder(nn.BatchNorm1d):
        def forward(self, x):
            fired.append("louder")
            return super().forward(x) * 3
    model.bn = Louder(4).double()


def replace_scale(model, fired):
    del model.scale
    model.scale = 7.0
    fired.append("scale")


def other_dim(model, fired):
    model.softmax.dim = 0
    fired.append("dim")


@pytest.mark.parametrize("change", [hook, hook_softmax, replace_bn, replace_scale, other_dim])
def test_changed_afterwards(change):
    """What is done to its modules later is honoured."""
    model = model_of(SPELLINGS["modules"], **parts()).double()
    new, _ = rewrite(model)
    theirs = copy.deepcopy(model)
    fired, expected = [], []
    change(new, fired), change(theirs, expected)
    x = torch.rand(8, 6, dtype=torch.float64)
    assert off(new(x), theirs(x)) <= CLOSE and fired == expected != []


# ---- what is left alone ----------------------------------------------------------------------------------------------


def other_use(self, x):
    y = self.bn(self.gemm(x))
    return self.softmax(self.scale * y) + y


def linear_used(self, x):
    y = self.gemm(x)
    return self.softmax(self.scale * self.bn(y)) + y


def product_used(self, x):
    z = self.scale * self.bn(self.gemm(x))
    return self.softmax(z) + z.sum()


def returned(self, x):
    z = self.scale * self.bn(self.gemm(x))
    return z, self.softmax(z)


def work_between(self, x):
    y = self.bn(self.gemm(x))
    seen = self.bn.running_mean * 2
    return self.softmax(self.scale * y) + seen


def write_between(self, x):
    y = self.bn(self.gemm(x))
    self.scale.data.mul_(2)
    return self.softmax(self.scale * y)


def no_grad_between(self, x):
    with torch.no_grad():
        y = self.bn(self.gemm(x))
    return self.softmax(self.scale * y)


def other_dims(self, x):
    return torch.softmax(self.scale * self.bn(self.gemm(x)), 0)


def other_type(self, x):
    return torch.softmax(self.scale * self.bn(self.gemm(x)), 1, dtype=torch.float32)


def scale_from_input(self, x):
    return self.softmax(x.mean() * self.bn(self.gemm(x)))


REFUSED = {
    "other_use": (other_use, {}, "used elsewhere"),
    "linear_used": (linear_used, {}, "used elsewhere"),
    "product_used": (product_used, {}, "used elsewhere"),
    "returned": (returned, {}, "used elsewhere"),
    "work_between": (work_between, {}, "something else is done"),
    "other_dims": (other_dims, {}, "dim=0"),
    "other_type": (other_type, {}, "dtype=torch.float32"),
    "dim of the module": (SPELLINGS["modules"], {"softmax": nn.Softmax(dim=2)}, "dim=2"),
    "no dim": (SPELLINGS["modules"], {"softmax": nn.Softmax()}, "dim=None"),
    "scale_from_input": (scale_from_input, {}, "the scale is not"),
    "shape of the scale": (SPELLINGS["modules"], {"scale": nn.Parameter(torch.ones(8, 1))}, "neither one element"),
    "subclass": (SPELLINGS["modules"], {"bn": type("Own", (nn.BatchNorm1d,), {})(4)}, "bn: it is a Own"),
    "subclass of Linear": (SPELLINGS["modules"], {"gemm": type("Own", (nn.Linear,), {})(6, 4)}, "gemm: it is a Own"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name):
    """Left alone, with the reason, and as right as it was."""
    forward, more, why = REFUSED[name]
    model = model_of(forward, **parts(**copy.deepcopy(more))).double()
    new, report = rewrite(model)
    assert report.replaced == [] and why in report.refused[0].why, str(report)
    assert type(new) is type(model)
    if name != "dim of the module":  # which has none for PyTorch either
        x = torch.rand(8, 6, dtype=torch.float64)
        expected = copy.deepcopy(model)(x)
        for a, b in zip(new(x), expected):
            assert torch.equal(a, b)


@pytest.mark.parametrize("hooked", ["gemm", "bn", "softmax"])
def test_hooks_are_refused(hooked):
    model = model_of(SPELLINGS["modules"], **parts())
    fired = []
    getattr(model, hooked).register_forward_hook(lambda *_: fired.append(hooked))
    new, report = rewrite(model)
    assert report.replaced == [] and "%s: it has hooks" % hooked in report.refused[0].why
    new(torch.rand(8, 6))
    assert fired == [hooked]


def test_parametrized_is_refused():
    model = model_of(SPELLINGS["modules"], **parts())
    import torch.nn.utils.parametrize
    torch.nn.utils.parametrize.register_parametrization(model.gemm, "weight", nn.Tanh())
    _, report = rewrite(model)
    assert report.replaced == [] and "gemm: it is a ParametrizedLinear" in report.refused[0].why


def test_gradient_mode_that_changes():
    """Where it does: within no_grad the chain is one call."""
    model = model_of(no_grad_between, **parts()).double()
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [BY] and "something else is done" in report.refused[0].why
    x = torch.rand(8, 6, dtype=torch.float64)
    theirs = copy.deepcopy(model)
    output = new(x)
    assert not is_ours(output) and torch.equal(output, theirs(x))
    output.sum().backward()
    assert new.scale.grad is not None and new.gemm.weight.grad is None
    with torch.no_grad():
        assert off(new(x), theirs(x)) <= CLOSE


def test_writing_to_the_scale_in_between():
    model = model_of(write_between, **parts())
    new, report = rewrite(model)
    assert report.replaced == [] and len(report.refused) == 1


@pytest.mark.parametrize("forward", [
    lambda self, x: self.softmax(self.scale * self.bn(x)),
    lambda self, x: self.softmax(self.scale * self.gemm(x)),
    lambda self, x: self.softmax(self.scale + self.bn(self.gemm(x))),
    lambda self, x: self.softmax(self.bn(torch.relu(self.gemm(x)))),
    lambda self, x: F.log_softmax(self.scale * self.bn(self.gemm(x)), 1),
    lambda self, x: torch.sigmoid(self.scale * self.bn(self.gemm(x))),
], ids=["no linear", "no bn", "sum", "relu", "log_softmax", "sigmoid"])
def test_other_chains_are_none_of_ours(forward):
    """Nothing to report of."""
    new, report = rewrite(model_of(forward, **parts(inputs=6)))
    assert report.replaced == [] and report.refused == [] and not hasattr(type(new), "onepass_base")
