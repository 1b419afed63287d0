"""The model that python -m onepass.export writes, compiled and run on the CPU.

Against float64 PyTorch, against the tables of docs/numerics.md, and bit by bit against the package under test.
"""
import itertools
import math
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import onepass.torch  # noqa: E402,F401: makes torch's tensors known to the library
from onepass import library  # noqa: E402
import turns  # noqa: E402
from test_export import ROOT, exported, load  # noqa: E402

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
EPSILON = {F32: 2.0 ** -24, F64: 2.0 ** -53, F16: 2.0 ** -11, BF16: 2.0 ** -8}  # half the spacing at 1

# As KernelBench does it: the source as a string, without a file, below a line that sets the directory; and where there
# is no onepass.
FIRST_USE = """
import sys
sys.modules["onepass"] = None
import torch
with open(sys.argv[1]) as file:
    source = file.read()
if sys.argv[2:]:
    source = "import os\\nos.environ['TORCH_EXTENSIONS_DIR'] = %r\\n" % sys.argv[2] + source
context = {}
exec(compile(source, "<string>", "exec"), context)
model = context["ModelNew"]()
print(model(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [0.25, 0.75]])).item())
print(context["_loaded"]["cpu"].__file__)
"""


def first_use(*words, **options):
    return subprocess.Popen([sys.executable, "-c", FIRST_USE, *map(str, words)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, universal_newlines=True, cwd="/", **options)


def checked_use(process):
    """The file that the first use of the model has imported."""
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors[-3000:]
    *_, value, path = output.split()
    assert abs(float(value) - 0.137326539) < 1e-8
    return path


@pytest.fixture(scope="session")
def model_file(tmp_path_factory):
    """The exported file, its kernels compiled by two processes that start at the same time."""
    with exported("kl_div", tmp_path_factory.mktemp("model")) as path:
        directory = str(path.parent / "extensions")
        environment = {name: word for name, word in os.environ.items() if name != "TORCH_EXTENSIONS_DIR"}
        both = first_use(path, directory, env=environment), first_use(path)
        used = {checked_use(process) for process in both}
        assert len(used) == 1 and used.pop().startswith(directory + os.sep)
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


def test_the_made_gradient_is_handed_over_and_never_written_again(model):
    predictions, targets = probabilities(164, 65).requires_grad_(), probabilities(164, 65)
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
    (torch.ones(2, 3, dtype=torch.int64), torch.rand(2, 3), RuntimeError, "input: dtype torch.int64"),
    (torch.rand(2, 3), torch.ones(2, 3, dtype=torch.bool), RuntimeError, "target: dtype torch.bool"),
    (torch.rand(2, 3), torch.rand(2, 4), RuntimeError, "must match"),
    (torch.rand(2, 3).to_sparse(), torch.rand(2, 3), Exception, None),
    (torch.rand(2, 3), torch.empty(2, 3, device="meta"), Exception, None),
])
def test_bad_input_is_refused(model, predictions, targets, error, words):
    with pytest.raises(error, match=words):
        model(predictions, targets)


def test_forward_mode_and_transforms(model):
    """As the package: derivatives with PyTorch 2.1, refused before."""
    from torch.autograd import forward_ad
    p, t, tangent = torch.rand(2, 3, dtype=F64), torch.rand(2, 3, dtype=F64), torch.rand(2, 3, dtype=F64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(p, tangent)
        if torch.__version__ < "2.1":
            with pytest.raises(RuntimeError, match="forward-mode"):
                model(dual, t)
            return
        found = forward_ad.unpack_dual(model(dual, t)).tangent
    torch.testing.assert_close(found, (-t / p * tangent).sum() / 2)
    torch.testing.assert_close(torch.func.grad(lambda p: model(p, t))(p), -t / p / 2)
    batch = torch.rand(4, 2, 3, dtype=F64)
    torch.testing.assert_close(torch.func.vmap(model, (0, None))(batch, t), torch.stack([model(p, t) for p in batch]))


def test_compile_makes_one_graph(model):
    if torch.__version__ < "2.4":
        pytest.skip("PyTorch before 2.4 breaks the graph")
    predictions, targets = probabilities(20, 30), probabilities(20, 30)
    compiled = torch.compile(lambda p, t: model(p * 1, t) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(predictions, targets), model(predictions, targets) + 1)


def test_no_compiler_is_an_error(model_file, tmp_path, monkeypatch):
    """And what was begun does not pass for finished afterwards."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "/nonexistent/cc")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="kl_div: the kernels for cpu could not be compiled: .*nonexistent"):
            load(model_file, "uncompiled").ModelNew()(torch.rand(2, 3), torch.rand(2, 3))
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no C compiler was found"):
        load(model_file, "uncompiled").ModelNew()(torch.rand(2, 3), torch.rand(2, 3))


def test_a_source_that_does_not_compile_is_shown(model_file, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    module = load(model_file, "broken")
    module._FILES["src/machine.c"] += "#error on purpose\n"
    with pytest.raises(RuntimeError, match="(?s)-c src/machine.c.*on purpose"):
        module.ModelNew()(torch.rand(2, 3), torch.rand(2, 3))
    assert not list(tmp_path.rglob("*.so"))


def test_what_is_compiled_depends_on_sources_and_commands(module, monkeypatch):
    """A directory's name tells builds apart; changed sources are not taken for those that were compiled before."""
    names = []
    monkeypatch.setattr(module, "_locked", lambda directory: names.append(directory) or module._no_such_name)
    for change in (lambda: monkeypatch.setitem(module._FILES, "src/machine.c", "int changed;\n"),
                   lambda: monkeypatch.setenv("CC", "cc -g")):
        change()
        with pytest.raises(AttributeError, match="_no_such_name"):
            module._built("cpu", None)
    assert len(set(names)) == 2


def test_a_cache_that_is_complete_may_be_read_only(model_file):
    cache = model_file.parent / "extensions"
    places = [cache] + [path for path in cache.rglob("*") if path.is_dir()]
    for place in places:
        place.chmod(0o555)
    try:
        assert checked_use(first_use(model_file)).startswith(str(cache) + os.sep)
    finally:
        for place in places:
            place.chmod(0o755)


def test_a_cache_that_cannot_be_written_to(model_file, tmp_path):
    """Then it is compiled for the process alone, and nothing is left behind."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "temporary").mkdir()
    environment = dict(os.environ, TORCH_EXTENSIONS_DIR=str(tmp_path / "file" / "cache"),
                       TMPDIR=str(tmp_path / "temporary"))
    assert checked_use(first_use(model_file, env=environment)).startswith(str(tmp_path / "temporary"))
    assert list((tmp_path / "temporary").glob("onepass_*")) == []


def test_cuda_without_nvcc_is_an_error(module, monkeypatch, tmp_path):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module.os.path, "exists", lambda path: not path.endswith("nvcc") and os.path.isdir(path))
    monkeypatch.setattr(torch.version, "cuda", "11.3")
    with pytest.raises(RuntimeError, match="no nvcc to compile the kernels"):
        module._load("cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RuntimeError, match="not built with CUDA"):
        module._load("cuda")


A100, L40, H100, B200 = (8, 0), (8, 9), (9, 0), (10, 0)


@pytest.mark.parametrize("gpus, release, expected", [
    ([A100], (11, 0), ["80"]), ([L40, A100], (13, 0), ["80"]), ([H100], (13, 0), ["90", "90a"]),
    ([H100], (11, 8), ["90"]), ([H100], (11, 3), ["80", "ptx"]), ([B200], (13, 0), ["80", "ptx"]),
    ([A100, H100], (12, 4), ["80", "90", "90a"]), ([(7, 5), A100], (12, 4), ["80"])])
def test_targets(module, gpus, release, expected):
    """Those of the library's own build that these GPUs would run, so that the bits are the library's."""
    targets = module._targets(gpus, release)
    assert sorted(targets) == expected
    built = (ROOT / "cmake" / "cuda.cmake").read_text(encoding="utf-8")
    assert all(flag in built for flag in targets.values())


def test_gpus_that_are_too_old(module):
    with pytest.raises(RuntimeError, match="compute capability 7.0, 7.5; the kernels need 8.0"):
        module._targets([(7, 0), (7, 5)], (12, 0))


@pytest.mark.parametrize("gpus, release", [(None, None), ([A100], (11, 8)), ([H100], (13, 0))])
def test_what_is_compiled_is_what_the_librarys_build_compiles(module, gpus, release):
    """Every C file, and with a GPU every kernel and plan; Hopper's own kernels on Hopper, with CUDA 12."""
    cuda = gpus and ("nvcc", release, module._targets(gpus, release))
    first, second, link = module._commands(cuda)
    compiled = [word for command in first + second for word in command if word.endswith((".c", ".cu"))]
    assert len(compiled) == len(set(compiled))
    others = {"x86_64": {"neon"}, "aarch64": {"avx2", "avx512"}}.get(module.platform.machine(),
                                                                    {"neon", "avx2", "avx512"})
    expected = {path for path in module._FILES if path.endswith((".c", ".cu"))}
    expected -= {"src/levels/%s.c" % level for level in others}
    if not gpus:
        expected = {path for path in expected
                    if not path.endswith(".cu") and not path.split("/")[-1].startswith("cuda")
                    and (not path.startswith("src/cuda/") or path == "src/cuda/driver.c")}
    elif H100 not in gpus:
        expected.remove("src/cuda/split_sm90a.cu")
    assert set(compiled) == expected
    assert {word for word in link[0] if word.endswith(".o")} == {path[:-1] + "o" for path in expected
                                                               if path.endswith(".c")}


# ---- the library's own bits and speed --------------------------------------------------------------------------------


class Library:
    """The library on the CPU, through the package."""

    def __init__(self, threads=2):
        self.threads = threads

    def level(self):
        return library.info()["level"]

    def kl(self, predictions, targets, value, to_predictions, to_targets, upstream=None):
        """Fills the tensors that are not None. batchmean, strict."""
        library.call(library.KL[0], predictions, targets, None, None, upstream, None, value, to_predictions, to_targets,
                     library.REDUCTIONS["batchmean"], library.SEMANTICS["strict"], 0.0, 0, self.threads, None)


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
torch.manual_seed(int(sys.argv[3]))
from test_export import load
from test_export_model import Library, compare_bits
library = Library()
print(library.level(), compare_bits(load(sys.argv[2]).ModelNew(), library))
"""


@pytest.mark.parametrize("level", ["ref", "scalar", "avx2", "avx512", "neon"])
def test_bits_are_the_librarys(model_file, level, seed):
    done = subprocess.run([sys.executable, "-c", LEVEL_RUN, str(pathlib.Path(__file__).parent), str(model_file),
                           str(seed)], env=dict(os.environ, ONEPASS_ISA=level), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode != 0 and ("cannot run level" in done.stderr or "is not built into" in done.stderr):
        pytest.skip("this machine or library has no level " + level)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-2:] == [level, "240"]


def test_an_unknown_level_is_an_error(model_file):
    process = first_use(model_file, env=dict(os.environ, ONEPASS_ISA="fastest"))
    _, errors = process.communicate()
    assert process.returncode != 0 and "\"fastest\" is not a level" in errors


def test_beside_an_installed_onepass(module, model):
    """Two packages, two extensions, two namespaces of torch.ops."""
    import onepass.torch
    used = module._loaded["cpu"]
    assert used is not onepass.torch.kl and used.library is not onepass.library
    assert used.library._native is not onepass.library._native and used.errors.Error is not onepass.Error
    assert used.library._native.__file__ != onepass.library._native.__file__
    predictions, targets = probabilities(50, 60), probabilities(50, 60)
    assert torch.equal(model(predictions, targets), onepass.torch.kl_div_probs(predictions, targets))


@pytest.mark.parametrize("gradient", [False, True])
def test_speed_is_the_librarys(module, gradient, capsys):
    """In turns, by the thread's own time, for test machines are busy. The ratio is printed to be looked at; the bound is
    what a level that was not chosen, or a loop that was not inlined, would exceed."""
    library = Library(threads=1)
    predictions, targets = probabilities(4096, 4096), probabilities(4096, 4096)
    new, value = module.ModelNew(), torch.empty(())
    leaf = predictions.detach().requires_grad_(gradient)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ratio, model, other = turns.share(
            lambda: new(leaf, targets),
            lambda: library.kl(predictions, targets, value, torch.empty_like(predictions) if gradient else None, None),
            1.25)
    finally:
        torch.set_num_threads(threads)
    with capsys.disabled():
        print("\n4096 x 4096 float32, %s, one thread: library %.2f ms, exported model %.2f ms, ratio %.3f" % (
            "value and gradient" if gradient else "value", 1e3 * other, 1e3 * model, ratio))
    assert ratio < 1.25
