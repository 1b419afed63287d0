"""Models that are random in training mode: what many calls have in common is compared, as single ones cannot be.

Both sides are called often on the same inputs, each time with a seed of its own. Every result of a call becomes a few
numbers: the share of zeros, the sum of squares, how much there is of the reference's mean, how much of a random
direction, and, of outputs and gradients together, what is left of <upstream gradient, output> - <gradient, its input or
weight>, which tells whether both were made with the same random numbers. The two samples of each number are compared in
order (ranks.py): are ours larger, smaller, farther from the median of all, nearer to it? Then dependence.py looks for
random numbers that were used more than once.

Each of these comparisons finds a difference where there is none, that is if the candidate's results are distributed as
the reference's, with a probability of at most CHANCE divided by the number of comparisons; so a verdict is wrong with a
probability of at most CHANCE. That holds whatever the distribution is. Roundings, in which both may differ, are within
the margins.
"""

import torch

from onepass.judge import dependence, launch, ranks
from onepass.judge.checks import nice
from onepass.judge.runner import leaves

CALLS = 64
CHANCE = 1e-8
LOOKED_AT = 8    # results in which dependences are looked for
AGREEMENT = "the agreement with the outputs"
ROUNDING = 1e-4  # of the size of a number: what is not chance, and at least so many units of rounding of the type:
ROUNDINGS = 4
SIDES = 4        # comparisons of a number: larger, smaller, farther from the median, nearer to it


def disagreement(ours, theirs, scale, chance, rounding=ROUNDING):
    """Words for how two samples of a number differ; None if they do not. scale: of what they are differences of.
    chance: how probable it may be, for each of SIDES, that there is no difference."""
    ours, theirs = (torch.tensor(values, dtype=torch.float64) for values in (ours, theirs))
    if not bool(torch.isfinite(theirs).all()):
        return None
    medians = float(ours.median()), float(theirs.median())
    if not bool(torch.isfinite(ours).all()):
        return "%.4g, the reference's %.4g in the middle" % (medians[0], medians[1])
    both = torch.cat([ours, theirs])
    centre = both.median()
    margin = rounding * (float(centre.abs()) + float(both.std()) + scale)
    for sign in (1, -1):
        if ranks.larger(sign * ours, sign * theirs, margin, chance):
            return "%.4g in the middle, the reference's %.4g" % medians
        distances = [sign * (values - centre).abs() for values in (ours, theirs)]
        if ranks.larger(*distances, margin, chance):
            return "spread by %.4g, the reference's by %.4g" % (float(ours.std()), float(theirs.std()))
    return None


class Chance:
    """Runs on what a Checks object has opened and drawn."""

    def __init__(self, checks):
        self.checks, self.session, self.report = checks, checks.session, checks.report

    def run(self):
        if not self.checks.random_training:
            return
        self.checks.progress("chance")
        session = self.session
        value = session.values[self.checks.draws[0]]
        session.put("chance", self.checks.few_rows(value) if self.checks.large else value)
        self.tensors, self.upstream = leaves(session.values["chance"]), []
        try:
            self.prepare()
            theirs = self.calls(session.reference)
        except launch.Raised as raised:
            self.report["values"].note("training mode was not tried: the reference raises %s" % raised.reason)
            self.report.left_out.append("calls in training mode by their statistics")
            return
        try:
            ours = self.calls(session.candidate)
        except launch.Raised as raised:
            self.report["values"].fail("training mode: it raises %s" % raised.reason)
            return
        finally:
            session.drop("chance")
        self.compare(ours, theirs)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def prepare(self):
        """Calls of the reference alone, for the sizes, the mean and the spread of its results."""
        side, generator = self.session.reference, self.session.generator()
        if self.checks.backward:
            call = side.call("model", "chance", True, seed=self.session.seed())
            shapes = [output["shape"] if "float" in output["dtype"] else [] for output in call.outputs]
            self.upstream = self.session.noise("chance upstream", shapes)
        self.shapes, self.windows, self.directions, self.scale = {}, {}, {}, []
        sums = {}
        for _ in range(CALLS):
            found, shapes = self.call(side)
            if not self.shapes:
                self.shapes = shapes
                order = sorted(shapes, key=lambda key: (not key.startswith("out."), not key.startswith("grad.input.")))
                self.windows = {key: dependence.window(shapes[key], generator) for key in order[:LOOKED_AT]
                                if shapes[key]}
            for key, value in found.items():
                sums[key] = sums.get(key, 0.0) + value
            self.scale.append(self.cut(found))
        self.directions = {key: (total / CALLS, torch.randn(total.shape, generator=generator, dtype=torch.float64))
                           for key, total in sums.items()}

    def call(self, side):
        """({key: result, flat and in double precision}, {key: shape})."""
        grad = {"inputs": None, "upstream": "chance upstream"} if self.checks.backward else None
        call = side.call("model", "chance", True, seed=self.session.seed(), grad=grad)
        shapes = {key: shape for key, shape in call.named("out.", "grad.").items()
                  if shape[0].is_floating_point and (not self.shapes or key in self.shapes)}
        for key, shape in self.shapes.items():
            if key not in shapes or shapes[key][1] != shape:
                raise launch.Raised("ValueError", "%s is missing or has another size" % nice(key), "")
        return ({key: value.double() for key, value in side.fetch(shapes).items()},
                {key: shape for key, (_, shape) in shapes.items()})

    def calls(self, side):
        """[(numbers, windows)] of many calls."""
        found = (self.call(side)[0] for _ in range(CALLS))
        return [(self.numbers(run), self.cut(run)) for run in found]

    def cut(self, run):
        return {key: dependence.cut(run[key], self.shapes[key], chosen) for key, chosen in self.windows.items()}

    def numbers(self, run):
        """{(key, what): number} of one call, and under "scale" the size of what AGREEMENT is a difference of."""
        found, outputs, parts = {}, 0.0, {}
        for key, value in run.items():
            mean, direction = self.directions[key]
            size = max(float(mean.norm()), 1e-300)
            found[key, "the share of zeros"] = float((value == 0).double().mean()) if value.numel() else 0.0
            found[key, "the sum of squares"] = float(value.square().sum())
            found[key, "the part along the mean"] = float((value * mean).sum()) / size
            found[key, "a random projection"] = float((value * direction).sum())
            if key.startswith("out.") and self.upstream:
                outputs += float((value * self.upstream[int(key[4:])].double().reshape(-1)).sum())
            elif key.startswith("grad.input.") or key[5:] in self.checks.state:
                origin = self.tensors[int(key[11:])] if key.startswith("grad.input.") else self.checks.state[key[5:]]
                parts[key] = float((value * origin.double().reshape(-1)).sum())
        found.update(((key, AGREEMENT), outputs - part) for key, part in parts.items())
        weights = sum(part for key, part in parts.items() if not key.startswith("grad.input."))
        if parts:
            found["grad.all weights", AGREEMENT] = outputs - weights
        found["scale"] = abs(outputs) + sum(map(abs, parts.values()))
        return found

    # ---- comparisons -------------------------------------------------------------------------------------------------

    def compare(self, ours, theirs):
        """values, gradients: the numbers of both sides, then what they hide."""
        pairs = [pair for pair in theirs[0][0] if pair != "scale"]
        eps = torch.finfo(self.session.dtype).eps
        deviations = {key: dependence.Deviations([windows[key] for windows in self.scale],
                                                 [windows[key] for _, windows in theirs],
                                                 [windows[key] for _, windows in ours], eps) for key in self.windows}
        views = {key: found.views() for key, found in deviations.items() if found.usable}
        comparisons = SIDES * len(pairs) + sum(len(some) + 1 for some in views.values())
        chance = CHANCE / comparisons
        for key, what in pairs:
            scale = max(numbers["scale"] for numbers, _ in theirs) if what == AGREEMENT else 0.0
            found = disagreement([numbers[key, what] for numbers, _ in ours],
                                 [numbers[key, what] for numbers, _ in theirs], scale, chance,
                                 max(ROUNDING, ROUNDINGS * eps))
            if found:
                self.fail(key, "%s of %s is %s" % (what, nice(key), found))
                return
        for key, some in views.items():
            kin = deviations[key].kin(chance)
            if kin:
                self.fail(key, "%s of %d calls is more like that of another call than any of the reference's: random "
                               "numbers are used again" % (nice(key), kin))
                return
            for view in some:
                shared = deviations[key].shared(view, chance)
                if shared:
                    self.fail(key, "in %s, %s depend on each other, which the reference's do not" % (nice(key), shared))
                    return
        self.report["values"].note("training mode: %d calls agree in %d comparisons" % (CALLS, comparisons))

    def fail(self, key, words):
        self.report["gradients" if key.startswith("grad.") else "values"].fail(
            "training mode, over %d calls: %s" % (CALLS, words))
