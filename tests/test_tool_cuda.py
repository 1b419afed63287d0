#!/usr/bin/env python3
"""onepass with --device cuda: values against exact ones, running statistics, bench, check, what is refused.

usage: test_tool_cuda.py PATH_OF_ONEPASS [DIRECTORY]. On a machine with a GPU (./dev gpu runs it there) without the
directory. With it, its libcuda.so.1 takes the driver's place: the stand-in of driver_standin.c, which runs the kernels
on the CPU. That shows what they compute, and what the tool copies, fetches and releases, also when memory ends.
Standard library only; the seed is printed and $ONEPASS_TEST_SEED repeats it.
"""
import json
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_tool  # noqa: E402
import test_tool_head  # noqa: E402
import test_tool_logits  # noqa: E402

STANDIN = ""
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class Values(test_tool_head.Values):
    """Everything that is asked of the CPU."""
    device = ("--device", "cuda")


class Losses(test_tool_logits.BenchTest):
    """bench of losses from logits: one of each kind, since a run takes seconds with a stand-in and with a GPU."""
    device = ("--device", "cuda")
    kinds = (("kl", "--pred", "logits", "--target", "logits"), ("xent",),
             ("token", "--dtype", "bf16", "--indices", "4"))

    def test_bench(self):
        for arguments in self.kinds:
            with self.subTest(arguments=arguments):
                self.check(self.measure(*arguments), *test_tool_logits.BENCHES[arguments])

    def test_no_memory(self):
        if not STANDIN:
            self.skipTest("a GPU's memory does not end on demand")
        command = ("bench", "token", "--rows", "3", "--cols", "5", "--grad", "--seconds", "0.001") + self.device
        for claims in range(200):
            environment = dict(os.environ, ONEPASS_STANDIN_ALLOCATIONS=str(claims))
            if self.run_tool(*command, env=environment).returncode == 0:
                break
            self.bad(3, *command, env=environment, holds=(OUT_OF_MEMORY,))
        self.assertTrue(20 <= claims < 199, claims)


class TopK(test_tool_logits.TopK):
    """kl --top-k in float64; what is refused is no matter of the device."""
    test_errors = None

    def run_tool(self, *arguments, **more):
        return super().run_tool(*arguments, *(("--device", "cuda") if arguments[0] == "kl" else ()), **more)


class Commands(test_tool_head.LayerTest):
    device = ("--device", "cuda")

    def test_json(self):
        self.layer()
        for arguments in (("linear", "x.npy", "w.npy", "-o", "y.npy"),
                          ("head", "x.npy", "--weight", "w.npy", "--train", "-o", "y.npy")):
            for products in ("full", "tf32", "vendor") + (() if STANDIN else ("split",)):  # which has no kernels for it
                answer = json.loads(self.good(*arguments, "--json", "--fp32-products", products))
                self.assertEqual((answer["device"], answer["isa"], answer["threads"]), ("cuda", "cuda", 0))
                self.assertEqual((answer["fp32_products"], answer["written"]), (products, ["y.npy"]))
                self.assertNotIn("blas", answer)
                self.assertTrue(answer["products"])

    def test_info(self):
        answer = json.loads(self.good("info", "--device", "cuda", "--json"))
        self.assertTrue(answer["devices"][1]["usable"])
        if STANDIN:  # it has no TMA
            self.assertEqual(answer["devices"][1]["fp32_products"], "cuBLAS")
        else:
            self.assertIn("cuBLAS", answer["devices"][1]["fp32_products"])
        none = json.loads(self.good("info", "--device", "cuda", "--json",
                                    env=dict(os.environ, ONEPASS_CUBLASLT="none")))
        self.assertIsNone(none["cublaslt"])
        self.assertIn("$ONEPASS_CUBLASLT", none["cublaslt_text"])

    def test_empty(self):
        self.write("x.npy", "<f4", (0, 6), [])
        self.write("w.npy", "<f4", (5, 6), [1.0] * 30)
        self.good("linear", "x.npy", "w.npy", "-o", "y.npy")
        self.assertEqual(self.read("y.npy")[1:], ((0, 5), []))

    def test_layouts(self):
        """Columns first, as NumPy writes a transposed array."""
        x, w = self.array("x.npy", (self.rows, self.depth)), self.array("w.npy", (self.columns, self.depth))
        self.good("linear", "x.npy", "w.npy", "-o", "y.npy")
        for name, values, rows in (("x.npy", x, self.rows), ("w.npy", w, self.columns)):
            self.write(name, "<f4", (rows, self.depth), values, fortran=True)
        self.good("linear", "x.npy", "w.npy", "-o", "z.npy")
        zero = [0.0] * self.columns
        self.same("z.npy", test_tool_head.product(x, w, self.rows, self.depth, self.columns, zero), "<f4",
                  (self.rows, self.columns))
        self.same("z.npy", self.read("y.npy")[2], "<f4", (self.rows, self.columns))

    def test_bench(self):
        for name, works in (("head", 4), ("linear", 3)):
            variants = ((), ("--dtype", "bf16"), ("--dtype", "f64"), ("--grad",), ("--fp32-products", "tf32"))
            for more in variants if STANDIN else variants[1::3]:  # a GPU takes a second to start
                answer = json.loads(self.good("bench", name, "--rows", "7", "--depth", "20", "--cols", "17",
                                              "--seconds", "0.001", "--json", *self.device, *more))
                self.assertEqual((answer["device"], answer["isa"]), ("cuda", "cuda"))
                rows = {row["work"]: row for row in answer["rows"]}
                self.assertEqual(len(rows), 2 if "--grad" in more else works)
                for row in rows.values():
                    self.assertGreaterEqual(row["rounds"], 30)
                    self.assertTrue(0 < row["ms_q20"] <= row["ms"] <= row["ms_q80"])
                    if "error" in row:
                        self.assertLess(row["error"], 3e-2 if {"bf16", "tf32"} & set(more) else 1e-5)
                self.assertEqual(sum("error" in row for row in rows.values()),
                                 0 if "f64" in more else len(rows) - 1)
            text = self.good("bench", name, "--rows", "8", "--depth", "8", "--cols", "8", "--seconds", "0.001",
                             *self.device).decode()
            self.assertEqual(len(text.splitlines()), 2 + works)

    def test_check(self):
        answer = json.loads(self.good("check", "--quick", "--json", *self.device, timeout=1800))
        lines = {(line["operator"], line["dtype"]) for line in answer["lines"] if "operator" in line}
        names = ("cross-entropy", "divergence", "head", "linear", "linear-cross-entropy", "linear-divergence",
                 "linear-token", "token")
        self.assertEqual(lines, {(name, dtype) for name in names for dtype in ("f16", "bf16", "f32", "f64")})
        self.assertEqual({line["level"] for line in answer["lines"]}, {"cuda"})
        self.assertGreater(len(answer["lines"]), len(lines))  # those of KL
        self.assertTrue(answer["passed"])

    def test_kl(self):
        """The copies of kl; check has the rest of it."""
        self.pair(5, 7)
        want = self.value("p.npy", "t.npy", "--grad-pred", "g.npy")
        gradient = self.read("g.npy")[2]
        got = self.value("p.npy", "t.npy", "--grad-pred", "g2.npy", "-o", "v.npy", *self.device)
        self.assertTrue(abs(got - want) <= 1e-6 * abs(want), (got, want))
        self.same("g2.npy", gradient, "<f4", (5, 7))
        self.assertEqual(self.read("v.npy")[1], ())

    def test_no_memory(self):
        """Every claim of device memory fails once: said, nothing written, everything given back."""
        if not STANDIN:
            self.skipTest("a GPU's memory does not end on demand")
        self.layer()
        commands = (
            ("linear", "x.npy", "w.npy", "--bias", "b.npy", "-o", "y.npy"),
            ("head", "x.npy", "--weight", "w.npy", "--bias", "b.npy", "--gamma", "g.npy", "--beta", "e.npy", "--scale",
             "s.npy", "--train", "--running-mean", "m.npy", "--running-var", "v.npy", "--running-mean-out", "m2.npy",
             "--running-var-out", "v2.npy", "-o", "p.npy"),
            ("bench", "linear", "--rows", "3", "--depth", "4", "--cols", "5", "--seconds", "0.001", "--device", "cuda"),
        )
        for command, least in zip(commands, (5, 11, 40)):
            for claims in range(200):
                environment = dict(os.environ, ONEPASS_STANDIN_ALLOCATIONS=str(claims))
                if self.run_tool(*command, env=environment).returncode == 0:
                    break
                self.bad(3, *command, env=environment, holds=(OUT_OF_MEMORY,))
            self.assertGreaterEqual(claims, least, command)
            self.assertLess(claims, 199, command)

    def test_refused_kernel(self):
        """A launch that fails is the device's failure, and leaves nothing behind."""
        if not STANDIN:
            self.skipTest("a GPU does what it is told")
        for kernel in ("onep_read_probe", "onep_kl_flat_f32_0_grad"):
            self.bad(4, "bench", "kl", "--rows", "3", "--cols", "5", "--grad", "--seconds", "0.001", "--device", "cuda",
                     env=dict(os.environ, ONEPASS_STANDIN_REFUSES=kernel), holds=(kernel, "CUDA_ERROR_NOT_SUPPORTED"))


def main():
    global STANDIN
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        sys.exit("usage: test_tool_cuda.py PATH_OF_ONEPASS [DIRECTORY]")
    test_tool.TOOL = os.path.abspath(sys.argv.pop(1))
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]):
        STANDIN = os.path.abspath(sys.argv.pop(1))
        os.environ["LD_LIBRARY_PATH"] = STANDIN
        os.environ["ONEPASS_CUBLASLT"] = "none"
    os.environ.pop("ONEPASS_ISA", None)
    print("seed %d (ONEPASS_TEST_SEED repeats it)" % test_tool.SEED, file=sys.stderr)
    result = unittest.main(exit=False).result
    for test, reason in result.skipped:
        print("left out: %s: %s" % (test.id(), reason))
    ran = result.testsRun - len(result.skipped)
    failed = min(ran, len(result.failures) + len(result.errors))  # a test may fail in several of its parts
    print("%d checks, %d failed" % (ran, failed))
    return 1 if failed or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
