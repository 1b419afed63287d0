"""Memory: what a pass may use besides its results, what a loop may leave behind, how long tensors are kept alive."""

import gc
import os
import weakref

import pytest

import torch_samples as samples
from torch_samples import F, pair, torch

import onepass
import onepass.torch
from onepass.torch import kl

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
SMALL, LARGE = (6, 50), (100, 100)  # on both sides of kl._SMALL


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def leaves(shape, name):
    return [samples.leaf(x) for x in pair(samples.random(name), shape, "kl_div_probs")]


@pytest.fixture
def no_gc():
    """Whatever needs the collector to go away has not gone away."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---- loops -----------------------------------------------------------------------------------------------------------


def train(inputs, step):
    for x in inputs:
        x.grad = None
    (onepass.torch.kl_div_probs(*inputs) * (step % 5 + 1)).backward()


def evaluate(inputs, step):
    with torch.no_grad():
        onepass.torch.kl_div_probs(*inputs, reduction=("rows", "none", "mean")[step % 3])


def forget(inputs, step):
    onepass.torch.kl_div_probs(*inputs)  # and no backward pass


def fail(inputs, step):
    with pytest.raises(onepass.InvalidArgument):
        onepass.torch.kl_div_probs(*inputs, row_weights=torch.ones(3, 3))


def twice(inputs, step):
    gradient, = torch.autograd.grad(onepass.torch.kl_div_probs(*inputs), inputs[:1], create_graph=True)
    gradient.square().sum().backward()


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
@pytest.mark.parametrize("work,steps", [(train, 10000), (evaluate, 10000), (forget, 5000), (fail, 2000), (twice, 300)],
                         ids=lambda x: getattr(x, "__name__", None))
def test_loops_leave_nothing(work, steps, shape, no_gc):
    """Ten thousand steps hold the process at its size. A gradient of the large inputs lost every fiftieth step would be
    eight MB."""
    inputs = leaves(shape, "loops")
    for step in range(200):
        work(inputs, step)
    before = resident()
    for step in range(steps):
        work(inputs, step)
    grown = resident() - before
    print("%d steps: %+.2f MiB" % (steps, grown / MIB))
    assert grown < 4 * MIB
    assert len(kl._expected) <= 1 + 8 * torch.cuda.is_available()


@samples.needs_func
def test_loops_of_the_traced_way_leave_nothing():
    """Here PyTorch makes classes of its own for each call, which are cycles: the collector may help."""
    inputs = pair(samples.random("traced loops"), LARGE, "kl_div_probs")
    gradient = torch.func.grad(onepass.torch.kl_div_probs)
    sizes = []
    for steps in (200, 1000):
        for _ in range(steps):
            gradient(*inputs)
        gc.collect()
        sizes.append(resident())
    assert sizes[1] - sizes[0] < 4 * MIB


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
@pytest.mark.parametrize("work", [train, evaluate, forget, twice], ids=lambda x: x.__name__)
def test_no_cycles(work, shape, no_gc):
    """The collector finds nothing that was not freed at once."""
    inputs = leaves(shape, "cycles")
    for step in range(20):
        work(inputs, step)
    gc.collect()
    before = len(gc.get_objects())
    for step in range(50):
        work(inputs, step)
    assert gc.collect() == 0
    assert len(gc.get_objects()) - before < 20, "objects that are neither freed nor garbage"


# ---- lifetimes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
def test_inputs_die_with_the_loss(shape, no_gc):
    """A loss keeps its inputs until its backward pass, or its own end; nobody keeps them longer."""
    def made():
        inputs = leaves(shape, "lifetimes")
        used = [x * 1 for x in inputs]
        return inputs, [weakref.ref(x) for x in used], onepass.torch.kl_div_probs(*used)

    inputs, used, loss = made()
    assert all(x() is not None for x in used)
    del loss
    assert all(x() is None for x in used)

    inputs, used, loss = made()
    loss.backward()
    assert all(x() is None for x in used), "a used graph lets go of them"
    assert loss.requires_grad and all(x.grad is not None for x in inputs)

    inputs, used, loss = made()
    loss.backward(retain_graph=True)
    assert all(x() is not None for x in used)


def test_gradients_made_in_forward_die_with_the_loss(monkeypatch, no_gc):
    made = []
    original = kl._value_and_gradients

    def spy(*arguments):
        result = original(*arguments)
        made.extend(weakref.ref(x) for x in result[1:])
        return result

    monkeypatch.setattr(kl, "_value_and_gradients", spy)
    inputs = leaves(LARGE, "gradients' lifetimes")
    loss = onepass.torch.kl_div_probs(*inputs)
    assert len(made) == 2 and all(x() is not None for x in made)
    del loss
    assert all(x() is None for x in made)


def test_the_gradient_made_in_forward_is_the_one_that_is_kept(monkeypatch):
    """Autograd takes it over: no copy, in the first step and in those whose upstream gradient was not expected."""
    addresses = []
    original = kl._value_and_gradients

    def spy(*arguments):
        result = original(*arguments)
        addresses.append([x.data_ptr() for x in result[1:]])
        return result

    monkeypatch.setattr(kl, "_value_and_gradients", spy)
    for upstream in (1.0, 7.0, 7.0, 2.0):
        inputs = leaves(LARGE, "kept gradients")
        onepass.torch.kl_div_probs(*inputs).backward(torch.tensor(upstream))
        assert [x.grad.data_ptr() for x in inputs] == addresses[-1]


def test_an_expected_upstream_gradient_saves_the_second_pass():
    """Where it comes as expected, backward writes nothing; where not, it does."""
    inputs = leaves(LARGE, "expected")
    for upstream, written in ((3.0, None), (3.0, False), (3.0, False), (5.0, True), (5.0, False)):
        loss = onepass.torch.kl_div_probs(*inputs)
        for gradient in loss.grad_fn.made[:2]:
            gradient.zero_()
        found = torch.autograd.grad(loss, inputs, torch.tensor(upstream))
        if written is not None:
            assert bool(found[0].any()) is written and bool(found[1].any()) is written, upstream


# ---- peaks -----------------------------------------------------------------------------------------------------------


def peak_of(work):
    """The largest size the process had during the call, beyond what it had before; and what the call returned."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pytest.skip("/proc/self/clear_refs: this system does not let a process reset its own peak")
    before = resident()
    result = work()
    with open("/proc/self/status") as file:
        peak, = (int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    return peak - before, result


def test_a_pass_uses_no_memory_of_its_own():
    """Forward: nothing. With gradients: the gradients alone. PyTorch by the same measure: several full tensors."""
    shape, size = (1024, 8192), 32 * MIB
    inputs = [torch.full(shape, 1 / 8192), torch.full(shape, 1 / 8192)]
    onepass.torch.kl_div_probs(*inputs)  # threads and their stacks
    with torch.no_grad():
        used, _ = peak_of(lambda: onepass.torch.kl_div_probs(*inputs))
        theirs, _ = peak_of(lambda: F.kl_div(inputs[0].log(), inputs[1], reduction="batchmean"))
    print("forward: %.1f MiB, PyTorch %.1f" % (used / MIB, theirs / MIB))
    assert used < 2 * MIB and theirs > 1.9 * size
    leaf = samples.leaf(inputs[0])
    used, _ = peak_of(lambda: onepass.torch.kl_div_probs(leaf, inputs[1]).backward())
    print("forward and backward: %.1f MiB" % (used / MIB))
    assert size <= used < size + 2 * MIB


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_not_copied(dtype):
    """Computed in float32, and under autocast returned in it, without a float32 tensor anywhere."""
    inputs = [torch.full((1024, 8192), 1 / 8192, dtype=dtype) for _ in range(2)]
    onepass.torch.kl_div_probs(*inputs)
    with torch.no_grad(), torch.cpu.amp.autocast() if samples.VERSION < (2, 4) else torch.autocast("cpu"):
        used, value = peak_of(lambda: onepass.torch.kl_div_probs(*inputs))
    print("%.1f MiB" % (used / MIB))
    assert value.dtype == torch.float32 and used < 2 * MIB
