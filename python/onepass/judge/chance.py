"""Models that are random in training mode: what many calls have in common is compared, as single ones cannot be.

Both sides are called often on the same inputs, each with seeds of its own. Every result of a call becomes a few
numbers: the share of zeros, the sum of squares, how much there is of the reference's mean, how much of a random
direction, and, of outputs and gradients together, what is left of <upstream gradient, output> - <gradient, its input or
weight>, which tells whether both were made with the same random numbers. The two samples of each number must agree in
mean and in spread: within six standard errors, and within a factor of three. Chance oversteps one of these less than
once in a million runs.
"""

import torch

from onepass.judge import launch
from onepass.judge.checks import nice
from onepass.judge.runner import leaves

CALLS = 48
ERRORS, SPREAD = 6.0, 3.0
COMMON = 10      # calls that must differ for a spread to be more than a rare event
AGREEMENT = "the agreement with the outputs"
ROUNDING = 1e-4  # of the size of a number: what is not chance


def mean_and_spread(values):
    mean = sum(values) / len(values)
    return mean, (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def disagreement(ours, theirs, scale):
    """Words for how two samples of a number differ; None if they do not. scale: of what they are differences of."""
    (mean, spread), (expected, width) = mean_and_spread(ours), mean_and_spread(theirs)
    size = ROUNDING * (abs(expected) + width + scale)
    error = ((spread ** 2 + width ** 2) / len(ours)) ** 0.5
    if not abs(mean - expected) <= ERRORS * error + size:
        return "%.4g on average, the reference's %.4g (by chance: %.1g)" % (mean, expected, error)
    wider = ours if not spread <= width else theirs
    few = sum(value != sorted(wider)[len(wider) // 2] for value in wider) < COMMON
    if not few and not (spread <= SPREAD * width + size and width <= SPREAD * spread + size):
        return "a spread of %.4g, the reference's %.4g" % (spread, width)
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
            theirs = self.calls(session.reference, None)
        except launch.Raised as raised:
            self.report["values"].note("training mode was not tried: the reference raises %s" % raised.reason)
            return
        directions = self.directions(theirs)
        try:
            ours = self.calls(session.candidate, theirs[0])
        except launch.Raised as raised:
            self.report["values"].fail("training mode: it raises %s" % raised.reason)
            return
        finally:
            session.drop("chance")
        numbers = [self.numbers(run, directions) for run in ours]
        # The reference's mean comes from its first calls, what it is compared with from the others.
        expected = [self.numbers(run, directions) for run in theirs[CALLS:]]
        for key, what in [pair for pair in expected[0] if pair != "scale"]:
            scale = max(run["scale"] for run in expected) if what == AGREEMENT else 0.0
            found = disagreement([run[key, what] for run in numbers], [run[key, what] for run in expected], scale)
            if found:
                check = self.report["gradients" if key.startswith("grad.") else "values"]
                check.fail("training mode, over %d calls: %s of %s is %s" % (CALLS, what, nice(key), found))
                return
        self.report["values"].note("training mode: %d numbers of %d calls agree" % (len(expected[0]) - 1, CALLS))

    def calls(self, side, like):
        """Results of many calls; of the reference, for which `like` is None, twice as many."""
        grad, found = None, []
        for number in range(CALLS if like else 2 * CALLS):
            if number == 0 and self.checks.backward and like is None:
                call = side.call("model", "chance", True, seed=self.session.seed())
                shapes = [output["shape"] if "float" in output["dtype"] else [] for output in call.outputs]
                self.upstream = self.session.noise("chance upstream", shapes)
            if self.checks.backward:
                grad = {"inputs": None, "upstream": "chance upstream"}
            call = side.call("model", "chance", True, seed=self.session.seed(), grad=grad)
            shapes = {key: shape for key, shape in call.named("out.", "grad.").items()
                      if shape[0].is_floating_point and (like is None or key in like)}
            found.append({key: value.double() for key, value in side.fetch(shapes).items()})
            for key, value in (like or {}).items():
                if key not in found[-1] or found[-1][key].shape != value.shape:
                    raise launch.Raised("ValueError", "%s is missing or has another size" % nice(key), "")
        return found

    def directions(self, runs):
        """{key: (the mean of the first calls, a random direction)}."""
        generator = self.session.generator()
        return {key: (sum(run[key] for run in runs[:CALLS]) / CALLS,
                      torch.randn(value.shape, generator=generator, dtype=torch.float64))
                for key, value in runs[0].items()}

    def numbers(self, run, directions):
        """{(key, what): number} of one call, and under "scale" the size of what AGREEMENT is a difference of."""
        found, outputs, parts = {}, 0.0, {}
        for key, value in run.items():
            mean, direction = directions[key]
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
