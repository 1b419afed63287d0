"""Losses from logits in training: backward passes of every kind, in place, autocast; and whoever looks on: torch.func,
torch.compile, torch.export, traces, modes and tensor classes."""

import io
import math
import threading

import pytest

import losses_samples as samples
import torch_samples
from losses_samples import DIVERGENCES, MIXTURES, assert_near, leaf, ours
from torch_samples import F, needs_compile, needs_func, needs_func_in_graphs, needs_whole_graphs, torch, watched

import onepass.torch
from onepass import errors
from onepass.torch import losses_call
from onepass.torch.losses import cross_entropy

SHAPE = 6, 40


def inputs_of(name, dtype=torch.float32):
    generator = samples.random(name)
    return (leaf(samples.logits(generator, SHAPE, dtype)), leaf(samples.logits(generator, SHAPE, dtype)),
            samples.labels(generator, SHAPE[:1], SHAPE[1]))


def losses(x, y, labels):
    """{name: (function of (x, y), inputs that have a gradient)}, of every operator."""
    made = {name: (lambda x, y, name=name: ours(name, x, y, labels=labels, label_weight=0.5, **MIXTURES.get(name, {})),
                   (x, y)) for name in DIVERGENCES}
    made["cross_entropy"] = lambda x, y: cross_entropy(x, labels), (x,)
    made["probs"] = (lambda x, y: onepass.torch.kl_div_logits(x, y.softmax(-1), target="probs"), (x, y))
    return made


# ---- backward --------------------------------------------------------------------------------------------------------


def test_one_pass(monkeypatch):
    """Forward makes value and gradient in one call; backward hands it over if the upstream gradient is the expected
    one, which the host sees on the CPU, else has it made anew; either way with the same bits."""
    x, y, labels = inputs_of("one pass")
    seen = watched(monkeypatch, "divergence_logits_logits", "cross_entropy_logits_labels")
    monkeypatch.setattr(losses_call, "_expected", {})
    for function, of in ((lambda: onepass.torch.kl_div_logits(x, y), (x, y)), (lambda: cross_entropy(x, labels), (x,))):
        plain = torch.autograd.grad(function(), of)
        for factor, calls in ((1.0, 1), (3.0, 2), (3.0, 1), (0.0, 2), (0.0, 1), (math.inf, 2), (math.inf, 1),
                              (math.nan, 2), (math.nan, 2), (1.0, 2)):
            seen.clear()
            found = torch.autograd.grad(function(), of, torch.tensor(factor))
            assert len(seen) == calls and all(arguments[9] is found[0] for _, arguments in seen)  # grad_predictions
            assert seen[0][1][8] is not None  # the value
            if calls == 2:
                assert seen[1][1][6] is not None and seen[1][1][8] is None  # made for; no value
            if math.isnan(factor):
                assert all(bool(a[b != 0].isnan().all()) and bool(b.any()) for a, b in zip(found, plain))
            elif factor == 1.0:
                assert all(map(torch.equal, found, plain))
            elif factor == 0.0:
                assert not any(bool(gradient.any()) for gradient in found)
            elif factor == 3.0:
                for a, b in zip(found, plain):
                    assert_near(a, 3 * b, steps=4)
        for factor in (3.0, 3.0, 0.5):
            found = torch.autograd.grad(factor * function(), of)
            retained = function()
            torch.autograd.grad(retained, of, torch.tensor(7.0), retain_graph=True)
            again = torch.autograd.grad(retained, of, torch.tensor(factor))
            assert all(map(torch.equal, found, again))
            for a, b in zip(found, plain):
                assert_near(a, factor * b, steps=4)


def test_rows_are_made_in_backward(monkeypatch):
    """Unreduced: from the rows' upstream gradients, of stride 0 too."""
    x, y, labels = inputs_of("rows", torch.float64)
    seen = watched(monkeypatch, "divergence_logits_logits")
    upstream = torch.randn(6, dtype=torch.float64)
    rows = onepass.torch.kl_div_logits(x, y, reduction="none")
    assert seen[0][1][9] is None
    found = torch.autograd.grad(rows, (x, y), upstream, retain_graph=True)
    exact = (F.softmax(y, -1) * (F.log_softmax(y, -1) - F.log_softmax(x, -1))).sum(-1)
    for a, b in zip(found, torch.autograd.grad(exact, (x, y), upstream, retain_graph=True)):
        assert_near(a, b)
    for a, b in zip(torch.autograd.grad(rows.sum(), (x, y)), torch.autograd.grad(exact.sum(), (x, y))):
        assert_near(a, b)


def test_only_what_is_needed(monkeypatch):
    """No gradient that nobody asked for."""
    x, y, labels = inputs_of("needed")
    seen = watched(monkeypatch, "divergence_logits_logits")
    for a, b, needs in ((x, y.detach(), (True, False)), (x.detach(), y, (False, True)),
                        (x.detach(), y.detach(), (False, False))):
        seen.clear()
        onepass.torch.js_logits(a, b)
        assert tuple(seen[0][1][i] is not None for i in (9, 15)) == needs
    with torch.no_grad():
        seen.clear()
        onepass.torch.js_logits(x, y)
        assert seen[0][1][9] is None and seen[0][1][15] is None


def test_backward_of_every_kind():
    """Twice through a graph, two forwards before a backward, accumulation; always the same bits."""
    x, y, labels = inputs_of("kinds")
    for name, (function, of) in losses(x, y, labels).items():
        expected = torch.autograd.grad(function(x, y), of)
        loss = function(x, y)
        for _ in range(3):
            assert all(map(torch.equal, torch.autograd.grad(loss, of, retain_graph=True), expected)), name
        first, second = function(x, y), function(x, y)
        assert all(map(torch.equal, torch.autograd.grad(second, of), expected)), name
        assert all(map(torch.equal, torch.autograd.grad(first, of), expected)), name
        for tensor in of:
            tensor.grad = None
        for _ in range(2):
            function(x, y).backward()
        for tensor, gradient in zip(of, expected):
            assert torch.equal(tensor.grad, gradient + gradient)
            tensor.grad = None
        with pytest.raises(RuntimeError):
            loss = function(x, y)
            loss.backward()
            loss.backward()
        for tensor in of:
            tensor.grad = None


def test_changed_inputs_are_noticed():
    x, y, labels = inputs_of("changed")
    z = x * 1
    loss = cross_entropy(z, labels)
    with torch.no_grad():
        z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_second_derivatives():
    x, y, labels = inputs_of("second", torch.float64)
    exact = {"cross_entropy": lambda x, y: F.cross_entropy(x, labels),
             "kl_div_logits": lambda x, y: (F.softmax(y, -1) * (F.log_softmax(y, -1) - F.log_softmax(x, -1))).sum() / 6}
    for name, theirs in exact.items():
        function = (lambda x, y: onepass.torch.kl_div_logits(x, y)) if name == "kl_div_logits" \
            else (lambda x, y: cross_entropy(x, labels))
        results = []
        for loss in (function, theirs):
            gradient, = torch.autograd.grad(loss(x, y), x, create_graph=True)
            results.append((gradient, torch.autograd.grad(gradient.square().sum(), x)[0]))
        for a, b in zip(*results):
            assert_near(a, b)


@needs_func
def test_batched_gradients():
    x, y, labels = inputs_of("batched", torch.float64)
    basis = torch.eye(6, dtype=torch.float64)
    for function in (lambda: cross_entropy(x, labels, reduction="none"),
                     lambda: onepass.torch.token_log_probs(x, labels)):
        found, = torch.autograd.grad(function(), x, basis, is_grads_batched=True)
        rows = function()
        for i in range(6):
            assert_near(found[i], torch.autograd.grad(rows, x, basis[i], retain_graph=True)[0])


def test_threads():
    """Backward passes of several threads through one graph."""
    x, y, labels = inputs_of("threads")
    loss = onepass.torch.kl_div_logits(x, y)
    expected = torch.autograd.grad(loss, x, retain_graph=True)[0]
    found = []
    threads = [threading.Thread(target=lambda: found.append(torch.autograd.grad(loss, x, retain_graph=True)[0]))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.equal(gradient, expected) for gradient in found)


# ---- in place --------------------------------------------------------------------------------------------------------


def test_in_place():
    """The gradient is in the logits' memory, and is the same."""
    x, y, labels = inputs_of("in place")
    for name, (function, of) in losses(x, y, labels).items():
        if name == "probs":
            continue
        mixture = MIXTURES.get(name, {})
        for factor in (1.0, 2.0):
            expected = torch.autograd.grad(factor * function(x * 1, y), of)
            z = x * 1
            loss = cross_entropy(z, labels, inplace=True) if name == "cross_entropy" else ours(
                name, z, y, labels=labels, label_weight=0.5, inplace=True, **mixture)
            kept = []
            z.register_hook(lambda gradient: kept.append(gradient.data_ptr()))
            found = torch.autograd.grad(factor * loss, of)
            assert kept == [z.data_ptr()]
            for a, b in zip(found, expected):
                assert_near(a, b, steps=4)


def test_in_place_is_declared():
    """Whoever needs the logits afterwards is told, as is a second backward; a leaf is refused."""
    x, y, labels = inputs_of("in place, declared")
    z = x.exp()  # which keeps its result
    loss = cross_entropy(z, labels, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    z = x * 1
    loss = cross_entropy(z, labels, inplace=True)
    loss.backward(retain_graph=True)
    with pytest.raises(errors.InvalidArgument, match="cross_entropy: inplace: True with a second backward"):
        loss.backward()
    for tensor in (x, x[:], x.view(-1).view(SHAPE)):
        with pytest.raises(errors.InvalidArgument, match="leaf"):
            cross_entropy(tensor, labels, inplace=True)
    with pytest.raises(errors.InvalidArgument, match="inplace: True with reduction 'none'"):
        cross_entropy(x * 1, labels, reduction="none", inplace=True)
    loss = cross_entropy(x * 1, labels, inplace=True)
    with pytest.raises(errors.Unsupported, match="cross_entropy: inplace: True with create_graph"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_in_place_without_gradients():
    """Nothing is written."""
    x, y, labels = inputs_of("in place, none")
    before = x.detach().clone()
    cross_entropy(x.detach(), labels, inplace=True)
    with torch.no_grad():
        cross_entropy(x, labels, inplace=True)
    loss = onepass.torch.kl_div_logits(before, y, inplace=True)
    loss.backward()
    assert torch.equal(x.detach(), before)


# ---- autocast --------------------------------------------------------------------------------------------------------


def test_autocast():
    x, y, labels = inputs_of("autocast")
    half = leaf(x.detach().bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16) if hasattr(torch, "autocast") else torch.cpu.amp.autocast():
        value = cross_entropy(half, labels)
        other = onepass.torch.kl_div_logits(half, y)
    assert value.dtype is other.dtype is torch.float32
    assert_near(value, F.cross_entropy(half.detach().float(), labels), steps=8)
    gradient, = torch.autograd.grad(value, half)
    assert gradient.dtype is torch.bfloat16


# ---- torch.func ------------------------------------------------------------------------------------------------------


@needs_func
def test_transforms():
    x, y, labels = (tensor.detach() for tensor in inputs_of("func", torch.float64))
    func = torch.func

    def ours_of(x, labels):
        return cross_entropy(x, labels, label_smoothing=0.1, z_loss=0.01)

    def theirs_of(x, labels):
        kept = labels != -100
        extra = 0.01 * (x.logsumexp(-1).square() * kept).sum() / kept.sum()
        return F.cross_entropy(x, labels, label_smoothing=0.1) + extra
    for transform in (func.grad, func.hessian, lambda f: lambda x, labels: func.jvp(
            lambda x: f(x, labels), (x,), (y,))[1]):
        a, b = (transform(f)(x[:3, :5], labels[:3] % 5) if transform is func.hessian else transform(f)(x, labels)
                for f in (ours_of, theirs_of))
        assert_near(a, b, steps=512)
    mapped = func.vmap(func.grad(lambda x, y: onepass.torch.js_logits(x, y, reduction="sum")))(x, y)
    whole = leaf(x)
    assert_near(mapped, torch.autograd.grad(onepass.torch.js_logits(whole, y, reduction="sum"), whole)[0], steps=512)


@needs_func
def test_forward_mode():
    x, y, labels = (tensor.detach() for tensor in inputs_of("forward mode", torch.float64))
    from torch.autograd import forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, y)
        value, tangent = forward_ad.unpack_dual(cross_entropy(dual, labels))
    whole = leaf(x)
    gradient, = torch.autograd.grad(F.cross_entropy(whole, labels), whole)
    assert_near(tangent, (gradient * y).sum(), steps=512)


def test_jit_trace():
    x, y, labels = inputs_of("trace")
    with torch_samples.no_warnings():
        traced = torch.jit.trace(lambda x, labels: cross_entropy(x, labels), (x.detach(), labels))
    assert_near(traced(y.detach(), labels), F.cross_entropy(y.detach(), labels))
    gradient, = torch.autograd.grad(traced(y, labels), y)
    assert_near(gradient, torch.autograd.grad(F.cross_entropy(y, labels), y)[0])


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def compiled(function, **options):
    torch._dynamo.reset()
    with torch_samples.no_warnings():
        return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@needs_compile
def test_compile():
    """No graph break and the eager bits, with gradients (a pass over them more) and without."""
    x, y, labels = inputs_of("compile")
    for name in ("js_logits", "cross_entropy", "probs"):
        function, of = losses(x, y, labels)[name]
        f = compiled(function)
        expected = samples.with_gradients(function(x, y), of)
        for a, b in zip(samples.with_gradients(f(x, y), of), expected):
            assert torch.equal(a, b), name
        with torch.no_grad():
            assert torch.equal(f(x, y), expected[0])
        # Backward of the softmax before a loss from probabilities subtracts the row's divergence from each term: what is
        # rounded is of the value's size, however small the difference.
        size = 3 * float(expected[0]) if name == "probs" else 0
        for a, b in zip(samples.with_gradients(3 * f(x, y), of), expected):
            assert samples.error(a, 3 * b) <= samples.bound(a.dtype, float((3 * b).abs().max()) + size, 4), name


@needs_compile
def test_compile_with_options():
    """Unreduced, float16 (whose gradient is made in backward), outputs, tokens, and a divisor on the device."""
    x, y, labels = inputs_of("compile options")
    half, mask, labels = leaf(x.detach().half()), torch.arange(6) != 3, labels.clamp(max=34)

    def several(x, half, labels):
        loss, lse, best = cross_entropy(half, labels, outputs=("lse", "argmax"), label_smoothing=0.1)
        rows = cross_entropy(x, labels, reduction="none", columns=35, softcap=5.0, row_mask=mask)
        log_prob, entropy = onepass.torch.token_log_probs(x, labels, 1.3, return_entropy=True)
        total = onepass.torch.kl_div_logits(x, y, reduction="sum", divisor=(labels != -100).sum(), labels=labels)
        return 1000 * loss + (rows * lse).sum() + (log_prob * entropy).sum() + total, best

    f = compiled(several)
    found, expected = f(x, half, labels), several(x, half, labels)
    assert torch.equal(found[1], expected[1])
    for a, b in zip(samples.with_gradients(found, (x, half)), samples.with_gradients(expected, (x, half))):
        assert_near(a, b, steps=8)


@needs_whole_graphs
def test_compile_with_dynamic_shapes():
    f = compiled(lambda x, y, labels: onepass.torch.kl_div_logits(x, y, labels=labels, label_weight=1.0), dynamic=True)
    generator = samples.random("dynamic")
    for rows, columns in ((4, 7), (5, 9), (11, 30)):
        x, y = leaf(samples.logits(generator, (rows, columns))), samples.logits(generator, (rows, columns))
        labels = samples.labels(generator, (rows,), columns)
        expected = samples.with_gradients(onepass.torch.kl_div_logits(x, y, labels=labels, label_weight=1.0), (x,))
        for a, b in zip(samples.with_gradients(f(x, y, labels), (x,)), expected):
            assert_near(a, b)


@needs_func_in_graphs
def test_compile_with_transforms_inside():
    x, y, labels = (tensor.detach() for tensor in inputs_of("compile, func", torch.float64))
    gradient = torch.func.grad(lambda x: cross_entropy(x, labels))
    assert_near(compiled(gradient)(x), gradient(x))
    gradient = torch.func.grad(lambda x: onepass.torch.token_log_probs(x, labels).sum())
    assert_near(compiled(gradient)(x), gradient(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(12, 30)
        self.loss = onepass.torch.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, data, labels):
        logits = self.head(data)
        return self.loss(logits, labels) + onepass.torch.token_log_probs(logits, labels).mean()


@needs_whole_graphs
@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    generator = samples.random("export")
    data, labels = torch.randn(8, 12, generator=generator), samples.labels(generator, (8,), 30)
    model, batch = Model(), torch.export.Dim("batch", min=2)
    with torch_samples.no_warnings():
        program = torch.export.export(model, (data, labels), strict=strict, dynamic_shapes=({0: batch}, {0: batch}))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names.count("onepass.logits_loss.default") == names.count("onepass.token_log_probs.default") == 1
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for exported in (program, torch.export.load(file)):
        for rows in (8, 3):
            assert_near(exported.module()(data[:rows], labels[:rows]), model(data[:rows], labels[:rows]))


@needs_compile
def test_opcheck():
    """PyTorch's own examination of the operators."""
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("PyTorch %d.%d has no torch.library.opcheck" % torch_samples.VERSION)
    x, y, labels = inputs_of("opcheck")
    tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    row = torch.rand(6)
    call = losses_call.Call(0, 6, 0, 0.0, 1.0, 0.0, 0, -100, 0.5, 0.1, 0.01, 0.0, 2, 0.3, 1.0, 2.0, 1.0, 0.0, 63)
    everything = x, y, labels, torch.rand(40), row, row > 0.2, None
    torch.library.opcheck(torch.ops.onepass.logits_loss.default, everything + call, test_utils=tests)
    alone = call._replace(form=3, divergence=0, mixture=0.0, divergence_weight=0.0, target_temperature=0.0,
                          label_temperature=0.0, outputs=1, reduction=3)
    torch.library.opcheck(torch.ops.onepass.logits_loss.default, (x, None, labels) + (None,) * 4 + alone,
                          test_utils=tests)
    x, y = x.detach(), y.detach()
    everything = (x, y) + everything[2:]
    torch.library.opcheck(torch.ops.onepass.logits_loss_with_gradients.default, everything + call + (True, False),
                          test_utils=tests[:2])
    torch.library.opcheck(torch.ops.onepass.logits_loss_backward.default,
                          (torch.ones(()),) + everything + call + (True, True), test_utils=tests[:2])
    token = 0, 1.3, 0.0, 0, -100, True, True
    indices = labels.unsqueeze(-1)
    torch.library.opcheck(torch.ops.onepass.token_log_probs.default, (leaf(x), indices, None) + token, test_utils=tests)
    torch.library.opcheck(torch.ops.onepass.token_log_probs_backward.default,
                          (x, indices, None, torch.ones(6, 1), None, row) + token, test_utils=tests[:2])


# ---- modes and tensor classes ----------------------------------------------------------------------------------------


@needs_compile
def test_tensors_without_numbers():
    from torch._subclasses.fake_tensor import FakeTensorMode
    x, y, labels = inputs_of("fake")
    for to in (lambda t: t.detach().to("meta").requires_grad_(t.requires_grad),
               lambda t, mode=FakeTensorMode(): mode.from_tensor(t)):
        for reduction in ("none", "mean"):
            a, b = to(x), to(labels)
            found = samples.with_gradients(cross_entropy(a, b, reduction=reduction), (a,))
            expected = samples.with_gradients(cross_entropy(x, labels, reduction=reduction), (x,))
            for made, real in zip(found, expected):
                assert (made.shape, made.dtype, made.stride()) == (real.shape, real.dtype, real.stride())


@needs_compile
def test_dispatch_modes():
    """A mode sees operators, also if it is entered between forward and backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sees(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))
    x, y, labels = inputs_of("modes")
    expected = torch.autograd.grad(cross_entropy(x, labels), x)[0]
    with Sees() as mode:
        value = cross_entropy(x, labels)
        assert torch.equal(torch.autograd.grad(value, x)[0], expected)
    assert "onepass.logits_loss_with_gradients.default" in mode.names
    value = cross_entropy(x, labels)
    log_prob = onepass.torch.token_log_probs(x, labels)
    with Sees() as mode:
        assert torch.equal(torch.autograd.grad(value, x)[0], expected)
        torch.autograd.grad(log_prob.sum(), x)
    assert "onepass.logits_loss_backward.default" in mode.names
    assert "onepass.token_log_probs_backward.default" in mode.names


class Named(torch.Tensor):
    """A tensor class of somebody's, with nothing but PyTorch's defaults."""


class Answers(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return function.__name__, kwargs


def test_tensor_classes():
    x, y, labels = inputs_of("classes")
    named = x.detach().as_subclass(Named).requires_grad_()
    for loss in (cross_entropy(named, labels), onepass.torch.kl_div_logits(named, y.detach()),
                 onepass.torch.token_log_probs(named, labels).sum()):
        assert type(loss) is Named
        gradient, = torch.autograd.grad(loss, named)
        assert bool(torch.isfinite(gradient).all())
    own = x.detach().as_subclass(Answers)
    for name in DIVERGENCES:
        found = ours(name, own, y, temperature=2.0, **MIXTURES.get(name, {}))
        assert found[0] == name and found[1]["temperature"] == 2.0
    assert cross_entropy(own, labels, z_loss=0.5)[1]["z_loss"] == 0.5
    assert onepass.torch.token_log_probs(own, labels, 2.0)[1]["temperature"] == 2.0
