"""Time, memory, and the floor below which no honest program gets.

The clock is the judge's own. A window is a request to run a number of calls, each on new values at new addresses, and
its time runs until the last byte of the answer is here; the answer holds elements of every result, at places that were
chosen with the request, so it cannot be sent before the work is done. A few rows of every input also come with the
request, so the work cannot be done before it. The time of an equal window that computes nothing is subtracted.
On a GPU both windows begin behind a device that sleeps about as long as it takes to queue one that computes nothing:
otherwise patches and samples would be queued while the device computes, and be subtracted although they took no time.
Candidate and reference take turns. Every result of every window is compared afterwards.
"""

import torch

from onepass.judge import compare, inputs, launch
from onepass.judge.checks import SAMPLES, nice
from onepass.judge.runner import blend, leaves
from onepass.judge.session import count
from onepass.judge.wire import dtype_name, element_size

WINDOW = {"cpu": 0.025, "cuda": 0.02}            # seconds that a window should last
CALLS = {"cpu": 64, "cuda": 256}
FEW_CALLS = 3                                    # at least, where the memory allows it: work may not be put off
ROOM = {"cpu": 256 << 20, "cuda": 24 << 30}      # bytes of inputs and results of one window
FETCH = {"cpu": 32 << 20, "cuda": 128 << 20}     # bytes of results that are compared whole after a window
SAMPLE = 256                                     # elements of a result that are in the answer itself
SECONDS = 5.0                                    # for one kind of call
IMPOSSIBLE = 0.25                                # of the floor, where caches help; of memory that no cache holds:
IMPOSSIBLE_COLD = 0.7
REPEATED = 0.6                                   # of a new input's time: what a repeated one may not fall below
NOTICEABLE = 1e-3                                # seconds of a window: less is a disturbance of the machine
CLOCK = 2e9                                      # cycles a second of a GPU, at most
LONGEST_SLEEP = 0.05                             # seconds


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


def remembers(candidate, reference):
    """Whether windows betray a cache. Of either side: seconds on new inputs, seconds on one repeated input. The
    reference has none; if it seems to have one, or the opposite of one, the machine was disturbed: None."""
    new, repeated = candidate
    if not 0.7 < reference[1] / reference[0] < 1.5:
        return None
    return repeated < REPEATED * new and new - repeated > NOTICEABLE


class Kind:
    """One way of calling: its results by name, their shapes, and how wrong the reference is on them."""

    def __init__(self, name, train, backward):
        self.name, self.train, self.backward = name, train, backward
        self.keys, self.shapes, self.envelopes = [], [], {}


class Timing:
    def __init__(self, checks):
        self.checks, self.session, self.report = checks, checks.session, checks.report
        self.where = "cuda" if checks.session.device.startswith("cuda") else "cpu"
        self.bases = checks.draws
        self.input_bytes = self.session.bytes_of(self.bases[0])
        tensors = leaves(self.session.values[self.bases[0]])
        floating = [number for number, tensor in enumerate(tensors) if tensor.is_floating_point()]
        timed = checks.timed_gradients
        self.grads = floating if timed is None else [number for number in timed if number in floating]
        self.device = self.session.reference.ask("device")
        self.calls_verified = 0
        self.queueing = 0.0  # seconds that the host needs for a call of a window that computes nothing

    def run(self):
        for side in (self.session.candidate, self.session.reference):
            side.ask("trim")
        kinds = list(self.kinds())
        for kind in kinds:
            self.checks.progress("timing: " + kind.name)
            try:
                self.measure(kind)
            except launch.Raised as raised:
                self.report["timed"].fail("%s: it raises %s" % (kind.name, raised.reason))
            if self.report.failed:
                return
        for side in (self.session.candidate, self.session.reference):
            side.ask("show_memory")
        for kind in kinds:
            self.checks.progress("memory")
            self.memory(kind)
        self.report["timed"].passed("%d calls" % self.calls_verified)

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
                yield self.kind(Kind(name, mode, backward), groups[0])

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
        smoother than fresh ones, but for those rows."""
        session = self.session
        found = {key: session.envelope(value.dtype) for key, value in evaluation.r.items()
                 if key in kind.keys and value.is_floating_point()}
        grad = None
        for _ in range(SAMPLES):
            if kind.backward:
                grad = self.checks.upstream("upstream", evaluation)
            self.blend("more", self.checks.weights(self.bases), self.patch())
            session.own_errors("more", kind.train, found, grad)
        return found

    def blend(self, name, weights, patch):
        """Inputs such as a timed call has, to the reference alone."""
        self.session.reference.ask("blend", name=name, bases=self.bases, weights=weights, patch=patch)

    def measure(self, kind):
        session = self.session
        calls = self.calls(kind)
        spans = {"candidate": [], "reference": []}
        empty = {"candidate": [], "reference": []}
        first = sum(self.window(kind, calls, spans, empty))
        for name in spans:  # a warm-up
            spans[name].clear()
            empty[name].clear()
        windows = max(5, min(self.checks.options.repeats, int(SECONDS / max(first, 1e-6))))
        for _ in range(windows):
            self.window(kind, calls, spans, empty)
            if self.report.failed:
                return
        result = {}
        for name in spans:
            idle = min(empty[name])
            result[name] = summary([max(span - idle, 1e-9) / calls for span in spans[name]])
        result["speedup"] = result["reference"]["ms"] / result["candidate"]["ms"]
        result["speedup_best"] = min(result["reference"]["windows"]) / min(result["candidate"]["windows"])
        result["calls"], result["windows"] = calls, windows
        result["noisy"] = any(result[name]["ms_q80"] - result[name]["ms_q20"] > 0.5 * result[name]["ms"]
                              for name in spans)
        self.report.times[kind.name] = result
        if not kind.backward:
            self.repeated(kind, calls)
        if self.where == "cuda":
            self.events(kind, calls, result)
        self.floor(kind, result)
        if self.checks.options.compile:
            self.compiled(kind, calls, result)
        for side in (session.candidate, session.reference):
            side.ask("trim")

    def calls(self, kind):
        """Calls in a window: as many as give it its length, as the memory holds, and as no cache holds."""
        fit = max(1, min(CALLS[self.where], self.room() // (self.input_bytes + kind.bytes + 1)))
        few = min(fit, FEW_CALLS)
        spans, empty = {"candidate": [], "reference": []}, {"candidate": [], "reference": []}
        self.queueing = 0.0
        for _ in range(2):
            self.window(kind, few, spans, empty, verify=False)
        longest = max(spans[name][-1] for name in spans) / few
        self.queueing = max(empty[name][-1] for name in empty) / few
        calls = int(max(few, WINDOW[self.where] / max(longest, 1e-7)))
        if self.device["cache"]:
            calls = max(calls, 2 * self.device["cache"] // max(1, self.input_bytes))
        return max(1, min(fit, calls))

    def room(self):
        free = self.device["free"]
        return ROOM[self.where] if free is None else min(ROOM[self.where], free // 6)

    # ---- windows -----------------------------------------------------------------------------------------------------

    def prepare(self, kind, weights, sides=None):
        for side in sides or (self.session.candidate, self.session.reference):
            side.ask("prepare", bases=self.bases, weights=weights, upstream="upstream" if kind.backward else None,
                     grads=self.grads if kind.backward else [], shapes=kind.shapes)

    def ask(self, kind, side, patches, samples, null=False, slot="model", **options):
        """(answer, seconds) of one window."""
        limit = sum(len(index) * 16 for index in samples) * len(patches) + 4096
        sleep = round(CLOCK * min(LONGEST_SLEEP, 1.2 * self.queueing * len(patches))) if self.where == "cuda" else 0
        return side.ask_timed("window", limit=limit, slot=slot, train=kind.train, backward=kind.backward, null=null,
                              samples=samples, patches=patches, sleep=sleep, pattern={"samples": [torch.Tensor]},
                              **options)

    def both(self, kind, side, patches, samples, **options):
        """(answer, seconds of the calls, seconds of a window of nothing). That one comes afterwards, as it makes the
        patches known; and nothing between them, as a process that has just done something else is slower. So that the
        first of them has no such thing before it, one that is not looked at leads, without a patch."""
        none = [[self.bases[0], [[0, 0] for _ in ranges]] for _, ranges in patches]
        self.ask(kind, side, none, samples, null=True, **options)
        answer, seconds = self.ask(kind, side, patches, samples, **options)
        return answer, seconds, self.ask(kind, side, patches, samples, null=True, **options)[1]

    def patch(self):
        """[name of a set of inputs, the rows of each tensor that come from it]: a 64th of them, at least one."""
        ranges = []
        for tensor in leaves(self.session.values[self.bases[0]]):
            rows = tensor.shape[0] if tensor.dim() else 0
            size = max(1, rows // 64) if rows and inputs.batched(tensor, rows) else 0
            begin = self.session.random.randrange(rows - size + 1)
            ranges.append([begin, begin + size])
        return [self.session.random.choice(self.bases), ranges]

    def samples(self, kind):
        generator = self.session.generator()
        found = []
        for _, shape in kind.shapes:
            size = count(shape)
            found.append(torch.arange(size) if size <= SAMPLE else torch.randint(size, (SAMPLE,), generator=generator))
        return found

    def window(self, kind, calls, spans, empty, verify=True):
        """One window on each side, the candidate's first. Returns their seconds."""
        weights = [self.checks.weights(self.bases) for _ in range(calls)]
        if kind.backward:
            self.session.noise("upstream", [shape if "float" in dtype else [] for key, (dtype, shape)
                                            in zip(kind.keys, kind.shapes) if key.startswith("out.")])
        self.prepare(kind, weights)
        patches, samples = [self.patch() for _ in range(calls)], self.samples(kind)
        got, taken, chosen = {}, [], self.chosen(kind, calls) if verify else []
        for name in ("candidate", "reference"):
            side = getattr(self.session, name)
            answer, seconds, nothing = self.both(kind, side, patches, samples)
            if verify:
                got[name] = answer["samples"], self.fetch(kind, side, chosen)
                if name == "candidate":
                    self.check_inputs(weights, patches)
            spans[name].append(seconds)
            empty[name].append(nothing)
            taken.append(seconds)
        if verify:
            self.verify(kind, list(zip(weights, patches)), samples, chosen, got)
        return taken

    def chosen(self, kind, calls):
        """Calls whose results are fetched whole; the others are known by the elements in the answer."""
        fit = FETCH[self.where] // max(1, kind.bytes)
        numbers = list(range(calls))
        return numbers if fit >= calls else self.session.random.sample(numbers, fit)

    def fetch(self, kind, side, chosen):
        shapes = {"%d.%d" % (call, index): (getattr(torch, dtype), tuple(shape))
                  for call in chosen for index, (dtype, shape) in enumerate(kind.shapes)}
        return side.fetch(shapes) if shapes else {}

    def verify(self, kind, calls, samples, chosen, got):
        """calls: (weights, patch) of each."""
        check = self.report["timed"]
        (taken, whole), (expected, reference) = got["candidate"], got["reference"]
        if [tensor.shape for tensor in taken] != [tensor.shape for tensor in expected]:
            check.fail("%s: a timed call returned results of another number or size" % kind.name)
            return
        for index, key in enumerate(kind.keys):
            for call in chosen:
                part = whole["%d.%d" % (call, index)][samples[index]]
                sent = taken[index][call * len(samples[index]):(call + 1) * len(samples[index])]
                if not compare.same_bits(part, sent):
                    self.report["late"].fail("%s: %s of a timed call was still being written after it had returned"
                                             % (kind.name, nice(key)))
                    return
            pairs = [(None, taken[index], expected[index])]
            pairs += [(call, whole["%d.%d" % (call, index)], reference["%d.%d" % (call, index)]) for call in chosen]
            for call, ours, theirs in pairs:
                if key not in kind.envelopes:
                    words = None if compare.same_bits(ours, theirs) else "not the reference's"
                elif call is None:
                    words = self.wrong_samples(kind, key, calls, samples[index], ours, theirs)
                else:
                    words = self.wrong(kind, key, calls[call], None, ours, theirs)
                if words:
                    check.fail("%s: %s of a timed call: %s" % (kind.name, nice(key), words))
                    return
        self.calls_verified += len(calls)

    def wrong_samples(self, kind, key, calls, sample, ours, theirs):
        """`wrong`, of elements of all calls, one call after the other."""
        if compare.compare(ours, theirs, theirs, kind.envelopes[key], slack=1.0).ok:
            return None
        for number, call in enumerate(calls):
            part = slice(number * len(sample), (number + 1) * len(sample))
            words = self.wrong(kind, key, call, sample, ours[part], theirs[part])
            if words:
                return words
        return None

    def wrong(self, kind, key, call, sample, ours, theirs):
        """Words for what is wrong with a result of a timed call, or with elements of it; None: nothing.

        The reference's own result is at hand and is near enough to the exact one, mostly. Where the two differ by more
        than they may, either can be wrong: then the call is made again, in double precision."""
        envelope = kind.envelopes[key]
        if compare.compare(ours, theirs, theirs, envelope, slack=1.0).ok:
            return None
        session, (weights, patch) = self.session, call
        self.blend("again", weights, patch)
        grad = {"inputs": None, "upstream": "upstream"} if kind.backward else None
        ranges = {} if sample is None else {key: [[place, place + 1] for place in sample.tolist()]}
        exact = session.again("exact", "again", torch.float64, [key], ranges,
                              {"train": kind.train, "grad": grad, "seed": session.seed()})[key]
        session.reference.ask("drop", names=["again"])
        difference = compare.compare(ours, theirs, exact, envelope)
        return None if difference.ok else difference.words()

    def check_inputs(self, weights, patches):
        """The inputs of one timed call after it, where they are small."""
        if self.input_bytes > FETCH[self.where] // 8:
            return
        call = self.session.random.randrange(len(weights))
        # The same bits on CPU and GPU: single multiplications and additions round alike.
        tensors = leaves(blend([self.session.values[base] for base in self.bases], weights[call]))
        base, ranges = patches[call]
        for tensor, other, (begin, end) in zip(tensors, leaves(self.session.values[base]), ranges):
            if begin < end:
                tensor[begin:end] = other[begin:end]
        found = self.session.candidate.fetch({"input.%d.%d" % (call, number): (tensor.dtype, tuple(tensor.shape))
                                              for number, tensor in enumerate(tensors)})
        for tensor, after in zip(tensors, found.values()):
            if not compare.same_bits(tensor.reshape(-1), after):
                self.report["inputs"].fail("an input of a timed call is not what it was before the call")

    # ---- more about a kind -------------------------------------------------------------------------------------------

    def repeated(self, kind, calls):
        """cache: calls on equal values (in new tensors) may not be much faster than calls on new ones."""
        check = self.report["cache"]
        calls = max(calls, 10)  # the first of them is new to a cache too
        if calls * (self.input_bytes + kind.bytes) > self.room():
            check.note("equal inputs are too large to be timed side by side")
            return
        suspicions = 0
        for _ in range(8):
            spans = {(equal, name): [] for equal in (False, True) for name in ("candidate", "reference")}
            idle = {"candidate": [], "reference": []}
            for _ in range(5):
                for equal in (False, True):
                    one, same = self.checks.weights(self.bases), self.patch()
                    self.prepare(kind, [one if equal else self.checks.weights(self.bases) for _ in range(calls)])
                    patches, samples = [same if equal else self.patch() for _ in range(calls)], self.samples(kind)
                    for name in idle:
                        _, seconds, nothing = self.both(kind, getattr(self.session, name), patches, samples)
                        spans[equal, name].append(seconds)
                        idle[name].append(nothing)
            # The shortest times: what disturbs a machine only ever makes them longer.
            best = {key: max(min(values) - min(idle[key[1]]), 1e-9) for key, values in spans.items()}
            found = remembers(*[[best[equal, name] for equal in (False, True)] for name in ("candidate", "reference")])
            if found is None:
                continue
            suspicions += found
            if not found or suspicions == 3:
                break
        else:
            check.note("the machine is too busy to tell whether a repeated input is answered faster")
        if suspicions == 3:
            check.fail("a repeated input takes %.0f%% of a new one's time (of the reference's: %.0f%%)" % tuple(
                100 * best[True, name] / best[False, name] for name in ("candidate", "reference")))
        check.details["repeated_share"] = best[True, "candidate"] / best[False, "candidate"]

    def events(self, kind, calls, result):
        """timer: CUDA's events in the worker, beside the judge's clock."""
        check = self.report["timer"]
        for name in ("candidate", "reference"):
            side = getattr(self.session, name)
            spans, claims = [], []
            for _ in range(5):
                self.prepare(kind, [self.checks.weights(self.bases) for _ in range(calls)], [side])
                answer, seconds, idle = self.both(kind, side, [self.patch() for _ in range(calls)], self.samples(kind),
                                                  events=True)
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
        """floor: bytes that must be read and written, multiplications that must be done."""
        check, checks = self.report["floor"], self.checks
        size = self.needed_bytes() + kind.bytes
        size += sum(tensor.numel() * tensor.element_size() for tensor in checks.state.values())
        rate = self.session.reference.ask("floor", size=size)
        seconds = size / rate
        result["bytes"], result["bytes_a_second"] = size, rate
        try:
            work = self.session.reference.ask("work", slot="model", inputs=self.bases[0], train=kind.train,
                                              grads=self.grads, upstream="upstream" if kind.backward else None)
        except launch.Raised:  # the counter does not know every operator
            work = None
        if work:
            speed = self.session.reference.ask("multiply_rate")
            result["multiplications"], result["multiplications_a_second"] = work, speed
            seconds = max(seconds, work / speed)
        result["floor_ms"] = 1e3 * seconds
        share = result["floor_ms"] / result["candidate"]["ms"]
        result["floor_share"], result["reference_floor_share"] = share, result["floor_ms"] / result["reference"]["ms"]
        cold = self.device["cache"] and size > 4 * self.device["cache"]
        if share > 1 / (IMPOSSIBLE_COLD if cold else IMPOSSIBLE):
            check.fail("%s: %.4g ms, where reading and writing its data takes %.4g ms on this machine" % (
                kind.name, result["candidate"]["ms"], result["floor_ms"]))
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
            self.prepare(kind, [self.checks.weights(self.bases)], [side])
            side.ask("trim")
            pid = side.worker.pid
            before = None if self.where == "cuda" else reset_peak(pid)
            answer, _ = self.ask(kind, side, [self.patch()], self.samples(kind), memory=True)
            if self.where == "cuda":
                peak = answer.get("peak")
                sizes[name] = peak if isinstance(peak, int) else None
            else:
                sizes[name] = None if before is None else max(0, status(pid, "VmHWM") - before)
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
                self.prepare(kind, [self.checks.weights(self.bases) for _ in range(calls)], [side])
                _, seconds, idle = self.both(kind, side, [self.patch() for _ in range(calls)], self.samples(kind),
                                             slot="compiled")
                spans.append(max(seconds - idle, 1e-9) / calls)
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
