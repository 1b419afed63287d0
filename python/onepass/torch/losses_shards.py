"""Losses from logits whose classes are spread over the processes of a group, in the order of their ranks: what
process_group= of cross_entropy, token_log_probs and the divergences from logits does, on the CPU.

A call has two exchanges: a few integers, by which the ranks agree on shapes and options, and the states of the rows, an
all-gather of float64 numbers (docs/distributed.md); JS, the skew divergences and total variation have a third, of sums.
Every rank merges them itself, in the order of the ranks, so value and row results have the same bits on all. Backward
exchanges nothing: a rank makes the gradient of its own classes from the merged statistics.

A rank that fails before an exchange takes part in it and says so: then every rank raises, and none waits.

In a compiled graph a call is one operator, with its exchanges inside (losses_shards_operators.py), and its gradient
another. Exchanges must come in the same order on every rank, and nothing but their inputs orders operators: so each
takes what the one before it has returned. Calls that a graph does not take end it, and are made between two graphs.

Arguments may be DTensors, of a mesh of one dimension whose processes are the group's: what has classes in shards of its
dimension of classes, everything else in replicas. Gradients to them are DTensors alike, results are plain tensors.
"""

import sys

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from onepass import _native, errors, library
from onepass.torch import losses_call, losses_reference, route

HAS_GRAPHS = route.VERSION >= (2, 8)  # whose compiler follows groups, and what entered() does

_SLICE = 8192  # columns, whose states are kept apart
LABELS, _KL = range(2)  # kinds: divergences are in the order of their numbers
_JS = _KL + _native.JS  # the first of those that have sums


class Entry:
    """A call in a group: what has been exchanged so far, and whether a gradient to hidden states is to be added up."""

    def __init__(self, group):
        self.group, self.has_agreed, self.adds_up = group, False, True

    def gather(self, mine):
        """What every rank has sent, in the order of their ranks."""
        everybodys = mine.new_empty((dist.get_world_size(self.group),) + tuple(mine.shape))
        dist.all_gather(list(everybodys.unbind(0)), mine, group=self.group)
        return everybodys

    def tell_of_failure(self):
        """Unless the ranks have agreed, since when they know."""
        if not self.has_agreed:
            self.gather(torch.zeros(2 + _NUMBERS, dtype=torch.int64))

    def agree(self, name, width, *same):
        """(first column, columns in all, most columns of a rank); `same` must be the same integers on every rank."""
        self.has_agreed = True
        everybodys = self.gather(torch.tensor([1, width, *same], dtype=torch.int64)).tolist()
        failed = [rank for rank, numbers in enumerate(everybodys) if not numbers[0]]
        if failed:
            raise RuntimeError("%s: process_group: rank %s of it failed before the states were exchanged" % (
                name, ", ".join(map(str, failed))))
        for rank, numbers in enumerate(everybodys):
            if numbers[2:] != everybodys[0][2:]:
                raise errors.InvalidArgument("%s: process_group: rank %d of it calls with %s (%s), rank 0 with %s" % (
                    name, rank, numbers[2:], _AGREED, everybodys[0][2:]))
        widths = [numbers[1] for numbers in everybodys]
        return sum(widths[:dist.get_rank(self.group)]), sum(widths), max(widths)


_AGREED = "rows, kind of loss, indices, bits, columns, whether the gradient to input is wanted"
_NUMBERS = 6  # of _AGREED


# Where the classes of an argument are; of what is not here there are none. Of `input` class_dim says it.
_CLASS_DIMENSIONS = {"logits": -1, "predictions": -1, "targets": -1, "class_weights": 0, "weight": 0, "linear_weight": 0,
                     "linear_bias": 0, "target_weight": 0, "target_bias": 0}


def _local(argument, tensor, dimension, group):
    """This rank's part of a DTensor, to be differentiated through; anything else stays. dimension: of the classes, None:
    it has none."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(tensor, module.DTensor):
        return tensor
    mesh, placement = tensor.device_mesh, tensor.placements[0]
    if (mesh.ndim != 1 or dist.get_process_group_ranks(mesh.get_group()) != dist.get_process_group_ranks(group)
            or mesh.get_local_rank() != dist.get_rank(group)):
        raise errors.InvalidArgument("process_group: %s: a DTensor of %s; it must be of a mesh of one dimension with the "
                                     "group's processes in their order" % (argument, mesh))
    expected = module.Replicate() if dimension is None else module.Shard(dimension % tensor.dim())
    if placement != expected:
        raise errors.InvalidArgument("process_group: %s: a DTensor placed as %r; it must be %r" % (
            argument, placement, expected))
    return tensor.to_local()


def entered(group, function, arguments, in_graphs=False):
    """function(**arguments) with an Entry as process_group. If it fails before the ranks have agreed, they are told.
    in_graphs: there are operators for it."""
    if route.is_compiling() and not (in_graphs and HAS_GRAPHS):
        return _not_compiled(group, function, arguments)
    if dist.get_world_size(group) < 1:
        raise ValueError("process_group: this process does not belong to it")
    entry = Entry(group)
    dimensions = dict(_CLASS_DIMENSIONS, input=arguments.get("class_dim"))
    try:
        arguments = {name: _local(name, value, dimensions.get(name), group) for name, value in arguments.items()}
        return function(**dict(arguments, process_group=entry))
    except Exception as error:
        if route.is_compiling():  # told, and raised, by a call of the graph
            message = str(error.args[0]) if error.args else ""  # not every compiler follows str(error)
            return in_order(torch.ops.onepass.shard_failure, type(error).__name__, message, group.group_name)[0]
        entry.tell_of_failure()
        raise


def _not_compiled(group, function, arguments):
    """A graph ends here."""
    return torch.compiler.disable(entered)(group, function, arguments)


_not_compiled._torchdynamo_disable = True  # as torch.compiler.disable does, which imports the whole compiler
_not_compiled._torchdynamo_disable_msg = ("process_group: no part of a graph are losses from hidden states, and before "
                                          "PyTorch 2.8 all losses over several ranks")

_last = [torch.zeros(())]  # what the last operator with an exchange has returned for the next


def in_order(operator, *arguments):
    """The results of an operator with exchanges, in a graph, but for the last: that is for the next such operator."""
    *results, _last[0] = operator(_last[0], *arguments)
    return results


def check(name, logits, *others):
    for tensor in (logits,) + others:
        if tensor is not None and tensor.device.type != "cpu":
            raise errors.Unsupported("%s: process_group: given with a tensor on %s; there are kernels for the CPU" % (
                name, tensor.device))
    if route.way((logits,) + others) != (route.TRACED if route.is_compiling() else route.EAGER):
        raise errors.Unsupported("%s: process_group: given under a transformation; call it eagerly" % name)


def _gather_made(name, entry, make, mine, what):
    """What make(mine) has made on every rank. One that fails sends NaN first, and then all raise."""
    try:
        make(mine)
    except Exception:
        entry.gather(mine.fill_(float("nan")))
        raise
    everybodys = entry.gather(mine)
    failed = torch.isnan(everybodys[:, :, 0]).any(1).nonzero().flatten().tolist()
    if failed:
        raise RuntimeError("%s: process_group: rank %s of it failed at its %s" % (
            name, ", ".join(map(str, failed)), what))
    return everybodys


def merged(name, entry, leading, width, kind, count, bits, columns, states, sums=None, differentiates=0):
    """(statistics [*leading, F], first column, columns in all) of rows of which this rank has `width` columns.
    states(to, first, total) and sums(statistics, to, first, total) make what it sends of them, in [rows, ...]."""
    rows, how = leading.numel(), (0, route.threads(), route.workspace)
    first, total, most = entry.agree(name, width, rows, kind, count, bits, columns, differentiates)
    if columns > total:
        raise errors.InvalidArgument("%s: columns: %d; it must be from 1 to the number of classes of all ranks, %d" % (
            name, columns, total))
    total = columns or total
    sides = 1 if kind == LABELS else 3
    mine = torch.full((rows, 5 + sides + 3 * count + -(-most // _SLICE) * (6 + 3 * sides)), float("nan"),
                      dtype=torch.float64)
    everybodys = _gather_made(name, entry, lambda to: states(to, first, total), mine, "states")
    statistics = mine.new_empty((rows, 9 + 3 * sides + 3 * count))
    library.call(library.SHARD_MERGE, everybodys, statistics, *how)
    if kind >= _JS:
        mine = mine.new_full((rows, 4 + 3 * -(-most // _SLICE)), float("nan"))
        everybodys = _gather_made(name, entry, lambda to: sums(statistics, to, first, total), mine, "sums")
        library.call(library.SHARD_MERGE_SUMS, statistics, everybodys, statistics, *how)
    return statistics.view(leading + statistics.shape[-1:]), first, total


def _statistics(name, entry, logits, targets, labels, indices, class_weights, row_mask, kind, columns, options):
    """The same of logits. options(first, total): the numbers of the states."""
    count = 1 if labels is not None else 0 if indices is None else indices.shape[-1]
    computed = logits if targets is None else logits.new_empty((), dtype=torch.promote_types(logits.dtype, targets.dtype))
    leading, last = logits.shape[:-1], (0, route.threads(), route.workspace)

    def in_rows(tensor):
        return tensor.view(leading + tensor.shape[-1:])

    def states(to, first, total):
        library.call(library.SHARD_STATES, logits, targets, labels, indices, class_weights, row_mask, in_rows(to),
                     *options(first, total), *last)

    def sums(statistics, to, first, total):
        library.call(library.SHARD_SUMS, logits, targets, labels, row_mask, in_rows(statistics), in_rows(to),
                     *options(first, total), *last)

    return merged(name, entry, leading, logits.shape[-1], kind, count, 64 if computed.dtype is torch.float64 else 32,
                  columns, states, sums)


# ---- losses ----------------------------------------------------------------------------------------------------------


def numbers(call, first, total, reduction, divisor):
    return (reduction, call.semantics, divisor, call.temperature, call.softcap, 0, 1, call.ignore_index,
            call.label_weight, call.label_smoothing, call.z_loss, call.entropy_bonus, call.divergence, call.mixture,
            call.divergence_weight, call.target_temperature, call.label_temperature, call.target_softcap, first, total)


def run_loss(call, inputs, shard, value, gradients, outputs=(None,) * 6, upstream=None):
    predictions, targets, labels, class_weights, row_weights, row_mask, divisor = inputs
    statistics, first, total = shard
    library.call(library.SHARD_LOSS, predictions, labels, class_weights, row_weights, row_mask, upstream, None, divisor,
                 value, gradients[0], *outputs[:4], targets, gradients[1], *outputs[4:], statistics,
                 *numbers(call, first, total, call.reduction, call.divisor), 0, route.threads(), route.workspace)


class ShardLoss(torch.autograd.Function):
    """loss(call, shard, *inputs) -> (value, *outputs asked for). To be differentiated once."""

    @staticmethod
    def forward(ctx, call, shard, *tensors):
        inputs = losses_call.Inputs(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.call, ctx.shard = call, shard
        ctx.set_materialize_grads(False)
        value, outputs = losses_call.empty_results(call, inputs)
        run_loss(call, inputs, shard, value, (None, None), outputs)
        outputs = tuple(output for output in outputs if output is not None)
        ctx.mark_non_differentiable(*outputs)
        return (value,) + outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream, *none):
        if upstream is None:
            return (None,) * 9
        inputs = losses_call.Inputs(*ctx.saved_tensors)
        made = losses_call.empty_gradients(inputs, ctx.needs_input_grad[2:4])
        run_loss(ctx.call, inputs, ctx.shard, None, made, upstream=upstream)
        return (None, None) + made + (None,) * 5


def kind_of(name, call):
    if call.form == losses_reference.LABELS:
        return LABELS
    if call.form != losses_reference.LOGITS:
        raise errors.Unsupported("%s: process_group: given; over several ranks there are cross_entropy with labels, "
                                 "divergences of logits from logits, and token_log_probs" % name)
    if not call.divergence_weight:
        raise errors.Unsupported("%s: process_group: given with a divergence_weight of 0" % name)
    return _KL + call.divergence


def loss(name, call, inputs, inplace, entry):
    """(value, *outputs asked for)"""
    kind_of(name, call)
    if inplace:
        raise errors.Unsupported("%s: process_group: given with inplace" % name)
    check(name, *inputs)
    if route.is_compiling():
        results = in_order(torch.ops.onepass.shard_loss, *inputs, *call, name, entry.group.group_name)
        return (results[0],) + tuple(results[1 + i] for i in range(6) if call.outputs >> i & 1)
    return ShardLoss.apply(call, loss_statistics(name, call, inputs, entry), *inputs)


def loss_statistics(name, call, inputs, entry):
    return _statistics(name, entry, inputs.predictions, inputs.targets, inputs.labels, None, inputs.class_weights,
                       inputs.row_mask, kind_of(name, call), call.columns,
                       lambda first, total: numbers(call, first, total, _native.SUM, 0.0))


# ---- token log-probabilities -----------------------------------------------------------------------------------------


def token_state_numbers(call, first, total):
    return (_native.SUM, call.semantics, 0.0, call.temperature, call.softcap, 0, 1, call.ignore_index) + (0.0,) * 10 + (
        first, total)


def token_numbers(call, first, total):
    return call.semantics, call.temperature, call.softcap, 0, 1, call.ignore_index, first, total


def run_tokens(call, logits, indices, row_mask, shard, made):
    library.call(library.SHARD_TOKEN_LOG_PROBS, logits, indices, row_mask, *made, shard[0],
                 *token_numbers(call, *shard[1:]), 0, route.threads(), route.workspace)


def tokens_gradient(call, logits, indices, row_mask, shard, upstream):
    """upstream: of log_prob, entropy and lse, None for 0."""
    made = torch.empty_like(logits)
    library.call(library.SHARD_TOKEN_LOG_PROBS_BACKWARD, logits, indices, row_mask, *upstream, made, shard[0],
                 *token_numbers(call, *shard[1:]), 0, route.threads(), route.workspace)
    return made


class ShardTokens(torch.autograd.Function):
    """token_log_probs(logits, indices, row_mask, call, shard, made) -> those asked for of log_prob, entropy, lse"""

    @staticmethod
    def forward(ctx, logits, indices, row_mask, call, shard, made):
        ctx.save_for_backward(logits, indices, row_mask)
        ctx.call, ctx.shard = call, shard
        ctx.set_materialize_grads(False)
        run_tokens(call, logits, indices, row_mask, shard, made)
        return tuple(result for result in made if result is not None)

    @staticmethod
    @once_differentiable
    def backward(ctx, *upstream):
        logits, indices, row_mask = ctx.saved_tensors
        call, given = ctx.call, iter(upstream)
        upstream = tuple(next(given) if asked else None for asked in (indices is not None, call.entropy, call.lse))
        return (tokens_gradient(call, logits, indices, row_mask, ctx.shard, upstream),) + (None,) * 5


def tokens_statistics(name, call, logits, indices, row_mask, entry):
    return _statistics(name, entry, logits, None, None, indices, None, row_mask, LABELS, call.columns,
                       lambda first, total: token_state_numbers(call, first, total))


def token_log_probs(name, call, logits, indices, row_mask, made, entry):
    """(log_prob, entropy, lse) in `made`, None where not asked for."""
    check(name, logits, indices, row_mask)
    if route.is_compiling():
        results = in_order(torch.ops.onepass.shard_token_log_probs, logits, indices, row_mask, *call, name,
                           entry.group.group_name)
        return [result if wanted is not None else None for result, wanted in zip(results, made)]
    shard = tokens_statistics(name, call, logits, indices, row_mask, entry)
    results = iter(ShardTokens.apply(logits, indices, row_mask, call, shard, made))
    return [next(results) if wanted is not None else None for wanted in made]
