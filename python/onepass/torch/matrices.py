"""What linear and head share: which way a call goes, autocast, how fp32 matrices are multiplied.

There are three ways. A plain eager call goes straight to the library. What is compiled, exported or watched by a
dispatch mode sees an operator of the dispatcher. All others, torch.func, forward mode, torch.jit.trace, tensor classes
and torch.utils.flop_counter, get PyTorch's own operations, whose rules they know.
"""

import torch
from torch.autograd import forward_ad

from onepass import _native, fp32
from onepass.torch import eager

HALF = (torch.float16, torch.bfloat16)
FLOATS = HALF + (torch.float32, torch.float64)

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def are_plain(tensors):
    """True if nobody but the library needs to see a call with these tensors (the first is not None) and it can take
    them as they are: on one device that it knows, as strided memory."""
    if eager.is_compiling():  # asked first: a compiler follows no further
        return False
    if eager.is_tracing() or forward_ad._current_level >= 0:
        return False
    device = tensors[0].device
    if device.type not in ("cpu", "cuda"):
        return False
    for tensor in tensors:
        # The imaginary part of a conjugate is in memory without its sign.
        if tensor is not None and (type(tensor) not in _PLAIN or tensor.device != device
                                   or tensor.layout is not torch.strided or tensor.is_neg()):
            return False
    return eager.is_plain(tensors[0], tensors[0])


if eager.HAS_TRACED:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    def _counts_flops():
        """True within PyTorch's counter, which knows PyTorch's products."""
        return any(type(mode).__module__ == "torch.utils.flop_counter" for mode in _get_current_dispatch_mode_stack())

    def are_traceable(tensors):
        """True if an operator of the dispatcher can stand for a call that is not plain."""
        if forward_ad._current_level >= 0:
            return False
        if not eager.is_compiling():  # which does not follow what is asked here
            if eager.is_tracing() or eager.transforms() or _counts_flops():
                return False
        device = tensors[0].device
        if device.type not in ("cpu", "cuda", "meta"):
            return False
        for tensor in tensors:
            if tensor is not None and (tensor.device != device or tensor.layout is not torch.strided
                                       or not _is_traced_class(type(tensor))):
                return False
        return True

    def _is_traced_class(cls):
        # Fake and functional tensors: what PyTorch itself traces with.
        return cls in _PLAIN or cls.__module__.startswith("torch._subclasses.")

else:

    def are_traceable(tensors):
        """Never: an older PyTorch has its own operations only."""
        return False


def wants_gradients(*tensors):
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def computed_dtype(input):
    """What the library computes in."""
    return torch.float64 if input.dtype is torch.float64 else torch.float32


def stand_in(like, shape):
    """A tensor whose shape and type alone are looked at."""
    if like.numel():
        return like.as_strided(shape, (0,) * len(shape))
    return like.new_empty(()).expand(shape)


# ---- autocast --------------------------------------------------------------------------------------------------------

if eager.VERSION >= (2, 4):

    def autocast_dtype(tensor):
        """What autocast computes a linear layer in."""
        return torch.get_autocast_dtype(tensor.device.type)

else:

    def autocast_dtype(tensor):
        """What autocast computes a linear layer in."""
        return torch.get_autocast_gpu_dtype() if tensor.is_cuda else torch.get_autocast_cpu_dtype()


def no_autocast(tensor):
    """A context without autocast, for PyTorch's operations on this tensor and its like."""
    return torch.autocast("cuda" if tensor.is_cuda else "cpu", enabled=False)


# ---- products of float32 ---------------------------------------------------------------------------------------------

_FP32 = {"full": _native.FP32_FULL, "split": _native.FP32_SPLIT, "vendor": _native.FP32_VENDOR}[fp32.wanted()]


def products(tensor, exact_fp32=False):
    """How the library multiplies float32 on CUDA: exact_fp32, no tensor cores; else TF32 if PyTorch would, with the
    program's own setting; else as $ONEPASS_FP32_PRODUCTS said when this was imported."""
    if not tensor.is_cuda or tensor.dtype is not torch.float32:
        return _native.FP32_FULL
    if exact_fp32:
        return _native.FP32_VENDOR
    return _native.FP32_TF32 if fp32.allows_tf32() else _FP32
