"""A folder of references and candidates, judged one after the other, and one page with all verdicts.

Pairs are found in four ways, which may be mixed:

    NAME/reference.py, NAME/*.py                      a folder for each problem; every other file in it is a candidate
    references/NAME.py, candidates/NAME*.py           or candidates/NAME/*.py
    level1/3_Name.py, level_1_problem_3_*.py          KernelBench's problems and its runs, wherever they lie
    NAME.py                                           with both Model and ModelNew
"""

import json
import os
import re

from onepass.judge.report import SCHEMA, finite, one_line

PROBLEM = re.compile(r"(?:^|/)level_?(\d+)/(\d+)_[^/]*\.py$")
KERNEL = re.compile(r"(?:^|/)level_(\d+)_problem_(\d+)_[^/]*\.py$")


def files_of(folder):
    """Paths of Python files below a folder, relative to it, with slashes."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        found += [os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
                  for name in sorted(names) if name.endswith(".py") and not name.startswith("_")]
    return found


def stem(path):
    return os.path.splitext(os.path.basename(path))[0]


def numbers(path):
    """Of a name with numbers in it, so that 10 comes after 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def holds_both(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:  # a link to nowhere
        return False
    return bool(re.search(r"^class Model\b", text, re.M) and re.search(r"^class ModelNew\b", text, re.M))


def pairs_of(folder):
    """[(reference, candidate or None)], paths relative to the folder."""
    files = files_of(folder)
    problems = {match.groups(): path for path in files for match in [PROBLEM.search(path)] if match}
    found, used = [], set(problems.values())
    for path in files:
        match = KERNEL.search(path)
        parts = path.split("/")
        if match:
            used.add(path)
            if match.groups() in problems:
                found.append((problems[match.groups()], path))
        elif parts[-1] == "reference.py":
            used.add(path)
            others = [other for other in files if other.rsplit("/", 1)[:-1] == path.rsplit("/", 1)[:-1]
                      and other != path]
            used.update(others)
            found += [(path, other) for other in others]
        elif "references" in parts[:-1]:
            used.add(path)
            beside = "/".join("candidates" if part == "references" else part for part in parts[:-1])
            others = [other for other in files if other.startswith(beside + "/")
                      and (stem(other).startswith(stem(path)) or os.path.dirname(other) == beside + "/" + stem(path))]
            used.update(others)
            found += [(path, other) for other in others]
    found += [(path, None) for path in files if path not in used and "candidates" not in path.split("/")[:-1]
              and holds_both(os.path.join(folder, path))]
    return sorted(found, key=lambda pair: (numbers(pair[0]), numbers(pair[1] or "")))


def judge_suite(folder, judge, say):
    """[(reference, candidate, Report)]. judge(reference, candidate): a Report; say: called with a line for each."""
    found = []
    for reference, candidate in pairs_of(folder):
        report = judge(os.path.join(folder, reference), candidate and os.path.join(folder, candidate))
        found.append((reference, candidate, report))
        say("%s: %s" % (candidate or reference, one_line(report.verdict)))
    return found


def exit_code(found):
    """1 if one was rejected; 3 if one could not be judged, or there was none; otherwise 0."""
    codes = [report.exit_code for _, _, report in found]
    return 1 if 1 in codes else 3 if 3 in codes or not codes else 0


def verdict(found):
    """One line about all."""
    if not found:
        return "unusable: there is no pair of a reference and a candidate in the folder"
    counts = [sum(report.exit_code == code for _, _, report in found) for code in (0, 1, 3)]
    word = {0: "accepted", 1: "rejected", 3: "unusable"}[exit_code(found)]
    return "%s: of %d candidates %d accepted, %d rejected, %d not judged" % tuple([word, len(found)] + counts)


def write_json(found, path):
    result = {"schema": SCHEMA, "tool": "onepass.judge", "verdict": verdict(found), "exit_code": exit_code(found),
              "suite": [dict(report.as_dict(), reference=reference, candidate=candidate)
                        for reference, candidate, report in found]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(finite(result), file, indent=1, allow_nan=False, default=str)
        file.write("\n")
