"""Losses from logits as programs in PyTorch write them, and what is exact of them: for gpu_losses.py and cpu_losses.py.

A loss takes logits and target logits, logits and labels, or logits and a teacher's top-k (log-probabilities and
indices in a tuple), and returns its results in a tuple: one value, or for token_log_probs one log-probability and one
entropy a row.
"""
import math

import torch
import torch.nn.functional as F

TOP_K = 64
EXACT_ROWS = 16  # whose gradients are compared
_CHUNK = 16 << 20  # elements in float64 at once


def _log_softmax(x, y):
    return F.log_softmax(x, -1), F.log_softmax(y, -1)


def kl(x, y):
    log_s, log_t = _log_softmax(x, y)
    return (F.kl_div(log_s, log_t, reduction="batchmean", log_target=True),)


def reverse_kl(x, y):
    log_s, log_t = _log_softmax(x, y)
    return (F.kl_div(log_t, log_s, reduction="batchmean", log_target=True),)


def js(x, y):
    log_s, log_t = _log_softmax(x, y)
    log_m = torch.logaddexp(log_s, log_t) - math.log(2)
    return (0.5 * (F.kl_div(log_m, log_s, reduction="batchmean", log_target=True)
                   + F.kl_div(log_m, log_t, reduction="batchmean", log_target=True)),)


def tv(x, y):
    return (0.5 * (F.softmax(x, -1) - F.softmax(y, -1)).abs().sum() / x.shape[0],)


def kl_top_k(x, teacher):
    """All classes but the K are one more category; the student's share of it is summed where it is."""
    log_t, indices = teacher
    log_t = log_t.to(x.dtype)
    t, log_s = log_t.exp(), F.log_softmax(x, -1)
    t_rest = 1 - t.sum(-1)
    log_rest = log_s.scatter(-1, indices, -math.inf).logsumexp(-1)
    of_rows = (t * (log_t - log_s.gather(-1, indices))).sum(-1) + t_rest * (t_rest.log() - log_rest)
    return (of_rows.mean(),)


def cross_entropy(x, labels):
    return (F.cross_entropy(x, labels),)


def token_log_probs(x, indices):
    log_p = F.log_softmax(x, -1)
    return log_p.gather(-1, indices.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


LOSSES = {loss.__name__: loss for loss in (kl, reverse_kl, js, tv, kl_top_k, cross_entropy, token_log_probs)}


def has_labels(name):
    return name in ("cross_entropy", "token_log_probs")


def has_target_logits(name):
    return not has_labels(name) and name != "kl_top_k"


def in_float(name):
    """The loss of half-precision logits without their roundings in between: cast to float32 first."""
    loss = LOSSES[name]
    if has_target_logits(name):
        return lambda x, y: loss(x.float(), y.float())
    return lambda x, other: loss(x.float(), other)


class Inputs:
    """Random logits (deviation 2) and what goes with them; `memory` holds all logits in one piece."""

    def __init__(self, name, rows, columns, dtype, device, seed=4):
        generator = torch.Generator(device=device).manual_seed(seed)
        count = 2 if has_target_logits(name) else 1
        self.memory = torch.empty(count, rows, columns, dtype=dtype, device=device).normal_(0, 2, generator=generator)
        self.logits = self.memory[0]
        self.other = self.memory[-1]
        if has_labels(name):
            self.other = torch.randint(columns, (rows,), device=device, generator=generator)
        elif name == "kl_top_k":
            self.other = self._top_k(rows, columns, device, generator)
        self.upstream = None  # 1
        if name == "token_log_probs":
            self.upstream = tuple(torch.randn(rows, device=device, generator=generator) for _ in range(2))

    @staticmethod
    def _top_k(rows, columns, device, generator):
        """K classes of a row, each once, that have nine tenths of the teacher's mass."""
        count = min(TOP_K, columns // 2)
        values = torch.empty(rows, count, device=device).normal_(0, 2, generator=generator)
        first = torch.randint(columns, (rows, 1), device=device, generator=generator)
        indices = (first + torch.arange(count, device=device) * (columns // count)) % columns
        return F.log_softmax(values, -1) + math.log(0.9), indices


class Pass:
    """A loss in PyTorch, and its gradient to the logits if asked for: called, (results, gradient or None)."""

    def __init__(self, loss, inputs, backward):
        self.loss, self.inputs, self.backward = loss, inputs, backward
        self.logits = inputs.logits.detach().requires_grad_(backward)

    def __call__(self):
        if not self.backward:
            with torch.no_grad():
                return self.loss(self.logits, self.inputs.other), None
        results = self.loss(self.logits, self.inputs.other)
        return results, torch.autograd.grad(results, self.logits, self.inputs.upstream)[0]


def relative(found, exact):
    """||found - exact|| / ||exact||, in float64."""
    return ((found.detach().double() - exact).norm() / exact.norm()).item()


class Exact:
    """The results in float64 of the logits as they are stored, some rows at a time; of the gradient some rows, from
    the first to the last."""

    def __init__(self, name, inputs, backward):
        loss, x, other = LOSSES[name], inputs.logits, inputs.other
        rows = x.shape[0]
        step = max(1, _CHUNK // x.shape[1])
        parts = []
        for first in range(0, rows, step):
            cut = slice(first, first + step)
            parts.append((x[cut].shape[0], self._of(loss, x[cut], self._rows_of(other, cut))))
        if inputs.upstream is None:  # means over the rows of a part
            self.results = (sum(count * results[0] for count, results in parts) / rows,)
        else:
            self.results = tuple(torch.cat(results) for results in zip(*(results for _, results in parts)))
        self.rows = self.gradient = None
        if backward:
            self.rows = torch.linspace(0, rows - 1, min(rows, EXACT_ROWS), device=x.device).round().long()
            some = x[self.rows].double().requires_grad_()
            results = self._of(loss, some, self._rows_of(other, self.rows))
            if inputs.upstream is None:
                share = len(self.rows) / rows
                self.gradient = torch.autograd.grad(results[0] * share, some)[0]
            else:
                upstream = [each[self.rows].double() for each in inputs.upstream]
                self.gradient = torch.autograd.grad(results, some, upstream)[0]

    @staticmethod
    def _rows_of(other, rows):
        return tuple(each[rows] for each in other) if isinstance(other, tuple) else other[rows]

    @staticmethod
    def _of(loss, x, other):
        has_logits = torch.is_tensor(other) and other.is_floating_point()
        return loss(x.double(), other.double() if has_logits else other)

    def errors(self, results, gradient=None):
        found = {"error": max(relative(mine, exact) for mine, exact in zip(results, self.results))}
        if self.gradient is not None:
            found["grad_error"] = relative(gradient[self.rows], self.gradient)
        return found
