"""The C extension itself: wrong arguments raise and never crash, the three ways a tensor comes in give the same view,
and what was borrowed is given back once."""

import ctypes
import os
import subprocess
import sys
import time

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

from onepass import _native, errors, library  # noqa: E402

try:
    import torch

    import onepass.torch  # noqa: F401 (makes torch's tensors known)
except ImportError:
    torch = None

try:
    from conftest import SEED  # the one that is printed first
except ImportError:
    SEED = int(os.environ.get("ONEPASS_TEST_SEED") or time.time())

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
SUM, NONE = _native.SUM, _native.NONE


KL = _native.operators()["kl_probs_probs"][0]

# Arguments of _native.call for KL divergence.
PLACES = ["operator"] + list(_native.operators()["kl_probs_probs"][1]) + [
    "reduction", "semantics", "divisor", "products", "threads", "workspace"]


def kl(predictions, targets, value, reduction=SUM, **more):
    """_native.call of KL divergence with most arguments at their defaults."""
    given = dict(dict.fromkeys(PLACES), operator=KL, predictions=predictions, targets=targets, value=value,
                 reduction=reduction, semantics=0, divisor=0.0, products=0, threads=1)
    given.update(more)
    return _native.call(*[given[name] for name in PLACES])


def good():
    """Arguments that are right."""
    p, t = numpy.array([[0.5, 0.5]]), numpy.array([[0.25, 0.75]])
    return [KL, p, t, None, None, None, None, numpy.empty(()), None, None, SUM, 0, 0.0, 0, 1, None]


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [n for n in range(21) if n != 16])
def test_wrong_counts(count):
    arguments = (good() * 2)[:count]
    with pytest.raises(TypeError, match="16 arguments, not %d" % count if count else "the index of an operator"):
        _native.call(*arguments)
    with pytest.raises(TypeError):
        _native.call(*good(), threads=1)


def test_operators():
    """Every operator is described, and each can be asked for its workspace; what is no operator is refused."""
    found = _native.operators()
    assert [number for number, _, _ in found.values()] == list(range(len(found))) and len(found) >= 9
    assert found["linear"][1:] == (("input", "weight", "bias", "prepared", "output"), ())
    assert len(PLACES) == len(good()) and found["kl_probs_probs"][2] == ("options.reduction", "options.semantics",
                                                                         "options.divisor")
    p = numpy.array([[0.5, 0.5]])
    for name, (number, tensors, options) in found.items():
        for arguments in ((), (p,), (None,) * len(tensors) + (0,) * len(options) + (0, 1)):
            with pytest.raises(TypeError, match=name):
                _native.workspace_size(number, *arguments)
    assert _native.workspace_size(KL, p, *8 * (None,), SUM, 0, 0.0, 0, 1) == 0
    assert _native.workspace_size(found["linear"][0], p, p, None, None, numpy.empty((1, 1)), 0, 1) >= 0
    for number in (-1, len(found), 2**31):
        for function in (_native.call, _native.workspace_size):
            with pytest.raises(ValueError, match="operator"):
                function(number, *good()[1:])


def test_the_package_knows_the_order():
    """An operator whose description is another one than the package was written for fails at import."""
    with pytest.raises(ImportError, match="operator linear is .* the package calls it with weight input"):
        library._operator("linear", "weight input bias prepared output")


@pytest.mark.parametrize("name,arguments", [
    ("info", ()), ("info", (1,)), ("info", (1, 0, 0)), ("info", ("cpu", 0)), ("info", (None, None)), ("info", (1, "0")),
    ("register_torch", ()), ("register_torch", (1, {}, None, None)), ("register_torch", (int, [], None, None)),
    ("set_errors", ()), ("set_errors", ([],)), ("set_errors", (None,)),
])
def test_wrong_arguments_of_the_others(name, arguments):
    with pytest.raises(TypeError):
        getattr(_native, name)(*arguments)


def test_info():
    assert _native.info(_native.CPU, 0)["level"]
    for device in ((3, 0), (99, 0), (-1, 0), (_native.CPU, 5), (_native.CPU, -1), (_native.CUDA, -1),
                   (_native.CUDA, 1000)):
        with pytest.raises(errors.Error):
            _native.info(*device)
    for device in ((2**40, 0), (1, 2**70)):
        with pytest.raises((errors.Error, OverflowError, ValueError)):
            _native.info(*device)


@pytest.mark.parametrize("place", range(16))
def test_wrong_types(place):
    """Every kind of object in every place. In some places some of them are right; elsewhere they raise."""
    class Odd:
        def __index__(self):
            raise KeyError("index")

        def __float__(self):
            raise KeyError("float")

        def __dlpack__(self, **keywords):
            raise KeyError("dlpack")

        def __dlpack_device__(self):
            raise KeyError("device")

    objects = ["text", b"bytes", [1.0], (1, 2), {}, object(), Odd(), Odd, len, 1 + 2j, 10**30, -1, 2**31, 2**63,
               float("nan"), numpy.array(["a"]), numpy.array([None]), numpy.float64(1.0), type, _native]
    numbers = (0, 10, 11, 12, 13, 14)
    for thing in objects:
        arguments = good()
        arguments[place] = thing
        if PLACES[place] == "workspace" and callable(thing):
            continue  # never called: KL divergence needs no memory on the CPU
        if place in numbers and isinstance(thing, (int, float)) and (abs(thing) < 2 or PLACES[place] == "products"):
            continue  # a number that may be right; products are not looked at on the CPU
        with pytest.raises((TypeError, ValueError, OverflowError, KeyError, BufferError, errors.Error)):
            _native.call(*arguments)
    assert _native.call(*good()) is None


def test_no_outputs_and_no_inputs():
    for place, error in ((1, TypeError), (2, TypeError), (7, errors.InvalidArgument)):
        arguments = good()
        arguments[place] = None
        with pytest.raises(error, match="kl_probs_probs: .*%s" % PLACES[place]):
            _native.call(*arguments)


@pytest.mark.parametrize("name,number", [
    ("operator", 1000), ("operator", -1), ("reduction", 6), ("reduction", -1), ("reduction", 1.5), ("semantics", 2),
    ("threads", 5000), ("threads", -1), ("operator", 2**32), ("reduction", 2**32), ("semantics", 2**32 + 1),
    ("threads", 2**32 + 1)])
def test_numbers_out_of_range(name, number):
    """Also those that a cast to 32 bits would make right."""
    value = numpy.full((), 7.0)
    with pytest.raises((ValueError, errors.InvalidArgument), match=name):
        kl(good()[1], good()[2], value, **{name: number})
    assert value == 7, "nothing is written"


def test_outputs_are_checked():
    p, t = good()[1:3]
    for value in (numpy.empty((), numpy.float32), numpy.empty((2,)), numpy.empty((), numpy.int64), p, t[0, :1]):
        with pytest.raises(errors.Error):
            kl(p, t, value)


# ---- the three ways in -----------------------------------------------------------------------------------------------


class Lender:
    """Nothing but DLPack's two methods."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def views(tensor):
    """The tensor by the exchange API (where PyTorch has it), by its attributes, and by __dlpack__."""
    class ByAttributes(torch.Tensor):
        __dlpack_c_exchange_api__ = None

    class ByAnOldDraft(torch.Tensor):
        __dlpack_c_exchange_api__ = 12345

    return [tensor, tensor.as_subclass(ByAttributes), tensor.as_subclass(ByAnOldDraft), Lender(tensor.detach())]


@needs_torch
def test_three_ways_one_view():
    """The same bits whichever way each tensor came: shapes from 0 to 10 dimensions, any strides, every type."""
    generator = torch.Generator().manual_seed(SEED)
    print("seed: ONEPASS_TEST_SEED=%d" % SEED)
    base = torch.rand(8, 6, 10, generator=generator) + 0.1
    for shape in (lambda x: x, lambda x: x[0, 0, 0], lambda x: x[2], lambda x: x[::2, 1::2, ::3],
                  lambda x: x.transpose(0, 2), lambda x: x[:1].expand(8, 6, 10), lambda x: x[:0],
                  lambda x: x[3:, 2:, 1:], lambda x: x.reshape(2, 2, 2, 3, 2, 5, 2, 1, 1, 1)):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            x = shape(base.to(dtype))
            results = []
            for way in views(x):
                value = torch.zeros(x.shape, dtype=dtype)
                kl(way, shape((base + 0.5).to(dtype)), value, NONE)
                results.append(value)
                other = torch.zeros(x.shape, dtype=dtype)
                for out in views(other)[:3]:
                    kl(way, shape((base + 0.5).to(dtype)), out, NONE)
                    assert torch.equal(other, value)
                    other.zero_()
            assert all(torch.equal(results[0], r) for r in results[1:])
            assert results[0].numel() == 0 or bool(results[0].any())


@needs_torch
def test_the_exchange_api_is_used_where_it_is():
    has = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    assert has == (tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 10))


@needs_torch
def test_tensors_of_other_devices_and_types_are_refused():
    t = torch.rand(1, 2)
    for way in (0, 1):
        for thing in (t.to("meta"), t.to(torch.complex64), t.to(torch.int32), t.bool()):
            with pytest.raises((TypeError, RuntimeError, BufferError)):
                kl(views(thing)[way], t, torch.empty(()))


@needs_torch
def test_a_class_that_lies_about_itself():
    """Shapes and strides that are no tuples of integers, an address that is no number."""
    def lying(name, answer):
        return type("Lying", (torch.Tensor,), {"__dlpack_c_exchange_api__": None, name: answer})

    t = torch.rand(2, 3)
    for kind in (lying("shape", property(lambda self: [2, 3])), lying("shape", (2, "3")), lying("shape", None),
                 lying("stride", lambda self: [3, 1]), lying("stride", lambda self: (3,)),
                 lying("stride", lambda self: None), lying("data_ptr", lambda self: "here"), lying("data_ptr", None),
                 lying("dtype", float), lying("device", "cpu"), lying("device", None), lying("dtype", [])):
        with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
            kl(t.as_subclass(kind), t, torch.empty(()))


def test_objects_with_broken_dlpack():
    array = numpy.array([[0.5, 0.5]])
    used = array.__dlpack__()
    numpy.from_dlpack(type("Once", (Lender,), {"__dlpack__": lambda self, **k: used})(array))

    def broken(capsule=None, device=(1, 0)):
        return type("Broken", (), {"__dlpack__": lambda self, **k: capsule(),
                                   "__dlpack_device__": lambda self: device})()

    for thing in (broken(lambda: None), broken(lambda: 5), broken(lambda: used), broken(lambda: array),
                  broken(lambda: 1 / 0), broken(array.__dlpack__, device=()),
                  broken(array.__dlpack__, device=("cpu", 0)),
                  type("Half", (), {"__dlpack__": lambda self, **k: array.__dlpack__()})()):
        with pytest.raises((BufferError, TypeError, ZeroDivisionError, AttributeError, IndexError)):
            kl(thing, array, numpy.empty(()))
    assert kl(array, array, numpy.empty(())) is None


# ---- capsules made by hand -------------------------------------------------------------------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", DELETER), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class HandMade:
    """Four doubles in a DLPack capsule, with whatever is to be wrong about it."""

    def __init__(self, versioned=False, shape=(1, 4), strides=None, major=1, ndim=None, **fields):
        self.deleted = 0
        self.numbers = (ctypes.c_double * 4)(0.1, 0.2, 0.3, 0.4)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self.made = Versioned() if versioned else Managed()
        tensor = self.made.tensor
        values = dict(data=ctypes.addressof(self.numbers), device_type=1, code=2, bits=64, lanes=1)
        values.update(fields)
        for name, value in values.items():
            setattr(tensor, name, value)
        tensor.ndim = len(shape) if ndim is None else ndim
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if self.strides is not None:
            tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        self.made.deleter = DELETER(self.delete)
        if versioned:
            self.made.major = major
        self.name = b"dltensor_versioned" if versioned else b"dltensor"

    def delete(self, address):
        self.deleted += 1

    def __dlpack__(self, **keywords):
        if "max_version" in keywords and self.name == b"dltensor":
            raise TypeError("an old producer does not know max_version")
        return new_capsule(ctypes.addressof(self.made), self.name, None)

    def __dlpack_device__(self):
        return (self.made.tensor.device_type, self.made.tensor.device_id)


TARGETS = numpy.array([[0.25, 0.25, 0.25, 0.25]])


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("strides", [None, (4, 1), (77, 1)], ids=str)
def test_hand_made_capsules(versioned, strides):
    """Of both kinds, with strides and without; what was lent is given back exactly once."""
    lender = HandMade(versioned, strides=strides)
    value, expected = numpy.empty(()), numpy.empty(())
    kl(lender, TARGETS, value)
    kl(numpy.array([[0.1, 0.2, 0.3, 0.4]]), TARGETS, expected)
    assert value == expected and lender.deleted == 1
    with pytest.raises(errors.Error):
        kl(lender, TARGETS[:, :3], value)
    assert lender.deleted == 2, "after a failure too"
    with pytest.raises(TypeError):
        kl(lender, object(), value)
    assert lender.deleted == 3
    without = HandMade(versioned)
    without.made.deleter = DELETER()
    kl(without, TARGETS, value)  # a producer may have nothing to free


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("wrong", [
    dict(lanes=2), dict(bits=63), dict(bits=0), dict(code=9), dict(code=0), dict(ndim=-1), dict(shape=(1, -4)),
    dict(shape=(2**40, 2**40)), dict(device_type=0), dict(device_type=4), dict(device_type=77), dict(data=None),
    dict(shape=(1, 4), strides=(2**62, 2**62), bits=64), dict(ndim=10000),
], ids=str)
def test_capsules_that_are_wrong(versioned, wrong):
    """Refused by what they say, before anything is read; given back."""
    if "ndim" in wrong and wrong["ndim"] > 100:
        wrong = dict(wrong, shape=(1,) * 9999 + (4,))
    lender = HandMade(versioned, **wrong)
    value = numpy.full((), 7.0)
    if wrong.get("strides"):  # one element along each: such strides are never used
        kl(HandMade(versioned, shape=(1, 1), strides=wrong["strides"]), TARGETS[:, :1], value)
        return
    with pytest.raises((errors.Error, BufferError, TypeError, ValueError)):
        kl(lender, TARGETS, value)
    assert value == 7 and lender.deleted == 1


def test_a_version_of_the_future_is_refused():
    lender = HandMade(versioned=True, major=2)
    with pytest.raises(BufferError):
        kl(lender, TARGETS, numpy.empty(()))
    assert lender.deleted == 0, "what was not taken is the producer's"


def test_many_types_are_known():
    """More kinds of objects than the extension remembers."""
    expected = numpy.empty(())
    kl(TARGETS * 2, TARGETS, expected)
    for i in range(50):
        kind = type("Kind%d" % i, (Lender,), {})
        value = numpy.empty(())
        kl(kind(TARGETS * 2), TARGETS, value)
        assert value == expected


def test_errors_are_the_packages():
    assert errors.BY_STATUS[1] is errors.InvalidArgument and set(errors.BY_STATUS) == {1, 2, 3, 4, 5, 6}
    with pytest.raises(errors.InvalidArgument, match="reduction"):
        library.option("reduction", "x", library.REDUCTIONS)


# ---- fuzzing ---------------------------------------------------------------------------------------------------------

FUZZ = r"""
import faulthandler, random, sys, warnings
faulthandler.enable()
warnings.simplefilter("ignore")
import numpy
from onepass import _native
from onepass import arrays
try:
    import torch, onepass.torch
except ImportError:
    torch = None
seed, rounds = int(sys.argv[1]), int(sys.argv[2])
choose = random.Random(seed)
# Plain arrays, views into one buffer (overlaps), odd types and layouts; numbers of every size; things that are neither.
buffer = numpy.random.RandomState(seed % 2**32).rand(64)
shapes = [(), (1,), (4,), (2, 4), (4, 2), (2, 2, 2), (0, 3), (3, 0), (1, 1, 1, 1, 1, 1, 1, 1, 4)]
def things(shape=None):
    shape = choose.choice(shapes) if shape is None else shape
    count = int(numpy.prod(shape))
    start = choose.randrange(32)
    made = buffer[start:start + count].reshape(shape)
    dtype = choose.choice(["f8", "f4", "f2", "i8", "u1", "?", "c16", ">f8"])
    if choose.random() < 0.1:
        made = made.astype(dtype)
    elif choose.random() < 0.5:
        made = made.copy()
    if choose.random() < 0.1:
        made = made.T
    if torch is not None and choose.random() < 0.3 and made.dtype.isnative:
        made = torch.from_numpy(numpy.array(made))
        if choose.random() < 0.3 and made.is_floating_point():
            made = made.to(torch.bfloat16)
        if choose.random() < 0.1:
            made = made.to("meta")
    return made
odd = [None, None, None, "sum", b"x", 1.5, -1, 0, 1, 2, 3, 4, 5, 2**31, 2**32, 2**63, 10**30, float("nan"),
       float("inf"), object(), [], {}, int, len, 3j, True, numpy.float64(2), choose]
passed = 0
for i in range(rounds):
    shape, reduction = choose.choice(shapes), choose.randrange(6)
    value = shape if reduction == 4 else shape[:-1] if reduction == 3 else ()
    divisor = 2.5 if reduction == 5 else 0.0
    right = [choose.randrange(4), things(shape), things(shape), None, None, None, None, things(value), None, None,
             reduction, choose.randrange(2), divisor, 0, choose.randrange(3), None]
    arguments = [choose.choice(odd) if choose.random() < 0.02 else things() if choose.random() < 0.02 else thing
                 for thing in right]
    if choose.random() < 0.02:
        arguments = arguments[:choose.randrange(17)]
    try:
        if i % 3 or torch is None:
            _native.call(*arguments)
        else:
            names = ("divisor", "row_weights", "row_mask", "semantics")
            keywords = {n: choose.choice(odd + [things(), "strict", "finite"]) for n in names if choose.random() < 0.2}
            keywords["reduction"] = choose.choice(["none", "rows", "sum", "mean", "batchmean", 3, None])
            function = choose.choice([onepass.torch.kl_div, onepass.torch.kl_div_probs, arrays.kl_div])
            function(choose.choice(odd) if choose.random() < 0.1 else things(shape), things(shape), **keywords)
        passed += 1
    except SystemError:
        raise
    except Exception:
        pass
print("passed", passed, "of", rounds)
"""


def test_garbage(tmp_path):
    """A few thousand calls with arguments by chance, in a process of their own: exceptions, never a crash, never an
    error of the interpreter's own (SystemError: a result without a value, or a value beside an exception)."""
    program = tmp_path / "fuzz.py"
    program.write_text(FUZZ, encoding="utf-8")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    for i in range(2):
        print("seed: ONEPASS_TEST_SEED=%d (%d)" % (SEED, SEED + i))
        done = subprocess.run([sys.executable, str(program), str(SEED + i), "4000"], env=environment, timeout=1800,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        assert done.returncode == 0, "%d\n%s" % (done.returncode, done.stderr[-4000:])
        count = int(done.stdout.split()[1])
        assert 200 < count < 3600, "neither all refused nor all accepted: %s" % done.stdout
