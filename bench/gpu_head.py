"""The rows of the head and of linear, for gpu_bench.py: P2, softmax(scale * bn(gemm(x))), 1024 x 8192 x 8192.

As for KL ours (the library by itself), onepass.torch, PyTorch eager, torch.compile and the floor take turns on the same
inputs. What differs: floor_ms is the matrix products alone, and error is that of the output in the Frobenius norm,
relative to float64 of the same stored numbers, and grad_error the larger of those of the gradients to input and weight.
p2_tf32 allows TF32, to everyone; the float32 rows allow it to nobody. torch.compile is left out of rows where it costs
time and tells nothing new: eval, and the linear layer alone, which is one product.

The floor's products are made by torch.mm in the same type, but not in the float32 rows: there ours is the library's own
product on tensor cores, which makes three products of fp16 operands for each one, and torch.mm in fp32, cuBLAS's, takes
several times as long. Their floor is what the tensor cores need for that: torch.mm of fp16 operands that are three
times as deep. Two more calls of ours take turns in these rows: "vendor" multiplies by cuBLAS in fp32
(ONEPASS_FP32_VENDOR), and "prepared", in forward passes, has the weight in the form of our product already, made once.
"""
import copy
import gc
import importlib.util
import os
import time

import torch
import torch.nn.functional as F

import onepass.torch
from calls import FP32_FULL, FP32_TF32, FP32_VENDOR, HeadCall, LinearCall

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHAPE, QUICK_SHAPE = (1024, 8192, 8192), (96, 256, 200)  # batch, inputs, outputs

# id -> type, TF32 allowed, training, backward, torch.compile
ROWS = {
    "p2_bf16_train": (torch.bfloat16, False, True, False, True),
    "p2_bf16_forward_backward": (torch.bfloat16, False, True, True, True),
    "p2_bf16_eval": (torch.bfloat16, False, False, False, False),
    "p2_tf32_train": (torch.float32, True, True, False, True),
    "p2_fp32_train": (torch.float32, False, True, False, True),
    "p2_fp32_forward_backward": (torch.float32, False, True, True, True),
    "p2_fp32_eval": (torch.float32, False, False, False, False),
}


def problem():
    """The module problems/linear_bn_softmax.py, whose Model is what is replaced."""
    path = os.path.join(ROOT, "problems", "linear_bn_softmax.py")
    spec = importlib.util.spec_from_file_location("linear_bn_softmax", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def relative_error(found, exact):
    """||found - exact|| / ||exact||, in float64."""
    return ((found.detach().double() - exact).norm() / exact.norm()).item()


class Pass:
    """A model's forward pass, or with an upstream gradient both passes; the gradients to input and weight are the
    first two of those made."""

    def __init__(self, model, x, upstream, called=None):
        self.called = model if called is None else called
        self.x, self.upstream = x.detach().requires_grad_(upstream is not None), upstream
        self.parameters = [self.x, model.gemm.weight] + [
            parameter for name, parameter in model.named_parameters() if name != "gemm.weight"]

    def __call__(self):
        if self.upstream is None:
            with torch.no_grad():
                return self.called(self.x), ()
        output = self.called(self.x)
        return output, torch.autograd.grad(output, self.parameters, self.upstream)


class Exact:
    """An output and gradients to input and weight, in float64."""

    def __init__(self, output, gradients=()):
        self.output, self.gradients = output.detach(), gradients[:2]

    def errors(self, output, gradients=()):
        found = {"error": relative_error(output, self.output)}
        if self.gradients:
            found["grad_error"] = max(relative_error(a, b) for a, b in zip(gradients, self.gradients))
        return found


def exact_pass(model, x, upstream):
    """Of the numbers as they are stored."""
    wide = copy.deepcopy(model).double()
    return Exact(*Pass(wide, x.double(), None if upstream is None else upstream.double())())


def mm_floor(x, weight, backward):
    """The matrix products that nobody can do without: one, or with backward three. (what it is, in words; its run)"""
    with torch.no_grad():
        y = x.new_empty(x.shape[0], weight.shape[0])
        dx, dw = (torch.empty_like(x), torch.empty_like(weight)) if backward else (None, None)

    def run():
        with torch.no_grad():
            torch.mm(x, weight.t(), out=y)
            if backward:
                torch.mm(y, weight, out=dx)
                torch.mm(y.t(), x, out=dw)
    return "the matrix products alone, by torch.mm", run


def split_floor(x, weight, backward):
    """The same for products whose operands are two fp16 each: high high + high low + low high is one product of fp16
    operands that is three times as deep. All are m x 3k by 3k x n with the rows of both operands contiguous."""
    (m, k), n = x.shape, weight.shape[0]
    operands = []
    for rows, columns, depth in ((m, n, k), (m, k, n), (n, k, m)) if backward else ((m, n, k),):
        a, b = ((torch.rand(side, 3 * depth, device=x.device) - 0.5).half() for side in (rows, columns))
        operands.append((a, b.t(), a.new_empty(rows, columns)))

    def run():
        for a, b, out in operands:
            torch.mm(a, b, out=out)
    return "the matrix products alone, three of fp16 operands for each one, by torch.mm", run


def start_row(name, operator, x, outputs, ours, exact):
    row = {"id": name, "operator": operator, "shape": [x.shape[0], x.shape[1], outputs],
           "dtype": str(x.dtype).replace("torch.", "")}
    ours()
    row.update(exact.errors(ours.output, getattr(ours, "gradients", ())))
    row["extra_bytes"] = ours.extra_bytes
    return row


def add_contestants(bench, row, runs, exact, through, rivals):
    """onepass.torch and the rivals, each with its error and its memory; one that fails is reported, not fatal."""
    through()
    row["pytorch"] = dict(exact.errors(*through()), extra_bytes=bench.peak_growth(through))
    runs["pytorch"] = through
    row["rivals"] = {}
    for name, rival in rivals.items():
        try:
            rival()  # compiles
            size = rival.call.extra_bytes if isinstance(rival, Ours) else bench.peak_growth(rival)
            row["rivals"][name] = dict(exact.errors(*rival()), extra_bytes=size)
            runs[name] = rival
        except Exception as failure:
            row["rivals"][name] = {"failed": str(failure).splitlines()[0][:200]}


class Ours:
    """Another call of the library as a rival."""

    def __init__(self, call):
        self.call = call

    def __call__(self):
        self.call()
        return self.call.output, getattr(self.call, "gradients", ())


def p2_row(bench, name, model, compiled, x, upstream):
    """One row; the model is in the mode that is measured, and everyone starts from its state."""
    begun = time.time()
    _, tf32, train, backward, _ = ROWS[name]
    model.train(train)
    upstream = upstream if backward else None
    exact = exact_pass(model, x, upstream)
    outputs, inputs = model.gemm.weight.shape
    ours_model = onepass.torch.LinearBatchNormSoftmax(inputs, outputs, device=x.device, dtype=x.dtype)
    ours_model.load_state_dict(model.state_dict())
    split = x.dtype is torch.float32 and not tf32
    ours = HeadCall(copy.deepcopy(model), x, upstream, FP32_TF32 if tf32 else FP32_FULL)
    row = start_row(name, "head", x, outputs, ours, exact)
    row.update(train=train, tf32=tf32)
    row["floor"], floor = (split_floor if split else mm_floor)(x, model.gemm.weight.detach(), backward)
    rivals = {"eager": Pass(model, x, upstream)}
    if compiled is not None:
        rivals["compile"] = Pass(model, x, upstream, compiled)
    if split:
        rivals["vendor"] = Ours(HeadCall(copy.deepcopy(model), x, upstream, FP32_VENDOR))
        if not backward:
            rivals["prepared"] = Ours(HeadCall(copy.deepcopy(model), x, prepared=True))
    runs = {"ours": ours, "floor": floor}
    add_contestants(bench, row, runs, exact, Pass(ours_model.train(train), x, upstream), rivals)
    del exact
    bench.finish(row, runs, begun)


def p2_inputs(bench, dtype):
    """(model, x, upstream): the model as it is made, its running statistics those of the batch."""
    batch, inputs, outputs = QUICK_SHAPE if bench.quick else SHAPE
    torch.manual_seed(3)
    with torch.device(bench.device):
        model = problem().Model(inputs, outputs)
    x = torch.rand(batch, inputs, device=bench.device)
    with torch.no_grad():
        y = model.gemm(x)
        model.bn.running_mean.copy_(y.mean(0))
        model.bn.running_var.copy_(y.var(0))
    return model.to(dtype), x.to(dtype), torch.randn(batch, outputs, device=bench.device).to(dtype)


def linear_row(bench, name="linear_fp32"):
    begun = time.time()
    model, x, _ = p2_inputs(bench, torch.float32)
    weight, bias = model.gemm.weight.detach(), model.gemm.bias.detach()
    exact = Exact(F.linear(x.double(), weight.double(), bias.double()))
    ours = LinearCall(x, weight, bias)
    row = start_row(name, "linear", x, weight.shape[0], ours, exact)
    row["floor"], floor = split_floor(x, weight, False)
    rivals = {"eager": lambda: (F.linear(x, weight, bias), ()),
              "vendor": Ours(LinearCall(x, weight, bias, FP32_VENDOR)),
              "prepared": Ours(LinearCall(x, weight, bias, prepared=True))}
    runs = {"ours": ours, "floor": floor}
    add_contestants(bench, row, runs, exact, lambda: (onepass.torch.linear(x, weight, bias), ()), rivals)
    bench.finish(row, runs, begun)


def clean(bench):
    gc.collect()
    if bench.device == "cuda":
        torch.cuda.empty_cache()


def rows(bench):
    """All of them that are wanted, one type after the other: a compiled model serves every row of its type."""
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for dtype in (torch.bfloat16, torch.float32):
            wanted = [name for name, row in ROWS.items() if row[0] is dtype and bench.wanted(name)]
            if not wanted:
                continue
            model, x, upstream = p2_inputs(bench, dtype)
            compiled = None
            if bench.compile and any(ROWS[name][4] for name in wanted):
                torch.compiler.reset()
                compiled = torch.compile(model, dynamic=False)
            for name in wanted:
                torch.backends.cuda.matmul.allow_tf32 = ROWS[name][1]
                p2_row(bench, name, model, compiled if ROWS[name][4] else None, x, upstream)
                clean(bench)
            del model, x, upstream, compiled
            clean(bench)
        torch.backends.cuda.matmul.allow_tf32 = False
        if bench.wanted("linear_fp32"):
            linear_row(bench)
            clean(bench)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
