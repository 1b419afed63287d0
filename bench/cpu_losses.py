#!/usr/bin/env python3
"""Times losses from logits, and small calls, on the CPU beside PyTorch's, and writes bench/results/cpu-losses.json.

    cpu_losses.py [--threads N] [--out FILE] [--quick] [--calls]

Rows: value and gradient, of onepass.torch, of eager PyTorch and of torch.compile, in turn, round after round, on the
same logits; half types are cast to float32 in the last two, as one does for digits. All three make a new gradient each
time, whose pages the system has to find; "library" is the library's call alone (calls.py), into a gradient that is
there. Medians, quantiles 0.2 and 0.8; a ratio is the median over rounds of a rival's time by ours. The share is that of
the speed at which a plain read (torch.sum of as many bytes) goes through memory, in turn with the rest: what is counted
is each input read once and the gradient written once. error and grad_error are those of losses.py.

Calls: small work, where the call is most of it.

On one thread time is what the thread had of the processor: on a machine that has other things to do the wall clock
tells about those. They share the memory all the same. With more threads it is the wall clock.
"""
import argparse
import datetime
import functools
import json
import os
import platform
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
if "onepass" not in sys.modules:
    sys.path.insert(0, os.path.join(ROOT, "build", "python"))
import evidence  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import onepass.torch  # noqa: E402
from calls import LossCall  # noqa: E402
from gpu_head import problem  # noqa: E402
from gpu_timing import summary  # noqa: E402
from losses import LOSSES, Exact, Inputs, Pass, in_float  # noqa: E402
from onepass import library  # noqa: E402

SHAPES = (4096, 32000), (256, 1000)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OURS = {"kl": lambda x, y: (onepass.torch.kl_div_logits(x, y),),
        "cross_entropy": lambda x, labels: (onepass.torch.cross_entropy(x, labels),)}
LEAST_SECONDS = 5e-3  # of one sample: shorter work is repeated


class Clock:
    """In turn: seconds of each run, a list per name."""

    def __init__(self, threads):
        self.now = time.thread_time if threads == 1 else time.perf_counter

    def once(self, run, repeats=1):
        begun = self.now()
        for _ in range(repeats):
            run()
        return (self.now() - begun) / repeats

    def in_turn(self, runs, rounds):
        for run in runs.values():
            run()
        repeats = {name: min(10000, int(LEAST_SECONDS / max(self.once(run), 1e-7)) + 1) for name, run in runs.items()}
        samples = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                samples[name].append(self.once(run, repeats[name]))
        return samples


def milliseconds(seconds):
    return summary([1e3 * each for each in seconds])


def ratio(samples, name, to):
    """The median over rounds."""
    return round(statistics.median(a / b for a, b in zip(samples[name], samples[to])), 4)


# ---- rows ------------------------------------------------------------------------------------------------------------


def row(loss, shape, kind, rounds, clock):
    inputs = Inputs(loss, *shape, TYPES[kind], "cpu")
    exact = Exact(loss, inputs, True)
    rival = in_float(loss) if kind != "fp32" else LOSSES[loss]
    torch.compiler.reset()
    passes = {"onepass": Pass(OURS[loss], inputs, True), "eager": Pass(rival, inputs, True),
              "compile": Pass(torch.compile(rival, dynamic=False), inputs, True)}
    size = inputs.logits.numel() * inputs.logits.element_size()
    moved = size * (inputs.memory.shape[0] + 1)
    errors = {name: exact.errors(*run()) for name, run in passes.items()}
    del exact
    alone = LossCall(loss, inputs.logits, inputs.other, True, torch.get_num_threads())
    samples = clock.in_turn(dict(passes, library=alone, read=torch.ones(moved // 4).sum), rounds)
    made = {"id": "%s_%s_%dx%d" % ((loss, kind) + shape), "loss": loss, "dtype": kind, "shape": list(shape),
            "rounds": rounds, "bytes": moved, "read_ms": milliseconds(samples["read"])["ms"],
            "share_of_read": ratio(samples, "read", "onepass"), "rivals": {},
            "library": dict(milliseconds(samples["library"]), share_of_read=ratio(samples, "read", "library"))}
    made.update(milliseconds(samples["onepass"]), **errors["onepass"])
    for name in ("eager", "compile"):
        made["rivals"][name] = dict(milliseconds(samples[name]), ratio=ratio(samples, name, "onepass"), **errors[name])
    print("%-28s %9.3f ms, alone %9.3f, %3.0f%% of reading  %s" % (
        made["id"], made["ms"], made["library"]["ms"], 100 * made["library"]["share_of_read"],
        "  ".join("%s %.3f ms (%.2f)" % (name, each["ms"], each["ratio"]) for name, each in made["rivals"].items())),
        flush=True)
    return made


# ---- calls -----------------------------------------------------------------------------------------------------------


def step(function, inputs, parameters=()):
    """The call with its backward pass: of the sum, if there is more than one result."""
    x = inputs[0].clone().requires_grad_()
    wanted = [x] + list(parameters)

    def run():
        result = function(x, *inputs[1:])
        return torch.autograd.grad(result if result.dim() == 0 else result.sum(), wanted)
    return run


def loss_inputs(name, rows, columns):
    x = torch.randn(rows, columns)
    if name == "cross_entropy":
        return x, torch.randint(columns, (rows,))
    return x.log_softmax(-1), torch.randn(rows, columns).softmax(-1)


def call_pairs():
    """(name, shape, work, ours, PyTorch's)"""
    pairs = []

    def add(name, shape, ours, theirs, inputs, parameters=((), ())):
        pairs.append((name, shape, "forward", *(functools.partial(function, *inputs) for function in (ours, theirs))))
        pairs.append((name, shape, "forward and backward",
                      *(step(function, inputs, of) for function, of in zip((ours, theirs), parameters))))

    for shape in ((1, 10), (64, 1000)):
        for name in ("kl_div", "cross_entropy"):
            how = {"reduction": "batchmean"} if name == "kl_div" else {}
            ours, theirs = getattr(onepass.torch, name), getattr(F, name)
            add(name, shape, lambda *inputs, f=ours, how=how: f(*inputs, **how),
                lambda *inputs, f=theirs, how=how: f(*inputs, **how), loss_inputs(name, *shape))
    for rows, columns, depth in ((1, 8, 8), (64, 64, 64)):
        weight, bias = torch.randn(columns, depth, requires_grad=True), torch.randn(columns, requires_grad=True)
        add("linear", (rows, columns, depth), onepass.torch.linear, F.linear,
            (torch.randn(rows, depth), weight, bias), ((weight, bias),) * 2)
        fused = onepass.torch.LinearBatchNormSoftmax(depth, columns).eval()
        chain = problem().Model(depth, columns).eval()
        chain.load_state_dict(fused.state_dict())
        add("head", (rows, columns, depth), fused, chain, (torch.randn(rows, depth),),
            [list(module.parameters()) for module in (fused, chain)])
    return pairs


def calls(rounds, clock):
    found = []
    for name, shape, work, ours, theirs in call_pairs():
        with torch.set_grad_enabled(work != "forward"):
            samples = clock.in_turn({"onepass": ours, "eager": theirs}, rounds)
        made = {"function": name, "shape": list(shape), "work": work, "rounds": rounds,
                "us": round(1e6 * statistics.median(samples["onepass"]), 3),
                "eager_us": round(1e6 * statistics.median(samples["eager"]), 3),
                "share": ratio(samples, "onepass", "eager")}
        print("%-14s %-14s %-21s %8.2f us, eager %8.2f: %.2f" % (name, shape, work, made["us"], made["eager_us"],
                                                                 made["share"]), flush=True)
        found.append(made)
    return found


# ---- all of it -------------------------------------------------------------------------------------------------------


def processor():
    """Its name, as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def measure(quick, threads, kept=None):
    """All of it; or with the rows of an earlier result, which must be of as many threads, the calls alone."""
    clock = Clock(threads)
    shapes, few, many = (((8, 50), (3, 20)), 2, 2) if quick else (SHAPES, 5, 31)
    torch.manual_seed(5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = kept["rows"] if kept else [
            row(loss, shape, kind, few if shape[0] * shape[1] > 1 << 24 else many, clock)
            for shape in shapes for kind in TYPES for loss in OURS]
        made = calls(many, clock)
    finally:
        torch.set_num_threads(before)
    return {"schema": 1, "machine": processor(), "cores": os.cpu_count(), "level": library.info()["level"],
            "threads": threads, "torch": torch.__version__, "date": datetime.date.today().isoformat(),
            "clock": "of the thread" if threads == 1 else "on the wall", "rows": rows, "calls": made}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default=evidence.CPU_LOSSES, help="the result file")
    parser.add_argument("--quick", action="store_true", help="small shapes, few rounds; writes only with --out")
    parser.add_argument("--calls", action="store_true", help="the calls alone; the rows of the file stay as they are")
    arguments = parser.parse_args()
    kept = None
    if arguments.calls:
        with open(arguments.out, encoding="utf-8") as file:
            kept = json.load(file)
        if kept["threads"] != arguments.threads:
            parser.error("--calls: the rows are of %d threads" % kept["threads"])
    result = measure(arguments.quick, arguments.threads, kept)
    if not arguments.quick or arguments.out != evidence.CPU_LOSSES:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
