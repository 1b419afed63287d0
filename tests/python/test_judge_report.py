"""What the judge reports of a GPU, from reports made by hand: times by CUDA events, how float32 is multiplied."""

import importlib.util

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from onepass import fp32  # noqa: E402
from onepass.judge.launch import Nursery  # noqa: E402
from onepass.judge.page import write_page  # noqa: E402
from onepass.judge.report import Report  # noqa: E402


def times(candidate, reference):
    """Of the sides: (milliseconds by the judge's clock, by CUDA events or None)."""
    result = {"noisy": False, "speedup": reference[0] / candidate[0], "speedup_best": 2.0}
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
    assert lines[place].split() == ["forward", "0.5104", "2.774", "5.43x", "-"]
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
    with Nursery() as nursery:
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
