"""One self-contained Python file with a model in it, for people who may bring only one file.

    python -m onepass.export kl_div -o model_new.py
    python -m onepass.export linear_bn_softmax -o model_new.py
    python -m onepass.export kl_logits -o model_new.py
    python -m onepass.export cross_entropy -o model_new.py
    python -m onepass.export linear_cross_entropy -o model_new.py
    python -m onepass.export kl_top_k -o model_new.py

The file holds `class ModelNew` (models/NAME.py), the lines that compile (build.py), and the sources of this package
that the model needs, C, CUDA and Python. It needs PyTorch and a C compiler, and nothing of this package.
"""

import os
import re
from collections import namedtuple

__all__ = ["OPERATORS", "Operator", "SourcesMissing", "export"]

_HERE = os.path.dirname(os.path.abspath(__file__))
# An installed package has its C and CUDA sources beside this file; in a checkout, and in a build, whose Python files
# are links into one, they are where they are written.
_ROOTS = os.path.join(_HERE, "sources"), os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "..")

# name: also of its model, models/NAME.py; module: what the model calls; folders: of src, the operator's own and those
# of operators it is built on.
Operator = namedtuple("Operator", "name summary module folders")

OPERATORS = {operator.name: operator for operator in (
    Operator("kl_div", 'kl_div(log(predictions), targets, reduction="batchmean")', "torch.kl", ["kl"]),
    Operator("linear_bn_softmax", "softmax(scale * batch_norm(linear(x)), dim=1)", "torch.modules", ["linear", "head"]),
    Operator("kl_logits", "kl_div(log_softmax(student / T), log_softmax(teacher / T), ...) * T**2",
             "torch.rewrite_losses", ["kl", "logits"]),
    Operator("cross_entropy", "cross_entropy(logits, labels)", "torch.rewrite_losses", ["kl", "logits"]),
    Operator("linear_cross_entropy", "cross_entropy(linear(hidden), labels)", "torch.losses_modules",
             ["logits", "linear", "linear_loss"]),
    Operator("kl_top_k", "KL divergence of logits from a teacher's top-k log-probabilities", "torch.losses_top_k",
             ["logits"]),
)}

_SHARED = ["include", "src", "src/core", "src/cpu", "src/cuda", "src/levels", "python/src"]


class SourcesMissing(Exception):
    """The sources are not where they should be: the installation is not complete."""


# ---- what is packed --------------------------------------------------------------------------------------------------


def _read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def _root():
    for root in _ROOTS:
        if os.path.exists(os.path.join(root, "include", "onepass.h")):
            return os.path.normpath(root)
    raise SourcesMissing("include/onepass.h is neither installed with onepass nor in a checkout: looked in %s"
                         % " and ".join(os.path.normpath(root) for root in _ROOTS))


def _c_sources(folders):
    """{path: text} of the shared folders and of these operators. The two lists of all operators, operators.def and
    levels/operators.inc, are cut to the lines of these."""
    root, files = _root(), {}
    for folder in _SHARED + ["src/" + name for name in folders]:
        for name in sorted(os.listdir(os.path.join(root, folder))):
            if re.search(r"\.(c|h|inc|def|cu|cuh)$", name):
                files["%s/%s" % (folder, name)] = _read(root, folder, name)
    files["python/native.map"] = _read(root, "python", "native.map")
    entries = "".join(files["src/%s/entry.c" % name] for name in folders)
    files["src/operators.def"] = re.sub(
        r"^OPERATOR\((\w+)\)\n",
        lambda line: line[0] if re.search(r"\bonep_%s =|^\w+\(%s," % (line[1], line[1]), entries, re.MULTILINE) else "",
        files["src/operators.def"], flags=re.MULTILINE)
    files["src/levels/operators.inc"] = re.sub(
        r'^#include "(\w+)/cpu_level.inc"\n', lambda line: line[0] if line[1] in folders else "",
        files["src/levels/operators.inc"], flags=re.MULTILINE)
    return files


def _python_sources(module):
    """{path: text} of a module of the package and of all that it imports of it."""
    package, files, waiting = os.path.dirname(_HERE), {}, [module]
    while waiting:
        path = waiting.pop().replace(".", "/")
        if "python/onepass/%s.py" % path in files or not os.path.exists(os.path.join(package, path + ".py")):
            continue
        text = files["python/onepass/%s.py" % path] = _read(package, path + ".py")
        for origin, names in re.findall(r"^from onepass(\.\S+)? import (.+)$", text, re.MULTILINE):
            origin = origin[1:] + "." if origin else ""
            waiting += [origin[:-1]] + [origin + name for name in names.split(", ")]
    for folder in {os.path.dirname(path) for path in files} | {"python/onepass"}:
        files[folder + "/__init__.py"] = ""
    return dict(sorted(files.items()))


# ---- the file --------------------------------------------------------------------------------------------------------

_HEAD = '''"""%(summary)s as one fused PyTorch module: class ModelNew.

Written by onepass %(version)s:  python -m onepass.export %(name)s
Licence: Apache-2.0, the library's. This file is generated: change the library and export again.

The module takes the place of the model it is named after, forward and backward. Its first call with tensors on the CPU,
and its first call with tensors on a GPU, compile the sources below (a C compiler; for a GPU also nvcc) into a directory
of PyTorch's extension cache, TORCH_EXTENSIONS_DIR, from which later processes load the result.

The sources are onepass's own, each under its path in the project.  python FILE --unpack DIR  writes them to DIR.
"""

import atexit
import concurrent.futures
import fcntl
import hashlib
import importlib
import importlib.util
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading

import torch
from torch import nn


'''

_TAIL = '''

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--unpack":
        sys.exit("usage: python %s --unpack DIR" % sys.argv[0])
    _unpack(sys.argv[2])
'''


def _quoted(text):
    """A raw string with exactly this text."""
    quotes = '"""' if "'''" in text else "'''"
    if quotes in text or text.endswith(("\\", quotes[0])) or not text.isascii():
        raise ValueError("no raw string holds this text: %r..." % text[:60])
    return "r%s%s%s" % (quotes, text, quotes)


def _version(header):
    return ".".join(re.findall(r"#define ONEPASS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))


def export(name):
    """The text of the file for one of OPERATORS. The same sources give the same text."""
    operator = OPERATORS[name]
    files = _c_sources(operator.folders)
    files.update(_python_sources(operator.module))
    parts = [_HEAD % {"name": name, "summary": operator.summary, "version": _version(files["include/onepass.h"])},
             _read(_HERE, "models", name + ".py"), "\n\n", _read(_HERE, "build.py"),
             "\n\n# ---- sources %s\n\n" % ("-" * 105), "_OPERATOR, _FOLDERS, _MODULE = %r, %r, %r\n" % (
                 name, "_".join(operator.folders), operator.module), "_FILES = {}\n"]
    for path, text in files.items():
        parts.append("\n_FILES[%r] = %s\n" % (path, _quoted(text)))
    return "".join(parts) + _TAIL
