"""Random numbers that a model has used more often than it may: a mask for two calls, for two rows, for two columns.

Each single number of such a model is distributed as it should be; only together they are not. So results are looked at
as deviations from their mean, element by element in units of their standard deviation, both known from calls of the
reference that serve nothing else:

- of two slices of a result (rows, columns, whatever its dimensions are), how much their deviations agree; and of the
  whole with itself, moved along. There are many pairs. The one that stands out most in the first half of the
  candidate's calls is looked at in the second half of them, and in other calls of the reference: numbers that had no
  part in the choice, one a call, which ranks.py compares.
- of two calls, how much they agree: every call has a next of kin among all calls of both sides. If calls are
  independent, those of the one side have no nearer kin than those of the other.
"""

import torch

from onepass.judge import ranks

WINDOW = 1 << 14     # elements of a result that are looked at
EXTENT = 256         # of them along a dimension, at most
MARGIN = 0.02        # of a correlation: what roundings may make of it
STEADY = 1e-3        # of the size of a result: elements that vary by less are left out, for their roundings; and
STEADIER = 1024      # those that vary by less than so many units of rounding of the type
LIMIT = 4.0          # standard deviations that count
FEW = 8              # elements that a pair of slices must have in common
LEAST = 16           # elements that must vary at all


def window(shape, generator):
    """For each dimension the indices that are looked at: neighbours, and as many others."""
    extents = [min(extent, EXTENT) for extent in shape]
    while count(extents) > WINDOW:
        extents[extents.index(max(extents))] = max(extents) * 3 // 4
    chosen = []
    for extent, size in zip(extents, shape):
        if extent == size:
            chosen.append(torch.arange(size))
            continue
        begin = int(torch.randint(size - extent // 2, (), generator=generator))
        row = torch.arange(begin, begin + extent // 2)
        others = torch.cat([torch.arange(begin), torch.arange(begin + len(row), size)])
        picked = torch.randperm(len(others), generator=generator)[:extent - len(row)]
        chosen.append(torch.cat([row, others[picked].sort()[0]]))
    return chosen


def count(extents):
    total = 1
    for extent in extents:
        total *= extent
    return total


def cut(flat, shape, chosen):
    """The window of a result."""
    tensor = flat.reshape(shape)
    for dimension, indices in enumerate(chosen):
        tensor = tensor.index_select(dimension, indices)
    return tensor


class Deviations:
    """Of one result, in three lots of calls: the reference's own for scale, the reference's, the candidate's."""

    def __init__(self, scale, theirs, ours, eps):
        scale = torch.stack(scale).double()
        mean, spread = scale.mean(0), scale.std(0)
        size = float((mean.square() + spread.square()).mean()) ** 0.5
        self.varies = (spread > max(STEADY, STEADIER * eps) * size) & torch.isfinite(spread)
        self.lots = []
        for lot in (scale, torch.stack(theirs).double(), torch.stack(ours).double()):
            moved = ((lot - mean) / torch.where(self.varies, spread, torch.ones_like(spread))).clamp(-LIMIT, LIMIT)
            self.lots.append(torch.where(self.varies & torch.isfinite(moved), moved, torch.zeros_like(moved)))
        # A mask multiplies: what it does to a number of the other sign is the opposite.
        self.signs = torch.where(mean < 0, -torch.ones_like(mean), torch.ones_like(mean))

    @property
    def usable(self):
        return int(self.varies.sum()) >= LEAST

    def views(self):
        """Ways to pair elements of a result."""
        found = [Slices(self.varies, dimension) for dimension, extent in enumerate(self.varies.shape)
                 if extent > 1 and self.varies.numel() // extent >= FEW]
        return found + [Shifts(self.varies)]

    def shared(self, view, chance):
        """Places in a call that agree more, or less, than the reference's do; None if there are none."""
        scale, theirs, ours = self.lots
        half = len(ours) // 2
        best = None
        for signs in (torch.ones_like(self.signs), self.signs):
            excess = view.total(ours[:half] * signs) / half - view.total(scale * signs) / len(scale)
            weight = torch.where(view.common >= FEW, excess / view.common.clamp_min(1).sqrt(), torch.zeros_like(excess))
            place = int(weight.abs().argmax())
            found = float(weight.reshape(-1)[place])
            if best is None or abs(found) > abs(best[0]):
                best = found, place, signs
        found, place, signs = best
        sign = 1.0 if found > 0 else -1.0
        numbers = [sign * view.of(lot * signs, place) for lot in (ours[half:], theirs)]
        return view.name(place) if found and ranks.larger(*numbers, MARGIN, chance) else None

    def kin(self, chance):
        """How many calls of the candidate's have a nearer next of kin than any of the reference's; 0 if that may be."""
        calls = torch.cat([self.lots[2], self.lots[1]]).flatten(1)
        likeness = calls @ calls.t() / max(1, int(self.varies.sum()))
        likeness.fill_diagonal_(-float("inf"))
        nearest = likeness.max(1)[0]
        ours, theirs = nearest[:len(self.lots[2])], nearest[len(self.lots[2]):]
        ahead = int((ours > theirs.max() + MARGIN).sum())
        return ahead if ahead >= ranks.leaders(len(ours), len(theirs), chance) else 0


class Slices:
    """Pairs of slices along a dimension."""

    def __init__(self, varies, dimension):
        self.dimension = dimension
        self.extent = varies.shape[dimension]
        rows = self.rows(varies.double().unsqueeze(0))
        self.common = (rows @ rows.t()).triu(1)

    def rows(self, lot):
        """[slice, what is in it, of all calls]."""
        return lot.movedim(self.dimension + 1, 0).flatten(1)

    def total(self, lot):
        rows = self.rows(lot)
        return (rows @ rows.t()).triu(1)

    def of(self, lot, place):
        a, b = (lot.select(self.dimension + 1, index).flatten(1) for index in divmod(place, self.extent))
        return (a * b).sum(1) / self.common.reshape(-1)[place]

    def name(self, place):
        return "slices %d and %d of dimension %d" % (divmod(place, self.extent) + (self.dimension,))


class Shifts:
    """The elements of a result in order, and the same moved along."""

    def __init__(self, varies):
        self.common = self.total(varies.double().unsqueeze(0)).round()

    def total(self, lot):
        return self.each(lot).sum(0)

    def each(self, lot):
        flat = lot.flatten(1)
        size = flat.shape[1]
        spectrum = torch.fft.rfft(flat, n=2 * size)
        found = torch.fft.irfft(spectrum * spectrum.conj(), n=2 * size)[:, :size]
        found[:, 0] = 0.0  # with themselves
        return found

    def of(self, lot, place):
        flat = lot.flatten(1)
        return (flat[:, place:] * flat[:, :flat.shape[1] - place]).sum(1) / self.common[place]

    def name(self, place):
        return "elements that are %d apart" % place
