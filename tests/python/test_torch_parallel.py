"""Data parallel training of models with the losses and heads of onepass.torch: DistributedDataParallel and FSDP2, two
processes over Gloo on the CPU, each with half of the batch; gradient accumulation, mixed precision, activation
checkpointing.

Each process makes the same calls as a single one with its half, so that after the exchange every gradient has the bits
of the mean of the two. Losses whose rows know nothing of each other also agree with the whole batch in one process, to
float64's rounding. (A head's batch statistics are those of the half.)
"""

import contextlib
import copy
import time

import pytest

import torch_samples as samples
from head_samples import CLOSE
from ranks import Failed, Ranks, answer, misbehave
from torch_samples import F, VERSION, torch

import onepass.torch
from onepass.torch import LinearBatchNormSoftmax

nn = torch.nn
INPUTS, HIDDEN, OUTPUTS, ROWS = 7, 12, 9, 6  # of a rank, and of a step of it
KINDS = ("kl_div", "cross_entropy", "kl_div_logits", "linear_cross_entropy", "head")
HAS_FSDP2 = VERSION >= (2, 6)

needs_fsdp2 = pytest.mark.skipif(not HAS_FSDP2, reason="PyTorch %d.%d has no torch.distributed.fsdp.fully_shard" %
                                 VERSION)
needs_both_checkpoints = pytest.mark.skipif(VERSION < (1, 13), reason="PyTorch %d.%d has reentrant checkpoints only" %
                                            VERSION)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as made:
        yield made


# ---- a model ---------------------------------------------------------------------------------------------------------


class End(nn.Module):
    """The last layer and the loss."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.layer = LinearBatchNormSoftmax(HIDDEN, OUTPUTS) if kind == "head" else nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, hidden, target):
        if self.kind == "linear_cross_entropy":
            return onepass.torch.linear_cross_entropy(hidden, self.layer.weight, target, linear_bias=self.layer.bias)
        z = self.layer(hidden)
        if self.kind == "cross_entropy":
            return onepass.torch.cross_entropy(z, target)
        if self.kind == "kl_div_logits":
            return onepass.torch.kl_div_logits(z, target.to(z.dtype))
        if self.kind == "head":
            return onepass.torch.kl_div_probs(z, F.softmax(target, 1).to(z.dtype), "batchmean")
        return onepass.torch.kl_div(F.log_softmax(z, 1), F.softmax(target, 1).to(z.dtype), reduction="batchmean")


class Network(nn.Module):
    """Two layers and an End, which is computed again in the backward pass if `checkpoint` says so."""

    def __init__(self, kind, checkpoint):
        super().__init__()
        self.first = nn.Linear(INPUTS, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.end = End(kind)
        self.checkpoint = checkpoint

    def forward(self, x, target):
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        if self.checkpoint is None:
            return self.end(hidden, target)
        from torch.utils.checkpoint import checkpoint
        options = {"use_reentrant": self.checkpoint == "reentrant"} if VERSION >= (1, 13) else {}
        return checkpoint(self.end, hidden, target, **options)


def draw_batch(generator, kind, rows, dtype):
    x = torch.randn(rows, INPUTS, generator=generator, dtype=torch.float64).to(dtype)
    if kind.endswith("cross_entropy"):
        return x, torch.randint(OUTPUTS, (rows,), generator=generator)
    return x, torch.randn(rows, OUTPUTS, generator=generator, dtype=torch.float64).to(dtype)


def autocast(on):
    return torch.autocast("cpu", dtype=torch.bfloat16) if on else contextlib.nullcontext()


def backward(model, batch, half):
    with autocast(half):
        loss = model(*batch)
    loss.backward()


def gradients(model, steps, half=False, dtype=None):
    """{name: sum of the gradients} of a copy of the model after these steps in this process alone, and the copy. dtype:
    of the parameters while they are used; gradients are added in their own."""
    added, model = {}, copy.deepcopy(model)
    of = {name: parameter.dtype for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype or parameter.dtype)
    for batch in steps:
        model.zero_grad()
        backward(model, batch, half)
        for name, parameter in model.named_parameters():
            made = parameter.grad.to(of[name]).clone()
            added[name] = added[name] + made if name in added else made
    return added, model


class Case:
    """What every rank draws alike: a model, and for each rank its steps."""

    def __init__(self, kind, steps, half, checkpoint, seed):
        self.half, dtype = half, torch.float32 if half else torch.float64
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model = Network(kind, checkpoint).to(dtype)
        self.steps = [[draw_batch(generator, kind, ROWS, dtype) for _ in range(steps)] for _ in range(2)]
        self.rows_are_alone = kind != "head" and not half

    def check(self, name, found, dtype=None):
        """The gradients of all ranks against those of one process. dtype: of the parameters while they are used."""
        apart = [gradients(self.model, steps, self.half, dtype)[0] for steps in self.steps]
        for key, tensor in found.items():
            halves = [made[key] / 2 for made in apart]
            assert tensor.abs().max() > 0 or key == "end.layer.gemm.bias", (name, key)
            assert torch.equal(tensor, halves[0] + halves[1]), (name, key, tensor, halves[0] + halves[1])
        if self.rows_are_alone:
            self._check_joined(name, found)

    def _check_joined(self, name, found):
        """Against the whole batch. What is added up are the gradients of the rows, and each is off by the roundings of
        seven products of up to 12 terms and of as many elementary functions: about 130, of the products' factors, whose
        norms multiplied are at most some 60 times the gradient. All of it is below CLOSE."""
        joined = [tuple(torch.cat(parts) for parts in zip(*steps)) for steps in zip(*self.steps)]
        expected, _ = gradients(self.model, joined)
        alone = [gradients(self.model, [tuple(part[i:i + 1] for part in batch)])[0]
                 for batch in joined for i in range(2 * ROWS)]
        for key, tensor in found.items():
            size = sum(float(made[key].norm()) for made in alone) / (2 * ROWS)
            error = float((tensor - expected[key]).norm())
            assert error <= CLOSE * size, (name, key, error, size)


# ---- in a rank -------------------------------------------------------------------------------------------------------


def data_parallel(rank, kind, steps, half, checkpoint, seed):
    """DistributedDataParallel, whose gradients of all steps but the last are not exchanged."""
    case = Case(kind, steps, half, checkpoint, seed)
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(case.model))
    for i, batch in enumerate(case.steps[rank]):
        with model.no_sync() if i + 1 < steps else contextlib.nullcontext():
            backward(model, batch, half)
    name = "%s, seed %d" % (kind, seed)
    case.check(name, {key: parameter.grad for key, parameter in model.module.named_parameters()})
    # The statistics of the first rank are everybody's at the next forward pass, as ever.
    _, alone = gradients(case.model, case.steps[rank], half)
    for (key, found), expected in zip(model.module.named_buffers(), alone.buffers()):
        assert torch.equal(found, expected), (name, key)
    return len(case.steps)


def fully_sharded(rank, kind, steps, half, checkpoint, seed):
    """FSDP2: the end and the rest are two groups of parameters, each sharded over both ranks. half: parameters are
    bfloat16 while they are used, and gradients float32 while they are exchanged."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    case = Case(kind, steps, False, checkpoint, seed)
    if half:
        case.model.float()
        case.steps = [[tuple(part.bfloat16() if part.is_floating_point() else part for part in batch)
                       for batch in mine] for mine in case.steps]
        case.rows_are_alone = False
    options = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if half else {}
    model, mesh = copy.deepcopy(case.model), init_device_mesh("cpu", (2,))
    fully_shard(model.end, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    assert type(model.end).__name__ != "End" and type(model.first.weight) is not nn.Parameter  # it took hold of them
    for i, batch in enumerate(case.steps[rank]):
        model.set_requires_gradient_sync(i + 1 == steps)
        backward(model, batch, False)
    found = {key: parameter.grad.full_tensor() for key, parameter in model.named_parameters()}
    case.check("%s, seed %d" % (kind, seed), found, torch.bfloat16 if half else None)
    return len(found)


def next_to(rank, function, cases):
    """Several checks in one answer."""
    return [function(rank, *case) for case in cases]


# ---- the tests -------------------------------------------------------------------------------------------------------


def run(ranks, function, seed, **options):
    """One check per kind."""
    print("seed: ONEPASS_TEST_SEED=%d" % samples.SEED)
    options = dict({"steps": 1, "half": False, "checkpoint": None}, **options)
    cases = [(kind, options["steps"], options["half"], options["checkpoint"], seed + i)
             for i, kind in enumerate(KINDS)]
    answers = ranks.run(next_to, function, cases)
    assert len(answers) == 2 and all(len(done) == len(KINDS) and min(done) > 0 for done in answers)


def test_data_parallel(ranks, seed):
    run(ranks, data_parallel, seed)


def test_data_parallel_accumulates(ranks, seed):
    run(ranks, data_parallel, seed, steps=3)


def test_data_parallel_in_mixed_precision(ranks, seed):
    run(ranks, data_parallel, seed, half=True, steps=2)


def test_data_parallel_with_reentrant_checkpoints(ranks, seed):
    run(ranks, data_parallel, seed, checkpoint="reentrant", steps=2)


@needs_both_checkpoints
@pytest.mark.parametrize("half", [False, True], ids=["float64", "autocast"])
def test_data_parallel_with_checkpoints(ranks, seed, half):
    run(ranks, data_parallel, seed, checkpoint="not reentrant", half=half, steps=2)


@needs_fsdp2
def test_fully_sharded(ranks, seed):
    run(ranks, fully_sharded, seed)


@needs_fsdp2
def test_fully_sharded_accumulates(ranks, seed):
    run(ranks, fully_sharded, seed, steps=3)


@needs_fsdp2
def test_fully_sharded_in_mixed_precision(ranks, seed):
    run(ranks, fully_sharded, seed, half=True, steps=2)


@needs_fsdp2
@pytest.mark.parametrize("checkpoint", ["reentrant", "not reentrant"])
def test_fully_sharded_with_checkpoints(ranks, seed, checkpoint):
    run(ranks, fully_sharded, seed, checkpoint=checkpoint, steps=2)


# ---- the processes themselves ----------------------------------------------------------------------------------------


def test_ranks_answer_in_order():
    with Ranks(3, group=False) as made:
        assert made.run(answer, 40) == [40, 41, 42]


@pytest.mark.parametrize("how,words", [("raise", "rank 1 has its reasons"), ("end", "rank 1 has ended"),
                                       ("hang", "no answer from rank 0, 1 within 1 s")])
def test_a_rank_that_fails_ends_all(how, words):
    """At once, or at the limit; never later."""
    begin = time.monotonic()
    with Ranks(2, group=False) as made:
        with pytest.raises(Failed, match=words):
            made.run(misbehave, how, limit=1 if how == "hang" else 60)
        assert not made.processes
        assert time.monotonic() - begin < 60
        assert made.run(answer, 1) == [1, 2]  # by new ones
