"""torch.ops.onepass: the operators that PyTorch's dispatcher knows of, and with it torch.compile and torch.export.

An operator is a plain function of its inputs: it writes to none of them. Its Meta kernel gives shapes, types and
strides of the results, so that a graph can be made without numbers.
"""

import math
import sys

import torch

_library = torch.library.Library("onepass", "DEF")


def define(schema, kernel, meta, autograd=None):
    """kernel: for the CPU and CUDA; autograd: what is called while PyTorch may record, where it is not left to the
    caller. It ends in the operator itself, within below_autograd()."""
    name = schema.partition("(")[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    _library.impl(name, meta, "Meta")
    if autograd is not None:
        _library.impl(name, autograd, "Autograd")


below_autograd = torch._C._AutoDispatchBelowAutograd


def not_asked_for(tensor):
    """In the place of a result that there is none of."""
    return tensor.new_empty(0)


# ---- PyTorch's counter of operations ---------------------------------------------------------------------------------


def _forward_flops(input_shape, weight_shape, *rest, **named):
    return 2 * math.prod(input_shape) * weight_shape[0]


def _backward_flops(upstream_shape, input_shape, weight_shape):
    """Of one product each for the gradient to the weight, if there is an input, and to the input."""
    return sum(2 * math.prod(upstream_shape) * shape[-1] for shape in (input_shape, weight_shape) if shape is not None)


def _linear_backward_flops(upstream_shape, input_shape, weight_shape, *rest, **named):
    return _backward_flops(upstream_shape, input_shape, weight_shape)


def _head_backward_flops(upstream_shape, output, product, mean, rstd, input_shape, weight_shape, *rest, **named):
    return _backward_flops(upstream_shape, input_shape, weight_shape)


_FLOPS = {"linear": _forward_flops, "head": _forward_flops, "head_kept": _forward_flops,
          "linear_backward": _linear_backward_flops, "head_backward": _head_backward_flops}


def tell_flop_counter():
    """torch.utils.flop_counter counts what it has formulas of. It is told once somebody has imported it: doing so here
    would take a fifth of a second."""
    counter = sys.modules.get("torch.utils.flop_counter")
    if counter is None or not hasattr(counter, "register_flop_formula"):
        return
    for name, formula in _FLOPS.items():
        if getattr(torch.ops.onepass, name) not in counter.flop_registry:
            counter.register_flop_formula(getattr(torch.ops.onepass, name))(formula)
