#!/usr/bin/env python3
"""Dependencies go one way: a file includes nothing from a folder above its own, and says which folder it means.

usage: test_layers.py [--self-test]. Looks at every C, CUDA and include file under src/, cases/ and tools/ of the tree
this file is in. Prints each violation as FILE:LINE and exits 1 if there is one. The self-test puts bad includes into a copy of the
tree and fails unless each of them is found. Standard library only.
"""
import os
import re
import shutil
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# What a folder of src/ may include from, besides itself. An operator is listed with those it is built on; one that is
# not listed is built on none of the others.
COMMON = ("core", "cpu", "cuda")
FOLDERS = {"core": (), "cpu": ("core",), "cuda": ("core",)}
OPERATORS = {"kl": (), "logits": (), "linear": (), "head": ("linear",),
             "linear_loss": ("linear", "logits")}
TOP = ("levels", "")  # may include any folder; "" stands for the files of src/ itself, which no folder may include

ENDINGS = (".c", ".h", ".inc", ".def", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]*)"|<([^>]*)>)')
GENERATED = re.compile(r"fatbin_\w+\.inc$")  # written by the build
PUBLIC = "onepass.h"


def folders(root):
    """The folders of src/, operators among them, in no order."""
    return {entry.name for entry in os.scandir(os.path.join(root, "src")) if entry.is_dir()}


def allowed(folder, known):
    """The folders that files of this one may include from."""
    if folder in TOP:
        return known | {""}
    if folder in FOLDERS:
        return set(FOLDERS[folder]) | {folder}
    return set(COMMON) | set(OPERATORS.get(folder, ())) | {folder}


def includes(path):
    """Line number, name, and whether it is in quotes, of each include of a file."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            found = INCLUDE.match(line)
            if found:
                yield number, found.group(1) or found.group(2), found.group(1) is not None


def check_src(root, folder, name, known):
    """What is wrong with an include in a file of src/FOLDER; None: nothing."""
    if name == PUBLIC or (folder == "cuda" and GENERATED.fullmatch(name)):
        return None
    of = os.path.dirname(name)
    if of == "" and folder != "":
        return "names no folder; write \"folder/%s\"" % name
    if of not in known | {""} or not os.path.isfile(os.path.join(root, "src", name)):
        return "is not a file of src/"
    if of not in allowed(folder, known):
        return "is above src/%s, which may include from: %s" % (folder, ", ".join(sorted(allowed(folder, known))))
    return None


def check_outside(root, top, name):
    """The same for tools/ and cases/: the public header, cases/, and for tools/ its own headers."""
    if name == PUBLIC or (name.startswith("cases/") and os.path.isfile(os.path.join(root, name))):
        return None
    if top == "tools" and "/" not in name and os.path.isfile(os.path.join(root, "tools", name)):
        return None
    return "is neither onepass.h nor a file of cases/" + (" or tools/" if top == "tools" else "")


def violations(root):
    """Every violation as "FILE:LINE: ...", and how many files were looked at."""
    known, found, files = folders(root), [], 0
    for top in ("src", "cases", "tools"):
        for directory, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                if not name.endswith(ENDINGS):
                    continue
                files += 1
                path = os.path.join(directory, name)
                place = os.path.relpath(path, root)
                folder = os.path.relpath(place, top).rpartition(os.sep)[0]
                for line, included, quoted in includes(path):
                    if not quoted:  # the system's, unless it is a way around this check
                        ours = "/" in included and os.path.isfile(os.path.join(root, "src", included))
                        wrong = "is our own; put it in quotes" if ours else None
                    elif top != "src":
                        wrong = check_outside(root, top, included)
                    else:
                        wrong = check_src(root, folder, included, known)
                    if wrong:
                        found.append("%s:%d: \"%s\" %s" % (place, line, included, wrong))
    for operator in sorted(known - set(FOLDERS) - set(OPERATORS) - set(TOP)):
        found.append("src/%s: tests/test_layers.py does not list this folder" % operator)
    return found, files


# A file, the include to put into it, and a word of the complaint.
BAD = (
    ("src/core/tensor.h", "kl/kl.h", "above"),
    ("src/core/tensor.c", "cpu/blas.h", "above"),
    ("src/core/tensor.c", "operators.h", "names no folder"),
    ("src/cpu/blas.c", "cuda/device.h", "above"),
    ("src/cpu/vec.h", "levels/operators.inc", "above"),
    ("src/cuda/driver.c", "cpu/blas.h", "above"),
    ("src/cuda/elem.cuh", "linear/linear.h", "above"),
    ("src/cuda/probe.cu", "head/cuda_args.h", "above"),
    ("src/kl/entry.c", "linear/linear.h", "above"),
    ("src/kl/entry.c", "kl.h", "names no folder"),
    ("src/kl/cpu.inc", "head/head.h", "above"),
    ("src/linear/entry.c", "head/head.h", "above"),
    ("src/head/entry.c", "kl/kl.h", "above"),
    ("src/levels/scalar.c", "../include/onepass.h", "not a file"),
    ("cases/case.h", "core/status.h", "neither"),
    ("cases/kl.c", "number.h", "neither"),
    ("tools/main.c", "core/status.h", "neither"),
    ("tools/main.c", "../src/core/status.h", "neither"),
    ("tools/call.h", "operators.h", "neither"),
)


def self_test():
    """Puts each bad include, alone, into a copy of the tree. Returns how many were not found."""
    missed = 0
    with tempfile.TemporaryDirectory() as copy:
        for top in ("src", "cases", "tools"):
            shutil.copytree(os.path.join(ROOT, top), os.path.join(copy, top))
        before = set(violations(copy)[0])
        for place, included, word in BAD:
            path = os.path.join(copy, place)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n#  include \"%s\"\n" % included)
            new = set(violations(copy)[0]) - before
            if not (len(new) == 1 and place in min(new) and "\"%s\"" % included in min(new) and word in min(new)):
                print("not found: %s including %s; found: %s" % (place, included, sorted(new)))
                missed += 1
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        os.mkdir(os.path.join(copy, "src", "unknown"))
        if not any("src/unknown" in one for one in violations(copy)[0]):
            print("not found: a folder that is not listed")
            missed += 1
    return missed


def main():
    if sys.argv[1:] not in ([], ["--self-test"]):
        sys.exit("usage: test_layers.py [--self-test]")
    if sys.argv[1:]:
        missed = self_test()
        print("%d bad includes, %d not found" % (len(BAD) + 1, missed))
        return 1 if missed else 0
    found, files = violations(ROOT)
    for one in found:
        print(one)
    print("%d files, %d violations" % (files, len(found)))
    return 1 if found or files < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
