"""Comparisons of two samples that are wrong with a probability that is known, whatever is sampled.

If two samples come from one distribution, and all their values are independent, then every order of the values is as
likely as any other: nothing else is assumed here. U, the number of pairs in which ours is the larger one, then has the
distribution of Mann and Whitney, which is counted out in whole numbers: of the C(n + m, n) orders of n and m values,
those with U = k are the coefficient of q^k in the product of (1 - q^(m + i)) / (1 - q^i) for i from 1 to n. Equal
values, and those that are equal within a margin for rounding, count as the smaller ones, which only makes U smaller.
"""

import functools

import torch


def orders(n, m):
    """How many orders of n values among m others have U = 0, 1, 2, ..."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for k in range(n * m, m + i - 1, -1):
            counts[k] -= counts[k - m - i]
        for k in range(i, n * m + 1):
            counts[k] += counts[k - i]
    return counts


@functools.lru_cache(maxsize=None)
def critical(n, m, chance):
    """The smallest number that U reaches with at most that probability; n * m + 1: none does."""
    counts = orders(n, m)
    total, tail, k = sum(counts), 0, 0
    while k < len(counts) and tail + counts[k] <= chance * total:
        tail += counts[k]
        k += 1
    return n * m - k + 1  # U and n * m - U are distributed alike


def larger(ours, theirs, margin, chance):
    """Whether our values are larger than theirs by more than chance and rounding explain."""
    ours, theirs = torch.as_tensor(ours, dtype=torch.float64), torch.as_tensor(theirs, dtype=torch.float64)
    above = int((ours.reshape(-1, 1) > theirs.reshape(1, -1) + margin).sum())
    return above >= critical(len(ours), len(theirs), chance)


def leaders(n, m, chance):
    """The smallest number c for which it has at most that probability that the c largest of n + m values are all among
    the n: n (n - 1) ... (n - c + 1) / ((n + m) (n + m - 1) ...). n + 1: none has."""
    share = 1.0
    for number in range(n):
        share *= (n - number) / (n + m - number)
        if share <= chance:
            return number + 1
    return n + 1
