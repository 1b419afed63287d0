"""onepass.torch.rewrite: a rewritten forward follows what it reads besides its inputs, and takes the same arguments."""

import collections
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onepass.torch import rewrite
from rewrite_samples import (FUSED, MODES, SPELLINGS, Distillation, asserts, asserts_one_of_two, check_same, close,
                             done_by_onepass, helper, model_of, probabilities, same_bits, same_step)

pytestmark = pytest.mark.filterwarnings("ignore:reduction:UserWarning", "ignore:size_average:UserWarning")


# ---- what forward reads besides its inputs --------------------------------------------------------------------------


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
    model = model_of(lambda self, p, t: helper(p, t) * (2 if self.flag is True else 3), flag=1)
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
    assert close(values[1], values[0], 1e-9) and not close(values[2], values[0], 1e-7)


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
        if self.training and p.sum() > 0:
            p = p * 0.5
        return helper(p, t)

    new, report = rewrite(model_of(forward))
    assert [each.by for each in report.replaced] == [FUSED] and len(report.refused) == 1
    assert report.refused[0].what == "forward" and "control flow" in report.refused[0].why
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


LOSS = F.kl_div


def test_functions_of_pytorchs_that_change_later(monkeypatch):
    new, report = rewrite(model_of(lambda self, p, t: LOSS(p.log(), t, reduction="sum")))
    assert [each.by for each in report.replaced] == [FUSED]
    monkeypatch.setitem(globals(), "LOSS", F.mse_loss)
    p, t = probabilities(5, 7), probabilities(5, 7)
    assert close(new(p, t), F.mse_loss(p.log(), t, reduction="sum"), 1e-9)


def test_numbers_of_numpys():
    numpy = pytest.importorskip("numpy")
    new, report = rewrite(model_of(lambda self, p, t: helper(p, t) * self.scale, scale=numpy.sqrt(numpy.float64(2))))
    assert [each.by for each in report.replaced] == [FUSED]
    p, t = probabilities(5, 7), probabilities(5, 7)
    assert close(new(p, t), helper(p, t) * 2 ** 0.5, 1e-9)


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
    """torch.fx does not see the decorator."""
    model = model_of(torch.no_grad()(lambda self, p, t: helper(p, t)))
    new, report = rewrite(model)
    assert report.replaced == [] and "decorator" in report.refused[0].why
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
    new, report = rewrite(model_of(asserts))
    assert [each.by for each in report.replaced] == [FUSED]
    p = probabilities(5, 7).requires_grad_()
    assert done_by_onepass(new(p, probabilities(5, 7)))
    with pytest.raises(AssertionError):
        new(p, probabilities(1, 7))
    report = rewrite(model_of(asserts_one_of_two))[1]
    assert report.replaced == [] and "control flow" in report.refused[0].why


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
