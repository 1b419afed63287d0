"""What torch.ops.onepass allocates: a CUDA graph of the compiler's has memory of its own, from before it is captured, so
nothing of it may be kept from one call to the next. On a GPU test_torch_head_tracing.py has such a graph."""

import types

import pytest

from torch_samples import needs_compile, torch

from onepass import library
from onepass.torch import LinearBatchNormSoftmax, kl, route

THREADS = iter(range(101, 200))  # a number that no other test uses: a handle that has no workspace yet


@pytest.fixture
def asked(monkeypatch):
    """Workspaces that the library asked for: their bytes."""
    sizes, allocate, threads = [], route.workspace, next(THREADS)
    monkeypatch.setattr(route, "threads", lambda: threads)
    monkeypatch.setattr(route, "workspace", lambda tensor, size: (sizes.append(size), allocate(tensor, size))[1])
    return sizes


def forward(rows):
    with torch.no_grad():
        return LinearBatchNormSoftmax(40, 30)(torch.rand(rows, 40))


def test_a_workspace_is_kept(asked):
    forward(20), forward(20)
    assert len(asked) == 1
    forward(2000)
    assert len(asked) == 2 and asked[1] > asked[0]
    forward(20)
    assert len(asked) == 2


def test_one_for_an_operator_is_not(asked, monkeypatch):
    """And one that was kept before serves operators as well."""
    monkeypatch.setattr(route, "_operators", 1)
    assert torch.equal(forward(20).sum(1).round(), torch.ones(20))
    forward(20)
    assert len(asked) == 2
    monkeypatch.setattr(route, "_operators", 0)
    forward(20), forward(20)
    assert len(asked) == 3
    monkeypatch.setattr(route, "_operators", 1)
    forward(20)
    assert len(asked) == 3


def test_not_a_workspace(monkeypatch):
    threads = next(THREADS)
    monkeypatch.setattr(route, "threads", lambda: threads)
    for wrong, error in (((), IndexError), ((None,), TypeError), (None, TypeError)):
        monkeypatch.setattr(route, "workspace", lambda tensor, size: wrong)
        with pytest.raises(error):
            forward(20)


def test_nothing_has_a_place_within_an_operator():
    tensor = types.SimpleNamespace(is_cuda=True, new_empty=lambda size, dtype: (size, dtype))

    @route.as_operator
    def inner():
        return route.place_of(tensor), route.workspace(tensor, 16)

    @route.as_operator
    def outer(fails, name=None):
        made = inner()
        assert route._operators == 1
        if fails:
            raise KeyError(name)
        return made

    assert route._operators == 0
    assert outer(False) == (None, ((16, torch.uint8),))
    with pytest.raises(KeyError):
        outer(True, name="x")
    assert route._operators == 0 and route.workspace(tensor, 16) == (16, torch.uint8)


@needs_compile
@pytest.mark.parametrize("name", ["kl", "linear", "head"])
def test_kernels_are_operators(name, monkeypatch):
    p, weight = torch.rand(6, 8).softmax(1), torch.rand(3, 8)
    arguments = {"kl": (p, p, None, None, 0, kl.NONE, 0, 0.0, None), "linear": (p, weight, None),
                 "head": (p, weight) + 7 * (None,) + (True, 0.1, 1e-5, torch.float32)}[name]
    seen, real = [], library.call
    monkeypatch.setattr(library, "call", lambda *arguments: (seen.append(route._operators), real(*arguments))[1])
    getattr(torch.ops.onepass, name)(*arguments)
    assert seen == [1] and route._operators == 0
