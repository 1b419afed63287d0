"""From two files to a report: the order of things, and what happens when they go wrong."""

import os
import platform
import sys
import time
import traceback

import torch

from onepass.judge import launch
from onepass.judge.chance import Chance
from onepass.judge.checks import Checks
from onepass.judge.isolation import Isolation, tampering
from onepass.judge.report import Report, one_line, shown
from onepass.judge.session import Session, Unusable
from onepass.judge.timing import Timing
from onepass.judge.uses import Uses
from onepass.judge.variety import Variety

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Enough(Exception):
    """A check has failed, and nobody wants to know more."""


class Options:
    """device: cpu or cuda[:N]. size: what ONEPASS_PROBLEM_SIZE is for the files. repeats: timed windows a kind of call.
    seed: None draws one; a fixed one repeats the inputs, and a candidate may know them then. progress: called with a
    word now and then. nursery: one to fork from, to save the import of PyTorch."""

    def __init__(self, device="cpu", dtype="float32", size=None, seed=None, timeout=120.0, repeats=15, compile=False,
                 forward_only=False, plain_inputs=False, time=True, fail_fast=False, progress=None, nursery=None):
        self.device, self.dtype, self.timeout, self.repeats = device, dtype, timeout, repeats
        self.size = size or ("full" if device.startswith("cuda") else "small")
        self.seed = int.from_bytes(os.urandom(6), "little") if seed is None else seed
        self.compile, self.forward_only, self.plain_inputs, self.time = compile, forward_only, plain_inputs, time
        self.fail_fast, self.progress = fail_fast, progress or (lambda word: None)
        self.nursery = nursery


def judge_files(reference, candidate, options):
    """A Report, whatever goes wrong: what the reference or the judge itself does wrong makes it unusable."""
    report = Report()
    begin = time.monotonic()
    threads = torch.get_num_threads()  # of this process, which only compares: it would be in the way of the others
    torch.set_num_threads(1)
    report.about.update({
        "reference": shown(reference),
        "candidate": shown(candidate) if candidate else "ModelNew of the reference's file",
        "candidate_given": candidate is not None,
        "device": options.device, "dtype": options.dtype, "size": options.size, "seed": options.seed,
        "forward_only": options.forward_only, "plain_inputs": options.plain_inputs, "not_timed": not options.time,
        "repeats": options.repeats,
        "python": platform.python_version(), "torch": torch.__version__, "machine": machine(options.device, threads),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    })
    try:
        for path in (reference, candidate):
            if path and not os.path.isfile(path):
                raise Unusable("there is no file %s" % path)
        if options.device.startswith("cuda") and not torch.cuda.is_available():
            raise Unusable("device %s: PyTorch sees no CUDA device here" % options.device)
        if options.nursery is not None:
            judge_in(options.nursery, reference, candidate, options, report)
        else:
            with launch.Nursery() as nursery:
                judge_in(nursery, reference, candidate, options, report)
    except Unusable as error:
        report.unusable = str(error)
    except Exception as error:  # a fault of the judge's own is no verdict about anybody
        report.about["traceback"] = traceback.format_exc()
        if not report.failed:
            report.unusable = "the judge itself failed: %s: %s" % (type(error).__name__, one_line(error))
    finally:
        torch.set_num_threads(threads)
    report.about["seconds"] = time.monotonic() - begin
    return report


def judge_in(nursery, reference, candidate, options, report):
    try:
        session = Session(nursery, options.seed, DTYPES[options.dtype], options.device, options.timeout)
    except launch.Trouble as trouble:
        raise Unusable(trouble.reason)
    try:
        if options.device.startswith("cuda"):  # asked before that process has run anybody's code
            report.about["fp32_products"] = session.reference.ask("products")
        try_everything(session, os.path.abspath(reference), candidate and os.path.abspath(candidate), options, report)
        for name in ("protocol", "timeout", "crash"):
            report[name].passed("every answer came, in time and in form")
    except Enough:
        pass
    except launch.Trouble as trouble:
        if nursery.alive:
            report[trouble.check].fail(trouble.reason)
    except launch.Raised as raised:
        if raised.trusted:
            raise Unusable("the reference raises between checks: %s" % raised.reason)
        report["crash"].fail("between checks it raises %s" % raised.reason)
        report["crash"].details["traceback"] = raised.trace
    finally:
        report.about["printed"] = session.candidate.worker.printed()
        left = session.stop()
        if left:
            report["late"].fail("it left a process behind: %s" % left)
        if not nursery.alive and not report.failed:
            raise Unusable(launch.GONE)


def try_everything(session, reference, candidate, options, report):
    """Checks of what is computed go on after a failure, so that a report names all of them. What is wrong is not
    timed."""
    def progress(word):
        if options.fail_fast and report.failed:
            raise Enough()
        options.progress(word)
    checks = Checks(session, report, options, progress)
    progress("import")
    if not checks.open(reference, candidate):
        return
    tampering(session, report)
    if not checks.fresh():
        return
    checks.harder()
    checks.power()
    Isolation(checks).run()
    checks.double_backward()
    checks.steps()
    Chance(checks).run()
    Uses(checks, reference).run()
    Variety(checks).run()
    checks.weights_at_the_end()
    tampering(session, report)
    if report.failed:
        for name in ("timed", "timer", "floor"):
            report[name].skip("not timed, because a check before it failed")
    elif not options.time:
        for name in ("timed", "timer", "floor"):
            report[name].skip("--no-time")
    else:
        session.threads(0)
        Timing(checks).run()
        if session.compare_on == "cpu":
            report["timer"].skip("CUDA only")
        report.about["sides"] = "; ".join("%s: %s" % (name, getattr(session, name).ask("where", pattern=str))
                                          for name in ("candidate", "reference"))
        progress("afterwards")
        afterwards(checks)
        tampering(session, report, kernels=True)


def afterwards(checks):
    """One more call after all the timing: a candidate that changed its ways meanwhile is found here."""
    from onepass.judge.checks import Group
    group = Group("fresh", checks.draws[:1], checks.modes[0])
    similar = [other for other in checks.groups if other.label == "fresh" and other.train == group.train
               and not other.grad][0]
    group.envelopes.update(similar.envelopes)
    checks.run_group(group, "timed", finite=False)


def machine(device, threads):
    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    if sys.platform == "linux":
        try:
            with open("/proc/cpuinfo") as file:
                name = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        except (OSError, StopIteration):
            pass
    return "%s, %d threads" % (name, threads)
