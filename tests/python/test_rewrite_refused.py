"""onepass.torch.rewrite: what could differ is refused, with the reason, and trying it leaves no mark."""

import collections
import dataclasses
import functools
import os
import random
import time
import warnings

import pytest
import torch
import torch.fx
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from onepass.torch import rewrite
from rewrite_samples import (FUSED, MODES, PLAIN, VERSION, check_same, close, depends_on_values, helper, model_of,
                             probabilities, run)

pytestmark = pytest.mark.filterwarnings("ignore:reduction:UserWarning", "ignore:size_average:UserWarning")


SEEN = []
COUNT = 0


def uses_log_twice(self, p, t):
    x = p.log()
    return F.kl_div(x, t, reduction="sum") + x.sum()


def log_is_target_too(self, p, t):
    x = p.log()
    return F.kl_div(x, x, reduction="sum", log_target=True) + t.sum()


def writes_between(self, p, t):
    p = p * 1
    x = p.log()
    p.mul_(2)
    return F.kl_div(x, t, reduction="sum") + p.sum()


def assigns_between(self, p, t):
    p = p * 1
    x = p.log()
    p[0] = 1
    return F.kl_div(x, t, reduction="sum") + p.sum()


def adds_between(self, p, t):
    p = p * 1
    x = p.log()
    p += 1
    return F.kl_div(x, t, reduction="sum") + p.sum()


def calls_between(self, p, t):
    x = p.log()
    return F.kl_div(x, self.child(t), reduction="sum")


STAYS = [
    (uses_log_twice, "used elsewhere"), (log_is_target_too, "used elsewhere"), (writes_between, "may write"),
    (assigns_between, "may write"), (adds_between, "may write"), (calls_between, "may write"),
    (lambda self, p, t: F.kl_div(p.log(), t, size_average=False), "size_average"),
]


@pytest.mark.parametrize("forward, why", STAYS)
def test_logarithm_that_stays(forward, why):
    """kl_div is replaced, the logarithm before it is not."""
    model = model_of(forward, child=model_of(lambda self, x: x * 2))
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [PLAIN]
    assert [each.what for each in report.refused] == ["log, kl_div"] and why in report.refused[0].why
    assert report.refused[0].line.startswith(os.path.basename(__file__) + ":")
    p, t = probabilities(5, 7), probabilities(5, 7)
    assert close(new(p, t), model(p, t), 1e-6)
    if why != "may write" or forward is calls_between:
        if forward is not log_is_target_too:  # its gradients are 0
            check_same(model, new, p, t)
        return
    for each in (model, new):  # by autograd's rules
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(each, p, t)


def test_gradient_mode_that_changes_in_between():
    def forward(self, p, t):
        with torch.no_grad():
            x = p.log()
        return F.kl_div(x, t * 1, reduction="sum")

    model = model_of(forward)
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [PLAIN, FUSED]  # the latter without gradients
    assert [each.what for each in report.refused] == ["log, kl_div"] and "gradient mode" in report.refused[0].why
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7).requires_grad_()
    value = new(p, t)
    value.backward()
    assert p.grad is None and close(t.grad, t.log() + 1 - p.log(), 1e-6) and close(value, model(p, t), 1e-6)
    with torch.no_grad():
        assert close(new(p, t), value, 1e-6)


def test_a_logarithm_nobody_can_write_to():
    """The value under it is made here and used once: whatever is called in between cannot reach it."""
    def forward(self, x, y):
        logarithm = torch.log(F.softmax(x, -1))
        return F.kl_div(logarithm, self.child(y), reduction="sum")

    model = model_of(forward, child=model_of(lambda self, x: x.softmax(-1)))
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED] and report.refused == []
    check_same(model, new, torch.randn(4, 6), torch.randn(4, 6))


def depends_on_class(self, p, t):
    return helper(p, t) if isinstance(p, torch.Tensor) else None


def depends_on_is_tensor(self, p, t):
    return helper(p, t) if torch.is_tensor(p) else None


def depends_on_class_of_result(self, p, t):
    p = self.child(p)
    return helper(p[0] if isinstance(p, tuple) else p, t)


def depends_on_attributes(self, p, t):
    return helper(p, t) if hasattr(p, "names") else None


def depends_on_identity(self, p, t):
    return helper(p, t) if p is t else helper(t, p)


def depends_on_true(self, p, t):
    return helper(p, t) if t is True else helper(p, p)


def depends_on_constant(self, p, t):
    return helper(p, t) if t is MODES.first else helper(p, p)


def depends_on_type(self, p, t):
    return helper(p, t) if type(t) is torch.Tensor else helper(p, p)


def depends_on_none_of_item(self, p, t):
    q = p.get("mask")
    return helper(t, t) if q is None else helper(q, t)


def depends_on_none_after_change(self, p, t):
    p = self.child(p)
    return helper(t, t) if p is None else helper(p, t)


def depends_on_none(self, p, t):
    q = self.child(p)
    return helper(p, t) if q is None else helper(q, t)


def iterates(self, p, t):
    return sum(helper(row, t) for row in p)


def sets_attribute(self, p, t):
    self.last = helper(p, t)
    return self.last


def hides_the_error(self, p, t):
    try:
        self.last = p
    except Exception:
        pass
    return helper(p, t)


def counts(self, p, t):
    self.number += 1
    return helper(p, t)


def sets_another_value(self, p, t):
    value = p.sum()
    value += 1
    self.scale = value
    return helper(p, t)


def registers_hook(self, p, t):
    self.child.register_forward_hook(helper)
    return helper(p, t)


def sets_autocast(self, p, t):
    SET_AUTOCAST(True)
    loss = helper(p, t)
    SET_AUTOCAST(False)
    return loss


def SET_AUTOCAST(flag):
    if VERSION >= (2, 4):
        torch.set_autocast_enabled("cpu", flag)
    else:
        torch.set_autocast_cpu_enabled(flag)


def deletes_attribute(self, p, t):
    del self.number
    return helper(p, t)


def appends(self, p, t):
    self.items.append(1)
    return helper(p, t)


def appends_to_global(self, p, t):
    SEEN.append(1)
    return helper(p, t)


def sets_global(self, p, t):
    global COUNT
    COUNT = 1
    return helper(p, t)


def prints(self, p, t):
    print("forward")
    return helper(p, t)


def draws_python(self, p, t):
    return helper(p, t) * random.random()


def draws_torch(self, p, t):
    if torch.rand(()) < 2:
        p = p * 0.5
    return helper(p, t)


def makes_tensor(self, p, t):
    return helper(p, t) * torch.ones(())


def walks_parameters(self, p, t):
    for parameter in self.parameters():
        parameter.data.mul_(0.5)
    return helper(p, t)


def walks_buffers(self, p, t):
    return helper(p, t) * self._buffers["scale"]


def autocasts(self, p, t):
    with torch.autocast("cpu", enabled=False):
        return helper(p, t)


@torch.autocast("cpu", enabled=False)
def autocasts_by_decorator(self, p, t):
    return helper(p, t)


@torch.inference_mode()
def infers(self, p, t):
    return helper(p, t)


def enters_context(self, p, t):
    with torch.autograd.profiler.record_function("loss"):
        return helper(p, t)


@dataclasses.dataclass
class Result:
    loss: torch.Tensor

    def __post_init__(self):
        self.loss = self.loss * 2


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g / 2


def calls_autograd_function(self, p, t):
    return helper(Halved.apply(p), t)


def checkpoints(self, p, t):
    if VERSION >= (2, 0):
        return torch.utils.checkpoint.checkpoint(helper, p, t, use_reentrant=False)
    return torch.utils.checkpoint.checkpoint(helper, p, t)


def warns(self, p, t):
    warnings.warn("forward")
    return helper(p, t)


def catches(self, p, t):
    try:
        return helper(p, t)
    except RuntimeError:
        return helper(p, p)


def gives_dataclass(self, p, t):
    return Result(helper(p, t))


def gives_ordered(self, p, t):
    return collections.OrderedDict(loss=helper(p, t))


def takes_anything(self, *tensors):
    return helper(*tensors)


def has_mutable_default(self, p, t, options=[]):
    return helper(p, t)


def calls_itself(self, p, t):
    return self(p, t)


def calls_unregistered(self, p, t):
    return helper(self.items[0](p), t)


def depends_on_none_of_gradient(self, p, t):
    return helper(p, t) if p.grad is None else helper(p, p)


def depends_on_none_of_parameters_gradient(self, p, t):
    return helper(p, t) if self.weight.grad is None else helper(p, p)


def depends_on_time(self, p, t):
    return helper(p, t) * time.time()


def sets_attribute_of_value(self, p, t):
    q = p * 1
    q.requires_grad = True
    return helper(p, t) + q.sum()


def makes_text(self, p, t):
    return helper(p, t), f"{p.shape}"


def formats(self, p, t):
    return helper(p, t), "%s" % p


def looks_up(self, p, t):
    return helper(p, t) * getattr(torch, "rand")(())


def reads_attribute_of_function(self, p, t):
    return helper(p, t) * counted.number


def counted():
    pass


counted.number = 2


def reads_class(self, p, t):
    return helper(p, t) * len(self.__class__.__name__)


def asks_a_child_for_its_length(self, p, t):
    return helper(p, t) * len(self.sized)


class Sized(nn.Module):
    def __len__(self):
        SEEN.append(1)
        return 3


def sets_a_child(self, p, t):
    self._modules["sized"] = self.child
    return helper(p, t)


def wrap(function):
    def wrapper(*arguments):
        return function(*arguments)
    return wrapper


wrapped_helper = wrap(helper)


@wrap
def wrapped_print(p, t):
    print("forward")
    return helper(p, t)


def calls_two_of_one_decorator(self, p, t):
    return wrapped_helper(p, t) + wrapped_print(p, t)


def imports(self, p, t):
    import math
    return helper(p, t) * math.pi


def decorates(self, p, t):
    @torch.no_grad()
    def inner():
        return helper(p, t)
    return inner()


def calls_a_function_that_prints(self, p, t):
    return (lambda function: function(p, t))(print_and_help)


def print_and_help(p, t):
    print("forward")
    return helper(p, t)


def raises(self, p, t):
    return helper(p, t) / {}["missing"]


REFUSED = [
    (depends_on_values, "control flow"), (depends_on_class, "isinstance"), (depends_on_is_tensor, "is_tensor"),
    (depends_on_class_of_result, "isinstance"), (depends_on_attributes, "hasattr"), (depends_on_identity, "`is`"),
    (depends_on_true, "`is`"), (depends_on_constant, "`is`"), (depends_on_type, "`is`"), (depends_on_none, "`is`"),
    (depends_on_none_of_item, "`is`"), (depends_on_none_after_change, "`is`"), (iterates, "iterates"),
    (sets_attribute, "sets self.last"), (hides_the_error, "catches"), (counts, "sets self.number"),
    (deletes_attribute, "deletes self.number"), (sets_another_value, "sets self.scale"),
    (registers_hook, "register_forward_hook"), (sets_autocast, "autocast"), (appends, "self.items"),
    (appends_to_global, "SEEN"), (sets_global, "COUNT"), (prints, "print"), (draws_python, "random"),
    (draws_torch, "torch.rand"), (makes_tensor, "torch.ones"), (walks_parameters, "parameters"),
    (walks_buffers, "buffers"), (autocasts, "autocast"), (autocasts_by_decorator, "autocast"), (infers, "decorator"),
    (enters_context, "context"), (calls_autograd_function, "Halved"), (checkpoints, "checkpoint"),
    (warns, "warnings.warn"), (catches, "catches"), (gives_ordered, "OrderedDict"), (gives_dataclass, "Result"),
    (takes_anything, "*tensors"), (has_mutable_default, "options"), (calls_itself, "submodules"),
    (calls_unregistered, "self.items"), (raises, "KeyError"), (depends_on_none_of_gradient, "`is`"),
    (depends_on_none_of_parameters_gradient, "`is`"), (depends_on_time, "time.time"),
    (sets_attribute_of_value, "q.requires_grad"), (makes_text, "text"), (formats, "text"), (looks_up, "getattr"),
    (reads_attribute_of_function, "counted"), (reads_class, "__name__"), (asks_a_child_for_its_length, "__len__"),
    (imports, "imports"), (decorates, "decorates"), (calls_a_function_that_prints, "print"),
    (calls_two_of_one_decorator, "print"), (sets_a_child, "traced"),
]


@pytest.mark.filterwarnings("ignore:forward:UserWarning")
@pytest.mark.parametrize("forward, why", REFUSED, ids=[forward.__name__ for forward, _ in REFUSED])
def test_forward_that_stays(forward, why):
    """Refused with the reason; tracing has left no mark on the model, on its tensors or on random numbers."""
    model = model_of(forward, child=model_of(lambda self, x: x * 2), number=0, items=[nn.Identity()], sized=Sized(),
                     scale=torch.full((), 2.0), weight=nn.Parameter(torch.randn(3)))
    weight = model.weight.detach().clone()
    states = random.getstate(), torch.get_rng_state()
    del SEEN[:]
    new, report = rewrite(model)
    assert report.replaced == [] and type(new) is type(model)
    assert [(each.where, each.what) for each in report.refused] == [("", "forward")]
    assert why in report.refused[0].why, report.refused[0].why
    assert states[0] == random.getstate() and torch.equal(states[1], torch.get_rng_state())
    assert model.number == 0 and len(model.items) == 1 and model.scale == 2 and not hasattr(model, "last")
    assert torch.equal(model.weight, weight) and not model.child._forward_hooks and SEEN == []
    SET_AUTOCAST(False)


def test_numpy_numbers_are_not_drawn():
    numpy = pytest.importorskip("numpy")
    model = model_of(lambda self, p, t: helper(p, t) * numpy.random.rand())
    before = numpy.random.get_state()
    report = rewrite(model)[1]
    after = numpy.random.get_state()
    assert report.replaced == [] and "random" in report.refused[0].why
    assert (before[1] == after[1]).all() and before[2:] == after[2:]


def test_closures():
    factor, seen = 3.0, []

    def constant(self, p, t):
        return helper(p, t) * factor

    def list_of_outer(self, p, t):
        seen.append(1)
        return helper(p, t)

    def counts_outside(self, p, t):
        nonlocal factor
        factor += 1
        return helper(p, t)

    model = model_of(constant)
    new, report = rewrite(model)
    assert len(report.replaced) == 1
    p, t = probabilities(5, 7), probabilities(5, 7)
    check_same(model, new, p, t)
    factor = 4.0
    assert close(new(p, t), 4 * helper(p, t), 1e-6)
    report = rewrite(model_of(list_of_outer))[1]
    assert report.replaced == [] and "seen" in report.refused[0].why
    report = rewrite(model_of(counts_outside))[1]
    assert report.replaced == [] and "factor" in report.refused[0].why


class Loud(nn.Module):
    def forward(self, p, t):
        SEEN.append(1)
        return helper(p, t)


class Louder(Loud):
    @property
    def last(self):
        SEEN.append(2)
        return 1

    @classmethod
    def made(cls, value):
        SEEN.append(3)
        return value

    def method(self, value):
        SEEN.append(4)
        return value


def calls_base(self, p, t):
    return super(Louder, self).forward(p, t)


@pytest.mark.parametrize("forward", [
    lambda self, p, t: Loud.forward(self, p, t),
    calls_base,
    lambda self, p, t: helper(p, t) * self.last,
    lambda self, p, t: helper(self.made(p), t),
    lambda self, p, t: helper(self.method(p), t),
    lambda self, p, t: sum(map(self.method, [helper(p, t)])),
], ids=["of a base", "super", "property", "class method", "method", "method as a value"])
def test_everything_that_forward_reaches_is_checked(forward):
    """None of it is run."""
    del SEEN[:]
    report = rewrite(type("Model", (Louder,), {"forward": forward})())[1]
    assert report.replaced == [] and len(report.refused) == 1 and SEEN == []
    assert "SEEN" in report.refused[0].why or "super" in report.refused[0].why


class Overriding(Loud):
    def forward(self, p, t):
        return super().forward(p, t) * 2


def test_base_classes_are_checked():
    del SEEN[:]
    report = rewrite(Overriding())[1]
    assert report.replaced == [] and "SEEN" in report.refused[0].why and SEEN == []


def test_source_that_is_not_there():
    names = {"helper": helper}
    exec("def forward(self, p, t):\n    return helper(p, t)\n", names)
    report = rewrite(model_of(names["forward"]))[1]
    assert report.replaced == [] and "not available" in report.refused[0].why
    both = [lambda self, p, t: helper(p, t), lambda self, p, t: helper(p, t) * 2]
    report = rewrite(model_of(both[0]))[1]
    assert report.replaced == [] and "not exactly one function" in report.refused[0].why


def test_source_that_has_changed(tmp_path, monkeypatch):
    """Edited after it was imported: what is checked would not be what runs."""
    file = tmp_path / "edited_model.py"
    text = "from rewrite_samples import helper\n\n\ndef forward(self, p, t):\n    %sreturn helper(p, t)\n"
    file.write_text(text % "print(p); ")
    monkeypatch.syspath_prepend(str(tmp_path))
    import edited_model
    file.write_text(text % "")
    report = rewrite(model_of(edited_model.forward))[1]
    assert report.replaced == [] and "has changed" in report.refused[0].why


def test_functions_within_forward():
    """Comprehensions, generators and functions made in forward use its variables, which are traced ones."""
    def forward(self, p, t):
        count = 0

        def weighted(x):
            nonlocal count
            count += 1
            return x * self.scale

        parts = [weighted(layer(p)) for layer in self.layers]
        largest = max(range(3), key=lambda i: -i)
        return helper(sum(part.exp() for part in parts).softmax(-1), t) * (count + largest)

    layers = nn.ModuleList([nn.Linear(7, 7) for _ in range(3)]).double()
    model = model_of(forward, layers=layers, scale=torch.rand(7).double())
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED] and report.refused == []
    check_same(model, new, probabilities(5, 7), probabilities(5, 7))


def test_argument_names_that_python_uses():
    def forward(self, type, isinstance, getattr=None, run=2.0):
        return self.losses[0](type.log(), isinstance) * run * self.scale

    model = model_of(forward, losses=nn.ModuleList([nn.KLDivLoss(reduction="sum")]), scale=torch.ones(()))
    new, report = rewrite(model)
    assert FUSED in [each.by for each in report.replaced]
    check_same(model, new, probabilities(5, 7), probabilities(5, 7))


class Cached(nn.Module):
    @functools.cached_property
    def factor(self):
        return 2.0

    def forward(self, p, t):
        return helper(p, t) * self.factor


def test_cached_property():
    model = Cached()
    report = rewrite(model)[1]
    assert report.replaced == [] and "cached" in report.refused[0].why and "factor" not in model.__dict__
    assert model.factor == 2.0
    new, report = rewrite(model)
    assert len(report.replaced) == 1
    check_same(model, new, probabilities(5, 7), probabilities(5, 7))


@pytest.mark.parametrize("forward, name", [
    (lambda self, p, t, word: F.kl_div(p.log(), t, reduction=word), "reduction"),
    (lambda self, p, t, flag: F.kl_div(p.log(), t, reduction="sum", log_target=flag), "log_target"),
    (lambda self, p, t, flag: F.kl_div(p.log(), t, size_average=flag), "size_average"),
])
def test_arguments_that_are_not_known(forward, name):
    report = rewrite(model_of(forward))[1]
    assert report.replaced == [] and [each.what for each in report.refused] == ["kl_div"]
    assert name + " is not known" in report.refused[0].why


def test_unknown_reduction_is_left_to_pytorch():
    new, report = rewrite(model_of(lambda self, p, t: F.kl_div(p.log(), t, reduction="median")))
    assert report.replaced == [] and "median" in report.refused[0].why
    with pytest.raises(ValueError, match="median"):
        new(probabilities(2, 3), probabilities(2, 3))


def scripted():
    return torch.jit.script(nn.Linear(7, 7))


@pytest.mark.parametrize("make, why", [
    (scripted, "scripted"), (lambda: nn.DataParallel(nn.Linear(7, 7)), "wraps"),
    (lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(7, 7))), "GraphModule"),
    (lambda: nn.LazyLinear(7), "no shape"),
])
def test_modules_that_are_not_entered(make, why):
    model = model_of(lambda self, p, t: helper(self.child(p).softmax(-1), t), child=make())
    child = model.child
    same, report = rewrite(child)
    assert same is child and report.replaced == [] and report.refused[0].where == ""
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED]
    assert [each.where for each in report.refused] == ["child"] and why in report.refused[0].why
    assert new.child is child and model.child is child
    p, t = probabilities(5, 7).float(), probabilities(5, 7).float()
    assert close(new(p, t), model(p, t), 1e-5)


def test_what_is_not_a_module():
    with pytest.raises(TypeError, match="torch.nn.Module"):
        rewrite(helper)
