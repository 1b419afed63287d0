"""Losses of input weight^T + bias whose classes, the rows of weight, are spread over the processes of a group: what
process_group= of linear_cross_entropy, linear_token_log_probs, linear_kl_div and its like does, on the CPU. Hidden
states, labels and indices are the same on every rank, weights and biases are its own classes'.

A forward makes the rank's logits in chunks of rows, those of a teacher too, and of each chunk its states; JS, the skew
divergences and total variation make them again for their sums. After the exchanges of losses_shards.py value and row
results follow from what is merged alone, as on a rank without classes. Backward makes the logits once more, chunk by
chunk, turns those of the student into their gradient where they lie, and multiplies. Gradients to weight and bias are
the rank's own; that to input is a sum over all classes, so backward adds up what the ranks have of it, in the type that
is computed in: with an input that requires a gradient every rank must go backward.
"""

import math

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from onepass import _native, errors, library
from onepass.torch import losses_reference, losses_shards, route

_CHUNK_BYTES, _FEWEST_ROWS = 512 << 20, 264


class Product:
    """Rows of hidden states, this rank's weight and bias; logits are in the type that is computed in."""

    def __init__(self, input, weight, bias, part, dtype):
        self.input, self.weight, self.bias, self.dtype = input.reshape(-1, input.shape[-1]), weight, bias, dtype
        self.part = None if part is None or bool(part.all()) else part.reshape(-1, 1)

    def rows(self, chunk):
        """Hidden states; a row that takes no part is not looked at."""
        rows = self.input[chunk]
        return rows if self.part is None else torch.where(self.part[chunk], rows, rows.new_zeros(()))

    def multiplied(self, input, weight, bias=None, to=None):
        to = input.new_empty((input.shape[0], weight.shape[0]), dtype=self.dtype) if to is None else to
        library.call(library.LINEAR, input, weight, bias, None, to, route.products(input), route.threads(),
                     route.workspace)
        return to

    def logits(self, rows):
        return self.multiplied(rows, self.weight, self.bias)

    def gradients(self, chunks, make, needs, entry):
        """To input, weight and bias, None where not needed. make(chunk, logits) writes the gradient over the logits."""
        to_input, to_weight, to_bias = (
            torch.zeros(tensor.shape, dtype=self.dtype) if need else None
            for tensor, need in zip((self.input, self.weight, self.bias), needs))
        for chunk in chunks:
            rows = self.rows(chunk)
            logits = self.logits(rows)
            make(chunk, logits)
            if to_input is not None:
                self.multiplied(logits, self.weight.t(), to=to_input[chunk])
            if to_weight is not None:
                to_weight += self.multiplied(logits.t(), rows.t())
            if to_bias is not None:
                added = torch.empty_like(to_bias)
                library.call(library.LINEAR_BACKWARD, rows, self.weight, logits, None, None, added,
                             route.products(rows), route.threads(), route.workspace)
                to_bias += added
        if to_input is not None and entry.adds_up:
            dist.all_reduce(to_input, group=entry.group)
        return to_input, to_weight, to_bias


class Sides:
    """The student's product and, of a divergence, the teacher's, whose logits are made for the same rows at a time."""

    def __init__(self, call, inputs):
        part = losses_reference.taking_part(call, getattr(inputs, "labels", None), inputs.row_mask)
        dtype = value_dtype(inputs)
        self.student, self.teacher = Product(*inputs[:3], part, dtype), None
        row = inputs.weight.shape[0] + inputs.input.shape[-1]
        if _target(inputs, "input") is not None:
            self.teacher = Product(*inputs[3:6], part, dtype)
            row += inputs.target_weight.shape[0] + inputs.target_input.shape[-1]
        row *= 8 if dtype is torch.float64 else 4
        self.step = max(_FEWEST_ROWS, (call.chunk_bytes or _CHUNK_BYTES) // max(row, 1))

    def chunks(self):
        for begin in range(0, len(self.student.input), self.step):
            yield slice(begin, begin + self.step)

    def logits(self, chunk):
        """Of student and teacher, None: there is none."""
        return self.student.logits(self.student.rows(chunk)), self.targets(chunk)

    def targets(self, chunk):
        return None if self.teacher is None else self.teacher.logits(self.teacher.rows(chunk))

    def gradients(self, make, needs, entry):
        return self.student.gradients(self.chunks(), make, needs, entry)


def _target(inputs, which):
    """The teacher's tensor of that name; None: there is no teacher."""
    return getattr(inputs, "target_" + which, None)


def value_dtype(inputs):
    """The type of a loss, and of the logits of either side."""
    dtype, target = losses_reference.value_dtype(inputs.input, inputs.weight), _target(inputs, "input")
    return dtype if target is None else torch.promote_types(
        dtype, losses_reference.value_dtype(target, inputs.target_weight))


def _rows(tensor):
    """[..., n] as [rows, n]; None stays."""
    return None if tensor is None else tensor.reshape(-1, tensor.shape[-1])


def _flat(tensor):
    return None if tensor is None else tensor.reshape(-1)


def _at(tensor, chunk):
    return None if tensor is None else tensor[chunk]


def _last():
    return 0, route.threads(), route.workspace


def _without_classes(input, dtype):
    return input.new_empty(input.shape[:-1] + (0,), dtype=dtype)


def _as_gradients(made, tensors):
    return tuple(None if grad is None else grad.to(tensor.dtype).view(tensor.shape)
                 for grad, tensor in zip(made, tensors))


# ---- cross-entropy and divergences -----------------------------------------------------------------------------------


def _divisor(call, inputs, statistics, total):
    """What the sum of the rows is divided by, in a tensor."""
    if inputs.divisor is not None:
        return inputs.divisor
    divisor, leading = call.divisor or 1.0, inputs.input.shape[:-1]
    if call.reduction == _native.BATCHMEAN:
        divisor = leading[0] if leading else total
    elif call.reduction == _native.MEAN:
        divisor = leading.numel() * total
    elif call.reduction == _native.VALID:
        labels, part = inputs.labels, losses_reference.taking_part(call, inputs.labels, inputs.row_mask)
        weights = torch.ones(leading, dtype=torch.float64)
        if inputs.class_weights is not None:  # that of the label's class is the last number of the statistics
            weights = torch.where((labels >= 0) & (labels < total), statistics[..., -1], weights)
        divisor = math.fsum((weights if part is None else weights[part]).flatten().tolist())
    return torch.tensor(divisor, dtype=torch.float64)


class ShardLinearLoss(torch.autograd.Function):
    """loss(call, shard, entry, *inputs) -> (value, *outputs asked for). To be differentiated once."""

    @staticmethod
    def forward(ctx, call, shard, entry, *tensors):
        inputs = entry.inputs(*tensors)
        statistics, first, total = shard
        ctx.save_for_backward(*tensors)
        ctx.call, ctx.shard, ctx.entry = call, shard, entry
        ctx.set_materialize_grads(False)
        dtype, shape = value_dtype(inputs), inputs.input.shape[:-1]
        value = inputs.input.new_empty(shape if call.reduction == _native.ROWS else (), dtype=dtype)
        outputs = [inputs.input.new_empty(shape, dtype=torch.int64 if name == "argmax" else dtype)
                   if call.outputs >> i & 1 else None for i, name in enumerate(losses_reference.OUTPUTS)]
        weights = None if inputs.class_weights is None else inputs.class_weights[:0]
        logits = _without_classes(inputs.input, dtype)
        targets = None if inputs.target_input is None else torch.empty_like(logits)
        library.call(library.SHARD_LOSS, logits, inputs.labels, weights, inputs.row_weights, inputs.row_mask, None,
                     None, inputs.divisor, value, None, *outputs[:4], targets, None, *outputs[4:], statistics,
                     *losses_shards.numbers(call, first, total, call.reduction, call.divisor), *_last())
        outputs = tuple(output for output in outputs if output is not None)
        ctx.mark_non_differentiable(*outputs)
        return (value,) + outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream, *none):
        call, inputs, needs = ctx.call, ctx.entry.inputs(*ctx.saved_tensors), ctx.needs_input_grad[3:6]
        if upstream is None:
            return (None,) * (3 + len(inputs))
        statistics, first, total = ctx.shard
        rows, labels, mask = _rows(statistics), _flat(inputs.labels), _flat(inputs.row_mask)
        weights, per_row = _flat(inputs.row_weights), call.reduction == _native.ROWS
        upstream = _flat(upstream) if per_row else upstream
        divisor = None if per_row else _divisor(call, inputs, statistics, total)
        numbers = losses_shards.numbers(call, first, total, _native.ROWS if per_row else _native.DIVISOR, 0.0)
        sides = Sides(call, inputs)

        def make(chunk, logits):
            library.call(library.SHARD_LOSS, logits, _at(labels, chunk), inputs.class_weights, _at(weights, chunk),
                         _at(mask, chunk), upstream[chunk] if per_row else upstream, None, divisor, None, logits,
                         *(None,) * 4, sides.targets(chunk), *(None,) * 3, rows[chunk], *numbers, *_last())

        made = sides.gradients(make, needs, ctx.entry)
        return (None,) * 3 + _as_gradients(made, inputs[:3]) + (None,) * (len(inputs) - 3)


def _check(name, inputs, entry):
    entry.inputs = type(inputs)
    losses_shards.check(name, *inputs)
    if inputs.weight.dim() != 2:
        raise errors.Unsupported("%s: process_group: given with a linear_weight of shape %s; it must be [C, %d]" % (
            name, list(inputs.weight.shape), inputs.weight.shape[-1]))


def _merged(name, entry, call, inputs, kind, count, states, sums=None):
    wants = torch.is_grad_enabled() and inputs.input.requires_grad
    bits = 64 if value_dtype(inputs) is torch.float64 else 32
    return losses_shards.merged(name, entry, inputs.input.shape[:-1], inputs.weight.shape[0], kind, count, bits,
                                call.columns, states, sums, differentiates=int(wants))


def loss(name, call, inputs, entry):
    """(value, *outputs asked for)"""
    _check(name, inputs, entry)
    labels, mask, kind = _flat(inputs.labels), _flat(inputs.row_mask), losses_shards.kind_of(name, call)

    def numbers(first, total):
        return losses_shards.numbers(call, first, total, _native.SUM, 0.0)

    def states(to, first, total):
        sides = Sides(call, inputs)
        for chunk in sides.chunks():
            library.call(library.SHARD_STATES, *sides.logits(chunk), _at(labels, chunk), None, inputs.class_weights,
                         _at(mask, chunk), to[chunk], *numbers(first, total), *_last())

    def sums(statistics, to, first, total):
        sides = Sides(call, inputs)
        for chunk in sides.chunks():
            library.call(library.SHARD_SUMS, *sides.logits(chunk), _at(labels, chunk), _at(mask, chunk),
                         statistics[chunk], to[chunk], *numbers(first, total), *_last())

    shard = _merged(name, entry, call, inputs, kind, 0 if labels is None else 1, states, sums)
    return ShardLinearLoss.apply(call, shard, entry, *inputs)


# ---- token log-probabilities -----------------------------------------------------------------------------------------


class ShardLinearTokens(torch.autograd.Function):
    """tokens(call, shard, entry, *inputs) -> those asked for of log_prob, entropy, lse. To be differentiated once."""

    @staticmethod
    def forward(ctx, call, shard, entry, *tensors):
        inputs = entry.inputs(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.call, ctx.shard, ctx.entry = call, shard, entry
        ctx.set_materialize_grads(False)
        dtype, shape = value_dtype(inputs), inputs.input.shape[:-1]
        made = (None if inputs.indices is None else inputs.input.new_empty(inputs.indices.shape, dtype=dtype),
                inputs.input.new_empty(shape, dtype=dtype) if call.entropy else None,
                inputs.input.new_empty(shape, dtype=dtype) if call.lse else None)
        library.call(library.SHARD_TOKEN_LOG_PROBS, _without_classes(inputs.input, dtype), inputs.indices,
                     inputs.row_mask, *made, shard[0], *losses_shards.token_numbers(call, *shard[1:]), *_last())
        return tuple(result for result in made if result is not None)

    @staticmethod
    @once_differentiable
    def backward(ctx, *upstream):
        call, inputs, needs = ctx.call, ctx.entry.inputs(*ctx.saved_tensors), ctx.needs_input_grad[3:6]
        given = iter(upstream)
        to_log_prob, to_entropy, to_lse = (next(given) if asked else None
                                           for asked in (inputs.indices is not None, call.entropy, call.lse))
        to_log_prob, to_entropy, to_lse = _rows(to_log_prob), _flat(to_entropy), _flat(to_lse)
        rows, indices, mask = _rows(ctx.shard[0]), _rows(inputs.indices), _flat(inputs.row_mask)

        def make(chunk, logits):
            library.call(library.SHARD_TOKEN_LOG_PROBS_BACKWARD, logits, _at(indices, chunk), _at(mask, chunk),
                         _at(to_log_prob, chunk), _at(to_entropy, chunk), _at(to_lse, chunk), logits, rows[chunk],
                         *losses_shards.token_numbers(call, *ctx.shard[1:]), *_last())

        made = Sides(call, inputs).gradients(make, needs, ctx.entry)
        return (None,) * 3 + _as_gradients(made, inputs[:3]) + (None,) * (len(inputs) - 3)


def token_log_probs(name, call, inputs, entry):
    """(log_prob, entropy, lse), None where not asked for."""
    _check(name, inputs, entry)
    indices, mask = _rows(inputs.indices), _flat(inputs.row_mask)
    count = 0 if inputs.indices is None else inputs.indices.shape[-1]

    def states(to, first, total):
        sides, numbers = Sides(call, inputs), losses_shards.token_state_numbers(call, first, total)
        for chunk in sides.chunks():
            library.call(library.SHARD_STATES, *sides.logits(chunk), None, _at(indices, chunk), None, _at(mask, chunk),
                         to[chunk], *numbers, *_last())

    shard = _merged(name, entry, call, inputs, losses_shards.LABELS, count, states)
    results = iter(ShardLinearTokens.apply(call, shard, entry, *inputs))
    return [next(results) if asked else None for asked in (inputs.indices is not None, call.entropy, call.lse)]
