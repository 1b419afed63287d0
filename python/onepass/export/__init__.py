"""One self-contained Python file with a model in it, for people who may bring only one file.

    python -m onepass.export kl_div -o model_new.py

The file holds `class ModelNew`, the sources of the library that the model needs, word for word, and a few lines that
have PyTorch compile them at first use. It needs PyTorch and a compiler, and nothing of this package.
"""

import re

from onepass.export import gather

__all__ = ["OPERATORS", "Operator", "SourcesMissing", "export"]

SourcesMissing = gather.SourcesMissing


class Operator:
    """What can be exported. `name` names its templates: name.py (the model), name.cpp and name.cu (its binding and its
    kernels). `kernels` are its lines in src/core/kernels.def. `made` gives files that are cut from sources,
    {name: function without arguments}."""

    def __init__(self, name, summary, kernels, made):
        self.name = name
        self.summary = summary
        self.kernels = kernels
        self.made = made


def _kl_kernels():
    """The lines of src/cuda/kl_*.cu that make the kernels for probabilities on both sides, form 0."""
    lines = ["/* The kernels for probabilities on both sides: lines of src/cuda/kl_*.cu. */"]
    for word in ("f16", "bf16", "f32", "f64"):
        text = gather.read("src/cuda/kl_%s.cu" % word)
        lines += re.findall(r"^ONEP_KL_\w+\(\w+, 0(?:, \d+)*\)$", text, re.MULTILINE)
    return "\n".join(lines) + "\n"


def _kl_names():
    """KERNEL(name) for every kernel that those lines make: a macro makes one for each name that it pastes together."""
    names = {}
    for path in ("src/cuda/kl_flat.cuh", "src/cuda/kl_rows.cuh"):
        for macro in re.finditer(r"^#define (ONEP_KL_\w+)\(T, form.*\\\n(?:.*\\\n)*", gather.read(path), re.MULTILINE):
            names[macro[1]] = re.findall(r"\bonep_kl_\w+(?:##\w+)+(?=\()", macro[0])
    lines = ["/* Those kernels by name. */"]
    for macro, element in re.findall(r"^(\w+)\((\w+), 0", _kl_kernels(), re.MULTILINE):
        for name in names[macro]:
            parts = [{"T": element, "form": "0"}.get(part, part) for part in name.split("##")]
            lines.append("KERNEL(%s)" % "".join(parts))
    return "\n".join(lines) + "\n"


OPERATORS = {operator.name: operator for operator in (
    Operator("kl_div", "kl_div(log(predictions), targets, reduction=\"batchmean\")", ["kl"],
             {"kl_kernels.inc": _kl_kernels, "kl_names.inc": _kl_names}),
)}

_HEAD = '''"""%(summary)s as one fused PyTorch module: class ModelNew.

Written by onepass %(version)s:  python -m onepass.export %(name)s
Licence: Apache-2.0, the library's. This file is made, not written: change the library and make it anew.

The module takes the place of the model it is named after, forward and backward. At its first use PyTorch compiles what
it needs (a C++ compiler and ninja; for tensors on a GPU also nvcc) and keeps the result in its cache. The sources below
the module are onepass's own, word for word, each under its path in the project.
"""

import fcntl
import hashlib
import importlib.util
import inspect
import logging
import os
import subprocess
import sys
import threading

import torch
from torch import nn

'''


def _quoted(text):
    """A raw string with exactly this text."""
    quotes = '"""' if "'''" in text else "'''"
    if quotes in text or text.endswith(("\\", quotes[0])) or not text.isascii():
        raise ValueError("no raw string holds this text: %r..." % text[:60])
    return "r%s%s%s" % (quotes, text, quotes)


def export(name):
    """The text of the file for one of OPERATORS. The same sources give the same text."""
    operator = OPERATORS[name]
    files = gather.with_includes([name + ".cpp", name + ".cu"], {made: cut() for made, cut in operator.made.items()},
                                 operator.kernels)
    paths = {gather.flat_name(path): path for path in gather.listed()}
    parts = [_HEAD % {"name": name, "summary": operator.summary, "version": gather.version()},
             "\n" + gather.template(name + ".py"),
             "\n\n" + gather.template("build.py"),
             "\n\n# ---- sources %s" % ("-" * 105) + "\n\n_OPERATOR = %r\n_FILES = {}\n" % name]
    for flat, text in files.items():
        parts.append("\n# %s\n_FILES[%r] = %s\n" % (paths.get(flat, "onepass.export"), flat, _quoted(text)))
    return "".join(parts)
