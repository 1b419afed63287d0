"""Every known way to fool an evaluator must be rejected by the check that is there for it, and honest work accepted.

Each file in tests/cheats opens with what it does wrong, and says in comments

    # problem: NAME          which of problems/ or tests/cheats/problems/ it is a candidate for
    # rejected by: CHECK     the check that the verdict must name
    # options: ...           more arguments for the judge
    # needs: cuda | cpu      the device without which it is no cheat, or that check does not look for it

The files in tests/cheats/honest must be accepted. Seeds are drawn afresh; a failure prints the judge's whole report,
which has the seed. One process imports PyTorch for all of them. What a cheat is rejected for depends little on PyTorch:
before 2.0 a third of them is tried, another one each time.
"""

import pathlib
import random
import re
import shlex
import types

import pytest
import torch

from conftest import SEED
from onepass.judge import timing, windows
from onepass.judge.__main__ import main
from onepass.judge.report import CHECKS

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHEATS = sorted(path for path in (ROOT / "tests" / "cheats").glob("*.py") if not path.name.startswith("_"))
HONEST = sorted((ROOT / "tests" / "cheats" / "honest").glob("*.py"))
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
TRIED = CHEATS if int(torch.__version__.split(".")[0]) >= 2 else random.Random(SEED).sample(CHEATS, len(CHEATS) // 3)


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
            if path in CHEATS and path not in TRIED:
                marks.append(pytest.mark.skip(reason="not drawn: a third is tried with this PyTorch"))
            yield pytest.param(path, device, id="%s-%s" % (path.stem, device), marks=marks)


def judge(path, device, nursery, capsys, *more):
    """(exit code, verdict, everything that was printed)."""
    about = fields(path)
    problem = about["problem"] + ".py"
    places = [ROOT / "problems" / problem, ROOT / "tests" / "cheats" / "problems" / problem]
    reference = next(place for place in places if place.exists())
    arguments = [str(reference), str(path), "--device", device, "--size", "small"]
    code = main(arguments + shlex.split(about.get("options", "")) + list(more), nursery)
    printed = capsys.readouterr().out
    return code, printed.rstrip("\n").splitlines()[-1], printed


@pytest.mark.parametrize("path, device", cases(CHEATS))
def test_cheat_is_rejected(path, device, nursery, capsys):
    expected = fields(path)["rejected by"]
    assert expected in CHECKS
    for _ in range(3):
        code, verdict, printed = judge(path, device, nursery, capsys, "--fail-fast")
        if code == 1 or "the machine is too busy to tell" not in printed:  # the judge says so itself: then once more
            break
    assert code == 1, printed
    assert verdict.startswith("rejected: %s: " % expected), printed


@pytest.mark.parametrize("path, device", cases(HONEST))
def test_honest_work_is_accepted(path, device, nursery, capsys, monkeypatch):
    """Every kind of call is timed, with what is checked there; for how fast it is few windows of few calls will do."""
    monkeypatch.setattr(timing, "MORE", 1)
    monkeypatch.setitem(timing.CALLS, "cpu", 64)
    code, verdict, printed = judge(path, device, nursery, capsys, "--trials", "5")
    assert code == 0, printed
    assert verdict.startswith("accepted: "), printed


def test_double_precision_decides_about_timed_calls(nursery, capsys, monkeypatch):
    """Results that are not near enough to the reference's, so it is said, are compared with those of a call in double
    precision: of every kind."""
    doubted = []

    def compare(ours, theirs, exact, envelope, slack=0.0):
        found = honest(ours, theirs, exact, envelope, slack)
        if exact is theirs:
            found.wrong += 1
        else:
            assert found.ok and exact.dtype is torch.float64
            doubted.append(exact.numel())
        return found

    honest = windows.compare.compare
    monkeypatch.setattr(windows, "compare", types.SimpleNamespace(compare=compare, same_bits=windows.compare.same_bits))
    monkeypatch.setitem(timing.CALLS, "cpu", 2)
    monkeypatch.setattr(timing, "MORE", 1)
    code, verdict, printed = judge(ROOT / "tests" / "cheats" / "honest" / "library_head.py", "cpu", nursery, capsys,
                                   "--trials", "1")
    assert code == 0 and verdict.startswith("accepted: "), printed
    assert {96 * 200, 256 * 200, 200, 1} <= set(doubted)  # output, gradients


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
