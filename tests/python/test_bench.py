"""What ./dev gpu measures with, tried on the CPU: the calls of bench/onepass_ctypes.py against PyTorch, the rows of
bench/gpu_head.py at a small size, the table made of them, and what the digest of the evidence covers. The library is
build/libonepass.so, or $ONEPASS_LIBRARY."""

import copy
import glob
import os
import re
import sys
import time

import pytest

import torch_samples as samples
from torch_samples import F, VERSION, torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIBRARY = os.environ.get("ONEPASS_LIBRARY") or os.path.join(ROOT, "build", "libonepass.so")
sys.path.insert(0, os.path.join(ROOT, "bench"))
import evidence  # noqa: E402
import table  # noqa: E402

P2_ROWS = {"p2_bf16_train", "p2_tf32_train", "p2_fp32_train", "p2_bf16_eval", "p2_fp32_eval",
           "p2_bf16_forward_backward", "p2_fp32_forward_backward", "linear_fp32"}


@pytest.fixture
def calls():
    if not os.path.exists(LIBRARY):
        pytest.skip("there is no %s" % LIBRARY)
    if VERSION < (2, 1):
        pytest.skip("the benchmarks need PyTorch 2.1")
    import onepass_ctypes
    return onepass_ctypes, onepass_ctypes.Library(LIBRARY)


@pytest.fixture
def heads():
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
    ctypes, library = calls
    p, t = samples.pair(samples.random("kl call"), (7, 33), "kl_div_probs")
    call = ctypes.KlCall(library, "probs_probs", p, t, True, torch.float64)
    exact = F.kl_div(p.double().log(), t.double(), reduction="batchmean")
    assert abs(float(call()) / float(exact) - 1) < 1e-6
    assert off(call.gradient, -(t.double() / p.double()) / 7) < 1e-6
    call.close()


def test_linear_call(calls):
    ctypes, library = calls
    generator = samples.random("linear call")
    x, w, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 5), (4, 5), (4,)))
    call = ctypes.LinearCall(library, x, w, b)
    assert off(call(), F.linear(x, w, b)) < 1e-14
    call.close()


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_head_call(calls, heads, train):
    ctypes, library = calls
    generator = samples.random("head call %s" % train)
    model = random_model(heads, generator, 9, 6).train(train)
    x, upstream = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((11, 9), (11, 6)))
    theirs = copy.deepcopy(model)
    call = ctypes.HeadCall(library, model, x, upstream)
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
    call.close()
    forward = ctypes.HeadCall(library, model, x)
    heads_exact = heads.exact_pass(model, x, None)
    assert heads_exact.errors(forward())["error"] < 1e-12
    forward.close()


class Bench:
    """gpu_bench.py's, on the CPU: times are taken by the clock, once."""
    device, quick, compile, split = "cpu", True, True, False

    def __init__(self, library):
        self.library, self.rows = library, []

    def wanted(self, name):
        return True

    def peak_growth(self, run):
        run()
        return 0

    def finish(self, row, runs, begun):
        compiled = row["id"].endswith(("train", "backward"))
        assert set(runs) == {"ours", "floor", "pytorch", "eager"} | ({"compile"} if compiled else set())
        for name, run in runs.items():
            start = time.time()
            run()
            ms = 1e3 * (time.time() - start)
            if name == "floor":
                row["floor_ms"] = ms
            else:
                (row if name == "ours" else row["rivals"][name] if name in row["rivals"] else row[name])["ms"] = ms
        self.rows.append(row)


def test_rows(calls, heads, monkeypatch):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **more: compiler(model, backend="aot_eager", **more))
    bench = Bench(calls[1])
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


def result(rows):
    return {"schema": 1, "device": "NVIDIA H200", "driver": "580", "date": "2026-01-01", "torch": "2.11", "rows": rows}


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


def test_every_row_has_words():
    assert P2_ROWS <= set(table.WORDS)


# ---- the digest ------------------------------------------------------------------------------------------------------


def test_the_digest_covers_what_runs():
    """Every pattern finds something, and every source of a program that ./dev gpu runs is found."""
    for pattern in evidence.COVERED:
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
