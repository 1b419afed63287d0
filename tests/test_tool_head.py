#!/usr/bin/env python3
"""onepass head and onepass linear as a user meets them: values against exact ones, running statistics, files, errors.

usage: test_tool_head.py [PATH_OF_ONEPASS] [unittest arguments]; otherwise $ONEPASS_TOOL. Standard library only. Inputs
are random; the seed is printed and $ONEPASS_TEST_SEED repeats it.
"""
import json
import math
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_tool  # noqa: E402
from kl_exact import rounded  # noqa: E402

# Relative errors that rounding of results, and of a product summed in the type computed in, may cost.
ALLOWED = {"<f2": 2e-3, "|V2": 1.5e-2, "<f4": 2e-5, "<f8": 1e-12}


def product(x, w, rows, depth, columns, bias):
    return [math.fsum([x[i * depth + k] * w[j * depth + k] for k in range(depth)] + [bias[j]])
            for i in range(rows) for j in range(columns)]


def moments(y, rows, columns):
    """Mean and sum of squared deviations of each column."""
    means = [math.fsum(y[i * columns + j] for i in range(rows)) / rows for j in range(columns)]
    return means, [math.fsum((y[i * columns + j] - means[j]) ** 2 for i in range(rows)) for j in range(columns)]


def head(y, rows, columns, mean, var, gamma, beta, scale, eps):
    out = []
    for i in range(rows):
        z = [scale[j] * (gamma[j] * (y[i * columns + j] - mean[j]) / math.sqrt(var[j] + eps) + beta[j])
             for j in range(columns)]
        e = [math.exp(v - max(z)) for v in z]
        out += [v / math.fsum(e) for v in e]
    return out


class LayerTest(test_tool.ToolTest):
    rows, depth, columns = 9, 6, 5
    device = ()  # what head and linear are told about the device

    def run_tool(self, *arguments, **more):
        return super().run_tool(*arguments, *(self.device if arguments[0] in ("head", "linear") else ()), **more)

    def array(self, name, shape, descr="<f4", low=-1.0, high=1.0):
        """A random array in a file; its numbers as stored."""
        count = 1
        for extent in shape:
            count *= extent
        values = [self.random.uniform(low, high) for _ in range(count)]
        self.write(name, descr, shape, values)
        return rounded(descr, values)

    def layer(self, descr="<f4"):
        """Every file of a head; the numbers by name."""
        each = "<f8" if descr == "<f8" else "<f4"
        n = (self.columns,)
        return {"x": self.array("x.npy", (self.rows, self.depth), descr),
                "w": self.array("w.npy", (self.columns, self.depth), descr),
                "b": self.array("b.npy", n, each), "g": self.array("g.npy", n, each),
                "e": self.array("e.npy", n, each), "s": self.array("s.npy", n, each, 0.5, 2),
                "m": self.array("m.npy", n, each), "v": self.array("v.npy", n, each, 0.5, 2)}

    def same(self, name, want, descr, shape, note=None):
        stored, stored_shape, got = self.read(name)
        self.assertEqual((stored, stored_shape), (descr, shape), note)
        self.assertEqual(len(got), len(want), note)
        largest = max([abs(v) for v in want] + [1e-300])
        for g, v in zip(got, want):
            self.assertTrue(abs(g - v) <= ALLOWED[descr] * largest, (g, v, note))


class Values(LayerTest):
    def test_linear(self):
        for descr in ALLOWED:
            with self.subTest(descr=descr):
                t = self.layer(descr)
                self.assertEqual(self.good("linear", "x.npy", "w.npy", "--bias", "b.npy", "-o", "y.npy"), b"")
                want = product(t["x"], t["w"], self.rows, self.depth, self.columns, t["b"])
                self.same("y.npy", want, descr, (self.rows, self.columns))
                self.good("linear", "x.npy", "w.npy", "-o", "y.npy", *(() if self.device else ("--threads", "2")))
                want = product(t["x"], t["w"], self.rows, self.depth, self.columns, [0] * self.columns)
                self.same("y.npy", want, descr, (self.rows, self.columns))

    def test_linear_of_any_rank_and_types(self):
        x, w = self.array("x.npy", (2, 3, 4), "<f2"), self.array("w.npy", (5, 4), "<f4")
        self.good("linear", "x.npy", "w.npy", "-o", "y.npy")
        self.same("y.npy", product(x, w, 6, 4, 5, [0] * 5), "<f4", (2, 3, 5))
        self.good("linear", "x.npy", "w.npy", "-o", "y.npy", "--dtype", "f64")
        self.assertEqual(self.read("y.npy")[0], "<f8")
        self.bad(2, "linear", "x.npy", "w.npy", "-o", "y.npy", "--dtype", "f16", holds=("--dtype", "f16", "f32"))
        self.bad(2, "linear", "x.npy", "w.npy", "-o", "y.npy", "--dtype", "bf16", holds=("--dtype", "f32"))

    def test_eval(self):
        for descr in ALLOWED:
            t = self.layer(descr)
            y = product(t["x"], t["w"], self.rows, self.depth, self.columns, t["b"])
            for scale, numbers in (("2.5", [2.5] * self.columns), ("s.npy", t["s"])):
                with self.subTest(descr=descr, scale=scale):
                    self.good("head", "x.npy", "--weight", "w.npy", "--bias", "b.npy", "--gamma", "g.npy", "--beta",
                              "e.npy", "--scale", scale, "--running-mean", "m.npy", "--running-var", "v.npy", "-o",
                              "p.npy")
                    want = head(y, self.rows, self.columns, t["m"], t["v"], t["g"], t["e"], numbers, 1e-5)
                    self.same("p.npy", want, descr, (self.rows, self.columns))

    def test_train(self):
        t = self.layer()
        y = product(t["x"], t["w"], self.rows, self.depth, self.columns, t["b"])
        mean, m2 = moments(y, self.rows, self.columns)
        ones, zeros = [1.0] * self.columns, [0.0] * self.columns
        want = head(y, self.rows, self.columns, mean, [v / self.rows for v in m2], ones, zeros, ones, 1e-3)
        base = ("head", "x.npy", "--weight", "w.npy", "--bias", "b.npy", "--train", "--eps", "1e-3", "-o", "p.npy")
        self.good(*base)
        self.same("p.npy", want, "<f4", (self.rows, self.columns))
        outs = ("--running-mean-out", "m2.npy", "--running-var-out", "v2.npy")
        old = ("--running-mean", "m.npy", "--running-var", "v.npy")
        unbiased = [v / (self.rows - 1) for v in m2]
        for more, factor, start in (((), 0.1, True), (("--momentum", "0.75"), 0.75, True),
                                    (("--momentum", "none", "--batches", "3"), 0.25, True),
                                    (("--momentum", "none"), 1.0, True), ((), 0.1, False)):
            with self.subTest(more=more, start=start):
                self.good(*base, *outs, *(old if start else ()), *more)
                kept_mean, kept_var = (t["m"], t["v"]) if start else (zeros, ones)
                self.same("m2.npy", [(1 - factor) * a + factor * b for a, b in zip(kept_mean, mean)], "<f4",
                          (self.columns,))
                self.same("v2.npy", [(1 - factor) * a + factor * b for a, b in zip(kept_var, unbiased)], "<f4",
                          (self.columns,))
        answer = json.loads(self.good(*base, "--momentum", "none", "--batches", "3", "--json"))
        self.assertEqual(answer["device"], self.device[1] if self.device else "cpu")
        self.assertEqual((answer["command"], answer["train"], answer["batches"]), ("head", True, 4))
        self.assertEqual((answer["shape"], answer["written"]), ([self.rows, self.columns], ["p.npy"]))

    def test_stdin_and_stdout(self):
        self.layer()
        self.good("linear", "x.npy", "w.npy", "-o", "y.npy")
        with open(self.path("x.npy"), "rb") as file:
            data = self.good("linear", "-", "w.npy", "-o", "-", input=file.read())
        with open(self.path("y.npy"), "rb") as file:
            self.assertEqual(data, file.read())


class Refusals(LayerTest):
    def test_usage(self):
        self.layer()
        head = ("head", "x.npy", "--weight", "w.npy", "-o", "p.npy")
        stats = ("--running-mean", "m.npy", "--running-var", "v.npy")
        for arguments, word in (
                (("head", "x.npy", "-o", "p.npy"), "--weight"), (("head", "x.npy", "--weight", "w.npy") + stats, "-o"),
                (head, "--running-mean"), (head + stats[:2], "--running-var"),
                (head + stats + ("--momentum", "0.2"), "--momentum"), (head + stats + ("--batches", "1"), "--batches"),
                (head + stats + ("--running-mean-out", "a.npy", "--running-var-out", "b2.npy"), "--train"),
                (head + ("--train",) + stats, "--running-mean-out"),
                (head + ("--train", "--running-mean-out", "a.npy"), "--running-var-out"),
                (head + ("--train", "--batches", "2"), "--momentum none"),
                (head + ("--train", "--momentum", "x"), "--momentum"), (head + ("--train", "--momentum", ""), "none"),
                (head + ("--train", "--eps", "-1"), "--eps"), (head + ("--train", "--dtype", "f16"), "--dtype"),
                (("head", "x.npy", "--weight", "w.npy", "--train", "-o", "-", "--json"), "--json"),
                (("head", "-", "--weight", "-", "--train", "-o", "p.npy"), "stdin"), (("linear", "x.npy"), "W.npy"),
                (("linear", "x.npy", "w.npy"), "-o"), (("linear", "x.npy", "w.npy", "--gamma", "g.npy"), "--gamma")):
            with self.subTest(arguments=arguments):
                self.bad(2, *arguments, holds=(word,))

    def test_device(self):
        self.layer()
        usable = [device["name"] for device in json.loads(self.good("info", "--json"))["devices"] if device["usable"]]
        self.assertNotIn("cuda:12", usable)
        for name, command in (("head", ("head", "x.npy", "--weight", "w.npy", "--train", "-o", "p.npy")),
                              ("linear", ("linear", "x.npy", "w.npy", "-o", "y.npy"))):
            with self.subTest(name=name):
                self.bad(4, *command, "--device", "cuda:12", holds=("cuda:12", "CUDA"))
                self.bad(4, "bench", name, "--device", "cuda:12", holds=("cuda:12", "CUDA"))
                self.bad(2, *command, "--device", "cuda", "--threads", "2", holds=("--threads", "CPU"))
                self.bad(2, *command, "--device", "gpu", holds=("--device", "gpu"))
                self.bad(2, *command, "--fp32-products", "tf32", holds=("--fp32-products", "--device cpu", "GPU"))
                self.bad(2, *command, "--device", "cuda", "--fp32-products", "bf16", holds=("--fp32-products", "tf32"))
                self.bad(2, "bench", name, "--fp32-products", "full", holds=("--fp32-products", "--device cpu"))
                self.bad(2, "bench", name, "--pred", "probs", holds=("--pred", name, "kl"))
                self.bad(2, "bench", name, "--label-type", "i32", holds=("--label-type", name, "xent and token"))
        self.bad(2, "bench", "kl", "--depth", "3", holds=("--depth", "head and linear"))
        self.bad(2, "bench", "kl", "--device", "cuda", "--fp32-products", "tf32", holds=("--fp32-products", "head"))

    def test_files(self):
        self.layer()
        self.write("wide.npy", "<f4", (5, 7), [0.0] * 35)
        self.write("cube.npy", "<f4", (2, 3, 6), [0.0] * 36)
        self.write("six.npy", "<f4", (6,), [0.0] * 6)
        self.write("bytes.npy", "|u1", (9, 6), [0] * 54)
        self.write("one.npy", "<f4", (1, 6), [0.0] * 6)
        head = ("--train", "-o", "p.npy")
        for arguments, words in (
                (("x.npy", "--weight", "wide.npy"), ("wide.npy", "(5, 7)", "(9, 6)")),
                (("cube.npy", "--weight", "w.npy"), ("cube.npy", "(2, 3, 6)", "(B, K)")),
                (("bytes.npy", "--weight", "w.npy"), ("bytes.npy", "u8")),
                (("one.npy", "--weight", "w.npy"), ("one.npy", "batch of 1")),
                (("x.npy", "--weight", "w.npy", "--gamma", "six.npy"), ("six.npy", "(6,)", "(5,)")),
                (("x.npy", "--weight", "w.npy", "--scale", "six.npy"), ("six.npy", "one number")),
                (("x.npy", "--weight", "none.npy"), ("none.npy",))):
            with self.subTest(arguments=arguments):
                self.bad(3, "head", *arguments, *head, holds=words)
        self.bad(2, "linear", "x.npy", "w.npy", "-o", "x.npy", holds=("x.npy",))
        self.bad(2, "head", "x.npy", "--weight", "w.npy", "--train", "-o", "p.npy", "--running-mean-out", "p.npy",
                 "--running-var-out", "v2.npy", holds=("p.npy",))


class Commands(LayerTest):
    def test_thread_counts_give_the_same_bytes(self):
        self.rows, self.depth, self.columns = 300, 40, 90
        self.layer()
        results = set()
        for threads in (1, 2, 3):
            self.good("head", "x.npy", "--weight", "w.npy", "--train", "-o", "p.npy", "--threads", threads)
            with open(self.path("p.npy"), "rb") as file:
                results.add(file.read())
        self.assertEqual(len(results), 1)

    def test_bench(self):
        for name, works in (("head", 4), ("linear", 3)):
            for more in ((), ("--dtype", "bf16"), ("--dtype", "f64", "--isa", "scalar", "--threads", "1"), ("--grad",)):
                answer = json.loads(self.good("bench", name, "--rows", "33", "--depth", "20", "--cols", "17",
                                              "--seconds", "0.001", "--json", *more))
                rows = {row["work"]: row for row in answer["rows"]}
                self.assertEqual(len(rows), 2 if "--grad" in more else works)
                for row in rows.values():
                    self.assertGreaterEqual(row["rounds"], 15)
                    self.assertGreater(row["gflop_per_s"], 0)
                    self.assertGreater(row["share"], 0)
                    if "error" in row:
                        self.assertLess(row["error"], 1e-2 if "bf16" in more else 1e-5)
            text = self.good("bench", name, "--rows", "8", "--depth", "8", "--cols", "8", "--seconds", "0.001").decode()
            self.assertEqual(len(text.splitlines()), 2 + works)
            self.assertIn("GFLOP/s", text)

    def test_info_names_the_gemm_libraries(self):
        def ask(**more):
            environment = dict(os.environ, **more)
            return (json.loads(self.good("info", "--json", env=environment)),
                    self.good("info", env=environment).decode())
        answer, text = ask()
        self.assertIn("cublaslt", answer)
        self.assertRegex(text, r"(?m)^CPU GEMM +\S")
        self.assertRegex(text, r"(?m)^CUDA GEMM +\S")
        answer, text = ask(ONEPASS_BLAS="none")
        self.assertIsNone(answer["blas"])
        for said in (answer["blas_text"], text):
            self.assertIn("$ONEPASS_BLAS is \"none\"", said)
            self.assertIn("the library's own product", said)
        for value in ("none", "/nowhere/libcublasLt.so"):
            answer, text = ask(ONEPASS_CUBLASLT=value)
            self.assertIsNone(answer["cublaslt"])
            self.assertIn(answer["cublaslt_text"], text)
            if any(device["name"] == "cuda:0" for device in answer["devices"]):
                self.assertIn("own kernel", text)
                self.assertIn(value, answer["cublaslt_text"])

    def test_check(self):
        # With this seed the two terms of a gradient nearly cancel: what they are rounded by is not the result's.
        answer = json.loads(self.good("check", "--quick", "--seed", "2326343", "--json"))
        lines = [line for line in answer["lines"] if "operator" in line]
        levels = set(json.loads(self.good("info", "--json"))["levels_usable"]) - {"ref"}
        want = {(level, name, dtype) for level in levels
                for name in ("cross-entropy", "divergence", "head", "linear", "linear-cross-entropy",
                             "linear-divergence", "linear-token", "shards", "token")
                for dtype in ("f16", "bf16", "f32", "f64")}
        self.assertEqual({(line["level"], line["operator"], line["dtype"]) for line in lines}, want)
        self.assertTrue(all(line["cases"] > 0 and line["failures"] == 0 for line in lines))


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.isfile(sys.argv[1]):
        test_tool.TOOL = sys.argv.pop(1)
    if not os.path.isfile(test_tool.TOOL):
        sys.exit("usage: test_tool_head.py PATH_OF_ONEPASS, or set ONEPASS_TOOL")
    test_tool.TOOL = os.path.abspath(test_tool.TOOL)
    os.environ.pop("ONEPASS_ISA", None)
    print("seed %d (ONEPASS_TEST_SEED repeats it)" % test_tool.SEED, file=sys.stderr)
    unittest.main()
