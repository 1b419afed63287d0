"""Losses from hidden states on a GPU, for gpu_bench.py, which has the protocol.

ours is the library by itself: the value and the gradients to hidden states and weight, if asked for, in one call.
"pytorch" is onepass.torch with autograd, which multiplies the gradients by the upstream one. The floor is the products
that cannot be avoided, torch.mm's, with logits as a whole: three for a loss with gradients, one more for the teacher of
a divergence, one for log-probabilities. goal_ms is a multiple of the floor of the same run: goal_of_floor.
eager and compile are F.linear and PyTorch's loss, compile of logits in float32. error is that of the loss relative to
float64 of all rows, of log-probabilities in the Frobenius norm; grad_error that of the gradient to 16 hidden states.
"""
import collections
import gc
import time

import torch
import torch.nn.functional as F

from calls import DIVERGENCES, Call, bytes_of, computed, empty
from losses import EXACT_ROWS, LOSSES, relative
from onepass import _native, library
import onepass.torch

ROUNDS = 10  # of rows that last tens of milliseconds
_CHUNK = 64 << 20  # elements in float64 at once

# goal: of the floor; rows, depth, columns; compiled: whether torch.compile is worth its time.
Row = collections.namedtuple("Row", "loss dtype shape goal compiled", defaults=(True,))
BF16, F32 = torch.bfloat16, torch.float32

ROWS = {
    "linear_cross_entropy_bf16_8192x4096x128256": Row("cross_entropy", BF16, (8192, 4096, 128256), 1.05),
    "linear_cross_entropy_bf16_8192x2304x256000": Row("cross_entropy", BF16, (8192, 2304, 256000), 1.08, False),
    "linear_kl_bf16_8192x4096x128256": Row("kl", BF16, (8192, 4096, 128256), 1.08, False),
    "linear_token_log_probs_bf16_8192x4096x128256": Row("token_log_probs", BF16, (8192, 4096, 128256), 1.08, False),
    "linear_cross_entropy_fp32_4096x2048x32000": Row("cross_entropy", F32, (4096, 2048, 32000), None, False),
}


class Inputs:
    """Hidden states and weights whose logits have a deviation of 2, and labels; of a divergence a teacher's, too."""

    def __init__(self, spec, shape, device):
        rows, depth, columns = shape
        generator = torch.Generator(device=device).manual_seed(5)

        def random(*extents, deviation=1.0):
            return torch.empty(*extents, dtype=spec.dtype, device=device).normal_(0, deviation, generator=generator)
        self.hidden, self.weight = random(rows, depth), random(columns, depth, deviation=2 / depth ** 0.5)
        self.labels = torch.randint(columns, (rows,), device=device, generator=generator)
        self.teacher = ()
        if spec.loss in DIVERGENCES:
            self.teacher = random(rows, depth), random(columns, depth, deviation=2 / depth ** 0.5)

    def logits(self, dtype, rows=slice(None)):
        """Of the student and, if there is one, of the teacher."""
        sides = [(self.hidden, self.weight)] + ([self.teacher] if self.teacher else [])
        return [F.linear(hidden[rows].to(dtype), weight.to(dtype)) for hidden, weight in sides]


class LinearLossCall(Call):
    """The library's: results, and gradients to hidden states and weight."""

    def __init__(self, spec, inputs):
        hidden, weight = inputs.hidden, inputs.weight
        rows, none = hidden.shape[0], (None,)
        if spec.loss == "token_log_probs":
            self.results, self.gradients = (empty(hidden, (rows, 1), computed(hidden)),
                                            empty(hidden, (rows,), computed(hidden))), ()
            super().__init__(library.LINEAR_TOKEN_LOG_PROBS, hidden, inputs.labels.unsqueeze(-1), None, *self.results,
                             None, weight, None, _native.STRICT, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
            return
        self.results = (empty(hidden, (), computed(hidden)),)
        self.gradients = empty(hidden), empty(weight)
        divergence = DIVERGENCES.get(spec.loss)
        common = (hidden, None if divergence else inputs.labels) + none * 6 + (self.results[0], self.gradients[0]) \
            + none * 4
        own = weight, None, self.gradients[1], None
        numbers = (_native.BATCHMEAN if divergence else _native.VALID, _native.STRICT) + (0.0,) * 10
        if divergence:
            super().__init__(library.LINEAR_DIVERGENCE, *common, *inputs.teacher, None, None, None, *own, *numbers,
                             *divergence, 0.0, 0.0, 0.0, 0.0, 0.0)
        else:
            super().__init__(library.LINEAR_CROSS_ENTROPY, *common, *own, *numbers, 0.0)

    def __call__(self):
        library.call(*self.arguments)
        return self.results, self.gradients


class Pass:
    """The same in PyTorch: a function of hidden states, weight and the rest of the inputs."""

    def __init__(self, function, inputs, backward):
        self.function, self.inputs, self.backward = function, inputs, backward
        self.leaves = [tensor.detach().requires_grad_(backward) for tensor in (inputs.hidden, inputs.weight)]

    def __call__(self):
        if not self.backward:
            with torch.no_grad():
                return self.function(*self.leaves, self.inputs), ()
        results = self.function(*self.leaves, self.inputs)
        return results, torch.autograd.grad(results[0], self.leaves)


def through_onepass(name):
    def cross_entropy(hidden, weight, inputs):
        return (onepass.torch.linear_cross_entropy(hidden, weight, inputs.labels),)

    def kl(hidden, weight, inputs):
        return (onepass.torch.linear_kl_div(hidden, weight, *inputs.teacher),)

    def token_log_probs(hidden, weight, inputs):
        return onepass.torch.linear_token_log_probs(hidden, weight, inputs.labels, return_entropy=True)
    return {"cross_entropy": cross_entropy, "kl": kl, "token_log_probs": token_log_probs}[name]


def in_torch(name, in_float):
    loss = LOSSES[name]

    def function(hidden, weight, inputs):
        logits = [F.linear(hidden, weight)] + ([F.linear(*inputs.teacher)] if inputs.teacher else [])
        if in_float:
            logits = [each.float() for each in logits]
        return loss(*logits, *(() if inputs.teacher else (inputs.labels,)))
    return function


def products(spec, inputs, gradients):
    """A run of the products that cannot be avoided."""
    hidden, weight = inputs.hidden, inputs.weight
    logits = torch.empty(hidden.shape[0], weight.shape[0], dtype=hidden.dtype, device=hidden.device)

    def run():
        if inputs.teacher:
            torch.mm(inputs.teacher[0], inputs.teacher[1].t(), out=logits)
        torch.mm(hidden, weight.t(), out=logits)
        if gradients:
            torch.mm(logits, weight, out=gradients[0])
            torch.mm(logits.t(), hidden, out=gradients[1])
    return run


class Exact:
    """Results in float64, and the gradient to some hidden states."""

    def __init__(self, spec, inputs):
        rows, columns = inputs.hidden.shape[0], inputs.weight.shape[0]
        loss, step, parts = LOSSES[spec.loss], max(1, _CHUNK // columns), []
        self.is_mean = spec.loss != "token_log_probs"
        for first in range(0, rows, step):
            cut = slice(first, min(first + step, rows))
            parts.append((cut.stop - first, self._of(loss, inputs, cut)))
        if self.is_mean:
            self.results = (sum(count * results[0] for count, results in parts) / rows,)
        else:
            self.results = tuple(torch.cat(each) for each in zip(*(results for _, results in parts)))
        self.rows = torch.linspace(0, rows - 1, min(rows, EXACT_ROWS), device=inputs.hidden.device).round().long()
        self.gradient = None
        if self.is_mean:
            logits = inputs.logits(torch.float64, self.rows)
            logits[0].requires_grad_()
            value = loss(*logits, *(() if inputs.teacher else (inputs.labels[self.rows],)))[0]
            of_logits = torch.autograd.grad(value * (len(self.rows) / rows), logits[0])[0]
            self.gradient = of_logits @ inputs.weight.double()

    @staticmethod
    def _of(loss, inputs, cut):
        return loss(*inputs.logits(torch.float64, cut), *(() if inputs.teacher else (inputs.labels[cut],)))

    def errors(self, results, gradients):
        found = {"error": max(relative(mine.reshape(exact.shape), exact)
                              for mine, exact in zip(results, self.results))}
        if self.gradient is not None:
            found["grad_error"] = relative(gradients[0][self.rows], self.gradient)
        return found


def loss_row(bench, name, spec):
    begun = time.time()
    rows, depth, columns = shape = tuple(min(extent, 200) for extent in spec.shape) if bench.quick else spec.shape
    inputs = Inputs(spec, shape, bench.device)
    exact, backward = Exact(spec, inputs), spec.loss != "token_log_probs"
    ours = LinearLossCall(spec, inputs)
    row = {"id": name, "loss": "linear_" + spec.loss, "shape": [rows, depth, columns],
           "dtype": str(spec.dtype).replace("torch.", "")}
    row.update(exact.errors(*ours()))
    row["workspace_bytes"] = ours.workspace_bytes
    row["extra_bytes"] = ours.workspace_bytes + bytes_of(ours.gradients)
    row["host_ms"] = bench.host_milliseconds(ours, 2)
    row["floor"] = "the products, by torch.mm"
    runs = {"ours": ours}
    rivals = {"pytorch": Pass(through_onepass(spec.loss), inputs, backward),
              "eager": Pass(in_torch(spec.loss, False), inputs, backward)}
    if bench.compile and spec.compiled:
        torch.compiler.reset()
        rivals["compile"] = Pass(torch.compile(in_torch(spec.loss, True), dynamic=False), inputs, backward)
    row["rivals"] = {}
    for rival, run in rivals.items():
        try:
            found = exact.errors(*run())
            found.update(extra_bytes=bench.peak_growth(run), host_ms=bench.host_milliseconds(run, 2))
            runs[rival] = run
        except Exception as failure:  # a rival that cannot do it is reported, not fatal
            if rival == "pytorch":
                raise
            found = {"failed": (str(failure).splitlines() or ["?"])[0][:200]}
        if rival == "pytorch":
            row["pytorch"] = found
        else:
            row["rivals"][rival] = found
        gc.collect()
        torch.cuda.empty_cache()
    del exact
    runs["floor"] = products(spec, inputs, ours.gradients)
    bench.finish(row, runs, begun, False, ROUNDS)
    if spec.goal is not None:
        row["goal_of_floor"] = spec.goal
        row["goal_ms"] = round(spec.goal * row["floor_ms"], 6)


def rows(bench):
    for name, spec in ROWS.items():
        if bench.wanted(name):
            loss_row(bench, name, spec)
            gc.collect()
            torch.cuda.empty_cache()
