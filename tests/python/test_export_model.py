"""The model that python -m onepass.export writes, compiled and run on the CPU.

Against float64 PyTorch, against the tables of docs/numerics.md, and bit by bit against libonepass through ctypes: that
library is $ONEPASS_LIBRARY, or the one beside the package under test, or the one in build/.
"""
import ctypes
import itertools
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

import onepass  # noqa: E402
from test_export import ROOT, exported, load  # noqa: E402
from torch.utils import cpp_extension  # noqa: E402

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
EPSILON = {F32: 2.0 ** -24, F64: 2.0 ** -53, F16: 2.0 ** -11, BF16: 2.0 ** -8}  # half the spacing at 1

FIRST_USE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from model_new import ModelNew
print(ModelNew()(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [0.25, 0.75]])).item())
"""


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    """The exported file, its kernels compiled by two processes that start at the same time."""
    if not cpp_extension.is_ninja_available():
        pytest.skip("no ninja, which PyTorch compiles extensions with")
    with exported("kl_div", tmp_path_factory.mktemp("model")) as path:
        both = [subprocess.Popen([sys.executable, "-c", FIRST_USE, str(path.parent)], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, universal_newlines=True) for _ in range(2)]
        for process in both:
            output, errors = process.communicate(timeout=900)
            assert process.returncode == 0, errors[-3000:]
            assert abs(float(output.split()[-1]) - 0.137326539) < 1e-8  # old releases print a line of their own first
        yield path


@pytest.fixture(scope="session")
def module(model_file):
    return load(model_file)


@pytest.fixture(scope="session")
def model(module):
    return module.ModelNew()


def reference(predictions, targets):
    """The model's definition, in float64."""
    return torch.nn.functional.kl_div(torch.log(predictions.double()), targets.double(), reduction="batchmean")


def probabilities(*shape, dtype=F32, sharpness=1.0, device="cpu"):
    made = torch.softmax(sharpness * torch.randn(*shape, dtype=F64), -1)
    return (made.clamp_min(2.0 ** -24) if dtype is F16 else made).to(device, dtype)  # float16 would make some of them 0


def check_value(value, predictions, targets):
    """As near to the exact value as docs/numerics.md says, and of the right kind.

    An element t log(t/p) may be off by 6u of itself and 2u of t, on CUDA by twice that, half types there by 8u of t
    more. Errors of many elements do not all point the same way, but for the 1e-8 that the series leaves out.
    """
    assert value.shape == () and value.dtype == torch.promote_types(predictions.dtype, targets.dtype)
    assert value.device == predictions.device
    p, t, exact = predictions.double(), targets.double(), reference(predictions, targets).item()
    u = EPSILON[F64] if F64 in (predictions.dtype, targets.dtype) else EPSILON[F32]
    element = (6 * (t * torch.log(t / p)).abs() + 2 * t) * u / predictions.size(0)
    if predictions.is_cuda:
        element = 2 * element + (8 * u * t / predictions.size(0) if u == EPSILON[F32] else 0)
    terms = ((t * t.log()).abs() + (t * p.log()).abs()).sum().item() / predictions.size(0)  # those of the reference
    allowed = (EPSILON[value.dtype] * abs(exact) + min(element.sum().item(), 4 * element.pow(2).sum().sqrt().item())
               + (1e-8 * terms if u == EPSILON[F32] else 0) + 16 * EPSILON[F64] * terms)
    # Half types have zeros among their probabilities, and then both are infinite.
    assert value.item() == exact or abs(value.item() - exact) <= allowed, (value.item(), exact, allowed)


def check_gradients(predictions, targets, to_predictions, to_targets, upstream=1.0):
    """-t/p and log(t/p) + 1 times the scale: a few roundings, and the one that stores the result."""
    p, t = predictions.detach().double(), targets.detach().double()
    scale = upstream / predictions.size(0)
    u = EPSILON[F64] if F64 in (predictions.dtype, targets.dtype) else EPSILON[F32]
    few = 8 * u if predictions.is_cuda else 4 * u
    for gradient, of, exact, terms in (
            (to_predictions, predictions, -t / p * scale, 0),
            (to_targets, targets, (torch.log(t / p) + 1) * scale, (torch.log(t / p).abs() + 1) * abs(scale))):
        if gradient is None:
            continue
        assert (gradient.dtype, gradient.shape, gradient.device) == (of.dtype, of.shape, of.device)
        smallest = torch.finfo(of.dtype).tiny * 2 * EPSILON[of.dtype]
        allowed = (few + EPSILON[of.dtype]) * exact.abs() + few * terms + smallest
        assert bool(((gradient.double() - exact).abs() <= allowed).all())


def gradients(model, predictions, targets, upstream=None):
    """Value and both gradients of fresh leaves."""
    p, t = predictions.detach().requires_grad_(), targets.detach().requires_grad_()
    value = model(p, t)
    return (value.detach(),) + torch.autograd.grad(value, (p, t), upstream)


# ---- values and gradients --------------------------------------------------------------------------------------------

SHAPES = [(1, 1), (1, 1000), (3, 7), (257, 1031), (5, 1), (40, 33, 17), (12345,), (2, 3, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16])
def test_value_and_gradients(model, shape, dtype):
    predictions, targets = probabilities(*shape, dtype=dtype), probabilities(*shape, dtype=dtype)
    check_value(model(predictions, targets), predictions, targets)
    value, to_predictions, to_targets = gradients(model, predictions, targets)
    check_value(value, predictions, targets)
    check_gradients(predictions, targets, to_predictions, to_targets)


@pytest.mark.parametrize("p_type, t_type", [(a, b) for a, b in itertools.product((F32, F64, F16, BF16), repeat=2)
                                            if a != b])
def test_mixed_types(model, p_type, t_type):
    predictions, targets = probabilities(33, 65, dtype=p_type), probabilities(33, 65, dtype=t_type)
    check_value(model(predictions, targets), predictions, targets)
    _, to_predictions, to_targets = gradients(model, predictions, targets)
    check_gradients(predictions, targets, to_predictions, to_targets)


def test_small_and_sharp_divergences_are_no_worse_than_pytorch(model):
    """Hard inputs: nearly equal distributions, one-hot-like ones, and the founding problem's in small."""
    nearly = probabilities(512, 512)
    cases = [(nearly, torch.softmax(torch.log(nearly) + 1e-4 * torch.randn(512, 512), -1)),
             (probabilities(512, 512, sharpness=8), probabilities(512, 512, sharpness=8)),
             (torch.softmax(torch.rand(512, 512) * torch.rand(()), -1), torch.softmax(torch.rand(512, 512), -1))]
    for predictions, targets in cases:
        exact = reference(predictions, targets).item()
        ours = abs(model(predictions, targets).item() - exact)
        eager = torch.nn.functional.kl_div(torch.log(predictions), targets, reduction="batchmean").item()
        assert exact > 1e-10
        assert ours <= abs(eager - exact) + EPSILON[F32] * exact
        check_value(model(predictions, targets), predictions, targets)


def test_direction_and_divisor(model):
    """KL(targets || predictions), divided by the batch alone: the two mistakes that are easily made."""
    predictions, targets = torch.tensor([[0.9, 0.1]] * 4), torch.tensor([[0.5, 0.5]] * 4)
    value = model(predictions, targets).item()
    assert abs(value - (0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))) < 1e-6
    assert model(predictions, predictions.clone()).item() == 0


LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every other column": lambda x: torch.stack((x, x), -1).flatten(-2)[:, ::2],
    "every other row": lambda x: torch.cat((x, x), 1).view(-1, x.size(1))[::2],
    "off alignment": lambda x: torch.cat((x[:1, :1].flatten(), x.flatten()))[1:].view(x.shape),
    "compact": lambda x: x,
}


@pytest.mark.parametrize("p_layout, t_layout", list(itertools.product(LAYOUTS, repeat=2)))
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_strides(model, p_layout, t_layout, dtype):
    predictions = LAYOUTS[p_layout](probabilities(37, 53, dtype=dtype))
    targets = LAYOUTS[t_layout](probabilities(37, 53, dtype=dtype))
    check_value(model(predictions, targets), predictions, targets)
    _, to_predictions, to_targets = gradients(model, predictions, targets)
    check_gradients(predictions, targets, to_predictions, to_targets)
    if p_layout == "transposed":
        assert to_predictions.stride() == predictions.stride()  # or autograd would copy it


@pytest.mark.parametrize("p_shape, t_shape", [((1, 40), (30, 40)), ((30, 40), (1, 40)), ((40,), (30, 40)),
                                              ((30, 40), (40,)), ((30, 1), (30, 40)), ((5, 1, 8), (1, 6, 8))])
def test_broadcasting_as_pytorch_does(model, p_shape, t_shape):
    """The divisor is the size of the predictions' first dimension before they are expanded."""
    predictions = probabilities(*p_shape, dtype=F64).requires_grad_()
    targets = probabilities(*t_shape, dtype=F64).requires_grad_()
    value = model(predictions, targets)
    expected = (targets * (targets.log() - predictions.log())).sum() / predictions.size(0)
    if torch.__version__ >= "2":  # the kl_div of old releases cannot be differentiated here
        torch.testing.assert_close(expected, reference(predictions, targets), rtol=1e-12, atol=0)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    for ours, theirs in zip(torch.autograd.grad(value, (predictions, targets)),
                            torch.autograd.grad(expected, (predictions, targets))):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def test_expanded_rows_are_read_as_they_lie(model):
    predictions, targets = probabilities(1, 400).expand(30, 400), probabilities(30, 1).expand(30, 400)
    check_value(model(predictions, targets), predictions, targets)
    _, to_predictions, to_targets = gradients(model, predictions, targets)
    check_gradients(predictions, targets, to_predictions, to_targets)


@pytest.mark.parametrize("shape, is_nan", [((0, 5), True), ((5, 0), False), ((0,), True), ((0, 0), True),
                                           ((3, 0, 2), False)])
def test_empty_tensors(model, shape, is_nan):
    predictions = torch.empty(shape).requires_grad_()
    value = model(predictions, torch.empty(shape))
    assert math.isnan(value.item()) if is_nan else value.item() == 0
    value.backward()
    assert predictions.grad.shape == shape


def test_more_than_2_to_the_31_elements(model):
    row = probabilities(1, 1 << 20), probabilities(1, 1 << 20)
    rows = (1 << 11) + 3
    value = model(row[0].expand(rows, -1), row[1].expand(rows, -1)).item()
    exact = reference(*row).item()
    assert rows << 20 > 1 << 31 and abs(value - exact) <= 2 * EPSILON[F32] * exact


# ---- special values --------------------------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan


def quotient(a, b):
    """a / b by the rules of IEEE 754, which Python does not keep where b is 0."""
    if b != 0:
        return a / b
    return NAN if a == 0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1, b)


def table(t, p):
    """Value, d/dp and d/dt: the lines of "Probabilities both" in docs/numerics.md, strict, in their order."""
    if math.isnan(t) or math.isnan(p):
        return NAN, NAN, NAN
    d_p = -quotient(t, p)
    if p < 0 or t < 0:
        return NAN, d_p, NAN
    if t == 0:
        return (0.0, 0.0, NAN) if 0 < p < INF else (NAN, NAN if p == 0 else 0.0, NAN)
    if t == INF:
        return (INF if p < 1 else NAN), d_p, NAN
    if p == 0:
        return INF, d_p, INF
    if p == INF:
        return -INF, 0.0, -INF
    ratio = t / p
    log_ratio = math.log(ratio) if 1e-300 < ratio < INF else math.log(t) - math.log(p)
    return t * log_ratio, d_p, log_ratio + 1


def numbers(dtype):
    limits = torch.finfo(dtype)
    return [0.0, -0.0, limits.tiny * limits.eps, limits.tiny / 2, limits.tiny, 1e-5, 0.25, 0.75, 1.0, 1.5, 1e4,
            float(limits.max), -float(limits.max), -1.0, -limits.tiny, INF, -INF, NAN]


def same(actual, expected, dtype, added=0):
    """Equal, or within a few roundings of the result and of a number that was `added` on the way to it."""
    expected = torch.tensor(expected, dtype=F64).to(dtype).item()
    if math.isnan(expected) or math.isinf(expected) or expected == 0:
        return (math.isnan(actual) and math.isnan(expected)) or actual == expected
    limits = torch.finfo(dtype)
    return abs(actual - expected) <= limits.eps * (8 * abs(expected) + 4 * added + 2 * limits.tiny)


def check_special_values(model, dtype, device):
    """Every pair alone, and the gradients once more with every pair among the lanes of one call."""
    pairs = list(itertools.product(numbers(dtype), repeat=2))
    predictions = torch.tensor([[p for _, p in pairs]], dtype=dtype, device=device)
    targets = torch.tensor([[t for t, _ in pairs]], dtype=dtype, device=device)
    value, to_predictions, to_targets = gradients(model, predictions, targets)
    assert math.isnan(value.item())
    wrong = []
    for i, (t, p) in enumerate(zip(targets[0].tolist(), predictions[0].tolist())):
        alone = gradients(model, predictions[:, i:i + 1], targets[:, i:i + 1])
        results = [one.item() for one in alone] + [to_predictions[0, i].item(), to_targets[0, i].item()]
        results.append(model(predictions[:, i:i + 1], targets[:, i:i + 1]).item())
        value, d_p, d_t = table(t, p)
        kinds = ("value", "d/dp", "d/dt", "d/dp in a row", "d/dt in a row", "value without gradients")
        for kind, got, expected in zip(kinds, results, (value, d_p, d_t, d_p, d_t, value)):
            if not same(got, expected, dtype, added=kind.startswith("d/dt")):
                wrong.append((t, p, kind, got, expected))
    assert not wrong


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16])
def test_special_values(model, dtype):
    check_special_values(model, dtype, "cpu")


# ---- autograd --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upstream", [1.0, 3.5, 0.0, -2.0, 1e-3])
def test_upstream_gradient(model, upstream):
    predictions, targets = probabilities(31, 47), probabilities(31, 47)
    _, to_predictions, to_targets = gradients(model, predictions, targets, torch.tensor(upstream))
    check_gradients(predictions, targets, to_predictions, to_targets, upstream)


def test_only_the_gradients_that_are_required(module, model, monkeypatch):
    extension = module._extension(torch.empty(0))
    asked = []

    class Spy:
        @staticmethod
        def forward(*arguments):
            asked.append(arguments[4:])
            return extension.forward(*arguments)

        backward = staticmethod(extension.backward)

    monkeypatch.setitem(module._loaded, "cpu", Spy)
    predictions, targets = probabilities(8, 9), probabilities(8, 9)
    model(predictions.requires_grad_(), targets).backward()
    model(predictions.detach(), targets.requires_grad_()).backward()
    model(predictions, targets).backward()
    with torch.no_grad():
        assert not model(predictions, targets).requires_grad
    assert asked == [(True, False), (False, True), (True, True), (False, False)]


def test_the_made_gradient_is_handed_over_and_never_written_again(model):
    predictions, targets = probabilities(64, 65).requires_grad_(), probabilities(64, 65)
    value = model(predictions, targets)
    made = value.grad_fn.made[0].data_ptr()
    value.backward(retain_graph=True)
    assert predictions.grad.data_ptr() == made  # no copy was made
    once = predictions.grad.clone()
    kept = predictions.grad
    predictions.grad = None
    value.backward(torch.tensor(5.0), retain_graph=True)
    assert predictions.grad.data_ptr() != made and torch.equal(kept, once)
    check_gradients(predictions, targets, predictions.grad, None, 5.0)
    predictions.grad = None
    value.backward()
    assert torch.equal(predictions.grad, once)


def test_three_backwards_add_up_exactly(model):
    predictions, targets = probabilities(64, 65).requires_grad_(), probabilities(64, 65).requires_grad_()
    to_predictions, to_targets = torch.autograd.grad(model(predictions, targets), (predictions, targets))
    value = model(predictions, targets)
    for _ in range(3):
        value.backward(retain_graph=True)
    assert torch.equal(predictions.grad, to_predictions + to_predictions + to_predictions)
    assert torch.equal(targets.grad, to_targets + to_targets + to_targets)


def test_one_gradient_after_the_other(model):
    predictions, targets = probabilities(20, 30).requires_grad_(), probabilities(20, 30).requires_grad_()
    value = model(predictions, targets)
    to_targets, = torch.autograd.grad(value, targets, retain_graph=True)
    to_predictions, = torch.autograd.grad(value, predictions, retain_graph=True)
    again = torch.autograd.grad(value, (predictions, targets), torch.tensor(2.0))
    check_gradients(predictions, targets, to_predictions, to_targets)
    check_gradients(predictions, targets, *again, upstream=2.0)


def test_two_losses_of_one_tensor(model):
    """The gradient of the first must survive the second's."""
    predictions = probabilities(20, 30, dtype=F64).requires_grad_()
    targets = [probabilities(20, 30, dtype=F64) for _ in range(2)]
    sum(model(predictions, t) for t in targets).backward()
    expected, = torch.autograd.grad(sum(reference(predictions, t) for t in targets), predictions)
    torch.testing.assert_close(predictions.grad, expected, rtol=1e-13, atol=0)


def test_through_softmax_to_logits(model):
    logits, targets = torch.randn(20, 30, dtype=F64, requires_grad=True), probabilities(20, 30, dtype=F64)
    (3 * model(torch.softmax(logits, -1), targets)).backward()
    expected, = torch.autograd.grad(3 * reference(torch.softmax(logits, -1), targets), logits)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-11, atol=1e-14)


def test_gradcheck_and_gradgradcheck(model):
    predictions = probabilities(3, 5, dtype=F64).requires_grad_()
    targets = probabilities(3, 5, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(model, (predictions, targets))
    assert torch.autograd.gradgradcheck(model, (predictions, targets))
    assert torch.autograd.gradgradcheck(lambda p: model(p, targets.detach()), (predictions,))
    assert torch.autograd.gradgradcheck(lambda t: model(predictions.detach(), t), (targets,))


@pytest.mark.parametrize("dtype", [F32, F16])
def test_gradient_penalty(model, dtype):
    """A second derivative, against PyTorch's own in float64; create_graph leaves the first derivative the same bits."""
    # Not too sharp: second derivatives of small probabilities are beyond float16.
    predictions, targets = (probabilities(6, 10, dtype=dtype, sharpness=0.5) for _ in range(2))
    predictions.requires_grad_()
    first, = torch.autograd.grad(model(predictions, targets), predictions, create_graph=True)
    assert torch.equal(first, torch.autograd.grad(model(predictions, targets), predictions)[0])
    first.double().pow(2).sum().backward()
    exact = predictions.detach().double().requires_grad_()
    gradient, = torch.autograd.grad(reference(exact, targets), exact, create_graph=True)
    gradient.pow(2).sum().backward()
    assert predictions.grad.dtype == dtype
    torch.testing.assert_close(predictions.grad.double(), exact.grad, rtol=8 * EPSILON[dtype], atol=0)


def test_changed_inputs_are_noticed(model):
    predictions = probabilities(4, 5).requires_grad_()
    targets = probabilities(4, 5)
    value = model(predictions, targets)
    targets.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_a_graph_is_freed_as_usual(model):
    value = model(probabilities(4, 5).requires_grad_(), probabilities(4, 5))
    value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


# ---- PyTorch's own modes ---------------------------------------------------------------------------------------------


def test_no_grad_and_inference_mode(model):
    predictions, targets = probabilities(9, 10).requires_grad_(), probabilities(9, 10)
    with torch.no_grad():
        check_value(model(predictions, targets), predictions, targets)
    with torch.inference_mode():
        check_value(model(predictions, targets), predictions, targets)


def test_autocast_gives_pytorchs_dtype(model):
    predictions, targets = probabilities(9, 10, dtype=BF16).requires_grad_(), probabilities(9, 10, dtype=BF16)
    with torch.autocast("cpu", dtype=BF16):
        value = model(predictions, targets)
        assert value.dtype == F32
        assert model(predictions.double(), targets).dtype == F64
    exact = reference(predictions, targets).item()
    assert abs(value.item() - exact) < 1e-6 * exact
    value.backward()
    check_gradients(predictions, targets, predictions.grad, None)


def test_a_module_like_any_other(model, module):
    assert isinstance(model, torch.nn.Module) and model.state_dict() == {} and not list(model.parameters())
    assert type(module.ModelNew().eval().double()) is module.ModelNew


def test_negated_views(model):
    predictions, targets = probabilities(5, 6), probabilities(5, 6)
    negated = torch.complex(targets, -targets).conj().imag
    assert negated.is_neg()
    assert torch.equal(model(predictions, negated), model(predictions, targets))


def test_in_a_forked_child(model):
    predictions, targets = probabilities(512, 512), probabilities(512, 512)
    expected = model(predictions, targets).item()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"same" if model(predictions, targets).item() == expected else b"other")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer == b"same"


def test_the_file_twice_in_one_process(model_file, model):
    predictions, targets = probabilities(5, 6), probabilities(5, 6)
    assert torch.equal(load(model_file, "another").ModelNew()(predictions, targets), model(predictions, targets))


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("predictions, targets, error, words", [
    (torch.ones(2, 3, dtype=torch.int64), torch.rand(2, 3), TypeError, "kl_div: predictions: dtype Long"),
    (torch.rand(2, 3), torch.ones(2, 3, dtype=torch.bool), TypeError, "kl_div: targets: dtype Bool"),
    (torch.rand(2, 3), torch.rand(2, 4), RuntimeError, "must match"),
    (torch.rand(()), torch.rand(()), IndexError, "dimension"),
    (torch.rand(2, 3).to_sparse(), torch.rand(2, 3), RuntimeError, "layout Sparse"),
    (torch.rand(2, 3), torch.empty(2, 3, device="meta"), RuntimeError, "targets: on meta, predictions on cpu"),
    (torch.empty(2, 3, device="meta"), torch.empty(2, 3, device="meta"), RuntimeError, "tensors on 'meta'"),
])
def test_bad_input_is_named(model, predictions, targets, error, words):
    with pytest.raises(error, match="(?i)" + words):
        model(predictions, targets)


def test_forward_mode_is_refused(model):
    from torch.autograd import forward_ad
    with forward_ad.dual_level():
        with pytest.raises(RuntimeError, match="tangent"):
            model(forward_ad.make_dual(torch.rand(2, 3), torch.rand(2, 3)), torch.rand(2, 3))


def test_transforms_are_refused(model):
    if not hasattr(torch, "func"):
        pytest.skip("this PyTorch has no torch.func")
    with pytest.raises(RuntimeError, match="transforms"):
        torch.func.vmap(model)(torch.rand(2, 3, 4), torch.rand(2, 3, 4))
    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.grad(lambda p: model(p, torch.rand(2, 3)))(torch.rand(2, 3))


def test_no_ninja_is_an_error(model_file, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(cpp_extension, "is_ninja_available", lambda: False)
    with pytest.raises(RuntimeError, match="kl_div: .*ninja is needed"):
        load(model_file, "without_ninja").ModelNew()(torch.rand(2, 3), torch.rand(2, 3))


def test_no_compiler_is_an_error(model_file, tmp_path, monkeypatch):
    """And what was begun does not pass for finished afterwards."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="kl_div: the kernels for cpu could not be compiled in"):
            load(model_file, "uncompiled").ModelNew()(torch.rand(2, 3), torch.rand(2, 3))


def test_cuda_without_nvcc_is_an_error(module, monkeypatch):
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(torch.version, "cuda", "11.3")
    with pytest.raises(RuntimeError, match="no nvcc to compile the kernels"):
        module._load("cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RuntimeError, match="not built with CUDA"):
        module._load("cuda")


# ---- the library's own bits and speed --------------------------------------------------------------------------------


class Library:
    """libonepass on the CPU, through ctypes."""

    def __init__(self, path, threads=2):
        sys.path.insert(0, str(ROOT / "bench"))
        import onepass_ctypes
        sys.path.remove(str(ROOT / "bench"))
        self.types = onepass_ctypes
        self.library = onepass_ctypes.Library(str(path))
        self.library.c.onepass_isa.restype = ctypes.c_char_p
        config = onepass_ctypes.Config(size=ctypes.sizeof(onepass_ctypes.Config), threads=threads)
        self.handle = ctypes.c_void_p()
        self.library.check(self.library.c.onepass_create(ctypes.byref(config), ctypes.byref(self.handle)))

    def level(self):
        return self.library.c.onepass_isa(self.handle).decode()

    def describe(self, tensor):
        described = self.types.describe(tensor)
        described.device = self.types.Device(1, 0)
        return described

    def kl(self, predictions, targets, value, to_predictions, to_targets, upstream=None):
        """Fills the tensors that are not None. batchmean, strict."""
        kept = [None if tensor is None else self.describe(tensor)
                for tensor in (predictions, targets, value, to_predictions, to_targets, upstream)]
        addresses = [None if one is None else ctypes.addressof(one) for one in kept]
        options = self.types.Options(size=ctypes.sizeof(self.types.Options), grad_value=addresses[5])
        self.library.check(self.library.c.onepass_kl_probs_probs(
            self.handle, addresses[0], addresses[1], ctypes.addressof(options), *addresses[2:5]))


def library_path():
    paths = [pathlib.Path(os.environ["ONEPASS_LIBRARY"])] if os.environ.get("ONEPASS_LIBRARY") else []
    paths += [pathlib.Path(onepass.__file__).parent.parent.parent / "libonepass.so", ROOT / "build" / "libonepass.so"]
    for path in paths:
        if path.exists():
            return path
    pytest.skip("no libonepass.so: looked for " + ", ".join(str(path) for path in paths))


def compare_bits(model, library):
    """Value and gradients of many calls, model and library; the number of tensors compared."""
    compared = 0
    for dtype, shape in itertools.product((F32, F64, F16, BF16), ((1, 5), (63, 129), (4, 70001), (300, 1000))):
        predictions, targets = probabilities(*shape, dtype=dtype), probabilities(*shape, dtype=dtype)
        targets[0, ::3] = 0
        for p, t in ((predictions, targets), (predictions.t(), targets.t()), (predictions[:, ::2], targets[:, ::2])):
            value, to_p, to_t = torch.empty((), dtype=dtype), torch.empty_like(p), torch.empty_like(t)
            library.kl(p, t, value, to_p, to_t)
            assert torch.equal(value, gradients(model, p, t)[0]) and torch.isfinite(value)
            for ours, theirs in zip(gradients(model, p, t)[1:], (to_p, to_t)):
                assert torch.equal(ours.nan_to_num(nan=-7), theirs.nan_to_num(nan=-7))
            library.kl(p, t, value, None, None)
            assert torch.equal(value, model(p, t))
            upstream = torch.tensor(0.3, dtype=dtype)
            library.kl(p, t, None, to_p, None, upstream)
            leaf = p.detach().requires_grad_()
            model(leaf, t).backward(upstream)
            assert torch.equal(leaf.grad, to_p)
            compared += 5
    return compared


LEVEL_RUN = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.manual_seed(int(sys.argv[4]))
from test_export import load
from test_export_model import Library, compare_bits
library = Library(pathlib.Path(sys.argv[3]))
print(library.level(), compare_bits(load(sys.argv[2]).ModelNew(), library))
"""


@pytest.mark.parametrize("level", ["ref", "scalar", "avx2", "avx512", "neon"])
def test_bits_are_the_librarys(model_file, level, seed):
    path = library_path()
    done = subprocess.run([sys.executable, "-c", LEVEL_RUN, str(pathlib.Path(__file__).parent), str(model_file),
                           str(path), str(seed)], env=dict(os.environ, ONEPASS_ISA=level), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode != 0 and ("cannot run level" in done.stderr or "is not built into" in done.stderr):
        pytest.skip("this machine or library has no level " + level)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-2:] == [level, "240"]


def test_an_unknown_level_is_an_error(model_file):
    done = subprocess.run([sys.executable, "-c", FIRST_USE, str(model_file.parent)], stdout=subprocess.PIPE,
                          env=dict(os.environ, ONEPASS_ISA="fastest"), stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode != 0 and "\"fastest\" is not a level" in done.stderr


@pytest.mark.parametrize("gradient", [False, True])
def test_speed_is_the_librarys(module, gradient, capsys):
    """In turns, medians of the thread's own time, for test machines are busy. The ratio is printed to be looked at; the
    bound is what a level that was not chosen, or a loop that was not inlined, would exceed."""
    library = Library(library_path(), threads=1)
    predictions, targets = probabilities(4096, 4096), probabilities(4096, 4096)
    extension = module._extension(predictions)
    value = torch.empty(())
    times = {"library": [], "model": []}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(21):
            begun = time.thread_time()
            library.kl(predictions, targets, value, torch.empty_like(predictions) if gradient else None, None)
            times["library"].append(time.thread_time() - begun)
            begun = time.thread_time()
            extension.forward(predictions, targets, 4096, False, gradient, False)
            times["model"].append(time.thread_time() - begun)
    finally:
        torch.set_num_threads(threads)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ratio = medians["model"] / medians["library"]
    with capsys.disabled():
        print("\n4096 x 4096 float32, %s, one thread: library %.2f ms, exported model %.2f ms, ratio %.3f" % (
            "value and gradient" if gradient else "value", 1e3 * medians["library"], 1e3 * medians["model"], ratio))
    assert ratio < 1.25
