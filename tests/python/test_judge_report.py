"""What the judge reports, from reports made by hand: times by CUDA events, how float32 is multiplied, rejected work,
what was not compared; progress on a terminal; a folder of pairs."""

import importlib.util
import io
import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from onepass import fp32  # noqa: E402
from onepass.judge import compare, launch, suite  # noqa: E402
from onepass.judge.__main__ import SHARES, Progress, main  # noqa: E402
from onepass.judge.page import write_page  # noqa: E402
from onepass.judge.report import Report  # noqa: E402


def times(candidate, reference):
    """Of the sides: (milliseconds by the judge's clock, by CUDA events or None)."""
    result = {"noisy": False, "speedup": reference[0] / candidate[0], "speedup_low": 2.0, "speedup_high": 2.0}
    for name, (clock, events) in (("candidate", candidate), ("reference", reference)):
        result[name] = {"ms": clock, "ms_q20": clock, "ms_q80": clock, "windows": [clock]}
        if events is not None:
            result[name]["device"] = {"ms": events, "ms_q20": events, "ms_q80": events, "windows": [events]}
    return result


def test_times_by_events_are_a_line_of_their_own(tmp_path):
    report = Report()
    report.times = {"forward": times((0.5104, 0.4923), (2.774, 2.747)),
                    "forward + backward": times((2, None), (4, None))}
    lines = report.text().splitlines()
    place = lines.index(next(line for line in lines if line.startswith("forward ")))
    assert lines[place].split() == ["forward", "0.5104", "2.774", "5.43x", "-", "-"]
    assert lines[place + 1].split() == ["by", "CUDA", "events", "0.4923", "2.747", "5.58x"]
    assert lines[place].index("0.5104") == lines[place + 1].index("0.4923")
    assert lines[place + 2].startswith("forward + backward ") and "events" not in "".join(lines[place + 2:])
    write_page(report, str(tmp_path / "out.html"))
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    row = '<td class="">forward</td>' + "".join('<td class="number">%s</td>' % words
                                                for words in ("0.4923", "2.747", "5.58x"))
    assert page.count("ms by CUDA events") == 1 and row in page
    report.times.pop("forward")
    write_page(report, str(tmp_path / "out.html"))
    assert "events</th>" not in (tmp_path / "out.html").read_text(encoding="utf-8")
    assert report.verdict == "accepted: 0 checks passed, forward + backward 2.00 times as fast"


def test_how_float32_is_multiplied_is_shown(tmp_path):
    words = "vendor: in float32, by cuBLAS without tensor cores"
    report = Report()
    report.about.update(candidate="c.py", reference="r.py", machine="a GPU", device="cuda", fp32_products=words)
    before = report.verdict
    assert "\nfloat32    products of onepass are %s\n" % words in report.text()
    write_page(report, str(tmp_path / "out.html"))
    assert "products of onepass are " + words in (tmp_path / "out.html").read_text(encoding="utf-8")
    assert report.as_dict()["about"]["fp32_products"] == words
    report.about.pop("fp32_products")  # the CPU
    write_page(report, str(tmp_path / "out.html"))
    assert "products of onepass" not in report.text() + (tmp_path / "out.html").read_text(encoding="utf-8")
    assert report.verdict == before


@pytest.mark.parametrize("name", ["vendor", "most"])
def test_a_worker_says_how_float32_is_multiplied(name, monkeypatch):
    """With the environment that it was started in; a wrong one is shown, not raised."""
    monkeypatch.setenv("ONEPASS_FP32_PRODUCTS", name)
    with launch.Nursery() as nursery:
        worker = nursery.start()
        answer = worker.ask("products")
        worker.stop()
    if importlib.util.find_spec("onepass._native") is None:
        assert answer is None
    elif name == "most":
        assert answer == "$ONEPASS_FP32_PRODUCTS: 'most'; it must be full, split or vendor"
    elif fp32.allows_tf32():  # as PyTorch before 1.12 does unasked
        assert answer.startswith("tf32: PyTorch's setting allows it")
    else:
        assert answer.startswith("vendor: in float32, by cuBLAS")


def test_a_rejected_page_has_no_speed_up_at_its_top(tmp_path):
    report = Report()
    report.times = {"forward": times((0.5, None), (2.5, None))}
    write_page(report, str(tmp_path / "out.html"))
    assert "<b>5.00×</b>" in (tmp_path / "out.html").read_text(encoding="utf-8")
    report["tampering"].fail("it did")
    write_page(report, str(tmp_path / "out.html"))
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<b>5.00×</b>" not in page and "Rejected" in page


def test_what_was_not_compared_is_said_first(tmp_path):
    report = Report()
    report.about.update(candidate="c.py", reference="r.py", sides="candidate: CPU, 2 threads of PyTorch's")
    report.left_out.append("the training mode")
    assert report.verdict == "accepted: 0 checks passed, not compared: the training mode"
    assert "not compared: the training mode" in report.text() and "2 threads" in report.text()
    write_page(report, str(tmp_path / "out.html"))
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert page.index("Not compared: the training mode") < page.index("What was compared")
    assert report.as_dict()["left_out"] == ["the training mode"]


def test_the_page_has_rates_and_a_histogram(tmp_path):
    report = Report()
    report.times = {"forward": dict(times((0.5, None), (2.0, None)), bytes=10 ** 6, bytes_a_second=1e10, floor_ms=0.1)}
    envelope = compare.Envelope(torch.float32)
    exact = torch.full((8,), 1.5, dtype=torch.float64)
    envelope.add(exact, exact)
    ulp = 2.0 ** -23
    errors = ulp * torch.tensor([0, 0.25, 0.5, 0.6, 1, 3, 4, 1e9], dtype=torch.float64)
    found = compare.compare(exact + errors, exact, exact, envelope, histogram=True)
    assert found.histogram[0].tolist() == [1, 2, 2, 0, 2] + [0] * 10 + [1]
    assert found.histogram[1].tolist() == [8] + [0] * 15
    report.errors = [{"key": "out.0", "result": "output 0", "inputs": "fresh", "candidate": 1e-7, "reference": 1e-7,
                      "candidate_ulps": 3.0, "reference_ulps": 1.0, "used": 0.1, "elements": 8, "wrong": 0,
                      "zero": False, "histogram": {"candidate": found.histogram[0].tolist(),
                                                   "reference": found.histogram[1].tolist()}}]
    write_page(report, str(tmp_path / "out.html"))
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "Share of the roofline" in page
    assert '<td class="number">2</td>' in page  # a million bytes in half a millisecond
    assert "up to 0.5 ulp" in page and "Errors of output 0 in ulp" in page


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal():
    stream = Terminal()
    progress = Progress(stream)
    progress.begun -= 10.0
    for word in ("import", "shapes", "no such word", "afterwards"):
        progress(word)
    lines = stream.getvalue().split("\r\x1b[K")[1:]
    assert lines[0].startswith("[" + "." * 24 + "]") and "left" not in lines[0]
    assert lines[1].startswith("[" + "#" * 11 + "." * 13 + "]") and "about 12 s left" in lines[1]
    assert lines[2].startswith("[" + "#" * 11) and lines[3].startswith("[" + "#" * 24)
    assert list(SHARES.values()) == sorted(SHARES.values())


PROBLEM = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.sin(x)\n" \
          "def get_inputs():\n    return [torch.randn(4, 3)]\n"


def layout(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        reference = "reference" in path or path.startswith("level1/")
        (folder / path).write_text(PROBLEM if reference else PROBLEM.replace("Model", "ModelNew"), encoding="utf-8")


def test_pairs_in_a_folder(tmp_path):
    layout(tmp_path, "sine/reference.py", "sine/fast.py", "references/a.py", "candidates/a_2.py", "candidates/a/b.py",
           "level1/3_Sine.py", "runs/level_1_problem_3_sample_0_kernel.py",
           "runs/level_1_problem_30_sample_0_kernel.py",
           "notes.py", "_helper.py")
    (tmp_path / "both.py").write_text(PROBLEM + PROBLEM.replace("Model", "ModelNew"), encoding="utf-8")
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "no_such_file.py")
    assert suite.pairs_of(str(tmp_path)) == [
        ("both.py", None), ("level1/3_Sine.py", "runs/level_1_problem_3_sample_0_kernel.py"),
        ("references/a.py", "candidates/a/b.py"), ("references/a.py", "candidates/a_2.py"),
        ("sine/reference.py", "sine/fast.py")]


def test_a_folder_is_judged(tmp_path, nursery, capsys):
    layout(tmp_path, "p/reference.py", "p/good.py", "p/wrong.py")
    (tmp_path / "p" / "wrong.py").write_text(PROBLEM.replace("Model", "ModelNew").replace("sin(x)", "sin(x) * 1.5"),
                                             encoding="utf-8")
    arguments = ["--suite", str(tmp_path), "--device", "cpu", "--no-time", "--quiet", "--plain-inputs",
                 "--forward-only", "--html", str(tmp_path / "out.html"), "--json", str(tmp_path / "out.json")]
    assert main(arguments, nursery) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "rejected: of 2 candidates 1 accepted, 1 rejected, 0 not judged"
    assert lines[0].startswith("p/good.py: accepted: ") and lines[1].startswith("p/wrong.py: rejected: values: ")
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert result["verdict"] == lines[-1] and [entry["exit_code"] for entry in result["suite"]] == [0, 1]
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "p/good.py" in page and "p/wrong.py" in page and lines[-1] in page
    (tmp_path / "empty").mkdir()
    assert main(["--suite", str(tmp_path / "empty")], nursery) == 3
    assert capsys.readouterr().out.startswith("unusable: there is no pair")


def test_a_folder_is_judged_to_its_end(tmp_path, monkeypatch, capsys):
    """One candidate stops the process that all are forked from: the next one gets another."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    layout(tmp_path, "p/reference.py", "p/a_stops.py", "p/b_good.py")
    stops = PROBLEM.replace("Model", "ModelNew").replace("return torch.sin", "os.kill(os.getppid(), signal.SIGSTOP)\n"
                                                         "        return torch.sin")
    (tmp_path / "p" / "a_stops.py").write_text("import os, signal\n" + stops, encoding="utf-8")
    with launch.Nursery() as nursery:
        nursery.start().stop()
        nursery._control.settimeout(3.0)  # not to wait for as long as a machine may be busy
        assert main(["--suite", str(tmp_path), "--device", "cpu", "--no-time", "--quiet", "--plain-inputs",
                     "--forward-only"], nursery) == 3
        assert not nursery.alive
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "p/a_stops.py: unusable: " + launch.GONE and lines[1].startswith("p/b_good.py: accepted: ")
    assert lines[2] == "unusable: of 2 candidates 1 accepted, 0 rejected, 1 not judged"
