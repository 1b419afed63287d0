"""Many callers at once: threads of Python, forked children. The same bits as one at a time."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

import torch_samples as samples
from torch_samples import torch

import onepass.torch

SHAPES = [(1, 10), (6, 50), (130, 100), (64, 1000)]  # on both sides of where the library begins to share work

# An old PyTorch allows no backward pass in the child of a process that has made one.
BACKWARD_IN_CHILDREN = samples.VERSION >= (2, 0)


def inputs_of(seed, rounds):
    generator = torch.Generator().manual_seed(seed)
    return [[samples.leaf(samples.probabilities(generator, SHAPES[(seed + i) % len(SHAPES)])) for _ in range(2)]
            for i in range(rounds)]


def work(inputs, scale, backward=True):
    """Values and gradients as bytes. PyTorch itself does nothing here that it would share among threads: in a forked
    child its own pool is dead."""
    found = []
    for p, t in inputs:
        p.grad = t.grad = None
        loss = onepass.torch.kl_div_probs(p, t, reduction="sum")
        found.append(loss.detach())
        if backward:
            (loss * scale).backward()
            found += [p.grad, t.grad]
    return [x.numpy().tobytes() for x in found]


def seed_of(name):
    return int(torch.randint(1 << 30, (), generator=samples.random(name)))


def run_together(functions):
    """Each in a thread, all let go at once; their results. A thread's death is not passed over."""
    results, errors = [None] * len(functions), []
    start = threading.Barrier(len(functions))

    def run(i, function):
        try:
            start.wait()
            results[i] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return results


def test_eight_threads():
    """Each with its own inputs and its own upstream gradient, all on the one place where expectations are kept."""
    seed = seed_of("eight threads")
    jobs = [inputs_of(seed + i, 12) for i in range(8)]
    expected = [work(job, i % 3 + 1) for i, job in enumerate(jobs)]
    found = run_together([lambda i=i, job=job: work(job, i % 3 + 1) for i, job in enumerate(jobs)])
    assert found == expected


def test_one_graph_from_many_threads():
    """A retained graph that several threads go back through at once: all their gradients are right, and their own."""
    generator = samples.random("one graph")
    p, t = (samples.leaf(samples.probabilities(generator, (130, 100))) for _ in range(2))
    expected = torch.autograd.grad(onepass.torch.kl_div_probs(p, t), (p, t))
    for _ in range(10):
        loss = onepass.torch.kl_div_probs(p, t)
        found = run_together([lambda: torch.autograd.grad(loss, (p, t), retain_graph=True)] * 4)
        assert all(torch.equal(a, b) for f in found for a, b in zip(f, expected))
        addresses = [g.data_ptr() for f in found for g in f]
        assert len(set(addresses)) == 8, "two of them share memory"


def wait_for(pid, seconds=600):
    """The child's exit status; a child that hangs is killed, and that is a failure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the forked child hangs")


def in_child(function):
    """Runs the function in a forked child; true if it returned true there."""
    with samples.no_warnings():
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if function() else 1
        finally:
            os._exit(code)
    return wait_for(pid) == 0


def test_fork_after_use():
    """The library's pool starts anew in a child, a child's child too, and the parent's is as before."""
    inputs = inputs_of(seed_of("fork"), 8)
    work(inputs, 2)
    expected = work(inputs, 2, BACKWARD_IN_CHILDREN)
    assert torch.get_num_threads() > 1 or os.cpu_count() == 1, "the pool is used"

    def same():
        return work(inputs, 2, BACKWARD_IN_CHILDREN) == expected

    assert in_child(same)
    assert in_child(lambda: in_child(same) and same())
    assert same()


def test_fork_while_others_work():
    """Children made in the middle of other threads' calls."""
    seed = seed_of("fork, busy")
    inputs, others = inputs_of(seed, 8), [inputs_of(seed + i, 4) for i in (1, 2)]
    expected = work(inputs, 2, BACKWARD_IN_CHILDREN)
    stop = threading.Event()

    def busy(job):
        while not stop.is_set():
            work(job, 1, backward=False)

    threads = [threading.Thread(target=busy, args=(job,)) for job in others]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_child(lambda: work(inputs, 2, BACKWARD_IN_CHILDREN) == expected)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _send(queue, inputs):
    queue.put(work(inputs, 2, BACKWARD_IN_CHILDREN))


def test_multiprocessing():
    """What a data loader or torch.multiprocessing does: a process of its own, by fork."""
    inputs = inputs_of(seed_of("multiprocessing"), 8)
    expected = work(inputs, 2, BACKWARD_IN_CHILDREN)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with samples.no_warnings():
        process = context.Process(target=_send, args=(queue, inputs))
        process.start()
    assert queue.get(timeout=600) == expected
    process.join(600)
    assert process.exitcode == 0
