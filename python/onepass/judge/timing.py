"""Time, memory, and the floor below which no honest program gets.

windows.py has the clock: what a window is, and how its results are checked. Candidate and reference take turns; what
both cost besides the calls is what a window that computes nothing costs in the reference's process, and is subtracted
from both alike. A difference that is within its own noise is no time: windows are added until it is more, or until
there have been enough, and then the report says that nothing can be said.
"""

import math

import torch

from onepass.judge import compare, launch, ranks
from onepass.judge.checks import SAMPLES
from onepass.judge.runner import leaves
from onepass.judge.session import count
from onepass.judge.windows import Kind, Windows
from onepass.judge.wire import dtype_name, element_size

WINDOW = {"cpu": 0.025, "cuda": 0.02}            # seconds that a window should last
CALLS = {"cpu": 512, "cuda": 256}
FEW_CALLS = 3                                    # at least, where the memory allows it: work may not be put off
SECONDS = 5.0                                    # for one kind of call, and as much again where it is noisy
MORE = 3                                         # times as many windows at most, where it is noisy
DOUBT = 0.01                                     # of an interval: how often it may not hold what it should
SURE = 8                                         # windows that are enough for that: 2 / 2^8 is less
FEW_WINDOWS = 5                                  # of a kind of call, at least
NOISY = 0.08                                     # of a speed-up: what it may be uncertain by without a remark
IMPOSSIBLE = 0.25                                # of the floor, where caches help; of memory that no cache holds:
IMPOSSIBLE_COLD = 0.7
CONFIRMED = 3                                    # measurements that must all be impossible
REPEATED = 0.6                                   # of a new input's time: what a repeated one may not fall below
PROVING = (20, 40)                               # windows of either kind after which that may be proven
CHANCE = 1e-8 / (2 * len(PROVING))               # of a wrong proof, each time; two kinds of call are looked at
NOTICEABLE = 1e-3                                # seconds of a window: less is a disturbance of the machine
BUSY = 0.5                                       # of a core, for the candidate while the reference is timed
BLINK = 0.02                                     # seconds of a core that are too few to tell


def quantile(values, share):
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values):
    """Of seconds: milliseconds, median and quantiles."""
    return {"ms": 1e3 * quantile(values, 0.5), "ms_q20": 1e3 * quantile(values, 0.2),
            "ms_q80": 1e3 * quantile(values, 0.8), "windows": [1e3 * value for value in values]}


def interval(values):
    """(low, high) between which the median of what is measured lies, 99 times of 100, whatever its distribution.

    k values are left out at either end. The median is beyond what remains if at most k of n values are on one side of
    it: 2 (C(n, 0) + ... + C(n, k)) / 2^n <= DOUBT. Of fewer than SURE values even the whole span is less sure."""
    ordered = sorted(values)
    size, outside, tail = len(ordered), 0, 1
    while 2 * (tail + math.comb(size, outside + 1)) <= DOUBT * 2 ** size:
        outside += 1
        tail += math.comb(size, outside)
    return ordered[outside], ordered[size - 1 - outside]


def remembers(candidate, reference):
    """Whether windows betray a cache. Of either side: seconds on new inputs, seconds on one repeated input. The
    reference has none; if it seems to have one, or the opposite of one, the machine was disturbed: None."""
    new, repeated = candidate
    if min(reference) <= 0 or new <= 0 or not 0.7 < reference[1] / reference[0] < 1.5:
        return None
    return repeated < REPEATED * new and new - repeated > NOTICEABLE


def proven(new, repeated):
    """Whether windows of repeated inputs are too short, beyond chance. If they last as long as those of new ones, whose
    times are only made shorter here, that is so once in 1 / CHANCE, whatever disturbs the machine: see ranks.py."""
    return ranks.larger([min(span, REPEATED * span) for span in new], repeated, 0.0, CHANCE)


def evaluated(rounds, calls):
    """What rounds of windows say: rounds are (candidate, reference, nothing) in seconds.

    The shortest window of nothing is subtracted: what disturbs a machine only ever makes one longer. A side is
    measurable if its windows surely take longer than those of nothing do; a speed-up is noisy if the ratios of
    neighbouring windows leave it uncertain by more than NOISY, or are too few."""
    empty = [nothing for _, _, nothing in rounds]
    idle = min(empty)
    result = {"calls": calls, "windows": len(rounds), "idle_ms": 1e3 * idle / calls}
    for place, name in enumerate(("candidate", "reference")):
        spans = [taken[place] for taken in rounds]
        result[name] = summary([max(span - idle, 0.0) / calls for span in spans])
        result[name]["whole_ms"] = 1e3 * quantile(spans, 0.5) / calls  # with nothing subtracted
        result[name]["most_ms"] = 1e3 * max(interval(spans)[1] - idle, 0.0) / calls  # what the median may be
        result[name]["measurable"] = interval(spans)[0] > interval(empty)[1]
    result["measurable"] = result["candidate"]["measurable"] and result["reference"]["measurable"]
    result["noisy"] = True
    if result["measurable"]:
        result["speedup"] = result["reference"]["ms"] / result["candidate"]["ms"]
        ratios = [max(theirs - idle, 0.0) / max(ours - idle, 1e-9) for ours, theirs, _ in rounds]
        result["speedup_low"], result["speedup_high"] = interval(ratios)
        result["noisy"] = not (len(ratios) >= SURE and result["speedup"] / (1 + NOISY) <= result["speedup_low"]
                               and result["speedup_high"] <= result["speedup"] * (1 + NOISY))
    return result


class Timing(Windows):
    def run(self):
        for side in (self.session.candidate, self.session.reference):
            side.ask("trim")
        kinds = list(self.kinds())
        for kind in kinds:
            self.checks.progress("timing: " + kind.name)
            self.tools = self.session.tools()
            try:
                self.measure(kind)
            except launch.Raised as raised:
                if raised.trusted:
                    raise
                self.report["timed"].fail("%s: it raises %s" % (kind.name, raised.reason))
            left = self.session.left_behind()
            if left:
                self.report["late"].fail("it started a process while it was timed: %s" % left)
            if self.report.failed:
                return
        self.rests()
        for side in (self.session.candidate, self.session.reference):
            side.ask("show_memory")
        for kind in kinds:
            self.checks.progress("memory")
            self.memory(kind)
        self.report["timed"].passed("%d calls" % self.calls_verified)
        self.session.reference.ask("drop", names=[name for name in self.bases if name not in self.checks.draws])

    def rests(self):
        """late: what the candidate's process did in windows of the reference's, and in those of nothing, which are
        subtracted. Threads of some pools spin for a while before they sleep, on both sides."""
        usual = self.watched["reference", "candidate"].share
        for what, words in (("reference", "the reference was timed"), ("nothing", "nothing was timed")):
            found = self.watched["candidate", what]
            if found.share > BUSY + 2 * usual and found.busy > BLINK:
                self.report["late"].fail("its process had %.0f%% of a core while %s" % (100 * found.share, words))

    # ---- what is measured --------------------------------------------------------------------------------------------

    def kinds(self):
        checks = self.checks
        train = checks.modes[0]
        plans = [("forward", train, False)]
        if checks.backward:
            plans.append(("forward + backward", train, True))
        if checks.description["buffers"] and len(checks.modes) == 2:
            plans.append(("forward, evaluation", False, False))
        for name, mode, backward in plans:
            groups = [group for group in checks.groups
                      if group.label == "fresh" and group.train == mode and bool(group.grad) == backward]
            if groups:
                kind = self.kind(Kind(name, mode, backward), groups[0])
                if kind.envelopes is not None:
                    yield kind
                    continue
                self.report["timed"].note("%s: the sizes of its results depend on values" % name)
                self.report.left_out.append("timed calls (%s), as sizes of results depend on values" % name)

    def kind(self, kind, group):
        evaluation = group.evaluations[0]
        shapes = evaluation.reference.shapes
        kind.keys = ["out.%d" % number for number in range(len(evaluation.reference.outputs))]
        tensors = leaves(self.session.values[self.bases[0]])
        wanted = {}
        if kind.backward:
            wanted = {"grad.input.%d" % number: tensors[number].shape for number in self.grads}
            wanted.update(("grad." + entry[0], entry[1]) for entry in self.checks.description["parameters"] if entry[3])
        kind.shapes = [(dtype_name(shapes[key][0]), list(shapes[key][1])) for key in kind.keys]
        kind.shapes += [(dtype_name(self.session.dtype), list(shape)) for shape in wanted.values()]
        kind.keys += list(wanted)
        kind.envelopes = self.envelopes(kind, evaluation)
        kind.bytes = sum(count(shape) * element_size(getattr(torch, dtype)) for dtype, shape in kind.shapes)
        return kind

    def envelopes(self, kind, evaluation):
        """How wrong the reference is on blends with rows of other inputs, which is what timed calls get: they are
        smoother than fresh ones, but for those rows. None if results have other sizes there."""
        session = self.session
        found = {key: session.envelope(value.dtype) for key, value in evaluation.r.items()
                 if key in kind.keys and compare.holds_fractions(value)}
        grad = None
        for _ in range(SAMPLES):
            if kind.backward:
                grad = self.checks.upstream("upstream", evaluation)
            self.blend("more", self.spec())
            shapes = session.own_errors("more", kind.train, found, grad)
            if any(shapes.get(key, (None, None))[1] != evaluation.reference.shapes[key][1] for key in kind.keys
                   if key in evaluation.reference.shapes):
                return None
        return found

    def measure(self, kind):
        session = self.session
        calls = self.calls(kind)
        first = sum(self.rounds(kind, calls, 1)[0])  # a warm-up
        windows = max(FEW_WINDOWS, min(self.checks.options.repeats, max(SURE, int(SECONDS / max(first, 1e-6)))))
        rounds = self.rounds(kind, calls, windows)
        while not self.report.failed and evaluated(rounds, calls)["noisy"] and len(rounds) < MORE * windows \
                and sum(map(sum, rounds)) < 2 * SECONDS:
            rounds += self.rounds(kind, calls, windows)
        if self.report.failed:
            return
        result = self.report.times[kind.name] = evaluated(rounds, calls)
        if not kind.backward:
            self.repeated(kind, calls)
        if self.where == "cuda":
            self.events(kind, calls, result)
        self.floor(kind, result)
        if self.checks.options.compile:
            self.compiled(kind, calls, result)
        for side in (session.candidate, session.reference):
            side.ask("trim")

    def rounds(self, kind, calls, windows, verify=True):
        """[(candidate, reference, nothing)] in seconds; ends early when a check fails."""
        found = []
        for _ in range(windows):
            if kind.backward:
                self.checks.session.noise("upstream", [shape if "float" in dtype else [] for dtype, shape
                                                       in kind.shapes[:len(self.outputs(kind))]])
            found.append(self.round(kind, [self.spec() for _ in range(calls)], verify))
            if self.report.failed:
                break
        return found

    def outputs(self, kind):
        return [key for key in kind.keys if key.startswith("out.")]

    def calls(self, kind):
        """Calls in a window: as many as give it its length, as the memory holds, and as no cache holds."""
        fit = max(1, min(CALLS[self.where], self.room() // (self.input_bytes + kind.bytes + 1)))
        few = min(fit, FEW_CALLS)
        self.queueing = 0.0
        rounds = self.rounds(kind, few, 2, verify=False)
        self.queueing = rounds[-1][2] / few
        calls = int(max(few, WINDOW[self.where] * few / max(max(rounds[-1][:2]), 1e-7)))
        if self.device["cache"]:
            calls = max(calls, 2 * self.device["cache"] // max(1, self.input_bytes))
        return max(1, min(fit, calls))

    # ---- more about a kind -------------------------------------------------------------------------------------------

    def repeated(self, kind, calls):
        """cache: calls on equal values (in new tensors) may not be much faster than calls on new ones."""
        check = self.report["cache"]
        calls = max(calls, 10)  # the first of them is new to a cache too
        if calls * (self.input_bytes + kind.bytes) > self.room():
            check.note("equal inputs are too large to be timed side by side")
            return
        spans = {False: [], True: []}
        for pairs in (FEW_WINDOWS,) + PROVING:
            while len(spans[True]) < pairs:
                one = self.spec()
                for equal in self.session.random.sample((False, True), 2):
                    spans[equal].append(self.round(kind, [one if equal else self.spec() for _ in range(calls)], False))
            # The shortest times: what disturbs a machine only ever makes them longer.
            idle = min(taken[2] for many in spans.values() for taken in many)
            best = [[min(taken[place] for taken in spans[equal]) - idle for equal in (False, True)] for place in (0, 1)]
            found = remembers(*best)
            if found is False:
                break
            if found and pairs in PROVING and proven(*([taken[0] - idle for taken in spans[equal]]
                                                       for equal in (False, True))):
                check.fail("a repeated input takes %.0f%% of a new one's time (of the reference's: %.0f%%)" % tuple(
                    100 * max(0.0, repeated) / new for new, repeated in best))
                break
        else:
            check.note("the machine is too busy to tell whether a repeated input is answered faster")
        if best[0][0] > 0:
            check.details["repeated_share"] = max(0.0, best[0][1]) / best[0][0]

    def events(self, kind, calls, result):
        """timer: CUDA's events in the worker, beside the judge's clock."""
        check = self.report["timer"]
        for name in ("candidate", "reference"):
            side = getattr(self.session, name)
            spans, claims = [], []
            for _ in range(5):
                specs = [self.spec() for _ in range(calls)]
                self.prepare(kind)
                answer, seconds, _ = self.ask(kind, side, specs, events=True)
                idle = self.ask(kind, self.session.reference, specs, null=True, events=True)[1]
                marks = answer.get("events")
                if not isinstance(marks, list) or not all(isinstance(mark, float) for mark in marks):
                    check.fail("it sent no times of its events")
                    return
                spans.append(seconds - idle)
                claims += [mark / 1e3 for mark in marks]
            result[name]["device"] = summary(claims)
            claimed, seen = quantile(claims, 0.5) * calls, quantile(spans, 0.5)
            if name == "candidate" and claimed < 0.7 * seen - 20e-6 * calls - 1e-4:
                check.fail("its events claim %.3f ms a call, the judge's clock has %.3f" % (
                    1e3 * claimed / calls, 1e3 * seen / calls))
        check.passed("events and the judge's clock agree")

    def floor(self, kind, result):
        """floor: bytes that must be read and written, multiplications that must be done.

        On the CPU the candidate's time is that of whole windows, from which nothing is subtracted: no noise makes it
        shorter. On a GPU, which sleeps and blends inputs in a window, what the reference's process needs for nothing is
        subtracted, and the time is the longest that the noise allows."""
        which = "most_ms" if self.where == "cuda" else "whole_ms"
        check, checks = self.report["floor"], self.checks
        size = self.needed_bytes() + kind.bytes
        size += sum(tensor.numel() * tensor.element_size() for tensor in checks.state.values())
        try:
            work = self.session.reference.ask("work", slot="model", inputs=self.bases[0], train=kind.train,
                                              grads=self.grads, upstream="upstream" if kind.backward else None)
        except launch.Raised:  # the counter does not know every operator
            work = None
        cold = self.device["cache"] and size > 4 * self.device["cache"]
        rate = speed = 0.0
        for attempt in range(CONFIRMED):
            # The best rates: what disturbs a machine only ever makes them lower.
            rate = max(rate, self.session.reference.ask("floor", size=size))
            seconds = size / rate
            if work:
                speed = max(speed, self.session.reference.ask("multiply_rate"))
                seconds = max(seconds, work / speed)
            times = evaluated(self.rounds(kind, result["calls"], 5, False), result["calls"]) if attempt else result
            least = 1e3 * seconds * (IMPOSSIBLE_COLD if cold else IMPOSSIBLE)
            if times["candidate"][which] >= least:
                break
        else:
            check.fail("%s: %.4g ms, where reading and writing its data takes %.4g ms on this machine" % (
                kind.name, times["candidate"][which], 1e3 * seconds))
        result["bytes"], result["bytes_a_second"], result["floor_ms"] = size, rate, 1e3 * seconds
        if work:
            result["multiplications"], result["multiplications_a_second"] = work, speed
        if not result["candidate"]["measurable"]:
            check.passed("%s: not measurable" % kind.name)
            return
        share = result["floor_ms"] / result["candidate"]["ms"]
        result["floor_share"] = share
        if result["reference"]["measurable"]:
            result["reference_floor_share"] = result["floor_ms"] / result["reference"]["ms"]
        check.passed("%s: %.0f%% of the floor's speed" % (kind.name, 100 * share))

    def needed_bytes(self):
        """Bytes of the inputs on which the result depends, judged by gradients that are not 0."""
        groups = [group for group in self.checks.groups if group.label == "fresh" and group.grad]
        total = 0
        for number, tensor in enumerate(leaves(self.session.values[self.bases[0]])):
            share = 1.0
            if groups and tensor.is_floating_point():
                slope = groups[0].evaluations[0].x.get("grad.input.%d" % number)
                share = 0.0 if slope is None or not slope.numel() else float((slope != 0).double().mean())
            total += int(share * tensor.numel() * tensor.element_size())
        return total

    def memory(self, kind):
        """Bytes that a call takes at its peak beyond its inputs, outputs included."""
        sizes = {}
        for name in ("candidate", "reference"):
            side = getattr(self.session, name)
            specs = [self.spec()]
            made = [self.tensors(spec) for spec in specs] if self.where == "cpu" else None
            self.prepare(kind, [side])
            side.ask("trim")
            pid = side.worker.pid
            before = None if self.where == "cuda" else reset_peak(pid)
            answer, _, file = self.ask(kind, side, specs, made, memory=True)
            if self.where == "cuda":
                peak = answer.get("peak")
                sizes[name] = peak if isinstance(peak, int) else None
            else:
                sizes[name] = None if before is None else max(0, status(pid, "VmHWM") - before - file.size)
        self.report.memory[kind.name] = sizes

    def compiled(self, kind, calls, result):
        """The reference under torch.compile, as one more number to compare with."""
        side = self.session.reference
        try:
            if not self.report.about.get("compiled"):
                self.checks.progress("torch.compile")
                side.ask("build", slot="compiled", init=self.checks.init, seed=1, compiled=True)
                self.report.about["compiled"] = True
            spans = []
            for _ in range(3 + max(5, self.checks.options.repeats // 2)):
                specs = [self.spec() for _ in range(calls)]
                made = [self.tensors(spec) for spec in specs] if self.where == "cpu" else None
                self.prepare(kind, [side])
                seconds = self.ask(kind, side, specs, made, slot="compiled")[1]
                spans.append(max(seconds - self.ask(kind, side, specs, made, null=True)[1], 1e-9) / calls)
            result["compiled"] = summary(spans[3:])
        except launch.Raised as raised:
            self.report.about["compile_failed"] = raised.reason


def status(pid, field):
    """Bytes of a field of /proc/PID/status."""
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError("no %s in /proc/%d/status" % (field, pid))


def reset_peak(pid):
    """Sets a process's highest memory use to its present one and returns that; None where it may not be set."""
    try:
        with open("/proc/%d/clear_refs" % pid, "w") as file:
            file.write("5")
        return status(pid, "VmRSS")
    except OSError:
        return None
