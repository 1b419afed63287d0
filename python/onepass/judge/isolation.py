"""Checks of what a candidate does besides computing: memory it reads, keeps or shares, work it does later or elsewhere.

Most of these cheats are right whenever one looks at a single call. So calls are repeated: with other contents of free
memory, with other values at the same addresses, after the result was overwritten, and after a pause.
"""

import os
import time

import torch

from onepass.judge import compare, inputs
from onepass.judge.checks import Group, nice

POISON = (0xff, 0x7f, 0x01)  # NaN; large numbers; numbers next to 0
POISON_ROOM = {"cpu": 256 << 20, "cuda": 6 << 30}  # bytes
EQUAL_CALLS = 3              # after the first: atomic additions often come in the same order twice
SETTLE, WATCH = 0.25, 0.12   # seconds: until spinning threads sleep, and how long they are then watched
TAIL = 0.1                   # milliseconds that another stream may still be busy


class Isolation:
    def __init__(self, checks):
        self.checks, self.session, self.report = checks, checks.session, checks.report
        self.train = checks.modes[0]
        self.name = checks.draws[0]

    def run(self):
        self.session.threads(0)
        grad = self.checks.upstream("upstream", self.fresh().evaluations[0]) if self.checks.backward else None
        for step, arguments in ((self.aliasing, (grad,)), (self.repeat, (grad,)), (self.late, ()), (self.cache, ())):
            self.checks.progress(step.__name__)
            step(*arguments)
        self.session.threads(self.checks.threads)

    def fresh(self):
        return [group for group in self.checks.groups if group.label == "fresh" and not group.grad][0]

    def results(self, grad, **options):
        """(results of one call of the candidate, which parts of large ones were taken)."""
        side = self.session.candidate
        call = side.call("model", self.name, self.train, grad=grad, seed=1, **options)
        shapes = call.named("out.", "grad.")
        ranges = self.session.ranges(shapes)
        return side.fetch(shapes, ranges), ranges, shapes

    # ---- memory ------------------------------------------------------------------------------------------------------

    def aliasing(self, grad):
        check, session = self.report["aliasing"], self.session
        for mode in [None] + ([grad] if grad else []):
            for _ in range(2):
                ours = session.candidate.call("model", self.name, self.train, grad=mode, hold=True)
                theirs = session.reference.call("model", self.name, self.train, grad=mode, hold=True)
                for number, (output, other) in enumerate(zip(ours.outputs, theirs.outputs)):
                    shared = [what for what in output.get("shares", []) if what not in other["shares"]]
                    if shared:
                        check.fail("output %d shares its memory with %s" % (number, shared[0]))
                if ours.moved_stream:
                    check.fail("after the call another CUDA stream is the current one")
            for side in (session.candidate, session.reference):
                side.ask("release")
        check.passed("outputs have memory of their own")

    def sizes(self, shapes):
        """Bytes of blocks to poison: what a call is likely to ask for."""
        wanted = set(1 << power for power in range(6, 23, 2))
        for dtype, shape in shapes.values():
            size = torch.empty((), dtype=dtype).element_size()
            for extent in shape:
                size *= extent
            wanted.update([size, 2 * size])
        wanted.add(self.session.bytes_of(self.name))
        kept, room = [], POISON_ROOM["cuda" if self.session.device.startswith("cuda") else "cpu"]
        for size in sorted(wanted):
            if 0 < size <= room:
                kept.append(size)
                room -= size
        return kept

    def repeat(self, grad):
        """repeat and poison: the same bits every time, whatever free memory holds."""
        session = self.session
        for mode in [None] + ([grad] if grad else []):
            first, ranges, shapes = self.results(mode)
            sizes = self.sizes(shapes)
            for _ in range(EQUAL_CALLS):
                plain = session.candidate.fetch(self.call_again(mode), ranges)
                self.same(self.report["repeat"], first, plain, "in a later one of equal calls")
            if self.report["repeat"].status == "fail":
                break
            for byte in POISON:
                session.candidate.ask("poison", byte=byte, sizes=sizes)
                again = session.candidate.fetch(self.call_again(mode), ranges)
                self.same(self.report["poison"], first, again, "with free memory full of 0x%02x" % byte)
        session.candidate.ask("trim")
        if not self.checks.deterministic:
            self.report["repeat"].note("the reference does not repeat its own bits")
        self.report["repeat"].passed("bit for bit")
        if self.report["repeat"].status == "fail":
            self.report["poison"].skip("its results differ without that")
        self.report["poison"].passed("bit for bit with %d contents of free memory" % len(POISON))

    def call_again(self, grad):
        return self.session.candidate.call("model", self.name, self.train, grad=grad, seed=1).named("out.", "grad.")

    def same(self, check, first, second, where):
        for key in first:
            if key not in second or not compare.same_bits(first[key], second[key]):
                if self.checks.deterministic:
                    check.fail("%s is another one %s" % (nice(key), where))
                return

    # ---- time --------------------------------------------------------------------------------------------------------

    def late(self):
        """late: the outputs as they were on return, and the same memory after a pause; work that goes on elsewhere."""
        check, session = self.report["late"], self.session
        tails = []
        for _ in range(5 if session.device.startswith("cuda") else 1):
            call = session.candidate.call("model", self.name, self.train, seed=1, snapshot=True)
            tails.append(call.tail)
        busy = self.background()
        shapes = call.named("first.", "out.")
        ranges = self.session.ranges(call.named("out."))
        ranges.update({"first." + key[4:]: pieces for key, pieces in ranges.items()})
        found = session.candidate.fetch(shapes, ranges)
        for key in [key for key in found if key.startswith("out.")]:
            if not compare.same_bits(found[key], found["first." + key[4:]]):
                check.fail("%s was still being written after the call had returned" % nice(key))
        if min(tails) > TAIL:
            check.fail("the device worked on for %.2f ms after the caller's stream was done" % min(tails))
        if busy is not None and busy > 0.5:
            check.fail("its process keeps %.0f%% of a core busy between calls" % (100 * busy))
        check.passed("nothing changes afterwards" + ("" if busy is None else ", %.0f%% of a core used" % (100 * busy)))

    def background(self):
        """Share of a core that the candidate's process wants while it has nothing to do; None: it cannot be seen."""
        pid = self.session.candidate.worker.pid
        time.sleep(SETTLE)
        for seconds in (WATCH, 4 * WATCH, 16 * WATCH):
            begin = cpu_seconds(pid), time.monotonic()
            time.sleep(seconds)
            end = cpu_seconds(pid), time.monotonic()
            if begin[0] is None or end[0] is None:
                return None
            share = (end[0] - begin[0]) / (end[1] - begin[1])
            # A wait for a core is counted when it is over: on a busy machine a short look may not see it.
            if share > 0.5 or share < 0.05 and not runnable(pid):
                break
        return share

    # ---- old answers -------------------------------------------------------------------------------------------------

    def cache(self):
        """cache: the same tensors with other values, with one other row, and after their result was overwritten."""
        session, checks = self.session, self.checks
        if any(self.report[name].status == "fail" for name in ("values", "rows")):
            self.report["cache"].skip("its values are wrong without that")
            return
        draws = [session.values[name] for name in checks.draws[:2]]
        if checks.large:
            draws = [checks.few_rows(value) for value in draws]
        plan = [("other values at the same addresses", draws[1], "fresh")]
        if any(group.label == "planted" for group in checks.groups) and inputs.batch_of(draws[1]):
            plan.append(("one row changed in place", inputs.planted(draws[1], session.generator()), "planted"))
        session.put("cached", draws[0])
        session.candidate.call("model", "cached", self.train, seed=1)
        for label, values, like in plan + [("after its result was overwritten", None, plan[-1][2])]:
            if values is not None:
                session.put("new values", values)
                for side in (session.candidate, session.reference):
                    side.ask("overwrite", name="cached", other="new values")
                session.values["cached"] = session.values["new values"]
            group = Group(label, ["cached"], self.train)
            similar = [other for other in checks.groups if other.label == like and not other.grad]
            if similar:
                group.envelopes.update(similar[0].envelopes)
            if not checks.run_group(group, "cache"):
                if group.refused:
                    self.report["cache"].note("%s: does not count (%s)" % (label, group.refused))
                break
            session.candidate.call("model", "cached", self.train, seed=1, clear=True)
        session.drop("cached", "new values")
        checks.groups = [group for group in checks.groups if group.names != ["cached"]]
        self.report["cache"].passed("nothing old came back")


def cpu_seconds(*pids):
    """Time that all threads of processes had a core or waited for one; None where the system does not tell."""
    total = 0
    try:
        for pid in pids:
            for thread in os.listdir("/proc/%d/task" % pid):
                with open("/proc/%d/task/%s/schedstat" % (pid, thread)) as file:
                    total += sum(int(word) for word in file.read().split()[:2])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


def runnable(pid):
    """Whether a thread of a process has a core or waits for one."""
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/stat" % (pid, thread)) as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "R":
                    return True
    except (OSError, IndexError):
        pass
    return False


def tampering(session, report, kernels=False):
    """tampering: asked of the candidate's process after its import and again at the end, and of the system. kernels:
    look at where every operator of PyTorch comes from, too."""
    answer = session.candidate.ask("guard", pattern={"replaced": [str], "settings": [str]}, kernels_too=kernels)
    check = report["tampering"]
    if answer["replaced"]:
        check.fail("it replaced %s" % ", ".join(answer["replaced"][:5]))
    if answer["settings"]:
        text = "it changed settings of the whole program: %s" % "; ".join(answer["settings"])
        if text not in check.text:
            check.note(text)
    unfair = session.conditions.words()
    if unfair:
        check.fail(unfair)
    left = session.left_behind()
    if left:
        report["late"].fail("it started a process that goes on beside it: %s" % left)
    check.passed("nothing was replaced")
