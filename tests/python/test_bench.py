"""What ./dev gpu measures with, tried on the CPU: the calls of bench/onepass_ctypes.py against PyTorch, the rows of
bench/gpu_head.py and the products of bench/gpu_products.py at a small size, the tables made of them, and what the
digest of the evidence covers. What only a GPU has, a choice of fp32 products, is played by a stand-in (GpuLike). The
library is build/libonepass.so, or $ONEPASS_LIBRARY."""

import copy
import ctypes
import glob
import math
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
def products(calls):
    import gpu_products
    return gpu_products


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
    onepass, library = calls
    p, t = samples.pair(samples.random("kl call"), (7, 33), "kl_div_probs")
    call = onepass.KlCall(library, "probs_probs", p, t, True, torch.float64)
    exact = F.kl_div(p.double().log(), t.double(), reduction="batchmean")
    assert abs(float(call()) / float(exact) - 1) < 1e-6
    assert off(call.gradient, -(t.double() / p.double()) / 7) < 1e-6
    call.close()


def test_linear_call(calls):
    onepass, library = calls
    generator = samples.random("linear call")
    x, w, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 5), (4, 5), (4,)))
    call = onepass.LinearCall(library, x, w, b)
    assert off(call(), F.linear(x, w, b)) < 1e-14
    call.close()


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_head_call(calls, heads, train):
    onepass, library = calls
    generator = samples.random("head call %s" % train)
    model = random_model(heads, generator, 9, 6).train(train)
    x, upstream = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((11, 9), (11, 6)))
    theirs = copy.deepcopy(model)
    call = onepass.HeadCall(library, model, x, upstream)
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
    forward = onepass.HeadCall(library, model, x)
    heads_exact = heads.exact_pass(model, x, None)
    assert heads_exact.errors(forward())["error"] < 1e-12
    forward.close()


def test_prepared_weights_arrive(calls, heads):
    """On the CPU the library refuses them, by name and value: each one stands where the library looks for it."""
    onepass, library = calls
    x, w = torch.rand(6, 5), torch.rand(4, 5)
    with pytest.raises(RuntimeError, match="^prepare_weight_size: handle: only one of a CUDA device"):
        onepass.LinearCall(library, x, w, None, prepare=True)
    call = onepass.LinearCall(library, x, w, None)
    with pytest.raises(RuntimeError, match="^prepare_weight: handle: only one of a CUDA device"):
        library.check(library.c.onepass_prepare_weight(call.handle(), call.arguments[1], 0x12300, 100))
    with pytest.raises(RuntimeError, match="^linear_prepared: prepared: 0x12300; it is for"):
        library.check(library.c.onepass_linear_prepared(
            call.handle(), *call.arguments[:2], 0x12300, *call.arguments[2:]))
    call.close()
    call = onepass.HeadCall(library, heads.problem().Model(5, 4), x)
    call()
    call.options.prepared_weight = 0x12300
    with pytest.raises(RuntimeError, match="^head: options.prepared_weight: 0x12300; it is for"):
        call()
    call.close()


class GpuLike:
    """The library on the CPU, with what it has on a GPU alone. A prepared weight is a copy of the weight. A linear
    layer by SPLIT, or by FULL with over 200 outputs, comes out larger by NUDGE, so that one can tell."""
    NUDGE = 2.0 ** -20

    def __init__(self, onepass, library):
        self.onepass, self.library, self.c = onepass, library, self
        self.products, self.asked, self.prepared_calls = {}, [], 0

    def __getattr__(self, name):
        return getattr(self.library.c, name)

    def check(self, status):
        self.library.check(status)

    def handle(self, stream=None, fp32_products=0):
        handle = self.library.handle(stream)
        self.products[handle.value] = fp32_products  # a later handle may have the address of one that is gone
        self.asked.append(fp32_products)
        return handle

    def onepass_prepare_weight_size(self, handle, weight, needed):
        shape = self.onepass.Tensor.from_address(weight).shape
        needed._obj.value = 4 * shape[0] * shape[1]
        return 0

    def onepass_prepare_weight(self, handle, weight, prepared, size):
        assert self.products[handle.value] in (self.onepass.FP32_FULL, self.onepass.FP32_SPLIT)
        ctypes.memmove(prepared, self.onepass.Tensor.from_address(weight).data, size)
        return 0

    def use(self, weight, prepared):
        weight = self.onepass.Tensor.from_address(weight)
        size = 4 * weight.shape[0] * weight.shape[1]
        assert ctypes.string_at(prepared, size) == ctypes.string_at(weight.data, size)
        self.prepared_calls += 1

    def onepass_linear(self, handle, x, weight, bias, output, *workspace):
        status = self.library.c.onepass_linear(handle, x, weight, bias, output, *workspace)
        made = self.onepass.Tensor.from_address(output)
        split = {self.onepass.FP32_SPLIT: True, self.onepass.FP32_FULL: made.shape[1] > 200}
        if split.get(self.products[handle.value]):
            numbers = (ctypes.c_float * (made.shape[0] * made.shape[1])).from_address(made.data)
            torch.frombuffer(numbers, dtype=torch.float32).mul_(1 + self.NUDGE)
        return status

    def onepass_linear_prepared(self, handle, x, weight, prepared, *more):
        self.use(weight, prepared)
        return self.onepass_linear(handle, x, weight, *more)

    def onepass_head(self, handle, x, weight, options, *more):
        options = self.onepass.HeadOptions.from_address(options)
        prepared, options.prepared_weight = options.prepared_weight, None
        if prepared:
            self.use(weight, prepared)
        status = self.library.c.onepass_head(handle, x, weight, ctypes.addressof(options), *more)
        options.prepared_weight = prepared
        return status


class Bench:
    """gpu_bench.py's, on the CPU: times of rows are taken by the clock, once; those of products are made up."""
    device, quick, compile = "cpu", True, True
    made_up = {"vendor": 2.0, "split": 1.0, "prepared": 0.5}

    def __init__(self, calls):
        self.library, self.rows = GpuLike(*calls), []

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

    def finish(self, row, runs, begun):
        expected = {"ours", "floor", "pytorch", "eager"}
        if row["id"].endswith(("train", "backward")):
            expected.add("compile")
        if "fp32" in row["id"]:
            expected |= {"vendor"} if "backward" in row["id"] else {"vendor", "prepared"}
        assert set(runs) == expected, row
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
    bench = Bench(calls)
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
    assert bench.library.prepared_calls == 3 * 3  # rows; before, for the errors, and for the time
    asked = bench.library.asked
    assert (asked.count(calls[0].FP32_TF32), asked.count(calls[0].FP32_VENDOR)) == (1, 4)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_split_floor(calls, heads, backward):
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


def test_products(calls, products, capsys):
    """The way that FULL takes is known by its bits, and each error is that of its own way."""
    bench = Bench(calls)
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
    assert bench.library.prepared_calls == len(found)
    assert sorted(bench.library.asked) == [calls[0].FP32_FULL, calls[0].FP32_SPLIT, calls[0].FP32_VENDOR]
    assert products.entries(Bench(calls))[0]["seed"] != seed


def test_a_product_that_fails_is_reported(calls, products):
    bench = Bench(calls)
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
