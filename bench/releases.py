#!/usr/bin/env python3
"""Runs the eager, tracing and transform part of the Python suite with the PyTorch of each Python that is named, and
keeps what came of it in bench/results/pytorch-releases.json: for each release how many checks passed, failed and were
left out, and why. The package is the one in build/python. ./dev releases makes the environments.

A release's entry carries a digest of the package and of these tests: evidence.py says whether it is about this tree.

usage: releases.py PYTHON...
"""
import datetime
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATH = os.path.join(ROOT, "bench", "results", "pytorch-releases.json")

# The parts of the suite, as columns of the table in docs/python.md.
PARTS = {
    "functions, derivatives": ["test_torch_kl", "test_torch_autograd", "test_torch_linear", "test_torch_head",
                               "test_torch_modules"],
    "compile, export, traces": ["test_torch_releases", "test_torch_tracing", "test_torch_head_tracing",
                                "test_torch_operators", "test_torch_backend"],
    "torch.func": ["test_torch_transforms"],
    "losses from logits": ["test_torch_losses", "test_torch_losses_autograd", "test_torch_cross_entropy",
                           "test_torch_linear_loss", "test_torch_linear_divergences",
                           "test_torch_linear_tokens", "test_torch_linear_top_k", "test_torch_top_k"],
    "rewrite": ["test_rewrite", "test_rewrite_head", "test_rewrite_losses"],
}
_SHARED = "conftest", "torch_samples", "head_samples", "losses_samples", "rewrite_samples"  # what the tests import
_PACKAGE = ["python/onepass/*.py", "python/onepass/torch/*.py", "python/src/*.[ch]", "python/native.map"]
_NO_MATTER = "no CUDA device"  # left out on this machine, whatever the release


def tests():
    """Paths of the test files that are run, from the root."""
    named = ["tests/python/%s.py" % name for names in PARTS.values() for name in names]
    return [path for path in named if os.path.exists(os.path.join(ROOT, path))]


def digest():
    """SHA-256 over path and bytes of the package's files and of the tests, in the order of the paths."""
    found = set(tests() + ["tests/python/%s.py" % name for name in _SHARED])
    for pattern in _PACKAGE:
        found.update(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, pattern)))
    total = hashlib.sha256()
    for path in sorted(found):
        with open(os.path.join(ROOT, path), "rb") as file:
            content = file.read()
        total.update(("%s\n%d\n" % (path, len(content))).encode())
        total.update(content)
    return total.hexdigest()


def number(version):
    """'2.11.0' as something to sort by."""
    return [int(part) for part in version.split(".")]


def load():
    """{release: its entry}, oldest release first; empty if none was run."""
    if not os.path.exists(PATH):
        return {}
    with open(PATH, encoding="utf-8") as file:
        entries = json.load(file)["releases"]
    return {version: entries[version] for version in sorted(entries, key=number)}


def summarise(path):
    """(counts by part, {why something was left out: how often}, names of what failed) of a file of pytest's."""
    counts = {part: {"passed": 0, "failed": 0, "left_out": 0} for part in PARTS}
    part_of = {name: part for part, names in PARTS.items() for name in names}
    left_out, failed = {}, []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        count = counts[part_of[case.get("classname").split(".")[-1]]]
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            count["failed"] += 1
            failed.append("%s::%s" % (case.get("classname").split(".")[-1], case.get("name")))
        elif skipped is None:
            count["passed"] += 1
        elif skipped.get("message") != _NO_MATTER:
            count["left_out"] += 1
            left_out[skipped.get("message")] = left_out.get(skipped.get("message"), 0) + 1
    return counts, left_out, failed


def run(python):
    """(release, its entry) of a run."""
    facts = "import platform, torch; print(torch.__version__, platform.python_version())"
    facts = subprocess.run([python, "-c", facts], check=True, stdout=subprocess.PIPE,
                           universal_newlines=True).stdout.split()
    before = digest()
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.xml")
        done = subprocess.run([python, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-k", "not cuda",
                               "--junitxml", report] + tests(), cwd=ROOT,
                              env=dict(os.environ, PYTHONPATH=os.path.join(ROOT, "build", "python")))
        if done.returncode not in (0, 1):
            sys.exit("releases.py: pytest ended with %d" % done.returncode)
        counts, left_out, failed = summarise(report)
    if digest() != before:
        sys.exit("releases.py: the package or its tests were changed while they ran")
    return facts[0].split("+")[0], {"python": facts[1], "date": datetime.date.today().isoformat(), "digest": before,
                                    "parts": counts, "left_out": left_out, "failed": failed}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    result = 0
    for python in sys.argv[1:]:
        version, entry = run(python)
        entries = load()
        entries[version] = entry
        with open(PATH, "w", encoding="utf-8") as file:
            json.dump({"releases": entries}, file, indent=1, sort_keys=True)
            file.write("\n")
        print("PyTorch %s: %d failed" % (version, len(entry["failed"])))
        result = max(result, 1 if entry["failed"] else 0)
    return result


if __name__ == "__main__":
    sys.exit(main())
