"""The C library: loaded by the first import of this module, which tells it the exceptions to raise.

    call(OPERATOR, *tensors, *options, products, threads, workspace)
    workspace_size(OPERATOR, *tensors, *options, products, threads)

One function calls every operator. Its arguments are positional, in the order of the library's own description of the
operator, which is compared here with what the package was written for. A tensor that is None is not given. products:
FP32_FULL and its like, looked at on CUDA; threads: of the CPU, 0: all; workspace: a function (tensor, bytes), called
if the library needs more memory than is kept, or a tensor of bytes, or None.
"""

from onepass import _native, errors

_native.set_errors(errors.BY_STATUS)

__version__ = _native.version
call, workspace_size = _native.call, _native.workspace_size


# ---- operators -------------------------------------------------------------------------------------------------------

_described = _native.operators()


def _operator(name, tensors, options=""):
    """The number of an operator with these tensors and options, in this order; None if this library was built without
    it, as those of onepass.export are."""
    if name not in _described:
        return None
    number, *described = _described[name]
    if described != [tuple(tensors.split()), tuple(options.split())]:
        raise ImportError("onepass: operator %s is %s in the library; the package calls it with %s, %s" % (
            name, described, tensors, options))
    return number


# The forms of KL divergence: bit 0, the predictions are logarithms; bit 1, the targets are.
LOG_PREDICTIONS, LOG_TARGETS = 1, 2

KL = tuple(_operator(form, "predictions targets row_weights row_mask grad_value grad_made_for value grad_predictions "
                     "grad_targets", "options.reduction options.semantics options.divisor")
           for form in ("kl_probs_probs", "kl_log_probs_probs", "kl_probs_log_probs", "kl_log_probs_log_probs"))

LINEAR = _operator("linear", "input weight bias prepared output")
LINEAR_BACKWARD = _operator("linear_backward", "input weight grad_output grad_input grad_weight grad_bias")
PREPARE_WEIGHT = _operator("prepare_weight", "weight")  # into its workspace

HEAD = _operator("head", "input weight options.bias options.gamma options.beta options.scale options.running_mean "
                 "options.running_var options.batches_tracked options.prepared_weight output product mean rstd",
                 "options.statistics options.cumulative options.eps options.momentum")
_HEAD_BACKWARD_TENSORS = ("input weight grad_output output product mean rstd options.bias options.gamma options.beta "
                          "options.scale gradients.input gradients.weight gradients.bias gradients.gamma "
                          "gradients.beta gradients.scale")
HEAD_BACKWARD = _operator("head_backward", _HEAD_BACKWARD_TENSORS, "options.statistics options.cumulative")

# Over several ranks: torch/head_sync.py.
HEAD_STATISTICS = _operator("head_statistics", "input weight product mean m2")
HEAD_SYNCHRONISED = _operator("head_synchronised", "product counts means m2s options.bias options.gamma options.beta "
                              "options.scale options.running_mean options.running_var options.batches_tracked output "
                              "mean rstd", "options.statistics options.cumulative options.eps options.momentum")
HEAD_BACKWARD_SUMS = _operator("head_backward_sums", "product grad_output output mean rstd s0 s1")
HEAD_BACKWARD_SYNCHRONISED = _operator("head_backward_synchronised", _HEAD_BACKWARD_TENSORS + " counts s0s s1s",
                                       "options.statistics options.cumulative")

# The tensors and options of a loss from logits with labels alone; divergences have targets and more besides.
_LOGITS_TENSORS = ("predictions %slabels options.class_weights options.row_weights options.row_mask options.grad_value "
                   "options.grad_made_for options.divisor_tensor value grad_predictions options.lse options.entropy "
                   "options.log_prob options.argmax")
_LOGITS_OPTIONS = ("options.reduction options.semantics options.divisor options.temperature options.softcap "
                   "options.columns options.has_ignore_index options.ignore_index options.label_weight "
                   "options.label_smoothing options.z_loss options.entropy_bonus")

_DIVERGENCE_OPTIONS = (_LOGITS_OPTIONS + " options.divergence options.mixture options.divergence_weight "
                       "options.target_temperature options.label_temperature options.target_softcap")

# By what the targets are: logits, probabilities, their logarithms.
DIVERGENCE = tuple(_operator(name, _LOGITS_TENSORS % "options." + " targets grad_targets options.target_lse "
                             "options.target_entropy", _DIVERGENCE_OPTIONS)
                   for name in ("divergence_logits_logits", "divergence_logits_probs", "divergence_logits_log_probs"))
DIVERGENCE_TOP_K = _operator("divergence_logits_top_k", _LOGITS_TENSORS % "options." + " top_values top_indices",
                             _DIVERGENCE_OPTIONS + " options.top_values options.outside")
CROSS_ENTROPY = _operator("cross_entropy_logits_labels", _LOGITS_TENSORS % "", _LOGITS_OPTIONS)

# Hidden states where the logits are, and weights besides.
LINEAR_DIVERGENCE = _operator("linear_divergence", (_LOGITS_TENSORS % "options.").replace("predictions", "input")
                              + " target_input target_weight options.target_lse options.target_entropy target_bias "
                              "weight bias grad_weight grad_bias", _DIVERGENCE_OPTIONS + " options.chunk_bytes")
LINEAR_CROSS_ENTROPY = _operator("linear_cross_entropy", (_LOGITS_TENSORS % "").replace("predictions", "input")
                                 + " weight bias grad_weight grad_bias", _LOGITS_OPTIONS + " options.chunk_bytes")

_TOKEN_OPTIONS = ("options.semantics options.temperature options.softcap options.columns options.has_ignore_index "
                  "options.ignore_index")
TOKEN_LOG_PROBS = _operator("token_log_probs", "logits indices options.row_mask log_prob entropy lse", _TOKEN_OPTIONS)
TOKEN_LOG_PROBS_BACKWARD = _operator("token_log_probs_backward", "logits indices options.row_mask grad_log_prob "
                                     "grad_entropy grad_lse grad_logits", _TOKEN_OPTIONS)

# Over several ranks: torch/losses_shards.py.
_SHARD = " options.first_column options.total_columns"
SHARD_STATES = _operator("shard_states", "predictions targets options.labels indices options.class_weights "
                         "options.row_mask states", _DIVERGENCE_OPTIONS + _SHARD)
SHARD_MERGE = _operator("shard_merge", "gathered statistics")
SHARD_SUMS = _operator("shard_sums", "predictions targets options.labels options.row_mask statistics sums",
                       _DIVERGENCE_OPTIONS + _SHARD)
SHARD_MERGE_SUMS = _operator("shard_merge_sums", "statistics gathered merged")
SHARD_LOSS = _operator("shard_loss", _LOGITS_TENSORS % "options." + " targets grad_targets options.target_lse "
                       "options.target_entropy statistics", _DIVERGENCE_OPTIONS + _SHARD)
SHARD_TOKEN_LOG_PROBS = _operator("shard_token_log_probs", "logits indices options.row_mask log_prob entropy lse "
                                  "statistics", _TOKEN_OPTIONS + _SHARD)
SHARD_TOKEN_LOG_PROBS_BACKWARD = _operator(
    "shard_token_log_probs_backward", "logits indices options.row_mask grad_log_prob grad_entropy grad_lse grad_logits "
    "statistics", _TOKEN_OPTIONS + _SHARD)

LINEAR_TOKEN_LOG_PROBS = _operator("linear_token_log_probs", "input indices options.row_mask log_prob entropy lse "
                                   "weight bias", _TOKEN_OPTIONS + " options.chunk_bytes")
LINEAR_TOKEN_LOG_PROBS_BACKWARD = _operator(
    "linear_token_log_probs_backward", "input indices options.row_mask grad_log_prob grad_entropy grad_lse grad_input "
    "weight bias grad_weight grad_bias", _TOKEN_OPTIONS + " options.chunk_bytes")

# ---- options ---------------------------------------------------------------------------------------------------------

REDUCTIONS = {
    "batchmean": _native.BATCHMEAN,
    "mean": _native.MEAN,
    "sum": _native.SUM,
    "rows": _native.ROWS,
    "none": _native.NONE,
}
SEMANTICS = {"strict": _native.STRICT, "finite": _native.FINITE}
TOP_VALUES = {"log_probs": _native.TOP_LOG_PROBS, "probs": _native.TOP_PROBS, "logits": _native.TOP_LOGITS}
OUTSIDE = {
    "tail": _native.OUTSIDE_TAIL,
    "zero": _native.OUTSIDE_ZERO,
    "renormalised": _native.OUTSIDE_RENORMALISED,
    "subset": _native.OUTSIDE_SUBSET,
}


def option(name, value, table):
    """The library's number of an option's word."""
    try:
        return table[value]
    except (KeyError, TypeError):
        raise errors.InvalidArgument("%s: %r; it must be one of %s" % (name, value, ", ".join(table))) from None


def reduction_of(reduction, divisor):
    """(number, divisor) for the library: a divisor of the caller's own goes with the sum."""
    number = option("reduction", reduction, REDUCTIONS)
    if divisor is None:
        return number, 0.0
    if number != _native.SUM:
        raise errors.InvalidArgument("divisor: given with reduction %r; it goes with 'sum'" % (reduction,))
    return _native.DIVISOR, float(divisor)


def info(device="cpu"):
    """{"version", "device", "level", "threads"} of the library on "cpu", "cuda" or "cuda:1"; or NoDevice is raised."""
    kind, _, number = device.partition(":")
    types = {"cpu": _native.CPU, "cuda": _native.CUDA}
    if kind not in types or (number and not number.isdigit()):
        raise errors.InvalidArgument("info: device: %r; use 'cpu', 'cuda' or 'cuda:1'" % (device,))
    found = _native.info(types[kind], int(number or 0))
    found.update(version=__version__, device=device)
    return found
