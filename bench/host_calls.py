#!/usr/bin/env python3
"""What a call of onepass.torch costs the host, beside PyTorch's own, and writes what it finds as JSON.

    host_calls.py [--device cuda|cpu] [--rounds N] [--out FILE]

host_us: microseconds per call of a host that only hands out work, which is small enough for the device to keep up;
CALLS in a row, both sides in turn, the median over rounds. step_us is the same with the backward pass, of the sum.

alone_ms (CUDA): milliseconds between events around one call of P2 when the device had nothing else to do before it, as
evaluators that synchronise before each call take it: host time in front of the first launch counts there.
"""
import argparse
import json
import os
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
if "onepass" not in sys.modules:
    sys.path.insert(0, os.path.join(ROOT, "build", "python"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import onepass.torch  # noqa: E402
from gpu_head import problem  # noqa: E402

CALLS = 100


def batchmean(function):
    return lambda *inputs: function(*inputs, reduction="batchmean")


def divergence(x, y):
    """KL of two tensors of logits by PyTorch's operations."""
    return F.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True)


def heads(rows, columns, depth, device, dtype=torch.float32):
    """(ours, the chain of PyTorch's modules with the same weights, input), in eval mode"""
    fused = onepass.torch.LinearBatchNormSoftmax(depth, columns).to(device, dtype).eval()
    chain = problem().Model(depth, columns).to(device, dtype).eval()
    chain.load_state_dict(fused.state_dict())
    return fused, chain, torch.rand(rows, depth, device=device, dtype=dtype)


def pairs(device):
    """(name, ours, PyTorch's, inputs of which the first is differentiated to)"""
    x, y = torch.randn(64, 1000, device=device), torch.randn(64, 1000, device=device)
    weight, bias = torch.randn(256, 256, device=device), torch.randn(256, device=device)
    fused, chain, input = heads(64, 256, 256, device)
    return [
        ("kl_div", batchmean(onepass.torch.kl_div), batchmean(F.kl_div), (x.log_softmax(-1), y.softmax(-1))),
        ("kl_div_logits", onepass.torch.kl_div_logits, divergence, (x, y)),
        ("cross_entropy", onepass.torch.cross_entropy, F.cross_entropy,
         (x, torch.randint(1000, (64,), device=device))),
        ("linear", onepass.torch.linear, F.linear, (torch.randn(64, 256, device=device), weight, bias)),
        ("head", fused, chain, (input,)),
    ]


def step(function, inputs):
    x = inputs[0].clone().requires_grad_()

    def run():
        result = function(x, *inputs[1:])
        return torch.autograd.grad(result if result.dim() == 0 else result.sum(), x)
    return run


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def in_turn(runs, device, rounds):
    """Microseconds per call of each run: the median over rounds."""
    samples = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            synchronize(device)
            begun = time.perf_counter()
            for _ in range(CALLS):
                run()
            if turn >= 2:  # those before are to get warm
                samples[name].append(1e6 * (time.perf_counter() - begun) / CALLS)
    synchronize(device)
    return {name: round(statistics.median(values), 2) for name, values in samples.items()}


def alone(runs, rounds):
    """Milliseconds of each run, the device idle before it."""
    samples = {name: [] for name in runs}
    for turn in range(rounds + 3):
        for name, run in runs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            if turn >= 3:
                samples[name].append(begin.elapsed_time(end))
    return {name: round(statistics.median(values), 4) for name, values in samples.items()}


def measure(device, rounds):
    found = {"torch": torch.__version__, "calls": CALLS, "rounds": rounds, "host_us": {}, "step_us": {}, "alone_ms": {}}
    for name, ours, theirs, inputs in pairs(device):
        with torch.no_grad():
            found["host_us"][name] = in_turn({"onepass": lambda: ours(*inputs), "eager": lambda: theirs(*inputs)},
                                             device, rounds)
        found["step_us"][name] = in_turn({"onepass": step(ours, inputs), "eager": step(theirs, inputs)}, device, rounds)
        print(name, found["host_us"][name], found["step_us"][name], flush=True)
    if device == "cuda":
        for dtype in (torch.bfloat16, torch.float32):
            fused, chain, input = heads(1024, 8192, 8192, device, dtype)
            fused.train(), chain.train()
            with torch.no_grad():
                name = "P2 training forward, %s" % str(dtype).rpartition(".")[2]
                found["alone_ms"][name] = alone({"onepass": lambda: fused(input), "eager": lambda: chain(input)}, rounds)
            print(name, found["alone_ms"][name], flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", help="a file for the JSON")
    arguments = parser.parse_args()
    found = measure(arguments.device, arguments.rounds)
    if arguments.device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1, sort_keys=True)
            file.write("\n")


if __name__ == "__main__":
    main()
