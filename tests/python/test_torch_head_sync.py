"""The head with the batch statistics of several processes: 2 and 4 over Gloo on the CPU, with uneven parts of a batch,
some empty, beside PyTorch's chain with the whole batch in one process, which is what torch.nn.SyncBatchNorm defines (it
refuses the CPU itself). Outputs and gradients to the input are those of the part's rows; gradients to the parameters
add up to the whole's; running statistics are the whole's, with the same bits on every rank.

Everything is float64 unless said otherwise, and agrees to CLOSE (head_samples.py); float32 to as many of its roundings.
"""

import copy

import pytest

import torch_samples as samples
from head_samples import CLOSE, Chain, check, draw, draw_step, models, step
from ranks import Ranks
from torch_samples import VERSION, torch

from onepass.torch import LinearBatchNormSoftmax, head_sync, linear_batch_norm_softmax, rewrite

nn, dist = torch.nn, torch.distributed
CLOSE32 = CLOSE * 2**29


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
    """The answer of each of the first ranks; the others only make the group."""
    group = group_of(size)
    return function(rank, group, *arguments) if rank < size else None


def added(tensor, group):
    total = tensor.double().clone()
    dist.all_reduce(total, group=group)
    return total


def mine(tensor, rows, rank):
    return tensor[sum(rows[:rank]):sum(rows[:rank + 1])]


def same_on_all(tensor, group, name):
    everybodys = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everybodys, tensor.contiguous(), group=group)
    assert all(torch.equal(tensor, other) for other in everybodys), name


def check_steps(rank, group, rows, seed, how, options, dtype=torch.float64, limit=CLOSE):
    """Three steps of training of a model in parts against the whole. how(model, group): makes it a synchronised one."""
    generator = torch.Generator().manual_seed(seed)
    ours, theirs = models(generator, 13, 9, **options)
    ours = how(ours.to(dtype), group)
    for _ in range(3):
        x, upstream = draw_step(generator, theirs, sum(rows))
        expected = step(theirs, x, upstream)
        found = step(ours, mine(x, rows, rank).to(dtype), mine(upstream, rows, rank))
        assert found["output"].dtype is dtype and found["x"].dtype is dtype
        for name, _ in ours.named_buffers():
            same_on_all(found[name], group, (name, seed))
        for name, _ in ours.named_parameters():
            found[name] = added(found[name], group)
        for name in ("output", "x"):
            # Errors are relative to the whole's: a part may have little of a gradient.
            whole = torch.zeros_like(expected[name])
            mine(whole, rows, rank).copy_(found[name])
            found[name] = added(whole, group)
        for name in found:
            if found[name].is_floating_point():
                found[name] = found[name].double()
        if how is by_torchs_operations:  # whose gradient to the bias is rounding noise, as PyTorch's
            assert float(found["gemm.bias"].abs().max()) < 1e-10
            found["gemm.bias"].zero_()
        check(found, expected, True, limit)
    ours.eval(), theirs.eval()  # no exchange: one rank alone may ask
    if rank == 0:
        x = draw(generator, 5, 13)
        assert float((ours(x.to(dtype)).double() - theirs(x)).detach().abs().max()) <= limit
    return 3


def by_conversion(model, group):
    assert LinearBatchNormSoftmax.convert_sync(model, group) is model and type(model.bn) is nn.BatchNorm1d
    return model


def by_pytorchs_conversion(model, group):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
    assert type(model.bn) is nn.SyncBatchNorm
    return model.train()  # before 1.12 it forgets what it was


def by_rewriting(model, group):
    chain = Chain(13, 9, scale_shape=tuple(model.scale.shape)).double()
    chain.load_state_dict(model.state_dict())
    chain.bn = nn.SyncBatchNorm.convert_sync_batchnorm(chain.bn, group).train()
    chain, report = rewrite(chain)
    assert [replaced.what for replaced in report.replaced] == ["Linear, SyncBatchNorm, scale, softmax"]
    return chain


def by_torchs_operations(model, group):
    """The other way of head_sync.py, where the library would do."""
    def forward(x):
        return head_sync.in_torch(x, model.gemm.weight, model.gemm.bias, model.bn.running_mean, model.bn.running_var,
                                  model.bn.weight, model.bn.bias, model.scale, model.bn.momentum, model.bn.eps,
                                  model.bn.num_batches_tracked, group) if model.training else plain(x)
    plain = model.forward
    model.forward = forward
    return model


def by_compiling(model, group):
    by_conversion(model, group).compile(backend="eager")
    return model


def check_data_parallel(rank, group, seed):
    """DistributedDataParallel over a synchronised head, as it is written: the mean of the gradients of the ranks' sums
    is half of the whole's."""
    generator = torch.Generator().manual_seed(seed)
    ours, theirs = models(generator, 13, 9)
    x, upstream = draw_step(generator, theirs, 14)
    expected = step(theirs, x, upstream)
    model = nn.parallel.DistributedDataParallel(LinearBatchNormSoftmax.convert_sync(ours, group), process_group=group)
    (model(mine(x, (7, 7), rank)) * mine(upstream, (7, 7), rank)).sum().backward()
    found = {name: 2 * parameter.grad for name, parameter in ours.named_parameters()}
    check(found, {name: expected[name] for name in found}, True)
    return len(found)


def check_three_dimensions(rank, group, rows, seed):
    """Features in the second of three dimensions: PyTorch's operations."""
    generator = torch.Generator().manual_seed(seed)
    ours, theirs = models(generator, 5, 9)
    x = torch.randn(sum(rows), 9, 5, generator=generator, dtype=torch.float64)
    upstream = torch.randn(sum(rows), 9, 9, generator=generator, dtype=torch.float64)
    expected = step(theirs, x, upstream)
    found = step(by_conversion(ours, group), mine(x, rows, rank), mine(upstream, rows, rank))
    for name in expected:
        size = max(float(expected[name].double().norm()), 0.1)  # nothing is drawn to keep a norm
        whole = mine(expected[name], rows, rank) if name in ("output", "x") else expected[name]
        made = found[name] if name in ("output", "x") or "running" in name or "tracked" in name else added(
            found[name], group)
        assert float((made - whole).double().norm()) <= CLOSE * size, name
    return len(expected)


def check_no_rows(rank, group, rows):
    """Nobody has a row: counted, nothing else. Or all together have one: refused on every rank."""
    ours, _ = models(torch.Generator().manual_seed(3), 13, 9)
    before = copy.deepcopy(ours.state_dict())
    by_conversion(ours, group)
    x = torch.zeros(rows[rank], 13, dtype=torch.float64)
    if sum(rows) == 1:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            ours(x)
        return "refused"
    assert ours(x).shape == (0, 9)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, before[name] + 1 if name == "bn.num_batches_tracked" else before[name]), name
    return "counted"


def check_failure(rank, group, rows, way):
    """Rank 1 has a weight that does not fit. It has PyTorch's words for it, and the others are told."""
    ours, _ = models(torch.Generator().manual_seed(3), 13, 9)
    by_conversion(ours, group)
    if way == "torch":
        by_torchs_operations(ours, group)
    x = torch.zeros(rows[rank], 12 if rank == 1 else 13, dtype=torch.float64)
    with pytest.raises(RuntimeError) as caught:
        ours(x)
    assert ("rank 1 of it failed" in str(caught.value)) == (rank != 1), caught.value
    return str(caught.value)


def check_library_failure(rank, group, rows):
    """Rank 1 runs out of memory, say, in the library's own part."""
    ours, _ = models(torch.Generator().manual_seed(3), 13, 9)
    by_conversion(ours, group)
    x = torch.ones(rows[rank], 13, dtype=torch.float64)
    kept = head_sync.library.call
    if rank == 1:
        def call(*arguments):
            raise MemoryError("no room")
        head_sync.library.call = call
    try:
        with pytest.raises(MemoryError if rank == 1 else RuntimeError, match="no room" if rank == 1 else "rank 1"):
            ours(x)
    finally:
        head_sync.library.call = kept
    return True


def check_function(rank, group, rows, seed):
    """linear_batch_norm_softmax itself: cumulative average, no gradients, a number for the scale, a second derivative
    refused, a group of one process the same as none."""
    generator = torch.Generator().manual_seed(seed)
    x, weight = draw(generator, sum(rows), 6), draw(generator, 4, 6)
    mean, var, count = torch.zeros(4).double(), torch.ones(4).double(), torch.tensor(4)
    whole = nn.BatchNorm1d(4, momentum=None, affine=False).double()
    whole.num_batches_tracked.fill_(4)
    expected = torch.softmax(0.5 * whole(x @ weight.t()), 1)
    part = mine(x, rows, rank)
    found = linear_batch_norm_softmax(part, weight, None, mean, var, None, None, 0.5, True, None, 1e-5, count,
                                      process_group=group)
    assert float((found - mine(expected, rows, rank)).detach().abs().sum()) <= CLOSE
    for a, b in ((mean, whole.running_mean), (var, whole.running_var), (count, whole.num_batches_tracked)):
        assert float((a - b).abs().max()) <= CLOSE
    weight.requires_grad_()
    made = linear_batch_norm_softmax(part, weight, None, None, None, None, None, None, True, 0.1, 1e-5,
                                     process_group=group)
    gradient, = torch.autograd.grad(made.square().sum(), weight, create_graph=True)
    if gradient.requires_grad:
        with pytest.raises(RuntimeError, match="once_differentiable|differentiate twice"):
            gradient.sum().backward()
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())][rank] if group is dist.group.WORLD else None
    results = [linear_batch_norm_softmax(x, weight, None, None, None, None, None, None, True, 0.1, 1e-5,
                                         process_group=chosen) for chosen in (alone, None)]
    assert torch.equal(*results)
    return True


def check_hooks(rank, group):
    """bn is called as the module it is if it has hooks: not silently with the statistics of one process."""
    ours = by_conversion(LinearBatchNormSoftmax(4, 3), group)
    ours.bn.register_forward_hook(lambda *arguments: None)
    with pytest.raises(NotImplementedError, match="bn: its batch statistics are synchronised"):
        ours(torch.rand(5, 4))
    return True


# ---- the tests -------------------------------------------------------------------------------------------------------

HALVES = [(6, 6), (1, 11), (0, 12), (9, 5)]
QUARTERS = [(3, 3, 3, 3), (0, 7, 1, 4), (0, 0, 14, 0), (5, 2, 9, 1)]
OPTIONS = [{}, {"bias": False}, {"affine": False}, {"track_running_stats": False}, {"bn_momentum": None},
           {"bn_momentum": 1.0}, {"bn_eps": 0.3}, {"scale_shape": (9,)}, {"scale_shape": ()}]


def run(ranks, size, function, *arguments):
    print("seed: ONEPASS_TEST_SEED=%d" % samples.SEED)
    answers = ranks.run(in_group, size, function, *arguments)
    assert all(answers[:size]) and not any(answers[size:])
    return answers[:size]


@pytest.mark.parametrize("rows", HALVES + QUARTERS, ids=str)
def test_parts_of_a_batch(ranks, seed, rows):
    run(ranks, len(rows), check_steps, rows, seed, by_conversion, {})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(ranks, seed, options):
    run(ranks, 2, check_steps, (5, 8), seed, by_conversion, options)


@pytest.mark.parametrize("how", [by_pytorchs_conversion, by_rewriting, by_torchs_operations],
                         ids=lambda how: how.__name__)
def test_other_ways(ranks, seed, how):
    run(ranks, 4, check_steps, (3, 0, 7, 4), seed, how, {})


@pytest.mark.skipif(VERSION < (2, 4), reason="PyTorch %d.%d follows no look into a module" % VERSION)
def test_compiled(ranks, seed):
    run(ranks, 2, check_steps, (5, 8), seed, by_compiling, {})


def test_float32(ranks, seed):
    run(ranks, 2, check_steps, (5, 8), seed, by_conversion, {}, torch.float32, CLOSE32)


def test_data_parallel(ranks, seed):
    run(ranks, 2, check_data_parallel, seed)


def test_three_dimensions(ranks, seed):
    run(ranks, 2, check_three_dimensions, (3, 5), seed)


@pytest.mark.parametrize("rows", [(0, 0), (1, 0)], ids=str)
def test_too_few_rows(ranks, rows):
    assert run(ranks, 2, check_no_rows, rows) == ["refused" if sum(rows) else "counted"] * 2


@pytest.mark.parametrize("way", ["library", "torch"])
def test_a_rank_that_fails_tells_all(ranks, way):
    run(ranks, 4, check_failure, (2, 3, 2, 0), way)


def test_a_rank_whose_library_fails_tells_all(ranks):
    run(ranks, 2, check_library_failure, (4, 4))


def test_function(ranks, seed):
    run(ranks, 2, check_function, (4, 9), seed)


def test_hooks(ranks):
    run(ranks, 2, check_hooks)


def test_nobody_else(seed):
    """Without torch.distributed a synchronised head is a head, to the bit; one with PyTorch's SyncBatchNorm, too."""
    ours, _ = models(torch.Generator().manual_seed(seed), 13, 9)
    converted = LinearBatchNormSoftmax.convert_sync(nn.Sequential(copy.deepcopy(ours)))
    pytorchs = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(ours)).train()
    x, upstream = draw(torch.Generator().manual_seed(seed), 7, 13), draw(torch.Generator().manual_seed(seed), 7, 9)
    expected = step(ours, x, upstream)
    for found in (step(converted, x, upstream), step(pytorchs, x, upstream)):
        for a, b in zip(found.values(), expected.values()):
            assert torch.equal(a, b)
    again = copy.deepcopy(converted)
    assert again[0].is_synchronised and list(again.state_dict()) == ["0." + name for name in ours.state_dict()]
