"""onepass.kl_div and kl_div_probs: NumPy arrays and whatever else speaks DLPack, without PyTorch."""

import itertools
import math
import os
import subprocess
import sys
import time

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")

import onepass  # noqa: E402

try:
    from conftest import SEED  # the one that is printed first
except ImportError:
    SEED = int(os.environ.get("ONEPASS_TEST_SEED") or time.time())

FORMS = list(itertools.product(("kl_div", "kl_div_probs"), (False, True)))
REDUCTIONS = ("none", "rows", "sum", "mean", "batchmean")
TYPES = (numpy.float64, numpy.float32, numpy.float16)


def random(name):
    print("seed: ONEPASS_TEST_SEED=%d (%s)" % (SEED, name))
    return numpy.random.RandomState([SEED % 2**32] + list(name.encode()))


def pair(generator, shape, function="kl_div_probs", log_target=False, types=(numpy.float64, numpy.float64)):
    made = []
    for is_log, dtype in zip((function == "kl_div", log_target), types):
        values = numpy.exp(generator.rand(*shape) * 3)
        values = values / values.sum(-1, keepdims=True) if shape else 1 / (1 + values)
        made.append(numpy.asarray(numpy.log(values) if is_log else values).astype(dtype))
    return made


def exact(function, predictions, targets, log_target):
    """(value, derivatives to predictions and targets, magnitude) of each element, in long doubles."""
    p, t = (numpy.asarray(x).astype(numpy.longdouble) for x in (predictions, targets))
    log_p = p if function == "kl_div" else numpy.log(p)
    log_t = t if log_target else numpy.log(t)
    whole = numpy.exp(log_t) if log_target else t
    value = whole * (log_t - log_p)
    return (value, -whole / (1 if function == "kl_div" else p), value + whole if log_target else log_t - log_p + 1,
            whole * (abs(log_t) + abs(log_p)))


def reduced(elements, reduction):
    if reduction in ("none", "rows"):
        return elements if reduction == "none" or not elements.ndim else elements.sum(-1)
    over = {"sum": 1, "mean": elements.size, "batchmean": elements.shape[0] if elements.ndim else 1}[reduction]
    return elements.sum() / over


def close(found, expected, scale, ulps=4):
    """Within some ulps of the result's type at the scale of its rounding errors."""
    found = numpy.asarray(found)
    assert found.shape == numpy.shape(expected)
    error = abs(found.astype(numpy.longdouble) - expected)
    return bool((error <= ulps * numpy.finfo(found.dtype).eps * numpy.maximum(abs(expected), scale)).all())


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", list(itertools.product(TYPES, TYPES)),
                         ids=lambda t: "%s-%s" % (t[0].__name__, t[1].__name__))
@pytest.mark.parametrize("function,log_target", FORMS)
def test_types(function, log_target, types):
    """Values of the promoted type, gradients of their own input's, for every reduction."""
    inputs = pair(random("types"), (6, 21), function, log_target, types)
    value, to_predictions, to_targets, scale = exact(function, *inputs, log_target)
    for reduction in REDUCTIONS:
        options = {"reduction": reduction, "log_target": log_target}
        found = getattr(onepass, function)(*inputs, **options)
        assert found.dtype == numpy.result_type(*types)
        assert close(found, reduced(value, reduction), reduced(scale, reduction))
        again, *gradients = getattr(onepass, function)(*inputs, gradients=True, **options)
        assert numpy.array_equal(found, again)
        over = {"mean": value.size, "batchmean": 6}.get(reduction, 1)
        for gradient, expected, x in zip(gradients, (to_predictions, to_targets), inputs):
            assert gradient.dtype == x.dtype and gradient.shape == x.shape
            assert close(gradient, expected / over, 3 / over)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 3, 4, 5), (1, 1, 1, 1, 2, 1, 2, 1, 2, 3)], ids=str)
def test_shapes(shape):
    for function, log_target in FORMS:
        inputs = pair(random("shapes"), shape, function, log_target)
        value, _, _, scale = exact(function, *inputs, log_target)
        for reduction in REDUCTIONS:
            found = getattr(onepass, function)(*inputs, reduction=reduction, log_target=log_target)
            assert close(found, reduced(value, reduction), reduced(scale, reduction))
            if numpy.shape(found) == ():
                assert isinstance(found, numpy.float64), "a number, not an array without dimensions"


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_empty(shape):
    empty = numpy.empty(shape)
    assert onepass.kl_div(empty, empty, reduction="sum") == 0
    assert math.isnan(onepass.kl_div(empty, empty, reduction="mean"))
    assert onepass.kl_div(empty, empty, reduction="none").shape == shape
    assert numpy.array_equal(onepass.kl_div(empty, empty, reduction="rows"), numpy.zeros(shape[:-1]))


def test_argument_order():
    """KL(targets || predictions): the value nobody gets by swapping them, from probabilities written down."""
    p, t = numpy.array([[0.5, 0.5]]), numpy.array([[0.9, 0.1]])
    expected = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert onepass.kl_div_probs(p, t) == pytest.approx(expected, rel=1e-14)
    assert onepass.kl_div(numpy.log(p), t) == pytest.approx(expected, rel=1e-14)
    assert onepass.kl_div_probs(t, p) != pytest.approx(expected, rel=1e-2)


# ---- layouts ---------------------------------------------------------------------------------------------------------


def layouts(array):
    """The same numbers: Fortran order, steps, steps backwards, unaligned, read-only."""
    rows, columns = array.shape
    wide = numpy.empty((2 * rows, 3 * columns), array.dtype)
    wide[::2, ::3] = array
    unaligned = numpy.empty(array.nbytes + 1, numpy.uint8)[1:].view(array.dtype).reshape(array.shape)
    unaligned[...] = array
    read_only = array.copy()
    read_only.flags.writeable = False
    constant = numpy.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
    assert not constant.flags.writeable and not unaligned.flags.aligned
    return [array, numpy.asfortranarray(array), wide[::2, ::3], array[::-1, ::-1].copy()[::-1, ::-1],
            array[:, ::-1].copy()[:, ::-1], unaligned, read_only, constant]


@pytest.mark.parametrize("function,log_target", FORMS)
def test_layouts(function, log_target):
    inputs = pair(random("layouts"), (5, 9), function, log_target)
    value, to_predictions, to_targets, scale = exact(function, *inputs, log_target)
    for a, b in itertools.product(layouts(inputs[0]), layouts(inputs[1])):
        found, *gradients = getattr(onepass, function)(a, b, reduction="none", log_target=log_target, gradients=True)
        assert close(found, value, scale)
        assert close(gradients[0], to_predictions, 0) and close(gradients[1], to_targets, 3)
        assert found.flags.writeable and not numpy.shares_memory(found, a)


def test_broadcast_arrays():
    """numpy.broadcast_to, which the documentation recommends, gives read-only arrays with strides of 0."""
    p, t = pair(random("broadcast"), (4, 5))
    whole = numpy.tile(p[:1], (4, 1))
    expected = onepass.kl_div_probs(whole, t, gradients=True)
    found = onepass.kl_div_probs(numpy.broadcast_to(p[0], (4, 5)), t, gradients=True)
    assert all(numpy.allclose(a, b, rtol=1e-14, atol=0) for a, b in zip(found, expected))


def test_inputs_are_only_read():
    inputs = pair(random("only read"), (50, 40))
    before = [x.tobytes() for x in inputs]
    for reduction in REDUCTIONS:
        onepass.kl_div_probs(*inputs, reduction=reduction, gradients=True)
    assert [x.tobytes() for x in inputs] == before


def test_bits_do_not_depend_on_threads():
    inputs = pair(random("threads"), (300, 500))
    results = [onepass.kl_div_probs(*inputs, gradients=True, threads=n) for n in (0, 1, 2, 7)]
    for other in results[1:]:
        assert all(numpy.array_equal(a, b) for a, b in zip(results[0], other))


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bool, numpy.uint8])
def test_weights_and_masks(kind):
    generator = random("weights and masks")
    inputs = pair(generator, (3, 4, 7))
    mask = (generator.rand(3, 8) < 0.6)[:, ::2].astype(kind) * kind(1)
    weights = generator.rand(4, 3).T.astype(numpy.float32)
    value, to_predictions, to_targets, scale = exact("kl_div_probs", *inputs, False)
    inputs[0][mask == 0] = math.nan
    factor = (weights.astype(numpy.longdouble) * (mask != 0))[..., None]
    for reduction in REDUCTIONS:
        found, *gradients = onepass.kl_div_probs(*inputs, reduction=reduction, row_weights=weights, row_mask=mask,
                                                 gradients=True)
        assert close(found, reduced(value * factor, reduction), reduced(scale * factor, reduction))
        over = {"mean": value.size, "batchmean": 3}.get(reduction, 1)
        assert close(gradients[0], to_predictions * factor / over, 0)
        assert close(gradients[1], to_targets * factor / over, 3 / over)
    mask.flags.writeable = False
    assert numpy.isfinite(onepass.kl_div_probs(*inputs, row_mask=mask))


def test_divisor_and_semantics():
    p, t = pair(random("divisor"), (4, 5))
    assert onepass.kl_div_probs(p, t, reduction="sum", divisor=2) == pytest.approx(
        onepass.kl_div_probs(p, t, reduction="sum") / 2, rel=1e-14)
    p[0, 0] = t[0, 0] = 0
    assert math.isnan(onepass.kl_div_probs(p, t))
    value, *gradients = onepass.kl_div_probs(p, t, semantics="finite", gradients=True)
    assert math.isfinite(value) and all(numpy.isfinite(g).all() for g in gradients)


P, T = numpy.full((3, 4), 0.25), numpy.full((3, 4), 0.25)

# (arguments, keywords, exception, what its text must say)
REFUSED = {
    "a list": (([[0.25]], T), {}, TypeError, ["predictions", "list", "__dlpack__"]),
    "None": ((P, None), {}, TypeError, ["targets", "NoneType"]),
    "integers": ((P.astype(int), T), {}, onepass.Unsupported, ["predictions", "float32"]),
    "complex": ((P, T.astype(complex)), {}, onepass.Unsupported, ["targets"]),
    "shapes": ((P, T[:2]), {}, onepass.InvalidArgument, ["targets", "[2, 4]", "[3, 4]"]),
    "big-endian": ((P.astype(">f8"), T), {}, BufferError, ["byte order"]),
    "long doubles": ((P.astype(numpy.longdouble), T), {}, BufferError, []),
    "objects": ((P.astype(object), T), {}, BufferError, []),
    "text": ((P.astype(str), T), {}, (BufferError, TypeError), []),
    "a masked array": ((numpy.ma.masked_array(P, P > 1), T), {}, onepass.Unsupported, ["predictions", "masked array"]),
    "masked weights": ((P, T), {"row_weights": numpy.ma.masked_array([1.0] * 3, [0, 1, 0])}, onepass.Unsupported,
                       ["row_weights", "masked array"]),
    "reduction": ((P, T), {"reduction": "avg"}, onepass.InvalidArgument, ["reduction", "'avg'"]),
    "semantics": ((P, T), {"semantics": 1}, onepass.InvalidArgument, ["semantics", "1"]),
    "divisor": ((P, T), {"divisor": 2}, onepass.InvalidArgument, ["divisor", "'batchmean'"]),
    "divisor 0": ((P, T), {"divisor": 0, "reduction": "sum"}, onepass.InvalidArgument, ["divisor"]),
    "weights' shape": ((P, T), {"row_weights": numpy.ones(4)}, onepass.InvalidArgument, ["row_weights", "[4]"]),
    "weights' type": ((P, T), {"row_weights": numpy.arange(3)}, onepass.Unsupported, ["row_weights"]),
    "a list of weights": ((P, T), {"row_weights": [1.0] * 3}, TypeError, ["row_weights", "list"]),
    "a mask of floats": ((P, T), {"row_mask": numpy.ones(3)}, onepass.Unsupported, ["row_mask", "bool or uint8"]),
    "threads": ((P, T), {"threads": -1}, onepass.InvalidArgument, ["threads", "-1"]),
    "many threads": ((P, T), {"threads": 2**32 + 1}, ValueError, ["threads", "4294967297"]),
    "threads in words": ((P, T), {"threads": "two"}, TypeError, []),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    arguments, keywords, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        onepass.kl_div_probs(*arguments, **keywords)
    for word in words:
        assert word in str(caught.value), str(caught.value)


# ---- other arrays ----------------------------------------------------------------------------------------------------


class Lender:
    """An array of somebody else's: nothing but DLPack's two methods."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_other_arrays():
    p, t = pair(random("other arrays"), (4, 5))
    weights = numpy.array([1.0, 2.0, 3.0, 4.0])
    found = onepass.kl_div_probs(Lender(p), Lender(t), gradients=True, row_weights=Lender(weights))
    expected = onepass.kl_div_probs(p, t, gradients=True, row_weights=weights)
    assert all(isinstance(a, (numpy.ndarray, numpy.generic)) for a in found)
    assert all(numpy.array_equal(a, b) for a, b in zip(found, expected))


def test_torch_tensors():
    """On the CPU they are arrays like others, unless they need a gradient or have a type NumPy does not know."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    p, t = pair(random("torch tensors"), (4, 5))
    expected = onepass.kl_div_probs(p, t)
    lent = torch.from_numpy(p), torch.from_numpy(t)
    for a, b in (lent, (lent[0], t), (p, lent[1].t().t())):
        assert onepass.kl_div_probs(a, b) == expected
    with pytest.raises((BufferError, RuntimeError), match="gradient"):
        onepass.kl_div_probs(torch.from_numpy(p).requires_grad_(), t)
    with pytest.raises((BufferError, RuntimeError)):
        onepass.kl_div_probs(torch.from_numpy(p).bfloat16(), t)


# ---- the import ------------------------------------------------------------------------------------------------------


def run(code):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    return subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=900)


def test_import_is_free():
    """`import onepass` loads neither NumPy nor PyTorch nor the C library; the first use loads what it needs."""
    done = run("import sys; before = set(sys.modules); import onepass\n"
               "heavy = {'numpy', 'torch', 'onepass._native', 'onepass.library', 'onepass.arrays'} & set(sys.modules)\n"
               "assert not heavy, heavy\n"
               "assert 'kl_div' in dir(onepass) and onepass.Error and 'onepass._native' not in sys.modules\n"
               "assert onepass.__version__ and 'onepass._native' in sys.modules and 'numpy' not in sys.modules\n"
               "onepass.kl_div\nassert 'numpy' in sys.modules and 'torch' not in sys.modules\n"
               "try: onepass.nothing\nexcept AttributeError as error: assert 'nothing' in str(error)\n"
               "else: raise SystemExit('no AttributeError')\nprint('done')")
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_names():
    assert set(onepass.__all__) <= set(dir(onepass))
    for name in onepass.__all__:
        assert getattr(onepass, name) is getattr(onepass, name)
    assert onepass.__version__.count(".") == 2
