"""Losses of input weight^T + bias, which the library makes in chunks of rows, so that the logits are never there as a
whole: linear_cross_entropy, and what the divergences of losses_linear_divergences.py, which have a teacher of hidden
states and a weight as well, are made with.

Which way a call goes is route.py's answer; on devices without kernels PyTorch's operations do it, with all logits. A
forward makes the gradients that are needed in the same pass, for an upstream gradient of 1, and backward multiplies
them by the one that came; on the CPU those of half types wait in float32 for that. The gradients of unreduced losses
are made in backward, from the rows' upstream gradients; so are those of float16 on a GPU, which keeps the gradient of
the logits in that type: without the scale of a gradient scaler it would vanish.
"""

import math
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch.overrides import handle_torch_function, has_torch_function

from onepass import _native, errors, library
from onepass.torch import losses, losses_call, losses_reference, losses_shards, losses_shards_linear, route
from onepass.torch.linear import autocast, linear

# Numbers as the library takes them, but for outputs: which of losses_reference.OUTPUTS are asked for, a bit for each.
Call = namedtuple("Call", losses_call.Call._fields + ("chunk_bytes",))

# Tensors; input and weight are given, labels or the teacher's too. The first three have gradients.
Inputs = namedtuple("Inputs", "input weight bias target_input target_weight target_bias labels class_weights "
                    "row_weights row_mask divisor")

_NAME = "linear_cross_entropy"
_TENSORS, _OUTPUTS = len(Inputs._fields), len(losses_reference.OUTPUTS)

# ---- the library -----------------------------------------------------------------------------------------------------


def _dtype(inputs):
    types = {tensor.dtype for tensor in inputs[:5] if tensor is not None}
    return torch.float64 if torch.float64 in types else torch.float32


def _empty_value(call, inputs):
    shape = inputs.input.shape[:-1] if call.reduction == _native.ROWS else ()
    return inputs.input.new_empty(shape, dtype=_dtype(inputs))


def _empty_outputs(call, inputs):
    """One for each of losses_reference.OUTPUTS, None where not asked for."""
    return tuple(inputs.input.new_empty(inputs.input.shape[:-1],
                                        dtype=torch.int64 if name == "argmax" else _dtype(inputs))
                 if call.outputs >> i & 1 else None for i, name in enumerate(losses_reference.OUTPUTS))


def _is_on_gpu(inputs):
    return inputs.input.device.type == "cuda"


def _empty_gradients(inputs, needs, in_float):
    """To input, weight and bias, None where not needed. in_float: in the type they are summed in, half types too."""
    return tuple(tensor.new_empty(tensor.shape, dtype=torch.float32 if in_float and tensor.dtype in route.HALF
                                  else tensor.dtype) if need else None for tensor, need in zip(inputs[:3], needs))


def _waits(call, inputs):
    """True if gradients are made in backward alone."""
    return call.reduction == _native.ROWS or _is_on_gpu(inputs) and inputs.input.dtype is torch.float16


def workspace(tensor, size):
    """For one call: a chunk of logits is too much to keep."""
    return tensor.new_empty(size, dtype=torch.uint8),


def _run(call, inputs, value, gradients, outputs=(None,) * _OUTPUTS, upstream=None):
    input, weight, bias, target_input, target_weight, target_bias = inputs[:6]
    labels, class_weights, row_weights, row_mask, divisor = inputs[6:]
    common = (input, labels, class_weights, row_weights, row_mask, upstream, None, divisor, value,
              gradients[0]) + outputs[:4]
    own = weight, bias, gradients[1], gradients[2]
    numbers = (call.reduction, call.semantics, call.divisor, call.temperature, call.softcap, call.columns, 1,
               call.ignore_index, call.label_weight, call.label_smoothing, call.z_loss, call.entropy_bonus)
    last = call.chunk_bytes, route.products(input), route.threads(), workspace
    if call.form == losses_reference.LABELS:
        library.call(library.LINEAR_CROSS_ENTROPY, *common, *own, *numbers, *last)
        return
    library.call(library.LINEAR_DIVERGENCE, *common, target_input, target_weight, *outputs[4:], target_bias, *own,
                 *numbers, call.divergence, call.mixture, call.divergence_weight, call.target_temperature,
                 call.label_temperature, call.target_softcap, *last)


def _forward(call, inputs, gradients=(None,) * 3):
    """(value, *outputs); writes the gradients for an upstream gradient of 1."""
    value, outputs = _empty_value(call, inputs), _empty_outputs(call, inputs)
    _run(call, inputs, value, gradients, outputs)
    return (value,) + outputs


def _gradients(call, inputs, upstream, needs, in_float):
    made = _empty_gradients(inputs, needs, in_float)
    _run(call, inputs, None, made, upstream=upstream)
    return made


def _as_gradients(inputs, made):
    """In the types of their tensors."""
    return tuple(None if grad is None else grad.to(tensor.dtype) for tensor, grad in zip(inputs[:3], made))


# ---- PyTorch's operations --------------------------------------------------------------------------------------------


def logits_of(side, part, dtype):
    """Of hidden states, weight and bias."""
    input, weight, bias = side
    if part is not None:  # a row that takes no part is not looked at, in backward either
        input = torch.where(part.unsqueeze(-1), input, input.new_zeros(()))
    with route.no_autocast(input):
        return F.linear(input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def reference(call, inputs):
    """[value, *outputs asked for] in PyTorch's own operations, which have derivatives of any order. Logits of half
    types are float32 where the library's are, on the CPU, and elsewhere what PyTorch makes them."""
    sides = [inputs[:3]]
    if inputs.target_input is not None:
        sides.append(tuple(None if tensor is None else tensor.detach() for tensor in inputs[3:6]))
    part = losses_reference.taking_part(call, inputs.labels, inputs.row_mask)
    logits = []
    for side in sides:
        dtype = torch.promote_types(side[0].dtype, side[1].dtype)
        if losses_call.is_served(inputs.input) and not inputs.input.is_cuda:
            dtype = _dtype(inputs)
        logits.append(logits_of(side, part, dtype))
    logits = (logits + [None])[:2]
    return losses_reference.loss(losses_call.Call(*call[:-1]), losses_call.Inputs(*logits, *inputs[6:]))


def _gradients_in_torch(call, inputs, upstream, needs):
    """The gradients as something to differentiate again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        value = reference(call._replace(outputs=0), inputs)[0]
        wanted = [tensor for tensor, need in zip(inputs[:3], needs) if need]
        made = iter(torch.autograd.grad(value, wanted, upstream.to(value.dtype), create_graph=again))
    return tuple(next(made) if need else None for need in needs)


# ---- autograd --------------------------------------------------------------------------------------------------------


def _asked(results):
    return tuple(result for result in results if result is not None)


class LinearLoss(torch.autograd.Function):
    """loss(call, *inputs) -> (value, *outputs asked for)"""

    @staticmethod
    def forward(ctx, call, *tensors):
        inputs = Inputs(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.call = call
        ctx.set_materialize_grads(False)
        if _waits(call, inputs):
            results = _forward(call, inputs)
        else:
            ctx.made = _empty_gradients(inputs, ctx.needs_input_grad[1:4], not _is_on_gpu(inputs))
            results = _forward(call, inputs, ctx.made)
        results = _asked(results)
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx, upstream, *none):
        if upstream is None:
            return (None,) * (1 + _TENSORS)
        # Handed over once: autograd may make them somebody's .grad. In one step: another thread may be going back
        # through this graph.
        made = ctx.__dict__.pop("made", None)
        call, inputs, needs = ctx.call, Inputs(*ctx.saved_tensors), ctx.needs_input_grad[1:4]
        if upstream.is_neg():
            upstream = upstream.resolve_neg()
        how = route.TRANSFORMED
        if not torch.is_grad_enabled() and not route.is_batched(upstream):
            how = route.way((upstream,) + inputs[:6])
        if how == route.TRACED:
            made = torch.ops.onepass.linear_loss_backward(upstream, *inputs, *call, *needs, not _is_on_gpu(inputs))
            made = tuple(grad if need else None for grad, need in zip(made, needs))
        elif how == route.TRANSFORMED:
            made = _gradients_in_torch(call, inputs, upstream, needs)
        elif made is None:
            made = _gradients(call, inputs, upstream, needs, not _is_on_gpu(inputs))
        elif upstream.is_cuda or float(upstream) != 1:  # a GPU's number is not worth waiting for
            for grad in made:
                if grad is not None:
                    grad.mul_(upstream)
        return (None,) + _as_gradients(inputs, made) + (None,) * (_TENSORS - 3)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


def _split(arguments):
    return Call(*arguments[_TENSORS:_TENSORS + len(Call._fields)]), Inputs(*arguments[:_TENSORS])


def _kernel(*arguments):
    call, inputs = _split(arguments)
    return route.all_results(inputs.input, _forward(call, inputs))


def _meta(*arguments):
    call, inputs = _split(arguments)
    return route.all_results(inputs.input, (_empty_value(call, inputs),) + _empty_outputs(call, inputs))


def _kernel_with_gradients(*arguments):
    call, inputs = _split(arguments)
    made = _empty_gradients(inputs, arguments[-4:-1], arguments[-1])
    return route.all_results(inputs.input, _forward(call, inputs, made) + made)


def _meta_with_gradients(*arguments):
    return _meta(*arguments) + _backward_meta(arguments[0], *arguments)


def _backward_kernel(upstream, *arguments):
    call, inputs = _split(arguments)
    return route.all_results(inputs.input, _gradients(call, inputs, upstream, arguments[-4:-1], arguments[-1]))


def _backward_meta(upstream, *arguments):
    inputs = _split(arguments)[1]
    return route.all_results(inputs.input, _empty_gradients(inputs, arguments[-4:-1], arguments[-1]))


class TracedLinearLoss(torch.autograd.Function):
    """The same, of the operators."""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.call = call
        ctx.set_materialize_grads(False)
        made = ()
        with route.below_autograd():
            if _waits(call, Inputs(*tensors)):
                results = torch.ops.onepass.linear_loss(*tensors, *call)
            else:
                results = torch.ops.onepass.linear_loss_with_gradients(
                    *tensors, *call, *ctx.needs_input_grad[1:4], not _is_on_gpu(Inputs(*tensors)))
                made = results[1 + _OUTPUTS:]
        ctx.save_for_backward(*tensors, *made)
        results = tuple(results[:1 + _OUTPUTS])
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx, upstream, *none):
        if upstream is None:
            return (None,) * (1 + _TENSORS)
        call, needs, saved = ctx.call, ctx.needs_input_grad[1:4], ctx.saved_tensors
        inputs, made = Inputs(*saved[:_TENSORS]), saved[_TENSORS:]
        if torch.is_grad_enabled() or route.is_batched(upstream):
            made = _gradients_in_torch(call, inputs, upstream, needs)
        elif made:
            made = tuple(grad * upstream.to(grad.dtype) if need else None for grad, need in zip(made, needs))
        else:
            made = torch.ops.onepass.linear_loss_backward(upstream, *inputs, *call, *needs, not _is_on_gpu(inputs))
            made = tuple(grad if need else None for grad, need in zip(made, needs))
        return (None,) + _as_gradients(inputs, made) + (None,) * (_TENSORS - 3)


def _autograd(*arguments):
    call, inputs = _split(arguments)
    if not route.wants_gradients(*inputs[:3]):
        with route.below_autograd():
            return torch.ops.onepass.linear_loss(*arguments)
    if route.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
        value, *outputs = reference(call, inputs)
        outputs = iter(outputs)
        outputs = tuple(next(outputs) if call.outputs >> i & 1 else None for i in range(_OUTPUTS))
        return route.all_results(inputs.input, (value,) + outputs)
    return TracedLinearLoss.apply(call, *inputs)


if route.HAS_TRACED:
    _SCHEMA = ("(%sTensor input, Tensor weight, Tensor? bias, Tensor? target_input, Tensor? target_weight, "
               "Tensor? target_bias, Tensor? labels, Tensor? class_weights, Tensor? row_weights, Tensor? row_mask, "
               "Tensor? divisor_tensor, int form, int reduction, int semantics, float divisor, float temperature, "
               "float softcap, int columns, int ignore_index, float label_weight, float label_smoothing, float z_loss, "
               "float entropy_bonus, int divergence, float mixture, float divergence_weight, "
               "float target_temperature, float label_temperature, float target_softcap, int outputs, "
               "int chunk_bytes%s) -> (%s)")
    # What a device would say is an argument: those who make results without numbers see tensors of none.
    _NEEDS = ", bool to_input, bool to_weight, bool to_bias, bool in_float"
    route.define("linear_loss" + _SCHEMA % ("", "", ", ".join(["Tensor"] * (1 + _OUTPUTS))), _kernel, _meta, _autograd)
    route.define("linear_loss_with_gradients" + _SCHEMA % ("", _NEEDS, ", ".join(["Tensor"] * (4 + _OUTPUTS))),
                 _kernel_with_gradients, _meta_with_gradients)
    route.define("linear_loss_backward" + _SCHEMA % ("Tensor upstream, ", _NEEDS, "Tensor, Tensor, Tensor"),
                 _backward_kernel, _backward_meta)


# ---- the function ----------------------------------------------------------------------------------------------------


def check_side(name, names, input, weight, bias):
    """Hidden states, weight and bias; `names` are their arguments'."""
    losses.check_logits(name, names[0], input)
    losses.check_logits(name, names[1], weight)
    if weight.dim() < 2 or weight.shape[-1] != input.shape[-1]:
        raise errors.InvalidArgument("%s: %s: shape %s does not fit %s %s; it must be [C, %d]" % (
            name, names[1], list(weight.shape), names[0], list(input.shape), input.shape[-1]))
    if weight.device != input.device:
        raise errors.InvalidArgument("%s: %s: device %s; it must be that of %s, %s" % (
            name, names[1], weight.device, names[0], input.device))
    if bias is not None:
        losses.check_logits(name, names[2], bias)
        losses.check_beside(name, names[2], bias, weight.shape[:-1], weight, names[1])


def check_matrix(name, argument, weight):
    """A weight that makes one row of logits of each of hidden states."""
    if weight.dim() > 2:
        raise errors.InvalidArgument("%s: %s: shape %s; it must be [C, %d]" % (
            name, argument, list(weight.shape), weight.shape[-1]))


def check_chunk_bytes(name, chunk_bytes):
    """As the library takes it; 0: its default."""
    if chunk_bytes is not None and not 0 < chunk_bytes <= 2 ** 53:
        raise errors.InvalidArgument("%s: chunk_bytes: %s; it must be above 0 and at most 2^53" % (name, chunk_bytes))
    return int(chunk_bytes or 0)


def _check(input, linear_weight, linear_bias, target, options):
    check_side(_NAME, ("input", "linear_weight", "linear_bias"), input, linear_weight, linear_bias)
    if not isinstance(target, torch.Tensor):
        raise TypeError("%s: target: %s; it must be a torch.Tensor" % (_NAME, type(target).__name__))
    if options is not None:
        raise errors.Unsupported("%s: options: given; chunks are chosen by chunk_bytes" % _NAME)


def _with_logits(input, linear_weight, linear_bias, target, ignore_index, named):
    """What there are no chunks for: targets that are probabilities, and several losses a row, of a weight
    [C, d1, ..., K]."""
    if linear_weight.dim() > 2 and input.dim() != 2:
        raise errors.InvalidArgument("%s: input: shape %s; with linear_weight %s it must be [N, %d]" % (
            _NAME, list(input.shape), list(linear_weight.shape), input.shape[-1]))
    more = linear_weight.shape[1:-1]
    logits = linear(input, linear_weight.reshape(-1, linear_weight.shape[-1]),
                    None if linear_bias is None else linear_bias.reshape(-1))
    logits = logits.reshape(input.shape[:-1] + linear_weight.shape[:-1])
    if target.is_floating_point() and ignore_index is not None:
        raise errors.InvalidArgument("%s: ignore_index: %d; it is not supported for targets that are probabilities" % (
            _NAME, ignore_index))
    return losses.cross_entropy(logits, target, ignore_index=-100 if ignore_index is None else ignore_index,
                                class_dim=1 if more else -1, **named)


def linear_cross_entropy(input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean",
                         ignore_index=None, label_smoothing=0.0, options=None, temperature=1.0, softcap=None,
                         columns=None, z_loss=0.0, entropy_bonus=0.0, divisor=None, row_weights=None, row_mask=None,
                         semantics="strict", outputs=(), chunk_bytes=None, process_group=None):
    """torch.nn.functional.linear_cross_entropy, of PyTorch 2.13 and later, on any PyTorch: the cross-entropy of
    input linear_weight^T + linear_bias and a target, without all of these logits at once.

    input           hidden states [..., K]
    linear_weight   [C, K]; linear_bias [C]
    target          labels [...]
    weight, reduction, ignore_index, label_smoothing   as in cross_entropy; ignore_index None: -100
    options         None. PyTorch's way to choose chunks; here it is
    chunk_bytes     what a chunk of logits, with its hidden states, may take; None: 512 MiB. At least 264 rows are taken
                    at a time, on a GPU 128. It changes no bit of the loss and of the gradient to input
    process_group   the classes are spread over the processes of this group: linear_weight, linear_bias and weight are
                    those of this rank's, everything else is the same on all of them, as in kl_div_logits. If input
                    requires a gradient, backward adds it up over the group, so that every rank must go backward

    The other keywords are those of cross_entropy; outputs are of 'lse', 'entropy', 'log_prob', 'argmax'. Rows that are
    masked or whose label is ignored are never read, and cost nothing on the CPU.
    The loss is float32; float64 if an input is. Logits of half types are float32 on the CPU, and have that type on a
    GPU, where rows that do not count cost what others do. Gradients to input, linear_weight and linear_bias, each made
    only if it is needed, of any order; those of higher order with all logits at once. So are targets that are
    probabilities, weights [C, d1, ..., K], and devices without kernels.
    """
    if process_group is not None and not isinstance(process_group, losses_shards.Entry):
        return losses_shards.entered(process_group, linear_cross_entropy, locals())
    tensors = input, linear_weight, target, linear_bias, weight
    named = {"weight": weight, "reduction": reduction, "label_smoothing": label_smoothing, "temperature": temperature,
             "softcap": softcap, "columns": columns, "z_loss": z_loss, "entropy_bonus": entropy_bonus,
             "divisor": divisor, "row_weights": row_weights, "row_mask": row_mask, "semantics": semantics,
             "outputs": outputs}
    if has_torch_function(tensors):
        return handle_torch_function(linear_cross_entropy, tensors, input, linear_weight, target,
                                     linear_bias=linear_bias, ignore_index=ignore_index, options=options,
                                     chunk_bytes=chunk_bytes, process_group=process_group, **named)
    _check(input, linear_weight, linear_bias, target, options)
    chunk_bytes = check_chunk_bytes(_NAME, chunk_bytes)
    shape, width = input.shape[:-1], linear_weight.shape[0]
    if linear_weight.dim() > 2 or (target.is_floating_point() and target.shape == shape + (width,)):
        if process_group is not None:
            raise errors.Unsupported("%s: process_group: given with targets that are probabilities, or a "
                                     "linear_weight of shape %s" % (_NAME, list(linear_weight.shape)))
        return _with_logits(input, linear_weight, linear_bias, target, ignore_index, named)
    ignore_index = -100 if ignore_index is None else ignore_index
    classes = width if process_group is None else math.inf  # of a group, those of all ranks: not known yet
    columns = losses.columns_of(_NAME, columns, classes)
    target = losses.check_labels(_NAME, "target", target, shape, input, "input", ignore_index, columns or classes)
    if weight is not None:
        losses.check_weights(_NAME, "weight", weight, (width,), linear_weight, "linear_weight")
    if row_weights is not None:
        losses.check_weights(_NAME, "row_weights", row_weights, shape, input, "input")
    if row_mask is not None:
        losses.check_mask(_NAME, row_mask, shape, input, "input")
    divisor_tensor = None
    if isinstance(divisor, torch.Tensor):
        dtype = losses_reference.value_dtype(input, linear_weight)
        divisor_tensor = losses.divisor_tensor_of(_NAME, divisor, input, dtype)
    form = losses_reference.LABELS
    made = losses.call_of(_NAME, form, 0, 0.0, losses.OFFERED[form, True], reduction,
                          losses.as_number(divisor) if divisor_tensor is None else True, semantics,
                          losses.as_number(temperature), losses.as_number(softcap), columns, ignore_index, 1.0,
                          float(label_smoothing), float(z_loss), float(entropy_bonus), 0.0, None, 0.0, None,
                          tuple(outputs))
    call = Call(*made, chunk_bytes)
    if route.autocasts(input):
        input, linear_weight, linear_bias = autocast(input, linear_weight, linear_bias)
    inputs = Inputs(input, linear_weight, linear_bias, None, None, None, target, weight, row_weights, row_mask,
                    divisor_tensor)
    if process_group is not None:
        return losses.answer(losses_shards_linear.loss(_NAME, call, inputs, process_group), made, outputs)
    return losses.answer(loss(call, inputs), made, outputs)


def loss(call, inputs):
    """[value, *outputs asked for]"""
    how = route.TRANSFORMED
    served = losses_call.is_served(inputs.input)
    if served and (call.form == losses_reference.LABELS or call.divergence_weight):  # to the library, 0 is the default
        how = route.way(inputs)
    if how == route.TRANSFORMED:
        return reference(call, inputs)
    if how == route.TRACED:
        results = torch.ops.onepass.linear_loss(*inputs, *call)
        return results[:1] + tuple(results[1 + i] for i in range(_OUTPUTS) if call.outputs >> i & 1)
    if route.wants_gradients(*inputs[:3]):
        return LinearLoss.apply(call, *inputs)
    return _asked(_forward(call, inputs))
