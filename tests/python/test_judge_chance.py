"""Samples of numbers that random models give: when they are called different, and how seldom that is wrong."""

import random

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from onepass.judge.chance import CALLS, disagreement  # noqa: E402


def sample(draw, number=CALLS):
    return [draw() for _ in range(number)]


@pytest.mark.parametrize("name", ["normal", "rare", "exponential", "constant", "two values"])
def test_equal_chances_are_not_told_apart(name):
    generator = random.Random(20261116)
    draw = {"normal": lambda: generator.gauss(3, 2), "rare": lambda: float(generator.random() < 0.01),
            "exponential": lambda: generator.expovariate(1.0), "constant": lambda: 0.25,
            "two values": lambda: float(generator.random() < 0.3)}[name]
    assert [disagreement(sample(draw), sample(draw), 0.0) for _ in range(2000)] == [None] * 2000


@pytest.mark.parametrize("ours, words", [
    (lambda generator: 3.0, "spread"), (lambda generator: generator.gauss(3, 20), "spread"),
    (lambda generator: generator.gauss(7, 2), "on average"), (lambda generator: float("nan"), "on average")])
def test_other_chances_are(ours, words):
    generator = random.Random(20261116)
    for _ in range(200):
        found = disagreement(sample(lambda: ours(generator)), sample(lambda: generator.gauss(3, 2)), 0.0)
        assert found is not None and words in found


def test_rounding_is_no_disagreement():
    """A difference of equal things: 0 on one side, rounding of numbers of that scale on the other."""
    generator = random.Random(20261116)
    ours = sample(lambda: generator.gauss(0, 1e-6))
    assert disagreement(ours, [0.0] * CALLS, 1.0) is None
    assert disagreement(sample(lambda: generator.gauss(0, 1e-2)), [0.0] * CALLS, 1.0) is not None
