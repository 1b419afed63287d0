"""onepass.torch.rewrite: what it recognises gives the same.

Every spelling is compared with float64 and with the original; that onepass did the work is seen from the value's
grad_fn. Runs with PyTorch 1.10 and with the newest.
"""

import collections
import gc
import inspect
import sys
import warnings

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

import onepass.torch
from onepass.torch import rewrite
from rewrite_samples import (FUSED, PLAIN, SPELLINGS, VERSION, Distillation, Losses, check_same, close,
                             depends_on_values, done_by_onepass, helper, model_of, probabilities, run, same_bits,
                             same_step)

pytestmark = pytest.mark.filterwarnings("ignore:reduction:UserWarning", "ignore:size_average:UserWarning")


# ---- what is recognised ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(SPELLINGS))
def test_spelling(name, dtype):
    forward, by = SPELLINGS[name]
    model = model_of(forward)
    new, report = rewrite(model)
    assert {each.by for each in report.replaced} == {by} and not report.refused
    assert {each.where for each in report.replaced} == {""}
    assert report.replaced[0].line.startswith("rewrite_samples.py:")
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
    assert inspect.signature(new.forward) == inspect.signature(model.forward)


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "batchmean", "sum"])
@pytest.mark.parametrize("fused", [False, True])
def test_reductions(reduction, log_target, fused):
    def forward(self, p, t):
        x = torch.log(p) if fused_flag else p - 2
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


def test_hooks_that_are_put_on_a_fused_loss():
    new, report = rewrite(model_of(lambda self, p, t: self.loss(p.log(), t), loss=nn.KLDivLoss(reduction="sum")))
    assert FUSED in [each.by for each in report.replaced]
    calls = []
    new.loss.register_forward_hook(lambda *arguments: calls.append(len(arguments)))
    p, t = probabilities(5, 7), probabilities(5, 7)
    assert close(new(p, t), 5 * helper(p, t), 1e-6) and calls == [3]


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
    assert lines[1].startswith("  replaced  ok: log, kl_div (rewrite_samples.py:") and lines[1].endswith("-> " + FUSED)
    assert lines[2] == "  replaced  loss: KLDivLoss -> onepass.torch.KLDivLoss"
    assert lines[3].startswith("  refused   bad: forward - its control flow depends on values, rewrite_samples.py:")
    assert repr(report) == "<onepass.torch.rewrite: 2 replaced, 1 refused>"


@pytest.mark.parametrize("model", [
    model_of(lambda self, p, t: F.kl_div(p.log(), t)),
    model_of(lambda self, p, t: F.kl_div(p.log_softmax(-1), t)),
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


@pytest.mark.skipif(VERSION < (2, 2), reason="needs a torch.compile that follows the choice of a graph")
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
    if VERSION >= (2, 4):  # before, a compiled model of PyTorch's own does not notice that either
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
        rewrite(model_of(SPELLINGS["torch.log"][0]))
        kept = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert kept is profile and seen


@pytest.mark.parametrize("enabled", [True, False], ids=["collecting", "not collecting"])
def test_garbage_is_not_forwards_doing(enabled):
    """What a collection calls while forward is looked at is somebody else's: here, as in some test frameworks and
    monitors, it sets a global variable."""
    thresholds = gc.get_threshold()
    gc.callbacks.append(count_collections)
    gc.set_threshold(1)
    (gc.enable if enabled else gc.disable)()
    try:
        before = COLLECTIONS
        new, report = rewrite(model_of(SPELLINGS["torch.log"][0]))
        assert gc.isenabled() == enabled and (COLLECTIONS > before) == enabled
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(count_collections)
    assert len(report.replaced) == 1 and report.refused == []


COLLECTIONS = 0


def count_collections(phase, info):
    global COLLECTIONS
    COLLECTIONS += 1
