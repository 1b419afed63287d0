"""Every known way to fool an evaluator must be rejected by the check that is there for it, and honest work accepted.

Each file in tests/cheats opens with what it does wrong, and says in comments

    # problem: NAME          which of problems/ it is a candidate for
    # rejected by: CHECK     the check that the verdict must name
    # options: ...           more arguments for the judge
    # needs: cuda | cpu      the device without which it is no cheat

The files in tests/cheats/honest must be accepted. Seeds are drawn afresh; a failure prints the judge's whole report,
which has the seed. One process imports PyTorch for all of them.
"""

import pathlib
import re
import shlex
import types

import pytest
import torch

from onepass.judge import timing
from onepass.judge.__main__ import main
from onepass.judge.report import CHECKS

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHEATS = sorted(path for path in (ROOT / "tests" / "cheats").glob("*.py") if not path.name.startswith("_"))
HONEST = sorted((ROOT / "tests" / "cheats" / "honest").glob("*.py"))
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def fields(path):
    """{name: value} of the comments a file opens with."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r"# ([a-z ]+): (.*)$", line)
        if match:
            found[match[1]] = match[2]
        elif not line.startswith("#"):
            return found
    return found


def cases(paths):
    """(path, device), and for a device that this machine lacks a test that says so."""
    for path in paths:
        needs = fields(path).get("needs")
        for device in DEVICES if needs is None else [needs]:
            marks = [] if device in DEVICES else [pytest.mark.skip(reason="needs %s: not tried here" % device)]
            yield pytest.param(path, device, id="%s-%s" % (path.stem, device), marks=marks)


def judge(path, device, nursery, capsys, *more):
    """(exit code, verdict, everything that was printed)."""
    about = fields(path)
    arguments = [str(ROOT / "problems" / (about["problem"] + ".py")), str(path), "--device", device, "--size", "small"]
    code = main(arguments + shlex.split(about.get("options", "")) + list(more), nursery)
    printed = capsys.readouterr().out
    return code, printed.rstrip("\n").splitlines()[-1], printed


@pytest.mark.parametrize("path, device", cases(CHEATS))
def test_cheat_is_rejected(path, device, nursery, capsys):
    expected = fields(path)["rejected by"]
    assert expected in CHECKS
    code, verdict, printed = judge(path, device, nursery, capsys, "--fail-fast")
    assert code == 1, printed
    assert verdict.startswith("rejected: %s: " % expected), printed


@pytest.mark.parametrize("path, device", cases(HONEST))
def test_honest_work_is_accepted(path, device, nursery, capsys):
    code, verdict, printed = judge(path, device, nursery, capsys, "--trials", "5")
    assert code == 0, printed
    assert verdict.startswith("accepted: "), printed


def test_double_precision_decides_about_timed_calls(nursery, capsys, monkeypatch):
    """Results that are not near enough to the reference's, so it is said, are compared with those of a call in double
    precision: of every kind, whole or in part."""
    doubted = []

    def compare(ours, theirs, exact, envelope, slack=0.0):
        found = honest(ours, theirs, exact, envelope, slack)
        if exact is theirs:
            found.wrong += 1
        else:
            assert found.ok and exact.dtype is torch.float64
            doubted.append(exact.numel())
        return found

    honest = timing.compare.compare
    monkeypatch.setattr(timing, "compare", types.SimpleNamespace(compare=compare, same_bits=timing.compare.same_bits))
    monkeypatch.setitem(timing.CALLS, "cpu", 2)
    code, verdict, printed = judge(ROOT / "tests" / "cheats" / "honest" / "library_head.py", "cpu", nursery, capsys,
                                   "--trials", "1")
    assert code == 0 and verdict.startswith("accepted: "), printed
    assert {96 * 200, 256 * 200, 200, 1, timing.SAMPLE} <= set(doubted)  # output, gradients; elements of them


def test_the_corpus_covers_the_checks():
    """A check that no cheat is rejected by has not been seen to fail."""
    seen = {fields(path)["rejected by"] for path in CHEATS}
    # power stops the judge when a problem is too weak, timer and floor need a forged clock or a broken machine, and
    # import is the business of test_judge.py.
    assert set(CHECKS) - seen == {"power", "timer", "floor", "import"}


@pytest.mark.parametrize("path", CHEATS, ids=lambda path: path.stem)
def test_a_cheat_says_what_it_is(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ") and first.endswith("."), first
    assert {"problem", "rejected by"} <= set(fields(path))
