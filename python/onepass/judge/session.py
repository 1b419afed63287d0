"""The candidate's process and the reference's, side by side: the same inputs to both, and what they made of them.

The candidate always answers first. The reference, and its run in double precision, work on an input only after the
candidate's results for it have been taken out of its process: at no time does an expected value exist anywhere that the
candidate could still use.
"""

import random

import torch

from onepass.judge import compare, inputs, launch, processes, wire
from onepass.judge.runner import leaves

FULL = 64 << 20  # bytes of a result that are compared whole; of more, blocks are drawn
BLOCKS, BLOCK = 96, 1 << 16
LIMIT = 1 << 36  # bytes of results that are believable
COMPARED = ("out.", "grad.", "second.", "buffer.")


class Unusable(Exception):
    """Nothing can be said: the reference, the files or the machine do not allow it. The text says why."""


def fits(value, pattern):
    """Whether an answer has the form it should: a type, [pattern] for lists, {name: pattern}, (either, or)."""
    if isinstance(pattern, tuple):
        return any(fits(value, each) for each in pattern)
    if isinstance(pattern, list):
        return isinstance(value, list) and all(fits(item, pattern[0]) for item in value)
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(name in value and fits(value[name], each)
                                               for name, each in pattern.items())
    if pattern is None:
        return value is None
    return isinstance(value, pattern) and not (pattern is int and isinstance(value, bool))


OUTPUT = ({"plain": bool, "dtype": str, "shape": [int], "strides": [int], "device": str, "requires_grad": bool,
           "stored": bool, "shares": [str]}, {"plain": bool, "type": str, "layout": str})
CALL = {"structure": str, "strange": [str], "moved_random": bool, "moved_stream": bool,
        "outputs": [OUTPUT], "results": [list]}


class Side:
    """One worker, asked in Python's terms."""

    def __init__(self, worker, trusted):
        self.worker, self.trusted = worker, trusted

    def ask(self, request, limit=1 << 20, pattern=None, timeout=None, **arguments):
        return self.ask_timed(request, limit, pattern, timeout, **arguments)[0]

    def ask_timed(self, request, limit=1 << 20, pattern=None, timeout=None, **arguments):
        try:
            answer, seconds = self.worker.ask_timed(request, limit, timeout, **arguments)
        except launch.Trouble as trouble:
            if self.trusted and not isinstance(trouble, launch.Stopped):
                raise Unusable("the reference: %s" % trouble.reason)
            raise
        except launch.Raised as raised:
            raised.trusted = self.trusted
            raise
        if pattern is not None and not fits(answer, pattern):
            self.worker.stop()
            raise launch.Forged("its answer to '%s' has not the form of one" % request)
        return answer, seconds

    def call(self, slot, name, train, **options):
        """A Call: what came back, with its results still over there."""
        answer = self.ask("call", pattern=CALL, slot=slot, inputs=name, train=train, **options)
        if self.trusted and answer["strange"]:
            raise Unusable("the reference returns a %s: nobody knows how to compare two of them" % answer["strange"][0])
        return Call(answer, self.shapes(answer["results"]))

    def shapes(self, results):
        """{name: (type, shape)} of what an answer says of results."""
        found = {}
        for result in results:
            if not (len(result) == 3 and fits(result[:2], [str]) and fits(result[2], [int])
                    and all(extent >= 0 for extent in result[2])):
                raise launch.Forged("it describes a result in an unknown form")
            if result[1][6:] not in wire.DTYPES:
                raised = launch.Raised("TypeError", "a result of type %.40s cannot be compared" % result[1], "")
                raised.trusted = self.trusted
                raise raised
            found[result[0]] = (wire.DTYPES[result[1][6:]], tuple(result[2]))
        return found

    def fetch(self, shapes, ranges=None):
        """{name: flat tensor} of results; ranges: {name: [[begin, end], ...]} for those not taken whole."""
        found = {}
        whole = [name for name in shapes if not (ranges or {}).get(name)]
        for names, pieces in [(whole, None)] + [([name], ranges[name]) for name in shapes if name not in whole]:
            sizes = [sum(end - begin for begin, end in pieces) if pieces else count(shapes[name][1]) for name in names]
            limit = sum(size * wire.element_size(shapes[name][0]) for name, size in zip(names, sizes))
            if limit > LIMIT:
                raise launch.Forged("it claims results of %d bytes" % limit)
            if not names:
                continue
            got = self.ask("fetch", limit=limit, names=names, ranges=pieces, pattern=[torch.Tensor])
            if [(tensor.dtype, tensor.numel()) for tensor in got] != [(shapes[name][0], size)
                                                                      for name, size in zip(names, sizes)]:
                raise launch.Forged("its results are not what it said they would be")
            found.update(zip(names, got))
        return found


def count(shape):
    total = 1
    for extent in shape:
        total *= extent
    return total


class Call:
    def __init__(self, answer, shapes):
        self.structure, self.outputs, self.shapes = answer["structure"], answer["outputs"], shapes
        self.moved_stream, self.tail = answer["moved_stream"], answer.get("tail", 0.0)
        self.moved_random = answer["moved_random"]

    def named(self, *prefixes):
        return {name: shape for name, shape in self.shapes.items() if name.startswith(prefixes)}


class Evaluation:
    """One set of inputs through candidate, reference and double precision."""

    def __init__(self):
        self.candidate = self.reference = None          # Calls
        self.c, self.r, self.x = {}, {}, {}             # {name of result: flat tensor}
        self.own = {}                                   # the run of the reference whose errors count: r, unless r is x
        self.ranges = {}                                # {name: pieces} of results of which only pieces were taken
        self.raised = self.refused = None               # why the candidate, the reference did not do it
        self.fault = None                               # why the outputs cannot be compared
        self.mutated = None                             # which input is not what it was


class Session:
    def __init__(self, nursery, seed, dtype, device, timeout):
        self.random = random.Random(seed)
        self.dtype, self.device = dtype, device
        self.candidate, self.reference = Side(nursery.start(), False), Side(nursery.start(), True)
        self.candidate.worker.timeout, self.reference.worker.timeout = timeout, max(600.0, timeout)
        self.nursery = nursery
        self.conditions = processes.Conditions(self.candidate.worker.pid, self.reference.worker.pid)
        self.reference.worker.watch = self.conditions.stopped
        self.strays = set(nursery.started()[0])  # of another session with this nursery
        self.values = {}   # the judge's own copy of every set of inputs
        # Double precision has nothing more exact to be measured by: the errors of a run in single precision stand in
        # for its own, scaled by the ratio of the two precisions.
        self.low = dtype is torch.float64
        self.own_scale = 2.0 ** -29 if self.low else 1.0
        self.compare_on = "cuda" if device.startswith("cuda") and torch.cuda.is_available() else "cpu"

    def seed(self):
        return self.random.getrandbits(31)

    def generator(self):
        return torch.Generator().manual_seed(self.seed())

    def threads(self, number):
        """For both sides; 0: PyTorch's own choice."""
        for side in (self.candidate, self.reference):
            side.ask("threads", number=number)

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def draw(self, name):
        """get_inputs() of the reference's file, given to both."""
        values = self.reference.ask("draw", limit=1 << 40, name=name, seed=self.seed())
        self.values[name] = values
        self.candidate.ask("put", name=name, values=values)
        return values

    def put(self, name, values, layout=None):
        self.values[name] = inputs.cast(values, self.dtype)
        for side in (self.candidate, self.reference):
            side.ask("put", name=name, values=self.values[name], dtype=self.dtype, layout=layout)
        return self.values[name]

    def spare(self):
        """Another process for the reference's code, which may end in it."""
        side = Side(self.nursery.start(), True)
        side.worker.timeout = self.reference.worker.timeout
        return side

    def drop(self, *names):
        for side in (self.candidate, self.reference):
            side.ask("drop", names=list(names))
        for name in names:
            self.values.pop(name, None)

    def noise(self, name, shapes):
        """Random upstream gradients of the given shapes, to both."""
        generator = self.generator()
        values = [torch.randn(shape, generator=generator, dtype=torch.float64).to(self.dtype) for shape in shapes]
        for side in (self.candidate, self.reference):
            side.ask("put", name=name, values=values, dtype=self.dtype)
        return values

    def bytes_of(self, name):
        return sum(tensor.numel() * tensor.element_size() for tensor in leaves(self.values[name]))

    # ---- calls -------------------------------------------------------------------------------------------------------

    def ranges(self, shapes, whole=False):
        """Which elements of large results to look at; drawn after the results exist."""
        chosen = {}
        for name, (dtype, shape) in shapes.items():
            size = count(shape)
            if whole or size * wire.element_size(dtype) <= FULL:
                continue
            begins = [0, size - BLOCK] + [self.random.randrange(size - BLOCK) for _ in range(BLOCKS - 2)]
            chosen[name] = [[begin, begin + BLOCK] for begin in begins]
        return chosen

    def evaluate(self, name, train, grad=None, slots=("model", "exact"), whole=False, restore=True):
        """An Evaluation of the inputs of that name. What the candidate raises is in it; Trouble comes through.
        restore: with the weights that were loaded, whatever has been done to them."""
        result = Evaluation()
        options = {"train": train, "grad": grad, "seed": self.seed(), "restore": restore}
        ranges = {}
        try:
            call = result.candidate = self.candidate.call(slots[0], name, **options)
            wanted = call.named(*COMPARED)
            ranges = self.ranges(wanted, whole)
            result.c = self.candidate.fetch(wanted, ranges)
            result.mutated = self.mutated(call, name)
        except launch.Raised as raised:
            result.raised = raised
        try:
            call = result.reference = self.reference.call(slots[0], name, **options)
        except launch.Raised as raised:
            result.refused = raised
            return result
        if result.raised:
            return result
        result.fault = fault_of(result.candidate, call)
        if result.fault:
            return result
        shapes = call.named(*COMPARED)
        for key, pieces in self.ranges(shapes, whole).items():
            ranges.setdefault(key, pieces)
        result.ranges = ranges
        result.r = self.reference.fetch(shapes, ranges)
        result.x = self.again(slots[1], name, torch.float64, shapes, ranges, options)
        result.own = self.again("low", name, torch.float32, shapes, ranges, options) if self.low else result.r
        return result

    def again(self, slot, name, dtype, shapes, ranges, options):
        """The same results from another model of the reference's process."""
        call = self.reference.call(slot, name, dtype=dtype, **options)
        return self.reference.fetch({key: call.shapes[key] for key in shapes if key in call.shapes}, ranges)

    def mutated(self, call, name):
        """Words for the first input that the candidate changed."""
        shapes = call.named("input.")
        ranges = self.ranges(shapes)
        found = self.candidate.fetch(shapes, ranges)
        for number, before in enumerate(leaves(self.values[name])):
            key = "input.%d" % number
            flat = before.reshape(-1)
            if key in ranges:
                flat = torch.cat([flat[begin:end] for begin, end in ranges[key]])
            if key not in found or not compare.same_bits(found[key], flat):
                return "input %d is not what it was before the call" % number
        return None

    def own_errors(self, name, train, envelopes, grad=None, slots=("model", "exact"), restore=True):
        """Adds the reference's errors on more inputs to the envelopes; the candidate sees nothing of it. The types and
        shapes of all the results."""
        options = {"train": train, "grad": grad, "seed": self.seed(), "restore": restore}
        call = self.reference.call("low" if self.low else slots[0], name,
                                   dtype=torch.float32 if self.low else None, **options)
        shapes = {key: value for key, value in call.shapes.items() if key in envelopes}
        ranges = self.ranges(shapes)
        own = self.reference.fetch(shapes, ranges)
        exact = self.again(slots[1], name, torch.float64, shapes, ranges, options)
        for key in exact:
            envelopes[key].add(own[key], exact[key], self.own_scale)
        return call.shapes

    def envelope(self, dtype=None):
        return compare.Envelope(dtype or self.dtype, self.compare_on)

    def started(self):
        """{pid: name} of what the candidate's process has started, other than PyTorch's own tools."""
        found = self.nursery.started(self.candidate.worker.pid)[0]
        return {pid: name for pid, name in found.items() if pid not in self.strays}

    def tools(self):
        """Numbers of the tools of PyTorch's that the candidate's process has started."""
        return list(self.nursery.started(self.candidate.worker.pid)[1])

    def left_behind(self):
        """The name of a process that the candidate has started and that works on, or waits, beside it; or None."""
        return next(iter(processes.left_behind(self.started).values()), None)

    def stop(self):
        """Ends both processes. The name of one that the candidate left behind, or None."""
        left = processes.left_behind(self.started)
        self.candidate.worker.stop()
        processes.end(left)
        orphan = self.nursery.orphans()
        self.reference.worker.stop()
        return next(iter(left.values()), orphan)


def fault_of(candidate, reference):
    """What is wrong with the outputs as objects, whatever their values; None if nothing."""
    for number, output in enumerate(candidate.outputs):
        if not output["plain"]:
            return "output %d is a %s (%s), not a plain tensor" % (number, output["type"], output["layout"])
    if candidate.structure != reference.structure or len(candidate.outputs) != len(reference.outputs):
        return "it returns %s, the reference %s" % (candidate.structure, reference.structure)
    for number, (ours, theirs) in enumerate(zip(candidate.outputs, reference.outputs)):
        if not ours["stored"]:
            return "output %d has no memory behind it" % number
        for key in ("dtype", "shape", "device"):
            if ours[key] != theirs[key]:
                return "output %d has %s %s, the reference's %s" % (number, key, ours[key], theirs[key])
    return None
