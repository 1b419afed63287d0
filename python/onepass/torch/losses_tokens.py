"""token_log_probs: log-probabilities of chosen tokens, entropy and LSE of each row of logits, with gradients to the
logits that are made from those of all three in one pass.

Which way a call goes is route.py's answer; there are kernels for the CPU, elsewhere PyTorch's operations do it.
"""

import math
from collections import namedtuple

import torch
from torch.overrides import handle_torch_function, has_torch_function

from onepass import errors, library
from onepass.torch import losses, losses_call, losses_reference, losses_shards, route

# entropy, lse: whether they are asked for.
Call = namedtuple("Call", "semantics temperature softcap columns ignore_index entropy lse")

_NAME = "token_log_probs"

# ---- the library -----------------------------------------------------------------------------------------------------


def _numbers(call):
    return call.semantics, call.temperature, call.softcap, call.columns, 1, call.ignore_index


def empty_results(call, logits, indices):
    """(log_prob, entropy, lse) without their numbers, None where not asked for."""
    dtype, shape = losses_reference.value_dtype(logits, None), logits.shape[:-1]
    return (None if indices is None else logits.new_empty(indices.shape, dtype=dtype),
            logits.new_empty(shape, dtype=dtype) if call.entropy else None,
            logits.new_empty(shape, dtype=dtype) if call.lse else None)


def _forward(call, logits, indices, row_mask):
    made = empty_results(call, logits, indices)
    library.call(library.TOKEN_LOG_PROBS, logits, indices, row_mask, *made, *_numbers(call), 0, route.threads(),
                 route.workspace)
    return made


def _gradient(call, logits, indices, row_mask, upstream):
    """upstream: of log_prob, entropy and lse, None for 0."""
    made = torch.empty_like(logits)
    library.call(library.TOKEN_LOG_PROBS_BACKWARD, logits, indices, row_mask, *upstream, made, *_numbers(call), 0,
                 route.threads(), route.workspace)
    return made


def _gradient_in_torch(call, logits, indices, row_mask, upstream):
    """The same as something to differentiate again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        results = losses_reference.token_log_probs(call, logits, indices, row_mask)
        pairs = [(result, grad) for result, grad in zip(results, upstream) if grad is not None]
        made, = torch.autograd.grad([result for result, _ in pairs], [logits], [grad for _, grad in pairs],
                                    create_graph=again)
    return made


# ---- autograd --------------------------------------------------------------------------------------------------------


class TokenLogProbs(torch.autograd.Function):
    """token_log_probs(logits, indices, row_mask, call) -> those asked for of log_prob, entropy, lse"""

    @staticmethod
    def forward(ctx, logits, indices, row_mask, call):
        ctx.save_for_backward(logits, indices, row_mask)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(result for result in _forward(call, logits, indices, row_mask) if result is not None)

    @staticmethod
    def backward(ctx, *upstream):
        logits, indices, row_mask = ctx.saved_tensors
        call, given = ctx.call, iter(upstream)
        upstream = tuple(next(given) if asked else None for asked in (indices is not None, call.entropy, call.lse))
        return _backward(call, logits, indices, row_mask, upstream), None, None, None


def _backward(call, logits, indices, row_mask, upstream):
    grads = [grad for grad in upstream if grad is not None]
    if not grads:
        return None
    how = route.TRANSFORMED
    if not torch.is_grad_enabled() and not any(map(route.is_batched, grads)):
        how = route.way((logits, indices, row_mask, *upstream))
    if how == route.EAGER:
        return _gradient(call, logits, indices, row_mask, upstream)
    if how == route.TRACED:
        return torch.ops.onepass.token_log_probs_backward(logits, indices, row_mask, *upstream, *call)
    return _gradient_in_torch(call, logits, indices, row_mask, upstream)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


class TracedTokenLogProbs(torch.autograd.Function):
    """The same, of the operator, which returns all three."""

    @staticmethod
    def forward(ctx, logits, indices, row_mask, call):
        ctx.save_for_backward(logits, indices, row_mask)
        ctx.call = call
        ctx.set_materialize_grads(False)
        with route.below_autograd():
            return torch.ops.onepass.token_log_probs(logits, indices, row_mask, *call)

    @staticmethod
    def backward(ctx, *upstream):
        logits, indices, row_mask = ctx.saved_tensors
        call = ctx.call
        upstream = tuple(grad if asked else None
                         for grad, asked in zip(upstream, (indices is not None, call.entropy, call.lse)))
        return _backward(call, logits, indices, row_mask, upstream), None, None, None


def _kernel(logits, indices, row_mask, *call):
    return route.all_results(logits, _forward(Call(*call), logits, indices, row_mask))


def _meta(logits, indices, row_mask, *call):
    return route.all_results(logits, empty_results(Call(*call), logits, indices))


def _autograd(logits, indices, row_mask, *call):
    if not route.wants_gradients(logits):
        with route.below_autograd():
            return torch.ops.onepass.token_log_probs(logits, indices, row_mask, *call)
    if route.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
        return route.all_results(logits, losses_reference.token_log_probs(Call(*call), logits, indices, row_mask))
    return TracedTokenLogProbs.apply(logits, indices, row_mask, Call(*call))


def _backward_kernel(logits, indices, row_mask, to_log_prob, to_entropy, to_lse, *call):
    return _gradient(Call(*call), logits, indices, row_mask, (to_log_prob, to_entropy, to_lse))


if route.HAS_TRACED:
    SCHEMA_OF_CALL = ("int semantics, float temperature, float softcap, int columns, int ignore_index, "
                      "bool wants_entropy, bool wants_lse")
    route.define("token_log_probs(Tensor logits, Tensor? indices, Tensor? row_mask, " + SCHEMA_OF_CALL +
                 ") -> (Tensor, Tensor, Tensor)", _kernel, _meta, _autograd)
    route.define("token_log_probs_backward(Tensor logits, Tensor? indices, Tensor? row_mask, Tensor? to_log_prob, "
                 "Tensor? to_entropy, Tensor? to_lse, " + SCHEMA_OF_CALL + ") -> Tensor", _backward_kernel,
                 lambda logits, *rest: torch.empty_like(logits))


# ---- the function ----------------------------------------------------------------------------------------------------


def _call(call, logits, indices, row_mask):
    """(log_prob, entropy, lse), None where not asked for."""
    how = route.TRANSFORMED
    if losses_call.is_served(logits):
        how = route.way((logits, indices, row_mask))
    if how == route.TRANSFORMED:
        return losses_reference.token_log_probs(call, logits, indices, row_mask)
    asked = indices is not None, call.entropy, call.lse
    if how == route.TRACED:
        made = torch.ops.onepass.token_log_probs(logits, indices, row_mask, *call)
        return [result if wanted else None for result, wanted in zip(made, asked)]
    if not route.wants_gradients(logits):
        return _forward(call, logits, indices, row_mask)
    made = iter(TokenLogProbs.apply(logits, indices, row_mask, call))
    return [next(made) if wanted else None for wanted in asked]


def token_log_probs(logits, indices, temperature=1.0, *, softcap=None, columns=None, ignore_index=-100, row_mask=None,
                    semantics="strict", return_entropy=False, return_lse=False, process_group=None):
    """log_softmax(logits / temperature) at indices, without a tensor of the logits' size.

    logits     [..., C]
    indices    int64 or int32, [...] for one token per row or [..., K] for several; None for entropy and lse alone
    temperature, softcap, columns, row_mask, semantics   as in kl_div_logits
    ignore_index    such an index has the log-probability 0, and no gradient. Any other out of range has NaN
    return_entropy, return_lse   also those of each row, [...]
    process_group   as in kl_div_logits

    Returns log_prob of the shape of indices; or a tuple of what was asked for: log_prob (unless indices is None),
    entropy, lse. They are float32, or float64 if logits are. All have gradients to the logits, of any order.
    """
    if process_group is not None and not isinstance(process_group, losses_shards.Entry):
        return losses_shards.entered(process_group, token_log_probs, {
            "logits": logits, "indices": indices, "temperature": temperature, "softcap": softcap, "columns": columns,
            "ignore_index": ignore_index, "row_mask": row_mask, "semantics": semantics,
            "return_entropy": return_entropy, "return_lse": return_lse}, in_graphs=True)
    if has_torch_function((logits, indices)):
        return handle_torch_function(token_log_probs, (logits, indices), logits, indices, temperature=temperature,
                                     softcap=softcap, columns=columns, ignore_index=ignore_index, row_mask=row_mask,
                                     semantics=semantics, return_entropy=return_entropy, return_lse=return_lse,
                                     process_group=process_group)
    losses.check_logits(_NAME, "logits", logits)
    call, indices, is_single = read(_NAME, logits, "logits", logits.shape[-1], indices, temperature, softcap, columns,
                                    ignore_index, row_mask, semantics, return_entropy, return_lse, process_group)
    if process_group is not None:
        made = losses_shards.token_log_probs(_NAME, call, logits, indices, row_mask,
                                             empty_results(call, logits, indices), process_group)
        return returned(made, is_single, call)
    return returned(_call(call, logits, indices, row_mask), is_single, call)


def read(name, rows, argument, width, indices, temperature, softcap, columns, ignore_index, row_mask, semantics,
         return_entropy, return_lse, process_group=None):
    """(call, indices [..., K], whether they were one per row). `rows`, an argument of that name, has the rows."""
    shape = rows.shape[:-1]
    classes = width if process_group is None else math.inf  # of a group, those of all ranks: not known yet
    columns = losses.columns_of(name, columns, classes)
    is_single = False
    if indices is not None:
        is_single = isinstance(indices, torch.Tensor) and indices.dim() == rows.dim() - 1
        expected = shape if is_single else shape + (indices.shape[-1:] if isinstance(indices, torch.Tensor) else ())
        indices = losses.check_labels(name, "indices", indices, expected, rows, argument, ignore_index,
                                      columns or classes)
        indices = indices.unsqueeze(-1) if is_single else indices
    elif not (return_entropy or return_lse):
        raise errors.InvalidArgument("%s: indices: None; without them return_entropy or return_lse must be True" %
                                     name)
    if row_mask is not None:
        losses.check_mask(name, row_mask, shape, rows, argument)
    call = Call(library.option("semantics", semantics, library.SEMANTICS),
                losses.positive(name, "temperature", temperature), losses.positive(name, "softcap", softcap, 0.0),
                columns, ignore_index, bool(return_entropy), bool(return_lse))
    return call, indices, is_single


def returned(made, is_single, call):
    """What the caller gets of (log_prob, entropy, lse)."""
    log_prob, entropy, lse = made
    results = [result for result in (log_prob.squeeze(-1) if is_single else log_prob, entropy, lse)
               if result is not None]
    return results[0] if not (call.entropy or call.lse) else tuple(results)
