"""torch.ops.onepass: the operators that PyTorch's dispatcher knows of, and with it torch.compile and torch.export.

An operator is a plain function of its inputs: it writes to none of them. Its Meta kernel gives shapes, types and
strides of the results, so that a graph can be made without numbers.
"""

import torch

from onepass.torch import eager

_library = torch.library.Library("onepass", "DEF")


def define(schema, kernel, meta, autograd=None):
    """kernel: for the CPU and CUDA; autograd: what is called while PyTorch may record, where it is not left to the
    caller. It ends in the operator itself, within below_autograd()."""
    name = schema.partition("(")[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, eager.as_operator(kernel), key)
    _library.impl(name, meta, "Meta")
    if autograd is not None:
        _library.impl(name, autograd, "Autograd")


below_autograd = torch._C._AutoDispatchBelowAutograd


def not_asked_for(tensor):
    """In the place of a result that there is none of."""
    return tensor.new_empty(0)
