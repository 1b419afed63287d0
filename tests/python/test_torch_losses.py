"""Divergences from logits and token log-probabilities: values and gradients of every function, form, reduction and
option against the plain formulas in float64, in every way a call can go."""

import itertools

import pytest

import losses_samples as samples
from losses_samples import DIVERGENCES, FORMS, MIXTURES, SHAPE, assert_near, leaf, ours
from torch_samples import DTYPES, F, layouts, needs_func, torch, watched

import onepass.torch
from onepass import errors
from onepass.torch import losses_call

REDUCTIONS = "batchmean", "mean", "sum", "none", "valid"

# Sets of options that touch every one of them.
OPTIONS = {
    "plain": {},
    "temperatures": {"temperature": 2.0, "target_temperature": 3.0, "divergence_weight": 4.0},
    "one temperature": {"temperature": 0.7},
    "caps": {"softcap": 3.0, "target_softcap": 5.0},
    "columns": {"columns": 4},
    "labels": {"labels": True, "label_weight": 0.7, "label_smoothing": 0.1, "label_temperature": 1.5},
    "class weights": {"labels": True, "label_weight": 0.5, "label_smoothing": 0.2, "class_weights": True},
    "ignored rows": {"labels": True},
    "another ignore_index": {"labels": True, "ignore_index": 2, "label_weight": 1.0},
    "extra terms": {"z_loss": 0.01, "entropy_bonus": 0.2},
    "everything": {"labels": True, "label_weight": 0.7, "label_smoothing": 0.1, "label_temperature": 1.5,
                   "z_loss": 0.02, "entropy_bonus": 0.1, "columns": 4, "softcap": 4.0, "temperature": 1.3,
                   "row_weights": True, "row_mask": True, "divergence_weight": 2.0},
    "rows": {"row_weights": True, "row_mask": True},
    "no divergence": {"labels": True, "label_weight": 1.0, "divergence_weight": 0.0},
}


def options_of(generator, given, form, shape=SHAPE):
    """The set, with tensors where it says True."""
    made = dict(given, target=form)
    if form != "logits":
        made.pop("target_temperature", None)
        made.pop("target_softcap", None)
    if made.get("labels"):
        made["labels"] = samples.labels(generator, shape[:-1], made.get("columns") or shape[-1])
        if made.get("ignore_index"):
            made["labels"] = made["labels"].clamp(0)
    if made.get("class_weights"):
        made["class_weights"] = torch.rand(shape[-1], generator=generator, dtype=torch.float64) + 0.1
    if made.get("row_weights"):
        made["row_weights"] = torch.rand(shape[:-1], generator=generator, dtype=torch.float64)
    if made.get("row_mask"):
        made["row_mask"] = torch.arange(6).reshape(shape[:-1]) != 4
    return made


def expected_of(name, x, y, reduction, options, divisor=None):
    rows, part = samples.rows_of(name, x, y, **options, **MIXTURES.get(name, {}))
    return samples.reduced(rows, part, reduction, x.shape, options.get("columns"), divisor)


def check(name, form, reduction, options, x, y, steps=64, upstream=None):
    """Value and gradients of a call against the formula."""
    expected = samples.with_gradients(expected_of(name, x, y, reduction, options), (x, y), upstream)
    found = samples.with_gradients(ours(name, x, y, reduction=reduction, **options, **MIXTURES.get(name, {})), (x, y),
                                   upstream)
    for a, b in zip(found, expected):
        assert_near(a, b, steps=steps)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_every_option(name, form):
    """In float64, where the formula has no more digits than the library."""
    generator = samples.random("options %s %s" % (name, form))
    for which, (key, given) in enumerate(OPTIONS.items()):
        x, y = leaf(samples.logits(generator, SHAPE)), leaf(samples.targets(generator, SHAPE, form))
        reduction = REDUCTIONS[which % len(REDUCTIONS)]
        print(key, reduction)
        options = options_of(generator, given, form)
        upstream = torch.rand(SHAPE[:-1] if reduction == "none" else (), generator=generator, dtype=torch.float64)
        check(name, form, reduction, options, x, y, 512, upstream)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_every_reduction_and_shape(name, reduction):
    generator = samples.random("reductions %s %s" % (name, reduction))
    for shape in ((5,), (3, 5), (2, 3, 5), (2, 1, 2, 5), (0, 5)):
        if 0 in shape and reduction != "sum":
            continue
        x, y = leaf(samples.logits(generator, shape)), leaf(samples.targets(generator, shape, "logits"))
        check(name, "logits", reduction, {}, x, y, 512)


@pytest.mark.parametrize("dtypes", itertools.product(DTYPES, DTYPES), ids=str)
def test_dtypes(dtypes):
    """The value is float32 or wider; it has float32's digits whatever the inputs are; gradients have their types."""
    generator = samples.random("dtypes %s" % (dtypes,))
    x = leaf(samples.logits(generator, (4, 30), dtypes[0]))
    y = leaf(samples.logits(generator, (4, 30), dtypes[1]))
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    for name in DIVERGENCES:
        mixture = MIXTURES.get(name, {})
        found = samples.with_gradients(ours(name, x, y, **mixture), (x, y))
        expected = samples.with_gradients(expected_of(name, x, y, "batchmean", {}), (x, y))
        assert found[0].dtype is dtype
        assert_near(found[0], expected[0], steps=16)
        for gradient, given, exact in zip(found[1:], (x, y), expected[1:]):
            assert gradient.dtype is given.dtype
            assert_near(gradient, exact, steps=16)


def test_divisor():
    """A number, or a tensor of any type, on the device."""
    generator = samples.random("divisor")
    x, y = leaf(samples.logits(generator, SHAPE)), leaf(samples.targets(generator, SHAPE, "logits"))
    expected = samples.with_gradients(expected_of("kl_div_logits", x, y, "sum", {}, 7), (x, y))
    for divisor in (7, 7.0, torch.tensor(7), torch.tensor([7.0]), torch.tensor(7, dtype=torch.int32)):
        found = samples.with_gradients(ours("kl_div_logits", x, y, reduction="sum", divisor=divisor), (x, y))
        for a, b in zip(found, expected):
            assert_near(a, b)
    labels = samples.labels(generator, SHAPE[:-1], 5)
    value = onepass.torch.cross_entropy(x, labels, class_dim=-1, reduction="sum", divisor=torch.tensor(3))
    assert_near(value, F.cross_entropy(x.flatten(0, 1), labels.flatten(), reduction="sum") / 3)


def test_row_outputs():
    """In the order they were asked for, of the label's softmax, without a gradient; 0 where a row takes no part."""
    generator = samples.random("outputs")
    x, y = leaf(samples.logits(generator, SHAPE)), samples.targets(generator, SHAPE, "logits")
    labels = samples.labels(generator, SHAPE[:-1], 4)
    names = "argmax", "log_prob", "lse", "target_entropy", "target_lse", "entropy"
    p, t = samples.prepared(x.detach(), 1.5, None, 4), samples.prepared(y, 2.0, None, 4)
    log_p, log_t = F.log_softmax(p, -1), F.log_softmax(t, -1)
    kept = labels != -100
    expected = {"argmax": p.argmax(-1), "lse": p.logsumexp(-1), "target_lse": t.logsumexp(-1),
                "log_prob": log_p.gather(-1, labels.clamp(0).unsqueeze(-1)).squeeze(-1),
                "entropy": -(log_p.exp() * log_p).sum(-1), "target_entropy": -(log_t.exp() * log_t).sum(-1)}
    for record in (torch.enable_grad(), torch.no_grad()):
        with record:
            loss, *found = ours("kl_div_logits", x, y, labels=labels, temperature=2.0, label_temperature=1.5, columns=4,
                                outputs=names)
        assert bool(torch.isfinite(loss))
        for name, result in zip(names, found):
            assert not result.requires_grad and result.dtype is (torch.int64 if name == "argmax" else torch.float64)
            assert_near(result.double(), (expected[name] * kept).double(), torch.float64)
    for form in FORMS[1:]:
        y = samples.targets(generator, SHAPE, form)
        log_t = y if form == "log_probs" else y.log()
        _, entropy = ours("kl_div_logits", x, y, target=form, outputs=["target_entropy"])
        assert_near(entropy, -(log_t.exp() * log_t).sum(-1))


def test_columns_of_two_widths():
    """Vocabularies that are padded differently: columns cuts both, and the gradient beyond is 0."""
    generator = samples.random("two widths")
    for widths in ((9, 7), (7, 9)):
        x, y = leaf(samples.logits(generator, (3, widths[0]))), leaf(samples.logits(generator, (3, widths[1])))
        found = samples.with_gradients(ours("js_logits", x, y, columns=6), (x, y))
        expected = samples.with_gradients(samples.divergence("js_logits", F.log_softmax(x[:, :6], -1),
                                                             F.log_softmax(y[:, :6], -1), 0.5).sum() / 3, (x, y))
        for a, b in zip(found, expected):
            assert_near(a, b, steps=512)
        assert not bool(found[1][:, 6:].any()) and not bool(found[2][:, 6:].any())
        with pytest.raises(errors.InvalidArgument, match="targets: shape"):
            ours("js_logits", x, y)


# ---- layouts ---------------------------------------------------------------------------------------------------------


def test_layouts():
    """Any strides, and gradients in the layout of the input."""
    generator = samples.random("layouts")
    x, y = samples.logits(generator, (6, 10), torch.float32), samples.logits(generator, (6, 10), torch.float32)
    labels = samples.labels(generator, (6,), 10)
    leaves = leaf(x), leaf(y)
    plain = samples.with_gradients(ours("kl_div_logits", *leaves, labels=labels, label_weight=1.0), leaves)
    for a, b in itertools.product(layouts(x).values(), layouts(y).values()):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        value = ours("kl_div_logits", a, b, labels=labels, label_weight=1.0)
        found = torch.autograd.grad(value, (a, b))
        for made, expected in zip((value,) + found, plain):
            assert_near(made, expected)
        assert found[0].stride() == torch.empty_like(a).stride()


# ---- derivatives of higher order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_gradcheck(name, form):
    """First derivatives by the library, second ones by PyTorch's operations, both against differences."""
    generator = samples.random("gradcheck %s %s" % (name, form))
    x, y = leaf(samples.logits(generator, (2, 3), scale=1.0)), leaf(samples.targets(generator, (2, 3), form))
    labels = torch.tensor([2, -100])
    mixture = MIXTURES.get(name, {})
    for reduction in ("sum", "none"):
        def loss(x, y):
            return ours(name, x, y, reduction=reduction, target=form, temperature=1.5, labels=labels, label_weight=0.5,
                        label_smoothing=0.1, z_loss=0.1, entropy_bonus=0.3, softcap=6.0, **mixture)
        assert torch.autograd.gradcheck(loss, (x, y))
        if reduction == "none":
            assert torch.autograd.gradgradcheck(loss, (x, y))


def test_gradcheck_tokens():
    generator = samples.random("gradcheck tokens")
    x = leaf(samples.logits(generator, (2, 4), scale=1.0))
    indices = torch.tensor([[0, 3, 3], [1, -100, 2]])

    def loss(x):
        return onepass.torch.token_log_probs(x, indices, 1.5, softcap=5.0, return_entropy=True, return_lse=True)
    assert torch.autograd.gradcheck(loss, (x,)) and torch.autograd.gradgradcheck(loss, (x,))


# ---- PyTorch's operations, which other ways take ---------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_devices_without_kernels(name, form, monkeypatch):
    """There PyTorch's operations do it: every option, value and gradients, to the same formulas."""
    monkeypatch.setattr(losses_call, "_DEVICES", ())
    seen = watched(monkeypatch, "divergence_logits_logits", "divergence_logits_probs", "divergence_logits_log_probs")
    test_every_option(name, form)
    assert not seen


def test_tokens_on_devices_without_kernels(monkeypatch):
    monkeypatch.setattr(losses_call, "_DEVICES", ())
    seen = watched(monkeypatch, "token_log_probs")
    test_token_log_probs(3)
    assert not seen


@needs_func
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_transformed(name, form):
    """torch.func gives what the library gives, for every option."""
    generator = samples.random("transformed %s %s" % (name, form))
    for which, (key, given) in enumerate(OPTIONS.items()):
        x, y = samples.logits(generator, SHAPE), samples.targets(generator, SHAPE, form)
        reduction = REDUCTIONS[which % len(REDUCTIONS)]
        print(key, reduction)
        options = dict(options_of(generator, given, form), reduction=reduction, **MIXTURES.get(name, {}))
        found = torch.func.grad_and_value(lambda x, y: ours(name, x, y, **options).sum(), (0, 1))(x, y)
        leaves = [leaf(x), leaf(y)]
        expected = samples.with_gradients(ours(name, *leaves, **options).sum(), leaves)
        for a, b in zip((found[1],) + found[0], expected):
            assert_near(a, b, steps=512)


def special_cases(form):
    """(predictions, targets, what they have in common) with infinities and zeros, in float64."""
    inf = float("inf")
    def target(*rows):
        y = torch.tensor(rows, dtype=torch.float64)
        return y if form == "logits" else F.softmax(y, -1) if form == "probs" else F.log_softmax(y, -1)
    x = torch.tensor([[1.0, 2.0, -inf, 0.5]], dtype=torch.float64)
    yield x, target([0.0, 1.0, -inf, 2.0]), "nothing on both sides"
    yield x, target([0.0, 1.0, 1.0, 2.0]), "only the prediction is without mass"
    yield x[:, [0, 1, 3, 3]], target([0.0, 1.0, -inf, 2.0]), "only the target is without mass"
    yield torch.full((1, 4), -inf, dtype=torch.float64), target([0.0, 1.0, 0.5, 2.0]), "no mass in the predictions"
    if form == "logits":
        yield x, torch.full((1, 4), -inf, dtype=torch.float64), "no mass in the targets"


@needs_func
@pytest.mark.parametrize("semantics", ["strict", "finite"])
@pytest.mark.parametrize("form", FORMS)
def test_special_values_are_the_same(form, semantics):
    """PyTorch's operations and the library agree on what is NaN, what is infinite and what is 0; a row that takes no
    part may hold anything."""
    for x, y, what in special_cases(form):
        x = torch.cat([x, torch.full_like(x, float("nan"))])
        y = torch.cat([y, torch.full_like(y, float("nan"))])
        mask = torch.tensor([True, False])
        for name in DIVERGENCES:
            options = dict(MIXTURES.get(name, {}), target=form, semantics=semantics, reduction="none", row_mask=mask,
                           outputs=("lse", "entropy", "target_entropy"))
            leaves = [leaf(x), leaf(y)]
            value, *rows = ours(name, *leaves, **options)
            found = [value] + rows + list(torch.autograd.grad(value, leaves, torch.ones_like(value)))
            (to_x, to_y), (_, results) = torch.func.grad_and_value(
                lambda x, y: (lambda r: (r[0].sum(), r))(ours(name, x, y, **options)), (0, 1), has_aux=True)(x, y)
            for a, b, of in zip(found, list(results) + [to_x, to_y],
                                ("value", "lse", "entropy", "target_entropy", "to x", "to y")):
                a, b = a.detach(), b.detach()
                if of.startswith("to") and not bool(torch.isfinite(value[0])):
                    a, b = a[1:], b[1:]  # next to an infinite loss: which NaN a derivative has says nothing
                same = (a == b) | (torch.isnan(a) & torch.isnan(b)) | ((a - b).abs() < 1e-12)
                assert bool(same.all()), (name, what, of, a, b)


# ---- token log-probabilities -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [None, 1, 3])
def test_token_log_probs(count):
    generator = samples.random("tokens %s" % count)
    for dtype in DTYPES:
        x = leaf(samples.logits(generator, (2, 3, 8), dtype))
        shape = (2, 3) if count is None else (2, 3, count)
        indices = samples.labels(generator, shape, 6)
        options = {"temperature": 1.7, "softcap": 5.0, "columns": 6}
        found = onepass.torch.token_log_probs(x, indices, return_entropy=True, return_lse=True, **options)
        z = samples.prepared(x.double(), 1.7, 5.0, 6)
        log_p = F.log_softmax(z, -1)
        at = log_p.gather(-1, indices.clamp(0).reshape(2, 3, -1)).reshape(shape) * (indices != -100)
        expected = at, -(log_p.exp() * log_p).sum(-1), z.logsumexp(-1)
        grads = [torch.randn(a.shape, generator=generator, dtype=torch.float64) for a in expected]
        for a, b in zip(found, expected):
            assert a.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
            assert_near(a, b.detach(), steps=16)
        gradient, = torch.autograd.grad(found, x, [g.to(found[0].dtype) for g in grads])
        exact, = torch.autograd.grad(expected, x, grads)
        assert gradient.dtype is dtype
        assert_near(gradient, exact, steps=16)
        alone = onepass.torch.token_log_probs(x, indices.int(), **options)
        assert alone.shape == shape and torch.equal(alone, found[0])
        entropy, = onepass.torch.token_log_probs(x, None, return_entropy=True, **options)
        assert torch.equal(entropy, found[1])


def test_token_log_probs_with_a_mask():
    generator = samples.random("tokens, mask")
    x = samples.logits(generator, (3, 6))
    x[1] = float("nan")
    x.requires_grad_()
    found = onepass.torch.token_log_probs(x, torch.tensor([1, 2, 5]), row_mask=torch.tensor([True, False, True]),
                                          return_entropy=True, return_lse=True)
    assert all(not bool(a[1]) and bool(torch.isfinite(a).all()) for a in found)
    gradient, = torch.autograd.grad(sum(a.sum() for a in found), x)
    assert not bool(gradient[1].any()) and bool(gradient[0].any()) and bool(torch.isfinite(gradient).all())


def test_only_some_of_the_token_results_are_used():
    generator = samples.random("tokens, some")
    x = leaf(samples.logits(generator, (3, 6)))
    log_prob, entropy, lse = onepass.torch.token_log_probs(x, torch.tensor([1, 2, 5]), return_entropy=True,
                                                           return_lse=True)
    for value, exact in ((entropy, -(F.softmax(x, -1) * F.log_softmax(x, -1)).sum(-1)), (lse, x.logsumexp(-1))):
        found, = torch.autograd.grad(value.sum(), x, retain_graph=True)
        expected, = torch.autograd.grad(exact.sum(), x)
        assert_near(found, expected)


@needs_func
def test_token_log_probs_transformed():
    generator = samples.random("tokens, func")
    x, indices = samples.logits(generator, (4, 6)), samples.labels(generator, (4,), 6)

    def loss(x, i):
        log_prob, entropy = onepass.torch.token_log_probs(x, i, 1.3, return_entropy=True)
        return (log_prob + 0.3 * entropy).sum()
    a = leaf(x)
    expected, = torch.autograd.grad(loss(a, indices), a)
    assert_near(torch.func.grad(loss)(x, indices), expected)
    assert_near(torch.func.vmap(torch.func.grad(loss))(x, indices), expected)
    tangent = torch.func.jvp(lambda x: loss(x, indices), (x,), (torch.ones_like(x) * x,))[1]
    assert_near(tangent, (expected * x).sum(), steps=512)
