"""One self-contained Python file with a model in it, for people who may bring only one file.

    python -m onepass.export kl_div -o model_new.py
    python -m onepass.export linear_bn_softmax -o model_new.py

The file holds `class ModelNew`, the sources of the library that the model needs, word for word, and a few lines that
have PyTorch compile them at first use. It needs PyTorch and a compiler, and nothing of this package.
"""

import re

from onepass.export import gather

__all__ = ["OPERATORS", "Operator", "SourcesMissing", "export"]

SourcesMissing = gather.SourcesMissing


class Operator:
    """What can be exported. `name` names its templates: name.py (the model), name.cpp (its binding), and the PARTS that
    are included where the templates of all operators say operator_PART. `kernels` are its lines in src/core/kernels.def.
    `made` gives files that are cut from sources, {name: function without arguments}."""

    PARTS = ("cpu.inc", "level.inc", "cuda.inc", "kernels.inc")

    def __init__(self, name, summary, kernels, made):
        self.name = name
        self.summary = summary
        self.kernels = kernels
        self.made = made

    def files(self):
        """What there is for this operator alone, {name: text}."""
        files = {"operator_" + part: gather.template("%s_%s" % (self.name, part)) for part in self.PARTS}
        files.update((made, cut()) for made, cut in self.made.items())
        return files


def _kernel_names(definitions, uses):
    """KERNEL(name) for every kernel in the text `uses`, written out or made by a macro that a source of `definitions`
    defines: such a macro makes one for each name that it pastes together."""
    macros = {}
    for path in definitions:
        for name, parameters, body in re.findall(r"^#define (ONEP_\w+)\(([^)]*)\)((?:.*\\\n)*.*)", gather.read(path),
                                                 re.MULTILINE):
            macros[name] = (parameters.split(", "), re.findall(r"\bonep_\w+(?:##\w+)+(?=\()", body))
    written = re.sub(r"^#define (?:.*\\\n)*.*", "", uses, flags=re.MULTILINE)
    names = re.findall(r"\b(onep_\w+)\(const onep_\w+ a\)\n", written)
    for macro, arguments in re.findall(r"^(ONEP_\w+)\((.*)\)$", written, re.MULTILINE):
        parameters, pasted = macros[macro]
        given = dict(zip(parameters, arguments.split(", ")))
        names += ["".join(given.get(part, part) for part in name.split("##")) for name in pasted]
    return "\n".join(["/* Those kernels by name. */"] + ["KERNEL(%s)" % name for name in names]) + "\n"


def _kl_kernels():
    """The lines of src/cuda/kl_*.cu that make the kernels for probabilities on both sides, form 0."""
    lines = ["/* The kernels for probabilities on both sides: lines of src/cuda/kl_*.cu. */"]
    for word in ("f16", "bf16", "f32", "f64"):
        text = gather.read("src/cuda/kl_%s.cu" % word)
        lines += re.findall(r"^ONEP_KL_\w+\(\w+, 0(?:, \d+)*\)$", text, re.MULTILINE)
    return "\n".join(lines) + "\n"


def _kl_names():
    return _kernel_names(["src/cuda/kl_flat.cuh", "src/cuda/kl_rows.cuh"], _kl_kernels())


def _head_names():
    sources = ["src/cuda/%s.cu" % name
               for name in ("head_any", "head_bf16", "head_f16", "head_f32", "product", "split_planes")]
    headers = ["src/cuda/head_%s.cuh" % name for name in ("backward", "softmax", "stats")]
    hopper = "src/cuda/split_sm90a.cu"
    return "%s#ifdef ONEPASS_EXPORT_SM90A\n%s#endif\n" % (
        _kernel_names(sources + headers, "".join(gather.read(path) for path in sources)),
        _kernel_names([hopper], gather.read(hopper)))


OPERATORS = {operator.name: operator for operator in (
    Operator("kl_div", "kl_div(log(predictions), targets, reduction=\"batchmean\")", ["kl"],
             {"kl_kernels.inc": _kl_kernels, "operator_names.inc": _kl_names}),
    Operator("linear_bn_softmax", "softmax(scale * batch_norm(linear(x)), dim=1)", ["head", "head_backward"],
             {"operator_names.inc": _head_names}),
)}

_HEAD = '''"""%(summary)s as one fused PyTorch module: class ModelNew.

Written by onepass %(version)s:  python -m onepass.export %(name)s
Licence: Apache-2.0, the library's. This file is made, not written: change the library and make it anew.

The module takes the place of the model it is named after, forward and backward. At its first use PyTorch compiles what
it needs (a C++ compiler and ninja; for tensors on a GPU also nvcc) and keeps the result in its cache. The sources below
the module are onepass's own, word for word, each under its path in the project.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import inspect
import logging
import os
import re
import subprocess
import sys
import threading
from collections import namedtuple

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
    files = gather.with_includes([name + ".cpp", "kernels.cu"], operator.files(), operator.kernels)
    paths = {gather.flat_name(path): path for path in gather.listed()}
    parts = [_HEAD % {"name": name, "summary": operator.summary, "version": gather.version()},
             "\n" + gather.template(name + ".py"),
             "\n\n" + gather.template("build.py"),
             "\n\n# ---- sources %s" % ("-" * 105) + "\n\n_OPERATOR = %r\n_FILES = {}\n" % name]
    for flat, text in files.items():
        parts.append("\n# %s\n_FILES[%r] = %s\n" % (paths.get(flat, "onepass.export"), flat, _quoted(text)))
    return "".join(parts)
