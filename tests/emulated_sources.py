#!/usr/bin/env python3
"""Makes C++ that emulated_threads.hpp can run of the CUDA sources, for the stand-in for the driver.

usage: emulated_sources.py SRC OUT SOURCE=KERNELS...

Copies every src/*/*.cu and *.cuh to the folder OUT, with inline PTX as calls of the functions of emulated_math.hpp
("cvt.rn.f16x2.f32 %0, %2, %1;" calls ptx::cvt_rn_f16x2_f32 with operands 0, 2 and 1), and for every SOURCE (as
"kl/cuda_f16.cu") writes OUT/kl_cuda_f16.cpp, which registers the kernels listed in the file KERNELS, a name a line.
What is not understood stays as it is, for the compiler to refuse. The device code itself is not touched: nvcc never
reads what is written here. A file that would not change is not written. Standard library only.
"""
import glob
import os
import re
import sys

_ASM = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OPERAND = re.compile(r'\s*"[^"]*"\s*\((.*)\)\s*$', re.DOTALL)
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\w+\)\s+)?([\w\s:]+?)\s*\b(\w+)\[\];")

WRAPPER = """/* Made by emulated_sources.py: the kernels of %(source)s, for the stand-in for the driver. */
#include "emulated_gpu.hpp"
#include "emulated_standin.hpp"

namespace /* every file has functions of its own */
{
#include "%(source)s"

%(kernels)s
}
"""


def closing(text, begin):
    """Where the parenthesis before `begin` ends, strings left alone."""
    depth, at = 1, begin
    while depth:
        literal = _LITERAL.match(text, at)
        if literal:
            at = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1


def split(text, mark):
    """The parts of a text between marks outside of parentheses, brackets and strings."""
    parts, depth, begin, at = [], 0, 0, 0
    while at < len(text):
        literal = _LITERAL.match(text, at)
        if literal:
            at = literal.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if text[at] == mark and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return parts + [text[begin:]]


def call_of(statement):
    """What is between the parentheses of an asm statement as a call; None if it is not understood."""
    parts = split(statement, ":")
    if _LITERAL.sub("", parts[0]).strip():
        return None  # a macro among the strings
    ptx = "".join(_LITERAL.findall(parts[0])).replace("\\n", " ").replace("\\t", " ")
    operands = []
    for part in parts[1:3]:
        for operand in split(part, ","):
            if operand.strip():
                found = _OPERAND.match(operand)
                if not found:
                    return None
                operands.append(" ".join(found.group(1).split()))
    names, order = [], []
    for instruction in re.sub(r"^\s*\{|\}\s*$", "", ptx).split(";"):
        words = instruction.split()
        if not words or words[0] == ".reg":
            continue
        names.append(re.sub(r"\W+", "_", words[0]))
        for number in map(int, re.findall(r"%(\d+)", instruction)):
            if number not in order:
                order.append(number)
    if not names or any(number >= len(operands) for number in order):
        return None
    return "ptx::%s(%s)" % ("__".join(names), ", ".join(operands[number] for number in order))


def translated(text):
    done, at = [], 0
    for found in _ASM.finditer(text):
        if found.start() < at:
            continue
        end = closing(text, found.end())
        call = call_of(text[found.end():end])
        if call is not None:
            lines = text.count("\n", found.start(), end)
            done += [text[at:found.start()], call, "\n" * lines]
            at = end + 1
    text = "".join(done) + text[at:]
    return _DYNAMIC.sub(r"\1 *\2 = reinterpret_cast<\1 *>(emulated::dynamic_shared);", text)


def write(path, text):
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except OSError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    src, out = sys.argv[1:3]
    for path in sorted(glob.glob(os.path.join(src, "*", "*.cu")) + glob.glob(os.path.join(src, "*", "*.cuh"))):
        with open(path, encoding="utf-8") as file:
            text = translated(file.read())
        write(os.path.join(out, os.path.relpath(path, src)), '#line 1 "%s"\n%s' % (path, text))
    for pair in sys.argv[3:]:
        source, _, kernels = pair.partition("=")
        with open(kernels, encoding="utf-8") as file:
            names = file.read().split()
        write(os.path.join(out, source.replace("/", "_")[:-len(".cu")] + ".cpp"),
              WRAPPER % {"source": source, "kernels": "\n".join("EMULATED_KERNEL(%s)" % name for name in names)})


if __name__ == "__main__":
    main()
