"""Samples of numbers that random models give: when they are called different, and how seldom that is wrong."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from onepass.judge import dependence, ranks  # noqa: E402
from onepass.judge.chance import CALLS, disagreement  # noqa: E402

RARE = 1e-10  # about what a comparison gets of CHANCE


@pytest.fixture(autouse=True)
def one_thread():
    """As in the judge: several that wait for each other take far longer for so little."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sample(draw, number=CALLS):
    return [draw() for _ in range(number)]


@pytest.mark.parametrize("n, m", [(1, 1), (2, 3), (4, 3), (5, 5)])
def test_orders_are_counted(n, m):
    counts = [0] * (n * m + 1)
    for places in itertools.combinations(range(n + m), n):
        counts[sum(place - number for number, place in enumerate(places))] += 1
    assert ranks.orders(n, m) == counts
    for chance in (0.5, 0.1, 0.01, 1e-4):
        least = ranks.critical(n, m, chance)
        assert sum(counts[least:]) <= chance * sum(counts) < sum(counts[least - 1:])
        first = ranks.leaders(n, m, chance)
        ahead = [sum(places[n - c:] == tuple(range(n + m - c, n + m)) for places in
                     itertools.combinations(range(n + m), n)) / sum(counts) for c in range(n + 1)]
        assert first == next((c for c in range(1, n + 1) if ahead[c] <= chance), n + 1)


def test_how_different_samples_must_be():
    """Of 64 * 64 pairs, ours must be the larger one in so many."""
    assert ranks.critical(64, 64, RARE) == 3323
    assert ranks.leaders(64, 64, RARE) == 28


@pytest.mark.parametrize("name", ["normal", "rare", "exponential", "heavy", "constant", "two values"])
def test_equal_chances_are_told_apart_as_seldom_as_is_said(name):
    """Of four comparisons each: with chance c in at most 4 c of all cases."""
    generator = random.Random(20261116)
    draw = {"normal": lambda: generator.gauss(3, 2), "rare": lambda: float(generator.random() < 0.01),
            "exponential": lambda: generator.expovariate(1.0), "heavy": lambda: generator.gauss(0, 1) ** 9,
            "constant": lambda: 0.25, "two values": lambda: float(generator.random() < 0.3)}[name]
    samples = [(sample(draw), sample(draw)) for _ in range(400)]
    assert not any(disagreement(ours, theirs, 0.0, RARE) for ours, theirs in samples)
    assert sum(disagreement(ours, theirs, 0.0, 0.01) is not None for ours, theirs in samples) <= 2 * 4 * 0.01 * 400


@pytest.mark.parametrize("ours, words", [
    (lambda generator: 3.0, "spread"), (lambda generator: generator.gauss(3, 20), "spread"),
    (lambda generator: generator.gauss(7, 2), "in the middle"), (lambda generator: float("nan"), "in the middle")])
def test_other_chances_are(ours, words):
    generator = random.Random(20261116)
    for _ in range(200):
        found = disagreement(sample(lambda: ours(generator)), sample(lambda: generator.gauss(3, 2)), 0.0, RARE)
        assert found is not None and words in found


def test_rounding_is_no_disagreement():
    """A difference of equal things: 0 on one side, rounding of numbers of that scale on the other."""
    generator = random.Random(20261116)
    ours = sample(lambda: generator.gauss(0, 1e-6))
    assert disagreement(ours, [0.0] * CALLS, 1.0, RARE) is None
    assert disagreement(sample(lambda: generator.gauss(0, 1e-2)), [0.0] * CALLS, 1.0, RARE) is not None
    assert disagreement([1.0 + 1e-6] * CALLS, [1.0] * CALLS, 0.0, RARE) is None


# ---- dependence ------------------------------------------------------------------------------------------------------

SHAPE = (6, 12, 5)
EPS = torch.finfo(torch.float32).eps
VALUES = torch.linspace(-2.0, 2.0, 6 * 12 * 5).reshape(SHAPE)  # both signs, and none of them 0


def dropped(generator, like=None):
    """Results of calls: a mask, or noise, of every element on its own; like: what is made of them."""
    kept = (torch.rand((CALLS,) + SHAPE, generator=generator) < 0.7).double()
    return list((like(kept) if like else kept) * VALUES.double() / 0.7)


def noisy(generator, like=None):
    noise = torch.randn((CALLS,) + SHAPE, generator=generator, dtype=torch.float64)
    return list(VALUES.double() + (like(noise) if like else noise))


def findings(make, like, generator, chance, theirs=None):
    found = dependence.Deviations(make(generator, theirs), make(generator, theirs), make(generator, like), EPS)
    assert found.usable
    return [found.kin(chance) or None] + [found.shared(view, chance) for view in found.views()]


def same_slices(dimension, a, b):
    def change(lot):
        lot = lot.clone()
        lot.select(dimension + 1, a).copy_(lot.select(dimension + 1, b))
        return lot
    return change


def tiled(lot):
    flat = lot.flatten(1)
    return flat[:, torch.arange(flat.shape[1]) % 97].reshape(lot.shape)


@pytest.mark.parametrize("make", [dropped, noisy])
@pytest.mark.parametrize("like, place", [
    (lambda lot: lot[[call // 2 for call in range(CALLS)]], 0),
    (lambda lot: lot[[call % 9 for call in range(CALLS)]], 0),
    (same_slices(0, 1, 4), 1), (same_slices(1, 3, 11), 2), (same_slices(2, 0, 1), 3), (tiled, 4),
    (lambda lot: lot[:, :1].expand_as(lot), 1)])
def test_numbers_that_are_used_twice_are_seen(make, like, place):
    generator = torch.Generator().manual_seed(20261116)
    for _ in range(5):
        assert findings(make, like, generator, RARE)[place] is not None
        if place:  # within a call: what the reference does, too, is right
            assert findings(make, like, generator, RARE, theirs=like) == [None] * 5


@pytest.mark.parametrize("make", [dropped, noisy])
def test_independent_numbers_are_suspected_as_seldom_as_is_said(make):
    generator = torch.Generator().manual_seed(20261116)
    repeats, chance = 40, 0.05
    found = [findings(make, None, generator, chance) for _ in range(repeats)]
    assert sum(words is not None for some in found for words in some) <= 2 * 5 * chance * repeats
    assert not any(words for _ in range(repeats) for words in findings(make, None, generator, RARE))


def test_rounding_is_no_kinship():
    """What a model adds to all its results by rounding makes its calls alike, but for less than counts."""
    generator = torch.Generator().manual_seed(20261116)
    offset = 1e-6 * torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    few = torch.rand((3 * CALLS, 1, 1, 1), generator=generator).lt(0.5).double()  # one number for a whole call
    lots = [list((part * VALUES.double()).unbind(0)) for part in few.split(CALLS)]
    found = dependence.Deviations(lots[0], lots[1], [result + offset for result in lots[2]], EPS)
    assert not found.kin(RARE) and not any(found.shared(view, RARE) for view in found.views())


def test_what_rounding_hides_is_left_out():
    lots = [noisy(torch.Generator().manual_seed(seed)) for seed in range(3)]
    assert dependence.Deviations(*lots, EPS).usable
    assert not dependence.Deviations(*lots, torch.finfo(torch.bfloat16).eps).usable
    assert disagreement([1.0 + 1e-3] * CALLS, [1.0] * CALLS, 0.0, RARE) is not None
    assert disagreement([1.0 + 1e-3] * CALLS, [1.0] * CALLS, 0.0, RARE, rounding=0.03) is None


def test_windows_hold_neighbours_and_others():
    chosen = dependence.window((5000, 3, 700), torch.Generator().manual_seed(1))
    assert dependence.count([len(indices) for indices in chosen]) <= dependence.WINDOW
    for indices, extent in zip(chosen, (5000, 3, 700)):
        assert len(set(indices.tolist())) == len(indices) and 0 <= int(indices.min()) and int(indices.max()) < extent
    assert len(chosen[1]) == 3 and bool((chosen[0][1:] - chosen[0][:-1] == 1).any())
    values = torch.arange(24.0)
    assert dependence.cut(values, (4, 6), [torch.tensor([1, 3]), torch.tensor([0, 5])]).tolist() == [[6, 11], [18, 23]]
