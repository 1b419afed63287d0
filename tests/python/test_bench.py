"""What ./dev gpu measures with, tried on the CPU: the calls of bench/calls.py against PyTorch, the rows of
bench/gpu_head.py and bench/gpu_losses.py and the products of bench/gpu_products.py at a small size, bench/cpu_losses.py
likewise, the tables made of them, and what the digest of the evidence covers. What only a GPU has, a choice of fp32
products, is played by a stand-in (GpuLike)."""

import copy
import glob
import json
import math
import os
import re
import sys
import time

import pytest

import torch_samples as samples
from torch_samples import F, VERSION, torch

from onepass import _native, library

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import evidence  # noqa: E402
import releases  # noqa: E402
import table  # noqa: E402

P2_ROWS = {"p2_bf16_train", "p2_tf32_train", "p2_fp32_train", "p2_bf16_eval", "p2_fp32_eval",
           "p2_bf16_forward_backward", "p2_fp32_forward_backward", "linear_fp32"}


@pytest.fixture
def calls():
    if VERSION < (2, 1):
        pytest.skip("the benchmarks need PyTorch 2.1")
    import calls
    return calls


@pytest.fixture
def products(calls):
    import gpu_products
    return gpu_products


@pytest.fixture
def losses(calls, monkeypatch):
    import gpu_losses
    monkeypatch.setattr(gpu_losses, "plain_read", lambda tensor: tensor.sum)  # the library has it on a GPU alone
    return gpu_losses


@pytest.fixture
def heads(calls):
    import gpu_head
    return gpu_head


def off(found, exact):
    """Relative; NaN is not within any limit."""
    return float((found.detach().double() - exact.detach()).norm() / exact.detach().norm().clamp_min(1e-300))


def random_model(heads, generator, inputs, outputs):
    """In float64, none of its numbers at their first value."""
    model = heads.problem().Model(inputs, outputs).double()
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=torch.float64) + 0.1)
    return model


def test_kl_call(calls):
    p, t = samples.pair(samples.random("kl call"), (7, 33), "kl_div_probs")
    call = calls.KlCall("probs_probs", p, t, True, torch.float64)
    exact = F.kl_div(p.double().log(), t.double(), reduction="batchmean")
    assert abs(float(call()) / float(exact) - 1) < 1e-6
    assert off(call.gradient, -(t.double() / p.double()) / 7) < 1e-6
    log = calls.KlCall("log_probs_log_probs", p.log(), t.log(), False)
    assert abs(float(log()) / float(exact) - 1) < 1e-5
    exact = F.kl_div(p.double().log(), t.double(), reduction="none").sum(-1)
    rows = calls.KlCall("probs_probs", p, t, True, reduction="rows")
    assert off(rows(), exact) < 1e-6 and off(rows.gradient, -(t.double() / p.double())) < 1e-6
    weights = torch.rand(7, generator=samples.random("kl weights"))
    weighted = calls.KlCall("probs_probs", p, t, False, weights=weights)
    assert abs(float(weighted()) / float((exact * weights).sum() / 7) - 1) < 1e-6


def test_linear_call(calls):
    generator = samples.random("linear call")
    x, w, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 5), (4, 5), (4,)))
    assert off(calls.LinearCall(x, w, b)(), F.linear(x, w, b)) < 1e-14


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_head_call(calls, heads, train):
    generator = samples.random("head call %s" % train)
    model = random_model(heads, generator, 9, 6).train(train)
    x, upstream = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((11, 9), (11, 6)))
    theirs = copy.deepcopy(model)
    call = calls.HeadCall(model, x, upstream)
    output, gradients = heads.Pass(theirs, x, upstream)()
    assert off(call(), output) < 1e-12
    by_name = dict(zip(["x", "gemm.weight"] + [name for name, _ in model.named_parameters() if name != "gemm.weight"],
                       gradients))
    assert len(call.gradients) == len(by_name) == 6
    for name, made in zip(("x", "gemm.weight", "gemm.bias", "bn.weight", "bn.bias", "scale"), call.gradients):
        if name == "gemm.bias" and train:
            assert not made.any()
        else:
            assert off(made, by_name[name]) < 1e-11, name
    for (name, mine), (_, other) in zip(model.named_buffers(), theirs.named_buffers()):
        assert off(mine.double(), other.double()) < 1e-12, name
    forward = calls.HeadCall(model, x)
    heads_exact = heads.exact_pass(model, x, None)
    assert heads_exact.errors(forward())["error"] < 1e-12


LOSSES = ["kl", "reverse_kl", "js", "tv", "kl_top_k", "cross_entropy", "token_log_probs"]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_calls(calls, losses, name):
    """Results and gradient of the library's call are those of the loss in PyTorch, all rows of them, and of what is
    exact; so onepass.torch's. What is exact of some rows is exact of all."""
    import losses as work
    inputs = work.Inputs(name, 21, 37, torch.float64, "cpu", samples.random("loss call " + name).initial_seed() % 2**31)
    call = losses.call_of(losses.Row(name, torch.float64, None, True), inputs)
    results, gradient = work.Pass(work.LOSSES[name], inputs, True)()
    assert len(call()) == len(results)
    for mine, theirs in zip(call.results, results):
        assert off(mine, theirs) < 1e-12
    assert off(call.gradient, gradient) < 1e-12
    exact = work.Exact(name, inputs, True)
    assert len(exact.rows) == work.EXACT_ROWS and exact.rows[0] == 0 and exact.rows[-1] == 20
    for made in ((call.results, call.gradient), work.Pass(losses._THROUGH[name], inputs, True)()):
        assert all(error < 1e-12 for error in exact.errors(*made).values())
    forward = losses.call_of(losses.Row(name, torch.float64, None, False), inputs)
    assert forward.gradient is None and all(torch.equal(a, b) for a, b in zip(forward(), call.results))
    wrong = gradient.clone()
    wrong[-1] = float("nan")
    assert math.isnan(exact.errors(results, wrong)["grad_error"])


def test_exact_losses_in_parts(losses, monkeypatch):
    """The parts make the whole, also when the last one is shorter."""
    import losses as work
    for name in ("kl", "kl_top_k", "token_log_probs"):
        inputs = work.Inputs(name, 17, 40, torch.bfloat16, "cpu")
        monkeypatch.setattr(work, "_CHUNK", 1 << 20)
        whole = work.Exact(name, inputs, False).results
        monkeypatch.setattr(work, "_CHUNK", 5 * 40)
        assert max(off(a, b) for a, b in zip(work.Exact(name, inputs, False).results, whole)) < 1e-14


def test_prepared_weights_are_refused(calls, heads):
    """On the CPU, by the library, in its own words."""
    x, w = torch.rand(6, 5), torch.rand(4, 5)
    for call in (lambda: calls.LinearCall(x, w, None, prepared=True),
                 lambda: calls.HeadCall(heads.problem().Model(5, 4), x, prepared=True)):
        with pytest.raises(RuntimeError, match="^prepare_weight: handle: only one of a CUDA device"):
            call()


def test_the_plain_read(calls):
    """It reaches the library, which has it on a GPU alone."""
    with pytest.raises(RuntimeError, match="^read_probe: handle: it is the CPU's"):
        calls.plain_read(torch.zeros(17))()


class GpuLike:
    """The library on the CPU, with what it has on a GPU alone. A prepared weight is a copy of the weight. A linear
    layer by SPLIT, or by FULL with over 200 outputs, comes out larger by NUDGE, so that one can tell."""
    NUDGE = 2.0 ** -20

    def __init__(self, monkeypatch):
        self.real, self.real_size, self.asked, self.prepared_calls = library.call, library.workspace_size, set(), 0
        monkeypatch.setattr(library, "call", self.call)
        monkeypatch.setattr(library, "workspace_size", self.size)

    @staticmethod
    def without_planes(operator, arguments):
        place = {library.LINEAR: 3, library.HEAD: 9}.get(operator)
        if place is None:
            return arguments, None
        return arguments[:place] + (None,) + arguments[place + 1:], arguments[place]

    def size(self, operator, *arguments):
        if operator == library.PREPARE_WEIGHT:
            return 4 * arguments[0].numel()
        return self.real_size(operator, *self.without_planes(operator, arguments)[0])

    def call(self, operator, *arguments):
        products = arguments[-3]
        self.asked.add(products)
        if operator == library.PREPARE_WEIGHT:
            weight, _, _, planes = arguments
            assert products in (_native.FP32_FULL, _native.FP32_SPLIT)
            return planes.copy_(weight.view(torch.uint8).flatten())
        arguments, planes = self.without_planes(operator, arguments)
        if planes is not None:
            assert torch.equal(planes, arguments[1].view(torch.uint8).flatten())
            self.prepared_calls += 1
        self.real(operator, *arguments)
        if operator == library.LINEAR:
            output = arguments[4]
            if products == _native.FP32_SPLIT or (products == _native.FP32_FULL and output.shape[1] > 200):
                output.mul_(1 + self.NUDGE)


@pytest.fixture
def gpu_like(monkeypatch):
    return GpuLike(monkeypatch)


class Bench:
    """gpu_bench.py's, on the CPU: times of rows are taken by the clock, once; those of products are made up."""
    device, quick, compile = "cpu", True, True
    made_up = {"vendor": 2.0, "split": 1.0, "prepared": 0.5}

    def __init__(self):
        self.rows = []

    def wanted(self, name):
        return True

    def peak_growth(self, run):
        run()
        return 0

    def milliseconds(self, runs, rounds):
        assert list(runs) == list(self.made_up) and rounds > 0
        for run in runs.values():
            run()
        return dict(self.made_up)

    def host_milliseconds(self, run, calls=8):
        run()
        return 0.5

    def expected(self, name):
        expected = {"ours", "floor", "pytorch", "eager"}
        if name.endswith(("train", "backward")):
            expected.add("compile")
        if "fp32" in name:
            expected |= {"vendor"} if "backward" in name else {"vendor", "prepared"}
        return expected

    def finish(self, row, runs, begun):
        assert set(runs) == self.expected(row["id"]), row
        for name, run in runs.items():
            start = time.time()
            run()
            ms = 1e3 * (time.time() - start)
            if name == "floor":
                row["floor_ms"] = ms
            else:
                (row if name == "ours" else row["rivals"][name] if name in row["rivals"] else row[name])["ms"] = ms
        self.rows.append(row)


def test_rows(heads, gpu_like, monkeypatch):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **more: compiler(model, backend="aot_eager", **more))
    bench = Bench()
    before = torch.backends.cuda.matmul.allow_tf32
    heads.rows(bench)
    assert torch.backends.cuda.matmul.allow_tf32 == before
    assert {row["id"] for row in bench.rows} == P2_ROWS == set(heads.ROWS) | {"linear_fp32"}
    for row in bench.rows:
        half = row["dtype"] == "bfloat16"
        limit = 2e-2 if half else 1e-5
        for side in [row, row["pytorch"]] + list(row["rivals"].values()):
            assert 0 < side["error"] < limit, (row["id"], side)
            assert ("grad_error" in side) == ("backward" in row["id"])
            assert 0 < side.get("grad_error", limit / 2) < limit, (row["id"], side)
        assert row["error"] <= 1.25 * row["rivals"]["eager"]["error"], row["id"]
        assert row["extra_bytes"] > 0 and row["shape"] == list(heads.QUICK_SHAPE)
        assert ("fp16" in row["floor"]) == ("fp32" in row["id"])
        if "prepared" in row["rivals"]:
            weight_bytes = 4 * row["shape"][1] * row["shape"][2]
            assert row["rivals"]["prepared"]["extra_bytes"] == row["extra_bytes"] + weight_bytes
            assert row["rivals"]["vendor"]["extra_bytes"] == row["extra_bytes"]
    assert gpu_like.prepared_calls == 3 * 3  # rows; before, for the errors, and for the time
    assert gpu_like.asked == {_native.FP32_FULL, _native.FP32_TF32, _native.FP32_VENDOR}


class LossBench(Bench):
    small = 0

    def expected(self, name):
        half = {"eager_half"} if name.startswith("cross_entropy") else set()
        return {"ours", "floor", "pytorch", "eager", "compile"} | half

    def finish(self, row, runs, begun, small=False, most_rounds=0):
        assert most_rounds > 0
        self.small += small
        super().finish(row, runs, begun)


LOSS_ROWS = {"kl_logits_bf16_forward_backward", "reverse_kl_logits_bf16_forward_backward",
             "kl_top_k_bf16_forward_backward", "js_logits_bf16_forward_backward",
             "tv_logits_bf16_forward_backward", "kl_logits_bf16_forward",
             "cross_entropy_bf16_forward_backward", "token_log_probs_bf16_forward",
             "token_log_probs_bf16_forward_backward", "kl_logits_fp32_4096x32000_forward_backward",
             "kl_logits_fp32_256x1000_forward_backward", "kl_logits_fp32_4096x1000_forward_backward",
             "kl_logits_fp32_65536x100_forward_backward"}


def test_loss_rows(losses, monkeypatch):
    """Every row, with an error for everyone, a goal for the first ones, and every width of both losses."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: compiled.append(dynamic) or loss)
    bench = LossBench()
    losses.rows(bench)
    found = {row["id"]: row for row in bench.rows}
    assert list(found) == list(losses.ROWS) and len(found) == len(bench.rows)
    widths = {"%s_bf16_width_%d_forward_backward" % (name, width) for name in ("kl_logits", "cross_entropy")
              for width in (100, 1000, 32000, 50257, 128257, 151936, 256000)}
    assert set(found) == LOSS_ROWS | widths
    assert {name for name, row in found.items() if "goal_ms" in row} == LOSS_ROWS and bench.small == 3
    assert compiled == [False] * len(LOSS_ROWS) + [True, True]  # widths: once for each loss
    for name, row in found.items():
        for side in [row, row["pytorch"]] + list(row["rivals"].values()):
            exact_enough = 1e-2 if side is row["rivals"].get("eager_half") else 1e-5
            assert 0 <= side["error"] < exact_enough, (name, side)  # NaN is not
            assert ("grad_error" in side) == name.endswith("backward")
            assert side.get("grad_error", 0) < (2e-2 if "bf16" in name else 1e-5), (name, side)
            assert side["host_ms"] == 0.5 and side["ms"] > 0
        assert "through" not in row and row["floor_ms"] > 0
        size = row["shape"][0] * row["shape"][1] * (2 if "bf16" in name else 4)
        assert row["extra_bytes"] == row["workspace_bytes"] + (size if "backward" in name else 0)
        assert losses.ROWS[name].shape[1] == 128256 or "width" in name or "fp32" in name
        assert torch.Size(losses.ROWS[name].shape).numel() < 1 << 31


class LinearLossBench(LossBench):
    def expected(self, name):
        return {"ours", "floor", "pytorch", "eager"} | ({"compile"} if name.endswith("bf16_8192x4096x128256") and
                                                        name.startswith("linear_cross") else set())


def test_linear_loss_rows(calls, monkeypatch):
    """Every row of losses from hidden states, with an error for everyone and its goal as a share of the products."""
    import gpu_linear_losses
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: loss)
    bench = LinearLossBench()
    gpu_linear_losses.rows(bench)
    found = {row["id"]: row for row in bench.rows}
    assert list(found) == list(gpu_linear_losses.ROWS) and set(found) <= set(table.WORDS)
    for name, row in found.items():
        for side in [row, row["pytorch"]] + list(row["rivals"].values()):
            is_mine = side is row or side is row["pytorch"]
            assert 0 <= side["error"] < (1e-5 if is_mine else 2e-2), (name, side)
            assert ("grad_error" in side) == ("token" not in name)
            assert side.get("grad_error", 0) < (2e-2 if "bf16" in name else 1e-5), (name, side)
        assert row["extra_bytes"] > row["workspace_bytes"] or "token" in name
        if "bf16" in name:
            assert row["goal_ms"] == pytest.approx(row["goal_of_floor"] * row["floor_ms"], abs=1e-6)


def test_losses_without_a_way_through_pytorch(losses, monkeypatch):
    """Said in the row; and compiling that takes too long ends, and is said."""
    monkeypatch.setattr(losses.losses_call, "is_served", lambda logits: False)
    monkeypatch.setattr(losses, "COMPILE_SECONDS", -1)
    bench = LossBench()
    monkeypatch.setattr(bench, "expected", lambda name: {"ours", "floor", "eager"})
    monkeypatch.setattr(bench, "wanted", lambda name: name == "kl_logits_bf16_forward")
    losses.rows(bench)
    (row,) = bench.rows
    assert "onepass.library" in row["through"] and "pytorch" not in row
    assert row["rivals"]["compile"] == {"failed": "left out: -1 s of compiling are spent"}
    line = table.table("x.json", result([row])).splitlines()[-1]
    assert line.startswith("| KL of logits, 8192 x 128256 bf16, forward | **")


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_split_floor(heads, backward):
    """It makes three products of fp16 for each one: as many multiplications, and no operand is left out."""
    x, weight = torch.rand(6, 5), torch.rand(4, 5)
    made = []
    mm = torch.mm
    try:
        torch.mm = lambda a, b, out: made.append((a.dtype, a.shape, b.shape)) or mm(a, b, out=out)
        words, run = heads.split_floor(x, weight, backward)
        run()
    finally:
        torch.mm = mm
    assert "fp16" in words and len(made) == (3 if backward else 1)
    for kind, a, b in made:
        assert kind is torch.float16 and a[1] == b[0] and a[0] * a[1] * b[1] == 3 * 6 * 5 * 4
    assert len({(a, b) for _, a, b in made}) == len(made)


# ---- products --------------------------------------------------------------------------------------------------------


def test_products(products, gpu_like, capsys):
    """The way that FULL takes is known by its bits, and each error is that of its own way."""
    bench = Bench()
    found = products.entries(bench)
    seed = found[0]["seed"]
    assert "seed %d" % seed in capsys.readouterr().out
    assert [tuple(made["shape"]) for made in found] == list(products.QUICK_SHAPES)
    assert [made["chosen"] for made in found] == ["vendor", "vendor", "split"]
    assert [made.get("slower_by") for made in found] == [1.0, 1.0, None]  # 2 ms, where 1 ms would do
    for made in found:
        assert "failed" not in made and made["seed"] == seed
        assert {name: made[name + "_ms"] for name in bench.made_up} == bench.made_up
        assert 0 < made["vendor_error"] < 3e-7
        assert abs(made["split_error"] / GpuLike.NUDGE - 1) < 0.3
    assert gpu_like.prepared_calls == len(found)
    assert gpu_like.asked == {_native.FP32_FULL, _native.FP32_SPLIT, _native.FP32_VENDOR}
    assert products.entries(Bench())[0]["seed"] != seed


def test_a_product_that_fails_is_reported(products, gpu_like):
    bench = Bench()
    times = bench.milliseconds

    def milliseconds(runs, rounds):
        if runs["split"].output.shape == (48, 192):
            raise RuntimeError("out of luck\nand more")
        return times(runs, rounds)
    bench.milliseconds = milliseconds
    found = products.entries(bench)
    assert [made.get("failed") for made in found] == [None, "out of luck", None]
    assert "| 48 x 192 x 80 | - | - | - | failed: out of luck | - | - |" in \
        table.product_table("x.json", result([], products=found))


def test_parts_of_products(products):
    shapes = products.shapes()
    assert len(set(shapes)) == len(shapes) == 71 and shapes[0] == (1024, 8192, 8192)
    assert all(m * n <= 1 << 26 and n * k <= 1 << 26 for m, n, k in shapes)
    a, b = torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 0.0])
    assert products.chosen(a.clone(), {"vendor": a, "split": b}) == "vendor"
    assert products.chosen(b.clone(), {"vendor": a, "split": b}) == "split"
    assert products.chosen(-b, {"vendor": a, "split": b}) == "neither"
    assert products.chosen(a.clone(), {"vendor": a, "split": a.clone()}) == "either"
    assert products.slower_by("split", {"vendor": 1.0, "split": 1.1}) is None
    assert products.slower_by("split", {"vendor": 1.0, "split": 1.25}) == 0.25
    assert products.slower_by("vendor", {"vendor": 1.0, "split": 1.25}) is None
    assert products.slower_by("neither", {"vendor": 1.0, "split": 1.25}) is None


def test_errors_of_products_look_at_every_part(products):
    """Some rows of many, from all parts; what was not written, NaN, is no small error."""
    generator = samples.random("errors of products")
    x, weight = (torch.rand(shape, generator=generator) for shape in ((1300, 7), (5, 7)))
    right = (x.double() @ weight.double().t()).float()
    second = right.clone()
    second[650:] = 0
    missing = right.clone()
    missing[1290:] = float("nan")
    found = products.errors(x, weight, {"right": right, "second": second, "missing": missing})
    assert 0 < found["right"] < 1e-7 and 0.6 < found["second"] < 0.8 and math.isnan(found["missing"])


def test_median_times(calls, monkeypatch):
    import gpu_bench
    monkeypatch.setattr(gpu_bench, "time_cold", lambda runs, flush, rounds: {name: [3.0, 1.0, 2.0] for name in runs})
    bench = gpu_bench.Bench.__new__(gpu_bench.Bench)
    bench.flush = None
    assert bench.milliseconds({"a": None, "b": None}, 3) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize("through", [True, False], ids=["pytorch", "library alone"])
@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_finished_rows(calls, monkeypatch, capsys, small, through):
    """Times find their places, with and without a way through PyTorch; rounds are the fewer ones."""
    import gpu_bench
    asked = []

    def times(runs, *rest):
        asked.append(rest[-1])
        return {name: [3.0, 1.0, 2.0] for name in runs}
    monkeypatch.setattr(gpu_bench, "time_cold", times)
    monkeypatch.setattr(gpu_bench, "time_small", lambda runs, rounds: (
        times(runs, rounds), {name: 0.25 for name in runs}, {"compile": "refused"}))
    monkeypatch.setattr(gpu_bench.time, "sleep", lambda seconds: None)
    bench = gpu_bench.Bench.__new__(gpu_bench.Bench)
    bench.flush, bench.rounds, bench.rows = None, 40, []
    row = {"id": "x", "error": 1e-7, "rivals": {"eager": {"error": 1e-6}, "compile": {"failed": "left out"}}}
    runs = dict.fromkeys(["ours", "floor", "eager"] + ["pytorch"] * through)
    if through:
        row["pytorch"] = {}
    bench.finish(row, runs, time.time(), small, 15)
    assert bench.rows == [row] and asked == [15] and row["rounds"] == 15
    assert (row["ms"], row["ms_q20"], row["floor_ms"], row["share_of_floor"]) == (2.0, 1.4, 2.0, 1.0)
    assert row["rivals"]["eager"]["ms"] == 2.0 and "ms" not in row["rivals"]["compile"]
    assert ("pytorch" in row) == through and row.get("pytorch", {"ms": 2.0})["ms"] == 2.0
    assert row.get("launch_ms") == (0.25 if small else None)
    assert "in PyTorch %s" % ("2.0000" if through else "-") in capsys.readouterr().out


# ---- on a CPU --------------------------------------------------------------------------------------------------------


def test_cpu_losses(calls, monkeypatch, capsys):
    """All of it at a small size: every row and call beside its rival, errors, and the tables made of them."""
    import cpu_losses
    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: loss)
    monkeypatch.setattr(cpu_losses, "LEAST_SECONDS", 0)
    before = torch.get_num_threads()
    found = cpu_losses.measure(True, 1)
    assert torch.get_num_threads() == before and capsys.readouterr().out.count("\n") == 8 + 16
    assert found["machine"] and found["threads"] == 1 and found["clock"] == "of the thread"
    assert [(row["loss"], row["dtype"], row["shape"]) for row in found["rows"]] == [
        (loss, kind, shape) for shape in ([8, 50], [3, 20]) for kind in ("fp32", "bf16")
        for loss in ("kl", "cross_entropy")]
    for row in found["rows"]:
        half = row["dtype"] == "bf16"
        size = row["shape"][0] * row["shape"][1] * (2 if half else 4)
        assert row["bytes"] == size * (3 if row["loss"] == "kl" else 2)
        assert set(row["rivals"]) == {"eager", "compile"} and row["share_of_read"] > 0 < row["library"]["share_of_read"]
        for side in [row] + list(row["rivals"].values()):
            assert side["ms"] > 0 and side.get("ratio", 1) > 0
            assert 0 <= side["error"] < 1e-5 and 0 <= side["grad_error"] < (2e-2 if half else 1e-5), row
    assert {call["function"] for call in found["calls"]} == {"kl_div", "cross_entropy", "linear", "head"}
    assert len(found["calls"]) == 16 and all(call["us"] > 0 and call["share"] > 0 for call in found["calls"])
    for made, rows in ((table.cpu_loss_table(found), found["rows"]), (table.cpu_call_table(found), found["calls"])):
        lines = made.splitlines()
        assert len(lines) == 4 + len(rows) and found["machine"] in lines[0]
        assert all(line.count("|") == lines[2].count("|") for line in lines[2:])
    assert "| KL of logits, bf16, 8 x 50 | **" in table.cpu_loss_table(found)
    again = cpu_losses.measure(True, 1, {"rows": ["kept"]})
    assert again["rows"] == ["kept"] and len(again["calls"]) == 16


def test_cpu_calls_compute_the_same(calls):
    """What is timed in turn gives the same results and as many gradients."""
    import cpu_losses
    torch.manual_seed(samples.random("cpu calls").initial_seed() % 2**31)
    for name, shape, work, ours, theirs in cpu_losses.call_pairs():
        mine, other = ours(), theirs()
        if work == "forward":
            mine, other = [mine], [other]
        assert len(mine) == len(other) > 0, name
        for a, b in zip(mine, other):
            assert a.shape == b.shape and float((a - b).detach().abs().max()) < 1e-4, (name, shape)


def test_host_calls(calls, monkeypatch, tmp_path, capsys):
    """What is timed in turn gives the same results and gradients, and all of it is in the file."""
    import host_calls
    torch.manual_seed(samples.random("host calls").initial_seed() % 2**31)
    for name, ours, theirs, inputs in host_calls.pairs("cpu"):
        assert float((ours(*inputs) - theirs(*inputs)).detach().abs().max()) < 1e-4, name
        (mine,), (other,) = host_calls.step(ours, inputs)(), host_calls.step(theirs, inputs)()
        assert mine.shape == inputs[0].shape and float((mine - other).abs().max()) < 1e-4, name
    monkeypatch.setattr(host_calls, "CALLS", 1)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["host_calls.py", "--device", "cpu", "--rounds", "1", "--out",
                                      str(tmp_path / "host.json")])
    host_calls.main()
    found = json.loads((tmp_path / "host.json").read_text(encoding="utf-8"))
    assert capsys.readouterr().out.count("\n") == len(found["host_us"]) == len(found["step_us"]) == 5
    assert all(side > 0 for key in ("host_us", "step_us") for row in found[key].values() for side in row.values())


def test_cpu_results_are_kept():
    assert evidence.CPU_LOSSES not in [os.path.join(ROOT, path) for path, _ in evidence.results()]
    kept = table.cpu_result()
    for document, name, make in table.CPU_SECTIONS:
        with open(os.path.join(ROOT, document), encoding="utf-8") as file:
            text = file.read()
        assert make(kept) in table.with_section(text, name, make(kept))
        assert "measured yet" in make(None)
    assert {(row["loss"], row["dtype"], tuple(row["shape"])) for row in kept["rows"]} == {
        (loss, kind, shape) for loss in ("kl", "cross_entropy") for kind in ("fp32", "bf16")
        for shape in ((4096, 32000), (256, 1000))}


# ---- tables ----------------------------------------------------------------------------------------------------------


def result(rows, **more):
    return dict({"schema": 1, "device": "NVIDIA H200", "driver": "580", "date": "2026-01-01", "torch": "2.11",
                 "rows": rows}, **more)


def row_of(name, **more):
    return dict({"id": name, "ms": 0.5, "rivals": {"eager": {"ms": 2.0, "error": 1e-7}}}, **more)


def test_table_with_and_without_rows():
    """Rows that are not there yet leave no trace; those that are stand in their order, unknown ones last."""
    first = table.table("x.json", result([row_of("p1_forward")]))
    assert "P2" not in first and "P1 forward" in first and "; of P2" not in first
    rows = [row_of("new_thing"), row_of("linear_fp32", operator="linear"), row_of("p2_fp32_train", operator="head"),
            row_of("p1_forward"), row_of("p2_bf16_train", operator="head", rivals={})]
    lines = table.table("x.json", result(rows)).splitlines()
    assert "of P2 and linear, the matrix products alone" in lines[0]
    works = [line.split(" | ")[0].lstrip("| ") for line in lines[4:]]
    assert works == ["P1 forward", "P2 bf16 training forward", "P2 training forward", "linear, 1024 x 8192 x 8192",
                     "new_thing"]
    assert all(line.count("|") == lines[2].count("|") for line in lines[2:])


def test_table_of_ways():
    """Rows with cuBLAS's products beside ours have a table of their own, after the first; one may have failed."""
    plain, fp32 = row_of("p1_forward"), {"floor": "three of fp16 operands", "operator": "head", "error": 4e-7}
    assert "tensor cores" not in table.table("x.json", result([plain]))
    eager = plain["rivals"]["eager"]
    rows = [plain,
            row_of("linear_fp32", **dict(fp32, rivals={"eager": eager, "vendor": {"failed": "no"}})),
            row_of("p2_fp32_train", **dict(fp32, rivals={
                "eager": eager, "vendor": {"ms": 2.72, "error": 5e-7}, "prepared": {"ms": 0.4375, "error": 4e-7}}))]
    first, second = table.table("x.json", result(rows)).split("fp32 products on tensor cores")
    assert "for one in fp32 three of fp16 operands" in first
    assert [line.split(" | ")[0] for line in first.splitlines()[4:7]] == [
        "| P1 forward", "| P2 training forward", "| linear, 1024 x 8192 x 8192"]
    assert second.splitlines()[2:] == [
        "| work | onepass | weight prepared | cuBLAS fp32 | error | cuBLAS's error |", "|---|---|---|---|---|---|",
        "| P2 training forward | **0.500** | 0.438 | 2.720 | 4.0e-07 | 5.0e-07 |",
        "| linear, 1024 x 8192 x 8192 | **0.500** | - | - | 4.0e-07 | - |"]


def product_of(shape, **more):
    return dict({"shape": shape, "vendor_ms": 2.69, "split_ms": 0.6, "prepared_ms": 0.05, "chosen": "split",
                 "vendor_error": 4e-7, "split_error": 9e-8}, **more)


def test_table_of_products():
    for nothing in ([], [("x.json", result([]))], [("x.json", result([], products=[]))]):
        assert "measured yet" in table.product_tables(nothing)
    found = [product_of([1024, 8192, 8192]), product_of([16, 64, 64], chosen="vendor", slower_by=0.254)]
    made = table.product_tables([("old.json", result([])), ("x.json", result([], products=found))])
    lines = made.splitlines()
    assert "old.json" not in made and "Of 2 shapes" in lines[0] and lines[0].endswith("than the other for 1.")
    assert lines[2].count("|") == lines[3].count("|") == lines[4].count("|") == 8
    assert lines[4:] == ["| 1024 x 8192 x 8192 | 2.690 | 0.600 | 0.0500 | split | 4.0e-07 | 9.0e-08 |",
                         "| 16 x 64 x 64 | 2.690 | 0.600 | 0.0500 | cuBLAS, slower by 25% | 4.0e-07 | 9.0e-08 |"]
    assert "than the other for none." in table.product_table("x.json", result([], products=found[:1]))


def test_documents_are_written_and_checked(tmp_path, capsys):
    path = tmp_path / "a.md"
    path.write_text("before\n<!-- products -->\nold\n<!-- /products -->\nafter\n", encoding="utf-8")
    assert table.put(str(tmp_path), "a.md", "products", "new", True) == 1
    assert "a.md: the products are not what bench/results says" in capsys.readouterr().out
    assert table.put(str(tmp_path), "a.md", "products", "new", False) == 0
    written = path.read_text(encoding="utf-8")
    assert written == "before\n<!-- products -->\nnew\n<!-- /products -->\nafter\n"
    assert table.put(str(tmp_path), "a.md", "products", "new", True) == 0
    assert table.put(str(tmp_path), "a.md", "results", "new", False) == 1  # no marks of that name
    path.write_text(written + "<!-- products -->", encoding="utf-8")
    assert table.put(str(tmp_path), "a.md", "products", "new", False) == 1
    assert path.read_text(encoding="utf-8") == written + "<!-- products -->"


def test_tables_of_what_is_kept():
    """The committed results make every section, whether they have products or not, and the documents have its marks."""
    found = evidence.results()
    for document, name, make in table.SECTIONS:
        with open(os.path.join(ROOT, document), encoding="utf-8") as file:
            text = file.read()
        made = make(found)
        assert made in table.with_section(text, name, made)
        assert make([]) != "" and "measured yet" in make([])


def test_releases(tmp_path):
    """What pytest reports becomes counts and reasons; a failure is shown; a machine without a GPU is no limit of a
    release; every part's tests are there."""
    report = tmp_path / "report.xml"
    report.write_text("""<testsuites><testsuite>
        <testcase classname="tests.python.test_torch_kl" name="a"/>
        <testcase classname="tests.python.test_torch_kl" name="b"><skipped message="no CUDA device"/></testcase>
        <testcase classname="tests.python.test_torch_transforms" name="c"><skipped message="too old"/></testcase>
        <testcase classname="tests.python.test_rewrite" name="d"><failure message="x"/></testcase>
        </testsuite></testsuites>""")
    counts, left_out, failed = releases.summarise(str(report))
    assert counts["functions, derivatives"] == {"passed": 1, "failed": 0, "left_out": 0}
    assert counts["torch.func"]["left_out"] == 1 and left_out == {"too old": 1}
    assert counts["rewrite"]["failed"] == 1 and failed == ["test_rewrite::d"]
    made = table.release_table({"2.8.0": {"python": "3.11.7", "parts": counts, "left_out": left_out}})
    assert "| 2.8.0 | 3.11.7 | 1 | 0 | 0 | 0 | 0, **1 failed** |" in made and "- 2.8.0: too old (1)." in made
    del counts["losses from logits"]  # as in a result from before the part was there
    before = table.release_table({"2.8.0": {"python": "3.11.7", "parts": counts, "left_out": left_out}})
    assert "| 2.8.0 | 3.11.7 | 1 | 0 | 0 | not tried | 0, **1 failed** |" in before
    assert "No release has been tried yet" in table.release_table({})
    assert len(releases.tests()) == sum(map(len, releases.PARTS.values()))
    with open(os.path.join(ROOT, table.RELEASES[0]), encoding="utf-8") as file:
        assert table.with_section(file.read(), table.RELEASES[1], made) is not None
    assert releases.PATH not in [os.path.join(ROOT, path) for path, _ in evidence.results()]


def test_every_row_has_words():
    assert P2_ROWS <= set(table.WORDS)


# ---- the digest ------------------------------------------------------------------------------------------------------


def test_the_digest_covers_what_runs():
    """Every pattern finds something, and every source of a program that ./dev gpu runs is found."""
    for pattern in evidence.HOST + evidence.TESTS:
        assert glob.glob(os.path.join(ROOT, pattern)), pattern
    with open(os.path.join(ROOT, "tests", "CMakeLists.txt"), encoding="utf-8") as file:
        text = file.read()
    sources = set(re.findall(r"onepass_cuda_test\(\w+ (\w+\.c)\)", text)) | {"cuda_harness.c"}
    programs = set(re.findall(r"onepass_cuda_test\((\w+) \w+\.c\)", text))
    for program, more in re.findall(r"target_sources\((\w+) PRIVATE ([\w. ]+)\)", text):
        sources |= set(more.split()) if program in programs else set()
    assert len(sources) >= 8
    covered = evidence.covered_files()
    assert {"tests/" + source for source in sources} <= set(covered)


def test_the_digest_is_of_code():
    """A comment changes nothing that runs; everything else does, in strings too."""
    def code(text, path="src/cuda/device.c"):
        return evidence.code_of(path, text.encode()).decode()

    plain = 'int a = 1;\nconst char *b = "/* no comment */ // nor this", c = \'"\';\n#define D 2\n'
    same = '/* one\n * two */\nint a = /* three */ 1; // four\n\n  const char *b = ' \
        '"/* no comment */ // nor this", c = \'"\';\n#define D 2 /* " */\n'
    assert code(same) == code(plain)
    for a, b in (("1;", "2;"), ("nor this", "nor that"), ("D 2", "D\n2"), ("int a", "inta")):
        assert a in plain and code(plain.replace(a, b)) != code(plain)
    assert code("# a comment", "tests/test_tool_cuda.py") == "# a comment"


def test_programs_that_ran_again(tmp_path, monkeypatch, capsys):
    """They take the place of what was there, in results of this tree alone."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "test_python.log").write_text("left out: one\n12 checks, 0 failed\n", encoding="utf-8")
    (logs / "test_python.status").write_text("0\n", encoding="utf-8")
    failed = {"status": 1, "passed": 11, "failed": 1, "skipped": 0, "last": ""}
    other = {"status": 0, "passed": 5, "failed": 0, "skipped": 2, "last": ""}
    result = {"digest": evidence.digest(), "programs": {"test_python": failed, "test_cuda": other},
              "tests": {"passed": 16, "failed": 1, "skipped": 2}}
    path = tmp_path / "gpu.json"
    monkeypatch.setattr(evidence, "results", lambda: [(str(path), json.loads(json.dumps(result)))])
    assert evidence.again(str(logs)) == 0
    made = json.loads(path.read_text(encoding="utf-8"))
    assert made["tests"] == {"passed": 17, "failed": 0, "skipped": 3} and made["again"] == ["test_python"]
    assert made["programs"]["test_cuda"] == other and made["programs"]["test_python"]["passed"] == 12
    for key, value, text in (("digest", "another", "not of this tree"), ("programs", {"test_cuda": other}, "not among")):
        path.write_text("untouched", encoding="utf-8")
        with monkeypatch.context() as changed:
            changed.setitem(result, key, value)
            assert evidence.again(str(logs)) == 1
        assert text in capsys.readouterr().out and path.read_text(encoding="utf-8") == "untouched"
    assert evidence.again(str(tmp_path)) == 1  # no logs
