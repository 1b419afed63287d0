"""What this PyTorch has, and whether a call is plain eager work that may go straight to the library.

A call that is traced, transformed, watched by a mode or made with tensors of another class goes through the
dispatcher instead (kl_traced.py): there every part of PyTorch sees it.
"""

import functools

import torch

from onepass import _native, errors

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

# torch.library's operators with Meta kernels, autograd.Function.setup_context and torch.func: the traced way.
HAS_TRACED = VERSION >= (2, 1)

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _no(*arguments):
    return False


_functorch = getattr(torch._C, "_functorch", None)

is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _no)
is_batched = getattr(_functorch, "is_legacy_batchedtensor", _no)  # by torch.autograd.grad(is_grads_batched=True)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _no)
transforms = getattr(_functorch, "peek_interpreter_stack", _no)  # of torch.func's
is_tracing = torch._C._is_tracing  # by torch.jit.trace
_forward_mode = torch.autograd.forward_ad

if HAS_TRACED:

    def is_plain(a, b):
        """True if nobody but the library needs to see this call."""
        # Asked first: a compiler follows no further.
        if is_compiling():
            return False
        return (type(a) in _PLAIN and type(b) in _PLAIN and not _dispatch_modes() and not transforms()
                and not is_tracing() and _forward_mode._current_level < 0 and not a.is_meta)

else:

    def is_plain(a, b):
        """Always: an older PyTorch has no other way to go. What it would lose there is refused."""
        if _forward_mode._current_level >= 0:
            _refuse_tangents(a, b)
        return True


def _refuse_tangents(*tensors):
    if any(_forward_mode.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise errors.Unsupported("kl_div: forward-mode derivatives need PyTorch 2.1, this is %s" % torch.__version__)


if VERSION >= (2, 4):
    autocast_is_on = torch.is_autocast_enabled

else:

    def autocast_is_on(kind):
        """kind: "cpu" or "cuda"."""
        return torch.is_autocast_enabled() if kind == "cuda" else torch.is_autocast_cpu_enabled()


def autocasts(tensor):
    """True if PyTorch would compute kl_div in float32 here, whatever its inputs are."""
    kind = tensor.device.type
    return kind in ("cpu", "cuda") and autocast_is_on(kind)


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", _no)


_operators = 0  # of torch.ops.onepass, at work


def as_operator(kernel):
    """A kernel of torch.ops.onepass. Graphs call these, and the compiler's CUDA graphs have memory of their own, before
    they capture too: nothing that is allocated in such a call may be kept."""
    @functools.wraps(kernel)
    def run(*arguments, **named):
        global _operators
        _operators += 1
        try:
            return kernel(*arguments, **named)
        finally:
            _operators -= 1
    return run


def place_of(tensor):
    """Where work on the tensor is ordered: a key for what is kept between calls. None: nothing may be kept, since the
    memory is a CUDA graph's."""
    if not tensor.is_cuda:
        return "cpu"
    if _operators or _is_capturing():
        return None
    index = tensor.device.index
    return index, _raw_stream(index)


def workspace(tensor, size):
    """Bytes on the tensor's device: PyTorch's own memory, so that streams and graphs are right. In a tuple: for one
    call."""
    made = tensor.new_empty(size, dtype=torch.uint8)
    return (made,) if _operators else made


# {(device, dtype): tensor}
_scalars = {}


def empty_scalar(tensor, dtype):
    """An uninitialised 0-d tensor on the device of a tensor that is not a fake one. torch.empty_like is PyTorch's
    cheapest way to a new tensor."""
    key = tensor.device, dtype
    model = _scalars.get(key)
    if model is None:
        model = torch.empty((), dtype=dtype, device=tensor.device)  # not of the tensor's class
        if place_of(tensor) is not None:
            _scalars[key] = model
    return torch.empty_like(model)


threads = torch.get_num_threads  # as many as PyTorch uses now


_native.register_torch(torch.Tensor, {
    torch.float16: (_native.FLOAT, 16),
    torch.bfloat16: (_native.BFLOAT, 16),
    torch.float32: (_native.FLOAT, 32),
    torch.float64: (_native.FLOAT, 64),
    torch.uint8: (_native.UINT, 8),
    torch.int8: (_native.INT, 8),
    torch.int16: (_native.INT, 16),
    torch.int32: (_native.INT, 32),
    torch.int64: (_native.INT, 64),
    torch.bool: (_native.BOOL, 8),
}, torch.device("cpu"), _raw_stream)
