"""Losses from logits in PyTorch's own operations: for torch.func, forward mode, traces, tensor classes and second
derivatives, which know these operations' rules, and for devices that the library has no kernels for yet.

The formulas and special values are the library's (include/onepass.h, docs/numerics.md); the digits are PyTorch's. They
are computed in float32, in float64 if an input is.
"""

import math

import torch
import torch.nn.functional as F

from onepass import _native

# By Call.form: what the targets are, LABELS: there are none.
LOGITS, PROBS, LOG_PROBS, LABELS = range(4)

# What belongs to rows and can be asked for; Call.outputs has a bit for each.
OUTPUTS = "lse", "entropy", "log_prob", "argmax", "target_lse", "target_entropy"

_INF = math.inf


def outputs_of(bits):
    return [name for i, name in enumerate(OUTPUTS) if bits >> i & 1]


def value_dtype(predictions, targets):
    """The type of a loss and of all that belongs to its rows."""
    return (torch.float64 if predictions.dtype is torch.float64
            or (targets is not None and targets.dtype is torch.float64) else torch.float32)


# ---- rows ------------------------------------------------------------------------------------------------------------


def taking_part(call, labels, row_mask):
    """Which rows do; None: all."""
    part = None if row_mask is None else row_mask != 0
    if labels is None:
        return part
    kept = labels != call.ignore_index
    return kept if part is None else part & kept


def read(tensor, part, columns, dtype):
    """The columns that count, in the type that is computed in; a row that takes no part is not looked at."""
    x = tensor.to(dtype)
    if columns and columns != x.shape[-1]:
        x = x[..., :columns]
    return x if part is None else torch.where(part.unsqueeze(-1), x, x.new_zeros(()))


def capped(x, softcap):
    """A logit of -inf is a mask, no number: it stays what it is."""
    if not softcap:
        return x
    masked = x == -_INF
    return (softcap * torch.tanh(x.masked_fill(masked, 0) / softcap)).masked_fill(masked, -_INF)


def without_mass(x, semantics, outputs=0):
    """(x, rows where all logits are -inf). Strict semantics: x stays, its value becomes NaN of itself, and nobody asks
    for these rows but for outputs."""
    is_finite = semantics == _native.FINITE
    if not is_finite and not outputs:
        return x, None
    empty = (x == -_INF).all(-1)
    return x.masked_fill(empty.unsqueeze(-1), 0) if is_finite else x, empty


def either(a, b):
    return b if a is None else a if b is None else a | b


class Softmax:
    """Rows of logits over a temperature: log P, P, and what belongs to a row."""

    def __init__(self, z):
        self.z = z
        self.log_p = F.log_softmax(z, -1)
        self.p = self.log_p.exp()

    def lse(self):
        return torch.logsumexp(self.z, -1)

    def entropy(self):
        return -_masked_product(self.p, self.log_p).sum(-1)


def _masked_product(p, x):
    """p x, 0 where p is, whatever x is there."""
    return p * x.masked_fill(p == 0, 0)


# ---- divergences -----------------------------------------------------------------------------------------------------

_NO_MIXTURE = {_native.KL: (1, 0, 0), _native.REVERSE_KL: (0, 1, 1)}


def _mixture(call):
    """a, b, q of a KL(T || M) + b KL(S || M), M = q T + (1 - q) S."""
    q = call.mixture
    mixed = {_native.JS: (q, 1 - q, q), _native.SKEW_KL: (1, 0, q), _native.SKEW_REVERSE_KL: (0, 1, 1 - q)}
    return _NO_MIXTURE.get(call.divergence) or mixed[call.divergence]


def _targets(call, y):
    """(log T, T)"""
    if call.form == LOGITS:
        soft = Softmax(y)
        return soft.log_p, soft.p
    if call.form == LOG_PROBS:
        y = y.masked_fill(y == _INF, math.nan)
        return y, y.exp()
    t = y.masked_fill((y < 0) | (y == _INF), math.nan)
    none = t == 0
    return t.masked_fill(none, 1).log().masked_fill(none, -_INF), t


def _log_mixture(call, q, log_s, s, log_t, t, empty):
    if q == 0:
        return log_s
    if call.form == PROBS:  # the derivative to t is one to the number itself, at 0 too
        return (q * t + (1 - q) * s).masked_fill(empty, 1).log()
    return log_t if q == 1 else torch.logaddexp(log_t + math.log(q), log_s + math.log1p(-q))


def _undefined_at_zero(call, a, t, empty):
    """0; its derivative is NaN where that to probabilities is in strict semantics: log 0, or 0/0."""
    at = t if a else t.masked_fill(~empty, 1)
    return torch.xlogy(torch.zeros_like(at), at).sum(-1)


def _divergence(call, student, log_t, t):
    s = student.p
    if call.divergence == _native.TOTAL_VARIATION:
        return 0.5 * (s - t).abs().sum(-1)
    a, b, q = _mixture(call)
    empty = (s == 0) & (t == 0)
    if call.form == PROBS and call.semantics == _native.FINITE:
        t = torch.where(t == 0 if a else empty, t.detach(), t)
    log_s, log_t = student.log_p.masked_fill(empty, 0), log_t.masked_fill(empty, 0)
    log_m = _log_mixture(call, q, log_s, s, log_t, t, empty)
    value = 0
    if a:
        value = a * _masked_product(t, log_t - log_m).sum(-1)
    if b:
        value = value + b * _masked_product(s, log_s - log_m).sum(-1)
    if call.form == PROBS and call.semantics == _native.STRICT:
        value = value + _undefined_at_zero(call, a, t, empty)
    return value


# ---- labels ----------------------------------------------------------------------------------------------------------


def _is_bad(labels, columns):
    return (labels < 0) | (labels >= columns)


def _at_labels(soft, labels):
    """log P at the labels; any number where they are outside."""
    inside = labels.long().clamp(0, max(soft.z.shape[-1] - 1, 0)).unsqueeze(-1)
    return soft.log_p.gather(-1, inside).squeeze(-1), inside.squeeze(-1)


def _label_weights(class_weights, labels, columns):
    """The weights of the labels' classes, 1 where they are outside."""
    inside = labels.long().clamp(0, max(columns - 1, 0))
    return torch.where(_is_bad(labels, columns), class_weights.new_ones(()), class_weights[inside])


def _nll(call, soft, labels, weights):
    at, inside = _at_labels(soft, labels)
    value = -at if weights is None else -at * weights[inside]
    smoothing = call.label_smoothing
    if smoothing:
        of_all = soft.log_p if weights is None else _masked_product(weights.expand_as(soft.log_p), soft.log_p)
        spread = -smoothing / soft.z.shape[-1] * of_all.sum(-1)
        value = spread if smoothing == 1 else (1 - smoothing) * value + spread
    return value


def label_terms(call, soft, labels, weights):
    value = 0
    if labels is not None and call.label_weight:
        value = call.label_weight * _nll(call, soft, labels, weights)
        bad = _is_bad(labels, soft.z.shape[-1]) & (labels != call.ignore_index)
        value = value * torch.where(bad, value.new_full((), math.nan), value.new_ones(()))
    if call.z_loss:
        value = value + call.z_loss * soft.lse().square()
    if call.entropy_bonus:
        value = value - call.entropy_bonus * soft.entropy()
    return value


# ---- the loss --------------------------------------------------------------------------------------------------------


def divisor_of(call, inputs, part, dtype, columns):
    """What the sum of the rows is divided by: a number, or a tensor where it is counted or given there."""
    predictions, labels, weights = inputs.predictions, inputs.labels, inputs.class_weights
    reduction = call.reduction
    if reduction == _native.SUM:
        return 1
    if reduction == _native.BATCHMEAN:
        return predictions.shape[0]
    if reduction == _native.MEAN:
        return math.prod(predictions.shape[:-1]) * columns
    if reduction == _native.DIVISOR:
        return call.divisor if inputs.divisor is None else inputs.divisor.reshape(())
    if part is None and weights is None:
        return math.prod(predictions.shape[:-1])
    if weights is None:
        return part.to(dtype).sum()
    counts = _label_weights(weights.to(dtype), labels, columns)
    return torch.where(part, counts, counts.new_zeros(())).sum()


def total_of(call, inputs, part, rows, columns):
    """The value of losses of rows, whatever their number is: sums of several are as good."""
    total = rows.sum()
    if call.reduction == _native.SUM:
        return total
    over = divisor_of(call, inputs, part, rows.dtype, columns)
    if not isinstance(over, torch.Tensor):
        over = total.new_full((), over)
    value = (total / over).to(rows.dtype)
    if call.reduction == _native.VALID and call.semantics == _native.FINITE:
        value = torch.where(over == 0, value.new_zeros(()), value)
    return value


def reduced(call, inputs, part, no_mass, rows, columns):
    if no_mass is not None and call.semantics == _native.FINITE:
        rows = rows.masked_fill(no_mass, 0)
    if inputs.row_weights is not None:
        rows = rows * inputs.row_weights.to(rows.dtype)
    if part is not None:
        rows = rows.masked_fill(~part, 0)
    return rows if call.reduction == _native.ROWS else total_of(call, inputs, part, rows, columns)


def _row_results(call, part, student, labels=None, teacher=None, no_mass=(None, None)):
    """Those asked for, without a gradient. teacher: (logits over the temperature or None, log T, T)."""
    def log_prob():
        at, _ = _at_labels(student, labels)
        return torch.where(_is_bad(labels, student.z.shape[-1]), at.new_full((), math.nan), at)

    makers = {"lse": student.lse, "entropy": student.entropy, "log_prob": log_prob,
              "argmax": lambda: student.z.argmax(-1), "target_lse": lambda: torch.logsumexp(teacher[0], -1),
              "target_entropy": lambda: -_masked_product(teacher[2], teacher[1]).sum(-1)}
    made = []
    for name in outputs_of(call.outputs):
        result = makers[name]().detach()
        if name in ("lse", "target_lse"):
            empty, there = no_mass[name == "target_lse"], -_INF
        else:
            empty, there = either(*no_mass), 0 if call.semantics == _native.FINITE else math.nan
        if empty is not None and name != "argmax":
            result = result.masked_fill(empty, there)
        made.append(result if part is None else result.masked_fill(~part, 0))
    return made


def loss(call, inputs):
    """[value, *row results asked for]"""
    predictions, targets, labels = inputs.predictions, inputs.targets, inputs.labels
    dtype = value_dtype(predictions, targets)
    part = taking_part(call, labels, inputs.row_mask)
    x = capped(read(predictions, part, call.columns, dtype), call.softcap)
    x, no_mass = without_mass(x, call.semantics, call.outputs)
    no_target_mass = teacher = None
    columns = x.shape[-1]
    weights = inputs.class_weights
    if weights is not None:
        weights = weights.to(dtype)[:columns]
    soft = Softmax(x / (call.temperature if call.form == LABELS else call.label_temperature))
    rows = soft.z.new_zeros(predictions.shape[:-1])
    if call.form != LABELS:
        y = read(targets, part, call.columns, dtype)
        if call.form == LOGITS:
            y, no_target_mass = without_mass(capped(y, call.target_softcap), call.semantics, call.outputs)
            y = y / call.target_temperature
        log_t, t = _targets(call, y)
        teacher = y, log_t, t
        if call.divergence_weight:
            rows = rows + call.divergence_weight * _divergence(call, Softmax(x / call.temperature), log_t, t)
        else:  # the targets have a gradient, which is 0
            rows = rows + 0 * torch.nan_to_num(t.sum(-1))
    rows = rows + label_terms(call, soft, labels, weights)
    value = reduced(call, inputs, part, either(no_mass, no_target_mass), rows, columns)
    return [value] + _row_results(call, part, soft, labels, teacher, (no_mass, no_target_mass))


def gradients(call, inputs, upstream, needs):
    """(to predictions, to targets), None where not needed: something to differentiate again while PyTorch records."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        value = loss(call._replace(outputs=0), inputs)[0]
        wanted = [tensor for tensor, need in zip(inputs[:2], needs) if need]
        made = iter(torch.autograd.grad(value, wanted, upstream.to(value.dtype), create_graph=again, allow_unused=True))
    made = [next(made) if need else None for need in needs]
    return tuple(torch.zeros_like(tensor) if need and grad is None else grad
                 for tensor, need, grad in zip(inputs[:2], needs, made))


# ---- cross-entropy with probabilities, token log-probabilities -------------------------------------------------------


def cross_entropy_probs(call, inputs):
    """The cross-entropy of P and targets that are probabilities, as torch.nn.functional.cross_entropy has it, with the
    other terms of a loss with labels."""
    predictions = inputs.predictions
    dtype = value_dtype(predictions, inputs.targets)
    part = taking_part(call, None, inputs.row_mask)
    x = capped(read(predictions, part, call.columns, dtype), call.softcap)
    x, no_mass = without_mass(x, call.semantics, call.outputs)
    t = read(inputs.targets, part, call.columns, dtype)
    soft, columns = Softmax(x / call.temperature), x.shape[-1]
    if call.label_smoothing:
        t = t * (1 - call.label_smoothing) + call.label_smoothing / columns
    if inputs.class_weights is not None:
        t = t * inputs.class_weights.to(dtype)[:columns]
    each = t * soft.log_p if call.semantics == _native.STRICT else _masked_product(t, soft.log_p)
    rows = -each.sum(-1) + label_terms(call._replace(label_weight=0.0), soft, None, None)
    value = reduced(call, inputs._replace(class_weights=None), part, no_mass, rows, columns)
    return [value] + _row_results(call, part, soft, no_mass=(no_mass, None))


def token_log_probs(call, logits, indices, row_mask):
    """(log_prob, entropy, lse), None where not asked for."""
    part = taking_part(call, None, row_mask)
    dtype = value_dtype(logits, None)
    x, no_mass = without_mass(capped(read(logits, part, call.columns, dtype), call.softcap), call.semantics)
    soft, columns = Softmax(x / call.temperature), x.shape[-1]

    def row(result, empty):
        result = result if no_mass is None else result.masked_fill(no_mass, empty)
        return result if part is None else result.masked_fill(~part, 0)

    log_prob = None
    if indices is not None:
        indices = indices.long()
        ignored = indices == call.ignore_index
        ignored = ignored if part is None else ignored | ~part.unsqueeze(-1)
        bad = _is_bad(indices, columns) & ~ignored
        log_prob = soft.log_p.gather(-1, indices.clamp(0, max(columns - 1, 0)))
        # A product, so that the gradient is NaN as well.
        log_prob = log_prob * torch.where(bad, x.new_full((), math.nan), x.new_ones(()))
        if no_mass is not None:
            ignored = ignored | (no_mass.unsqueeze(-1) & ~bad)
        log_prob = log_prob.masked_fill(ignored, 0)
    return log_prob, row(soft.entropy(), 0) if call.entropy else None, row(soft.lse(), -_INF) if call.lse else None
