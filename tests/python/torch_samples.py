"""What the tests of onepass.torch share: seeded inputs in many types and layouts, the exact values, what PyTorch has.

The exact values are NumPy's long doubles (64 bits of fraction on x86, 113 on 64-bit Arm), computed from the very
numbers the inputs hold. Inputs are random: each test prints its seed, and ONEPASS_TEST_SEED repeats it.
"""

import contextlib
import math
import os
import time
import warnings
import zlib

import numpy
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.nn.functional as F  # noqa: E402

import onepass.torch  # noqa: E402
from onepass import _native, library  # noqa: E402
from onepass.torch import route  # noqa: E402

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

try:
    from conftest import SEED  # the one that is printed first
except ImportError:
    SEED = int(os.environ.get("ONEPASS_TEST_SEED") or time.time())

needs_func = pytest.mark.skipif(VERSION < (2, 1), reason="PyTorch %d.%d has no torch.func that onepass uses" % VERSION)
needs_compile = pytest.mark.skipif(VERSION < (2, 1),
                                   reason="PyTorch %d.%d has no torch.compile that onepass uses" % VERSION)
needs_whole_graphs = pytest.mark.skipif(VERSION < (2, 4),
                                        reason="PyTorch %d.%d follows no look into a module" % VERSION)
needs_func_in_graphs = pytest.mark.skipif(VERSION < (2, 4),
                                          reason="PyTorch %d.%d follows no torch.func in torch.compile" % VERSION)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

STRICT_IN_TORCH = VERSION >= (1, 13)  # PyTorch's own kl_div has the special values of strict semantics

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FUNCTIONS = ("kl_div", "kl_div_probs")
REDUCTIONS = ("none", "mean", "batchmean", "sum")  # PyTorch's
FORMS = [(function, log_target) for function in FUNCTIONS for log_target in (False, True)]


def random(name):
    """A generator of its own for a test: the same whatever else runs. Prints what repeats it."""
    print("seed: ONEPASS_TEST_SEED=%d (%s)" % (SEED, name))
    return torch.Generator().manual_seed((SEED * 1000003 + zlib.crc32(name.encode())) % 2**63)


@contextlib.contextmanager
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---- how float32 is multiplied on CUDA -------------------------------------------------------------------------------


@contextlib.contextmanager
def tf32(allowed):
    """PyTorch's setting."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class OnCuda:
    """What route.products looks at, of a tensor that this machine may not have."""

    def __init__(self, dtype):
        self.dtype, self.is_cuda = dtype, True


OPERATORS = {number: name for name, (number, *_) in _native.operators().items()}


def watched(monkeypatch, *operators):
    """What the library is asked for: a list of (operator, arguments), of the operators that are named."""
    seen, call, linear = [], library.call, _native.linear

    def watch(number, *arguments):
        if OPERATORS[number] in operators:
            seen.append((OPERATORS[number], arguments))
        return call(number, *arguments)

    def watch_linear(number, *tensors):
        """A plain call on the CPU, as the library gets it."""
        output = linear(number, *tensors)
        if isinstance(output, torch.Tensor) and "linear" in operators:
            seen.append(("linear", tensors + (None, output, _native.FP32_FULL, torch.get_num_threads(), None)))
        return output
    monkeypatch.setattr(library, "call", watch)
    monkeypatch.setattr(_native, "linear", watch_linear)
    return seen


@contextlib.contextmanager
def products_asked(calls, monkeypatch):
    """A function: [(operator, products)] of the calls since it was asked last. calls: a list of (operator, arguments).
    All tensors are taken for CUDA's, where the default is FP32_SPLIT; on the CPU the library does not look at it."""
    products = route.products
    monkeypatch.setattr(route, "products", lambda tensor, *exact: products(OnCuda(tensor.dtype), *exact))
    monkeypatch.setattr(route, "_FP32", _native.FP32_SPLIT)
    monkeypatch.setattr(_native, "linear", lambda *arguments: None)  # which is the CPU's

    def ask():
        found = [(name, arguments[-3]) for name, arguments in calls]
        calls.clear()
        return found
    with tf32(False):
        yield ask


# ---- inputs ----------------------------------------------------------------------------------------------------------


def probabilities(generator, shape, dtype=torch.float32, scale=3.0):
    """Rows that add up to 1 (but for rounding), all positive in float16 too."""
    values = (torch.rand(shape, generator=generator, dtype=torch.float64) * scale).exp()
    return (values / values.sum(-1, keepdim=True) if len(shape) else 1 / (1 + values)).to(dtype)


def pair(generator, shape, function="kl_div", log_target=False, dtypes=(torch.float32, torch.float32)):
    """(predictions, targets) in the form the function takes them."""
    predictions = probabilities(generator, shape, torch.float64)
    targets = probabilities(generator, shape, torch.float64)
    return ((predictions.log() if function == "kl_div" else predictions).to(dtypes[0]),
            (targets.log() if log_target else targets).to(dtypes[1]))


def layouts(tensor):
    """{name: the same numbers in another layout of memory}, for 2-d tensors."""
    rows, columns = tensor.shape
    stepped = tensor.new_zeros(2 * rows, 3 * columns)[::2, 1::3]
    stepped.copy_(tensor)
    late = tensor.new_zeros(rows * columns + 1)[1:].view(rows, columns)
    late.copy_(tensor)
    return {
        "contiguous": tensor.contiguous(),
        "transposed": tensor.t().contiguous().t(),
        "stepped": stepped,
        "not at the start": late,
    }


def leaf(tensor):
    return tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_()


# ---- what PyTorch does, and the exact values -------------------------------------------------------------------------


def theirs(function, predictions, targets, **options):
    """PyTorch's way to the same number. Before 1.13 its backward pass knows no broadcasting and special values differ:
    there it is the later versions' formula, in PyTorch's operations."""
    predictions = predictions if function == "kl_div" else predictions.log()
    with no_warnings():
        return (F.kl_div if STRICT_IN_TORCH else _later_kl_div)(predictions, targets, **options)


def _later_kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    total = target.exp() * (target - input) if log_target else torch.xlogy(target, target) - target * input
    how = reduction
    if size_average is not None or reduce is not None:
        how = torch.nn._reduction.legacy_get_string(size_average, reduce)
    if how != "none":
        total = total.mean() if how == "mean" else total.sum()
    return total / input.shape[0] if reduction == "batchmean" and input.dim() else total


def ours(function, predictions, targets, **options):
    with no_warnings():
        return getattr(onepass.torch, function)(predictions, targets, **options)


def exact(function, predictions, targets, log_target=False):
    """(value, derivative to predictions, to targets) of each element, as long doubles; finite positive numbers only."""
    with no_warnings(), numpy.errstate(all="ignore"):
        p, t = (tensor.detach().double().cpu().numpy().astype(numpy.longdouble) for tensor in (predictions, targets))
        log_p = p if function == "kl_div" else numpy.log(p)
        log_t = t if log_target else numpy.log(t)
        whole_t = numpy.exp(t) if log_target else t
        ratio = log_t - log_p
        if function == "kl_div_probs" and not log_target:  # log(t/p) keeps its digits near t = p
            near = numpy.abs(t - p) < 0.5 * p
            ratio = numpy.where(near, numpy.log1p((t - p) / p), ratio)
        value = whole_t * ratio
        return (value, -whole_t / (1 if function == "kl_div" else p),
                value + whole_t if log_target else ratio + 1)


def magnitude(function, predictions, targets, log_target):
    """What an element is the difference of, t |log t| + t |log p|: the scale of its rounding errors."""
    with numpy.errstate(all="ignore"):
        p, t = as_exact(predictions), as_exact(targets)
        log_p = p if function == "kl_div" else numpy.log(p)
        log_t = t if log_target else numpy.log(t)
        return numpy.exp(log_t) * (numpy.abs(log_t) + numpy.abs(log_p))


def reduce_exact(elements, reduction, shape, divisor=None):
    """The reduction of an array of long doubles."""
    if reduction == "none":
        return elements
    if reduction == "rows":
        return elements.sum(-1) if elements.ndim else elements
    over = {"sum": divisor or 1, "mean": elements.size, "batchmean": shape[0] if len(shape) else 1}[reduction]
    return elements.sum() / over


def ulp(dtype, values):
    """The spacing of the type's numbers at the absolute values."""
    info = torch.finfo(dtype)
    magnitude = numpy.maximum(numpy.abs(numpy.asarray(values, dtype=numpy.float64)), info.tiny)
    return info.eps * 2.0 ** numpy.floor(numpy.log2(magnitude))


def as_exact(tensor):
    return tensor.detach().double().cpu().numpy().astype(numpy.longdouble)


def largest(values):
    """The largest of an array of errors; NaN is infinite here."""
    values = numpy.asarray(values, dtype=numpy.float64)
    return float(numpy.where(numpy.isnan(values), math.inf, values).max()) if values.size else 0.0


def assert_close(found, expected, ulps, scale=None):
    """Each element is within `ulps` of its type's spacing at the expected value (or at `scale`, if that is larger).
    ulps: a number, or one for each element."""
    expected = numpy.asarray(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    at = numpy.abs(expected) if scale is None else numpy.maximum(numpy.abs(expected), scale)
    assert numpy.isfinite(at).all(), "the expected values must be finite"
    error = numpy.abs(as_exact(found) - expected) / ulp(found.dtype, at)
    assert largest(error / ulps) <= 1, "%g ulp of %s off, %g of the bound" % (largest(error), found.dtype,
                                                                            largest(error / ulps))


def gradient_ulps(predictions, targets, divisor):
    """What docs/numerics.md (Errors) derives for the gradient to probabilities from logarithms of targets, with a
    divisor: in ulps of the gradient, element by element. fp32 and fp64."""
    dtype = predictions.dtype
    p, t = as_exact(predictions), numpy.exp(as_exact(targets))
    gradient = t / p / divisor
    factor = numpy.longdouble(numpy.dtype(str(dtype).split(".")[1]).type(1.0 / divisor))
    bound = 1.05 * ulp(dtype, t) / p / divisor + 0.5 * ulp(dtype, t / p) / divisor
    if factor * divisor != 1:
        bound = bound + abs(factor * divisor - 1) * gradient + 0.5 * ulp(dtype, gradient)
    return bound * (1 + 8 * torch.finfo(dtype).eps) / ulp(dtype, gradient)


def same(a, b):
    """Equal bit for bit, but that every NaN is the same and zeros have no sign."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
