#!/usr/bin/env python3
"""Says whether the results in bench/results are about the GPU code in this tree: exit 0 if fresh, 1 if stale.

A result file carries a digest of everything under src/cuda and of the tests that ran with it. One file whose digest is
that of the tree, and whose tests all passed, is fresh evidence. No GPU is needed.
"""
import glob
import hashlib
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COVERED = ["src/cuda/*", "tests/test_cuda.c", "tests/cuda_*.[ch]", "tests/test_head_cuda.c", "tests/head_cuda_case.*",
           "tests/test_split_cuda.c", "tests/split_*.[ch]", "tests/tensor_core.*",
           "tests/kl_cases.*", "tests/test_kl.c", "tests/test_kl_special.c", "tests/test_tool_cuda.py",
           "tests/python/test_torch_errors.py"]


def covered_files():
    """Paths from the root of the tree, sorted."""
    found = set()
    for pattern in COVERED:
        for path in glob.glob(os.path.join(ROOT, pattern)):
            if os.path.isfile(path):
                found.add(os.path.relpath(path, ROOT).replace(os.sep, "/"))
    return sorted(found)


def digest():
    """SHA-256 over path, length and bytes of each covered file in the order of the paths."""
    total = hashlib.sha256()
    for path in covered_files():
        with open(os.path.join(ROOT, path), "rb") as file:
            content = file.read()
        total.update(("%s\n%d\n" % (path, len(content))).encode())
        total.update(content)
    return total.hexdigest()


def results():
    """The result files, newest date first, as (path, contents)."""
    found = []
    for path in glob.glob(os.path.join(ROOT, "bench", "results", "*.json")):
        with open(path, encoding="utf-8") as file:
            found.append((os.path.relpath(path, ROOT), json.load(file)))
    return sorted(found, key=lambda pair: pair[1].get("date", ""), reverse=True)


def judge(result, tree_digest):
    """Why this result is no evidence for the tree; "" if it is."""
    tests = result.get("tests", {})
    if result.get("digest") != tree_digest:
        return "the GPU code or its tests have changed since"
    if tests.get("failed", 1) or not tests.get("passed"):
        return "%s of its tests failed" % tests.get("failed", "an unknown number")
    return ""


def main():
    tree_digest = digest()
    fresh = False
    for path, result in results():
        why = judge(result, tree_digest)
        fresh = fresh or not why
        tests = result.get("tests", {})
        print("GPU evidence %s: %s, %s, %s; %s checks passed, %s failed, %s skipped%s" % (
            "stale" if why else "fresh", path, result.get("device", "?"), result.get("date", "?"), tests.get("passed"),
            tests.get("failed"), tests.get("skipped"), " (%s)" % why if why else ""))
    if not results():
        print("GPU evidence stale: bench/results holds none; ./dev gpu makes it on a machine with a GPU")
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main())
