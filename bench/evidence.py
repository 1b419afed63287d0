#!/usr/bin/env python3
"""Says whether the results in bench/results are about the GPU code in this tree: exit 0 if fresh, 1 if stale.

A result file carries a digest of the device code, of the host code that launches it and of the tests that ran with it,
comments aside. Device code is every .cu file and, from whatever folder, all that it includes; `evidence.py --check
BUILD` compares that list with what nvcc says it has read. One file whose digest is that of the tree, and whose tests all
passed, is fresh evidence. No GPU is needed. `evidence.py --again LOGS` puts what programs came to that ran once more
(./dev gpu --python) in its place. What was tried of the releases of PyTorch (releases.py) is said too, and changes
nothing of the exit code.
"""
import glob
import hashlib
import json
import os
import re
import sys

import releases

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CPU_LOSSES = os.path.join(ROOT, "bench", "results", "cpu-losses.json")  # cpu_losses.py's
HOST = ["src/cuda/*.[ch]", "src/*/cuda*.[ch]"]
TESTS = ["tests/test_cuda.c", "tests/cuda_*.[ch]", "tests/test_head_cuda.c", "tests/head_cuda_case.*",
         "tests/test_logits_cuda.c", "tests/test_top_k_cuda.c", "tests/test_linear_loss_cuda.c",
         "tests/linear_cases.h", "tests/level_cases.h",
         "tests/test_split_cuda.c", "tests/split_*.[ch]", "tests/tensor_core.*",
         "cases/*.[ch]", "tests/entry_points.*", "tests/kl_cases.*", "tests/test_kl.c",
         "tests/test_kl_special.c", "tests/test_tool_cuda.py", "tests/python/test_torch_errors.py"]
_COMMENT = re.compile(r'''("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/''', re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def device_files():
    """The .cu files and what they include, as paths from the root; an include names its file from src."""
    waiting = [os.path.relpath(path, ROOT) for pattern in ("src/*/*.cu", "tests/*.cu")
               for path in glob.glob(os.path.join(ROOT, pattern))]
    found = set()
    while waiting:
        path = waiting.pop().replace(os.sep, "/")
        if path in found:
            continue
        found.add(path)
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            waiting += ["src/" + name for name in _INCLUDE.findall(file.read())
                        if os.path.exists(os.path.join(ROOT, "src", name))]
    return found


def covered_files():
    """Paths from the root of the tree, sorted."""
    found = device_files()
    for pattern in HOST + TESTS:
        for path in glob.glob(os.path.join(ROOT, pattern)):
            if os.path.isfile(path):
                found.add(os.path.relpath(path, ROOT).replace(os.sep, "/"))
    return sorted(found)


def read_by_nvcc(build):
    """The files of this tree that nvcc has read for a build: from its dependency files, a line of words each."""
    found = set()
    lists = glob.glob(os.path.join(build, "cuda", "*.fatbin.d"))
    for path in lists:
        with open(path, encoding="utf-8") as file:
            text = file.read().replace("\\\n", " ")
        for word in re.findall(r"(?:\\ |\S)+", text.partition(":")[2]):
            path = os.path.relpath(os.path.realpath(os.path.join(build, word.replace("\\ ", " "))), ROOT)
            if not path.startswith(".."):
                found.add(path.replace(os.sep, "/"))
    return found if lists else None


def check(build):
    """Is what the digest covers what nvcc reads? Exit 0, 1, or 77 if the build has no kernels."""
    read = read_by_nvcc(build)
    if read is None:
        print("%s has no kernels" % build)
        return 77
    known = device_files()
    for path in sorted(read - known):
        print("nvcc reads %s, which the digest leaves out" % path)
    for path in sorted(known - read):
        print("the digest covers %s, which nvcc does not read" % path)
    print("%d files of device code" % len(read))
    return 0 if read == known else 1


def code_of(path, content):
    """What of a file's bytes can change what runs: of C and CUDA the lines without comments, blanks and empty lines."""
    if not path.endswith((".c", ".h", ".cu", ".cuh")):
        return content
    text = _COMMENT.sub(lambda found: found.group(1) or " ", content.decode())
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line).encode()


def digest():
    """SHA-256 over path, length and code of each covered file in the order of the paths."""
    total = hashlib.sha256()
    for path in covered_files():
        with open(os.path.join(ROOT, path), "rb") as file:
            content = code_of(path, file.read())
        total.update(("%s\n%d\n" % (path, len(content))).encode())
        total.update(content)
    return total.hexdigest()


def results():
    """The result files of GPUs, newest date first, as (path, contents)."""
    found = []
    for path in set(glob.glob(os.path.join(ROOT, "bench", "results", "*.json"))) - {releases.PATH, CPU_LOSSES}:
        with open(path, encoding="utf-8") as file:
            found.append((os.path.relpath(path, ROOT), json.load(file)))
    return sorted(found, key=lambda pair: pair[1].get("date", ""), reverse=True)


def read_log(text, name, status):
    """What a program of ./dev gpu came to, from what it printed."""
    checks = re.search(r"(\d+) checks, (\d+) failed", text)
    errors = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", text)
    sanitizer = name.startswith("memcheck") or name in ("initcheck", "racecheck", "synccheck")
    passed = int(checks.group(1)) - int(checks.group(2)) if checks else 0
    failed = int(checks.group(2)) if checks else 0
    if sanitizer:  # one check of its own: the same tests have been counted already
        passed, failed = (1, 0) if status == 0 and errors else (0, 1)
    elif status != 0 and failed == 0:
        failed = 1  # it ended before it could count
    return {"status": status, "passed": passed, "failed": failed, "skipped": len(re.findall(r"left out", text)),
            "last": text.strip().splitlines()[-1] if text.strip() else ""}


def counts_of(programs):
    return {key: sum(program[key] for program in programs.values()) for key in ("passed", "failed", "skipped")}


def read_logs(directory):
    """Counts of checks from the logs of ./dev gpu, and what each program came to."""
    programs = {}
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
        if name.endswith(".log"):
            with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
                text = file.read()
            with open(os.path.join(directory, name[:-4] + ".status"), encoding="utf-8") as file:
                programs[name[:-4]] = read_log(text, name[:-4], int(file.read()))
    return counts_of(programs), programs


def again(directory):
    """Programs that ran once more, after a repair of what the digest does not cover, into the newest result, if that is
    of this tree. Exit 1 if it is not, or if there are none."""
    programs = read_logs(directory)[1]
    found = results()
    if not programs or not found or found[0][1].get("digest") != digest():
        print("%s: %s" % (directory, "no logs" if not programs else "the newest result is not of this tree"))
        return 1
    path, result = found[0]
    unknown = sorted(set(programs) - set(result["programs"]))
    if unknown:
        print("%s: not among the programs of %s: %s" % (directory, path, ", ".join(unknown)))
        return 1
    result["programs"].update(programs)
    result["tests"] = counts_of(result["programs"])
    result["again"] = sorted(set(result.get("again", [])) | set(programs))
    with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print("%s: %s, again" % (path, ", ".join(sorted(programs))))
    return 0


def judge(result, tree_digest):
    """Why this result is no evidence for the tree; "" if it is."""
    tests = result.get("tests", {})
    if result.get("digest") != tree_digest:
        return "the GPU code or its tests have changed since"
    if tests.get("failed", 1) or not tests.get("passed"):
        return "%s of its tests failed" % tests.get("failed", "an unknown number")
    return ""


def say_releases():
    """What was tried of the PyTorch releases. Said, not judged: it takes an hour and 40 GB of downloads."""
    entries, tree_digest = releases.load(), releases.digest()
    fresh = [version for version, entry in entries.items() if entry["digest"] == tree_digest]
    failed = [version for version in entries if entries[version]["failed"]]
    stale = [version for version in entries if version not in fresh]
    words = ["PyTorch releases %s: %s tried with this package" % (
        "fresh" if fresh and not stale else "stale", ", ".join(fresh) or "none")]
    words += ["with another one %s (./dev releases VERSION tries one)" % ", ".join(stale)] if stale else []
    words += ["failures on %s" % ", ".join(failed)] if failed else []
    print("; ".join(words))


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
    say_releases()
    return 0 if fresh else 1


if __name__ == "__main__":
    ASKED = {"--check": check, "--again": again}.get("".join(sys.argv[1:2]))
    sys.exit(ASKED(sys.argv[2]) if ASKED else main())
