"""The report as one HTML page: no script, no file beside it, light or dark as the reader's system is."""

import html

from onepass.judge import plots
from onepass.judge.report import CHECKS, WORDS, by_events, noise, number, one_line, pace

STYLE = """
:root { --paper: #ffffff; --panel: #f5f6f8; --ink: #1b1f24; --soft: #5b6570; --line: #d9dee4; --grid: #e6e9ee;
  --candidate: #1f6feb; --reference: #8b949e; --torch: #bf8700; --good: #1a7f37; --bad: #cf222e; --unsure: #7d6608;
  --badpaper: #fff1f0; --goodpaper: #effaf1; --unsurepaper: #fdf8e6; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1318; --panel: #181d24; --ink: #e6e9ed; --soft: #9aa4af;
  --line: #2d343d; --grid: #262c34; --candidate: #58a6ff; --reference: #768390; --torch: #d9a520; --good: #4ac26b;
  --bad: #ff7b72; --unsure: #d4b106; --badpaper: #2a1719; --goodpaper: #12231a; --unsurepaper: #262110; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 940px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 30px; line-height: 1.2; margin: 2px 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 40px 0 4px; }
p { margin: 6px 0; max-width: 72ch; }
.kicker { color: var(--soft); font-size: 13px; letter-spacing: 0.06em; text-transform: uppercase; }
.soft { color: var(--soft); }
.verdict { border-left: 6px solid; border-radius: 6px; padding: 16px 20px 18px; }
.verdict.accepted { border-color: var(--good); background: var(--goodpaper); }
.verdict.rejected { border-color: var(--bad); background: var(--badpaper); }
.verdict.unusable { border-color: var(--unsure); background: var(--unsurepaper); }
.accepted h1 { color: var(--good); } .rejected h1 { color: var(--bad); } .unusable h1 { color: var(--unsure); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 18px 0 0; }
.tile { background: var(--panel); border-radius: 6px; padding: 10px 16px 12px; }
.tile b { display: block; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; margin-top: 10px; }
th, td { text-align: left; vertical-align: top; padding: 7px 12px 7px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; font-size: 13px; color: var(--soft); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.facts td:first-child { color: var(--soft); white-space: nowrap; width: 120px; }
.facts td { overflow-wrap: anywhere; }
.checks td:first-child { white-space: nowrap; font-weight: 600; font-variant-numeric: tabular-nums; }
.checks td:nth-child(2) { white-space: nowrap; }
.checks .finding { color: var(--soft); overflow-wrap: anywhere; }
.checks tr.fail .finding { color: var(--ink); }
.checks tr.fail { background: var(--badpaper); }
.checks tr.fail td { padding-left: 8px; }
.status { font-size: 13px; font-weight: 600; }
.pass .status { color: var(--good); } .fail .status { color: var(--bad); } .note .status { color: var(--unsure); }
.skip .status { color: var(--soft); font-weight: 400; }
.scroll { overflow-x: auto; }
.legend { font-size: 13px; color: var(--soft); display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 6px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
svg { width: 100%; height: auto; display: block; margin-top: 10px; min-width: 620px; }
svg text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
svg .name { font-weight: 600; } svg .who, svg .tick { fill: var(--soft); } svg .tick { font-size: 11.5px; }
svg .value { font-variant-numeric: tabular-nums; paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg .grid { stroke: var(--grid); } svg .link { stroke: var(--line); stroke-width: 3; }
svg .whisker { stroke: var(--ink); stroke-width: 1.5; } svg .mark { stroke: var(--bad); stroke-width: 2; }
svg .candidate { fill: var(--candidate); } svg .reference { fill: var(--reference); }
svg .torchcompile { fill: var(--torch); }
code, pre { font: 13px ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; }
pre { background: var(--panel); border-radius: 6px; padding: 12px 14px; overflow-x: auto; white-space: pre-wrap; }
details summary { cursor: pointer; color: var(--soft); margin-top: 10px; }
"""


def e(text):
    return html.escape(str(text), quote=True)


def tag(name, body, **attributes):
    words = "".join(' %s="%s"' % (key.rstrip("_"), e(value)) for key, value in attributes.items())
    return "<%s%s>%s</%s>" % (name, words, body, name)


def table(kind, head, rows, caption):
    """rows: lists of (html, class) cells, or (class, list)."""
    parts = ['<div class="scroll"><table class="%s" aria-label="%s">' % (kind, e(caption))]
    if head:
        parts.append("<thead><tr>%s</tr></thead>" % "".join(
            '<th class="%s">%s</th>' % ("number" if right else "", e(words)) for words, right in head))
    parts.append("<tbody>")
    for css, cells in rows:
        row = "".join('<td class="%s">%s</td>' % (kind, body) for body, kind in cells)
        parts.append('<tr class="%s">%s</tr>' % (css, row))
    parts.append("</tbody></table></div>")
    return "".join(parts)


LEGEND = ('<div class="legend"><span><i style="background:var(--candidate)"></i>candidate</span>'
          '<span><i style="background:var(--reference)"></i>reference</span>%s</div>')


def verdict(report):
    kind = "unusable" if report.unusable else "rejected" if report.failed else "accepted"
    title = {"unusable": "Nothing to judge", "rejected": "Rejected", "accepted": "Accepted"}[kind]
    if report.unusable:
        reason = report.unusable
    elif report.failed:
        reason = "%s: %s" % (report.failed[0].name, one_line(report.failed[0].text))
    else:
        reason = "Same results as the reference, within the reference's own rounding errors, wherever it was looked at."
    more = ""
    if report.left_out:
        more = tag("p", "Not compared: " + e("; ".join(report.left_out)))
    if len(report.failed) > 1:
        more += tag("p", "Also failed: " + e(", ".join(check.name for check in report.failed[1:])), class_="soft")
    return tag("section", tag("div", "onepass judge", class_="kicker") + tag("h1", title) + tag("p", e(reason)) + more,
               class_="verdict " + kind)


def tiles(report):
    parts = []
    for kind, times in report.times.items():
        if times.get("speedup") and not report.failed:  # what is wrong is not fast
            ratio = times["speedup"]
            big = "%.2f×" % ratio if ratio < 10 else "%.1f×" % ratio
            parts.append((big, "the reference's speed, %s%s" % (kind, ", with noise: %.2f to %.2f" % (
                times["speedup_low"], times["speedup_high"]) if times["noisy"] else "")))
    passed = sum(check.status in ("pass", "note") for check in report.checks.values())
    parts.append(("%d of %d" % (passed, passed + len(report.failed)), "checks passed"))
    rows = [row for row in report.main_errors() if row["key"].startswith("out.") and row["inputs"] == "fresh"]
    if rows:
        parts.append((number(rows[0]["candidate"]), "relative error of the output; the reference's is %s"
                      % number(rows[0]["reference"])))
    return '<div class="tiles">%s</div>' % "".join(
        '<div class="tile"><b>%s</b><span>%s</span></div>' % (e(big), e(words)) for big, words in parts)


def facts(report):
    about = report.about
    rows = [("candidate", about.get("candidate")), ("reference", about.get("reference")),
            ("machine", about.get("machine")), ("device", about.get("device")), ("type", about.get("dtype")),
            ("threads", about.get("sides")),
            ("float32", about.get("fp32_products") and "products of onepass are " + about["fp32_products"]),
            ("size", about.get("size")), ("seed", about.get("seed")),
            ("versions", "PyTorch %s, Python %s" % (about.get("torch"), about.get("python"))),
            ("date", "%s, %.0f seconds" % (about.get("date"), about.get("seconds", 0)))]
    rows += [("note", words) for words in noise(report.times)]
    if about.get("rewriting"):
        rows.append(("rewriting", about["rewriting"]))
    return tag("h2", "What was compared") + table("facts", None, [
        ("", [(e(name), ""), (e(value), "")]) for name, value in rows if value is not None], "What was compared")


def time_plot(report):
    if not report.times:
        return ""
    groups, ratios = [], []
    for kind, times in report.times.items():
        if not times.get("speedup"):
            continue
        bars = [(who, times[key]["ms"], (times[key]["ms_q20"], times[key]["ms_q80"]))
                for who, key in (("candidate", "candidate"), ("reference", "reference"), ("torch.compile", "compiled"))
                if times.get(key)]
        groups.append((kind, bars, times.get("floor_ms")))
        rivals = [("candidate", times["speedup"], None)]
        if times.get("compiled"):
            rivals.append(("torch.compile", times["reference"]["ms"] / times["compiled"]["ms"], None))
        ratios.append((kind, rivals, 1.0))
    floor = "floor: the least time in which this machine can move the data or do the multiplications"
    parts = [tag("h2", "Time"),
             tag("p", "Milliseconds a call, by the judge's clock: median, and a line from the 20th to the 80th "
                      "percentile. Every call gets new values at new addresses.", class_="soft"),
             LEGEND % ('<span><i style="background:var(--torch)"></i>reference under torch.compile</span>'
                       if any(times.get("compiled") for times in report.times.values()) else ""),
             tag("div", plots.bars(groups, " ms", "Time of a call", floor), class_="scroll"),
             event_table(report), rate_plot(report),
             tag("h2", "Speed-up"),
             tag("p", "How many times as fast as the reference.", class_="soft"),
             tag("div", plots.bars(ratios, "×", "Speed-up", "as fast as the reference"), class_="scroll")]
    return "".join(parts)


def rate_plot(report):
    """Bytes a second that were moved, as a share of what this machine can."""
    groups, rows = [], []
    for kind, times in report.times.items():
        if not times.get("bytes"):
            continue
        bars, cells = [], [(e(kind), "")]
        for who in ("candidate", "reference"):
            seconds = times[who]["ms"] / 1e3 if times[who].get("measurable", True) else 0.0
            cells.append(("%.3g" % (times["bytes"] / seconds / 1e9) if seconds else "-", "number"))
            if seconds:
                bars.append((who, 100 * times["floor_ms"] / times[who]["ms"], None))
        cells += [("%.3g" % (times["bytes_a_second"] / 1e9), "number"), ("%.3g" % (times["bytes"] / 1e6), "number")]
        groups.append((kind, bars, 100.0))
        rows.append(("", cells))
    if not rows:
        return ""
    head = [("GB a second", 0), ("candidate", 1), ("reference", 1), ("this machine", 1), ("MB a call", 1)]
    words = ("How near each comes to the least time in which this machine can move the data of a call, or do its "
             "multiplications.")
    drawn = plots.bars(groups, "%", "Share of the roofline", "all that this machine can do")
    return (tag("h2", "Share of the roofline") + tag("p", words, class_="soft") + LEGEND % ""
            + tag("div", drawn, class_="scroll") + table("", head, rows, "Rates"))


def event_table(report):
    rows = [("", [(e(kind), "")] + [(e(words), "number") for words in by_events(times)])
            for kind, times in report.times.items() if by_events(times)]
    if not rows:
        return ""
    words = ("The same by CUDA events around each call: the device's own time. It comes from the process that ran the "
             "code, and is checked against the judge's clock.")
    head = [("ms by CUDA events", 0), ("candidate", 1), ("reference", 1), ("speed-up", 1)]
    return tag("p", words, class_="soft") + table("", head, rows, "Times by CUDA events")


def memory_plot(report):
    groups = [(kind, [("candidate", megabytes(sizes.get("candidate")), None),
                      ("reference", megabytes(sizes.get("reference")), None)], None)
              for kind, sizes in report.memory.items()]
    drawn = plots.bars(groups, " MiB", "Memory of a call")
    if not drawn:
        return ""
    how = "as counted by PyTorch's allocator" if report.about.get("device", "").startswith("cuda") else \
        "as seen in the process's resident pages"
    words = "MiB that a call takes at its peak beyond its inputs, results included, %s." % how
    return tag("h2", "Memory") + tag("p", words, class_="soft") + LEGEND % "" + tag("div", drawn, class_="scroll")


def megabytes(value):
    return None if value is None else value / 1048576.0


def error_plot(report):
    rows = report.main_errors()
    if not rows:
        return ""
    drawn = plots.pairs([("%s, %s" % (row["result"], row["inputs"].replace(", backward", "")), row["candidate"],
                          row["reference"]) for row in rows if not row["zero"]], "Errors against double precision")
    zero = [row["result"] for row in rows if row["zero"]]
    left_out = tag("p", "Not drawn: %s, whose exact value is 0, so that all of it is rounding." % e(", ".join(zero)),
                   class_="soft") if zero else ""
    cells = [("fail" if row["wrong"] else "", [
        (e(row["result"]), ""), (e(row["inputs"]), ""), (number(row["candidate"]), "number"),
        (number(row["reference"]), "number"), (number(row["candidate_ulps"]), "number"),
        (number(row["reference_ulps"]), "number"), ("%.0f%%" % (100 * row["used"]) if row["used"] < 100 else "exceeded",
                                                    "number")]) for row in report.errors]
    head = [("result", 0), ("inputs", 0), ("candidate", 1), ("reference", 1), ("cand., ulp", 1), ("ref., ulp", 1),
            ("tolerance used", 1)]
    return "".join([
        tag("h2", "Error"),
        tag("p", "Distance from a run of the reference in double precision on the same inputs, relative to the size of "
                 "the result. Further left is more exact. Beside the dots: candidate | reference.", class_="soft"),
        LEGEND % "", tag("div", drawn, class_="scroll"), left_out,
        tag("details", tag("summary", "all %d comparisons" % len(cells)) + table("", head, cells, "All comparisons"))])


def histogram(report):
    """Errors of the outputs on fresh inputs, counted by their size in ulp."""
    rows = [row for row in report.errors if row.get("histogram") and row["inputs"] == "fresh"]
    parts = []
    for row in rows[:4]:
        counts = row["histogram"]
        last = max(place for place, pair in enumerate(zip(counts["candidate"], counts["reference"])) if any(pair))
        total = max(1, sum(counts["candidate"]))
        groups = []
        for place in range(last + 1):
            label = "none" if place == 0 else "up to %g ulp" % 2.0 ** (place - 2)
            groups.append((label, [(who, 100.0 * counts[who][place] / total, None)
                                   for who in ("candidate", "reference")], None))
        parts.append(tag("p", e("%s: share of its elements, by their error" % row["result"]), class_="soft")
                     + tag("div", plots.bars(groups, "%", "Errors of %s in ulp" % row["result"]), class_="scroll"))
    return tag("h2", "Errors in ulp") + LEGEND % "" + "".join(parts) if parts else ""


def inputs_table(report):
    """Every kind of inputs that was tried, with the worst of its comparisons."""
    kinds = {}
    for row in report.errors:
        kinds.setdefault(row["inputs"], []).append(row)
    rows = []
    for label, many in kinds.items():
        worst = max(many, key=lambda row: row["used"])
        rows.append(("fail" if any(row["wrong"] for row in many) else "", [
            (e(label), ""), (str(len(many)), "number"), (e(worst["result"]), ""),
            ("%.0f%%" % (100 * worst["used"]) if worst["used"] < 100 else "exceeded", "number"),
            (str(sum(row["wrong"] for row in many)), "number")]))
    head = [("inputs", 0), ("results", 1), ("the worst", 0), ("tolerance used", 1), ("wrong elements", 1)]
    return tag("h2", "Inputs") + table("", head, rows, "Inputs") if rows else ""


def checks(report):
    order = {"fail": 0, "note": 1, "pass": 1, "skip": 2}
    rows = []
    for check in sorted(report.checks.values(), key=lambda check: order[check.status]):
        rows.append((check.status, [
            (e(check.name), ""), (tag("span", e(WORDS[check.status]), class_="status"), ""),
            (e(CHECKS[check.name]) + tag("div", e(check.text), class_="finding"), "")]))
    words = tag("p", "What each one looks at, and below it what was found.", class_="soft")
    head = [("check", 0), ("", 0), ("what it looks at", 0)]
    return tag("h2", "Checks") + words + table("checks", head, rows, "Checks")


def fakes(report):
    found = report["power"].details.get("fakes")
    if not found:
        return ""
    rows = [("", [(e(fake["fake"]), ""), (e(fake["result"]), ""),
                  (("not noticed" if not fake["tolerances"] else number(fake["tolerances"]) + " tolerances"), "number"),
                  (e(fake["inputs"] or ""), "")]) for fake in found]
    words = ("What a program could return instead of computing everything, put through the same comparison. The "
             "farther from the exact value, counted in tolerances, the surer it would have been rejected.")
    return tag("h2", "Would less have been noticed?") + tag("p", words, class_="soft") + table(
        "", [("instead of the result", 0), ("result", 0), ("distance", 1), ("on inputs", 0)], rows, "Fakes")


def again(report):
    about = report.about
    words = ["python -m onepass.judge", about.get("reference", "")]
    if about.get("candidate_given"):
        words.append(about["candidate"])
    words += ["--device", about.get("device"), "--dtype", about.get("dtype"), "--size", about.get("size"),
              "--seed", about.get("seed")]
    return tag("h2", "To repeat it") + tag("pre", e(" ".join(str(word) for word in words)))


def write_page(report, path):
    title = "%s: %s" % (report.about.get("candidate", ""), report.verdict.split(":")[0])
    body = [verdict(report), tiles(report) if not report.unusable else "", facts(report)]
    if not report.unusable:
        body += [time_plot(report), error_plot(report), histogram(report), inputs_table(report), memory_plot(report),
                 checks(report), fakes(report)]
    write(title, body + [again(report)], path)


def write_suite(found, path):
    """found: [(reference, candidate, Report)]. One page with all verdicts."""
    from onepass.judge import suite
    rows = []
    for reference, candidate, report in found:
        kind = {0: "pass", 1: "fail", 3: "skip"}[report.exit_code]
        speeds = "" if report.exit_code else "<br>".join(e("%s: %s" % (name, pace(times)))
                                                         for name, times in report.times.items())
        rows.append((kind, [(e(candidate or reference), ""),
                            (tag("span", e(report.verdict.split(":")[0]), class_="status"), ""),
                            (e(one_line(report.verdict))
                             + tag("div", "reference: " + e(reference), class_="finding"), ""), (speeds, "")]))
    kind = {0: "accepted", 1: "rejected", 3: "unusable"}[suite.exit_code(found)]
    top = tag("section", tag("div", "onepass judge", class_="kicker") + tag("h1", kind.capitalize())
              + tag("p", e(suite.verdict(found))), class_="verdict " + kind)
    head = [("candidate", 0), ("", 0), ("verdict", 0), ("speed", 0)]
    write("a suite: %s" % kind, [top, table("checks", head, rows, "Verdicts")], path)


def write(title, body, path):
    page = ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>%s</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
            'content="light dark"><style>%s</style></head><body><main>%s</main></body></html>\n'
            % (e(title), STYLE, "\n".join(body)))
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(page)
