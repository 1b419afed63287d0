"""What the tests of rewrite share: models, and what it means that two of them agree."""

import copy
import enum
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import kl_div as kl_div_by_name

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

FUSED = "onepass.torch.kl_div_probs"
PLAIN = "onepass.torch.kl_div"
LOGITS = "onepass.torch.kl_div_logits"


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
        if type(node).__name__ in ("KLBackward", "LossBackward"):
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


# ---- models ----------------------------------------------------------------------------------------------------------


def helper(p, t):
    logarithm = torch.log(p)
    return F.kl_div(logarithm, t, reduction="batchmean")


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
    "torch.kl_div, its default": (lambda self, p, t: torch.kl_div(p.log(), t), FUSED),
    "torch.kl_div, plain": (lambda self, p, t: torch.kl_div(p - 2, t, reduction=2), PLAIN),
    "log_softmax": (lambda self, p, t: F.kl_div(F.log_softmax(p, -1), t, reduction="batchmean"), LOGITS),
    "size_average": (lambda self, p, t: F.kl_div(p - 2, t, size_average=False), PLAIN),
    "reduce": (lambda self, p, t: F.kl_div(p - 2, t, reduce=False), PLAIN),
    "detached log": (lambda self, p, t: F.kl_div(p.log_softmax(-1) * 1, t, reduction="sum"), PLAIN),
}


def depends_on_values(self, p, t):
    return helper(p, t) if p.sum() > 0 else p.sum()


# Here and not in a test's file, where pytest makes something else of an assertion.
def asserts(self, p, t):
    assert p.shape == t.shape, "shapes"
    return helper(p, t)


def asserts_one_of_two(self, p, t):
    assert p.shape[0] in (5, 6) or t.dim() == 2
    return helper(p, t)


class MODES(enum.Enum):
    first, second = 1, 2


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
