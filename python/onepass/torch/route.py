"""The router: which way a call goes. Every operator asks here, in its forward and in its backward pass.

    EAGER        plain tensors, and nobody needs to see the call: straight to the library
    TRACED       torch.compile, torch.export, dispatch modes: an operator of PyTorch's dispatcher, torch.ops.onepass
    TRANSFORMED  torch.func, forward mode, torch.jit.trace, tensor classes, torch.utils.flop_counter: PyTorch's own
                 operations, whose rules they know (KL divergence has rules of its own)

It also has what all operators share: what this PyTorch can do, autocast, workspaces, how fp32 matrices are multiplied,
and the registration of operators with the dispatcher.
"""

import functools
import re

import torch
import torch.overrides
from torch.autograd import forward_ad

from onepass import _native, errors, fp32

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

# Operators with Meta kernels in torch.library, autograd.Function.setup_context and torch.func.
HAS_TRACED = VERSION >= (2, 1)

HALF = (torch.float16, torch.bfloat16)
FLOATS = HALF + (torch.float32, torch.float64)

EAGER, TRACED, TRANSFORMED = range(3)

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CPU = torch.device("cpu")


def _no(*arguments):
    return False


_functorch = getattr(torch._C, "_functorch", None)

is_compiling = _no  # before 2.1 a graph breaks at a call
if HAS_TRACED:
    is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling  # the second before 2.3
is_batched = getattr(_functorch, "is_legacy_batchedtensor", _no)  # by torch.autograd.grad(is_grads_batched=True)
if is_batched is _no and hasattr(torch._C, "_dispatch_keys"):  # before 2.3

    def is_batched(tensor):
        return re.search(r"\bBatched\b", repr(torch._C._dispatch_keys(tensor))) is not None

transforms = getattr(_functorch, "peek_interpreter_stack", _no)  # of torch.func's
is_tracing = torch._C._is_tracing  # by torch.jit.trace
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _no)


has_torch_function = torch.overrides.has_torch_function
if VERSION < (2, 2):

    def has_torch_function(tensors):
        """torch.overrides.has_torch_function, which a compiler before 2.2 does not follow."""
        return not is_compiling() and torch.overrides.has_torch_function(tensors)


# ---- the way ---------------------------------------------------------------------------------------------------------

if HAS_TRACED:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    def is_eager(a, b):
        """True if nobody but the library needs to see a call with these two tensors."""
        # Asked first: a compiler follows no further.
        return (not is_compiling() and type(a) in _PLAIN and type(b) in _PLAIN and not _dispatch_modes()
                and not transforms() and not is_tracing() and forward_ad._current_level < 0 and not a.is_meta)

    def _counts_flops():
        """True within PyTorch's counter, which knows PyTorch's products."""
        return any(type(mode).__module__ == "torch.utils.flop_counter" for mode in _get_current_dispatch_mode_stack())

    def _is_traced_class(cls):
        # Fake and functional tensors: what PyTorch itself traces with.
        return cls in _PLAIN or cls.__module__.startswith("torch._subclasses.")

    def _is_traceable(tensors):
        """True if an operator of the dispatcher can stand for a call that is not eager."""
        if forward_ad._current_level >= 0:
            return False
        if not is_compiling():  # which does not follow what is asked here
            if is_tracing() or transforms() or _counts_flops():
                return False
        device = tensors[0].device
        if device.type not in ("cpu", "cuda", "meta"):
            return False
        for tensor in tensors:
            if tensor is not None and (tensor.device != device or tensor.layout is not torch.strided
                                       or not _is_traced_class(tensor.__class__)):
                return False
        return True

else:

    def is_eager(a, b):
        """Always: an older PyTorch has no other way to go. What it would lose there is refused."""
        if forward_ad._current_level >= 0:
            _refuse_tangents(a, b)
        return True

    def _refuse_tangents(*tensors):
        if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
            raise errors.Unsupported("kl_div: forward-mode derivatives need PyTorch 2.1, this is %s" %
                                     torch.__version__)

    def _is_traceable(tensors):
        """Never: an older PyTorch has its own operations only."""
        return False


def _are_eager(tensors):
    """True if nobody but the library needs to see a call with these tensors and it can take them as they are: on one
    device that it knows, as strided memory."""
    if is_compiling() or is_tracing() or forward_ad._current_level >= 0 or _dispatch_modes() or transforms():
        return False
    if _native.are_plain(tensors):
        return True
    first = tensors[0]
    device = first.device
    if device != _CPU and device.type not in ("cpu", "cuda"):  # the name of a type is made anew whenever one asks
        return False
    for tensor in tensors:
        # The imaginary part of a conjugate is in memory without its sign.
        if tensor is not None and (type(tensor) not in _PLAIN or tensor.device != device
                                   or tensor.layout is not torch.strided or tensor.is_neg()):
            return False
    return True


def way(tensors):
    """The way of a call with these tensors; the first one is not None, others may be."""
    if _are_eager(tensors):
        return EAGER
    return TRACED if _is_traceable(tensors) else TRANSFORMED


_is_exporting = getattr(getattr(torch, "compiler", None), "is_exporting", None)


def is_compiling_backward():
    """True while torch.compile makes graphs of forward and backward together; not for an export, whose graph may never
    have a backward, which only 2.8 and later tell apart."""
    return (_is_exporting is not None and not _is_exporting()
            and torch._guards.TracingContext.try_get() is not None)


def sees_into_modules():
    """False where what a module's own dictionary holds cannot be asked: a compiler before 2.4 does not follow that."""
    return VERSION >= (2, 4) or not is_compiling()


_GLOBAL_HOOKS = [getattr(torch.nn.modules.module, "_global" + name)
                 for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
                 if hasattr(torch.nn.modules.module, "_global" + name)]


def has_global_hooks():
    """True if there are hooks that every module calls."""
    return any(_GLOBAL_HOOKS)


def is_stock(module, kind):
    """True if calling the module does what its class says, and nothing else, as far as can be seen."""
    if not sees_into_modules():
        return False
    state = module.__dict__
    return type(module) is kind and "forward" not in state and not (
        state["_forward_hooks"] or state["_forward_pre_hooks"] or state["_backward_hooks"]
        or state.get("_backward_pre_hooks"))


def wants_gradients(*tensors):
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


# ---- autocast --------------------------------------------------------------------------------------------------------

if VERSION >= (2, 4):
    autocast_is_on = torch.is_autocast_enabled

    def autocast_dtype(tensor):
        """What autocast computes a linear layer in."""
        return torch.get_autocast_dtype(tensor.device.type)

else:

    def autocast_is_on(kind):
        """kind: "cpu" or "cuda"."""
        return torch.is_autocast_enabled() if kind == "cuda" else torch.is_autocast_cpu_enabled()

    def autocast_dtype(tensor):
        """What autocast computes a linear layer in."""
        return torch.get_autocast_gpu_dtype() if tensor.is_cuda else torch.get_autocast_cpu_dtype()


def autocasts(tensor):
    """True if autocast is on for the tensor's device."""
    if tensor.is_cuda:
        return autocast_is_on("cuda")
    return autocast_is_on("cpu") and tensor.device.type == "cpu"


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


def computed_dtype(input):
    """What the library computes a product in."""
    return torch.float64 if input.dtype is torch.float64 else torch.float32


# ---- memory ----------------------------------------------------------------------------------------------------------

threads = torch.get_num_threads  # as many as PyTorch uses now

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", _no)

_operators = 0  # of torch.ops.onepass, at work


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


def is_same_number(a, b):
    """True if the host knows that two tensors of one number are equal. It looks on the CPU; on a GPU it would wait."""
    return not a.is_cuda and a.item() == b.item()


_scalars = {}  # {(device, dtype): tensor}


def empty_scalar(tensor, dtype):
    """An uninitialised 0-d tensor on the device of a tensor that is not a fake one. On a GPU torch.empty_like is
    PyTorch's cheapest way to a new tensor."""
    if not tensor.is_cuda:
        return _empty_on_cpu((), (), dtype)
    key = tensor.device, dtype
    model = _scalars.get(key)
    if model is None:
        model = torch.empty((), dtype=dtype, device=tensor.device)  # not of the tensor's class
        if place_of(tensor) is not None:
            _scalars[key] = model
    return torch.empty_like(model)


def stand_in(like, shape):
    """A tensor whose shape and type alone are looked at."""
    if like.numel():
        return like.as_strided(shape, (0,) * len(shape))
    return like.new_empty(()).expand(shape)


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

# True if _native.linear takes plain calls on the CPU: where the extension reads tensors without a Python call. Whether
# one is compiled or has tangents, the caller asks.
HAS_PLAIN = hasattr(torch.Tensor, "__dlpack_c_exchange_api__") and all(
    hasattr(torch._C, name) for name in ("_len_torch_function_stack", "_is_any_autocast_enabled"))


def _empty_on_cpu(size, stride, dtype):
    return torch.empty_strided(size, stride, dtype=dtype)


if HAS_PLAIN:
    _empty_on_cpu = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _empty_on_cpu)  # Inductor's, the quickest
    _native.register_plain(
        *_PLAIN, (torch._C._len_torch_function_stack, _dispatch_modes, transforms, is_tracing,
                  torch._C._is_any_autocast_enabled),
        torch.is_grad_enabled, torch.Tensor.is_neg, _empty_on_cpu, threads, workspace)


def empty(like, shape, dtype):
    """An uninitialised contiguous tensor on the device of a tensor that has numbers. shape: a plain tuple; those of
    torch.Size take longer to cut and to join."""
    if like.is_cuda or len(shape) > 2:
        return like.new_empty(shape, dtype=dtype)
    return _empty_on_cpu(shape, (shape[1] or 1, 1) if len(shape) == 2 else shape and (1,), dtype)


def empty_fake(like, shape, dtype):
    """The same of a tensor that may be a fake one."""
    return like.new_empty(shape, dtype=dtype)


# ---- torch.ops.onepass -----------------------------------------------------------------------------------------------


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


if HAS_TRACED:
    _library = torch.library.Library("onepass", "DEF")

below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", None)


def define(schema, kernel, meta, autograd=None):
    """Defines torch.ops.onepass.name(...), a plain function of its inputs: it writes to none of them.

    kernel     for the CPU and CUDA
    meta       gives shapes, types and strides of the results, so that a graph can be made without numbers
    autograd   called while PyTorch may record; it ends in the operator itself, within below_autograd()
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, as_operator(kernel), key)
    _library.impl(name, meta, "Meta")
    if autograd is not None:
        _library.impl(name, autograd, "Autograd")


def not_asked_for(tensor):
    """In the place of a result that there is none of: an operator of the dispatcher returns tensors alone."""
    return tensor.new_empty(0)


def all_results(like, results):
    """Results as an operator returns them."""
    return tuple(not_asked_for(like) if result is None else result for result in results)
