#!/usr/bin/env python3
"""The onepass command as a user meets it: values against exact ones, files, errors, pages.

usage: test_tool.py [PATH_OF_ONEPASS] [unittest arguments]; otherwise $ONEPASS_TOOL. Standard library only. Inputs are
random; the seed is printed and $ONEPASS_TEST_SEED repeats it.
"""
import itertools
import json
import math
import os
import random
import re
import resource
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_npy_corpus as corpus  # noqa: E402
from kl_exact import (EPSILON, INF, NAN, SMALLEST, divide, element, exact_sum, exp, npy_bytes,  # noqa: E402
                      parse_npy, product, rounded, softmax, terms)

TOOL = os.environ.get("ONEPASS_TOOL", "")
SEED = int(os.environ.get("ONEPASS_TEST_SEED", int(time.time())))

# ---- the cases -------------------------------------------------------------------------------------------------------


class ToolTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="onepass-test-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.random = random.Random("%d %s" % (SEED, self.id()))

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, descr, shape, values, **more):
        with open(self.path(name), "wb") as file:
            file.write(npy_bytes(descr, shape, values, **more))
        return name

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return parse_npy(file.read())

    def run_tool(self, *arguments, **more):
        more.setdefault("timeout", 600)
        return subprocess.run([TOOL] + [str(a) for a in arguments], cwd=self.directory, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, **more)

    def good(self, *arguments, **more):
        """Runs what must succeed; its stdout."""
        result = self.run_tool(*arguments, **more)
        self.assertEqual(result.returncode, 0, (arguments, result.stderr))
        self.assertEqual(result.stderr, b"", arguments)
        return result.stdout

    def value(self, *arguments, **more):
        """The number that `onepass kl` prints."""
        text = self.good("kl", *arguments, **more).decode()
        self.assertRegex(text, r"\A(nan|-?inf|-?[0-9.]+(e[+-][0-9]+)?)\n\Z")
        return float(text)

    def bad(self, code, *arguments, holds=(), **more):
        """Runs what must fail: one line on stderr, nothing on stdout, no file made or changed."""
        before = self.snapshot()
        result = self.run_tool(*arguments, **more)
        text = result.stderr.decode("utf-8", "replace")
        self.assertEqual(result.returncode, code, (arguments, text))
        self.assertEqual(result.stdout, b"", arguments)
        self.assertRegex(text, r"\Aonepass[^\n]*: [^\n]+\n\Z", arguments)
        self.assertNotRegex(text[:-1], r"[\x00-\x1f\x7f]", arguments)
        for word in holds:
            self.assertIn(word, text, arguments)
        self.assertEqual(self.snapshot(), before, arguments)
        return text

    def snapshot(self):
        files = {}
        for name in os.listdir(self.directory):
            status = os.lstat(self.path(name))
            data = None
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o400 and status.st_size < 1 << 20:
                with open(self.path(name), "rb") as file:
                    data = file.read()
            files[name] = (status.st_ino, status.st_size, data)
        return files

    def near(self, got, want, scale, units=4, descr="<f4", note=None, floor=0.0):
        """`got` is within some ulps (of the scale), never NaN unless both are."""
        if want != want or abs(want) == INF:
            self.assertTrue(got == want or (got != got and want != want), (got, want, note))
            return
        allowed = units * EPSILON[descr] * max(abs(want), scale if scale < INF else 0) + max(SMALLEST[descr], floor)
        self.assertTrue(abs(got - want) <= allowed, (got, want, abs(got - want) / allowed, note))

    def pair(self, rows, columns, descr="<f4", target_descr=None, log_pred=False, log_target=False, scale=3.0):
        """p.npy and t.npy with random distributions; their numbers as stored."""
        predictions = [v for _ in range(rows) for v in softmax(self.random, columns, scale)]
        targets = [v for _ in range(rows) for v in softmax(self.random, columns)]
        if log_pred:
            predictions = [math.log(v) for v in predictions]
        if log_target:
            targets = [math.log(v) for v in targets]
        target_descr = target_descr or descr
        self.write("p.npy", descr, (rows, columns), predictions)
        self.write("t.npy", target_descr, (rows, columns), targets)
        return rounded(descr, predictions), rounded(target_descr, targets)


FORMS = list(itertools.product((False, True), repeat=2))


def form_options(log_pred, log_target):
    return ["--pred", "log-probs" if log_pred else "probs", "--target", "log-probs" if log_target else "probs"]


class Values(ToolTest):
    def test_forms_types_reductions(self):
        rows, columns = 5, 67
        types = [("<f4", "<f4"), ("<f8", "<f8"), ("<f2", "<f2"), ("|V2", "|V2"), ("<f4", "|V2"), ("<f2", "<f8"),
                 ("|V2", "<f2")]
        for (descr, target_descr), form in itertools.product(types, FORMS):
            p, t = self.pair(rows, columns, descr, target_descr, *form)
            out = "<f8" if "<f8" in (descr, target_descr) else "<f4"
            elements = [element(a, b, *form)[0] for a, b in zip(p, t)]
            scales = [terms(a, b, *form) for a, b in zip(p, t)]
            total, scale = math.fsum(elements), math.fsum(scales)
            divisors = {"batchmean": rows, "mean": rows * columns, "sum": 1}
            for reduction, divisor in divisors.items():
                got = self.value("p.npy", "t.npy", "--reduction", reduction, *form_options(*form))
                self.near(got, total / divisor, scale / divisor, descr=out, note=(descr, target_descr, form, reduction))
            self.assertEqual(self.value("p.npy", "t.npy", *form_options(*form)),
                             self.value("p.npy", "t.npy", "--reduction", "batchmean", *form_options(*form)))
            got = self.value("p.npy", "t.npy", "--divisor", "-12.5", *form_options(*form))
            self.near(got, total / -12.5, scale / 12.5, descr=out)
            self.assertEqual(self.good("kl", "p.npy", "t.npy", "--reduction", "rows", "-o", "o.npy",
                                       *form_options(*form)), b"")
            got_descr, shape, values = self.read("o.npy")
            self.assertEqual((got_descr, shape), (out, (rows,)))
            for row, got in enumerate(values):
                part = slice(row * columns, (row + 1) * columns)
                self.near(got, math.fsum(elements[part]), math.fsum(scales[part]), descr=out)
            self.good("kl", "p.npy", "t.npy", "--reduction", "none", "-o", "o.npy", *form_options(*form))
            got_descr, shape, values = self.read("o.npy")
            self.assertEqual((got_descr, shape), (out, (rows, columns)))
            for got, want, scale in zip(values, elements, scales):
                self.near(got, want, scale, descr=out)

    def test_against_decimal(self):
        for descr, form in itertools.product(("<f4", "<f8"), FORMS):
            p, t = self.pair(2, 30, descr, None, *form)
            scale = math.fsum(terms(a, b, *form) for a, b in zip(p, t))
            got = self.value("p.npy", "t.npy", "--reduction", "sum", *form_options(*form))
            self.near(got, exact_sum(p, t, *form), scale, units=2, descr=descr)

    def test_number_has_all_its_digits(self):
        self.pair(3, 40)
        text = self.good("kl", "p.npy", "t.npy").decode().strip()
        self.good("kl", "p.npy", "t.npy", "-o", "o.npy")
        self.assertEqual(struct.pack("<f", float(text)), struct.pack("<f", self.read("o.npy")[2][0]))
        self.assertEqual(text, "%.9g" % self.read("o.npy")[2][0])
        self.pair(3, 40, "<f8")
        text = self.good("kl", "p.npy", "t.npy", "-o", "o.npy").decode().strip()
        self.assertEqual(text, "%.17g" % self.read("o.npy")[2][0])

    def test_tiny_divergences(self):
        for columns in (1000, 50000):
            p = rounded("<f4", softmax(self.random, columns))
            for size in (3e-2, 1e-3, 4.5e-4, 1e-4):  # 4.5e-4: a divergence of about 1e-7
                t = rounded("<f4", [v * (1 + size * (2 * self.random.random() - 1)) for v in p])
                self.write("p.npy", "<f4", (1, columns), p)
                self.write("t.npy", "<f4", (1, columns), t)
                exact = exact_sum(p, t) if columns == 1000 else math.fsum(element(a, b)[0] for a, b in zip(p, t))
                # What is left of a sum whose terms cancel, up to a millionth of it
                got = self.value("p.npy", "t.npy")
                self.assertTrue(abs(got / exact - 1) <= 1e-6, (columns, size, got, exact, got / exact - 1))

    def test_equal_inputs_give_zero(self):
        for descr in ("<f2", "|V2", "<f4", "<f8"):
            self.write("p.npy", descr, (4, 33), [v for _ in range(4) for v in softmax(self.random, 33)])
            self.assertEqual(self.value("p.npy", "p.npy"), 0)
        self.write("p.npy", "<f4", (4, 33), [math.log(v) for _ in range(4) for v in softmax(self.random, 33)])
        self.assertEqual(self.value("p.npy", "p.npy", "--pred", "log-probs", "--target", "log-probs"), 0)

    def test_weights_and_mask(self):
        rows, columns = 6, 19
        p, t = self.pair(rows, columns)
        sums = [math.fsum(element(a, b)[0] for a, b in zip(p[r * columns:(r + 1) * columns], t[r * columns:]))
                for r in range(rows)]
        scale = math.fsum(terms(a, b) for a, b in zip(p, t)) * 4
        weights = [self.random.choice((0.0, 0.5, 1.0, -2.0, 3.25)) for _ in range(rows)]
        mask = [1, 0, 1, 1, 0, 2]
        kept = [m != 0 for m in mask]
        for weight_descr in ("<f4", "<f8", "<f2", "|V2"):
            self.write("w.npy", weight_descr, (rows,), weights)
            want = math.fsum(s * w for s, w in zip(sums, weights)) / rows
            self.near(self.value("p.npy", "t.npy", "--weights", "w.npy"), want, scale / rows)
        for mask_descr in ("|b1", "|u1", "|i1"):
            self.write("m.npy", mask_descr, (rows,), mask)
            want = math.fsum(s * k for s, k in zip(sums, kept)) / rows
            self.near(self.value("p.npy", "t.npy", "--mask", "m.npy"), want, scale / rows)
            want = math.fsum(s * w * k for s, w, k in zip(sums, weights, kept))
            got = self.value("p.npy", "t.npy", "--mask", "m.npy", "--weights", "w.npy", "--reduction", "sum")
            self.near(got, want, scale)
        self.good("kl", "p.npy", "t.npy", "--mask", "m.npy", "--weights", "w.npy", "--reduction", "rows", "-o",
                  "o.npy", "--grad-pred", "g.npy")
        for got, s, w, k in zip(self.read("o.npy")[2], sums, weights, kept):
            self.near(got, s * w * k, scale)
        for i, got in enumerate(self.read("g.npy")[2]):
            row = i // columns
            self.near(got, -t[i] / p[i] * weights[row] * kept[row], 0)

    def test_masked_rows_are_not_looked_at(self):
        self.write("p.npy", "<f4", (2, 3), [0.5, 0.25, 0.25, NAN, -1, INF])
        self.write("t.npy", "<f4", (2, 3), [0.25, 0.5, 0.25, NAN, 0, INF])
        self.write("m.npy", "|b1", (2,), [1, 0])
        want = math.fsum(element(a, b)[0] for a, b in ((0.5, 0.25), (0.25, 0.5))) / 2
        self.near(self.value("p.npy", "t.npy", "--mask", "m.npy", "--grad-pred", "g.npy"), want, 1)
        self.assertEqual(self.read("g.npy")[2], [-0.25, -1, -0.5, 0, 0, 0])
        self.write("m.npy", "|b1", (2,), [0, 0])
        self.assertEqual(self.value("p.npy", "t.npy", "--mask", "m.npy"), 0)

    def test_gradients(self):
        rows, columns = 4, 37
        types = [("<f4", "<f4"), ("<f8", "<f8"), ("<f2", "<f2"), ("|V2", "|V2"), ("<f4", "<f2"), ("<f2", "<f8")]
        for (descr, target_descr), form in itertools.product(types, FORMS):
            p, t = self.pair(rows, columns, descr, target_descr, *form)
            for reduction, divisor in (("batchmean", rows), ("mean", rows * columns), ("sum", 1), ("none", 1)):
                options = ["--reduction", reduction, "-o", "o.npy"] + form_options(*form)
                self.good("kl", "p.npy", "t.npy", "--grad-pred", "g.npy", "--grad-target", "h.npy", *options)
                alone = self.read("o.npy")
                g, h = self.read("g.npy"), self.read("h.npy")
                self.assertEqual((g[0], h[0], g[1]), (descr, target_descr, (rows, columns)))
                for a, b, got, got_target in zip(p, t, g[2], h[2]):
                    _, d_pred, d_target = element(a, b, *form)
                    scale = terms(a, b, *form)
                    scale = scale + exp(b) if form[1] else divide(scale, b) + 1
                    note = (descr, target_descr, form, reduction, a, b)
                    # The terms are rounded in the type computed in; a half type rounds the result once more.
                    coarse = max(EPSILON[descr] / EPSILON["<f4"], 1)
                    self.near(got, d_pred / divisor, abs(d_pred) / divisor * coarse, 3, "<f4" if coarse > 1 else descr,
                              note, SMALLEST[descr])
                    coarse = max(EPSILON[target_descr] / EPSILON["<f4"], 1)
                    self.near(got_target, d_target / divisor, (scale + abs(d_target) * coarse) / divisor, 3,
                              "<f4" if coarse > 1 or descr != "<f8" else target_descr, note, SMALLEST[target_descr])
                self.good("kl", "p.npy", "t.npy", *options)
                self.assertEqual(self.read("o.npy"), alone)  # the same bits with and without gradients


class SpecialValues(ToolTest):
    """Every line of the tables, through --reduction none, element by element."""

    PROBS = [0.0, -0.0, 0.5, 1.0, 2.0**-126, 1e-40, 2.0**-149, 1e30, INF, NAN, -1.0, -2.0**-149, -INF]
    LOG_PROBS = [-INF, 0.0, -0.0, -0.5, -20.0, -80.0, -87.3, -95.0, -200.0, 2.5, INF, NAN]

    def table(self, descr, form, semantics):
        predictions = self.LOG_PROBS if form[0] else self.PROBS
        targets = self.LOG_PROBS if form[1] else self.PROBS
        pairs = list(itertools.product(rounded(descr, predictions), rounded(descr, targets)))
        self.write("p.npy", descr, (len(pairs), 1), [a for a, _ in pairs])
        self.write("t.npy", descr, (len(pairs), 1), [b for _, b in pairs])
        self.good("kl", "p.npy", "t.npy", "--semantics", semantics, "--reduction", "none", "-o", "o.npy", "--grad-pred",
                  "g.npy", "--grad-target", "h.npy", *form_options(*form))
        results = zip(self.read("o.npy")[2], self.read("g.npy")[2], self.read("h.npy")[2])
        for (a, b), got in zip(pairs, results):
            want = element(a, b, *form, finite=semantics == "finite", smallest=SMALLEST[descr])
            if descr == "<f4":
                want = [self.as_fp32(v) for v in want]
            if form[1] and descr == "<f4" and b < -87:
                # exp(b) is subnormal or 0 in fp32: few digits, or none
                for x, y in zip(got, want):
                    close = x == y or (x != x and y != y) or abs(x - y) <= 2e-43 * (abs(a) + abs(b) + 1) or \
                        (not form[0] and a < 2.0**-125)
                    self.assertTrue(close, (descr, form, semantics, a, b, got, want))
                continue
            scale = terms(a, b, *form)
            scales = [scale, 0, scale + exp(b) if form[1] else divide(scale, b) + 1]
            for k in range(3):
                if k == 2 and b == INF:
                    continue  # inf - inf and inf / inf: no rule beyond the value's
                self.near(got[k], want[k], scales[k], 8, descr,
                          (descr, form, semantics, "value d_pred d_target".split()[k], a, b))

    @staticmethod
    def as_fp32(value):
        try:
            return struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            return math.copysign(INF, value)

    def test_tables(self):
        for descr, form, semantics in itertools.product(("<f4", "<f8"), FORMS, ("strict", "finite")):
            with self.subTest(descr=descr, form=form, semantics=semantics):
                self.table(descr, form, semantics)

    def test_printed_specials(self):
        for targets, predictions, want in (([0.0], [0.0], "nan"), ([1.0], [0.0], "inf"), ([-1.0], [0.5], "nan"),
                                           ([NAN], [0.5], "nan"), ([0.5], [-NAN], "nan")):
            self.write("p.npy", "<f4", (1, 1), predictions)
            self.write("t.npy", "<f4", (1, 1), targets)
            self.assertEqual(self.good("kl", "p.npy", "t.npy"), want.encode() + b"\n")
            answer = json.loads(self.good("kl", "p.npy", "t.npy", "--json"))
            self.assertIsNone(answer["value"])
            self.assertEqual(answer["value_text"], want)
        self.assertEqual(self.good("kl", "p.npy", "t.npy", "--divisor", "-1"), b"nan\n")
        self.write("p.npy", "<f4", (1, 1), [0.0])
        self.write("t.npy", "<f4", (1, 1), [1.0])
        self.assertEqual(self.good("kl", "p.npy", "t.npy", "--divisor", "-1"), b"-inf\n")
        self.write("t.npy", "<f4", (1, 1), [0.0])
        self.assertEqual(float(self.good("kl", "p.npy", "t.npy", "--semantics", "finite")), 0)

    def test_subnormal_distributions(self):
        p = rounded("<f4", [self.random.random() * 1e-39 for _ in range(64)])
        t = rounded("<f4", [self.random.random() * 1e-39 for _ in range(64)])
        self.write("p.npy", "<f4", (2, 32), p)
        self.write("t.npy", "<f4", (2, 32), t)
        want = math.fsum(element(a, b)[0] for a, b in zip(p, t)) / 2
        self.near(self.value("p.npy", "t.npy"), want, math.fsum(terms(a, b) for a, b in zip(p, t)))


class Shapes(ToolTest):
    def check(self, shape, options=(), divisor=None):
        count = product(shape)
        p = rounded("<f4", [0.05 + self.random.random() for _ in range(count)])
        t = rounded("<f4", [0.05 + self.random.random() for _ in range(count)])
        self.write("p.npy", "<f4", shape, p)
        self.write("t.npy", "<f4", shape, t)
        total = math.fsum(element(a, b)[0] for a, b in zip(p, t))
        scale = math.fsum(terms(a, b) for a, b in zip(p, t))
        divisor = divisor or (shape[0] if shape else 1)
        self.near(self.value("p.npy", "t.npy", *options), total / divisor, scale / divisor, note=shape)
        row_shape = shape[:-1]
        self.good("kl", "p.npy", "t.npy", "--reduction", "rows", "-o", "o.npy", "--grad-pred", "g.npy")
        self.assertEqual(self.read("o.npy")[1], row_shape)
        self.assertEqual(self.read("g.npy")[1], shape)

    def test_shapes(self):
        for shape in ((), (1,), (7,), (1, 1), (1, 50), (50, 1), (2, 3, 5), (2, 1, 3, 2), (3, 1), (1,) * 40,
                      (2,) * 8 + (1,) * 56):
            with self.subTest(shape=shape):
                self.check(shape)

    def test_wide_row(self):
        self.check((1, 300000))

    def test_many_rows(self):
        self.check((40000, 3))

    def test_empty(self):
        for shape, batchmean, mean in (((0, 5), "nan", "nan"), ((5, 0), "0", "nan"), ((0,), "nan", "nan"),
                                       ((0, 0), "nan", "nan"), ((2, 0, 3), "0", "nan"), ((1 << 40, 0), "0", "nan")):
            self.write("p.npy", "<f4", shape, [])
            self.assertEqual(self.good("kl", "p.npy", "p.npy"), batchmean.encode() + b"\n", shape)
            self.assertEqual(self.good("kl", "p.npy", "p.npy", "--reduction", "mean"), mean.encode() + b"\n", shape)
            self.assertEqual(self.good("kl", "p.npy", "p.npy", "--reduction", "sum"), b"0\n", shape)
            self.good("kl", "p.npy", "p.npy", "--reduction", "none", "-o", "o.npy", "--grad-pred", "g.npy")
            self.assertEqual(self.read("o.npy"), ("<f4", shape, []))
            self.assertEqual(self.read("g.npy"), ("<f4", shape, []))
        self.write("p.npy", "<f4", (3, 0), [])
        self.good("kl", "p.npy", "p.npy", "--reduction", "rows", "-o", "o.npy")
        self.assertEqual(self.read("o.npy"), ("<f4", (3,), [0.0, 0.0, 0.0]))

    def test_fortran_order(self):
        for shape in ((3, 5), (2, 3, 4), (6,), (1, 7), (40, 33)):
            p = rounded("<f4", [0.05 + self.random.random() for _ in range(product(shape))])
            t = rounded("<f4", [0.05 + self.random.random() for _ in range(product(shape))])
            outputs = []
            for p_order, t_order in itertools.product((False, True), repeat=2):
                self.write("p.npy", "<f4", shape, p, fortran=p_order)
                self.write("t.npy", "<f4", shape, t, fortran=t_order)
                self.good("kl", "p.npy", "t.npy", "--reduction", "none", "-o", "o.npy", "--grad-pred", "g.npy",
                          "--grad-target", "h.npy")
                outputs.append([self.read(name) for name in ("o.npy", "g.npy", "h.npy")])
                total = math.fsum(element(a, b)[0] for a, b in zip(p, t))
                scale = math.fsum(terms(a, b) for a, b in zip(p, t))
                self.near(self.value("p.npy", "t.npy", "--reduction", "sum"), total, scale)
            for other in outputs[1:]:
                for (_, shape_a, a), (_, shape_b, b) in zip(outputs[0], other):
                    self.assertEqual(shape_a, shape_b)
                    for x, y in zip(a, b):
                        self.near(x, y, abs(y))

    def test_thread_counts_give_the_same_bytes(self):
        for shape in ((200, 1000), (3, 100000), (1, 250001)):
            count = product(shape)
            p = [0.05 + self.random.random() for _ in range(count)]
            t = [0.05 + self.random.random() for _ in range(count)]
            self.write("p.npy", "<f4", shape, p)
            self.write("t.npy", "<f4", shape, t)
            results = []
            for threads in (1, 2, 3, 16):
                outputs = [self.good("kl", "p.npy", "t.npy", "--threads", threads, "--grad-pred", "g.npy")]
                rows = ("--reduction", "rows", "-o", "-")
                outputs.append(self.good("kl", "p.npy", "t.npy", "--threads", threads, *rows))
                with open(self.path("g.npy"), "rb") as file:
                    outputs.append(file.read())
                results.append(outputs)
            for other in results[1:]:
                self.assertTrue(other == results[0], shape)


class Files(ToolTest):
    def setUp(self):
        super().setUp()
        self.p, self.t = self.pair(2, 3)
        self.plain = self.good("kl", "p.npy", "t.npy")

    def leftovers(self):
        return [name for name in os.listdir(self.directory) if name.startswith(".")]

    def test_every_valid_header(self):
        with open(self.path("t.npy"), "wb") as file:
            file.write(corpus.VALID["version 1"])
        want = self.good("kl", "p.npy", "t.npy")
        for name, data in corpus.VALID.items():
            with open(self.path("v.npy"), "wb") as file:
                file.write(data)
            self.assertEqual(self.good("kl", "p.npy", "v.npy"), want, name)
            self.assertEqual(self.good("kl", "p.npy", "-", input=data), want, name)

    def test_hostile_files(self):
        self.assertGreaterEqual(len(corpus.REFUSED), 25)
        with open(self.path("old.npy"), "wb") as file:
            file.write(b"this must stay as it is")
        for name, (data, word) in corpus.REFUSED.items():
            with self.subTest(name):
                with open(self.path("bad.npy"), "wb") as file:
                    file.write(data)
                self.bad(3, "kl", "bad.npy", "t.npy", "-o", "old.npy", "--grad-pred", "g.npy", holds=("bad.npy", word))
                self.bad(3, "kl", "p.npy", "bad.npy", "--json", "-o", "old.npy", holds=("bad.npy", word))
                word = "left over" if "left over" in word else word
                if word != "1000000000128":
                    self.bad(3, "kl", "p.npy", "-", input=data, holds=("stdin", word))
        for which in ("--weights", "--mask"):
            self.bad(3, "kl", "p.npy", "t.npy", which, "bad.npy", holds=("bad.npy",))

    def test_paths_that_are_no_files(self):
        os.mkdir(self.path("d"))
        os.symlink("nowhere", self.path("link"))
        self.bad(3, "kl", "missing.npy", "t.npy", holds=("missing.npy", "No such file"))
        self.bad(3, "kl", "p.npy", "d", holds=("d:", "directory"))
        self.bad(3, "kl", "p.npy", "p.npy/x", holds=("p.npy/x",))
        self.bad(3, "kl", "/dev/null", "t.npy", holds=("/dev/null", "empty"))
        self.bad(3, "kl", "/dev/zero", "t.npy", holds=("/dev/zero",))
        self.bad(3, "kl", "p.npy", "t.npy", "-o", "d", holds=("d:", "directory"))
        self.bad(3, "kl", "p.npy", "t.npy", "-o", "no/such/o.npy", holds=("no/such/o.npy",))
        self.bad(3, "kl", "p.npy", "t.npy", "-o", "d/", holds=("d/",))
        self.bad(3, "kl", "p.npy", "t.npy", "-o", "link", holds=("link",))
        self.bad(3, "kl", "p.npy", "t.npy", "-o", "p.npy/x", holds=("p.npy/x",))
        self.bad(3, "kl", "a\nonepass: fine\x1b[2J", "t.npy", holds=("\\x0a", "\\x1b"))

    def test_unreadable_file(self):
        if os.geteuid() == 0:
            print("unreadable files were not checked: root reads everything", file=sys.stderr)
            return
        os.chmod(self.path("p.npy"), 0)
        self.bad(3, "kl", "p.npy", "t.npy", holds=("p.npy", "Permission denied"))
        os.chmod(self.path("p.npy"), 0o600)
        self.write("o.npy", "<f4", (), [1.0])
        os.chmod(self.path("o.npy"), 0o400)
        self.bad(3, "kl", "p.npy", "t.npy", "-o", "o.npy", holds=("o.npy", "Permission denied"))

    def test_types_and_shapes_that_do_not_fit(self):
        self.write("m.npy", "|b1", (2,), [1, 0])
        self.write("w.npy", "<f4", (2,), [1.0, 2.0])
        self.write("w3.npy", "<f4", (3,), [1.0, 2.0, 3.0])
        self.write("m21.npy", "|b1", (2, 1), [1, 0])
        self.write("b.npy", "|u1", (2, 3), [1] * 6)
        self.write("t32.npy", "<f4", (3, 2), [0.5] * 6)
        self.write("t6.npy", "<f4", (6,), [0.5] * 6)
        self.bad(3, "kl", "p.npy", "t32.npy", holds=("t32.npy", "(3, 2)", "(2, 3)", "p.npy"))
        self.bad(3, "kl", "p.npy", "t6.npy", holds=("t6.npy", "(6,)", "(2, 3)"))
        self.bad(3, "kl", "b.npy", "t.npy", holds=("b.npy", "u8"))
        self.bad(3, "kl", "p.npy", "b.npy", holds=("b.npy", "u8"))
        self.bad(3, "kl", "p.npy", "t.npy", "--weights", "m.npy", holds=("m.npy", "bool"))
        self.bad(3, "kl", "p.npy", "t.npy", "--mask", "w.npy", holds=("w.npy", "f32"))
        self.bad(3, "kl", "p.npy", "t.npy", "--weights", "w3.npy", holds=("w3.npy", "(3,)", "(2,)"))
        self.bad(3, "kl", "p.npy", "t.npy", "--mask", "m21.npy", holds=("m21.npy", "(2, 1)", "(2,)"))

    def test_stdin_and_stdout(self):
        with open(self.path("p.npy"), "rb") as file:
            data = file.read()
        self.assertEqual(self.good("kl", "-", "t.npy", input=data), self.plain)
        with open(self.path("p.npy"), "rb") as file:
            self.assertEqual(self.good("kl", "-", "t.npy", stdin=file), self.plain)
        shell = 'cat p.npy | "$0" kl - <(cat t.npy)'
        piped = subprocess.run(["bash", "-c", shell, TOOL], cwd=self.directory, stdout=subprocess.PIPE, check=True)
        self.assertEqual(piped.stdout, self.plain)
        descr, shape, values = parse_npy(self.good("kl", "p.npy", "t.npy", "-o", "-"))
        self.assertEqual((descr, shape, "%.9g" % values[0]), ("<f4", (), self.plain.decode().strip()))
        descr, shape, values = parse_npy(self.good("kl", "p.npy", "t.npy", "--grad-pred", "-"))
        self.assertEqual((descr, shape), ("<f4", (2, 3)))
        self.good("kl", "p.npy", "t.npy", "--grad-pred", "g.npy")
        self.assertEqual(values, self.read("g.npy")[2])

    def test_scalar_to_file_is_printed_too(self):
        self.assertEqual(self.good("kl", "p.npy", "t.npy", "-o", "o.npy"), self.plain)
        self.assertEqual(self.read("o.npy")[:2], ("<f4", ()))

    def test_outputs_that_clash(self):
        os.symlink("p.npy", self.path("link"))
        os.link(self.path("t.npy"), self.path("hard"))
        for name in ("p.npy", "./p.npy", "link", "hard"):
            self.bad(2, "kl", "p.npy", "t.npy", "-o", name, holds=(name, "input"))
        self.bad(2, "kl", "p.npy", "t.npy", "-o", "x.npy", "--grad-pred", "./x.npy", holds=("x.npy",))
        self.write("x.npy", "<f4", (), [1.0])
        self.bad(2, "kl", "p.npy", "t.npy", "--grad-target", "x.npy", "--grad-pred", "./x.npy", holds=("x.npy",))
        self.bad(2, "kl", "p.npy", "t.npy", "-o", "-", "--grad-pred", "-", holds=("stdout",))
        self.bad(2, "kl", "-", "-", input=b"", holds=("stdin",))

    def test_replaces_a_file_as_a_whole(self):
        self.write("o.npy", "<f8", (3,), [1.0, 2.0, 3.0])
        os.chmod(self.path("o.npy"), 0o640)
        os.symlink("o.npy", self.path("link"))
        self.good("kl", "p.npy", "t.npy", "-o", "link")
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertEqual(self.read("o.npy")[:2], ("<f4", ()))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("o.npy")).st_mode), 0o640)
        self.assertEqual(self.leftovers(), [])

    def test_devices_and_pipes(self):
        self.assertEqual(self.good("kl", "p.npy", "t.npy", "-o", "/dev/null", "--grad-pred", "/dev/null"), self.plain)
        self.bad(3, "kl", "p.npy", "t.npy", "-o", "/dev/full", "--grad-pred", "g.npy", holds=("/dev/full", "No space"))
        with open("/dev/full", "wb") as full:
            result = subprocess.run([TOOL, "kl", "p.npy", "t.npy", "--grad-pred", "g.npy"], cwd=self.directory,
                                    stdout=full, stderr=subprocess.PIPE)
        self.assertEqual((result.returncode, result.stderr.count(b"\n")), (3, 1))
        self.assertFalse(os.path.exists(self.path("g.npy")))
        os.mkfifo(self.path("fifo"))
        with subprocess.Popen(["cat", "fifo"], cwd=self.directory, stdout=subprocess.PIPE) as reader:
            self.assertEqual(self.good("kl", "p.npy", "t.npy", "-o", "fifo"), self.plain)
            self.assertEqual(parse_npy(reader.communicate()[0])[:2], ("<f4", ()))
        self.assertEqual(self.leftovers(), [])

    def test_full_disk(self):
        self.write("p.npy", "<f4", (1, 5000), [0.5] * 5000)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        self.bad(3, "kl", "p.npy", "p.npy", "--grad-pred", "g.npy", preexec_fn=limit, holds=("g.npy", "too large"))
        self.bad(3, "kl", "p.npy", "p.npy", "--reduction", "none", "-o", "o.npy", preexec_fn=limit, holds=("o.npy",))
        self.write("p.npy", "<f2", (1 << 61, 0), [])
        self.bad(3, "kl", "p.npy", "p.npy", "--reduction", "rows", "-o", "o.npy", holds=("o.npy", "2^63"))

    def test_input_that_shrinks(self):
        count = 100000
        data = npy_bytes("<f4", (1, count), [0.5] * count)
        with open(self.path("p.npy"), "wb") as file:
            file.write(data)
        os.mkfifo(self.path("fifo"))
        with subprocess.Popen([TOOL, "kl", "p.npy", "fifo", "--grad-pred", "g.npy"], cwd=self.directory,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
            with open(self.path("fifo"), "wb") as pipe:  # opens once the tool has mapped p.npy
                os.truncate(self.path("p.npy"), 128)
                pipe.write(data)
            output, errors = tool.communicate(timeout=600)
        self.assertEqual((tool.returncode, output), (3, b""), errors)
        self.assertRegex(errors, rb"\Aonepass kl: p.npy: [^\n]+\n\Z")
        self.assertEqual(sorted(os.listdir(self.directory)), ["fifo", "p.npy", "t.npy"])


class Usage(ToolTest):
    def setUp(self):
        super().setUp()
        self.pair(2, 3)

    def test_usage_errors(self):
        kl = ("kl", "p.npy", "t.npy")
        for arguments in (
                ("kl",), ("kl", "p.npy"), kl + ("x.npy",), kl + ("--bogus",), kl + ("-x",), kl + ("--pred",),
                kl + ("--pred", "odds"), kl + ("--pred", ""), kl + ("--target", "Probs"), kl + ("--pre", "probs"),
                kl + ("--reduction", "avg"), kl + ("--reduction=",), kl + ("--semantics", "loose"),
                kl + ("--divisor", "0"), kl + ("--divisor", "-0.0"), kl + ("--divisor", "nan"),
                kl + ("--divisor", "inf"), kl + ("--divisor", "1e999"), kl + ("--divisor", "2x"),
                kl + ("--divisor", " 2"), kl + ("--divisor", ""), kl + ("--divisor", "2", "--reduction", "mean"),
                kl + ("--divisor", "2", "--reduction", "batchmean"), kl + ("--divisor", "2", "--reduction", "rows"),
                kl + ("--reduction", "rows"), kl + ("--reduction", "none"), kl + ("--threads", "0"),
                kl + ("--threads", "-1"), kl + ("--threads", "4097"), kl + ("--threads", "1.5"),
                kl + ("--threads", "two"), kl + ("--threads", "0x2"), kl + ("--threads", "99999999999999999999"),
                kl + ("--threads", " 1"), kl + ("--threads", "+1"), kl + ("--json=1",), kl + ("-o", "-", "--json"),
                kl + ("--grad-pred", "-", "--json"), kl + ("-o", ""), kl + ("--device", "gpu"),
                kl + ("--device", "cuda:"), kl + ("--device", "cuda:x"), kl + ("--device", "cudax"),
                kl + ("--rows", "3"), ("bench",), ("bench", "softmax"), ("bench", "kl", "--dtype", "int8"),
                ("bench", "kl", "--rows", "0"), ("bench", "kl", "--seconds", "0"), ("bench", "kl", "--isa", "sse"),
                ("completion",), ("completion", "tcsh"), ("info", "x"), ("check", "--seed", "x"), ("frobnicate",),
                ("--bogus",), ("",)):
            with self.subTest(arguments=arguments):
                self.bad(2, *arguments)
        result = self.run_tool()
        self.assertEqual((result.returncode, result.stdout), (2, b""))

    def test_device(self):
        want = self.value("p.npy", "t.npy", "--device", "cpu")
        usable = [device["name"] for device in json.loads(self.good("info", "--json"))["devices"]
                  if device["usable"]]
        for name in ("cuda", "cuda:0", "cuda:12"):
            if (name if ":" in name else name + ":0") in usable:
                self.assertAlmostEqual(self.value("p.npy", "t.npy", "--device", name), want, delta=1e-6 * abs(want))
                continue
            self.bad(4, "kl", "p.npy", "t.npy", "--device", name, holds=(name, "CUDA"))
            self.bad(4, "info", "--device", name, holds=(name, "CUDA"))
            self.bad(4, "check", "--quick", "--device", name, holds=(name, "CUDA"))
            self.bad(4, "bench", "kl", "--device", name, holds=(name, "CUDA"))
        self.bad(2, "kl", "p.npy", "t.npy", "--device", "cuda", "--threads", "2", holds=("--threads", "CPU"))

    def test_ways_to_write_options(self):
        want = self.good("kl", "p.npy", "t.npy", "--reduction", "sum")
        for arguments in (("kl", "--reduction=sum", "p.npy", "t.npy"), ("kl", "p.npy", "--reduction", "sum", "t.npy"),
                          ("kl", "--reduction", "mean", "--reduction", "sum", "p.npy", "t.npy"),
                          ("kl", "--reduction", "sum", "--", "p.npy", "t.npy"),
                          ("kl", "p.npy", "t.npy", "--divisor=1")):
            self.assertEqual(self.good(*arguments), want, arguments)
        for arguments in (("-oo.npy",), ("-o", "o.npy"), ("--output", "o.npy"), ("--output=o.npy",)):
            self.good("kl", "p.npy", "t.npy", *arguments)
            self.read("o.npy")
            os.remove(self.path("o.npy"))

    def test_unknown_level(self):
        environment = dict(os.environ, ONEPASS_ISA="sse9")
        self.bad(3, "kl", "p.npy", "t.npy", "-o", "o.npy", env=environment, holds=("sse9",))
        environment["ONEPASS_ISA"] = "ref"
        self.assertEqual(json.loads(self.good("kl", "p.npy", "t.npy", "--json", env=environment))["isa"], "ref")


class Pages(ToolTest):
    COMMANDS = ("kl", "info", "check", "bench", "demo", "completion", "man")

    def test_help_and_version(self):
        text = self.good("--help").decode()
        for command in self.COMMANDS:
            self.assertIn(command, text)
            page = self.good(command, "--help").decode()
            self.assertTrue(page.startswith("usage: onepass " + command))
            self.assertIn("--json", page)
            self.assertLessEqual(max(len(line) for line in page.splitlines()), 100)
        self.assertRegex(self.good("--version").decode(), r"\Aonepass \d+\.\d+\.\d+ [^\n]*\n\Z")

    def test_options_are_on_every_page(self):
        manual = self.good("man").decode()
        scripts = {shell: self.good("completion", shell).decode() for shell in ("bash", "zsh", "fish")}
        for command in self.COMMANDS:
            for option in re.findall(r"--([a-z-]+)", "\n".join(
                    line[:28] for line in self.good(command, "--help").decode().split("\n\n", 2)[2].splitlines())):
                self.assertIn(" Fl -%s" % option, manual)
                self.assertIn("--" + option, scripts["bash"])
                self.assertIn("--" + option, scripts["zsh"])
                self.assertIn("-l " + option, scripts["fish"])

    def check_script(self, shell):
        script = self.good("completion", shell)
        if not shutil.which(shell):
            print("the %s completion was not checked: no %s" % (shell, shell), file=sys.stderr)
            return
        with open(self.path("script"), "wb") as file:
            file.write(script)
        checked = subprocess.run([shell, "-n", self.path("script")], stderr=subprocess.PIPE)
        self.assertEqual((checked.returncode, checked.stderr), (0, b""))

    def test_completion_scripts(self):
        for shell in ("bash", "zsh", "fish"):
            self.check_script(shell)

    def test_bash_completes(self):
        ask = ('source <("$0" completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _onepass; '
               'echo "${COMPREPLY[@]}"')
        for words, want in ((("onepass", "b"), "bench"), (("onepass", "kl", "--pred", ""), "probs log-probs logits"),
                            (("onepass", "kl", "--grad"), "--grad-pred --grad-target"),
                            (("onepass", "bench", ""), "kl xent token head linear sweep"), (("onepass", "kl", ""), ""),
                            (("onepass", "completion", "z"), "zsh")):
            answer = subprocess.run(["bash", "-c", ask, TOOL] + list(words), stdout=subprocess.PIPE, check=True)
            self.assertEqual(answer.stdout.decode().strip(), want, words)

    def test_manual(self):
        page = self.good("man")
        self.assertTrue(page.startswith(b".Dd "))
        if not shutil.which("mandoc"):
            print("the manual page was not checked: no mandoc", file=sys.stderr)
            return
        lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning"], input=page, stdout=subprocess.PIPE)
        self.assertEqual((lint.returncode, lint.stdout), (0, b""))


class Json(ToolTest):
    def ask(self, *arguments, **more):
        answer = json.loads(self.good(*arguments, "--json", **more))
        self.assertEqual((answer["schema"], answer["command"]), (1, arguments[0]))
        return answer

    def test_kl(self):
        self.pair(2, 3)
        answer = self.ask("kl", "p.npy", "t.npy", "--threads", "1", "--grad-pred", "g.npy", "-o", "o.npy")
        self.assertEqual(answer["value"], self.read("o.npy")[2][0])
        self.assertEqual((answer["reduction"], answer["dtype"], answer["threads"]), ("batchmean", "f32", 1))
        self.assertEqual(answer["predictions"]["shape"], [2, 3])
        self.assertEqual(sorted(answer["written"]), ["g.npy", "o.npy"])
        self.assertGreaterEqual(answer["seconds"], 0)
        answer = self.ask("kl", "p.npy", "t.npy", "--reduction", "rows", "-o", "o.npy")
        self.assertIsNone(answer["value"])
        self.assertEqual(self.ask("kl", "p.npy", "t.npy", "--divisor", "3")["divisor"], 3)

    def test_names_that_need_escapes(self):
        self.pair(2, 3)
        for name in (b'a"b\\c\n\x01.npy', "grüße.npy".encode(), b"\xff\xc3(\xed\xa0\x80.npy"):
            shutil.copy(self.path("p.npy"), os.path.join(os.fsencode(self.directory), name))
            result = subprocess.run([TOOL, "kl", name, "t.npy", "--json"], cwd=self.directory, stdout=subprocess.PIPE,
                                    check=True)
            answer = json.loads(result.stdout.decode("utf-8"))
            self.assertEqual(answer["predictions"]["file"].encode("utf-8", "surrogateescape"), name)

    def test_info(self):
        answer = self.ask("info")
        self.assertIn(answer["isa"], answer["levels_usable"])
        self.assertLessEqual(set(answer["levels_usable"]), set(answer["levels_built"]))
        self.assertEqual(answer["devices"][0], {"name": "cpu", "usable": True})
        for device in answer["devices"][1:]:
            self.assertTrue(device["name"].startswith("cuda"))
            self.assertEqual("model" in device, device["usable"])
            self.assertEqual("reason" in device, not device["usable"])
        self.assertGreater(len(answer["devices"]), 1)
        self.assertIn(answer["blas"], (None, "openblas", "blis"))
        text = self.good("info").decode()
        self.assertIn(answer["isa"], text)

    def test_check(self):
        answer = self.ask("check", "--quick", "--seed", SEED)
        self.assertTrue(answer["passed"])
        self.assertEqual((answer["seed"], answer["most_units"]), (SEED, 1))
        for line in answer["lines"]:
            self.assertLessEqual(line["worst_units"], 1, line)
        levels = {line["level"] for line in answer["lines"]}
        self.assertEqual(levels, set(self.ask("info")["levels_usable"]) - {"ref"})
        operators = {line.get("operator") for line in answer["lines"]}
        self.assertEqual(operators, {None, "divergence", "cross-entropy", "token", "linear-cross-entropy",
                                     "linear-divergence", "linear-token", "shards", "linear", "head"})

    def test_bench(self):
        for arguments in (("--rows", "64", "--cols", "100"),
                          ("--dtype", "bf16", "--rows", "33", "--cols", "7", "--grad"),
                          ("--dtype", "f64", "--rows", "3", "--cols", "1000", "--pred", "log-probs", "--target",
                           "log-probs", "--threads", "1", "--isa", "scalar")):
            answer = self.ask("bench", "kl", "--seconds", "0.01", *arguments)
            rows = {row["work"]: row for row in answer["rows"]}
            self.assertEqual("--grad" in arguments, "forward" not in rows)
            for row in rows.values():
                self.assertGreaterEqual(row["rounds"], 15)
                self.assertTrue(0 < row["ms_q20"] <= row["ms"] <= row["ms_q80"])
                self.assertGreater(row["share"], 0)
            self.assertLess(rows["forward + gradient"]["error"], 1e-5)
        text = self.good("bench", "kl", "--rows", "8", "--cols", "8", "--seconds", "0.001").decode()
        self.assertEqual(len(text.splitlines()), 6)
        self.bad(3, "bench", "kl", "--rows", "1099511627776", "--cols", "1099511627776", holds=("memory",))

    def test_pages(self):
        self.assertIn("_onepass", self.ask("completion", "bash")["text"])
        self.assertTrue(self.ask("man")["text"].startswith(".Dd "))

    def test_demo(self):
        answer = self.ask("demo", "--seed", SEED)
        self.assertTrue(answer["passed"])
        self.assertLess(abs(answer["value"] / answer["exact"] - 1), 1.2e-7)
        self.assertEqual(len(answer["rows"]), 4)


def main():
    global TOOL
    arguments = sys.argv
    if len(arguments) > 1 and os.path.isfile(arguments[1]):
        TOOL = arguments.pop(1)
    if not TOOL or not os.path.isfile(TOOL):
        sys.exit("usage: test_tool.py PATH_OF_ONEPASS, or set ONEPASS_TOOL")
    TOOL = os.path.abspath(TOOL)
    os.environ.pop("ONEPASS_ISA", None)
    print("seed %d (ONEPASS_TEST_SEED repeats it)" % SEED, file=sys.stderr)
    unittest.main(argv=arguments)


if __name__ == "__main__":
    main()
