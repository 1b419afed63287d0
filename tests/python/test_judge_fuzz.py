"""Malformed references and candidates: every run of the judge ends with a verdict line, a JSON file and exit 0, 1 or 3.

A reference or a candidate is put together from parts: what get_inputs returns, what forward does with it, what it
returns. Every part that was once seen to end in a traceback is tried; besides, pairs of parts are drawn. The seed is
printed. What is wrong with a reference, or with the judge, is never the candidate's rejection.
"""

import json
import random
import textwrap

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from onepass.judge.__main__ import main  # noqa: E402

FILE = """
import collections, dataclasses, os, random, sys, threading, torch
Pair = collections.namedtuple("Pair", "a b")
@dataclasses.dataclass
class Record:
    y: torch.Tensor
    z: object = None
class Thing:
    pass
class {name}(torch.nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.linear = torch.nn.Linear(6, width)
    def forward(self, x, *more):
        {before}
        y = torch.tanh(self.linear(x))
        {after}
        return {result}
def get_inputs():
    return {inputs}
def get_init_inputs():
    return {init}
{rest}
"""
PLAIN = {"before": "pass", "after": "pass", "result": "y", "inputs": "[torch.randn(10, 6)]", "init": "[5]", "rest": ""}

# What is not the candidate's fault: parts of a reference, and the exit code (None: any of the three).
REFERENCES = [
    ({"inputs": "None"}, 3),
    ({"inputs": "[]"}, 3),
    ({"inputs": "[None]"}, 3),
    ({"inputs": "[torch.randn(10, 6, device='meta')]"}, 3),
    ({"inputs": "[Pair(torch.randn(10, 6), 1)]"}, 3),
    ({"inputs": "Pair(torch.randn(10, 6), 1)"}, 0),  # a list of two
    ({"inputs": "[torch.randn(10, 6), Thing()]"}, 3),
    ({"inputs": "[torch.randn(10, 6).to_sparse()]"}, 3),
    ({"inputs": "[torch.randn(10, 6), None]"}, 0),
    ({"inputs": "[torch.randn(0, 6)]"}, None),
    ({"inputs": "[torch.full((10, 6), float('nan'))]"}, 3),
    ({"inputs": "[torch.randn(10, 6, requires_grad=True)]"}, 0),
    ({"init": "None"}, 3),
    ({"init": "[-1]"}, 3),
    ({"init": "[Thing()]"}, 3),
    ({"result": "None"}, 3),
    ({"result": "Thing()"}, 3),
    ({"result": "{y}"}, 3),
    ({"result": "lambda: y"}, 3),
    ({"result": "y.to_sparse()"}, 3),
    ({"result": "Pair(y, y.sum())"}, 0),
    ({"result": "Record(y, y.sum())"}, 0),
    ({"result": "[y, float(y.sum()), 'text', None, 3]"}, 0),
    ({"result": "torch.complex(y, y)"}, None),
    ({"result": "(y > 0).float()"}, None),
    ({"before": "os._exit(0)"}, 3),
    ({"before": "raise ValueError('\\udcff' * 9)"}, 3),
    ({"after": "y = y if torch.is_grad_enabled() else y.log().log()"}, None),
    ({"before": "assert x.shape[0] == 10"}, 0),
    ({"before": "assert x.is_contiguous() and x.dtype is torch.float32"}, None),
    ({"rest": "TIMED_GRADIENTS = Thing()"}, 3),
    ({"rest": "get_hidden_inputs = lambda: None"}, 3),
    ({"rest": "get_hidden_cases = lambda: [([-1], [torch.randn(2, 6)])]"}, 3),
    ({"rest": "torch.nn.Linear = None"}, 3),
]

CANDIDATES = [
    {"before": "assert not torch.is_grad_enabled()"},
    {"before": "assert torch.is_grad_enabled()"},
    {"before": "x.resize_(1, 6) if x.shape[0] == 10 else None"},
    {"before": "x.unsqueeze_(0)"},
    {"before": "x.requires_grad_()"},
    {"after": "x.data = x.data.double()"},
    {"after": "del self.linear"},
    {"after": "self.linear.weight = torch.nn.Parameter(torch.zeros(1))"},
    {"after": "self.extra = torch.nn.Parameter(torch.zeros(1))"},
    {"before": "raise ValueError('\\udcff' * 9)"},
    {"before": "raise KeyboardInterrupt()"},
    {"before": "sys.exit(0)"},
    {"before": "os.close(1)", "after": "os.close(2)"},
    {"result": "None"},
    {"result": "()"},
    {"result": "y.tolist()"},
    {"result": "Thing()"},
    {"result": "y.to_sparse()"},
    {"result": "y.to(torch.complex64)"},
    {"result": "y.to('meta')"},
    {"result": "y.expand(2, *y.shape)"},
    {"result": "y.new_empty(0)"},
    {"result": "Record(y)"},
    {"result": "(lambda l: l.append(l) or l)([])"},
    {"result": "y if not x.requires_grad else y.detach()"},
    {"init": "None", "inputs": "None", "rest": "class Model: pass"},
    {"rest": "raise SystemExit(0)"},
    {"rest": "ModelNew = 5"},
    {"rest": "torch.Tensor = None"},
]


def run(nursery, capsys, directory, reference, candidate, *options):
    """(exit code, verdict) of a run that must have ended as every run does."""
    paths = []
    for name, parts in (("Model", reference), ("ModelNew", candidate)):
        paths.append(directory / (name.lower() + ".py"))
        text = textwrap.dedent(FILE).format(name=name, **dict(PLAIN, **parts))
        paths[-1].write_text(text, encoding="utf-8", errors="surrogatepass")
    out = directory / "out.json"
    page = directory / "out.html"
    code = main([str(path) for path in paths] + ["--device", "cpu", "--no-time", "--fail-fast", "--timeout", "60",
                                                 "--json", str(out), "--html", str(page)] + list(options), nursery)
    printed = capsys.readouterr().out
    verdict = printed.rstrip("\n").splitlines()[-1]
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["verdict"] == verdict and report["exit_code"] == code and page.stat().st_size > 1000
    assert verdict.split(":")[0] == {0: "accepted", 1: "rejected", 3: "unusable"}[code], printed
    assert "judge itself failed" not in verdict, report["about"].get("traceback")
    return code, verdict


@pytest.mark.parametrize("parts, expected", REFERENCES, ids=lambda value: str(value)[:60])
def test_a_malformed_reference(nursery, capsys, tmp_path, parts, expected):
    """With itself as the candidate."""
    candidate = {key: parts[key] for key in parts if key not in ("inputs", "init")}
    if "rest" in parts:
        candidate.pop("rest")
    options = [] if "inputs" in parts or "complex" in str(parts) else ["--plain-inputs"]  # to save time
    code, verdict = run(nursery, capsys, tmp_path, parts, candidate, *options)
    assert code == expected or expected is None and code in (0, 3), verdict


@pytest.mark.parametrize("parts", CANDIDATES, ids=lambda value: str(value)[:60])
def test_a_malformed_candidate(nursery, capsys, tmp_path, parts):
    code, verdict = run(nursery, capsys, tmp_path, {}, parts, "--plain-inputs")
    assert code == 1 or code == 0 and "'inputs': 'None'" in str(parts), verdict


def test_parts_that_were_drawn(nursery, capsys, tmp_path):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(3):
        reference = dict(draw.choice(REFERENCES)[0])
        for parts in draw.sample(CANDIDATES, 2):
            run(nursery, capsys, tmp_path, reference, dict(draw.choice(CANDIDATES), **parts))
