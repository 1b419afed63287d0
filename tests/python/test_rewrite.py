"""onepass.torch.rewrite: what it recognises gives the same, what it does not is refused, and nothing else changes.

Every spelling is compared with float64 and with the original; that onepass did the work is seen from the value's
grad_fn. Runs with PyTorch 1.10 and with the newest.
"""

import collections
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import io
import os
import pickle
import random
import subprocess
import sys
import textwrap
import types
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn.functional import kl_div as kl_div_by_name

import onepass.torch
from onepass.torch import rewrite

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
pytestmark = pytest.mark.filterwarnings("ignore:reduction:UserWarning", "ignore:size_average:UserWarning")


def probabilities(*shape, dtype=torch.float64):
    return (2 * torch.randn(*shape, dtype=torch.float64)).softmax(-1).to(dtype)


def model_of(forward, **attributes):
    """A module with this forward. Attributes that are modules, parameters and tensors are registered as such."""
    module = type("Model", (nn.Module,), {"forward": forward})()
    for name, value in attributes.items():
        if type(value) is torch.Tensor:
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)
    return module


def done_by_onepass(value):
    """True if some onepass function is among what the value was computed by."""
    nodes, seen = [value.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if type(node).__name__ == "KLBackward":
            return True
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [each for each, _ in node.next_functions]
    return False


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def close(a, b, tolerance):
    """Every element within the tolerance, relative to the largest one; not for NaN."""
    a, b = a.detach().double(), b.detach().double()
    return a.shape == b.shape and bool(((a - b).abs() <= tolerance * b.abs().max()).all()) and bool(b.abs().max() > 0)


def run(model, p, t, upstream=None):
    """(value, gradient to p, gradient to t) of the sum of what the model gives, weighted by upstream."""
    p, t = p.clone().requires_grad_(), t.clone().requires_grad_()
    value = model(p, t)
    upstream = torch.ones_like(value) if upstream is None else upstream
    return (value,) + torch.autograd.grad(value, (p, t), upstream.to(value.dtype))


def check_same(model, new, p, t):
    """The new model agrees with float64 at least about as well as the model does, and onepass did the work."""
    value = new(p.clone().requires_grad_(), t)
    upstream = torch.randn_like(value)
    exact = run(copy.deepcopy(model).double(), p.double(), t.double(), upstream)
    theirs, ours = run(model, p, t, upstream), run(new, p, t, upstream)
    tolerance = 4e-6 if p.dtype == torch.float32 else 1e-12
    for x, y, z in zip(exact, theirs, ours):
        assert close(z, x, tolerance), (z, x)
        assert y.dtype == z.dtype and y.shape == z.shape


# ---- what is recognised ---------------------------------------------------------------------------------------------


def helper(p, t):
    logarithm = torch.log(p)
    return F.kl_div(logarithm, t, reduction="batchmean")


def method(self, p, t):
    return self.divergence(p, t)


Method = type("Method", (nn.Module,), {"forward": method, "divergence": lambda self, p, t: helper(p, t)})

FUSED = "onepass.torch.kl_div_probs"
PLAIN = "onepass.torch.kl_div"

SPELLINGS = {
    "torch.log": (lambda self, p, t: F.kl_div(torch.log(p), t, reduction="batchmean"), FUSED),
    "long name": (lambda self, p, t: torch.nn.functional.kl_div(torch.log(p), t, reduction="batchmean"), FUSED),
    "imported": (lambda self, p, t: kl_div_by_name(torch.log(p), t, reduction="batchmean"), FUSED),
    "method": (lambda self, p, t: F.kl_div(p.log(), t, reduction="batchmean"), FUSED),
    "named arguments": (lambda self, p, t: F.kl_div(target=t, input=torch.log(input=p), reduction="sum"), FUSED),
    "by position": (lambda self, p, t: F.kl_div(p.log(), t, None, None, "sum", True), FUSED),
    "helper": (lambda self, p, t: helper(p, t), FUSED),
    "of an expression": (lambda self, p, t: F.kl_div((p + 1e-3).log(), t, reduction="sum"), FUSED),
    "twice": (lambda self, p, t: helper(p, t) + F.kl_div(t.log(), p, reduction="sum"), FUSED),
    "torch.kl_div": (lambda self, p, t: torch.kl_div(p.log(), t, 2), FUSED),
    "torch.kl_div, by name": (lambda self, p, t: torch.kl_div(torch.log(p), t, reduction=0, log_target=True), FUSED),
    "torch.kl_div, plain": (lambda self, p, t: torch.kl_div(p.log_softmax(-1), t, reduction=2), PLAIN),
    "log_softmax": (lambda self, p, t: F.kl_div(F.log_softmax(p, -1), t, reduction="batchmean"), PLAIN),
    "size_average": (lambda self, p, t: F.kl_div(p.log_softmax(-1), t, size_average=False), PLAIN),
    "reduce": (lambda self, p, t: F.kl_div(p.log_softmax(-1), t, reduce=False), PLAIN),
    "detached log": (lambda self, p, t: F.kl_div(p.log_softmax(-1) * 1, t, reduction="sum"), PLAIN),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(SPELLINGS))
def test_spelling(name, dtype):
    forward, by = SPELLINGS[name]
    model = model_of(forward)
    new, report = rewrite(model)
    assert {each.by for each in report.replaced} == {by} and not report.refused
    assert {each.where for each in report.replaced} == {""} and report.replaced[0].line.startswith("test_rewrite.py:")
    p, t = probabilities(6, 11, dtype=dtype), probabilities(6, 11, dtype=dtype)
    check_same(model, new, p, t)


def test_the_founding_problem():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()

        def forward(self, predictions, targets):
            return torch.nn.functional.kl_div(torch.log(predictions), targets, reduction="batchmean")

    model = Model()
    new, report = rewrite(model)
    assert [(each.where, each.what, each.by) for each in report.replaced] == [("", "log, kl_div", FUSED)]
    assert report.refused == [] and isinstance(new, Model) and type(model) is Model
    p, t = probabilities(64, 512, dtype=torch.float32), probabilities(64, 512, dtype=torch.float32)
    check_same(model, new, p, t)
    assert done_by_onepass(new(p.requires_grad_(), t)) and not done_by_onepass(model(p, t))
    # Nothing is asked but what forward depends on.
    assert inspect.getsource(type(new).forward) == textwrap.dedent("""\
        def forward(self, predictions, targets):
            if predictions is not None and targets is not None:
                return onepass_graph_0(self, predictions, targets)
            return onepass_0(self, predictions, targets)
        """)


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "batchmean", "sum"])
@pytest.mark.parametrize("fused", [False, True])
def test_reductions(reduction, log_target, fused):
    def forward(self, p, t):
        x = torch.log(p) if fused_flag else p.log_softmax(-1)
        return F.kl_div(x, t.log() if log_flag else t, reduction=word, log_target=log_flag)

    fused_flag, word, log_flag = fused, reduction, log_target
    model = model_of(forward)
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED if fused else PLAIN]
    p, t = probabilities(3, 4, 9), probabilities(3, 4, 9)
    check_same(model, new, p, t)
    assert done_by_onepass(new(p.requires_grad_(), t))


@pytest.mark.parametrize("shapes", [((5, 7), (7,)), ((1, 7), (5, 7)), ((2, 3, 7), (3, 7)), ((7,), (7,))])
def test_broadcasting(shapes):
    """By the formula: some versions of PyTorch have no gradients here."""
    new, _ = rewrite(model_of(SPELLINGS["torch.log"][0]))
    p, t = probabilities(*shapes[0]), probabilities(*shapes[1])
    exact = run(lambda p, t: (t * (t.log() - p.log())).sum() / p.shape[0], p.double(), t.double())
    assert all(close(a, b, 4e-6) for a, b in zip(run(new, p, t), exact))
    assert close(new(p, t), model_of(SPELLINGS["torch.log"][0])(p, t), 4e-6)


# ---- losses as modules ----------------------------------------------------------------------------------------------


class Losses(nn.Module):
    """A loss as an attribute, in a list, in a dictionary, in a child; used on a logarithm and not."""

    def __init__(self):
        super().__init__()
        self.loss = nn.KLDivLoss(reduction="batchmean")
        self.listed = nn.ModuleList([nn.KLDivLoss(reduction="sum"), nn.Sequential(nn.KLDivLoss(reduction="none"))])
        self.named = nn.ModuleDict({"kl": nn.KLDivLoss(reduction="sum", log_target=True)})

    def forward(self, p, t):
        return (self.loss(torch.log(p), t) + self.listed[0](p.log_softmax(-1), t) + self.listed[1][0](p.log(), t).sum()
                + self.named["kl"](input=p.log(), target=t.log()))


def test_loss_modules():
    model = Losses()
    new, report = rewrite(model)
    assert {each.where for each in report.replaced if each.what == "KLDivLoss"} == {
        "loss", "listed.0", "listed.1.0", "named.kl"}
    assert [each.where for each in report.replaced if each.what == "log, KLDivLoss"] == ["", ""]  # on two lines
    assert report.refused == []
    for old, made in zip(model.modules(), new.modules()):
        assert type(old).__name__ == type(made).__name__
        if isinstance(old, nn.KLDivLoss):
            assert type(old) is nn.KLDivLoss and type(made) is onepass.torch.KLDivLoss
            assert (made.reduction, made.log_target) == (old.reduction, old.log_target)
    check_same(model, new, probabilities(5, 7), probabilities(5, 7))


def test_the_model_is_a_loss():
    model = nn.KLDivLoss(reduction="batchmean", log_target=True)
    new, report = rewrite(model)
    assert type(new) is onepass.torch.KLDivLoss and type(model) is nn.KLDivLoss
    assert new.reduction == "batchmean" and new.log_target is True and report.replaced[0].where == ""
    check_same(model, new, probabilities(5, 7).log(), probabilities(5, 7).log())


def test_legacy_arguments_of_the_module():
    new, _ = rewrite(nn.KLDivLoss(size_average=False))
    assert type(new) is onepass.torch.KLDivLoss and new.reduction == "sum"


def test_a_loss_that_changes_later():
    """What was fused asks the loss again in every call."""
    model = model_of(lambda self, p, t: self.loss(p.log(), t), loss=nn.KLDivLoss(reduction="batchmean"))
    new, _ = rewrite(model)
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    assert close(new(p, t), model(p, t), 1e-6)
    model.loss.reduction = new.loss.reduction = "sum"
    assert close(new(p, t), model(p, t), 1e-6) and close(new(p, t), 5 * helper(p, t), 1e-6)
    new.loss = nn.MSELoss()
    assert close(new(p, t), F.mse_loss(p.log(), t), 1e-6)
    new.loss = nn.KLDivLoss(reduction="batchmean")
    assert close(new(p, t), helper(p, t), 1e-6) and not done_by_onepass(new(p, t))
    new.loss = onepass.torch.KLDivLoss(reduction="sum", divisor=10)
    assert close(new(p, t), helper(p, t) / 2, 1e-6)


def test_losses_that_are_onepass_already():
    model = model_of(lambda self, p, t: self.loss(p.log(), t),
                     loss=onepass.torch.KLDivLoss(reduction="sum", divisor=10, semantics="finite"))
    new, report = rewrite(model)
    assert [(each.where, each.what, each.by) for each in report.replaced] == [("", "log, KLDivLoss", FUSED)]
    check_same(model, new, probabilities(5, 7), probabilities(5, 7))
    zero = torch.zeros(2, 3)
    assert new(zero, zero) == 0


class LossOfLogarithm(nn.KLDivLoss):
    def forward(self, p, t):
        return super().forward(torch.log(p), t)


class SlowLoss(nn.KLDivLoss):
    def forward(self, x, t):
        return super().forward(x, t) if float(x.sum()) < 0 else x.sum()


def test_subclasses_of_the_loss():
    """A subclass is not swapped; its forward is looked at like any other."""
    model = LossOfLogarithm(reduction="batchmean")
    new, report = rewrite(model)
    assert isinstance(new, LossOfLogarithm) and [each.by for each in report.replaced] == [FUSED]
    check_same(model, new, probabilities(5, 7), probabilities(5, 7))
    model = model_of(lambda self, p, t: self.loss(p.log(), t), loss=SlowLoss(reduction="sum"))
    new, report = rewrite(model)
    assert report.replaced == [] and type(new.loss) is SlowLoss
    assert {(each.where, each.what) for each in report.refused} == {("", "log, KLDivLoss"), ("loss", "forward")}
    assert "not exactly torch.nn.KLDivLoss" in report.refused[0].why and "traced" in report.refused[1].why


HOOKS = ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
if VERSION >= (2, 0):
    HOOKS.append("register_full_backward_pre_hook")


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_on_the_loss(kind):
    calls = []
    model = model_of(lambda self, p, t: self.loss(p.log(), t), loss=nn.KLDivLoss(reduction="sum"))
    getattr(model.loss, kind)(lambda *arguments: calls.append(len(arguments)))
    new, report = rewrite(model)
    assert report.replaced == [] and type(new.loss) is nn.KLDivLoss
    assert {(each.where, each.what) for each in report.refused} == {("", "log, KLDivLoss"), ("loss", "KLDivLoss")}
    assert all("hooks" in each.why for each in report.refused)
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    new(p, t).backward()
    assert len(calls) == 1 and close(p.grad, -t / p, 1e-5)


def test_attribute_access_of_its_own():
    class Model(nn.Module):
        def __getattribute__(self, name):
            return super().__getattribute__(name)

        def forward(self, p, t):
            return helper(p, t)

    report = rewrite(Model())[1]
    assert report.replaced == [] and "__getattribute__" in report.refused[0].why


@pytest.mark.skipif(VERSION < (2, 2), reason="needs torch.nn.Module.compile")
def test_compiled_in_place():
    model = nn.Sequential(model_of(SPELLINGS["torch.log"][0]))
    model[0].compile(backend="eager")
    new, report = rewrite(model)
    assert report.replaced == [] and "compiled" in report.refused[0].why and new[0] is model[0] and new is not model


def test_forward_of_the_instance():
    loss = nn.KLDivLoss(reduction="sum")
    loss.forward = lambda x, t: x.sum()
    new, report = rewrite(model_of(lambda self, p, t: self.loss(p.log(), t), loss=loss))
    assert report.replaced == [] and all("this very module" in each.why for each in report.refused)
    p = probabilities(5, 7)
    assert same_bits(new(p, p), p.log().sum())
    model = model_of(helper)
    model.forward = lambda p, t: p.sum()
    new, report = rewrite(model)
    assert report.replaced == [] and "this very module" in report.refused[0].why and same_bits(new(p, p), p.sum())


def test_attributes_of_the_loss_that_would_be_lost():
    loss = nn.KLDivLoss(reduction="sum")
    loss.divisor = 5
    new, report = rewrite(loss)
    assert report.replaced == [] and "divisor" in report.refused[0].why and type(new) is nn.KLDivLoss


# ---- what is refused ------------------------------------------------------------------------------------------------

SEEN = []
COUNT = 0


class MODES(enum.Enum):
    first, second = 1, 2


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
    assert report.refused[0].line.startswith("test_rewrite.py:")
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


def depends_on_values(self, p, t):
    return helper(p, t) if p.sum() > 0 else p.sum()


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
    self.child.register_forward_hook(print)
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


def raises(self, p, t):
    return helper(p, t) / {}["missing"]


REFUSED = [
    (depends_on_values, "control flow"), (depends_on_class, "isinstance"), (depends_on_is_tensor, "isinstance"),
    (depends_on_class_of_result, "isinstance"), (depends_on_attributes, "hasattr"), (depends_on_identity, "`is`"),
    (depends_on_true, "`is`"), (depends_on_constant, "`is`"), (depends_on_type, "`is`"), (depends_on_none, "`is`"),
    (depends_on_none_of_item, "`is`"), (depends_on_none_after_change, "`is`"), (iterates, "iterates"),
    (sets_attribute, "sets self.last"), (hides_the_error, "sets self.last"), (counts, "sets self.number"),
    (deletes_attribute, "deletes self.number"), (sets_another_value, "sets self.scale"),
    (registers_hook, "register_forward_hook"), (sets_autocast, "autocast"), (appends, "self.items"), (appends_to_global, "SEEN"),
    (sets_global, "COUNT"), (prints, "prints"), (draws_python, "random"), (draws_torch, "random"),
    (makes_tensor, "not made from its inputs"), (walks_parameters, "parameters"), (walks_buffers, "buffers"),
    (autocasts, "autocast"), (autocasts_by_decorator, "autocast"), (infers, "inference_mode"),
    (enters_context, "context"), (calls_autograd_function, "Halved"), (checkpoints, "checkpoint"), (warns, "warns"),
    (catches, "catches"), (gives_ordered, "OrderedDict"), (gives_dataclass, "Result"), (takes_anything, "*tensors"),
    (has_mutable_default, "options"), (calls_itself, "submodules"), (calls_unregistered, "self.items"),
    (raises, "KeyError"),
]


@pytest.mark.filterwarnings("ignore:forward:UserWarning")
@pytest.mark.parametrize("forward, why", REFUSED, ids=[forward.__name__ for forward, _ in REFUSED])
def test_forward_that_stays(forward, why):
    """Refused with the reason; tracing has left no mark on the model, on its tensors or on random numbers."""
    model = model_of(forward, child=model_of(lambda self, x: x * 2), number=0, items=[nn.Identity()],
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
    assert torch.equal(model.weight, weight) and not model.child._forward_hooks
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
    check_same(model, new, probabilities(5, 7), probabilities(5, 7))
    report = rewrite(model_of(list_of_outer))[1]
    assert report.replaced == [] and "seen" in report.refused[0].why
    report = rewrite(model_of(counts_outside))[1]
    assert report.replaced == [] and "factor" in report.refused[0].why


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


# ---- what forward reads besides its inputs --------------------------------------------------------------------------


class Distillation(nn.Module):
    """A student, a teacher without gradients, a temperature, dropout, a count of steps."""

    def __init__(self, size=9):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size))
        self.teacher = nn.Linear(size, size)
        self.loss = nn.KLDivLoss(reduction="batchmean")
        self.temperature = 2.0
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_parameter("bias", None)

    def forward(self, x, weight=None):
        with torch.no_grad():
            targets = F.softmax(self.teacher(x) / self.temperature, dim=-1)
        student = F.dropout(self.student(x), 0.25, self.training)
        if self.bias is not None:
            student = student + self.bias
        predictions = F.softmax(student / self.temperature, dim=-1)
        if not self.training:
            return predictions
        self.steps += 1
        if weight is not None:
            predictions = predictions * weight
        return self.loss(predictions.log(), targets) * self.temperature ** 2


def same_step(model, new, x, *arguments, exact=False):
    """One call of each with the same random numbers; value and gradients of all parameters agree."""
    seed = random.randrange(1 << 30)
    outcomes = []
    for each in (model, new):
        torch.manual_seed(seed)
        for parameter in each.parameters():
            parameter.grad = None
        value = each(x, *arguments)
        if value.requires_grad:
            (value * value).sum().backward()
        gradients = [p.grad.reshape(-1) for p in each.parameters() if p.grad is not None]
        outcomes.append((value, torch.cat(gradients) if gradients else value))
    for a, b in zip(*outcomes):
        assert same_bits(a, b) if exact else close(b, a, 1e-4)
    return outcomes[1][0]


def test_distillation():
    model = Distillation()
    new, report = rewrite(model)
    assert {(each.where, each.what, each.by) for each in report.replaced} == {
        ("", "log, KLDivLoss", FUSED), ("loss", "KLDivLoss", "onepass.torch.KLDivLoss")}
    assert report.refused == []
    x, weight = torch.randn(6, 9), torch.rand(9) + 0.5
    assert same_step(model, new, x).requires_grad
    assert same_step(model, new, x, weight).requires_grad
    assert model.teacher.weight.grad is None
    assert model.steps == 4 and new.steps is model.steps
    with torch.no_grad():
        assert not same_step(model, new, x).requires_grad
    model.eval(), new.eval()
    assert same_step(model, new, x, exact=True).shape == (6, 9)
    assert model.steps == 6


def test_one_is_not_true():
    """A guard takes 1 for 1 and not for True, which forward may tell apart."""
    model = model_of(lambda self, p, t: helper(p, t) * (2 if isinstance(self.flag, bool) else 3), flag=1)
    new, report = rewrite(model)
    assert len(report.replaced) == 1
    p, t = probabilities(5, 7), probabilities(5, 7)
    assert close(new(p, t), 3 * helper(p, t), 1e-6)
    new.flag = True
    assert close(new(p, t), 2 * helper(p, t), 1e-6)


def test_random_numbers_of_the_inputs_shape():
    def forward(self, p, t):
        return helper(p * (torch.rand_like(p) + 0.5), t)

    model = model_of(forward)
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED]
    p, t = probabilities(5, 7), probabilities(5, 7)
    values = []
    for each in (model, new, new):
        torch.manual_seed(len(values) // 2)
        values.append(each(p, t))
    assert close(values[1], values[0], 1e-9) and not close(values[2], values[0], 1e-3)


def test_train_and_eval_both_have_something():
    def forward(self, p, t):
        loss = helper(F.dropout(p, 0.5, self.training) + 0.1, t)
        return loss * 2 if self.training else loss

    model = model_of(forward)
    new, report = rewrite(model)
    assert len(report.replaced) == 1 and report.refused == []
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    for mode in (True, False, True):
        model.train(mode), new.train(mode)
        state = torch.get_rng_state()
        a = model(p, t)
        torch.set_rng_state(state)
        assert close(new(p, t), a, 1e-6)
    new.eval()
    assert done_by_onepass(new(p, t))


def test_one_mode_is_refused():
    def forward(self, p, t):
        if self.training:
            p = p * random.random()
        return helper(p, t)

    new, report = rewrite(model_of(forward))
    assert [each.by for each in report.replaced] == [FUSED] and len(report.refused) == 1
    assert report.refused[0].what == "forward" and "random" in report.refused[0].why
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    assert done_by_onepass(new.eval()(p, t)) and not done_by_onepass(new.train()(p, t))


def test_attributes_that_change_later():
    class Model(nn.Module):
        eps = 0.5

        def __init__(self):
            super().__init__()
            self.temperature, self.table, self.mask = 2.0, (1, 2.0), torch.ones(7)
            self.child = nn.Dropout(0.5)

        def forward(self, p, t):
            return helper(p * self.mask + self.eps, t) / self.temperature * self.table[1] + self.child.p

    model = Model()
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED]
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)

    assert close(new(p, t), model(p, t), 1e-4)
    for attributes in ({"temperature": 3.0}, {"temperature": 3}, {"table": (1, 5.0)}, {"eps": 0.25},
                       {"mask": torch.rand(7) + 0.1}, {"mask": 0.5}):
        before = new(p, t).item()
        for each in (model, new):
            for name, value in attributes.items():
                setattr(each, name, value)
        assert close(new(p, t), model(p, t), 1e-4)
        assert attributes == {"temperature": 3} or new(p, t).item() != before
    model.child.p = new.child.p = 0.25
    assert close(new(p, t), model(p, t), 1e-4)


FACTOR = 2.0


def twice_helper(p, t):
    return helper(p, t) * FACTOR


def test_globals_that_change_later(monkeypatch):
    """As in a notebook: a number is set anew, a function defined anew."""
    made = types.ModuleType("settings_of_test_rewrite")
    made.factor, made.options = 3.0, {}
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setitem(globals(), "settings", made)
    model = model_of(lambda self, p, t: twice_helper(p, t) * settings.factor)  # noqa: F821, a global
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED]
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    assert done_by_onepass(new(p, t)) and close(new(p, t), 6 * helper(p, t), 1e-5)
    made.factor = 5.0
    assert close(new(p, t), 10 * helper(p, t), 1e-5)
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    assert close(new(p, t), 5 * helper(p, t), 1e-5)
    monkeypatch.setitem(globals(), "twice_helper", lambda p, t: p.sum())
    assert close(new(p, t), 5 * p.sum(), 1e-5)
    report = rewrite(model_of(lambda self, p, t: helper(p, t) * len(settings.options)))[1]  # noqa: F821
    assert report.replaced == [] and "options" in report.refused[0].why


def test_parameters_are_read_in_every_call():
    model = model_of(lambda self, p, t: helper(p * self.scale.exp(), t), scale=nn.Parameter(torch.zeros(7)))
    new, report = rewrite(model)
    assert len(report.replaced) == 1 and new.scale is model.scale
    p, t = probabilities(5, 7), probabilities(5, 7)
    new.scale = nn.Parameter(torch.randn(7))
    assert model.scale is new.scale
    value = new(p, t)
    value.backward()
    assert close(value, helper(p * model.scale.exp(), t), 1e-6) and close(
        model.scale.grad, -t.mean(0), 1e-5)


def test_parameters_that_vanish():
    def forward(self, p, t):
        return helper(p if self.scale is None else p * self.scale, t)

    model = model_of(forward, scale=nn.Parameter(torch.rand(7).double() + 0.5))
    new, report = rewrite(model)
    assert len(report.replaced) == 1
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    assert close(new(p, t), model(p, t), 1e-9) and done_by_onepass(new(p, t))
    new.scale = None
    assert close(new(p, t), helper(p, t), 1e-9)


def test_no_grad_and_exceptions():
    def forward(self, p, t):
        with torch.no_grad():
            t = t.view(-1, 7)
        with torch.enable_grad():
            return helper(p, t)

    model = model_of(forward)
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED]
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    assert done_by_onepass(new(p, t)) and torch.is_grad_enabled()
    with torch.no_grad():
        assert model(p, t).requires_grad and done_by_onepass(new(p, t)) and not torch.is_grad_enabled()
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            with pytest.raises(RuntimeError):
                new(p, torch.zeros(5))
            assert torch.is_grad_enabled() is enabled


def test_decorated_by_no_grad():
    model = model_of(torch.no_grad()(lambda self, p, t: helper(p, t)))
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED]
    p, t = probabilities(5, 7).requires_grad_(), probabilities(5, 7)
    assert not new(p, t).requires_grad and close(new(p, t), model(p, t), 1e-6) and torch.is_grad_enabled()


def test_gradient_mode_is_asked():
    def forward(self, p, t):
        return helper(p, t) * (2 if torch.is_grad_enabled() else 3)

    model = model_of(forward)
    new, report = rewrite(model)
    assert len(report.replaced) == 1
    p, t = probabilities(5, 7), probabilities(5, 7)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            assert close(new(p, t), model(p, t), 1e-6)


class Doubled(nn.Module):
    def __call__(self, *arguments):
        return super().__call__(*arguments) * 2

    def forward(self, p, t):
        return helper(p, t)


def test_call_that_is_not_only_forward():
    model = model_of(lambda self, p, t: self.child(p, t) + helper(p, t), child=Doubled())
    new, report = rewrite(model)
    assert [each.where for each in report.replaced] == ["child"]
    assert [each.where for each in report.refused] == [""] and "__call__" in report.refused[0].why
    check_same(model, new, probabilities(5, 7), probabilities(5, 7))


def test_modules_of_many_kinds():
    """Norms that hooks compute, recurrent layers, properties, class methods, functions and constants as attributes."""
    class Model(nn.Module):
        factor = 3

        def __init__(self):
            super().__init__()
            self.recurrent = nn.LSTM(7, 7, batch_first=True)
            self.normed = nn.utils.weight_norm(nn.Linear(7, 7))
            self.spectral = nn.utils.spectral_norm(nn.Linear(7, 7))
            self.mode, self.function, self.dtype = MODES.first, F.relu, torch.float64

        @property
        def scale(self):
            return self.factor * 2.0

        @staticmethod
        def one(x):
            return x * 1

        @classmethod
        def three(cls, x):
            return x * cls.factor

        def forward(this, input, max):
            hidden, _ = this.recurrent(input[None])
            hidden = this.normed(this.spectral(hidden[0])) if this.mode is MODES.first else hidden
            hidden = this.function(hidden).to(this.dtype) + this.one(hidden) + this.three(hidden)
            return helper(hidden.softmax(-1), max) * this.scale

    model = Model().eval().double()
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED] and report.refused == []
    p, t = probabilities(5, 7), probabilities(5, 7)
    same_step(model, new, p, t)
    assert done_by_onepass(new(p, t))
    model.mode = new.mode = MODES.second
    assert not done_by_onepass(model(p, t))
    same_step(model, new, p, t)


def test_writes_to_inputs_and_buffers():
    def forward(self, p, t):
        p += 0.25
        t[0] = 0.5
        number = p.size(0)
        other = number
        other += 1
        self.total.add_(p.sum())
        self.total *= 2
        return F.kl_div(torch.log(p), t, reduction="sum") * number / other

    model = model_of(forward, total=torch.ones(()))
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED]
    p, t = probabilities(5, 7), probabilities(5, 7)
    outcomes = []
    for each in (model, new):
        each.total.fill_(1)
        inputs = p.clone(), t.clone()
        outcomes.append((each(*inputs).reshape(1), each.total.clone().reshape(1)) + inputs)
    for a, b in zip(*outcomes):
        assert close(b, a, 1e-6)
    assert not torch.equal(outcomes[1][2], p) and not torch.equal(outcomes[1][3], t)


def test_assertions_are_kept():
    names = {"helper": helper}
    # As text: pytest would make something else of an assertion.
    exec("def forward(self, p, t):\n    assert p.shape == t.shape, 'shapes'\n    return helper(p, t)\n", names)
    new, report = rewrite(model_of(names["forward"]))
    assert [each.by for each in report.replaced] == [FUSED]
    p = probabilities(5, 7).requires_grad_()
    assert done_by_onepass(new(p, probabilities(5, 7)))
    with pytest.raises(AssertionError):
        new(p, probabilities(1, 7))


def test_results_of_any_shape():
    Result = collections.namedtuple("Result", "loss rest")

    def forward(self, p, t):
        return Result(helper(p, t), {"p": [p, (t, None, 1.5)]})

    model = model_of(forward)
    new, report = rewrite(model)
    assert len(report.replaced) == 1
    p, t = probabilities(5, 7), probabilities(5, 7)
    result = new(p, t)
    assert type(result) is Result and type(result.rest) is dict and type(result.rest["p"]) is list
    assert result.rest["p"][0] is p and result.rest["p"][1][0] is t and result.rest["p"][1][1:] == (None, 1.5)


def test_autocast_outside():
    model = model_of(SPELLINGS["torch.log"][0])
    new, _ = rewrite(model)
    p, t = probabilities(5, 7).bfloat16(), probabilities(5, 7).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = model(p, t), new(p, t)
    assert a.dtype == b.dtype == torch.float32
    assert close(b, model(p.double(), t.double()), 1e-5)


# ---- arguments ------------------------------------------------------------------------------------------------------


def every_kind(self, p, /, t, mask=None, *rest, reduction="sum", scale=None, **others):
    if mask is not None:
        p = p * mask
    for each in rest:
        p = p * each
    loss = F.kl_div(torch.log(p), t, reduction=reduction)
    if scale is not None:
        loss = loss * scale
    return loss * others.get("factor", 1)


def test_arguments_of_every_kind():
    model = model_of(every_kind)
    new, report = rewrite(model)
    assert {each.by for each in report.replaced} == {FUSED} and report.refused == []
    p, t, mask = probabilities(5, 7).requires_grad_(), probabilities(5, 7), torch.rand(7) + 0.1
    scale = torch.tensor(3.0)
    calls = [((p, t), {}, True), ((p,), {"t": t}, True), ((p, t, None), {"reduction": "sum"}, True),
             ((p, t, mask), {"scale": scale}, False), ((p, t), {"reduction": "batchmean"}, False),
             ((p, t, mask), {}, False), ((p, t, mask, mask), {}, False), ((p, t), {"factor": 2}, False)]
    for arguments, named, fast in calls:
        a, b = model(*arguments, **named), new(*arguments, **named)
        assert close(b, a, 1e-6)
        assert not fast or done_by_onepass(b)
    with pytest.raises(TypeError):
        new(p=p, t=t)
    with pytest.raises(TypeError):
        new(p)


def test_none_for_an_input():
    def forward(self, p, t):
        return p.sum() if t is None else helper(p, t)

    model = model_of(forward)
    new, report = rewrite(model)
    p = probabilities(5, 7).requires_grad_()
    assert len(report.replaced) == 1 and same_bits(new(p, None), p.sum())
    assert done_by_onepass(new(p, p.detach().flip(0)))


def test_inputs_that_are_no_tensors():
    def forward(self, batch, weight):
        return helper(batch["p"], batch["t"]) * weight

    model = model_of(forward)
    new, report = rewrite(model)
    assert len(report.replaced) == 1
    batch = {"p": probabilities(5, 7).requires_grad_(), "t": probabilities(5, 7)}
    assert close(new(batch, 2), model(batch, 2), 1e-6)
    assert close(new(batch, torch.tensor(3.0)), model(batch, 3), 1e-6)


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
    assert len(report.replaced) == 8 and type(third[0]) is type(new[0])


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
        assert same is model and len(report.replaced) == 9
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


# ---- report, warnings, special values -------------------------------------------------------------------------------


def test_report():
    model = nn.Sequential(collections.OrderedDict(
        ok=model_of(SPELLINGS["torch.log"][0]), loss=nn.KLDivLoss(), bad=model_of(depends_on_values)))
    _, report = rewrite(model)
    assert [each.where for each in report.replaced] == ["ok", "loss"] and report.replaced[0]._fields == (
        "where", "what", "by", "line")
    assert [each.where for each in report.refused] == ["bad"] and report.refused[0]._fields == (
        "where", "what", "why", "line")
    lines = str(report).splitlines()
    assert lines[0] == "2 replaced, 1 refused" and len(lines) == 4
    assert lines[1].startswith("  replaced  ok: log, kl_div (test_rewrite.py:") and lines[1].endswith("-> " + FUSED)
    assert lines[2] == "  replaced  loss: KLDivLoss -> onepass.torch.KLDivLoss"
    assert lines[3].startswith("  refused   bad: forward - its control flow depends on values, test_rewrite.py:")
    assert repr(report) == "<onepass.torch.rewrite: 2 replaced, 1 refused>"


@pytest.mark.parametrize("model", [
    model_of(lambda self, p, t: F.kl_div(p.log(), t)), model_of(lambda self, p, t: F.kl_div(p.log_softmax(-1), t)),
    model_of(lambda self, p, t: self.loss(p.log(), t), loss=nn.KLDivLoss()), nn.KLDivLoss()])
def test_mean_warns_as_before(model):
    new, report = rewrite(model)
    assert report.replaced
    p, t = probabilities(5, 7), probabilities(5, 7)
    for each in (model, new):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            each(p, t)
        texts = [str(warning.message) for warning in caught if "'mean'" in str(warning.message)]
        assert len(texts) == 1 and texts[0].startswith("reduction: 'mean' divides the total loss by both the batch")


@pytest.mark.parametrize("forward", [SPELLINGS["torch.log"][0], lambda self, p, t: torch.kl_div(p.log(), t)])
def test_others_do_not_warn(forward):
    new, report = rewrite(model_of(forward))
    assert [each.by for each in report.replaced] == [FUSED]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new(probabilities(5, 7), probabilities(5, 7))


SPECIAL = [0.0, 1e-45, 0.25, 1.0] + ([float("nan"), float("inf"), -1.0] if VERSION >= (1, 13) else [])


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_special_values_of_this_pytorch(fused, log_target):
    """0, and from 1.13 on NaN and infinity, come out as this PyTorch's own kl_div has them."""
    def forward(self, p, t):
        return F.kl_div(torch.log(p) if flag else p.log() * 1, t, reduction="none", log_target=log_flag)

    flag, log_flag = fused, log_target
    model = model_of(forward)
    new, report = rewrite(model)
    assert [each.by for each in report.replaced] == [FUSED if fused else PLAIN]
    values = torch.tensor(SPECIAL)
    p, t = values.repeat(len(values)), values.repeat_interleave(len(values))
    if log_target:
        t = t.log()
    a, b = model(p, t), new(p, t)
    assert torch.equal(a.isnan(), b.isnan()) and torch.equal(a.isinf(), b.isinf())
    finite = a.isfinite()
    assert finite.sum() > 5 and (a - b)[finite].abs().max() < 1e-5
    both_zero = (p == 0) & ((t.exp() if log_target else t) == 0)
    assert both_zero.sum() == 1 and (b[both_zero].isnan().all() if log_target or VERSION >= (1, 13) else
                                     (b[both_zero] == 0).all())
    assert new(torch.tensor([float("nan")]), t[:1]).isnan().all()  # which PyTorch before 1.13 hides


# ---- with the rest of PyTorch ---------------------------------------------------------------------------------------


@pytest.mark.skipif(VERSION < (2, 1), reason="needs torch.compile")
def test_compile():
    torch._dynamo.reset()
    model = model_of(SPELLINGS["torch.log"][0])
    new, _ = rewrite(model)
    compiled = torch.compile(new, fullgraph=True, backend="aot_eager")
    check_same(model, compiled, probabilities(5, 7), probabilities(5, 7))
    model = model_of(lambda self, p, t: F.kl_div(p.log(), t) + self.loss(p.log(), t), loss=nn.KLDivLoss())
    compiled = torch.compile(rewrite(model)[0], fullgraph=True, backend="aot_eager")
    check_same(model, compiled, probabilities(5, 7), probabilities(5, 7))
    model = Distillation()
    new, _ = rewrite(model)
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    x = torch.randn(6, 9)
    for mode in (True, False):
        model.train(mode), new.train(mode)
        same_step(model, compiled, x)
    model.train(), new.train()
    model.temperature = new.temperature = 4.0
    same_step(model, compiled, x)


@pytest.mark.skipif(VERSION < (2, 1), reason="needs torch.func")
def test_functional_call():
    model = model_of(lambda self, p, t: helper(p * self.scale.exp(), t), scale=nn.Parameter(torch.zeros(7)))
    new, _ = rewrite(model)
    p, t, scale = probabilities(5, 7), probabilities(5, 7), torch.randn(7)

    def loss(each, scale):
        return torch.func.functional_call(each, {"scale": scale}, (p, t))

    assert close(loss(new, scale), loss(model, scale), 1e-6)
    a, b = [torch.func.grad(lambda scale: loss(each, scale))(scale) for each in (model, new)]
    assert close(b, a, 1e-5)


def test_symbolic_trace_of_the_new_model():
    model = model_of(SPELLINGS["torch.log"][0])
    traced = torch.fx.symbolic_trace(rewrite(model)[0])
    check_same(model, traced, probabilities(5, 7), probabilities(5, 7))


def test_trace_of_the_new_model():
    model = Losses()
    p, t = probabilities(5, 7), probabilities(5, 7)
    traced = torch.jit.trace(rewrite(model)[0], (p, t), check_trace=False)
    p, t = probabilities(5, 7), probabilities(5, 7)
    assert close(traced(p, t), model(p, t), 1e-5)


def test_double_backward():
    model = model_of(SPELLINGS["torch.log"][0])
    new, _ = rewrite(model)
    p, t = torch.rand(2, 3, 5, dtype=torch.float64) + 0.2  # far enough from 0 for finite differences
    assert torch.autograd.gradgradcheck(new, (p.requires_grad_(), t.requires_grad_()))


def test_the_profiler_stays():
    seen = []

    def profile(frame, event, argument):
        seen.append(event)

    sys.setprofile(profile)
    try:
        rewrite(Changing())
        kept = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert kept is profile and seen
