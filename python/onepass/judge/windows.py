"""Windows: requests to run a number of calls, timed by the judge's clock, whose results are then checked.

The clock runs from before the request to the last byte of the answer, and nothing a candidate can influence is ever
subtracted from that:

- Every input of every call comes with the request and is not in the candidate's process before. On the CPU it is the
  memory of a file without a name, whose descriptor is part of the request: nothing is copied. On a GPU it is a blend of
  inputs that are there, by weights that are in the request.
- The answer commits to all results: sums of the bits of every block of them. Which blocks are looked at is chosen after
  it has come, they are the next thing that is asked for, and must have those sums: what was not computed when the
  answer was sent cannot be filled in later.
- A window that computes nothing, which shows what requests, inputs and sums cost, is asked of the reference's process
  alone.
"""

import collections
import contextlib
import mmap
import os
import random
import tempfile
import time

import torch

from onepass.judge import compare, inputs, launch
from onepass.judge.checks import nice
from onepass.judge.isolation import cpu_seconds
from onepass.judge.runner import BLOCK, blend, digest, leaves
from onepass.judge.session import count

ROOM = {"cpu": 128 << 20, "cuda": 24 << 30}      # bytes of inputs and results of one window
FETCH = {"cpu": 32 << 20, "cuda": 128 << 20}     # bytes of results that are compared after a window
BASES = 5                                        # sets of inputs of which those of timed calls are made
ALIGNED = 256                                    # bytes: where a tensor in a file begins
CLOCK = 2e9                                      # cycles a second of a GPU, at most
LONGEST_SLEEP = 0.05                             # seconds


class Kind:
    """One way of calling: its results by name, their shapes, and how wrong the reference is on them."""

    def __init__(self, name, train, backward):
        self.name, self.train, self.backward = name, train, backward
        self.keys, self.shapes, self.envelopes, self.bytes = [], [], {}, 0


class File:
    """Inputs of calls in the memory of a file without a name, one after the other."""

    def __init__(self, calls):
        """calls: a list of tensors for each."""
        self.offsets, self.size = [], 0
        for tensors in calls:
            self.offsets.append([])
            for tensor in tensors:
                self.offsets[-1].append(self.size)
                self.size += -(-tensor.numel() * tensor.element_size() // ALIGNED) * ALIGNED
        self.size = max(self.size, ALIGNED)
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("inputs")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        os.ftruncate(self.descriptor, self.size)
        self.room = mmap.mmap(self.descriptor, self.size)
        for tensors, here in zip(calls, self.tensors(calls)):
            for tensor, place in zip(tensors, here):
                place.copy_(tensor)

    def tensors(self, calls):
        """What is there now, in the shapes of those calls."""
        return [[torch.frombuffer(self.room, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
                 if tensor.numel() else tensor for tensor, offset in zip(tensors, offsets)]
                for tensors, offsets in zip(calls, self.offsets)]

    def close(self):
        """The memory goes with the last tensor in it."""
        os.close(self.descriptor)


class Watched:
    """Seconds of the processor that a process had, and in how long a time."""

    def __init__(self):
        self.busy = self.seconds = 0.0

    @property
    def share(self):
        return self.busy / self.seconds if self.seconds else 0.0


class Windows:
    def __init__(self, checks):
        self.checks, self.session, self.report = checks, checks.session, checks.report
        self.where = "cuda" if checks.session.device.startswith("cuda") else "cpu"
        self.input_bytes = self.session.bytes_of(checks.draws[0])
        self.bases = self.draw_bases()
        tensors = leaves(self.session.values[self.bases[0]])
        floating = [number for number, tensor in enumerate(tensors) if tensor.is_floating_point()]
        timed = checks.timed_gradients
        self.grads = floating if timed is None else [number for number in timed if number in floating]
        self.device = self.session.reference.ask("device")
        self.calls_verified = 0
        self.watched = collections.defaultdict(Watched)  # {(process, what was timed): ...} of who should have rested
        self.queueing = 0.0  # seconds that the host needs for a call of a window that computes nothing
        self.lasted = {}     # seconds of the last window of a kind, of either side
        self.tools = []      # processes that the candidate's has started and that should be idle

    def draw_bases(self):
        """On the CPU sets of inputs that the candidate has never seen, and never sees but blended."""
        if self.where == "cuda":
            return self.checks.draws
        names = ["timed%d" % number for number in range(BASES if not self.checks.large else 2)]
        for name in names:
            self.session.values[name] = self.session.reference.ask("draw", limit=1 << 40, name=name,
                                                                   seed=self.session.seed())
        return names

    def room(self):
        free = self.device["free"]
        return ROOM[self.where] if free is None else min(ROOM[self.where], free // 6)

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def spec(self):
        """Inputs of a call in a few numbers: shares of the bases, and rows that come from one of them alone."""
        return self.checks.weights(self.bases), self.patch()

    def patch(self):
        """[name of a set of inputs, the rows of each tensor that come from it]: a 64th of them, at least one."""
        ranges = []
        for tensor in leaves(self.session.values[self.bases[0]]):
            rows = tensor.shape[0] if tensor.dim() else 0
            size = max(1, rows // 64) if rows and inputs.batched(tensor, rows) else 0
            begin = self.session.random.randrange(rows - size + 1)
            ranges.append([begin, begin + size])
        return [self.session.random.choice(self.bases), ranges]

    def tensors(self, spec):
        """The same bits as a worker gets by `blend`: single multiplications and additions round alike everywhere."""
        weights, (base, ranges) = spec
        tensors = leaves(blend([self.session.values[name] for name in self.bases], weights))
        for tensor, other, (begin, end) in zip(tensors, leaves(self.session.values[base]), ranges):
            if begin < end:
                tensor[begin:end] = other[begin:end]
        return tensors

    def blend(self, name, spec):
        """Inputs such as a timed call has, to the reference alone."""
        self.session.reference.ask("blend", name=name, bases=self.bases, weights=spec[0], patch=spec[1])

    # ---- one window --------------------------------------------------------------------------------------------------

    def prepare(self, kind, sides=None):
        for side in sides or (self.session.candidate, self.session.reference):
            side.ask("prepare", upstream="upstream" if kind.backward else None, shapes=kind.shapes)

    def ask(self, kind, side, specs, made=None, null=False, slot="model", **options):
        """(answer, seconds, file) of one window. made: the tensors of each call, on the CPU."""
        blocks = sum(-(-count(shape) // BLOCK) for _, shape in kind.shapes)
        which = kind.name, side.trusted, null
        if which in self.lasted:  # conditions that are changed for a call are seen in the middle of one
            options["look"] = random.uniform(0.1, 0.9) * self.lasted[which], self.session.conditions.look
        source, file = {"like": self.checks.draws[0], "grads": self.grads if kind.backward else []}, None
        if self.where == "cuda":
            source.update(bases=self.bases, weights=[spec[0] for spec in specs], patches=[spec[1] for spec in specs])
            options["sleep"] = round(CLOCK * min(LONGEST_SLEEP, 1.2 * self.queueing * len(specs)))
        else:
            file = File(made)
            source.update(offsets=file.offsets, size=file.size)
        try:
            answer, seconds = side.ask_timed(
                "window", limit=8 * blocks * len(specs) + 4096, slot=slot, train=kind.train, backward=kind.backward,
                null=null, source=source, pattern={"digests": [torch.Tensor]},
                descriptors=[] if file is None else [file.descriptor], **options)
        finally:
            if file is not None:
                file.close()
        self.lasted[which] = seconds
        expected = [([len(specs), -(-count(shape) // BLOCK)], torch.int64) for _, shape in kind.shapes]
        found = [(list(sums.shape), sums.dtype) for sums in answer["digests"]]
        if found != expected and not options.get("memory"):
            raised = launch.Raised("ValueError", "a timed call returned results of another number or size", "")
            raised.trusted = side.trusted
            raise raised
        return answer, seconds, file

    def round(self, kind, specs, verify=True):
        """(seconds of the candidate, of the reference, of the reference's process for nothing) for equal windows."""
        made = [self.tensors(spec) for spec in specs] if self.where == "cpu" else None
        self.prepare(kind)
        got, taken, chosen = {}, [], None
        for name in ("candidate", "reference"):
            side = getattr(self.session, name)
            with self.watching("reference" if name == "candidate" else "candidate", name):
                answer, seconds, file = self.ask(kind, side, specs, made)
            if verify:  # the next thing that is asked, and nobody knew before what it would be
                chosen = chosen or self.chosen(kind, len(specs))
                got[name] = self.fetch(kind, side, chosen)
                if name == "candidate":
                    self.check_digests(kind, answer["digests"], chosen, got[name])
                    self.check_inputs(specs, made, file)
            taken.append(seconds)
        with self.watching("candidate", "nothing"):
            taken.append(self.ask(kind, self.session.reference, specs, made, null=True)[1])
        if verify:
            self.verify(kind, specs, chosen, got)
        return taken

    @contextlib.contextmanager
    def watching(self, name, timed):
        """Counts what that process does meanwhile, and the tools it has started: that should be nothing."""
        pids = [getattr(self.session, name).worker.pid] + (self.tools if name == "candidate" else [])
        before = cpu_seconds(*pids), time.monotonic()
        yield
        after = cpu_seconds(*pids), time.monotonic()
        if None not in before + after:
            self.watched[name, timed].busy += after[0] - before[0]
            self.watched[name, timed].seconds += after[1] - before[1]

    # ---- results -----------------------------------------------------------------------------------------------------

    def chosen(self, kind, calls):
        """{(call, index of a result): numbers of its blocks}: all of them, or as many as may be fetched."""
        pieces = [(call, index, block) for call in range(calls) for index, (_, shape) in enumerate(kind.shapes)
                  for block in range(-(-count(shape) // BLOCK))]
        left = FETCH[self.where]
        if calls * kind.bytes > left:
            self.session.random.shuffle(pieces)
        found = {}
        for call, index, block in pieces:
            begin, end = self.ends(kind, index, block)
            left -= (end - begin) * 8
            if left < 0 and calls * kind.bytes > FETCH[self.where] and found:
                break
            found.setdefault((call, index), []).append(block)
        return {key: sorted(blocks) for key, blocks in sorted(found.items())}

    def ends(self, kind, index, block):
        return block * BLOCK, min(count(kind.shapes[index][1]), (block + 1) * BLOCK)

    def fetch(self, kind, side, chosen):
        """{(call, index): flat tensor of the chosen blocks}."""
        shapes, ranges = {}, {}
        for (call, index), blocks in chosen.items():
            dtype, shape = kind.shapes[index]
            name = "%d.%d" % (call, index)
            shapes[name] = (getattr(torch, dtype), tuple(shape))
            if len(blocks) * BLOCK < count(shape):
                ranges[name] = [list(self.ends(kind, index, block)) for block in blocks]
        found = side.fetch(shapes, ranges) if shapes else {}
        return {key: found["%d.%d" % key] for key in chosen}

    def check_digests(self, kind, digests, chosen, got):
        """late: what is fetched must be what the answer has the sums of."""
        for (call, index), blocks in chosen.items():
            begin = 0
            for block in blocks:
                first, last = self.ends(kind, index, block)
                part = got[call, index][begin:begin + last - first]
                begin += last - first
                if part.numel() and int(digest(part)) != int(digests[index][call, block]):
                    self.report["late"].fail("%s: %s of a timed call was still being written after it had returned"
                                             % (kind.name, nice(kind.keys[index])))
                    return

    def check_inputs(self, specs, made, file):
        """The inputs of timed calls after them: of all on the CPU, of one on a GPU, where they are small."""
        if file is not None:
            pairs = [pair for before, after in zip(made, file.tensors(made)) for pair in zip(before, after)]
        elif self.input_bytes > FETCH[self.where] // 8:
            return
        else:
            call = self.session.random.randrange(len(specs))
            before = self.tensors(specs[call])
            after = self.session.candidate.fetch({"input.%d.%d" % (call, number): (tensor.dtype, tuple(tensor.shape))
                                                  for number, tensor in enumerate(before)})
            pairs = [(tensor.reshape(-1), found) for tensor, found in zip(before, after.values())]
        if not all(compare.same_bits(before, after) for before, after in pairs):
            self.report["inputs"].fail("an input of a timed call is not what it was before the call")

    def verify(self, kind, specs, chosen, got):
        """timed: every result that was fetched, against the reference's."""
        for (call, index), blocks in chosen.items():
            key, ours, theirs = kind.keys[index], got["candidate"][call, index], got["reference"][call, index]
            if key not in kind.envelopes:
                words = None if compare.same_bits(ours, theirs) else "not the reference's"
            else:
                pieces = [list(self.ends(kind, index, block)) for block in blocks]
                words = self.wrong(kind, key, specs[call], pieces, ours, theirs)
            if words:
                self.report["timed"].fail("%s: %s of a timed call: %s" % (kind.name, nice(key), words))
                return
        self.calls_verified += len(set(call for call, _ in chosen))

    def wrong(self, kind, key, spec, pieces, ours, theirs):
        """Words for what is wrong with pieces of a result of a timed call; None: nothing.

        The reference's own result is at hand and is near enough to the exact one, mostly. Where the two differ by more
        than they may, either can be wrong: then the call is made again, in double precision."""
        envelope = kind.envelopes[key]
        if compare.compare(ours, theirs, theirs, envelope, slack=1.0).ok:
            return None
        session = self.session
        self.blend("again", spec)
        grad = {"inputs": None, "upstream": "upstream"} if kind.backward else None
        exact = session.again("exact", "again", torch.float64, [key], {key: pieces},
                              {"train": kind.train, "grad": grad, "seed": session.seed()})[key]
        session.reference.ask("drop", names=["again"])
        difference = compare.compare(ours, theirs, exact, envelope)
        return None if difference.ok or difference.mild else difference.words()
