"""KLDivLoss and KLDivProbsLoss: modules that can stand where torch.nn.KLDivLoss stood. LinearBatchNormSoftmax: where it
finds its tensors (test_torch_head.py has the rest)."""

import copy
import io
import math
import pickle
import warnings

import pytest

import torch_samples as samples
from torch_samples import REDUCTIONS, pair, torch

import onepass
from onepass.torch import KLDivLoss, KLDivProbsLoss, LinearBatchNormSoftmax


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_drop_in(reduction, log_target):
    """The same arguments, the same number, the same text, the same (empty) state as torch.nn.KLDivLoss."""
    ours, theirs = (loss(reduction=reduction, log_target=log_target) for loss in (KLDivLoss, torch.nn.KLDivLoss))
    assert isinstance(ours, torch.nn.KLDivLoss) and isinstance(ours, torch.nn.Module)
    assert (ours.reduction, ours.log_target) == (theirs.reduction, theirs.log_target)
    assert repr(ours) == repr(theirs) == "KLDivLoss()"
    assert ours.state_dict() == theirs.state_dict() == {} and not list(ours.parameters())
    x, t = pair(samples.random("modules"), (5, 7), log_target=log_target, dtypes=(torch.float64,) * 2)
    with samples.no_warnings():
        assert torch.allclose(ours(x, t), theirs(x, t), rtol=1e-12)


@pytest.mark.parametrize("size_average", [None, False, True])
@pytest.mark.parametrize("reduce", [None, False, True])
def test_legacy_flags(size_average, reduce):
    x, t = pair(samples.random("modules, legacy"), (5, 7), dtypes=(torch.float64,) * 2)
    with samples.no_warnings():
        ours, theirs = (loss(size_average, reduce)(x, t) for loss in (KLDivLoss, torch.nn.KLDivLoss))
    assert torch.allclose(ours, theirs, rtol=1e-12)


def test_probabilities():
    p, t = pair(samples.random("modules, probabilities"), (5, 7), "kl_div_probs", dtypes=(torch.float64,) * 2)
    loss = KLDivProbsLoss()
    assert torch.allclose(loss(p, t), torch.nn.functional.kl_div(p.log(), t, reduction="batchmean"), rtol=1e-12)
    assert torch.allclose(KLDivProbsLoss("sum", True)(p, t.log()), loss(p, t) * 5, rtol=1e-12)
    assert repr(loss) == "KLDivProbsLoss(reduction='batchmean', log_target=False)"
    assert loss.state_dict() == {}


@pytest.mark.parametrize("kind", [KLDivLoss, KLDivProbsLoss])
def test_what_pytorchs_does_not_have(kind):
    """Options of the loss when it is made, tensors of the batch when it is called."""
    generator = samples.random("modules, more")
    x, t = pair(generator, (4, 6), "kl_div" if kind is KLDivLoss else "kl_div_probs")
    x[0, 0], t[0, 0] = -math.inf if kind is KLDivLoss else 0.0, 0.0  # NaN, if it were not for finite semantics
    function = onepass.torch.kl_div if kind is KLDivLoss else onepass.torch.kl_div_probs
    weights, mask = torch.rand(4, generator=generator), torch.tensor([1, 0, 1, 1]).bool()
    loss = kind(reduction="sum", divisor=3, semantics="finite")
    found = loss(x, t, row_weights=weights, row_mask=mask)
    assert found.isfinite()
    assert torch.equal(found, function(x, t, reduction="sum", divisor=3, semantics="finite", row_weights=weights,
                                       row_mask=mask))
    assert kind(reduction="rows")(x, t).shape == (4,)
    with pytest.raises(onepass.InvalidArgument, match="reduction"):
        kind(reduction="avg")(x, t)


@pytest.mark.parametrize("kind", [KLDivLoss, KLDivProbsLoss])
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_copies(kind, way):
    loss = kind(reduction="sum", log_target=True, divisor=2.0, semantics="finite")
    if way == "deepcopy":
        other = copy.deepcopy(loss)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(loss))
    else:
        file = io.BytesIO()
        torch.save(loss, file)
        file.seek(0)
        other = torch.load(file) if samples.VERSION < (1, 13) else torch.load(file, weights_only=False)
    assert type(other) is kind and vars(other).keys() == vars(loss).keys()
    x, t = pair(samples.random("copies"), (3, 4), "kl_div" if kind is KLDivLoss else "kl_div_probs", True)
    assert torch.equal(other(x, t), loss(x, t))


class Distillation(torch.nn.Module):
    """A model that carries its loss, as many do."""

    def __init__(self, loss):
        super().__init__()
        self.student = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 600),
                                           torch.nn.LogSoftmax(-1))
        self.loss = loss

    def forward(self, data, targets):
        return self.loss(self.student(data), targets)


def test_in_a_model():
    """The same parameters, buffers and gradients with either loss; modes, types and devices pass through it."""
    generator = samples.random("in a model")
    data = torch.randn(16, 10, generator=generator)
    targets = samples.probabilities(generator, (16, 600))
    torch.manual_seed(samples.SEED)
    theirs = Distillation(torch.nn.KLDivLoss(reduction="batchmean"))
    ours = copy.deepcopy(theirs)
    ours.loss = KLDivLoss(reduction="batchmean")
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    for model in (ours, theirs):
        model.train()(data, targets).backward()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-7)
    assert ours.double().eval()(data.double(), targets.double()).dtype == torch.float64


def test_hooks_of_modules():
    calls = []
    loss = KLDivLoss(reduction="sum")
    loss.register_forward_hook(lambda module, inputs, output: calls.append((module, len(inputs), float(output))))
    x, t = pair(samples.random("module hooks"), (2, 3))
    assert calls == [] and float(loss(x, t)) == calls[0][2] and calls[0][:2] == (loss, 2)


def test_mean_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        KLDivLoss()(*pair(samples.random("module warning"), (2, 3)))
    assert len(caught) == 1 and "batchmean" in str(caught[0].message)


def test_a_head_whose_tensors_are_elsewhere():
    """A parameter or buffer that somebody replaced by an attribute, or by nothing, is the one that counts."""
    generator = samples.random("modules, elsewhere")
    head = LinearBatchNormSoftmax(6, 9, dtype=torch.float64).eval()
    x = torch.randn(7, 6, generator=generator, dtype=torch.float64)

    def check():
        expected = torch.softmax(head.scale * head.bn(head.gemm(x)), 1)
        assert bool((expected > 0).all()) and torch.allclose(head(x), expected, rtol=1e-10, atol=0)
        return head(x).detach()

    found = [check()]
    for module, name in ((head.gemm, "weight"), (head.gemm, "bias"), (head.bn, "weight"), (head.bn, "running_mean")):
        delattr(module, name)
        shape = (9, 6) if (module, name) == (head.gemm, "weight") else (9,)
        setattr(module, name, torch.randn(shape, generator=generator, dtype=torch.float64))
        found.append(check())
        assert not torch.equal(found[-1], found[-2])
    for module in (head.gemm, head.bn):
        delattr(module, "bias")
        module.register_parameter("bias", None)
        found.append(check())
    assert not torch.equal(found[-2], found[-3])
