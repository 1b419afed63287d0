#!/usr/bin/env python3
"""Times the GPU kernels beside PyTorch's and writes bench/results/<gpu>.json. ./dev gpu calls it after the tests.

Protocol. For each row ours, PyTorch eager, torch.compile and the floor take turns, round after round, on the same
inputs: 256 MB are written to empty the second-level cache, then one run is timed with CUDA events. The median of the
rounds is reported with the quantiles 0.2 and 0.8. Small shapes, which a launch would drown, are timed as a CUDA graph
of many calls, for everyone, with a warm cache; what a launch from Python costs is reported beside it.

ours is the library by itself (calls.py); pytorch is the same work through onepass.torch, autograd included.
floor_ms is a plain read of the same bytes (src/cuda/probe.cu), or torch.add of the same three tensors where a gradient
is written. error is relative to float64 of the same inputs, of a result stored in float32 (in float64 for float64
inputs); error_before_rounding is that of the same result stored in float64; grad_error is the gradient's, in the
Frobenius norm.
extra_bytes is memory beyond the inputs at the peak, a gradient included.
Rows of the head and of linear are in gpu_head.py, those of losses from logits in gpu_losses.py, which say what differs.
fp32 products over shapes, "products" in the result, are in gpu_products.py.
"""
import argparse
import datetime
import gc
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
if "onepass" not in sys.modules:
    sys.path.insert(0, os.path.join(ROOT, "build", "python"))
import evidence  # noqa: E402

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("gpu_bench.py: PyTorch is needed, for memory, streams and rivals")
import onepass.torch  # noqa: E402
import gpu_head  # noqa: E402
import gpu_linear_losses  # noqa: E402
import gpu_losses  # noqa: E402
import gpu_products  # noqa: E402
from calls import KlCall, plain_read  # noqa: E402
from gpu_timing import GRAPH_CALLS, Flush, host_milliseconds, peak_growth, summary, time_cold, time_small  # noqa: E402

ROUNDS = 40


# ---- inputs ----------------------------------------------------------------------------------------------------------

def pair(rows, columns, dtype, shift=0):
    """Two tensors in one piece of memory, so that one plain read can cover both; the first `shift` elements off."""
    count = rows * columns
    gap = 0 if shift == 0 else 64  # the second one stays aligned
    both = torch.empty(2 * count + gap, dtype=dtype, device="cuda")
    return both, both[shift:shift + count].view(rows, columns), both[count + gap:].view(rows, columns)


def fill(tensor, make):
    """Row blocks at a time: the making needs float64 and more memory than the result."""
    rows = max(1, (64 << 20) // tensor.shape[1])
    for first in range(0, tensor.shape[0], rows):
        block = tensor[first:first + rows]
        block.copy_(make(block.shape))


def founding_inputs(form, rows, columns, dtype, shift=0):
    """predictions = softmax(rand * s) with one random s, targets = softmax(rand); or their logarithms."""
    torch.manual_seed(1)
    both, predictions, targets = pair(rows, columns, dtype, shift)
    scale = torch.rand((), device="cuda")
    log_p, log_t = form.startswith("log_probs"), form.endswith("log_probs")

    def random(shape):
        return torch.rand(shape, device="cuda", dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    fill(predictions, lambda shape: (torch.log_softmax if log_p else torch.softmax)(random(shape) * scale, -1))
    fill(targets, lambda shape: (torch.log_softmax if log_t else torch.softmax)(random(shape), -1))
    return both, predictions, targets


def transposed_inputs(size, dtype):
    """The same, square, the targets transposed where they lie."""
    both, predictions, targets = founding_inputs("probs_probs", size, size, dtype)
    return both, predictions, targets.t()


def close_inputs(rows, columns, difference):
    """Predictions whose logits differ from the targets' by up to `difference`; the divergence is its square / 24."""
    torch.manual_seed(2)
    both, predictions, targets = pair(rows, columns, torch.float32)
    step = max(1, (32 << 20) // columns)
    for first in range(0, rows, step):
        shape = targets[first:first + step].shape
        logits = torch.rand(shape, device="cuda", dtype=torch.float64)
        targets[first:first + step] = torch.softmax(logits, -1).float()
        moved = logits + difference * torch.rand(shape, device="cuda", dtype=torch.float64)
        predictions[first:first + step] = torch.softmax(moved, -1).float()
    return both, predictions, targets


# ---- exact answers ---------------------------------------------------------------------------------------------------

def exact_rows(form, predictions, targets):
    """The divergence of each row of the stored numbers, in float64; differences of close numbers are exact."""
    values = torch.zeros(predictions.shape[0], dtype=torch.float64, device=predictions.device)
    rows = max(1, (16 << 20) // predictions.shape[1])
    width = 16 << 20  # of one long row
    for first in range(0, predictions.shape[0], rows):
        for left in range(0, predictions.shape[1], width):
            p = predictions[first:first + rows, left:left + width].double()
            t = targets[first:first + rows, left:left + width].double()
            if form == "probs_probs":
                ratio = torch.where((t > p / 2) & (t < 2 * p), torch.log1p((t - p) / p), torch.log(t / p))
                terms = t * ratio
            elif form == "log_probs_probs":
                terms = t * (t.log() - p)
            elif form == "log_probs_log_probs":
                terms = t.exp() * (t - p)
            else:
                terms = t.exp() * (t - p.log())
            values[first:first + rows] += terms.sum(-1)
    return values


def gradient_error(form, predictions, targets, gradient, scale):
    """||g - exact|| / ||exact|| for the gradient to the predictions; `scale` is a row's weight by the divisor."""
    off = size = 0.0
    rows = max(1, (16 << 20) // predictions.shape[1])
    width = 16 << 20
    for first in range(0, predictions.shape[0], rows):
        for left in range(0, predictions.shape[1], width):
            cut = (slice(first, first + rows), slice(left, left + width))
            t = targets[cut].double()
            t = t.exp() if form.endswith("log_probs") and form != "log_probs_probs" else t
            exact = -t if form.startswith("log_probs") else -t / predictions[cut].double()
            exact *= scale[first:first + rows, None]
            off += (gradient[cut].double() - exact).square().sum().item()
            size += exact.square().sum().item()
    return (off / size) ** 0.5


# ---- rivals ----------------------------------------------------------------------------------------------------------

def torch_loss(form, cast, reduction="batchmean", weights=None):
    log_p = form.startswith("log_probs")
    log_t = form in ("probs_log_probs", "log_probs_log_probs")

    def loss(p, t):
        if cast:
            p, t = p.float(), t.float()
        x = p if log_p else p.log()
        if reduction == "batchmean" and weights is None:
            return F.kl_div(x, t, reduction="batchmean", log_target=log_t)
        rows = F.kl_div(x, t, reduction="none", log_target=log_t).sum(-1)
        return rows if weights is None else (rows * weights).sum() / len(rows)
    return loss


def onepass_loss(form, reduction="batchmean", weights=None):
    """The same through onepass.torch."""
    function = onepass.torch.kl_div if form.startswith("log_probs") else onepass.torch.kl_div_probs
    log_t = form in ("probs_log_probs", "log_probs_log_probs")
    return lambda p, t: function(p, t, reduction=reduction, log_target=log_t, row_weights=weights)


class Rival:
    """PyTorch's way: a loss function, its backward pass to the predictions if asked for."""

    def __init__(self, loss, predictions, targets, backward):
        self.loss, self.targets, self.backward = loss, targets, backward
        self.predictions = predictions.detach().requires_grad_(backward)

    def __call__(self):
        if not self.backward:
            with torch.no_grad():
                return self.loss(self.predictions, self.targets)
        value = self.loss(self.predictions, self.targets)
        return value, torch.autograd.grad(value, self.predictions, torch.ones_like(value))[0]

    def outcome(self):
        result = self()
        return result if self.backward else (result, None)


# ---- rows ------------------------------------------------------------------------------------------------------------

class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.flush = Flush()
        self.rounds = 10 if arguments.quick else ROUNDS
        self.device, self.quick, self.compile = "cuda", arguments.quick, arguments.compile
        self.peak_growth, self.host_milliseconds = peak_growth, host_milliseconds
        self.rows, self.products = [], []

    def wanted(self, name):
        return not self.arguments.only or re.search(self.arguments.only, name)

    def milliseconds(self, runs, rounds):
        """The median of each run, cold cache."""
        return {name: summary(values)["ms"] for name, values in time_cold(runs, self.flush, rounds).items()}

    def finish(self, row, runs, begun, small=False, most_rounds=ROUNDS):
        """Times the runs ("ours", "floor", rivals and, if there is such a way, "pytorch"), completes the row, keeps and
        prints it."""
        time.sleep(0.3)  # an idle moment: clocks recover
        rounds = min(self.rounds, most_rounds)
        if small:
            samples, launches, refused = time_small(runs, rounds)
            row["protocol"] = "graph of %d calls, warm cache" % GRAPH_CALLS
        else:
            samples, launches, refused = time_cold(runs, self.flush, rounds), {}, {}
            row["protocol"] = "cold cache"
        row["rounds"] = rounds
        row.update(summary(samples["ours"]))
        row["floor_ms"] = summary(samples["floor"])["ms"]
        row["share_of_floor"] = round(row["floor_ms"] / row["ms"], 4)
        if "ours" in launches:
            row["launch_ms"] = round(launches["ours"], 6)
        if "pytorch" in samples:
            row["pytorch"].update(summary(samples["pytorch"]))
        if "pytorch" in launches:
            row["pytorch"]["launch_ms"] = round(launches["pytorch"], 6)
        for rival_name in row["rivals"]:
            if rival_name in samples:
                row["rivals"][rival_name].update(summary(samples[rival_name]))
            if rival_name in launches:
                row["rivals"][rival_name]["launch_ms"] = round(launches[rival_name], 6)
            if rival_name in refused:
                row["rivals"][rival_name]["graph"] = refused[rival_name][:200]
        self.rows.append(row)
        print("%-42s %8.4f ms (%.4f-%.4f)  in PyTorch %s  floor %.4f  error %.1e  %s  [%.0f s]" % (
            row["id"], row["ms"], row["ms_q20"], row["ms_q80"],
            "%.4f" % row["pytorch"]["ms"] if "pytorch" in samples else "-", row["floor_ms"], row["error"],
            "  ".join("%s %s %s" % (key, "%.4f" % rival["ms"] if "ms" in rival else "-",
                                    "%.1e" % rival["error"] if "error" in rival else rival.get("failed", "?"))
                      for key, rival in row["rivals"].items()), time.time() - begun), flush=True)

    def row(self, name, form, inputs, backward, small=False, reduction="batchmean", weights=None):
        """`reduction` is "batchmean", or "rows": a value each, whose error is in the Frobenius norm."""
        if not self.wanted(name):
            return
        begun = time.time()
        both, predictions, targets = inputs
        half = predictions.dtype in (torch.bfloat16, torch.float16)
        divisor = 1 if reduction == "rows" else predictions.shape[0]
        scale = torch.ones(predictions.shape[0], dtype=torch.float64, device=predictions.device) / divisor
        if weights is not None:
            scale *= weights
        exact = exact_rows(form, predictions, targets) * scale
        if reduction != "rows":
            exact = exact.sum()

        def error_of(value):
            return ((value.double() - exact).norm() / exact.norm()).item()

        ours = KlCall(form, predictions, targets, backward, None, reduction, weights)
        row = {"id": name, "form": form, "shape": list(predictions.shape),
               "dtype": str(predictions.dtype).replace("torch.", ""), "value": exact.mean().item()}
        row["error"] = error_of(ours())
        wide = KlCall(form, predictions, targets, False, torch.float64, reduction, weights)
        row["error_before_rounding"] = error_of(wide())
        del wide
        row["workspace_bytes"] = ours.workspace_bytes
        row["extra_bytes"] = ours.workspace_bytes
        if backward:
            row["grad_error"] = gradient_error(form, predictions, targets, ours.gradient, scale)
            row["extra_bytes"] += ours.gradient.numel() * ours.gradient.element_size()
        runs = {"ours": ours}
        if backward:
            gradient = ours.gradient
            runs["floor"] = lambda: torch.add(predictions, targets, out=gradient)
        else:
            runs["floor"] = plain_read(both)

        through = Rival(onepass_loss(form, reduction, weights), predictions, targets, backward)
        through()
        row["pytorch"] = {"extra_bytes": peak_growth(through)}
        runs["pytorch"] = through

        rivals = {"eager": Rival(torch_loss(form, False, reduction, weights), predictions, targets, backward)}
        if self.arguments.compile:
            torch.compiler.reset()
            compiled = torch.compile(torch_loss(form, half, reduction, weights), dynamic=False)
            rivals["compile"] = Rival(compiled, predictions, targets, backward)
        row["rivals"] = {}
        for rival_name, rival in list(rivals.items()):
            try:
                rival()  # compiles
                value, gradient_made = rival.outcome()
                row["rivals"][rival_name] = {"error": error_of(value.detach())}
                if backward:
                    row["rivals"][rival_name]["grad_error"] = gradient_error(form, predictions, targets, gradient_made,
                                                                               scale)
                del value, gradient_made
                row["rivals"][rival_name]["extra_bytes"] = peak_growth(rival)
                runs[rival_name] = rival
            except Exception as failure:  # a rival that cannot do it is reported, not fatal
                row["rivals"][rival_name] = {"failed": str(failure).splitlines()[0][:200]}
                torch.cuda.empty_cache()
        if half and "compile" in row["rivals"]:
            row["rivals"]["compile"]["note"] = "inputs cast to float32 inside the compiled function"

        self.finish(row, runs, begun, small)
        del ours, runs, rivals, through, both, predictions, targets, inputs
        gc.collect()
        torch.cuda.empty_cache()

    def both_ways(self, name, form, make, small=False, backward=True, **more):
        inputs = make()
        self.row(name + "_forward", form, inputs, False, small, **more)
        if backward:
            self.row(name + "_forward_backward", form, inputs, True, small, **more)
        del inputs
        torch.cuda.empty_cache()

    def all(self):
        n = 2048 if self.arguments.quick else 16384
        f32 = torch.float32

        def founding(form, rows, columns, dtype, shift=0):
            return lambda: founding_inputs(form, rows, columns, dtype, shift)
        self.both_ways("p1", "probs_probs", founding("probs_probs", n, n, f32))
        self.both_ways("p1_bf16", "probs_probs", founding("probs_probs", n, n, torch.bfloat16))
        self.both_ways("p1_f16", "probs_probs", founding("probs_probs", n, n, torch.float16), backward=False)
        self.both_ways("p1_f64", "probs_probs", founding("probs_probs", n, n, torch.float64))
        for form in ("log_probs_probs", "log_probs_log_probs"):
            self.both_ways("kl_" + form, form, founding(form, n, n, f32))
        for rows, columns in ((1, 1000), (128, 1000), (4096, 1024)):
            self.both_ways("kl_%dx%d" % (rows, columns), "probs_probs", founding("probs_probs", rows, columns, f32),
                           small=True)
        self.both_ways("kl_16384x16381", "probs_probs", founding("probs_probs", n, n - 3, f32))
        self.both_ways("kl_1x300000000", "probs_probs",
                       founding("probs_probs", 1, 3000000 if self.arguments.quick else 300000000, f32))
        self.both_ways("kl_misaligned", "probs_probs", founding("probs_probs", n, n, f32, 1))
        weights = torch.rand(n, device="cuda", dtype=f32) + 0.5
        self.both_ways("kl_rows", "probs_probs", founding("probs_probs", n, n, f32), reduction="rows")
        self.both_ways("kl_rows_weights", "probs_probs", founding("probs_probs", n, n, f32), weights=weights)
        for rows, columns in ((1000000, 10), (65536, 1000)):
            rows //= 16 if self.arguments.quick else 1
            self.both_ways("kl_rows_%dx%d" % (rows, columns), "probs_probs",
                           founding("probs_probs", rows, columns, f32), reduction="rows")
        self.both_ways("kl_transposed", "probs_probs", lambda: transposed_inputs(n, f32))
        for name, difference in (("6e-3", 0.386), ("8e-5", 0.0435), ("8e-7", 0.0044)):
            inputs = close_inputs(n, n, difference)
            self.row("kl_small_" + name, "probs_probs", inputs, False)
            del inputs
        gpu_losses.rows(self)
        gpu_linear_losses.rows(self)
        gpu_head.rows(self)
        if self.wanted("products"):
            self.products = gpu_products.entries(self)


# ---- the machine -----------------------------------------------------------------------------------------------------

def query(fields):
    """What nvidia-smi says, or None."""
    try:
        command = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits", "-i", "0"]
        done = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True, check=True)
        return dict(zip(fields, [word.strip() for word in done.stdout.strip().split(",")]))
    except (OSError, subprocess.CalledProcessError):
        return None


def short_name(device):
    """"NVIDIA H200" -> "h200"; "NVIDIA A100-SXM4-80GB" -> "a100"."""
    words = re.sub(r"(?i)nvidia|geforce|tesla", "", device).strip().split()
    return re.sub(r"[^a-z0-9]", "", words[0].split("-")[0].lower()) if words else "gpu"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", default="build/gpu", help="logs of the tests that ran")
    parser.add_argument("--out", default="", help="the result file; default bench/results/<gpu>.json")
    parser.add_argument("--only", default="", help="rows whose id matches; writes only with --out")
    parser.add_argument("--quick", action="store_true", help="small shapes, few rounds; writes only with --out")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_bench.py: PyTorch finds no GPU")
    begun = time.time()
    device = torch.cuda.get_device_name(0)
    tests, programs = evidence.read_logs(os.path.join(ROOT, arguments.logs))
    bench = Bench(arguments)
    bench.all()
    smi = query(["driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit"]) or {}
    result = {
        "schema": 1,
        "device": device,
        "driver": smi.get("driver_version", "unknown"),
        "clock": {"sm_mhz": smi.get("clocks.sm"), "sm_max_mhz": smi.get("clocks.max.sm"),
                  "memory_mhz": smi.get("clocks.mem"), "power_limit_w": smi.get("power.limit")},
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "digest": evidence.digest(),
        "torch": torch.__version__,
        "protocol": "256 MB written before each run, CUDA events, median, quantiles 0.2 and 0.8, contestants in turn",
        "tests": tests,
        "programs": programs,
        "rows": bench.rows,
        "products": bench.products,
    }
    path = arguments.out
    if not path and not arguments.quick and not arguments.only:
        path = os.path.join(ROOT, "bench", "results", short_name(device) + ".json")
    if path:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
        print("wrote %s, %d rows, %d products, %.0f s" % (path, len(bench.rows), len(bench.products),
                                                          time.time() - begun))
    return 1 if tests["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
