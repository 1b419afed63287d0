"""Losses from logits whose classes are spread over 2 and 4 processes, over Gloo on the CPU, uneven and some without
any, beside the same call with all classes in one process. Values, row results and gradients agree to a few roundings of
float64; value and row results have the same bits on every rank, and with any number of ranks that are cut at slices.
Losses from hidden states, likewise. A compiled graph has the bits of the same calls without it. A rank that fails, or
disagrees, raises on all.
"""

import hashlib
import inspect

import pytest

from ranks import Ranks
from torch_samples import F, VERSION, torch

from onepass import errors
from onepass.torch import (cross_entropy, js_logits, kl_div_logits, linear_cross_entropy, linear_js, linear_kl_div,
                           linear_reverse_kl, linear_skew_kl, linear_skew_reverse_kl, linear_token_log_probs, linear_tv,
                           losses, losses_linear_divergences, losses_shards, reverse_kl_logits, skew_kl_logits,
                           skew_reverse_kl_logits, token_log_probs, tv_logits)
from onepass.torch.compat import megatron, transformer_engine, verl
from onepass.torch.losses_shards import HAS_GRAPHS

dist = torch.distributed
needs_graphs = pytest.mark.skipif(not HAS_GRAPHS, reason="PyTorch %d.%d ends its graphs at a process group" % VERSION)
ROWS, CLASSES = 5, 37
SLICE = 8192
CUTS = {2: [(17, 20), (0, 37)], 4: [(10, 9, 9, 9), (1, 30, 0, 6), (0, 0, 37, 0)]}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as made:
        yield made


# ---- in a rank -------------------------------------------------------------------------------------------------------

_groups = {}


def group_of(size):
    """The first `size` ranks; every rank makes it."""
    if size not in _groups:
        _groups[size] = dist.new_group(list(range(size)))
    return _groups[size]


def in_group(rank, size, function, *arguments):
    group = group_of(size)
    return function(rank, group, *arguments) if rank < size else None


def mine(tensor, cut, rank):
    return tensor[..., sum(cut[:rank]):sum(cut[:rank + 1])]


def draw(*shape, seed=0, dtype=torch.float64):
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels_of(shape, ignored=-100):
    labels = torch.randint(0, CLASSES - 3, shape, generator=torch.Generator().manual_seed(3))
    labels[..., 1] = ignored
    return labels


def close(got, expected, name):
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13, equal_nan=True,
                               msg=lambda *said: "%s: %s" % (name, said[-1]))


def same_on_all(tensor, group, name):
    if tensor.dtype is torch.bfloat16:  # which Gloo did not always know
        tensor = tensor.float()
    everybodys = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everybodys, tensor.detach().contiguous(), group=group)
    assert all(torch.equal(other, everybodys[0]) for other in everybodys), name


def compare(rank, group, cut, function, logits, per_class=(), upstream=None, **options):
    """One call with all classes, one with this rank's; logits are what it is differentiated to."""
    whole = [tensor.clone().requires_grad_() for tensor in logits]
    part = [mine(tensor, cut, rank).clone().requires_grad_() for tensor in logits]
    shared = dict(options)
    for name in per_class:
        shared[name] = mine(options[name], cut, rank)
    expected, got = function(*whole, **options), function(*part, process_group=group, **shared)
    expected, got = [made if isinstance(made, tuple) else (made,) for made in (expected, got)]
    loss, expected_loss = 0, 0
    for i, (one, other) in enumerate(zip(got, expected)):
        name = "%s, result %d, cut %s, %s" % (function.__name__, i, cut, sorted(options))
        close(one, other, name)
        same_on_all(one, group, name)
        if one.requires_grad:
            weights = draw(*one.shape, seed=9) if one.dim() else torch.tensor(1.7, dtype=one.dtype)
            loss, expected_loss = loss + (one * weights).sum(), expected_loss + (other * weights).sum()
    expected_loss.backward()
    loss.backward()
    for one, other in zip(part, whole):
        close(one.grad, mine(other.grad, cut, rank), function.__name__ + ", gradient, cut %s" % (cut,))


def of_labels(logits, **options):
    return cross_entropy(logits, labels_of(logits.shape[:-1]), class_dim=-1, **options)


def check_cross_entropy(rank, group, cut):
    logits = draw(ROWS, CLASSES)
    compare(rank, group, cut, of_labels, [logits])
    compare(rank, group, cut, of_labels, [logits], per_class=["weight"], weight=draw(CLASSES, seed=5).abs(),
            label_smoothing=0.1, z_loss=1e-2, entropy_bonus=0.3, temperature=1.3, softcap=8.0, columns=CLASSES - 2,
            outputs=("lse", "entropy", "log_prob", "argmax"))
    compare(rank, group, cut, of_labels, [logits], reduction="none", row_weights=draw(ROWS, seed=6),
            row_mask=torch.tensor([1, 1, 0, 1, 1], dtype=torch.bool))
    logits[:, :CLASSES // 2] = -float("inf")
    compare(rank, group, cut, of_labels, [logits], semantics="finite", reduction="none", outputs=("lse",))


def check_divergences(rank, group, cut):
    logits = [draw(2, 3, CLASSES), draw(2, 3, CLASSES, seed=1)]
    for function in (kl_div_logits, reverse_kl_logits, js_logits, skew_kl_logits, skew_reverse_kl_logits, tv_logits):
        compare(rank, group, cut, function, logits)
        compare(rank, group, cut, function, logits, reduction="none", temperature=2.0, target_temperature=1.5,
                divergence_weight=4.0, labels=labels_of((2, 3)), label_weight=0.5, columns=CLASSES - 1,
                outputs=("lse", "target_lse", "target_entropy"))
        same = mine(logits[0], cut, rank)
        assert float(function(same, same, process_group=group)) == 0


def check_tokens(rank, group, cut):
    logits = draw(ROWS, CLASSES)
    compare(rank, group, cut, token_log_probs, [logits], indices=labels_of((ROWS,)))
    compare(rank, group, cut, token_log_probs, [logits], indices=labels_of((ROWS, 2)), temperature=0.7, softcap=8.0,
            return_entropy=True, return_lse=True, columns=CLASSES - 1)


def compare_linear(rank, group, cut, function, tensors, per_class=(), rtol=1e-12, **options):
    """Of hidden states, weight and bias: the gradient to the first is that of all classes, on every rank."""
    whole = [tensor.clone().requires_grad_() for tensor in tensors]
    part = [tensors[0].clone().requires_grad_()] + [
        mine(tensor.t(), cut, rank).t().contiguous().requires_grad_() if tensor.dim() == 2 else
        mine(tensor, cut, rank).clone().requires_grad_() for tensor in tensors[1:]]
    shared = dict(options, process_group=group)
    for name in per_class:
        shared[name] = mine(options[name], cut, rank)
    expected, got = function(*whole, **options), function(*part, **shared)
    expected, got = [made if isinstance(made, tuple) else (made,) for made in (expected, got)]
    loss, expected_loss = 0, 0
    for i, (one, other) in enumerate(zip(got, expected)):
        name = "result %d, cut %s, %s" % (i, cut, sorted(options))
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, equal_nan=True, msg=lambda text: name + ": " + text)
        same_on_all(one, group, name)
        if one.requires_grad:
            weights = draw(*one.shape, seed=9).to(one.dtype) if one.dim() else torch.tensor(1.7, dtype=one.dtype)
            loss, expected_loss = loss + (one * weights).sum(), expected_loss + (other * weights).sum()
    expected_loss.backward()
    loss.backward()
    same_on_all(part[0].grad, group, "gradient to input")
    for one, grad in zip(part, [whole[0].grad] + [
            mine(tensor.grad.t(), cut, rank).t() if tensor.dim() == 2 else mine(tensor.grad, cut, rank)
            for tensor in whole[1:]]):
        torch.testing.assert_close(one.grad, grad, rtol=rtol, atol=rtol * 10, msg=lambda text: "gradient, cut %s, %s: "
                                   "%s" % (cut, sorted(options), text))


def linear_of(dtype=torch.float64, rows=(2, 3), seed=11):
    """Hidden states, weight and bias."""
    return [draw(*rows, 8, seed=seed).to(dtype), (draw(CLASSES, 8, seed=seed + 1) / 3).to(dtype),
            draw(CLASSES, seed=seed + 2).to(dtype)]


def of_hidden_states(input, linear_weight, bias=None, **options):
    return linear_cross_entropy(input, linear_weight, labels_of(input.shape[:-1]), linear_bias=bias, **options)


def js_of_hidden_states(input, weight, **options):
    return linear_js(input, weight, input.detach() / 2, weight.detach() ** 2, **options)


def tokens_of_hidden_states(input, weight, bias=None, **options):
    return linear_token_log_probs(input, weight, labels_of(input.shape[:-1] + (2,)), linear_bias=bias, **options)


def check_linear(rank, group, cut):
    tensors = linear_of()
    compare_linear(rank, group, cut, of_hidden_states, tensors)
    compare_linear(rank, group, cut, of_hidden_states, tensors[:2], reduction="none", outputs=("lse", "argmax"))
    compare_linear(rank, group, cut, of_hidden_states, tensors, per_class=["weight"],
                   weight=draw(CLASSES, seed=5).abs() + 0.1, label_smoothing=0.1, z_loss=1e-2, entropy_bonus=0.3,
                   temperature=1.3, softcap=8.0, columns=CLASSES - 2, outputs=("lse", "entropy", "log_prob", "argmax"))
    compare_linear(rank, group, cut, of_hidden_states, tensors, reduction="sum", divisor=torch.tensor(3.5),
                   row_weights=draw(2, 3, seed=6))
    many = linear_of(rows=(700,))
    masked = torch.arange(700) % 3 != 0
    many[0][~masked] = float("nan")
    compare_linear(rank, group, cut, of_hidden_states, many, row_mask=masked, chunk_bytes=1)
    compare_linear(rank, group, cut, of_hidden_states, linear_of(torch.float32), rtol=1e-5)
    compare_linear(rank, group, cut, of_hidden_states, linear_of(torch.bfloat16), rtol=1e-2)


def check_linear_tokens(rank, group, cut):
    tensors = linear_of()
    compare_linear(rank, group, cut, tokens_of_hidden_states, tensors)
    compare_linear(rank, group, cut, tokens_of_hidden_states, tensors[:2], temperature=0.7, softcap=8.0,
                   return_entropy=True, return_lse=True, columns=CLASSES - 1,
                   row_mask=torch.tensor([[1, 0, 1], [1, 1, 1]], dtype=torch.bool))
    compare_linear(rank, group, cut, tokens_of_hidden_states, linear_of(rows=(600,)), chunk_bytes=1)


def draw_teacher(seed, dtype=torch.float64, rows=(2, 3)):
    """Hidden states, weight and bias; the weight is [L, C], so that classes are last in all of them."""
    return {"teacher": draw(*rows, 6, seed=seed).to(dtype),
            "target_weight": (draw(6, CLASSES, seed=seed + 1) / 3).to(dtype),
            "target_bias": draw(CLASSES, seed=seed + 2).to(dtype)}


OF_TEACHER = ["target_weight", "target_bias"]


def beside_a_teacher(function):
    def call(input, linear_weight, bias=None, *, teacher, target_weight, target_bias=None, **options):
        return function(input, linear_weight, teacher, target_weight.t(), linear_bias=bias, target_bias=target_bias,
                        **options)
    return call


LINEAR_DIVERGENCES = (linear_kl_div, linear_reverse_kl, linear_js, linear_skew_kl, linear_skew_reverse_kl, linear_tv)


def check_linear_divergences(rank, group, cut, seed):
    tensors, labels = linear_of(seed=seed), labels_of((2, 3))
    for i, function in enumerate(LINEAR_DIVERGENCES):
        of_both, teacher = beside_a_teacher(function), draw_teacher(seed + 3 + 3 * i)
        compare_linear(rank, group, cut, of_both, tensors, per_class=OF_TEACHER, **teacher)
        compare_linear(rank, group, cut, of_both, tensors, per_class=OF_TEACHER + ["class_weights"], reduction="valid",
                       temperature=2.0, target_temperature=1.5, divergence_weight=4.0, labels=labels, label_weight=0.5,
                       label_smoothing=0.1, class_weights=draw(CLASSES, seed=seed + 30).abs() + 0.1,
                       columns=CLASSES - 1, outputs=("lse", "log_prob", "argmax", "target_lse", "target_entropy"),
                       **teacher)
        weight, hidden = mine(tensors[1].t(), cut, rank).t(), tensors[0]
        assert float(function(hidden, weight, hidden, weight, process_group=group)) == 0
    of_both = beside_a_teacher(linear_js)
    for reduction in ("mean", "none"):
        compare_linear(rank, group, cut, of_both, tensors[:2], per_class=OF_TEACHER, reduction=reduction, z_loss=1e-2,
                       row_weights=draw(2, 3, seed=seed + 31), softcap=8.0, target_softcap=9.0, **teacher)
    masked = torch.arange(600) % 3 != 0
    many, teacher = linear_of(rows=(600,), seed=seed + 32), draw_teacher(seed + 35, rows=(600,))
    many[0][~masked] = teacher["teacher"][~masked] = float("nan")
    compare_linear(rank, group, cut, of_both, many, per_class=OF_TEACHER, row_mask=masked, chunk_bytes=1,
                   reduction="sum", divisor=torch.tensor(300.0), **teacher)
    compare_linear(rank, group, cut, beside_a_teacher(linear_kl_div), linear_of(torch.bfloat16, seed=seed), rtol=2e-2,
                   per_class=OF_TEACHER, **draw_teacher(seed + 3, torch.bfloat16))
    compare_linear(rank, group, cut, beside_a_teacher(linear_kl_div), linear_of(torch.float32, seed=seed), rtol=1e-5,
                   per_class=OF_TEACHER, **draw_teacher(seed + 3))


# ---- names of others -------------------------------------------------------------------------------------------------


def spread_over(labels, logits, others, at_label):
    """Cross-entropy with so much at the label and at every other class; 0 where the label is below 0."""
    target = torch.full_like(logits, others).scatter(-1, labels.clamp(min=0).unsqueeze(-1), at_label)
    return -(target * F.log_softmax(logits, -1)).sum(-1) * (labels >= 0)


def of_transformer_engine(logits, process_group=None, *, label_smoothing, reduce_loss):
    labels = labels_of(logits.shape[:-1])
    if process_group is not None:
        return transformer_engine.parallel_cross_entropy(logits, labels.flatten(), label_smoothing, reduce_loss,
                                                         process_group)
    others = label_smoothing / logits.shape[-1]
    made = spread_over(labels, logits, others, others + 1 - label_smoothing)
    made = made.sum() / (labels >= 0).sum() if reduce_loss else made
    close(transformer_engine.parallel_cross_entropy(logits, labels, label_smoothing, reduce_loss), made,
          "parallel_cross_entropy in one process")
    return made


def of_megatron(logits, process_group=None, *, label_smoothing):
    """The second label is of no class."""
    labels, classes = labels_of(logits.shape[:-1]), logits.shape[-1]
    if process_group is not None:
        return megatron.vocab_parallel_cross_entropy(logits, labels, label_smoothing, process_group)
    return spread_over(labels, logits, label_smoothing / (classes - 1), 1 - label_smoothing)


def of_verl(hidden, weight, process_group=None):
    """The group's, as in Megatron: hidden states that are the same on all ranks, a gradient that is added up."""
    labels = labels_of(hidden.shape[:-1]).clamp(min=0)
    if process_group is not None:
        hidden = hidden * 1
        hidden.register_hook(lambda part: dist.all_reduce(part, group=process_group) or part)
        return verl.linear_cross_entropy(hidden, weight, labels, 1.5, dist_process_group=process_group)
    log_p = F.log_softmax(F.linear(hidden, weight) / 1.5, -1)
    return log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


def check_names_of_others(rank, group, seed):
    """What a rank said that was given other labels, or other classes."""
    cut, logits = (17, 20), draw(2, 3, CLASSES, seed=seed)
    for reduce_loss in (False, True):
        for label_smoothing in (0.0, 0.2):
            compare(rank, group, cut, of_transformer_engine, [logits], label_smoothing=label_smoothing,
                    reduce_loss=reduce_loss)
    part, ignored = mine(logits, cut, rank).clone().requires_grad_(), torch.full((2, 3), -100)
    loss = transformer_engine.parallel_cross_entropy(part, ignored, 0.0, True, group)
    loss.backward()
    assert float(loss.detach()) == 0 and bool((part.grad == 0).all())
    for label_smoothing in (0.0, 0.2):
        compare(rank, group, (18, 18), of_megatron, [logits[..., 1:]], label_smoothing=label_smoothing)
    compare_linear(rank, group, cut, of_verl, linear_of(seed=seed)[:2])
    part = part.detach()
    return [raised(transformer_engine.parallel_cross_entropy, part, ignored[rank:], dist_process_group=group),
            raised(megatron.vocab_parallel_cross_entropy, part, ignored, 0.1, group),
            raised(megatron.vocab_parallel_cross_entropy, part, ignored),
            raised(verl.linear_cross_entropy, logits[0, :, :8], part[0, :, :8], ignored[0],
                   reduction="median" if rank else "none", dist_process_group=group)]


# ---- bits ------------------------------------------------------------------------------------------------------------


def digests(tensor):
    """Of each slice of columns."""
    return [hashlib.sha256(part.contiguous().numpy().tobytes()).hexdigest() for part in tensor.split(SLICE, -1)]


def cut_at_slices(rank, group, seed):
    """(bits of the values, bits of the gradients by slices) of a rank with as many slices as the others."""
    classes, ranks = 4 * SLICE, dist.get_world_size(group)
    logits, others = [mine(draw(2, classes, seed=seed + i, dtype=torch.float32), (classes // ranks,) * ranks, rank)
                      .clone().requires_grad_() for i in range(2)]
    labels = torch.randint(0, classes, (2,), generator=torch.Generator().manual_seed(seed))
    values, gradients = [], []
    for loss in (cross_entropy(logits, labels, process_group=group, label_smoothing=0.1),
                 kl_div_logits(logits, others, process_group=group), js_logits(logits, others, process_group=group),
                 token_log_probs(logits, labels, process_group=group).sum()):
        values += digests(loss.detach()[None])
        gradients.append([digests(grad) for grad in torch.autograd.grad(loss, [logits, others], allow_unused=True)
                          if grad is not None])
    return values, gradients


# ---- compiled --------------------------------------------------------------------------------------------------------


def entropy_and_labels(logits, labels, **options):
    log_prob, entropy, lse = token_log_probs(logits, labels, return_entropy=True, return_lse=True, temperature=1.2,
                                             **options)
    return log_prob - 0.1 * entropy, lse


def several(logits, others, labels, **options):
    """Calls that nothing but the group makes depend on each other."""
    first = cross_entropy(logits, labels, label_smoothing=0.1, z_loss=0.1, outputs=("lse", "argmax"), **options)
    second = js_logits(logits, others, labels=labels, label_weight=0.5, temperature=2.0, reduction="none", **options)
    return first + (second,) + entropy_and_labels(logits, labels, **options)


def results_of(function, tensors, labels):
    """Results and gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    results = function(*leaves, labels)
    loss = sum((result * draw(*result.shape, seed=9)).sum() for result in results if result.requires_grad)
    return [result.detach() for result in results] + list(torch.autograd.grad(loss, leaves))


def is_exchange(node):
    return node.op == "call_function" and "shard" in str(node.target)


class Foreseen(torch.fx.Interpreter if HAS_GRAPHS else object):
    """Runs a graph and compares what exchanges return with what the compiler was told of it."""

    def run_node(self, node):
        made = super().run_node(node)
        if is_exchange(node):
            told = node.meta["example_value"]
            assert [(a.shape, a.dtype, a.stride()) for a in made] == [(a.shape, a.dtype, a.stride()) for a in told]
        return made


def check_compiled(rank, group, cut, seed):
    labels, seen = labels_of((ROWS,)), []
    tensors = [mine(draw(ROWS, CLASSES, seed=seed + i), cut, rank) for i in range(2)]

    def in_group(logits, others, labels):
        return several(logits, others, labels, process_group=group)

    def backend(graph, inputs):
        seen.append(graph)
        return aot_eager(graph, inputs)

    from torch._dynamo.backends.debugging import aot_eager
    torch._dynamo.reset()
    compiled = torch.compile(in_group, fullgraph=True, backend=backend)
    for _ in range(2):
        got, expected = [results_of(function, tensors, labels) for function in (compiled, in_group)]
        assert len(got) == len(expected) == 8
        for i, (one, other) in enumerate(zip(got, expected)):
            assert one.dtype is other.dtype and torch.equal(one, other), "result %d, cut %s, seed %d" % (i, cut, seed)
            assert bool(one.isfinite().all()), "result %d, cut %s, seed %d" % (i, cut, seed)
    with torch.no_grad():
        foreseen = torch.compile(in_group, fullgraph=True, backend=lambda graph, inputs: Foreseen(graph).run)
        for one, other in zip(foreseen(*tensors, labels), in_group(*tensors, labels)):
            assert torch.equal(one, other)
    assert losses_shards._last[0].grad_fn is None  # what is kept between graphs keeps none of their tensors
    # Each exchange waits for the one before it.
    calls = [node for node in seen[0].graph.nodes if is_exchange(node)]
    assert len(calls) == 3
    for before, after in zip(calls, calls[1:]):
        assert after.args[0].args == (before, len(before.target.default._schema.returns) - 1)


def check_failures_compiled(rank, group):
    """What every rank raises, in a graph, where a call fails or disagrees while it is traced or when it is run;
    afterwards the group still works."""
    logits, labels = draw(ROWS, 4), labels_of((ROWS,)) % 8

    def compiled(function, **options):
        torch._dynamo.reset()
        return torch.compile(function, fullgraph=True, backend="aot_eager", **options)

    def labels_alone(logits, labels):
        return cross_entropy(logits, labels, process_group=group)

    def rows(logits, hidden):
        return linear_cross_entropy(logits, hidden, labels % 3, process_group=group)

    def beta(logits, number):
        return js_logits(logits, logits, beta=0.3 + 0.1 * number, process_group=group)

    said = [raised(compiled(labels_alone), logits[:ROWS - rank], labels[:ROWS - rank]),
            raised(compiled(labels_alone), logits, labels.double() if rank else labels),
            raised(compiled(beta), logits, rank),
            raised(compiled(rows), logits, logits)]
    with torch.no_grad():
        torch._dynamo.reset()
        in_two = torch.compile(rows, backend="aot_eager")(logits, logits)
    assert torch.equal(in_two, rows(logits, logits))
    return said, float(compiled(labels_alone)(logits, labels))


# ---- in a mesh -------------------------------------------------------------------------------------------------------


def sharded(tensor, mesh, placement):
    """A DTensor with a gradient."""
    from torch.distributed.tensor import distribute_tensor
    return distribute_tensor(tensor.clone(), mesh, [placement]).requires_grad_(tensor.is_floating_point())


def check_dtensors(rank, group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(group),))
    logits, others, labels = draw(ROWS, CLASSES), draw(ROWS, CLASSES, seed=1), labels_of((ROWS,))
    hidden, weight, bias = linear_of(rows=(ROWS,))

    def agrees(function, tensors, dimensions, *arguments):
        whole = [tensor.clone().requires_grad_() for tensor in tensors]
        parts = [sharded(tensor, mesh, Replicate() if dimension is None else Shard(dimension))
                 for tensor, dimension in zip(tensors, dimensions)]
        replicas = [sharded(tensor, mesh, Replicate()) for tensor in arguments]
        expected, got = function(*whole, *arguments), function(*parts, *replicas, process_group=group)
        assert type(got) is torch.Tensor
        close(got, expected, function.__name__)
        expected.sum().backward()
        got.sum().backward()
        for part, tensor in zip(parts, whole):
            assert type(part.grad) is DTensor and part.grad.placements == part.placements
            torch.testing.assert_close(part.grad.full_tensor(), tensor.grad, rtol=1e-10, atol=1e-12)

    agrees(cross_entropy, [logits], [1], labels)
    agrees(cross_entropy, [logits.t().reshape(1, CLASSES, ROWS)], [1], labels[None])
    agrees(js_logits, [logits, others], [1, 1])
    agrees(token_log_probs, [logits], [1], labels)
    agrees(of_hidden_states, [hidden, weight, bias], [None, 0, 0])
    agrees(tokens_of_hidden_states, [hidden, weight], [None, 0])
    agrees(js_of_hidden_states, [hidden, weight], [None, 0])
    rows, halves = sharded(logits, mesh, Shard(0)), DTensor.from_local(logits, mesh, [Partial()])
    return [raised(cross_entropy, rows, labels, process_group=group),
            raised(cross_entropy, halves, labels, process_group=group),
            raised(cross_entropy, sharded(logits, mesh, Shard(1)), sharded(labels, mesh, Shard(0)), process_group=group)]


def raised(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    return "nothing"


def misbehave(rank, group):
    """What every rank raises; afterwards the group still works."""
    logits, labels = draw(ROWS, 4), labels_of((ROWS,))
    said = [raised(cross_entropy, logits[:ROWS - rank], labels[:ROWS - rank], process_group=group),
            raised(cross_entropy, logits, labels.double() if rank else labels, process_group=group),
            raised(js_logits, logits, logits, inplace=True, process_group=group),
            raised(kl_div_logits, logits, logits, target="probs", process_group=group),
            raised(js_logits, logits, logits, beta=0.3 + 0.1 * rank, process_group=group),
            raised(js_logits, logits, logits, beta=0.3 + rank, process_group=group),
            raised(linear_js, logits, logits, logits, logits, beta=0.3 + rank, process_group=group),
            raised(cross_entropy, logits, labels, columns=1000, process_group=group)]
    return said, float(cross_entropy(logits, labels % 8, process_group=group))


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [check_cross_entropy, check_divergences, check_tokens, check_linear,
                                   check_linear_tokens])
@pytest.mark.parametrize("size", [2, 4])
def test_as_with_all_classes(ranks, size, check):
    for cut in CUTS[size]:
        ranks.run(in_group, size, check, cut)


@pytest.mark.parametrize("size", [2, 4])
def test_linear_divergences(ranks, seed, size):
    for cut in CUTS[size]:
        ranks.run(in_group, size, check_linear_divergences, cut, seed)


def test_names_of_others(ranks, seed):
    answers = [answer for answer in ranks.run(in_group, 2, check_names_of_others, seed) if answer]
    assert len(answers) == 2
    for rank, (labels, uneven, alone, reduction) in enumerate(answers):
        assert ("RuntimeError" in labels and ("shape" in labels if rank else "rank 1" in labels)), labels
        assert "InvalidArgument" in uneven and "[6, 0, 1, 64, 40, 0]" in uneven and "[6, 0, 1, 64, 34, 0]" in uneven
        assert "InvalidArgument" in alone and "tp_group" in alone
        assert ("median" if rank else "rank 1") in reduction


def test_same_bits_with_any_number_of_ranks(ranks, seed):
    values, gradients = None, None
    for size in (1, 2, 4):
        made = [answer for answer in ranks.run(in_group, size, cut_at_slices, seed) if answer]
        assert len(made) == size and all(answer[0] == made[0][0] for answer in made)
        # [loss][tensor][slice], the slices of one rank after those of the other
        joined = [[sum(parts, []) for parts in zip(*of_ranks)] for of_ranks in zip(*(answer[1] for answer in made))]
        assert [len(of_loss) for of_loss in joined] == [1, 2, 2, 1] and len(joined[0][0]) == 4
        values, gradients = values or made[0][0], gradients or joined
        assert made[0][0] == values and joined == gradients, size


@needs_graphs
@pytest.mark.parametrize("cut", CUTS[2], ids=str)
def test_compiled(ranks, seed, cut):
    ranks.run(in_group, 2, check_compiled, cut, seed)


@needs_graphs
def test_failures_in_graphs_reach_every_rank(ranks):
    answers = [answer for answer in ranks.run(in_group, 2, check_failures_compiled) if answer]
    assert len(answers) == 2 and answers[0][1] == answers[1][1]
    for rank, (rows, fails, mixture, linear) in enumerate(answer[0] for answer in answers):
        assert "InvalidArgument" in rows and "rank 1" in rows
        assert ("RuntimeError" in fails and "rank 1" in fails) if rank == 0 else (
            "InvalidArgument" in fails and "target" in fails)
        assert "InvalidArgument" in mixture and "rank 1" in mixture
        assert "Unsupported" in linear and ("from hidden states" in linear or VERSION < (2, 15))


def test_failures_reach_every_rank(ranks):
    answers = [answer for answer in ranks.run(in_group, 2, misbehave) if answer]
    assert len(answers) == 2 and answers[0][1] == answers[1][1]
    for rank, (rows, fails, unsupported, probs, mixture, beta, of_both, columns) in enumerate(
            answer[0] for answer in answers):
        assert "rank 1" in rows and "rows" in rows
        assert ("RuntimeError" in fails and "rank 1" in fails) if rank == 0 else "target" in fails
        assert unsupported.startswith("Unsupported") or "Unsupported" in unsupported
        assert "Unsupported" in probs and "process_group" in probs
        assert "InvalidArgument" in mixture and "rank 1" in mixture and "mixture" in mixture
        assert "columns" in columns and "1000" in columns
        for said in (beta, of_both):
            assert ("RuntimeError" in said and "rank 1" in said) if rank == 0 else "beta: 1.3" in said


@pytest.mark.skipif(VERSION < (2, 5), reason="this PyTorch has no public DTensor")
def test_dtensors(ranks):
    for rows, halves, labels in ranks.run(in_group, 4, check_dtensors):
        assert "input" in rows and "Shard(dim=1)" in rows and "input" in halves and "target" in labels


@pytest.mark.parametrize("function", [cross_entropy, losses._divergence, token_log_probs, linear_cross_entropy,
                                      losses_linear_divergences._divergence, linear_token_log_probs],
                         ids=lambda function: "%s.%s" % (function.__module__, function.__name__))
def test_every_option_reaches_the_group(monkeypatch, function):
    """Each argument as itself, those that are not given as their defaults."""
    parameters = inspect.signature(function).parameters
    needed = {name: object() for name, parameter in parameters.items() if parameter.default is parameter.empty}
    options = {name: parameter.default for name, parameter in parameters.items() if name not in needed}
    monkeypatch.setattr(losses_shards, "entered", lambda group, called, arguments, **how: (called, arguments))
    called, arguments = function(process_group=object(), **needed)
    arguments.pop("process_group", None), options.pop("process_group")
    assert called is function and arguments == dict(needed, **options)


def test_without_a_group_nothing_changes():
    logits, labels = draw(ROWS, CLASSES), labels_of((ROWS,))
    assert torch.equal(cross_entropy(logits, labels), cross_entropy(logits, labels, process_group=None))
    assert issubclass(errors.Unsupported, Exception)
