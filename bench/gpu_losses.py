"""Losses from logits on a GPU, for gpu_bench.py, which has the protocol.

ours is the library by itself (calls.py). onepass.torch gives these losses to the library on the devices of
onepass.torch.losses_call; on others they are PyTorch's operations there, and no "pytorch" is measured: the row says so.
The floor is a plain read of the logits; beside a gradient, torch.add of two logits into it, or of one a copy. The
gradient of token_log_probs is a second call, which reads the logits again, and so does its floor.
error is relative to float64 of all rows; of token_log_probs the larger of its two results', in the Frobenius norm.
grad_error is that of 16 rows of the gradient, from the first to the last. eager and compile cast half types to float32
first, eager_half does not. host_ms is what one call costs the host. goal_ms is what the project set out to reach.
"""
import collections
import gc
import time

import torch

from calls import LossCall, TokenCall, TopKCall, bytes_of, plain_read
from losses import LOSSES, Exact, Inputs, Pass, in_float
from onepass.torch import losses_call
import onepass.torch

ROUNDS = 15  # of rows that last tens of milliseconds in eager mode
COMPILE_SECONDS = 30  # in all; what comes later is measured without torch.compile, and says so

Row = collections.namedtuple("Row", "loss dtype shape backward goal small dynamic",
                             defaults=(None, False, False))  # goal in ms
BF16, F32 = torch.bfloat16, torch.float32
VOCABULARY = 8192, 128256
WIDTHS = 100, 1000, 32000, 50257, 128257, 151936, 256000
ELEMENTS = 1 << 27  # of a width's logits

ROWS = {
    "kl_logits_bf16_forward_backward": Row("kl", BF16, VOCABULARY, True, 1.48),
    "cross_entropy_bf16_forward_backward": Row("cross_entropy", BF16, VOCABULARY, True, 1.03),
    "reverse_kl_logits_bf16_forward_backward": Row("reverse_kl", BF16, VOCABULARY, True, 1.48),
    "js_logits_bf16_forward_backward": Row("js", BF16, VOCABULARY, True, 2.15),
    "tv_logits_bf16_forward_backward": Row("tv", BF16, VOCABULARY, True, 1.60),
    "kl_top_k_bf16_forward_backward": Row("kl_top_k", BF16, VOCABULARY, True, 1.06),
    "kl_logits_bf16_forward": Row("kl", BF16, VOCABULARY, False, 0.94),
    "token_log_probs_bf16_forward": Row("token_log_probs", BF16, VOCABULARY, False, 0.48),
    "token_log_probs_bf16_forward_backward": Row("token_log_probs", BF16, VOCABULARY, True, 1.48),
    "kl_logits_fp32_4096x32000_forward_backward": Row("kl", F32, (4096, 32000), True, 0.38),
    "kl_logits_fp32_256x1000_forward_backward": Row("kl", F32, (256, 1000), True, 0.10, True),
    "kl_logits_fp32_4096x1000_forward_backward": Row("kl", F32, (4096, 1000), True, 0.10, True),
    "kl_logits_fp32_65536x100_forward_backward": Row("kl", F32, (65536, 100), True, 0.12, True),
}
for _loss, _name in (("kl", "kl_logits"), ("cross_entropy", "cross_entropy")):
    for _width in WIDTHS:
        ROWS["%s_bf16_width_%d_forward_backward" % (_name, _width)] = Row(
            _loss, BF16, (ELEMENTS // _width, _width), True, None, False, True)

_THROUGH = {
    "kl": lambda x, y: (onepass.torch.kl_div_logits(x, y),),
    "reverse_kl": lambda x, y: (onepass.torch.reverse_kl_logits(x, y),),
    "js": lambda x, y: (onepass.torch.js_logits(x, y),),
    "tv": lambda x, y: (onepass.torch.tv_logits(x, y),),
    "kl_top_k": lambda x, teacher: (onepass.torch.kl_div_top_k(x, *teacher),),
    "cross_entropy": lambda x, labels: (onepass.torch.cross_entropy(x, labels),),
    "token_log_probs": lambda x, indices: onepass.torch.token_log_probs(x, indices, return_entropy=True),
}


def shape_of(bench, spec):
    rows, columns = spec.shape
    return (min(rows, 40), min(columns, 600)) if bench.quick else spec.shape


def call_of(spec, inputs):
    if spec.loss == "token_log_probs":
        return TokenCall(inputs.logits, inputs.other, inputs.upstream if spec.backward else None)
    if spec.loss == "kl_top_k":
        return TopKCall(inputs.logits, inputs.other, spec.backward)
    return LossCall(spec.loss, inputs.logits, inputs.other, spec.backward)


def floor_of(spec, inputs, gradient):
    """(what it is, in words; its run)"""
    logits = inputs.logits
    if not spec.backward:
        return "a plain read of the logits", plain_read(inputs.memory)
    if inputs.memory.shape[0] == 2:
        return "torch.add of the logits", lambda: torch.add(inputs.memory[0], inputs.memory[1], out=gradient)
    if spec.loss != "token_log_probs":
        return "a copy of the logits", lambda: gradient.copy_(logits)
    read = plain_read(logits)

    def run():
        read()
        gradient.copy_(logits)
    return "a plain read and a copy of the logits", run


class Compiler:
    """torch.compile within COMPILE_SECONDS. Losses of many shapes are compiled once, for any."""

    def __init__(self):
        self.spent, self.made = 0.0, {}

    def of(self, spec):
        if not spec.dynamic:
            torch.compiler.reset()
            self.made = {}
            return torch.compile(in_float(spec.loss), dynamic=False)
        if spec.loss not in self.made:
            self.made[spec.loss] = torch.compile(in_float(spec.loss), dynamic=True)
        return self.made[spec.loss]

    def first(self, rival):
        begun = time.time()
        try:
            return rival()
        finally:
            self.spent += time.time() - begun


def rivals_of(bench, spec, inputs, compiler):
    half = spec.dtype is not F32
    rivals = {"eager": Pass(in_float(spec.loss) if half else LOSSES[spec.loss], inputs, spec.backward)}
    if half and spec.loss == "cross_entropy":
        rivals["eager_half"] = Pass(LOSSES[spec.loss], inputs, spec.backward)
    if bench.compile:
        rivals["compile"] = Pass(compiler.of(spec), inputs, spec.backward)
    return rivals


def add_contestants(bench, row, runs, spec, inputs, exact, compiler):
    if losses_call.is_served(inputs.logits):
        through = runs["pytorch"] = Pass(_THROUGH[spec.loss], inputs, spec.backward)
        through()
        row["pytorch"] = dict(exact.errors(*through()), extra_bytes=bench.peak_growth(through),
                              host_ms=bench.host_milliseconds(through))
    else:
        row["through"] = "the library's binding, onepass.library: onepass.torch has PyTorch's operations here"
    row["rivals"] = {}
    for name, rival in rivals_of(bench, spec, inputs, compiler).items():
        try:
            if name == "compile" and compiler.spent > COMPILE_SECONDS:
                raise RuntimeError("left out: %d s of compiling are spent" % COMPILE_SECONDS)
            made = compiler.first(rival) if name == "compile" else rival()
            found = exact.errors(*made)
            del made
            found.update(extra_bytes=bench.peak_growth(rival), host_ms=bench.host_milliseconds(rival))
            if name == "compile":
                found["dynamic"] = spec.dynamic
            row["rivals"][name] = found
            runs[name] = rival
        except Exception as failure:  # a rival that cannot do it is reported, not fatal
            row["rivals"][name] = {"failed": (str(failure).splitlines() or ["?"])[0][:200]}
            if bench.device == "cuda":
                torch.cuda.empty_cache()


def loss_row(bench, name, spec, compiler):
    begun = time.time()
    rows, columns = shape_of(bench, spec)
    inputs = Inputs(spec.loss, rows, columns, spec.dtype, bench.device)
    exact = Exact(spec.loss, inputs, spec.backward)
    ours = call_of(spec, inputs)
    row = {"id": name, "loss": spec.loss, "shape": [rows, columns], "dtype": str(spec.dtype).replace("torch.", "")}
    row.update(exact.errors(ours(), ours.gradient))
    row["workspace_bytes"] = ours.workspace_bytes
    row["extra_bytes"] = ours.workspace_bytes + bytes_of([ours.gradient])
    row["host_ms"] = bench.host_milliseconds(ours)
    if spec.goal is not None:
        row["goal_ms"] = spec.goal
    row["floor"], floor = floor_of(spec, inputs, ours.gradient)
    runs = {"ours": ours, "floor": floor}
    add_contestants(bench, row, runs, spec, inputs, exact, compiler)
    del exact
    # The floor writes over the gradient: errors are taken before.
    bench.finish(row, runs, begun, spec.small, ROUNDS)


def rows(bench):
    """All of them that are wanted, the first ones first while there is time to compile."""
    compiler = Compiler()
    for name, spec in ROWS.items():
        if bench.wanted(name):
            loss_row(bench, name, spec, compiler)
            if bench.device == "cuda":
                gc.collect()
                torch.cuda.empty_cache()
