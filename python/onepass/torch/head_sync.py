"""The head with the batch statistics of all processes of a group, as torch.nn.SyncBatchNorm defines them.

Each pass has one exchange, an all-gather of float64 numbers: forward of the rows, mean and M2 = sum of (q - mean)^2 of
every process, backward of its s0 and s1 (docs/numerics.md, Head). Every process merges them itself in the order of the
ranks, so that the bits of a result do not depend on how the collective works, and statistics are the same on all.

in_library   on the CPU, eagerly: the library's calls around the exchange
in_torch     PyTorch's operations around the same exchange, for everything else

A process that fails before an exchange takes part in it with NaN for its rows, so that the others do not wait for it;
on the CPU they raise RuntimeError, which names it.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from onepass import _native, library
from onepass.torch import route
from onepass.torch.head_call import empty_gradients, flat, mark_as_written, with_stand_ins


def keyword(process_group):
    """What a call that goes to somebody else takes along."""
    return {} if process_group is None else {"process_group": process_group}


def size_of(process_group):
    """The number of its processes, of which this must be one."""
    size = dist.get_world_size(process_group)
    if size < 1:
        raise ValueError("linear_batch_norm_softmax: process_group: this process does not belong to it")
    return size


def group_of(process_group):
    """The group a synchronised module works in now; None: there is nobody else. process_group None: all processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    process_group = dist.group.WORLD if process_group is None else process_group
    return process_group if size_of(process_group) > 1 else None


# ---- the exchange ----------------------------------------------------------------------------------------------------


def _gather(mine, group):
    """What every process has sent, in the order of their ranks."""
    everybodys = mine.new_empty((size_of(group),) + tuple(mine.shape))
    dist.all_gather(list(everybodys.unbind(0)), mine, group=group)
    return everybodys


def _exchange_statistics(make, like, features, group):
    """(what `make` returns beside them; counts [R], means [R, N], M2s [R, N]). `make` writes to a tensor of a count, N
    means and N M2s."""
    mine = torch.full((1 + 2 * features,), float("nan"), dtype=torch.float64, device=like.device)
    try:
        made = make(mine)
    except Exception:
        _gather(mine, group)
        raise
    everybodys = _gather(mine, group)
    counts = everybodys[:, 0]
    if not like.is_cuda:  # where the host does not wait for them
        failed = torch.isnan(counts).nonzero().flatten().tolist()
        if failed:
            raise RuntimeError("linear_batch_norm_softmax: process_group: rank %s of it failed before the statistics "
                               "were exchanged" % ", ".join(map(str, failed)))
        if float(counts.sum()) == 1:
            raise ValueError("Expected more than 1 value per channel when training, got 1 row on all ranks together")
    return made, counts, everybodys[:, 1:1 + features], everybodys[:, 1 + features:]


# ---- the library -----------------------------------------------------------------------------------------------------


def _forward(input, weight, bias, gamma, beta, scale, call, group, keep):
    """(output, product, mean, rstd, counts); the two before the last are None unless kept for backward."""
    rows, features = input.shape[0], weight.shape[0]
    computed = route.computed_dtype(input)

    def statistics(mine):
        product = input.new_empty((rows, features), dtype=computed)
        library.call(library.HEAD_STATISTICS, input, weight, product, mine[1:1 + features], mine[1 + features:],
                     _native.FP32_FULL, route.threads(), route.workspace)
        mine[0] = rows
        return product

    product, counts, means, m2s = _exchange_statistics(statistics, input, features, group)
    output = input.new_empty((rows, features), dtype=call.dtype)
    mean, rstd = [input.new_empty((features,), dtype=computed) if keep else None for _ in range(2)]
    mark_as_written(call.running_mean, call.running_var, call.batches_tracked)
    cumulative = call.momentum is None
    library.call(library.HEAD_SYNCHRONISED, product, counts, means, m2s, bias, gamma, beta, flat(scale),
                 call.running_mean, call.running_var, call.batches_tracked, output, mean, rstd,
                 _native.BATCH_STATISTICS, cumulative, call.eps, 0.0 if cumulative else call.momentum,
                 _native.FP32_FULL, route.threads(), route.workspace)
    return output, product, mean, rstd, counts


class SynchronisedHead(torch.autograd.Function):
    """The output of (input, weight, bias, gamma, beta, scale), one Call and a group. To be differentiated once."""

    @staticmethod
    def forward(ctx, input, weight, bias, gamma, beta, scale, call, group):
        output, product, mean, rstd, counts = _forward(input, weight, bias, gamma, beta, scale, call, group, True)
        needs = ctx.needs_input_grad
        ctx.save_for_backward(output, product, mean, rstd, counts, input if needs[1] else None,
                              weight if needs[0] else None, bias, gamma, beta, scale)
        ctx.group = group
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        output, product, mean, rstd, counts, input, weight, bias, gamma, beta, scale = ctx.saved_tensors
        mine = counts.new_empty((2, product.shape[1]))
        library.call(library.HEAD_BACKWARD_SUMS, product, upstream, output, mean, rstd, *mine.unbind(0),
                     _native.FP32_FULL, route.threads(), route.workspace)
        everybodys = _gather(mine, ctx.group)
        made = empty_gradients(upstream, input, weight, bias, gamma, beta, scale, ctx.needs_input_grad[:6])
        input, weight = with_stand_ins(input, weight, product)
        library.call(library.HEAD_BACKWARD_SYNCHRONISED, input, weight, upstream, output, product, mean, rstd, bias,
                     gamma, beta, flat(scale), *made[:5], flat(made[5]), counts, everybodys[:, 0], everybodys[:, 1],
                     _native.BATCH_STATISTICS, 0, _native.FP32_FULL, route.threads(), route.workspace)
        return tuple(made) + (None, None)


def in_library(input, weight, bias, gamma, beta, scale, call, group):
    if route.wants_gradients(input, weight, bias, gamma, beta, scale):
        return SynchronisedHead.apply(input, weight, bias, gamma, beta, scale, call, group)
    return _forward(input, weight, bias, gamma, beta, scale, call, group, False)[0]


# ---- PyTorch's operations --------------------------------------------------------------------------------------------


def _over_others(y):
    """The dimensions of y but the features', which are the second."""
    return [d for d in range(y.dim()) if d != 1]


def _along_features(values, y):
    return values.reshape([-1 if d == 1 else 1 for d in range(y.dim())])


class _Normalise(torch.autograd.Function):
    """(y - mean) rstd with the statistics of all processes, in the type of y, which is float32 or float64."""

    @staticmethod
    def forward(ctx, y, running_mean, running_var, factor, eps, group):
        features, rows = y.shape[1], y.numel() // max(y.shape[1], 1)

        def statistics(mine):
            mine.zero_()
            mine[0] = rows
            if rows:
                var, mean = torch.var_mean(y, _over_others(y), unbiased=False)
                mine[1:1 + features], mine[1 + features:] = mean, var.double() * rows

        _, counts, means, m2s = _exchange_statistics(statistics, y, features, group)
        total = counts.sum()
        share = (counts / total).unsqueeze(1)
        mean = (share * means).sum(0)
        m2 = (m2s + counts.unsqueeze(1) * (means - mean) ** 2).sum(0)
        if running_mean is not None:
            for running, now in ((running_mean, mean), (running_var, m2 / (total - 1))):  # a batch of no rows has none
                running.copy_(torch.where(total > 0, (1 - factor) * running + factor * now, running.double()))
        rstd = (m2 / total + eps).rsqrt().to(y.dtype)
        normalised = (y - _along_features(mean.to(y.dtype), y)) * _along_features(rstd, y)
        ctx.save_for_backward(normalised, rstd, total)
        ctx.group = group
        return normalised

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        normalised, rstd, total = ctx.saved_tensors
        over = _over_others(upstream)
        mine = torch.stack([upstream.double().sum(over), (upstream * normalised).double().sum(over)])
        s0, s1 = (_gather(mine, ctx.group).sum(0) / total).to(upstream.dtype)
        inner = upstream - _along_features(s0, upstream) - normalised * _along_features(s1, upstream)
        return (inner * _along_features(rstd, upstream),) + (None,) * 5


def in_torch(input, weight, bias, running_mean, running_var, gamma, beta, scale, momentum, eps, count, group):
    """PyTorch's operations decide what is allowed, and raise the errors: on this process, and then on all."""
    try:
        y = F.linear(input, weight, bias)
        if y.dim() < 2:
            raise ValueError("expected at least 2D input (got %dD input)" % y.dim())
    except Exception:
        _gather(torch.full((1 + 2 * weight.shape[0],), float("nan"), dtype=torch.float64, device=weight.device), group)
        raise
    if count is not None:
        count.add_(1)
    factor = momentum
    if momentum is None:
        factor = 0.0 if count is None or running_mean is None else count.double().reciprocal()
    computed = torch.float64 if y.dtype is torch.float64 else torch.float32
    with route.no_autocast(y):
        z = _Normalise.apply(y.to(computed), running_mean, running_var, factor, eps, group)
        z = z if gamma is None else z * _along_features(gamma.to(computed), z)
        z = (z if beta is None else z + _along_features(beta.to(computed), z)).to(y.dtype)
    return torch.softmax(z if scale is None else scale * z, 1)
