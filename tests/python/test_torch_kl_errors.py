"""What wrong arguments get: the class PyTorch's users expect, and a text that names the argument and the rule."""

import pytest

import torch_samples as samples
from torch_samples import FUNCTIONS, F, torch

import onepass
import onepass.torch

X, T = torch.full((3, 4), -1.0), torch.full((3, 4), 0.25)
WEIGHTS, MASK = torch.ones(3), torch.ones(3, dtype=torch.bool)

# (predictions, targets, keywords, exception, what the text must say)
REFUSED = {
    "a list": ([[0.5]], T, {}, TypeError, ["input", "list", "torch.Tensor"]),
    "a number as target": (X, 0.5, {}, TypeError, ["target", "float", "torch.Tensor"]),
    "None": (None, T, {}, TypeError, ["input", "NoneType"]),
    "integers": (X.long(), T, {}, onepass.Unsupported, ["input", "int64", "floating point"]),
    "integer targets": (X, T.int(), {}, onepass.Unsupported, ["target", "int32", "floating point"]),
    "booleans": (X, T.bool(), {}, onepass.Unsupported, ["target", "bool"]),
    "complex": (X, T.to(torch.complex64), {}, onepass.Unsupported, ["target", "complex64"]),
    "shapes": (X, torch.ones(2, 4), {}, RuntimeError, ["3", "2"]),
    "reduction": (X, T, {"reduction": "avg"}, onepass.InvalidArgument, ["reduction", "'avg'", "batchmean", "rows"]),
    "no reduction": (X, T, {"reduction": None}, onepass.InvalidArgument, ["reduction", "None"]),
    "a list of reductions": (X, T, {"reduction": ["sum"]}, onepass.InvalidArgument, ["reduction", "['sum']"]),
    "semantics": (X, T, {"semantics": "loose"}, onepass.InvalidArgument, ["semantics", "'loose'", "strict", "finite"]),
    "divisor with mean": (X, T, {"reduction": "mean", "divisor": 2}, onepass.InvalidArgument,
                          ["divisor", "'mean'", "'sum'"]),
    "divisor with rows": (X, T, {"reduction": "rows", "divisor": 2}, onepass.InvalidArgument, ["divisor", "'rows'"]),
    "divisor 0": (X, T, {"reduction": "sum", "divisor": 0}, onepass.InvalidArgument, ["divisor", "0"]),
    "divisor NaN": (X, T, {"reduction": "sum", "divisor": float("nan")}, onepass.InvalidArgument, ["divisor", "nan"]),
    "divisor inf": (X, T, {"reduction": "sum", "divisor": float("inf")}, onepass.InvalidArgument, ["divisor", "inf"]),
    "divisor 0, broadcast": (X, T[0], {"reduction": "sum", "divisor": 0}, onepass.InvalidArgument, ["divisor", "0"]),
    "weights of a list": (X, T, {"row_weights": [1.0, 1.0, 1.0]}, TypeError, ["row_weights", "list", "torch.Tensor"]),
    "weights of integers": (X, T, {"row_weights": WEIGHTS.long()}, onepass.Unsupported, ["row_weights", "int64"]),
    "weights of another shape": (X, T, {"row_weights": torch.ones(4)}, onepass.InvalidArgument,
                                 ["row_weights", "[4]", "[3]"]),
    "weights an element": (X, T, {"row_weights": torch.ones(3, 4)}, onepass.InvalidArgument, ["row_weights", "[3, 4]"]),
    "weights of the narrower side": (X[:1], T, {"row_weights": torch.ones(1)}, onepass.InvalidArgument,
                                     ["row_weights", "[1]"]),
    "weights that require grad": (X, T, {"row_weights": torch.ones(3, requires_grad=True)}, onepass.Unsupported,
                                  ["row_weights", "requires_grad"]),
    "a mask of floats": (X, T, {"row_mask": WEIGHTS}, onepass.Unsupported, ["row_mask", "float32", "bool or uint8"]),
    "a mask of integers": (X, T, {"row_mask": WEIGHTS.long()}, onepass.Unsupported,
                           ["row_mask", "64", "bool or uint8"]),
    "a mask of a list": (X, T, {"row_mask": [True] * 3}, TypeError, ["row_mask", "list", "torch.Tensor"]),
    "a mask of NumPy": (X, T, {"row_mask": MASK.numpy()}, TypeError, ["row_mask", "ndarray", "torch.Tensor"]),
    "a mask of another shape": (X, T, {"row_mask": MASK[:2]}, onepass.InvalidArgument, ["row_mask", "[2]", "[3]"]),
    "a mask an element": (X, T, {"row_mask": torch.ones(3, 4).bool()}, onepass.InvalidArgument, ["row_mask", "[3, 4]"]),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("case", REFUSED)
def test_refused(function, case):
    predictions, targets, keywords, error, words = REFUSED[case]
    keywords = dict({"reduction": "sum"}, **keywords)
    with samples.no_warnings(), pytest.raises(error) as caught:
        getattr(onepass.torch, function)(predictions, targets, **keywords)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert isinstance(caught.value, (TypeError, RuntimeError)), "what PyTorch raises in these places"


@pytest.mark.parametrize("case", ["reduction", "integers", "weights of another shape"])
def test_refused_with_gradients_too(case):
    """The same where autograd records the call."""
    predictions, targets, keywords, error, _ = REFUSED[case]
    leaf = targets.clone().requires_grad_()
    with pytest.raises(error):
        onepass.torch.kl_div(predictions, leaf, **dict({"reduction": "sum"}, **keywords))
    assert leaf.grad is None


def test_classes():
    """Every error is a RuntimeError, as PyTorch's are, and the nearest built-in one besides."""
    assert issubclass(onepass.Error, RuntimeError)
    for error, builtin in ((onepass.InvalidArgument, ValueError), (onepass.Unsupported, NotImplementedError),
                           (onepass.OutOfMemory, MemoryError), (onepass.NoDevice, RuntimeError),
                           (onepass.DeviceError, RuntimeError)):
        assert issubclass(error, onepass.Error) and issubclass(error, builtin)


def test_the_message_of_a_wrong_reduction_is_pytorchs_kind():
    with pytest.raises(ValueError):
        F.kl_div(X, T, reduction="avg")
    with pytest.raises(ValueError):
        onepass.torch.kl_div(X, T, reduction="avg")


@pytest.mark.parametrize("make", [
    lambda x: x.to_sparse(), lambda x: x.to_mkldnn() if torch.backends.mkldnn.is_available() else x.to_sparse(),
    lambda x: x.to("meta"),
], ids=["sparse", "opaque", "meta"])
def test_tensors_without_ordinary_memory(make):
    """Refused aloud, on either side. (Two meta tensors are another matter: their result is one.)"""
    for inputs in ((make(X), T), (X, make(T))):
        with pytest.raises((RuntimeError, TypeError)):
            onepass.torch.kl_div(*inputs, reduction="sum")
    with pytest.raises((RuntimeError, TypeError)):
        onepass.torch.kl_div(X, T, reduction="sum", row_weights=make(WEIGHTS))


@pytest.mark.skipif(not hasattr(torch, "float8_e5m2"), reason="PyTorch %d.%d has no float8" % samples.VERSION)
def test_float8_is_refused():
    for inputs in ((X.to(torch.float8_e5m2), T), (X, T.to(torch.float8_e5m2)), (X.to(torch.float8_e5m2),) * 2):
        with pytest.raises((RuntimeError, TypeError)):
            onepass.torch.kl_div(*inputs, reduction="sum")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_device():
    for name in ("cuda", "cuda:7"):
        with pytest.raises(onepass.NoDevice) as caught:
            onepass.info(name)
        assert "cuda" in str(caught.value).lower() or "gpu" in str(caught.value).lower()
    for name in ("gpu", "cuda:x", "", "cuda:-1"):
        with pytest.raises(onepass.InvalidArgument, match="device"):
            onepass.info(name)
    found = onepass.info()
    assert found["device"] == "cpu" and found["threads"] >= 1 and found["level"]
    assert found["version"] == onepass.__version__


def test_weights_that_require_grad_may_be_used_where_nothing_is_recorded():
    weights = torch.full((3,), 2.0, requires_grad=True)
    with torch.no_grad():
        found = onepass.torch.kl_div(X, T, reduction="sum", row_weights=weights)
    assert float(found) == pytest.approx(2 * float(onepass.torch.kl_div(X, T, reduction="sum")), rel=1e-6)


def test_a_refused_call_leaves_nothing_behind():
    """The next call, and the one after it, are as right as before."""
    before = onepass.torch.kl_div_probs(T, T * 2)
    for _ in range(100):
        with pytest.raises(onepass.InvalidArgument):
            onepass.torch.kl_div_probs(T, T * 2, row_weights=torch.ones(4))
    assert torch.equal(onepass.torch.kl_div_probs(T, T * 2), before)


@pytest.mark.skipif(samples.VERSION >= (2, 1), reason="PyTorch %d.%d has forward mode for onepass" % samples.VERSION)
def test_forward_mode_is_refused_by_an_old_pytorch():
    """Not silently without its tangent, which is what happens to a function that knows nothing of it."""
    from torch.autograd import forward_ad
    with forward_ad.dual_level():
        for inputs in ((forward_ad.make_dual(X, X), T), (X, forward_ad.make_dual(T, T))):
            with pytest.raises(onepass.Unsupported, match="forward-mode"):
                onepass.torch.kl_div(*inputs, reduction="sum")
        assert torch.isfinite(onepass.torch.kl_div(X, T, reduction="sum"))
