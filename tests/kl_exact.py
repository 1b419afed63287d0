"""Arrays as .npy bytes, and KL divergences worked out exactly: what test_tool.py compares the tool with.

Standard library only: struct for the types, math.fsum and decimal for the sums.
"""
import decimal
import itertools
import math
import struct

import make_npy_corpus as corpus

NAN, INF = math.nan, math.inf

# ---- arrays ----------------------------------------------------------------------------------------------------------

FORMATS = {"<f2": "e", "<f4": "f", "<f8": "d", "|b1": "B", "|u1": "B", "|i1": "b"}
EPSILON = {"<f2": 2.0**-10, "|V2": 2.0**-7, "<f4": 2.0**-23, "<f8": 2.0**-52}
SMALLEST = {"<f2": 2.0**-24, "|V2": 2.0**-133, "<f4": 2.0**-149, "<f8": 2.0**-1074}


def encode(descr, values):
    if descr not in ("|V2", "<V2"):
        return struct.pack("<%d%s" % (len(values), FORMATS[descr]), *values)
    halves = []
    for value in values:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        if value != value:
            halves.append(0x7FC0)
        else:  # nearest, ties to even
            halves.append(bits + 0x7FFF + (bits >> 16 & 1) >> 16)
    return struct.pack("<%dH" % len(halves), *halves)


def decode(descr, data):
    if descr not in ("|V2", "<V2"):
        size = struct.calcsize("<" + FORMATS[descr])
        return list(struct.unpack("<%d%s" % (len(data) // size, FORMATS[descr]), data))
    halves = struct.unpack("<%dH" % (len(data) // 2), data)
    return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]


def rounded(descr, values):
    """The values as an array of that type holds them."""
    return decode(descr, encode(descr, values))


def product(shape):
    return math.prod(shape)


def npy_bytes(descr, shape, values, fortran=False, version=(1, 0)):
    if fortran:  # from index order (last fastest) to first fastest
        indices = list(itertools.product(*(range(extent) for extent in reversed(shape))))
        strides = [product(shape[d + 1:]) for d in range(len(shape))]
        values = [values[sum(i * s for i, s in zip(reversed(index), strides))] for index in indices]
    header = corpus.literal("'%s'" % descr, str(fortran), str(tuple(shape)))
    return corpus.file_of(header, encode(descr, values), version)


def parse_npy(data):
    """descr, shape, values of a file the tool wrote; insists on what it promises."""
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    length = struct.unpack("<H", data[8:10])[0]
    assert (10 + length) % 64 == 0 and data[9 + length:10 + length] == b"\n", data[:128]
    header = eval(data[10:10 + length].decode("ascii"), {"__builtins__": {}})  # our own tool's output
    assert set(header) == {"descr", "fortran_order", "shape"} and header["fortran_order"] is False, header
    values = decode(header["descr"], data[10 + length:])
    assert len(values) == product(header["shape"]), header
    return header["descr"], header["shape"], values


# ---- the exact values ------------------------------------------------------------------------------------------------

LOG_CONTEXT = decimal.Context(prec=60)


def log(x):
    """IEEE logarithm: no exceptions."""
    if x != x or x < 0:
        return NAN
    return -INF if x == 0 else math.log(x) if x < INF else INF


def exp(x):
    return INF if x > 709.8 else math.exp(x)


def divide(a, b):
    if b == 0:
        return NAN if a == 0 or a != a else math.copysign(INF, a) * math.copysign(1, b)
    return a / b


def log_ratio(t, p):
    """log t - log p for finite t, p > 0, to about the last digit."""
    if 0.5 * p < t < 2 * p:
        return math.log1p((t - p) / p)
    ratio = t / p
    return math.log(ratio) if 1e-300 < ratio < 1e300 else math.log(t) - math.log(p)


def element(prediction, target, log_pred=False, log_target=False, finite=False, smallest=0.0):
    """value, d/d(prediction), d/d(target) as PyTorch >= 1.13 computes them; with `finite`, the limits at t = 0.

    `smallest` is the smallest positive number of the type computed in: what exp gives below its half is 0 there.
    """
    x = prediction if log_pred else log(prediction)
    t = exp(target) if log_target else target
    if log_target and t <= smallest / 2:
        t = 0.0
    d_pred = -t if log_pred else divide(-t, prediction)
    if finite and t == 0 and x == x and x < INF:
        return 0.0, (0.0 if not log_pred and prediction == 0 else d_pred), 0.0
    if log_target:
        value = t * (target - x)
        return value, d_pred, value + t
    if t == 0:
        return -t * x, d_pred, NAN
    if not log_pred and 0 < t < INF and 0 < prediction < INF:
        ratio = log_ratio(t, prediction)
        return t * ratio, d_pred, ratio + 1
    return t * log(t) - t * x, d_pred, log(t) + 1 - x


def terms(prediction, target, log_pred=False, log_target=False):
    """How large the numbers are that a result is made of: the scale of its rounding errors."""
    x = prediction if log_pred else log(prediction)
    y = target if log_target else log(target)
    t = exp(target) if log_target else target
    scale = t * (abs(x - y) if log_pred == log_target else abs(x) + abs(y))
    return scale if abs(scale) < INF else 0.0


def exact_sum(predictions, targets, log_pred=False, log_target=False):
    """The sum of the elements' values in decimal arithmetic: right to the last digit of a double."""
    total = decimal.Decimal(0)
    for prediction, target in zip(predictions, targets):
        a, b = decimal.Decimal(prediction), decimal.Decimal(target)
        t = LOG_CONTEXT.exp(b) if log_target else b
        y = b if log_target else LOG_CONTEXT.ln(b)
        x = a if log_pred else LOG_CONTEXT.ln(a)
        total = LOG_CONTEXT.add(total, LOG_CONTEXT.multiply(t, LOG_CONTEXT.subtract(y, x)))
    return float(total)


def softmax(generator, count, scale=1.0):
    weights = [math.exp(scale * generator.random()) for _ in range(count)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
