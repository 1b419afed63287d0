#!/usr/bin/env python3
"""onepass xent, and onepass kl of logits, as a user meets them: values and gradients against exact ones, errors, and
bench of the same losses.

usage: test_tool_logits.py [PATH_OF_ONEPASS] [unittest arguments]; otherwise $ONEPASS_TOOL. Standard library only. Inputs
are random; the seed is printed and $ONEPASS_TEST_SEED repeats it.
"""
import json
import math
import os
import struct
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_npy_corpus as corpus  # noqa: E402
import test_tool  # noqa: E402
from kl_exact import rounded  # noqa: E402

# What rounding of results, and float arithmetic on logits of a few units, may cost: of 1.
ALLOWED = {"<f2": 2e-3, "|V2": 1.5e-2, "<f4": 4e-6, "<f8": 1e-13}


def log_softmax(row):
    top = max(row)
    total = math.log(math.fsum(math.exp(x - top) for x in row))
    return [x - top - total for x in row]


class LogitsTest(test_tool.ToolTest):
    rows, columns = 5, 37

    def logits(self, name, descr="<f4"):
        """Random logits in a file; their rows as stored."""
        values = [self.random.gauss(0, 2) for _ in range(self.rows * self.columns)]
        self.write(name, descr, (self.rows, self.columns), values)
        values = rounded(descr, values)
        return [values[i * self.columns:(i + 1) * self.columns] for i in range(self.rows)]

    def integers(self, name, values, descr="<i8"):
        code = {"<i4": "i", "<i8": "q"}[descr]
        header = corpus.literal("'%s'" % descr, "False", "(%d,)" % len(values))
        with open(self.path(name), "wb") as file:
            file.write(corpus.file_of(header, struct.pack("<%d%s" % (len(values), code), *values)))

    def number(self, *arguments):
        return float(self.good(*arguments))

    def close(self, got, want, descr):
        self.assertLess(abs(got - want), ALLOWED[descr] * max(1, abs(want)), (got, want))


class TopK(LogitsTest):
    def teacher(self, k):
        """Indices and log-probabilities of k columns a row, in files."""
        indices = [self.random.sample(range(self.columns), k) for _ in range(self.rows)]
        values = [[math.log(0.8 / k * self.random.uniform(0.5, 1)) for _ in row] for row in indices]
        self.write("t.npy", "<f8", (self.rows, k), [y for row in values for y in row])
        header = corpus.literal("'<i4'", "False", "(%d, %d)" % (self.rows, k))
        with open(self.path("i.npy"), "wb") as file:
            file.write(corpus.file_of(header, struct.pack("<%di" % (self.rows * k), *sum(indices, []))))
        return indices, values

    def test_values_and_gradients(self):
        x = self.logits("x.npy", "<f8")
        indices, values = self.teacher(4)
        command = "kl", "x.npy", "t.npy", "--pred", "logits", "--target", "log-probs", "--top-k", "i.npy"
        tail, subset, slopes = [], [], []
        for row, at, y in zip(x, indices, values):
            log_s, t = log_softmax(row), [math.exp(v) for v in y]
            s_rest = math.fsum(math.exp(v) for j, v in enumerate(log_s) if j not in at)
            rest, inside = 1 - math.fsum(t), [log_s[j] for j in at]
            tail.append(math.fsum([p * (v - q) for p, v, q in zip(t, y, inside)] + [rest * math.log(rest / s_rest)]))
            log_t, log_s_set = log_softmax(y), log_softmax(inside)
            subset.append(math.fsum(math.exp(a) * (a - b) for a, b in zip(log_t, log_s_set)))
            slopes += [math.exp(v) - t[at.index(j)] if j in at else math.exp(v) * (1 - rest / s_rest)
                       for j, v in enumerate(log_s)]
        self.close(self.number(*command), math.fsum(tail) / self.rows, "<f8")
        self.close(self.number(*command, "--outside", "subset", "--reduction", "sum"), math.fsum(subset), "<f8")
        self.good(*command, "--reduction", "rows", "-o", "v.npy", "--grad-pred", "g.npy")
        for name, wanted in (("v.npy", tail), ("g.npy", slopes)):
            got = self.read(name)[2]
            self.assertEqual(len(got), len(wanted))
            for a, b in zip(got, wanted):
                self.close(a, b, "<f8")
        told = json.loads(self.good(*command, "--outside", "zero", "--json"))
        self.assertEqual((told["outside"], told["top_k"]["shape"]), ("zero", [self.rows, 4]))

    def test_errors(self):
        self.logits("x.npy")
        self.teacher(4)
        logits = "kl", "x.npy", "t.npy", "--pred", "logits", "--target", "log-probs"
        self.bad(2, "kl", "x.npy", "t.npy", "--top-k", "i.npy", holds=("--top-k needs --pred logits",))
        self.bad(2, *logits, "--outside", "zero", holds=("--outside needs --top-k",))
        self.bad(2, *logits, "--top-k", "i.npy", "--divergence", "js", holds=("--divergence js with --top-k",))
        self.bad(2, *logits, "--top-k", "i.npy", "--grad-target", "g.npy", holds=("--grad-target with --top-k",))
        self.bad(3, *logits, "--top-k", "x.npy", holds=("x.npy: header says dtype f32; indices must be i4 or i8",))
        self.integers("short.npy", [1] * self.rows)
        self.bad(3, *logits, "--top-k", "short.npy", holds=("short.npy: header says shape (5,); it must be (5, 4)",))
        self.write("x2.npy", "<f4", (3, 37), [0.5] * 111)
        self.bad(3, "kl", "x.npy", "x2.npy", "--pred", "logits", "--top-k", "i.npy",
                 holds=("x2.npy: header says shape (3, 37); it must be (5, 37)",))


class CrossEntropy(LogitsTest):
    def test_values_and_gradients(self):
        for descr in ("<f4", "<f8", "<f2", "|V2"):
            for labels_descr in ("<i4", "<i8"):
                x = self.logits("x.npy", descr)
                labels = [self.random.randrange(self.columns) for _ in x]
                labels[1] = -100
                self.integers("l.npy", labels, labels_descr)
                terms = [0 if y < 0 else -log_softmax(row)[y] for row, y in zip(x, labels)]
                out = "<f8" if descr == "<f8" else "<f4"
                self.close(self.number("xent", "x.npy", "l.npy"), math.fsum(terms) / 4, out)
                self.close(self.number("xent", "x.npy", "l.npy", "--reduction", "sum"), math.fsum(terms), out)
                self.good("xent", "x.npy", "l.npy", "--reduction", "rows", "-o", "v.npy", "--grad-pred", "g.npy")
                for got, want in zip(self.read("v.npy")[2], terms):
                    self.close(got, want, out)
                got = iter(self.read("g.npy")[2])
                for row, y in zip(x, labels):
                    for j, log_p in enumerate(log_softmax(row)):
                        self.close(next(got), 0 if y < 0 else math.exp(log_p) - (j == y), descr)

    def test_options(self):
        x, labels = self.logits("x.npy", "<f8"), [3, 0, 7, 36, 11]
        self.integers("l.npy", labels)
        weights = [self.random.uniform(0.5, 2) for _ in range(self.columns)]
        self.write("c.npy", "<f8", (self.columns,), weights)
        cap, temperature, smoothing, z_loss, columns = 5.0, 1.5, 0.2, 0.01, 30
        total = count = 0
        for row, y in zip(x, labels):
            if y == 11:
                continue
            if y >= columns:
                y = None  # labels that do not count are the caller's mistake: see below
            z = [cap * math.tanh(v / cap) / temperature for v in row[:columns]]
            log_p = log_softmax(z)
            lse = z[0] - log_p[0]
            if y is not None:
                spread = -math.fsum(w * v for w, v in zip(weights, log_p)) / columns
                total += (1 - smoothing) * weights[y] * -log_p[y] + smoothing * spread + z_loss * lse * lse
                count += weights[y]
        self.integers("l.npy", [11 if y >= columns else y for y in labels])
        got = self.number("xent", "x.npy", "l.npy", "--class-weights", "c.npy", "--softcap", cap, "--temperature",
                          temperature, "--label-smoothing", smoothing, "--z-loss", z_loss, "--columns", columns,
                          "--ignore-index", 11)
        self.close(got, total / count, "<f8")
        self.integers("l.npy", labels)
        self.assertEqual(self.good("xent", "x.npy", "l.npy", "--columns", columns), b"nan\n")

    def test_nothing_takes_part(self):
        self.logits("x.npy")
        self.integers("l.npy", [-100] * self.rows)
        self.assertEqual(self.good("xent", "x.npy", "l.npy"), b"nan\n")
        self.assertEqual(self.good("xent", "x.npy", "l.npy", "--semantics", "finite"), b"0\n")

    def test_errors(self):
        self.logits("x.npy")
        self.integers("l.npy", [0] * self.rows)
        self.integers("short.npy", [0])
        self.write("c.npy", "<f4", (3,), [1, 1, 1])
        self.bad(2, "xent", "x.npy")
        self.bad(2, "xent", "x.npy", "l.npy", "--reduction", "batchmean")
        self.bad(2, "xent", "x.npy", "l.npy", "--pred", "logits")
        self.bad(2, "xent", "x.npy", "l.npy", "--label-smoothing", "1.5")
        self.bad(2, "xent", "x.npy", "l.npy", "--reduction", "rows")
        self.bad(3, "xent", "x.npy", "x.npy", holds=("x.npy", "labels", "i4 or i8"))
        self.bad(3, "xent", "l.npy", "l.npy", holds=("l.npy", "predictions"))
        self.bad(3, "xent", "x.npy", "short.npy", holds=("short.npy", "shape", "(5,)"))
        self.bad(3, "xent", "x.npy", "l.npy", "--class-weights", "c.npy", holds=("c.npy", "(37,)"))
        self.bad(3, "xent", "x.npy", "l.npy", "--columns", "38", holds=("options.columns", "38"))
        self.bad(3, "kl", "x.npy", "x.npy", "--mask", "l.npy", holds=("l.npy", "b1, u1 or i1"))


class Divergences(LogitsTest):
    def divergence(self, name, log_t, log_s):
        q = {"kl": 0, "reverse-kl": 1, "js": 0.3, "skew-kl": 0.3, "skew-reverse-kl": 0.7}.get(name)
        if q is None:
            return math.fsum(abs(math.exp(s) - math.exp(t)) for s, t in zip(log_s, log_t)) / 2
        a, b = {"kl": (1, 0), "reverse-kl": (0, 1), "js": (0.3, 0.7), "skew-kl": (1, 0),
                "skew-reverse-kl": (0, 1)}[name]
        terms = []
        for s, t in zip(log_s, log_t):
            log_m = math.log(q * math.exp(t) + (1 - q) * math.exp(s))
            terms += [a * math.exp(t) * (t - log_m), b * math.exp(s) * (s - log_m)]
        return math.fsum(terms)

    def test_every_one(self):
        for descr in ("<f4", "<f8"):
            x, y = self.logits("x.npy", descr), self.logits("y.npy", descr)
            p = [[math.exp(v) for v in log_softmax(row)] for row in y]
            self.write("p.npy", descr, (self.rows, self.columns), [v for row in p for v in row])
            for name in ("kl", "reverse-kl", "js", "skew-kl", "skew-reverse-kl", "tv"):
                mixture = ("--mixture", "0.3") if "js" == name or "skew" in name else ()
                want = math.fsum(self.divergence(name, log_softmax([v / 2 for v in b]), log_softmax([v / 2 for v in a]))
                                 for a, b in zip(x, y))
                got = self.number("kl", "x.npy", "y.npy", "--pred", "logits", "--target", "logits", "--divergence",
                                  name, "--temperature", "2", "--reduction", "sum", *mixture)
                self.close(got, want, descr)
                want = math.fsum(self.divergence(name, log_softmax(b), log_softmax(a)) for a, b in zip(x, y))
                got = self.number("kl", "x.npy", "p.npy", "--pred", "logits", "--divergence", name, "--reduction",
                                  "sum", *mixture)
                self.close(got, want, descr)

    def test_gradients_and_equal_inputs(self):
        x, y = self.logits("x.npy", "<f8"), self.logits("y.npy", "<f8")
        self.good("kl", "x.npy", "y.npy", "--pred", "logits", "--target", "logits", "--grad-pred", "g.npy")
        got = iter(self.read("g.npy")[2])
        for a, b in zip(x, y):
            for s, t in zip(log_softmax(a), log_softmax(b)):
                self.close(next(got), (math.exp(s) - math.exp(t)) / self.rows, "<f8")
        self.assertEqual(self.good("kl", "x.npy", "x.npy", "--pred", "logits", "--target", "logits"), b"0\n")

    def test_labels_choose_rows(self):
        x, y = self.logits("x.npy", "<f8"), self.logits("y.npy", "<f8")
        self.integers("l.npy", [1, -100, 2, -100, 3], "<i4")
        want = [self.divergence("kl", log_softmax(b), log_softmax(a)) for a, b in zip(x, y)]
        command = ("kl", "x.npy", "y.npy", "--pred", "logits", "--target", "logits", "--labels", "l.npy")
        self.close(self.number(*command, "--reduction", "valid"), math.fsum(want[::2]) / 3, "<f8")
        labels = {0: 1, 2: 2, 4: 3}
        with_labels = [want[i] * 4 - 0.5 * log_softmax(x[i])[labels[i]] for i in labels]
        self.close(self.number(*command, "--reduction", "sum", "--weight", "4", "--label-weight", "0.5"),
                   math.fsum(with_labels), "<f8")

    def test_json(self):
        self.logits("x.npy")
        answer = json.loads(self.good("kl", "x.npy", "x.npy", "--pred", "logits", "--target", "logits", "--divergence",
                                      "tv", "--json"))
        self.assertEqual((answer["command"], answer["value"], answer["divergence"]), ("kl", 0, "tv"))
        self.integers("l.npy", [0] * self.rows)
        answer = json.loads(self.good("xent", "x.npy", "l.npy", "--json"))
        self.assertEqual((answer["command"], answer["reduction"], answer["labels"]["dtype"]), ("xent", "mean", "i64"))

    def test_errors(self):
        self.logits("x.npy")
        both = ("kl", "x.npy", "x.npy", "--pred", "logits", "--target", "logits")
        self.bad(2, "kl", "x.npy", "x.npy", "--target", "logits", holds=("--pred logits",))
        for option in (("--temperature", "2"), ("--divergence", "js"), ("--labels", "x.npy"), ("--columns", "3"),
                       ("--reduction", "valid")):
            self.bad(2, "kl", "x.npy", "x.npy", *option, holds=("--pred logits",))
        self.bad(2, *both, "--reduction", "none", holds=("rows",))
        self.bad(3, *both, "--divergence", "js", holds=("options.mixture",))
        self.bad(3, *both, "--mixture", "0.5", holds=("options.mixture",))
        self.bad(3, *both, "--label-weight", "1", holds=("options.label_weight",))


# What bench measures of losses from logits, with the bytes of each work in units of the logits: read; read and written.
BENCHES = {
    ("kl", "--pred", "logits", "--target", "logits"): (2, 3),
    ("kl", "--pred", "logits", "--target", "logits", "--divergence", "reverse-kl", "--dtype", "bf16"): (2, 3),
    ("kl", "--pred", "logits", "--target", "probs", "--divergence", "js", "--temperature", "2"): (2, 3),
    ("kl", "--pred", "logits", "--target", "log-probs", "--divergence", "tv"): (2, 3),
    ("xent",): (1, 2),
    ("xent", "--dtype", "f16", "--label-type", "i32", "--temperature", "0.5"): (1, 2),
    ("token",): (1, 3),
    ("token", "--dtype", "bf16", "--indices", "4"): (1, 3),
}


class BenchTest(LogitsTest):
    device = ()

    def measure(self, *arguments):
        return json.loads(self.good("bench", "--seed", self.random.randrange(1 << 40), "--rows", self.rows, "--cols",
                                    self.columns, "--seconds", "0.001", "--json", *self.device, *arguments))

    def check(self, answer, inputs, moved):
        """The rows of an answer: what each of them moves, that it was timed, and that it computes the loss."""
        size = self.rows * self.columns * (2 if answer["dtype"] in ("f16", "bf16") else 4)
        rows = {row["work"]: row for row in answer["rows"]}
        self.assertEqual(list(rows)[1::2], ["forward", "forward + gradient"])
        bytes_moved = [row["bytes"] / size for row in answer["rows"]]
        self.assertEqual(bytes_moved, [inputs, inputs, inputs + 1, moved])
        for row in rows.values():
            self.assertGreaterEqual(row["rounds"], 15)
            self.assertTrue(0 < row["ms_q20"] <= row["ms"] <= row["ms_q80"])
            self.assertGreater(row["share"], 0)
            self.assertEqual("error" in row, row["work"].startswith("forward"))
            self.assertTrue(0 <= row.get("error", 0) < 1e-5, answer)


class Bench(BenchTest):
    def test_losses(self):
        for arguments, (inputs, moved) in BENCHES.items():
            with self.subTest(arguments=arguments):
                self.check(self.measure(*arguments), inputs, moved)
        answer = self.measure("xent", "--label-type", "i32", "--seed", "5", "--threads", "1", "--isa", "scalar")
        self.assertEqual((answer["operator"], answer["label_type"], answer["seed"], answer["temperature"]),
                         ("xent", "i32", 5, 1))
        same = self.measure("xent", "--label-type", "i64", "--seed", "5")
        self.assertLess(abs(same["rows"][1]["error"] - answer["rows"][1]["error"]), 1e-6)
        rows = self.measure("token", "--grad")["rows"]
        self.assertEqual([row["work"] for row in rows], ["plain read + write", "forward + gradient"])

    def test_tables(self):
        small = ("--rows", "8", "--cols", "8", "--seconds", "0.001")
        for arguments, words in ((("kl", "--pred", "logits", "--divergence", "js", "--temperature", "2"),
                                  "logits predictions, probs targets, js, temperature 2, batchmean"),
                                 (("xent",), "i64 labels, valid"),
                                 (("token", "--indices", "2"), "2 i64 indices a row")):
            lines = self.good("bench", *arguments, *small).decode().splitlines()
            self.assertEqual(len(lines), 6)
            self.assertIn(words, lines[0])

    def test_errors(self):
        for option in (("--target", "logits"), ("--temperature", "2"), ("--divergence", "js"), ("--mixture", "0.5")):
            self.bad(2, "bench", "kl", *option, holds=("--pred logits",))
        for operator in ("xent", "token"):
            for option in ("--pred", "--target", "--divergence", "--mixture", "--depth", "--fp32-products"):
                value = {"--pred": "logits", "--target": "logits", "--divergence": "kl", "--fp32-products": "full"}
                self.bad(2, "bench", operator, option, value.get(option, "1"), holds=(option, operator))
        self.bad(2, "bench", "xent", "--indices", "2", holds=("--indices", "token"))
        self.bad(2, "bench", "xent", "--label-type", "f32", holds=("--label-type",))
        self.bad(3, "bench", "kl", "--pred", "logits", "--mixture", "0.5", "--rows", "3", "--cols", "5",
                 holds=("options.mixture",))
        self.bad(3, "bench", "token", "--rows", "1099511627776", "--cols", "1099511627776", holds=("memory",))
        self.bad(3, "bench", "token", "--rows", "1099511627776", "--indices", "1099511627776", holds=("memory",))


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.isfile(sys.argv[1]):
        test_tool.TOOL = sys.argv.pop(1)
    if not os.path.isfile(test_tool.TOOL):
        sys.exit("usage: test_tool_logits.py PATH_OF_ONEPASS, or set ONEPASS_TOOL")
    test_tool.TOOL = os.path.abspath(test_tool.TOOL)
    os.environ.pop("ONEPASS_ISA", None)
    print("seed %d (ONEPASS_TEST_SEED repeats it)" % test_tool.SEED, file=sys.stderr)
    unittest.main()
