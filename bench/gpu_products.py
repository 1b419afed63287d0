"""fp32 products over shapes, for gpu_bench.py: cuBLAS's, the library's own on tensor cores, and which one it chooses.

m x n x k is [m, k] by [n, k] transposed, a linear layer without a bias. Of each shape three calls take turns by
gpu_bench.py's protocol for a cold cache: "vendor" (ONEPASS_FP32_VENDOR, cuBLAS), "split" (ONEPASS_FP32_SPLIT, our own)
and "prepared", our own with the weight in its form already. "chosen" is what ONEPASS_FP32_FULL, the default, does for
the shape. No clock decides that: it is the way that gives the same bits, on random numbers, where the two ways' differ.
If the one chosen takes over 10% longer than the other did here, "slower_by" is by how much, 0.25 for 25%.

Errors are relative to float64 in the Frobenius norm, over at most 512 rows of the output, evenly spaced. The input is
uniform in [-0.5, 0.5), the weight in [-1, 1) / sqrt(k), as PyTorch starts a linear layer.
"""
import gc
import os

import torch

from calls import FP32_FULL, FP32_SPLIT, FP32_VENDOR, LinearCall

SIZES = (16, 64, 256, 1024, 4096, 16384)
QUICK_SHAPES = ((16, 64, 64), (48, 192, 80), (33, 256, 129))
LARGEST = 1 << 26  # elements of an output, and of a weight
ROUNDS, FEW_ROUNDS = 12, 5
LONG = 1 << 37  # multiplications; an H200's fp32 units take 5 ms for them
EXACT_ROWS = 512
MARGIN = 1.1


def shapes():
    """P2's, and every second one of the grid: those whose places in SIZES have an even sum."""
    found = [(1024, 8192, 8192)]
    for i, m in enumerate(SIZES):
        for j, n in enumerate(SIZES[1:], 1):
            for h, k in enumerate(SIZES[1:], 1):
                if m * n <= LARGEST and n * k <= LARGEST and (i + j + h) % 2 == 0:
                    found.append((m, n, k))
    return found


def inputs_of(device, m, n, k, seed):
    torch.manual_seed(seed)
    x = torch.rand(m, k, device=device) - 0.5
    return x, (2 * torch.rand(n, k, device=device) - 1) / k ** 0.5


def chosen(full, ways):
    """The way whose output has the bits of `full`; "either" if all have them, "neither" if none has."""
    same = [name for name, output in ways.items() if torch.equal(full.view(torch.int32), output.view(torch.int32))]
    return same[0] if len(same) == 1 else "either" if same else "neither"


def slower_by(choice, ms):
    """What the choice takes beyond the faster of the two ways, as a share; None within the margin."""
    if choice not in ms or ms[choice] <= MARGIN * min(ms.values()):
        return None
    return round(ms[choice] / min(ms.values()) - 1, 4)


def errors(x, weight, outputs):
    """||output - exact|| / ||exact|| of each, over some rows."""
    step = -(-x.shape[0] // EXACT_ROWS)
    exact = torch.mm(x[::step].double(), weight.double().t())
    return {name: ((output[::step].double() - exact).norm() / exact.norm()).item() for name, output in outputs.items()}


def entry(bench, shape, seed):
    m, n, k = shape
    x, weight = inputs_of(bench.device, m, n, k, seed)

    def call(products, prepared=False):
        return LinearCall(x, weight, None, products, prepared)
    calls = {"vendor": call(FP32_VENDOR), "split": call(FP32_SPLIT), "prepared": call(FP32_SPLIT, True)}
    ways = {name: calls[name]() for name in ("vendor", "split")}
    made = {"shape": list(shape), "seed": seed, "chosen": chosen(call(FP32_FULL)(), ways)}
    made.update(("%s_error" % name, value) for name, value in errors(x, weight, ways).items())
    made["rounds"] = ROUNDS if m * n * k < LONG else FEW_ROUNDS
    ms = bench.milliseconds(calls, made["rounds"])
    made.update(("%s_ms" % name, value) for name, value in ms.items())
    late = slower_by(made["chosen"], {name: ms[name] for name in ways})
    if late is not None:
        made["slower_by"] = late
    return made


def entries(bench):
    """One for each shape; one that fails is reported, not fatal."""
    seed = int.from_bytes(os.urandom(4), "little")
    print("fp32 products, seed %d" % seed)
    found = []
    for shape in QUICK_SHAPES if bench.quick else shapes():
        name = "%d x %d x %d" % shape
        try:
            made = entry(bench, shape, seed)
            print("%-22s cuBLAS %8.4f ms  split %8.4f  prepared %8.4f  errors %.1e %.1e  chosen: %s%s" % (
                name, made["vendor_ms"], made["split_ms"], made["prepared_ms"], made["vendor_error"],
                made["split_error"], made["chosen"],
                ", slower by %.0f%%" % (100 * made["slower_by"]) if "slower_by" in made else ""), flush=True)
        except Exception as failure:
            made = {"shape": list(shape), "seed": seed, "failed": (str(failure).splitlines() or ["?"])[0][:200]}
            print("%-22s failed: %s" % (name, made["failed"]), flush=True)
        found.append(made)
        gc.collect()
        if bench.device == "cuda":
            torch.cuda.empty_cache()
    return found
