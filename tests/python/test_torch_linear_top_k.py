"""linear_kl_div_top_k: value and gradients against the plain formulas in float64, for every form of a teacher and in
every way a call can go; against kl_div_top_k of all logits, special rows too; what is frozen costs nothing; chunks
change no bits; rows that take no part; what is refused."""

import math

import pytest

import losses_samples as samples
import torch_samples
from losses_samples import assert_near, leaf
from test_torch_linear_loss import given, layer
from test_torch_top_k import FORMS, OUTSIDES, is_infinite, messy, rows_of, teacher
from torch_samples import F, needs_compile, needs_func, torch, watched

from onepass import errors, library
from onepass.torch import kl_div_top_k, linear, linear_kl_div_top_k, losses_call, losses_linear_top_k

ROWS, DEPTH, CLASSES, K = 6, 5, 40, 7


def every_option(generator, rows=(ROWS,)):
    return {"labels": samples.labels(generator, rows, CLASSES - 2), "label_weight": 0.7, "label_smoothing": 0.1,
            "label_temperature": 1.5, "z_loss": 0.02, "entropy_bonus": 0.1, "columns": CLASSES - 2, "softcap": 4.0,
            "class_weights": torch.rand(CLASSES, generator=generator, dtype=torch.float64) + 0.1, "temperature": 1.3,
            "row_weights": torch.rand(rows, generator=generator, dtype=torch.float64), "divergence_weight": 2.0,
            "row_mask": torch.arange(math.prod(rows)).reshape(rows) != 3}


def exact(x, w, b, values, indices, **options):
    """By way of all logits, in float64."""
    logits = F.linear(x.double(), w.double(), None if b is None else b.double())
    return kl_div_top_k(logits, values.double(), indices, **options)


def exact_by_formula(x, w, b, values, indices, form, outside, reverse, temperature):
    """The same of rows without options, of the formulas instead."""
    logits = F.linear(x.double(), w.double(), None if b is None else b.double())
    k = values.shape[-1]
    rows = rows_of(logits.reshape(-1, CLASSES), values.reshape(-1, k), indices.reshape(-1, k), form, outside, reverse,
                   temperature)
    return rows.reshape(x.shape[:-1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("outside", OUTSIDES)
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients(form, outside, reverse):
    generator = samples.random("linear top-k %s %s %s" % (form, outside, reverse))
    for dtype in torch_samples.DTYPES:
        for rows, bias, reduction in (((ROWS,), True, "batchmean"), ((2, 3), False, "none"), ((), True, "sum")):
            x, w, b = layer(generator, rows, dtype, bias, CLASSES)
            values, indices = teacher(generator, form, math.prod(rows),
                                      dtype=torch.float64 if dtype is torch.float64 else torch.float32,
                                      all_classes=is_infinite(form, outside, reverse))
            values, indices = (tensor.reshape(rows + tensor.shape[-1:]) for tensor in (values, indices))
            expected = exact_by_formula(x, w, b, values, indices, form, outside, reverse, 1.4)
            if reduction != "none":
                expected = expected.sum() / (ROWS if reduction == "batchmean" else 1)
            found = linear_kl_div_top_k(x, w, values, indices, linear_bias=b, form=form, outside=outside,
                                        reverse=reverse, temperature=1.4, reduction=reduction)
            assert found.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
            assert found.shape == expected.shape
            upstream = torch.rand(found.shape, generator=generator, dtype=torch.float64) + 0.5
            found = samples.with_gradients(found, given(x, w, b), upstream)
            assert all(gradient.dtype is dtype for gradient in found[1:])
            for a, c in zip(found, samples.with_gradients(expected, given(x, w, b), upstream)):
                assert_near(a, c)


@pytest.mark.parametrize("outside", OUTSIDES)
@pytest.mark.parametrize("form", FORMS)
def test_devices_without_kernels(form, outside, monkeypatch):
    """There PyTorch's operations do it, to the same formulas."""
    monkeypatch.setattr(losses_call, "_DEVICES", ())
    monkeypatch.setattr(torch_samples, "DTYPES", [torch.float64, torch.float32])
    seen = watched(monkeypatch, "divergence_logits_top_k")
    for reverse in (False, True):
        test_values_and_gradients(form, outside, reverse)
    assert not seen


@pytest.mark.parametrize("devices", [("cpu", "meta"), ()])
def test_every_option(devices, monkeypatch):
    generator = samples.random("linear top-k options")
    for rows in ((ROWS,), (2, 3)):
        x, w, b = layer(generator, rows, classes=CLASSES)
        values, indices = messy(generator, "log_probs")
        values, indices = values.reshape(rows + (K,)), indices.reshape(rows + (K,))
        options = every_option(generator, rows)
        for reduction in ({"reduction": "mean"}, {"reduction": "none"}, {"reduction": "valid"},
                          {"reduction": "batchmean"}, {"reduction": "sum", "divisor": 2.5},
                          {"reduction": "sum", "divisor": torch.tensor(7)}):
            named = dict(options, **reduction)
            expected = samples.with_gradients(exact(x, w, b, values, indices, **named), (x, w, b))
            with monkeypatch.context() as patch:
                patch.setattr(losses_call, "_DEVICES", devices)
                found = linear_kl_div_top_k(x, w, values, indices, linear_bias=b, **named)
                for a, c in zip(samples.with_gradients(found, (x, w, b)), expected):
                    assert_near(a, c)


@pytest.mark.parametrize("outside", OUTSIDES)
@pytest.mark.parametrize("form", FORMS)
def test_special_rows(form, outside):
    """With a weight that makes the hidden states the logits: of kl_div_top_k the very bits, of padding, repetitions,
    rows that name nothing or what is no class, masses beyond 1 and numbers that are none, whatever they are."""
    generator = samples.random("linear top-k special %s %s" % (form, outside))
    values, indices = messy(generator, form)
    indices[2, 0] = CLASSES
    if form != "logits":
        values[3] = values[3] + (1.0 if form == "probs" else 3.0)
    values[5, 0] = math.nan
    x = torch.randn((ROWS, CLASSES), generator=generator, dtype=torch.float64)
    w = torch.eye(CLASSES, dtype=torch.float64)
    for semantics in ("strict", "finite"):
        for reverse in (False, True):
            named = {"form": form, "outside": outside, "semantics": semantics, "reverse": reverse, "reduction": "none"}
            y, z = leaf(x), leaf(x)
            found = linear_kl_div_top_k(y, w, values, indices, **named)
            expected = kl_div_top_k(z, values, indices, **named)
            found.sum().backward()
            expected.sum().backward()
            assert torch_samples.same(found, expected) and found[2].isnan() and found[5].isnan()
            finite = torch.isfinite(z.grad).all(-1)  # of others 0 times infinity makes NaN
            assert not finite[2] and not finite[5] and (finite[0] or is_infinite(form, outside, reverse))
            assert torch.equal(torch.isfinite(y.grad).all(-1), finite)
            assert torch.equal(y.grad[finite], z.grad[finite])


@pytest.mark.parametrize("devices", [("cpu", "meta"), ()])
def test_rows_that_take_no_part(devices, monkeypatch):
    """They are not read: neither hidden states nor teacher. A weight that is not finite gives them 0 as well."""
    monkeypatch.setattr(losses_call, "_DEVICES", devices)
    generator = samples.random("linear top-k masked")
    x, w, b = layer(generator, classes=CLASSES)
    values, indices = teacher(generator, "log_probs")
    mask = torch.arange(ROWS) % 3 != 1
    kept = [tensor.detach()[mask] for tensor in (x, values, indices)]
    with torch.no_grad():
        x[1], x[4] = math.nan, math.inf
    values[1], indices[4] = math.nan, 10 * CLASSES
    labels = torch.where(mask, torch.zeros(ROWS, dtype=torch.int64), torch.full((ROWS,), -100))
    y = leaf(kept[0])
    expected = samples.with_gradients(linear_kl_div_top_k(y, w, *kept[1:], linear_bias=b, reduction="valid"), (y, w, b))
    for named in ({"row_mask": mask}, {"row_mask": mask.to(torch.uint8)}, {"labels": labels}):
        value = linear_kl_div_top_k(x, w, values, indices, linear_bias=b, reduction="valid", **named)
        found = samples.with_gradients(value, (x, w, b))
        assert (found[1][~mask] == 0).all()
        found[1] = found[1][mask]
        for a, c in zip(found, expected):
            assert_near(a, c)
    if devices:
        broken = w.detach().clone()
        broken[0, 0] = math.inf
        value = linear_kl_div_top_k(x, broken, values, indices, linear_bias=b, reduction="none", row_mask=mask)
        made, = torch.autograd.grad(value.sum(), x)
        assert (made[~mask] == 0).all() and made[mask].isnan().any() and (value[~mask] == 0).all()


@pytest.mark.parametrize("devices", [("cpu", "meta"), ()])
def test_nothing_counts(devices, monkeypatch):
    """The mean is NaN, or 0; gradients are 0, and they are there. So they are of no rows at all."""
    monkeypatch.setattr(losses_call, "_DEVICES", devices)
    generator = samples.random("linear top-k of nothing")
    x, w, b = layer(generator, classes=CLASSES)
    values, indices = teacher(generator, "log_probs")
    mask = torch.zeros(ROWS, dtype=torch.bool)
    for semantics, reduction, value in (("strict", "valid", math.nan), ("finite", "valid", 0), ("strict", "sum", 0)):
        for rows in (ROWS, 0):
            found = linear_kl_div_top_k(x[:rows], w, values[:rows], indices[:rows], linear_bias=b, reduction=reduction,
                                        semantics=semantics, row_mask=mask[:rows])
            assert found.isnan() if math.isnan(value) else found == value
            for gradient, tensor in zip(torch.autograd.grad(found, (x, w, b)), (x, w, b)):
                assert gradient.shape == tensor.shape and (gradient == 0).all(), (semantics, reduction, rows)


@pytest.mark.parametrize("reduction", ["batchmean", "none"])
def test_only_what_is_needed(reduction, monkeypatch):
    """Each choice of what is frozen: the others' gradients are those that there were, and only their products are
    made, in one pass if the loss is reduced."""
    generator = samples.random("linear top-k frozen")
    tensors = layer(generator, classes=CLASSES)
    values, indices = teacher(generator, "log_probs")

    def loss(x, w, b):
        return linear_kl_div_top_k(x, w, values, indices, linear_bias=b, reduction=reduction).sum()

    expected = torch.autograd.grad(loss(*tensors), tensors)
    asked, call = [], library.call

    def watch(operator, *arguments):
        asked.append((operator, [arguments[i] is not None for i in (3, 4, 5)]
                      if operator == library.LINEAR_BACKWARD else None))
        return call(operator, *arguments)

    monkeypatch.setattr(library, "call", watch)
    for bits in range(8):
        needs = [bool(bits >> i & 1) for i in range(3)]
        given = [tensor.detach().requires_grad_(need) for tensor, need in zip(tensors, needs)]
        del asked[:]
        value = loss(*given)
        assert value.requires_grad == any(needs)
        if any(needs):
            value.backward()
        for tensor, need, gradient in zip(given, needs, expected):
            assert (tensor.grad is not None) == need
            if need:
                assert torch.equal(tensor.grad, gradient)
        passes = 1 + (reduction == "none" and any(needs))
        assert [operator for operator, _ in asked].count(library.LINEAR) == passes
        assert [operator for operator, _ in asked].count(library.DIVERGENCE_TOP_K) == passes
        products = [of for operator, of in asked if operator == library.LINEAR_BACKWARD]
        assert len(products) == sum(needs)
        assert [sum(of) for of in zip(*products)] == [int(need) for need in needs if any(needs)]


@pytest.mark.parametrize("rows", [700, 2 * 264 + 1, 3 * 264])
def test_chunks(rows, monkeypatch):
    """A tile of rows at a time, two or all of them: the same bits, and gradients to weight and bias that are as good,
    also where products are added part by part. Few rows after whole tiles are multiplied in another way."""
    monkeypatch.setattr(losses_linear_top_k, "_ADDED_BYTES", 1)
    generator = samples.random("linear top-k chunks %d" % rows)
    for dtype in torch_samples.DTYPES:
        x, w, b = (leaf(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
                   for shape in ((rows, 20), (300, 20), (300,)))
        values, indices = teacher(generator, "log_probs", rows, 300,
                                  dtype=torch.float64 if dtype is torch.float64 else torch.float32)
        two = 2 * 264 * (300 + 20) * (8 if dtype is torch.float64 else 4)
        for reduction in ("batchmean", "none"):
            whole, *cut = (samples.with_gradients(
                linear_kl_div_top_k(x, w, values, indices, linear_bias=b, chunk_bytes=size, reduction=reduction),
                (x, w, b)) for size in (None, 1, two, two - 1))
            exactly = samples.with_gradients(exact(x, w, b, values, indices, reduction=reduction), (x, w, b))
            for found in [whole] + cut:
                assert torch.equal(whole[0], found[0]) and torch.equal(whole[1], found[1])
                for a, c in zip(found, exactly):
                    assert_near(a, c)


def test_chunks_are_as_large_as_they_may(monkeypatch):
    """Rows of logits that are there at once, by chunk_bytes: of 4 bytes, with hidden states."""
    x, w, _ = layer(samples.random("linear top-k rows"), (1000,), torch.float32, False, CLASSES)
    values, indices = torch.full((1000, 1), -1.0), torch.zeros((1000, 1), dtype=torch.int64)
    counts, call = [], library.call

    def watch(operator, *arguments):
        if operator == library.DIVERGENCE_TOP_K:
            counts.append(len(arguments[0]))
            assert arguments[0].data_ptr() == arguments[9].data_ptr()  # the gradient takes the logits' place
        return call(operator, *arguments)

    monkeypatch.setattr(library, "call", watch)
    tile = 264 * (CLASSES + DEPTH) * 4
    for size, expected in ((None, [1000]), (1, [264, 264, 264, 208]), (2 * tile, [528, 472]),
                           (2 * tile - 1, [264, 264, 264, 208]), (3 * tile, [792, 208]), (4 * tile, [1000])):
        del counts[:]
        linear_kl_div_top_k(x, w, values, indices, chunk_bytes=size)
        assert counts == expected


def test_layouts():
    """Strided tensors of several dimensions, expanded ones and other integers."""
    generator = samples.random("linear top-k layouts")
    x, w, b = layer(generator, (2, 3), classes=CLASSES)
    values, indices = teacher(generator, "log_probs")
    values, indices = values.reshape(2, 3, K), indices.reshape(2, 3, K)
    expected = samples.with_gradients(linear_kl_div_top_k(x, w, values, indices, linear_bias=b, reduction="none"),
                                      (x, w, b))
    y = leaf(x.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0))
    v = leaf(w.detach().t().contiguous().t())
    turned = values.transpose(0, 1).contiguous().transpose(0, 1)
    found = samples.with_gradients(linear_kl_div_top_k(
        y, v, turned, indices.to(torch.int32).permute(2, 0, 1).contiguous().permute(1, 2, 0), linear_bias=b,
        reduction="none"), (y, v, b))
    for a, c in zip(found, expected):
        assert_near(a, c)
    alike = leaf(x.detach()[:1, :1]).expand(2, 3, DEPTH)
    one = values[:1, :1], indices[:1, :1]
    value = linear_kl_div_top_k(alike, w, *(tensor.expand(2, 3, K) for tensor in one), reduction="none")
    assert torch.equal(value, linear_kl_div_top_k(alike[:1, :1], w, *one, reduction="none").expand(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_of_half_types_as_a_gpu_keeps_them(dtype, monkeypatch):
    """In that type: the bits of linear and kl_div_top_k one after the other, wherever gradients are made."""
    monkeypatch.setattr(losses_linear_top_k, "_is_in_float", lambda inputs: False)
    generator = samples.random("linear top-k half logits")
    x, w, b = layer(generator, dtype=dtype, classes=CLASSES)
    values, indices = teacher(generator, "log_probs", dtype=torch.float32)
    for waits in (False, True):
        monkeypatch.setattr(losses_linear_top_k, "_waits", lambda call, inputs: waits)
        found = linear_kl_div_top_k(x, w, values, indices, linear_bias=b, reduction="sum")
        expected = kl_div_top_k(linear(x, w, b), values, indices, reduction="sum")
        assert_near(found, expected)
        for a, c in zip(torch.autograd.grad(found, (x, w, b)), torch.autograd.grad(expected, (x, w, b))):
            assert a.dtype is dtype and torch.equal(a, c)


def test_mixed_types():
    """The loss is float64 if an input is; gradients have the types of their tensors."""
    generator = samples.random("linear top-k types")
    for types in ((torch.bfloat16, torch.float32, torch.float32), (torch.float32, torch.float64, torch.float32),
                  (torch.float32, torch.float32, torch.float64), (torch.float32, torch.bfloat16, torch.bfloat16)):
        x, w, b = layer(generator, classes=CLASSES)
        x, w, b = leaf(x.detach().to(types[0])), leaf(w.detach().to(types[1])), leaf(b.detach().to(types[0]))
        values, indices = teacher(generator, "log_probs", dtype=types[2])
        found = linear_kl_div_top_k(x, w, values, indices, linear_bias=b, divisor=torch.tensor(3.0), reduction="sum")
        assert found.dtype is (torch.float64 if torch.float64 in types else torch.float32)
        expected = exact(x, w, b, values, indices, divisor=3.0, reduction="sum")
        assert_near(found, expected, torch.float64 if types[1] is torch.float64 else torch.float32)
        for a, c, tensor in zip(torch.autograd.grad(found, (x, w, b)), torch.autograd.grad(expected, (x, w, b)),
                                (x, w, b)):
            assert a.dtype is tensor.dtype
            assert_near(a, c)


def test_upstream_and_second_backward():
    """Gradients for any upstream gradient, and again through the same graph."""
    generator = samples.random("linear top-k upstream")
    x, w, b = layer(generator, classes=CLASSES)
    values, indices = teacher(generator, "log_probs")
    value = linear_kl_div_top_k(x, w, values, indices, linear_bias=b)
    first = torch.autograd.grad(value, (x, w, b), retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    for factor in (1.0, -3.5):
        again = torch.autograd.grad(value, (x, w, b), torch.tensor(factor, dtype=torch.float64), retain_graph=True)
        for gradient, one in zip(again, kept):
            assert_near(gradient, factor * one)
    assert all(torch.equal(a, c) for a, c in zip(first, kept))


def test_float16_gradients_survive_scaling():
    """They are scaled before they are rounded: in float16 most of these would be 0 without their factor."""
    generator = samples.random("linear top-k float16")
    x, w, _ = layer(generator, (600,), torch.float16, False, CLASSES)
    values, indices = teacher(generator, "log_probs", 600, dtype=torch.float32)
    loss = linear_kl_div_top_k(x, w, values, indices) * 2.0 ** -12
    made, = torch.autograd.grad(loss, x, torch.tensor(2.0 ** 12))
    exactly, = torch.autograd.grad(exact(x, w, None, values, indices), x)
    assert torch.equal(made == 0, exactly == 0)
    assert_near(made, exactly)


def test_autocast():
    generator = samples.random("linear top-k autocast")
    x, w, b = layer(generator, dtype=torch.float32, classes=CLASSES)
    values, indices = teacher(generator, "log_probs", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = linear_kl_div_top_k(x, w, values, indices, linear_bias=b)
    halves = [tensor.to(torch.bfloat16) for tensor in (x, w, b)]
    expected = linear_kl_div_top_k(*halves[:2], values, indices, linear_bias=halves[2])
    assert found.dtype is torch.float32
    for a, c in zip(samples.with_gradients(found, (x, w, b)), samples.with_gradients(expected, (x, w, b))):
        assert a.dtype is torch.float32 and torch.equal(a, c)


def test_without_gradients():
    """Nothing is recorded or kept, and the value is the same."""
    generator = samples.random("linear top-k no grad")
    x, w, b = layer(generator, classes=CLASSES)
    values, indices = teacher(generator, "log_probs")
    expected = linear_kl_div_top_k(x, w, values, indices, linear_bias=b)
    with torch.no_grad():
        found = linear_kl_div_top_k(x, w, values, indices, linear_bias=b)
    assert not found.requires_grad and torch.equal(found, expected.detach())


def test_gradgrad():
    generator = samples.random("linear top-k gradgrad")
    x, w, b = layer(generator, (2,), classes=6)
    values, indices = teacher(generator, "log_probs", rows=2, classes=6, k=3)
    for outside, reduction in (("tail", "batchmean"), ("subset", "none")):
        f = lambda x, w, b: linear_kl_div_top_k(x, w, values, indices, linear_bias=b, outside=outside, temperature=1.2,
                                                reduction=reduction)
        assert torch.autograd.gradcheck(f, (x, w, b))
        assert torch.autograd.gradgradcheck(f, (x, w, b))


@needs_func
def test_func():
    generator = samples.random("linear top-k func")
    x, w, b = (tensor.detach() for tensor in layer(generator, classes=CLASSES))
    values, indices = teacher(generator, "log_probs")

    def row(x, values, indices):
        return linear_kl_div_top_k(x, w, values, indices, linear_bias=b, reduction="sum", reverse=True)

    found = torch.func.vmap(torch.func.grad(row))(x, values, indices)
    y = leaf(x)
    row(y, values, indices).backward()
    assert_near(found, y.grad)


@needs_compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compile(dtype):
    generator = samples.random("linear top-k compile")
    x, w, b = layer(generator, dtype=dtype, classes=CLASSES)
    values, indices = teacher(generator, "logits", dtype=torch.float32)
    for reduction in ("batchmean", "none"):
        f = lambda x, w, b, values, indices: linear_kl_div_top_k(
            x * 2, w, values, indices, linear_bias=b, form="logits", outside="subset", reduction=reduction)
        expected = samples.with_gradients(f(x, w, b, values, indices), (x, w, b))
        torch._dynamo.reset()
        with torch_samples.no_warnings():
            made = torch.compile(f, backend="aot_eager", fullgraph=True)
        for a, c in zip(samples.with_gradients(made(x, w, b, values, indices), (x, w, b)), expected):
            assert_near(a, c)


@needs_compile
def test_operators():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("PyTorch %d.%d has no torch.library.opcheck" % torch_samples.VERSION)
    generator = samples.random("linear top-k operators")
    x, w, b = layer(generator, dtype=torch.float32, classes=CLASSES)
    tensors = (x, w, b) + teacher(generator, "log_probs", dtype=torch.float32) + (None,) * 5
    call = 6, 0, 0.0, 1.0, 0.0, 0, -100, 0.0, 0.0, 0.0, 0.0, 0, 1.0, 0.0, 1.0, 0, 0, 0
    torch.library.opcheck(torch.ops.onepass.linear_top_k_loss.default, tensors + call + (False, False, False, True))
    for name, first in (("linear_top_k_loss", ()), ("linear_top_k_loss_backward", (torch.ones(()),))):
        for dtype, in_float in ((torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)):
            given = tuple(tensor.detach().to(dtype) for tensor in tensors[:3]) + tensors[3:]
            torch.library.opcheck(getattr(torch.ops.onepass, name).default,
                                  first + given + call + (True, False, True, in_float),
                                  test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("named, text", [
    ({"linear_weight": torch.zeros((5, 4))}, r"linear_weight: shape \[5, 4\]"),
    ({"linear_weight": torch.zeros((5, 2, 3))}, r"linear_weight: shape \[5, 2, 3\]"),
    ({"linear_bias": torch.zeros(3)}, r"linear_bias: shape \[3\]"),
    ({"top_indices": torch.zeros((2, 3))}, "top_indices: dtype torch.float32"),
    ({"top_indices": torch.zeros((2, 4), dtype=torch.int64)}, r"top_indices: shape \[2, 4\]"),
    ({"top_values": torch.zeros((3, 3))}, r"top_values: shape \[3, 3\] does not fit input \[2, 3\]"),
    ({"top_values": torch.zeros((2, 3), requires_grad=True)}, "top_values: requires_grad"),
    ({"top_values": torch.zeros((2, 4097)), "top_indices": torch.zeros((2, 4097), dtype=torch.int64)},
     "4097 classes; at most 4096"),
    ({"form": "odds"}, "form: 'odds'"),
    ({"outside": "ghost"}, "outside: 'ghost'"),
    ({"target_temperature": 2.0}, "target_temperature: 2"),
    ({"label_weight": 1.0}, "without labels"),
    ({"class_weights": torch.zeros(3), "labels": torch.zeros(2, dtype=torch.int64)}, r"class_weights: shape \[3\]"),
    ({"row_mask": torch.zeros(2)}, "row_mask: dtype torch.float32"),
    ({"columns": 6}, "columns: 6"),
    ({"chunk_bytes": 0}, "chunk_bytes: 0"),
    ({"reduction": "middle"}, "reduction: 'middle'"),
    ({"temperature": 0.0}, "temperature: 0"),
])
def test_refusals(named, text):
    tensors = {"input": torch.zeros((2, 3)), "linear_weight": torch.zeros((5, 3)),
               "top_values": torch.full((2, 3), -2.0), "top_indices": torch.zeros((2, 3), dtype=torch.int64)}
    tensors.update(named)
    with pytest.raises(errors.Error, match="linear_kl_div_top_k: .*" + text):
        linear_kl_div_top_k(**tensors)
