"""linear_kl_div_top_k: kl_div_top_k of input weight^T + bias, in chunks of rows, so that the logits are never there as
a whole.

The library has no operator for it. What is done with a chunk are three of its operators: `linear` makes the logits,
`divergence_logits_top_k` their loss and its gradient, which takes their place, and `linear_backward` multiplies that
with weight and hidden states. Logits and the gradient to the input are multiplied a tile of rows at a time, and a tile
begins at the same row and has as many rows in any chunk: so the number of chunks changes no bit of them.

Which way a call goes is route.py's answer; on devices without kernels PyTorch's operations do it, with all logits.
Gradients are made in the forward pass or in backward, and wait in the types that losses_linear.py says.
"""

import math
from collections import namedtuple

import torch
from torch.overrides import handle_torch_function, has_torch_function

from onepass import _native, library
from onepass.torch import losses_call, losses_linear, losses_reference, losses_top_k, route
from onepass.torch.linear import autocast

Call = namedtuple("Call", losses_top_k.Call._fields + ("chunk_bytes",))

# Tensors; input, weight and the teacher are given. The first three have gradients.
Inputs = namedtuple("Inputs", ("input", "weight", "bias") + losses_top_k.Inputs._fields[1:])

_NAME = "linear_kl_div_top_k"
_TENSORS = len(Inputs._fields)

_CHUNK_BYTES = 512 << 20
_TILE_ROWS, _GPU_TILE_ROWS = 264, 1024
_ADDED_BYTES = 64 << 20  # of a product that is added to the gradient to the weight, at a time
_ALIGNED = 256  # bytes from one row of logits to the next are a multiple of it

# ---- the library -----------------------------------------------------------------------------------------------------


def _dtype(inputs):
    """Of the loss."""
    types = {tensor.dtype for tensor in (inputs.input, inputs.weight, inputs.top_values)}
    return torch.float64 if torch.float64 in types else torch.float32


def _logits_dtype(inputs, in_float):
    """Of logits and of the gradients before backward; in_float: float32 for half types."""
    promoted = torch.promote_types(inputs.input.dtype, inputs.weight.dtype)
    return torch.float32 if in_float and promoted in route.HALF else promoted


def _is_in_float(inputs):
    return inputs.input.device.type != "cuda"


def _waits(call, inputs):
    """True if gradients are made in backward alone."""
    return call.reduction == _native.ROWS or not _is_in_float(inputs) and inputs.input.dtype is torch.float16


def _empty_value(call, inputs):
    shape = inputs.input.shape[:-1] if call.reduction == _native.ROWS else ()
    return inputs.input.new_empty(shape, dtype=_dtype(inputs))


def _empty_gradients(inputs, needs, in_float):
    """To input, weight and bias, None where not needed."""
    dtype = _logits_dtype(inputs, in_float)
    return tuple(tensor.new_empty(tensor.shape, dtype=dtype) if need else None
                 for tensor, need in zip(inputs[:3], needs))


def _flat(tensor):
    return None if tensor is None else tensor.reshape(-1)


def _at(tensor, rows):
    return None if tensor is None else tensor[rows]


def _of_losses(inputs):
    """Inputs as losses of logits have them. The logits have a shape and nothing else."""
    shape = inputs.input.shape[:-1] + inputs.weight.shape[:1]
    return losses_top_k.Inputs(inputs.input.new_empty(()).expand(shape), *inputs[3:])


class _Layer:
    """Hidden states [rows, depth], of rows that take no part 0, and their chunks."""

    def __init__(self, call, inputs, part, in_float):
        self.count, (self.classes, self.depth) = math.prod(inputs.input.shape[:-1]), inputs.weight.shape
        self.input, self.weight, self.bias = inputs.input.reshape(self.count, self.depth), inputs.weight, inputs.bias
        self.dtype = _logits_dtype(inputs, in_float)
        self.products = route.products(self.input)
        on_gpu = self.input.is_cuda
        self.tile = _GPU_TILE_ROWS if on_gpu else _TILE_ROWS
        self.part = None if part is None else part.reshape(self.count, 1)
        if self.part is not None and not on_gpu and bool(part.all()):
            self.part = None
        self.element = 8 if self.dtype is torch.float64 else 2 if self.dtype in route.HALF else 4
        row = (self.classes if on_gpu else self.classes + self.depth) * self.element  # a GPU's as in the C library
        self.step = self.tile * max(1, (call.chunk_bytes or _CHUNK_BYTES) // max(1, row * self.tile))

    def chunks(self):
        """(rows, a place for their logits)"""
        width = -(-self.classes * self.element // _ALIGNED) * _ALIGNED // self.element
        place = self.input.new_empty((min(self.step, self.count), width), dtype=self.dtype)[:, :self.classes]
        for begin in range(0, self.count, self.step):
            rows = slice(begin, min(begin + self.step, self.count))
            yield rows, place[:rows.stop - begin]

    def hidden(self, rows):
        states = self.input[rows]
        return states if self.part is None else torch.where(self.part[rows], states, states.new_zeros(()))

    def _tiles(self, count):
        return (slice(begin, begin + self.tile) for begin in range(0, count, self.tile))

    def write_logits(self, hidden, logits):
        for tile in self._tiles(len(logits)):
            library.call(library.LINEAR, hidden[tile], self.weight, self.bias, None, logits[tile], self.products,
                         route.threads(), route.workspace)

    def _backward(self, upstream, input, weight, to_input=None, to_weight=None, to_bias=None):
        """Gradients have the types of `input` and `weight`; what is not multiplied stands in for its shape."""
        input = route.stand_in(upstream, (len(upstream), self.depth)) if input is None else input
        weight = route.stand_in(upstream, (upstream.shape[1], self.depth)) if weight is None else weight
        library.call(library.LINEAR_BACKWARD, input, weight, upstream, to_input, to_weight, to_bias, self.products,
                     route.threads(), route.workspace)

    def write_to_input(self, upstream, to_input):
        for tile in self._tiles(len(upstream)):
            self._backward(upstream[tile], None, self.weight, to_input=to_input[tile])

    def add_to_weight(self, upstream, hidden, to_weight, is_first):
        if is_first:
            self._backward(upstream, hidden, None, to_weight=to_weight)
            return
        step = max(128, _ADDED_BYTES // max(1, self.depth * self.element) // 128 * 128)
        for begin in range(0, self.classes, step):
            part = slice(begin, begin + step)
            added = torch.empty_like(to_weight[part])
            self._backward(upstream[:, part], hidden, None, to_weight=added)
            to_weight[part] += added

    def add_to_bias(self, upstream, to_bias, is_first):
        added = to_bias if is_first else torch.empty_like(to_bias)
        self._backward(upstream, None, None, to_bias=added)
        if not is_first:
            to_bias += added


def _reduced(call, inputs, part, values):
    """The loss of values of rows, [tiles, rows]."""
    columns = call.columns or inputs.weight.shape[0]
    total = losses_reference.total_of(call, _of_losses(inputs), part, values.sum(1), columns)
    return total.to(_dtype(inputs))


def _upstream_of_rows(call, inputs, part, upstream, count):
    """[rows], from that of the loss; None: 1."""
    if call.reduction == _native.ROWS:
        return _flat(upstream)
    upstream = inputs.input.new_ones((), dtype=torch.float64) if upstream is None else upstream.double()
    columns = call.columns or inputs.weight.shape[0]
    over = losses_reference.divisor_of(call, _of_losses(inputs), part, torch.float64, columns)
    if not isinstance(over, torch.Tensor):
        over = upstream.new_full((), over)
    return (upstream / over).expand(count)


def _run(call, inputs, needs, in_float, upstream=None, wants_value=True):
    """(value or None, gradients to input, weight and bias or None), the gradients for this upstream gradient."""
    part = losses_reference.taking_part(call, inputs.labels, inputs.row_mask)
    layer, made = _Layer(call, inputs, part, in_float), _empty_gradients(inputs, needs, in_float)
    per_row = call.reduction == _native.ROWS
    values = upstream_of_rows = None
    if wants_value:  # summed tile by tile: the same bits with any number of threads
        tiles = -(-layer.count // layer.tile)
        values = inputs.input.new_zeros(tiles * layer.tile, dtype=_dtype(inputs) if per_row else torch.float64)
    if any(needs):
        upstream_of_rows = _upstream_of_rows(call, inputs, part, upstream, layer.count)
    of_chunk = losses_top_k.Call(*call[:-1])._replace(reduction=_native.ROWS, divisor=0.0)
    k = inputs.top_values.shape[-1]
    top_values, top_indices = (tensor.reshape(layer.count, k) for tensor in (inputs.top_values, inputs.top_indices))
    labels, row_weights, row_mask = map(_flat, (inputs.labels, inputs.row_weights, inputs.row_mask))
    to_input, to_weight, to_bias = made
    if to_input is not None:
        to_input = to_input.view(layer.count, layer.depth)
    for rows, logits in layer.chunks():
        hidden = layer.hidden(rows)
        layer.write_logits(hidden, logits)
        losses_top_k.run(of_chunk, losses_top_k.Inputs(
            logits, top_values[rows], top_indices[rows], _at(labels, rows), inputs.class_weights,
            _at(row_weights, rows), _at(row_mask, rows), None), _at(values, rows), logits if any(needs) else None,
                         _at(upstream_of_rows, rows))
        if to_input is not None:
            layer.write_to_input(logits, to_input[rows])
        if to_weight is not None:
            layer.add_to_weight(logits, hidden, to_weight, rows.start == 0)
        if to_bias is not None:
            layer.add_to_bias(logits, to_bias, rows.start == 0)
    if not layer.count:
        for gradient in (to_weight, to_bias):
            if gradient is not None:
                gradient.zero_()
    if to_input is not None and layer.part is not None:  # 0 times a weight that is not finite
        to_input.masked_fill_(~layer.part, 0)
    if not wants_value:
        return (None,) + made
    if per_row:
        return (values[:layer.count].view(inputs.input.shape[:-1]),) + made
    return (_reduced(call, inputs, part, values.view(-1, layer.tile)),) + made


# ---- PyTorch's operations --------------------------------------------------------------------------------------------


def reference(call, inputs):
    """The loss in PyTorch's own operations, which have derivatives of any order. Logits of half types are float32 where
    the library's are, on the CPU, and elsewhere what PyTorch makes them."""
    part = losses_reference.taking_part(call, inputs.labels, inputs.row_mask)
    in_float = losses_call.is_served(inputs.input) and not inputs.input.is_cuda
    logits = losses_linear.logits_of(inputs[:3], part, _logits_dtype(inputs, in_float))
    return losses_top_k.reference(losses_top_k.Call(*call[:-1]), losses_top_k.Inputs(logits, *inputs[3:])).to(
        _dtype(inputs))


def _gradients_in_torch(call, inputs, upstream, needs):
    """The gradients as something to differentiate again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        value = reference(call, inputs)
        wanted = [tensor for tensor, need in zip(inputs[:3], needs) if need]
        made = iter(torch.autograd.grad(value, wanted, upstream.to(value.dtype), create_graph=again))
    return tuple(next(made) if need else None for need in needs)


# ---- autograd --------------------------------------------------------------------------------------------------------


def _as_gradients(inputs, made):
    """In the types of their tensors."""
    return tuple(None if grad is None else grad.to(tensor.dtype) for tensor, grad in zip(inputs[:3], made))


class LinearTopKLoss(torch.autograd.Function):
    """loss(call, *inputs)"""

    @staticmethod
    def forward(ctx, call, *tensors):
        inputs = Inputs(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.call = call
        needs = (False,) * 3 if _waits(call, inputs) else ctx.needs_input_grad[1:4]
        value, *made = _run(call, inputs, needs, _is_in_float(inputs))
        if any(needs):
            ctx.made = made
        return value

    @staticmethod
    def backward(ctx, upstream):
        # Handed over once: autograd may make them somebody's .grad. In one step: another thread may be going back
        # through this graph.
        made = ctx.__dict__.pop("made", None)
        call, inputs, needs = ctx.call, Inputs(*ctx.saved_tensors), ctx.needs_input_grad[1:4]
        if upstream.is_neg():
            upstream = upstream.resolve_neg()
        how = route.TRANSFORMED
        if not torch.is_grad_enabled() and not route.is_batched(upstream):
            how = route.way((upstream,) + inputs[:4])
        if how == route.TRACED:
            made = _traced_gradients(call, inputs, upstream, needs)
        elif how == route.TRANSFORMED:
            made = _gradients_in_torch(call, inputs, upstream, needs)
        elif made is None:
            made = _run(call, inputs, needs, _is_in_float(inputs), upstream, wants_value=False)[1:]
        elif upstream.is_cuda or float(upstream) != 1:  # a GPU's number is not worth waiting for
            for grad in made:
                if grad is not None:
                    grad.mul_(upstream)
        return (None,) + _as_gradients(inputs, made) + (None,) * (_TENSORS - 3)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


def _traced_gradients(call, inputs, upstream, needs):
    made = torch.ops.onepass.linear_top_k_loss_backward(upstream, *inputs, *call, *needs, _is_in_float(inputs))
    return tuple(grad if need else None for grad, need in zip(made, needs))


class TracedLinearTopKLoss(torch.autograd.Function):
    """The same, of the operators."""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.call, inputs = call, Inputs(*tensors)
        ctx.is_made = not _waits(call, inputs)
        needs = ctx.needs_input_grad[1:4] if ctx.is_made else (False,) * 3
        with route.below_autograd():
            value, *made = torch.ops.onepass.linear_top_k_loss(*tensors, *call, *needs, _is_in_float(inputs))
        ctx.save_for_backward(*tensors, *(made if ctx.is_made else ()))
        return value

    @staticmethod
    def backward(ctx, upstream):
        call, needs, saved = ctx.call, ctx.needs_input_grad[1:4], ctx.saved_tensors
        inputs, made = Inputs(*saved[:_TENSORS]), saved[_TENSORS:]
        if torch.is_grad_enabled() or route.is_batched(upstream):
            made = _gradients_in_torch(call, inputs, upstream, needs)
        elif ctx.is_made:
            made = tuple(grad * upstream.to(grad.dtype) if need else None for grad, need in zip(made, needs))
        else:
            made = _traced_gradients(call, inputs, upstream, needs)
        return (None,) + _as_gradients(inputs, made) + (None,) * (_TENSORS - 3)


def _split(arguments):
    """(call, inputs, needs, in_float)"""
    call = Call(*arguments[_TENSORS:_TENSORS + len(Call._fields)])
    return call, Inputs(*arguments[:_TENSORS]), arguments[-4:-1], arguments[-1]


def _kernel(*arguments):
    call, inputs, needs, in_float = _split(arguments)
    return route.all_results(inputs.input, _run(call, inputs, needs, in_float))


def _meta(*arguments):
    call, inputs, needs, in_float = _split(arguments)
    return route.all_results(inputs.input, (_empty_value(call, inputs),) + _empty_gradients(inputs, needs, in_float))


def _autograd(*arguments):
    call, inputs, _, in_float = _split(arguments)
    if not route.wants_gradients(*inputs[:3]):
        with route.below_autograd():
            return torch.ops.onepass.linear_top_k_loss(*arguments)
    if route.transforms():  # torch.func's, in a compiled graph: autograd's functions in an operator give it nothing
        value = reference(call, inputs)
    else:
        value = TracedLinearTopKLoss.apply(call, *inputs)
    return route.all_results(inputs.input, (value, None, None, None))


def _backward_kernel(upstream, *arguments):
    call, inputs, needs, in_float = _split(arguments)
    return route.all_results(inputs.input, _run(call, inputs, needs, in_float, upstream, wants_value=False)[1:])


def _backward_meta(upstream, *arguments):
    _, inputs, needs, in_float = _split(arguments)
    return route.all_results(inputs.input, _empty_gradients(inputs, needs, in_float))


if route.HAS_TRACED:
    # What a device would say, in_float, is an argument: those who make results without numbers see tensors of none.
    _SCHEMA = ("(%sTensor input, Tensor weight, Tensor? bias, Tensor top_values, Tensor top_indices, Tensor? labels, "
               "Tensor? class_weights, Tensor? row_weights, Tensor? row_mask, Tensor? divisor_tensor, int reduction, "
               "int semantics, float divisor, float temperature, float softcap, int columns, int ignore_index, "
               "float label_weight, float label_smoothing, float z_loss, float entropy_bonus, int divergence, "
               "float divergence_weight, float target_temperature, float label_temperature, int form, int outside, "
               "int chunk_bytes, bool to_input, bool to_weight, bool to_bias, bool in_float) -> (%s)")
    route.define("linear_top_k_loss" + _SCHEMA % ("", "Tensor, Tensor, Tensor, Tensor"), _kernel, _meta, _autograd)
    route.define("linear_top_k_loss_backward" + _SCHEMA % ("Tensor upstream, ", "Tensor, Tensor, Tensor"),
                 _backward_kernel, _backward_meta)


# ---- the function ----------------------------------------------------------------------------------------------------


def linear_kl_div_top_k(input, linear_weight, top_values, top_indices, *, linear_bias=None, form="log_probs",
                        outside="tail", reverse=False, temperature=1.0, target_temperature=None,
                        reduction="batchmean", divergence_weight=1.0, labels=None, label_weight=0.0,
                        label_smoothing=0.0, label_temperature=1.0, ignore_index=-100, class_weights=None, z_loss=0.0,
                        entropy_bonus=0.0, softcap=None, columns=None, divisor=None, row_weights=None, row_mask=None,
                        semantics="strict", chunk_bytes=None):
    """kl_div_top_k of input linear_weight^T + linear_bias, without all of these logits at once.

    input           hidden states [..., D]
    linear_weight   [C, D]; linear_bias [C]
    top_values, top_indices   [..., K], the teacher's, as in kl_div_top_k
    chunk_bytes     what a chunk of logits, on the CPU with its hidden states, may take; None: 512 MiB. At least 264
                    rows are taken at a time, on a GPU 1024. It changes no bit of the loss and of the gradient to input

    The other keywords are those of kl_div_top_k. Rows that are masked or whose label is ignored are never read.
    The loss is float32; float64 if input, weight or values are. Logits of half types are float32 on the CPU, and have
    that type on a GPU. Gradients to input, linear_weight and linear_bias, each made only if it is needed, of any order;
    those of higher order with all logits at once, and so are all on devices without kernels.
    """
    options = {"form": form, "outside": outside, "reverse": reverse, "temperature": temperature,
               "target_temperature": target_temperature, "reduction": reduction,
               "divergence_weight": divergence_weight, "labels": labels, "label_weight": label_weight,
               "label_smoothing": label_smoothing, "label_temperature": label_temperature,
               "ignore_index": ignore_index, "class_weights": class_weights, "z_loss": z_loss,
               "entropy_bonus": entropy_bonus, "softcap": softcap, "columns": columns, "divisor": divisor,
               "row_weights": row_weights, "row_mask": row_mask, "semantics": semantics}
    tensors = input, linear_weight, top_values, top_indices, linear_bias
    if has_torch_function(tensors):
        return handle_torch_function(linear_kl_div_top_k, tensors, *tensors[:4], linear_bias=linear_bias,
                                     chunk_bytes=chunk_bytes, **options)
    losses_linear.check_side(_NAME, ("input", "linear_weight", "linear_bias"), input, linear_weight, linear_bias)
    losses_linear.check_matrix(_NAME, "linear_weight", linear_weight)
    chunk_bytes = losses_linear.check_chunk_bytes(_NAME, chunk_bytes)
    call, labels, divisor = losses_top_k.read(_NAME, input, "input", linear_weight, "linear_weight",
                                              linear_weight.shape[0], top_values, top_indices, **options)
    if route.autocasts(input):
        input, linear_weight, linear_bias = autocast(input, linear_weight, linear_bias)
    return _loss(Call(*call, chunk_bytes), Inputs(input, linear_weight, linear_bias, top_values, top_indices, labels,
                                                  class_weights, row_weights, row_mask, divisor))


def _loss(call, inputs):
    how = route.TRANSFORMED
    served = losses_call.is_served(inputs.input)
    if served and call.divergence_weight:  # to the library, 0 is the default
        how = route.way(inputs)
    if how == route.TRANSFORMED:
        return reference(call, inputs)
    if how == route.TRACED:
        return torch.ops.onepass.linear_top_k_loss(*inputs, *call, False, False, False, _is_in_float(inputs))[0]
    if not route.wants_gradients(*inputs[:3]):
        return _run(call, inputs, (False,) * 3, _is_in_float(inputs))[0]
    return LinearTopKLoss.apply(call, *inputs)
