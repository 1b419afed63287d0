"""The modules: torch.nn.KLDivLoss and its like for probabilities, and the head."""

import torch
from torch import nn

from onepass import errors
from onepass.torch import head_sync, prepared_weights, route
from onepass.torch.head import linear_batch_norm_softmax
from onepass.torch.kl import kl_div, kl_div_probs


class KLDivLoss(torch.nn.KLDivLoss):
    """torch.nn.KLDivLoss, computed by onepass.torch.kl_div. `divisor` and `semantics` are kl_div's."""

    def __init__(self, size_average=None, reduce=None, reduction="mean", log_target=False, *, divisor=None,
                 semantics="strict"):
        super().__init__(size_average, reduce, reduction, log_target)
        self.divisor = divisor
        self.semantics = semantics

    def forward(self, input, target, *, row_weights=None, row_mask=None):
        return kl_div(input, target, reduction=self.reduction, log_target=self.log_target, divisor=self.divisor,
                      row_weights=row_weights, row_mask=row_mask, semantics=self.semantics)


class KLDivProbsLoss(torch.nn.Module):
    """KL(targets || predictions) of probabilities, computed by onepass.torch.kl_div_probs."""

    def __init__(self, reduction="batchmean", log_target=False, *, divisor=None, semantics="strict"):
        super().__init__()
        self.reduction = reduction
        self.log_target = log_target
        self.divisor = divisor
        self.semantics = semantics

    def forward(self, predictions, targets, *, row_weights=None, row_mask=None):
        return kl_div_probs(predictions, targets, self.reduction, self.log_target, divisor=self.divisor,
                            row_weights=row_weights, row_mask=row_mask, semantics=self.semantics)

    def extra_repr(self):
        return "reduction=%r, log_target=%r" % (self.reduction, self.log_target)


# ---- the head --------------------------------------------------------------------------------------------------------


def _parts_of(module, kind, *names):
    """Tensors and modules that are attributes of a module. Where nobody follows and the module is of this very class,
    which has none of these names, they are looked up where modules have them, in a fifth of the time; one that somebody
    put elsewhere is asked for by its name."""
    if route.is_compiling() or type(module) is not kind:
        return [getattr(module, name) for name in names]
    state = module.__dict__
    found = {**state["_modules"], **state["_buffers"], **state["_parameters"]}
    return [found[name] if name in found and name not in state else getattr(module, name) for name in names]


def _dimension_of(softmax):
    """What softmax is taken over; None if calling the module does more."""
    if isinstance(softmax, int):
        return softmax
    return softmax.dim if route.is_stock(softmax, nn.Softmax) else None


def _is_over_features(dimension, input):
    """True if softmax is over the features, which are the input's second dimension and, of two, the last."""
    return dimension == 1 or (dimension == -1 and not route.has_torch_function((input,)) and input.dim() == 2)


def _group_of(bn, process_group):
    """The group whose batch statistics a plain batch normalisation uses now; None: this process's own."""
    if not bn.training:
        return None
    return head_sync.group_of(bn.process_group) if type(bn) is nn.SyncBatchNorm else process_group


def linear_batch_norm_softmax_of(input, gemm, bn, scale, softmax, exact_fp32=False, prepared=None, process_group=None):
    """softmax(scale * bn(gemm(input))) of modules, by linear_batch_norm_softmax as long as they do what their classes
    say and nothing else; otherwise they are called as the modules they are.

    gemm, bn                      nn.Linear; nn.BatchNorm1d, or nn.SyncBatchNorm, which then works on the CPU, too
    scale, exact_fp32, prepared   as in linear_batch_norm_softmax
    softmax                       nn.Softmax, or its dimension
    process_group                 of an nn.BatchNorm1d, whose batch statistics are synchronised
    """
    is_stock = route.is_stock(bn, nn.BatchNorm1d) or route.is_stock(bn, nn.SyncBatchNorm)
    if (not (route.is_stock(gemm, nn.Linear) and is_stock) or route.has_global_hooks()
            or not _is_over_features(_dimension_of(softmax), input)):
        prepared_weights.refuse_in_torch("head", prepared)
        if process_group is not None and not isinstance(bn, nn.SyncBatchNorm):
            raise errors.Unsupported("head: bn: its batch statistics are synchronised as part of the head, and gemm or "
                                     "bn has hooks, was replaced, or is no stock module; use torch.nn.SyncBatchNorm")
        z = bn(gemm(input))
        z = z if scale is None else scale * z
        return torch.softmax(z, softmax) if isinstance(softmax, int) else softmax(z)
    weight, bias = _parts_of(gemm, nn.Linear, "weight", "bias")
    gamma, beta, running_mean, running_var = _parts_of(bn, type(bn), "weight", "bias", "running_mean", "running_var")
    # As nn.BatchNorm1d reads its own attributes, track_running_stats set to False later included.
    uses_running = bn.track_running_stats or not bn.training
    training = bn.training or (running_mean is None and running_var is None)
    counts = bn.training and bn.track_running_stats
    return linear_batch_norm_softmax(input, weight, bias, running_mean if uses_running else None,
                                     running_var if uses_running else None, gamma, beta, scale, training, bn.momentum,
                                     bn.eps, bn.num_batches_tracked if counts else None, exact_fp32=exact_fp32,
                                     prepared=prepared, process_group=_group_of(bn, process_group))


class LinearBatchNormSoftmax(nn.Module):
    """A model's end: softmax(scale * bn(gemm(input)), dim=1), computed by linear_batch_norm_softmax.

    Its state is that of a module with gemm = nn.Linear, bn = nn.BatchNorm1d and a parameter scale of ones, made in this
    order: the same seed gives the same numbers, and a state_dict goes both ways. If somebody hooks, parametrizes or
    replaces gemm or bn they are called as the modules they are.
    """

    prepared = None  # what prepare() made; no part of the module's state
    is_synchronised, process_group = False, None  # see convert_sync

    def __init__(self, in_features, out_features, bn_eps=1e-5, bn_momentum=0.1, scale_shape=(1,), bias=True,
                 affine=True, track_running_stats=True, *, device=None, dtype=None, exact_fp32=False):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.bn = nn.BatchNorm1d(out_features, eps=bn_eps, momentum=bn_momentum, affine=affine,
                                 track_running_stats=track_running_stats, device=device, dtype=dtype)
        self.scale = nn.Parameter(torch.ones(scale_shape, device=device, dtype=dtype))
        self.exact_fp32 = exact_fp32

    def forward(self, input):
        if route.is_compiling():
            gemm, bn, scale = self.gemm, self.bn, self.scale
        else:
            gemm, bn, scale = _parts_of(self, LinearBatchNormSoftmax, "gemm", "bn", "scale")
        group = head_sync.group_of(self.process_group) if self.is_synchronised and bn.training else None
        return linear_batch_norm_softmax_of(input, gemm, bn, scale, 1, self.exact_fp32, self.prepared, group)

    @staticmethod
    def convert_sync(module, process_group=None):
        """From now on the heads in a module, or the module itself, train with the batch statistics of all processes of
        the group, as torch.nn.SyncBatchNorm does; None: of all there are. State and parameters stay as they are.
        Returns the module."""
        for head in module.modules():
            if isinstance(head, LinearBatchNormSoftmax):
                head.is_synchronised, head.process_group = True, process_group
        return module

    def prepare(self):
        """From now on forward passes use gemm's weight as it is now, prepared by prepare_weight; after every change of
        it they are refused until this is called again. Returns the module."""
        prepared = self.prepared
        if prepared is not None and prepared.weight is self.gemm.weight and prepared.can_update:
            prepared.update()
        else:
            self.prepared = prepared_weights.prepare_weight(self.gemm.weight)
        return self

    def forget_prepared(self):
        """From now on forward passes read the weight itself, and the prepared one's memory is given back. Returns the
        module."""
        self.prepared = None
        return self

    def __getstate__(self):
        """A copy, or what is loaded from a pickle, has memory of its own and nothing prepared."""
        state = self.__dict__.copy()
        state.pop("prepared", None)
        return state
