"""The C library: loaded by the first import of this module, which tells it the exceptions to raise."""

from onepass import _native, errors

_native.set_errors(errors.BY_STATUS)

__version__ = _native.version
kl = _native.kl
linear, linear_backward = _native.linear, _native.linear_backward
head, head_backward = _native.head, _native.head_backward
prepare_weight, prepare_weight_size = _native.prepare_weight, _native.prepare_weight_size

# The forms of kl: bit 0, the predictions are logarithms; bit 1, the targets are.
LOG_PREDICTIONS, LOG_TARGETS = 1, 2

REDUCTIONS = {
    "batchmean": _native.BATCHMEAN,
    "mean": _native.MEAN,
    "sum": _native.SUM,
    "rows": _native.ROWS,
    "none": _native.NONE,
}
SEMANTICS = {"strict": _native.STRICT, "finite": _native.FINITE}


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
