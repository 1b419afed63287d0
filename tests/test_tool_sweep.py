#!/usr/bin/env python3
"""onepass bench sweep: the plan, its points in JSON and on the page, limits, refusals, wrong options.

usage: test_tool_sweep.py [PATH_OF_ONEPASS] [DIRECTORY] [unittest arguments]; otherwise $ONEPASS_TOOL. With the
directory, only --device cuda is tried, its libcuda.so.1 in the driver's place: driver_standin.c, which runs the kernels
on the CPU. Standard library only; the seed is printed and $ONEPASS_TEST_SEED repeats it. Times are only held to be
positive and finite: nothing here depends on how fast the machine is.
"""
import html.parser
import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_tool  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
LOSSES = ("kl", "kl-logits", "xent", "token")
OPERATORS = LOSSES + ("linear", "head", "head-eval")
LAYOUTS = ("contiguous", "padded", "shifted", "transposed", "mixed", "broadcast")
KEYS = ("operator", "dtype", "reduction", "layout", "gradient", "rows", "cols")


def expected_plan(operators=OPERATORS, types=("bf16", "f32"), reductions=("batchmean", "rows", "none"),
                  layouts=LAYOUTS, gradients=(False, True), rows=(1, 300), cols=(1, 1000)):
    """The keys of every point that the options ask for; the defaults are those of --quick."""
    points = []
    for operator in operators:
        of_two = operator in ("kl", "kl-logits")
        reduces = reductions if operator in ("kl", "kl-logits", "xent") else (None,)
        lies = [layout for layout in layouts
                if (layout in ("contiguous", "transposed") if operator not in LOSSES else
                    of_two or layout not in ("mixed", "broadcast"))]
        results = [gradient for gradient in gradients if not (gradient and operator == "head-eval")]
        points += itertools.product((operator,), types, reduces, lies, results, rows, cols)
    return points


def loss_bytes(point):
    """What a call reads and writes: inputs, labels, value and gradient, each once; token reads logits again."""
    rows, cols, size = point["rows"], point["cols"], BYTES[point["dtype"]]
    computed = max(size, 4)
    large = rows * (cols + (3 if point["layout"] == "padded" else 0)) * size
    large += size if point["layout"] == "shifted" else 0
    total = large * (2 if point["operator"].startswith("kl") and point["layout"] != "broadcast" else 1)
    if point["layout"] == "broadcast":
        total += cols * size
    if point["operator"] == "token":
        total += rows * 8 + 2 * rows * computed  # an index, its log-probability and the entropy
        if point["gradient"]:
            total += large + 2 * rows * computed
    else:
        total += rows * 8 if point["operator"] == "xent" else 0
        values = {"rows": rows, "none": rows * cols}.get(point["reduction"], 1)
        total += values * (size if point["reduction"] == "none" else computed)
    return total + (large if point["gradient"] else 0)


class Page(html.parser.HTMLParser):
    """What is on the page: titles of points, elements that are open at the end, and whatever comes from elsewhere."""
    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self):
        super().__init__()
        self.open, self.titles, self.headings, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.links += [name for name in ("src", "href") if name in named] + (["script"] if tag == "script" else [])
        if tag in self.VOID:
            return
        self.open.append((tag, "point" in (named.get("class") or "").split()))

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        found, _ = self.open.pop()
        if found != tag:
            raise AssertionError("<%s> is closed by </%s>" % (found, tag))

    def handle_data(self, data):
        tags = [tag for tag, _ in self.open]
        if tags[-1:] == ["title"] and len(self.open) > 1 and self.open[-2][1]:
            self.titles.append(data)
        if tags[-1:] == ["h2"]:
            self.headings.append(data)


class SweepTest(test_tool.ToolTest):
    device = ()

    def sweep(self, *arguments):
        self.good("bench", "sweep", "--json", "s.json", *arguments, *self.device)
        with open(self.path("s.json"), encoding="utf-8") as file:
            answer = json.load(file)
        self.assertEqual((answer["schema"], answer["command"]), (1, "bench sweep"))
        return answer

    def check_points(self, answer, plan):
        """Every point of the plan once, and each with what its state promises."""
        points = answer["points"]
        self.assertEqual(sorted(map(repr, (tuple(point[key] for key in KEYS) for point in points))),
                         sorted(map(repr, plan)))
        for point in points:
            with self.subTest(point=point):
                if point["state"] == "refused":
                    self.assertTrue(point["message"])
                if point["state"] != "measured":
                    self.assertNotIn("share", point)
                    continue
                for name in ("ms", "floor_ms", "share"):
                    self.assertTrue(0 < point[name] < math.inf, name)
                self.assertAlmostEqual(point["share"], point["floor_ms"] / point["ms"], delta=1e-9 * point["share"])
                self.assertGreater(point["floor_ms"], 1e-3)  # the microsecond of a call, and something more
                self.assertGreaterEqual(point["workspace_bytes"], 0)
                self.assertGreaterEqual(point["rounds"], 1)
                self.assertLessEqual(point["memory_bytes"], answer["memory_limit_bytes"])
                if point["operator"] in LOSSES:
                    self.assertEqual(point["bytes"], loss_bytes(point))
                else:
                    flops = 2 * point["rows"] * point["cols"] * point["depth"]
                    self.assertEqual(point["flops"], flops * (3 if point["gradient"] else 1))

    def check_page(self, answer):
        with open(self.path("s.html"), encoding="utf-8") as file:
            page = Page()
            page.feed(file.read())
            page.close()
        self.assertEqual((page.open, page.links), ([], []))
        shown = [point for point in answer["points"] if point["state"] in ("measured", "refused")]
        self.assertEqual(len(page.titles), len(shown))
        titles = set(page.titles)
        self.assertEqual(len(titles), len(shown))
        for point in shown:
            start = "%d x %d, %s %s %s %s %s: " % (
                point["rows"], point["cols"], point["operator"], point["dtype"], point["reduction"] or "-",
                point["layout"], "gradient" if point["gradient"] else "value")
            if point["state"] == "refused":
                numbers = "refused: " + point["message"]
            else:
                numbers = "%.6g ms, floor %.6g ms (%s), %.1f%%, workspace %d bytes" % (
                    point["ms"], point["floor_ms"], point["floor"], 100 * point["share"], point["workspace_bytes"])
            self.assertIn(start + numbers, titles)
        return page


class Sweep(SweepTest):
    def test_quick(self):
        """Everything that --quick walks, unless the machine is too slow for that: then the rest is not reached."""
        answer = self.sweep("--quick", "--html", "s.html", "--seed", test_tool.SEED)
        self.check_points(answer, expected_plan())
        self.assertEqual(self.check_page(answer).headings, list(OPERATORS))
        self.assertEqual((answer["device"], answer["seed"], answer["seconds_limit"]), ("cpu", test_tool.SEED, 15))
        states = {point["state"] for point in answer["points"]}
        self.assertIn("measured", states)
        self.assertLessEqual(states, {"measured", "refused", "not reached"})
        if "not reached" not in states:
            refused = [point for point in answer["points"] if point["state"] == "refused"]
            for point in answer["points"]:
                of_logits = point["operator"] in ("kl-logits", "xent") and point["reduction"] == "none"
                one_row = point["operator"] == "head" and point["rows"] == 1
                self.assertEqual(point in refused, of_logits or one_row, point)
                if point in refused:
                    self.assertIn("ONEPASS_NONE" if of_logits else "1 row", point["message"])

    def test_floors_follow_the_bytes(self):
        answer = self.sweep("--operators", "kl,token", "--dtype", "f32", "--reductions", "batchmean", "--layouts",
                            "contiguous", "--rows", "64,4096", "--cols", "1000", "--threads", "1")
        self.check_points(answer, expected_plan(("kl", "token"), ("f32",), ("batchmean",), ("contiguous",),
                                                rows=(64, 4096), cols=(1000,)))
        floors = {tuple(point[key] for key in KEYS): point["floor_ms"] - 1e-3 for point in answer["points"]}
        for operator, reduction in (("kl", "batchmean"), ("token", None)):
            for gradient in (False, True):
                few, many = (floors[operator, "f32", reduction, "contiguous", gradient, rows, 1000]
                             for rows in (64, 4096))
                self.assertGreater(many, 2 * few)  # 64 times the bytes

    def test_memory(self):
        """What does not fit is over memory, and nothing of that size is claimed."""
        limit = 4 << 20
        command = ("bench", "sweep", "--operators", "kl,linear", "--dtype", "f32", "--reductions", "none", "--layouts",
                   "contiguous", "--rows", "1,1000,100000000", "--cols", "1,200,100000000", "--depth", "7", "--memory",
                   str(limit / 2 ** 30), "--quick", "--json", "s.json")
        process = subprocess.Popen((test_tool.TOOL,) + command, cwd=self.directory, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        self.assertEqual(status, 0)
        self.assertLess(usage.ru_maxrss, 200 << 10)  # KiB; the smallest that is left out has 1.6 GB
        with open(self.path("s.json"), encoding="utf-8") as file:
            answer = json.load(file)
        self.check_points(answer, expected_plan(("kl", "linear"), ("f32",), ("none",), ("contiguous",),
                                                rows=(1, 1000, 100000000), cols=(1, 200, 100000000)))
        self.assertEqual(answer["memory_limit_bytes"], limit)
        for point in answer["points"]:
            rows, cols = point["rows"], point["cols"]
            need = (4 * rows * cols * 4 if point["operator"] == "kl" else  # two inputs, gradient, value
                    4 * (3 * rows * cols + 14 * (rows + cols)))  # output, its gradient, product; input, weight, ...
            self.assertGreaterEqual(point["memory_bytes"], need, point)
            self.assertEqual(point["state"] == "over memory", point["memory_bytes"] > limit, point)
        self.assertIn("over memory", {point["state"] for point in answer["points"]})

    def test_time(self):
        """After the time is over nothing is begun, and what is left says so."""
        answer = self.sweep("--seconds", "0.001", "--dtype", "f32", "--operators", "kl,xent", "--rows", "1,10,100",
                            "--cols", "1,10,100")
        plan = expected_plan(("kl", "xent"), ("f32",), rows=(1, 10, 100), cols=(1, 10, 100))
        self.check_points(answer, plan)
        states = [point["state"] for point in answer["points"]]
        self.assertIn("not reached", states)
        self.assertLess(states.count("measured"), len(plan))

    def test_lists(self):
        """Items count once, in any order; shapes are walked from the smallest."""
        answer = self.sweep("--operators", "xent", "--dtype", "f64,f16,f64", "--reductions", "valid,sum", "--layouts",
                            "transposed", "--gradients", "gradient,value", "--rows", "7,3,7", "--cols", "5",
                            "--isa", "scalar", "--threads", "1", "--quick")
        self.check_points(answer, expected_plan(("xent",), ("f64", "f16"), ("valid", "sum"), ("transposed",),
                                                rows=(3, 7), cols=(5,)))
        self.assertEqual({point["state"] for point in answer["points"]}, {"measured"})
        self.assertEqual((answer["isa"], answer["threads"]), ("scalar", 1))
        only = self.sweep("--operators", "head,head-eval", "--dtype", "f32", "--gradients", "gradient", "--quick",
                          "--rows", "3", "--cols", "5", "--depth", "2")
        self.check_points(only, expected_plan(("head", "head-eval"), ("f32",), gradients=(True,), rows=(3,), cols=(5,)))

    def test_table(self):
        few = ("--operators", "kl,xent", "--dtype", "f32", "--layouts", "contiguous", "--rows", "3", "--cols", "5",
               "--quick")
        for worst in (0, 3, 1000):
            lines = self.good("bench", "sweep", "--worst", worst, *few).decode().splitlines()
            header = next(i for i, line in enumerate(lines) if line.startswith("  share"))
            end = lines.index("", header)
            self.assertEqual(end - header - 1, min(worst, 10))  # kl 3 reductions, xent 2: of each value and gradient
            shares = [float(line.split("%")[0]) for line in lines[header + 1:end]]
            self.assertEqual(shares, sorted(shares))
            self.assertIn("12 points: 10 measured, 2 refused, 0 over", lines[0])
            self.assertEqual(len(lines) - end - 1, 1)
            self.assertRegex(lines[-1], r"\Arefused, 2 points, first xent f32 3 x 5 none contiguous: .*ONEPASS_NONE")
        answer = json.loads(self.good("bench", "sweep", "--json", "-", *few))
        self.assertEqual(len(answer["points"]), 12)
        self.assertTrue(self.good("bench", "sweep", "--html", "-", *few).startswith(b"<!DOCTYPE html>"))

    def test_errors(self):
        for option, value, words in (
                ("--operators", "softmax", '"softmax" is not one of kl|'), ("--operators", "kl,", '"" is not one of'),
                ("--operators", "", '"" is not one of'), ("--dtype", "f32,int8", '"int8" is not one of f16|'),
                ("--layouts", "contiguous,odd", '"odd" is not one of'), ("--reductions", "avg", "is not one of"),
                ("--gradients", "both", "is not one of value|gradient"), ("--rows", "1,x", '"x" is not an integer'),
                ("--rows", "0", "--rows: 0; it must be from 1 to"), ("--cols", "3,,4", '"" is not an integer'),
                ("--cols", "1099511627777", "it must be from 1 to"), ("--cols", ",".join("1" * 65), "more than 64"),
                ("--memory", "0", "it must be from"), ("--seconds", "0", "it must be from"),
                ("--worst", "-1", "it must be from 0"), ("--threads", "0", "it must be from"),
                ("--device", "gpu", "is not a device"), ("--html", "", "is not the name of a file"),
                ("--depth", "0", "it must be from"), ("--rows", "9" * 80, "it must be from")):
            self.bad(2, "bench", "sweep", option, value, holds=(option, words))
        self.bad(2, "bench", "sweep", "kl", holds=("one argument too many", "onepass bench sweep --help"))
        self.bad(2, "bench", "sweep", "--pred", "probs", holds=("onepass bench sweep: --pred: no such option",))
        self.bad(2, "bench", "sweep", "--json", holds=("a value must follow",))
        self.bad(2, "bench", "sweep", "--json", "-", "--html", "-", holds=("stdout is given to two outputs",))
        self.bad(2, "bench", "sweep", "--json", "a", "--html", "a", holds=("same file",))
        self.bad(3, "bench", "sweep", "--html", "nowhere/a.html", holds=("directory does not exist",))
        self.bad(2, "bench", "sweep", "--device", "cuda", "--threads", "2", holds=("--threads", "CPU"))
        self.bad(2, "bench", "--rows", "3", "sweep", holds=("OPERATOR", '"sweep" is not one of'))

    def test_pages(self):
        page = self.good("bench", "sweep", "--help").decode()
        self.assertTrue(page.startswith("usage: onepass bench sweep [OPTIONS]"))
        self.assertLessEqual(max(len(line) for line in page.splitlines()), 100)
        self.assertIn("bench sweep", self.good("--help").decode())
        manual = self.good("man").decode()
        part = manual[manual.index(".Ss onepass bench sweep"):manual.index(".Ss onepass demo")]
        options = re.findall(r"^  (?:-., )?--([a-z0-9-]+)", page, re.M)
        self.assertLessEqual({"operators", "dtype", "rows", "cols", "layouts", "reductions", "gradients", "depth",
                              "memory", "seconds", "threads", "device", "worst", "quick", "json", "html"}, set(options))
        fish = self.good("completion", "fish").decode()
        for option in options:
            self.assertIn("Fl -%s" % option, part)
            self.assertRegex(fish, r"'__onepass_command bench sweep' -l %s\b" % option)
        ask = ('source <("$0" completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _onepass; '
               'echo "${COMPREPLY[@]}"')
        for words, want in ((("bench", "s"), "sweep"), (("bench", "sweep", "--wor"), "--worst"),
                            (("bench", "sweep", "--layouts", "s"), "shifted"), (("bench", "kl", "--wor"), ""),
                            (("bench", "--indi"), "--indices"), (("bench", "sweep", "--indi"), "")):
            answer = subprocess.run(["bash", "-c", ask, test_tool.TOOL, "onepass"] + list(words),
                                    stdout=subprocess.PIPE, check=True)
            self.assertEqual(answer.stdout.decode().strip(), want, words)

    def test_picture(self):
        """bench/sweep_plot.py reads what the tool writes; it draws only where matplotlib is."""
        self.sweep("--operators", "kl,linear", "--dtype", "f32", "--rows", "3,9", "--cols", "5", "--quick")
        result = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "sweep_plot.py"), "s.json", "-o", "s.png"],
                                cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if importlib.util.find_spec("matplotlib") is None:
            self.assertEqual((result.returncode, result.stdout), (1, b""))
            self.assertIn(b"matplotlib", result.stderr)
            self.assertFalse(os.path.exists(self.path("s.png")))
            return
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("s.png"), "rb") as file:
            self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")


class Cuda(SweepTest):
    device = ("--device", "cuda")

    def test_points(self):
        """One shape of each operator, and every layout of the one with two inputs."""
        answer = self.sweep("--quick", "--html", "s.html", "--seconds", "600", "--dtype", "f32", "--layouts",
                            "contiguous", "--reductions", "rows", "--rows", "3", "--cols", "5", "--depth", "8")
        self.check_points(answer, expected_plan(types=("f32",), reductions=("rows",), layouts=("contiguous",),
                                                rows=(3,), cols=(5,)))
        self.check_page(answer)
        self.assertEqual({point["state"] for point in answer["points"]}, {"measured"})
        self.assertEqual((answer["device"], answer["isa"]), ("cuda", "cuda"))
        answer = self.sweep("--quick", "--seconds", "600", "--operators", "kl", "--dtype", "bf16", "--reductions",
                            "none", "--rows", "3", "--cols", "5", "--gradients", "gradient")
        self.check_points(answer, expected_plan(("kl",), ("bf16",), ("none",), gradients=(True,), rows=(3,), cols=(5,)))
        self.assertEqual({point["state"] for point in answer["points"]}, {"measured"})

    def test_no_memory(self):
        """Memory of the device that ends is a refusal with the driver's word, and the sweep goes on."""
        environment = dict(os.environ, ONEPASS_STANDIN_ALLOCATIONS="3")
        text = self.good("bench", "sweep", "--quick", "--operators", "xent", "--dtype", "f32", "--layouts",
                         "contiguous", "--reductions", "rows", "--rows", "3", "--cols", "5,6", "--json", "-",
                         *self.device, env=environment)
        points = json.loads(text)["points"]
        self.assertEqual([point["state"] for point in points], ["refused"] * 4)
        for point in points:
            self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", point["message"])

    def test_no_memory_the_second_time(self):
        """A layer that was refused is tried again for each result: what it had there is released once."""
        messages = []
        for claims in range(19, 26):
            environment = dict(os.environ, ONEPASS_STANDIN_ALLOCATIONS=str(claims))
            text = self.good("bench", "sweep", "--quick", "--operators", "head", "--dtype", "f32", "--layouts",
                             "contiguous", "--rows", "1", "--cols", "5", "--depth", "3", "--json", "-", *self.device,
                             env=environment)
            points = json.loads(text)["points"]
            self.assertEqual([point["state"] for point in points], ["refused"] * 2)
            messages += [point["message"] for point in points]
        for message in messages:
            self.assertRegex(message, "memory_alloc: .* CUDA_ERROR_OUT_OF_MEMORY|1 row")
        self.assertTrue(any("memory_alloc: 12 bytes" in message for message in messages), messages)  # within the second


def main():
    arguments = sys.argv
    if len(arguments) > 1 and os.path.isfile(arguments[1]):
        test_tool.TOOL = arguments.pop(1)
    if not os.path.isfile(test_tool.TOOL):
        sys.exit("usage: test_tool_sweep.py PATH_OF_ONEPASS [DIRECTORY], or set ONEPASS_TOOL")
    test_tool.TOOL = os.path.abspath(test_tool.TOOL)
    tried = "Sweep"
    if len(arguments) > 1 and os.path.isdir(arguments[1]):
        os.environ.update(LD_LIBRARY_PATH=os.path.abspath(arguments.pop(1)), ONEPASS_CUBLASLT="none")
        tried = "Cuda"
    os.environ.pop("ONEPASS_ISA", None)
    print("seed %d (ONEPASS_TEST_SEED repeats it)" % test_tool.SEED, file=sys.stderr)
    unittest.main(argv=arguments, defaultTest=tried)


if __name__ == "__main__":
    main()
