"""onepass.torch.rewrite: what the new model shares with the original, its copies, and rewriting in place."""

import copy
import functools
import gc
import io
import os
import pickle
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from torch import nn

import onepass.torch
from onepass.torch import rewrite
from rewrite_samples import (FUSED, SPELLINGS, VERSION, Distillation, Losses, check_same, close, depends_on_values,
                             done_by_onepass, helper, model_of, probabilities, same_bits, same_step)

pytestmark = pytest.mark.filterwarnings("ignore:reduction:UserWarning", "ignore:size_average:UserWarning")


# ---- the new model --------------------------------------------------------------------------------------------------


def picture(model):
    """Everything about a model's modules that rewrite could change, as identities."""
    return [(path, id(module), type(module), module.training,
             {name: (id(value), [(key, id(part)) for key, part in value.items()] if isinstance(value, dict) else None)
              for name, value in module.__dict__.items()})
            for path, module in model.named_modules()]


def test_the_original_is_not_changed():
    model = nn.Sequential(Distillation(), Losses())
    model[0].register_forward_hook(lambda *arguments: None)
    model[0].student.eval()
    before = picture(model)
    new, report = rewrite(model)
    assert len(report.replaced) > 2 and picture(model) == before
    new.train(False)
    new[0].register_forward_pre_hook(lambda *arguments: None)
    new[0].extra = 1
    new.add_module("more", nn.Identity())
    assert picture(model) == before
    assert all(a is not b for a, b in zip(model.modules(), new.modules()))


def test_flags_are_copied():
    model = Distillation()
    model.student.eval()
    new, _ = rewrite(model)
    assert [each.training for each in new.modules()] == [each.training for each in model.modules()]
    assert new.training and not new.student.training


def test_parameters_and_buffers_are_shared():
    model = nn.Sequential(Distillation(), nn.Linear(3, 3))
    new, _ = rewrite(model)
    assert list(model.state_dict()) == list(new.state_dict())
    for a, b in ((model.named_parameters(), new.named_parameters()), (model.named_buffers(), new.named_buffers())):
        a, b = list(a), list(b)
        assert len(a) == len(b) > 1 and all(x[0] == y[0] and x[1] is y[1] for x, y in zip(a, b))
    new.double()
    assert {each.dtype for each in model.parameters()} == {torch.float64}
    assert model[0].student[1].running_mean.dtype == torch.float64
    model.float()
    assert new[0].student[1].running_mean.dtype == torch.float32


def test_training_one_trains_the_other():
    model = Distillation()
    new, _ = rewrite(model)
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x = torch.randn(8, 9)
        for each, its in ((new, optimizer), (alone, reference)):
            torch.manual_seed(step)
            its.zero_grad()
            each(x).backward()
            its.step()
    for (name, a), (_, b) in zip(model.state_dict().items(), alone.state_dict().items()):
        assert (a.dtype == torch.long and same_bits(a, b)) or close(a, b, 1e-5), name
    assert model.steps == 3 and model.student[1].num_batches_tracked == 3


def test_state_dicts_fit_both_ways():
    model, other = Distillation(), Distillation()
    new, _ = rewrite(model)
    kept = {name: value.clone() for name, value in other.state_dict().items()}
    assert not new.load_state_dict(other.state_dict()).missing_keys
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    fresh = Distillation()
    fresh.load_state_dict(new.state_dict())
    assert all(torch.equal(value, kept[name]) for name, value in fresh.state_dict().items())


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Distillation() for _ in range(3)])
        self.shared = self.blocks[0]
        self.order = [self.blocks[2], self.blocks[0]]
        self.first = self.blocks[0].forward
        self.partial = functools.partial(self.blocks[1].forward, weight=None)

    def forward(self, x):
        return sum(block(x) for block in self.blocks) + self.order[0](x) + self.first(x)


def test_nested_and_shared_modules():
    model = Nested()
    new, report = rewrite(model)
    assert {each.where for each in report.replaced if each.by == FUSED} == {"blocks.0", "blocks.1", "blocks.2"}
    assert [each.where for each in report.refused] == [""] and "self.order" in report.refused[0].why
    assert type(new) is Nested
    assert new.shared is new.blocks[0] is new.order[1] and new.order[0] is new.blocks[2] is not model.blocks[2]
    assert new.first.__self__ is new.blocks[0] and model.first.__self__ is model.blocks[0]
    assert new.partial.func.__self__ is new.blocks[1] and new.partial.keywords == {"weight": None}
    # Blocks that do the same share a class: torch.compile sees one forward, not three.
    assert type(new.blocks[0]) is type(new.blocks[1]) is type(new.blocks[2]) is not Distillation
    x = torch.randn(6, 9)
    same_step(model, new, x)


def test_twice():
    model = nn.Sequential(Distillation(), Losses())
    new, _ = rewrite(model)
    again, report = rewrite(new)
    assert report.replaced == [] and report.refused == []
    assert [type(each) for each in again.modules()] == [type(each) for each in new.modules()]
    p, t = probabilities(5, 7), probabilities(5, 7)
    check_same(model[1], again[1], p, t)
    third, report = rewrite(model)
    assert len(report.replaced) == 9 and type(third[0]) is type(new[0])


def test_nothing_to_replace():
    model = nn.Sequential(nn.Linear(3, 3), model_of(lambda self, x: x.softmax(-1)), nn.Softmax(-1))
    new, report = rewrite(model)
    assert report.replaced == [] and report.refused == []
    assert [type(each) for each in new.modules()] == [type(each) for each in model.modules()]
    x = torch.randn(2, 3)
    assert same_bits(new(x), model(x))


def test_hooks_of_a_rewritten_module():
    calls = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_forward_hook(self.note)

        def note(self, module, inputs, output):
            calls.append((self, module, output))

        def forward(self, p, t):
            return helper(p, t)

    model = Model()
    model.register_full_backward_hook(lambda module, inputs, outputs: calls.append((module, inputs)))
    new, report = rewrite(model)
    assert len(report.replaced) == 1
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    value = new(p, t)
    assert len(calls) == 1 and calls[0][0] is new and calls[0][1] is new and close(calls[0][2], value, 0)
    value.backward()
    assert len(calls) == 2 and calls[1][0] is new and close(calls[1][1][0], p.grad, 0)


def test_class_and_methods_stay():
    class Model(nn.Module):
        known = []

        def __init_subclass__(cls):
            Model.known.append(cls)

        def forward(self, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            """What it says."""
            return helper(p, t)

        def name(self):
            return type(self).__name__, self.__class__.__qualname__

    model = Model()
    new, _ = rewrite(model)
    assert isinstance(new, Model) and type(new) is not Model and Model.known == []
    assert new.name() == model.name() and repr(new) == repr(model) and new.forward.__doc__ == "What it says."
    assert new.forward.__annotations__ == model.forward.__annotations__
    # Per instance: the class and what is made of it know nothing.
    assert not done_by_onepass(Model()(probabilities(2, 3).requires_grad_(), probabilities(2, 3)))


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "pickle 0": lambda model: pickle.loads(pickle.dumps(model, 0)),
}


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, **({"weights_only": False} if VERSION >= (2, 0) else {}))


COPIES["save"] = saved


@pytest.mark.parametrize("name", sorted(COPIES))
def test_copies(name):
    model = Distillation()
    new, _ = rewrite(model)
    new.temperature = model.temperature = 3.0
    again = COPIES[name](new)
    new.temperature = 5.0
    assert isinstance(again, Distillation) and type(again) is not Distillation and again.temperature == 3.0
    assert (again.student[0].weight is model.student[0].weight) == (name == "copy")
    assert type(again.loss) is onepass.torch.KLDivLoss and type(new) is not Distillation
    x = torch.randn(6, 9)
    for mode in (True, False):
        model.train(mode), again.train(mode)
        same_step(model, again, x)
    assert done_by_onepass(again.train()(x))


def test_saved_in_another_process(tmp_path):
    (tmp_path / "saved_model.py").write_text(textwrap.dedent("""
        import torch

        class Model(torch.nn.Module):
            def forward(self, p, t):
                return torch.nn.functional.kl_div(p.log(), t, reduction="sum")
        """))
    script = textwrap.dedent("""
        import pickle, sys, torch
        if sys.argv[1] == "save":
            from onepass.torch import rewrite
            from saved_model import Model
            pickle.dump(rewrite(Model())[0], open("model.pickle", "wb"))
        else:
            model = pickle.load(open("model.pickle", "rb"))
            value = model(torch.full((2, 2), 0.5, requires_grad=True), torch.full((2, 2), 0.25))
            print(type(value.grad_fn).__name__, "%.6f" % value.item())
        """)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    for word in ("save", "load"):
        out = subprocess.check_output([sys.executable, "-c", script, word], cwd=str(tmp_path), env=environment)
    assert out.split() == [b"KLBackward", b"-0.693147"]


def test_saved_model_follows_its_code():
    """A model that is loaded where its code has changed does what the new code says."""
    model = Changing()
    data = pickle.dumps(rewrite(model)[0])
    before = Changing.forward
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    try:
        Changing.forward = lambda self, p, t: helper(p, t) * 10
        again = pickle.loads(data)
        assert isinstance(again, Changing) and close(again(p, t), 10 * helper(p, t), 1e-6)
        Changing.forward = depends_on_values
        again = pickle.loads(data)
        assert type(again) is Changing and close(again(p, t), helper(p, t), 1e-6)
    finally:
        Changing.forward = before


class Changing(nn.Module):
    def forward(self, p, t):
        return helper(p, t)


class OwnReduce(Changing):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def __reduce__(self):
        return type(self), (self.size,)


def test_models_that_pickle_themselves():
    new, _ = rewrite(OwnReduce(3))
    again = pickle.loads(pickle.dumps(new))
    assert type(again) is OwnReduce and again.size == 3
    again = copy.deepcopy(new)
    assert isinstance(again, OwnReduce) and again.size == 3
    assert done_by_onepass(again(probabilities(2, 3).requires_grad_(), probabilities(2, 3)))


# ---- in place -------------------------------------------------------------------------------------------------------


def test_in_place_and_back():
    model = nn.Sequential(Distillation(), Losses(), nn.KLDivLoss())
    before = picture(model)
    for _ in range(2):
        earlier = copy.deepcopy(model)
        same, report = rewrite(model, inplace=True)
        assert same is model and len(report.replaced) == 10
        assert isinstance(model[0], Distillation) and type(model[0]) is not Distillation
        assert type(model[2]) is onepass.torch.KLDivLoss
        # Per object: neither an earlier copy nor a new one knows of it.
        assert type(earlier[0]) is Distillation and type(earlier[2]) is nn.KLDivLoss
        assert type(Distillation()) is Distillation
        later = copy.deepcopy(model)
        report.undo()
        assert picture(model) == before
        report.undo()
        assert picture(model) == before
        assert type(later[0]) is not Distillation and type(later[2]) is onepass.torch.KLDivLoss
    x = torch.randn(6, 9)
    same_step(model[0], later[0], x)
    same_step(model[0], earlier[0], x, exact=True)


def test_undo_that_would_lose_something():
    model = Changing()
    _, report = rewrite(model, inplace=True)
    rewritten = type(model)
    model.__class__ = type("Other", (type(model),), {})
    with pytest.raises(RuntimeError, match="changed again"):
        report.undo()
    model.__class__ = rewritten
    report.undo()
    assert type(model) is Changing


def test_undo_of_a_copy():
    _, report = rewrite(Changing())
    with pytest.raises(RuntimeError, match="not rewritten in place"):
        report.undo()


def test_nothing_is_kept_alive():
    model = model_of(SPELLINGS["torch.log"][0])
    new, report = rewrite(model)
    cls = weakref.ref(type(new))
    del new, report
    gc.collect()
    assert cls() is None
